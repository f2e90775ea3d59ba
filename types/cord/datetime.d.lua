---@meta cord.datetime

---@alias cord.datetime.adjust
---| "none" # default: a day that the month lacks becomes its last
---| "last" # and a month's last day stays the last
---| "excess" # a day that the month lacks goes on into the next month

---Fields of a datetime. A timestamp excludes the others but the fraction, tz and tzoffset.
---@class cord.datetime.fields
---@field year? integer -5879610 to 5879611; default 1970
---@field month? integer 1 to 12; default 1
---@field day? integer 1 to 31, -1: the last of the month; default 1
---@field hour? integer 0 to 23; default 0
---@field min? integer 0 to 59; default 0
---@field sec? integer 0 to 60; default 0
---@field nsec? integer nanoseconds; one of nsec, usec and msec at most
---@field usec? integer microseconds
---@field msec? integer milliseconds
---@field timestamp? number seconds since 1970; local time when an offset or a zone is given, else UTC
---@field tzoffset? integer|string minutes east of UTC, -720 to 840, or `+hhmm`, `+hh:mm`, `Z`; default 0
---@field tz? string a name such as `MSK` or `Europe/Moscow`, any letter case, or an offset; wins over tzoffset

---@class cord.datetime.parts
---@field year integer
---@field month integer
---@field day integer
---@field hour integer
---@field min integer
---@field sec integer
---@field nsec integer
---@field wday integer 1 is Sunday
---@field yday integer from 1
---@field isdst boolean
---@field tzoffset integer minutes east of UTC
---@field tz string `''` without a zone
---@field timestamp number seconds since 1970 UTC

---FFI cdata of `struct datetime`. Compares by the moment. `datetime - datetime` is an interval; adding and subtracting an
---interval or a table of its fields gives a datetime. Operators raise `operator +: expected ...`,
---`incompatible types for datetime comparison`, `addition makes date greater than maximum allowed 5879611-07-11`.
---@class cord.datetime.value: cord.datetime.parts
---@field epoch number seconds since 1970 UTC, whole
---@field usec number the fraction in microseconds
---@field msec number the fraction in milliseconds
---@field tzindex integer number of the zone in MessagePack, 0 without
---@operator add(cord.datetime.interval|cord.datetime.interval.fields): cord.datetime.value
---@operator sub(cord.datetime.value): cord.datetime.interval
local value = {}

---ISO 8601 without a pattern, else the pattern of strftime with `%f` for the fraction. Raises on wrong types.
---@nodiscard
---@param pattern? string
---@return string
function value:format(pattern) end

---@nodiscard
---@return cord.datetime.parts
function value:totable() end

---Changes fields, in the offset the datetime has. Raises as `datetime.new`.
---@param fields cord.datetime.fields
---@return cord.datetime.value self
function value:set(fields) end

---Moves the datetime. Raises `datetime.add: expected interval or table, but received ...` and what operators raise.
---@param step cord.datetime.interval|cord.datetime.interval.fields
---@return cord.datetime.value self
function value:add(step) end

---@param step cord.datetime.interval|cord.datetime.interval.fields
---@return cord.datetime.value self
function value:sub(step) end

---@class cord.datetime.interval.fields
---@field year? integer
---@field month? integer
---@field week? number
---@field day? integer
---@field hour? integer
---@field min? integer
---@field sec? integer
---@field nsec? integer one of nsec, usec and msec at most
---@field usec? integer
---@field msec? integer
---@field adjust? cord.datetime.adjust default "none"

---FFI cdata of `struct interval`: parts that are kept apart, added, subtracted and compared one by one.
---@class cord.datetime.interval
---@field year integer
---@field month integer
---@field week integer
---@field day number
---@field hour number
---@field min number
---@field sec number
---@field nsec integer
---@field usec integer
---@field msec integer
---@field adjust integer 0 excess, 1 none, 2 last
---@operator add(cord.datetime.interval|cord.datetime.interval.fields): cord.datetime.interval
---@operator sub(cord.datetime.interval|cord.datetime.interval.fields): cord.datetime.interval
local interval = {}

---@nodiscard
---@return table parts with `adjust` by name
function interval:totable() end

---@class cord.datetime
---@field TZ table<string|integer, integer|string> numbers of zones by name, names by number
---@field interval { new: (fun(fields?: cord.datetime.interval.fields): cord.datetime.interval), is_interval: fun(value: any): boolean }
local datetime = {}

---Raises what is wrong with the fields: `value 13 of month is out of allowed range [1, 12]`,
---`could not parse 'BST' - ambiguous timezone` ...
---@nodiscard
---@param fields? cord.datetime.fields nil: 1970-01-01T00:00:00Z
---@return cord.datetime.value
function datetime.new(fields) end

---The present, to the microsecond, with the offset of the machine's time zone.
---@nodiscard
---@return cord.datetime.value
function datetime.now() end

---Reads ISO 8601 (calendar, ordinal, week and quarter dates, basic or extended) or, with `format`, a pattern of strptime.
---`tzoffset` or `tz` are for texts without a zone. Raises `could not parse '...'`.
---@nodiscard
---@param text string
---@param options? { format?: string, tzoffset?: integer|string, tz?: string }
---@return cord.datetime.value value
---@return integer length characters read
function datetime.parse(text, options) end

---Reads a date of ISO 8601. Raises `invalid date format ...`.
---@nodiscard
---@param text string
---@return cord.datetime.value value
---@return integer length characters read
function datetime.parse_date(text) end

---@nodiscard
---@param what any
---@return boolean
function datetime.is_datetime(what) end

return datetime
