-- Waiting for descriptors: iowait from light fibers, stuck ones and the main one, beside timers, cancellations, bare
-- wakeups, closed descriptors and busy neighbours; and signals that arrive meanwhile.
local helpers = require 'spec.helpers'
local fiber = require 'cord.fiber'
local socket = require 'cord.socket'

local READ, WRITE, BOTH = 1, 2, 3

-- Runs `body` in a fiber and waits for its end; raises what it raised. The main fiber waits on.
local function in_fiber(body)
    local f = fiber.new(body)
    f:set_joinable(true)
    local ok, result = f:join(10)
    if not ok then error(result, 0) end
    return result
end

-- The three places a wait can happen in.
local PLACES = {
    ['the main fiber'] = function(body) return body() end,
    ['a light fiber'] = in_fiber,
    ['a stuck fiber'] = function(body)
        return in_fiber(function()
            local result
            ;('x'):gsub('x', function() result = body() end)
            return result
        end)
    end,
    ['a stuck main fiber'] = function(body)
        local result
        table.sort({ 2, 1 }, function(a, b)
            result = body()
            return a < b
        end)
        return result
    end,
}

local function pair() return socket.socketpair('AF_UNIX', 'SOCK_STREAM', 0) end

describe('iowait', function()
    helpers.no_leftovers()

    for place, run in pairs(PLACES) do
        describe('in ' .. place, function()
            it('returns at once what a descriptor is ready for', function()
                local a, b = pair()
                assert.equal(WRITE, run(function() return socket.iowait(a:fd(), WRITE, 5) end))
                assert.equal(WRITE, run(function() return socket.iowait(a:fd(), BOTH, 5) end))
                assert.equal('W', run(function() return socket.iowait(a:fd(), 'rw', 5) end))
                b:write 'x'
                assert.equal('RW', run(function() return socket.iowait(a:fd(), 'RW', 5) end))
                a:close()
                b:close()
            end)

            it('waits until somebody makes it ready', function()
                local a, b = pair()
                fiber.create(function()
                    fiber.sleep(0.01)
                    b:write 'x'
                end)
                assert.equal(READ, run(function() return socket.iowait(a:fd(), READ, 5) end))
                -- What nobody has read yet is reported again.
                assert.equal(READ, run(function() return socket.iowait(a:fd(), READ, 5) end))
                a:close()
                b:close()
            end)

            it('ends at its deadline', function()
                local a, b = pair()
                local began = helpers.now()
                assert.equal(0, run(function() return socket.iowait(a:fd(), READ, 0.03) end))
                assert.equal('', run(function() return socket.iowait(a:fd(), 'r', 0.03) end))
                local took = helpers.now() - began
                assert.is_true(took >= 0.058 and took < 1, 'took ' .. took)
                a:close()
                b:close()
            end)

            it('looks once when there is no time', function()
                local a, b = pair()
                assert.equal(0, run(function() return socket.iowait(a:fd(), READ, 0) end))
                assert.equal(WRITE, run(function() return socket.iowait(a:fd(), BOTH, 0) end))
                b:write 'x'
                assert.equal(READ, run(function() return socket.iowait(a:fd(), READ, 0) end))
                assert.equal(READ, run(function() return socket.iowait(a:fd(), READ, -1) end))
                a:close()
                b:close()
            end)

            it('waits on after a wakeup that brings nothing', function()
                local a, b = pair()
                local waiter
                fiber.create(function()
                    for _ = 1, 5 do
                        fiber.sleep(0.002)
                        fiber.wakeup(waiter)
                    end
                    b:write 'x'
                end)
                local events = run(function()
                    waiter = fiber.self()
                    return socket.iowait(a:fd(), READ, 5)
                end)
                assert.equal(READ, events)
                a:close()
                b:close()
            end)

            it('takes a plain file for ready', function()
                local file = io.tmpfile()
                local ffi = require 'ffi'
                ffi.cdef 'int cordspec_fileno(void *) __asm__("fileno");'
                local fd = ffi.C.cordspec_fileno(file)
                assert.equal(BOTH, run(function() return socket.iowait(fd, BOTH, 5) end))
                assert.equal(READ, run(function() return socket.iowait(fd, READ) end))
                file:close()
            end)

            it('takes a closed descriptor for ready: the next call tells', function()
                assert.equal(READ, run(function() return socket.iowait(987, READ, 5) end))
                assert.equal('RW', run(function() return socket.iowait(987, 'rw', 5) end))
            end)
        end)
    end

    it('wakes whoever waits when the socket is closed', function()
        local a, b = pair()
        local woken = {}
        for i = 1, 3 do
            fiber.create(function()
                woken[i] = socket.iowait(a:fd(), READ, 5)
            end)
        end
        fiber.sleep(0.005)
        assert.same({}, woken)
        a:close()
        fiber.sleep(0.005)
        assert.same({ READ, READ, READ }, woken)
        b:close()
    end)

    it('serves two fibers on one descriptor, each for its own events', function()
        local a, b = pair()
        a:setsockopt('SOL_SOCKET', 'SO_SNDBUF', 4096)
        -- Full: not ready to write.
        repeat until not a:syswrite(('x'):rep(4096))
        local got = {}
        fiber.create(function() got.read = socket.iowait(a:fd(), READ, 5) end)
        fiber.create(function() got.write = socket.iowait(a:fd(), WRITE, 5) end)
        fiber.sleep(0.005)
        assert.same({}, got)
        b:write 'y'
        fiber.sleep(0.005)
        assert.same({ read = READ }, got)
        while b:sysread(65536) do end
        fiber.sleep(0.005)
        assert.same({ read = READ, write = WRITE }, got)
        a:close()
        b:close()
    end)

    it('wakes all that wait for the same event', function()
        local a, b = pair()
        local woken = 0
        for _ = 1, 10 do
            fiber.create(function()
                if socket.iowait(a:fd(), READ, 5) == READ then woken = woken + 1 end
            end)
        end
        b:write 'x'
        fiber.sleep(0.01)
        assert.equal(10, woken)
        a:close()
        b:close()
    end)

    it('is not confused by a descriptor number that is used again', function()
        for _ = 1, 20 do
            local a, b = pair()
            assert.equal(0, socket.iowait(a:fd(), READ, 0.001))
            b:write 'x'
            assert.equal(READ, socket.iowait(a:fd(), READ, 1))
            a:close()
            b:close()
        end
    end)

    it('is not confused by a number closed behind its back', function()
        local ffi = require 'ffi'
        ffi.cdef 'int cordspec_close(int) __asm__("close");'
        local a, b = pair()
        local fd = a:fd()
        assert.equal(0, socket.iowait(fd, READ, 0.001))
        a:detach()
        ffi.C.cordspec_close(fd)
        local c, d = pair()
        assert.equal(fd, c:fd())
        d:write 'x'
        assert.equal(READ, socket.iowait(c:fd(), READ, 1))
        for _, s in ipairs { b, c, d } do s:close() end
    end)

    it('is a cancellation point', function()
        local a, b = pair()
        local numbers, texts, again
        local f = fiber.create(function()
            numbers = socket.iowait(a:fd(), READ)
            texts = { pcall(socket.iowait, a:fd(), 'r') }
            -- A cancelled fiber is told before it waits.
            again = { pcall(a.readable, a) }
        end)
        f:cancel()
        fiber.sleep(0.005)
        assert.equal(0, numbers)
        assert.is_false(texts[1])
        assert.equal('fiber is cancelled', tostring(texts[2]))
        assert.is_false(again[1])
        assert.equal('FiberIsCancelled', again[2].type)
        a:close()
        b:close()
    end)

    it('prefers an event that came to a deadline that passed before the fiber ran', function()
        local a, b = pair()
        local got
        fiber.create(function() got = socket.iowait(a:fd(), READ, 0.005) end)
        b:write 'x'
        -- Both have happened when the loop looks.
        helpers.block(0.02)
        fiber.sleep(0.005)
        assert.equal(READ, got)
        a:close()
        b:close()
    end)

    it('sleeps without a descriptor', function()
        local began = helpers.now()
        assert.is_nil(socket.iowait(nil, nil, 0.02))
        assert.is_nil(socket.iowait(-1, nil, 0.01))
        assert.is_true(helpers.now() - began >= 0.029)
    end)

    it('refuses what is no set of events', function()
        local usage = "Usage: iowait(fd, 1 | 'r' | 2 | 'w' | 3 | 'rw' [, timeout])"
        for _, arguments in ipairs {
            { n = 0 }, { 1, n = 1 }, { 1, 'x', n = 2 }, { 1, 0, n = 2 }, { 1, 4, n = 2 }, { 1, '', n = 2 }, { nil, 1, 0.01, n = 3 },
            { -1, 1, n = 2 }, { nil, nil, n = 0 }, { {}, 1, n = 2 },
        } do
            local ok, problem = pcall(socket.iowait, unpack(arguments, 1, arguments.n))
            assert.is_false(ok)
            assert.equal(usage, tostring(problem))
        end
    end)

    it('raises in a finalizer, and nothing is queued', function()
        local a, b = pair()
        local problem
        local proxy = newproxy(true)
        getmetatable(proxy).__gc = function()
            local _
            _, problem = pcall(socket.iowait, a:fd(), READ, 1)
        end
        proxy = nil -- luacheck: ignore
        collectgarbage()
        collectgarbage()
        assert.equal('cannot yield inside a finalizer (__gc metamethod)', tostring(problem))
        b:write 'x'
        assert.equal(READ, socket.iowait(a:fd(), READ, 1))
        a:close()
        b:close()
    end)

    it('makes progress beside fibers that never stop', function()
        local a, b = pair()
        local done, turns = false, 0
        for _ = 1, 2 do
            fiber.create(function()
                while not done do
                    turns = turns + 1
                    fiber.yield()
                end
            end)
        end
        local echoed = 0
        fiber.create(function()
            while true do
                local line = b:read('\n', 5)
                if line == '' then return end
                b:write(line)
            end
        end)
        for i = 1, 50 do
            a:write(i .. '\n')
            assert.equal(i .. '\n', a:read('\n', 5))
            echoed = echoed + 1
        end
        done = true
        assert.equal(50, echoed)
        assert.is_true(turns > 100)
        a:close()
        fiber.sleep(0.005)
        b:close()
    end)

    it('counts as something that can wake the main fiber', function()
        -- No deadlock error while a descriptor is waited for.
        local a, b = pair()
        assert.is_false(a:readable(0.01))
        assert.is_true(a:writable())
        a:close()
        b:close()
    end)
end)

