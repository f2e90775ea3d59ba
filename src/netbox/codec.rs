//! Lua values to and from MessagePack on the request path.
//!
//! Numbers, strings, booleans, nil and tables are done here; cdata, userdata, extensions and 64-bit integers take the
//! cold path through Lua functions kept in the table of [`Kept`].

use crate::iproto::mp::{self, Family, Reader};
use crate::lua::state::{Keep, State};
use crate::sys::luajit::LUA_TCDATA;
use mlua::ffi::*;
use std::ffi::c_int;

/// Positions in the table net.box keeps.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum Kept {
    /// The null cdata.
    Null = 1,
    /// Metatable of decoded arrays.
    ArrayMeta = 2,
    /// Metatable of decoded maps.
    MapMeta = 3,
    /// `(type or 'bin', payload) -> value`.
    DecodeExt = 4,
    /// `(high word, low word, negative) -> cdata`.
    MakeInteger = 5,
    /// `(value) -> bytes`.
    EncodeOther = 6,
    /// `(code, message[, list]) -> error object`.
    MakeError = 7,
    /// The metatable of futures.
    FutureMeta = 8,
    /// Per connection slot, its table of [`super::transport::anchor`]s.
    Anchors = 9,
    /// `(error value) -> error object`.
    WrapError = 10,
}

/// Tables may nest this deep.
const DEPTH: u32 = 128;

/// Appends the value at `idx` (an absolute position). Raises what cannot be encoded; then `out` holds a part of it.
///
/// # Safety
/// `l` runs one of our functions; `out` is live and owned by nobody's frame.
pub unsafe fn encode(s: *mut State, l: *mut lua_State, idx: c_int, out: *mut Vec<u8>, depth: u32) {
    // SAFETY: the caller's contract; strings are copied while they are on the stack.
    unsafe {
        match lua_type(l, idx) {
            LUA_TNUMBER => put_number(&mut *out, lua_tonumber(l, idx)),
            LUA_TSTRING => {
                let mut len = 0;
                let at = lua_tolstring(l, idx, &raw mut len);
                mp::put_str(&mut *out, std::slice::from_raw_parts(at.cast(), len));
            }
            LUA_TTABLE => encode_table(s, l, idx, out, depth),
            LUA_TNIL => mp::put_nil(&mut *out),
            LUA_TBOOLEAN => mp::put_bool(&mut *out, lua_toboolean(l, idx) != 0),
            LUA_TLIGHTUSERDATA if lua_touserdata(l, idx).is_null() => mp::put_nil(&mut *out),
            LUA_TCDATA | LUA_TUSERDATA => encode_other(s, l, idx, out),
            other => {
                luaL_error(l, c"unsupported Lua type '%s'".as_ptr(), lua_typename(l, other));
            }
        }
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
    } else if number.fract() == 0.0 && (LIMIT..2.0 * LIMIT).contains(&number) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        mp::put_uint(out, number as u64);
    } else {
        mp::put_double(out, number);
    }
}

