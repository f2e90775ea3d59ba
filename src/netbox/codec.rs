//! Lua values to and from MessagePack, as requests and replies need it: `cord.msgpack`'s codec, with failures raised.

use crate::iproto::mp;
use crate::lua::msgpack::{self, DecodeError, EncodeError};
use crate::lua::state::{Keep, State};
use mlua::ffi::*;
use std::ffi::c_int;

/// Positions in the table net.box keeps.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum Kept {
    /// `(code, message[, list]) -> error object`.
    MakeError = 1,
    /// `(error value) -> error object`.
    WrapError = 2,
    /// The metatable of futures.
    FutureMeta = 3,
    /// The futures in flight by place, weakly held.
    Futures = 4,
    /// Per connection slot, its metatables of tuples by the number requests pass.
    Anchors = 5,
    /// The thread that holds the metatable and the table of futures on its stack.
    Store = 6,
    /// `(bytes)`: the formats of the tuples that are decoded next.
    SetFormats = 7,
}

/// Pushes one value of the table net.box keeps.
///
/// # Safety
/// `l` has two free slots; netbox.lua has filled the table.
pub unsafe fn push_kept(s: *mut State, l: *mut lua_State, which: Kept) {
    // SAFETY: the caller's contract.
    unsafe {
        (*s).push_kept(l, Keep::Netbox);
        lua_rawgeti_(l, -1, which as c_int);
        lua_remove(l, -2);
    }
}

/// Appends the value at `idx` (an absolute position). Raises what cannot be encoded.
///
/// # Safety
/// `l` runs one of our functions; `out` is live and belongs to nobody's frame.
#[inline(always)]
pub unsafe fn encode(s: *mut State, l: *mut lua_State, idx: c_int, out: *mut Vec<u8>) {
    // SAFETY: the caller's contract; nothing here needs a destructor.
    unsafe {
        if let Err(failure) = msgpack::encode(l, idx, &mut *out, (*s).netbox.codec) {
            encode_slow(s, l, idx, out, failure);
        }
    }
}

/// What needs Lua code, which may do anything but wait; or the error.
#[cold]
unsafe fn encode_slow(s: *mut State, l: *mut lua_State, idx: c_int, out: *mut Vec<u8>, mut failure: EncodeError) {
    // SAFETY: as for `encode`.
    unsafe {
        luaL_checkstack_(l, 16, c"encoding".as_ptr());
        if failure == EncodeError::NeedsLua {
            match msgpack::encode_to_string(l, idx, (*s).netbox.codec) {
                Ok(()) => {
                    let mut len = 0;
                    let at = lua_tolstring(l, -1, &raw mut len);
                    (&mut *out).extend_from_slice(std::slice::from_raw_parts(at.cast(), len));
                    return lua_settop(l, -2);
                }
                Err(other) => failure = other,
            }
        }
        msgpack::push_encode_error(l, failure);
        lua_error(l);
    }
}

/// The shortest form of a number: integral ones as integers.
#[inline]
pub fn put_number(out: &mut Vec<u8>, number: f64) {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    #[allow(clippy::cast_possible_truncation)] // compared right after
    let integer = number as i64;
    #[allow(clippy::cast_precision_loss, clippy::float_cmp)]
    let whole = integer as f64 == number && number < LIMIT;
    if whole && integer >= 0 {
        #[allow(clippy::cast_sign_loss)]
        mp::put_uint(out, integer as u64);
    } else if whole {
        mp::put_int(out, integer);
    } else {
        mp::put_double(out, number);
    }
}

/// The input is not MessagePack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

/// Pushes the value at `at` and returns where the next one begins. Raises for memory, for nesting and for what an
/// extension's decoder raises.
///
/// # Errors
/// [`Broken`]: the stack is as before.
///
/// # Safety
/// `l` has free slots for a frame of ours; `bytes` stay where they are while Lua code of decoders runs.
#[inline(always)]
pub unsafe fn decode(s: *mut State, l: *mut lua_State, bytes: &[u8], at: usize) -> Result<usize, Broken> {
    // SAFETY: the caller's contract.
    unsafe {
        match msgpack::decode(l, bytes, at, (*s).netbox.codec) {
            Ok(next) => Ok(next),
            Err(failure) => decode_slow(l, failure),
        }
    }
}

#[cold]
unsafe fn decode_slow(l: *mut lua_State, failure: DecodeError) -> Result<usize, Broken> {
    // SAFETY: as for `decode`.
    unsafe {
        if matches!(failure, DecodeError::Truncated(_) | DecodeError::IllegalCode(_)) {
            return Err(Broken);
        }
        luaL_checkstack_(l, 16, c"decoding".as_ptr());
        msgpack::push_decode_error(l, failure);
        lua_error(l);
    }
}

/// Pushes an array as a table with the metatable at `meta`, or a tuple extension with its own.
///
/// # Errors
/// [`Broken`], also for anything but an array.
///
/// # Safety
/// As for [`decode`].
#[inline(always)]
pub unsafe fn decode_with(
    s: *mut State,
    l: *mut lua_State,
    meta: c_int,
    bytes: &[u8],
    at: usize,
) -> Result<usize, Broken> {
    // SAFETY: the caller's contract.
    unsafe {
        match bytes.get(at) {
            Some(0x90..=0x9f | 0xdc | 0xdd) => {}
            // A tuple that brings its format.
            Some(0xc7..=0xc9 | 0xd4..=0xd8) => return decode(s, l, bytes, at),
            _ => return Err(Broken),
        }
        let next = decode(s, l, bytes, at)?;
        lua_pushvalue(l, meta);
        lua_setmetatable(l, -2);
        Ok(next)
    }
}
