//! What the running LuaJIT keeps where: words the public headers do not show, found by their behaviour and used only
//! when proven. Also the trace-abort toggle.
//!
//! Offsets are never assumed: each word is accepted only if it does, on this very build, what its name says. Where one
//! is not found, the slower public function is used, or the operation that needs it is refused.

use mlua::ffi::*;
use std::ffi::{c_int, c_void};

/// Offset of the global state's pointer in `lua_State`, GC64 builds (lj_obj.h, struct lua_State).
const OFFSET_G: usize = 16;
/// Offset of the word that tells where a running thread's C frame is, GC64 builds.
const OFFSET_CFRAME: usize = 80;
/// Offset of the running frame's base in `lua_State`, GC64 builds; the top of the stack follows it.
pub const OFFSET_BASE: usize = 32;
/// Bytes before the payload of a userdata, GC64 builds (lj_obj.h, struct GCudata), and where in them its length is.
const USERDATA_HEADER: usize = 48;
const OFFSET_LENGTH: usize = 24;
/// The type of a userdata in the upper 17 bits of a value, GC64 builds (lj_obj.h, LJ_TUDATA).
const USERDATA_TAG: u32 = 0x1_fff3;
/// The word below the base of a function that the fast function `pcall` called: two slots, and the frame's type.
pub const PCALL_FRAME: u64 = 16 + 6;
/// As above, called by `xpcall`: three slots, the first of which is the handler.
pub const XPCALL_FRAME: u64 = 24 + 6;
/// How far behind the global state's start the hook mask and the recorder's state are looked for, in bytes.
pub const WINDOW: usize = 4096;

/// Bits of the hook mask (lj_obj.h): a hook runs, a VM-event or profiler callback, a finalizer.
pub const HOOK_ACTIVE: u8 = 0x10;
/// As above.
pub const HOOK_VMEVENT: u8 = 0x20;
/// As above.
pub const HOOK_GC: u8 = 0x40;

/// Bit of the recorder's state: a recording is live (lj_jit.h, LJ_TRACE_ACTIVE).
pub const RECORDING: u32 = 0x10;

/// Written into a waiting fiber's `cframe` word, so that LuaJIT itself refuses a foreign `coroutine.resume`.
pub const MARK: usize = 0x40;
/// Bit of `cframe` that says the thread was resumed and may yield.
pub const CFRAME_RESUME: usize = 1;
/// Offset of the byte that says how a thread stands (0: it runs or has not begun; LUA_YIELD: it waits), GC64 builds.
const OFFSET_STATUS: usize = 11;

/// The global state's address.
///
/// # Safety
/// `l` is a live thread of a GC64 build.
#[inline(always)]
pub unsafe fn global(l: *mut lua_State) -> *mut u8 {
    // SAFETY: the caller's contract.
    unsafe { *l.cast::<u8>().add(OFFSET_G).cast::<*mut u8>() }
}

/// The word behind a thread's `cframe`.
///
/// # Safety
/// `l` is a live thread and the word was proven.
#[inline(always)]
pub unsafe fn cframe(l: *mut lua_State) -> *mut usize {
    // SAFETY: the caller's contract.
    unsafe { l.cast::<u8>().add(OFFSET_CFRAME).cast() }
}

/// The byte behind a thread's status.
///
/// # Safety
/// `l` is a live thread of a GC64 build.
#[inline(always)]
pub unsafe fn status(l: *mut lua_State) -> *mut u8 {
    // SAFETY: the caller's contract.
    unsafe { l.cast::<u8>().add(OFFSET_STATUS) }
}

/// Whether the running C function of `l` may yield, read from the proven word.
///
/// # Safety
/// As for [`cframe`].
#[inline(always)]
pub unsafe fn is_yieldable(l: *mut lua_State) -> bool {
    // SAFETY: the caller's contract.
    unsafe { *cframe(l) & CFRAME_RESUME != 0 }
}

/// The running C function of `l` has no values any more.
///
/// # Safety
/// `l` runs a C function, in a GC64 build.
#[inline(always)]
pub unsafe fn drop_arguments(l: *mut lua_State) {
    // SAFETY: the caller's contract.
    unsafe {
        let base = l.cast::<u8>().add(OFFSET_BASE).cast::<*mut u64>();
        *base.add(1) = *base;
    }
}

