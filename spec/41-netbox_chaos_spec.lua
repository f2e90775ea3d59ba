-- Everything at once: sixty fibers with requests of all kinds over connections that are closed and made anew, to a server that is
-- killed, paused and restarted; fibers are cancelled and woken for nothing. What comes back must be right. CORD_CHAOS_SECONDS
-- says for how long (3), CORD_CHAOS_SEED with which seed.
local helpers = require 'spec.helpers'
local net = require 'cord.netbox'
local fiber = require 'cord.fiber'

local SERVER = [[
local server, fiber = require 'cord.server', require 'cord.fiber'
local srv = server.listen('unix/:' .. ..., { functions = {
    echo = function(...) return ... end,
    slow = function(seconds, ...) fiber.sleep(seconds) return ... end,
    push = function(n, value) for _ = 1, n do server.push(value) end return value end,
    big = function(n) return ('x'):rep(n) end,
    boom = function(text) error(text, 0) end,
} })
local space = srv:create_space('t', { format = { { 'id', 'unsigned' }, { 'value', 'any' } } })
space:create_index 'pk'
for i = 1, 100 do space:replace { i, i } end
local n = 0
fiber.create(function()
    while true do
        fiber.sleep(0.05)
        n = n + 1
        srv:create_space('new' .. n)
        srv:broadcast('key', n)
    end
end)
srv:wait()
]]

local random = math.random
local T = { timeout = 5 }

-- Each is given a connection, a number of its own, and a function for what must be true.
local OPERATIONS = {
    function(c, n, must) must(c:call('echo', { n }, T) == n, 'call') end,
    function(c, n, must)
        local result = c:call('echo', { n, { a = n }, 'x' }, { is_async = true }):wait_result(5)
        must(result == nil or result[1] == n and result[2].a == n, 'future')
    end,
    function(c, n, must)
        local future = c:call('slow', { random() / 50, n }, { is_async = true })
        if random() < 0.5 then return future:discard() end
        local result = future:wait_result(random() / 40)
        must(result == nil or result[1] == n, 'future in time')
    end,
    function(c, n) c:call('slow', { random() / 50, n }, { timeout = random() / 40 }) end,
    function(c, n, must)
        local sent, got = random(5), 0
        local result = c:call('push', { sent, n }, { timeout = 5, on_push = function(_, value)
            got = got + 1
            must(value == n, 'pushed value')
            if random() < 0.2 then fiber.yield() end
        end })
        must(result == n and got == sent, 'pushes')
    end,
    function(c, n, must)
        for i, value in c:call('push', { random(5), n }, { is_async = true }):pairs(5) do
            must(i == nil or (type(value) == 'table' and value[1] or value) == n, 'pushes of a future')
        end
    end,
    function(c, _, must)
        local size = random(200000)
        must(#c:call('big', { size }, T) == size, 'size')
    end,
    function(c, n, must)
        local ok, err = pcall(c.call, c, 'boom', { 'error ' .. n }, T)
        must(not ok and (err.message == 'error ' .. n or err.code == 77 or err.type ~= 'LuajitError'), 'error')
    end,
    function(c, _, must)
        local id = random(100)
        must(c.space.t:get(id, T).id == id, 'get')
        must(#c.space.t:select({}, { limit = 5, timeout = 5 }) == 5, 'select')
        must(c.space.t:select({ id }, { return_raw = true, timeout = 5 }):decode()[1][1] == id, 'raw select')
    end,
    function(c, n)
        local stream = c:new_stream()
        stream:begin(nil, T)
        stream.space.t:replace({ n % 100 + 1, n }, T)
        if random() < 0.5 then stream:commit(nil, T) else stream:rollback(T) end
    end,
    function(c, n, must)
        must(c:call('echo', { setmetatable({}, { __serialize = function()
            if random() < 0.3 then fiber.yield() end
            if random() < 0.1 then c:call('echo', { 1 }, T) end
            return n
        end }) }, T) == n, 'serialized argument')
    end,
    function(c) c:ping(T) end,
    function(c)
        local watcher = c:watch('key', function() if random() < 0.2 then fiber.sleep(0.001) end end)
        pcall(fiber.sleep, random() / 50)
        watcher:unregister()
    end,
    function(c) c:watch_once('key', T) end,
    function(c) c:call('echo', { print }) end,
    function(c) c:wait_connected(1) end,
}

describe('net.box in chaos', function()
    helpers.no_leftovers(5)

    it('gives right answers, or errors, and nothing is left behind', function()
        local seconds = tonumber(os.getenv 'CORD_CHAOS_SECONDS') or 3
        local seed = tonumber(os.getenv 'CORD_CHAOS_SEED') or os.time() % 100000
        math.randomseed(seed)
        local dir = helpers.tempdir()
        local path, script = dir .. '/s', helpers.write_file(dir .. '/server.lua', SERVER)
        local function start()
            return helpers.spawn({ helpers.interpreter(), script, path }, {
                env = { LUA_PATH = package.path, LUA_CPATH = package.cpath, LUA_INIT = false }, stderr = '/dev/null' })
        end
        local child = start()
        local conns, fibers, wrong, done, stopped, last = {}, {}, {}, 0, false, 0
        local function must(fine, what)
            if not fine then wrong[what] = (wrong[what] or 0) + 1 end
        end
        local function connection(i)
            conns[i] = conns[i] or net.connect('unix/:' .. path, { reconnect_after = 0.01, wait_connected = false })
            return conns[i]
        end
        local function work()
            last = last + 1
            local own, n = last * 100000, 0
            while not stopped do
                n = n + 1
                local ok = pcall(OPERATIONS[random(#OPERATIONS)], connection(random(4)), own + n, must)
                done = done + (ok and 1 or 0)
                if not pcall(fiber.testcancel) then return end
                if not ok then fiber.sleep(0.001) end
            end
        end
        for i = 1, 60 do fibers[i] = fiber.new(work) end
        local trouble = fiber.new(function()
            while not stopped do
                fiber.sleep(random() / 3)
                local what = random()
                if what < 0.3 then
                    child:kill 'KILL'
                    child:wait(5)
                    child = start()
                elseif what < 0.4 then
                    child:kill 'STOP'
                    fiber.sleep(0.05)
                    child:kill 'CONT'
                elseif what < 0.7 then
                    local i = random(4)
                    local conn = conns[i]
                    conns[i] = nil
                    if conn and random() < 0.7 then conn:close() end
                else
                    local i = random(60)
                    pcall(fiber.cancel, fibers[i])
                    fibers[i] = fiber.new(work)
                end
                collectgarbage()
            end
        end)
        local wakeups = fiber.new(function()
            while not stopped do
                for _ = 1, 5 do pcall(fiber.wakeup, fibers[random(60)]) end
                for i = 1, 4 do if conns[i] then fiber.wakeup(conns[i]._fiber) end end
                fiber.sleep(0.001)
            end
        end)
        assert.is_truthy(trouble and wakeups)
        local deadline = helpers.now() + seconds
        while helpers.now() < deadline do fiber.sleep(0.05) end
        stopped = true
        -- Whoever waits has five seconds at most; the server goes, so that nobody needs them.
        fiber.sleep(0.5)
        for i, conn in pairs(conns) do
            conn:close()
            conns[i] = nil
        end
        child:stop()
        assert.same({}, wrong, 'seed ' .. seed)
        assert.is_true(done > 100, done)
    end)
end)
