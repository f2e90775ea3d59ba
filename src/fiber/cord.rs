//! The scheduler of one OS thread (a *cord*, in Tarantool's words).
//!
//! ```text
//!            create / wakeup / timer / descriptor
//!                          |
//!                          v
//!   waiting fiber --> [ ready queue ] --> head --> light: a runner resumes its body     (runner.rs)
//!        ^                                  |----> stuck: its own C stack is resumed
//!        |                                  '----> main: the trampoline returns to the program
//!        '---- its next wait <-------------------------'
//! ```
//!
//! A *turn* is what happens between two looks at the outside world: every so many switches (the budget), and whenever the
//! queue is empty, output is flushed, the clock read, descriptors polled and timers fired. So fibers that wake each
//! other for ever starve neither timers nor sockets.
//!
//! Everything here takes `*mut Cord`: control leaves in the middle of most functions and comes back with the record
//! changed, so no reference is held across a call into the body.

use super::clock::Clock;
use super::coio::Descriptors;
use super::fiber::{Fiber, FiberPtr, NAME_MAX, Wait, attention, flag};
use super::ready::Ring;
use super::records::Records;
use super::runner::Runner;
use super::timer::Timers;
use super::trigger::TriggerPool;
use super::wait::WaitList;
use crate::sys::poll::Readiness;
use crate::sys::stack::{self, Place, StackError};
use rustc_hash::FxHashMap;
use std::cell::Cell;
use std::time::Duration;

/// The first id a fiber may get; smaller ones are reserved, as in Tarantool.
pub const FIRST_ID: u64 = 101;
/// Switches between two looks at the outside world, at most.
const BUDGET_MAX: u32 = 1024;
/// A turn is meant to last about this long, in nanoseconds: the budget adapts to it.
const TURN: u64 = 100_000;

/// How a light fiber came back from [`Body::resume`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It waits.
    Yielded,
    /// Its function ended.
    Ended,
}

/// Why a wait was refused. Nothing was switched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Inside a finalizer.
    Finalizer,
    /// Inside a VM-event or profiler callback.
    VmEvent,
    /// Inside the scheduler of another Lua state on this OS thread.
    OtherScheduler,
    /// On another OS thread than the one the scheduler was made on.
    OtherThread,
    /// Inside a callback the scheduler itself runs (an error's tostring, a decoder).
    Callback,
    /// No C stack for the next runner.
    NoStack(StackError),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::Finalizer => out.write_str("cannot yield inside a finalizer (__gc metamethod)"),
            Refused::VmEvent => out.write_str("cannot yield inside a jit.attach handler or profiler callback"),
            Refused::OtherScheduler => {
                out.write_str("cannot yield: the fibers of another Lua state run on this thread's stack right now")
            }
            Refused::OtherThread => out.write_str("cannot yield: this Lua state's fibers belong to another OS thread"),
            Refused::Callback => out.write_str("cannot yield inside a callback of the scheduler"),
            Refused::NoStack(error) => error.fmt(out),
        }
    }
}

/// What a wait brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wake {
    /// The fiber is cancelled.
    pub cancelled: bool,
    /// The deadline passed, and nobody meant the fiber before it ran.
    pub timed_out: bool,
    /// Somebody meant it (signal, hand-over, descriptor), as opposed to a bare wakeup.
    pub signalled: bool,
    /// The main fiber must raise "interrupted!".
    pub interrupted: bool,
    /// The main fiber must raise the deadlock error.
    pub deadlock: bool,
}

