-- cord.netbox: Tarantool's net.box. This file makes connections and sends requests; worker.lua runs a connection's life,
-- space.lua reads its schema, tuple.lua is what rows are.
--
-- A request goes straight into the native half, which waits: its first result is true with the values behind it, a code,
-- or an error object. `settle` hands the usual case on without a table, a closure or a loop.
local raw, load = ...

local E = load('cord.error')
local uri = load('cord.uri')
local tls = load('cord.tls')
local msgpack = load('cord.msgpack')
local fiber = load('cord.fiber')
local tuples = load('cord.netbox.tuple')
local ffi = require('ffi')
local bit = require('bit')

local fraw, fail = fiber._internal.raw, fiber._internal.fail_at_caller
local raise, complain = E.raise_at_caller, E.complain
-- Not named pairs, lest LuaJIT compiles loops that a finalizer may never leave: docs/jit.md.
local type, tostring, tonumber, pcall, every, ipairs = type, tostring, tonumber, pcall, pairs, ipairs
local setmetatable, getmetatable, select, unpack, next = setmetatable, getmetatable, select, unpack, next
local format, upper, concat = string.format, string.upper, table.concat
local NULL, is_object = msgpack.NULL, msgpack.is_object

local CANCELLED, TIMED_OUT = 1, 2
local DONE_STALE, REFUSED, WORKER, LOOK = 10, 20, 21, 23
local UNSUPPORTED, PROC_LUA, NO_CONNECTION = 5, 32, 77
-- Shapes of results (request.rs).
local NOTHING, VALUES, TUPLES, TUPLE, VALUE = 0, 1, 2, 3, 6
local CLOSING = 4

local core = { raw = raw, DONE_STALE = DONE_STALE }

-- ---------------------------------------------------------------- what native code keeps

local int64, uint64 = ffi.typeof('int64_t'), ffi.typeof('uint64_t')
local future_mt

local function make_error(code, message, list)
    if list ~= nil then
        local err, problem = E.decode_stack(list)
        return err or problem
    end
    return E.client(code, message)
end

future_mt = raw.future_meta
future_mt.__metatable = 'net.box.request'
raw.keep({ make_error, E.wrap, tuples._set_formats })

-- ---------------------------------------------------------------- waiting for a state

local function not_established(conn)
    local last = conn._last_error
    if conn.state == 'active' and raw.problem(conn._raw) ~= nil then
        -- It broke in this very turn: its worker will say the same.
        return core.problem_of(conn._raw)
    elseif last ~= nil then
        return E.client(NO_CONNECTION, last.message)
    elseif conn._closing then
        return E.client(NO_CONNECTION, 'Connection is closing')
    end
    return E.client(NO_CONNECTION, format('Connection is not established, state is "%s"', conn.state))
end

-- Whether the state may still become another one by itself.
local function is_final(conn)
    local state = conn.state
    return state == 'error' or state == 'closed'
        or (state == 'graceful_shutdown' and conn.opts.reconnect_after == nil)
end

-- Waits until `wanted` (a set of states) has the connection's state. Gives the value of the set, or false and, when the
-- fiber was cancelled or the like, the code to raise.
local function wait_for(conn, wanted, deadline)
    while true do
        local value = wanted[conn.state]
        if value then
            return value
        elseif is_final(conn) then
            return false
        end
        local code = raw.wait_state(conn._raw, deadline)
        if code == TIMED_OUT then
            return wanted[conn.state] or false
        elseif code then
            return false, code
        end
    end
end

local ACTIVE = { active = true }

-- ---------------------------------------------------------------- requests

local slow
-- Op -> {shape, position of the reference}.
local ABOUT = {}
local IN_TRIGGER = 'Synchronous requests are not allowed in net.box trigger'

-- The results of a request, or what has to be done before there are any.
local function settle(op, conn, a, b, c, d, e, ok, ...)
    if ok == true then
        return ...
    end
    return slow(op, conn, a, b, c, d, e, nil, ok, ...)
end

local function settle_call(op, conn, name, args, ok, ...)
    if ok == true then
        return ...
    end
    return slow(op, conn, name, args, nil, nil, nil, nil, ok, ...)
end

-- The same where the result is one value or none, which takes no varargs: half the cost.
local function settle_one(op, conn, a, b, c, d, e, ok, value)
    if value == nil then
        if ok == true then
            return
        end
        return slow(op, conn, a, b, c, d, e, nil, ok)
    end
    return slow(op, conn, a, b, c, d, e, nil, ok, value)
end

local function stale(conn, deadline, ...)
    local _, code = wait_for(conn, ACTIVE, deadline)
    if code then
        return fail(code)
    end
    return ...
end

-- The arguments of a request that has waited for the connection: meanwhile its space may have got another format.
local function refreshed(op, conn, a, b, c, d, e)
    local about = ABOUT[op]
    local space = about and about[2] < 6 and conn.space and conn.space[a]
    local reference = space and space._reference
    if reference == nil then
        return b, c, d, e
    elseif about[2] == 3 then
        return b, reference, d, e
    elseif about[2] == 4 then
        return b, c, reference, e
    end
    return b, c, d, reference
end

local function again(op, conn, deadline, a, b, c, d, e)
    return slow(op, conn, a, b, c, d, e, deadline, op(conn, deadline, a, b, c, d, e))
end

function slow(op, conn, a, b, c, d, e, deadline, code, ...)
    if code == true then
        return ...
    elseif code == nil then
        return slow(op, conn, a, b, c, d, e, deadline, raw.rewait(conn._raw, deadline))
    elseif code == DONE_STALE then
        return stale(conn, deadline, ...)
    elseif code == WORKER or (code == REFUSED and raw.is_worker(conn._raw)) then
        return complain(IN_TRIGGER)
    elseif code == REFUSED then
        local early = conn.state == 'active'
        local active, problem = wait_for(conn, ACTIVE, deadline)
        if active and early then
            -- It broke or was closed in this very turn and its worker has not run yet.
            problem = raw.wait_state(conn._raw, fraw.deadline(0))
            problem = problem ~= TIMED_OUT and problem or nil
        end
        if problem then
            return fail(problem)
        elseif not active and conn.state == 'fetch_schema' then
            -- The schema took longer than the caller has time. As by Tarantool, the request is sent all the same.
            op(conn, conn, a, b, c, d, e)
            return fail(TIMED_OUT)
        elseif not active then
            return raise(not_established(conn))
        end
        return again(op, conn, deadline, a, refreshed(op, conn, a, b, c, d, e))
    elseif type(code) == 'number' then
        raw.forget(conn._raw)
        return fail(code)
    elseif type(code) == 'string' then
        return fail(code)
    end
    return E.raise_again(code)
end

-- ---------------------------------------------------------------- options

local function illegal(message)
    return raise(E.illegal_params(message))
end

