//! The fast path of encoding: tables read where LuaJIT keeps them, without a call of the C API for each element.
//!
//! ```text
//! GCtab (GC64)   +16 array   +32 metatable   +40 node   +48 asize   +52 hmask
//! array          asize values; key i is array[i], slot 0 is key 0
//! node           hmask+1 nodes of 24 bytes: value, key, next; a table without a hash part points at one shared node
//! value          a double, or a tag in the upper 17 bits above a pointer of 47
//! GCstr          +12 what tables hash it by, +16 or +20 length (it moved in 2021), +24 the bytes
//! GCcdata        +10 ctype id, +16 payload
//! ```
//!
//! None of this is public, so nothing is assumed: [`Layout::prove`] looks at tables whose contents it knows, with reads
//! that cannot fault, and where anything is not as drawn there is no layout and the C API does everything. Whatever the
//! fast path does not handle (a metatable it does not know, keys that are no strings, functions, too much depth) makes
//! it give up without a trace; the C API then decides, and words the error.
//!
//! Source: LuaJIT `src/lj_obj.h`, v2.1 branch (2022 to 2026).

use super::{CData, CTYPE_IDS, Formats, Options, Shared};
use crate::iproto::mp;
use crate::lua::jit::OFFSET_BASE;
use mlua::ffi::*;
use std::ffi::{c_int, c_void};

const TAB_ARRAY: usize = 16;
const TAB_METATABLE: usize = 32;
const TAB_NODE: usize = 40;
const TAB_ASIZE: usize = 48;
const TAB_HMASK: usize = 52;
const NODE_SIZE: usize = 24;
const NODE_KEY: usize = 8;
const NODE_NEXT: usize = 16;
const STR_HASH: usize = 12;
const STR_DATA: usize = 24;
/// Where every object keeps the collector's colours.
const MARKED: usize = 8;
const CDATA_ID: usize = 10;
const CDATA_PAYLOAD: usize = 16;

const NIL: u64 = u64::MAX;
pub(crate) const POINTER: u64 = (1 << 47) - 1;
/// Tags as the upper 17 bits: the complement of a small number (`LJ_T*`).
const fn tag(n: u64) -> u64 {
    !n & 0x1_ffff
}
const FALSE: u64 = tag(1);
const TRUE: u64 = tag(2);
pub(crate) const STR: u64 = tag(4);
const CDATA: u64 = tag(10);
pub(crate) const TAB: u64 = tag(11);
pub(crate) const UDATA: u64 = tag(12);
/// Values with a lower tag are doubles; with this one, in builds that have them (ARM64), integers of 32 bits.
pub(crate) const NUMX: u64 = tag(13);

/// What was proved about this process's LuaJIT.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    /// Offset of a string's length.
    str_len: usize,
    /// The node that tables without a hash part point at.
    nil_node: usize,
    /// Offset of a userdata's memory; 0 where it is not known how a thread's stack is found ([`super::args`]).
    pub(super) udata: usize,
}

/// The fast path gave up; nothing is wrong.
pub(crate) struct GiveUp;

/// Reads `N` bytes of any address, or says that there are none: the kernel does the reading.
fn probe<const N: usize>(address: usize, pipe: [c_int; 2]) -> Option<[u8; N]> {
    let mut bytes = [0_u8; N];
    // SAFETY: the kernel checks the source address and answers EFAULT; the destination is ours and N bytes long, far
    // less than a pipe holds.
    unsafe {
        if libc::write(pipe[1], address as *const c_void, N) != N as isize {
            return None;
        }
        (libc::read(pipe[0], bytes.as_mut_ptr().cast(), N) == N as isize).then_some(bytes)
    }
}

impl Layout {
    /// Nothing is known.
    pub(super) const NONE: Layout = Layout { str_len: 0, nil_node: 0, udata: 0 };

