-- cord.console: the client of Tarantool's text console (`require('console').listen(...)` on the server). Requests and
-- replies come in order, so any number of fibers share one connection: each queues its request, and one of those who wait,
-- the leader, does the reading and writing for all. A request nobody waits for any more is still read past.
--
--   eval --> queue --> [leader: write queue, read replies in order, wake their owners] --> reply
--                        ^ a leader that has its own reply hands over to the next who waits
local _, load = ...

local fiber = load('cord.fiber')
local socket = load('cord.socket')
local uri = load('cord.uri')

local raw = socket.internal
local fail, park, new_deadline = fiber._internal.fail, fiber._internal.raw.park, fiber._internal.raw.deadline
local type, tonumber, tostring, pcall, error, setmetatable = type, tonumber, tostring, pcall, error, setmetatable

local READ, WRITE, TIMED_OUT, LIMIT = 1, 2, 2, 2147483647
local EAGAIN = raw.ERRNO.EAGAIN
-- Ends a request; the server is told so at the start.
local DELIMITER = '$EOF$'
local DEFAULT_CONNECT_TIMEOUT = 10
-- What a reply ends with, and how a message that is no reply begins, by format of output.
local FORMATS = {
    yaml = { eos = '\n...\n', push = '%TAG !push!' },
    lua = { eos = ';', push = '-- Push\n' },
}
local OUTPUT_NAMES = { output = true, o = true }
local SET_NAMES = { set = true, s = true }

local methods = {}
local meta = { __index = methods }

-- For people who type at it, as connections of net.box.
function meta.__tostring(self)
    return ('console: %s:%s (%s%s)'):format(self.host, self.port, self.state, self.error and ': ' .. tostring(self.error) or '')
end

-- ---------------------------------------------------------------- input and output

-- The connection is over: everybody who waits is told.
local function broken(self, state, problem)
    if self.state == 'active' then
        self.state, self.error = state, problem
    end
    local handle = self._socket._handle
    if raw.fd(handle) then
        self._socket:close()
    end
    for i = self._received + 1, self._sent do
        local waiter = self._requests[i] and self._requests[i].fiber
        if waiter then
            fiber.wakeup(waiter)
        end
    end
end

-- Writes what is queued, as far as the system takes it. True when nothing is left.
local function flush(self)
    local out = self._out
    while out.first <= out.last do
        local text = out[out.first]
        local n, errno = raw.write(self._socket._handle, text, out.offset)
        if not n then
            if errno ~= EAGAIN then
                broken(self, 'error', self._strerror(errno))
            end
            return false
        end
        out.offset = out.offset + n
        if out.offset == #text then
            out[out.first], out.offset, out.first = nil, 0, out.first + 1
        end
    end
    return true
end

local function pushed(self, text)
    if self._on_push then
        local ok, problem = pcall(self._on_push, text)
        if not ok then
            load('cord.log').error('console: on_push: %s', tostring(problem))
        end
    end
end

