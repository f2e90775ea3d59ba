//! Replies: bytes that have arrived become Lua values on the scratch thread, in one protected call a batch, and are
//! moved to whoever waits for them.

use super::codec::{self, Broken, Kept};
use super::future;
use super::request::{Entry, How, Slab, code};
use super::transport::{self, Conn, Phase, Problem, Queued, attention};
use crate::fiber::fiber::{Wait, attention as fiber_attention, flag};
use crate::iproto::constants::{BODY_LEN_MAX, key, kind};
use crate::iproto::decode::{self, Frame, FrameError, ResponseHeader};
use crate::iproto::error::{ErrorBody, decode_body};
use crate::iproto::mp::Reader;
use crate::lua::body::LuaFiber;
use crate::lua::fiber::{room, waiter_of};
use crate::lua::state::{Keep, State};
use crate::sys::stack::prefetch;
use mlua::ffi::*;
use std::ffi::{c_int, c_void};

/// Where the handling of a batch stands. It has no destructor: a raise may pass it.
struct Batch {
    conn: *mut Conn,
    /// The packet under way, or the first one that is not all there.
    at: usize,
    problem: Problem,
    /// The packet under way is decoded once more to learn what it raises.
    rescue: bool,
}

/// Handles all whole packets that have arrived.
///
/// # Safety
/// `conn` is live and stays so.
pub unsafe fn handle(s: *mut State, conn: *mut Conn) {
    // SAFETY: the caller's contract; the jobs do not outlive this frame.
    unsafe {
        let mut batch = Batch { conn, at: (*conn).start, problem: Problem::None, rescue: false };
        while !State::protected(s, run, (&raw mut batch).cast()) {
            // One reply raised: its caller gets that, the others their replies. Twice the same: no memory even for that.
            let stuck = batch.rescue;
            batch.rescue = true;
            if stuck {
                skip(&mut batch);
            }
        }
        (*conn).start = batch.at;
        if batch.problem != Problem::None {
            transport::break_off(s, conn, batch.problem);
        }
        after_one(s, conn);
    }
}

/// Tells a worker that waits for it that nothing is in flight any more.
///
/// # Safety
/// `conn` is live.
pub unsafe fn after_one(s: *mut State, conn: *mut Conn) {
    // SAFETY: the caller's contract.
    unsafe {
        if (*conn).wanted & attention::IDLE != 0 && (&(*conn).slab).is_empty() {
            transport::alert(s, conn, attention::IDLE);
        }
    }
}

fn pending<'a>(conn: *mut Conn, at: usize) -> &'a [u8] {
    // SAFETY: the input buffer neither moves nor changes while its batch is handled: nothing reads meanwhile.
    unsafe { (&(*conn).input).get(at..(*conn).end).unwrap_or_default() }
}

fn skip(batch: &mut Batch) {
    if let Ok(Frame::Packet { end, .. }) = decode::frame(pending(batch.conn, batch.at), BODY_LEN_MAX) {
        batch.at += end;
    }
    batch.rescue = false;
}

/// What a batch's replies share: positions on the scratch thread's stack.
pub struct Context {
    /// The state.
    pub s: *mut State,
    /// The thread on which values are made.
    pub l: *mut lua_State,
    /// The connection.
    pub conn: *mut Conn,
    /// Where its table of anchors is.
    pub anchors: c_int,
    /// Where the table of futures in flight is.
    pub futures: c_int,
}

impl Context {
    /// Pushes the two tables.
    ///
    /// # Safety
    /// `l` has a few free slots, and `conn` is live.
    pub unsafe fn new(s: *mut State, l: *mut lua_State, conn: *mut Conn) -> Context {
        // SAFETY: the caller's contract.
        unsafe {
            push_anchors(s, l, conn);
            codec::push_kept(s, l, Kept::Futures);
            let futures = lua_gettop(l);
            Context { s, l, conn, anchors: futures - 1, futures }
        }
    }
}

/// Pushes the anchors of a connection.
///
/// # Safety
/// `l` has three free slots.
pub unsafe fn push_anchors(s: *mut State, l: *mut lua_State, conn: *const Conn) {
    // SAFETY: the caller's contract.
    unsafe {
        (*s).push_kept(l, Keep::Netbox);
        lua_rawgeti_(l, -1, Kept::Anchors as c_int);
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        lua_rawgeti_(l, -1, (*conn).slot as c_int + 1);
        lua_replace(l, -3);
        lua_settop(l, -2);
    }
}

