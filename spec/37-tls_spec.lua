-- TLS, with Tarantool Enterprise's parameters: our client and our server with each other, and each with OpenSSL (Python's
-- ssl and the Python connector). The certificates are made by spec/fixtures/tls/make.sh.
local helpers = require 'spec.helpers'
local client = require 'spec.server_helpers'
local fiber = require 'cord.fiber'
local net = require 'cord.netbox'
local server = require 'cord.server'
local socket = require 'cord.socket'

local PYTHON = os.getenv 'PYTHON' or 'python3'
local function file(name) return 'spec/fixtures/tls/' .. name end

-- Parameters of either side: a string value names a file of the fixtures, unless its key says that it is none.
local function params(list)
    local result = { transport = 'ssl' }
    for key, value in pairs(list or {}) do
        result['ssl_' .. key] = key:find '_file$' and not value:find '^/' and file(value) or value
    end
    return result
end

local function identity(name, more)
    local list = { cert_file = name .. '.crt', key_file = name .. '.key' }
    for key, value in pairs(more or {}) do list[key] = value end
    return list
end

describe('TLS', function()
    local srv, others

    setup(function()
        fiber.sleep(0.001)
        require('cord.socket').getaddrinfo('localhost', 1)
    end)
    before_each(function() others = {} end)
    after_each(function()
        for _, what in ipairs(others) do what:close() end
        if srv then srv:stop 'hard' end
        srv = nil
    end)
    helpers.no_leftovers(5)

    local function handlers(more)
        local list = {
            echo = function(...) return ... end,
            slow = function(seconds)
                fiber.sleep(seconds)
                return 'slept'
            end,
            user = function() return server.session().user end,
            pusher = function()
                for i = 1, 3 do server.push(i) end
                return 'done'
            end,
        }
        for key, value in pairs(more or {}) do list[key] = value end
        return list
    end

    local function listen(ours, more, address)
        srv = server.listen({ uri = address or '127.0.0.1:0', params = params(ours or identity 'server') }, handlers(more))
        return srv
    end

    local function connect(ours, opts, address)
        opts = opts or {}
        opts.connect_timeout = opts.connect_timeout or 5
        local conn = net.connect({ uri = address or srv:address(), params = params(ours) }, opts)
        others[#others + 1] = conn
        return conn
    end

    -- A TCP server in this process: `f(socket)` for each client.
    local function tcp(f)
        local listener = socket.tcp_server('127.0.0.1', 0, f)
        others[#others + 1] = listener
        return '127.0.0.1:' .. listener:name().port
    end

    -- A relay to `address` that passes `chunk` bytes at a time and ends after `limit` bytes from the server.
    local function relay(address, chunk, limit)
        local host, port = address:match '^(.*):(%d+)$'
        return tcp(function(near)
            local far = socket.tcp_connect(host, tonumber(port))
            local over = false
            local function pump(from, to, most)
                while not over and (most == nil or most > 0) do
                    local bytes = from:sysread(math.min(chunk, most or chunk))
                    if bytes == nil then
                        if not from:readable(0.2) and over then break end
                    elseif bytes == '' then
                        break
                    else
                        to:write(bytes)
                        most = most and most - #bytes
                    end
                end
                over = true
            end
            local back = fiber.new(pump, far, near, limit)
            back:set_joinable(true)
            pump(near, far)
            back:join()
            far:close()
        end)
    end

    local function state(ours, opts, address)
        local conn = connect(ours, opts, address)
        return conn.state, conn.error
    end

    -- ------------------------------------------------------------------------------------------- what users type

    it('encrypts with the parameters in a table, in the query, and over a unix socket', function()
        listen()
        assert.equal('active', (state()))
        local conn = net.connect(srv:address() .. '?transport=ssl&ssl_ca_file=' .. file 'ca.crt')
        assert.same({ 1, 'x' }, { conn:call('echo', { 1, 'x' }) })
        conn:close()
        srv:stop 'hard'
        local path = 'unix/:' .. helpers.tempdir() .. '/s'
        listen(nil, nil, path)
        conn = connect({ ca_file = 'ca.crt' }, nil, path)
        assert.equal(7, conn:call('echo', { 7 }))
        conn:close()
        conn = net.connect(path .. '?transport=ssl')
        assert.equal(8, conn:call('echo', { 8 }))
        conn:close()
    end)

    it('may be one of several addresses of a server', function()
        srv = server.listen({ '127.0.0.1:0', { uri = '127.0.0.1:0', params = params(identity 'server') } }, handlers())
        local plain, secure = srv:address()
        local one, two = net.connect(plain), connect(nil, nil, secure)
        assert.equal(1, one:call('echo', { 1 }))
        assert.equal(2, two:call('echo', { 2 }))
        assert.equal(2, srv:stat().connections.current)
        one:close()
    end)

    it('refuses what makes no sense where connect and listen are called', function()
        local function refused(text, ours, make)
            local ok, err = pcall(make or connect, ours, nil, '127.0.0.1:1')
            assert.is_false(ok)
            assert.equal(text, tostring(err))
            assert.equal('IllegalParams', err.type)
        end
        local function refused_listen(text, ours)
            return refused('server.listen: ' .. text, ours, function() return listen(ours) end)
        end
        refused("unexpected parameter 'ssl_cafile'", { cafile = 'x' })
        refused("ssl_ca_file '/nonexistent': No such file or directory", { ca_file = '/nonexistent' })
        refused("ssl_ca_file '" .. file 'server.key' .. "': no PEM certificate in it", { ca_file = 'server.key' })
        refused("ssl_cert_file '" .. file 'make.sh' .. "': no PEM certificate in it",
            { cert_file = 'make.sh', key_file = 'client.key' })
        -- What might never end is not read at all.
        local dir = helpers.tempdir()
        assert(os.execute(("mkfifo '%s/fifo' && truncate -s 17M '%s/huge'"):format(dir, dir)) == 0)
        for name, problem in pairs {
            [dir] = 'Is a directory', ['/dev/zero'] = 'not a regular file', [dir .. '/fifo'] = 'not a regular file',
            [dir .. '/huge'] = 'longer than 16 MB',
        } do
            refused(("ssl_ca_file '%s': %s"):format(name, problem), { ca_file = name })
            refused_listen(("ssl_key_file '%s': %s"):format(name, problem), { cert_file = 'server.crt', key_file = name })
            refused_listen(("ssl_password_file '%s': %s"):format(name, problem), identity('server', { password_file = name }))
        end
        refused('ssl_cert_file needs ssl_key_file', { cert_file = 'client.crt' })
        refused('ssl_key_file needs ssl_cert_file', { key_file = 'client.key' })
        refused("ssl_key_file '" .. file 'client.crt' .. "': no PEM private key in it",
            { cert_file = 'client.crt', key_file = 'client.crt' })
        refused(("ssl_key_file '%s': does not match the certificate of ssl_cert_file '%s'"):format(file 'server.key',
            file 'client.crt'), { cert_file = 'client.crt', key_file = 'server.key' })
        refused('ssl_server_name needs ssl_ca_file: without it no certificate is verified', { server_name = 'db.example' })
        refused("ssl_server_name: 'no name' is no host name", { server_name = 'no name', ca_file = 'ca.crt' })
        local suites = 'TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:'
            .. 'ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES128-GCM-SHA256:'
            .. 'ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305'
        refused('ssl_ciphers: unknown or unsupported GOST2012-GOST8912-GOST8912:RC4-MD5; supported are ' .. suites,
            { ciphers = 'ECDHE-RSA-AES256-GCM-SHA384:GOST2012-GOST8912-GOST8912:RC4-MD5' })
        refused_listen('ssl_cert_file and ssl_key_file are mandatory for a server', {})
        refused_listen("ssl_key_file '/nonexistent': No such file or directory",
            { cert_file = 'server.crt', key_file = '/nonexistent' })
        refused_listen("ssl_server_name is a client's parameter", identity('server', { server_name = 'x' }))
        for _, make in ipairs { net.connect, function(uri) return server.listen(uri, {}) end } do
            local prefix = make == net.connect and '' or 'server.listen: '
            local ok, err = pcall(make, '127.0.0.1:1?transport=tls')
            assert.same({ false, prefix .. 'Invalid transport: tls' }, { ok, tostring(err) })
            ok, err = pcall(make, '127.0.0.1:1?ssl_ca_file=x')
            assert.same({ false, prefix .. "parameter 'ssl_ca_file' needs transport=ssl" }, { ok, tostring(err) })
            for _, name in ipairs { 'ssl_ca_file', 'ssl_cert_file', 'ssl_ciphers' } do
                ok, err = pcall(make, { uri = '127.0.0.1:1', params = { transport = 'ssl', [name] = '' } })
                assert.same({ false, prefix .. "parameter '" .. name .. "' is empty" }, { ok, tostring(err) })
            end
        end
        -- What a configuration may leave there when encryption is switched off.
        srv = server.listen('127.0.0.1:0?transport=plain&ssl_cert_file=x', handlers())
        local conn = net.connect(srv:address() .. '?transport=plain&ssl_ca_file=x')
        assert.equal('active', conn.state)
        conn:close()
    end)

    -- ------------------------------------------------------------------------------------------- keys

    it('takes keys of all usual forms', function()
        local cases = {
            { 'server.crt', 'server-sec1.key' },
            { 'rsa.crt', 'rsa.key' },
            { 'rsa.crt', 'rsa-pkcs1.key' },
            { 'server.crt', 'server-encrypted.key', password = 'secret' },
            { 'server.crt', 'server-encrypted.key', password_file = 'passwords' },
            { 'server.crt', 'server-encrypted.key', password = 'wrong', password_file = 'passwords' },
            { 'server.crt', 'server-scrypt.key', password = 'secret' },
            -- Not needed, so not looked at.
            { 'server.crt', 'server.key', password = 'wrong' },
        }
        for _, case in ipairs(cases) do
            listen { cert_file = case[1], key_file = case[2], password = case.password, password_file = case.password_file }
            assert.equal('active', (state { ca_file = 'ca.crt' }))
            srv:stop 'hard'
        end
    end)

    it('says what is wrong with an encrypted key', function()
        local function problem(key, more)
            local ours = { cert_file = key:find '^rsa' and 'rsa.crt' or 'server.crt', key_file = key }
            for name, value in pairs(more or {}) do ours[name] = value end
            local ok, err = pcall(listen, ours)
            assert.is_false(ok)
            return (tostring(err):gsub("^server.listen: ssl_key_file '[^']*': ", ''))
        end
        assert.equal('the key is encrypted: ssl_password or ssl_password_file is needed', problem 'server-encrypted.key')
        assert.equal('the key is encrypted, and no password of ssl_password and ssl_password_file fits',
            problem('server-encrypted.key', { password = 'wrong' }))
        assert.equal("the key is encrypted in OpenSSL's old format, which is not supported; "
            .. "'openssl pkcs8 -topk8 -in KEY -out NEW' makes one that is", problem('rsa-legacy.key', { password = 'secret' }))
        assert.is_truthy(problem('server-pbes1.key', { password = 'secret' })
            :find '^the key is encrypted in a way that is not supported')
    end)

    -- ------------------------------------------------------------------------------------------- who is trusted

    local FAILED = 'TLS handshake: '

    it("verifies the server's chain with ssl_ca_file, and nothing without", function()
        listen(identity 'stranger')
        assert.equal('active', (state()))
        assert.same({ 'error', FAILED .. "the peer's certificate is not signed by a CA of ssl_ca_file" },
            { state { ca_file = 'ca.crt' } })
        assert.equal('active', (state { ca_file = 'other-ca.crt' }))
        srv:stop 'hard'
        listen(identity 'expired')
        assert.equal('active', (state()))
        assert.same({ 'error', FAILED .. "the peer's certificate has expired" }, { state { ca_file = 'ca.crt' } })
        srv:stop 'hard'
        -- An intermediate authority, sent along.
        listen { cert_file = 'chain.crt', key_file = 'leaf.key' }
        assert.equal('active', (state { ca_file = 'ca.crt' }))
        srv:stop 'hard'
        -- Signed with its own key, and trusted as such.
        listen(identity 'self')
        assert.equal('active', (state { ca_file = 'self.crt' }))
        assert.equal('error', (state { ca_file = 'ca.crt' }))
        srv:stop 'hard'
        -- Version 1 has no extensions: good enough where nothing is verified.
        listen(identity 'v1')
        assert.equal('active', (state()))
        assert.equal('error', (state { ca_file = 'ca.crt' }))
    end)

    it('verifies the name only when asked to', function()
        listen()
        assert.equal('active', (state { ca_file = 'ca.crt' }))
        assert.equal('active', (state { ca_file = 'ca.crt', server_name = 'db.example' }))
        assert.same({ 'error', FAILED .. "the peer's certificate is not for the name of ssl_server_name" },
            { state { ca_file = 'ca.crt', server_name = 'other.example' } })
    end)

    it('demands certificates of clients with ssl_ca_file on the server', function()
        listen(identity('server', { ca_file = 'ca.crt' }))
        for _, ciphers in ipairs { 'TLS_AES_256_GCM_SHA384', 'ECDHE-ECDSA-AES256-GCM-SHA384' } do
            local conn = connect(identity('client', { ca_file = 'ca.crt', ciphers = ciphers }))
            assert.equal(5, conn:call('echo', { 5 }))
            local result, problem = state { ciphers = ciphers }
            assert.equal('error', result)
            assert.is_truthy(problem:find('the peer refused it', 1, true), problem)
            result, problem = state(identity('stranger', { ciphers = ciphers }))
            assert.equal('error', result)
            assert.is_truthy(problem:find('the peer refused it: our certificate is of a CA it does not know', 1, true), problem)
        end
        assert.equal(2, srv:stat().connections.current)
    end)

    it('uses the named cipher suites and no others', function()
        listen(identity('rsa', { ciphers = 'ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-CHACHA20-POLY1305' }))
        assert.equal('active', (state()))
        assert.equal('active', (state { ciphers = 'ECDHE-RSA-CHACHA20-POLY1305' }))
        assert.same({ 'error', FAILED .. 'the peer refused it: nothing in common (handshake_failure)' },
            { state { ciphers = 'ECDHE-RSA-AES256-GCM-SHA384' } })
        assert.same({ 'error', FAILED .. 'the peer refused it: no version of TLS in common (protocol_version)' },
            { state { ciphers = 'TLS_AES_256_GCM_SHA384' } })
    end)

    -- ------------------------------------------------------------------------------------------- handshakes that fail

    it('times out when a plain client waits for the greeting of an encrypted server', function()
        listen()
        local conn = net.connect(srv:address(), { connect_timeout = 0.2 })
        others[#others + 1] = conn
        assert.same({ 'error', 'timed out' }, { conn.state, conn.error })
    end)

    it('says so when the server does not speak TLS', function()
        srv = server.listen('127.0.0.1:0', handlers())
        local conn = connect()
        assert.same({ 'error', FAILED .. 'the peer does not speak TLS' }, { conn.state, conn.error })
        local ok, err = pcall(conn.call, conn, 'echo')
        assert.is_false(ok)
        assert.same({ 77, FAILED .. 'the peer does not speak TLS' }, { err.code, err.message })
    end)

    it('closes clients that speak something else', function()
        listen(nil, { packet_timeout = 0.2 })
        for _, bytes in ipairs { 'GET / HTTP/1.1\r\n\r\n', '\206\0\0\0\10' .. ('x'):rep(10), '\22\3\1\255\255' } do
            local raw = client.connect(srv:address(), { greeting = false })
            raw:send(bytes)
            assert.is_true(raw:closed(4))
            raw:close()
        end
        assert.equal('active', (state()))
    end)

    it('bounds the time a handshake takes, on either side', function()
        local silent = tcp(function(s) s:read(1e6, 3) end)
        local start = helpers.now()
        assert.same({ 'error', 'timed out' }, { state(nil, { connect_timeout = 0.2 }, silent) })
        assert.is_true(helpers.now() - start < 2)
        listen(nil, { packet_timeout = 0.2 })
        local raw = client.connect(srv:address(), { greeting = false })
        raw:send '\22\3\1'
        assert.is_true(raw:closed(4))
        raw:close()
        assert.equal(0, srv:stat().connections.current)
    end)

    it('notices a peer that goes away in the middle', function()
        listen()
        local gone = tcp(function(s) s:read(100, 1) end)
        local result, problem = state(nil, nil, gone)
        assert.equal('error', result)
        assert.is_truthy(problem == FAILED .. 'the peer closed the connection' or problem:find 'Connection reset', problem)
        -- At any byte of what the server says: its hello, the greeting, the replies to the first requests.
        for _, limit in ipairs { 1, 5, 100, 400, 700, 800, 900, 1000, 1100 } do
            local conn = connect({ ca_file = 'ca.crt' }, nil, relay(srv:address(), 1000, limit))
            local ok = pcall(conn.call, conn, 'echo', { ('x'):rep(2000) })
            assert.is_false(ok)
            assert.equal('error', conn.state)
        end
        helpers.wait_until(function()
            fiber.sleep(0.01)
            return srv:stat().connections.current == 0
        end, 5)
        assert.equal(0, srv:stat().connections.current)
    end)

    it('survives bytes that are changed, cut and split on the way', function()
        listen()
        local host, port = srv:address():match '^(.*):(%d+)$'
        local seed = tonumber(os.getenv 'SEED') or 1
        -- A small generator of our own: the same numbers everywhere.
        local function random(n)
            seed = (seed * 16807) % 2147483647
            return seed % n + 1
        end
        local address = tcp(function(near)
            local far = socket.tcp_connect(host, tonumber(port))
            local over, how, at = false, random(3), random(15000)
            local function pump(from, to)
                local n = 0
                while not over do
                    local bytes = from:sysread(random(3) == 1 and random(20) or random(5000))
                    if bytes == nil then
                        from:readable(0.02)
                    elseif bytes == '' or how == 1 and n > at then
                        break
                    else
                        if how == 2 and n < at and n + #bytes >= at then
                            bytes = bytes:sub(1, at - n - 1) .. string.char(random(256) - 1) .. bytes:sub(at - n + 1)
                        end
                        n = n + #bytes
                        if not to:write(bytes) then break end
                    end
                end
                over = true
            end
            local back = fiber.new(pump, far, near)
            back:set_joinable(true)
            pump(near, far)
            back:join()
            far:close()
        end)
        local right, failed, tls = 0, 0, 0
        local done = fiber.cond()
        local running = 20
        for _ = 1, running do
            fiber.create(function()
                for _ = 1, 5 do
                    local conn = net.connect({ uri = address, params = params { ca_file = 'ca.crt' } }, { connect_timeout = 1 })
                    for _ = 1, 3 do
                        local text = ('d'):rep(random(5000))
                        local ok, result = pcall(conn.call, conn, 'echo', { text }, { timeout = 1 })
                        if ok then
                            assert(result == text)
                            right = right + 1
                        else
                            failed = failed + 1
                            if result.prev and result.prev.type == 'SSLError' then
                                assert(result.code == 77 and result.message:find '^TLS: ')
                                tls = tls + 1
                            end
                        end
                    end
                    conn:close()
                end
                running = running - 1
                done:signal()
            end)
        end
        while running > 0 do assert.is_true(done:wait(20)) end
        assert.is_true(right > 25 and failed > 25 and tls > 0, ('%d right, %d failed, %d of TLS'):format(right, failed, tls))
        helpers.wait_until(function()
            fiber.sleep(0.01)
            return srv:stat().connections.current == 0
        end, 5)
        assert.equal(0, srv:stat().connections.current)
    end)

    it('reconnects, and after a failed handshake too', function()
        listen(identity 'stranger')
        local address = srv:address()
        local conn = connect({ ca_file = 'ca.crt' }, { reconnect_after = 0.05, wait_connected = false }, address)
        assert.is_true(conn:wait_state('error_reconnect', 5))
        assert.equal(FAILED .. "the peer's certificate is not signed by a CA of ssl_ca_file", conn.error)
        srv:stop 'hard'
        listen(nil, nil, address)
        assert.is_true(conn:wait_connected(5))
        assert.equal(1, conn:call('echo', { 1 }))
        srv:stop 'hard'
        assert.is_true(conn:wait_state('error_reconnect', 5))
        listen(nil, nil, address)
        assert.equal(2, conn:call('echo', { 2 }, { timeout = 5 }))
    end)

    -- ------------------------------------------------------------------------------------------- bytes

    it('carries a thousand requests in flight, in any order', function()
        listen()
        local conn = connect { ca_file = 'ca.crt' }
        local futures = {}
        for i = 1, 1000 do futures[i] = conn:call('echo', { i, ('x'):rep(i) }, { is_async = true }) end
        for i = 1000, 1, -1 do
            local result = futures[i]:wait_result(10)
            assert.same({ i, i }, { result[1], #result[2] })
        end
        local done = 0
        for i = 1, 1000 do
            fiber.create(function()
                assert(conn:call('slow', { (i % 10) / 1000 }) == 'slept')
                done = done + 1
            end)
        end
        helpers.wait_until(function()
            fiber.sleep(0.01)
            return done == 1000
        end, 20)
        assert.equal(1000, done)
        local pushes = {}
        assert.equal('done', conn:call('pusher', {}, { on_push = table.insert, on_push_ctx = pushes }))
        assert.same({ 1, 2, 3 }, pushes)
    end)

    it('carries 50 MB there and back while others ping', function()
        listen()
        local conn = connect { ca_file = 'ca.crt' }
        local text = ('0123456789abcdef'):rep(50 * 1024 * 1024 / 16)
        local pings, over = 0, false
        local pinger = fiber.new(function()
            while not over do
                if conn:ping { timeout = 10 } then pings = pings + 1 end
                fiber.sleep(0.001)
            end
        end)
        pinger:set_joinable(true)
        local back = conn:call('echo', { text }, { timeout = 60 })
        over = true
        pinger:join()
        assert.is_true(back == text)
        assert.is_true(pings > 0)
    end)

    it('does not mind how the bytes are split', function()
        listen()
        for _, ciphers in ipairs { 'TLS_AES_128_GCM_SHA256', 'ECDHE-ECDSA-AES256-GCM-SHA384' } do
            local conn = connect({ ca_file = 'ca.crt', ciphers = ciphers }, nil, relay(srv:address(), 1))
            assert.equal('active', conn.state)
            local futures = {}
            for i = 1, 20 do futures[i] = conn:call('echo', { i, ('y'):rep(20) }, { is_async = true }) end
            for i = 1, 20 do assert.same({ i, ('y'):rep(20) }, futures[i]:wait_result(10)) end
        end
        local conn = connect({ ca_file = 'ca.crt' }, nil, relay(srv:address(), 1399))
        local text = ('z'):rep(1000000)
        assert.is_true(conn:call('echo', { text }) == text)
    end)

    it('holds back a client that does not read', function()
        listen(nil, { max_unread = 100000 })
        local conn = connect()
        local blob = ('b'):rep(100000)
        local futures = {}
        for i = 1, 100 do futures[i] = conn:call('echo', { blob }, { is_async = true }) end
        for i = 1, 100 do assert.equal(100000, #futures[i]:wait_result(20)[1]) end
        assert.equal(0, srv:stat().in_progress)
    end)

    it('sends what was queued before it closes', function()
        local got = {}
        listen(nil, { note = function(i, text) got[#got + 1] = { i, #text } end })
        local conn = connect()
        for i = 1, 20 do conn:call('note', { i, ('q'):rep(200000) }, { is_async = true }) end
        conn:close()
        helpers.wait_until(function()
            fiber.sleep(0.01)
            return #got == 20
        end, 10)
        assert.equal(20, #got)
        assert.same({ 20, 200000 }, got[20])
    end)

    it('stops gracefully: running requests are answered', function()
        listen()
        local conn = connect()
        local future = conn:call('slow', { 0.2 }, { is_async = true })
        assert.equal(1, conn:call('echo', { 1 }))
        srv:stop()
        assert.same({ 'slept' }, future:wait_result(1))
        conn:wait_state({ error = true, closed = true }, 2)
        assert.same({ 'error', 'Peer closed' }, { conn.state, conn.error })
    end)

    it('encrypts a descriptor that was connected elsewhere', function()
        listen()
        local raw = client.connect(srv:address(), { greeting = false })
        local conn = net.from_fd(raw.fd, { params = params { ca_file = 'ca.crt' } })
        assert.equal(3, conn:call('echo', { 3 }))
        conn:close()
        local ok, err = pcall(net.from_fd, 0, { params = { transport = 'ssl', ssl_ca_file = '/nonexistent' } })
        assert.same({ false, "ssl_ca_file '/nonexistent': No such file or directory" }, { ok, tostring(err) })
    end)

    it('leaves no descriptors behind after many connections', function()
        listen(identity('server', { ca_file = 'ca.crt' }))
        local good, bad = params(identity('client', { ca_file = 'ca.crt' })), params()
        for i = 1, 300 do
            local conn = net.connect({ uri = srv:address(), params = i % 3 == 0 and bad or good })
            assert.equal(i % 3 == 0 and 'error' or 'active', conn.state)
            if i % 2 == 0 then conn:close() end
        end
        collectgarbage()
        collectgarbage()
        helpers.wait_until(function()
            fiber.sleep(0.01)
            return srv:stat().connections.current == 0
        end, 5)
        assert.equal(0, srv:stat().connections.current)
        assert.equal(300, srv:stat().connections.total)
    end)

    it('works for a pool', function()
        listen()
        local pool = require('cord.pool').connect({ { uri = srv:address(), params = params { ca_file = 'ca.crt' } } })
        assert.equal(9, pool:call('echo', { 9 }))
        pool:close()
    end)

    -- ------------------------------------------------------------------------------------------- pap-sha256

    it('logs in with pap-sha256, over TLS only', function()
        local refusal = "Authentication method 'pap-sha256' does not support unencrypted connection"
        srv = server.listen({ '127.0.0.1:0', { uri = '127.0.0.1:0', params = params(identity 'server') } },
            handlers { auth_type = 'pap-sha256', users = { app = 'secret' }, auth_delay = 0.01 })
        local plain, secure = srv:address()
        -- The server's reply to ID says so.
        local conn = connect(nil, { user = 'app', password = 'secret' }, secure)
        assert.equal('app', conn:call 'user')
        conn = connect(nil, { user = 'app', password = 'secret', auth_type = 'pap-sha256' }, secure)
        assert.equal('app', conn:call 'user')
        assert.same({ 'error', 'User not found or supplied credentials are invalid' },
            { state(nil, { user = 'app', password = 'wrong' }, secure) })
        assert.same({ 'error', 'User not found or supplied credentials are invalid' },
            { state(nil, { user = 'nobody', password = 'secret' }, secure) })
        -- What is kept of the password does not serve the other method.
        assert.same({ 'error', 'User not found or supplied credentials are invalid' },
            { state(nil, { user = 'app', password = 'secret', auth_type = 'chap-sha1' }, secure) })
        -- Our client refuses to tell a password over a plain connection, whoever asks for it.
        local ok, err = pcall(net.connect, plain, { user = 'app', password = 'secret', auth_type = 'pap-sha256' })
        assert.same({ false, refusal, 5 }, { ok, tostring(err), err.code })
        conn = net.connect(plain, { user = 'app', password = 'secret' })
        assert.same({ 'error', refusal }, { conn.state, conn.error })
        -- And the server to be told.
        local raw = client.connect(plain)
        local header, body = raw:ask(7, { [0x23] = 'app', [0x21] = { 'pap-sha256', 'secret' } })
        assert.same({ 0x8000 + 5, refusal }, { header[0], body[0x31] })
        raw:close()
    end)

    it('refuses pap-sha256 for users of chap-sha1, and other methods', function()
        listen(nil, { users = { app = 'secret' }, auth_delay = 0.01 })
        assert.same({ 'error', 'User not found or supplied credentials are invalid' },
            { state(nil, { user = 'app', password = 'secret', auth_type = 'pap-sha256' }) })
        assert.equal('active', (state(nil, { user = 'app', password = 'secret' })))
        local ok, err = pcall(connect, nil, { auth_type = 'ldap' })
        assert.same({ false, "Unknown authentication method 'ldap'" }, { ok, tostring(err) })
        ok, err = pcall(server.listen, '127.0.0.1:0', { auth_type = 'ldap' })
        assert.is_false(ok)
        assert.equal("server.listen: option 'auth_type' should be 'chap-sha1' or 'pap-sha256', got 'ldap'", tostring(err))
    end)

    -- ------------------------------------------------------------------------------------------- OpenSSL

    local function python(module, program, ...)
        if not helpers.which(PYTHON) then return pending('no ' .. PYTHON .. ' on this machine') end
        if os.execute(("'%s' -c 'import %s' >/dev/null 2>&1"):format(PYTHON, module)) ~= 0 then
            return pending(('%s has no module %s'):format(PYTHON, module))
        end
        local dir = helpers.tempdir()
        local argv = { helpers.which(PYTHON), helpers.write_file(dir .. '/program.py', program), ... }
        local child = helpers.spawn(argv, { stdout = dir .. '/stdout', stderr = dir .. '/stderr' })
        return child, dir
    end

    it("is what Python's connector speaks", function()
        listen(identity('server', { ca_file = 'ca.crt' }),
            { auth_type = 'pap-sha256', users = { app = 'secret' } })
        local host, port = srv:address():match '^(.*):(%d+)$'
        local child, dir = python('tarantool', [=[
import sys, tarantool
host, port, ca, cert, key = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]
for ciphers in ['ECDHE-ECDSA-AES256-GCM-SHA384', None]:
    c = tarantool.Connection(host, port, user='app', password='secret', transport='ssl', ssl_ca_file=ca,
        ssl_cert_file=cert, ssl_key_file=key, ssl_ciphers=ciphers, auth_type='pap-sha256')
    assert c.call('user').data == ['app']
    for i in range(200):
        assert c.call('echo', i).data == [i]
    assert c.call('echo', 'x' * 3000000).data == ['x' * 3000000]
    c.close()
try:
    tarantool.Connection(host, port, user='app', password='secret', transport='ssl', ssl_ca_file=ca)
    raise AssertionError('no error')
except (tarantool.error.NetworkError, tarantool.error.SslError):
    pass
print('fine')
]=], host, port, file 'ca.crt', file 'client.crt', file 'client.key')
        if not dir then return end
        local deadline = helpers.now() + 60
        while not child:status() and helpers.now() < deadline do fiber.sleep(0.01) end
        assert.equal('fine\n', helpers.read_file(dir .. '/stdout') .. helpers.read_file(dir .. '/stderr'))
    end)

    it("is what OpenSSL's servers speak, in both versions", function()
        srv = server.listen('127.0.0.1:0', handlers())
        local host, port = srv:address():match '^(.*):(%d+)$'
        -- A relay that takes TLS off: OpenSSL before a server of IPROTO.
        local child, dir = python('ssl', [=[
import socket, ssl, sys, threading
host, port, cert, key, ca = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(cert, key)
context.load_verify_locations(ca)
context.verify_mode = ssl.CERT_REQUIRED
door = socket.create_server(('127.0.0.1', 0))
print(door.getsockname()[1], flush=True)

def pump(a, b):
    try:
        while True:
            data = a.recv(65536)
            if not data:
                break
            b.sendall(data)
    except OSError:
        pass
    try:
        b.shutdown(socket.SHUT_WR)
    except OSError:
        pass

def serve(client):
    try:
        client = context.wrap_socket(client, server_side=True)
    except (ssl.SSLError, OSError) as e:
        print(type(e).__name__, flush=True)
        return
    print(client.version(), flush=True)
    far = socket.create_connection((host, port))
    # One lock for the SSL object: reads wait in select, so that both directions go on.
    import select
    client.setblocking(False)
    while True:
        if not client.pending():
            readable, _, _ = select.select([client, far], [], [])
        else:
            readable = [client]
        try:
            if client in readable:
                data = client.recv(65536)
                if not data:
                    break
                far.sendall(data)
            if far in readable:
                data = far.recv(65536)
                if not data:
                    break
                client.setblocking(True)
                client.sendall(data)
                client.setblocking(False)
        except ssl.SSLWantReadError:
            pass
        except OSError:
            break
    far.close()
    client.close()

while True:
    client, _ = door.accept()
    threading.Thread(target=serve, args=(client,), daemon=True).start()
]=], host, port, file 'server.crt', file 'server.key', file 'ca.crt')
        if not dir then return end
        helpers.wait_until(function() return helpers.read_file(dir .. '/stdout'):find '\n' end, 20)
        local address = '127.0.0.1:' .. helpers.read_file(dir .. '/stdout'):match '%d+'
        for _, ciphers in ipairs { 'ECDHE-ECDSA-AES128-GCM-SHA256', 'TLS_AES_256_GCM_SHA384' } do
            local conn = connect(identity('client', { ca_file = 'ca.crt', ciphers = ciphers }), nil, address)
            assert.same({ 'active' }, { conn.state, conn.error })
            local futures = {}
            for i = 1, 1000 do futures[i] = conn:call('echo', { i }, { is_async = true }) end
            for i = 1, 1000 do assert.same({ i }, futures[i]:wait_result(10)) end
            local text = ('w'):rep(1000000)
            assert.is_true(conn:call('echo', { text }) == text)
            conn:close()
        end
        local result, problem = state({ ca_file = 'ca.crt', ciphers = 'TLS_AES_256_GCM_SHA384' }, nil, address)
        assert.equal('error', result)
        assert.equal('TLS: the peer refused it: it demands a certificate (certificate_required)', problem)
        assert.equal('error', (state({ ca_file = 'other-ca.crt' }, nil, address)))
        child:stop()
        local log = helpers.read_file(dir .. '/stdout')
        assert.is_truthy(log:find('TLSv1.2\nTLSv1.3\n', 1, true), log)
    end)

    for _, flags in ipairs { { '-joff' }, { '-Ohotloop=1' } } do
        it('works under ' .. flags[1], function()
            helpers.run_ok([[
                local net, server = require 'cord.netbox', require 'cord.server'
                local D = 'spec/fixtures/tls/'
                local srv = server.listen({ uri = '127.0.0.1:0', params = { transport = 'ssl', ssl_ca_file = D .. 'ca.crt',
                    ssl_cert_file = D .. 'server.crt', ssl_key_file = D .. 'server.key' } },
                    { echo = function(...) return ... end })
                local conn = net.connect({ uri = srv:address(), params = { transport = 'ssl', ssl_ca_file = D .. 'ca.crt',
                    ssl_cert_file = D .. 'client.crt', ssl_key_file = D .. 'client.key' } })
                for i = 1, 3000 do assert(conn:call('echo', { i }) == i) end
                local futures = {}
                for i = 1, 3000 do futures[i] = conn:call('echo', { i }, { is_async = true }) end
                for i = 1, 3000 do assert(futures[i]:wait_result(10)[1] == i) end
                conn:close()
                srv:stop()
            ]], { flags = flags })
        end)
    end
end)