/// What light fibers run: a Lua thread in the product, a plain state machine in the tests here.
///
/// # Safety
/// Every function gets the live cord; `f` is one of its live records. That is all their callers owe.
#[allow(clippy::missing_safety_doc)]
pub trait Body: Sized + 'static {
    /// Kept in each record.
    type Data: Default;

    /// Runs a light fiber until it waits or ends, or another one that it has given the processor to
    /// ([`take_light_head`](Cord::take_light_head)): the outcome is the current fiber's.
    unsafe fn resume(cord: *mut Cord<Self>, f: FiberPtr<Self>) -> Outcome;
    /// Called instead of nothing before `resume` of a light fiber that has [`attention`], which it takes.
    unsafe fn prepare(cord: *mut Cord<Self>, f: FiberPtr<Self>);
    /// The function of `f` ended: `true` if the fiber is over, `false` if it has more to run (on_stop triggers).
    unsafe fn ended(cord: *mut Cord<Self>, f: FiberPtr<Self>) -> bool;
    /// `f` is about to serve another fiber: release what it holds.
    unsafe fn recycle(cord: *mut Cord<Self>, f: FiberPtr<Self>);
    /// A hint: the first fibers of `ready`, which holds three at least, run soon.
    unsafe fn prefetch(ready: &Ring<Fiber<Self>>);
    /// A hint: `next` is resumed soon and `later` after it, both on stacks of their own if they keep one.
    unsafe fn prefetch_stuck(next: FiberPtr<Self>, later: FiberPtr<Self>);
    /// End of a turn: send what was queued.
    unsafe fn before_poll(cord: *mut Cord<Self>);
    /// A watched descriptor is ready.
    unsafe fn event(cord: *mut Cord<Self>, data: usize, ready: Readiness);
    /// True if a signal came and the main fiber must raise "interrupted!". `surely`: one has just ended the poll.
    unsafe fn interrupted(cord: *mut Cord<Self>, surely: bool) -> bool;
    /// Before a stuck or main switch: what to restore after it, or why there may be none.
    unsafe fn before_switch(cord: *mut Cord<Self>) -> Result<u8, Refused>;
    /// After it.
    unsafe fn after_switch(cord: *mut Cord<Self>, saved: u8);
}

/// What the schedulers of one OS thread share.
pub(super) struct Thread {
    /// The one whose trampoline is innermost on this thread's stack.
    pub(super) innermost: Cell<*const ()>,
}

thread_local! {
    static THREAD: Thread = const { Thread { innermost: Cell::new(std::ptr::null()) } };
}

/// Which OS thread this is: cheaper to ask than the address of a thread-local of a loaded library.
#[inline(always)]
pub(super) fn thread_mark() -> libc::pthread_t {
    // SAFETY: pthread_self has no requirements.
    unsafe { libc::pthread_self() }
}

/// The scheduler.
pub struct Cord<B: Body> {
    /// The fiber that runs; [`nobody`](Self::nobody) while the scheduler looks at the outside world.
    pub current: FiberPtr<B>,
    /// Who runs next.
    pub ready: Ring<Fiber<B>>,
    pub(super) budget: u32,
    budget_max: u32,
    last_turn: u64,
    /// The program itself.
    pub main: FiberPtr<B>,
    /// Stands for the running fiber while none runs: code that the scheduler calls may ask who it is (a finalizer that
    /// runs while a reply is decoded). Dead, without an id, never queued.
    pub nobody: FiberPtr<B>,
    /// The runner on whose stack the current fiber runs, if it is not the main one.
    pub running: *mut Runner<B>,
    /// Where the trampoline waits.
    pub(super) home: Place,
    /// The running runner came back because it had nothing to do (and not because its fiber kept the stack).
    pub(super) returned: bool,
    pub(super) idle: Vec<*mut Runner<B>>,
    /// The loop's cached time.
    pub clock: Clock,
    /// Armed deadlines.
    pub timers: Timers<B>,
    /// Watched descriptors.
    pub descriptors: Descriptors<B>,
    /// Work handed to other threads whose end will wake somebody.
    pub outside: usize,
    records: Records<B>,
    free: Vec<FiberPtr<B>>,
    ids: FxHashMap<u64, FiberPtr<B>>,
    next_id: u64,
    /// Where trigger nodes come from.
    pub triggers: TriggerPool,
    /// Bytes of a new C stack.
    pub stack_size: usize,
    pub(super) stacks: usize,
    pub(super) stack_limit: usize,
    /// Raise an error in the main fiber when nothing can ever wake anyone (else wait on).
    pub deadlock_is_error: bool,
    pub(super) thread: libc::pthread_t,
    pub(super) shared: *const Thread,
    /// When the current fiber was given the processor (monotonic nanoseconds), for slices.
    pub slice_start: u64,
    /// What the body keeps for the whole cord.
    pub body: B,
}

