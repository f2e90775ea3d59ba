//! MessagePack straight between Lua values and bytes: the native half of `cord.msgpack`, and the codec that net.box and
//! the server call directly.
//!
//! ```text
//! encode.rs   Lua value -> bytes        decode.rs   bytes -> Lua value        this file: options, shared state, natives
//! ```
//!
//! # For the rest of the library
//!
//! A [`Codec`] holds the options; [`default_codec`] is the one that `msgpack.cfg{}` changes, and its address stays valid
//! as long as the Lua state: fetch it once and keep it.
//!
//! * [`encode()`] appends a value to a buffer and **never runs Lua code**: no metamethod, no collection, hence no
//!   finalizer, so the buffer is the caller's alone all the while. A value that needs Lua (a `__serialize` function, a
//!   decimal, a user's cdata) is refused with [`EncodeError::NeedsLua`]; then call [`encode_to_string`], which runs
//!   what it must and leaves a Lua string, and append that string's bytes. The buffer is cut back on any error.
//! * [`decode()`] pushes one value. It creates objects, so a collection may run finalizers, and extension types call Lua
//!   (under a pcall): the bytes must not move meanwhile. Nothing here yields.
//! * [`encode_with`] and [`encode_to_string_with`] write tuples (tables whose metatable has `__tuple_format`) as the
//!   extension 7 and collect their formats in [`Formats`], whose map goes into the packet as TUPLE_FORMATS; the other two
//!   write them as arrays. Decoding finds the formats that `_set_formats` of `cord.netbox.tuple` was given last.
//! * Failures are values; [`push_encode_error`] and [`push_decode_error`] turn them into the error object to raise.
//!
//! Lua's own "not enough memory" may leave any of these by a jump, so callers hold no value with a destructor. Only
//! `decode` and `encode_to_string` can meet it; `encode` can only where the stack must grow.

use crate::lua::{error, state};
use crate::sys::luajit::Entry;
use mlua::ffi::*;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};

pub(crate) mod args;
mod decode;
mod direct;
mod encode;

pub use decode::{DecodeError, decode, decode_tuple, push_decode_error};
pub use encode::{
    EncodeError, Formats, encode, encode_to_string, encode_to_string_with, encode_with, is_tuple, push_encode_error,
};

/// The deepest nesting either direction allows, whatever the options say: each level takes native stack.
pub(crate) const HARD_DEPTH: u32 = 1000;
/// A scratch buffer larger than this is given back after use.
const SCRATCH_KEPT: usize = 8 << 20;
const SHARED_KEY: *const c_char = c"cord.msgpack.shared".as_ptr();
const CODEC_KEY: *const c_char = c"cord.msgpack.codec".as_ptr();

/// How a plain number type of the FFI goes out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CData {
    /// Anything that is no plain number.
    Other,
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Float,
    Double,
    /// `void *` and `const void *`: NULL is nil.
    Pointer,
}

/// Names under which `msgpack.lua` passes the ids of those types.
const CDATA_NAMES: [(&CStr, CData); 16] = [
    (c"bool", CData::Bool),
    (c"char", CData::I8),
    (c"int8_t", CData::I8),
    (c"int16_t", CData::I16),
    (c"int32_t", CData::I32),
    (c"int64_t", CData::I64),
    (c"uint8_t", CData::U8),
    (c"uint16_t", CData::U16),
    (c"uint32_t", CData::U32),
    (c"uint64_t", CData::U64),
    (c"float", CData::Float),
    (c"double", CData::Double),
    (c"void *", CData::Pointer),
    (c"const void *", CData::Pointer),
    (c"long long", CData::I64),
    (c"unsigned long long", CData::U64),
];

/// Ids of ctypes below this are looked up in an array; the standard types all are.
const CTYPE_IDS: usize = 128;

