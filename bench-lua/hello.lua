-- A hello-world request loop served from fibers on a local socket, in requests a second, and the share of yielding in it.
-- Clients and server are fibers of one process; each client's requests come one after another. Under luajit and tarantool.
--     luajit bench-lua/hello.lua [--runs N] [--json] [--cpu]
package.path = (arg[0]:match '^(.*)/[^/]*$' or '.') .. '/?.lua;' .. package.path
local bench = require 'helpers'
bench.start('hello', ...)

local fiber = bench.fiber()
if not fiber then
    io.stderr:write 'hello: no fibers under this interpreter\n'
    os.exit(0)
end
local socket = require(bench.is_tarantool and 'socket' or 'cord.socket')
require(bench.is_tarantool and 'log' or 'cord.log').level(2)

local REQUESTS = bench.options.full and 1e5 or 1e4
local REQUEST = 'GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n'
local RESPONSE = 'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, world\n'
local TITLE, SHARE = 'A hello-world request and its answer', 'Share of the CPU time spent in yielding (switches times the cost of a yield)'

-- Switches of the running fiber so far.
local function switches()
    local self = fiber.self()
    local fine, csw = pcall(function() return self:csw() end)
    return fine and csw or fiber.info()[self:id()].csw
end

local switched = 0

local function handler(client)
    while true do
        local request = client:read '\r\n\r\n'
        if request == nil or request == '' then break end
        client:write(RESPONSE)
    end
    switched = switched + switches()
end

-- CPU seconds of one yield. Among many fibers, so that it is the switch that is measured and not the loop's look outside,
-- which the requests need anyway.
local function yield_cost()
    local count, turns = 1000, 200
    local begin = bench.cpu()
    bench.run_fibers(fiber, count, function()
        for _ = 1, turns do fiber.yield() end
    end)
    return (bench.cpu() - begin) / (turns * count)
end

local path = os.tmpname()
os.remove(path)
for _, kind in ipairs { 'unix', 'tcp' } do
    local host, port = 'unix/', path
    if kind == 'tcp' then host, port = '127.0.0.1', 0 end
    local server = assert(socket.tcp_server(host, port, handler))
    if kind == 'tcp' then port = server:name().port end

    for _, clients in ipairs { 1, 10, 100 } do
        local shares = {}
        local function client()
            local s = assert(socket.tcp_connect(host, port))
            for _ = 1, REQUESTS / clients do
                s:write(REQUEST)
                s:read { chunk = #RESPONSE }
            end
            switched = switched + switches()
            s:close()
        end
        local row = ('%s, %d clients'):format(kind, clients)
        bench.case {
            table = TITLE, row = row, column = 'one', items = REQUESTS, unit = 'us',
            run = function()
                local cost = yield_cost()
                switched = 0
                local cpu, begin = bench.cpu(), bench.now()
                local left = clients
                for _ = 1, clients do
                    fiber.create(function()
                        client()
                        left = left - 1
                    end)
                end
                while left > 0 do fiber.sleep(0.001) end
                local took = bench.now() - begin
                cpu = bench.cpu() - cpu
                -- The handlers see the end of their streams.
                fiber.sleep(0.01)
                shares[#shares + 1] = switched * cost / cpu * 100
                return took
            end,
        }
        if #shares > 0 then
            bench.record { table = SHARE, row = row, column = 'share', unit = '%', values = shares }
        end
    end
    server:close()
end

bench.finish()
