-- cord.socket: TCP, UDP and unix sockets for fibers, with the names, results and texts of Tarantool's `socket`. The raw
-- functions never wait but for `iowait` and `looked_up`; what has to wait tries first, and waits when the system says EAGAIN.
local raw, load = ...

local ffi = require('ffi')
local bit = require('bit')
local E = load('cord.error')
local fiber = load('cord.fiber')
local fail, new_deadline = fiber._internal.fail, fiber._internal.raw.deadline

-- Not named pairs, lest LuaJIT compiles loops that a finalizer may never leave: docs/jit.md.
local type, tonumber, tostring, every, ipairs, pcall, select = type, tonumber, tostring, pairs, ipairs, pcall, select
local error, setmetatable, format, min = error, setmetatable, string.format, math.min
local raw_fd, raw_read, raw_write, raw_iowait = raw.fd, raw.read, raw.write, raw.iowait

ffi.cdef('char *cord_socket_errno_text(int) __asm__("strerror");')

local READ, WRITE = 1, 2
local TIMED_OUT = 2
local LIMIT_INFINITY = 2147483647
local CLOSED = 'attempt to use closed socket'
local ERRNO = raw.ERRNO
local TRANSIENT = { [ERRNO.EAGAIN] = true, [ERRNO.EWOULDBLOCK] = true, [ERRNO.EINTR] = true }
-- Errors of accept after which there is no point in going on.
local FATAL = { [ERRNO.EBADF] = true, [ERRNO.EINVAL] = true, [ERRNO.EOPNOTSUPP] = true, [ERRNO.ENOTSOCK] = true }

local function strerror(errno)
    return ffi.string(ffi.C.cord_socket_errno_text(errno))
end

-- nil and the text of an error without a socket; the number is left in errno.
local function refused(errno)
    ffi.errno(errno)
    return nil, strerror(errno)
end

-- Remembers why a call on a socket failed.
local function failed(self, errno)
    self._errno = errno
    ffi.errno(errno)
end

-- The handle of an open socket; raises where the method was called. Here as below, nothing that raises is called in tail
-- position: levels count frames.
local function check(self, level)
    local handle = type(self) == 'table' and self._handle
    local fd = raw_fd(handle)
    if fd then
        return handle, fd
    elseif fd == nil then
        error(CLOSED, (level or 2) + 1)
    end
    local usage = 'Usage: socket:method()'
    if self ~= nil then
        usage = usage .. ', called with non-socket'
    end
    error(usage, (level or 2) + 1)
end

local methods = {}
local socket_mt = { __index = methods }

local function make_socket(handle, itype)
    return setmetatable({ _handle = handle, itype = itype }, socket_mt)
end

-- ---------------------------------------------------------------- waiting

-- Until the descriptor is ready: the events, or 0 when the time is over. `tried`: the last call gave EAGAIN.
local function wait_for(handle, what, deadline, no_time, level, tried)
    while true do
        local err, events = raw_iowait(handle, what, deadline, no_time, tried)
        if err == nil then
            if events and events ~= 0 then
                return events
            end
        elseif err == TIMED_OUT then
            return 0
        else
            fail(err, level + 1)
        end
    end
end

-- A timeout in seconds as a deadline (nil: never), and whether there is no time at all.
local function limits(timeout)
    if timeout == nil then
        return nil, false
    elseif type(timeout) ~= 'number' then
        local seconds = type(timeout) == 'cdata' and tonumber(timeout) or nil
        if seconds == nil then
            return E.complain('timeout should be a number, got ' .. type(timeout))
        end
        timeout = seconds
    end
    return new_deadline(timeout), timeout <= 0
end

local function do_wait(self, what, timeout)
    local handle = check(self, 3)
    self._errno = nil
    local deadline, no_time = limits(timeout)
    local events = wait_for(handle, what, deadline, no_time, 3)
    if events == 0 then
        failed(self, ERRNO.ETIMEDOUT)
    end
    return events
end

function methods.readable(self, timeout)
    return do_wait(self, READ, timeout) ~= 0
end

function methods.writable(self, timeout)
    return do_wait(self, WRITE, timeout) ~= 0
