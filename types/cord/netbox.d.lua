---@meta cord.netbox

---@class cord.netbox.options (exact)
---@field user? string default guest; not together with the URI's credentials
---@field password? string only with `user`; default the empty one
---@field wait_connected? number|boolean true (default) waits for the state `active` for ever, a number that many seconds, false not at all
---@field reconnect_after? number seconds between two attempts; nil and 0: no reconnecting
---@field connect_timeout? number seconds for the connection, TLS's handshake and the greeting together, default 10
---@field fetch_schema? boolean default true
---@field auth_type? string "chap-sha1", or over TLS "pap-sha256"; default what the server asks for
---@field required_protocol_version? number
---@field required_protocol_features? string[]
---@field console? boolean true is an error: the text protocol has a module of its own
---@field _disable_graceful_shutdown? boolean

---Parameters of a URI: `{ uri = 'host:3301', params = { transport = 'ssl' } }`. Files are PEM.
---@class cord.netbox.params
---@field transport? "plain"|"ssl" default plain
---@field ssl_ca_file? string who signs the peer's certificate; without it a client verifies nothing, a server asks for none
---@field ssl_cert_file? string our certificate, then those between it and the CA; mandatory for a server
---@field ssl_key_file? string its key; mandatory for a server
---@field ssl_password? string of an encrypted key
---@field ssl_password_file? string more of them, one a line
---@field ssl_ciphers? string OpenSSL's names with colons between; default all that are supported
---@field ssl_server_name? string of a client: the name or address the server's certificate must be for; default any

---@class cord.netbox.fd_options: cord.netbox.options
---@field params? cord.netbox.params

---@class cord.netbox.request_options (exact)
---@field timeout? number seconds; nil waits for ever; ignored with `is_async`
---@field is_async? boolean returns a future at once
---@field iterator? string of select: "EQ", "REQ", "ALL", "LT", "LE", "GE", "GT", ...; default ALL without a key, else EQ
---@field limit? number of select, default 4294967295
---@field offset? number of select, default 0
---@field after? string|table of select: a position or a tuple to go on behind
---@field fetch_pos? boolean of select: the last tuple's position is a second result
---@field buffer? ffi.cdata* an ibuf that gets the reply; the result is the number of bytes
---@field skip_header? boolean with `buffer`: the data alone
---@field return_raw? boolean the result is a msgpack object
---@field on_push? fun(ctx: any, message: any) called for each push, in the connection's own fiber
---@field on_push_ctx? any
---@field _thread_id? number the server's thread that is to serve the request, a whole number from 0 (its main one)

---@class cord.netbox.future: userdata
local future = {}

---@return boolean ready once there is a response, an error, or it was discarded
---@nodiscard
function future:is_ready() end

---@return any? result
---@return any? err an error object; "Response is not ready" while it is not
function future:result() end

---Waits for the result. Raises: `Usage: future:wait_result(timeout)`; `fiber is cancelled`.
---@async
---@param timeout? number seconds; nil waits for ever
---@return any? result
---@return any? err an error object; "timed out" leaves the request in flight
function future:wait_result(timeout) end

---The request is forgotten; whoever waits gets "Response is discarded".
function future:discard() end

---`for i, message in future:pairs() do`: the pushes, then the result. After an error or a timeout: NULL and the error.
---@async
---@param timeout? number seconds for each step
function future:pairs(timeout) end

---@class cord.netbox.tuple: table an array; names of the format are fields too
---@class cord.netbox.index
---@class cord.netbox.space

---@alias cord.netbox.state "initial"|"auth"|"fetch_schema"|"active"|"graceful_shutdown"|"error"|"error_reconnect"|"closed"

---@class cord.netbox.connection
---@field host? string
---@field port? string
---@field fd? number
---@field opts table the options, without the password
---@field state cord.netbox.state
---@field error? string why it is in `error`, `error_reconnect` or `closed`
---@field protocol? string
---@field schema_version? number
---@field peer_uuid? string
---@field peer_version_id? number
---@field peer_protocol_version? number
---@field peer_protocol_features? table<string, boolean>
---@field space? table<string|number, cord.netbox.space>
local connection = {}

---@async
---@param name string
---@param args? table
---@param opts? cord.netbox.request_options
---@return any ... the function's results
function connection:call(name, args, opts) end

---@async
---@param expression string
---@param args? table
---@param opts? cord.netbox.request_options
---@return any ...
function connection:eval(expression, args, opts) end

---@async
---@param opts? cord.netbox.request_options only `timeout`
---@return boolean alive false on any error
function connection:ping(opts) end

