-- A turn of the scheduler beside what else a plain-LuaJIT user would pick: copas, cqueues, luv, a ring buffer of coroutines.
--     luajit bench-lua/peers.lua [--runs N] [--json] [--cpu]     (Debian: lua-copas lua-cqueues lua-luv; each is optional)
package.path = (arg[0]:match '^(.*)/[^/]*$' or '.') .. '/?.lua;' .. package.path
local bench = require 'helpers'
bench.start('peers', ...)

-- Each peer: run(n, m) lets n of its tasks yield m times in turn, and gives the seconds that took.
local peers = {}

local fiber = bench.fiber()
if fiber then
    peers[#peers + 1] = { bench.is_tarantool and 'tarantool fibers' or 'cord', function(n, m)
        return bench.run_fibers(fiber, n, function()
            for _ = 1, m do fiber.yield() end
        end)
    end }
end

peers[#peers + 1] = { 'ring buffer of coroutines', function(n, m)
    local yield, resume, status = coroutine.yield, coroutine.resume, coroutine.status
    local ring, head, count = {}, 0, 0
    local size = 1
    while size < n do size = size * 2 end
    local function push(co)
        ring[(head + count) % size] = co
        count = count + 1
    end
    for _ = 1, n do
        push(coroutine.create(function()
            for _ = 1, m do yield() end
        end))
    end
    local begin = bench.now()
    while count > 0 do
        local co = ring[head]
        head, count = (head + 1) % size, count - 1
        assert(resume(co))
        if status(co) ~= 'dead' then push(co) end
    end
    return bench.now() - begin
end }

local function optional(name, module, make)
    local fine, loaded = pcall(require, module)
    local run = fine and make(loaded)
    if run then
        peers[#peers + 1] = { name, run }
    elseif not fine then
        io.stderr:write(('peers: no %s on this machine\n'):format(module))
    end
end

if not bench.is_tarantool then
    optional('luv, an idle handle each', 'luv', function(uv)
        return function(n, m)
            for _ = 1, n do
                local idle = uv.new_idle()
                local co = coroutine.wrap(function()
                    for _ = 1, m do coroutine.yield() end
                    idle:close()
                end)
                idle:start(co)
            end
            local begin = bench.now()
            uv.run()
            return bench.now() - begin
        end
    end)

    optional('luv, a timer each', 'luv', function(uv)
        return function(n, m)
            for _ = 1, n do
                local timer = uv.new_timer()
                local co
                co = coroutine.wrap(function()
                    for _ = 1, m do
                        timer:start(0, 0, co)
                        coroutine.yield()
                    end
                    timer:close()
                end)
                co()
            end
            local begin = bench.now()
            uv.run()
            return bench.now() - begin
        end
    end)

    optional('copas', 'copas', function(copas)
        local pause = copas.pause or copas.sleep
        return pause and function(n, m)
            for _ = 1, n do
                copas.addthread(function()
                    for _ = 1, m do pause(0) end
                end)
            end
            local begin = bench.now()
            copas.loop()
            return bench.now() - begin
        end
    end)

    -- Debian 12's, of 2016, has no pause: its threads wait for sockets alone, so each waits for one of its own, which can
    -- always be written to.
    optional('copas, a socket each', 'copas', function(copas)
        local fine, socket = pcall(require, 'socket')
        if not fine or not socket.udp4 or copas.pause or copas.sleep then return nil end
        local function nothing() end
        local function connect(self)
            self.asked = not self.asked
            if self.asked then return nil, 'timeout' end
            return true
        end
        local sockets = {}
        return function(n, m)
            local left = n
            for i = 1, n do
                sockets[i] = sockets[i] or socket.udp4()
                local fd = sockets[i]:getfd()
                local stand_in = { settimeout = nothing, close = nothing, dirty = nothing, connect = connect, asked = false }
                function stand_in.getfd() return fd end
                copas.addthread(function()
                    for _ = 1, m do copas.connect(stand_in) end
                    left = left - 1
                end)
            end
            local begin = bench.now()
            while left > 0 do copas.step() end
            return bench.now() - begin
        end
    end)

    optional('cqueues', 'cqueues', function(cqueues)
        return function(n, m)
            local queue = cqueues.new()
            for _ = 1, n do
                queue:wrap(function()
                    for _ = 1, m do cqueues.sleep(0) end
                end)
            end
            local begin = bench.now()
            assert(queue:loop())
            return bench.now() - begin
        end
    end)
end

for _, n in ipairs { 100, 1000 } do
    local m = math.floor((bench.options.full and 1e6 or 2e5) / n)
    local cases = {}
    for _, peer in ipairs(peers) do
        cases[#cases + 1] = {
            table = 'A turn of the scheduler', row = peer[1], column = ('%d tasks'):format(n), items = n * m,
            run = function() return peer[2](n, m) end,
        }
    end
    bench.compare(cases)
end

bench.finish()
