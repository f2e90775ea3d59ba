-- A small service that every Tarantool connector can call: functions, a space, a watched key.
--     luajit examples/serve.lua [uri]          then, in another shell:
--     tarantool -e "c = require('net.box').connect('127.0.0.1:3301') print(c:call('add', {2, 3})) os.exit()"
local fiber = require 'cord.fiber'
local server = require 'cord.server'

local srv = server.listen(arg[1] or '127.0.0.1:3301', {
    add = function(a, b) return a + b end,
    -- Handlers may wait: others are served meanwhile.
    later = function(seconds, ...)
        fiber.sleep(seconds)
        return ...
    end,
    -- Each client has a storage of its own.
    count = function()
        local storage = server.session().storage
        storage.calls = (storage.calls or 0) + 1
        return storage.calls
    end,
})

local visits = srv:create_space('visits', { format = { { 'page', 'string' }, { 'count', 'unsigned' } } })
visits:create_index('primary', { parts = { 'page' } })

-- conn:call('visit', {'/index'}); the row is conn.space.visits:get('/index') for the client.
function srv.functions.visit(page)
    visits:upsert({ page, 1 }, { { '+', 'count', 1 } })
    return visits:get(page)[2]
end

-- conn:watch('uptime', print) prints it every second.
local start = fiber.clock()
fiber.create(function()
    while true do
        srv:broadcast('uptime', math.floor(fiber.clock() - start + 0.5))
        fiber.sleep(1)
    end
end)

print('serving at ' .. srv:address() .. ', Ctrl-C ends')
srv:wait()
