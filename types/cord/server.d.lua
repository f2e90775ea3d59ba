---@meta cord.server

---Options of `listen`. Any other key names a function, or a table of functions.
---@class cord.server.options
---@field functions? table functions by name, for names that are options'
---@field eval? boolean allow EVAL; default false
---@field net_msg_max? integer requests that run in fibers at once; default 768
---@field readahead? integer bytes offered to a read; default 16320
---@field max_packet? integer longest packet in bytes; default 134217728
---@field max_unread? integer bytes a client may leave unread before no more of its requests are taken; default 16777216
---@field max_connections? integer clients at once; default 65536
---@field packet_timeout? number seconds in which a packet must have come whole; default 60
---@field [string] function|table

---The client a request came from.
---@class cord.server.session
---@field id integer never used again
---@field peer? string its address; nil when it has gone
---@field storage table lasts as long as the client
---@field server cord.server.object

---@class cord.server.object
---@field functions table functions by name; may be changed at any time
local object = {}

---The addresses it is bound to, with real ports.
---@nodiscard
---@return string ...
function object:address() end

---Takes no new clients. `'graceful'` (default) lets running requests end, `'hard'` does not; then clients are closed.
---Raises: `server:stop(how, timeout): ...` for wrong arguments.
---@async
---@param how? "graceful" | "hard"
---@param timeout? number seconds running requests are given; default 3
function object:stop(how, timeout) end

---@nodiscard
---@return { requests: table<string, integer>, errors: integer, connections: { current: integer, total: integer }, in_progress: integer, received: integer, sent: integer }
function object:stat() end

---Runs before a client is greeted; an error refuses it. Without arguments: the list of triggers.
---Raises: `trigger reset: incorrect arguments`, `trigger reset: Trigger is not found`.
---@param new? fun(session: cord.server.session)
---@param old? function the trigger to replace or remove
---@return function|function[]?
function object:on_connect(new, old) end

---Runs after a client has gone. As `on_connect`.
---@param new? fun(session: cord.server.session)
---@param old? function
---@return function|function[]?
function object:on_disconnect(new, old) end

---Runs after a login, successful or not. As `on_connect`.
---@param new? fun(session: cord.server.session)
---@param old? function
---@return function|function[]?
function object:on_auth(new, old) end

---@class cord.server
local server = {}

---Serves clients at `uri`: a URI, a port, or a list of them. Names are looked up on the calling thread.
---Raises: `server.listen...` for wrong arguments; `Incorrect URI: ...`; `can't listen on ...` (SocketError).
---@param uri string|integer|table
---@param opts? cord.server.options
---@return cord.server.object
function server.listen(uri, opts) end

---The session of the client whose request the running fiber serves; nil elsewhere.
---@nodiscard
---@return cord.server.session?
function server.session() end

---Sends a value to the client before the response.
---Raises: `server.push(value): no request is being served by this fiber`, and what encoding raises.
---@param value any
---@return true
function server.push(value) end

---Options of the module. `reuse_handlers = false` makes a closure for each request, for measuring.
---@param opts? { reuse_handlers?: boolean }
---@return { reuse_handlers: boolean }
function server.cfg(opts) end

return server