/// With fewer connections, what their waiters' wakeups read is in the cache anyhow.
const PREFETCH_FROM: usize = 8;

/// Asks for what waking the fibers reads that wait for the first packets of a batch.
unsafe fn prefetch_waiters(conn: *mut Conn, mut at: usize) {
    let mut waiters: [LuaFiber; 16] = [std::ptr::null_mut(); 16];
    let mut n = 0;
    // SAFETY: an entry's waiter is live, and its thread's first words may be read.
    unsafe {
        for place in &mut waiters {
            let input = pending(conn, at);
            let Ok(Frame::Packet { start, end }) = decode::frame(input, BODY_LEN_MAX) else { break };
            let Ok((header, _)) = decode::response_header(input.get(start..end).unwrap_or_default()) else { break };
            let Some(entry) = (&(*conn).slab).get(header.sync) else { break };
            if entry.waiter.is_null() {
                break;
            }
            prefetch(entry.waiter.cast_const().cast());
            *place = entry.waiter;
            n += 1;
            at += end;
        }
        let waiters = waiters.get(..n).unwrap_or_default();
        for f in waiters {
            let l = (**f).data.l.cast::<u8>();
            prefetch(l);
            prefetch(l.wrapping_add(64));
        }
        for f in waiters {
            let l = (**f).data.l.cast::<u8>();
            if !l.is_null() {
                let top = *l.add(40).cast::<*const u8>();
                prefetch(top);
                prefetch(top.wrapping_sub(64));
                prefetch(top.wrapping_sub(128));
                prefetch(top.wrapping_add(64));
            }
        }
    }
}

unsafe fn run(l: *mut lua_State, s: *mut State, argument: *mut c_void) {
    let batch = argument.cast::<Batch>();
    // SAFETY: called under the protection of `handle`, which keeps the batch.
    unsafe {
        luaL_checkstack_(l, 40, c"net.box".as_ptr());
        let conn = (*batch).conn;
        let context = Context::new(s, l, conn);
        let top = context.futures;
        if (*s).netbox.conns.len() >= PREFETCH_FROM {
            prefetch_waiters(conn, (*batch).at);
        }
        loop {
            let input = pending(conn, (*batch).at);
            let (start, end) = match decode::frame(input, BODY_LEN_MAX) {
                Ok(Frame::Packet { start, end }) => (start, end),
                Ok(Frame::Incomplete(need)) => {
                    (*conn).need = need;
                    return;
                }
                Err(FrameError::TooBig(_)) => return (*batch).problem = Problem::TooBig,
                Err(FrameError::Length) => return (*batch).problem = Problem::Length,
            };
            let packet = input.get(start..end).unwrap_or_default();
            let Ok((header, body_at)) = decode::response_header(packet) else {
                return (*batch).problem = Problem::Header;
            };
            let body = packet.get(body_at..).unwrap_or_default();
            let handled = if (*batch).rescue { rescue(&context, header, body) } else { one(&context, header, body) };
            if handled.is_err() {
                return (*batch).problem = Problem::Body;
            }
            (*batch).rescue = false;
            (*batch).at += end;
            lua_settop(l, top);
        }
    }
}

/// Handles one packet.
unsafe fn one(c: &Context, header: ResponseHeader, body: &[u8]) -> Result<(), Broken> {
    // SAFETY: called in the batch's job; whatever is pushed is dropped by the caller.
    unsafe {
        let conn = c.conn;
        if header.schema_version != (*conn).schema_version && header.schema_version != 0 {
            new_schema(c, header.schema_version);
        }
        let Some(entry) = (&(*conn).slab).get(header.sync) else {
            if header.kind == kind::EVENT {
                queue(c, 0, body);
            }
            return Ok(());
        };
        if header.kind != kind::OK {
            return unusual(c, entry, header, body);
        }
        if entry.waiter.is_null() {
            return future::reply(c, entry, body);
        }
        let first = lua_gettop(c.l);
        if (*conn).phase == Phase::Loading {
            lua_pushinteger(c.l, code::DONE_STALE as lua_Integer);
        } else {
            lua_pushboolean(c.l, 1);
        }
        push_results(c, entry, body)?;
        deliver(c.s, c.l, entry, lua_gettop(c.l) - first);
        (&mut (*conn).slab).remove(entry.sync);
        Ok(())
    }
}

