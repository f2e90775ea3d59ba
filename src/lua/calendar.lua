-- Dates as text and numbers, for cord.datetime: the Gregorian calendar extended to both sides, ISO 8601 in the forms
-- Tarantool reads, and the formats of strftime and strptime in the C locale.
--
-- Days are counted from 1970-01-01, which is 0. Numbers are whole doubles, exact over the 11 million years allowed.

local floor, format, find, sub = math.floor, string.format, string.find, string.sub

local calendar = {}

-- Days from -5879610-06-22 to 5879611-07-11: what 32 bits hold, counted from 0001-01-01.
local RATA_DIE = 719163
calendar.MIN_DAY, calendar.MAX_DAY = -2 ^ 31 - RATA_DIE, 2 ^ 31 - 1 - RATA_DIE

local MONTH_DAYS = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 }
local MONTHS = { 'January', 'February', 'March', 'April', 'May', 'June', 'July', 'August', 'September', 'October',
    'November', 'December' }
local WEEKDAYS = { [0] = 'Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday' }

local function is_leap(year)
    return year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)
end

--- Days of the month, 1 to 12.
function calendar.month_days(year, month)
    return month == 2 and is_leap(year) and 29 or MONTH_DAYS[month]
end

--- The day of a date. The month may lie outside 1 to 12 and the day outside the month: they count on.
function calendar.to_day(year, month, day)
    year, month = year + floor((month - 1) / 12), (month - 1) % 12 + 1
    -- Years that begin in March have their leap day last, and 400 of them always have 146097 days.
    local shifted = month > 2 and year or year - 1
    local era = floor(shifted / 400)
    local year_of_era = shifted - era * 400
    local day_of_year = floor((153 * (month > 2 and month - 3 or month + 9) + 2) / 5) + day - 1
    return era * 146097 + year_of_era * 365 + floor(year_of_era / 4) - floor(year_of_era / 100) + day_of_year - 719468
end

--- Year, month and day of a day.
function calendar.from_day(day)
    day = day + 719468
    local era = floor(day / 146097)
    local day_of_era = day - era * 146097
    local year_of_era = floor((day_of_era - floor(day_of_era / 1460) + floor(day_of_era / 36524)
        - floor(day_of_era / 146096)) / 365)
    local day_of_year = day_of_era - (365 * year_of_era + floor(year_of_era / 4) - floor(year_of_era / 100))
    local month = floor((5 * day_of_year + 2) / 153)
    local day_of_month = day_of_year - floor((153 * month + 2) / 5) + 1
    month = month < 10 and month + 3 or month - 9
    return year_of_era + era * 400 + (month <= 2 and 1 or 0), month, day_of_month
end

--- 0 is Sunday.
function calendar.weekday(day)
    return (day + 4) % 7
end

--- The day's number in its year, from 1.
function calendar.year_day(day)
    return day - calendar.to_day(calendar.from_day(day), 1, 1) + 1
end

local function in_range(day)
    return day >= calendar.MIN_DAY and day <= calendar.MAX_DAY
end

--- The day of a date that must exist and be in range; nil otherwise.
function calendar.checked_day(year, month, day)
    if month < 1 or month > 12 or day < 1 or day > calendar.month_days(year, month) then
        return nil
    end
    local result = calendar.to_day(year, month, day)
    return in_range(result) and result or nil
end

-- --------------------------------------------------------------------------------------------------------- ISO 8601

local function from_year_day(year, number)
    if number < 1 or number > (is_leap(year) and 366 or 365) then
        return nil
    end
    return calendar.to_day(year, 1, number)
end

local function from_week(year, week, number)
    -- Week 1 is the one with the 4th of January; it begins on a Monday.
    local function first_monday(of)
        local fourth = calendar.to_day(of, 1, 4)
        return fourth - (calendar.weekday(fourth) + 6) % 7
    end
    local start = first_monday(year)
    if week < 1 or number < 1 or number > 7 or start + (week - 1) * 7 >= first_monday(year + 1) then
        return nil
    end
    return start + (week - 1) * 7 + number - 1
end

local function from_quarter(year, quarter, number)
    if quarter < 1 or quarter > 4 or number < 1 then
        return nil
    end
    local start = calendar.to_day(year, quarter * 3 - 2, 1)
    local length = calendar.to_day(year, quarter * 3 + 1, 1) - start
    return number <= length and start + number - 1 or nil
end

