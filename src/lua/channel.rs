//! The functions behind `fiber.channel()`: a bounded queue of Lua values between fibers, first in, first out.
//!
//! ```text
//!   put: a reader waits?  --> the value goes onto its stack (or, from compiled code, onto its pad)
//!        room?            --> into the ring (the userdata's environment table)
//!        else             --> the writer waits with the value on its pad
//!   get: the ring, then a waiting writer's pad, else wait
//! ```
//!
//! A *pad* is a slot of one table, a slot a fiber: what compiled Lua code reads and writes in place. Never do both readers
//! and writers wait, and no reader waits while a value is queued. Whoever completes a hand-over does not wait; the other
//! side is made ready. Nothing here allocates once the ring and the pads are there.
//!
//! What needs no wait is also there as plain C functions (`ffi_put`, `ffi_get`): the compiler calls those through FFI
//! without leaving its trace. They move no Lua value: they say where it is to be put or found.

use super::body::{LuaBody, LuaFiber, code};
use super::fiber::{arm_deadline, before_wait, fail_with, quick, quick_wait, wait, waiter_of, way};
use super::jit::first_userdata;
use super::state::{self, Keep, State};
use super::transfer::{self, Next, STAY, waiting};
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
    state: *mut State,
    /// Nothing may be put any more.
    closed: bool,
    readers: WaitList<LuaBody>,
    writers: WaitList<LuaBody>,
}

/// Its address marks our channels among all userdata.
static CHANNEL: u8 = 0;
/// The largest size, so that a slot's number is a Lua index.
const SIZE_MAX: usize = 0x7fff_fff0;
/// Slots a ring's table has from the start; more are added as they are used.
const READY_SLOTS: usize = 65_536;

