#!/bin/sh
# luarocks make into the project-local tree. Cargo's progress (stderr) is shown, LuaRocks' own lines only on failure.
set -eu
mkdir -p "$ROCKS"
log=$ROCKS/build.log
# The rock's own make must not inherit this make's job server.
unset MAKEFLAGS MFLAGS MAKELEVEL
# LuaRocks may itself run on another Lua: the tree is for LuaJIT, which is Lua 5.1 to it.
if "$LUAROCKS" --lua-version=5.1 --tree="$ROCKS" make >"$log"; then
    exit 0
fi
cat "$log" >&2
cat >&2 <<'END'
cord: luarocks make failed. If the lines above are about Lua and not about Rust: LuaRocks needs to find a Lua 5.1 or
LuaJIT with its headers (Debian: apt-get install lua5.1 liblua5.1-0-dev; elsewhere: luarocks --lua-version=5.1
--lua-dir=PREFIX_OF_LUAJIT make). Without LuaRocks: make install PREFIX=/usr/local.
END
exit 1
