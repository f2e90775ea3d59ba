//! Requests in flight: who waits for the reply to which sync, and what shape the result has.

use super::codec::{self, Encoded};
use super::transport::{self, Conn, Phase};
use crate::fiber::fiber::{Wait, attention};
use crate::iproto::constants::{key, kind};
use crate::iproto::encode;
use crate::iproto::mp;
use crate::lua::body::LuaFiber;
use crate::lua::fiber::{Way, arm_deadline, before_wait, fail_with, wait, way};
use crate::lua::msgpack::args::Args;
use crate::lua::msgpack::{self, Formats};
use crate::lua::state::{self, State};
use crate::lua::trace::end_recording;
use crate::sys::luajit::{Entry as Function, LUA_TCDATA};
use mlua::ffi::*;
use std::ffi::c_int;

/// First results of a request's wait besides the codes of the fiber core.
pub mod code {
    use std::ffi::c_int;
    /// Results follow, and the schema is being read again: a synchronous caller waits for that too.
    pub const DONE_STALE: c_int = 10;
    /// Requests are not taken in this state.
    pub const REFUSED: c_int = 20;
    /// The connection's own worker may not wait for a reply.
    pub const WORKER: c_int = 21;
    /// The options say more than that the request is asynchronous.
    pub const OPTIONS: c_int = 23;
}

/// What becomes of a reply's body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum How {
    /// Nothing: a result without values.
    Nothing,
    /// The values of DATA: CALL, EVAL.
    Values,
    /// DATA as a table of tuples.
    Tuples,
    /// The first tuple of DATA, or nothing.
    Tuple,
    /// `true`.
    True,
    /// The whole body as a string, for Lua to finish.
    Body,
    /// The first value of DATA.
    Value,
}

impl How {
    /// The method with that number.
    pub fn of(number: lua_Integer) -> How {
        match number {
            1 => How::Values,
            2 => How::Tuples,
            3 => How::Tuple,
            4 => How::True,
            5 => How::Body,
            6 => How::Value,
            _ => How::Nothing,
        }
    }
}

/// One request in flight, or a free slot.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Its number on the wire. In a free slot, that of the last request.
    pub sync: u64,
    /// The waiting fiber; null for a future, and in a free slot.
    pub waiter: LuaFiber,
    /// Where the metatable of its tuples is among the connection's anchors; 0 for the plain one.
    pub reference: i32,
    /// Of a future, where it is among those in flight. Of a waiting fiber, the number of its function for pushes, or 0.
    pub place: u32,
    /// What becomes of the reply.
    pub how: How,
    /// Whether it is in flight.
    pub live: bool,
    next: u32,
}

const INDEX_BITS: u32 = 24;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
const NONE: u32 = u32::MAX;

/// Requests in flight. A sync is a slot's number and how often the slot was used, so that a late reply finds nobody.
pub struct Slab {
    entries: Vec<Entry>,
    free: u32,
    live: usize,
}

impl Default for Slab {
    fn default() -> Self {
        Slab { entries: Vec::new(), free: NONE, live: 0 }
    }
}

impl Slab {
    /// Requests in flight.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// The slot of a sync.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)]
    pub fn index(sync: u64) -> usize {
        (sync & INDEX_MASK) as usize
    }

    /// The sync the next request will have; `None` when 16 million are in flight.
    #[inline(always)]
    pub fn next_sync(&self) -> Option<u64> {
        match self.entries.get(self.free as usize) {
            Some(entry) => Some(entry.sync + (1 << INDEX_BITS)),
            None if self.entries.len() as u64 > INDEX_MASK => None,
            None => Some((1 << INDEX_BITS) | self.entries.len() as u64),
        }
    }

    /// Registers a request under [`next_sync`](Self::next_sync).
    #[inline(always)]
    pub fn insert(&mut self, sync: u64, waiter: LuaFiber, place: u32, how: How, reference: i32) {
        let index = Self::index(sync);
        let entry = Entry { sync, waiter, reference, place, how, live: true, next: NONE };
        match self.entries.get_mut(index) {
            Some(place) => {
                self.free = place.next;
                *place = entry;
            }
            None => self.entries.push(entry),
        }
        self.live += 1;
    }

