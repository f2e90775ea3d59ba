-- A log on stderr (or appended to a file) with Tarantool's names, levels and line format:
--
--     2026-11-30 18:20:05.123 [4711] main/103/worker net.box W> db:3301: Connection refused
--     time, process, main/fiber id/fiber name, logger's name if it has one, level's letter, message
local _, load = ...
-- Not named pairs, lest LuaJIT compiles loops that a finalizer may never leave: docs/jit.md.
local every = pairs
local ffi = require('ffi')
local clock = load('cord.clock')

ffi.cdef('int cord_getpid(void) __asm__("getpid");')

local LEVELS = { fatal = 0, syserror = 1, error = 2, crit = 3, warn = 4, info = 5, verbose = 6, debug = 7 }
local NAMES, LETTERS = {}, { [0] = 'F', '!', 'E', 'C', 'W', 'I', 'V', 'D' }
for name, level in every(LEVELS) do
    NAMES[level] = name:upper()
end
NAMES[LEVELS.syserror], NAMES[LEVELS.warn] = 'SYSERROR', 'WARN'
-- Levels that say which line of code spoke.
local PLACED = { [LEVELS.error] = true, [LEVELS.syserror] = true, [LEVELS.warn] = true }
local OPTIONS = { level = true, format = true, log = true, modules = true, nonblock = true }

local log = {}
local settings = { level = LEVELS.info, format = 'plain', modules = {} }
local output = io.stderr
local loggers = {}

local function level_number(level)
    return LEVELS[level] or level
end

local function check_level(level, option)
    if type(level) ~= 'number' and LEVELS[level] == nil then
        local names = {}
        for i = 0, 7 do
            names[i + 1] = NAMES[i]:lower()
        end
        error(("Incorrect value for option '%s': expected %s"):format(option, table.concat(names, ',')), 3)
    end
end

--- Id and name of the running fiber; the first one's where fibers are not in use.
local function fiber_info()
    local fiber = load('cord.fiber', true)
    local known, id, name = pcall(function()
        return fiber.id(), fiber.name()
    end)
    if known then
        return id, name
    end
    return 101, 'main'
end

local function encode(value)
    local json = load('cord.json', true)
    if not json then
        return tostring(value)
    end
    return json.encode(value, { encode_use_tostring = true, encode_invalid_as_nil = true })
end

--- The message: a format with arguments, a table as JSON, or anything else as text.
local function message(format, ...)
    local count = select('#', ...)
    if count == 0 then
        return type(format) == 'table' and encode(format) or tostring(format)
    end
    local arguments = { ... }
    for i = 1, count do
        local meta = type(arguments[i]) == 'table' and getmetatable(arguments[i])
        if meta ~= false and not (meta and meta.__tostring) then
            arguments[i] = encode(arguments[i])
        end
    end
    local fine, text = pcall(string.format, format, unpack(arguments, 1, count))
    if not fine then
        error(text, 4)
    end
    return text
end

local function timestamp()
    local now = clock.realtime64()
    local seconds = tonumber(now / 1000000000LL)
    return os.date('%Y-%m-%d %H:%M:%S', seconds), math.floor(tonumber(now % 1000000000LL) / 1e6), seconds
end

local function plain_line(level, name, text, place)
    local time, milliseconds = timestamp()
    local id, fiber_name = fiber_info()
    return ('%s.%03d [%d] main/%d/%s %s%s%s> %s\n'):format(time, milliseconds, ffi.C.cord_getpid(), id, fiber_name,
        name and name .. ' ' or '', place and PLACED[level] and place.file .. ':' .. place.line .. ' ' or '',
        LETTERS[level], text)
end

local function json_line(level, name, text, place)
    local _, milliseconds, seconds = timestamp()
    local id, fiber_name = fiber_info()
    return encode({
        time = ('%s.%03d%s'):format(os.date('%Y-%m-%dT%H:%M:%S', seconds), milliseconds, os.date('%z', seconds)),
        level = NAMES[level], message = text, pid = ffi.C.cord_getpid(), cord_name = 'main', fiber_id = id,
        fiber_name = fiber_name, module = name, file = place and place.file, line = place and place.line,
    }) .. '\n'
end

local function say(level, name, ...)
    if level > level_number(name and settings.modules[name] or settings.level) then
        return
    end
    local text = message(...)
    local frame = debug.getinfo(3, 'Sl')
    local place = frame and { file = frame.short_src, line = frame.currentline }
    output:write((settings.format == 'json' and json_line or plain_line)(level, name, text, place))
    output:flush()
end

local function add_functions(target, name)
    for _, level in ipairs({ 'error', 'warn', 'info', 'verbose', 'debug' }) do
        local number = LEVELS[level]
        target[level] = function(...)
            say(number, name, ...)
        end
    end
    return target
end

add_functions(log)

--- Sets the level: a name or a number from 0 (fatal) to 7 (debug).
function log.level(level)
    check_level(level, 'log_level')
    settings.level = level
end

--- Sets how lines look: 'plain' or 'json'.
function log.log_format(format)
    if format ~= 'plain' and format ~= 'json' then
        error("Incorrect value for option 'log_format': expected 'plain' or 'json'", 2)
    end
    settings.format = format
end

--- The id of the process a log is piped to; there is none, so 0.
function log.pid()
    return 0
end

--- Opens the log file again, after it was moved away. Does nothing for stderr.
function log.rotate()
    if settings.log then
        local file, reason = io.open(settings.log, 'a')
        if not file then
            error("logrotate can't open " .. reason, 2)
        end
        output:close()
        output = file
    end
end

--- A logger whose lines carry `name` and whose level `cfg{ modules = { name = level } }` sets; one for each name.
function log.new(name)
    if type(name) ~= 'string' then
        error('Illegal parameters, name should be a string', 2)
    end
    if not loggers[name] then
        local logger = {}
        for key, value in every(log) do
            logger[key] = value
        end
        logger.name = name
        loggers[name] = add_functions(logger, name)
    end
    return loggers[name]
end

local function configure(_, options)
    if options == nil then
        return
    elseif type(options) ~= 'table' then
        error('log.cfg(options): a table of options expected, got ' .. type(options), 2)
    end
    for option in every(options) do
        if not OPTIONS[option] then
            error(("Incorrect value for option '%s': unexpected option"):format(tostring(option)), 2)
        end
    end
    if options.level ~= nil then
        check_level(options.level, 'log_level')
    end
    for name, level in every(options.modules or {}) do
        check_level(level, 'log_modules.' .. tostring(name))
    end
    if options.format ~= nil then
        log.log_format(options.format)
    end
    if options.log ~= nil and options.log ~= settings.log then
        local file, reason = io.open(options.log, 'a')
        if not file then
            error("can't open log file: " .. reason, 2)
        end
        output = file
    end
    for option, value in every(options) do
        settings[option] = value
    end
end

--- Settings to read (`log.cfg.level`), a function to change them (`log.cfg{ level = 'debug' }`).
log.cfg = setmetatable({}, { __index = settings, __call = configure })

return log
