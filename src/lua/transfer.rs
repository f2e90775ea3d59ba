//! Transfer: from one light fiber to the next without leaving the interpreter.
//!
//! A light fiber waits by `lua_yield`: its C function returns -1, the interpreter leaves the frame that `lua_resume` made
//! on the C stack, and the runner's loop makes another one for the next fiber. All resumed threads have the same frame; of
//! what is in it only the thread's own address differs. So where the next fiber is suspended in a wait of its own, the
//! frame is kept and the interpreter told that it runs *that* thread, in whose C function it then "returns":
//!
//! ```text
//!   the frame of lua_resume             what a transfer writes
//!   | saved registers    |
//!   | SAVE_CFRAME: null  |
//!   | SAVE_PC            | <----------- null, as lua_resume leaves it
//!   | SAVE_L             | <----------- the next fiber's thread (and the register that holds it)
//!   | error, results: 0  |
//!   +--------------------+ <----------- the next thread's `cframe`; its status: runs
//! ```
//!
//! From there the interpreter reads everything from the thread, as it does after `lua_resume`: the base and the top of
//! its stack, the caller's instruction, the number of results. That this build's interpreter does so is read from its
//! code: the instructions behind the call of a C function must be the very ones ([`AFTER_CALL`]), and two throw-away
//! threads must come out as expected. Where they do not (another processor, another build), waits go through the runner
//! as ever: no behaviour depends on a transfer but speed.
//!
//! The C function itself must be entered through a few instructions of assembly, since it is a register of its caller
//! that changes: [`waiting`] makes them.

use super::body::{LuaBody, LuaCord, LuaFiber};
use super::jit::{self, MARK};
use super::state::{self, State};
use super::trace::end_recording;
use crate::fiber::fiber::Wait;
use crate::fiber::{Cord, Fiber};
use mlua::ffi::*;
#[cfg(target_arch = "x86_64")]
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;

/// Where the proven interpreter goes on after a C function: the return address of those it calls. Another interpreter in
/// the same process has another one, and its C functions then take the way through the runner.
pub static RETURN: AtomicUsize = AtomicUsize::new(0);

/// What the entry takes over from [`next`].
#[repr(C)]
pub struct Next {
    /// The thread to go on with, or null: through the runner.
    l: *mut lua_State,
    /// How many results its C function returns.
    results: usize,
}

/// Nobody goes on, and nothing has changed.
pub const STAY: Next = Next { l: std::ptr::null_mut(), results: 0 };
/// Nobody goes on here: the thread has yielded to its runner.
pub const RETURNS_YIELDED: Next = Next { l: std::ptr::null_mut(), results: u32::MAX as usize };

