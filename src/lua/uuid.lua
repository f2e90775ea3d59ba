-- UUIDs as FFI cdata of `struct tt_uuid`, with Tarantool's names, byte orders and comparison.
local native, load = ...
local ffi = require('ffi')
local bit = require('bit')
local istype, new = ffi.istype, ffi.new

ffi.cdef([[
struct tt_uuid {
    uint32_t time_low;
    uint16_t time_mid;
    uint16_t time_hi_and_version;
    uint8_t clock_seq_hi_and_reserved;
    uint8_t clock_seq_low;
    uint8_t node[6];
};
]])

local uuid_t = ffi.typeof('struct tt_uuid')
local LENGTH = ffi.sizeof(uuid_t)
local generate = ffi.cast('bool (*)(struct tt_uuid *)', ffi.cast('uintptr_t', native.generate))
local FIELDS = '%08x-%04x-%04x-%02x%02x-%02x%02x%02x%02x%02x%02x'
local parse_bytes = ffi.cast('bool (*)(struct tt_uuid *, const char *)', ffi.cast('uintptr_t', native.parse))
local TEXT_LENGTH = 36

local function is_uuid(value)
    return istype(uuid_t, value)
end

local function check(value, usage)
    if not is_uuid(value) then
        error(usage, 3)
    end
end

--- Turns host byte order (little-endian hosts only differ) into network byte order and back, in place.
local function swap(value)
    if ffi.abi('le') then
        value.time_low = bit.bswap(value.time_low)
        value.time_mid = bit.rshift(bit.bswap(value.time_mid), 16)
        value.time_hi_and_version = bit.rshift(bit.bswap(value.time_hi_and_version), 16)
    end
    return value
end

--- Whether `order` means network byte order; an unknown name is an error of the caller's caller.
local function is_network(order)
    if order == nil or order == 'l' or order == 'h' or order == 'host' then
        return false
    elseif order == 'b' or order == 'n' or order == 'network' then
        return true
    end
    error('invalid byteorder, valid is l, b, h, n', 3)
end

local function to_string(value)
    return FIELDS:format(value.time_low, value.time_mid, value.time_hi_and_version, value.clock_seq_hi_and_reserved,
        value.clock_seq_low, value.node[0], value.node[1], value.node[2], value.node[3], value.node[4], value.node[5])
end

local function to_bytes(value, network)
    if network then
        value = swap(new(uuid_t, value))
    end
    return ffi.string(ffi.cast('const char *', value), LENGTH)
end

--- The UUID in the text, or nil.
local function parse(text)
    local value = new(uuid_t)
    if #text ~= TEXT_LENGTH or not parse_bytes(value, text) then
        return nil
    end
    return swap(value)
end

local function order(lhs, rhs)
    -- In network byte order the bytes compare as the fields do.
    lhs, rhs = to_bytes(lhs, true), to_bytes(rhs, true)
    return lhs < rhs and -1 or lhs > rhs and 1 or 0
end

--- Compares two values, one of which may be text; anything else is an error of whoever compares.
local function compare(lhs, rhs)
    local function convert(value, index)
        if is_uuid(value) then
            return value
        end
        local parsed = type(value) == 'string' and parse(value)
        if not parsed then
            error(('incorrect value to convert to uuid as %d argument'):format(index), 4)
        end
        return parsed
    end
    return order(convert(lhs, 1), convert(rhs, 2))
end

local function equal(lhs, rhs)
    if not is_uuid(lhs) then
        lhs, rhs = rhs, lhs
    end
    if type(rhs) == 'string' then
        rhs = parse(rhs)
    end
    return is_uuid(rhs) and to_bytes(lhs) == to_bytes(rhs)
end

local function create()
    local value = new(uuid_t)
    if not generate(value) then
        error('cannot generate a UUID: the system has no random bytes', 3)
    end
    return swap(value)
end

local uuid = { NULL = new(uuid_t), is_uuid = is_uuid }

--- A random UUID (version 4).
function uuid.new()
    return create()
end

--- The text of a new UUID.
function uuid.str()
    return to_string(create())
end

--- The 16 bytes of a new UUID; `order` is 'l', 'h', 'host' (the default), or 'b', 'n', 'network'.
function uuid.bin(byte_order)
    local network = is_network(byte_order)
    return to_bytes(create(), network)
end

--- The UUID in a text of 36 characters, or nil when it is not one.
function uuid.fromstr(text)
    if type(text) ~= 'string' then
        error('fromstr(str)', 2)
    end
    return parse(text)
end

--- The UUID in 16 bytes.
function uuid.frombin(bytes, byte_order)
    if type(bytes) ~= 'string' or #bytes ~= LENGTH then
        error('frombin(bin, [byteorder])', 2)
    end
    local network = is_network(byte_order)
    local value = new(uuid_t)
    ffi.copy(value, bytes, LENGTH)
    return network and swap(value) or value
end

local methods = {}

--- Whether all bytes are zero.
function methods.isnil(self)
    check(self, 'Usage: uuid:isnil()')
    return to_bytes(self) == to_bytes(uuid.NULL)
end

--- The 16 bytes, in host byte order unless `order` says network.
function methods.bin(self, byte_order)
    check(self, 'Usage: uuid:bin([byteorder])')
    return to_bytes(self, is_network(byte_order))
end

--- The text of 36 characters.
function methods.str(self)
    check(self, 'Usage: uuid:str()')
    return to_string(self)
end

ffi.metatype(uuid_t, {
    __index = methods,
    __tostring = methods.str,
    __eq = equal,
    __lt = function(lhs, rhs)
        return compare(lhs, rhs) < 0
    end,
    __le = function(lhs, rhs)
        return compare(lhs, rhs) <= 0
    end,
})

load('cord.msgpack').ext.register({
    type = 2,
    name = 'uuid',
    ctype = uuid_t,
    encode = function(value)
        return to_bytes(value, true)
    end,
    decode = function(payload)
        if #payload ~= LENGTH then
            error('invalid uuid', 0)
        end
        local value = new(uuid_t)
        ffi.copy(value, payload, LENGTH)
        return swap(value)
    end,
})

return setmetatable(uuid, { __call = uuid.new })
