-- fiber.cond: docs/fibers.md, Tarantool's fiber_cond.c.
local helpers = require 'spec.helpers'
local fiber = require 'cord.fiber'
local E = require 'cord.error'
local same = require('spec.fiber_helpers').same

describe('fiber.cond', function()
    helpers.no_leftovers()

    same('signal wakes the first waiter, broadcast all, in their order; none of them yields', [[
        local c = fiber.cond()
        for i = 1, 4 do fiber.create(function() note(i, c:wait()) end) end
        c:signal()
        note 'signalled'
        fiber.yield()
        c:broadcast()
        note 'broadcast'
        fiber.yield()
    ]], 'signalled, 1 true, broadcast, 2 true, 3 true, 4 true')

    same('a signal without a waiter is forgotten', [[
        local c = fiber.cond()
        note(c:signal(), c:broadcast())
        note(c:wait(0.01))
    ]], 'nil, false')

    same('any wakeup ends a wait with true', [[
        local c = fiber.cond()
        local f = fiber.create(function() note(c:wait()) note(c:wait(10)) end)
        f:wakeup() fiber.yield()
        f:wakeup() fiber.yield()
    ]], 'true, true')

    same('a timeout ends it with false, one of zero yields', [[
        local c = fiber.cond()
        fiber.new(function() note 'ran' end)
        note(c:wait(0))
        note(c:wait('0.01'))
    ]], 'ran, false, false')

    same('a cancelled fiber raises', [[
        local c = fiber.cond()
        local f = fiber.create(function()
            local ok, e = pcall(c.wait, c)
            note(ok, e)
            local before = fiber.clock()
            ok, e = pcall(c.wait, c, 0.05)
            note(ok, e, fiber.clock() - before > 0.04)
        end)
        f:cancel()
        fiber.sleep(0.1)
    ]], 'false fiber is cancelled, false fiber is cancelled true', { newer = '2.6 returned true' })

    it('a signal beats a deadline that passes in the same turn', function()
        local c, result = fiber.cond(), nil
        fiber.create(function() result = c:wait(0.01) end)
        helpers.block(0.05)
        c:signal()
        fiber.yield()
        assert.is_true(result)
        -- The other way round: the timer has fired, the fiber is queued, and then comes the signal.
        local c2, result2 = fiber.cond(), nil
        local signaller = fiber.new(function()
            fiber.sleep(0.01)
            c2:signal()
        end)
        signaller:set_joinable(true)
        fiber.yield()
        fiber.create(function() result2 = c2:wait(0.01) end)
        helpers.block(0.05)
        signaller:join()
        fiber.yield()
        assert.is_true(result2)
    end)

    it('a signal is not spent on a fiber that a wakeup has taken off the list', function()
        local c, log = fiber.cond(), {}
        local a = fiber.create(function() log[#log + 1] = 'a' c:wait() log[#log + 1] = 'a woken' end)
        fiber.create(function() c:wait() log[#log + 1] = 'b woken' end)
        a:wakeup()
        c:signal()
        fiber.yield()
        assert.same({ 'a', 'a woken', 'b woken' }, log)
    end)

    it('works for stuck fibers and the main one', function()
        local c, log = fiber.cond(), {}
        fiber.create(function()
            string.gsub('a', 'a', function() log[1] = c:wait() end)
            table.sort({ 2, 1 }, function(x, y)
                log[2] = c:wait(0.01)
                return x < y
            end)
            c:signal()
        end)
        c:signal()
        log[3] = c:wait(5)
        assert.same({ true, false, true }, log)
    end)

    it('has the error objects of the reference', function()
        local c = fiber.cond()
        local function check(message, fn)
            local ok, e = pcall(fn)
            assert.is_false(ok)
            assert.is_true(E.is(e))
            assert.equal('IllegalParams', e.type)
            assert.equal(message, e.message)
            assert.equal(debug.getinfo(fn, 'S').linedefined, e.trace[1].line)
        end
        check('Usage: cond:wait([timeout])', function() c.wait() end)
        check('Usage: cond:wait([timeout])', function() c:wait 'x' end)
        check('Usage: cond:wait([timeout])', function() c:wait(-1) end)
        check('Usage: cond:wait([timeout])', function() c:wait {} end)
        check('Usage: cond:signal()', function() c.signal() end)
        check('Usage: cond:broadcast()', function() c.broadcast() end)
        check('Invalid argument #1 (fiber.cond expected, got number)', function() c.wait(1) end)
        check('Invalid argument #1 (fiber.cond expected, got number)', function() c.wait(1, 2) end)
        check('Invalid argument #1 (fiber.cond expected, got string)', function() c.signal 'x' end)
        check('Invalid argument #1 (fiber.cond expected, got userdata)', function() c.broadcast(fiber.channel()) end)
    end)

    it('is not believed from a name alone, in compiled code either', function()
        local c = fiber.cond()
        local fake, wrong = newproxy(true), 0
        getmetatable(fake).__metatable = 'fiber.cond'
        for _ = 1, 300 do
            for _, x in ipairs { fake, fiber.channel() } do
                local ok, e = pcall(c.signal, x)
                if not ok and e.message:find('fiber.cond expected, got userdata', 1, true) then wrong = wrong + 1 end
                ok, e = pcall(c.wait, x)
                if not ok and e.message:find('fiber.cond expected, got userdata', 1, true) then wrong = wrong + 1 end
            end
        end
        assert.equal(1200, wrong)
    end)

    it('shows itself', function()
        local c = fiber.cond()
        assert.equal('cond', tostring(c))
        assert.equal('fiber.cond', getmetatable(c))
        assert.is_nil(c.unknown)
        assert.has_error(function() c.x = 1 end)
    end)
end)
