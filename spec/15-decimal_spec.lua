-- cord.decimal: values and texts printed by Tarantool 2.6.
local ffi = require('ffi')
local decimal = require('cord.decimal')
local helpers = require('spec.ext_helpers')

local function text(value)
    return tostring(decimal.new(value))
end

describe('cord.decimal', function()
    it('is made from strings, numbers and numbers of the FFI', function()
        local vectors = {
            { '1.50', '1.50' }, { '-0', '-0' }, { '0.000', '0.000' }, { '1e3', '1000' }, { '+5', '5' }, { '.5', '0.5' },
            { '5.', '5' }, { 0.1, '0.1' }, { 1 / 3, '0.333333333333333' }, { 2 ^ 64, '18446744073709600000' },
            { 2 ^ -20, '0.00000095367431640625' }, { -5LL, '-5' }, { 18446744073709551615ULL, '18446744073709551615' },
            { -9223372036854775807LL - 1, '-9223372036854775808' }, { ffi.cast('uint8_t', 200), '200' },
            { ffi.cast('int8_t', -113), '-113' }, { ffi.cast('float', 1.5), '1.5' },
            { ffi.cast('double', -0.25), '-0.25' },
            { ('9'):rep(38), ('9'):rep(38) }, { '1e-40', '0.' .. ('0'):rep(38) },
            { '0.' .. ('0'):rep(37) .. '1234', '0.' .. ('0'):rep(37) .. '1' },
        }
        for _, vector in ipairs(vectors) do
            assert.equal(vector[2], text(vector[1]))
        end
        local one = decimal.new(1)
        local copy = decimal.new(one)
        copy.digits = 2
        assert.equal(1, one.digits)
    end)

    it('refuses what has no value, with Tarantool\'s texts', function()
        for _, bad in ipairs({ 'abc', 'inf', 'NaN', '', ' 1', '1 ', '0x10', '1\0', '1e40', '1e1000000', ('1'):rep(39),
            1e300, 1 / 0, 0 / 0, ffi.cast('float', 1 / 0) }) do
            assert.has_error(function() decimal.new(bad) end, 'incorrect value to convert to decimal as 1 argument')
        end
        for _, bad in ipairs({ {}, true, print, ffi.new('struct { int x; }'), ffi.cast('void *', 0) }) do
            assert.has_error(function() decimal.new(bad) end, 'expected decimal, number or string as 1 argument')
        end
        assert.has_error(function() decimal.new(nil) end, 'expected decimal, number or string as 1 argument')
        assert.has_error(function() decimal.new() end, 'usage: decimal.new(value)')
    end)

    it('calculates with 38 digits, halves away from zero', function()
        local d = decimal.new
        local vectors = {
            { d(1) / 3, '0.33333333333333333333333333333333333333' },
            { d(2) / 3, '0.66666666666666666666666666666666666667' },
            { d(10) % 3, '1' }, { d(-10) % 3, '-1' }, { d(2) ^ 10, '1024' },
            { d(2) ^ 0.5, '1.4142135623730950488016887242096980786' }, { -d(5), '-5' }, { d('1.5') * 2, '3.0' },
            { 2 - d(1), '1' }, { d(1) + '2.5', '3.5' }, { 1LL + d(1), '2' }, { d('0.1') + 0.2, '0.3' },
        }
        for _, vector in ipairs(vectors) do
            assert.equal(vector[2], tostring(vector[1]))
        end
    end)

    it('names failed operations and wrong operands', function()
        local d = decimal.new
        local failed = {
            function() return d(1) / 0 end, function() return d(-2) ^ 0.5 end, function() return d('1e37') * 10 end,
            function() return decimal.sqrt(-1) end, function() return decimal.ln(0) end,
            function() return decimal.ln(-1) end, function() return decimal.log10(0) end,
            function() return decimal.exp(88) end, function() return d(('9'):rep(38)) + '0.5' end,
        }
        for _, operation in ipairs(failed) do
            assert.has_error(operation, 'decimal operation failed')
        end
        local first, second = 'expected decimal, number or string as 1 argument',
            'expected decimal, number or string as 2 argument'
        assert.has_error(function() return d(1) + {} end, second)
        assert.has_error(function() return {} + d(1) end, first)
        assert.has_error(function() return d(1) + nil end, second)
        assert.has_error(function() return d(1) + 'a' end, 'incorrect value to convert to decimal as 2 argument')
        local _, where = pcall(function() return d(1) / 0 end)
        assert.truthy(where:find('15%-decimal_spec.lua:%d+: '))
    end)

    it('compares', function()
        local d = decimal.new
        assert.is_true(d('1.0') == d(1) and d(1) == 1 and d(1) == '1.00' and d(1) ~= d('1.1'))
        assert.is_true(d(1) < 2 and 0 < d(1) and d(1) <= '1' and d(-2) < d(-1))
        assert.is_false(d(1) < d(1))
        assert.is_true(d(18446744073709551615ULL) == 18446744073709551615ULL)
        assert.is_false(d(1) == nil)
        assert.is_false(d(1) == ffi.cast('void *', 0))
        assert.has_error(function() return d(1) < nil end, 'attempt to compare decimal with nil')
        assert.has_error(function() return d(1) < {} end, 'expected decimal, number or string as 2 argument')
        assert.has_error(function() return d(1) == {} end, 'expected decimal, number or string as 2 argument')
        assert.has_error(function() return d(1) == 'a' end, 'incorrect value to convert to decimal as 2 argument')
    end)

    it('has the functions of Tarantool', function()
        assert.equal('1.4142135623730950488016887242096980786', tostring(decimal.sqrt(2)))
        assert.equal('2.3025850929940456840179914546843642076', tostring(decimal.ln(10)))
        assert.equal('0.30102999566398119521373889472449302677', tostring(decimal.log10(2)))
        assert.equal('2.7182818284590452353602874713526624978', tostring(decimal.exp(1)))
        assert.equal('60760302250568721495223289381302760753', tostring(decimal.exp(87)))
        assert.equal('5', tostring(decimal.abs(-5)))
        assert.equal('1.20', tostring(decimal.abs('-1.20')))
        assert.is_true(decimal.is_decimal(decimal.new(1)))
        assert.is_false(decimal.is_decimal(1))
        assert.has_error(function() decimal.exp() end, 'usage: decimal.exp(decimal)')
        assert.has_error(function() decimal.is_decimal() end, 'usage: decimal.is_decimal(value)')
        assert.has_error(function() decimal.sqrt({}) end, 'expected decimal, number or string as 1 argument')
    end)

    it('rounds, rescales and trims', function()
        local function round(value, places) return tostring(decimal.round(decimal.new(value), places)) end
        local function rescale(value, places) return tostring(decimal.rescale(decimal.new(value), places)) end
        local rounded = {
            { '2.5', 0, '3' }, { '-2.5', 0, '-3' }, { '2.345', 2, '2.35' }, { '2.345', 5, '2.345' },
            { '2.345', -1, '2.345' }, { '0.05', 1, '0.1' }, { '0.04', 1, '0.0' }, { '0.4', 0, '0' },
            { '999.9', 0, '1000' }, { '1.5', 39, '1.5' },
        }
        for _, vector in ipairs(rounded) do
            assert.equal(vector[3], round(vector[1], vector[2]))
        end
        local rescaled = {
            { '2.5', 3, '2.500' }, { '2.5', 40, '2.5' }, { '2.55', 1, '2.6' }, { '2.5', -1, '2.5' },
            { '1e5', 2, '100000.00' },
        }
        for _, vector in ipairs(rescaled) do
            assert.equal(vector[3], rescale(vector[1], vector[2]))
        end
        assert.equal('2.5', tostring(decimal.trim(decimal.new('2.500'))))
        assert.equal('100', tostring(decimal.trim(decimal.new('100'))))
        assert.has_error(function() decimal.round(2.5, 0) end, 'expected cdata as 1 argument')
        assert.has_error(function() decimal.round(1LL, 0) end, 'expected decimal as 1 argument')
        assert.has_error(function() decimal.round(decimal.new(1)) end, 'usage: decimal.round(decimal, scale)')
        assert.has_error(function() decimal.trim() end, 'usage: decimal.trim(decimal)')
    end)

    it('measures', function()
        local measures = { { '2.500', 3, 4 }, { '1e5', 0, 6 }, { '0.001', 3, 3 }, { ('9'):rep(38), 0, 38 } }
        for _, vector in ipairs(measures) do
            assert.equal(vector[2], decimal.scale(decimal.new(vector[1])))
            assert.equal(vector[3], decimal.precision(decimal.new(vector[1])))
        end
        assert.has_error(function() decimal.scale(1) end, 'expected cdata as 1 argument')
        assert.has_error(function() decimal.precision() end, 'usage: decimal.precision(decimal)')
    end)

    it('survives fields a script has broken', function()
        local broken = decimal.new(1)
        broken.digits = 4000
        assert.equal('', tostring(broken))
        assert.has_error(function() return broken + 1 end, 'decimal operation failed')
        assert.has_error(function() return broken < 1 end, 'decimal operation failed')
    end)

    describe('as a MessagePack extension', function()
        local ext = require('cord.msgpack').ext
        local encode = ext.by_ctype[tonumber(ffi.typeof('decimal_t'))].encode
        local decode = ext.decoders[1]
        local VECTORS = {
            { '-12.34', '0201234d' }, { '100000', '000100000c' }, { '0', '000c' }, { '-0', '000d' }, { '1.5', '01015c' },
            { '0.00001', '051c' }, { '12345678901234567890.123456789', '0912345678901234567890123456789c' },
            { ('9'):rep(38), '000' .. ('9'):rep(38) .. 'c' }, { '1e5', 'fb1c' }, { '1e-38', '261c' }, { '12', '00012c' },
            { '123', '00123c' },
        }

        it('packs as Tarantool does and back', function()
            for _, vector in ipairs(VECTORS) do
                local value = decimal.new(vector[1])
                assert.equal(vector[2], helpers.hex(encode(value)))
                assert.is_true(value == decode(helpers.unhex(vector[2])))
                assert.equal(tostring(value), tostring(decode(helpers.unhex(vector[2]))))
            end
        end)

        it('reads every sign nibble, and the digits and exponents of newer servers', function()
            for nibble, sign in pairs({ a = '', c = '', e = '', f = '', b = '-', d = '-' }) do
                assert.equal(sign .. '1', tostring(decode(helpers.unhex('001' .. nibble))))
            end
            local long = decode(helpers.unhex('000' .. ('7'):rep(76) .. 'c'))
            assert.equal(('7'):rep(76), tostring(long))
            assert.equal('000' .. ('7'):rep(76) .. 'c', helpers.hex(encode(long)))
            assert.is_true(long > decimal.new('1e37'))
            assert.equal('1E+900', tostring(decode(helpers.unhex('d1fc7c1c'))))
        end)

        it('refuses what is no decimal', function()
            for _, payload in ipairs({ '', '00', '0012', '00ac', 'c01c', 'a01c', 'ce1c', 'cf00000001000000001c',
                '00' .. ('1'):rep(77) .. 'c', '00' .. ('1'):rep(9999) .. 'c', 'd2800000001c' }) do
                assert.has_error(function() decode(helpers.unhex(payload)) end, 'invalid decimal')
            end
        end)

        helpers.with_tarantool('agrees with the real msgpack', function(run)
            local texts = {}
            for i, vector in ipairs(VECTORS) do
                texts[i] = vector[1]
            end
            local output = run([[
                local decimal, msgpack = require('decimal'), require('msgpack')
                for _, text in ipairs(arg) do
                    local bytes = msgpack.encode(decimal.new(text))
                    print((bytes:gsub('.', function(char) return ('%02x'):format(char:byte()) end)))
                end
            ]], texts)
            local i = 0
            for line in output:gmatch('%x+') do
                i = i + 1
                assert.equal(VECTORS[i][2], line:sub(-#VECTORS[i][2]))
            end
            assert.equal(#VECTORS, i)
        end)
    end)
end)
