//! The native half of `cord.tls`: parameters in, userdata with a client's or a server's setup out.

use super::state;
use crate::sys::luajit::Entry;
use crate::tls::{self, ClientSetup, Parameters, ServerConfig};
use mlua::ffi::*;
use std::ffi::c_int;
use std::sync::Arc;

const FUNCTIONS: &[Entry] = &[(c"client", l_client), (c"server", l_server)];

enum Setup {
    Client(ClientSetup),
    Server(Arc<ServerConfig>),
}

/// A userdata that owns a setup.
#[repr(C)]
struct Handle {
    kind: *const u8,
    setup: Option<Box<Setup>>,
}

/// Its address marks our userdata.
static KIND: u8 = 0;

/// Pushes the native half of `cord.tls`.
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

/// The handle at `idx`, or null.
unsafe fn handle_at(l: *mut lua_State, idx: c_int) -> *mut Handle {
    // SAFETY: the first word of any userdata may be read: the smallest block of memory has it.
    unsafe {
        if lua_type(l, idx) != LUA_TUSERDATA {
            return std::ptr::null_mut();
        }
        let handle: *mut Handle = lua_touserdata(l, idx).cast();
        if (*handle).kind == &raw const KIND { handle } else { std::ptr::null_mut() }
    }
}

/// The client's setup at `idx`: valid while the userdata is.
///
/// # Safety
/// `l` runs one of our functions.
pub(crate) unsafe fn client_at(l: *mut lua_State, idx: c_int) -> Option<*const ClientSetup> {
    // SAFETY: the caller's contract.
    unsafe {
        let handle = handle_at(l, idx);
        if handle.is_null() {
            return None;
        }
        match (&(*handle).setup).as_deref() {
            Some(Setup::Client(setup)) => Some(&raw const *setup),
            _ => None,
        }
    }
}

/// The server's setup at `idx`.
///
/// # Safety
/// `l` runs one of our functions.
pub(crate) unsafe fn server_at(l: *mut lua_State, idx: c_int) -> Option<Arc<ServerConfig>> {
    // SAFETY: the caller's contract.
    unsafe {
        let handle = handle_at(l, idx);
        if handle.is_null() {
            return None;
        }
        match (&(*handle).setup).as_deref() {
            Some(Setup::Server(config)) => Some(config.clone()),
            _ => None,
        }
    }
}

unsafe fn bytes_at(l: *mut lua_State, idx: c_int) -> Option<Vec<u8>> {
    // SAFETY: the callers pass strings or nil; numbers were made strings.
    unsafe {
        let mut len = 0;
        let at = lua_tolstring(l, idx, &raw mut len);
        if at.is_null() {
            return None;
        }
        Some(std::slice::from_raw_parts(at.cast::<u8>(), len).to_vec())
    }
}

unsafe fn text_at(l: *mut lua_State, idx: c_int) -> Option<String> {
    // SAFETY: as for `bytes_at`.
    let bytes = unsafe { bytes_at(l, idx) }?;
    Some(String::from_utf8(bytes).unwrap_or_else(|broken| String::from_utf8_lossy(broken.as_bytes()).into_owned()))
}

/// Arguments 1 to 7, in the order of tls.lua.
unsafe fn parameters(l: *mut lua_State) -> Parameters {
    // SAFETY: as for `text_at`.
    unsafe {
        Parameters {
            ca_file: text_at(l, 1),
            cert_file: text_at(l, 2),
            key_file: text_at(l, 3),
            password: bytes_at(l, 4),
            password_file: text_at(l, 5),
            ciphers: text_at(l, 6),
            server_name: text_at(l, 7),
        }
    }
}

/// The setup's userdata, or false and what is wrong.
unsafe fn make(l: *mut lua_State, build: fn(&Parameters) -> Result<Setup, String>) -> c_int {
    // SAFETY: called by tls.lua. The userdata and its metatable exist before the setup, so nothing can be lost; a memory
    // error while the problem is pushed would leak it, which is all it does.
    unsafe {
        lua_settop(l, 7);
        let handle: *mut Handle = lua_newuserdata(l, size_of::<Handle>()).cast();
        handle.write(Handle { kind: &raw const KIND, setup: None });
        lua_createtable(l, 0, 1);
        state::register(l, &[(c"__gc", l_gc)]);
        lua_setmetatable(l, -2);
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| build(&parameters(l)))) {
            Ok(Ok(setup)) => {
                (*handle).setup = Some(Box::new(setup));
                1
            }
            Ok(Err(problem)) => {
                lua_pushboolean(l, 0);
                state::push_str(l, &problem);
                2
            }
            Err(_) => {
                lua_pushboolean(l, 0);
                state::push_str(l, "TLS is not available: an internal error");
                2
            }
        }
    }
}

/// `client(ca, cert, key, password, password_file, ciphers, server_name)`: a setup, or false and what is wrong.
unsafe extern "C-unwind" fn l_client(l: *mut lua_State) -> c_int {
    // SAFETY: called by tls.lua.
    unsafe { make(l, |parameters| tls::client(parameters).map(Setup::Client)) }
}

/// `server(...)`: as `client`.
unsafe extern "C-unwind" fn l_server(l: *mut lua_State) -> c_int {
    // SAFETY: called by tls.lua.
    unsafe { make(l, |parameters| tls::server(parameters).map(Setup::Server)) }
}

unsafe extern "C-unwind" fn l_gc(l: *mut lua_State) -> c_int {
    // SAFETY: the finalizer of a handle, called once; what uses the setup has counted references of its own.
    unsafe {
        let handle = handle_at(l, 1);
        if !handle.is_null() {
            (*handle).setup = None;
        }
    }
    0
}
