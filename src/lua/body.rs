//! What a light fiber is: a Lua thread that a runner resumes with `lua_resume`.
//!
//! Two rules shape this file. A suspended thread's stack is touched only by pushes and moves that cannot allocate, call
//! or raise; whatever can is done on the *scratch* thread, under a protected call, and moved. And no native code runs
//! after a light fiber's wait: whoever wakes it leaves the results on its stack, where they become the results of the C
//! function that yielded. (What such a function is to raise is carried there: transfer.rs.)

use super::calibrate::Words;
use super::jit::{self, HOOK_ACTIVE, HOOK_GC, HOOK_VMEVENT, MARK, Mode};
use super::state::State;
use crate::fiber::cord::Wake;
use crate::fiber::fiber::{Wait, attention, flag};
use crate::fiber::ready::Ring;
use crate::fiber::trigger::{TriggerList, TriggerPool};
use crate::fiber::{Body, Cord, Fiber, FiberPtr, Outcome, Refused};
use crate::sys::luajit::LuaJit;
use crate::sys::poll::Readiness;
use crate::sys::stack::prefetch;
use mlua::ffi::*;
use std::ffi::{CStr, c_int, c_void};

/// The scheduler of Lua fibers.
pub type LuaCord = Cord<LuaBody>;
/// A million fibers are a million records: three cache lines each, no more.
const _: () = assert!(size_of::<Fiber<LuaBody>>() <= 192);
/// One of its records.
pub type LuaFiber = FiberPtr<LuaBody>;

/// Finished fibers' threads kept for reuse, at most.
const THREADS_KEPT: usize = 16_384;

/// Code that runs as a fiber without Lua: made through the C API.
pub type NativeEntry = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// What each record keeps; what a switch touches first.
#[repr(C)]
pub struct Data {
    /// The fiber's Lua thread; null in the main and in native fibers, and in a pooled record whose thread was dropped.
    pub l: *mut lua_State,
    /// Values on the top of the stack that the next resume hands over.
    pub nargs: c_int,
    /// The yield that is under way is one of ours.
    pub announced: bool,
    /// An error is raised where a foreign yield stands, by a one-shot hook.
    doomed: bool,
    /// It is a native fiber.
    pub native: bool,
    /// A [`code`] that the C function it waits in raises when it is resumed, instead of returning.
    pub raise: u8,
    /// How `lua_resume` ended.
    pub status: c_int,
    /// Kept results: how many, or -1 for an error value.
    pub results: c_int,
    /// The thread whose C function waits, while the wait is of the kind whose results are moved to it.
    pub waiter: *mut lua_State,
    /// What a request-like wait belongs to (an index of the layer above).
    pub ticket: u64,
    /// What the trigger modes run before each wait of a fiber made from Lua.
    pub native_triggers: TriggerList,
    /// Of a native fiber, what it is started with; of one that serves a request, the request's number.
    pub argument: *mut c_void,
    /// What few fibers have.
    rare: Option<Box<Rare>>,
}

/// What only native fibers have, and those that C code has given something of its own.
pub struct Rare {
    /// The code of a native fiber, until it starts.
    pub entry: Option<NativeEntry>,
    /// What that code returned.
    pub returned: c_int,
    /// The record's Lua thread while it serves a native fiber, which may use it.
    pub spare: *mut lua_State,
    /// A pointer of C code's own.
    pub context: *mut c_void,
}

impl Rare {
    const NOTHING: Rare = Rare { entry: None, returned: 0, spare: std::ptr::null_mut(), context: std::ptr::null_mut() };
}

impl Data {
    /// What it has of that.
    pub fn rare(&self) -> &Rare {
        static NOTHING: Nothing = Nothing(Rare::NOTHING);
        self.rare.as_deref().unwrap_or(&NOTHING.0)
    }

    /// The same, to be written.
    pub fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_with(|| Box::new(Rare::NOTHING))
    }
}

struct Nothing(Rare);

// SAFETY: it holds no pointer but null, and never changes.
unsafe impl Sync for Nothing {}

