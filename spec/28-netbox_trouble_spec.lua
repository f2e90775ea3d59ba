-- net.box in trouble: cancelled, closed and left in every state it can be in; servers that pause, die and come back; much
-- at once. Numbers like T#4834 are reports of tarantool/tarantool; docs/complaints.md lists them.
local helpers = require 'spec.helpers'
local net = require 'cord.netbox'
local fiber = require 'cord.fiber'
local server = require 'cord.server'

local ASYNC = { is_async = true }

local function message(...)
    local ok, err = pcall(...)
    assert.is_false(ok)
    return type(err) == 'string' and err:gsub('^.-:%d+: ', '') or err.message
end

local function eventually(condition, seconds)
    local deadline = helpers.now() + (seconds or 5)
    while not condition() and helpers.now() < deadline do fiber.sleep(0.001) end
    return condition()
end

-- Runs `fn(...)` in a fiber, cancels it while it waits, and gives what it raised.
local function cancelled(fn, ...)
    local done, err
    local args = { n = select('#', ...), ... }
    local f = fiber.new(function()
        local ok
        ok, err = pcall(fn, unpack(args, 1, args.n))
        if ok then err = { message = 'it returned' } end
        done = true
    end)
    fiber.sleep(0.005)
    assert.is_nil(done, done and err.message)
    f:cancel()
    -- At once: in the next turn.
    fiber.sleep(0)
    assert.is_true(done)
    return err.message
end

