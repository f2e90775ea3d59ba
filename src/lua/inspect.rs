//! Looking at fibers: lists, backtraces, processor shares (`fiber.top`), slices; and what runs at each switch while any
//! of it is asked for. Nothing here costs a switch anything until a script asks.

use super::body::{Listener, LuaBody, LuaFiber};
use super::fiber::{fail, fiber_at, list_triggers, ok, push_handle, push_id, reset_triggers};
use super::jit::MARK;
use super::state::{self, Keep, State};
use crate::fiber::clock;
use crate::fiber::fiber::{attention, flag};
use crate::fiber::trigger::TriggerList;
use crate::sys::luajit::Entry;
use mlua::ffi::*;
use std::ffi::{CStr, c_int};

/// Bits of [`LuaBody::attend`]: who wants to hear of switches.
pub mod attend {
    /// Some fiber, or the cord, has on_yield triggers.
    pub const TRIGGERS: u8 = 1;
    /// Slices are in use.
    pub const SLICES: u8 = 2;
    /// `top` is enabled.
    pub const TOP: u8 = 4;
    /// A trace-abort mode that calls something is in force.
    pub const MODE: u8 = 8;
}

/// A longest run without a yield, in seconds.
#[derive(Clone, Copy)]
pub struct Slice {
    /// A warning is logged past it.
    pub warn: f64,
    /// `check_slice` raises past it.
    pub err: f64,
}

/// Processor time of one fiber while `top` is enabled, in nanoseconds.
#[derive(Clone, Copy, Default)]
struct Share {
    id: u64,
    /// In this turn.
    delta: u64,
    /// In the last one.
    last: u64,
    /// Sixteenths fade with each turn.
    average: f64,
    time: u64,
}

impl Share {
    fn end_turn(&mut self) {
        #[allow(clippy::cast_precision_loss)] // nanoseconds of one turn
        let delta = self.delta as f64;
        self.average = self.average * (15.0 / 16.0) + delta / 16.0;
        self.last = self.delta;
        self.delta = 0;
    }
}

/// What the state keeps for all of it.
pub struct Inspect {
    default: Slice,
    /// The running slice: whose it is (fiber id, its switches), from when, and what was set for it alone.
    owner: (u64, u64),
    from: u64,
    set: Option<Slice>,
    warned: bool,
    /// Since when the running fiber is charged.
    mark: u64,
    /// By slot of the record.
    shares: Vec<Share>,
    scheduler: Share,
    whole: Share,
    listening: bool,
    /// Of the whole cord.
    on_yield: TriggerList,
    /// Lists of on_yield triggers that are not empty.
    lists: i32,
}

impl Inspect {
    fn end_turn(&mut self) {
        for share in &mut self.shares {
            share.end_turn();
        }
        self.scheduler.end_turn();
        self.whole.end_turn();
    }

    /// One list of on_yield triggers more or less has something to run.
    pub fn lists_changed(&mut self, body: &mut LuaBody, by: i32) {
        self.lists += by;
        if self.lists > 0 {
            body.attend |= attend::TRIGGERS;
        } else {
            body.attend &= !attend::TRIGGERS;
        }
    }
}

impl Default for Inspect {
    fn default() -> Self {
        Inspect {
            default: Slice { warn: 0.5, err: 1.0 },
            owner: (0, 0),
            from: 0,
            set: None,
            warned: false,
            mark: 0,
            shares: Vec::new(),
            scheduler: Share::default(),
            whole: Share::default(),
            listening: false,
            on_yield: TriggerList::default(),
            lists: 0,
        }
    }
}

