---@meta cord.uri

---@class cord.uri.parts
---@field scheme? string
---@field login? string
---@field password? string
---@field host? string `unix/` for a Unix socket
---@field service? string port, service name or path of the socket
---@field path? string
---@field query? string as written
---@field fragment? string
---@field params? table<string, string[]> the query's parameters, each with its values in order
---@field ipv4? string the host, when it is an IPv4 address
---@field ipv6? string the host, when it is an IPv6 address
---@field unix? string the path of a Unix socket

---@class cord.uri.table
---@field [1]? string|number
---@field uri? string|number instead of the first element
---@field login? string replaces the credentials of the text
---@field password? string
---@field params? table<string, string|number|(string|number)[]> replace equally named parameters of the text

---@class cord.uri.escaping
---@field unreserved? ffi.cdata* made by `uri.unreserved`; default that of `uri.RFC3986`
---@field plus? boolean write and read a space as `+`; default false

---@class cord.uri
---@field RFC3986 cord.uri.escaping
---@field PATH cord.uri.escaping
---@field PATH_PART cord.uri.escaping
---@field QUERY cord.uri.escaping
---@field QUERY_PART cord.uri.escaping
---@field FRAGMENT cord.uri.escaping
---@field FORM_URLENCODED cord.uri.escaping
local uri = {}

---Parses one URI.
---Raises: `Usage: uri.parse(string|table)` when `source` is nil.
---@nodiscard
---@param source string|number|cord.uri.table
---@return cord.uri.parts? parts
---@return string? err
function uri.parse(source) end

---Parses several: a comma separated text, one table, or an array of them with `default_params` for all.
---Raises: `Usage: uri.parse_many(string|table)` when `source` is nil.
---@nodiscard
---@param source string|number|table
---@return cord.uri.parts[]? list
---@return string? err
function uri.parse_many(source) end

---Writes a URI. Parameters come in the order of their names.
---@nodiscard
---@param parts cord.uri.parts
---@param write_sensitive? boolean write the password and the parameters named `ssl_...`; default false
---@return string
function uri.format(parts, write_sensitive) end

---The values of one parameter, for a table of parameters.
---@nodiscard
---@param ... string|number
---@return (string|number)[]
function uri.values(...) end

---The bytes `escape` leaves alone, as a Lua character set without brackets.
---Raises: `Usage: uri.unreserved(str)`.
---@nodiscard
---@param set string
---@return ffi.cdata*
function uri.unreserved(set) end

---Percent-encodes. Raises on wrong arguments.
---@nodiscard
---@param s string
---@param opts? cord.uri.escaping
---@return string
function uri.escape(s, opts) end

---Percent-decodes; a percent sign without two hexadecimal digits stays. Raises on wrong arguments.
---@nodiscard
---@param s string
---@param opts? cord.uri.escaping
---@return string
function uri.unescape(s, opts) end

return uri
