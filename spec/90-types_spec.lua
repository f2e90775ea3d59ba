-- The type stubs say what the modules have: each module has a stub, and the two name the same functions and fields.
local helpers = require 'spec.helpers'

-- Modules of the library, from the list of its luaopen functions.
local function modules()
    local list = {}
    for name in assert(helpers.read_file 'src/lib.rs'):gmatch 'luaopen_cord[%w_]*%s*=>%s*"([%w_.]+)"' do list[#list + 1] = name end
    table.sort(list)
    return list
end

-- Names that a stub declares for the module's own table: functions, methods called on the module, fields of its class.
-- The table is the local that follows the line `---@class <module>` (with or without a parent class).
local function declared(text, module)
    local names = {}
    local class = '%-%-%-@class ' .. module:gsub('%.', '%%.') .. '[%s:]'
    local from = (text .. '\n'):find(class)
    local variable = from and text:match('\nlocal ([%w_]+) = %b{}', from)
    if not variable then return nil end
    local head = text:sub(from, (text:find('\nlocal ' .. variable .. ' = ', from, true)))
    for name, optional in head:gmatch '%-%-%-@field ([%w_]+)(%??)' do
        names[name] = optional == '?' and 'optional' or 'field'
    end
    -- `---@field [string] type` stands for names in capitals, too many to list.
    names['[string]'] = head:find('---@field [string]', 1, true) and 'optional' or nil
    for name in text:gmatch('\nfunction ' .. variable .. '[.:]([%w_]+)%(') do names[name] = 'function' end
    for name in text:gmatch('\n' .. variable .. '%.([%w_]+) =') do names[name] = 'field' end
    return names
end

describe('the type stubs', function()
    local list = modules()

    it('are many, so the list was read', function()
        assert.is_true(#list > 3)
    end)

    for _, module in ipairs(list) do
        local path = 'types/' .. (module == 'cord' and 'cord' or module:gsub('%.', '/')) .. '.d.lua'

        it('of ' .. module .. ' are there and name what the module has', function()
            local text = helpers.read_file(path)
            if not text then
                pending('no ' .. path)
                return
            end
            assert.equal('---@meta ' .. module, text:match '^[^\n]*')
            local stub = declared(text, module)
            assert.is_truthy(stub, path .. ' has no "---@class ' .. module .. '" followed by "local x = {}"')
            local loaded = require(module)
            local problems = {}
            -- A module may be FFI's namespace or a callable object: only a table can be walked.
            if type(loaded) == 'table' then
                for key, value in pairs(loaded) do
                    if type(key) == 'string' and key:sub(1, 1) ~= '_' then
                        if not stub[key] and not (stub['[string]'] and key:match '^[%u%d_]+$') then
                            problems[#problems + 1] = ('not in the stub: %s.%s'):format(module, key)
                        elseif stub[key] == 'function' and type(value) ~= 'function' then
                            problems[#problems + 1] = ('a function in the stub, a %s in fact: %s.%s'):format(type(value), module, key)
                        end
                    end
                end
            end
            for name, kind in pairs(stub) do
                local fine, value = pcall(function() return loaded[name] end)
                -- A NULL of FFI equals nil, and is there.
                if kind ~= 'optional' and (not fine or type(value) == 'nil') then
                    problems[#problems + 1] = ('only in the stub: %s.%s'):format(module, name)
                end
            end
            table.sort(problems)
            assert.same({}, problems)
        end)
    end

    -- Objects of net.box: a stub has their methods, and only those.
    it('name the methods of the objects of net.box', function()
        local net, server = require 'cord.netbox', require 'cord.server'
        local srv = server.listen('127.0.0.1:0', { echo = function(...) return ... end })
        local stored = srv:create_space 't'
        stored:create_index 'pk'
        stored:replace { 1 }
        local conn = net.connect((srv:address()))
        local function methods_of(object)
            local methods = debug.getmetatable(object).__index
            return type(methods) == 'table' and methods or {}
        end
        local text = helpers.read_file 'types/cord/netbox.d.lua'
        local problems = {}
        for name, methods in pairs {
            connection = methods_of(conn),
            space = methods_of(conn.space.t),
            index = methods_of(conn.space.t.index.pk),
            future = methods_of(conn:call('echo', {}, { is_async = true })),
            watcher = methods_of(conn:watch('key', function() end)),
            tuple = net.tuple.methods,
        } do
            local stub, there = {}, 0
            for method in text:gmatch('\nfunction ' .. name .. ':([%w_]+)%(') do stub[method] = true end
            for method in pairs(methods) do
                there = there + 1
                if not stub[method] then problems[#problems + 1] = 'not in the stub: ' .. name .. ':' .. method end
            end
            for method in pairs(stub) do
                if methods[method] == nil then problems[#problems + 1] = 'only in the stub: ' .. name .. ':' .. method end
            end
            assert.is_true(there > 0, name)
        end
        local stream = conn:new_stream()
        for method in text:gmatch '\nfunction stream:([%w_]+)%(' do assert.equal('function', type(stream[method]), method) end
        conn:close()
        srv:stop()
        assert.same({}, problems)
    end)
end)
