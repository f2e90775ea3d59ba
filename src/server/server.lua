-- cord.server: an IPROTO server in this process, served by fibers.
local raw, load = ...

local E = load('cord.error')
local fiber = load('cord.fiber')
local msgpack = load('cord.msgpack')
local tuples = load('cord.netbox.tuple')
local tls = load('cord.tls')
local uri = load('cord.uri')
local uuid = load('cord.uuid')

local fraw = fiber._internal.raw
-- Not named pairs, lest LuaJIT compiles loops that a finalizer may never leave: docs/jit.md.
local type, every, ipairs, next, tostring, tonumber, setmetatable, getmetatable, pcall, error, select =
    type, pairs, ipairs, next, tostring, tonumber, setmetatable, getmetatable, pcall, error, select
local format, stderr = string.format, io.stderr

local server, methods = {}, {}
local meta = { __index = methods, __metatable = 'cord.server' }
local ACCESS_DENIED, CREDS_MISMATCH = 42, 47
-- The version of the schema that the system spaces are of: as in `_schema`.
local DD_VERSION = '3.9.0'

-- Positions of the table that native code reads: see `kept` in dispatch.rs.
local DESCRIBE, WRAP, INVOKE, HOOK, SESSIONS, EVALS, REFUSE, RESOLVE, REFERENCES, FORMATS, SERIALIZE,
    FUNCTIONS = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16
local CONNECT, DISCONNECT, AUTH = 1, 2, 4

-- Every server that has not been stopped and drained, by number.
local live = {}
-- The objects scripts have of sessions, by id.
local sessions = {}

local function fail(message, level)
    return E.raise(E.illegal_params(message), (level or 2) + 1)
end

local function text_of(value)
    local ok, text = pcall(tostring, value)
    return ok and type(text) == 'string' and text or type(value)
end

-- What the system refused; where it gave no number, with the library's own text.
local function system_error(class, errno, what, text)
    local reason = errno ~= 0 and text:gsub(' %(os error %d+%)$', '') or text
    return E.decode_stack({ { type = class, message = what .. ': ' .. reason, file = '', errno = errno } })
end

-- ---------------------------------------------------------------- what native code calls

-- Code, message and stack (MessagePack) of whatever was raised.
local function describe(value)
    local list = E.encode_stack(E.wrap(value))
    local stack = {}
    for i, entry in ipairs(list) do
        local fields = entry.fields and setmetatable(entry.fields, msgpack.map_mt)
        if entry.type == 'LuajitError' and fields ~= nil then
            -- What was raised is for this process: its text is the message already.
            fields.value = nil
            fields = next(fields) ~= nil and fields or nil
        end
        stack[i] = { [0] = entry.type, entry.file, entry.line, entry.message, entry.errno, entry.code, fields }
    end
    local ok, bytes = pcall(msgpack.encode, { [0] = stack })
    if not ok then
        -- A payload that has no MessagePack form is left out.
        for _, entry in ipairs(stack) do
            entry[6] = nil
        end
        bytes = msgpack.encode({ [0] = stack })
    end
    return list[1].code, list[1].message, bytes
end

local function wrap(f)
    return function(...)
        return f(...)
    end
end

local function invoke(object, ...)
    return object(...)
end

-- The delayed answer to a failed login.
local function refuse(seconds)
    fiber.sleep(seconds)
    return E.raise(E.client(CREDS_MISMATCH, 'User not found or supplied credentials are invalid'), 2)
end

-- Walks a path with brackets, such as a["x"].y[1]:method, through the table of functions.
local function walk(functions, name)
    local path, method = name:match('^([^:]*):([%w_]+)$')
    path = path or name
    local value, at = functions, 1
    while at <= #path do
        local key, after = path:match('^%.?([%a_][%w_]*)()', at)
        if not key then
            key, after = path:match('^%[(%d+)%]()', at)
            key = tonumber(key)
        end
        if not key then
            key, after = path:match('^%["([^"]*)"%]()', at)
        end
        if not key then
            key, after = path:match("^%['([^']*)'%]()", at)
        end
        if not key or type(value) ~= 'table' then
            return nil
        end
        value, at = value[key], after
    end
    if method then
        if type(value) ~= 'table' then
            return nil
        end
        return value[method], value
    end
    return value
end

-- What a user gets who may not read the space.
local function denied(user, space)
    return function()
        return E.raise(E.decode_stack({ {
            type = 'AccessDeniedError',
            message = format("Read access to space '%s' is denied for user '%s'", space, user),
            file = '',
            code = ACCESS_DENIED,
            fields = { name = 'ACCESS_DENIED', object_type = 'space', object_name = space, access_type = 'Read', user = user },
        } }), 2)
    end
