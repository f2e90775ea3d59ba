//! Lua value to bytes. Source of the rules: `src/lua/serializer.c` (`luaL_tofield`), `src/lua/msgpack.c`, 3.9-dev.

use super::direct::Tuples;
use super::{CData, CTYPE_IDS, Codec, HARD_DEPTH, Options, Shared, ctype_id, direct, make_error};
use crate::iproto::constants::ext;
use crate::iproto::mp;
use crate::lua::state::push_str;
use crate::sys::luajit::LUA_TCDATA;
use mlua::ffi::*;
use std::ffi::{CStr, c_int, c_void};

/// Why a value has no MessagePack form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodeError {
    /// Only Lua code can say: call `encode_to_string`. Never comes from there.
    NeedsLua,
    /// Nested deeper than the option allows: the level.
    TooDeep(u32),
    /// A value of this Lua type cannot be carried.
    Unsupported(&'static str),
    /// NaN or infinity, and the options forbid them.
    InvalidNumber,
    /// A `__serialize` field that is neither a function nor a known word.
    InvalidSerialize,
    /// A sparse array, and the options do not make a map of it.
    Sparse,
    /// A string or table of 4 GiB or more.
    TooLong,
    /// No memory, or no room on Lua's stack.
    Memory,
    /// Lua code raised: what it raised is on the top of the stack.
    Lua,
}

type Result<T> = std::result::Result<T, EncodeError>;

/// Pushes the error object of a failed encode (replacing the raised value in the case of [`EncodeError::Lua`]).
///
/// # Safety
/// `l` is the thread the encode ran on, with free slots; memory errors are raised in it.
pub unsafe fn push_encode_error(l: *mut lua_State, failure: EncodeError) {
    // SAFETY: the caller's contract; each text is copied into Lua before the next call.
    unsafe {
        match failure {
            EncodeError::Lua => return make_error(l, c"wrap", 1),
            EncodeError::TooDeep(level) => {
                lua_pushfstring(l, c"Too high nest level - %d".as_ptr(), level as c_int);
            }
            EncodeError::Unsupported(name) => {
                push_str(l, "unsupported Lua type '");
                push_str(l, name);
                push_str(l, "'");
                lua_concat(l, 3);
            }
            EncodeError::InvalidNumber => push_str(l, "number must not be NaN or Inf"),
            EncodeError::InvalidSerialize => push_str(l, "invalid __serialize value"),
            EncodeError::Sparse => push_str(l, "excessively sparse array"),
            EncodeError::TooLong => push_str(l, "value is too long for MessagePack"),
            EncodeError::Memory => push_str(l, "not enough memory"),
            EncodeError::NeedsLua => push_str(l, "value needs Lua code to be encoded"),
        }
        make_error(l, c"luajit", 1);
    }
}

/// Appends the value at `idx` to `out` without running any Lua code.
///
/// # Errors
/// [`EncodeError`]; `out` is as it was before, and the stack too, except that [`EncodeError::Lua`] does not occur here.
///
/// # Safety
/// `idx` is valid on the live thread `l`; `codec` is a live codec of its state; no value with a destructor is alive in
/// the caller that a memory error must not jump over.
#[inline]
pub unsafe fn encode(l: *mut lua_State, idx: c_int, out: &mut Vec<u8>, codec: *const Codec) -> Result<()> {
    // SAFETY: the caller's contract.
    unsafe { run::<false>(l, idx, out, &*codec, std::ptr::null_mut()) }
}

/// As [`encode`], with tuples as the extension 7 whose formats are added to `formats`; null: as arrays.
///
/// # Errors
/// As [`encode`]. `formats` may then hold some that nothing refers to, which does no harm.
///
/// # Safety
/// As [`encode`]; `formats` is live and used by nobody else, or null.
#[inline]
pub unsafe fn encode_with(
    l: *mut lua_State,
    idx: c_int,
    out: &mut Vec<u8>,
    codec: *const Codec,
    formats: *mut Formats,
) -> Result<()> {
    // SAFETY: the caller's contract.
    unsafe { run::<false>(l, idx, out, &*codec, formats) }
}