    /// The request in flight under that sync.
    #[inline(always)]
    pub fn get(&self, sync: u64) -> Option<Entry> {
        self.entries.get(Self::index(sync)).copied().filter(|entry| entry.live && entry.sync == sync)
    }

    /// Forgets a request: a reply to it finds nobody.
    #[inline(always)]
    pub fn remove(&mut self, sync: u64) {
        let index = Self::index(sync);
        if let Some(entry) = self.entries.get_mut(index)
            && entry.live
            && entry.sync == sync
        {
            entry.live = false;
            entry.waiter = std::ptr::null_mut();
            entry.next = self.free;
            #[allow(clippy::cast_possible_truncation)]
            let index = index as u32;
            self.free = index;
            self.live -= 1;
        }
    }

    /// Any request in flight at or after slot `from`.
    pub fn any(&self, from: usize) -> Option<Entry> {
        self.entries.get(from..)?.iter().copied().find(|entry| entry.live)
    }
}

/// What netbox.lua calls to send requests. They find what futures need in their upvalues ([`super::future::META`]).
pub const FUNCTIONS: &[Function] = &[
    (c"call", l_call),
    (c"eval", l_eval),
    (c"select", l_select),
    (c"scan", l_scan),
    (c"insert", l_insert),
    (c"replace", l_replace),
    (c"update", l_update),
    (c"delete", l_delete),
    (c"upsert", l_upsert),
    (c"send", l_send),
    (c"post", l_post),
];

/// Arguments every request function has behind its own, from position `at` on: how to wait (nil: for ever; a number: a
/// deadline; a table, the connection: not at all, a future is made), the *manner*, and the stream or nil. If there is a
/// fourth, it is the connection and the first one is the caller's options, which must be `{is_async = true}`.
///
/// The manner is one number, since each argument costs a call: what becomes of the reply ([`How`], 3 bits), the
/// reference of the tuples' metatable (24 bits), [`OWN`], and from bit 32 on the number of the function for pushes. So is
/// the stream: from bit 32 on is the server's thread, 0 for the usual one.
struct Manner {
    at: c_int,
    sync: u64,
    way: Option<Way>,
    code: u32,
    pushes: u32,
    timed: bool,
    /// Where the connection's table is, for a future.
    table: c_int,
    begun: u32,
    committed: usize,
}

impl Manner {
    /// Whether the encoded request still stands where it was encoded: Lua code that ran since then, a finalizer or a trigger,
    /// may have used the connection.
    #[inline(always)]
    unsafe fn stands(&self, conn: *const Conn) -> bool {
        // SAFETY: the connection is live.
        unsafe { (*conn).begun == self.begun && (*conn).committed == self.committed && (*conn).fd >= 0 }
    }
}

/// Bit of the manner: the worker's own request, which is sent in any state.
const OWN: u32 = 1 << 30;

/// A refusal, before anything was encoded.
enum Refusal {
    Code(c_int),
    Text(String),
}

