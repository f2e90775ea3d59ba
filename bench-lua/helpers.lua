-- What every bench shares: options, clocks, statistics and printing. Runs under luajit (with cord), tarantool (its own
-- fiber) and, where a bench allows it, PUC Lua 5.1.
--
--     local bench = require 'helpers'
--     bench.start('yield', ...)                      -- reads --runs N, --full, --json, --cpu
--     bench.case { table = 'ns per yield', row = '10 fibers', column = 'yield', items = 1e6, run = function() ... end }
--     bench.finish()
--
-- `run` does `items` things once and is timed as a whole; it may return a number of seconds that it measured itself,
-- when set-up must not count. Times are reported as a unit per item (default ns).

local bench = {}

local have_ffi, ffi = pcall(require, 'ffi')
local clock_gettime, wall_id, cpu_id
if have_ffi then
    ffi.cdef [[
        struct cordbench_time { long sec; long nsec; };
        int cordbench_clock(int, struct cordbench_time *) __asm__("clock_gettime");
    ]]
    local time = ffi.new 'struct cordbench_time'
    wall_id, cpu_id = ffi.os == 'OSX' and 6 or 1, ffi.os == 'OSX' and 12 or 2
    function clock_gettime(id)
        ffi.C.cordbench_clock(id, time)
        return tonumber(time.sec) + tonumber(time.nsec) * 1e-9
    end
end

-- Seconds of a steady clock; of this process's CPU time under --cpu, and where there is no FFI.
function bench.now()
    if not have_ffi then return os.clock() end
    return clock_gettime(bench.options.cpu and cpu_id or wall_id)
end

-- Seconds of a steady clock, whatever the options say.
function bench.wall() return have_ffi and clock_gettime(wall_id) or os.clock() end

-- Seconds of CPU time of this process, kernel's included.
function bench.cpu() return have_ffi and clock_gettime(cpu_id) or os.clock() end

bench.is_tarantool = rawget(_G, '_TARANTOOL') ~= nil

-- The host as the tables name it.
function bench.host()
    if bench.is_tarantool then return 'tarantool' end
    return rawget(_G, 'jit') and 'luajit' or 'lua5.1'
end

-- Its version, and the settings of its compiler.
function bench.version()
    local version = rawget(_G, 'jit') and jit.version or _VERSION
    if bench.is_tarantool then return ('Tarantool %s, %s'):format(rawget(_G, '_TARANTOOL'), version) end
    local fine, cord = pcall(require, 'cord')
    return fine and ('%s, cord %s'):format(version, cord._VERSION) or version
end

function bench.flags()
    if not rawget(_G, 'jit') then return 'no compiler' end
    local status = { jit.status() }
    if not status[1] then return 'JIT off' end
    status[1] = 'JIT on'
    return table.concat(status, ' ')
end

-- ------------------------------------------------------------------------------------------------- options

local USAGE = [[
usage: luajit|tarantool bench-lua/%s.lua [options]
  --runs N   how often each case is run (default 5, with --full 15)
  --full     the grids of the published tables in full: minutes to hours
  --json     one JSON object a line, for tools; default: text tables
  --cpu      measure CPU time of the process instead of wall time (steadier on a busy machine)
  --only X   only cases whose table, row or column contains X
]]

local results, order

local function fail(name, problem)
    io.stderr:write(problem, '\n', USAGE:format(name))
    os.exit(1)
end

