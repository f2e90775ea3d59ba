-- fiber.info, fiber.top, slices, on_yield triggers, scheduled tasks.
local helpers = require 'spec.helpers'
local fiber = require 'cord.fiber'
local E = require 'cord.error'

local function refused(message, fn)
    local ok, e = pcall(fn)
    assert.is_false(ok)
    assert.is_true(E.is(e), tostring(e))
    assert.equal('IllegalParams', e.type)
    assert.equal(message, e.message)
    assert.equal(debug.getinfo(fn, 'S').linedefined, e.trace[1].line)
end

-- Keeps the processor for so many seconds.
local function burn(seconds)
    local till = helpers.now() + seconds
    while helpers.now() < till do end
end

describe('fiber.info', function()
    helpers.no_leftovers()

    it('has an entry a live fiber, finished but not joined ones too', function()
        local light = fiber.create(function() fiber.sleep(10) end)
        light:name 'napper'
        local finished = fiber.new(function() end)
        finished:set_joinable(true)
        fiber.yield()
        local all = fiber.info()
        assert.equal('mapping', getmetatable(all).__serialize)
        local entry = all[light:id()]
        assert.equal(light:id(), entry.fid)
        assert.equal('napper', entry.name)
        assert.equal(1, entry.csw)
        assert.equal(0, entry.time)
        assert.same({ used = 0, total = 0 }, entry.memory)
        assert.same({ warn = 0.5, err = 1 }, entry.max_slice)
        assert.is_table(all[finished:id()])
        assert.is_table(all[fiber.id()])
        light:cancel()
        finished:join()
        fiber.yield()
        assert.is_nil(fiber.info()[light:id()])
    end)

    it('has backtraces unless asked not to', function()
        local function inner() fiber.sleep(10) end
        local function outer()
            inner()
            return 1
        end
        local f = fiber.create(outer)
        local trace = f:info().backtrace
        local text = {}
        for i, frame in ipairs(trace) do text[i] = frame.C or frame.L end
        text = table.concat(text, '\n')
        local line = debug.getinfo(inner, 'S').linedefined
        assert.matches('inner in @?.-04%-inspect_spec%.lua at line ' .. line, text)
        assert.matches('%(unnamed%) in @?.-04%-inspect_spec%.lua at line ' .. line + 2, text)
        assert.is_string(trace[1].C)
        for _, opts in ipairs { { backtrace = false }, { bt = false } } do
            assert.is_nil(f:info(opts).backtrace)
            assert.is_nil(fiber.info(opts)[f:id()].backtrace)
        end
        assert.is_table(f:info({ backtrace = true }).backtrace)
        f:cancel()
        fiber.yield()
        refused('the fiber is dead', function() f:info() end)
        refused('expected fiber as 1 argument', function() f.info(1) end)
    end)

    it('of a stuck, a new, the running and the main fiber', function()
        local stuck = fiber.create(function()
            string.gsub('a', 'a', function() fiber.sleep(10) end)
        end)
        local new = fiber.new(function() end)
        local text = ''
        for _, frame in ipairs(stuck:info().backtrace) do text = text .. (frame.C or frame.L) .. '\n' end
        assert.matches('gsub', text)
        assert.is_true(stuck:info().memory.total >= 16384)
        assert.same({}, new:info().backtrace)
        assert.is_true(#fiber.self():info().backtrace > 0)
        local of_main
        local main = fiber.self()
        fiber.create(function() of_main = main:info().backtrace end)
        assert.is_true(#of_main > 0)
        stuck:cancel()
        fiber.yield()
        fiber.yield()
    end)

    it('leaves the fibers it looked at unharmed', function()
        local done = 0
        for _ = 1, 20 do
            fiber.new(function()
                for _ = 1, 20 do fiber.yield() end
                string.gsub('a', 'a', function() for _ = 1, 20 do fiber.yield() end end)
                done = done + 1
            end)
        end
        for _ = 1, 50 do
            fiber.info()
            collectgarbage 'step'
            fiber.yield()
        end
        assert.equal(20, done)
    end)
end)

describe('fiber.top', function()
    helpers.no_leftovers()

    it('must be enabled', function()
        fiber.top_disable()
        refused('fiber.top() is disabled. Enable it with fiber.top_enable() first', function() fiber.top() end)
    end)

    it('shows who uses the processor', function()
        fiber.top_enable()
        fiber.top_enable()
        local stop = false
        local busy = fiber.create(function()
            fiber.name 'busy'
            while not stop do
                burn(0.01)
                fiber.yield()
            end
        end)
        local idle = fiber.create(function()
            fiber.name 'idle'
            while not stop do fiber.yield() end
        end)
        for _ = 1, 20 do fiber.yield() end
        local top = fiber.top()
        assert.equal(0, top.cpu_misses)
        local a, b = top.cpu[busy:id() .. '/busy'], top.cpu[idle:id() .. '/idle']
        assert.is_true(a.time > 0.1, a.time)
        assert.is_true(a.average > 50 and a.average <= 100.001, a.average)
        assert.is_true(a.time > 10 * b.time)
        assert.is_true(a.instant >= 0 and a.instant <= 100.001)
        assert.is_table(top.cpu['1/sched'])
        assert.is_true(busy:info().time > 0.1)
        stop = true
        fiber.yield()
        fiber.yield()
        fiber.top_disable()
        assert.has_error(fiber.top)
    end)
end)

describe('slices', function()
    helpers.no_leftovers()

    after_each(function()
        fiber.set_max_slice { warn = 0.5, err = 1 }
    end)

    it('are checked where asked, and start anew after a wait', function()
        fiber.yield()
        fiber.set_max_slice(0.05)
        fiber.check_slice()
        burn(0.06)
        local ok, e = pcall(fiber.check_slice)
        assert.is_false(ok)
        assert.equal('FiberSliceIsExceeded', e.type)
        assert.equal('fiber slice is exceeded', e.message)
        fiber.yield()
        fiber.check_slice()
        fiber.sleep(0.06)
        fiber.check_slice()
    end)

    it('time of one fiber is not held against another', function()
        fiber.set_max_slice(0.05)
        fiber.check_slice()
        local result
        fiber.new(function() burn(0.06) end)
        fiber.new(function() burn(0.06) fiber.yield() end)
        fiber.new(function() result = { pcall(fiber.check_slice) } end)
        fiber.yield()
        assert.is_true(result[1], tostring(result[2]))
        fiber.check_slice()
    end)

    it('of one fiber alone', function()
        local results = {}
        local f = fiber.new(function()
            burn(0.03)
            results[1] = pcall(fiber.check_slice)
        end)
        f:set_max_slice { warn = 0.01, err = 0.02 }
        assert.same({ warn = 0.01, err = 0.02 }, f:info().max_slice)
        fiber.yield()
        assert.same({ false }, results)
        local g = fiber.new(function() end)
        fiber.set_max_slice(g, 100 * 365 * 86400)
        assert.is_nil(g:info().max_slice)
        fiber.yield()
    end)

    it('set and extended for the running slice', function()
        fiber.yield()
        fiber.set_slice(0.03)
        burn(0.04)
        assert.is_false((pcall(fiber.check_slice)))
        fiber.extend_slice(10)
        fiber.check_slice()
        fiber.set_slice(0.03)
        fiber.check_slice()
        fiber.yield()
        burn(0.04)
        fiber.check_slice()
    end)

    it('warn once a slice', function()
        local result = helpers.run [[
            local fiber = require 'cord.fiber'
            local function burn() local t = os.clock() while os.clock() - t < 0.02 do end end
            fiber.set_max_slice { warn = 0.01, err = 10 }
            fiber.check_slice()
            burn()
            fiber.check_slice()
            fiber.check_slice()
            fiber.yield()
            fiber.check_slice()
            burn()
            fiber.check_slice()
        ]]
        assert.equal(0, result.code)
        assert.equal(2, select(2, result.stderr:gsub('fiber has not yielded for more than 0%.010 seconds', '')))
    end)

    it('count from the start of the program before they are used', function()
        local result = helpers.run [[
            local fiber = require 'cord.fiber'
            fiber.set_max_slice(0.01)
            local t = os.clock() while os.clock() - t < 0.03 do end
            print(pcall(fiber.check_slice))
        ]]
        assert.equal('false\tfiber slice is exceeded\n', result.stdout)
    end)

    it('refuse bad arguments', function()
        refused('fiber.set_slice(slice): bad arguments', function() fiber.set_slice() end)
        refused('fiber.extend_slice(slice): bad arguments', function() fiber.extend_slice(1, 2) end)
        refused('fiber.check_slice(): bad arguments', function() fiber.check_slice(1) end)
        refused('fiber.set_max_slice([id,] slice): bad arguments', function() fiber.set_max_slice() end)
        refused('fiber.set_max_slice([id,] slice): bad arguments', function() fiber.self():set_max_slice() end)
        local text = 'slice must be a number or a table {warn = <number>, err = <number>}'
        refused(text, function() fiber.set_slice 'x' end)
        refused(text, function() fiber.set_slice { warn = 1 } end)
        refused(text, function() fiber.set_max_slice { err = 1 } end)
        refused('slice value must be >= 0', function() fiber.extend_slice(-1) end)
        refused('slice value must be >= 0', function() fiber.set_max_slice { warn = -1, err = 1 } end)
        local f = fiber.create(function() end)
        refused('the fiber is dead', function() f:set_max_slice(1) end)
    end)
end)

describe('on_yield', function()
    helpers.no_leftovers()

    it('triggers that give a reader or writer what it waits for end the wait', function()
        local function outcome(prepare, trigger, wait)
            local ch = fiber.channel(1)
            prepare(ch)
            local f = fiber.new(function()
                local once = true
                fiber.self():on_yield(function()
                    if once then
                        once = false
                        trigger(ch)
                    end
                end)
                return wait(ch)
            end)
            f:set_joinable(true)
            return { f:join(2) }
        end
        local function nothing() end
        local function full(ch) ch:put 'old' end
        for _, timeout in ipairs { false, 1 } do
            timeout = timeout or nil
            local function get(ch) return ch:get(timeout) end
            local function put(ch) return ch:put('new', timeout), ch:get() end
            assert.same({ true, 'x' }, outcome(nothing, function(ch) ch:put 'x' end, get))
            assert.same({ true, nil }, outcome(nothing, function(ch) ch:close() end, get))
            assert.same({ true, true, 'new' }, outcome(full, function(ch) ch:get() end, put))
            assert.same({ true, false }, outcome(full, function(ch) ch:close() end, function(ch) return ch:put('new', timeout) end))
        end
    end)

    it('triggers of a fiber run before each of its waits, light and stuck', function()
        local n, seen = 0, nil
        local f = fiber.new(function()
            fiber.yield()
            string.gsub('a', 'a', function() fiber.yield() end)
            fiber.sleep(0.001)
        end)
        local function count(x) n, seen = n + 1, x end
        assert.equal(count, f:on_yield(count))
        assert.same({ count }, f:on_yield())
        fiber.sleep(0.01)
        assert.equal('dead', f:status())
        assert.equal(3, n)
        assert.equal(f, seen)
    end)

    it('triggers of the cord run at everybody\'s waits; one may remove itself', function()
        local n, once = 0, 0
        local function count() n = n + 1 end
        local function only_once()
            once = once + 1
            fiber.on_yield(nil, only_once)
        end
        fiber.on_yield(count)
        fiber.on_yield(only_once)
        fiber.new(function() fiber.yield() end)
        fiber.yield()
        fiber.yield()
        fiber.on_yield(nil, count)
        assert.same({}, fiber.on_yield())
        assert.equal(3, n)
        assert.equal(1, once)
        fiber.yield()
        assert.equal(3, n)
    end)

    it('errors are written and do not spread; a trigger may not wait', function()
        local result = helpers.run [[
            local fiber = require 'cord.fiber'
            local f = fiber.new(function() fiber.yield() print 'went on' end)
            f:on_yield(function() error 'in trigger' end)
            f:on_yield(function() fiber.sleep(0.01) end)
            fiber.yield() fiber.yield()
            print(f:status(), fiber.stats().triggers)
        ]]
        assert.equal(0, result.code, result.stderr)
        assert.equal('went on\ndead\t0\n', result.stdout)
        assert.matches('error in an on_yield trigger: [^\n]*in trigger', result.stderr)
        assert.matches('error in an on_yield trigger: cannot yield inside a callback of the scheduler', result.stderr)
    end)
end)

describe('other functions', function()
    helpers.no_leftovers()

    it('tx_user_pool_size keeps a number', function()
        assert.equal(768, fiber.tx_user_pool_size())
        assert.equal(768, fiber.tx_user_pool_size(100))
        assert.equal(100, fiber.tx_user_pool_size(768))
        refused('size must be > 0', function() fiber.tx_user_pool_size(0) end)
        refused('size must be > 0', function() fiber.tx_user_pool_size 'x' end)
        assert.equal(768, fiber.tx_user_pool_size())
    end)

    it('backtrace toggles are there', function()
        for _, name in ipairs { 'parent_backtrace_enable', 'parent_backtrace_disable', 'leak_backtrace_enable',
            'leak_backtrace_disable' } do
            assert.equal(0, select('#', fiber[name]()))
        end
    end)

    it('_internal is hidden from serialisation', function()
        assert.is_table(fiber._internal)
        local copy = getmetatable(fiber).__serialize(fiber)
        assert.is_nil(copy._internal)
        assert.equal(fiber.sleep, copy.sleep)
    end)

    it('scheduled tasks run in order, each protected, and wait where they like', function()
        local result = helpers.run [[
            local fiber = require 'cord.fiber'
            local schedule = fiber._internal.schedule_task
            local log = {}
            local proxy = newproxy(true)
            getmetatable(proxy).__gc = function()
                schedule(function(x) fiber.sleep(0.001) log[#log + 1] = x end, 'from a finalizer')
            end
            proxy = nil
            collectgarbage()
            collectgarbage()
            schedule(error, 'failed')
            schedule(function(x) log[#log + 1] = x end, 2)
            fiber.sleep(0.05)
            print(table.concat(log, ' '))
            local name
            for _, info in pairs(fiber.info()) do if info.name == 'tasks_worker_fiber' then name = info.name end end
            print(name)
        ]]
        assert.equal(0, result.code, result.stderr)
        assert.equal('from a finalizer 2\ntasks_worker_fiber\n', result.stdout)
        assert.equal('error in a scheduled task: failed\n', result.stderr)
    end)
end)