end

local EVENTS = { [0] = '', 'R', 'W', 'RW' }

function methods.wait(self, timeout)
    local events = do_wait(self, READ + WRITE, timeout)
    return events == 0 and 0 or EVENTS[events]
end

local LETTERS = { r = READ, R = READ, w = WRITE, W = WRITE }

-- A set of events as a number, or nil.
local function event_set(events)
    if type(events) == 'number' then
        return events > 0 and events <= READ + WRITE and events or nil
    elseif type(events) ~= 'string' then
        return nil
    end
    local set = 0
    for letter in events:gmatch('.') do
        local event = LETTERS[letter]
        if not event then
            return nil
        end
        set = bit.bor(set, event)
    end
    return set > 0 and set or nil
end

local function iowait(...)
    local fd, events, timeout = ...
    if (fd == nil or tonumber(fd) == -1) and events == nil and select('#', ...) > 1 then
        -- Just sleep, like poll(0, NULL, timeout).
        return fiber.sleep(timeout or 1e9)
    end
    local set = event_set(events)
    if not set or type(fd) ~= 'number' or fd < 0 then
        error("Usage: iowait(fd, 1 | 'r' | 2 | 'w' | 3 | 'rw' [, timeout])", 2)
    end
    local deadline, no_time = limits(timeout)
    while true do
        local err, ready = raw_iowait(fd, set, deadline, no_time)
        if err == nil and ready and ready ~= 0 then
            return type(events) == 'number' and ready or EVENTS[ready]
        elseif err == TIMED_OUT then
            return type(events) == 'number' and 0 or ''
        elseif err == 1 and type(events) == 'number' then
            -- The number's form tells a cancellation as Tarantool's does: no events.
            return 0
        elseif err ~= nil then
            fail(err, 2)
        end
    end
end

-- ---------------------------------------------------------------- questions

function methods.fd(self)
    local _, fd = check(self)
    return fd
end

function methods.errno(self)
    check(self)
    return self._errno or 0
end

function methods.error(self)
    check(self)
    return self._errno and strerror(self._errno) or nil
end

local address_mt = {
    __tostring = function(address)
        if address.host == nil and address.port == nil then
            return ''
        end
        return format('%s:%s', tostring(address.host or '0'), tostring(address.port or 0))
    end,
}

local function address_of(self, get)
    local handle = check(self, 3)
    local address, errno = get(handle)
    self._errno = errno
    return address and setmetatable(address, address_mt)
end

function methods.name(self)
    return (address_of(self, raw.name))
end

function methods.peer(self)
    return (address_of(self, raw.peer))
end

function socket_mt.__tostring(self)
    local handle, fd = check(self)
    local text = format('fd %d', fd)
    local name, peer = raw.name(handle), raw.peer(handle)
    if name then
        text = format('%s, aka %s:%s', text, name.host, name.port)
    end
    if peer then
        text = format('%s, peer %s:%s', text, peer.host, peer.port)
    end
    return text
end

function socket_mt.__serialize(self)
    local handle, fd = check(self)
    return { fd = fd, name = (raw.name(handle)), peer = (raw.peer(handle)) }
end

-- ---------------------------------------------------------------- one system call each

-- The convention of calls that give true or false.
local function outcome(self, done, errno)
    if done then
        self._errno = nil
        return true
    end
    failed(self, errno)
    return false
end

function methods.close(self)
    return outcome(self, raw.close((check(self))))
end
local socket_close = methods.close

function methods.detach(self)
    raw.detach((check(self)))
    self._errno = nil
end

function methods.sysconnect(self, host, port)
    return outcome(self, raw.connect(check(self), tostring(host), tostring(port)))
end

function methods.bind(self, host, port)
    return outcome(self, raw.bind(check(self), tostring(host), tostring(port)))
end

function methods.listen(self, backlog)
    return outcome(self, raw.listen(check(self), backlog or 256))
end

local HOW = { R = 0, READ = 0, receive = 0, W = 1, WRITE = 1, send = 1, RW = 2, READ_WRITE = 2, both = 2, [0] = 0, 1, 2 }

