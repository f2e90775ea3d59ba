---@meta cord.pool

---@class cord.pool.options (exact)
---@field reconnect_after? number seconds between attempts, default 0.5
---@field ping_interval? number seconds between two looks at a healthy server (a quarter of it at another), default 1
---@field ping_timeout? number seconds, default 1
---@field timeout? number seconds a request may take, the search for a server included, default 10
---@field probe? fun(conn: cord.netbox.connection, timeout: number): boolean? whether a server is read only; nil: not healthy. Default: `box.info.ro`
---@field connect? cord.netbox.options for all connections
---@field wait_connected? number|boolean seconds to wait until all are healthy; default not at all

---@class cord.pool.request_options
---@field mode? "any"|"rw"|"ro"|"prefer_rw"|"prefer_ro"|string or a server's name; default "any"
---@field timeout? number seconds
---@field idempotent? boolean the request may be sent again when a connection breaks; default false

---@class cord.pool.object
local object = {}

---Raises: what the server answers; `timed out`; `No server suits ...`; `...; the request was sent, and it is not known whether
---it was executed` (with `sent` set).
---@async
---@param name string
---@param args? table
---@param opts? cord.pool.request_options
---@return any ...
function object:call(name, args, opts) end

---@async
---@param expression string
---@param args? table
---@param opts? cord.pool.request_options
---@return any ...
function object:eval(expression, args, opts) end

---@param mode? string a mode or a server's name
---@return cord.netbox.connection?
---@nodiscard
function object:connection(mode) end

---@async
---@param timeout? number seconds
---@param count? number of healthy servers; default all
---@return boolean
function object:wait_connected(timeout, count) end

---@return table<string, {state: string, healthy: boolean, ro: boolean?, error: string?}>
---@nodiscard
function object:info() end

---@async
function object:close() end

---@class cord.pool
local pool = {}

---Connects to all servers and looks after them.
---@param servers (string|number|{uri: any, name: string?, params: cord.netbox.params?})[] a table may hold options of `netbox.connect` too
---@param opts? cord.pool.options
---@return cord.pool.object
function pool.connect(servers, opts) end

return pool
