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
---@field packet_timeout? number seconds in which a packet must have come whole, and TLS's handshake be over; default 60
---@field users? table<string, cord.server.user> who may log in; without it everybody is guest and may do everything
---@field auth_type? "chap-sha1"|"pap-sha256" how users log in; default chap-sha1; pap-sha256 needs TLS
---@field auth_delay? number seconds by which the answer to a failed login is late; default 0.05
---@field [string] function|table

---`true` or a password: may do everything; `false`: nothing; or a table.
---@alias cord.server.user boolean|string|{ password?: string, grants?: cord.server.grants }

---@class cord.server.grants
---@field execute? true|string[] functions
---@field read? true|string[] spaces
---@field write? true|string[] spaces
---@field eval? boolean

---The client a request came from.
---@class cord.server.session
---@field id integer never used again
---@field peer? string its address; nil when it has gone
---@field user? string who it is logged in as
---@field storage table lasts as long as the client
---@field server cord.server.object

---An index, in the shape of box.space[...].index[...].
---@class cord.server.index
---@field id integer
---@field name string
---@field space_id integer
---@field type "TREE" | "HASH"
---@field unique boolean
---@field parts { fieldno: integer, type: string, is_nullable: boolean, exclude_null?: boolean, sort_order?: string, collation?: string }[]
local index = {}

---@nodiscard
---@param key? any
---@param opts? { iterator?: string|integer, limit?: integer, offset?: integer, after?: string|any[], fetch_pos?: boolean }
---@return any[][] tuples, string? position
function index:select(key, opts) end

---@nodiscard
---@return any[]?
function index:get(key) end

---@nodiscard
---@return any[]?
function index:min(key) end

---@nodiscard
---@return any[]?
function index:max(key) end

---@nodiscard
---@param key? any
---@param opts? { iterator?: string|integer }
---@return integer
function index:count(key, opts) end

---@nodiscard
---@return integer
function index:len() end

---@return any[]?
function index:update(key, ops) end

---@return any[]?
function index:delete(key) end

---Goes on from the last tuple of each portion of 100.
---@return fun(): any[]?, any[]?
function index:pairs(key, opts) end

function index:drop() end

---A space, in the shape of box.space[...]. Errors are Tarantool's.
---@class cord.server.space: cord.server.index
---@field index table<string|integer, cord.server.index>
---@field engine "memtx"|"sysview"
---@field field_count integer
local space = {}

---@param tuple any[]
---@return any[]
function space:insert(tuple) end

---@param tuple any[]
---@return any[]
function space:replace(tuple) end

---@param tuple any[]
---@return any[]
function space:put(tuple) end

---@param tuple any[]
---@param ops any[][]
function space:upsert(tuple, ops) end

---@param name string
---@param opts? table as of box.schema.index.create
---@return cord.server.index
function space:create_index(name, opts) end

---The format; with an argument, sets it.
---@param new? table
---@return table?
function space:format(new) end

function space:truncate() end

---@class cord.server.object
---@field functions table functions by name; may be changed at any time
---@field space table<string|integer, cord.server.space>
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

---Waits until somebody stops the server.
---@async
function object:wait() end

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

---A function clients call by reference.
---@class cord.server.func
---@field name string
local func = {}

---Calls it from here.
---@param args? any[]
---@return any ...
function func:call(args) end

---Clients find it no more.
function func:drop() end

---Makes `name` a function called by reference, without a look-up in `functions` and before it; without `fn`, gives the one
---there is. Raises: `server:func(name, fn): ...` for wrong arguments.
---@param name string
---@param fn? function
---@return cord.server.func?
function object:func(name, fn) end

---Adds a user or changes one. Raises: `server:user: ...` for wrong arguments.
---@param name string
---@param what cord.server.user
function object:user(name, what) end

---Its sessions may do nothing from now on.
---@param name string
function object:drop_user(name) end

---Gives a key a value, nil takes it away, and tells the clients that watch it.
---@param key string
---@param value any
---@return true
function object:broadcast(key, value) end

---@param name string
---@param opts? table as of box.schema.space.create
---@return cord.server.space
function object:create_space(name, opts) end

---Writes all spaces to a file. Raises: `can't snapshot ...` (SystemError).
---@param path string
function object:snapshot(path) end

---Takes over the spaces of a snapshot. Raises: `can't restore ...` (SystemError); then nothing has changed.
---@param path string
function object:restore(path) end

---@class cord.server
local server = {}

---Serves clients at `uri`: a URI, a port, or a list of them. Names are looked up on the calling thread.
---Raises: `server.listen...` for wrong arguments; `Incorrect URI: ...`; `bind, called on ...` (SocketError).
---@param uri string|integer|table with `{ uri =, params = cord.netbox.params }` for TLS
---@param opts? cord.server.options
---@return cord.server.object
function server.listen(uri, opts) end

---The session of the client whose request the running fiber serves; nil elsewhere.
---@nodiscard
---@return cord.server.session?
function server.session() end

---Sends a value to the client before the response. Waits while the client leaves more than `max_unread` bytes unread.
---@async
---Raises: `server.push(value): no request is being served by this fiber`, and what encoding raises.
---@param value any
---@return true
function server.push(value) end

---Options of the module. `reuse_handlers = false` makes a closure for each request, for measuring.
---@param opts? { reuse_handlers?: boolean }
---@return { reuse_handlers: boolean }
function server.cfg(opts) end

return server
