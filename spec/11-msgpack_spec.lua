local ffi = require('ffi')
local msgpack = require('cord.msgpack')
local buffer = require('cord.buffer')
local cord_error = require('cord.error')
local ext = require('spec.ext_helpers')
local hex, unhex = ext.hex, ext.unhex

-- Source of a value, and its bytes: the source is run here and in the real Tarantool.
local VECTORS = {
    { '0', '00' },
    { '127', '7f' },
    { '128', 'cc80' },
    { '255', 'ccff' },
    { '256', 'cd0100' },
    { '65535', 'cdffff' },
    { '65536', 'ce00010000' },
    { '4294967295', 'ceffffffff' },
    { '4294967296', 'cf0000000100000000' },
    { '-1', 'ff' },
    { '-32', 'e0' },
    { '-33', 'd0df' },
    { '-128', 'd080' },
    { '-129', 'd1ff7f' },
    { '-32768', 'd18000' },
    { '-32769', 'd2ffff7fff' },
    { '-2147483648', 'd280000000' },
    { '-2147483649', 'd3ffffffff7fffffff' },
    { '2 ^ 53', 'cf0020000000000000' },
    { '2 ^ 53 + 2', 'cf0020000000000002' },
    { '2 ^ 63', 'cf8000000000000000' },
    { '2 ^ 64 - 2048', 'cffffffffffffff800' },
    { '2 ^ 64', 'cb43f0000000000000' },
    { '-2 ^ 63', 'd38000000000000000' },
    { '-2 ^ 63 - 2048', 'cbc3e0000000000001' },
    { '-0.0', '00' },
    { '1.5', 'cb3ff8000000000000' },
    { '-1.5', 'cbbff8000000000000' },
    { '1e300', 'cb7e37e43c8800759c' },
    { '1 / 0', 'cb7ff0000000000000' },
    { '-1 / 0', 'cbfff0000000000000' },
    { '18446744073709551615ULL', 'cfffffffffffffffff' },
    { '-9223372036854775807LL - 1LL', 'd38000000000000000' },
    { '5ULL', '05' },
    { '-5LL', 'fb' },
    { "ffi.cast('double', 5)", 'cb4014000000000000' },
    { "ffi.cast('float', 1.5)", 'ca3fc00000' },
    { "ffi.new('int8_t', -1)", 'ff' },
    { "ffi.new('uint8_t', 255)", 'ccff' },
    { "ffi.new('int16_t', -300)", 'd1fed4' },
    { "ffi.new('uint16_t', 300)", 'cd012c' },
    { "ffi.new('int32_t', -70000)", 'd2fffeee90' },
    { "ffi.new('uint32_t', 70000)", 'ce00011170' },
    { "ffi.new('bool', true)", 'c3' },
    { "ffi.cast('void *', 0)", 'c0' },
    { 'nil', 'c0' },
    { 'msgpack.NULL', 'c0' },
    { 'true', 'c3' },
    { 'false', 'c2' },
    { "''", 'a0' },
    { "'abc'", 'a3616263' },
    { "'a\\0b'", 'a3610062' },
    { "'\\255\\254'", 'a2fffe' },
    { "('x'):rep(31)", 'bf' .. ('78'):rep(31) },
    { "('x'):rep(32)", 'd920' .. ('78'):rep(32) },
    { "('x'):rep(256)", 'da0100' .. ('78'):rep(256) },
    { "('x'):rep(65536)", 'db00010000' .. ('78'):rep(65536) },
    { '{}', '90' },
    { '{1, 2, 3}', '93010203' },
    { "{1, 2, 3, 'foo', 'bar'}", '95010203a3666f6fa3626172' },
    { '{1, nil, 3}', '9301c003' },
    { '{[3] = 3}', '93c0c003' },
    { '{[11] = 1}', '810b01' },
    { '{[10] = 1}', '9a' .. ('c0'):rep(9) .. '01' },
    { '{[0] = 1}', '810001' },
    { '{[1.5] = 1}', '81cb3ff800000000000001' },
    { '{[-1] = 1}', '81ff01' },
    { 'setmetatable({}, msgpack.map_mt)', '80' },
    { 'setmetatable({}, {__serialize = "map"})', '80' },
    { 'setmetatable({1}, {__serialize = "mapping"})', '810101' },
    { 'setmetatable({}, {__serialize = "seq"})', '90' },
    { 'setmetatable({a = 1, 5}, {__serialize = "array"})', '9105' },
    { 'setmetatable({a = 1}, {__serialize = function(t) return {t.a} end})', '9101' },
    { 'setmetatable({}, {__serialize = function() return 5 end})', '05' },
    { 'setmetatable({}, {__index = {1}})', '90' },
    { '{a = {b = {c = {}}}}', '81a16181a16281a16390' },
    { '(function() local t = {} for i = 1, 16 do t[i] = i end return t end)()', 'dc00100102030405060708090a0b0c0d0e0f10' },
}

