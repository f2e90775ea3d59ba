//! Bytes to Lua value. Source of the rules: `src/lua/msgpack.c` (`luamp_decode`), `src/box/msgpack.c`, 3.9-dev.

use super::direct::{self, NewArray, NewMap};
use super::{Codec, Options, Shared, make_error};
use crate::iproto::constants::ext;
use crate::iproto::mp::{MpError, Reader};
use crate::lua::state::push_str;
use mlua::ffi::*;
use std::ffi::{c_char, c_int, c_void};

/// Why bytes are not a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    /// The input ends inside the value: where it was read up to.
    Truncated(usize),
    /// The byte `c1`: where.
    IllegalCode(usize),
    /// Nested deeper than the option allows: the level.
    TooDeep(u32),
    /// NaN or infinity, and the options forbid them.
    InvalidNumber,
    /// A key that is not a number: Lua tables cannot have it.
    NanKey,
    /// No memory, or no room on Lua's stack.
    Memory,
    /// The decoder of an extension type raised: what it raised is on the top of the stack.
    Lua,
}

type Result<T> = std::result::Result<T, DecodeError>;

/// Pushes the error object of a failed decode (replacing the raised value in the case of [`DecodeError::Lua`], which
/// may be a plain string: an unknown extension's text).
///
/// # Safety
/// `l` is the thread the decode ran on, with free slots; memory errors are raised in it.
pub unsafe fn push_decode_error(l: *mut lua_State, failure: DecodeError) {
    // SAFETY: the caller's contract.
    unsafe {
        let (text, offset) = match failure {
            DecodeError::Lua => return,
            DecodeError::Truncated(at) => ("Invalid MsgPack - truncated input", at),
            DecodeError::IllegalCode(at) => ("Invalid MsgPack - illegal code", at),
            DecodeError::TooDeep(level) => {
                lua_pushfstring(l, c"Too high nest level - %d".as_ptr(), level as c_int);
                return make_error(l, c"luajit", 1);
            }
            DecodeError::InvalidNumber => {
                push_str(l, "number must not be NaN or Inf");
                return make_error(l, c"luajit", 1);
            }
            DecodeError::NanKey => {
                push_str(l, "table index is NaN");
                return make_error(l, c"luajit", 1);
            }
            DecodeError::Memory => {
                push_str(l, "not enough memory");
                return make_error(l, c"luajit", 1);
            }
        };
        lua_pushinteger(l, crate::iproto::constants::errcode::INVALID_MSGPACK as lua_Integer);
        push_str(l, text);
        lua_createtable(l, 0, 1);
        lua_pushnumber(l, offset as lua_Number);
        lua_setfield(l, -2, c"offset".as_ptr());
        make_error(l, c"client", 3);
    }
}

/// Decodes the value at `bytes[at..]`, pushes it, and returns where the next one begins.
///
/// # Errors
/// [`DecodeError`]; the stack is then as before, but for the raised value of [`DecodeError::Lua`].
///
/// # Safety
/// `l` is a live thread with three free slots, `codec` a live codec of its state. `bytes` stay where they are, though
/// finalizers and the decoders of extension types run. No value with a destructor is alive in the caller that a memory
/// error must not jump over.
#[inline]
pub unsafe fn decode(l: *mut lua_State, bytes: &[u8], at: usize, codec: *const Codec) -> Result<usize> {
    // SAFETY: the caller's contract; the shared state outlives every codec.
    unsafe {
        let codec = &*codec;
        let top = lua_gettop(l);
        let shared = codec.shared;
        let mut decoder = Decoder {
            l,
            bytes,
            at: at.min(bytes.len()),
            options: codec.options.get(),
            shared: &*shared,
            keys: (*shared).keys,
            tuple_mt: std::ptr::null(),
        };
        match decoder.value(0) {
            Ok(()) => Ok(decoder.at),
            Err(failure) => {
                taken_back(l, top, failure);
                Err(failure)
            }
        }
    }
}

/// Takes back the containers that were being filled.
#[cold]
unsafe fn taken_back(l: *mut lua_State, top: c_int, failure: DecodeError) {
    // SAFETY: the values above `top` are the decoder's.
    unsafe {
        if failure == DecodeError::Lua {
            lua_insert(l, top + 1);
            lua_settop(l, top + 1);
        } else {
            lua_settop(l, top);
        }
    }
}

