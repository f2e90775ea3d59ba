//! The trace-abort toggle: what runs at each switch so that no recording goes on in another fiber. See docs/jit.md.
//!
//! Only a wait underneath an FFI call can meet a live recording (LuaJIT ends or aborts one before it calls a C function),
//! but each mode does its work at every wait, as the originals did, so that their costs can be compared.

use super::body::{LuaBody, LuaFiber};
use super::calibrate::calibrate;
use super::inspect::{self, attend};
use super::jit::{MODES, Mode, RECORDING};
use super::state::{self, State};
use crate::fiber::fiber::flag;
use crate::sys::luajit::Entry;
use mlua::ffi::*;
use std::ffi::{CStr, c_int};

/// What the callback mode calls.
pub type Handler = unsafe fn(*mut LuaBody, *mut lua_State);

/// Payload of a native trigger that aborts.
const ABORTS: i32 = 1;
/// Payload of one that does nothing.
const NOTHING: i32 = 0;

/// Pushes the native half of `cord.trace`.
///
/// # Safety
/// A live state with free slots, in which the library was opened.
pub(crate) unsafe fn native(l: *mut lua_State) {
    const FUNCTIONS: &[Entry] =
        &[(c"mode", l_mode), (c"calls", l_calls), (c"calibrate", l_calibrate), (c"words", l_words)];
    // SAFETY: the caller's contract.
    unsafe {
        lua_createtable(l, 0, FUNCTIONS.len() as c_int);
        state::register(l, FUNCTIONS);
    }
}

// ---- what runs at a switch ----

/// Ends a live recording in place, where that is what the mode does.
///
/// # Safety
/// The state is live.
#[inline(always)]
pub unsafe fn end_recording(s: *mut State) {
    // SAFETY: the abort word is the recorder's proven one or a word of our own.
    unsafe {
        let body = &raw mut (*s).cord.body;
        *(*body).abort_word &= (*body).abort_mask;
    }
}

/// What runs at every switch.
///
/// # Safety
/// `l` is a live thread of the state `s`, not suspended. Outside finalizers, VM-event handlers and profiler callbacks
/// nothing raises.
#[inline(always)]
pub unsafe fn before_wait(s: *mut State, l: *mut lua_State) {
    // SAFETY: the caller's contract.
    unsafe {
        end_recording(s);
        if (*s).cord.body.attend != 0 {
            before_wait_slow(s, l);
        }
    }
}

/// As [`before_wait`], where a mode that calls something is the likely reason to come here: no such mode ends a recording
/// in place.
///
/// # Safety
/// As for `before_wait`.
#[inline(always)]
pub unsafe fn before_told_wait(s: *mut State, l: *mut lua_State) {
    // SAFETY: the caller's contract.
    unsafe {
        if (*s).cord.body.attend == attend::MODE {
            run_handler(s, l);
        } else {
            before_wait(s, l);
        }
    }
}

/// The modes that call something, and whoever else wants to hear of switches. Only jumps, so that a mode's cost is its
/// own.
#[inline(never)]
unsafe fn before_wait_slow(s: *mut State, l: *mut lua_State) {
    // SAFETY: the caller's contract.
    unsafe {
        let body = &raw mut (*s).cord.body;
        if (*body).attend == attend::MODE { run_handler(s, l) } else { tell_others(s, l) }
    }
}

#[inline(never)]
unsafe fn tell_others(s: *mut State, l: *mut lua_State) {
    // SAFETY: the caller's contract.
    unsafe {
        let attend = (*s).cord.body.attend;
        // First of all: triggers run Lua code, which a live recording would take for its own.
        if attend & attend::MODE != 0 {
            run_handler(s, l);
        }
        if attend & attend::TRIGGERS != 0 {
            inspect::run_on_yield(s, l);
        }
        if attend & (attend::SLICES | attend::TOP) != 0 {
            inspect::at_switch(s);
        }
    }
}

/// The handler of the mode in force, which calls something.
///
/// # Safety
/// As for [`before_wait`].
#[inline(always)]
pub unsafe fn run_handler(s: *mut State, l: *mut lua_State) {
    // SAFETY: the caller's contract.
    unsafe {
        let body = &raw mut (*s).cord.body;
        if (*body).mode == Mode::Extern {
            abort_handler(body, l);
        } else if let Some(handler) = (*body).switch_callback {
            handler(body, l);
        } else if (*body).mode == Mode::ExternNoop {
            noop_handler(body, l);
        } else {
            run_triggers(s, l);
        }
    }
}