/// What all codecs of one Lua state share. Lives in a full userdata that the registry holds.
pub(crate) struct Shared {
    /// The ids of plain number types, valid when `reads_ids`.
    kinds: [CData; CTYPE_IDS],
    /// Whether the id in the header of a cdata was proved to be where we read it.
    reads_ids: bool,
    /// Where LuaJIT keeps what, when that was proved.
    proved: Option<direct::Layout>,
    /// The same, unless it was turned off.
    layout: Cell<Option<direct::Layout>>,
    /// Whether any metatable was registered by an extension.
    custom_metatables: Cell<bool>,
    /// Addresses of the two metatables that decoding sets.
    array_mt: *const c_void,
    map_mt: *const c_void,
    /// Registry references.
    null_ref: c_int,
    array_mt_ref: c_int,
    map_mt_ref: c_int,
    serialize_ref: c_int,
    tuple_format_ref: c_int,
    /// The table of the metatables of tuples, by the numbers of their formats; -1: of those without one.
    tuple_metas_ref: c_int,
    /// The string object that it refers to.
    tuple_format: *const u8,
    int64_ref: c_int,
    uint64_ref: c_int,
    convert_ref: c_int,
    extend_ref: c_int,
    by_metatable_ref: c_int,
    /// Strings that were keys of maps lately; its own allocation, since it is large.
    keys: *mut decode::Keys,
    /// A buffer nobody uses at the moment, or null.
    scratch: Cell<*mut Vec<u8>>,
}

impl Shared {
    /// A buffer of one's own until [`Shared::put_scratch`]; an error that jumps over that leaks it, nothing else.
    fn take_scratch(&self) -> *mut Vec<u8> {
        let taken = self.scratch.replace(std::ptr::null_mut());
        if taken.is_null() { Box::into_raw(Box::new(Vec::with_capacity(4096))) } else { taken }
    }

    /// Gives a buffer back, emptied.
    ///
    /// # Safety
    /// `scratch` came from `take_scratch` and is not used afterwards.
    unsafe fn put_scratch(&self, scratch: *mut Vec<u8>) {
        // SAFETY: the caller's contract: the pointer is a live Box's.
        unsafe {
            (*scratch).clear();
            if self.scratch.get().is_null() && (*scratch).capacity() <= SCRATCH_KEPT {
                self.scratch.set(scratch);
            } else {
                drop(Box::from_raw(scratch));
            }
        }
    }
}

/// One serializer: `msgpack.cfg` of the module, or of what `msgpack.new()` gives.
///
/// Lua code that runs while a value is encoded may change the options, so each run works on a copy.
pub struct Codec {
    shared: *const Shared,
    options: Cell<Options>,
}

/// The options, with Tarantool's names and defaults.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    encode_sparse_convert: bool,
    encode_sparse_ratio: u32,
    encode_sparse_safe: u32,
    encode_max_depth: u32,
    encode_deep_as_nil: bool,
    encode_invalid_numbers: bool,
    encode_load_metatables: bool,
    encode_use_tostring: bool,
    encode_invalid_as_nil: bool,
    encode_error_as_ext: bool,
    decode_invalid_numbers: bool,
    decode_save_metatables: bool,
    decode_max_depth: u32,
}

const DEFAULTS: Options = Options {
    encode_sparse_convert: true,
    encode_sparse_ratio: 2,
    encode_sparse_safe: 10,
    encode_max_depth: 128,
    encode_deep_as_nil: false,
    encode_invalid_numbers: true,
    encode_load_metatables: true,
    encode_use_tostring: false,
    encode_invalid_as_nil: false,
    encode_error_as_ext: true,
    decode_invalid_numbers: true,
    decode_save_metatables: true,
    decode_max_depth: 128,
};

/// The codec behind the module's own functions, which `msgpack.cfg{}` configures.
///
/// # Safety
/// `l` is live with a free slot and `cord.msgpack` was loaded in its state (the Lua chunk of a module that calls this
/// does so); otherwise the result is null.
pub unsafe fn default_codec(l: *mut lua_State) -> *const Codec {
    // SAFETY: the registry holds the userdata as long as the state lives.
    unsafe {
        lua_getfield_(l, LUA_REGISTRYINDEX, CODEC_KEY);
        let codec = lua_touserdata(l, -1);
        lua_settop(l, -2);
        codec.cast()
    }
}

/// Whether error objects inside of values go out as an extension (else as their texts), and sets it.
///
/// # Safety
/// `codec` is live.
pub unsafe fn errors_as_ext(codec: *mut Codec, new: Option<bool>) -> bool {
    // SAFETY: the caller's contract.
    unsafe {
        let mut options = (*codec).options.get();
        let before = options.encode_error_as_ext;
        options.encode_error_as_ext = new.unwrap_or(before);
        (*codec).options.set(options);
        before
    }
}

const FUNCTIONS: &[Entry] = &[
    (c"setup", l_setup),
    (c"probe", l_probe),
    (c"custom_metatables", l_custom_metatables),
    (c"codec", l_codec),
    (c"configure", l_configure),
    (c"encode", l_encode),
    (c"encode_ibuf", l_encode_ibuf),
    (c"decode", l_decode),
    (c"decode_at", l_decode_at),
    (c"skip", l_skip),
    (c"header_at", l_header_at),
    (c"layout", l_layout),
];

