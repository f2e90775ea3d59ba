//! Watched keys: each client is told a key's value at once, then of each change after it has acknowledged the last one.
//!
//! Source: `src/box/iproto.cc` (`iproto_session_notify`), `src/box/watcher.c`, 3.9-dev.

use super::dispatch::{Context, bytes_at};
use super::engine::BoxError;
use super::hub::{Event, Hub, Instance};
use super::session::Session;
use crate::iproto::constants::{key, kind};
use crate::iproto::decode::{Body, RequestHeader};
use crate::iproto::encode;
use crate::lua::msgpack;
use crate::lua::state::State;
use mlua::ffi::*;

/// Keys one client may watch, and bytes of a key.
const KEYS: usize = 65_536;
const KEY_SIZE: usize = 1024;

/// WATCH, UNWATCH, WATCH_ONCE. Only the last has a response.
pub(super) unsafe fn request(context: &Context, header: &RequestHeader, body: &[u8]) {
    // SAFETY: the context's pointers are live; no Lua runs.
    unsafe {
        let body = match Body::of_request(header.kind, body) {
            Ok(body) => body,
            Err(broken) => return context.refuse(header.sync, &broken.into()),
        };
        let name = body.str(key::EVENT_KEY).unwrap_or_default();
        let session = &mut *context.session;
        match header.kind {
            kind::WATCH => {
                if !session.watches.contains_key(name) && (session.watches.len() >= KEYS || name.len() > KEY_SIZE) {
                    return context.refuse(header.sync, &BoxError::illegal("too many watched keys"));
                }
                let is_new = !session.watches.contains_key(name);
                let watch = session.watches.entry(name.into()).or_default();
                watch.sync = header.sync;
                watch.acknowledged = true;
                notify(session, &*context.instance, name, is_new);
            }
            kind::UNWATCH => drop(session.watches.remove(name)),
            _ => {
                let value = (&(*context.instance).events).get(name).map_or(&[][..], |event| &event.value);
                let version = context.schema_version();
                let _: Result<(), ()> = encode::data(context.out(), kind::OK, header.sync, version, |out| {
                    out.extend_from_slice(value);
                    Ok(u32::from(!value.is_empty()))
                });
            }
        }
    }
}

/// Sends the value of a key if the client may be told and does not know it.
fn notify(session: &mut Session, instance: &Instance, name: &[u8], anyway: bool) {
    let Some(watch) = session.watches.get_mut(name) else { return };
    let (value, version) = instance.events.get(name).map_or((&[][..], 0), |event| (&*event.value, event.version));
    if !watch.acknowledged || !anyway && watch.version == version {
        return;
    }
    watch.acknowledged = false;
    watch.version = version;
    let append = |out: &mut Vec<u8>| -> Result<(), ()> {
        out.extend_from_slice(value);
        Ok(())
    };
    let _: Result<(), ()> = encode::event(&mut session.output, watch.sync, name, (!value.is_empty()).then_some(append));
}

/// Gives a key a value (the one at position `idx` of `l`; nil takes it away) and tells whoever watches it.
///
/// # Safety
/// `l` runs one of our functions. Errors of encoding are raised in it.
pub(super) unsafe fn broadcast(s: *mut State, l: *mut lua_State, number: usize, name: &[u8], idx: std::ffi::c_int) {
    // SAFETY: the caller's contract; Lua code runs before anything is borrowed.
    unsafe {
        let hub = (*s).server;
        let is_nil = lua_type(l, idx) == LUA_TNIL;
        if !is_nil && let Err(failure) = msgpack::encode_to_string(l, idx, (*hub).codec) {
            msgpack::push_encode_error(l, failure);
            lua_error(l);
        }
        let value = if is_nil { &[][..] } else { bytes_at(l, -1) };
        set(hub, number, name, value);
    }
}

/// As [`broadcast`], of a value in MessagePack.
pub(super) unsafe fn set(hub: *mut Hub, number: usize, name: &[u8], value: &[u8]) {
    // SAFETY: the caller passes a live hub; no Lua runs.
    unsafe {
        let instance = (*hub).instance(number);
        if instance.is_null() {
            return;
        }
        let event: &mut Event = (&mut (*instance).events).entry(name.into()).or_default();
        event.value = value.into();
        event.version += 1;
        let mut told = Vec::new();
        for (i, session) in &mut (*hub).sessions {
            if session.instance == number && session.watches.contains_key(name) {
                notify(session, &*instance, name, false);
                told.push(i);
            }
        }
        told.into_iter().for_each(|i| (*hub).list(i));
    }
}
