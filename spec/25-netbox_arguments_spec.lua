-- What net.box does with arguments that run Lua code while a request is made of them, and with what is no argument at all.
local helpers = require 'spec.helpers'
local netbox = require 'cord.netbox'
local server = require 'cord.server'
local fiber = require 'cord.fiber'

local function serialized(fn)
    return setmetatable({}, { __serialize = fn })
end

local function message_of(fn, ...)
    local ok, err = pcall(fn, ...)
    assert.is_false(ok)
    return tostring(err)
end

describe('Lua code that runs unasked while a request is made', function()
    local srv, conn, inner
    before_each(function()
        srv = server.listen('127.0.0.1:0', { echo = function(...) return ... end })
        conn = netbox.connect(srv:address())
        inner = {}
    end)
    after_each(function()
        conn:close()
        srv:stop()
    end)

    local function start_another()
        local n = -1 - #inner
        inner[-n] = conn:call('echo', { n }, { is_async = true })
    end

    local function check_others()
        for i, future in ipairs(inner) do
            assert.same({ -i }, future:wait_result(5))
        end
    end

    it('and starts another in a finalizer mixes up no replies', function()
        local stop, mul = collectgarbage('setpause', 100), collectgarbage('setstepmul', 400)
        local right, wrong = 0, 0
        for round = 1, 100 do
            local futures = {}
            for i = 1, 100 do
                getmetatable(newproxy(true)).__gc = start_another
                futures[i] = conn:call('echo', { round * 100 + i }, { is_async = true })
            end
            for i = 1, 100 do
                local result = futures[i]:wait_result(5)
                if result and result[1] == round * 100 + i then right = right + 1 else wrong = wrong + 1 end
            end
            if wrong > 0 then break end
        end
        -- The last of them run while the connection lives: later each would raise, and an error that leaves a finalizer
        -- under compiled code ends LuaJIT (docs/jit.md).
        collectgarbage()
        collectgarbage()
        collectgarbage('setpause', stop)
        collectgarbage('setstepmul', mul)
        assert.same({ 10000, 0 }, { right, wrong })
        assert.is_true(#inner > 1000)
        check_others()
    end)

    it('and starts another in an on_yield trigger mixes up no replies', function()
        local results = {}
        local f = fiber.new(function()
            fiber.self():on_yield(start_another)
            for i = 1, 50 do results[i] = conn:call('echo', { i }, { timeout = 5 }) end
            fiber.self():on_yield(nil, start_another)
        end)
        f:set_joinable(true)
        assert.is_true((f:join()))
        for i = 1, 50 do assert.equal(i, results[i]) end
        assert.equal(50, #inner)
        check_others()
    end)

    it('and passes options in a finalizer does not hang in compiled code', function()
        local out = helpers.run_ok([[
            local net, server, fiber = require 'cord.netbox', require 'cord.server', require 'cord.fiber'
            local srv = server.listen('127.0.0.1:0', { echo = function(...) return ... end })
            local conn = net.connect(srv:address())
            collectgarbage('setpause', 100)
            local n = 0
            local function another()
                n = n + 1
                conn:call('echo', { n }, { is_async = true, timeout = 1, buffer = nil })
                pcall(conn.call, conn, 'echo', { n }, { skip_header = 5 })
                net.connect(srv:address(), { wait_connected = false, connect_timeout = 1 })
            end
            for i = 1, 3000 do
                getmetatable(newproxy(true)).__gc = another
                conn:call('echo', { i }, { is_async = true, timeout = 1 })
                if i % 50 == 0 then fiber.sleep(0) end
            end
            print(n > 100)
            os.exit(0)
        ]], { flags = { '-Ohotloop=5' }, timeout = 30 })
        assert.equal('true\n', out)
    end)

    it('and settles the future that is waited for ends the wait', function()
        local result, message
        local f = fiber.new(function()
            local future = conn:call('echo', { 1 }, { is_async = true })
            fiber.self():on_yield(function() future:discard() end)
            result, message = future:wait_result()
        end)
        f:set_joinable(true)
        assert.is_true((f:join(5)))
        assert.same({ nil, 'Response is discarded' }, { result, tostring(message) })
    end)
end)

describe('an argument whose __serialize function', function()
    local srv, conn
    before_each(function()
        srv = server.listen('127.0.0.1:0', { echo = function(...) return ... end })
        conn = netbox.connect(srv:address())
    end)
    after_each(function()
        conn:close()
        srv:stop()
    end)

    local function echo(fn)
        local a, b, c = conn:call('echo', { 1, serialized(fn), 3 }, { timeout = 5 })
        assert.same({ 1, 3 }, { a, c })
        assert.equal('alive', conn:call('echo', { 'alive' }, { timeout = 5 }))
        return b
    end

    it('makes a request that fails leaves nothing of it in the outer one', function()
        assert.equal(7, echo(function()
            assert.is_false((pcall(conn.call, conn, 'echo', { 1, 2, 3, print })))
            return 7
        end))
    end)

    it('calls over the same connection is waited for', function()
        assert.equal(9, echo(function() return conn:call('echo', { 9 }) end))
    end)

    it('starts a future on the same connection does not disturb it', function()
        local future
        assert.equal(8, echo(function()
            future = conn:call('echo', { 4 }, { is_async = true })
            return 8
        end))
        assert.same({ 4 }, future:wait_result(5))
    end)

    it('yields lets other fibers use the connection', function()
        local right = 0
        local fibers = {}
        for i = 1, 20 do
            fibers[i] = fiber.new(function()
                for j = 1, 10 do
                    local a, b = conn:call('echo', { i, serialized(function()
                        fiber.yield()
                        return i * j
                    end) })
                    right = right + (a == i and b == i * j and 1 or 0)
                end
            end)
            fibers[i]:set_joinable(true)
        end
        for i = 1, 20 do
            assert.is_true((fibers[i]:join()))
        end
        assert.equal(200, right)
    end)

    it('closes the connection gets the closing as its error', function()
        assert.equal('Connection closed', message_of(conn.call, conn, 'echo', { serialized(function()
            conn:close()
            return 1
        end) }))
    end)

    it('makes no array of all arguments is refused without a place in the library', function()
        local map = serialized(function() return { a = 1 } end)
        assert.equal('Tuple/Key must be MsgPack array', message_of(conn.call, conn, 'echo', map))
        assert.same({ 1, 2 }, { conn:call('echo', serialized(function() return { 1, 2 } end)) })
    end)
end)

describe('a request', function()
    it('may bring thousands of results, wherever its caller waits', function()
        local srv = server.listen('127.0.0.1:0', { echo = function(...) return ... end })
        local conn = netbox.connect(srv:address())
        local list = {}
        for i = 1, 7000 do
            list[i] = i
        end
        local function check(first, ...)
            assert.equal(1, first)
            return select('#', ...) + 1
        end
        local function call()
            for _, n in ipairs { 15, 16, 17, 50, 250, 7000 } do
                local some = { unpack(list, 1, n) }
                for _ = 1, 30 do
                    assert.equal(n, check(conn:call('echo', some)))
                    assert.is_false((pcall(conn.call, conn, 'echo', { print })))
                end
            end
            return 'b'
        end
        call()
        assert.equal('b', (string.gsub('a', '.', call)))
        assert.equal('b', coroutine.wrap(call)())
        for _, fn in ipairs { call, function() return (string.gsub('a', '.', call)) end } do
            local f = fiber.new(fn)
            f:set_joinable(true)
            assert.same({ true, 'b' }, { f:join() })
        end
        conn:close()
        srv:stop()
    end)

    it('with a huge or infinite timeout waits', function()
        local srv = server.listen('127.0.0.1:0', { echo = function(...) return ... end })
        local conn = netbox.connect(srv:address())
        for _, timeout in ipairs { 1 / 0, 1e300, 1e18 } do
            assert.equal(5, conn:call('echo', { 5 }, { timeout = timeout }))
        end
        for _, timeout in ipairs { 0, -1, 0 / 0 } do
            assert.equal('timed out', message_of(conn.call, conn, 'echo', { 5 }, { timeout = timeout }))
        end
        conn:close()
        srv:stop()
    end)

    it('names the thread of the server that is to serve it', function()
        local f = helpers.fake_server [[ local peer = ... peer:greeting()
            while true do
                local r = peer:read_request()
                if not r then return end
                peer:log((r.header:gsub('.', function(byte) return ('%02x'):format(byte:byte()) end)))
                peer:reply(r.sync)
            end ]]
        local conn = netbox.connect(f.uri, { fetch_schema = false })
        local stream = conn:new_stream()
        conn:call('f', {}, { _thread_id = 5 })
        conn:call('f', {}, { _thread_id = 0 })
        stream:eval('f', {}, { _thread_id = 200 })
        conn:call('f', {}, { _thread_id = 7, is_async = true }):wait_result(5)
        stream:call('f')
        assert.is_true(conn:ping { _thread_id = 3 })
        conn.space[1]:select({}, { _thread_id = 9 })
        for _, bad in ipairs { -1, 1.5, 2 ^ 20, 0 / 0 } do
            assert.equal("options parameter '_thread_id' should be a whole number from 0 to 1048575",
                message_of(conn.call, conn, 'f', {}, { _thread_id = bad }))
        end
        assert.equal("options parameter '_thread_id' should be of type number",
            message_of(conn.call, conn, 'f', {}, { _thread_id = 'x' }))
        conn:close()
        local rests = {}
        for line in f:log():gmatch '[^\n]+' do
            -- Behind the sync, which takes nine bytes, or five where the header says more.
            rests[#rests + 1] = line:gsub('^(8%d)01ce%x%x%x%x%x%x%x%x', '%1 '):gsub('^(8%d)01cf' .. ('%x'):rep(16), '%1 ')
        end
        assert.same({ '83 000a0b05', '82 000a', '84 00080bccc80a01', '83 000a0b07', '83 000a0a01', '83 00400b03',
            '83 00010b09' }, rests)
        f:stop()
    end)

    it('is through when its on_push function has seen every push, even if that waits', function()
        local srv = server.listen('127.0.0.1:0', { push = function()
            for i = 1, 5 do
                server.push(i)
            end
            return 9
        end })
        local conn = netbox.connect(srv:address())
        local channel, read, seen = fiber.channel(), {}, {}
        fiber.create(function()
            for i = 1, 5 do
                read[i] = channel:get()
            end
        end)
        local result = conn:call('push', {}, { on_push_ctx = seen, on_push = function(ctx, value)
            ctx[#ctx + 1] = value
            channel:put(value)
        end })
        assert.equal(9, result)
        assert.same({ 1, 2, 3, 4, 5 }, seen)
        fiber.yield()
        assert.same({ 1, 2, 3, 4, 5 }, read)
        conn:close()
        srv:stop()
    end)

    it('hears its own pushes alone, whatever its arguments do meanwhile', function()
        local srv = server.listen('127.0.0.1:0', { push = function(text)
            server.push(text)
            return text
        end })
        local conn = netbox.connect(srv:address())
        local outer, inner = {}, {}
        local function hear(list)
            return { on_push = function(ctx, value) ctx[#ctx + 1] = value end, on_push_ctx = list }
        end
        local argument = serialized(function()
            assert.equal('silent', conn:call('push', { 'silent' }))
            assert.equal('inner', conn:call('push', { 'inner' }, hear(inner)))
            fiber.yield()
            return 'outer'
        end)
        assert.equal('outer', conn:call('push', { argument }, hear(outer)))
        assert.same({ 'inner' }, inner)
        assert.same({ 'outer' }, outer)
        -- A bare wakeup puts the worker behind others: its pushes are waited for all the same.
        for i = 1, 20 do
            local heard = {}
            local done = 0
            for _ = 1, 3 do
                fiber.create(function()
                    conn:call('push', { i }, hear(heard))
                    done = done + 1
                end)
            end
            fiber.wakeup(conn._fiber)
            while done < 3 do
                fiber.wakeup(conn._fiber)
                fiber.sleep(0)
            end
            assert.same({ i, i, i }, heard)
        end
        assert.is_nil(next(conn._push_handlers))
        conn:close()
        srv:stop()
    end)

    it('with an on_push function that raises ends the connection with that', function()
        local srv = server.listen('127.0.0.1:0', { push = function()
            server.push(1)
            fiber.sleep(0.01)
            return 'late'
        end })
        local conn = netbox.connect(srv:address(), { reconnect_after = 0.01 })
        assert.equal('no %s', message_of(conn.call, conn, 'push', {}, { on_push = function() error('no %s', 0) end }))
        assert.equal('error_reconnect', conn.state)
        assert.equal('no %s', conn.error)
        assert.equal('late', conn:call('push', {}, { timeout = 5 }))
        assert.is_nil(next(conn._push_handlers))
        conn:close()
        srv:stop()
    end)

    it('takes a hundred thousand pushes in linear time', function()
        local f = helpers.fake_server [[ local peer = ... peer:greeting()
            while true do
                local r = peer:read_request()
                if not r then return end
                local n = r.body:find('many', 1, true) and 100000 or 10000
                local push = peer:frame(r.sync, '\129\48\145\7', 128)
                peer:send(push:rep(n))
                peer:reply(r.sync, { '\42' })
            end ]]
        local conn = netbox.connect(f.uri, { fetch_schema = false })
        local n = 0
        local function count() n = n + 1 end
        local function took(name, opts)
            local start = os.clock()
            assert.equal(42, (conn:call(name, {}, opts)))
            return os.clock() - start
        end
        took('few', { on_push = count })
        local few = took('few', { on_push = count })
        local many = took('many', { on_push = count })
        assert.equal(120000, n)
        -- Quadratic would be a hundred times as long.
        assert.is_true(many < 40 * few + 0.05, ('%g s and %g s'):format(few, many))
        local seen = 0
        for _, value in conn:call('many', {}, { is_async = true }):pairs() do
            seen = seen + (value == 7 and 1 or 0)
        end
        assert.equal(100000, seen)
        -- Nobody hears these.
        assert.is_true(took('many') < 1)
        conn:close()
        f:stop()
    end)
end)

describe('methods of a connection', function()
    it('say what they expect of what is no connection', function()
        local srv = server.listen('127.0.0.1:0', {})
        local conn = netbox.connect(srv:address())
        for _, name in ipairs { 'ping', 'close', 'is_connected', 'wait_connected', 'wait_state', 'reload_schema',
            'on_connect', 'on_disconnect', 'on_schema_reload', 'on_shutdown', 'new_stream', 'watch', 'execute' } do
            local text = ('Use remote:%s(...) instead of remote.%s(...):'):format(name, name)
            assert.equal(text, message_of(conn[name], {}))
            assert.equal(text, message_of(conn[name], 1))
        end
        assert.equal('net.box: a connection expected', message_of(conn.call, {}, 'f'))
        assert.equal('net.box: a connection expected', message_of(conn.eval, {}, 'f'))
        conn:close()
        srv:stop()
    end)

    it('neither wait nor spin in a finalizer, though the connection is being closed', function()
        local srv = server.listen('127.0.0.1:0', { echo = function(...) return ... end })
        local conn = netbox.connect(srv:address())
        local closed, called
        local guard = newproxy(true)
        getmetatable(guard).__gc = function()
            closed = message_of(conn.close, conn)
            called = message_of(conn.call, conn, 'echo', { 1 })
        end
        guard = nil -- luacheck: ignore
        collectgarbage()
        collectgarbage()
        assert.equal('cannot yield inside a finalizer (__gc metamethod)', closed)
        assert.equal('cannot yield inside a finalizer (__gc metamethod)', called)
        assert.is_true(conn:wait_state('closed', 5))
        srv:stop()
    end)

    it('refuse states and timeouts that are none', function()
        local srv = server.listen('127.0.0.1:0', {})
        local conn = netbox.connect(srv:address())
        assert.equal('conn:wait_state(state[, timeout]): a string or a table expected as argument 1, got nil',
            message_of(conn.wait_state, conn))
        for _, timeout in ipairs { 'soon', {}, true, print } do
            assert.equal('Usage: conn:wait_connected([timeout])', message_of(conn.wait_connected, conn, timeout))
            assert.equal('Usage: conn:wait_state(state[, timeout])',
                message_of(conn.wait_state, conn, 'error', timeout))
        end
        assert.is_true(conn:wait_connected('0.5'))
        assert.is_false(conn:wait_state('error', '0.01'))
        conn:close()
        srv:stop()
    end)
end)

describe('a server', function()
    it('lets hundreds of clients connect at once', function()
        local srv = server.listen('127.0.0.1:0', { echo = function(...) return ... end })
        local uri, connected = srv:address(), 0
        local conns = {}
        for i = 1, 400 do
            fiber.new(function()
                conns[i] = netbox.connect(uri, { connect_timeout = 20 })
                connected = connected + (conns[i]:is_connected() and 1 or 0)
            end)
        end
        local start = fiber.clock()
        while connected < 400 and fiber.clock() < start + 20 do
            fiber.sleep(0.01)
        end
        -- A client that finds no place in the queue tries again after a second.
        assert.is_true(fiber.clock() - start < 0.9)
        assert.equal(400, connected)
        for i = 1, 400 do
            conns[i]:close()
        end
        srv:stop()
    end)
end)
