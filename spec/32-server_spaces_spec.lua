-- Spaces, streams and watched keys. The same operations, made by Tarantool's own client, must give the same answers on
-- Debian's tarantool and on the embedded server.
local helpers = require 'spec.helpers'
local client = require 'spec.server_helpers'
local fiber = require 'cord.fiber'
local server = require 'cord.server'

local function path() return 'unix/:' .. helpers.tempdir() .. '/s' end

local SELECT, INSERT, REPLACE, CALL, BEGIN, COMMIT, ROLLBACK, PING = 1, 2, 3, 10, 14, 15, 16, 64
local WATCH, UNWATCH, EVENT, WATCH_ONCE = 74, 75, 76, 77

local function define(srv)
    local t = srv:create_space('t', { format = {
        { 'id', 'unsigned' }, { 'name', 'string' }, { name = 'value', type = 'integer', is_nullable = true },
    } })
    t:create_index('pk', { parts = { 1, 'unsigned' } })
    t:create_index('name', { parts = { { 'name' } }, unique = false })
    t:create_index('value', { parts = { { field = 3, type = 'integer', is_nullable = true } }, unique = false })
    local free = srv:create_space('free')
    free:create_index('primary', { type = 'HASH', parts = { 1, 'string' } })
    srv:create_space('empty')
    return t
end