/// The trigger modes: the native triggers of the running fiber.
#[inline(never)]
unsafe fn run_triggers(s: *mut State, l: *mut lua_State) {
    // SAFETY: the caller's contract.
    unsafe {
        let f = (*s).cord.current;
        for payload in (&(*f).data.native_triggers).iter() {
            let handler = if payload == ABORTS { abort_handler } else { noop_handler };
            std::hint::black_box(handler as Handler)(&raw mut (*s).cord.body, l);
        }
    }
}

/// What runs when a fiber is created (its parent gives way to it) and when one ends: not the triggers, which belong to
/// the waits of their fiber.
///
/// # Safety
/// As for [`before_wait`].
#[inline(always)]
pub unsafe fn before_call(s: *mut State, l: *mut lua_State) {
    // SAFETY: as for `before_wait`.
    unsafe {
        let body = &raw mut (*s).cord.body;
        *(*body).abort_word &= (*body).abort_mask;
        if (*body).attend != 0 {
            before_call_slow(s, l);
        }
    }
}

#[inline(never)]
unsafe fn before_call_slow(s: *mut State, l: *mut lua_State) {
    // SAFETY: as for `before_wait`.
    unsafe {
        if (*s).cord.body.attend & (attend::SLICES | attend::TOP) != 0 {
            inspect::at_switch(s);
        }
        let calls = (*s).cord.body.attend & attend::MODE != 0;
        if calls && !matches!((*s).cord.body.mode, Mode::Trigger | Mode::TriggerNoop) {
            run_handler(s, l);
        }
    }
}

#[inline(never)]
unsafe fn abort_handler(body: *mut LuaBody, l: *mut lua_State) {
    // SAFETY: the caller's contract; a wait in a finalizer, where this would raise, was refused before.
    unsafe {
        (*body).abort_calls += 1;
        // The call is 30 instructions; where the recorder's state is known, it is made when there is something to end.
        let words = &(*body).words;
        if !words.known() || words.recording() {
            (*body).luajit.abort_recording(l);
        }
    }
}

#[inline(never)]
unsafe fn noop_handler(body: *mut LuaBody, _l: *mut lua_State) {
    // SAFETY: the caller's contract.
    unsafe { (*body).abort_calls += 1 };
}

/// Whether a wait of `f` ends a live recording.
///
/// # Safety
/// `f` is live.
pub unsafe fn aborts(s: *mut State, f: LuaFiber) -> bool {
    // SAFETY: the caller's contract.
    unsafe {
        match (*s).cord.body.mode {
            Mode::Inline | Mode::Callback | Mode::Extern => true,
            Mode::Trigger => (&(*f).data.native_triggers).iter().any(|payload| payload == ABORTS),
            Mode::Off | Mode::TriggerNoop | Mode::CallbackNoop | Mode::ExternNoop => false,
        }
    }
}

// ---- triggers of fibers made from Lua ----

/// Gives a fiber made from Lua its trigger, if the mode wants one.
///
/// # Safety
/// `f` is live and is the main fiber or runs a Lua function.
#[inline(always)]
pub unsafe fn attach(s: *mut State, f: LuaFiber) {
    // SAFETY: the caller's contract.
    unsafe {
        if matches!((*s).cord.body.mode, Mode::Trigger | Mode::TriggerNoop) {
            let payload = if (*s).cord.body.mode == Mode::Trigger { ABORTS } else { NOTHING };
            (&mut (*f).data.native_triggers).add(&mut (*s).cord.body.native_pool, payload);
        }
    }
}

/// Gives each fiber made from Lua the trigger the new mode wants.
unsafe fn attach_all(s: *mut State) {
    // SAFETY: records are live as long as the state.
    unsafe {
        let mut i = 0;
        while let Some(f) = (*s).cord.record(i) {
            i += 1;
            while (&mut (*f).data.native_triggers).pop(&mut (*s).cord.body.native_pool).is_some() {}
            let made_from_lua = f == (*s).cord.main || !(*f).data.l.is_null();
            if (*f).id != 0 && !(*f).is(flag::DEAD) && made_from_lua {
                attach(s, f);
            }
        }
    }
}

// ---- modes ----

