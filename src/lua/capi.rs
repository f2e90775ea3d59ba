//! The C face: `include/cord.h`, which documents every function here, and its FFI namespace `cord.ffi`.
//!
//! Three things differ from the raw functions of Lua. The caller's `lua_State` is not known, so the scheduler is that of
//! the OS thread. A trace may be live: compiled code may run further out (then nothing may be switched, since live values
//! sit in registers the collector cannot see), or a recording (then it is ended first, or the wait is refused). And
//! every wait keeps the stack it stands on.
//!
//! Waiting functions return a plain `int`: LuaJIT converts such a result without allocating. A boxed one would be
//! allocated through `cts->L`, which after a switch is another fiber's thread.

use super::body::{Anchor, LuaBody, LuaCord, LuaFiber, NativeEntry, Rare};
use super::jit::{HOOK_GC, HOOK_VMEVENT, MARK};
use super::state::{self, State};
use super::trace::{aborts, before_call, before_wait, settle};
use crate::fiber::Refused;
use crate::fiber::clock;
use crate::fiber::cord::{Cord, Wake};
use crate::fiber::fiber::{Wait, attention, flag};
use crate::fiber::wait::WaitList;
use crate::sys::luajit::Entry;
use crate::sys::poll::{READ, WRITE};
use crate::sys::stack;
use mlua::ffi::*;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

/// The codes of `include/cord.h`.
mod code {
    use std::ffi::c_int;
    pub(super) const OK: c_int = 0;
    pub(super) const CANCELLED: c_int = -1;
    pub(super) const TIMED_OUT: c_int = -2;
    pub(super) const INTERRUPTED: c_int = -3;
    pub(super) const DEADLOCK: c_int = -4;
    pub(super) const COMPILED: c_int = -10;
    pub(super) const RECORDING: c_int = -11;
    pub(super) const FINALIZER: c_int = -12;
    pub(super) const VM_EVENT: c_int = -13;
    pub(super) const UNPROVEN: c_int = -14;
    pub(super) const SCHEDULER: c_int = -15;
    pub(super) const CALLBACK: c_int = -16;
    pub(super) const NO_STACK: c_int = -17;
    pub(super) const DEAD: c_int = -20;
    pub(super) const NOT_JOINABLE: c_int = -21;
    pub(super) const ARGUMENT: c_int = -22;
    pub(super) const SYSTEM: c_int = -23;
    pub(super) const LUA: c_int = -24;
}

/// Texts of the codes.
const TEXTS: &[(c_int, &CStr)] = &[
    (code::OK, c"no error"),
    (code::CANCELLED, c"fiber is cancelled"),
    (code::TIMED_OUT, c"timed out"),
    (code::INTERRUPTED, c"interrupted!"),
    (code::DEADLOCK, c"deadlock: the main fiber waits and nothing can ever wake anyone"),
    (code::COMPILED, c"cannot wait underneath a compiled trace: switch the JIT compiler off for the calling function"),
    (code::RECORDING, c"cannot wait while a trace is recorded: the trace-abort mode does not end recordings"),
    (code::FINALIZER, c"cannot yield inside a finalizer (__gc metamethod)"),
    (code::VM_EVENT, c"cannot yield inside a jit.attach handler or profiler callback"),
    (
        code::UNPROVEN,
        c"cannot wait: the state of the JIT compiler is not known (require 'cord.ffi' or cord_attach() find it out, \
          where it can be)",
    ),
    (code::SCHEDULER, c"no scheduler: this OS thread has no Lua state with cord in it, or several"),
    (code::CALLBACK, c"cannot yield inside a callback of the scheduler"),
    (code::NO_STACK, c"no C stack for the next fiber"),
    (code::DEAD, c"the fiber is dead"),
    (code::NOT_JOINABLE, c"the fiber is not joinable"),
    (code::ARGUMENT, c"bad argument"),
    (code::SYSTEM, c"a system call failed"),
    (code::LUA, c"a Lua error"),
];

fn text_of(code: c_int) -> &'static CStr {
    TEXTS.iter().find(|(known, _)| *known == code).map_or(c"unknown error", |(_, text)| text)
}

// ---- errors ----

/// The last failure: its text is made when somebody asks.
enum LastError {
    None,
    Code(c_int),
    Text(CString),
}

thread_local! {
    static LAST: RefCell<LastError> = const { RefCell::new(LastError::None) };
    static NAME: RefCell<CString> = RefCell::new(CString::default());
    /// What the registry below said: generation, state, code if there is none.
    static CACHE: Cell<(usize, *mut State, c_int)> = const { Cell::new((0, std::ptr::null_mut(), code::SCHEDULER)) };
    /// A wait was called here before any state was opened: compiled code that calls one may exist.
    static EARLY: Cell<bool> = const { Cell::new(false) };
}