const FUNCTIONS: &[Entry] = &[
    (c"fibers", l_fibers),
    (c"detail", l_detail),
    (c"backtrace", l_backtrace),
    (c"check_slice", l_check_slice),
    (c"set_slice", l_set_slice),
    (c"extend_slice", l_extend_slice),
    (c"set_max_slice", l_set_max_slice),
    (c"top_enable", l_top_enable),
    (c"shares", l_shares),
    (c"on_yield", l_on_yield),
    (c"on_yield_lists", l_on_yield_lists),
    (c"keep_on_yield", l_keep_on_yield),
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

macro_rules! attempt {
    ($l:expr, $result:expr) => {
        match $result {
            Ok(value) => value,
            Err(text) => return fail($l, text),
        }
    };
}

// ---- at a switch ----

/// Runs the on_yield triggers of the running fiber and of the cord. They may not wait.
///
/// # Safety
/// `l` runs for the current fiber and is not suspended; nothing with a destructor is alive in the caller. Nothing is
/// raised.
#[cold]
pub unsafe fn run_on_yield(s: *mut State, l: *mut lua_State) {
    // SAFETY: the caller's contract. The function that runs the triggers catches their errors; what it raises itself
    // (no memory) is dropped.
    unsafe {
        let f = (*s).cord.current;
        if ((*f).on_yield.is_empty() && (*s).inspect.on_yield.is_empty()) || lua_checkstack(l, 8) == 0 {
            return;
        }
        let top = lua_gettop(l);
        (*s).cord.body.protected += 1;
        (*s).push_kept(l, Keep::OnYield);
        if (*f).is(flag::HANDLE) {
            push_handle(l, s, f);
        } else {
            push_id(l, (*f).id);
        }
        lua_pcall(l, 1, 0, 0);
        (*s).cord.body.protected -= 1;
        lua_settop(l, top);
    }
}

/// `keep_on_yield(function)`: what runs the triggers of a fiber, given its handle or its id.
unsafe extern "C-unwind" fn l_keep_on_yield(l: *mut lua_State) -> c_int {
    // SAFETY: called once by inspect.lua.
    unsafe {
        lua_settop(l, 1);
        (*state::current(l)).keep(l, Keep::OnYield);
    }
    0
}

/// `on_yield(f or nil, new, old)`: as `on_stop`, for one fiber or for the cord.
unsafe extern "C-unwind" fn l_on_yield(l: *mut lua_State) -> c_int {
    // SAFETY: called by inspect.lua, which checked the arguments; both lists live as long as the state.
    unsafe {
        let s = state::current(l);
        lua_settop(l, 3);
        let list = if lua_type(l, 1) == LUA_TNIL {
            &raw mut (*s).inspect.on_yield
        } else {
            let f = attempt!(l, fiber_at(s, l, 1));
            if (*f).is(flag::DEAD) {
                return fail(l, c"the fiber is dead");
            }
            &raw mut (*f).on_yield
        };
        let before = !(*list).is_empty();
        let results = reset_triggers(s, l, list);
        let by = i32::from(!(*list).is_empty()) - i32::from(before);
        let state = &mut *s;
        state.inspect.lists_changed(&mut state.cord.body, by);
        results
    }
}

/// `on_yield_lists(f)`: nil, the functions of the fiber, those of the cord.
unsafe extern "C-unwind" fn l_on_yield_lists(l: *mut lua_State) -> c_int {
    // SAFETY: called by inspect.lua.
    unsafe {
        let s = state::current(l);
        let f = attempt!(l, fiber_at(s, l, 1));
        ok(l);
        list_triggers(s, l, (&(*f).on_yield).iter());
        list_triggers(s, l, (&(*s).inspect.on_yield).iter());
    }
    3
}

/// The running fiber is about to give up the processor, or ends.
///
/// # Safety
/// `s` is live and a fiber runs.
#[cold]
pub unsafe fn at_switch(s: *mut State) {
    // SAFETY: the caller's contract.
    unsafe {
        let now = clock::monotonic();
        (*s).cord.slice_start = now;
        if (*s).cord.body.attend & attend::TOP != 0 {
            charge(s, (*s).cord.current, now);
        }
    }
}

/// Charges `f` (null: the scheduler) for the time since the mark, which moves to `now`.
unsafe fn charge(s: *mut State, f: LuaFiber, now: u64) {
    // SAFETY: the caller's contract.
    unsafe {
        let turn = (*s).cord.turn_started();
        let inspect = &mut (*s).inspect;
        let spent = now.saturating_sub(inspect.mark.max(turn));
        inspect.mark = now;
        inspect.whole.delta += spent;
        inspect.whole.time += spent;
        let share = if f.is_null() {
            &mut inspect.scheduler
        } else {
            let slot = (*f).slot as usize;
            if inspect.shares.len() <= slot {
                inspect.shares.resize(slot + 1, Share::default());
            }
            let Some(share) = inspect.shares.get_mut(slot) else { return };
            if share.id != (*f).id {
                *share = Share { id: (*f).id, ..Share::default() };
            }
            share
        };
        share.delta += spent;
        share.time += spent;
    }
}

/// The end of a turn.
unsafe fn end_turn(s: *mut State) {
    // SAFETY: called by the scheduler between two fibers.
    unsafe {
        if (*s).cord.body.attend & attend::TOP != 0 {
            charge(s, std::ptr::null_mut(), clock::monotonic());
            (*s).inspect.end_turn();
        }
    }
}

unsafe fn no_event(_s: *mut State, _data: usize, _ready: u8) {}

// ---- lists ----

/// `fibers()`: the ids of all live fibers, finished but not joined ones included.
unsafe extern "C-unwind" fn l_fibers(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        lua_createtable(l, (*s).cord.live() as c_int, 0);
        let (mut slot, mut n) = (0, 0);
        while let Some(f) = (*s).cord.record(slot) {
            slot += 1;
            if (*f).id != 0 {
                n += 1;
                push_id(l, (*f).id);
                lua_rawseti_(l, -2, n);
            }
        }
    }
    1
}

