//! The raw functions behind `cord.fiber`. Each returns *(error, results...)*: nil and the results, a number of
//! [`code`], or a text for an error of the arguments; fiber.lua raises. A function that waits returns
//! the same way, whether its results come from here or from whoever woke the fiber.

use super::body::{Anchor, Data, LuaCord, LuaFiber, anchor, code, code_of, push_wake};
use super::inspect::attend;
use super::jit::{self, MARK};
use super::state::{self, Keep, State};
pub use super::trace::before_wait;
use super::trace::{attach, before_call, before_told_wait, end_recording, run_handler};
use super::transfer::{self, Next, RETURNS_YIELDED, STAY, waiting};
use crate::fiber::clock;
use crate::fiber::cord::Cord;
use crate::fiber::fiber::{Wait, attention, flag};
use crate::fiber::trigger::TriggerList;
use crate::fiber::wait::WaitList;
use crate::sys::luajit::Entry;
use mlua::ffi::*;
use std::ffi::{CStr, c_int};

const DEAD: &CStr = c"the fiber is dead";

/// The userdata a script holds: enough to see whether the record still serves its fiber.
#[repr(C)]
struct Handle {
    kind: *const u8,
    id: u64,
    record: LuaFiber,
}

/// Its address marks our handles among all userdata.
static HANDLE: u8 = 0;

/// Registered as the native half of `cord.fiber`.
pub const FUNCTIONS: &[Entry] = &[
    (c"yield", waiting!(l_yield, yield_at_once)),
    (c"raises", l_raises),
    (c"sleep", waiting!(l_sleep)),
    (c"park", l_park),
    (c"self", l_self),
    (c"id", l_id),
    (c"find", l_find),
    (c"wakeup", l_wakeup),
    (c"cancel", l_cancel),
    (c"is_cancelled", l_is_cancelled),
    (c"status", l_status),
    (c"name", l_name),
    (c"set_name", l_set_name),
    (c"csw", l_csw),
    (c"set_joinable", l_set_joinable),
    (c"join", l_join),
    (c"is_fiber", l_is_fiber),
    (c"set_system", l_set_system),
    (c"storage", l_storage),
    (c"time", l_time),
    (c"clock", l_clock),
    (c"refresh_clock", l_refresh_clock),
    (c"deadline", l_deadline),
    (c"on_stop", l_on_stop),
    (c"pop_on_stop", l_pop_on_stop),
    (c"keep", l_keep),
    (c"waits", l_waits),
    (c"option", l_option),
    (c"stats", l_stats),
];

/// Pushes the native half of `cord.fiber`.
///
/// # Safety
/// A live state with free slots, in which the library was opened.
pub(crate) unsafe fn native(l: *mut lua_State) {
    // SAFETY: the caller's contract.
    unsafe {
        lua_createtable(l, 0, FUNCTIONS.len() as c_int);
        state::register(l, FUNCTIONS);
        super::interrupt::install(state::find(l));
    }
}

// ---- returning ----

/// Returns an error text.
pub(super) unsafe fn fail(l: *mut lua_State, text: &CStr) -> c_int {
    // SAFETY: every C function has free slots.
    unsafe { lua_pushstring_(l, text.as_ptr()) };
    1
}

/// Returns an error text made here.
#[cold]
pub(crate) unsafe fn fail_with(l: *mut lua_State, text: String) -> c_int {
    // SAFETY: a memory error would leak the text, which is all it does.
    unsafe { state::push_str(l, &text) };
    1
}

/// Pushes the nil that stands before results.
#[inline(always)]
pub(super) unsafe fn ok(l: *mut lua_State) {
    // SAFETY: every C function has free slots.
    unsafe { lua_pushnil(l) }
}

// ---- waiting ----

/// How the running fiber will wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By yielding to its runner.
    Light,
    /// By keeping the stack it stands on (or, for the main fiber, by running the others on it).
    Keep,
}

/// Decides how the running C function of `l` may wait. Call it before queueing the fiber anywhere.
///
/// # Errors
/// The text of the refusal; nothing has changed.
///
/// # Safety
/// `l` runs one of our functions.
#[inline(always)]
pub unsafe fn way(s: *mut State, l: *mut lua_State) -> Result<Way, String> {
    // SAFETY: the caller's contract.
    unsafe {
        let cord = &raw mut (*s).cord;
        if l == (*(*cord).current).data.l && (*cord).body.is_yieldable(l) { Ok(Way::Light) } else { way_keep(cord) }
    }
}

#[cold]
#[inline(never)]
unsafe fn way_keep(cord: *mut LuaCord) -> Result<Way, String> {
    // SAFETY: the caller's contract.
    match unsafe { Cord::may_keep_stack(cord) } {
        Ok(()) => Ok(Way::Keep),
        Err(refused) => Err(refused.to_string()),
    }
}

/// Ends a C function in a wait; the fiber is queued or will be woken by somebody. `kept` values on the top of the
/// stack become the results of a light fiber's wait (they are handed back to it), and of any other's too.
///
/// # Safety
/// `way` came from [`way`]; nothing with a destructor is alive in the caller.
#[inline(always)]
pub unsafe fn wait(s: *mut State, l: *mut lua_State, way: Way, kept: c_int) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        if way == Way::Light {
            let f = (*s).cord.current;
            (*f).data.announced = true;
            (*f).data.nargs = kept;
            return lua_yield(l, kept);
        }
        wait_kept(s, l, kept)
    }
}