    /// Looks at the sample tables on `l`'s stack: at `idx` an array `{1.5, 'cord: twenty-one char', true, false, <the
    /// table at idx + 1>, <cdata int64_t -7>}`, at `idx + 1` a map `{key = 2.5}` with the metatable at `idx + 2`, which
    /// is an empty table. `int64_id` is that ctype's id.
    ///
    /// # Safety
    /// The stack slots hold those values, and at `idx + 4` there is a map with 40 strings as its keys.
    pub(crate) unsafe fn prove(l: *mut lua_State, idx: c_int, int64_id: u16) -> Option<Layout> {
        if !cfg!(all(target_pointer_width = "64", target_endian = "little")) {
            return None;
        }
        let mut pipe = [0; 2];
        // SAFETY: the array has room for the two descriptors, which are closed below.
        unsafe {
            if libc::pipe(pipe.as_mut_ptr()) != 0 {
                return None;
            }
            let tables = [0, 1, 2, 4].map(|i| lua_topointer(l, idx + i) as usize);
            let mut layout = Self::look(tables, int64_id, pipe);
            if let Some(layout) = &mut layout {
                layout.udata = Self::look_at_stack(l, pipe).unwrap_or(0);
            }
            libc::close(pipe[0]);
            libc::close(pipe[1]);
            layout
        }
    }

    fn look([array, map, metatable, large]: [usize; 4], int64_id: u16, pipe: [c_int; 2]) -> Option<Layout> {
        let word = |address: usize| probe::<8>(address, pipe).map(u64::from_le_bytes);
        let half = |address: usize| probe::<4>(address, pipe).map(u32::from_le_bytes);
        let slots = word(array + TAB_ARRAY)? as usize;
        let nil_node = word(array + TAB_NODE)? as usize;
        let is = |ok: bool| ok.then_some(());
        let boxed = |tag: u64, address: usize| tag << 47 | address as u64;

        // The array: its size, no hash part, no metatable, and each value with its tag.
        is((7..64).contains(&half(array + TAB_ASIZE)?) && half(array + TAB_HMASK)? == 0)?;
        is(word(array + TAB_METATABLE)? == 0)?;
        is(word(slots)? == NIL && word(slots + 8)? == 1.5_f64.to_bits())?;
        let string = word(slots + 16)?;
        is(string >> 47 == STR)?;
        is(word(slots + 24)? >> 47 == TRUE && word(slots + 32)? >> 47 == FALSE)?;
        is(word(slots + 40)? == boxed(TAB, map))?;
        let cdata = word(slots + 48)?;
        is(cdata >> 47 == CDATA)?;
        let cdata = (cdata & POINTER) as usize;
        is(probe::<2>(cdata + CDATA_ID, pipe)? == int64_id.to_le_bytes())?;
        is(word(cdata + CDATA_PAYLOAD)? == (-7_i64) as u64)?;

        // The string: its bytes, and its length in exactly one of two places.
        let string = (string & POINTER) as usize;
        is(&probe::<22>(string + STR_DATA, pipe)? == b"cord: twenty-one char\0")?;
        let str_len = match (half(string + 16)? == 21, half(string + 20)? == 21) {
            (true, false) => 16,
            (false, true) => 20,
            _ => return None,
        };

        // The map: no array part, a few nodes of which one is used, its metatable.
        let hmask = half(map + TAB_HMASK)?;
        is(half(map + TAB_ASIZE)? == 0 && hmask < 4)?;
        is(word(map + TAB_METATABLE)? as usize == metatable)?;
        let nodes = word(map + TAB_NODE)? as usize;
        let mut used = (0..=hmask as usize).map(|i| nodes + i * NODE_SIZE).filter(|&node| word(node) != Some(NIL));
        let node = used.next()?;
        is(used.next().is_none() && nodes != nil_node && word(node)? == 2.5_f64.to_bits())?;
        let key = word(node + NODE_KEY)?;
        is(key >> 47 == STR && &probe::<4>((key & POINTER) as usize + STR_DATA, pipe)? == b"key\0")?;

        // The empty table: neither part, and the same shared node, whose value is nil.
        is(half(metatable + TAB_ASIZE)? == 0 && word(metatable + TAB_NODE)? as usize == nil_node)?;
        is(word(nil_node)? == NIL)?;

        // The large map: most keys are where their hash says (the rest collided), and a free node is nil in both halves.
        let hmask = half(large + TAB_HMASK)? as usize;
        let nodes = word(large + TAB_NODE)? as usize;
        is(hmask == 63)?;
        let (mut at_home, mut free) = (0, 0);
        for i in 0..=hmask {
            let node = nodes + i * NODE_SIZE;
            let key = word(node + NODE_KEY)?;
            if key == NIL {
                is(word(node)? == NIL && word(node + NODE_NEXT)? == 0)?;
                free += 1;
            } else {
                is(key >> 47 == STR)?;
                at_home += usize::from(half((key & POINTER) as usize + STR_HASH)? as usize & hmask == i);
            }
        }
        is(free == 24 && at_home >= 20)?;
        Some(Layout { str_len, nil_node, udata: 0 })
    }

