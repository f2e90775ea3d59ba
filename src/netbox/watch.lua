-- Watchers: functions called with the value of a key of the server, now and whenever it changes. Each call has a fiber of
-- its own, one at a time for each watcher; the server sends the next value once all of them are done.
local _, load = ...

local E = load('cord.error')
local raise = E.raise_at_caller
local fiber = load('cord.fiber')
local log = load('cord.log')
local msgpack = load('cord.msgpack')

-- Not named pairs, lest LuaJIT compiles loops that a finalizer may never leave: docs/jit.md.
local type, tostring, every, pcall, setmetatable = type, tostring, pairs, pcall, setmetatable

local PROC_LUA = 32
local WATCH, UNWATCH, WATCH_ONCE = 74, 75, 77
local KEY_EVENT, KEY_DATA = 0x57, 0x58
local VALUE = 6
local QUEUED = 16

return function(core, methods)
    local raw = core.raw

    -- A packet without a sync.
    local function packet(kind, key)
        local rest = '\129\0' .. msgpack.encode(kind) .. core.options.map { KEY_EVENT, msgpack.encode(key) }
        local n = #rest
        return string.char(0xce, 0, math.floor(n / 65536), math.floor(n / 256) % 256, n % 256) .. rest
    end

    local function supported(conn)
        return conn.peer_protocol_features ~= nil and conn.peer_protocol_features.watchers
    end

    local function post(conn, kind, key)
        if supported(conn) and (conn.state == 'active' or conn.state == 'fetch_schema'
            or conn.state == 'graceful_shutdown') then
            raw.post(conn._raw, packet(kind, key))
        end
    end

    -- ------------------------------------------------------------ calls

    -- Tells the server that the value was seen, once nobody is at it.
    local function acknowledge(conn, topic)
        if topic.running == 0 and topic.unseen and not topic.gone then
            topic.unseen = false
            post(conn, WATCH, topic.key)
        end
    end

    local function run(conn, topic, watcher)
        repeat
            watcher.version = topic.version
            local ok, err = pcall(watcher.func, topic.key, topic.value)
            if not ok then
                log.error('%s', tostring(err))
            end
        until not watcher.registered or watcher.version == topic.version
        watcher.running = false
        topic.running = topic.running - 1
        acknowledge(conn, topic)
    end

    local function schedule(conn, topic, watcher)
        if watcher.running or watcher.version == topic.version then
            return
        end
        watcher.running = true
        topic.running = topic.running + 1
        fiber.new(run, conn, topic, watcher)
    end

    function core.handle_event(conn, body)
        local event = raw.decode(body)
        local key = type(event) == 'table' and event[KEY_EVENT] or nil
        local topic = key and conn._watchers and conn._watchers[key]
        if topic == nil then
            return
        end
        topic.value, topic.version, topic.unseen, topic.epoch = event[KEY_DATA], topic.version + 1, true, conn._epoch
        for watcher in every(topic.watchers) do
            schedule(conn, topic, watcher)
        end
        acknowledge(conn, topic)
    end

    -- ------------------------------------------------------------ watchers

    -- Subscribes anew after each connect: an on_connect trigger like any other.
    local function resubscribe(conn)
        for key, topic in every(conn._watchers) do
            topic.unseen = false
            post(conn, WATCH, key)
        end
    end

    local watcher_methods = {}
    local watcher_mt = {
        __index = watcher_methods,
        __metatable = false,
        __tostring = function()
            return 'net.box.watcher'
        end,
    }
    -- What a watcher is: kept out of the object a script holds.
    local inner = setmetatable({}, { __mode = 'k' })

    function watcher_methods.unregister(object)
        local watcher = inner[object]
        if watcher == nil then
            return raise(E.client(PROC_LUA, 'Use watcher:unregister() instead of watcher.unregister()'))
        elseif not watcher.registered then
            return raise(E.client(PROC_LUA, 'Watcher is already unregistered'))
        end
        watcher.registered = false
        local conn, topic = watcher.conn, watcher.topic
        topic.watchers[watcher] = nil
        if next(topic.watchers) == nil then
            topic.gone = true
            conn._watchers[topic.key] = nil
            post(conn, UNWATCH, topic.key)
        end
    end

    local function add(conn, key, func)
        if conn._watchers == nil then
            conn._watchers = {}
            conn:on_connect(resubscribe)
        end
        local topic = conn._watchers[key]
        local watcher = { func = func, registered = true, version = 0, topic = topic, conn = conn }
        if topic == nil then
            topic = { key = key, watchers = {}, version = 0, running = 0 }
            watcher.topic = topic
            conn._watchers[key] = topic
            topic.watchers[watcher] = true
            post(conn, WATCH, key)
        else
            topic.watchers[watcher] = true
            if topic.version > 0 then
                schedule(conn, topic, watcher)
            end
        end
        return watcher
    end

    function methods.watch(conn, key, func)
        if not core.is_connection(conn) then
            return core.dot_call('watch')
        elseif type(key) ~= 'string' then
            return raise(E.client(PROC_LUA, 'key must be a string'))
        elseif type(func) ~= 'function' then
            return raise(E.client(PROC_LUA, 'func must be a function'))
        end
        local object = setmetatable({}, watcher_mt)
        inner[object] = add(conn._conn or conn, key, func)
        return object
    end

    function methods.watch_once(conn, key, opts)
        if not core.is_connection(conn) then
            return core.dot_call('watch_once')
        elseif type(key) ~= 'string' then
            return raise(E.client(PROC_LUA, 'key must be a string'))
        end
        local body = core.options.map { KEY_EVENT, msgpack.encode(key) }
        return core.with_options(core.op_bare, conn, opts or {}, WATCH_ONCE, VALUE, body)
    end

    -- ------------------------------------------------------------ graceful shutdown

    -- Watches for the server's wish to end. The function knows the connection weakly: the watchers are its own.
    function core.watch_shutdown(conn, p)
        local weak = setmetatable({ conn }, { __mode = 'v' })
        add(conn, 'box.shutdown', function(_, value)
            local target = weak[1]
            local topic = target and target._watchers['box.shutdown']
            -- The end of a connection that has been replaced since is none of the new one.
            if value ~= true or topic == nil or topic.epoch ~= target._epoch then
                return
            end
            local ok, err = core.run_triggers(target, '_on_shutdown')
            if not ok then
                log.error('%s', tostring(err))
            end
            if topic.epoch ~= target._epoch then
                return
            end
            p.shutdown = true
            raw.alert(target._raw, QUEUED)
        end)
    end
end
