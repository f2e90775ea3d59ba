//! One Lua state's share of the library: found through the registry, reachable from each of our C functions through
//! its first upvalue, and the loader of the modules.

use crate::lua::MODULES;
use crate::lua::body::{Anchor, Listener, LuaBody, LuaCord, LuaFiber, anchor, threads_kept};
use crate::lua::jit;
use crate::lua::sockaddr::Lookups;
use crate::lua::socket::Sockets;
use crate::sys::luajit::{self, Entry, LuaJit};
use mlua::ffi::*;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// One entry of [`MODULES`].
pub struct Module {
    /// The name `require` uses.
    pub name: &'static str,
    /// Pushes a table of raw functions (nothing is passed when there is none).
    pub native: Option<unsafe fn(*mut lua_State)>,
    /// The Lua chunk, run once a state.
    pub source: &'static str,
}

/// What one Lua state owns. It lives in a full userdata, so its address is stable and lives as long as the state.
#[repr(C)]
pub struct State {
    /// Address of [`LIBRARY`]: tells a second copy of the library from this one. Must stay the first field.
    library: *const u8,
    /// LuaJIT's own functions.
    pub luajit: &'static LuaJit,
    /// A Lua thread of our own: results are made here, never on a suspended fiber's stack.
    pub scratch: *mut lua_State,
    /// Another one that never runs anything: its stack holds what native code must reach fast ([`Keep`]).
    store: *mut lua_State,
    /// The scheduler.
    pub cord: LuaCord,
    /// Slices, processor shares: what scripts ask about fibers.
    pub inspect: super::inspect::Inspect,
    /// The embedded servers, once there was one.
    pub server: *mut crate::server::hub::Hub,
    /// The connections of net.box.
    pub netbox: crate::netbox::Netbox,
    /// Finished fibers' threads kept for reuse, at most.
    pub threads_kept: usize,
    /// Names that are being looked up.
    pub lookups: Lookups,
    /// What the sockets share.
    pub sockets: Sockets,
    /// How [`current`] recognises it; null where it cannot.
    owner: *const Owner,
    /// Records whose slots in the table of pads exist.
    pub pads: u32,
    /// Records whose slots in the anchors table exist.
    anchored: u32,
    /// The protected job under way.
    job: Option<(Job, *mut c_void)>,
}

/// Something done on the scratch thread under a protected call. It may raise.
pub type Job = unsafe fn(*mut lua_State, *mut State, *mut c_void);

/// Positions on the store thread's stack.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum Keep {
    /// The anchors table: threads, handles, storages and results of the fibers.
    Anchors = 1,
    /// The C function that runs protected jobs.
    Protected = 2,
    /// fiber.lua: reports an uncaught error.
    Report = 3,
    /// fiber.lua: runs the on_stop triggers of a fiber.
    OnStop = 4,
    /// Functions of triggers, by reference.
    Triggers = 5,
    /// The metatable of fiber handles.
    FiberMeta = 6,
    /// The functions net.box keeps.
    Netbox = 7,
    /// The functions the server keeps.
    Server = 8,
    /// The functions msgpack keeps.
    Msgpack = 9,
    /// fiber.lua: runs the on_yield triggers of a fiber.
    OnYield = 10,
    /// fiber.lua: raises an error for a native function.
    Fail = 11,
    /// Values on their way between a waiting fiber and another, by slot of the waiting one's record.
    Pads = 12,
}
const KEPT: c_int = 13;

impl State {
    /// Pushes onto `l` what is kept at `which`.
    ///
    /// # Safety
    /// The state is live and `l` has a free slot.
    #[inline]
    pub unsafe fn push_kept(&self, l: *mut lua_State, which: Keep) {
        // SAFETY: the store's positions are filled since `ensure`; it has room for one more.
        unsafe {
            lua_pushvalue(self.store, which as c_int);
            lua_xmove(self.store, l, 1);
        }
    }

    /// Moves the top of `l` to `which`.
    ///
    /// # Safety
    /// As for [`push_kept`](Self::push_kept); a value is on the top of `l`.
    pub unsafe fn keep(&self, l: *mut lua_State, which: Keep) {
        // SAFETY: as above.
        unsafe {
            lua_xmove(l, self.store, 1);
            lua_replace(self.store, which as c_int);
        }
    }

