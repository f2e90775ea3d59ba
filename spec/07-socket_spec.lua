-- cord.socket: what a script sees, with the results and texts of Tarantool's `socket`.
local helpers = require 'spec.helpers'
local fiber = require 'cord.fiber'
local socket = require 'cord.socket'
local errno = require 'cord.errno'

local function pair() return socket.socketpair('AF_UNIX', 'SOCK_STREAM', 0) end

-- The first lookup opens a descriptor that stays, with which the other threads wake the loop.
setup(function() socket.getaddrinfo('localhost', 1) end)

-- A joinable fiber.
local function spawn(body, ...)
    local f = fiber.new(body, ...)
    f:set_joinable(true)
    return f
end

local function server(handler)
    local s = assert(socket.tcp_server('127.0.0.1', 0, handler))
    return s, s:name().port
end

local function close_all(...)
    for i = 1, select('#', ...) do (select(i, ...)):close() end
end

-- The text of what a call raised, without the place.
local function problem_of(f, ...)
    local ok, problem = pcall(f, ...)
    assert(not ok, 'it raised nothing')
    return tostring(problem)
end

describe('a socket', function()
    helpers.no_leftovers()

    it('is made of names or numbers', function()
        local s = socket('AF_INET', 'SOCK_STREAM', 'tcp')
        assert.equal('fd ' .. s:fd() .. ', aka 0.0.0.0:0', tostring(s))
        assert.equal(0, s:errno())
        assert.is_nil(s:error())
        assert.is_true(s:nonblock())
        close_all(s, socket(2, 1, 6), socket('PF_UNIX', 'SOCK_DGRAM', 0), socket('AF_INET6', 'SOCK_DGRAM', 'udp'))
    end)

    for name, case in pairs {
        ['domain'] = { { 'X', 'SOCK_STREAM', 'tcp' }, 'EINVAL' },
        ['type'] = { { 'AF_INET', 'Y', 'tcp' }, 'EINVAL' },
        ['protocol'] = { { 'AF_INET', 'SOCK_STREAM', 'bogus' }, 'EPROTOTYPE' },
        ['no protocol'] = { { 'AF_INET', 'SOCK_STREAM' }, 'EINVAL' },
        ['pair of types'] = { { 'AF_INET', 'SOCK_STREAM', 'udp' }, 'EPROTONOSUPPORT' },
    } do
        it('of an unknown ' .. name .. ' is nil and an errno', function()
            assert.is_nil(socket(unpack(case[1])))
            assert.equal(errno[case[2]], errno())
        end)
    end

    it('is closed once', function()
        local s = socket('AF_INET', 'SOCK_STREAM', 'tcp')
        assert.is_true(s:close())
        for _, method in ipairs { 'close', 'fd', 'errno', 'read', 'write', 'accept', 'name', 'readable', 'detach', 'shutdown' } do
            assert.matches('attempt to use closed socket$', problem_of(s[method], s), method)
        end
        assert.matches('attempt to use closed socket$', problem_of(tostring, s))
        assert.matches('Usage: socket:method%(%), called with non%-socket$', problem_of(s.read, 5, 6))
        assert.matches('Usage: socket:method%(%), called with non%-socket$', problem_of(s.fd, { _handle = 7 }))
        assert.matches('Usage: socket:method%(%)$', problem_of(s.read))
    end)

    it('blames the line that called', function()
        local s = socket('AF_INET', 'SOCK_STREAM', 'tcp')
        s:close()
        for _, body in ipairs {
            function() local x = s:read(1) return x end,
            function() local x = s:write('x') return x end,
            function() local x = s:readable(0) return x end,
            function() local x = s:name() return x end,
        } do
            local line = debug.getinfo(body, 'S').linedefined
            assert.equal('spec/07-socket_spec.lua:' .. line .. ': attempt to use closed socket', problem_of(body):gsub('^%./', ''), nil)
        end
        assert.matches('^%.?/?spec/07.socket_spec.lua:%d+: Usage: socket.tcp_server%(host, port, handler | opts%)$', problem_of(function()
            local x = socket.tcp_server('127.0.0.1', 0)
            return x
        end))
    end)

    it('is closed by the collector', function()
        local before = helpers.open_descriptors()
        for _ = 1, 10 do pair() end
        collectgarbage()
        collectgarbage()
        assert.same(before, helpers.open_descriptors())
    end)

    it('is not closed by the collector once it is detached', function()
        local s, other = pair()
        local fd = s:fd()
        s:detach()
        assert.matches('attempt to use closed socket$', problem_of(s.fd, s))
        s = nil -- luacheck: ignore
        collectgarbage()
        collectgarbage()
        local again = socket.from_fd(fd)
        assert.equal(fd, again:fd())
        other:write 'x'
        assert.equal('x', again:read(1, 1))
        assert.equal('fd must be a number', (problem_of(socket.from_fd, 'x'):gsub('^.*: ', '')))
        close_all(again, other)
    end)

    it('is not inherited by programs that are run', function()
        local s, other = pair()
        local pipe = io.popen('ls /proc/self/fd 2>/dev/null')
        local listed = pipe:read '*a'
        pipe:close()
        if listed == '' then return pending 'no /proc on this system' end
        assert.is_nil((' ' .. listed:gsub('%s+', ' ')):find(' ' .. s:fd() .. ' ', 1, true))
        close_all(s, other)
    end)

    it('knows its address and that of its peer', function()
        local listener = socket('AF_INET', 'SOCK_STREAM', 'tcp')
        assert.is_nil(listener:peer())
        assert.equal('Transport endpoint is not connected', listener:error())
        assert.is_true(listener:bind('127.0.0.1', 0))
        assert.is_nil(listener:error())
        local name = listener:name()
        assert.same({ host = '127.0.0.1', port = name.port, family = 'AF_INET', type = 'SOCK_STREAM', protocol = 'tcp' }, name)
        assert.equal('127.0.0.1:' .. name.port, tostring(name))
        assert.is_true(listener:listen())
        local client = socket('AF_INET', 'SOCK_STREAM', 'tcp')
        if not client:sysconnect('127.0.0.1', name.port) then
            assert.equal(errno.EINPROGRESS, client:errno())
            assert.is_true(client:writable(5))
        end
        assert.equal(name.port, client:peer().port)
        assert.is_true(listener:readable(5))
        local accepted, from = listener:accept()
        assert.same({ host = '127.0.0.1', port = client:name().port, family = 'AF_INET' }, from)
        assert.equal(('fd %d, aka 127.0.0.1:%d, peer 127.0.0.1:%d'):format(accepted:fd(), name.port, from.port), tostring(accepted))
        assert.is_true(accepted:nonblock())
        local json = require('cord.json').decode(require('cord.json').encode(accepted))
        assert.equal(accepted:fd(), json.fd)
        assert.equal(from.port, json.peer.port)
        assert.is_nil(listener:accept())
        assert.equal(errno.EAGAIN, listener:errno())
        close_all(listener, client, accepted)
    end)

    it('takes numeric addresses only, so that nothing blocks', function()
        local s = socket('AF_INET', 'SOCK_STREAM', 'tcp')
        for _, host in ipairs { 'localhost', '', 'no.such.host' } do
            assert.is_false(s:bind(host, 0))
            assert.equal(errno.EINVAL, s:errno())
            assert.is_false(s:sysconnect(host, 1))
            assert.equal('Invalid argument', s:error())
        end
        s:close()
    end)

    it('has the modes of a descriptor', function()
        local s, other = pair()
        assert.is_true(s:nonblock())
        assert.is_false(s:nonblock(false))
        assert.is_false(s:nonblock())
        assert.is_true(s:nonblock(true))
        close_all(s, other)
    end)

    it('has options', function()
        local s = socket('AF_INET', 'SOCK_STREAM', 'tcp')
        assert.equal(0, s:getsockopt('SOL_SOCKET', 'SO_REUSEADDR'))
        assert.is_true(s:setsockopt('SOL_SOCKET', 'SO_REUSEADDR', true))
        assert.equal(1, s:getsockopt('socket', 'SO_REUSEADDR'))
        for _, level in ipairs { 'tcp', 'SOL_TCP', 'IPPROTO_TCP', 6 } do
            assert.equal(0, s:getsockopt(level, 'TCP_NODELAY'))
        end
        assert.is_true(s:setsockopt('tcp', 'TCP_NODELAY', 1))
        assert.equal(1, s:getsockopt('tcp', 'TCP_NODELAY'))
        assert.equal(1, s:getsockopt('SOL_SOCKET', 'SO_TYPE'))
        assert.equal('string', type(s:getsockopt('tcp', 'TCP_CONGESTION')))
        assert.is_nil(s:getsockopt('bogus', 'X'))
        assert.equal('Protocol wrong type for socket', s:error())
        assert.is_false(s:setsockopt('bogus', 'X', 1))
        for text, arguments in pairs {
            ['Unknown socket option name: SO_FOO'] = { s.setsockopt, s, 'SOL_SOCKET', 'SO_FOO', true },
            ['Socket option SO_TYPE is read only'] = { s.setsockopt, s, 'SOL_SOCKET', 'SO_TYPE', 1 },
            ['Socket option SO_LINGER is read only'] = { s.setsockopt, s, 'SOL_SOCKET', 'SO_LINGER', 1 },
            ['Use s:linger()'] = { s.getsockopt, s, 'SOL_SOCKET', 'SO_LINGER' },
            ['Unsupported socket option: TCP_INFO'] = { s.getsockopt, s, 'tcp', 'TCP_INFO' },
        } do
            assert.equal(text, problem_of(unpack(arguments)))
        end
        assert.same({ false, 0 }, { s:linger() })
        assert.same({ true, 5 }, { s:linger(true, 5) })
        assert.same({ true, 5 }, { s:linger() })
        assert.same({ false, 0 }, { s:linger(false) })
        s:close()
    end)
end)

