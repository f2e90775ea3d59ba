//! C stacks: the only file that names `generator`.
//!
//! ```text
//!   high   +----------------------+ <- page aligned top
//!          | generator's record   |    (its handle points here)
//!          | entry, frames ...    |
//!          |          v           |
//!          |   untouched pages    |    committed when first touched
//!          +----------------------+
//!          | our guard, 64 KiB    |    one string.gsub frame is over 8 KiB: a single page could be jumped
//!          | generator's guard    |    one page
//!   low    +----------------------+
//! ```
//!
//! A stack is resumed by whoever holds it and suspends itself; both sides run on one OS thread. A suspended stack that
//! still has foreign frames on it (LuaJIT's) must never be dropped, because `generator` would unwind it with a panic:
//! [`Stack::retire`] is the one way to give a *finished* stack back.

use crate::sys::segv;
use generator::{Gn, LocalGenerator, Scope};
use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Once;

/// What runs on a stack. It must not unwind, and returns only to retire the stack.
pub type Entry = unsafe fn(*mut c_void);

type Suspender = Scope<'static, 'static, (), ()>;

const WORD: usize = size_of::<usize>();
/// Bytes at the low end that fault: more than the largest single frame LuaJIT makes.
pub const GUARD: usize = 64 * 1024;
/// The smallest stack a user may ask for, in bytes (guard not counted), as Tarantool's `fiber_attr_setstacksize`.
pub const MIN_SIZE: usize = 16 * 1024;
/// The default stack, in bytes of address space: `table.sort` on its worst input ends in LuaJIT's own "stack overflow"
/// well before it.
pub const DEFAULT_SIZE: usize = 2 * 1024 * 1024;

/// Bytes of address space that stacks leave to everybody else: where memory is limited (ulimit -v), the lack of it is the
/// error of a wait, before it ends the process in some allocation that cannot fail.
const RESERVE: usize = 32 * 1024 * 1024;

/// Why no stack could be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StackError {
    /// As many stacks as the process's memory mappings safely allow are in use. Holds that number.
    Limit(usize),
    /// The system refused the memory (`errno`).
    NoMemory(i32),
}

impl fmt::Display for StackError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StackError::Limit(limit) => write!(
                out,
                "too many fibers wait where Lua cannot yield: {limit} C stacks are in use, the most that \
                 vm.max_map_count allows (raise it with sysctl -w vm.max_map_count=N)"
            ),
            StackError::NoMemory(errno) => write!(
                out,
                "no memory for a fiber's C stack: {} (see fiber.cfg{{stack_size = bytes}})",
                std::io::Error::from_raw_os_error(*errno)
            ),
        }
    }
}

/// A stack known by what a switch needs of it, so that none of our own records must be in the cache for it.
#[derive(Clone, Copy)]
pub struct Place {
    context: *const u8,
    suspender: *mut c_void,
}

impl Place {
    /// No stack.
    pub const NOWHERE: Place = Place { context: std::ptr::null(), suspender: std::ptr::null_mut() };

    /// Where `generator` keeps the registers, for prefetching.
    #[inline(always)]
    pub fn context(&self) -> *const u8 {
        self.context
    }

    /// Whether the stack has run, so that [`suspend`](Self::suspend) knows its way back.
    #[inline(always)]
    pub fn has_run(&self) -> bool {
        !self.suspender.is_null()
    }

