-- Threads of finished fibers are used again, also after more fibers at once than the pool keeps threads for.
local helpers = require 'spec.helpers'

describe('the pool of threads', function()
    -- Bytes of garbage of one fiber, the collector stopped: a new thread is more than 300.
    local SCRIPT = [[
        local fiber = require 'cord.fiber'
        local function nothing() end
        local function garbage()
            collectgarbage() collectgarbage() collectgarbage 'stop'
            local before = collectgarbage 'count'
            for _ = 1, 1000 do fiber.create(nothing) end
            local bytes = (collectgarbage 'count' - before) * 1024 / 1000
            collectgarbage 'restart'
            return bytes
        end
        for _ = 1, 100 do fiber.create(nothing) end
        local before = garbage()
        for _ = 1, 40000 do fiber.new(nothing) end
        fiber.yield()
        print(before < 150, garbage() < 150)
        fiber.cfg { thread_pool = false }
        for _ = 1, 50000 do fiber.create(nothing) end
        print(garbage() > 300)
    ]]

    it('serves from warm threads before and after a burst, and not at all when it is off', function()
        assert.equal('true\ttrue\ntrue\n', helpers.run_ok(SCRIPT))
    end)
end)
