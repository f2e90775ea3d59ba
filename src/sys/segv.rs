//! The fault handler that explains a C stack overflow: it knows our guards, names the fiber and the option that helps,
//! and hands everything else to whatever handled it before.
//!
//! `generator` installs a handler of its own on first use which would swap stacks inside the handler and print to
//! stdout, so ours goes on top of it and falls back to the action that was there *before* `generator`'s.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use std::sync::{Mutex, Once};

/// Tells whose stack a guard belongs to: `label(cord, buffer)` writes the name of the fiber that runs now.
/// It is called inside a signal handler, so it may only read memory.
#[derive(Clone, Copy)]
pub struct Whose {
    /// Writes a label and returns its length.
    pub label: unsafe fn(*const c_void, &mut [u8]) -> usize,
    /// Passed to `label`.
    pub cord: *const c_void,
}

/// One guarded range. Nodes are linked for ever and reused, because the handler walks them without a lock.
pub struct Guard {
    low: AtomicUsize,
    high: AtomicUsize,
    label: AtomicPtr<c_void>,
    cord: AtomicPtr<c_void>,
    next: *const Guard,
}

static GUARDS: AtomicPtr<Guard> = AtomicPtr::new(std::ptr::null_mut());
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static PREVIOUS: [AtomicPtr<libc::sigaction>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Remembers the actions that were there before `generator` installs its own. Called once.
pub fn before_generator() {
    for (slot, signal) in PREVIOUS.iter().zip(SIGNALS) {
        // SAFETY: zeroed is a valid sigaction to be filled in; the box is leaked for the handler.
        unsafe {
            let action = Box::into_raw(Box::new(std::mem::zeroed::<libc::sigaction>()));
            libc::sigaction(signal, std::ptr::null(), action);
            slot.store(action, Release);
        }
    }
}

/// Makes [low, high) known to the handler, which is installed with the first guard (after `generator`'s).
pub fn add(low: usize, high: usize, whose: Whose) -> *const Guard {
    static ONCE: Once = Once::new();
    ONCE.call_once(install);
    alternate_stack();
    let reused = FREE.lock().ok().and_then(|mut free| free.pop());
    let guard = match reused {
        Some(address) => address as *mut Guard,
        None => Box::into_raw(Box::new(Guard {
            low: AtomicUsize::new(0),
            high: AtomicUsize::new(0),
            label: AtomicPtr::new(std::ptr::null_mut()),
            cord: AtomicPtr::new(std::ptr::null_mut()),
            next: std::ptr::null(),
        })),
    };
    // SAFETY: the node is ours alone until its range is published; nodes are never freed.
    unsafe {
        (*guard).label.store(whose.label as *mut c_void, Relaxed);
        (*guard).cord.store(whose.cord.cast_mut(), Relaxed);
        (*guard).high.store(high, Relaxed);
        (*guard).low.store(low, Release);
        if reused.is_none() {
            let mut head = GUARDS.load(Acquire);
            loop {
                (*guard).next = head;
                match GUARDS.compare_exchange(head, guard, AcqRel, Acquire) {
                    Ok(_) => break,
                    Err(now) => head = now,
                }
            }
        }
    }
    guard
}

/// Forgets a guard whose stack is about to be unmapped.
///
/// # Safety
/// `guard` came from [`add`], or is null.
pub unsafe fn remove(guard: *const Guard) {
    if guard.is_null() {
        return;
    }
    // SAFETY: nodes are never freed, so the pointer stays valid.
    unsafe { (*guard).high.store(0, Release) };
    if let Ok(mut free) = FREE.lock() {
        free.push(guard as usize);
    }
}

fn install() {
    for signal in SIGNALS {
        // SAFETY: a zeroed sigaction is valid; the handler is async-signal-safe.
        unsafe {
            let mut action = std::mem::zeroed::<libc::sigaction>();
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            action.sa_sigaction = handler as *const () as usize;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Gives this OS thread a stack to handle faults on, unless it has one. Leaked: the thread may outlive us.
fn alternate_stack() {
    thread_local!(static DONE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    if DONE.replace(true) {
        return;
    }
    const SIZE: usize = 64 * 1024;
    // SAFETY: plain queries and a fresh anonymous mapping that is never unmapped.
    unsafe {
        let mut current = std::mem::zeroed::<libc::stack_t>();
        if libc::sigaltstack(std::ptr::null(), &raw mut current) != 0 || current.ss_flags & libc::SS_DISABLE == 0 {
            return;
        }
        let at = libc::mmap(
            std::ptr::null_mut(),
            SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANON,
            -1,
            0,
        );
        if at != libc::MAP_FAILED {
            let stack = libc::stack_t { ss_sp: at, ss_flags: 0, ss_size: SIZE };
            libc::sigaltstack(&raw const stack, std::ptr::null_mut());
        }
    }
}

fn write_stderr(bytes: &[u8]) {
    // SAFETY: a live slice; write(2) is async-signal-safe.
    unsafe { libc::write(2, bytes.as_ptr().cast(), bytes.len()) };
}

unsafe extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo; the guard list is append-only and its nodes immortal. `label` was
    // stored from a function pointer of that type and only reads memory of the running fiber.
    unsafe {
        let address = (*info).si_addr() as usize;
        let mut guard: *const Guard = GUARDS.load(Acquire);
        while !guard.is_null() {
            if address >= (*guard).low.load(Acquire) && address < (*guard).high.load(Acquire) {
                explain(&*guard);
                break;
            }
            guard = (*guard).next;
        }
        // Whatever came before us decides: the faulting instruction runs again under its action.
        let slot = usize::from(signal == libc::SIGBUS);
        let previous = PREVIOUS[slot].load(Acquire);
        if previous.is_null() {
            libc::signal(signal, libc::SIG_DFL);
        } else {
            libc::sigaction(signal, previous, std::ptr::null_mut());
        }
    }
}

#[cold]
unsafe fn explain(guard: &Guard) {
    let mut buffer = [0u8; 320];
    let label = guard.label.load(Relaxed);
    let length = if label.is_null() {
        0
    } else {
        // SAFETY: stored from exactly this function type in `add`.
        unsafe {
            let label = std::mem::transmute::<*mut c_void, unsafe fn(*const c_void, &mut [u8]) -> usize>(label);
            label(guard.cord.load(Relaxed), &mut buffer)
        }
    };
    write_stderr(b"cord: C stack overflow in fiber ");
    write_stderr(buffer.get(..length).unwrap_or(b"?"));
    write_stderr(b": too deep a recursion through C (string.gsub, table.sort, pcall in a metamethod ...); ");
    write_stderr(b"fiber.cfg{stack_size = bytes} gives new stacks more room\n");
}
