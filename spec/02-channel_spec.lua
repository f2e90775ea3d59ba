-- fiber.channel: docs/fibers.md, Tarantool's fiber_channel.c.
local helpers = require 'spec.helpers'
local fiber = require 'cord.fiber'
local same = require('spec.fiber_helpers').same

describe('fiber.channel', function()
    helpers.no_leftovers()

    after_each(function()
        fiber.cfg { channel_close = 'new' }
    end)

    describe('hands over', function()
        same('the reader runs at its next turn, the writer goes on', [[
            local ch = fiber.channel()
            fiber.create(function() note('got', ch:get()) end)
            note(ch:put(1), ch:has_readers(), ch:count())
            fiber.yield()
            note 'end'
        ]], 'true false 0, got 1, end')

        same('a writer without a reader waits', [[
            local ch = fiber.channel(0)
            fiber.create(function() note('put', ch:put('a')) end)
            note(ch:has_writers(), ch:has_readers(), ch:is_full(), ch:is_empty(), ch:count(), ch:size())
            note(ch:get(), ch:has_writers())
            fiber.yield()
        ]], 'true false true true 0 0, a false, put true')

        same('values in the order they were put, waiting writers behind buffered ones', [[
            local ch = fiber.channel(2)
            for i = 1, 4 do fiber.create(function() ch:put(i) note('put', i) end) end
            note(ch:count(), ch:has_writers(), ch:is_full())
            for i = 1, 4 do note(ch:get()) end
            note(ch:count(), ch:is_empty(), ch:get(0))
            fiber.yield()
        ]], 'put 1, put 2, 2 true true, 1, 2, 3, 4, 0 true nil, put 3, put 4')

        same('readers in the order they came', [[
            local ch = fiber.channel(3)
            for i = 1, 3 do fiber.create(function() note(i, ch:get()) end) end
            for i = 1, 3 do ch:put('v' .. i) end
            note(ch:has_readers(), ch:count())
            fiber.yield()
        ]], 'false 0, 1 v1, 2 v2, 3 v3')

        same('nil and false as values', [[
            local ch = fiber.channel(2)
            note(ch:put(nil), ch:put(false), ch:count())
            note(ch:get(), ch:get(), ch:count())
            fiber.create(function() note('r', ch:get()) note('r', ch:get()) end)
            ch:put(nil)
            fiber.yield()
            ch:put(false)
            fiber.yield()
        ]], 'true true 2, nil false 0, r nil, r false')

        it('any value, by identity, through every way', function()
            local t, ch, buffered = {}, fiber.channel(), fiber.channel(1)
            local got
            local f = fiber.new(function() got = ch:get() end)
            f:set_joinable(true)
            fiber.yield()
            ch:put(t)
            f:join()
            assert.equal(t, got)
            buffered:put(t)
            assert.equal(t, buffered:get())
            fiber.create(function() ch:put(t) end)
            assert.equal(t, ch:get())
            fiber.yield()
        end)

        it('a ring that grows and wraps keeps its order', function()
            local ch = fiber.channel(1000)
            local put, got = 0, 0
            for round = 1, 60 do
                for _ = 1, round do
                    put = put + 1
                    assert.is_true(ch:put(put, 0))
                end
                for _ = 1, math.floor(round / 2) do
                    got = got + 1
                    assert.equal(got, ch:get(0))
                end
            end
            assert.equal(put - got, ch:count())
            while ch:count() > 0 do
                got = got + 1
                assert.equal(got, ch:get(0))
            end
            assert.equal(put, got)
            for i = 1, 1000 do assert.is_true(ch:put(i, 0)) end
            assert.is_false(ch:put(1001, 0))
            assert.is_true(ch:is_full())
        end)

        it('light to stuck, stuck to light, stuck to stuck and to the main fiber', function()
            local ch = fiber.channel()
            local log = {}
            local function stuck(f)
                return function()
                    string.gsub('a', 'a', function() f() end)
                end
            end
            local function writer() ch:put(#log + 1) end
            local function reader() log[#log + 1] = ch:get() end
            for _, pair in ipairs { { writer, stuck(reader) }, { stuck(writer), reader }, { stuck(reader), stuck(writer) } } do
                local a, b = fiber.new(pair[1]), fiber.new(pair[2])
                a:set_joinable(true)
                b:set_joinable(true)
                assert.is_true(a:join())
                assert.is_true(b:join())
            end
            assert.same({ 1, 2, 3 }, log)
            fiber.create(stuck(function() ch:put 'main' end))
            assert.equal('main', ch:get())
            fiber.new(stuck(function() log[4] = ch:get(5) end))
            ch:put 'from main'
            fiber.yield()
            assert.equal('from main', log[4])
        end)

        for name, flags in pairs { ['the compiler'] = {}, ['the interpreter'] = { '-joff' } } do
            it('allocates nothing once it has run, under ' .. name, function()
                local grown = helpers.run_ok([[
                    local fiber = require 'cord.fiber'
                    local ch, big = fiber.channel(), fiber.channel(100)
                    local value = {}
                    local function run(n)
                        local f = fiber.new(function()
                            for _ = 1, n do ch:get() big:get() end
                        end)
                        f:set_joinable(true)
                        for _ = 1, n do big:put(value) ch:put(value) end
                        f:join()
                    end
                    run(20000)
                    run(20000)
                    collectgarbage()
                    collectgarbage 'stop'
                    local before = collectgarbage 'count'
                    run(20000)
                    print((collectgarbage 'count' - before) * 1024)
                ]], { flags = flags })
                -- One fiber and its closure, perhaps a last trace, whatever the number of values.
                assert.is_true(tonumber(grown) < 20000, 'grew by ' .. grown)
            end)
        end
    end)

    describe('timeouts', function()
        same('of zero do not wait', [[
            local ch = fiber.channel(1)
            local other = fiber.new(function() note 'ran' end)
            note(ch:get(0), ch:put(1, 0), ch:put(2, 0), ch:get(0), ch:get('0'))
            fiber.yield()
        ]], 'nil true false 1 nil, ran')

        same('end the wait of readers and writers; the second reader gets what is put later', [[
            local ch = fiber.channel()
            fiber.create(function() note(1, ch:get(0.02)) end)
            fiber.create(function() note(2, ch:get(0.5)) end)
            fiber.sleep(0.05)
            note(ch:put('x'))
            fiber.yield()
            note(ch:put('y', 0.01), ch:has_writers())
        ]], '1 nil, true, 2 x, false false')

        it('a value beats a deadline that has passed but was not seen', function()
            local ch, got = fiber.channel(), nil
            fiber.create(function() got = ch:get(0.01) end)
            fiber.create(function()
                -- Its timer fires in the same turn as the reader's.
                fiber.sleep(0.01)
            end)
            helpers.block(0.05)
            assert.is_true(ch:put 'kept')
            fiber.yield()
            assert.equal('kept', got)
        end)

        same('wakeups do not end a wait', [[
            local ch = fiber.channel()
            local r = fiber.create(function() note('got', ch:get()) end)
            r:wakeup() fiber.yield() r:wakeup() fiber.yield()
            ch:put(7)
            fiber.yield()
            local w = fiber.create(function() note('put', ch:put(8)) end)
            w:wakeup() fiber.yield()
            note(ch:get())
            fiber.yield()
        ]], 'got 7, 8, put true')

        it('a woken waiter keeps its place at the head', function()
            local ch, order = fiber.channel(), {}
            local first = fiber.create(function()
                local value = ch:get()
                order[#order + 1] = 'first ' .. value
            end)
            fiber.create(function()
                local value = ch:get()
                order[#order + 1] = 'second ' .. value
            end)
            first:wakeup()
            fiber.yield()
            ch:put(1)
            ch:put(2)
            fiber.yield()
            assert.same({ 'first 1', 'second 2' }, order)
        end)

        it('several wakeups do not shorten a wait', function()
            local ch, took = fiber.channel(), nil
            local start = helpers.now()
            local f = fiber.create(function()
                ch:get(0.1)
                took = helpers.now() - start
            end)
            for _ = 1, 5 do
                fiber.sleep(0.01)
                f:wakeup()
            end
            fiber.sleep(0.15)
            assert.is_true(took >= 0.1 and took < 0.14, tostring(took))
        end)
    end)

    describe('cancelled', function()
        same('readers and writers raise', [[
            local ch = fiber.channel()
            local f = fiber.create(function() local ok, e = pcall(ch.get, ch) note(ok, e) end)
            f:cancel() fiber.yield()
            f = fiber.create(function() local ok, e = pcall(ch.put, ch, 1) note(ok, e) end)
            f:cancel() fiber.yield()
            note(ch:has_readers(), ch:has_writers())
        ]], 'false fiber is cancelled, false fiber is cancelled, false false')

        same('a cancelled fiber gets and puts what needs no wait, and raises at once where it would wait', [[
            local ch = fiber.channel(1)
            local f = fiber.create(function()
                pcall(fiber.sleep, 10)
                note(ch:put(1), ch:get())
                local ok, e = pcall(ch.get, ch, 0) note(ok, e)
                ch:put(1)
                ok, e = pcall(ch.put, ch, 2, 0) note(ok, e)
                ok, e = pcall(ch.put, ch, 2) note(ok, e)
            end)
            f:cancel() fiber.yield()
        ]], 'true 1, false fiber is cancelled, false fiber is cancelled, false fiber is cancelled')

        it('a value that was handed over is not lost', function()
            local ch, got = fiber.channel(), nil
            local f = fiber.create(function() got = ch:get() end)
            ch:put 'mine'
            f:cancel()
            fiber.yield()
            assert.equal('mine', got)
        end)
    end)

    describe('close', function()
        same('is idempotent, and ends the waits of readers', [[
            local ch = fiber.channel()
            fiber.create(function() note('got', ch:get()) end)
            note(ch:close(), ch:is_closed(), tostring(ch))
            fiber.yield()
            note(ch:close(), ch:get(), ch:put(1), ch:put(1, 0))
        ]], 'nil true channel: closed, got nil, nil nil false false')

        same('ends the waits of writers, whose values are dropped', [[
            local ch = fiber.channel()
            fiber.create(function() note('put', ch:put(1)) end)
            ch:close()
            fiber.yield()
            note(ch:get())
        ]], 'put false, nil')

        same('keeps what is queued', [[
            local ch = fiber.channel(2)
            ch:put(1) ch:put(2)
            fiber.create(function() note('put', ch:put(3)) end)
            ch:close()
            fiber.yield()
            note(ch:is_closed(), ch:count(), ch:put(4), ch:get(), ch:get(), ch:get(), ch:count())
        ]], 'put false, true 2 false 1 2 nil 0', { newer = 'graceful close came with 2.11' })

        it("drops what is queued in the mode 'old'", function()
            fiber.cfg { channel_close = 'old' }
            local ch = fiber.channel(2)
            ch:put(1)
            ch:put(2)
            ch:close()
            assert.equal(0, ch:count())
            assert.is_nil(ch:get())
            assert.equal('old', fiber.cfg().channel_close)
        end)

        same('a message put before a close reaches its reader', [[
            local ch = fiber.channel()
            fiber.create(function() note('got', ch:get()) end)
            ch:put(5)
            ch:close()
            fiber.yield()
        ]], 'got 5')

        it('wakes who waits when the channel is collected', function()
            -- The waiting fiber's own stack holds the channel, so it is not collected.
            local got
            do
                local ch = fiber.channel()
                local f = fiber.create(function() got = ch:get() end)
                ch = nil -- luacheck: ignore
                collectgarbage()
                collectgarbage()
                assert.equal('suspended', f:status())
                f:cancel()
            end
            fiber.yield()
            assert.is_nil(got)
        end)
    end)

    describe('errors', function()
        local function text(fn) return select(2, pcall(fn)) end

        for name, usage in pairs {
            put = 'put(var [, timeout])', get = 'get([timeout])', close = 'close()', count = 'count()', size = 'size()',
            is_full = 'is_full()', is_empty = 'is_empty()', is_closed = 'is_closed()', has_readers = 'has_readers()',
            has_writers = 'has_writers()',
        } do
            it('of ' .. name .. ' called without a channel', function()
                local ch = fiber.channel()
                assert.matches('^spec/02%-channel_spec%.lua:%d+: usage: channel:' .. usage:gsub('%p', '%%%0') .. '$',
                    text(function() ch[name]() end))
                local shown = (name == 'put' or name == 'get') and name or '?'
                assert.matches("^spec/02%-channel_spec%.lua:%d+: bad argument #1 to '" .. shown:gsub('%p', '%%%0')
                    .. "' %(fiber%.channel expected, got number%)$", text(function() ch[name](1) end))
            end)
        end

        it('of put and get', function()
            local ch = fiber.channel()
            local put, get = 'usage: channel:put(var [, timeout])', 'usage: channel:get([timeout])'
            for _, case in ipairs {
                { put, function() ch:put() end }, { put, function() ch:put(1, 'x') end }, { put, function() ch:put(1, -1) end },
                { put, function() ch:put(1, {}) end }, { put, function() ch:put(1, 1LL) end },
                { get, function() ch:get 'x' end }, { get, function() ch:get(-1) end }, { get, function() ch:get {} end },
            } do
                local line = debug.getinfo(case[2], 'S').linedefined
                assert.equal(('spec/02-channel_spec.lua:%d: %s'):format(line, case[1]), text(case[2]))
            end
        end)

        it('of the constructor', function()
            assert.matches(': fiber%.channel%(size%): negative size$', text(function() fiber.channel(-1) end))
            for _, bad in ipairs { 'x', {}, true, 0 / 0 } do
                assert.matches(': fiber%.channel%(size%): bad arguments$', text(function() fiber.channel(bad) end))
            end
            assert.matches(': fiber%.channel: not enough memory$', text(function() fiber.channel(1e12) end))
            assert.equal(2, fiber.channel('2'):size())
            assert.equal(2, fiber.channel(2.7):size())
            assert.equal(0, fiber.channel(nil):size())
        end)

        it('of a wait where none is possible leave the channel as it was', function()
            local ch = fiber.channel()
            local problem
            local proxy = newproxy(true)
            getmetatable(proxy).__gc = function()
                problem = text(function() ch:get() end)
            end
            proxy = nil -- luacheck: ignore
            collectgarbage()
            collectgarbage()
            assert.matches('finalizer', tostring(problem))
            assert.is_false(ch:has_readers())
        end)
    end)

    it('shows itself', function()
        local ch = fiber.channel(5)
        ch:put(1)
        assert.equal('channel: 1', tostring(ch))
        assert.equal('fiber.channel', getmetatable(ch))
        assert.is_nil(ch.unknown)
        assert.has_error(function() ch.x = 1 end)
        ch:close()
        assert.equal('channel: closed', tostring(ch))
        assert.is_true(ch:is_closed())
    end)

    it('is not believed from a name alone, in compiled code either', function()
        local ch = fiber.channel(1)
        local fake, wrong = newproxy(true), 0
        getmetatable(fake).__metatable = 'fiber.channel'
        for _ = 1, 300 do
            for _, x in ipairs { fake, fiber.cond() } do
                local ok, e = pcall(ch.put, x, 1)
                if not ok and e:find('fiber.channel expected, got userdata', 1, true) then wrong = wrong + 1 end
                ok, e = pcall(ch.get, x)
                if not ok and e:find('fiber.channel expected, got userdata', 1, true) then wrong = wrong + 1 end
            end
        end
        assert.equal(1200, wrong)
    end)
end)