end

-- What connectors that know several instances ask each of: whether it can be written to.
local function info_of(self)
    return function()
        return {
            version = raw.version(),
            package = 'cord',
            id = 1,
            ro = false,
            uuid = self._uuid,
            cluster = { uuid = self._uuid },
            status = self._stopped and 'shutting down' or 'running',
            listen = (raw.addresses(self._number)),
            uptime = fiber.clock() - self._started,
            schema_version = raw.schema_version(self._number),
            lsn = 0,
            signature = 0,
            vclock = setmetatable({}, msgpack.map_mt),
            replication = { { id = 1, uuid = self._uuid, lsn = 0 } },
        }
    end
end

-- Names that take more than dots: paths with brackets, the counting of net.box, and box.info.
local function resolve(number, name, user)
    local self = live[number]
    if self == nil then
        return nil
    end
    local found, object = walk(self.functions, name)
    if found == nil and name:find('^box%.space[%.%[].*:count$') then
        found, object = walk({ box = { space = self.space } }, name)
        local space = found ~= nil and raw.space_name(number, object.space_id or object.id)
        if space and not raw.may_read(number, user, space) then
            return denied(user, space)
        end
    elseif found == nil and name == 'box.info' then
        found = info_of(self)
    end
    return found, object
end

-- The session object that triggers get: the one of handlers too, as long as the client is there.
local function session_of(self, which, id, peer, gone, ok)
    local session
    if which == DISCONNECT then
        session = gone
    else
        session = sessions[id]
    end
    if session == nil then
        session = { id = id, peer = peer, storage = {}, server = self }
        -- The triggers of a failed login may run when the client has gone already.
        if which == CONNECT or ok then
            sessions[id] = session
        end
    end
    return session
end

local function run_hook(number, which, id, peer, user, ok)
    local self = live[number]
    if self == nil then
        return
    end
    local session = session_of(self, which, id, peer, user, ok)
    local before = session.user
    if which == AUTH and ok then
        session.user = user
    end
    local list = which == CONNECT and self._on_connect or which == DISCONNECT and self._on_disconnect or self._on_auth
    for i = #list, 1, -1 do
        local fine, err
        if which == AUTH then
            fine, err = pcall(list[i], session, user, ok)
        else
            fine, err = pcall(list[i], session)
        end
        if not fine then
            if which == CONNECT or which == AUTH and ok then
                -- An error refuses the client, or its login.
                session.user = before
                return error(err, 0)
            end
            stderr:write('cord.server: error in a trigger: ', text_of(err), '\n')
        end
    end
end

-- The results of a handler whose __serialize functions wait: encoded in a fiber, where they may.
local function serialize(...)
    local n, values = select('#', ...), { ... }
    for i = 1, n do
        values[i] = msgpack.object_from_raw(msgpack.encode(values[i]))
    end
    return unpack(values, 1, n)
end

local kept = {
    [DESCRIBE] = describe,
    [WRAP] = wrap,
    [INVOKE] = invoke,
    [HOOK] = run_hook,
    [SESSIONS] = sessions,
    [EVALS] = {},
    [REFUSE] = refuse,
    [RESOLVE] = resolve,
    [REFERENCES] = {},
    [FORMATS] = tuples._set_formats,
    [SERIALIZE] = serialize,
}
raw.setup(kept)

local spaces_of, created, restored, ended = load('cord.server.space')(raw)

-- ---------------------------------------------------------------- options

local LIMITS = {
    net_msg_max = { 1, 2 ^ 31 },
    readahead = { 128, 2 ^ 30 },
    max_packet = { 1, 2 ^ 31 },
    max_unread = { 1, 2 ^ 40 },
    max_connections = { 1, 2 ^ 31 },
    packet_timeout = { 0.001, 1e9 },
    auth_delay = { 0, 3600 },
}

local function callable(x)
    if type(x) == 'function' then
        return true
    end
    local mt = getmetatable(x)
    return type(mt) == 'table' and mt.__call ~= nil
end

local function check_limit(where, key, value)
    local range = LIMITS[key]
    if type(value) ~= 'number' or value < range[1] or value > range[2] then
        fail(format("%s: option '%s' should be a number from %s to %s, got %s", where, key, tostring(range[1]),
            tostring(range[2]), text_of(value)), 3)
    end
end

