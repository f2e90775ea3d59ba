//! Futures: one userdata each. While the reply is on its way the userdata's environment is the connection, which it
//! thereby keeps alive; after that it is the result itself where that is a table, so that nothing else is allocated.
//!
//! ```text
//! environment   PENDING: the connection      TABLE: the result      otherwise: anything
//! boxed         a table of these: [VALUE] result or error, [FIELDS] the user's own fields, [CONN] the connection while
//!               pending, [PUSHES] list of pushes, [FINISH] what makes the result of a body
//! ```

use super::codec::{self, Broken, Kept};
use super::reply::{self, Context};
use super::request::{Entry, How, code};
use super::transport::{self, Conn};
use crate::fiber::fiber::Wait;
use crate::fiber::wait::WaitList;
use crate::lua::body::LuaBody;
use crate::lua::fiber::{arm_deadline, before_wait, fail_with, wait, way};
use crate::lua::state::{self, State};
use crate::sys::luajit::Entry as Function;
use mlua::ffi::*;
use std::ffi::c_int;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Is {
    Pending,
    /// The environment is the result.
    Table,
    Nil,
    Number,
    Boxed,
    Failed,
}

/// What the userdata of a future holds.
#[repr(C)]
pub struct Future {
    kind: *const u8,
    /// Where its request is, while pending.
    conn: *mut Conn,
    sync: u64,
    number: f64,
    is: Is,
    boxed: bool,
    pushes: u32,
    waiters: WaitList<LuaBody>,
}

/// Its address marks our futures among all userdata.
static FUTURE: u8 = 0;

const VALUE: c_int = 1;
const FIELDS: c_int = 2;
const CONN: c_int = 3;
const PUSHES: c_int = 4;

/// What netbox.lua calls on futures.
pub const FUNCTIONS: &[Function] = &[
    (c"future_wait", l_wait),
    (c"future_peek", l_peek),
    (c"future_fail", l_fail),
    (c"future_part", l_part),
    (c"is_future", l_is_future),
];

unsafe fn future_at(l: *mut lua_State, idx: c_int) -> *mut Future {
    // SAFETY: the first word of any userdata may be read; only ours starts with our mark.
    unsafe {
        if lua_type(l, idx) != LUA_TUSERDATA {
            return std::ptr::null_mut();
        }
        let future: *mut Future = lua_touserdata(l, idx).cast();
        if (*future).kind == &raw const FUTURE { future } else { std::ptr::null_mut() }
    }
}

macro_rules! future {
    ($l:expr) => {{
        let future = future_at($l, 1);
        if future.is_null() {
            state::raise($l, "net.box: a future expected".into());
        }
        future
    }};
}

/// Pushes true and the future of a request, for which a collection may run finalizers; the connection's table is at `at`.
///
/// # Safety
/// Called at the end of a request function.
#[inline(always)]
pub unsafe fn make(l: *mut lua_State, conn: *mut Conn, sync: u64, at: c_int) -> *mut Future {
    // SAFETY: the caller's contract.
    unsafe {
        lua_pushboolean(l, 1);
        let future: *mut Future = lua_newuserdata(l, size_of::<Future>()).cast();
        future.write(Future {
            kind: &raw const FUTURE,
            conn,
            sync,
            number: 0.0,
            is: Is::Pending,
            boxed: false,
            pushes: 0,
            waiters: WaitList::new(),
        });
        lua_pushvalue(l, META);
        lua_setmetatable(l, -2);
        lua_pushvalue(l, at);
        lua_setfenv(l, -2);
        future
    }
}

/// Registers the future at the top of the stack, made just now, and commits its request. Returns true and the future.
///
/// # Safety
/// As for [`make`]; the request is encoded, and nothing ran since then.
#[inline(always)]
pub unsafe fn register(
    s: *mut State,
    l: *mut lua_State,
    conn: *mut Conn,
    future: *mut Future,
    how: How,
    reference: c_int,
) -> c_int {
    // SAFETY: the caller's contract; whatever may raise comes before the request is registered, and runs no Lua code.
    unsafe {
        let place = take_place(&mut (*s).netbox.places);
        lua_pushvalue(l, -1);
        lua_rawseti_(l, FUTURES, place as c_int);
        (&mut (*conn).slab).insert((*future).sync, std::ptr::null_mut(), place, how, reference);
        transport::commit(s, conn);
        2
    }
}

/// The upvalue of request functions that is the metatable of futures.
pub const META: c_int = lua_upvalueindex(2);
/// The upvalue that is the table of futures in flight, by place.
pub const FUTURES: c_int = lua_upvalueindex(3);

#[inline(always)]
fn take_place((free, made): &mut (Vec<u32>, u32)) -> u32 {
    free.pop().unwrap_or_else(|| {
        *made += 1;
        *made
    })
}

/// The request of a future is over: its slot and its place serve others.
unsafe fn retire(s: *mut State, conn: *mut Conn, entry: Entry) {
    // SAFETY: the caller's connection is live.
    unsafe {
        (&mut (*conn).slab).remove(entry.sync);
        (&mut (*s).netbox.places.0).push(entry.place);
    }
}

