---@meta cord.socket

---Sockets for fibers, as Tarantool's `socket`. A method that has to wait lets the other fibers run, and is a cancellation
---point: `FiberIsCancelled` is raised in it. Timeouts are seconds; nil waits for ever, 0 looks once. A failed call returns
---nil or false; `s:errno()` and `s:error()` say why. Wrong use raises, as does any method of a closed socket.
---@class cord.socket
---@field internal table the native functions and the numbers of the system (`DOMAIN`, `SO_TYPE`, `SO_OPT`, `AI_FLAGS`, ...)
---@overload fun(domain: cord.socket.domain, type: cord.socket.type, protocol: string|integer): cord.socket.object?
local socket = {}

---@alias cord.socket.domain "AF_UNIX"|"AF_INET"|"AF_INET6"|string|integer
---@alias cord.socket.type "SOCK_STREAM"|"SOCK_DGRAM"|"SOCK_SEQPACKET"|"SOCK_RAW"|string|integer

---@class cord.socket.address
---@field host string numeric, or "unix/"
---@field port integer|string a path for a unix socket
---@field family "AF_UNIX"|"AF_INET"|"AF_INET6"
---@field type? string
---@field protocol? string|integer
---@field canonname? string

---@class cord.socket.hints
---@field family? cord.socket.domain
---@field type? cord.socket.type
---@field protocol? string|integer
---@field flags? string|string[]|integer AI_* names

---@class cord.socket.server_options
---@field handler fun(client: cord.socket.object, from: cord.socket.address) runs in a fiber for each client
---@field prepare? fun(listener: cord.socket.object): integer? before bind; may return the backlog. Default: SO_REUSEADDR
---@field name? string of the server's fibers; default "server"

---Connects over TCP, or to a unix socket with host "unix/" and a path. Tries each address of a name.
---@async
---@param host string
---@param port integer|string
---@param timeout? number seconds, names included
---@return cord.socket.object? s
---@return string? err
function socket.tcp_connect(host, port, timeout) end

---Listens and serves each client with a handler in a fiber of its own, which closes the client in the end. Closing the
---returned socket ends the server. A unix socket's file is removed on close, and a dead one before.
---Raises `Usage: socket.tcp_server(host, port, handler | opts)`.
---@async
---@param host string
---@param port integer|string
---@param opts cord.socket.server_options|fun(client: cord.socket.object, from: cord.socket.address)
---@param timeout? number seconds for the look-up of `host`
---@return cord.socket.object? s
---@return cord.socket.address|string address or error
function socket.tcp_server(host, port, opts, timeout) end

---The first half of `tcp_server`: a listening socket.
---@async
---@param host string
---@param port integer|string
---@param opts { prepare?: fun(listener: cord.socket.object): integer? }|fun(listener: cord.socket.object): integer?
---@param timeout? number
---@return cord.socket.object? s
---@return cord.socket.address|string address or error
function socket.tcp_server_create(host, port, opts, timeout) end

---Its second half, in the calling fiber: returns when the socket is closed.
---@async
---@param s cord.socket.object|integer
---@param opts cord.socket.server_options|fun(client: cord.socket.object, from: cord.socket.address)
function socket.tcp_server_loop(s, opts) end

---The addresses of a name. Names are looked up on another thread: nothing blocks.
---@async
---@param host string?
---@param service? string|integer default 0
---@param timeout? number|cord.socket.hints
---@param hints? cord.socket.hints
---@return cord.socket.address[]? addresses
---@return string? err
function socket.getaddrinfo(host, service, timeout, hints) end

---Two sockets connected with each other.
---@param domain cord.socket.domain
---@param type cord.socket.type
---@param protocol string|integer
---@return cord.socket.object? one
---@return cord.socket.object? other
function socket.socketpair(domain, type, protocol) end

---A socket object that owns a descriptor, in the mode it is in: `s:nonblock(true)` is the caller's.
---@param fd integer
---@return cord.socket.object
function socket.from_fd(fd) end

---Waits for a descriptor: 1 or "r" to read, 2 or "w" to write. Gives what it is ready for, in the same notation; 0 or ""
---when the time is over. The numbers' form gives 0 in a cancelled fiber, the texts' form raises. A plain file and a closed
---descriptor are always ready. With `iowait(nil, nil, timeout)` it sleeps.
---@async
---@param fd integer?
---@param events 1|2|3|"r"|"w"|"rw"|"R"|"W"|"RW"|nil
---@param timeout? number
---@return integer|string events
function socket.iowait(fd, events, timeout) end