#[inline(never)]
fn failed(code: c_int) -> c_int {
    LAST.with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = LastError::Code(code);
        }
    });
    code
}

fn failed_with(code: c_int, text: &[u8]) -> c_int {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    LAST.with(|last| {
        if let (Ok(mut last), Ok(text)) = (last.try_borrow_mut(), CString::new(text)) {
            *last = LastError::Text(text);
        }
    });
    code
}

/// `cord_last_error`
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cord_last_error() -> *const c_char {
    LAST.with(|last| match last.try_borrow().as_deref() {
        Ok(LastError::Code(code)) => text_of(*code).as_ptr(),
        Ok(LastError::Text(text)) => text.as_ptr(),
        _ => c"".as_ptr(),
    })
}

/// `cord_strerror`
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cord_strerror(code: c_int) -> *const c_char {
    text_of(code).as_ptr()
}

// ---- which scheduler ----

static STATES: Mutex<Vec<(ThreadId, usize)>> = Mutex::new(Vec::new());
static GENERATION: AtomicUsize = AtomicUsize::new(1);

/// A Lua state opened the library on this OS thread.
pub(crate) fn opened(s: *mut State) {
    // SAFETY: just made.
    unsafe { (*s).cord.body.stranger = EARLY.get() };
    if let Ok(mut states) = STATES.lock() {
        states.push((std::thread::current().id(), s as usize));
    }
    GENERATION.fetch_add(1, Ordering::Release);
}

/// A Lua state is closed.
pub(crate) fn closed(s: *mut State) {
    if let Ok(mut states) = STATES.lock() {
        states.retain(|(_, state)| *state != s as usize);
    }
    GENERATION.fetch_add(1, Ordering::Release);
}

#[cold]
#[inline(never)]
fn look_up(generation: usize) -> (usize, *mut State, c_int) {
    let me = std::thread::current().id();
    let mut found = (generation, std::ptr::null_mut(), code::SCHEDULER);
    if let Ok(states) = STATES.lock() {
        let mut mine = states.iter().filter(|(thread, _)| *thread == me);
        if let (Some((_, state)), None) = (mine.next(), mine.next()) {
            found = (generation, *state as *mut State, code::OK);
        }
    }
    CACHE.set(found);
    found
}

/// The state of this OS thread, if there is exactly one.
#[inline(always)]
fn scheduler() -> Result<*mut State, c_int> {
    let generation = GENERATION.load(Ordering::Acquire);
    let mut cached = CACHE.get();
    if cached.0 != generation {
        cached = look_up(generation);
    }
    if cached.2 == code::OK { Ok(cached.1) } else { Err(cached.2) }
}

/// The same, with a running fiber.
#[inline(always)]
fn running() -> Result<(*mut State, LuaFiber), c_int> {
    let s = scheduler()?;
    // SAFETY: the registry holds live states only.
    let (f, nobody) = unsafe { ((*s).cord.current, (*s).cord.nobody) };
    if f == nobody { Err(code::CALLBACK) } else { Ok((s, f)) }
}

fn find(fiber: u64) -> Result<(*mut State, LuaFiber), c_int> {
    let s = scheduler()?;
    // SAFETY: as for `running`.
    let f = unsafe { (*s).cord.find(fiber) };
    if f.is_null() { Err(code::DEAD) } else { Ok((s, f)) }
}

macro_rules! attempt {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(code) => return failed(code),
        }
    };
    ($result:expr, $otherwise:expr) => {
        match $result {
            Ok(value) => value,
            Err(code) => {
                failed(code);
                return $otherwise;
            }
        }
    };
}

// ---- waiting ----

#[cold]
#[inline(never)]
fn refused(why: Refused) -> c_int {
    let code = match why {
        Refused::Finalizer => code::FINALIZER,
        Refused::VmEvent => code::VM_EVENT,
        Refused::OtherScheduler | Refused::OtherThread => code::SCHEDULER,
        Refused::Callback => code::CALLBACK,
        Refused::NoStack(_) => code::NO_STACK,
    };
    failed_with(code, why.to_string().as_bytes())
}

/// Without the words of calibration: whether compiled code that calls a wait cannot exist, because the compiler is off
/// and was off whenever one was called.
#[cold]
#[inline(never)]
unsafe fn compiler_off(s: *mut State) -> bool {
    // SAFETY: the state is live.
    unsafe {
        let body = &raw mut (*s).cord.body;
        (*body).stranger |= !(*body).words.engine_off();
        !(*body).stranger
    }
}