/// Of both kinds of entry: asks `step` who goes on, and returns into that thread's C function; to label 2 if nobody does.
/// What changes is the interpreter's: the register that holds the thread, SAVE_L, and SAVE_PC, null as after a resume.
/// SAVE_L is 16 bytes above the stack pointer that the interpreter had when it made the call.
#[cfg(target_arch = "x86_64")]
macro_rules! go_on {
    () => {
        "lea rsi, [rsp + 8]
        sub rsp, 8
        .cfi_adjust_cfa_offset 8
        call {step}
        add rsp, 8
        .cfi_adjust_cfa_offset -8
        test rax, rax
        jz 2f
        mov rbp, rax
        mov [rsp + 24], rax
        mov qword ptr [rsp + 32], 0
        mov eax, edx
        ret"
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use go_on;

/// The entry of a C function that may end in a light wait: `waiting!(l_sleep)` is a `lua_CFunction`. With a second
/// function, `waiting!(l_yield, yield_at_once)`, that one is asked first: it is called with the thread and the
/// interpreter's frame, and either says who goes on, when all that was to be done is done; or changes nothing ([`STAY`]); or
/// has the C function return ([`RETURNS_YIELDED`]).
#[cfg(target_arch = "x86_64")]
macro_rules! waiting {
    (@entry $name:ident $function:path) => {
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name(l: *mut mlua::ffi::lua_State) -> std::ffi::c_int {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "call {function}",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "cmp eax, -1",
                "jne 3f",
                "mov rax, [rip + {proven}]",
                "cmp rax, [rsp]",
                "jne 2f",
                $crate::lua::transfer::go_on!(),
                "2:",
                "mov eax, -1",
                "3:",
                "ret",
                ".cfi_endproc",
                function = sym $function,
                proven = sym $crate::lua::transfer::RETURN,
                step = sym $crate::lua::transfer::next,
            )
        }
    };
    ($function:path) => {{
        $crate::lua::transfer::waiting!(@entry entry $function);
        entry
    }};
    ($function:path, $at_once:path) => {{
        $crate::lua::transfer::waiting!(@entry long $function);
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn entry(l: *mut mlua::ffi::lua_State) -> std::ffi::c_int {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "mov rax, [rip + {proven}]",
                "cmp rax, [rsp]",
                "jne 3f",
                $crate::lua::transfer::go_on!(),
                "2:",
                "mov eax, edx",
                "test edx, edx",
                "jz 4f",
                "ret",
                "4:",
                // The proven interpreter holds the thread there.
                "mov rdi, rbp",
                "3:",
                "jmp {long}",
                ".cfi_endproc",
                step = sym $at_once,
                proven = sym $crate::lua::transfer::RETURN,
                long = sym long,
            )
        }
        entry
    }};
}

/// As above, where no transfer is known: the function itself.
#[cfg(not(target_arch = "x86_64"))]
macro_rules! waiting {
    ($function:path) => {
        $function
    };
    ($function:path, $at_once:path) => {{
        const _: unsafe extern "C-unwind" fn(*mut mlua::ffi::lua_State, usize) -> Next = $at_once;
        $function
    }};
}

pub(crate) use waiting;

/// Who can go on in place of the running fiber: the head of the ready queue, if it is suspended in a light wait and
/// nothing is to be done before it runs. Else the runner's loop must see to it.
///
/// # Safety
/// The cord is live.
#[inline(always)]
pub unsafe fn target(cord: *mut LuaCord) -> Option<Target> {
    // SAFETY: the caller's contract; records in the ready queue are live, and so are their threads.
    unsafe {
        let f = Cord::light_head(cord)?;
        let l = (*f.as_ptr()).data.l;
        (!l.is_null() && *jit::status(l) == LUA_YIELD as u8).then_some(Target { f, l })
    }
}

/// From [`target`]: a fiber, and its thread.
#[derive(Clone, Copy)]
pub struct Target {
    /// The fiber.
    pub f: NonNull<Fiber<LuaBody>>,
    l: *mut lua_State,
}

/// The thread `l` of the running fiber waits from now on without results of its own, as by `lua_yield`. The fiber was
/// queued or linked, and `to` is the current one.
///
/// # Safety
/// `to` is from [`target`]; `frame` is the one that `waiting` gave.
#[inline(always)]
pub unsafe fn go(l: *mut lua_State, to: Target, frame: usize) -> Next {
    // SAFETY: the caller's contract.
    unsafe {
        jit::drop_arguments(l);
        *jit::cframe(l) = MARK;
        *jit::status(l) = LUA_YIELD as u8;
        arrive(to, frame)
    }
}

/// For what [`waiting`] calls at once: the running fiber and who can go on in its place, if the thread `l` is the fiber's own.
///
/// # Safety
/// `l` runs a C function of ours, which may yield; `s` is its live state.
#[inline(always)]
pub unsafe fn chance(s: *mut State, l: *mut lua_State) -> Option<(LuaFiber, Target)> {
    // SAFETY: the caller's contract.
    unsafe {
        let cord = &raw mut (*s).cord;
        let (f, to) = ((*cord).current, target(cord)?);
        (l == (*f).data.l).then_some((f, to))
    }
}