/// The payload of the full userdata of `size` bytes that is the first argument of the running C function of `l`, or null
/// if there is something else.
///
/// A compiled trace stores an argument in two pieces, the pointer and then its tag over the upper half. A load of both,
/// which `lua_touserdata` does, waits until they are in the cache; loads of the halves do not.
///
/// # Safety
/// `l` runs a C function, in a build where this was proven.
#[inline(always)]
pub unsafe fn first_userdata(l: *mut lua_State, size: usize) -> *mut c_void {
    // SAFETY: the caller's contract: what lies below the top is a value; the header of a userdata is readable.
    unsafe {
        let base = *l.cast::<u8>().add(OFFSET_BASE).cast::<*const u32>();
        // The compiler would make one load of two.
        let (low, high) = (std::ptr::read_volatile(base), std::ptr::read_volatile(base.add(1)));
        if high >> 15 != USERDATA_TAG {
            return std::ptr::null_mut();
        }
        let address = (u64::from(high) & 0x7fff) << 32 | u64::from(low);
        let payload = std::ptr::with_exposed_provenance_mut::<u8>(address as usize + USERDATA_HEADER);
        let length = *payload.sub(USERDATA_HEADER - OFFSET_LENGTH).cast::<u32>();
        if length as usize == size { payload.cast() } else { std::ptr::null_mut() }
    }
}

/// What was proven of the running LuaJIT.
#[derive(Clone, Copy)]
pub struct Proven {
    /// The global state's pointer is where it is expected.
    pub global: bool,
    /// `cframe` is where it is expected.
    pub cframe: bool,
    /// [`first_userdata`] finds it.
    pub userdata: bool,
    /// A thread can go on in another one's C frame: transfer.rs.
    pub transfer: bool,
    /// The hook mask, or null.
    pub hookmask: *mut u8,
}

/// Set in the environment to anything, it makes the library behave as on a LuaJIT of which nothing could be proven.
const PRETEND: &str = "CORD_PROVE_NOTHING";
/// As a value of that, all but the transfer is proven.
const PRETEND_TRANSFER: &str = "transfer";

/// Looks for what needs no JIT. Leaves the state as it was.
///
/// # Safety
/// `l` is a live thread with a few free slots, not inside a hook. Memory errors are raised.
pub unsafe fn prove(l: *mut lua_State) -> Proven {
    let nothing =
        Proven { global: false, cframe: false, userdata: false, transfer: false, hookmask: std::ptr::null_mut() };
    // SAFETY: reads of `lua_State` happen only on GC64 builds, whose struct is longer than both offsets.
    unsafe {
        let pretend = std::env::var_os(PRETEND).unwrap_or_default();
        if !is_gc64(l) || !pretend.is_empty() && pretend != PRETEND_TRANSFER {
            return nothing;
        }
        let other = lua_newthread(l);
        let same = global(l) == global(other) && !global(l).is_null();
        lua_settop(l, -2);
        if !same {
            return nothing;
        }
        let cframe = prove_cframe(l);
        let transfer = cframe && pretend.is_empty() && super::transfer::prove(l);
        Proven { global: true, cframe, userdata: prove_userdata(l), transfer, hookmask: find_hookmask(l) }
    }
}

unsafe fn is_gc64(l: *mut lua_State) -> bool {
    // SAFETY: balanced; errors are caught.
    unsafe {
        let top = lua_gettop(l);
        let ok = luaL_loadstring(l, c"return require('ffi').abi('gc64')".as_ptr()) == 0
            && lua_pcall(l, 0, 1, 0) == 0
            && lua_toboolean(l, -1) != 0;
        lua_settop(l, top);
        ok
    }
}

unsafe extern "C-unwind" fn l_check_yieldable(l: *mut lua_State) -> c_int {
    // SAFETY: runs inside the throw-away thread of `prove_cframe`.
    unsafe { lua_pushboolean(l, c_int::from(is_yieldable(l))) };
    1
}

/// A marked throw-away thread must be refused with "cannot resume running coroutine", and run once it is cleared; the
/// yieldable bit must be set in a resumed thread and clear in the one that calls us.
unsafe fn prove_cframe(l: *mut lua_State) -> bool {
    const CHECK: &std::ffi::CStr = c"
        local thread, mark, clear = ...
        local resume = coroutine.resume
        mark()
        local ok, message = resume(thread)
        clear()
        if ok or message ~= 'cannot resume running coroutine' then return false end
        local ran, yieldable = resume(thread)
        return ran and yieldable == true
    ";
    unsafe extern "C-unwind" fn set(l: *mut lua_State) -> c_int {
        // SAFETY: the upvalues are the throw-away thread and the value to store.
        unsafe {
            let thread = lua_tothread(l, lua_upvalueindex(1));
            *cframe(thread) = lua_tointeger_(l, lua_upvalueindex(2)).unsigned_abs() as usize;
        }
        0
    }
    // SAFETY: the thread is fresh, so its word must be null; otherwise nothing is written.
    unsafe {
        let top = lua_gettop(l);
        luaL_checkstack_(l, 12, std::ptr::null());
        if luaL_loadstring(l, CHECK.as_ptr()) != 0 {
            lua_settop(l, top);
            return false;
        }
        let thread = lua_newthread(l);
        if *cframe(thread) != 0 {
            lua_settop(l, top);
            return false;
        }
        lua_pushcclosure(thread, l_check_yieldable, 0);
        for value in [MARK, 0] {
            lua_pushvalue(l, top + 2);
            lua_pushinteger(l, value as lua_Integer);
            lua_pushcclosure(l, set, 2);
        }
        let proven = lua_pcall(l, 3, 1, 0) == 0 && lua_toboolean(l, -1) != 0;
        lua_settop(l, top);
        proven
    }
}