-- Splits what listen() was given into options and functions. A key that is no option names a function, or a table of
-- functions; functions whose names are options' go into `functions`.
local function split(where, opts)
    local options, functions = {}, opts.functions
    if functions ~= nil and type(functions) ~= 'table' then
        fail(format("%s: option 'functions' should be a table, got %s", where, type(functions)), 3)
    end
    functions = functions or {}
    for key, value in every(opts) do
        if LIMITS[key] and type(value) ~= 'function' then
            check_limit(where, key, value)
            options[key] = value
        elseif key == 'eval' and type(value) ~= 'function' then
            if type(value) ~= 'boolean' then
                fail(format("%s: option 'eval' should be a boolean, got %s", where, type(value)), 3)
            end
            options.eval = value
        elseif key == 'auth_type' and type(value) == 'string' then
            if value ~= 'chap-sha1' and value ~= 'pap-sha256' then
                fail(format("%s: option 'auth_type' should be 'chap-sha1' or 'pap-sha256', got '%s'", where, value), 3)
            end
            options.auth_type = value
        elseif key == 'users' and type(value) == 'table' then
            options.users = value
        elseif key ~= 'functions' then
            if type(key) ~= 'string' or not (callable(value) or type(value) == 'table') then
                fail(format("%s: unexpected option '%s': neither an option nor a function", where, text_of(key)), 3)
            end
            functions[key] = value
        end
    end
    return options, functions
end

-- ---------------------------------------------------------------- life

local keeper

-- Drops overdue clients, and servers that are stopped and drained.
local function keep_house()
    local me = fiber.self()
    repeat
        fiber.sleep(1)
        raw.tick()
        for number, self in every(live) do
            if self._stopped and raw.destroy(number) then
                live[number], kept[FUNCTIONS + number] = nil, nil
                ended(number)
            end
        end
        if keeper == me and next(live) == nil then
            keeper = nil
        end
    until keeper ~= me
end

local function ensure_keeper()
    if keeper == nil then
        keeper = fiber.new(keep_house)
        -- Whoever cancels all fibers does not mean this one.
        fraw.set_system(keeper)
        keeper:name('cord.server')
    end
end

local function dismiss(self)
    if raw.destroy(self._number) then
        live[self._number], kept[FUNCTIONS + self._number] = nil, nil
        ended(self._number)
        if next(live) == nil and keeper ~= nil then
            local f = keeper
            keeper = nil
            f:wakeup()
        end
    end
end

-- The numeric addresses of a host. Names are looked up on threads of their own: other fibers go on.
local function addresses_of(host)
    if host == '' or host == '*' or host:find('^[%d.]+$') or host:find(':', 1, true) then
        return { host }
    end
    local found, err = load('cord.socket').getaddrinfo(host, 0, nil, { type = 'SOCK_STREAM' })
    if found == nil then
        return nil, err
    end
    for i, one in ipairs(found) do
        found[i] = one.host
    end
    return found
end

-- Binds to the first address of a name that can be bound.
local function bind_tcp(self, host, port, setup)
    local found, err = addresses_of(host)
    if found == nil then
        return err, 0
    end
    local text, errno = 'the name has no address', 0
    for _, one in ipairs(found) do
        text, errno = raw.listen_tcp(self._number, one, port, setup)
        if not text then
            return nil
        end
    end
    return text, errno
end

local function bind(self, where, address)
    local parsed, err = uri.parse(address)
    if parsed == nil then
        return nil, err
    end
    local setup, wrong = tls.server(parsed.params)
    if setup == false then
        return nil, where .. ': ' .. wrong
    end
    local text, errno
    if parsed.unix then
        text, errno = raw.listen_unix(self._number, parsed.unix, setup)
    else
        local port = tonumber(parsed.service)
        if port == nil or port > 65535 then
            return nil, format('%s: a port number expected, got %s', where, tostring(parsed.service))
        end
        text, errno = bind_tcp(self, parsed.host or parsed.ipv4 or parsed.ipv6 or '', port, setup)
    end
    if text then
        local shown = type(address) == 'table' and (address.uri or address[1]) or address
        return nil, system_error('SocketError', errno, 'bind, called on ' .. text_of(shown), text)
    end
    return true
end

local function check_self(self, name)
    if type(self) ~= 'table' or rawget(self, '_number') == nil then
        fail(format('Use server:%s(...) instead of server.%s(...)', name, name), 3)
    end
end

-- ---------------------------------------------------------------- users

local RIGHTS = { 'execute', 'read', 'write' }

