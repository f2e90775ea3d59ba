---@meta cord.fiber

---@alias cord.fiber.status "running"|"suspended"|"dead"
---@alias cord.fiber.trace_abort "off"|"trigger"|"callback"|"extern"|"inline"|"trigger-noop"|"callback-noop"|"extern-noop"

---A longest run without a yield, in seconds: a number is the limit alone.
---@class (exact) cord.fiber.slice
---@field warn number seconds after which check_slice writes a warning
---@field err number seconds after which check_slice raises

---@class cord.fiber.frame
---@field C? string name of a C function
---@field L? string "name in source at line N"

---@class cord.fiber.info
---@field fid integer
---@field name string
---@field csw integer switches so far
---@field time number seconds of processor time, while fiber.top is enabled
---@field memory { used: integer, total: integer } bytes of the C stack it keeps; 0 for a light fiber
---@field max_slice? cord.fiber.slice finite limits only
---@field backtrace? cord.fiber.frame[] innermost call first

---A fiber's handle. The same userdata while the fiber lives; it stays valid, and says so, when the fiber is dead.
---Unknown keys are nil; setting a field raises.
---@class cord.fiber.object: userdata
---@field storage table made on first use, gone when the fiber's function has ended. Raises: the fiber is dead
local object = {}

---The fiber's number, of dead ones too.
---@nodiscard
---@return integer
function object:id() end

---Without an argument, the name. With one, renames and returns nothing. Raises: the fiber is dead; Fiber name is too
---long; expected string as 2 argument.
---@param name? string|number at most 255 bytes
---@param opts? { truncate?: boolean } true cuts a longer name
---@return string?
function object:name(name, opts) end

---"suspended" is also a finished joinable fiber that nobody joined yet.
---@nodiscard
---@return cord.fiber.status
function object:status() end

---Switches so far; 0 for a fiber that has not started. Raises: the fiber is dead.
---@nodiscard
---@return integer
function object:csw() end

---Raises: the fiber is dead.
---@nodiscard
---@param opts? { backtrace?: boolean, bt?: boolean } false leaves the backtrace out
---@return cord.fiber.info
function object:info(opts) end

---As fiber.wakeup.
function object:wakeup() end

---As fiber.cancel.
function object:cancel() end

---Always raises: fiber.testcancel(): bad arguments (as in Tarantool; call fiber.testcancel).
function object:testcancel() end

---As fiber.set_joinable.
---@param yesno boolean
function object:set_joinable(yesno) end

---As fiber.join.
---@async
---@param timeout? number|string seconds; nil waits for ever
---@return boolean ok
---@return any ... results, or the error object
function object:join(timeout) end

---Limits of this fiber's slices in place of the general ones. Raises as fiber.set_max_slice.
---@param slice number|cord.fiber.slice
function object:set_max_slice(slice) end

---Adds, replaces or removes a trigger that runs once when the fiber ends, newest first; with neither argument, the
---list of them. Errors in triggers are written to stderr. Raises: the fiber is dead; trigger reset: incorrect
---arguments; trigger reset: Trigger is not found.
---@param new? fun(f: cord.fiber.object) may yield
---@param old? function
---@return function|function[]|nil
function object:on_stop(new, old) end

---As on_stop, for triggers that run before each wait of this fiber. They cannot yield.
---@param new? fun(f: cord.fiber.object)
---@param old? function
---@return function|function[]|nil
function object:on_yield(new, old) end

---A condition variable. It does not remember signals.
---@class cord.fiber.cond: userdata
local cond = {}

---Waits for a signal, a broadcast or any other wakeup of the fiber: true; or false when the time is over. A signal
---that comes together with the deadline wins. Raises: fiber is cancelled; Usage: cond:wait([timeout]).
---@async
---@param timeout? number|string seconds; nil waits for ever
---@return boolean woken
function cond:wait(timeout) end

---Wakes the fiber that has waited longest, if any. Does not yield.
function cond:signal() end

---Wakes all waiting fibers in their order. Does not yield.
function cond:broadcast() end

---A bounded queue between fibers, first in, first out.
---@class cord.fiber.channel: userdata
local channel = {}