/// As [`decode`], of an array that gets the metatable at address `mt`. `Ok(None)`, and nothing done, where tables cannot be
/// reached in place or the value is no array.
///
/// # Errors
/// As [`decode`].
///
/// # Safety
/// As [`decode`]; `mt` is the address of a live table.
#[inline]
pub unsafe fn decode_tuple(
    l: *mut lua_State,
    bytes: &[u8],
    at: usize,
    codec: *const Codec,
    mt: *const c_void,
) -> Result<Option<usize>> {
    // SAFETY: as for `decode`. No Lua code that could change the options runs before they are copied.
    unsafe {
        let codec = &*codec;
        let shared = codec.shared;
        if (*shared).layout.get().is_none() || !matches!(bytes.get(at), Some(0x90..=0x9f | 0xdc | 0xdd)) {
            return Ok(None);
        }
        let top = lua_gettop(l);
        let (options, keys) = (codec.options.get(), (*shared).keys);
        let mut decoder = Decoder { l, bytes, at, options, shared: &*shared, keys, tuple_mt: mt };
        match decoder.value(0) {
            Ok(()) => Ok(Some(decoder.at)),
            Err(failure) => {
                taken_back(l, top, failure);
                Err(failure)
            }
        }
    }
}

/// Where the value at `bytes[at..]` ends.
///
/// # Errors
/// `Truncated` or `IllegalCode`.
pub(super) fn skip(bytes: &[u8], at: usize) -> Result<usize> {
    let mut reader = Reader::at(bytes, at);
    match reader.skip() {
        Ok(()) => Ok(reader.position()),
        Err(MpError::IllegalCode) => Err(DecodeError::IllegalCode(reader.position().saturating_sub(1))),
        Err(_) => Err(DecodeError::Truncated(bytes.len())),
    }
}

/// Largest whole numbers that become Lua numbers; beyond, 64-bit cdata (`DBL_INT_MAX` of `src/lua/utils.h`).
const NUMBER_MAX: u64 = 99_999_999_999_999;

/// Containers inside each other between two looks at the room on Lua's stack.
const LEVELS_CHECKED: u32 = 8;

struct Decoder<'a> {
    l: *mut lua_State,
    bytes: &'a [u8],
    at: usize,
    options: Options,
    shared: &'a Shared,
    keys: *mut Keys,
    /// The metatable of the outermost array, if it is to have one of its own.
    tuple_mt: *const c_void,
}

/// A value that is stored without the collector's help.
enum Plain {
    Number(f64),
    Bool(bool),
}

/// Strings that were keys of maps lately. Looking one up by its bytes is cheaper than Lua's interning.
pub(super) struct Keys {
    /// Registry reference of the table that holds the strings, slot `i` under key `i + 1`.
    table_ref: c_int,
    /// Their bytes, which live as long as the table holds them.
    slots: [(*const c_char, u32); KEY_SLOTS],
}

const KEY_SLOTS: usize = 256;

impl Keys {
    /// With an empty table on the top, which is popped.
    ///
    /// # Safety
    /// A live state.
    pub(super) unsafe fn new(l: *mut lua_State) -> Keys {
        // SAFETY: the caller's contract.
        let table_ref = unsafe { luaL_ref(l, LUA_REGISTRYINDEX) };
        Keys { table_ref, slots: [(std::ptr::null(), 0); KEY_SLOTS] }
    }

    #[inline(always)]
    fn slot_of(text: &[u8]) -> usize {
        let (first, last) = (text.first().copied().unwrap_or(0), text.last().copied().unwrap_or(0));
        let middle = text.get(text.len() / 2).copied().unwrap_or(0);
        let hash = usize::from(first) * 7 + usize::from(last) * 31 + usize::from(middle) * 13 + text.len() * 97;
        hash % KEY_SLOTS
    }

    /// The bytes of the known string that equals `text`, of 1 to 31 bytes.
    #[inline(always)]
    fn find(&self, text: &[u8]) -> Option<*const c_char> {
        let (bytes, len) = self.slots.get(Self::slot_of(text)).copied()?;
        // SAFETY: a slot's bytes belong to a string that the table holds under the same number.
        let found =
            len as usize == text.len() && same(unsafe { std::slice::from_raw_parts(bytes.cast(), text.len()) }, text);
        found.then_some(bytes)
    }

