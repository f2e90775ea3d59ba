//! C stacks: the only file that names `generator`.
//!
//! ```text
//!   high   +----------------------+ <- page aligned top
//!          | generator's record   |    (its handle points here)
//!          | room for its start   |
//!          | entry, frames ...    |
//!          |          v           |
//!          |   untouched pages    |    committed when first touched
//!          +----------------------+
//!          | our guard, 64 KiB    |    one string.gsub frame is over 8 KiB: a single page could be jumped
//!          | generator's guard    |    one page
//!   low    +----------------------+
//! ```
//!
//! `generator` maps the stacks. On x86-64 the switch between them is a few instructions in line (`switch.rs`):
//! `generator`'s own, which other processors use, is a call whose return address stays behind on the processor's
//! return stack, so that every return after a switch is mispredicted.
//!
//! Both sides of a switch run on one OS thread. What is suspended on a stack is never unwound: neither LuaJIT's frames nor
//! ours have anything to drop, and [`Stack::discard`] unmaps them as they are.

use crate::sys::segv;
use generator::Gn;
use std::ffi::c_void;
use std::fmt;
use std::sync::Once;

/// What runs on a stack. It must not unwind, and never returns: it suspends itself for the last time.
pub type Entry = unsafe extern "C" fn(*mut c_void) -> !;

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

/// A place on a C stack where code waits to go on: one word, so that a switch needs none of our records.
#[derive(Clone, Copy)]
pub struct Place(*mut u8);

/// True where [`Place`] is a stack pointer and a switch goes from any stack to any other; otherwise `generator` switches,
/// which comes back to whoever resumed. `--cfg cord_generator` chooses that, for its tests.
pub const DIRECT: bool = cfg!(all(target_arch = "x86_64", unix, not(cord_generator)));

impl Place {
    /// No place.
    pub const NOWHERE: Place = Place(std::ptr::null_mut());

    /// Its address, near which the code's frames are: for prefetching.
    #[inline(always)]
    pub fn address(self) -> *const u8 {
        self.0
    }
}

#[cfg(all(target_arch = "x86_64", unix, not(cord_generator)))]
mod way {
    use super::{Entry, Gn, Place, WORD};
    use crate::sys::switch;
    use std::ffi::c_void;

    /// Bytes below `generator`'s handle that it has written to: what its own first switch would read.
    const HEADROOM: usize = 1024;

    impl Place {
        /// Goes on there, and leaves the caller's code at `*from`. A fresh stack's entry gets `argument`.
        ///
        /// # Safety
        /// Code waits there, on a stack of the same OS thread; `from` may be written.
        #[inline(always)]
        pub unsafe fn resume(self, from: *mut Place, argument: *mut c_void) {
            // SAFETY: the caller's contract.
            unsafe { switch::jump(from.cast(), self.0, argument) };
        }

        /// Leaves the caller's code at `*here` and goes back to `home`, which resumed this stack.
        ///
        /// # Safety
        /// As for [`resume`](Self::resume). Where `generator` switches, `*here` is the [`start`](super::Stack::start)
        /// of the caller's stack.
        #[inline(always)]
        pub unsafe fn suspend(here: *mut Place, home: Place) {
            // SAFETY: the caller's contract.
            unsafe { switch::jump(here.cast(), home.0, std::ptr::null_mut()) };
        }
    }

    pub(super) type Extra = ();

    /// A mapped stack's handle, and its start. `generator` never runs there.
    pub(super) fn make(bytes: usize, entry: Entry) -> (*mut usize, Place, Extra) {
        let handle = Gn::<()>::new_scoped_opt_local(bytes / WORD, |_scope| ()).into_raw();
        let top = (handle as usize - HEADROOM) & !63;
        // SAFETY: a fresh stack, on which nothing runs; the room below its handle is not used.
        let start = unsafe { switch::fresh(top as *mut u8, entry) };
        (handle, Place(start), ())
    }

    pub(super) fn warm_up() {}

    #[cfg(test)]
    #[test]
    fn generator_has_written_nothing_where_the_stack_begins() {
        let handle = Gn::<()>::new_scoped_opt_local(super::DEFAULT_SIZE / WORD, |_scope| ()).into_raw() as usize;
        let begin = handle - HEADROOM / 2;
        // SAFETY: the mapped stack, which is leaked.
        assert!((begin - 2048..begin).step_by(WORD).all(|at| unsafe { *(at as *const usize) } == 0));
    }
}

