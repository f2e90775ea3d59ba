rockspec_format = "3.0"
package = "cord"
version = "scm-1"
-- `luarocks make` builds the folder it stands in; the source is for `luarocks build`, run in a clone.
source = { url = "git+file://." }
description = {
   summary = "Tarantool-style fibers and a net.box client for stock LuaJIT",
   detailed = [[
One native module for a stock LuaJIT 2.1: fibers that may yield anywhere, net.box (the client of Tarantool's IPROTO
protocol) and an embedded IPROTO server. Building it needs make and a Rust toolchain, no other rock.]],
   license = "BSD-2-Clause",
   labels = { "fiber", "coroutine", "tarantool", "luajit" },
}
supported_platforms = { "unix" }
dependencies = { "lua == 5.1" }
build = {
   type = "command",
   build_command = "make cord.so",
   install_command = 'make install-rock LIBDIR="$(LIBDIR)" PREFIX="$(PREFIX)"',
}
test = { type = "command", command = "make spec" }
