//! Calibration: where this LuaJIT keeps the words that switches underneath FFI calls depend on.
//!
//! | word | what it says | how it is proven |
//! |---|---|---|
//! | `J->state` | a trace recording is live (bit 0x10) | `luaJIT_setmode(L, 0, -1)` changes it, and nothing else, from 0x11 to 0x01, in two recordings; cleared in place, a hot loop is never compiled |
//! | `g->vmstate` | compiled code runs (the trace's number) or not (negative) | two traces give two numbers, interpreted code before, between and after gives one and the same negative one |
//! | `J->flags` | the JIT compiler is on (bit 1) | follows `luaJIT_setmode`'s engine switch; looked for only while the compiler is off |
//!
//! All of them lie in the first [`WINDOW`] bytes of the global state. The probes run in hot loops (calibrate.lua), never
//! in a `jit.attach` handler, which would replace the user's.

use super::jit::{self, HOOK_GC, HOOK_VMEVENT, RECORDING, WINDOW};
use super::state::State;
use mlua::ffi::*;
use std::ffi::{c_int, c_void};

const N: usize = WINDOW / 4;
/// Iterations of each loop: enough for LuaJIT's default `hotloop` of 56, then for a user's much larger one. The first is tried
/// twice: LuaJIT may just then throw all its traces away because it has too many.
const ROUNDS: [c_int; 3] = [200, 200, 6000];
/// Stages of the probe whose snapshots are kept (calibrate.lua).
const SNAPSHOTS: usize = 7;

/// Addresses of the words, null where not proven.
#[derive(Clone, Copy)]
pub struct Words {
    /// The recorder's state; proven together with `vmstate` or not at all.
    pub recorder: *mut u32,
    /// The VM's state.
    pub vmstate: *const i32,
    /// The compiler's flags.
    pub engine: *const u32,
}

impl Words {
    /// Nothing proven.
    pub const NONE: Words =
        Words { recorder: std::ptr::null_mut(), vmstate: std::ptr::null(), engine: std::ptr::null() };

    /// Whether recordings and compiled code can be noticed.
    #[inline(always)]
    pub fn known(&self) -> bool {
        !self.vmstate.is_null()
    }

    /// A recording is live.
    ///
    /// # Safety
    /// [`known`](Self::known), on the state's OS thread.
    #[inline(always)]
    pub unsafe fn recording(&self) -> bool {
        // SAFETY: a proven word of the live global state; volatile, because LuaJIT changes it behind the compiler's back.
        unsafe { self.recorder.read_volatile() & RECORDING != 0 }
    }

    /// Compiled code runs, further out on the stack.
    ///
    /// # Safety
    /// As for [`recording`](Self::recording).
    #[inline(always)]
    pub unsafe fn compiled(&self) -> bool {
        // SAFETY: as above.
        unsafe { self.vmstate.read_volatile() >= 0 }
    }

    /// The compiler is known to be off.
    ///
    /// # Safety
    /// As for [`recording`](Self::recording), but nothing need be known.
    pub unsafe fn engine_off(&self) -> bool {
        // SAFETY: as above.
        unsafe { !self.engine.is_null() && self.engine.read_volatile() & 1 == 0 }
    }
}

struct Probe {
    base: *mut u32,
    l: *mut lua_State,
    state: *mut State,
    /// Words that an abort changed, and how often each was the only one.
    seen: Option<usize>,
    sightings: u32,
    spoiled: bool,
    recorder: *mut u32,
    snapshots: [[u32; N]; SNAPSHOTS],
    rounds: c_int,
    stage: c_int,
}

impl Probe {
    unsafe fn word(&self, i: usize) -> u32 {
        // SAFETY: `i` is below N: inside the window.
        unsafe { self.base.add(i).read_volatile() }
    }