-- A reply or a message has come.
local function arrived(self, text, format)
    if text:sub(1, #format.push) == format.push then
        return pushed(self, text)
    end
    local i = self._received + 1
    local request = self._requests[i]
    self._requests[i], self._received = nil, i
    request.reply = text
    if request.fiber then
        fiber.wakeup(request.fiber)
    end
end

-- Reads what has come. False when the next reply is not whole yet.
local function take(self)
    local request = self._requests[self._received + 1]
    local format = request.format
    local text, errno = raw.read(self._socket._handle, LIMIT, format.eos, true)
    if text == nil then
        if errno ~= EAGAIN then
            broken(self, 'error', self._strerror(errno))
        end
        return false
    elseif text:sub(-#format.eos) ~= format.eos then
        broken(self, 'error', 'Peer closed')
        return false
    end
    arrived(self, text, format)
    return true
end

-- The leader's work, until its own reply is there or the connection is over. A code of `fail` if its wait ended.
local function lead(self, mine, deadline)
    while not mine.reply and self.state == 'active' do
        local all_written = flush(self)
        while self.state == 'active' and not mine.reply and take(self) do -- luacheck: ignore 542
        end
        if self.state == 'active' and not mine.reply then
            local err = raw.iowait(self._socket._handle, all_written and READ or READ + WRITE, deadline, false, true)
            if err then
                return err
            end
        end
    end
end

-- Wakes the first who waits, who leads then.
local function hand_over(self)
    self._leader = nil
    for i = self._received + 1, self._sent do
        local request = self._requests[i]
        if request.fiber then
            fiber.wakeup(request.fiber)
            return
        end
    end
end

-- Waits for the reply of `request`: nothing, or a code of `fail`.
local function await(self, request, deadline)
    while not request.reply and self.state == 'active' do
        local err
        request.fiber = fiber.self()
        if self._leader == nil then
            self._leader = request
            local ok, code = pcall(lead, self, request, deadline)
            request.fiber = nil
            hand_over(self)
            if not ok then
                error(code, 0)
            end
            err = code
        else
            -- The leader waits for replies; if the system does not take it all now, also for room to write.
            if not flush(self) and self.state == 'active' then
                fiber.wakeup(self._leader.fiber)
            end
            err = park(deadline)
            request.fiber = nil
        end
        if err and not request.reply then
            return err
        end
    end
end

-- Queues a text and the request it makes.
local function submit(self, text, format)
    local out = self._out
    out.last = out.last + 1
    out[out.last] = text
    local request = { format = format }
    self._sent = self._sent + 1
    self._requests[self._sent] = request
    return request
end

-- ---------------------------------------------------------------- the connection

-- The format of the reply to `text`, and of those after it: a command may change it.
local function format_after(self, text)
    local set, output, name = text:match('^\\(%S+)%s+(%S+)%s+(%a+)')
    if SET_NAMES[set] and OUTPUT_NAMES[output] and FORMATS[name] then
        self._format = FORMATS[name]
    end
    return self._format
end

--- Evaluates a text at the server and gives its answer, in the console's format.
function methods.eval(self, text, timeout)
    if getmetatable(self) ~= meta then
        error('Usage: connection:eval(text[, timeout])', 2)
    end
    if type(timeout) == 'table' then
        timeout = timeout.timeout
    end
    if type(text) ~= 'string' or timeout ~= nil and type(timeout) ~= 'number' then
        error('Usage: connection:eval(text[, timeout])', 2)
    elseif text:find(DELIMITER, 1, true) then
        error("connection:eval(): the text contains the console's delimiter " .. DELIMITER, 2)
    elseif self.state ~= 'active' then
        error(self.error, 2)
    end
    local request = submit(self, text .. DELIMITER .. '\n', format_after(self, text))
    local err = await(self, request, timeout and new_deadline(timeout))
    if err then
        fail(err, 2)
    elseif not request.reply then
        error(self.error, 2)
    end
    return request.reply
end

function methods.is_connected(self)
    return self.state == 'active'
end

function methods.close(self)
    broken(self, 'closed', 'Connection closed')
end

local function usage()
    error('Usage: console.connect(uri[, {timeout = seconds, on_push = function}])', 3)
end

local function left(deadline)
    return deadline - fiber.clock()
end

-- Reads the greeting: the server's version, or nil and why not.
local function greet(s, deadline)
    local greeting = s:read(128, left(deadline))
    if not greeting then
        return nil, s:error()
    end
    local version = greeting:match('^Tarantool%s+(%S+)%s+%(Lua console%)')
    if #greeting ~= 128 or not version then
        local protocol = #greeting == 128 and greeting:match('^Tarantool%s+%S+%s+%((%a[%a ]*)%)')
        return nil, protocol and 'Unsupported protocol: ' .. protocol or 'Invalid greeting'
    end
    return version
end

-- Tells the server the format and the delimiter. Nothing, or why not.
local function set_up(self, deadline)
    for _, text in ipairs({ '\\set output yaml\n', ('require("console").delimiter("%s")\n'):format(DELIMITER) }) do
        local request = submit(self, text, self._format)
        local err = await(self, request, new_deadline(left(deadline)))
        if err == TIMED_OUT then
            return 'timed out'
        elseif err then
            self:close()
            fail(err, 3)
        elseif not request.reply then
            return self.error
        end
    end
end

local console = {}

--- Connects to a server's console: a connection, or nil and a text.
function console.connect(address, opts)
    opts = opts or {}
    if address == nil or type(opts) ~= 'table' or opts.timeout ~= nil and type(opts.timeout) ~= 'number' then
        usage()
    end
    local parsed = uri.parse(tostring(address))
    if parsed == nil or parsed.service == nil then
        usage()
    end
    local deadline = fiber.clock() + (opts.timeout or DEFAULT_CONNECT_TIMEOUT)
    local host = parsed.host or 'localhost'
    local s, problem = socket.tcp_connect(host, parsed.service, left(deadline))
    if not s then
        return nil, problem
    end
    local version
    version, problem = greet(s, deadline)
    if not version then
        s:close()
        return nil, problem
    end
    local self = setmetatable({
        state = 'active',
        host = host,
        port = tonumber(parsed.service) or parsed.service,
        version = version,
        _socket = s,
        _strerror = load('cord.errno').strerror,
        _on_push = opts.on_push,
        _format = FORMATS.yaml,
        _out = { first = 1, last = 0, offset = 0 },
        _requests = {},
        _sent = 0,
        _received = 0,
    }, meta)
    problem = set_up(self, deadline)
    if problem then
        self:close()
        return nil, problem
    end
    return self
end

return console