#[cold]
unsafe fn encode_other(s: *mut State, l: *mut lua_State, idx: c_int, out: *mut Vec<u8>) {
    // SAFETY: as for `encode`; the Lua function returns a string or raises.
    unsafe {
        luaL_checkstack_(l, 8, c"encoding".as_ptr());
        push_kept(s, l, Kept::EncodeOther);
        lua_pushvalue(l, idx);
        lua_call(l, 1, 1);
        let mut len = 0;
        let at = lua_tolstring(l, -1, &raw mut len);
        if !at.is_null() {
            (&mut *out).extend_from_slice(std::slice::from_raw_parts(at.cast(), len));
        }
        lua_settop(l, -2);
    }
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

unsafe fn encode_table(s: *mut State, l: *mut lua_State, idx: c_int, out: *mut Vec<u8>, depth: u32) {
    // SAFETY: as for `encode`; stack use is balanced.
    unsafe {
        if depth >= DEPTH {
            luaL_error(l, c"Too high nest level - %d".as_ptr(), DEPTH + 1);
        }
        luaL_checkstack_(l, 8, c"encoding".as_ptr());
        if lua_getmetatable(l, idx) != 0 {
            lua_settop(l, -2);
            // A hint or a __serialize function: the cold path knows them.
            if luaL_getmetafield_(l, idx, c"__serialize".as_ptr()) != 0 {
                let map = lua_type(l, -1) == LUA_TSTRING && *lua_tolstring(l, -1, std::ptr::null_mut()) == b'm' as _;
                let function = lua_type(l, -1) == LUA_TFUNCTION;
                if function {
                    lua_pushvalue(l, idx);
                    lua_call(l, 1, 1);
                    encode(s, l, lua_gettop(l), out, depth + 1);
                    lua_settop(l, -2);
                    return;
                }
                lua_settop(l, -2);
                if map {
                    return encode_map(s, l, idx, out, depth);
                }
            }
        }
        let n = lua_objlen(l, idx);
        let start = (*out).len();
        #[allow(clippy::cast_possible_truncation)]
        mp::put_array(&mut *out, n as u32);
        // One pass: as long as the keys come as 1, 2, 3, ... it is an array.
        let mut expected = 0_usize;
        lua_pushnil(l);
        while lua_next(l, idx) != 0 {
            expected += 1;
            #[allow(clippy::cast_precision_loss, clippy::float_cmp)]
            if lua_type(l, -2) != LUA_TNUMBER || lua_tonumber(l, -2) != expected as f64 || expected > n {
                lua_settop(l, -3);
                (*out).truncate(start);
                return encode_any(s, l, idx, out, depth);
            }
            encode(s, l, lua_gettop(l), out, depth + 1);
            lua_settop(l, -2);
        }
        if expected != n {
            (*out).truncate(start);
            encode_any(s, l, idx, out, depth);
        }
    }
}

/// A table whose keys do not come as 1..n: an array with holes, or a map.
#[cold]
unsafe fn encode_any(s: *mut State, l: *mut lua_State, idx: c_int, out: *mut Vec<u8>, depth: u32) {
    // SAFETY: as for `encode`.
    unsafe {
        let (mut count, mut max, mut array) = (0_u32, 0_f64, true);
        lua_pushnil(l);
        while lua_next(l, idx) != 0 {
            count += 1;
            let key = if lua_type(l, -2) == LUA_TNUMBER { lua_tonumber(l, -2) } else { -1.0 };
            array &= key >= 1.0 && key.fract() == 0.0 && key < 4e9;
            max = max.max(key);
            lua_settop(l, -2);
        }
        if !array || (max > 10.0 && max > f64::from(count) * 2.0) {
            return encode_map(s, l, idx, out, depth);
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let len = max as u32;
        mp::put_array(&mut *out, len);
        for i in 1..=len {
            #[allow(clippy::cast_possible_wrap)]
            lua_rawgeti_(l, idx, i as c_int);
            encode(s, l, lua_gettop(l), out, depth + 1);
            lua_settop(l, -2);
        }
    }
}

unsafe fn encode_map(s: *mut State, l: *mut lua_State, idx: c_int, out: *mut Vec<u8>, depth: u32) {
    // SAFETY: as for `encode`.
    unsafe {
        let mut count = 0;
        lua_pushnil(l);
        while lua_next(l, idx) != 0 {
            count += 1;
            lua_settop(l, -2);
        }
        mp::put_map(&mut *out, count);
        lua_pushnil(l);
        while lua_next(l, idx) != 0 {
            let top = lua_gettop(l);
            encode(s, l, top - 1, out, depth + 1);
            encode(s, l, top, out, depth + 1);
            lua_settop(l, -2);
        }
    }
}

/// Where a decoder finds what it pushes often: positions on the stack it decodes onto.
#[derive(Clone, Copy)]
pub struct Base {
    /// The null cdata.
    pub null: c_int,
    /// The metatable of arrays.
    pub array: c_int,
    /// The metatable of maps.
    pub map: c_int,
}

/// The input is not MessagePack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

/// Pushes the null and the metatables; [`decode`] takes the result.
///
/// # Safety
/// `l` has five free slots.
pub unsafe fn base(s: *mut State, l: *mut lua_State) -> Base {
    // SAFETY: the caller's contract.
    unsafe {
        (*s).push_kept(l, Keep::Netbox);
        let kept = lua_gettop(l);
        for which in [Kept::Null, Kept::ArrayMeta, Kept::MapMeta] {
            lua_rawgeti_(l, kept, which as c_int);
        }
        Base { null: kept + 1, array: kept + 2, map: kept + 3 }
    }
}

/// Pushes the next value of `r`. Raises for memory, for nesting and for what an extension's decoder raises.
///
/// # Errors
/// [`Broken`]: something may be left on the stack.
///
/// # Safety
/// `l` has free slots for a frame of ours; `base` is of this stack.
pub unsafe fn decode(
    s: *mut State,
    l: *mut lua_State,
    base: Base,
    r: &mut Reader<'_>,
    depth: u32,
) -> Result<(), Broken> {
    // SAFETY: the caller's contract; a Reader has no destructor, so a raise may pass it.
    unsafe {
        let family = r.peek().map_err(|_| Broken)?;
        match family {
            Family::Uint | Family::Int => {
                const EXACT: i128 = 99_999_999_999_999;
                let value = r.read_integer().map_err(|_| Broken)?;
                if (-EXACT..=EXACT).contains(&value) {
                    #[allow(clippy::cast_precision_loss)]
                    lua_pushnumber(l, value as f64);
                } else {
                    make_integer(s, l, value);
                }
            }
            Family::Str => {
                let text = r.read_str().map_err(|_| Broken)?;
                lua_pushlstring_(l, text.as_ptr().cast(), text.len());
            }
            Family::Array => {
                let n = r.read_array().map_err(|_| Broken)?;
                decode_array(s, l, base, r, n, depth)?;
                lua_pushvalue(l, base.array);
                lua_setmetatable(l, -2);
            }
            Family::Map => decode_map(s, l, base, r, depth)?,
            Family::Nil => {
                r.read_nil().map_err(|_| Broken)?;
                lua_pushvalue(l, base.null);
            }
            Family::Bool => lua_pushboolean(l, c_int::from(r.read_bool().map_err(|_| Broken)?)),
            Family::Float | Family::Double => lua_pushnumber(l, r.read_double().map_err(|_| Broken)?),
            Family::Bin => {
                let bytes = r.read_bin().map_err(|_| Broken)?;
                push_kept(s, l, Kept::DecodeExt);
                lua_pushlstring_(l, c"bin".as_ptr(), 3);
                lua_pushlstring_(l, bytes.as_ptr().cast(), bytes.len());
                lua_call(l, 2, 1);
            }
            Family::Ext => {
                let (kind, bytes) = r.read_ext().map_err(|_| Broken)?;
                push_kept(s, l, Kept::DecodeExt);
                lua_pushinteger(l, kind.into());
                lua_pushlstring_(l, bytes.as_ptr().cast(), bytes.len());
                lua_call(l, 2, 1);
            }
        }
        Ok(())
    }
}

#[cold]
unsafe fn make_integer(s: *mut State, l: *mut lua_State, value: i128) {
    // SAFETY: as for `decode`.
    #[allow(clippy::cast_possible_truncation)]
    unsafe {
        let magnitude = value.unsigned_abs() as u64;
        push_kept(s, l, Kept::MakeInteger);
        lua_pushnumber(l, f64::from((magnitude >> 32) as u32));
        lua_pushnumber(l, f64::from(magnitude as u32));
        lua_pushboolean(l, c_int::from(value < 0));
        lua_call(l, 3, 1);
    }
}

/// Pushes a table of `n` decoded values, without a metatable.
///
/// # Errors
/// # Safety
/// As for [`decode`].
pub unsafe fn decode_array(
    s: *mut State,
    l: *mut lua_State,
    base: Base,
    r: &mut Reader<'_>,
    n: u32,
    depth: u32,
) -> Result<(), Broken> {
    // SAFETY: as for `decode`.
    unsafe {
        if depth >= DEPTH {
            luaL_error(l, c"Too high nest level - %d".as_ptr(), DEPTH + 1);
        }
        luaL_checkstack_(l, 12, c"decoding".as_ptr());
        // Each element takes a byte at least: a lying length allocates no more than the input is long.
        let room = (n as usize).min(r.rest().len());
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        lua_createtable(l, room as c_int, 0);
        for i in 1..=n {
            decode(s, l, base, r, depth + 1)?;
            #[allow(clippy::cast_possible_wrap)]
            lua_rawseti_(l, -2, i as c_int);
        }
        Ok(())
    }
}

unsafe fn decode_map(
    s: *mut State,
    l: *mut lua_State,
    base: Base,
    r: &mut Reader<'_>,
    depth: u32,
) -> Result<(), Broken> {
    // SAFETY: as for `decode`.
    unsafe {
        if depth >= DEPTH {
            luaL_error(l, c"Too high nest level - %d".as_ptr(), DEPTH + 1);
        }
        luaL_checkstack_(l, 12, c"decoding".as_ptr());
        let n = r.read_map().map_err(|_| Broken)?;
        let room = (n as usize).min(r.rest().len() / 2);
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        lua_createtable(l, 0, room as c_int);
        for _ in 0..n {
            decode(s, l, base, r, depth + 1)?;
            decode(s, l, base, r, depth + 1)?;
            #[allow(clippy::float_cmp)]
            let bad_key = lua_type(l, -2) == LUA_TNUMBER && lua_tonumber(l, -2).is_nan();
            if bad_key {
                return Err(Broken);
            }
            lua_rawset(l, -3);
        }
        lua_pushvalue(l, base.map);
        lua_setmetatable(l, -2);
        Ok(())
    }
}
