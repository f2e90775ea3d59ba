---@meta cord.varbinary

---FFI cdata of `struct varbinary`: `#value` is its length, `tostring(value)` its bytes; equal to strings with the same bytes.
---@class cord.varbinary.value

---@class cord.varbinary
local varbinary = {}

---A copy of bytes; empty for nil. Raises `Usage: varbinary.new(str) or varbinary.new(ptr, size)`.
---@nodiscard
---@param data? string|cord.varbinary.value|ffi.cdata* a string, another one, or `const char *` with a size
---@param size? integer bytes at the pointer
---@return cord.varbinary.value
function varbinary.new(data, size) end

---@nodiscard
---@param value any
---@return boolean
function varbinary.is(value) end

return varbinary