describe('reading', function()
    helpers.no_leftovers()

    it('gives as many bytes as were asked for, and what is left at the end', function()
        local a, b = pair()
        b:write 'hello'
        assert.equal('he', a:read(2))
        assert.equal('', a:read(0))
        b:write ' world'
        assert.equal('llo world', a:read { chunk = 9 })
        b:write 'rest'
        b:shutdown 'W'
        assert.equal('rest', a:read(100))
        assert.equal('', a:read(100))
        assert.equal('', a:read '\n')
        assert.equal(0, a:errno())
        close_all(a, b)
    end)

    it('gives text up to a delimiter, the nearest of several', function()
        local a, b = pair()
        b:write 'one\ntwo\r\nthree;four'
        assert.equal('one\n', a:read '\n')
        assert.equal('two\r\n', a:read { delimiter = '\r\n' })
        assert.equal('three;', a:read { delimiter = { '\n', ';', 'r;f' } })
        assert.equal('fo', a:read { delimiter = ';', chunk = 2 })
        b:write ';'
        assert.equal('ur;', a:read { line = ';', size = 100 })
        assert.equal('', a:read { delimiter = '\n', chunk = 0 })
        close_all(a, b)
    end)

    it('finds a delimiter that comes in pieces', function()
        local a, b = pair()
        local f = spawn(function() return a:read('<end>', 5), a:read({ delimiter = { '>>', '-->' } }, 5) end)
        for piece in ('some text <en><end>more --->>'):gmatch '.' do
            b:write(piece)
            fiber.sleep(0)
            fiber.yield()
        end
        assert.same({ true, 'some text <en><end>', 'more --->' }, { f:join() })
        assert.equal('>', a:read(1))
        close_all(a, b)
    end)

    it('looks again from the start for another delimiter', function()
        local a, b = pair()
        b:write 'a,b;c'
        assert.is_nil(a:read('\n', 0.001))
        assert.equal('Connection timed out', a:error())
        assert.equal(errno.ETIMEDOUT, a:errno())
        assert.equal('a,', a:read(',', 1))
        assert.equal('b;', a:read(';', 1))
        close_all(a, b)
    end)

    it('reads much, and more than the limit of a line', function()
        local a, b = pair()
        local size = 3 * 1000 * 1000
        local f = spawn(function()
            assert(b:write(('x'):rep(size)) == size)
            b:write '\n'
            b:write(('y'):rep(size))
            b:close()
        end)
        local line = a:read '\n'
        assert.equal(size + 1, #line)
        assert.equal(('y'):rep(1000), a:read(1000))
        assert.equal(size - 1000, #a:read(size * 2))
        f:join()
        a:close()
    end)

    it('knows the usual mistakes', function()
        local a, b = pair()
        local usage = 'Usage: s:read(delimiter|chunk|{delimiter = x, chunk = x}, timeout)'
        for _, what in ipairs { false, true, { delimiter = 5 } } do
            assert.equal(usage, problem_of(a.read, a, what))
        end
        assert.equal(usage, problem_of(a.read, a))
        assert.equal('socket:read(): limit can not be negative', problem_of(a.read, a, -1))
        assert.equal('socket:sysread(): size can not be negative', problem_of(a.sysread, a, -1))
        local s = socket('AF_INET', 'SOCK_STREAM', 'tcp')
        assert.is_nil(s:read(10, 0.01))
        assert.equal('Transport endpoint is not connected', s:error())
        close_all(a, b, s)
    end)

    it('is a cancellation point, and leaves what came', function()
        local a, b = pair()
        local problem
        local f = fiber.create(function() problem = select(2, pcall(a.read, a, 10)) end)
        b:write 'half'
        fiber.sleep(0.005)
        f:cancel()
        fiber.sleep(0)
        assert.equal('FiberIsCancelled', problem.type)
        assert.equal('half', a:read(4))
        close_all(a, b)
    end)

    it('raises when the socket is closed meanwhile', function()
        local a, b = pair()
        local f = spawn(function() a:read(10) end)
        fiber.sleep(0.002)
        a:close()
        local ok, problem = f:join()
        assert.is_false(ok)
        assert.matches('attempt to use closed socket$', tostring(problem))
        b:close()
    end)

    it('reads by single calls', function()
        local a, b = pair()
        assert.is_nil(a:sysread(10))
        assert.equal(errno.EAGAIN, a:errno())
        b:write 'hello'
        assert.equal('hel', a:sysread(3))
        local ffi = require 'ffi'
        local buffer = ffi.new 'char[10]'
        assert.equal(2, a:sysread(buffer, 10))
        assert.equal('lo', ffi.string(buffer, 2))
        b:close()
        assert.equal('', a:sysread())
        a:close()
    end)
end)

describe('writing', function()
    helpers.no_leftovers()

    it('writes everything, however long it takes', function()
        local a, b = pair()
        local text = ('0123456789'):rep(200 * 1000)
        local f = spawn(function()
            local parts = {}
            repeat
                fiber.sleep(0)
                parts[#parts + 1] = b:read(50 * 1000)
            until parts[#parts] == ''
            return table.concat(parts)
        end)
        assert.equal(#text, a:write(text))
        assert.equal(0, a:write '')
        a:close()
        local ok, got = f:join()
        assert.is_true(ok)
        assert.is_true(got == text)
        b:close()
    end)

    it('ends at its deadline', function()
        local a, b = pair()
        assert.is_nil(a:write(('x'):rep(10 * 1000 * 1000), 0.02))
        assert.equal('Connection timed out', a:error())
        assert.is_false(a:writable(0))
        close_all(a, b)
    end)

    it('to nobody is an error, not a signal', function()
        local a, b = pair()
        b:close()
        assert.is_nil(a:write 'x')
        assert.equal('Broken pipe', a:error())
        assert.is_nil(a:syswrite 'x')
        assert.is_nil(a:send 'x')
        assert.equal(errno.EPIPE, a:errno())
        a:close()
    end)

    it('to nobody through a pipe is an error, not a signal', function()
        local out = helpers.run_ok [[
            local ffi, socket = require 'ffi', require 'cord.socket'
            ffi.cdef 'int pipe(int *); int close(int);'
            local fds = ffi.new 'int[2]'
            ffi.C.pipe(fds)
            local r, w = socket.from_fd(fds[0]), socket.from_fd(fds[1])
            r:nonblock(true)
            w:nonblock(true)
            print(w:write 'hello', r:read(5), r:readable(0), w:writable(0))
            r:close()
            print(w:write 'x', w:error())
        ]]
        assert.equal('5\thello\tfalse\ttrue\nnil\tBroken pipe\n', out)
    end)

    it('can be shut down in one direction', function()
        local a, b = pair()
        a:write 'question'
        assert.is_true(a:shutdown 'W')
        assert.equal('question', b:read(100))
        assert.equal(6, b:write 'answer')
        b:close()
        assert.equal('answer', a:read(100))
        assert.is_nil(a:write 'x')
        a:close()
        local s = socket('AF_INET', 'SOCK_STREAM', 'tcp')
        assert.is_false(s:shutdown())
        assert.equal('Transport endpoint is not connected', s:error())
        s:close()
    end)

    it('writes by single calls', function()
        local a, b = pair()
        local ffi = require 'ffi'
        assert.equal(3, a:syswrite 'abc')
        assert.equal(2, a:syswrite(ffi.cast('const char *', 'defg'), 2))
        assert.equal(2, a:send 'fg')
        assert.equal('abcdefg', b:read(7))
        local usage = 'Usage: socket:syswrite(data) or socket:syswrite(const char *, size)'
        assert.equal(usage, problem_of(a.syswrite, a))
        assert.equal(usage, problem_of(a.syswrite, a, 5))
        assert.equal('Usage: socket:write(octets[, timeout])', problem_of(a.write, a, 5))
        assert.is_nil(a:send('x', 'MSG_FOO'))
        assert.equal(errno.EINVAL, a:errno())
        close_all(a, b)
    end)
end)

describe('waiting', function()
    helpers.no_leftovers()

    it('tells what a socket is ready for', function()
        local a, b = pair()
        assert.is_false(a:readable(0.001))
        assert.equal('Connection timed out', a:error())
        assert.is_true(a:writable(5))
        assert.is_nil(a:error())
        assert.equal('W', a:wait(5))
        b:write 'x'
        assert.is_true(a:readable())
        assert.equal('RW', a:wait())
        local s = socket('AF_INET', 'SOCK_DGRAM', 'udp')
        s:bind('127.0.0.1', 0)
        assert.is_false(s:readable(0))
        assert.equal('W', s:wait(0))
        local listener = socket('AF_UNIX', 'SOCK_STREAM', 0)
        listener:bind('unix/', helpers.tempdir() .. '/s')
        listener:listen()
        assert.equal(0, listener:wait(0.001))
        close_all(a, b, s, listener)
    end)
end)

describe('datagrams', function()
    helpers.no_leftovers()

    it('keep their bounds and tell their senders', function()
        local a, b = socket('AF_INET', 'SOCK_DGRAM', 'udp'), socket('AF_INET', 'SOCK_DGRAM', 'udp')
        assert.is_true(a:bind('127.0.0.1', 0))
        assert.is_true(b:bind('127.0.0.1', 0))
        local port = a:name().port
        assert.is_nil(a:recvfrom())
        assert.equal(errno.EAGAIN, a:errno())
        assert.is_nil(a:recv())
        assert.equal('Resource temporarily unavailable', a:error())
        assert.equal(5, b:sendto('127.0.0.1', port, 'hello'))
        assert.equal(3000, b:sendto('127.0.0.1', port, ('x'):rep(3000)))
        assert.equal(5, b:sendto('127.0.0.1', port, 'again'))
        assert.is_true(a:readable(5))
        local from = { host = '127.0.0.1', port = b:name().port, family = 'AF_INET' }
        assert.same({ 'hello', from }, { a:recvfrom() })
        assert.equal(3000, #a:recv())
        assert.same({ 'ag', from }, { a:recvfrom(2) })
        assert.is_nil(a:recv(10))
        assert.is_true(b:sendto('127.0.0.1', port, ''))
        assert.is_nil(b:sendto('127.0.0.1', port, ('x'):rep(70000)))
        assert.equal('Message too long', b:error())
        assert.is_nil(b:sendto('localhost', port, 'x'))
        assert.equal('Invalid argument', b:error())
        assert.is_nil(a:recv(5, 'MSG_FOO'))
        assert.equal(errno.EINVAL, a:errno())
        assert.equal(1, b:sendto('127.0.0.1', port, 'p'))
        assert.is_true(a:readable(5))
        assert.equal('p', a:recv(1, { 'MSG_PEEK' }))
        assert.equal('p', a:recv(1))
        close_all(a, b)
    end)

    it('go over unix sockets', function()
        local path = helpers.tempdir() .. '/d'
        local a, b = socket('AF_UNIX', 'SOCK_DGRAM', 0), socket('AF_UNIX', 'SOCK_DGRAM', 0)
        assert.is_true(a:bind('unix/', path))
        assert.equal(2, b:sendto('unix/', path, 'hi'))
        assert.is_true(a:readable(5))
        assert.equal('hi', a:recv())
        close_all(a, b)
    end)
end)

describe('getaddrinfo', function()
    helpers.no_leftovers()

    it('looks numeric addresses up', function()
        local v4 = { host = '127.0.0.1', port = 80, family = 'AF_INET', type = 'SOCK_STREAM', protocol = 'tcp' }
        assert.same({ v4 }, socket.getaddrinfo('127.0.0.1', 80, { type = 'SOCK_STREAM' }))
        assert.same({ v4 }, socket.getaddrinfo('127.0.0.1', '80', 5,
            { type = 'SOCK_STREAM', protocol = 'tcp', family = 'AF_INET', flags = { 'AI_NUMERICHOST', 'AI_PASSIVE' } }))
        local v6 = socket.getaddrinfo('::1', 3301, { protocol = 'udp' })
        assert.same({ { host = '::1', port = 3301, family = 'AF_INET6', type = 'SOCK_DGRAM', protocol = 'udp' } }, v6)
        local hosts = {}
        for _, address in ipairs(socket.getaddrinfo(nil, 80, { type = 'SOCK_STREAM' })) do hosts[address.host] = true end
        assert.is_true(hosts['127.0.0.1'])
    end)

    it('looks names up on another thread, while fibers run', function()
        local turns = 0
        local ticking = true
        fiber.create(function()
            while ticking do
                turns = turns + 1
                fiber.yield()
            end
        end)
        local list = socket.getaddrinfo('localhost', 'http', 10, { type = 'SOCK_STREAM', family = 'AF_INET' })
        ticking = false
        assert.same({ { host = '127.0.0.1', port = 80, family = 'AF_INET', type = 'SOCK_STREAM', protocol = 'tcp' } }, list)
        assert.is_true(turns > 1)
        -- And alone: the main fiber waits for nothing else.
        assert.equal('127.0.0.1', socket.getaddrinfo('localhost', 80, { family = 'AF_INET' })[1].host)
    end)

    it('serves many fibers at once', function()
        local fibers = {}
        for i = 1, 50 do
            fibers[i] = spawn(function()
                return socket.getaddrinfo('localhost', i, { family = 'AF_INET', type = 'SOCK_STREAM' })[1].port
            end)
        end
        for i = 1, 50 do assert.same({ true, i }, { fibers[i]:join() }) end
    end)

    it('tells what it cannot find', function()
        for _, hint in ipairs { 'type', 'family', 'flags' } do
            assert.same({ nil, 'Invalid argument' }, { socket.getaddrinfo('127.0.0.1', 80, 1, { [hint] = 'BOGUS' }) })
        end
        assert.same({ nil, 'Protocol wrong type for socket' }, { socket.getaddrinfo('127.0.0.1', 80, 1, { protocol = 'BOGUS' }) })
        assert.equal(errno.EPROTOTYPE, errno())
        local list, problem = socket.getaddrinfo('127.0.0.1', 'no such service')
        assert.is_nil(list)
        assert.matches('^getaddrinfo: ', problem)
        assert.equal(errno.EIO, errno())
        assert.same({ nil, 'getaddrinfo: Name or service not known' },
            { socket.getaddrinfo('not.numeric', 80, { flags = 'AI_NUMERICHOST' }) })
    end)

    it('ends at its deadline, and the late answer disturbs nobody', function()
        for _ = 1, 50 do
            -- The answer may be there at once, if the other thread is quick.
            local list, problem = socket.getaddrinfo('localhost', 80, 0)
            if not list then
                assert.equal('timed out', problem)
                assert.equal(errno.ETIMEDOUT, errno())
            end
        end
        assert.equal('127.0.0.1', socket.getaddrinfo('localhost', 80, { family = 'AF_INET' })[1].host)
        fiber.sleep(0.01)
    end)

    it('is a cancellation point', function()
        local problem
        local f = fiber.create(function() problem = select(2, pcall(socket.getaddrinfo, 'localhost', 80)) end)
        f:cancel()
        fiber.sleep(0)
        assert.equal('FiberIsCancelled', problem.type)
    end)
end)

describe('tcp_connect', function()
    helpers.no_leftovers()

    it('connects to numbers, names and paths', function()
        local s, port = server(function(c) c:write 'hello' end)
        for _, host in ipairs { '127.0.0.1', 'localhost' } do
            local c = assert(socket.tcp_connect(host, port))
            assert.equal(0, errno())
            assert.equal(0, c:errno())
            assert.equal('hello', c:read(10))
            c:close()
        end
        s:close()
        local path = helpers.tempdir() .. '/s'
        local u = assert(socket.tcp_server('unix/', path, function(c) c:write 'unix' end))
        local c = assert(socket.tcp_connect('unix/', path))
        assert.equal('unix', c:read(10))
        assert.equal('fd ' .. c:fd() .. ', aka unix/:, peer unix/:' .. path, tostring(c))
        close_all(c, u)
    end)

    it('tells why not', function()
        assert.same({ nil, 'Connection refused' }, { socket.tcp_connect('127.0.0.1', 1) })
        assert.equal(errno.ECONNREFUSED, errno())
        assert.same({ nil, 'No such file or directory' }, { socket.tcp_connect('unix/', '/nonexistent') })
        assert.same({ nil, 'Connection timed out' }, { socket.tcp_connect('127.0.0.1', 1, 0) })
        local c, problem = socket.tcp_connect('127.0.0.1', 'no such service')
        assert.is_nil(c)
        assert.matches('^getaddrinfo: ', problem)
        assert.same({ nil, 'No buffer space available' }, { socket.tcp_connect('unix/', ('x'):rep(200)) })
    end)

    -- A listener whose queue is full: who connects now has to wait.
    local function full_listener()
        local listener = socket('AF_INET', 'SOCK_STREAM', 'tcp')
        listener:bind('127.0.0.1', 0)
        listener:listen(0)
        local port, clients = listener:name().port, {}
        for i = 1, 20 do
            local c = socket('AF_INET', 'SOCK_STREAM', 'tcp')
            clients[i] = c
            c:sysconnect('127.0.0.1', port)
            if not c:writable(0.02) then break end
        end
        return listener, port, function()
            close_all(unpack(clients))
            listener:close()
        end
    end

    it('ends at its deadline', function()
        local _, port, close = full_listener()
        local began = helpers.now()
        local c, problem = socket.tcp_connect('127.0.0.1', port, 0.03)
        if c then
            c:close()
            close()
            return pending 'this system queues more connections than it was told to'
        end
        assert.equal('Connection timed out', problem)
        assert.is_true(helpers.now() - began >= 0.029)
        close()
    end)

    it('is a cancellation point, and leaves no descriptor', function()
        local _, port, close = full_listener()
        local ok, problem
        local f = fiber.create(function()
            ok, problem = pcall(socket.tcp_connect, '127.0.0.1', port)
            if ok then problem:close() end
        end)
        f:cancel()
        fiber.sleep(0.005)
        close()
        if ok then return pending 'this system queues more connections than it was told to' end
        assert.equal('FiberIsCancelled', problem.type)
    end)
end)

describe('tcp_server', function()
    helpers.no_leftovers()

    it('serves each client in a fiber of its own', function()
        local names = {}
        local s, address = assert(socket.tcp_server('127.0.0.1', 0, { name = 'echo', handler = function(c, from)
            names[#names + 1] = fiber.name() == ('echo/%s:%s'):format(from.host, from.port)
            repeat
                local line = c:read '\n'
                c:write(line)
            until line == ''
        end }))
        assert.equal('AF_INET', address.family)
        assert.equal('127.0.0.1', address.host)
        local fibers = {}
        for i = 1, 20 do
            fibers[i] = spawn(function()
                local c = assert(socket.tcp_connect('127.0.0.1', s:name().port))
                for j = 1, 10 do
                    c:write(i .. ' ' .. j .. '\n')
                    assert(c:read '\n' == i .. ' ' .. j .. '\n')
                end
                c:close()
                return i
            end)
        end
        for i = 1, 20 do assert.same({ true, i }, { fibers[i]:join() }) end
        assert.equal(20, #names)
        for _, right in ipairs(names) do assert.is_true(right) end
        s:close()
    end)

    it('asks for options before it binds, and for the backlog', function()
        local fd
        local s = assert(socket.tcp_server('127.0.0.1', 0, {
            prepare = function(listener)
                fd = listener:fd()
                listener:setsockopt('SOL_SOCKET', 'SO_REUSEADDR', true)
                return 5
            end,
            handler = function() end,
        }))
        assert.equal(s:fd(), fd)
        assert.equal(1, s:getsockopt('SOL_SOCKET', 'SO_ACCEPTCONN'))
        assert.same({ nil, 'Address already in use' }, { socket.tcp_server('127.0.0.1', s:name().port, function() end) })
        s:close()
    end)

    it('goes on after a handler that raises, and closes its client', function()
        local out = helpers.run_ok [[
            local fiber, socket = require 'cord.fiber', require 'cord.socket'
            local s = socket.tcp_server('127.0.0.1', 0, function() error 'in the handler' end)
            for _ = 1, 2 do
                local c = socket.tcp_connect('127.0.0.1', s:name().port)
                print('[' .. c:read(10) .. ']')
                c:close()
            end
            s:close()
            fiber.sleep(0.01)
        ]]
        assert.equal('[]\n[]\n', out)
    end)

    it('removes the file of its unix socket, and a dead one before it', function()
        local path = helpers.tempdir() .. '/s'
        local dead = socket('AF_UNIX', 'SOCK_STREAM', 0)
        assert.is_true(dead:bind('unix/', path))
        dead:close()
        assert.is_truthy(helpers.which 'true')
        local log = require 'cord.log'
        log.level 'error'
        local s = assert(socket.tcp_server('unix/', path, function() end))
        assert.same({ nil, 'Address already in use' }, { socket.tcp_server('unix/', path, function() end) })
        log.level 'info'
        assert.equal(path, s:name().port)
        s:close()
        assert.same({ nil, 'No such file or directory' }, { socket.tcp_connect('unix/', path) })
        assert.same({ nil, 'No such file or directory' }, { socket.tcp_server('unix/', path .. '/x/y', function() end) })
    end)

    it('can be made in two steps', function()
        local s, address = assert(socket.tcp_server_create('127.0.0.1', 0, { prepare = function() return 10 end }))
        assert.equal('SOCK_STREAM', address.type)
        local f = spawn(socket.tcp_server_loop, s, function(c) c:write 'looped' end)
        local c = socket.tcp_connect('127.0.0.1', s:name().port)
        assert.equal('looped', c:read(10))
        close_all(c, s)
        assert.is_true((f:join()))
    end)

    it('knows the usual mistakes', function()
        for _, arguments in ipairs {
            {}, { '127.0.0.1', 0 }, { '127.0.0.1', 0, {} }, { '127.0.0.1', 0, { handler = print, prepare = 1 } },
        } do
            assert.equal('Usage: socket.tcp_server(host, port, handler | opts)', problem_of(socket.tcp_server, unpack(arguments)))
        end
        assert.equal('Usage: socket.tcp_server_create(host, port, prepare | opts)', problem_of(socket.tcp_server_create, '127.0.0.1', 0, 5))
        assert.equal('Usage: socket.tcp_server_loop(socket, handler | opts)', problem_of(socket.tcp_server_loop, nil, 5))
    end)
end)

describe("LuaSocket's calls", function()
    helpers.no_leftovers()

    it('serve and connect', function()
        local s = assert(socket.bind('127.0.0.1', 0, 5))
        local host, port, family = s:getsockname()
        assert.same({ '127.0.0.1', 'inet' }, { host, family })
        assert.matches('^tcp{server}: fd=%d+$', tostring(s))
        local f = spawn(function()
            local c = assert(s:accept())
            local line = c:receive()
            local number = c:receive(3)
            c:send(line .. '|' .. number .. '|' .. c:receive('*a', '>'))
            c:close()
        end)
        local c = assert(socket.connect(host, port))
        assert.matches('^tcp{client}: fd=%d+$', tostring(c))
        assert.equal(5, c:send 'one\n2')
        assert.equal(5, c:send('x34restx', 2, 5))
        assert.equal(7, c:send('x34restx', 6, 7))
        assert.equal(1, c:shutdown 'send')
        assert.equal('one|234|>rest', c:receive '*a')
        assert.same({ nil, 'closed', '' }, { c:receive '*l' })
        assert.same({ nil, 'closed', 'p' }, { c:receive(5, 'p') })
        assert.is_true((f:join()))
        assert.equal(1, c:close())
        assert.equal(1, s:close())
        assert.same({ nil, 'Connection refused' }, { socket.connect('127.0.0.1', 1) })
        assert.equal('Usage: luasocket.connect(host, port)', problem_of(socket.connect))
        assert.equal('Usage: luasocket.bind(host, port [, backlog])', problem_of(socket.bind, 'x'))
    end)

    it('make masters that become servers or clients, with timeouts', function()
        local s = assert(socket.tcp())
        assert.matches('^tcp{master}: fd=%d+$', tostring(s))
        assert.equal(1, s:setoption('reuseaddr', true))
        assert.equal(1, s:setoption('linger', { on = true, timeout = 3 }))
        assert.matches('Unknown socket option name: x$', problem_of(s.setoption, s, 'x', 1))
        assert.equal(1, s:bind('127.0.0.1', 0))
        assert.equal(1, s:listen(5))
        assert.equal(1, s:settimeout(0.01))
        assert.same({ nil, 'Connection timed out' }, { s:accept() })
        local _, port = s:getsockname()
        local c = socket.tcp()
        assert.equal(1, c:connect('127.0.0.1', port))
        assert.equal(port, select(2, c:getpeername()))
        c:settimeout(0.01)
        assert.same({ nil, 'Connection timed out' }, { c:receive() })
        local accepted = s:accept()
        accepted:send 'hello\n'
        c:settimeout(5)
        assert.equal('hello', c:receive())
        assert.is_nil(s.receive)
        assert.is_nil(accepted.connect)
        close_all(s, c, accepted)
    end)
end)

describe('errno', function()
    it('has the names of the system and its texts', function()
        assert.equal(22, errno.EINVAL)
        assert.equal('Invalid argument', errno.strerror(errno.EINVAL))
        errno(errno.EAGAIN)
        assert.equal(errno.EAGAIN, errno())
        assert.equal('Resource temporarily unavailable', errno.strerror())
        assert.is_nil(errno.ENOSUCH)
        assert.matches("Can't create new errno constants$", problem_of(function() errno.EFOO = 5 end))
    end)
end)

describe('in a hot loop', function()
    for _, flag in ipairs { '-Ohotloop=1', '-joff' } do
        it('a socket waits under ' .. flag .. ' (tarantool#4491)', function()
            local out = helpers.run_ok([[
                local fiber, socket = require 'cord.fiber', require 'cord.socket'
                local a, b = socket.socketpair('AF_UNIX', 'SOCK_STREAM', 0)
                fiber.create(function()
                    for _ = 1, 20000 do b:write(b:read(1)) end
                end)
                local right = 0
                for i = 1, 20000 do
                    local sent = string.char(i % 256)
                    a:write(sent)
                    if a:read(1) == sent then right = right + 1 end
                end
                print(right)
            ]], { flags = { flag } })
            assert.equal('20000\n', out)
        end)
    end
end)

describe('a child process', function()
    it('does not keep a closed connection open (tarantool#7256)', function()
        local s, port = server(function(c) c:write 'x' end)
        local c = socket.tcp_connect('127.0.0.1', port)
        local child = helpers.spawn({ 'sleep', '5' })
        assert.equal('x', c:read(10, 2))
        assert.equal('', c:read(10, 2))
        assert.is_true(child:alive())
        child:kill(9)
        child:wait()
        c:close()
        s:close()
        fiber.sleep(0.01)
    end)
end)

-- The same snippets here and under Tarantool.
local same = require('spec.fiber_helpers').same
describe('sockets', function()
    local HEAD = [[
        local socket = tarantool and require 'socket' or require 'cord.socket'
        local errno = tarantool and require 'errno' or require 'cord.errno'
        local function try(f, ...)
            local ok, problem = pcall(f, ...)
            return not ok and (tostring(problem):gsub('^[^ ]+:%d+: ', ''))
        end
    ]]

    same('fail with the same errors before they are connected', HEAD .. [[
        local s = socket('AF_INET', 'SOCK_STREAM', 'tcp')
        for _, call in ipairs { { 'peer' }, { 'accept' }, { 'sysread', 1 }, { 'syswrite', 'x' }, { 'bind', 'x', 1 },
            { 'read', 1, 0.01 }, { 'write', 'x' }, { 'readable', 0 }, { 'send', 'x' }, { 'recvfrom', 1 } } do
            note(call[1], s[call[1] ](s, unpack(call, 2)), s:errno(), s:error())
        end
        s:close()
    ]], 'peer nil 107 Transport endpoint is not connected, accept nil 22 Invalid argument, '
        .. 'sysread nil 107 Transport endpoint is not connected, syswrite nil 32 Broken pipe, '
        .. 'bind false 22 Invalid argument, '
        .. 'read nil 107 Transport endpoint is not connected, write nil 32 Broken pipe, readable true 0 nil, '
        .. 'send nil 32 Broken pipe, recvfrom nil 107 Transport endpoint is not connected')

    same('end streams alike', HEAD .. [[
        local s = socket.tcp_server('127.0.0.1', 0, function(c)
            note('got', c:read { delimiter = { ';', '\n' } })
            note('limited', c:read { delimiter = '\n', chunk = 3 })
            c:write 'answer\nrest'
        end)
        local c = socket.tcp_connect('127.0.0.1', s:name().port)
        c:write 'one;two three\n'
        note(c:read '\n', c:read(2), c:read '\n', c:read '\n', c:error())
        c:close()
        s:close()
        note(try(c.close, c), try(c.read, 5))
    ]], 'got one;, limited two, answer\n re st  nil, attempt to use closed socket Usage: socket:method(), called with non-socket')

    same('take the same options', HEAD .. [[
        local s = socket('AF_INET', 'SOCK_STREAM', 'tcp')
        note(s:setsockopt('SOL_SOCKET', 'SO_KEEPALIVE', true), s:getsockopt('SOL_SOCKET', 'SO_KEEPALIVE'))
        note(try(s.setsockopt, s, 'SOL_SOCKET', 'SO_ERROR', 1), try(s.getsockopt, s, 'SOL_SOCKET', 'SO_BAR'))
        note(s:linger(), s:linger(true, 3), s:linger())
        note(s:nonblock(false), s:nonblock())
        s:close()
    ]], 'true 1, Socket option SO_ERROR is read only Unknown socket option name: SO_BAR, false true true 3, false false')
end)