-- What a client does; each step's outcome is written as one line of JSON.
local STEPS = [[
    local c = require('net.box').connect((...))
    local json = require 'json'
    assert(c:ping(), c.error)
    local function show(name, f, ...)
        local outcome = { pcall(f, ...) }
        if not outcome[1] then
            local e = outcome[2]
            outcome = { false, type(e) == 'cdata' and { e.code, e.type, e.message } or tostring(e) }
        end
        print(name, json.encode(outcome))
    end
    local function method(space, name, ...)
        local s = c.space[space]
        show(space .. ':' .. name, s[name], s, ...)
    end
    local function indexed(index, name, ...)
        local i = c.space.t.index[index]
        show(index .. ':' .. name, i[name], i, ...)
    end
    method('t', 'insert', { 1, 'one', 10 })
    method('t', 'insert', { 2, 'two' })
    method('t', 'insert', { 3, 'three', 30, 'more', { a = { 1, 2 } } })
    method('t', 'insert', { 1, 'again' })
    method('t', 'insert', { 'x', 'y' })
    method('t', 'insert', { 5 })
    method('t', 'insert', { 5, 'five', 'not a number' })
    method('t', 'insert', { -5, 'minus' })
    method('t', 'replace', { 2, 'zwei', -20 })
    method('t', 'replace', { 4, 'four', 40 })
    method('t', 'replace', {})
    method('t', 'get', 1)
    method('t', 'get', { 99 })
    method('t', 'get', 'text')
    method('t', 'get', { 1, 2 })
    method('t', 'select', {})
    method('t', 'select', { 1 })
    method('t', 'select', 2, { iterator = 'GE' })
    method('t', 'select', 3, { iterator = 'LT' })
    method('t', 'select', {}, { iterator = 'REQ' })
    method('t', 'select', {}, { limit = 2, offset = 1 })
    method('t', 'select', {}, { limit = 0 })
    method('t', 'select', 1, { iterator = 'OVERLAPS' })
    indexed('name', 'select', { 'one' })
    indexed('name', 'select', { 't' }, { iterator = 'GT' })
    indexed('name', 'get', { 'one' })
    indexed('name', 'min')
    indexed('name', 'max')
    indexed('value', 'select', {}, { iterator = 'LE' })
    indexed('value', 'select', { box.NULL })
    indexed('value', 'min', 20)
    for _, ops in ipairs {
        { { '=', 2, 'uno' } }, { { '+', 3, 5 } }, { { '-', 3, 3 } }, { { '&', 3, 6 } }, { { '|', 3, 8 } }, { { '^', 3, 1 } },
        { { ':', 2, 1, 2, 'NN' } }, { { '!', 4, 'new' } }, { { '#', 4, 1 } }, { { '=', -1, 99 } }, { { '=', 'value', 7 } },
        { { '=', 1, 5 } }, { { '?', 2, 1 } }, { { '+', 2, 1 } }, { { '=', 0, 1 } },
        { { '=', 2, 5 } }, { { '=' } }, { 5 }, { { '=', 'nope', 1 } }, {},
    } do
        method('t', 'update', 1, ops)
    end
    method('t', 'update', 77, { { '=', 2, 'x' } })
    indexed('name', 'update', { 'one' }, { { '=', 2, 'x' } })
    method('t', 'upsert', { 1, 'no' }, { { '+', 3, 1 } })
    method('t', 'upsert', { 8, 'eight' }, { { '+', 3, 1 } })
    method('t', 'upsert', { 8, 'eight' }, { { '+', 2, 1 } })
    method('t', 'select')
    method('t', 'delete', 8)
    method('t', 'delete', 8)
    indexed('name', 'delete', 'uno')
    method('free', 'insert', { 'k', 1, 2, 3 })
    method('free', 'get', 'k')
    method('free', 'select', 'k', { iterator = 'GE' })
    method('free', 'delete', 'k')
    method('empty', 'insert', { 1 })
    method('empty', 'select')
    show('unknown space', c._request or c.request, c, 'select', {}, nil, 999, 0, 0, 0, 10, {})
    local names = {}
    for name, index in pairs(c.space.t.index) do
        if type(name) == 'string' then
            names[#names + 1] = { index.id, name, index.type, index.unique, index.parts[1].fieldno, index.parts[1].type }
        end
    end
    table.sort(names, function(a, b) return a[1] < b[1] end)
    print('schema', json.encode(names), json.encode(c.space.t:format()))
    for i = 1, 500 do c.space.t:replace { 1000 + i, ('n%03d'):format(i % 10), i } end
    print('many', #c.space.t:select({ 1000 }, { iterator = 'GT' }), #c.space.t.index.name:select 'n003')
]]

-- Debian's 2.6 says less in some errors than its successors, whose words are ours: what they added is taken out.
local LATER = {
    { ' with old tuple %- .*and new tuple %- .*%]"', '"' },
    { '(Tuple field %d+) %(%w+%)', '%1' },
    { '(type does not match one required by operation: expected %w+), got %w+', '%1' },
    { '\\"(%w+)\\"', "'%1'" },
    { 'part of primary index', "part of index 'pk'" },
    { '%[1,"ClientError","Illegal parameters, ', '[null,"IllegalParams","' },
}
local function normal(text)
    local lines = {}
    for line in text:gmatch '[^\n]+' do
        for _, change in ipairs(LATER) do line = line:gsub(change[1], change[2]) end
        lines[#lines + 1] = line
    end
    return lines
end

describe('spaces', function()
    local srv, conn
    setup(function() fiber.sleep(0.001) end)
    before_each(function()
        srv = server.listen(path(), { echo = function(...) return ... end })
        conn = client.connect(srv:address())
    end)
    after_each(function()
        conn:close()
        srv:stop('hard')
    end)
    helpers.no_leftovers()

    it("answer Tarantool's client as Debian's tarantool does #server", function()
        if not helpers.tarantool_binary() then
            pending(select(2, helpers.tarantool_binary()))
            return
        end
        local real = helpers.tarantool { init = [[
            local t = box.schema.space.create('t', { format = {
                { 'id', 'unsigned' }, { 'name', 'string' }, { name = 'value', type = 'integer', is_nullable = true },
            } })
            t:create_index('pk', { parts = { 1, 'unsigned' } })
            t:create_index('name', { parts = { { 'name' } }, unique = false })
            t:create_index('value', { parts = { { field = 3, type = 'integer', is_nullable = true } }, unique = false })
            box.schema.space.create('free'):create_index('primary', { type = 'HASH', parts = { 1, 'string' } })
            box.schema.space.create('empty')
        ]] }
        define(srv)
        local expected = normal(client.tarantool(STEPS, real.uri))
        local got = normal(client.tarantool(STEPS, srv:address()))
        real:stop()
        assert.is_true(#expected > 60)
        for i = 1, #expected do assert.equal(expected[i], got[i]) end
        assert.equal(#expected, #got)
    end)

    it('are objects of the program too', function()
        local t = define(srv)
        assert.same({ 1, 'one' }, t:insert { 1, 'one' })
        assert.same({ 2, 'two', 20 }, t:replace { 2, 'two', 20 })
        t:upsert({ 2, 'two' }, { { '+', 3, 1 } })
        assert.same({ 2, 'zwei', 21 }, t:update(2, { { '=', 'name', 'zwei' } }))
        assert.same({ { 1, 'one' }, { 2, 'zwei', 21 } }, t:select())
        assert.same({ 1, 'one' }, t:get(1))
        assert.is_nil(t:get(5))
        assert.equal(2, t:count())
        assert.equal(2, t:len())
        assert.equal(1, t:count(1, { iterator = 'GT' }))
        assert.same({ { 2, 'zwei', 21 } }, srv.space.t.index.name:select('p', { iterator = 'GE' }))
        assert.same({ 2, 'zwei', 21 }, srv.space[t.id].index[1]:max())
        local page, position = t:select({}, { limit = 1, fetch_pos = true })
        assert.same({ { 1, 'one' } }, page)
        assert.same({ { 2, 'zwei', 21 } }, (t:select({}, { limit = 1, after = position })))
        local seen = {}
        for _, tuple in t:pairs() do seen[#seen + 1] = tuple[1] end
        assert.same({ 1, 2 }, seen)
        assert.same({ 1, 'one' }, t:delete(1))
        t:truncate()
        assert.equal(0, t:len())
        assert.equal('name', t:format()[2].name)
        t:format { { 'key', 'unsigned' } }
        assert.equal('key', t:format()[1].name)
        t.index.value:drop()
        assert.is_nil(t.index.value)
        t:drop()
        assert.is_nil(srv.space.t)
        assert.is_nil(srv.space[512])
    end)

    it('refuse with error objects of Tarantool', function()
        local t = define(srv)
        t:insert { 1, 'one' }
        local function refusal(f, ...)
            local fine, err = pcall(f, ...)
            assert.is_false(fine)
            return { err.code, err.type, err.message }
        end
        assert.same({ 3, 'ClientError',
            'Duplicate key exists in unique index "pk" in space "t" with old tuple - [1, "one"] and new tuple - [1, "x"]' },
            refusal(t.insert, t, { 1, 'x' }))
        assert.same({ 10, 'ClientError', "Space 't' already exists" }, refusal(srv.create_space, srv, 't'))
        assert.equal('IllegalParams', refusal(srv.create_space, srv, 'u', { evil = 1 })[2])
        assert.equal("unexpected option 'evil'", refusal(srv.create_space, srv, 'u', { evil = 1 })[3])
        assert.same({ 72, 'ClientError', "Unknown iterator type 'x'" }, refusal(t.select, t, 1, { iterator = 'x' }))
        assert.equal('Use space:insert(...) instead of space.insert(...)', refusal(t.insert)[3])
        assert.equal('space:insert(tuple): a table expected, got number', refusal(t.insert, t, 5)[3])
    end)

    it('of a stopped server are nobody else\'s', function()
        local old = server.listen(path(), {})
        local t = old:create_space 't'
        local pk = t:create_index 'pk'
        t:insert { 1 }
        old:stop 'hard'
        local other = server.listen(path(), {})
        other:create_space('t'):create_index 'pk'
        local function refusal(f, ...) return select(2, pcall(f, ...)).message end
        assert.equal('the server is stopped', refusal(t.insert, t, { 2 }))
        assert.equal('the server is stopped', refusal(pk.select, pk))
        assert.equal('the server is stopped', refusal(t.drop, t))
        assert.equal('the server is stopped', refusal(old.create_space, old, 'x'))
        old:user('evil', true)
        assert.equal(0, other.space.t:len())
        assert.is_nil(other.space.x)
        assert.is_nil(other.space._vuser.index.name:get 'evil')
        other:stop 'hard'
    end)

    it('are one object each, by name and by id, for pairs too', function()
        define(srv)
        local function names()
            local list = {}
            for key, space in pairs(srv.space) do
                assert.equal(space, srv.space[space.name])
                assert.equal(space, srv.space[space.id])
                if type(key) == 'string' then list[#list + 1] = key end
            end
            table.sort(list)
            return table.concat(list, ' ')
        end
        assert.equal('empty free t', names())
        assert.equal(srv.space.t, srv:create_space('t', { if_not_exists = true }))
        srv.space.free:drop()
        assert.equal('empty t', names())
        assert.is_nil(srv.space.free)
        local file = helpers.tempdir() .. '/snapshot'
        srv:snapshot(file)
        srv.space.t:drop()
        srv:create_space 'other'
        srv:restore(file)
        assert.equal('empty t', names())
        assert.equal('_vspace', srv.space[281].name)
        assert.is_nil(srv.space[5])
        assert.is_nil(srv.space[{}])
    end)

    it('are read as box.space reads them', function()
        define(srv)
        local t = srv.space.t
        for i = 1, 3 do t:insert { i, ('n%d'):format(i) } end
        local function refusal(f, ...) return select(2, pcall(f, ...)).message end
        assert.equal('Invalid key part count in an exact match (expected 1, got 2)', refusal(t.get, t, { 1, 2 }))
        assert.equal("Get() doesn't support partial keys and non-unique indexes", refusal(t.index.name.get, t.index.name, 'n1'))
        assert.equal("Index 'primary' (HASH) of space 'free' (memtx) does not support min()",
            refusal(srv.space.free.min, srv.space.free))
        assert.same({ 2, 3, 1 }, { t:get(2).id, t:max().id, t.index.name:min 'n' .id })
        assert.is_nil(t:get(99))
        assert.is_nil(t.index.name:min 'x')
        assert.same({ { fieldno = 3, type = 'integer', is_nullable = true } }, t.index.value.parts)
        assert.same({ 'memtx', 0, 'sysview' }, { t.engine, t.field_count, srv.space._vspace.engine })
    end)

    it('are counted for net.box by the path it calls', function()
        local t = define(srv)
        for i = 1, 5 do t:insert { i, 'x' } end
        for _, name in ipairs { 'box.space["t"].index["pk"]:count', 'box.space[512].index[0]:count',
            'box.space.t.index.name:count', 'box.space.t:count' } do
            local _, body = conn:call(name, {}, {})
            assert.same({ 5 }, body[0x30])
        end
        local _, body = conn:call('box.space["t"].index["pk"]:count', { 2 }, { iterator = 'GT' })
        assert.same({ 3 }, body[0x30])
        assert.equal(0x8000 + 33, (conn:call('box.space["t"]:delete', 1))[0])
    end)

    it('survive in a snapshot, and a damaged one changes nothing', function()
        local t = define(srv)
        for i = 1, 100 do t:insert { i, 'name ' .. i, i } end
        local file = helpers.tempdir() .. '/snap'
        srv:snapshot(file)
        local before = (conn:ask(PING))[5]
        t:truncate()
        srv.space.free:drop()
        srv:restore(file)
        assert.equal(100, srv.space.t:len())
        assert.same({ 50, 'name 50', 50 }, srv.space.t.index.name:select('name 50')[1])
        assert.is_truthy(srv.space.free)
        assert.is_true((conn:ask(PING))[5] > before)
        local bytes = helpers.read_file(file)
        helpers.write_file(file, bytes:sub(1, 500) .. 'X' .. bytes:sub(502))
        local fine, err = pcall(srv.restore, srv, file)
        assert.is_false(fine)
        assert.equal('SystemError', err.type)
        assert.is_truthy(err.message:match "^can't restore ")
        assert.equal(100, srv.space.t:len())
        assert.is_false(pcall(srv.restore, srv, file .. '.none'))
        assert.is_false(pcall(srv.snapshot, srv, '/nonexistent/dir/snap'))
    end)

    it('are kept from users without a grant', function()
        define(srv)
        srv:user('reader', { password = 'p', grants = { read = { 't' }, execute = { 'echo' } } })
        srv:user('guest', false)
        local function ask(...)
            local head, body = conn:ask(...)
            return head[0] == 0 and 'fine' or body[0x31]
        end
        local function read(id) return ask(SELECT, { [0x10] = id, [0x12] = 10, [0x20] = {} }) end
        local function write(id) return ask(REPLACE, { [0x10] = id, [0x21] = { 1, 'x' } }) end
        assert.equal("Read access to space 't' is denied for user 'guest'", read(512))
        assert.equal('fine', read(281))
        assert.equal("Execute access to function 'echo' is denied for user 'guest'", ask(CALL, { [0x22] = 'echo' }))
        assert.equal('fine', ask(7, client.auth(conn, 'reader', 'p')))
        assert.equal('fine', read(512))
        assert.equal("Read access to space 'free' is denied for user 'reader'", read(513))
        assert.equal("Write access to space 't' is denied for user 'reader'", write(512))
        assert.equal('fine', ask(CALL, { [0x22] = 'echo' }))
        assert.equal("Execute access to function 'x' is denied for user 'reader'", ask(CALL, { [0x22] = 'x' }))
        srv:drop_user('reader')
        assert.equal("Read access to space 't' is denied for user 'reader'", read(512))
        local seen
        srv:on_auth(function(session, user, fine) seen = { session.id > 0, user, fine } end)
        assert.is_truthy(ask(7, client.auth(conn, 'reader', 'p')) ~= 'fine')
        assert.same({ true, 'reader', false }, seen)
    end)

    describe('in streams', function()
        local other
        before_each(function()
            define(srv)
            other = client.connect(srv:address())
        end)
        after_each(function() other:close() end)

        local function ids(who, stream)
            local _, body = who:ask(SELECT, { [0x10] = 512, [0x12] = 100, [0x20] = {} }, stream and { [10] = stream })
            local list = {}
            for i, tuple in ipairs(body[0x30]) do list[i] = tuple[1] end
            return list
        end
        local function insert(who, id, stream)
            return who:ask(INSERT, { [0x10] = 512, [0x21] = { id, 'x' } }, stream and { [10] = stream })
        end

        it('are changed for others only by COMMIT', function()
            assert.equal(0, (conn:ask(BEGIN, nil, { [10] = 1 }))[0])
            assert.equal(0, (insert(conn, 1, 1))[0])
            assert.same({ 1 }, ids(conn, 1))
            assert.same({}, ids(other))
            assert.same({}, ids(conn))
            assert.equal(0, (conn:ask(COMMIT, nil, { [10] = 1 }))[0])
            assert.same({ 1 }, ids(other))
            assert.equal(0, (conn:ask(BEGIN, nil, { [10] = 1 }))[0])
            insert(conn, 2, 1)
            assert.equal(0, (conn:ask(ROLLBACK, nil, { [10] = 1 }))[0])
            assert.same({ 1 }, ids(conn, 1))
        end)

        it('conflict, and the later commit fails', function()
            for _, who in ipairs { conn, other } do
                who:ask(BEGIN, nil, { [10] = 1 })
                assert.equal(0, (insert(who, 7, 1))[0])
            end
            assert.equal(0, (conn:ask(COMMIT, nil, { [10] = 1 }))[0])
            local head, body = other:ask(COMMIT, nil, { [10] = 1 })
            assert.equal(97, head[0] - 0x8000)
            assert.equal('Transaction has been aborted by conflict', body[0x31])
        end)

        it('know begin twice, an unknown isolation and a commit of nothing', function()
            assert.equal(0, (conn:ask(COMMIT, nil, { [10] = 9 }))[0])
            assert.equal(0, (conn:ask(BEGIN, nil, { [10] = 9 }))[0])
            local head, body = conn:ask(BEGIN, nil, { [10] = 9 })
            assert.equal(79, head[0] - 0x8000)
            assert.equal('Operation is not permitted when there is an active transaction ', body[0x31])
            assert.equal(1, (conn:ask(BEGIN, { [0x59] = 17 }, { [10] = 8 }))[0] - 0x8000)
        end)

        it('are rolled back when their time is over', function()
            local msgpack = require 'cord.msgpack'
            local body = '\129\86' .. msgpack.encode(require('ffi').new('double', 0.02))
            assert.equal(0, (conn:ask(BEGIN, body, { [10] = 3 }))[0])
            insert(conn, 1, 3)
            fiber.sleep(0.03)
            local head, answer = insert(conn, 2, 3)
            assert.equal(231, head[0] - 0x8000)
            assert.equal('Transaction has been aborted by timeout', answer[0x31])
            assert.equal(231, (conn:ask(COMMIT, nil, { [10] = 3 }))[0] - 0x8000)
            assert.same({}, ids(other))
            assert.equal(0, (insert(conn, 2, 3))[0])
        end)

        it('are rolled back when the client goes', function()
            conn:ask(BEGIN, nil, { [10] = 1 })
            insert(conn, 1, 1)
            conn:close()
            fiber.sleep(0.01)
            conn = client.connect(srv:address())
            assert.same({}, ids(conn))
        end)

        it('are worked on in order, and streams side by side', function()
            local order = {}
            srv.functions.step = function(name, seconds)
                fiber.sleep(seconds)
                order[#order + 1] = name
                return name
            end
            local function step(name, seconds, stream)
                conn:request(CALL, { [0x22] = 'step', [0x21] = { name, seconds } }, { [10] = stream })
            end
            step('a1', 0.03, 1)
            step('a2', 0, 1)
            conn:request(PING, nil, { [10] = 1 })
            step('b1', 0, 2)
            step('b2', 0.005, 2)
            local syncs = {}
            for i = 1, 5 do syncs[i] = (conn:response())[1] end
            assert.same({ 'b1', 'b2', 'a1', 'a2' }, order)
            assert.same({ 4, 5, 1, 2, 3 }, syncs)
        end)

        it('have their transaction in the handlers they call', function()
            srv.functions.add = function(id) return srv.space.t:insert { id, 'by a handler' } end
            conn:ask(BEGIN, nil, { [10] = 4 })
            local _, body = conn:ask(CALL, { [0x22] = 'add', [0x21] = { 5 } }, { [10] = 4 })
            assert.same({ { 5, 'by a handler' } }, body[0x30])
            assert.same({}, ids(other))
            conn:ask(COMMIT, nil, { [10] = 4 })
            assert.same({ 5 }, ids(other))
        end)
    end)

    describe('beside watched keys', function()
        local function event(seconds)
            local head, body = conn:response(seconds or 0.05)
            if not head then return nil end
            assert.equal(EVENT, head[0])
            return body[0x57], body[0x58]
        end

        it('tell a value at once, and then each change after an acknowledgement', function()
            srv:broadcast('key', 1)
            conn:request(WATCH, { [0x57] = 'key' })
            assert.same({ 'key', 1 }, { event() })
            srv:broadcast('key', 2)
            srv:broadcast('key', { 3 })
            assert.is_nil(event())
            conn:request(WATCH, { [0x57] = 'key' })
            assert.same({ 'key', { 3 } }, { event() })
            conn:request(WATCH, { [0x57] = 'key' })
            assert.is_nil(event())
            srv:broadcast('key')
            local key, value = event()
            assert.equal('key', key)
            assert.is_nil(value)
            conn:request(WATCH, { [0x57] = 'key' })
            conn:request(UNWATCH, { [0x57] = 'key' })
            conn:ask(PING)
            srv:broadcast('key', 5)
            assert.is_nil(event())
            local _, body = conn:ask(WATCH_ONCE, { [0x57] = 'key' })
            assert.same({ 5 }, body[0x30])
            _, body = conn:ask(WATCH_ONCE, { [0x57] = 'unknown' })
            assert.same({}, body[0x30])
        end)

        it('tell of an unset key, of the server itself, and of its shutdown', function()
            conn:request(WATCH, { [0x57] = 'unset' })
            local key, value = event()
            assert.equal('unset', key)
            assert.is_nil(value)
            local _, body = conn:ask(WATCH_ONCE, { [0x57] = 'box.status' })
            assert.same({ { is_ro = false, is_ro_cfg = false, status = 'running', dd_version = '3.9.0' } }, body[0x30])
            -- Each change of a definition is news.
            local function version() return select(2, conn:ask(WATCH_ONCE, { [0x57] = 'box.schema' }))[0x30][1].version end
            local seen = version()
            local space
            for _, change in ipairs {
                function() space = srv:create_space('x') end,
                function() space:create_index('pk') end,
                function() space:format { 'a' } end,
                function() space.index.pk:drop() end,
                function() space:drop() end,
            } do
                change()
                local now, header = version(), (conn:ask(PING))
                assert.is_true(now > seen)
                assert.equal(now, header[5])
                seen = now
            end
            conn:request(WATCH, { [0x57] = 'box.shutdown' })
            assert.same({ 'box.shutdown' }, { event() })
            conn:request(WATCH, { [0x57] = 'box.shutdown' })
            local stopped
            local f = fiber.new(function()
                srv:stop('graceful', 1)
                stopped = true
            end)
            f:set_joinable(true)
            assert.same({ 'box.shutdown', true }, { event(0.2) })
            assert.is_nil(stopped)
            conn:close()
            f:join()
            assert.is_true(stopped)
            conn = { close = function() end }
        end)
    end)
end)
