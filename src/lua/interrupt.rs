//! Ctrl-C belongs to the main fiber.
//!
//! The luajit program's signal handler sets a hook that raises "interrupted!" at the next instruction of whatever Lua code
//! runs then: with fibers, any of them, whose pcall may swallow it. So its handler is wrapped: it does what it does, and
//! then its hook is replaced by ours.
//!
//! ```text
//!   signal --> the program's handler --> its hook --> ours: fires in the main fiber: raises there
//!                                                    '----> fires in another one: the main fiber's wait is interrupted,
//!                                                           and this one goes on; should it keep the processor for GRACE
//!                                                           instructions more, it is raised there, too; and should that
//!                                                           be caught, the fiber is made to yield
//! ```
//!
//! A program that has no handler of its own when `cord.fiber` is loaded keeps its default: it ends.

use super::state::State;
use crate::fiber::fiber::{Wait, attention};
use mlua::ffi::*;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// What the program's hook is set for.
const MASK: c_int = LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT;
/// Instructions a fiber that was hit may run before it has to make way.
const GRACE: c_int = 1_000_000;

/// Whose main fiber is interrupted: the first state's that loaded `cord.fiber`.
static STATE: AtomicPtr<State> = AtomicPtr::new(std::ptr::null_mut());
/// The wrapped handler, and whether it takes three arguments.
static BEFORE: AtomicUsize = AtomicUsize::new(0);
static BEFORE_TAKES_INFO: AtomicBool = AtomicBool::new(false);

/// Wraps the program's handler of SIGINT, if it has one.
///
/// # Safety
/// `s` is live, and [`uninstall`] is called before it goes away.
pub(crate) unsafe fn install(s: *mut State) {
    if STATE.compare_exchange(std::ptr::null_mut(), s, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return;
    }
    // SAFETY: both structures are whole; our handler has the three-argument form that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGINT, std::ptr::null(), &raw mut action) != 0
            || action.sa_sigaction == libc::SIG_DFL
            || action.sa_sigaction == libc::SIG_IGN
            || action.sa_sigaction == handler()
        {
            return;
        }
        BEFORE.store(action.sa_sigaction, Ordering::Release);
        BEFORE_TAKES_INFO.store(action.sa_flags & libc::SA_SIGINFO != 0, Ordering::Release);
        action.sa_sigaction = handler();
        action.sa_flags |= libc::SA_SIGINFO;
        libc::sigaction(libc::SIGINT, &raw const action, std::ptr::null_mut());
    }
}

/// Puts the program's handler back, unless somebody has set another one meanwhile.
///
/// # Safety
/// As for [`install`].
pub(crate) unsafe fn uninstall(s: *mut State) {
    if STATE.compare_exchange(s, std::ptr::null_mut(), Ordering::AcqRel, Ordering::Acquire).is_err() {
        return;
    }
    // SAFETY: as for `install`.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGINT, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == handler() {
            action.sa_sigaction = BEFORE.load(Ordering::Acquire);
            if !BEFORE_TAKES_INFO.load(Ordering::Acquire) {
                action.sa_flags &= !libc::SA_SIGINFO;
            }
            libc::sigaction(libc::SIGINT, &raw const action, std::ptr::null_mut());
        }
    }
}

fn handler() -> libc::sighandler_t {
    on_signal as *const () as libc::sighandler_t
}

/// The handler. Does nothing that the program's own does not do: it reads and sets a hook.
unsafe extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the wrapped handler is called with the arguments it was registered for. The state is live while STATE
    // points to it; `lua_sethook` is made for signal handlers.
    unsafe {
        let before = BEFORE.load(Ordering::Acquire);
        if before != 0 && BEFORE_TAKES_INFO.load(Ordering::Acquire) {
            let before: unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = std::mem::transmute(before);
            before(signal, info, context);
        } else if before != 0 {
            let before: unsafe extern "C" fn(c_int) = std::mem::transmute(before);
            before(signal);
        }
        let s = STATE.load(Ordering::Acquire);
        if !s.is_null() && is_stop_hook((*s).scratch) {
            lua_sethook((*s).scratch, Some(stop), MASK, 1);
        }
    }
}

/// Whether a hook like the program's is set: at every call, return and instruction.
unsafe fn is_stop_hook(l: *mut lua_State) -> bool {
    // SAFETY: reads the hook.
    unsafe { lua_gethook(l).is_some() && lua_gethookmask(l) & MASK == MASK && lua_gethookcount(l) == 1 }
}

/// Whether our hook is set and has not fired yet.
unsafe fn is_ours(l: *mut lua_State) -> bool {
    // SAFETY: reads the hook.
    unsafe { is_stop_hook(l) && lua_gethook(l).is_some_and(|hook| std::ptr::fn_addr_eq(hook, stop as lua_Hook)) }
}

/// Whether a signal has come that the main fiber must be told of; after that it is on its way to it. `surely`: a signal
/// has just ended a system call, so that another hook of that kind is the program's, not a debugger's.
///
/// # Safety
/// `s` is live; the scheduler runs.
pub(crate) unsafe fn take(s: *mut State, surely: bool) -> bool {
    // SAFETY: the caller's contract.
    unsafe {
        let l = (*s).scratch;
        if is_ours(l) {
            lua_sethook(l, None, 0, 0);
            return true;
        }
        surely && is_stop_hook(l)
    }
}

/// The hook. Fires at once after a signal; then, in a fiber that is not the main one, after GRACE instructions more, to
/// raise; and if that was caught and the main fiber still has not had its turn, once more, to make it yield.
unsafe extern "C-unwind" fn stop(l: *mut lua_State, _: *mut lua_Debug) {
    // SAFETY: called by LuaJIT with the running thread, while the state is live or gone for good.
    unsafe {
        let s = STATE.load(Ordering::Acquire);
        let (at_once, raised) = (lua_gethookmask(l) & LUA_MASKCALL != 0, lua_gethookcount(l) > GRACE);
        lua_sethook(l, None, 0, 0);
        if s.is_null() {
            luaL_error(l, c"interrupted!".as_ptr());
            return;
        }
        let cord = &raw mut (*s).cord;
        let (current, main) = ((*cord).current, (*cord).main);
        let aside = current.is_null() || (*cord).body.protected > 0;
        if at_once && current == main && !aside {
            luaL_error(l, c"interrupted!".as_ptr());
        } else if at_once {
            (*main).attention |= attention::INTERRUPTED;
            (*cord).wakeup(main);
            (*cord).end_turn();
            lua_sethook(l, Some(stop), LUA_MASKCOUNT, GRACE);
        } else if (*main).attention & attention::INTERRUPTED == 0 {
            // The main fiber has been told.
        } else if aside {
            lua_sethook(l, Some(stop), LUA_MASKCOUNT, GRACE);
        } else if raised && l == (*current).data.l && (*cord).body.is_yieldable(l) {
            (*current).wait = Wait::None;
            (*cord).enqueue(current);
            (*current).data.announced = true;
            lua_yield(l, 0);
        } else {
            lua_sethook(l, Some(stop), LUA_MASKCOUNT, GRACE + 1);
            luaL_error(l, c"interrupted!".as_ptr());
        }
    }
}