---Hands the value to a waiting reader or queues it; waits while the channel is full. False when the time is over or
---the channel is closed. Raises strings: usage: channel:put(var [, timeout]); and: fiber is cancelled.
---@async
---@param value any nil too
---@param timeout? number|string seconds; nil waits for ever, 0 never
---@return boolean
function channel:put(value, timeout) end

---The oldest value; nil when the time is over or the channel is closed and empty. Raises as put.
---@async
---@param timeout? number|string seconds; nil waits for ever, 0 never
---@return any
function channel:get(timeout) end

---Ends all waits. What is queued can still be taken (fiber.cfg{channel_close = 'old'} drops it).
function channel:close() end

---@nodiscard
---@return boolean
function channel:is_closed() end

---Whether count() is size(): always true without a buffer.
---@nodiscard
---@return boolean
function channel:is_full() end

---@nodiscard
---@return boolean
function channel:is_empty() end

---Queued values, those of waiting writers not counted.
---@nodiscard
---@return integer
function channel:count() end

---@nodiscard
---@return integer
function channel:size() end

---@nodiscard
---@return boolean
function channel:has_readers() end

---@nodiscard
---@return boolean
function channel:has_writers() end

---Options of fiber.cfg.
---@class (exact) cord.fiber.cfg
---@field deadlock? "error"|"wait" what happens when nothing can ever wake anyone; default "error"
---@field channel_close? "new"|"old" whether channel:close() keeps what is queued; default "new"
---@field stack_size? integer bytes of each new C stack; default 2 MiB
---@field trigger_pool? boolean keep trigger nodes for reuse; default true
---@field thread_pool? boolean keep the Lua threads of finished fibers for reuse; default true

---@class cord.fiber.stats
---@field fibers integer live fibers
---@field pooled integer finished records kept for reuse
---@field stacks integer C stacks mapped
---@field stack_limit integer the most there may be (0 until the first)
---@field triggers integer attached trigger nodes

---@class cord.fiber
local fiber = {}

---Runs `fn(...)` as a fiber at once, until it first yields or ends. Raises: fiber.create(function, ...): bad arguments.
---@async
---@param fn function
---@param ... any
---@return cord.fiber.object
function fiber.create(fn, ...) end

---Makes a fiber that starts at the caller's next yield. Raises: fiber.new(function, ...): bad arguments.
---@param fn function
---@param ... any
---@return cord.fiber.object
function fiber.new(fn, ...) end

---@nodiscard
---@return cord.fiber.object
function fiber.self() end

---Raises: expected fiber as 1 argument.
---@nodiscard
---@param f? cord.fiber.object default the running one
---@return integer
function fiber.id(f) end

---Nil if no live fiber has this id. Raises: Usage: fiber.find(id).
---@nodiscard
---@param id integer|string|ffi.cdata*
---@return cord.fiber.object?
function fiber.find(id) end

---Raises: expected fiber as 1 argument.
---@nodiscard
---@param f? cord.fiber.object default the running one
---@return cord.fiber.status
function fiber.status(f) end

---fiber.name([f]) is a name; fiber.name([f,] name[, opts]) sets it and returns nothing. See object:name.
---@param f? cord.fiber.object|string
---@param name? string|table
---@param opts? { truncate?: boolean }
---@return string?
function fiber.name(f, name, opts) end

---Puts the running fiber at the tail of the ready queue. Raises: fiber is cancelled (after the yield).
---@async
function fiber.yield() end

---Raises: fiber is cancelled; Usage: fiber.sleep(delay).
---@async
---@param delay number|string seconds; zero and less yield
function fiber.sleep(delay) end

---Makes a waiting fiber ready, whatever it waits for. Nothing happens to the running one and to one that is ready.
---Raises: the fiber is dead; expected fiber as 1 argument.
---@param f cord.fiber.object|integer
function fiber.wakeup(f) end

---Sets a flag that is never cleared, and wakes the fiber: its waits raise from now on. Raises: the fiber is dead;
---fiber is cancelled, if the caller is (itself, for instance).
---@param f cord.fiber.object|integer
function fiber.cancel(f) end

---As cancel.
---@param f cord.fiber.object|integer
function fiber.kill(f) end

---Raises `fiber is cancelled` if the running fiber is.
function fiber.testcancel() end

---Whether the fiber's results wait for a join. Raises: the fiber is dead (also for a finished one);
---fiber.set_joinable(id, yesno): bad arguments.
---@param f cord.fiber.object|integer
---@param yesno boolean
function fiber.set_joinable(f, yesno) end

