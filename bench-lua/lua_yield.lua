-- What a yield costs by its way: lua_yield from a C function, coroutine.yield, fiber.yield. Under luajit, tarantool, lua5.1.
--     luajit bench-lua/lua_yield.lua [--runs N] [--json] [--cpu];   likewise tarantool, lua5.1
package.path = (arg[0]:match '^(.*)/[^/]*$' or '.') .. '/?.lua;' .. package.path
local bench = require 'helpers'
bench.start('lua_yield', ...)

local N = bench.options.full and 1e7 or 1e6
local title = 'A yield and the resume after it'

-- Compiles cyield.c for this run; nil where there is no C compiler.
local function c_yield()
    local source = (arg[0]:match '^(.*)/[^/]*$' or '.') .. '/cyield.c'
    local object = os.tmpname()
    local link = package.config:sub(1, 1) == '/' and io.popen('uname'):read '*l' == 'Darwin' and '-undefined dynamic_lookup' or ''
    local command = ("${CC:-cc} -O2 -shared -fPIC %s -o '%s' '%s' 2>/dev/null"):format(link, object, source)
    local rc = os.execute(command)
    local open = (rc == 0 or rc == true) and package.loadlib(object, 'luaopen_cyield')
    os.remove(object)
    return open and open()
end

local function resumed(yield)
    local co = coroutine.wrap(function()
        while true do yield() end
    end)
    return function()
        for _ = 1, N do co() end
    end
end

local from_c = c_yield()
if from_c then
    bench.case { table = title, row = 'lua_yield from a C function', column = 'one', items = N, run = resumed(from_c) }
else
    io.stderr:write 'lua_yield: no C compiler (set CC), so no row for lua_yield from a C function\n'
end
bench.case { table = title, row = 'coroutine.yield', column = 'one', items = N, run = resumed(coroutine.yield) }

local fiber = bench.fiber()
if fiber then
    bench.case {
        table = title, row = 'fiber.yield, 10 fibers', column = 'one', items = N,
        run = function()
            return bench.run_fibers(fiber, 10, function()
                for _ = 1, N / 10 do fiber.yield() end
            end)
        end,
    }
end

bench.finish()