    /// Pushes the string of these bytes, of which there are 1 to 31.
    ///
    /// # Safety
    /// The table of strings is under the top value, two slots are free; memory errors are raised. A collection may run finalizers, and these may come back here:
    /// nothing is kept across that but whole slots.
    #[inline]
    unsafe fn push(&mut self, l: *mut lua_State, text: &[u8]) {
        let at = Self::slot_of(text);
        // SAFETY: a slot's bytes belong to a string that the table holds under the same number.
        unsafe {
            if self.find(text).is_some() {
                lua_rawgeti_(l, -2, at as c_int + 1);
                return;
            }
            lua_pushlstring_(l, text.as_ptr().cast(), text.len());
            let mut len = 0;
            let bytes = lua_tolstring(l, -1, &mut len);
            lua_pushvalue(l, -1);
            lua_rawseti_(l, -4, at as c_int + 1);
            if let Some(slot) = self.slots.get_mut(at) {
                *slot = (bytes, len as u32);
            }
        }
    }
}

/// Whether two slices of one length, at most 31 bytes, are equal: a call of memcmp costs more than the comparison.
#[inline(always)]
fn same(a: &[u8], b: &[u8]) -> bool {
    let word = |s: &[u8]| s.first_chunk().map(|&c| u64::from_ne_bytes(c));
    let last = |s: &[u8]| s.last_chunk().map(|&c| u64::from_ne_bytes(c));
    if a.len() < 8 {
        return a.iter().zip(b).all(|(a, b)| a == b);
    }
    // The first eight bytes and the last eight overlap or meet up to sixteen; longer ones compare the middle too.
    word(a) == word(b)
        && last(a) == last(b)
        && (a.len() <= 16 || a.iter().zip(b).skip(8).take(a.len() - 16).all(|(a, b)| a == b))
}