/// A wait was refused before its state was known: any of this thread's may have called it.
#[cold]
#[inline(never)]
fn somebody_called() {
    let me = std::thread::current().id();
    let Ok(states) = STATES.lock() else { return };
    let mut any = false;
    for (_, state) in states.iter().filter(|(thread, _)| *thread == me) {
        any = true;
        // SAFETY: the registry holds live states only, and this one is of this OS thread.
        unsafe { compiler_off(*state as *mut State) };
    }
    if !any {
        EARLY.set(true);
    }
}

/// Decides whether the caller may wait. Changes nothing, runs no Lua.
#[inline(always)]
unsafe fn check() -> Result<(*mut State, LuaFiber), c_int> {
    let (s, f) = match running() {
        Ok(found) => found,
        Err(code) => {
            somebody_called();
            return Err(failed(code));
        }
    };
    // SAFETY: the state is live and of this OS thread; the hook mask was proven, or is null.
    unsafe {
        let body = &raw mut (*s).cord.body;
        if (*body).words.known() {
            if (*body).words.compiled() {
                return Err(failed(code::COMPILED));
            }
        } else if !compiler_off(s) {
            return Err(failed(code::UNPROVEN));
        }
        let mask = (*body).proven.hookmask;
        if mask.is_null() {
            return Err(failed(code::UNPROVEN));
        }
        match *mask & (HOOK_GC | HOOK_VMEVENT) {
            0 => {}
            bits if bits & HOOK_GC != 0 => return Err(failed(code::FINALIZER)),
            _ => return Err(failed(code::VM_EVENT)),
        }
        Cord::may_keep_stack(&raw mut (*s).cord).map_err(refused)?;
        if (*body).words.known() && (*body).words.recording() && !aborts(s, f) {
            return Err(failed(code::RECORDING));
        }
    }
    Ok((s, f))
}

/// The start of a wait: refuses, or ends a live recording.
#[inline(always)]
unsafe fn begin() -> Result<(*mut State, LuaFiber), c_int> {
    // SAFETY: the scratch thread is live and not suspended; the checks exclude what could raise.
    unsafe {
        let found = check()?;
        before_wait(found.0, (*found.0).scratch);
        Ok(found)
    }
}

/// The running fiber, which is queued or will be woken, waits.
#[inline(always)]
unsafe fn wait(s: *mut State, f: LuaFiber) -> Wake {
    // SAFETY: `check` said yes; no reference into the state is held.
    unsafe {
        (*f).data.waiter = std::ptr::null_mut();
        Cord::switch(&raw mut (*s).cord);
        (*f).data.nargs = 0;
        (*s).cord.take_wake(f)
    }
}

fn code_of(wake: Wake) -> c_int {
    if wake.interrupted {
        failed(code::INTERRUPTED)
    } else if wake.deadlock {
        failed(code::DEADLOCK)
    } else if wake.cancelled {
        failed(code::CANCELLED)
    } else if wake.timed_out {
        failed(code::TIMED_OUT)
    } else {
        code::OK
    }
}

/// For waits that are no cancellation points.
fn code_of_yield(wake: Wake) -> c_int {
    code_of(Wake { cancelled: false, timed_out: false, ..wake })
}

#[inline(always)]
unsafe fn yield_now() -> Result<Wake, c_int> {
    // SAFETY: as for `wait`.
    unsafe {
        let (s, f) = begin()?;
        let cord = &raw mut (*s).cord;
        (*f).wait = Wait::Yield;
        if f == (*cord).main && (*cord).ready.is_empty() {
            Cord::glance(cord);
            if (*cord).ready.is_empty() {
                return Ok((*cord).take_wake(f));
            }
        }
        (*cord).enqueue(f);
        Ok(wait(s, f))
    }
}

/// `cord_fiber_yield`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_yield() -> c_int {
    // SAFETY: forwarded to the caller.
    unsafe { yield_now() }.map_or_else(|code| code, code_of_yield)
}

/// `cord_fiber_reschedule`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_reschedule() -> c_int {
    // SAFETY: forwarded to the caller.
    unsafe { yield_now() }.map_or_else(|code| code, code_of_yield)
}

/// `cord_fiber_sleep`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_sleep(seconds: f64) -> c_int {
    if seconds.is_nan() {
        return failed(code::ARGUMENT);
    }
    // SAFETY: forwarded to the caller.
    unsafe {
        if seconds <= 0.0 {
            return yield_now().map_or_else(|code| code, code_of);
        }
        let (s, f) = match begin() {
            Ok(found) => found,
            Err(code) => return code,
        };
        (*f).wait = Wait::Sleep;
        arm(s, seconds);
        let wake = wait(s, f);
        code_of(Wake { timed_out: false, ..wake })
    }
}

