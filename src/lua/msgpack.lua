-- cord.msgpack: MessagePack straight between Lua values and bytes.
--
-- Extension types are taught by the modules that own them, through one hook:
--
--     local msgpack = load('cord.msgpack')
--     msgpack.ext.register {
--         type = 2,                      -- the MessagePack extension type, or 'bin' for the bin family
--         name = 'uuid',                 -- for error messages
--         decode = function(payload)     -- payload string -> Lua value; raises to refuse the payload
--         encode = function(value)       -- Lua value -> payload string (the header is written by the codec); raises to refuse
--         ctype = ffi.typeof('struct tt_uuid'),  -- which values `encode` takes: cdata of this type ...
--         metatable = mt,                -- ... or tables and userdata with this metatable (either or both)
--     }
--
-- Neither function may yield. A later registration for the same type, ctype or metatable replaces the earlier one. The
-- modules of the library are loaded when the first value of their type arrives.
--
-- Source: tarantool/tarantool src/lua/msgpack.c, src/lua/serializer.c (3.9-dev).

local native, load = ...
-- Not named pairs, lest LuaJIT compiles loops that a finalizer may never leave: docs/jit.md.
local every = pairs
local ffi = require('ffi')
local E = load('cord.error')
local buffer = load('cord.buffer')

local istype, typeof, cast = ffi.istype, ffi.typeof, ffi.cast
local type, pcall, error, select, tostring, tonumber = type, pcall, error, select, tostring, tonumber
local getmetatable, setmetatable = getmetatable, setmetatable
-- Users may replace these globals' values; ours must see the real metatable.
local rawmetatable = debug.getmetatable
local raise = E.raise

-- ---------------------------------------------------------------- extension types

local decoders, by_ctype, by_metatable, ctypes = {}, {}, {}, {}

local ext = { decoders = decoders, by_ctype = by_ctype, by_metatable = by_metatable, ctypes = ctypes }
-- Filled by cord.netbox.tuple, read by the native half.
ext.tuple_metas = {}

-- The functions of a type may be called by anybody; what they do with other values than theirs is not pretty.
local function guarded(kind)
    local name, encode, decode = kind.name or 'value', kind.encode, kind.decode
    local copy = {}
    for key, value in every(kind) do
        copy[key] = value
    end
    if encode ~= nil then
        function copy.encode(value)
            if not (kind.ctype ~= nil and istype(kind.ctype, value)
                or kind.metatable ~= nil and rawmetatable(value) == kind.metatable) then
                return E.complain('msgpack.ext: ' .. name .. ' expected, got ' .. type(value))
            end
            return encode(value)
        end
    end
    if decode ~= nil then
        function copy.decode(payload)
            if type(payload) ~= 'string' then
                return E.complain('msgpack.ext: the payload of ' .. name .. ' expected, got ' .. type(payload))
            end
            return decode(payload)
        end
    end
    return copy
end