impl Decoder<'_> {
    #[inline(always)]
    fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = rest.first_chunk::<N>().ok_or(DecodeError::Truncated(self.bytes.len()))?;
        self.at += N;
        Ok(*taken)
    }

    #[inline(always)]
    fn take(&mut self, len: usize) -> Result<&[u8]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = rest.get(..len).ok_or(DecodeError::Truncated(self.bytes.len()))?;
        self.at += len;
        Ok(taken)
    }

    #[inline(always)]
    fn u8(&mut self) -> Result<usize> {
        self.fixed().map(|[byte]| byte.into())
    }

    #[inline(always)]
    fn u16(&mut self) -> Result<usize> {
        self.fixed().map(|bytes| u16::from_be_bytes(bytes).into())
    }

    #[inline(always)]
    fn u32(&mut self) -> Result<usize> {
        self.fixed().map(|bytes| u32::from_be_bytes(bytes) as usize)
    }

    /// Decodes one value and pushes it.
    ///
    /// # Safety
    /// Two slots are free. So for all methods here.
    unsafe fn value(&mut self, level: u32) -> Result<()> {
        let [byte] = self.fixed()?;
        // SAFETY: each arm pushes exactly one value.
        unsafe {
            match byte {
                0x00..=0x7f => lua_pushinteger(self.l, byte.into()),
                0xe0..=0xff => lua_pushinteger(self.l, (byte as i8).into()),
                0xa0..=0xbf => return self.string((byte & 0x1f).into()),
                0x90..=0x9f => return self.array((byte & 0x0f).into(), level),
                0x80..=0x8f => return self.map((byte & 0x0f).into(), level),
                0xc0 => lua_rawgeti_(self.l, LUA_REGISTRYINDEX, self.shared.null_ref),
                0xc1 => return Err(DecodeError::IllegalCode(self.at - 1)),
                0xc2 => lua_pushboolean(self.l, 0),
                0xc3 => lua_pushboolean(self.l, 1),
                0xcb => {
                    let number = f64::from_bits(self.fixed().map(u64::from_be_bytes)?);
                    return self.float(number);
                }
                0xca => {
                    let number = f32::from_bits(self.fixed().map(u32::from_be_bytes)?);
                    return self.float(number.into());
                }
                0xcc => {
                    let number = self.u8()?;
                    lua_pushinteger(self.l, number as lua_Integer);
                }
                0xcd => {
                    let number = self.u16()?;
                    lua_pushinteger(self.l, number as lua_Integer);
                }
                0xce => {
                    let number = self.u32()?;
                    lua_pushnumber(self.l, number as lua_Number);
                }
                0xcf => {
                    let number = self.fixed().map(u64::from_be_bytes)?;
                    return self.uint64(number);
                }
                0xd0 => {
                    let number = self.u8()?;
                    lua_pushinteger(self.l, (number as i8).into());
                }
                0xd1 => {
                    let number = self.u16()?;
                    lua_pushinteger(self.l, (number as i16).into());
                }
                0xd2 => {
                    let number = self.u32()?;
                    lua_pushnumber(self.l, (number as i32).into());
                }
                0xd3 => {
                    let number = self.fixed().map(i64::from_be_bytes)?;
                    return self.int64(number);
                }
                0xd9 => return self.u8().and_then(|len| self.string(len)),
                0xda => return self.u16().and_then(|len| self.string(len)),
                0xdb => return self.u32().and_then(|len| self.string(len)),
                0xdc => return self.u16().and_then(|len| self.array(len, level)),
                0xdd => return self.u32().and_then(|len| self.array(len, level)),
                0xde => return self.u16().and_then(|len| self.map(len, level)),
                0xdf => return self.u32().and_then(|len| self.map(len, level)),
                0xc4..=0xc9 | 0xd4..=0xd8 => return self.extension(byte, level),
            }
        }
        Ok(())
    }

    #[inline]
    unsafe fn float(&mut self, number: f64) -> Result<()> {
        if !number.is_finite() && !self.options.decode_invalid_numbers {
            return Err(DecodeError::InvalidNumber);
        }
        // SAFETY: a slot is free.
        unsafe { lua_pushnumber(self.l, number) };
        Ok(())
    }

    #[inline]
    unsafe fn uint64(&mut self, number: u64) -> Result<()> {
        // SAFETY: a slot is free; the cold path checks for more.
        unsafe {
            if number > NUMBER_MAX {
                return self.boxed(self.shared.uint64_ref, number);
            }
            lua_pushnumber(self.l, number as lua_Number);
        }
        Ok(())
    }

    #[inline]
    unsafe fn int64(&mut self, number: i64) -> Result<()> {
        // SAFETY: as `uint64`.
        unsafe {
            if number.unsigned_abs() > NUMBER_MAX {
                return self.boxed(self.shared.int64_ref, number as u64);
            }
            lua_pushnumber(self.l, number as lua_Number);
        }
        Ok(())
    }

    /// Pushes a 64-bit cdata: its ctype makes a zero, whose payload is then set.
    #[cold]
    unsafe fn boxed(&mut self, ctype_ref: c_int, bits: u64) -> Result<()> {
        // SAFETY: calling a ctype without arguments only allocates; its payload is eight bytes.
        unsafe {
            lua_rawgeti_(self.l, LUA_REGISTRYINDEX, ctype_ref);
            lua_call(self.l, 0, 1);
            lua_topointer(self.l, -1).cast_mut().cast::<u64>().write_unaligned(bits);
        }
        Ok(())
    }

    #[inline]
    unsafe fn string(&mut self, len: usize) -> Result<()> {
        let l = self.l;
        let bytes = self.take(len)?;
        // SAFETY: Lua copies the bytes.
        unsafe { lua_pushlstring_(l, bytes.as_ptr().cast(), bytes.len()) };
        Ok(())
    }

    /// Before a container of `count` elements of at least `least` bytes each: is it deep, and can it be there at all?
    #[inline]
    unsafe fn enter(&mut self, count: usize, least: usize, level: u32) -> Result<()> {
        if level >= self.options.decode_max_depth {
            return Err(DecodeError::TooDeep(level + 1));
        }
        if count > (self.bytes.len() - self.at) / least {
            return Err(DecodeError::Truncated(self.bytes.len()));
        }
        if !level.is_multiple_of(LEVELS_CHECKED) {
            return Ok(());
        }
        // Room for this many levels at once: a map has its keys' table, itself, a key and a value on the stack.
        // SAFETY: a plain query; it may raise a memory error where the stack must grow.
        let room = unsafe { lua_checkstack(self.l, LEVELS_CHECKED as c_int * 4 + 8) } != 0;
        if room { Ok(()) } else { Err(DecodeError::Memory) }
    }

    unsafe fn array(&mut self, count: usize, level: u32) -> Result<()> {
        // SAFETY: `enter` made room; the table's size is bounded by the bytes that are there.
        unsafe {
            self.enter(count, 1, level)?;
            lua_createtable(self.l, count as c_int, 0);
            let direct = if let Some(layout) = self.shared.layout.get() {
                let address = layout.newest(self.l);
                if level == 0 && !self.tuple_mt.is_null() {
                    direct::set_metatable(address, self.tuple_mt);
                } else if self.options.decode_save_metatables {
                    direct::set_metatable(address, self.shared.array_mt);
                }
                NewArray::new(address, count)
            } else {
                self.hint(self.shared.array_mt_ref);
                None
            };
            let Some(direct) = direct else {
                for i in 1..=count {
                    self.value(level + 1)?;
                    lua_rawseti_(self.l, -2, i as c_int);
                }
                return Ok(());
            };
            for i in 1..=count {
                match self.plain()? {
                    Some(Plain::Number(number)) => direct.set_number(i, number),
                    Some(Plain::Bool(value)) => direct.set_bool(i, value),
                    None => {
                        self.value(level + 1)?;
                        lua_rawseti_(self.l, -2, i as c_int);
                    }
                }
            }
        }
        Ok(())
    }

    /// The next value when it is a number (not of 64 bits) or a boolean; otherwise nothing is read.
    #[inline(always)]
    fn plain(&mut self) -> Result<Option<Plain>> {
        let Some(&byte) = self.bytes.get(self.at) else { return Err(DecodeError::Truncated(self.at)) };
        let plain = match byte {
            0x00..=0x7f => Plain::Number(byte.into()),
            0xe0..=0xff => Plain::Number((byte as i8).into()),
            0xc2 | 0xc3 => Plain::Bool(byte == 0xc3),
            0xcb => {
                let [_, bits @ ..] = self.fixed::<9>()?;
                let number = f64::from_be_bytes(bits);
                if !number.is_finite() && !self.options.decode_invalid_numbers {
                    return Err(DecodeError::InvalidNumber);
                }
                return Ok(Some(Plain::Number(number)));
            }
            0xcc => {
                let [_, number] = self.fixed()?;
                return Ok(Some(Plain::Number(number.into())));
            }
            0xcd => {
                let [_, bits @ ..] = self.fixed::<3>()?;
                return Ok(Some(Plain::Number(u16::from_be_bytes(bits).into())));
            }
            0xce => {
                let [_, bits @ ..] = self.fixed::<5>()?;
                return Ok(Some(Plain::Number(u32::from_be_bytes(bits).into())));
            }
            _ => return Ok(None),
        };
        self.at += 1;
        Ok(Some(plain))
    }

    unsafe fn map(&mut self, count: usize, level: u32) -> Result<()> {
        // SAFETY: as `array`; the keys that Lua's tables refuse are refused first.
        unsafe {
            self.enter(count, 2, level)?;
            // The table of known keys stays under the map while it is filled.
            lua_rawgeti_(self.l, LUA_REGISTRYINDEX, (*self.keys).table_ref);
            lua_createtable(self.l, 0, count as c_int);
            let mut direct = None;
            if self.shared.layout.get().is_none() {
                self.hint(self.shared.map_mt_ref);
            } else {
                let address = lua_topointer(self.l, -1);
                if self.options.decode_save_metatables {
                    direct::set_metatable(address, self.shared.map_mt);
                }
                direct = (count > 0).then(|| NewMap::new(address));
            }
            for _ in 0..count {
                if let Some(map) = &direct
                    && self.pair(map)?
                {
                    continue;
                }
                self.key(level)?;
                self.value(level + 1)?;
                lua_rawset(self.l, -3);
            }
            lua_remove(self.l, -2);
        }
        Ok(())
    }

    /// Stores the next pair without a detour over the stack, when its key is a known string with a node of its own and its
    /// value is plain. Otherwise nothing is read.
    #[inline(always)]
    unsafe fn pair(&mut self, map: &NewMap) -> Result<bool> {
        let start = self.at;
        let Some(&byte @ 0xa1..=0xbf) = self.bytes.get(start) else { return Ok(false) };
        self.at += 1;
        let keys = self.keys;
        let text = self.take((byte & 0x1f).into())?;
        // SAFETY: the known keys' bytes are those of live strings; names of metamethods, which begin with two
        // underscores, are left to the C API. Nothing is allocated between the key's store and the value's.
        unsafe {
            let known = if text.first() == Some(&b'_') { None } else { (*keys).find(text) };
            if let Some(known) = known
                && let Some(plain) = self.plain()?
                && let Some(slot) = map.slot(known.cast())
            {
                match plain {
                    Plain::Number(number) => slot.set_number(number),
                    Plain::Bool(value) => slot.set_bool(value),
                }
                return Ok(true);
            }
        }
        self.at = start;
        Ok(false)
    }

    /// A map's key. Short strings are looked for among those seen lately, which saves Lua's own search for them.
    #[inline(always)]
    unsafe fn key(&mut self, level: u32) -> Result<()> {
        // SAFETY: each path pushes one value.
        unsafe {
            match self.bytes.get(self.at) {
                Some(&byte @ 0xa1..=0xbf) => {
                    self.at += 1;
                    let len = usize::from(byte & 0x1f);
                    let (l, keys) = (self.l, self.keys);
                    let text = self.take(len)?;
                    (*keys).push(l, text);
                    Ok(())
                }
                Some(0xca | 0xcb) => {
                    self.value(level + 1)?;
                    if lua_tonumber(self.l, -1).is_nan() { Err(DecodeError::NanKey) } else { Ok(()) }
                }
                _ => self.value(level + 1),
            }
        }
    }

    /// Marks the table on the top as array or map, through the C API.
    #[cold]
    unsafe fn hint(&mut self, metatable_ref: c_int) {
        if self.options.decode_save_metatables {
            // SAFETY: the metatable is in the registry since setup.
            unsafe {
                lua_rawgeti_(self.l, LUA_REGISTRYINDEX, metatable_ref);
                lua_setmetatable(self.l, -2);
            }
        }
    }

    /// A binary or an extension: `extend` of msgpack.lua makes the value of its payload.
    #[cold]
    unsafe fn extension(&mut self, byte: u8, level: u32) -> Result<()> {
        let is_binary = byte <= 0xc6;
        let len = match byte {
            0xd4..=0xd8 => 1_usize << (byte - 0xd4),
            0xc4 | 0xc7 => self.u8()?,
            0xc5 | 0xc8 => self.u16()?,
            _ => self.u32()?,
        };
        let kind = if is_binary { 0 } else { self.u8()? as i8 };
        // SAFETY: as for this function.
        if kind == ext::TUPLE && unsafe { self.tuple(len, level)? } {
            return Ok(());
        }
        let l = self.l;
        let extend = self.shared.extend_ref;
        let payload = self.take(len)?;
        // SAFETY: room is made first; Lua copies the payload.
        unsafe {
            if lua_checkstack(l, 6) == 0 {
                return Err(DecodeError::Memory);
            }
            lua_rawgeti_(l, LUA_REGISTRYINDEX, extend);
            if is_binary {
                push_str(l, "bin");
            } else {
                lua_pushinteger(l, kind.into());
            }
            lua_pushlstring_(l, payload.as_ptr().cast(), payload.len());
            if lua_pcall(l, 2, 1, 0) != 0 {
                return Err(DecodeError::Lua);
            }
        }
        Ok(())
    }

    /// A tuple whose payload of `len` bytes begins here: the number of a format, and an array. False where it is anything
    /// else, or tuples are not known yet: nothing was read then.
    unsafe fn tuple(&mut self, len: usize, level: u32) -> Result<bool> {
        let (start, l) = (self.at, self.l);
        let end = start + len;
        let mut reader = Reader::at(self.bytes.get(..end).unwrap_or_default(), start);
        let Ok(number) = reader.read_uint() else { return Ok(false) };
        let array = reader.position();
        let is_array = matches!(self.bytes.get(array), Some(0x90..=0x9f | 0xdc | 0xdd)) && array < end;
        let Some(number) = c_int::try_from(number).ok().filter(|_| is_array) else { return Ok(false) };
        // SAFETY: room is made first; the two tables stay under the value until its metatable is set.
        unsafe {
            if lua_checkstack(l, 8) == 0 {
                return Err(DecodeError::Memory);
            }
            lua_rawgeti_(l, LUA_REGISTRYINDEX, self.shared.tuple_metas_ref);
            lua_rawgeti_(l, -1, number);
            if lua_type(l, -1) != LUA_TTABLE {
                // Without its format a tuple has no names.
                lua_settop(l, -2);
                lua_rawgeti_(l, -1, -1);
            }
            if lua_type(l, -1) != LUA_TTABLE {
                lua_settop(l, -3);
                return Ok(false);
            }
            let top = lua_gettop(l);
            self.at = array;
            match self.value(level) {
                Ok(()) if self.at == end => {}
                Ok(()) | Err(DecodeError::Truncated(_) | DecodeError::IllegalCode(_)) => {
                    // Broken, or longer or shorter than it says.
                    lua_settop(l, top - 2);
                    self.at = start;
                    return Ok(false);
                }
                Err(failure) => return Err(failure),
            }
            lua_pushvalue(l, -2);
            lua_setmetatable(l, -2);
            lua_replace(l, -3);
            lua_settop(l, -2);
        }
        Ok(true)
    }
}
