---@meta cord.buffer

---Tarantool's growable input buffers.
---@class cord.buffer
---@field READAHEAD integer bytes a buffer begins with: 16320
local buffer = {}

---A new buffer, with room for `size` bytes already when a size is given. Raises: `Usage: ibuf([size])`.
---@param size? integer
---@return cord.buffer.ibuf
---@nodiscard
function buffer.ibuf(size) end

---@param value any
---@return boolean
---@nodiscard
function buffer.is_ibuf(value) end

---Keeps one cdata of a type for reuse by code that does not yield between `take` and `put`.
---@param ctype string|ffi.ctype*
---@return { take: fun(): ffi.cdata*, put: fun(item: ffi.cdata*) }
---@nodiscard
function buffer.ffi_stash_new(ctype) end

---cdata of `struct ibuf`. Pointers into it are valid until the next `reserve`, `alloc` or `recycle`.
---Methods raise `Attempt to call method without object, use ibuf:%s()`.
---@class cord.buffer.ibuf
---@field buf ffi.cdata* start of the memory
---@field rpos ffi.cdata* start of what is to be read
---@field wpos ffi.cdata* end of it
---@field epos ffi.cdata* end of the memory
local ibuf = {}

---Makes room for `size` bytes behind `wpos` and returns that. Raises: `Failed to allocate %d bytes in ibuf`.
---@param size integer
---@return ffi.cdata*
function ibuf:reserve(size) end

---The same, and takes them. Raises as `reserve`.
---@param size integer
---@return ffi.cdata*
function ibuf:alloc(size) end

---Reads `size` bytes: returns where they begin. Raises: `Attempt to read out of range bytes: needed=%d size=%d`.
---@param size integer
---@return ffi.cdata*
function ibuf:read(size) end

---Where `size` bytes to be read begin. Raises as `read`.
---@param size integer
---@return ffi.cdata*
function ibuf:checksize(size) end

---Skips `size` bytes. Raises as `read`.
---@param size integer
function ibuf:consume(size) end

---Bytes to be read.
---@return integer
---@nodiscard
function ibuf:size() end

---Bytes of the whole memory.
---@return integer
---@nodiscard
function ibuf:capacity() end

---Bytes read already.
---@return integer
---@nodiscard
function ibuf:pos() end

---Bytes free behind `wpos`.
---@return integer
---@nodiscard
function ibuf:unused() end

---Forgets the contents, keeps the memory.
function ibuf:reset() end

---Gives the memory back.
function ibuf:recycle() end

return buffer
