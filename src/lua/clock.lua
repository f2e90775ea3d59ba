-- Clocks of the system, in seconds as numbers and in nanoseconds as int64 cdata, with Tarantool's names.
local ffi = require('ffi')

ffi.cdef([[
struct cord_timespec { long sec; long nsec; };
int cord_clock_gettime(int, struct cord_timespec *) __asm__("clock_gettime");
]])

-- The numbers of the clocks: wall time, monotonic time, processor time of the process and of the thread.
local IDS = {
    Linux = { 0, 1, 2, 3 },
    OSX = { 0, 6, 12, 16 },
    BSD = { 0, 4, 15, 14 },
}
local ids = IDS[ffi.os] or IDS.Linux
local now = ffi.new('struct cord_timespec')
local gettime = ffi.C.cord_clock_gettime

local function seconds(id)
    return function()
        gettime(id, now)
        return tonumber(now.sec) + tonumber(now.nsec) / 1e9
    end
end

local function nanoseconds(id)
    return function()
        gettime(id, now)
        return now.sec * 1000000000LL + now.nsec
    end
end

local clock = {
    realtime = seconds(ids[1]),
    monotonic = seconds(ids[2]),
    proc = seconds(ids[3]),
    thread = seconds(ids[4]),
    realtime64 = nanoseconds(ids[1]),
    monotonic64 = nanoseconds(ids[2]),
    proc64 = nanoseconds(ids[3]),
    thread64 = nanoseconds(ids[4]),
}
clock.time = clock.realtime
clock.time64 = clock.realtime64

--- Calls `fun` and gives a table: the processor time it took in seconds, then what it returned.
function clock.bench(fun, ...)
    local meta = debug.getmetatable(fun)
    if type(fun) ~= 'function' and not (type(fun) ~= 'cdata' and type(meta) == 'table' and meta.__call ~= nil) then
        error('Usage: clock.bench(func, ...)', 2)
    end
    local overhead = clock.proc()
    overhead = clock.proc() - overhead
    local start = clock.proc()
    local results = { 0, fun(...) }
    results[1] = clock.proc() - start - overhead
    return results
end

return clock
