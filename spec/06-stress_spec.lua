-- Random mixtures of waits in child processes: spec/stress.lua. CORD_SPEC_SEED repeats a run, CORD_SPEC_ROUNDS prolongs it.
local helpers = require 'spec.helpers'

local ROUNDS = os.getenv 'CORD_SPEC_ROUNDS' or 300

describe('a random mixture of waits', function()
    local source = helpers.read_file 'spec/stress.lua'
    local seed = tonumber(os.getenv 'CORD_SPEC_SEED') or os.time()

    for _, case in ipairs {
        { 'alone', {}, 'calm' },
        { 'with a fiber that wakes others at random', {}, 'chaos' },
        { 'without the compiler', { '-joff' }, 'chaos' },
        { 'with a compiler in a hurry', { '-Ohotloop=1', '-Ohotexit=1' }, 'chaos' },
        { 'with a collector in a hurry', {}, 'chaos', 'gc' },
    } do
        it('gives right sums ' .. case[1], function()
            local result = helpers.run(source, { flags = case[2], args = { seed, ROUNDS, case[3], case[4] }, timeout = 120 })
            assert.equal(('seed %d\nall sums are right\n'):format(seed), result.stdout, result.stderr)
            assert.equal('', result.stderr)
            assert.equal(0, result.code)
        end)
    end

    it('of net.box calls, with a fiber that wakes others at random: each answer reaches its caller', function()
        local dir = helpers.tempdir()
        local result = helpers.run([[
            local fiber = require 'cord.fiber'
            local path, seed = ...
            math.randomseed(seed)
            local server = require('cord.server').listen(path, {
                echo = function(x) if x % 3 == 0 then fiber.sleep(0.0005) end return x end,
                fail = function(x) fiber.yield() error('no ' .. x, 0) end,
            })
            local conn = require('cord.netbox').connect(path)
            local main, wrong, done = fiber.id(), 0, 0
            for i = 1, 40 do
                fiber.new(function()
                    for j = 1, 50 do
                        local x = i * 1000 + j
                        local way = math.random(4)
                        local answer
                        if way == 1 then
                            answer = conn:call('echo', { x })
                        elseif way == 2 then
                            string.gsub('a', 'a', function() answer = conn:call('echo', { x }) end)
                        elseif way == 3 then
                            local future = conn:call('echo', { x }, { is_async = true })
                            answer = future:wait_result(10)[1]
                        else
                            local ok, e = pcall(conn.call, conn, 'fail', { x })
                            answer = not ok and tostring(e) == 'no ' .. x and x
                        end
                        if answer ~= x then wrong = wrong + 1 end
                    end
                    done = done + 1
                end)
            end
            while done < 40 do
                local ids = {}
                for id in pairs(fiber.info { backtrace = false }) do ids[#ids + 1] = id end
                for _ = 1, 5 do
                    local f = fiber.find(ids[math.random(#ids)])
                    if f and f:id() ~= main then f:wakeup() end
                end
                fiber.sleep(0.0003)
            end
            conn:close()
            server:stop()
            print('wrong', wrong)
            os.exit(0)
        ]], { args = { dir .. '/s', seed }, timeout = 60 })
        assert.equal('wrong\t0\n', result.stdout, 'seed ' .. seed .. ': ' .. result.stderr)
        assert.equal(0, result.code)
    end)
end)