local function is_number(value)
    return type(value) == 'number'
        or (type(value) == 'cdata' and (ffi.istype(int64, value) or ffi.istype(uint64, value)))
end

local function is_ibuf(value)
    return type(value) == 'cdata' and tostring(ffi.typeof(value)):find('ibuf', 1, true) ~= nil
end

local CHECKS = {
    boolean = function(value)
        return type(value) == 'boolean'
    end,
    number = is_number,
    string = function(value)
        return type(value) == 'string'
    end,
    table = function(value)
        return type(value) == 'table'
    end,
    ['function'] = function(value)
        return type(value) == 'function'
    end,
    tuple = function(value)
        return tuples.is(value)
    end,
    ['struct ibuf'] = is_ibuf,
    any = function()
        return true
    end,
}

local function check_options(opts, template)
    if type(opts) ~= 'table' then
        return illegal('options should be a table')
    end
    for key, value in every(opts) do
        local expected = template[key]
        if expected == nil then
            return illegal(format("unexpected option '%s'", tostring(key)))
        end
        local fits = false
        for i = 1, #expected do
            fits = fits or CHECKS[expected[i]](value)
        end
        if not fits then
            local which = #expected == 1 and 'should be of type %s'
                or template.wait_connected and 'should be one of types: %s' or 'should be of type %s'
            return illegal(format("options parameter '%s' " .. which, key, concat(expected, ', ')))
        end
    end
end

local REQUEST_OPTIONS = {
    is_async = { 'boolean' },
    timeout = { 'number' },
    buffer = { 'struct ibuf' },
    skip_header = { 'boolean' },
    return_raw = { 'boolean' },
    on_push = { 'function' },
    on_push_ctx = { 'any' },
    iterator = { 'string' },
    limit = { 'number' },
    offset = { 'number' },
    fetch_pos = { 'boolean' },
    after = { 'string', 'table', 'tuple' },
    _thread_id = { 'number' },
}

-- Whether the options are {is_async = true} and nothing else, which needs no further look.
local function only_async(opts)
    if type(opts) == 'table' and opts.is_async == true then
        local key = next(opts)
        return next(opts, key) == nil
    end
    return false
end

-- What an asynchronous request returns.
local function launched(conn, ok, future)
    if ok == true then
        return future
    elseif ok == REFUSED then
        return raise(not_established(conn))
    end
    return fail(ok)
end

local function deadline_of(opts)
    local timeout = opts.timeout and tonumber(opts.timeout)
    if timeout == nil then
        return nil
    end
    if timeout > 0 then
        return fraw.deadline(timeout)
    end
    -- 1, a moment long ago, means that nothing is waited for.
    return 1
end

-- The connection as requests to one of the server's threads see it: the thread travels with the stream (request.rs).
local function threaded(conn, thread)
    thread = tonumber(thread)
    if thread < 0 or thread > 0xfffff or thread % 1 ~= 0 then
        return illegal("options parameter '_thread_id' should be a whole number from 0 to 1048575")
    end
    return setmetatable({ _stream_id = conn._stream_id % 2 ^ 32 + thread * 2 ^ 32 }, { __index = conn, conn = conn })
end

-- A request with options.
local function with_options(op, conn, opts, a, b, c, d, e)
    if only_async(opts) then
        return launched(conn, op(conn, conn, a, b, c, d, e))
    end
    check_options(opts, REQUEST_OPTIONS)
    if opts._thread_id ~= nil then
        conn = threaded(conn, opts._thread_id)
    end
    if opts.is_async then
        if opts.on_push ~= nil or opts.on_push_ctx ~= nil then
            return complain('To handle pushes in an async request use future:pairs()')
        end
        if core.options.is_special(opts) then
            return core.special(op, conn, opts, a, b, c, d, e)
        end
        return launched(conn, op(conn, conn, a, b, c, d, e))
    end
    if core.options.is_special(opts) then
        return core.special(op, conn, opts, a, b, c, d, e)
    end
    local deadline = deadline_of(opts)
    return slow(op, conn, a, b, c, d, e, deadline, op(conn, deadline, a, b, c, d, e))
end
-- A request with options that the native half did not send: they are not just {is_async = true}, or it may not be made now.
local function launch(op, conn, opts, a, b, c, d, e, ok)
    if ok == LOOK then
        return with_options(op, conn, opts, a, b, c, d, e)
    end
    return launched(conn, ok)
end

core.with_options, core.slow, core.launched, core.deadline = with_options, slow, launched, deadline_of
core.threaded = threaded

-- A request that gets its reply's body and makes the result of it.
function core.special(op, conn, opts, a, b, c, d, e)
    local about = ABOUT[op]
    local shape, reference = about and about[1] or b, 16
    if about and about[2] < 6 then
        reference = (select(about[2], a, b, c, d, e))
    end
    return core.options.run(op, conn, opts, deadline_of(opts), shape, reference, a, b, c, d, e)
end

function core.check_request_options(opts)
    return check_options(opts, REQUEST_OPTIONS)
end

-- ---------------------------------------------------------------- the operations

local raw_call, raw_eval, raw_select, raw_insert, raw_replace = raw.call, raw.eval, raw.select, raw.insert, raw.replace
local raw_update, raw_delete, raw_upsert, raw_send, raw_scan = raw.update, raw.delete, raw.upsert, raw.send, raw.scan

-- Each op takes the connection, how to wait, up to five arguments, and the shape of the result if it is to be another.
local function op_call(conn, wait, name, args, _, _, _, shape)
    return raw_call(conn._raw, name, args, wait, shape or VALUES, conn._stream_id)
end

local function op_eval(conn, wait, expression, args, _, _, _, shape)
    return raw_eval(conn._raw, expression, args, wait, shape or VALUES, conn._stream_id)
end

local function op_bare(conn, wait, kind, shape, body, _, _, other)
    return raw_send(conn._raw, kind, body or '', wait, other or shape, conn._stream_id)
end

local function op_insert(conn, wait, space, tuple, reference, _, _, shape)
    return raw_insert(conn._raw, space, tuple, wait, (shape or TUPLE) + reference, conn._stream_id)
end

local function op_replace(conn, wait, space, tuple, reference, _, _, shape)
    return raw_replace(conn._raw, space, tuple, wait, (shape or TUPLE) + reference, conn._stream_id)
end

local function op_delete(conn, wait, space, index, key, reference, _, shape)
    return raw_delete(conn._raw, space, index, key, wait, (shape or TUPLE) + reference, conn._stream_id)
end

local function op_update(conn, wait, space, index, key, operations, reference, shape)
    return raw_update(conn._raw, space, index, key, operations, wait, (shape or TUPLE) + reference, conn._stream_id)
end

local function op_upsert(conn, wait, space, tuple, operations, _, _, shape)
    return raw_upsert(conn._raw, space, tuple, operations, wait, shape or NOTHING, conn._stream_id)
end