/// As that, with the state of `l`, if its running C function may wait by yielding and nobody wants to hear of a switch.
///
/// # Safety
/// `l` runs a C function of ours.
#[inline(always)]
pub unsafe fn quiet_chance(l: *mut lua_State) -> Option<(*mut State, LuaFiber, Target)> {
    // SAFETY: the caller's contract.
    unsafe {
        let s = state::seen_last(l);
        if s.is_null() || !jit::is_yieldable(l) || (*s).cord.body.attend != 0 {
            return None;
        }
        let (f, to) = chance(s, l)?;
        Some((s, f, to))
    }
}

/// The rest of that, for a fiber that the caller has put on a list and nobody wants to hear of: it waits for `kind`.
///
/// # Safety
/// All is from [`quiet_chance`], and `frame` is the one that `waiting` gave.
#[inline(always)]
pub unsafe fn leave(s: *mut State, f: LuaFiber, l: *mut lua_State, to: Target, frame: usize, kind: Wait) -> Next {
    // SAFETY: the caller's contract.
    unsafe {
        end_recording(s);
        (*f).wait = kind;
        Cord::take_light_head(&raw mut (*s).cord, to.f);
        go(l, to, frame)
    }
}

/// The thread of the current fiber `to` runs in the frame.
#[inline(always)]
unsafe fn arrive(to: Target, frame: usize) -> Next {
    // SAFETY: a suspended thread, which its fiber anchors.
    unsafe {
        let f = to.f.as_ptr();
        let results = (*f).data.nargs as u32 as usize;
        (*f).data.nargs = 0;
        *jit::status(to.l) = 0;
        *jit::cframe(to.l) = frame | jit::CFRAME_RESUME;
        Next { l: to.l, results }
    }
}

/// The fiber of `l` has just waited by `lua_yield`, called by an interpreter that was proven, whose frame is `frame`. Who
/// goes on in its place, and is the current fiber then.
///
/// # Safety
/// As said.
pub unsafe extern "C" fn next(l: *mut lua_State, frame: usize) -> Next {
    // SAFETY: the caller's contract.
    unsafe {
        let s = state::seen_last(l);
        if s.is_null() {
            return STAY;
        }
        let cord: *mut LuaCord = &raw mut (*s).cord;
        let from = (*cord).current;
        match target(cord) {
            Some(to) if (*from).data.l == l && (*from).data.announced => {
                (*from).data.announced = false;
                *jit::cframe(l) = MARK;
                Cord::take_light_head(cord, to.f);
                arrive(to, frame)
            }
            _ => STAY,
        }
    }
}

/// Behind the call of a C function in LuaJIT's interpreter, x86-64 with 64-bit references: the instructions a transfer
/// relies on, in hexadecimal; `??` is a byte of an offset, which may differ.
///
/// ```text
/// mov  BASE, L->base
/// mov  [DISPATCH + cur_L], L
/// mov  dword [DISPATCH + vmstate], -1
/// lea  RA, [BASE + results * 8];  neg RA;  add RA, L->top
/// mov  PC, [BASE - 8]
/// jmp  vm_returnc
/// ```
#[cfg(target_arch = "x86_64")]
const AFTER_CALL: &str = "48 8b 55 20 \
                          49 89 ae ?? ?? ?? ?? \
                          41 c7 86 ?? ?? ?? ?? ff ff ff ff \
                          48 8d 0c c2 48 f7 d9 48 03 4d 28 \
                          48 8b 5a f8 \
                          e9 ?? ?? ?? ??";

/// Whether the code at `at` is [`AFTER_CALL`].
#[cfg(target_arch = "x86_64")]
unsafe fn is_after_call(at: *const u8) -> bool {
    AFTER_CALL.split(' ').enumerate().all(|(i, wanted)| {
        // SAFETY: code behind a return address, as long as its first bytes are those of the pattern: a jump ends it.
        wanted == "??" || u8::from_str_radix(wanted, 16) == Ok(unsafe { *at.add(i) })
    })
}

