-- What a script sees of inspect.rs: fiber.info, fiber.top, slices; and the queue for code that must not wait where it
-- stands. Installed into cord.fiber.
local raw, load = ...

local E = load('cord.error')

local type, select, pcall, tostring, tonumber, format = type, select, pcall, tostring, tonumber, string.format
local setmetatable = setmetatable

-- As Tarantool's "no limit": a hundred years.
local FOREVER = 100 * 365 * 86400

local map = { __serialize = 'mapping' }

local function wants_backtrace(opts)
    if type(opts) ~= 'table' then
        return true
    end
    local backtrace = opts.backtrace
    if backtrace == nil then
        backtrace = opts.bt
    end
    return backtrace ~= false
end

local function finite(seconds)
    return seconds < FOREVER and seconds or nil
end

-- One entry of fiber.info(), or an error.
local function entry(f, backtrace)
    local err, id, name, csw, stack, time, warn, limit = raw.detail(f)
    if err then
        return err
    end
    local info = { fid = id, name = name, csw = csw, time = time, memory = { used = 0, total = stack } }
    if finite(warn) or finite(limit) then
        info.max_slice = { warn = finite(warn), err = finite(limit) }
    end
    if backtrace then
        local _, frames = raw.backtrace(f)
        info.backtrace = frames
    end
    return nil, info
end