/// Decides whether and how the request may be made, and opens its packet.
#[inline(always)]
unsafe fn open(
    s: *mut State,
    l: *mut lua_State,
    args: Args,
    conn: *mut Conn,
    kind: u32,
    at: c_int,
) -> Result<(Manner, encode::Mark), Refusal> {
    // SAFETY: called by the request functions below, with their stack.
    unsafe {
        let future = args.is_table(at);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let (bits, stream) = (args.number(at + 1) as u64, args.number(at + 2) as u64);
        #[allow(clippy::cast_possible_truncation)]
        let (code, pushes) = (bits as u32, (bits >> 32) as u32);
        let own = code & OWN != 0;
        let mut table = at;
        if args.is_table(at + 3) {
            table = at + 3;
            if !future || !only_async(l, args, at) {
                return Err(Refusal::Code(code::OPTIONS));
            }
        }
        if (*conn).phase != Phase::Active && !own && !(future && (*conn).phase == Phase::Loading) {
            return Err(Refusal::Code(code::REFUSED));
        }
        if (*conn).fd < 0 {
            return Err(Refusal::Code(code::REFUSED));
        }
        if transport::is_foreign(conn) {
            transport::leave_to_parent(s);
            return Err(Refusal::Code(code::REFUSED));
        }
        let mut how = None;
        if !future {
            if !own && (*conn).is_worker((*s).cord.current) {
                return Err(Refusal::Code(code::WORKER));
            }
            how = Some(way(s, l).map_err(Refusal::Text)?);
        }
        let Some(sync) = (&(*conn).slab).next_sync() else {
            return Err(Refusal::Text("too many requests in flight".into()));
        };
        let committed = (*conn).committed;
        (&mut (*conn).out).truncate(committed);
        (*conn).begun = (*conn).begun.wrapping_add(1);
        let begun = (*conn).begun;
        let manner = Manner { at, sync, way: how, code, pushes, timed: args.is_number(at), table, begun, committed };
        Ok((manner, encode::begin_request(&mut (*conn).out, kind, sync, stream)))
    }
}

/// Whether the table at `idx` is `{is_async = true}`.
#[inline(always)]
unsafe fn only_async(l: *mut lua_State, args: Args, idx: c_int) -> bool {
    // SAFETY: as for `open`.
    unsafe {
        match args.is_flag(idx, *b"is_async") {
            Some(is) => is,
            None => only_async_slow(l, idx),
        }
    }
}

#[cold]
unsafe fn only_async_slow(l: *mut lua_State, idx: c_int) -> bool {
    // SAFETY: as for `open`; the stack is balanced.
    unsafe {
        let top = lua_gettop(l);
        lua_pushnil(l);
        let mut fits = false;
        if lua_type(l, idx) == LUA_TTABLE && lua_next(l, idx) != 0 {
            fits = lua_type(l, -2) == LUA_TSTRING && string_at(l, -2) == b"is_async" && lua_type(l, -1) == LUA_TBOOLEAN;
            fits &= lua_toboolean(l, -1) != 0;
            lua_settop(l, -2);
            fits = fits && lua_next(l, idx) == 0;
        }
        lua_settop(l, top);
        fits
    }
}

unsafe fn string_at<'a>(l: *mut lua_State, idx: c_int) -> &'a [u8] {
    // SAFETY: the string stays on the stack for as long as the caller uses its bytes.
    unsafe {
        let mut len = 0;
        let at = lua_tolstring(l, idx, &raw mut len);
        std::slice::from_raw_parts(at.cast(), len)
    }
}

/// Ends the packet, registers whoever waits, and waits. Nothing if the request is to be made anew, because a finalizer or an
/// on_yield trigger used the connection; `told`: those triggers have run.
#[inline(always)]
unsafe fn close(
    s: *mut State,
    l: *mut lua_State,
    conn: *mut Conn,
    manner: Manner,
    mark: encode::Mark,
    told: &mut bool,
) -> Option<c_int> {
    // SAFETY: as for `open`.
    unsafe {
        encode::finish(&mut (*conn).out, mark);
        let how = How::of((manner.code & 7).into());
        #[allow(clippy::cast_possible_wrap)]
        let reference = (manner.code >> 3 & 0xff_ffff) as c_int;
        let Some(way) = manner.way else {
            let future = super::future::make(l, conn, manner.sync, manner.table);
            if !manner.stands(conn) {
                lua_settop(l, -3);
                return None;
            }
            return Some(super::future::register(s, l, conn, future, how, reference));
        };
        if *told {
            end_recording(s);
        } else {
            before_wait(s, l);
            *told = true;
        }
        if !manner.stands(conn) {
            return None;
        }
        let f = (*s).cord.current;
        (&mut (*conn).slab).insert(manner.sync, f, manner.pushes, how, reference);
        transport::commit(s, conn);
        (*f).wait = Wait::Request;
        (*f).data.ticket = manner.sync;
        if manner.timed {
            set_deadline(s, l, conn, manner.at);
        }
        Some(wait(s, l, way, 0))
    }
}

