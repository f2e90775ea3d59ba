-- Complaints about net.box and other clients in public trackers that no other spec shows. docs/complaints.md lists them all,
-- and the last test here holds it to its word. T is tarantool/tarantool.
local helpers = require 'spec.helpers'
local net = require 'cord.netbox'
local fiber = require 'cord.fiber'
local server = require 'cord.server'
local msgpack = require 'cord.msgpack'

local ASYNC = { is_async = true }

local function message(...)
    local ok, err = pcall(...)
    assert.is_false(ok)
    return type(err) == 'string' and err:gsub('^.-:%d+: ', '') or err.message
end

describe('a complaint about net.box:', function()
    helpers.no_leftovers()

    it('T#11624, T#12421, T#12440, T#4513: net.self differs from a connection', function()
        local functions = {
            nothing = function() end,
            null = function() return nil end,
            holes = function() return 1, nil, 3 end,
            trailing = function() return 1, nil end,
            count = function(...) return select('#', ...) end,
            echo = function(...) return ... end,
            tuple = function() return net.tuple.new { 1, 'x' } end,
            text = function() error('text', 0) end,
            table = function() return { a = { 1, 2 } } end,
        }
        local srv = server.listen('127.0.0.1:0', { functions = functions, eval = true })
        rawset(_G, 'functions_29', functions)
        local conn = net.connect((srv:address()))
        -- How many values there are, what they are, and which are NULL.
        local function shown(...)
            local parts = { select('#', ...) }
            for i = 1, parts[1] do
                local value = select(i, ...)
                parts[#parts + 1] = value == nil and (type(value) == 'cdata' and 'NULL' or 'nil')
                    or type(value) == 'table' and (msgpack.encode(value):gsub('.', function(c) return ('%02x'):format(c:byte()) end))
                    or tostring(value)
            end
            return table.concat(parts, ' ')
        end
        for _, case in ipairs {
            { 'nothing' }, { 'null' }, { 'holes' }, { 'trailing' }, { 'table' }, { 'tuple' },
            { 'count', { 1, nil, 3 } }, { 'count', {} }, { 'echo', { 1, nil, 3 } }, { 'echo', { msgpack.NULL } },
        } do
            local name, args = case[1], case[2]
            local remote = shown(conn:call(name, args))
            assert.equal(remote, shown(net.self:call('functions_29.' .. name, args)), name)
            assert.equal(remote, shown(net.self:eval('return functions_29.' .. name .. '(...)', args)), name)
        end
        assert.equal('3 1 NULL 3', shown(net.self:call 'functions_29.holes'))
        local _, ours = pcall(net.self.call, net.self, 'functions_29.text')
        local _, theirs = pcall(conn.call, conn, 'text')
        assert.equal('text', ours.message)
        assert.same({ theirs.message, theirs.code }, { ours.message, ours.code })
        for _, name in ipairs { 'call', 'eval' } do
            assert.equal(message(conn[name], conn, 'f', 1), message(net.self[name], net.self, 'f', 1))
            assert.equal(message(conn[name], 'f'), message(net.self[name], 'f'))
        end
        assert.equal("Procedure 'no.such' is not defined", message(net.self.call, net.self, 'no.such'))
        assert.equal(net.self, net.self:timeout(1))
        rawset(_G, 'functions_29', nil)
        conn:close()
        srv:stop()
    end)

    it('luatest#234: a future is the one result of an asynchronous request', function()
        local srv = server.listen('127.0.0.1:0', { echo = function(...) return ... end })
        local conn = net.connect((srv:address()))
        assert.equal(1, select('#', conn:call('echo', { 1, 2 }, ASYNC)))
        assert.equal(1, select('#', conn:call('echo', { 1, 2 }, { is_async = true, return_raw = true })))
        assert.equal(1, select('#', conn:watch_once('key', ASYNC)))
        conn:close()
        srv:stop()
    end)

    it('T#4787: errors without a message', function()
        local srv = server.listen('127.0.0.1:0', {
            none = function() error() end,
            empty = function() error('', 0) end,
            table = function() error {} end,
            yields = function()
                local f = fiber.new(function() error('inside') end)
                f:set_joinable(true)
                local _, err = f:join()
                error(err)
            end,
        })
        local conn = net.connect((srv:address()))
        assert.equal('nil', message(conn.call, conn, 'none'))
        assert.matches('^table: 0x', message(conn.call, conn, 'table'))
        assert.matches('inside$', message(conn.call, conn, 'yields'))
        local _, err = pcall(conn.call, conn, 'empty')
        assert.same({ '', 'LuajitError' }, { err.message, err.type })
        conn:close()
        srv:stop()
    end)

    it('T#4632: a format with field types nobody knows', function()
        local f = helpers.fake_server [[ local peer = ... peer:greeting()
            peer:serve_schema({
                [281] = { { 512, 1, 'test', 'memtx', 0, { x = 1 }, {
                    { name = 'id', type = 'unsigned' }, { name = 'value', type = 'foo', strange = { 1 } },
                    { type = 'bar', name = 'last' } } } },
                [289] = { { 512, 0, 'pk', 'tree', { unique = true }, { { 0, 'unsigned' } } },
                    { 512, 1, 'odd', 'bitmap', {}, { { field = 1, type = 'foo' } } } },
            }, function(r) peer:reply(r.sync, { peer.pack.value { 1, 'two', 'three' } }) end) ]]
        local conn = net.connect(f.uri)
        assert.equal('active', conn.state)
        local t = conn.space.test:get(1)
        assert.same({ 1, 'two', 'three' }, { t.id, t.value, t.last })
        assert.equal('foo', conn.space.test:format()[2].type)
        assert.equal('foo', conn.space.test.index.odd.parts[1].type)
        assert.equal('BITMAP', conn.space.test.index.odd.type)
        assert.same({ 1, 'two', 'three' }, { conn:call('f', { t })[1], t[2], t[3] })
        conn:close()
        f:stop()
    end)

    it('T#4691, T#5451, T#4091, T#3256, T#1729, T#7858: what the schema says of an index, from old servers and new', function()
        local function connect(version, spaces)
            local rows = [[
                [281] = { { 512, 1, 'test', 'memtx', 3, { temporary = true }, { { name = 'id', type = 'unsigned' } } } },
                [289] = {
                    { 512, 0, 'pk', 'tree', { unique = true }, { { 0, 'unsigned' }, { 2, 'string' } } },
                    { 512, 1, 'sk', 'tree', { unique = false }, {
                        { field = 1, type = 'string', is_nullable = true, exclude_null = true, collation = 2, path = 'a.b' },
                        { field = 3, type = 'string', collation = 77 } } },
                    { 512, 2, 'hk', 'hash', {}, { { 0, 'unsigned' } } },
                },]]
            local f = helpers.fake_server(([[ local peer = ... peer:greeting { version = '%s' }
                peer:serve_schema { %s %s } ]]):format(version, rows, spaces or ''))
            local conn = net.connect(f.uri, { wait_connected = 5 })
            assert.equal('active', conn.state, conn.error)
            return conn, f
        end
        -- 1.10 has neither collations nor sequences to see; a newer one says that they do not exist.
        for _, version in ipairs { '1.10.0', '2.2.1' } do
            local conn, f = connect(version)
            local space = conn.space.test
            assert.same({ 512, 'test', 'memtx', 3, true, true, false },
                { space.id, space.name, space.engine, space.field_count, space.enabled, space.temporary, space.is_sync })
            assert.same({ { fieldno = 1, type = 'unsigned', is_nullable = false },
                { fieldno = 3, type = 'string', is_nullable = false } }, space.index.pk.parts)
            assert.same({ { fieldno = 2, type = 'string', is_nullable = true, exclude_null = true, collation_id = 2, path = 'a.b' },
                { fieldno = 4, type = 'string', is_nullable = false, collation_id = 77 } }, space.index.sk.parts)
            assert.same({ true, false, true }, { space.index.pk.unique, space.index.sk.unique, space.index.hk.unique })
            assert.same({ 'TREE', 'TREE', 'HASH' }, { space.index[0].type, space.index[1].type, space.index[2].type })
            assert.is_nil(space.index.pk.sequence_id)
            conn:close()
            f:stop()
        end
        local collations = "[277] = { { 1, 'unicode' }, { 2, 'unicode_ci' } },"
        local conn, f = connect('2.6.0', collations)
        assert.equal('unicode_ci', conn.space.test.index.sk.parts[1].collation)
        assert.is_nil(conn.space.test.index.sk.parts[1].collation_id)
        assert.equal(77, conn.space.test.index.sk.parts[2].collation_id)
        conn:close()
        f:stop()
    end)

    it('T#7858: sequences of indexes', function()
        local f = helpers.fake_server [[ local peer = ... peer:greeting { version = '3.0.0' }
            local r = peer:read_request()
            peer:error(r.sync, 48, 'Unknown request type 73')
            peer:serve_schema {
                [281] = { { 512, 1, 'a', 'memtx', 0, {}, {} }, { 513, 1, 'b', 'memtx', 0, {}, {} } },
                [289] = { { 512, 0, 'pk', 'tree', {}, { { 0, 'unsigned' } } }, { 513, 0, 'pk', 'tree', {}, { { 0, 'unsigned' } } } },
                [277] = {},
                [341] = { { 512, 7, true, 2, 'x.y' } },
            } ]]
        local conn = net.connect(f.uri)
        local index = conn.space.a.index.pk
        assert.same({ 7, 3, 'x.y' }, { index.sequence_id, index.sequence_fieldno, index.sequence_path })
        assert.is_nil(conn.space.b.index.pk.sequence_id)
        conn:close()
        f:stop()
    end)

    it('T#3255: replies are lost or swapped among a great many', function()
        local srv = server.listen('unix/:' .. helpers.tempdir() .. '/s', { echo = function(...) return ... end })
        local conn = net.connect((srv:address()))
        local n, wrong = 300000, 0
        local futures, first = {}, 1
        for i = 1, n do
            futures[i] = conn:call('echo', { i }, ASYNC)
            if i - first == 2000 or i == n then
                for j = first, i do
                    local result = futures[j]:wait_result(10)
                    if not result or result[1] ~= j then wrong = wrong + 1 end
                    futures[j] = nil
                end
                first = i + 1
            end
        end
        assert.equal(0, wrong)
        conn:close()
        srv:stop()
    end)

    it('T#822: a failed call of net.self leaves something behind', function()
        local before = fiber.stats().fibers
        for _ = 1, 100 do
            assert.equal('no', message(net.self.eval, net.self, "error('no', 0)"))
        end
        assert.equal(before, fiber.stats().fibers)
        assert.same({ 1 }, { net.self:eval 'return 1' })
    end)
end)

helpers.describe_server('a complaint about net.box and Tarantool:', { init = [[
box.schema.func.create('private')
function private() return 1 end
s = box.schema.space.create('test', { id = 512 })
s:create_index('pk')
]] }, function(get)
    it('T#2642: the type of the session', function()
        local conn = net.connect(get().uri)
        assert.equal('binary', (conn:eval 'return box.session.type()'))
        assert.equal('guest', (conn:eval 'return box.session.user()'))
        conn:close()
    end)

    it('T#822: a failed call leaves a transaction open', function()
        local conn = net.connect(get().uri)
        assert.equal('no', message(conn.eval, conn, "box.begin() s:replace { 1 } error('no', 0)"))
        assert.same({}, conn.space.test:select())
        assert.equal('Transaction is active at return from function', message(conn.eval, conn, 'box.begin() s:replace { 1 }'))
        assert.same({}, conn.space.test:select())
        conn:close()
    end)
end)

describe('the list of complaints', function()
    it('names a test for each, which is there', function()
        local text = assert(helpers.read_file 'docs/complaints.md')
        local missing, rows = {}, 0
        for line in text:gmatch '[^\n]+' do
            local file, title = line:match '^| .- | `(spec/[%w_%-]+%.lua)` (.-) |$'
            if file then
                rows = rows + 1
                local source = helpers.read_file(file)
                -- Titles are quoted in the source as Lua wants it.
                if not source or not source:gsub("\\'", "'"):find(title, 1, true) then
                    missing[#missing + 1] = file .. ': ' .. title
                end
            end
        end
        assert.same({}, missing)
        assert.is_true(rows >= 50, rows)
    end)
end)
