-- Fibers call a server through net.box, in one plain LuaJIT process.
--
--   luajit examples/quickstart.lua          the server is embedded: it runs in fibers of the same process
--   luajit examples/quickstart.lua URI      against a real Tarantool (guest needs the right to execute: the script
--                                           defines the function it calls with eval)
local fiber = require('cord.fiber')
local netbox = require('cord.netbox')
local server = require('cord.server')
local ffi = require('ffi')

ffi.cdef('typedef struct { long s, ns; } quickstart_time; int clock_gettime(int, quickstart_time *);')
local ts = ffi.new('quickstart_time')
local function now()
    ffi.C.clock_gettime(1, ts)
    return tonumber(ts.s) + tonumber(ts.ns) * 1e-9
end

local function line(...)
    print(string.format(...))
end

-- A server to call.
local uri, embedded = arg[1], nil
if uri == nil then
    local name = os.tmpname()
    os.remove(name)
    uri = 'unix/:' .. name .. '.sock'
    embedded = server.listen(uri, {
        add = function(a, b)
            return a + b
        end,
    })
end

local conn = netbox.connect(uri)
if not conn:is_connected() then
    error('cannot connect to ' .. uri .. ': ' .. tostring(conn.error))
end
line('connected to %s, Tarantool protocol %s', uri, tostring(conn.peer_protocol_version))
if embedded == nil then
    conn:eval('function add(a, b) return a + b end')
end

-- 100 fibers, 100 calls each. The calls of one turn leave in one write; each fiber gets its own answers.
local FIBERS, CALLS = 100, 100
local sum, fibers = 0, {}
local start = now()
for i = 1, FIBERS do
    fibers[i] = fiber.new(function()
        for j = 1, CALLS do
            -- The call waits, so it stands alone: `sum = sum + conn:call(...)` would read sum before the wait.
            local answer = conn:call('add', { i, j })
            sum = sum + answer
        end
    end)
    fibers[i]:set_joinable(true)
end
for i = 1, FIBERS do
    assert(fibers[i]:join())
end
local took = now() - start
assert(sum == FIBERS * CALLS * (FIBERS + 1) / 2 + FIBERS * CALLS * (CALLS + 1) / 2, 'every answer went to its caller')
line('%d fibers, %d calls each:      %7.0f requests a second', FIBERS, CALLS, FIBERS * CALLS / took)

-- The same from one fiber: futures.
local futures = {}
start = now()
for i = 1, FIBERS * CALLS do
    futures[i] = conn:call('add', { i, 1 }, { is_async = true })
end
for i = 1, #futures do
    local result = assert(futures[i]:wait_result(10))
    assert(result[1] == i + 1)
end
line('%d futures from one fiber:     %7.0f requests a second', #futures, #futures / (now() - start))

-- A cancelled fiber, and an error taken with join.
local sleeper = fiber.create(function()
    fiber.sleep(3600)
end)
sleeper:set_joinable(true)
sleeper:cancel()
local _, cancelled = sleeper:join()
line('a cancelled fiber ends with:      %s (%s)', tostring(cancelled), cancelled.type)

local failing = fiber.new(function()
    return conn:call('no_such_function')
end)
failing:set_joinable(true)
local _, problem = failing:join()
line('a joined error of the server:     %s (code %s)', tostring(problem), tostring(problem.code))

-- A fiber may yield anywhere, also underneath a C function.
local words = {}
local inside = fiber.new(function()
    ('fibers yield anywhere'):gsub('%a+', function(word)
        fiber.yield()
        words[#words + 1] = word
    end)
end)
inside:set_joinable(true)
inside:join()
line('yields inside string.gsub:        %s', table.concat(words, '-'))

-- The cost of a yield, and of the trace-abort handler that makes yields underneath FFI calls safe.
local function yields(mode)
    local before, calls = fiber.trace_abort(mode), fiber.trace_abort_calls()
    local best, n, m, rounds = math.huge, 100, 500, 10
    for _ = 1, rounds do
        local left = n
        for _ = 1, n do
            fiber.new(function()
                for _ = 1, m do
                    fiber.yield()
                end
                left = left - 1
            end)
        end
        local from = now()
        while left > 0 do
            fiber.yield()
        end
        best = math.min(best, (now() - from) / (n * m) * 1e9)
    end
    fiber.trace_abort(before)
    return best, (fiber.trace_abort_calls() - calls) / rounds
end
line('a yield among 100 fibers, best of 10 runs of 50000:')
for _, mode in ipairs({ 'off', 'inline', 'extern', 'trigger' }) do
    local spent, calls = yields(mode)
    line("    trace_abort('%s')%s  %5.1f ns, %d handler calls a run", mode, (' '):rep(7 - #mode), spent, calls)
end

conn:close()
if embedded ~= nil then
    embedded:stop()
end