/// `detail(f)`: nil, id, name, context switches, bytes of its C stack, processor seconds, its longest slice (two
/// numbers), whether it is finished.
unsafe extern "C-unwind" fn l_detail(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        let f = attempt!(l, fiber_at(s, l, 1));
        ok(l);
        push_id(l, (*f).id);
        let name = (&*f).name();
        lua_pushlstring_(l, name.as_ptr().cast(), name.len());
        push_id(l, (*f).csw);
        let stack = if (*f).attention & attention::STACK != 0 { (*s).cord.stack_size } else { 0 };
        push_id(l, stack as u64);
        let share = (&(*s).inspect.shares).get((*f).slot as usize).filter(|share| share.id == (*f).id);
        #[allow(clippy::cast_precision_loss)] // a microsecond is enough
        lua_pushnumber(l, share.map_or(0.0, |share| share.time as f64 * 1e-9));
        let slice = longest(s, f);
        lua_pushnumber(l, slice.warn);
        lua_pushnumber(l, slice.err);
        lua_pushboolean(l, c_int::from((*f).is(flag::DEAD)));
    }
    9
}

/// `backtrace(f)`: nil and a list of `{C = name}` and `{L = 'name in source at line N'}`, the innermost call first.
unsafe extern "C-unwind" fn l_backtrace(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua. A waiting thread is only read, with its mark off: reading looks behind that word. Its
    // strings are copied before anything else can happen.
    unsafe {
        let s = state::current(l);
        let f = attempt!(l, fiber_at(s, l, 1));
        ok(l);
        lua_createtable(l, 0, 0);
        if (*f).is(flag::DEAD) {
            return 2;
        }
        let runs = f == (*s).cord.current;
        let kept = (*f).attention & (attention::STACK | attention::MAIN) != 0;
        let at = match (runs, kept) {
            (true, _) => l,
            (false, true) => (*f).data.waiter,
            (false, false) => (*f).data.l,
        };
        let light = !runs && !kept;
        if !at.is_null() {
            walk(s, l, at, light);
        }
    }
    2
}