    /// Whether base and top of the running function are where they are expected; where a userdata's memory begins.
    unsafe fn look_at_stack(l: *mut lua_State, pipe: [c_int; 2]) -> Option<usize> {
        let word = |address: usize| probe::<8>(address, pipe).map(|bytes| u64::from_le_bytes(bytes) as usize);
        let is = |ok: bool| ok.then_some(());
        // SAFETY: the caller, a C function, has free slots; the stack is put back by it.
        unsafe {
            let place = l as usize + OFFSET_BASE;
            let (base, top) = (word(place)?, word(place + 8)?);
            is(top == base + lua_gettop(l).unsigned_abs() as usize * 8)?;
            lua_pushnumber(l, 1.5);
            let memory = lua_newuserdata(l, 16) as usize;
            is(word(place)? == base && word(place + 8)? == top + 16)?;
            is(word(top)? as u64 == 1.5_f64.to_bits())?;
            let value = word(top + 8)? as u64;
            let offset = memory.wrapping_sub((value & POINTER) as usize);
            is(value >> 47 == UDATA && (32..=64).contains(&offset))?;
            Some(offset)
        }
    }

    /// The address of the table on the top of the stack.
    ///
    /// # Safety
    /// A table is there, and the layout was proved.
    #[inline(always)]
    pub(super) unsafe fn newest(&self, l: *mut lua_State) -> *const c_void {
        // SAFETY: the caller's contract.
        unsafe {
            if self.udata == 0 {
                return lua_topointer(l, -1);
            }
            let top: *const u64 = read(l.cast(), OFFSET_BASE + 8);
            (*top.sub(1) & POINTER) as *const c_void
        }
    }

    /// The bytes of a string value.
    ///
    /// # Safety
    /// `bits` is that of a live string.
    #[inline(always)]
    pub(super) unsafe fn bytes<'a>(&self, bits: u64) -> &'a [u8] {
        // SAFETY: a string's bytes and length are where they were proved to be.
        unsafe {
            let string = (bits & POINTER) as *const u8;
            let len: u32 = read(string, self.str_len);
            std::slice::from_raw_parts(string.add(STR_DATA), len as usize)
        }
    }
}

/// Whether a table holds `true` under a name of eight bytes, and nothing else; `None` for tables of another make.
///
/// # Safety
/// A live table, and a proved layout.
#[inline(always)]
pub(super) unsafe fn is_flag(t: *const u8, key: [u8; 8], layout: Layout) -> Option<bool> {
    // SAFETY: fields of a live table; a hash part has `hmask` nodes and one.
    unsafe {
        let hmask: u32 = read(t, TAB_HMASK);
        if read::<u32>(t, TAB_ASIZE) != 0 || hmask > 1 {
            return None;
        }
        let mut node: *const u8 = read(t, TAB_NODE);
        if hmask == 1 {
            let values = (read::<u64>(node, 0), read::<u64>(node, NODE_SIZE));
            match values {
                (NIL, _) => node = node.add(NODE_SIZE),
                (_, NIL) => {}
                _ => return Some(false),
            }
        }
        let name: u64 = read(node, NODE_KEY);
        let is_true = read::<u64>(node, 0) >> 47 == TRUE;
        Some(is_true && name >> 47 == STR && layout.bytes(name) == key)
    }
}

