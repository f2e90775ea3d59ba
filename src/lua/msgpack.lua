-- cord.msgpack: MessagePack straight between Lua values and bytes.
--
-- Extension types are taught by the modules that own them, through one hook:
--
--     local msgpack = load('cord.msgpack')
--     msgpack.ext.register {
--         type = 2,                      -- the MessagePack extension type, or 'bin' for the bin family
--         name = 'uuid',                 -- for error messages
--         decode = function(payload)     -- payload string -> Lua value; raises to refuse the payload
--         encode = function(value)       -- Lua value -> payload string (the header is written by the codec); raises to refuse
--         ctype = ffi.typeof('struct tt_uuid'),  -- which values `encode` takes: cdata of this type ...
--         metatable = mt,                -- ... or tables and userdata with this metatable (either or both)
--     }
--
-- Neither function may yield. A later registration for the same type, ctype or metatable replaces the earlier one.

local _, _ = ...
local ffi = require('ffi')

local msgpack = { NULL = ffi.cast('void *', nil) }

local decoders, by_ctype, by_metatable, ctypes = {}, {}, {}, {}

local ext = { decoders = decoders, by_ctype = by_ctype, by_metatable = by_metatable, ctypes = ctypes }

function ext.register(kind)
    if kind.decode ~= nil then
        decoders[kind.type] = kind.decode
    end
    if kind.ctype ~= nil then
        -- A ctype object converts to the id that its cdata carry in their headers.
        by_ctype[tonumber(kind.ctype)] = kind
        ctypes[#ctypes + 1] = kind
    end
    if kind.metatable ~= nil then
        by_metatable[kind.metatable] = kind
    end
end

msgpack.ext = ext

return msgpack