-- One user: `true` (may do everything, no password), a password, or {password =, grants = {...}}; without grants a user
-- may do everything.
local function set_user(self, where, name, what)
    if what == true then
        what = {}
    elseif type(what) == 'string' then
        what = { password = what }
    elseif what == false then
        what = { grants = {} }
    end
    if type(name) ~= 'string' or type(what) ~= 'table' then
        fail(format("%s: a password or a table expected for user '%s', got %s", where, text_of(name), type(what)), 4)
    end
    local password, grants = what.password, what.grants
    if password ~= nil and type(password) ~= 'string' then
        fail(format("%s: password of user '%s' should be a string, got %s", where, name, type(password)), 4)
    elseif grants ~= nil and type(grants) ~= 'table' then
        fail(format("%s: grants of user '%s' should be a table, got %s", where, name, type(grants)), 4)
    end
    for key in every(what) do
        if key ~= 'password' and key ~= 'grants' then
            fail(format("%s: unexpected option '%s' of user '%s'", where, text_of(key), name), 4)
        end
    end
    if name == 'guest' then
        password = ''
    end
    raw.set_user(self._number, name, password, grants == nil)
    for _, right in ipairs(RIGHTS) do
        local list = grants and grants[right]
        if list == true then
            raw.grant(self._number, name, right)
        elseif type(list) == 'table' then
            for _, object in ipairs(list) do
                raw.grant(self._number, name, right, tostring(object))
            end
        elseif list ~= nil then
            fail(format("%s: grants.%s of user '%s' should be true or a list of names, got %s", where, right, name,
                type(list)), 4)
        end
    end
    if grants and grants.eval then
        raw.grant(self._number, name, 'eval')
    end
end

local function set_users(self, where, users)
    if users.guest == nil then
        -- Whoever names users means that others may do nothing.
        set_user(self, where, 'guest', false)
    end
    for name, what in every(users) do
        set_user(self, where, name, what)
    end
end

--- Adds a user or changes one: a password, or {password = string, grants = {execute =, read =, write =, eval =}}.
function methods.user(self, name, what)
    check_self(self, 'user')
    set_user(self, 'server:user', name, what)
    raw.show_accounts(self._number)
end

--- Removes a user; its sessions may do nothing from now on.
function methods.drop_user(self, name)
    check_self(self, 'drop_user')
    if type(name) ~= 'string' then
        return fail('server:drop_user(name): a string expected, got ' .. type(name))
    end
    raw.drop_user(self._number, name)
    raw.show_accounts(self._number)
end

-- ---------------------------------------------------------------- functions by reference

local func_methods = {}
local func_meta = { __index = func_methods, __metatable = 'cord.server.func' }

--- A function that clients call by `name` without a look-up in the table of functions; without `fn`, the one registered so.
function methods.func(self, name, fn)
    check_self(self, 'func')
    if type(name) ~= 'string' then
        return fail('server:func(name, fn): a string expected as argument 1, got ' .. type(name))
    elseif fn ~= nil and type(fn) ~= 'function' then
        return fail('server:func(name, fn): a function expected as argument 2, got ' .. type(fn))
    end
    local object = self._funcs[name]
    if fn == nil then
        return object
    end
    local references = kept[REFERENCES]
    local position = object and object._position or #references + 1
    references[position] = fn
    raw.reference(self._number, name, position)
    raw.show_accounts(self._number)
    object = setmetatable({ name = name, _server = self, _position = position, _fn = fn }, func_meta)
    self._funcs[name] = object
    return object
end

--- Calls it from here.
function func_methods.call(self, args)
    if args ~= nil and type(args) ~= 'table' then
        return fail('func:call(args): a table expected, got ' .. type(args))
    end
    return self._fn(unpack(args or {}, 1, table.maxn(args or {})))
end

--- Clients find it no more.
function func_methods.drop(self)
    local server_, name = self._server, self.name
    if server_._funcs[name] == self then
        server_._funcs[name] = nil
        raw.reference(server_._number, name)
        raw.show_accounts(server_._number)
        -- The place is not given away: a call that is on its way still finds a function.
        kept[REFERENCES][self._position] = function() end
    end
end

-- ---------------------------------------------------------------- watched keys

--- Gives a key a value (nil takes it away) and tells the clients that watch it.
function methods.broadcast(self, ...)
    -- First, not after a call: LuaJIT of 2022 compiles that wrongly in side traces.
    local key, value = ...
    check_self(self, 'broadcast')
    if type(key) ~= 'string' then
        return fail('server:broadcast(key, value): a string expected as argument 1, got ' .. type(key))
    end
    return (raw.broadcast(self._number, key, value))