const FUNCTIONS: &[Entry] = &[
    (c"new", l_new),
    (c"is_channel", l_is_channel),
    (c"put", l_put),
    (c"get", l_get),
    (c"wait_put", waiting!(l_wait_put, wait_put_at_once)),
    (c"wait_get", waiting!(l_wait_get, wait_get_at_once)),
    (c"close", l_close),
    (c"state", l_state),
    (c"destroy", l_destroy),
    (c"forget", l_forget),
    (c"shared", l_shared),
    (c"pad", l_pad),
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

/// `new(metatable, size)`: the channel and its ring, or nil if the size is too large.
unsafe extern "C-unwind" fn l_new(l: *mut lua_State) -> c_int {
    // SAFETY: called by channel.lua, which checked the size; the userdata is written before anything can read it.
    unsafe {
        let size = lua_tonumber(l, 2);
        if size > SIZE_MAX as f64 {
            return 0;
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // from 0 to SIZE_MAX
        let size = size as usize;
        let channel: *mut Channel = lua_newuserdata(l, size_of::<Channel>()).cast();
        channel.write(Channel {
            kind: &raw const CHANNEL,
            size,
            count: 0,
            head: 0,
            state: state::current(l),
            closed: false,
            readers: WaitList::new(),
            writers: WaitList::new(),
        });
        lua_pushvalue(l, 1);
        lua_setmetatable(l, -2);
        lua_createtable(l, size.min(READY_SLOTS) as c_int, 0);
        lua_pushvalue(l, -1);
        lua_setfenv(l, -3);
    }
    2
}

unsafe extern "C-unwind" fn l_is_channel(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe { lua_pushboolean(l, c_int::from(!channel_at(l, 1).is_null())) };
    1
}

// ---- the ring ----

impl Channel {
    /// The slot behind the last value, from 1.
    #[inline(always)]
    fn tail(&self) -> usize {
        let slot = self.head + self.count;
        if slot >= self.size { slot - self.size + 1 } else { slot + 1 }
    }

    /// The oldest value leaves: its slot, from 1.
    #[inline(always)]
    fn shift(&mut self) -> usize {
        let slot = self.head + 1;
        self.head = if slot == self.size { 0 } else { slot };
        self.count -= 1;
        slot
    }
}

/// Appends the value on the top of `l`, which is popped. `at` is the channel's stack position. May raise for memory,
/// before anything has changed.
unsafe fn append(l: *mut lua_State, at: c_int, channel: *mut Channel) {
    // SAFETY: the environment of a channel is its ring.
    unsafe {
        lua_getfenv(l, at);
        lua_insert(l, -2);
        lua_rawseti_(l, -2, (*channel).tail() as c_int);
        lua_settop(l, -2);
        (*channel).count += 1;
    }
}

/// Pushes the oldest value, which leaves the ring.
unsafe fn take(l: *mut lua_State, at: c_int, channel: *mut Channel) {
    // SAFETY: as for `append`; the slot exists, so clearing it does not allocate. False keeps the table an array.
    unsafe {
        let slot = (*channel).shift() as c_int;
        lua_getfenv(l, at);
        lua_rawgeti_(l, -1, slot);
        lua_pushboolean(l, 0);
        lua_rawseti_(l, -3, slot);
        lua_remove(l, -2);
    }
}

// ---- pads ----

/// The index of a fiber's pad.
#[inline(always)]
unsafe fn pad(f: LuaFiber) -> c_int {
    // SAFETY: `f` is live. There are far fewer records than 2^31.
    unsafe { (*f).slot as c_int + 1 }
}

/// Makes the pad of `f` exist. A memory error is raised before anything has changed.
#[inline(always)]
unsafe fn reserve_pad(s: *mut State, l: *mut lua_State, f: LuaFiber) {
    // SAFETY: the caller's contract.
    unsafe {
        if (*s).pads <= (*f).slot {
            add_pads(s, l);
        }
    }
}

/// A pad for every record there is.
#[cold]
unsafe fn add_pads(s: *mut State, l: *mut lua_State) {
    // SAFETY: two free slots.
    unsafe {
        (*s).push_kept(l, Keep::Pads);
        while (*s).cord.record((*s).pads as usize).is_some() {
            lua_pushboolean(l, 0);
            lua_rawseti_(l, -2, (*s).pads as c_int + 1);
            (*s).pads += 1;
        }
        lua_settop(l, -2);
    }
}

/// Moves the top of `l` onto the pad of `f`, which exists.
unsafe fn fill_pad(s: *mut State, l: *mut lua_State, f: LuaFiber) {
    // SAFETY: a free slot; the pad exists, so nothing is allocated.
    unsafe {
        (*s).push_kept(l, Keep::Pads);
        lua_insert(l, -2);
        lua_rawseti_(l, -2, pad(f));
        lua_settop(l, -2);
    }
}

/// `forget()`: empties the running fiber's pad.
unsafe extern "C-unwind" fn l_forget(l: *mut lua_State) -> c_int {
    // SAFETY: called by channel.lua.
    unsafe {
        let s = state::current(l);
        let f = (*s).cord.current;
        reserve_pad(s, l, f);
        lua_pushboolean(l, 0);
        fill_pad(s, l, f);
    }
    0
}

/// `pad()`: the number of the running fiber's pad.
unsafe extern "C-unwind" fn l_pad(l: *mut lua_State) -> c_int {
    // SAFETY: called by channel.lua.
    unsafe { lua_pushinteger(l, pad((*state::current(l)).cord.current) as lua_Integer) };
    1
}

/// `shared()`: the table of pads, and the addresses of [`ffi_put`] and [`ffi_get`].
unsafe extern "C-unwind" fn l_shared(l: *mut lua_State) -> c_int {
    // SAFETY: called by channel.lua. Addresses of code stay below 2^53.
    #[allow(clippy::cast_precision_loss)]
    unsafe {
        (*state::current(l)).push_kept(l, Keep::Pads);
        lua_pushnumber(l, ffi_put as *const () as usize as f64);
        lua_pushnumber(l, ffi_get as *const () as usize as f64);
    }
    3
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
    // SAFETY: a waiting writer's value is on its pad.
    unsafe {
        (*s).push_kept(l, Keep::Pads);
        lua_rawgeti_(l, -1, pad(f));
        lua_pushboolean(l, 0);
        lua_rawseti_(l, -3, pad(f));
        lua_remove(l, -2);
        answer_writer(s, f, true);
    }
}

// ---- put and get ----

/// How the third or fourth argument asks for it: nothing, "again" (a woken waiter that waits on) or "never" (no wait).
const AGAIN: lua_Integer = 1;
const NEVER: lua_Integer = 2;

/// Whether a writer (or a reader) has nobody to wait for. Triggers that run before a wait may have used the channel: then
/// it is tried again.
unsafe fn is_ready(channel: *mut Channel, kind: Wait) -> bool {
    // SAFETY: the caller's contract: the channel is live.
    unsafe {
        if (*channel).closed {
            return true;
        }
        if kind == Wait::Put {
            !(*channel).readers.first().is_null() || (*channel).count < (*channel).size
        } else {
            !(*channel).writers.first().is_null() || (*channel).count > 0
        }
    }
}

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
    // SAFETY: as for `l_put`.
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
        let f = (*s).cord.current;
        reserve_pad(s, l, f);
        lua_pushvalue(l, 2);
        fill_pad(s, l, f);
        before_wait(s, l);
        if is_ready(channel, Wait::Put) {
            return 0;
        }
        (*f).wait = Wait::Put;
        WaitList::link(&raw mut (*channel).writers, f, manner == AGAIN);
        arm_deadline(s, l, 3);
        wait(s, l, way, 0)
    }
}

