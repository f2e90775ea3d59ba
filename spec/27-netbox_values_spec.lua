-- Values over a connection to a real server: each comes back as it went, and the server encodes it to the same bytes.
local helpers = require 'spec.helpers'
local netbox = require 'cord.netbox'
local msgpack = require 'cord.msgpack'
local decimal = require 'cord.decimal'
local uuid = require 'cord.uuid'

local INIT = [[
    function echo(...) return ... end
    function encoded(...)
        local out = {}
        for i = 1, select('#', ...) do out[i] = require('msgpack').encode((select(i, ...))) end
        return out
    end
]]

-- Both sides of every boundary of the formats; what a double cannot hold; texts of every length class; extensions.
local SCALARS = {
    0, 1, 127, 128, 255, 256, 65535, 65536, 2 ^ 32 - 1, 2 ^ 32, 2 ^ 53, -1, -32, -33, -128, -129, -32768, -32769, -2 ^ 31,
    -2 ^ 31 - 1, -2 ^ 53, 1.5, -0.1, 1e300, 9007199254740993ULL, 18446744073709551615ULL, -9223372036854775807LL - 1,
    '', 'a', ('x'):rep(31), ('x'):rep(32), ('x'):rep(255), ('x'):rep(256), ('x'):rep(65536), '\0\255', true, false,
    decimal.new('1.50'), decimal.new('-99999999999999999999999999999999999999'), decimal.new('1e-10'),
    uuid.fromstr('64d22e4d-ac92-4a23-899a-e59f34af5479'),
}
local TABLES = { {}, { 1, 2, { 3 } }, { a = 1 }, { { x = { 1, 'y' } } } }

helpers.describe_server('values over net.box', { init = INIT }, function(get)
    local c
    before_each(function() c = netbox.connect(get().uri) end)
    after_each(function() c:close() end)

    it('come back as they went', function()
        for i, value in ipairs(SCALARS) do
            local back = c:call('echo', { value })
            assert.is_true(back == value, ('value %d (%s) came back as %s'):format(i, tostring(value), tostring(back)))
            assert.equal(msgpack.encode(value), msgpack.encode(back))
        end
        for _, value in ipairs(TABLES) do
            assert.same(value, (c:call('echo', { value })))
        end
    end)

    it('are the same bytes to the server', function()
        local theirs = c:call('encoded', SCALARS)
        for i, value in ipairs(SCALARS) do
            assert.equal(msgpack.encode(value), theirs[i], 'value ' .. i .. ' (' .. tostring(value) .. ')')
        end
        for _, value in ipairs(TABLES) do
            assert.equal(msgpack.encode(value), c:call('encoded', { value })[1])
        end
    end)
end)