-- Signals are sent to a process of its own.
describe('a signal', function()
    local HEAD = [[
        local fiber, socket, ffi = require 'cord.fiber', require 'cord.socket', require 'ffi'
        ffi.cdef 'int getpid(void); int kill(int, int); typedef void (*handler_t)(int); handler_t signal(int, handler_t); \
            unsigned int alarm(unsigned int); int usleep(unsigned int); int setitimer(int, const void *, void *);'
        io.stdout:setvbuf 'no'
        local a, b = socket.socketpair('AF_UNIX', 'SOCK_STREAM', 0)
        local function interrupt_later(delay, signal)
            os.execute(('(sleep %g; kill -%s %d) &'):format(delay, signal or 'INT', ffi.C.getpid()))
        end
    ]]

    it('that does nothing disturbs no wait', function()
        -- SIGCHLD with a handler, from children that end while fibers wait.
        local out = helpers.run_ok(HEAD .. [[
            -- A handler without SA_RESTART: the system calls come back with EINTR.
            ffi.cdef 'int sigaction(int, const void *, void *); int siginterrupt(int, int);'
            local getpid = ffi.cast('void (*)(int)', ffi.C.getpid)
            ffi.C.signal(17, ffi.cast('handler_t', getpid))
            ffi.C.siginterrupt(17, 1)
            for i = 1, 5 do os.execute(('sleep 0.0%d &'):format(i)) end
            local function time(f, ...)
                local now = require('cord.clock').monotonic
                local began = now()
                local result = f(...)
                return result, now() - began
            end
            local pids = {}
            for i = 1, 8 do interrupt_later(0.01 * i, 'CHLD') end
            local f = fiber.new(function() return a:read(5, 5) end)
            f:set_joinable(true)
            local _, slept = time(fiber.sleep, 0.12)
            print('slept', slept >= 0.119 and slept < 3)
            b:write 'hello'
            print(f:join())
            interrupt_later(0.02, 'CHLD')
            print(time(socket.iowait, a:fd(), 1, 0.1))
        ]])
        assert.equal('slept\ttrue', out:match '^[^\n]*')
        assert.equal('true\thello', out:match '^[^\n]*\n([^\n]*)')
        local events, took = out:match '\n(%d+)\t([%d.]+)\n$'
        assert.equal('0', events)
        assert.is_true(tonumber(took) >= 0.099)
    end)

    for name, wait in pairs {
        ['sleeps'] = 'fiber.sleep(5)',
        ['waits for a descriptor'] = 'a:read(5, 5)',
        ['waits for a descriptor for ever'] = 'a:readable()',
        ['accepts'] = 'local s = socket.tcp_server("127.0.0.1", 0, function() end); fiber.sleep(5)',
        ['joins'] = 'local f = fiber.new(function() fiber.sleep(5) end); f:set_joinable(true); f:join()',
        ['is stuck'] = 'local _ = ("x"):gsub("x", function() fiber.sleep(5) end)',
    } do
        it('from the keyboard raises "interrupted!" in the main fiber that ' .. name, function()
            local out = helpers.run_ok(HEAD .. [[
                interrupt_later(0.1)
                local began = os.time()
                local ok, problem = pcall(function() ]] .. wait .. [[ end)
                print(ok, problem, os.time() - began < 4)
                -- And all goes on afterwards.
                fiber.sleep(0.01)
                local f = fiber.new(function() b:write 'hello' fiber.sleep(0.01) return 1 end)
                f:set_joinable(true)
                print(a:read(5), f:join())
            ]])
            local ok, problem, soon = out:match '^(%S+)\t([^\n\t]*)\t(%S+)\n'
            assert.equal('false', ok)
            assert.matches('interrupted!$', problem)
            assert.equal('true', soon)
            assert.equal('hello\ttrue\t1\n', out:match '\n(.*)')
        end)
    end

    it('from the keyboard hits the main fiber when it hits another one that waits', function()
        local out = helpers.run_ok(HEAD .. [[
            local others = 0
            for _ = 1, 3 do
                fiber.create(function()
                    while true do
                        fiber.sleep(0.005)
                        others = others + 1
                    end
                end)
            end
            interrupt_later(0.1)
            local ok, problem = pcall(fiber.sleep, 5)
            print(ok, problem)
        ]])
        assert.matches('^false\t[^\n]*interrupted!\n$', out)
    end)

    it('from the keyboard ends a busy fiber and is passed on to the main one', function()
        local out = helpers.run_ok(HEAD .. [[
            fiber.create(function()
                fiber.sleep(0.01)
                jit.off(true, true) -- compiled code looks for no signal
                while true do end
            end)
            interrupt_later(0.1)
            local ok, problem = pcall(fiber.sleep, 5)
            print(ok, problem)
        ]])
        assert.matches('^false\t[^\n]*interrupted!\n$', out)
    end)

    it('from the keyboard reaches the main fiber though another one catches every error', function()
        for _, pause in ipairs { 'fiber.yield()', 'fiber.sleep(0)', '' } do
            local out = helpers.run_ok(HEAD .. [[
                jit.off()
                local n = 0
                fiber.create(function()
                    fiber.sleep(0)
                    while true do
                        pcall(function() for i = 1, 1e4 do n = n + 1 / 1e4 end end)
                        ]] .. pause .. [[
                    end
                end)
                interrupt_later(0.1)
                local ok, problem = pcall(fiber.sleep, 5)
                print(ok, problem)
                -- The fiber it hit goes on, but for the one that lets nobody else run.
                local before = n
                if ... ~= '' then fiber.sleep(0.05) end
                print(n > before or ... == '')
            ]], { args = { pause } })
            assert.matches('^false\t[^\n]*interrupted!\ntrue\n$', out)
        end
    end)

    it('from the keyboard is raised after fiber.create when the child ends of it', function()
        local out = helpers.run_ok(HEAD .. [[
            jit.off()
            interrupt_later(0.1)
            local ok, problem = pcall(function()
                fiber.create(function() while true do end end)
                for i = 1, 10 do local x = i end
                print 'went on'
            end)
            print(ok, problem)
        ]])
        assert.matches('^false\t[^\n]*interrupted!\n$', out)
    end)

    it('from the keyboard ends the program the second time, as without fibers', function()
        local result = helpers.run(HEAD .. [[
            interrupt_later(0.05)
            print(pcall(fiber.sleep, 5))
            interrupt_later(0.05)
            print(pcall(fiber.sleep, 5))
        ]])
        assert.equal(2, result.signal)
        assert.equal('false\tinterrupted!\n', result.stdout)
    end)

    it('is not seen in a debugger\'s hook', function()
        local out = helpers.run_ok(HEAD .. [[
            local n = 0
            for _, mask in ipairs { '', 'crl' } do
                debug.sethook(function() n = n + 1 end, mask, 1)
                fiber.sleep(0.01)
                a:readable(0.01)
                debug.sethook()
            end
            print(n > 10)
        ]])
        assert.equal('true\n', out)
    end)

    it('from the keyboard ends a script that waits', function()
        local result = helpers.run(HEAD .. [[
            interrupt_later(0.1)
            socket.tcp_server('127.0.0.1', 0, function() end)
            print 'waiting'
            fiber.sleep(5)
        ]])
        assert.equal(1, result.code)
        assert.equal('waiting\n', result.stdout)
        assert.matches('interrupted!', result.stderr)
    end)
end)
