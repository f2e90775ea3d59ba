-- The console's client, against a real server's console and against peers that misbehave.
local helpers = require 'spec.helpers'
local fiber = require 'cord.fiber'
local socket = require 'cord.socket'
local console = require 'cord.console'

local GREETING = ('%-63s\n%-63s\n'):format('Tarantool 2.6.0 (Lua console)', "type 'help' for interactive help")

-- A server in this process: `handler(s)` gets each connection after the greeting and the two commands of the set-up.
local function fake(handler, greeting)
    local server = assert(socket.tcp_server('127.0.0.1', 0, function(s)
        s:write(greeting or GREETING)
        if not greeting then
            s:read '\n'
            s:write '---\n- true\n...\n'
            s:read '\n'
            s:write '---\n...\n'
        end
        handler(s)
    end))
    return server, '127.0.0.1:' .. server:name().port
end

describe('cord.console', function()
    helpers.no_leftovers()

    it('refuses what is no address', function()
        local usage = 'Usage: console.connect(uri[, {timeout = seconds, on_push = function}])'
        for _, arguments in ipairs { {}, { 'localhost' }, { '' }, { '127.0.0.1:1', 5 }, { '127.0.0.1:1', { timeout = 'x' } } } do
            local ok, problem = pcall(console.connect, unpack(arguments))
            assert.is_false(ok)
            assert.equal(usage, tostring(problem))
        end
    end)

    it('says why it cannot connect', function()
        assert.same({ nil, 'Connection refused' }, { console.connect('127.0.0.1:1') })
        assert.same({ nil, 'No such file or directory' }, { console.connect('unix/:/nonexistent/socket') })
    end)

    for name, greeting in pairs {
        ['Unsupported protocol: Binary'] = ('%-63s\n%-63s\n'):format('Tarantool 2.6.0 (Binary) 7170b4af-c72f-4f07', 'c2FsdA=='),
        ['Invalid greeting'] = ('x'):rep(128),
    } do
        it('refuses a greeting: ' .. name, function()
            local server, uri = fake(function(s) s:read(1) end, greeting)
            assert.same({ nil, name }, { console.connect(uri) })
            server:close()
        end)
    end

    it('refuses a greeting that is cut short', function()
        local server, uri = fake(function() end, 'Tarantool 2.6.0 (Lua console)\n')
        assert.same({ nil, 'Invalid greeting' }, { console.connect(uri) })
        server:close()
    end)

    it('gives up on a server that does not greet', function()
        local server, uri = fake(function(s) s:read(1) end, ' ')
        assert.same({ nil, 'Connection timed out' }, { console.connect(uri, { timeout = 0.03 }) })
        server:close()
    end)

    it('gives up on a server that greets and says no more', function()
        local server, uri = fake(function(s) s:read '\n' s:read '\n' s:read(1) end, GREETING)
        assert.same({ nil, 'timed out' }, { console.connect(uri, { timeout = 0.03 }) })
        server:close()
    end)

    it('reads past the replies of requests that were given up', function()
        local server, uri = fake(function(s)
            for i = 1, 3 do
                local text = s:read '$EOF$\n'
                fiber.sleep(i < 3 and 0.03 or 0)
                s:write(('---\n- %s\n...\n'):format(text:match '(%d+)%$EOF'))
            end
            s:read(1)
        end)
        local c = console.connect(uri)
        local ok, problem = pcall(c.eval, c, '1', 0.005)
        assert.is_false(ok)
        assert.equal('TimedOut', problem.type)
        assert.equal('timed out', tostring(problem))
        ok, problem = pcall(c.eval, c, '2', { timeout = 0.005 })
        assert.is_false(ok)
        assert.equal('TimedOut', problem.type)
        assert.equal('---\n- 3\n...\n', c:eval('3', 5))
        assert.equal('active', c.state)
        c:close()
        server:close()
    end)

    it('is a cancellation point that breaks nothing', function()
        local server, uri = fake(function(s)
            for i = 1, 2 do
                s:read '$EOF$\n'
                fiber.sleep(0.01)
                s:write(('---\n- %d\n...\n'):format(i))
            end
            s:read(1)
        end)
        local c = console.connect(uri)
        local problem
        local f = fiber.create(function() problem = select(2, pcall(c.eval, c, 'x')) end)
        f:cancel()
        fiber.sleep(0.002)
        assert.equal('FiberIsCancelled', problem.type)
        assert.equal('---\n- 2\n...\n', c:eval 'y')
        c:close()
        server:close()
    end)

    it('gives each of many fibers its own reply', function()
        local server, uri = fake(function(s)
            while true do
                local text = s:read '$EOF$\n'
                if text == '' then return end
                s:write(('---\n- %s\n...\n'):format(text:match '(%d+)%$EOF'))
            end
        end)
        local c = console.connect(uri)
        local right, timed_out, fibers = 0, 0, {}
        for i = 1, 200 do
            fibers[i] = fiber.new(function()
                local ok, text = pcall(c.eval, c, tostring(i), i % 10 == 0 and 0 or nil)
                if ok and text == ('---\n- %d\n...\n'):format(i) then right = right + 1 end
                if not ok and tostring(text) == 'timed out' then timed_out = timed_out + 1 end
            end)
            fibers[i]:set_joinable(true)
        end
        for i = 1, 200 do fibers[i]:join() end
        assert.is_true(right >= 180)
        assert.equal(200, right + timed_out)
        assert.equal('---\n- 7\n...\n', c:eval '7')
        c:close()
        server:close()
    end)

    it('tells everybody who waits that the peer is gone', function()
        local server, uri = fake(function(s)
            -- All three requests are sent though the first has no reply yet.
            for _ = 1, 3 do s:read '$EOF$\n' end
            fiber.sleep(0.01)
        end)
        local c = console.connect(uri)
        local problems, fibers = {}, {}
        for i = 1, 3 do
            fibers[i] = fiber.new(function() problems[i] = select(2, pcall(c.eval, c, 'x')) end)
            fibers[i]:set_joinable(true)
        end
        for i = 1, 3 do fibers[i]:join() end
        for i = 1, 3 do assert.matches('Peer closed$', problems[i]) end
        assert.equal('error', c.state)
        assert.equal('Peer closed', c.error)
        assert.is_false(c:is_connected())
        assert.matches('Peer closed$', select(2, pcall(c.eval, c, 'x')))
        c:close()
        assert.equal('error', c.state)
        server:close()
    end)

    it('tells everybody who waits that it was closed', function()
        local server, uri = fake(function(s) s:read(1000) end)
        local c = console.connect(uri)
        local problems = {}
        for i = 1, 3 do
            fiber.create(function() problems[i] = select(2, pcall(c.eval, c, 'x')) end)
        end
        c:close()
        fiber.sleep(0.005)
        for i = 1, 3 do assert.matches('Connection closed$', problems[i]) end
        assert.equal('closed', c.state)
        server:close()
    end)

    it('refuses a text with the delimiter in it', function()
        local server, uri = fake(function(s) s:read(1) end)
        local c = console.connect(uri)
        assert.matches('contains the console', select(2, pcall(c.eval, c, 'return "$EOF$"')))
        assert.equal('Usage: connection:eval(text[, timeout])', select(2, pcall(c.eval, c)))
        assert.equal('Usage: connection:eval(text[, timeout])', select(2, pcall(c.eval, c, 'x', 'y')))
        c:close()
        server:close()
    end)

    it('writes a request larger than the buffers of the system', function()
        local size = 4 * 1024 * 1024
        local server, uri = fake(function(s)
            fiber.sleep(0.01)
            local text = s:read '$EOF$\n'
            s:write(('---\n- %d\n...\n'):format(#text))
            s:read(1)
        end)
        local c = console.connect(uri)
        assert.equal(('---\n- %d\n...\n'):format(size + 6), c:eval(('x'):rep(size), 10))
        c:close()
        server:close()
    end)

    it('finishes what a request that was given up has begun to write', function()
        local sizes = {}
        local server, uri = fake(function(s)
            fiber.sleep(0.05)
            for i = 1, 2 do
                sizes[i] = #s:read '$EOF$\n'
                s:write(('---\n- %d\n...\n'):format(i))
            end
            s:read(1)
        end)
        local c = console.connect(uri)
        local ok, problem = pcall(c.eval, c, ('x'):rep(8 * 1024 * 1024), 0.01)
        assert.is_false(ok)
        assert.equal('timed out', tostring(problem))
        assert.equal('---\n- 2\n...\n', c:eval('y', 10))
        assert.same({ 8 * 1024 * 1024 + 6, 7 }, sizes)
        c:close()
        server:close()
    end)
end)

helpers.describe_server('cord.console against tarantool', {
    init = [[
        require('console').listen('unix/:' .. dir .. '/console')
        tcp_console = require('console').listen('127.0.0.1:0')
        function slow(seconds, value) require('fiber').sleep(seconds) return value end
    ]],
}, function(get)
    local function connect(opts) return assert(console.connect('unix/:' .. get().dir .. '/console', opts)) end

    it('evaluates expressions and statements', function()
        local c = connect()
        assert.equal('unix/', c.host)
        assert.matches('^2%.', c.version)
        assert.equal('console: unix/:' .. c.port .. ' (active)', tostring(c))
        assert.equal('---\n- 3\n...\n', c:eval '1 + 2')
        assert.equal('---\n...\n', c:eval 'x = 5')
        assert.equal('---\n- 5\n- a: 1\n...\n', c:eval 'x, {a = 1}')
        assert.equal('---\n- error: boom\n...\n', c:eval 'error("boom", 0)')
        assert.equal('---\n- 10\n...\n', c:eval 'local sum = 0\nfor i = 1, 4 do\n  sum = sum + i\nend\nreturn sum')
        c:close()
    end)

    it('reaches it over TCP', function()
        local c = connect()
        local port = c:eval 'tcp_console:name().port':match '%- (%d+)'
        local over_tcp = assert(console.connect('127.0.0.1:' .. port))
        assert.equal('---\n- true\n...\n', over_tcp:eval 'true')
        assert.equal(tonumber(port), over_tcp.port)
        over_tcp:close()
        c:close()
    end)

    it('reads past the reply of a request that was given up', function()
        local c = connect()
        local ok, problem = pcall(c.eval, c, 'slow(0.1, "first")', 0.02)
        assert.is_false(ok)
        assert.equal('TimedOut', problem.type)
        assert.equal('---\n- second\n...\n', c:eval('slow(0, "second")', 5))
        assert.equal('---\n- third\n...\n', c:eval('slow(0, "third")', 5))
        c:close()
    end)

    it('serves many fibers in the order of their requests', function()
        local c = connect()
        local got, fibers = {}, {}
        for i = 1, 50 do
            fibers[i] = fiber.new(function() got[i] = c:eval('slow(0.001, ' .. i .. ')', 10) end)
            fibers[i]:set_joinable(true)
        end
        for i = 1, 50 do
            assert.is_true((fibers[i]:join()))
            assert.equal(('---\n- %d\n...\n'):format(i), got[i])
        end
        c:close()
    end)

    it('hands messages to on_push', function()
        local messages = {}
        local c = connect { on_push = function(text) messages[#messages + 1] = text end }
        assert.equal('---\n- true\n- done\n...\n', c:eval 'box.session.push("half"), "done"')
        assert.equal(1, #messages)
        assert.matches('half', messages[1])
        c:close()
    end)

    it('follows a change of the output format', function()
        local c = connect()
        assert.equal('true;', c:eval '\\set output lua')
        assert.equal('{1, 2};', c:eval '{1, 2}')
        assert.equal('---\n- true\n...\n', c:eval '\\set output yaml')
        assert.equal('---\n- 1\n...\n', c:eval '1')
        c:close()
    end)

    it('sees the server end', function()
        local c = connect()
        local ok, problem = pcall(c.eval, c, 'os.exit(0)', 5)
        assert.is_false(ok)
        assert.matches('Peer closed$', problem)
        assert.equal('error', c.state)
    end)
end)
