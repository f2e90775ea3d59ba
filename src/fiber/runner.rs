//! Runners and the trampoline: who resumes whom, and who keeps a stack.
//!
//! ```text
//!   program's stack                    runner's stack                another runner's stack
//!   +-----------------+                +------------------+          +------------------+
//!   | main fiber      |                | run_loop         |          | run_loop         |
//!   |  wait           |   resume       |  Body::resume    |          |  Body::resume    |
//!   |   trampoline ---+--------------> |   light fiber A  |          |   fiber B        |
//!   |                 | <--------------+   waits: stays in|          |    gsub callback |
//!   |                 |  gives back    |   this loop      |          |     wait: stuck  |
//!   +-----------------+                +------------------+          +------------------+
//! ```
//!
//! - A **light** fiber waits by returning to its runner's loop (`lua_yield`), which takes the next one: no switch. Where
//!   the next one is light too and nothing is to be done before it runs, the body may go on as that one by itself.
//! - A **stuck** fiber must wait where its body cannot return to the loop. It keeps the stack it stands on, and with it
//!   the runner; the trampoline takes an idle runner, or resumes the next stuck fiber's stack directly.
//! - A stuck fiber that later waits where it can falls back into its runner's loop, which simply goes on.
//! - A runner whose next fiber is stuck or the main one is idle: it gives control to that fiber's stack.
//! - Where a switch can go from any stack to any other ([`stack::DIRECT`]), a stuck fiber's goes straight to the next
//!   stuck one's; all others, and each look at the outside world, go through the trampoline or a runner's loop.
//!
//! There is always an idle runner while the trampoline runs: the main fiber's wait and each stuck wait secure one
//! before they give up their stack, so that the lack of memory is an error of their own call.

use super::cord::{Body, Cord, Outcome, Refused, thread_mark};
use super::fiber::{Fiber, FiberPtr, Wait, attention, flag};
use super::ready::Ring;
use crate::sys::segv::Whose;
use crate::sys::stack::{self, Place, Stack, StackError, prefetch};
use std::ffi::c_void;
use std::ptr::NonNull;

/// Cache lines of a record, and of the frames near a suspended stack's end: for prefetching.
const RECORD_LINES: usize = 3;
const FRAME_LINES: usize = 8;
/// Shorter queues stay in the cache by themselves.
const PREFETCH_FROM: usize = 256;
/// As above, of light fibers: they are hundreds of bytes, most of which a switch touches.
const LIGHT_PREFETCH_FROM: usize = 32;
/// Idle runners kept when the loop sleeps.
const IDLE_KEPT: usize = 16;

/// A C stack whose code is the loop that resumes light fibers.
pub struct Runner<B: Body> {
    cord: *mut Cord<B>,
    stack: *mut Stack,
    /// Where its loop waits while it is idle.
    place: Place,
    /// The one fiber that runs on this stack, whose size it chose; the runner ends with it.
    only: FiberPtr<B>,
    done: bool,
}

impl<B: Body> Runner<B> {
    fn new(cord: *mut Cord<B>, bytes: usize) -> Result<*mut Self, StackError> {
        Self::with_entry(cord, bytes, run_loop::<B>)
    }

    fn with_entry(cord: *mut Cord<B>, bytes: usize, entry: stack::Entry) -> Result<*mut Self, StackError> {
        let null = std::ptr::null_mut();
        let stack = Stack::new(bytes, entry, Whose { label: label::<B>, cord: cord.cast() })?;
        let place = stack.start();
        let stack = Box::into_raw(stack);
        Ok(Box::into_raw(Box::new(Runner { cord, stack, place, only: null, done: false })))
    }

    /// Gives a runner and its stack back, with what is suspended there. False if the caller stands on it.
    ///
    /// # Safety
    /// Nobody resumes the runner any more: it is idle or done, or nothing of the cord runs again.
    unsafe fn discard(this: *mut Self) -> bool {
        // SAFETY: the caller's contract; a runner's loop has nothing to drop.
        unsafe {
            let discarded = Box::from_raw((*this).stack).discard();
            if discarded {
                drop(Box::from_raw(this));
            }
            discarded
        }
    }
}