/// As the hook that the luajit program's signal handler sets.
unsafe extern "C-unwind" fn raise_interrupt(l: *mut lua_State, _ar: *mut lua_Debug) {
    // SAFETY: called by LuaJIT with the running thread.
    unsafe {
        lua_sethook(l, None, 0, 0);
        luaL_error(l, c"interrupted!".as_ptr());
    }
}

#[inline(never)]
unsafe fn wait_kept(s: *mut State, l: *mut lua_State, kept: c_int) -> c_int {
    // SAFETY: as for `wait`. Results moved to the waiter while it slept are on the top of its stack.
    unsafe {
        let f = (*s).cord.current;
        (*f).data.waiter = l;
        Cord::switch(&raw mut (*s).cord);
        let Data { nargs, .. } = (*f).data;
        (*f).data.nargs = 0;
        if (*f).attention & !(attention::STACK | attention::MAIN) == 0 && (*f).wait != Wait::Io {
            // Nothing to take: its turn came, and that was all.
            return kept + nargs;
        }
        let wake = (*s).cord.take_wake(f);
        if kept > 0 || nargs > 0 {
            if wake.interrupted {
                // These results leave no room for an error, so it is raised at the next instruction.
                lua_sethook(l, Some(raise_interrupt), LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
            }
            return kept + nargs;
        }
        push_wake(l, f, wake)
    }
}

/// The thread whose stack gets the results of a waiting fiber.
///
/// # Safety
/// `f` is a live fiber that waits.
pub unsafe fn waiter_of(f: LuaFiber) -> *mut lua_State {
    // SAFETY: the caller's contract.
    unsafe { if (*f).attention & (attention::STACK | attention::MAIN) != 0 { (*f).data.waiter } else { (*f).data.l } }
}

// ---- handles ----

/// Pushes the userdata of `f`: the same one each time while it lives. A memory error is raised in `l`.
///
/// # Safety
/// `f` is live and `l` has three free slots.
pub unsafe fn push_handle(l: *mut lua_State, s: *mut State, f: LuaFiber) {
    // SAFETY: the caller's contract. A native fiber's record may still be without anchors.
    unsafe {
        if (*f).is(flag::HANDLE) {
            (*s).push_anchor(l, f, Anchor::Handle);
            return;
        }
        (*s).reserve_anchors(l, f);
        let handle: *mut Handle = lua_newuserdata(l, size_of::<Handle>()).cast();
        handle.write(Handle { kind: &raw const HANDLE, id: (*f).id, record: f });
        (*s).push_kept(l, Keep::FiberMeta);
        lua_setmetatable(l, -2);
        lua_pushvalue(l, -1);
        (*s).keep_anchor(l, f, Anchor::Handle);
        (*f).flags |= flag::HANDLE;
    }
}

/// The handle at `idx`, or null if it is something else.
unsafe fn handle_at(l: *mut lua_State, idx: c_int) -> *const Handle {
    // SAFETY: a userdata of our size may be read; only ours starts with our mark.
    unsafe {
        if lua_type(l, idx) != LUA_TUSERDATA || lua_objlen(l, idx) != size_of::<Handle>() {
            return std::ptr::null();
        }
        let handle: *const Handle = lua_touserdata(l, idx).cast();
        if (*handle).kind == &raw const HANDLE { handle } else { std::ptr::null() }
    }
}

/// The live fiber of a handle, or null.
unsafe fn live(handle: *const Handle) -> LuaFiber {
    // SAFETY: records are never freed.
    unsafe {
        let (record, id) = ((*handle).record, (*handle).id);
        // The handle of nobody (see `Cord::nobody`) has no id, and is of a dead fiber.
        if (*record).id == id && id != 0 { record } else { std::ptr::null_mut() }
    }
}

/// A number that names a fiber: a Lua number, a numeric string or a 64-bit cdata (through `tonumber` in fiber.lua).
unsafe fn id_at(l: *mut lua_State, idx: c_int) -> Option<u64> {
    // SAFETY: reads one argument.
    unsafe {
        if lua_isnumber(l, idx) == 0 {
            return None;
        }
        let number = lua_tonumber(l, idx);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // checked
        (1.0..9.0e15).contains(&number).then_some(number as u64)
    }
}

/// The live fiber that argument `idx` means: a handle, or an id.
///
/// # Errors
/// The text to raise.
pub(super) unsafe fn fiber_at(s: *mut State, l: *mut lua_State, idx: c_int) -> Result<LuaFiber, &'static CStr> {
    // SAFETY: reads one argument.
    unsafe {
        let handle = handle_at(l, idx);
        let f = if !handle.is_null() {
            live(handle)
        } else if lua_type(l, idx) == LUA_TNUMBER {
            id_at(l, idx).map_or(std::ptr::null_mut(), |id| (*s).cord.find(id))
        } else {
            return Err(c"expected fiber as 1 argument");
        };
        if f.is_null() { Err(DEAD) } else { Ok(f) }
    }
}

/// As [`fiber_at`], but only a handle will do; without an argument, the running fiber.
unsafe fn handle_or_self(s: *mut State, l: *mut lua_State) -> Result<LuaFiber, &'static CStr> {
    // SAFETY: reads one argument.
    unsafe {
        if lua_gettop(l) == 0 {
            return Ok((*s).cord.current);
        }
        let handle = handle_at(l, 1);
        if handle.is_null() {
            return Err(c"expected fiber as 1 argument");
        }
        let f = live(handle);
        if f.is_null() { Err(DEAD) } else { Ok(f) }
    }
}