#[cfg(not(all(target_arch = "x86_64", unix, not(cord_generator))))]
mod way {
    use super::{Entry, Gn, Place, WORD};
    use generator::{LocalGenerator, Scope};
    use std::ffi::c_void;
    use std::mem::ManuallyDrop;

    type Suspender = Scope<'static, 'static, (), ()>;

    /// What a place is the address of.
    pub(super) struct Bridge {
        handle: *mut usize,
        suspender: *mut Suspender,
        entry: Entry,
        argument: *mut c_void,
    }

    impl Place {
        /// Goes on there. A fresh stack's entry gets `argument`.
        ///
        /// # Safety
        /// Code waits there, on a stack of the same OS thread.
        pub unsafe fn resume(self, _from: *mut Place, argument: *mut c_void) {
            // SAFETY: the bridge lives as long as its stack; the handle made anew here is not dropped.
            unsafe {
                let bridge = self.0.cast::<Bridge>();
                (*bridge).argument = argument;
                ManuallyDrop::new(LocalGenerator::<'static, (), ()>::from_raw((*bridge).handle)).resume();
            }
        }

        /// Goes back to whoever resumed this stack.
        ///
        /// # Safety
        /// `*here` is the [`start`](super::Stack::start) of the caller's stack.
        pub unsafe fn suspend(here: *mut Place, _home: Place) {
            // SAFETY: the suspender was set before the stack's entry ran and lives on this very stack.
            unsafe { (*(*(*here).0.cast::<Bridge>()).suspender).yield_with(()) };
        }
    }

    pub(super) type Extra = Box<Bridge>;

    pub(super) fn make(bytes: usize, entry: Entry) -> (*mut usize, Place, Extra) {
        let null = std::ptr::null_mut();
        let mut bridge = Box::new(Bridge { handle: null, suspender: null.cast(), entry, argument: null.cast() });
        let to = &raw mut *bridge;
        let generator = Gn::<()>::new_scoped_opt_local(bytes / WORD, move |scope: Scope<'_, '_, (), ()>| {
            // SAFETY: the scope outlives every suspension, since this closure's frame is the stack's lowest; the
            // lifetimes only name that frame. The bridge lives as long as the stack.
            unsafe {
                let mut scope = std::mem::transmute::<Scope<'_, '_, (), ()>, Suspender>(scope);
                (*to).suspender = &raw mut scope;
                ((*to).entry)((*to).argument);
            }
        });
        bridge.handle = generator.into_raw();
        (bridge.handle, Place(to.cast()), bridge)
    }

    /// `generator` installs a fault handler when it first runs something.
    pub(super) fn warm_up() {
        Gn::<()>::new_scoped_local(|_scope| ()).resume();
    }
}

/// One C stack and the code suspended on it.
pub struct Stack {
    start: Place,
    top: usize,
    bytes: usize,
    guard: *const segv::Guard,
    _extra: way::Extra,
}

impl Stack {
    /// Maps a stack of `bytes` (rounded up to pages) on which the first [`Place::resume`] of its [`start`](Self::start)
    /// calls `entry` with that call's argument. `whose` tells the overflow message which fiber runs on it.
    ///
    /// # Errors
    /// [`StackError`]: nothing was kept.
    pub fn new(bytes: usize, entry: Entry, whose: segv::Whose) -> Result<Box<Self>, StackError> {
        let page = page_size();
        let bytes = bytes.max(MIN_SIZE).next_multiple_of(page) + GUARD;
        probe(bytes + 2 * page + RESERVE)?;
        prepare();
        // The handle is an address on the stack itself, within its highest page.
        let (handle, start, extra) = way::make(bytes, entry);
        let top = (handle as usize).next_multiple_of(page);
        let mut stack = Box::new(Stack { start, top, bytes, guard: std::ptr::null(), _extra: extra });
        stack.protect(page, whose);
        Ok(stack)
    }