local function op_get(conn, wait, space, index, key, reference, iterator, shape)
    return raw_select(conn._raw, space, index, iterator, 0, iterator == 0 and 2 or 1, key, nil, nil, wait,
        (shape or TUPLE) + reference, conn._stream_id)
end

-- `p` holds what a select has besides space, index, key and reference.
local function op_select(conn, wait, space, index, key, reference, p, shape)
    return raw_select(conn._raw, space, index, p.iterator, p.offset, p.limit, key, p.after, p.fetch_pos, wait,
        (shape or TUPLES) + reference, conn._stream_id)
end

-- The shape of each op's plain result, and which of its arguments is the reference of the tuples' metatable.
-- A call whose first value is the result.
local function op_count(conn, wait, name, args, _, _, _, shape)
    return raw_call(conn._raw, name, args, wait, shape or VALUE, conn._stream_id)
end

ABOUT[op_call] = { VALUES, 6 }
ABOUT[op_eval] = { VALUES, 6 }
ABOUT[op_insert] = { TUPLE, 3 }
ABOUT[op_replace] = { TUPLE, 3 }
ABOUT[op_delete] = { TUPLE, 4 }
ABOUT[op_update] = { TUPLE, 5 }
ABOUT[op_upsert] = { NOTHING, 6 }
ABOUT[op_get] = { TUPLE, 4 }
ABOUT[op_select] = { TUPLES, 4 }
ABOUT[op_count] = { VALUE, 6 }
core.op_bare = op_bare

-- ---------------------------------------------------------------- the connection's methods

local methods = {}
local conn_mt = { __index = methods, __metatable = false }
local SERIALIZED = {
    'host', 'port', 'fd', 'opts', 'state', 'error', 'protocol', 'schema_version', 'peer_uuid', 'peer_version_id',
    'peer_protocol_version', 'peer_protocol_features',
}

function core.serialize(conn)
    local result = {}
    for _, field in ipairs(SERIALIZED) do
        result[field] = conn[field]
    end
    if result.opts ~= nil and next(result.opts) == nil then
        result.opts = nil
    end
    return result
end

function conn_mt.__serialize(conn)
    return core.serialize(conn)
end

local function dot_call(name)
    return raise(E.client(PROC_LUA, format('Use remote:%s(...) instead of remote.%s(...):', name, name)))
end

core.dot_call = dot_call

local function is_connection(conn)
    return type(conn) == 'table' and conn._raw ~= nil
end
core.is_connection, core.fail = is_connection, fail

local CALL_USAGE = 'Use remote:call(func_name, {arg1, arg2, ...}, opts) instead of '
    .. 'remote:call(func_name, arg1, arg2, ...)'
local EVAL_USAGE = 'Use remote:eval(expression, {arg1, arg2, ...}, opts) instead of '
    .. 'remote:eval(expression, arg1, arg2, ...)'

-- call and eval: they differ in what is sent and in the text about wrong arguments.
local function caller(name, op, raw_request, usage)
    return function(conn, what, args, opts)
        if type(conn) ~= 'table' then
            return dot_call(name)
        elseif args ~= nil and type(args) ~= 'table' and not is_object(args) then
            return complain(usage)
        end
        if type(what) ~= 'string' then
            what = tostring(what)
        end
        if opts == nil then
            return settle_call(op, conn, what, args,
                raw_request(conn._raw, what, args, nil, VALUES, conn._stream_id))
        end
        local ok, launching = raw_request(conn._raw, what, args, opts, VALUES, conn._stream_id, conn)
        if ok == true then
            return launching
        end
        return launch(op, conn, opts, what, args, nil, nil, nil, ok)
    end
end
methods.call = caller('call', op_call, raw_call, CALL_USAGE)
methods.eval = caller('eval', op_eval, raw_eval, EVAL_USAGE)

local function bare_ping(conn, deadline)
    return slow(op_bare, conn, 64, NOTHING, nil, nil, nil, deadline, op_bare(conn, deadline, 64, NOTHING))
end

function methods.ping(conn, opts)
    if not is_connection(conn) then
        return dot_call('ping')
    end
    if opts ~= nil then
        check_options(opts, REQUEST_OPTIONS)
        if opts.is_async then
            return complain("conn:ping() doesn't support `is_async` argument")
        end
        if opts._thread_id ~= nil then
            conn = threaded(conn, opts._thread_id)
        end
    end
    if raw.is_worker(conn._raw) then
        return complain(IN_TRIGGER)
    end
    local ok = pcall(bare_ping, conn, opts ~= nil and deadline_of(opts) or nil)
    if not ok and fraw.is_cancelled() then
        return fail(CANCELLED)
    end
    return ok
end

function methods.is_connected(conn)
    if not is_connection(conn) then
        return dot_call('is_connected')
    end
    return conn.state == 'active' or conn.state == 'fetch_schema'
end

local function wait_state(conn, wanted, timeout, usage)
    if timeout ~= nil and (type(timeout) == 'table' or tonumber(timeout) == nil) then
        return illegal('Usage: conn:' .. usage)
    end
    if timeout == nil and not wanted[conn.state] and raw.is_worker(conn._raw) then
        -- It would wait for itself.
        return complain(IN_TRIGGER)
    end
    local deadline = timeout and fraw.deadline(timeout) or nil
    local value, code = wait_for(conn, wanted, deadline)
    if code then
        return fail(code)
    end
    return value
end

function methods.wait_state(conn, state, timeout)
    if not is_connection(conn) then
        return dot_call('wait_state')
    end
    local wanted = state
    if type(state) ~= 'table' then
        if type(state) ~= 'string' then
            return illegal('conn:wait_state(state[, timeout]): a string or a table expected as argument 1, got '
                .. type(state))
        end
        wanted = { [state] = true }
    end
    local value = wait_state(conn, wanted, timeout, 'wait_state(state[, timeout])')
    return value
end

function methods.wait_connected(conn, timeout)
    if not is_connection(conn) then
        return dot_call('wait_connected')
    end
    local value = wait_state(conn, ACTIVE, timeout, 'wait_connected([timeout])')
    return value
end

function methods.reload_schema(conn)
    if not is_connection(conn) then
        return dot_call('reload_schema')
    end
    return conn:ping()
end

function methods.close(conn)
    if not is_connection(conn) then
        return dot_call('close')
    end
    conn = conn._conn or conn
    if conn._worker_done then
        return
    end
    conn._closing = true
    raw.phase(conn._raw, 0)
    raw.alert(conn._raw, CLOSING)
    if raw.is_worker(conn._raw) then
        return fail(CANCELLED)
    end
    while not conn._worker_done do
        local code = raw.wait_state(conn._raw)
        if code then
            return fail(code)
        end
    end
end

-- ---------------------------------------------------------------- triggers

local function callable(value)
    if type(value) == 'function' then
        return true
    end
    local meta = getmetatable(value)
    return type(meta) == 'table' and meta.__call ~= nil
