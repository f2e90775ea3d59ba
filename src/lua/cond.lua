-- fiber.cond(): the raw functions with Tarantool's checks and errors.
local raw, load = ...

local E = load('cord.error')

local raw_new, raw_wait, raw_wait_forever, raw_signal = raw.new, raw.wait, raw.wait_forever, raw.signal
local raw_broadcast, is_cond = raw.broadcast, raw.is_cond
local type, tonumber, format, getmetatable = type, tonumber, string.format, getmetatable

-- What getmetatable says of a cond. A compiled trace knows it from looking the method up.
local NAME = 'fiber.cond'
-- Where the compiler is on, a signal is one FFI call, which takes the userdata's address; elsewhere FFI calls are slow.
local ffi = require('ffi')
local ffi_signal = ffi.cast('int (*)(void *)', ffi.cast('uintptr_t', raw.address()))
local FAST = require('jit').status() and NAME or false

local TIMED_OUT = 2

-- Raises what is wrong with a call whose first argument is no cond. `level` 3 (the default) is the caller of the method
-- that calls this. Nothing that raises is called in tail position: levels count frames.
local function wrong(usage, value, level)
    local text = 'Usage: ' .. usage
    if value ~= nil then
        text = format('Invalid argument #1 (fiber.cond expected, got %s)', type(value))
    end
    E.raise(E.illegal_params(text), level or 3)
end

-- `fail(err, level)` raises what a raw function returned; `deadline(seconds)` is the clock's.
return function(fail, deadline)
    local methods = {}
    local meta = { __metatable = NAME, __index = methods, __gc = raw.destroy }

    local function wait_until(self, timeout)
        if not is_cond(self) then
            wrong('cond:wait([timeout])', self, 4)
        end
        local seconds = type(timeout) ~= 'cdata' and tonumber(timeout)
        if not seconds or seconds < 0 then
            E.raise(E.illegal_params('Usage: cond:wait([timeout])'), 3)
        end
        local err = raw_wait(self, deadline(seconds))
        if err == nil then
            return true
        elseif err == TIMED_OUT then
            return false
        end
        fail(err, 3)
    end

    function methods.wait(self, timeout)
        if timeout ~= nil then
            local woken = wait_until(self, timeout)
            return woken
        end
        local err = raw_wait_forever(self)
        if err then
            if not is_cond(self) then
                wrong('cond:wait([timeout])', self)
            end
            fail(err)
        end
        return true
    end

    function methods.signal(self)
        if getmetatable(self) == FAST and ffi_signal(self) ~= 0 then
            return
        end
        if raw_signal(self) then
            wrong('cond:signal()', self)
        end
    end

    function methods.broadcast(self)
        if raw_broadcast(self) then
            wrong('cond:broadcast()', self)
        end
    end

    function meta.__tostring(self)
        if not is_cond(self) then
            wrong('tostring(cond)')
        end
        return 'cond'
    end

    return function()
        return (raw_new(meta))
    end
end
