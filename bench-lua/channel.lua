-- Handing over: channels (unbuffered, buffered) and conds between two fibers.
--     luajit bench-lua/channel.lua [--runs N] [--json] [--cpu];   the same under tarantool
package.path = (arg[0]:match '^(.*)/[^/]*$' or '.') .. '/?.lua;' .. package.path
local bench = require 'helpers'
bench.start('channel', ...)
local fiber = bench.fiber()

local N = bench.options.full and 1e6 or 2e5

-- One fiber puts, another gets; the main fiber waits for the second.
local function hand_over(size)
    local channel = fiber.channel(size)
    fiber.new(function()
        for i = 1, N do channel:put(i) end
    end)
    local sum = 0
    local reader = fiber.new(function()
        for _ = 1, N do sum = sum + channel:get() end
    end)
    reader:set_joinable(true)
    local begin = bench.now()
    assert(reader:join())
    local seconds = bench.now() - begin
    assert(sum == N * (N + 1) / 2)
    return seconds
end

-- Two fibers that answer each other by two conds: one item is a signal and the wait it ends.
local function ping_pong()
    local ping, pong = fiber.cond(), fiber.cond()
    local rounds = N / 2
    local second = fiber.new(function()
        for _ = 1, rounds do
            ping:wait()
            pong:signal()
        end
    end)
    fiber.new(function()
        for _ = 1, rounds do
            ping:signal()
            pong:wait()
        end
    end)
    second:set_joinable(true)
    local begin = bench.now()
    assert(second:join())
    return bench.now() - begin
end

local title = 'Handing over between two fibers'
bench.case { table = title, row = 'channel, unbuffered', column = 'one item', items = N, run = function() return hand_over(0) end }
bench.case { table = title, row = 'channel of 100', column = 'one item', items = N, run = function() return hand_over(100) end }
bench.case { table = title, row = 'cond, signal and wait', column = 'one item', items = N, run = ping_pong }

bench.finish()
