-- What the specs of fibers share: a snippet run here and under Tarantool, whose outputs must be equal.
local helpers = require 'spec.helpers'

local M = {}

local HEAD = [[
local tarantool = rawget(_G, '_TARANTOOL') ~= nil
local fiber = tarantool and require 'fiber' or require 'cord.fiber'
local out = {}
local function note(...)
    local t = {}
    for i = 1, select('#', ...) do t[i] = tostring((select(i, ...))) end
    out[#out + 1] = table.concat(t, ' ')
end
]]
local TAIL = [[

io.write(table.concat(out, ', '))
io.flush()
os.exit(0)
]]

-- What `note` collected in a child that runs the snippet with `fiber` at hand, joined by ', '. Options as helpers.run.
function M.notes(snippet, options)
    return helpers.run_ok(HEAD .. snippet .. TAIL, options)
end

-- Defines a test: the snippet's notes are `expected` here, and under Tarantool too where it is installed.
-- `options.newer` says why Debian's 2.6 differs; the reference decides then.
function M.same(name, snippet, expected, options)
    local env = getfenv(2)
    options = options or {}
    env.it(name, function()
        env.assert.equal(expected, M.notes(snippet))
    end)
    if options.newer then return end
    env.it(name .. ' (tarantool agrees)', function()
        local binary, reason = helpers.tarantool_binary()
        if not binary then
            env.pending(reason)
            return
        end
        env.assert.equal(expected, M.notes(snippet, { lua = binary }))
    end)
end

return M
