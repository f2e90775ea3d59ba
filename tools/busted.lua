-- busted under the interpreter that runs this file, wherever busted itself is installed:
--     luajit [LuaJIT's options] tools/busted.lua [busted's options]
require 'busted.runner'({ standalone = false })
