//! The raw functions behind `fiber.channel()`: a bounded queue of Lua values between fibers, first in, first out.
//!
//! ```text
//!   put: a reader waits?  --> the value goes straight onto its stack
//!        room?            --> into the ring (the userdata's environment table)
//!        else             --> the writer waits with the value on its own stack
//!   get: the ring, then a waiting writer's stack, else wait
//! ```
//!
//! Never do both readers and writers wait, and no reader waits while a value is queued. Whoever completes a hand-over
//! does not wait; the other side is made ready, its results already on its stack. Once the ring has grown to what is
//! queued at most, nothing here allocates.

use super::body::{LuaBody, LuaFiber, code};
use super::fiber::{Way, arm_deadline, before_wait, fail_with, wait, waiter_of, way};
use super::state::{self, State};
use crate::fiber::fiber::{Wait, flag};
use crate::fiber::wait::WaitList;
use crate::sys::luajit::Entry;
use mlua::ffi::*;
use std::ffi::c_int;

/// The userdata a script holds. It does not move, so the lists may live in it.
#[repr(C)]
pub struct Channel {
    kind: *const u8,
    size: usize,
    /// Values in the ring.
    count: usize,
    /// Slot of the oldest, from 0.
    head: usize,
    /// Slots the ring's table has.
    room: usize,
    /// Nothing may be put any more.
    closed: bool,
    readers: WaitList<LuaBody>,
    writers: WaitList<LuaBody>,
}

/// Its address marks our channels among all userdata.
static CHANNEL: u8 = 0;
/// The largest size, so that a slot's number is a Lua index.
const SIZE_MAX: usize = 0x7fff_fff0;

const FUNCTIONS: &[Entry] = &[
    (c"new", l_new),
    (c"is_channel", l_is_channel),
    (c"put", l_put),
    (c"get", l_get),
    (c"close", l_close),
    (c"state", l_state),
    (c"destroy", l_destroy),
];

/// Pushes the raw functions.
///
/// # Safety
/// A live state with free slots, in which the library was opened.
pub(crate) unsafe fn native(l: *mut lua_State) {
    // SAFETY: the caller's contract.
    unsafe {
        lua_createtable(l, 0, FUNCTIONS.len() as c_int);
        state::register(l, FUNCTIONS);
    }
}

/// The channel at `idx`, or null if it is something else.
#[inline(always)]
unsafe fn channel_at(l: *mut lua_State, idx: c_int) -> *mut Channel {
    // SAFETY: a userdata of our size may be read; only ours starts with our mark.
    unsafe {
        let channel: *mut Channel = lua_touserdata(l, idx).cast();
        // Of a light userdata the length is zero.
        if channel.is_null() || lua_objlen(l, idx) != size_of::<Channel>() {
            return std::ptr::null_mut();
        }
        if (*channel).kind == &raw const CHANNEL { channel } else { std::ptr::null_mut() }
    }
}

/// What the raw functions answer to something that is no channel; the Lua half names it.
#[cold]
unsafe fn not_a_channel(l: *mut lua_State) -> c_int {
    // SAFETY: every C function has free slots.
    unsafe { lua_pushstring_(l, c"channel expected".as_ptr()) };
    1
}

