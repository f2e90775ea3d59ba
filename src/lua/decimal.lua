-- Decimal numbers with 38 significant digits, as Tarantool's `decimal`: FFI cdata of `decimal_t` with arithmetic and
-- comparison. The work is done by libdecnumber, behind the functions of decimal.rs.
local native, load = ...
local ffi = require('ffi')
local istype, new, error, type = ffi.istype, ffi.new, error, type

-- The structure of Tarantool 3.5 and newer: 78 digits, three in a unit, the least significant first.
ffi.cdef([[
typedef struct {
    int32_t digits;
    int32_t exponent;
    uint8_t bits;
    uint16_t lsu[26];
} decimal_t;

struct cord_decimal_api {
    bool (*binary)(decimal_t *, int, const decimal_t *, const decimal_t *);
    bool (*unary)(decimal_t *, int, const decimal_t *);
    bool (*scaled)(decimal_t *, int, const decimal_t *, int);
    int (*compare)(const decimal_t *, const decimal_t *);
    bool (*parse)(decimal_t *, const char *, size_t);
    void (*from_i64)(decimal_t *, int64_t);
    void (*from_u64)(decimal_t *, uint64_t);
    unsigned (*text)(const decimal_t *, uint8_t *);
    unsigned (*pack)(const decimal_t *, uint8_t *);
    bool (*unpack)(decimal_t *, const uint8_t *, size_t);
};
]])

local api = ffi.cast('const struct cord_decimal_api *', ffi.cast('uintptr_t', native.api))
local decimal_t = ffi.typeof('decimal_t')
-- The longest text or payload decimal.rs writes. Nothing here yields between filling and reading it.
local buffer = new('uint8_t[256]')

-- Numbers of the FFI, by how they are converted.
local SMALL, FLOATING = {}, { ffi.typeof('float'), ffi.typeof('double') }
for i, name in ipairs({ 'int8_t', 'uint8_t', 'int16_t', 'uint16_t', 'int32_t', 'uint32_t', 'char' }) do
    SMALL[i] = ffi.typeof(name)
end
local int64_t, uint64_t = ffi.typeof('int64_t'), ffi.typeof('uint64_t')

local function any(types, value)
    for i = 1, #types do
        if istype(types[i], value) then
            return true
        end
    end
    return false
end

