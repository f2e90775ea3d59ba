-- Random waits of every kind, cancels, joins and errors in many fibers, with exact sums at the end.
--     luajit spec/stress.lua [seed [rounds [chaos|calm [gc]]]]
-- Prints its seed first. Exit code 1 and a reason when something was lost, doubled or left behind.
local fiber = require 'cord.fiber'

local seed = tonumber(arg[1]) or os.time()
local rounds = tonumber(arg[2]) or 200
local chaos = arg[3] ~= 'calm'
print('seed ' .. seed)
math.randomseed(seed)
local random = math.random

if arg[4] == 'gc' then
    collectgarbage('setpause', 0)
    collectgarbage('setstepmul', 5000)
end

local problems = {}
local function check(fine, text)
    if not fine and #problems < 20 then problems[#problems + 1] = text end
    return fine
end

-- ------------------------------------------------------------------------------------------------- ways to wait

local function brief()
    local way = random(3)
    if way == 1 then
        fiber.yield()
    elseif way == 2 then
        fiber.sleep(random() * 0.001)
    else
        fiber.sleep(0)
    end
end

local object = setmetatable({}, {
    __index = function(_, key) brief() return key end,
    __add = function(_, n) brief() return n + 1 end,
    __call = function(_, ...) brief() return ... end,
})

-- Each waits at least once and gives n.
local ways = {
    function(n) brief() return n end,
    function(n)
        local out
        string.gsub('a', 'a', function() brief() out = n end)
        return out
    end,
    function(n)
        local t = { 3, 1, 2 }
        table.sort(t, function(a, b) if random(3) == 1 then brief() end return a < b end)
        check(t[1] == 1 and t[2] == 2 and t[3] == 3, 'a sort went wrong')
        return n
    end,
    function(n)
        local co = coroutine.wrap(function(x)
            brief()
            local y = coroutine.yield(x)
            brief()
            return y
        end)
        check(co(n) == n, 'a coroutine went wrong')
        return co(n)
    end,
    function(n) return object[n] end,
    function(n) return object + n - 1 end,
    function(n) return (object(n, nil)) end,
    function(n)
        local ok, e = pcall(function() brief() error({ n }) end)
        check(not ok, 'an error was lost')
        return e[1]
    end,
    function(n)
        local _, e = xpcall(function() error(n, 0) end, function(e) brief() return e end)
        return e
    end,
    function(n)
        -- Hot enough to be compiled.
        local x = 0
        for i = 1, 60 do
            x = x + i
            if i % 20 == 0 then fiber.yield() end
        end
        check(x == 1830, 'a loop went wrong')
        return n
    end,
    function(n)
        local f = fiber.new(function(...) brief() return ... end, n, nil, n)
        f:set_joinable(true)
        local ok, a, b, c = f:join()
        check(ok and a == n and b == nil and c == n, 'results were lost')
        return a
    end,
    function(n)
        local f = fiber.create(function() brief() error(n, 0) end)
        f:set_joinable(true)
        if f:status() == 'dead' then return n end
        local ok, e = f:join()
        check(not ok and e.value == n, 'an error of a joined fiber was lost')
        return n
    end,
    function(n)
        local cleaned = false
        local f = fiber.new(function()
            -- Cancelled before it started, it sleeps in full; a wakeup by chance ends the sleep as well.
            local ok, e = pcall(fiber.sleep, 0.02)
            check(ok or e.type == 'FiberIsCancelled', 'cancelled with ' .. tostring(e))
            cleaned = true
            fiber.testcancel()
        end)
        f:set_joinable(true)
        if random(2) == 1 then fiber.yield() end
        f:cancel()
        local ok, e = f:join()
        check(not ok and e.type == 'FiberIsCancelled' and cleaned, 'a cancel was lost')
        return n
    end,
    function(n)
        local stopped = 0
        local f = fiber.new(function() brief() end)
        f:set_joinable(true)
        f:on_stop(function() stopped = stopped + 1 brief() end)
        f:on_stop(function() stopped = stopped + 1 end)
        f:join()
        check(stopped == 2, 'a trigger was lost')
        return n
    end,
    function(n)
        local f = fiber.new(function() fiber.self().storage.n = n brief() return fiber.self().storage.n end)
        f:set_joinable(true)
        local ok, e
        repeat
            ok, e = f:join(0.0005)
        until ok or e.type ~= 'TimedOut'
        check(e == n, 'a storage was lost')
        return n
    end,
}