/// Whether the value at `idx` (an absolute position) is a tuple. Neither allocates nor runs Lua code.
///
/// # Safety
/// As [`encode`], with three free slots.
pub unsafe fn is_tuple(l: *mut lua_State, idx: c_int, codec: *const Codec) -> bool {
    // SAFETY: the caller's contract; the stack is balanced.
    unsafe {
        if lua_type(l, idx) != LUA_TTABLE || lua_getmetatable(l, idx) == 0 {
            return false;
        }
        lua_rawgeti_(l, LUA_REGISTRYINDEX, (*(*codec).shared).tuple_format_ref);
        lua_rawget_(l, -2);
        let found = lua_type(l, -1) == LUA_TSTRING;
        lua_settop(l, -3);
        found
    }
}

/// Encodes the value at `idx` into a Lua string and pushes it, running `__serialize` and the like where needed.
///
/// # Errors
/// [`EncodeError`], never `NeedsLua`; with `Lua` the raised value was pushed instead of the string, else nothing was.
///
/// # Safety
/// As [`encode`]; Lua code runs, so nothing may be borrowed that it can reach.
pub unsafe fn encode_to_string(l: *mut lua_State, idx: c_int, codec: *const Codec) -> Result<()> {
    // SAFETY: the caller's contract.
    unsafe { encode_to_string_with(l, idx, codec, std::ptr::null_mut()) }
}

/// As [`encode_to_string`], with tuples as [`encode_with`] writes them.
///
/// # Errors
/// As [`encode_to_string`].
///
/// # Safety
/// As [`encode_to_string`] and [`encode_with`].
pub unsafe fn encode_to_string_with(
    l: *mut lua_State,
    idx: c_int,
    codec: *const Codec,
    formats: *mut Formats,
) -> Result<()> {
    // SAFETY: the caller's contract; the scratch buffer is ours until it is put back.
    unsafe {
        let shared = (*codec).shared;
        let scratch = (*shared).take_scratch();
        let made = run::<true>(l, idx, &mut *scratch, &*codec, formats);
        if made.is_ok() {
            lua_pushlstring_(l, (*scratch).as_ptr().cast(), (*scratch).len());
        }
        (*shared).put_scratch(scratch);
        made
    }
}

/// Both encoders: with `LUA`, Lua code may run.
pub(super) unsafe fn run<const LUA: bool>(
    l: *mut lua_State,
    idx: c_int,
    out: &mut Vec<u8>,
    codec: &Codec,
    formats: *mut Formats,
) -> Result<()> {
    let start = out.len();
    // SAFETY: the callers' contract. The shared state outlives every codec.
    unsafe {
        let top = lua_gettop(l);
        let idx = if idx < 0 { top + 1 + idx } else { idx };
        let mut encoder =
            Encoder::<LUA> { l, out, options: codec.options.get(), shared: &*codec.shared, conversions: 0, formats };
        let made = encoder.value(idx, 0);
        match made {
            Ok(()) => {}
            Err(EncodeError::Lua) => {
                out.truncate(start);
                // The raised value is on the top: move it down to where the stack was.
                lua_insert(l, top + 1);
                lua_settop(l, top + 1);
            }
            Err(_) => {
                out.truncate(start);
                lua_settop(l, top);
            }
        }
        made
    }
}

struct Encoder<'a, const LUA: bool> {
    l: *mut lua_State,
    out: &'a mut Vec<u8>,
    options: Options,
    shared: &'a Shared,
    /// `__serialize` functions that are being replaced by their results, one inside the other.
    conversions: u32,
    /// Where the formats of tuples go; null: tuples are arrays.
    formats: *mut Formats,
}

/// The formats of the tuples in one packet, in the order in which they were met: their numbers are their places.
#[derive(Debug, Default)]
pub struct Formats {
    /// Numbers and fields, one after the other: the pairs of TUPLE_FORMATS.
    pairs: Vec<u8>,
    /// Where the fields of each are in `pairs`.
    places: Vec<(usize, usize)>,
}