describe('a fiber that is cancelled while it waits', function()
    helpers.no_leftovers()

    it('for a reply of any kind stops at once, and the connection goes on', function()
        -- The embedded server is told to hold its answers back by a function that waits.
        local gate = fiber.cond()
        local srv = server.listen('127.0.0.1:0', {
            eval = true,
            hold = function() gate:wait() return 1 end,
            push = function() server.push(1) gate:wait() return 1 end,
            echo = function(...) return ... end,
        })
        local conn = net.connect((srv:address()))
        local future = conn:call('hold', {}, ASYNC)
        local function walk(f)
            for _ in f:pairs() do end
        end
        for name, wait in pairs {
            call = function() return conn:call('hold') end,
            ['call with options'] = function() return conn:call('hold', {}, { timeout = 100 }) end,
            ['call with a raw result'] = function() return conn:call('hold', {}, { return_raw = true }) end,
            ['call with pushes'] = function() return conn:call('push', {}, { on_push = function() end }) end,
            ['a stream'] = function() return conn:new_stream():call('hold') end,
            wait_result = function() return future:wait_result() end,
            ['wait_result in time'] = function() return future:wait_result(100) end,
            pairs = function() return walk(future) end,
            wait_state = function() return conn:wait_state('error') end,
        } do
            assert.equal('fiber is cancelled', cancelled(wait), name)
        end
        assert.equal('fiber is cancelled', cancelled(string.gsub, 'a', '.', function() conn:call('hold') end))
        gate:broadcast()
        assert.equal(5, conn:call('echo', { 5 }, { timeout = 5 }))
        assert.same({ 1 }, future:wait_result(5))
        conn:close()
        srv:stop()
    end)

    it('in requests of every method, from a server that says nothing more', function()
        local f = helpers.fake_server [[ local peer = ... peer:greeting { version = '3.2.0' }
            local r = peer:read_request()
            peer:send(peer:frame(r.sync, peer.pack.map { { 0x54, peer.pack.uint(10) }, { 0x55, peer.pack.array { '\4' } } }))
            peer:silent() ]]
        local conn = net.connect(f.uri, { fetch_schema = false })
        local space = conn.space[512]
        local index = space.index[0]
        for name, wait in pairs {
            ping = function() assert(conn:ping()) end,
            reload_schema = function() assert(conn:reload_schema()) end,
            eval = function() conn:eval 'return 1' end,
            execute = function() conn:execute 'SELECT 1' end,
            prepare = function() conn:prepare 'SELECT 1' end,
            unprepare = function() conn:unprepare(1) end,
            watch_once = function() conn:watch_once 'key' end,
            begin = function() conn:new_stream():begin() end,
            commit = function() conn:new_stream():commit() end,
            rollback = function() conn:new_stream():rollback() end,
            select = function() space:select() end,
            ['select with a position'] = function() space:select({}, { fetch_pos = true }) end,
            insert = function() space:insert { 1 } end,
            replace = function() space:replace { 1 } end,
            delete = function() space:delete(1) end,
            update = function() space:update(1, {}) end,
            upsert = function() space:upsert({ 1 }, {}) end,
            get = function() index:get(1) end,
            min = function() index:min() end,
            max = function() index:max() end,
            count = function() index:count() end,
            ['select of an index'] = function() index:select(1) end,
            ['delete of an index'] = function() index:delete(1) end,
            ['update of an index'] = function() index:update(1, {}) end,
        } do
            assert.equal('fiber is cancelled', cancelled(wait), name)
        end
        conn:close()
        f:stop()
    end)

    it('for a connection stops at once', function()
        -- Silent before the greeting; silent before the schema; nobody there, to come again.
        local silent = helpers.fake_server [[ local peer = ...; peer:silent() ]]
        local slow = helpers.fake_server [[ local peer = ...; peer:greeting(); peer:silent() ]]
        assert.equal('fiber is cancelled', cancelled(net.connect, silent.uri))
        assert.equal('fiber is cancelled', cancelled(net.connect, slow.uri))
        assert.equal('fiber is cancelled', cancelled(net.connect, '127.0.0.1:1', { reconnect_after = 100 }))
        local conns = {
            net.connect(silent.uri, { wait_connected = false }),
            net.connect(slow.uri, { wait_connected = false }),
            net.connect('127.0.0.1:1', { wait_connected = false, reconnect_after = 100 }),
        }
        for i, conn in ipairs(conns) do
            for _, name in ipairs { 'wait_connected', 'call', 'eval', 'ping' } do
                assert.equal('fiber is cancelled', cancelled(conn[name], conn), i .. name)
            end
            assert.equal('fiber is cancelled', cancelled(conn.wait_state, conn, 'active'))
            conn:close()
            assert.equal('closed', conn.state)
        end
        silent:stop()
        slow:stop()
    end)

    it('for the end of close leaves the closing to go on', function()
        local f = helpers.fake_server [[ local peer = ...; peer:greeting(); peer:sleep(0.1); peer:serve() ]]
        local conn = net.connect(f.uri, { fetch_schema = false })
        conn:call('f', { ('x'):rep(1e7) }, ASYNC)
        assert.equal('fiber is cancelled', cancelled(conn.close, conn))
        assert.is_true(conn:wait_state('closed', 5))
        f:stop()
    end)

    it('that is a connection\'s own goes on: it is the system\'s', function()
        local srv = server.listen('127.0.0.1:0', {})
        local conn = net.connect((srv:address()))
        conn._fiber:cancel()
        fiber.sleep(0.01)
        assert.is_true(conn:ping())
        assert.equal('suspended', conn._fiber:status())
        conn:close()
        assert.equal('dead', conn._fiber:status())
        srv:stop()
    end)
end)