--- A decimal from cdata that is no decimal; nil when it is no number, false when it has no decimal value.
local function from_cdata(value)
    local result = new(decimal_t)
    if istype(int64_t, value) then
        api.from_i64(result, value)
    elseif istype(uint64_t, value) then
        api.from_u64(result, value)
    elseif any(SMALL, value) then
        api.from_i64(result, tonumber(value))
    elseif any(FLOATING, value) then
        -- 15 digits are what every double keeps; the rest would be noise of the conversion.
        local text = ('%.15g'):format(tonumber(value))
        return api.parse(result, text, #text) and result
    else
        return nil
    end
    return result
end

--- The value as a decimal, or an error for argument `index`, raised `level` calls up.
local function convert(value, index, level)
    local kind = type(value)
    local result
    if kind == 'cdata' then
        if istype(decimal_t, value) then
            return value
        end
        result = from_cdata(value)
    elseif kind == 'number' or kind == 'string' then
        local text = kind == 'number' and ('%.15g'):format(value) or value
        result = new(decimal_t)
        result = api.parse(result, text, #text) and result
    end
    if result == nil then
        error('expected decimal, number or string as ' .. index .. ' argument', level + 1)
    elseif not result then
        error('incorrect value to convert to decimal as ' .. index .. ' argument', level + 1)
    end
    return result
end

--- The value, which must be a decimal already: some functions convert nothing.
local function check(value)
    if type(value) ~= 'cdata' then
        error('expected cdata as 1 argument', 3)
    elseif not istype(decimal_t, value) then
        error('expected decimal as 1 argument', 3)
    end
    return value
end

local function binary(symbol)
    local operation = symbol:byte()
    return function(lhs, rhs)
        lhs, rhs = convert(lhs, 1, 2), convert(rhs, 2, 2)
        local result = new(decimal_t)
        if not api.binary(result, operation, lhs, rhs) then
            error('decimal operation failed', 2)
        end
        return result
    end
end

local function unary(name, symbol)
    local operation = symbol:byte()
    return function(...)
        if select('#', ...) < 1 then
            error('usage: decimal.' .. name .. '(decimal)', 2)
        end
        local value = convert((...), 1, 2)
        local result = new(decimal_t)
        if not api.unary(result, operation, value) then
            error('decimal operation failed', 2)
        end
        return result
    end
end

local function compare(lhs, rhs, level)
    if lhs == nil or rhs == nil then
        error('attempt to compare decimal with nil', level + 1)
    end
    local order = api.compare(convert(lhs, 1, level + 1), convert(rhs, 2, level + 1))
    if order == 2 then
        error('decimal operation failed', level + 1)
    end
    return order
end

local function to_string(value)
    return ffi.string(buffer, api.text(value, buffer))
end

ffi.metatype(decimal_t, {
    __unm = unary('minus', '-'),
    __add = binary('+'),
    __sub = binary('-'),
    __mul = binary('*'),
    __div = binary('/'),
    __mod = binary('%'),
    __pow = binary('^'),
    __eq = function(lhs, rhs)
        -- A cdata null pointer counts as nil; two decimals are never compared with `==` here, that would recurse.
        if not istype(decimal_t, lhs) and lhs == nil or not istype(decimal_t, rhs) and rhs == nil then
            return false
        end
        return api.compare(convert(lhs, 1, 2), convert(rhs, 2, 2)) == 0
    end,
    __lt = function(lhs, rhs)
        return compare(lhs, rhs, 2) < 0
    end,
    __le = function(lhs, rhs)
        return compare(lhs, rhs, 2) <= 0
    end,
    __tostring = to_string,
})

local decimal = {
    log10 = unary('log10', 'L'),
    ln = unary('ln', 'l'),
    exp = unary('exp', 'e'),
    sqrt = unary('sqrt', 's'),
    abs = unary('abs', 'a'),
}

--- A decimal from a string, a number (15 significant digits of it), a number of the FFI, or a decimal.
function decimal.new(...)
    if select('#', ...) < 1 then
        error('usage: decimal.new(value)', 2)
    end
    return new(decimal_t, convert((...), 1, 2))
end

--- Whether the value is a decimal.
function decimal.is_decimal(...)
    if select('#', ...) < 1 then
        error('usage: decimal.is_decimal(value)', 2)
    end
    return istype(decimal_t, (...))
end

local function scaled(name, symbol)
    local operation = symbol:byte()
    return function(...)
        if select('#', ...) < 2 then
            error('usage: decimal.' .. name .. '(decimal, scale)', 2)
        end
        local value, places = ...
        check(value)
        places = math.modf(tonumber(places) or 0)
        local result = new(decimal_t)
        -- What cannot be done leaves the number as it was.
        api.scaled(result, operation, value, math.max(-1, math.min(places, 1000)))
        return result
    end
end

--- Rounds half away from zero to the given number of digits after the point (0 to 38).
decimal.round = scaled('round', 'r')
--- Sets the number of digits after the point, adding zeros or rounding.
decimal.rescale = scaled('rescale', 's')

--- Without the zeros at the end of the fraction.
function decimal.trim(...)
    if select('#', ...) < 1 then
        error('usage: decimal.trim(decimal)', 2)
    end
    local value = check((...))
    local result = new(decimal_t, value)
    api.unary(result, ('t'):byte(), value)
    return result
end

--- The number of digits after the point.
function decimal.scale(...)
    if select('#', ...) < 1 then
        error('usage: decimal.scale(decimal)', 2)
    end
    return math.max(-check((...)).exponent, 0)
end

--- The number of digits of the number, those after the point included.
function decimal.precision(...)
    if select('#', ...) < 1 then
        error('usage: decimal.precision(decimal)', 2)
    end
    local value = check((...))
    if value.exponent <= 0 then
        return math.max(value.digits, -value.exponent)
    end
    return value.digits + value.exponent
end

load('cord.msgpack').ext.register({
    type = 1,
    name = 'decimal',
    ctype = decimal_t,
    encode = function(value)
        local len = api.pack(value, buffer)
        if len == 0 then
            error('decimal operation failed', 0)
        end
        return ffi.string(buffer, len)
    end,
    decode = function(payload)
        local value = new(decimal_t)
        if not api.unpack(value, payload, #payload) then
            error('invalid decimal', 0)
        end
        return value
    end,
})

return decimal
