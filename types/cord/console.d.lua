---@meta cord.console

---The client of Tarantool's text console: `require('console').listen(...)` on the server.
---@class cord.console
local console = {}

---@class cord.console.options
---@field timeout? number seconds for connecting and the greeting; default 10
---@field on_push? fun(text: string) gets what the server sends with box.session.push, in the fiber that reads

---Connects. Raises `Usage: console.connect(uri[, {timeout = seconds, on_push = function}])`.
---@async
---@param uri string|integer
---@param opts? cord.console.options
---@return cord.console.connection? connection
---@return string? err
function console.connect(uri, opts) end

---@class cord.console.connection
---@field state "active"|"error"|"closed"
---@field error? string why it is not active
---@field host string
---@field port integer|string
---@field version string the server's
local connection = {}

---Evaluates a text at the server; any number of fibers may do so at once. Gives the answer as the server wrote it: YAML
---that ends in "\n...\n", unless `\set output lua` changed that. Raises TimedOut, FiberIsCancelled, or the text of
---`connection.error`. An answer that nobody waits for any more is read past: the connection stays usable.
---@async
---@param text string
---@param timeout? number|{ timeout?: number } seconds
---@return string answer
function connection:eval(text, timeout) end

---@nodiscard
---@return boolean
function connection:is_connected() end

---Whoever waits for an answer is told.
function connection:close() end

return console
