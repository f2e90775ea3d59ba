-- Threads of finished fibers are used again, also after more fibers at once than the pool keeps threads for.
local helpers = require 'spec.helpers'

describe('the pool of threads', function()
    -- Bytes of garbage of one fiber, the collector stopped: a new thread is more than 300.
    local SCRIPT = [[
        local fiber = require 'cord.fiber'
        local function nothing() end
        local function garbage()
            collectgarbage() collectgarbage() collectgarbage 'stop'
            local before = collectgarbage 'count'
            for _ = 1, 1000 do fiber.create(nothing) end
            local bytes = (collectgarbage 'count' - before) * 1024 / 1000
            collectgarbage 'restart'
            return bytes
        end
        for _ = 1, 100 do fiber.create(nothing) end
        local before = garbage()
        for _ = 1, 40000 do fiber.new(nothing) end
        fiber.yield()
        print(before < 150, garbage() < 150)
        fiber.cfg { thread_pool = false }
        for _ = 1, 50000 do fiber.create(nothing) end
        print(garbage() > 300)
    ]]

    it('serves from warm threads before and after a burst, and not at all when it is off', function()
        assert.equal('true\ttrue\ntrue\n', helpers.run_ok(SCRIPT))
    end)
end)

describe('a closed state', function()
    -- Runs its last argument in many states, and gives what each leaves behind, in KB.
    local STATES = [[
        local ffi = require 'ffi'
        ffi.cdef [=[
            struct lua_State;
            struct lua_State *luaL_newstate(void);
            void luaL_openlibs(struct lua_State *);
            int luaL_loadstring(struct lua_State *, const char *);
            int lua_pcall(struct lua_State *, int, int, int);
            const char *lua_tolstring(struct lua_State *, int, size_t *);
            void lua_close(struct lua_State *);
        ]=]
        local C = ffi.C
        jit.off(true, true)
        local function run(code)
            local L = C.luaL_newstate()
            C.luaL_openlibs(L)
            if C.luaL_loadstring(L, code) ~= 0 or C.lua_pcall(L, 0, 0, 0) ~= 0 then
                error(ffi.string(C.lua_tolstring(L, -1, nil)))
            end
            C.lua_close(L)
        end
        local function resident()
            collectgarbage()
            for line in io.lines '/proc/self/status' do
                local kb = line:match '^VmRSS:%s+(%d+)'
                if kb then return tonumber(kb) end
            end
        end
        local function left_behind(code)
            for _ = 1, 30 do run(code) end
            local before = resident()
            for _ = 1, 200 do run(code) end
            return (resident() - before) / 200
        end
    ]]

    it('leaves less than 3 KB behind when its fibers have ended', function()
        if not io.open '/proc/self/status' then return pending 'no /proc here' end
        if os.getenv 'ASAN_OPTIONS' then return pending 'a sanitizer keeps what is freed' end
        assert.equal('true\n', helpers.run_ok(STATES .. [[
            print(left_behind([=[
                local fiber = require 'cord.fiber'
                for _ = 1, 40 do fiber.new(function() fiber.yield() end) end
                fiber.create(function() string.gsub('a', 'a', fiber.yield) end)
                for _ = 1, 5 do fiber.yield() end
                assert(fiber.stats().fibers == 1)
            ]=]) < 3)
        ]]))
    end)

    it('answers finalizers that run after it as if nobody had ever been there', function()
        assert.equal('ended\n', helpers.run_ok(STATES .. [[
            for _, live in ipairs { 'false', 'true' } do
                run('local LIVE = ' .. live .. [=[
                    -- Older than the library's own data, so finalized after it.
                    local late = newproxy(true)
                    local fiber = require 'cord.fiber'
                    local cond, channel = fiber.cond(), fiber.channel()
                    local function wait() if LIVE then fiber.sleep(1000) end end
                    local ended, other = fiber.create(wait), fiber.create(wait)
                    fiber.new(function() if LIVE then cond:wait() end end)
                    fiber.new(function() if LIVE then channel:get() end end)
                    fiber.yield()
                    getmetatable(late).__gc = function()
                        for _, f in ipairs { ended, other } do
                            pcall(f.status, f) pcall(f.id, f) pcall(f.name, f) pcall(f.wakeup, f) pcall(f.cancel, f)
                        end
                        pcall(fiber.self) pcall(fiber.id) pcall(fiber.yield) pcall(fiber.sleep, 0.01)
                        for _ = 1, 100 do pcall(fiber.new, wait) end
                        pcall(fiber.create, wait)
                        pcall(cond.signal, cond) pcall(cond.wait, cond)
                        pcall(channel.put, channel, 1) pcall(channel.get, channel)
                        pcall(fiber.info) pcall(fiber.stats)
                    end
                ]=])
            end
            print 'ended'
        ]]))
    end)
end)