impl Default for Data {
    fn default() -> Self {
        Data {
            l: std::ptr::null_mut(),
            nargs: 0,
            announced: false,
            doomed: false,
            native: false,
            raise: 0,
            status: 0,
            results: 0,
            waiter: std::ptr::null_mut(),
            ticket: 0,
            native_triggers: TriggerList::default(),
            argument: std::ptr::null_mut(),
            rare: None,
        }
    }
}

/// A layer above that wants to hear of turns and descriptors.
#[derive(Clone, Copy)]
pub struct Listener {
    /// Called at the end of a turn.
    pub before_poll: unsafe fn(*mut State),
    /// Called when a watched descriptor is ready.
    pub event: unsafe fn(*mut State, usize, Readiness),
}

/// What the cord keeps for its Lua fibers.
pub struct LuaBody {
    /// The state it belongs to.
    pub state: *mut State,
    /// LuaJIT's own functions.
    pub luajit: &'static LuaJit,
    /// What was proven of this LuaJIT.
    pub proven: jit::Proven,
    /// What calibration proved of it.
    pub words: Words,
    /// An FFI wait was called while the compiler was on or unknown, and nothing proven: compiled code that calls one may
    /// exist since.
    pub stranger: bool,
    /// The trace-abort mode in force.
    pub mode: Mode,
    /// Who wants to hear of switches: bits of [`attend`](super::inspect::attend). Zero: a switch calls nobody.
    pub attend: u8,
    /// The one asked for: it comes into force when calibration allows.
    pub wanted_mode: Mode,
    /// Nobody asked for a mode or used the FFI face yet: nothing runs at a switch, and FFI waits are refused.
    pub mode_pending: bool,
    /// Where the nodes of native triggers come from: not the pool whose nodes `fiber.stats` counts.
    pub native_pool: TriggerPool,
    /// What the callback mode tests and calls.
    pub switch_callback: Option<super::trace::Handler>,
    /// Stands in for the recorder's word.
    pub own_word: *mut u32,
    /// The recorder's state word, or a word of our own where there is none to clear.
    pub abort_word: *mut u32,
    /// What `abort_word` is anded with: all ones when nothing is to be cleared.
    pub abort_mask: u32,
    /// Handler runs so far.
    pub abort_calls: u64,
    /// Protected calls under way on the scratch thread: no wait is possible inside.
    pub protected: u32,
    /// Told of the end of each turn: net.box, the server.
    pub listeners: Vec<Listener>,
    /// Takes what a fiber with `flag::SERVED` left on its thread when its function has ended: results, or an error.
    pub served: Option<unsafe fn(*mut State, LuaFiber)>,
    /// The thread that carries errors into waiting fibers (transfer.rs); null where it cannot.
    pub carrier: *mut lua_State,
    /// The hook a doomed fiber's error is raised from replaces this one for a moment.
    saved_hook: (Option<lua_Hook>, c_int, c_int),
}

impl LuaBody {
    /// A body whose `state` is still to be set.
    pub fn new(luajit: &'static LuaJit, proven: jit::Proven) -> Self {
        let own_word = Box::into_raw(Box::new(0));
        LuaBody {
            state: std::ptr::null_mut(),
            luajit,
            proven,
            words: Words::NONE,
            stranger: false,
            mode: Mode::Off,
            attend: 0,
            wanted_mode: Mode::Inline,
            mode_pending: true,
            native_pool: TriggerPool::default(),
            switch_callback: None,
            own_word,
            abort_word: own_word,
            abort_mask: u32::MAX,
            abort_calls: 0,
            protected: 0,
            listeners: Vec::new(),
            served: None,
            carrier: std::ptr::null_mut(),
            saved_hook: (None, 0, 0),
        }
    }

    /// Whether the running C function of `l` can wait by yielding to its runner.
    ///
    /// # Safety
    /// `l` runs.
    #[inline(always)]
    pub unsafe fn is_yieldable(&self, l: *mut lua_State) -> bool {
        // SAFETY: the caller's contract; the word is read only where it was proven. Where it was not, a waiting thread
        // could not be marked, and anybody's coroutine.resume would run it: there every fiber keeps its stack while it
        // waits, so that LuaJIT itself sees its thread run.
        unsafe { self.proven.cframe && jit::is_yieldable(l) }
    }

