-- cord.ffi: the functions of include/cord.h for Lua. What is returned has them under the same names, as functions that
-- the JIT compiler stays away from; `C` is FFI's raw namespace, for those who know what a compiled trace is.
local native, load = ...

local ffi = require('ffi')
local jit = require('jit')
local trace = load('cord.trace').raw

local tonumber, type, error, tostring = tonumber, type, error, tostring

if not native.path then
    error('cord.ffi: the path of the library is not known to the dynamic loader', 0)
end
ffi.cdef(native.declarations)
local C = ffi.load(native.path)
trace.calibrate()

local OK, INTERRUPTED, DEADLOCK, UNPROVEN = C.CORD_OK, C.CORD_INTERRUPTED, C.CORD_DEADLOCK, C.CORD_UNPROVEN

local module = { C = C }

local function add(name, wrapper)
    jit.off(wrapper)
    module['cord_' .. name] = wrapper
end

-- ---------------------------------------------------------------- waits

-- What waits return is a code; Ctrl-C and a deadlock are errors of the main fiber, as they are in every other wait.
local function wait(name)
    local call = C['cord_' .. name]
    local function wrapper(...)
        local code = call(...)
        if code == UNPROVEN then
            -- The compiler may have been off, or busy, until now.
            trace.calibrate()
            code = call(...)
        end
        if code == INTERRUPTED or code == DEADLOCK then
            error(ffi.string(C.cord_last_error()), 2)
        end
        return code
    end
    add(name, wrapper)
    return wrapper
end

for _, name in ipairs({ 'fiber_yield', 'fiber_reschedule', 'fiber_suspend', 'fiber_sleep', 'fiber_start',
    'fiber_cond_wait', 'fiber_cond_wait_timeout', 'coio_wait' }) do
    wait(name)
end

-- Without a place for the result, it is returned behind the code.
local join = wait('fiber_join_timeout')

local function join_timeout(fiber, seconds, result)
    if result ~= nil then
        return join(fiber, seconds, result)
    end
    result = ffi.new('int[1]')
    local code = join(fiber, seconds, result)
    if code ~= OK then
        return code
    end
    return code, result[0]
end
add('fiber_join_timeout', join_timeout)
add('fiber_join', function(fiber, result)
    return join_timeout(fiber, -1, result)
end)

-- ---------------------------------------------------------------- the rest

for _, name in ipairs({ 'fiber_attr_new', 'fiber_attr_delete', 'fiber_attr_setstacksize', 'fiber_set_ctx',
    'fiber_get_ctx', 'fiber_wakeup', 'fiber_cancel', 'fiber_is_cancelled', 'fiber_set_joinable', 'fiber_cond_new',
    'fiber_cond_delete', 'fiber_cond_signal', 'fiber_cond_broadcast', 'coio_close', 'fiber_time', 'fiber_time64',
    'fiber_clock', 'fiber_clock64' }) do
    local call = C['cord_' .. name]
    add(name, function(...)
        return call(...)
    end)
end

-- Ids are plain numbers, as in cord.fiber.
for _, name in ipairs({ 'fiber_self', 'fiber_find', 'fiber_id', 'fiber_csw', 'fiber_attr_getstacksize' }) do
    local call = C['cord_' .. name]
    add(name, function(...)
        return tonumber(call(...))
    end)
end

-- A Lua function as a fiber's code would be an FFI callback, which cannot run on a stack of its own.
local function entry(f)
    if type(f) == 'function' then
        error('a fiber of the C face runs C code: use fiber.new for a Lua function', 3)
    end
    return f
end

add('fiber_new', function(name, f)
    return tonumber(C.cord_fiber_new(name, entry(f)))
end)
add('fiber_new_ex', function(name, attr, f)
    return tonumber(C.cord_fiber_new_ex(name, attr, entry(f)))
end)

for _, name in ipairs({ 'fiber_name', 'last_error', 'strerror' }) do
    local call = C['cord_' .. name]
    add(name, function(...)
        return ffi.string(call(...))
    end)
end

add('fiber_set_name_n', function(fiber, name, len)
    name = tostring(name)
    return C.cord_fiber_set_name_n(fiber, name, len or #name)
end)

return module
