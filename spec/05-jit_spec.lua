-- Fibers and the JIT compiler: the trace-abort toggle, its calibration, and the waits that must be refused. Whatever could
-- crash runs in a child process, plain, without the compiler, and with a compiler that starts at once.
local helpers = require 'spec.helpers'

local FLAGS = { {}, { '-joff' }, { '-Ohotloop=1', '-Ohotexit=1' } }

local function name_of(flags)
    return #flags > 0 and ' with ' .. table.concat(flags, ' ') or ''
end

-- Runs a child and splits what it printed into lines.
local function lines(source, options)
    local list = {}
    for line in helpers.run_ok(source, options):gmatch '[^\n]+' do list[#list + 1] = line end
    return list
end

-- A test for each set of flags.
local function each(name, body)
    for _, flags in ipairs(FLAGS) do
        it(name .. name_of(flags), function() body(flags, flags[1] ~= '-joff') end)
    end
end

describe('fiber.trace_abort', function()
    it('returns the mode before, and starts with inline', function()
        assert.same({ 'inline', 'inline', 'off', 'trigger', 'callback', 'extern', 'inline', 'trigger-noop', 'callback-noop',
            'extern-noop', 'extern-noop' }, lines [[
            local fiber = require 'cord.fiber'
            print(fiber.trace_abort())
            for _, mode in ipairs { 'off', 'trigger', 'callback', 'extern', 'inline', 'trigger-noop', 'callback-noop',
                'extern-noop' } do print(fiber.trace_abort(mode)) end
            print(fiber.trace_abort(nil))
            print(fiber.trace_abort())
        ]])
    end)

    it('is extern without the compiler, also when inline is asked for', function()
        assert.same({ 'extern', 'extern', 'extern', 'extern', 'off' }, lines([[
            local fiber = require 'cord.fiber'
            print(fiber.trace_abort())
            print(fiber.trace_abort('inline'))
            print(fiber.trace_abort())
            print(fiber.trace_abort('off'))
            print(fiber.trace_abort())
        ]], { flags = { '-joff' } }))
    end)

    it('is inline as soon as the compiler is switched on', function()
        assert.same({ 'extern', 'inline', 'inline' }, lines([[
            local fiber = require 'cord.fiber'
            print(fiber.trace_abort())
            jit.on()
            print(fiber.trace_abort())
            jit.off()
            print(fiber.trace_abort())
        ]], { flags = { '-joff' } }))
    end)

    it('refuses other modes and types', function()
        local fiber = require 'cord.fiber'
        local modes = 'off, trigger, callback, extern, inline, trigger-noop, callback-noop, extern-noop'
        for _, bad in ipairs { 'macro', '', 'OFF', 'inline ' } do
            local ok, err = pcall(fiber.trace_abort, bad)
            assert.is_false(ok)
            assert.equal(("fiber.trace_abort([mode]): unknown mode '%s', should be one of: %s"):format(bad, modes), tostring(err))
        end
        for _, bad in ipairs { 1, true, {}, print } do
            local ok, err = pcall(fiber.trace_abort, bad)
            assert.is_false(ok)
            assert.equal('fiber.trace_abort([mode]): a string expected, got ' .. type(bad), tostring(err))
        end
        assert.equal(fiber.trace_abort(), fiber.trace_abort())
    end)

    it('is preset by CORD_TRACE_ABORT', function()
        local source = "print(require('cord.fiber').trace_abort())"
        for _, mode in ipairs { 'off', 'trigger', 'callback', 'extern', 'inline', 'trigger-noop', 'callback-noop', 'extern-noop' } do
            assert.same({ mode }, lines(source, { env = { CORD_TRACE_ABORT = mode } }))
        end
        assert.same({ 'inline' }, lines(source, { env = { CORD_TRACE_ABORT = '' } }))
        local bad = helpers.run(source, { env = { CORD_TRACE_ABORT = 'onn' } })
        assert.equal(1, bad.code)
        assert.matches("CORD_TRACE_ABORT: unknown mode 'onn', should be one of: off, trigger, callback, extern, inline, "
            .. 'trigger-noop, callback-noop, extern-noop', bad.stderr, 1, true)
    end)
end)

describe('fiber.trace_abort_calls', function()
    -- 10 fibers of 100 yields; the main fiber waits once.
    local SOURCE = [[
        local mode, make = ...
        local fiber = require 'cord.fiber'
        fiber.trace_abort(mode)
        local before = fiber.trace_abort_calls()
        for _ = 1, 10 do
            fiber[make](function() for _ = 1, 100 do fiber.yield() end end)
        end
        fiber.sleep(0.05)
        print(fiber.trace_abort_calls() - before)
    ]]
    local function calls(mode, make, flags)
        return tonumber(lines(SOURCE, { args = { mode, make }, flags = flags })[1])
    end

    each('counts fibers * iterations + 1 for triggers', function(flags)
        for _, mode in ipairs { 'trigger', 'trigger-noop' } do
            assert.equal(1001, calls(mode, 'new', flags))
            assert.equal(1001, calls(mode, 'create', flags))
        end
    end)

    each('counts final switches and creates too for callback and extern', function(flags)
        for _, mode in ipairs { 'callback', 'callback-noop', 'extern', 'extern-noop' } do
            assert.equal(1011, calls(mode, 'new', flags))
            assert.equal(1021, calls(mode, 'create', flags))
        end
    end)

    it('counts nothing where no function is called', function()
        assert.equal(0, calls('off', 'create'))
        assert.equal(0, calls('inline', 'create'))
    end)

    it('of triggers follows the fiber, whenever the mode is set', function()
        assert.same({ '31', '31', '0', '0' }, lines [[
            local fiber = require 'cord.fiber'
            for _, mode in ipairs { 'trigger', 'trigger-noop', 'off', 'inline' } do
                local go = false
                for _ = 1, 10 do fiber.create(function()
                    while not go do fiber.sleep(0.001) end
                    for _ = 1, 3 do fiber.yield() end
                end) end
                go = true
                -- They sleep now, made in another mode.
                fiber.trace_abort(mode)
                local before = fiber.trace_abort_calls()
                fiber.sleep(0.05)
                print(fiber.trace_abort_calls() - before)
                fiber.trace_abort('off')
            end
            assert(fiber.stats().triggers == 0)
        ]])
    end)
end)

describe('calibration', function()
    it('finds the words, and by their behaviour', function()
        local found = lines [[
            local fiber = require 'cord.fiber'
            fiber.trace_abort()
            local words = debug.getregistry()['cord.modules']['cord.trace'].raw.words()
            for _, name in ipairs { 'hookmask', 'recorder', 'vmstate', 'engine' } do print(words[name]) end
            print(words.cframe)
        ]]
        for i = 1, 3 do
            assert.is_true(tonumber(found[i]) > 0 and tonumber(found[i]) < 4096, found[i])
        end
        assert.equal('false', found[4])
        assert.equal('true', found[5])
    end)

    it('is not done by require', function()
        local output = helpers.run_ok("require 'cord.fiber' print 'done'", { flags = { '-jv' } })
        assert.is_nil(output:match 'calibration')
    end)

    it('leaves jit.attach handlers, hooks, -jv and the compiler as they were', function()
        local result = helpers.run([[
            local fiber = require 'cord.fiber'
            local seen = 0
            local function handler() seen = seen + 1 end
            jit.attach(handler, 'record')
            local hook = function() end
            debug.sethook(hook, 'r', 0)
            print(fiber.trace_abort())
            print((debug.gethook()) == hook, select(2, debug.gethook()))
            debug.sethook()
            print(jit.status() == true)
            local before = seen
            local function hot() local x = 0 for i = 1, 1000 do x = x + i end return x end
            print(hot(), seen > before)
        ]], { flags = { '-jv' } })
        assert.equal(0, result.code)
        assert.matches('inline\n', result.stdout, 1, true)
        assert.matches('true\tr\t0\ntrue\n500500\ttrue\n', result.stdout, 1, true)
        -- -jv goes on reporting afterwards.
        assert.matches('TRACE%s+%d+ script.lua:%d+ loop', (result.stdout .. result.stderr):gsub('/[%w/_.-]*/script.lua', 'script.lua'))
    end)

    it('works inside a coroutine, a fiber and a stuck fiber', function()
        for _, around in ipairs {
            'coroutine.wrap(function() print(fiber.trace_abort()) end)()',
            'fiber.create(function() print(fiber.trace_abort()) end)',
            "fiber.create(function() ('x'):gsub('.', function() fiber.yield() print(fiber.trace_abort()) end) end) fiber.sleep(0.01)",
        } do
            assert.same({ 'inline' }, lines("local fiber = require 'cord.fiber' " .. around))
        end
    end)

    it('waits for a better moment inside a finalizer or a jit.attach handler', function()
        assert.same({ 'extern', 'extern', 'inline' }, lines [[
            local fiber = require 'cord.fiber'
            local seen
            local u = newproxy(true)
            getmetatable(u).__gc = function() seen = fiber.trace_abort() end
            u = nil
            collectgarbage()
            print(seen)
            seen = nil
            local function handler() seen = seen or fiber.trace_abort() end
            jit.attach(handler, 'trace')
            for _ = 1, 200 do end
            jit.attach(handler)
            print(seen)
            print(fiber.trace_abort())
        ]])
    end)

    it('gives up without harm where the compiler never compiles', function()
        assert.same({ 'extern', '-14' }, lines([[
            local fiber = require 'cord.fiber'
            print(fiber.trace_abort())
            print(require('cord.ffi').cord_fiber_yield())
        ]], { flags = { '-Ohotloop=60000' } }))
    end)
end)

-- Ten fibers of 20 000 waits over FFI in hot loops: prints ok, refusals by code, wrong sums, handler calls.
local LOOPS = [[
    local mode, what = ...
    local fiber = require 'cord.fiber'
    local C = require('cord.ffi').C
    fiber.trace_abort(mode)
    local N, M = 10, 20000
    local yield = C['cord_fiber_' .. what]
    local ok, other, codes, wrong, left = 0, 0, {}, 0, N
    local before = fiber.trace_abort_calls()
    for i = 1, N do
        fiber.create(function()
            local sum = 0
            for j = 1, M do
                local code = %s
                sum = sum + j * i
                if code == 0 then ok = ok + 1 else other = other + 1 codes[code] = true end
            end
            if sum ~= i * M * (M + 1) / 2 then wrong = wrong + 1 end
            left = left - 1
        end)
    end
    while left > 0 do fiber.sleep(0.002) end
    local list = {}
    for code in pairs(codes) do list[#list + 1] = code end
    table.sort(list)
    print(ok, other, table.concat(list, ' '), wrong, fiber.trace_abort_calls() - before)
]]

local function ffi_loops(mode, what, call, flags)
    local line = lines(LOOPS:format(call), { args = { mode, what }, flags = flags, timeout = 120 })[1]
    local ok, other, codes, wrong, calls = line:match '^(%d+)\t(%d+)\t([-%d ]*)\t(%d+)\t(%d+)$'
    return { ok = tonumber(ok), refused = tonumber(other), codes = codes, wrong = tonumber(wrong), calls = tonumber(calls) }
end

describe('waits over FFI in hot loops', function()
    for _, mode in ipairs { 'trigger', 'callback', 'extern', 'inline' } do
        each('switch each time, with exact sums, in mode ' .. mode, function(flags)
            local got = ffi_loops(mode, 'yield', 'yield()', flags)
            assert.same({ 200000, 0, '', 0 }, { got.ok, got.refused, got.codes, got.wrong })
            if mode ~= 'inline' then
                assert.is_true(got.calls >= 200000, got.calls)
            end
        end)
    end

    for _, mode in ipairs { 'off', 'trigger-noop', 'callback-noop', 'extern-noop' } do
        each('are refused, with exact sums and no crash, in mode ' .. mode, function(flags, compiler)
            local got = ffi_loops(mode, 'yield', 'yield()', flags)
            assert.equal(0, got.wrong)
            assert.equal(200000, got.ok + got.refused)
            if compiler then
                assert.is_true(got.refused > 0)
                -- CORD_RECORDING at first; CORD_COMPILED once the loop is compiled.
                assert.matches('-11', got.codes, 1, true)
            else
                assert.equal(0, got.refused)
            end
        end)
    end

    for _, flags in ipairs { {}, { '-Ohotloop=1' } } do
        it('and under compiled code are refused in every mode' .. name_of(flags), function()
            -- The recorder sees the wait only on the rare path: the loop compiles without it, a side exit leads to it.
            for _, mode in ipairs { 'inline', 'extern', 'off' } do
                local got = ffi_loops(mode, 'yield', 'j % 97 == 0 and yield() or 0', flags)
                assert.equal(0, got.wrong)
                assert.equal(200000, got.ok + got.refused)
                assert.is_true(mode == 'off' or got.refused == 0)
            end
            local counted = lines([[
                local fiber = require 'cord.fiber'
                local C = require('cord.ffi').C
                fiber.trace_abort('off')
                local n, compiled = 0, 0
                for _ = 1, 5000 do
                    local code = C.cord_fiber_yield()
                    n = n + 1
                    if code == C.CORD_COMPILED then compiled = compiled + 1 end
                end
                -- The trace stays when the mode changes: its waits are still refused, and nothing else happens.
                fiber.trace_abort('inline')
                print(n, compiled > 0)
                print(require('cord.ffi').cord_last_error())
            ]], { flags = flags })
            assert.equal('5000\ttrue', counted[1])
            assert.matches('^cannot wait', counted[2])
        end)
    end

    each('of every kind give exact sums', function(flags)
        for what, call in pairs { reschedule = 'yield()', sleep = 'yield(0)' } do
            local got = ffi_loops('inline', what, call, flags)
            assert.same({ 200000, 0, '', 0 }, { got.ok, got.refused, got.codes, got.wrong })
        end
    end)

    each('may be mixed with light and stuck waits', function(flags)
        assert.same({ '0' }, lines([[
            local fiber = require 'cord.fiber'
            local C = require('cord.ffi').C
            local wrong, left = 0, 12
            local function light() fiber.yield() end
            local function stuck() string.gsub('x', '.', light) end
            local function over_ffi() assert(C.cord_fiber_yield() == 0) end
            local function in_coroutine() coroutine.wrap(function() over_ffi() fiber.yield() end)() end
            local function sorting() local t = { 3, 1, 2 } table.sort(t, function(a, b) over_ffi() return a < b end) end
            local waits = { light, stuck, over_ffi, in_coroutine, sorting }
            for i = 1, 12 do
                fiber.create(function()
                    local sum = 0
                    for j = 1, 600 do
                        waits[(i + j) % #waits + 1]()
                        for k = 1, 20 do sum = sum + k end
                    end
                    if sum ~= 600 * 210 then wrong = wrong + 1 end
                    left = left - 1
                end)
            end
            while left > 0 do fiber.yield() end
            print(wrong)
        ]], { flags = flags }))
    end)

    each('may stand in a callback that C calls', function(flags)
        assert.same({ '0' }, lines([[
            local fiber = require 'cord.fiber'
            local ffi = require 'ffi'
            local C = require('cord.ffi').C
            ffi.cdef 'void qsort(int *, size_t, size_t, int (*)(const int *, const int *));'
            local wrong, left, n = 0, 6, 0
            local function sort(array, compare) ffi.C.qsort(array, 40, 4, compare) end
            jit.off(sort)
            for i = 1, 6 do
                fiber.create(function()
                    local compare = ffi.cast('int (*)(const int *, const int *)', function(a, b)
                        n = n + 1
                        if n % 3 == 0 then C.cord_fiber_yield() elseif n % 3 == 1 then fiber.yield() end
                        return a[0] - b[0]
                    end)
                    for round = 1, 5 do
                        local array = ffi.new 'int[40]'
                        for k = 0, 39 do array[k] = (k * 17 + i * round) % 40 end
                        sort(array, compare)
                        for k = 0, 39 do if array[k] ~= k then wrong = wrong + 1 end end
                    end
                    compare:free()
                    left = left - 1
                end)
            end
            while left > 0 do fiber.yield() end
            print(wrong)
        ]], { flags = flags }))
    end)

    each('start native fibers in every mode that aborts', function(flags)
        for _, mode in ipairs { 'inline', 'extern', 'callback', 'trigger' } do
            assert.same({ '0\t0' }, lines([[
                local fiber = require 'cord.fiber'
                local C = require('cord.ffi').C
                local ffi = require 'ffi'
                fiber.trace_abort(...)
                -- A C function as a fiber's code: it waits once and ends.
                local entry = ffi.cast('cord_fiber_f', C.cord_fiber_yield)
                local wrong, left = 0, 4
                for i = 1, 4 do
                    fiber.create(function()
                        local sum = 0
                        for j = 1, 2000 do
                            local native = C.cord_fiber_new('native', entry)
                            if C.cord_fiber_start(native, nil) ~= 0 then wrong = wrong + 1 end
                            sum = sum + j * i
                            if j % 7 == 0 then C.cord_fiber_yield() end
                        end
                        if sum ~= 2001000 * i then wrong = wrong + 1 end
                        left = left - 1
                    end)
                end
                while left > 0 do fiber.yield() end
                for _ = 1, 3 do fiber.yield() end
                print(wrong, fiber.stats().fibers - 1)
            ]], { args = { mode }, flags = flags }))
        end
    end)

    each('are refused inside an on_yield trigger', function(flags)
        assert.same({ 'false\ttrue\t-16' }, lines([[
            local fiber = require 'cord.fiber'
            local C = require('cord.ffi').C
            local ok, text, code
            fiber.create(function()
                fiber.self():on_yield(function()
                    ok, text = pcall(fiber.yield)
                    code = C.cord_fiber_yield()
                end)
                fiber.yield()
            end)
            print(ok, tostring(text) == 'cannot yield inside a callback of the scheduler', code)
        ]], { flags = flags }))
    end)

    each('may have on_yield triggers', function(flags)
        for _, mode in ipairs { 'inline', 'extern', 'callback', 'trigger' } do
            assert.same({ '0\t20000' }, lines([[
                local fiber = require 'cord.fiber'
                local C = require('cord.ffi').C
                fiber.trace_abort(...)
                local runs, wrong, left = 0, 0, 4
                local function trigger() for _ = 1, 3 do runs = runs + 1 / 3 end end
                for i = 1, 4 do
                    fiber.new(function()
                        fiber.self():on_yield(trigger)
                        local sum = 0
                        for j = 1, 5000 do
                            if C.cord_fiber_yield() ~= 0 then wrong = wrong + 1 end
                            sum = sum + j * i
                        end
                        if sum ~= 12502500 * i then wrong = wrong + 1 end
                        left = left - 1
                    end)
                end
                while left > 0 do fiber.sleep(0) end
                print(wrong, math.floor(runs + 0.5))
            ]], { args = { mode }, flags = flags }))
        end
    end)

    each('of a main fiber that is alone end recordings too', function(flags, compiler)
        local counts = lines([[
            local C = require('cord.ffi').C
            local codes = {}
            for _ = 1, 20000 do
                local code = C.cord_fiber_yield()
                codes[code] = (codes[code] or 0) + 1
            end
            print(codes[0], next(codes, 0))
        ]], { flags = flags })
        assert.same({ '20000\tnil' }, counts)
        assert.is_boolean(compiler)
    end)

    it('work while the compiler is off, and are refused when it comes on, until it is known', function()
        assert.same({ '0', '0', '-14', 'true', '0' }, lines([[
            local cord = require 'cord.ffi'
            print(cord.C.cord_fiber_yield())
            print(cord.cord_fiber_yield())
            jit.on()
            print(cord.C.cord_fiber_yield())
            -- What was compiled meanwhile may call it: so not even when it is off again.
            jit.off()
            print(cord.C.cord_fiber_yield() == cord.C.CORD_UNPROVEN)
            jit.on()
            -- The wrapper finds out what the raw function must not.
            print(cord.cord_fiber_yield())
        ]], { flags = { '-joff' } }))
    end)
end)

describe('an error after a switch', function()
    -- Until September 2023 LuaJIT forgot to restore its current thread (cur_L) when a C function raised.
    local SOURCE = [[
        local kind = ...
        local fiber = require 'cord.fiber'
        local N, M = 6, 3000
        local wrong, left, cancelled = 0, N, 0
        local function work(i)
            local me, sum, raised = fiber.self(), 0, 0
            pcall(me.cancel, me)
            for j = 1, M do
                local ok, err = pcall(fiber.sleep, j %% 2 == 0 and 0 or 1e-9)
                if not ok and tostring(err) == 'fiber is cancelled' then raised = raised + 1 end
                -- A compiled loop right behind the error, and a side exit in it.
                for k = 1, 50 do
                    if k %% 49 == 0 then sum = sum + tonumber('1') else sum = sum + i end
                end
            end
            if sum ~= M * (49 * i + 1) or raised ~= M then wrong = wrong + 1 end
            cancelled = cancelled + raised
            left = left - 1
        end
        for i = 1, N do
            fiber.create(function()
                if kind == 'light' or kind == 'mixed' and i %% 2 == 0 then return work(i) end
                string.gsub('x', '.', function() work(i) end)
            end)
        end
        -- Somebody else's compiled loop all the while.
        local sum = 0
        while left > 0 do
            for k = 1, 200 do sum = sum + k end
            fiber.yield()
        end
        print(wrong, cancelled, sum %% 20100)
    ]]
    for _, kind in ipairs { 'light', 'stuck', 'mixed' } do
        each('leaves compiled code right, ' .. kind, function(flags)
            assert.same({ '0\t18000\t0' }, lines(SOURCE:format(), { args = { kind }, flags = flags }))
        end)
    end

    each('leaves compiled code right over FFI too', function(flags)
        assert.same({ '0\t18000' }, lines([[
            local fiber = require 'cord.fiber'
            local cord = require 'cord.ffi'
            local N, M = 6, 3000
            local wrong, left, cancelled = 0, N, 0
            for i = 1, N do
                fiber.create(function()
                    pcall(fiber.cancel, fiber.self())
                    local sum = 0
                    for _ = 1, M do
                        if cord.cord_fiber_sleep(1e-9) == cord.C.CORD_CANCELLED then cancelled = cancelled + 1 end
                        for k = 1, 50 do sum = sum + (k % 49 == 0 and tonumber('1') or i) end
                    end
                    if sum ~= M * (49 * i + 1) then wrong = wrong + 1 end
                    left = left - 1
                end)
            end
            while left > 0 do fiber.yield() end
            print(wrong, cancelled)
        ]], { flags = flags }))
    end)
end)

describe('a wait inside a finalizer', function()
    each('is an error, and nothing is switched', function(flags)
        assert.same({
            'cannot yield inside a finalizer (__gc metamethod)', 'cannot yield inside a finalizer (__gc metamethod)',
            'cannot yield inside a finalizer (__gc metamethod)', 'cannot yield inside a finalizer (__gc metamethod)',
            '-12', '-12', '0', 'true',
        }, lines([[
            local fiber = require 'cord.fiber'
            local cord = require 'cord.ffi'
            local got, ran = {}, 0
            fiber.new(function() ran = ran + 1 end)
            local function finalizer()
                for _, wait in ipairs {
                    fiber.yield, function() fiber.sleep(0.001) end, function() fiber.create(print) end,
                    function() fiber.cond():wait() end,
                } do
                    local _, err = pcall(wait)
                    got[#got + 1] = tostring(err)
                end
                got[#got + 1] = cord.cord_fiber_yield()
                got[#got + 1] = cord.C.cord_fiber_sleep(1)
                got[#got + 1] = ran
            end
            local function garbage()
                local u = newproxy(true)
                getmetatable(u).__gc = finalizer
            end
            garbage()
            collectgarbage()
            collectgarbage()
            for _, text in ipairs(got) do print(text) end
            fiber.yield()
            print(ran == 1)
        ]], { flags = flags }))
    end)

    each('started by the collector in a hot loop leaves the sums right', function(flags)
        assert.same({ '0\ttrue' }, lines([[
            local fiber = require 'cord.fiber'
            local cord = require 'cord.ffi'
            local refused, wrong, left = 0, 0, 4
            local function finalizer()
                if not pcall(fiber.yield) then refused = refused + 1 end
                if cord.C.cord_fiber_yield() == cord.C.CORD_FINALIZER then refused = refused + 1 end
            end
            for i = 1, 4 do
                fiber.create(function()
                    local sum = 0
                    for j = 1, 4000 do
                        local u = newproxy(true)
                        getmetatable(u).__gc = finalizer
                        sum = sum + #{ j, j } * i
                        if j % 50 == 0 then cord.cord_fiber_yield() end
                    end
                    if sum ~= 8000 * i then wrong = wrong + 1 end
                    left = left - 1
                end)
            end
            while left > 0 do fiber.yield() end
            collectgarbage()
            collectgarbage()
            print(wrong, refused >= 16000)
        ]], { flags = flags }))
    end)

    -- Not with the compiler on: an error that leaves a finalizer while compiled code runs crashes Debian's LuaJIT, with or
    -- without this library (docs/jit.md).
    it('that raises leaves the rest alone', function()
        -- Debian's LuaJIT raises it in whoever made the collector run, which may be a fiber.
        assert.same({ 'true\ttrue' }, lines([[
            local fiber = require 'cord.fiber'
            local made, finalized, left = 0, 0, 10
            local function finalizer()
                finalized = finalized + 1
                fiber.yield()
            end
            local function garbage()
                local meta = getmetatable(newproxy(true))
                made = made + 1
                meta.__gc = finalizer
            end
            for _ = 1, 10 do
                fiber.create(function()
                    for _ = 1, 100 do
                        pcall(garbage)
                        fiber.yield()
                    end
                    left = left - 1
                end)
            end
            while left > 0 do pcall(fiber.yield) end
            for _ = 1, 2200 do pcall(collectgarbage) end
            print(made > 0, finalized == made)
        ]], { flags = { '-joff' } }))
    end)
end)

describe('a wait inside a jit.attach handler', function()
    for _, event in ipairs { 'bc', 'trace', 'record' } do
        it('of ' .. event .. ' is an error, and nothing is switched', function()
            assert.same({ '0', 'cannot yield inside a jit.attach handler or profiler callback', 'true', 'true' }, lines([[
                local event = ...
                local fiber = require 'cord.fiber'
                local cord = require 'cord.ffi'
                local events, switched, text, right = 0, 0, nil, 0
                local others = {}
                local function handler()
                    events = events + 1
                    local ok, err = pcall(fiber.yield)
                    if ok then switched = switched + 1 else text = tostring(err) end
                    others[cord.C.cord_fiber_yield()] = true
                end
                jit.off(handler)
                jit.attach(handler, event)
                for i = 1, 5 do
                    -- A function of its own each time, so that there is something to compile.
                    fiber.new(loadstring [=[
                        local fiber, i, done = ...
                        local sum = 0
                        for j = 1, 3000 do
                            sum = sum + (j % 1500 == 0 and tonumber('1') or i)
                            if j % 100 == 0 then fiber.yield() end
                        end
                        done(sum == 2998 * i + 2)
                    ]=], fiber, i, function(ok) if ok then right = right + 1 end end)
                end
                for _ = 1, 100 do fiber.yield() end
                jit.attach(handler)
                print(switched)
                print(text)
                print(events > 0)
                print(others[cord.C.CORD_VM_EVENT] == true and next(others, next(others)) == nil and right == 5)
            ]], { args = { event } }))
        end)
    end

    -- A handler of trace exits must not run compiled code: that crashes a LuaJIT without this library too. So no pcall of a
    -- wrapper here, whose error object is made by Lua code.
    it('of texit is refused over FFI', function()
        assert.same({ 'true\ttrue\t-13' }, lines [[
            local fiber = require 'cord.fiber'
            local cord = require 'cord.ffi'
            local events, code, right = 0, nil, 0
            local function handler()
                events = events + 1
                code = cord.C.cord_fiber_yield()
            end
            jit.off(handler)
            jit.attach(handler, 'texit')
            for i = 1, 5 do
                fiber.new(function()
                    local sum = 0
                    for j = 1, 3000 do
                        sum = sum + (j % 1500 == 0 and tonumber('1') or i)
                        if j % 100 == 0 then fiber.yield() end
                    end
                    if sum == 2998 * i + 2 then right = right + 1 end
                end)
            end
            for _ = 1, 100 do fiber.yield() end
            jit.attach(handler)
            print(events > 0, right == 5, code)
        ]])
    end)

    it('of the profiler is an error, and nothing is switched', function()
        assert.same({ '0', 'cannot yield inside a jit.attach handler or profiler callback' }, lines [[
            local fiber = require 'cord.fiber'
            local switched, text = 0
            require('jit.profile').start('i1', function()
                local ok, err = pcall(fiber.yield)
                if ok then switched = switched + 1 else text = tostring(err) end
            end)
            local clock = os.clock()
            local x = 0
            while not text and os.clock() < clock + 5 do x = x + math.sin(x) end
            require('jit.profile').stop()
            print(switched)
            print(text)
        ]])
    end)
end)

describe('a wait inside a debug hook', function()
    each('works, and lets others wait in theirs', function(flags)
        assert.same({ '0\ttrue' }, lines([[
            local fiber = require 'cord.fiber'
            local cord = require 'cord.ffi'
            local N, wrong, waits, done = 6, 0, 0, {}
            local function hook()
                waits = waits + 1
                if waits % 3 == 0 then fiber.yield() elseif waits % 3 == 1 then cord.cord_fiber_yield() else fiber.sleep(0) end
            end
            for i = 1, N do
                fiber.create(function()
                    local sum = 0
                    for j = 1, 300 do
                        sum = sum + i
                        if j % 7 == 0 then string.gsub('x', '.', function() fiber.yield() end) end
                    end
                    if sum ~= 300 * i then wrong = wrong + 1 end
                    -- Not a count: others run between its reading and its writing.
                    done[i] = true
                end)
            end
            debug.sethook(hook, '', 40)
            while not (done[1] and done[2] and done[3] and done[4] and done[5] and done[6]) do fiber.yield() end
            debug.sethook()
            for _ = 1, 10 do fiber.yield() end
            print(wrong, waits > 20)
        ]], { flags = flags }))
    end)
end)

describe('callbacks of the scheduler', function()
    -- The end of a fiber and a timer lead into compiled functions that take side exits.
    each('enter compiled code properly', function(flags)
        assert.same({ '0\t2000' }, lines([[
            local fiber = require 'cord.fiber'
            local wrong, n = 0, 0
            local function hot(limit)
                local sum = 0
                for i = 1, 60 do
                    if i > limit then sum = sum + #tostring(i) else sum = sum + 1 end
                end
                return sum
            end
            for i = 1, 200 do hot(100) hot(i % 60) end
            for i = 1, 2000 do
                local f = fiber.new(function() if i % 3 == 0 then fiber.sleep(1e-6) end hot(i % 60) end)
                f:on_stop(function()
                    n = n + 1
                    local expected = 0
                    for k = 1, 60 do expected = expected + (k > i % 60 and #tostring(k) or 1) end
                    if hot(i % 60) ~= expected then wrong = wrong + 1 end
                end)
                if i % 10 == 0 then fiber.yield() end
            end
            fiber.sleep(0.01)
            print(wrong, n)
        ]], { flags = flags }))
    end)
end)

describe('going on as the next fiber', function()
    -- Proven, and as on a LuaJIT where it cannot be: nothing may differ but speed.
    local function either(name, expected, script)
        each(name, function(flags)
            assert.same(expected, lines(script, { flags = flags }))
            assert.same(expected, lines(script, { flags = flags, env = { CORD_PROVE_NOTHING = 'transfer' } }))
        end)
    end

    each('is proven on x86-64', function(flags)
        local script = [[
            local fiber = require 'cord.fiber'
            print(require('jit').arch ~= 'x64' or fiber._internal.raw.raises(), debug.getinfo(fiber.yield).what)
        ]]
        local proven = require('jit').arch == 'x64'
        assert.same({ 'true\t' .. (proven and 'C' or 'Lua') }, lines(script, { flags = flags }))
        assert.same({ tostring(not proven) .. '\tLua' }, lines(script, { flags = flags, env = { CORD_PROVE_NOTHING = 'transfer' } }))
    end)

    either('keeps the order, the values and the counts', { '1a 2a 3a 1b 2b 3b 1c 2c 3c', '36', ' 4 4 4', '0', 'true' }, [[
        local fiber = require 'cord.fiber'
        local order, fibers, sum = {}, {}, 0
        for i = 1, 3 do
            fibers[i] = fiber.new(function()
                for _, letter in ipairs { 'a', 'b', 'c' } do
                    order[#order + 1] = i .. letter
                    -- Results of other values on the stack stay where they are.
                    local x, y = i, { i }
                    local none = select('#', fiber.yield(1, 2, 3))
                    sum = sum + x + y[1] + none
                end
                order.csw = (order.csw or '') .. ' ' .. fiber.self():csw()
            end)
        end
        for _ = 1, 5 do fiber.yield() end
        print(table.concat(order, ' '))
        print(sum)
        print(order.csw)
        print(select('#', fiber.yield()))
        -- A fiber whose function is the native function itself, and one that calls it through pcall.
        local f = fiber.new(fiber.yield)
        f:set_joinable(true)
        local g = fiber.new(pcall, fiber.yield)
        g:set_joinable(true)
        print(f:join() and select(2, g:join()))
    ]])

    either('raises in whoever was cancelled, where it stands, in compiled loops too', { '4000', '4000', 'true' }, [[
        local fiber = require 'cord.fiber'
        local raised, other, places = 0, 0, true
        local function loop()
            for _ = 1, 50 do fiber.yield() end
        end
        local function victim()
            local ok, e = pcall(loop)
            assert(not ok)
            raised = raised + 1
            places = places and tostring(e) == 'fiber is cancelled' and e.trace[1].line == 4
        end
        fiber.new(function()
            for i = 1, 4000 do
                other = other + 1
                fiber.yield()
            end
        end)
        for round = 1, 400 do
            local group = {}
            for i = 1, 10 do
                group[i] = fiber.new(victim)
            end
            for _ = 1, 1 + round % 3 do fiber.yield() end
            for i = 1, 10 do group[i]:cancel() end
            fiber.yield()
        end
        while other < 4000 do fiber.yield() end
        fiber.yield()
        fiber.yield()
        print(raised)
        print(other)
        print(places)
    ]])

    either('raises in stuck fibers, in coroutines and out of every kind of call', { '200', '200', '100', '100', '100', 'done' }, [[
        local fiber = require 'cord.fiber'
        local stuck, inner, direct, meta, caught = 0, 0, 0, 0, 0
        local object = setmetatable({}, { __index = function() fiber.yield() end })
        local function check(ok, e)
            assert(not ok and tostring(e) == 'fiber is cancelled', tostring(e))
            return 1
        end
        for _ = 1, 100 do
            local list = {
                fiber.new(function()
                    string.gsub('a', 'a', function()
                        stuck = stuck + check(pcall(fiber.yield))
                        stuck = stuck + check(pcall(function() fiber.yield() end))
                    end)
                end),
                fiber.new(function()
                    local co = coroutine.wrap(function()
                        inner = inner + check(pcall(fiber.yield))
                        inner = inner + check(pcall(function() return (fiber.yield()) end))
                    end)
                    co()
                end),
                fiber.new(function() direct = direct + check(pcall(fiber.yield)) end),
                fiber.new(function() meta = meta + check(pcall(function() return object.x end)) end),
                fiber.new(function()
                    xpcall(fiber.yield, function()
                        caught = caught + check(pcall(fiber.sleep, 0))
                    end)
                end),
            }
            fiber.yield()
            for i = 1, #list do list[i]:cancel() end
            fiber.yield()
            fiber.yield()
        end
        for _, n in ipairs { stuck, inner, direct, meta, caught } do print(n) end
        print 'done'
    ]])

    either('is not for debug hooks to raise in or wait in', { '12' }, [[
        local fiber = require 'cord.fiber'
        local known, caught = { main = true }, 0
        local function victim()
            known[coroutine.running()] = true
            local ok, e = pcall(function() for _ = 1, 100 do fiber.yield() end end)
            if not ok and tostring(e) == 'fiber is cancelled' then caught = caught + 1 end
        end
        for _, mode in ipairs { 'count', 'raise', 'wait' } do
            local function try()
                local f = fiber.new(victim)
                f:set_joinable(true)
                fiber.yield()
                f:cancel()
                assert(f:join())
            end
            try()
            debug.sethook(function()
                if known[coroutine.running() or 'main'] then return end
                if mode == 'raise' then error 'from the hook' end
                if mode == 'wait' then fiber.yield() end
            end, '', 1)
            try()
            debug.sethook()
            try()
            try()
        end
        print(caught)
    ]])

    either('tells a line hook of each line, although another fiber was in the same function', { 'B:5 B:6 A:5 B:5 B:8 A:6 A:5 A:8' }, [[
        local fiber = require 'cord.fiber'
        local log, me = {}, {}
        local function f() end
        local function body(second)
            f(second or fiber.yield(),
                fiber.yield()
            )
        end
        fiber.new(function() me[coroutine.running()] = 'A' fiber.yield() body() end)
        fiber.new(function() me[coroutine.running()] = 'B' body(true) end)
        debug.sethook(function(_, line)
            local name = me[coroutine.running() or 0]
            if name and debug.getinfo(2, 'f').func == body then log[#log + 1] = name .. ':' .. line end
        end, 'l')
        for _ = 1, 8 do fiber.yield() end
        debug.sethook()
        print(table.concat(log, ' '))
    ]])

    either('leaves nothing of a refused coroutine.yield to whoever comes next', { 'true', 'true\t56', 'nil' }, [[
        local fiber = require 'cord.fiber'
        local function join(f) f:set_joinable(true) return f:join() end
        print((join(fiber.new(function() return coroutine.yield(1) end))))
        print(join(fiber.new(function() local x = 1 for j = 1, 10 do x = x + j end return x end)))
        print((debug.gethook()))
    ]])

    either('reports an error with the fiber it came from', { 'true', 'true', '1' }, [[
        local fiber = require 'cord.fiber'
        local function guilty() fiber.yield() local t = nil; return t.x end
        local bystanders = 0
        for i = 1, 5 do fiber.new(function() for _ = 1, 4 do fiber.yield() end bystanders = bystanders + 1 end) end
        local f = fiber.new(function() guilty() end)
        f:set_joinable(true)
        local ok, e = f:join()
        print(not ok and tostring(e):match("attempt to index local 't' %(a nil value%)") ~= nil)
        for _ = 1, 5 do fiber.yield() end
        print(bystanders == 5)
        local thread
        fiber.new(function() thread = coroutine.running() for _ = 1, 10 do fiber.yield() end end)
        fiber.new(function() for _ = 1, 10 do fiber.yield() end end)
        for _ = 1, 5 do fiber.yield() end
        local ok, err = coroutine.resume(thread)
        assert(not ok and err == 'cannot resume running coroutine', err)
        assert(coroutine.status(thread) == 'suspended')
        assert(debug.traceback(thread):match "'yield'", debug.traceback(thread))
        print(1)
    ]])
end)

describe('a LuaJIT of which nothing can be proven', function()
    local env = { CORD_PROVE_NOTHING = '1' }

    each('still keeps fibers from foreign hands', function(flags)
        assert.same({ 'false\tcannot resume running coroutine', '2000', 'false\ttrue',
            'false\tcannot yield inside a finalizer (__gc metamethod)', 'extern', '-14', '0' }, lines([[
            local fiber = require 'cord.fiber'
            local threads, sum, caught = {}, 0
            for i = 1, 20 do
                fiber.create(function()
                    threads[i] = coroutine.running()
                    for j = 1, 100 do
                        fiber.yield()
                        sum = sum + 1
                        if j % 10 == 0 then string.gsub('a', '.', function() fiber.sleep(1e-5) end) end
                    end
                    local ok, err = pcall(function() coroutine.yield() return 1 end)
                    caught = tostring(ok) .. '\t' .. tostring(tostring(err):match 'attempt to yield across C%-call boundary$' ~= nil)
                end)
            end
            for _ = 1, 20 do
                for i = 1, 20 do
                    local ok, err = coroutine.resume(threads[i])
                    if ok or err ~= 'cannot resume running coroutine' then print(ok, err) end
                end
                fiber.yield()
            end
            print(coroutine.resume(threads[1]))
            while sum < 2000 do fiber.sleep(0.001) end
            fiber.yield()
            print(sum)
            print(caught)
            local text
            local u = newproxy(true)
            getmetatable(u).__gc = function() text = tostring(pcall(fiber.yield)) .. '\t' .. tostring(select(2, pcall(fiber.yield))) end
            u = nil
            collectgarbage()
            print(text)
            print(fiber.trace_abort())
            print(require('cord.ffi').cord_fiber_yield())
            local words = debug.getregistry()['cord.modules']['cord.trace'].raw.words()
            local known = 0
            for _, word in pairs(words) do if word then known = known + 1 end end
            print(known)
        ]], { flags = flags, env = env }))
    end)

    it('runs the same waits, each fiber on a stack of its own', function()
        assert.same({ '300', 'ok', '0' }, lines([[
            local fiber = require 'cord.fiber'
            local done = 0
            local ch = fiber.channel(1)
            for i = 1, 100 do fiber.create(function() ch:put(i) done = done + 1 end) end
            for _ = 1, 100 do fiber.create(function() ch:get() done = done + 1 end) end
            for i = 1, 100 do fiber.create(function() fiber.sleep(i * 1e-5) done = done + 1 end) end
            while done < 300 do fiber.sleep(0.001) end
            print(done)
            local f = fiber.new(function() fiber.sleep(0.001) return 'ok' end)
            f:set_joinable(true)
            print(select(2, f:join()))
            local c = fiber.new(function() fiber.sleep(100) end)
            c:set_joinable(true)
            fiber.yield()
            c:cancel()
            print(c:join() == false and 0 or 1)
        ]], { env = env }))
    end)
end)

describe('hot loops over the network', function()
    -- Tarantool once died of fibers that gave way under its socket functions while a trace was recorded (T#4491).
    each('give exact results', function(flags)
        assert.same({ '0\t8' }, lines([[
            local fiber = require 'cord.fiber'
            local server = require 'cord.server'
            local net = require 'cord.netbox'
            local path = os.tmpname()
            os.remove(path)
            local srv = server.listen('unix/:' .. path, { add = function(a, b)
                if a % 5 == 0 then fiber.yield() end
                return a + b
            end })
            local conn = net.connect('unix/:' .. path)
            local wrong, done = 0, 0
            for i = 1, 8 do
                fiber.create(function()
                    local sum = 0
                    for j = 1, 1500 do
                        local got = conn:call('add', { j, i })
                        if (type(got) == 'table' and got[1] or got) ~= j + i then wrong = wrong + 1 end
                        for k = 1, 10 do sum = sum + k end
                        if j % 100 == 0 and not conn:ping() then wrong = wrong + 1 end
                    end
                    if sum ~= 1500 * 55 then wrong = wrong + 1 end
                    done = done + 1
                end)
            end
            while done < 8 do fiber.sleep(0.005) end
            conn:close()
            srv:stop()
            os.remove(path)
            print(wrong, done)
        ]], { flags = flags }))
    end)
end)
