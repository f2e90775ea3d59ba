-- URIs as Tarantool's `uri` module reads and writes them: host:service, [ipv6]:service, a bare port, Unix sockets,
-- credentials, query parameters, lists, and the table form.
local ffi = require('ffi')
-- Not named pairs, lest LuaJIT compiles loops that a finalizer may never leave: docs/jit.md.
local every = pairs

local uri = {}

local INCORRECT = 'Incorrect URI: expected host:service or /unix.socket'
-- Longest host and service, as in getnameinfo (NI_MAXHOST, NI_MAXSERV), final NUL included.
local MAX_HOST, MAX_SERVICE = 1025, 32

-- Character classes of RFC 3986, as the inside of a Lua set. Percent signs are checked apart, by `percents`.
local NAME = "%w%-_~.%%!$&'()*+,;="
local SEGMENT = NAME .. '@'
local PATH_CHARS = SEGMENT .. ':|/'
local QUERY_CHARS = PATH_CHARS .. '?'

--- Whether each percent sign starts %%, %X, %XX or %uXXXX.
local function percents(s)
    if not s:find('%', 1, true) then
        return true
    end
    local rest = s:gsub('%%%%', ''):gsub('%%u%x%x%x%x', ''):gsub('%%%x%x?', '')
    return not rest:find('%', 1, true)
end

local function ipv4(host)
    return host:find('^%d%d?%d?%.%d%d?%d?%.%d%d?%d?%.%d%d?%d?$') ~= nil
end

local function ipv6(host)
    local mapped = host:match('^::[fF][fF][fF][fF]:(.*)$')
    if mapped and ipv4(mapped) then
        return true
    end
    if not host:find('^[%x:]+$') or host:find('%x%x%x%x%x') then
        return false
    end
    local _, colons = host:gsub(':', '')
    return colons >= 1 and colons <= 8
end

--- A path of a Unix socket that a colon may follow: nonempty segments without colons.
local function socket_path(s)
    local dir = s:gsub('^%.', '', 1)
    return dir:find('^[/' .. SEGMENT .. ']+$') and dir:find('^/[^/]') and not dir:find('//', 1, true)
        and not dir:find('/$') and percents(s)
end

local function set_unix(result, service, path)
    result.host, result.service, result.unix = 'unix/', service, service
    result.path = path ~= '' and path or nil
    return result
end

--- Reads `unix/:SOCKET[:PATH]` or `SOCKET:PATH`; nil when `s` is neither.
local function parse_unix(result, s)
    local rest = s:match('^unix/:(.*)$')
    local socket, path = (rest or s):match('^([^:]*):(.*)$')
    local fine = socket and socket_path(socket) and percents(path)
    if fine and (path == '' or path:find('^/[' .. PATH_CHARS .. ']*$')) then
        return set_unix(result, socket, path)
    end
    if rest and socket_path(rest) then
        return set_unix(result, rest)
    end
end