function methods.shutdown(self, how)
    return outcome(self, raw.shutdown(check(self), HOW[how] or 2))
end

-- The convention of calls that give a value or nil.
local function result(self, value, errno, ...)
    if value == nil then
        failed(self, errno)
        return nil
    end
    self._errno = nil
    return value, errno, ...
end

function methods.nonblock(self, mode)
    local handle = check(self)
    if mode ~= nil then
        mode = mode and true or false
    end
    return (result(self, raw.nonblock(handle, mode)))
end

function methods.accept(self)
    local handle, from = raw.accept((check(self)))
    if handle == nil then
        failed(self, from)
        return nil
    end
    self._errno = nil
    return make_socket(handle, self.itype), from
end

function methods.syswrite(self, data, size)
    local handle = check(self)
    if type(data) == 'cdata' and size ~= nil then
        if type(size) ~= 'number' or size < 0 or not pcall(ffi.cast, 'const char *', data) then
            error('Usage: socket:syswrite(data) or socket:syswrite(const char *, size)', 2)
        end
        data = ffi.string(data, size)
    elseif type(data) ~= 'string' then
        error('Usage: socket:syswrite(data) or socket:syswrite(const char *, size)', 2)
    end
    return (result(self, raw_write(handle, data, 0)))
end

function methods.sysread(self, first, size)
    local handle = check(self)
    if type(first) == 'cdata' and size ~= nil then
        if type(size) ~= 'number' or size < 0 or not pcall(ffi.cast, 'char *', first) then
            return E.complain('Usage: socket:sysread([size]) or socket:sysread(char *, size)')
        end
        local data = result(self, raw.sysread(handle, size))
        if data then
            ffi.copy(first, data, #data)
        end
        return data and #data
    end
    size = first ~= nil and first or 16320
    if type(size) ~= 'number' then
        return E.complain('Usage: socket:sysread([size]) or socket:sysread(char *, size)')
    elseif size < 0 then
        error('socket:sysread(): size can not be negative', 2)
    end
    return (result(self, raw.sysread(handle, size)))
end

-- ---------------------------------------------------------------- options

local PROTOCOLS = { ip = 0, icmp = 1, tcp = 6, udp = 17 }

-- A protocol's number, or nil and an errno.
local function protocol_number(name)
    if type(name) == 'number' then
        return name
    elseif type(name) ~= 'string' then
        return nil, ERRNO.EINVAL
    end
    local number = PROTOCOLS[name] or raw.protocol(name)
    if number == nil then
        return nil, ERRNO.EPROTOTYPE
    end
    PROTOCOLS[name] = number
    return number
end

local function level_number(level)
    if type(level) == 'number' then
        return level
    elseif type(level) ~= 'string' then
        return nil, ERRNO.EINVAL
    elseif level == 'SOL_SOCKET' or level == 'socket' then
        return raw.SOL_SOCKET
    end
    return protocol_number((level:match('IPPROTO_([A-Z]*)') or level:match('SOL_([A-Z]*)') or level):lower())
end

-- A number stands for itself.
local function number_of(names, name)
    if type(name) == 'number' then
        return name
    end
    return names[name]
end

-- Number of the level and description of the option; nil and an errno for an unknown level.
local function option_of(level, name)
    local number, errno = level_number(level)
    if number == nil then
        return nil, errno
    end
    local option = (raw.SO_OPT[number] or {})[name]
    if option == nil then
        if type(name) == 'number' then
            return number, { iname = name, type = 1, rw = true }
        end
        error('Unknown socket option name: ' .. tostring(name), 3)
    end
    return number, option
end

function methods.setsockopt(self, level, name, value)
    local handle = check(self)
    local number, option = option_of(level, name)
    if number == nil then
        failed(self, option)
        return false
    end
    if not option.rw then
        error(format('Socket option %s is read only', name), 2)
    end
    if type(value) == 'boolean' then
        value = value and 1 or 0
    end
    if option.type == 1 then
        return outcome(self, raw.set_int(handle, number, option.iname, tonumber(value)))
    end
    return outcome(self, raw.set_text(handle, number, option.iname, tostring(value)))
end

function methods.getsockopt(self, level, name)
    local handle = check(self)
    local number, option = option_of(level, name)
    if number == nil then
        failed(self, option)
        return nil
    end
    if option.type == 1 then
        return (result(self, raw.get_int(handle, number, option.iname)))
    elseif option.type == 2 then
        return (result(self, raw.get_text(handle, number, option.iname)))
    elseif name == 'SO_LINGER' then
        error('Use s:linger()', 2)
    end
    error('Unsupported socket option: ' .. tostring(name), 2)
end

function methods.linger(self, active, timeout)
    local handle = check(self)
    if active == nil then
        return result(self, raw.linger(handle))
    end
    timeout = timeout or 0
    if not outcome(self, raw.linger(handle, active and true or false, timeout)) then
        return nil
    end
    return active, timeout
end

-- ---------------------------------------------------------------- streams

local function read(self, limit, timeout, delimiters)
    if limit < 0 then
        error('socket:read(): limit can not be negative', 3)
    end
    local handle = self._handle
    limit = min(limit, LIMIT_INFINITY)
    local data, errno = raw_read(handle, limit, delimiters, true)
    if data then
        self._errno = nil
        return data
    end
    local deadline, no_time = limits(timeout)
    while TRANSIENT[errno] do
        if wait_for(handle, READ, deadline, no_time, 3, true) == 0 then
            errno = ERRNO.ETIMEDOUT
            break
        end
        if not raw_fd(handle) then
            error(CLOSED, 3)
        end
        data, errno = raw_read(handle, limit, delimiters)
        if data then
            self._errno = nil
            return data
        end
    end
    failed(self, errno)
    return nil
end

function methods.read(self, what, timeout)
    check(self)
    local kind = type(what)
    if kind == 'number' then
        local data = read(self, what, timeout)
        return data
    elseif kind == 'string' then
        local data = read(self, LIMIT_INFINITY, timeout, what)
        return data
    elseif kind == 'table' then
        local limit, delimiter = what.chunk or what.size or LIMIT_INFINITY, what.delimiter or what.line
        if delimiter == nil or type(delimiter) == 'string' or type(delimiter) == 'table' then
            local data = read(self, limit, timeout, delimiter)
            return data
        end
    end
    error('Usage: s:read(delimiter|chunk|{delimiter = x, chunk = x}, timeout)', 2)
end

function methods.write(self, octets, timeout)
    local handle = check(self)
    if type(octets) ~= 'string' then
        error('Usage: socket:write(octets[, timeout])', 2)
    end
    local size, sent = #octets, 0
    if size == 0 then
        return 0
    end
    local deadline, no_time
    while true do
        local n, errno = raw_write(handle, octets, sent)
        if n then
            sent = sent + n
            if sent == size or n == 0 then
                self._errno = nil
                return sent
            end
        elseif not TRANSIENT[errno] then
            failed(self, errno)
            return nil
        else
            if no_time == nil then
                deadline, no_time = limits(timeout)
            end
            if wait_for(handle, WRITE, deadline, no_time, 2, true) == 0 then
                failed(self, ERRNO.ETIMEDOUT)
                return nil
            end
            if not raw_fd(handle) then
                error(CLOSED, 2)
            end
        end
    end
end

-- ---------------------------------------------------------------- messages

-- A flag or a list of flags as a number, or nil for an unknown one.
local function flags_of(names, flags)
    if flags == nil then
        return 0
    end
    local set = 0
    for _, flag in every(type(flags) == 'table' and flags or { flags }) do
        local number = number_of(names, flag)
        if number == nil then
            return nil
        end
        set = bit.bor(set, number)
    end
    return set
end

function methods.send(self, octets, flags)
    local handle = check(self)
    local number = flags_of(raw.SEND_FLAGS, flags)
    if number == nil then
        failed(self, ERRNO.EINVAL)
        return nil
    end
    return (result(self, raw.send(handle, tostring(octets), number)))
end

function methods.sendto(self, host, port, octets, flags)
    local handle = check(self)
    local number = flags_of(raw.SEND_FLAGS, flags)
    if number == nil then
        failed(self, ERRNO.EINVAL)
        return nil
    end
    if octets == nil or octets == '' then
        self._errno = nil
        return true
    end
    return (result(self, raw.sendto(handle, tostring(host), tostring(port), tostring(octets), number)))
end

local function receive(self, size, flags, with_address)
    local handle = check(self, 3)
    local number = flags_of(raw.SEND_FLAGS, flags)
    if number == nil then
        failed(self, ERRNO.EINVAL)
        return nil
    end
    if size == nil and self.itype ~= raw.SO_TYPE.SOCK_DGRAM then
        size = 512
    end
    return result(self, raw.recv(handle, size, number, with_address))
end

function methods.recv(self, size, flags)
    return (receive(self, size, flags, false))
end

function methods.recvfrom(self, size, flags)
    local data, from = receive(self, size, flags, true)
    return data, from
end

-- ---------------------------------------------------------------- birth

-- Domain, type and protocol as numbers; nil and an errno.
local function kind_of(domain, stype, protocol)
    local idomain, itype = number_of(raw.DOMAIN, domain), number_of(raw.SO_TYPE, stype)
    if idomain == nil or itype == nil then
        return nil, ERRNO.EINVAL
    end
    local iprotocol, errno = protocol_number(protocol)
    if iprotocol == nil then
        return nil, errno
    end
    return idomain, itype, iprotocol
end

local function new_socket(domain, stype, protocol)
    local idomain, itype, iprotocol = kind_of(domain, stype, protocol)
    if idomain == nil then
        ffi.errno(itype)
        return nil
    end
    local handle, errno = raw.socket(idomain, itype, iprotocol)
    if handle == nil then
        ffi.errno(errno)
        return nil
    end
    return make_socket(handle, itype)
end

local socket = {}

function socket.socketpair(domain, stype, protocol)
    local idomain, itype, iprotocol = kind_of(domain, stype, protocol)
    if idomain == nil then
        ffi.errno(itype)
        return nil
    end
    local one, other = raw.pair(idomain, itype, iprotocol)
    if one == nil then
        ffi.errno(other)
        return nil
    end
    return make_socket(one, itype), make_socket(other, itype)
end

function socket.from_fd(fd)
    if type(fd) ~= 'number' then
        error('fd must be a number', 2)
    end
    return make_socket(raw.adopt(fd))
end

-- ---------------------------------------------------------------- names

-- Hints of getaddrinfo as numbers: family, type, protocol, flags; nil and an errno.
local function hints_of(opts)
    local numbers = {
        opts.family == nil and 0 or number_of(raw.DOMAIN, opts.family),
        opts.type == nil and 0 or number_of(raw.SO_TYPE, opts.type),
        [4] = flags_of(raw.AI_FLAGS, opts.flags),
    }
    if not numbers[1] or not numbers[2] or not numbers[4] then
        return nil, ERRNO.EINVAL
    end
    local errno
    if opts.protocol == nil then
        numbers[3] = 0
    else
        numbers[3], errno = protocol_number(opts.protocol)
        if not numbers[3] then
            return nil, errno
        end
    end
    return numbers
end

local function look_up(host, port, deadline, hints, level)
    local ticket, problem =
        raw.lookup(host ~= nil and tostring(host) or nil, tostring(port), hints[1], hints[2], hints[3], hints[4])
    if ticket == nil then
        ffi.errno(ERRNO.EIO)
        return nil, problem
    end
    while true do
        local err, list, text = raw.looked_up(ticket, deadline)
        if type(list) == 'table' then
            return list
        elseif text then
            ffi.errno(ERRNO.EIO)
            return nil, text
        elseif err == TIMED_OUT then
            raw.drop_lookup(ticket)
            ffi.errno(ERRNO.ETIMEDOUT)
            return nil, 'timed out'
        elseif err ~= nil then
            raw.drop_lookup(ticket)
            fail(err, level + 1)
        end
    end
end

function socket.getaddrinfo(host, port, timeout, opts)
    if type(timeout) == 'table' and opts == nil then
        timeout, opts = nil, timeout
    end
    if opts ~= nil and type(opts) ~= 'table' then
        return E.complain('Usage: socket.getaddrinfo(host, port[, timeout[, hints]])')
    end
    local hints, errno = hints_of(opts ~= nil and opts or {})
    if hints == nil then
        return refused(errno)
    end
    local list, problem = look_up(host, port or 0, (limits(timeout)), hints, 2)
    return list, problem
end

-- ---------------------------------------------------------------- connecting

-- Connects an open socket to a numeric address: true, or nil with the socket's errno set.
local function connect(self, host, port, deadline, no_time)
    local done, errno = raw.connect(self._handle, tostring(host), tostring(port))
    if done then
        return true
    elseif errno == ERRNO.EINPROGRESS then
        -- Between here and the program: pcall, connected, tcp_connect.
        if wait_for(self._handle, WRITE, deadline, no_time, 5) == 0 then
            errno = ERRNO.ETIMEDOUT
        else
            errno = raw.get_int(self._handle, raw.SOL_SOCKET, raw.SO_OPT[raw.SOL_SOCKET].SO_ERROR.iname)
            if errno == 0 then
                return true
            end
        end
    end
    self._errno = errno
    return nil
end

-- connect, and no socket left behind if it fails or raises (a cancelled fiber's does).
local function connected(s, host, port, deadline, no_time)
    local ok, done = pcall(connect, s, host, port, deadline, no_time)
    if ok and done then
        ffi.errno(0)
        return s
    end
    local errno = s._errno
    socket_close(s)
    if not ok then
        error(done, 0)
    end
    return nil, errno
end

local HINTS = { 0, raw.SO_TYPE.SOCK_STREAM, 6, raw.AI_FLAGS.AI_ADDRCONFIG }

function socket.tcp_connect(host, port, timeout)
    local deadline, no_time = limits(timeout)
    local errno
    if host == 'unix/' then
        local s = new_socket('AF_UNIX', 'SOCK_STREAM', 0)
        if not s then
            return refused(ffi.errno())
        end
        s, errno = connected(s, host, port, deadline, no_time)
        if not s then
            return refused(errno)
        end
        return s
    end
    local list, problem = look_up(host, port or 0, deadline, HINTS, 2)
    if list == nil then
        return nil, problem
    end
    errno = ERRNO.EINVAL
    for _, remote in ipairs(list) do
        if no_time then
            return refused(ERRNO.ETIMEDOUT)
        end
        local s = new_socket(remote.family, remote.type, remote.protocol)
        if s then
            s, errno = connected(s, remote.host, remote.port, deadline)
            if s then
                return s
            end
        else
            errno = ffi.errno()
        end
    end
    return refused(errno)
end

-- ---------------------------------------------------------------- servers

local function log()
    return load('cord.log')
end

local function rename(server, address)
    fiber.name(format('%s/%s:%s', server.name, address.host, address.port), { truncate = true })
end

local function serve_client(server, client, from)
    rename(server, from or { host = '?', port = '?' })
    local ok, problem = pcall(server.handler, client, from)
    -- The handler may have closed it.
    if raw_fd(client._handle) then
        client:shutdown()
        client:close()
    end
    if not ok then
        error(problem, 0)
    end
end

local function serve(server, s, address)
    address = address or raw.name(s._handle) or { host = '?', port = '?' }
    rename(server, address)
    log().verbose('started')
    local accepted = 0
    while raw_fd(s._handle) do
        local client, from = methods.accept(s)
        if client then
            fiber.create(serve_client, server, client, from)
            accepted = accepted + 1
            if accepted % 32 == 0 then
                -- A flood of clients leaves others their turn.
                fiber.yield()
            end
        elseif TRANSIENT[s._errno] then
            wait_for(s._handle, READ, nil, false, 2, true)
        else
            local errno = s._errno
            log().error('accept(%s) failed: %s', tostring(s), strerror(errno))
            if FATAL[errno] then
                break
            end
            -- Out of descriptors, most likely: the queue stays as it is, so it would be asked again at once.
            fiber.sleep(0.01)
        end
    end
    log().verbose('stopped')
end

-- Binds; an object whose close removes the unix socket's file.
local function do_bind(s, address)
    if not methods.bind(s, address.host, address.port) then
        return false
    end
    if address.family == 'AF_UNIX' then
        -- The file goes first: then nobody's file is removed who binds to the path in between.
        function s.close(self)
            raw.unlink(address.port)
            return socket_close(self)
        end
    end
    return true
end

-- As do_bind; a unix socket's file that nobody listens to any more is removed.
local function bind_address(s, address)
    if do_bind(s, address) then
        return true
    end
    local errno = s._errno
    if address.family ~= 'AF_UNIX' or errno ~= ERRNO.EADDRINUSE then
        return false
    end
    local other = socket.tcp_connect(address.host, address.port)
    if other or ffi.errno() ~= ERRNO.ECONNREFUSED then
        if other then
            other:close()
        end
        s._errno = errno
        return false
    end
    log().info('tcp_server: remove dead UNIX socket: %s', address.port)
    raw.unlink(address.port)
    return do_bind(s, address)
end

local LISTEN_HINTS =
    { 0, raw.SO_TYPE.SOCK_STREAM, 6, bit.bor(raw.AI_FLAGS.AI_ADDRCONFIG, raw.AI_FLAGS.AI_PASSIVE) }

local function listening(host, port, prepare, timeout, level)
    local list, problem
    if host == 'unix/' then
        list = { { host = host, port = port, family = 'AF_UNIX', protocol = 0, type = 'SOCK_STREAM' } }
    else
        list, problem = look_up(host, port or 0, (limits(timeout)), LISTEN_HINTS, level + 1)
        if list == nil then
            return nil, problem
        end
    end
    for _, address in ipairs(list) do
        local s = new_socket(address.family, address.type, address.protocol)
        if s then
            local backlog
            if prepare then
                backlog = prepare(s)
            else
                methods.setsockopt(s, 'SOL_SOCKET', 'SO_REUSEADDR', 1)
            end
            if not bind_address(s, address) or not methods.listen(s, backlog) then
                local errno = s._errno
                s:close()
                return refused(errno)
            end
            return s, setmetatable(address, address_mt)
        end
    end
    return refused(ERRNO.EAFNOSUPPORT)
end

-- The options of a server: a function stands for { [field] = function }.
local function server_of(opts, field, usage, level)
    local server = {}
    if type(opts) == 'function' then
        server[field] = opts
    elseif type(opts) == 'table' then
        for key, value in every(opts) do
            server[key] = value
        end
    else
        error(usage, level + 1)
    end
    if field == 'handler' and type(server.handler) ~= 'function'
        or server.prepare ~= nil and type(server.prepare) ~= 'function' then
        error(usage, level + 1)
    end
    server.name = server.name or 'server'
    return server
end

function socket.tcp_server(host, port, opts, timeout)
    local server = server_of(opts, 'handler', 'Usage: socket.tcp_server(host, port, handler | opts)', 2)
    local s, address = listening(host, port, server.prepare, tonumber(timeout), 2)
    if not s then
        return nil, address
    end
    fiber.create(serve, server, s, address)
    return s, address
end

function socket.tcp_server_create(host, port, opts, timeout)
    local server = server_of(opts, 'prepare', 'Usage: socket.tcp_server_create(host, port, prepare | opts)', 2)
    local s, address = listening(host, port, server.prepare, tonumber(timeout), 2)
    return s, address
end

function socket.tcp_server_loop(s, opts)
    local server = server_of(opts, 'handler', 'Usage: socket.tcp_server_loop(socket, handler | opts)', 2)
    if type(s) == 'number' then
        s = socket.from_fd(s)
    end
    check(s)
    return serve(server, s)
end

socket.iowait = iowait
socket.internal = raw

-- LuaSocket's calls, made when one of them is first asked for; not keys of the module, as in Tarantool.
local EMULATED = { tcp = true, connect = true, bind = true }
local emulation

return setmetatable(socket, {
    __call = function(_, ...)
        return new_socket(...)
    end,
    __index = function(_, key)
        if not EMULATED[key] then
            return nil
        end
        emulation = emulation or load('cord.luasocket')(socket, methods)
        return emulation[key]
    end,
})