end

local function find_trigger(list, fn, name)
    for i = 1, #list do
        if (name ~= nil and list[i].name == name) or (name == nil and list[i].name == nil and list[i].func == fn) then
            return i
        end
    end
end

local function put_named(list, fn, name)
    local i = find_trigger(list, nil, name)
    if i and fn ~= nil then
        list[i] = { func = fn, name = name }
    elseif i then
        table.remove(list, i)
    elseif fn ~= nil then
        table.insert(list, 1, { func = fn, name = name })
    end
end

-- Lists are newest first, and replaced when they change: a trigger may remove itself while the list is run.
local function change_triggers(list, new, old, name)
    local result = {}
    for i = 1, #list do
        result[i] = list[i]
    end
    if type(new) == 'table' and not callable(new) then
        name, new = new.name, new.func
        if type(name) ~= 'string' then
            return nil, 'name must be a string'
        elseif new ~= nil and not callable(new) then
            return nil, 'func must be a callable object or nil'
        end
        put_named(result, new, name)
        return result, nil, new
    end
    if name ~= nil then
        if type(name) ~= 'string' then
            return nil, 'name must be a string'
        end
        put_named(result, new, name)
        return result, nil, new
    end
    if (new ~= nil and not callable(new)) or (old ~= nil and not callable(old)) then
        return nil, 'trigger reset: incorrect arguments'
    end
    if old ~= nil then
        local i = find_trigger(result, old)
        if not i then
            return nil, 'trigger reset: Trigger is not found'
        end
        table.remove(result, i)
    end
    if new ~= nil and not find_trigger(result, new) then
        table.insert(result, 1, { func = new })
    end
    return result, nil, new
end

local function define_trigger(name)
    local field = '_' .. name
    -- No varargs: LuaJIT of 2022 compiles that wrongly here.
    methods[name] = function(conn, new, old, title)
        if not is_connection(conn) then
            return dot_call(name)
        end
        conn = conn._conn or conn
        local list = conn[field]
        if new == nil and old == nil and title == nil then
            local functions = {}
            for i = 1, #list do
                functions[i] = list[i].func
            end
            return functions
        end
        local changed, problem, result = change_triggers(list, new, old, title)
        if problem then
            return complain(problem)
        end
        conn[field] = changed
        return result
    end
end
for _, name in ipairs { 'on_connect', 'on_disconnect', 'on_schema_reload', 'on_shutdown' } do
    define_trigger(name)
end

-- Runs a list of triggers: true, or false and the first error.
function core.run_triggers(conn, field)
    local list = conn[field]
    for i = 1, #list do
        local ok, err = pcall(list[i].func, conn)
        if not ok then
            return false, err
        end
    end
    return true
end

-- ---------------------------------------------------------------- futures

local future = {}
future_mt.__index = future
function future_mt.__tostring()
    return 'net.box.request'
end

-- Parts of a future's box (future.rs).
local FIELDS, PUSHES, FINISH, ON_PUSH = 2, 4, 5, 6
core.FINISH, core.ON_PUSH = FINISH, ON_PUSH

local function outcome(f, value, err)
    local finish = raw.future_part(f, FINISH)
    if finish and err == nil then
        value = finish(value)
        raw.future_part(f, 1, value)
        raw.future_part(f, FINISH, false)
    end
    if err ~= nil then
        return nil, err
    end
    return value
end

local future_wait, future_peek = raw.future_wait, raw.future_peek

local function check_future(f, usage)
    if not raw.is_future(f) then
        return complain('Usage: future:' .. usage)
    end
end

function future.is_ready(f)
    check_future(f, 'is_ready()')
    return (raw.future_peek(f))
end

function future.result(f)
    check_future(f, 'result()')
    local ready, value, err = raw.future_peek(f)
    if not ready then
        return nil, E.client(PROC_LUA, 'Response is not ready')
    end
    return outcome(f, value, err)
end

local function waited(f, deadline, code, value, err)
    if code == true then
        if err == nil and type(value) ~= 'string' then
            return value
        end
        return outcome(f, value, err)
    elseif code == nil then
        return waited(f, deadline, future_wait(f, deadline))
    elseif code == TIMED_OUT then
        return nil, E.timed_out()
    elseif code == WORKER then
        return complain(IN_TRIGGER)
    end
    return fail(code)
end

function future.wait_result(f, timeout)
    if timeout == nil then
        return waited(f, nil, future_wait(f))
    end
    if type(timeout) ~= 'number' or timeout < 0 then
        return complain('Usage: future:wait_result(timeout)')
    end
    local ready, value, err = future_peek(f)
    if ready then
        if err == nil and type(value) ~= 'string' then
            return value
        end
        return outcome(f, value, err)
    elseif timeout == 0 then
        return nil, E.timed_out()
    end
    local deadline = fraw.deadline(timeout)
    return waited(f, deadline, future_wait(f, deadline))
end

local function next_push(state, i)
    local f = state.future
    local deadline = state.timeout and fraw.deadline(state.timeout) or nil
    if state.done then
        return nil
    end
    i = i or 0
    while true do
        local pushes = raw.future_part(f, PUSHES)
        if pushes and pushes[i + 1] ~= nil then
            local push, convert = pushes[i + 1], raw.future_part(f, ON_PUSH)
            if convert then
                push = convert(push)
            end
            return i + 1, push
        end
        local ready, value, err = future_peek(f)
        if ready then
            state.done = true
            value, err = outcome(f, value, err)
            if err ~= nil then
                return NULL, err
            end
            return i + 1, value
        end
        local code = future_wait(f, deadline)
        if code == TIMED_OUT then
            state.done = true
            return NULL, E.timed_out()
        elseif code == WORKER then
            return complain(IN_TRIGGER)
        elseif code and code ~= true then
            return fail(code)
        end
    end
end

function future.pairs(f, timeout)
    check_future(f, 'pairs(timeout)')
    if timeout ~= nil and (type(timeout) ~= 'number' or timeout < 0) then
        return complain('Usage: future:pairs(timeout)')
    end
    return next_push, { future = f, timeout = timeout }, nil
end

-- A future somebody has set a field of has another metatable, which looks there first.
local fielded_mt = { __metatable = 'net.box.request', __tostring = future_mt.__tostring }

function fielded_mt.__index(f, key)
    local value = raw.future_part(f, FIELDS)[key]
    if value == nil then
        return future[key]
    end
    return value
end

function fielded_mt.__newindex(f, key, value)
    raw.future_part(f, FIELDS)[key] = value
end

local set_metatable = debug.setmetatable

function future_mt.__newindex(f, key, value)
    if not raw.is_future(f) then
        return complain('a future expected')
    end
    raw.future_part(f, FIELDS, { [key] = value })
    set_metatable(f, fielded_mt)
end

function future_mt.__serialize(f)
    return raw.future_part(f, FIELDS) or {}
