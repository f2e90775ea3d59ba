-- Every public function, and every method, called with nil, tables, huge numbers, other objects: nothing crashes or waits for
-- ever, and no message speaks of the inside of the library. spec/wrong_arguments.lua does it, in a process for each module.
local helpers = require 'spec.helpers'

-- Modules of the library, from the list of its luaopen functions; cord.ffi is C's own functions, which trust their callers.
local function modules()
    local list = {}
    for name in assert(helpers.read_file 'src/lib.rs'):gmatch 'luaopen_cord[%w_]*%s*=>%s*"([%w_.]+)"' do
        if name ~= 'cord.ffi' then list[#list + 1] = name end
    end
    table.sort(list)
    return list
end

describe('wrong arguments of', function()
    local list = modules()

    it('the modules there are, many', function()
        assert.is_true(#list > 15, #list)
    end)

    for _, name in ipairs(list) do
        it(name .. ' get an answer', function()
            local last = helpers.tempdir() .. '/last'
            local result = helpers.run(helpers.read_file 'spec/wrong_arguments.lua', { args = { name, last }, timeout = 120 })
            local at = (' at %s'):format(helpers.read_file(last) or 'the start')
            assert.equal(0, result.code, (result.signal and 'signal ' .. result.signal or result.stderr) .. at)
            local calls, rest = result.stderr:match '\n(%d+) calls\n(.*)$'
            assert.is_truthy(calls, result.stderr .. at)
            assert.equal('\n', rest)
            if name ~= 'cord.repl' then assert.is_true(tonumber(calls) > 0) end
        end)
    end
end)