/// `new(metatable, size)`: nil if the size is too large.
unsafe extern "C-unwind" fn l_new(l: *mut lua_State) -> c_int {
    // SAFETY: called by channel.lua, which checked the size; the userdata is written before anything can read it.
    unsafe {
        let size = lua_tonumber(l, 2);
        if size > SIZE_MAX as f64 {
            return 0;
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // from 0 to SIZE_MAX
        let size = size as usize;
        let room = size.min(64);
        let channel: *mut Channel = lua_newuserdata(l, size_of::<Channel>()).cast();
        channel.write(Channel {
            kind: &raw const CHANNEL,
            size,
            count: 0,
            head: 0,
            room: 0,
            closed: false,
            readers: WaitList::new(),
            writers: WaitList::new(),
        });
        lua_pushvalue(l, 1);
        lua_setmetatable(l, -2);
        if size > 0 {
            lua_createtable(l, room as c_int, 0);
            lua_setfenv(l, -2);
            (*channel).room = room;
        }
    }
    1
}

unsafe extern "C-unwind" fn l_is_channel(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe { lua_pushboolean(l, c_int::from(!channel_at(l, 1).is_null())) };
    1
}

// ---- the ring ----

/// Appends the value on the top of `l`, which is popped. `at` is the channel's stack position. May raise for memory,
/// before anything has changed.
unsafe fn append(l: *mut lua_State, at: c_int, channel: *mut Channel) {
    // SAFETY: the environment of a channel with a size is its ring; slots are 1 to `room`.
    unsafe {
        if (*channel).count == (*channel).room {
            grow(l, at, channel);
        }
        let mut slot = (*channel).head + (*channel).count;
        if slot >= (*channel).room {
            slot -= (*channel).room;
        }
        lua_getfenv(l, at);
        lua_insert(l, -2);
        lua_rawseti_(l, -2, slot as c_int + 1);
        lua_settop(l, -2);
        (*channel).count += 1;
    }
}

/// Pushes the oldest value, which leaves the ring.
unsafe fn take(l: *mut lua_State, at: c_int, channel: *mut Channel) {
    // SAFETY: as for `append`; clearing a slot that exists does not allocate.
    unsafe {
        let slot = (*channel).head as c_int + 1;
        lua_getfenv(l, at);
        lua_rawgeti_(l, -1, slot);
        lua_pushnil(l);
        lua_rawseti_(l, -3, slot);
        lua_remove(l, -2);
        (*channel).head = if (*channel).head + 1 == (*channel).room { 0 } else { (*channel).head + 1 };
        (*channel).count -= 1;
    }
}

/// A ring of twice the room, the oldest value first.
#[cold]
unsafe fn grow(l: *mut lua_State, at: c_int, channel: *mut Channel) {
    // SAFETY: as for `append`. The channel changes only once nothing can raise any more.
    unsafe {
        let (old, head, count) = ((*channel).room, (*channel).head, (*channel).count);
        let room = (old.max(1) * 2).min((*channel).size);
        lua_getfenv(l, at);
        lua_createtable(l, room as c_int, 0);
        for i in 0..count {
            let slot = if head + i >= old { head + i - old } else { head + i };
            lua_rawgeti_(l, -2, slot as c_int + 1);
            lua_rawseti_(l, -2, i as c_int + 1);
        }
        lua_setfenv(l, at);
        lua_settop(l, -2);
        (*channel).head = 0;
        (*channel).room = room;
    }
}

// ---- waking the other side ----

/// Makes `f` ready, whose results are on its stack: neither a deadline nor a wakeup can take them away any more.
#[inline(always)]
unsafe fn hand_over(s: *mut State, f: LuaFiber, results: c_int) {
    // SAFETY: a linked fiber is live; one whose deadline has passed is queued already.
    unsafe {
        (*f).data.nargs = results;
        WaitList::unlink(f);
        if !(*f).is(flag::READY) {
            (*s).cord.enqueue(f);
        }
    }
}

/// Ends a writer's wait: its value was taken (true), or the channel was closed (false).
unsafe fn answer_writer(s: *mut State, f: LuaFiber, taken: bool) {
    // SAFETY: a waiting C function has free slots, and neither value allocates.
    unsafe {
        lua_pushboolean(waiter_of(f), c_int::from(taken));
        hand_over(s, f, 1);
    }
}

/// Pushes the value the first writer waits with, and ends its wait.
unsafe fn take_from_writer(s: *mut State, l: *mut lua_State, f: LuaFiber) {
    // SAFETY: a waiting writer's value is the top of its stack.
    unsafe {
        lua_xmove(waiter_of(f), l, 1);
        answer_writer(s, f, true);
    }
}

// ---- put and get ----

/// How the third or fourth argument asks for it: nothing, "again" (a woken waiter that waits on) or "never" (no wait).
const AGAIN: lua_Integer = 1;
const NEVER: lua_Integer = 2;

/// Whether the running fiber may wait at all; else what to return.
unsafe fn refuse_wait(s: *mut State, l: *mut lua_State, manner: lua_Integer) -> c_int {
    // SAFETY: every C function has free slots.
    unsafe {
        if (*s).cord.is_cancelled() {
            lua_pushinteger(l, code::CANCELLED as lua_Integer);
            return 1;
        }
        if manner == NEVER {
            lua_pushinteger(l, code::TIMED_OUT as lua_Integer);
            return 1;
        }
    }
    0
}

/// `put(channel, value[, deadline[, manner]])`: whether it was put (false: closed), a code, a text, or nothing after a
/// wakeup that meant something else: then it is called again.
unsafe extern "C-unwind" fn l_put(l: *mut lua_State) -> c_int {
    // SAFETY: called by channel.lua with two arguments at least; linked fibers are live.
    unsafe {
        let s = state::current(l);
        let channel = channel_at(l, 1);
        if channel.is_null() {
            return not_a_channel(l);
        }
        let reader = (*channel).readers.first();
        if !(*channel).closed {
            if !reader.is_null() {
                let to = waiter_of(reader);
                lua_pushvalue(l, 2);
                lua_xmove(l, to, 1);
                lua_pushboolean(to, 1);
                hand_over(s, reader, 2);
            } else if (*channel).count < (*channel).size {
                lua_pushvalue(l, 2);
                append(l, 1, channel);
            } else {
                return put_wait(s, l, channel);
            }
        }
        lua_pushboolean(l, c_int::from(!(*channel).closed));
    }
    1
}

#[inline(never)]
unsafe fn put_wait(s: *mut State, l: *mut lua_State, channel: *mut Channel) -> c_int {
    // SAFETY: as for `l_put`. The value stays on the top of the waiter's stack, outside the results: whatever ends the
    // wait pushes its results above.
    unsafe {
        let manner = lua_tointeger_(l, 4);
        let refused = refuse_wait(s, l, manner);
        if refused > 0 {
            return refused;
        }
        let way = match way(s, l) {
            Ok(way) => way,
            Err(text) => return fail_with(l, text),
        };
        before_wait(s, l);
        let f = (*s).cord.current;
        (*f).wait = Wait::Put;
        WaitList::link(&raw mut (*channel).writers, f, manner == AGAIN);
        arm_deadline(s, l, 3);
        lua_settop(l, 2);
        if way == Way::Light {
            (*f).data.announced = true;
            return lua_yield(l, 1);
        }
        wait(s, l, way, 0)
    }
}

/// `get(channel[, deadline[, manner]])`: the value (nil: closed) and true; or a code or text, or nothing, as `put`.
unsafe extern "C-unwind" fn l_get(l: *mut lua_State) -> c_int {
    // SAFETY: as for `l_put`.
    unsafe {
        let s = state::current(l);
        let channel = channel_at(l, 1);
        if channel.is_null() {
            return not_a_channel(l);
        }
        let writer = (*channel).writers.first();
        if (*channel).count == 0 && writer.is_null() && !(*channel).closed {
            return get_wait(s, l, channel);
        }
        if (*channel).count > 0 {
            take(l, 1, channel);
            if !writer.is_null() {
                // The ring has a free slot, so this cannot raise.
                take_from_writer(s, l, writer);
                append(l, 1, channel);
            }
        } else if !writer.is_null() {
            take_from_writer(s, l, writer);
        } else {
            lua_pushnil(l);
        }
        lua_pushboolean(l, 1);
    }
    2
}

#[inline(never)]
unsafe fn get_wait(s: *mut State, l: *mut lua_State, channel: *mut Channel) -> c_int {
    // SAFETY: as for `l_get`.
    unsafe {
        let manner = lua_tointeger_(l, 3);
        let refused = refuse_wait(s, l, manner);
        if refused > 0 {
            return refused;
        }
        let way = match way(s, l) {
            Ok(way) => way,
            Err(text) => return fail_with(l, text),
        };
        before_wait(s, l);
        let f = (*s).cord.current;
        (*f).wait = Wait::Get;
        WaitList::link(&raw mut (*channel).readers, f, manner == AGAIN);
        arm_deadline(s, l, 2);
        wait(s, l, way, 0)
    }
}

// ---- closing, questions ----

/// Ends everybody's wait: readers get nil, writers false.
unsafe fn dismiss(s: *mut State, channel: *mut Channel) {
    // SAFETY: linked fibers are live, and a hand-over unlinks.
    unsafe {
        loop {
            let f = (*channel).writers.first();
            if f.is_null() {
                break;
            }
            answer_writer(s, f, false);
        }
        loop {
            let f = (*channel).readers.first();
            if f.is_null() {
                break;
            }
            let to = waiter_of(f);
            lua_pushnil(to);
            lua_pushboolean(to, 1);
            hand_over(s, f, 2);
        }
    }
}

/// `close(channel, forget)`: nothing may be put any more; what is queued can still be taken, or is forgotten.
unsafe extern "C-unwind" fn l_close(l: *mut lua_State) -> c_int {
    // SAFETY: called by channel.lua.
    unsafe {
        let channel = channel_at(l, 1);
        if channel.is_null() {
            return not_a_channel(l);
        }
        (*channel).closed = true;
        if lua_toboolean(l, 2) != 0 {
            for _ in 0..(*channel).count {
                take(l, 1, channel);
                lua_settop(l, 2);
            }
        }
        dismiss(state::current(l), channel);
    }
    0
}

/// `state(channel)`: nil, count, size, closed, whether readers wait, whether writers wait.
unsafe extern "C-unwind" fn l_state(l: *mut lua_State) -> c_int {
    // SAFETY: called by channel.lua.
    unsafe {
        let channel = channel_at(l, 1);
        if channel.is_null() {
            return not_a_channel(l);
        }
        lua_pushnil(l);
        lua_pushinteger(l, (*channel).count as lua_Integer);
        lua_pushinteger(l, (*channel).size as lua_Integer);
        lua_pushboolean(l, c_int::from((*channel).closed));
        lua_pushboolean(l, c_int::from(!(*channel).readers.is_empty()));
        lua_pushboolean(l, c_int::from(!(*channel).writers.is_empty()));
    }
    6
}

/// The finalizer: nobody may stay on a list that goes away.
unsafe extern "C-unwind" fn l_destroy(l: *mut lua_State) -> c_int {
    // SAFETY: called by the collector.
    unsafe {
        let channel = channel_at(l, 1);
        if !channel.is_null() {
            (*channel).closed = true;
            dismiss(state::current(l), channel);
        }
    }
    0
}
