/* The least a yield can cost, for bench-lua/floor.lua: lua_yield, and a loop that does nothing but lua_resume. Needs no Lua
 * headers. */
#include <stdlib.h>
#include <time.h>

typedef struct lua_State lua_State;
extern int lua_yield(lua_State *L, int results);
extern int lua_resume(lua_State *L, int arguments);
extern lua_State *lua_newthread(lua_State *L);
extern void lua_createtable(lua_State *L, int array, int hash);
extern void lua_rawseti(lua_State *L, int index, int n);
extern void lua_pushvalue(lua_State *L, int index);
extern void lua_xmove(lua_State *from, lua_State *to, int n);
extern double lua_tonumber(lua_State *L, int index);
extern void lua_pushnumber(lua_State *L, double n);
extern void lua_pushcclosure(lua_State *L, int (*function)(lua_State *), int upvalues);
extern void lua_settop(lua_State *L, int index);

static int yield(lua_State *L)
{
    return lua_yield(L, 0);
}

static double now(int cpu)
{
    struct timespec t;
    clock_gettime(cpu ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* run(n, f, cpu): n threads that run f are resumed in turn until all have ended; gives the seconds of that. */
static int run(lua_State *L)
{
    int n = (int)lua_tonumber(L, 1), cpu = lua_tonumber(L, 3) != 0, live = n, i;
    lua_State **threads = malloc(n * sizeof *threads);
    double begin;
    lua_settop(L, 2);
    lua_createtable(L, n, 0);
    for (i = 0; i < n; i++) {
        threads[i] = lua_newthread(L);
        lua_rawseti(L, 3, i + 1);
        lua_pushvalue(L, 2);
        lua_xmove(L, threads[i], 1);
    }
    begin = now(cpu);
    while (live > 0) {
        live = 0;
        for (i = 0; i < n; i++) {
            if (threads[i] && lua_resume(threads[i], 0) == 1)
                live++;
            else
                threads[i] = NULL;
        }
    }
    lua_pushnumber(L, now(cpu) - begin);
    free(threads);
    return 1;
}

int luaopen_floor(lua_State *L)
{
    lua_pushcclosure(L, yield, 0);
    lua_pushcclosure(L, run, 0);
    return 2;
}