    /// Widens the guard and makes it known to the fault handler.
    fn protect(&mut self, page: usize, whose: segv::Whose) {
        let low = self.low();
        // SAFETY: [low - page, low + GUARD) is the guard and the unused low end of the mapping `generator` just made for
        // this stack; nothing points there. One fresh mapping takes their place, instead of two that the kernel would
        // not merge, since one was touched: a stack is two mappings.
        unsafe {
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

    /// Where its entry waits to be started.
    #[inline(always)]
    pub fn start(&self) -> Place {
        self.start
    }

    /// Unmaps the stack and whatever is suspended on it, none of which runs again. False, and nothing has changed, if
    /// the caller stands on it.
    ///
    /// # Safety
    /// Nobody resumes the stack any more or reads what is on it, and nothing there waits to be dropped.
    #[allow(clippy::boxed_local)] // it is gone with the stack
    pub unsafe fn discard(self: Box<Self>) -> bool {
        let here = 0_u8;
        let (low, page) = (self.low(), page_size());
        if (low..self.top).contains(&(&raw const here as usize)) {
            std::mem::forget(self);
            return false;
        }
        // SAFETY: the caller's contract; the range is the whole mapping that was made for this stack, guard included.
        // `generator` keeps nothing elsewhere: its record and its closure are on the stack.
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

/// Remembers the fault handlers that were there first. Where `generator` switches, it installs one of its own when it
/// first runs something: that is done here, so that ours comes on top.
fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        segv::before_generator();
        way::warm_up();
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
        n: usize,
        here: Place,
        home: Place,
    }

    unsafe extern "C" fn count(argument: *mut c_void) -> ! {
        let this = argument.cast::<Count>();
        // SAFETY: the test keeps the record alive.
        unsafe {
            loop {
                (*this).n += 1;
                Place::suspend(&raw mut (*this).here, (*this).home);
            }
        }
    }

    fn nobody() -> segv::Whose {
        segv::Whose { label: |_, _| 0, cord: std::ptr::null() }
    }

    #[test]
    fn a_stack_runs_until_it_suspends_itself_and_is_discarded_with_what_stands_on_it() {
        let Ok(stack) = Stack::new(DEFAULT_SIZE, count, nobody()) else { panic!("no stack") };
        let mut record = Count { n: 0, here: stack.start(), home: Place::NOWHERE };
        let this = &raw mut record;
        for expected in 1..=3 {
            // SAFETY: made on this thread, suspended.
            unsafe { (*this).here.resume(&raw mut (*this).home, this.cast()) };
            assert_eq!(record.n, expected);
        }
        let page = stack.low() as *mut c_void;
        // SAFETY: its frames have nothing to drop, and it is not resumed again.
        assert!(unsafe { stack.discard() });
        // SAFETY: msync of an unmapped page only fails.
        assert_eq!(unsafe { libc::msync(page, page_size(), libc::MS_ASYNC) }, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
    }

    /// Registers that a function must keep, and floating point in between.
    #[test]
    fn many_stacks_in_turn_keep_their_values() {
        struct Sum {
            seed: f64,
            total: f64,
            here: Place,
            home: Place,
        }
        unsafe extern "C" fn add(argument: *mut c_void) -> ! {
            let this = argument.cast::<Sum>();
            // SAFETY: the test keeps the record alive.
            unsafe {
                let (mut a, mut b, mut c) = ((*this).seed, 1_u64, [0_u64; 6]);
                loop {
                    a += 0.5;
                    b = b.wrapping_mul(3);
                    for (i, slot) in c.iter_mut().enumerate() {
                        *slot = slot.wrapping_add(b ^ i as u64);
                    }
                    (*this).total = a + (b & 1) as f64 + (c.iter().fold(0, |x, y| x ^ y) >> 63) as f64 * 0.0;
                    Place::suspend(&raw mut (*this).here, (*this).home);
                }
            }
        }
        let mut sums: Vec<(Sum, Box<Stack>)> = (0..50)
            .filter_map(|i| {
                let stack = Stack::new(MIN_SIZE, add, nobody()).ok()?;
                Some((Sum { seed: f64::from(i), total: 0.0, here: stack.start(), home: Place::NOWHERE }, stack))
            })
            .collect();
        assert_eq!(sums.len(), 50);
        for turn in 1..=20_u32 {
            for (i, (sum, _)) in sums.iter_mut().enumerate() {
                let this = &raw mut *sum;
                // SAFETY: as above.
                unsafe { (*this).here.resume(&raw mut (*this).home, this.cast()) };
                assert_eq!(sum.total, i as f64 + 0.5 * f64::from(turn) + 1.0);
            }
        }
        for (_, stack) in sums {
            // SAFETY: as above.
            assert!(unsafe { stack.discard() });
        }
    }

    #[test]
    fn an_impossible_size_is_an_error_and_not_a_panic() {
        let made = Stack::new(1 << 52, count, nobody());
        assert!(matches!(made.map(|_| ()), Err(StackError::NoMemory(_))));
    }
}