-- ------------------------------------------------------------------------------------------------- workers

local done = 0
local function worker()
    for _ = 1, rounds do
        local n = random(1e6)
        local got = ways[random(#ways)](n)
        check(got == n, ('got %s for %d'):format(tostring(got), n))
    end
    done = done + 1
end

-- ------------------------------------------------------------------------------------------------- messages

local channels = { fiber.channel(), fiber.channel(1), fiber.channel(7), fiber.channel(100) }
local sent, received, put_count = {}, {}, 0
local writers = 8

local function put_one(ch, message)
    local timeout = ({ nil, 0, 0.0005 })[random(3)]
    while true do
        local ok
        if random(4) == 1 then
            string.gsub('a', 'a', function() ok = ch:put(message, timeout) end)
        else
            ok = ch:put(message, timeout)
        end
        if ok then return end
        fiber.yield()
    end
end

local function writer(k)
    for i = 1, rounds do
        local message = k * 1e6 + i
        sent[message] = true
        put_one(channels[random(#channels)], message)
        put_count = put_count + 1
        if random(5) == 1 then brief() end
    end
    writers = writers - 1
    if writers == 0 then
        for _, ch in ipairs(channels) do ch:close() end
    end
end

local readers = 0
local function reader(ch)
    readers = readers + 1
    while true do
        local message
        local timeout = ({ nil, 0, 0.0005 })[random(3)]
        if random(4) == 1 then
            string.gsub('a', 'a', function() message = ch:get(timeout) end)
        else
            message = ch:get(timeout)
        end
        if message == nil then
            if ch:is_closed() and ch:count() == 0 then break end
            fiber.yield()
        else
            check(sent[message] and not received[message], 'a message came twice or was never sent: ' .. tostring(message))
            received[message] = true
            if random(5) == 1 then brief() end
        end
    end
    readers = readers - 1
end

-- ------------------------------------------------------------------------------------------------- a resource

local free, changed = 3, fiber.cond()
local used = 0
local function user()
    for _ = 1, rounds do
        while free == 0 do
            if random(2) == 1 then changed:wait() else changed:wait(0.0005) end
        end
        free = free - 1
        check(free >= 0, 'a resource was given twice')
        brief()
        free = free + 1
        changed:signal()
        used = used + 1
    end
    done = done + 1
end

-- ------------------------------------------------------------------------------------------------- all of it

local first = fiber.id()
local before = fiber.stats().fibers
local expected = 0
for _ = 1, 30 do
    fiber.new(worker)
    expected = expected + 1
end
for _ = 1, 8 do
    fiber.new(user)
    expected = expected + 1
end
for k = 1, writers do fiber.new(writer, k) end
for _, ch in ipairs(channels) do
    for _ = 1, 3 do fiber.new(reader, ch) end
end

local stop = false
if chaos then
    fiber.new(function()
        while not stop do
            local ids = {}
            for id in pairs(fiber.info { backtrace = random(50) == 1 }) do ids[#ids + 1] = id end
            for _ = 1, 5 do
                local id = ids[random(#ids)]
                if id ~= first and fiber.find(id) then fiber.find(id):wakeup() end
            end
            fiber.sleep(0.0003)
        end
    end)
end

fiber.yield()
while done < expected or writers > 0 or readers > 0 do
    fiber.sleep(0.005)
    if #problems >= 20 then break end
end
stop = true
for _ = 1, 20 do fiber.sleep(0.001) end

local lost = 0
for message in pairs(sent) do
    if not received[message] then lost = lost + 1 end
end
check(lost == 0, lost .. ' messages were lost')
check(used == 8 * rounds, 'uses of the resource were lost')
check(fiber.stats().fibers == before, (fiber.stats().fibers - before) .. ' fibers are left')
check(fiber.stats().triggers == 0, 'triggers are left')

for _, text in ipairs(problems) do print('WRONG: ' .. text) end
print(#problems == 0 and 'all sums are right' or 'seed was ' .. seed)
os.exit(#problems == 0 and 0 or 1)
