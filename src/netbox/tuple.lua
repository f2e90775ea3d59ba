-- Tuples: plain Lua arrays that share one metatable a format. Names resolve through the format; a name of the format
-- wins over a method of the same name, and cord.netbox.tuple.<method>(t) reaches the hidden one.
local native, load = ...

local E = load('cord.error')
local raise, complain = E.raise_at_caller, E.complain
local msgpack = load('cord.msgpack')
local json = load('cord.json')

-- Not named pairs, lest LuaJIT compiles loops that a finalizer may never leave: docs/jit.md.
local type, rawget, getmetatable, setmetatable, select, pcall, every, ipairs =
    type, rawget, getmetatable, setmetatable, select, pcall, pairs, ipairs
local tostring, unpack, concat = tostring, unpack, table.concat
local find, match, sub = string.find, string.match, string.sub
local NULL = msgpack.NULL

local methods = {}
-- Metatable -> its format; weak, so that a format dies with its last tuple.
local formats = setmetatable({}, { __mode = 'k' })

local function is_tuple(t)
    return type(t) == 'table' and formats[getmetatable(t)] ~= nil
end

local function check(t, name)
    if not is_tuple(t) then
        return complain('Usage: tuple:' .. name)
    end
end

-- ---------------------------------------------------------------- paths

-- The next step of a JSON path from position `at`: a name or a 1-based number, and where the next one begins.
local function step(path, at)
    local first = sub(path, at, at)
    if first == '[' then
        local number, rest = match(path, '^%[(%d+)%]()', at)
        if number then
            return tonumber(number), rest
        end
        local quoted, after = match(path, '^%["([^"]*)"%]()', at)
        if not quoted then
            quoted, after = match(path, "^%['([^']*)'%]()", at)
        end
        return quoted, after
    end
    if first == '.' then
        at = at + 1
    end
    local name, rest = match(path, '^([^.%[%]]+)()', at)
    return name, rest
end

local function field_by_path(t, names, path)
    local at, value, first = 1, t, true
    local length = #path
    while at <= length do
        local key, rest = step(path, at)
        if key == nil then
            return nil
        end
        if first and type(key) == 'string' then
            key = names[key]
            if key == nil then
                return nil
            end
        end
        if type(value) ~= 'table' then
            return nil
        end
        value, at, first = rawget(value, key), rest, false
    end
    return value
end

-- ---------------------------------------------------------------- methods