end

-- What every Tarantool tells of itself.
local function announce(self)
    local id, NULL = uuid.fromstr(self._uuid), msgpack.NULL
    self:broadcast('box.id', {
        id = 1, instance_uuid = id, instance_name = NULL, replicaset_uuid = id, replicaset_name = NULL, cluster_name = NULL,
    })
    self:broadcast('box.status', { is_ro = false, is_ro_cfg = false, status = 'running', dd_version = DD_VERSION })
    self:broadcast('box.election', { term = 1, role = 'none', is_ro = false, leader = 0 })
    self:broadcast('box.schema', { version = raw.schema_version(self._number) })
end

-- ---------------------------------------------------------------- data

--- Makes a space: options as of box.schema.space.create.
function methods.create_space(self, name, opts)
    check_self(self, 'create_space')
    if type(name) ~= 'string' then
        return fail('server:create_space(name, opts): a string expected as argument 1, got ' .. type(name))
    elseif opts ~= nil and type(opts) ~= 'table' then
        return fail('options should be a table')
    end
    return (created(self._number, name, opts))
end

local function file_call(name, call)
    methods[name] = function(self, path)
        check_self(self, name)
        if type(path) ~= 'string' then
            return fail(format('server:%s(path): a string expected, got %s', name, type(path)))
        end
        local ok, text, errno = call(self._number, path)
        if not ok then
            return E.raise(system_error('SystemError', errno, format("can't %s %s", name, path), text), 2)
        end
        if name == 'restore' then
            restored(self._number)
        end
    end
end

--- Writes all spaces to a file, which is the old one or the new one whatever happens meanwhile.
file_call('snapshot', raw.save)
--- Takes over the spaces of a snapshot.
file_call('restore', raw.restore)

-- ---------------------------------------------------------------- listening

--- Serves clients at `address`: a URI, a port, or a list of them.
function server.listen(address, opts)
    local where = 'server.listen'
    if address == nil then
        return fail(where .. '(uri[, opts]): a URI expected as argument 1, got nil')
    elseif opts ~= nil and type(opts) ~= 'table' then
        return fail(where .. '(uri[, opts]): a table expected as argument 2, got ' .. type(opts))
    end
    local options, functions = split(where, opts ~= nil and opts or {})
    local id = uuid.str()
    local number = raw.create(id, options.eval == true, options.auth_type == 'pap-sha256')
    local self = setmetatable({
        functions = functions,
        space = spaces_of(number),
        _number = number,
        _uuid = id,
        _funcs = {},
        _ended = fiber.cond(),
        _started = fiber.clock(),
        _on_connect = {},
        _on_disconnect = {},
        _on_auth = {},
    }, meta)
    kept[FUNCTIONS + number] = functions
    live[number] = self
    for key in every(LIMITS) do
        if options[key] then
            raw.limit(number, key, options[key])
        end
    end
    if options.users then
        set_users(self, where, options.users)
    end
    raw.show_accounts(number)
    announce(self)
    local list = type(address) == 'table' and address.uri == nil and address[1] ~= nil and not address.params and address
        or { address }
    for _, one in ipairs(list) do
        -- Raises when the fiber is cancelled while a name is looked up.
        local fine, ok, err = pcall(bind, self, where, one)
        if not ok or not fine then
            raw.shut(number)
            self._stopped = true
            dismiss(self)
            if not fine then
                return error(ok, 0)
            elseif type(err) == 'string' then
                return fail(err)
            end
            return E.raise(err, 2)
        end
    end
    ensure_keeper()
    return self
end

--- The addresses it is bound to, with the real ports.
function methods.address(self)
    check_self(self, 'address')
    return raw.addresses(self._number)
end

--- Waits until somebody stops the server: what a program that only serves does last.
function methods.wait(self)
    check_self(self, 'wait')
    while not self._stopped do
        self._ended:wait()
    end
end

