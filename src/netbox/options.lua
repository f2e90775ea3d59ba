-- Options of requests that want more than the plain result: buffer, skip_header, return_raw, on_push, fetch_pos, after.
-- Such a request gets its reply's whole body as a string, and what it wants is made of that here.
local _, load = ...

local E = load('cord.error')
local msgpack = load('cord.msgpack')
local ffi = require('ffi')

local type, unpack, error, pcall = type, unpack, error, pcall
local char, sub = string.char, string.sub

local INVALID_MSGPACK, UNSUPPORTED, ITERATOR_POSITION = 20, 5, 247
local NOTHING, VALUES, TUPLE, TRUE, BODY = 0, 1, 3, 4, 5
local KEY_DATA, KEY_POSITION, KEY_FORMATS = 0x30, 0x35, 0x60

return function(core)
    local raw = core.raw
    local options = { BODY = BODY }

    local function broken()
        return E.client(INVALID_MSGPACK, 'Invalid MsgPack - packet body')
    end

    -- Where the value of a key in a reply's body begins and ends; nil if it is not there.
    local function locate(body, key)
        local from, to = raw.locate(body, key)
        if from == false then
            return error(broken(), 0)
        end
        return from, to
    end
    options.locate = locate

    local function append(ibuf, bytes)
        local n = #bytes
        ffi.copy(ibuf:alloc(n), bytes, n)
        return n
    end

    -- The data's array, packed; an empty one if there is none.
    local function packed_data(body)
        local from, to = locate(body, KEY_DATA)
        return from and sub(body, from, to - 1) or '\144'
    end

    local function into_buffer(opts, body)
        if not opts.skip_header then
            return append(opts.buffer, body)
        end
        return append(opts.buffer, packed_data(body))
    end

    local function as_object(shape, body)
        if shape == NOTHING or shape == TRUE then
            return nil
        end
        local from, to = locate(body, KEY_FORMATS)
        local formats = from and to - from > 1 and sub(body, from, to - 1) or nil
        local data = packed_data(body)
        if shape ~= TUPLE then
            return msgpack.ext.object(data, formats)
        end
        local iterator = msgpack.ext.object(data, formats):iterator()
        if iterator:decode_array_header() == 0 then
            return nil
        end
        return iterator:take()
    end

    local function position_of(body)
        local from = locate(body, KEY_POSITION)
        return from and (msgpack.decode(body, from)) or nil
    end

    -- What a body's finisher gives: value, and the position if one was asked for.
    local function maker(conn, opts, shape, reference)
        return function(body)
            if opts.buffer ~= nil then
                return into_buffer(opts, body)
            elseif opts.return_raw and shape ~= 'count' then
                return as_object(shape, body)
            end
            local value = raw.read(conn._raw, body, shape, reference)
            if value == false and shape ~= TRUE then
                return error(broken(), 0)
            end
            return value
        end
    end

    local function body_request(conn, deadline, op)
        return core.slow(op, conn, nil, nil, nil, nil, nil, deadline, op(conn, deadline))
    end

    -- Pushes of synchronous requests go to their functions by number; the worker calls them.
    local function run_sync(op, conn, opts, deadline, shape, make, a, b, c, d, e)
        local handler = opts.on_push and core.add_push_handler(conn, { func = opts.on_push, ctx = opts.on_push_ctx,
            buffer = opts.buffer, skip_header = opts.skip_header })
        local function body_op(conn_, wait)
            return op(conn_, wait, a, b, c, d, e, BODY + (handler or 0) * 2 ^ 32)
        end
        local ok, body = pcall(body_request, conn, deadline, body_op)
        local code
        if handler then
            code = ok and core.wait_pushes(conn, deadline)
            core.remove_push_handler(conn, handler)
        end
        if not ok then
            return (type(body) == 'string' and E.complain or error)(body, 0)
        elseif code then
            return core.fail(code)
        end
        local value = make(body)
        if opts.buffer ~= nil or opts.return_raw then
            if opts.fetch_pos then
                return value, position_of(body)
            end
            return value
        elseif shape == VALUES then
            return unpack(value or {})
        elseif opts.fetch_pos then
            return value, position_of(body)
        elseif value == nil then
            return
        end
        return value
    end

    local function finisher(opts, make)
        return function(body)
            local value = make(body)
            if opts.fetch_pos then
                return { value, position_of(body) }
            end
            return value
        end
    end

    -- Whether a request with these options needs this file.
    function options.is_special(opts)
        return opts.buffer ~= nil or opts.return_raw ~= nil or opts.on_push ~= nil or opts.fetch_pos ~= nil
            or opts.skip_header ~= nil
    end

    -- A request with special options: `op` as in netbox.lua; `shape` and `reference` of its plain result.
    function options.run(op, conn, opts, deadline, shape, reference, a, b, c, d, e)
        local make = maker(conn, opts, shape, reference)
        if opts.is_async then
            local future = core.launched(conn, op(conn, conn, a, b, c, d, e, BODY))
            raw.future_part(future, core.FINISH, finisher(opts, make))
            if opts.buffer ~= nil then
                raw.future_part(future, core.ON_PUSH, function(body)
                    return into_buffer(opts, body)
                end)
            end
            return future
        end
        return run_sync(op, conn, opts, deadline, shape, make, a, b, c, d, e)
    end

    -- The value of `after` as requests take it: a string or a table; or an error.
    function options.after(conn, opts)
        local after = opts.after
        if after == nil and not opts.fetch_pos then
            return nil
        end
        if not (conn.peer_protocol_features or {}).pagination then
            return nil, E.client(UNSUPPORTED, 'Remote server does not support pagination')
        end
        if after ~= nil and type(after) ~= 'string' and type(after) ~= 'table' then
            return nil, E.client(ITERATOR_POSITION, 'Iterator position is invalid')
        end
        return after
    end

    -- A body as the server's own encoder would make it: {key: bytes, ...}.
    function options.map(list)
        local parts = { char(0x80 + #list / 2) }
        for i = 1, #list, 2 do
            parts[#parts + 1] = char(list[i]) .. list[i + 1]
        end
        return table.concat(parts)
    end

    return options
end
