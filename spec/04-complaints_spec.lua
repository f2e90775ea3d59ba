-- Complaints about fibers, channels and conds in public trackers, each as a test here. T is tarantool/tarantool.
local helpers = require 'spec.helpers'
local fiber = require 'cord.fiber'

local function resident()
    collectgarbage()
    collectgarbage()
    local file = io.open '/proc/self/status'
    if not file then return nil end
    local text = file:read '*a'
    file:close()
    return tonumber(text:match 'VmRSS:%s*(%d+)')
end

local function joinable(fn, ...)
    local f = fiber.new(fn, ...)
    f:set_joinable(true)
    return f
end

describe('a complaint about fibers:', function()
    helpers.no_leftovers()

    it('T#6455: joinable fibers that nobody joins keep threads and stacks', function()
        local list = {}
        for i = 1, 2000 do
            list[i] = joinable(function()
                string.gsub('a', 'a', function() fiber.yield() end)
                return i
            end)
        end
        for _ = 1, 4 do fiber.yield() end
        fiber.sleep(0.01)
        assert.is_true(fiber.stats().stacks < 50)
        for i = 1, 2000 do assert.same({ true, i }, { list[i]:join() }) end
    end)

    it('T#10187: find of a finished joinable fiber makes new handles', function()
        if not resident() then
            pending 'resident memory is read on Linux only'
            return
        end
        local f = joinable(function() end)
        fiber.yield()
        local id = f:id()
        assert.equal(f, fiber.find(id))
        for _ = 1, 1e5 do fiber.find(id) end
        local before = resident()
        for _ = 1, 1e6 do fiber.find(id) end
        assert.is_true(resident() - before < 1024)
        assert.has_error(function() return f.storage end)
        f:join()
    end)

    it('T#7531: a join by number of a fiber of the library', function()
        assert.equal('false\tthe fiber is not joinable\n', helpers.run_ok [[
            local fiber = require 'cord.fiber'
            fiber._internal.schedule_task(function() end)
            fiber.yield()
            local worker
            for id, info in pairs(fiber.info()) do
                if info.name == 'tasks_worker_fiber' then worker = id end
            end
            print(pcall(fiber.join, worker))
        ]])
    end)

    it('T#7562: set_joinable while another fiber joins', function()
        local f = joinable(function() fiber.sleep(0.01) return 1 end)
        local result
        fiber.create(function() result = { pcall(f.join, f) } end)
        f:set_joinable(false)
        fiber.sleep(0.03)
        -- Nobody keeps the result any more; the joiner learns that, and nothing crashes.
        assert.is_false(result[1])
        f = joinable(function() fiber.sleep(0.01) return 1 end)
        fiber.create(function() result = { f:join() } end)
        f:set_joinable(true)
        fiber.sleep(0.03)
        assert.same({ true, 1 }, result)
    end)

    it('T#4817: a kill of a finished fiber raises, as ever', function()
        local f = fiber.create(function() end)
        local ok, e = pcall(fiber.kill, f:id())
        assert.is_false(ok)
        assert.equal('the fiber is dead', e.message)
    end)

    it('T#5843: a wakeup of a finished joinable fiber', function()
        local f = joinable(function() return 1 end)
        fiber.yield()
        f:wakeup()
        fiber.wakeup(f:id())
        assert.same({ true, 1 }, { f:join() })
    end)

    it('T#4662: storage in fibers that serve requests', function()
        local out = helpers.run_ok([[
            local fiber = require 'cord.fiber'
            local server = require('cord.server').listen(..., {
                mark = function()
                    local storage = fiber.self().storage
                    local seen = storage.mark
                    storage.mark = true
                    return seen == nil
                end,
            })
            local conn = require('cord.netbox').connect(...)
            print(conn:call 'mark', conn:call 'mark', conn:call 'mark')
            conn:close()
            server:stop()
            os.exit(0)
        ]], { args = { helpers.tempdir() .. '/s' } })
        assert.equal('true\ttrue\ttrue\n', out)
    end)

    it('LuaJIT#467, #597, #1333, #1340: waits across C boundaries', function()
        package.preload['spec.yields'] = function()
            fiber.sleep(0)
            return { fiber.id() }
        end
        local f = joinable(function()
            local loaded = require('spec.yields')[1] == fiber.id()
            local words = {}
            for word in (function() return string.gmatch('a b', '%a') end)() do
                fiber.yield()
                words[#words + 1] = word
            end
            return loaded, table.concat(words)
        end)
        assert.same({ true, true, 'ab' }, { f:join() })
        package.preload['spec.yields'], package.loaded['spec.yields'] = nil, nil
    end)

    it('generator-rs#32, libfringe#57: the end of a process with many suspended fibers is silent', function()
        local result = helpers.run [[
            local fiber = require 'cord.fiber'
            for _ = 1, 1e5 do fiber.create(function() fiber.sleep(100) end) end
            for _ = 1, 2000 do fiber.create(function() string.gsub('a', 'a', function() fiber.sleep(100) end) end) end
        ]]
        assert.equal(0, result.code)
        assert.equal('', result.stdout .. result.stderr)
    end)

    it('a signal that is not for us ends no sleep', function()
        local dir = helpers.tempdir()
        local child = helpers.spawn({ helpers.interpreter(), helpers.write_file(dir .. '/s.lua', [[
            local fiber = require 'cord.fiber'
            local start = os.time()
            fiber.create(function() string.gsub('a', 'a', function() fiber.sleep(0.5) print 'stuck' end) end)
            local before = fiber.clock()
            fiber.sleep(0.6)
            print(fiber.clock() - before >= 0.6)
        ]]) }, {
            env = { LUA_PATH = package.path, LUA_CPATH = package.cpath, LUA_INIT = false },
            stdout = dir .. '/out',
            stderr = dir .. '/err',
        })
        for _ = 1, 5 do
            helpers.block(0.04)
            child:kill 'STOP'
            child:kill 'CONT'
        end
        assert.equal(0, child:wait(10).code)
        assert.equal('stuck\ntrue\n', helpers.read_file(dir .. '/out'))
        assert.equal('', helpers.read_file(dir .. '/err'))
    end)
end)

describe('a complaint about channels and conds:', function()
    helpers.no_leftovers()

    it('T#7746: close drops what is queued', function()
        local ch = fiber.channel(2)
        ch:put(1)
        ch:close()
        assert.is_true(ch:is_closed())
        assert.equal(1, ch:get())
        assert.is_nil(ch:get())
    end)

    it('xqueue#32: has_readers is false once the reader has its message', function()
        local ch, got = fiber.channel(), {}
        fiber.create(function()
            while true do
                local message = ch:get()
                if message == nil then break end
                got[#got + 1] = message
            end
        end)
        local sent = 0
        while ch:has_readers() do
            sent = sent + 1
            ch:put(sent)
        end
        assert.equal(1, sent)
        fiber.yield()
        assert.is_true(ch:has_readers())
        ch:close()
        fiber.yield()
        assert.same({ 1 }, got)
    end)

    it('queue#52: wakeups at random neither lose nor double a message', function()
        local ch, got, done = fiber.channel(), {}, 0
        local list = {}
        for _ = 1, 5 do
            list[#list + 1] = fiber.create(function()
                while true do
                    local message = ch:get()
                    if message == nil then break end
                    got[message] = (got[message] or 0) + 1
                end
                done = done + 1
            end)
        end
        for i = 1, 500 do
            ch:put(i)
            list[i % 5 + 1]:wakeup()
            if i % 7 == 0 then fiber.yield() end
        end
        fiber.yield()
        ch:close()
        fiber.yield()
        assert.equal(5, done)
        for i = 1, 500 do assert.equal(1, got[i]) end
    end)

    it('fiber_channel.test.lua: timeouts of readers are kept apart', function()
        local ch, log = fiber.channel(), {}
        fiber.create(function()
            local value = ch:get(0.01)
            log[#log + 1] = 'first ' .. tostring(value)
        end)
        fiber.create(function()
            local value = ch:get(0.5)
            log[#log + 1] = 'second ' .. tostring(value)
        end)
        fiber.sleep(0.05)
        ch:put 'x'
        fiber.yield()
        assert.same({ 'first nil', 'second x' }, log)
    end)
end)
