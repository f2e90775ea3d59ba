//! The raw functions behind `fiber.cond()`: a list of waiting fibers and nothing else. A cond does not remember signals.

use super::body::{LuaBody, LuaCord, LuaFiber};
use super::fiber::{arm_deadline, before_wait, fail_with, quick, quick_wait, wait, way};
use super::jit::first_userdata;
use super::state::{self, State};
use super::transfer::{self, Next, STAY, waiting};
use crate::fiber::fiber::{Wait, attention};
use crate::fiber::wait::WaitList;
use crate::sys::luajit::Entry;
use mlua::ffi::*;
use std::ffi::c_int;

/// The userdata a script holds. It does not move, so the list may live in it.
#[repr(C)]
pub struct Cond {
    kind: *const u8,
    state: *mut State,
    waiting: WaitList<LuaBody>,
}

/// Its address marks our conds among all userdata.
static COND: u8 = 0;

const FUNCTIONS: &[Entry] = &[
    (c"new", l_new),
    (c"is_cond", l_is_cond),
    (c"wait", l_wait),
    (c"wait_forever", waiting!(l_wait_forever, wait_at_once)),
    (c"signal", l_signal),
    (c"broadcast", l_broadcast),
    (c"destroy", l_destroy),
    (c"address", l_address),
];

/// Pushes the raw functions.
///
/// # Safety
/// A live state with free slots, in which the library was opened.
pub(crate) unsafe fn native(l: *mut lua_State) {
    // SAFETY: the caller's contract.
    unsafe {
        lua_createtable(l, 0, FUNCTIONS.len() as c_int);
        state::register(l, FUNCTIONS);
    }
}

/// The cond at `idx`, or null if it is something else.
#[inline(always)]
unsafe fn cond_at(l: *mut lua_State, idx: c_int) -> *mut Cond {
    // SAFETY: a userdata of our size may be read; only ours starts with our mark.
    unsafe {
        let cond: *mut Cond = lua_touserdata(l, idx).cast();
        // Of a light userdata the length is zero.
        if cond.is_null() || lua_objlen(l, idx) != size_of::<Cond>() {
            return std::ptr::null_mut();
        }
        if (*cond).kind == &raw const COND { cond } else { std::ptr::null_mut() }
    }
}

/// What the raw functions answer to something that is no cond; the Lua half names it.
#[cold]
unsafe fn not_a_cond(l: *mut lua_State) -> c_int {
    // SAFETY: every C function has free slots.
    unsafe { lua_pushstring_(l, c"cond expected".as_ptr()) };
    1
}

/// Wakes a fiber that waits on some list because somebody meant it.
///
/// # Safety
/// `f` is linked, so it is live and waits.
#[inline(always)]
pub(crate) unsafe fn wake(cord: *mut LuaCord, f: LuaFiber) {
    // SAFETY: the caller's contract. Only a deadline needs to be told that it lost.
    unsafe {
        if (*f).attention & (attention::TIMER | attention::TIMED_OUT) == 0 {
            WaitList::unlink(f);
            (*cord).wakeup(f);
        } else {
            (*cord).signal(f);
        }
    }
}

#[cold]
unsafe extern "C" fn wake_slow(cord: *mut LuaCord, f: LuaFiber) -> c_int {
    // SAFETY: as for `wake`.
    unsafe { wake(cord, f) };
    1
}

/// `new(metatable)`
unsafe extern "C-unwind" fn l_new(l: *mut lua_State) -> c_int {
    // SAFETY: called by cond.lua; the userdata is written before anything can read it.
    unsafe {
        let cond: *mut Cond = lua_newuserdata(l, size_of::<Cond>()).cast();
        cond.write(Cond { kind: &raw const COND, state: state::current(l), waiting: WaitList::new() });
        lua_pushvalue(l, 1);
        lua_setmetatable(l, -2);
    }
    1
}

unsafe extern "C-unwind" fn l_is_cond(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe { lua_pushboolean(l, c_int::from(!cond_at(l, 1).is_null())) };
    1
}

