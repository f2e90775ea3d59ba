-- The floor under a client: a loop that sends prebuilt CALL packets and only counts the replies. Linux, over FFI.
local ffi = require 'ffi'
if ffi.os ~= 'Linux' then return nil end

ffi.cdef [[
    struct bare_address { uint16_t family; uint8_t port[2]; uint8_t ip[4]; char zero[8]; };
    struct bare_event { uint32_t events; uint64_t data; } __attribute__((packed));
    int bare_socket(int, int, int) __asm__("socket");
    int bare_connect(int, const struct bare_address *, unsigned) __asm__("connect");
    long bare_send(int, const char *, size_t, int) __asm__("send");
    long bare_recv(int, char *, size_t, int) __asm__("recv");
    int bare_setsockopt(int, int, int, const int *, unsigned) __asm__("setsockopt");
    int bare_close(int) __asm__("close");
    int bare_epoll_create(int) __asm__("epoll_create1");
    int bare_epoll_ctl(int, int, int, struct bare_event *) __asm__("epoll_ctl");
    int bare_epoll_wait(int, struct bare_event *, int, int) __asm__("epoll_wait");
]]
local C = ffi.C
local bare = {}

local SIZE = 65536
local DONTWAIT, NOSIGNAL = 0x40, 0x4000

local function connect(port)
    local fd = C.bare_socket(2, 1, 0)
    local address = ffi.new 'struct bare_address'
    address.family = 2
    address.port[0], address.port[1] = math.floor(port / 256), port % 256
    address.ip[0], address.ip[3] = 127, 1
    assert(C.bare_connect(fd, address, 16) == 0, 'cannot connect')
    C.bare_setsockopt(fd, 6, 1, ffi.new('int[1]', 1), 4)
    local buffer, got = ffi.new 'char[128]', 0
    while got < 128 do got = got + tonumber(C.bare_recv(fd, buffer, 128 - got, 0)) end
    return fd
end

-- Counts the whole packets among the `n` bytes of `buffer`, moves what is behind them to the front, and gives both numbers.
local function count_packets(buffer, n)
    local at, count = 0, 0
    while n - at >= 5 do
        local length = buffer[at + 1] * 16777216 + buffer[at + 2] * 65536 + buffer[at + 3] * 256 + buffer[at + 4]
        if n - at < 5 + length then break end
        at, count = at + 5 + length, count + 1
    end
    if at > 0 and at < n then
        for i = 0, n - at - 1 do buffer[i] = buffer[at + i] end
    end
    return count, n - at
end

-- A request as the wire has it: a CALL of `name` with one packed array as its arguments.
function bare.call(name, arguments)
    local body = '\130\34' .. string.char(0xa0 + #name) .. name .. '\33' .. arguments
    return '\206\0\0\0' .. string.char(6 + #body - 1) .. '\130\0\10\1\5' .. body
end

-- `connections` to a port of this machine; run(total) sends so many requests, `depth` in flight on each.
function bare.open(port, packet, connections, depth)
    local poll, event = C.bare_epoll_create(0), ffi.new 'struct bare_event'
    local fds, buffers, have = {}, {}, {}
    for i = 1, connections do
        fds[i], buffers[i], have[i] = connect(port), ffi.new('uint8_t[?]', SIZE), 0
        event.events, event.data = 1, i
        C.bare_epoll_ctl(poll, 1, fds[i], event)
    end
    local packets, size = packet:rep(depth), #packet
    local events, queued = ffi.new 'struct bare_event[1024]', ffi.new('int[?]', connections + 1)
    local loop = {}
    function loop.run(total)
        local done, asked = 0, connections * depth
        for i = 1, connections do C.bare_send(fds[i], packets, size * depth, NOSIGNAL) end
        while done < total do
            local n = C.bare_epoll_wait(poll, events, 1024, -1)
            for e = 0, n - 1 do
                local i = tonumber(events[e].data)
                local room = SIZE - have[i]
                local got = tonumber(C.bare_recv(fds[i], ffi.cast('char *', buffers[i] + have[i]), room, DONTWAIT))
                assert(got > 0, 'the server went away')
                local count, rest = count_packets(buffers[i], have[i] + got)
                have[i], queued[i], done = rest, count, done + count
            end
            for e = 0, n - 1 do
                local i = tonumber(events[e].data)
                local more = math.min(queued[i], total - asked)
                if more > 0 then
                    C.bare_send(fds[i], packets, size * more, NOSIGNAL)
                    asked = asked + more
                end
            end
        end
    end
    function loop.close()
        for i = 1, connections do C.bare_close(fds[i]) end
        C.bare_close(poll)
    end
    return loop
end

-- One connection that blocks; run(total) sends so many requests one after the other.
function bare.open_one(port, packet)
    local fd, buffer = connect(port), ffi.new('uint8_t[?]', SIZE)
    local loop = {}
    function loop.run(total)
        for _ = 1, total do
            C.bare_send(fd, packet, #packet, NOSIGNAL)
            local have, count = 0, 0
            while count == 0 do
                have = have + tonumber(C.bare_recv(fd, ffi.cast('char *', buffer + have), SIZE - have, 0))
                count, have = count_packets(buffer, have)
            end
        end
    end
    function loop.close() C.bare_close(fd) end
    return loop
end

return bare