impl<B: Body> Cord<B> {
    /// A scheduler whose main fiber is the caller.
    pub fn new(body: B) -> Self {
        let mut cord = Cord {
            current: std::ptr::null_mut(),
            ready: Ring::new(),
            budget: BUDGET_MAX,
            budget_max: BUDGET_MAX,
            last_turn: 0,
            main: std::ptr::null_mut(),
            nobody: std::ptr::null_mut(),
            running: std::ptr::null_mut(),
            home: Place::NOWHERE,
            returned: false,
            idle: Vec::new(),
            clock: Clock::default(),
            timers: Timers::new(),
            descriptors: Descriptors::default(),
            outside: 0,
            records: Records::new(),
            free: Vec::new(),
            ids: FxHashMap::default(),
            next_id: FIRST_ID,
            triggers: TriggerPool::default(),
            stack_size: stack::DEFAULT_SIZE,
            stacks: 0,
            stack_limit: 0,
            deadlock_is_error: true,
            thread: thread_mark(),
            shared: THREAD.with(std::ptr::from_ref),
            slice_start: 0,
            body,
        };
        cord.clock.update();
        cord.last_turn = cord.clock.monotonic;
        let main = cord.peek_record();
        // SAFETY: the record was made on the line above.
        unsafe {
            cord.take_record(main);
            (*main).attention = attention::MAIN;
            (*main).flags = flag::STARTED;
        }
        cord.main = main;
        cord.current = main;
        cord.nobody = cord.records.add();
        // SAFETY: as above.
        unsafe { (*cord.nobody).flags = flag::DEAD };
        cord
    }

    // ---- records ----

    /// A record that serves nobody, still to be claimed with [`take_record`](Self::take_record): so that whatever may
    /// fail in between leaves nothing half done.
    pub fn peek_record(&mut self) -> FiberPtr<B> {
        if let Some(f) = self.free.last() {
            return *f;
        }
        let f = self.records.add();
        self.free.push(f);
        f
    }

    /// Claims the record [`peek_record`](Self::peek_record) showed, and gives it an id.
    ///
    /// # Safety
    /// `f` is the record it showed last.
    pub unsafe fn take_record(&mut self, f: FiberPtr<B>) {
        debug_assert!(self.free.last() == Some(&f));
        self.free.pop();
        let id = self.next_id;
        self.next_id += 1;
        self.ids.insert(id, f);
        // SAFETY: records live as long as the cord.
        unsafe { (*f).id = id };
    }

    /// The fiber with that id, finished but not yet joined ones included, or null.
    pub fn find(&self, id: u64) -> FiberPtr<B> {
        self.ids.get(&id).copied().unwrap_or(std::ptr::null_mut())
    }

    /// Live fibers, finished but not yet joined ones included.
    pub fn live(&self) -> usize {
        self.ids.len()
    }

    /// Finished records kept for reuse.
    pub fn pooled(&self) -> usize {
        self.free.len()
    }

    /// The pooled record that `depth` others will be taken before, or null.
    pub fn pooled_below(&self, depth: usize) -> FiberPtr<B> {
        let at = self.free.len().checked_sub(depth.saturating_add(1));
        at.and_then(|at| self.free.get(at)).copied().unwrap_or(std::ptr::null_mut())
    }

    /// The record in slot `i`, in use or not (then its id is 0).
    pub fn record(&self, i: usize) -> Option<FiberPtr<B>> {
        let f = self.records.get(i);
        (!f.is_null()).then_some(f)
    }

