-- JSON straight between Lua values and text, with the serialiser options of Tarantool's `json`.
--
--     json.encode(value[, options])     json.decode(text[, options])     json.new()     json.cfg{ option = value }
--
-- How a Lua value becomes JSON (`append`): tables by their keys or by `__serialize`, numbers exactly when they are whole,
-- 64-bit numbers of the FFI, and decimals, UUIDs, datetimes, intervals, errors and binary data as text. An object of the
-- FFI is recognised by the registration its own module made for MessagePack.

local _, load = ...
local ffi = require('ffi')
local msgpack = load('cord.msgpack')
local floor, huge = math.floor, math.huge
local byte, char, find, format, sub = string.byte, string.char, string.find, string.format, string.sub
local concat, error, getmetatable, next, pcall, rawget, setmetatable = table.concat, error, getmetatable, next, pcall,
    rawget, setmetatable
local tonumber, tostring, type = tonumber, tostring, type
-- Objects that hide their metatable have a __serialize all the same, as for cord.msgpack.
local rawmetatable = debug.getmetatable

local NULL = msgpack.NULL
local array_mt = msgpack.array_mt or { __serialize = 'seq' }
local map_mt = msgpack.map_mt or { __serialize = 'map' }

local BOOLEANS = {
    encode_sparse_convert = true, encode_deep_as_nil = false, encode_invalid_numbers = true, encode_load_metatables = true,
    encode_use_tostring = false, encode_invalid_as_nil = false, encode_error_as_ext = true, decode_invalid_numbers = true,
    decode_save_metatables = true,
}
local NUMBERS = {
    encode_sparse_ratio = 2, encode_sparse_safe = 10, encode_max_depth = 128, encode_number_precision = 14,
    decode_max_depth = 128,
}