/// Appends the frames of `at` to the table on the top of `l`.
unsafe fn walk(s: *mut State, l: *mut lua_State, at: *mut lua_State, light: bool) {
    // SAFETY: as for `l_backtrace`. Pushing may raise a memory error, which finds the mark in place.
    unsafe {
        let mut n = 0;
        for level in 0..200 {
            let mut ar: lua_Debug = std::mem::zeroed();
            if light {
                (*s).cord.body.mark(at, 0);
            }
            let found = lua_getstack(at, level, &raw mut ar) != 0 && lua_getinfo(at, c"Snl".as_ptr(), &raw mut ar) != 0;
            if light {
                (*s).cord.body.mark(at, MARK);
            }
            if !found {
                break;
            }
            let name = if ar.name.is_null() { c"(unnamed)".as_ptr() } else { ar.name };
            lua_createtable(l, 0, 1);
            if ar.what.is_null() || CStr::from_ptr(ar.what).to_bytes() == b"C" {
                lua_pushstring_(l, name);
                lua_setfield(l, -2, c"C".as_ptr());
            } else {
                lua_pushfstring(l, c"%s in %s at line %d".as_ptr(), name, ar.source, ar.currentline);
                lua_setfield(l, -2, c"L".as_ptr());
            }
            n += 1;
            lua_rawseti_(l, -2, n);
        }
    }
}

// ---- slices ----

unsafe fn longest(s: *mut State, f: LuaFiber) -> Slice {
    // SAFETY: `f` is live.
    unsafe {
        (&*f).own.as_ref().and_then(|own| own.max_slice).map_or((*s).inspect.default, |(warn, err)| Slice { warn, err })
    }
}

/// Brings the running slice up to date and returns its limits and the seconds used of it. The first use of slices makes
/// switches keep the time.
unsafe fn running_slice(s: *mut State) -> (Slice, f64) {
    // SAFETY: a fiber runs.
    unsafe {
        let f = (*s).cord.current;
        let longest = longest(s, f);
        let started = (*s).cord.slice_start.max((*s).cord.turn_started());
        (*s).cord.body.attend |= attend::SLICES;
        let inspect = &mut (*s).inspect;
        let owner = ((*f).id, (*f).csw);
        if inspect.owner != owner {
            inspect.owner = owner;
            inspect.set = None;
            inspect.warned = false;
            inspect.from = started;
        }
        #[allow(clippy::cast_precision_loss)] // seconds of one slice
        let used = clock::monotonic().saturating_sub(inspect.from) as f64 * 1e-9;
        (inspect.set.unwrap_or(longest), used)
    }
}

/// `check_slice()`: nil; 1 if the slice is exceeded; or 2 and the warning limit, once a slice.
unsafe extern "C-unwind" fn l_check_slice(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        let (slice, used) = running_slice(s);
        if used > slice.err {
            lua_pushinteger(l, 1);
            return 1;
        }
        if used > slice.warn && !(*s).inspect.warned {
            (*s).inspect.warned = true;
            lua_pushinteger(l, 2);
            lua_pushnumber(l, slice.warn);
            return 2;
        }
    }
    0
}

/// `set_slice(warn, err)`: of the running slice, counted from now.
unsafe extern "C-unwind" fn l_set_slice(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua with two numbers.
    unsafe {
        let s = state::current(l);
        running_slice(s);
        (*s).inspect.set = Some(Slice { warn: lua_tonumber(l, 1), err: lua_tonumber(l, 2) });
        (*s).inspect.from = clock::monotonic();
        (*s).inspect.warned = false;
    }
    0
}

/// `extend_slice(warn, err)`: seconds more for the running slice.
unsafe extern "C-unwind" fn l_extend_slice(l: *mut lua_State) -> c_int {
    // SAFETY: as for `l_set_slice`.
    unsafe {
        let s = state::current(l);
        let (slice, _) = running_slice(s);
        let longer = Slice { warn: slice.warn + lua_tonumber(l, 1), err: slice.err + lua_tonumber(l, 2) };
        (*s).inspect.set = Some(longer);
    }
    0
}

