-- Futures of net.box against a real Tarantool.
local helpers = require 'spec.helpers'
local net = require 'cord.netbox'
local fiber = require 'cord.fiber'

local INIT = [[
box.schema.space.create('test', { id = 512, format = { { 'id', 'unsigned' }, { 'name', 'string' } } })
box.space.test:create_index('pk')
function f(...) return ... end
function slow(n, ...) require'fiber'.sleep(n) return ... end
function boom() error('boom') end
]]

helpers.describe_server('a future', { init = INIT }, function(get)
    local c
    before_each(function() c = net.connect(get().uri) end)
    after_each(function() c:close() end)
    local ASYNC = { is_async = true }

    it('is a userdata that becomes ready', function()
        local f = c:call('f', { 1, 2 }, ASYNC)
        assert.equal('net.box.request', tostring(f))
        assert.is_false(f:is_ready())
        local result, err = f:result()
        assert.is_nil(result)
        assert.equal('Response is not ready', err.message)
        result = f:wait_result()
        assert.same({ 1, 2 }, result)
        assert.is_true(f:is_ready())
        assert.equal(result, f:wait_result(1))
        assert.equal(result, (f:result()))
    end)

    -- The native half looks into the options' table where LuaJIT keeps it, and through the C API where it cannot.
    for _, in_place in ipairs { true, false } do
        it('takes options tables of any make' .. (in_place and '' or ', read through the C API'), function()
            local layout = require('cord.msgpack').ext.layout
            local before = layout()
            layout(in_place)
            finally(function() layout(before) end)
            local large, emptied, array = { is_async = true }, { timeout = 1, is_async = true }, { is_async = true }
            for i = 1, 10 do large['k' .. i] = i end
            for i = 1, 10 do large['k' .. i] = nil end
            emptied.timeout = nil
            array[1], array[2] = 1, 2
            array[1], array[2] = nil, nil
            for _, options in ipairs { ASYNC, large, emptied, array, { is_async = true, timeout = 3 },
                setmetatable({ is_async = true }, { __index = { timeout = 'x' } }) } do
                local f = c:call('f', { 7 }, options)
                assert.equal('net.box.request', tostring(f))
                assert.same({ 7 }, f:wait_result(5))
            end
            for _, options in ipairs { {}, { is_async = false }, { timeout = 5 }, { is_async = false, timeout = 5 } } do
                assert.equal(7, c:call('f', { 7 }, options))
            end
            for text, options in pairs {
                ["unexpected option 'is_asyne'"] = { is_asyne = true },
                ["unexpected option '1'"] = { is_async = true, 5 },
                ["options parameter 'is_async' should be of type boolean"] = { is_async = 1 },
                ["options parameter 'timeout' should be of type number"] = { is_async = true, timeout = 'x' },
            } do
                local ok, err = pcall(c.call, c, 'f', { 7 }, options)
                assert.is_false(ok)
                assert.equal(text, err.message)
            end
            assert.same({ { 1, 'one' } }, { c.space.test:replace({ 1, 'one' }, ASYNC):wait_result(5) })
            assert.same({ { { 1, 'one' } } }, { c.space.test:select({ 1 }, ASYNC):wait_result(5) })
            assert.same({ { { 1, 'one' } } }, { c.space.test:select({}, ASYNC):wait_result(5) })
            assert.same({ { 1, 'two' } }, { c.space.test:update({ 1 }, { { '=', 2, 'two' } }, ASYNC):wait_result(5) })
            assert.equal('two', c.space.test:get(1).name)
            assert.equal('two', c.space.test:select()[1].name)
            assert.equal('two', c.space.test:delete { 1 }.name)
            assert.equal(0, select('#', c.space.test:delete { 1 }))
            assert.equal(0, select('#', c.space.test:get(1)))
            assert.same({}, c.space.test:select())
            assert.equal(3, select('#', c:call('f', { nil, nil, 3 })))
            assert.equal(0, select('#', c:call('f')))
        end)
    end

    it('times out and can be waited for again', function()
        local f = c:call('slow', { 0.1, 5 }, ASYNC)
        local result, err = f:wait_result(0)
        assert.is_nil(result)
        assert.equal('timed out', err.message)
        result, err = f:wait_result(0.01)
        assert.is_nil(result)
        assert.equal('timed out', err.message)
        assert.same({ 5 }, f:wait_result(5))
    end)

    it('brings errors as values', function()
        local result, err = c:call('boom', nil, ASYNC):wait_result()
        assert.is_nil(result)
        assert.matches('boom$', err.message)
    end)

    it('is discarded, even while somebody waits', function()
        local f = c:call('slow', { 0.05, 5 }, ASYNC)
        local seen
        fiber.create(function() seen = select(2, f:wait_result()).message end)
        f:discard()
        fiber.sleep(0)
        assert.equal('Response is discarded', seen)
        assert.equal('Response is discarded', select(2, f:result()).message)
        assert.is_true(f:is_ready())
        fiber.sleep(0.1)
        assert.is_true(c:ping())
    end)

    it('refuses bad timeouts', function()
        local f = c:call('f', { 1 }, ASYNC)
        for _, bad in ipairs { 'x', -1, {}, '1' } do
            local ok, err = pcall(f.wait_result, f, bad)
            assert.is_false(ok)
            assert.matches('Usage: future:wait_result%(timeout%)$', err)
        end
        f:wait_result()
    end)

    it('of each method has the shape of its result', function()
        local s = c.space.test
        assert.same({ 1, 'a' }, { s:insert({ 1, 'a' }, ASYNC):wait_result():unpack() })
        assert.equal('b', s:replace({ 2, 'b' }, ASYNC):wait_result().name)
        assert.equal(2, #s:select({}, ASYNC):wait_result())
        assert.equal('a', s:get(1, ASYNC):wait_result().name)
        assert.is_nil(s:get(9, ASYNC):wait_result())
        assert.equal('c', s:update(1, { { '=', 2, 'c' } }, ASYNC):wait_result().name)
        local result, err = s:upsert({ 1, 'a' }, { { '=', 2, 'd' } }, ASYNC):wait_result()
        assert.is_nil(result)
        assert.is_nil(err)
        assert.equal('d', s:delete(1, ASYNC):wait_result().name)
        s:delete(2)
    end)

    it('keeps its connection (T#9629)', function()
        local f = net.connect(get().uri):call('slow', { 0.05, 5 }, ASYNC)
        collectgarbage()
        collectgarbage()
        assert.same({ 5 }, f:wait_result(5))
    end)

    it('does not leak when it is dropped or discarded (T#3107, T#3629, tntcxx#156)', function()
        local function round(n)
            for i = 1, n do
                local f = c:call('f', { i }, ASYNC)
                if i % 2 == 0 then f:discard() end
                if i % 1000 == 0 then c:ping() end
            end
            c:ping()
            collectgarbage()
            collectgarbage()
        end
        round(50000)
        local before = collectgarbage 'count'
        round(50000)
        assert.is_true(collectgarbage 'count' - before < 100, collectgarbage 'count' - before)
    end)

    it('ignores a timeout of its request (T#11572)', function()
        assert.same({ 3 }, c:call('slow', { 0.03, 3 }, { is_async = true, timeout = 0.001 }):wait_result(5))
    end)

    it('wakes everybody who waits for it, cancelled ones with an error', function()
        local f = c:call('slow', { 0.05, 5 }, ASYNC)
        local seen, err = 0, nil
        for _ = 1, 5 do
            fiber.create(function()
                local result = f:wait_result()[1]
                seen = seen + result
            end)
        end
        local other = fiber.create(function() err = select(2, pcall(f.wait_result, f)) end)
        other:cancel()
        fiber.sleep(0)
        assert.equal('fiber is cancelled', err.message)
        assert.same({ 5 }, f:wait_result())
        fiber.sleep(0)
        assert.equal(25, seen)
    end)

    it('of a thousand requests come back whole and in no other order (T#3255)', function()
        local futures = {}
        for i = 1, 1000 do futures[i] = c:call('f', { i }, ASYNC) end
        for i = 1, 1000 do assert.equal(i, futures[i]:wait_result()[1]) end
    end)
end)