/// `wait(cond[, deadline])`: nil (woken by whatever), or a code. A cancelled fiber waits too.
unsafe extern "C-unwind" fn l_wait(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua. The Lua half holds the cond while the fiber waits; if it is collected all the same, its
    // finalizer empties the list.
    unsafe {
        let s = state::current(l);
        let cond = cond_at(l, 1);
        if cond.is_null() {
            return not_a_cond(l);
        }
        let way = match way(s, l) {
            Ok(way) => way,
            Err(text) => return fail_with(l, text),
        };
        before_wait(s, l);
        let f = (*s).cord.current;
        (*f).wait = Wait::Cond;
        WaitList::link(&raw mut (*cond).waiting, f, false);
        if lua_gettop(l) > 1 {
            arm_deadline(s, l, 2);
        }
        wait(s, l, way, 0)
    }
}

/// `wait_forever(cond)` where it goes straight to the next fiber.
unsafe extern "C-unwind" fn wait_at_once(l: *mut lua_State, frame: usize) -> Next {
    // SAFETY: called by `waiting` with the running thread; the rest as for `l_wait`.
    unsafe {
        match transfer::quiet_chance(l) {
            Some((s, f, to)) if (*s).cord.body.proven.userdata => {
                let cond: *mut Cond = first_userdata(l, size_of::<Cond>()).cast();
                if cond.is_null() || (*cond).kind != &raw const COND {
                    return STAY;
                }
                WaitList::link_last(&raw mut (*cond).waiting, f);
                transfer::leave(s, f, l, to, frame, Wait::Cond)
            }
            _ => STAY,
        }
    }
}

/// `wait_forever(cond)`: as `wait` without a deadline.
unsafe extern "C-unwind" fn l_wait_forever(l: *mut lua_State) -> c_int {
    // SAFETY: as for `l_wait`.
    unsafe {
        match quick(l) {
            Some((s, f)) if (*s).cord.body.proven.userdata => {
                let cond: *mut Cond = first_userdata(l, size_of::<Cond>()).cast();
                if cond.is_null() || (*cond).kind != &raw const COND {
                    return not_a_cond(l);
                }
                WaitList::link_last(&raw mut (*cond).waiting, f);
                quick_wait(l, f, Wait::Cond)
            }
            _ => l_wait(l),
        }
    }
}

unsafe extern "C-unwind" fn l_signal(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua; linked fibers are live.
    unsafe {
        let s = state::current(l);
        let cond = cond_at(l, 1);
        if cond.is_null() {
            return not_a_cond(l);
        }
        let f = (*cond).waiting.first();
        if !f.is_null() {
            wake(&raw mut (*s).cord, f);
        }
    }
    0
}

/// As `signal`, for compiled code: it is called through FFI without leaving the trace. Zero if it is no cond.
///
/// # Safety
/// `cond` is the address of a live userdata.
unsafe extern "C" fn ffi_signal(cond: *mut Cond) -> c_int {
    // SAFETY: the caller's contract; linked fibers are live. The word of a smaller userdata is some other of Lua's memory.
    unsafe {
        if (*cond).kind != &raw const COND {
            return 0;
        }
        let f = (*cond).waiting.first();
        if !f.is_null() {
            let cord = &raw mut (*(*cond).state).cord;
            if !WaitList::wake_first(&raw mut (*cond).waiting, cord) {
                return wake_slow(cord, f);
            }
        }
    }
    1
}

/// `address()`: of [`ffi_signal`].
unsafe extern "C-unwind" fn l_address(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua. Addresses of code stay below 2^53.
    #[allow(clippy::cast_precision_loss)]
    unsafe {
        lua_pushnumber(l, ffi_signal as *const () as usize as f64);
    }
    1
}

unsafe extern "C-unwind" fn l_broadcast(l: *mut lua_State) -> c_int {
    // SAFETY: as for `l_signal`.
    unsafe {
        let cond = cond_at(l, 1);
        if cond.is_null() {
            return not_a_cond(l);
        }
        wake_all(state::current(l), cond);
    }
    0
}

unsafe fn wake_all(s: *mut State, cond: *mut Cond) {
    // SAFETY: linked fibers are live, and waking unlinks.
    unsafe {
        loop {
            let f = (*cond).waiting.first();
            if f.is_null() {
                break;
            }
            wake(&raw mut (*s).cord, f);
        }
    }
}

/// The finalizer: nobody may stay on a list that goes away.
unsafe extern "C-unwind" fn l_destroy(l: *mut lua_State) -> c_int {
    // SAFETY: as for `l_signal`.
    unsafe {
        let cond = cond_at(l, 1);
        if !cond.is_null() {
            wake_all(state::current(l), cond);
        }
    }
    0
}
