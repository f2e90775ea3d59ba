-- Tuples: plain Lua arrays that share one metatable a format. Names resolve through the format; a name of the format
-- wins over a method of the same name, and cord.netbox.tuple.<method>(t) reaches the hidden one.
local _, load = ...

local E = load('cord.error')
local raise, complain = E.raise_at_caller, E.complain
local msgpack = load('cord.msgpack')
local json = load('cord.json')

local type, rawget, getmetatable, setmetatable, select, pcall, pairs, ipairs =
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
    if first >= n then
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
    if type(i) ~= 'number' or i < 0 or i > #t then
        return complain('error: invalid key to \'next\'')
    end
    return next_field(t, i)
end

local function search(t, from, value, all)
    local found = {}
    for i = from + 1, #t do
        if t[i] == value then
            if not all then
                return i - 1
            end
            found[#found + 1] = i - 1
        end
    end
    if all then
        return unpack(found)
    end
end

local function check_offset(offset, usage)
    -- NaN too is none.
    if type(offset) ~= 'number' or offset < 0 or offset ~= offset then
        return complain('Usage: tuple:' .. usage)
    end
end

function methods.find(t, offset, value)
    check(t, 'find([offset,] value)')
    if value ~= nil then
        check_offset(offset, 'find([offset,] value)')
        return search(t, offset, value)
    end
    return search(t, 0, offset)
end

function methods.findall(t, offset, value)
    check(t, 'findall([offset,] value)')
    if value ~= nil then
        check_offset(offset, 'findall([offset,] value)')
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
    if type(offset) ~= 'number' or offset == 0 then
        return complain('tuple.transform(): offset is out of bound')
    end
    if offset < 0 then
        offset = offset + n + 1
    end
    if offset < 1 or offset > n + 1 then
        return complain('tuple.transform(): offset is out of bound')
    end
    count = count ~= nil and count or 0
    if type(count) ~= 'number' or count < 0 then
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

local function field_number(t, names, field, inserting)
    local n = #t
    if type(field) == 'string' then
        local number = names[field]
        if number == nil then
            return nil, E.client(201, "Field '" .. field .. "' was not found in the tuple")
        end
        return number
    end
    field = tonumber(field) or 0
    local number = field < 0 and field + n + (inserting and 2 or 1) or field
    if number < 1 or number > n + 1 or (not inserting and number > n) then
        return nil, E.client(37, 'Field ' .. tostring(field) .. ' was not found in the tuple')
    end
    return number
end

local arithmetic = {
    ['+'] = function(a, b)
        return a + b
    end,
    ['-'] = function(a, b)
        return a - b
    end,
    ['&'] = function(a, b)
        return require('bit').band(a, b)
    end,
    ['|'] = function(a, b)
        return require('bit').bor(a, b)
    end,
    ['^'] = function(a, b)
        return require('bit').bxor(a, b)
    end,
}

local function apply(t, names, op)
    local kind, field = op[1], op[2]
    local inserting = kind == '!' or kind == '='
    local number, err = field_number(t, names, field, inserting)
    if not number then
        return err
    end
    if kind == '=' then
        t[number] = op[3]
    elseif kind == '!' then
        table.insert(t, number, op[3])
    elseif kind == '#' then
        for _ = 1, op[3] or 1 do
            if number <= #t then
                table.remove(t, number)
            end
        end
    elseif kind == ':' then
        local text, offset, length, with = t[number], op[3], op[4], op[5]
        if type(text) ~= 'string' then
            return E.client(26, "Argument type in operation ':' on field " .. tostring(field)
                .. ' does not match field type: expected a string')
        end
        if offset < 0 then
            offset = offset + #text + 2
        end
        t[number] = sub(text, 1, offset - 1) .. with .. sub(text, offset + length)
    elseif arithmetic[kind] then
        if type(t[number]) == 'string' or type(t[number]) == 'table' or t[number] == nil then
            return E.client(26, "Argument type in operation '" .. kind .. "' on field " .. tostring(field)
                .. ' does not match field type: expected a number')
        end
        t[number] = arithmetic[kind](t[number], op[3])
    else
        return E.client(28, 'Unknown UPDATE operation #1: wrong operation type')
    end
end

local function update(t, operations, ignore)
    local names = getmetatable(t).names
    local result = copy(t)
    for i = 1, #operations do
        local err = apply(result, names, operations[i])
        if err and not ignore then
            return raise(err)
        end
    end
    return setmetatable(result, getmetatable(t))
end

function methods.update(t, operations)
    if not is_tuple(t) or type(operations) ~= 'table' then
        return complain('Usage: tuple:update({ { op, field, arg}+ })')
    end
    local result = update(t, operations)
    return result
end

function methods.upsert(t, operations)
    if not is_tuple(t) or type(operations) ~= 'table' then
        return complain('Usage: tuple:upsert({ { op, field, arg}+ })')
    end
    local result = update(t, operations, true)
    return result
end

-- ---------------------------------------------------------------- metatables

local function text_of(t)
    local parts = {}
    for i = 1, #t do
        local value = t[i]
        local kind = type(value)
        if value == nil then
            parts[i] = 'null'
        elseif kind == 'string' then
            parts[i] = "'" .. value:gsub("'", "''") .. "'"
        elseif kind == 'number' or kind == 'boolean' then
            parts[i] = kind == 'number' and json.encode(value) or tostring(value)
        elseif kind == 'table' then
            local ok, text = pcall(json.encode, value)
            parts[i] = ok and text or tostring(value)
        else
            parts[i] = (tostring(value):gsub('U?LL$', ''))
        end
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

-- The metatables of the packet that is being decoded, by the numbers it gives its formats, and its bytes.
local format_metas, format_bytes = {}, nil

-- Takes the formats (TUPLE_FORMATS, MessagePack) of the tuples that are decoded next; nil: they bring none.
local function set_formats(bytes)
    if bytes == format_bytes then
        return
    end
    format_metas, format_bytes = {}, nil
    for id, fields in pairs(bytes and msgpack.decode(bytes) or {}) do
        local format = {}
        for i, field in ipairs(fields) do
            format[i] = type(field) == 'table' and field or { name = field }
        end
        format_metas[tonumber(id)] = metatable_of(format)
    end
    format_bytes = bytes
end

msgpack.ext.register {
    type = 7,
    name = 'tuple',
    decode = function(payload)
        local id, at = msgpack.decode(payload)
        return setmetatable(msgpack.decode(payload, at), format_metas[id] or metatable_of(nil))
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

for name, method in pairs(methods) do
    tuple[name] = method
end

return tuple
