-- cord.uri against Tarantool's behaviour; the vectors of `parse` were printed by Tarantool's own parser.
local uri = require('cord.uri')

local INCORRECT = 'Incorrect URI: expected host:service or /unix.socket'

-- Text, then the fields that must come out; false where Tarantool refuses.
local VECTORS = {
    { '3301', { service = '3301' } },
    { 3301, { service = '3301' } },
    { '3301?a=b', { host = '3301', query = 'a=b', params = { a = { 'b' } } } },
    { 'host:3301', { host = 'host', service = '3301' } },
    { 'user:pass@host:3301', { login = 'user', password = 'pass', host = 'host', service = '3301' } },
    { 'user@host', { login = 'user', host = 'host' } },
    { 'user:@host:1', { login = 'user', password = '', host = 'host', service = '1' } },
    { 'unix/:/tmp/x', { host = 'unix/', service = '/tmp/x', unix = '/tmp/x' } },
    { 'unix/:./x', { host = 'unix/', service = './x', unix = './x' } },
    { 'unix/:/tmp/x:', { host = 'unix/', service = '/tmp/x', unix = '/tmp/x' } },
    { 'unix/:/tmp/x:/y', { host = 'unix/', service = '/tmp/x', unix = '/tmp/x', path = '/y' } },
    { '/tmp/x', { host = 'unix/', service = '/tmp/x', unix = '/tmp/x' } },
    { './tmp/x', { host = 'unix/', service = './tmp/x', unix = './tmp/x' } },
    { '/', { host = 'unix/', service = '/', unix = '/' } },
    { '/tmp/a|b', { host = 'unix/', service = '/tmp/a|b', unix = '/tmp/a|b' } },
    { '/tmp/a:b', { host = 'unix/', service = '/tmp/a:b', unix = '/tmp/a:b' } },
    { '/tmp/x?q=1#f', { host = 'unix/', service = '/tmp/x', unix = '/tmp/x', query = 'q=1', fragment = 'f',
        params = { q = { '1' } } } },
    { '/tmp/x:/a/b?q#f', { host = 'unix/', service = '/tmp/x', unix = '/tmp/x', path = '/a/b', query = 'q',
        fragment = 'f', params = { q = {} } } },
    { 'u:p@/tmp/x', { login = 'u', password = 'p', host = 'unix/', service = '/tmp/x', unix = '/tmp/x' } },
    { 'u@unix/:/a', { login = 'u', host = 'unix/', service = '/a', unix = '/a' } },
    { '[::1]:3301', { host = '::1', ipv6 = '::1', service = '3301' } },
    { '[::ffff:1.2.3.4]:1', { host = '::ffff:1.2.3.4', ipv6 = '::ffff:1.2.3.4', service = '1' } },
    { 'user:pass@[::1]:3301', { login = 'user', password = 'pass', host = '::1', ipv6 = '::1', service = '3301' } },
    { '1.2.3.4:1', { host = '1.2.3.4', ipv4 = '1.2.3.4', service = '1' } },
    { '1.2.3.4.5:1', { host = '1.2.3.4.5', service = '1' } },
    { 'host:', { host = 'host' } },
    { 'host:http/x', { host = 'host', service = 'http', path = '/x' } },
    { 'sch://h:1/p', { scheme = 'sch', host = 'h', service = '1', path = '/p' } },
    { 'http://unix/:/x', { scheme = 'http', host = 'unix/', service = '/x', unix = '/x' } },
    { 'http:/x', { scheme = 'http', host = 'http', path = '/x' } },
    { '%41b:1', { host = '%41b', service = '1' } },
    { '?a', { query = 'a', params = { a = {} } } },
    { '#b', { fragment = 'b' } },
    { 'host:1?', { host = 'host', service = '1', query = '' } },
    { '*:3301', { host = '*', service = '3301' } },
    { 'host:33a', false }, { 'a b', false }, { 'x@', false }, { '//', false }, { '://', false }, { '', false },
    { 'h:80:90', false }, { ':80', false }, { 'user:pa:ss@host:1', false }, { '/tmp/x, /tmp/y', false },
    { '[::1', false }, { '[1:2:3:4:5:6:7:8:9:a]', false }, { '[12345::]', false }, { 'h%zz:1', false },
    { ('h'):rep(1025), false }, { 'h:' .. ('1'):rep(32), false },
}

