//! The raw functions behind `cord.server`: server.lua checks the arguments, wraps and raises.

use super::data;
use super::dispatch::{self, Pushed, bytes_at};
use super::engine::Engine;
use super::hub::{Hub, Instance, Limits, Stat, VERSION};
use super::listener::Listener;
use super::session::Session;
use super::user::{GUEST, User, Users};
use crate::iproto::constants::kind;
use crate::lua::msgpack;
use crate::lua::state::{self, Keep, State};
use crate::sys::luajit::Entry;
use mlua::ffi::*;
use rustc_hash::FxHashMap;
use std::ffi::{OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The key whose value becomes true when a server stops gracefully.
const SHUTDOWN: &[u8] = b"box.shutdown";

const FUNCTIONS: &[Entry] = &[
    (c"setup", l_setup),
    (c"create", l_create),
    (c"limit", l_limit),
    (c"hooks", l_hooks),
    (c"listen_tcp", l_listen_tcp),
    (c"listen_unix", l_listen_unix),
    (c"addresses", l_addresses),
    (c"shut", l_shut),
    (c"close_sessions", l_close_sessions),
    (c"load", l_load),
    (c"destroy", l_destroy),
    (c"tick", l_tick),
    (c"session", l_session),
    (c"push", l_push),
    (c"reuse", l_reuse),
    (c"reference", l_reference),
    (c"stat", l_stat),
    (c"version", l_version),
];

/// Pushes the native half of `cord.server`.
///
/// # Safety
/// A live state with free stack slots, in which the library was opened.
pub(crate) unsafe fn native(l: *mut lua_State) {
    // SAFETY: the caller's contract.
    unsafe {
        lua_createtable(l, 0, (FUNCTIONS.len() + data::FUNCTIONS.len()) as c_int);
        state::register(l, FUNCTIONS);
        state::register(l, data::FUNCTIONS);
    }
}

/// `setup(kept)`: the table of [`dispatch::kept`].
unsafe extern "C-unwind" fn l_setup(l: *mut lua_State) -> c_int {
    // SAFETY: called once by server.lua with its table, after it loaded cord.msgpack.
    unsafe {
        let s = state::current(l);
        lua_settop(l, 1);
        let codec = msgpack::default_codec(l);
        Hub::of(s, codec);
        (*s).keep(l, Keep::Server);
    }
    0
}

/// The server that argument 1 numbers, or null.
unsafe fn instance_at(l: *mut lua_State) -> (*mut State, *mut Hub, usize, *mut Instance) {
    // SAFETY: the callers are called by server.lua, which ran `setup`.
    unsafe {
        let s = state::current(l);
        let hub = (*s).server;
        let number = lua_tointeger_(l, 1) as usize;
        let instance = if hub.is_null() { std::ptr::null_mut() } else { (*hub).instance(number) };
        (s, hub, number, instance)
    }
}

/// `create(uuid, eval, pap)`: the number of a new server.
unsafe extern "C-unwind" fn l_create(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua; the UUID's bytes are copied.
    unsafe {
        let s = state::current(l);
        let uuid = String::from_utf8_lossy(bytes_at(l, 1)).into_owned();
        let pap = lua_toboolean(l, 3) != 0;
        let mut users = Users::default();
        if pap {
            users.set(GUEST, User::mighty(Some(data::secret(pap, b""))));
        }
        let number = (&mut (*(*s).server).instances).insert(Box::new(Instance {
            limits: Limits::default(),
            stat: Stat::default(),
            engine: Engine::new(),
            uuid,
            eval: lua_toboolean(l, 2) != 0,
            users,
            pap,
            events: FxHashMap::default(),
            hooks: 0,
            sessions: 0,
            running: 0,
            references: FxHashMap::default(),
        }));
        lua_pushinteger(l, number as lua_Integer);
    }
    1
}

/// `limit(server, name, value)`: values are checked by server.lua.
unsafe extern "C-unwind" fn l_limit(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, _, _, instance) = instance_at(l);
        if instance.is_null() {
            return 0;
        }
        let limits = &raw mut (*instance).limits;
        let value = lua_tonumber(l, 3);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
        match bytes_at(l, 2) {
            b"net_msg_max" => (*limits).net_msg_max = (value as u32).max(1),
            b"readahead" => (*limits).readahead = (value as usize).clamp(128, 1 << 30),
            b"max_packet" => (*limits).packet = value as u64,
            b"max_unread" => (*limits).unread = value as usize,
            b"max_connections" => (*limits).connections = value as usize,
            b"auth_delay" => (*limits).auth_delay = value,
            b"packet_timeout" => (*limits).packet_time = (value * 1e9) as u64,
            _ => {}
        }
    }
    0
}

