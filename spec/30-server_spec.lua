-- The embedded server as its clients see it: raw bytes in this process, Tarantool's own net.box in another.
local helpers = require 'spec.helpers'
local client = require 'spec.server_helpers'
local fiber = require 'cord.fiber'
local server = require 'cord.server'

local function path() return 'unix/:' .. helpers.tempdir() .. '/s' end

local function handlers()
    return {
        echo = function(...) return ... end,
        sum = function(a, b) return a + b end,
        boom = function() error('boom', 0) end,
        raise = function() error({ 'a table' }) end,
        nothing = function() end,
        bad = function() return print end,
        slow = function(seconds)
            fiber.sleep(seconds)
            return 'slept'
        end,
        whoami = function()
            local session = server.session()
            session.storage.count = (session.storage.count or 0) + 1
            return session.id, session.peer, session.storage.count
        end,
        pusher = function()
            server.push { 1, 2 }
            server.push 'x'
            return 'done'
        end,
        tools = {
            math = { twice = function(x) return 2 * x end },
            object = { value = 5, get = function(self, x) return self.value, x end },
        },
        callable = setmetatable({}, { __call = function(_, x) return 'called', x end }),
    }
end

describe('a server', function()
    local srv, conn

    local function start(address, opts)
        srv = server.listen(address, opts or handlers())
        return srv
    end

    after_each(function()
        if conn then conn:close() end
        if srv then srv:stop('hard') end
        conn, srv = nil, nil
    end)
    -- The poller's own descriptors, which stay, are opened by the first real wait and the first name.
    setup(function()
        fiber.sleep(0.001)
        require('cord.socket').getaddrinfo('localhost', 1)
    end)
    helpers.no_leftovers()

    local function connect()
        conn = client.connect(srv:address())
        return conn
    end

    describe('listens', function()
        it('on a unix socket, and removes it when it stops', function()
            local address = path()
            start(address)
            assert.equal(address, srv:address())
            assert.is_truthy(connect().greeting:match '^Tarantool %d+%.%d+%.%d+ %(Binary%) %x+%-%x+%-%x+%-%x+%-%x+ *\n')
            srv:stop()
            assert.is_nil(io.open(address:match ':(.*)'))
        end)

        it('on TCP, with the real port for port 0', function()
            start '127.0.0.1:0'
            local port = tonumber(srv:address():match '^127%.0%.0%.1:(%d+)$')
            assert.is_true(port > 1024)
            assert.equal(128, #connect().greeting)
        end)

        it('on a name, while other fibers go on', function()
            local ran
            fiber.new(function() ran = true end)
            start 'localhost:0'
            assert.is_true(ran)
            assert.match('^127%.0%.0%.1:%d+$', (srv:address():gsub('%[::1%]', '127.0.0.1')))
        end)

        it('on several addresses at once', function()
            local address = path()
            start { address, '127.0.0.1:0' }
            local first, second = srv:address()
            assert.equal(address, first)
            local a, b = client.connect(first), client.connect(second)
            local _, body = a:call('sum', 1, 2)
            assert.same({ 3 }, body[0x30])
            _, body = b:call('sum', 3, 4)
            assert.same({ 7 }, body[0x30])
            a:close()
            b:close()
        end)

        it('in the place of a socket that a dead process left, but not of a live server', function()
            local dir = helpers.tempdir()
            helpers.run_ok(([[
                local server = require 'cord.server'
                server.listen 'unix/:%s/s'
                require('ffi').cdef 'void _exit(int);'
                require('ffi').C._exit(0)
            ]]):format(dir))
            start('unix/:' .. dir .. '/s')
            local fine, err = pcall(server.listen, 'unix/:' .. dir .. '/s')
            assert.is_false(fine)
            assert.equal('bind, called on unix/:' .. dir .. '/s: Address already in use', tostring(err))
            assert.equal(require('cord.errno').EADDRINUSE, err.errno)
            assert.equal('SocketError', err.type)
            assert.equal(128, #connect().greeting)
        end)
    end)

    describe('refuses wrong arguments', function()
        for _, case in ipairs {
            { 'no address', {}, 'server.listen(uri[, opts]): a URI expected as argument 1, got nil' },
            { 'options that are no table', { '127.0.0.1:0', 5 },
                'server.listen(uri[, opts]): a table expected as argument 2, got number' },
            { 'an unknown option', { '127.0.0.1:0', { evil = true } },
                "server.listen: unexpected option 'evil': neither an option nor a function" },
            { 'an option of the wrong type', { '127.0.0.1:0', { eval = 'yes' } },
                "server.listen: option 'eval' should be a boolean, got string" },
            { 'a limit out of range', { '127.0.0.1:0', { net_msg_max = 0 } },
                "server.listen: option 'net_msg_max' should be a number from 1 to 2147483648, got 0" },
            { 'a URI that is none', { 'a b c' }, 'Incorrect URI: expected host:service or /unix.socket' },
        } do
            it(case[1], function()
                local fine, err = pcall(server.listen, unpack(case[2], 1, 2))
                assert.is_false(fine)
                assert.equal(case[3], tostring(err))
            end)
        end

        it('a name that nobody knows, while other fibers go on', function()
            local ran
            fiber.new(function() ran = true end)
            local fine, err = pcall(server.listen, 'no-such-host.invalid:0')
            assert.same({ false, true }, { fine, ran })
            assert.equal('SocketError', err.type)
            assert.match('^bind, called on no%-such%-host%.invalid:0: getaddrinfo: ', err.message)
        end)

        it('a fiber that is cancelled while a name is looked up', function()
            local f = fiber.new(function() return pcall(server.listen, 'localhost:0') end)
            f:set_joinable(true)
            fiber.sleep(0)
            f:cancel()
            local _, fine, err = f:join()
            if not fine then assert.equal('fiber is cancelled', tostring(err)) else err:stop 'hard' end
        end)

        it('a dot for a colon', function()
            start(path())
            local fine, err = pcall(srv.stop)
            assert.is_false(fine)
            assert.equal('Use server:stop(...) instead of server.stop(...)', tostring(err))
        end)
    end)

    describe('answers', function()
        before_each(function()
            start(path())
            connect()
        end)

        it('PING', function()
            local header, body = conn:ask(64)
            assert.equal(0, header[0])
            assert.equal(conn.sync, header[1])
            assert.same({}, body)
        end)

        it('ID with the newest protocol version', function()
            local _, body = conn:ask(73, { [0x54] = 10, [0x55] = { 0, 1, 2 } })
            assert.equal(10, body[0x54])
            assert.equal('chap-sha1', body[0x5b])
        end)

        it('CALL with arguments and results of every kind', function()
            local _, body = conn:call('echo', 1, -1, 1.5, 'text', true, { 1, { a = 2 } }, ('x'):rep(100000))
            assert.same({ 1, -1, 1.5, 'text', true, { 1, { a = 2 } }, ('x'):rep(100000) }, body[0x30])
            _, body = conn:call 'nothing'
            assert.same({}, body[0x30])
        end)

        it('CALL of paths, methods and callable tables', function()
            local _, body = conn:call('tools.math.twice', 21)
            assert.same({ 42 }, body[0x30])
            _, body = conn:call('tools.object:get', 'x')
            assert.same({ 5, 'x' }, body[0x30])
            _, body = conn:call('callable', 7)
            assert.same({ 'called', 7 }, body[0x30])
        end)

        it('CALL of the old kind with tuples', function()
            local _, body = conn:ask(6, { [0x22] = 'echo', [0x21] = { 1, { 2, 3 }, 'x' } })
            assert.same({ { 1 }, { 2, 3 }, { 'x' } }, body[0x30])
        end)

        it('CALL of box.info, by which connectors choose among instances', function()
            local _, body = conn:call 'box.info'
            local info = body[0x30][1]
            assert.same({ false, 'running', 1 }, { info.ro, info.status, info.id })
            assert.equal(conn.greeting:match '^Tarantool (%S+)', info.version)
            assert.equal(conn.greeting:match '%(Binary%) (%S+)', info.uuid)
            srv.functions.box = { info = function() return 'mine' end }
            assert.same({ 'mine' }, select(2, conn:call 'box.info')[0x30])
        end)

        it('CALL of what is not there with an error', function()
            for _, name in ipairs { 'nope', 'tools.nope', 'tools.math.twice.x', 'tools', '', 'tools.object:nope' } do
                local header, body = conn:call(name)
                assert.equal(0x8000 + 33, header[0], name)
                assert.equal(("Procedure '%s' is not defined"):format(name), body[0x31])
                assert.equal('ClientError', body[0x52][0][1][0])
            end
        end)

        it('errors of handlers with their stack, and goes on', function()
            local header, body = conn:call 'boom'
            assert.equal(0x8000 + 32, header[0])
            assert.equal('boom', body[0x31])
            local entry = body[0x52][0][1]
            assert.equal('LuajitError', entry[0])
            assert.equal('boom', entry[3])
            assert.equal(32, entry[5])
            header = conn:call 'raise'
            assert.equal(0x8000 + 32, header[0])
            header, body = conn:call 'bad'
            assert.equal(0x8000 + 32, header[0])
            assert.equal("unsupported Lua type 'function'", body[0x31])
            assert.same({ 3 }, select(2, conn:call('sum', 1, 2))[0x30])
        end)

        it('results whose __serialize waits, each request its own', function()
            local function later(value, seconds)
                return setmetatable({}, { __serialize = function()
                    fiber.sleep(seconds)
                    if value == 'boom' then error('boom', 0) end
                    return { value }
                end })
            end
            srv.functions.waits = function(value, seconds) return 1, later(value, seconds), { later('inner', 0) } end
            conn:request(10, { [0x22] = 'waits', [0x21] = { 'a', 0.05 } })
            conn:request(10, { [0x22] = 'waits', [0x21] = { 'b', 0.001 } })
            conn:request(6, { [0x22] = 'waits', [0x21] = { 'c', 0.02 } })
            conn:request(10, { [0x22] = 'waits', [0x21] = { 'boom', 0 } }, { [10] = 1 })
            conn:request(10, { [0x22] = 'echo', [0x21] = { 'after' } }, { [10] = 1 })
            local got = {}
            for _ = 1, 5 do
                local header, body = conn:response()
                got[header[1]] = body[0x30] or body[0x31]
            end
            assert.same({ { 1, { 'a' }, { { 'inner' } } }, { 1, { 'b' }, { { 'inner' } } }, { { 1 }, { 'c' }, { { 'inner' } } },
                'boom', { 'after' } }, got)
            -- A client that has gone is no trouble.
            local other = client.connect(srv:address())
            other:request(10, { [0x22] = 'waits', [0x21] = { 'a', 0.01 } })
            fiber.sleep(0.002)
            other:close()
            fiber.sleep(0.03)
            assert.equal(0, srv:stat().in_progress)
        end)

        it('EVAL with a refusal, since nobody allowed it', function()
            local header, body = conn:ask(8, { [0x27] = 'return 1', [0x21] = {} })
            assert.equal(0x8000 + 42, header[0])
            assert.equal("Execute access to universe '' is denied for user 'guest'", body[0x31])
        end)

        it('out of order, when a later request is done before', function()
            local slow = conn:request(10, { [0x22] = 'slow', [0x21] = { 0.05 } })
            local fast = conn:request(10, { [0x22] = 'sum', [0x21] = { 1, 1 } })
            local first, second = conn:response(), conn:response()
            assert.equal(fast, first[1])
            assert.equal(slow, second[1])
        end)

        it('pipelined requests all, each once', function()
            local packets = {}
            for i = 1, 2000 do
                packets[i] = client.packet({ [0] = 10, [1] = i }, { [0x22] = 'echo', [0x21] = { i } })
            end
            assert(conn:send(table.concat(packets)))
            local seen = {}
            for _ = 1, 2000 do
                local header, body = conn:response()
                assert.equal(header[1], body[0x30][1])
                assert.is_nil(seen[header[1]])
                seen[header[1]] = true
            end
        end)

        it('a packet that comes byte by byte', function()
            local packet = client.packet({ [0] = 10, [1] = 77 }, { [0x22] = 'sum', [0x21] = { 2, 3 } })
            for i = 1, #packet do
                conn:send(packet:sub(i, i))
                fiber.sleep(0)
            end
            local header, body = conn:response()
            assert.equal(77, header[1])
            assert.same({ 5 }, body[0x30])
        end)

        it('with pushed values before the response', function()
            local sync = conn:request(10, { [0x22] = 'pusher', [0x21] = {} })
            local expected = { { 128, { 1, 2 } }, { 128, 'x' }, { 0, 'done' } }
            for _, case in ipairs(expected) do
                local header, body = conn:response()
                assert.equal(case[1], header[0])
                assert.equal(sync, header[1])
                assert.same({ case[2] }, body[0x30])
            end
        end)

        it('with a session whose storage lasts as long as the client', function()
            local _, first = conn:call 'whoami'
            local _, second = conn:call 'whoami'
            assert.equal(first[0x30][1], second[0x30][1])
            assert.equal(srv:address(), first[0x30][2])
            assert.equal(2, second[0x30][3])
            local other = client.connect(srv:address())
            local _, third = other:call 'whoami'
            other:close()
            assert.are_not.equal(first[0x30][1], third[0x30][1])
            assert.equal(1, third[0x30][3])
        end)
    end)

    it('compiles and runs EVAL when it is allowed', function()
        start(path(), { eval = true })
        connect()
        for _ = 1, 2 do
            local _, body = conn:ask(8, { [0x27] = 'return 1 + ..., "x"', [0x21] = { 5 } })
            assert.same({ 6, 'x' }, body[0x30])
        end
        local header, body = conn:ask(8, { [0x27] = 'return 1 +', [0x21] = {} })
        assert.equal(0x8000 + 32, header[0])
        assert.is_truthy(body[0x31]:match '^eval:1: unexpected symbol')
        header, body = conn:ask(8, { [0x27] = 'error("x")', [0x21] = {} })
        assert.equal(0x8000 + 32, header[0])
        assert.equal('eval:1: x', body[0x31])
    end)

    it('calls functions by reference, before those of the table', function()
        start(path())
        local f = srv:func('echo', function(x) return 'by reference', x end)
        connect()
        assert.same({ 'by reference', 5 }, select(2, conn:call('echo', 5))[0x30])
        assert.same({ 'by reference', 6 }, { f:call { 6 } })
        assert.equal('echo', f.name)
        assert.equal(f, srv:func 'echo')
        srv:func('echo', function(x) return 'another', x end)
        assert.same({ 'another', 7 }, select(2, conn:call('echo', 7))[0x30])
        srv:func('echo'):drop()
        assert.is_nil(srv:func 'echo')
        assert.same({ 8 }, select(2, conn:call('echo', 8))[0x30])
        local fine, err = pcall(srv.func, srv, 'x', 5)
        assert.is_false(fine)
        assert.equal('server:func(name, fn): a function expected as argument 2, got number', tostring(err))
    end)

    it('leaves no garbage after an empty CALL, EVAL or call by reference', function()
        start(path(), { eval = true, empty = function() end })
        srv:func('reference', function() end)
        connect()
        for _, case in ipairs { { 10, 0x22, 'empty' }, { 10, 0x22, 'reference' }, { 8, 0x27, '' } } do
            local packet = client.packet({ [0] = case[1], [1] = 1 }, { [case[2]] = case[3], [0x21] = {} })
            local function measure(count)
                local packets = packet:rep(count)
                collectgarbage()
                collectgarbage 'stop'
                local before = collectgarbage 'count'
                assert(conn:send(packets))
                -- Each answer has 39 bytes.
                assert(conn:skip(count * 39))
                local garbage = (collectgarbage 'count' - before) * 1024
                collectgarbage 'restart'
                return garbage
            end
            measure(1000)
            assert.is_true(measure(1000) / 1000 < 64)
        end
    end)

    it('survives finalizers that make and ask for fibers while requests are decoded', function()
        local out = helpers.run_ok [[
            local client, fiber, server = require 'spec.server_helpers', require 'cord.fiber', require 'cord.server'
            local ran, born = 0, 0
            local function arm()
                local proxy = newproxy(true)
                getmetatable(proxy).__gc = function()
                    ran = ran + 1
                    pcall(fiber.self)
                    pcall(fiber.id)
                    pcall(fiber.status)
                    pcall(fiber.name)
                    pcall(server.session)
                    assert(not pcall(fiber.yield))
                    fiber.new(function() born = born + 1 end)
                    arm()
                end
            end
            for _ = 1, 5 do arm() end
            local srv = server.listen('127.0.0.1:0', { echo = function(...) return ... end })
            local conn = client.connect(srv:address())
            collectgarbage('setpause', 1)
            collectgarbage('setstepmul', 10000)
            for i = 1, 200 do
                for k = 1, 10 do conn:request(10, { [0x22] = 'echo', [0x21] = { { i, { 'x' .. i .. k } }, 'y' .. i .. k } }) end
                for k = 1, 10 do
                    local _, body = conn:response()
                    assert(body[0x30][1][2][1] == 'x' .. i .. k and body[0x30][2] == 'y' .. i .. k)
                end
            end
            conn:close()
            srv:stop()
            fiber.sleep(0.01)
            assert(ran > 100 and born >= ran - 10, ran)
            io.write 'fine'
        ]]
        assert.equal('fine', out)
    end)

    it('has no session and pushes nothing outside of requests', function()
        assert.is_nil(server.session())
        local fine, err = pcall(server.push, 1)
        assert.is_false(fine)
        assert.equal('server.push(value): no request is being served by this fiber', tostring(err))
    end)

    it('lets handlers of a client that has gone run to their end', function()
        local ended, release = 0, fiber.cond()
        local kept = {}
        start(path(), { work = function()
            server.session().storage.mine = true
            release:wait(10)
            ended = ended + 1
            -- The session lasts as long as its requests, if without a peer.
            kept[ended] = server.session().storage.mine
        end })
        local gone = 0
        srv:on_disconnect(function() gone = gone + 1 end)
        connect()
        for _ = 1, 10 do conn:request(10, { [0x22] = 'work', [0x21] = {} }) end
        local function eventually(condition)
            local deadline = helpers.now() + 10
            while not condition() and helpers.now() < deadline do fiber.sleep(0.005) end
            return condition()
        end
        assert.is_true(eventually(function() return srv:stat().in_progress == 10 end))
        conn:close()
        conn = nil
        assert.is_true(eventually(function() return gone == 1 end))
        assert.equal(0, ended)
        release:broadcast()
        assert.is_true(eventually(function() return ended == 10 end))
        assert.same({ true, true, true, true, true, true, true, true, true, true }, kept)
        assert.is_true(eventually(function() return srv:stat().in_progress == 0 end))
        assert.equal(1, gone)
    end)

    it('runs triggers, and refuses a client whose on_connect raises', function()
        start(path())
        local seen = {}
        local function on_connect(session)
            seen[#seen + 1] = session.id
            if #seen == 2 then error('no more', 0) end
        end
        assert.equal(on_connect, srv:on_connect(on_connect))
        connect()
        assert.equal(128, #conn.greeting)
        local refused = client.connect(srv:address(), { greeting = false })
        local header, body = refused:response()
        assert.equal(0x8000 + 32, header[0])
        assert.equal('no more', body[0x31])
        assert.is_true(refused:closed())
        refused:close()
        assert.equal(2, #seen)
        srv:on_connect(nil, on_connect)
        local third = client.connect(srv:address())
        assert.equal(128, #third.greeting)
        third:close()
        local fine, err = pcall(srv.on_connect, srv, nil, on_connect)
        assert.is_false(fine)
        assert.is_truthy(tostring(err):match 'trigger reset: Trigger is not found$')
    end)

    it('counts what it does', function()
        start(path())
        connect()
        conn:ask(64)
        conn:call('sum', 1, 2)
        conn:call 'nope'
        local stat = srv:stat()
        assert.same({ PING = 1, CALL = 2 }, stat.requests)
        assert.equal(1, stat.errors)
        assert.same({ current = 1, total = 1 }, stat.connections)
        assert.is_true(stat.received > 0 and stat.sent > 128)
    end)

    it('lets running requests end when it stops gracefully', function()
        start(path())
        connect()
        local sync = conn:request(10, { [0x22] = 'slow', [0x21] = { 0.05 } })
        fiber.sleep(0.01)
        srv:stop 'graceful'
        local header, body = conn:response()
        assert.equal(sync, header[1])
        assert.same({ 'slept' }, body[0x30])
        assert.is_true(conn:closed())
        assert.is_nil(client.connect(srv:address() or path()))
    end)

    it('is waited for until somebody stops it', function()
        start(path())
        local waited
        local f = fiber.new(function()
            srv:wait()
            waited = true
        end)
        f:set_joinable(true)
        fiber.sleep(0.01)
        assert.is_nil(waited)
        srv:stop()
        assert.is_true(f:join())
        assert.is_true(waited)
    end)

    it('restores closures made for each request on demand', function()
        assert.same({ reuse_handlers = true }, server.cfg())
        start(path(), { eval = true, sum = function(a, b) return a + b end })
        connect()
        server.cfg { reuse_handlers = false }
        local _, body = conn:call('sum', 1, 2)
        assert.same({ 3 }, body[0x30])
        _, body = conn:ask(8, { [0x27] = 'return ...', [0x21] = { 4 } })
        assert.same({ 4 }, body[0x30])
        server.cfg { reuse_handlers = true }
        local fine, err = pcall(server.cfg, { reuse = true })
        assert.is_false(fine)
        assert.equal("server.cfg: unexpected option 'reuse'", tostring(err))
    end)
end)

describe("Tarantool's own client", function()
    -- The poller's own descriptor, which stays, is opened by the first real wait.
    setup(function() fiber.sleep(0.001) end)
    helpers.no_leftovers()
    if not helpers.tarantool_binary() then
        pending(select(2, helpers.tarantool_binary()))
        return
    end

    for _, case in ipairs { { 'a unix socket', path }, { 'TCP', function() return '127.0.0.1:0' end } } do
        it('calls, evaluates, pushes and pipelines over ' .. case[1], function()
            local functions = handlers()
            functions.eval = true
            local srv = server.listen(case[2](), functions)
            local out = client.tarantool([[
                local c = require('net.box').connect((...))
                assert(c:ping(), c.error)
                assert(c:call('sum', { 1, 2 }) == 3)
                local fine, err = pcall(c.call, c, 'boom')
                assert(not fine and tostring(err) == 'boom', err)
                fine, err = pcall(c.call, c, 'nope')
                assert(err.code == 33 and err.message == "Procedure 'nope' is not defined")
                assert(c:eval('return ... + 1', { 41 }) == 42)
                local pushed = {}
                assert(c:call('pusher', {}, { on_push = function(_, m) pushed[#pushed + 1] = m end }) == 'done')
                assert(#pushed == 2 and pushed[2] == 'x')
                local futures = {}
                for i = 1, 500 do futures[i] = c:call('echo', { i, { i } }, { is_async = true }) end
                for i = 1, 500 do
                    local result = futures[i]:wait_result(5)
                    assert(result[1] == i and result[2][1] == i)
                end
                c:close()
                print('ok')
            ]], srv:address())
            srv:stop()
            assert.equal('ok\n', out)
        end)
    end
end)
