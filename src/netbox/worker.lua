-- The life of a connection, run by a system fiber of its own: connecting, logging in, reading the schema, reconnecting,
-- triggers. The native half moves requests and replies and wakes this fiber when something needs a decision.
--
--   initial -> auth -> [fetch_schema ->] active <-> fetch_schema        active -> graceful_shutdown
--   any -> error | error_reconnect (then, after reconnect_after, auth ...)        any -> closed
--
-- Between two waits nothing here may keep the connection object: only leaf functions take it from its weak box, so that
-- a forgotten connection is collected.
local _, load = ...

local E = load('cord.error')
local fiber = load('cord.fiber')
local log = load('cord.log')
local install_schema = load('cord.netbox.space')

local fraw = fiber._internal.raw
local bit = require('bit')
local band = bit.band
local pcall, tostring, type = pcall, tostring, type

local BROKEN, STALE, CLOSING, ORPHAN, QUEUED, IDLE, FLUSHED = 1, 2, 4, 8, 16, 32, 64
local NO_CONNECTION, INVALID_MSGPACK = 77, 20
local TIMED_OUT = 2
local READ, WRITE = 1, 2
local CALL_ARG_TUPLE_EXTENSION = 9
-- Shapes of results.
local TUPLES, BODY, OWN = 2, 5, 2 ^ 30
local SELECT_LIMIT = 0xffffffff

