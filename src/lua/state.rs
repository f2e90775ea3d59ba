//! One Lua state's share of the library: found through the registry, reachable from each of our C functions through
//! its first upvalue, and the loader of the modules.

use crate::lua::MODULES;
use crate::sys::luajit::{self, Entry, LuaJit};
use mlua::ffi::*;
use std::ffi::{c_char, c_int};

/// One entry of [`MODULES`].
pub struct Module {
    /// The name `require` uses.
    pub name: &'static str,
    /// Pushes a table of raw functions (nothing is passed when there is none).
    pub native: Option<unsafe fn(*mut lua_State)>,
    /// The Lua chunk, run once a state.
    pub source: &'static str,
}

/// What one Lua state owns. It lives in a full userdata, so its address is stable and lives as long as the state.
#[repr(C)]
pub struct State {
    /// Address of [`LIBRARY`]: tells a second copy of the library from this one. Must stay the first field.
    library: *const u8,
    /// LuaJIT's own functions.
    pub luajit: &'static LuaJit,
    /// A Lua thread of our own: results are made here, never on a suspended fiber's stack.
    pub scratch: *mut lua_State,
}

/// Its address identifies this copy of the library.
static LIBRARY: u8 = 0;
const STATE_KEY: *const c_char = c"cord.state".as_ptr();
/// Registry field: the table of loaded modules by name.
pub(crate) const MODULES_KEY: *const c_char = c"cord.modules".as_ptr();

/// Pushes a Rust string.
///
/// # Safety
/// `l` is a live thread with a free slot; a memory error is raised in it.
pub unsafe fn push_str(l: *mut lua_State, s: &str) {
    // SAFETY: pointer and length are those of a live str.
    unsafe { lua_pushlstring_(l, s.as_ptr().cast(), s.len()) }
}

/// The state behind the running C function, which [`register`] made.
///
/// # Safety
/// The running function of `l` was registered through [`register`].
#[inline(always)]
pub unsafe fn current(l: *mut lua_State) -> *mut State {
    // SAFETY: `register` put the userdata into the first upvalue of each function.
    unsafe { lua_touserdata(l, lua_upvalueindex(1)).cast() }
}

/// Adds `functions` to the table on the top of the stack, each with the state as its first upvalue.
///
/// # Safety
/// `l` is live, a table is on its top, and the library was opened in this Lua state.
pub unsafe fn register(l: *mut lua_State, functions: &[Entry]) {
    // SAFETY: the registry holds the userdata since `open`; each push is matched by a setfield.
    unsafe {
        for (name, function) in functions {
            lua_getfield_(l, LUA_REGISTRYINDEX, STATE_KEY);
            lua_pushcclosure(l, *function, 1);
            lua_setfield(l, -2, name.as_ptr());
        }
    }
}

/// Opens the module `name` and leaves it on the stack: the body of every `luaopen_cord*`.
///
/// # Safety
/// `l` is the live state of a host that calls a luaopen function. Raises Lua errors.
pub unsafe fn open(l: *mut lua_State, name: &'static str) -> c_int {
    let luajit = match luajit::load() {
        Ok(luajit) => luajit,
        // SAFETY: as for `open`; the message is moved to Lua before the raise.
        Err(missing) => unsafe { raise(l, luajit::refusal(missing)) },
    };
    // SAFETY: the caller's contract.
    unsafe {
        ensure(l, luajit);
        load_module(l, name, false);
    }
    1
}

/// Raises `message` as a Lua error with the position of the caller of the running function.
///
/// # Safety
/// `l` is live; no other value with a destructor is alive in the caller's frame.
pub unsafe fn raise(l: *mut lua_State, message: String) -> ! {
    // SAFETY: the string is copied into Lua and dropped before the jump.
    unsafe {
        luaL_where(l, 1);
        push_str(l, &message);
        drop(message);
        lua_concat(l, 2);
        lua_error(l)
    }
}

/// Makes the state's record if this Lua state has none yet.
unsafe fn ensure(l: *mut lua_State, luajit: &'static LuaJit) {
    // SAFETY: registry accesses on a live state; the userdata is anchored before it is used.
    unsafe {
        lua_getfield_(l, LUA_REGISTRYINDEX, STATE_KEY);
        let existing: *mut State = lua_touserdata(l, -1).cast();
        lua_settop(l, -2);
        if !existing.is_null() {
            if (*existing).library != &raw const LIBRARY {
                raise(
                    l,
                    "cord: a second copy of the library is loaded under another name: each copy would run a scheduler \
                     of its own, so keep one cord.so in package.cpath and require it by one name"
                        .into(),
                );
            }
            return;
        }
        let state: *mut State = lua_newuserdata(l, size_of::<State>()).cast();
        let scratch = lua_newthread(l);
        state.write(State { library: &raw const LIBRARY, luajit, scratch });
        // The thread is the userdata's environment's only entry: both live as long as the registry.
        lua_createtable(l, 1, 0);
        lua_insert(l, -2);
        lua_rawseti_(l, -2, 1);
        lua_setfenv(l, -2);
        lua_setfield(l, LUA_REGISTRYINDEX, STATE_KEY);
        lua_createtable(l, 0, MODULES.len() as c_int);
        lua_setfield(l, LUA_REGISTRYINDEX, MODULES_KEY);
    }
}

/// Pushes module `name`, running its chunk the first time. With `optional`, an unknown name gives nil.
unsafe fn load_module(l: *mut lua_State, name: &str, optional: bool) {
    // SAFETY: `ensure` ran, so the modules table is there; stack use is bounded and balanced.
    unsafe {
        luaL_checkstack_(l, 8, c"loading cord".as_ptr());
        lua_getfield_(l, LUA_REGISTRYINDEX, MODULES_KEY);
        push_str(l, name);
        lua_rawget_(l, -2);
        if lua_type(l, -1) != LUA_TNIL {
            lua_remove(l, -2);
            return;
        }
        lua_settop(l, -2);
        let Some(module) = MODULES.iter().find(|m| m.name == name) else {
            lua_settop(l, -2);
            if optional {
                lua_pushnil(l);
                return;
            }
            raise(l, format!("cord: no module '{name}' in this library"));
        };
        let source = module.source.as_bytes();
        if luaL_loadbuffer(l, source.as_ptr().cast(), source.len(), c"=[cord]".as_ptr()) != 0 {
            lua_error(l);
        }
        match module.native {
            Some(native) => native(l),
            None => lua_pushnil(l),
        }
        lua_getfield_(l, LUA_REGISTRYINDEX, STATE_KEY);
        lua_pushcclosure(l, l_load, 1);
        lua_call(l, 2, 1);
        // modules[name] = module
        push_str(l, name);
        lua_pushvalue(l, -2);
        lua_rawset(l, -4);
        lua_remove(l, -2);
    }
}

/// `load(name[, optional])`: another module of the library, for its Lua chunks.
unsafe extern "C-unwind" fn l_load(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua; the argument string stays on the stack while its bytes are borrowed.
    unsafe {
        let mut len = 0;
        let ptr = luaL_checklstring(l, 1, &mut len);
        let bytes = std::slice::from_raw_parts(ptr.cast::<u8>(), len);
        match std::str::from_utf8(bytes) {
            Ok(name) => load_module(l, name, lua_toboolean(l, 2) != 0),
            Err(_) => lua_pushnil(l),
        }
    }
    1
}