/// Arms the running fiber's timer. A deadline that is over already ends the wait at the next turn, whatever arrives.
unsafe fn set_deadline(s: *mut State, l: *mut lua_State, conn: *mut Conn, at: c_int) {
    // SAFETY: as for `open`; the running fiber is queued nowhere.
    unsafe {
        if lua_tonumber(l, at) > 1.0 {
            return arm_deadline(s, l, at);
        }
        let f = (*s).cord.current;
        (&mut (*conn).slab).remove((*f).data.ticket);
        (*f).attention |= attention::TIMED_OUT;
        (*s).cord.enqueue(f);
    }
}

#[cold]
unsafe fn refuse(l: *mut lua_State, refusal: Refusal) -> c_int {
    // SAFETY: every C function has free slots.
    unsafe {
        match refusal {
            Refusal::Code(number) => {
                lua_pushinteger(l, number as lua_Integer);
                1
            }
            Refusal::Text(text) => fail_with(l, text),
        }
    }
}

macro_rules! open {
    ($s:expr, $l:expr, $args:expr, $conn:expr, $kind:expr, $at:expr) => {
        match open($s, $l, $args, $conn, $kind, $at) {
            Ok(opened) => opened,
            Err(refusal) => return refuse($l, refusal),
        }
    };
}

macro_rules! conn {
    ($l:expr, $args:expr) => {{
        let conn = super::lua::conn_of($args, 1);
        if conn.is_null() {
            return fail_with($l, "net.box: a connection expected".into());
        }
        conn
    }};
}

/// A request that is being made.
#[derive(Clone, Copy)]
struct Making {
    s: *mut State,
    l: *mut lua_State,
    args: Args,
    conn: *mut Conn,
}

impl Making {
    /// Where it is written.
    #[inline(always)]
    fn out(&self) -> *mut Vec<u8> {
        // SAFETY: the connection is live while it is made; only an address is taken.
        unsafe { &raw mut (*self.conn).out }
    }

    #[inline(always)]
    fn bytes(&self, bytes: &[u8]) {
        // SAFETY: nothing else uses the buffer meanwhile.
        unsafe { (*self.out()).extend_from_slice(bytes) }
    }

    /// The space that the argument at 2 names.
    #[inline(always)]
    fn space(&self) {
        self.target(2, key::SPACE_ID, key::SPACE_NAME);
    }

    /// The index that the argument at 3 names.
    #[inline(always)]
    fn index(&self) {
        self.target(3, key::INDEX_ID, key::INDEX_NAME);
    }

    #[inline(always)]
    fn target(&self, idx: c_int, id: u8, name: u8) {
        // SAFETY: the request functions have their arguments on the stack.
        unsafe {
            let out = &mut *self.out();
            if self.args.is_string(idx) {
                out.push(name);
                mp::put_str(out, self.args.bytes(idx));
            } else {
                out.push(id);
                codec::put_number(out, self.args.number(idx));
            }
        }
    }

    /// An argument that must be an array, behind its key.
    #[inline(always)]
    fn array(&self, key: u8, idx: c_int) -> Result<(), Put> {
        self.bytes(&[key]);
        // SAFETY: as for `target`.
        unsafe { put_array(self.s, self.l, self.args, idx, self.conn, std::ptr::null_mut()) }
    }
}

