//! `cord`: Tarantool-style fibers and a net.box client for stock LuaJIT, as one native Lua module.
//!
//! ```text
//! lib.rs --> netbox, server --> lua --> fiber --> sys      arrows are `use`; they only point right or down
//!                  '----------> iproto                    fiber and iproto know no Lua and not each other
//!     netbox --> server/engine (pure Rust): its operations on tuples
//! ```
//!
//! This file holds the `luaopen_cord*` functions and nothing else. Each asks [`lua::state::open`] for the module of its
//! name, so that one library file serves them all through Lua's all-in-one loader.

pub mod fiber;
pub mod iproto;
#[cfg(feature = "module")]
#[allow(unsafe_code)]
pub mod lua;
#[cfg(feature = "module")]
#[allow(unsafe_code)]
pub mod netbox;
pub mod server;
pub mod sys;
pub mod tls;

#[cfg(feature = "module")]
macro_rules! luaopen {
    ($($function:ident => $module:literal),* $(,)?) => {$(
        #[doc = concat!("Opens the Lua module `", $module, "`.")]
        ///
        /// # Safety
        /// Called by a Lua host with its live state.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $function(l: *mut mlua::ffi::lua_State) -> std::ffi::c_int {
            // SAFETY: the host passes its live state, as for every luaopen function.
            unsafe { lua::state::open(l, $module) }
        }
    )*};
}

#[cfg(feature = "module")]
luaopen! {
    luaopen_cord => "cord",
    luaopen_cord_clock => "cord.clock",
    luaopen_cord_console => "cord.console",
    luaopen_cord_json => "cord.json",
    luaopen_cord_log => "cord.log",
    luaopen_cord_varbinary => "cord.varbinary",
    luaopen_cord_datetime => "cord.datetime",
    luaopen_cord_decimal => "cord.decimal",
    luaopen_cord_ffi => "cord.ffi",
    luaopen_cord_fiber => "cord.fiber",
    luaopen_cord_uri => "cord.uri",
    luaopen_cord_errno => "cord.errno",
    luaopen_cord_error => "cord.error",
    luaopen_cord_buffer => "cord.buffer",
    luaopen_cord_socket => "cord.socket",
    luaopen_cord_msgpack => "cord.msgpack",
    luaopen_cord_server => "cord.server",
    luaopen_cord_pool => "cord.pool",
    luaopen_cord_netbox => "cord.netbox",
    luaopen_cord_uuid => "cord.uuid",
}