/// `cord_fiber_suspend`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_suspend() -> c_int {
    // SAFETY: forwarded to the caller.
    unsafe {
        let (s, f) = match begin() {
            Ok(found) => found,
            Err(code) => return code,
        };
        (*f).wait = Wait::Suspend;
        code_of(wait(s, f))
    }
}

/// Arms the running fiber's timer, unless `seconds` is below 0 or too far.
unsafe fn arm(s: *mut State, seconds: f64) {
    if seconds >= 0.0
        && let Some(deadline) = clock::deadline(seconds)
    {
        // SAFETY: the state is live.
        unsafe { (*s).cord.arm_timer(deadline) };
    }
}

// ---- fibers ----

/// Options of `cord_fiber_new_ex`.
pub struct Attributes {
    stack: usize,
}

/// `cord_fiber_attr_new`
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cord_fiber_attr_new() -> *mut Attributes {
    Box::into_raw(Box::new(Attributes { stack: 0 }))
}

/// `cord_fiber_attr_delete`
///
/// # Safety
/// `attr` came from `cord_fiber_attr_new`, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_attr_delete(attr: *mut Attributes) {
    if !attr.is_null() {
        // SAFETY: the caller's contract.
        drop(unsafe { Box::from_raw(attr) });
    }
}

/// `cord_fiber_attr_setstacksize`
///
/// # Safety
/// As for `cord_fiber_attr_delete`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_attr_setstacksize(attr: *mut Attributes, bytes: usize) -> c_int {
    if attr.is_null() || bytes < stack::MIN_SIZE {
        return failed_with(code::ARGUMENT, b"stack size is too small: Invalid argument");
    }
    // SAFETY: the caller's contract.
    unsafe { (*attr).stack = bytes };
    code::OK
}

/// `cord_fiber_attr_getstacksize`
///
/// # Safety
/// As for `cord_fiber_attr_delete`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_attr_getstacksize(attr: *const Attributes) -> usize {
    // SAFETY: the caller's contract.
    let own = if attr.is_null() { 0 } else { unsafe { (*attr).stack } };
    if own > 0 {
        return own;
    }
    // SAFETY: the registry holds live states only.
    scheduler().map_or(stack::DEFAULT_SIZE, |s| unsafe { (*s).cord.stack_size })
}

/// Makes a native fiber. No Lua is touched, so this may run anywhere: the Lua thread of a reused record is put aside for
/// [`cord_lua_state`].
unsafe fn make(s: *mut State, name: *const c_char, entry: NativeEntry) -> LuaFiber {
    // SAFETY: the record is shown, then claimed; the name is a C string.
    unsafe {
        let f = (*s).cord.peek_record();
        let spare = std::mem::replace(&mut (*f).data.l, std::ptr::null_mut());
        *(*f).data.rare_mut() = Rare { entry: Some(entry), returned: 0, spare, context: std::ptr::null_mut() };
        (*f).data.native = true;
        (*f).data.argument = std::ptr::null_mut();
        (*f).data.status = 0;
        (*f).data.nargs = 0;
        (*s).cord.take_record(f);
        if !name.is_null() {
            let _ = Cord::set_name(f, CStr::from_ptr(name).to_bytes(), true);
        }
        f
    }
}

/// `cord_fiber_new`
///
/// # Safety
/// `name` is null or a C string; `entry` keeps the rules of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_new(name: *const c_char, entry: Option<NativeEntry>) -> u64 {
    // SAFETY: forwarded to the caller.
    unsafe { cord_fiber_new_ex(name, std::ptr::null(), entry) }
}

/// `cord_fiber_new_ex`
///
/// # Safety
/// As for `cord_fiber_new`; `attr` is null or from `cord_fiber_attr_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_new_ex(
    name: *const c_char,
    attr: *const Attributes,
    entry: Option<NativeEntry>,
) -> u64 {
    let s = attempt!(scheduler(), 0);
    let Some(entry) = entry else {
        failed(code::ARGUMENT);
        return 0;
    };
    // SAFETY: forwarded to the caller.
    unsafe {
        let bytes = if attr.is_null() { 0 } else { (*attr).stack };
        let f = make(s, name, entry);
        if bytes > 0
            && let Err(error) = Cord::own_stack(&raw mut (*s).cord, f, bytes)
        {
            Cord::release(&raw mut (*s).cord, f);
            failed_with(code::NO_STACK, error.to_string().as_bytes());
            return 0;
        }
        (*f).id
    }
}

