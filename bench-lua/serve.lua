-- Serving requests: time and Lua garbage of CALL, EVAL and call by reference, with functions made once or for each request;
-- and of requests on the data.
--     luajit bench-lua/serve.lua [--full] [--runs N] [--json];   the same under tarantool, whose own server is measured
-- The client is another process (serve_client.lua): one connection, 100 requests in flight. Garbage is what the collector,
-- stopped meanwhile, would have had to take back; CPU is that of the server's process.
local here = arg[0]:match '^(.*)/[^/]*$' or '.'
package.path = ('%s/?.lua;%s/../?.lua;'):format(here, here) .. package.path
local bench = require 'helpers'
bench.start('serve', ...)
local fiber = bench.fiber()
local spec = require 'spec.helpers'

local IN_FLIGHT = 100
local N = bench.options.full and 1e6 or 2e5
local BODY = 'function(...) return { ... } end'
local bench_func = assert(loadstring('return ' .. BODY))()
local msgpack = require(bench.is_tarantool and 'msgpack' or 'cord.msgpack')

-- Tarantool changes its folder: the client's path must not depend on it.
if here:sub(1, 1) ~= '/' then here = os.getenv 'PWD' .. '/' .. here end

-- ---------------------------------------------------------------- the server

local port, server
if bench.is_tarantool then
    local dir = spec.tempdir()
    box.cfg { listen = '127.0.0.1:0', work_dir = dir, log = dir .. '/log', wal_mode = 'none' }
    box.schema.user.grant('guest', 'execute', 'universe', nil, { if_not_exists = true })
    rawset(_G, 'bench_func', bench_func)
    rawset(_G, 'empty', function() end)
    box.schema.func.create('bench_ref', { language = 'LUA', body = BODY })
    box.schema.func.create('empty_ref', { language = 'LUA', body = 'function() end' })
    box.schema.user.grant('guest', 'read,write', 'universe', nil, { if_not_exists = true })
    box.schema.space.create('bench', { id = 600 }):create_index('pk')
    for i = 1, 10000 do box.space.bench:replace { i, 'some value', i } end
    port = box.info.listen:match ':(%d+)$'
else
    server = require 'cord.server'
    local srv = server.listen('127.0.0.1:0', { eval = true, bench_func = bench_func, empty = function() end })
    srv:func('bench_ref', bench_func)
    srv:func('empty_ref', function() end)
    srv:create_space('bench', { id = 600 }):create_index('pk')
    for i = 1, 10000 do srv.space.bench:replace { i, 'some value', i } end
    port = srv:address():match ':(%d+)$'
end

-- ---------------------------------------------------------------- packets

local SELECT, REPLACE, UPDATE, CALL, EVAL, UPSERT = 1, 3, 4, 10, 8, 9
local map = { __serialize = 'map' }
local function request(kind, content)
    local body = msgpack.encode(setmetatable({ [0] = kind, [1] = 7 }, map)) .. msgpack.encode(setmetatable(content, map))
    local n = #body
    return '\206' .. string.char(math.floor(n / 2 ^ 24), math.floor(n / 2 ^ 16) % 256, math.floor(n / 256) % 256, n % 256)
        .. body
end
local function packet(kind, key, name, args) return request(kind, { [key] = name, [0x21] = args }) end
local OPS = { { '=', 2, 'other' }, { '=', 3, 77 } }
local ARGS = { 1, 2, 3, 'foo', 'bar' }
local CASES = {
    { 'call, empty function', packet(CALL, 0x22, 'empty', {}) },
    { 'call', packet(CALL, 0x22, 'bench_func', ARGS) },
    { 'call by ref, empty function', packet(CALL, 0x22, 'empty_ref', {}) },
    { 'call by ref', packet(CALL, 0x22, 'bench_ref', ARGS) },
    { 'eval, empty expression', packet(EVAL, 0x27, '', {}) },
    { 'eval', packet(EVAL, 0x27, 'return { ... }', ARGS) },
    { 'SELECT', request(SELECT, { [0x10] = 600, [0x12] = 1, [0x20] = { 5000 } }), true },
    { 'REPLACE', request(REPLACE, { [0x10] = 600, [0x21] = { 5000, 'other', 77 } }), true },
    { 'UPDATE', request(UPDATE, { [0x10] = 600, [0x15] = 1, [0x20] = { 5000 }, [0x21] = OPS }), true },
    { 'UPSERT', request(UPSERT, { [0x10] = 600, [0x15] = 1, [0x21] = { 5000, '', 0 }, [0x28] = OPS }), true },
}