/// Makes a request with a body and sends it; `at` is where the arguments of all request functions begin, see [`Manner`]. The
/// body is written anew when Lua code had to run for an argument, or ran unasked and used the connection.
#[inline(always)]
unsafe fn request(l: *mut lua_State, kind: u32, at: c_int, body: impl Fn(Making) -> Result<(), Put>) -> c_int {
    // SAFETY: called by Lua through the functions below; nothing with a destructor is in this frame.
    unsafe {
        let s = state::current(l);
        let args = Args::new(l, (*s).netbox.codec);
        let conn = conn!(l, args);
        let mut told = false;
        loop {
            let (manner, mark) = open!(s, l, args, conn, kind, at);
            match body(Making { s, l, args, conn }) {
                Ok(()) => {
                    if let Some(n) = close(s, l, conn, manner, mark, &mut told) {
                        return n;
                    }
                }
                Err(Put::Again) => {}
                Err(Put::NotArray) => return not_array(s, l),
            }
        }
    }
}

/// What came of an argument that was not simply written.
enum Put {
    /// Lua code ran (a `__serialize` function, say), and may have used or closed the connection: the request is to be
    /// made anew. The argument is encoded now, and will not ask again.
    Again,
    NotArray,
}

/// An array: a table as it is, nil as none, anything else as its only element. Tuples inside bring their `formats`,
/// unless that is null.
#[inline(always)]
unsafe fn put_array(
    s: *mut State,
    l: *mut lua_State,
    args: Args,
    idx: c_int,
    conn: *mut Conn,
    formats: *mut Formats,
) -> Result<(), Put> {
    // SAFETY: the argument is on the stack, and encoding it in place, which no tuple passes, runs no code.
    unsafe {
        let out = &raw mut (*conn).out;
        let start = (*out).len();
        if args.is_table(idx) && args.encode_table(idx, &mut *out, (*s).netbox.codec) {
            return if is_array(&*out, start) { Ok(()) } else { Err(Put::NotArray) };
        }
        put_array_slow(s, l, idx, conn, formats)
    }
}

unsafe fn put_array_slow(
    s: *mut State,
    l: *mut lua_State,
    idx: c_int,
    conn: *mut Conn,
    formats: *mut Formats,
) -> Result<(), Put> {
    // SAFETY: as for `codec::encode`; the connection stays on the stack of the function that was called with it.
    unsafe {
        let (out, mut kind) = (&raw mut (*conn).out, lua_type(l, idx));
        let start = (*out).len();
        match kind {
            LUA_TNIL | LUA_TNONE => (*out).push(0x90),
            LUA_TTABLE | LUA_TCDATA | LUA_TUSERDATA => match codec::encode(s, l, idx, out, formats) {
                Encoded::Now => {}
                Encoded::Before(original) => kind = original,
                Encoded::NeedsLua => {
                    let committed = (*conn).committed;
                    (&mut *out).truncate(committed);
                    codec::encode_ahead(s, l, idx, !formats.is_null());
                    return Err(Put::Again);
                }
            },
            _ => {
                (*out).push(0x91);
                if codec::encode(s, l, idx, out, std::ptr::null_mut()) == Encoded::NeedsLua {
                    codec::encode_ahead(s, l, idx, false);
                    return Err(Put::Again);
                }
            }
        }
        if kind == LUA_TCDATA || kind == LUA_TUSERDATA {
            if (&*out).get(start) == Some(&0xc0) {
                (*out).truncate(start);
                (*out).push(0x90);
            } else if !is_array(&*out, start) {
                (*out).insert(start, 0x91);
            }
        }
        if is_array(&*out, start) { Ok(()) } else { Err(Put::NotArray) }
    }
}

fn is_array(out: &[u8], at: usize) -> bool {
    out.get(at).is_some_and(|first| mp::family(*first) == Some(mp::Family::Array))
}

#[cold]
unsafe fn not_array(s: *mut State, l: *mut lua_State) -> c_int {
    // SAFETY: every C function has free slots; the error object is raised by netbox.lua.
    unsafe {
        codec::push_kept(s, l, codec::Kept::MakeError);
        lua_pushinteger(l, 22);
        state::push_str(l, "Tuple/Key must be MsgPack array");
        lua_call(l, 2, 1);
    }
    1
}

