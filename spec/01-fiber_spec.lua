-- cord.fiber: life, questions, cancel, join, triggers; docs/fibers.md, Tarantool's fiber module.
local helpers = require 'spec.helpers'
local fiber = require 'cord.fiber'
local E = require 'cord.error'
local fiber_helpers = require 'spec.fiber_helpers'
local same, notes = fiber_helpers.same, fiber_helpers.notes

-- What a call raises.
local function raised(fn, ...)
    local ok, e = pcall(fn, ...)
    assert.is_false(ok)
    return e
end

-- The call raises an IllegalParams error with this message, whose trace names the line of the call.
local function refused(message, fn)
    local e = raised(fn)
    assert.is_true(E.is(e), tostring(e))
    assert.equal('IllegalParams', e.type)
    assert.equal(message, e.message)
    assert.equal(message, tostring(e))
    assert.equal(0, e.code)
    assert.equal(debug.getinfo(fn, 'S').linedefined, e.trace[1].line)
    assert.equal('spec/01-fiber_spec.lua', e.trace[1].file)
end

local function joinable(fn, ...)
    local f = fiber.new(fn, ...)
    f:set_joinable(true)
    return f
end

describe('cord.fiber', function()
    helpers.no_leftovers()

    describe('birth and order', function()
        same('create runs its function at once, nested', [[
            fiber.create(function()
                note 'a'
                fiber.create(function() note 'b' fiber.sleep(0.01) note 'b2' end)
                note 'a2'
            end)
            note 'm'
            fiber.sleep(0.02)
        ]], 'a, b, a2, m, b2')

        same('new queues its function', [[
            for i = 1, 3 do fiber.new(function() note(i) end) end
            note 'm'
            fiber.yield()
            note 'm2'
        ]], 'm, 1, 2, 3, m2')

        same('arguments keep their number, nils included', [[
            fiber.new(function(...) note(select('#', ...), ...) end, 1, nil, 3, nil)
            fiber.create(function(...) note(select('#', ...), ...) end, nil, nil)
            fiber.yield()
        ]], '2 nil nil, 4 1 nil 3 nil')

        same('seven thousand arguments and results', [[
            local t = {}
            for i = 1, 7000 do t[i] = i end
            local f = fiber.new(function(...) return select('#', ...), ... end, unpack(t))
            f:set_joinable(true)
            local r = { f:join() }
            note(#r, r[2], r[3], r[7002])
        ]], '7002 7000 1 7000')

        same('yields in turn, first in first out', [[
            for i = 1, 3 do fiber.new(function() fiber.yield() note(i) end) end
            fiber.yield() fiber.yield() fiber.yield()
        ]], '1, 2, 3', { newer = 'equal deadlines are not ordered in Tarantool' })

        same('sleeps by deadline', [[
            for _, t in ipairs { 0.03, 0.01, 0.02 } do fiber.create(function() fiber.sleep(t) note(t) end) end
            fiber.sleep(0.05)
        ]], '0.01, 0.02, 0.03')

        it('refuses what is no function', function()
            for _, bad in ipairs { 1, 'x', {}, setmetatable({}, { __call = function() end }) } do
                assert.equal('fiber.create(function, ...): bad arguments', tostring(raised(fiber.create, bad)))
                assert.equal('fiber.new(function, ...): bad arguments', tostring(raised(fiber.new, bad)))
            end
            refused('fiber.create(function, ...): bad arguments', function() fiber.create() end)
            refused('fiber.new(function, ...): bad arguments', function() fiber.new() end)
        end)
    end)

    describe('questions', function()
        same('self, id, find', [[
            local me = fiber.self()
            note(me == fiber.self(), type(me), getmetatable(me), fiber.find(fiber.id()) == me, me:id() == fiber.id(),
                fiber.id(me) == fiber.id())
            note(fiber.find(1), fiber.find 'x', fiber.find(1e6), fiber.find {}, fiber.find(nil), fiber.find(-1), fiber.find(2 ^ 60))
            local f = fiber.create(function() fiber.sleep(1) end)
            note(fiber.find(f:id()) == f, fiber.find(f:id() + 0.7) == f)
        ]], 'true userdata fiber true true true, nil nil nil nil nil nil nil, true true')

        it('find takes 64-bit numbers and numeric strings', function()
            local f = fiber.create(function() fiber.sleep(1) end)
            assert.equal(f, fiber.find(f:id() + 0ULL))
            assert.equal(f, fiber.find(f:id() + 0LL))
            assert.equal(f, fiber.find(tostring(f:id())))
            f:cancel()
            fiber.yield()
            refused('Usage: fiber.find(id)', function() fiber.find() end)
            refused('Usage: fiber.find(id)', function() fiber.find(1, 2) end)
        end)

        same('ids count up', [[
            local a = fiber.create(function() end)
            local b = fiber.create(function() end)
            note(b:id() - a:id(), a:id() > 100, type(a:id()))
        ]], '1 true number')

        same('status', [[
            local me = fiber.self()
            local f = fiber.create(function() note(me:status(), fiber.status()) fiber.sleep(0.01) end)
            note(f:status(), fiber.status(f), fiber.status())
            fiber.sleep(0.02)
            note(f:status())
        ]], 'suspended running, suspended suspended running, dead')

        it('status and id refuse what is no fiber', function()
            refused('expected fiber as 1 argument', function() fiber.status(1) end)
            refused('expected fiber as 1 argument', function() fiber.status {} end)
            refused('expected fiber as 1 argument', function() fiber.id(1) end)
            refused('expected fiber as 1 argument', function() fiber.id(nil) end)
            refused('expected fiber as 1 argument', function() fiber.id(io.stdout) end)
            local f = fiber.create(function() end)
            assert.is_true(f:id() > 100 and fiber.id(f) == f:id())
        end)

        same('names', [[
            note(fiber.create(function() fiber.sleep(1) end):name())
            fiber.name 'x'
            note(fiber.name(), fiber.self():name(), fiber.name(fiber.self()))
            fiber.self():name 'y'
            note(fiber.name())
            note(fiber.name(fiber.self(), 'z'))
            note(fiber.name())
            fiber.name(5)
            note(fiber.name())
        ]], 'lua, x x x, y, , z, 5')

        same('long names', [[
            local ok, e = pcall(fiber.name, ('x'):rep(256))
            note(ok, e)
            fiber.name(('x'):rep(300), { truncate = true })
            note(#fiber.name())
            for _, opts in ipairs { { truncate = 1 }, {}, 5 } do
                ok, e = pcall(fiber.name, ('x'):rep(300), opts)
                note(ok, e)
            end
            fiber.name(('y'):rep(255))
            note(#fiber.name())
            fiber.name 'a\0b'
            note(fiber.name(), #fiber.name())
        ]], 'false Fiber name is too long, 255, false Fiber name is too long, false Fiber name is too long, '
            .. 'false Fiber name is too long, 255, a 1')

        it('names refuse what is no string', function()
            local before = fiber.name()
            refused('expected string as 1 argument', function() fiber.name(nil) end)
            refused('expected string as 1 argument', function() fiber.name {} end)
            refused('expected string as 2 argument', function() fiber.name(fiber.self(), nil) end)
            refused('expected string as 2 argument', function() fiber.self():name(true) end)
            assert.equal(before, fiber.name())
            local f = fiber.create(function() end)
            refused('the fiber is dead', function() f:name() end)
            refused('the fiber is dead', function() f:name 'x' end)
        end)

        it('csw counts switches, from 0', function()
            local f = joinable(function() fiber.yield() return fiber.self():csw() end)
            assert.equal(0, f:csw())
            fiber.yield()
            assert.equal(1, f:csw())
            assert.same({ true, 2 }, { f:join() })
            refused('the fiber is dead', function() f:csw() end)
            local before = fiber.self():csw()
            fiber.yield()
            assert.equal(before + 1, fiber.self():csw())
        end)

        same('unknown keys are nil, and no field can be set', [[
            local me = fiber.self()
            note(me.foo, fiber.foo, me.kill, me.sleep, me.find, (pcall(function() me.x = 1 end)))
        ]], 'nil nil nil nil nil false')

        it('shows itself alive and dead', function()
            local f = fiber.create(function() fiber.sleep(1) end)
            local id = f:id()
            assert.equal('fiber: ' .. id, tostring(f))
            assert.same({ id = id, name = 'lua', status = 'suspended' }, f:__serialize())
            f:cancel()
            fiber.yield()
            assert.equal('fiber: ' .. id .. ' (dead)', tostring(f))
            assert.same({ id = id, status = 'dead' }, f:__serialize())
        end)

        same('time', [[
            note(type(fiber.time()), type(fiber.time64()), type(fiber.clock()), type(fiber.clock64()))
            local t, c = fiber.time(), fiber.clock()
            for i = 1, 1e6 do end
            note(fiber.time() == t, fiber.clock() == c, math.abs(t - os.time()) < 3)
            fiber.sleep(0.02)
            note(fiber.clock() - c >= 0.02, fiber.clock() - c < 0.5)
        ]], 'number cdata number cdata, true true true, true true')

        it('time64 and clock64 are signed microseconds', function()
            local ffi = require 'ffi'
            assert.is_true(ffi.istype('int64_t', fiber.time64()))
            assert.is_true(ffi.istype('int64_t', fiber.clock64()))
            assert.is_true(math.abs(tonumber(fiber.time64()) / 1e6 - fiber.time()) < 0.01)
        end)
    end)

    describe('yield, sleep, wakeup', function()
        same('yield ignores arguments and returns nothing', [[
            note(select('#', fiber.yield(1, 2)))
        ]], '0')

        it('sleep wants one number', function()
            for _, fn in ipairs {
                function() fiber.sleep() end, function() fiber.sleep 'x' end, function() fiber.sleep(1, 2) end,
                function() fiber.sleep(nil) end, function() fiber.sleep {} end, function() fiber.sleep(0LL) end,
            } do
                refused('Usage: fiber.sleep(delay)', fn)
            end
            fiber.sleep '0'
            fiber.sleep '0x0'
            fiber.sleep(-1)
            fiber.sleep(1e-9)
        end)

        same('a wakeup ends a sleep', [[
            local f = fiber.create(function() fiber.sleep(10) note 'woken' end)
            fiber.wakeup(f)
            note 'm'
            fiber.yield()
            local ok, e = pcall(fiber.wakeup, f)
            note(ok, e)
            f = fiber.create(function() fiber.sleep(10) note 'woken' end)
            fiber.wakeup(f:id())
            fiber.yield()
        ]], 'm, woken, false the fiber is dead, woken')

        same('wakeups of one that is ready or not started are nothing', [[
            local f = fiber.new(function() note 'ran' fiber.sleep(0.01) note 'again' end)
            f:wakeup() f:wakeup()
            fiber.yield()
            note 'm'
            fiber.sleep(0.03)
        ]], 'ran, m, again')

        same('a wakeup of the parent in a create is nothing', [[
            local me = fiber.self()
            fiber.create(function() me:wakeup() note 'child' end)
            local t = fiber.clock()
            fiber.sleep(0.02)
            note(fiber.clock() - t > 0.01)
        ]], 'child, true')

        same('a wakeup of itself is nothing', [[
            fiber.self():wakeup()
            local t = fiber.clock()
            fiber.sleep(0.03)
            note(fiber.clock() - t > 0.02)
        ]], 'true', { newer = 'gh-6043 was mended after 2.6' })

        it('wakeup, cancel, join, set_joinable refuse what is no fiber', function()
            refused('expected fiber as 1 argument', function() fiber.wakeup() end)
            refused('expected fiber as 1 argument', function() fiber.wakeup {} end)
            refused('expected fiber as 1 argument', function() fiber.wakeup '101' end)
            refused('expected fiber as 1 argument', function() fiber.cancel 'x' end)
            refused('expected fiber as 1 argument', function() fiber.kill {} end)
            refused('expected fiber as 1 argument', function() fiber.join() end)
            refused('expected fiber as 1 argument', function() fiber.set_joinable({}, true) end)
            refused('the fiber is dead', function() fiber.wakeup(99999999) end)
            refused('the fiber is dead', function() fiber.cancel(99999999) end)
            refused('the fiber is dead', function() fiber.join(99999999) end)
            refused('the fiber is dead', function() fiber.set_joinable(99999999, true) end)
        end)
    end)

    describe('cancel', function()
        same('is sticky and asynchronous', [[
            local f = fiber.create(function()
                for _, fn in ipairs { function() fiber.sleep(10) end, fiber.yield, fiber.testcancel } do
                    local ok, e = pcall(fn)
                    note(ok, e)
                end
            end)
            note(select('#', fiber.cancel(f)))
            fiber.yield() fiber.yield()
            note(f:status())
        ]], '0, false fiber is cancelled, false fiber is cancelled, false fiber is cancelled, dead')

        same('a dead one raises', [[
            local f = fiber.create(function() end)
            for _, fn in ipairs { fiber.cancel, fiber.kill, f.cancel } do
                local ok, e = pcall(fn, f)
                note(ok, e)
            end
            local ok, e = pcall(fiber.kill, f:id())
            note(ok, e)
        ]], 'false the fiber is dead, false the fiber is dead, false the fiber is dead, false the fiber is dead')

        same('itself raises at once', [[
            fiber.create(function()
                local ok, e = pcall(fiber.cancel, fiber.self())
                note(ok, e)
                ok, e = pcall(fiber.testcancel)
                note(ok, e)
            end)
        ]], 'false fiber is cancelled, false fiber is cancelled')

        same('another from a cancelled fiber does it and raises', [[
            local g = fiber.create(function() local ok, e = pcall(fiber.sleep, 10) note('g', ok, e) end)
            local f = fiber.create(function()
                pcall(fiber.sleep, 10)
                local ok, e = pcall(fiber.cancel, g)
                note(ok, e)
            end)
            f:cancel()
            fiber.yield() fiber.yield()
        ]], 'false fiber is cancelled, g false fiber is cancelled')

        same('a cancelled fiber sleeps in full, then raises', [[
            local f = fiber.create(function()
                pcall(fiber.sleep, 10)
                local t = fiber.clock()
                local ok, e = pcall(fiber.sleep, 0.05)
                note(ok, e, fiber.clock() - t > 0.04)
            end)
            f:cancel()
            for _ = 1, 500 do
                if #out < 1 then fiber.sleep(0.01) end
            end
        ]], 'false fiber is cancelled true')

        same('before the first run: the function runs', [[
            local f = fiber.new(function() note 'ran' local ok, e = pcall(fiber.testcancel) note(ok, e) end)
            f:cancel()
            fiber.yield()
        ]], 'ran, false fiber is cancelled')

        same('of the parent in a create sets the flag', [[
            fiber.create(function()
                local parent = fiber.self()
                fiber.create(function() note(pcall(fiber.cancel, parent)) end)
                local ok, e = pcall(fiber.yield)
                note(ok, e)
            end)
            fiber.yield()
        ]], 'true, false fiber is cancelled')

        it('raises an error object of its type', function()
            local f = joinable(function() fiber.sleep(10) end)
            fiber.yield()
            f:cancel()
            local ok, e = f:join()
            assert.is_false(ok)
            assert.equal('FiberIsCancelled', e.type)
            assert.equal('fiber is cancelled', e.message)
        end)

        it('testcancel', function()
            assert.equal(0, select('#', fiber.testcancel()))
            refused('fiber.testcancel(): bad arguments', function() fiber.testcancel(1) end)
            refused('fiber.testcancel(): bad arguments', function() fiber.self():testcancel() end)
        end)

        it('does not touch system fibers', function()
            local f = fiber.create(function() fiber.sleep(0.02) end)
            fiber._internal.set_system(f)
            f:cancel()
            fiber.yield()
            assert.equal('suspended', f:status())
            fiber.sleep(0.03)
            assert.equal('dead', f:status())
            refused('fiber.set_system(id): bad arguments', function() fiber._internal.set_system() end)
            refused('fiber.set_managed_shutdown(id): bad arguments', function() fiber._internal.set_managed_shutdown() end)
        end)
    end)

    describe('join', function()
        same('gives the results, nils included', [[
            local f = fiber.new(function(...) return ... end, 1, nil, 3, nil)
            f:set_joinable(true)
            note(f:join())
            f = fiber.create(function() fiber.sleep(0.01) return 'x' end)
            f:set_joinable(true)
            note(f:join())
            f = fiber.new(function() end)
            f:set_joinable(true)
            note(f:join())
        ]], 'true 1 nil 3 nil, true x, true')

        same('gives errors as error objects', [[
            for _, v in ipairs { 'boom', 5, true, setmetatable({}, { __tostring = function() return 'T' end }) } do
                local f = fiber.new(function() error(v, 0) end)
                f:set_joinable(true)
                local ok, e = f:join()
                note(ok, type(e), e)
            end
            for _, fn in ipairs { function() error() end, function() error(nil) end } do
                local f = fiber.new(fn)
                f:set_joinable(true)
                note(f:join())
            end
        ]], 'false cdata boom, false cdata 5, false cdata true, false cdata T, false nil, false nil')

        it('keeps the raised value in a field, and an error object as it is', function()
            local value = { code = 1 }
            local ok, e = joinable(function() fiber.yield() error(value) end):join()
            assert.is_false(ok)
            assert.equal('LuajitError', e.type)
            assert.equal(tostring(value), e.message)
            assert.equal(value, e.value)
            local object = E.new('MyType', 'mine')
            ok, e = joinable(function() error(object) end):join()
            assert.is_false(ok)
            assert.equal(object, e)
        end)

        same('of a cancelled fiber', [[
            local f = fiber.new(function() fiber.sleep(10) end)
            f:set_joinable(true)
            fiber.yield()
            f:cancel()
            note(f:join())
            f = fiber.new(function() pcall(fiber.sleep, 10) return 7 end)
            f:set_joinable(true)
            fiber.yield()
            f:cancel()
            note(f:join())
        ]], 'false fiber is cancelled, true 7')

        same('a cancelled joiner goes on waiting', [[
            local f = fiber.new(function() fiber.sleep(0.03) return 'r' end)
            f:set_joinable(true)
            local j = fiber.create(function()
                note(f:join())
                local ok, e = pcall(fiber.testcancel)
                note(ok, e)
            end)
            j:cancel()
            -- However long the machine does something else.
            for _ = 1, 500 do
                if #out < 2 then fiber.sleep(0.01) end
            end
        ]], 'true r, false fiber is cancelled')

        same('a finished one waits for its join, suspended', [[
            local f = fiber.new(function() return 1 end)
            f:set_joinable(true)
            fiber.yield()
            note(f:status(), fiber.find(f:id()) == f, f:name(), pcall(f.wakeup, f))
            note(pcall(f.cancel, f))
            note(f:join())
            note(f:status(), fiber.find(f:id()))
            local ok, e = pcall(f.join, f)
            note(ok, e)
        ]], 'suspended true lua true, true, true 1, dead nil, false the fiber is dead')

        it('with a timeout', function()
            local f = joinable(function() fiber.sleep(0.05) return 'late' end)
            local before = helpers.now()
            local ok, e = f:join(0.01)
            assert.is_true(helpers.now() - before >= 0.009)
            assert.is_false(ok)
            assert.equal('TimedOut', e.type)
            assert.equal('timed out', e.message)
            ok, e = f:join(0)
            assert.is_false(ok)
            assert.equal('timed out', e.message)
            assert.same({ true, 'late' }, { f:join '5' })
        end)

        it('checks in its order', function()
            local f = fiber.create(function() fiber.sleep(0.02) end)
            refused('the fiber is not joinable', function() f:join 'x' end)
            refused('the fiber is not joinable', function() fiber.join(fiber.self()) end)
            f:set_joinable(true)
            for _, bad in ipairs { function() f:join 'x' end, function() f:join(-1) end, function() f:join {} end,
                function() f:join(1LL) end } do
                refused('fiber:join(timeout): bad arguments', bad)
            end
            local me = joinable(function()
                refused('cannot join itself', function() fiber.self():join() end)
                refused('cannot join itself', function() fiber.self():join 'x' end)
            end)
            assert.same({ true }, { me:join() })
            fiber.sleep(0.03)
            -- Finished: wrong arguments do not take its result.
            refused('fiber:join(timeout): bad arguments', function() f:join 'x' end)
            assert.same({ true }, { f:join() })
            refused('the fiber is dead', function() f:join 'x' end)
        end)

        it('by several fibers: the first to run gets the results', function()
            local f = joinable(function() fiber.sleep(0.01) return 'r' end)
            local log = {}
            for i = 1, 3 do
                fiber.create(function()
                    local r = { pcall(f.join, f) }
                    log[#log + 1] = i .. ' ' .. tostring(r[1]) .. ' ' .. tostring(r[2]) .. ' ' .. tostring(r[3])
                end)
            end
            for _ = 1, 500 do
                if #log < 3 then fiber.sleep(0.01) end
            end
            local joined = 'false the fiber is already joined by concurrent fiber:join() nil'
            assert.same({ '1 true true r', '2 ' .. joined, '3 ' .. joined }, log)
        end)

        it('set_joinable', function()
            refused('fiber.set_joinable(id, yesno): bad arguments', function() fiber.set_joinable() end)
            refused('fiber.set_joinable(id, yesno): bad arguments', function() fiber.self():set_joinable() end)
            refused('fiber.set_joinable(id, yesno): bad arguments', function() fiber.self():set_joinable(true, 1) end)
            local f = fiber.create(function() end)
            refused('the fiber is dead', function() f:set_joinable(true) end)
            -- Tarantool's process ends here.
            local finished = joinable(function() return 1 end)
            fiber.yield()
            refused('the fiber is dead', function() finished:set_joinable(true) end)
            refused('the fiber is dead', function() finished:set_joinable(false) end)
            assert.same({ true, 1 }, { finished:join() })
            local undone = joinable(function() return 1 end)
            undone:set_joinable(false)
            fiber.yield()
            assert.equal('dead', undone:status())
        end)

        it('by a light, a stuck and the main fiber', function()
            local function stuck(fn)
                local result
                string.gsub('a', 'a', function() result = { fn() } end)
                return unpack(result)
            end
            local light = joinable(function() return joinable(function() fiber.yield() return 1 end):join() end)
            local kept = joinable(function()
                return stuck(function() return joinable(function() fiber.yield() return 2 end):join() end)
            end)
            assert.same({ true, true, 1 }, { light:join() })
            assert.same({ true, true, 2 }, { kept:join() })
            assert.same({ true, 3 }, { stuck(function() return joinable(function() return 3 end):join() end) })
        end)
    end)

    describe('storage', function()
        same('is a table of the fiber, gone at its end', [[
            local f = fiber.create(function()
                fiber.self().storage.x = 1
                fiber.sleep(0.01)
                note(fiber.self().storage.x, fiber.self().storage.y)
            end)
            f.storage.y = 2
            note(f.storage.x, f.storage == f.storage)
            fiber.sleep(0.02)
            note((pcall(function() return f.storage end)))
        ]], '1 true, 1 2, false')

        it('of a dead and of a finished joinable fiber raises', function()
            local f = fiber.create(function() end)
            refused('the fiber is dead', function() return f.storage.x end)
            local j = joinable(function() fiber.self().storage.x = 1 end)
            fiber.yield()
            refused('the fiber is dead', function() return j.storage.x end)
            j:join()
        end)

        it('is not seen by the next fiber on the same record', function()
            for _ = 1, 3 do
                local seen = 'unset'
                fiber.create(function()
                    seen = fiber.self().storage.mark
                    fiber.self().storage.mark = true
                end)
                assert.is_nil(seen)
            end
        end)
    end)

    describe('an uncaught error', function()
        local function stderr_of(snippet)
            local result = helpers.run("local fiber = require 'cord.fiber'\n" .. snippet)
            assert.equal(0, result.code, result.stderr)
            return result.stderr, result.stdout
        end

        it('is written once, with id, name, message and traceback; the rest goes on', function()
            local err, out = stderr_of [[
                local function inner() error 'boom' end
                local f = fiber.new(function() inner() end)
                f:name 'worker'
                fiber.sleep(0.01)
                print('alive', f:status(), fiber.find(f:id()))
            ]]
            assert.matches('^fiber %d+ %(worker%): [^\n]*script%.lua:2: boom\nstack traceback:\n', err)
            assert.matches("in function 'inner'", err, 1, true)
            assert.equal(1, select(2, err:gsub('boom', '')))
            assert.equal('alive\tdead\tnil\n', out)
        end)

        it('of any type', function()
            local err = stderr_of [[
                fiber.create(function() error(setmetatable({}, { __tostring = function() return 'shown' end })) end)
                fiber.create(function() error() end)
                fiber.create(function() error(setmetatable({}, { __tostring = function() error 'worse' end })) end)
                fiber.create(function() error(require('cord.error').new('T', 'an object')) end)
            ]]
            assert.matches('(lua): shown\n', err, 1, true)
            assert.matches('(lua): nil\n', err, 1, true)
            assert.matches('(lua): table\n', err, 1, true)
            assert.matches('(lua): an object\n', err, 1, true)
        end)

        it('of a cancelled or a joinable fiber is not written', function()
            assert.equal('', (stderr_of [[
                local f = fiber.create(function() pcall(fiber.sleep, 10) error 'after' end)
                f:cancel()
                local g = fiber.create(function() fiber.sleep(10) end)
                g:cancel()
                local j = fiber.new(function() error 'joined' end)
                j:set_joinable(true)
                fiber.yield()
            ]]))
        end)
    end)

    describe('a fiber may wait inside', function()
        local cases = {
            pcall = { [[pcall(function() fiber.yield() return 1 end)]], 'true true 1' },
            ['a failing pcall'] = { [[pcall(function() fiber.yield() error('e', 0) end)]], 'true false e' },
            xpcall = { [[xpcall(function() fiber.yield() error('e', 0) end, function(e) return 'h' .. e end)]], 'true false he' },
            ["xpcall's handler"] = { [[xpcall(function() error('e', 0) end, function(e) fiber.yield() return 'h' .. e end)]],
                'true false he' },
            ['table.sort'] = { [[(function()
                local t = {}
                for i = 1, 20 do t[i] = i * 7 % 20 end
                table.sort(t, function(x, y) fiber.yield() return x < y end)
                return table.concat(t, ' ')
            end)()]], 'true 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19' },
            ['string.gsub'] = { [[(('abc'):gsub('.', function(c) fiber.yield() return c .. c end))]], 'true aabbcc' },
            ['a nested gsub'] = { [[(('ab'):gsub('.', function(c)
                return (('xy'):gsub('.', function(d) fiber.yield() return c .. d end))
            end))]], 'true axaybxby' },
            ['an iterator'] = { [[(function()
                local n = 0
                for i in function(_, i) fiber.yield() i = (i or 0) + 1 if i < 5 then return i end end do n = n + i end
                return n
            end)()]], 'true 10' },
            ['table.foreach'] = { [[(function()
                local n = 0
                table.foreach({ 1, 2, 3 }, function(_, v) fiber.yield() n = n + v end)
                return n
            end)()]], 'true 6' },
            require = { [[(function()
                package.preload.yielding = function() fiber.yield() return { v = 42 } end
                return require('yielding').v
            end)()]], 'true 42' },
            ['tostring'] = { [[tostring(setmetatable({}, { __tostring = function() fiber.yield() return 'ts' end }))]], 'true ts' },
            ['a coroutine'] = { [[(function()
                local co = coroutine.wrap(function()
                    fiber.yield()
                    coroutine.yield(1)
                    fiber.sleep(0.001)
                    coroutine.yield(2)
                end)
                return co(), co()
            end)()]], 'true 1 2' },
            ['a debug hook'] = { [[(function()
                local n = 0
                debug.sethook(function() n = n + 1 if n == 1 then fiber.yield() end end, '', 1)
                local x = 1
                x = x + 1
                x = x + 1
                debug.sethook()
                return n > 1, x
            end)()]], 'true true 3' },
            ['150 nested pcalls'] = { [[(function()
                local function r(n)
                    if n == 0 then fiber.yield() return 0 end
                    local _, v = pcall(r, n - 1)
                    return v + 1
                end
                return r(150)
            end)()]], 'true 150' },
            ['an environment of its own'] = { [[(function()
                local env = setmetatable({}, { __index = _G })
                local f = setfenv(function() x = 5 fiber.yield() return x end, env)
                return f(), env.x, rawget(_G, 'x')
            end)()]], 'true 5 5 nil' },
            ['a loaded chunk'] = { [[loadstring('local fiber = ... fiber.yield() return 7')(fiber)]], 'true 7' },
        }
        for name, case in pairs(cases) do
            same(name, ([[
                local f = fiber.new(function() return %s end)
                f:set_joinable(true)
                fiber.create(function() fiber.yield() fiber.yield() end)
                note(f:join())
            ]]):format(case[1]), case[2])
        end

        same('every metamethod', [[
            local log, mt = {}, {}
            for _, m in ipairs { '__add', '__concat', '__eq', '__lt', '__le', '__index', '__newindex', '__call', '__unm', '__sub',
                '__mul', '__div', '__mod', '__pow' } do
                mt[m] = function() fiber.yield() log[#log + 1] = m return true end
            end
            local a, b = setmetatable({}, mt), setmetatable({}, mt)
            local f = fiber.new(function()
                local r = { a + b, a .. b, a == b, a < b, a <= b, a.x, a(), -a, a - b, a * b, a / b, a % b, a ^ b }
                a.y = 1
                note(#r)
            end)
            f:set_joinable(true)
            note(f:join())
            note(table.concat(log, ' '))
        ]], '13, true, __add __concat __eq __lt __le __index __call __unm __sub __mul __div __mod __pow __newindex')

        same('a coroutine that other fibers see running, and resume once it yielded', [[
            local co = coroutine.create(function()
                fiber.yield()
                coroutine.yield(1)
                note 'second'
                return 2
            end)
            fiber.create(function() note(coroutine.resume(co)) end)
            note(coroutine.resume(co))
            fiber.sleep(0.01)
            fiber.create(function() note(coroutine.resume(co)) end)
            fiber.sleep(0.01)
            note(coroutine.status(co))
        ]], 'false cannot resume running coroutine, true 1, second, true 2, dead')

        it('and an error raised there keeps its identity', function()
            local t = {}
            local seen
            local f = joinable(function()
                local _, e = pcall(function()
                    string.gsub('a', 'a', function()
                        fiber.yield()
                        error(t)
                    end)
                end)
                seen = e
            end)
            f:join()
            assert.equal(t, seen)
        end)

        it('the main fiber inside all of these', function()
            fiber.create(function() fiber.yield() fiber.yield() end)
            local t = { 3, 1, 2 }
            table.sort(t, function(a, b) fiber.yield() return a < b end)
            assert.same({ 1, 2, 3 }, t)
            assert.equal('AB', (('ab'):gsub('.', function(c) fiber.sleep(0.001) return c:upper() end)))
            assert.equal(3, coroutine.wrap(function() fiber.yield() return 3 end)())
        end)
    end)

    describe('a foreign yield or resume', function()
        same('coroutine.yield of the fiber itself raises where it stands', [[
            local f = fiber.new(function()
                local ok, e = pcall(coroutine.yield, 1)
                note(ok, e)
                ok, e = pcall(function() coroutine.yield(1) note 'after' end)
                note(ok, (tostring(e):gsub('^.-:%d+: ', '')))
                fiber.sleep(0)
                return 1
            end)
            f:set_joinable(true)
            note(f:join())
        ]], 'false attempt to yield across C-call boundary, false attempt to yield across C-call boundary, true 1')

        same('an xpcall of it gives what the handler makes of the error', [[
            local f = fiber.new(function()
                note(xpcall(coroutine.yield, function(e) return 'handled: ' .. e end, 1, 2))
                note(pcall(xpcall, coroutine.yield, function(e) return 'in ' .. e end))
                local sum = 0
                for i = 1, 200 do
                    local ok, n = xpcall(coroutine.yield, function() return i end, {}, {})
                    if not ok then sum = sum + n end
                    if i % 50 == 0 then collectgarbage() fiber.yield() end
                end
                return sum
            end)
            f:set_joinable(true)
            note(f:join())
        ]], 'false handled: attempt to yield across C-call boundary, '
            .. 'true false in attempt to yield across C-call boundary, true 20100')

        same('and ends the fiber when nobody catches it', [[
            local f = fiber.new(function() coroutine.yield(1) end)
            f:set_joinable(true)
            local ok, e = f:join()
            note(ok, (tostring(e):gsub('^.-:%d+: ', '')))
        ]], 'false attempt to yield across C-call boundary')

        same('coroutine.resume of a waiting fiber is refused', [[
            local thread
            local f = fiber.new(function() thread = coroutine.running() fiber.sleep(0.01) return 1 end)
            f:set_joinable(true)
            fiber.yield()
            note(type(thread), coroutine.resume(thread))
            note(pcall(coroutine.wrap(function() return coroutine.resume(thread) end)))
            note(f:join())
        ]], 'thread false cannot resume running coroutine, true false cannot resume running coroutine, true 1')
    end)

    describe('on_stop', function()
        it('triggers run once at the end, newest first, with the fiber, in Tarantool\'s calling style', function()
            local log = {}
            local f = fiber.new(function() log[#log + 1] = 'body' end)
            local function one(x) log[#log + 1] = 'one ' .. tostring(x == f) end
            local function two() log[#log + 1] = 'two' end
            local function three() log[#log + 1] = 'three' end
            assert.equal(one, f:on_stop(one))
            assert.equal(two, f:on_stop(two))
            assert.same({ two, one }, f:on_stop())
            assert.equal(three, f:on_stop(three, two))
            assert.same({ three, one }, f:on_stop())
            f:on_stop(nil, three)
            f:on_stop(two)
            fiber.yield()
            assert.same({ 'body', 'two', 'one true' }, log)
            assert.equal(0, fiber.stats().triggers)
            refused('the fiber is dead', function() f:on_stop(one) end)
        end)

        it('may wait, fail and be many; the storage is gone by then', function()
            local result = helpers.run [[
                local fiber = require 'cord.fiber'
                local f = fiber.new(function() fiber.self().storage.x = 1 return 'r' end)
                f:set_joinable(true)
                f:on_stop(function() print 'last' end)
                f:on_stop(function() error 'in trigger' end)
                f:on_stop(function() fiber.sleep(0.01) print('slept', fiber.self():status()) end)
                print(f:join())
                local g = fiber.new(function() error 'boom' end)
                g:on_stop(function() print 'after an error' end)
                fiber.sleep(0.01)
            ]]
            assert.equal(0, result.code)
            assert.equal('slept\trunning\nlast\ntrue\tr\nafter an error\n', result.stdout)
            assert.matches('^fiber %d+: error in an on_stop trigger: [^\n]*in trigger\nfiber %d+ %(lua%): [^\n]*boom\n', result.stderr)
        end)

        it('refuses what cannot be called', function()
            local f = fiber.create(function() fiber.sleep(0.01) end)
            for _, fn in ipairs { function() f:on_stop(1) end, function() f:on_stop('x', nil) end,
                function() f:on_stop(print, {}) end } do
                local line = debug.getinfo(fn, 'S').linedefined
                local e = raised(fn)
                assert.matches(':' .. line .. ': trigger reset: incorrect arguments$', e)
            end
            assert.matches('trigger reset: Trigger is not found', raised(function() f:on_stop(nil, print) end))
            fiber.sleep(0.02)
        end)

        it('without the pool of nodes', function()
            fiber.cfg { trigger_pool = false }
            local n = 0
            for _ = 1, 100 do
                local f = fiber.new(function() end)
                f:on_stop(function() n = n + 1 end)
                f:on_stop(function() n = n + 1 end)
            end
            assert.equal(200, fiber.stats().triggers)
            fiber.yield()
            assert.equal(200, n)
            assert.equal(0, fiber.stats().triggers)
            fiber.cfg { trigger_pool = true }
        end)
    end)

    it('cfg refuses what it does not know', function()
        refused('fiber.cfg(options): a table of options expected, got number', function() fiber.cfg(1) end)
        refused("fiber.cfg: unexpected option 'x'", function() fiber.cfg { x = 1 } end)
        refused("fiber.cfg: option 'trigger_pool' should be a boolean, got number", function() fiber.cfg { trigger_pool = 1 } end)
        refused("fiber.cfg: option 'deadlock' should be 'error' or 'wait', got x", function() fiber.cfg { deadlock = 'x' } end)
        refused("fiber.cfg: option 'channel_close' should be 'new' or 'old', got 1", function() fiber.cfg { channel_close = 1 } end)
        local cfg = fiber.cfg()
        assert.same({ 'error', 'new', true, true }, { cfg.deadlock, cfg.channel_close, cfg.trigger_pool, cfg.thread_pool })
        assert.is_number(cfg.stack_size)
    end)

    it('notes of a snippet fail when its child does', function()
        assert.has_error(function() notes 'error "x"' end)
    end)
end)