/// Pushes the native half of `cord.msgpack`.
///
/// # Safety
/// A live state with free stack slots, in which the library was opened.
pub(crate) unsafe fn native(l: *mut lua_State) {
    // SAFETY: the caller's contract.
    unsafe {
        lua_createtable(l, 0, FUNCTIONS.len() as c_int);
        state::register(l, FUNCTIONS);
    }
}

/// The id in the header of the cdata with this payload.
///
/// # Safety
/// The value is cdata and the layout was proved (or this is the proof).
#[inline(always)]
unsafe fn ctype_id(payload: *const c_void) -> u16 {
    // SAFETY: a cdata's payload follows its header, which is 16 bytes with the id at offset 10 (lj_obj.h, GCcdata).
    unsafe { payload.cast::<u8>().sub(6).cast::<u16>().read_unaligned() }
}

/// `probe(cdata)`: the id read from the header, for the proof in `msgpack.lua`.
unsafe extern "C-unwind" fn l_probe(l: *mut lua_State) -> c_int {
    // SAFETY: called by msgpack.lua with cdata; at worst the two bytes are no id and the proof fails.
    unsafe { lua_pushinteger(l, ctype_id(lua_topointer(l, 1)).into()) };
    1
}

/// Pops the value on the top into a registry reference.
unsafe fn reference(l: *mut lua_State, table: c_int, name: &CStr) -> c_int {
    // SAFETY: the caller passes the index of a table and has free slots.
    unsafe {
        lua_getfield_(l, table, name.as_ptr());
        luaL_ref(l, LUA_REGISTRYINDEX)
    }
}

/// `setup{...}`: makes the shared state from what `msgpack.lua` passes.
unsafe extern "C-unwind" fn l_setup(l: *mut lua_State) -> c_int {
    // SAFETY: called once by msgpack.lua with a table of the named things; the userdata goes to the registry.
    unsafe {
        lua_settop(l, 1);
        let pointer = |name: &CStr| {
            lua_getfield_(l, 1, name.as_ptr());
            let pointer = lua_topointer(l, -1);
            lua_settop(l, 1);
            pointer
        };
        let mut shared = Shared {
            kinds: [CData::Other; CTYPE_IDS],
            reads_ids: false,
            proved: None,
            layout: Cell::new(None),
            custom_metatables: Cell::new(false),
            array_mt: pointer(c"array_mt"),
            map_mt: pointer(c"map_mt"),
            null_ref: reference(l, 1, c"null"),
            array_mt_ref: reference(l, 1, c"array_mt"),
            map_mt_ref: reference(l, 1, c"map_mt"),
            serialize_ref: reference(l, 1, c"serialize"),
            tuple_format_ref: reference(l, 1, c"tuple_format"),
            tuple_metas_ref: reference(l, 1, c"tuple_metas"),
            tuple_format: direct::string_at(l, 1, c"tuple_format"),
            int64_ref: reference(l, 1, c"int64"),
            uint64_ref: reference(l, 1, c"uint64"),
            convert_ref: reference(l, 1, c"convert"),
            extend_ref: reference(l, 1, c"extend"),
            by_metatable_ref: reference(l, 1, c"by_metatable"),
            keys: std::ptr::null_mut(),
            scratch: Cell::new(std::ptr::null_mut()),
        };
        // In a userdata of its own that the registry holds, so no destructor is needed.
        shared.keys = lua_newuserdata(l, size_of::<decode::Keys>()).cast();
        luaL_ref(l, LUA_REGISTRYINDEX);
        lua_createtable(l, 256, 0);
        shared.keys.write(decode::Keys::new(l));
        lua_getfield_(l, 1, c"reads_ids".as_ptr());
        shared.reads_ids = lua_toboolean(l, -1) != 0;
        if shared.reads_ids {
            lua_settop(l, 1);
            for name in [c"sample", c"sample_map", c"sample_empty", c"int64_id", c"sample_large"] {
                lua_getfield_(l, 1, name.as_ptr());
            }
            shared.proved = direct::Layout::prove(l, 2, lua_tointeger_(l, 5) as u16);
            shared.layout.set(shared.proved);
            lua_settop(l, 1);
        }
        lua_getfield_(l, 1, c"ids".as_ptr());
        for (name, kind) in CDATA_NAMES {
            lua_getfield_(l, -1, name.as_ptr());
            let id = lua_tointeger_(l, -1);
            lua_settop(l, -2);
            if let Some(slot) = usize::try_from(id).ok().filter(|&id| id > 0).and_then(|id| shared.kinds.get_mut(id)) {
                *slot = kind;
            }
        }
        lua_newuserdata(l, size_of::<Shared>()).cast::<Shared>().write(shared);
        lua_setfield(l, LUA_REGISTRYINDEX, SHARED_KEY);
    }
    0
}

