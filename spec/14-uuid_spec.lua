-- cord.uuid: texts, bytes in both orders, comparison; values printed by Tarantool's own module.
local ffi = require('ffi')
local uuid = require('cord.uuid')
local helpers = require('spec.ext_helpers')

local TEXT = '64d22e4d-ac92-4a23-899a-e59f34af5479'
local HOST = '\x4d\x2e\xd2\x64\x92\xac\x23\x4a\x89\x9a\xe5\x9f\x34\xaf\x54\x79'
local NETWORK = '\x64\xd2\x2e\x4d\xac\x92\x4a\x23\x89\x9a\xe5\x9f\x34\xaf\x54\x79'

describe('cord.uuid', function()
    it('reads and writes text', function()
        local value = uuid.fromstr(TEXT)
        assert.equal(TEXT, tostring(value))
        assert.equal(TEXT, value:str())
        assert.equal(TEXT, tostring(uuid.fromstr(TEXT:upper())))
        assert.equal('ffffffff-ffff-ffff-ffff-ffffffffffff', tostring(uuid.fromstr(('f'):rep(8) .. '-ffff-ffff-ffff-'
            .. ('f'):rep(12))))
    end)

    it('gives nil for what is no UUID', function()
        for _, text in ipairs({ '', 'x', TEXT .. '0', TEXT:sub(2), (TEXT:gsub('-', '')), ' ' .. TEXT:sub(1, 35),
            (TEXT:gsub('6', 'g')), TEXT .. '\0' }) do
            assert.is_nil(uuid.fromstr(text))
        end
        assert.has_error(function() uuid.fromstr(1) end, 'fromstr(str)')
    end)

    it('reads and writes bytes in both orders', function()
        local value = uuid.fromstr(TEXT)
        for _, order in ipairs({ 'l', 'h', 'host' }) do
            assert.equal(HOST, value:bin(order))
            assert.equal(TEXT, tostring(uuid.frombin(HOST, order)))
        end
        assert.equal(HOST, value:bin())
        for _, order in ipairs({ 'b', 'n', 'network' }) do
            assert.equal(NETWORK, value:bin(order))
            assert.equal(TEXT, tostring(uuid.frombin(NETWORK, order)))
        end
        assert.equal(TEXT, tostring(value))
        assert.has_error(function() value:bin('q') end, 'invalid byteorder, valid is l, b, h, n')
        assert.has_error(function() uuid.frombin(HOST, 'q') end, 'invalid byteorder, valid is l, b, h, n')
        assert.has_error(function() uuid.frombin('x') end, 'frombin(bin, [byteorder])')
    end)

    it('makes random ones', function()
        local seen = {}
        for _ = 1, 100 do
            local text = tostring(uuid.new())
            assert.truthy(text:find('^%x+%-%x+%-4%x+%-[89ab]%x+%-%x+$'))
            assert.is_nil(seen[text])
            seen[text] = true
        end
        assert.equal(36, #uuid.str())
        assert.equal(16, #uuid.bin())
        assert.equal(16, #uuid.bin('n'))
        assert.is_true(uuid.is_uuid(uuid()))
        assert.has_error(function() uuid.bin('q') end, 'invalid byteorder, valid is l, b, h, n')
    end)

    it('compares in the order of the text', function()
        local small, large = uuid.fromstr(TEXT), uuid.fromstr('64d22e4e-0000-0000-0000-000000000000')
        assert.is_true(small < large and small <= large and small ~= large)
        assert.is_false(large < small)
        assert.is_true(small == uuid.frombin(HOST) and small <= uuid.frombin(HOST))
        assert.is_true(small == TEXT and small < tostring(large) and TEXT < large)
        assert.is_false(small == 'x')
        assert.is_false(small == 1)
        assert.is_false(small == nil)
        assert.has_error(function() return small < 1 end, 'incorrect value to convert to uuid as 2 argument')
        assert.has_error(function() return 'x' < small end, 'incorrect value to convert to uuid as 1 argument')
    end)

    it('knows the nil one and its own type', function()
        assert.equal('00000000-0000-0000-0000-000000000000', tostring(uuid.NULL))
        assert.is_true(uuid.NULL:isnil())
        assert.is_false(uuid.new():isnil())
        assert.is_true(uuid.is_uuid(uuid.NULL))
        assert.is_false(uuid.is_uuid(TEXT))
        assert.is_false(uuid.is_uuid(nil))
        assert.is_true(ffi.istype('struct tt_uuid', uuid.new()))
        assert.equal(0x64d22e4d, uuid.fromstr(TEXT).time_low)
        assert.has_error(function() uuid.NULL.isnil(1) end, 'Usage: uuid:isnil()')
        assert.has_error(function() uuid.NULL.str(1) end, 'Usage: uuid:str()')
        assert.has_error(function() uuid.NULL.bin(1) end, 'Usage: uuid:bin([byteorder])')
    end)

    it('packs into the MessagePack extension in network byte order, and back', function()
        local ext = require('cord.msgpack').ext
        assert.equal(NETWORK, ext.by_ctype[tonumber(ffi.typeof('struct tt_uuid'))].encode(uuid.fromstr(TEXT)))
        assert.equal(TEXT, tostring(ext.decoders[2](NETWORK)))
        assert.is_true(uuid.fromstr(TEXT) == ext.decoders[2](NETWORK))
        for _, payload in ipairs({ '', NETWORK .. '0', NETWORK:sub(2) }) do
            assert.has_error(function() ext.decoders[2](payload) end, 'invalid uuid')
        end
    end)

    helpers.with_tarantool('agrees with the real msgpack', function(run)
        local output = run([[
            local uuid, msgpack = require('uuid'), require('msgpack')
            local bytes = msgpack.encode(uuid.fromstr(arg[1]))
            print((bytes:gsub('.', function(char) return ('%02x'):format(char:byte()) end)))
        ]], { TEXT })
        assert.equal('d802' .. helpers.hex(NETWORK), output:match('%x+'))
    end)
end)