/// What the two threads of the trial find out.
#[cfg(target_arch = "x86_64")]
struct Trial {
    /// The thread that waits, and is transferred to.
    waiting: *mut lua_State,
    /// Where the interpreter goes on after a C function; 0 if it does not look as it must.
    returns: usize,
}

/// The entry of the trial's C function.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn probe(l: *mut lua_State) -> c_int {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "mov rsi, rsp",
        "mov rdx, rbp",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {step}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "test rax, rax",
        "jz 2f",
        "mov rbp, rax",
        "mov [rsp + 24], rax",
        "2:",
        "mov eax, edx",
        "ret",
        ".cfi_endproc",
        step = sym step,
    )
}

/// The first thread that comes here waits; the second one goes on as the first, which gets a number.
#[cfg(target_arch = "x86_64")]
unsafe extern "C-unwind" fn step(l: *mut lua_State, entered: *const usize, held: *mut lua_State) -> Next {
    // SAFETY: called by `probe`, whose closure holds the trial's address: `entered` is the stack at its entry. The words
    // above it are those of the frame that the interpreter has there if it is the expected one.
    unsafe {
        let trial = lua_touserdata(l, lua_upvalueindex(1)).cast::<Trial>();
        let frame = entered.add(1);
        let as_expected = held == l
            && *jit::cframe(l) == frame as usize | jit::CFRAME_RESUME
            && *frame.add(2) == l as usize
            && *jit::status(l) == 0
            && is_after_call(std::ptr::with_exposed_provenance(*entered));
        let waiting = (*trial).waiting;
        if waiting.is_null() {
            (*trial).waiting = l;
            return Next { l: std::ptr::null_mut(), results: lua_yield(l, 0) as u32 as usize };
        }
        if !as_expected || *jit::status(waiting) != LUA_YIELD as u8 || *jit::cframe(waiting) != 0 {
            return STAY;
        }
        (*trial).returns = *entered;
        lua_pushinteger(waiting, 42);
        lua_yield(l, 0);
        *jit::status(waiting) = 0;
        *jit::cframe(waiting) = frame as usize | jit::CFRAME_RESUME;
        Next { l: waiting, results: 1 }
    }
}

/// Tries a transfer between two throw-away threads, and permits transfers if all is as it must be. False if not.
///
/// # Safety
/// `l` is a live thread with a few free slots in a build whose `cframe` was proven, not inside a hook.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn prove(l: *mut lua_State) -> bool {
    const CHECK: &std::ffi::CStr = c"
        local probe = ...
        local resume = coroutine.resume
        local function body()
            local value = probe()
            return value
        end
        local one, two = coroutine.create(body), coroutine.create(body)
        resume(two)
        resume(one)
        local ok, value = resume(one, 7)
        return ok and value == 7 and two
    ";
    // SAFETY: balanced; errors are caught. The trial outlives the closure's last call.
    unsafe {
        let top = lua_gettop(l);
        let mut trial = Trial { waiting: std::ptr::null_mut(), returns: 0 };
        let mut proven = false;
        if luaL_loadstring(l, CHECK.as_ptr()) == 0 {
            lua_pushlightuserdata(l, (&raw mut trial).cast());
            lua_pushcclosure(l, probe, 1);
            if lua_pcall(l, 1, 1, 0) == 0 {
                let two = lua_tothread(l, -1);
                proven = !two.is_null()
                    && two == trial.waiting
                    && *jit::status(two) == 0
                    && *jit::cframe(two) == 0
                    && lua_gettop(two) == 1
                    && lua_tointeger_(two, 1) == 42;
            }
        }
        if proven {
            RETURN.store(trial.returns, std::sync::atomic::Ordering::Release);
        }
        lua_settop(l, top);
        proven
    }
}

// ---- raising in a waiting fiber ----

