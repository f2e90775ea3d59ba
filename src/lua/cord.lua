-- The table of everything: require('cord').fiber is require('cord.fiber'), loaded when first asked for.
local native, load = ...

local cord = { _VERSION = native.version }

return setmetatable(cord, {
    __index = function(self, key)
        if type(key) ~= 'string' then
            return nil
        end
        local module = load('cord.' .. key, true)
        if module ~= nil then
            rawset(self, key, module)
        end
        return module
    end,
})