unsafe fn named(l: *mut lua_State, kind: u32, name: u8) -> c_int {
    // SAFETY: called by Lua through the two functions below.
    unsafe {
        request(l, kind, 4, |m| {
            let out = m.out();
            m.bytes(&[0x83, name]);
            mp::put_str(&mut *out, m.args.bytes(2));
            m.bytes(&[key::TUPLE]);
            let mut formats = std::ptr::null_mut();
            // A tuple in place of the arguments is the list of them.
            if (*m.conn).tuple_args && !msgpack::is_tuple(l, 3, (*m.s).netbox.codec) {
                formats = &raw mut (*m.s).netbox.formats;
                (*formats).clear();
            }
            put_array(m.s, l, m.args, 3, m.conn, formats)?;
            m.bytes(&[key::TUPLE_FORMATS]);
            codec::put_formats(l, 3, out, formats);
            Ok(())
        })
    }
}

/// `call(conn, name, args, how to wait ...)`.
pub(super) unsafe extern "C-unwind" fn l_call(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe { named(l, kind::CALL, key::FUNCTION_NAME) }
}

/// `eval(conn, expression, args, how to wait ...)`.
pub(super) unsafe extern "C-unwind" fn l_eval(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe { named(l, kind::EVAL, key::EXPR) }
}

/// Iterator, offset and limit of a select. An offset of nil: from the start, without a limit.
unsafe fn put_range(args: Args, out: &mut Vec<u8>) {
    // SAFETY: called by `l_select` with its stack.
    unsafe {
        out.push(key::ITERATOR);
        codec::put_number(out, args.number(4));
        if !args.is_number(5) {
            out.extend_from_slice(&[key::OFFSET, 0, key::LIMIT, 0xce, 0xff, 0xff, 0xff, 0xff]);
            return;
        }
        for (name, idx) in [(key::OFFSET, 5), (key::LIMIT, 6)] {
            out.push(name);
            codec::put_number(out, args.number(idx));
        }
    }
}

/// `select(conn, space, index, iterator, offset, limit, key, after, fetch_pos, how to wait ...)`. An offset of nil is 0,
/// with no limit. `after` is nil, a position (a string) or a packed tuple in a table.
pub(super) unsafe extern "C-unwind" fn l_select(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let (after, fetch) = (lua_type(l, 8), lua_toboolean(l, 9) != 0);
        request(l, kind::SELECT, 10, |m| {
            m.bytes(&[0x86 + u8::from(after != LUA_TNIL) + u8::from(fetch)]);
            m.space();
            m.index();
            put_range(m.args, &mut *m.out());
            m.array(key::KEY, 7)?;
            if after == LUA_TSTRING {
                m.bytes(&[key::AFTER_POSITION]);
                mp::put_str(&mut *m.out(), m.args.bytes(8));
            } else if after != LUA_TNIL {
                m.array(key::AFTER_TUPLE, 8)?;
            }
            if fetch {
                m.bytes(&[key::FETCH_POSITION, 0xc3]);
            }
            Ok(())
        })
    }
}

/// `scan(conn, space, index, key, how to wait ...)`: a select of all tuples if the key is empty, else of what equals it.
pub(super) unsafe extern "C-unwind" fn l_scan(l: *mut lua_State) -> c_int {
    const ALL: u8 = 2;
    // SAFETY: called by Lua.
    unsafe {
        request(l, kind::SELECT, 5, |m| {
            let out = m.out();
            m.bytes(&[0x86]);
            m.space();
            m.index();
            let iterator = (*out).len() + 1;
            m.bytes(&[key::ITERATOR, 0, key::OFFSET, 0, key::LIMIT, 0xce, 0xff, 0xff, 0xff, 0xff]);
            let start = (*out).len() + 1;
            m.array(key::KEY, 4)?;
            if (&*out).get(start) == Some(&0x90)
                && let Some(byte) = (&mut *out).get_mut(iterator)
            {
                *byte = ALL;
            }
            Ok(())
        })
    }
}

unsafe fn store(l: *mut lua_State, kind: u32) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        request(l, kind, 4, |m| {
            m.bytes(&[0x82]);
            m.space();
            m.array(key::TUPLE, 3)
        })
    }
}

