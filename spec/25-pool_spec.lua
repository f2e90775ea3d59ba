-- cord.pool: several servers behind one object, against embedded servers.
local helpers = require 'spec.helpers'
local pool = require 'cord.pool'
local server = require 'cord.server'
local fiber = require 'cord.fiber'

local function failure(...)
    local ok, err = pcall(...)
    assert.is_false(ok)
    return err
end

describe('a pool', function()
helpers.no_leftovers()
describe('of servers', function()
    local servers, addresses, calls, p, readonly
    local OPTIONS

    local function start(i, address)
        servers[i] = server.listen(address or '127.0.0.1:0', {
            functions = {
                who = function() calls[i] = calls[i] + 1 return i, 'x' end,
                slow = function(n) calls[i] = calls[i] + 1 fiber.sleep(n) return i end,
                fail = function() error('mine', 0) end,
                is_ro = function() return readonly[i] end,
            },
        })
        addresses[i] = (servers[i]:address())
    end

    before_each(function()
        servers, addresses, calls, readonly = {}, {}, { 0, 0, 0 }, { false, true, true }
        for i = 1, 3 do start(i) end
        OPTIONS = {
            ping_interval = 0.02, reconnect_after = 0.01,
            probe = function(conn) return (conn:call('is_ro', {}, { timeout = 1 })) end,
        }
        p = pool.connect(addresses, OPTIONS)
        assert.is_true(p:wait_connected(5))
    end)
    after_each(function()
        p:close()
        for i = 1, 3 do servers[i]:stop('hard') end
        fiber.sleep(0.03)
    end)

    it('says how it is', function()
        assert.equal('pool: 3 servers, 3 healthy', tostring(p))
        p:close()
        assert.equal('pool: 3 servers, 0 healthy (closed)', tostring(p))
    end)

    it('takes turns', function()
        for _ = 1, 9 do p:call('who') end
        assert.same({ 3, 3, 3 }, calls)
        assert.same({ 'x' }, { select(2, p:call('who')) })
    end)

    it('finds the writable one, those that are not, and one by name', function()
        for _ = 1, 3 do assert.equal(1, (p:call('who', {}, { mode = 'rw' }))) end
        for _ = 1, 4 do assert.is_true((p:call('who', {}, { mode = 'ro' })) > 1) end
        assert.equal(3, (p:call('who', {}, { mode = addresses[3] })))
        assert.equal(3, (p:connection(addresses[3]):call('who')))
        assert.equal("no mode or server 'nosuch' in this pool", failure(p.call, p, 'who', {}, { mode = 'nosuch' }).message)
        readonly = { true, false, true }
        fiber.sleep(0.06)
        assert.equal(2, (p:call('who', {}, { mode = 'rw' })))
        assert.is_true(p:info()[addresses[1]].ro)
    end)

    it('survives probes that raise, and those who cancel every fiber', function()
        for id in pairs(fiber.info()) do
            if id ~= fiber.id() then pcall(fiber.cancel, id) end
        end
        servers[2]:stop('hard')
        servers[2] = server.listen(addresses[2], { is_ro = function() error('no idea', 0) end })
        helpers.wait_until(function()
            fiber.sleep(0.01)
            return p:info()[addresses[2]].error == 'no idea'
        end, 3)
        assert.equal('no idea', p:info()[addresses[2]].error)
        servers[2]:stop('hard')
        start(2, addresses[2])
        assert.is_true(helpers.wait_until(function()
            fiber.sleep(0.01)
            return p:info()[addresses[2]].healthy
        end, 3))
    end)

    it('goes on when servers go, and takes them back', function()
        servers[1]:stop('hard')
        for _ = 1, 6 do assert.is_true((p:call('who')) > 1) end
        servers[2]:stop('hard')
        servers[3]:stop('hard')
        fiber.sleep(0.01)
        local err = failure(p.call, p, 'who', {}, { timeout = 0.03 })
        assert.equal(77, err.code)
        assert.matches("^No server suits 'any' %(", err.message)
        fiber.create(function() fiber.sleep(0.02) start(2, addresses[2]) end)
        assert.equal(2, (p:call('who', {}, { timeout = 5 })))
        start(1, addresses[1])
        start(3, addresses[3])
    end)

    it('never sends a request twice by itself, and says so', function()
        local err
        local f = fiber.new(function() err = failure(p.call, p, 'slow', { 0.2 }, { mode = addresses[2] }) end)
        f:set_joinable(true)
        fiber.sleep(0.01)
        servers[2]:stop('hard')
        f:join()
        assert.equal(77, err.code)
        assert.is_true(err.sent)
        assert.matches('the request was sent, and it is not known whether it was executed$', err.message)
        assert.equal('Peer closed', err.prev.message)
        assert.same({ 0, 1, 0 }, calls)
        start(2, addresses[2])
        fiber.sleep(0.25)
    end)

    it('sends again what does no harm', function()
        local result
        local f = fiber.new(function() result = p:call('slow', { 0.05 }, { idempotent = true }) end)
        f:set_joinable(true)
        fiber.sleep(0.01)
        local first = calls[1] == 1 and 1 or calls[2] == 1 and 2 or 3
        servers[first]:stop('hard')
        f:join()
        assert.is_true(result ~= first and result ~= nil)
        start(first, addresses[first])
        fiber.sleep(0.06)
    end)

    it('passes on errors and timeouts', function()
        assert.equal('mine', failure(p.call, p, 'fail').message)
        assert.equal("Procedure 'nosuch' is not defined", failure(p.call, p, 'nosuch').message)
        assert.equal('timed out', failure(p.call, p, 'slow', { 0.05 }, { timeout = 0.01 }).message)
        assert.equal("unsupported Lua type 'function'", failure(p.call, p, 'who', { print }).message)
        fiber.sleep(0.06)
    end)

    it('is closed', function()
        p:close()
        assert.equal('The pool is closed', failure(p.call, p, 'who').message)
        assert.equal('closed', p:info()[addresses[1]].state)
    end)
end)

it('of nobody is refused', function()
    assert.equal('usage: pool.connect({uri, ...}[, opts])', failure(pool.connect, {}).message)
    assert.equal("unexpected option 'bad'", failure(pool.connect, { '127.0.0.1:1' }, { bad = 1 }).message)
    assert.equal("options parameter 'timeout' should be of type number",
        failure(pool.connect, { '127.0.0.1:1' }, { timeout = 'x' }).message)
end)
end)
