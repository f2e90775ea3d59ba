-- The table of everything: require('cord').fiber is require('cord.fiber'), loaded when first asked for.
local native, load = ...

local cord = { _VERSION = native.version }

-- Tarantool's name of a module, where it is not ours without the prefix.
local OTHER_NAMES = { ['net.box'] = 'cord.netbox' }
-- Tarantool's modules whose names are ours with the prefix. Those the library does not serve are left out below.
local SAME_NAMES = {
    'buffer', 'clock', 'console', 'datetime', 'decimal', 'digest', 'errno', 'fiber', 'json', 'log', 'msgpack', 'socket',
    'uri', 'uuid', 'varbinary',
}

-- Names that an earlier call of `preload` filled.
local owned = {}

--- Lets `require` find the modules under Tarantool's names (`fiber`, `net.box`, `msgpack`, `uri` ...), so that code written
--- for Tarantool runs unchanged. A name that package.preload or package.loaded has already is left alone. Returns the
--- sorted list of the names that lead to this library now.
function cord.preload()
    local names = {}
    for _, name in ipairs(SAME_NAMES) do
        names[name] = 'cord.' .. name
    end
    for name, module in pairs(OTHER_NAMES) do
        names[name] = module
    end
    local served = {}
    for name, module in pairs(names) do
        local free = package.preload[name] == nil and package.loaded[name] == nil
        if native.modules[module] and (free or owned[name]) then
            owned[name] = true
            package.preload[name] = package.preload[name] or function()
                return load(module)
            end
            served[#served + 1] = name
        end
    end
    table.sort(served)
    return served
end

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
    __tostring = function(self)
        return 'cord ' .. self._VERSION
    end,
})