/// "id/name" of the fiber that runs, for the overflow message. Reads memory only: it runs in a signal handler.
unsafe fn label<B: Body>(cord: *const c_void, buffer: &mut [u8]) -> usize {
    // SAFETY: the cord is live while one of its stacks runs, and the faulting fiber is its current one.
    unsafe {
        let f = (*cord.cast::<Cord<B>>()).current;
        if f.is_null() {
            return 0;
        }
        let mut digits = [0u8; 20];
        let (mut n, mut id) = (digits.len(), (*f).id);
        loop {
            n -= 1;
            if let Some(slot) = digits.get_mut(n) {
                *slot = b'0' + (id % 10) as u8;
            }
            id /= 10;
            if id == 0 || n == 0 {
                break;
            }
        }
        let parts = [digits.get(n..).unwrap_or_default(), b"/", (*f).name()];
        let mut at = 0;
        for byte in parts.iter().flat_map(|part| part.iter()) {
            if let Some(slot) = buffer.get_mut(at) {
                *slot = *byte;
                at += 1;
            }
        }
        at
    }
}

/// The loop of a runner, which ends only with its stack.
unsafe extern "C" fn run_loop<B: Body>(argument: *mut c_void) -> ! {
    let me = argument.cast::<Runner<B>>();
    // SAFETY: the runner outlives its loop, the cord its runners. No reference is held across a call into the body.
    unsafe {
        let cord = (*me).cord;
        loop {
            let f = Cord::head(cord);
            let seen = (*f).attention;
            if seen == 0 {
                take_light(cord, f);
            } else if seen & (attention::STACK | attention::MAIN) == 0 {
                take_light(cord, f);
                B::prepare(cord, f);
            } else {
                (*cord).returned = true;
                Place::suspend(&raw mut (*me).place, (*cord).home);
                continue;
            }
            // Another one may come back: a body can go on as the next fiber by itself.
            if B::resume(cord, f) == Outcome::Ended {
                end(cord, (*cord).current);
            }
        }
    }
}

/// Takes the light fiber `f` off the head of the ready queue and makes it the current one.
#[inline(always)]
unsafe fn take_light<B: Body>(cord: *mut Cord<B>, f: FiberPtr<B>) {
    // SAFETY: called by the loop with the head of its queue.
    unsafe {
        (*cord).ready.pop_front();
        begin_light(cord, f);
    }
}

/// Makes the light fiber `f`, just taken off the head of the ready queue, the current one.
#[inline(always)]
unsafe fn begin_light<B: Body>(cord: *mut Cord<B>, f: FiberPtr<B>) {
    // SAFETY: as for `take_light`.
    unsafe {
        if (*cord).ready.len() >= LIGHT_PREFETCH_FROM {
            B::prefetch(&(*cord).ready);
        }
        (*cord).current = f;
        (*f).flags &= !flag::READY;
        (*f).csw += 1;
    }
}

/// What runs on the stack of a fiber that chose its size: that fiber alone.
unsafe extern "C" fn run_one<B: Body>(argument: *mut c_void) -> ! {
    let me = argument.cast::<Runner<B>>();
    // SAFETY: as for `run_loop`; whoever started it made the fiber current. The trampoline gives the stack back once it
    // is left for the last time.
    unsafe {
        let (cord, f) = ((*me).cord, (*me).only);
        (*f).attention &= !attention::STACK;
        (*f).runner = std::ptr::null_mut();
        if B::resume(cord, f) == Outcome::Ended {
            end(cord, f);
        }
        (*me).done = true;
        loop {
            (*cord).returned = true;
            Place::suspend(&raw mut (*me).place, (*cord).home);
        }
    }
}

/// Whether `f`, which may be null, keeps the stack it waits on.
#[inline(always)]
unsafe fn is_stuck<B: Body>(f: FiberPtr<B>) -> bool {
    // SAFETY: null, or a live record.
    unsafe { !f.is_null() && (*f).attention & attention::STACK != 0 }
}

#[inline(never)]
unsafe fn end<B: Body>(cord: *mut Cord<B>, f: FiberPtr<B>) {
    // SAFETY: called by the loop with its live fiber.
    unsafe {
        if B::ended(cord, f) {
            Cord::finish(cord, f);
        } else {
            // More to run (on_stop triggers), at once and before anybody else.
            (*f).flags |= flag::READY | flag::STOPPING;
            (*cord).ready.push_front(f);
        }
    }
}

impl<B: Body> Cord<B> {
    /// Makes sure that somebody can run light fibers while the caller keeps its stack.
    #[cold]
    unsafe fn secure_runner(cord: *mut Self) -> Result<(), StackError> {
        // SAFETY: the caller's contract.
        unsafe {
            if (*cord).stack_limit == 0 {
                (*cord).stack_limit = stack::limit();
            }
            if (*cord).stacks >= (*cord).stack_limit {
                return Err(StackError::Limit((*cord).stack_limit));
            }
            let runner = Runner::new(cord, (*cord).stack_size)?;
            (*cord).stacks += 1;
            (*cord).idle.push(runner);
            Ok(())
        }
    }

