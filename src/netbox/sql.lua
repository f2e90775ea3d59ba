-- execute, prepare, unprepare.
local _, load = ...

local E = load('cord.error')
local raise = E.raise_at_caller
local msgpack = load('cord.msgpack')
local tuples = load('cord.netbox.tuple')

local type, ipairs, setmetatable, error = type, ipairs, setmetatable, error

local UNSUPPORTED, SQL_PREPARE = 5, 210
local EXECUTE, PREPARE = 11, 13
local BODY = 5
local KEY = { DATA = 0x30, METADATA = 0x32, BIND_METADATA = 0x33, BIND_COUNT = 0x34, SQL_TEXT = 0x40, SQL_BIND = 0x41,
    SQL_INFO = 0x42, STMT_ID = 0x43, OPTIONS = 0x2b }

return function(core, methods)
    local raw = core.raw

    local function names(list)
        local result = {}
        for i, field in ipairs(list or {}) do
            result[i] = {
                name = field[0],
                type = field[1],
                collation = field[2],
                is_nullable = field[3],
                is_autoincrement = field[4],
                span = field[5],
            }
            if field[5] == nil and result[i].span ~= nil then
                result[i].span = field[0]
            end
        end
        return result
    end

    local function decode(body)
        local reply = raw.decode(body)
        if type(reply) ~= 'table' then
            return error(E.client(20, 'Invalid MsgPack - packet body'), 0)
        end
        return reply
    end

    local function executed(body)
        local reply = decode(body)
        if reply[KEY.SQL_INFO] ~= nil then
            local info = reply[KEY.SQL_INFO]
            return { row_count = info[0], autoincrement_ids = info[1] }
        end
        local metadata = names(reply[KEY.METADATA])
        local meta = tuples.metatable_of(metadata)
        local rows = reply[KEY.DATA] or {}
        for i = 1, #rows do
            setmetatable(rows[i], meta)
        end
        return { metadata = metadata, rows = rows }
    end

    local function prepared(body)
        local reply = decode(body)
        return {
            stmt_id = reply[KEY.STMT_ID],
            param_count = reply[KEY.BIND_COUNT],
            params = names(reply[KEY.BIND_METADATA]),
            metadata = reply[KEY.METADATA] and names(reply[KEY.METADATA]) or nil,
        }
    end

    local function nothing()
        return nil
    end

    local function request(conn, kind, body, opts, finish)
        opts = opts or {}
        core.check_request_options(opts)
        if opts._thread_id ~= nil then
            conn = core.threaded(conn, opts._thread_id)
        end
        if opts.buffer ~= nil or opts.return_raw then
            return core.options.run(core.op_bare, conn, opts, core.deadline(opts), BODY, 16, kind, BODY, body)
        end
        if opts.is_async then
            local future = core.launched(conn, core.op_bare(conn, conn, kind, BODY, body))
            raw.future_part(future, core.FINISH, finish)
            return future
        end
        local deadline = core.deadline(opts)
        local reply = core.slow(core.op_bare, conn, kind, BODY, body, nil, nil, deadline,
            core.op_bare(conn, deadline, kind, BODY, body))
        return finish(reply)
    end

    local function statement(query)
        if type(query) == 'number' then
            return KEY.STMT_ID, msgpack.encode(query)
        end
        return KEY.SQL_TEXT, msgpack.encode(query)
    end

    function methods.execute(conn, query, parameters, sql_opts, opts)
        if not core.is_connection(conn) then
            return core.dot_call('execute')
        elseif sql_opts ~= nil then
            return raise(E.client(UNSUPPORTED, 'execute does not support options'))
        end
        local key, packed = statement(query)
        local body = core.options.map { key, packed, KEY.SQL_BIND, msgpack.encode(parameters or {}), KEY.OPTIONS, '\144' }
        return request(conn, EXECUTE, body, opts, executed)
    end

    function methods.prepare(conn, query, _, sql_opts, opts)
        if not core.is_connection(conn) then
            return core.dot_call('prepare')
        elseif type(query) ~= 'string' then
            return raise(E.client(SQL_PREPARE,
                'Failed to prepare SQL statement: expected string as SQL statement'))
        elseif sql_opts ~= nil then
            return raise(E.client(UNSUPPORTED, 'prepare does not support options'))
        end
        local key, packed = statement(query)
        return request(conn, PREPARE, core.options.map { key, packed }, opts, prepared)
    end

    function methods.unprepare(conn, query, _, sql_opts, opts)
        if not core.is_connection(conn) then
            return core.dot_call('unprepare')
        elseif type(query) ~= 'number' then
            return raise(E.illegal_params('query id is expected to be numeric'))
        elseif sql_opts ~= nil then
            return raise(E.client(UNSUPPORTED, 'unprepare does not support options'))
        end
        local key, packed = statement(query)
        return request(conn, PREPARE, core.options.map { key, packed }, opts, nothing)
    end
end
