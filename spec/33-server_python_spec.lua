-- The Python connector as a client of the embedded server: its usual operations. Needs `pip install tarantool` for the
-- interpreter $PYTHON, by default that of target/python, which tools/deps.sh makes, or python3.
local helpers = require 'spec.helpers'
local fiber = require 'cord.fiber'
local server = require 'cord.server'

local OWN = 'target/python/bin/python3'
local PYTHON = os.getenv 'PYTHON' or helpers.which(OWN) and OWN or 'python3'

local function connector()
    if not helpers.which(PYTHON) then return nil, 'no ' .. PYTHON .. ' on this machine' end
    if os.execute(("'%s' -c 'import tarantool' >/dev/null 2>&1"):format(PYTHON)) ~= 0 then
        return nil, ('%s has no module tarantool: pip install tarantool, or set PYTHON'):format(PYTHON)
    end
    return true
end

local PROGRAM = [=[
import decimal, sys, tarantool, uuid
host, port = sys.argv[1], int(sys.argv[2])

def refused(code, f, *args, **kwargs):
    try:
        f(*args, **kwargs)
    except tarantool.DatabaseError as e:
        assert e.code == code, e
        return str(e)
    raise AssertionError('no error')

c = tarantool.Connection(host, port, user='app', password='secret')
c.ping()
assert c.call('echo', 1, 'text', [1, {'a': 2}], None, 1.5, True).data == [1, 'text', [1, {'a': 2}], None, 1.5, True]
assert c.call('echo', ()).data == [] or c.call('echo').data == []
assert c.eval('return ... + 1', 41).data == [42]
assert 'boom' in refused(32, c.call, 'boom')
refused(33, c.call, 'nope')
s = c.space('t')
assert s.insert((1, 'one', 10)).data == [[1, 'one', 10]]
refused(3, s.insert, (1, 'again', 0))
assert s.replace((2, 'two', 20)).data == [[2, 'two', 20]]
assert s.select(1).data == [[1, 'one', 10]]
assert s.select('two', index='name').data == [[2, 'two', 20]]
assert s.select().data == [[1, 'one', 10], [2, 'two', 20]]
assert c.select('t', 1, iterator=tarantool.const.ITERATOR_GT, limit=1).data == [[2, 'two', 20]]
assert s.update(1, [('+', 2, 5), ('=', 1, 'uno')]).data == [[1, 'uno', 15]]
s.upsert((1, 'x', 0), [('+', 2, 1)])
s.upsert((3, 'three', 30), [('+', 2, 1)])
assert s.select().data == [[1, 'uno', 16], [2, 'two', 20], [3, 'three', 30]]
assert s.delete(3).data == [[3, 'three', 30]]
values = [decimal.Decimal('1.5'), uuid.UUID(int=5), tarantool.Datetime(year=2022, month=8, day=31), tarantool.Interval(day=3)]
assert c.call('echo', *values).data == values
try:
    c.select('unknown')
    raise AssertionError('no error')
except tarantool.SchemaError:
    pass
for i in range(1000):
    assert c.call('echo', i).data == [i]
assert c.call('echo', 'x' * 300000).data == ['x' * 300000]
c.close()
# A pool asks each instance for box.info.
pool = tarantool.ConnectionPool(addrs=[{'host': host, 'port': port}], user='app', password='secret')
assert pool.call('echo', 5, mode=tarantool.Mode.RW).data == [5]
assert pool.select('t', 1, mode=tarantool.Mode.ANY).data == [[1, 'uno', 16]]
pool.close()
try:
    tarantool.Connection(host, port, user='app', password='wrong')
    raise AssertionError('no error')
except tarantool.DatabaseError as e:
    assert 'User not found or supplied credentials are invalid' in str(e), e
print('fine')
]=]

describe("Python's connector", function()
    setup(function() fiber.sleep(0.001) end)
    helpers.no_leftovers()

    it('calls, evaluates, and works on spaces', function()
        local there, reason = connector()
        if not there then
            pending(reason)
            return
        end
        local srv = server.listen('127.0.0.1:0', {
            eval = true,
            users = { app = 'secret' },
            echo = function(...) return ... end,
            boom = function() error('boom', 0) end,
        })
        local t = srv:create_space('t', { format = { { 'id', 'unsigned' }, { 'name', 'string' }, { 'value', 'integer' } } })
        t:create_index('pk', { parts = { 1, 'unsigned' } })
        t:create_index('name', { parts = { 2, 'string' } })
        local dir = helpers.tempdir()
        local host, port = srv:address():match '^(.*):(%d+)$'
        local child = helpers.spawn({ helpers.which(PYTHON), helpers.write_file(dir .. '/client.py', PROGRAM), host, port },
            { stdout = dir .. '/stdout', stderr = dir .. '/stderr' })
        local deadline = helpers.now() + 60
        while not child:status() and helpers.now() < deadline do fiber.sleep(0.01) end
        child:stop()
        srv:stop('hard')
        assert.equal('fine\n', helpers.read_file(dir .. '/stdout'), helpers.read_file(dir .. '/stderr'))
    end)
end)
