//! Lua values to and from MessagePack, as requests and replies need it: `cord.msgpack`'s codec, with failures raised.

use crate::iproto::mp;
use crate::lua::msgpack::{self, DecodeError, EncodeError, Formats};
use crate::lua::state::{Keep, State};
use mlua::ffi::*;
use std::ffi::{c_int, c_void};

/// Positions in the table net.box keeps.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum Kept {
    /// `(code, message[, list]) -> error object`.
    MakeError = 1,
    /// `(error value) -> error object`.
    WrapError = 2,
    /// `(bytes)`: the formats of the tuples that are decoded next.
    SetFormats = 3,
    /// Per connection slot, its metatables of tuples by the number requests pass.
    Anchors = 4,
    /// The futures in flight by place, weakly held.
    Futures = 5,
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

/// How a value was encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoded {
    /// Just now.
    Now,
    /// By [`encode_ahead`]: the Lua type it had.
    Before(c_int),
    /// Not at all: only Lua code can say what it is. Call [`encode_ahead`].
    NeedsLua,
}

/// A value that was encoded ahead: this, and the bytes behind it, are a userdata that stands in for the argument. Behind
/// the value's bytes are those of its tuples' formats.
#[repr(C)]
struct Ahead {
    mark: *const u8,
    kind: c_int,
    len: usize,
    formats: usize,
}

/// Its address marks values encoded ahead.
static AHEAD: u8 = 0;

/// Appends the value at `idx` (an absolute position) without running Lua code. Raises what cannot be encoded. Tuples
/// become arrays, or bring their `formats` if that is not null.
///
/// # Safety
/// `l` runs one of our functions; `out` is live and belongs to nobody's frame, and so do `formats`.
#[inline(always)]
pub unsafe fn encode(
    s: *mut State,
    l: *mut lua_State,
    idx: c_int,
    out: *mut Vec<u8>,
    formats: *mut Formats,
) -> Encoded {
    // SAFETY: the caller's contract; nothing here needs a destructor.
    unsafe {
        match msgpack::encode_with(l, idx, &mut *out, (*s).netbox.codec, formats) {
            Ok(()) => Encoded::Now,
            Err(failure) => encode_slow(l, idx, out, failure),
        }
    }
}

/// Appends the map of formats that the argument at `idx` has filled `formats` with, or had when it was encoded ahead.
///
/// # Safety
/// As for [`encode`], which was called for the argument.
#[inline(always)]
pub unsafe fn put_formats(l: *mut lua_State, idx: c_int, out: *mut Vec<u8>, formats: *const Formats) {
    // SAFETY: the caller's contract.
    unsafe {
        if formats.is_null() || ((*formats).is_empty() && lua_type(l, idx) != LUA_TUSERDATA) {
            (*out).push(0x80);
            return;
        }
        put_formats_slow(l, idx, out, formats);
    }
}

#[cold]
unsafe fn put_formats_slow(l: *mut lua_State, idx: c_int, out: *mut Vec<u8>, formats: *const Formats) {
    // SAFETY: as for `put_formats`.
    unsafe {
        match ahead_at(l, idx) {
            Some(ahead) if (*ahead).formats > 0 => {
                let bytes = ahead.add(1).cast::<u8>().add((*ahead).len);
                (&mut *out).extend_from_slice(std::slice::from_raw_parts(bytes, (*ahead).formats));
            }
            _ => (*formats).write(&mut *out),
        }
    }
}

unsafe fn ahead_at(l: *mut lua_State, idx: c_int) -> Option<*const Ahead> {
    // SAFETY: a userdata long enough may be read, and only ours start with our mark.
    unsafe {
        if lua_type(l, idx) != LUA_TUSERDATA || lua_objlen(l, idx) < size_of::<Ahead>() {
            return None;
        }
        let ahead: *const Ahead = lua_touserdata(l, idx).cast();
        ((*ahead).mark == &raw const AHEAD).then_some(ahead)
    }
}