macro_rules! attempt {
    ($l:expr, $result:expr) => {
        match $result {
            Ok(value) => value,
            Err(text) => return fail($l, text),
        }
    };
}

macro_rules! attempt_way {
    ($s:expr, $l:expr) => {
        match way($s, $l) {
            Ok(way) => way,
            Err(text) => return fail_with($l, text),
        }
    };
}

// ---- birth ----

/// Makes a fiber of the function at stack position 1 and the arguments above it, which are moved to its thread. It is
/// queued nowhere yet. Errors (no memory, too many arguments) are raised before anything is claimed.
///
/// # Safety
/// `l` runs one of our functions, its position 1 is a function.
pub(crate) unsafe fn spawn(s: *mut State, l: *mut lua_State, moved: c_int) -> LuaFiber {
    // SAFETY: the record is only shown, not claimed, until nothing can fail any more.
    unsafe {
        let f = loop {
            let f = (*s).cord.peek_record();
            (*s).reserve_anchors(l, f);
            if !(*f).data.l.is_null() {
                break f;
            }
            let thread = lua_newthread(l);
            // A finalizer that ran just now may have made a fiber of this record.
            if (*s).cord.peek_record() == f && (*f).data.l.is_null() {
                (*s).keep_anchor(l, f, Anchor::Thread);
                (*f).data.l = thread;
                (*s).cord.body.mark(thread, MARK);
                break f;
            }
            lua_settop(l, -2);
        };
        let thread = (*f).data.l;
        if moved > 16 && !room(s, thread, moved) {
            luaL_error(l, c"too many arguments for a fiber (%d)".as_ptr(), moved - 1);
        }
        if lua_topointer(thread, LUA_GLOBALSINDEX) != lua_topointer(l, LUA_GLOBALSINDEX) {
            lua_pushvalue(l, LUA_GLOBALSINDEX);
            lua_xmove(l, thread, 1);
            lua_replace(thread, LUA_GLOBALSINDEX);
        }
        lua_xmove(l, thread, moved);
        (*f).data.nargs = moved - 1;
        (*f).data.status = 0;
        (*s).cord.take_record(f);
        attach(s, f);
        f
    }
}

/// Room for `n` values on a waiting fiber's stack. The mark of a light fiber is taken off meanwhile: growing a stack reads
/// the word. A stuck fiber and the main one wait in a C function: their word is LuaJIT's own.
pub(crate) unsafe fn room(s: *mut State, thread: *mut lua_State, n: c_int) -> bool {
    // SAFETY: the thread is live and does not run.
    unsafe {
        let marked = (*s).cord.body.is_marked(thread);
        if marked {
            (*s).cord.body.mark(thread, 0);
        }
        let fits = lua_checkstack(thread, n + 8) != 0;
        if marked {
            (*s).cord.body.mark(thread, MARK);
        }
        fits
    }
}

/// Upvalues of `create` and `new`, besides the state: the handles' metatable and the anchors table.
const UPVALUE_META: c_int = 2;
const UPVALUE_ANCHORS: c_int = 3;

/// `fiber.create(function, ...)`, as scripts see it: whatever it has to raise, it raises before it waits.
unsafe extern "C-unwind" fn l_create(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua; a refusal's text is dropped before the raise.
    unsafe {
        let s = state::current(l);
        if lua_type(l, 1) != LUA_TFUNCTION {
            return raise_fail(l, s, c"fiber.create(function, ...): bad arguments");
        }
        let way = match way(s, l) {
            Ok(way) => way,
            Err(text) => {
                fail_with(l, text);
                return raise_top(l, s);
            }
        };
        before_call(s, l);
        let child = spawn_with_handle(s, l);
        (*s).cord.enqueue_create(child);
        wait(s, l, way, 1)
    }
}

/// `fiber.new(function, ...)`, as scripts see it.
unsafe extern "C-unwind" fn l_new(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        if lua_type(l, 1) != LUA_TFUNCTION {
            return raise_fail(l, s, c"fiber.new(function, ...): bad arguments");
        }
        let child = spawn_with_handle(s, l);
        (*s).cord.enqueue(child);
        1
    }
}

/// Raises through fiber.lua's `fail`, as if the native function's caller had called it.
#[cold]
unsafe fn raise_fail(l: *mut lua_State, s: *mut State, text: &CStr) -> c_int {
    // SAFETY: every C function has free slots.
    unsafe {
        lua_pushstring_(l, text.as_ptr());
        raise_top(l, s)
    }
}

#[cold]
unsafe fn raise_top(l: *mut lua_State, s: *mut State) -> c_int {
    // SAFETY: the error is on the top; nothing with a destructor is alive.
    unsafe {
        (*s).push_kept(l, Keep::Fail);
        lua_insert(l, -2);
        lua_call(l, 1, 0);
    }
    0
}

