-- cord.pool: several servers behind one object. It connects to all, asks each again and again whether it is alive and
-- writable, sends a request to one that suits, and to another when it could not be sent. A request that was sent is never
-- sent again unless the caller says that this does no harm: whoever waits for it learns that its fate is not known.
local _, load = ...

local E = load('cord.error')
local raise = E.raise_at_caller
local fiber = load('cord.fiber')
local netbox = load('cord.netbox')

local fraw, fail = fiber._internal.raw, fiber._internal.fail_at_caller
-- Not named pairs, lest LuaJIT compiles loops that a finalizer may never leave: docs/jit.md.
local type, every, ipairs, tostring, tonumber, error, pcall = type, pairs, ipairs, tostring, tonumber, error, pcall
local setmetatable, unpack, format = setmetatable, unpack, string.format

local NO_CONNECTION = 77

local methods = {}
local meta = { __index = methods }

-- For people who type at it.
function meta.__tostring(self)
    local healthy = 0
    for _, instance in ipairs(self.instances) do
        healthy = healthy + (instance.healthy and 1 or 0)
    end
    return format('pool: %d servers, %d healthy%s', #self.instances, healthy, self.closed and ' (closed)' or '')
end

local DEFAULTS = { reconnect_after = 0.5, ping_interval = 1, ping_timeout = 1, timeout = 10 }

local function illegal(message)
    return raise(E.illegal_params(message))
end

-- ---------------------------------------------------------------- health

-- Whether a server takes writes: what `box.info.ro` says; where nobody may ask, it is believed to.
local function probe_ro(conn, timeout)
    local ok, ro = pcall(conn.eval, conn, 'return box.info.ro', {}, { timeout = timeout })
    if ok then
        return ro == true
    elseif ro.type == 'TimedOut' or ro.code == NO_CONNECTION then
        return nil, ro
    end
    return false
end

-- One look at one server: sets what the pool knows of it.
local function check(instance, options)
    local conn = instance.conn
    if not conn:is_connected() then
        instance.healthy, instance.error = false, conn.error
        return
    end
    if not conn:ping { timeout = options.ping_timeout } then
        instance.healthy, instance.error = false, conn.error or 'no answer to a ping'
        return
    end
    local ok, ro, err = pcall(options.probe, conn, options.ping_timeout)
    if not ok then
        ro, err = nil, ro
    end
    if ro == nil then
        instance.healthy, instance.error = false, err and tostring(err) or 'no answer to the probe'
        return
    end
    instance.ro, instance.healthy, instance.error = ro, true, nil
end

-- A fiber a server. It knows the pool weakly: a forgotten pool ends.
local function watch(weak, instance, options)
    while true do
        check(instance, options)
        if weak[1] == nil or weak[1].closed then
            return
        end
        weak[1].signal()
        fiber.sleep(instance.healthy and options.ping_interval or options.ping_interval / 4)
        if weak[1] == nil or weak[1].closed then
            return
        end
    end
end

-- ---------------------------------------------------------------- making one

local OPTIONS = {
    reconnect_after = 'number', ping_interval = 'number', ping_timeout = 'number', timeout = 'number',
    probe = 'function', connect = 'table', wait_connected = 'any',
}

local function read_options(opts)
    local result = {}
    for key, value in every(DEFAULTS) do
        result[key] = value
    end
    for key, value in every(opts or {}) do
        local kind = OPTIONS[key]
        if kind == nil then
            return nil, format("unexpected option '%s'", tostring(key))
        elseif kind ~= 'any' and type(value) ~= kind then
            return nil, format("options parameter '%s' should be of type %s", key, kind)
        end
        result[key] = value
    end
    result.probe = result.probe or probe_ro
    return result
end

local function connection(source, options)
    local uri, opts = source, {}
    for key, value in every(options.connect or {}) do
        opts[key] = value
    end
    if type(source) == 'table' and source.uri ~= nil then
        uri = source.uri
        for key, value in every(source) do
            if key ~= 'uri' and key ~= 'name' and key ~= 'params' then
                opts[key] = value
            end
        end
    end
    opts.wait_connected = false
    opts.reconnect_after = opts.reconnect_after or options.reconnect_after
    if type(source) == 'table' and source.params ~= nil then
        uri = { uri = uri, params = source.params }
    end
    return netbox.connect(uri, opts)
end

local function name_of(source, i)
    if type(source) == 'table' then
        return source.name or (type(source.uri) == 'string' and source.uri) or tostring(i)
    end
    return tostring(source)
end

local pool = {}

function pool.connect(servers, opts)
    if type(servers) ~= 'table' or #servers == 0 then
        return illegal('usage: pool.connect({uri, ...}[, opts])')
    end
    local options, problem = read_options(opts)
    if problem then
        return illegal(problem)
    end
    local instances, by_name = {}, {}
    for i, source in ipairs(servers) do
        local instance = { name = name_of(source, i), conn = connection(source, options), healthy = false }
        instances[i] = instance
        by_name[instance.name] = instance
    end
    -- Fibers that wait for a server that suits.
    local waiting = {}
    local self = setmetatable({
        instances = instances,
        by_name = by_name,
        options = options,
        turn = 0,
        waiting = waiting,
        closed = false,
        signal = function()
            for f in every(waiting) do
                pcall(fiber.wakeup, f)
            end
        end,
    }, meta)
    local weak = setmetatable({ self }, { __mode = 'v' })
    for _, instance in ipairs(instances) do
        local f = fiber.new(watch, weak, instance, options)
        fraw.set_system(f)
        f:name('pool ' .. instance.name, { truncate = true })
    end
    if options.wait_connected ~= false and options.wait_connected ~= nil then
        self:wait_connected(tonumber(options.wait_connected))
    end
    return self
end

-- ---------------------------------------------------------------- choosing

local SUITS = {
    any = function()
        return true
    end,
    rw = function(instance)
        return not instance.ro
    end,
    ro = function(instance)
        return instance.ro == true
    end,
}
-- Preferences fall back to any.
local FALLBACK = { prefer_rw = 'rw', prefer_ro = 'ro' }

-- The next healthy server that suits and was not tried yet, in turn; nil if there is none.
local function choose(self, suits, tried)
    local n = #self.instances
    for i = 1, n do
        local at = (self.turn + i - 1) % n + 1
        local instance = self.instances[at]
        if not tried[instance] and instance.healthy and instance.conn:is_connected() and suits(instance) then
            self.turn = at
            return instance
        end
    end
end

local function pick(self, mode, tried)
    if FALLBACK[mode] then
        return choose(self, SUITS[FALLBACK[mode]], tried) or choose(self, SUITS.any, tried)
    elseif SUITS[mode] then
        return choose(self, SUITS[mode], tried)
    end
    local instance = self.by_name[mode]
    return instance and not tried[instance] and instance.conn:is_connected() and instance or nil
end

local function pause(self, deadline)
    local me = fiber.self()
    self.waiting[me] = (self.waiting[me] or 0) + 1
    local code = fraw.park(deadline)
    self.waiting[me] = self.waiting[me] > 1 and self.waiting[me] - 1 or nil
    return code
end

local function nobody(self, mode)
    local reasons = {}
    for i, instance in ipairs(self.instances) do
        reasons[i] = format('%s: %s', instance.name,
            instance.error or instance.conn.error or (instance.healthy and (instance.ro and 'read only' or 'writable'))
                or instance.conn.state)
    end
    return E.client(NO_CONNECTION, format("No server suits '%s' (%s)", tostring(mode), table.concat(reasons, '; ')))
end

-- ---------------------------------------------------------------- requests

local function unknown_fate(err, instance)
    return E.make {
        type = 'ClientError', code = NO_CONNECTION, prev = err, fields = { name = 'NO_CONNECTION', sent = true },
        message = format('%s: %s; the request was sent, and it is not known whether it was executed', instance.name,
            err.message),
    }
end

local function results(value)
    if type(value) == 'table' then
        return unpack(value)
    end
    return value
end

local function check_self(self, name)
    if type(self) ~= 'table' or type(self.instances) ~= 'table' then
        return illegal(format('Use pool:%s(...) instead of pool.%s(...)', name, name))
    end
end

local function check_timeout(timeout)
    if timeout ~= nil and (type(timeout) == 'table' or tonumber(timeout) == nil) then
        return illegal('timeout should be a number of seconds, got ' .. type(timeout))
    end
end

-- Sends to one server after the other until one took it; then the request is that server's.
local function request(self, method, name, args, opts)
    check_self(self, method)
    if opts ~= nil and type(opts) ~= 'table' then
        return illegal('options should be a table')
    end
    opts = opts ~= nil and opts or {}
    check_timeout(opts.timeout)
    local mode = opts.mode or 'any'
    if SUITS[mode] == nil and FALLBACK[mode] == nil and self.by_name[mode] == nil then
        return illegal(format("no mode or server '%s' in this pool", tostring(mode)))
    end
    local timeout = tonumber(opts.timeout or self.options.timeout)
    local deadline = fraw.deadline(timeout)
    local started = fiber.clock()
    local tried = {}
    while true do
        if self.closed then
            return raise(E.client(NO_CONNECTION, 'The pool is closed'))
        end
        local instance = pick(self, mode, tried)
        if instance == nil then
            local code = pause(self, deadline)
            tried = {}
            if code == 2 then
                return raise(nobody(self, mode))
            elseif code then
                return fail(code)
            end
        else
            local sent, future = pcall(instance.conn[method], instance.conn, name, args, { is_async = true })
            if sent then
                local left = timeout - (fiber.clock() - started)
                local value, err = future:wait_result(left > 0 and left or 0)
                if err == nil then
                    return results(value)
                elseif err.type == 'TimedOut' then
                    future:discard()
                    return E.raise_again(err)
                elseif instance.conn:is_connected() or err.code ~= NO_CONNECTION then
                    return E.raise_again(err)
                elseif not opts.idempotent then
                    return raise(unknown_fate(err, instance))
                end
                instance.healthy = false
            elseif type(future) == 'cdata' and future.code == NO_CONNECTION then
                instance.healthy = false
            else
                -- What cannot be encoded is the caller's own fault.
                return error(future, 0)
            end
            tried[instance] = true
        end
    end
end

function methods.call(self, name, args, opts)
    return request(self, 'call', name, args, opts)
end

function methods.eval(self, expression, args, opts)
    return request(self, 'eval', expression, args, opts)
end

-- The connection to a server by its name, or to one that suits a mode: nil if there is none now.
function methods.connection(self, mode)
    check_self(self, 'connection')
    if mode ~= nil and SUITS[mode] == nil and FALLBACK[mode] == nil and self.by_name[mode] == nil then
        return nil
    end
    local instance = self.by_name[mode] or pick(self, mode or 'any', {})
    return instance and instance.conn or nil
end

-- Waits until `count` servers (default all) are healthy. Whether they are.
function methods.wait_connected(self, timeout, count)
    check_self(self, 'wait_connected')
    check_timeout(timeout)
    local deadline = timeout ~= nil and fraw.deadline(tonumber(timeout)) or nil
    count = tonumber(count) or #self.instances
    while true do
        local healthy = 0
        for _, instance in ipairs(self.instances) do
            healthy = healthy + (instance.healthy and 1 or 0)
        end
        if healthy >= count then
            return true
        end
        local code = pause(self, deadline)
        if code == 2 then
            return false
        elseif code then
            return fail(code)
        end
    end
end

function methods.info(self)
    check_self(self, 'info')
    local result = {}
    for _, instance in ipairs(self.instances) do
        result[instance.name] = {
            state = instance.conn.state,
            healthy = instance.healthy,
            ro = instance.ro,
            error = instance.error or instance.conn.error,
        }
    end
    return result
end

function methods.close(self)
    check_self(self, 'close')
    self.closed = true
    for _, instance in ipairs(self.instances) do
        instance.healthy = false
        instance.conn:close()
    end
    self.signal()
end

return pool
