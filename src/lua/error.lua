-- cord.error: Tarantool's error objects and its `box.error`.
--
-- An error object is FFI cdata of `struct error` (code written for Tarantool asks ffi.istype('struct error', e)). The
-- cdata holds only a serial number; everything else is in a Lua record that a weak table finds by the cdata:
--
--     cdata --records (weak keys)--> record --prev--> record of the cause --prev--> ...
--     serial of a cause --objects (weak values)--> its cdata
--
-- Records never hold cdata, so a chain of causes dies as one; a cause whose cdata was collected gets a new one when
-- somebody asks for it, and as long as anyone holds the cdata it is the same one: e.prev == e.prev.
--
-- Source: tarantool/tarantool src/lua/error.lua, src/box/lua/error.cc, src/box/error.cc, src/box/mp_error.cc (3.9-dev).

local native, load = ...
-- Not named pairs, lest LuaJIT compiles loops that a finalizer may never leave: docs/jit.md.
local every = pairs
local ffi = require('ffi')

local getinfo, setmetatable, type, tostring, error = debug.getinfo, setmetatable, type, tostring, error
local format, find, sub = string.format, string.find, string.sub

ffi.cdef('struct error { double _serial; };')
local ctype = ffi.typeof('struct error')
local istype = ffi.istype

local records = setmetatable({}, { __mode = 'k' })
local objects = setmetatable({}, { __mode = 'v' })
local serial = 0

-- Class of each type the protocol names, with the class it derives from.
local BASE = {
    SystemError = 'Exception',
    SocketError = 'SystemError',
    OutOfMemory = 'SystemError',
    TimedOut = 'SystemError',
    ChannelIsClosed = 'Exception',
    FiberIsCancelled = 'Exception',
    FiberSliceIsExceeded = 'Exception',
    LuajitError = 'Exception',
    IllegalParams = 'Exception',
    CollationError = 'Exception',
    SwimError = 'Exception',
    CryptoError = 'Exception',
    RaftError = 'Exception',
    FileFormatError = 'Exception',
    EncodeError = 'Exception',
    DecodeError = 'Exception',
    SSLError = 'Exception',
    ClientError = 'Exception',
    CustomError = 'ClientError',
    AccessDeniedError = 'ClientError',
    XlogError = 'Exception',
    XlogGapError = 'XlogError',
}

local ILLEGAL_PARAMS, INVALID_MSGPACK, PROC_LUA, ACCESS_DENIED = 1, 20, 32, 42

-- The code that stands for a class on the wire, for objects that have none of their own.
local WIRE_CODE = {
    IllegalParams = ILLEGAL_PARAMS,
    OutOfMemory = 2,
    SystemError = 115,
    SocketError = 115,
    TimedOut = 115,
    SSLError = 243,
    CollationError = 150,
    XlogGapError = 219,
}

local names, formats, arguments = {}, {}, {}
for _, row in ipairs(load('cord.errcode')) do
    names[row[1]], formats[row[1]] = row[2], row[3]
    if row[4] then
        local fields = {}
        for i = 4, #row do
            fields[i - 3] = row[i]
        end
        arguments[row[1]] = fields
    end
end

-- Messages and file names are C strings in Tarantool: they end at the first NUL.
local function cstring(s)
    local nul = find(s, '%z')
    return nul and sub(s, 1, nul - 1) or s
end

local function record_of(e)
    local record = records[e]
    if record == nil then
        -- A reference or a dereferenced pointer is another cdata for the same struct: rare enough for a search.
        for _, candidate in every(records) do
            if candidate.serial == e._serial then
                return candidate
            end
        end
        error('cord: this struct error was not made by cord.error', 3)
    end
    return record
end

local function object_of(record)
    local e = objects[record.serial]
    if e == nil then
        e = ctype(record.serial)
        records[e] = record
        objects[record.serial] = e
    end
    return e
end

-- The payload of those that have none. Never written to.
local NO_FIELDS = {}