local function value_of(source)
    return assert(loadstring('local ffi, msgpack = ... return ' .. source))(ffi, msgpack)
end

-- What `fn(...)` raises, as text; error objects must be of `kind`, nil means a plain string.
local function raised(kind, fn, ...)
    local ok, e = pcall(fn, ...)
    assert.is_false(ok)
    assert.equal(kind, type(e) == 'cdata' and e.type or nil)
    return tostring(e)
end

local function nested(depth)
    local t = {}
    for _ = 2, depth do
        t = { t }
    end
    return t
end

describe('cord.msgpack', function()
    describe('encode', function()
        for _, vector in ipairs(VECTORS) do
            it('gives the bytes of ' .. vector[1], function()
                assert.equal(vector[2], hex(msgpack.encode(value_of(vector[1]))))
            end)
        end

        it('makes NaN a double', function()
            assert.truthy(hex(msgpack.encode(0 / 0)):match('^cb[7f]ff8000000000000$'))
        end)

        it('writes 16 and more pairs behind a longer header', function()
            for _, count in ipairs({ 15, 16, 100, 65535, 65536 }) do
                local t = {}
                for i = 1, count do
                    t['k' .. i] = i
                end
                local bytes = msgpack.encode(t)
                local header = count < 16 and '8f' or count < 65536 and ('de%04x'):format(count)
                    or ('df%08x'):format(count)
                assert.equal(header, hex(bytes:sub(1, #header / 2)))
                assert.same(t, (msgpack.decode(bytes)))
            end
        end)

        it('appends to a buffer', function()
            local buf = buffer.ibuf()
            assert.equal(4, msgpack.encode({ 1, 2, 3 }, buf))
            assert.equal(1, msgpack.encode(5, buf))
            assert.equal('9301020305', hex(ffi.string(buf.rpos, buf:size())))
            assert.equal(1, msgpack.encode(6, ffi.cast('struct ibuf &', buf)))
            assert.equal(6, buf:size())
        end)

        it('leaves the buffer as it was when it fails', function()
            local buf = buffer.ibuf()
            msgpack.encode(1, buf)
            raised('LuajitError', msgpack.encode, { ('x'):rep(100000), print }, buf)
            assert.equal('01', hex(ffi.string(buf.rpos, buf:size())))
        end)

        it('refuses what has no form', function()
            assert.equal("unsupported Lua type 'function'", raised('LuajitError', msgpack.encode, print))
            assert.equal("unsupported Lua type 'thread'", raised('LuajitError', msgpack.encode, coroutine.create(print)))
            assert.equal("unsupported Lua type 'userdata'", raised('LuajitError', msgpack.encode, newproxy()))
            assert.equal("unsupported Lua type 'cdata'", raised('LuajitError', msgpack.encode, ffi.new('struct { int a; }')))
            assert.equal("unsupported Lua type 'cdata'", raised('LuajitError', msgpack.encode, ffi.cast('void *', 8)))
            assert.equal("unsupported Lua type 'function'", raised('LuajitError', msgpack.encode, { a = { 1, print } }))
            assert.equal("unsupported Lua type 'function'", raised('LuajitError', msgpack.encode, { [print] = 1 }))
        end)

        it('refuses wrong arguments', function()
            assert.truthy(raised(nil, msgpack.encode):find('msgpack.encode: a Lua object expected', 1, true))
            for _, wrong in ipairs({ 1, 'x', {}, ffi.new('int') }) do
                assert.truthy(raised(nil, msgpack.encode, 1, wrong)
                    :find("msgpack.encode: argument 2 must be of type 'struct ibuf'", 1, true))
            end
        end)

        it('stops at the depth limit, cycles included', function()
            assert.equal(('91'):rep(127) .. '90', hex(msgpack.encode(nested(128))))
            assert.equal('Too high nest level - 129', raised('LuajitError', msgpack.encode, nested(129)))
            local array, map = {}, {}
            array[1], map.x = array, map
            assert.equal('Too high nest level - 129', raised('LuajitError', msgpack.encode, array))
            assert.equal('Too high nest level - 129', raised('LuajitError', msgpack.encode, map))
            local endless = setmetatable({}, { __serialize = function(self) return self end })
            assert.equal('Too high nest level - 129', raised('LuajitError', msgpack.encode, endless))
        end)

        it('passes on what __serialize raises', function()
            local function raising(value)
                return setmetatable({}, { __serialize = function() error(value, 0) end })
            end
            assert.equal('boom', raised('LuajitError', msgpack.encode, raising('boom')))
            local e = cord_error.new(32, 'own')
            local ok, caught = pcall(msgpack.encode, { raising(e) })
            assert.is_false(ok)
            assert.is_true(rawequal(e, caught))
            for _, wrong in ipairs({ 'xyz', 5, true, {} }) do
                assert.equal('invalid __serialize value',
                    raised('LuajitError', msgpack.encode, setmetatable({}, { __serialize = wrong })))
            end
        end)

        it('asks userdata and cdata for __serialize', function()
            local object = newproxy(true)
            getmetatable(object).__index = { __serialize = function() return { 7 } end }
            assert.equal('9107', hex(msgpack.encode(object)))
            assert.equal('81a16b9107', hex(msgpack.encode({ k = object })))
            local ctype = ffi.metatype('struct { int cord_msgpack_spec; }', {
                __index = { __serialize = function(self) return self.cord_msgpack_spec end },
            })
            assert.equal('912a', hex(msgpack.encode({ ctype(42) })))
        end)

        it('may be called again from __serialize', function()
            local inner = setmetatable({}, { __serialize = function() return msgpack.encode({ 1, 2 }) end })
            assert.equal('93a3920102a39201020' .. '3', hex(msgpack.encode({ inner, inner, 3 })))
        end)

        it('keeps the real type of a table that hides its metatable', function()
            local t = setmetatable({}, { __serialize = 'map', __metatable = 'hidden' })
            assert.equal('80', hex(msgpack.encode(t)))
        end)

        it('names the place of the caller in the trace', function()
            local ok, e = pcall(function() msgpack.encode(print) end)
            assert.is_false(ok)
            assert.equal(debug.getinfo(1, 'S').short_src, e.trace[1].file)
        end)
    end)

    describe('decode', function()
        it('gives back what was encoded', function()
            for _, vector in ipairs(VECTORS) do
                local value, position = msgpack.decode(unhex(vector[2]))
                assert.equal(#vector[2] / 2 + 1, position)
                -- Floats come back as numbers, whatever they were forced to.
                if not vector[1]:find('ffi.cast', 1, true) then
                    assert.equal(vector[2], hex(msgpack.encode(value)), vector[1])
                end
            end
        end)

        it('makes numbers of integers below 1e14 and cdata of larger ones', function()
            local function decoded(bytes)
                return (msgpack.decode(unhex(bytes)))
            end
            assert.equal(99999999999999, decoded('cf00005af3107a3fff'))
            assert.equal('number', type(decoded('cf00005af3107a3fff')))
            assert.equal('100000000000000ULL', tostring(decoded('cf00005af3107a4000')))
            assert.equal('18446744073709551615ULL', tostring(decoded('cfffffffffffffffff')))
            assert.equal(-99999999999999, decoded('d3ffffa50cef85c001'))
            assert.equal('-100000000000000LL', tostring(decoded('d3ffffa50cef85c000')))
            assert.equal('-9223372036854775808LL', tostring(decoded('d38000000000000000')))
            assert.is_true(ffi.istype('uint64_t', decoded('cfffffffffffffffff')))
            assert.is_true(ffi.istype('int64_t', decoded('d38000000000000000')))
        end)

        it('reads every form of a number, shortest or not', function()
            for bytes, number in pairs({
                ['cc05'] = 5,
                ['cd0005'] = 5,
                ['ce00000005'] = 5,
                ['cf0000000000000005'] = 5,
                ['d005'] = 5,
                ['d1fffb'] = -5,
                ['d2fffffffb'] = -5,
                ['d3fffffffffffffffb'] = -5,
                ['ca3fc00000'] = 1.5,
                ['cb4014000000000000'] = 5,
            }) do
                assert.equal(number, (msgpack.decode(unhex(bytes))))
            end
        end)

        it('makes NULL of nil, in maps too', function()
            assert.is_true(msgpack.decode('\192') == nil)
            assert.equal('cdata', type((msgpack.decode('\192'))))
            local map = msgpack.decode(unhex('81a161c0'))
            assert.is_true(map.a == nil)
            assert.equal('cdata', type(map.a))
        end)

        it('marks arrays and maps, until they are changed', function()
            local array, map = msgpack.decode('\144'), msgpack.decode('\128')
            assert.equal(msgpack.array_mt, getmetatable(array))
            assert.equal(msgpack.map_mt, getmetatable(map))
            assert.equal('80', hex(msgpack.encode(map)))
            map[1] = 1
            assert.is_nil(getmetatable(map))
            assert.equal('9101', hex(msgpack.encode(map)))
            array.x = 1
            assert.equal('81a17801', hex(msgpack.encode(array)))
        end)

        it('starts where it is told and says where the next value is', function()
            local bytes = unhex('01a161c3')
            local value, position = msgpack.decode(bytes)
            assert.same({ 1, 2 }, { value, position })
            value, position = msgpack.decode(bytes, position)
            assert.same({ 'a', 4 }, { value, position })
            value, position = msgpack.decode_unchecked(bytes, 4)
            assert.same({ true, 5 }, { value, position })
            assert.truthy(raised(nil, msgpack.decode, bytes, 5):find('msgpack.decode: offset is out of bounds', 1, true))
            assert.truthy(raised(nil, msgpack.decode, bytes, 0):find('msgpack.decode: offset is out of bounds', 1, true))
            assert.truthy(raised(nil, msgpack.decode, bytes, 'x'):find('number expected', 1, true))
        end)

        it('reads memory through pointers', function()
            local bytes = unhex('93010203c3')
            local pointer = ffi.cast('const char *', bytes)
            local value, next_one = msgpack.decode(pointer, #bytes)
            assert.same({ 1, 2, 3 }, value)
            assert.equal(4, next_one - pointer)
            assert.is_true(ffi.istype('const char *', next_one))
            assert.equal(true, (msgpack.decode_unchecked(next_one)))
            local rpos
            rpos, value = msgpack.ibuf_decode(pointer)
            assert.same({ 1, 2, 3 }, value)
            assert.equal(4, rpos - pointer)
            raised('ClientError', msgpack.decode, pointer, 2)
            assert.truthy(raised(nil, msgpack.decode, pointer, -1):find("msgpack.decode: size can't be negative", 1, true))
            assert.truthy(raised(nil, msgpack.ibuf_decode, ffi.cast('char *', nil)):find('rpos is null', 1, true))
        end)

        it('refuses wrong arguments', function()
            for _, fn in ipairs({ msgpack.decode, msgpack.decode_unchecked }) do
                for _, wrong in ipairs({ 1, true, {}, ffi.new('int'), print }) do
                    assert.truthy(raised(nil, fn, wrong):find("msgpack.decode: a Lua string or 'char *' expected", 1, true))
                end
                assert.truthy(raised(nil, fn):find("msgpack.decode: a Lua string or 'char *' expected", 1, true))
            end
        end)

        it('names what is broken, with its offset', function()
            for bytes, offset in pairs({
                ['a3616'] = 3, ['92'] = 1, ['9201'] = 2, ['81a161'] = 3, ['cf01'] = 2, ['c7'] = 1, ['d4'] = 1, ['d401'] = 2,
                ['dd'] = 1, ['ddffffffff'] = 5, ['dfffffffff'] = 5, ['dbffffffff'] = 5, ['c6ffffffff'] = 5, ['c9ffffffff01'] = 6,
            }) do
                local ok, e = pcall(msgpack.decode, unhex(bytes:sub(1, #bytes - #bytes % 2)))
                assert.is_false(ok)
                assert.equal('Invalid MsgPack - truncated input', e.message, bytes)
                assert.equal(20, e.code)
                assert.equal(math.floor(#bytes / 2), e.offset, bytes .. offset)
            end
            local ok, e = pcall(msgpack.decode, unhex('9201c1'))
            assert.is_false(ok)
            assert.equal('Invalid MsgPack - illegal code', e.message)
            assert.equal(2, e.offset)
        end)

        it('takes no more memory than the input is long', function()
            collectgarbage()
            local before = collectgarbage('count')
            for _, bytes in ipairs({ 'ddffffffff', 'dfffffffff', 'dd7fffffff01', 'df7fffffff0101', '91ddffffff00' }) do
                raised('ClientError', msgpack.decode, unhex(bytes))
            end
            assert.is_true(collectgarbage('count') - before < 100)
        end)

        it('stops at the depth limit', function()
            assert.equal(('91'):rep(127) .. '90', hex(msgpack.encode((msgpack.decode(unhex(('91'):rep(127) .. '90'))))))
            assert.equal('Too high nest level - 129', raised('LuajitError', msgpack.decode, unhex(('91'):rep(200) .. '90')))
            assert.equal('Too high nest level - 129', raised('LuajitError', msgpack.decode, ('\145'):rep(1000000)))
        end)

        it('refuses keys that Lua tables cannot have', function()
            assert.equal('table index is NaN', raised('LuajitError', msgpack.decode, unhex('81cb7ff800000000000001')))
            assert.equal('cdata', type((next((msgpack.decode(unhex('81c001')))))))
        end)

        it('refuses unknown extensions', function()
            assert.truthy(raised(nil, msgpack.decode, unhex('d47f01'))
                :find('msgpack.decode: unsupported extension: 127', 1, true))
            assert.truthy(raised(nil, msgpack.decode, unhex('92d4ff0101'))
                :find('msgpack.decode: unsupported extension: -1', 1, true))
        end)

        it('says which extension is broken, and why', function()
            local ok, e = pcall(msgpack.decode, unhex('d40201'))
            assert.is_false(ok)
            assert.equal('Invalid MsgPack - invalid extension', e.message)
            assert.equal(2, e.ext_type)
            assert.equal('invalid uuid', e.prev.message)
        end)

        it('makes a value or an error of any bytes', function()
            local seed = os.time()
            math.randomseed(seed)
            local samples = { msgpack.encode({ { id = 1, name = 'x', tags = { 'a', 2, 2.5 } }, cord_error.new(36, 's') }) }
            for i, vector in ipairs(VECTORS) do
                samples[i + 1] = unhex(vector[2]):sub(1, 100)
            end
            for _ = 1, 4000 do
                local sample = samples[math.random(#samples)]
                local at = math.random(#sample)
                local bytes = sample:sub(1, at - 1) .. string.char(math.random(0, 255)) .. sample:sub(at + 1)
                local ok, value, position = pcall(msgpack.decode, bytes)
                if ok then
                    assert.is_true(position > 1 and position <= #bytes + 1)
                else
                    assert.is_true(type(value) == 'string' or cord_error.is(value))
                end
            end
        end)

        it('leaves nothing on the stack after failures', function()
            for _ = 1, 20000 do
                pcall(msgpack.decode, '\146\146\1')
                pcall(msgpack.decode, '\146\212\127\1')
                pcall(msgpack.encode, { { print } })
            end
        end)
    end)

    describe('extension types', function()
        it('are decoded by the modules that own them', function()
            assert.equal('1.5', tostring((msgpack.decode(unhex('c7030101015c')))))
            assert.equal('00112233-4455-6677-8899-aabbccddeeff',
                tostring((msgpack.decode(unhex('d80200112233445566778899aabbccddeeff')))))
            assert.equal('c403616263', hex(msgpack.encode((msgpack.decode(unhex('c403616263'))))))
        end)

        it('may be registered for cdata, references and metatables', function()
            local ctype, mt = ffi.typeof('struct { int cord_ext_spec; }'), {}
            msgpack.ext.register({
                type = 100,
                name = 'spec',
                ctype = ctype,
                metatable = mt,
                encode = function(value) return type(value) == 'table' and 'table' or 'cdata' end,
                decode = function(payload) return 'decoded ' .. payload end,
            })
            local cdata = ctype()
            assert.equal('92c70564' .. hex('cdata') .. 'c70564' .. hex('table'),
                hex(msgpack.encode({ cdata, setmetatable({}, mt) })))
            assert.equal('c70564' .. hex('cdata'), hex(msgpack.encode(ffi.cast(ffi.typeof('$ &', ctype), cdata))))
            assert.equal('decoded cdata', (msgpack.decode(msgpack.encode(cdata))))
        end)

        it('carry error objects with causes and payload', function()
            local e = cord_error.new({ type = 'MyError', code = 7, message = 'top', attempt = 3, list = { 1 } })
            e:set_prev(cord_error.new(36, 'tweets'))
            local decoded = msgpack.decode(msgpack.encode({ e }))[1]
            assert.equal('MyError', decoded.type)
            assert.equal(7, decoded.code)
            assert.equal(3, decoded.attempt)
            assert.same({ 1 }, decoded.list)
            assert.same(e.trace, decoded.trace)
            assert.equal("Space 'tweets' does not exist", decoded.prev.message)
            assert.equal(hex(msgpack.encode(e)):sub(1, 20), hex(msgpack.encode(decoded)):sub(1, 20))
        end)

        it('reject error stacks without their parts', function()
            for bytes, text in pairs({
                ['c7020380c0'] = 'MP_ERROR_STACK is missing',
                ['c70403810091c0'] = 'MP_ERROR_STACK array entry must be MP_MAP',
                ['c7040381009180'] = 'MP_ERROR_TYPE is missing',
            }) do
                local ok, e = pcall(msgpack.decode, unhex(bytes))
                assert.is_false(ok)
                assert.equal('Invalid MsgPack - ' .. text, e.prev.message)
            end
        end)
    end)

    describe('headers', function()
        it('are read from memory', function()
            local array, map = unhex('93010203'), unhex('de00010203')
            local pointer = ffi.cast('const char *', array)
            local count, behind = msgpack.decode_array_header(pointer, #array)
            assert.same({ 3, 1 }, { count, tonumber(behind - pointer) })
            pointer = ffi.cast('const char *', map)
            count, behind = msgpack.decode_map_header(pointer, #map)
            assert.same({ 1, 3 }, { count, tonumber(behind - pointer) })
        end)

        it('refuse what is none', function()
            local pointer = ffi.cast('const char *', '\146\1\2')
            local function text(...)
                return raised(nil, msgpack.decode_map_header, ...)
            end
            assert.truthy(text(pointer):find('Usage: msgpack.decode_map_header(ptr, size)', 1, true))
            assert.truthy(text('x', 1):find("msgpack.decode_map_header: 'char *' expected", 1, true))
            assert.truthy(text(pointer, 0):find('msgpack.decode_map_header: non-positive size', 1, true))
            assert.truthy(text(pointer, 3):find('msgpack.decode_map_header: unexpected msgpack type', 1, true))
            pointer = ffi.cast('const char *', '\222')
            assert.truthy(text(pointer, 1):find('msgpack.decode_map_header: unexpected end of buffer', 1, true))
        end)
    end)

    describe('objects', function()
        it('hold bytes and decode them', function()
            local object = msgpack.object({ 1, { a = 2 } })
            assert.equal('userdata', type(object))
            assert.equal('msgpack.object', tostring(object))
            assert.is_true(msgpack.is_object(object))
            assert.is_false(msgpack.is_object({}))
            assert.is_false(msgpack.is_object())
            assert.same({ 1, { a = 2 } }, object:decode())
            assert.equal(1, object[1])
            assert.equal(2, object:get(2).a)
            assert.is_nil(object[3])
            assert.equal('930191' .. '01', hex(msgpack.encode({ 1, msgpack.object({ 1 }) })):gsub('^92', '93'))
        end)

        it('are made of bytes', function()
            local bytes = unhex('82a16101a16202')
            assert.equal(2, msgpack.object_from_raw(bytes).b)
            assert.equal(1, msgpack.object_from_raw(ffi.cast('const char *', bytes), #bytes).a)
            assert.equal('Invalid MsgPack - junk after input', raised('ClientError', msgpack.object_from_raw, bytes .. '\1'))
            assert.equal('Invalid MsgPack - truncated input', raised('ClientError', msgpack.object_from_raw, bytes:sub(1, 3)))
            assert.truthy(raised(nil, msgpack.object_from_raw, 5)
                :find("msgpack.object_from_raw: a Lua string or 'char *' expected", 1, true))
            assert.truthy(raised(nil, msgpack.object):find('msgpack.object: a Lua object expected', 1, true))
        end)

        it('are containers or not', function()
            local object = msgpack.object(5)
            assert.truthy(raised(nil, function() return object[1] end):find('not an array or map', 1, true))
            assert.truthy(raised(nil, object.get, object, 1):find('not an array or map', 1, true))
            assert.equal(5, object:decode())
        end)

        it('are walked by iterators', function()
            local iterator = msgpack.object({ 1, 'two', { 3 }, { x = 4 } }):iterator()
            assert.equal('msgpack.iterator', tostring(iterator))
            assert.equal(4, iterator:decode_array_header())
            assert.equal(1, iterator:decode())
            assert.equal('two', iterator:take():decode())
            assert.truthy(raised(nil, iterator.decode_map_header, iterator):find('unexpected msgpack type', 1, true))
            iterator:skip()
            assert.equal(1, iterator:decode_map_header())
            local taken = iterator:take_array(2)
            assert.same({ 'x', 4 }, taken:decode())
            for _, method in ipairs({ 'decode', 'skip', 'take', 'decode_array_header' }) do
                assert.truthy(raised(nil, iterator[method], iterator):find('iteration ended', 1, true))
            end
            assert.same({}, iterator:take_array(0):decode())
            assert.truthy(raised(nil, iterator.take_array, iterator, 1):find('iteration ended', 1, true))
            assert.truthy(raised(nil, iterator.take_array, iterator):find('Usage: iter:take_array(count)', 1, true))
            assert.truthy(raised(nil, iterator.take_array, iterator, -1):find('count must be >= 0', 1, true))
        end)
    end)

    describe('options', function()
        it('are Tarantool\'s, with its defaults', function()
            local own = msgpack.new()
            for name, value in pairs({
                encode_sparse_convert = true, encode_sparse_ratio = 2, encode_sparse_safe = 10, encode_max_depth = 128,
                encode_deep_as_nil = false, encode_invalid_numbers = true, encode_number_precision = 14,
                encode_load_metatables = true, encode_use_tostring = false, encode_invalid_as_nil = false,
                encode_error_as_ext = true, decode_invalid_numbers = true, decode_save_metatables = true,
                decode_max_depth = 128,
            }) do
                assert.equal(value, own.cfg[name], name)
            end
            assert.truthy(raised(nil, own.cfg, 5):find('table expected, got number', 1, true))
        end)

        it('belong to their own serializer', function()
            local own = msgpack.new()
            own.cfg({ encode_invalid_as_nil = true })
            assert.equal('c0', hex(own.encode(print)))
            assert.is_true(own.cfg.encode_invalid_as_nil)
            raised('LuajitError', msgpack.encode, print)
        end)

        local function with(options, value)
            local own = msgpack.new()
            own.cfg(options)
            local ok, bytes = pcall(own.encode, value)
            return ok and hex(bytes) or bytes.message
        end

        it('change how values are encoded', function()
            assert.equal('excessively sparse array', with({ encode_sparse_convert = false }, { [11] = 1 }))
            assert.equal('9b' .. ('c0'):rep(10) .. '01', with({ encode_sparse_ratio = 0 }, { [11] = 1 }))
            assert.equal('9b' .. ('c0'):rep(10) .. '01', with({ encode_sparse_safe = 11 }, { [11] = 1 }))
            assert.equal('Too high nest level - 3', with({ encode_max_depth = 2 }, nested(3)))
            assert.equal('9191c0', with({ encode_max_depth = 2, encode_deep_as_nil = true }, nested(3)))
            assert.equal('number must not be NaN or Inf', with({ encode_invalid_numbers = false }, 1 / 0))
            assert.equal('number must not be NaN or Inf', with({ encode_invalid_numbers = false }, ffi.new('float', 1 / 0)))
            assert.equal('c0', with({ encode_invalid_numbers = false, encode_invalid_as_nil = true }, 0 / 0))
            assert.equal('9101', with({ encode_load_metatables = false }, setmetatable({ 1 }, { __serialize = 'map' })))
            assert.equal(hex('function: '), with({ encode_use_tostring = true }, print):match(hex('function: ')))
            assert.equal('a178', with({ encode_error_as_ext = false }, cord_error.new(32, 'x')))
        end)

        it('change how bytes are decoded', function()
            local own = msgpack.new()
            own.cfg({ decode_save_metatables = false, decode_invalid_numbers = false, decode_max_depth = 2 })
            assert.is_nil(getmetatable((own.decode('\144'))))
            assert.equal('number must not be NaN or Inf', raised('LuajitError', own.decode, unhex('cb7ff0000000000000')))
            assert.equal('Too high nest level - 3', raised('LuajitError', own.decode, unhex('919190')))
        end)

        it('cannot ask for more depth than the native stack has', function()
            local own = msgpack.new()
            own.cfg({ encode_max_depth = 1e9, decode_max_depth = 1e9 })
            assert.equal('Too high nest level - 1001', raised('LuajitError', own.encode, nested(100000)))
            assert.equal('Too high nest level - 1001', raised('LuajitError', own.decode, ('\145'):rep(100000) .. '\1'))
            assert.equal(('91'):rep(999) .. '90', hex(own.encode(nested(1000))))
        end)
    end)

    describe('reading tables where LuaJIT keeps them', function()
        after_each(function() msgpack.ext.layout(true) end)

        it('works on the LuaJITs we know', function()
            if ffi.abi('64bit') and ffi.abi('le') and ffi.abi('gc64') then
                assert.is_true(msgpack.ext.layout())
            else
                pending('only where references have 64 bits')
            end
        end)

        it('agrees with the C API on every vector', function()
            msgpack.ext.layout(false)
            assert.is_false(msgpack.ext.layout())
            for _, vector in ipairs(VECTORS) do
                assert.equal(vector[2], hex(msgpack.encode(value_of(vector[1]))), vector[1])
                local source = vector[1] == 'nil' and 'msgpack.NULL' or vector[1]
                assert.equal('91' .. vector[2], hex(msgpack.encode({ value_of(source) })), vector[1])
            end
        end)

        it('keeps the last of two equal keys', function()
            for _ = 1, 3 do
                assert.same({ a = 2, b = 3 }, (msgpack.decode(unhex('83a16101a16203a16102'))))
                assert.same({ a = 'x', b = 3 }, (msgpack.decode(unhex('83a16101a16203a161a178'))))
            end
        end)

        it('makes tables that work as metatables', function()
            for _ = 1, 3 do
                local mt = msgpack.decode(msgpack.encode({ __index = { x = 1 }, y = 2, __newindex = { z = 1 } }))
                local t = setmetatable({}, mt)
                assert.equal(1, t.x)
                t.new = 5
                assert.equal(5, mt.__newindex.new)
                assert.is_nil(rawget(t, 'new'))
            end
        end)

        it('makes tables that grow and shrink like any other', function()
            for _ = 1, 3 do
                local t = msgpack.decode(msgpack.encode({ a = 1, b = 2, c = true, d = 1.5, e = false }))
                for i = 1, 100 do t['k' .. i] = i end
                for i = 1, 100 do assert.equal(i, t['k' .. i]) end
                assert.same({ 1, 2, true, 1.5, false }, { t.a, t.b, t.c, t.d, t.e })
                for i = 1, 100 do t['k' .. i] = nil end
                local count = 0
                for _ in pairs(t) do count = count + 1 end
                assert.equal(5, count)
            end
        end)

        it('survives collections at every step', function()
            local value = {}
            for i = 1, 60 do
                value[i] = { id = i, ok = i % 2 == 0, name = 'name ' .. i, score = i / 2, tags = { 'a' .. i, i }, more = { n = i } }
            end
            local bytes = msgpack.encode(value)
            collectgarbage('setpause', 0)
            collectgarbage('setstepmul', 1)
            for round = 1, 60 do
                collectgarbage('step', round % 7)
                local decoded = msgpack.decode(bytes)
                for i = 1, 60 do
                    local row = decoded[i]
                    assert(row.id == i and row.ok == (i % 2 == 0) and row.name == 'name ' .. i and row.score == i / 2
                        and row.tags[1] == 'a' .. i and row.tags[2] == i and row.more.n == i)
                end
            end
            collectgarbage('setpause', 200)
            collectgarbage('setstepmul', 200)
            collectgarbage()
        end)

        it('agrees with the C API on random values', function()
            local seed = os.time()
            math.randomseed(seed)
            local random = math.random
            local value
            local leaves = {
                function() return random(-200, 200) end,
                function() return random() * 2 ^ random(0, 70) - 2 ^ random(0, 66) end,
                function() return math.floor(random() * 2 ^ random(0, 66)) end,
                function() return ('x'):rep(random(0, 300)) end,
                function() return random() < 0.5 end,
                function() return msgpack.NULL end,
                function() return ffi.new('int64_t', random(-2 ^ 31, 2 ^ 31)) end,
                function() return ffi.new('uint64_t', random(0, 2 ^ 31)) * 2 ^ 32 end,
                function() return ffi.new('double', random()) end,
            }
            local function container(depth)
                local t = {}
                local kind = random(5)
                for i = 1, random(0, 20) do
                    local key = kind == 1 and i or kind == 2 and 'k' .. i or kind == 3 and random(-3, 40)
                        or kind == 4 and i * random(1, 2) or (random() < 0.5 and i or 'k' .. i)
                    t[key] = value(depth + 1)
                    if random() < 0.1 then t[key] = nil end
                end
                local hint = random(8)
                if hint == 1 then setmetatable(t, msgpack.map_mt) end
                if hint == 2 then setmetatable(t, msgpack.array_mt) end
                if hint == 3 then setmetatable(t, { __index = t }) end
                return t
            end
            function value(depth)
                if depth < 5 and random() < 0.4 then return container(depth) end
                return leaves[random(#leaves)]()
            end
            for _ = 1, 150 do
                local v = container(1)
                msgpack.ext.layout(true)
                local fast = hex(msgpack.encode(v))
                local decoded_fast = msgpack.decode(unhex(fast))
                msgpack.ext.layout(false)
                assert.equal(fast, hex(msgpack.encode(v)), 'seed ' .. seed)
                local slow_again = hex(msgpack.encode((msgpack.decode(unhex(fast)))))
                assert.equal(#slow_again, #msgpack.encode(decoded_fast) * 2, 'seed ' .. seed)
            end
        end)
    end)

    it('survives collections while it decodes', function()
        local value = {}
        for i = 1, 200 do
            value[i] = { id = i, name = 'name ' .. i, big = 2 ^ 60 + i * 1024, tags = { 'a' .. i, 'b' .. i } }
        end
        local bytes = msgpack.encode(value)
        collectgarbage('setpause', 0)
        collectgarbage('setstepmul', 1000)
        for _ = 1, 20 do
            local decoded = msgpack.decode(bytes)
            assert.equal('b150', decoded[150].tags[2])
            assert.equal(#bytes, #msgpack.encode(decoded))
        end
        collectgarbage('setpause', 200)
        collectgarbage('setstepmul', 200)
    end)

    ext.with_tarantool('gives the bytes of the real Tarantool, and reads them', function(run)
        local source = { "local ffi, msgpack = require('ffi'), require('msgpack')\n" }
        for _, vector in ipairs(VECTORS) do
            source[#source + 1] = ("print((msgpack.encode(%s):gsub('.', function(c) return ('%%02x'):format(c:byte()) end)))\n")
                :format(vector[1])
        end
        local i = 0
        for line in run(table.concat(source)):gmatch('[^\n]+') do
            i = i + 1
            assert.equal(VECTORS[i][2], line, VECTORS[i][1])
        end
        assert.equal(#VECTORS, i)
    end)

    ext.with_tarantool('makes bytes that the real Tarantool reads to the same value', function(run)
        local value = { 1, -1, 2 ^ 40, 1.5, 'text', '', true, false, { a = { b = { 1, { 2 } } } }, { 1, nil, 3 }, -2 ^ 40 }
        local out = run(([[
            local msgpack = require('msgpack')
            local bytes = (%q):gsub('%%x%%x', function(pair) return string.char(tonumber(pair, 16)) end)
            local value = msgpack.decode(bytes)
            print((msgpack.encode(value):gsub('.', function(c) return ('%%02x'):format(c:byte()) end)))
        ]]):format(hex(msgpack.encode(value))))
        assert.equal(hex(msgpack.encode(value)), out:match('%x+'))
    end)
end)