/// `hooks(server, bits)`: which triggers there are.
unsafe extern "C-unwind" fn l_hooks(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, _, _, instance) = instance_at(l);
        if !instance.is_null() {
            (*instance).hooks = lua_tointeger_(l, 2) as u32;
        }
    }
    0
}

/// Nothing, or a text and an errno.
unsafe fn listen(l: *mut lua_State, listener: std::io::Result<Listener>, setup: c_int) -> c_int {
    // SAFETY: as for `instance_at`. A memory error while the texts are pushed would leak them, which is all it does.
    unsafe {
        let (s, hub, number, _) = instance_at(l);
        let tls = crate::lua::tls::server_at(l, setup);
        let added = listener.and_then(|listener| Hub::add_door(hub, s, number, listener, tls));
        let Err(error) = added else { return 0 };
        let errno = error.raw_os_error().unwrap_or(0);
        state::push_str(l, &error.to_string());
        lua_pushinteger(l, errno as lua_Integer);
    }
    2
}

/// `listen_tcp(server, host, port[, setup])`
unsafe extern "C-unwind" fn l_listen_tcp(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let host = String::from_utf8_lossy(bytes_at(l, 2)).into_owned();
        let port = lua_tointeger_(l, 3) as u16;
        listen(l, Listener::tcp(&host, port), 4)
    }
}

/// `listen_unix(server, path[, setup])`
unsafe extern "C-unwind" fn l_listen_unix(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe { listen(l, Listener::unix(Path::new(OsStr::from_bytes(bytes_at(l, 2)))), 3) }
}

/// `addresses(server)`: as results.
unsafe extern "C-unwind" fn l_addresses(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, hub, number, _) = instance_at(l);
        lua_settop(l, 0);
        for address in (&*hub).addresses(number) {
            luaL_checkstack_(l, 4, c"too many addresses".as_ptr());
            state::push_str(l, &address);
        }
        lua_gettop(l)
    }
}

/// `shut(server)`: no more clients are accepted.
unsafe extern "C-unwind" fn l_shut(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (s, hub, number, _) = instance_at(l);
        Hub::shut_doors(hub, s, number);
    }
    0
}

/// `close_sessions(server)`: clients are sent what was answered, and closed.
unsafe extern "C-unwind" fn l_close_sessions(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (s, hub, number, _) = instance_at(l);
        (&mut *hub).close_sessions(number, (*s).cord.clock.monotonic.max(1));
    }
    0
}

/// `load(server)`: its clients, running requests, and clients that wait for the news of its shutdown.
unsafe extern "C-unwind" fn l_load(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, hub, number, instance) = instance_at(l);
        let (sessions, running) = if instance.is_null() { (0, 0) } else { ((*instance).sessions, (*instance).running) };
        let is_told = |session: &Session| session.instance == number && session.watches.contains_key(SHUTDOWN);
        let told = (&(*hub).sessions).iter().filter(|(_, session)| is_told(session)).count();
        lua_pushinteger(l, sessions as lua_Integer);
        lua_pushinteger(l, running as lua_Integer);
        lua_pushinteger(l, told as lua_Integer);
    }
    3
}

