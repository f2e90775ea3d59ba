-- Hot loops around an FFI probe, so that native code can look at the VM's state while a recording is live and while
-- compiled code runs. Loaded anew for each attempt: what an earlier one made the compiler avoid does not matter.
local address, record, rounds, stage = ...

local ffi = require('ffi')
local probe = ffi.cast('int (*)(void *, int)', ffi.cast('uintptr_t', address))
record = ffi.cast('void *', ffi.cast('uintptr_t', record))

if not require('jit').status() then
    return false
end

if stage == 1 then
    -- Each probe aborts the recording that is live, if any, through the public function, and looks at what changed.
    for _ = 1, rounds do
        probe(record, 0)
    end
    for _ = 1, rounds do
        probe(record, 0)
    end
    -- Two traces of their own, and interpreted code around them.
    probe(record, 1)
    for _ = 1, rounds do
        probe(record, 2)
    end
    probe(record, 3)
    for _ = 1, rounds do
        probe(record, 4)
    end
    probe(record, 5)
else
    -- Each probe clears the bit in place: this loop must never be compiled.
    for _ = 1, rounds do
        probe(record, 6)
    end
end
return true
