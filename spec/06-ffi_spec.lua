-- The C face: cord.ffi, and the C example module over include/cord.h.
local helpers = require 'spec.helpers'
local fiber = require 'cord.fiber'
local cord = require 'cord.ffi'
local ffi = require 'ffi'

local C = cord.C
local FLAGS = { {}, { '-joff' }, { '-Ohotloop=1', '-Ohotexit=1' } }

describe('cord.ffi', function()
    helpers.no_leftovers()

    it('declares every function of the header, and wraps each', function()
        local header = helpers.read_file 'include/cord.h'
        local n = 0
        for name in header:gsub('/%*.-%*/', ''):gmatch '(cord_[%w_]+)%(' do
            n = n + 1
            assert.is_not_nil(C[name], name)
            if name ~= 'cord_attach' and name ~= 'cord_lua_state' and name ~= 'cord_lua_pcall' then
                assert.equal('function', type(cord[name]), name)
            end
        end
        assert.equal(42, n)
        assert.equal(-10, C.CORD_COMPILED)
        assert.has_error(function() return C.cord_nothing end)
    end)

    it('may be required again, and anew', function()
        assert.equal(cord, require 'cord.ffi')
        assert.equal('true\ttrue\t0\n', helpers.run_ok [[
            local first = require 'cord.ffi'
            package.loaded['cord.ffi'], package.loaded.cord, package.loaded['cord.fiber'] = nil
            local second = require 'cord.ffi'
            print(first == second, require('ffi').istype('cord_fiber_t', first.C.cord_fiber_self()), second.cord_fiber_yield())
        ]])
    end)

    it('finds its library when the folder has changed', function()
        local path = helpers.library()
        local dir = helpers.tempdir()
        assert(os.execute(("cp '%s' '%s/cord.so'"):format(path, dir)) == 0)
        assert.equal('0\n', helpers.run_ok([[
            local dir = ...
            local ffi = require 'ffi'
            ffi.cdef 'int chdir(const char *);'
            assert(ffi.C.chdir(dir) == 0)
            local open = assert(package.loadlib('./cord.so', 'luaopen_cord_ffi'))
            assert(ffi.C.chdir('/') == 0)
            print(open().cord_fiber_yield())
        ]], { args = { dir } }))
    end)

    it('knows the fibers of cord.fiber', function()
        assert.equal(fiber.self():id(), cord.cord_fiber_self())
        local f = fiber.new(function() fiber.sleep(10) end)
        f:name('some name')
        assert.equal(f:id(), cord.cord_fiber_id(f:id()))
        assert.equal(f:id(), cord.cord_fiber_find(f:id()))
        assert.equal('some name', cord.cord_fiber_name(f:id()))
        assert.equal(0, cord.cord_fiber_set_name_n(f:id(), 'another', 4))
        assert.equal('anot', f:name())
        assert.equal(0, cord.cord_fiber_set_name_n(f:id(), ('x'):rep(300)))
        assert.equal(255, #f:name())
        assert.equal(0, cord.cord_fiber_csw(f:id()))
        fiber.yield()
        assert.equal(1, cord.cord_fiber_csw(f:id()))
        assert.equal(0, cord.cord_fiber_wakeup(f:id()))
        fiber.yield()
        assert.equal(C.CORD_DEAD, cord.cord_fiber_wakeup(f:id()))
        assert.equal('the fiber is dead', cord.cord_last_error())
        assert.equal(0, cord.cord_fiber_find(f:id()))
        assert.equal('', cord.cord_fiber_name(f:id()))
        for _, call in ipairs { 'cancel', 'wakeup', 'join' } do
            assert.equal(C.CORD_DEAD, cord['cord_fiber_' .. call](f:id()))
        end
        assert.equal(C.CORD_DEAD, cord.cord_fiber_start(f:id(), nil))
        assert.equal(C.CORD_DEAD, cord.cord_fiber_set_joinable(f:id(), true))
        assert.equal(C.CORD_DEAD, cord.cord_fiber_set_ctx(f:id(), nil))
        assert.equal(C.CORD_DEAD, cord.cord_fiber_wakeup(0))
    end)

    it('tells the time of the loop', function()
        assert.equal(fiber.time(), cord.cord_fiber_time())
        assert.equal(fiber.clock(), cord.cord_fiber_clock())
        assert.is_true(math.abs(tonumber(cord.cord_fiber_time64()) - fiber.time() * 1e6) < 2)
        assert.is_true(math.abs(tonumber(cord.cord_fiber_clock64()) - fiber.clock() * 1e6) < 2)
    end)

    it('sleeps', function()
        local from = fiber.clock()
        assert.equal(0, cord.cord_fiber_sleep(0.02))
        assert.is_true(fiber.clock() - from >= 0.02)
        assert.equal(0, cord.cord_fiber_sleep(0))
        assert.equal(0, cord.cord_fiber_sleep(-1))
        assert.equal(C.CORD_ARGUMENT, cord.cord_fiber_sleep(0 / 0))
        assert.equal('bad argument', cord.cord_last_error())
    end)

    it('yields in turn with the others', function()
        local order = {}
        for i = 1, 3 do
            fiber.new(function()
                for _ = 1, 2 do
                    order[#order + 1] = i
                    assert(cord.cord_fiber_yield() == 0)
                end
            end)
        end
        for _ = 1, 3 do assert.equal(0, cord.cord_fiber_reschedule()) end
        assert.same({ 1, 2, 3, 1, 2, 3 }, order)
    end)

    it('suspends until a wakeup or a cancel', function()
        local codes = {}
        local f = fiber.new(function()
            for i = 1, 3 do codes[i] = cord.cord_fiber_suspend() end
            codes[4] = cord.cord_fiber_sleep(0)
            codes[5] = cord.cord_fiber_yield()
            codes[6] = cord.cord_fiber_is_cancelled()
        end)
        fiber.sleep(0.002)
        assert.same({}, codes)
        cord.cord_fiber_wakeup(f:id())
        fiber.sleep(0.002)
        assert.same({ 0 }, codes)
        assert.equal(0, cord.cord_fiber_cancel(f:id()))
        cord.cord_fiber_wakeup(f:id())
        fiber.yield()
        f:wakeup()
        fiber.yield()
        fiber.yield()
        fiber.yield()
        assert.same({ 0, C.CORD_CANCELLED, C.CORD_CANCELLED, C.CORD_CANCELLED, 0, true }, codes)
    end)

    it('joins', function()
        local f = fiber.new(function() fiber.sleep(0.002) return 'a' end)
        assert.equal(C.CORD_NOT_JOINABLE, cord.cord_fiber_join(f:id()))
        assert.equal(0, cord.cord_fiber_set_joinable(f:id(), true))
        assert.equal(C.CORD_TIMED_OUT, cord.cord_fiber_join_timeout(f:id(), 0.0005))
        assert.equal('timed out', cord.cord_last_error())
        local result = ffi.new('int[1]', 7)
        assert.equal(0, cord.cord_fiber_join(f:id(), result))
        assert.equal(0, result[0])
        assert.equal(C.CORD_DEAD, cord.cord_fiber_join(f:id()))

        for raised, text in pairs { ['some text'] = 'some text', [12] = '12' } do
            f = fiber.new(function() error(raised, 0) end)
            f:set_joinable(true)
            assert.same({ 0, -1 }, { cord.cord_fiber_join(f:id()) })
            assert.equal(text, cord.cord_last_error())
        end
        f = fiber.new(function() error(setmetatable({}, { __tostring = function() return 'an object' end })) end)
        f:set_joinable(true)
        assert.same({ 0, -1 }, { cord.cord_fiber_join_timeout(f:id(), 1) })
        assert.equal('an object', cord.cord_last_error())

        local code
        f = fiber.new(function() code = cord.cord_fiber_join(fiber.self():id()) end)
        f:set_joinable(true)
        f:join()
        assert.equal(C.CORD_ARGUMENT, code)
    end)

    it('has condition variables', function()
        local cond = cord.cord_fiber_cond_new()
        assert.equal(0, cord.cord_fiber_cond_signal(cond))
        assert.equal(C.CORD_TIMED_OUT, cord.cord_fiber_cond_wait_timeout(cond, 0.001))
        local woken = {}
        local fibers = {}
        for i = 1, 4 do
            fibers[i] = fiber.new(function()
                local code = cord.cord_fiber_cond_wait(cond)
                woken[#woken + 1] = i .. ':' .. code
            end)
        end
        fiber.yield()
        assert.equal(C.CORD_ARGUMENT, cord.cord_fiber_cond_delete(cond))
        assert.equal('fibers wait for the cond', cord.cord_last_error())
        cord.cord_fiber_cond_signal(cond)
        fiber.yield()
        assert.same({ '1:0' }, woken)
        fibers[3]:cancel()
        fiber.yield()
        assert.same({ '1:0', '3:-1' }, woken)
        cord.cord_fiber_cond_broadcast(cond)
        fiber.yield()
        assert.same({ '1:0', '3:-1', '2:0', '4:0' }, woken)
        assert.equal(0, cord.cord_fiber_cond_delete(cond))
        assert.equal(0, cord.cord_fiber_cond_delete(nil))
        assert.equal(C.CORD_ARGUMENT, cord.cord_fiber_cond_wait(nil))
        assert.equal(C.CORD_ARGUMENT, cord.cord_fiber_cond_signal(nil))
    end)

    it('keeps the signal when the timer fires in the same turn', function()
        local cond = cord.cord_fiber_cond_new()
        local code
        fiber.new(function() code = cord.cord_fiber_cond_wait_timeout(cond, 0.005) end)
        fiber.yield()
        local till = fiber.clock() + 0.02
        helpers.block(0.02)
        assert.is_true(fiber.clock() < till)
        cord.cord_fiber_cond_signal(cond)
        fiber.sleep(0.001)
        assert.equal(0, code)
        cord.cord_fiber_cond_delete(cond)
    end)

    it('waits for descriptors', function()
        ffi.cdef [[
            int cordspec_pipe(int *) __asm__("pipe");
            long cordspec_write(int, const void *, unsigned long) __asm__("write");
            long cordspec_read(int, void *, unsigned long) __asm__("read");
        ]]
        local fds = ffi.new 'int[2]'
        assert.equal(0, ffi.C.cordspec_pipe(fds))
        assert.equal(0, cord.cord_coio_wait(fds[0], C.CORD_COIO_READ, 0))
        assert.equal(0, cord.cord_coio_wait(fds[0], C.CORD_COIO_READ, 0.002))
        assert.equal(2, cord.cord_coio_wait(fds[1], C.CORD_COIO_WRITE, 1))
        fiber.new(function()
            fiber.sleep(0.002)
            ffi.C.cordspec_write(fds[1], 'x', 1)
        end)
        assert.equal(1, cord.cord_coio_wait(fds[0], 3, 5))
        assert.equal(1, tonumber(ffi.C.cordspec_read(fds[0], ffi.new 'char[1]', 1)))
        -- Cancelled: 0 at once, as in Tarantool.
        local events
        local f = fiber.new(function() events = cord.cord_coio_wait(fds[0], 1, 100) end)
        fiber.yield()
        f:cancel()
        fiber.yield()
        assert.equal(0, events)
        -- Closed under a waiting fiber.
        fiber.new(function() events = cord.cord_coio_wait(fds[0], 1, 100) end)
        fiber.yield()
        assert.equal(0, cord.cord_coio_close(fds[0]))
        fiber.yield()
        assert.equal(1, events)
        assert.equal(0, cord.cord_coio_close(fds[1]))
        assert.equal(C.CORD_SYSTEM, cord.cord_coio_close(fds[1]))
        assert.equal(9, ffi.errno())
        assert.equal('Bad file descriptor (os error 9)', cord.cord_last_error())
        assert.equal(C.CORD_SYSTEM, cord.cord_coio_wait(fds[1], 1, 1))
        assert.equal(C.CORD_ARGUMENT, cord.cord_coio_wait(0, 0, 1))
    end)

    it('has the options of new fibers', function()
        local attr = cord.cord_fiber_attr_new()
        assert.equal(fiber.cfg().stack_size, cord.cord_fiber_attr_getstacksize(nil))
        assert.equal(fiber.cfg().stack_size, cord.cord_fiber_attr_getstacksize(attr))
        assert.equal(C.CORD_ARGUMENT, cord.cord_fiber_attr_setstacksize(attr, 16383))
        assert.equal('stack size is too small: Invalid argument', cord.cord_last_error())
        assert.equal(0, cord.cord_fiber_attr_setstacksize(attr, 16384))
        assert.equal(16384, cord.cord_fiber_attr_getstacksize(attr))
        cord.cord_fiber_attr_delete(attr)
        assert.has_error(function() cord.cord_fiber_new('f', print) end,
            'a fiber of the C face runs C code: use fiber.new for a Lua function')
        assert.equal(0, cord.cord_fiber_new('f', nil))
        assert.equal('bad argument', cord.cord_last_error())
    end)

    it('explains its codes', function()
        assert.equal('fiber is cancelled', cord.cord_strerror(C.CORD_CANCELLED))
        assert.equal('cannot yield inside a finalizer (__gc metamethod)', cord.cord_strerror(C.CORD_FINALIZER))
        assert.equal('unknown error', cord.cord_strerror(77))
        for _, name in ipairs { 'CANCELLED', 'TIMED_OUT', 'INTERRUPTED', 'DEADLOCK', 'COMPILED', 'RECORDING', 'FINALIZER',
            'VM_EVENT', 'UNPROVEN', 'SCHEDULER', 'CALLBACK', 'NO_STACK', 'DEAD', 'NOT_JOINABLE', 'ARGUMENT', 'SYSTEM', 'LUA' } do
            assert.not_equal('unknown error', cord.cord_strerror(C['CORD_' .. name]), name)
        end
    end)

    it('raises a deadlock in the main fiber, and returns its code to the raw caller', function()
        local output = helpers.run_ok [[
            local cord = require 'cord.ffi'
            print(cord.C.cord_fiber_suspend())
            print(pcall(function() cord.cord_fiber_suspend() end))
        ]]
        assert.equal('-4\nfalse\tscript.lua:3: deadlock: the main fiber waits and nothing can ever wake anyone\n',
            (output:gsub('/[%w/_.-]*/script.lua', 'script.lua')))
    end)

    it('is wrapped in functions the compiler leaves alone', function()
        assert.equal('20000\n', helpers.run_ok([[
            local cord = require 'cord.ffi'
            local n = 0
            require('cord.fiber').trace_abort('off')
            for _ = 1, 20000 do
                if cord.cord_fiber_yield() == 0 then n = n + 1 end
            end
            print(n)
        ]], { flags = { '-Ohotloop=1' } }))
    end)
end)

describe('the scheduler of an OS thread', function()
    for _, flags in ipairs(FLAGS) do
        it('must be the only one for the C face ' .. table.concat(flags, ' '), function()
            assert.equal('0\n-15\t0\n-15\tno scheduler: this OS thread has no Lua state with cord in it, or several\n0\n',
                helpers.run_ok([[
                    local ffi = require 'ffi'
                    ffi.cdef 'struct lua_State; struct lua_State *luaL_newstate(void); void luaL_openlibs(struct lua_State *);'
                    ffi.cdef 'void lua_close(struct lua_State *); int luaL_loadstring(struct lua_State *, const char *);'
                    ffi.cdef 'int lua_pcall(struct lua_State *, int, int, int); double lua_tonumber(struct lua_State *, int);'
                    jit.off(true)
                    local cord = require 'cord.ffi'
                    print(cord.cord_fiber_yield())
                    local L = ffi.C.luaL_newstate()
                    ffi.C.luaL_openlibs(L)
                    local source = ([=[
                        package.cpath = %q
                        local fiber = require 'cord.fiber'
                        local code = require('cord.ffi').cord_fiber_yield()
                        -- Its own functions know their state.
                        local n = 0
                        fiber.create(function() for _ = 1, 3 do n = n + 1 fiber.yield() end end)
                        for _ = 1, 3 do fiber.yield() end
                        assert(n == 3)
                        return code
                    ]=]):format(package.cpath)
                    assert(ffi.C.luaL_loadstring(L, source) == 0)
                    local status = ffi.C.lua_pcall(L, 0, 1, 0)
                    print(ffi.C.lua_tonumber(L, -1), status)
                    print(cord.cord_fiber_yield(), cord.cord_last_error())
                    ffi.C.lua_close(L)
                    print(cord.cord_fiber_yield())
                ]], { flags = flags }))
        end)
    end
end)

-- Compiles a C file into `output` of a folder of its own, which is returned; or nil and the reason why it cannot.
local function compile(source, output, options, library)
    local cc = helpers.which(os.getenv 'CC' or 'cc')
    if not cc then return nil, 'no C compiler' end
    local headers
    for _, dir in ipairs { '/usr/include/luajit-2.1', '/usr/local/include/luajit-2.1', '/usr/include/lua5.1' } do
        headers = headers or (helpers.read_file(dir .. '/lua.h') and dir)
    end
    if not headers then return nil, "no lua.h (Debian's libluajit-5.1-dev)" end
    local dir = helpers.tempdir()
    local log = dir .. '/log'
    local command = ("'%s' -std=c99 -Wall -Wextra -Werror -D_DEFAULT_SOURCE -O2 %s -I include -I '%s' -o '%s/%s' %s %s >'%s' 2>&1")
        :format(cc, options, headers, dir, output, source, library or '', log)
    if os.execute(command) ~= 0 then
        local text = helpers.read_file(log)
        if library and text:match 'cannot find %-l' then return nil, 'no libluajit-5.1 to link with' end
        error(text)
    end
    return dir
end

describe('several OS threads', function()
    it('have a scheduler each, one Lua state after the other', function()
        local dir, reason = compile('spec/fixtures/c/threads.c', 'threads', '-rdynamic', '-lluajit-5.1 -lpthread')
        if not dir then return pending(reason) end
        local script = helpers.write_file(dir .. '/script.lua', ([[
            package.cpath = %q
            local fiber = require 'cord.fiber'
            local cord = require 'cord.ffi'
            local left, sum = 10, 0
            for _ = 1, 10 do
                fiber.create(function()
                    for j = 1, 2000 do
                        assert(cord.C.cord_fiber_yield() == 0)
                        if j %% 50 == 0 then fiber.sleep(0.0001) end
                        if j %% 99 == 0 then string.gsub('a', '.', function() fiber.yield() end) end
                        sum = sum + 1
                    end
                    left = left - 1
                end)
            end
            while left > 0 do fiber.sleep(0.001) end
            return sum
        ]]):format(package.cpath))
        assert.equal(('20000\n'):rep(15), helpers.run_ok(nil, { lua = dir .. '/threads', args = { script } }))
    end)
end)

describe('a C module', function()
    local module, reason

    setup(function()
        module, reason = compile('examples/c/example.c', 'cord_example.so', '-fPIC -shared')
    end)

    local function run(source, flags)
        if not module then
            pending(reason)
            return nil
        end
        return helpers.run_ok("package.cpath = (...) .. '/?.so;' .. package.cpath\nlocal fiber = require 'cord.fiber'\n"
            .. "local cord = require 'cord.ffi'\nlocal example = require 'cord_example'\n" .. source,
            { args = { module }, flags = flags, timeout = 120 })
    end

    for _, flags in ipairs(FLAGS) do
        local with = #flags > 0 and ' with ' .. table.concat(flags, ' ') or ''

        it('runs fibers, joins them and signals conds' .. with, function()
            local output = run([[
                print(example.squares(0), example.squares(10), example.squares(1000))
                local before = fiber.stats().fibers
                local wrong, left = 0, 10
                for _ = 1, 10 do
                    fiber.create(function()
                        for n = 1, 60 do
                            if example.squares(n) ~= n * (n + 1) * (2 * n + 1) / 6 then wrong = wrong + 1 end
                        end
                        left = left - 1
                    end)
                end
                while left > 0 do fiber.sleep(0.001) end
                fiber.sleep(0)
                print(wrong, fiber.stats().fibers - before)
            ]], flags)
            if output then assert.equal('0\t385\t333833500\n0\t0\n', output) end
        end)

        it('calls into Lua from its fibers' .. with, function()
            local output = run([[
                print(example.call(function(a, b) fiber.sleep(0.001) fiber.yield() return a + b end, 3, 4))
                local object = { 'raised' }
                local ok, err = example.call(function() fiber.yield() error(object) end)
                print(ok, err == object)
                print(example.call(function() return fiber.self():name(), 1 end))
                print(example.call(function() return pcall(coroutine.yield, 1) end))
                local function upper(c) cord.cord_fiber_yield() return c:upper() end
                print(example.call(function(text) return (text:gsub('.', upper)) end, 'text'))
                local wrong, left = 0, 10
                for i = 1, 10 do
                    fiber.create(function()
                        for j = 1, 300 do
                            local good, value = example.call(function(a) fiber.yield() return a * 2 end, j)
                            if not good or value ~= 2 * j then wrong = wrong + 1 end
                            good, value = example.call(function(a)
                                local sum = 0
                                for k = 1, 100 do sum = sum + k end
                                if j % 3 == 0 then cord.cord_fiber_yield() end
                                error(a + sum, 0)
                            end, i)
                            if good or value ~= i + 5050 then wrong = wrong + 1 end
                        end
                        left = left - 1
                    end)
                end
                while left > 0 do fiber.yield() end
                collectgarbage()
                print(wrong)
            ]], flags)
            if output then assert.equal('true\t7\nfalse\ttrue\ntrue\tcall\ntrue\tfalse\ntrue\tTEXT\n0\n', output) end
        end)

        it('waits for descriptors' .. with, function()
            local output = run("print(example.pipe('through a pipe'))", flags)
            if output then assert.equal('through a pipe\t0\n', output) end
        end)
    end

    it('chooses its stacks, which go when the fibers end', function()
        local output = run [[
            print(example.stack(1024 * 1024) >= 786432)
            print(select(2, pcall(example.stack, 1000)))
            local before = fiber.stats().stacks
            for _ = 1, 2000 do example.stack(32768) end
            print(fiber.stats().stacks - before)
        ]]
        if output then
            assert.equal('true\nstack size is too small: Invalid argument (-22)\n0\n', output)
        end
    end)

    it('gets a refusal in a finalizer', function()
        local output = run [[
            local text
            local u = newproxy(true)
            getmetatable(u).__gc = function() text = select(2, pcall(example.squares, 1)) end
            u = nil
            collectgarbage()
            print(text)
            print(example.squares(2))
        ]]
        if output then assert.equal('cannot yield inside a finalizer (__gc metamethod) (-12)\n5\n', output) end
    end)

    it('without cord.ffi is told what is missing by the loader', function()
        if not module then return pending(reason) end
        local result = helpers.run("package.cpath = (...) .. '/?.so;' .. package.cpath\nrequire 'cord_example'", { args = { module } })
        assert.equal(1, result.code)
        assert.matches('undefined symbol: cord_', result.stderr, 1, true)
    end)
end)
