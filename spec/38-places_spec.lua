-- Errors say where the program stands that caused them: not a place inside of the library, and not none.
local net = require 'cord.netbox'
local server = require 'cord.server'

describe('an error of net.box', function()
    local srv, conn, stream, future, tuple
    before_each(function()
        srv = server.listen('127.0.0.1:0', { echo = function(...) return ... end })
        srv:create_space('t'):create_index('pk')
        conn = net.connect((srv:address()))
        stream = conn:new_stream()
        future = conn:call('echo', { 1 }, { is_async = true })
        tuple = net.tuple.new { 1, 2 }
    end)
    after_each(function()
        conn:close()
        srv:stop()
    end)

    -- Each on a line of its own, which is the place to be named. None is the last thing its function does: a function that
    -- ends with a call of another has left the stack by then.
    local CASES = {
        function() conn:call('x', 5) return 1 end,
        function() conn.call('x', 5) return 1 end,
        function() conn:call('x', {}, 5) return 1 end,
        function() conn:call('x', {}, {foo=1}) return 1 end,
        function() conn:call('x', {}, {is_async=true,on_push=print}) return 1 end,
        function() conn:call('echo', {}, {timeout=0}) return 1 end,
        function() conn:call('echo', {}, {timeout=0,return_raw=true}) return 1 end,
        function() conn:call('x', {a=1}) return 1 end,
        function() conn:ping({is_async=true}) return 1 end,
        function() conn:on_connect(5) return 1 end,
        function() conn:wait_state(5) return 1 end,
        function() conn:wait_state('x', {}) return 1 end,
        function() conn.space.t:select({}, {iterator='zz'}) return 1 end,
        function() conn.space.t:select({}, {zz='zz'}) return 1 end,
        function() conn.space.t.select() return 1 end,
        function() conn.space.t.index.pk.get() return 1 end,
        function() conn.space.t.index.pk:get(1,{buffer=5}) return 1 end,
        function() conn.space.t.index.pk:count(1,{buffer=5}) return 1 end,
        function() conn.space.t.index.pk:count(1,{zz=5}) return 1 end,
        function() conn.space.t:insert({1}, {zz=1}) return 1 end,
        function() conn.space.t:format({}) return 1 end,
        function() conn:execute('x', {}, {}) return 1 end,
        function() conn:prepare(5) return 1 end,
        function() conn:prepare('x', nil, nil, {zz=1}) return 1 end,
        function() conn:unprepare('x') return 1 end,
        function() stream:begin(5) return 1 end,
        function() stream:begin({txn_isolation='x'}) return 1 end,
        function() stream:begin({}, 5) return 1 end,
        function() stream:rollback(5) return 1 end,
        function() conn:watch(5) return 1 end,
        function() conn:watch_once(5) return 1 end,
        function() conn:watch_once('a', {zz=1}) return 1 end,
        function() future:wait_result('x') return 1 end,
        function() future:pairs('x') return 1 end,
        function() future.result(5) return 1 end,
        function() future.wait_result(5) return 1 end,
        function() future.discard(5) return 1 end,
        function() net.connect() return 1 end,
        function() net.connect('a:b:c:d') return 1 end,
        function() net.connect('a:1', {zz=1}) return 1 end,
        function() net.connect('a:1', {password='x'}) return 1 end,
        function() net.connect('a:1', {console=true}) return 1 end,
        function() net.connect('a:1', {auth_type='x'}) return 1 end,
        function() net.from_fd('x') return 1 end,
        function() net.from_fd(-1) return 1 end,
        function() net.timeout(1).connect() return 1 end,
        function() net.self:call('nosuch') return 1 end,
        function() net.self:call('nosuch', 5) return 1 end,
        function() net.self.call('nosuch', 5) return 1 end,
        function() net.self:eval("error 'x'") return 1 end,
        function() net.self:eval('!!') return 1 end,
        function() tuple:update(5) return 1 end,
        function() tuple:update({{'+', 9, 9}}) return 1 end,
        function() tuple:totable('x') return 1 end,
        function() tuple:next('x') return 1 end,
        function() tuple:slice('x') return 1 end,
        function() tuple.slice('x') return 1 end,
        function() tuple:transform('x') return 1 end,
        function() conn:call('x',{}, {_thread_id=-1}) return 1 end,
        function() conn.ping('x',{}, {_thread_id=-1}) return 1 end,
        function() conn.on_connect('x',{}, {_thread_id=-1}) return 1 end,
        function() conn.new_stream('x',{}, {_thread_id=-1}) return 1 end,
        function() conn.call({}) return 1 end,
        function() conn.wait_state(6) return 1 end,
    }

    it('names the line that called', function()
        for _, case in ipairs(CASES) do
            local ok, err = pcall(case)
            local line = debug.getinfo(case).linedefined
            assert.is_false(ok, 'line ' .. line)
            if type(err) == 'string' then
                assert.equal('spec/38-places_spec.lua:' .. line, err:match '^(.-:%d+): ', err)
            else
                local place = err.trace[1]
                assert.equal('spec/38-places_spec.lua:' .. line, place.file .. ':' .. place.line, err.message)
                assert.is_nil(err.message:find('%.lua:%d+'))
            end
        end
    end)

    it('of a server keeps the place it has there', function()
        local _, err = pcall(conn.call, conn, 'nosuch')
        assert.equal("Procedure 'nosuch' is not defined", err.message)
        assert.is_nil(err.trace[1].file:find('38-places', 1, true))
    end)
end)
