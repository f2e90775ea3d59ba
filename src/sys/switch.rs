//! The switch between two C stacks on x86-64, in line.
//!
//! Whoever leaves pushes what the compiler cannot be told to expect changed, and where it goes on; the other side pops:
//!
//! ```text
//!   suspended stack                      a fresh one
//!   | frames of the code  |              | room for generator  |
//!   | rbx                 |              | 0: returns nowhere  |
//!   | rbp                 |              | the entry           | <- Place
//!   | where it goes on    | <- Place     +---------------------+
//!   +---------------------+
//! ```
//!
//! No call is made and no return: the processor's own stack of return addresses stays in step with the code, since all
//! fibers leave from, and go on at, the same depth of calls. All other registers are declared lost, so that the compiler
//! saves those it uses. The control words of floating point are not saved: like `generator`, and like a call.

use std::arch::asm;
use std::ffi::c_void;

/// Leaves the caller's code at `*from` and goes on at `to`. A fresh stack's entry finds `argument` as its own.
///
/// # Safety
/// `to` was left by another call, or made by [`fresh`], and nobody has gone on there since; `from` may be written.
#[inline(always)]
pub(super) unsafe fn jump(from: *mut *mut u8, to: *mut u8, argument: *mut c_void) {
    // SAFETY: the caller's contract. Pushes are balanced by the pops of whoever comes back; the red zone is not used
    // around code that may push (no `nostack`).
    unsafe {
        asm!(
            "push rbx",
            "push rbp",
            "lea rax, [rip + 2f]",
            "push rax",
            "mov [rsi], rsp",
            "mov rsp, rdx",
            "pop rax",
            "jmp rax",
            "2:",
            "pop rbp",
            "pop rbx",
            inout("rdi") argument => _,
            inout("rsi") from => _,
            inout("rdx") to => _,
            lateout("r12") _, lateout("r13") _, lateout("r14") _, lateout("r15") _,
            clobber_abi("sysv64"),
        );
    }
}

/// What makes the first [`jump`] to the returned place call `entry`, whose frames begin below `top`.
///
/// # Safety
/// The bytes below `top`, which is aligned to 16, are writable and unused.
pub(super) unsafe fn fresh(top: *mut u8, entry: super::stack::Entry) -> *mut u8 {
    // SAFETY: the caller's contract. The entry finds the stack pointer as after a call: 8 below a multiple of 16.
    unsafe {
        let at = top.cast::<usize>().sub(2);
        *at = entry as usize;
        *at.add(1) = 0;
        at.cast()
    }
}
