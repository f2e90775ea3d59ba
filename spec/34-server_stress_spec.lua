-- Many clients that do anything at random, and servers that come and go: nothing crashes, hangs or is left behind. Runs in
-- a child process; the seed is printed with a failure (CORD_SEED sets it, CORD_STRESS_SECONDS how long).
local helpers = require 'spec.helpers'

local STRESS = [==[
local seed, seconds = tonumber((...)), tonumber((select(2, ...)))
local client, fiber, server = require 'spec.server_helpers', require 'cord.fiber', require 'cord.server'
local errors = require 'cord.error'
math.randomseed(seed)
local R = math.random

local handlers = {
    echo = function(...) return ... end,
    -- A packet cut short makes the next one's bytes its arguments: any number may arrive here.
    slow = function(delay) fiber.sleep(math.min(tonumber(delay) or 0, 0.01)) return delay end,
    boom = function() error('boom') end,
    big = function(n) return ('x'):rep(n) end,
    push = function()
        for i = 1, 3 do
            server.push(i)
            fiber.sleep(0)
        end
        return 1
    end,
    child = function()
        local f = fiber.new(function() fiber.sleep(0.001) return 5 end)
        f:set_joinable(true)
        return f:join()
    end,
    cancelled = function() fiber.self():cancel() fiber.testcancel() end,
    storage = function()
        fiber.self().storage.x = 1
        fiber.self():on_stop(function() end)
        return 2
    end,
    failed = function() return nil, errors.new { reason = 'r', code = 5 } end,
    sorts = function()
        local t = {}
        for i = 1, 20 do t[i] = R(100) end
        table.sort(t, function(a, b)
            if R(10) == 1 then fiber.yield() end
            return a < b
        end)
        return t[1]
    end,
    session = function()
        local session = server.session()
        session.storage.n = (session.storage.n or 0) + 1
        return session.id, session.peer, session.user
    end,
    unfit = function() return print end,
    collect = function() collectgarbage() return 1 end,
    tell = function() server.session().server:broadcast('k', R(100)) return 1 end,
}
local names = { 'nope', 'a.b.c' }
for name in pairs(handlers) do names[#names + 1] = name end
table.sort(names)

local function make()
    local srv = server.listen('127.0.0.1:0', {
        functions = handlers, eval = true, net_msg_max = 50, max_unread = 200000, packet_timeout = 0.5,
    })
    srv:on_connect(function()
        if R(10) == 1 then fiber.sleep(0.001) end
        if R(30) == 1 then error('refused') end
    end)
    srv:on_disconnect(function() if R(5) == 1 then fiber.yield() end end)
    srv:create_space('t'):create_index('pk')
    return srv
end

local function request(sync)
    local name = names[R(#names)]
    local args = name == 'slow' and { R() * 0.01 } or name == 'big' and { R(20000) } or { R(5), 'x', { R(5) } }
    local header = { [0] = 10, [1] = sync, [10] = R(3) == 1 and R(3) or nil }
    local body = { [0x22] = name, [0x21] = args }
    local kind = R(14)
    if kind == 1 then
        header[0], body = 64, nil
    elseif kind == 2 then
        header[0], body = 8, { [0x27] = 'return ' .. R(3) .. ', ...', [0x21] = { R(5) } }
    elseif kind == 3 then
        header[0], body = 2, { [0x10] = 512, [0x21] = { R(100), R(5) } }
    elseif kind == 4 then
        header[0], body = 1, { [0x10] = 512, [0x12] = 10, [0x20] = {} }
    elseif kind == 5 or kind == 6 then
        header[0], body = 14 + R(0, 2), nil
    elseif kind == 7 or kind == 8 then
        header[0], header[10], body = 74 + R(0, 1), nil, { [0x57] = 'k' }
    elseif kind == 9 then
        header[0], body = 77, { [0x57] = 'k' }
    elseif kind == 10 then
        header[0] = R(0, 130)
    end
    local packet = client.packet(header, body)
    if R(60) == 1 then packet = packet:sub(1, R(#packet)) end
    return R(200) == 1 and '\255garbage' or packet
end

local srv = make()
local stop = fiber.clock() + seconds
local sent = 0

local function visit(conn)
    for _ = 1, R(30) do
        conn.sync, sent = conn.sync + 1, sent + 1
        if not conn:send(request(conn.sync), 0.2) then return end
        if R(3) == 1 then fiber.yield() end
        if R(3) == 1 and not conn:poll() then return end
    end
    if R(2) == 1 then
        fiber.sleep(R() * 0.01)
        for _ = 1, R(20) do if not conn:poll() then break end end
    end
    if R(4) == 1 then
        conn:shutdown()
        fiber.sleep(0.001)
    end
end

local actors = {}
for i = 1, 30 do
    actors[i] = fiber.new(function()
        while fiber.clock() < stop do
            local address = srv:address()
            local conn = address and client.connect(address, { greeting = false })
            if conn then
                visit(conn)
                conn:close()
            end
            fiber.sleep(R(5) == 1 and 0.001 or 0)
        end
    end)
    actors[i]:set_joinable(true)
end
while fiber.clock() < stop do
    fiber.sleep(0.2 + R() * 0.3)
    local old = srv
    srv = make()
    old:stop(R(2) == 1 and 'hard' or 'graceful', 0.2)
end
for i = 1, 30 do assert(actors[i]:join()) end
srv:stop('hard')
local deadline = fiber.clock() + 5
repeat
    collectgarbage()
    fiber.sleep(0.02)
until fiber.stats().fibers <= 2 or fiber.clock() > deadline
assert(fiber.stats().fibers <= 2, fiber.stats().fibers .. ' fibers are left')
assert(collectgarbage 'count' < 20000, collectgarbage 'count')
io.write(sent > 1000 and 'fine' or 'only ' .. sent)
]==]

describe('servers with random clients', function()
    local seconds = tonumber(os.getenv 'CORD_STRESS_SECONDS') or 3
    local seed = tonumber(os.getenv 'CORD_SEED') or os.time() % 1000000

    for _, flags in ipairs { {}, { '-joff' }, { '-Ohotloop=1' } } do
        it('end well with ' .. (flags[1] or 'default options'), function()
            local fine, out = pcall(helpers.run_ok, STRESS, { flags = flags, args = { seed, seconds }, timeout = seconds * 10 + 30 })
            assert.is_true(fine, ('CORD_SEED=%d: %s'):format(seed, tostring(out)))
            assert.equal('fine', out)
        end)
    end
end)