/// The object of the string under `name` in the table at `idx`, which something else holds on to.
///
/// # Safety
/// A live state with a free slot.
pub(super) unsafe fn string_at(l: *mut lua_State, idx: c_int, name: &std::ffi::CStr) -> *const u8 {
    // SAFETY: the caller's contract; the address is used with a proved layout only.
    unsafe {
        lua_getfield_(l, idx, name.as_ptr());
        let bytes = lua_tolstring(l, -1, std::ptr::null_mut()).cast::<u8>();
        lua_settop(l, -2);
        bytes.wrapping_sub(STR_DATA)
    }
}

/// What becomes of tuples.
#[derive(Clone, Copy)]
pub(super) enum Tuples {
    /// The attempt is given up.
    GiveUp,
    /// Arrays.
    Array,
    /// Extensions, whose formats are added to these.
    Extension(*mut Formats),
}

/// The value that a table holds under a string, if it does.
///
/// # Safety
/// A live table of a proved layout, and the address of a live string object.
unsafe fn find(t: *const u8, string: *const u8) -> Option<u64> {
    // SAFETY: fields of a live table; a string's node is in the chain that its hash begins. A table without a hash part
    // points at one empty node.
    unsafe {
        let hmask: u32 = read(t, TAB_HMASK);
        let nodes: *const u8 = read(t, TAB_NODE);
        let mut node = nodes.add((read::<u32>(string, STR_HASH) & hmask) as usize * NODE_SIZE);
        while !node.is_null() {
            if read::<u64>(node, NODE_KEY) == STR << 47 | string as u64 {
                return Some(read(node, 0)).filter(|bits| *bits != NIL);
            }
            node = read(node, NODE_NEXT);
        }
        None
    }
}

/// One attempt at a table.
struct Direct<'a> {
    tuples: Tuples,
    out: &'a mut Vec<u8>,
    options: &'a Options,
    shared: &'a Shared,
    layout: Layout,
}

/// Encodes the table at `address` at nesting `level`, or gives up and leaves `out` as it was.
///
/// # Safety
/// `address` is that of a live table which nothing changes meanwhile: no Lua code runs here. The layout was proved in
/// this process.
#[inline]
pub(super) unsafe fn table(
    address: *const c_void,
    level: u32,
    out: &mut Vec<u8>,
    options: &Options,
    shared: &Shared,
    layout: Layout,
    tuples: Tuples,
) -> Result<(), GiveUp> {
    let start = out.len();
    let mut direct = Direct { tuples, out, options, shared, layout };
    // SAFETY: the caller's contract.
    let made = unsafe { direct.table(address.cast(), level) };
    if made.is_err() {
        out.truncate(start);
    }
    made
}

/// Reads a field of a proved layout.
#[inline(always)]
pub(super) unsafe fn read<T: Copy>(base: *const u8, offset: usize) -> T {
    // SAFETY: the caller names a field of a live object; all are aligned by LuaJIT.
    unsafe { base.add(offset).cast::<T>().read() }
}