    /// Moves the top of `l` into the anchors of `f`. Cannot raise: the slot exists.
    ///
    /// # Safety
    /// `f` went through [`reserve_anchors`](Self::reserve_anchors).
    pub unsafe fn keep_anchor(&self, l: *mut lua_State, f: LuaFiber, which: Anchor) {
        // SAFETY: the caller's contract.
        unsafe {
            lua_xmove(l, self.store, 1);
            lua_rawseti_(self.store, Keep::Anchors as c_int, anchor(&*f, which) as c_int);
        }
    }

    /// Sets an anchor of `f` to a boolean (false: nothing is kept there). Cannot raise.
    ///
    /// # Safety
    /// As for [`keep_anchor`](Self::keep_anchor).
    pub unsafe fn set_anchor(&self, f: LuaFiber, which: Anchor, value: bool) {
        // SAFETY: the caller's contract.
        unsafe {
            lua_pushboolean(self.store, c_int::from(value));
            lua_rawseti_(self.store, Keep::Anchors as c_int, anchor(&*f, which) as c_int);
        }
    }

    /// Pushes an anchor of `f` onto `l`.
    ///
    /// # Safety
    /// As for [`keep_anchor`](Self::keep_anchor); `l` has a free slot.
    pub unsafe fn push_anchor(&self, l: *mut lua_State, f: LuaFiber, which: Anchor) {
        // SAFETY: the caller's contract.
        unsafe {
            lua_rawgeti_(self.store, Keep::Anchors as c_int, anchor(&*f, which) as c_int);
            lua_xmove(self.store, l, 1);
        }
    }

    /// Makes the anchors of record `f` exist. A memory error is raised in `l`.
    ///
    /// # Safety
    /// `l` runs one of our functions, with free slots.
    pub unsafe fn reserve_anchors(&mut self, l: *mut lua_State, f: LuaFiber) {
        // SAFETY: the caller's contract.
        unsafe {
            while self.anchored <= (*f).slot {
                self.push_kept(l, Keep::Anchors);
                for which in 1..=4 {
                    lua_pushboolean(l, 0);
                    lua_rawseti_(l, -2, self.anchored as c_int * 4 + which);
                }
                lua_settop(l, -2);
                self.anchored += 1;
            }
        }
    }

    /// Drops the on_yield triggers of a finished fiber.
    ///
    /// # Safety
    /// `f` is live.
    pub unsafe fn drop_triggers(&mut self, f: LuaFiber) {
        // SAFETY: unref writes slots that exist (the free list was made in `ensure`).
        unsafe {
            let pool = &mut self.cord.triggers;
            while let Some(reference) = (*f).on_yield.pop(pool) {
                luaL_unref(self.store, Keep::Triggers as c_int, reference);
            }
            self.inspect.lists_changed(&mut self.cord.body, -1);
        }
    }

    /// The listener of that number.
    pub fn listener(&self, i: usize) -> Option<Listener> {
        self.cord.body.listeners.get(i).copied()
    }

    /// Runs `job(scratch, state, argument)` under a protected call. False if it raised: the error is dropped.
    /// No wait is possible inside.
    ///
    /// # Safety
    /// `this` is live; jobs nest strictly.
    pub unsafe fn protected(this: *mut State, job: Job, argument: *mut c_void) -> bool {
        // SAFETY: the scratch thread has room for many jobs; everything is put back afterwards.
        unsafe {
            let sl = (*this).scratch;
            let top = lua_gettop(sl);
            let outer = (*this).job.replace((job, argument));
            (*this).cord.body.protected += 1;
            (*this).push_kept(sl, Keep::Protected);
            let status = lua_pcall(sl, 0, 0, 0);
            (*this).cord.body.protected -= 1;
            (*this).job = outer;
            lua_settop(sl, top);
            status == 0
        }
    }
}

unsafe extern "C-unwind" fn l_protected(l: *mut lua_State) -> c_int {
    // SAFETY: called by `State::protected` alone, which set the job.
    unsafe {
        let state = current(l);
        if let Some((job, argument)) = (*state).job {
            job(l, state, argument);
        }
    }
    0
}

