//! The spaces of a server for the program that runs it: raw functions of server.lua. Each takes the server's number first
//! and returns its results, or nil and an error's code, class, text and payload (MessagePack).

use super::accounts;
use super::dispatch::{bytes_at, running};
use super::engine::{
    BoxError, Engine, IndexOptions, IndexRef, SpaceOptions, SpaceRef, Statement, TxnId, format_from_msgpack,
};
use super::hub::Instance;
use super::stream::transaction_of;
use super::user::{Names, Secret, User};
use super::watch;
use crate::iproto::decode::Body;
use crate::lua::msgpack;
use crate::lua::state::{self, State};
use crate::sys::luajit::Entry;
use mlua::ffi::*;
use std::ffi::{OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Added to the native half of `cord.server`.
pub(super) const FUNCTIONS: &[Entry] = &[
    (c"statement", l_statement),
    (c"get", l_get),
    (c"count", l_count),
    (c"len", l_len),
    (c"create_space", l_create_space),
    (c"drop_space", l_drop_space),
    (c"create_index", l_create_index),
    (c"drop_index", l_drop_index),
    (c"set_format", l_set_format),
    (c"format_of", l_format_of),
    (c"truncate", l_truncate),
    (c"space_id", l_space_id),
    (c"space_name", l_space_name),
    (c"schema_version", l_schema_version),
    (c"save", l_save),
    (c"restore", l_restore),
    (c"broadcast", l_broadcast),
    (c"set_user", l_set_user),
    (c"grant", l_grant),
    (c"drop_user", l_drop_user),
    (c"show_accounts", l_show_accounts),
    (c"may_read", l_may_read),
];

/// The server that argument 1 numbers, or null.
unsafe fn instance_at(l: *mut lua_State) -> (*mut State, *mut Instance) {
    // SAFETY: the callers are called by server.lua, which ran `setup`.
    unsafe {
        let s = state::current(l);
        let hub = (*s).server;
        let number = lua_tointeger_(l, 1) as usize;
        (s, if hub.is_null() { std::ptr::null_mut() } else { (*hub).instance(number) })
    }
}

/// Returns nil and an error. A memory error while its texts are pushed leaks them, which is all it does.
unsafe fn refused(l: *mut lua_State, error: &BoxError) -> c_int {
    // SAFETY: every C function has free slots.
    unsafe {
        lua_pushnil(l);
        lua_pushinteger(l, error.code as lua_Integer);
        state::push_str(l, error.kind);
        state::push_str(l, &error.message);
        let fields = error.fields_map();
        lua_pushlstring_(l, fields.as_ptr().cast(), fields.len());
    }
    5
}

/// The server is gone.
unsafe fn gone(l: *mut lua_State) -> c_int {
    // SAFETY: as above.
    unsafe { refused(l, &BoxError::illegal("the server is stopped")) }
}

macro_rules! attempt {
    ($l:expr, $result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => return refused($l, &error),
        }
    };
}

macro_rules! instance {
    ($l:expr) => {{
        let (s, instance) = instance_at($l);
        if instance.is_null() {
            return gone($l);
        }
        (s, instance)
    }};
}

/// A space by id or name.
unsafe fn space_at<'a>(l: *mut lua_State, idx: c_int) -> SpaceRef<'a> {
    // SAFETY: server.lua passes a number or a string, which stays on the stack.
    unsafe {
        if lua_type(l, idx) == LUA_TNUMBER {
            SpaceRef::Id(lua_tonumber(l, idx) as u32)
        } else {
            SpaceRef::Name(bytes_at(l, idx))
        }
    }
}

/// An index by id or name.
unsafe fn index_at<'a>(l: *mut lua_State, idx: c_int) -> IndexRef<'a> {
    // SAFETY: as for `space_at`.
    unsafe {
        if lua_type(l, idx) == LUA_TNUMBER {
            IndexRef::Id(lua_tonumber(l, idx) as u32)
        } else {
            IndexRef::Name(bytes_at(l, idx))
        }
    }
}

