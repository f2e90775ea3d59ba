//! UUIDs: the random generator behind `cord.uuid`; everything else is in the Lua chunk.

use mlua::ffi::{lua_State, lua_createtable, lua_pushnumber, lua_setfield};
use std::panic::catch_unwind;
use uuid::Uuid;

/// Pushes `{ generate = <address of the function> }`.
///
/// # Safety
/// `l` is a live state with free stack slots.
pub unsafe fn native(l: *mut lua_State) {
    // SAFETY: the caller's contract. Addresses are below 2^53, so a Lua number holds them.
    unsafe {
        lua_createtable(l, 0, 1);
        lua_pushnumber(l, (generate as *const ()).addr() as f64);
        lua_setfield(l, -2, c"generate".as_ptr());
    }
}

/// Fills in a random UUID (version 4), in network byte order. False when the system has no random bytes to give.
extern "C" fn generate(bytes: &mut [u8; 16]) -> bool {
    catch_unwind(Uuid::new_v4).map(|uuid| *bytes = uuid.into_bytes()).is_ok()
}