    /// Whether the running fiber may wait with the stack it stands on. Call before queueing it anywhere.
    ///
    /// # Errors
    /// Why not; nothing has changed.
    ///
    /// # Safety
    /// The cord is live.
    pub unsafe fn may_keep_stack(cord: *mut Self) -> Result<(), Refused> {
        // SAFETY: the caller's contract.
        unsafe {
            if (*cord).thread != thread_mark() {
                return Err(Refused::OtherThread);
            }
            if (*cord).current != (*cord).main && (*(*cord).shared).innermost.get() != cord.cast_const().cast() {
                return Err(Refused::OtherScheduler);
            }
            let saved = B::before_switch(cord)?;
            B::after_switch(cord, saved);
            if (*cord).idle.is_empty() { Self::secure_runner(cord).map_err(Refused::NoStack) } else { Ok(()) }
        }
    }

    /// The running fiber, which is queued somewhere or waits to be woken, gives up the processor and keeps its stack.
    /// Returns when it runs again.
    ///
    /// # Safety
    /// [`may_keep_stack`](Self::may_keep_stack) said yes; no reference into the cord is held.
    pub unsafe fn switch(cord: *mut Self) {
        // SAFETY: the caller's contract.
        unsafe {
            let f = (*cord).current;
            let saved = B::before_switch(cord).unwrap_or(0);
            if f == (*cord).main {
                Self::trampoline(cord);
                (*f).csw += 1;
            } else {
                let runner = (*cord).running;
                (*f).runner = runner;
                (*f).attention |= attention::STACK;
                if !stack::DIRECT {
                    (*f).place = (*(*runner).stack).start();
                }
                let next = (*cord).ready.front();
                if stack::DIRECT && (*cord).budget > 1 && is_stuck(next) {
                    (*cord).budget -= 1;
                    Self::take_stuck(cord, next);
                    if next != f {
                        (*next).place.resume(&raw mut (*f).place, (*next).runner.cast());
                    }
                } else {
                    Place::suspend(&raw mut (*f).place, (*cord).home);
                }
                (*f).attention &= !attention::STACK;
                (*f).runner = std::ptr::null_mut();
            }
            B::after_switch(cord, saved);
        }
    }

    /// The head of the ready queue, if its body can be resumed at once, with nothing to be done before; else the loop of a
    /// runner must look at it, or at the outside world.
    ///
    /// # Safety
    /// The cord is live.
    #[inline(always)]
    pub unsafe fn light_head(cord: *mut Self) -> Option<NonNull<Fiber<B>>> {
        // SAFETY: the caller's contract; what is queued is live.
        unsafe {
            if (*cord).budget <= 1 || (*cord).ready.is_empty() {
                return None;
            }
            let f = (*cord).ready.peek(0);
            ((*f).attention == 0).then(|| NonNull::new_unchecked(f))
        }
    }

    /// Makes the fiber that [`light_head`](Self::light_head) gave the current one: its body goes on next, on the stack of
    /// the one that has just waited.
    ///
    /// # Safety
    /// As said; the runner's loop is told by [`Body::resume`] alone.
    #[inline(always)]
    pub unsafe fn take_light_head(cord: *mut Self, f: NonNull<Fiber<B>>) {
        // SAFETY: the caller's contract.
        unsafe {
            (*cord).budget -= 1;
            take_light(cord, f.as_ptr());
        }
    }

    /// As [`take_light_head`](Self::take_light_head), and the running fiber goes to the tail of the ready queue.
    ///
    /// # Safety
    /// As for that.
    #[inline(always)]
    pub unsafe fn yield_to_light_head(cord: *mut Self, f: NonNull<Fiber<B>>) {
        // SAFETY: the caller's contract. The queue has just got a free slot.
        unsafe {
            let from = (*cord).current;
            (*from).flags |= flag::READY;
            (*from).wait = Wait::Yield;
            (*cord).budget -= 1;
            (*cord).ready.pop_front();
            (*cord).ready.push_back_free(from);
            begin_light(cord, f.as_ptr());
        }
    }

    /// Takes the stuck fiber `f` off the head of the ready queue and makes it the current one: its stack is resumed next.
    #[inline(always)]
    unsafe fn take_stuck(cord: *mut Self, f: FiberPtr<B>) {
        // SAFETY: the caller's contract: `f` is the head.
        unsafe {
            (*cord).ready.pop_front();
            (*cord).current = f;
            (*f).flags &= !flag::READY;
            (*f).csw += 1;
            (*cord).running = (*f).runner;
            Self::prefetch_stacks(&(*cord).ready);
        }
    }