/// The transaction of the stream whose request the running fiber serves, if it is this server's.
unsafe fn current_transaction(s: *mut State, instance: *mut Instance) -> Result<Option<TxnId>, BoxError> {
    // SAFETY: the callers pass a live state and instance.
    unsafe {
        let Some(request) = running(s) else { return Ok(None) };
        let hub = (*s).server;
        let session = (*hub).session_of(&request);
        if request.stream == 0 || session.is_null() || (*hub).instance(request.instance) != instance {
            return Ok(None);
        }
        let now = (*s).cord.clock.monotonic;
        transaction_of(&mut *session, &mut (*instance).engine, request.stream, now)
    }
}

/// `statement(server, kind, body)`: the response's body as a table.
unsafe extern "C-unwind" fn l_statement(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua. The response is copied to a Lua string before anything else of Lua runs.
    unsafe {
        let (s, instance) = instance!(l);
        lua_settop(l, 3);
        {
            let kind = lua_tointeger_(l, 2) as u32;
            let body = attempt!(l, Body::of_request(kind, bytes_at(l, 3)).map_err(BoxError::from));
            let txn = attempt!(l, current_transaction(s, instance));
            let Some(statement) = attempt!(l, Statement::from_body(kind, &body)) else { return 0 };
            let mut out = Vec::new();
            attempt!(l, (&mut (*instance).engine).execute(&statement, txn, &mut out));
            lua_pushlstring_(l, out.as_ptr().cast(), out.len());
        }
        let codec = (*(*s).server).codec;
        if let Err(failure) = msgpack::decode(l, bytes_at(l, 4), 0, codec) {
            msgpack::push_decode_error(l, failure);
            lua_error(l);
        }
    }
    1
}

/// `get(server, space, index, key, which)`: the tuple of a whole key; with `which` "min" or "max" the first or the last
/// one of a key. False if there is none.
unsafe extern "C-unwind" fn l_get(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua. The tuple is copied to a Lua string before anything else of Lua runs.
    unsafe {
        let (s, instance) = instance!(l);
        lua_settop(l, 5);
        {
            let txn = attempt!(l, current_transaction(s, instance));
            let engine = &mut (*instance).engine;
            let (space, index, key) = (space_at(l, 2), index_at(l, 3), bytes_at(l, 4));
            let found = match bytes_at(l, 5) {
                b"min" => engine.min(space, index, key, txn),
                b"max" => engine.max(space, index, key, txn),
                _ => engine.get(space, index, key, txn),
            };
            let Some(tuple) = attempt!(l, found) else {
                lua_pushboolean(l, 0);
                return 1;
            };
            lua_pushlstring_(l, tuple.as_ptr().cast(), tuple.len());
        }
        let codec = (*(*s).server).codec;
        if let Err(failure) = msgpack::decode(l, bytes_at(l, 6), 0, codec) {
            msgpack::push_decode_error(l, failure);
            lua_error(l);
        }
    }
    1
}

/// `count(server, space, index, iterator, key)`
unsafe extern "C-unwind" fn l_count(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (s, instance) = instance!(l);
        let txn = attempt!(l, current_transaction(s, instance));
        let iterator = lua_tonumber(l, 4) as u64;
        let engine = &mut (*instance).engine;
        let count = attempt!(l, engine.count(space_at(l, 2), index_at(l, 3), iterator, bytes_at(l, 5), txn));
        lua_pushnumber(l, count as lua_Number);
    }
    1
}

/// `len(server, space, index)`
unsafe extern "C-unwind" fn l_len(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, instance) = instance!(l);
        let count = attempt!(l, (&(*instance).engine).len(space_at(l, 2), index_at(l, 3)));
        lua_pushnumber(l, count as lua_Number);
    }
    1
}

/// What `create_*` returns: id and whether it is new.
unsafe fn created(l: *mut lua_State, (id, is_new): (u32, bool)) -> c_int {
    // SAFETY: every C function has free slots.
    unsafe {
        lua_pushnumber(l, id.into());
        lua_pushboolean(l, c_int::from(is_new));
    }
    2
}

