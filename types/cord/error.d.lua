---@meta cord.error

---An error object: FFI cdata of `struct error`. `tostring(e)` is its message; `..` joins that with strings.
---Payload fields are read like any other field, also from the causes; unknown names give nil.
---@class cord.error.object
---@field type string the class, or the custom type's name: 'ClientError', 'IllegalParams', 'TimedOut', ...
---@field base_type string the class: 'CustomError' for a custom type
---@field message string
---@field code integer the error code, 0 for classes without one
---@field errno? integer the system's error number
---@field trace { file: string, line: integer }[] where it was raised: one entry, or none
---@field prev? cord.error.object its cause
---@field value? any of a LuajitError: what was raised
local object = {}

---All fields and the payload as a table. Raises: `Usage: error:unpack()`.
---@return table
---@nodiscard
function object:unpack() end

---Raises this object. Raises: `Usage: error:raise()`.
function object:raise() end

---`string.match` on the message. Raises: `Usage: error:match()`.
---@param pattern string
---@param init? integer
---@return string|nil ...
function object:match(pattern, init) end

---Makes `cause` the cause of this error (nil: none); an error is the cause of one other at most.
---Raises: `Usage: error1:set_prev(error2)`, `Cycles are not allowed`.
---@param cause? cord.error.object
function object:set_prev(cause) end

---Tarantool's `box.error`. The codes are its fields: `cord.error.NO_SUCH_SPACE == 36`.
---@class cord.error
---@field [string] integer the error codes by name: `NO_SUCH_PROC`, `ACCESS_DENIED` ...
---@overload fun(code: integer, ...: any): nil
---@overload fun(type: string, format: string, ...: any): nil
---@overload fun(parts: cord.error.parts, level?: integer): nil
---@overload fun(err: cord.error.object, level?: integer): nil
local M = {}

---@class cord.error.parts
---@field code? integer
---@field type? string makes a CustomError of this type
---@field message? string also `reason` or the element 1
---@field prev? cord.error.object
---@field [string] any payload

---Makes an error from the same arguments as `cord.error(...)`, which raises it.
---Raises: `box.error.new(): bad arguments`, `Invalid argument 'prev' (error expected, got %s)`.
---@param ... any
---@return cord.error.object
---@nodiscard
function M.new(...) end

---@param value any
---@return boolean
---@nodiscard
function M.is(value) end

---The last error of the current fiber.
---@return cord.error.object?
---@nodiscard
function M.last() end

---Forgets the last error of the current fiber.
function M.clear() end

---Makes `err` the last error of the current fiber.
---@param err cord.error.object
function M.set(err) end

return M