-- Year, then what may follow it: with a separator three to seven digits of year, without one four.
local DATE_FORMS = {
    { '^(%d%d%d%d?%d?%d?%d?)%-(%d%d)%-(%d%d)()%f[%D]', calendar.checked_day },
    { '^(%d%d%d%d?%d?%d?%d?)%-(%d%d%d)()%f[%D]', from_year_day },
    { '^(%d%d%d%d?%d?%d?%d?)W(%d%d)(%d)()%f[%D]', from_week },
    { '^(%d%d%d%d?%d?%d?%d?)%-W(%d%d)%-(%d)()%f[%D]', from_week },
    { '^(%d%d%d%d?%d?%d?%d?)Q(%d)(%d%d)()%f[%D]', from_quarter },
    { '^(%d%d%d%d?%d?%d?%d?)%-Q(%d)%-(%d%d)()%f[%D]', from_quarter },
    { '^(%d%d%d%d)(%d%d)(%d%d)()%f[%D]', calendar.checked_day },
    { '^(%d%d%d%d)(%d%d%d)()%f[%D]', from_year_day },
}

--- Reads a date at the beginning of `text`. Returns its day and the number of characters, or nil.
function calendar.parse_date(text)
    local negative = sub(text, 1, 1) == '-'
    local digits = negative and sub(text, 2) or text
    for _, form in ipairs(DATE_FORMS) do
        local year, a, b, c = digits:match(form[1])
        if year then
            year = negative and -tonumber(year) or tonumber(year)
            local stop = type(b) == 'number' and b or c
            local day = form[2](year, tonumber(a), type(b) == 'string' and tonumber(b) or nil)
            if not day or not in_range(day) then
                return nil
            end
            return day, stop - 1 + (negative and 1 or 0)
        end
    end
end

-- Hours, minutes, seconds, and how many seconds the last of them is: a fraction of it may follow.
local TIME_FORMS = {
    { '^(%d%d):(%d%d):(%d%d)()%f[%D]', 1 }, { '^(%d%d):(%d%d)()%f[^%d:]', 60 }, { '^(%d%d)()%f[^%d:]', 3600 },
    { '^(%d%d)(%d%d)(%d%d)()%f[%D]', 1 }, { '^(%d%d)(%d%d)()%f[%D]', 60 },
}

