-- The trace-abort toggle as scripts see it: adds trace_abort and trace_abort_calls to the table of fiber functions.
local raw = ...

local type, error, format = type, error, string.format
local raw_mode = raw.mode

local MODES = 'off, trigger, callback, extern, inline, trigger-noop, callback-noop, extern-noop'

local wanted = os.getenv('CORD_TRACE_ABORT')
if wanted and wanted ~= '' and raw_mode(wanted, true) then
    error(format("CORD_TRACE_ABORT: unknown mode '%s', should be one of: %s", wanted, MODES), 0)
end

local trace = { raw = raw }

function trace.install(fiber, fail)
    function fiber.trace_abort(...)
        local mode = ...
        if mode ~= nil and type(mode) ~= 'string' then
            return fail(format('fiber.trace_abort([mode]): a string expected, got %s', type(mode)))
        end
        local err, before = raw_mode(mode)
        if err then
            return fail(format("fiber.trace_abort([mode]): unknown mode '%s', should be one of: %s", mode, MODES))
        end
        return before
    end

    fiber.trace_abort_calls = raw.calls
end

return trace