-- The one place that makes a record. `fields` is kept, not copied.
local function make(class, custom_type, code, message, fields)
    serial = serial + 1
    local record = {
        serial = serial,
        class = class,
        custom_type = custom_type,
        code = code,
        message = cstring(message),
        fields = fields or NO_FIELDS,
    }
    local e = ctype(serial)
    records[e] = record
    return e, record
end

-- Makes `prev` the cause of a record. The cdata is remembered, so that as long as it lives it is what e.prev gives.
local function link(record, prev)
    local cause = record_of(prev)
    record.prev, cause.effect = cause, record
    if records[prev] == nil then
        -- A reference may outlive what it refers to: the object itself is remembered.
        for original, candidate in every(records) do
            if candidate == cause then
                prev = original
            end
        end
    end
    objects[cause.serial] = prev
end

-- Sets the place of a record: `level` 1 is the caller of the function that called this one.
local function locate(record, level)
    record.file, record.line = nil, nil
    if level > 0 then
        local info = getinfo(level + 2, 'Sl')
        if info ~= nil then
            record.file = info.short_src ~= '' and info.short_src or 'eval'
            record.line = info.currentline > 0 and info.currentline or 0
        end
    end
end

local E = {}

-- ---------------------------------------------------------------- constructors for the other modules

-- IllegalParams with this text: wrong arguments of a call.
function E.illegal_params(message)
    return (make('IllegalParams', nil, 0, message))
end

-- ClientError of a code with a ready text; `fields` is its payload.
function E.client(code, message, fields)
    if code == ILLEGAL_PARAMS then
        return (make('IllegalParams', nil, 0, message, fields))
    end
    local payload = { name = names[code] or 'UNKNOWN' }
    for k, v in every(fields or payload) do
        payload[k] = v
    end
    return (make(code == ACCESS_DENIED and 'AccessDeniedError' or 'ClientError', nil, code, message, payload))
end

function E.fiber_is_cancelled()
    return (make('FiberIsCancelled', nil, 0, 'fiber is cancelled'))
end

function E.fiber_slice_is_exceeded()
    return (make('FiberSliceIsExceeded', nil, 0, 'fiber slice is exceeded'))
end

function E.channel_is_closed()
    return (make('ChannelIsClosed', nil, 0, 'channel is closed'))
end

function E.timed_out()
    local e, record = make('TimedOut', nil, 0, 'timed out')
    record.errno = native.ETIMEDOUT
    return e
end

-- SystemError "<message>: <text of errno>".
function E.system(errno, message)
    local e, record = make('SystemError', nil, 0, message .. ': ' .. native.strerror(errno))
    record.errno = errno
    return e
end

-- SocketError "<message>, called on <socket>: <text of errno>".
function E.socket(errno, socket, message)
    local e, record =
        make('SocketError', nil, 0, format('%s, called on %s: %s', message, socket, native.strerror(errno)))
    record.errno = errno
    return e
end

function E.out_of_memory(bytes, allocator, object)
    local message = format('Failed to allocate %d bytes in %s for %s', bytes, allocator, object)
    local e, record = make('OutOfMemory', nil, 0, message)
    record.errno = native.ENOMEM
    return e
end

-- LuajitError of something raised that is no error object; the thing itself is in the field `value`.
function E.luajit(message, value)
    return (make('LuajitError', nil, 0, message, { value = value }))
end

-- Any error from its parts; `type` may be a class of the protocol or, with base_type 'CustomError', any name.
function E.make(parts)
    local class, custom = parts.base_type or parts.type or 'ClientError', nil
    if class == 'CustomError' then
        custom = parts.type
    elseif BASE[class] == nil then
        class = 'ClientError'
    end
    local payload = parts.fields
    if custom ~= nil then
        payload = payload or {}
        payload.custom_type = custom
    end
    local e, record = make(class, custom, parts.code or 0, parts.message or '', payload)
    if parts.errno ~= nil and parts.errno ~= 0 then
        record.errno = parts.errno
    end
    if parts.file ~= nil and parts.file ~= '' then
        record.file, record.line = cstring(parts.file), parts.line or 0
    end
    if parts.prev ~= nil then
        link(record, parts.prev)
    end
    return e