impl Direct<'_> {
    /// # Safety
    /// `t` is a live table; so for all methods, with values of live objects.
    unsafe fn table(&mut self, t: *const u8, level: u32) -> Result<(), GiveUp> {
        // SAFETY: fields of a live table, whose layout was proved.
        unsafe {
            if level >= self.options.encode_max_depth {
                return Err(GiveUp);
            }
            let metatable: *const c_void = read(t, TAB_METATABLE);
            let mut is_map = false;
            if !metatable.is_null() && self.options.encode_load_metatables {
                if metatable == self.shared.map_mt {
                    is_map = true;
                } else if metatable != self.shared.array_mt {
                    return self.tuple(t, metatable.cast(), level);
                }
            }
            self.contents(t, metatable == self.shared.array_mt, is_map, level)
        }
    }

    /// A table with a metatable that neither of the two hints is.
    #[inline(never)]
    unsafe fn tuple(&mut self, t: *const u8, metatable: *const u8, level: u32) -> Result<(), GiveUp> {
        // SAFETY: a live table and its metatable; the key is held by the registry.
        unsafe {
            let format = find(metatable, self.shared.tuple_format).filter(|bits| bits >> 47 == STR).ok_or(GiveUp)?;
            let formats = match self.tuples {
                Tuples::GiveUp => return Err(GiveUp),
                Tuples::Array => return self.contents(t, true, false, level),
                Tuples::Extension(formats) => formats,
            };
            let number = (*formats).number_of(self.layout.bytes(format));
            let start = self.out.len();
            mp::put_uint(self.out, number);
            // A tuple is plain MessagePack inside.
            self.tuples = Tuples::Array;
            let made = self.contents(t, true, false, level);
            self.tuples = Tuples::Extension(formats);
            made?;
            super::encode::close_tuple(self.out, start).map_err(|_| GiveUp)
        }
    }

    /// What a table holds: with `is_array` and `is_map` what it must be.
    #[inline(always)]
    unsafe fn contents(&mut self, t: *const u8, is_array: bool, is_map: bool, level: u32) -> Result<(), GiveUp> {
        // SAFETY: fields of a live table, whose layout was proved.
        unsafe {
            let asize: u32 = read(t, TAB_ASIZE);
            let node: *const u8 = read(t, TAB_NODE);
            let slots: *const u64 = read(t, TAB_ARRAY);
            let mut len = asize;
            while len > 0 && *slots.add(len as usize - 1) == NIL {
                len -= 1;
            }
            if node as usize == self.layout.nil_node {
                return match (len, is_map) {
                    (0, true) => {
                        self.out.push(0x80);
                        Ok(())
                    }
                    (0, false) => {
                        self.out.push(0x90);
                        Ok(())
                    }
                    (_, false) if *slots == NIL => self.array(slots, len - 1, level, !is_array),
                    _ => Err(GiveUp),
                };
            }
            // An array with a hash part, or a map with both: the C API counts keys.
            if len > 0 || is_array {
                return Err(GiveUp);
            }
            let hmask: u32 = read(t, TAB_HMASK);
            self.map(node, hmask as usize + 1, level, is_map)
        }
    }

    unsafe fn array(&mut self, slots: *const u64, len: u32, level: u32, may_be_sparse: bool) -> Result<(), GiveUp> {
        // Most elements are short; strings and containers reserve for themselves.
        self.out.try_reserve(len as usize * 9 + 5).map_err(|_| GiveUp)?;
        mp::put_array(self.out, len);
        let mut holes = 0_u32;
        // SAFETY: the array has more than `len` slots.
        unsafe {
            for i in 1..=len as usize {
                let bits = *slots.add(i);
                holes += u32::from(bits == NIL);
                self.value(bits, level)?;
            }
        }
        if holes > 0 && may_be_sparse {
            let (size, ratio) = (len - holes, self.options.encode_sparse_ratio);
            if ratio > 0 && len > size.wrapping_mul(ratio) && len > self.options.encode_sparse_safe {
                return Err(GiveUp);
            }
        }
        Ok(())
    }

    unsafe fn map(&mut self, node: *const u8, nodes: usize, level: u32, is_map: bool) -> Result<(), GiveUp> {
        // SAFETY: a hash part has that many nodes.
        unsafe {
            let mut pairs = 0_u32;
            for i in 0..nodes {
                pairs += u32::from(read::<u64>(node, i * NODE_SIZE) != NIL);
            }
            if pairs == 0 {
                self.out.push(if is_map { 0x80 } else { 0x90 });
                return Ok(());
            }
            mp::put_map(self.out, pairs);
            for i in 0..nodes {
                let value: u64 = read(node, i * NODE_SIZE);
                if value == NIL {
                    continue;
                }
                let key: u64 = read(node, i * NODE_SIZE + NODE_KEY);
                if key >> 47 != STR {
                    return Err(GiveUp);
                }
                self.string(key)?;
                self.value(value, level)?;
            }
        }
        Ok(())
    }

    /// A value inside a container of nesting `level`.
    #[inline(always)]
    unsafe fn value(&mut self, bits: u64, level: u32) -> Result<(), GiveUp> {
        // SAFETY: the tag says what the pointer is.
        unsafe {
            let kind = bits >> 47;
            if kind < NUMX {
                return self.number(f64::from_bits(bits));
            }
            match kind {
                STR => self.string(bits),
                TAB => self.table((bits & POINTER) as *const u8, level + 1),
                TRUE => {
                    self.out.push(0xc3);
                    Ok(())
                }
                FALSE => {
                    self.out.push(0xc2);
                    Ok(())
                }
                NUMX => {
                    mp::put_int(self.out, (bits as i32).into());
                    Ok(())
                }
                CDATA => self.cdata((bits & POINTER) as *const u8),
                _ if bits == NIL => {
                    self.out.push(0xc0);
                    Ok(())
                }
                _ => Err(GiveUp),
            }
        }
    }

    #[inline(always)]
    fn number(&mut self, number: f64) -> Result<(), GiveUp> {
        const TWO_63: f64 = 9_223_372_036_854_775_808.0;
        let integer = number as i64;
        if integer as f64 == number && number < TWO_63 {
            if (0..0x80).contains(&integer) {
                self.out.push(integer as u8);
            } else {
                mp::put_int(self.out, integer);
            }
            Ok(())
        } else if number.is_finite() && number.abs() < TWO_63 {
            mp::put_double(self.out, number);
            Ok(())
        } else {
            Err(GiveUp)
        }
    }

    #[inline(always)]
    unsafe fn string(&mut self, bits: u64) -> Result<(), GiveUp> {
        // SAFETY: a string's bytes and length are where they were proved to be.
        unsafe {
            let string = (bits & POINTER) as *const u8;
            let len: u32 = read(string, self.layout.str_len);
            self.out.try_reserve(len as usize + 5).map_err(|_| GiveUp)?;
            mp::put_str_len(self.out, len);
            self.out.extend_from_slice(std::slice::from_raw_parts(string.add(STR_DATA), len as usize));
        }
        Ok(())
    }

    unsafe fn cdata(&mut self, object: *const u8) -> Result<(), GiveUp> {
        // SAFETY: a cdata's id and payload are where they were proved to be; the id says how large the payload is.
        unsafe {
            let id = read::<u16>(object, CDATA_ID) as usize;
            let payload = object.add(CDATA_PAYLOAD);
            let kind = if id < CTYPE_IDS { self.shared.kinds.get(id).copied() } else { None };
            match kind {
                Some(CData::I64) => mp::put_int(self.out, payload.cast::<i64>().read_unaligned()),
                Some(CData::U64) => mp::put_uint(self.out, payload.cast::<u64>().read_unaligned()),
                Some(CData::Pointer) if payload.cast::<usize>().read_unaligned() == 0 => mp::put_nil(self.out),
                _ => return Err(GiveUp),
            }
        }
        Ok(())
    }
}