--- Reads `host[:service][/path]`.
local function parse_host(result, s)
    local host, rest = s:match('^(%b[])(.*)$')
    if host then
        host = host:sub(2, -2)
        if not ipv6(host) then
            return nil
        end
        result.ipv6 = host
    else
        host, rest = s:match('^([' .. NAME .. ']+)(.*)$')
        if not host or not percents(host) then
            return nil
        end
        result.ipv4 = ipv4(host) and host or nil
    end
    result.host = host
    local service = rest:match('^:(%d+)') or rest:match('^:(%a*)')
    if service then
        rest = rest:sub(#service + 2)
        result.service = service ~= '' and service or nil
    end
    if rest ~= '' and not (rest:find('^/[' .. PATH_CHARS .. ']*$') and percents(rest)) then
        return nil
    end
    result.path = rest ~= '' and rest or nil
    return result
end

--- Reads what follows the scheme: credentials, then a socket or a host. `with_scheme` rules out a bare socket path.
local function parse_authority(s, with_scheme)
    local result = {}
    local userinfo, rest = s:match('^([^@/]*)@(.+)$')
    if userinfo then
        local login, password = userinfo:match('^([' .. NAME .. ']+):([' .. NAME .. ']*)$')
        login = login or userinfo:match('^[' .. NAME .. ']+$')
        if not login or not percents(userinfo) then
            return nil
        end
        result.login, result.password = login, password
    else
        rest = s
    end
    if parse_unix(result, rest) then
        return result
    end
    if not with_scheme then
        local absolute = rest:find('^/[' .. PATH_CHARS .. ']*$') and not rest:find('^//') and percents(rest)
        if absolute or not userinfo and rest:find('^%./') and socket_path(rest) then
            return set_unix(result, rest)
        end
    end
    return parse_host(result, rest)
end

--- Splits `s` at the first `sign`; the second part is nil when there is none, false when its characters are wrong.
local function split(s, sign)
    local at = s:find(sign, 1, true)
    if not at then
        return s
    end
    local tail = s:sub(at + 1)
    local fine = tail == '' or tail:find('^[' .. QUERY_CHARS .. ']+$') and percents(tail)
    return s:sub(1, at - 1), fine and tail
end

local function parse_body(s, bare)
    if bare and s:find('^%d+$') then
        return { service = s }
    end
    if s == '' then
        return not bare and {} or nil
    end
    local scheme, rest = s:match('^(%a[%w+%-.]*):(/.*)$')
    if scheme and rest:sub(1, 2) == '//' then
        local result = parse_authority(rest:sub(3), true)
        if result then
            result.scheme = scheme
            return result
        end
    end
    local result = parse_authority(s)
    if result and scheme then
        result.scheme = scheme
    end
    return result
end

--- Parses one URI without its parameters; nil when it is not one.
local function parse_raw(s)
    local nul = s:find('\0', 1, true)
    if nul then
        s = s:sub(1, nul - 1)
    end
    local head, fragment = split(s, '#')
    local body, query = split(head, '?')
    if fragment == false or query == false then
        return nil
    end
    local result = parse_body(body, fragment == nil and query == nil)
    if not result or #(result.host or '') >= MAX_HOST or #(result.service or '') >= MAX_SERVICE then
        return nil
    end
    result.query, result.fragment = query, fragment
    return result
end

local function query_params(query)
    local params
    for part in query:gmatch('[^&]+') do
        local name, value = part:match('^([^=]*)=(.*)$')
        name = name or part
        if name ~= '' then
            params = params or {}
            params[name] = params[name] or {}
            table.insert(params[name], value)
        end
    end
    return params
end

local function parse_string(s)
    local result = parse_raw(s)
    if not result then
        return nil, INCORRECT
    end
    if result.query then
        result.params = query_params(result.query)
    end
    return result
end

--- Adds the parameters of a table; those the URI has already are replaced or kept. Returns an error text or nil.
local function add_params(result, params, overwrite)
    if params == nil then
        return nil
    end
    if type(params) ~= 'table' then
        return 'Incorrect type for URI parameters: should be a table'
    end
    for name, value in every(params) do
        if type(name) ~= 'string' then
            return 'Incorrect type for URI parameter name: should be a string'
        end
        result.params = result.params or {}
        local present = result.params[name]
        -- A parameter without values in the text takes a default.
        if overwrite or present == nil or #present == 0 then
            local kind, list = type(value), {}
            if kind == 'string' or kind == 'number' then
                list[1] = tostring(value)
            elseif kind == 'table' then
                for i = 1, #value do
                    if type(value[i]) ~= 'string' and type(value[i]) ~= 'number' then
                        return 'Incorrect type for URI parameter value: should be string or number'
                    end
                    list[i] = tostring(value[i])
                end
            else
                return 'Incorrect type for URI parameter value: should be string, number or table'
            end
            -- An empty list of values makes no parameter.
            result.params[name] = #list > 0 and list or not overwrite and present or nil
        end
    end
    if result.params and next(result.params) == nil then
        result.params = nil
    end
    return nil
end

local function set_credentials(result, source)
    local login, password = source.login, source.password
    if login == nil then
        return password ~= nil and 'Invalid URI table: login required if password is set' or nil
    elseif type(login) ~= 'string' then
        return 'Invalid URI table: expected type for login is string'
    elseif password ~= nil and type(password) ~= 'string' then
        return 'Invalid URI table: expected type for password is string'
    end
    result.login, result.password = login, password
    return nil
end

local function parse_table(source)
    if #source + (rawget(source, 'uri') ~= nil and 1 or 0) ~= 1 then
        return nil, 'Invalid URI table: expected {uri = string, params = table} or {string, params = table}'
    end
    if rawget(source, 'default_params') ~= nil then
        return nil, 'Default URI parameters are not allowed for single URI'
    end
    local inner = source[1]
    if inner == nil then
        inner = source.uri
    end
    if type(inner) ~= 'string' and type(inner) ~= 'number' then
        return nil, 'Incorrect type for URI in nested table: should be string, number'
    end
    local result, err = parse_string(tostring(inner))
    if not result then
        return nil, err
    end
    err = set_credentials(result, source) or add_params(result, rawget(source, 'params'), true)
    if err then
        return nil, err
    end
    return result
end

local function parse_any(source)
    local kind = type(source)
    if kind == 'string' or kind == 'number' then
        return parse_string(tostring(source))
    elseif kind == 'table' then
        return parse_table(source)
    end
    return nil, 'Incorrect type for URI: should be string, number or table'
end

--- Parses one URI (string, number or table). Returns its fields, or nil and the reason.
function uri.parse(source)
    if source == nil then
        error('Usage: uri.parse(string|table)', 2)
    end
    return parse_any(source)
end

local function parse_list(source)
    local results = {}
    if source == '' then
        return results
    end
    for part in (source .. ','):gmatch('([^,]*),') do
        local result, err = parse_string(#results > 0 and part:gsub('^ +', '') or part)
        if not result then
            return nil, err
        end
        results[#results + 1] = result
    end
    return results
end

local function parse_tables(source)
    if rawget(source, 'uri') ~= nil or #source == 1 and type(source[1]) ~= 'table' then
        local result, err = parse_any(source)
        if not result then
            return nil, err
        end
        return { result }
    end
    local results = {}
    if #source == 0 then
        return results
    end
    for i = 1, #source do
        local result, err = parse_any(source[i])
        if not result then
            return nil, err
        end
        results[i] = result
    end
    for _, field in ipairs({ 'params', 'login', 'password' }) do
        if rawget(source, field) ~= nil then
            return nil, ('URI %s not allowed for multiple URIs'):format(
                field == 'params' and 'parameters are' or field .. ' is')
        end
    end
    for i = 1, #results do
        local err = add_params(results[i], rawget(source, 'default_params'), false)
        if err then
            return nil, err
        end
    end
    return results
end

--- Parses several URIs: a comma separated string, or a table of strings and tables with `default_params`.
function uri.parse_many(source)
    if source == nil then
        error('Usage: uri.parse_many(string|table)', 2)
    end
    local kind = type(source)
    if kind == 'string' or kind == 'number' then
        return parse_list(tostring(source))
    elseif kind == 'table' then
        return parse_tables(source)
    end
    return nil, 'Incorrect type for URI: should be string, number or table'
end

local function format_params(params, write_sensitive)
    local names = {}
    for name in every(params) do
        if write_sensitive or name:sub(1, 4) ~= 'ssl_' then
            names[#names + 1] = name
        end
    end
    -- A fixed order, so that equal URIs have equal texts.
    table.sort(names)
    local parts = {}
    for _, name in ipairs(names) do
        local values = params[name]
        if type(values) ~= 'table' then
            values = { values }
        end
        if #values == 0 then
            parts[#parts + 1] = name
        end
        for _, value in ipairs(values) do
            parts[#parts + 1] = name .. '=' .. value
        end
    end
    return next(params) ~= nil and '?' .. table.concat(parts, '&') or ''
end

local FORMATTED = { 'scheme', 'login', 'password', 'host', 'service', 'path', 'fragment' }

--- Writes a URI from its fields. The password and the `ssl_` parameters are left out unless `write_sensitive`.
function uri.format(parts, write_sensitive)
    if type(parts) ~= 'table' then
        error('Usage: uri.format(uri[, write_sensitive])', 2)
    end
    for i = 1, #FORMATTED do
        local value = parts[FORMATTED[i]]
        if value ~= nil and type(value) ~= 'string' and type(value) ~= 'number' then
            error(("uri.format: field '%s' should be a string, got %s"):format(FORMATTED[i], type(value)), 2)
        end
    end
    local out = {}
    local function add(...)
        for i = 1, select('#', ...) do
            out[#out + 1] = (select(i, ...))
        end
    end
    if parts.scheme ~= nil then
        add(parts.scheme, '://')
    end
    if parts.login ~= nil then
        add(parts.login)
        if parts.password ~= nil and write_sensitive then
            add(':', parts.password)
        end
        add('@')
    end
    if parts.host ~= nil then
        local bracketed = parts.ipv4 == nil and parts.ipv6 ~= nil
        add(bracketed and '[' .. parts.host .. ']' or parts.host)
    end
    if parts.service ~= nil then
        add(parts.host ~= nil and ':' or '', tostring(parts.service))
    end
    add(parts.path ~= nil and parts.path or '')
    if type(parts.params) == 'table' then
        add(format_params(parts.params, write_sensitive))
    end
    if parts.fragment ~= nil then
        add('#', parts.fragment)
    end
    return table.concat(out)
end

--- The values of a parameter that occurs several times, for query tables.
function uri.values(...)
    return { ... }
end

--- A table of the bytes that `escape` leaves alone; `set` is the inside of a Lua character set.
function uri.unreserved(set)
    if type(set) ~= 'string' then
        error('Usage: uri.unreserved(str)', 2)
    end
    local pattern = '^[' .. set .. ']$'
    if not pcall(string.find, '', pattern) then
        error('Usage: uri.unreserved(str): no set of characters: ' .. set, 2)
    end
    local bytes = ffi.new('unsigned char[256]')
    for i = 0, 255 do
        bytes[i] = string.char(i):find(pattern) and 1 or 0
    end
    return bytes
end

local function profile(set, plus)
    return { unreserved = uri.unreserved('%w%-._' .. set), plus = plus or false }
end

uri.RFC3986 = profile('~')
uri.PATH = profile("~!$&'()*+,;=/:@")
uri.PATH_PART = profile("~!$&'()*+,;=:@")
uri.QUERY = profile("~!$&'()*+,;=/?")
uri.QUERY_PART = profile("~!$'()*+,;/?")
uri.FRAGMENT = profile("~!$&'()*+,;=/?")
uri.FORM_URLENCODED = profile('*', true)

--- Checks escaping options; raises at the caller of the public function.
local function escaping(opts)
    if opts and type(opts) ~= 'table' then
        error('opts must be a table', 3)
    end
    local bytes = opts and opts.unreserved or uri.RFC3986.unreserved
    local plus = opts and opts.plus or false
    if type(bytes) ~= 'cdata' then
        error('use uri.unreserved for building opts.unreserved', 3)
    end
    if type(plus) ~= 'boolean' then
        error('opts.plus must be a boolean', 3)
    end
    return bytes, plus
end

--- Percent-encodes `s`; `opts` is one of the profiles of this module (RFC3986 by default).
function uri.escape(s, opts)
    if type(s) ~= 'string' then
        error('Usage: uri.escape(string, [opts])', 2)
    end
    local bytes, plus = escaping(opts)
    return (s:gsub('.', function(char)
        if plus and char == ' ' then
            return '+'
        end
        local byte = char:byte()
        return bytes[byte] == 0 and ('%%%02X'):format(byte) or nil
    end))
end

--- Undoes `escape`. A percent sign without two hexadecimal digits after it stays.
function uri.unescape(s, opts)
    if type(s) ~= 'string' then
        error('Usage: uri.unescape(string, [opts])', 2)
    end
    local _, plus = escaping(opts)
    if plus then
        s = s:gsub('%+', ' ')
    end
    return (s:gsub('%%(%x%x)', function(hex)
        return string.char(tonumber(hex, 16))
    end))
end

return uri
