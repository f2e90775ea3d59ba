//! Operations on the client's own tuples: what the space engine does with those of its spaces.

use crate::iproto::mp::Reader;
use crate::lua::state;
use crate::server::engine;
use crate::sys::luajit::Entry;
use mlua::ffi::*;
use std::ffi::c_int;

const FUNCTIONS: &[Entry] = &[(c"change", l_change)];

/// Pushes the native half of `cord.netbox.tuple`.
///
/// # Safety
/// A live state with free slots, in which the library was opened.
pub(crate) unsafe fn native(l: *mut lua_State) {
    // SAFETY: the caller's contract.
    unsafe {
        lua_createtable(l, 0, FUNCTIONS.len() as c_int);
        state::register(l, FUNCTIONS);
    }
}

/// The names in a packed list of fields; a field without one has the empty name.
fn names(format: &[u8]) -> Vec<&str> {
    let mut reader = Reader::new(format);
    let mut list = Vec::new();
    for _ in 0..reader.read_array().unwrap_or(0) {
        let mut name = "";
        for _ in 0..reader.read_map().unwrap_or(0) {
            let is_name = matches!(reader.read_str(), Ok(b"name"));
            let Ok(value) = reader.raw() else { return list };
            if is_name && let Ok(text) = Reader::new(value).read_str() {
                name = std::str::from_utf8(text).unwrap_or("");
            }
        }
        list.push(name);
    }
    list
}

unsafe fn bytes_at<'a>(l: *mut lua_State, idx: c_int) -> &'a [u8] {
    // SAFETY: the argument stays on the stack of the function that was called with it.
    unsafe {
        let mut len = 0;
        let at = luaL_checklstring(l, idx, &raw mut len);
        std::slice::from_raw_parts(at.cast(), len)
    }
}

/// `change(tuple, operations, format, upsert)`, all packed: true and the tuple; or an error's code, text and class.
unsafe extern "C-unwind" fn l_change(l: *mut lua_State) -> c_int {
    // SAFETY: called by tuple.lua. The bytes are nobody else's, since a finalizer may run while their string is made; what
    // raises then leaks them, which is all it does.
    unsafe {
        let (tuple, operations, format) = (bytes_at(l, 1), bytes_at(l, 2), bytes_at(l, 3));
        let (code, class, bytes) = match engine::change(tuple, operations, names(format), lua_toboolean(l, 4) != 0) {
            Ok(changed) => (0, "", changed),
            Err(error) => (error.code, error.kind, error.message.into_bytes()),
        };
        let bytes = Box::into_raw(Box::new(bytes));
        if class.is_empty() {
            lua_pushboolean(l, 1);
        } else {
            lua_pushnumber(l, f64::from(code));
        }
        lua_pushlstring_(l, (&*bytes).as_ptr().cast(), (&*bytes).len());
        drop(Box::from_raw(bytes));
        lua_pushlstring_(l, class.as_ptr().cast(), class.len());
    }
    3
}
