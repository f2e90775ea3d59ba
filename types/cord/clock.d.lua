---@meta cord.clock

---@class cord.clock
local clock = {}

---Wall time: seconds since 1970.
---@nodiscard
---@return number
function clock.realtime() end

---The same as `realtime`.
---@nodiscard
---@return number
function clock.time() end

---Seconds since some point in the past; never goes back.
---@nodiscard
---@return number
function clock.monotonic() end

---Processor time of the process, in seconds.
---@nodiscard
---@return number
function clock.proc() end

---Processor time of the thread, in seconds.
---@nodiscard
---@return number
function clock.thread() end

---`realtime` in nanoseconds, int64 cdata.
---@nodiscard
---@return ffi.cdata*
function clock.realtime64() end

---@nodiscard
---@return ffi.cdata*
function clock.time64() end

---@nodiscard
---@return ffi.cdata*
function clock.monotonic64() end

---@nodiscard
---@return ffi.cdata*
function clock.proc64() end

---@nodiscard
---@return ffi.cdata*
function clock.thread64() end

---Calls a function.
---@param fun function
---@param ... any its arguments
---@return table results processor time in seconds, then what it returned
function clock.bench(fun, ...) end

return clock