impl Formats {
    /// Forgets them all, for the next packet.
    pub fn clear(&mut self) {
        self.pairs.clear();
        self.places.clear();
    }

    /// Whether no tuple was met.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Appends the map of TUPLE_FORMATS.
    pub fn write(&self, out: &mut Vec<u8>) {
        mp::put_map(out, self.places.len() as u32);
        out.extend_from_slice(&self.pairs);
    }

    /// The number of a format, given as MessagePack.
    pub(super) fn number_of(&mut self, fields: &[u8]) -> u64 {
        let known = self.places.iter().position(|&(from, to)| self.pairs.get(from..to) == Some(fields));
        let number = known.unwrap_or(self.places.len()) as u64;
        if known.is_none() {
            mp::put_uint(&mut self.pairs, number);
            let from = self.pairs.len();
            self.pairs.extend_from_slice(fields);
            self.places.push((from, self.pairs.len()));
        }
        number
    }
}

/// Puts the header of a tuple before the payload that begins at `start`.
pub(super) fn close_tuple(out: &mut Vec<u8>, start: usize) -> Result<()> {
    let end = out.len();
    let len = u32::try_from(end - start).map_err(|_| EncodeError::TooLong)?;
    // Made behind the payload and turned to its front.
    out.try_reserve(8).map_err(|_| EncodeError::Memory)?;
    mp::put_ext_len(out, ext::TUPLE, len);
    let header = out.len() - end;
    if let Some(whole) = out.get_mut(start..) {
        whole.rotate_right(header);
    }
    Ok(())
}

/// What a table is to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hint {
    None,
    Array,
    Map,
}

/// What `convert` of msgpack.lua answered.
const CONVERT_UNSUPPORTED: lua_Integer = 0;
const CONVERT_EXT: lua_Integer = 1;
const CONVERT_BIN: lua_Integer = 2;
const CONVERT_RAW: lua_Integer = 3;
const CONVERT_VALUE: lua_Integer = 4;
const CONVERT_NIL: lua_Integer = 5;
const CONVERT_BAD_SERIALIZE: lua_Integer = 6;