/// Makes a fiber of the whole stack (function and arguments), and leaves its handle there. What can fail comes first.
#[inline(always)]
unsafe fn spawn_with_handle(s: *mut State, l: *mut lua_State) -> LuaFiber {
    // SAFETY: called by `create` and `new`, which have the upvalues.
    unsafe {
        let moved = lua_gettop(l);
        let handle: *mut Handle = lua_newuserdata(l, size_of::<Handle>()).cast();
        lua_pushvalue(l, lua_upvalueindex(UPVALUE_META));
        lua_setmetatable(l, -2);
        lua_insert(l, 1);
        let child = spawn(s, l, moved);
        handle.write(Handle { kind: &raw const HANDLE, id: (*child).id, record: child });
        lua_pushvalue(l, 1);
        lua_rawseti_(l, lua_upvalueindex(UPVALUE_ANCHORS), anchor(&*child, Anchor::Handle) as c_int);
        (*child).flags |= flag::HANDLE;
        child
    }
}

// ---- yielding ----

/// The state and its running fiber, with the recording ended that [`before_wait`] would end, if the running C function of
/// `l` may wait by yielding and nobody wants to hear of it: the short way of what is called most. A function that calls
/// nothing but `lua_yield`, last, needs no frame.
#[inline(always)]
pub(super) unsafe fn quick(l: *mut lua_State) -> Option<(*mut State, LuaFiber)> {
    // SAFETY: the caller's contract: `l` runs one of our functions.
    unsafe {
        let s = state::seen_last(l);
        if s.is_null() {
            return None;
        }
        let f = (*s).cord.current;
        if l != (*f).data.l || !(*s).cord.body.is_yieldable(l) || (*s).cord.body.attend != 0 {
            return None;
        }
        end_recording(s);
        Some((s, f))
    }
}

/// Ends a C function that took the [`quick`] way in a wait, without results of its own.
#[inline(always)]
pub(super) unsafe fn quick_wait(l: *mut lua_State, f: LuaFiber, kind: Wait) -> c_int {
    // SAFETY: the fiber was linked or queued by the caller.
    unsafe {
        (*f).wait = kind;
        (*f).data.announced = true;
        lua_yield(l, 0)
    }
}

/// `yield()` where it goes straight to the next fiber.
unsafe extern "C-unwind" fn yield_at_once(l: *mut lua_State, frame: usize) -> Next {
    // SAFETY: called by `waiting` with the running thread.
    unsafe {
        let s = state::seen_last(l);
        if s.is_null() || !jit::is_yieldable(l) {
            return STAY;
        }
        if (*s).cord.body.attend != 0 {
            return yield_at_once_told(l, frame, s);
        }
        match transfer::chance(s, l) {
            Some((_, to)) => {
                end_recording(s);
                Cord::yield_to_light_head(&raw mut (*s).cord, to.f);
                transfer::go(l, to, frame)
            }
            None => STAY,
        }
    }
}

/// The same where somebody wants to hear of it: here a trace-abort mode that calls something. Apart, so that the other one
/// needs no frame.
#[inline(never)]
unsafe extern "C-unwind" fn yield_at_once_told(l: *mut lua_State, frame: usize, s: *mut State) -> Next {
    // SAFETY: as for `yield_at_once`, which has seen the state, and that the thread may yield.
    unsafe {
        let f = (*s).cord.current;
        if (*s).cord.body.attend != attend::MODE || l != (*f).data.l {
            return STAY;
        }
        // First, while little is to be kept: the handlers change nothing here.
        run_handler(s, l);
        match transfer::target(&raw mut (*s).cord) {
            Some(to) => {
                Cord::yield_to_light_head(&raw mut (*s).cord, to.f);
                transfer::go(l, to, frame)
            }
            None => {
                (*s).cord.enqueue((*s).cord.current);
                quick_wait(l, (*s).cord.current, Wait::Yield);
                RETURNS_YIELDED
            }
        }
    }
}

/// `yield()`: to the tail of the ready queue. Raises what its wait brought if [`l_raises`] says so, else returns its code.
unsafe extern "C-unwind" fn l_yield(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe { give_way(l, Wait::Yield) }
}

/// To the tail of the ready queue. What such a wait brings is raised if `kind` is [`Wait::Yield`] and it can be, else
/// returned.
#[inline(always)]
unsafe fn give_way(l: *mut lua_State, kind: Wait) -> c_int {
    // SAFETY: called by Lua; nothing is borrowed across the yield.
    unsafe {
        let s = state::seen_last(l);
        if s.is_null() {
            return yield_unseen(l, kind);
        }
        let f = (*s).cord.current;
        if l != (*f).data.l || !(*s).cord.body.is_yieldable(l) {
            return yield_kept(s, l, kind);
        }
        if (*s).cord.body.attend != 0 || (*s).cord.ready.is_full() {
            return yield_told(s, l, f, kind);
        }
        end_recording(s);
        (*f).flags |= flag::READY;
        (*s).cord.ready.push_back_free(f);
        quick_wait(l, f, kind)
    }
}

/// A light yield that somebody wants to hear of, or that needs more room.
#[inline(never)]
unsafe fn yield_told(s: *mut State, l: *mut lua_State, f: LuaFiber, kind: Wait) -> c_int {
    // SAFETY: as for `give_way`.
    unsafe {
        before_told_wait(s, l);
        (*s).cord.enqueue(f);
        quick_wait(l, f, kind)
    }
}

#[cold]
#[inline(never)]
unsafe fn yield_unseen(l: *mut lua_State, kind: Wait) -> c_int {
    // SAFETY: as for `give_way`.
    unsafe {
        let s = state::current(l);
        let f = (*s).cord.current;
        let light = l == (*f).data.l && (*s).cord.body.is_yieldable(l);
        if light { yield_told(s, l, f, kind) } else { yield_kept(s, l, kind) }
    }
}