/// `cord_fiber_start`
///
/// # Safety
/// `argument` is what the fiber's entry expects.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_start(fiber: u64, argument: *mut c_void) -> c_int {
    // SAFETY: forwarded to the caller. The switch is checked before anything is queued; in the trigger mode, whose
    // triggers belong to waits, a live recording is ended all the same.
    unsafe {
        let (_, f) = attempt!(find(fiber));
        if (*f).data.rare().entry.is_none() || (*f).is(flag::READY) {
            return failed_with(code::ARGUMENT, b"the fiber has been started already");
        }
        let (s, me) = match check() {
            Ok(found) => found,
            Err(code) => return code,
        };
        let body: *mut LuaBody = &raw mut (*s).cord.body;
        before_call(s, (*s).scratch);
        if (*body).words.known() && (*body).words.recording() {
            (*body).luajit.abort_recording((*s).scratch);
        }
        (*f).data.argument = argument;
        (*s).cord.enqueue_create(f);
        code_of_yield(wait(s, me))
    }
}

/// `cord_fiber_set_ctx`
///
/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_set_ctx(fiber: u64, context: *mut c_void) -> c_int {
    let (_, f) = attempt!(find(fiber));
    // SAFETY: a live record.
    unsafe { (*f).data.rare_mut().context = context };
    code::OK
}

/// `cord_fiber_get_ctx`
///
/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_get_ctx(fiber: u64) -> *mut c_void {
    let (_, f) = attempt!(find(fiber), std::ptr::null_mut());
    // SAFETY: a live record.
    unsafe { (*f).data.rare().context }
}

/// `cord_fiber_self`
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cord_fiber_self() -> u64 {
    let (_, f) = attempt!(running(), 0);
    // SAFETY: a live record.
    unsafe { (*f).id }
}

/// `cord_fiber_find`
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cord_fiber_find(id: u64) -> u64 {
    find(id).map_or(0, |_| id)
}

/// `cord_fiber_id`
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cord_fiber_id(fiber: u64) -> u64 {
    cord_fiber_find(fiber)
}

/// The fiber of that id, or the running one for 0.
fn find_or_self(fiber: u64) -> Result<(*mut State, LuaFiber), c_int> {
    if fiber == 0 { running() } else { find(fiber) }
}

/// `cord_fiber_name`
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cord_fiber_name(fiber: u64) -> *const c_char {
    let (_, f) = attempt!(find_or_self(fiber), c"".as_ptr());
    // SAFETY: a live record.
    let name = CString::new(unsafe { (&*f).name() }).unwrap_or_default();
    NAME.with(|kept| match kept.try_borrow_mut() {
        Ok(mut kept) => {
            *kept = name;
            kept.as_ptr()
        }
        Err(_) => c"".as_ptr(),
    })
}

/// `cord_fiber_set_name_n`
///
/// # Safety
/// `name` points at `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_set_name_n(fiber: u64, name: *const c_char, len: u32) -> c_int {
    let (_, f) = attempt!(find_or_self(fiber));
    if name.is_null() {
        return failed(code::ARGUMENT);
    }
    // SAFETY: the caller's contract; a live record.
    unsafe {
        let _ = Cord::set_name(f, std::slice::from_raw_parts(name.cast(), len as usize), true);
    }
    code::OK
}

/// `cord_fiber_csw`
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cord_fiber_csw(fiber: u64) -> u64 {
    let (_, f) = attempt!(find_or_self(fiber), 0);
    // SAFETY: a live record.
    unsafe { (*f).csw }
}

/// `cord_fiber_wakeup`
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cord_fiber_wakeup(fiber: u64) -> c_int {
    let (s, f) = attempt!(find(fiber));
    // SAFETY: a live record.
    unsafe { (*s).cord.wakeup(f) };
    code::OK
}

/// `cord_fiber_cancel`
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cord_fiber_cancel(fiber: u64) -> c_int {
    let (s, f) = attempt!(find(fiber));
    // SAFETY: a live record.
    unsafe {
        if !(*f).is(flag::SYSTEM) {
            (*s).cord.cancel(f);
        }
    }
    code::OK
}

/// `cord_fiber_is_cancelled`
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cord_fiber_is_cancelled() -> bool {
    // SAFETY: a live record.
    running().is_ok_and(|(_, f)| unsafe { (*f).attention & attention::CANCELLED != 0 })
}

// ---- joining ----

/// `cord_fiber_set_joinable`
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cord_fiber_set_joinable(fiber: u64, yesno: bool) -> c_int {
    let (s, f) = attempt!(find(fiber));
    // SAFETY: a live record. Nobody wants the result of a finished one any more: it goes.
    unsafe {
        if yesno {
            (*f).flags |= flag::JOINABLE;
        } else if (*f).is(flag::DEAD) {
            if (*f).joiners.is_empty() {
                Cord::release(&raw mut (*s).cord, f);
            }
        } else {
            (*f).flags &= !flag::JOINABLE;
        }
    }
    code::OK
}

