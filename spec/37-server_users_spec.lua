-- Users and grants: what each may do and see, with Tarantool's texts, over net.box.
local helpers = require 'spec.helpers'
local client = require 'spec.server_helpers'
local fiber = require 'cord.fiber'
local netbox = require 'cord.netbox'
local server = require 'cord.server'

describe('A user of a server', function()
    local srv, conns
    setup(function() fiber.sleep(0.001) end)
    before_each(function()
        conns = {}
        srv = server.listen('unix/:' .. helpers.tempdir() .. '/s', {
            eval = true,
            echo = function(...) return ... end,
            users = {
                admin = 'secret',
                app = { password = 'p', grants = { execute = { 'echo', 'byref' }, read = { 't' }, write = { 't', 'later' } } },
                reader = { password = 'r', grants = { execute = true, read = { 't' }, eval = true } },
            },
        })
        srv:create_space('t'):create_index('pk', { sequence = true })
        srv:create_space('hidden'):create_index('pk')
        srv:func('byref', function() return 5 end)
    end)
    after_each(function()
        for _, conn in pairs(conns) do conn:close() end
        srv:stop 'hard'
    end)

    local function connect(user, password, options)
        options = options or {}
        options.user, options.password = user, password
        local conn = netbox.connect(srv:address(), options)
        assert.is_nil(conn.error)
        conns[#conns + 1] = conn
        return conn
    end

    local function rows(conn, view)
        local list = {}
        for i, row in ipairs(conn.space[view]:select()) do list[i] = tostring(row) end
        return list
    end

    local function refusal(f, ...)
        local fine, err = pcall(f, ...)
        assert.is_false(fine)
        return { err.type, err.code, err.message }
    end

    it('may do what it was granted, and is told what not', function()
        local app = connect('app', 'p')
        assert.same({ 1, 'x' }, { app.space.t:insert { nil, 'x' }[1], app:call('echo', { 'x' }) })
        assert.equal(5, app:call 'byref')
        local other = connect('app', 'p', { fetch_schema = false })
        assert.same({ 'AccessDeniedError', 42, "Read access to space 'hidden' is denied for user 'app'" },
            refusal(function() return other.space.hidden:select() end))
        assert.same({ 'AccessDeniedError', 42, "Write access to space 'hidden' is denied for user 'app'" },
            refusal(function() return other.space.hidden:replace { 1 } end))
        assert.same({ 'AccessDeniedError', 42, "Read access to space '_user' is denied for user 'app'" },
            refusal(function() return other.space._user:select() end))
        assert.same({ 'AccessDeniedError', 42, "Execute access to function 'other' is denied for user 'app'" },
            refusal(app.call, app, 'other'))
        assert.same({ 'AccessDeniedError', 42, "Execute access to universe '' is denied for user 'app'" },
            refusal(app.eval, app, 'return 1'))
        local reader = connect('reader', 'r')
        assert.equal(1, reader:eval 'return 1')
        assert.same({ 'AccessDeniedError', 42, "Write access to space 't' is denied for user 'reader'" },
            refusal(function() return reader.space.t:delete(1) end))
    end)

    it('counts only what it may read', function()
        local reader = connect('reader', 'r')
        assert.equal(0, reader.space.t.index.pk:count())
        assert.same({ 'AccessDeniedError', 42, "Read access to space 'hidden' is denied for user 'reader'" },
            refusal(reader.call, reader, 'box.space.hidden:count'))
        assert.equal(0, connect('admin', 'secret').space.hidden.index.pk:count())
    end)

    it('sees the spaces it has grants for, as in Tarantool', function()
        local function seen(conn)
            local list = {}
            for _, name in ipairs { 't', 'hidden', 'later', '_space', '_vspace' } do
                if conn.space[name] then list[#list + 1] = name end
            end
            return table.concat(list, ' ')
        end
        local app, admin = connect('app', 'p'), connect('admin', 'secret')
        assert.equal('t _vspace', seen(app))
        assert.equal('t hidden _space _vspace', seen(admin))
        assert.equal('_vspace', seen(connect()))
        srv:create_space 'later'
        app:reload_schema()
        assert.equal('t later _vspace', seen(app))
        assert.same({ "[512, 1, true, 0, '']" }, rows(app, '_vspace_sequence'))
        assert.equal(1, #rows(app, '_vsequence'))
        assert.same({}, rows(connect(), '_vspace_sequence'))
        -- What is left out does not count for limit and offset.
        local two = app.space._vspace:select({}, { limit = 2, offset = 1 })
        assert.same({ 281, 286 }, { two[1][1], two[2][1] })
    end)

    it('finds itself, its grants and its functions in the views', function()
        local app = connect('app', 'p')
        local id = app.space._vuser.index.name:get('app')[1]
        assert.same({ "[2, 1, 'public', 'role', {}, [], 0]", ("[%d, 1, 'app', 'user', {}, [], 0]"):format(id) },
            rows(app, '_vuser'))
        local function grants(...)
            local list = {}
            for i, text in ipairs { ... } do list[i] = ('[1, %d, %s]'):format(id, text) end
            return list
        end
        local by_id = ("'function', %d, 4"):format(app.space._vfunc:select()[1].id)
        assert.same(grants(by_id, "'lua_call', 'echo', 4", "'role', 2, 4", "'space', 512, 3", "'universe', 0, 24"),
            rows(app, '_vpriv'))
        assert.equal('byref', app.space._vfunc:select()[1].name)
        srv:user('app', { password = 'p', grants = { execute = true, read = true, eval = true } })
        assert.same(grants("'function', '', 4", "'lua_call', '', 4", "'lua_eval', '', 4", "'role', 2, 4", "'space', '', 1",
            "'universe', 0, 24"), rows(app, '_vpriv'))
        assert.same({ '[1, 0, \'role\', 2, 4]', '[1, 0, \'universe\', 0, 24]' }, rows(connect(), '_vpriv'))
    end)

    it('is hidden once it is dropped, and may and sees nothing', function()
        local admin, app = connect('admin', 'secret'), connect('app', 'p')
        assert.is_truthy(admin.space._vuser.index.name:get 'app')
        srv:drop_user 'app'
        assert.is_nil(admin.space._vuser.index.name:get 'app')
        assert.same({}, rows(app, '_vpriv'))
        assert.equal("Execute access to function 'echo' is denied for user 'app'", refusal(app.call, app, 'echo')[3])
        srv:func('byref'):drop()
        assert.same({}, rows(admin, '_vfunc'))
    end)

    it('is refused by an on_auth trigger that raises, and no request overtakes the triggers', function()
        local order = {}
        srv.functions.who = function()
            order[#order + 1] = 'call'
            return server.session().user, server.session().storage.seen
        end
        srv:user('app', { password = 'p', grants = { execute = true } })
        local trigger = srv:on_auth(function(session, user, fine)
            order[#order + 1] = user .. ' ' .. tostring(fine) .. ' ' .. tostring(session.user)
            fiber.sleep(0.01)
            session.storage.seen = user
            if user == 'reader' then error('not today', 0) end
        end)
        local raw = client.connect(srv:address())
        raw:request(7, client.auth(raw, 'app', 'p'))
        raw:request(10, { [0x22] = 'who', [0x21] = {} })
        local first, second = raw:response(), select(2, raw:response())
        assert.equal(0, first[0])
        assert.same({ 'app', 'app' }, second[0x30])
        assert.same({ 'app true app', 'call' }, order)
        -- The client stays who it was.
        local _, refused = raw:ask(7, client.auth(raw, 'reader', 'r'))
        assert.equal('not today', refused[0x31])
        assert.same({ 'app', 'reader' }, select(2, raw:call 'who')[0x30])
        assert.equal(47, (raw:ask(7, client.auth(raw, 'reader', 'wrong')))[0] % 0x8000)
        assert.equal('reader false app', order[#order])
        raw:close()
        srv:on_auth(nil, trigger)
        connect('reader', 'r')
    end)

    it('has one session for triggers and handlers', function()
        local seen = {}
        srv:on_connect(function(session) session.storage.n = session.id end)
        srv:on_disconnect(function(session) seen[#seen + 1] = { session.id, session.storage.n, session.storage.called } end)
        srv.functions.called = function()
            server.session().storage.called = true
            return server.session().storage.n
        end
        srv:user('app', { password = 'p', grants = { execute = true } })
        local one, two = connect('app', 'p'), connect('app', 'p')
        local id = one:call 'called'
        one:close()
        two:close()
        local deadline = helpers.now() + 5
        while #seen < 2 and helpers.now() < deadline do fiber.sleep(0.001) end
        table.sort(seen, function(a, b) return a[1] < b[1] end)
        assert.same({ { id, id, true }, { id + 1, id + 1 } }, seen)
    end)

    it('may do everything where no users are named', function()
        local open = server.listen('unix/:' .. helpers.tempdir() .. '/o', {})
        local conn = netbox.connect(open:address())
        conns[#conns + 1] = conn
        assert.same({ "[1, 0, 'role', 2, 4]", "[1, 0, 'role', 31, 4]", "[1, 0, 'universe', 0, 24]" },
            { unpack(rows(conn, '_vpriv'), 1, 3) })
        open:stop 'hard'
    end)
end)