return function(core)
    local raw = core.raw

    local PHASE = { active = 2, fetch_schema = 1 }
    -- What ends a worker for good.
    local STOP = {}

    local function no_connection(message, prev)
        return E.make({ type = 'ClientError', code = NO_CONNECTION, message = message, prev = prev,
            fields = { name = 'NO_CONNECTION' } })
    end
    core.no_connection = no_connection

    local function system_error(rc, call, errno)
        local cause = E.socket(errno, raw.socket_name(rc), call)
        return no_connection(cause.message, cause)
    end

    local function tls_error(text)
        local cause = E.make({ type = 'SSLError', message = text })
        return no_connection(text, cause)
    end

    local function problem_of(rc)
        local kind, errno, call = raw.problem(rc)
        if kind == 'system' then
            return system_error(rc, call, errno)
        elseif kind == 'too big' then
            return no_connection('Response size too large')
        elseif kind == 'length' then
            return E.client(INVALID_MSGPACK, 'Invalid MsgPack - packet length')
        elseif kind == 'header' then
            return E.client(INVALID_MSGPACK, 'Invalid MsgPack - packet header')
        elseif kind == 'body' then
            return E.client(INVALID_MSGPACK, 'Invalid MsgPack - packet body')
        elseif kind == 'forked' then
            return no_connection('Connection belongs to the process this one was forked from')
        elseif kind == 'tls' then
            return tls_error(errno)
        end
        return no_connection('Peer closed')
    end
    core.problem_of = problem_of

    -- ------------------------------------------------------------ states

    local function set_state(box, rc, state, err)
        local conn = box[1]
        raw.phase(rc, PHASE[state] or 0)
        if conn == nil then
            return
        end
        conn.state = state
        conn.error = err and err.message or nil
    end

    local function broadcast(rc)
        raw.broadcast(rc)
    end

    local function run_triggers(box, name)
        local conn = box[1]
        if conn ~= nil then
            return core.run_triggers(conn, name)
        end
        return true
    end

    local function logged_triggers(box, name)
        local ok, err = run_triggers(box, name)
        if not ok then
            log.error('%s', tostring(err))
        end
    end

    -- ------------------------------------------------------------ waiting, with an eye on the end

    -- What the native half says meanwhile: STOP or an error object ends whatever is under way.
    local function interruption(p, rc)
        local bits = raw.attention(rc, p.wanted or 0)
        if band(bits, STALE) ~= 0 then
            p.stale = true
        end
        if band(bits, QUEUED) ~= 0 then
            p.queued = true
        end
        if band(bits, CLOSING + ORPHAN) ~= 0 then
            p.orphan = band(bits, ORPHAN) ~= 0
            return STOP
        end
        if band(bits, BROKEN) ~= 0 then
            return problem_of(rc)
        end
    end

    local function wait_fd(p, rc, what, deadline)
        local code = raw.wait_fd(rc, what, deadline)
        local stop = interruption(p, rc)
        if stop then
            return stop
        elseif code == TIMED_OUT then
            local cause = E.timed_out()
            return no_connection(cause.message, cause)
        elseif type(code) == 'string' then
            return no_connection(code)
        end
    end

    -- ------------------------------------------------------------ connecting

    local function resolve(p, rc)
        if p.host == nil or p.host == '' then
            return nil, { '127.0.0.1', '::1' }
        end
        local deadline = fraw.deadline(p.connect_timeout)
        local result = { raw.resolve(p.host, deadline) }
        local stop = interruption(p, rc)
        if stop then
            return stop
        elseif result[1] == true then
            table.remove(result, 1)
            return nil, result
        elseif type(result[1]) == 'string' then
            local cause = E.make({ type = 'SystemError', message = result[1] })
            return no_connection(result[1], cause)
        end
        local cause = E.timed_out()
        return no_connection(cause.message, cause)
    end

    local function open(p, rc, address, port, deadline)
        local errno = raw.open(rc, address, port)
        if errno then
            return system_error(rc, 'connect', errno)
        end
        local err = wait_fd(p, rc, WRITE, deadline)
        if err then
            return err
        end
        errno = raw.connected(rc)
        if errno then
            return system_error(rc, 'connect', errno)
        end
    end

    local function dial(p, rc)
        if p.fd then
            local errno = raw.set_fd(rc, p.fd)
            p.fd = nil
            p.deadline = fraw.deadline(p.connect_timeout)
            return errno and system_error(rc, 'fcntl', errno) or nil
        end
        local err, addresses, deadline
        if p.path == nil then
            err, addresses = resolve(p, rc)
            if err then
                return err
            end
        end
        if p.path == nil and p.port == nil then
            return no_connection('getaddrinfo: Servname not supported for ai_socktype')
        end
        deadline = fraw.deadline(p.connect_timeout)
        p.deadline = deadline
        if p.path ~= nil then
            return open(p, rc, 'unix/', p.path, deadline)
        end
        for i = 1, #addresses do
            err = open(p, rc, addresses[i], p.port, deadline)
            if err == nil or err == STOP then
                return err
            end
            if i < #addresses then
                raw.close(rc)
            end
        end
        return err
    end

    -- The handshake of an encrypted connection.
    local function secure(p, rc)
        if p.tls == nil then
            return nil
        end
        local problem = raw.secure(rc, p.tls)
        if problem then
            return tls_error(problem)
        end
        while true do
            local status, what = raw.handshake(rc)
            if status == nil then
                return nil
            elseif status == 'tls' then
                return tls_error(what)
            elseif status ~= 'wait' then
                return system_error(rc, 'recv', status)
            end
            local err = wait_fd(p, rc, what, p.deadline)
            if err then
                return err
            end
        end
    end

    local function greet(p, rc)
        while true do
            local status, version_id, protocol, uuid, salt = raw.greeting(rc)
            if status == 'ok' then
                if protocol ~= 'Binary' then
                    return no_connection('Unsupported protocol: ' .. protocol)
                end
                p.version_id, p.uuid, p.salt = version_id, uuid, salt
                return nil
            elseif status == 'invalid' then
                return no_connection('Invalid greeting')
            elseif status == 'eof' then
                return no_connection('Peer closed')
            elseif status == 'tls' then
                return tls_error(version_id)
            elseif status ~= nil then
                return system_error(rc, 'recv', status)
            end
            local err = wait_fd(p, rc, READ, p.deadline)
            if err then
                return err
            end
        end
    end

    -- ------------------------------------------------------------ requests of our own

    local function control(p, rc, kind, body)
        local code, result = raw.send(rc, kind, body, nil, OWN + BODY)
        while code == nil do
            local stop = interruption(p, rc)
            if stop then
                raw.forget(rc)
                return stop
            end
            code, result = raw.rewait(rc)
        end
        if code == true or code == core.DONE_STALE then
            return nil, result
        elseif type(code) == 'number' then
            return problem_of(rc)
        end
        return code
    end

    local function await(p, rc, future)
        while true do
            local code, value, err = raw.future_wait(future, nil, true)
            if code == true then
                return err, value
            end
            local stop = interruption(p, rc)
            if stop then
                return stop
            end
        end
    end

    local function identify(p, rc)
        p.protocol_version, p.features, p.server_auth_type = 0, {}, nil
        if p.version_id >= core.version_id(2, 10, 0) then
            local err, body = control(p, rc, 73, core.id_body(p.fetch_schema))
            if err == STOP then
                return STOP
            elseif err ~= nil then
                if err.code ~= 48 then
                    return err
                end
            else
                core.read_id(p, body)
            end
        end
        raw.tuple_args(rc, p.features[CALL_ARG_TUPLE_EXTENSION] == true)
        return core.check_required(p)
    end

    local function login(p, rc)
        if p.user == nil then
            return nil
        end
        local method = p.auth_type or p.server_auth_type or 'chap-sha1'
        local err, body = core.auth_body(p, method)
        if err then
            return err
        end
        return (control(p, rc, 7, body))
    end

    -- ------------------------------------------------------------ the schema

    local function read_schema(p, rc)
        while true do
            local known, changes = raw.schema_version(rc)
            local futures = {}
            local wanted = { 281, 289 }
            if p.version_id >= core.version_id(2, 2, 1) then
                wanted[#wanted + 1] = 277
            end
            if p.version_id >= core.version_id(2, 10, 5) then
                wanted[#wanted + 1] = 341
            end
            p.stale = false
            for i, id in ipairs(wanted) do
                local ok, future = raw.select(rc, id, 0, 2, 0, SELECT_LIMIT, nil, nil, nil, p, OWN + 16 + TUPLES)
                if ok ~= true then
                    return problem_of(rc)
                end
                futures[i] = future
            end
            local rows = {}
            for i, future in ipairs(futures) do
                local err, value = await(p, rc, future)
                if err == STOP then
                    return STOP
                elseif err ~= nil and (i < 3 or err.code ~= 36) then
                    return err
                end
                rows[wanted[i]] = value or {}
            end
            local version, later = raw.schema_version(rc)
            if later - changes <= (known == 0 and 1 or 0) then
                p.stale = false
                return nil, rows, version
            end
        end
    end

    local function adopt_schema(p, rc, box, rows, version)
        local conn = box[1]
        if conn ~= nil then
            install_schema(core, conn, rc, p, rows)
            conn.schema_version = version
        end
    end

    local function load_schema(p, rc, box)
        local err, rows, version = read_schema(p, rc)
        if err then
            return err
        end
        adopt_schema(p, rc, box, rows, version)
        logged_triggers(box, '_on_schema_reload')
        return nil
    end

    -- ------------------------------------------------------------ the handshake

    local function publish(p, rc, box)
        local conn = box[1]
        if conn == nil then
            return
        end
        conn.fd = raw.numbers(rc)
        conn._epoch = (conn._epoch or 0) + 1
        conn.protocol = 'Binary'
        conn.peer_uuid = p.uuid
        conn.peer_version_id = p.version_id
        conn.peer_protocol_version = p.protocol_version
        conn.peer_protocol_features = core.feature_table(p)
        -- Those of the last connection, if there was one, stay until the schema is there, and so do the objects.
        if conn.space == nil then
            core.lazy_spaces(conn, p)
        end
    end

    local function enter(box, rc, state)
        set_state(box, rc, state)
        broadcast(rc)
    end

    local function connect(p, rc, box)
        local err = dial(p, rc) or secure(p, rc) or greet(p, rc)
        if err then
            return err
        end
        local errno = raw.attach(rc)
        if errno then
            return system_error(rc, 'epoll_ctl', errno)
        end
        err = identify(p, rc)
        if err then
            return err
        end
        publish(p, rc, box)
        enter(box, rc, 'auth')
        err = login(p, rc)
        if err then
            return err
        end
        raw.track(rc, false)
        if p.fetch_schema then
            enter(box, rc, 'fetch_schema')
            raw.track(rc, true)
            err = load_schema(p, rc, box)
            if err then
                return err
            end
        end
        return nil
    end

    local function activate(p, rc, box)
        -- The triggers run in the state they announce.
        set_state(box, rc, 'active')
        p.was_active = true
        local ok, err = run_triggers(box, '_on_connect')
        if not ok then
            err = E.wrap(err)
            return err
        end
        broadcast(rc)
        return nil
    end

    -- ------------------------------------------------------------ active

    local function reload(p, rc, box)
        enter(box, rc, 'fetch_schema')
        local err = load_schema(p, rc, box)
        if err then
            return err
        end
        enter(box, rc, p.shutdown and 'graceful_shutdown' or 'active')
        return nil
    end

    local function drain(p, rc, box)
        p.queued = false
        local conn = box[1]
        if conn == nil then
            return STOP
        end
        return core.handle_queue(conn, raw.take(rc))
    end

    local function serve(p, rc, box)
        while true do
            local stop = interruption(p, rc)
            if stop then
                return stop
            end
            local err
            if p.queued then
                err = drain(p, rc, box)
            elseif p.stale and not p.shutdown then
                err = reload(p, rc, box)
            elseif p.shutdown and p.wanted ~= IDLE then
                -- The server wants to end: nothing new is sent, what is in flight is waited for.
                p.wanted = IDLE
                enter(box, rc, 'graceful_shutdown')
            elseif p.shutdown and select(2, raw.numbers(rc)) == 0 then
                err = no_connection('Peer closed')
            else
                fraw.park()
            end
            if err then
                return err
            end
        end
    end

    -- ------------------------------------------------------------ the end of a connection

    -- Seconds close() waits for a peer that does not read, and for one that does not say that it has read everything.
    local FLUSH_TIME, DRAIN_TIME = 10, 0.5

    local function is_over(rc)
        local fd = raw.numbers(rc)
        return fd < 0 or raw.problem(rc) ~= nil
    end

    -- Sends what close() found queued. If replies are still to come, the peer is told that no more requests will, and its
    -- end is waited for: closing at once would make the system throw away what the peer has not read yet.
    local function flush_out(p, rc)
        p.wanted = FLUSHED
        local deadline = fraw.deadline(FLUSH_TIME)
        while not is_over(rc) and select(3, raw.numbers(rc)) > 0 do
            raw.attention(rc, FLUSHED)
            if fraw.park(deadline) == TIMED_OUT then
                break
            end
        end
        raw.attention(rc, 0)
        p.wanted = 0
        local last = select(2, raw.numbers(rc))
        if last == 0 or is_over(rc) then
            return
        end
        raw.half_close(rc)
        deadline = fraw.deadline(DRAIN_TIME)
        while not is_over(rc) do
            raw.attention(rc, 0)
            if fraw.park(deadline) == TIMED_OUT then
                local left = select(2, raw.numbers(rc))
                if left == last then
                    return
                end
                last, deadline = left, fraw.deadline(DRAIN_TIME)
            end
        end
    end

    local function announce_end(p, rc, box, state, err)
        set_state(box, rc, state, err)
        if p.was_active then
            p.was_active = false
            logged_triggers(box, '_on_disconnect')
        end
    end

    local function remember(box, err)
        local conn = box[1]
        if conn ~= nil then
            conn._last_error = err
        end
    end

    local function log_failure(p, err)
        local previous = p.logged
        local same = previous ~= nil and previous.code == err.code
            and (previous.message == err.message or (previous.prev ~= nil and err.prev ~= nil
            and previous.prev.code == err.prev.code and previous.prev.errno == err.prev.errno))
        p.logged = err
        if p.reconnect_after then
            log[same and 'verbose' or 'warn']('%s: %s', p.name, err.message)
        end
    end

    -- What has arrived besides replies counts, though the stream has ended: pushes of requests that were answered.
    local function take_rest(rc, box)
        local conn = box[1]
        if conn ~= nil and select(5, raw.numbers(rc)) > 0 then
            core.handle_queue(conn, raw.take(rc))
        end
    end

    local function fail_connection(p, rc, box, err)
        take_rest(rc, box)
        remember(box, err)
        raw.phase(rc, 0)
        raw.close(rc)
        raw.fail_all(rc, err)
        p.shutdown, p.wanted, p.queued, p.stale = nil, nil, nil, nil
        local again = p.reconnect_after ~= nil
        announce_end(p, rc, box, again and 'error_reconnect' or 'error', err)
        log_failure(p, err)
        broadcast(rc)
        return again
    end

    local function finish(p, rc, box)
        take_rest(rc, box)
        local err = no_connection('Connection closed')
        remember(box, err)
        raw.phase(rc, 0)
        raw.close(rc)
        raw.fail_all(rc, err)
        announce_end(p, rc, box, 'closed', err)
        broadcast(rc)
    end

    local function pause(p, rc)
        local deadline = fraw.deadline(p.reconnect_after)
        while true do
            local stop = interruption(p, rc)
            if stop == STOP then
                return STOP
            end
            if fraw.park(deadline) == TIMED_OUT then
                return nil
            end
        end
    end

    local function retire(box, rc)
        local conn = box[1]
        if conn ~= nil then
            conn._worker_done = true
        end
        broadcast(rc)
    end

    local function live(p, rc, box)
        while true do
            local err = connect(p, rc, box) or activate(p, rc, box) or serve(p, rc, box)
            if err == STOP or interruption(p, rc) == STOP then
                if not p.orphan then
                    flush_out(p, rc)
                end
                return finish(p, rc, box)
            end
            if not fail_connection(p, rc, box, err) then
                return
            end
            if pause(p, rc) == STOP then
                return finish(p, rc, box)
            end
        end
    end

    -- The fiber's function: `p` holds the connection's parameters, `box` the connection object, weakly.
    return function(p, rc, box)
        raw.bind(rc)
        local ok, err = pcall(live, p, rc, box)
        if not ok then
            p.reconnect_after = nil
            pcall(fail_connection, p, rc, box, E.wrap(err))
            log.error('%s: %s', p.name, tostring(err))
        end
        retire(box, rc)
    end
end