-- ---------------------------------------------------------------- measuring

local dir = spec.tempdir()

-- One run: seconds, CPU seconds of this process and KB of garbage for N requests.
local function run(bytes)
    local file = dir .. '/result'
    for _, suffix in ipairs { '', '.ready', '.go' } do os.remove(file .. suffix) end
    spec.write_file(file .. '.packets', bytes:rep(IN_FLIGHT))
    collectgarbage()
    collectgarbage()
    spec.spawn({ spec.which(os.getenv 'LUAJIT' or 'luajit'), here .. '/serve_client.lua', port, tostring(N), file,
        tostring(IN_FLIGHT) }, { stdout = dir .. '/stdout', stderr = dir .. '/stderr', env = { LUA_INIT = false } })
    -- Tarantool's loop takes the news of a child's end for itself: files tell how far it is.
    local deadline = bench.now() + 120
    local function wait_for(name)
        local text
        repeat
            fiber.sleep(0.01)
            text = spec.read_file(name)
        until text or bench.now() > deadline
        return text
    end
    wait_for(file .. '.ready')
    collectgarbage()
    collectgarbage()
    collectgarbage 'stop'
    local before, spent = collectgarbage 'count', bench.cpu()
    spec.write_file(file .. '.go', 'go')
    local text = wait_for(file)
    local garbage, cpu = collectgarbage 'count' - before, bench.cpu() - spent
    collectgarbage 'restart'
    if not text then error('the client failed: ' .. (spec.read_file(dir .. '/stderr') or '')) end
    local seconds = tonumber(text:match '^%S+')
    return seconds, cpu, garbage
end

local VARIANTS = bench.is_tarantool and { 'as it is' } or { 'as it is', 'closures made for each request' }
local function select_variant(name)
    if server then server.cfg { reuse_handlers = name == 'as it is' } end
end

local results = {}
for _, case in ipairs(CASES) do
    for _, variant in ipairs(VARIANTS) do results[case[1] .. variant] = { garbage = {}, time = {}, rate = {}, cpu = {} } end
end
for round = 0, bench.options.runs do
    for _, case in ipairs(CASES) do
        if not bench.options.only or case[1]:find(bench.options.only, 1, true) then
            -- No functions are made for requests on the data.
            for v = 1, case[3] and 1 or #VARIANTS do
                local variant = VARIANTS[v]
                select_variant(variant)
                local seconds, cpu, garbage = run(case[2])
                -- The first round fills the pools.
                if round > 0 then
                    local r = results[case[1] .. variant]
                    table.insert(r.garbage, garbage * 1024 / N)
                    table.insert(r.time, seconds * 1e6 / N)
                    table.insert(r.rate, N / seconds / 1e3)
                    table.insert(r.cpu, cpu * 1e6 / N)
                end
            end
        end
    end
end

local function report(title, unit, field)
    for _, case in ipairs(CASES) do
        for _, variant in ipairs(VARIANTS) do
            local values = results[case[1] .. variant][field]
            if #values > 0 then
                bench.record { table = title, row = case[1], column = variant, unit = unit, values = values }
            end
        end
    end
end
report('Garbage of a request', 'bytes', 'garbage')
report('Time of a request', 'us', 'time')
report('Requests a second, one connection', 'k/s', 'rate')
report("CPU time of the server's process for a request", 'us', 'cpu')
bench.finish()