/// Makes `mode` the one in force: `Inline` becomes `Extern` where the recorder's word is not known.
unsafe fn set_mode(s: *mut State, wanted: Mode) {
    // SAFETY: the abort word is the recorder's proven one, or our own, which lives as long as the body.
    unsafe {
        let body = &raw mut (*s).cord.body;
        let known = (*body).words.known();
        let mode = if wanted == Mode::Inline && !known { Mode::Extern } else { wanted };
        (*body).wanted_mode = wanted;
        (*body).mode = mode;
        (*body).attend &= !attend::MODE;
        if mode as u8 > Mode::Inline as u8 {
            (*body).attend |= attend::MODE;
        }
        (*body).mode_pending = false;
        if mode == Mode::Inline {
            ((*body).abort_word, (*body).abort_mask) = ((*body).words.recorder, !RECORDING);
        } else {
            ((*body).abort_word, (*body).abort_mask) = ((*body).own_word, u32::MAX);
        }
        (*body).switch_callback = match mode {
            Mode::Callback => Some(abort_handler as Handler),
            Mode::CallbackNoop => Some(noop_handler as Handler),
            _ => None,
        };
        attach_all(s);
    }
}

/// Calibrates if that has not succeeded yet, and puts the wanted mode into force.
///
/// # Safety
/// Called from one of our C functions, which Lua called.
pub(crate) unsafe fn settle(s: *mut State) {
    // SAFETY: the caller's contract.
    unsafe {
        let body = &raw mut (*s).cord.body;
        if !(*body).words.known() {
            calibrate(s);
        }
        if (*body).mode_pending || ((*body).wanted_mode != (*body).mode && (*body).words.known()) {
            set_mode(s, (*body).wanted_mode);
        }
    }
}

/// `mode([name[, unsettled]])`: an error text and nothing, or nil and the name of the mode that was in force. With
/// `unsettled` nothing is calibrated yet and nothing is said about the mode before.
unsafe extern "C-unwind" fn l_mode(l: *mut lua_State) -> c_int {
    // SAFETY: called by trace.lua with a string or nil; its bytes are borrowed while it is on the stack.
    unsafe {
        let s = state::current(l);
        let body = &raw mut (*s).cord.body;
        let mut wanted = None;
        if lua_type(l, 1) == LUA_TSTRING {
            let name = CStr::from_ptr(lua_tolstring(l, 1, std::ptr::null_mut())).to_bytes();
            wanted = MODES.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, mode)| *mode);
            if wanted.is_none() {
                lua_pushboolean(l, 1);
                return 1;
            }
        }
        if lua_toboolean(l, 2) != 0 {
            match wanted {
                Some(Mode::Inline) | None => {}
                Some(mode) => set_mode(s, mode),
            }
            return 0;
        }
        settle(s);
        let before = (*body).mode;
        if let Some(mode) = wanted {
            set_mode(s, mode);
        }
        lua_pushnil(l);
        let name = MODES.iter().find(|(_, mode)| *mode == before).map_or("", |(name, _)| name);
        state::push_str(l, name);
    }
    2
}

/// `calls()`: handler runs so far.
unsafe extern "C-unwind" fn l_calls(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        #[allow(clippy::cast_precision_loss)] // exact up to 2^53
        lua_pushnumber(l, (*state::current(l)).cord.body.abort_calls as f64);
    }
    1
}

/// `calibrate()`: whether recordings and compiled code can be noticed now.
unsafe extern "C-unwind" fn l_calibrate(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        settle(s);
        lua_pushboolean(l, c_int::from((*s).cord.body.words.known()));
    }
    1
}

/// `words()`: what is known of this LuaJIT, as a table of offsets in bytes from the global state (false: not proven).
unsafe extern "C-unwind" fn l_words(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let body = &raw mut (*state::current(l)).cord.body;
        lua_createtable(l, 0, 5);
        let words = (*body).words;
        let found = [
            (c"hookmask", (*body).proven.hookmask as usize),
            (c"recorder", words.recorder as usize),
            (c"vmstate", words.vmstate as usize),
            (c"engine", words.engine as usize),
        ];
        for (name, address) in found {
            if address == 0 {
                lua_pushboolean(l, 0);
            } else {
                let offset = address.wrapping_sub(super::jit::global(l) as usize);
                lua_pushinteger(l, offset.cast_signed() as lua_Integer);
            }
            lua_setfield(l, -2, name.as_ptr());
        }
        lua_pushboolean(l, c_int::from((*body).proven.cframe));
        lua_setfield(l, -2, c"cframe".as_ptr());
    }
    1
}
