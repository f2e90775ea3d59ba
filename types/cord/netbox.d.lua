---@meta cord.netbox

---@class cord.netbox.options (exact)
---@field user? string default guest; not together with the URI's credentials
---@field password? string only with `user`; default the empty one
---@field wait_connected? number|boolean true (default) waits for the state `active` for ever, a number that many seconds, false not at all
---@field reconnect_after? number seconds between two attempts; nil and 0: no reconnecting
---@field connect_timeout? number seconds for the connection and the greeting together, default 10
---@field fetch_schema? boolean default true
---@field auth_type? string only "chap-sha1"; default what the server asks for
---@field required_protocol_version? number
---@field required_protocol_features? string[]
---@field console? boolean true is an error: the text protocol has a module of its own
---@field _disable_graceful_shutdown? boolean

---@class cord.netbox.request_options (exact)
---@field timeout? number seconds; nil waits for ever; ignored with `is_async`
---@field is_async? boolean returns a future at once
---@field iterator? string of select: "EQ", "REQ", "ALL", "LT", "LE", "GE", "GT", ...; default ALL without a key, else EQ
---@field limit? number of select, default 4294967295
---@field offset? number of select, default 0

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

---@class cord.netbox
---@field tuple table what rows are: `new`, `is`, and the methods of tuples as functions
local netbox = {}

---Connects. A network's failure is no error: look at the connection's `state` and `error`.
---Raises: a bad URI; unknown or wrong options; `net.box: user is not defined`.
---@async
---@param uri string|number|table
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

return netbox