---Waits for the end of a joinable fiber: true and its results, or false and an error object (`value` is what was
---raised, if that was no error object). After `timeout`: false and a TimedOut error, and the fiber can be joined
---again. A cancelled joiner goes on waiting. Raises: the fiber is dead; the fiber is not joinable; cannot join itself;
---fiber:join(timeout): bad arguments; the fiber is already joined by concurrent fiber:join().
---@async
---@param f cord.fiber.object|integer
---@param timeout? number|string seconds; nil waits for ever
---@return boolean ok
---@return any ... results, or the error object
function fiber.join(f, timeout) end

---Raises: Usage: cond:... from its methods only.
---@nodiscard
---@return cord.fiber.cond
function fiber.cond() end

---Raises strings: fiber.channel(size): bad arguments; fiber.channel(size): negative size.
---@nodiscard
---@param size? number|string values that fit in; default 0
---@return cord.fiber.channel
function fiber.channel(size) end

---Wall-clock seconds, the same within a turn of the loop.
---@nodiscard
---@return number
function fiber.time() end

---Steady seconds, the same within a turn of the loop.
---@nodiscard
---@return number
function fiber.clock() end

---fiber.time() in microseconds, an int64_t.
---@nodiscard
---@return ffi.cdata*
function fiber.time64() end

---fiber.clock() in microseconds, an int64_t.
---@nodiscard
---@return ffi.cdata*
function fiber.clock64() end

---All live fibers by id.
---@nodiscard
---@param opts? { backtrace?: boolean, bt?: boolean } false leaves the backtraces out
---@return table<integer, cord.fiber.info>
function fiber.info(opts) end

---Starts to measure the processor time of each fiber (two clock readings a switch).
function fiber.top_enable() end

function fiber.top_disable() end

---Percentages and seconds by "id/name"; "1/sched" is the loop itself. Raises: fiber.top() is disabled. Enable it with
---fiber.top_enable() first.
---@nodiscard
---@return { cpu_misses: integer, cpu: table<string, { average: number, instant: number, time: number }> }
function fiber.top() end

---Writes a warning once a slice, or raises `fiber slice is exceeded`, when the running fiber has not yielded for too
---long. Raises: fiber.check_slice(): bad arguments.
function fiber.check_slice() end

---Limits until the next yield, counted from now. Raises: slice must be a number or a table {warn = <number>, err =
---<number>}; slice value must be >= 0; fiber.set_slice(slice): bad arguments.
---@param slice number|cord.fiber.slice
function fiber.set_slice(slice) end

---Adds to the limits of the running slice. Raises as set_slice.
---@param slice number|cord.fiber.slice
function fiber.extend_slice(slice) end

---Limits of one fiber, or of all without limits of their own; default {warn = 0.5, err = 1}. Raises as set_slice.
---@param f cord.fiber.object|integer|number|cord.fiber.slice
---@param slice? number|cord.fiber.slice
function fiber.set_max_slice(f, slice) end

---As object:on_yield, for the waits of all fibers.
---@param new? fun(f: cord.fiber.object)
---@param old? function
---@return function|function[]|nil
function fiber.on_yield(new, old) end

---What ends trace recordings at a switch, and what it was before. See docs/jit.md.
---@param mode? cord.fiber.trace_abort
---@return cord.fiber.trace_abort previous
function fiber.trace_abort(mode) end

---How often the handler of a mode that calls one has run.
---@nodiscard
---@return integer
function fiber.trace_abort_calls() end

---Sets options and returns all of them. Raises: fiber.cfg: ...
---@param options? cord.fiber.cfg
---@return cord.fiber.cfg
function fiber.cfg(options) end

---@nodiscard
---@return cord.fiber.stats
function fiber.stats() end

---Kept for scripts written for Tarantool: a number without an effect. Raises: size must be > 0.
---@param size? integer
---@return integer old default 768
function fiber.tx_user_pool_size(size) end

---Without an effect here: backtraces cost nothing until they are asked for.
function fiber.parent_backtrace_enable() end
---Without an effect.
function fiber.parent_backtrace_disable() end
---Without an effect.
function fiber.leak_backtrace_enable() end
---Without an effect.
function fiber.leak_backtrace_disable() end

return fiber