/// Pushes the future of a request; null and nothing pushed if nobody holds it any more.
#[inline(always)]
unsafe fn find(l: *mut lua_State, futures: c_int, conn: *mut Conn, entry: Entry) -> *mut Future {
    // SAFETY: the table of futures is weak: what it gives is alive, and is now on our stack. Reading it allocates nothing.
    unsafe {
        lua_rawgeti_(l, futures, entry.place as c_int);
        let future = future_at(l, -1);
        if future.is_null() || (*future).sync != entry.sync || (*future).conn != conn || (*future).is != Is::Pending {
            lua_settop(l, -2);
            return std::ptr::null_mut();
        }
        future
    }
}

/// Handles the reply to a future's request.
///
/// # Errors
/// # Safety
/// Called in the batch's job.
pub unsafe fn reply(c: &Context, entry: Entry, body: &[u8]) -> Result<(), Broken> {
    // SAFETY: the caller's contract.
    unsafe {
        let future = find(c.l, c.futures, c.conn, entry);
        if !future.is_null() {
            let at = lua_gettop(c.l);
            if !reply::push_one(c, entry.how, entry.reference, body)? {
                lua_pushnil(c.l);
            }
            settle(c.s, c.l, future, at);
        }
        retire(c.s, c.conn, entry);
        Ok(())
    }
}

/// Gives the future at `at` the value on the top of the stack as its result, and wakes whoever waits for it.
unsafe fn settle(s: *mut State, l: *mut lua_State, future: *mut Future, at: c_int) {
    // SAFETY: as for `reply`.
    unsafe {
        match lua_type(l, -1) {
            _ if (*future).boxed => put_boxed(l, future, at, Is::Boxed),
            LUA_TTABLE => {
                lua_setfenv(l, at);
                (*future).is = Is::Table;
            }
            LUA_TNIL => leave_conn(l, future, at, Is::Nil),
            LUA_TNUMBER => {
                (*future).number = lua_tonumber(l, -1);
                leave_conn(l, future, at, Is::Number);
            }
            _ => put_boxed(l, future, at, Is::Boxed),
        }
        wake(s, future);
    }
}

/// The environment is of no use any more: the globals will do.
unsafe fn leave_conn(l: *mut lua_State, future: *mut Future, at: c_int, is: Is) {
    // SAFETY: as for `reply`.
    unsafe {
        lua_pushvalue(l, LUA_GLOBALSINDEX);
        lua_setfenv(l, at);
        (*future).is = is;
    }
}

unsafe fn put_boxed(l: *mut lua_State, future: *mut Future, at: c_int, is: Is) {
    // SAFETY: as for `reply`.
    unsafe {
        push_box(l, future, at);
        lua_insert(l, -2);
        lua_rawseti_(l, -2, VALUE);
        lua_pushnil(l);
        lua_rawseti_(l, -2, CONN);
        (*future).is = is;
    }
}

/// Pushes the box of the future at `at`, made if it has none.
unsafe fn push_box(l: *mut lua_State, future: *mut Future, at: c_int) {
    // SAFETY: as for `reply`.
    unsafe {
        if (*future).boxed {
            lua_getfenv(l, at);
            return;
        }
        lua_createtable(l, 4, 0);
        match (*future).is {
            Is::Pending => {
                lua_getfenv(l, at);
                lua_rawseti_(l, -2, CONN);
            }
            Is::Table => {
                lua_getfenv(l, at);
                lua_rawseti_(l, -2, VALUE);
                (*future).is = Is::Boxed;
            }
            _ => {}
        }
        lua_pushvalue(l, -1);
        lua_setfenv(l, at);
        (*future).boxed = true;
    }
}

unsafe fn wake(s: *mut State, future: *mut Future) {
    // SAFETY: linked fibers are live; a signal unlinks them.
    unsafe {
        loop {
            let f = (&(*future).waiters).first();
            if f.is_null() {
                return;
            }
            (*s).cord.signal(f);
        }
    }
}

/// Fails the future of a request, which ends, with the error object on the top of the stack.
///
/// # Safety
/// `entry` is in flight.
pub unsafe fn fail(s: *mut State, l: *mut lua_State, conn: *mut Conn, entry: Entry) {
    // SAFETY: the caller's contract.
    unsafe {
        retire(s, conn, entry);
        codec::push_kept(s, l, Kept::Futures);
        lua_insert(l, -2);
        let future = find(l, lua_gettop(l) - 1, conn, entry);
        if !future.is_null() {
            let at = lua_gettop(l);
            lua_pushvalue(l, -2);
            put_boxed(l, future, at, Is::Failed);
            wake(s, future);
        }
    }
}

