-- net.box against a real Tarantool.
local helpers = require 'spec.helpers'
local net = require 'cord.netbox'
local fiber = require 'cord.fiber'
local msgpack = require 'cord.msgpack'

local INIT = [[
box.schema.space.create('test', { id = 512, format = { { 'id', 'unsigned' }, { 'name', 'string', is_nullable = true } } })
box.space.test:create_index('pk')
box.space.test:create_index('name', { parts = { { 2, 'string', is_nullable = true } }, unique = false })
box.schema.user.create('u', { password = 'secret' })
box.schema.user.grant('u', 'super')
box.schema.user.create('empty', { password = '' })
box.schema.user.grant('empty', 'super')
calls = 0
function f(...) calls = calls + 1 return ... end
function boom() error('boom') end
function slow(n, ...) require'fiber'.sleep(n) return ... end
function client_error() box.error(box.error.PROC_LUA, 'mine') end
]]

helpers.describe_server('net.box', { init = INIT, listen = 'tcp' }, function(get)
    local c
    before_each(function() c = net.connect(get().uri) end)
    after_each(function() c:close() end)

    it('connects and answers a ping', function()
        assert.equal('active', c.state)
        assert.is_nil(c.error)
        assert.is_true(c:ping())
        assert.is_true(c:is_connected())
        assert.equal('127.0.0.1', c.host)
        assert.equal(get().uri:match ':(%d+)$', c.port)
        assert.equal('Binary', c.protocol)
        assert.equal(0x020600, c.peer_version_id)
        assert.equal(36, #c.peer_uuid)
        assert.equal(0, c.peer_protocol_version)
        assert.is_false(getmetatable(c))
    end)

    it('calls functions with any arguments and results', function()
        assert.same({ 1, 'x', true, 2.5 }, { c:call('f', { 1, 'x', true, 2.5 }) })
        assert.equal(0, select('#', c:call('f')))
        local a, b, n = c:call('f', { 1, msgpack.NULL, 3 })
        assert.equal(1, a)
        assert.is_true(b == nil and type(b) == 'cdata')
        assert.equal(3, n)
        assert.same({ a = 1, b = { 1, 2, { c = 'd' } } }, (c:call('f', { { a = 1, b = { 1, 2, { c = 'd' } } } })))
        assert.same({ 2, 4 }, { c:eval('local a, b = ... return a * 2, b * 2', { 1, 2 }) })
        assert.equal(('x'):rep(100000), (c:call('f', { ('x'):rep(100000) })))
        assert.equal('18446744073709551615ULL', tostring((c:eval('return 18446744073709551615ULL'))))
        assert.equal('-9223372036854775808LL', tostring((c:eval('return -9223372036854775808LL'))))
    end)

    it('raises what the server answers', function()
        local ok, err = pcall(c.call, c, 'boom')
        assert.is_false(ok)
        assert.equal(32, err.code)
        assert.matches('boom$', err.message)
        ok, err = pcall(c.call, c, 'nosuch')
        assert.is_false(ok)
        assert.equal(33, err.code)
        assert.equal("Procedure 'nosuch' is not defined", err.message)
        assert.equal("Procedure 'nosuch' is not defined", tostring(err))
        ok, err = pcall(c.call, c, 'client_error')
        assert.is_false(ok)
        assert.equal('mine', err.message)
        assert.is_true(c:ping())
    end)

    it('works with spaces by name and id', function()
        local s = c.space.test
        assert.equal(s, c.space[512])
        assert.is_nil(c.space.nosuch)
        assert.equal('memtx', s.engine)
        assert.equal('TREE', s.index[0].type)
        assert.same({ { type = 'unsigned', fieldno = 1, is_nullable = false } }, s.index.pk.parts)
        assert.same({ { type = 'string', fieldno = 2, is_nullable = true } }, s.index.name.parts)
        assert.same({ 1, 'one' }, { s:insert({ 1, 'one' }):unpack() })
        assert.equal('two', s:replace({ 2, 'two' }).name)
        assert.equal('one', s:get(1).name)
        assert.equal('one', s:get({ 1 })[2])
        assert.equal(0, select('#', s:get(77)))
        assert.equal("[1, 'one']", tostring(s:get(1)))
        assert.equal(2, #s:select())
        assert.equal(2, #s:select({}))
        assert.equal('two', s:select(2)[1].name)
        assert.equal('two', s:select({}, { iterator = 'req', limit = 1 })[1].name)
        assert.equal('two', s:select({ 1 }, { iterator = 'GT' })[1].name)
        assert.equal('one', s.index.name:get('one').name)
        assert.equal(1, s.index.pk:min().id)
        assert.equal(2, s.index.pk:max().id)
        assert.equal('uno', s:update(1, { { '=', 2, 'uno' } }).name)
        assert.equal(0, select('#', s:upsert({ 3, 'three' }, { { '=', 2, 'x' } })))
        assert.equal('three', s:delete(3).name)
        assert.equal('two', s.index.pk:delete(2).name)
        local ok, err = pcall(s.insert, s, { 1, 'one' })
        assert.is_false(ok)
        assert.equal(3, err.code)
        assert.equal("Duplicate key exists in unique index 'pk' in space 'test'", err.message)
        s:delete(1)
    end)

    it('gives up after the timeout, and drops the late reply', function()
        local ok, err = pcall(c.call, c, 'slow', { 0.1, 1 }, { timeout = 0.02 })
        assert.is_false(ok)
        assert.equal('timed out', err.message)
        assert.equal('TimedOut', err.type)
        assert.equal(2, (c:call('slow', { 0.15, 2 }, { timeout = 2 })))
        assert.equal('timed out', select(2, pcall(c.call, c, 'f', { 1 }, { timeout = 0 })).message)
        assert.is_false(c:ping { timeout = 0 })
        assert.is_true(c:ping())
    end)

    it('logs in', function()
        local u = net.connect('u:secret@' .. get().uri)
        assert.equal('u', (u:eval('return box.session.user()')))
        assert.equal('u', u.opts.user)
        assert.is_nil(u.opts.password)
        u:close()
        u = net.connect(get().uri, { user = 'u', password = 'secret' })
        assert.equal('u', (u:eval('return box.session.user()')))
        u:close()
        u = net.connect(get().uri, { user = 'empty', password = '' })
        assert.equal('empty', (u:eval('return box.session.user()')))
        u:close()
        u = net.connect('u:bad@' .. get().uri)
        assert.equal('error', u.state)
        assert.equal("Incorrect password supplied for user 'u'", u.error)
        local ok, err = pcall(u.call, u, 'f')
        assert.is_false(ok)
        assert.equal(77, err.code)
        assert.equal("Incorrect password supplied for user 'u'", err.message)
    end)

    it('serves many fibers over one connection, each its own result', function()
        local wrong, done = 0, 0
        for i = 1, 50 do
            fiber.create(function()
                for j = 1, 200 do
                    if c:call('f', { i * 1000 + j }) ~= i * 1000 + j then wrong = wrong + 1 end
                end
                done = done + 1
            end)
        end
        while done < 50 do fiber.sleep(0.01) end
        assert.equal(0, wrong)
    end)

    it('sends everything before it closes, and lets the server read it (T#6338)', function()
        c:eval 'calls = 0'
        local other = net.connect(get().uri)
        for _ = 1, 5000 do other:call('f', { ('x'):rep(100) }, { is_async = true }) end
        other:close()
        local deadline = helpers.now() + 5
        while c:eval 'return calls' < 5000 and helpers.now() < deadline do fiber.sleep(0.01) end
        assert.equal(5000, (c:eval 'return calls'))
    end)

    it('does not merge credentials of the URI and the options (T#398, T#1545)', function()
        local u = net.connect('u:secret@' .. get().uri, { user = 'empty', password = '' })
        assert.equal('empty', (u:eval('return box.session.user()')))
        u:close()
        local ok, err = pcall(net.connect, 'u@' .. get().uri, { password = 'secret' })
        assert.is_false(ok)
        assert.equal('net.box: user is not defined', err.message)
        ok, err = pcall(net.connect, get().uri .. '?transport=tcp')
        assert.is_false(ok)
        assert.equal('Invalid transport: tcp', err.message)
        u = net.connect(get().uri .. '?transport=plain')
        assert.equal('active', u.state)
        u:close()
    end)

    it('waits in a hot loop as anywhere (T#4491, T#1719)', function()
        local sum = 0
        for i = 1, 20000 do sum = sum + c:call('f', { i }) end
        assert.equal(200010000, sum)
    end)

    it('waits where Lua cannot yield, and in coroutines', function()
        assert.equal('a7b7', (('a.b.'):gsub('%.', function() return (c:call('f', { 7 })) end)))
        local t = { 5, 3, 1, 4, 2 }
        table.sort(t, function(a, b) return c:call('f', { a }) < c:call('f', { b }) end)
        assert.same({ 1, 2, 3, 4, 5 }, t)
        assert.same({ true, 9 }, { coroutine.resume(coroutine.create(function() return (c:call('f', { 9 })) end)) })
        local done = 0
        for i = 1, 10 do
            fiber.create(function()
                local text = ('x'):rep(20):gsub('x', function() return (c:call('f', { i })) end)
                assert(text == tostring(i):rep(20))
                done = done + 1
            end)
        end
        local deadline = helpers.now() + 5
        while done < 10 and helpers.now() < deadline do fiber.sleep(0.001) end
        assert.equal(10, done)
    end)

    it('is cancelled in a call, and the reply goes to nobody', function()
        local err
        local f = fiber.create(function() err = select(2, pcall(c.call, c, 'slow', { 0.05, 1 })) end)
        f:cancel()
        fiber.sleep(0)
        assert.equal('fiber is cancelled', err.message)
        assert.equal(2, (c:call('slow', { 0.06, 2 })))
    end)

    it('closes once and for all', function()
        c:close()
        c:close()
        assert.equal('closed', c.state)
        assert.equal('Connection closed', c.error)
        assert.is_false(c:ping())
        local ok, err = pcall(c.call, c, 'f')
        assert.is_false(ok)
        assert.equal('Connection closed', err.message)
    end)
end)

helpers.describe_server('net.box over a unix socket', { init = INIT }, function(get)
    it('connects by its path', function()
        for _, uri in ipairs { get().uri, 'unix/:' .. get().uri } do
            local c = net.connect(uri)
            assert.equal('active', c.state)
            assert.equal('unix/', c.host)
            assert.equal(get().uri, c.port)
            assert.equal(7, (c:call('f', { 7 })))
            c:close()
        end
    end)
end)