/// `layout([enable])`: whether tables are read where LuaJIT keeps them; true and false turn that on, where it was proved
/// possible, and off.
unsafe extern "C-unwind" fn l_layout(l: *mut lua_State) -> c_int {
    // SAFETY: see `shared`.
    unsafe {
        let shared = shared(l);
        if lua_type(l, 1) == LUA_TBOOLEAN {
            (*shared).layout.set(if lua_toboolean(l, 1) != 0 { (*shared).proved } else { None });
        }
        lua_pushboolean(l, (*shared).layout.get().is_some().into());
    }
    1
}

unsafe fn shared(l: *mut lua_State) -> *mut Shared {
    // SAFETY: setup ran when the chunk was loaded, before anything that calls this.
    unsafe {
        lua_getfield_(l, LUA_REGISTRYINDEX, SHARED_KEY);
        let shared = lua_touserdata(l, -1).cast();
        lua_settop(l, -2);
        shared
    }
}

/// `custom_metatables()`: from now on tables with a metatable are looked up among the registered ones.
unsafe extern "C-unwind" fn l_custom_metatables(l: *mut lua_State) -> c_int {
    // SAFETY: see `shared`.
    unsafe { (*shared(l)).custom_metatables.set(true) };
    0
}

/// `codec(is_default)`: a new codec with the default options.
unsafe extern "C-unwind" fn l_codec(l: *mut lua_State) -> c_int {
    // SAFETY: the userdata is written before anyone sees it.
    unsafe {
        let shared = shared(l);
        let codec = lua_newuserdata(l, size_of::<Codec>()).cast::<Codec>();
        codec.write(Codec { shared, options: Cell::new(DEFAULTS) });
        if lua_toboolean(l, 1) != 0 {
            lua_pushvalue(l, -1);
            lua_setfield(l, LUA_REGISTRYINDEX, CODEC_KEY);
        }
    }
    1
}

/// `configure(codec, options)`: takes over every option of the table.
unsafe extern "C-unwind" fn l_configure(l: *mut lua_State) -> c_int {
    // SAFETY: msgpack.lua passes a codec and a complete table of options.
    unsafe {
        let codec = lua_touserdata(l, 1).cast::<Codec>();
        let number = |name: &CStr| {
            lua_getfield_(l, 2, name.as_ptr());
            let value = lua_tointeger_(l, -1);
            lua_settop(l, 2);
            u32::try_from(value).unwrap_or(if value < 0 { 0 } else { u32::MAX })
        };
        let flag = |name: &CStr| {
            lua_getfield_(l, 2, name.as_ptr());
            let value = lua_toboolean(l, -1) != 0;
            lua_settop(l, 2);
            value
        };
        (*codec).options.set(Options {
            encode_sparse_convert: flag(c"encode_sparse_convert"),
            encode_sparse_ratio: number(c"encode_sparse_ratio"),
            encode_sparse_safe: number(c"encode_sparse_safe"),
            encode_max_depth: number(c"encode_max_depth").min(HARD_DEPTH),
            encode_deep_as_nil: flag(c"encode_deep_as_nil"),
            encode_invalid_numbers: flag(c"encode_invalid_numbers"),
            encode_load_metatables: flag(c"encode_load_metatables"),
            encode_use_tostring: flag(c"encode_use_tostring"),
            encode_invalid_as_nil: flag(c"encode_invalid_as_nil"),
            encode_error_as_ext: flag(c"encode_error_as_ext"),
            decode_invalid_numbers: flag(c"decode_invalid_numbers"),
            decode_save_metatables: flag(c"decode_save_metatables"),
            decode_max_depth: number(c"decode_max_depth").min(HARD_DEPTH),
        });
    }
    0
}

