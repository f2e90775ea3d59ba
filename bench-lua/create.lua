-- Making fibers: fiber.new and fiber.create, on_stop triggers from a pool or from malloc, and the garbage of it.
--     luajit bench-lua/create.lua [--full] [--runs N] [--json] [--cpu];   the same under tarantool
package.path = (arg[0]:match '^(.*)/[^/]*$' or '.') .. '/?.lua;' .. package.path
local bench = require 'helpers'
bench.start('create', ...)
local fiber = bench.fiber()

local EACH = 1e5

-- One fiber after the other, pools warm and small.
local function nothing() end
bench.case {
    table = 'One fiber that does nothing', row = 'fiber.create', column = 'whole life', items = EACH,
    run = function()
        for _ = 1, EACH do fiber.create(nothing) end
    end,
}
bench.case {
    table = 'One fiber that does nothing', row = 'fiber.new and yield', column = 'whole life', items = EACH,
    run = function()
        for _ = 1, EACH do
            fiber.new(nothing)
            fiber.yield()
        end
    end,
}

-- Bytes of garbage with the collector stopped: the closure is shared, so what is left is the fiber's own.
local function garbage(make)
    for _ = 1, 100 do make() end
    collectgarbage()
    collectgarbage 'stop'
    local before = collectgarbage 'count'
    for _ = 1, 10000 do make() end
    local bytes = (collectgarbage 'count' - before) * 1024 / 10000
    collectgarbage 'restart'
    return bytes
end

for _, case in ipairs {
    { 'fiber.create', function() fiber.create(nothing) end },
    { 'fiber.new and yield', function() fiber.new(nothing) fiber.yield() end },
} do
    bench.record {
        table = 'Garbage of one fiber that does nothing', row = case[1], column = 'whole life', unit = 'bytes',
        values = { garbage(case[2]) },
    }
end

-- The published table: seconds for each 100 000, ten rounds, of which the first also fills the pools. Debian's tarantool
-- dies of 32 000 fibers at once (the system's limit of mappings), so there they are made in batches.
local batch = bench.is_tarantool and 10000 or EACH
local function new_round()
    local begin = bench.now()
    for _ = 1, EACH / batch do
        for _ = 1, batch do fiber.new(function() end) end
        fiber.yield()
    end
    return bench.now() - begin
end

local function create_round()
    local begin = bench.now()
    for _ = 1, EACH do fiber.create(function() end) end
    return bench.now() - begin
end

local function rounds(name, round, column)
    local first, later = { round() }, {}
    for i = 1, math.max(9, bench.options.runs - 1) do later[i] = round() end
    local title = 'Seconds for 100 000 fibers that do nothing'
    bench.record { table = title, row = name .. ', first round', column = column, unit = 's', values = first }
    bench.record { table = title, row = name .. ', later rounds', column = column, unit = 's', values = later }
end

if bench.is_tarantool then
    rounds('fiber.new', new_round, 'tarantool, by 10 000')
    rounds('fiber.create', create_round, 'tarantool, by 10 000')
else
    for _, pooled in ipairs { true, false } do
        fiber.cfg { trigger_pool = pooled }
        local column = pooled and 'pooled triggers' or 'malloc triggers'
        rounds('fiber.new', new_round, column)
        rounds('fiber.create', create_round, column)
    end
    fiber.cfg { trigger_pool = true }
end

bench.finish()
