-- What the `ssl_*` parameters of a URI become: the setup of a client or of a server. Not a module for scripts.
local raw = ...

-- Not named pairs, lest LuaJIT compiles loops that a finalizer may never leave: docs/jit.md.
local type, every = type, pairs
local format = string.format

local tls = {}

-- In the order the native half takes them.
local NAMES = {
    'ssl_ca_file', 'ssl_cert_file', 'ssl_key_file', 'ssl_password', 'ssl_password_file', 'ssl_ciphers', 'ssl_server_name',
}
local KNOWN = {}
for i, name in every(NAMES) do
    KNOWN[name] = i
end

-- The values in the order of NAMES, or nil and what is wrong.
local function values_of(params)
    local values = {}
    for name, list in every(params) do
        if name:find('^ssl_') and not KNOWN[name] then
            return nil, format("unexpected parameter '%s'", name)
        elseif KNOWN[name] then
            if #list > 1 then
                return nil, format("parameter '%s' is given %d times", name, #list)
            elseif list[1] == '' and name ~= 'ssl_password' then
                -- An unset variable of some configuration, most likely: without a CA nobody would be verified.
                return nil, format("parameter '%s' is empty", name)
            end
            values[KNOWN[name]] = list[1]
        end
    end
    return values
end

-- Nil for a plain transport; a setup; or false and what is wrong.
local function setup(make, params)
    params = params or {}
    local transport = params.transport and params.transport[1]
    if transport == 'ssl' then
        local values, problem = values_of(params)
        if values == nil then
            return false, problem
        end
        return make(unpack(values, 1, #NAMES))
    elseif transport == 'plain' then
        -- As in Tarantool, where the parameters may stay when encryption is switched off.
        return nil
    elseif transport ~= nil then
        return false, 'Invalid transport: ' .. transport
    end
    for name in every(params) do
        if KNOWN[name] then
            return false, format("parameter '%s' needs transport=ssl", name)
        end
    end
    return nil
end

--- For a client: `params` is a parsed URI's, names to lists of values.
function tls.client(params)
    return setup(raw.client, params)
end

--- For a server.
function tls.server(params)
    return setup(raw.server, params)
end

--- Makes the `params` a script wrote into those of a parsed URI; nil and a text if they cannot be.
function tls.params(written)
    local params = {}
    for name, value in every(written) do
        local kind = type(value)
        if type(name) ~= 'string' or (kind ~= 'string' and kind ~= 'number') then
            return nil, 'params should be a table of strings'
        end
        params[name] = { tostring(value) }
    end
    return params
end

return tls
