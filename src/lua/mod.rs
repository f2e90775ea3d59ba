//! The binding: what a script sees, and the one place that turns Lua values into calls of the layers below.

pub mod body;
pub mod calibrate;
pub mod capi;
pub mod channel;
pub mod coio;
pub mod cond;
pub mod datetime;
pub mod decimal;
pub mod error;
pub mod fiber;
pub mod inspect;
pub mod interrupt;
pub mod jit;
pub mod msgpack;
pub mod sockaddr;
pub mod socket;
pub mod sockopt;
pub mod state;
pub mod tls;
pub mod trace;
pub mod transfer;
pub mod uuid;

use mlua::ffi::lua_State;
use state::Module;

/// Every Lua module the library serves, by name.
///
/// `native` pushes a table of raw functions; `source` is the Lua chunk that wraps them. It is called with that table
/// and a `load(name)` function for the other modules of this list, and returns the module.
pub static MODULES: &[Module] = &[
    Module { name: "cord", native: Some(native_cord), source: include_str!("cord.lua") },
    Module { name: "cord.clock", native: None, source: include_str!("clock.lua") },
    Module { name: "cord.json", native: None, source: include_str!("json.lua") },
    Module { name: "cord.log", native: None, source: include_str!("log.lua") },
    Module { name: "cord.varbinary", native: None, source: include_str!("varbinary.lua") },
    Module { name: "cord.calendar", native: None, source: include_str!("calendar.lua") },
    Module { name: "cord.datetime", native: Some(datetime::native), source: include_str!("datetime.lua") },
    Module { name: "cord.timezones", native: None, source: include_str!("timezones.lua") },
    Module { name: "cord.decimal", native: Some(decimal::native), source: include_str!("decimal.lua") },
    Module { name: "cord.uri", native: None, source: include_str!("uri.lua") },
    Module { name: "cord.errcode", native: None, source: include_str!("errcode.lua") },
    Module { name: "cord.fiber", native: Some(fiber::native), source: include_str!("fiber.lua") },
    Module { name: "cord.buffer", native: None, source: include_str!("buffer.lua") },
    Module { name: "cord.msgpack", native: Some(msgpack::native), source: include_str!("msgpack.lua") },
    Module { name: "cord.channel", native: Some(channel::native), source: include_str!("channel.lua") },
    Module { name: "cord.inspect", native: Some(inspect::native), source: include_str!("inspect.lua") },
    Module { name: "cord.cond", native: Some(cond::native), source: include_str!("cond.lua") },
    Module { name: "cord.trace", native: Some(trace::native), source: include_str!("trace.lua") },
    Module { name: "cord.ffi", native: Some(capi::native), source: include_str!("ffi.lua") },
    Module { name: "cord.socket", native: Some(socket::native), source: include_str!("socket.lua") },
    Module { name: "cord.luasocket", native: None, source: include_str!("luasocket.lua") },
    Module { name: "cord.errno", native: None, source: include_str!("errno.lua") },
    Module { name: "cord.console", native: None, source: include_str!("console.lua") },
    Module { name: "cord.error", native: Some(error::native), source: include_str!("error.lua") },
    Module {
        name: "cord.server",
        native: Some(crate::server::binding::native),
        source: include_str!("../server/server.lua"),
    },
    Module {
        name: "cord.netbox",
        native: Some(crate::netbox::lua::native),
        source: include_str!("../netbox/netbox.lua"),
    },
    Module { name: "cord.pool", native: None, source: include_str!("../netbox/pool.lua") },
    Module { name: "cord.netbox.options", native: None, source: include_str!("../netbox/options.lua") },
    Module { name: "cord.netbox.sql", native: None, source: include_str!("../netbox/sql.lua") },
    Module { name: "cord.netbox.stream", native: None, source: include_str!("../netbox/stream.lua") },
    Module { name: "cord.netbox.watch", native: None, source: include_str!("../netbox/watch.lua") },
    Module { name: "cord.netbox.worker", native: None, source: include_str!("../netbox/worker.lua") },
    Module { name: "cord.netbox.space", native: None, source: include_str!("../netbox/space.lua") },
    Module {
        name: "cord.netbox.tuple",
        native: Some(crate::netbox::tuple::native),
        source: include_str!("../netbox/tuple.lua"),
    },
    Module { name: "cord.server.space", native: None, source: include_str!("../server/space.lua") },
    Module { name: "cord.tls", native: Some(tls::native), source: include_str!("tls.lua") },
    Module { name: "cord.uuid", native: Some(uuid::native), source: include_str!("uuid.lua") },
];

/// # Safety
/// Called by [`state`] with a live state and free stack slots; pushes one table.
unsafe fn native_cord(l: *mut lua_State) {
    // SAFETY: the caller's contract.
    unsafe {
        mlua::ffi::lua_createtable(l, 0, 2);
        state::push_str(l, env!("CARGO_PKG_VERSION"));
        mlua::ffi::lua_setfield(l, -2, c"version".as_ptr());
        // The names of all modules, as a set.
        mlua::ffi::lua_createtable(l, 0, MODULES.len() as std::ffi::c_int);
        for module in MODULES {
            state::push_str(l, module.name);
            mlua::ffi::lua_pushboolean(l, 1);
            mlua::ffi::lua_rawset(l, -3);
        }
        mlua::ffi::lua_setfield(l, -2, c"modules".as_ptr());
    }
}