function ext.register(kind)
    if type(kind) ~= 'table' or type(kind.type) ~= 'number' and kind.type ~= 'bin' then
        return E.complain("msgpack.ext.register: a table with the extension's type expected")
    end
    kind = guarded(kind)
    if kind.decode ~= nil then
        decoders[kind.type] = kind.decode
    end
    if kind.ctype ~= nil then
        -- A ctype object converts to the id that its cdata carry in their headers.
        by_ctype[tonumber(kind.ctype)] = kind
        ctypes[#ctypes + 1] = kind
    end
    if kind.metatable ~= nil then
        by_metatable[kind.metatable] = kind
        native.custom_metatables()
    end
end

-- Who registers a type, for types nobody has asked for yet.
local OWNERS = {
    [1] = 'cord.decimal',
    [2] = 'cord.uuid',
    [4] = 'cord.datetime',
    [6] = 'cord.datetime',
    [7] = 'cord.netbox.tuple',
    bin = 'cord.varbinary',
}

-- Makes the value of a payload: called by the decoder.
local function extend(kind, payload)
    local decode = decoders[kind]
    if decode == nil and OWNERS[kind] ~= nil then
        load(OWNERS[kind], true)
        decode = decoders[kind]
    end
    if decode ~= nil then
        local ok, value = pcall(decode, payload)
        if ok then
            return value
        end
        local e = E.client(E.INVALID_MSGPACK, 'Invalid MsgPack - invalid extension', {
            ext_type = kind,
            ext_len = #payload,
        })
        e:set_prev(E.wrap(value))
        error(e, 0)
    end
    if kind == 'bin' then
        return payload
    end
    error(('msgpack.decode: unsupported extension: %d'):format(kind), 0)
end

-- ---------------------------------------------------------------- values that need Lua to be encoded

local UNSUPPORTED, EXT, BIN, RAW, VALUE, NIL, BAD_SERIALIZE = 0, 1, 2, 3, 4, 5, 6

-- Raw bytes of each msgpack.object.
local objects = setmetatable({}, { __mode = 'k' })

-- The largest id of the FFI's own types: those have no __serialize (CTID_CTYPEID).
local CTYPE_OBJECT = tonumber(typeof(typeof('int')))

local function registered_kind(value, id)
    local kind = by_ctype[id]
    if kind ~= nil then
        return kind
    end
    -- A reference to a registered struct has an id of its own.
    for i = 1, #ctypes do
        if istype(ctypes[i].ctype, value) then
            return ctypes[i]
        end
    end
end

local function serialize_field(value)
    return value.__serialize
end

local numbers = {}
for _, name in ipairs({ 'bool', 'float', 'double', 'int8_t', 'int16_t', 'int32_t', 'int64_t', 'uint8_t', 'uint16_t',
    'uint32_t', 'uint64_t' }) do
    numbers[tonumber(typeof(name))] = name
end

-- Bytes of a plain number's cdata, where its id could not be read from its header.
local function encode_number(value, id)
    local name = numbers[id]
    if name == nil then
        return nil
    elseif name == 'bool' then
        return tonumber(value) == 1 and '\195' or '\194'
    elseif name == 'float' or name == 'double' then
        local bytes = ffi.string(ffi.new(name .. '[1]', value), ffi.sizeof(name))
        return (name == 'float' and '\202' or '\203') .. (ffi.abi('le') and bytes:reverse() or bytes)
    elseif value < 0 then
        return '\211' .. ffi.string(ffi.new('int64_t[1]', value), 8):reverse()
    end
    return '\207' .. ffi.string(ffi.new('uint64_t[1]', value), 8):reverse()
end

-- What a value is that the encoder does not know: what to write, and the bytes or the value for it.
local function convert(value, load_metatables, use_tostring, error_as_ext)
    local kind_of = type(value)
    local kind, id
    if kind_of == 'cdata' then
        if istype('void *', value) or istype('const void *', value) then
            if value == nil then
                return NIL
            end
        end
        id = tonumber(typeof(value))
        kind = registered_kind(value, id)
        if kind == nil then
            local bytes = encode_number(value, id)
            if bytes ~= nil then
                return RAW, bytes
            end
        end
    else
        local bytes = objects[value]
        if bytes ~= nil then
            return RAW, bytes.data
        end
        local mt = rawmetatable(value)
        kind = mt ~= nil and by_metatable[mt] or nil
    end
    if kind ~= nil then
        if kind.type == 3 and not error_as_ext then
            return VALUE, tostring(value)
        elseif kind.type == 'bin' then
            return BIN, kind.encode(value)
        end
        return EXT, kind.encode(value), kind.type
    end
    if load_metatables and (kind_of == 'userdata' or (id ~= nil and id > CTYPE_OBJECT)) then
        local found, serialize = pcall(serialize_field, value)
        if found and serialize ~= nil then
            if type(serialize) ~= 'function' then
                return BAD_SERIALIZE
            end
            return VALUE, (serialize(value))
        end
    end
    if use_tostring then
        return VALUE, tostring(value)
    end
    return UNSUPPORTED
end

-- ---------------------------------------------------------------- hints of decoded tables

-- Assigning a new key to a table clears the hint: it may be a map, or an array, no longer.
local function forget_hint(self, key, value)
    setmetatable(self, nil)
    rawset(self, key, value)
end

local array_mt = { __serialize = 'seq', __newindex = forget_hint }
local map_mt = { __serialize = 'map', __newindex = forget_hint }
local NULL = cast('void *', nil)

-- ---------------------------------------------------------------- set-up of the native half

local ids = {}
for _, name in ipairs({ 'bool', 'char', 'int8_t', 'int16_t', 'int32_t', 'int64_t', 'uint8_t', 'uint16_t', 'uint32_t',
    'uint64_t', 'float', 'double', 'void *', 'const void *', 'long long', 'unsigned long long' }) do
    ids[name] = tonumber(typeof(name))
end

-- Whether the id in a cdata's header is where the native half reads it: asked of types of many sizes and kinds.
local ids_of_ibuf = tonumber(typeof('struct ibuf'))

local function ids_are_readable()
    for _, name in ipairs({ 'bool', 'int8_t', 'uint16_t', 'int32_t', 'int64_t', 'uint64_t', 'double', 'float', 'void *',
        'const void *', 'struct error', 'struct ibuf' }) do
        for _ = 1, 3 do
            if native.probe(ffi.new(name)) ~= tonumber(typeof(name)) then
                return false
            end
        end
    end
    return true
end

local sample_empty = {}
local sample_map = setmetatable({ key = 2.5 }, sample_empty)
local sample_large = {}
for i = 1, 40 do
    sample_large['cord key ' .. i] = i
end

native.setup({
    -- What the native half looks at to learn where LuaJIT keeps the parts of a table: see direct.rs.
    sample = { 1.5, 'cord: twenty-one char', true, false, sample_map, ffi.new('int64_t', -7) },
    sample_map = sample_map,
    sample_empty = sample_empty,
    sample_large = sample_large,
    int64_id = ids.int64_t,
    null = NULL,
    array_mt = array_mt,
    map_mt = map_mt,
    serialize = '__serialize',
    tuple_format = '__tuple_format',
    tuple_metas = ext.tuple_metas,
    int64 = typeof('int64_t'),
    uint64 = typeof('uint64_t'),
    convert = convert,
    extend = extend,
    by_metatable = by_metatable,
    ids = ids,
    reads_ids = ids_are_readable(),
})

-- ---------------------------------------------------------------- options

local DEFAULTS = {
    encode_sparse_convert = true,
    encode_sparse_ratio = 2,
    encode_sparse_safe = 10,
    encode_max_depth = 128,
    encode_deep_as_nil = false,
    encode_invalid_numbers = true,
    encode_number_precision = 14,
    encode_load_metatables = true,
    encode_use_tostring = false,
    encode_invalid_as_nil = false,
    encode_error_as_ext = true,
    decode_invalid_numbers = true,
    decode_save_metatables = true,
    decode_max_depth = 128,
}

local function new_cfg(codec)
    local cfg, current = {}, {}
    for name, value in every(DEFAULTS) do
        cfg[name], current[name] = value, value
    end
    return setmetatable(cfg, {
        __call = function(self, options)
            if type(options) ~= 'table' then
                error(("bad argument #1 to '?' (table expected, got %s)"):format(
                    options == nil and 'no value' or type(options)), 2)
            end
            for name, default in every(DEFAULTS) do
                local value = options[name]
                if value ~= nil then
                    -- As Tarantool: any value is a boolean, and what is no number is 0.
                    if type(default) == 'boolean' then
                        current[name] = value and true or false
                    else
                        current[name] = tonumber(value) or 0
                    end
                    self[name] = value
                end
            end
            if options.encode_key_order ~= nil then
                self.encode_key_order = options.encode_key_order
            end
            native.configure(codec, current)
        end,
    })
end

-- ---------------------------------------------------------------- pointers

local POINTERS = {}
for _, name in ipairs({ 'char *', 'const char *', 'unsigned char *', 'const unsigned char *' }) do
    POINTERS[tonumber(typeof(name))] = true
end

local function is_char_pointer(value)
    return type(value) == 'cdata' and POINTERS[tonumber(typeof(value))] == true
end

local function address_of(pointer)
    return tonumber(cast('uintptr_t', pointer))
end

-- Sizes given by a caller: a number or a 64-bit integer.
local function integer(value, position, name)
    local number = tonumber(value)
    if number == nil then
        E.complain(("bad argument #%d to '%s' (number expected, got %s)"):format(
            position, name, value == nil and 'no value' or type(value)))
    end
    return number < 0 and math.ceil(number) or math.floor(number)
end

-- An error of decoding: plain strings are argument-like errors and carry the caller's place, objects are raised.
local function fail(err)
    if type(err) == 'string' then
        error(err, 3)
    end
    raise(err, 3)
end

-- ---------------------------------------------------------------- objects and iterators

-- Userdata with shared metatables; what they hold is in `objects` and `iterators`.
local OBJECT, ITERATOR = newproxy(true), newproxy(true)
local object_methods, iterator_methods = {}, {}
local iterators = setmetatable({}, { __mode = 'k' })

-- `formats`: those of the tuples in a reply's data, packed, or nil.
local function new_object(codec, data, formats)
    local object = newproxy(OBJECT)
    objects[object] = { data = data, codec = codec, formats = formats }
    return object
end

-- The value at a position of a record's data: value, position, error.
local function value_at(record, position)
    if record.formats ~= nil then
        load('cord.netbox.tuple')._set_formats(record.formats)
    end
    return native.decode(record.codec, record.data, position)
end

local function check_object(object, level)
    local record = objects[object]
    if record == nil then
        error(("bad argument #1 to '?' (msgpack.object expected, got %s)"):format(
            object == nil and 'no value' or type(object)), (level or 2) + 1)
    end
    return record
end

function object_methods.decode(object)
    local record = check_object(object)
    local value, position, err = value_at(record, 1)
    if position == nil then
        fail(err)
    end
    return value
end

function object_methods.iterator(object)
    local record = check_object(object)
    local iterator = newproxy(ITERATOR)
    iterators[iterator] = { data = record.data, codec = record.codec, formats = record.formats, position = 1 }
    return iterator
end

local function is_container(data)
    local byte = data:byte(1)
    return (byte >= 0x80 and byte <= 0x9f) or (byte >= 0xdc and byte <= 0xdf)
end

function object_methods.get(object, key)
    local record = check_object(object)
    if not is_container(record.data) then
        error('not an array or map', 2)
    end
    if record.decoded == nil then
        local value, position, err = value_at(record, 1)
        if position == nil then
            fail(err)
        end
        record.decoded = value
    end
    return rawget(record.decoded, key)
end

local object_mt = getmetatable(OBJECT)
object_mt.__index = function(object, key)
    if type(key) == 'string' and object_methods[key] ~= nil then
        return object_methods[key]
    end
    local record = check_object(object)
    if not is_container(record.data) then
        error('not an array or map', 2)
    end
    return object_methods.get(object, key)
end
object_mt.__tostring = function()
    return 'msgpack.object'
end
object_methods.__autocomplete = function()
    return object_methods
end

local function check_iterator(iterator)
    local record = iterators[iterator]
    if record == nil then
        error(("bad argument #1 to '?' (msgpack.iterator expected, got %s)"):format(
            iterator == nil and 'no value' or type(iterator)), 3)
    end
    return record
end

local function check_not_ended(record)
    if record.position > #record.data then
        error('iteration ended', 3)
    end
end

function iterator_methods.decode(iterator)
    local record = check_iterator(iterator)
    check_not_ended(record)
    local value, position, err = value_at(record, record.position)
    if position == nil then
        fail(err)
    end
    record.position = position
    return value
end

function iterator_methods.skip(iterator)
    local record = check_iterator(iterator)
    check_not_ended(record)
    record.position = native.skip(record.data, record.position)
end

function iterator_methods.take(iterator)
    local record = check_iterator(iterator)
    check_not_ended(record)
    local start = record.position
    record.position = native.skip(record.data, start)
    return new_object(record.codec, record.data:sub(start, record.position - 1), record.formats)
end

local function array_header(count)
    if count < 16 then
        return string.char(0x90 + count)
    elseif count < 65536 then
        return string.char(0xdc, bit.rshift(count, 8), bit.band(count, 255))
    end
    return string.char(0xdd, bit.rshift(count, 24), bit.band(bit.rshift(count, 16), 255),
        bit.band(bit.rshift(count, 8), 255), bit.band(count, 255))
end

function iterator_methods.take_array(...)
    local record = check_iterator((...))
    if select('#', ...) ~= 2 then
        error('Usage: iter:take_array(count)', 2)
    end
    local count = integer(select(2, ...), 2, 'take_array')
    if count < 0 then
        error('count must be >= 0', 2)
    end
    local position = record.position
    for _ = 1, count do
        if position > #record.data then
            error('iteration ended', 2)
        end
        position = native.skip(record.data, position)
    end
    local items = record.data:sub(record.position, position - 1)
    record.position = position
    return new_object(record.codec, array_header(count) .. items, record.formats)
end

local function iterator_header(is_map)
    return function(iterator)
        local record = check_iterator(iterator)
        check_not_ended(record)
        local pointer = cast('const char *', record.data)
        local start = record.position - 1
        local count, len = native.header_at(address_of(pointer + start), #record.data - start, is_map)
        if count == nil then
            error('unexpected msgpack type', 2)
        end
        record.position = record.position + len
        return count
    end
end
iterator_methods.decode_array_header = iterator_header(false)
iterator_methods.decode_map_header = iterator_header(true)

local iterator_mt = getmetatable(ITERATOR)
iterator_mt.__index = iterator_methods
iterator_mt.__tostring = function()
    return 'msgpack.iterator'
end

-- ---------------------------------------------------------------- a serializer

local new

-- The functions over one codec, in the order of Tarantool's documentation.
local function functions(codec)
    local msgpack = {}
    local native_encode, native_encode_ibuf = native.encode, native.encode_ibuf
    local native_decode, native_decode_at = native.decode, native.decode_at

    function msgpack.encode(...)
        local count = select('#', ...)
        local bytes, err
        if count == 1 then
            bytes, err = native_encode(codec, (...))
        elseif count == 0 then
            error('msgpack.encode: a Lua object expected', 2)
        else
            local value, ibuf = ...
            if not buffer.is_ibuf(ibuf) then
                error("msgpack.encode: argument 2 must be of type 'struct ibuf'", 2)
            end
            -- A reference is another cdata: the struct itself is what the native half writes to.
            if native.probe(ibuf) == ids_of_ibuf then
                bytes, err = native_encode_ibuf(codec, value, ibuf)
            else
                bytes, err = native_encode(codec, value)
                if bytes ~= nil then
                    ffi.copy(ibuf:alloc(#bytes), bytes, #bytes)
                    bytes = #bytes
                end
            end
        end
        if bytes == nil then
            raise(err)
        end
        return bytes
    end

    local function decode_pointer(pointer, size)
        if not is_char_pointer(pointer) then
            error("msgpack.decode: a Lua string or 'char *' expected", 3)
        end
        local value, read, err = native_decode_at(codec, address_of(pointer), size)
        if read == nil then
            if type(err) == 'string' then
                error(err, 3)
            end
            raise(err, 3)
        end
        return value, pointer + read
    end

    local function decode_string(data, offset)
        offset = integer(offset, 2, 'decode')
        if offset < 1 or offset > #data then
            error('msgpack.decode: offset is out of bounds', 3)
        end
        local value, position, err = native_decode(codec, data, offset)
        if position == nil then
            if type(err) == 'string' then
                error(err, 3)
            end
            raise(err, 3)
        end
        return value, position
    end

    function msgpack.decode(...)
        local data = ...
        if type(data) == 'string' then
            if select('#', ...) == 1 then
                local value, position, err = native_decode(codec, data)
                if position ~= nil then
                    return value, position
                elseif type(err) == 'string' then
                    error(err, 2)
                end
                raise(err)
            end
            local value, position = decode_string(data, (select(2, ...)))
            return value, position
        elseif type(data) == 'cdata' then
            if is_char_pointer(data) and integer((select(2, ...)), 2, 'decode') < 0 then
                error("msgpack.decode: size can't be negative", 2)
            end
            local value, position = decode_pointer(data, tonumber((select(2, ...))))
            return value, position
        end
        error("msgpack.decode: a Lua string or 'char *' expected", 2)
    end

    -- Without a size to check against, the caller vouches for the bytes; broken codes are found all the same.
    function msgpack.decode_unchecked(...)
        local data = ...
        if type(data) == 'string' then
            local value, position = decode_string(data, select('#', ...) > 1 and select(2, ...) or 1)
            return value, position
        elseif type(data) == 'cdata' then
            local value, position = decode_pointer(data, 2 ^ 46)
            return value, position
        end
        error("msgpack.decode: a Lua string or 'char *' expected", 2)
    end

    function msgpack.ibuf_decode(rpos)
        if type(rpos) ~= 'cdata' then
            error(("bad argument #1 to 'ibuf_decode' (cdata expected, got %s)"):format(type(rpos)), 2)
        elseif rpos == nil then
            error('msgpack.ibuf_decode: rpos is null', 2)
        end
        local value, position = decode_pointer(rpos, 2 ^ 46)
        return position, value
    end

    local function header(name, is_map)
        return function(...)
            if select('#', ...) ~= 2 then
                error(('Usage: %s(ptr, size)'):format(name), 2)
            end
            local pointer, size = ...
            if not is_char_pointer(pointer) then
                error(("%s: 'char *' expected"):format(name), 2)
            end
            size = integer(size, 2, name:match('[^.]+$'))
            if size <= 0 then
                error(('%s: non-positive size'):format(name), 2)
            end
            local count, len = native.header_at(address_of(pointer), size, is_map)
            if count == nil then
                error(('%s: unexpected %s'):format(name, len and 'end of buffer' or 'msgpack type'), 2)
            end
            return count, pointer + len
        end
    end
    msgpack.decode_array_header = header('msgpack.decode_array_header', false)
    msgpack.decode_map_header = header('msgpack.decode_map_header', true)

    function msgpack.object(...)
        if select('#', ...) ~= 1 then
            error('msgpack.object: a Lua object expected', 2)
        end
        local bytes, err = native_encode(codec, (...))
        if bytes == nil then
            raise(err)
        end
        return new_object(codec, bytes)
    end

    function msgpack.object_from_raw(...)
        local data, size = ...
        if is_char_pointer(data) then
            data = ffi.string(data, math.max(integer(size, 2, 'object_from_raw'), 0))
        elseif type(data) ~= 'string' then
            error("msgpack.object_from_raw: a Lua string or 'char *' expected", 2)
        end
        local position, err = native.skip(data, 1)
        if position ~= nil and position <= #data then
            err = E.client(E.INVALID_MSGPACK, 'Invalid MsgPack - junk after input', { offset = position - 1 })
        end
        if err ~= nil then
            raise(err)
        end
        return new_object(codec, data)
    end

    function msgpack.is_object(value)
        return objects[value] ~= nil
    end

    msgpack.new = new
    msgpack.cfg = new_cfg(codec)
    msgpack.NULL = NULL
    msgpack.array_mt = array_mt
    msgpack.map_mt = map_mt
    return msgpack
end

-- An independent serializer with the default options.
function new()
    return functions(native.codec(false))
end

local default_codec = native.codec(true)
local msgpack = functions(default_codec)
msgpack.ext = ext

-- layout([enable]): whether tables are read where LuaJIT keeps them; false turns that off, for the specs and for bug
-- reports, and true on again where it was proved possible. See direct.rs.
ext.layout = native.layout

-- For the library's own code: an object of bytes that are known to be one value, and of the formats of its tuples.
function ext.object(data, formats)
    return new_object(default_codec, data, formats)
end

-- ---------------------------------------------------------------- errors, the extension type 3

local FIELD = { 'type', 'line', 'file', 'message', 'errno', 'code', 'fields' }
local NUMBER = { type = 0, file = 1, line = 2, message = 3, errno = 4, code = 5, fields = 6 }

-- The bytes of an error's stack map: also the value of the key 0x52 of a response.
function ext.encode_error(e)
    if not istype(E.ctype, e) then
        return E.complain('msgpack.ext: an error object expected, got ' .. type(e))
    end
    local stack = E.encode_stack(e)
    local out = { '\129\0', array_header(#stack) }
    for _, entry in ipairs(stack) do
        out[#out + 1] = entry.fields ~= nil and '\135' or '\134'
        for _, name in ipairs(FIELD) do
            if entry[name] ~= nil then
                local value = entry[name]
                if name == 'fields' then
                    value = setmetatable({}, map_mt)
                    for k, v in every(entry.fields) do
                        rawset(value, k, v)
                    end
                end
                out[#out + 1] = string.char(NUMBER[name]) .. msgpack.encode(value)
            end
        end
    end
    return table.concat(out)
end

local NAME_OF = {}
for name, number in every(NUMBER) do
    NAME_OF[number] = name
end

-- The error of a decoded stack map; nil and an error when it is none.
function ext.decode_error_map(map)
    local list = type(map) == 'table' and map[0] or nil
    if type(list) ~= 'table' then
        return nil, E.client(E.INVALID_MSGPACK, 'Invalid MsgPack - MP_ERROR_STACK is missing')
    end
    local stack = {}
    for i, entry in ipairs(list) do
        if type(entry) ~= 'table' then
            return nil, E.client(E.INVALID_MSGPACK, 'Invalid MsgPack - MP_ERROR_STACK array entry must be MP_MAP')
        end
        local named = {}
        for number, value in every(entry) do
            local name = NAME_OF[number]
            if name ~= nil then
                named[name] = value
            end
        end
        stack[i] = named
    end
    return E.decode_stack(stack)
end

ext.register({
    type = 3,
    name = 'error',
    ctype = E.ctype,
    encode = ext.encode_error,
    decode = function(payload)
        local e, err = ext.decode_error_map((msgpack.decode(payload)))
        if e == nil then
            error(err, 0)
        end
        return e
    end,
})

return msgpack
