-- What is under a yield: lua_yield and lua_resume in a bare C loop, without a scheduler, beside fiber.yield. Under luajit.
--     luajit bench-lua/floor.lua [--runs N] [--json] [--cpu]
package.path = (arg[0]:match '^(.*)/[^/]*$' or '.') .. '/?.lua;' .. package.path
local bench = require 'helpers'
bench.start('floor', ...)
local fiber = bench.fiber()

-- Compiles floor.c for this run.
local function compiled()
    local source = (arg[0]:match '^(.*)/[^/]*$' or '.') .. '/floor.c'
    local object = os.tmpname()
    local link = io.popen('uname'):read '*l' == 'Darwin' and '-undefined dynamic_lookup' or ''
    local rc = os.execute(("${CC:-cc} -O2 -shared -fPIC %s -o '%s' '%s'"):format(link, object, source))
    local open = (rc == 0 or rc == true) and package.loadlib(object, 'luaopen_floor')
    os.remove(object)
    if not open then
        io.stderr:write 'floor: no C compiler (set CC)\n'
        bench.finish()
    end
    return open()
end

local c_yield, c_run = compiled()
-- A Lua wrapper that looks at what the C function returned, as the library's has to.
local wrapped = {
    yield = function()
        local err = c_yield()
        if err then error(err, 2) end
    end,
}

local TURNS = 5e5
for _, n in ipairs { 10, 100, 1000, 10000 } do
    local m = math.max(200, math.floor(TURNS / n))
    local row, title = ('%5d'):format(n), 'A turn, N coroutines or fibers'
    local function bare(body)
        return function() return c_run(n, body, bench.options.cpu and 1 or 0) end
    end
    bench.compare {
        { table = title, row = row, column = 'bare lua_yield', items = n * m, run = bare(function()
            for _ = 1, m do c_yield() end
        end) },
        { table = title, row = row, column = 'behind a Lua function', items = n * m, run = bare(function()
            for _ = 1, m do wrapped.yield() end
        end) },
        { table = title, row = row, column = 'fiber.yield', items = n * m, run = function()
            return bench.run_fibers(fiber, n, function()
                for _ = 1, m do fiber.yield() end
            end)
        end },
    }
end

bench.finish()