end
fielded_mt.__serialize = future_mt.__serialize

function fielded_mt.__autocomplete(f)
    return setmetatable(raw.future_part(f, FIELDS) or {}, { __index = future })
end
future_mt.__autocomplete = fielded_mt.__autocomplete

function future.discard(f)
    check_future(f, 'discard()')
    raw.future_fail(f, E.client(PROC_LUA, 'Response is discarded'))
end

-- ---------------------------------------------------------------- spaces

local ITERATORS = {
    EQ = 0, REQ = 1, ALL = 2, LT = 3, LE = 4, GE = 5, GT = 6, BITS_ALL_SET = 7, BITS_ANY_SET = 8, BITS_ALL_NOT_SET = 9,
    OVERLAPS = 10, NEIGHBOR = 11, NP = 12, PP = 13,
}

local space_methods, index_methods = {}, {}
core.space_mt = { __index = space_methods, __metatable = false }
core.index_mt = { __index = index_methods, __metatable = false }

local function check_space(_, name)
    return raise(E.illegal_params(format('Use space:%s(...) instead of space.%s(...)', name, name)))
end

local function check_index(_, name)
    return raise(E.illegal_params(format('Use index:%s(...) instead of index.%s(...)', name, name)))
end

local function no_primary(space)
    return raise(E.client(35, format("No index #0 is defined in space '%s'", tostring(space.name or space.id))))
end

local function is_empty(key)
    return key == nil or (type(key) == 'table' and next(key) == nil)
end

local function select_iterator(opts, key)
    local name = opts and opts.iterator
    if name == nil then
        return is_empty(key) and 2 or 0
    end
    local number = ITERATORS[upper(name)]
    if number == nil then
        return raise(E.client(72, format("Unknown iterator type '%s'", name)))
    end
    return number
end

-- All of a space for an empty key, and what equals it for any other.
local function op_select_plain(conn, wait, space, index, key, reference)
    return raw_scan(conn._raw, space, index, key, wait, TUPLES + reference, conn._stream_id)
end

local function select_options(conn, space, index, key, reference, opts)
    local ok, launching = raw_scan(conn._raw, space, index, key, opts, TUPLES + reference, conn._stream_id, conn)
    if ok == true then
        return launching
    elseif ok ~= LOOK then
        return launched(conn, ok)
    end
    check_options(opts, REQUEST_OPTIONS)
    local iterator = select_iterator(opts, key)
    local after, problem = core.options.after(conn, opts)
    if problem then
        return raise(problem)
    end
    local p = {
        iterator = iterator,
        offset = tonumber(opts.offset) or 0,
        limit = tonumber(opts.limit) or 0xffffffff,
        after = after,
        fetch_pos = opts.fetch_pos or nil,
    }
    return with_options(op_select, conn, opts, space, index, key, reference, p)
end

function space_methods.select(space, key, opts)
    local conn = type(space) == 'table' and space.connection
    if not conn then
        return check_space(space, 'select')
    end
    if opts == nil then
        local ok, value = raw_scan(conn._raw, space._id_or_name, 0, key, nil, TUPLES + space._reference, conn._stream_id)
        if ok == true and value ~= nil then
            return value
        end
        return settle_one(op_select_plain, conn, space._id_or_name, 0, key, space._reference, nil, ok, value)
    end
    return select_options(conn, space._id_or_name, 0, key, space._reference, opts)
end

function index_methods.select(index, key, opts)
    local space = type(index) == 'table' and index.space
    if not space then
        return check_index(index, 'select')
    end
    local conn = space.connection
    if opts == nil then
        local ok, value = raw_scan(conn._raw, space._id_or_name, index.id, key, nil, TUPLES + space._reference,
            conn._stream_id)
        if ok == true and value ~= nil then
            return value
        end
        return settle_one(op_select_plain, conn, space._id_or_name, index.id, key, space._reference, nil, ok, value)
    end
    return select_options(conn, space._id_or_name, index.id, key, space._reference, opts)
end

local function one_of(iterator, name)
    return function(index, key, opts)
        local space = type(index) == 'table' and index.space
        if not space then
            return check_index(index, name)
        end
        local conn = space.connection
        if opts == nil then
            local ok, value = op_get(conn, nil, space._id_or_name, index.id, key, space._reference, iterator)
            if ok == true and value ~= nil then
                return value
            end
            return settle_one(op_get, conn, space._id_or_name, index.id, key, space._reference, iterator, ok, value)
        end
        if type(opts) ~= 'table' then
            return illegal('options should be a table')
        elseif opts.buffer ~= nil then
            return complain(format("index:%s() doesn't support `buffer` argument", name))
        end
        return with_options(op_get, conn, opts, space._id_or_name, index.id, key, space._reference, iterator)
    end
end
index_methods.get = one_of(0, 'get')
index_methods.min = one_of(5, 'min')
index_methods.max = one_of(4, 'max')

-- The function that counts, as the server finds it: old ones know no brackets.
local function counter(space, index)
    local old = (space.connection.peer_version_id or 0) < core.version_id(3, 0, 0)
    if old and space.name ~= nil and index.name ~= nil then
        return format('box.space.%s.index.%s:count', space.name, index.name)
    end
    local function key(object)
        return object.name and format('[%q]', object.name) or format('[%d]', object.id)
    end
    return format('box.space%s.index%s:count', key(space), key(index))
end

function index_methods.count(index, key, opts)
    local space = type(index) == 'table' and index.space
    if not space then
        return check_index(index, 'count')
    elseif opts ~= nil and type(opts) ~= 'table' then
        return illegal('options should be a table')
    elseif opts ~= nil and opts.buffer ~= nil then
        return complain("index:count() doesn't support `buffer` argument")
    end
    local conn = space.connection
    if key == nil then
        key = NULL
    end
    local rest, iterator = {}, nil
    for name, value in every(opts ~= nil and opts or {}) do
        if name == 'iterator' then
            iterator = value
        elseif name ~= 'return_raw' then
            rest[name] = value
        end
    end
    local args = { key, iterator and { iterator = iterator } or nil }
    return with_options(op_count, conn, rest, counter(space, index), args)
end

function space_methods.get(space, key, opts)
    if type(space) ~= 'table' or space.connection == nil then
        return check_space(space, 'get')
    end
    local primary = space.index[0]
    if primary == nil then
        return no_primary(space)
    end
    return primary:get(key, opts)
end

local function storer(name, op, raw_request)
    return function(space, tuple, opts)
        local conn = type(space) == 'table' and space.connection
        if not conn then
            return check_space(space, name)
        end
        if opts == nil then
            local ok, value = raw_request(conn._raw, space._id_or_name, tuple, nil, TUPLE + space._reference,
                conn._stream_id)
            if ok == true and value ~= nil then
                return value
            end
            return settle_one(op, conn, space._id_or_name, tuple, space._reference, nil, nil, ok, value)
        end
        local ok, launching = raw_request(conn._raw, space._id_or_name, tuple, opts, TUPLE + space._reference,
            conn._stream_id, conn)
        if ok == true then
            return launching
        end
        return launch(op, conn, opts, space._id_or_name, tuple, space._reference, nil, nil, ok)
    end