/// Encodes the value at `idx` into a scratch buffer, first without Lua, then with.
unsafe fn encode_into(
    l: *mut lua_State,
    idx: c_int,
    scratch: *mut Vec<u8>,
    codec: *const Codec,
) -> Result<(), EncodeError> {
    // SAFETY: the scratch buffer is ours; the codec is a live userdata.
    unsafe {
        match encode::run::<false>(l, idx, &mut *scratch, &*codec, std::ptr::null_mut()) {
            Err(EncodeError::NeedsLua) => encode::run::<true>(l, idx, &mut *scratch, &*codec, std::ptr::null_mut()),
            other => other,
        }
    }
}

/// `encode(codec, value)`: a string, or nil and an error.
unsafe extern "C-unwind" fn l_encode(l: *mut lua_State) -> c_int {
    // SAFETY: msgpack.lua passes a codec and a value.
    unsafe {
        let codec = lua_touserdata(l, 1).cast::<Codec>();
        let shared = (*codec).shared;
        let scratch = (*shared).take_scratch();
        let made = encode_into(l, 2, scratch, codec);
        match made {
            Ok(()) => lua_pushlstring_(l, (*scratch).as_ptr().cast(), (*scratch).len()),
            Err(_) => lua_pushnil(l),
        }
        (*shared).put_scratch(scratch);
        match made {
            Ok(()) => 1,
            Err(failure) => {
                push_encode_error_below(l, failure);
                2
            }
        }
    }
}

/// With nil just pushed above what a failed encode left: nil, then the error.
unsafe fn push_encode_error_below(l: *mut lua_State, failure: EncodeError) {
    // SAFETY: an `EncodeError::Lua` left its value under the nil.
    unsafe {
        if failure == EncodeError::Lua {
            lua_insert(l, -2);
        }
        push_encode_error(l, failure);
    }
}

/// Tarantool's input buffer, as `buffer.lua` declares it.
#[repr(C)]
struct Ibuf {
    slabc: *mut c_void,
    buf: *mut u8,
    rpos: *mut u8,
    wpos: *mut u8,
    epos: *mut u8,
    start_capacity: usize,
}

impl Ibuf {
    /// Makes room for `size` bytes behind `wpos`, as `ibuf_reserve_slow` does; false without memory.
    ///
    /// # Safety
    /// The pointers are those `buffer.lua` keeps: one block of malloc, or all null.
    unsafe fn reserve(&mut self, size: usize) -> bool {
        // SAFETY: all pointers lie in the one block, so their differences are its parts.
        unsafe {
            let used = self.wpos as usize - self.rpos as usize;
            let capacity = self.epos as usize - self.buf as usize;
            if size <= self.epos as usize - self.wpos as usize {
                return true;
            }
            if used + size <= capacity {
                std::ptr::copy(self.rpos, self.buf, used);
            } else {
                let mut wanted = (capacity * 2).max(self.start_capacity).max(64);
                while wanted < used + size {
                    wanted *= 2;
                }
                let block = libc::malloc(wanted).cast::<u8>();
                if block.is_null() {
                    return false;
                }
                if used > 0 {
                    std::ptr::copy_nonoverlapping(self.rpos, block, used);
                }
                libc::free(self.buf.cast());
                self.buf = block;
                self.epos = block.add(wanted);
            }
            self.rpos = self.buf;
            self.wpos = self.buf.add(used);
        }
        true
    }
}

/// `encode_ibuf(codec, value, ibuf)`: the bytes appended, or nil and an error; the buffer is untouched by a failure.
unsafe extern "C-unwind" fn l_encode_ibuf(l: *mut lua_State) -> c_int {
    // SAFETY: msgpack.lua passes a codec, a value and a checked `struct ibuf`, which stays on the stack.
    unsafe {
        let codec = lua_touserdata(l, 1).cast::<Codec>();
        let shared = (*codec).shared;
        let scratch = (*shared).take_scratch();
        let mut made = encode_into(l, 2, scratch, codec);
        let len = (*scratch).len();
        if made.is_ok() {
            let ibuf = lua_topointer(l, 3).cast_mut().cast::<Ibuf>();
            if (*ibuf).reserve(len) {
                std::ptr::copy_nonoverlapping((*scratch).as_ptr(), (*ibuf).wpos, len);
                (*ibuf).wpos = (*ibuf).wpos.add(len);
            } else {
                made = Err(EncodeError::Memory);
            }
        }
        (*shared).put_scratch(scratch);
        match made {
            Ok(()) => {
                lua_pushnumber(l, len as lua_Number);
                1
            }
            Err(failure) => {
                lua_pushnil(l);
                push_encode_error_below(l, failure);
                2
            }
        }
    }
}