/// The array part of a new table, which decoding fills.
pub(super) struct NewArray {
    slots: *mut u64,
}

impl NewArray {
    /// The array part of the table at `address`, for keys up to `len`.
    ///
    /// # Safety
    /// `address` is that of a table just made by `lua_createtable` and still on the stack; the layout was proved.
    #[inline]
    pub(super) unsafe fn new(address: *const c_void, len: usize) -> Option<NewArray> {
        // SAFETY: fields of a live table.
        unsafe {
            let asize: u32 = read(address.cast(), TAB_ASIZE);
            (asize as usize > len).then(|| NewArray { slots: read(address.cast(), TAB_ARRAY) })
        }
    }

    /// Stores a number under key `i`. Numbers need no barrier of the collector.
    ///
    /// # Safety
    /// `i` is within the length given to `new`, and the table is alive and was not resized.
    #[inline(always)]
    pub(super) unsafe fn set_number(&self, i: usize, number: f64) {
        // A NaN could look like a tagged value: only the canonical one may be stored.
        let bits = if number.is_nan() { 0xfff8_0000_0000_0000 } else { number.to_bits() };
        // SAFETY: the slot exists.
        unsafe { self.slots.add(i).write(bits) };
    }

    /// Stores a boolean under key `i`.
    ///
    /// # Safety
    /// As `set_number`.
    #[inline(always)]
    pub(super) unsafe fn set_bool(&self, i: usize, value: bool) {
        let tag = if value { TRUE } else { FALSE };
        // SAFETY: the slot exists. LuaJIT's booleans have all lower bits set.
        unsafe { self.slots.add(i).write(tag << 47 | POINTER) };
    }
}