    /// Aborts the live recording, if any, and remembers the word that changed.
    unsafe fn abort(&mut self) {
        // SAFETY: the window is readable; not inside a finalizer, so the abort cannot raise.
        unsafe {
            let Some([before, ..]) = self.snapshots.get_mut(..1) else { return };
            for (i, word) in before.iter_mut().enumerate() {
                *word = self.base.add(i).read_volatile();
            }
            (*self.state).luajit.abort_recording(self.l);
            let Some([before, ..]) = self.snapshots.get(..1) else { return };
            let mut changed = before.iter().enumerate().filter(|(i, word)| self.word(*i) != **word);
            match (changed.next(), changed.next()) {
                (None, _) => {}
                (Some((i, word)), None)
                    if *word == RECORDING | 1 && self.word(i) == 1 && self.seen.is_none_or(|seen| seen == i) =>
                {
                    self.seen = Some(i);
                    self.sightings += 1;
                }
                _ => self.spoiled = true,
            }
        }
    }

    unsafe fn snapshot(&mut self, stage: usize) {
        let base = self.base;
        if let Some(to) = self.snapshots.get_mut(stage) {
            for (i, word) in to.iter_mut().enumerate() {
                // SAFETY: inside the window.
                *word = unsafe { base.add(i).read_volatile() };
            }
        }
    }

    /// The recorder's word, if both loops showed it.
    fn recorder(&self) -> Option<usize> {
        self.seen.filter(|_| self.sightings >= 2 && !self.spoiled)
    }

    /// The VM's state, if the snapshots leave one candidate.
    #[allow(clippy::cast_possible_wrap)] // words are looked at as signed numbers
    fn vmstate(&self) -> Option<usize> {
        let [_, out1, in1, out2, in2, out3, _] = &self.snapshots;
        let at = |of: &[u32; N], i: usize| of.get(i).map_or(0, |word| *word as i32);
        let mut found = (0..N).filter(|i| {
            let (a, b, c) = (at(out1, *i), at(out2, *i), at(out3, *i));
            let (x, y) = (at(in1, *i), at(in2, *i));
            (-16..0).contains(&a) && a == b && a == c && (1..65536).contains(&x) && (1..65536).contains(&y) && x != y
        });
        match (found.next(), found.next()) {
            (Some(i), None) => Some(i),
            _ => None,
        }
    }
}

/// What calibrate.lua calls over FFI.
unsafe extern "C-unwind" fn probe(record: *mut Probe, stage: c_int) -> c_int {
    // SAFETY: the record lives in `attempt`, whose chunk is the one caller.
    unsafe {
        match stage {
            0 => (*record).abort(),
            6 => {
                let word = (*record).recorder;
                word.write_volatile(word.read_volatile() & !RECORDING);
                (*record).snapshot(6);
            }
            _ => (*record).snapshot(stage.unsigned_abs() as usize),
        }
    }
    0
}

unsafe fn run_chunk(sl: *mut lua_State, _state: *mut State, argument: *mut c_void) {
    const SOURCE: &str = include_str!("calibrate.lua");
    let record = argument.cast::<Probe>();
    // SAFETY: a protected job on the scratch thread. Addresses of user space are exact in a Lua number.
    #[allow(clippy::cast_precision_loss)]
    unsafe {
        if luaL_loadbuffer(sl, SOURCE.as_ptr().cast(), SOURCE.len(), c"=[cord calibration]".as_ptr()) != 0 {
            lua_error(sl);
        }
        lua_pushnumber(sl, (probe as *const () as usize) as f64);
        lua_pushnumber(sl, (record as usize) as f64);
        lua_pushinteger(sl, (*record).rounds as lua_Integer);
        lua_pushinteger(sl, (*record).stage as lua_Integer);
        lua_call(sl, 4, 0);
    }
}

