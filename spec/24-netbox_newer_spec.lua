-- What newer servers have and Tarantool 2.6 lacks, against the embedded server: IPROTO_ID, streams and transactions,
-- watchers, pagination, names without a schema, errors with causes and payloads; and tuple formats from a fake one.
local helpers = require 'spec.helpers'
local net = require 'cord.netbox'
local fiber = require 'cord.fiber'
local server = require 'cord.server'
local box_error = require 'cord.error'

local function message(...)
    local ok, err = pcall(...)
    assert.is_false(ok)
    return type(err) == 'string' and err:gsub('^.-:%d+: ', '') or err.message
end

local function eventually(condition)
    local deadline = helpers.now() + 5
    while not condition() and helpers.now() < deadline do fiber.sleep(0.001) end
    return condition()
end

describe('net.box', function()
helpers.no_leftovers()
describe('and a newer server', function()
    local srv, c
    before_each(function()
        srv = server.listen('127.0.0.1:0', {
            functions = {
                echo = function(...) return ... end,
                slow = function(n, ...) fiber.sleep(n) return ... end,
                fail = function()
                    local cause = box_error.new { type = 'Custom', reason = 'the cause', place = 'here' }
                    local err = box_error.new { type = 'Custom', reason = 'the effect' }
                    err:set_prev(cause)
                    err:raise()
                end,
            },
        })
        local space = srv:create_space('test', { format = { { 'id', 'unsigned' }, { 'name', 'string' } } })
        space:create_index('pk')
        for i = 1, 10 do space:replace { i, 'name ' .. i } end
        c = net.connect((srv:address()))
    end)
    after_each(function()
        c:close()
        srv:stop('hard')
    end)

    it('learns what it can (IPROTO_ID)', function()
        assert.equal('active', c.state)
        assert.equal(10, c.peer_protocol_version)
        local features = c.peer_protocol_features
        for _, name in ipairs { 'streams', 'transactions', 'error_extension', 'watchers', 'pagination',
            'space_and_index_names', 'watch_once', 'is_sync' } do
            assert.is_true(features[name], name)
        end
        assert.is_false(features.insert_arrow)
        local other = net.connect((srv:address()), { required_protocol_version = 11 })
        assert.equal('error', other.state)
        assert.equal('Protocol version (10) < required (11)', other.error)
        other = net.connect((srv:address()), { required_protocol_features = { 'streams', 'insert_arrow', 'nonsense' } })
        assert.equal('Missing required protocol features: insert_arrow, nonsense', other.error)
        other = net.connect((srv:address()), { required_protocol_version = 3, required_protocol_features = { 'streams' } })
        assert.equal('active', other.state)
        other:close()
    end)

    it('has transactions in streams', function()
        local s = c:new_stream()
        assert.equal(0, select('#', s:begin()))
        s.space.test:replace { 1, 'changed' }
        assert.equal('changed', s.space.test:get(1).name)
        assert.equal('name 1', c.space.test:get(1).name)
        s:rollback()
        assert.equal('name 1', c.space.test:get(1).name)
        s:begin({ timeout = 5, txn_isolation = 'read-committed' })
        s.space.test.index.pk:update(1, { { '=', 2, 'changed' } })
        s:commit()
        assert.equal('changed', c.space.test:get(1).name)
        assert.same({}, { s:begin(nil, { is_async = true }):wait_result(5) })
        assert.equal('Operation is not permitted when there is an active transaction ', message(s.begin, s))
        s:rollback()
    end)

    it('shows streams and their spaces as what they stand for', function()
        local s = c:new_stream()
        local shown = debug.getmetatable(s).__serialize(s)
        assert.same({ s._stream_id, 'active' }, { shown.stream_id, shown.state })
        for _, pair in ipairs { { s.space, c.space }, { s.space.test, c.space.test }, { s.space.test.index, c.space.test.index },
            { s.space.test.index.pk, c.space.test.index.pk } } do
            local meta = debug.getmetatable(pair[1])
            assert.equal(pair[2], meta.__serialize(pair[1]))
            assert.equal(pair[2], meta.__autocomplete(pair[1]))
            assert.is_false(getmetatable(pair[1]))
        end
    end)

    it('watches keys', function()
        local seen = {}
        local w = c:watch('key', function(key, value) seen[#seen + 1] = { key, value } end)
        assert.equal('net.box.watcher', tostring(w))
        assert.is_true(eventually(function() return #seen == 1 end))
        assert.equal('key', seen[1][1])
        assert.is_true(seen[1][2] == nil)
        srv:broadcast('key', { a = 1 })
        assert.is_true(eventually(function() return #seen == 2 end))
        assert.same({ 'key', { a = 1 } }, seen[2])
        -- A second one gets the value at hand.
        local other
        local w2 = c:watch('key', function(_, value) other = value end)
        assert.is_true(eventually(function() return other ~= nil end))
        assert.same({ a = 1 }, other)
        w:unregister()
        srv:broadcast('key', 2)
        assert.is_true(eventually(function() return other == 2 end))
        assert.equal(2, #seen)
        w2:unregister()
        assert.equal('Watcher is already unregistered', message(w2.unregister, w2))
        assert.equal('Use watcher:unregister() instead of watcher.unregister()', message(w2.unregister))
        assert.equal('key must be a string', message(c.watch, c, 1, print))
        assert.equal('func must be a function', message(c.watch, c, 'k', 1))
        assert.equal(2, c:watch_once('key'))
        assert.is_true(c:watch_once('nothing') == nil)
        assert.equal(2, c:watch_once('key', { is_async = true }):wait_result(5))
    end)

    it('calls one watcher at a time, with the latest value', function()
        local running, most, last, calls = 0, 0, nil, 0
        local w = c:watch('key', function(_, value)
            running = running + 1
            most = math.max(most, running)
            fiber.sleep(0.01)
            last, calls, running = value, calls + 1, running - 1
        end)
        for i = 1, 20 do
            srv:broadcast('key', i)
            fiber.sleep(0.001)
        end
        assert.is_true(eventually(function() return last == 20 end))
        assert.equal(1, most)
        assert.is_true(calls < 20)
        w:unregister()
        fiber.sleep(0.02)
    end)

    it('watches on after a reconnect', function()
        local address = srv:address()
        local other = net.connect(address, { reconnect_after = 0.01 })
        local seen = {}
        other:watch('key', function(_, value) seen[#seen + 1] = value == nil and 'none' or value end)
        assert.is_true(eventually(function() return #seen == 1 end))
        srv:stop('hard')
        assert.is_true(other:wait_state('error_reconnect', 5))
        srv = server.listen(address, {})
        srv:broadcast('key', 'again')
        assert.is_true(eventually(function() return seen[#seen] == 'again' end))
        other:close()
    end)

    it('leaves a server that shuts down gracefully', function()
        local log = {}
        c:on_shutdown(function(conn) log[#log + 1] = 'shutdown ' .. conn.state .. ' ' .. tostring(conn:ping()) end)
        c:on_disconnect(function(conn) log[#log + 1] = 'disconnect ' .. conn.state end)
        local future = c:call('slow', { 0.1, 5 }, { is_async = true })
        fiber.sleep(0.01)
        fiber.create(function() srv:stop() end)
        assert.is_true(c:wait_state('graceful_shutdown', 5))
        assert.equal('Connection is not established, state is "graceful_shutdown"', message(c.call, c, 'echo'))
        assert.same({ 5 }, future:wait_result(5))
        assert.is_true(c:wait_state('error', 5))
        assert.equal('Peer closed', c.error)
        assert.same({ 'shutdown active true', 'disconnect error' }, log)
    end)

    it('goes through pages', function()
        local s = c.space.test
        local tuples, position = s:select({}, { limit = 4, fetch_pos = true })
        assert.equal(4, #tuples)
        assert.equal('string', type(position))
        tuples, position = s:select({}, { limit = 4, after = position, fetch_pos = true })
        assert.same({ 5, 6, 7, 8 }, { tuples[1].id, tuples[2].id, tuples[3].id, tuples[4].id })
        local result = s:select({}, { limit = 4, after = position, fetch_pos = true, is_async = true }):wait_result(5)
        assert.same({ 9, 10 }, { result[1][1].id, result[1][2].id })
        assert.equal('string', type(result[2]))
        assert.equal(8, s:select({}, { after = tuples[3], limit = 1 })[1].id)
        assert.equal(8, s:select({}, { after = { 7, 'name 7' }, limit = 1 })[1].id)
    end)

    it('keeps objects of spaces through reconnects, and makes whole what was there before the schema', function()
        local address = srv:address()
        local other = net.connect(address, { reconnect_after = 0.01, wait_connected = false })
        assert.is_true(other:wait_state({ auth = true, fetch_schema = true, active = true }, 5))
        local early, by_id = other.space.test, other.space[512]
        assert.is_true(other:wait_connected(5))
        assert.equal(early, other.space.test)
        assert.equal(early, other.space[512])
        assert.equal('name 1', early:get(1).name)
        assert.equal('name 1', by_id:get(1).name)
        assert.equal('name 1', by_id.index.pk:get(1).name)
        srv:stop('hard')
        assert.is_true(other:wait_state('error_reconnect', 5))
        assert.equal(early, other.space.test)
        srv = server.listen(address, {})
        local space = srv:create_space('test', { id = 512, format = { { 'id', 'unsigned' }, { 'title', 'string' } } })
        space:create_index('pk')
        space:replace { 1, 'title 1' }
        assert.is_true(other:wait_connected(5))
        assert.equal(early, other.space.test)
        assert.equal('title 1', early:get(1).title)
        other:close()
    end)

    it('knows spaces by name without a schema', function()
        local plain = net.connect((srv:address()), { fetch_schema = false })
        assert.equal('name 3', plain.space.test:get(3)[2])
        assert.equal('name 3', plain.space.test.index.pk:get(3)[2])
        assert.equal(10, plain.space.test.index.pk:count())
        assert.equal(3, plain.space.test.index.pk:count(8, { iterator = 'GE' }))
        assert.equal('index: pk (pk) of space: test (nil)', tostring(plain.space.test.index.pk))
        assert.equal("Space 'nosuch' does not exist", message(plain.space.nosuch.select, plain.space.nosuch))
        assert.equal(plain.space.test, plain.space.test)
        plain:close()
    end)

    it('gets errors whole (T#1148)', function()
        local ok, err = pcall(c.call, c, 'fail')
        assert.is_false(ok)
        assert.equal('the effect', err.message)
        assert.equal('the cause', err.prev.message)
        assert.equal('here', err.prev.place)
        assert.equal(err.prev, err.prev)
    end)

    it('leaves nothing behind after many connections', function()
        local function round(n)
            for _ = 1, n do
                local other = net.connect((srv:address()))
                assert.equal('active', other.state)
                other:close()
            end
            fiber.sleep(0.01)
            collectgarbage()
            collectgarbage()
        end
        round(20)
        local memory, fibers = collectgarbage 'count', fiber.stats().fibers
        round(300)
        assert.is_true(collectgarbage 'count' - memory < 200, collectgarbage 'count' - memory)
        assert.is_true(eventually(function() return fiber.stats().fibers <= fibers end))
    end)

    it('is not confused by fibers that are woken for nothing (T#12714, queue#52)', function()
        local stop, done, wrong = false, 0, 0
        local fibers = {}
        for i = 1, 20 do
            fibers[i] = fiber.new(function()
                for j = 1, 100 do
                    local n = i * 1000 + j
                    if c:call('echo', { n }) ~= n then wrong = wrong + 1 end
                    if c:call('echo', { n }, { is_async = true }):wait_result(5)[1] ~= n then wrong = wrong + 1 end
                    if c.space.test:get(1 + n % 10).id ~= 1 + n % 10 then wrong = wrong + 1 end
                end
                done = done + 1
            end)
        end
        local chaos = fiber.new(function()
            while not stop do
                for i = 1, 20 do pcall(fiber.wakeup, fibers[i]) end
                fiber.wakeup(c._fiber)
                fiber.yield()
            end
        end)
        assert.is_true(eventually(function() return done == 20 end))
        stop = true
        assert.equal(0, wrong)
        assert.is_truthy(chaos)
        fiber.sleep(0)
    end)
end)

describe('and tuples that bring their formats', function()
    it('takes the names from them', function()
        -- {TUPLE_FORMATS: {7: [{name: id}, {name: title}]}, DATA: [tuple of format 7]}
        local f = helpers.fake_server [[ local peer = ... peer:greeting { version = '3.2.0' }
            local pack = peer.pack
            local r = peer:read_request()
            peer:send(peer:frame(r.sync, pack.map { { 0x54, pack.uint(10) }, { 0x55, pack.array { '\7', '\8' } } }))
            local field = function(name) return '\129' .. pack.str('name') .. pack.str(name) end
            while true do
                r = peer:read_request()
                if not r then return end
                peer:send(peer:frame(r.sync, '\130\48\145\199\4\7\7\146\5\6\96\129\7' .. pack.array { field 'id', field 'title' }))
            end ]]
        local c = net.connect(f.uri, { fetch_schema = false })
        assert.equal('active', c.state)
        assert.equal(6, c.space[512]:get(5).title)
        assert.equal(6, c.space[512]:select(5)[1].title)
        assert.equal(5, (c:call('f')).id)
        assert.equal(6, c:call('f', {}, { is_async = true }):wait_result(5)[1].title)
        c:close()
        f:stop()
    end)

    it('keeps them with raw objects, which are decoded later', function()
        local f = helpers.fake_server [[ local peer = ... peer:greeting { version = '3.2.0' }
            local pack = peer.pack
            local r = peer:read_request()
            peer:send(peer:frame(r.sync, pack.map { { 0x54, pack.uint(10) }, { 0x55, pack.array { '\7', '\8' } } }))
            local field = function(name) return '\129' .. pack.str('name') .. pack.str(name) end
            local number = 0
            while true do
                r = peer:read_request()
                if not r then return end
                number = number + 1
                peer:send(peer:frame(r.sync, '\130\48\145\199\4\7\7\146\5\6\96\129\7'
                    .. pack.array { field('a' .. number), field('b' .. number) }))
            end ]]
        local c = net.connect(f.uri, { fetch_schema = false })
        local first = c:call('f', {}, { return_raw = true })
        local second = c.space[512]:get(1, { return_raw = true })
        local third = c:call('f', {}, { return_raw = true, is_async = true }):wait_result(5)
        assert.equal(6, c:call('f').b4)
        for _ = 1, 2 do
            assert.equal(6, first:decode()[1].b1)
            assert.equal(6, second:decode().b2)
            assert.equal(6, third:iterator():decode()[1].b3)
            local iterator = first:iterator()
            iterator:decode_array_header()
            assert.equal(5, iterator:take():decode().a1)
        end
        c:close()
        f:stop()
    end)

    -- A server with the features 8 and 9 that logs the bodies of calls in hexadecimal and answers with a tuple.
    local TAKES_TUPLES = [[ local peer = ... peer:greeting { version = '3.2.0' }
        local pack = peer.pack
        local r = peer:read_request()
        peer:send(peer:frame(r.sync, pack.map { { 0x54, pack.uint(10) }, { 0x55, pack.array { %s } } }))
        local field = function(name) return '\129' .. pack.str('name') .. pack.str(name) end
        while true do
            r = peer:read_request()
            if not r then return end
            peer:log((r.body:gsub('.', function(byte) return ('%%02x'):format(byte:byte()) end)))
            peer:send(peer:frame(r.sync, '\130\48\145\199\4\7\7\146\5\6\96\129\7' .. pack.array { field 'id', field 'title' }))
        end ]]

    -- The body of a call of `f`: what comes behind its name.
    local function body_of(f, ...)
        local c = net.connect(f.uri, { fetch_schema = false })
        local t = c:call('f')
        assert.equal(6, t.title)
        local made = {}
        for i = 1, select('#', ...) do made[i] = (select(i, ...))(t) end
        c:call('f', made)
        c:eval('f', made)
        c:close()
        local lines = {}
        for line in f:log():gmatch '[^\n]+' do lines[#lines + 1] = line end
        assert.equal('8322a16621906080', lines[1])
        assert.equal('8327a166' .. lines[2]:sub(9), lines[3])
        return lines[2]:match '^8322a166(.*)$'
    end

    it('sends tuples with their formats where the server takes them', function()
        local f = helpers.fake_server(TAKES_TUPLES:format "'\\8', '\\9'")
        local function same(t) return t end
        local format = '9281a46e616d65a2696481a46e616d65a57469746c65'
        assert.equal('2193' .. 'd60700920506' .. '91d60700920506' .. '01' .. '608100' .. format,
            (body_of(f, same, function(t) return { t } end, function() return 1 end)))
        f:stop()
    end)

    it('sends them with nothing but Lua code knowing how, nameless ones and tuples in tuples too', function()
        local f = helpers.fake_server(TAKES_TUPLES:format "'\\8', '\\9'")
        local bytes = body_of(f,
            function(t) return setmetatable({}, { __serialize = function() return { t } end }) end,
            function() return net.tuple.new { 1, net.tuple.new { 2 } } end)
        local format = '9281a46e616d65a2696481a46e616d65a57469746c65'
        assert.equal('2192' .. '91d60700920506' .. 'c705070192019102' .. '608200' .. format .. '0190', bytes)
        f:stop()
    end)

    it('sends a tuple in place of the arguments as the list of them', function()
        local f = helpers.fake_server(TAKES_TUPLES:format "'\\8', '\\9'")
        local c = net.connect(f.uri, { fetch_schema = false })
        c:call('f', c:call('f'))
        c:close()
        assert.equal('8322a1662192 0506 6080', (f:log():match '\n(.*)\n':gsub('2192(.*)6080', '2192 %1 6080')))
        f:stop()
    end)

    it('sends arrays where the server does not', function()
        local f = helpers.fake_server(TAKES_TUPLES:format "'\\8'")
        assert.equal('2191' .. '920506' .. '6080', (body_of(f, function(t) return t end)))
        f:stop()
    end)

    it('sends a table like any other that only looks like a metatable of tuples', function()
        local f = helpers.fake_server(TAKES_TUPLES:format "'\\8', '\\9'")
        assert.equal('2191' .. '920506' .. '6080',
            (body_of(f, function() return setmetatable({ 5, 6 }, { __tuple_format = 1 }) end)))
        f:stop()
    end)
end)
end)
