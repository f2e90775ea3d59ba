-- cord.fiber: what a script sees of fibers. The raw functions return (error, results...); here they are raised, where
-- the caller stands.
local raw, load = ...
-- Not named pairs, lest LuaJIT compiles loops that a finalizer may never leave: docs/jit.md.
local every = pairs

local E = load('cord.error')
local ffi = require('ffi')

local type, tonumber, tostring, select, error, pcall = type, tonumber, tostring, select, error, pcall
local stderr, format, concat, sort = io.stderr, string.format, table.concat, table.sort
local int64 = ffi.typeof('int64_t')

local raw_yield, raw_sleep = raw.yield, raw.sleep
local raw_id, raw_status, raw_name, raw_csw, raw_storage = raw.id, raw.status, raw.name, raw.csw, raw.storage
local raw_join, raw_is_cancelled, is_fiber = raw.join, raw.is_cancelled, raw.is_fiber

local CANCELLED, TIMED_OUT, INTERRUPTED, DEADLOCK, DONE = 1, 2, 3, 4, 5

local function deadlock_text()
    local list = raw.waits()
    sort(list, function(a, b)
        return a[1] < b[1]
    end)
    local lines = { 'deadlock: the main fiber waits and nothing can ever wake anyone:' }
    for i = 1, #list do
        local f = list[i]
        if i > 20 then
            lines[#lines + 1] = format('    ... and %d more fibers', #list - 20)
            break
        end
        lines[#lines + 1] = format('    fiber %d (%s) waits for %s', f[1], f[2], f[3])
    end
    return concat(lines, '\n')
end

-- Raises what a raw function returned as its error. `level` as in error(): 2 (the default) is the caller of the function
-- that calls. Never in tail position: a frame that is gone cannot be counted.
local function object_of(err)
    if err == CANCELLED then
        return E.fiber_is_cancelled()
    elseif err == TIMED_OUT then
        return E.timed_out()
    end
    return E.illegal_params(err)
end

local function fail(err, level)
    level = (level or 2) + 1
    if err == INTERRUPTED then
        error('interrupted!', level)
    elseif err == DEADLOCK then
        error(deadlock_text(), level)
    end
    E.raise(object_of(err), level)
end

-- The same with the place of whoever called into the library, however many functions of ours are in between.
local function fail_at_caller(err)
    if err == INTERRUPTED then
        E.complain('interrupted!')
    elseif err == DEADLOCK then
        E.complain(deadlock_text())
    end
    E.raise_at_caller(object_of(err))
end

local fiber = {}
local methods = {}

-- ---------------------------------------------------------------- life

-- fiber.create and fiber.new are native functions, set below: they raise before they wait, and after their wait there is
-- nothing to raise.

-- So is fiber.yield where a native function can raise after its wait.
fiber.yield = raw.raises() and raw_yield or function()
    local err = raw_yield()
    if err then
        fail(err)
    end
end

function fiber.sleep(...)
    local err = raw_sleep(...)
    if err and err ~= TIMED_OUT then
        fail(err)
    end
end

function fiber.testcancel(...)
    if select('#', ...) > 0 then
        fail('fiber.testcancel(): bad arguments')
    end
    if raw_is_cancelled() then
        fail(CANCELLED)
    end
end
methods.testcancel = fiber.testcancel

local function plain_id(x)
    if type(x) == 'cdata' then
        return tonumber(x)
    end
    return x
end

function fiber.wakeup(x)
    local err = raw.wakeup(plain_id(x))
    if err then
        fail(err)
    end
end
methods.wakeup = fiber.wakeup

function fiber.cancel(x)
    local err = raw.cancel(plain_id(x))
    if err then
        fail(err)
    end
end
fiber.kill = fiber.cancel
methods.cancel = fiber.cancel

-- ---------------------------------------------------------------- questions

fiber.self = raw.self
-- The last error is kept for each fiber: its thread may serve another one later.
E.set_current_fiber(raw.self)

function fiber.id(...)
    local err, id = raw_id(...)
    if err then
        fail(err)
    end
    return id
end
methods.id = fiber.id

function fiber.find(...)
    if select('#', ...) ~= 1 then
        fail('Usage: fiber.find(id)')
    end
    return raw.find(plain_id(...))
end

function fiber.status(...)
    local err, status = raw_status(...)
    if err then
        fail(err)
    end
    return status
end
methods.status = fiber.status

function methods.csw(...)
    local err, csw = raw_csw(...)
    if err then
        fail(err)
    end
    return csw
end

local function set_name(f, n, name, opts)
    local kind = type(name)
    if kind ~= 'string' and kind ~= 'number' then
        fail('expected string as ' .. n .. ' argument')
    end
    local truncate = type(opts) == 'table' and opts.truncate == true
    local err = raw.set_name(f, tostring(name), truncate)
    if err then
        fail(err)
    end
end

-- LuaJIT of 2022 miscompiles a vararg function that takes its `...` apart and is left by a side exit: such functions only
-- count their arguments here, and pass them on in tail position.
local function name_of(n, first, second, third)
    if is_fiber(first) then
        if n > 1 then
            return set_name(first, 2, second, third)
        end
        local err, found = raw_name(first)
        if err then
            fail(err)
        end
        return found
    elseif n > 0 then
        return set_name(raw.self(), 1, first, second)
    end
    local _, found = raw_name()
    return found
end

function fiber.name(...)
    return name_of(select('#', ...), ...)
end
methods.name = fiber.name

-- ---------------------------------------------------------------- joining

local function set_joinable(n, f, yesno)
    if n ~= 2 then
        fail('fiber.set_joinable(id, yesno): bad arguments')
    end
    local err = raw.set_joinable(plain_id(f), yesno)
    if err then
        fail(err)
    end
end

function fiber.set_joinable(...)
    return set_joinable(select('#', ...), ...)
end
methods.set_joinable = fiber.set_joinable

local join_step

-- One look at the joined fiber, or what a wait for it brought. A cancelled joiner goes on waiting, as in Tarantool.
local function joined(f, deadline, err, ok, ...)
    if err == DONE then
        if ok then
            return true, ...
        end
        return false, E.wrap(...)
    elseif err == TIMED_OUT then
        return false, E.timed_out()
    elseif err == nil or err == CANCELLED then
        return join_step(f, deadline)
    end
    fail(err)
end

function join_step(f, deadline)
    return joined(f, deadline, raw_join(f, deadline, true))
end

function fiber.join(f, timeout)
    local deadline
    f = plain_id(f)
    if timeout ~= nil then
        local seconds = type(timeout) ~= 'cdata' and tonumber(timeout)
        if not seconds or seconds < 0 then
            -- The fiber itself is checked first, as in Tarantool.
            fail(raw_join(f, nil, nil, true) or 'fiber:join(timeout): bad arguments')
        end
        deadline = raw.deadline(seconds)
    end
    return joined(f, deadline, raw_join(f, deadline))
end
methods.join = fiber.join

-- ---------------------------------------------------------------- conds, channels

local channel_close_mode = 'new'

fiber.cond = load('cord.cond')(fail, raw.deadline)
fiber.channel = load('cord.channel')(fail, raw.deadline, function()
    return channel_close_mode == 'old'
end)

-- ---------------------------------------------------------------- time

-- Typed line by line there is no loop between two questions, so the cached clock would stand still.
local interactive = rawget(_G, 'arg') == nil or rawget(_G, 'arg')[-1] == nil

local function fresh()
    if interactive then
        raw.refresh_clock()
    end
end

function fiber.time()
    fresh()
    return raw.time()
end

function fiber.clock()
    fresh()
    return raw.clock()
end

function fiber.time64()
    fresh()
    return int64(raw.time() * 1e6 + 0.5)
end

function fiber.clock64()
    fresh()
    return int64(raw.clock() * 1e6 + 0.5)
end

-- ---------------------------------------------------------------- triggers

local function callable(x)
    if type(x) == 'function' then
        return true
    end
    local meta = getmetatable(x)
    return type(meta) == 'table' and meta.__call ~= nil
end

-- Tarantool's box.NULL stands for nil.
local function absent(x)
    return x == nil
end

-- Calls reset(owner, new, old), which adds, replaces, removes or lists; raises where the caller of its caller stands.
local function reset_trigger(reset, owner, new, old)
    if absent(new) then
        new = nil
    end
    if absent(old) then
        old = nil
    end
    if new ~= nil and not callable(new) or old ~= nil and not callable(old) then
        error('trigger reset: incorrect arguments', 3)
    end
    local err, result = reset(owner, new, old)
    if err == 'trigger reset: Trigger is not found' then
        error(err, 3)
    elseif err then
        fail(err, 3)
    end
    return result
end

function methods.on_stop(f, new, old)
    if not is_fiber(f) then
        fail('expected fiber as 1 argument')
    end
    local result = reset_trigger(raw.on_stop, f, new, old)
    return result
end

-- ---------------------------------------------------------------- reports

local function log(text)
    stderr:write(text, '\n')
end

local function text_of(value)
    local ok, text = pcall(tostring, value)
    return ok and type(text) == 'string' and text or type(value)
end

-- Called by the scheduler for an error nobody caught in a fiber nobody joins.
local function report(id, name, value, traceback)
    log(format('fiber %d (%s): %s\n%s', id, name, text_of(value), traceback))
end

-- Runs as the last thing of a fiber that has on_stop triggers.
local function run_on_stop(f)
    while true do
        local err, trigger = raw.pop_on_stop(f)
        if err or trigger == nil then
            return
        end
        local ok, problem = pcall(trigger, f)
        if not ok then
            log(format('fiber %d: error in an on_stop trigger: %s', select(2, raw_id(f)), text_of(problem)))
        end
    end
end

-- ---------------------------------------------------------------- the handle

local meta = { __metatable = 'fiber' }

function meta.__index(f, key)
    if key == 'storage' then
        local err, storage = raw_storage(f)
        if err then
            fail(err)
        end
        return storage
    end
    return methods[key]
end

function meta.__tostring(f)
    local _, id = raw_id(f)
    local _, status = raw_status(f)
    return status == 'dead' and format('fiber: %d (dead)', id) or format('fiber: %d', id)
end

function methods.__serialize(f)
    local _, id = raw_id(f)
    local _, status = raw_status(f)
    local _, name = raw_name(f)
    return { id = id, name = name, status = status }
end
meta.__serialize = methods.__serialize
methods.__tostring = meta.__tostring

-- `fail` for native callers: they stand between it and the code to blame.
local function fail_native(err)
    fail(err, 3)
end

fiber.create, fiber.new = raw.keep(meta, report, run_on_stop, fail_native)
load('cord.trace').install(fiber, fail)

-- ---------------------------------------------------------------- options

local BOOLEAN = { trigger_pool = true, thread_pool = true }

function fiber.cfg(opts)
    if opts ~= nil and type(opts) ~= 'table' then
        fail('fiber.cfg(options): a table of options expected, got ' .. type(opts))
    end
    for key, value in every(opts ~= nil and opts or {}) do
        if BOOLEAN[key] then
            if type(value) ~= 'boolean' then
                fail(format("fiber.cfg: option '%s' should be a boolean, got %s", key, type(value)))
            end
        elseif key == 'channel_close' then
            if value ~= 'new' and value ~= 'old' then
                fail("fiber.cfg: option 'channel_close' should be 'new' or 'old', got " .. text_of(value))
            end
        elseif key == 'deadlock' then
            if value ~= 'error' and value ~= 'wait' then
                fail("fiber.cfg: option 'deadlock' should be 'error' or 'wait', got " .. text_of(value))
            end
        elseif key == 'stack_size' then
            if type(value) ~= 'number' or value < 16384 or value > 2 ^ 32 then
                fail("fiber.cfg: option 'stack_size' should be a number of bytes from 16384 to 2^32, got "
                    .. text_of(value))
            end
        else
            fail(format("fiber.cfg: unexpected option '%s'", text_of(key)))
        end
    end
    for key, value in every(opts ~= nil and opts or {}) do
        if key == 'channel_close' then
            channel_close_mode = value
        else
            if key == 'deadlock' then
                value = value == 'error'
            end
            raw.option(key, value)
        end
    end
    return {
        channel_close = channel_close_mode,
        trigger_pool = raw.option('trigger_pool'),
        thread_pool = raw.option('thread_pool'),
        deadlock = raw.option('deadlock') and 'error' or 'wait',
        stack_size = raw.option('stack_size'),
    }
end

function fiber.stats()
    local live, pooled, stacks, limit, triggers = raw.stats()
    return { fibers = live, pooled = pooled, stacks = stacks, stack_limit = limit, triggers = triggers }
end

-- ---------------------------------------------------------------- internals

local schedule = load('cord.inspect')(fiber, methods, fail, log, is_fiber, reset_trigger)

-- What the other modules of the library build on, and what Tarantool has under this name.
local internal = { raw = raw, fail = fail, fail_at_caller = fail_at_caller, methods = methods, cord_is_main = true }

function internal.schedule_task(fn, argument)
    schedule(fn, argument, raw.set_system)
end

-- A system fiber is not touched by cancel. There is no managed shutdown here: the process ends when the program does.
for _, name in ipairs { 'set_system', 'set_managed_shutdown' } do
    internal[name] = function(...)
        if select('#', ...) ~= 1 then
            fail(format('fiber.%s(id): bad arguments', name))
        end
        local err = raw.set_system(plain_id(...))
        if err then
            fail(err)
        end
    end
end

local function set_main_name()
    local script = rawget(_G, 'arg') and rawget(_G, 'arg')[0]
    if interactive or type(script) ~= 'string' then
        script = 'interactive'
    end
    raw.set_name(raw.self(), (script:gsub('.*/', '')), true)
end
set_main_name()

return setmetatable(fiber, {
    __index = function(_, key)
        return key == '_internal' and internal or nil
    end,
    __serialize = function(self)
        local copy = {}
        for key, value in every(self) do
            copy[key] = value
        end
        return copy
    end,
})