/// One attempt with loops of `rounds` iterations.
unsafe fn attempt(s: *mut State, rounds: c_int) -> Option<Words> {
    // SAFETY: the caller's contract (`calibrate`).
    unsafe {
        let base: *mut u32 = jit::global((*s).scratch).cast();
        let mut record = Box::new(Probe {
            base,
            l: (*s).scratch,
            state: s,
            seen: None,
            sightings: 0,
            spoiled: false,
            recorder: std::ptr::null_mut(),
            snapshots: [[0; N]; SNAPSHOTS],
            rounds,
            stage: 1,
        });
        let argument: *mut c_void = (&raw mut *record).cast();
        if !State::protected(s, run_chunk, argument) {
            return None;
        }
        let (recorder, vmstate) = (record.recorder()?, record.vmstate()?);
        record.recorder = base.add(recorder);
        record.stage = 2;
        if !State::protected(s, run_chunk, argument) {
            return None;
        }
        // The last iteration of the loop that clears the bit itself ran interpreted: clearing it aborts.
        #[allow(clippy::cast_possible_wrap)]
        let interpreted = record.snapshots.get(6).and_then(|last| last.get(vmstate)).is_some_and(|w| (*w as i32) < 0);
        interpreted.then(|| Words {
            recorder: base.add(recorder),
            vmstate: base.add(vmstate).cast(),
            engine: std::ptr::null(),
        })
    }
}

/// The compiler's flags: the one word whose lowest bit follows the engine switch. The compiler is off, before and after.
unsafe fn find_engine(s: *mut State) -> *const u32 {
    // SAFETY: the caller's contract (`calibrate`); the window is readable. Switching on and off without running anything
    // resets the hot counters, which are not used while the compiler is off.
    unsafe {
        let l = (*s).scratch;
        let base: *mut u32 = jit::global(l).cast();
        let mut off = [0u32; N];
        let mut on = [0u32; N];
        let read = |to: &mut [u32; N]| {
            for (i, word) in to.iter_mut().enumerate() {
                *word = base.add(i).read_volatile();
            }
        };
        read(&mut off);
        (*s).luajit.set_engine(l, true);
        read(&mut on);
        (*s).luajit.set_engine(l, false);
        let mut found = (0..N).filter(|i| {
            let (before, during) = (off.get(*i).copied().unwrap_or(0), on.get(*i).copied().unwrap_or(0));
            before & 1 == 0 && during == before | 1 && base.add(*i).read_volatile() == before
        });
        match (found.next(), found.next()) {
            (Some(i), None) => base.add(i),
            _ => std::ptr::null(),
        }
    }
}

unsafe fn status_job(sl: *mut lua_State, _state: *mut State, argument: *mut c_void) {
    // SAFETY: a protected job on the scratch thread.
    unsafe {
        if luaL_loadstring(sl, c"return require('jit').status()".as_ptr()) != 0 {
            lua_error(sl);
        }
        lua_call(sl, 0, 1);
        *argument.cast::<bool>() = lua_toboolean(sl, -1) != 0;
    }
}

/// Whether `jit.status()` says the compiler is on; `None` if it cannot be asked.
unsafe fn compiler_on(s: *mut State) -> Option<bool> {
    let mut on = true;
    // SAFETY: the caller's contract (`calibrate`).
    unsafe { State::protected(s, status_job, (&raw mut on).cast()).then_some(on) }
}

/// Fills the state's [`Words`] as far as they can be proven now; cheap once they are known. Leaves the JIT's settings, the
/// user's `jit.attach` handlers and hooks as they were.
///
/// # Safety
/// Called from one of our C functions, which Lua called.
pub(crate) unsafe fn calibrate(s: *mut State) {
    // SAFETY: the caller's contract. The hook is the user's and is put back.
    unsafe {
        let body = &raw mut (*s).cord.body;
        let mask = (*body).proven.hookmask;
        if (*body).words.known() || mask.is_null() || *mask & (HOOK_GC | HOOK_VMEVENT) != 0 || (*body).protected > 0 {
            return;
        }
        match compiler_on(s) {
            Some(true) => {}
            Some(false) => {
                (*body).words.engine = find_engine(s);
                return;
            }
            None => return,
        }
        let l = (*s).scratch;
        let (hook, hooks, count) = (lua_gethook(l), lua_gethookmask(l), lua_gethookcount(l));
        lua_sethook(l, None, 0, 0);
        for rounds in ROUNDS {
            if let Some(words) = attempt(s, rounds) {
                (*body).words = Words { engine: (*body).words.engine, ..words };
                break;
            }
        }
        lua_sethook(l, hook, hooks, count);
    }
}