/// `cord_fiber_join`
///
/// # Safety
/// `result` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_join(fiber: u64, result: *mut c_int) -> c_int {
    // SAFETY: forwarded to the caller.
    unsafe { cord_fiber_join_timeout(fiber, -1.0, result) }
}

/// `cord_fiber_join_timeout`
///
/// # Safety
/// As for `cord_fiber_join`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_join_timeout(fiber: u64, seconds: f64, result: *mut c_int) -> c_int {
    if seconds.is_nan() {
        return failed(code::ARGUMENT);
    }
    let deadline = if seconds < 0.0 { None } else { clock::deadline(seconds) };
    // SAFETY: forwarded to the caller. After each wait the fiber is looked up anew.
    unsafe {
        let (s, me) = match begin() {
            Ok(found) => found,
            Err(code) => return code,
        };
        loop {
            let (_, f) = attempt!(find(fiber));
            if !(*f).is(flag::JOINABLE) {
                return failed(code::NOT_JOINABLE);
            }
            if f == me {
                return failed_with(code::ARGUMENT, b"cannot join itself");
            }
            if (*f).is(flag::DEAD) {
                let value = take_result(s, f);
                if !result.is_null() {
                    *result = value;
                }
                return code::OK;
            }
            (*me).wait = Wait::Join;
            WaitList::link(&raw mut (*f).joiners, me, false);
            if let Some(deadline) = deadline {
                (*s).cord.arm_timer(deadline);
            }
            let wake = wait(s, me);
            if wake.interrupted || wake.deadlock || wake.timed_out {
                return code_of(Wake { cancelled: false, ..wake });
            }
        }
    }
}

/// What a finished fiber returned; gives its record back.
unsafe fn take_result(s: *mut State, f: LuaFiber) -> c_int {
    // SAFETY: the caller found a finished joinable fiber and may call Lua.
    unsafe {
        let mut value = (*f).data.rare().returned;
        if (*f).data.results < 0 {
            value = -1;
            let mut job = f;
            if !State::protected(s, error_text, (&raw mut job).cast()) {
                failed(code::LUA);
            }
        }
        Cord::release(&raw mut (*s).cord, f);
        value
    }
}

/// Makes the text of the error a Lua fiber ended in the last error.
unsafe fn error_text(sl: *mut lua_State, s: *mut State, argument: *mut c_void) {
    // SAFETY: a protected job on the scratch thread; the fiber has kept results.
    unsafe {
        let f = *argument.cast::<LuaFiber>();
        (*s).push_anchor(sl, f, Anchor::Results);
        lua_rawgeti_(sl, -1, 1);
        keep_text(sl);
    }
}

/// Makes the text of the value on the top the last error. May raise.
unsafe fn keep_text(l: *mut lua_State) {
    // SAFETY: the caller's contract; the string's bytes live while it is on the stack.
    unsafe {
        if lua_type(l, -1) != LUA_TSTRING {
            lua_getfield_(l, LUA_GLOBALSINDEX, c"tostring".as_ptr());
            lua_pushvalue(l, -2);
            lua_call(l, 1, 1);
        }
        let mut len = 0;
        let at = lua_tolstring(l, -1, &raw mut len);
        if at.is_null() {
            failed(code::LUA);
        } else {
            failed_with(code::LUA, std::slice::from_raw_parts(at.cast(), len));
        }
    }
}

// ---- condition variables ----

/// A condition variable of C code.
pub struct Cond {
    waiting: WaitList<LuaBody>,
}

/// `cord_fiber_cond_new`
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cord_fiber_cond_new() -> *mut Cond {
    Box::into_raw(Box::new(Cond { waiting: WaitList::new() }))
}

/// `cord_fiber_cond_delete`
///
/// # Safety
/// `cond` came from `cord_fiber_cond_new`, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_cond_delete(cond: *mut Cond) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        if cond.is_null() {
            return code::OK;
        }
        if !(*cond).waiting.is_empty() {
            return failed_with(code::ARGUMENT, b"fibers wait for the cond");
        }
        drop(Box::from_raw(cond));
    }
    code::OK
}

/// `cord_fiber_cond_signal`
///
/// # Safety
/// `cond` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_cond_signal(cond: *mut Cond) -> c_int {
    let s = attempt!(scheduler());
    if cond.is_null() {
        return failed(code::ARGUMENT);
    }
    // SAFETY: the caller's contract; linked fibers are live.
    unsafe {
        let f = (*cond).waiting.first();
        if !f.is_null() {
            (*s).cord.signal(f);
        }
    }
    code::OK
}

