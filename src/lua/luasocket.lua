-- The calls of LuaSocket that Tarantool's `socket` emulates, so that libraries written for it wait as fibers: `tcp`, `connect`,
-- `bind`. An object is a master, a server or a client, as there; timeouts are set once and in seconds.
local _, load = ...

local fiber = load('cord.fiber')
local errno = load('cord.errno')

local type, tostring, error, setmetatable, format, min = type, tostring, error, setmetatable, string.format, math.min
local ETIMEDOUT = errno.ETIMEDOUT

-- `socket` is the module; `methods` are those of its objects.
return function(socket, methods)
    local TRANSIENT = { [errno.EAGAIN] = true, [errno.EINTR] = true }

    -- LuaSocket's convention: 1, or nil and a text.
    local function outcome(self, done)
        if not done then
            return nil, methods.error(self)
        end
        return 1
    end

    local function deadline_of(self)
        return self.timeout and fiber.clock() + self.timeout
    end

    local function left(deadline)
        return deadline and deadline - fiber.clock()
    end

    local function address(self, get)
        local found = get(self)
        if found == nil then
            return nil, methods.error(self)
        end
        return found.host, tostring(found.port), (found.family:gsub('^AF_', ''):lower())
    end

    local common = {}

    function common.close(self)
        if not methods.close(self) then
            return nil, errno.strerror(self._errno)
        end
        return 1
    end

    function common.getsockname(self)
        return address(self, methods.name)
    end

    function common.getpeername(self)
        return address(self, methods.peer)
    end

    function common.settimeout(self, value)
        methods.fd(self)
        self.timeout = value
        return 1
    end

    function common.setoption(self, option, value)
        if option == 'reuseaddr' then
            return outcome(self, methods.setsockopt(self, 'socket', 'SO_REUSEADDR', value))
        elseif option == 'keepalive' then
            return outcome(self, methods.setsockopt(self, 'socket', 'SO_KEEPALIVE', value))
        elseif option == 'tcp-nodelay' then
            return outcome(self, methods.setsockopt(self, 'tcp', 'TCP_NODELAY', value))
        elseif option == 'linger' then
            if type(value) == 'table' then
                value = value.on
            end
            return outcome(self, methods.linger(self, value and true or false) ~= nil)
        end
        error('Unknown socket option name: ' .. tostring(option), 2)
    end

    -- ------------------------------------------------------------ clients

    local stream = {}

    function stream.receive(self, pattern, prefix)
        prefix = prefix or ''
        local data
        if type(pattern) == 'number' then
            data = methods.read(self, pattern, self.timeout)
            if data and #data < pattern then
                return nil, 'closed', prefix .. data
            end
        elseif pattern == nil or pattern == '*l' then
            data = methods.read(self, '\n', self.timeout)
            if data and data:sub(-1) ~= '\n' then
                return nil, 'closed', prefix .. data
            end
            data = data and data:sub(1, -2)
        elseif pattern == '*a' then
            data = methods.read(self, { chunk = 2147483647 }, self.timeout)
            if data == '' then
                return nil, 'closed', prefix
            end
        else
            error('Usage: socket:receive(pattern, [, prefix])', 2)
        end
        if data == nil then
            return nil, methods.error(self)
        end
        return prefix .. data
    end

    function stream.send(self, data, i, j)
        if i ~= nil then
            data = data:sub(i, j)
        end
        local sent = methods.write(self, data, self.timeout)
        if not sent then
            return nil, methods.error(self)
        end
        return (i or 1) + sent - 1
    end

    function stream.shutdown(self, how)
        return outcome(self, methods.shutdown(self, how))
    end

    local function class(name, ...)
        local index = {}
        for _, part in ipairs({ common, ... }) do
            for key, method in pairs(part) do
                index[key] = method
            end
        end
        local function text(self)
            return format('tcp{%s}: fd=%d', name, methods.fd(self))
        end
        return { __index = index, __tostring = text, __serialize = text }
    end

    local client_mt = class('client', stream)

    -- ------------------------------------------------------------ servers

    local listener = {}

    function listener.accept(self)
        local deadline = deadline_of(self)
        while true do
            local client = methods.accept(self)
            if client then
                return setmetatable(client, client_mt)
            elseif not TRANSIENT[self._errno] or not methods.readable(self, left(deadline)) then
                return nil, methods.error(self)
            end
        end
    end

    local server_mt = class('server', listener)

    -- ------------------------------------------------------------ what may still become either

    local master = { receive = stream.receive, send = stream.send }

    function master.bind(self, host, port)
        return outcome(self, methods.bind(self, host, port))
    end

    function master.listen(self, backlog)
        local done, problem = outcome(self, methods.listen(self, backlog))
        if done then
            setmetatable(self, server_mt)
        end
        return done, problem
    end

    function master.connect(self, host, port)
        methods.fd(self)
        local deadline = deadline_of(self)
        local list, problem = socket.getaddrinfo(host, port, left(deadline), { family = 'AF_INET', type = 'SOCK_STREAM' })
        if list == nil then
            return nil, problem
        end
        for _, remote in ipairs(list) do
            if methods.sysconnect(self, remote.host, remote.port) then
                return 1
            elseif self._errno == errno.EINPROGRESS then
                if methods.writable(self, left(deadline)) then
                    self._errno = methods.getsockopt(self, 'SOL_SOCKET', 'SO_ERROR')
                    if self._errno == 0 then
                        return 1
                    end
                else
                    self._errno = ETIMEDOUT
                end
            end
        end
        return nil, methods.error(self)
    end

    local master_mt = class('master', master)

    local M = {}

    function M.tcp()
        local s = socket('AF_INET', 'SOCK_STREAM', 'tcp')
        if not s then
            return nil, errno.strerror()
        end
        return setmetatable(s, master_mt)
    end

    function M.connect(host, port)
        if host == nil or port == nil then
            error('Usage: luasocket.connect(host, port)', 2)
        end
        local s, problem = socket.tcp_connect(host, port)
        if not s then
            return nil, problem
        end
        return setmetatable(s, client_mt)
    end

    function M.bind(host, port, backlog)
        if host == nil or port == nil then
            error('Usage: luasocket.bind(host, port [, backlog])', 2)
        end
        local s, problem = socket.tcp_server_create(host, port, {
            prepare = function(s)
                methods.setsockopt(s, 'SOL_SOCKET', 'SO_REUSEADDR', 1)
                return backlog and min(backlog, 65535)
            end,
        })
        if not s then
            return nil, problem
        end
        return setmetatable(s, server_mt)
    end

    return M
end
