-- fiber.channel(): the raw functions with Tarantool's checks and errors, which are strings with the caller's position.
local raw = ...

local ffi, jit = require('ffi'), require('jit')

local raw_new, raw_put, raw_get, raw_close, raw_state = raw.new, raw.put, raw.get, raw.close, raw.state
local raw_pad = raw.pad
local raw_wait_put, raw_wait_get, raw_forget, is_channel = raw.wait_put, raw.wait_get, raw.forget, raw.is_channel
local setmetatable, getmetatable = setmetatable, getmetatable
local type, tonumber, error, format, select, floor = type, tonumber, error, string.format, select, math.floor

-- What getmetatable says of a channel. A compiled trace knows it from looking the method up.
local NAME = 'fiber.channel'
-- Where the compiler is on, what needs no wait is done in Lua and one FFI call (channel.rs), which takes the userdata's
-- address. `rings` has the ring of each channel, weakly: it belongs to its channel.
local pads, put_address, get_address = raw.shared()
local rings = setmetatable({}, { __mode = 'kv' })
local ffi_put = ffi.cast('int (*)(void *)', ffi.cast('uintptr_t', put_address))
local ffi_get = ffi.cast('int (*)(void *)', ffi.cast('uintptr_t', get_address))
local compiles = jit.status()
local FAST = compiles and NAME or false

local TIMED_OUT = 2
-- What a reader's wait gives, and nothing else, when its value is on its pad.
local ON_PAD = 6
-- Added to the number of the pad of a fiber that has to wait.
local MUST_WAIT = 2 ^ 30
-- How a raw function waits (channel.rs).
local AGAIN, NEVER = 1, 2

-- Raises what is wrong with a call whose first argument is no channel. `level` 3 (the default) is the caller of the
-- method that calls this. Nothing that raises is called in tail position: levels count frames.
local function wrong(name, usage, value, level)
    local text = 'usage: channel:' .. usage
    if value ~= nil then
        text = format("bad argument #1 to '%s' (fiber.channel expected, got %s)", name, type(value))
    end
    error(text, level or 3)
end

local function seconds_of(timeout)
    local seconds = type(timeout) ~= 'cdata' and tonumber(timeout)
    return seconds and seconds >= 0 and seconds
end