impl<const LUA: bool> Encoder<'_, LUA> {
    /// Encodes the value at the absolute index `idx`; leaves the stack as it was.
    ///
    /// # Safety
    /// `idx` is valid and two slots are free. So for all methods here.
    #[inline]
    unsafe fn value(&mut self, idx: c_int, level: u32) -> Result<()> {
        // SAFETY: the type decides which accessor is called; none of them converts in place.
        unsafe {
            match lua_type(self.l, idx) {
                LUA_TNUMBER => self.number(lua_tonumber(self.l, idx)),
                LUA_TSTRING => self.string(idx),
                LUA_TBOOLEAN => {
                    mp::put_bool(self.out, lua_toboolean(self.l, idx) != 0);
                    Ok(())
                }
                LUA_TNIL => {
                    mp::put_nil(self.out);
                    Ok(())
                }
                LUA_TTABLE => self.table(idx, level),
                LUA_TCDATA => self.cdata(idx, level),
                other => self.other(idx, other, level),
            }
        }
    }

    #[inline]
    fn number(&mut self, number: f64) -> Result<()> {
        const TWO_63: f64 = 9_223_372_036_854_775_808.0;
        let integer = number as i64;
        // At 2^63 the conversion saturates, and the maximum rounds up to the number itself.
        if integer as f64 == number && number < TWO_63 {
            mp::put_int(self.out, integer);
            return Ok(());
        }
        if (TWO_63..2.0 * TWO_63).contains(&number) {
            mp::put_uint(self.out, number as u64);
            return Ok(());
        }
        self.double(number)
    }

    #[inline]
    fn double(&mut self, number: f64) -> Result<()> {
        if !number.is_finite() && !self.options.encode_invalid_numbers {
            if !self.options.encode_invalid_as_nil {
                return Err(EncodeError::InvalidNumber);
            }
            mp::put_nil(self.out);
        } else {
            mp::put_double(self.out, number);
        }
        Ok(())
    }

    #[inline]
    unsafe fn string(&mut self, idx: c_int) -> Result<()> {
        // SAFETY: the value is a string, so nothing is converted, and it stays on the stack while it is copied.
        unsafe {
            let mut len = 0;
            let ptr = lua_tolstring(self.l, idx, &mut len);
            self.text(std::slice::from_raw_parts(ptr.cast(), len))
        }
    }

    #[inline]
    fn text(&mut self, bytes: &[u8]) -> Result<()> {
        let len = u32::try_from(bytes.len()).map_err(|_| EncodeError::TooLong)?;
        self.reserve(bytes.len() + 5)?;
        mp::put_str_len(self.out, len);
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    /// Room for `len` bytes, without aborting the process where there is none.
    #[inline]
    fn reserve(&mut self, len: usize) -> Result<()> {
        if self.out.capacity() - self.out.len() >= len {
            return Ok(());
        }
        self.out.try_reserve(len).map_err(|_| EncodeError::Memory)
    }

    unsafe fn cdata(&mut self, idx: c_int, level: u32) -> Result<()> {
        if !self.shared.reads_ids {
            // SAFETY: forwarded; `convert` asks the FFI for everything.
            return unsafe { self.convert(idx, level) };
        }
        // SAFETY: the value is cdata, whose payload is at least as large as its proved type.
        unsafe {
            let payload = lua_topointer(self.l, idx);
            let id = ctype_id(payload) as usize;
            let kind = if id < CTYPE_IDS { self.shared.kinds.get(id).copied() } else { None };
            let out = &mut *self.out;
            match kind.unwrap_or(CData::Other) {
                CData::I64 => mp::put_int(out, payload.cast::<i64>().read_unaligned()),
                CData::U64 => mp::put_uint(out, payload.cast::<u64>().read_unaligned()),
                CData::Pointer if payload.cast::<*const c_void>().read_unaligned().is_null() => mp::put_nil(out),
                CData::Bool => mp::put_bool(out, payload.cast::<u8>().read() != 0),
                CData::I8 => mp::put_int(out, payload.cast::<i8>().read().into()),
                CData::I16 => mp::put_int(out, payload.cast::<i16>().read_unaligned().into()),
                CData::I32 => mp::put_int(out, payload.cast::<i32>().read_unaligned().into()),
                CData::U8 => mp::put_uint(out, payload.cast::<u8>().read().into()),
                CData::U16 => mp::put_uint(out, payload.cast::<u16>().read_unaligned().into()),
                CData::U32 => mp::put_uint(out, payload.cast::<u32>().read_unaligned().into()),
                CData::Double => return self.double(payload.cast::<f64>().read_unaligned()),
                CData::Float => {
                    let number = payload.cast::<f32>().read_unaligned();
                    if !number.is_finite() && !self.options.encode_invalid_numbers {
                        return self.double(number.into());
                    }
                    mp::put_float(out, number);
                }
                CData::Pointer | CData::Other => return self.convert(idx, level),
            }
        }
        Ok(())
    }

    /// Userdata, functions, threads.
    #[cold]
    unsafe fn other(&mut self, idx: c_int, kind: c_int, level: u32) -> Result<()> {
        // SAFETY: the type's name is a static string of Lua's.
        unsafe {
            let is_userdata = kind == LUA_TUSERDATA || kind == LUA_TLIGHTUSERDATA;
            if is_userdata && lua_touserdata(self.l, idx).is_null() {
                mp::put_nil(self.out);
                return Ok(());
            }
            if kind == LUA_TUSERDATA || self.options.encode_use_tostring {
                return self.convert(idx, level);
            }
            self.unsupported(kind)
        }
    }

    unsafe fn unsupported(&mut self, kind: c_int) -> Result<()> {
        if self.options.encode_invalid_as_nil {
            mp::put_nil(self.out);
            return Ok(());
        }
        // SAFETY: Lua's names of types are static and ASCII.
        let name = unsafe { CStr::from_ptr(lua_typename(self.l, kind)) };
        Err(EncodeError::Unsupported(name.to_str().unwrap_or("?")))
    }

    /// Asks `convert` of msgpack.lua what the value is: an extension, raw bytes, or another value instead of it.
    #[cold]
    unsafe fn convert(&mut self, idx: c_int, level: u32) -> Result<()> {
        if !LUA {
            return Err(EncodeError::NeedsLua);
        }
        // SAFETY: room is made first; the results stay on the stack while their bytes are copied.
        unsafe {
            let top = lua_gettop(self.l);
            self.check_stack(8)?;
            lua_rawgeti_(self.l, LUA_REGISTRYINDEX, self.shared.convert_ref);
            lua_pushvalue(self.l, idx);
            lua_pushboolean(self.l, self.options.encode_load_metatables.into());
            lua_pushboolean(self.l, self.options.encode_use_tostring.into());
            lua_pushboolean(self.l, self.options.encode_error_as_ext.into());
            if lua_pcall(self.l, 4, 3, 0) != 0 {
                return Err(EncodeError::Lua);
            }
            match lua_tointeger_(self.l, top + 1) {
                CONVERT_EXT => self.extension(top + 2, top + 3)?,
                CONVERT_BIN => self.binary(top + 2)?,
                CONVERT_RAW => {
                    let bytes = super::bytes_of(self.l, top + 2);
                    self.reserve(bytes.len())?;
                    self.out.extend_from_slice(bytes);
                }
                CONVERT_VALUE => self.replaced(top + 2, level)?,
                CONVERT_NIL => mp::put_nil(self.out),
                CONVERT_BAD_SERIALIZE => return Err(EncodeError::InvalidSerialize),
                CONVERT_UNSUPPORTED => {
                    let kind = lua_type(self.l, idx);
                    self.unsupported(kind)?;
                }
                _ => return Err(EncodeError::InvalidSerialize),
            }
            lua_settop(self.l, top);
        }
        Ok(())
    }

    unsafe fn extension(&mut self, payload: c_int, kind: c_int) -> Result<()> {
        // SAFETY: `convert` gave a string and a number; the string stays on the stack.
        unsafe {
            let bytes = super::bytes_of(self.l, payload);
            let len = u32::try_from(bytes.len()).map_err(|_| EncodeError::TooLong)?;
            self.reserve(bytes.len() + 6)?;
            mp::put_ext_len(self.out, lua_tointeger_(self.l, kind) as i8, len);
            self.out.extend_from_slice(bytes);
        }
        Ok(())
    }

    unsafe fn binary(&mut self, payload: c_int) -> Result<()> {
        // SAFETY: as for `extension`.
        unsafe {
            let bytes = super::bytes_of(self.l, payload);
            let len = u32::try_from(bytes.len()).map_err(|_| EncodeError::TooLong)?;
            self.reserve(bytes.len() + 5)?;
            mp::put_bin_len(self.out, len);
            self.out.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Encodes what a `__serialize` function gave in place of a value.
    unsafe fn replaced(&mut self, idx: c_int, level: u32) -> Result<()> {
        // One that gives itself back would go on for ever.
        self.conversions += 1;
        if self.conversions > HARD_DEPTH.min(128) {
            return Err(EncodeError::TooDeep(self.conversions));
        }
        // SAFETY: forwarded.
        let made = unsafe { self.value(idx, level) };
        self.conversions -= 1;
        made
    }

    unsafe fn check_stack(&mut self, slots: c_int) -> Result<()> {
        // SAFETY: a plain query; it may raise a memory error where the stack must grow.
        if unsafe { lua_checkstack(self.l, slots) } == 0 { Err(EncodeError::Memory) } else { Ok(()) }
    }

    unsafe fn table(&mut self, idx: c_int, level: u32) -> Result<()> {
        // SAFETY: room is made first, and each path below restores the top or fails (the caller restores it then).
        unsafe {
            if let Some(layout) = self.shared.layout.get() {
                let address = lua_topointer(self.l, idx);
                let tuples = if self.formats.is_null() { Tuples::Array } else { Tuples::Extension(self.formats) };
                if direct::table(address, level, self.out, &self.options, self.shared, layout, tuples).is_ok() {
                    return Ok(());
                }
            }
            self.check_stack(8)?;
            let mut hint = Hint::None;
            if self.options.encode_load_metatables && lua_getmetatable(self.l, idx) != 0 {
                match self.metatable(idx, level)? {
                    Some(found) => hint = found,
                    None => return Ok(()),
                }
            }
            if level >= self.options.encode_max_depth {
                if !self.options.encode_deep_as_nil {
                    return Err(EncodeError::TooDeep(level + 1));
                }
                mp::put_nil(self.out);
                return Ok(());
            }
            match hint {
                Hint::None => self.plain_table(idx, level),
                Hint::Array => {
                    let len = self.max_index(idx);
                    self.array(idx, len, level)
                }
                Hint::Map => self.map(idx, level),
            }
        }
    }

    /// With the metatable of the table at `idx` on the top, which is popped: what it says the table is; `None` when it
    /// was encoded by a function.
    unsafe fn metatable(&mut self, idx: c_int, level: u32) -> Result<Option<Hint>> {
        // SAFETY: the metatable is on the top; slots were checked by `table`.
        unsafe {
            let l = self.l;
            let address = lua_topointer(l, -1);
            if address == self.shared.array_mt || address == self.shared.map_mt {
                lua_settop(l, -2);
                let array = address == self.shared.array_mt;
                return Ok(Some(if array { Hint::Array } else { Hint::Map }));
            }
            if self.shared.custom_metatables.get() {
                lua_rawgeti_(l, LUA_REGISTRYINDEX, self.shared.by_metatable_ref);
                lua_pushvalue(l, -2);
                lua_rawget_(l, -2);
                let registered = lua_type(l, -1) != LUA_TNIL;
                lua_settop(l, -3);
                if registered {
                    lua_settop(l, -2);
                    return self.convert(idx, level).map(|()| None);
                }
            }
            if !self.formats.is_null() && self.tuple(idx, level)? {
                return Ok(None);
            }
            lua_rawgeti_(l, LUA_REGISTRYINDEX, self.shared.serialize_ref);
            lua_rawget_(l, -2);
            match lua_type(l, -1) {
                LUA_TNIL => {
                    lua_settop(l, -3);
                    Ok(Some(Hint::None))
                }
                LUA_TFUNCTION => {
                    if !LUA {
                        return Err(EncodeError::NeedsLua);
                    }
                    lua_pushvalue(l, idx);
                    if lua_pcall(l, 1, 1, 0) != 0 {
                        return Err(EncodeError::Lua);
                    }
                    let result = lua_gettop(l);
                    self.replaced(result, level)?;
                    lua_settop(l, -3);
                    Ok(None)
                }
                LUA_TSTRING => {
                    let hint = match super::bytes_of(l, -1) {
                        b"seq" | b"sequence" | b"array" => Hint::Array,
                        b"map" | b"mapping" => Hint::Map,
                        _ => return Err(EncodeError::InvalidSerialize),
                    };
                    lua_settop(l, -3);
                    Ok(Some(hint))
                }
                _ => Err(EncodeError::InvalidSerialize),
            }
        }
    }

    /// With its metatable on the top: encodes the table at `idx` as an extension if it is a tuple, and pops the metatable
    /// then.
    unsafe fn tuple(&mut self, idx: c_int, level: u32) -> Result<bool> {
        // SAFETY: slots were checked by `table`; the format's bytes are copied while the string is on the stack.
        unsafe {
            let l = self.l;
            lua_rawgeti_(l, LUA_REGISTRYINDEX, self.shared.tuple_format_ref);
            lua_rawget_(l, -2);
            if lua_type(l, -1) != LUA_TSTRING {
                lua_settop(l, -2);
                return Ok(false);
            }
            let number = (*self.formats).number_of(super::bytes_of(l, -1));
            lua_settop(l, -3);
            if level >= self.options.encode_max_depth {
                return Err(EncodeError::TooDeep(level + 1));
            }
            let start = self.out.len();
            mp::put_uint(self.out, number);
            // Fields that are tuples themselves are arrays, as in a tuple of Tarantool's.
            let formats = std::mem::replace(&mut self.formats, std::ptr::null_mut());
            let len = self.max_index(idx);
            let made = self.array(idx, len, level);
            self.formats = formats;
            made?;
            close_tuple(self.out, start)?;
        }
        Ok(true)
    }

    /// The largest whole key.
    unsafe fn max_index(&mut self, idx: c_int) -> u32 {
        let mut max = 0.0;
        // SAFETY: a traversal that changes nothing; each value is popped.
        unsafe {
            lua_pushnil(self.l);
            while lua_next(self.l, idx) != 0 {
                lua_settop(self.l, -2);
                if lua_type(self.l, -1) == LUA_TNUMBER {
                    let key = lua_tonumber(self.l, -1);
                    if key > max && key.floor() == key {
                        max = key;
                    }
                }
            }
        }
        max as u32
    }

    /// A table whose keys decide: an array when all are whole and at least 1, unless it is too sparse; else a map.
    unsafe fn plain_table(&mut self, idx: c_int, level: u32) -> Result<()> {
        let (mut size, mut max) = (0_u32, 0.0_f64);
        // SAFETY: as `max_index`.
        unsafe {
            lua_pushnil(self.l);
            while lua_next(self.l, idx) != 0 {
                size += 1;
                lua_settop(self.l, -2);
                let key = if lua_type(self.l, -1) == LUA_TNUMBER { lua_tonumber(self.l, -1) } else { 0.0 };
                if key != f64::from(size) && (key < 1.0 || key.floor() != key) {
                    lua_settop(self.l, -2);
                    return self.map(idx, level);
                }
                max = max.max(key);
            }
            let ratio = self.options.encode_sparse_ratio;
            if ratio > 0
                && max > f64::from(size.wrapping_mul(ratio))
                && max > f64::from(self.options.encode_sparse_safe)
            {
                if !self.options.encode_sparse_convert {
                    return Err(EncodeError::Sparse);
                }
                return self.map(idx, level);
            }
            self.array(idx, max as u32, level)
        }
    }

    unsafe fn array(&mut self, idx: c_int, len: u32, level: u32) -> Result<()> {
        self.reserve(len as usize + 5)?;
        mp::put_array(self.out, len);
        // SAFETY: one slot a value, popped again.
        unsafe {
            let value = lua_gettop(self.l) + 1;
            for i in 1..=len {
                lua_rawgeti_(self.l, idx, i as c_int);
                self.value(value, level + 1)?;
                lua_settop(self.l, -2);
            }
        }
        Ok(())
    }

    /// A map: encoded in one pass behind a header of one byte, which is widened where there turn out to be more pairs.
    unsafe fn map(&mut self, idx: c_int, level: u32) -> Result<()> {
        let header = self.out.len();
        mp::put_map(self.out, 0);
        let mut pairs = 0_u32;
        // SAFETY: key and value take a slot each; keys are encoded where they are, and never converted.
        unsafe {
            let key = lua_gettop(self.l) + 1;
            lua_pushnil(self.l);
            while lua_next(self.l, idx) != 0 {
                pairs += 1;
                self.value(key, level + 1)?;
                self.value(key + 1, level + 1)?;
                lua_settop(self.l, key);
            }
        }
        if pairs < 16 {
            if let Some(byte) = self.out.get_mut(header) {
                *byte = 0x80 | pairs as u8;
            }
            return Ok(());
        }
        let [a, b, c, d] = pairs.to_be_bytes();
        let (narrow, wide) = ([0xde, c, d], [0xdf, a, b, c, d]);
        let wide: &[u8] = if pairs <= 0xffff { &narrow } else { &wide };
        self.reserve(4)?;
        self.out.splice(header..=header, wide.iter().copied());
        Ok(())
    }
}