describe('a connection', function()
helpers.no_leftovers()
describe('that is closed in', function()
    local srv, uri
    before_each(function()
        srv = server.listen('127.0.0.1:0', {
            push = function() for i = 1, 3 do server.push(i) end return 9 end,
            echo = function(...) return ... end,
        })
        uri = srv:address()
    end)
    after_each(function() srv:stop('hard') end)

    -- The trigger closes the connection by itself, in a fiber of its own, and from another fiber while it waits.
    for how, close in pairs {
        ['itself'] = function(conn) conn:close() end,
        ['a fiber it makes'] = function(conn) fiber.create(function() conn:close() end) end,
        ['another fiber while it waits'] = function(conn)
            fiber.new(function() conn:close() end)
            pcall(fiber.sleep, 0.01)
        end,
    } do
        it('on_connect, by ' .. how, function()
            local conn = net.connect(uri, { wait_connected = false })
            conn:on_connect(close)
            conn:wait_connected(5)
            assert.is_true(eventually(function() return conn.state == 'closed' end), conn.state)
            assert.equal('Connection closed', message(conn.call, conn, 'echo'))
        end)

        it('on_disconnect, by ' .. how, function()
            local conn, runs = net.connect(uri, { reconnect_after = 0.01 }), 0
            conn:on_disconnect(function(c)
                runs = runs + 1
                close(c)
            end)
            srv:stop('hard')
            assert.is_true(eventually(function() return conn.state == 'closed' end), conn.state)
            assert.equal(1, runs)
        end)

        it('on_schema_reload at first, by ' .. how, function()
            local conn = net.connect(uri, { wait_connected = false })
            conn:on_schema_reload(close)
            conn:wait_connected(5)
            assert.is_true(eventually(function() return conn.state == 'closed' end), conn.state)
        end)

        it('on_schema_reload later, by ' .. how, function()
            local conn = net.connect(uri)
            conn:on_schema_reload(close)
            srv:create_space('another')
            local ok, result = pcall(conn.call, conn, 'echo', { 1 }, { timeout = 5 })
            assert.is_true(ok and result == 1 or result.message == 'Connection closed')
            assert.is_true(eventually(function() return conn.state == 'closed' end), conn.state)
        end)

        it('on_shutdown, by ' .. how, function()
            local conn = net.connect(uri)
            conn:on_shutdown(close)
            -- The server knows by now that its end is watched for.
            assert.is_true(conn:ping())
            local stopped
            fiber.create(function() srv:stop() stopped = true end)
            assert.is_true(eventually(function() return conn.state == 'closed' and stopped end), conn.state)
        end)

        it('a watcher, by ' .. how, function()
            local conn = net.connect(uri)
            conn:watch('key', function() close(conn) end)
            assert.is_true(eventually(function() return conn.state == 'closed' end), conn.state)
        end)

        it('on_push, by ' .. how .. ' (gh-9621)', function()
            local conn, pushes = net.connect(uri), 0
            local ok, result = pcall(conn.call, conn, 'push', {}, { on_push = function()
                pushes = pushes + 1
                close(conn)
            end })
            assert.is_true(ok and result == 9 or result.message == 'Connection closed' or
                result.message == 'fiber is cancelled', tostring(result))
            assert.is_true(pushes > 0)
            assert.is_true(eventually(function() return not conn:is_connected() end), conn.state)
        end)
    end
end)
end)

describe('a trigger', function()
    helpers.no_leftovers()

    it('on_schema_reload that raises, or waits for a reply, is logged and ends nothing (T#5358, T#9679, T#9717)', function()
        local out = helpers.run_ok [[
            local net, server, fiber = require 'cord.netbox', require 'cord.server', require 'cord.fiber'
            local srv = server.listen('127.0.0.1:0', { echo = function(...) return ... end })
            local conn = net.connect((srv:address()))
            local log = {}
            conn:on_schema_reload(function() error('oops', 0) end)
            srv:create_space('one')
            log[1] = conn:call('echo', { 1 })
            local texts = {}
            for i, wait in ipairs {
                function(c) c:call('echo', { 2 }) end,
                function(c) c:ping() end,
                function(c) c:wait_connected() end,
                function(c) c.space.one:select() end,
                function(c) c:call('echo', { 2 }, { timeout = 1 }) end,
                function(c) c:call('echo', { 2 }, { return_raw = true }) end,
                function(c) c:call('echo', { 2 }, { is_async = true }):wait_result() end,
                function(c) for _ in c:call('echo', { 2 }, { is_async = true }):pairs() do end end,
            } do
                conn:on_schema_reload(function(c)
                    local ok, err = pcall(wait, c)
                    texts[i] = not ok and tostring(err):gsub('^.-:%d+: ', '')
                    error(err, 0)
                end)
                srv:create_space('two' .. i)
                log[2] = conn:call('echo', { 3 })
                print(texts[i])
            end
            print(log[1], log[2], conn.state, conn.space.two1 ~= nil)
            srv:stop()
            fiber.sleep(0.01)
            print(fiber.stats().fibers)
        ]]
        local refused = 'Synchronous requests are not allowed in net.box trigger\n'
        assert.equal(refused:rep(8) .. '1\t3\tactive\ttrue\n1\n', out)
    end)

    it('on_shutdown that raises does not keep the server up (T#9677)', function()
        local srv = server.listen('127.0.0.1:0', {})
        local conn = net.connect((srv:address()))
        conn:on_shutdown(function() error('oops', 0) end)
        assert.is_true(conn:ping())
        local start = fiber.clock()
        srv:stop('graceful', 60)
        assert.is_true(fiber.clock() - start < 10)
        assert.is_true(eventually(function() return conn.state == 'error' end))
    end)

    it('of a graceful shutdown meets a schema that is being read (gh-7225, gh-7256, T#11062)', function()
        local srv = server.listen('127.0.0.1:0', { slow = function(n) fiber.sleep(n) return n end })
        local conn = net.connect((srv:address()))
        local reloads = 0
        conn:on_schema_reload(function()
            reloads = reloads + 1
            fiber.sleep(0.02)
        end)
        local future = conn:call('slow', { 0.03 }, ASYNC)
        srv:create_space('another')
        conn:ping { timeout = 0.001 }
        srv:stop('graceful', 60)
        assert.same({ 0.03 }, future:wait_result(5))
        assert.is_true(eventually(function() return conn.state == 'error' end), conn.state)
        assert.equal('Peer closed', conn.error)
        assert.is_true(reloads <= 1)
    end)
end)

