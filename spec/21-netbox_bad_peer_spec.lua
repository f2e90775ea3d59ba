-- net.box against peers that refuse, say nothing, say nonsense, stop half-way or go away. Names in brackets are the
-- reports these specs are made from (T: tarantool/tarantool).
local helpers = require 'spec.helpers'
local net = require 'cord.netbox'
local fiber = require 'cord.fiber'

local QUICK = { fetch_schema = false }

local function quick(uri, more)
    local opts = { fetch_schema = false }
    for k, v in pairs(more or {}) do opts[k] = v end
    return net.connect(uri, opts)
end

-- The message a request fails with, and its code.
local function failure(conn, ...)
    local ok, err = pcall(conn.call, conn, ...)
    assert.is_false(ok)
    return err.message, err.code
end

describe('net.box and a bad peer:', function()
    helpers.no_leftovers()
    -- The first name that is resolved opens a descriptor of the poller, which stays.
    setup(function() quick('no.such.host.invalid:3301') end)
    local fakes = {}
    local function fake(script, options)
        local f = helpers.fake_server(script, options)
        fakes[#fakes + 1] = f
        return f
    end
    after_each(function()
        for i, f in ipairs(fakes) do
            f:stop()
            fakes[i] = nil
        end
    end)

    it('nobody listens', function()
        local c = quick('127.0.0.1:1')
        assert.equal('error', c.state)
        assert.matches('^connect, called on fd %d+, aka .*: Connection refused$', c.error)
        local message, code = failure(c, 'f')
        assert.equal(c.error, message)
        assert.equal(77, code)
        c = quick('/tmp/no/such/socket')
        assert.equal('error', c.state)
        assert.matches(': No such file or directory$', c.error)
        assert.is_false(c:ping())
        c:close()
        assert.equal('error', c.state)
    end)

    it('a name that nobody has', function()
        local c = quick('no.such.host.invalid:3301')
        assert.equal('error', c.state)
        assert.matches('^getaddrinfo: ', c.error)
    end)

    it('silence, until connect_timeout (T#2054, T#2759, T#1533)', function()
        local f = fake [[ local peer = ...; peer:silent() ]]
        local started = fiber.clock()
        local c = quick(f.uri, { connect_timeout = 0.1 })
        assert.equal('error', c.state)
        assert.equal('timed out', c.error)
        local took = fiber.clock() - started
        assert.is_true(took > 0.09 and took < 2, took)
    end)

    it('silence, until wait_connected; the attempt goes on', function()
        local f = fake [[ local peer = ...; peer:sleep(0.2); peer:greeting(); peer:serve() ]]
        local c = quick(f.uri, { wait_connected = 0.05 })
        assert.equal('initial', c.state)
        local ok, err = pcall(c.call, c, 'f', {}, { timeout = 0.01 })
        assert.is_false(ok)
        assert.equal('Connection is not established, state is "initial"', err.message)
        assert.is_true(c:wait_connected(5))
        assert.is_true(c:ping())
        c:close()
    end)

    it('wait_connected = false does not wait at all (T#3856, T#9489)', function()
        local f = fake [[ local peer = ...; peer:greeting(); peer:serve() ]]
        local switches = fiber.self():csw()
        local c = quick(f.uri, { wait_connected = false })
        assert.equal(switches, fiber.self():csw())
        assert.equal('initial', c.state)
        assert.is_true(c:ping())
        assert.equal('active', c.state)
        c:close()
    end)

    it('a greeting cut short', function()
        local f = fake [[ local peer = ...; peer:greeting { cut = 100 } ]]
        local c = quick(f.uri)
        assert.equal('error', c.state)
        assert.equal('Peer closed', c.error)
    end)

    it('a greeting byte by byte', function()
        local f = fake [[ local peer = ...
            local send = peer.send
            peer.send = function(self, bytes) for i = 1, #bytes do send(self, bytes:sub(i, i)) end end
            peer:greeting(); peer.send = nil; peer:serve() ]]
        local c = quick(f.uri)
        assert.equal('active', c.state)
        assert.is_true(c:ping())
        c:close()
    end)

    it('garbage instead of a greeting', function()
        local f = fake [[ local peer = ...; peer:send(('garbage '):rep(16)); peer:silent() ]]
        local c = quick(f.uri)
        assert.equal('error', c.state)
        assert.equal('Invalid greeting', c.error)
    end)

    it('the greeting of a console', function()
        local f = fake [[ local peer = ...
            local line = 'Tarantool 2.6.0 (Lua console)'
            peer:send(line .. (' '):rep(63 - #line) .. '\n' .. "type 'help' for interactive help" .. (' '):rep(31) .. '\n')
            peer:silent() ]]
        local c = quick(f.uri)
        assert.equal('Unsupported protocol: Lua console', c.error)
    end)

    it('garbage instead of a reply', function()
        for bytes, message in pairs {
            ['\255hello, world: no MessagePack'] = 'Invalid MsgPack - packet length',
            ['\206\0\0\0\3abc'] = 'Invalid MsgPack - packet header',
            ['\206\0\0\0\1\193'] = 'Invalid MsgPack - packet header',
        } do
            local f = fake(('local peer = ...; peer:greeting(); peer:read_request(); peer:send(%q); peer:silent()'):format(bytes))
            local c = quick(f.uri)
            assert.equal(message, (failure(c, 'f')))
            c:wait_state('error', 1)
            assert.equal('error', c.state)
            assert.equal(message, c.error)
            assert.equal(message, (failure(c, 'f')))
        end
    end)

    it('a body that is no MessagePack (T#7818)', function()
        local f = fake [[ local peer = ...; peer:greeting()
            local r = peer:read_request()
            peer:send(peer:frame(r.sync, '\129\48\145\193')) peer:silent() ]]
        local c = quick(f.uri)
        assert.equal('Invalid MsgPack - packet body', (failure(c, 'f')))
        assert.equal('error', c.state)
    end)

    it('a length beyond all reason (T#3464, ghs-121)', function()
        for _, length in ipairs { '\207\255\255\255\255\255\255\255\255', '\206\255\255\255\255' } do
            local f = fake(('local peer = ...; peer:greeting(); peer:read_request(); peer:send(%q); peer:silent()'):format(length))
            local c = quick(f.uri)
            assert.equal('Response size too large', (failure(c, 'f')))
            assert.equal('Response size too large', c.error)
        end
    end)

    it('a long length and then the end: no memory is taken for what does not come', function()
        local f = fake [[ local peer = ...; peer:greeting(); peer:read_request(); peer:send('\206\127\255\255\255\131'); peer:sleep(0.05) ]]
        local c = quick(f.uri)
        assert.equal('Peer closed', (failure(c, 'f')))
    end)

    it('a reply for an unknown sync is nobody\'s', function()
        local f = fake [[ local peer = ...; peer:greeting()
            local r = peer:read_request()
            peer:reply(r.sync + 1, { '\7' }) peer:reply(0, { '\7' }) peer:reply(r.sync, { '\42' })
            peer:serve() ]]
        local c = quick(f.uri)
        assert.equal(42, (c:call('f')))
        assert.is_true(c:ping())
        c:close()
    end)

    it('two replies to one request: the second is nobody\'s', function()
        local f = fake [[ local peer = ...; peer:greeting()
            for i = 1, 4 do
                local r = peer:read_request()
                peer:reply(r.sync, { string.char(i) }) peer:reply(r.sync, { '\99' })
            end
            peer:serve() ]]
        local c = quick(f.uri)
        for i = 1, 4 do assert.equal(i, (c:call('f'))) end
        c:close()
    end)

    it('a reply after its timeout goes to nobody (tarantool-php#104)', function()
        local f = fake [[ local peer = ...; peer:greeting()
            local late = peer:read_request()
            local r = peer:read_request()
            peer:reply(late.sync, { '\1' }) peer:reply(r.sync, { '\2' })
            peer:serve() ]]
        local c = quick(f.uri)
        local ok, err = pcall(c.call, c, 'f', {}, { timeout = 0.02 })
        assert.is_false(ok)
        assert.equal('timed out', err.message)
        assert.equal(2, (c:call('f')))
        c:close()
    end)

    it('replies byte by byte, and many in one piece (tarantool-php#74, #82, #90)', function()
        local f = fake [[ local peer = ...; peer:greeting()
            for i = 1, 3 do
                local r = peer:read_request()
                peer:dribble(peer:frame(r.sync, '\129\48\145' .. string.char(i)), 0)
            end
            local all = {}
            for i = 1, 10 do
                local r = peer:read_request()
                all[i] = peer:frame(r.sync, '\129\48\145' .. string.char(i))
            end
            peer:send(table.concat(all)) peer:serve() ]]
        local c = quick(f.uri)
        for i = 1, 3 do assert.equal(i, (c:call('f'))) end
        local futures = {}
        for i = 1, 10 do futures[i] = c:call('f', {}, { is_async = true }) end
        for i = 1, 10 do assert.same({ i }, futures[i]:wait_result(5)) end
        c:close()
    end)

    it('the other half closes: nothing more comes', function()
        local f = fake [[ local peer = ...; peer:greeting(); peer:read_request(); peer:shutdown 'write'; peer:silent() ]]
        local c = quick(f.uri)
        assert.equal('Peer closed', (failure(c, 'f')))
        assert.equal('error', c.state)
        assert.equal('Peer closed', c.error)
    end)

    it('a reply and the end in one piece: the reply counts', function()
        local f = fake [[ local peer = ...; peer:greeting(); local r = peer:read_request(); peer:reply(r.sync, { '\5' }) ]]
        local c = quick(f.uri)
        assert.equal(5, (c:call('f')))
        assert.equal('error', c:wait_state({ error = 'error' }, 5))
        assert.equal('Peer closed', c.error)
        assert.equal('Peer closed', (failure(c, 'f')))
    end)

    it('a reset', function()
        local f = fake([[ local peer = ...; peer:greeting(); peer:read_request(); peer:reset() ]], { listen = 'tcp' })
        local c = quick(f.uri)
        assert.matches('^recv, called on fd %d+, aka .*: Connection reset by peer$', (failure(c, 'f')))
    end)

    it('an unknown extension fails only its own request', function()
        local f = fake [[ local peer = ...; peer:greeting()
            local a, b = peer:read_request(), peer:read_request()
            peer:send(peer:frame(a.sync, '\129\48\145\212\99\0') .. peer:frame(b.sync, '\129\48\145\6'))
            peer:serve() ]]
        local c = quick(f.uri)
        local first
        fiber.create(function() first = select(2, pcall(c.call, c, 'f')) end)
        assert.equal(6, (c:call('f')))
        assert.equal('msgpack.decode: unsupported extension: 99', first.message)
        assert.is_true(c:ping())
        c:close()
    end)

    it('too many results to unpack fail only their own request', function()
        local f = fake [[ local peer = ...; peer:greeting()
            local a = peer:read_request()
            peer:send(peer:frame(a.sync, '\129\48\221\0\0\39\16' .. ('\1'):rep(10000)))
            local b = peer:read_request()
            peer:send(peer:frame(b.sync, '\129\48\221\0\0\39\16' .. ('\1'):rep(10000)))
            peer:serve() ]]
        local c = quick(f.uri)
        assert.equal('too many results to unpack', (failure(c, 'f')))
        assert.equal(10000, #c:call('f', {}, { is_async = true }):wait_result(5))
        c:close()
    end)

    it('an error reply without a message, with an unknown code', function()
        local f = fake [[ local peer = ...; peer:greeting()
            local r = peer:read_request() peer:send(peer:frame(r.sync, '\128', 0x8000 + 9999))
            r = peer:read_request() peer:error(r.sync, 33, "100% \255 broken %s")
            peer:serve() ]]
        local c = quick(f.uri)
        local message, code = failure(c, 'f')
        assert.equal('', message)
        assert.equal(9999, code)
        assert.equal("100% \255 broken %s", (failure(c, 'f')))
        c:close()
    end)

    it('a peer that does not read: requests wait, and time out', function()
        local f = fake [[ local peer = ...; peer:greeting(); while true do peer:sleep(0.05) end ]]
        local c = quick(f.uri)
        local big = ('x'):rep(1e6)
        for _ = 1, 5 do
            local ok, err = pcall(c.call, c, 'f', { big }, { timeout = 0.02 })
            assert.is_false(ok)
            assert.equal('timed out', err.message)
        end
        f:stop()
        c:wait_state('error', 5)
        c:close()
    end)
end)

describe('net.box reconnects', function()
    helpers.no_leftovers()

    it('and requests wait for it (T#1733, T#1783)', function()
        local f = helpers.fake_server [[ local peer = ...
            if peer.number == 2 then return end
            peer:greeting()
            local r = peer:read_request()
            peer:reply(r.sync, { string.char(peer.number) })
            if peer.number > 2 then peer:serve() end ]]
        local c = net.connect(f.uri, { fetch_schema = false, reconnect_after = 0.02 })
        assert.equal(1, (c:call('f')))
        assert.is_true(c:wait_state('error_reconnect', 5))
        assert.equal('Peer closed', c.error)
        assert.equal(3, (c:call('f')))
        assert.equal('active', c.state)
        assert.is_nil(c.error)
        assert.equal(3, f:connections())
        c:close()
        assert.equal('closed', c.state)
        f:stop()
    end)

    it('until it is closed', function()
        local c = net.connect('127.0.0.1:1', { reconnect_after = 0.01, wait_connected = 0.05 })
        assert.equal('error_reconnect', c.state)
        assert.matches('Connection refused$', c.error)
        fiber.create(function() fiber.sleep(0.02) c:close() end)
        local message = failure(c, 'f')
        assert.equal('Connection closed', message)
        assert.equal('closed', c.state)
    end)

    it('and a cancelled fiber does not wait for it (T#4834, T#5013)', function()
        local c = net.connect('127.0.0.1:1', { reconnect_after = 10, wait_connected = 0.01 })
        for _, what in ipairs { 'wait_connected', 'call' } do
            local err
            local f = fiber.create(function() err = select(2, pcall(c[what], c)) end)
            fiber.sleep(0)
            f:cancel()
            fiber.sleep(0)
            assert.equal('fiber is cancelled', err.message)
        end
        c:close()
    end)

    it('and what was in flight fails (T#1750)', function()
        local f = helpers.fake_server [[ local peer = ...
            peer:greeting()
            if peer.number == 1 then for _ = 1, 100 do peer:read_request() end return end
            peer:serve() ]]
        local c = net.connect(f.uri, { fetch_schema = false, reconnect_after = 0.02 })
        local futures, messages = {}, {}
        for i = 1, 50 do
            futures[i] = c:call('f', {}, { is_async = true })
            fiber.create(function() messages[i] = select(2, pcall(c.call, c, 'f')).message end)
        end
        c:wait_state('error_reconnect', 5)
        fiber.sleep(0)
        for i = 1, 50 do
            assert.equal('Peer closed', select(2, futures[i]:wait_result(5)).message)
            assert.equal('Peer closed', messages[i])
        end
        assert.is_true(c:ping())
        c:close()
        f:stop()
    end)
end)

describe('net.box triggers', function()
    helpers.no_leftovers()
    local f
    before_each(function()
        f = helpers.fake_server [[ local peer = ... peer:greeting()
            while true do
                local r = peer:read_request()
                if not r then return end
                if r.body:find('drop', 1, true) then return end
                peer:reply(r.sync)
            end ]]
    end)
    after_each(function() f:stop() end)

    it('run newest first, in their states (T#3859)', function()
        local log = {}
        local function note(name)
            return function(conn) log[#log + 1] = name .. ' ' .. conn.state end
        end
        local c = quick(f.uri, { wait_connected = false })
        c:on_connect(note 'connect1')
        c:on_connect(note 'connect2')
        c:on_disconnect(note 'disconnect')
        assert.is_true(c:wait_connected(5))
        assert.same({ 'connect2 active', 'connect1 active' }, log)
        fiber.create(function() pcall(c.call, c, 'drop') log[#log + 1] = 'waiter' end)
        c:wait_state('error', 5)
        fiber.sleep(0)
        assert.same({ 'connect2 active', 'connect1 active', 'disconnect error', 'waiter' }, log)
    end)

    it('are added, replaced, removed and listed', function()
        local c = quick(f.uri)
        -- The one that subscribes anew to what is watched.
        assert.equal(1, #c:on_connect())
        c:close()
        c = quick(f.uri, { _disable_graceful_shutdown = true })
        local function a() end
        local function b() end
        assert.equal(a, c:on_connect(a))
        assert.equal(a, c:on_connect(a))
        assert.same({ a }, c:on_connect())
        assert.equal(b, c:on_connect(b))
        assert.same({ b, a }, c:on_connect())
        assert.is_nil(c:on_connect(nil, a))
        assert.same({ b }, c:on_connect())
        assert.equal(a, c:on_connect(a, b))
        assert.same({ a }, c:on_connect())
        assert.equal(b, c:on_connect(b, nil, 'name'))
        c:on_connect(a, nil, 'name')
        assert.same({ a, a }, c:on_connect())
        c:on_connect { name = 'name' }
        assert.same({ a }, c:on_connect())
        for _, case in ipairs {
            { { 1 }, 'trigger reset: incorrect arguments' },
            { { nil, b }, 'trigger reset: Trigger is not found' },
            { { a, nil, 5 }, 'name must be a string' },
            { { { name = 'x', func = 5 } }, 'func must be a callable object or nil' },
        } do
            local ok, err = pcall(c.on_connect, c, case[1][1], case[1][2], case[1][3])
            assert.is_false(ok)
            assert.equal(case[2], (err:gsub('^.-:%d+: ', '')))
        end
        c:close()
    end)

    it('may not wait for replies (T#5358)', function()
        local c = quick(f.uri, { wait_connected = false })
        local err
        c:on_connect(function(conn) err = select(2, pcall(conn.call, conn, 'f')) end)
        assert.is_true(c:wait_connected(5))
        assert.matches('Synchronous requests are not allowed in net.box trigger$', err)
        c:close()
        c = quick(f.uri, { wait_connected = false })
        c:on_connect(function(conn) conn:ping() end)
        assert.is_false(c:wait_connected(5))
        assert.equal('error', c.state)
        assert.matches('Synchronous requests are not allowed in net.box trigger$', c.error)
    end)

    it('may send asynchronous requests', function()
        local c = quick(f.uri, { wait_connected = false })
        local future
        c:on_connect(function(conn) future = conn:call('f', {}, { is_async = true }) end)
        assert.is_true(c:wait_connected(5))
        assert.same({}, future:wait_result(5))
        c:close()
    end)

    it('that fail end the connection when it connects, and nothing when it ends (T#9677, T#9797)', function()
        local c = quick(f.uri, { wait_connected = false })
        c:on_connect(function() error('no %s', 0) end)
        assert.is_false(c:wait_connected(5))
        assert.equal('error', c.state)
        assert.equal('no %s', c.error)
        local result = helpers.run([[
            local net = require 'cord.netbox'
            local c = net.connect(..., { fetch_schema = false })
            c:on_disconnect(function() error('oops', 0) end)
            c:close()
            print(c.state)
        ]], { args = { f.uri } })
        assert.equal('closed\n', result.stdout)
        assert.matches('oops', result.stderr)
    end)

    it('may close the connection (T#9827, T#9826)', function()
        local c = quick(f.uri, { wait_connected = false })
        c:on_connect(function(conn) conn:close() end)
        assert.is_false(c:wait_connected(5))
        assert.is_true(c:wait_state('closed', 5))
        c = quick(f.uri)
        c:on_disconnect(function(conn) conn:close() end)
        pcall(c.call, c, 'drop')
        fiber.sleep(0.01)
        assert.is_false(c:is_connected())
    end)

    it('may remove themselves while they run (T#10622)', function()
        local c = quick(f.uri, { wait_connected = false, reconnect_after = 0.01 })
        local runs, others = 0, 0
        local function once(conn)
            runs = runs + 1
            conn:on_connect(nil, once)
        end
        c:on_connect(function() others = others + 1 end)
        c:on_connect(once)
        c:wait_connected(5)
        pcall(c.call, c, 'drop')
        assert.is_true(c:ping())
        assert.equal(1, runs)
        assert.equal(2, others)
        c:close()
    end)
end)

describe('a forgotten connection', function()
    helpers.no_leftovers()

    it('is collected: its socket closes, its fiber ends', function()
        local f = helpers.fake_server [[ local peer = ... peer:greeting() peer:serve() peer:log('gone') ]]
        local c = net.connect(f.uri, QUICK)
        assert.is_true(c:ping())
        local weak = setmetatable({ c }, { __mode = 'v' })
        c = nil
        local deadline = helpers.now() + 5
        while not f:log():find('gone') and helpers.now() < deadline do
            collectgarbage()
            fiber.sleep(0.01)
        end
        assert.is_nil(c)
        assert.is_nil(weak[1])
        assert.equal('gone\n', f:log())
        f:stop()
    end)

    it('may wait for its next attempt when it goes', function()
        local c = net.connect('127.0.0.1:1', { reconnect_after = 60, wait_connected = 0.02 })
        assert.equal('error_reconnect', c.state)
        c = nil
        assert.is_nil(c)
    end)
end)