#[inline(never)]
unsafe fn yield_kept(s: *mut State, l: *mut lua_State, kind: Wait) -> c_int {
    // SAFETY: as for `give_way`.
    unsafe {
        let results = give_way_kept(s, l, kind);
        if results > 0 && kind == Wait::Yield && raises(s) {
            lua_settop(l, lua_gettop(l) - results + 1);
            return raise_top(l, s);
        }
        results
    }
}

/// Apart from who raises, so that no variable of this frame is left behind by an error.
#[inline(never)]
unsafe fn give_way_kept(s: *mut State, l: *mut lua_State, kind: Wait) -> c_int {
    // SAFETY: as for `give_way`.
    unsafe {
        let cord = &raw mut (*s).cord;
        if let Err(refused) = Cord::may_keep_stack(cord) {
            return fail_with(l, refused.to_string());
        }
        before_wait(s, l);
        let f = (*cord).current;
        (*f).wait = kind;
        if f == (*cord).main && (*cord).ready.is_empty() {
            // Alone: look outside, and go on if nobody came.
            Cord::glance(cord);
            if (*cord).ready.is_empty() {
                (*f).csw += 1;
                let wake = (*cord).take_wake(f);
                return push_code(l, code_of(wake));
            }
        }
        (*cord).enqueue(f);
        wait_kept(s, l, 0)
    }
}

/// Whether `yield` raises by itself.
unsafe fn raises(s: *mut State) -> bool {
    // SAFETY: the caller's contract.
    unsafe { !(*s).cord.body.carrier.is_null() }
}

/// `raises()`: whether `yield` raises by itself; else its first result is to be raised.
unsafe extern "C-unwind" fn l_raises(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe { lua_pushboolean(l, c_int::from(raises(state::current(l)))) };
    1
}

/// The running fiber raises what its wait brought, in the C function that waited. Does not return.
///
/// # Safety
/// `l` is its thread, which has just been made the running one.
pub(super) unsafe extern "C-unwind" fn raise_kept(l: *mut lua_State) -> c_int {
    // SAFETY: the caller's contract; a C function that waited has free slots.
    unsafe {
        let s = state::current(l);
        let f = (*s).cord.current;
        let raised = std::mem::take(&mut (*f).data.raise);
        lua_pushinteger(l, raised as lua_Integer);
        raise_top(l, s)
    }
}

unsafe fn push_code(l: *mut lua_State, number: c_int) -> c_int {
    // SAFETY: every C function has free slots.
    unsafe {
        if number == 0 {
            return 0;
        }
        lua_pushinteger(l, number as lua_Integer);
    }
    1
}

/// `sleep(seconds)`: nil or a code.
unsafe extern "C-unwind" fn l_sleep(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        if lua_gettop(l) != 1 || lua_isnumber(l, 1) == 0 {
            return fail(l, c"Usage: fiber.sleep(delay)");
        }
        let delay = lua_tonumber(l, 1);
        if delay <= 0.0 {
            return give_way(l, Wait::Sleep);
        }
        let way = attempt_way!(s, l);
        before_wait(s, l);
        let cord = &raw mut (*s).cord;
        (*(*cord).current).wait = Wait::Sleep;
        if let Some(deadline) = clock::deadline(delay) {
            (*cord).arm_timer(deadline);
        }
        wait(s, l, way, 0)
    }
}

/// `park([deadline])`: until somebody wakes the fiber or the deadline (of `deadline()`) passes. Nil or a code, then
/// whether it was meant.
unsafe extern "C-unwind" fn l_park(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        let way = attempt_way!(s, l);
        before_wait(s, l);
        (*(*s).cord.current).wait = Wait::Suspend;
        arm_deadline(s, l, 1);
        wait(s, l, way, 0)
    }
}

/// Arms the timer of the running fiber if argument `idx` is a deadline.
pub(crate) unsafe fn arm_deadline(s: *mut State, l: *mut lua_State, idx: c_int) {
    // SAFETY: reads one argument.
    unsafe {
        if lua_type(l, idx) == LUA_TNUMBER {
            let deadline = lua_tonumber(l, idx);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
            (*s).cord.arm_timer(deadline as u64);
        }
    }
}

/// `deadline(seconds)`: nanoseconds on the monotonic clock (exact in a double for a hundred days of uptime, and to a
/// microsecond for ever), or nil for one that never comes.
unsafe extern "C-unwind" fn l_deadline(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        match clock::deadline(lua_tonumber(l, 1)) {
            #[allow(clippy::cast_precision_loss)]
            Some(deadline) => lua_pushnumber(l, deadline as f64),
            None => lua_pushnil(l),
        }
    }
    1
}

// ---- questions ----

unsafe extern "C-unwind" fn l_self(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        push_handle(l, s, (*s).cord.current);
    }
    1
}

unsafe extern "C-unwind" fn l_is_fiber(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe { lua_pushboolean(l, c_int::from(!handle_at(l, 1).is_null())) };
    1
}

pub(super) unsafe fn push_id(l: *mut lua_State, id: u64) {
    // SAFETY: every C function has free slots. Ids stay far below 2^53.
    #[allow(clippy::cast_precision_loss)]
    unsafe {
        lua_pushnumber(l, id as f64);
    }
}