function methods.totable(t, i, j)
    check(t, 'totable([first[, last]])')
    local n = #t
    if i == nil then
        i, j = 1, n
    else
        if type(i) ~= 'number' or i < 1 then
            return complain('tuple.totable: invalid second argument')
        end
        if j == nil then
            j = n
        elseif type(j) ~= 'number' or j < 1 then
            return complain('tuple.totable: invalid third argument')
        end
    end
    local result = setmetatable({}, msgpack.array_mt)
    for k = i, j < n and j or n do
        result[#result + 1] = t[k]
    end
    return result
end

function methods.unpack(t, i, j)
    check(t, 'unpack([first[, last]])')
    return unpack(t, i or 1, j or #t)
end

function methods.slice(t, first, last)
    check(t, 'slice(first[, last])')
    local n = #t
    if type(first) ~= 'number' then
        return complain('tuple.slice(): bad arguments')
    end
    if first < 0 then
        first = first + n
    end
    if last == nil then
        last = n
    elseif type(last) ~= 'number' then
        return complain('tuple.slice(): bad arguments')
    end
    if last < 0 then
        last = last + n
    end
    if first >= n or first < 0 then
        return complain('tuple.slice(): start >= field count')
    elseif last > n then
        return complain('tuple.slice(): end > field count')
    elseif last <= first then
        return complain('tuple.slice(): start must be less than end')
    end
    return unpack(t, first + 1, last)
end

local function next_field(t, i)
    i = i + 1
    local value = t[i]
    if value ~= nil or i <= #t then
        return i, value
    end
end

function methods.ipairs(t)
    check(t, 'ipairs()')
    return next_field, t, 0
end
methods.pairs = methods.ipairs

function methods.next(t, i)
    check(t, 'next([key])')
    if i == nil then
        i = 0
    end
    if type(i) ~= 'number' then
        return complain('error: invalid key to \'next\'')
    elseif i < 0 or i > #t then
        return nil
    end
    return next_field(t, i)
end

-- The numbers of the fields behind the first `from` that equal a value: the first of them, or a list of all.
local function search(t, from, value, all)
    local n = #t
    if type(from) ~= 'number' or from < 0 or from > n or from ~= from then
        return complain("error: invalid key to 'next'")
    end
    local found = {}
    for i = from + 1, n do
        if t[i] == value then
            if not all then
                return i
            end
            found[#found + 1] = i
        end
    end
    return all and found or nil
end

function methods.find(t, offset, value)
    check(t, 'find([offset,] value)')
    if value ~= nil then
        return search(t, offset, value)
    end
    return search(t, 0, offset)
end

function methods.findall(t, offset, value)
    check(t, 'findall([offset,] value)')
    if value ~= nil then
        return search(t, offset, value, true)
    end
    return search(t, 0, offset, true)
end

local function copy(t)
    local result = {}
    for i = 1, #t do
        result[i] = t[i]
    end
    return result
end

function methods.transform(t, offset, count, ...)
    check(t, 'transform(start, count[, fields])')
    local n = #t
    if type(offset) ~= 'number' or type(count) ~= 'number' then
        return complain('tuple.transform(): bad arguments')
    elseif offset < 0 then
        offset = offset + n + 1
    end
    if offset < 1 or offset ~= offset then
        return complain('tuple.transform(): offset is out of bound')
    end
    offset = offset > n + 1 and n + 1 or offset
    if count < 0 then
        return complain('tuple.transform(): len is negative')
    end
    local result = {}
    for i = 1, offset - 1 do
        result[i] = t[i]
    end
    local new = { n = select('#', ...), ... }
    for i = 1, new.n do
        result[#result + 1] = new[i]
    end
    for i = offset + count, n do
        result[#result + 1] = t[i]
    end
    return setmetatable(result, getmetatable(t))
end

function methods.bsize(t)
    check(t, 'bsize()')
    return #msgpack.encode(t)
end

function methods.tomap(t, options)
    check(t, 'tomap([{names_only = boolean}])')
    local format = formats[getmetatable(t)]
    local result = {}
    if options ~= nil and type(options) ~= 'table' then
        return complain('Usage: tuple:tomap([{names_only = boolean}])')
    end
    if options == nil or not options.names_only then
        for i = 1, #t do
            result[i] = t[i]
        end
    end
    for i = 1, #format do
        if i <= #t then
            result[format[i].name] = t[i]
        end
    end
    return setmetatable(result, msgpack.map_mt)
end

function methods.format(t)
    check(t, 'format()')
    return formats[getmetatable(t)]
end

function methods.info(t)
    check(t, 'info()')
    return { data_size = methods.bsize(t), header_size = 0, field_map_size = 0, waste_size = 0, arena = 'runtime' }
end

-- ---------------------------------------------------------------- update

-- The operations are those of the space engine, texts of errors included.
local function change(t, operations, upsert)
    local meta = getmetatable(t)
    local code, result, class = native.change(msgpack.encode(t), msgpack.encode(operations), meta.__tuple_format, upsert)
    if code == true then
        return setmetatable((msgpack.decode(result)), meta)
    elseif class == 'IllegalParams' then
        return raise(E.illegal_params(result))
    end
    return raise(E.client(code, result))
end

function methods.update(t, operations)
    if not is_tuple(t) or type(operations) ~= 'table' then
        return complain('Usage: tuple:update({ { op, field, arg}+ })')
    end
    return change(t, operations, false)
end

function methods.upsert(t, operations)
    if not is_tuple(t) or type(operations) ~= 'table' then
        return complain('Usage: tuple:upsert({ { op, field, arg}+ })')
    end
    return change(t, operations, true)
end

-- ---------------------------------------------------------------- metatables

-- Texts are quoted as Tarantool's console would: plainly, with escapes, or in base64 where they are no UTF-8.
local BASE64 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'

local function base64(text)
    local out = {}
    for at = 1, #text, 3 do
        local a, b, c = text:byte(at, at + 2)
        local bits = a * 65536 + (b or 0) * 256 + (c or 0)
        for i = 1, 4 do
            local digit = math.floor(bits / 64 ^ (4 - i)) % 64 + 1
            out[#out + 1] = (i <= 2 or i == 3 and b or i == 4 and c) and sub(BASE64, digit, digit) or '='
        end
    end
    return concat(out)
end

local ESCAPES = { ['\n'] = '\\n', ['\r'] = '\\r', ['\t'] = '\\t', ['"'] = '\\"', ['\\'] = '\\\\', ['\0'] = '\\0' }

local function escaped(byte)
    return ESCAPES[byte] or string.format('\\x%02X', byte:byte())
end

-- Whether a text is UTF-8: each lead byte with as many followers as it says.
local function is_utf8(text)
    local at, n = 1, #text
    while at <= n do
        local _, last = find(text, '^[%z\1-\127]+', at)
        if not last then
            last = select(2, find(text, '^[\194-\223][\128-\191]', at))
                or select(2, find(text, '^[\224-\239][\128-\191][\128-\191]', at))
                or select(2, find(text, '^[\240-\244][\128-\191][\128-\191][\128-\191]', at))
        end
        if not last then
            return false
        end
        at = last + 1
    end
    return true
end

local function quoted(text)
    if not find(text, '[%z\1-\31\127-\255]') then
        return "'" .. text:gsub("'", "''") .. "'"
    elseif not is_utf8(text) then
        return '!!binary ' .. base64(text)
    elseif find(text, '[%z\1-\31\127]') then
        return '"' .. text:gsub('[%z\1-\31\127"\\]', escaped) .. '"'
    end
    return "'" .. text:gsub("'", "''") .. "'"
end

-- Whether a table is to be shown as a map: what it says itself, else what its keys say.
local function is_map(value)
    local meta = getmetatable(value)
    local hint = type(meta) == 'table' and meta.__serialize
    if hint == 'map' or hint == 'mapping' then
        return true
    elseif type(hint) == 'string' then
        return false
    end
    for key in every(value) do
        if type(key) ~= 'number' or key < 1 or key % 1 ~= 0 then
            return true
        end
    end
    return false
end

local function text_of_value(value, depth)
    local kind = type(value)
    if value == nil then
        return 'null'
    elseif kind == 'string' then
        return quoted(value)
    elseif kind == 'number' then
        return json.encode(value)
    elseif kind ~= 'table' or depth > 100 then
        return (tostring(value):gsub('U?LL$', ''))
    end
    local parts = {}
    if is_map(value) then
        for key, item in every(value) do
            parts[#parts + 1] = text_of_value(key, depth + 1) .. ': ' .. text_of_value(item, depth + 1)
        end
        return '{' .. concat(parts, ', ') .. '}'
    end
    for i = 1, table.maxn(value) do
        parts[i] = text_of_value(value[i], depth + 1)
    end
    return '[' .. concat(parts, ', ') .. ']'
end

local function text_of(t)
    local parts = {}
    for i = 1, #t do
        parts[i] = text_of_value(t[i], 1)
    end
    return '[' .. concat(parts, ', ') .. ']'
end

-- One metatable a list of fields, whatever connection it comes from, for as long as anybody uses it.
local shared = setmetatable({}, { __mode = 'v' })

-- The format as a tuple that travels as an extension brings it along (TUPLE_FORMATS): native code reads it from here.
local function wire_form(format)
    local ok, bytes = pcall(msgpack.encode, setmetatable(copy(format), msgpack.array_mt))
    return ok and bytes or '\144'
end

-- The metatable of tuples with this format (a list of {name = ...}); nil and {} mean no names.
local function metatable_of(format)
    format = format ~= nil and format or {}
    if type(format) ~= 'table' then
        return complain('tuple.metatable_of: a list of fields expected, got ' .. type(format))
    end
    local keys = {}
    for i = 1, #format do
        local field = format[i]
        if type(field) ~= 'table' or type(field.name) ~= 'string' then
            return complain('tuple.metatable_of: a field is a table with a name')
        end
        keys[i] = #field.name .. ':' .. field.name .. ':' .. tostring(field.type) .. (field.is_nullable and '?' or '')
    end
    local key = concat(keys, ',')
    local meta = shared[key]
    if meta ~= nil then
        return meta
    end
    local names = {}
    for i = 1, #format do
        names[format[i].name] = i
    end
    meta = { names = names, __serialize = 'seq', __tostring = text_of, __tuple_format = wire_form(format) }
    function meta.__index(t, name)
        local i = names[name]
        if i ~= nil then
            return rawget(t, i)
        end
        local method = methods[name]
        if method ~= nil then
            return method
        end
        if type(name) == 'string' and find(name, '[.%[]') then
            return field_by_path(t, names, name)
        end
        return nil
    end
    formats[meta] = format
    shared[key] = meta
    return meta
end

-- ---------------------------------------------------------------- tuples that bring their formats

-- The metatables of the packet that is being decoded, by the numbers it gives its formats: the native half of
-- cord.msgpack reads them from here. Then the bytes they were made of.
local format_metas, format_bytes = msgpack.ext.tuple_metas, nil

-- Takes the formats (TUPLE_FORMATS, MessagePack) of the tuples that are decoded next; nil: they bring none.
local function set_formats(bytes)
    if bytes == format_bytes then
        return
    end
    format_bytes = nil
    for id in every(format_metas) do
        format_metas[id] = nil
    end
    format_metas[-1] = metatable_of(nil)
    for id, fields in every(bytes and msgpack.decode(bytes) or {}) do
        local format = {}
        for i, field in ipairs(fields) do
            format[i] = type(field) == 'table' and field or { name = field }
        end
        format_metas[tonumber(id)] = metatable_of(format)
    end
    format_bytes = bytes
end
format_metas[-1] = metatable_of(nil)

-- What the native half does not make: formats with large numbers, and payloads that are broken.
msgpack.ext.register {
    type = 7,
    name = 'tuple',
    decode = function(payload)
        local id, at = msgpack.decode(payload)
        local first = payload:byte(at) or 0
        local is_array = first >= 0x90 and first <= 0x9f or first == 0xdc or first == 0xdd
        local fields, rest = msgpack.decode(payload, at)
        if tonumber(id) == nil or type(id) == 'string' or not is_array or rest ~= #payload + 1 then
            return error('Invalid MsgPack - a tuple expected', 0)
        end
        return setmetatable(fields, format_metas[id] or format_metas[-1])
    end,
}

local tuple = { metatable_of = metatable_of, is = is_tuple, methods = methods, NULL = NULL, _set_formats = set_formats }

-- A tuple of the fields of an array, with no names.
function tuple.new(t, ...)
    if type(t) ~= 'table' then
        t = { t, ... }
    end
    return setmetatable(copy(t), metatable_of(nil))
end

for name, method in every(methods) do
    tuple[name] = method
end

return tuple
