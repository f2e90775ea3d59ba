---@meta cord.log

---@alias cord.log.level
---| "fatal"|"syserror"|"error"|"crit"|"warn"|"info"|"verbose"|"debug"
---| 0|1|2|3|4|5|6|7

---@class cord.log.options
---@field level? cord.log.level what is written: this level and those before it; default "info"
---@field modules? table<string, cord.log.level> levels of named loggers
---@field format? "plain"|"json" default "plain"
---@field log? string path of a file to append to; default: stderr
---@field nonblock? boolean accepted for Tarantool's sake; writing always waits

---With arguments, the first one is a format of `string.format` and tables among the others are written as JSON; alone, a
---table is written as JSON and anything else as its `tostring`. Raises what `string.format` raises.
---@class cord.log
---@field name? string of a logger made by `new`
---@field error fun(format: any, ...: any)
---@field warn fun(format: any, ...: any)
---@field info fun(format: any, ...: any)
---@field verbose fun(format: any, ...: any)
---@field debug fun(format: any, ...: any)
---@field cfg cord.log.options|fun(options: cord.log.options) settings to read; a function to change them. Raises
---`Incorrect value for option '...': ...`
local log = {}

---Raises `Incorrect value for option 'log_level': expected ...`.
---@param level cord.log.level
function log.level(level) end

---Raises `Incorrect value for option 'log_format': expected 'plain' or 'json'`.
---@param format "plain"|"json"
function log.log_format(format) end

---The id of the process a log is piped to: always 0.
---@return integer
function log.pid() end

---Opens the log file again, after it was moved away.
function log.rotate() end

---A logger whose lines carry `name`; the same one for the same name.
---@param name string
---@return cord.log
function log.new(name) end

return log