#[cold]
unsafe fn new_schema(c: &Context, version: u64) {
    // SAFETY: as for `one`.
    unsafe {
        (*c.conn).schema_version = version;
        (*c.conn).schema_changes += 1;
        if (*c.conn).track_schema {
            if (*c.conn).phase == Phase::Active {
                (*c.conn).phase = Phase::Loading;
            }
            transport::alert(c.s, c.conn, attention::STALE);
        }
    }
}

#[cold]
unsafe fn queue(c: &Context, handler: u32, body: &[u8]) {
    // SAFETY: as for `one`; the bytes are copied.
    unsafe {
        (&mut (*c.conn).queue).push_back(Queued { handler, body: body.into() });
        transport::alert(c.s, c.conn, attention::QUEUED);
    }
}

/// An error, a push, or a type nobody knows, which is taken for an error.
#[cold]
unsafe fn unusual(c: &Context, entry: Entry, header: ResponseHeader, body: &[u8]) -> Result<(), Broken> {
    // SAFETY: as for `one`.
    unsafe {
        if header.kind == kind::CHUNK {
            if entry.waiter.is_null() {
                return future::push(c, entry, body);
            }
            // Without a function nobody hears it.
            if entry.place != 0 {
                queue(c, entry.place, body);
            }
            return Ok(());
        }
        push_error(c.s, c.l, header.kind & (kind::ERROR_BIT - 1), body)?;
        finish_with_error(c.s, c.l, c.conn, entry);
        Ok(())
    }
}

/// Ends a request with the error object on the top of the stack.
///
/// # Safety
/// `entry` is in flight.
pub unsafe fn finish_with_error(s: *mut State, l: *mut lua_State, conn: *mut Conn, entry: Entry) {
    // SAFETY: the caller's contract.
    unsafe {
        (&mut (*conn).slab).remove(entry.sync);
        if entry.waiter.is_null() {
            future::fail(s, l, conn, entry);
        } else {
            deliver(s, l, entry, 1);
        }
    }
}

/// Moves the `n` values on the top of `l` to the fiber that waits for them, and wakes it.
#[inline(always)]
unsafe fn deliver(s: *mut State, l: *mut lua_State, entry: Entry, n: c_int) {
    // SAFETY: an entry's fiber is live and waits: it takes its entry away when it gives up.
    unsafe {
        let f: LuaFiber = entry.waiter;
        if (*f).wait != Wait::Request || (*f).data.ticket != entry.sync || (*f).data.nargs != 0 {
            return;
        }
        let waiter = waiter_of(f);
        if n > 15 && !room(s, waiter, n) {
            luaL_error(l, c"too many results to unpack".as_ptr());
        }
        lua_xmove(l, waiter, n);
        (*f).data.nargs = n;
        if (*f).attention & (fiber_attention::TIMER | fiber_attention::LINKED) != 0 {
            (*s).cord.signal(f);
        } else if !(*f).is(flag::READY | flag::DEAD) {
            (*s).cord.enqueue(f);
        }
    }
}

/// Where DATA begins, where its elements do, and their number; none when there is no DATA.
///
/// # Errors
/// The body is no map of our keys.
#[inline(always)]
pub fn data(body: &[u8]) -> Result<Option<(usize, usize, u32)>, Broken> {
    match *body {
        [0x81 | 0x82, key::DATA, 0xdd, a, b, c, d, ..] => Ok(Some((2, 7, u32::from_be_bytes([a, b, c, d])))),
        [] => Ok(None),
        _ => find_data(body),
    }
}

#[inline(never)]
fn find_data(body: &[u8]) -> Result<Option<(usize, usize, u32)>, Broken> {
    let mut reader = Reader::new(body);
    let mut found = None;
    for _ in 0..reader.read_map().map_err(|_| Broken)? {
        let name = reader.read_uint().map_err(|_| Broken)?;
        if name == u64::from(key::DATA) {
            let mut elements = reader;
            let n = elements.read_array().map_err(|_| Broken)?;
            found = Some((reader.position(), elements.position(), n));
        }
        reader.skip().map_err(|_| Broken)?;
    }
    Ok(found)
}