unsafe extern "C-unwind" fn l_closed(l: *mut lua_State) -> c_int {
    // SAFETY: the finalizer of the state's userdata, at lua_close: no fiber runs again, since finalizers cannot wait.
    // Suspended stacks are unmapped as they are: unwinding them would run through LuaJIT's frames. What the process would
    // notice besides, the poller's descriptors, is given back.
    unsafe {
        let state = lua_touserdata(l, 1).cast::<State>();
        if !state.is_null() && (*state).library == &raw const LIBRARY {
            super::interrupt::uninstall(state);
            // Another state may get the same addresses.
            LAST.store((&raw const NO_OWNER.0).cast_mut(), Ordering::Release);
            (*state).owner = std::ptr::null();
            crate::server::hub::Hub::close(state);
            (*state).cord.descriptors = Default::default();
            (*state).cord.body.listeners.clear();
            super::capi::closed(state);
            LuaCord::discard_stacks(&raw mut (*state).cord);
            (*state).cord.discard_records();
            (*state).lookups = Lookups::default();
        }
    }
    0
}

/// Its address identifies this copy of the library.
static LIBRARY: u8 = 0;
/// Registry field: the state's userdata.
pub(crate) const STATE_KEY: *const c_char = c"cord.state".as_ptr();
/// Registry field: the table of loaded modules by name.
pub(crate) const MODULES_KEY: *const c_char = c"cord.modules".as_ptr();

/// Pushes a Rust string.
///
/// # Safety
/// `l` is a live thread with a free slot; a memory error is raised in it.
pub unsafe fn push_str(l: *mut lua_State, s: &str) {
    // SAFETY: pointer and length are those of a live str.
    unsafe { lua_pushlstring_(l, s.as_ptr().cast(), s.len()) }
}

/// Which global state a [`State`] belongs to. Never changed and never freed, so that it may be read at any time.
struct Owner {
    global: *const u8,
    state: *mut State,
}

/// Stands where no owner was seen yet: the owner of nothing.
static NO_OWNER: NoOwner = NoOwner(Owner { global: std::ptr::null(), state: std::ptr::null_mut() });

struct NoOwner(Owner);

// SAFETY: its pointers are null, and it never changes.
unsafe impl Sync for NoOwner {}

/// The owner seen last, by whichever OS thread.
static LAST: AtomicPtr<Owner> = AtomicPtr::new((&raw const NO_OWNER.0).cast_mut());

/// The state behind the running C function, which [`register`] made.
///
/// Almost always the one seen last: comparing the thread's global state with it costs a predicted branch, where the way
/// through the function's upvalue is a chain of loads that the rest of a switch waits for (6 of its 36 ns).
///
/// # Safety
/// The running function of `l` was registered through [`register`].
#[inline(always)]
pub unsafe fn current(l: *mut lua_State) -> *mut State {
    // SAFETY: as for `seen_last`.
    unsafe {
        let last = seen_last(l);
        if last.is_null() { current_slow(l) } else { last }
    }
}

/// As [`current`], or null if another state was seen last.
///
/// # Safety
/// As for `current`.
#[inline(always)]
pub unsafe fn seen_last(l: *mut lua_State) -> *mut State {
    // SAFETY: owners are immortal; one is stored only for builds whose global state's pointer was found. In other builds
    // too the word may be read, and is not null.
    unsafe {
        let last = LAST.load(Ordering::Acquire);
        if (*last).global == jit::global(l).cast_const() { (*last).state } else { std::ptr::null_mut() }
    }
}

#[cold]
#[inline(never)]
unsafe fn current_slow(l: *mut lua_State) -> *mut State {
    // SAFETY: `register` put the userdata into the first upvalue of each function.
    unsafe {
        let state: *mut State = lua_touserdata(l, lua_upvalueindex(1)).cast();
        if !(*state).owner.is_null() {
            LAST.store((*state).owner.cast_mut(), Ordering::Release);
        }
        state
    }
}

/// The state of `l`, looked up in the registry: for code that has no upvalue at hand.
///
/// # Safety
/// The library was opened in this Lua state, and `l` has a free slot.
pub unsafe fn find(l: *mut lua_State) -> *mut State {
    // SAFETY: the caller's contract.
    unsafe {
        lua_getfield_(l, LUA_REGISTRYINDEX, STATE_KEY);
        let state = lua_touserdata(l, -1).cast();
        lua_settop(l, -2);
        state
    }
}