unsafe extern "C-unwind" fn l_id(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        let id = if lua_gettop(l) == 0 {
            (*(*s).cord.current).id
        } else {
            let handle = handle_at(l, 1);
            if handle.is_null() {
                return fail(l, c"expected fiber as 1 argument");
            }
            (*handle).id
        };
        ok(l);
        push_id(l, id);
    }
    2
}

unsafe extern "C-unwind" fn l_find(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        match id_at(l, 1).map(|id| (*s).cord.find(id)) {
            Some(f) if !f.is_null() => push_handle(l, s, f),
            _ => lua_pushnil(l),
        }
    }
    1
}

unsafe extern "C-unwind" fn l_status(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        let f = match handle_or_self(s, l) {
            Ok(f) => f,
            Err(text) if text == DEAD => std::ptr::null_mut(),
            Err(text) => return fail(l, text),
        };
        ok(l);
        let text = if f.is_null() {
            c"dead"
        } else if f == (*s).cord.current {
            c"running"
        } else {
            c"suspended"
        };
        lua_pushstring_(l, text.as_ptr());
    }
    2
}

unsafe extern "C-unwind" fn l_name(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        let f = attempt!(l, handle_or_self(s, l));
        ok(l);
        let name = (&*f).name();
        lua_pushlstring_(l, name.as_ptr().cast(), name.len());
    }
    2
}

/// `set_name(f, name, truncate)`: arguments checked by fiber.lua, but for their length.
unsafe extern "C-unwind" fn l_set_name(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua; the name's bytes are copied while the argument is on the stack.
    unsafe {
        let s = state::current(l);
        let f = attempt!(l, fiber_at(s, l, 1));
        let mut len = 0;
        let at = lua_tolstring(l, 2, &raw mut len);
        if at.is_null() {
            return fail(l, c"expected string as 2 argument");
        }
        let name = std::slice::from_raw_parts(at.cast::<u8>(), len);
        match Cord::set_name(f, name, lua_toboolean(l, 3) != 0) {
            Ok(()) => 0,
            Err(()) => fail(l, c"Fiber name is too long"),
        }
    }
}

unsafe extern "C-unwind" fn l_csw(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        let f = attempt!(l, handle_or_self(s, l));
        ok(l);
        push_id(l, (*f).csw);
    }
    2
}

// ---- wakeup, cancel ----

unsafe extern "C-unwind" fn l_wakeup(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        let f = attempt!(l, fiber_at(s, l, 1));
        (*s).cord.wakeup(f);
    }
    0
}

/// `cancel(f)`: nil, an error, or the code for "the caller is cancelled".
unsafe extern "C-unwind" fn l_cancel(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        let f = attempt!(l, fiber_at(s, l, 1));
        if (*f).is(flag::SYSTEM) {
            return 0;
        }
        (*s).cord.cancel(f);
        if (*s).cord.is_cancelled() { push_code(l, code::CANCELLED) } else { 0 }
    }
}

unsafe extern "C-unwind" fn l_is_cancelled(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        lua_pushboolean(l, c_int::from((*s).cord.is_cancelled()));
    }
    1
}

unsafe extern "C-unwind" fn l_set_system(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        let f = attempt!(l, fiber_at(s, l, 1));
        (*f).flags |= flag::SYSTEM;
    }
    0
}

// ---- joining ----

unsafe extern "C-unwind" fn l_set_joinable(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        let f = attempt!(l, fiber_at(s, l, 1));
        let wanted = lua_toboolean(l, 2) != 0;
        if (*f).is(flag::DEAD) {
            // Tarantool panics here.
            return fail(l, DEAD);
        }
        if wanted {
            (*f).flags |= flag::JOINABLE;
        } else {
            (*f).flags &= !flag::JOINABLE;
        }
    }
    0
}

/// `join(f[, deadline[, again[, only_check]]])`: DONE and the results; or, having waited, nil or a code: then it is
/// called again. With the last argument nothing happens but the checks.
unsafe extern "C-unwind" fn l_join(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        let f = match fiber_at(s, l, 1) {
            Ok(f) => f,
            Err(_) if lua_toboolean(l, 3) != 0 => {
                return fail(l, c"the fiber is already joined by concurrent fiber:join()");
            }
            Err(text) => return fail(l, text),
        };
        if !(*f).is(flag::JOINABLE) {
            return fail(l, c"the fiber is not joinable");
        }
        if f == (*s).cord.current {
            return fail(l, c"cannot join itself");
        }
        if lua_toboolean(l, 4) != 0 {
            return 0;
        }
        if (*f).is(flag::DEAD) {
            return take_results(s, l, f);
        }
        let deadline = lua_tonumber(l, 2);
        #[allow(clippy::cast_precision_loss)] // deadlines are far below 2^63
        if lua_type(l, 2) == LUA_TNUMBER && lua_toboolean(l, 3) != 0 && clock::monotonic() as f64 >= deadline {
            return push_code(l, code::TIMED_OUT);
        }
        let way = attempt_way!(s, l);
        before_wait(s, l);
        let cord = &raw mut (*s).cord;
        (*(*cord).current).wait = Wait::Join;
        WaitList::link(&raw mut (*f).joiners, (*cord).current, false);
        arm_deadline(s, l, 2);
        wait(s, l, way, 0)
    }
}