    /// Whether `l` was marked by [`mark`](Self::mark).
    ///
    /// # Safety
    /// `l` is live.
    pub unsafe fn is_marked(&self, l: *mut lua_State) -> bool {
        // SAFETY: the word was proven.
        self.proven.cframe && unsafe { *jit::cframe(l) } == MARK
    }

    /// Marks a waiting thread as running, so that LuaJIT refuses to resume it for anybody else.
    ///
    /// # Safety
    /// `l` is live and does not run.
    #[inline(always)]
    pub unsafe fn mark(&self, l: *mut lua_State, mark: usize) {
        if self.proven.cframe {
            // SAFETY: the word was proven.
            unsafe { *jit::cframe(l) = mark };
        }
    }
}

/// Codes that raw waits return as their first result; fiber.lua turns them into errors. Nil: nothing to raise.
pub mod code {
    use std::ffi::c_int;
    /// The fiber is cancelled.
    pub const CANCELLED: c_int = 1;
    /// The deadline passed.
    pub const TIMED_OUT: c_int = 2;
    /// Ctrl-C.
    pub const INTERRUPTED: c_int = 3;
    /// Nothing can ever wake anyone.
    pub const DEADLOCK: c_int = 4;
    /// `join` is through: its results follow.
    pub const DONE: c_int = 5;
}

/// The code of a wake, or 0.
#[inline]
pub fn code_of(wake: Wake) -> c_int {
    if wake.interrupted {
        code::INTERRUPTED
    } else if wake.deadlock {
        code::DEADLOCK
    } else if wake.cancelled {
        code::CANCELLED
    } else if wake.timed_out {
        code::TIMED_OUT
    } else {
        0
    }
}

/// Pushes what a wait of kind `wait` returns, at most two values, neither of which allocates. Returns how many.
///
/// # Safety
/// `l` has the free slots every C function has.
pub unsafe fn push_wake(l: *mut lua_State, f: LuaFiber, wake: Wake) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        let number = code_of(wake);
        let events = if (*f).wait == Wait::Io && wake.signalled { (*f).events } else { 0 };
        if number == 0 && events == 0 && !wake.signalled {
            return 0;
        }
        if number == 0 {
            lua_pushnil(l);
        } else {
            lua_pushinteger(l, number as lua_Integer);
        }
        match (*f).wait {
            Wait::Io => lua_pushinteger(l, events as lua_Integer),
            _ => lua_pushboolean(l, c_int::from(wake.signalled)),
        }
        2
    }
}

impl Body for LuaBody {
    type Data = Data;

    #[inline(always)]
    unsafe fn resume(cord: *mut Cord<Self>, f: FiberPtr<Self>) -> Outcome {
        // SAFETY: the scheduler passes a ready light fiber; nothing is borrowed across `lua_resume`.
        unsafe {
            let l = (*f).data.l;
            if l.is_null() {
                return run_native(f);
            }
            let nargs = (*f).data.nargs;
            (*f).data.nargs = 0;
            let status = if (*f).data.raise == 0 {
                (*cord).body.mark(l, 0);
                lua_resume_(l, nargs)
            } else {
                resume_raising(cord, f)
            };
            // Whoever it was that came back: see transfer.rs.
            let f = (*cord).current;
            if status == LUA_YIELD {
                if (*f).data.announced {
                    // Only a wait where the word was proven is announced.
                    *jit::cframe((*f).data.l) = MARK;
                    (*f).data.announced = false;
                } else {
                    (*cord).body.mark((*f).data.l, MARK);
                    foreign_yield(cord, f);
                }
                return Outcome::Yielded;
            }
            (*f).data.status = status;
            Outcome::Ended
        }
    }

    #[cold]
    unsafe fn prepare(cord: *mut Cord<Self>, f: FiberPtr<Self>) {
        // SAFETY: a waiting thread's C function has free slots; the pushes do not allocate.
        unsafe {
            let wake = (*cord).take_wake(f);
            match (*f).wait {
                Wait::None | Wait::Create => {}
                Wait::Yield if !(*cord).body.carrier.is_null() => (*f).data.raise = code_of(wake) as u8,
                _ if (*f).data.nargs > 0 => {}
                _ => (*f).data.nargs = push_wake((*f).data.l, f, wake),
            }
        }
    }

