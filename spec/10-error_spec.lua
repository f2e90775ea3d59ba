local ffi = require('ffi')
local cord_error = require('cord.error')

describe('cord.error', function()
    local function line()
        return debug.getinfo(2, 'l').currentline
    end

    describe('an error object', function()
        it('is cdata of struct error', function()
            local e = cord_error.new(cord_error.PROC_LUA, 'boom')
            assert.equal('cdata', type(e))
            assert.is_true(ffi.istype('struct error', e))
            assert.is_true(cord_error.is(e))
            assert.is_false(cord_error.is('boom'))
            assert.is_false(cord_error.is())
        end)

        it('has the fields of its kind', function()
            local e = cord_error.new(cord_error.NO_SUCH_SPACE, 'tweets')
            assert.equal('ClientError', e.type)
            assert.equal('ClientError', e.base_type)
            assert.equal(36, e.code)
            assert.equal("Space 'tweets' does not exist", e.message)
            assert.equal('NO_SUCH_SPACE', e.name)
            assert.equal('tweets', e.space)
            assert.is_nil(e.errno)
            assert.is_nil(e.prev)
            assert.is_nil(e.no_such_field)
            assert.equal("Space 'tweets' does not exist", tostring(e))
        end)

        it('tells where it was made', function()
            local e, here = cord_error.new(32, 'x'), line()
            assert.same({ { file = debug.getinfo(1, 'S').short_src, line = here } }, e.trace)
            local function at_level()
                return (cord_error.new(32, 'x', 2))
            end
            local other = at_level()
            here = line() - 1
            assert.equal(here, other.trace[1].line)
            assert.same({}, cord_error.new(32, 'x', 0).trace)
            assert.same({}, cord_error.new({ code = 32, message = 'x' }, 0).trace)
        end)

        it('equals itself only, and compares with anything', function()
            local a, b = cord_error.new(32, 'x'), cord_error.new(32, 'x')
            assert.is_true(a == a)
            assert.is_false(a == b)
            assert.is_false(a == nil)
            assert.is_false(a == 'x')
            assert.is_false(a == 1)
            local ok, caught = pcall(error, a)
            assert.is_false(ok)
            assert.is_true(rawequal(caught, a))
        end)

        it('is readable through a reference', function()
            local e = cord_error.new(32, 'x')
            local reference = ffi.cast('struct error &', e)
            assert.equal('x', reference.message)
            assert.is_true(reference == e)
            assert.equal('x', tostring(ffi.cast('struct error *', e)[0]))
        end)

        it('refuses a struct somebody else made', function()
            local ok, message = pcall(function()
                return ffi.new('struct error').message
            end)
            assert.is_false(ok)
            assert.truthy(message:find('was not made by cord.error', 1, true))
        end)

        it('ends its texts at the first NUL', function()
            assert.equal('ab', cord_error.new(32, 'ab\0cd').message)
            assert.equal('\255x', cord_error.new(32, '\255x').message)
        end)

        it('joins with strings', function()
            local e = cord_error.new(32, 'x')
            assert.equal('ax', 'a' .. e)
            assert.equal('xa', e .. 'a')
            assert.equal('x1', e .. 1)
        end)

        it('unpacks', function()
            local e = cord_error.new({ type = 'MyError', code = 7, message = 'm', a = 1, b = { 2 } }, 0)
            assert.same({
                type = 'MyError',
                base_type = 'CustomError',
                custom_type = 'MyError',
                code = 7,
                message = 'm',
                trace = {},
                a = 1,
                b = { 2 },
            }, e:unpack())
        end)

        it('matches, raises and serializes', function()
            local e = cord_error.new(32, 'key 12')
            assert.equal('12', e:match('%d+'))
            local ok, caught = pcall(e.raise, e)
            assert.is_false(ok)
            assert.is_true(rawequal(e, caught))
            assert.equal('key 12', e:__serialize())
            assert.equal(32, e:__autocomplete().code)
            assert.equal('function', type(e:__autocomplete().raise))
        end)

        it('says how its methods are called', function()
            local e = cord_error.new(32, 'x')
            for method, text in pairs({
                unpack = 'Usage: error:unpack()',
                raise = 'Usage: error:raise()',
                match = 'Usage: error:match()',
                set_prev = 'Usage: error1:set_prev(error2)',
            }) do
                local ok, raised = pcall(e[method], 1)
                assert.is_false(ok)
                assert.equal(text, raised.message)
                assert.equal('IllegalParams', raised.type)
            end
            local ok, raised = pcall(e.set_prev, e, 'x')
            assert.is_false(ok)
            assert.equal('Usage: error1:set_prev(error2)', raised.message)
        end)

        it('cannot be assigned to', function()
            local e = cord_error.new(32, 'x')
            assert.is_false(pcall(function()
                e.message = 'y'
            end))
        end)
    end)

    describe('causes', function()
        it('form a chain that is searched for payload', function()
            local cause = cord_error.new({ message = 'c', deep = 5 })
            local e = cord_error.new({ message = 'e', prev = cause })
            assert.is_true(rawequal(cause, e.prev))
            assert.equal(5, e.deep)
            e:set_prev(nil)
            assert.is_nil(e.prev)
            assert.is_nil(e.deep)
        end)

        it('may not form a ring', function()
            local a, b, c = cord_error.new(32, 'a'), cord_error.new(32, 'b'), cord_error.new(32, 'c')
            a:set_prev(b)
            b:set_prev(c)
            local ok, raised = pcall(c.set_prev, c, a)
            assert.is_false(ok)
            assert.equal('Cycles are not allowed', raised.message)
            ok, raised = pcall(a.set_prev, a, a)
            assert.is_false(ok)
            assert.equal('Cycles are not allowed', raised.message)
        end)

        it('belong to one error at a time', function()
            local a, b, c = cord_error.new(32, 'a'), cord_error.new(32, 'b'), cord_error.new(32, 'c')
            a:set_prev(c)
            b:set_prev(c)
            assert.is_nil(a.prev)
            assert.is_true(rawequal(b.prev, c))
        end)

        it('are the objects themselves, even when given by a reference', function()
            local e, cause = cord_error.new(32, 'e'), cord_error.new(32, 'cause')
            e:set_prev(ffi.cast('struct error &', cause))
            assert.is_true(rawequal(cause, e.prev))
        end)

        it('outlive their own object and come back the same', function()
            local e = cord_error.new(32, 'top')
            do
                e:set_prev(cord_error.new(32, 'cause'))
            end
            collectgarbage()
            collectgarbage()
            assert.equal('cause', e.prev.message)
            local prev = e.prev
            assert.is_true(rawequal(prev, e.prev))
        end)

        it('are collected with the error, however long the chain', function()
            local seen = setmetatable({}, { __mode = 'v' })
            do
                local e
                for i = 1, 1000 do
                    local next_one = cord_error.new({ message = 'm', payload = {} })
                    seen[i] = next_one.payload
                    if e then
                        next_one:set_prev(e)
                    end
                    e = next_one
                end
            end
            for _ = 1, 4 do
                collectgarbage()
            end
            assert.is_nil(next(seen))
        end)
    end)

    describe('as box.error', function()
        it('holds the codes by name', function()
            assert.equal(0, cord_error.UNKNOWN)
            assert.equal(1, cord_error.ILLEGAL_PARAMS)
            assert.equal(47, cord_error.CREDS_MISMATCH)
            assert.equal(77, cord_error.NO_CONNECTION)
            assert.equal(305, cord_error.NO_SUCH_READ_VIEW)
            assert.is_nil(cord_error.NO_SUCH_CODE)
        end)

        it('raises an error of each form', function()
            local function raised(...)
                local ok, e = pcall(cord_error, ...)
                assert.is_false(ok)
                return e
            end
            assert.equal("No index #3 is defined in space 's'", raised(35, 3, 's').message)
            assert.equal('Unknown error', raised(9999).message)
            assert.equal('Timeout exceeded', raised({ code = 78 }).message)
            assert.equal('why', raised({ code = 78, reason = 'why' }).message)
            assert.equal('first', raised({ 'first', code = 78 }).message)
            local custom = raised('MyError', 'got %d', 5)
            assert.equal('MyError', custom.type)
            assert.equal('CustomError', custom.base_type)
            assert.equal('got 5', custom.message)
            local again = raised(custom)
            assert.is_true(rawequal(custom, again))
            local illegal = raised(1, 'bad')
            assert.equal('IllegalParams', illegal.type)
            assert.equal(0, illegal.code)
        end)

        it('rejects other arguments', function()
            local function text(fn, ...)
                local ok, e = pcall(fn, ...)
                assert.is_false(ok)
                return e.message
            end
            assert.equal('box.error(): bad arguments', text(cord_error, true))
            assert.equal('box.error(): bad arguments', text(cord_error, 5))
            assert.equal('box.error(): bad arguments', text(cord_error, 'MyError'))
            assert.equal('box.error.new(): bad arguments', text(cord_error.new))
            assert.equal('box.error.new(): bad arguments', text(cord_error.new, 32, 'x', 'level'))
            assert.equal('box.error.new(): bad arguments', text(cord_error.new, {}, 1, 2))
            assert.equal('box.error.last(): bad arguments', text(cord_error.last, 1))
            assert.equal('box.error.clear(): bad arguments', text(cord_error.clear, 1))
            assert.equal('Usage: box.error.set(error)', text(cord_error.set))
            assert.equal('Invalid argument #1 (error expected, got string)', text(cord_error.set, 'x'))
            assert.equal(
                "Invalid argument 'prev' (error expected, got string)",
                text(cord_error.new, { message = 'x', prev = 'y' })
            )
        end)

        it('remembers the last error', function()
            cord_error.clear()
            assert.is_nil(cord_error.last())
            cord_error()
            local _, e = pcall(cord_error, 32, 'x')
            assert.is_true(rawequal(e, cord_error.last()))
            local _, again = pcall(cord_error)
            assert.is_true(rawequal(e, again))
            cord_error.new(32, 'other')
            assert.is_true(rawequal(e, cord_error.last()))
            local set = cord_error.new(32, 'set')
            cord_error.set(set)
            assert.is_true(rawequal(set, cord_error.last()))
            cord_error.clear()
            assert.is_nil(cord_error.last())
        end)
    end)

    describe('internal constructors', function()
        it('make the classes of the protocol', function()
            for _, case in ipairs({
                { cord_error.illegal_params('x'), 'IllegalParams', 'x', 1 },
                { cord_error.fiber_is_cancelled(), 'FiberIsCancelled', 'fiber is cancelled', 32 },
                { cord_error.channel_is_closed(), 'ChannelIsClosed', 'channel is closed', 32 },
                { cord_error.timed_out(), 'TimedOut', 'timed out', 115 },
                { cord_error.luajit('boom', 5), 'LuajitError', 'boom', 32 },
                { cord_error.client(77, 'Peer closed'), 'ClientError', 'Peer closed', 77 },
                { cord_error.system(2, 'open'), 'SystemError', 'open: No such file or directory', 115 },
                {
                    cord_error.socket(111, 'fd 5', 'connect'),
                    'SocketError',
                    'connect, called on fd 5: Connection refused',
                    115,
                },
                {
                    cord_error.out_of_memory(5, 'malloc', 'buffer'),
                    'OutOfMemory',
                    'Failed to allocate 5 bytes in malloc for buffer',
                    2,
                },
            }) do
                assert.equal(case[2], case[1].type)
                assert.equal(case[3], case[1].message)
                assert.equal(case[4], cord_error.encode_stack(case[1])[1].code)
            end
            assert.equal(5, cord_error.luajit('boom', 5).value)
            assert.equal(2, cord_error.system(2, 'x').errno)
        end)

        it('wrap what is no error object', function()
            local e = cord_error.new(32, 'x')
            assert.is_true(rawequal(e, cord_error.wrap(e)))
            local value = setmetatable({}, {
                __tostring = function()
                    error('no')
                end,
            })
            assert.equal('table', cord_error.wrap(value).message)
            assert.is_true(rawequal(value, cord_error.wrap(value).value))
            assert.equal('nil', cord_error.wrap(nil).message)
            assert.equal('LuajitError', cord_error.wrap('s').type)
        end)

        it('record the caller and raise the object itself', function()
            local e = cord_error.illegal_params('x')
            local function checked()
                cord_error.raise(e)
            end
            local here
            local ok, caught = pcall(function()
                here = line() + 1
                checked()
            end)
            assert.is_false(ok)
            assert.is_true(rawequal(e, caught))
            assert.equal(here, e.trace[1].line)
        end)

        it('survive the wire', function()
            local cause = cord_error.client(36, "Space 'x' does not exist", { space = 'x' })
            local e = cord_error.make({
                type = 'MyError',
                base_type = 'CustomError',
                message = 'top',
                code = 3,
                errno = 4,
                file = 'f.lua',
                line = 9,
                fields = { k = 'v' },
                prev = cause,
            })
            local stack = cord_error.encode_stack(e)
            assert.same({
                {
                    type = 'CustomError',
                    file = 'f.lua',
                    line = 9,
                    message = 'top',
                    errno = 4,
                    code = 3,
                    fields = { k = 'v', custom_type = 'MyError' },
                },
                {
                    type = 'ClientError',
                    file = '',
                    line = 0,
                    message = "Space 'x' does not exist",
                    errno = 0,
                    code = 36,
                    fields = { space = 'x', name = 'NO_SUCH_SPACE' },
                },
            }, stack)
            local decoded = cord_error.decode_stack(stack)
            assert.same(stack, cord_error.encode_stack(decoded))
            assert.equal('MyError', decoded.type)
            assert.equal('f.lua', decoded.trace[1].file)
            assert.equal('x', decoded.prev.space)
        end)

        it('reject a stack without its parts', function()
            for _, case in ipairs({
                { {}, 'MP_ERROR_STACK' },
                { { { message = 'm', file = 'f' } }, 'MP_ERROR_TYPE' },
                { { { type = 'ClientError', file = 'f' } }, 'MP_ERROR_MESSAGE' },
                { { { type = 'ClientError', message = 'm' } }, 'MP_ERROR_FILE' },
            }) do
                local e, err = cord_error.decode_stack(case[1])
                assert.is_nil(e)
                assert.equal('Invalid MsgPack - ' .. case[2] .. ' is missing', err.message)
                assert.equal(20, err.code)
            end
            local unknown = cord_error.decode_stack({ { type = 'Martian', message = 'm', file = '', code = 5 } })
            assert.equal('ClientError', unknown.type)
        end)
    end)
end)
