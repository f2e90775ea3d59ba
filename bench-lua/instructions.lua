-- Instructions a wait costs in each trace-abort mode, counted by callgrind: what time on a shared machine cannot show.
--     luajit bench-lua/instructions.lua [light stuck ffi] [off inline extern ...]
-- Each number is the difference of two runs, so that loading and starting cancel out.
if arg[1] == '--child' then
    local kind, mode, waits = arg[2], arg[3], tonumber(arg[4])
    local fiber = require 'cord.fiber'
    local cord = kind == 'ffi' and require 'cord.ffi'
    fiber.trace_abort(mode)
    local yield = cord and cord.cord_fiber_yield or fiber.yield
    local N = 10
    local main, left = fiber.self(), N
    local function loop()
        for _ = 1, waits / N do yield() end
    end
    for _ = 1, N do
        fiber.new(function()
            if kind == 'stuck' then string.gsub('a', 'a', loop) else loop() end
            left = left - 1
            if left == 0 then main:wakeup() end
        end)
    end
    while left > 0 do fiber.sleep(1e6) end
    os.exit(0)
end

local MODES = { off = 1, inline = 2, extern = 3, callback = 4, trigger = 5, ['extern-noop'] = 6, ['callback-noop'] = 7,
    ['trigger-noop'] = 8 }
local KINDS = { light = 1, stuck = 2, ffi = 3 }
local kinds, modes = {}, {}
for _, word in ipairs(arg) do
    if KINDS[word] then
        kinds[#kinds + 1] = word
    elseif MODES[word] then
        modes[#modes + 1] = word
    else
        io.stderr:write(("instructions.lua: '%s' is neither a kind of wait nor a mode\n"):format(word))
        os.exit(1)
    end
end
if #kinds == 0 then kinds = { 'light', 'stuck', 'ffi' } end
if #modes == 0 then
    for mode in pairs(MODES) do modes[#modes + 1] = mode end
    table.sort(modes, function(a, b) return MODES[a] < MODES[b] end)
end

if os.execute('valgrind --version >/dev/null 2>&1') ~= 0 then
    print('no valgrind on this machine: nothing counted')
    os.exit(0)
end

local luajit, script = arg[-1] or 'luajit', arg[0]

local function instructions(kind, mode, waits)
    local command = ("valgrind --tool=callgrind --callgrind-out-file=/dev/null '%s' '%s' --child %s %s %d 2>&1"):format(
        luajit, script, kind, mode, waits)
    local pipe = io.popen(command)
    local output = pipe:read '*a'
    pipe:close()
    local count = tonumber((output:match 'Collected%s*:%s*(%d+)'))
    if not count then error('callgrind said nothing:\n' .. output) end
    return count
end

print(('%-8s %-14s %22s %12s'):format('wait', 'mode', 'instructions a wait', 'beyond off'))
for _, kind in ipairs(kinds) do
    local off
    for _, mode in ipairs(modes) do
        local few, many = 50000, 350000
        local each = (instructions(kind, mode, many) - instructions(kind, mode, few)) / (many - few)
        off = off or each
        print(('%-8s %-14s %22.2f %12s'):format(kind, mode, each, mode == modes[1] and '' or ('%+.2f'):format(each - off)))
    end
end