    /// Gives the record back.
    ///
    /// # Safety
    /// `f` is finished, waits for nothing, and nobody waits for it.
    pub unsafe fn release(cord: *mut Self, f: FiberPtr<B>) {
        // SAFETY: the caller's contract.
        unsafe {
            B::recycle(cord, f);
            debug_assert!((*f).joiners.is_empty() && (*f).on_stop.is_empty() && (*f).on_yield.is_empty());
            (*cord).ids.remove(&(*f).id);
            (*f).id = 0;
            (*f).flags = 0;
            (*f).attention = 0;
            (*f).csw = 0;
            (*f).wait = Wait::None;
            (*f).own = None;
            (*cord).free.push(f);
        }
    }

    /// Nothing of this cord runs again: gives back what its fibers took, if none is left but the main one. What is called
    /// all the same meets records that serve nobody.
    ///
    /// # Safety
    /// The main fiber does not wait.
    pub unsafe fn discard_records(&mut self) {
        if self.live() > 1 {
            return;
        }
        // SAFETY: finished records hold nothing. The fields are replaced by empty ones.
        unsafe {
            (*self.main).own = None;
            self.records.clear();
        }
        self.ready = Ring::new();
        self.free = Vec::new();
        self.idle = Vec::new();
        self.ids = FxHashMap::default();
    }

    /// Names `f`. Bytes after a NUL are cut.
    ///
    /// # Errors
    /// More than [`NAME_MAX`] bytes without `truncate`.
    ///
    /// # Safety
    /// `f` is live.
    #[allow(clippy::result_unit_err)]
    pub unsafe fn set_name(f: FiberPtr<B>, name: &[u8], truncate: bool) -> Result<(), ()> {
        let name = name.split(|b| *b == 0).next().unwrap_or_default();
        if name.len() > NAME_MAX && !truncate {
            return Err(());
        }
        let name = name.get(..NAME_MAX).unwrap_or(name);
        // SAFETY: the caller's contract.
        unsafe { (*f).own_mut().name = Some(name.into()) };
        Ok(())
    }

    // ---- the ready queue ----

    /// Puts `f` at the tail of the ready queue. No-op for the running fiber, one that is queued or one that is dead.
    ///
    /// # Safety
    /// `f` is live.
    #[inline(always)]
    pub unsafe fn wakeup(&mut self, f: FiberPtr<B>) {
        // SAFETY: the caller's contract.
        unsafe {
            if f != self.current && !(*f).is(flag::READY | flag::DEAD) {
                if (*f).attention & attention::LINKED != 0 {
                    WaitList::unlink(f);
                }
                self.enqueue(f);
            }
        }
    }

    /// Puts a fiber that is not queued at the tail of the ready queue.
    ///
    /// # Safety
    /// `f` is live, not dead and not queued.
    #[inline(always)]
    pub unsafe fn enqueue(&mut self, f: FiberPtr<B>) {
        // SAFETY: the caller's contract.
        unsafe { (*f).flags |= flag::READY };
        self.ready.push_back(f);
    }

    /// Puts `child` at the head and the running fiber right behind it: how `create` runs its child at once.
    ///
    /// # Safety
    /// Both are live and not queued.
    pub unsafe fn enqueue_create(&mut self, child: FiberPtr<B>) {
        let parent = self.current;
        // SAFETY: the caller's contract.
        unsafe {
            (*parent).flags |= flag::READY;
            (*parent).wait = Wait::Create;
            (*child).flags |= flag::READY;
        }
        self.ready.push_front(parent);
        self.ready.push_front(child);
    }

    /// Wakes `f` because somebody meant it: also wins over a timeout that fired but has not been seen yet.
    ///
    /// # Safety
    /// `f` is live and waits.
    pub unsafe fn signal(&mut self, f: FiberPtr<B>) {
        // SAFETY: the caller's contract.
        unsafe {
            WaitList::unlink(f);
            (*f).attention |= attention::SIGNALLED;
            self.wakeup(f);
        }
    }

    /// Cancels: a sticky flag and a wakeup. The caller checks for system fibers.
    ///
    /// # Safety
    /// `f` is live.
    pub unsafe fn cancel(&mut self, f: FiberPtr<B>) {
        // SAFETY: the caller's contract.
        unsafe {
            if !(*f).is(flag::DEAD) {
                (*f).attention |= attention::CANCELLED;
                self.wakeup(f);
            }
        }
    }