/// Adds a push to the future of a request.
///
/// # Errors
/// # Safety
/// Called in the batch's job.
pub unsafe fn push(c: &Context, entry: Entry, body: &[u8]) -> Result<(), Broken> {
    // SAFETY: the caller's contract.
    unsafe {
        let &Context { s, l, .. } = c;
        let future = find(l, c.futures, c.conn, entry);
        if future.is_null() {
            return Ok(());
        }
        let at = lua_gettop(l);
        push_box(l, future, at);
        lua_rawgeti_(l, -1, PUSHES);
        if lua_type(l, -1) != LUA_TTABLE {
            lua_settop(l, -2);
            lua_createtable(l, 1, 0);
            lua_pushvalue(l, -1);
            lua_rawseti_(l, -3, PUSHES);
        }
        match entry.how {
            How::Body => lua_pushlstring_(l, body.as_ptr().cast(), body.len()),
            _ => match reply::data(body)? {
                Some((_, at, n)) if n > 0 => codec::decode(s, l, body, at).map(drop)?,
                _ => codec::decode(s, l, &[0xc0], 0).map(drop)?,
            },
        }
        (*future).pushes += 1;
        #[allow(clippy::cast_possible_wrap)]
        lua_rawseti_(l, -2, (*future).pushes as c_int);
        wake(s, future);
        Ok(())
    }
}

/// Pushes what a settled future has: a value (or nil), or nil and an error. Returns how many.
unsafe fn push_outcome(l: *mut lua_State, future: *mut Future, at: c_int) -> c_int {
    // SAFETY: called by the functions below.
    unsafe {
        match (*future).is {
            Is::Table => {
                lua_getfenv(l, at);
                1
            }
            Is::Number if !(*future).boxed => {
                lua_pushnumber(l, (*future).number);
                1
            }
            Is::Number | Is::Nil | Is::Pending => {
                if (*future).is == Is::Number {
                    lua_pushnumber(l, (*future).number);
                } else {
                    lua_pushnil(l);
                }
                1
            }
            Is::Boxed => {
                lua_getfenv(l, at);
                lua_rawgeti_(l, -1, VALUE);
                lua_remove(l, -2);
                1
            }
            Is::Failed => {
                lua_pushnil(l);
                lua_getfenv(l, at);
                lua_rawgeti_(l, -1, VALUE);
                lua_remove(l, -2);
                2
            }
        }
    }
}

/// `future_wait(future, deadline[, own])`: true and the outcome if it has one; else it waits for the reply or a push, and
/// returns nil or a code. The connection's worker may wait for its own requests alone.
unsafe extern "C-unwind" fn l_wait(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let future = future!(l);
        if (*future).is != Is::Pending {
            lua_pushboolean(l, 1);
            return 1 + push_outcome(l, future, 1);
        }
        let s = state::current(l);
        if (*(*future).conn).is_worker((*s).cord.current) && lua_toboolean(l, 3) == 0 {
            lua_pushinteger(l, code::WORKER as lua_Integer);
            return 1;
        }
        let way = match way(s, l) {
            Ok(way) => way,
            Err(text) => return fail_with(l, text),
        };
        before_wait(s, l);
        // A trigger may have settled it.
        if (*future).is != Is::Pending {
            lua_pushboolean(l, 1);
            return 1 + push_outcome(l, future, 1);
        }
        let f = (*s).cord.current;
        (*f).wait = Wait::Cond;
        WaitList::link(&raw mut (*future).waiters, f, false);
        arm_deadline(s, l, 2);
        wait(s, l, way, 0)
    }
}

/// `future_peek(future)`: whether it has an outcome, and the outcome.
unsafe extern "C-unwind" fn l_peek(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let future = future!(l);
        if (*future).is == Is::Pending {
            lua_pushboolean(l, 0);
            return 1;
        }
        lua_pushboolean(l, 1);
        1 + push_outcome(l, future, 1)
    }
}

/// `future_fail(future, error)`: a pending one is forgotten and fails.
unsafe extern "C-unwind" fn l_fail(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua. While pending, the environment keeps the connection.
    unsafe {
        let s = state::current(l);
        let future = future!(l);
        if (*future).is == Is::Pending {
            let conn = (*future).conn;
            if let Some(entry) = (&(*conn).slab).get((*future).sync) {
                retire(s, conn, entry);
            }
            lua_settop(l, 2);
            put_boxed(l, future, 1, Is::Failed);
            wake(s, future);
            reply::after_one(s, conn);
        }
    }
    0
}

/// `future_part(future, part[, value])`: a part of its box, which is made if a value is set (true or a value).
unsafe extern "C-unwind" fn l_part(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let future = future!(l);
        let part = lua_tointeger_(l, 2) as c_int;
        if lua_gettop(l) > 2 {
            push_box(l, future, 1);
            lua_pushvalue(l, 3);
            lua_rawseti_(l, -2, part);
            return 0;
        }
        if !(*future).boxed {
            lua_pushnil(l);
            return 1;
        }
        lua_getfenv(l, 1);
        lua_rawgeti_(l, -1, part);
        debug_assert!(part >= VALUE && FIELDS > VALUE);
        1
    }
}

unsafe extern "C-unwind" fn l_is_future(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe { lua_pushboolean(l, c_int::from(!future_at(l, 1).is_null())) };
    1
}
