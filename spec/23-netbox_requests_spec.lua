-- What net.box's requests can besides the plain result: buffers, raw results, pushes, SQL, streams, options, the schema.
local helpers = require 'spec.helpers'
local net = require 'cord.netbox'
local fiber = require 'cord.fiber'
local msgpack = require 'cord.msgpack'
local buffer = require 'cord.buffer'
local ffi = require 'ffi'

local INIT = [[
local s = box.schema.space.create('test', { id = 512, format = { { 'id', 'unsigned' }, { 'name', 'string' } } })
s:create_index('pk')
box.space._schema:replace { 'max_id', 1000 }
for i = 1, 5 do s:replace { i, 'name ' .. i } end
function f(...) return ... end
function pusher(n) for i = 1, n do box.session.push('push ' .. i) end return 'done' end
function slow(n, ...) require'fiber'.sleep(n) return ... end
function bytes(n) return ('x'):rep(n) end
count = 0
function ddl() count = count + 1 box.schema.space.create('new' .. count, { id = 600 + count }):create_index('pk') return count end
]]

local function message(...)
    local ok, err = pcall(...)
    assert.is_false(ok)
    return type(err) == 'string' and err:gsub('^.-:%d+: ', '') or err.message
end

helpers.describe_server('a request of net.box', { init = INIT }, function(get)
    local c
    before_each(function() c = net.connect(get().uri) end)
    after_each(function() c:close() end)
    local ASYNC = { is_async = true }

    it('puts its reply into a buffer (T#2195)', function()
        local ibuf = buffer.ibuf()
        assert.equal(9, c:call('f', { 1, 2 }, { buffer = ibuf }))
        assert.equal('\129\48\221\0\0\0\2\1\2', ffi.string(ibuf.rpos, 9))
        ibuf:recycle()
    end)

    it('puts the data alone into a buffer', function()
        local ibuf = buffer.ibuf()
        local n = c:call('f', { 1, 2 }, { buffer = ibuf, skip_header = true })
        assert.equal(n, ibuf:size())
        local value = msgpack.decode(ffi.string(ibuf.rpos, n))
        assert.same({ 1, 2 }, value)
        ibuf:reset()
        local future = c.space.test:select({ 1 }, { buffer = ibuf, skip_header = true, is_async = true })
        n = future:wait_result(5)
        assert.same({ { 1, 'name 1' } }, (msgpack.decode(ffi.string(ibuf.rpos, n))))
        assert.equal("index:get() doesn't support `buffer` argument", message(c.space.test.get, c.space.test, 1, { buffer = ibuf }))
        ibuf:recycle()
    end)

    it('returns raw objects', function()
        local object = c:call('f', { 1, 'x' }, { return_raw = true })
        assert.is_true(msgpack.is_object(object))
        assert.same({ 1, 'x' }, object:decode())
        assert.same({ 1, 'name 1' }, c.space.test:get(1, { return_raw = true }):decode())
        assert.is_nil(c.space.test:get(77, { return_raw = true }))
        assert.same({ { 2, 'name 2' } }, c.space.test:select(2, { return_raw = true, is_async = true }):wait_result(5):decode())
    end)

    it('takes raw objects as arguments', function()
        assert.same({ 1, 'x' }, { c:call('f', msgpack.object({ 1, 'x' })) })
        assert.same({ 7 }, { c:eval('return ...', msgpack.object({ 7 })) })
    end)

    it('hears pushes', function()
        local heard = {}
        local result = c:call('pusher', { 3 }, { on_push = function(ctx, value) ctx[#ctx + 1] = value end, on_push_ctx = heard })
        assert.equal('done', result)
        assert.same({ 'push 1', 'push 2', 'push 3' }, heard)
        assert.equal('done', (c:call('pusher', { 2 })))
        assert.equal('To handle pushes in an async request use future:pairs()',
            message(c.call, c, 'pusher', { 1 }, { is_async = true, on_push = function() end }))
    end)

    it('lists pushes of a future', function()
        local seen = {}
        for i, value in c:call('pusher', { 3 }, ASYNC):pairs() do seen[i] = value end
        assert.same({ 'push 1', 'push 2', 'push 3', { 'done' } }, seen)
        local i, value, err
        for k, v in c:call('slow', { 0.05 }, ASYNC):pairs(0.01) do i, value = k, v end
        assert.is_true(i == nil and type(i) == 'cdata')
        for _, e in c:call('nosuch', {}, ASYNC):pairs() do err = e end
        assert.equal("Procedure 'nosuch' is not defined", err.message)
        assert.equal('timed out', value.message)
        assert.equal('Usage: future:pairs(timeout)', message(c:call('f', {}, ASYNC).pairs, c:call('f', {}, ASYNC), 'x'))
    end)

    it('makes futures that carry fields (cartridge PR#2059)', function()
        local f = c:call('f', { 1 }, ASYNC)
        f.tag = 'mine'
        assert.equal('mine', f.tag)
        assert.is_false(f:is_ready())
        assert.same({ 1 }, f:wait_result(5))
        f.other = 2
        assert.same({ tag = 'mine', other = 2 }, getmetatable(f) == 'net.box.request' and debug.getmetatable(f).__serialize(f))
        assert.same({ 1 }, (f:result()))
        f.is_ready = 'hidden'
        assert.equal('hidden', f.is_ready)
        assert.is_nil(f.nosuch)
        assert.equal('net.box.request', tostring(f))
    end)

    it('refuses what its options do not have', function()
        local s = c.space.test
        for _, case in ipairs {
            { { bad = 1 }, "unexpected option 'bad'" },
            { { timeout = 'x' }, "options parameter 'timeout' should be of type number" },
            { { is_async = 1 }, "options parameter 'is_async' should be of type boolean" },
            { { iterator = 2 }, "options parameter 'iterator' should be of type string" },
            { { buffer = {} }, "options parameter 'buffer' should be of type struct ibuf" },
            { { after = 5 }, "options parameter 'after' should be of type string, table, tuple" },
            { 'x', 'options should be a table' },
        } do
            assert.equal(case[2], message(s.select, s, {}, case[1]))
            assert.equal(case[2], message(c.call, c, 'f', {}, case[1]))
        end
        assert.equal("Unknown iterator type 'bad'", message(s.select, s, {}, { iterator = 'bad' }))
        assert.equal('Remote server does not support pagination', message(s.select, s, {}, { fetch_pos = true }))
        assert.equal('Remote server does not support pagination', message(s.select, s, {}, { after = 'x' }))
        assert.equal("conn:ping() doesn't support `is_async` argument", message(c.ping, c, ASYNC))
        assert.is_true(c:ping())
    end)

    it('wants a colon and a table of arguments (T#544, T#397, T#407, T#594)', function()
        local s = c.space.test
        assert.equal('Use remote:call(...) instead of remote.call(...):', message(c.call, 'f'))
        assert.equal('Use space:replace(...) instead of space.replace(...)', message(s.replace, 1))
        assert.equal('Use index:get(...) instead of index.get(...)', message(s.index.pk.get, 1))
        assert.equal('Use remote:call(func_name, {arg1, arg2, ...}, opts) instead of remote:call(func_name, arg1, arg2, ...)',
            message(c.call, c, 'f', 1))
        assert.equal('Use remote:eval(expression, {arg1, arg2, ...}, opts) instead of remote:eval(expression, arg1, arg2, ...)',
            message(c.eval, c, 'return', 1))
        assert.is_true(c:ping())
    end)

    it('that cannot be encoded hurts nobody (T#12199)', function()
        local future = c:call('slow', { 0.02, 1 }, ASYNC)
        assert.equal("unsupported Lua type 'function'", message(c.call, c, 'f', { print }))
        assert.equal("unsupported Lua type 'cdata'", message(c.call, c, 'f', { ffi.new('struct { int a; }') }))
        assert.equal("unsupported Lua type 'thread'", message(c.space.test.replace, c.space.test, { coroutine.create(print) }))
        assert.equal('Tuple/Key must be MsgPack array', message(c.call, c, 'f', { a = 1 }))
        assert.same({ 1 }, future:wait_result(5))
        assert.is_true(c:ping())
    end)

    it('counts', function()
        assert.equal(5, c.space.test.index.pk:count())
        assert.equal(2, c.space.test.index.pk:count(3, { iterator = 'GT' }))
        assert.equal(1, c.space.test.index.pk:count({ 3 }, ASYNC):wait_result(5))
    end)

    it('carries big results (T#518)', function()
        for _, n in ipairs { 0, 1, 4095, 5000, 16320, 16383, 16384, 16385, 1048576, 20000000 } do
            assert.equal(n, #c:call('bytes', { n }))
        end
    end)

    it('carries bytes of any kind (T#6934)', function()
        local odd = '\0\1\255\254 \0'
        assert.equal(odd, (c:call('f', { odd })))
        assert.equal(odd, (c:call('f', { { [odd] = odd } }))[odd])
        assert.equal('\255\1 x', message(c.eval, c, "error('\\255\\1 x', 0)"))
    end)

    it('sees a changed schema, and is not sent twice (T#2666, T#2401)', function()
        local s = c.space.test
        local reloads = 0
        c:on_schema_reload(function() reloads = reloads + 1 end)
        local n = c:call('ddl')
        assert.equal(n, (c:eval('return count')))
        assert.equal(1, reloads)
        assert.equal('active', c.state)
        assert.is_truthy(c.space['new' .. n])
        assert.equal(s, c.space.test)
        local version = c.schema_version
        c:eval("box.space.test:format({ { 'id', 'unsigned' }, { 'title', 'string' } })")
        assert.is_true(c.schema_version > version)
        assert.equal('name 1', s:get(1).title)
        c:eval("box.space.test:format({ { 'id', 'unsigned' }, { 'name', 'string' } })")
    end)

    it('works without a schema, by id', function()
        local plain = net.connect(get().uri, { fetch_schema = false })
        assert.is_nil(plain.space.test)
        assert.equal('name 1', plain.space[512]:get(1)[2])
        assert.equal('name 1', plain.space[512].index[0]:select(1)[1][2])
        assert.equal("Space '7777' does not exist", message(plain.space[7777].select, plain.space[7777]))
        plain:close()
    end)

    it('executes SQL', function()
        c:execute('DROP TABLE IF EXISTS t')
        assert.same({ row_count = 1 }, c:execute('CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, a STRING)'))
        assert.equal(2, c:execute("INSERT INTO t VALUES (1, 'x'), (2, ?)", { 'y' }).row_count)
        assert.same({ 3 }, c:execute("INSERT INTO t VALUES (NULL, 'z')").autoincrement_ids)
        local result = c:execute('SELECT id, a FROM t WHERE id < ?', { 3 })
        assert.same({ 'ID', 'A' }, { result.metadata[1].name, result.metadata[2].name })
        assert.equal('y', result.rows[2].A)
        local statement = c:prepare('SELECT a FROM t WHERE id = ?')
        assert.equal(1, statement.param_count)
        assert.same({ 'z' }, { c:execute(statement.stmt_id, { 3 }).rows[1]:unpack() })
        assert.is_nil(c:unprepare(statement.stmt_id))
        assert.equal('x', c:execute('SELECT a FROM t', nil, nil, ASYNC):wait_result(5).rows[1][1])
        assert.equal('execute does not support options', message(c.execute, c, 'SELECT 1', {}, {}))
        assert.equal('Failed to prepare SQL statement: expected string as SQL statement', message(c.prepare, c, 5))
        assert.matches('^Syntax error', message(c.execute, c, 'SELECTT'))
        c:execute('DROP TABLE t')
    end)

    it('has tuples that are arrays with names', function()
        local t = c.space.test:get(1)
        assert.equal(2, #t)
        assert.same({ 1, 'name 1' }, { t:unpack() })
        assert.same({ id = 1, name = 'name 1' }, t:tomap { names_only = true })
        assert.same({ 1, 'name 1' }, t:totable())
        assert.equal("[1, 'new']", tostring(t:update { { '=', 2, 'new' } }))
        assert.equal('name 1', t.name)
        assert.is_true(net.tuple.is(t))
        assert.same({ { 'id', 'name' }, 2 }, { { c.space.test:format()[1].name, c.space.test:format()[2].name }, #c.space.test:format() })
        assert.equal('net.box does not support setting space format', message(c.space.test.format, c.space.test, {}))
        assert.same({ 1, 'name 1' }, { c:call('f', t) })
    end)

    it('inside a stream works on a server that knows none', function()
        local s = c:new_stream()
        assert.equal(1, s._stream_id)
        assert.equal(2, c:new_stream()._stream_id)
        assert.equal(3, s:new_stream()._stream_id)
        assert.equal(5, (s:call('f', { 5 })))
        assert.equal('name 1', s.space.test:get(1).name)
        assert.equal('name 1', s.space.test.index.pk:get(1).name)
        assert.is_true(s:ping())
        assert.equal('Unknown request type 14', message(s.begin, s))
        for _, case in ipairs {
            { 'x', 'txn_opts should be a table' },
            { { timeout = 0 }, 'timeout must be a number greater than 0' },
            { { is_sync = 1 }, 'is_sync must be a boolean' },
            { { is_sync = false }, 'is_sync can only be true' },
            { { txn_isolation = 'x' }, 'txn_isolation must be one of box.txn_isolation_level (keys or values)' },
        } do
            assert.equal(case[2], message(s.begin, s, case[1]))
        end
    end)

    it('is serialized as Tarantool does', function()
        local plain = debug.getmetatable(c).__serialize(c)
        assert.equal('active', plain.state)
        assert.equal('unix/', plain.host)
        assert.is_nil(plain.opts)
    end)

    it('reaches the server before close does (T#6338)', function()
        c:eval('received = 0 function tick() received = received + 1 end')
        local other = net.connect(get().uri)
        for _ = 1, 1000 do other:call('tick', {}, ASYNC) end
        other:close()
        fiber.sleep(0.1)
        assert.equal(1000, (c:eval('return received')))
    end)

    it('is told when the server is killed, with a thousand in flight', function()
        local server = helpers.tarantool { init = INIT }
        local other = net.connect(server.uri)
        local futures = {}
        for i = 1, 1000 do futures[i] = other:call('slow', { 10 }, ASYNC) end
        fiber.sleep(0.05)
        server:kill 'KILL'
        for i = 1, 1000 do
            local result, err = futures[i]:wait_result(5)
            assert.is_nil(result)
            assert.equal(77, err.code)
        end
        assert.equal('error', other.state)
        server:stop()
    end)

    it('survives a server that pauses and goes on', function()
        local server = helpers.tarantool { init = INIT }
        local other = net.connect(server.uri)
        server:kill 'STOP'
        assert.is_false(other:ping { timeout = 0.05 })
        local future = other:call('f', { 3 }, ASYNC)
        server:kill 'CONT'
        assert.same({ 3 }, future:wait_result(5))
        other:close()
        server:stop()
    end)
end)

describe('net.box itself', function()
    helpers.no_leftovers()

    it('checks the arguments of connect', function()
        local usage = 'usage: connect(uri[, opts] | host, port[, opts])'
        assert.equal(usage, message(net.connect))
        assert.equal(usage, message(net.connect, true))
        assert.matches('^Incorrect URI', message(net.connect, 'a:b:c:d'))
        for _, case in ipairs {
            { { bad = 1 }, "unexpected option 'bad'" },
            { { user = 1 }, "options parameter 'user' should be of type string" },
            { { wait_connected = 'x' }, "options parameter 'wait_connected' should be one of types: number, boolean" },
            { 5.5, nil },
            { { password = 'x' }, 'net.box: user is not defined' },
            { { auth_type = 'x' }, "Unknown authentication method 'x'" },
            { { console = true }, "Netbox text protocol support was dropped, please use require('console').connect() instead" },
        } do
            if case[2] then assert.equal(case[2], message(net.connect, 'localhost:1', case[1])) end
        end
    end)

    it('takes hosts and ports of all kinds', function()
        for _, case in ipairs {
            { { '127.0.0.1', 1 }, '127.0.0.1', '1' },
            { { '127.0.0.1:1' }, '127.0.0.1', '1' },
            { { 1 }, nil, '1' },
            { { '1' }, nil, '1' },
            { { '[::1]:1' }, '::1', '1' },
            { { { '127.0.0.1:1' } }, '127.0.0.1', '1' },
            { { nil, 1 }, nil, '1' },
        } do
            local conn = net.connect(unpack(case[1], 1, 2))
            assert.equal(case[2], conn.host)
            assert.equal(case[3], conn.port)
            assert.equal('error', conn.state)
        end
        local conn = net:connect('127.0.0.1:1')
        assert.equal('error', conn.state)
        assert.equal('error', net.new('127.0.0.1', 1, { wait_connected = true }).state)
        assert.equal('error', net.timeout(1).connect('127.0.0.1:1').state)
    end)

    it('calls the program itself', function()
        rawset(_G, 'net_self_spec', { twice = function(x) return 2 * x, 'x' end })
        assert.same({ 4, 'x' }, { net.self:call('net_self_spec.twice', { 2 }) })
        assert.same({ 3 }, { net.self:eval('return ...', { 3 }) })
        assert.is_true(net.self:ping())
        assert.equal("Procedure 'net_self_spec.no' is not defined", message(net.self.call, net.self, 'net_self_spec.no'))
        rawset(_G, 'net_self_spec', nil)
    end)

    it('takes a descriptor', function()
        assert.equal('fd should be a number', message(net.from_fd, 'x'))
        assert.equal('Invalid fd: expected nonnegative integer', message(net.from_fd, -1))
        local conn = net.from_fd(1000)
        assert.equal('error', conn.state)
        assert.matches('Bad file descriptor$', conn.error)
    end)
end)