---Sends what is queued, then closes. Idempotent.
---@async
function connection:close() end

---@return boolean
---@nodiscard
function connection:is_connected() end

---@async
---@param timeout? number seconds; nil waits for ever
---@return boolean active
function connection:wait_connected(timeout) end

---@async
---@param state cord.netbox.state|table<cord.netbox.state, boolean>
---@param timeout? number seconds; nil waits for ever
---@return boolean reached
function connection:wait_state(state, timeout) end

---Raises: `execute does not support options`.
---@async
---@param query string|number SQL text or the id of a prepared statement
---@param parameters? table
---@param sql_opts? nil
---@param opts? cord.netbox.request_options
---@return {rows: table[], metadata: table[]}|{row_count: number, autoincrement_ids: number[]?} result
function connection:execute(query, parameters, sql_opts, opts) end

---@async
---@param query string
---@return {stmt_id: number, param_count: number, params: table[], metadata: table[]?} statement
function connection:prepare(query) end

---@async
---@param id number
function connection:unprepare(id) end

---@class cord.netbox.stream: cord.netbox.connection
local stream = {}

---@async
---@param txn_opts? {timeout: number?, txn_isolation: string|number|nil, is_sync: true?}
---@param opts? cord.netbox.request_options
function stream:begin(txn_opts, opts) end

---@async
---@param txn_opts? {is_sync: true?}
---@param opts? cord.netbox.request_options
function stream:commit(txn_opts, opts) end

---@async
---@param opts? cord.netbox.request_options
function stream:rollback(opts) end

---A stream of its own: its requests are executed one after another, and transactions live in it.
---@return cord.netbox.stream
---@nodiscard
function connection:new_stream() end

---@class cord.netbox.watcher
local watcher = {}

---Raises: `Watcher is already unregistered`.
function watcher:unregister() end

---Calls `func(key, value)` now and whenever the value changes, in a fiber of its own.
---Raises: `key must be a string`; `func must be a function`.
---@param key string
---@param func fun(key: string, value: any)
---@return cord.netbox.watcher
function connection:watch(key, func) end

---@async
---@param key string
---@param opts? cord.netbox.request_options
---@return any value
function connection:watch_once(key, opts) end

---@alias cord.netbox.trigger fun(connection: cord.netbox.connection)

---Newest first. With nothing: the list. An error in one ends the connection.
---@param new? cord.netbox.trigger|{name: string, func: cord.netbox.trigger?}
---@param old? cord.netbox.trigger
---@param name? string
---@return any
function connection:on_connect(new, old, name) end

---@param new? cord.netbox.trigger|{name: string, func: cord.netbox.trigger?}
---@param old? cord.netbox.trigger
---@param name? string
---@return any
function connection:on_disconnect(new, old, name) end

---@param new? cord.netbox.trigger|{name: string, func: cord.netbox.trigger?}
---@param old? cord.netbox.trigger
---@param name? string
---@return any
function connection:on_schema_reload(new, old, name) end

---@param new? cord.netbox.trigger|{name: string, func: cord.netbox.trigger?}
---@param old? cord.netbox.trigger
---@param name? string
---@return any
function connection:on_shutdown(new, old, name) end

---The same as `ping`: a changed schema is read again.
---@async
---@return boolean
function connection:reload_schema() end

---@class cord.netbox
---@field self table this program in a connection's clothes: `call` of global functions, `eval`, `ping`
---@field tuple table what rows are: `new`, `is`, and the methods of tuples as functions
local netbox = {}

---Connects. A network's failure is no error: look at the connection's `state` and `error`.
---Raises: a bad URI; unknown or wrong options; `net.box: user is not defined`; what is wrong with the `ssl_*` parameters.
---@async
---@param uri string|number|{ uri: string|number, params: cord.netbox.params? }
---@param opts? cord.netbox.options
---@return cord.netbox.connection
---@overload fun(host: string?, port: string|number, opts?: cord.netbox.options): cord.netbox.connection
function netbox.connect(uri, opts) end

---The same function as `connect`.
---@async
---@param uri string|number|table
---@param opts? cord.netbox.options
---@return cord.netbox.connection
function netbox.new(uri, opts) end

---A connection over a connected socket, which it owns from here on; it never reconnects.
---Raises: `fd should be a number`; `Invalid fd: expected nonnegative integer`.
---@async
---@param fd number
---@param opts? cord.netbox.fd_options
---@return cord.netbox.connection
function netbox.from_fd(fd, opts) end

---`connect` and `new` that wait that long.
---@param timeout? number seconds
---@return table
function netbox.timeout(timeout) end

return netbox
