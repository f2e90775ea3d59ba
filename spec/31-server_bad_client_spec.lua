-- Clients that break the rules: each malformed packet gets Tarantool's answer, the others are served, memory is bounded.
local helpers = require 'spec.helpers'
local client = require 'spec.server_helpers'
local fiber = require 'cord.fiber'
local server = require 'cord.server'

local function path() return 'unix/:' .. helpers.tempdir() .. '/s' end

local function framed(bytes) return '\206' .. client.be32(#bytes) .. bytes end

-- Header and body as bytes: {request type, sync} = 82 00 type 01 sync.
local function header(kind, sync) return '\130\0' .. string.char(kind) .. '\1' .. string.char(sync or 7) end

local SELECT, INSERT, UPDATE, DELETE, CALL, AUTH, EVAL, UPSERT, PREPARE, PING, ID, WATCH =
    1, 2, 4, 5, 10, 7, 8, 9, 13, 64, 73, 74

-- {what, packet after its length, error code, message, sync of the answer}: the connection goes on after each.
local MALFORMED = {
    { 'a header that is no map', '\147\1\2\3', 20, 'Invalid MsgPack - packet header', 0 },
    { 'a header cut short', '\130\0\64\1', 20, 'Invalid MsgPack - packet header', 0 },
    { 'an empty packet', '', 20, 'Invalid MsgPack - packet header', 0 },
    { 'a request type that is text', '\130\1\9\0\161x', 20, 'Invalid MsgPack - packet header', 9 },
    { 'a sync that is text', '\130\0\64\1\161x', 20, 'Invalid MsgPack - packet header', 0 },
    { 'a body that is no map', header(CALL) .. '\145\1', 20, 'Invalid MsgPack - packet body', 7 },
    { 'a body cut short', header(CALL) .. '\130\34\161f', 20, 'Invalid MsgPack - packet body', 7 },
    { 'a function name that is a number', header(CALL) .. '\130\34\5\33\144', 20, 'Invalid MsgPack - packet body', 7 },
    { 'arguments that are a map', header(CALL) .. '\130\34\161f\33\128', 20, 'Invalid MsgPack - packet body', 7 },
    { 'CALL without a body', header(CALL), 20, 'Invalid MsgPack - missing request body', 7 },
    { 'CALL without a name', header(CALL) .. '\129\33\144', 69, "Missing mandatory field 'FUNCTION_NAME' in request", 7 },
    { 'EVAL without an expression', header(EVAL) .. '\129\33\144', 69, "Missing mandatory field 'EXPR' in request", 7 },
    { 'SELECT without a space', header(SELECT) .. '\130\18\1\32\144', 69,
        "Missing mandatory field 'SPACE_ID' in request", 7 },
    { 'SELECT without a limit', header(SELECT) .. '\130\16\1\32\144', 69, "Missing mandatory field 'LIMIT' in request", 7 },
    { 'SELECT without a key', header(SELECT) .. '\130\16\1\18\1', 69, "Missing mandatory field 'KEY' in request", 7 },
    { 'INSERT without a tuple', header(INSERT) .. '\129\16\1', 69, "Missing mandatory field 'TUPLE' in request", 7 },
    { 'UPDATE without a key', header(UPDATE) .. '\130\16\1\33\144', 69, "Missing mandatory field 'KEY' in request", 7 },
    { 'DELETE without a key', header(DELETE) .. '\129\16\1', 69, "Missing mandatory field 'KEY' in request", 7 },
    { 'UPSERT without operations', header(UPSERT) .. '\130\16\1\33\144', 69,
        "Missing mandatory field 'OPS' in request", 7 },
    { 'a space that is not there', header(SELECT) .. '\131\16\205\3\231\18\1\32\144', 36,
        "Space '999' does not exist", 7 },
    { 'a space name that is not there', header(SELECT) .. '\131\94\161x\18\1\32\144', 36, "Space 'x' does not exist", 7 },
    { 'AUTH without a body', header(AUTH), 20, 'Invalid MsgPack - missing request body', 7 },
    { 'AUTH without a user', header(AUTH) .. '\129\33\144', 69, "Missing mandatory field 'USER_NAME' in request", 7 },
    { 'AUTH without a scramble', header(AUTH) .. '\130\35\161u\33\145\169chap-sha1', 20,
        'Invalid MsgPack - authentication request body', 7 },
    { 'AUTH by an unknown method', header(AUTH) .. '\130\35\161u\33\146\161m\161s', 249,
        "Unknown authentication method 'm'", 7 },
    { 'a scramble that is a number', header(AUTH) .. '\130\35\161u\33\146\169chap-sha1\5', 251,
        "Invalid 'chap-sha1' request: scramble must be string", 7 },
    { 'a scramble too short', header(AUTH) .. '\130\35\161u\33\146\169chap-sha1\161s', 251,
        "Invalid 'chap-sha1' request: invalid scramble size", 7 },
    { 'ID without a body', header(ID), 20, 'Invalid MsgPack - request body', 7 },
    { 'ID whose body is no map', header(ID) .. '\5', 20, 'Invalid MsgPack - request body', 7 },
    { 'WATCH without a key', header(WATCH) .. '\128', 69, "Missing mandatory field 'EVENT_KEY' in request", 7 },
    { 'an unknown request type', header(100), 48, 'Unknown request type 100', 7 },
    { 'a huge request type', '\130\0\206\255\255\255\255\1\7', 48, 'Unknown request type 4294967295', 7 },
    { 'SQL', header(11) .. '\130\64\168SELECT 1\65\144', 48, 'Unknown request type 11', 7 },
    { 'a statement to prepare', header(PREPARE) .. '\129\64\168SELECT 1', 48, 'Unknown request type 13', 7 },
    { 'BEGIN out of a stream', header(14), 230, 'Unable to process BEGIN request out of stream', 7 },
    { 'COMMIT out of a stream', header(15), 230, 'Unable to process COMMIT request out of stream', 7 },
    { 'AUTH in a stream', '\131\0\7\1\7\10\5' .. '\130\35\161u\33\144', 229, 'Unable to process AUTH request in stream', 7 },
    { 'WATCH in a stream', '\131\0\74\1\7\10\5' .. '\129\87\161k', 229, 'Unable to process WATCH request in stream', 7 },
    { 'a thread that is not there', '\131\0\64\1\7\11\5', 299, 'Thread does not exist', 7 },
    { 'another schema version', '\131\0\64\1\7\5\205\3\231', 109, nil, 7 },
}

describe('a server with a bad client', function()
    local srv, conn, good
    setup(function() fiber.sleep(0.001) end)
    before_each(function()
        srv = server.listen(path(), {
            max_packet = 100000, max_unread = 300000, packet_timeout = 0.05, auth_delay = 0.02,
            users = { alice = 'secret', guest = true },
            echo = function(...) return ... end,
            large = function(n) return ('x'):rep(n) end,
        })
        conn, good = client.connect(srv:address()), client.connect(srv:address())
    end)
    after_each(function()
        -- The good client was served all the while.
        local _, body = good:call('echo', 'still here')
        assert.same({ 'still here' }, body[0x30])
        conn:close()
        good:close()
        srv:stop('hard')
    end)
    helpers.no_leftovers()

    for _, case in ipairs(MALFORMED) do
        it('answers ' .. case[1] .. ' and goes on', function()
            assert(conn:send(framed(case[2])))
            local head, body = conn:response()
            assert.is_truthy(head)
            assert.equal(case[3], head[0] - 0x8000)
            assert.equal(case[5], head[1])
            if case[4] then assert.equal(case[4], body[0x31]) end
            assert.equal(body[0x31], body[0x52][0][1][3])
            assert.equal(0, (conn:ask(PING))[0])
        end)
    end

    for _, case in ipairs {
        { 'a length that is no number', '\161x', 'Invalid MsgPack - packet length' },
        { 'a length of 2 GiB', '\206\127\255\255\255', 'Invalid MsgPack - too big packet size in the header: 2147483647' },
        { 'a length of 64 bits', '\207' .. ('\255'):rep(8), 'Invalid MsgPack - too big packet size in the header: 18446744073709551615' },
        { 'a packet over the limit', '\206' .. client.be32(100001), 'Invalid MsgPack - too big packet size in the header: 100001' },
        { 'an HTTP request', 'GET / HTTP/1.1\r\n\r\n', nil },
    } do
        it('answers ' .. case[1] .. ' and closes', function()
            assert(conn:send(case[2]))
            if case[3] then
                local head, body = conn:response()
                assert.equal(20, head[0] - 0x8000)
                assert.equal(0, head[1])
                assert.equal(case[3], body[0x31])
            end
            assert.is_true(conn:closed())
        end)
    end

    it('closes one that dawdles, though somebody cancels every fiber', function()
        for id in pairs(fiber.info()) do
            if id ~= fiber.id() then pcall(fiber.cancel, id) end
        end
        local other = client.connect(srv:address())
        other:send '\206\0\0'
        assert.is_true(other:closed(4))
        other:close()
    end)

    it('survives random bytes', function()
        math.randomseed(42)
        for round = 1, 200 do
            local other = client.connect(srv:address())
            local bytes = {}
            for i = 1, 100 do bytes[i] = string.char(math.random(0, 255)) end
            local text = table.concat(bytes)
            other:send(round % 2 == 0 and framed(text) or text, 0.2)
            if round % 20 == 0 then fiber.sleep(0.001) end
            other:close()
        end
        fiber.sleep(0.01)
        assert.equal(2, srv:stat().connections.current)
    end)

    it('survives every prefix of a valid packet followed by the end', function()
        local packet = client.packet({ [0] = CALL, [1] = 1 }, { [0x22] = 'echo', [0x21] = { 1, { 'x' } } })
        for cut = 0, #packet do
            local other = client.connect(srv:address())
            other:send(packet:sub(1, cut))
            other:shutdown()
            assert.is_true(other:closed())
            other:close()
        end
    end)

    it('answers what came before the client shut its side down', function()
        conn:request(PING)
        conn:shutdown()
        assert.equal(0, (conn:response())[0])
        assert.is_true(conn:closed())
    end)

    it('closes a client whose packet does not come to an end', function()
        conn:send(framed(('x'):rep(100)):sub(1, 50))
        fiber.sleep(1.2)
        assert.is_true(conn:closed(2))
        assert.equal(1, srv:stat().connections.current)
    end)

    it('does not answer a client that reads nothing beyond its limit, and loses nothing', function()
        local packets = {}
        for i = 1, 100 do
            packets[i] = client.packet({ [0] = CALL, [1] = i }, { [0x22] = 'large', [0x21] = { 50000 } })
        end
        assert(conn:send(table.concat(packets)))
        fiber.sleep(0.05)
        assert.is_true(srv:stat().sent < 3000000)
        for i = 1, 100 do
            local head, body = conn:response()
            assert.equal(i, head[1])
            assert.equal(50000, #body[0x30][1])
        end
    end)

    it('has a handler that pushes wait for a client that does not read', function()
        local pushed = 0
        srv.functions.pour = function()
            for i = 1, 100 do
                server.push(('x'):rep(50000))
                pushed = i
            end
        end
        conn:request(CALL, { [0x22] = 'pour', [0x21] = {} })
        fiber.sleep(0.05)
        assert.is_true(pushed < 60, pushed)
        for _ = 1, 100 do assert.equal(128, (conn:response())[0]) end
        assert.equal(0, (conn:response())[0])
    end)

    it('answers failed logins late, and those that come meanwhile without looking', function()
        local auth = client.auth
        local begin = helpers.now()
        for i = 1, 20 do conn:request(AUTH, auth(conn, 'alice', 'guess' .. i)) end
        conn:request(AUTH, auth(conn, 'alice', 'secret'))
        for _ = 1, 21 do
            local head, body = conn:response()
            assert.equal(47, head[0] - 0x8000)
            assert.equal('User not found or supplied credentials are invalid', body[0x31])
        end
        assert.is_true(helpers.now() - begin >= 0.02)
        assert.equal(0, (conn:ask(AUTH, auth(conn, 'alice', 'secret')))[0])
        -- As guest again: an empty tuple.
        assert.equal(0, (conn:ask(AUTH, { [0x23] = 'guest', [0x21] = {} }))[0])
        local head, body = conn:ask(AUTH, auth(conn, 'nobody', ''))
        assert.equal(47, head[0] - 0x8000)
        assert.equal('User not found or supplied credentials are invalid', body[0x31])
    end)

    it('takes no more clients than it may', function()
        local small = server.listen(path(), { max_connections = 2 })
        local a, b = client.connect(small:address()), client.connect(small:address())
        local c = client.connect(small:address(), { greeting = false })
        assert.is_true(c:closed())
        a:close()
        fiber.sleep(0.01)
        local d = client.connect(small:address())
        assert.equal(128, #d.greeting)
        for _, one in ipairs { b, c, d } do one:close() end
        small:stop('hard')
    end)

    it('runs no more requests at once than it may, and all in the end', function()
        local running, most = 0, 0
        local small = server.listen(path(), { net_msg_max = 3, work = function(x)
            running = running + 1
            most = math.max(most, running)
            fiber.sleep(0.001)
            running = running - 1
            return x
        end })
        local a, b = client.connect(small:address()), client.connect(small:address())
        for i = 1, 30 do
            a:request(CALL, { [0x22] = 'work', [0x21] = { i } })
            b:request(CALL, { [0x22] = 'work', [0x21] = { i } })
        end
        for _ = 1, 30 do
            assert.equal(0, (a:response())[0])
            assert.equal(0, (b:response())[0])
        end
        assert.equal(3, most)
        a:close()
        b:close()
        small:stop('hard')
    end)

    it('lets a client with a slow handler delay nobody', function()
        local seen
        srv.functions.wait = function()
            fiber.sleep(0.05)
            seen = true
        end
        conn:request(CALL, { [0x22] = 'wait', [0x21] = {} })
        for i = 1, 10 do
            local _, body = good:call('echo', i)
            assert.same({ i }, body[0x30])
        end
        assert.is_nil(seen)
        conn:response()
        assert.is_true(seen)
    end)
end)