/// `cord_fiber_cond_broadcast`
///
/// # Safety
/// `cond` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_cond_broadcast(cond: *mut Cond) -> c_int {
    let s = attempt!(scheduler());
    if cond.is_null() {
        return failed(code::ARGUMENT);
    }
    // SAFETY: the caller's contract; `signal` unlinks, so the list gets shorter.
    unsafe {
        loop {
            let f = (*cond).waiting.first();
            if f.is_null() {
                return code::OK;
            }
            (*s).cord.signal(f);
        }
    }
}

/// `cord_fiber_cond_wait`
///
/// # Safety
/// `cond` is live, and stays so while fibers wait for it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_cond_wait(cond: *mut Cond) -> c_int {
    // SAFETY: forwarded to the caller.
    unsafe { cord_fiber_cond_wait_timeout(cond, -1.0) }
}

/// `cord_fiber_cond_wait_timeout`
///
/// # Safety
/// As for `cord_fiber_cond_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_fiber_cond_wait_timeout(cond: *mut Cond, seconds: f64) -> c_int {
    if cond.is_null() || seconds.is_nan() {
        return failed(code::ARGUMENT);
    }
    // SAFETY: forwarded to the caller.
    unsafe {
        let (s, f) = match begin() {
            Ok(found) => found,
            Err(code) => return code,
        };
        (*f).wait = Wait::Cond;
        WaitList::link(&raw mut (*cond).waiting, f, false);
        arm(s, seconds);
        code_of(wait(s, f))
    }
}

// ---- descriptors ----

/// `cord_coio_wait`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_coio_wait(fd: c_int, events: c_int, seconds: f64) -> c_int {
    let wanted = (events & c_int::from(READ | WRITE)) as u8;
    if wanted == 0 || seconds.is_nan() {
        return failed(code::ARGUMENT);
    }
    // SAFETY: forwarded to the caller.
    unsafe {
        let (s, f) = match begin() {
            Ok(found) => found,
            Err(code) => return code,
        };
        if (*f).attention & attention::CANCELLED != 0 {
            return 0;
        }
        if let Err(error) = (*s).cord.begin_io(fd, wanted) {
            return system_error(&error);
        }
        arm(s, seconds);
        let wake = wait(s, f);
        match code_of(Wake { cancelled: false, timed_out: false, ..wake }) {
            code::OK if wake.signalled => c_int::from((*f).events),
            code => code,
        }
    }
}

fn system_error(error: &std::io::Error) -> c_int {
    let number = error.raw_os_error().unwrap_or(0);
    let code = failed_with(code::SYSTEM, error.to_string().as_bytes());
    errno::set(number);
    code
}

mod errno {
    use std::ffi::c_int;

    pub(super) fn set(number: c_int) {
        #[cfg(target_os = "linux")]
        // SAFETY: the address of this thread's errno.
        unsafe {
            *libc::__errno_location() = number;
        }
        #[cfg(not(target_os = "linux"))]
        // SAFETY: as above.
        unsafe {
            *libc::__error() = number;
        }
    }
}

/// `cord_coio_close`
///
/// # Safety
/// The descriptor is the caller's to close.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_coio_close(fd: c_int) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        if let Ok(s) = scheduler() {
            LuaCord::closing(&raw mut (*s).cord, fd);
        }
        if libc::close(fd) == 0 { code::OK } else { system_error(&std::io::Error::last_os_error()) }
    }
}

// ---- time ----

fn seconds_of(nanoseconds: u64) -> f64 {
    #[allow(clippy::cast_precision_loss)] // better than a microsecond for both clocks
    let seconds = nanoseconds as f64 * 1e-9;
    seconds
}

fn clock_of(which: impl Fn(&clock::Clock) -> u64) -> u64 {
    // SAFETY: the registry holds live states only.
    scheduler().map_or_else(failed_u64, |s| which(unsafe { &(*s).cord.clock }))
}

fn failed_u64(code: c_int) -> u64 {
    failed(code);
    0
}

/// `cord_fiber_time`
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cord_fiber_time() -> f64 {
    seconds_of(clock_of(|clock| clock.wall))
}

/// `cord_fiber_time64`
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cord_fiber_time64() -> u64 {
    clock_of(|clock| clock.wall) / 1000
}

/// `cord_fiber_clock`
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cord_fiber_clock() -> f64 {
    seconds_of(clock_of(|clock| clock.monotonic))
}

/// `cord_fiber_clock64`
#[unsafe(no_mangle)]
pub extern "C-unwind" fn cord_fiber_clock64() -> u64 {
    clock_of(|clock| clock.monotonic) / 1000
}

