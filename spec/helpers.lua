-- What the specs share: child processes, real Tarantool servers, fake servers that misbehave, and the check that a
-- spec leaves nothing behind. Everything started here is stopped at exit, and stops by itself if this process dies.
--
--     local helpers = require 'spec.helpers'

local ffi = require 'ffi'
local bit = require 'bit'


local C = ffi.C
local helpers = {}

-- busted reloads this file for each spec file: what must be stopped at exit lives in the registry, once a process.
local registry = debug.getregistry()
local session = registry['cord.spec.session']
if not session then
    ffi.cdef [[
        int cordspec_posix_spawnp(int *, const char *, const void *, const void *, char *const *, char *const *)
            __asm__("posix_spawnp");
        int cordspec_fa_init(void *) __asm__("posix_spawn_file_actions_init");
        int cordspec_fa_destroy(void *) __asm__("posix_spawn_file_actions_destroy");
        int cordspec_fa_addopen(void *, int, const char *, int, unsigned short) __asm__("posix_spawn_file_actions_addopen");
        int cordspec_waitpid(int, int *, int) __asm__("waitpid");
        int cordspec_kill(int, int) __asm__("kill");
        int cordspec_poll(void *, unsigned long, int) __asm__("poll");
        int cordspec_getpid(void) __asm__("getpid");
        int cordspec_fcntl(int, int, ...) __asm__("fcntl");
        struct cordspec_time { long sec; long usec; };
        int cordspec_gettimeofday(struct cordspec_time *, void *) __asm__("gettimeofday");
        extern char **environ;
    ]]
    session = { dirs = {}, children = {}, count = 0 }
    registry['cord.spec.session'] = session
    session.sentinel = newproxy(true)
    local function cleanup()
        for child in pairs(session.children) do
            C.cordspec_kill(child.pid, 9)
        end
        for dir in pairs(session.dirs) do
            os.execute("rm -rf '" .. dir .. "'")
        end
    end
    getmetatable(session.sentinel).__gc = cleanup
end

-- CORD_SPEC_GC=1: a collector that never rests, here and in the children.
local HURRY = os.getenv 'CORD_SPEC_GC' and "collectgarbage('setpause', 0) collectgarbage('setstepmul', 5000)"
if HURRY then loadstring(HURRY)() end

-- ------------------------------------------------------------------------------------------------- small things

-- Wall time in seconds, with microseconds, independent of the library under test.
function helpers.now()
    local time = ffi.new 'struct cordspec_time'
    C.cordspec_gettimeofday(time, nil)
    return tonumber(time.sec) + tonumber(time.usec) / 1e6
end

-- Blocks the whole OS thread: for waiting on other processes, never for fibers.
function helpers.block(seconds)
    C.cordspec_poll(nil, 0, math.ceil(seconds * 1000))
end

-- Blocks until `condition()` is true; its value, or nil after `seconds` (default 10).
function helpers.wait_until(condition, seconds)
    local deadline = helpers.now() + (seconds or 10)
    while true do
        local value = condition()
        if value then return value end
        if helpers.now() > deadline then return nil end
        helpers.block(0.005)
    end
end

function helpers.read_file(path)
    local file = io.open(path, 'rb')
    if not file then return nil end
    local text = file:read '*a'
    file:close()
    return text
end

function helpers.write_file(path, text)
    local file = assert(io.open(path, 'wb'))
    file:write(text)
    file:close()
    return path
end

-- A folder of its own, removed at exit. Short, since a unix socket's path has 107 bytes at most.
function helpers.tempdir()
    local dir
    -- A process that was killed leaves its folders behind, and its number may come again.
    for _ = 1, 20 do
        session.count = session.count + 1
        dir = ('%s/cordspec-%d-%d'):format('/tmp', C.cordspec_getpid(), session.count)
        if os.execute("mkdir -m 700 '" .. dir .. "' 2>/dev/null") == 0 then
            session.dirs[dir] = true
            return dir
        end
    end
    error('cannot make ' .. dir)
end

-- Path of an executable, or nil.
function helpers.which(program)
    local pipe = io.popen("command -v '" .. program .. "' 2>/dev/null")
    local path = pipe:read '*l'
    pipe:close()
    return path ~= '' and path or nil