end

-- An error object unchanged; anything else as a LuajitError around it.
function E.wrap(value)
    if istype(ctype, value) then
        return value
    end
    local ok, message = pcall(tostring, value)
    return E.luajit(ok and type(message) == 'string' and message or type(value), value)
end

-- ---------------------------------------------------------------- raising, and the last error of a fiber

local last = setmetatable({}, { __mode = 'k' })
local main = {}

local function current_fiber()
    return coroutine.running() or main
end

-- Lets the fiber module say which object stands for the running fiber (a weak key).
function E.set_current_fiber(fn)
    current_fiber = fn
end

-- Raises the object itself. `level` is that of Lua's own error(): 1 is the function that calls E.raise, 2 (the
-- default) its caller, and the place is recorded in the trace; 0 keeps the trace the error has.
function E.raise(e, level)
    level = level or 2
    if level > 0 then
        locate(record_of(e), level)
    end
    last[current_fiber()] = e
    error(e, 0)
end
local raise = E.raise

-- The level of the function that called into the library, seen from whoever calls this: the first one that is none of ours.
-- Functions that call the last one of theirs as a tail have left the stack, so levels cannot be counted beforehand.
-- With `past_c` C functions, such as a pcall around us, are passed by.
local function caller_level(past_c)
    local level = 3
    while true do
        local info = getinfo(level, 'S')
        if info == nil or not (info.source == '=[cord]' or past_c and info.what == 'C') then
            return level - 1
        end
        level = level + 1
    end
end

--- Raises a plain text with the place of whoever called into the library.
function E.complain(text)
    error(text, caller_level())
end

--- Raises an error object with the place of whoever called into the library.
function E.raise_at_caller(e)
    E.raise(e, caller_level(true))
end

--- Raises an error object with the place it has, if it has one: that of a peer, say.
function E.raise_again(e)
    E.raise(e, record_of(e).file == nil and caller_level(true) or 0)
end

local function usage(message, level)
    local e, record = make('IllegalParams', nil, 0, message)
    locate(record, level)
    last[current_fiber()] = e
    error(e, 0)
end

-- ---------------------------------------------------------------- the wire's error stack

-- The causes of an error, itself first, as the maps the protocol sends.
function E.encode_stack(e)
    local list, record = {}, record_of(e)
    while record ~= nil do
        local fields = next(record.fields) ~= nil and record.fields or nil
        local code = record.code
        if code == 0 and record.class ~= 'ClientError' and BASE[record.class] ~= 'ClientError' then
            code = WIRE_CODE[record.class] or PROC_LUA
        end
        list[#list + 1] = {
            type = record.class,
            line = record.line or 0,
            file = record.file or '',
            message = record.message,
            errno = record.errno or 0,
            code = code,
            fields = fields,
        }
        record = record.prev
    end
    return list
end

local function missing(what)
    return nil, E.client(INVALID_MSGPACK, 'Invalid MsgPack - ' .. what .. ' is missing')
end

-- The error of such a list; nil and an error when an entry lacks its type, message or file.
function E.decode_stack(list)
    local top, effect
    for i = 1, #list do
        local entry = list[i]
        if entry.type == nil then
            return missing('MP_ERROR_TYPE')
        elseif entry.message == nil then
            return missing('MP_ERROR_MESSAGE')
        elseif entry.file == nil then
            return missing('MP_ERROR_FILE')
        end
        local class = BASE[entry.type] and entry.type or 'ClientError'
        local fields = {}
        for k, v in every(entry.fields or fields) do
            fields[k] = v
        end
        local custom = class == 'CustomError' and fields.custom_type or nil
        local e, record = make(class, custom, entry.code or 0, entry.message, fields)
        if entry.errno ~= 0 then
            record.errno = entry.errno
        end
        if entry.file ~= '' then
            record.file, record.line = cstring(entry.file), entry.line or 0
        end
        if effect ~= nil then
            link(effect, e)
        else
            top = e
        end
        effect = record
    end
    if top == nil then
        return missing('MP_ERROR_STACK')
    end
    return top