/// The C function of the carrier: goes on as the current fiber, in the C function that it waits in, and raises there.
///
/// A light fiber that is resumed runs no native code, so a C function that waits could only return what is to be raised.
/// This one is in the frame already when the fiber's thread takes its place.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn carry(l: *mut lua_State) -> c_int {
    std::arch::naked_asm!(
        ".cfi_startproc",
        // Through a host's wrapper of C functions (LUAJIT_MODE_WRAPCFUNC) the frame is not there.
        "xor esi, esi",
        "mov rax, [rip + {proven}]",
        "cmp rax, [rsp]",
        "jne 3f",
        "lea rsi, [rsp + 8]",
        "3:",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {depart}",
        "test rax, rax",
        "jz 2f",
        "mov rbp, rax",
        "mov [rsp + 32], rax",
        "mov qword ptr [rsp + 40], 0",
        "mov rdi, rax",
        "call {raise}",
        "ud2",
        "2:",
        "mov eax, edx",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        proven = sym RETURN,
        depart = sym depart,
        raise = sym super::fiber::raise_kept,
    )
}

/// The carrier `l` waits from now on; the thread of the current fiber, if it is to raise, runs in its frame, unless that is
/// not known (0).
#[cfg(target_arch = "x86_64")]
unsafe extern "C-unwind" fn depart(l: *mut lua_State, frame: usize) -> Next {
    // SAFETY: called by `carry`: resumed by `LuaBody::resume` with a fiber that waits and is to raise, or by `carrier`.
    unsafe {
        let s = state::current(l);
        let f = (*s).cord.current;
        allow_hooks(s);
        let results = lua_yield(l, 0) as u32 as usize;
        if (*f).data.raise == 0 || frame == 0 {
            return Next { l: std::ptr::null_mut(), results };
        }
        let thread = (*f).data.l;
        *jit::status(thread) = 0;
        *jit::cframe(thread) = frame | jit::CFRAME_RESUME;
        Next { l: thread, results: 0 }
    }
}

/// No debug hook sees the carrier, which runs nobody's code: one that raised or waited there would end it. Until [`depart`].
///
/// # Safety
/// The hook mask was proven; no hook runs.
pub(super) unsafe fn forbid_hooks(s: *mut State) {
    // SAFETY: the caller's contract.
    unsafe { *(*s).cord.body.proven.hookmask |= jit::HOOK_ACTIVE };
}

/// The end of [`forbid_hooks`].
///
/// # Safety
/// As for that.
pub(super) unsafe fn allow_hooks(s: *mut State) {
    // SAFETY: the caller's contract.
    unsafe { *(*s).cord.body.proven.hookmask &= !jit::HOOK_ACTIVE };
}

/// Pushes the carrier, which waits to be used, if transfers were proven: a thread that is resumed in place of a fiber that
/// is to raise.
///
/// # Safety
/// The state `s` is complete, `l` runs and has free slots. A memory error is raised.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn push_carrier(l: *mut lua_State, s: *mut State) {
    const BODY: &std::ffi::CStr = c"
        local carry = ...
        local carrier = coroutine.create(function()
            while true do
                carry()
            end
        end)
        coroutine.resume(carrier)
        return carrier
    ";
    // SAFETY: the caller's contract.
    unsafe {
        if luaL_loadbuffer(l, BODY.as_ptr(), BODY.count_bytes(), c"=[cord]".as_ptr()) != 0 {
            lua_error(l);
        }
        lua_getfield_(l, LUA_REGISTRYINDEX, state::STATE_KEY);
        lua_pushcclosure(l, carry, 1);
        forbid_hooks(s);
        let status = lua_pcall(l, 1, 1, 0);
        allow_hooks(s);
        if status != 0 {
            lua_error(l);
        }
    }
}

/// Nothing to try on this processor.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn prove(_l: *mut lua_State) -> bool {
    false
}

/// Never called: nothing was proven.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn push_carrier(l: *mut lua_State, _s: *mut State) {
    // SAFETY: the caller has a free slot.
    unsafe { lua_pushnil(l) };
}