/// `get(channel[, deadline[, manner]])`: the value (nil: closed) and true; or [`ON_PAD`] alone, when it is on the fiber's
/// pad; or a code or text, or nothing, as `put`.
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
                // The ring has a slot that was just taken from, or is new: a memory error loses nothing but this value.
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
        let f = (*s).cord.current;
        reserve_pad(s, l, f);
        before_wait(s, l);
        if is_ready(channel, Wait::Get) {
            return 0;
        }
        (*f).wait = Wait::Get;
        WaitList::link(&raw mut (*channel).readers, f, manner == AGAIN);
        arm_deadline(s, l, 2);
        wait(s, l, way, 0)
    }
}

// ---- for compiled code ----

/// The only result of a get whose value is on the reader's own pad: none of [`code`]'s.
const ON_PAD: lua_Integer = 6;

/// Added to the running fiber's pad: it has to wait, with its value (if it puts one) on that pad.
const MUST_WAIT: c_int = 1 << 30;

/// That number, or 0 if the pad is not there yet.
unsafe fn must_wait(s: *mut State) -> c_int {
    // SAFETY: a fiber runs.
    unsafe {
        let f = (*s).cord.current;
        if (*f).slot < (*s).pads { MUST_WAIT + pad(f) } else { 0 }
    }
}

/// Makes the first fiber of a list ready, with the one result that is on its stack. Gives minus its pad.
#[inline(always)]
unsafe fn hand_over_first(s: *mut State, list: *mut WaitList<LuaBody>, f: LuaFiber) -> c_int {
    // SAFETY: the list is not empty, and `f` its first fiber, which is live.
    unsafe {
        (*f).data.nargs = 1;
        if WaitList::wake_first(list, &raw mut (*s).cord) { -pad(f) } else { hand_over_slowly(s, f) }
    }
}

#[cold]
unsafe extern "C" fn hand_over_slowly(s: *mut State, f: LuaFiber) -> c_int {
    // SAFETY: as for `hand_over`.
    unsafe {
        hand_over(s, f, 1);
        -pad(f)
    }
}

/// Puts a value without waiting: the slot of the ring it belongs in; minus the pad of the reader that waits for it, and is
/// made ready; [`MUST_WAIT`] and more; or 0 if it takes more than that, or is refused.
///
/// # Safety
/// `channel` is the address of a userdata that says it is a channel. The caller stores the value at once.
unsafe extern "C" fn ffi_put(channel: *mut Channel) -> c_int {
    // SAFETY: the caller's contract; linked fibers are live, and a waiting C function has free slots. The first word of a
    // smaller userdata is some other of Lua's memory.
    unsafe {
        if (*channel).kind != &raw const CHANNEL || (*channel).closed {
            return 0;
        }
        let reader = (*channel).readers.first();
        if !reader.is_null() {
            lua_pushinteger(waiter_of(reader), ON_PAD);
            return hand_over_first((*channel).state, &raw mut (*channel).readers, reader);
        }
        if (*channel).count < (*channel).size {
            if (*channel).size > READY_SLOTS {
                return 0;
            }
            let slot = (*channel).tail();
            (*channel).count += 1;
            return slot as c_int;
        }
        must_wait((*channel).state)
    }
}

/// Gets a value without waiting: the slot of the ring it is in; minus the pad of the writer that waited with it, and is
/// made ready; [`MUST_WAIT`] and more; or 0 if it takes more than that.
///
/// # Safety
/// As for [`ffi_put`]; the caller takes the value at once, and leaves false there.
unsafe extern "C" fn ffi_get(channel: *mut Channel) -> c_int {
    // SAFETY: the caller's contract, as for `ffi_put`.
    unsafe {
        if (*channel).kind != &raw const CHANNEL {
            return 0;
        }
        let writer = (*channel).writers.first();
        if (*channel).count > 0 {
            return if writer.is_null() { (*channel).shift() as c_int } else { 0 };
        }
        if writer.is_null() {
            return if (*channel).closed { 0 } else { must_wait((*channel).state) };
        }
        lua_pushboolean(waiter_of(writer), 1);
        hand_over_first((*channel).state, &raw mut (*channel).writers, writer)
    }
}

