---@meta cord.errno

---The system's error numbers by name. Called, it gives the number the last failed call left, and sets it to its argument.
---@class cord.errno
---@field [string] integer
---@overload fun(new?: integer): integer
local errno = {}

---The system's text of a number; without one, of the last failed call's.
---@nodiscard
---@param number? integer
---@return string
function errno.strerror(number) end

return errno