/// `create_space(server, name, options)`: id and whether it is new.
unsafe extern "C-unwind" fn l_create_space(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, instance) = instance!(l);
        let options = attempt!(l, SpaceOptions::from_msgpack(bytes_at(l, 3)));
        let name = String::from_utf8_lossy(bytes_at(l, 2));
        let made = attempt!(l, (&mut (*instance).engine).create_space(&name, &options));
        created(l, made)
    }
}

/// `create_index(server, space, name, options)`: id and whether it is new.
unsafe extern "C-unwind" fn l_create_index(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, instance) = instance!(l);
        let options = attempt!(l, IndexOptions::from_msgpack(bytes_at(l, 4)));
        let name = String::from_utf8_lossy(bytes_at(l, 3));
        let made = attempt!(l, (&mut (*instance).engine).create_index(space_at(l, 2), &name, &options));
        created(l, made)
    }
}

/// Returns true.
unsafe fn done(l: *mut lua_State) -> c_int {
    // SAFETY: every C function has free slots.
    unsafe { lua_pushboolean(l, 1) };
    1
}

/// `drop_space(server, space)`
unsafe extern "C-unwind" fn l_drop_space(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, instance) = instance!(l);
        attempt!(l, (&mut (*instance).engine).drop_space(space_at(l, 2)));
        done(l)
    }
}

/// `drop_index(server, space, index)`
unsafe extern "C-unwind" fn l_drop_index(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, instance) = instance!(l);
        attempt!(l, (&mut (*instance).engine).drop_index(space_at(l, 2), index_at(l, 3)));
        done(l)
    }
}

/// `set_format(server, space, format)`
unsafe extern "C-unwind" fn l_set_format(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, instance) = instance!(l);
        let fields = attempt!(l, format_from_msgpack(bytes_at(l, 3)));
        attempt!(l, (&mut (*instance).engine).set_format(space_at(l, 2), fields));
        done(l)
    }
}

/// `format_of(server, space)`: the fields of the space of that id; nothing if there is no such space.
unsafe extern "C-unwind" fn l_format_of(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua. The bytes are copied to a Lua string before anything else of Lua runs.
    unsafe {
        let (s, instance) = instance!(l);
        lua_settop(l, 2);
        {
            let mut out = Vec::new();
            (&(*instance).engine).write_format(lua_tonumber(l, 2) as u32, &mut out);
            if out.is_empty() {
                return 0;
            }
            lua_pushlstring_(l, out.as_ptr().cast(), out.len());
        }
        let codec = (*(*s).server).codec;
        if let Err(failure) = msgpack::decode(l, bytes_at(l, 3), 0, codec) {
            msgpack::push_decode_error(l, failure);
            lua_error(l);
        }
    }
    1
}

/// `truncate(server, space)`
unsafe extern "C-unwind" fn l_truncate(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, instance) = instance!(l);
        attempt!(l, (&mut (*instance).engine).truncate(space_at(l, 2)));
        done(l)
    }
}

/// `space_id(server, name)`: nothing if there is no such space.
unsafe extern "C-unwind" fn l_space_id(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, instance) = instance_at(l);
        if instance.is_null() {
            return 0;
        }
        match (&(*instance).engine).space_id(bytes_at(l, 2)) {
            Some(id) => lua_pushnumber(l, id.into()),
            None => return 0,
        }
    }
    1
}

/// `space_name(server, id)`: nothing if there is no such space.
unsafe extern "C-unwind" fn l_space_name(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, instance) = instance!(l);
        match (&(*instance).engine).space_name(lua_tonumber(l, 2) as u32) {
            Some(name) => state::push_str(l, name),
            None => return 0,
        }
    }
    1
}

/// `schema_version(server)`
unsafe extern "C-unwind" fn l_schema_version(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, instance) = instance!(l);
        lua_pushnumber(l, (&(*instance).engine).schema_version() as lua_Number);
    }
    1
}

