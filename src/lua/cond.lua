-- fiber.cond(): the raw functions with Tarantool's checks and errors.
local raw, load = ...

local E = load('cord.error')

local raw_new, raw_wait, raw_signal, raw_broadcast, is_cond = raw.new, raw.wait, raw.signal, raw.broadcast, raw.is_cond
local type, tonumber, format, setmetatable = type, tonumber, string.format, setmetatable

-- Where the compiler is on, a signal is one FFI call. The address of each cond by the cond, which it does not keep alive.
local ffi = require('ffi')
local addresses = setmetatable({}, { __mode = 'k' })
local ffi_signal = ffi.cast('void (*)(void *)', ffi.cast('uintptr_t', raw.address()))
local void = ffi.typeof('void *')
local compiles = require('jit').status()

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
    local meta = { __metatable = 'fiber.cond', __index = methods, __gc = raw.destroy }

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
        local err = raw_wait(self)
        if err then
            if not is_cond(self) then
                wrong('cond:wait([timeout])', self)
            end
            fail(err)
        end
        return true
    end

    function methods.signal(self)
        local address = addresses[self]
        if address then
            ffi_signal(address)
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
        local cond = raw_new(meta)
        if compiles then
            addresses[cond] = void(cond)
        end
        return cond
    end
end