--- Reads a time of day from position `at` on. Returns seconds, nanoseconds and the position after it, or nil.
function calendar.parse_time(text, at)
    local rest = sub(text, at)
    if sub(rest, 1, 1) == 'T' then
        rest, at = sub(rest, 2), at + 1
    end
    for _, form in ipairs(TIME_FORMS) do
        local captures = { rest:match(form[1]) }
        if captures[1] then
            local stop = table.remove(captures)
            local hour, minute, second = tonumber(captures[1]), tonumber(captures[2] or 0), tonumber(captures[3] or 0)
            local fraction = rest:match('^[.,](%d*)', stop)
            if fraction == '' then
                return nil
            end
            local nanoseconds = fraction and tonumber(sub(fraction .. '00000000', 1, 9)) * form[2] or 0
            local midnight = hour == 24 and minute + second + nanoseconds == 0
            if not midnight and (hour > 23 or minute > 59 or second > 59) then
                return nil
            end
            second = second + floor(nanoseconds / 1e9)
            return hour * 3600 + minute * 60 + second, nanoseconds % 1e9, at + stop - 1 + (fraction and #fraction + 1 or 0)
        end
    end
end

--- Reads an offset (`Z`, `+3`, `+03`, `+0300`, `+3:00`, `+03:00`, the same after `UTC` or `GMT`) from position `at` on.
--- Returns minutes and the position after it, or nil.
function calendar.parse_offset(text, at)
    local rest = sub(text, at)
    if find(rest, '^[zZ]') then
        return 0, at + 1
    end
    local name = rest:match('^GMT') or rest:match('^UTC')
    if name then
        rest, at = sub(rest, 4), at + 3
        if not find(rest, '^[+-]') then
            return 0, at
        end
    end
    local sign, hour, minute, stop
    for _, form in ipairs({ '^([+-])(%d%d?):(%d%d)()%f[%D]', '^([+-])(%d%d)(%d%d)()%f[%D]', '^([+-])(%d%d?)()%f[^%d:]' }) do
        sign, hour, minute, stop = rest:match(form)
        if sign then
            break
        end
    end
    if not sign then
        return nil
    elseif not stop then
        minute, stop = 0, minute
    end
    hour, minute = tonumber(hour), tonumber(minute)
    if hour > 23 or minute > 59 then
        return nil
    end
    return (sign == '-' and -1 or 1) * (hour * 60 + minute), at + stop - 1
end

-- --------------------------------------------------------------------------------------------------------- strftime

--- A moment split up: `seconds` since 1970 of the local time, nanoseconds, the offset in minutes, the zone's name.
function calendar.split(seconds, nanoseconds, offset, zone)
    local day = floor(seconds / 86400)
    local year, month, month_day = calendar.from_day(day)
    local second = seconds - day * 86400
    return {
        seconds = seconds, nsec = nanoseconds, offset = offset, zone = zone, day = day,
        year = year, month = month, mday = month_day, yday = day - calendar.to_day(year, 1, 1),
        wday = calendar.weekday(day), hour = floor(second / 3600), min = floor(second / 60) % 60, sec = second % 60,
    }
end

--- The year's first two digits and its last two: written together they are the year.
local function halves(year)
    local trail = math.abs(year) % 100
    local lead = (math.abs(year) - trail) / 100
    return year < 0 and (lead == 0 and trail > 0 and '-0' or format('%02d', -lead)) or format('%02d', lead),
        format('%02d', trail)
end

local function year_text(year)
    local lead, trail = halves(year)
    return lead .. trail
end

--- Year and week by ISO 8601.
local function iso_week(parts)
    local thursday = parts.day - (parts.wday + 6) % 7 + 3
    local year = calendar.from_day(thursday)
    return year, floor((thursday - calendar.to_day(year, 1, 1)) / 7) + 1
end

--- A fraction of a second: as many digits as asked for, else 3, 6 or 9.
local function fraction_text(nanoseconds, width)
    if width == 0 then
        width = nanoseconds % 1e6 == 0 and 3 or nanoseconds % 1e3 == 0 and 6 or 9
    end
    width = math.min(width, 9)
    return format('%0' .. width .. 'd', floor(nanoseconds / 10 ^ (9 - width)))
end

local function twelve(hour)
    return hour % 12 == 0 and 12 or hour % 12
end

local write

local WRITERS = {
    A = function(p) return WEEKDAYS[p.wday] end,
    a = function(p) return sub(WEEKDAYS[p.wday], 1, 3) end,
    B = function(p) return MONTHS[p.month] end,
    b = function(p) return sub(MONTHS[p.month], 1, 3) end,
    h = function(p) return sub(MONTHS[p.month], 1, 3) end,
    C = function(p) return (halves(p.year)) end,
    c = function(p) return write(p, '%a %b %e %H:%M:%S %Y') end,
    D = function(p) return write(p, '%m/%d/%y') end,
    d = function(p) return format('%02d', p.mday) end,
    e = function(p) return format('%2d', p.mday) end,
    F = function(p) return write(p, '%Y-%m-%d') end,
    f = function(p) return fraction_text(p.nsec, 0) end,
    G = function(p) return year_text((iso_week(p))) end,
    g = function(p) return (select(2, halves((iso_week(p))))) end,
    H = function(p) return format('%02d', p.hour) end,
    I = function(p) return format('%02d', twelve(p.hour)) end,
    j = function(p) return format('%03d', p.yday + 1) end,
    k = function(p) return format('%2d', p.hour) end,
    l = function(p) return format('%2d', twelve(p.hour)) end,
    M = function(p) return format('%02d', p.min) end,
    m = function(p) return format('%02d', p.month) end,
    n = function() return '\n' end,
    p = function(p) return p.hour < 12 and 'AM' or 'PM' end,
    R = function(p) return write(p, '%H:%M') end,
    r = function(p) return write(p, '%I:%M:%S %p') end,
    S = function(p) return format('%02d', p.sec) end,
    s = function(p) return format('%d', p.seconds) end,
    T = function(p) return write(p, '%H:%M:%S') end,
    t = function() return '\t' end,
    U = function(p) return format('%02d', floor((p.yday + 7 - p.wday) / 7)) end,
    u = function(p) return format('%d', p.wday == 0 and 7 or p.wday) end,
    V = function(p) return format('%02d', (select(2, iso_week(p)))) end,
    v = function(p) return write(p, '%e-%b-%Y') end,
    W = function(p) return format('%02d', floor((p.yday + 7 - (p.wday + 6) % 7) / 7)) end,
    w = function(p) return format('%d', p.wday) end,
    X = function(p) return write(p, '%H:%M:%S') end,
    x = function(p) return write(p, '%m/%d/%y') end,
    Y = function(p) return year_text(p.year) end,
    y = function(p) return (select(2, halves(p.year))) end,
    Z = function(p) return p.zone or '' end,
    z = function(p)
        local minutes = math.abs(p.offset)
        return format('%s%04d', p.offset < 0 and '-' or '+', floor(minutes / 60) * 100 + minutes % 60)
    end,
    ['+'] = function(p) return write(p, '%a %b %e %H:%M:%S %Z %Y') end,
}

function write(parts, pattern)
    return (pattern:gsub('%%([EO]*)(%d*)(.?)', function(_, width, letter)
        if width ~= '' then
            return letter == 'f' and fraction_text(parts.nsec, tonumber(width)) or width .. letter
        end
        local writer = WRITERS[letter]
        return writer and writer(parts) or letter
    end))
end

--- The moment written after a format of strftime, with `%f` for the fraction (`%3f`: three digits of it).
calendar.write = write

-- --------------------------------------------------------------------------------------------------------- strptime

--- An integer of up to `digits` digits at `at`, which must have one; and the position after it.
local function number(text, at, digits)
    local found = sub(text, at, at + digits - 1):match('^%d+')
    if found then
        return tonumber(found), at + #found
    end
end

--- The index of the name at `at` in `names` (full or of three letters), and the position after it.
local function named(text, at, names, first, last)
    for _, length in ipairs({ 99, 3 }) do
        for i = first, last do
            local name = sub(names[i], 1, length):lower()
            if sub(text, at, at + #name - 1):lower() == name then
                return i, at + #name
            end
        end
    end
end

local function bounded(field, digits, low, high)
    return function(into, text, at)
        local value, after = number(text, at, digits)
        if value and value >= low and value <= high then
            into[field] = value
            return after
        end
    end
end

--- Minutes and seconds may be missing at the end of the text and before a space.
local function optional(field, high)
    local read = bounded(field, 2, 0, high)
    return function(into, text, at)
        if find(text, '^%s', at) or at > #text then
            return at
        end
        return read(into, text, at)
    end
end

local function hour(twelve_hours)
    return function(into, text, at)
        local value, after = number(text, at, 2)
        if value and (twelve_hours and value >= 1 and value <= 12 or not twelve_hours and value <= 23) then
            into.hour = value
            return after
        end
    end
end

local function padded(read)
    return function(into, text, at)
        return read(into, text, find(text, '^[ \t]', at) and at + 1 or at)
    end
end

local function year(digits)
    return function(into, text, at)
        if find(text, '^%s', at) or at > #text then
            return at
        end
        local sign, found = sub(text, at, at + digits):match('^(%-?)(%d+)')
        if not found then
            return nil
        end
        found = sub(found, 1, digits)
        local value = tonumber(found)
        if digits == 2 then
            into.short_year = sign == '-' and -value or value
        else
            into.year = sign == '-' and -value or value
        end
        return at + #sign + #found
    end
end

local function weekday(into, text, at)
    local index, after = named(text, at, WEEKDAYS, 0, 6)
    into.wday = index or into.wday
    return after
end

local function month_name(into, text, at)
    local index, after = named(text, at, MONTHS, 1, 12)
    into.month = index or into.month
    return after
end

local function fraction(into, text, at)
    local digits = sub(text, at, at + 8):match('^%d+')
    if digits then
        into.nsec = tonumber(sub(digits .. '00000000', 1, 9))
        return at + #digits
    end
end

local function half_of_day(into, text, at)
    local mark = sub(text, at, at + 1):lower()
    if into.hour > 12 or mark ~= 'am' and mark ~= 'pm' then
        return nil
    end
    into.hour = into.hour % 12 + (mark == 'pm' and 12 or 0)
    return at + 2
end

local function week_number(sunday)
    local read = bounded('week', 2, 0, 53)
    return function(into, text, at)
        into.week_start = sunday and 0 or 1
        return read(into, text, at)
    end
end

local function offset(into, text, at)
    if sub(text, at, at) == 'Z' then
        into.offset = 0
        return at + 1
    end
    local sign, hours, minutes = text:match('^([+-])(%d%d)(%d?%d?)', at)
    if not sign or #minutes == 1 or tonumber(minutes) and tonumber(minutes) > 59 then
        return nil
    end
    local value = (sign == '-' and -1 or 1) * (tonumber(hours) * 60 + (tonumber(minutes) or 0))
    if value < -12 * 60 or value > 14 * 60 then
        return nil
    end
    into.offset = value
    return at + 3 + #minutes
end

local function spaces(_, text, at)
    return find(text, '%S', at) or #text + 1
end

local read

local function as(pattern)
    return function(into, text, at)
        return read(into, text, at, pattern)
    end
end

local READERS = {
    A = weekday, a = weekday, B = month_name, b = month_name, h = month_name,
    C = bounded('century', 2, 0, 99), c = as('%a %b %e %H:%M:%S %Y'), D = as('%m/%d/%y'),
    d = bounded('mday', 2, 1, 31), e = padded(bounded('mday', 2, 1, 31)), F = as('%Y-%m-%d'), f = fraction,
    G = year(7), g = year(2), H = hour(false), I = hour(true), j = bounded('yday', 3, 1, 366),
    k = padded(hour(false)), l = padded(hour(true)), M = optional('min', 59), m = bounded('month', 2, 1, 12),
    n = spaces, p = half_of_day, R = as('%H:%M'), r = as('%I:%M:%S %p'), S = optional('sec', 60), T = as('%H:%M:%S'),
    t = spaces, U = week_number(true), u = bounded('wday', 1, 1, 7), v = as('%e-%b-%Y'), W = week_number(false),
    w = bounded('wday', 1, 0, 6), X = as('%H:%M:%S'), x = as('%m/%d/%y'), Y = year(7), y = year(2), z = offset,
    ['+'] = as('%a %b %e %H:%M:%S %Z %Y'),
    s = function(into, text, at)
        local digits = text:match('^%s*[+-]?%d+', at)
        into.seconds = tonumber(digits)
        return digits and into.seconds ~= 0 and at + #digits or nil
    end,
    -- The zone's name is looked up by the caller, who knows the table.
    Z = function(into, text, at)
        local name = text:match('^%u+', at)
        if name then
            into.zone = name
            return at + #name
        end
        return at
    end,
}

--- Reads `text` from `at` on after `pattern` into the fields of `into`. Returns the position after it, or nil.
function read(into, text, at, pattern)
    local i = 1
    while i <= #pattern do
        local letter = sub(pattern, i, i)
        if letter == '%' then
            local spec, stop = pattern:match('^%%[EO]?%d*(.)()', i)
            local digits = pattern:match('^%%[EO]?(%d*)', i)
            if spec == '%' then
                at = sub(text, at, at) == '%' and at + 1 or nil
            else
                local reader = READERS[spec]
                at = reader and (digits == '' or spec == 'f') and reader(into, text, at) or nil
            end
            i = stop
        elseif find(letter, '%s') then
            at, i = spaces(nil, text, at), i + 1
        else
            at, i = sub(text, at, at) == letter and at + 1 or nil, i + 1
        end
        if not at then
            return nil
        end
    end
    return at
end

--- The year the fields name: %Y, or %C and %y, or %y alone (69 to 99 are in the 20th century).
local function resolve_year(fields)
    if fields.year then
        return fields.year
    elseif fields.century then
        return fields.century * 100 + (fields.short_year or 0)
    elseif fields.short_year then
        return fields.short_year + (fields.short_year < 69 and 2000 or 1900)
    end
end

--- The day in the week that %U or %W counts; the first day of that week without a day.
local function day_of_week_number(fields, of_year)
    local first = calendar.to_day(of_year, 1, 1)
    local start = fields.week_start
    local before = (start - calendar.weekday(first)) % 7
    if fields.week == 0 and before == 0 then
        return nil
    end
    local week_day = ((fields.wday or start) % 7 - start) % 7
    local day = first + before + (fields.week - 1) * 7 + week_day
    if day < first then
        return not fields.wday and first or nil
    end
    return day
end

--- Reads `text` after a format of strptime. Returns the day, the seconds of the day, the fields (nsec, offset, zone), and
--- the number of characters read; nil when the text does not fit.
function calendar.read(text, pattern)
    local fields = { hour = 0, min = 0, sec = 0, nsec = 0 }
    local after = read(fields, text, 1, pattern)
    if not after then
        return nil
    end
    local of_year = resolve_year(fields)
    local day
    if fields.yday and of_year and not fields.month then
        day = from_year_day(of_year, fields.yday)
    elseif of_year and fields.week and not fields.month then
        day = day_of_week_number(fields, of_year)
    elseif fields.yday and not of_year and not fields.month and not fields.mday then
        day = fields.yday - 1
    elseif fields.wday and not of_year and not fields.month and not fields.mday and not fields.yday then
        day = (fields.wday % 7 - 4) % 7
    else
        local month, month_day = fields.month or 1, fields.mday or 1
        if of_year and fields.yday and not fields.mday then
            -- The month must be the one of the day of the year.
            month_day = fields.yday - (calendar.to_day(of_year, month, 1) - calendar.to_day(of_year, 1, 1))
        end
        day = calendar.checked_day(of_year or 1970, month, month_day)
    end
    if fields.seconds and not of_year then
        day = floor(fields.seconds / 86400)
        fields.hour, fields.min, fields.sec = 0, 0, fields.seconds % 86400
    end
    if not day or not in_range(day) then
        return nil
    end
    return day, fields.hour * 3600 + fields.min * 60 + fields.sec, fields, after - 1
end

return calendar