/// Userdata of several sizes are found where `lua_touserdata` finds them, with their length; of other values, nothing.
unsafe fn prove_userdata(l: *mut lua_State) -> bool {
    unsafe extern "C-unwind" fn compare(l: *mut lua_State) -> c_int {
        // SAFETY: the first argument's tag is looked at, then the header of what `lua_type` too says is a userdata.
        unsafe {
            let base = *l.cast::<u8>().add(OFFSET_BASE).cast::<*const u32>();
            let tagged = *base.add(1) >> 15 == USERDATA_TAG;
            let fits = if lua_type(l, 1) == LUA_TUSERDATA {
                let length = lua_objlen(l, 1);
                tagged && first_userdata(l, length) == lua_touserdata(l, 1) && first_userdata(l, length + 8).is_null()
            } else {
                !tagged
            };
            lua_pushboolean(l, c_int::from(fits));
        }
        1
    }
    // SAFETY: balanced; errors are caught.
    unsafe {
        let top = lua_gettop(l);
        let mut proven = true;
        for size in 0..12 {
            lua_pushcclosure(l, compare, 0);
            match size {
                0 => lua_pushnil(l),
                1 => lua_pushnumber(l, -1.5),
                2 => lua_createtable(l, 0, 0),
                3 => lua_pushlightuserdata(l, l.cast()),
                4 => lua_pushboolean(l, 1),
                _ => {
                    lua_newuserdata(l, size * size * size - 124);
                }
            }
            proven &= lua_pcall(l, 1, 1, 0) == 0 && lua_toboolean(l, -1) != 0;
            lua_settop(l, top);
        }
        proven
    }
}

unsafe extern "C-unwind" fn nothing_hook(_l: *mut lua_State, _ar: *mut lua_Debug) {}

/// The one byte that mirrors the masks given to `lua_sethook` in its low bits.
unsafe fn find_hookmask(l: *mut lua_State) -> *mut u8 {
    const MASKS: [c_int; 6] = [0, LUA_MASKCALL, LUA_MASKRET, LUA_MASKLINE, LUA_MASKCOUNT, 0];
    // SAFETY: the global state is longer than the window in every GC64 build (its string table alone follows); it is
    // only read. The user's hook is put back.
    unsafe {
        let (hook, mask, count) = (lua_gethook(l), lua_gethookmask(l), lua_gethookcount(l));
        let base = global(l);
        let mut candidate = [true; WINDOW];
        for wanted in MASKS {
            lua_sethook(l, if wanted == 0 { None } else { Some(nothing_hook) }, wanted, 0x7fff_ffff);
            for (offset, still) in candidate.iter_mut().enumerate() {
                let byte = std::ptr::read_volatile(base.add(offset));
                *still &= c_int::from(byte & !(HOOK_ACTIVE | HOOK_VMEVENT | HOOK_GC)) == wanted;
            }
        }
        lua_sethook(l, hook, mask, count);
        let mut found = candidate.iter().enumerate().filter(|(_, still)| **still);
        match (found.next(), found.next()) {
            (Some((offset, _)), None) => base.add(offset),
            _ => std::ptr::null_mut(),
        }
    }
}

/// The trace-abort modes: what runs at each switch. See docs/jit.md.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mode {
    /// Nothing.
    Off = 0,
    /// The recorder's active bit is cleared in place.
    Inline = 1,
    /// A trigger of each fiber made from Lua calls `luaJIT_setmode`.
    Trigger = 2,
    /// A function pointer in the cord, tested and called, calls `luaJIT_setmode`.
    Callback = 3,
    /// A direct call of a function that calls `luaJIT_setmode`.
    Extern = 4,
    /// As `Trigger`, with an empty function.
    TriggerNoop = 5,
    /// As `Callback`, with an empty function.
    CallbackNoop = 6,
    /// As `Extern`, with an empty function.
    ExternNoop = 7,
}

/// Names of the modes, as `fiber.trace_abort` takes them.
pub const MODES: [(&str, Mode); 8] = [
    ("off", Mode::Off),
    ("inline", Mode::Inline),
    ("trigger", Mode::Trigger),
    ("callback", Mode::Callback),
    ("extern", Mode::Extern),
    ("trigger-noop", Mode::TriggerNoop),
    ("callback-noop", Mode::CallbackNoop),
    ("extern-noop", Mode::ExternNoop),
];
