-- What a started, waiting fiber weighs: resident memory with its share of the page tables (Linux).
--     luajit bench-lua/memory.lua [--full] [--json];   the same under tarantool
package.path = (arg[0]:match '^(.*)/[^/]*$' or '.') .. '/?.lua;' .. package.path
local bench = require 'helpers'
bench.start('memory', ...)
local fiber = bench.fiber()

-- KB, or nil where there is no /proc.
local function resident()
    collectgarbage()
    collectgarbage()
    local file = io.open '/proc/self/status'
    if not file then return nil end
    local text = file:read '*a'
    file:close()
    return tonumber(text:match 'VmRSS:%s*(%d+)') + tonumber(text:match 'VmPTE:%s*(%d+)')
end

if not resident() then
    io.stderr:write 'memory: this system has no /proc/self/status\n'
    bench.finish()
end

-- Fibers that come and go must not pile up. First, while the heap is small: later its size swings by a collection's worth of garbage.
local function nothing() end
local function burst(count)
    for i = 1, count do
        fiber.create(nothing)
        if i % 1000 == 0 then fiber.yield() end
    end
end
burst(1e5)
local warm = resident()
local count = bench.options.full and 1e7 or 1e6
burst(count)
bench.record {
    table = 'Fibers that come and go', row = ('growth over %.0g fibers after the first 1e5'):format(count), column = 'KB resident',
    unit = 'KB', values = { resident() - warm },
}

local N = 10000
local stop = false
local function record(row, value)
    bench.record { table = 'A started, waiting fiber', row = row, column = 'KB resident', unit = 'KB', values = { value } }
end

local function weigh(row, body)
    local before = resident()
    local fibers = {}
    for i = 1, N do fibers[i] = false end
    for i = 1, N do fibers[i] = fiber.create(body) end
    fiber.yield()
    record(row, (resident() - before) / N)
    return fibers
end

local light = weigh('light', function()
    while not stop do fiber.sleep(0.05) end
end)
local stuck = weigh('stuck in gsub', function()
    string.gsub('a', 'a', function()
        while not stop do fiber.sleep(0.05) end
    end)
end)
stop = true
fiber.sleep(0.3)
light, stuck = #light, #stuck
assert(light == N and stuck == N)

bench.finish()