    #[inline(always)]
    unsafe fn ended(cord: *mut Cord<Self>, f: FiberPtr<Self>) -> bool {
        // SAFETY: the fiber's function has just ended.
        unsafe {
            if (*f).data.doomed {
                end_doom(cord, f);
            }
            super::trace::before_call((*cord).body.state, (*(*cord).body.state).scratch);
            let special = flag::JOINABLE | flag::STORAGE | flag::STOPPING | flag::SERVED;
            if (*f).data.status == 0 && !(*f).is(special) && (*f).on_stop.is_empty() && !(*f).data.l.is_null() {
                lua_settop((*f).data.l, 0);
                return true;
            }
            if (*f).is(flag::SERVED) { ended_served(cord, f) } else { ended_slow(cord, f) }
        }
    }

    unsafe fn recycle(cord: *mut Cord<Self>, f: FiberPtr<Self>) {
        // SAFETY: the scratch thread's first slot is the anchors table, whose slots for this record exist: nothing
        // here allocates.
        unsafe {
            let state = (*cord).body.state;
            if (*f).data.rare.is_some() {
                recycle_native(cord, f);
            }
            if (*f).is(flag::HANDLE) {
                (*state).set_anchor(f, Anchor::Handle, false);
            }
            if (*f).data.results != 0 {
                (*state).set_anchor(f, Anchor::Results, false);
                (*f).data.results = 0;
            }
            // The pool is a stack of records, of which the uppermost `threads_kept` keep their threads. This record comes
            // on top, so the one that falls out of them gives up its own: the other way round, one burst of fibers would
            // leave records without threads on top for good.
            let kept = (*state).threads_kept;
            let cold = if kept == 0 { f } else { (*cord).pooled_below(kept - 1) };
            if !cold.is_null() && !(*cold).data.l.is_null() {
                (*state).set_anchor(cold, Anchor::Thread, false);
                (*cold).data.l = std::ptr::null_mut();
            }
            if !(*f).on_yield.is_empty() {
                (*state).drop_triggers(f);
            }
            while (&mut (*f).data.native_triggers).pop(&mut (*cord).body.native_pool).is_some() {}
        }
    }