-- `fiber` and `methods` are filled; `fail` raises what a raw function returned; `log(text)` writes a line;
-- `reset_trigger` checks the arguments of trigger functions.
return function(fiber, methods, fail, log, is_fiber, reset_trigger)
    function fiber.info(opts)
        local backtrace = wants_backtrace(opts)
        local list = raw.fibers()
        local infos = {}
        for i = 1, #list do
            local err, info = entry(list[i], backtrace)
            if not err then
                infos[list[i]] = info
            end
        end
        return setmetatable(infos, map)
    end

    function methods.info(f, opts)
        if not is_fiber(f) then
            fail('expected fiber as 1 argument')
        end
        local err, info = entry(f, wants_backtrace(opts))
        if err then
            fail(err)
        end
        return setmetatable(info, map)
    end

    -- ------------------------------------------------------------ slices

    -- Warn and err of a slice argument, or nil and what is wrong with it.
    local function limits(slice)
        local warn, err
        if type(slice) == 'number' then
            warn, err = FOREVER, slice
        elseif type(slice) == 'table' then
            warn, err = slice.warn, slice.err
        end
        if type(warn) ~= 'number' or type(err) ~= 'number' then
            return nil, 'slice must be a number or a table {warn = <number>, err = <number>}'
        elseif not (warn >= 0 and err >= 0) then
            return nil, 'slice value must be >= 0'
        end
        return warn, err
    end

    local function slice_setter(name, set)
        fiber[name] = function(...)
            if select('#', ...) ~= 1 then
                fail(format('fiber.%s(slice): bad arguments', name))
            end
            local warn, err = limits(...)
            if warn == nil then
                fail(err)
            end
            set(warn, err)
        end
    end
    slice_setter('set_slice', raw.set_slice)
    slice_setter('extend_slice', raw.extend_slice)

    local function set_max_slice(f, slice)
        local warn, limit = limits(slice)
        if warn == nil then
            fail(limit, 3)
        end
        local err = raw.set_max_slice(f, warn, limit)
        if err then
            fail(err, 3)
        end
    end

    -- These are called in tail position by the functions below: their caller is the script.
    local function max_slice(n, first, second)
        if n ~= 1 and n ~= 2 then
            fail('fiber.set_max_slice([id,] slice): bad arguments')
        elseif n == 1 then
            set_max_slice(nil, first)
        elseif first == nil then
            fail('expected fiber as 1 argument')
        else
            set_max_slice(first, second)
        end
    end

    local function max_slice_of(n, f, slice)
        if n ~= 2 then
            fail('fiber.set_max_slice([id,] slice): bad arguments')
        elseif not is_fiber(f) then
            fail('expected fiber as 1 argument')
        end
        set_max_slice(f, slice)
    end

    function fiber.set_max_slice(...)
        return max_slice(select('#', ...), ...)
    end

    function methods.set_max_slice(...)
        return max_slice_of(select('#', ...), ...)
    end

    function fiber.check_slice(...)
        if select('#', ...) > 0 then
            fail('fiber.check_slice(): bad arguments')
        end
        local what, limit = raw.check_slice()
        if what == 2 then
            log(format('fiber has not yielded for more than %.3f seconds', limit))
        elseif what == 1 then
            E.raise(E.fiber_slice_is_exceeded(), 2)
        end
    end

    -- ------------------------------------------------------------ top

    function fiber.top_enable()
        raw.top_enable(true)
    end

    function fiber.top_disable()
        raw.top_enable(false)
    end

    function fiber.top()
        local list = raw.shares()
        if list == nil then
            fail('fiber.top() is disabled. Enable it with fiber.top_enable() first')
        end
        local cpu = {}
        for i = 1, #list do
            local f = list[i]
            cpu[format('%d/%s', f[1], f[2])] = { average = f[3], instant = f[4], time = f[5] }
        end
        return { cpu_misses = 0, cpu = cpu }
    end

    -- ------------------------------------------------------------ on_yield triggers

    local function run_all(list, f)
        for i = 1, #list do
            local fine, problem = pcall(list[i], f)
            if not fine then
                log(format('fiber %d: error in an on_yield trigger: %s', fiber.id(f), tostring(problem)))
            end
        end
    end

    -- Called before a switch. Works on copies of the lists: a trigger may remove itself.
    raw.keep_on_yield(function(f)
        if type(f) == 'number' then
            f = fiber.find(f)
        end
        local _, own, all = raw.on_yield_lists(f)
        run_all(own, f)
        run_all(all, f)
    end)

    function methods.on_yield(f, new, old)
        if not is_fiber(f) then
            fail('expected fiber as 1 argument')
        end
        local result = reset_trigger(raw.on_yield, f, new, old)
        return result
    end

    function fiber.on_yield(new, old)
        local result = reset_trigger(raw.on_yield, nil, new, old)
        return result
    end

    -- ------------------------------------------------------------ settings without an effect here

    -- Kept for scripts that set it: the size of the pool of a server's request fibers.
    local pool_size = 768

    function fiber.tx_user_pool_size(...)
        local n = select('#', ...)
        local old = pool_size
        if n > 0 then
            local size = tonumber((select(n, ...))) or 0
            size = size - size % 1
            if size <= 0 then
                fail('size must be > 0')
            end
            pool_size = size
        end
        return old
    end

    -- A Lua backtrace costs nothing until somebody asks for one, so there is nothing to switch.
    local function nothing() end
    fiber.parent_backtrace_enable, fiber.parent_backtrace_disable = nothing, nothing
    fiber.leak_backtrace_enable, fiber.leak_backtrace_disable = nothing, nothing

    -- ------------------------------------------------------------ tasks

    local first, last = 1, 0
    local functions, arguments = {}, {}
    local worker, ready

    local function work()
        while true do
            while first > last do
                ready:wait()
            end
            local fn, argument = functions[first], arguments[first]
            functions[first], arguments[first] = nil, nil
            first = first + 1
            local fine, problem = pcall(fn, argument)
            if not fine then
                log('error in a scheduled task: ' .. tostring(problem))
            end
            fiber.sleep(0)
        end
    end

    -- Runs fn(argument) in a fiber of the library's own, later: for code that must not wait where it stands, such as a
    -- finalizer.
    return function(fn, argument, set_system)
        last = last + 1
        functions[last], arguments[last] = fn, argument
        if worker == nil then
            ready = fiber.cond()
            worker = fiber.new(work)
            worker:name('tasks_worker_fiber')
            set_system(worker)
        else
            ready:signal()
        end
    end
end
