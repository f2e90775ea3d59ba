-- The helpers the other specs stand on: if these lie, everything does.
local helpers = require 'spec.helpers'

describe('a child process', function()
    it('gives its exit code and both streams', function()
        local result = helpers.run([[
            io.write(io.read '*a', ...)
            io.stderr:write(os.getenv 'GIVEN')
            os.exit(7)
        ]], { stdin = 'in', args = { 1, 'two' }, env = { GIVEN = 'env' } })
        assert.same({ code = 7, timed_out = false, stdout = 'in1two', stderr = 'env' }, result)
    end)

    it('tells a signal from an exit code', function()
        local result = helpers.run [[
            require('ffi').cdef 'int raise(int);'
            require('ffi').C.raise(15)
        ]]
        assert.is_nil(result.code)
        assert.equal(15, result.signal)
    end)

    it('may have its errors kept and nothing else', function()
        local path = helpers.tempdir() .. '/errors'
        local child = helpers.spawn({ helpers.interpreter(), '-e', "io.write 'out' io.stderr:write 'err'" }, { stderr = path })
        assert.equal(0, child:wait(10).code)
        assert.equal('err', helpers.read_file(path))
    end)

    it('is killed when it takes too long', function()
        local result = helpers.run('while true do end', { timeout = 0.3, flags = { '-joff' } })
        assert.is_true(result.timed_out)
        assert.equal(9, result.signal)
    end)

    it('passes on a failure with everything it printed', function()
        assert.has_error(function() helpers.run_ok "io.write 'out' os.exit(3)" end)
    end)
end)

describe('a fake server', function()
    local function talk(uri, bytes)
        return helpers.run_ok([[
            local path, bytes = ...
            local ffi = require 'ffi'
            ffi.cdef 'int socket(int,int,int); int connect(int,const void*,unsigned); long recv(int,void*,size_t,int);'
            ffi.cdef 'long send(int,const void*,size_t,int); struct un { uint16_t family; char path[108]; };'
            local fd = ffi.C.socket(1, 1, 0)
            assert(ffi.C.connect(fd, ffi.new('struct un', {1, path}), 110) == 0)
            -- 0x4000: no SIGPIPE when the script has already closed.
            ffi.C.send(fd, bytes, #bytes, 0x4000)
            local buffer = ffi.new 'char[65536]'
            while true do
                local got = tonumber(ffi.C.recv(fd, buffer, 65536, 0))
                if got <= 0 then break end
                io.write(ffi.string(buffer, got))
            end
        ]], { args = { uri, bytes } })
    end

    it('greets, cuts, counts and logs', function()
        if require('ffi').os ~= 'Linux' then
            pending 'the client of this spec speaks Linux sockets'
            return
        end
        local fake = helpers.fake_server [[
            local peer = ...
            if peer.number == 1 then
                peer:greeting { cut = 64 }
            else
                peer:log('read', peer:read(2))
                peer:dribble 'abc'
            end
        ]]
        local first = talk(fake.uri, 'xy')
        assert.equal(64, #first)
        assert.equal('Tarantool 2.6.0 (Binary) ', first:sub(1, 25))
        assert.equal('\n', first:sub(64))
        assert.equal('abc', talk(fake.uri, 'xy'))
        assert.equal('read xy\n', fake:log())
        assert.equal(2, fake:connections())
        fake:stop()
    end)
end)

helpers.describe_server('a real server', { init = 'function answer() return 42 end' }, function(get)
    it('answers at its address and stops', function()
        local server = get()
        assert.is_true(server:alive())
        local output = helpers.run_ok("print(require('net.box').connect(...):call('answer')) os.exit(0)",
            { lua = helpers.tarantool_binary(), args = { server.uri }, env = { LUA_PATH = false, LUA_CPATH = false } })
        assert.equal('42\n', output)
    end)

    it('restarts at the same address', function()
        local server = get()
        local uri, pid = server.uri, server.pid
        server:kill 'KILL'
        assert.equal(9, server:wait(5).signal)
        server:restart()
        assert.equal(uri, server.uri)
        assert.are_not.equal(pid, server.pid)
    end)
end)

helpers.describe_server('a real server on TCP', { listen = 'tcp' }, function(get)
    it('tells its free port and keeps it', function()
        local server = get()
        local uri = server.uri
        assert.is_truthy(uri:match '^127%.0%.0%.1:%d+$', uri)
        server:restart()
        assert.equal(uri, server.uri)
    end)
end)