--- Copies the options of `from` that exist into `to`, each as its type.
local function set_options(to, from)
    if from == nil then
        return to
    end
    for name in next, BOOLEANS do
        if from[name] ~= nil then
            to[name] = from[name] and true or false
        end
    end
    for name in next, NUMBERS do
        if from[name] ~= nil then
            to[name] = floor(tonumber(from[name]) or 0)
        end
    end
    if from.encode_key_order ~= nil then
        local order = {}
        for _, key in ipairs(from.encode_key_order) do
            if type(key) == 'string' or type(key) == 'number' then
                order[#order + 1] = tostring(key)
            end
        end
        to.encode_key_order = #order > 0 and order or nil
    end
    to.number_format = '%.' .. to.encode_number_precision .. 'g'
    return to
end

local function copy(options)
    local result = {}
    for name, value in next, options do
        result[name] = value
    end
    return result
end

-- What `fail` raises: text that the public function raises again, where its caller stands.
local Failure = {}

local function fail(text, ...)
    error(setmetatable({ text = format(text, ...) }, Failure), 0)
end

-- ------------------------------------------------------------------------------------------------------- encoding

local ESCAPES = { ['"'] = '\\"', ['\\'] = '\\\\', ['\b'] = '\\b', ['\t'] = '\\t', ['\n'] = '\\n', ['\f'] = '\\f', ['\r'] = '\\r' }
for code = 0, 31 do
    ESCAPES[char(code)] = ESCAPES[char(code)] or format('\\u%04x', code)
end
ESCAPES['\127'] = '\\u007f'

--- Whether the text needs escapes. Short texts are looked through byte by byte, which LuaJIT compiles.
local function is_plain(text)
    local length = #text
    if length > 40 then
        return not find(text, '[%c"\\\127]')
    end
    for i = 1, length do
        local code = byte(text, i)
        if code < 32 or code == 34 or code == 92 or code == 127 then
            return false
        end
    end
    return true
end

local function quote(text)
    if not is_plain(text) then
        text = text:gsub('[%c"\\\127]', ESCAPES)
    end
    return '"' .. text .. '"'
end

--- Whole numbers have all their digits as long as 64 bits hold them; the others have as many as the option says.
local function number_text(value, options)
    if value % 1 == 0 and value > -huge and value < huge then
        if value > -2 ^ 53 and value < 2 ^ 53 then
            return format('%d', value)
        elseif value >= -2 ^ 63 and value < 2 ^ 64 then
            return format('%.0f', value)
        end
    elseif value ~= value or value == huge or value == -huge then
        if not options.encode_invalid_numbers then
            if not options.encode_invalid_as_nil then
                fail('number must not be NaN or Inf')
            end
            return 'null'
        end
        return value ~= value and 'nan' or value > 0 and 'inf' or '-inf'
    end
    return format(options.number_format, value)
end

local INT64, UINT64 = tonumber(ffi.typeof('int64_t')), tonumber(ffi.typeof('uint64_t'))
local FLOAT, DOUBLE = tonumber(ffi.typeof('float')), tonumber(ffi.typeof('double'))
local BOOL = tonumber(ffi.typeof('bool'))
local SMALL, POINTERS = {}, {}
for _, name in ipairs({ 'int8_t', 'uint8_t', 'int16_t', 'uint16_t', 'int32_t', 'uint32_t', 'char' }) do
    SMALL[tonumber(ffi.typeof(name))] = true
end
for _, name in ipairs({ 'void *', 'const void *' }) do
    POINTERS[tonumber(ffi.typeof(name))] = true
end

local append

--- The text of cdata that JSON can show by itself; nil for anything else.
local function cdata_text(value, options)
    local id = tonumber(ffi.typeof(value))
    if id == INT64 then
        return sub(tostring(value), 1, -3)
    elseif id == UINT64 then
        return sub(tostring(value), 1, -4)
    elseif SMALL[id] or id == FLOAT or id == DOUBLE then
        return number_text(tonumber(value), options)
    elseif id == BOOL then
        return tostring(value == true or tonumber(value) == 1)
    elseif POINTERS[id] then
        return value == nil and 'null' or nil
    end
    local kind = msgpack.ext.by_ctype[id]
    if kind then
        return quote(kind.name == 'error' and value.message or tostring(value))
    end
end

local function field_of(value)
    return value.__serialize
end

--- cdata and userdata with a `__serialize` of their own; whatever remains.
local function append_other(out, at, value, depth, options)
    local kind = type(value)
    if options.encode_load_metatables and (kind == 'cdata' or kind == 'userdata') then
        local found, serialize = pcall(field_of, value)
        if found and serialize ~= nil then
            if type(serialize) ~= 'function' then
                fail('invalid __serialize value')
            end
            return append(out, at, serialize(value), depth, options)
        end
    end
    if options.encode_use_tostring then
        return append(out, at, tostring(value), depth, options)
    elseif options.encode_invalid_as_nil then
        out[at] = 'null'
        return at + 1
    end
    fail("unsupported Lua type '%s'", kind)
end

local function key_text(key, options)
    local kind = type(key)
    if kind == 'string' then
        return quote(key) .. ':'
    elseif kind == 'number' and key % 1 == 0 and key >= -2 ^ 63 and key < 2 ^ 64 then
        return '"' .. number_text(key, options) .. '":'
    elseif kind == 'cdata' then
        local id = tonumber(ffi.typeof(key))
        if id == INT64 or id == UINT64 or SMALL[id] then
            return '"' .. cdata_text(key, options) .. '":'
        end
    end
    fail('table key must be a number or string')
end

--- Keys of maps repeat: their texts are kept for the duration of a call.
local function kept_key_text(key, options)
    local text = options.keys[key]
    if not text then
        text = key_text(key, options)
        options.keys[key] = text
    end
    return text
end

--- The fields that `encode_key_order` names, in that order. Returns the next index and the set of those keys.
local function append_ordered(out, at, value, depth, options)
    local done = {}
    for _, key in ipairs(options.encode_key_order) do
        local item = value[key]
        if item ~= nil and not done[key] then
            out[at] = (next(done) and ',' or '') .. kept_key_text(key, options)
            done[key] = true
            at = append(out, at + 1, item, depth + 1, options)
        end
    end
    return at, done
end

local function append_map(out, at, value, depth, options)
    out[at] = '{'
    at = at + 1
    local first, done = true, nil
    if options.encode_key_order then
        at, done = append_ordered(out, at, value, depth, options)
        first = next(done) == nil
    end
    for key, item in next, value do
        if not (done and done[key]) then
            if not first then
                out[at] = ','
                at = at + 1
            end
            first = false
            out[at] = kept_key_text(key, options)
            at = append(out, at + 1, item, depth + 1, options)
        end
    end
    out[at] = '}'
    return at + 1
end

local function append_array(out, at, value, length, depth, options)
    out[at] = '['
    at = at + 1
    for i = 1, length do
        if i > 1 then
            out[at] = ','
            at = at + 1
        end
        at = append(out, at, rawget(value, i), depth + 1, options)
    end
    out[at] = ']'
    return at + 1
end

--- The highest index of a table that says it is an array.
local function hinted_length(value)
    local length = 0
    for key in next, value do
        if type(key) == 'number' and key > length then
            length = floor(key)
        end
    end
    return length
end

--- The length of an array, or nil for a map: keys that are no indexes, or too many holes.
local function array_length(value, options)
    local size, highest = 0, 0
    for key in next, value do
        size = size + 1
        if type(key) ~= 'number' or key ~= size and (key < 1 or key % 1 ~= 0) then
            return nil
        end
        highest = key > highest and key or highest
    end
    local ratio = options.encode_sparse_ratio
    if ratio > 0 and highest > size * ratio and highest > options.encode_sparse_safe then
        if not options.encode_sparse_convert then
            fail('excessively sparse array')
        end
        return nil
    end
    return highest
end

local SEQUENCE = { seq = true, sequence = true, array = true }
local MAPPING = { map = true, mapping = true }

local function append_table(out, at, value, depth, options)
    local meta = options.encode_load_metatables and rawmetatable(value)
    local serialize = type(meta) == 'table' and rawget(meta, '__serialize')
    local length
    if serialize == nil or serialize == false then
        length = array_length(value, options)
    elseif SEQUENCE[serialize] then
        length = hinted_length(value)
    elseif type(serialize) == 'function' then
        return append(out, at, serialize(value), depth, options)
    elseif not MAPPING[serialize] then
        fail('invalid __serialize value')
    end
    if depth >= options.encode_max_depth then
        if not options.encode_deep_as_nil then
            fail('Too high nest level')
        end
        out[at] = 'null'
        return at + 1
    end
    if length then
        return append_array(out, at, value, length, depth, options)
    end
    return append_map(out, at, value, depth, options)
end

--- Writes `value` into `out` from index `at` on and returns the next index.
function append(out, at, value, depth, options)
    local kind = type(value)
    if kind == 'string' then
        out[at] = quote(value)
    elseif kind == 'number' then
        out[at] = number_text(value, options)
    elseif kind == 'table' then
        return append_table(out, at, value, depth, options)
    elseif kind == 'boolean' then
        out[at] = value and 'true' or 'false'
    elseif kind == 'nil' or kind == 'userdata' and tostring(value) == 'userdata: NULL' then
        out[at] = 'null'
    else
        local text = kind == 'cdata' and cdata_text(value, options)
        if not text then
            return append_other(out, at, value, depth, options)
        end
        out[at] = text
    end
    return at + 1
end

-- ------------------------------------------------------------------------------------------------------- decoding

local UNESCAPES = { ['"'] = '"', ['\\'] = '\\', ['/'] = '/', b = '\b', t = '\t', n = '\n', f = '\f', r = '\r' }
local WORDS = { { 'true', true }, { 'false', false }, { 'null', NULL } }
local ODD_NUMBERS = { { 'inf', huge }, { '-inf', -huge }, { 'nan', 0 / 0 }, { '-nan', 0 / 0 } }
-- Integers up to this are Lua numbers, larger ones 64-bit cdata.
local SAFE = 1e14

--- Line and column of a position, and the text around it with an arrow.
local function locate(text, at)
    local line, start = 1, 1
    for newline in text:sub(1, at - 1):gmatch('()\n') do
        line, start = line + 1, newline + 1
    end
    local before = sub(text, math.max(start, at - 8), at - 1)
    local after = sub(text, at, at + 7):match('^[^%z\n]*')
    return line, at - start + 1, before .. ' >> ' .. after
end

local function unexpected(text, at, wanted, found)
    fail("Expected %s but found %s on line %d at character %d here '%s'", wanted, found, locate(text, at))
end

--- Names what stands at `at` for error messages; `token_end` finds where a literal is broken.
local function describe(text, at, options)
    local first = sub(text, at, at)
    if first == '' or first == '\0' then
        return 'end'
    elseif find(first, '[%[%]{}]') then
        return "'" .. first .. "'"
    elseif first == ':' then
        return 'colon'
    elseif first == ',' then
        return 'comma'
    elseif first == '"' then
        return 'string'
    elseif find(text, '^%-?%d', at) and not find(text, '^%-?0[%dxX]', at) then
        local integer = text:match('^%-?%d+', at)
        return find(text, '^[.eE]', at + #integer) and 'number' or 'int'
    end
    for _, word in ipairs(WORDS) do
        if sub(text, at, at + #word[1] - 1) == word[1] then
            return word[1] == 'null' and 'null' or 'boolean'
        end
    end
    if options.decode_invalid_numbers and (find(text, '^%-?inf', at) or find(text, '^%-?nan', at)) then
        return 'number'
    end
    return 'invalid token'
end

local function utf8(code)
    if code < 0x80 then
        return char(code)
    elseif code < 0x800 then
        return char(0xc0 + floor(code / 0x40), 0x80 + code % 0x40)
    elseif code < 0x10000 then
        return char(0xe0 + floor(code / 0x1000), 0x80 + floor(code / 0x40) % 0x40, 0x80 + code % 0x40)
    end
    return char(0xf0 + floor(code / 0x40000), 0x80 + floor(code / 0x1000) % 0x40, 0x80 + floor(code / 0x40) % 0x40,
        0x80 + code % 0x40)
end

--- The character of the \u escape at `at`, and where it ends; nil when it is none.
local function unicode_escape(text, at)
    local code = tonumber(text:match('^\\u(%x%x%x%x)', at) or 'x', 16)
    if not code then
        return nil
    elseif code < 0xd800 or code > 0xdfff then
        return utf8(code), at + 6
    end
    local low = tonumber(text:match('^\\u(%x%x%x%x)', at + 6) or 'x', 16)
    if code > 0xdbff or not low or low < 0xdc00 or low > 0xdfff then
        return nil
    end
    return utf8(0x10000 + (code - 0xd800) * 0x400 + low - 0xdc00), at + 12
end

--- The rest of `decode_string` for a string with escapes, of which `stop` is the first backslash or NUL.
local function decode_escapes(text, start, stop, wanted)
    local parts = {}
    while stop do
        parts[#parts + 1] = sub(text, start, stop - 1)
        local code = byte(text, stop)
        if code == 34 then
            return concat(parts), stop + 1
        elseif code == 0 then
            unexpected(text, stop, wanted, 'unexpected end of string')
        end
        local escape = sub(text, stop + 1, stop + 1)
        if escape == 'u' then
            local decoded, after = unicode_escape(text, stop)
            if not decoded then
                unexpected(text, stop, wanted, 'invalid unicode escape code')
            end
            parts[#parts + 1], start = decoded, after
        elseif UNESCAPES[escape] then
            parts[#parts + 1], start = UNESCAPES[escape], stop + 2
        else
            unexpected(text, stop, wanted, 'invalid escape code')
        end
        stop = find(text, '["\\%z]', start)
    end
    unexpected(text, #text + 1, wanted, 'unexpected end of string')
end

--- Where `mark` is next, from `at` on. The answer is kept in `seen`, so that a text is searched once, not once a string.
local function next_mark(text, at, mark, seen)
    local found = seen[mark]
    if found < at then
        found = find(text, mark, at, true) or huge
        seen[mark] = found
    end
    return found
end

--- The string whose opening quote is at `at`, and the position after it. `wanted` is for error messages.
local function decode_string(text, at, wanted, options)
    local start = at + 1
    local stop = find(text, '"', start, true) or huge
    local special = math.min(next_mark(text, start, '\\', options.seen), next_mark(text, start, '\0', options.seen))
    if stop < special then
        return sub(text, start, stop - 1), stop + 1
    end
    return decode_escapes(text, start, special < huge and special or nil, wanted)
end

--- A whole number: a Lua number as long as that is exact, then 64-bit cdata, then the nearest double.
local function integer(digits)
    local value = tonumber(digits)
    if value > -SAFE and value < SAFE then
        -- No negative zero: it is no integer.
        return value + 0
    end
    local negative = byte(digits) == 45
    local plain = (negative and sub(digits, 2) or digits):gsub('^0+', '')
    local limit = negative and '9223372036854775808' or '18446744073709551615'
    if #plain > #limit or #plain == #limit and plain > limit then
        return value
    end
    local result = 0ULL
    for i = 1, #plain do
        result = result * 10 + (byte(plain, i) - 48)
    end
    if negative then
        return -ffi.cast('int64_t', result)
    end
    return result < 9223372036854775807ULL and ffi.cast('int64_t', result) or result
end

--- The number at `at` and the position after it; nil when there is none.
local function decode_number(text, at, options)
    -- A short whole number, the usual one, needs no pattern.
    local code, short, last = byte(text, at), 0, at
    if code and code >= 49 and code <= 57 then
        while code and code >= 48 and code <= 57 and last < at + 14 do
            short, last = short * 10 + (code - 48), last + 1
            code = byte(text, last)
        end
        if code ~= 46 and code ~= 69 and code ~= 101 and not (code and code >= 48 and code <= 57) then
            return short, last
        end
    end
    local _, stop = find(text, '^%-?%d+', at)
    if not stop or find(text, '^%-?0[%dxX]', at) then
        return nil
    end
    local following = byte(text, stop + 1)
    if following ~= 46 and following ~= 69 and following ~= 101 then
        return integer(sub(text, at, stop)), stop + 1
    end
    _, stop = find(text, '^%.?%d*', stop + 1)
    local _, exponent = find(text, '^[eE][+-]?%d+', stop + 1)
    stop = exponent or stop
    local value = tonumber(sub(text, at, stop))
    if (value == huge or value == -huge) and not options.decode_invalid_numbers then
        fail('number must not be NaN or Inf')
    end
    return value, stop + 1
end

local function decode_word(text, at, options)
    for _, word in ipairs(WORDS) do
        if sub(text, at, at + #word[1] - 1) == word[1] then
            return word[2], at + #word[1]
        end
    end
    if options.decode_invalid_numbers then
        for _, word in ipairs(ODD_NUMBERS) do
            if sub(text, at, at + #word[1] - 1) == word[1] then
                return word[2], at + #word[1]
            end
        end
    end
    unexpected(text, at, 'value', describe(text, at, options))
end

local function skip(text, at)
    local code = byte(text, at)
    if code and code > 32 then
        return at
    end
    return find(text, '[^ \t\n\r]', at) or #text + 1
end

local function descend(text, at, depth, options)
    if depth > options.decode_max_depth then
        local line, column, context = locate(text, at)
        fail("Found too many nested data structures (%d) on line %d at character %d here '%s'", depth, line, column, context)
    end
end

local decode_value

local function decode_array(text, at, depth, options)
    descend(text, at, depth, options)
    local result, length = {}, 0
    at = skip(text, at + 1)
    if byte(text, at) ~= 93 then
        while true do
            length = length + 1
            result[length], at = decode_value(text, at, depth, options)
            at = skip(text, at)
            local separator = byte(text, at)
            if separator == 93 then
                break
            elseif separator ~= 44 then
                unexpected(text, at, "comma or ']'", describe(text, at, options))
            end
            at = skip(text, at + 1)
        end
    end
    return options.decode_save_metatables and setmetatable(result, array_mt) or result, at + 1
end

local function decode_map(text, at, depth, options)
    descend(text, at, depth, options)
    local result = {}
    at = skip(text, at + 1)
    if byte(text, at) ~= 125 then
        while true do
            local key
            if byte(text, at) ~= 34 then
                unexpected(text, at, 'object key string', describe(text, at, options))
            end
            key, at = decode_string(text, at, 'object key string', options)
            at = skip(text, at)
            if byte(text, at) ~= 58 then
                unexpected(text, at, 'colon', describe(text, at, options))
            end
            result[key], at = decode_value(text, skip(text, at + 1), depth, options)
            at = skip(text, at)
            local separator = byte(text, at)
            if separator == 125 then
                break
            elseif separator ~= 44 then
                unexpected(text, at, "comma or '}'", describe(text, at, options))
            end
            at = skip(text, at + 1)
        end
    end
    return options.decode_save_metatables and setmetatable(result, map_mt) or result, at + 1
end

--- The value at `at` (no space before it) and the position after it.
function decode_value(text, at, depth, options)
    local first = byte(text, at)
    if first == 34 then
        return decode_string(text, at, 'value', options)
    elseif first == 123 then
        return decode_map(text, at, depth + 1, options)
    elseif first == 91 then
        return decode_array(text, at, depth + 1, options)
    end
    local value, after = decode_number(text, at, options)
    if after then
        return value, after
    end
    return decode_word(text, at, options)
end

local function decode_text(text, options)
    if #text >= 2 and find(sub(text, 1, 2), '%z') then
        fail('JSON parser does not support UTF-16 or UTF-32')
    end
    options = setmetatable({ seen = { ['\\'] = 0, ['\0'] = 0 } }, { __index = options })
    local value, at = decode_value(text, skip(text, 1), 0, options)
    at = skip(text, at)
    if at <= #text then
        unexpected(text, at, 'the end', describe(text, at, options))
    end
    return value
end

local function encode_value(value, options)
    local out = {}
    options = setmetatable({ keys = {} }, { __index = options })
    local count = append(out, 1, value, 0, options)
    return concat(out, '', 1, count - 1)
end

-- ----------------------------------------------------------------------------------------------------- the module

--- Wraps `run` as `name(value[, options])`, with the module's own options where the call names no other.
local function public(name, settings, run, check)
    return function(...)
        local count = select('#', ...)
        local value, options = ...
        if count ~= 1 and count ~= 2 then
            error(format("bad argument #1 to '%s' (expected 1 or 2 arguments)", name), 2)
        elseif options ~= nil and type(options) ~= 'table' then
            error(format("bad argument #2 to '%s' (table expected, got %s)", name, type(options)), 2)
        end
        if check and type(value) == 'number' then
            value = tostring(value)
        elseif check and type(value) ~= 'string' then
            error(format("bad argument #1 to '%s' (string expected, got %s)", name, type(value)), 2)
        end
        local fine, result = pcall(run, value, options and set_options(copy(settings), options) or settings)
        if fine then
            return result
        elseif getmetatable(result) == Failure then
            error(result.text, 2)
        end
        -- Raised by somebody's __serialize or __tostring.
        error(result, 0)
    end
end

local function new()
    local settings = {}
    for name, value in next, BOOLEANS do
        settings[name] = value
    end
    for name, value in next, NUMBERS do
        settings[name] = value
    end
    local json = { NULL = NULL, null = NULL, array_mt = array_mt, map_mt = map_mt, new = new }
    json.cfg = setmetatable(copy(settings), {
        __call = function(self, options)
            if type(options) ~= 'table' then
                error(format("bad argument #2 to 'cfg' (table expected, got %s)", type(options)), 2)
            end
            set_options(settings, options)
            for name in next, options do
                if BOOLEANS[name] ~= nil or NUMBERS[name] or name == 'encode_key_order' then
                    self[name] = settings[name]
                end
            end
        end,
    })
    set_options(settings, {})
    json.encode = public('encode', settings, encode_value)
    json.decode = public('decode', settings, decode_text, true)
    return json
end

return new()