helpers.describe_server('a server that is killed and restarted', { init = [[
function bytes(n) return ('x'):rep(n) end
function slow(n) require'fiber'.sleep(n) return n end
]] }, function(get)
    it('while clients reconnect: what waits goes on with the new one (T#1733, T#1783)', function()
        local srv = get()
        local conn = net.connect(srv.uri, { reconnect_after = 0.02 })
        local log = {}
        conn:on_disconnect(function() log[#log + 1] = 'gone' end)
        conn:on_connect(function() log[#log + 1] = 'back' end)
        local failed
        fiber.create(function() failed = message(conn.call, conn, 'slow', { 100 }) end)
        fiber.sleep(0.01)
        srv:kill 'KILL'
        assert.is_true(conn:wait_state('error_reconnect', 5))
        local waiting = {}
        for i = 1, 10 do
            fiber.create(function() waiting[i] = #conn:call('bytes', { i }) end)
        end
        assert.is_false(conn:ping { timeout = 0.01 })
        fiber.sleep(0.05)
        srv:restart()
        assert.is_true(conn:wait_connected(10))
        assert.is_true(eventually(function() return #waiting == 10 end))
        for i = 1, 10 do assert.equal(i, waiting[i]) end
        assert.is_truthy(failed == 'Peer closed' or failed:find('Connection reset by peer', 1, true), failed)
        assert.same({ 'gone', 'back' }, log)
        conn:close()
    end)

    it('a hundred megabytes in one reply do not keep others from their answers (T#518)', function()
        local conn = net.connect(get().uri)
        local size, pings, longest, done = 100 * 2 ^ 20, 0, 0, false
        fiber.create(function()
            size = size - #conn:call('bytes', { size })
            done = true
        end)
        for _ = 1, 5 do
            fiber.create(function()
                while not done do
                    local start = fiber.clock()
                    if conn:ping() then pings = pings + 1 end
                    longest = math.max(longest, fiber.clock() - start)
                    fiber.sleep(0.001)
                end
            end)
        end
        -- A fiber that uses no connection goes on meanwhile.
        local ticks = 0
        while not done do
            ticks = ticks + 1
            fiber.sleep(0.001)
        end
        assert.equal(0, size)
        assert.is_true(ticks > 5, ticks)
        assert.is_true(eventually(function() return pings >= 5 end), pings)
        assert.is_true(conn:ping())
        conn:close()
    end)
end)

describe('many connections', function()
    local function resident()
        local file = io.open '/proc/self/status'
        if not file then return 0 end
        local text = file:read '*a'
        file:close()
        return tonumber(text:match 'VmRSS:%s*(%d+)')
    end

    local function count(set)
        local n = 0
        for _ in pairs(set) do n = n + 1 end
        return n
    end

    it('that come and go, ten thousand of them, leave nothing (T#6217)', function()
        local srv = server.listen('unix/:' .. helpers.tempdir() .. '/s', { echo = function(...) return ... end })
        local uri = srv:address()
        local space = srv:create_space('test', { format = { { 'id', 'unsigned' }, { 'name', 'string' } } })
        space:create_index('pk')
        space:replace { 1, 'one' }
        local format
        local function round(n)
            for i = 1, n do
                local conn = net.connect(uri)
                if i % 100 == 0 then
                    local t = conn.space.test:get(1)
                    assert.equal('one', t.name)
                    -- One format whatever the number of connections: there is nothing to run out of.
                    format = format or debug.getmetatable(t)
                    assert.equal(format, debug.getmetatable(t))
                end
                if i % 3 == 0 then conn:call('echo', { i }, ASYNC) end
                if i % 7 ~= 0 then conn:close() end
                if i % 1000 == 0 then collectgarbage() fiber.sleep(0) end
            end
            for _ = 1, 3 do
                collectgarbage()
                collectgarbage()
                fiber.sleep(0.01)
            end
        end
        round(500)
        local descriptors, fibers = count(helpers.open_descriptors()), fiber.stats().fibers
        local lua, memory = collectgarbage 'count', resident()
        round(10000)
        assert.is_true(eventually(function()
            collectgarbage()
            return count(helpers.open_descriptors()) <= descriptors and fiber.stats().fibers <= fibers
        end), ('%d of %d descriptors, %d of %d fibers'):format(count(helpers.open_descriptors()), descriptors,
            fiber.stats().fibers, fibers))
        assert.is_true(collectgarbage 'count' - lua < 500, collectgarbage 'count' - lua)
        assert.is_true(resident() - memory < 16 * 1024, resident() - memory)
        srv:stop()
    end)

    it('at once, more than there are descriptors, fail with a reason', function()
        local out = helpers.run_ok [[
            local ffi = require 'ffi'
            ffi.cdef 'int setrlimit(int, const unsigned long *);'
            local net, server, fiber = require 'cord.netbox', require 'cord.server', require 'cord.fiber'
            local srv = server.listen('127.0.0.1:0', {})
            local uri = srv:address()
            net.connect(uri):close()
            -- RLIMIT_NOFILE
            assert(ffi.C.setrlimit(7, ffi.new('unsigned long[2]', 40, 40)) == 0)
            local conns, reason = {}, nil
            for i = 1, 100 do
                conns[i] = net.connect(uri, { fetch_schema = false, wait_connected = 0.2 })
                if conns[i].state == 'error' then
                    reason = conns[i].error
                    break
                end
            end
            print((reason:gsub('^.*: ', '')))
            for _, conn in ipairs(conns) do conn:close() end
            conns = nil
            collectgarbage()
            fiber.sleep(0.01)
            print(net.connect(uri, { wait_connected = 5 }).state)
            os.exit(0)
        ]]
        assert.equal('Too many open files\nactive\n', out)
    end)

    it('at once, more than there are ports, fail with a reason (tarantool-php#3)', function()
        -- A network of its own, where there are three ports.
        local shell = 'ip link set lo up && echo 50000 50002 > /proc/sys/net/ipv4/ip_local_port_range'
        if os.execute("unshare -rn sh -c '" .. shell .. "' >/dev/null 2>&1") ~= 0 then
            return pending 'no network namespaces here'
        end
        local dir = helpers.tempdir()
        helpers.write_file(dir .. '/s.lua', [[
            local net, server, fiber = require 'cord.netbox', require 'cord.server', require 'cord.fiber'
            local srv = server.listen('127.0.0.1:4444', {})
            local conns = {}
            for i = 1, 5 do conns[i] = net.connect('127.0.0.1:4444') end
            print(conns[1].state, conns[1].error)
            print(conns[5].state, conns[5].error)
            print(pcall(conns[5].call, conns[5], 'f'))
            conns[1]:close()
            conns[2]:close()
            os.exit(0)
        ]])
        local child = helpers.spawn({ 'unshare', '-rn', 'sh', '-c', shell .. ' && exec "$0" "$1"', helpers.interpreter(),
            dir .. '/s.lua' }, { stdout = dir .. '/out', env = { LUA_PATH = package.path, LUA_CPATH = package.cpath,
            LUA_INIT = false } })
        assert.equal(0, child:wait(20).code)
        local refused = 'connect, called on fd N, aka 0.0.0.0:0: Cannot assign requested address'
        assert.equal('active\tnil\nerror\t' .. refused .. '\nfalse\t' .. refused .. '\n',
            (helpers.read_file(dir .. '/out'):gsub('fd %d+', 'fd N')))
    end)
end)

describe('a child process that has the socket too', function()
    helpers.no_leftovers()

    it('does not keep the server from seeing the end (T#7256)', function()
        local f = helpers.fake_server [[ local peer = ... peer:greeting() peer:serve() peer:log('gone') ]]
        local conn = net.connect(f.uri, { fetch_schema = false })
        assert.is_true(conn:ping())
        -- It inherits whatever is not closed on exec.
        local child = helpers.spawn { 'sleep', '30' }
        conn:close()
        assert.is_true(eventually(function() return f:log() == 'gone\n' end, 3))
        assert.is_true(child:alive())
        child:stop()
        f:stop()
    end)
end)

describe('the log of a connection that tries again and again', function()
    it('has the first failure and each other one, not every attempt (gh-10506)', function()
        local dir = helpers.tempdir()
        local result = helpers.run([[
            local net, fiber = require 'cord.netbox', require 'cord.fiber'
            local path = ...
            local conn = net.connect('unix/:' .. path, { reconnect_after = 0.005, wait_connected = 0.1 })
            -- There is something now, though no socket: another reason.
            io.open(path, 'w'):close()
            fiber.sleep(0.1)
            print(conn.error)
            conn:close()
        ]], { args = { dir .. '/s' } })
        assert.equal(0, result.code)
        assert.matches('Connection refused\n$', result.stdout)
        local lines = {}
        for line in result.stderr:gmatch '[^\n]+' do lines[#lines + 1] = line end
        assert.equal(2, #lines, result.stderr)
        assert.matches('W> unix/:/.*/s: connect, .*: No such file or directory$', lines[1])
        assert.matches('W> unix/:/.*/s: connect, .*: Connection refused$', lines[2])
    end)
end)

describe('a timeout of zero', function()
    helpers.no_leftovers()

    it('is over whatever arrives, and the request is sent', function()
        local f = helpers.fake_server [[ local peer = ...; peer:greeting()
            local r = peer:read_request()
            -- Answers the next request before it was asked: its sync is known.
            peer:reply(r.sync, { '\1' }) peer:reply(r.sync + 2 ^ 24, { '\2' })
            while true do
                r = peer:read_request()
                if not r then return end
                peer:log('request', r.type)
                peer:reply(r.sync, { '\3' })
            end ]]
        local conn = net.connect(f.uri, { fetch_schema = false })
        assert.equal(1, conn:call('f'))
        -- Both replies are there by now.
        helpers.block(0.05)
        assert.equal('timed out', message(conn.call, conn, 'f', {}, { timeout = 0 }))
        for _ = 1, 20 do
            assert.equal('timed out', message(conn.call, conn, 'f', {}, { timeout = 0 }))
            assert.is_false(conn:ping { timeout = 0 })
        end
        assert.equal(3, conn:call('f'))
        conn:close()
        assert.equal(('request 10\nrequest 10\n' .. ('request 64\nrequest 10\n'):rep(20)), f:log())
        f:stop()
    end)

    it('and a schema that is still being read: the request is sent all the same', function()
        local f = helpers.fake_server [[ local peer = ...; peer:greeting()
            local one, two, three = peer:read_request(), peer:read_request(), peer:read_request()
            local r = peer:read_request()
            peer:log('request', r.type)
            for _, request in ipairs { one, two, three } do peer:reply(request.sync) end
            peer:serve() ]]
        local conn = net.connect(f.uri, { wait_connected = false })
        assert.is_true(conn:wait_state('fetch_schema', 5))
        assert.equal('timed out', message(conn.call, conn, 'f', {}, { timeout = 0 }))
        assert.is_true(conn:wait_connected(5))
        assert.equal('request 10\n', f:log())
        conn:close()
        f:stop()
    end)
end)