--- Stops: 'graceful' (the default) takes no new clients, lets running requests end for up to `timeout` seconds (3 when
--- nil), then closes; 'hard' closes at once. Waits until every client is gone.
function methods.stop(self, how, timeout)
    check_self(self, 'stop')
    how = how or 'graceful'
    if how ~= 'graceful' and how ~= 'hard' then
        return fail("server:stop(how, timeout): 'graceful' or 'hard' expected as argument 1, got " .. text_of(how))
    elseif timeout ~= nil and (type(timeout) ~= 'number' or timeout < 0) then
        return fail('server:stop(how, timeout): a number of seconds expected as argument 2, got ' .. text_of(timeout))
    end
    if self._stopped then
        return
    end
    self._stopped = true
    self._ended:broadcast()
    raw.shut(self._number)
    if how == 'graceful' then
        -- Clients that heard of it go by themselves when their requests are done.
        self:broadcast('box.shutdown', true)
        local deadline = fiber.clock() + (timeout or 3)
        local _, running, told = raw.load(self._number)
        while running + told > 0 and fiber.clock() < deadline do
            fiber.sleep(0.005)
            _, running, told = raw.load(self._number)
        end
    end
    raw.close_sessions(self._number)
    local deadline = fiber.clock() + 3
    repeat
        fiber.sleep(0)
    until raw.load(self._number) == 0 or fiber.clock() > deadline
    dismiss(self)
end

--- What it has done so far.
function methods.stat(self)
    check_self(self, 'stat')
    local requests, errors, now, total, running, received, sent = raw.stat(self._number)
    return {
        requests = requests or {},
        errors = errors or 0,
        connections = { current = now or 0, total = total or 0 },
        in_progress = running or 0,
        received = received or 0,
        sent = sent or 0,
    }
end

function meta.__tostring(self)
    return format('cord.server: %s', table.concat({ raw.addresses(self._number) }, ', '))
end

function meta.__serialize(self)
    return { address = { raw.addresses(self._number) }, stopped = self._stopped or false }
end

-- ---------------------------------------------------------------- triggers

-- Which triggers there are, so that clients without any cost nothing.
local function tell(self)
    raw.hooks(self._number, (#self._on_connect > 0 and CONNECT or 0) + (#self._on_disconnect > 0 and DISCONNECT or 0)
        + (#self._on_auth > 0 and AUTH or 0))
end

local function trigger(list_name)
    return function(self, new, old)
        check_self(self, list_name:sub(2))
        local list = self[list_name]
        if new == nil and old == nil then
            local copy = {}
            for i, f in ipairs(list) do
                copy[i] = f
            end
            return copy
        end
        if new ~= nil and not callable(new) or old ~= nil and not callable(old) then
            error('trigger reset: incorrect arguments', 2)
        end
        if old ~= nil then
            local found
            for i, f in ipairs(list) do
                found = found or f == old and i
            end
            if not found then
                error('trigger reset: Trigger is not found', 2)
            end
            table.remove(list, found)
        end
        if new ~= nil then
            list[#list + 1] = new
        end
        tell(self)
        return new
    end
end

methods.on_connect = trigger('_on_connect')
methods.on_disconnect = trigger('_on_disconnect')
methods.on_auth = trigger('_on_auth')

-- ---------------------------------------------------------------- inside of handlers

--- The session of the client whose request the running fiber serves; nil elsewhere.
function server.session()
    local id, number, peer, user = raw.session()
    if id == nil then
        return nil
    end
    local session = sessions[id]
    if session == nil then
        session = { id = id, peer = peer, storage = {}, server = live[number] }
        if peer ~= nil then
            sessions[id] = session
        end
    end
    session.user = user or session.user
    return session
end

--- Sends `value` to the client before the response. Waits while the client leaves more unread than it may.
function server.push(...)
    if select('#', ...) ~= 1 then
        return fail('server.push(value): one value expected, got ' .. select('#', ...))
    end
    local value = ...
    local pushed = raw.push(value)
    while pushed == nil do
        -- The client leaves more unread than it may: it is waited for.
        fiber.sleep(0.005)
        pushed = raw.push(value)
    end
    if not pushed then
        return fail('server.push(value): no request is being served by this fiber')
    end
    return true
end

--- Options of the module.
function server.cfg(opts)
    if opts ~= nil and type(opts) ~= 'table' then
        return fail('server.cfg(options): a table of options expected, got ' .. type(opts))
    end
    for key, value in every(opts ~= nil and opts or {}) do
        if key ~= 'reuse_handlers' then
            return fail(format("server.cfg: unexpected option '%s'", text_of(key)))
        elseif type(value) ~= 'boolean' then
            return fail("server.cfg: option 'reuse_handlers' should be a boolean, got " .. type(value))
        end
    end
    if opts ~= nil and opts.reuse_handlers ~= nil then
        raw.reuse(opts.reuse_handlers)
    end
    return { reuse_handlers = raw.reuse() }
end

return server