    /// Whether the running fiber is cancelled.
    pub fn is_cancelled(&self) -> bool {
        // SAFETY: there is always a current fiber.
        unsafe { (*self.current).attention & attention::CANCELLED != 0 }
    }

    /// Arms the running fiber's timer.
    pub fn arm_timer(&mut self, deadline: u64) {
        let f = self.current;
        let key = self.timers.arm(deadline, f);
        // SAFETY: there is always a current fiber.
        unsafe {
            (*f).timer = key;
            (*f).attention |= attention::TIMER;
        }
    }

    /// What the wait that just ended brought; disarms and unlinks whatever is left of it.
    ///
    /// # Safety
    /// `f` is live.
    pub unsafe fn take_wake(&mut self, f: FiberPtr<B>) -> Wake {
        // SAFETY: the caller's contract.
        unsafe {
            let seen = (*f).attention;
            if seen & attention::TIMER != 0 {
                self.timers.disarm((*f).timer);
            }
            if seen & attention::LINKED != 0 {
                WaitList::unlink(f);
            }
            if (*f).wait == Wait::Io {
                self.descriptors.end_wait();
            }
            (*f).attention = seen & (attention::CANCELLED | attention::STACK | attention::MAIN);
            let signalled = seen & attention::SIGNALLED != 0;
            Wake {
                cancelled: seen & attention::CANCELLED != 0,
                timed_out: seen & attention::TIMED_OUT != 0 && !signalled,
                signalled,
                interrupted: seen & attention::INTERRUPTED != 0,
                deadlock: seen & attention::DEADLOCK != 0,
            }
        }
    }

    // ---- turns ----

    /// The head of the ready queue, which stays there. Looks at the outside world when it is time to, and waits for it
    /// when nobody is ready.
    ///
    /// # Safety
    /// Called by a runner or the trampoline of the live cord.
    #[inline(always)]
    pub(super) unsafe fn head(cord: *mut Self) -> FiberPtr<B> {
        // SAFETY: the caller's contract.
        unsafe {
            (*cord).budget -= 1;
            if (*cord).budget == 0 {
                Self::turn(cord);
            }
            while (*cord).ready.is_empty() {
                Self::wait_outside(cord);
            }
            (*cord).ready.peek(0)
        }
    }

    /// A look at the outside world, without waiting for it.
    ///
    /// # Safety
    /// The cord is live, and the caller is the running fiber.
    pub unsafe fn glance(cord: *mut Self) {
        // SAFETY: the caller's contract.
        unsafe {
            let f = (*cord).current;
            Self::turn(cord);
            (*cord).current = f;
        }
    }

    /// A look at the outside world while fibers are ready.
    #[cold]
    #[inline(never)]
    unsafe fn turn(cord: *mut Self) {
        // SAFETY: the caller's contract; no reference is held across the calls into the body.
        unsafe {
            // Nobody runs: whoever ran last may be woken like any other.
            (*cord).current = (*cord).nobody;
            B::before_poll(cord);
            (*cord).clock.update();
            let now = (*cord).clock.monotonic;
            let took = now.saturating_sub((*cord).last_turn);
            if took > 2 * TURN {
                (*cord).budget_max = ((*cord).budget_max / 2).max(1);
            } else if took < TURN / 2 {
                (*cord).budget_max = ((*cord).budget_max * 2).min(BUDGET_MAX);
            }
            (*cord).last_turn = now;
            (*cord).budget = (*cord).budget_max;
            if (*cord).descriptors.any() || (*cord).outside > 0 {
                Self::poll(cord, Some(Duration::ZERO));
            }
            (*cord).fire_timers();
        }
    }

