-- net.box against a real tarantool: requests from fibers and futures, one at a time, large ones, many connections; garbage.
--     luajit bench-lua/netbox.lua [--full] [--runs N] [--json];   the same under tarantool, with its own net.box
-- Thousands of requests a second, by wall clock and by the CPU time of this process (the server is another process). The bare
-- loop sends prebuilt packets and counts the replies: what the kernel alone costs.
local here = arg[0]:match '^(.*)/[^/]*$' or '.'
package.path = ('%s/?.lua;%s/../?.lua;'):format(here, here) .. package.path
local bench = require 'helpers'
bench.start('netbox', ...)
local fiber = bench.fiber()
local netbox = require(bench.is_tarantool and 'net.box' or 'cord.netbox')
local servers = require 'spec.helpers'
local bare = require 'bare'

local IN_FLIGHT = 100
-- Enough for steady figures of either client.
local N = bench.options.full and 1e6 or bench.is_tarantool and 4e4 or 1e5

local server = servers.tarantool { listen = 'tcp', init = [[
    local space = box.schema.space.create('bench', { if_not_exists = true })
    space:create_index('primary', { if_not_exists = true })
    for k = 1, 1000 do space:replace { k, 'bar', k } end
    function bench_func(...) return ... end
    box.cfg { memtx_max_tuple_size = 2 * 1024 * 1024 }
    local large = box.schema.space.create('large', { if_not_exists = true })
    large:create_index('primary', { if_not_exists = true })
    for k = 1, 10 do large:replace { k, ('x'):rep(100 * 1024) } end
]] }
local port = tonumber(server.uri:match ':(%d+)$')
local conn = netbox.connect(server.uri)
assert(conn:wait_connected(10), conn.error)
local space = conn.space.bench

-- i counts the requests, k is the key.
local REQUESTS = {
    { 'REPLACE', function(i, k, opts) return space:replace({ k, 'bar', i + k }, opts) end },
    { 'UPDATE', function(i, k, opts) return space:update({ k }, { { '=', 2, 'bar' }, { '=', 3, i + k } }, opts) end },
    { 'SELECT', function(_, k, opts) return space:select({ k }, opts) end },
    { 'CALL', function(_, _, opts) return conn:call('bench_func', { 1, 2, 3, 'foo', 'bar' }, opts) end },
}

-- Each fiber waits for its answer before the next request. `fibers` of them, by default as many as are in flight.
local function from_fibers(request, fibers, total)
    fibers = fibers or IN_FLIGHT
    local left, each = fibers, (total or N) / fibers
    local done = fiber.cond()
    for k = 1, fibers do
        fiber.new(function()
            for i = 1, each do request(i, k) end
            left = left - 1
            if left == 0 then done:signal() end
        end)
    end
    while left > 0 do done:wait() end
end

-- One fiber sends a batch, then waits for all its answers.
local function from_futures(request)
    local opts = { is_async = true }
    local futures = {}
    for i = 1, N / IN_FLIGHT do
        for k = 1, IN_FLIGHT do futures[k] = request(i, k, opts) end
        for k = 1, IN_FLIGHT do
            local result, err = futures[k]:wait_result(60)
            if result == nil then error(err) end
        end
    end
end

local function skipped(title, row)
    return bench.options.only and not (title .. row):find(bench.options.only, 1, true)
end

for _, way in ipairs { { 'from 100 fibers', from_fibers }, { 'from futures in batches of 100', from_futures } } do
    for _, request in ipairs(REQUESTS) do
        local title = 'net.box, one connection, ' .. way[1]
        if not skipped(title, request[1]) then
            way[2](request[2])
            local wall, cpu = {}, {}
            for run = 1, bench.options.runs do
                collectgarbage()
                local begin, spent = bench.wall(), bench.cpu()
                way[2](request[2])
                wall[run] = N / (bench.wall() - begin) / 1e3
                cpu[run] = N / (bench.cpu() - spent) / 1e3
            end
            bench.record { table = title, row = request[1], column = 'wall', unit = 'k/s', values = wall }
            bench.record { table = title, row = request[1], column = 'CPU', unit = 'k/s', values = cpu }
        end
    end
end

