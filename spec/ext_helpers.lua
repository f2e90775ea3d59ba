-- What the specs of the value types share: bytes as text, and questions to the real Tarantool.
local helpers = require('spec.helpers')

local ext = {}

function ext.hex(bytes)
    return (bytes:gsub('.', function(char) return ('%02x'):format(char:byte()) end))
end

function ext.unhex(digits)
    return (digits:gsub('%x%x', function(pair) return string.char(tonumber(pair, 16)) end))
end

-- A test that asks the real Tarantool; pending, with the reason, where there is none. `run(source, args)` runs Lua source
-- there in a process of its own and gives what it printed.
function ext.with_tarantool(name, test)
    -- busted gives its functions to the spec's environment only.
    local spec = getfenv(2)
    local binary, reason = helpers.tarantool_binary()
    if not binary then
        spec.pending(name .. ': ' .. tostring(reason))
        return
    end
    spec.it(name .. ' #server', function()
        test(function(source, args)
            return helpers.run_ok(source .. '\nos.exit(0)\n', { lua = binary, args = args or {} })
        end)
    end)
end

return ext
