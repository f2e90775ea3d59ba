-- A script for 39-wrong_arguments_spec.lua: calls every function of a module, and every method of the objects it makes, with
-- arguments that are wrong in all ways, each in a fiber of its own that is cancelled if it waits. Prints how many calls there
-- were, and a line for each message that names a place inside of the library or is one of Lua's own about its variables.
-- Arguments: the module, and a file that holds the last call, for whoever has to explain a crash.
local name, path_of_last = ...
local ffi = require 'ffi'
local fiber = require 'cord.fiber'
local module = require(name)

-- The stub names methods. After it was read the folder is that of the file: some functions make files of their arguments.
local stub_file = io.open('types/' .. name:gsub('%.', '/') .. '.d.lua')
local stub = stub_file and stub_file:read '*a' or ''
if stub_file then stub_file:close() end
ffi.cdef 'int chdir(const char *);'
if path_of_last then ffi.C.chdir((path_of_last:gsub('[^/]*$', ''))) end

local odd = setmetatable({}, { __index = function() error 'odd' end, __tostring = function() return 'odd' end })
-- No function that prints: descriptor 1 is given away (`from_fd(1)`), and what is printed then goes to any socket that gets
-- its number, or ends the process by SIGPIPE.
local VALUES = {
    {}, 0, -1, 1.5, 1e300, -1e300, 0 / 0, 1 / 0, 'x', '', ('x'):rep(300), true, os.clock, newproxy(true), coroutine.create(os.clock),
    ffi.new 'int[2]', 1ULL, ffi.cast('void *', 0), fiber.new(function() fiber.sleep(1e9) end), odd,
}

-- ------------------------------------------------------------------------------------------------- one call

local OURS = { '[cord]', 'src/' }
local LUAS = { 'attempt to index', 'attempt to call', 'attempt to compare', 'attempt to perform', 'attempt to con',
    'attempt to get length', 'has no member', '__pairs', 'table index is', "'for' " }
local calls, problems, known = 0, {}, {}