/// Pushes what a finished fiber left, and gives its record back.
unsafe fn take_results(s: *mut State, l: *mut lua_State, f: LuaFiber) -> c_int {
    // SAFETY: the caller found a finished joinable fiber.
    unsafe {
        let n = (*f).data.results;
        let count = n.unsigned_abs() as c_int;
        luaL_checkstack_(l, count + 4, c"too many results".as_ptr());
        lua_settop(l, 0);
        push_code(l, code::DONE);
        lua_pushboolean(l, c_int::from(n >= 0));
        if n != 0 {
            (*s).push_anchor(l, f, Anchor::Results);
            for i in 1..=count {
                lua_rawgeti_(l, 3, i);
            }
            lua_remove(l, 3);
        }
        Cord::release(&raw mut (*s).cord, f);
        count + 2
    }
}

// ---- storage, triggers ----

/// `storage(f[, make])`: the table, made if asked for.
unsafe extern "C-unwind" fn l_storage(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        let f = attempt!(l, fiber_at(s, l, 1));
        if (*f).is(flag::DEAD) {
            return fail(l, DEAD);
        }
        ok(l);
        if !(*f).is(flag::STORAGE) {
            lua_createtable(l, 0, 2);
            lua_pushvalue(l, -1);
            (*s).keep_anchor(l, f, Anchor::Storage);
            (*f).flags |= flag::STORAGE;
            return 2;
        }
        (*s).push_anchor(l, f, Anchor::Storage);
    }
    2
}

/// The reference of the function at `idx` among a list's payloads, by identity.
unsafe fn find_trigger(
    s: *mut State,
    l: *mut lua_State,
    payloads: impl Iterator<Item = c_int>,
    idx: c_int,
) -> Option<c_int> {
    // SAFETY: balanced use of two free slots.
    unsafe {
        (*s).push_kept(l, Keep::Triggers);
        let table = lua_gettop(l);
        let mut found = None;
        for payload in payloads {
            lua_rawgeti_(l, table, payload);
            let same = lua_rawequal(l, -1, idx) != 0;
            lua_settop(l, -2);
            if same {
                found = Some(payload);
                break;
            }
        }
        lua_settop(l, table - 1);
        found
    }
}

/// `on_stop(f, new, old)`: adds, replaces or removes a trigger; with neither, the list as a table. Arguments are
/// checked by fiber.lua.
unsafe extern "C-unwind" fn l_on_stop(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua; three arguments.
    unsafe {
        let s = state::current(l);
        lua_settop(l, 3);
        let f = attempt!(l, fiber_at(s, l, 1));
        if (*f).is(flag::DEAD) {
            return fail(l, DEAD);
        }
        reset_triggers(s, l, &raw mut (*f).on_stop)
    }
}

/// Adds the function at position 2, removes the one at position 3, or pushes the list as a table if both are nil. An
/// unknown function to remove is the error "trigger reset: Trigger is not found".
///
/// # Safety
/// `l` runs one of our functions and has exactly three values; the list is live.
pub(super) unsafe fn reset_triggers(s: *mut State, l: *mut lua_State, list: *mut TriggerList) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        let (new, old) = (lua_type(l, 2) != LUA_TNIL, lua_type(l, 3) != LUA_TNIL);
        if !new && !old {
            ok(l);
            list_triggers(s, l, (&*list).iter());
            return 2;
        }
        if old {
            let Some(reference) = find_trigger(s, l, (&*list).iter(), 3) else {
                return fail(l, c"trigger reset: Trigger is not found");
            };
            (&mut *list).remove(&mut (*s).cord.triggers, |payload| payload == reference);
            (*s).push_kept(l, Keep::Triggers);
            luaL_unref(l, -1, reference);
            lua_settop(l, -2);
        }
        if new && find_trigger(s, l, (&*list).iter(), 2).is_none() {
            (*s).push_kept(l, Keep::Triggers);
            lua_pushvalue(l, 2);
            let reference = luaL_ref(l, -2);
            lua_settop(l, -2);
            (&mut *list).add(&mut (*s).cord.triggers, reference);
        }
        ok(l);
        lua_pushvalue(l, 2);
    }
    2
}

/// Pushes a table of the functions behind `payloads`.
pub(super) unsafe fn list_triggers(s: *mut State, l: *mut lua_State, payloads: impl Iterator<Item = c_int>) {
    // SAFETY: a few free slots; memory errors are raised with nothing to drop.
    unsafe {
        lua_createtable(l, 0, 0);
        (*s).push_kept(l, Keep::Triggers);
        for (i, payload) in payloads.enumerate() {
            lua_rawgeti_(l, -1, payload);
            lua_rawseti_(l, -3, i as c_int + 1);
        }
        lua_settop(l, -2);
    }
}

/// `pop_on_stop(f)`: the next trigger's function, taken off the list.
unsafe extern "C-unwind" fn l_pop_on_stop(l: *mut lua_State) -> c_int {
    // SAFETY: called by fiber.lua's trigger runner in the fiber that ends.
    unsafe {
        let s = state::current(l);
        let f = attempt!(l, fiber_at(s, l, 1));
        ok(l);
        let Some(reference) = (&mut (*f).on_stop).pop(&mut (*s).cord.triggers) else { return 1 };
        (*s).push_kept(l, Keep::Triggers);
        lua_rawgeti_(l, -1, reference);
        luaL_unref(l, -2, reference);
        lua_remove(l, -2);
    }
    2
}

// ---- clocks ----

fn seconds(nanoseconds: u64) -> f64 {
    #[allow(clippy::cast_precision_loss)] // better than a microsecond for both clocks
    let seconds = nanoseconds as f64 * 1e-9;
    seconds
}

