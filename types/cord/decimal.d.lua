---@meta cord.decimal

---What becomes a decimal: text, a number (15 significant digits of it), a number of the FFI.
---@alias cord.decimal.operand cord.decimal.value|string|number|ffi.cdata*

---FFI cdata of `decimal_t`: up to 38 significant digits in results, 76 in what a server sent.
---Operators raise `expected decimal, number or string as N argument`,
---`incorrect value to convert to decimal as N argument` and `decimal operation failed`;
---`<` and `<=` also `attempt to compare decimal with nil`.
---@class cord.decimal.value
---@operator add(cord.decimal.operand): cord.decimal.value
---@operator sub(cord.decimal.operand): cord.decimal.value
---@operator mul(cord.decimal.operand): cord.decimal.value
---@operator div(cord.decimal.operand): cord.decimal.value
---@operator mod(cord.decimal.operand): cord.decimal.value
---@operator pow(cord.decimal.operand): cord.decimal.value
---@operator unm: cord.decimal.value

---@class cord.decimal
local decimal = {}

---Raises: `usage: decimal.new(value)`, `expected decimal, number or string as 1 argument`,
---`incorrect value to convert to decimal as 1 argument` (no number, infinite, 10^38 and more).
---@nodiscard
---@param value cord.decimal.operand
---@return cord.decimal.value
function decimal.new(value) end

---@nodiscard
---@param value any
---@return boolean
function decimal.is_decimal(value) end

---@nodiscard
---@param value cord.decimal.operand
---@return cord.decimal.value
function decimal.abs(value) end

---Raises `decimal operation failed` below zero.
---@nodiscard
---@param value cord.decimal.operand
---@return cord.decimal.value
function decimal.sqrt(value) end

---Raises `decimal operation failed` for 88 and more.
---@nodiscard
---@param value cord.decimal.operand
---@return cord.decimal.value
function decimal.exp(value) end

---Raises `decimal operation failed` for zero and below.
---@nodiscard
---@param value cord.decimal.operand
---@return cord.decimal.value
function decimal.ln(value) end

---Raises `decimal operation failed` for zero and below.
---@nodiscard
---@param value cord.decimal.operand
---@return cord.decimal.value
function decimal.log10(value) end

---Rounds half away from zero. Gives the number back where `scale` is negative, above 38 or no change.
---@nodiscard
---@param value cord.decimal.value
---@param scale integer digits after the point
---@return cord.decimal.value
function decimal.round(value, scale) end

---Adds zeros or rounds. Gives the number back where 38 digits do not suffice.
---@nodiscard
---@param value cord.decimal.value
---@param scale integer digits after the point
---@return cord.decimal.value
function decimal.rescale(value, scale) end

---Without the zeros at the end of the fraction.
---@nodiscard
---@param value cord.decimal.value
---@return cord.decimal.value
function decimal.trim(value) end

---Digits after the point.
---@nodiscard
---@param value cord.decimal.value
---@return integer
function decimal.scale(value) end

---Digits in all, leading zeros of a fraction included.
---@nodiscard
---@param value cord.decimal.value
---@return integer
function decimal.precision(value) end

return decimal
