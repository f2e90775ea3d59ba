-- make bench: runs each bench under luajit and tarantool in turn and writes docs/bench/*.md with tables and plots.
--     luajit bench-lua/all.lua [--full] [--runs N] [--cpu] [--only X] [name ...]
local here = arg[0]:match '^(.*)/[^/]*$' or '.'
package.path = here .. '/?.lua;' .. package.path
local bench = require 'helpers'

-- What runs where. Each host takes turns with the others, so that a disturbed minute disturbs all of them.
local BENCHES = {
    { 'yield', 'luajit', 'tarantool' },
    { 'create', 'luajit', 'tarantool' },
    { 'floor', 'luajit' },
    { 'channel', 'luajit', 'tarantool' },
    { 'memory', 'luajit', 'tarantool' },
    { 'lua_yield', 'luajit', 'tarantool', 'lua5.1' },
    { 'hello', 'luajit', 'tarantool' },
    { 'peers', 'luajit' },
    { 'msgpack', 'luajit', 'tarantool' },
    { 'serve', 'luajit', 'tarantool' },
    -- The client and the server it starts share one CPU: slower than on two, and far steadier.
    { 'netbox', 'luajit', 'tarantool', pinned = true },
}
-- Units in which more is better.
local MORE_IS_BETTER = { ['k/s'] = true, ['MB/s'] = true }
-- Units in which a ratio is none of speeds.
local SMALLER = { bytes = 'times as small', KB = 'times as small', ['%'] = 'times as small' }
local PASSES = 2
local INTERPRETERS = {
    luajit = os.getenv 'LUAJIT' or 'luajit', tarantool = os.getenv 'TARANTOOL' or 'tarantool', ['lua5.1'] = 'lua5.1',
}

local options, names, chosen = {}, {}, false
local runs
do
    local i = 1
    while arg[i] do
        if arg[i] == '--runs' then
            i = i + 1
            runs = tonumber(arg[i])
        elseif arg[i] == '--only' then
            i = i + 1
            options[#options + 1] = ("--only '%s'"):format(tostring(arg[i]):gsub("'", "'\\''"))
        elseif arg[i]:sub(1, 2) == '--' then
            options[#options + 1] = arg[i]
            options[arg[i]] = true
        else
            names[arg[i]], chosen = true, true
        end
        i = i + 1
    end
end
runs = runs or (options['--full'] and 15 or 6)

local function output(command)
    local pipe = io.popen(command)
    local text = pipe:read '*a'
    pipe:close()
    return (text:gsub('%s+$', ''))
end

local function present(program)
    return output(("command -v '%s' 2>/dev/null"):format(program)) ~= ''
end

-- ------------------------------------------------------------------------------------------------- collecting

-- One line of helpers.lua's JSON: flat, with one list of numbers.
local function parse(line)
    local result = { values = {} }
    for key, text in line:gmatch '"(%w+)":"([^"]*)"' do
        result[key] = text:gsub('\\u00(%x%x)', function(hex) return string.char(tonumber(hex, 16)) end)
    end
    for value in line:match '"values":%[(.-)%]':gmatch '[^,]+' do table.insert(result.values, tonumber(value)) end
    return result
end

-- Runs one bench under one host and merges its results into `report`.
local function collect(report, name, host, share, prefix)
    local command = prefix .. ("'%s' '%s/%s.lua' --json --runs %d %s"):format(
        INTERPRETERS[host], here, name, share, table.concat(options, ' '))
    io.stderr:write(('%s: %s\n'):format(os.date '%H:%M:%S', command))
    local pipe = io.popen(command .. '; echo "ended with $?"')
    local code
    for line in pipe:lines() do
        code = line:match '^ended with (%d+)$' or code
        if line:sub(1, 1) == '{' then
            local result = parse(line)
            report.hosts[host] = ('%s; %s'):format(result.version, result.flags)
            local t = report.tables[result.table]
            if not t then
                t = { name = result.table, rows = {}, columns = {}, cells = {}, unit = result.unit, relative = result.relative }
                report.tables[result.table] = t
                table.insert(report.order, t)
            end
            local function once(list, key)
                if not list[key] then
                    list[key] = true
                    table.insert(list, key)
                end
            end
            once(t.rows, result.row)
            once(t.columns, result.column)
            local key = host .. '\0' .. result.row .. '\0' .. result.column
            local values = t.cells[key] or {}
            t.cells[key] = values
            for _, value in ipairs(result.values) do table.insert(values, value) end
        end
    end
    pipe:close()
    if code ~= '0' then
        io.stderr:write(('%s under %s ended with code %s\n'):format(name, host, tostring(code)))
        report.failed = true
    end
end

-- ------------------------------------------------------------------------------------------------- writing

local function cell_of(t, host, row, column)
    local values = t.cells[host .. '\0' .. row .. '\0' .. column]
    return values and bench.statistics(values), values
end

-- How many times as fast (or small) we are; nil where only one of the two was measured.
local function times_as_fast(t, row, column)
    local ours, theirs = cell_of(t, 'luajit', row, column), cell_of(t, 'tarantool', row, column)
    if not ours or not theirs then return nil end
    local better, worse = theirs.median, ours.median
    if MORE_IS_BETTER[t.unit] then better, worse = worse, better end
    return worse > 0 and better > 0 and better / worse or nil
end

local function span(s, values)
    if #values == 1 then return bench.number(s.median) end
    return ('%s (%s..%s)'):format(bench.number(s.median), bench.number(s.min), bench.number(s.max))
end

-- Columns of the printed table: those measured on the hosts, and how many times as fast where both have one.
local function layout(t, hosts)
    local columns = {}
    for _, column in ipairs(t.columns) do
        local on = {}
        for _, host in ipairs(hosts) do
            for _, row in ipairs(t.rows) do
                if cell_of(t, host, row, column) then
                    on[#on + 1] = host
                    break
                end
            end
        end
        for _, host in ipairs(on) do
            local title = host == 'luajit' and 'luajit + cord' or host
            title = #hosts > 1 and ('%s: %s'):format(title, column) or column
            columns[#columns + 1] = { host = host, column = column, title = title }
        end
        if #on > 1 and on[1] == 'luajit' and on[2] == 'tarantool' then
            columns[#columns + 1] = { ratio = column, title = SMALLER[t.unit] or 'times as fast' }
        end
    end
    return columns
end

local function write_table(file, t, hosts)
    local columns = layout(t, hosts)
    local head, rule = { ' ' }, { '---' }
    for i, c in ipairs(columns) do head[i + 1], rule[i + 1] = c.title, '---:' end
    file:write('| ', table.concat(head, ' | '), ' |\n|', table.concat(rule, '|'), '|\n')
    for _, row in ipairs(t.rows) do
        local line = { row }
        for i, c in ipairs(columns) do
            local text = ''
            if c.ratio then
                local times = times_as_fast(t, row, c.ratio)
                if times then text = times > 100 and '**over 100**' or ('**%.2f**'):format(times) end
            else
                local s, values = cell_of(t, c.host, row, c.column)
                if s then text = span(s, values) end
            end
            line[i + 1] = text
        end
        file:write('| ', table.concat(line, ' | '), ' |\n')
    end
    file:write '\n'
end

-- The published shape of the trace-abort tables: each column against one, and all four statistics of each cell.
local function write_relative(file, t)
    file:write(('Slower than `%s`, in %% of the medians:\n\n| |'):format(t.relative))
    local columns = {}
    for _, column in ipairs(t.columns) do
        if column ~= t.relative then
            columns[#columns + 1] = column
            file:write(' ', column, ' |')
        end
    end
    file:write('\n|---|', ('---:|'):rep(#columns), '\n')
    local all = {}
    for _, row in ipairs(t.rows) do
        local base = cell_of(t, 'luajit', row, t.relative)
        file:write('| ', row, ' |')
        for _, column in ipairs(columns) do
            local s = cell_of(t, 'luajit', row, column)
            local percent = (s.median / base.median - 1) * 100
            all[column] = all[column] or {}
            table.insert(all[column], percent)
            file:write((' %.1f |'):format(percent))
        end
        file:write '\n'
    end
    file:write '| **median (range)** |'
    for _, column in ipairs(columns) do
        local s = bench.statistics(all[column])
        file:write((' **%.1f** (%.0f..%.0f) |'):format(s.median, s.min, s.max))
    end
    file:write('\n\n<details><summary>min, median, mean and max of each cell, in ', t.unit, '</summary>\n\n')
    for _, column in ipairs(t.columns) do
        file:write('| ', column, ' | min | median | mean | max |\n|---|---:|---:|---:|---:|\n')
        for _, row in ipairs(t.rows) do
            local s = cell_of(t, 'luajit', row, column)
            file:write(('| %s | %.5f | %.5f | %.5f | %.5f |\n'):format(row, s.min, s.median, s.mean, s.max))
        end
        file:write '\n'
    end
    file:write '</details>\n\n'
end

local COLOURS = { luajit = '#2a7ab0', tarantool = '#d0743c', ['lua5.1'] = '#7a8a5a' }

local function escaped(text)
    return (text:gsub('[&<>"]', { ['&'] = '&amp;', ['<'] = '&lt;', ['>'] = '&gt;', ['"'] = '&quot;' }))
end

-- What the bars of one plot are: a group a cell of the table, with a bar for each host.
local function groups_of(t, hosts)
    local groups, bars, most, least, longest = {}, 0, 0, math.huge, 0
    for _, row in ipairs(t.rows) do
        for _, column in ipairs(t.columns) do
            local group = { label = #t.columns > 1 and ('%s, %s'):format(row, column) or row, most = 0 }
            for _, host in ipairs(hosts) do
                local s = cell_of(t, host, row, column)
                if s then
                    group[#group + 1] = { host = host, value = s.median }
                    group.most = math.max(group.most, s.median)
                    bars = bars + 1
                end
            end
            if #group > 0 then
                group.times = times_as_fast(t, row, column)
                most, least = math.max(most, group.most), math.min(least, group.most)
                groups[#groups + 1] = group
                longest = math.max(longest, #group.label)
            end
        end
    end
    return groups, bars, most, least, longest
end

local WIDTH, RIGHT, BAR, GAP, TOP = 400, 180, 15, 9, 62

-- Horizontal bars, grouped by cell; false where there is nothing to compare. Values of very different sizes are drawn to a
-- scale of their own in each group.
local function write_plot(path, t, hosts)
    local groups, bars, most, least, longest = groups_of(t, hosts)
    if bars < 2 or bars > 60 or most <= 0 or t.unit == 'calls' then return false end
    -- Letters are about this wide.
    local left = math.max(180, math.ceil(longest * 6.6) + 16)
    local own_scale = most > 500 * least
    local file = assert(io.open(path, 'w'))
    local function write(form, ...) file:write(form:format(...), '\n') end
    write('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">',
        left + WIDTH + RIGHT, TOP + bars * (BAR + 1) + #groups * GAP + 6)
    write '<rect width="100%%" height="100%%" fill="white"/>'
    write('<text x="8" y="20" font-size="15" font-weight="bold">%s</text>', escaped(t.name))
    write('<text x="8" y="42" fill="#555">%s; %s is better%s</text>', t.unit, MORE_IS_BETTER[t.unit] and 'longer' or 'shorter',
        own_scale and '; each group has a scale of its own' or '')
    local x = math.max(left, 340)
    for _, host in ipairs(#hosts > 1 and hosts or {}) do
        write('<rect x="%d" y="32" width="12" height="12" fill="%s"/><text x="%d" y="42">%s</text>', x, COLOURS[host], x + 17,
            host == 'luajit' and 'luajit + cord' or host)
        x = x + 120
    end
    local y = TOP
    for _, group in ipairs(groups) do
        local middle = y + #group * (BAR + 1) / 2 + 4
        write('<text x="%d" y="%.1f" text-anchor="end">%s</text>', left - 8, middle, escaped(group.label))
        local scale = own_scale and group.most or most
        for _, bar in ipairs(group) do
            local width = scale > 0 and bar.value / scale * WIDTH or 0
            write('<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/><text x="%.1f" y="%d">%s</text>',
                left, y, math.max(1, width), BAR, COLOURS[bar.host], left + width + 6, y + 12, bench.number(bar.value))
            y = y + BAR + 1
        end
        if group.times then
            write('<text x="%d" y="%.1f" text-anchor="end" font-weight="bold" fill="%s">%s times</text>',
                left + WIDTH + RIGHT - 8, middle, group.times >= 1 and '#2a7a3a' or '#b03030',
                group.times > 100 and 'over 100' or ('%.1f'):format(group.times))
        end
        y = y + GAP
    end
    write '</svg>'
    file:close()
    return true
end

local function machine()
    local model = output "sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1"
    if model == '' then model = output 'sysctl -n machdep.cpu.brand_string 2>/dev/null' end
    local cores = output 'getconf _NPROCESSORS_ONLN 2>/dev/null'
    return ('%s, %s cores, %s'):format(model, cores, output 'uname -srm')
end

local function write_report(report, name, hosts)
    -- Plots of tables that are no more.
    for i = 1, 20 do os.remove(('docs/bench/%s-%d.svg'):format(name, i)) end
    local file = assert(io.open(('docs/bench/%s.md'):format(name), 'w'))
    local title = output(("sed -n '1s/^-- //p' '%s/%s.lua'"):format(here, name))
    file:write(('# %s\n\n%s\n\n'):format(name, title))
    file:write(('Machine: %s; %s. '):format(machine(), os.date '!%Y-%m-%d'))
    file:write(('%s time; medians of %d runs in %d turns of the hosts, in brackets the least and the most.%s\n\n'):format(
        options['--cpu'] and 'CPU' or 'Wall', runs, PASSES, report.pinned and ' Pinned to one CPU (`taskset -c 0`).' or ''))
    for _, host in ipairs(hosts) do
        if report.hosts[host] then file:write(('- %s: %s\n'):format(host, report.hosts[host])) end
    end
    file:write(('\nMade by `make bench`%s.\n\n'):format(#options > 0 and (" with BENCH='%s'"):format(table.concat(options, ' ')) or ''))
    for i, t in ipairs(report.order) do
        file:write(('## %s (%s)\n\n'):format(t.name, t.unit))
        write_table(file, t, hosts)
        if t.relative ~= '' then write_relative(file, t) end
        local plot = ('%s-%d.svg'):format(name, i)
        if t.relative == '' and write_plot('docs/bench/' .. plot, t, hosts) then
            file:write(('![%s](%s)\n\n'):format(t.name, plot))
        end
    end
    file:close()
    io.stderr:write(('wrote docs/bench/%s.md\n'):format(name))
end

os.execute 'mkdir -p docs/bench'
local failed = false
for _, entry in ipairs(BENCHES) do
    local name = entry[1]
    if not chosen or names[name] then
        local report = { hosts = {}, tables = {}, order = {} }
        local hosts = {}
        for i = 2, #entry do
            if present(INTERPRETERS[entry[i]]) then
                hosts[#hosts + 1] = entry[i]
            else
                io.stderr:write(('%s is not on this machine: no column for it\n'):format(entry[i]))
            end
        end
        local prefix = entry.pinned and present 'taskset' and 'taskset -c 0 ' or ''
        report.pinned = prefix ~= ''
        for pass = 1, PASSES do
            local share = math.floor(runs * pass / PASSES) - math.floor(runs * (pass - 1) / PASSES)
            for _, host in ipairs(hosts) do
                if share > 0 then collect(report, name, host, share, prefix) end
            end
        end
        write_report(report, name, hosts)
        failed = failed or report.failed
    end
end
os.exit(failed and 1 or 0)