local function problem(what, text)
    if not known[what .. text] then
        known[what .. text] = true
        problems[#problems + 1] = what .. ': ' .. text
    end
end

local function judge(what, err)
    local text = type(err) == 'string' and err or type(err) == 'cdata' and err.message or tostring(err)
    if type(text) ~= 'string' then return problem(what, 'the message is a ' .. type(text)) end
    for _, list in ipairs { OURS, LUAS } do
        for _, part in ipairs(list) do
            if text:find(part, 1, true) then return problem(what, text) end
        end
    end
end

local function call(what, fn, n, a, b, c, d)
    calls = calls + 1
    local done, ok, err
    local f = fiber.new(function()
        ok, err = pcall(fn, unpack({ a, b, c, d }, 1, n))
        done = true
    end)
    fiber.sleep(0)
    if not done then
        pcall(f.cancel, f)
        fiber.sleep(0)
    end
    if not done then
        problem(what, 'goes on for ever')
    elseif not ok then
        judge(what, err)
    end
end

local function remember(what)
    local file = path_of_last and io.open(path_of_last, 'w')
    if file then
        file:write(what)
        file:close()
    end
end

local function call_all(what, fn, self)
    remember(what)
    call(what, fn, 0)
    call(what, fn, 1, nil)
    for i = 1, #VALUES do
        local v = VALUES[i]
        call(what, fn, 1, v)
        call(what, fn, 2, nil, v)
        call(what, fn, 2, v, v)
        call(what, fn, 2, 'x', v)
        call(what, fn, 3, {}, v, v)
        call(what, fn, 4, 1, v, v, v)
        if self ~= nil then
            call(what, fn, 2, self, v)
            call(what, fn, 3, self, v, v)
            call(what, fn, 4, self, 1, v, v)
        end
    end
end

-- ------------------------------------------------------------------------------------------------- objects

-- A server in this process, with a space.
local function serve()
    local srv = require('cord.server').listen('127.0.0.1:0', { echo = function(...) return ... end })
    local space = srv:create_space('t', { format = { { 'id', 'unsigned' } } })
    space:create_index 'pk'
    space:replace { 1 }
    return srv, space
end

local MAKERS = {
    ['cord.uuid'] = function(m) return m.new() end,
    ['cord.decimal'] = function(m) return m.new(1.5) end,
    ['cord.datetime'] = function(m) return m.new { year = 2024 }, m.interval.new { day = 1 } end,
    ['cord.varbinary'] = function(m) return m.new 'x' end,
    ['cord.fiber'] = function(m) return m.new(function() m.sleep(1e9) end), m.channel(2), m.cond() end,
    ['cord.error'] = function(m) return m.new { code = 1, reason = 'x' } end,
    ['cord.buffer'] = function(m) return m.ibuf() end,
    ['cord.msgpack'] = function(m) return m.object { 1 }, m.object({ 1 }):iterator() end,
    ['cord.netbox'] = function(m)
        local conn = m.connect((serve():address()), { reconnect_after = 0.001 })
        local space = conn.space.t
        return conn, conn:new_stream(), space, space.index.pk, conn:call('echo', { 1 }, { is_async = true }),
            conn:watch('x', os.clock), space:get(1)
    end,
    ['cord.server'] = function()
        local srv, space = serve()
        return srv, space, space.index.pk
    end,
    ['cord.socket'] = function(m) return m('AF_INET', 'SOCK_STREAM', 'tcp'), m('AF_INET', 'SOCK_STREAM', 'tcp') end,
    ['cord.pool'] = function(m) return m.connect { (serve():address()) } end,
}
-- Methods that no stub names one by one.
local METHODS = { 'select', 'insert', 'replace', 'update', 'upsert', 'delete', 'get', 'min', 'max', 'count', 'format', 'put', 'len',
    'pairs', 'create_index', 'rename', 'alter', 'tomap', 'totable', 'unpack', 'slice', 'transform', 'find', 'findall', 'next',
    'ipairs', 'bsize', 'info' }
-- What would end the object under test, or cannot be cancelled: a join waits for its fiber to its end.
local LEFT_OUT = { close = true, stop = true, wait = true, drop = true, truncate = true, join = true }

local OPERATORS = {
    function(a, b) return a == b end, function(a, b) return a < b end, function(a, b) return a <= b end,
    function(a, b) return a + b end, function(a, b) return a - b end, function(a, b) return a * b end,
    function(a, b) return a / b end, function(a, b) return a % b end, function(a, b) return a ^ b end,
}

local function operate(what, object)
    for _, operator in ipairs(OPERATORS) do
        for i = 1, #VALUES do
            for _, pair in ipairs { { object, VALUES[i] }, { VALUES[i], object } } do
                calls = calls + 1
                local ok, err = pcall(operator, pair[1], pair[2])
                local text = not ok and (type(err) == 'cdata' and err.message or tostring(err)) or ''
                if text:find('[cord]', 1, true) then problem(what .. ' operator', text) end
            end
        end
    end
end

local function methods_of(object)
    local names = {}
    for _, method in ipairs(METHODS) do names[method] = true end
    for method in stub:gmatch '\nfunction [%w_.]+:([%w_]+)%(' do names[method] = true end
    local found = {}
    for method in pairs(names) do
        local ok, fn = pcall(function() return object[method] end)
        if ok and type(fn) == 'function' and not LEFT_OUT[method] then found[#found + 1] = method end
    end
    table.sort(found)
    return found
end

-- ------------------------------------------------------------------------------------------------- the walk

local function is_callable(value)
    local meta = type(value) == 'table' and getmetatable(value)
    return type(value) == 'function' or type(meta) == 'table' and meta.__call ~= nil
end

local seen = {}
local function walk(path, t)
    seen[t] = true
    local keys = {}
    for key in pairs(t) do
        if type(key) == 'string' and key:sub(1, 1) ~= '_' then keys[#keys + 1] = key end
    end
    table.sort(keys)
    for _, key in ipairs(keys) do
        local value, what = t[key], path .. '.' .. key
        if is_callable(value) and what ~= 'cord.fiber.join' then
            call_all(what, value, t)
        elseif type(value) == 'table' and not getmetatable(value) and not seen[value] then
            walk(what, value)
        end
    end
end
if type(module) == 'table' then walk(name, module) end

for i, object in ipairs { (MAKERS[name] or function() end)(module) } do
    for _, method in ipairs(methods_of(object)) do
        call_all(('%s, object %d: %s'):format(name, i, method), object[method], object)
    end
    operate(('%s, object %d'):format(name, i), object)
end

-- A function may have closed the standard output: it takes descriptors.
io.stderr:write('\n', calls, ' calls\n', table.concat(problems, '\n'), '\n')
os.exit(0, false)