#[cold]
unsafe fn encode_slow(l: *mut lua_State, idx: c_int, out: *mut Vec<u8>, failure: EncodeError) -> Encoded {
    // SAFETY: as for `encode`.
    unsafe {
        luaL_checkstack_(l, 16, c"encoding".as_ptr());
        if failure != EncodeError::NeedsLua {
            msgpack::push_encode_error(l, failure);
            lua_error(l);
        }
        if let Some(ahead) = ahead_at(l, idx) {
            (&mut *out).extend_from_slice(std::slice::from_raw_parts(ahead.add(1).cast(), (*ahead).len));
            return Encoded::Before((*ahead).kind);
        }
        Encoded::NeedsLua
    }
}

/// Encodes the value at `idx` with the help of Lua code, which may do anything, and puts the outcome in its place.
/// Raises what cannot be encoded. `with_formats`: tuples bring their formats.
///
/// # Safety
/// As for [`encode`]; what Lua code can reach is read anew afterwards.
#[cold]
pub unsafe fn encode_ahead(s: *mut State, l: *mut lua_State, idx: c_int, with_formats: bool) {
    // SAFETY: the caller's contract; the strings stay on the stack while their bytes are copied. Failures are caught and
    // raised once nothing with a destructor is left; only an error for want of memory, or of a finalizer, would leak the lists.
    unsafe {
        luaL_checkstack_(l, 16, c"encoding".as_ptr());
        let (top, kind) = (lua_gettop(l), lua_type(l, idx));
        let formats: *mut Formats = if with_formats { Box::into_raw(Box::default()) } else { std::ptr::null_mut() };
        let made = msgpack::encode_to_string_with(l, idx, (*s).netbox.codec, formats);
        // Nobody else's, as the string is made: a finalizer that runs then may encode, too.
        let packed: *mut Vec<u8> = Box::into_raw(Box::default());
        if with_formats {
            let list = Box::from_raw(formats);
            list.write(&mut *packed);
        }
        if let Err(failure) = made {
            drop(Box::from_raw(packed));
            msgpack::push_encode_error(l, failure);
            lua_error(l);
        }
        lua_pushlstring_(l, (&*packed).as_ptr().cast(), (&*packed).len());
        drop(Box::from_raw(packed));
        let (mut len, mut formats_len) = (0, 0);
        let bytes: *const u8 = lua_tolstring(l, top + 1, &raw mut len).cast();
        let packed: *const u8 = lua_tolstring(l, top + 2, &raw mut formats_len).cast();
        let ahead: *mut Ahead = lua_newuserdata(l, size_of::<Ahead>() + len + formats_len).cast();
        ahead.write(Ahead { mark: &raw const AHEAD, kind, len, formats: formats_len });
        std::ptr::copy_nonoverlapping(bytes, ahead.add(1).cast::<u8>(), len);
        std::ptr::copy_nonoverlapping(packed, ahead.add(1).cast::<u8>().add(len), formats_len);
        lua_replace(l, idx);
        lua_settop(l, top);
    }
}

/// The shortest form of a number: integral ones as integers.
#[inline(always)]
pub fn put_number(out: &mut Vec<u8>, number: f64) {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // compared right after
    let small = number as u16;
    #[allow(clippy::float_cmp)]
    if f64::from(small) == number {
        mp::put_uint(out, small.into());
    } else {
        put_any_number(out, number);
    }
}

fn put_any_number(out: &mut Vec<u8>, number: f64) {
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

/// Pushes an array as a table with a metatable, or a tuple extension with its own. The metatable is at `address`, and under
/// the number `reference` in the table at `anchors`.
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
    (anchors, reference, address): (c_int, c_int, *const c_void),
    bytes: &[u8],
    at: usize,
) -> Result<usize, Broken> {
    // SAFETY: the caller's contract.
    unsafe {
        match msgpack::decode_tuple(l, bytes, at, (*s).netbox.codec, address) {
            Ok(Some(next)) => return Ok(next),
            Ok(None) => {}
            Err(failure) => return decode_slow(l, failure),
        }
        match bytes.get(at) {
            Some(0x90..=0x9f | 0xdc | 0xdd) => {}
            // A tuple that brings its format.
            Some(0xc7..=0xc9 | 0xd4..=0xd8) => return decode(s, l, bytes, at),
            _ => return Err(Broken),
        }
        let next = decode(s, l, bytes, at)?;
        lua_rawgeti_(l, anchors, reference);
        lua_setmetatable(l, -2);
        Ok(next)
    }
}