/// `wait_put(channel)` where it goes straight to the next fiber.
unsafe extern "C-unwind" fn wait_put_at_once(l: *mut lua_State, frame: usize) -> Next {
    // SAFETY: called by `waiting` with the running thread.
    unsafe { wait_at_once(l, frame, Wait::Put, |channel| &raw mut (*channel).writers) }
}

/// `wait_get(channel)`, as that.
unsafe extern "C-unwind" fn wait_get_at_once(l: *mut lua_State, frame: usize) -> Next {
    // SAFETY: as above.
    unsafe { wait_at_once(l, frame, Wait::Get, |channel| &raw mut (*channel).readers) }
}

#[inline(always)]
unsafe fn wait_at_once(
    l: *mut lua_State,
    frame: usize,
    kind: Wait,
    list: impl FnOnce(*mut Channel) -> *mut WaitList<LuaBody>,
) -> Next {
    // SAFETY: as for `l_wait_put`.
    unsafe {
        match transfer::quiet_chance(l) {
            Some((s, f, to)) if (*s).cord.body.proven.userdata && (*f).attention == 0 => {
                let channel: *mut Channel = first_userdata(l, size_of::<Channel>()).cast();
                WaitList::link_last(list(channel), f);
                transfer::leave(s, f, l, to, frame, kind)
            }
            _ => STAY,
        }
    }
}

/// `wait_put(channel)`, after [`ffi_put`] said so and the value was put on the pad: what a `put` that waits returns.
unsafe extern "C-unwind" fn l_wait_put(l: *mut lua_State) -> c_int {
    // SAFETY: called by channel.lua alone, with a channel.
    unsafe {
        match quick(l) {
            Some((s, f)) if (*s).cord.body.proven.userdata && (*f).attention == 0 => {
                let channel: *mut Channel = first_userdata(l, size_of::<Channel>()).cast();
                WaitList::link_last(&raw mut (*channel).writers, f);
                quick_wait(l, f, Wait::Put)
            }
            _ => wait_put_slowly(l),
        }
    }
}

/// `wait_get(channel)`, after [`ffi_get`] said so.
unsafe extern "C-unwind" fn l_wait_get(l: *mut lua_State) -> c_int {
    // SAFETY: as for `l_wait_put`.
    unsafe {
        match quick(l) {
            Some((s, f)) if (*s).cord.body.proven.userdata && (*f).attention == 0 => {
                let channel: *mut Channel = first_userdata(l, size_of::<Channel>()).cast();
                WaitList::link_last(&raw mut (*channel).readers, f);
                quick_wait(l, f, Wait::Get)
            }
            _ => wait_get_slowly(l),
        }
    }
}

#[inline(never)]
unsafe fn wait_put_slowly(l: *mut lua_State) -> c_int {
    // SAFETY: as for `l_wait_put`.
    unsafe {
        let channel: *mut Channel = lua_touserdata(l, 1).cast();
        wait_last(l, channel, &raw mut (*channel).writers, Wait::Put)
    }
}

#[inline(never)]
unsafe fn wait_get_slowly(l: *mut lua_State) -> c_int {
    // SAFETY: as for `l_wait_put`.
    unsafe {
        let channel: *mut Channel = lua_touserdata(l, 1).cast();
        wait_last(l, channel, &raw mut (*channel).readers, Wait::Get)
    }
}

/// Waits at the end of a list, without a deadline.
unsafe fn wait_last(l: *mut lua_State, channel: *mut Channel, list: *mut WaitList<LuaBody>, kind: Wait) -> c_int {
    // SAFETY: as for `get_wait`.
    unsafe {
        let s = state::current(l);
        if (*s).cord.is_cancelled() {
            return refuse_wait(s, l, 0);
        }
        let way = match way(s, l) {
            Ok(way) => way,
            Err(text) => return fail_with(l, text),
        };
        before_wait(s, l);
        if is_ready(channel, kind) {
            return 0;
        }
        let f = (*s).cord.current;
        (*f).wait = kind;
        WaitList::link(list, f, false);
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
