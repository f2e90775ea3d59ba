---@meta cord.uuid

---@alias cord.uuid.order "l"|"h"|"host"|"b"|"n"|"network" host byte order (default) or network byte order

---FFI cdata of `struct tt_uuid`. Compares with UUIDs and their texts; other operands of `<` and `<=` raise
---`incorrect value to convert to uuid as N argument`.
---@class cord.uuid.value
---@field time_low integer
---@field time_mid integer
---@field time_hi_and_version integer
---@field clock_seq_hi_and_reserved integer
---@field clock_seq_low integer
---@operator eq(cord.uuid.value|string): boolean
local value = {}

---Whether all bytes are zero.
---@nodiscard
---@return boolean
function value:isnil() end

---The text of 36 characters, in lower case.
---@nodiscard
---@return string
function value:str() end

---The 16 bytes. Raises `invalid byteorder, valid is l, b, h, n`.
---@nodiscard
---@param order? cord.uuid.order
---@return string
function value:bin(order) end

---@class cord.uuid
---@field NULL cord.uuid.value all bytes zero
---@overload fun(): cord.uuid.value
local uuid = {}

---A random UUID (version 4).
---@nodiscard
---@return cord.uuid.value
function uuid.new() end

---The text of a new UUID.
---@nodiscard
---@return string
function uuid.str() end

---The bytes of a new UUID. Raises `invalid byteorder, valid is l, b, h, n`.
---@nodiscard
---@param order? cord.uuid.order
---@return string
function uuid.bin(order) end

---The UUID in a text of 36 characters; nil when it is not one. Raises `fromstr(str)` for other types.
---@nodiscard
---@param text string
---@return cord.uuid.value?
function uuid.fromstr(text) end

---The UUID in 16 bytes. Raises `frombin(bin, [byteorder])` and `invalid byteorder, valid is l, b, h, n`.
---@nodiscard
---@param bytes string
---@param order? cord.uuid.order
---@return cord.uuid.value
function uuid.frombin(bytes, order) end

---@nodiscard
---@param what any
---@return boolean
function uuid.is_uuid(what) end

return uuid