/// Gives a new table its metatable.
///
/// # Safety
/// As [`NewArray::new`], and nothing was allocated since the table was made: it is white to the collector, so no
/// barrier is due. `metatable` is a live table's address.
#[inline(always)]
pub(super) unsafe fn set_metatable(address: *const c_void, metatable: *const c_void) {
    // SAFETY: the field of a live table; both are 64-bit references in this layout.
    unsafe { address.cast::<u8>().cast_mut().add(TAB_METATABLE).cast::<*const c_void>().write(metatable) };
}

/// The hash part of a new table, which decoding fills with short strings as keys.
pub(super) struct NewMap {
    table: *mut u8,
    /// The table's colour when it was made: white, so as long as it has that it needs no barrier of the collector.
    marked: u8,
}

impl NewMap {
    /// The table at `address`.
    ///
    /// # Safety
    /// As [`NewArray::new`], and the table was made with room for at least one pair.
    #[inline]
    pub(super) unsafe fn new(address: *const c_void) -> NewMap {
        // SAFETY: fields of a live table.
        unsafe { NewMap { table: address.cast::<u8>().cast_mut(), marked: read(address.cast(), MARKED) } }
    }

    /// Where the value of a new key goes, when the key's own node is free; the key is stored then. Otherwise `None`, and
    /// the C API must store the pair.
    ///
    /// # Safety
    /// The table is alive, and `key` are the bytes of a live Lua string that is no metamethod's name (LuaJIT remembers
    /// which of those a table lacks). The value must be stored before anything else happens to the table.
    #[inline(always)]
    pub(super) unsafe fn slot(&self, key: *const u8) -> Option<NewSlot> {
        // SAFETY: fields of a live table, read anew each time: the C API may have moved the nodes meanwhile.
        unsafe {
            let string = key.sub(STR_DATA);
            let hmask: u32 = read(self.table, TAB_HMASK);
            let nodes: *mut u8 = read(self.table, TAB_NODE);
            let node = nodes.add((read::<u32>(string, STR_HASH) & hmask) as usize * NODE_SIZE);
            let free = read::<u64>(node, NODE_KEY) == NIL && read::<u64>(node, 0) == NIL;
            if !free || read::<u8>(self.table, MARKED) != self.marked {
                return None;
            }
            node.add(NODE_KEY).cast::<u64>().write(STR << 47 | string as u64);
            Some(NewSlot(node.cast()))
        }
    }
}

/// A value's place.
pub(super) struct NewSlot(*mut u64);

impl NewSlot {
    /// Stores a number.
    ///
    /// # Safety
    /// The slot was just given by [`NewMap::slot`].
    #[inline(always)]
    pub(super) unsafe fn set_number(&self, number: f64) {
        // SAFETY: one value behind the pointer.
        unsafe { NewArray { slots: self.0 }.set_number(0, number) };
    }

    /// Stores a boolean.
    ///
    /// # Safety
    /// As `set_number`.
    #[inline(always)]
    pub(super) unsafe fn set_bool(&self, value: bool) {
        // SAFETY: one value behind the pointer.
        unsafe { NewArray { slots: self.0 }.set_bool(0, value) };
    }
}
