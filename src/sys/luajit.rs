//! What LuaJIT has and `mlua::ffi` does not declare.
//!
//! Everything here is looked up by name when the library is first opened, never linked: a host without these symbols
//! (PUC Lua 5.1) must reach our own message before the dynamic loader's.

use mlua::ffi::{lua_CFunction, lua_State};
use once_cell::sync::OnceCell;
use std::ffi::{CStr, c_char, c_int, c_void};

/// Lua type tag of FFI cdata, which the public headers leave out.
pub const LUA_TCDATA: c_int = 10;

type SetMode = unsafe extern "C-unwind" fn(*mut lua_State, c_int, c_int) -> c_int;
type IsYieldable = unsafe extern "C-unwind" fn(*mut lua_State) -> c_int;
type Traceback = unsafe extern "C-unwind" fn(*mut lua_State, *mut lua_State, *const c_char, c_int);

/// The functions that only LuaJIT 2.1 exports.
pub struct LuaJit {
    setmode: SetMode,
    isyieldable: IsYieldable,
    traceback: Traceback,
}

static LUAJIT: OnceCell<LuaJit> = OnceCell::new();

fn lookup(name: &CStr) -> *mut c_void {
    // SAFETY: `name` is NUL-terminated; dlsym has no other requirement.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Looks the functions up once.
///
/// # Errors
/// The name of the first symbol the host does not export.
pub fn load() -> Result<&'static LuaJit, &'static CStr> {
    LUAJIT.get_or_try_init(|| {
        let find = |name: &'static CStr| {
            let symbol = lookup(name);
            if symbol.is_null() { Err(name) } else { Ok(symbol) }
        };
        let (setmode, isyieldable, traceback) =
            (find(c"luaJIT_setmode")?, find(c"lua_isyieldable")?, find(c"luaL_traceback")?);
        // SAFETY: the host's exported functions have exactly these C signatures in every LuaJIT 2.1 (luajit.h, lua.h).
        unsafe {
            Ok(LuaJit {
                setmode: std::mem::transmute::<*mut c_void, SetMode>(setmode),
                isyieldable: std::mem::transmute::<*mut c_void, IsYieldable>(isyieldable),
                traceback: std::mem::transmute::<*mut c_void, Traceback>(traceback),
            })
        }
    })
}

impl LuaJit {
    /// `luaJIT_setmode(L, 0, -1)`: aborts a live trace recording and changes nothing else.
    ///
    /// # Safety
    /// `l` is a live Lua thread. Inside a finalizer LuaJIT raises a Lua error, so no value with a destructor may be
    /// alive in the caller.
    #[inline(always)]
    pub unsafe fn abort_recording(&self, l: *mut lua_State) {
        // SAFETY: forwarded to the caller.
        unsafe { (self.setmode)(l, 0, -1) };
    }

    /// Switches the JIT compiler on or off, as `jit.on()` and `jit.off()` do. Aborts a live recording.
    ///
    /// # Safety
    /// As for [`abort_recording`](Self::abort_recording).
    pub unsafe fn set_engine(&self, l: *mut lua_State, on: bool) {
        // SAFETY: forwarded to the caller. Mode 0 is the engine's, 0x100 is LUAJIT_MODE_ON (luajit.h).
        unsafe { (self.setmode)(l, 0, if on { 0x100 } else { 0 }) };
    }

    /// Whether `lua_yield` from the running C function of `l` would be legal.
    ///
    /// # Safety
    /// `l` is a live Lua thread.
    #[inline(always)]
    pub unsafe fn is_yieldable(&self, l: *mut lua_State) -> bool {
        // SAFETY: forwarded to the caller.
        unsafe { (self.isyieldable)(l) != 0 }
    }

    /// Pushes onto `l` the message `msg` and a traceback of `of`, from `level` on.
    ///
    /// # Safety
    /// Both are live threads of one state; `l` has a free slot; memory errors are raised in `l`.
    pub unsafe fn traceback(&self, l: *mut lua_State, of: *mut lua_State, msg: *const c_char, level: c_int) {
        // SAFETY: forwarded to the caller.
        unsafe { (self.traceback)(l, of, msg, level) }
    }
}

/// The text a host that is not LuaJIT 2.1 gets.
pub fn refusal(missing: &CStr) -> String {
    format!(
        "cord needs LuaJIT 2.1 (this Lua has no {}): run the script with luajit, and build the rock with \
         luarocks --lua-version 5.1",
        missing.to_string_lossy()
    )
}

/// A `lua_CFunction` with its name, as a registration table lists it.
pub type Entry = (&'static CStr, lua_CFunction);
