-- The system's error numbers by name, the number of the last failed call, and its text: Tarantool's `errno`.
local _, load = ...
local ffi = require('ffi')

-- A name of its own: cord.h has a cord_strerror for the codes of the C face.
ffi.cdef('char *cord_errno_text(int) __asm__("strerror");')

local errno = {}

--- The system's text of an error number; without one, of the last failed call's.
function errno.strerror(number)
    return ffi.string(ffi.C.cord_errno_text(tonumber(number or ffi.errno()) or 0))
end

return setmetatable(errno, {
    __index = load('cord.socket').internal.ERRNO,
    __newindex = function()
        error("Can't create new errno constants", 2)
    end,
    __call = function(_, ...)
        return ffi.errno(...)
    end,
})
