-- net.box against a real tarantool: REPLACE, UPDATE, SELECT and CALL over one connection, from 100 fibers and from futures.
--     luajit bench-lua/netbox.lua [--full] [--runs N] [--json];   the same under tarantool, with its own net.box
-- Thousands of requests a second, by wall clock and by the CPU time of this process (the server is another process).
package.path = (arg[0]:match '^(.*)/[^/]*$' or '.') .. '/?.lua;' .. package.path
local bench = require 'helpers'
bench.start('netbox', ...)
local fiber = bench.fiber()
local netbox = require(bench.is_tarantool and 'net.box' or 'cord.netbox')
local servers = require 'spec.helpers'

local IN_FLIGHT = 100
local N = bench.options.full and 1e6 or 1e5

local server = servers.tarantool { listen = 'tcp', init = [[
    local space = box.schema.space.create('bench', { if_not_exists = true })
    space:create_index('primary', { if_not_exists = true })
    for k = 1, 1000 do space:replace { k, 'bar', k } end
    function bench_func(...) return ... end
]] }
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

-- Each fiber waits for its answer before the next request.
local function from_fibers(request)
    local left = IN_FLIGHT
    local done = fiber.cond()
    for k = 1, IN_FLIGHT do
        fiber.new(function()
            for i = 1, N / IN_FLIGHT do request(i, k) end
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

for _, way in ipairs { { 'from 100 fibers', from_fibers }, { 'from futures in batches of 100', from_futures } } do
    for _, request in ipairs(REQUESTS) do
        local title = 'net.box, one connection, ' .. way[1]
        if not bench.options.only or (title .. request[1]):find(bench.options.only, 1, true) then
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

-- Bytes that the collector must take back for each request, with it stopped.
local function garbage(row, request)
    for _ = 1, 100 do request() end
    collectgarbage()
    collectgarbage 'stop'
    local before = collectgarbage 'count'
    for _ = 1, 1000 do request() end
    bench.record {
        table = 'Garbage of a request', row = row, column = 'bytes', unit = 'bytes',
        values = { (collectgarbage 'count' - before) * 1024 / 1000 },
    }
    collectgarbage 'restart'
end
local arguments, async = { 1 }, { is_async = true }
garbage('CALL that returns one number', function() conn:call('bench_func', arguments) end)
garbage('the same from a future', function() conn:call('bench_func', arguments, async):wait_result(60) end)

-- One request at a time.
local single = { table = 'One call at a time', row = 'round trip', column = 'CALL', unit = 'us', items = N / 10 }
function single.run()
    for _ = 1, N / 10 do conn:call('bench_func', arguments) end
end
bench.case(single)

conn:close()
server:stop()
bench.finish()
