---@meta cord

---The table of all modules: `cord.fiber` is `require 'cord.fiber'`, loaded when it is first asked for.
---A name the library does not serve gives nil.
---@class cord
---@field _VERSION string version of the library
local cord = {}

---Lets `require` find the modules under Tarantool's names (`fiber`, `net.box`, `msgpack`, `uri` ...), so that code written
---for Tarantool runs unchanged. A name that `package.preload` or `package.loaded` has already is left alone.
---@return string[] names the names that lead to this library now, sorted
function cord.preload() end

return cord