    /// As [`Stack::resume`].
    ///
    /// # Safety
    /// As for `Stack::resume`; the stack has not been retired.
    #[inline(always)]
    pub unsafe fn resume(self) {
        // SAFETY: the context is the address `into_raw` gave, and the handle made of it here is not dropped.
        unsafe {
            let raw = self.context.cast_mut().cast::<usize>();
            ManuallyDrop::new(LocalGenerator::<'static, (), ()>::from_raw(raw)).resume();
        }
    }

    /// As [`Stack::suspend`].
    ///
    /// # Safety
    /// The caller runs on this stack.
    #[inline(always)]
    pub unsafe fn suspend(self) {
        // SAFETY: the suspender was set before the stack's entry ran and lives on this very stack.
        unsafe { (*self.suspender.cast::<Suspender>()).yield_with(()) }
    }
}

/// One C stack and the code suspended on it.
pub struct Stack {
    generator: Option<LocalGenerator<'static, (), ()>>,
    suspender: *mut Suspender,
    context: *const u8,
    top: usize,
    bytes: usize,
    guard: *const segv::Guard,
    sentinel: [usize; SENTINEL],
}

/// Words at the low end that `generator` writes when it makes a stack and looks at when it drops one: their absence
/// would mean an overflow to it.
const SENTINEL: usize = 8;

impl Stack {
    /// Maps a stack of `bytes` (rounded up to pages) whose first [`resume`](Self::resume) calls `entry(argument)`.
    /// `whose` tells the overflow message which fiber runs on it.
    ///
    /// # Errors
    /// [`StackError`]: nothing was kept.
    pub fn new(bytes: usize, entry: Entry, argument: *mut c_void, whose: segv::Whose) -> Result<Box<Self>, StackError> {
        let page = page_size();
        let bytes = bytes.max(MIN_SIZE).next_multiple_of(page) + GUARD;
        probe(bytes + 2 * page + RESERVE)?;
        let mut stack = Box::new(Stack {
            generator: None,
            suspender: std::ptr::null_mut(),
            context: std::ptr::null(),
            top: 0,
            bytes,
            guard: std::ptr::null(),
            sentinel: [0; SENTINEL],
        });
        let me = &raw mut *stack as usize;
        let argument = argument as usize;
        warm_up();
        let generator = Gn::<()>::new_scoped_opt_local(bytes / WORD, move |scope: Scope<'_, '_, (), ()>| {
            // SAFETY: the scope outlives every suspension, since this closure's frame is the stack's lowest; the
            // lifetimes only name that frame. `me` is the boxed stack, alive as long as its generator.
            unsafe {
                let mut scope = std::mem::transmute::<Scope<'_, '_, (), ()>, Suspender>(scope);
                (*(me as *mut Stack)).suspender = &raw mut scope;
                entry(argument as *mut c_void);
            }
        });
        stack.protect(generator, page, whose);
        Ok(stack)
    }

    /// Widens the guard and makes it known to the fault handler.
    fn protect(&mut self, generator: LocalGenerator<'static, (), ()>, page: usize, whose: segv::Whose) {
        // The handle is an address on the stack itself, within its highest page.
        let raw = generator.into_raw();
        self.context = raw.cast_const().cast();
        self.top = (raw as usize).next_multiple_of(page);
        // SAFETY: `raw` came from `into_raw` on the line above and is turned back once.
        self.generator = Some(unsafe { LocalGenerator::from_raw(raw) });
        let low = self.low();
        // SAFETY: [low - page, low + GUARD) is the guard and the unused low end of the mapping `generator` just made for
        // this stack; nothing points there. One fresh mapping takes their place, instead of two that the kernel would
        // not merge, since one was touched (the sentinel, which `retire` writes again): a stack is two mappings.
        unsafe {
            self.sentinel = *(low as *const [usize; SENTINEL]);
            libc::mmap(
                (low - page) as *mut c_void,
                GUARD + page,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            );
        }
        self.guard = segv::add(low - page, low + GUARD, whose);
    }

    fn low(&self) -> usize {
        // `generator` rounds the words it was given down and adds a page; both end at the same top.
        (self.top - self.bytes) & !(page_size() - 1)
    }

    /// Runs the stack until it suspends itself or its entry returns.
    ///
    /// # Safety
    /// The caller runs on another stack of the same OS thread that made this one; the stack is suspended.
    #[inline(always)]
    pub unsafe fn resume(&mut self) {
        if let Some(generator) = &mut self.generator {
            generator.resume();
        }
    }

    /// Gives control back to whoever resumed this stack; returns when it is resumed again.
    ///
    /// # Safety
    /// `this` is the stack the caller runs on.
    #[inline(always)]
    pub unsafe fn suspend(this: *mut Stack) {
        // SAFETY: the suspender was set before `entry` ran and lives on this very stack.
        unsafe { (*(*this).suspender).yield_with(()) }
    }

    /// The addresses a switch needs. Once the stack has run they never change; before, there is no way back in them yet.
    #[inline(always)]
    pub fn place(&self) -> Place {
        Place { context: self.context, suspender: self.suspender.cast() }
    }