-- Time of one of `items` things that `run` does, by wall clock and of this process's processor.
local function record(title, row, unit, scale, items, run)
    if skipped(title, row) then return end
    run()
    local wall, cpu = {}, {}
    for i = 1, bench.options.runs do
        collectgarbage()
        local begin, spent = bench.wall(), bench.cpu()
        run()
        wall[i] = (bench.wall() - begin) / items * scale
        cpu[i] = (bench.cpu() - spent) / items * scale
    end
    bench.record { table = title, row = row, column = 'wall', unit = unit, values = wall }
    bench.record { table = title, row = row, column = 'CPU', unit = unit, values = cpu }
end

local FIVE, FIVE_PACKED = { 1, 2, 3, 'foo', 'bar' }, '\149\1\2\3\163foo\163bar'
-- What the bare loop costs does not depend on the host: it is measured once.
if bench.is_tarantool then bare = nil end

local MANY = 'CALL over many connections'
local many = {}
if not skipped(MANY, '') then
    for i = 1, 100 do many[i] = netbox.connect(server.uri) end
    record(MANY, '100 fibers, 1 connection', 'ns', 1e9, N, function()
        from_fibers(function() conn:call('bench_func', FIVE) end)
    end)
    record(MANY, '1000 fibers, 100 connections', 'ns', 1e9, N, function()
        from_fibers(function(_, k) many[k % 100 + 1]:call('bench_func', FIVE) end, 1000)
    end)
    for i = 1, 100 do many[i]:close() end
    for _, shape in ipairs(bare and { { 1, 100 }, { 100, 10 } } or {}) do
        local packet = bare.call('bench_func', FIVE_PACKED)
        local row = ('bare loop, %d in flight on each of %d'):format(shape[2], shape[1])
        local loop = bare.open(port, packet, shape[1], shape[2])
        record(MANY, row, 'ns', 1e9, N, function() loop.run(N) end)
        loop.close()
    end
end

local SINGLE, ONE = 'One request at a time', { 1 }
record(SINGLE, 'CALL', 'us', 1e6, N / 20, function()
    for _ = 1, N / 20 do conn:call('bench_func', ONE) end
end)
if bare and not skipped(SINGLE, '') then
    local loop = bare.open_one(port, bare.call('bench_func', '\145\1'))
    record(SINGLE, 'bare loop', 'us', 1e6, N / 20, function() loop.run(N / 20) end)
    loop.close()
end

local LARGE = 'Large requests, from 10 fibers'
local large, megabyte = conn.space.large, ('x'):rep(1024 * 1024)
record(LARGE, 'SELECT of 1000 tuples', 'us', 1e6, N / 200, function()
    from_fibers(function() space:select() end, 10, N / 200)
end)
record(LARGE, 'SELECT of 10 tuples of 100 KB', 'us', 1e6, N / 200, function()
    from_fibers(function() large:select() end, 10, N / 200)
end)
record(LARGE, 'SELECT of a tuple of 100 KB', 'us', 1e6, N / 50, function()
    from_fibers(function(_, k) large:select { k } end, 10, N / 50)
end)
record(LARGE, 'REPLACE of 1 MB', 'us', 1e6, N / 500, function()
    from_fibers(function(_, k) large:replace { 100 + k, megabyte } end, 10, N / 500)
end)

-- Bytes that the collector must take back for each request, with it stopped.
local function garbage(row, request)
    if skipped('Garbage of a request', row) then return end
    for _ = 1, 2000 do request() end
    collectgarbage()
    collectgarbage 'stop'
    local before = collectgarbage 'count'
    for _ = 1, 10000 do request() end
    bench.record {
        table = 'Garbage of a request', row = row, column = 'bytes', unit = 'bytes',
        values = { (collectgarbage 'count' - before) * 1024 / 10000 },
    }
    collectgarbage 'restart'
end
local async = { is_async = true }
garbage('CALL that returns one number', function() conn:call('bench_func', ONE) end)
garbage('the same from a future', function() conn:call('bench_func', ONE, async):wait_result(60) end)
garbage('a future of a CALL that returns nothing', function() conn:call('bench_func', nil, async):wait_result(60) end)

conn:close()
server:stop()
bench.finish()
