-- ns per encode and per decode: MessagePack of the shapes people send. Runs under luajit (cord.msgpack) and under
-- tarantool (its own msgpack).
--     luajit bench-lua/msgpack.lua [--full] [--runs N] [--json] [--cpu];   the same under tarantool
package.path = (arg[0]:match '^(.*)/[^/]*$' or '.') .. '/?.lua;' .. package.path
local bench = require 'helpers'
bench.start('msgpack', ...)
local msgpack = require(bench.is_tarantool and 'msgpack' or 'cord.msgpack')
local ffi = require 'ffi'

local maps, floats, strings, nested = {}, {}, {}, {}
for i = 1, 1000 do
    maps[i] = { id = i, name = 'user ' .. i, active = i % 2 == 0, score = i * 1000 }
    strings[i] = ('key-%06d'):format(i)
    nested[i] = { { i, i + 1 }, { 'a', { i } } }
end
for i = 1, 10000 do floats[i] = i + 0.5 end

local big = ffi.new('uint64_t', 2 ^ 60)
local cases = {
    { "{1, 2, 3, 'foo', 'bar'}", { 1, 2, 3, 'foo', 'bar' }, 200000 },
    { '1000 small maps', maps, 200 },
    { '1 MB string', ('x'):rep(1000000), 300 },
    { '10 000 floats', floats, 300 },
    { '1000 strings', strings, 2000 },
    { '1000 nested arrays', nested, 300 },
    { 'one integer', 42, 500000 },
    { 'an unsigned of 60 bits', big, 200000 },
    { 'a tuple of a user', { 512, 'alice', 34, { 'admin', 'staff' }, 1.5, true }, 200000 },
}

for _, case in ipairs(cases) do
    local name, value, times = case[1], case[2], case[3]
    if bench.options.full then times = times * 5 end
    local encode, decode, bytes = msgpack.encode, msgpack.decode, msgpack.encode(value)
    bench.compare {
        { table = 'MessagePack', row = name, column = 'encode', items = times, run = function()
            for _ = 1, times do encode(value) end
        end },
        { table = 'MessagePack', row = name, column = 'decode', items = times, run = function()
            for _ = 1, times do decode(bytes) end
        end },
    }
end

bench.finish()
