-- What Tarantool 3.9 answered to recorded requests (spec/fixtures), the embedded server answers too: code, text, payload
-- and data of each, in the same order of the same keys.
local helpers = require 'spec.helpers'
local client = require 'spec.server_helpers'
local errors = require 'cord.error'
local fiber = require 'cord.fiber'
local json = require 'cord.json'
local msgpack = require 'cord.msgpack'
local netbox = require 'cord.netbox'
local server = require 'cord.server'

local exchanges = json.decode(helpers.read_file 'spec/fixtures/iproto-newest.json').exchanges

-- Names of exchanges that are about something else: SQL, values that only the recording server's functions make, the
-- contents of system spaces.
local ELSEWHERE = {
    ['call types'] = true, ['call decimals'] = true, ['call uuids'] = true, ['call datetimes'] = true,
    ['call intervals'] = true, ['call containers'] = true, ['call raise_table'] = true,
    ['schema fetch _vspace'] = true, ['schema fetch _vspace_sequence'] = true,
    ['schema fetch _vindex'] = true, ['schema fetch _vcollation'] = true,
    ['call raise_stack'] = true, ['watch box.id'] = true, ['watch box.status'] = true,
}
-- The connection each exchange belongs to; by their syncs they were recorded on several at once.
local function connection_of(number)
    if number >= 120 then return number end
    if number >= 113 then return 'malformed' end
    if number == 104 then return 'first' end
    for _, range in ipairs {
        { 6, 9, 'auth' }, { 67, 70, 'tuples' }, { 71, 73, 'arrays' }, { 74, 75, 'no ID' }, { 102, 112, 'watch' },
    } do
        if number >= range[1] and number <= range[2] then return range[3] end
    end
    return 'first'
end

local function bytes_of(hex)
    return (hex:gsub('%x%x', function(byte) return string.char(tonumber(byte, 16)) end))
end

-- A value as text, whatever the order of its keys.
local function text(value)
    if type(value) == 'table' then
        local keys, parts = {}, {}
        for key in pairs(value) do keys[#keys + 1] = key end
        table.sort(keys, function(x, y) return tostring(x) < tostring(y) end)
        for i, key in ipairs(keys) do parts[i] = tostring(key) .. ': ' .. text(value[key]) end
        return '{' .. table.concat(parts, ', ') .. '}'
    elseif errors.is(value) then
        return 'error ' .. text(value:unpack().message)
    end
    return value == nil and 'null' or type(value) == 'string' and ('%q'):format(value) or tostring(value)
end

-- A packet without what differs from run to run: files, lines, versions of the schema, numbers of formats; and without
-- the one feature the embedded server does not have.
local function normal(header, body)
    if header == nil then return 'nothing' end
    header[5] = nil
    body = body or {}
    for _, entry in ipairs(body[0x52] and body[0x52][0] or {}) do
        entry[1], entry[2] = nil, nil
    end
    if body[0x60] then
        local list = {}
        for _, format in pairs(body[0x60]) do list[#list + 1] = text(format) end
        table.sort(list)
        -- Formats without names are one here.
        while list[2] == '{}' or list[#list] == list[#list - 1] and #list > 1 do list[#list] = nil end
        body[0x60] = list
    end
    if body[0x55] and body[0x55][#body[0x55]] == 12 then body[0x55][#body[0x55]] = nil end
    return text(header) .. ' ' .. text(body)
end

local function start()
    local srv
    srv = server.listen('unix/:' .. helpers.tempdir() .. '/s', {
        eval = true,
        users = { alice = 's3cret', guest = true },
        auth_delay = 0,
        nothing = function() end,
        return_nil_err = function() return nil, errors.new { code = 0, reason = 'as value' } end,
        echo = function(...) return ... end,
        push3 = function()
            for i = 1, 3 do server.push { 'part', i } end
            return 'done'
        end,
        raise_string = function() error('srv.lua:23: plain string', 0) end,
        raise_box = function() errors.raise(errors.new(errors.NO_SUCH_USER, 'bob')) end,
        raise_stack = function()
            local e = errors.new { type = 'Outer', reason = 'top' }
            e:set_prev(select(2, pcall(server.push)))
            e:raise()
        end,
        errors = function() return errors.new { type = 'MyError', reason = 'outer', code = 42 } end,
        tuples = function()
            return srv.space.users:get(1), netbox.tuple.new { 'k', 1, 'v' }, netbox.tuple.new { 1, 'x' }
        end,
        set_color = function(color) srv:broadcast('color', color) end,
    })
    local users = srv:create_space('users', { id = 700, format = {
        { name = 'id', type = 'unsigned' }, { name = 'name', type = 'string' },
        { name = 'age', type = 'unsigned', is_nullable = true }, { name = 'tags', type = 'array', is_nullable = true },
    } })
    users:create_index('pk')
    users:create_index('by_name', { parts = { { field = 2, type = 'string', collation = 'unicode_ci' } }, unique = false })
    users:create_index('by_age', { parts = { { field = 3, type = 'unsigned', is_nullable = true } }, unique = false })
    for i = 1, 20 do users:insert { i, 'user' .. i, 20 + i, { 'a', 'b' } } end
    srv:create_space('plain', { id = 701 }):create_index('pk', { type = 'HASH', parts = { { 1, 'string' } } })
    srv:create_space('seqd', { id = 702 }):create_index('pk', { sequence = true })
    srv:broadcast('color', 'red')
    return srv
end

describe('recorded requests', function()
    setup(function() fiber.sleep(0.001) end)

    it('are answered as Tarantool 3.9 did', function()
        local srv = start()
        local conns, differences = {}, {}
        for i, exchange in ipairs(exchanges) do
            local name, key = exchange.name, connection_of(i - 1)
            local is_auth = name:find '^auth chap' or name:find '^auth wrong'
            if exchange.request ~= '' and not ELSEWHERE[name] and not name:find '^sql' and not is_auth then
                local conn = conns[key] or client.connect(srv:address())
                conns[key] = conn
                conn:send(bytes_of(exchange.request))
                for _, expected in ipairs(exchange.responses) do
                    local packet = bytes_of(expected)
                    local header, at = msgpack.decode(packet, 6)
                    local wanted = normal(header, at <= #packet and msgpack.decode(packet, at) or nil)
                    local got = normal(conn:response(2))
                    if wanted ~= got then
                        differences[#differences + 1] = ('%d %s\n   wanted %s\n   got    %s'):format(i - 1, name, wanted, got)
                    end
                end
            end
        end
        for _, conn in pairs(conns) do conn:close() end
        srv:stop 'hard'
        assert.equal('', table.concat(differences, '\n'))
    end)
end)