end

-- The file `require 'cord'` loads.
function helpers.library()
    local found = package.searchpath and package.searchpath('cord', package.cpath)
    return found or error('no cord.so in package.cpath: ' .. package.cpath)
end

-- ------------------------------------------------------------------------------------------------- child processes

local Child = {}
Child.__index = Child

local function cstrings(list)
    local array = ffi.new('const char *[?]', #list + 1)
    for i, text in ipairs(list) do array[i - 1] = text end
    array[#list] = nil
    return ffi.cast('char *const *', array), array
end

local function environment(overrides)
    local list, i = {}, 0
    local taken = {}
    for name, value in pairs(overrides or {}) do
        taken[name] = true
        if value then list[#list + 1] = name .. '=' .. tostring(value) end
    end
    while C.environ[i] ~= nil do
        local entry = ffi.string(C.environ[i])
        if not taken[entry:match '^[^=]*'] then list[#list + 1] = entry end
        i = i + 1
    end
    return list
end

-- Starts a program. `argv` is a list; options: env = {NAME = value or false to unset}, stdin = path, stdout = path,
-- stderr = path (each default /dev/null). Gives a child with :status(), :wait(), :kill(), :alive().
function helpers.spawn(argv, options)
    options = options or {}
    local actions = ffi.new 'uint64_t[64]'
    assert(C.cordspec_fa_init(actions) == 0)
    local function redirect(fd, path, flags)
        assert(C.cordspec_fa_addopen(actions, fd, path, flags, 0) == 0)
    end
    for _, name in ipairs { 'stdout', 'stderr' } do
        -- Created here: the flag that creates has another number on each system.
        local path = options[name]
        if path and path ~= '/dev/null' then helpers.write_file(path, '') end
    end
    redirect(0, options.stdin or '/dev/null', 0)
    redirect(1, options.stdout or '/dev/null', 1)
    redirect(2, options.stderr or '/dev/null', 1)
    local pid = ffi.new 'int[1]'
    local env = environment(options.env)
    local argv_c, anchor_a = cstrings(argv)
    local env_c, anchor_e = cstrings(env)
    local rc = C.cordspec_posix_spawnp(pid, argv[1], actions, nil, argv_c, env_c)
    C.cordspec_fa_destroy(actions)
    assert(anchor_a and anchor_e)
    if rc ~= 0 then error(('cannot start %s (errno %d)'):format(argv[1], rc), 2) end
    local child = setmetatable({ pid = pid[0], argv = argv }, Child)
    session.children[child] = true
    return child
end

-- nil while it runs; then its exit code and, when a signal ended it, nil and the signal's number: {code=, signal=}.
function Child:status()
    if self.ended then return self.ended end
    local status = ffi.new 'int[1]'
    if C.cordspec_waitpid(self.pid, status, 1) ~= self.pid then return nil end
    local word = status[0]
    local signal = bit.band(word, 0x7f)
    self.ended = signal ~= 0 and { signal = signal } or { code = bit.band(bit.rshift(word, 8), 0xff) }
    session.children[self] = nil
    return self.ended
end

function Child:alive() return self:status() == nil end

-- Blocks until it ends; after `seconds` (default 60) it is killed and `timed_out` is set.
function Child:wait(seconds)
    local ended = helpers.wait_until(function() return self:status() end, seconds or 60)
    if not ended then
        C.cordspec_kill(self.pid, 9)
        ended = helpers.wait_until(function() return self:status() end, 10) or {}
        ended.timed_out = true
    end
    return ended
end

-- Sends a signal: a number or one of the names below.
local SIGNALS = { HUP = 1, INT = 2, QUIT = 3, KILL = 9, TERM = 15 }
SIGNALS.STOP = ffi.os == 'Linux' and 19 or 17
SIGNALS.CONT = ffi.os == 'Linux' and 18 or 19
function Child:kill(signal)
    if self:status() then return end
    C.cordspec_kill(self.pid, SIGNALS[signal] or signal or 15)
end

-- Asks it to end, insists after two seconds.
function Child:stop()
    if self:status() then return end
    self:kill 'TERM'
    if not helpers.wait_until(function() return self:status() end, 2) then
        self:kill 'KILL'
        helpers.wait_until(function() return self:status() end, 10)
    end
end

-- The interpreter's own path: the child is the same LuaJIT as the specs' one. arg[-n] is what started this process.
local function interpreter()
    local first
    for i = 0, -20, -1 do
        if arg and arg[i] then first = arg[i] else break end
    end
    return os.getenv 'LUAJIT' or first or 'luajit'
end

helpers.interpreter = interpreter

-- Whether this runs under `make sanitize`. The sanitizer's runtime says on stderr, once, that it does not know fibers' stacks.
helpers.sanitized = (os.getenv 'LD_PRELOAD' or ''):find 'asan' ~= nil
local function without_notice(text)
    if not helpers.sanitized then return text end
    return (text:gsub('==%d+==WARNING: ASan is ignoring[^\n]*\nFalse positive[^\n]*\nFor details[^\n]*\n', ''))
end

-- Runs Lua source in a child LuaJIT and waits for it. Options:
--   flags    list of LuaJIT's options, such as {'-joff'}      args     list of arguments (`...` of the script)
--   env      {NAME = value or false}                          stdin    text for its standard input
--   timeout  seconds until it is killed, default 60           lua      another interpreter, such as 'lua5.1'
-- Gives {code=, signal=, timed_out=, stdout=, stderr=}. `code` is nil when a signal ended it (11 is a crash).
function helpers.run(source, options)
    options = options or {}
    local dir = helpers.tempdir()
    local argv = { options.lua or interpreter() }
    for _, flag in ipairs(options.flags or {}) do argv[#argv + 1] = flag end
    if source then argv[#argv + 1] = helpers.write_file(dir .. '/script.lua', source) end
    for _, value in ipairs(options.args or {}) do argv[#argv + 1] = tostring(value) end
    local env = { LUA_PATH = package.path, LUA_CPATH = package.cpath, LUA_INIT = not options.lua and HURRY or false }
    -- A sanitizer's runtime, preloaded here, is not for Tarantool, which hangs with it.
    if options.lua and options.lua:find 'tarantool' then env.LD_PRELOAD = false end
    for name, value in pairs(options.env or {}) do env[name] = value end
    local child = helpers.spawn(argv, {
        env = env,
        stdin = options.stdin and helpers.write_file(dir .. '/stdin', options.stdin) or nil,
        stdout = dir .. '/stdout',
        stderr = dir .. '/stderr',
    })
    local ended = child:wait(options.timeout)
    local result = {
        code = ended.code,
        signal = ended.signal,
        timed_out = ended.timed_out or false,
        stdout = helpers.read_file(dir .. '/stdout'),
        stderr = without_notice(helpers.read_file(dir .. '/stderr')),
    }
    os.execute("rm -rf '" .. dir .. "'")
    session.dirs[dir] = nil
    return result
end

-- The same, and the script must end well: raises with all its output otherwise. Gives its standard output.
function helpers.run_ok(source, options)
    local result = helpers.run(source, options)
    if result.code ~= 0 then
        error(('script ended with %s%s\nstdout: %s\nstderr: %s'):format(
            result.signal and 'signal ' .. result.signal or 'code ' .. tostring(result.code),
            result.timed_out and ' (timed out)' or '', result.stdout, result.stderr), 2)
    end
    return result.stdout
end

-- Types `lines` at the REPL of the stock interpreter, one by one; gives the result of `run`.
function helpers.type_at_repl(lines, options)
    options = options or {}
    local flags = { '-i' }
    for _, flag in ipairs(options.flags or {}) do flags[#flags + 1] = flag end
    options.flags = flags
    options.stdin = table.concat(lines, '\n') .. '\n'
    return helpers.run(nil, options)
end

-- ------------------------------------------------------------------------------------------------- real servers

local Server = {}
Server.__index = Server

-- The path of the tarantool binary ($TARANTOOL or from PATH), or nil and the reason.
function helpers.tarantool_binary()
    local name = os.getenv 'TARANTOOL'
    if not name or name == '' then name = 'tarantool' end
    local path = helpers.which(name)
    if path then return path end
    return nil, ('no %s on this machine: install it or set TARANTOOL=/path/to/tarantool'):format(name)
end

local SERVER_HEAD = [[
local dir, listen, parent = ...
local fiber = require 'fiber'
local ffi = require 'ffi'
ffi.cdef 'int getppid(void);'
-- Whoever started this server is gone: so is its reason to run.
fiber.create(function()
    while ffi.C.getppid() == tonumber(parent) do fiber.sleep(0.2) end
    os.exit(0)
end)
box.cfg { listen = listen, work_dir = dir, log = dir .. '/log', wal_mode = 'none', memtx_memory = 64 * 1024 * 1024 }
]]
local SERVER_TAIL = [[

-- A port is chosen when it is bound; of a unix socket 2.6 does not tell the path.
local bound = listen:find('^/') and listen or box.info.listen
local file = io.open(dir .. '/ready.new', 'w')
file:write(bound)
file:close()
os.rename(dir .. '/ready.new', dir .. '/ready')
]]

-- Starts a real tarantool in a folder of its own and waits until it answers. Options:
--   init    Lua source run after box.cfg: spaces, functions, users
--   listen  'unix' (default), 'tcp' (a free port of 127.0.0.1) or an address
--   guest   false: no rights for guest; by default guest may do everything
-- Gives a server with uri (path or host:port), dir, pid, :stop(), :kill(signal), :restart(), :log(), :alive().
-- Raises when there is no binary: guard with `helpers.describe_server` or `helpers.tarantool_binary`.
function helpers.tarantool(options)
    options = options or {}
    local binary = assert(helpers.tarantool_binary())
    local dir = helpers.tempdir()
    local listen = options.listen or 'unix'
    if listen == 'unix' then listen = dir .. '/s' elseif listen == 'tcp' then listen = '127.0.0.1:0' end
    local grant = options.guest == false and ''
        or "box.schema.user.grant('guest', 'read,write,execute,create,drop,alter', 'universe', nil, {if_not_exists = true})\n"
    helpers.write_file(dir .. '/init.lua', SERVER_HEAD .. grant .. (options.init or '') .. SERVER_TAIL)
    local self = setmetatable({ dir = dir, binary = binary, listen = listen }, Server)
    self:start()
    return self
end

function Server:start()
    os.remove(self.dir .. '/ready')
    local child = helpers.spawn({ self.binary, self.dir .. '/init.lua', self.dir, self.listen, tostring(C.cordspec_getpid()) }, {
        env = { LUA_PATH = false, LUA_CPATH = false, LD_PRELOAD = false },
        stdout = self.dir .. '/stdout',
        stderr = self.dir .. '/stderr',
    })
    self.child, self.pid = child, child.pid
    local ready = helpers.wait_until(function()
        return helpers.read_file(self.dir .. '/ready') or child:status() and 'died'
    end, 30)
    if not ready or ready == 'died' then
        child:stop()
        error(('tarantool did not start:\n%s%s'):format(helpers.read_file(self.dir .. '/stderr') or '', self:log()), 3)
    end
    self.uri, self.listen = ready, ready
    return self
end

-- After stop or kill: starts it again at the same address with the same init script and empty data.
function Server:restart()
    self:stop()
    os.execute(("rm -f '%s'/*.snap '%s'/*.xlog '%s'/*.vylog"):format(self.dir, self.dir, self.dir))
    return self:start()
end

function Server:log() return helpers.read_file(self.dir .. '/log') or '' end
function Server:status() return self.child:status() end
function Server:alive() return self.child:alive() end
function Server:kill(signal) return self.child:kill(signal) end
function Server:stop() return self.child:stop() end
function Server:wait(seconds) return self.child:wait(seconds) end

-- A `describe` block against a real server, tagged #server: started before its first test, stopped after its last.
-- `define(get)` declares the tests; get() is the running server. Without the binary one pending test gives the reason.
--     helpers.describe_server('net.box against tarantool', { init = [[...]] }, function(get) it(...) end)
function helpers.describe_server(name, options, define)
    local env = getfenv(2)
    local describe, pending, setup, teardown = env.describe, env.pending, env.setup, env.teardown
    describe(name .. ' #server', function()
        local binary, reason = helpers.tarantool_binary()
        if not binary then
            pending(reason)
            return
        end
        local server
        setup(function() server = helpers.tarantool(options) end)
        teardown(function() if server then server:stop() end end)
        define(function() return server end)
    end)
end

-- ------------------------------------------------------------------------------------------------- fake servers

local Fake = {}
Fake.__index = Fake

-- Starts a server that does exactly what `script` says, in a child process (plain LuaJIT and FFI sockets: nothing of the
-- library under test). The script is Lua source, run anew for each connection, in a process of its own, with the
-- connection as `...`; spec/fake_server.lua lists its methods: greeting, send, dribble, glue, read, read_request, reply,
-- raw_frame, error, sleep, shutdown, reset, close, log. A connection is closed when its script ends.
--     local fake = helpers.fake_server [=[ local peer = ...; peer:greeting(); peer:send 'garbage' ]=]
-- Options: listen = 'unix' (default) or 'tcp'. Gives uri, :connections(), :log(), :stop().
function helpers.fake_server(script, options)
    options = options or {}
    local dir = helpers.tempdir()
    assert(loadstring(script, '=fake server script'))
    helpers.write_file(dir .. '/script.lua', script)
    local self = setmetatable({ dir = dir }, Fake)
    self.child = helpers.spawn({ interpreter(), 'spec/fake_server.lua', dir, options.listen or 'unix', tostring(C.cordspec_getpid()) }, {
        stdout = dir .. '/stdout',
        stderr = dir .. '/stderr',
        env = { LUA_INIT = false },
    })
    local ready = helpers.wait_until(function()
        return helpers.read_file(dir .. '/ready') or self.child:status() and 'died'
    end, 10)
    if not ready or ready == 'died' then
        error('fake server did not start: ' .. (helpers.read_file(dir .. '/stderr') or ''), 2)
    end
    self.uri, self.pid = ready, self.child.pid
    return self
end

-- What its scripts logged with peer:log, and their errors.
function Fake:log() return helpers.read_file(self.dir .. '/log') or '' end

-- How many connections it has accepted.
function Fake:connections()
    local _, count = (helpers.read_file(self.dir .. '/accepted') or ''):gsub('\n', '')
    return count
end

function Fake:stop() self.child:stop() end
function Fake:kill(signal) self.child:kill(signal) end

-- ------------------------------------------------------------------------------------------------- leftovers

-- Numbers of the open descriptors of this process.
function helpers.open_descriptors()
    local open = {}
    for fd = 0, 1023 do
        if C.cordspec_fcntl(fd, 1) ~= -1 then open[fd] = true end
    end
    return open
end

local function live_fibers()
    local loaded, fiber = pcall(require, 'cord.fiber')
    if not loaded then return {}, nil end
    return fiber.info and fiber.info() or {}, fiber
end

-- Call it once at the top of a spec file's describe block: before and after each test it takes stock, and a test that
-- leaves a live fiber or an open descriptor behind fails, after one full collection. Fibers that only need a turn to end
-- get it: up to `seconds` (default 2).
function helpers.no_leftovers(seconds)
    local env = getfenv(2)
    local fibers, descriptors
    env.before_each(function()
        local _, fiber = live_fibers()
        -- The first wait opens the poller's own descriptors, which stay.
        if fiber then fiber.sleep(0.001) end
        fibers, descriptors = live_fibers(), helpers.open_descriptors()
    end)
    env.after_each(function()
        local left
        local deadline = helpers.now() + (seconds or 2)
        repeat
            collectgarbage()
            collectgarbage()
            left = {}
            local now, fiber = live_fibers()
            for id, info in pairs(now) do
                if not fibers[id] then left[#left + 1] = ('fiber %s (%s)'):format(tostring(id), tostring(info.name)) end
            end
            for fd in pairs(helpers.open_descriptors()) do
                if not descriptors[fd] then left[#left + 1] = 'descriptor ' .. fd end
            end
            if #left > 0 and fiber then fiber.sleep(0.01) end
        until #left == 0 or not fiber or helpers.now() > deadline
        if #left > 0 then
            error('left behind: ' .. table.concat(left, ', '), 0)
        end
    end)
end

return helpers