describe('cord.uri', function()
    for _, vector in ipairs(VECTORS) do
        it('parses ' .. tostring(vector[1]):sub(1, 40), function()
            local result, err = uri.parse(vector[1])
            if vector[2] then
                assert.same(vector[2], result)
                assert.is_nil(err)
            else
                assert.is_nil(result)
                assert.equal(INCORRECT, err)
            end
        end)
    end

    it('groups the values of repeated parameters', function()
        assert.same({ q1 = { 'v1', '' }, q2 = {}, transport = { 'ssl' } },
            uri.parse('h:1?q1=v1&q1=&q2&transport=ssl&=x&').params)
    end)

    it('takes tables', function()
        local parsed = uri.parse({ 'h:1?a=1&b=2', params = { a = { 'x', 'y' }, c = 3 } })
        assert.same({ a = { 'x', 'y' }, b = { '2' }, c = { '3' } }, parsed.params)
        parsed = uri.parse({ uri = 'u:p@h:1', login = 'alice', password = 's3cret' })
        assert.same({ login = 'alice', password = 's3cret', host = 'h', service = '1' }, parsed)
        parsed = uri.parse({ 'u:p@h:1', login = 'alice' })
        assert.same({ login = 'alice', host = 'h', service = '1' }, parsed)
        assert.same({ service = '3301' }, uri.parse({ 3301 }))
    end)

    it('names what is wrong with a table', function()
        local function reason(value)
            local result, err = uri.parse(value)
            assert.is_nil(result)
            return err
        end
        local shape = 'Invalid URI table: expected {uri = string, params = table} or {string, params = table}'
        assert.equal(shape, reason({}))
        assert.equal(shape, reason({ 'a', 'b' }))
        assert.equal(shape, reason({ 'a', uri = 'b' }))
        assert.equal(INCORRECT, reason({ 'a b' }))
        assert.equal('Incorrect type for URI: should be string, number or table', reason(true))
        assert.equal('Incorrect type for URI in nested table: should be string, number', reason({ {} }))
        assert.equal('Default URI parameters are not allowed for single URI', reason({ 'a', default_params = {} }))
        assert.equal('Incorrect type for URI parameters: should be a table', reason({ 'a', params = 1 }))
        assert.equal('Incorrect type for URI parameter name: should be a string', reason({ 'a', params = { 1 } }))
        assert.equal('Incorrect type for URI parameter value: should be string, number or table',
            reason({ 'a', params = { x = true } }))
        assert.equal('Incorrect type for URI parameter value: should be string or number',
            reason({ 'a', params = { x = { true } } }))
        assert.equal('Invalid URI table: login required if password is set', reason({ 'a', password = 'x' }))
        assert.equal('Invalid URI table: expected type for login is string', reason({ 'a', login = 1 }))
        assert.equal('Invalid URI table: expected type for password is string',
            reason({ 'a', login = 'x', password = 1 }))
        assert.has_error(function() uri.parse() end, 'Usage: uri.parse(string|table)')
    end)

    it('parses lists', function()
        assert.same({}, uri.parse_many(''))
        assert.same({ { service = '1' }, { host = 'h', service = '2' } }, uri.parse_many('1, h:2'))
        assert.same({ nil, INCORRECT }, { uri.parse_many('/a,,/b') })
        assert.same({ { host = 'h', service = '1', params = { a = { 'b' } } } },
            uri.parse_many({ 'h:1', params = { a = 'b' } }))
        assert.same({
            { host = 'h', service = '1', query = 'a=1', params = { a = { '1' } } },
            { host = 'g', service = '2', params = { a = { '9' } } },
        }, uri.parse_many({ 'h:1?a=1', { 'g:2' }, default_params = { a = 9 } }))
        -- A parameter without values takes the default; an empty list gives none.
        assert.same({ { host = 'h', query = 'a&b', params = { a = { '1', '2' }, b = {} } } },
            uri.parse_many({ { 'h?a&b' }, default_params = { a = { 1, 2 }, b = {}, c = {} } }))
        assert.same({ nil, 'URI parameters are not allowed for multiple URIs' },
            { uri.parse_many({ 'a', 'b', params = {} }) })
        assert.same({ nil, 'URI login is not allowed for multiple URIs' },
            { uri.parse_many({ 'a', 'b', login = 'x' }) })
    end)

    it('formats, hiding what is secret unless told', function()
        local parsed = uri.parse('sch://u:p@h:1/x?a=1&ssl_key=k&a=2&b#f')
        assert.equal('sch://u@h:1/x?a=1&a=2&b#f', uri.format(parsed))
        assert.equal('sch://u:p@h:1/x?a=1&a=2&b&ssl_key=k#f', uri.format(parsed, true))
        assert.equal('[::1]:3301', uri.format(uri.parse('[::1]:3301')))
        assert.equal('unix/:/tmp/x?q1=', uri.format(uri.parse('/tmp/x?q1=')))
        assert.equal('3301', uri.format(uri.parse(3301)))
        assert.equal('h:5', uri.format({ host = 'h', service = 5 }))
    end)

    it('escapes and unescapes', function()
        assert.equal('a%20b%2F%C3%A9~', uri.escape('a b/\195\169~'))
        assert.equal('a+b%7E*', uri.escape('a b~*', uri.FORM_URLENCODED))
        assert.equal('/a/b:c', uri.escape('/a/b:c', uri.PATH))
        assert.equal('a b/\195\169%zz%', uri.unescape('a%20b%2F%c3%A9%zz%'))
        assert.equal('a b', uri.unescape('a+b', uri.FORM_URLENCODED))
        assert.equal('a+b', uri.unescape('a+b'))
        assert.equal('%61b', uri.escape('ab', { unreserved = uri.unreserved('b-z') }))
        assert.same({ 'x', 'y' }, uri.values('x', 'y'))
        assert.has_error(function() uri.escape(1) end, 'Usage: uri.escape(string, [opts])')
        assert.has_error(function() uri.escape('', { unreserved = 'x' }) end,
            'use uri.unreserved for building opts.unreserved')
        assert.has_error(function() uri.escape('', { plus = 1 }) end, 'opts.plus must be a boolean')
    end)
end)