    /// Nobody is ready: flush, then sleep until a timer, a descriptor or another thread makes somebody ready.
    #[cold]
    #[inline(never)]
    unsafe fn wait_outside(cord: *mut Self) {
        // SAFETY: as for `turn`.
        unsafe {
            (*cord).current = (*cord).nobody;
            B::before_poll(cord);
            if !(*cord).ready.is_empty() {
                return;
            }
            Self::trim(cord);
            (*cord).clock.update();
            // An event that has come wins over a deadline that has passed: who may see one is asked before.
            let watched = (*cord).descriptors.any() || (*cord).outside > 0;
            if !watched {
                (*cord).fire_timers();
                if !(*cord).ready.is_empty() {
                    return;
                }
            }
            let timeout = match (*cord).timers.next() {
                Some(deadline) => Some(Duration::from_nanos(deadline.saturating_sub((*cord).clock.monotonic))),
                None => {
                    if !watched && (*cord).deadlock_is_error {
                        let main = (*cord).main;
                        (*main).attention |= attention::DEADLOCK;
                        (*cord).wakeup(main);
                        return;
                    }
                    None
                }
            };
            Self::poll(cord, timeout);
            (*cord).clock.update();
            (*cord).last_turn = (*cord).clock.monotonic;
            (*cord).budget = (*cord).budget_max;
            (*cord).fire_timers();
        }
    }

    /// Polls once and hands the events on.
    unsafe fn poll(cord: *mut Self, timeout: Option<Duration>) {
        // SAFETY: the caller's contract.
        unsafe {
            // A signal that came since any Lua code ran would not end the sleep.
            if timeout != Some(Duration::ZERO) && B::interrupted(cord, false) {
                return Self::interrupt_main(cord);
            }
            let mut events = std::mem::take(&mut (*cord).descriptors.events);
            match (*cord).descriptors.wait(timeout, &mut events) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {
                    if B::interrupted(cord, true) {
                        Self::interrupt_main(cord);
                    }
                }
                // A poller that cannot be opened or read leaves timers: sleep until the next one instead of spinning.
                Err(_) => {
                    std::thread::sleep(timeout.unwrap_or(Duration::from_millis(10)).min(Duration::from_millis(10)))
                }
                Ok(()) => {
                    for (token, ready) in &events {
                        if let Some(data) = (*cord).external(*token, *ready) {
                            B::event(cord, data, *ready);
                        }
                    }
                }
            }
            events.clear();
            (*cord).descriptors.events = events;
        }
    }

    unsafe fn interrupt_main(cord: *mut Self) {
        // SAFETY: the caller's contract: a live cord.
        unsafe {
            let main = (*cord).main;
            (*main).attention |= attention::INTERRUPTED;
            (*cord).wakeup(main);
        }
    }

    fn fire_timers(&mut self) {
        while let Some(f) = self.timers.expired(self.clock.monotonic) {
            // SAFETY: a fiber with an armed timer is live. It stays on its wait list: a signal before it runs wins.
            unsafe {
                (*f).attention &= !attention::TIMER;
                if !(*f).is(flag::READY | flag::DEAD) && f != self.current {
                    (*f).attention |= attention::TIMED_OUT;
                    self.enqueue(f);
                }
            }
        }
    }

    /// When the running turn began: the last look at the outside world, monotonic nanoseconds.
    pub fn turn_started(&self) -> u64 {
        self.last_turn
    }

    /// Forces the next switch to look at the outside world.
    pub fn end_turn(&mut self) {
        self.budget = 1;
    }

    // ---- the end of a fiber ----

    /// The function of `f` ended and its body has nothing more to run: wakes whoever joins it, and gives the record
    /// back unless its result waits for a join.
    ///
    /// # Safety
    /// `f` is live and does not run.
    pub(super) unsafe fn finish(cord: *mut Self, f: FiberPtr<B>) {
        // SAFETY: the caller's contract.
        unsafe {
            (*f).flags = ((*f).flags | flag::DEAD) & !flag::STOPPING;
            loop {
                let joiner = (*f).joiners.first();
                if joiner.is_null() {
                    break;
                }
                (*cord).signal(joiner);
            }
            if !(*f).is(flag::JOINABLE) {
                Self::release(cord, f);
            }
        }
    }
}