/// Adds `functions` to the table on the top of the stack, each with the state as its first upvalue.
///
/// # Safety
/// `l` is live, a table is on its top, and the library was opened in this Lua state.
pub unsafe fn register(l: *mut lua_State, functions: &[Entry]) {
    // SAFETY: the registry holds the userdata since `open`; each push is matched by a setfield.
    unsafe {
        for (name, function) in functions {
            lua_getfield_(l, LUA_REGISTRYINDEX, STATE_KEY);
            lua_pushcclosure(l, *function, 1);
            lua_setfield(l, -2, name.as_ptr());
        }
    }
}

/// Opens the module `name` and leaves it on the stack: the body of every `luaopen_cord*`.
///
/// # Safety
/// `l` is the live state of a host that calls a luaopen function. Raises Lua errors.
pub unsafe fn open(l: *mut lua_State, name: &'static str) -> c_int {
    let luajit = match luajit::load() {
        Ok(luajit) => luajit,
        // SAFETY: as for `open`; the message is moved to Lua before the raise.
        Err(missing) => unsafe { raise(l, luajit::refusal(missing)) },
    };
    // SAFETY: the caller's contract.
    unsafe {
        ensure(l, luajit);
        load_module(l, name, false);
    }
    1
}

/// Pushes the position of whoever called into the library, as `luaL_where` does: the first function on the stack that is
/// none of ours. Nothing for a C function.
///
/// # Safety
/// `l` is live, with free slots.
unsafe fn push_caller(l: *mut lua_State) {
    // SAFETY: the record is filled before it is read; its strings live as long as the functions on the stack.
    unsafe {
        let mut level = 1;
        let mut info: lua_Debug = std::mem::zeroed();
        while lua_getstack(l, level, &raw mut info) != 0 && lua_getinfo(l, c"Sl".as_ptr(), &raw mut info) != 0 {
            let source = CStr::from_ptr(info.short_src.as_ptr());
            if source != c"[cord]" {
                break;
            }
            level += 1;
        }
        luaL_where(l, level);
    }
}

/// Raises `message` as a Lua error with the position of whoever called into the library.
///
/// # Safety
/// `l` is live; no other value with a destructor is alive in the caller's frame.
pub unsafe fn raise(l: *mut lua_State, message: String) -> ! {
    // SAFETY: the string is copied into Lua and dropped before the jump.
    unsafe {
        push_caller(l);
        push_str(l, &message);
        drop(message);
        lua_concat(l, 2);
        lua_error(l)
    }
}

/// Makes the state's record if this Lua state has none yet.
unsafe fn ensure(l: *mut lua_State, luajit: &'static LuaJit) {
    // SAFETY: registry accesses on a live state; the userdata is anchored before it is used.
    unsafe {
        lua_getfield_(l, LUA_REGISTRYINDEX, STATE_KEY);
        let existing: *mut State = lua_touserdata(l, -1).cast();
        lua_settop(l, -2);
        if !existing.is_null() {
            if (*existing).library != &raw const LIBRARY {
                raise(
                    l,
                    "cord: a second copy of the library is loaded under another name: each copy would run a scheduler \
                     of its own, so keep one cord.so in package.cpath and require it by one name"
                        .into(),
                );
            }
            return;
        }
        make(l, luajit);
        lua_createtable(l, 0, MODULES.len() as c_int);
        lua_setfield(l, LUA_REGISTRYINDEX, MODULES_KEY);
    }
}

/// Makes the record and anchors it in the registry.
unsafe fn make(l: *mut lua_State, luajit: &'static LuaJit) {
    // SAFETY: a live state with free slots; the userdata is written before anything can read it, and anchored with the
    // two threads it points to.
    unsafe {
        luaL_checkstack_(l, 16, c"opening cord".as_ptr());
        let proven = jit::prove(l);
        let state: *mut State = lua_newuserdata(l, size_of::<State>()).cast();
        lua_createtable(l, 3, 0);
        let scratch = lua_newthread(l);
        lua_rawseti_(l, -2, 1);
        let store = lua_newthread(l);
        lua_rawseti_(l, -2, 2);
        lua_setfenv(l, -2);
        luaL_checkstack_(scratch, 64, c"opening cord".as_ptr());
        luaL_checkstack_(store, 64, c"opening cord".as_ptr());
        state.write(State {
            library: &raw const LIBRARY,
            luajit,
            scratch,
            store,
            cord: LuaCord::new(LuaBody::new(luajit, proven)),
            inspect: Default::default(),
            server: std::ptr::null_mut(),
            netbox: Default::default(),
            threads_kept: threads_kept(),
            owner: if proven.global {
                Box::leak(Box::new(Owner { global: jit::global(l), state }))
            } else {
                std::ptr::null()
            },
            lookups: Lookups::default(),
            sockets: Sockets::default(),
            pads: 0,
            anchored: 0,
            job: None,
        });
        (*state).cord.body.state = state;
        fill_store(l, state);
        lua_createtable(l, 0, 1);
        lua_pushcclosure(l, l_closed, 0);
        lua_setfield(l, -2, c"__gc".as_ptr());
        lua_setmetatable(l, -2);
        lua_pushvalue(l, -1);
        lua_setfield(l, LUA_REGISTRYINDEX, STATE_KEY);
        super::capi::opened(state);
        let quiet = !proven.hookmask.is_null() && *proven.hookmask & jit::HOOK_ACTIVE == 0;
        if proven.transfer && quiet {
            lua_getfenv(l, -1);
            super::transfer::push_carrier(l, state);
            let carrier = lua_tothread(l, -1);
            lua_rawseti_(l, -2, 3);
            if *jit::status(carrier) == LUA_YIELD as u8 {
                (*state).cord.body.carrier = carrier;
            }
            lua_settop(l, -2);
        }
        lua_settop(l, -2);
    }
}

