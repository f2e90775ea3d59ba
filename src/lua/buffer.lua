-- cord.buffer: Tarantool's growable input buffer.
--
--     buf                rpos               wpos              epos
--      |  read already    |  to be read      |  free            |
--
-- One block of malloc, or none. Reserving moves the unread bytes to the front when that makes room, else into a block
-- of twice the size; pointers into the buffer are valid until then. Source: tarantool/tarantool src/lua/buffer.lua,
-- small/ibuf.c (3.9-dev).

local _, load = ...
local ffi = require('ffi')
local E = load('cord.error')

local READAHEAD = 16320

ffi.cdef([[
struct slab_cache;
struct ibuf {
    struct slab_cache *slabc;
    char *buf;
    char *rpos;
    char *wpos;
    char *epos;
    size_t start_capacity;
};
void *cord_malloc(size_t) __asm__("malloc");
void cord_free(void *) __asm__("free");
]])

local C, istype, cast = ffi.C, ffi.istype, ffi.cast
local ibuf_t = ffi.typeof('struct ibuf')
local char_ptr = ffi.typeof('char *')

local function errorf(text, ...)
    E.complain(text:format(...))
end

local function check(buf, method)
    if not istype(ibuf_t, buf) then
        errorf('Attempt to call method without object, use ibuf:%s()', method)
    end
end

local function used(buf)
    return tonumber(buf.wpos - buf.rpos)
end

local function grow(buf, size)
    local have, capacity = used(buf), tonumber(buf.epos - buf.buf)
    if have + size <= capacity then
        ffi.copy(buf.buf, ffi.string(buf.rpos, have), have)
    else
        local wanted = math.max(capacity * 2, tonumber(buf.start_capacity), 64)
        while wanted < have + size do
            wanted = wanted * 2
        end
        local block = C.cord_malloc(wanted)
        if block == nil then
            errorf('Failed to allocate %d bytes in ibuf', size)
        end
        block = cast(char_ptr, block)
        ffi.copy(block, buf.rpos, have)
        C.cord_free(buf.buf)
        buf.buf = block
        buf.epos = block + wanted
    end
    buf.rpos = buf.buf
    buf.wpos = buf.buf + have
    return buf.wpos
end

-- A size from the caller: whole, not negative, and far from overflow.
local function check_size(size)
    size = tonumber(size)
    if size == nil or not (size >= 0 and size < 2 ^ 47) then
        errorf('Failed to allocate %s bytes in ibuf', tostring(size))
    end
    return size
end

local methods = {}

-- Gives the memory back; the buffer is as new.
function methods.recycle(buf)
    check(buf, 'recycle')
    C.cord_free(buf.buf)
    buf.buf, buf.rpos, buf.wpos, buf.epos = nil, nil, nil, nil
end

-- Forgets what is in the buffer and keeps the memory.
function methods.reset(buf)
    check(buf, 'reset')
    buf.rpos = buf.buf
    buf.wpos = buf.buf
end

-- Makes room for `size` bytes behind wpos and returns wpos.
function methods.reserve(buf, size)
    check(buf, 'reserve')
    size = check_size(size)
    if size <= buf.epos - buf.wpos then
        return buf.wpos
    end
    return grow(buf, size)
end

-- The same, and takes them: returns where they begin.
function methods.alloc(buf, size)
    check(buf, 'alloc')
    size = check_size(size)
    local wpos = buf.wpos
    if size > buf.epos - wpos then
        wpos = grow(buf, size)
    end
    buf.wpos = wpos + size
    return wpos
end

local function check_readable(buf, size)
    local bytes = tonumber(size)
    if bytes == nil then
        errorf('Attempt to read out of range bytes: needed=%s size=%d', tostring(size), used(buf))
    elseif not (bytes >= 0 and bytes <= buf.wpos - buf.rpos) then
        errorf('Attempt to read out of range bytes: needed=%d size=%d', bytes, used(buf))
    end
end

-- That `size` bytes are there to read; returns rpos.
function methods.checksize(buf, size)
    check(buf, 'checksize')
    check_readable(buf, size)
    return buf.rpos
end

-- Reads `size` bytes: returns where they begin.
function methods.read(buf, size)
    check(buf, 'read')
    check_readable(buf, size)
    local rpos = buf.rpos
    buf.rpos = rpos + size
    return rpos
end

-- Reads `size` bytes without a look.
function methods.consume(buf, size)
    check(buf, 'consume')
    check_readable(buf, size)
    buf.rpos = buf.rpos + size
end

-- Bytes to be read.
function methods.size(buf)
    check(buf, 'size')
    return used(buf)
end

-- Bytes of the whole block.
function methods.capacity(buf)
    check(buf, 'capacity')
    return tonumber(buf.epos - buf.buf)
end

-- Bytes read already.
function methods.pos(buf)
    check(buf, 'pos')
    return tonumber(buf.rpos - buf.buf)
end

-- Bytes free behind wpos.
function methods.unused(buf)
    check(buf, 'unused')
    return tonumber(buf.epos - buf.wpos)
end

function methods.__serialize(buf)
    return { ibuf = { rpos = buf.rpos, wpos = buf.wpos } }
end

ffi.metatype(ibuf_t, {
    __index = methods,
    __gc = methods.recycle,
    __tostring = function()
        return '<ibuf>'
    end,
})

local buffer = { READAHEAD = READAHEAD }

-- A new buffer, with room for `size` bytes already when a size is given.
function buffer.ibuf(size)
    if size ~= nil and type(size) ~= 'number' then
        errorf('Usage: ibuf([size])')
    end
    local buf = ibuf_t()
    buf.start_capacity = READAHEAD
    if size ~= nil then
        buf:reserve(size)
    end
    return buf
end

-- Whether a value is such a buffer.
function buffer.is_ibuf(value)
    return istype(ibuf_t, value)
end

-- Keeps one cdata of a type for reuse by code that does not yield between take and put.
function buffer.ffi_stash_new(ctype)
    local item = nil
    return {
        take = function()
            local taken = item
            item = nil
            return taken or ffi.new(ctype)
        end,
        put = function(taken)
            item = taken
        end,
    }
end

return buffer
