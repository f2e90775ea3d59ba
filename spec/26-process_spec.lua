-- What a process may do to the library besides calling it: fork, and run out of address space.
local helpers = require 'spec.helpers'

local FORKING = [[
local mode = ...
local ffi = require 'ffi'
ffi.cdef 'int fork(void); int waitpid(int, int *, int);'
local fiber, netbox, server = require 'cord.fiber', require 'cord.netbox', require 'cord.server'
local path = os.tmpname()
os.remove(path)
local functions = { echo = function(...) return ... end, slow = function() fiber.sleep(0.1) return 'slow' end }
local srv = server.listen({ '127.0.0.1:0', 'unix/:' .. path }, functions)
local conn = netbox.connect((srv:address()))
local other = netbox.connect('unix/:' .. path)
local slow
netbox.connect('localhost:' .. srv:address():match ':(%d+)$'):close()
local again = netbox.connect((srv:address()), { reconnect_after = 0.01 })
fiber.create(function()
    local ok, result = pcall(conn.call, conn, 'slow')
    slow = ok and result or result.message
end)
fiber.sleep(0.01)
local child = ffi.C.fork()
if child == 0 then
    if mode == 'own' then
        local mine = server.listen('127.0.0.1:0', functions)
        local result = netbox.connect((mine:address())):call('echo', { 7 }, { timeout = 5 })
        -- The threads that look names up are the parent's: the child starts its own.
        local before = fiber.clock()
        local named = netbox.connect('localhost:' .. mine:address():match ':(%d+)$', { wait_connected = 5 })
        os.exit(result == 7 and named.state == 'active' and fiber.clock() - before < 4 and 0 or 9)
    elseif mode == 'close' then
        conn:close()
        other:close()
    elseif mode == 'use' then
        -- Neither request may reach the parent's stream; what the parent's fibers waited for fails here too.
        local ok, err = pcall(conn.call, conn, 'echo', { 1 })
        local text = 'Connection belongs to the process this one was forked from'
        assert(not ok and err.message == text and err.code == 77, tostring(err))
        ok, err = pcall(other.call, other, 'echo', { 1 }, { is_async = true })
        assert(not ok and err.message == text, tostring(err))
        fiber.sleep(0.01)
        assert(conn.state == 'error' and conn.error == text and not conn:ping())
        assert(other.state == 'error' and slow == text, tostring(slow))
        -- One that reconnects does so with a socket of its own.
        assert(again:call('echo', { 5 }, { timeout = 5 }) == 5)
    elseif mode == 'stop' then
        srv:stop('hard')
    elseif mode == 'collect' then
        conn, other, srv = nil, nil, nil
        collectgarbage()
        collectgarbage()
        fiber.sleep(0.01)
    end
    os.exit(0, true)
end
local right = 0
for i = 1, 10 do
    local a, b = conn:call('echo', { i }, { timeout = 5 }), other:call('echo', { i }, { timeout = 5 })
    right = right + (a == i and b == i and 1 or 0)
    fiber.sleep(0.02)
end
local status = ffi.new 'int[1]'
ffi.C.waitpid(child, status, 0)
print(right, slow, status[0], netbox.connect('unix/:' .. path).state)
srv:stop('hard')
]]

describe('a forked child', function()
    for _, mode in ipairs { 'exit', 'own', 'use', 'close', 'stop', 'collect' } do
        it('that does what it likes (' .. mode .. ') leaves its parent\'s connections alone', function()
            local result = helpers.run(FORKING, { args = { mode }, timeout = 20 })
            assert.equal('10\tslow\t0\tactive\n', result.stdout, result.stderr)
            assert.equal(0, result.code)
        end)
    end
end)

local LIMITED = [[
local ffi = require 'ffi'
ffi.cdef 'int setrlimit(int, const unsigned long *);'
local fiber = require 'cord.fiber'
-- RLIMIT_AS
assert(ffi.C.setrlimit(9, ffi.new('unsigned long[2]', 600 * 2 ^ 20, 600 * 2 ^ 20)) == 0)
local refused, message = 0, nil
for _ = 1, 1000 do
    fiber.new(function()
        local ok, err = pcall(string.gsub, 'a', '.', function() fiber.sleep(0.1) end)
        if not ok then
            refused, message = refused + 1, tostring(err)
        end
    end)
end
fiber.sleep(0.5)
print(refused > 0, fiber.stats().fibers, (string.gsub('a', '.', function() fiber.sleep(0) return 'b' end)))
print((message:gsub(': .*', '')))
]]

describe('a process whose address space is limited', function()
    it('gets errors of the waits that found no stack, and goes on', function()
        if os.getenv('ASAN_OPTIONS') then
            return pending('a sanitizer reserves terabytes of address space')
        end
        local result = helpers.run(LIMITED, { timeout = 30 })
        assert.equal("true\t1\tb\nno memory for a fiber's C stack\n", result.stdout, result.stderr)
        assert.equal(0, result.code)
    end)
end)
