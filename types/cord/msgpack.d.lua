---@meta cord.msgpack

---Tarantool's `msgpack`. Content that cannot be encoded or decoded raises an error object, wrong arguments a string.
---@class cord.msgpack
---@field NULL ffi.cdata* what nil decodes to: `NULL == nil`, but true in a condition, and kept in tables
---@field array_mt table metatable of decoded arrays
---@field map_mt table metatable of decoded maps; `setmetatable({}, map_mt)` is encoded as an empty map
---@field cfg cord.msgpack.cfg
---@field ext table the hook for extension types; see docs/msgpack.md
local msgpack = {}

---The options, and a function that changes them: `msgpack.cfg { encode_max_depth = 10 }`. net.box and the server use
---the options of the module itself.
---@class cord.msgpack.cfg
---@field encode_sparse_convert boolean sparse arrays become maps (true), or raise
---@field encode_sparse_ratio integer an array is sparse when it is more than this many times longer than full (2); 0: never
---@field encode_sparse_safe integer up to this length an array is never sparse (10)
---@field encode_max_depth integer deepest nesting (128; at most 1000)
---@field encode_deep_as_nil boolean deeper values become nil, or raise (false)
---@field encode_invalid_numbers boolean NaN and infinity are encoded (true), or raise
---@field encode_number_precision integer for text formats only (14)
---@field encode_load_metatables boolean `__serialize` counts (true)
---@field encode_use_tostring boolean values without a form become their `tostring` (false)
---@field encode_invalid_as_nil boolean values without a form become nil (false)
---@field encode_error_as_ext boolean error objects are sent whole (true), or as their message
---@field decode_invalid_numbers boolean NaN and infinity are decoded (true), or raise
---@field decode_save_metatables boolean decoded tables get `array_mt` and `map_mt` (true)
---@field decode_max_depth integer deepest nesting (128; at most 1000)
---@overload fun(options: table)
local cfg = {}

---Encodes a value; with a buffer, appends it there and returns the number of bytes. A failure leaves the buffer as it was.
---Raises: `msgpack.encode: a Lua object expected`, `msgpack.encode: argument 2 must be of type 'struct ibuf'`,
---`unsupported Lua type '%s'`, `Too high nest level - %d`, `excessively sparse array`, `number must not be NaN or Inf`,
---`invalid __serialize value`, and what `__serialize` raises.
---@param value any
---@param buf? cord.buffer.ibuf
---@return string|integer
function msgpack.encode(value, buf) end

---Decodes one value, of a string from an offset (1), or of memory; returns it and where the next one is.
---Raises: `msgpack.decode: a Lua string or 'char *' expected`, `msgpack.decode: offset is out of bounds`,
---`msgpack.decode: size can't be negative`, `Invalid MsgPack - truncated input`, `Invalid MsgPack - illegal code`,
---`Invalid MsgPack - invalid extension`, `msgpack.decode: unsupported extension: %d`, `Too high nest level - %d`.
---@param data string|ffi.cdata* string or `char *`
---@param offset_or_size? integer offset for a string, size for a pointer
---@return any value
---@return integer|ffi.cdata* next
function msgpack.decode(data, offset_or_size) end

---The same without a size: the caller vouches that a whole value is there.
---@param data string|ffi.cdata*
---@param offset? integer
---@return any value
---@return integer|ffi.cdata* next
function msgpack.decode_unchecked(data, offset) end

---The same of a buffer's `rpos`, which comes first in the results. Raises: `msgpack.ibuf_decode: rpos is null`.
---@param rpos ffi.cdata*
---@return ffi.cdata* rpos
---@return any value
function msgpack.ibuf_decode(rpos) end

---The number of elements of an array and where the first is.
---Raises: `Usage: %s(ptr, size)`, `%s: 'char *' expected`, `%s: non-positive size`, `%s: unexpected msgpack type`,
---`%s: unexpected end of buffer`.
---@param ptr ffi.cdata*
---@param size integer bytes
---@return integer count
---@return ffi.cdata* next
function msgpack.decode_array_header(ptr, size) end

---The number of pairs of a map and where the first is. Raises as `decode_array_header`.
---@param ptr ffi.cdata*
---@param size integer bytes
---@return integer count
---@return ffi.cdata* next
function msgpack.decode_map_header(ptr, size) end

---A value kept as its bytes. Raises as `encode`; `msgpack.object: a Lua object expected`.
---@param value any
---@return cord.msgpack.object
---@nodiscard
function msgpack.object(value) end

---The same of bytes. Raises: `msgpack.object_from_raw: a Lua string or 'char *' expected`, `Invalid MsgPack - ...`.
---@param data string|ffi.cdata*
---@param size? integer for a pointer: bytes
---@return cord.msgpack.object
---@nodiscard
function msgpack.object_from_raw(data, size) end

---@param value any
---@return boolean
---@nodiscard
function msgpack.is_object(value) end

---A serializer with options of its own.
---@return cord.msgpack
---@nodiscard
function msgpack.new() end

---Bytes of one value. Indexing decodes it once: `object[1]`, `object.name`. Raises: `not an array or map`.
---@class cord.msgpack.object
---@field [any] any
local object = {}

---@return any
---@nodiscard
function object:decode() end

---The element of a key that may be the name of a method. Raises: `not an array or map`.
---@param key any
---@return any
---@nodiscard
function object:get(key) end

---@return cord.msgpack.iterator
---@nodiscard
function object:iterator() end

---A walk through an object's bytes. All raise `iteration ended`, headers also `unexpected msgpack type`.
---@class cord.msgpack.iterator
local iterator = {}

---@return any
function iterator:decode() end

function iterator:skip() end

---@return cord.msgpack.object
function iterator:take() end

---The next values as one array. Raises: `Usage: iter:take_array(count)`, `count must be >= 0`.
---@param count integer
---@return cord.msgpack.object
function iterator:take_array(count) end

---@return integer count
function iterator:decode_array_header() end

---@return integer count
function iterator:decode_map_header() end

return msgpack
