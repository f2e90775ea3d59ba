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

---An array whose fields have the names of their format too, and paths: `t['address.city']`. A field named as a method hides
---it: `cord.netbox.tuple.<method>(t)` reaches it all the same. `#t` fields; a stored null is `msgpack.NULL`.
---@class cord.netbox.tuple: table
local tuple = {}

---Raises: `tuple.totable: invalid second argument`, `... third argument`.
---@param first? number from 1
---@param last? number
---@return any[] array
---@nodiscard
function tuple:totable(first, last) end

---@param first? number from 1
---@param last? number
---@return any ...
---@nodiscard
function tuple:unpack(first, last) end

---Some of the fields, from `first` (0 is the first one) up to and without `last`; negative: from the end.
---Raises: `tuple.slice(): start >= field count`; `tuple.slice(): end > field count`; `tuple.slice(): start must be less than end`.
---@param first number
---@param last? number
---@return any ...
---@nodiscard
function tuple:slice(first, last) end

---@return fun(t: cord.netbox.tuple, i: number): number?, any
---@return cord.netbox.tuple
---@return number
function tuple:ipairs() end

---The same as `ipairs`.
---@return fun(t: cord.netbox.tuple, i: number): number?, any
---@return cord.netbox.tuple
---@return number
function tuple:pairs() end

---@param i? number
---@return number? i nil behind the last
---@return any value
function tuple:next(i) end

---The number of the first field, behind the first `offset`, that equals a value; nil if there is none.
---@overload fun(self: cord.netbox.tuple, value: any): number?
---@param offset number
---@param value any
---@return number?
---@nodiscard
function tuple:find(offset, value) end

---The numbers of all that do.
---@overload fun(self: cord.netbox.tuple, value: any): number[]
---@param offset number
---@param value any
---@return number[]
---@nodiscard
function tuple:findall(offset, value) end

---A copy without `count` fields from `start` on (from 1; negative: from the end), and with others in their place.
---Raises: `tuple.transform(): bad arguments`; `tuple.transform(): offset is out of bound`; `tuple.transform(): len is negative`.
---@param start number
---@param count number
---@param ... any
---@return cord.netbox.tuple
---@nodiscard
function tuple:transform(start, count, ...) end

---A copy after operations `{code, field, argument}`, as a server makes it: `=` `!` `#` `+` `-` `&` `|` `^` `:`; a field is a
---number, a name or a path. Raises Tarantool's errors, such as `Field 'x' was not found in the tuple`.
---@param operations any[][]
---@return cord.netbox.tuple
---@nodiscard
function tuple:update(operations) end

---The same, leaving out what does not fit.
---@param operations any[][]
---@return cord.netbox.tuple
---@nodiscard
function tuple:upsert(operations) end

---@return number bytes as MessagePack
---@nodiscard
function tuple:bsize() end

---@param options? {names_only: boolean?}
---@return table map of names and, unless `names_only`, numbers
---@nodiscard
function tuple:tomap(options) end

---@return {name: string, type: string?, is_nullable: boolean?}[]
---@nodiscard
function tuple:format() end

---@return {data_size: number, header_size: number, field_map_size: number, waste_size: number, arena: string}
---@nodiscard
function tuple:info() end

---@class cord.netbox.part
---@field fieldno number from 1
---@field type string
---@field is_nullable boolean
---@field exclude_null? boolean
---@field path? string
---@field collation? string its name, or
---@field collation_id? number where the server does not tell names

---Requests on an index. Each takes request options last and may be asynchronous.
---@class cord.netbox.index
---@field space cord.netbox.space
---@field id number
---@field name string
---@field type string "TREE", "HASH", "BITSET", "RTREE"
---@field unique boolean
---@field parts cord.netbox.part[]
---@field sequence_id? number
---@field sequence_fieldno? number from 1
---@field sequence_path? string
local index = {}

---Raises: `Unknown iterator type 'x'`; `Remote server does not support pagination`; server's errors.
---@async
---@param key? any nil and {}: all; a table of parts; one part
---@param opts? cord.netbox.request_options
---@return cord.netbox.tuple[] tuples
---@return string? position with `fetch_pos`
function index:select(key, opts) end

---Raises: `index:get() doesn't support `buffer` argument`; server's errors.
---@async
---@param key any
---@param opts? cord.netbox.request_options
---@return cord.netbox.tuple? tuple
function index:get(key, opts) end

---@async
---@param key? any
---@param opts? cord.netbox.request_options
---@return cord.netbox.tuple? tuple the first at or behind the key
function index:min(key, opts) end

---@async
---@param key? any
---@param opts? cord.netbox.request_options
---@return cord.netbox.tuple? tuple the last at or before the key
function index:max(key, opts) end

---Calls `count` of the index on the server, for which the right to execute is needed.
---@async
---@param key? any
---@param opts? cord.netbox.request_options
---@return number
function index:count(key, opts) end

---@async
---@param key any
---@param opts? cord.netbox.request_options
---@return cord.netbox.tuple? old
function index:delete(key, opts) end

---@async
---@param key any
---@param operations any[][]
---@param opts? cord.netbox.request_options
---@return cord.netbox.tuple? new
function index:update(key, operations, opts) end

---Requests on a space, by its primary index. Stays the same object when the schema changes. Without a schema it has an id or a
---name, and indexes by id or name.
---@class cord.netbox.space
---@field id number
---@field name string
---@field engine string
---@field field_count number 0: any
---@field enabled boolean
---@field temporary boolean
---@field is_sync boolean
---@field index table<string|number, cord.netbox.index>
---@field connection cord.netbox.connection
local space = {}

---@async
---@param key? any
---@param opts? cord.netbox.request_options
---@return cord.netbox.tuple[] tuples
---@return string? position with `fetch_pos`
function space:select(key, opts) end

---Raises: `No index #0 is defined in space 'x'`.
---@async
---@param key any
---@param opts? cord.netbox.request_options
---@return cord.netbox.tuple? tuple
function space:get(key, opts) end

---@async
---@param fields any[]
---@param opts? cord.netbox.request_options
---@return cord.netbox.tuple tuple
function space:insert(fields, opts) end

---@async
---@param fields any[]
---@param opts? cord.netbox.request_options
---@return cord.netbox.tuple tuple
function space:replace(fields, opts) end

---@async
---@param key any
---@param operations any[][]
---@param opts? cord.netbox.request_options
---@return cord.netbox.tuple? new
function space:update(key, operations, opts) end

---@async
---@param fields any[]
---@param operations any[][]
---@param opts? cord.netbox.request_options
function space:upsert(fields, operations, opts) end

---@async
---@param key any
---@param opts? cord.netbox.request_options
---@return cord.netbox.tuple? old
function space:delete(key, opts) end

---Raises, with an argument: `net.box does not support setting space format`.
---@return table[]
---@nodiscard
function space:format() end

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