-- Begins a bench: its name and the script's arguments.
function bench.start(name, ...)
    bench.name = name
    bench.options = { runs = nil, full = false, json = false, cpu = false }
    results, order = {}, {}
    local given = { ... }
    local i = 1
    while i <= #given do
        local option = given[i]
        if option == '--full' or option == '--json' or option == '--cpu' then
            bench.options[option:sub(3)] = true
        elseif option == '--runs' then
            i = i + 1
            local runs = tonumber(given[i])
            if not runs or runs < 1 then fail(name, '--runs needs a number of at least 1') end
            bench.options.runs = math.floor(runs)
        elseif option == '--only' then
            i = i + 1
            bench.options.only = given[i] or fail(name, '--only needs a text')
        else
            fail(name, option == '--help' and '' or 'unknown option ' .. tostring(option))
        end
        i = i + 1
    end
    bench.options.runs = bench.options.runs or (bench.options.full and 15 or 5)
    if not bench.options.json then
        print(('# %s: %s; %s; %s time, medians (min..max) of %d runs'):format(
            name, bench.version(), bench.flags(), bench.options.cpu and 'CPU' or 'wall', bench.options.runs))
    end
end

-- ------------------------------------------------------------------------------------------------- measuring

-- min, median, mean and max of a list of numbers.
function bench.statistics(list)
    local sorted, sum = {}, 0
    for i, value in ipairs(list) do
        sorted[i] = value
        sum = sum + value
    end
    table.sort(sorted)
    local middle = math.floor((#sorted + 1) / 2)
    local median = #sorted % 2 == 1 and sorted[middle] or (sorted[middle] + sorted[middle + 1]) / 2
    return { min = sorted[1], median = median, mean = sum / #sorted, max = sorted[#sorted] }
end

local SCALE = { ns = 1e9, us = 1e6, ms = 1e3, s = 1 }

local function quoted(text)
    return '"' .. tostring(text):gsub('[%c"\\]', function(c) return ('\\u%04x'):format(c:byte()) end) .. '"'
end

local function emit_json(result)
    local values = {}
    for i, value in ipairs(result.values) do values[i] = ('%.6g'):format(value) end
    local s = bench.statistics(result.values)
    print(('{"bench":%s,"host":%s,"version":%s,"flags":%s,"clock":%s,"table":%s,"row":%s,"column":%s,"unit":%s,'
        .. '"relative":%s,"min":%.6g,"median":%.6g,"mean":%.6g,"max":%.6g,"values":[%s]}'):format(
        quoted(bench.name), quoted(bench.host()), quoted(bench.version()), quoted(bench.flags()),
        quoted(bench.options.cpu and 'cpu' or 'wall'),
        quoted(result.table), quoted(result.row), quoted(result.column), quoted(result.unit),
        quoted(result.relative or ''), s.min, s.median, s.mean, s.max, table.concat(values, ',')))
    io.stdout:flush()
end

-- Records values that were measured elsewhere: {table=, row=, column=, unit=, values = {...}}. With `relative`, the name
-- of a column, reports show how much slower than that column each other one is.
function bench.record(result)
    if bench.options.json then
        emit_json(result)
        return
    end
    local name = result.table
    if not results[name] then
        results[name] = { rows = {}, columns = {}, cells = {}, unit = result.unit, relative = result.relative }
        order[#order + 1] = name
    end
    local t = results[name]
    local function once(list, key)
        if not list[key] then
            list[key] = true
            list[#list + 1] = key
        end
    end
    once(t.rows, result.row)
    once(t.columns, result.column)
    t.cells[result.row .. '\0' .. result.column] = result
end

local function wanted(case)
    local only = bench.options.only
    if not only then return true end
    return (case.table .. '\n' .. case.row .. '\n' .. case.column):find(only, 1, true) ~= nil
end

local function timed(case)
    collectgarbage()
    collectgarbage()
    local begin = bench.now()
    local own = case.run()
    return (own or bench.now() - begin) * (SCALE[case.unit or 'ns']) / case.items
end

-- Measures cases that are to be compared with each other: each run goes through all of them in turn, so that a busy
-- machine disturbs them alike. A case has table, row, column, items, run and optionally unit, relative, before, after.
function bench.compare(cases)
    local values = {}
    for i = 1, #cases do values[i] = {} end
    for _ = 1, bench.options.runs do
        for i, case in ipairs(cases) do
            if wanted(case) then
                if case.before then case.before() end
                values[i][#values[i] + 1] = timed(case)
                if case.after then case.after() end
            end
        end
    end
    for i, case in ipairs(cases) do
        if #values[i] > 0 then
            bench.record {
                table = case.table, row = case.row, column = case.column, unit = case.unit or 'ns', values = values[i],
                relative = case.relative,
            }
        end
    end
end

-- Measures one case.
function bench.case(case) bench.compare { case } end

-- ------------------------------------------------------------------------------------------------- printing

local function number(value)
    if value ~= value then return '-' end
    if value >= 1000 then return ('%.0f'):format(value) end
    if value >= 10 then return ('%.1f'):format(value) end
    return ('%.3g'):format(value)
end
bench.number = number

local function print_table(name, t)
    print(('\n%s (%s)'):format(name, t.unit))
    local width = 0
    for _, row in ipairs(t.rows) do width = math.max(width, #row) end
    local head = { (' '):rep(width) }
    local form = t.relative and '%14s' or '%24s'
    for _, column in ipairs(t.columns) do head[#head + 1] = form:format(column) end
    print(table.concat(head, ' '))
    for _, row in ipairs(t.rows) do
        local line = { row .. (' '):rep(width - #row) }
        for _, column in ipairs(t.columns) do
            local cell = t.cells[row .. '\0' .. column]
            local text = ''
            if cell then
                local s = bench.statistics(cell.values)
                text = (#cell.values == 1 or t.relative) and number(s.median)
                    or ('%s (%s..%s)'):format(number(s.median), number(s.min), number(s.max))
                local per_second = (cell.unit == 'ns' or cell.unit == 'us') and s.median > 0 and SCALE[cell.unit] / s.median
                if per_second and #t.columns == 1 then text = ('%s  %s/s'):format(text, number(per_second)) end
            end
            line[#line + 1] = form:format(text)
        end
        print(table.concat(line, ' '))
    end
end

-- How much slower than the column `t.relative` each column is, in percent of medians, and over all rows.
local function print_slowdown(name, t)
    local base = t.relative
    print(('\n%s: slower than %s, %% of medians'):format(name, base))
    local all = {}
    for _, row in ipairs(t.rows) do
        local line = { ('%-16s'):format(row) }
        local reference = t.cells[row .. '\0' .. base]
        for _, column in ipairs(t.columns) do
            local cell = t.cells[row .. '\0' .. column]
            if column ~= base and cell and reference then
                local percent = (bench.statistics(cell.values).median / bench.statistics(reference.values).median - 1) * 100
                all[column] = all[column] or {}
                table.insert(all[column], percent)
                line[#line + 1] = ('%15s %5.1f'):format(column, percent)
            end
        end
        print(table.concat(line, ' '))
    end
    local line = { ('%-16s'):format('median of rows') }
    for _, column in ipairs(t.columns) do
        if all[column] then line[#line + 1] = ('%15s %5.1f'):format(column, bench.statistics(all[column]).median) end
    end
    print(table.concat(line, ' '))
end

-- Prints the tables and ends the process: under tarantool the event loop would go on.
function bench.finish()
    if not bench.options.json then
        for _, name in ipairs(order) do
            print_table(name, results[name])
            if results[name].relative then print_slowdown(name, results[name]) end
        end
    end
    io.stdout:flush()
    os.exit(0)
end

-- The host's fibers: cord's, or Tarantool's own; nil where there are none (PUC Lua).
function bench.fiber()
    if bench.is_tarantool then return require 'fiber' end
    local fine, fiber = pcall(require, 'cord.fiber')
    if fine then return fiber end
    return nil
end

-- Runs `body(i)` in `count` fibers made by fiber.new and lets the main fiber yield until all have ended.
-- Gives the seconds from the first switch on: making them is not counted.
function bench.run_fibers(fiber, count, body)
    local left = count
    for i = 1, count do
        fiber.new(function()
            body(i)
            left = left - 1
        end)
    end
    local begin = bench.now()
    while left > 0 do fiber.yield() end
    return bench.now() - begin
end

return bench