unsafe extern "C-unwind" fn l_time(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe { lua_pushnumber(l, seconds((*state::current(l)).cord.clock.wall)) };
    1
}

unsafe extern "C-unwind" fn l_clock(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe { lua_pushnumber(l, seconds((*state::current(l)).cord.clock.monotonic)) };
    1
}

unsafe extern "C-unwind" fn l_refresh_clock(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe { (*state::current(l)).cord.clock.update() };
    0
}

// ---- for fiber.lua ----

/// `keep(metatable, report, on_stop, fail)`: what native code calls and uses. Returns `create` and `new`.
unsafe extern "C-unwind" fn l_keep(l: *mut lua_State) -> c_int {
    // SAFETY: called once by fiber.lua with these four.
    unsafe {
        let s = state::current(l);
        lua_settop(l, 4);
        (*s).keep(l, Keep::Fail);
        (*s).keep(l, Keep::OnStop);
        (*s).keep(l, Keep::Report);
        (*s).keep(l, Keep::FiberMeta);
        for function in [l_create, l_new] as [lua_CFunction; 2] {
            lua_pushvalue(l, lua_upvalueindex(1));
            (*s).push_kept(l, Keep::FiberMeta);
            (*s).push_kept(l, Keep::Anchors);
            lua_pushcclosure(l, function, 3);
        }
    }
    2
}

/// Calls fiber.lua's report of an uncaught error: id, name, value, traceback.
///
/// # Safety
/// Runs inside a protected job on the scratch thread `sl`; `l` is the thread that ended in the error.
pub(crate) unsafe fn report(sl: *mut lua_State, s: *mut State, f: LuaFiber, l: *mut lua_State) {
    // SAFETY: the caller's contract.
    unsafe {
        (*s).push_kept(sl, Keep::Report);
        push_id(sl, (*f).id);
        let name = (&*f).name();
        lua_pushlstring_(sl, name.as_ptr().cast(), name.len());
        lua_pushvalue(l, -1);
        lua_xmove(l, sl, 1);
        (*s).luajit.traceback(sl, l, std::ptr::null(), 0);
        lua_call(sl, 4, 0);
    }
}

/// `waits()`: a list of {id, name, what it waits for, csw, whether it is stuck}, one entry a live fiber.
unsafe extern "C-unwind" fn l_waits(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua. Memory errors are raised; nothing with a destructor is alive.
    unsafe {
        let s = state::current(l);
        lua_createtable(l, 0, 0);
        let mut i = 0;
        let mut n = 0;
        while let Some(f) = (*s).cord.record(i) {
            i += 1;
            if (*f).id == 0 {
                continue;
            }
            n += 1;
            lua_createtable(l, 5, 0);
            push_id(l, (*f).id);
            lua_rawseti_(l, -2, 1);
            let name = (&*f).name();
            lua_pushlstring_(l, name.as_ptr().cast(), name.len());
            lua_rawseti_(l, -2, 2);
            // The main fiber, which asks, waits no more; what it waited for is still there.
            let what = if (*f).is(flag::DEAD) { "a join" } else { (*f).wait.describe() };
            state::push_str(l, what);
            lua_rawseti_(l, -2, 3);
            push_id(l, (*f).csw);
            lua_rawseti_(l, -2, 4);
            lua_pushboolean(l, c_int::from((*f).attention & attention::STACK != 0));
            lua_rawseti_(l, -2, 5);
            lua_rawseti_(l, -2, n);
        }
    }
    1
}

/// `option(name[, value])`: the old value; values are checked by fiber.lua.
unsafe extern "C-unwind" fn l_option(l: *mut lua_State) -> c_int {
    // SAFETY: called by fiber.lua with a string.
    unsafe {
        let s = state::current(l);
        let name = CStr::from_ptr(luaL_checklstring(l, 1, std::ptr::null_mut()));
        let set = lua_gettop(l) > 1;
        let truth = lua_toboolean(l, 2) != 0;
        match name.to_bytes() {
            b"trigger_pool" => {
                lua_pushboolean(l, c_int::from((*s).cord.triggers.pooled));
                if set {
                    (*s).cord.triggers.pooled = truth;
                }
            }
            b"thread_pool" => {
                lua_pushboolean(l, c_int::from((*s).threads_kept > 0));
                if set {
                    (*s).threads_kept = if truth { super::body::threads_kept() } else { 0 };
                }
            }
            b"deadlock" => {
                lua_pushboolean(l, c_int::from((*s).cord.deadlock_is_error));
                if set {
                    (*s).cord.deadlock_is_error = truth;
                }
            }
            b"stack_size" => {
                #[allow(clippy::cast_precision_loss)]
                lua_pushnumber(l, (*s).cord.stack_size as f64);
                if set {
                    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
                    let bytes = lua_tonumber(l, 2) as usize;
                    (*s).cord.stack_size = bytes;
                }
            }
            _ => lua_pushnil(l),
        }
    }
    1
}

/// `stats()`: live fibers, pooled records, C stacks in use, their limit, attached trigger nodes.
unsafe extern "C-unwind" fn l_stats(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        let (stacks, limit) = (*s).cord.stacks();
        let numbers = [(*s).cord.live(), (*s).cord.pooled(), stacks, limit, (*s).cord.triggers.live()];
        for number in numbers {
            #[allow(clippy::cast_precision_loss)]
            lua_pushnumber(l, number as f64);
        }
    }
    5
}
