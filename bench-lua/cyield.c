/* A C function that yields its coroutine, for bench-lua/lua_yield.lua: return lua_yield(L, n). Needs no Lua headers. */
typedef struct lua_State lua_State;
extern int lua_gettop(lua_State *L);
extern int lua_yield(lua_State *L, int results);
extern void lua_pushcclosure(lua_State *L, int (*function)(lua_State *), int upvalues);

static int c_yield(lua_State *L)
{
    return lua_yield(L, lua_gettop(L));
}

int luaopen_cyield(lua_State *L)
{
    lua_pushcclosure(L, c_yield, 0);
    return 1;
}