-- `fail(err, level)` raises what a raw function returned; `deadline(seconds)` is the clock's; `forceful()` says whether
-- a closed channel forgets what is queued.
return function(fail, deadline, forceful)
    local methods = {}
    local meta = { __metatable = NAME, __index = methods, __gc = raw.destroy }

    -- What the wait of a writer brought: true, false (closed or timed out), or it waits on. Level 3 is the caller of put.
    local function put_on(self, value, limit, put)
        while put == nil do
            put = raw_put(self, value, limit, AGAIN)
        end
        if put == true then
            return true
        end
        raw_forget()
        if put == false or put == TIMED_OUT then
            return false
        end
        fail(put, 4)
    end

    local function put_until(self, value, timeout)
        if not is_channel(self) then
            wrong('put', 'put(var [, timeout])', self, 4)
        end
        local seconds = seconds_of(timeout)
        if not seconds then
            error('usage: channel:put(var [, timeout])', 3)
        end
        local limit = deadline(seconds)
        local put = put_on(self, value, limit, (raw_put(self, value, limit, seconds == 0 and NEVER or 0)))
        return put
    end

    local function put_slowly(self, value, put)
        if not is_channel(self) then
            wrong('put', 'put(var [, timeout])', self, 4)
        end
        put = put_on(self, value, nil, put)
        return put
    end

    local function put_one(self, value, timeout)
        if timeout ~= nil then
            local put = put_until(self, value, timeout)
            return put
        end
        local put
        local where = getmetatable(self) == FAST and ffi_put(self) or 0
        if where > MUST_WAIT then
            pads[where - MUST_WAIT] = value
            put = raw_wait_put(self)
        elseif where < 0 then
            pads[-where] = value
            return true
        elseif where > 0 then
            rings[self][where] = value
            return true
        else
            put = raw_put(self, value)
        end
        if put == true then
            return true
        end
        put = put_slowly(self, value, put)
        return put
    end

    -- LuaJIT of 2022 miscompiles a vararg function that takes its `...` apart and is left by a side exit: this one only
    -- counts. In tail position the caller of put_one is the script.
    function methods.put(self, ...)
        if select('#', ...) == 0 then
            if not is_channel(self) then
                wrong('put', 'put(var [, timeout])', self)
            end
            error('usage: channel:put(var [, timeout])', 2)
        end
        return put_one(self, ...)
    end

    local function from_pad()
        local own = raw_pad()
        local value = pads[own]
        pads[own] = false
        return value
    end

    -- As for writers: the value, or nil. A raw get gives the value and true, or what went wrong.
    local function get_on(self, limit, value, done)
        while value == nil and not done do
            value, done = raw_get(self, limit, AGAIN)
        end
        if done == true then
            return value
        elseif value == ON_PAD then
            value = from_pad()
            return value
        elseif value == TIMED_OUT then
            return nil
        end
        fail(value, 4)
    end

    local function get_until(self, timeout)
        if not is_channel(self) then
            wrong('get', 'get([timeout])', self, 4)
        end
        local seconds = seconds_of(timeout)
        if not seconds then
            error('usage: channel:get([timeout])', 3)
        end
        local limit = deadline(seconds)
        local value = get_on(self, limit, raw_get(self, limit, seconds == 0 and NEVER or 0))
        return value
    end

    local function get_slowly(self, err)
        if not is_channel(self) then
            wrong('get', 'get([timeout])', self, 4)
        end
        local value = get_on(self, nil, err)
        return value
    end

    function methods.get(self, timeout)
        if timeout ~= nil then
            local value = get_until(self, timeout)
            return value
        end
        local value, done
        local where = getmetatable(self) == FAST and ffi_get(self) or 0
        if where > MUST_WAIT then
            value, done = raw_wait_get(self)
            if value == ON_PAD and not done then
                local own = where - MUST_WAIT
                value = pads[own]
                pads[own] = false
                return value
            end
        elseif where < 0 then
            value = pads[-where]
            pads[-where] = false
            return value
        elseif where > 0 then
            local ring = rings[self]
            value = ring[where]
            ring[where] = false
            return value
        else
            value, done = raw_get(self)
        end
        if done == true then
            return value
        end
        value = get_slowly(self, value)
        return value
    end

    function methods.close(self)
        if raw_close(self, forceful()) then
            wrong('?', 'close()', self)
        end
    end

    local function question(name, answer)
        methods[name] = function(self)
            local err, count, size, closed, readers, writers = raw_state(self)
            if err then
                wrong('?', name .. '()', self)
            end
            return answer(count, size, closed, readers, writers)
        end
    end

    question('count', function(count) return count end)
    question('size', function(_, size) return size end)
    question('is_full', function(count, size) return count == size end)
    question('is_empty', function(count) return count == 0 end)
    question('is_closed', function(_, _, closed) return closed end)
    question('has_readers', function(_, _, _, readers) return readers end)
    question('has_writers', function(_, _, _, _, writers) return writers end)

    function meta.__tostring(self)
        local err, count, _, closed = raw_state(self)
        if err then
            wrong('?', 'tostring()', self)
        end
        return closed and 'channel: closed' or 'channel: ' .. count
    end

    return function(size)
        local number = 0
        if size ~= nil then
            number = type(size) ~= 'cdata' and tonumber(size)
            if not number or number ~= number then
                error('fiber.channel(size): bad arguments', 2)
            elseif number < 0 then
                error('fiber.channel(size): negative size', 2)
            end
        end
        local channel, ring = raw_new(meta, floor(number))
        if channel == nil then
            error('fiber.channel: not enough memory', 2)
        end
        if compiles then
            rings[channel] = ring
        end
        return channel
    end
end