/// Tells the decoder of tuples the formats that came with them, if any did.
#[inline(always)]
unsafe fn see_formats(s: *mut State, l: *mut lua_State, body: &[u8]) -> Result<(), Broken> {
    // Servers that know tuples end each reply to a call with a map of no formats.
    let none = matches!(*body, [0x81, ..] | [] | [0x82, key::DATA, .., key::TUPLE_FORMATS, 0x80]);
    // SAFETY: as for `one`.
    unsafe { if none { Ok(()) } else { see_formats_slow(s, l, body) } }
}

#[cold]
unsafe fn see_formats_slow(s: *mut State, l: *mut lua_State, body: &[u8]) -> Result<(), Broken> {
    // SAFETY: as for `one`.
    unsafe {
        let mut reader = Reader::new(body);
        for _ in 0..reader.read_map().map_err(|_| Broken)? {
            if reader.read_uint().map_err(|_| Broken)? == u64::from(key::TUPLE_FORMATS) {
                let bytes = reader.raw().map_err(|_| Broken)?;
                codec::push_kept(s, l, Kept::SetFormats);
                lua_pushlstring_(l, bytes.as_ptr().cast(), bytes.len());
                lua_call(l, 1, 0);
                return Ok(());
            }
            reader.skip().map_err(|_| Broken)?;
        }
        Ok(())
    }
}

/// Pushes the results of a synchronous request.
#[inline(always)]
unsafe fn push_results(c: &Context, entry: Entry, body: &[u8]) -> Result<(), Broken> {
    // SAFETY: as for `one`.
    unsafe {
        match entry.how {
            How::Values => {
                see_formats(c.s, c.l, body)?;
                let Some((_, mut at, n)) = data(body)? else { return Ok(()) };
                if n > 8 {
                    #[allow(clippy::cast_possible_wrap)]
                    let n = n.min(1 << 24) as c_int;
                    if lua_checkstack(c.l, n + 16) == 0 {
                        luaL_error(c.l, c"too many results to unpack".as_ptr());
                    }
                }
                for _ in 0..n {
                    at = codec::decode(c.s, c.l, body, at)?;
                }
                Ok(())
            }
            How::Nothing => Ok(()),
            How::True => {
                lua_pushboolean(c.l, 1);
                Ok(())
            }
            _ => push_one(c, entry.how, entry.reference, body).map(drop),
        }
    }
}

/// Pushes the result as one value; false and nothing pushed if it has none. For futures, all values as a table.
///
/// # Errors
/// # Safety
/// Called in the batch's job.
pub unsafe fn push_one(c: &Context, how: How, reference: c_int, body: &[u8]) -> Result<bool, Broken> {
    // SAFETY: the caller's contract. A metatable lives as long as the connection's anchors hold it.
    unsafe {
        let &Context { s, l, conn, anchors, .. } = c;
        let meta = (anchors, reference, (*conn).meta(reference));
        if how == How::Body {
            lua_pushlstring_(l, body.as_ptr().cast(), body.len());
            return Ok(true);
        }
        if how == How::Nothing {
            return Ok(false);
        }
        see_formats(s, l, body)?;
        let Some((header, at, n)) = data(body)? else {
            if matches!(how, How::Tuples | How::Values) {
                lua_createtable(l, 0, 0);
                return Ok(true);
            }
            return Ok(false);
        };
        match how {
            How::Values => {
                codec::decode(s, l, body, header)?;
                Ok(true)
            }
            How::Tuples => {
                push_tuples(s, l, meta, body, at, n)?;
                Ok(true)
            }
            How::Tuple => {
                if n == 0 {
                    return Ok(false);
                }
                codec::decode_with(s, l, meta, body, at)?;
                Ok(true)
            }
            _ => {
                if n == 0 {
                    return Ok(false);
                }
                codec::decode(s, l, body, at)?;
                Ok(true)
            }
        }
    }
}

unsafe fn push_tuples(
    s: *mut State,
    l: *mut lua_State,
    meta: (c_int, c_int, *const c_void),
    body: &[u8],
    mut at: usize,
    n: u32,
) -> Result<(), Broken> {
    // SAFETY: as for `push_one`.
    unsafe {
        // Each tuple takes a byte at least: a lying number allocates no more than the input is long.
        let room = (n as usize).min(body.len());
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        lua_createtable(l, room as c_int, 0);
        for i in 1..=n {
            at = codec::decode_with(s, l, meta, body, at)?;
            #[allow(clippy::cast_possible_wrap)]
            lua_rawseti_(l, -2, i as c_int);
        }
        Ok(())
    }
}

