-- Streams: requests of one are executed one after another, and transactions live in them. A stream is the connection with
-- a number: what it does not have itself it finds there.
local _, load = ...

local E = load('cord.error')
local raise, complain = E.raise_at_caller, E.complain
local msgpack = load('cord.msgpack')
local ffi = require('ffi')

-- Not named pairs, lest LuaJIT compiles loops that a finalizer may never leave: docs/jit.md.
local type, setmetatable, rawset, next, every = type, setmetatable, rawset, next, pairs
local upper, gsub = string.upper, string.gsub

local BEGIN, COMMIT, ROLLBACK = 14, 15, 16
local NOTHING = 0
local KEY = { TIMEOUT = 0x56, TXN_ISOLATION = 0x59, IS_SYNC = 0x61 }
local ISOLATION = { DEFAULT = 0, READ_COMMITTED = 1, READ_CONFIRMED = 2, BEST_EFFORT = 3, LINEARIZABLE = 4 }

return function(core, methods)
    local stream_methods = {}

    -- A metatable whose objects are shown, and completed at a console, as what `shown` gives.
    local function showing(meta, shown)
        meta.__metatable, meta.__serialize, meta.__autocomplete = false, shown, shown
        return meta
    end

    -- A space whose requests belong to the stream; everything but its connection and indexes is the space's own.
    local function stream_space(stream, space)
        local proxy = { connection = stream }
        proxy.index = setmetatable({}, showing({
            __index = function(indexes, key)
                local index = space.index[key]
                if index == nil then
                    return nil
                end
                local own = setmetatable({ space = proxy }, showing({ __index = index }, function()
                    return index
                end))
                rawset(indexes, key, own)
                return own
            end,
        }, function()
            return space.index
        end))
        return setmetatable(proxy, showing({ __index = space }, function()
            return space
        end))
    end

    local function stream_spaces(stream, conn)
        return setmetatable({}, showing({
            __index = function(cache, key)
                local space = conn.space and conn.space[key]
                if space == nil then
                    return nil
                end
                local proxy = stream_space(stream, space)
                rawset(cache, key, proxy)
                return proxy
            end,
        }, function()
            return conn.space
        end))
    end

    function methods.new_stream(conn)
        if not core.is_connection(conn) then
            return core.dot_call('new_stream')
        end
        conn = conn._conn or conn
        conn._last_stream_id = conn._last_stream_id + 1
        local stream = { _conn = conn, _stream_id = conn._last_stream_id }
        local spaces, version
        return setmetatable(stream, showing({
            __index = function(_, key)
                if key == 'space' then
                    if conn.space == nil then
                        return nil
                    elseif spaces == nil or version ~= conn.space then
                        spaces, version = stream_spaces(stream, conn), conn.space
                    end
                    return spaces
                end
                local method = stream_methods[key]
                if method ~= nil then
                    return method
                end
                return conn[key]
            end,
        }, function()
            local result = core.serialize(conn)
            result.stream_id = stream._stream_id
            return result
        end))
    end

    -- ------------------------------------------------------------ transactions

    local function isolation_of(value)
        if type(value) == 'number' and value >= 0 and value <= 4 and value % 1 == 0 then
            return value
        elseif type(value) == 'string' then
            return ISOLATION[upper((gsub(value, '-', '_')))]
        end
    end

    local function illegal(message)
        return nil, E.illegal_params(message)
    end

    -- The packed body of transaction options; or nil and what to raise: a text or an error object.
    local function body_of(opts)
        if opts == nil then
            return ''
        elseif type(opts) ~= 'table' then
            return nil, 'txn_opts should be a table'
        end
        local list = {}
        if opts.timeout ~= nil then
            if type(opts.timeout) ~= 'number' or opts.timeout <= 0 then
                return nil, 'timeout must be a number greater than 0'
            end
            list[#list + 1] = KEY.TIMEOUT
            list[#list + 1] = msgpack.encode(ffi.cast('double', opts.timeout))
        end
        if opts.txn_isolation ~= nil then
            local level = isolation_of(opts.txn_isolation)
            if level == nil then
                return illegal('txn_isolation must be one of box.txn_isolation_level (keys or values)')
            end
            list[#list + 1] = KEY.TXN_ISOLATION
            list[#list + 1] = msgpack.encode(level)
        end
        if opts.is_sync ~= nil then
            if type(opts.is_sync) ~= 'boolean' then
                return nil, 'is_sync must be a boolean'
            elseif not opts.is_sync then
                return nil, 'is_sync can only be true'
            end
            list[#list + 1] = KEY.IS_SYNC
            list[#list + 1] = '\195'
        end
        return #list > 0 and core.options.map(list) or ''
    end

    local TXN_OPTIONS = { timeout = true, txn_isolation = true, is_sync = true }

    local function check_options(opts)
        if opts == nil then
            return nil
        elseif type(opts) ~= 'table' then
            return E.illegal_params('options should be a table')
        end
        for key in every(opts) do
            if TXN_OPTIONS[key] and key ~= 'timeout' then
                return E.illegal_params('options are either in the wrong order or mixed up')
            end
        end
    end

    local function send(stream, name, kind, txn_opts, opts)
        if not core.is_connection(stream) then
            return core.dot_call(name)
        end
        local body, problem = body_of(txn_opts)
        if body == nil then
            if type(problem) == 'string' then
                return complain(problem)
            end
            return raise(problem)
        end
        local bad = check_options(opts)
        if bad then
            return raise(bad)
        end
        return core.with_options(core.op_bare, stream, opts or {}, kind, NOTHING, body)
    end

    function stream_methods.begin(stream, txn_opts, opts)
        return send(stream, 'begin', BEGIN, txn_opts, opts)
    end

    -- commit([txn_opts,] [opts]): one table of request options alone is understood too.
    function stream_methods.commit(stream, txn_opts, opts)
        if opts == nil and type(txn_opts) == 'table' and txn_opts.is_sync == nil and next(txn_opts) ~= nil then
            txn_opts, opts = nil, txn_opts
        end
        return send(stream, 'commit', COMMIT, txn_opts, opts)
    end

    function stream_methods.rollback(stream, opts)
        return send(stream, 'rollback', ROLLBACK, nil, opts)
    end

end