// ---- Lua ----

/// `cord_attach`
///
/// # Safety
/// `l` is live, and Lua called the caller as a C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_attach(l: *mut lua_State) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        state::open(l, "cord.fiber");
        lua_settop(l, -2);
        let s = state::find(l);
        settle(s);
        if (*s).cord.body.words.known() { code::OK } else { failed(code::UNPROVEN) }
    }
}

/// Whether Lua may be called now, as far as is known.
unsafe fn may_call_lua(s: *mut State) -> Result<(), c_int> {
    // SAFETY: a live state of this OS thread.
    unsafe {
        let words = (*s).cord.body.words;
        if words.known() && words.compiled() { Err(code::COMPILED) } else { Ok(()) }
    }
}

unsafe fn thread_job(sl: *mut lua_State, s: *mut State, argument: *mut c_void) {
    // SAFETY: a protected job on the scratch thread.
    unsafe {
        let f = argument.cast();
        (*s).reserve_anchors(sl, f);
        let thread = lua_newthread(sl);
        (*s).keep_anchor(sl, f, Anchor::Thread);
        (*f).data.rare_mut().spare = thread;
        (*s).cord.body.mark(thread, MARK);
    }
}

/// `cord_lua_state`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_lua_state() -> *mut lua_State {
    let nothing = std::ptr::null_mut();
    let (s, f) = attempt!(running(), nothing);
    // SAFETY: a live record; the mark comes off the thread for as long as the fiber uses it.
    unsafe {
        if !(*f).data.native {
            failed_with(code::ARGUMENT, b"only a fiber made by cord_fiber_new has a Lua thread of its own");
            return nothing;
        }
        if (*f).data.rare().spare.is_null() {
            attempt!(may_call_lua(s), nothing);
            if !State::protected(s, thread_job, f.cast()) {
                failed(code::LUA);
                return nothing;
            }
        }
        let spare = (*f).data.rare().spare;
        (*s).cord.body.mark(spare, 0);
        spare
    }
}

/// `cord_lua_pcall`
///
/// # Safety
/// As for `lua_pcall`; `l` is a thread of this OS thread's state that may run.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cord_lua_pcall(l: *mut lua_State, nargs: c_int, nresults: c_int) -> c_int {
    unsafe extern "C-unwind" fn text(l: *mut lua_State) -> c_int {
        // SAFETY: called below with the error value.
        unsafe { keep_text(l) };
        0
    }
    let (s, _) = attempt!(running());
    // SAFETY: the caller's contract.
    unsafe {
        attempt!(may_call_lua(s));
        if lua_pcall(l, nargs, nresults, 0) == 0 {
            return code::OK;
        }
        failed(code::LUA);
        if lua_checkstack(l, 4) != 0 {
            lua_pushcclosure(l, text, 0);
            lua_pushvalue(l, -2);
            if lua_pcall(l, 1, 0, 0) != 0 {
                lua_settop(l, -2);
            }
        }
        code::LUA
    }
}

// ---- cord.ffi ----

/// The declarations FFI understands: what stands between the marks of the header.
fn declarations() -> &'static str {
    const HEADER: &str = include_str!("../../include/cord.h");
    HEADER
        .split_once("/* --- declarations --- */")
        .and_then(|(_, rest)| rest.split_once("/* --- end of declarations --- */"))
        .map_or("", |(text, _)| text)
}

/// The path the dynamic loader knows this library by.
fn path() -> Option<CString> {
    // SAFETY: the address of a function of this library; the strings dladdr gives are copied.
    unsafe {
        let mut info = std::mem::zeroed::<libc::Dl_info>();
        let found = libc::dladdr(cord_fiber_yield as *const c_void, &raw mut info) != 0;
        (found && !info.dli_fname.is_null()).then(|| CStr::from_ptr(info.dli_fname).to_owned())
    }
}

/// Pushes the native half of `cord.ffi`: the declarations and the library's path.
///
/// # Safety
/// A live state with free slots, in which the library was opened.
pub(crate) unsafe fn native(l: *mut lua_State) {
    const FUNCTIONS: &[Entry] = &[];
    // SAFETY: the caller's contract. A memory error would leak the path, which is all it does.
    unsafe {
        lua_createtable(l, 0, 2);
        state::register(l, FUNCTIONS);
        state::push_str(l, declarations());
        lua_setfield(l, -2, c"declarations".as_ptr());
        if let Some(path) = path() {
            // Lua loaded the library for itself alone: now modules loaded later see its functions too.
            libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_GLOBAL);
            lua_pushstring_(l, path.as_ptr());
            lua_setfield(l, -2, c"path".as_ptr());
        }
    }
}
