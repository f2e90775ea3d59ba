//! UUIDs: the random generator and the reader of texts behind `cord.uuid`; everything else is in the Lua chunk.

use mlua::ffi::{lua_State, lua_createtable, lua_pushnumber, lua_setfield};
use std::panic::catch_unwind;
use uuid::Uuid;

/// Pushes `{ generate = <address>, parse = <address> }`.
///
/// # Safety
/// `l` is a live state with free stack slots.
pub unsafe fn native(l: *mut lua_State) {
    // SAFETY: the caller's contract. Addresses are below 2^53, so a Lua number holds them.
    unsafe {
        lua_createtable(l, 0, 2);
        lua_pushnumber(l, (generate as *const ()).addr() as f64);
        lua_setfield(l, -2, c"generate".as_ptr());
        lua_pushnumber(l, (parse as *const ()).addr() as f64);
        lua_setfield(l, -2, c"parse".as_ptr());
    }
}

/// Fills in a random UUID (version 4), in network byte order. False when the system has no random bytes to give.
extern "C" fn generate(bytes: &mut [u8; 16]) -> bool {
    catch_unwind(Uuid::new_v4).map(|uuid| *bytes = uuid.into_bytes()).is_ok()
}

/// Reads the 36 characters of a UUID into bytes in network order. False when they are none.
///
/// # Safety
/// `text` has 36 readable bytes.
unsafe extern "C" fn parse(bytes: &mut [u8; 16], text: *const u8) -> bool {
    // SAFETY: the caller's contract.
    let text = unsafe { std::slice::from_raw_parts(text, 36) };
    Uuid::try_parse_ascii(text).map(|uuid| *bytes = uuid.into_bytes()).is_ok()
}
