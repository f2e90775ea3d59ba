-- An echo server and a hundred clients in one process: luajit examples/echo.lua
local fiber, socket = require 'cord.fiber', require 'cord.socket'

local CLIENTS, LINES = 100, 100

local server = assert(socket.tcp_server('127.0.0.1', 0, {
    name = 'echo',
    handler = function(client)
        while true do
            local line = client:read('\n', 10)
            if line == nil or line == '' then return end
            client:write(line)
        end
    end,
}))
local port = server:name().port

local function client(i)
    local s = assert(socket.tcp_connect('127.0.0.1', port, 10))
    for j = 1, LINES do
        local line = ('client %d, line %d\n'):format(i, j)
        s:write(line)
        assert(s:read('\n', 10) == line)
    end
    s:close()
end

local began = fiber.clock()
local fibers = {}
for i = 1, CLIENTS do
    fibers[i] = fiber.new(client, i)
    fibers[i]:set_joinable(true)
end
for i = 1, CLIENTS do
    local ok, problem = fibers[i]:join()
    if not ok then error(problem) end
end
local took = fiber.clock() - began
server:close()

print(('%d clients echoed %d lines each in %.2f seconds: %d lines a second'):format(CLIENTS, LINES, took, CLIENTS * LINES / took))
