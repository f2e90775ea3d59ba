//! Error objects for native code: `cord.error` makes them (they are FFI cdata, which the C API cannot make), this file
//! lends it the system's texts and gives native code one way to call its constructors.

use crate::lua::state;
use crate::sys::luajit::Entry;
use mlua::ffi::*;
use std::ffi::{CStr, c_int};

const FUNCTIONS: &[Entry] = &[(c"strerror", l_strerror)];

/// Pushes the native half of `cord.error`: `strerror` and the numbers of the errors it makes.
///
/// # Safety
/// A live state with free stack slots, in which the library was opened.
pub(crate) unsafe fn native(l: *mut lua_State) {
    // SAFETY: the caller's contract; the table stays on the top throughout.
    unsafe {
        lua_createtable(l, 0, 3);
        state::register(l, FUNCTIONS);
        lua_pushinteger(l, libc::ETIMEDOUT as lua_Integer);
        lua_setfield(l, -2, c"ETIMEDOUT".as_ptr());
        lua_pushinteger(l, libc::ENOMEM as lua_Integer);
        lua_setfield(l, -2, c"ENOMEM".as_ptr());
    }
}

/// `strerror(errno)`: the system's text.
unsafe extern "C-unwind" fn l_strerror(l: *mut lua_State) -> c_int {
    let mut text = [0_u8; 256];
    // SAFETY: the buffer's length is passed with it and the call NUL-terminates; Lua copies the text.
    unsafe {
        let errno = luaL_checkinteger(l, 1) as c_int;
        if libc::strerror_r(errno, text.as_mut_ptr().cast(), text.len()) == 0 {
            lua_pushstring(l, text.as_ptr().cast());
        } else {
            lua_pushstring(l, c"Unknown error".as_ptr());
        }
    }
    1
}

/// Replaces the `nargs` values on the top of the stack with the error object that `cord.error`'s function `constructor`
/// makes of them, for example `c"timed_out"` with none or `c"illegal_params"` with a text.
///
/// For cold paths: three table look-ups and a Lua call.
///
/// # Safety
/// `l` is a live thread with five free slots whose stack may grow, `cord.error` was loaded in this state (the Lua chunk
/// of every module that uses this loads it), and no value with a destructor is alive in the caller: memory errors are
/// raised in `l`.
pub unsafe fn make(l: *mut lua_State, constructor: &CStr, nargs: c_int) {
    // SAFETY: the caller's contract; the registry's table of modules exists once the library is open.
    unsafe {
        lua_getfield_(l, LUA_REGISTRYINDEX, state::MODULES_KEY);
        lua_getfield_(l, -1, c"cord.error".as_ptr());
        lua_getfield_(l, -1, constructor.as_ptr());
        lua_insert(l, -3 - nargs);
        lua_settop(l, -3);
        lua_call(l, nargs, 1);
    }
}