/// `insert(conn, space, tuple, how to wait ...)`.
pub(super) unsafe extern "C-unwind" fn l_insert(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe { store(l, kind::INSERT) }
}

/// `replace(conn, space, tuple, how to wait ...)`.
pub(super) unsafe extern "C-unwind" fn l_replace(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe { store(l, kind::REPLACE) }
}

/// `delete(conn, space, index, key, how to wait ...)`.
pub(super) unsafe extern "C-unwind" fn l_delete(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        request(l, kind::DELETE, 5, |m| {
            m.bytes(&[0x83]);
            m.space();
            m.index();
            m.array(key::KEY, 4)
        })
    }
}

/// `update(conn, space, index, key, operations, how to wait ...)`.
pub(super) unsafe extern "C-unwind" fn l_update(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        request(l, kind::UPDATE, 6, |m| {
            m.bytes(&[0x85]);
            m.space();
            m.index();
            m.bytes(&[key::INDEX_BASE, 1]);
            m.array(key::KEY, 4)?;
            m.array(key::TUPLE, 5)
        })
    }
}

/// `upsert(conn, space, tuple, operations, how to wait ...)`.
pub(super) unsafe extern "C-unwind" fn l_upsert(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        request(l, kind::UPSERT, 5, |m| {
            m.bytes(&[0x84]);
            m.space();
            m.bytes(&[key::INDEX_BASE, 1]);
            m.array(key::TUPLE, 3)?;
            m.array(key::OPS, 4)
        })
    }
}

/// `send(conn, type, body, how to wait ...)`: a request whose body, packed already, is a string ('' for none).
pub(super) unsafe extern "C-unwind" fn l_send(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let kind = lua_tonumber(l, 2) as u32;
        request(l, kind, 4, |m| {
            m.bytes(m.args.bytes(3));
            Ok(())
        })
    }
}

/// `post(conn, bytes)`: whole packets nobody waits for.
pub(super) unsafe extern "C-unwind" fn l_post(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        let args = Args::new(l, (*s).netbox.codec);
        let conn = conn!(l, args);
        if (*conn).fd < 0 || transport::is_foreign(conn) {
            return refuse(l, Refusal::Code(code::REFUSED));
        }
        let committed = (*conn).committed;
        (&mut (*conn).out).truncate(committed);
        (&mut (*conn).out).extend_from_slice(args.bytes(2));
        transport::commit(s, conn);
    }
    0
}

/// `rewait(conn, deadline)`: woken for nothing, the fiber goes on waiting for the same request.
pub(super) unsafe extern "C-unwind" fn l_rewait(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua in the fiber whose request it is.
    unsafe {
        let s = state::current(l);
        let args = Args::new(l, (*s).netbox.codec);
        let conn = conn!(l, args);
        let f = (*s).cord.current;
        if (&(*conn).slab).get((*f).data.ticket).is_none_or(|entry| entry.waiter != f) {
            return refuse(l, Refusal::Code(code::REFUSED));
        }
        let way = match way(s, l) {
            Ok(way) => way,
            Err(text) => return fail_with(l, text),
        };
        before_wait(s, l);
        (*f).wait = Wait::Request;
        if lua_type(l, 2) == LUA_TNUMBER {
            arm_deadline(s, l, 2);
        }
        wait(s, l, way, 0)
    }
}

/// `forget(conn)`: the running fiber gave up waiting.
pub(super) unsafe extern "C-unwind" fn l_forget(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua in the fiber whose request it is.
    unsafe {
        let s = state::current(l);
        let args = Args::new(l, (*s).netbox.codec);
        let conn = conn!(l, args);
        let f = (*s).cord.current;
        let ticket = (*f).data.ticket;
        if (&(*conn).slab).get(ticket).is_some_and(|entry| entry.waiter == f) {
            (&mut (*conn).slab).remove(ticket);
            super::reply::after_one(s, conn);
        }
    }
    0
}
