-- Tuples that travel with their formats: the features dml_tuple_extension, call_ret_tuple_extension and
-- call_arg_tuple_extension, in both directions.
local helpers = require 'spec.helpers'
local client = require 'spec.server_helpers'
local fiber = require 'cord.fiber'
local msgpack = require 'cord.msgpack'
local netbox = require 'cord.netbox'
local server = require 'cord.server'
local tuple = netbox.tuple

local SELECT, REPLACE, CALL_16, EVAL, CALL, ID = 1, 3, 6, 8, 10, 73
local DATA, TUPLE_FORMATS = 0x30, 0x60
-- The extension 7: a number of a format, and an array.
local TUPLE_1 = '\215\7\0\147\1\163bob\20'

describe('Tuples with their formats', function()
    local srv, conn
    setup(function() fiber.sleep(0.001) end)
    before_each(function()
        srv = server.listen('unix/:' .. helpers.tempdir() .. '/s', {
            eval = true,
            get = function(key) return srv.space.users:get(key) end,
            several = function()
                return srv.space.users:get(1), { { deep = srv.space.users:get(2) } }, tuple.new { 'no', 'names' }, { 1, 2 }
            end,
            lazy = function()
                return setmetatable({}, { __serialize = function() return { srv.space.users:get(1) } end })
            end,
            plain = function() return 1, { 2 } end,
            looks_at = function(t, again)
                return tuple.is(t), t.name or '-', tostring(t), again and again.name or '-'
            end,
        })
        local users = srv:create_space('users', { format = {
            { 'id', 'unsigned' }, { 'name', 'string' }, { name = 'age', type = 'unsigned', is_nullable = true },
        } })
        users:create_index('pk')
        users:insert { 1, 'bob', 20 }
        users:insert { 2, 'al' }
        conn = client.connect(srv:address())
    end)
    after_each(function()
        conn:close()
        srv:stop 'hard'
    end)

    local FORMAT = {
        { name = 'id', type = 'unsigned' }, { name = 'name', type = 'string' },
        { name = 'age', type = 'unsigned', is_nullable = true },
    }

    local function identify(...)
        local _, body = conn:ask(ID, { [0x54] = 10, [0x55] = { ... } })
        return body
    end

    -- The body of a response as bytes.
    local function bytes(kind, body)
        conn:request(kind, body)
        local packet = conn:read((msgpack.decode(conn:read(5))))
        local _, at = msgpack.decode(packet)
        return packet:sub(at)
    end

    it('are announced', function()
        assert.same({ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11 }, identify()[0x55])
    end)

    it('are the results of calls for clients that ask for them', function()
        identify(2, 8)
        local wire = bytes(CALL, { [0x22] = 'get', [0x21] = { 1 } })
        assert.equal('\130\48\221\0\0\0\1' .. TUPLE_1, wire:sub(1, 7 + #TUPLE_1))
        assert.same({ [0] = FORMAT }, msgpack.decode(wire)[TUPLE_FORMATS])
        wire = msgpack.decode(bytes(EVAL, { [0x27] = 'return ...', [0x21] = { 5 } }))
        assert.same({ [DATA] = { 5 }, [TUPLE_FORMATS] = {} }, wire)
        -- As Tarantool, an empty map says that there are none.
        assert.equal('\130\48\221\0\0\0\2\1\145\2\96\128', bytes(CALL, { [0x22] = 'plain', [0x21] = {} }))
        assert.equal('\130\48\221\0\0\0\2\145\1\145\2\96\128', bytes(CALL_16, { [0x22] = 'plain', [0x21] = {} }))
        for _, name in ipairs { 'several', 'lazy' } do
            local body = msgpack.decode(bytes(CALL, { [0x22] = name, [0x21] = {} }))
            assert.same(FORMAT, body[TUPLE_FORMATS][0])
        end
    end)

    it('are plain arrays for others', function()
        assert.equal('\129\48\221\0\0\0\1\147\1\163bob\20', bytes(CALL, { [0x22] = 'get', [0x21] = { 1 } }))
        identify(0, 1, 2)
        assert.equal('\129\48\221\0\0\0\1\145\147\1\163bob\20', bytes(CALL, { [0x22] = 'lazy', [0x21] = {} }))
    end)

    it('are the answers of statements', function()
        identify(7)
        local wire = msgpack.decode(bytes(SELECT, { [0x10] = 512, [0x12] = 10, [0x20] = {} }))
        assert.same({ [512] = FORMAT }, wire[TUPLE_FORMATS])
        assert.same({ { 1, 'bob', 20 }, { 2, 'al' } }, wire[DATA])
        wire = bytes(REPLACE, { [0x10] = 512, [0x21] = { 3, 'c' } })
        assert.equal('\130\48\221\0\0\0\1\199\7\7\205\2\0\146\3\161c\96', wire:sub(1, 18))
        assert.equal('\130\48\221\0\0\0\0\96\128', bytes(SELECT, { [0x10] = 512, [0x12] = 10, [0x20] = { 99 } }))
    end)

    it('are arguments', function()
        local formats = { [7] = { { name = 'id' }, { name = 'name' } } }
        local argument = '\199\6\7\7\146\9\162mo'
        local function call(args, map)
            local body = '\131\34\168looks_at\33' .. args .. '\96' .. msgpack.encode(setmetatable(map, msgpack.map_mt))
            return msgpack.decode(bytes(CALL, body))[DATA]
        end
        assert.same({ true, 'mo', "[9, 'mo']", '-' }, call('\145' .. argument, formats))
        assert.same({ true, 'mo', "[9, 'mo']", 'mo' }, call('\146' .. argument .. argument, formats))
        -- Without their formats they have no names, whatever came before.
        assert.same({ true, '-', "[9, 'mo']", '-' }, call('\145' .. argument, {}))
        assert.same({ true, '-', "[9, 'mo']", '-' }, call('\145' .. argument, { [8] = formats[7] }))
    end)

    it('are refused when they are broken', function()
        -- Cut short, no array, nothing, a map, more than one value, less than it says, a number that is text.
        local cases = {
            '\145\199\2\7\7\145', '\145\199\1\7\7', '\145\199\0\7', '\145\213\7\7\128', '\145\199\3\7\7\144\144',
            '\145\199\3\7\7\147\1', '\145\199\3\7\161x\144', '\145\199\3\7\7\145\193',
        }
        for _, args in ipairs(cases) do
            local header, body = conn:ask(CALL, '\130\34\168looks_at\33' .. args)
            assert.same({ 0x8014, 'Invalid MsgPack - invalid extension' }, { header[0], body[0x31] })
        end
        local header = conn:ask(CALL, '\131\34\165plain\33\144\96\129\5\6')
        assert.equal(0x8000, header[0] - header[0] % 0x8000)
        assert.same({ 1, { 2 } }, select(2, conn:call 'plain')[DATA])
    end)

    it('have names for the program that serves', function()
        local t = srv.space.users:get(1)
        assert.same({ true, 'bob', 20, "[1, 'bob', 20]" }, { tuple.is(t), t.name, t.age, tostring(t) })
        assert.equal('al', srv.space.users:select()[2].name)
        assert.equal('x', srv.space.users:replace({ 1, 'x' }).name)
        srv.space.users:format { 'id', 'title' }
        assert.same({ 'x' }, { srv.space.users:get(1).title, srv.space.users:get(1).name })
    end)

    it('reach net.box with their names', function()
        local c = netbox.connect(srv:address())
        local t = c:call('get', { 1 })
        assert.same({ true, 'bob', 20 }, { tuple.is(t), t.name, t.age })
        local one, deep, bare, list = c:call 'several'
        assert.same({ 'bob', 'al', true, false }, { one.name, deep[1].deep.name, tuple.is(bare), tuple.is(list) })
        assert.equal('bob', c:call('lazy')[1].name)
        local lazy = netbox.connect(srv:address(), { fetch_schema = false })
        assert.equal('al', lazy.space.users:get(2).name)
        c:close()
        lazy:close()
    end)

    it('are the same bytes whether tables are read in place or through the C API', function()
        local NULL = msgpack.NULL
        local named = tuple.metatable_of { { name = 'id' }, { name = '__serialize' }, { name = '__tuple_format' } }
        local values = {
            srv.space.users:get(1), tuple.new {}, tuple.new { 1, NULL, 3 }, setmetatable({ 1, 2, 3 }, named),
            setmetatable({ [3] = 'late' }, named), setmetatable({ 1, nil, nil, nil, 5 }, named),
            tuple.new { tuple.new { srv.space.users:get(2) }, { a = tuple.new { 1 } } },
            { srv.space.users:get(1), { srv.space.users:get(1) } }, setmetatable({ 1 }, { __tuple_format = 5 }),
            tuple.new { ('x'):rep(300) }, setmetatable({ tuple.new { 1 } }, msgpack.array_mt),
        }
        srv.functions.value = function(i) return values[i] end
        local function all()
            local list = {}
            for i = 1, #values do list[#list + 1] = bytes(CALL, { [0x22] = 'value', [0x21] = { i } }) end
            for i = 1, #values do list[#list + 1] = msgpack.encode(values[i]) end
            return list
        end
        for _, features in ipairs { { 8 }, {} } do
            identify(unpack(features))
            local direct = all()
            msgpack.ext.layout(false)
            local slow = all()
            msgpack.ext.layout(true)
            assert.same(slow, direct)
        end
    end)
end)
