-- Datetimes and intervals as FFI cdata of `struct datetime` and `struct interval`, with Tarantool's `datetime` API.
--
-- A datetime is a moment (seconds since 1970 UTC and nanoseconds) with the offset and the zone it is shown in. An interval
-- keeps its parts apart; they meet the calendar only when it is added to a datetime.
--
-- Every function and operator below is written to raise bare texts (`fail`); `public` raises them again where the script
-- called.

local native, load = ...
local ffi = require('ffi')
local calendar = load('cord.calendar')
local timezones = load('cord.timezones')
local clock = load('cord.clock')
local istype, new = ffi.istype, ffi.new
local floor, format = math.floor, string.format
local error, getmetatable, pcall, setmetatable, type = error, getmetatable, pcall, setmetatable, type

ffi.cdef([[
struct datetime {
    double epoch;
    int32_t nsec;
    int16_t tzoffset;
    int16_t tzindex;
};

struct interval {
    double sec;
    double min;
    double hour;
    double day;
    int32_t week;
    int32_t month;
    int32_t year;
    int32_t nsec;
    int32_t adjust;
};

struct cord_zone_info {
    int32_t offset;
    bool is_dst;
};
]])

local datetime_t, interval_t = ffi.typeof('struct datetime'), ffi.typeof('struct interval')
local zone_info_at = ffi.cast('bool (*)(struct cord_zone_info *, const char *, size_t, double)',
    ffi.cast('uintptr_t', native.zone_info))
local zone_info = new('struct cord_zone_info')

local DAY = 86400
local MIN_SECONDS, MAX_SECONDS = calendar.MIN_DAY * DAY, calendar.MAX_DAY * DAY
local MIN_YEAR, MAX_YEAR = -5879610, 5879611
local MIN_DATE, MAX_DATE = '-5879610-06-22', '5879611-07-11'
local MIN_OFFSET, MAX_OFFSET = -12 * 60, 14 * 60
local YEAR_DAYS = 365.25

-- How a month's last days go to a shorter month: on into the next, stop at its end, or always keep to the end.
local EXCESS, NONE, LAST = 0, 1, 2
local ADJUST = { excess = EXCESS, none = NONE, last = LAST }
local ADJUST_NAMES = { [EXCESS] = 'excess', [NONE] = 'none', [LAST] = 'last' }

local YEARS = MAX_YEAR - MIN_YEAR
-- The parts of an interval in their order, and how large each may be.
local PARTS = { 'year', 'month', 'week', 'day', 'hour', 'min', 'sec', 'nsec' }
local LIMITS = {
    year = YEARS, month = YEARS * 12, week = YEARS * YEAR_DAYS / 7, day = YEARS * YEAR_DAYS,
    hour = YEARS * YEAR_DAYS * 24, min = YEARS * YEAR_DAYS * 24 * 60, sec = YEARS * YEAR_DAYS * DAY, nsec = 2147483647,
}

-- ------------------------------------------------------------------------------------------------ errors and checks

local Failure = {}

local function fail(text, ...)
    error(setmetatable({ text = format(text, ...) }, Failure), 0)
end

local function pass(fine, result, ...)
    if fine then
        return result, ...
    elseif getmetatable(result) == Failure then
        -- `public` called this last of all, so the level above is its caller.
        error(result.text, 2)
    end
    error(result, 0)
end

--- The function that scripts see: failures of `run` are raised where it was called.
local function public(run)
    return function(...)
        return pass(pcall(run, ...))
    end
end

local function is_datetime(value)
    return istype(datetime_t, value)
end

local function is_interval(value)
    return istype(interval_t, value)
end

local function check(fine, value, what, expected)
    if not fine then
        fail('%s: expected %s, but received %s', what, expected, type(value))
    end
end

local function check_integer(value, name)
    if type(value) ~= 'number' or value % 1 ~= 0 then
        fail('%s: integer value expected, but received %s', name, type(value))
    end
end

--- `extra` is one more allowed value.
local function check_range(value, low, high, name, extra)
    if type(value) ~= 'number' then
        fail('numeric value expected, but received %s', type(value))
    elseif value == extra or value >= low and value <= high then
        return
    elseif extra then
        fail('value %d of %s is out of allowed range [%d, %d..%d]', value, name, extra, low, high)
    end
    fail('value %d of %s is out of allowed range [%d, %d]', value, name, low, high)