    #[inline(always)]
    unsafe fn prefetch(ready: &Ring<Fiber<Self>>) {
        // One after the other, which takes fewest registers.
        prefetch(ready.peek(2).cast_const().cast());
        // SAFETY: a record's thread is null or anchored. Only the address of the stack's top is read from it.
        unsafe {
            let l = (*ready.peek(1)).data.l.cast::<u8>();
            prefetch(l);
            prefetch(l.wrapping_add(64));
            let next = ready.peek(0);
            if !(*next).data.l.is_null() {
                // The frames of the waiting function, of its caller, and the slots that call uses again.
                let top = *(*next).data.l.cast::<u8>().add(40).cast::<*const u8>();
                prefetch(top.wrapping_sub(128));
                prefetch(top.wrapping_sub(64));
                prefetch(top);
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch_stuck(next: FiberPtr<Self>, later: FiberPtr<Self>) {
        // SAFETY: both records are live; the thread of one that keeps its stack is anchored by what runs on it, and only
        // the address of its top is read.
        unsafe {
            let l = (*later).data.waiter.cast_const().cast::<u8>();
            prefetch(l);
            prefetch(l.wrapping_add(64));
            if (*next).attention & attention::STACK != 0 && !(*next).data.waiter.is_null() {
                let top = *(*next).data.waiter.cast::<u8>().add(40).cast::<*const u8>();
                prefetch(top.wrapping_sub(64));
                prefetch(top);
            }
        }
    }

    unsafe fn before_poll(cord: *mut Cord<Self>) {
        // SAFETY: listeners are functions of the library; the list is indexed anew each time, since one may add another.
        unsafe {
            let state = (*cord).body.state;
            let mut i = 0;
            while let Some(listener) = (*state).listener(i) {
                (listener.before_poll)(state);
                i += 1;
            }
        }
    }

    unsafe fn event(cord: *mut Cord<Self>, data: usize, ready: Readiness) {
        // SAFETY: as for `before_poll`. The low bits of `data` say whose watch it is.
        unsafe {
            let state = (*cord).body.state;
            if let Some(listener) = (*state).listener(data & 7) {
                (listener.event)(state, data >> 3, ready);
            }
        }
    }

    unsafe fn interrupted(cord: *mut Cord<Self>, surely: bool) -> bool {
        // SAFETY: the state is live while its cord is.
        unsafe { super::interrupt::take((*cord).body.state, surely) }
    }

    unsafe fn before_switch(cord: *mut Cord<Self>) -> Result<u8, Refused> {
        // SAFETY: the mask was proven, or is null and not touched.
        unsafe {
            if (*cord).body.protected > 0 {
                return Err(Refused::Callback);
            }
            let mask = (*cord).body.proven.hookmask;
            if mask.is_null() {
                return before_blind_switch((*cord).body.state);
            }
            let bits = *mask;
            if bits & HOOK_GC != 0 {
                return Err(Refused::Finalizer);
            }
            if bits & HOOK_VMEVENT != 0 {
                return Err(Refused::VmEvent);
            }
            if bits & HOOK_ACTIVE != 0 {
                *mask = bits & !HOOK_ACTIVE;
            }
            Ok(bits & HOOK_ACTIVE)
        }
    }

    unsafe fn after_switch(cord: *mut Cord<Self>, saved: u8) {
        // SAFETY: as for `before_switch`.
        unsafe {
            let mask = (*cord).body.proven.hookmask;
            if !mask.is_null() && *mask & HOOK_ACTIVE != saved {
                *mask = (*mask & !HOOK_ACTIVE) | saved;
            }
        }
    }
}

/// Without the hook mask, a finalizer is noticed by the error that `luaJIT_setmode` raises there; a VM-event handler is
/// not noticed.
#[cold]
unsafe fn before_blind_switch(state: *mut State) -> Result<u8, Refused> {
    unsafe fn abort_job(sl: *mut lua_State, state: *mut State, _: *mut c_void) {
        // SAFETY: a protected job.
        unsafe { (*state).luajit.abort_recording(sl) };
    }
    // SAFETY: called by the scheduler with its live state.
    if unsafe { State::protected(state, abort_job, std::ptr::null_mut()) } { Ok(0) } else { Err(Refused::Finalizer) }
}

/// What the anchors table holds for each record.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum Anchor {
    /// Its Lua thread.
    Thread = 1,
    /// Its handle, the userdata scripts see.
    Handle = 2,
    /// Its storage table.
    Storage = 3,
    /// Its kept results.
    Results = 4,
}

/// The index of an anchor.
pub fn anchor<B: Body>(f: &Fiber<B>, which: Anchor) -> lua_Integer {
    f.slot as lua_Integer * 4 + which as lua_Integer
}

/// Resumes a fiber whose wait raises.
#[cold]
unsafe fn resume_raising(cord: *mut LuaCord, f: LuaFiber) -> c_int {
    // SAFETY: the carrier waits; what raises is its fiber's thread. Where it could not take its place (see `carry`), it is
    // resumed as usual, and a one-shot hook raises at its next instruction.
    unsafe {
        let state = (*cord).body.state;
        super::transfer::forbid_hooks(state);
        let status = lua_resume_((*cord).body.carrier, 0);
        super::transfer::allow_hooks(state);
        if (*f).data.raise == 0 || (*cord).current != f {
            return status;
        }
        let l = (*f).data.l;
        doom_by_hook(cord, f);
        (*cord).body.mark(l, 0);
        lua_resume_(l, 0)
    }
}

/// The next instruction of the fiber's thread raises.
unsafe fn doom_by_hook(cord: *mut LuaCord, f: LuaFiber) {
    // SAFETY: the thread is suspended; the hook is the whole state's, and is put back when this one has raised.
    unsafe {
        let l = (*f).data.l;
        (*cord).body.saved_hook = (lua_gethook(l), lua_gethookmask(l), lua_gethookcount(l));
        (*f).data.doomed = true;
        lua_sethook(l, Some(doom), LUA_MASKCOUNT | LUA_MASKLINE | LUA_MASKCALL | LUA_MASKRET, 1);
    }
}

/// The fiber ended before it could raise: there was no next instruction.
#[cold]
unsafe fn end_doom(cord: *mut LuaCord, f: LuaFiber) {
    // SAFETY: as for `doom_by_hook`; any live thread will do.
    unsafe {
        (*f).data.doomed = false;
        (*f).data.raise = 0;
        let (hook, mask, count) = (*cord).body.saved_hook;
        lua_sethook((*(*cord).body.state).scratch, hook, mask, count);
    }
}

#[cold]
unsafe fn run_native(f: LuaFiber) -> Outcome {
    // SAFETY: a native fiber's entry and argument were given by whoever made it, who guarantees them.
    unsafe {
        if let Some(entry) = (*f).data.rare_mut().entry.take() {
            let returned = entry((*f).data.argument);
            (*f).data.rare_mut().returned = returned;
        }
        Outcome::Ended
    }
}

/// Gives the record's Lua thread back to it, emptied, and forgets what C code left there.
#[cold]
unsafe fn recycle_native(cord: *mut LuaCord, f: LuaFiber) {
    // SAFETY: the fiber is finished: its thread runs nothing.
    unsafe {
        let spare = (*f).data.rare().spare;
        (*f).data.rare = None;
        (*f).data.native = false;
        if !spare.is_null() {
            lua_settop(spare, 0);
            (*cord).body.mark(spare, MARK);
            (*f).data.l = spare;
        }
    }
}

/// A bare `coroutine.yield()` of the fiber's own thread: it must raise where it stands. A one-shot hook raises when the
/// thread runs its next instruction.
#[cold]
unsafe fn foreign_yield(cord: *mut LuaCord, f: LuaFiber) {
    // SAFETY: the thread is suspended in a yield that is not ours; its yielded values are dropped, which touches no
    // memory but its stack's top.
    unsafe {
        let l = (*f).data.l;
        (*cord).body.mark(l, 0);
        if fail_pcall(cord, l) {
            (*f).data.nargs = 2;
            (*f).wait = Wait::None;
            (*f).flags |= flag::READY;
            (*cord).ready.push_front(f);
            return;
        }
        doom_by_hook(cord, f);
        lua_settop(l, 0);
        (*f).wait = Wait::None;
        (*f).flags |= flag::READY;
        (*cord).ready.push_front(f);
    }
}

/// `pcall(coroutine.yield)` and `xpcall(coroutine.yield, handler)`: no instruction of the thread runs before they return,
/// so no hook could raise inside them. Instead the yield's frame is taken away, and they return false and the message,
/// or what the handler makes of it. False if it is another call.
unsafe fn fail_pcall(cord: *mut LuaCord, l: *mut lua_State) -> bool {
    const MESSAGE: &CStr = c"attempt to yield across C-call boundary";
    unsafe fn message(sl: *mut lua_State, _state: *mut State, argument: *mut c_void) {
        // SAFETY: the suspended thread has free slots; the string is made on the scratch thread.
        unsafe {
            let l = argument.cast::<lua_State>();
            lua_pushstring_(sl, MESSAGE.as_ptr());
            lua_pushboolean(l, 0);
            lua_xmove(sl, l, 1);
        }
    }
    // The handler is the only value of the suspended thread's frame. It runs on the scratch thread, where nothing waits.
    unsafe fn handle(sl: *mut lua_State, _state: *mut State, argument: *mut c_void) {
        // SAFETY: as for `message`.
        unsafe {
            let l = argument.cast::<lua_State>();
            lua_pushvalue(l, 1);
            lua_xmove(l, sl, 1);
            lua_pushstring_(sl, MESSAGE.as_ptr());
            if lua_pcall(sl, 1, 1, 0) != 0 {
                lua_settop(sl, -2);
                lua_pushstring_(sl, c"error in error handling".as_ptr());
            }
            lua_settop(l, 0);
            lua_pushboolean(l, 0);
            lua_xmove(sl, l, 1);
        }
    }
    // SAFETY: the words are read only in a build whose `cframe` was proven, and believed only if they agree with the
    // number of values that Lua reports. The callee stands two or three slots above the base of pcall or xpcall
    // (lj_frame.h), whose frame goes on to their caller.
    unsafe {
        if !(*cord).body.proven.cframe {
            return false;
        }
        let base = l.cast::<u8>().add(jit::OFFSET_BASE).cast::<*mut u64>();
        let (callee, top) = (*base, *base.add(1));
        if top.offset_from(callee) != lua_gettop(l) as isize {
            return false;
        }
        let (slots, job) = match *callee.sub(1) {
            jit::PCALL_FRAME => (2, message as super::state::Job),
            jit::XPCALL_FRAME => (3, handle as super::state::Job),
            _ => return false,
        };
        lua_settop(l, 0);
        *base = callee.sub(slots);
        lua_settop(l, slots as c_int - 2);
        // Nobody else may resume it meanwhile.
        (*cord).body.mark(l, MARK);
        let done = State::protected((*cord).body.state, job, l.cast());
        (*cord).body.mark(l, 0);
        if done {
            return true;
        }
        // No memory for the message: as it was, without the yielded values.
        *base = callee;
        *base.add(1) = callee;
        false
    }
}

unsafe extern "C-unwind" fn doom(l: *mut lua_State, _ar: *mut lua_Debug) {
    // SAFETY: called by LuaJIT with the running thread.
    unsafe {
        let state = super::state::find(l);
        let cord = &raw mut (*state).cord;
        let f = (*cord).current;
        if (*f).data.l != l || !(*f).data.doomed {
            return;
        }
        (*f).data.doomed = false;
        let (hook, mask, count) = (*cord).body.saved_hook;
        lua_sethook(l, hook, mask, count);
        if (*f).data.raise != 0 {
            super::fiber::raise_kept(l);
            return;
        }
        luaL_where(l, 0);
        lua_pushstring_(l, c"attempt to yield across C-call boundary".as_ptr());
        lua_concat(l, 2);
        lua_error(l);
    }
}

/// The end of a fiber that served a request: its results, or its error, go to whoever asked. The rest is as usual,
/// except that nobody else hears of the error.
#[inline(never)]
unsafe fn ended_served(cord: *mut LuaCord, f: LuaFiber) -> bool {
    // SAFETY: as for `ended`; the hook leaves the thread's values where they are.
    unsafe {
        let state = (*cord).body.state;
        (*f).flags &= !flag::SERVED;
        if let Some(hook) = (*cord).body.served {
            hook(state, f);
        }
        if (*f).data.status != 0 && !(*f).is(flag::JOINABLE) && !is_interrupt((*f).data.l) {
            (*state).set_anchor(f, Anchor::Thread, false);
            (*f).data.l = std::ptr::null_mut();
            (*f).data.status = 0;
        }
        let more = flag::JOINABLE | flag::STORAGE | flag::STOPPING;
        if (*f).data.status == 0 && !(*f).is(more) && (*f).on_stop.is_empty() {
            if !(*f).data.l.is_null() {
                lua_settop((*f).data.l, 0);
            }
            return true;
        }
        ended_slow(cord, f)
    }
}

/// The end of a fiber that has results to keep, triggers to run, an error to report, or a storage.
#[cold]
unsafe fn ended_slow(cord: *mut LuaCord, f: LuaFiber) -> bool {
    // SAFETY: the job touches the finished thread and the scratch thread only.
    unsafe {
        let state = (*cord).body.state;
        let mut job = Ending { f, over: true };
        if !State::protected(state, end_job, (&raw mut job).cast()) {
            // No memory for the results or the report: the fiber ends all the same.
            job.over = true;
        }
        let l = (*f).data.l;
        if !l.is_null() && job.over {
            if (*f).data.status == 0 {
                lua_settop(l, 0);
            } else {
                // A thread that ended in an error cannot run again.
                (*state).set_anchor(f, Anchor::Thread, false);
                (*f).data.l = std::ptr::null_mut();
            }
        }
        job.over
    }
}

struct Ending {
    f: LuaFiber,
    over: bool,
}

unsafe fn end_job(sl: *mut lua_State, state: *mut State, argument: *mut c_void) {
    let job = argument.cast::<Ending>();
    // SAFETY: runs under a protected call on the scratch thread; the finished thread's values are moved, not called.
    unsafe {
        let f = (*job).f;
        if (*f).is(flag::STOPPING) {
            return;
        }
        if !(*f).data.l.is_null() {
            if (*f).data.status == 0 {
                keep_results(sl, state, f);
            } else {
                keep_error(sl, state, f);
            }
        }
        if (*f).is(flag::STORAGE) {
            (*state).set_anchor(f, Anchor::Storage, false);
            (*f).flags &= !flag::STORAGE;
        }
        if !(*f).on_stop.is_empty() {
            run_on_stop(sl, state, f);
            (*job).over = false;
        }
    }
}

/// Moves the results of a joinable fiber into a table of their own: its thread serves others while they wait.
unsafe fn keep_results(sl: *mut lua_State, state: *mut State, f: LuaFiber) {
    // SAFETY: as for `end_job`.
    unsafe {
        let l = (*f).data.l;
        let n = lua_gettop(l);
        if !(*f).is(flag::JOINABLE) || n == 0 {
            return;
        }
        luaL_checkstack_(sl, n + 8, c"too many results".as_ptr());
        lua_createtable(sl, n, 0);
        let table = lua_gettop(sl);
        lua_xmove(l, sl, n);
        for i in (1..=n).rev() {
            lua_rawseti_(sl, table, i);
        }
        (*state).keep_anchor(sl, f, Anchor::Results);
        (*f).data.results = n;
    }
}

unsafe fn keep_error(sl: *mut lua_State, state: *mut State, f: LuaFiber) {
    // SAFETY: as for `end_job`; the error value is the top of the dead thread's stack.
    unsafe {
        let l = (*f).data.l;
        if is_interrupt(l) {
            let main = (*state).cord.main;
            (*main).attention |= attention::INTERRUPTED;
            (*state).cord.wakeup(main);
        }
        if (*f).is(flag::JOINABLE) {
            lua_createtable(sl, 1, 0);
            lua_pushvalue(l, -1);
            lua_xmove(l, sl, 1);
            lua_rawseti_(sl, -2, 1);
            (*state).keep_anchor(sl, f, Anchor::Results);
            (*f).data.results = -1;
        } else if (*f).attention & attention::CANCELLED == 0 && !is_interrupt(l) {
            super::fiber::report(sl, state, f, l);
        }
    }
}

/// Whether a fiber died of Ctrl-C: the error text the luajit program's signal hook raises.
unsafe fn is_interrupt(l: *mut lua_State) -> bool {
    // SAFETY: the value is on the top; a string's bytes live while it is there.
    unsafe {
        if lua_type(l, -1) != LUA_TSTRING {
            return false;
        }
        let mut len = 0;
        let at = lua_tolstring(l, -1, &raw mut len);
        std::slice::from_raw_parts(at.cast::<u8>(), len).ends_with(b"interrupted!")
    }
}

/// Turns the finished thread (or a fresh one, after an error) into one that runs the on_stop triggers.
unsafe fn run_on_stop(sl: *mut lua_State, state: *mut State, f: LuaFiber) {
    // SAFETY: as for `end_job`.
    unsafe {
        if (*f).data.l.is_null() && !(*f).data.rare().spare.is_null() {
            (*f).data.l = std::mem::replace(&mut (*f).data.rare_mut().spare, std::ptr::null_mut());
        }
        if (*f).data.l.is_null() || (*f).data.status != 0 {
            (*state).reserve_anchors(sl, f);
            let l = lua_newthread(sl);
            (*state).keep_anchor(sl, f, Anchor::Thread);
            (*f).data.l = l;
        }
        let l = (*f).data.l;
        lua_settop(l, 0);
        (*state).push_kept(sl, super::state::Keep::OnStop);
        super::fiber::push_handle(sl, state, f);
        lua_xmove(sl, l, 2);
        (*f).data.nargs = 1;
        (*f).data.status = 0;
        (*f).wait = Wait::None;
    }
}

/// Threads the pool keeps unless told otherwise.
pub const fn threads_kept() -> usize {
    THREADS_KEPT
}