/// `destroy(server)`: true when it is gone; false while it has clients or requests.
unsafe extern "C-unwind" fn l_destroy(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua, which shut the doors.
    unsafe {
        let (_, hub, number, instance) = instance_at(l);
        let idle = !instance.is_null() && (*instance).sessions == 0 && (*instance).running == 0;
        if idle {
            (&mut (*hub).instances).remove(number);
        }
        lua_pushboolean(l, c_int::from(idle));
    }
    1
}

/// `tick()`: see [`Hub::tick`].
unsafe extern "C-unwind" fn l_tick(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua's fiber.
    unsafe {
        let s = state::current(l);
        Hub::tick((*s).server, s);
    }
    0
}

/// `session()`: id of the running request's session, the number of its server, its peer and user; nothing outside of
/// requests. When the client has gone peer and user are missing.
unsafe extern "C-unwind" fn l_session(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let s = state::current(l);
        let Some(request) = dispatch::running(s) else { return 0 };
        let session = (*(*s).server).session_of(&request);
        lua_pushnumber(l, request.session_id as lua_Number);
        lua_pushinteger(l, request.instance as lua_Integer);
        if session.is_null() {
            return 2;
        }
        (*session).known = true;
        let session = &*session;
        state::push_str(l, &session.peer);
        lua_pushlstring_(l, session.user.as_ptr().cast(), session.user.len());
    }
    4
}

/// `push(value)`: false outside of requests, nil when it must be tried again later.
unsafe extern "C-unwind" fn l_push(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua with one value.
    unsafe {
        lua_settop(l, 1);
        match dispatch::push(state::current(l), l) {
            Pushed::Later => lua_pushnil(l),
            pushed => lua_pushboolean(l, c_int::from(pushed == Pushed::Done)),
        }
    }
    1
}

/// `reuse([value])`: the old value.
unsafe extern "C-unwind" fn l_reuse(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let hub = (*state::current(l)).server;
        let old = (*hub).reuse;
        if lua_gettop(l) > 0 {
            (*hub).reuse = lua_toboolean(l, 1) != 0;
        }
        lua_pushboolean(l, c_int::from(old));
    }
    1
}

/// `reference(server, name, position)`: calls of `name` take the function at `position` of the table of references; nil
/// ends that.
unsafe extern "C-unwind" fn l_reference(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, _, _, instance) = instance_at(l);
        if instance.is_null() {
            return 0;
        }
        let references = &mut (*instance).references;
        if lua_type(l, 3) == LUA_TNUMBER {
            references.insert(bytes_at(l, 2).into(), lua_tointeger_(l, 3) as c_int);
        } else {
            references.remove(bytes_at(l, 2));
        }
    }
    0
}

/// `stat(server)`: a table of requests by name, then errors, clients now and so far, running requests, bytes received
/// and sent.
unsafe extern "C-unwind" fn l_stat(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, hub, number, instance) = instance_at(l);
        if instance.is_null() {
            return 0;
        }
        lua_createtable(l, 0, 16);
        let stat = &raw const (*instance).stat;
        for (i, count) in (&(*stat).requests).iter().enumerate() {
            if *count > 0 {
                state::push_str(l, kind::name(i as u32).unwrap_or("UNKNOWN"));
                lua_pushnumber(l, *count as lua_Number);
                lua_rawset(l, -3);
            }
        }
        let (mut received, mut sent) = (*stat).traffic;
        for (_, session) in &(*hub).sessions {
            if session.instance == number {
                received += session.traffic.0;
                sent += session.traffic.1;
            }
        }
        let numbers = [
            (*stat).errors,
            (*instance).sessions as u64,
            (*stat).connections,
            (*instance).running.into(),
            received,
            sent,
        ];
        for number in numbers {
            lua_pushnumber(l, number as lua_Number);
        }
    }
    7
}

/// `version()`: the one that servers claim.
unsafe extern "C-unwind" fn l_version(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe { state::push_str(l, VERSION) };
    1
}