end

local function check_field(value, low, high, name, extra)
    if value ~= nil then
        check_range(value, low, high, name, extra)
        check_integer(value, name)
    end
    return value
end

--- Refuses more than one of the three fields for fractions of a second.
local function check_one_fraction(fields)
    local count = (fields.nsec ~= nil and 1 or 0) + (fields.usec ~= nil and 1 or 0) + (fields.msec ~= nil and 1 or 0)
    if count > 1 then
        fail('only one of nsec, usec or msecs may be defined simultaneously')
    end
    return count == 1
end

-- ------------------------------------------------------------------------------------------------------ time zones

--- The offset in minutes of a zone at a moment and whether it has daylight saving; nil when no database knows it.
local function zone_at(name, epoch)
    if zone_info_at(zone_info, name, #name, epoch) then
        return math.modf(zone_info.offset / 60), zone_info.is_dst
    end
end

--- Finds a zone by name (letter case does not matter). Returns its offset at `base` and its number, or nil and the end of
--- the error text.
local function find_zone(name, base)
    local record = timezones.by_name[name:lower()]
    if not record then
        return nil, ''
    elseif record.ambiguous then
        return nil, ' - ambiguous timezone'
    end
    local offset = record.offset or zone_at(record.zone, base)
    if not offset then
        return nil, ''
    end
    return offset, record.index
end

--- Reads a zone at the end of `text`: a name or an offset. Returns offset, number and the position after it; or nil and
--- the end of the error text. What is no zone at all counts as none.
local function parse_zone(text, at, base)
    if text:find('^%a', at) then
        local offset, index = find_zone(text:sub(at), base)
        if not offset then
            return nil, index
        end
        return offset, index, #text + 1
    end
    local offset, after = calendar.parse_offset(text, at)
    if not offset then
        return 0, 0, at
    elseif offset < MIN_OFFSET or offset > MAX_OFFSET then
        return nil, ''
    end
    return offset, 0, after
end

local function zone_from_name(name, base)
    check(type(name) == 'string', name, 'parse_tzname()', 'string')
    local offset, index, after = parse_zone(name, 1, base)
    if not offset or after == 1 then
        fail("could not parse '%s'%s", name, offset and '' or index)
    end
    return offset, index
end

local function offset_of(value)
    if type(value) == 'number' then
        check_integer(value, 'tzoffset')
        return value
    elseif type(value) ~= 'string' then
        fail('tzoffset: string or number expected, but received %s', tostring(value))
    end
    local offset, after = calendar.parse_offset(value, 1)
    if not offset or after ~= #value + 1 then
        fail('invalid time-zone format %s', value)
    end
    return offset
end

--- Offset and zone number that the fields name, or nil. `base` is the moment at which a zone's rules count.
local function zone_of(fields, base)
    if fields.tz ~= nil then
        return zone_from_name(fields.tz, base)
    elseif fields.tzoffset ~= nil then
        local offset = offset_of(fields.tzoffset)
        check_range(offset, MIN_OFFSET, MAX_OFFSET, 'tzoffset')
        return offset, 0
    end
end

local function zone_name(value)
    local record = timezones.by_index[value.tzindex]
    return record and record.name
end

local function is_dst(value)
    local record = timezones.by_index[value.tzindex]
    local _, dst
    if record then
        _, dst = zone_at(record.name, value.epoch)
    end
    return dst or false
end

-- ---------------------------------------------------------------------------------------------- making and changing

local function make(epoch, nsec, offset, index)
    local value = new(datetime_t)
    value.epoch, value.nsec, value.tzoffset, value.tzindex = epoch, nsec, offset or 0, index or 0
    return value
end

local function local_seconds(value)
    return value.epoch + value.tzoffset * 60
end

--- Day of a date from fields that were checked one by one; -1 is the last day of the month.
local function day_of(year, month, day)
    local length = calendar.month_days(year, month)
    if day < 0 then
        day = length
    elseif day > length then
        fail('invalid number of days %d in month %d for %d', day, month, year)
    end
    local result = calendar.checked_day(year, month, day)
    if not result then
        fail('date %4d-%02d-%02d is invalid', year, month, day)
    end
    return result
end

local function date_fields(fields)
    local year = check_field(fields.year, MIN_YEAR, MAX_YEAR, 'year')
    local month = check_field(fields.month, 1, 12, 'month')
    local day = check_field(fields.day, 1, 31, 'day', -1)
    return year, month, day, year ~= nil or month ~= nil or day ~= nil
end

local function time_fields(fields)
    local hour = check_field(fields.hour, 0, 23, 'hour')
    local min = check_field(fields.min, 0, 59, 'min')
    local sec = check_field(fields.sec, 0, 60, 'sec')
    return hour, min, sec, hour ~= nil or min ~= nil or sec ~= nil
end

--- Nanoseconds from nsec, usec or msec; nil without any.
local function fraction_field(fields)
    if not check_one_fraction(fields) then
        return nil
    elseif fields.usec ~= nil then
        return check_field(fields.usec, 0, 1e6, 'usec') * 1e3
    elseif fields.msec ~= nil then
        return check_field(fields.msec, 0, 1e3, 'msec') * 1e6
    end
    return check_field(fields.nsec, 0, 1e9, 'nsec')
end

--- Seconds and nanoseconds from a timestamp; nil without one.
local function timestamp_field(fields, has_date, has_time, nsec)
    local timestamp = fields.timestamp
    if timestamp == nil then
        return nil, nsec
    elseif has_date then
        fail('timestamp is not allowed if year/month/day provided')
    elseif has_time then
        fail('timestamp is not allowed if hour/min/sec provided')
    elseif type(timestamp) ~= 'number' then
        fail("bad timestamp ('number' expected, got '%s')", type(timestamp))
    end
    local seconds = floor(timestamp)
    local fraction = timestamp - seconds
    if nsec == nil then
        return seconds, fraction * 1e9
    elseif fraction ~= 0 then
        fail('only integer values allowed in timestamp if nsec, usec, or msecs provided')
    end
    return seconds, nsec
end

--- As in Tarantool, a timestamp beside an offset is the local time, not UTC.
local function from_local(seconds, offset)
    local epoch = seconds - offset * 60
    check_range(epoch, MIN_SECONDS, MAX_SECONDS, 'timestamp')
    return epoch
end

local function datetime_new(fields)
    if fields == nil then
        return make(0, 0)
    end
    check(type(fields) == 'table', fields, 'datetime.new()', 'table')
    local year, month, day, has_date = date_fields(fields)
    local hour, min, sec, has_time = time_fields(fields)
    local seconds, nsec = timestamp_field(fields, has_date, has_time, fraction_field(fields))
    if seconds then
        local offset, index = zone_of(fields, seconds)
        return make(from_local(seconds, offset or 0), nsec, offset, index)
    end
    local midnight = has_date and day_of(year or 1970, month or 1, day or 1) * DAY or 0
    local offset, index = zone_of(fields, midnight)
    return make(midnight + (hour or 0) * 3600 + (min or 0) * 60 + (sec or 0) - (offset or 0) * 60, nsec or 0, offset, index)
end

local function datetime_set(self, fields)
    check(is_datetime(self), self, 'datetime.set()', 'datetime')
    check(type(fields) == 'table', fields, 'datetime.set()', 'table')
    local year, month, day, has_date = date_fields(fields)
    local hour, min, sec, has_time = time_fields(fields)
    local seconds, nsec = timestamp_field(fields, has_date, has_time, fraction_field(fields))
    local offset, index
    if seconds then
        offset, index = zone_of(fields, seconds)
        self.epoch = from_local(seconds, offset or self.tzoffset)
    else
        local parts = calendar.split(local_seconds(self), 0)
        seconds = parts.seconds
        if has_date then
            local date = day_of(year or parts.year, month or parts.month, day or parts.mday)
            seconds = date * DAY + seconds % DAY
        end
        offset, index = zone_of(fields, seconds)
        if has_time then
            seconds = seconds - seconds % DAY + (hour or parts.hour) * 3600 + (min or parts.min) * 60 + (sec or parts.sec)
        end
        self.epoch = seconds - (offset or self.tzoffset) * 60
    end
    self.nsec = nsec or self.nsec
    self.tzoffset, self.tzindex = offset or self.tzoffset, index or self.tzindex
    return self
end

--- The present moment, with the offset of the machine's time zone.
local function datetime_now()
    local nanoseconds = clock.realtime64()
    local seconds = tonumber(nanoseconds / 1000000000LL)
    local offset = calendar.parse_offset(os.date('%z', seconds), 1) or 0
    return make(seconds, floor(tonumber(nanoseconds % 1000000000LL) / 1000) * 1000, offset)
end

-- --------------------------------------------------------------------------------------------------------- parsing

local function parse_iso(text)
    local function refuse(ending)
        fail("could not parse '%s'%s", text, ending or '')
    end
    local day, length = calendar.parse_date(text)
    if not day then
        refuse()
    end
    local at, seconds, nsec, offset, index = length + 1, 0, 0, 0, 0
    if at <= #text and not text:find('^[Tt ]', at) then
        refuse()
    end
    at = math.min(at + 1, #text + 1)
    if at <= #text then
        seconds, nsec, at = calendar.parse_time(text, at)
        if not seconds then
            refuse()
        end
        at = text:find('^ ', at) and at + 1 or at
    end
    if at <= #text then
        local after
        offset, index, after = parse_zone(text, at, day * DAY + seconds)
        if not offset then
            refuse(index)
        end
        at = after
    end
    return make(day * DAY + seconds - offset * 60, nsec, offset, index), at - 1
end

local function parse_pattern(text, pattern)
    local day, seconds, fields, length = calendar.read(text, pattern)
    local offset, index = 0, 0
    if day and fields.zone then
        offset, index = find_zone(fields.zone, day * DAY + seconds)
        day = offset and day
    end
    if not day then
        fail("could not parse '%s' using '%s' format", text, pattern)
    end
    offset = fields.zone and offset or fields.offset or 0
    return make(day * DAY + seconds - offset * 60, fields.nsec, offset, index), length
end

local function datetime_parse(text, options)
    check(type(text) == 'string', text, 'datetime.parse()', 'string')
    local pattern, offset, zone
    if options ~= nil then
        check(type(options) == 'table', options, 'datetime.parse()', 'table')
        pattern, offset, zone = options.format, options.tzoffset, options.tz
    end
    check(pattern == nil or type(pattern) == 'string', pattern, 'datetime.parse()', 'string')
    if offset ~= nil then
        check_range(offset_of(offset), MIN_OFFSET, MAX_OFFSET, 'tzoffset')
    end
    check(zone == nil or type(zone) == 'string', zone, 'datetime.parse()', 'string')
    if offset and zone then
        fail('ambiguous timezone: both tzoffset and tz are specified')
    end
    local value, length
    if pattern == nil or pattern == '' or pattern == 'iso8601' or pattern == 'rfc3339' then
        value, length = parse_iso(text)
    else
        value, length = parse_pattern(text, pattern)
    end
    if value.tzindex == 0 and value.tzoffset == 0 then
        datetime_set(value, { tzoffset = offset, tz = zone })
    end
    return value, length
end

local function datetime_parse_date(text)
    check(type(text) == 'string', text, 'datetime.parse_date()', 'string')
    local day, length = calendar.parse_date(text)
    if not day then
        fail('invalid date format %s', text)
    end
    return make(day * DAY, 0), length
end

-- ------------------------------------------------------------------------------------------------------- as text

local function split(value)
    return calendar.split(local_seconds(value), value.nsec, value.tzoffset, zone_name(value))
end

local function datetime_tostring(value)
    local parts = split(value)
    local nsec, zone = parts.nsec, parts.zone
    local text = format('%04d-%02d-%02dT%02d:%02d:%02d', parts.year, parts.month, parts.mday, parts.hour, parts.min,
        parts.sec)
    if nsec ~= 0 then
        text = text .. '.' .. calendar.write(parts, '%f')
    end
    if zone then
        return text .. (#zone == 1 and '' or ' ') .. zone
    elseif parts.offset == 0 then
        return text .. 'Z'
    end
    return text .. calendar.write(parts, '%z')
end

local function datetime_format(value, pattern)
    check(is_datetime(value), value, 'datetime.format()', 'datetime')
    if pattern == nil then
        return datetime_tostring(value)
    end
    check(type(pattern) == 'string', pattern, 'datetime.strftime()', 'string')
    return calendar.write(split(value), pattern)
end

local function datetime_totable(value)
    check(is_datetime(value), value, 'datetime.totable()', 'datetime')
    local parts = split(value)
    return {
        year = parts.year, month = parts.month, day = parts.mday, hour = parts.hour, min = parts.min, sec = parts.sec,
        wday = parts.wday + 1, yday = parts.yday + 1, isdst = is_dst(value), nsec = value.nsec,
        tzoffset = value.tzoffset, tz = parts.zone or '', timestamp = value.epoch + value.nsec / 1e9,
    }
end

-- ------------------------------------------------------------------------------------------------------- intervals

local function limited(value, limit, name, default)
    if value == nil then
        return default
    elseif type(value) ~= 'number' then
        fail('numeric value expected, but received %s', type(value))
    elseif value >= -limit and value <= limit then
        return value
    end
    fail('value %s of %s is out of allowed range [%s, %s]', value, name, -limit, limit)
end

--- An interval from a table of parts; an interval is its own.
local function to_interval(fields)
    if is_interval(fields) then
        return fields
    end
    fields = fields ~= nil and fields or {}
    local value = new(interval_t)
    for _, name in ipairs(PARTS) do
        if name ~= 'nsec' then
            local part = limited(fields[name], LIMITS[name], name, 0)
            if name ~= 'week' then
                check_integer(part, name)
            end
            value[name] = part
        end
    end
    local nsec = limited(fields.nsec, LIMITS.nsec, 'nsec')
    local usec = limited(fields.usec, floor(LIMITS.nsec / 1e3), 'usec')
    local msec = limited(fields.msec, floor(LIMITS.nsec / 1e6), 'msec')
    check_one_fraction(fields)
    value.nsec = (msec or 0) * 1e6 + (usec or 0) * 1e3 + (nsec or 0)
    value.adjust = ADJUST[fields.adjust] or NONE
    return value
end

local function interval_new(fields)
    check(fields == nil or type(fields) == 'table', fields, 'interval.new()', 'table')
    return to_interval(fields or {})
end

--- `+1 years, 2 months, -3 days`: the parts that are not zero, the first with its sign.
local function interval_tostring(value)
    local words = { year = 'years', month = 'months', week = 'weeks', day = 'days', hour = 'hours', min = 'minutes',
        sec = 'seconds', nsec = 'nanoseconds' }
    local out = {}
    for _, name in ipairs(PARTS) do
        local part = value[name]
        if part ~= 0 or name == 'sec' and #out == 0 then
            out[#out + 1] = format(#out == 0 and '%+d %s' or '%d %s', part, words[name])
        end
    end
    return table.concat(out, ', ')
end

local function interval_totable(value)
    if not is_interval(value) then
        fail('interval.totable(): expected interval, but received %s', type(value))
    end
    local result = { adjust = ADJUST_NAMES[value.adjust] }
    for _, name in ipairs(PARTS) do
        result[name] = value[name]
    end
    return result
end

--- Adds (`sign` 1) or subtracts (-1) two intervals, part by part.
local function combine(lhs, rhs, sign)
    local result = new(interval_t, to_interval(lhs))
    rhs = to_interval(rhs)
    for _, name in ipairs(PARTS) do
        local part, limit = result[name] + sign * rhs[name], LIMITS[name]
        if part < -limit or part > limit then
            fail('%s moves value %s of %s out of allowed range [%s, %s]', sign > 0 and 'addition' or 'subtraction', part,
                name, -limit, limit)
        end
        result[name] = part
    end
    return result
end

--- The difference of two datetimes: of the parts of their local times, and of their offsets.
local function difference(lhs, rhs)
    local function parts_of(value)
        local parts, result = split(value), new(interval_t)
        result.year, result.month, result.day = parts.year, parts.month, parts.mday
        result.hour, result.min, result.sec, result.nsec = parts.hour, parts.min, parts.sec, parts.nsec
        result.adjust = NONE
        return result
    end
    local result = parts_of(lhs)
    result.min = result.min - (lhs.tzoffset - rhs.tzoffset)
    return combine(result, parts_of(rhs), -1)
end

-- --------------------------------------------------------------------------------------- datetimes plus intervals

local function out_of_range(sign, below)
    fail('%s makes date %s allowed %s', sign > 0 and 'addition' or 'subtraction',
        below and 'less than minimum' or 'greater than maximum', below and MIN_DATE or MAX_DATE)
end

local function check_bounds(value, low, high, sign)
    if value < low or value > high then
        out_of_range(sign, value < low)
    end
    return value
end

local function add_months(day, months, adjust)
    local year, month, month_day = calendar.from_day(day)
    if adjust == EXCESS or month_day < 28 then
        return calendar.to_day(year, month + months, month_day)
    end
    local was_last = month_day == calendar.month_days(year, month)
    local first = calendar.to_day(year, month + months, 1)
    local length = calendar.month_days(calendar.from_day(first))
    if month_day > length or adjust == LAST and was_last then
        month_day = length
    end
    return first + month_day - 1
end

--- Changes `value` by an interval, years first; the zone's rules at the new moment set its offset.
local function shift(value, sign, interval)
    local seconds = local_seconds(value)
    local day = floor(seconds / DAY)
    local time = seconds - day * DAY
    local function check_day(candidate)
        return check_bounds(candidate, calendar.MIN_DAY, calendar.MAX_DAY, sign)
    end
    if interval.year ~= 0 then
        check_day(day + sign * interval.year * YEAR_DAYS)
        day = add_months(day, sign * interval.year * 12, interval.adjust)
    end
    if interval.month ~= 0 then
        check_day(day + sign * interval.month * YEAR_DAYS / 12)
        day = add_months(day, sign * interval.month, interval.adjust)
    end
    day = check_day(day + sign * interval.week * 7)
    day = check_day(day + sign * interval.day)
    seconds = day * DAY + time
    for _, part in ipairs({ interval.hour * 3600, interval.min * 60, interval.sec }) do
        seconds = check_bounds(seconds + sign * part, MIN_SECONDS, MAX_SECONDS + DAY, sign)
    end
    local nsec = value.nsec + sign * interval.nsec
    seconds = seconds + floor(nsec / 1e9)
    check_day(floor(seconds / DAY))
    local zone, offset = zone_name(value), value.tzoffset
    if zone then
        offset = zone_at(zone, seconds) or offset
    end
    value.epoch, value.nsec, value.tzoffset = seconds - offset * 60, nsec % 1e9, offset
    return value
end

local function is_period(value)
    return type(value) == 'table' or is_interval(value)
end

local function add(lhs, rhs)
    if is_datetime(rhs) then
        lhs, rhs = rhs, lhs
    end
    check(is_datetime(lhs) or is_interval(lhs), lhs, 'operator +', 'datetime or interval')
    check(is_period(rhs), rhs, 'operator +', 'interval or table')
    if is_datetime(lhs) then
        return shift(new(datetime_t, lhs), 1, to_interval(rhs))
    end
    return combine(lhs, rhs, 1)
end

local function subtract(lhs, rhs)
    check(is_datetime(lhs) or is_interval(lhs), lhs, 'operator -', 'datetime or interval')
    check(is_datetime(rhs) or is_period(rhs), rhs, 'operator -', 'datetime, interval or table')
    if is_interval(lhs) then
        if is_datetime(rhs) then
            fail('datetime:operator -() - incompatible type of arguments')
        end
        return combine(lhs, rhs, -1)
    elseif is_datetime(rhs) then
        return difference(lhs, rhs)
    end
    return shift(new(datetime_t, lhs), -1, to_interval(rhs))
end

local function change(name, sign)
    return function(self, fields)
        check(is_datetime(self), self, name, 'datetime')
        check(is_period(fields), fields, name, 'interval or table')
        return shift(self, sign, to_interval(fields))
    end
end

-- ------------------------------------------------------------------------------------------------------ metatypes

local function compare_datetimes(lhs, rhs)
    if not is_datetime(lhs) or not is_datetime(rhs) then
        fail('incompatible types for datetime comparison')
    end
    return lhs.epoch ~= rhs.epoch and lhs.epoch - rhs.epoch or lhs.nsec - rhs.nsec
end

local function compare_intervals(lhs, rhs)
    if not is_interval(lhs) or not is_interval(rhs) then
        fail('incompatible types for interval comparison')
    end
    for i = 1, #PARTS do
        local difference_of_part = lhs[PARTS[i]] - rhs[PARTS[i]]
        if difference_of_part ~= 0 then
            return difference_of_part
        end
    end
    return 0
end

local function day(value)
    return floor(local_seconds(value) / DAY)
end

local FIELDS = {
    timestamp = function(value) return value.epoch + value.nsec / 1e9 end,
    year = function(value) return (calendar.from_day(day(value))) end,
    month = function(value) return (select(2, calendar.from_day(day(value)))) end,
    day = function(value) return (select(3, calendar.from_day(day(value)))) end,
    yday = function(value) return calendar.year_day(day(value)) end,
    wday = function(value) return calendar.weekday(day(value)) + 1 end,
    hour = function(value) return floor(local_seconds(value) / 3600) % 24 end,
    min = function(value) return floor(local_seconds(value) / 60) % 60 end,
    sec = function(value) return value.epoch % 60 end,
    usec = function(value) return value.nsec / 1e3 end,
    msec = function(value) return value.nsec / 1e6 end,
    isdst = is_dst,
    tz = function(value) return zone_name(value) or '' end,
}

local METHODS = {
    format = public(datetime_format),
    totable = public(datetime_totable),
    set = public(datetime_set),
    add = public(change('datetime.add', 1)),
    sub = public(change('datetime.sub', -1)),
}

ffi.metatype(datetime_t, {
    __tostring = datetime_tostring,
    __eq = function(lhs, rhs)
        return is_datetime(lhs) and is_datetime(rhs) and lhs.epoch == rhs.epoch and lhs.nsec == rhs.nsec
    end,
    __lt = public(function(lhs, rhs) return compare_datetimes(lhs, rhs) < 0 end),
    __le = public(function(lhs, rhs) return compare_datetimes(lhs, rhs) <= 0 end),
    __add = public(add),
    __sub = public(subtract),
    __index = function(value, key)
        local field = FIELDS[key]
        if field then
            return field(value)
        end
        return METHODS[key]
    end,
})

local INTERVAL_METHODS = { totable = public(interval_totable), __serialize = interval_tostring }

ffi.metatype(interval_t, {
    __tostring = interval_tostring,
    __eq = function(lhs, rhs)
        return is_interval(lhs) and is_interval(rhs) and compare_intervals(lhs, rhs) == 0
    end,
    __lt = public(function(lhs, rhs) return compare_intervals(lhs, rhs) < 0 end),
    __le = public(function(lhs, rhs) return compare_intervals(lhs, rhs) <= 0 end),
    __add = public(add),
    __sub = public(subtract),
    __index = function(value, key)
        if key == 'usec' then
            return floor(value.nsec / 1e3)
        elseif key == 'msec' then
            return floor(value.nsec / 1e6)
        end
        return INTERVAL_METHODS[key]
    end,
})

-- ---------------------------------------------------------------------------------------------------- MessagePack

local TAIL = ffi.sizeof(datetime_t) - 8
local seconds_t = ffi.typeof('int64_t[1]')

--- 8 bytes of seconds; nanoseconds, offset and zone only when one of them is not zero. Little-endian.
local function pack_datetime(value)
    local bytes = ffi.string(new(seconds_t, value.epoch), 8)
    if value.nsec ~= 0 or value.tzoffset ~= 0 or value.tzindex ~= 0 then
        bytes = bytes .. ffi.string(ffi.cast('const char *', value) + 8, TAIL)
    end
    return bytes
end

local function unpack_datetime(payload)
    local value = new(datetime_t)
    if #payload ~= 8 and #payload ~= 8 + TAIL then
        error('invalid datetime', 0)
    end
    local seconds = new(seconds_t)
    ffi.copy(seconds, payload, 8)
    value.epoch = tonumber(seconds[0])
    if #payload > 8 then
        ffi.copy(ffi.cast('char *', value) + 8, ffi.cast('const char *', payload) + 8, TAIL)
    end
    local fine = value.epoch >= MIN_SECONDS and value.epoch <= MAX_SECONDS and value.nsec >= 0 and value.nsec < 2e9
        and value.tzoffset >= MIN_OFFSET and value.tzoffset <= MAX_OFFSET and value.tzindex >= 0 and value.tzindex <= 1024
    if not fine then
        error('invalid datetime', 0)
    end
    return value
end

-- Width in bytes and marker of an integer, smallest first.
local UNSIGNED = { { 0x80, 0, '' }, { 2 ^ 8, 1, '\xcc' }, { 2 ^ 16, 2, '\xcd' }, { 2 ^ 32, 4, '\xce' }, { 2 ^ 64, 8, '\xcf' } }
local SIGNED = { { 0x20, 0, '' }, { 2 ^ 7, 1, '\xd0' }, { 2 ^ 15, 2, '\xd1' }, { 2 ^ 31, 4, '\xd2' }, { 2 ^ 63, 8, '\xd3' } }

local function big_endian(value, width)
    local bytes = {}
    for i = width, 1, -1 do
        bytes[i], value = string.char(value % 256), floor(value / 256)
    end
    return table.concat(bytes)
end

local function pack_integer(value)
    for _, form in ipairs(value >= 0 and UNSIGNED or SIGNED) do
        if value >= 0 and value < form[1] or value < 0 and value >= -form[1] then
            if form[2] == 0 then
                return string.char(value % 256)
            end
            return form[3] .. big_endian(value, form[2])
        end
    end
end

local WIDTHS = { [0xcc] = 1, [0xcd] = 2, [0xce] = 4, [0xcf] = 8, [0xd0] = 1, [0xd1] = 2, [0xd2] = 4, [0xd3] = 8 }

--- The integer at `at` of a payload and the position after it, or nil.
local function unpack_integer(payload, at)
    local marker = payload:byte(at)
    if not marker then
        return nil
    elseif marker < 0x80 then
        return marker, at + 1
    elseif marker >= 0xe0 then
        return marker - 256, at + 1
    end
    local width = WIDTHS[marker]
    if not width or #payload < at + width then
        return nil
    end
    local value = 0
    for i = at + 1, at + width do
        value = value * 256 + payload:byte(i)
    end
    if marker >= 0xd0 and payload:byte(at + 1) >= 0x80 then
        value = value - 256 ^ width
    end
    return value, at + width + 1
end

-- Field numbers on the wire.
local WIRE = { [0] = 'year', 'month', 'week', 'day', 'hour', 'min', 'sec', 'nsec', 'adjust' }
local WIDE = { day = 2 ^ 63, hour = 2 ^ 63, min = 2 ^ 63, sec = 2 ^ 63, adjust = 3 }

--- The number of fields, then each that is not zero: its number and an integer.
local function pack_interval(value)
    local count, fields = 0, {}
    for number = 0, #WIRE do
        local part = math.modf(value[WIRE[number]])
        if part ~= 0 then
            count = count + 1
            fields[count] = string.char(number) .. pack_integer(part)
        end
    end
    return string.char(count) .. table.concat(fields)
end

local function unpack_interval(payload)
    local value = new(interval_t)
    local count, at = payload:byte(1), 2
    for _ = 1, count or error('invalid interval', 0) do
        local name = WIRE[payload:byte(at) or -1]
        local part, after = unpack_integer(payload, at + 1)
        local limit = WIDE[name] or 2 ^ 31
        if not name or not part or part < -limit or part >= limit or name == 'adjust' and part < 0 then
            error('invalid interval', 0)
        end
        value[name], at = part, after
    end
    if at ~= #payload + 1 then
        error('invalid interval', 0)
    end
    return value
end

local register = load('cord.msgpack').ext.register
register({ type = 4, name = 'datetime', ctype = datetime_t, encode = pack_datetime, decode = unpack_datetime })
register({ type = 6, name = 'interval', ctype = interval_t, encode = pack_interval, decode = unpack_interval })

return {
    new = public(datetime_new),
    now = datetime_now,
    parse = public(datetime_parse),
    parse_date = public(datetime_parse_date),
    is_datetime = is_datetime,
    interval = { new = public(interval_new), is_interval = is_interval },
    TZ = timezones.public,
}