---@class cord.socket.luasocket: table an object with LuaSocket's methods: receive, send, settimeout, accept, ...

---LuaSocket's `tcp()`, as Tarantool emulates it; so are the next two.
---@return cord.socket.luasocket? master
---@return string? err
function socket.tcp() end

---@async
---@param host string
---@param port integer|string
---@return cord.socket.luasocket? client
---@return string? err
function socket.connect(host, port) end

---@async
---@param host string
---@param port integer|string
---@param backlog? integer
---@return cord.socket.luasocket? server
---@return string? err
function socket.bind(host, port, backlog) end

---@class cord.socket.object
local object = {}

---@return boolean closed Whoever waits for it is woken first.
function object:close() end

---The object gives up its descriptor, which stays open.
function object:detach() end

---The number of the last failed call; 0 after one that worked.
---@nodiscard
---@return integer
function object:errno() end

---Its text, or nil.
---@nodiscard
---@return string?
function object:error() end

---@nodiscard
---@return integer
function object:fd() end

---Begins to connect to a numeric address. False with EINPROGRESS: `s:writable()` tells when, `SO_ERROR` how it ended.
---@param host string
---@param port integer|string
---@return boolean
function object:sysconnect(host, port) end

---@param host string numeric, or "unix/"
---@param port integer|string
---@return boolean
function object:bind(host, port) end

---@param backlog? integer default 256
---@return boolean
function object:listen(backlog) end

---Does not wait: nil with EAGAIN when nobody is there.
---@return cord.socket.object? client
---@return cord.socket.address? from
function object:accept() end

---@param how? "R"|"W"|"RW"|"receive"|"send"|"both"|0|1|2 default "RW"
---@return boolean
function object:shutdown(how) end

---Gets, or sets, whether system calls on it return instead of waiting.
---@param mode? boolean
---@return boolean?
function object:nonblock(mode) end

---@async
---@param timeout? number
---@return boolean
function object:readable(timeout) end

---@async
---@param timeout? number
---@return boolean
function object:writable(timeout) end

---@async
---@param timeout? number
---@return "R"|"W"|"RW"|0
function object:wait(timeout) end

---Reads `what` bytes, or up to a delimiter, whichever comes first; less only at the end of the stream, where "" follows.
---@async
---@param what integer|string|{ chunk?: integer, size?: integer, delimiter?: string|string[], line?: string|string[] }
---@param timeout? number
---@return string? data nil when it failed or timed out: what has come is kept for the next call
function object:read(what, timeout) end

---Writes everything.
---@async
---@param octets string
---@param timeout? number
---@return integer? bytes
function object:write(octets, timeout) end

---One `read(2)`.
---@param size? integer default 16320
---@return string?
---@overload fun(self, buffer: ffi.cdata*, size: integer): integer?
function object:sysread(size) end

---One `write(2)`.
---@param data string
---@return integer?
---@overload fun(self, buffer: ffi.cdata*, size: integer): integer?
function object:syswrite(data) end

---@param octets string
---@param flags? string|string[]|integer MSG_* names
---@return integer?
function object:send(octets, flags) end

---@param size? integer default 512, of a datagram socket the next one's
---@param flags? string|string[]|integer
---@return string?
function object:recv(size, flags) end

---@param size? integer
---@param flags? string|string[]|integer
---@return string?
---@return cord.socket.address? from
function object:recvfrom(size, flags) end

---@param host string numeric, or "unix/"
---@param port integer|string
---@param octets string
---@param flags? string|string[]|integer
---@return integer|true|nil
function object:sendto(host, port, octets, flags) end

---@param level string|integer "SOL_SOCKET", "tcp", "IPPROTO_TCP", ...
---@param name string|integer
---@param value boolean|integer|string
---@return boolean
function object:setsockopt(level, name, value) end

---@param level string|integer
---@param name string|integer
---@return integer|string|nil
function object:getsockopt(level, name) end

---Gets, or sets, whether close waits for unsent data, and for how many seconds.
---@param active? boolean
---@param timeout? integer
---@return boolean?
---@return integer?
function object:linger(active, timeout) end

---@return cord.socket.address?
function object:name() end

---@return cord.socket.address?
function object:peer() end

return socket