/// Pushes the error object of an error reply.
unsafe fn push_error(s: *mut State, l: *mut lua_State, number: u32, body: &[u8]) -> Result<(), Broken> {
    // SAFETY: as for `one`; the borrowed entries have no destructors.
    unsafe {
        codec::push_kept(s, l, Kept::MakeError);
        lua_pushnumber(l, f64::from(number));
        match decode_body(body) {
            ErrorBody::Message(message) => {
                lua_pushlstring_(l, message.as_ptr().cast(), message.len());
                lua_call(l, 2, 1);
            }
            ErrorBody::Stack(stack) => {
                lua_pushlstring_(l, c"".as_ptr(), 0);
                lua_createtable(l, 1, 0);
                let mut i = 0;
                for entry in stack {
                    let Ok(entry) = entry else { break };
                    lua_createtable(l, 0, 7);
                    for (name, text) in [(c"type", entry.kind), (c"file", entry.file), (c"message", entry.message)] {
                        lua_pushlstring_(l, text.as_ptr().cast(), text.len());
                        lua_setfield(l, -2, name.as_ptr());
                    }
                    for (name, value) in [(c"line", entry.line), (c"errno", entry.errno), (c"code", entry.code)] {
                        lua_pushnumber(l, f64::from(value));
                        lua_setfield(l, -2, name.as_ptr());
                    }
                    if !entry.fields.is_empty() {
                        codec::decode(s, l, entry.fields, 0)?;
                        lua_setfield(l, -2, c"fields".as_ptr());
                    }
                    i += 1;
                    lua_rawseti_(l, -2, i);
                }
                lua_call(l, 3, 1);
            }
        }
        Ok(())
    }
}

/// A packet whose handling raised: its request fails with what it raised.
#[cold]
unsafe fn rescue(c: &Context, header: ResponseHeader, body: &[u8]) -> Result<(), Broken> {
    // SAFETY: the closure's argument lives in this frame while it is called.
    unsafe {
        let Some(entry) = (&(*c.conn).slab).get(header.sync) else { return Ok(()) };
        let mut trial = Trial { c, header, body, result: Ok(()) };
        // The state, which the function finds itself through, and the trial.
        lua_getfield_(c.l, LUA_REGISTRYINDEX, c"cord.state".as_ptr());
        lua_pushcclosure(c.l, l_trial, 1);
        // A full userdata: light ones do not hold every address on every machine.
        lua_newuserdata(c.l, size_of::<usize>()).cast::<*mut Trial<'_>>().write(&raw mut trial);
        if lua_pcall(c.l, 1, 0, 0) == 0 {
            return trial.result;
        }
        codec::push_kept(c.s, c.l, Kept::WrapError);
        lua_insert(c.l, -2);
        lua_call(c.l, 1, 1);
        finish_with_error(c.s, c.l, c.conn, entry);
        Ok(())
    }
}

struct Trial<'a> {
    c: &'a Context,
    header: ResponseHeader,
    body: &'a [u8],
    result: Result<(), Broken>,
}

unsafe extern "C-unwind" fn l_trial(l: *mut lua_State) -> c_int {
    // SAFETY: called by `rescue` alone, with its trial, on the same thread: this frame has a stack of its own.
    unsafe {
        let trial = *lua_touserdata(l, 1).cast::<*mut Trial<'_>>();
        luaL_checkstack_(l, 40, c"net.box".as_ptr());
        let outer = (*trial).c;
        let c = Context::new(outer.s, l, outer.conn);
        (*trial).result = one(&c, (*trial).header, (*trial).body);
    }
    0
}

/// Fails every request in flight with the error object at `idx`.
///
/// # Safety
/// `l` runs one of our functions.
pub unsafe fn fail_all(s: *mut State, l: *mut lua_State, conn: *mut Conn, idx: c_int) {
    // SAFETY: the caller's contract.
    unsafe {
        luaL_checkstack_(l, 16, c"net.box".as_ptr());
        let top = lua_gettop(l);
        let mut from = 0;
        while let Some(entry) = (&(*conn).slab).any(from) {
            from = Slab::index(entry.sync) + 1;
            lua_pushvalue(l, idx);
            finish_with_error(s, l, conn, entry);
            lua_settop(l, top);
        }
    }
}
