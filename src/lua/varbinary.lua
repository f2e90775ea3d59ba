-- Binary data that MessagePack carries as such: FFI cdata of `struct varbinary` with length, text and comparison.
local _, load = ...
local ffi = require('ffi')
local istype, cast = ffi.istype, ffi.cast

ffi.cdef([[
struct varbinary { char data[?]; };
int cord_memcmp(const char *, const char *, size_t) __asm__("memcmp");
]])

local varbinary_t = ffi.typeof('struct varbinary')
local bytes_t = ffi.typeof('const char *')

local varbinary = {}

--- Whether the value is one of these objects.
function varbinary.is(value)
    return istype(varbinary_t, value)
end

--- A copy of a string, of another object, or of `size` bytes at a `const char *`; empty for nil.
function varbinary.new(data, size)
    if data == nil then
        size = 0
    elseif type(data) == 'string' then
        size = #data
    elseif istype(varbinary_t, data) then
        size = ffi.sizeof(data)
    elseif not istype(bytes_t, data) or type(size) ~= 'number' then
        error('Usage: varbinary.new(str) or varbinary.new(ptr, size)', 2)
    end
    local value = ffi.new(varbinary_t, size)
    if size > 0 then
        ffi.copy(value, data, size)
    end
    return value
end

local function is_bytes(value)
    return type(value) == 'string' or istype(varbinary_t, value)
end

ffi.metatype(varbinary_t, {
    __len = function(value)
        return ffi.sizeof(value)
    end,
    __tostring = function(value)
        return ffi.string(value, ffi.sizeof(value))
    end,
    __eq = function(lhs, rhs)
        if not is_bytes(lhs) or not is_bytes(rhs) or #lhs ~= #rhs then
            return false
        end
        return ffi.C.cord_memcmp(cast(bytes_t, lhs), cast(bytes_t, rhs), #lhs) == 0
    end,
})

load('cord.msgpack').ext.register({
    type = 'bin',
    name = 'varbinary',
    ctype = varbinary_t,
    encode = tostring,
    decode = varbinary.new,
})

return varbinary
