-- cord.json: values and texts printed by Tarantool (error texts of the decoder: those of 3.x).
local ffi = require('ffi')
local json = require('cord.json')
local decimal, uuid, varbinary = require('cord.decimal'), require('cord.uuid'), require('cord.varbinary')
local helpers = require('spec.ext_helpers')

describe('cord.json', function()
    local ENCODED = {
        { 1, '1' }, { 1.5, '1.5' }, { -0.0, '0' }, { 2 ^ 53, '9007199254740992' }, { 2 ^ 63, '9223372036854775808' },
        { -2 ^ 63, '-9223372036854775808' }, { 2 ^ 64, '1.844674407371e+19' }, { 1e300, '1e+300' }, { 1 / 0, 'inf' },
        { -1 / 0, '-inf' }, { 0 / 0, 'nan' }, { 0.1, '0.1' }, { 1 / 3, '0.33333333333333' }, { true, 'true' },
        { 'a"\\/\b\f\n\r\t\0\127\1\195\169', [["a\"\\/\b\f\n\r\t\u0000\u007f\u0001]] .. '\195\169"' },
        { json.NULL, 'null' }, { {}, '[]' }, { { 1, 2, nil, 4 }, '[1,2,null,4]' }, { { [3] = 1 }, '[null,null,1]' },
        { { [20] = 2 }, '{"20":2}' }, { { [0] = 1 }, '{"0":1}' }, { { [-1] = 1 }, '{"-1":1}' }, { { a = 1 }, '{"a":1}' },
        { { [1LL] = 5 }, '{"1":5}' }, { { [2 ^ 60] = 1 }, '{"1152921504606846976":1}' },
        { 1LL, '1' }, { -1LL, '-1' }, { 18446744073709551615ULL, '18446744073709551615' },
        { ffi.cast('float', 0.1), '0.10000000149012' }, { ffi.cast('double', 5), '5' }, { ffi.new('bool', true), 'true' },
        { ffi.cast('int8_t', -5), '-5' }, { ffi.cast('void *', 0), 'null' },
        { decimal.new('1.50'), '"1.50"' }, { varbinary.new('a"b'), [["a\"b"]] },
        { uuid.fromstr('64d22e4d-ac92-4a23-899a-e59f34af5479'), '"64d22e4d-ac92-4a23-899a-e59f34af5479"' },
        { setmetatable({}, { __serialize = 'map' }), '{}' }, { setmetatable({ 1 }, { __serialize = 'map' }), '{"1":1}' },
        { setmetatable({ a = 1 }, { __serialize = 'seq' }), '[]' }, { setmetatable({}, json.array_mt), '[]' },
        { setmetatable({}, json.map_mt), '{}' },
        { setmetatable({ 1, [5] = 2 }, { __serialize = 'array' }), '[1,null,null,null,2]' },
        { setmetatable({}, { __serialize = function() return { x = 1 } end }), '{"x":1}' },
        { setmetatable({}, { __serialize = function() return 5 end }), '5' },
    }
    for i, vector in ipairs(ENCODED) do
        it('encodes ' .. vector[2]:gsub('%c', '?') .. ' (' .. i .. ')', function()
            assert.equal(vector[2], json.encode(vector[1]))
        end)
    end

    it('encodes nil', function()
        assert.equal('null', json.encode(nil))
    end)

    it('follows the options of the call', function()
        assert.equal('0.333', json.encode(1 / 3, { encode_number_precision = 3 }))
        assert.equal('[]', json.encode(setmetatable({}, json.map_mt), { encode_load_metatables = false }))
        assert.equal('[null]', json.encode({ print }, { encode_invalid_as_nil = true }))
        assert.equal('[null]', json.encode({ 1 / 0 }, { encode_invalid_as_nil = true, encode_invalid_numbers = false }))
        assert.truthy(json.encode(print, { encode_use_tostring = true }):find('^"function: '))
        assert.equal('[[[null]]]', json.encode({ { { { 1 } } } }, { encode_max_depth = 3, encode_deep_as_nil = true }))
        assert.equal('[1' .. (',null'):rep(29) .. ',1]', json.encode({ 1, [31] = 1 }, { encode_sparse_ratio = 0 }))
        assert.equal('{"b":1,"a":2,"c":3}', json.encode({ a = 2, b = 1, c = 3 }, { encode_key_order = { 'b', 'a' } }))
        assert.same({ a = 1 }, json.decode('{"a":1}', { decode_save_metatables = false }))
        assert.is_nil(getmetatable(json.decode('[]', { decode_save_metatables = false })))
    end)

    it('names what it cannot encode', function()
        local cyclic = {}
        cyclic[1] = cyclic
        local deep = {}
        for _ = 1, 127 do
            deep = { deep }
        end
        assert.equal(('['):rep(128) .. (']'):rep(128), json.encode(deep))
        local failures = {
            { { deep }, 'Too high nest level' }, { cyclic, 'Too high nest level' },
            { print, "unsupported Lua type 'function'" }, { { coroutine.create(print) }, "unsupported Lua type 'thread'" },
            { io.stdout, "unsupported Lua type 'userdata'" }, { ffi.new('int[2]'), "unsupported Lua type 'cdata'" },
            { ffi.cast('void *', 5), "unsupported Lua type 'cdata'" },
            { { [true] = 1 }, 'table key must be a number or string' },
            { { [1.5] = 1 }, 'table key must be a number or string' },
            { { [json.NULL] = 1 }, 'table key must be a number or string' },
            { setmetatable({}, { __serialize = 5 }), 'invalid __serialize value' },
            { setmetatable({}, { __serialize = 'zzz' }), 'invalid __serialize value' },
        }
        for _, vector in ipairs(failures) do
            assert.has_error(function() json.encode(vector[1]) end, vector[2])
        end
        assert.has_error(function() json.encode({ 1, [100] = 1 }, { encode_sparse_convert = false }) end,
            'excessively sparse array')
        assert.has_error(function() json.encode(1 / 0, { encode_invalid_numbers = false }) end,
            'number must not be NaN or Inf')
        assert.has_error(function() json.encode() end, "bad argument #1 to 'encode' (expected 1 or 2 arguments)")
        assert.has_error(function() json.encode(1, 5) end, "bad argument #2 to 'encode' (table expected, got number)")
        local _, err = pcall(json.encode, setmetatable({}, { __serialize = function() error({ mine = 1 }) end }))
        assert.same({ mine = 1 }, err)
        _, err = pcall(function() json.encode(print) end)
        assert.truthy(err:find('17%-json_spec.lua:%d+: unsupported'))
    end)

    it('decodes', function()
        local vectors = {
            { '1', 1 }, { '-1', -1 }, { '1.5', 1.5 }, { '1e3', 1000 }, { '1E+5', 100000 }, { '0.1e-2', 0.001 }, { '-0', 0 },
            { '[1,2,3]', { 1, 2, 3 } }, { '{"a":1,"b":[]}', { a = 1, b = {} } }, { ' [ 1 ,\t2\r\n] ', { 1, 2 } },
            { '"a\\u0041\\ud83d\\ude00\\n\\/\\"\\\\\\b\\t\\f\\r\\u00e9\\u20ac"',
                'aA\240\159\152\128\n/"\\\b\t\f\r\195\169\226\130\172' },
            { 'true', true }, { 'false', false }, { 'inf', 1 / 0 }, { '-inf', -1 / 0 }, { '1e400', 1 / 0 }, { '""', '' },
            { '99999999999999', 99999999999999 }, { '"\t\195\169"', '\t\195\169' }, { '18446744073709551616', 2 ^ 64 },
            { '-9223372036854775809', -2 ^ 63 }, { '{"1":2}', { ['1'] = 2 } },
        }
        for _, vector in ipairs(vectors) do
            assert.same(vector[2], json.decode(vector[1]))
        end
        assert.equal('nan', tostring(json.decode('nan')))
        local wide = {
            ['100000000000000'] = '100000000000000LL', ['9007199254740993'] = '9007199254740993LL',
            ['9223372036854775807'] = '9223372036854775807ULL', ['9223372036854775808'] = '9223372036854775808ULL',
            ['18446744073709551615'] = '18446744073709551615ULL', ['-9223372036854775808'] = '-9223372036854775808LL',
        }
        for text, shown in pairs(wide) do
            assert.equal(shown, tostring(json.decode(text)))
        end
        assert.is_true(json.decode('null') == nil and json.decode('[null]')[1] == json.NULL)
        assert.equal('cdata', type(json.decode('null')))
        assert.equal(json.map_mt, getmetatable(json.decode('{}')))
        assert.equal(json.array_mt, getmetatable(json.decode('[]')))
    end)

    it('says where decoding failed', function()
        local failures = {
            { '', "Expected value but found end on line 1 at character 1 here ' >> '" },
            { '[1,]', "Expected value but found ']' on line 1 at character 4 here '[1, >> ]'" },
            { '[1', "Expected comma or ']' but found end on line 1 at character 3 here '[1 >> '" },
            { '[1 2]', "Expected comma or ']' but found int on line 1 at character 4 here '[1  >> 2]'" },
            { '{', "Expected object key string but found end on line 1 at character 2 here '{ >> '" },
            { '{"a"', "Expected colon but found end on line 1 at character 5 here '{\"a\" >> '" },
            { '{"a":}', "Expected value but found '}' on line 1 at character 6 here '{\"a\": >> }'" },
            { '{"a":1 "b"', "Expected comma or '}' but found string on line 1 at character 8 here '{\"a\":1  >> \"b\"'" },
            { '{"a":1,}', "Expected object key string but found '}' on line 1 at character 8 here '{\"a\":1, >> }'" },
            { '01', "Expected value but found invalid token on line 1 at character 1 here ' >> 01'" },
            { '+1', "Expected value but found invalid token on line 1 at character 1 here ' >> +1'" },
            { '.5', "Expected value but found invalid token on line 1 at character 1 here ' >> .5'" },
            { 'tru', "Expected value but found invalid token on line 1 at character 1 here ' >> tru'" },
            { '1 2', "Expected the end but found int on line 1 at character 3 here '1  >> 2'" },
            { '"abc', "Expected value but found unexpected end of string on line 1 at character 5 here '\"abc >> '" },
            { '"a\\q"', "Expected value but found invalid escape code on line 1 at character 3 here '\"a >> \\q\"'" },
            { '"\\u12"', "Expected value but found invalid unicode escape code on line 1 at character 2 here '\" >> \\u12\"'" },
            { '"\\udc00"',
                "Expected value but found invalid unicode escape code on line 1 at character 2 here '\" >> \\udc00\"'" },
            { '\n\n  [1,\n  x]', "Expected value but found invalid token on line 4 at character 3 here '   >> x]'" },
            { '\0\0', 'JSON parser does not support UTF-16 or UTF-32' },
            { '[1]\0', "Expected the end but found end on line 1 at character 4 here '[1] >> '" },
            { ('['):rep(130), 'Found too many nested data structures (129) on line 1 at character 129 here '
                .. "'[[[[[[[[ >> [['" },
        }
        for _, vector in ipairs(failures) do
            assert.has_error(function() json.decode(vector[1]) end, vector[2])
        end
        assert.has_error(function() json.decode('nan', { decode_invalid_numbers = false }) end,
            "Expected value but found invalid token on line 1 at character 1 here ' >> nan'")
        assert.has_error(function() json.decode('1e400', { decode_invalid_numbers = false }) end,
            'number must not be NaN or Inf')
        assert.has_error(function() json.decode('[[[]]]', { decode_max_depth = 2 }) end,
            "Found too many nested data structures (3) on line 1 at character 3 here '[[ >> []]]'")
        assert.has_error(function() json.decode({}) end, "bad argument #1 to 'decode' (string expected, got table)")
        assert.has_error(function() json.decode() end, "bad argument #1 to 'decode' (expected 1 or 2 arguments)")
    end)

    it('keeps settings apart: the module, an instance, a call', function()
        local own = json.new()
        own.cfg({ encode_max_depth = 1, encode_number_precision = 3 })
        assert.equal(1, own.cfg.encode_max_depth)
        assert.equal(128, json.cfg.encode_max_depth)
        assert.equal('0.333', own.encode(1 / 3))
        assert.equal('0.33333333333333', json.encode(1 / 3))
        assert.has_error(function() own.encode({ {} }) end, 'Too high nest level')
        assert.equal('[[]]', own.encode({ {} }, { encode_max_depth = 5 }))
        assert.has_error(function() json.cfg(5) end, "bad argument #2 to 'cfg' (table expected, got number)")
    end)

    it('survives texts cut anywhere', function()
        local text = '{"a":[1,2.5e3,"x\\u0041\\n",null,true,{"b":{}}],"c":-1}'
        for length = 0, #text - 1 do
            assert.is_false((pcall(json.decode, text:sub(1, length))))
        end
        assert.equal('A', json.decode(text).a[3]:sub(2, 2))
    end)

    helpers.with_tarantool('agrees with the real json', function(run)
        local output = run([[
            local json = require('json')
            local values = { 1, 1.5, 2^53, 2^63, -2^63, 2^64, 1e300, 0.1, 1/3, 'a"\\\b\f\n\r\t\0\127\1', true, {}, { 1, 2, nil, 4 },
                { [3] = 1 }, { [20] = 2 }, { a = 1 }, 1LL, 18446744073709551615ULL, 123456789012345680, { { {} } } }
            for _, value in ipairs(values) do print((json.encode(value):gsub('\\/', '/'))) end
        ]])
        local values = { 1, 1.5, 2 ^ 53, 2 ^ 63, -2 ^ 63, 2 ^ 64, 1e300, 0.1, 1 / 3, 'a"\\\b\f\n\r\t\0\127\1', true, {},
            { 1, 2, nil, 4 }, { [3] = 1 }, { [20] = 2 }, { a = 1 }, 1LL, 18446744073709551615ULL, 123456789012345680,
            { { {} } } }
        local i = 0
        for line in output:gmatch('[^\n]+') do
            i = i + 1
            assert.equal(line, json.encode(values[i]))
        end
        assert.equal(#values, i)
    end)

    it('asks objects that hide their metatable how they look', function()
        local hidden = setmetatable({ print }, { __metatable = false, __serialize = function() return { a = 1 } end })
        assert.equal('{"a":1}', json.encode(hidden))
        assert.equal('[1]', json.encode(setmetatable({ 1 }, { __metatable = 'mine', __serialize = 'seq' })))
    end)
end)