    /// Unmaps a stack whose entry has returned.
    #[allow(clippy::boxed_local)] // the box is the address its own code knows it by
    pub fn retire(mut self: Box<Self>) {
        if let Some(generator) = self.generator.take() {
            if !generator.is_done() {
                std::mem::forget(generator);
                return;
            }
            // SAFETY: the guard is this stack's own, and the range the low end of its mapping.
            unsafe {
                segv::remove(self.guard);
                libc::mprotect(self.low() as *mut c_void, GUARD, libc::PROT_READ | libc::PROT_WRITE);
                *(self.low() as *mut [usize; SENTINEL]) = self.sentinel;
            }
            drop(generator);
        }
    }
}

impl Stack {
    /// Unmaps a stack and whatever is suspended on it, none of which runs again. False, and nothing has changed, if the
    /// caller stands on it.
    ///
    /// # Safety
    /// Nobody resumes the stack any more or reads what is on it, and nothing there waits to be dropped.
    #[allow(clippy::boxed_local)] // as for `retire`
    pub unsafe fn discard(mut self: Box<Self>) -> bool {
        let here = 0_u8;
        let (low, page) = (self.low(), page_size());
        if (low..self.top).contains(&(&raw const here as usize)) {
            std::mem::forget(self);
            return false;
        }
        std::mem::forget(self.generator.take());
        // SAFETY: the caller's contract; the range is the whole mapping that was made for this stack, guard included.
        unsafe {
            segv::remove(self.guard);
            libc::munmap((low - page) as *mut c_void, self.top - low + page);
        }
        true
    }
}

/// A hint that the line at `at` is read soon. Any address will do.
#[inline(always)]
pub fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Lets `generator` install its fault handler, which it does when it first runs something, so that ours comes on top.
fn warm_up() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        segv::before_generator();
        Gn::<()>::new_scoped_local(|_scope: Scope<'_, '_, (), ()>| ()).resume();
    });
}

/// `generator` panics where mmap fails, so ask first.
fn probe(bytes: usize) -> Result<(), StackError> {
    // SAFETY: a fresh anonymous mapping, unmapped at once.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANON,
            -1,
            0,
        );
        if at == libc::MAP_FAILED {
            return Err(StackError::NoMemory(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOMEM)));
        }
        libc::munmap(at, bytes);
    }
    Ok(())
}

/// How many stacks this process may have at once: each takes two mappings, and thousands are left to everybody else.
pub fn limit() -> usize {
    const RESERVE: usize = 8192;
    let count = std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|text| text.trim().parse::<usize>().ok())
        .unwrap_or(65_530);
    let used = std::fs::read("/proc/self/maps").map_or(1000, |maps| maps.iter().filter(|b| **b == b'\n').count());
    (count.saturating_sub(used + RESERVE) / 2).max(64)
}

fn page_size() -> usize {
    // SAFETY: sysconf has no requirements.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count {
        stack: *mut Stack,
        n: usize,
    }

    unsafe fn count(argument: *mut c_void) {
        let this = argument.cast::<Count>();
        // SAFETY: the test keeps the record alive; the stack pointer is set before the first resume.
        unsafe {
            for _ in 0..3 {
                (*this).n += 1;
                Stack::suspend((*this).stack);
            }
        }
    }

    fn nobody() -> segv::Whose {
        segv::Whose { label: |_, _| 0, cord: std::ptr::null() }
    }

    #[test]
    fn a_suspended_stack_is_discarded_with_what_stands_on_it() {
        let mut record = Count { stack: std::ptr::null_mut(), n: 0 };
        let made = Stack::new(DEFAULT_SIZE, count, (&raw mut record).cast(), nobody());
        let Ok(mut stack) = made else { panic!("no stack") };
        record.stack = &raw mut *stack;
        // SAFETY: made on this thread, suspended; its frames have nothing to drop, and it is not resumed again.
        unsafe {
            stack.resume();
            let page = stack.low() as *mut c_void;
            assert!(stack.discard());
            assert_eq!(libc::msync(page, page_size(), libc::MS_ASYNC), -1);
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
        }
        assert_eq!(record.n, 1);
    }

    #[test]
    fn a_stack_runs_until_it_suspends_and_retires_when_its_entry_returned() {
        let mut record = Count { stack: std::ptr::null_mut(), n: 0 };
        let made = Stack::new(DEFAULT_SIZE, count, (&raw mut record).cast(), nobody());
        let Ok(mut stack) = made else { panic!("no stack") };
        record.stack = &raw mut *stack;
        for expected in 1..=3 {
            // SAFETY: made on this thread, suspended.
            unsafe { stack.resume() };
            assert_eq!(record.n, expected);
        }
        // SAFETY: as above; the entry returns now.
        unsafe { stack.resume() };
        stack.retire();
    }

    #[test]
    fn an_impossible_size_is_an_error_and_not_a_panic() {
        let made = Stack::new(1 << 52, count, std::ptr::null_mut(), nobody());
        assert!(matches!(made.map(|_| ()), Err(StackError::NoMemory(_))));
    }
}
