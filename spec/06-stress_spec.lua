-- Random mixtures of waits in child processes: spec/stress.lua. CORD_SPEC_SEED repeats a run, CORD_SPEC_ROUNDS prolongs it.
local helpers = require 'spec.helpers'

local ROUNDS = os.getenv 'CORD_SPEC_ROUNDS' or 300

describe('a random mixture of waits', function()
    local source = helpers.read_file 'spec/stress.lua'
    local seed = tonumber(os.getenv 'CORD_SPEC_SEED') or os.time()

    for _, case in ipairs {
        { 'alone', {}, 'calm' },
        { 'with a fiber that wakes others at random', {}, 'chaos' },
        { 'without the compiler', { '-joff' }, 'chaos' },
        { 'with a compiler in a hurry', { '-Ohotloop=1', '-Ohotexit=1' }, 'chaos' },
        { 'with a collector in a hurry', {}, 'chaos', 'gc' },
    } do
        it('gives right sums ' .. case[1], function()
            local result = helpers.run(source, { flags = case[2], args = { seed, ROUNDS, case[3], case[4] }, timeout = 120 })
            assert.equal(('seed %d\nall sums are right\n'):format(seed), result.stdout, result.stderr)
            assert.equal('', result.stderr)
            assert.equal(0, result.code)
        end)
    end
end)
