-- What the specs of the server share: a raw client over FFI sockets in this process, and Tarantool as a client in a
-- child process while this process serves.
local bit = require 'bit'
local ffi = require 'ffi'
local fiber = require 'cord.fiber'
local msgpack = require 'cord.msgpack'
local helpers = require 'spec.helpers'

local C = ffi.C
local registry = debug.getregistry()
if not registry['cord.spec.sockets'] then
    ffi.cdef [[
        int cordspec_socket(int, int, int) __asm__("socket");
        int cordspec_connect(int, const void *, unsigned) __asm__("connect");
        long cordspec_recv(int, void *, size_t, int) __asm__("recv");
        long cordspec_send(int, const void *, size_t, int) __asm__("send");
        int cordspec_close(int) __asm__("close");
        int cordspec_shutdown(int, int) __asm__("shutdown");
        unsigned short cordspec_htons(unsigned short) __asm__("htons");
        int cordspec_inet_pton(int, const char *, void *) __asm__("inet_pton");
    ]]
    registry['cord.spec.sockets'] = true
end

local DONTWAIT, NOSIGNAL = 0x40, 0x4000
local M = {}

local Raw = {}
Raw.__index = Raw

local function unix_address(path)
    local address = ffi.new('uint8_t[110]')
    ffi.cast('uint16_t *', address)[0] = 1
    ffi.copy(address + 2, path)
    return address, 2 + #path + 1, 1
end

local function tcp_address(host, port)
    local address = ffi.new('uint8_t[16]')
    ffi.cast('uint16_t *', address)[0] = 2
    ffi.cast('uint16_t *', address)[1] = C.cordspec_htons(port)
    C.cordspec_inet_pton(2, host, address + 4)
    return address, 16, 2
end

-- A raw client of the server at `address`, as server:address() gives it. The greeting is read.
function M.connect(address, options)
    local path = address:match '^unix/:(.*)$'
    local host, port = address:match '^([%d.]+):(%d+)$'
    local sa, size, family
    if path then sa, size, family = unix_address(path) else sa, size, family = tcp_address(host, tonumber(port)) end
    local fd = C.cordspec_socket(family, 1, 0)
    assert(fd >= 0)
    if C.cordspec_connect(fd, sa, size) ~= 0 then
        C.cordspec_close(fd)
        return nil
    end
    local self = setmetatable({ fd = fd, buffer = '', sync = 0 }, Raw)
    if not (options and options.greeting == false) then self.greeting = self:read(128) end
    return self
end

