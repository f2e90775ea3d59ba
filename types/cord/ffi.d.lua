---@meta cord.ffi

---The functions of `include/cord.h` as Lua functions which the JIT compiler stays away from. A waiting one returns 0 or a
---negative code of the header; in the main fiber Ctrl-C and a deadlock are raised. Fibers are their ids, as numbers.
---@class cord.ffi
---@field C ffi.namespace* the raw namespace; the codes are there too: `C.CORD_COMPILED`
local cord_ffi = {}

---@alias cord.ffi.code integer 0, or a negative code of `include/cord.h`

---The text of the last failure on this OS thread.
---@return string
function cord_ffi.cord_last_error() end

---@nodiscard
---@param code integer
---@return string
function cord_ffi.cord_strerror(code) end

---A fiber that runs C code, not started yet; 0 on failure. Raises: a Lua function as `f`.
---@param name string? at most 255 bytes
---@param f ffi.cdata* `int (*)(void *)`
---@return integer
function cord_ffi.cord_fiber_new(name, f) end

---@param name string?
---@param attr ffi.cdata*? from `cord_fiber_attr_new`
---@param f ffi.cdata* `int (*)(void *)`
---@return integer
function cord_ffi.cord_fiber_new_ex(name, attr, f) end

---@return ffi.cdata*
function cord_ffi.cord_fiber_attr_new() end

---@param attr ffi.cdata*
function cord_ffi.cord_fiber_attr_delete(attr) end

---@param attr ffi.cdata*
---@param bytes integer at least 16384
---@return cord.ffi.code
function cord_ffi.cord_fiber_attr_setstacksize(attr, bytes) end

---@param attr ffi.cdata*? nil: the default
---@return integer bytes
function cord_ffi.cord_fiber_attr_getstacksize(attr) end

---Starts a fiber of `cord_fiber_new` at once; returns when it waits or ends.
---@async
---@param fiber integer
---@param arg ffi.cdata*?
---@return cord.ffi.code
function cord_ffi.cord_fiber_start(fiber, arg) end

---@param fiber integer
---@param ctx ffi.cdata*?
---@return cord.ffi.code
function cord_ffi.cord_fiber_set_ctx(fiber, ctx) end

---@param fiber integer
---@return ffi.cdata*
function cord_ffi.cord_fiber_get_ctx(fiber) end

---@return integer
function cord_ffi.cord_fiber_self() end

---The id itself while the fiber exists, else 0.
---@param id integer
---@return integer
function cord_ffi.cord_fiber_find(id) end

---@param fiber integer
---@return integer
function cord_ffi.cord_fiber_id(fiber) end

---@param fiber integer 0: the running one
---@return string
function cord_ffi.cord_fiber_name(fiber) end

---@param fiber integer 0: the running one
---@param name string
---@param len integer? default: all of it
---@return cord.ffi.code
function cord_ffi.cord_fiber_set_name_n(fiber, name, len) end

---@param fiber integer 0: the running one
---@return integer
function cord_ffi.cord_fiber_csw(fiber) end

---To the end of the queue of ready fibers. Not a cancellation point.
---@async
---@return cord.ffi.code
function cord_ffi.cord_fiber_yield() end

---The same.
---@async
---@return cord.ffi.code
function cord_ffi.cord_fiber_reschedule() end

---Until a wakeup or a cancel.
---@async
---@return cord.ffi.code
function cord_ffi.cord_fiber_suspend() end

---@async
---@param seconds number
---@return cord.ffi.code
function cord_ffi.cord_fiber_sleep(seconds) end

---@param fiber integer
---@return cord.ffi.code
function cord_ffi.cord_fiber_wakeup(fiber) end

---@param fiber integer
---@return cord.ffi.code
function cord_ffi.cord_fiber_cancel(fiber) end

---@return boolean
function cord_ffi.cord_fiber_is_cancelled() end

---@param fiber integer
---@param yesno boolean
---@return cord.ffi.code
function cord_ffi.cord_fiber_set_joinable(fiber, yesno) end

---Without a place for it, the result is returned behind the code.
---@async
---@param fiber integer
---@param result ffi.cdata*? `int[1]`
---@return cord.ffi.code
---@return integer? result
function cord_ffi.cord_fiber_join(fiber, result) end

---@async
---@param fiber integer
---@param seconds number below 0: for ever
---@param result ffi.cdata*? `int[1]`
---@return cord.ffi.code
---@return integer? result
function cord_ffi.cord_fiber_join_timeout(fiber, seconds, result) end

---@return ffi.cdata*
function cord_ffi.cord_fiber_cond_new() end

---@param cond ffi.cdata*
---@return cord.ffi.code
function cord_ffi.cord_fiber_cond_delete(cond) end

---@param cond ffi.cdata*
---@return cord.ffi.code
function cord_ffi.cord_fiber_cond_signal(cond) end

---@param cond ffi.cdata*
---@return cord.ffi.code
function cord_ffi.cord_fiber_cond_broadcast(cond) end

---@async
---@param cond ffi.cdata*
---@return cord.ffi.code
function cord_ffi.cord_fiber_cond_wait(cond) end

---@async
---@param cond ffi.cdata*
---@param seconds number below 0: for ever
---@return cord.ffi.code
function cord_ffi.cord_fiber_cond_wait_timeout(cond, seconds) end

---@async
---@param fd integer
---@param events integer 1 read, 2 write
---@param seconds number below 0: for ever
---@return integer events, 0 after the time or a cancel, or a negative code
function cord_ffi.cord_coio_wait(fd, events, seconds) end

---@param fd integer
---@return cord.ffi.code
function cord_ffi.cord_coio_close(fd) end

---Seconds since 1970.
---@return number
function cord_ffi.cord_fiber_time() end

---Microseconds since 1970.
---@return ffi.cdata* `uint64_t`
function cord_ffi.cord_fiber_time64() end

---Seconds of a clock that never goes back.
---@return number
function cord_ffi.cord_fiber_clock() end

---@return ffi.cdata* `uint64_t` microseconds
function cord_ffi.cord_fiber_clock64() end

return cord_ffi
