---@meta cord.json

---Options of a call, of an instance (`new`), or of the module (`cfg`).
---@class cord.json.options
---@field encode_sparse_convert? boolean write an array with too many holes as a map; default true, else an error
---@field encode_sparse_ratio? integer indexes per value above which an array has too many holes; 0: never; default 2
---@field encode_sparse_safe? integer highest index up to which holes do not matter; default 10
---@field encode_max_depth? integer nesting allowed; default 128
---@field encode_deep_as_nil? boolean write what is deeper as null; default false: an error
---@field encode_invalid_numbers? boolean write `inf`, `-inf` and `nan`; default true, else an error
---@field encode_number_precision? integer significant digits of fractions; default 14
---@field encode_load_metatables? boolean follow `__serialize`; default true
---@field encode_use_tostring? boolean write what JSON has no form for as its `tostring`; default false
---@field encode_invalid_as_nil? boolean write it as null; default false: an error
---@field encode_key_order? (string|integer)[] keys of maps that come first, in this order
---@field decode_invalid_numbers? boolean read `inf`, `-inf`, `nan` and overflowing numbers; default true
---@field decode_save_metatables? boolean give arrays and maps `array_mt` and `map_mt`; default true
---@field decode_max_depth? integer nesting allowed; default 128

---@class cord.json
---@field NULL ffi.cdata* what null becomes: equal to nil, but true in a condition
---@field null ffi.cdata* the same
---@field array_mt table metatable that makes a table an array
---@field map_mt table metatable that makes a table a map
---@field cfg cord.json.options|fun(options: cord.json.options) settings to read; a function to change them
local json = {}

---Writes a value. Decimals, UUIDs, datetimes, intervals, errors and binary data become strings. `__serialize` of a
---metatable: `'seq'`, `'map'`, or a function that gives the value to write instead; it may yield.
---Raises: `unsupported Lua type '...'`, `Too high nest level`, `excessively sparse array`,
---`number must not be NaN or Inf`, `table key must be a number or string`, `invalid __serialize value`, and what a
---`__serialize` function raises.
---@nodiscard
---@param value any
---@param options? cord.json.options
---@return string
function json.encode(value, options) end

---Reads a text. Integers of 100000000000000 and more become 64-bit cdata, those beyond 64 bits the nearest number.
---Raises: `Expected ... but found ... on line N at character N here '...'`, `Found too many nested data structures ...`,
---`number must not be NaN or Inf`, `JSON parser does not support UTF-16 or UTF-32`.
---@nodiscard
---@param text string
---@param options? cord.json.options
---@return any
function json.decode(text, options) end

---Another instance, with settings of its own.
---@nodiscard
---@return cord.json
function json.new() end

return json