unsafe fn path_at<'a>(l: *mut lua_State) -> &'a Path {
    // SAFETY: server.lua passes a string, which stays on the stack.
    unsafe { Path::new(OsStr::from_bytes(bytes_at(l, 2))) }
}

/// True, or nil, a text and an errno.
unsafe fn settled(l: *mut lua_State, made: std::io::Result<()>) -> c_int {
    // SAFETY: every C function has free slots.
    unsafe {
        match made {
            Ok(()) => done(l),
            Err(error) => {
                lua_pushnil(l);
                state::push_str(l, &error.to_string());
                lua_pushinteger(l, error.raw_os_error().unwrap_or(0) as lua_Integer);
                3
            }
        }
    }
}

/// `save(server, path)`
unsafe extern "C-unwind" fn l_save(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, instance) = instance!(l);
        settled(l, (&(*instance).engine).save(path_at(l)))
    }
}

/// `restore(server, path)`
unsafe extern "C-unwind" fn l_restore(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, instance) = instance!(l);
        settled(l, Engine::load(path_at(l)).map(|restored| (&mut (*instance).engine).adopt(restored)))
    }
}

/// `broadcast(server, key, value)`
unsafe extern "C-unwind" fn l_broadcast(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (s, _) = instance!(l);
        lua_settop(l, 3);
        watch::broadcast(s, l, lua_tointeger_(l, 1) as usize, bytes_at(l, 2), 3);
        done(l)
    }
}

/// What is kept of a password.
pub(super) fn secret(pap: bool, password: &[u8]) -> Secret {
    if pap { Secret::pap(uuid::Uuid::new_v4().into_bytes(), password) } else { Secret::chap(password) }
}

/// `set_user(server, name, password, mighty)`: a password of nil is one that nobody has.
unsafe extern "C-unwind" fn l_set_user(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, instance) = instance!(l);
        let password = (lua_type(l, 3) == LUA_TSTRING).then(|| bytes_at(l, 3));
        let secret = password.map(|password| secret((*instance).pap, password));
        let user = if lua_toboolean(l, 4) != 0 { User::mighty(secret) } else { User { secret, ..User::default() } };
        (&mut (*instance).users).set(bytes_at(l, 2), user);
        done(l)
    }
}

/// `grant(server, name, what, object)`: without an object, all there are. False if there is no such user.
unsafe extern "C-unwind" fn l_grant(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, instance) = instance!(l);
        let Some(user) = (&mut (*instance).users).get_mut(bytes_at(l, 2)) else {
            lua_pushboolean(l, 0);
            return 1;
        };
        let names = match bytes_at(l, 3) {
            b"execute" => &mut user.execute,
            b"read" => &mut user.read,
            b"write" => &mut user.write,
            _ => {
                user.eval = true;
                return done(l);
            }
        };
        match lua_type(l, 4) {
            LUA_TSTRING => names.add(bytes_at(l, 4)),
            _ => *names = Names::All,
        }
        done(l)
    }
}

/// `drop_user(server, name)`
unsafe extern "C-unwind" fn l_drop_user(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, instance) = instance!(l);
        (&mut (*instance).users).remove(bytes_at(l, 2));
        done(l)
    }
}

/// `show_accounts(server)`: clients see its users, grants and functions as they are now.
unsafe extern "C-unwind" fn l_show_accounts(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, instance) = instance!(l);
        accounts::show(&mut *instance);
        done(l)
    }
}

/// `may_read(server, user, space)`: the space by its name.
unsafe extern "C-unwind" fn l_may_read(l: *mut lua_State) -> c_int {
    // SAFETY: called by server.lua.
    unsafe {
        let (_, instance) = instance!(l);
        let name = bytes_at(l, 3);
        let may = (&(*instance).users).allow(bytes_at(l, 2), |user| user.read.has(name));
        lua_pushboolean(l, c_int::from(may));
    }
    1
}
