-- A server that misbehaves on demand: the child process behind helpers.fake_server. One process a connection, plain
-- blocking sockets over FFI, and nothing of the library under test. Arguments: folder, 'unix' or 'tcp', parent's pid.
local dir, kind, parent = ...
local ffi = require 'ffi'
local bit = require 'bit'

ffi.cdef [[
    int socket(int, int, int);
    int bind(int, const void *, unsigned);
    int listen(int, int);
    int accept(int, void *, unsigned *);
    int getsockname(int, void *, unsigned *);
    int setsockopt(int, int, int, const void *, unsigned);
    int shutdown(int, int);
    int close(int);
    long recv(int, void *, size_t, int);
    long send(int, const void *, size_t, int);
    int fork(void);
    void _exit(int);
    int getppid(void);
    int getpid(void);
    void *signal(int, void *);
    struct pollfd { int fd; short events; short revents; };
    int poll(struct pollfd *, unsigned long, int);
]]
local C = ffi.C
local BSD = ffi.os ~= 'Linux'
if BSD then
    ffi.cdef [[
        struct in_address { uint8_t len; uint8_t family; uint8_t port[2]; uint8_t addr[4]; uint8_t zero[8]; };
        struct un_address { uint8_t len; uint8_t family; char path[104]; };
    ]]
else
    ffi.cdef [[
        struct in_address { uint16_t family; uint8_t port[2]; uint8_t addr[4]; uint8_t zero[8]; };
        struct un_address { uint16_t family; char path[108]; };
    ]]
end
local MSG_NOSIGNAL = BSD and 0 or 0x4000
local SOL_SOCKET, SO_LINGER = BSD and 0xffff or 1, BSD and 0x80 or 13

local function append(name, line)
    local file = io.open(dir .. '/' .. name, 'a')
    file:write(line, '\n')
    file:close()
end

-- Ends this process when the one that must be there is gone.
local function check_parent(expected)
    if C.getppid() ~= expected then C._exit(0) end
end

-- Waits until `fd` can be read; false after `seconds` (nil waits on).
local function readable(fd, expected, seconds)
    local item = ffi.new('struct pollfd[1]')
    local waited = 0
    while true do
        item[0].fd, item[0].events, item[0].revents = fd, 1, 0
        local step = seconds and math.min(100, math.max(0, seconds * 1000 - waited)) or 100
        if C.poll(item, 1, step) > 0 then return true end
        waited = waited + step
        if seconds and waited >= seconds * 1000 then return false end
        check_parent(expected)
    end
end

-- ------------------------------------------------------------------------------- just enough MessagePack

local pack = {}

local function be(value, bytes)
    local out = {}
    for i = bytes, 1, -1 do
        out[i] = string.char(value % 256)
        value = math.floor(value / 256)
    end
    return table.concat(out)
end

function pack.uint(value)
    if value < 128 then return string.char(value) end
    if value < 2 ^ 32 then return '\206' .. be(value, 4) end
    return '\207' .. be(value, 8)
end

