-- ns per yield: N fibers that yield in turn, light and stuck; the trace-abort modes against each other; handler calls.
--     luajit bench-lua/yield.lua [--full] [--runs N] [--json] [--cpu];   the same under tarantool
package.path = (arg[0]:match '^(.*)/[^/]*$' or '.') .. '/?.lua;' .. package.path
local bench = require 'helpers'
bench.start('yield', ...)
local fiber = bench.fiber()
local yield = fiber.yield
local full = bench.options.full

-- ------------------------------------------------------------------ one yield, by number of fibers and kind of wait

local TURNS = 5e5
local TURN = 'A yield, N fibers in turn'

local function light(n, m)
    return bench.run_fibers(fiber, n, function()
        for _ = 1, m do fiber.yield() end
    end)
end

-- A callback of string.gsub is where lua_yield cannot go: the fiber keeps the C stack it stands on.
local function stuck(n, m)
    return bench.run_fibers(fiber, n, function()
        string.gsub('a', 'a', function()
            for _ = 1, m do fiber.yield() end
        end)
    end)
end

for _, n in ipairs { 10, 100, 1000, 10000 } do
    local m = math.max(200, math.floor(TURNS / n))
    local row = ('%5d fibers'):format(n)
    bench.compare {
        { table = TURN, row = row, column = 'light', items = n * m, run = function() return light(n, m) end },
        { table = TURN, row = row, column = 'stuck in gsub', items = n * m, run = function() return stuck(n, m) end },
    }
end

-- ------------------------------------------------------------------ against coroutines, resumed in turn

local function coroutines(n, m)
    local list = {}
    for i = 1, n do
        list[i] = coroutine.wrap(function()
            for _ = 1, m do coroutine.yield() end
        end)
    end
    local begin = bench.now()
    for _ = 1, m do
        for i = 1, n do list[i]() end
    end
    return bench.now() - begin
end

do
    local n, m = 100, TURNS / 100
    local name = 'A turn of 100: fibers beside bare coroutines'
    bench.compare {
        { table = name, row = '100', column = 'fiber.yield', items = n * m, run = function() return light(n, m) end },
        { table = name, row = '100', column = 'coroutine.wrap', items = n * m, run = function() return coroutines(n, m) end },
    }
end

-- ------------------------------------------------------------------ the trace-abort modes

if not bench.is_tarantool and fiber.trace_abort then
    local MODES = { 'off', 'trigger', 'trigger-noop', 'callback', 'callback-noop', 'extern', 'extern-noop', 'inline' }
    local fine, ffi_face = pcall(require, 'cord.ffi')

    local function through_ffi(n, m)
        local ffi_yield = ffi_face.cord_fiber_yield
        return bench.run_fibers(fiber, n, function()
            for _ = 1, m do ffi_yield() end
        end)
    end

    local default = fiber.trace_abort()
    local fibers = { 10, 100, 1000, 10000 }
    local turns = full and { 100, 1000, 10000, 100000 } or { 100, 1000 }
    local kinds = { { 'light', light }, { 'stuck', stuck } }
    if fine then kinds[3] = { 'FFI', through_ffi } end

    for _, kind in ipairs(kinds) do
        local most = full and math.huge or kind[1] == 'light' and 1e6 or 1e5
        for _, n in ipairs(fibers) do
            for _, m in ipairs(turns) do
                if n * m <= most then
                    local cases = {}
                    -- Small cells last microseconds: many in a row make one run.
                    local times = math.max(1, math.floor(1e5 / (n * m)))
                    for _, mode in ipairs(MODES) do
                        cases[#cases + 1] = {
                            table = ('Trace abort, %s yields: seconds of N fibers x M yields'):format(kind[1]),
                            row = ('%d x %d'):format(n, m),
                            column = mode,
                            unit = 's',
                            relative = 'off',
                            items = times,
                            before = function() fiber.trace_abort(mode) end,
                            after = function() fiber.trace_abort(default) end,
                            run = function()
                                local seconds = 0
                                for _ = 1, times do seconds = seconds + kind[2](n, m) end
                                return seconds
                            end,
                        }
                    end
                    bench.compare(cases)
                end
            end
        end
    end

    -- How often the handler ran, for the modes that have one: exact, so once is enough. The main fiber waits once.
    local function handler_calls(n, m)
        local last
        for _ = 1, n do
            last = fiber.new(function()
                for _ = 1, m do yield() end
            end)
        end
        last:set_joinable(true)
        local before = tonumber(fiber.trace_abort_calls())
        last:join()
        return tonumber(fiber.trace_abort_calls()) - before
    end

    for _, cell in ipairs { { 10, 100 }, { 100, 1000 }, { 1000, 100 } } do
        local n, m = cell[1], cell[2]
        for _, mode in ipairs { 'trigger', 'callback', 'extern' } do
            fiber.trace_abort(mode)
            bench.record {
                table = 'Handler calls (fibers x yields + 1 for the main fiber that waits once)',
                row = ('%d x %d'):format(n, m), column = mode, unit = 'calls', values = { handler_calls(n, m) },
            }
            fiber.trace_abort(default)
        end
    end
end

bench.finish()