end

-- ---------------------------------------------------------------- fields and methods of an object

local function type_of(record)
    return record.custom_type or record.class
end

local fields = {
    type = type_of,
    base_type = function(record)
        return record.class
    end,
    message = function(record)
        return record.message
    end,
    code = function(record)
        return record.code
    end,
    errno = function(record)
        return record.errno
    end,
    trace = function(record)
        if record.file == nil then
            return {}
        end
        return { { file = record.file, line = record.line } }
    end,
    prev = function(record)
        return record.prev and object_of(record.prev)
    end,
}

local methods = {}

function methods.unpack(e)
    if not istype(ctype, e) then
        usage('Usage: error:unpack()', 2)
    end
    local record, result = record_of(e), {}
    for key, get in every(fields) do
        result[key] = get(record)
    end
    for key, value in every(record.fields) do
        result[key] = value
    end
    return result
end

function methods.raise(e)
    if not istype(ctype, e) then
        usage('Usage: error:raise()', 2)
    end
    error(e, 0)
end

function methods.match(e, ...)
    if not istype(ctype, e) then
        usage('Usage: error:match()', 2)
    end
    return string.match(record_of(e).message, ...)
end

function methods.set_prev(e, prev)
    if not istype(ctype, e) or (prev ~= nil and not istype(ctype, prev)) then
        usage('Usage: error1:set_prev(error2)', 2)
    end
    local record = record_of(e)
    local cause = prev ~= nil and record_of(prev) or nil
    local walk = cause
    while walk ~= nil do
        if walk == record then
            usage('Cycles are not allowed', 2)
        end
        walk = walk.prev
    end
    if record.prev ~= nil then
        record.prev.effect = nil
    end
    record.prev = nil
    if cause ~= nil then
        -- An error is the cause of one other at most: it leaves the one it was part of.
        if cause.effect ~= nil then
            cause.effect.prev = nil
        end
        link(record, prev)
    end
end

function methods.__serialize(e)
    return record_of(e).message
end

function methods.__autocomplete(e)
    local all, record = {}, record_of(e)
    while record ~= nil do
        for key, value in every(object_of(record):unpack()) do
            if all[key] == nil then
                all[key] = value
            end
        end
        record = record.prev
    end
    for key, method in every(methods) do
        if sub(key, 1, 2) ~= '__' then
            all[key] = method
        end
    end
    return all
end

ffi.metatype(ctype, {
    __index = function(e, key)
        local method = methods[key]
        if method ~= nil then
            return method
        end
        local record, get = record_of(e), fields[key]
        if get ~= nil then
            return get(record)
        end
        repeat
            local value = record.fields[key]
            if value ~= nil then
                return value
            end
            record = record.prev
        until record == nil
    end,
    __tostring = function(e)
        return record_of(e).message
    end,
    __concat = function(a, b)
        if istype(ctype, a) then
            return record_of(a).message .. b
        elseif istype(ctype, b) then
            return a .. record_of(b).message
        end
        usage('error_mt.__concat(): neither of args is an error', 2)
    end,
})

-- ---------------------------------------------------------------- box.error

local BUILTIN = {
    type = true,
    message = true,
    trace = true,
    prev = true,
    base_type = true,
    code = true,
    reason = true,
    errno = true,
    custom_type = true,
}

-- A payload value must be something the protocol can carry.
local function carried(value)
    local kind = type(value)
    return kind ~= 'function' and kind ~= 'thread'
end

local function text_of(value)
    local kind = type(value)
    if kind == 'string' or kind == 'number' then
        return tostring(value)
    end
end

-- The error of a code or a custom type: the one rule of which class it is.
local function build(code, custom_type, message, payload)
    if custom_type ~= nil then
        payload.custom_type = custom_type
        return make('CustomError', custom_type, code, message, payload)
    elseif code == ILLEGAL_PARAMS then
        return make('IllegalParams', nil, 0, message, payload)
    end
    payload.name = names[code] or 'UNKNOWN'
    return make('ClientError', nil, code, message, payload)