    /// Runs everybody else on the program's own stack until the main fiber's turn comes.
    unsafe fn trampoline(cord: *mut Self) {
        // SAFETY: the caller's contract: it runs on the cord's own thread, whose shared part is live; the runner taken is
        // idle or owned by the stuck fiber that is resumed.
        unsafe {
            let innermost = &(*(*cord).shared).innermost;
            let before = innermost.replace(cord.cast_const().cast());
            loop {
                let f = Self::head(cord);
                if is_stuck(f) {
                    Self::take_stuck(cord, f);
                    (*f).place.resume(&raw mut (*cord).home, (*f).runner.cast());
                } else if (*f).attention & attention::MAIN != 0 {
                    (*cord).ready.pop_front();
                    (*f).flags &= !flag::READY;
                    break;
                } else {
                    let Some(runner) = (*cord).idle.pop() else { break };
                    (*cord).running = runner;
                    (*runner).place.resume(&raw mut (*cord).home, runner.cast());
                }
                if (*cord).returned {
                    (*cord).returned = false;
                    let runner = (*cord).running;
                    if (*runner).done {
                        (*cord).stacks -= 1;
                        Runner::discard(runner);
                    } else {
                        (*cord).idle.push(runner);
                    }
                }
            }
            (*cord).current = (*cord).main;
            innermost.set(before);
        }
    }

    /// Gives `f`, which has not started, a C stack of `bytes` of its own, on which nobody else will run. Its body must
    /// run to its end there.
    ///
    /// # Errors
    /// As for a stuck wait; nothing has changed.
    ///
    /// # Safety
    /// `f` is live, queued nowhere, and was never resumed.
    pub unsafe fn own_stack(cord: *mut Self, f: FiberPtr<B>, bytes: usize) -> Result<(), StackError> {
        // SAFETY: the caller's contract.
        unsafe {
            if (*cord).stack_limit == 0 {
                (*cord).stack_limit = stack::limit();
            }
            if (*cord).stacks >= (*cord).stack_limit {
                return Err(StackError::Limit((*cord).stack_limit));
            }
            let runner = Runner::with_entry(cord, bytes, run_one::<B>)?;
            (*cord).stacks += 1;
            (*runner).only = f;
            (*f).runner = runner;
            (*f).place = (*runner).place;
            (*f).attention |= attention::STACK;
        }
        Ok(())
    }

    /// Hints for the stuck fibers that are resumed soon. Each stands on pages of its own, far from the others', so that
    /// without them most of a switch among thousands is waiting for memory: the record is asked for three fibers ahead,
    /// what it points to one or two ahead. Nothing is read here but records asked for before.
    #[inline(always)]
    unsafe fn prefetch_stacks(ready: &Ring<Fiber<B>>) {
        if ready.len() < PREFETCH_FROM {
            return;
        }
        let record = ready.peek(3).cast_const().cast::<u8>();
        for line in 0..RECORD_LINES {
            prefetch(record.wrapping_add(64 * line));
        }
        // SAFETY: the queue is longer than what is looked at: these are records of live fibers.
        unsafe {
            let later = ready.peek(1);
            if (*later).attention & attention::STACK != 0 {
                for line in 0..FRAME_LINES {
                    prefetch((*later).place.address().wrapping_add(64 * line));
                }
            }
            B::prefetch_stuck(ready.peek(0), later);
        }
    }

    /// Unmaps idle stacks beyond a handful.
    pub(super) unsafe fn trim(cord: *mut Self) {
        // SAFETY: the idle list holds idle runners only; the one that runs now is not on it.
        unsafe {
            while (*cord).idle.len() > IDLE_KEPT {
                if let Some(runner) = (*cord).idle.pop() {
                    (*cord).stacks -= 1;
                    Runner::discard(runner);
                }
            }
        }
    }

    /// Gives all C stacks back but the one the caller stands on: nothing of this cord runs again.
    ///
    /// # Safety
    /// No fiber of the cord is resumed any more, and no frame on its stacks has anything to drop: LuaJIT's and ours have
    /// not.
    pub unsafe fn discard_stacks(cord: *mut Self) {
        // SAFETY: the caller's contract; a runner is idle or owned by one stuck fiber.
        unsafe {
            while let Some(runner) = (&mut (*cord).idle).pop() {
                Runner::discard(runner);
            }
            let mut i = 0;
            while let Some(f) = (*cord).record(i) {
                i += 1;
                if (*f).id != 0 && (*f).attention & attention::STACK != 0 && !(*f).runner.is_null() {
                    Runner::discard(std::mem::replace(&mut (*f).runner, std::ptr::null_mut()));
                }
            }
        }
    }

    /// C stacks mapped now, and the most there may be.
    pub fn stacks(&self) -> (usize, usize) {
        (self.stacks, self.stack_limit)
    }
}