/// Fills the positions of [`Keep`]; the state's userdata is on the top of `l`.
unsafe fn fill_store(l: *mut lua_State, state: *mut State) {
    // SAFETY: as for `make`.
    unsafe {
        let store = (*state).store;
        lua_settop(store, KEPT);
        lua_createtable(l, 64, 0);
        (*state).keep(l, Keep::Anchors);
        lua_pushvalue(l, -1);
        lua_pushcclosure(l, l_protected, 1);
        (*state).keep(l, Keep::Protected);
        lua_createtable(l, 4, 1);
        // The free list of references must exist before code that may not allocate uses it.
        lua_pushboolean(l, 1);
        let reference = luaL_ref(l, -2);
        luaL_unref(l, -1, reference);
        (*state).keep(l, Keep::Triggers);
        lua_createtable(l, 4, 0);
        (*state).keep(l, Keep::Pads);
        // The records made first: the main fiber's, and nobody's.
        let nobody = (*state).cord.nobody;
        (*state).reserve_anchors(l, nobody);
    }
}

/// Pushes module `name`, running its chunk the first time. With `optional`, an unknown name gives nil.
unsafe fn load_module(l: *mut lua_State, name: &str, optional: bool) {
    // SAFETY: `ensure` ran, so the modules table is there; stack use is bounded and balanced.
    unsafe {
        luaL_checkstack_(l, 8, c"loading cord".as_ptr());
        lua_getfield_(l, LUA_REGISTRYINDEX, MODULES_KEY);
        push_str(l, name);
        lua_rawget_(l, -2);
        if lua_type(l, -1) != LUA_TNIL {
            lua_remove(l, -2);
            return;
        }
        lua_settop(l, -2);
        let Some(module) = MODULES.iter().find(|m| m.name == name) else {
            lua_settop(l, -2);
            if optional {
                lua_pushnil(l);
                return;
            }
            raise(l, format!("cord: no module '{name}' in this library"));
        };
        let source = module.source.as_bytes();
        if luaL_loadbuffer(l, source.as_ptr().cast(), source.len(), c"=[cord]".as_ptr()) != 0 {
            lua_error(l);
        }
        match module.native {
            Some(native) => native(l),
            None => lua_pushnil(l),
        }
        lua_getfield_(l, LUA_REGISTRYINDEX, STATE_KEY);
        lua_pushcclosure(l, l_load, 1);
        lua_call(l, 2, 1);
        // modules[name] = module
        push_str(l, name);
        lua_pushvalue(l, -2);
        lua_rawset(l, -4);
        lua_remove(l, -2);
    }
}

/// `load(name[, optional])`: another module of the library, for its Lua chunks.
unsafe extern "C-unwind" fn l_load(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua; the argument string stays on the stack while its bytes are borrowed.
    unsafe {
        let mut len = 0;
        let ptr = luaL_checklstring(l, 1, &mut len);
        let bytes = std::slice::from_raw_parts(ptr.cast::<u8>(), len);
        match std::str::from_utf8(bytes) {
            Ok(name) => load_module(l, name, lua_toboolean(l, 2) != 0),
            Err(_) => lua_pushnil(l),
        }
    }
    1
}