-- Sends bytes as they are; waits while the socket is full, unless the server does not read for `seconds`.
function Raw:send(bytes, seconds)
    local deadline, sent = helpers.now() + (seconds or 5), 0
    while sent < #bytes do
        local n = tonumber(C.cordspec_send(self.fd, bytes:sub(sent + 1), #bytes - sent, DONTWAIT + NOSIGNAL))
        if n > 0 then
            sent = sent + n
        elseif ffi.errno() ~= 11 or helpers.now() > deadline then
            return nil, sent
        else
            fiber.sleep(0.002)
        end
    end
    return true
end

local chunk = ffi.new 'uint8_t[65536]'

-- Takes exactly n bytes without making anything of them; false when the server closed.
function Raw:skip(n)
    while n > 0 do
        local got = tonumber(C.cordspec_recv(self.fd, chunk, math.min(n, 65536), DONTWAIT))
        if got > 0 then
            n = n - got
        elseif got == 0 or ffi.errno() ~= 11 then
            return false
        else
            fiber.sleep(0.001)
        end
    end
    return true
end

-- Bytes that are here now: '' when there are none, nil when the server has closed.
function Raw:poll()
    local n = tonumber(C.cordspec_recv(self.fd, chunk, 65536, DONTWAIT))
    if n > 0 then return ffi.string(chunk, n) end
    if n == 0 or ffi.errno() ~= 11 then return nil end
    return ''
end

-- Exactly n bytes, or nil and what came when the server closed or `seconds` (default 5) have passed.
function Raw:read(n, seconds)
    local deadline = helpers.now() + (seconds or 5)
    while #self.buffer < n do
        local more = self:poll()
        if more == nil or helpers.now() > deadline then return nil, self.buffer end
        self.buffer = self.buffer .. more
        if more == '' then fiber.sleep(0.001) end
    end
    local bytes = self.buffer:sub(1, n)
    self.buffer = self.buffer:sub(n + 1)
    return bytes
end

-- One response: header and body as tables; nil when the server closed.
function Raw:response(seconds)
    local prefix = self:read(5, seconds)
    if not prefix then return nil end
    local length = msgpack.decode(prefix)
    local packet = self:read(length, seconds)
    if not packet then return nil end
    local header, at = msgpack.decode(packet)
    local body = at <= #packet and msgpack.decode(packet, at) or nil
    return header, body
end

-- True when the server closes the connection within `seconds`.
function Raw:closed(seconds)
    local deadline = helpers.now() + (seconds or 5)
    while helpers.now() < deadline do
        local more = self:poll()
        if more == nil then return true end
        self.buffer = self.buffer .. more
        fiber.sleep(0.002)
    end
    return false
end

local function framed(payload) return '\206' .. M.be32(#payload) .. payload end

function M.be32(n)
    return string.char(math.floor(n / 2 ^ 24) % 256, math.floor(n / 2 ^ 16) % 256, math.floor(n / 256) % 256, n % 256)
end

local function map(t) return msgpack.encode(setmetatable(t, { __serialize = 'map' })) end

-- A packet of header and body tables (or bytes).
function M.packet(header, body)
    local bytes = type(header) == 'string' and header or map(header)
    if body ~= nil then bytes = bytes .. (type(body) == 'string' and body or map(body)) end
    return framed(bytes)
end

-- Sends a request with the next sync; gives the sync.
function Raw:request(kind, body, extra)
    self.sync = self.sync + 1
    local header = { [0] = kind, [1] = self.sync }
    for key, value in pairs(extra or {}) do header[key] = value end
    assert(self:send(M.packet(header, body)))
    return self.sync
end

-- A request and its response.
function Raw:ask(kind, body, extra)
    self:request(kind, body, extra)
    return self:response()
end

function Raw:call(name, ...) return self:ask(10, { [0x22] = name, [0x21] = { ... } }) end

function Raw:shutdown(how) C.cordspec_shutdown(self.fd, how or 1) end

function Raw:close()
    if self.fd then C.cordspec_close(self.fd) end
    self.fd = nil
end

-- The body of AUTH with chap-sha1. The hash comes from OpenSSL's library over FFI: nothing of the library under test.
local crypto
function M.auth(conn, user, password)
    if not crypto then
        if not registry['cord.spec.sha1'] then
            ffi.cdef 'unsigned char *cordspec_sha1(const void *, size_t, unsigned char *) __asm__("SHA1");'
            registry['cord.spec.sha1'] = true
        end
        for _, name in ipairs { 'libcrypto.so.3', 'libcrypto.so.1.1', 'crypto' } do
            local fine, found = pcall(ffi.load, name)
            if fine then
                crypto = found
                break
            end
        end
        assert(crypto, 'no libcrypto')
    end
    local function sha1(text)
        local digest = ffi.new 'unsigned char[20]'
        crypto.cordspec_sha1(text, #text, digest)
        return ffi.string(digest, 20)
    end
    local salt = M.base64(conn.greeting:sub(65, 108)):sub(1, 20)
    local h1 = sha1(password)
    local h3 = sha1(salt .. sha1(h1))
    local scramble = {}
    for i = 1, 20 do scramble[i] = string.char(bit.bxor(h1:byte(i), h3:byte(i))) end
    return { [0x23] = user, [0x21] = { 'chap-sha1', table.concat(scramble) } }
end

local ALPHABET = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'
function M.base64(text)
    local bits, count, out = 0, 0, {}
    for c in text:gmatch '[%w+/]' do
        bits, count = bits * 64 + ALPHABET:find(c, 1, true) - 1, count + 6
        if count >= 8 then
            count = count - 8
            out[#out + 1] = string.char(math.floor(bits / 2 ^ count))
            bits = bits % 2 ^ count
        end
    end
    return table.concat(out)
end

-- Runs Lua source under Tarantool while this process goes on serving. `...` of the source is `args`. Gives what it wrote;
-- raises when it fails.
function M.tarantool(source, ...)
    local dir = helpers.tempdir()
    local argv = { assert(helpers.tarantool_binary()), helpers.write_file(dir .. '/client.lua', source .. '\nos.exit(0)\n') }
    for _, value in ipairs { ... } do argv[#argv + 1] = tostring(value) end
    local child = helpers.spawn(argv, {
        env = { LUA_PATH = false, LUA_CPATH = false, LD_PRELOAD = false },
        stdout = dir .. '/stdout',
        stderr = dir .. '/stderr',
    })
    local deadline = helpers.now() + 60
    while not child:status() and helpers.now() < deadline do fiber.sleep(0.005) end
    local ended = child:status()
    if not ended then child:kill 'KILL' end
    local out, err = helpers.read_file(dir .. '/stdout'), helpers.read_file(dir .. '/stderr')
    if not ended or ended.code ~= 0 then
        error(('tarantool as a client failed:\n%s\n%s'):format(out, err), 2)
    end
    return out
end

return M
