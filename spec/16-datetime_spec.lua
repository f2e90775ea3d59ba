-- cord.datetime: values from Tarantool's documentation and behaviour (3.x), wire bytes recorded from a server.
local ffi = require('ffi')
local datetime = require('cord.datetime')
local interval = datetime.interval
local json = require('cord.json')
local helpers = require('spec.ext_helpers')

local function raises(text, call, ...)
    local arguments, count = { ... }, select('#', ...)
    assert.has_error(function() call(unpack(arguments, 1, count)) end, text)
end

describe('cord.datetime', function()
    it('is made from fields', function()
        local vectors = {
            { nil, '1970-01-01T00:00:00Z' }, { {}, '1970-01-01T00:00:00Z' },
            { { year = 2000, month = 11, day = 30, hour = 6, min = 12, sec = 23 }, '2000-11-30T06:12:23Z' },
            { { year = 2000, month = 11, day = 30, tzoffset = -8 * 60 }, '2000-11-30T00:00:00-0800' },
            { { year = 2000, tzoffset = '+0800' }, '2000-01-01T00:00:00+0800' },
            { { year = 2000, tzoffset = '+5:30' }, '2000-01-01T00:00:00+0530' },
            { { year = 2000, month = 11, tz = 'MSK' }, '2000-11-01T00:00:00 MSK' },
            { { year = 2000, tz = 'Z' }, '2000-01-01T00:00:00Z' }, { { year = 2000, tz = 'A' }, '2000-01-01T00:00:00A' },
            { { year = 2000, tz = 'europe/moscow' }, '2000-01-01T00:00:00 Europe/Moscow' },
            { { year = 2000, tz = '+03:00' }, '2000-01-01T00:00:00+0300' },
            { { year = 2023, month = 2, day = -1 }, '2023-02-28T00:00:00Z' },
            { { year = 2024, month = 2, day = 29, msec = 5 }, '2024-02-29T00:00:00.005Z' },
            { { usec = 7 }, '1970-01-01T00:00:00.000007Z' }, { { nsec = 9 }, '1970-01-01T00:00:00.000000009Z' },
            { { timestamp = 1630359071.125 }, '2021-08-30T21:31:11.125Z' },
            { { timestamp = 1630359071, msec = 123 }, '2021-08-30T21:31:11.123Z' },
            { { timestamp = -0.1 }, '1969-12-31T23:59:59.900Z' },
            -- A timestamp beside an offset is local time, as in Tarantool.
            { { timestamp = 0, tzoffset = 180 }, '1970-01-01T00:00:00+0300' },
            { { year = -5879610, month = 6, day = 22 }, '-5879610-06-22T00:00:00Z' },
            { { year = 5879611, month = 7, day = 11 }, '5879611-07-11T00:00:00Z' },
            { { year = 0 }, '0000-01-01T00:00:00Z' }, { { year = -1, month = 12, day = 31 }, '-001-12-31T00:00:00Z' },
        }
        for _, vector in ipairs(vectors) do
            assert.equal(vector[2], tostring(datetime.new(vector[1])))
        end
    end)

    it('refuses fields with Tarantool\'s texts', function()
        local vectors = {
            { 'datetime.new(): expected table, but received number', 1 },
            { 'value 5879612 of year is out of allowed range [-5879610, 5879611]', { year = 5879612 } },
            { 'value 13 of month is out of allowed range [1, 12]', { month = 13 } },
            { 'value 32 of day is out of allowed range [-1, 1..31]', { day = 32 } },
            { 'value 24 of hour is out of allowed range [0, 23]', { hour = 24 } },
            { 'value 60 of min is out of allowed range [0, 59]', { min = 60 } },
            { 'value 61 of sec is out of allowed range [0, 60]', { sec = 61 } },
            { 'value 1000001 of usec is out of allowed range [0, 1000000]', { usec = 1000001 } },
            { 'value 841 of tzoffset is out of allowed range [-720, 840]', { tzoffset = 841 } },
            { 'invalid number of days 30 in month 2 for 2023', { year = 2023, month = 2, day = 30 } },
            { 'date -5879610-06-21 is invalid', { year = -5879610, month = 6, day = 21 } },
            { 'numeric value expected, but received string', { year = 'x' } },
            { 'hour: integer value expected, but received number', { hour = 1.5 } },
            { 'timestamp is not allowed if year/month/day provided', { timestamp = 1, year = 2000 } },
            { 'timestamp is not allowed if hour/min/sec provided', { timestamp = 1, sec = 0 } },
            { "bad timestamp ('number' expected, got 'string')", { timestamp = '1' } },
            { 'only integer values allowed in timestamp if nsec, usec, or msecs provided', { timestamp = 1.5, nsec = 1 } },
            { 'only one of nsec, usec or msecs may be defined simultaneously', { nsec = 1, usec = 1 } },
            { 'invalid time-zone format +25:00', { tzoffset = '+25:00' } },
            { "could not parse 'Nowhere'", { tz = 'Nowhere' } },
            { "could not parse 'BST' - ambiguous timezone", { tz = 'BST' } },
            { 'parse_tzname(): expected string, but received number', { tz = 1 } },
        }
        for _, vector in ipairs(vectors) do
            raises(vector[1], datetime.new, vector[2])
        end
        local _, err = pcall(function() datetime.new(1) end)
        assert.truthy(err:find('16%-datetime_spec.lua:%d+: datetime.new'))
    end)

    it('has fields', function()
        local value = datetime.new({ year = 2024, month = 2, day = 29, hour = 23, min = 30, sec = 15, nsec = 123456789,
            tz = 'Europe/Berlin' })
        local fields = { year = 2024, month = 2, day = 29, hour = 23, min = 30, sec = 15, nsec = 123456789, yday = 60,
            wday = 5, tz = 'Europe/Berlin', tzoffset = 60, isdst = false }
        for name, expected in pairs(fields) do
            assert.equal(expected, value[name])
        end
        assert.equal(1709245815, value.epoch)
        assert.equal(123456.789, value.usec)
        assert.equal(123.456789, value.msec)
        assert.equal(1709245815 + 0.123456789, value.timestamp)
        assert.is_true(datetime.new({ year = 2024, month = 7, tz = 'Europe/Berlin' }).isdst)
        assert.equal(927, value.tzindex)
        fields.timestamp = value.timestamp
        assert.same(fields, value:totable())
        assert.same({ sec = 0, min = 0, wday = 5, day = 1, nsec = 0, isdst = false, yday = 1, tzoffset = 0, month = 1,
            year = 1970, hour = 0, tz = '', timestamp = 0 }, datetime.new():totable())
        assert.is_nil(value.nothing)
    end)

    it('keeps the table of zones', function()
        assert.equal(947, datetime.TZ['Europe/Moscow'])
        assert.equal('Europe/Moscow', datetime.TZ[947])
        assert.equal(947, datetime.TZ['W-SU'])
        assert.equal(238, datetime.TZ.MSK)
        assert.equal('Z', datetime.TZ[25])
        assert.equal(296, datetime.TZ.UTC)
        local zones = 0
        for key in pairs(datetime.TZ) do
            if type(key) == 'number' then
                zones = zones + 1
            end
        end
        assert.equal(630, zones)
    end)

    it('sets fields in the offset it has', function()
        local value = datetime.new({ year = 2021, month = 8, day = 31, tzoffset = 180 })
        assert.equal('2020-08-31T05:00:00+0300', tostring(value:set({ year = 2020, hour = 5 })))
        assert.equal('2020-08-31T05:00:00-0200', tostring(value:set({ tzoffset = -120 })))
        assert.equal('2020-09-30T05:00:00-0200', tostring(value:set({ month = 9, day = -1 })))
        assert.equal('2020-09-30T05:00:00.001-0200', tostring(value:set({ msec = 1 })))
        assert.equal('2020-09-30T05:00:00.001 Europe/Moscow', tostring(value:set({ tz = 'Europe/Moscow' })))
        raises('invalid number of days 31 in month 9 for 2020', value.set, value, { day = 31 })
        raises('datetime.set(): expected datetime, but received number', value.set, 1, {})
        raises('datetime.set(): expected table, but received nil', value.set, value)
    end)

    it('parses ISO 8601 in many forms', function()
        local vectors = {
            { '2012-12-24', '2012-12-24T00:00:00Z' }, { '20121224', '2012-12-24T00:00:00Z' },
            { '2012-359', '2012-12-24T00:00:00Z' }, { '2012359', '2012-12-24T00:00:00Z' },
            { '2012-W52-1', '2012-12-24T00:00:00Z' }, { '2012W521', '2012-12-24T00:00:00Z' },
            { '2012-Q4-85', '2012-12-24T00:00:00Z' }, { '2012Q485', '2012-12-24T00:00:00Z' },
            { '0001-W01-1T00:00:00Z', '0001-01-01T00:00:00Z' }, { '-5879610-06-22', '-5879610-06-22T00:00:00Z' },
            { '5879611-07-11T00Z', '5879611-07-11T00:00:00Z' }, { '100-01-01', '0100-01-01T00:00:00Z' },
            { '2000-01-01T12', '2000-01-01T12:00:00Z' }, { '2000-01-01 12:30', '2000-01-01T12:30:00Z' },
            { '2000-01-01T1230', '2000-01-01T12:30:00Z' }, { '2000-01-01t123015,5', '2000-01-01T12:30:15.500Z' },
            { '2000-01-01T12,5', '2000-01-01T12:30:00Z' }, { '2000-01-01T12:30.25Z', '2000-01-01T12:30:15Z' },
            { '2000-01-01T12:30:15.123456789+03:30', '2000-01-01T12:30:15.123456789+0330' },
            { '2000-01-01T24:00:00Z', '2000-01-02T00:00:00Z' }, { '2000-01-01T00:00 +3', '2000-01-01T00:00:00+0300' },
            { '2000-01-01T00:00:00 MSK', '2000-01-01T00:00:00 MSK' },
            { '2012-07-02T00:00:00 Europe/Moscow', '2012-07-02T00:00:00 Europe/Moscow' },
        }
        for _, vector in ipairs(vectors) do
            local value, length = datetime.parse(vector[1])
            assert.equal(vector[2], tostring(value))
            assert.equal(#vector[1], length)
        end
        assert.equal(240, datetime.parse('2012-07-02T00:00:00 Europe/Moscow').tzoffset)
        assert.same({ '1970-01-01T00:00:00Z', 10 },
            (function(value, length) return { tostring(value), length } end)(datetime.parse_date('1970-01-01T12')))
    end)

    it('refuses what it cannot parse', function()
        for _, text in ipairs({ '', 'x', '2000', '2000-13-01', '2000-02-30', '2000-01-01T25', '2000-01-01T00:60',
            '2000-01-01Q', '2000-366-1', '2001-366', '2000-W54-1', '2000-Q5-01', '2000-01-01T00:00:00.',
            '2000-01-01T00:00:00 XXX', '5879611-07-12', '99999999-01-01', '2000-01-01T00:00:00+15:00' }) do
            raises(("could not parse '%s'"):format(text), datetime.parse, text)
        end
        raises("could not parse '2000-01-01T00:00:00 BST' - ambiguous timezone", datetime.parse, '2000-01-01T00:00:00 BST')
        raises('datetime.parse(): expected string, but received number', datetime.parse, 1)
        raises('datetime.parse(): expected table, but received number', datetime.parse, '2000-01-01', 1)
        raises('ambiguous timezone: both tzoffset and tz are specified', datetime.parse, '2000-01-01',
            { tzoffset = 1, tz = 'MSK' })
        raises('invalid date format x', datetime.parse_date, 'x')
    end)

    it('parses and formats after a pattern', function()
        local value = datetime.parse('1973-11-29T21:33:09.123+0300', { format = '%Y-%m-%dT%H:%M:%S.%f%z' })
        assert.equal('1973-11-29T21:33:09.123+0300', tostring(value))
        assert.equal('1998-11-25T00:00:00+0300', tostring(datetime.parse('1998-11-25', { format = '%Y-%m-%d',
            tzoffset = 180 })))
        assert.equal('2021-08-30T00:00:00Z', tostring(datetime.parse('Aug 30, 21', { format = '%b %d, %y' })))
        assert.equal('2012-12-24T15:05:00Z', tostring(datetime.parse('03:05:00 pm 2012/359', { format = '%r %Y/%j' })))
        assert.equal('1970-01-01T00:00:00 MSK', tostring(datetime.parse('1970 MSK', { format = '%Y %Z' })))
        raises("could not parse '2000-13' using '%Y-%m' format", datetime.parse, '2000-13', { format = '%Y-%m' })
        raises("could not parse 'x' using '%Q' format", datetime.parse, 'x', { format = '%Q' })

        value = datetime.new({ year = 2021, month = 8, day = 3, hour = 4, min = 5, sec = 6, nsec = 123456789, tzoffset = 180 })
        local formats = {
            ['%A %a %B %b %h'] = 'Tuesday Tue August Aug Aug', ['%C %y %Y %G %g'] = '20 21 2021 2021 21',
            ['%c'] = 'Tue Aug  3 04:05:06 2021', ['%D|%x|%F|%v'] = '08/03/21|08/03/21|2021-08-03| 3-Aug-2021',
            ['%d %e %j'] = '03  3 215', ['%H %I %k %l %M %p %S'] = '04 04  4  4 05 AM 06',
            ['%R %r %T %X'] = '04:05 04:05:06 AM 04:05:06 04:05:06', ['%U %V %W %u %w'] = '31 31 31 2 2',
            ['%f %3f %6f %1f'] = '123456789 123 123456 1', ['%z [%Z] %% %Q %n%t.'] = '+0300 [] % Q \n\t.',
            ['%+'] = 'Tue Aug  3 04:05:06  2021', ['%Ey %Od'] = '21 03', ['100%'] = '100',
        }
        for pattern, text in pairs(formats) do
            assert.equal(text, value:format(pattern))
        end
        assert.equal('2021-08-03T04:05:06.123456789+0300', value:format())
        assert.equal('2008-12-29 2009-W01-1', datetime.new({ year = 2008, month = 12, day = 29 }):format('%F %G-W%V-%u'))
        raises('datetime.strftime(): expected string, but received number', value.format, value, 1)
        raises('datetime.format(): expected datetime, but received nil', value.format)
    end)

    it('reads back what it writes, over the whole range', function()
        for _, year in ipairs({ -5879609, -100000, -4713, -400, -1, 0, 1, 99, 1582, 1969, 1970, 2000, 2100, 9999, 5879610 }) do
            for month = 1, 12 do
                local value = datetime.new({ year = year, month = month, day = -1, hour = 23, min = 59, sec = 59 })
                local text = tostring(value)
                assert.equal(text, tostring(datetime.parse(text)))
                assert.equal(text, tostring(datetime.parse(text, { format = '%FT%T%z' })))
                assert.equal(year, value.year)
                assert.equal(month, value.month)
            end
        end
    end)

    it('knows the present', function()
        local value = datetime.now()
        assert.is_true(math.abs(value.epoch - os.time()) < 2)
        assert.equal(0, value.nsec % 1000)
        assert.equal(0, value.tzindex)
    end)

    it('compares moments, whatever the offset', function()
        local early, late = datetime.parse('2000-01-01T00:00:00Z'), datetime.parse('2000-01-01T00:00:00.000000001Z')
        assert.is_true(early < late and early <= late and late > early and early ~= late)
        assert.is_true(early == datetime.parse('2000-01-01T03:00:00+0300'))
        assert.is_false(early == '2000-01-01T00:00:00Z')
        assert.is_false(early == nil)
        assert.is_true(datetime.is_datetime(early))
        assert.is_false(datetime.is_datetime({}))
        raises('incompatible types for datetime comparison', function() return early < 1 end)
        raises('incompatible types for datetime comparison', function() return early <= interval.new() end)
        assert.is_true(ffi.istype('struct datetime', early))
    end)
end)

describe('cord.datetime intervals', function()
    it('show their parts', function()
        local vectors = {
            { nil, '+0 seconds' }, { { sec = 12 }, '+12 seconds' }, { { year = 10 }, '+10 years' },
            { { nsec = 5 }, '+0 seconds, 5 nanoseconds' },
            { { year = 1, month = 2, week = 3, day = -4, hour = 5, min = 6, sec = 7, nsec = 8 },
                '+1 years, 2 months, 3 weeks, -4 days, 5 hours, 6 minutes, 7 seconds, 8 nanoseconds' },
            { { msec = 2 }, '+0 seconds, 2000000 nanoseconds' },
        }
        for _, vector in ipairs(vectors) do
            assert.equal(vector[2], tostring(interval.new(vector[1])))
        end
        local value = interval.new({ month = 1, usec = 3, adjust = 'last' })
        assert.same({ year = 0, month = 1, week = 0, day = 0, hour = 0, min = 0, sec = 0, nsec = 3000, adjust = 'last' },
            value:totable())
        assert.equal(3, value.usec)
        assert.is_true(interval.is_interval(value))
        assert.is_false(interval.is_interval({}))
        assert.equal('["+1 months, 3000 nanoseconds"]', json.encode({ value }))
    end)

    it('refuse wrong parts', function()
        raises('interval.new(): expected table, but received number', interval.new, 1)
        raises('numeric value expected, but received string', interval.new, { year = 'x' })
        raises('year: integer value expected, but received number', interval.new, { year = 1.5 })
        raises('value 11759222 of year is out of allowed range [-11759221, 11759221]', interval.new, { year = 11759222 })
        raises('only one of nsec, usec or msecs may be defined simultaneously', interval.new, { nsec = 1, msec = 1 })
    end)

    it('are added, subtracted and compared part by part', function()
        local a, b = interval.new({ year = 1, day = 3, adjust = 'last' }), interval.new({ month = 5, day = -1 })
        assert.equal('+1 years, 5 months, 2 days', tostring(a + b))
        assert.equal('+1 years, -5 months, 4 days', tostring(a - b))
        assert.equal('+1 years, 4 days', tostring(a + { day = 1 }))
        assert.equal('last', (a + b):totable().adjust)
        assert.is_true(a > b and b < a and a == interval.new({ year = 1, day = 3 }) and a ~= b)
        assert.is_false(a == 1)
        raises('incompatible types for interval comparison', function() return a < 1 end)
        raises('operator +: expected interval or table, but received number', function() return a + 1 end)
        raises('operator -: expected datetime, interval or table, but received number', function() return a - 1 end)
        raises('datetime:operator -() - incompatible type of arguments', function() return a - datetime.new() end)
        raises('addition moves value 11759222 of year out of allowed range [-11759221, 11759221]',
            function() return interval.new({ year = 11759221 }) + { year = 1 } end)
    end)

    it('move datetimes, with the three ways at the end of a month', function()
        local function moved(fields, step)
            return tostring(datetime.new(fields) + step):sub(1, 10)
        end
        local leap, january = { year = 2024, month = 2, day = 29 }, { year = 2023, month = 1, day = 31 }
        assert.equal('2025-02-28', moved(leap, { year = 1 }))
        assert.equal('2025-02-28', moved(leap, { year = 1, adjust = 'last' }))
        assert.equal('2025-03-01', moved(leap, { year = 1, adjust = 'excess' }))
        assert.equal('2023-02-28', moved(january, { month = 1 }))
        assert.equal('2023-03-03', moved(january, { month = 1, adjust = 'excess' }))
        assert.equal('2023-03-28', moved({ year = 2023, month = 2, day = 28 }, { month = 1 }))
        assert.equal('2023-03-31', moved({ year = 2023, month = 2, day = 28 }, { month = 1, adjust = 'last' }))
        assert.equal('2022-12-31', moved(january, { month = -1 }))
        assert.equal('2023-02-14', moved(january, { week = 2 }))
        local value = datetime.new({ year = 2000, tzoffset = 60 })
        assert.equal('2000-01-02T01:01:01.000000001+0100',
            tostring(value + { day = 1, hour = 1, min = 1, sec = 1, nsec = 1 }))
        assert.equal('1999-12-31T23:59:59.999999999+0100', tostring(value - { nsec = 1 }))
        assert.equal('2000-01-01T00:00:00+0100', tostring(value))
        assert.equal('2001-01-01T00:00:00+0100', tostring(value:add({ year = 1 })))
        assert.equal('2000-12-31T00:00:00+0100', tostring(value:sub({ day = 1 })))
        assert.equal('1970-01-01T12:00:00Z', tostring(datetime.new({ year = 1969, month = 12, day = 31, hour = 12 })
            + { day = 1 }))
        assert.equal('2021-07-28T00:00:00 Europe/Berlin', tostring(
            datetime.new({ year = 2021, month = 1, day = 28, tz = 'Europe/Berlin' }) + { month = 6 }))
    end)

    it('are differences of datetimes', function()
        local a, b = datetime.parse('2000-01-01T00:00:00Z'), datetime.parse('1969-12-31T23:00:00Z')
        assert.equal('+31 years, -11 months, -30 days, -23 hours', tostring(a - b))
        assert.equal('+0 seconds', tostring(a - a))
        assert.equal('+3 hours', tostring(datetime.parse('2000-01-01T03:00:00Z') - a))
        assert.equal('+0 seconds', tostring(interval.new() + (a - datetime.parse('2000-01-01T00:00:00Z'))))
    end)

    it('stay within the years that are allowed', function()
        raises('addition makes date greater than maximum allowed 5879611-07-11',
            function() return datetime.new({ year = 5879611 }) + { year = 1 } end)
        raises('subtraction makes date less than minimum allowed -5879610-06-22',
            function() return datetime.new({ year = -5879610, month = 7 }) - { year = 1 } end)
        raises('datetime.add: expected interval or table, but received number',
            function() return datetime.new():add(1) end)
    end)
end)

describe('cord.datetime as MessagePack extensions', function()
    local ext = require('cord.msgpack').ext

    local function codec(number, name)
        return ext.decoders[number], ext.by_ctype[tonumber(ffi.typeof(name))].encode
    end

    -- Bytes recorded from a Tarantool server.
    it('carry datetimes', function()
        local decode, encode = codec(4, 'struct datetime')
        for payload, text in pairs({
            ['0000000000000000'] = '1970-01-01T00:00:00Z',
            ['c04fe06500000000402f072fb400b303'] = '2024-02-29T12:34:56.789 Europe/Moscow',
            ['8081557cffffffff'] = '1900-01-01T00:00:00Z',
            ['d0c65365000000000065cd1db4000000'] = '2023-11-14T22:13:20.500+0300',
        }) do
            local value = decode(helpers.unhex(payload))
            assert.equal(text, tostring(value))
            assert.equal(payload, helpers.hex(encode(value)))
            assert.is_true(value == datetime.parse(text))
            -- `Z` in a text is a zone with a number of its own.
            if text:sub(-1) ~= 'Z' then
                assert.equal(payload, helpers.hex(encode(datetime.parse(text))))
            end
        end
        assert.equal(25, datetime.parse('1970-01-01T00:00:00Z').tzindex)
        for _, payload in ipairs({ '', '00', ('00'):rep(9), ('00'):rep(17), ('ff'):rep(7) .. '7f',
            ('00'):rep(8) .. 'ffffffff' .. '00000000', ('00'):rep(8) .. '00000000' .. '4904' .. '0000',
            ('00'):rep(8) .. '00000000' .. '0000' .. '0104' }) do
            assert.has_error(function() decode(helpers.unhex(payload)) end, 'invalid datetime')
        end
    end)

    it('carry intervals', function()
        local decode, encode = codec(6, 'struct interval')
        for payload, text in pairs({
            ['010801'] = '+0 seconds', ['0201ff0802'] = '-1 months', ['0106fb'] = '-5 seconds',
            ['09000101020203030404050506060707080801'] = '+1 years, 2 months, 3 weeks, 4 days, 5 hours, 6 minutes, '
                .. '7 seconds, 8 nanoseconds',
            ['0203cd012c07d2ff676981'] = '+300 days, -9999999 nanoseconds', ['0106cf0000000100000000'] = '+4294967296 seconds',
            ['0104d0df'] = '-33 hours', ['00'] = '+0 seconds',
        }) do
            local value = decode(helpers.unhex(payload))
            assert.equal(text, tostring(value))
            assert.equal(payload, helpers.hex(encode(value)))
        end
        assert.equal('0200010801', helpers.hex(encode(interval.new({ year = 1 }))))
        for _, payload in ipairs({ '', '01', '0100', '010901', '010803', '0100c0', '010001ff', '0100ce80000000', '0100cd01',
            '0108ff' }) do
            assert.has_error(function() decode(helpers.unhex(payload)) end, 'invalid interval')
        end
    end)
end)