end
space_methods.insert = storer('insert', op_insert, raw_insert)
space_methods.replace = storer('replace', op_replace, raw_replace)

local function delete(conn, space, id, key, opts)
    if opts == nil then
        local ok, value = raw_delete(conn._raw, space._id_or_name, id, key, nil, TUPLE + space._reference, conn._stream_id)
        if ok == true and value ~= nil then
            return value
        end
        return settle_one(op_delete, conn, space._id_or_name, id, key, space._reference, nil, ok, value)
    end
    local ok, launching = raw_delete(conn._raw, space._id_or_name, id, key, opts, TUPLE + space._reference,
        conn._stream_id, conn)
    if ok == true then
        return launching
    end
    return launch(op_delete, conn, opts, space._id_or_name, id, key, space._reference, nil, ok)
end

function space_methods.delete(space, key, opts)
    local conn = type(space) == 'table' and space.connection
    if not conn then
        return check_space(space, 'delete')
    end
    return delete(conn, space, 0, key, opts)
end

function index_methods.delete(index, key, opts)
    local space = type(index) == 'table' and index.space
    if not space then
        return check_index(index, 'delete')
    end
    return delete(space.connection, space, index.id, key, opts)
end

local function update(conn, space, id, key, operations, opts)
    if opts == nil then
        local ok, value = raw_update(conn._raw, space._id_or_name, id, key, operations, nil, TUPLE + space._reference,
            conn._stream_id)
        if ok == true and value ~= nil then
            return value
        end
        return settle_one(op_update, conn, space._id_or_name, id, key, operations, space._reference, ok, value)
    end
    local ok, launching = raw_update(conn._raw, space._id_or_name, id, key, operations, opts, TUPLE + space._reference,
        conn._stream_id, conn)
    if ok == true then
        return launching
    end
    return launch(op_update, conn, opts, space._id_or_name, id, key, operations, space._reference, ok)
end

function space_methods.update(space, key, operations, opts)
    local conn = type(space) == 'table' and space.connection
    if not conn then
        return check_space(space, 'update')
    end
    return update(conn, space, 0, key, operations, opts)
end

function index_methods.update(index, key, operations, opts)
    local space = type(index) == 'table' and index.space
    if not space then
        return check_index(index, 'update')
    end
    return update(space.connection, space, index.id, key, operations, opts)
end

function space_methods.upsert(space, tuple, operations, opts)
    local conn = type(space) == 'table' and space.connection
    if not conn then
        return check_space(space, 'upsert')
    end
    if opts == nil then
        return settle(op_upsert, conn, space._id_or_name, tuple, operations, nil, nil,
            raw_upsert(conn._raw, space._id_or_name, tuple, operations, nil, NOTHING, conn._stream_id))
    end
    local ok, launching = raw_upsert(conn._raw, space._id_or_name, tuple, operations, opts, NOTHING, conn._stream_id, conn)
    if ok == true then
        return launching
    end
    return launch(op_upsert, conn, opts, space._id_or_name, tuple, operations, nil, nil, ok)
end

function space_methods.format(space, new)
    if type(space) ~= 'table' then
        return check_space(space, 'format')
    end
    if new ~= nil then
        return raise(E.client(UNSUPPORTED, 'net.box does not support setting space format'))
    end
    return space._format
end

-- ---------------------------------------------------------------- the handshake's parts

local FEATURES = {
    [0] = 'streams', 'transactions', 'error_extension', 'watchers', 'pagination', 'space_and_index_names',
    'watch_once', 'dml_tuple_extension', 'call_ret_tuple_extension', 'call_arg_tuple_extension',
    'fetch_snapshot_cursor', 'is_sync', 'insert_arrow',
}
local FEATURE_NUMBERS = {}
for number, name in every(FEATURES) do
    FEATURE_NUMBERS[name] = number
end

local SPACE_AND_INDEX_NAMES = FEATURE_NUMBERS.space_and_index_names

function core.version_id(major, minor, patch)
    return bit.bor(bit.lshift(major, 16), bit.lshift(minor, 8), patch)
end

local PROTOCOL_VERSION = 10
-- Keys of bodies.
local KEY_TUPLE, KEY_USER, KEY_VERSION, KEY_FEATURES, KEY_AUTH_TYPE = 0x21, 0x23, 0x54, 0x55, 0x5b

local function map(list)
    return core.options.map(list)
end

function core.id_body(fetch_schema)
    local features = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11 }
    if fetch_schema then
        table.remove(features, 8)
    end
    return map { KEY_VERSION, raw.encode(PROTOCOL_VERSION), KEY_FEATURES, raw.encode(features) }
end

function core.read_id(p, body)
    local reply = raw.decode(body) or {}
    p.protocol_version = reply[KEY_VERSION] or 0
    for _, number in ipairs(reply[KEY_FEATURES] or {}) do
        p.features[number] = true
    end
    p.server_auth_type = reply[KEY_AUTH_TYPE]
end

function core.feature_table(p)
    local result = {}
    for number, name in every(FEATURES) do
        result[name] = p.features[number] == true
    end
    return result
end

