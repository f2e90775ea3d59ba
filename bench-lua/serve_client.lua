-- The client of serve.lua, a process of its own: sends prebuilt packets over one connection, 100 in flight, and only
-- counts the bytes of the answers. Plain LuaJIT with sockets over FFI: the same for every server.
--     luajit serve_client.lua PORT COUNT FILE BATCH
-- FILE.packets holds a batch of BATCH packets; seconds of wall clock and of CPU go to FILE.
local ffi = require 'ffi'
ffi.cdef [[
    int socket(int, int, int);
    int connect(int, const void *, unsigned);
    long recv(int, void *, size_t, int);
    long send(int, const void *, size_t, int);
    int setsockopt(int, int, int, const void *, unsigned);
    int inet_pton(int, const char *, void *);
    unsigned short htons(unsigned short);
    struct client_time { long sec; long nsec; };
    int clock_gettime(int, struct client_time *);
    int poll(void *, unsigned long, int);
]]
local C = ffi.C
local port, count, path = tonumber(arg[1]), tonumber(arg[2]), arg[3]

local function read_file(name)
    local file = assert(io.open(name, 'rb'))
    local text = file:read '*a'
    file:close()
    return text
end
-- The packets of one batch, and how many there are in it.
local batch, size = read_file(path .. '.packets'), tonumber(arg[4])

local time = ffi.new 'struct client_time'
local function now(id)
    C.clock_gettime(id, time)
    return tonumber(time.sec) + tonumber(time.nsec) * 1e-9
end

local address = ffi.new('uint8_t[16]')
ffi.cast('uint16_t *', address)[0] = 2
ffi.cast('uint16_t *', address)[1] = C.htons(port)
C.inet_pton(2, '127.0.0.1', address + 4)
local fd = C.socket(2, 1, 0)
assert(C.connect(fd, address, 16) == 0, 'cannot connect')
C.setsockopt(fd, 6, 1, ffi.new('int[1]', 1), 4)

local buffer = ffi.new 'uint8_t[1048576]'
local function receive(n)
    local got = 0
    while got < n do
        local k = tonumber(C.recv(fd, buffer, 1048576, 0))
        assert(k > 0, 'the server closed')
        got = got + k
    end
    assert(got == n, 'more answers than requests')
end
local function send(text)
    local at = 0
    while at < #text do at = at + tonumber(C.send(fd, ffi.cast('const char *', text) + at, #text - at, 0)) end
end

receive(128)
-- The answers to one batch are as long as those to each other one: learn it from the first.
send(batch)
local expected, answers, pending = 0, 0, ''
while answers < size do
    local k = tonumber(C.recv(fd, buffer, 1048576, 0))
    assert(k > 0, 'the server closed')
    expected = expected + k
    pending = pending .. ffi.string(buffer, k)
    while #pending >= 5 do
        local a, b, c, d = pending:byte(2, 5)
        local length = 5 + a * 2 ^ 24 + b * 2 ^ 16 + c * 256 + d
        if #pending < length then break end
        assert(pending:byte(6) == 0x83 and pending:sub(7, 12) == '\0\206\0\0\0\0', 'an error was answered: ' .. pending)
        pending, answers = pending:sub(length + 1), answers + 1
    end
end

-- Ready: the server says when to begin.
assert(io.open(path .. '.ready', 'w')):close()
repeat
    C.poll(nil, 0, 1)
    local go = io.open(path .. '.go')
    if go then go:close() end
until go

local begin, spent = now(1), now(2)
for _ = 1, count / size do
    send(batch)
    receive(expected)
end
local file = assert(io.open(path .. '.new', 'w'))
file:write(('%.9f %.9f'):format(now(1) - begin, now(2) - spent))
file:close()
assert(os.rename(path .. '.new', path))
