-- The small modules: clock, log, varbinary, and Tarantool's names for all of them.
local ffi = require('ffi')
local helpers = require('spec.helpers')

describe('cord.clock', function()
    local clock = require('cord.clock')

    it('tells the time in seconds and in nanoseconds', function()
        assert.is_true(math.abs(clock.time() - os.time()) < 2)
        assert.equal(clock.time, clock.realtime)
        assert.equal(clock.time64, clock.realtime64)
        for _, name in ipairs({ 'realtime', 'monotonic', 'proc', 'thread' }) do
            local before, wide, after = clock[name](), clock[name .. '64'](), clock[name]()
            assert.is_true(ffi.istype('int64_t', wide))
            assert.is_true(before > 0 and before - 1e-6 <= tonumber(wide) / 1e9 and tonumber(wide) / 1e9 <= after + 1e-6)
        end
    end)

    it('measures a function', function()
        local results = clock.bench(function(...)
            local sum = 0
            for i = 1, 1e6 do
                sum = sum + i % 7
            end
            return sum > 0, ...
        end, 'a', 'b')
        assert.is_true(results[1] > 0 and results[1] < 10)
        assert.same({ true, 'a', 'b' }, { results[2], results[3], results[4] })
    end)
end)

describe('cord.varbinary', function()
    local varbinary = require('cord.varbinary')

    it('holds bytes', function()
        for _, value in ipairs({ varbinary.new('foo'), varbinary.new(ffi.cast('const char *', 'foobar'), 3),
            varbinary.new(varbinary.new('foo')) }) do
            assert.is_true(varbinary.is(value))
            assert.equal(3, #value)
            assert.equal('foo', tostring(value))
            assert.is_true(value == 'foo' and 'foo' == value and value == varbinary.new('foo'))
            assert.is_false(value == 'fox' or value == varbinary.new('fo') or value == 1 or value == nil)
        end
        assert.equal(0, #varbinary.new())
        assert.is_true(ffi.istype('struct varbinary', varbinary.new()))
        for _, other in ipairs({ 1, {}, '', true }) do
            assert.is_false(varbinary.is(other))
        end
        for _, wrong in ipairs({ 1, {}, true, ffi.cast('const char *', 'foo') }) do
            assert.has_error(function() varbinary.new(wrong) end, 'Usage: varbinary.new(str) or varbinary.new(ptr, size)')
        end
    end)

    it('is how MessagePack binary data is seen', function()
        local ext = require('cord.msgpack').ext
        assert.is_true(ext.decoders.bin('a\0b') == varbinary.new('a\0b'))
        assert.equal('a\0b', ext.by_ctype[tonumber(ffi.typeof('struct varbinary'))].encode(varbinary.new('a\0b')))
    end)
end)

describe('cord.log', function()
    local HEAD = '^%d%d%d%d%-%d%d%-%d%d %d%d:%d%d:%d%d%.%d%d%d %[%d+%] main/%d+/[^ ]+ '

    local function lines(source)
        local result = helpers.run("local log = require('cord.log')\n" .. source)
        assert.equal(0, result.code)
        local found = {}
        for line in result.stderr:gmatch('[^\n]+') do
            found[#found + 1] = line
        end
        return found
    end

    it('writes lines of Tarantool\'s form', function()
        local found = lines([[
            log.info('a %d %s', 5, { 1, 2 })
            log.warn('w')
            log.error({ a = 1 })
            log.info(nil)
            log.verbose('hidden') log.debug('hidden')
            log.new('net.box').info('named')
        ]])
        assert.equal(5, #found)
        assert.truthy(found[1]:find(HEAD .. 'I> a 5 %[1,2%]$'))
        assert.truthy(found[2]:find(HEAD .. '[^ ]+:3 W> w$'))
        assert.truthy(found[3]:find(HEAD .. '[^ ]+:4 E> {"a":1}$'))
        assert.truthy(found[4]:find(HEAD .. 'I> nil$'))
        assert.truthy(found[5]:find(HEAD .. 'net%.box I> named$'))
    end)

    it('obeys levels', function()
        local found = lines([[
            log.level('error') log.warn('no') log.error('1')
            log.level(7) log.debug('2')
            log.cfg({ level = 'warn', modules = { loud = 'debug' } })
            log.info('no') log.new('loud').verbose('3')
            assert(log.cfg.level == 'warn')
        ]])
        assert.equal(3, #found)
        for i, line in ipairs(found) do
            assert.equal(tostring(i), line:sub(-1))
        end
    end)

    it('writes JSON, and into a file', function()
        local path = helpers.tempdir() .. '/log'
        local found = lines(("log.cfg({ format = 'json', log = %q })\nlog.warn('a\"b')"):format(path))
        assert.equal(0, #found)
        local record = require('cord.json').decode(helpers.read_file(path))
        assert.equal('a"b', record.message)
        assert.equal('WARN', record.level)
        assert.equal('main', record.cord_name)
        assert.truthy(record.time:find('^%d+%-%d+%-%d+T%d+:%d+:%d+%.%d+[+-]%d+$'))
    end)

    it('refuses wrong settings', function()
        local log = require('cord.log')
        assert.has_error(function() log.level('loud') end, "Incorrect value for option 'log_level': expected "
            .. 'fatal,syserror,error,crit,warn,info,verbose,debug')
        assert.has_error(function() log.log_format('xml') end,
            "Incorrect value for option 'log_format': expected 'plain' or 'json'")
        assert.has_error(function() log.cfg({ lvl = 1 }) end, "Incorrect value for option 'lvl': unexpected option")
        assert.has_error(function() log.new(1) end, 'Illegal parameters, name should be a string')
    end)
end)

describe("cord.preload", function()
    it("serves the modules under Tarantool's names", function()
        local result = helpers.run([[
            package.preload['uri'] = function() return 'mine' end
            local cord = require('cord')
            local names = cord.preload()
            assert(table.concat(names, ' ') == table.concat(cord.preload(), ' '))
            assert(require('uri') == 'mine')
            for _, name in ipairs(names) do
                assert(type(require(name)) == 'table', name)
                assert(name ~= 'uri')
            end
            for _, name in ipairs({ 'clock', 'decimal', 'json', 'log', 'msgpack', 'uuid', 'varbinary' }) do
                assert(require(name) == require('cord.' .. name), name)
            end
            assert(not package.preload['nothing like this'])
            print('done')
        ]])
        assert.equal('done\n', result.stdout, result.stderr)
    end)
end)