end

local function create_from_table(t, level, level2)
    if level2 ~= nil or (level ~= nil and type(level) ~= 'number') then
        return nil
    end
    local code, custom_type, prev = tonumber(t.code) or 0, text_of(t.type), t.prev
    local message = text_of(rawget(t, 1)) or text_of(t.message) or text_of(t.reason)
    if message == nil then
        message = custom_type == nil and (formats[code] or formats[0]) or ''
    end
    if prev ~= nil and not istype(ctype, prev) then
        usage(format("Invalid argument 'prev' (error expected, got %s)", type(prev)), 3)
    end
    local payload = {}
    for key, value in every(t) do
        if type(key) == 'string' and not BUILTIN[key] and carried(value) then
            payload[key] = value
        end
    end
    local e, record = build(code, custom_type, message, payload)
    if prev ~= nil then
        link(record, prev)
    end
    return e, record, level or 1
end

local function create_from_code(count, code, ...)
    local args = { ... }
    local message, expected = formats[code] or formats[0], arguments[code] or {}
    local level = args[#expected + 1]
    if level ~= nil and type(level) ~= 'number' then
        return nil
    end
    if count > 1 then
        message = format(message, ...)
    elseif find(message, '%', 1, true) then
        return nil
    end
    local payload = {}
    for i, name in ipairs(expected) do
        local value = args[i]
        if name ~= '' and value ~= nil and carried(value) then
            payload[name] = value
        end
    end
    local e, record = build(code, nil, message, payload)
    return e, record, level or 1
end

local function create_from_type(custom_type, reason, ...)
    if type(reason) ~= 'string' then
        return nil
    end
    local e, record = build(0, custom_type, format(reason, ...), {})
    return e, record, 1
end

-- An error from the arguments of box.error() or box.error.new(), its record and the level to locate it at; nil when
-- they are of no known form.
local function create(count, first, ...)
    local kind = type(first)
    if kind == 'table' then
        return create_from_table(first, ...)
    elseif kind == 'number' then
        return create_from_code(count, first, ...)
    elseif kind == 'string' then
        return create_from_type(first, ...)
    end
end

function E.new(...)
    local e, record, level = create(select('#', ...), ...)
    if e == nil then
        usage('box.error.new(): bad arguments', 2)
    end
    locate(record, level)
    return e
end

function E.is(...)
    return select('#', ...) > 0 and istype(ctype, (...))
end

function E.last(...)
    if select('#', ...) > 0 then
        usage('box.error.last(): bad arguments', 2)
    end
    return last[current_fiber()]
end

function E.clear(...)
    if select('#', ...) > 0 then
        usage('box.error.clear(): bad arguments', 2)
    end
    last[current_fiber()] = nil
end

function E.set(...)
    if select('#', ...) == 0 then
        usage('Usage: box.error.set(error)', 2)
    end
    local e = ...
    if not istype(ctype, e) then
        usage(format('Invalid argument #1 (error expected, got %s)', type(e)), 2)
    end
    last[current_fiber()] = e
end

local function call(_, ...)
    local count = select('#', ...)
    if count == 0 then
        local e = last[current_fiber()]
        if e ~= nil then
            raise(e, 2)
        end
        return
    end
    local e, level = ...
    if istype(ctype, e) then
        if count > 2 or (level ~= nil and type(level) ~= 'number') then
            usage('box.error(): bad arguments', 2)
        end
        if level ~= nil then
            locate(record_of(e), level)
        end
    else
        local record
        e, record, level = create(count, ...)
        if e == nil then
            usage('box.error(): bad arguments', 2)
        end
        locate(record, level)
    end
    last[current_fiber()] = e
    error(e, 0)
end

E.ctype = ctype

-- Codes by name are the table's own keys, as in Tarantool; the functions stand behind it.
local box_error = {}
for code, name in every(names) do
    box_error[name] = code
end

return setmetatable(box_error, { __index = E, __call = call })
