rockspec_format = "3.0"
package = "cord"
version = "scm-1"
source = { url = "git+file://." }
description = {
   summary = "Tarantool-style fibers and a net.box client for stock LuaJIT",
   detailed = "One native module: stackful fibers, a yield with a trace-abort toggle, on_stop triggers and the IPROTO client and server, all driven from Lua.",
   license = "BSD-2-Clause",
}
dependencies = { "lua == 5.1" }
build = {
   type = "command",
   build_command = "make cord.so",
   install_command = "make install-rock LIBDIR=$(LIBDIR) LUADIR=$(LUADIR) PREFIX=$(PREFIX)",
}
