-- The library as a module: loading, refusing to load, and going away. Everything that could crash runs in a child.
local helpers = require 'spec.helpers'

describe('the module', function()
    it('has a version and loads from one file', function()
        local cord = require 'cord'
        assert.is_truthy(cord._VERSION:match '^%d+%.%d+%.%d+')
        assert.is_truthy(helpers.library():match 'cord%.so$')
    end)

    it('is the same table when required again, also after package.loaded was cleared', function()
        local first = require 'cord'
        for _ = 1, 100 do
            package.loaded['cord'] = nil
            assert.equal(first, require 'cord')
        end
    end)

    it('gives nil for a module it does not have, without an error', function()
        local cord = require 'cord'
        assert.is_nil(cord.no_such_module)
        assert.is_nil(cord[1])
        assert.is_nil(cord[{}])
    end)

    it('names the module that require does not find', function()
        local fine, message = pcall(require, 'cord.no_such_module')
        assert.is_false(fine)
        assert.is_truthy(message:find("module 'cord.no_such_module' not found", 1, true))
    end)

    it('can first be required inside a coroutine that is then collected', function()
        assert.equal('ok', helpers.run_ok [[
            local version
            coroutine.wrap(function() version = require('cord')._VERSION end)()
            collectgarbage() collectgarbage()
            for i = 1, 100 do coroutine.wrap(function() assert(require('cord')._VERSION == version) end)() end
            collectgarbage() collectgarbage()
            io.write 'ok'
        ]])
    end)

    it('lets the Lua state close while it is loaded', function()
        assert.equal('closing', helpers.run_ok [[
            require 'cord'
            io.write 'closing'
            os.exit(0, true)
        ]])
    end)

    it('serves several Lua states of one process, each with tables of its own', function()
        assert.equal('5 states', helpers.run_ok [[
            local ffi = require 'ffi'
            ffi.cdef 'void *luaL_newstate(void); void luaL_openlibs(void *); void lua_close(void *);'
            ffi.cdef 'int luaL_loadstring(void *, const char *); int lua_pcall(void *, int, int, int);'
            ffi.cdef 'const char *lua_tolstring(void *, int, size_t *);'
            jit.off(true, true)
            local version = require('cord')._VERSION
            for i = 1, 5 do
                local L = ffi.C.luaL_newstate()
                ffi.C.luaL_openlibs(L)
                local code = ('package.cpath = %q return require("cord")._VERSION'):format(package.cpath)
                assert(ffi.C.luaL_loadstring(L, code) == 0)
                local rc = ffi.C.lua_pcall(L, 0, 1, 0)
                local text = ffi.string(ffi.C.lua_tolstring(L, -1, nil))
                assert(rc == 0 and text == version, text)
                ffi.C.lua_close(L)
            end
            assert(require('cord')._VERSION == version)
            io.write '5 states'
        ]])
    end)
end)

describe('a second copy of the library', function()
    it('is refused with a sentence that says what to do, and the first goes on', function()
        local copy = helpers.tempdir() .. '/other.so'
        assert.equal(0, os.execute(("cp '%s' '%s'"):format(helpers.library(), copy)))
        local output = helpers.run_ok([[
            local cord = require 'cord'
            local open = assert(package.loadlib(..., 'luaopen_cord'))
            local fine, message = pcall(open)
            print(fine)
            print(message)
            print(require('cord') == cord)
        ]], { args = { copy } })
        assert.equal('false\ncord: a second copy of the library is loaded under another name: each copy would run a '
            .. 'scheduler of its own, so keep one cord.so in package.cpath and require it by one name\ntrue\n', output)
    end)
end)

describe('a host that is not LuaJIT', function()
    it('gets our message and not a crash of the loader', function()
        if not helpers.which 'lua5.1' then
            pending 'no lua5.1 on this machine'
            return
        end
        local result = helpers.run("print(pcall(require, 'cord')) print 'still here'", { lua = 'lua5.1' })
        assert.equal(0, result.code)
        assert.equal('', result.stderr)
        assert.is_truthy(result.stdout:find('cord needs LuaJIT 2.1 (this Lua has no luaJIT_setmode): run the script with luajit, '
            .. 'and build the rock with luarocks --lua-version 5.1', 1, true), result.stdout)
        assert.is_truthy(result.stdout:find('still here', 1, true))
    end)
end)

describe('the library file', function()
    local function symbols(flags)
        local pipe = io.popen(("nm -D %s '%s' 2>&1"):format(flags, helpers.library()))
        local text = pipe:read '*a'
        pipe:close()
        return text
    end

    it('defines no Lua of its own: every lua_ symbol comes from the host', function()
        if not helpers.which 'nm' then
            pending 'no nm on this machine'
            return
        end
        local defined = symbols '--defined-only'
        assert.is_truthy(defined:find('luaopen_cord', 1, true), defined)
        for line in defined:gmatch '[^\n]+' do
            local name = line:match '(%S+)$'
            assert.is_nil(name:match '^lua_' or name:match '^luaL_' or name:match '^luaJIT_', name)
        end
    end)

    it('links nothing that only LuaJIT has, so that the refusal comes first', function()
        if not helpers.which 'nm' then
            pending 'no nm on this machine'
            return
        end
        local undefined = symbols '--undefined-only'
        for _, name in ipairs { 'luaJIT_setmode', 'lua_isyieldable', 'luaL_traceback', 'lua_loadx', 'lua_tonumberx' } do
            assert.is_nil(undefined:match('%sU ' .. name), name)
        end
    end)
end)

describe('the REPL of the stock interpreter', function()
    it('loads the library line by line', function()
        local result = helpers.type_at_repl { "cord = require 'cord'", '=cord._VERSION' }
        assert.equal(0, result.code)
        assert.is_truthy(result.stdout:find(require('cord')._VERSION, 1, true), result.stdout)
    end)
end)
