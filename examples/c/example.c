/*
 * A native Lua module whose code runs in fibers, over include/cord.h.
 *
 *     cc -O2 -fPIC -shared -I include -I /usr/include/luajit-2.1 -o cord_example.so examples/c/example.c
 *     luajit -e 'require "cord.ffi" print(require("cord_example").squares(10))'
 *
 * `require 'cord.ffi'` comes first: it makes the cord_ functions visible to modules loaded after it.
 */
#include "cord.h"

#include <errno.h>
#include <lauxlib.h>
#include <lua.h>
#include <string.h>
#include <unistd.h>

/* What the fibers of an example share lives on the C stack of the Lua function that waits for them: a wait keeps its
 * stack, and the function does not return before they are through. */

static int fail(lua_State *L, int code)
{
	return luaL_error(L, "%s (%d)", cord_last_error()[0] ? cord_last_error() : cord_strerror(code), code);
}

/* ---- squares(n): n fibers, one result each, a cond that says when all are done ---- */

struct squares {
	cord_fiber_cond_t *done;
	double sum;
	int left;
};

struct square {
	struct squares *all;
	int i;
};

static int square_f(void *arg)
{
	/* The caller reuses its record once this fiber waits: what it needs is copied first. */
	struct square me = *(struct square *)arg;
	struct squares *all = me.all;
	int n = me.i;
	if (cord_fiber_sleep(0.0001 * (n % 3)) != CORD_OK)
		return -1;
	all->sum += (double)n * n;
	if (--all->left == 0)
		cord_fiber_cond_signal(all->done);
	return 0;
}

static int l_squares(lua_State *L)
{
	int n = luaL_checkint(L, 1);
	struct squares all = { cord_fiber_cond_new(), 0, n };
	int code = CORD_OK;
	for (int i = 1; i <= n; i++) {
		struct square one = { &all, i };
		cord_fiber_t fiber = cord_fiber_new("square", square_f);
		code = cord_fiber_start(fiber, &one);
		if (code != CORD_OK)
			break;
	}
	while (code == CORD_OK && all.left > 0)
		code = cord_fiber_cond_wait(all.done);
	cord_fiber_cond_delete(all.done);
	if (code != CORD_OK)
		return fail(L, code);
	lua_pushnumber(L, all.sum);
	return 1;
}

/* ---- call(function, ...): the function runs in a C fiber and may wait; its first result, or its error, comes back ---- */

struct call {
	lua_State *from;
	int nargs;
	int status;
};

static int call_f(void *arg)
{
	struct call *call = arg;
	lua_State *L = cord_lua_state();
	if (L == NULL)
		return -1;
	/* The caller's stack holds the function and its arguments, and does not run while it waits for this fiber. */
	lua_xmove(call->from, L, call->nargs + 1);
	call->status = cord_lua_pcall(L, call->nargs, 1);
	lua_xmove(L, call->from, 1);
	return call->status == CORD_OK ? 0 : -1;
}

static int l_call(lua_State *L)
{
	luaL_checktype(L, 1, LUA_TFUNCTION);
	struct call call = { L, lua_gettop(L) - 1, CORD_OK };
	cord_fiber_t fiber = cord_fiber_new("call", call_f);
	int result = 0;
	cord_fiber_set_joinable(fiber, true);
	int code = cord_fiber_start(fiber, &call);
	if (code == CORD_OK)
		code = cord_fiber_join(fiber, &result);
	if (code != CORD_OK)
		return fail(L, code);
	lua_pushboolean(L, result == 0);
	lua_insert(L, -2);
	return 2;
}

/* ---- pipe(text): one fiber writes the text into a pipe byte by byte, the caller reads it ---- */

struct writer {
	int fd;
	const char *text;
};

static int writer_f(void *arg)
{
	struct writer me = *(struct writer *)arg;
	for (const char *at = me.text; *at; at++) {
		if (cord_coio_wait(me.fd, CORD_COIO_WRITE, 10) <= 0 || write(me.fd, at, 1) != 1)
			return -1;
		cord_fiber_yield();
	}
	return cord_coio_close(me.fd);
}

static int l_pipe(lua_State *L)
{
	int fds[2];
	struct writer me = { 0, luaL_checkstring(L, 1) };
	if (pipe(fds) != 0)
		return luaL_error(L, "pipe: %s", strerror(errno));
	me.fd = fds[1];
	cord_fiber_attr_t *attr = cord_fiber_attr_new();
	cord_fiber_attr_setstacksize(attr, 64 * 1024);
	cord_fiber_t fiber = cord_fiber_new_ex("writer", attr, writer_f);
	cord_fiber_attr_delete(attr);
	cord_fiber_set_joinable(fiber, true);
	int code = cord_fiber_start(fiber, &me);
	luaL_Buffer text;
	luaL_buffinit(L, &text);
	while (code == CORD_OK) {
		char buffer[16];
		int events = cord_coio_wait(fds[0], CORD_COIO_READ, 10);
		ssize_t n = events > 0 ? read(fds[0], buffer, sizeof(buffer)) : -1;
		if (n <= 0)
			break;
		luaL_addlstring(&text, buffer, (size_t)n);
	}
	cord_coio_close(fds[0]);
	int result = -1;
	if (code == CORD_OK)
		code = cord_fiber_join(fiber, &result);
	if (code != CORD_OK)
		return fail(L, code);
	luaL_pushresult(&text);
	lua_pushinteger(L, result);
	return 2;
}

/* ---- stack(bytes): how deep a fiber with a stack of its own can recurse, in bytes used ---- */

static size_t deep(const char *top, size_t wanted)
{
	volatile char block[1024];
	block[0] = (char)wanted;
	size_t used = (size_t)(top - (const char *)block);
	if (used < wanted)
		used = deep(top, wanted);
	/* Read after the call, or the compiler would turn the recursion into a loop. */
	return block[0] == (char)wanted ? used : 0;
}

static int stack_f(void *arg)
{
	char top;
	size_t wanted = *(size_t *)arg;
	cord_fiber_yield();
	*(size_t *)arg = deep(&top, wanted);
	return 0;
}

static int l_stack(lua_State *L)
{
	size_t bytes = (size_t)luaL_checknumber(L, 1);
	size_t used = bytes * 3 / 4;
	cord_fiber_attr_t *attr = cord_fiber_attr_new();
	int code = cord_fiber_attr_setstacksize(attr, bytes);
	if (code != CORD_OK) {
		cord_fiber_attr_delete(attr);
		return fail(L, code);
	}
	cord_fiber_t fiber = cord_fiber_new_ex("deep", attr, stack_f);
	cord_fiber_attr_delete(attr);
	cord_fiber_set_joinable(fiber, true);
	code = cord_fiber_start(fiber, &used);
	if (code == CORD_OK)
		code = cord_fiber_join(fiber, NULL);
	if (code != CORD_OK)
		return fail(L, code);
	lua_pushnumber(L, (lua_Number)used);
	return 1;
}

int luaopen_cord_example(lua_State *L)
{
	static const luaL_Reg functions[] = {
		{ "squares", l_squares }, { "call", l_call }, { "pipe", l_pipe }, { "stack", l_stack }, { NULL, NULL },
	};
	/* Not CORD_OK where the compiler's state cannot be found: waits refuse then, each with its own text. */
	(void)cord_attach(L);
	lua_newtable(L);
	luaL_register(L, NULL, functions);
	return 1;
}