function core.check_required(p)
    local version = p.required_version
    if version and p.protocol_version < version then
        return core.no_connection(format('Protocol version (%d) < required (%d)', p.protocol_version, version))
    end
    local missing = {}
    for _, name in ipairs(p.required_features or {}) do
        local number = FEATURE_NUMBERS[name]
        if number == nil or not p.features[number] then
            missing[#missing + 1] = name
        end
    end
    if #missing > 0 then
        return core.no_connection('Missing required protocol features: ' .. concat(missing, ', '))
    end
end

-- Why a method cannot be used; `setup` is the connection's encryption.
function core.check_auth_type(method, setup)
    if method == 'pap-sha256' then
        if not setup then
            return E.client(UNSUPPORTED,
                "Authentication method 'pap-sha256' does not support unencrypted connection")
        end
    elseif method ~= nil and method ~= 'chap-sha1' then
        return E.client(249, format("Unknown authentication method '%s'", method))
    end
end

function core.auth_body(p, method)
    local refused = core.check_auth_type(method, p.tls)
    if refused then
        return refused
    end
    local password = p.password or ''
    local answer = method == 'pap-sha256' and password or raw.scramble(p.salt, password)
    return nil, map { KEY_USER, raw.encode(p.user), KEY_TUPLE, raw.encode({ method, answer }) }
end

-- Spaces before the schema is there, or without one: any id, and any name where the peer knows names.
local function lazy_index(space, key)
    -- What requests name it by; a name has no number here.
    local index = setmetatable({ space = space, id = key, _id_or_name = key }, core.index_mt)
    if type(key) == 'string' then
        index.name = key
    end
    rawset(space.index, key, index)
    return index
end

function core.lazy_spaces(conn, p)
    local weak = setmetatable({ conn }, { __mode = 'v' })
    conn.space = setmetatable({}, {
        __index = function(spaces, key)
            local kind = type(key)
            if weak[1] == nil or (kind ~= 'number' and not (kind == 'string' and p.features[SPACE_AND_INDEX_NAMES])) then
                return nil
            end
            local space = { connection = weak[1], _id_or_name = key, _reference = 16 }
            space[kind == 'number' and 'id' or 'name'] = key
            space.index = setmetatable({}, {
                __index = function(_, id)
                    if type(id) == 'number' or (type(id) == 'string' and p.features[SPACE_AND_INDEX_NAMES]) then
                        return lazy_index(space, id)
                    end
                end,
            })
            rawset(spaces, key, setmetatable(space, core.space_mt))
            return space
        end,
    })
end

-- Functions for the pushes of synchronous requests, by number. A number is used again after a million others, when no
-- push of its former request can be queued any more.
function core.add_push_handler(conn, handler)
    conn = conn._conn or conn
    local handlers, number = conn._push_handlers, conn._last_push_handler or 0
    if handlers == nil then
        handlers = {}
        conn._push_handlers = handlers
    end
    repeat
        number = number % 0xfffff + 1
    until handlers[number] == nil
    handlers[number], conn._last_push_handler = handler, number
    return number
end

function core.remove_push_handler(conn, number)
    conn = conn._conn or conn
    conn._push_handlers[number] = nil
end

local function handle_push(handler, body)
    local value
    if handler.buffer ~= nil then
        local bytes = body
        if handler.skip_header then
            local from, to = core.options.locate(body, 0x30)
            bytes = from and body:sub(from, to - 1) or ''
        end
        ffi.copy(handler.buffer:alloc(#bytes), bytes, #bytes)
        value = #bytes
    else
        local data = raw.decode(body)[0x30]
        value = data and data[1]
    end
    return handler.func(handler.ctx, value)
end

local function handle_list(conn, list)
    for i = 1, #list, 2 do
        local number, body = list[i], list[i + 1]
        if number == 0 then
            core.handle_event(conn, body)
        else
            local handler = conn._push_handlers and conn._push_handlers[number]
            if handler ~= nil then
                local ok, err = pcall(handle_push, handler, body)
                if not ok then
                    return E.wrap(err)
                end
            end
        end
    end
    return nil
end

-- Events and pushes that have arrived: number of the function (0 for an event), body, number ... An error ends the
-- connection.
function core.handle_queue(conn, list)
    local err
    conn._pushing = true
    repeat
        err = handle_list(conn, list)
        -- Whatever has come while a handler waited.
        list = err == nil and raw.take(conn._raw) or {}
    until #list == 0
    conn._pushing = nil
    if conn._push_waiters then
        raw.broadcast(conn._raw)
    end
    return err
end

-- A response that overtook pushes whose handlers wait, or whose worker has not had its turn yet: they come first.
function core.wait_pushes(conn, deadline)
    conn = conn._conn or conn
    while (conn._pushing or select(5, raw.numbers(conn._raw)) > 0) and not conn._worker_done do
        conn._push_waiters = true
        local code = raw.wait_state(conn._raw, deadline)
        if code then
            return code
        end
    end
    return nil
end

core.options = load('cord.netbox.options')(core)
load('cord.netbox.sql')(core, methods)
load('cord.netbox.stream')(core, methods)
load('cord.netbox.watch')(core, methods)
local worker = load('cord.netbox.worker')(core)

-- ---------------------------------------------------------------- connecting

core.CONNECT_OPTIONS = {
    user = { 'string' },
    password = { 'string' },
    wait_connected = { 'number', 'boolean' },
    reconnect_after = { 'number' },
    connect_timeout = { 'number' },
    fetch_schema = { 'boolean' },
    auth_type = { 'string' },
    required_protocol_version = { 'number' },
    required_protocol_features = { 'table' },
    console = { 'boolean' },
    _disable_graceful_shutdown = { 'boolean' },
}

-- A descriptor has no URI that parameters could stand in.
core.FROM_FD_OPTIONS = setmetatable({ params = { 'table' } }, { __index = core.CONNECT_OPTIONS })

local function parameters(parts, opts)
    local reconnect = opts.reconnect_after and tonumber(opts.reconnect_after)
    local p = {
        host = parts.host,
        port = tonumber(parts.service),
        user = opts.user,
        password = opts._password,
        auth_type = opts.auth_type,
        reconnect_after = reconnect and reconnect > 0 and reconnect or nil,
        connect_timeout = tonumber(opts.connect_timeout or 10),
        fetch_schema = opts.fetch_schema ~= false,
        required_version = opts.required_protocol_version,
        required_features = opts.required_protocol_features,
        references = {},
        last_reference = 2,
        features = {},
    }
    if parts.unix then
        p.host, p.path = 'unix/', parts.unix
    end
    p.name = format('%s:%s', tostring(parts.host or ''), tostring(parts.service))
    return p
end

local weak_values = { __mode = 'v' }

local function start(p, opts, host, port)
    local rc, hook = raw.new(raw.conn_meta, raw.hook_meta)
    raw.anchor(rc, 2, tuples.metatable_of(nil))
    p.references[tuples.metatable_of(nil)] = 2
    local conn = setmetatable({
        host = host,
        port = port,
        opts = opts,
        state = 'initial',
        _raw = rc,
        _gc_hook = hook,
        _stream_id = 0,
        _last_stream_id = 0,
        _on_connect = {},
        _on_disconnect = {},
        _on_schema_reload = {},
        _on_shutdown = {},
    }, conn_mt)
    if not opts._disable_graceful_shutdown then
        core.watch_shutdown(conn, p)
    end
    local f = fiber.new(worker, p, rc, setmetatable({ conn }, weak_values))
    fraw.set_system(f)
    f:name((p.name .. ' (net.box)'):sub(1, 255))
    conn._fiber = f
    local wait = opts.wait_connected
    if wait ~= false then
        local deadline
        if is_number(wait) then
            deadline = fraw.deadline(tonumber(wait))
        end
        local _, code = wait_for(conn, ACTIVE, deadline)
        if code then
            return fail(code)
        end
    end
    return conn
end

local function copy_options(opts)
    local result = {}
    for key, value in every(opts) do
        result[key] = value
    end
    return result
end

local function credentials(parts, opts)
    if opts.user == nil and opts.password == nil then
        opts.user, opts.password = parts.login, parts.password
    elseif opts.user == nil then
        return raise(E.client(PROC_LUA, 'net.box: user is not defined'))
    end
    opts._password = opts.password
    opts.password = nil
end

local USAGE = 'usage: connect(uri[, opts] | host, port[, opts])'

-- The URI and the options of connect's arguments.
--
-- Nothing here takes apart a `...` into fixed values: LuaJIT of 2022 compiles that wrongly in a side trace that starts in
-- a function the vararg function has called before.
local function arguments(first, second, third)
    if (type(second) == 'number' or type(second) == 'string')
        and (first == nil or type(first) == 'string' or type(first) == 'number') then
        local host = first and tostring(first) or ''
        if host:find(':', 1, true) and host:sub(1, 1) ~= '[' and host ~= 'unix/:' then
            host = '[' .. host .. ']'
        end
        if host == 'unix/' then
            return 'unix/:' .. tostring(second), third
        end
        return host == '' and tostring(second) or host .. ':' .. tostring(second), third
    end
    if type(first) ~= 'string' and type(first) ~= 'number' and type(first) ~= 'table' then
        return nil
    end
    return first, second
end

local netbox = {}

local function do_connect(first, second, third, fourth)
    if rawequal(first, netbox) then
        first, second, third = second, third, fourth
    end
    local source, opts = arguments(first, second, third)
    if source == nil then
        return raise(E.client(PROC_LUA, USAGE))
    end
    local parts, problem = uri.parse(source)
    if parts == nil then
        return complain(problem)
    end
    if opts ~= nil then
        check_options(opts, core.CONNECT_OPTIONS)
    end
    local setup, wrong = tls.client(parts.params)
    if setup == false then
        return illegal(wrong)
    end
    opts = copy_options(opts ~= nil and opts or {})
    if opts.console then
        return illegal('Netbox text protocol support was dropped, please use require(\'console\').connect() instead')
    end
    credentials(parts, opts)
    local refused = core.check_auth_type(opts.auth_type, setup)
    if refused then
        return raise(refused)
    end
    local p = parameters(parts, opts)
    p.tls = setup
    opts._password = nil
    return start(p, opts, parts.host, parts.service)
end

function netbox.connect(first, second, third, fourth)
    local conn = do_connect(first, second, third, fourth)
    return conn
end
netbox.new = netbox.connect

-- For people who type at it: Tarantool's console shows these objects through __serialize, a plain REPL through tostring.
function conn_mt.__tostring(conn)
    local peer = conn.host and format('%s:%s', conn.host, tostring(conn.port)) or tostring(conn.port)
    return format('net.box: %s (%s%s)', peer, conn.state, conn.error and ': ' .. tostring(conn.error) or '')
end

function core.space_mt.__tostring(space)
    return format('space: %s (%s)', tostring(space.name), tostring(space.id))
end

function core.index_mt.__tostring(index)
    return format('index: %s (%s) of %s', tostring(index.name), tostring(index.id), tostring(index.space))
end

-- connect with another default of wait_connected: net.box's old way to say how long to wait.
local function with_timeout(timeout)
    local function connect(first, second, third)
        local source, opts = arguments(first, second, third)
        if opts == nil or type(opts) == 'table' then
            opts = copy_options(opts ~= nil and opts or {})
            if opts.wait_connected ~= false then
                opts.wait_connected = timeout
            end
        end
        local conn = do_connect(source, opts)
        return conn
    end
    return { connect = connect, new = connect }
end

function netbox.timeout(timeout, second)
    if rawequal(timeout, netbox) then
        timeout = second
    end
    if timeout == nil then
        return netbox
    end
    return with_timeout(timeout)
end

function netbox.from_fd(fd, opts, third)
    if rawequal(fd, netbox) then
        fd, opts = opts, third
    end
    if not is_number(fd) then
        return illegal('fd should be a number')
    end
    fd = tonumber(fd)
    if fd < 0 or fd % 1 ~= 0 or fd > 2147483647 then
        return illegal('Invalid fd: expected nonnegative integer')
    end
    if opts ~= nil then
        check_options(opts, core.FROM_FD_OPTIONS)
    end
    opts = copy_options(opts ~= nil and opts or {})
    local params, wrong = tls.params(opts.params or {})
    local setup = false
    if params then
        setup, wrong = tls.client(params)
    end
    if setup == false then
        return illegal(wrong)
    end
    opts.params = nil
    credentials({}, opts)
    local p = parameters({}, opts)
    p.tls = setup
    p.fd, p.reconnect_after, opts._password = fd, nil, nil
    opts.reconnect_after = nil
    p.name = format('fd=%d', fd)
    local conn = start(p, opts)
    return conn
end

-- The program itself in a connection's clothes: functions of the global table, expressions of this Lua.
local self = {}

local function function_at(name)
    local at, object = _G, nil
    for part in name:gsub(':', '.'):gmatch('[^.]+') do
        if type(at) ~= 'table' then
            return nil
        end
        at, object = at[part], at
    end
    return at, name:find(':', 1, true) and object or nil
end

function self.ping()
    return true
end

function self.is_connected()
    return true
end

function self.wait_connected()
    return true
end

function self.timeout()
    return self
end

function self.reload_schema() end

function self.close() end

-- What a server would send: a nil as NULL, an error as an object.
local function as_reply(ok, ...)
    if not ok then
        local err = ...
        if not E.is(err) then
            -- Its code, too, is what it would be at the other end of a connection.
            err = E.decode_stack(E.encode_stack(E.wrap(err)))
        end
        return E.raise_again(err)
    end
    local n = select('#', ...)
    if n == 0 then
        return
    end
    local results = { ... }
    for i = 1, n do
        if results[i] == nil then
            results[i] = NULL
        end
    end
    return unpack(results, 1, n)
end

-- A list of arguments as a server gets it: nils in between are there, those at its end are not.
local function length_of(args)
    return args and table.maxn(args) or 0
end

local function check_self(object, name, args, usage)
    if type(object) ~= 'table' then
        return dot_call(name)
    elseif args ~= nil and type(args) ~= 'table' then
        return complain(usage)
    end
end

function self.call(object, name, args)
    check_self(object, 'call', args, CALL_USAGE)
    local f, owner = function_at(tostring(name))
    if not callable(f) then
        return raise(E.client(33, format("Procedure '%s' is not defined", tostring(name))))
    end
    if owner ~= nil then
        return as_reply(pcall(f, owner, unpack(args or {}, 1, length_of(args))))
    end
    return as_reply(pcall(f, unpack(args or {}, 1, length_of(args))))
end

function self.eval(object, expression, args)
    check_self(object, 'eval', args, EVAL_USAGE)
    local chunk, problem = loadstring(tostring(expression), '=eval')
    if chunk == nil then
        return raise(E.client(PROC_LUA, problem))
    end
    return as_reply(pcall(chunk, unpack(args or {}, 1, length_of(args))))
end
netbox.self = self

netbox.tuple = tuples
netbox._internal = { core = core }

return netbox