/// `set_max_slice(f or nil, warn, err)`: of one fiber, or of all that have none of their own.
unsafe extern "C-unwind" fn l_set_max_slice(l: *mut lua_State) -> c_int {
    // SAFETY: as for `l_set_slice`.
    unsafe {
        let s = state::current(l);
        let slice = Slice { warn: lua_tonumber(l, 2), err: lua_tonumber(l, 3) };
        if lua_type(l, 1) == LUA_TNIL {
            (*s).inspect.default = slice;
            return 0;
        }
        let f = attempt!(l, fiber_at(s, l, 1));
        if (*f).is(flag::DEAD) {
            return fail(l, c"the fiber is dead");
        }
        (*f).own_mut().max_slice = Some((slice.warn, slice.err));
    }
    0
}

// ---- top ----

/// `top_enable(whether)`
unsafe extern "C-unwind" fn l_top_enable(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua; listeners are functions of the library.
    unsafe {
        let s = state::current(l);
        let enabled = (*s).cord.body.attend & attend::TOP != 0;
        let wanted = lua_toboolean(l, 1) != 0;
        if wanted == enabled {
            return 0;
        }
        (*s).cord.body.attend ^= attend::TOP;
        let inspect = &mut (*s).inspect;
        inspect.shares = Vec::new();
        inspect.scheduler = Share::default();
        inspect.whole = Share::default();
        inspect.mark = clock::monotonic();
        if !inspect.listening {
            inspect.listening = true;
            (*s).cord.body.listeners.push(Listener { before_poll: end_turn, event: no_event });
        }
    }
    0
}

/// `shares()`: nil if top is disabled; else a list of {id, name, average, instant, seconds}, percentages, the scheduler
/// first.
unsafe extern "C-unwind" fn l_shares(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let s = state::current(l);
        if (*s).cord.body.attend & attend::TOP == 0 {
            return 0;
        }
        charge(s, (*s).cord.current, clock::monotonic());
        // A turn may last a thousand switches: whoever looks in between sees what there is so far.
        if (*s).inspect.whole.last == 0 || (*s).inspect.whole.delta > 1_000_000 {
            (*s).inspect.end_turn();
        }
        lua_createtable(l, 0, 0);
        push_share(l, s, (*s).inspect.scheduler, 1, b"sched");
        lua_rawseti_(l, -2, 1);
        let (mut slot, mut n) = (0, 1);
        while let Some(f) = (*s).cord.record(slot) {
            let share = (&(*s).inspect.shares).get(slot).copied().unwrap_or_default();
            slot += 1;
            if (*f).id != 0 {
                n += 1;
                let share = if share.id == (*f).id { share } else { Share::default() };
                push_share(l, s, share, (*f).id, (&*f).name());
                lua_rawseti_(l, -2, n);
            }
        }
    }
    1
}

#[allow(clippy::cast_precision_loss)] // percentages
unsafe fn push_share(l: *mut lua_State, s: *mut State, share: Share, id: u64, name: &[u8]) {
    // SAFETY: a few free slots; memory errors are raised with nothing to drop.
    unsafe {
        let whole = (*s).inspect.whole;
        let percent = |part: f64, all: f64| if all > 0.0 { part / all * 100.0 } else { 0.0 };
        lua_createtable(l, 5, 0);
        push_id(l, id);
        lua_rawseti_(l, -2, 1);
        lua_pushlstring_(l, name.as_ptr().cast(), name.len());
        lua_rawseti_(l, -2, 2);
        let numbers = [
            percent(share.average, whole.average),
            percent(share.last as f64, whole.last as f64),
            share.time as f64 * 1e-9,
        ];
        for (i, number) in numbers.into_iter().enumerate() {
            lua_pushnumber(l, number);
            lua_rawseti_(l, -2, i as c_int + 3);
        }
    }
}