function pack.str(text) return '\219' .. be(#text, 4) .. text end
-- A list of already packed values, and a list of {key number, packed value}.
function pack.array(items) return '\221' .. be(#items, 4) .. table.concat(items) end
function pack.map(pairs_list)
    local out = {}
    for _, item in ipairs(pairs_list) do out[#out + 1] = pack.uint(item[1]) .. item[2] end
    return '\223' .. be(#pairs_list, 4) .. table.concat(out)
end
pack.null, pack['true'], pack['false'] = '\192', '\195', '\194'

-- Any value: tables are arrays if they have a first element or none at all, else maps.
function pack.value(value)
    if type(value) == 'number' then return pack.uint(value) end
    if type(value) == 'string' then return pack.str(value) end
    if type(value) ~= 'table' then return value == nil and pack.null or pack[tostring(value)] end
    local items = {}
    if value[1] ~= nil or next(value) == nil then
        for i, item in ipairs(value) do items[i] = pack.value(item) end
        return pack.array(items)
    end
    for key, item in pairs(value) do items[#items + 1] = pack.value(key) .. pack.value(item) end
    return '\223' .. be(#items, 4) .. table.concat(items)
end

-- Reads an unsigned number at `at`; its value and the next position.
local function unpack_uint(text, at)
    local first = text:byte(at)
    if not first then return nil end
    if first < 128 then return first, at + 1 end
    local bytes = ({ [0xcc] = 1, [0xcd] = 2, [0xce] = 4, [0xcf] = 8 })[first]
    if not bytes or #text < at + bytes then return nil end
    local value = 0
    for i = at + 1, at + bytes do value = value * 256 + text:byte(i) end
    return value, at + 1 + bytes
end

-- ------------------------------------------------------------------------------- what a script can do

local Peer = {}
Peer.__index = Peer
Peer.pack = pack

-- The 128 bytes a server opens with. Options: version, uuid, salt (32 bytes); cut = number of bytes to send.
function Peer:greeting(options)
    options = options or {}
    local line = ('Tarantool %s (Binary) %s '):format(options.version or '2.6.0',
        options.uuid or '7f51d3b4-4f1b-4f0e-9a0a-3f2b1c0d5e6f')
    local salt = options.salt or 'QK2HoFZGXTXBq2vFj7soCsHqTo6PGTF575ssUBAJLAI='
    local text = line .. (' '):rep(63 - #line) .. '\n' .. salt .. (' '):rep(63 - #salt) .. '\n'
    self:send(text:sub(1, options.cut or 128))
end

-- All the bytes, as fast as they go; false when the other end is gone.
function Peer:send(bytes)
    local at = 0
    local buffer = ffi.cast('const char *', bytes)
    while at < #bytes do
        local sent = tonumber(C.send(self.fd, buffer + at, #bytes - at, MSG_NOSIGNAL))
        if sent < 0 then return false end
        at = at + sent
    end
    return true
end

-- One byte at a time, `seconds` (default 0.001) between two.
function Peer:dribble(bytes, seconds)
    for i = 1, #bytes do
        if not self:send(bytes:sub(i, i)) then return false end
        self:sleep(seconds or 0.001)
    end
    return true
end

function Peer:sleep(seconds)
    C.poll(nil, 0, math.ceil(seconds * 1000))
    check_parent(self.parent)
end

-- Says nothing until the other end closes.
function Peer:silent()
    while self:some() do end
end

-- Whatever arrives next, or nil at the end of the stream or after `seconds`.
function Peer:some(seconds)
    if #self.input > 0 then
        local text = self.input
        self.input = ''
        return text
    end
    if not readable(self.fd, self.parent, seconds) then return nil end
    local buffer = ffi.new('char[65536]')
    local got = tonumber(C.recv(self.fd, buffer, 65536, 0))
    if got <= 0 then return nil end
    return ffi.string(buffer, got)
end

-- Exactly n bytes, or nil when the stream ends first (or after `seconds` of silence).
function Peer:read(n, seconds)
    while #self.input < n do
        local have = self.input
        self.input = ''
        local more = self:some(seconds)
        self.input = have .. (more or '')
        if not more then return nil end
    end
    local text = self.input:sub(1, n)
    self.input = self.input:sub(n + 1)
    return text
end

-- The next request: {type=, sync=, schema=, stream=, header=bytes, body=bytes}, or nil when the stream ends.
function Peer:read_request(seconds)
    local first = self:read(1, seconds)
    if not first then return nil end
    local more = ({ [0xcc] = 1, [0xcd] = 2, [0xce] = 4, [0xcf] = 8 })[first:byte()] or 0
    local rest = self:read(more, seconds)
    if not rest then return nil end
    local length = unpack_uint(first .. rest, 1)
    local frame = length and self:read(length, seconds)
    if not frame then return nil end
    local request = { frame = frame }
    local byte = frame:byte(1)
    local count, at = byte - 0x80, 2
    if byte == 0xde then count, at = frame:byte(2) * 256 + frame:byte(3), 4 end
    local names = { [0] = 'type', [1] = 'sync', [5] = 'schema', [10] = 'stream' }
    for _ = 1, count do
        local key, value
        key, at = unpack_uint(frame, at)
        value, at = unpack_uint(frame, at)
        if not value then break end
        if names[key] then request[names[key]] = value end
    end
    request.header, request.body = frame:sub(1, (at or #frame + 1) - 1), frame:sub(at or #frame + 1)
    return request
end

-- A frame's bytes: `code` 0 is OK; `body` a packed map (default: IPROTO_DATA = []). Options: length (the claimed one).
function Peer.frame(_, sync, body, code, options)
    local payload = pack.map { { 0, pack.uint(code or 0) }, { 1, pack.uint(sync) }, { 5, pack.uint(80) } }
        .. (body or pack.map { { 0x30, pack.array {} } })
    return '\206' .. be(options and options.length or #payload, 4) .. payload
end

-- Answers OK to `sync` with the already packed values of `data`.
function Peer:reply(sync, data)
    return self:send(self:frame(sync, pack.map { { 0x30, pack.array(data or {}) } }))
end

-- Answers with an error code and message.
function Peer:error(sync, code, message)
    return self:send(self:frame(sync, pack.map { { 0x31, pack.str(message) } }, 0x8000 + code))
end

-- Answers every request with OK and nothing, until the other end closes or `count` are answered.
function Peer:serve(count)
    local done = 0
    while not count or done < count do
        local request = self:read_request()
        if not request then return done end
        self:reply(request.sync)
        done = done + 1
    end
    return done
end

-- Answers the requests for the schema: `rows` has a list of rows for each of the spaces 281, 289, 277, 341; what is not there
-- does not exist. Everything else is answered by `other(request)`, or with OK and nothing.
function Peer:serve_schema(rows, other)
    while true do
        local request = self:read_request()
        if not request then return end
        local id = request.type == 1 and request.body:match '\16\205(..)'
        id = id and id:byte(1) * 256 + id:byte(2)
        if id and rows[id] then
            local items = {}
            for i, row in ipairs(rows[id]) do items[i] = pack.value(row) end
            self:reply(request.sync, items)
        elseif id == 277 or id == 341 then
            self:error(request.sync, 36, "Space '" .. id .. "' does not exist")
        elseif other then
            other(request)
        else
            self:reply(request.sync)
        end
    end
end

-- Half-close: 'write' (the other end reads the end of the stream), 'read' or 'both'.
function Peer:shutdown(how)
    C.shutdown(self.fd, ({ read = 0, write = 1, both = 2 })[how or 'write'])
end

-- Closes so that the other end gets "connection reset" (TCP).
function Peer:reset()
    C.setsockopt(self.fd, SOL_SOCKET, SO_LINGER, ffi.new('int[2]', 1, 0), 8)
    self:close()
end

function Peer:close()
    if self.fd then C.close(self.fd) end
    self.fd = nil
end

-- A line that the spec reads with fake:log().
function Peer.log(_, ...)
    local parts = {}
    for i = 1, select('#', ...) do parts[i] = tostring((select(i, ...))) end
    append('log', table.concat(parts, ' '))
end

-- ------------------------------------------------------------------------------- accepting

local fd, address
if kind == 'unix' then
    fd = C.socket(1, 1, 0)
    local a = ffi.new('struct un_address', { family = 1, path = dir .. '/s' })
    address = dir .. '/s'
    assert(C.bind(fd, a, ffi.sizeof(a)) == 0, 'bind')
else
    fd = C.socket(2, 1, 0)
    local a = ffi.new('struct in_address', { family = 2, addr = { 127, 0, 0, 1 } })
    assert(C.bind(fd, a, ffi.sizeof(a)) == 0, 'bind')
    local size = ffi.new('unsigned[1]', ffi.sizeof(a))
    C.getsockname(fd, a, size)
    address = ('127.0.0.1:%d'):format(bit.lshift(a.port[0], 8) + a.port[1])
end
assert(C.listen(fd, 128) == 0, 'listen')
C.signal(BSD and 20 or 17, ffi.cast('void *', 1)) -- nobody waits for the connections' processes

local script = assert(loadfile(dir .. '/script.lua'))
local file = io.open(dir .. '/ready.new', 'w')
file:write(address)
file:close()
os.rename(dir .. '/ready.new', dir .. '/ready')

local number = 0
while true do
    readable(fd, tonumber(parent))
    local connection = C.accept(fd, nil, nil)
    if connection >= 0 then
        number = number + 1
        append('accepted', number)
        local here = C.getpid()
        if C.fork() == 0 then
            C.close(fd)
            local peer = setmetatable({ fd = connection, number = number, input = '', parent = here }, Peer)
            local fine, message = pcall(script, peer)
            if not fine then append('log', 'script error: ' .. tostring(message)) end
            peer:close()
            C._exit(0)
        end
        C.close(connection)
    end
end