/// Pushes what a decode gives Lua: value and position, or two nils and the error.
unsafe fn decoded(l: *mut lua_State, result: Result<usize, DecodeError>, base: usize) -> c_int {
    // SAFETY: a successful decode left its value on the top; a failed one its error, if it is Lua's own.
    unsafe {
        match result {
            Ok(position) => {
                lua_pushnumber(l, (position + base) as lua_Number);
                2
            }
            Err(failure) => {
                push_decode_error(l, failure);
                lua_pushnil(l);
                lua_insert(l, -2);
                lua_pushnil(l);
                lua_insert(l, -2);
                3
            }
        }
    }
}

/// The bytes of the string at `idx`, which must stay on the stack; none when it is no string.
unsafe fn bytes_of<'a>(l: *mut lua_State, idx: c_int) -> &'a [u8] {
    // SAFETY: the caller passes the index of a string.
    unsafe {
        let mut len = 0;
        let ptr = lua_tolstring(l, idx, &mut len);
        if ptr.is_null() { &[] } else { std::slice::from_raw_parts(ptr.cast(), len) }
    }
}

/// `decode(codec, string[, offset])`, offset from 1: value and next offset, or nil, nil and an error.
unsafe extern "C-unwind" fn l_decode(l: *mut lua_State) -> c_int {
    // SAFETY: msgpack.lua passes a codec, a string and an offset inside it.
    unsafe {
        let codec = lua_touserdata(l, 1).cast::<Codec>();
        let bytes = bytes_of(l, 2);
        // Without an offset lua_tointeger gives 0.
        let offset = lua_tointeger_(l, 3).max(1) as usize - 1;
        decoded(l, decode(l, bytes, offset, codec), 1)
    }
}

/// `decode_at(codec, address, size)`: value and bytes read, or nil, nil and an error.
unsafe extern "C-unwind" fn l_decode_at(l: *mut lua_State) -> c_int {
    // SAFETY: msgpack.lua passes a codec and the address and size its caller vouches for.
    unsafe {
        let codec = lua_touserdata(l, 1).cast::<Codec>();
        let bytes = slice_at(l, 2);
        decoded(l, decode(l, bytes, 0, codec), 0)
    }
}

/// The memory that an address and a size, at `idx` and `idx + 1`, name.
unsafe fn slice_at<'a>(l: *mut lua_State, idx: c_int) -> &'a [u8] {
    // SAFETY: the Lua caller vouches for the range, as for any FFI pointer; null makes an empty slice.
    unsafe {
        let address = lua_tonumber(l, idx) as usize;
        let size = lua_tonumber(l, idx + 1).max(0.0) as usize;
        let size = size.min(isize::MAX as usize).min(usize::MAX - address);
        if address == 0 { &[] } else { std::slice::from_raw_parts(address as *const u8, size) }
    }
}

/// `skip(string, offset)`, offset from 1: the offset behind the value, or nil and an error.
unsafe extern "C-unwind" fn l_skip(l: *mut lua_State) -> c_int {
    // SAFETY: msgpack.lua passes a string and an offset.
    unsafe {
        let bytes = bytes_of(l, 1);
        let offset = lua_tointeger_(l, 2).max(1) as usize - 1;
        match decode::skip(bytes, offset) {
            Ok(position) => {
                lua_pushnumber(l, (position + 1) as lua_Number);
                1
            }
            Err(failure) => {
                lua_pushnil(l);
                push_decode_error(l, failure);
                2
            }
        }
    }
}

/// `header_at(address, size, is_map)`: the count and the header's length; nil and whether the family was right.
unsafe extern "C-unwind" fn l_header_at(l: *mut lua_State) -> c_int {
    use crate::iproto::mp::{MpError, Reader};
    // SAFETY: msgpack.lua passes an address and a size its caller vouches for.
    unsafe {
        let mut reader = Reader::new(slice_at(l, 1));
        let count = if lua_toboolean(l, 3) != 0 { reader.read_map() } else { reader.read_array() };
        match count {
            Ok(count) => {
                lua_pushnumber(l, count.into());
                lua_pushinteger(l, reader.position() as lua_Integer);
            }
            Err(failure) => {
                lua_pushnil(l);
                lua_pushboolean(l, (failure == MpError::Truncated).into());
            }
        }
    }
    2
}

/// Replaces the text on the top with the error object that `cord.error`'s `constructor` makes of it.
unsafe fn make_error(l: *mut lua_State, constructor: &CStr, nargs: c_int) {
    // SAFETY: forwarded.
    unsafe { error::make(l, constructor, nargs) }
}
