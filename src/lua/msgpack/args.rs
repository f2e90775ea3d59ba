//! The arguments of a running C function, read where LuaJIT keeps them: each call of the C API that asks for a type or a
//! number costs as much as all of this. Where the places were not proved, the C API is asked.

use super::Codec;
use super::direct::{self, Layout, NUMX, POINTER, STR, TAB, UDATA, read};
use crate::lua::jit::OFFSET_BASE;
use mlua::ffi::*;
use std::ffi::{c_int, c_void};

/// The arguments of the function that runs on a thread. Positions count from 1; beyond the last one all are nil.
#[derive(Clone, Copy)]
pub(crate) struct Args {
    l: *mut lua_State,
    /// How many there are; 0 where the C API is to be asked.
    count: usize,
    layout: Layout,
}

impl Args {
    /// Those of the C function that `l` runs.
    ///
    /// # Safety
    /// `l` is live for as long as the value is used, its function has just been called, and `codec` is live.
    #[inline(always)]
    pub(crate) unsafe fn new(l: *mut lua_State, codec: *const Codec) -> Args {
        // SAFETY: the shared state outlives every codec; base and top are where they were proved to be.
        unsafe {
            match (*(*codec).shared).layout.get() {
                Some(layout) if layout.udata != 0 => {
                    let base: usize = read(l.cast::<u8>(), OFFSET_BASE);
                    let top: usize = read(l.cast::<u8>(), OFFSET_BASE + 8);
                    Args { l, count: (top - base) / 8, layout }
                }
                _ => Args { l, count: 0, layout: Layout::NONE },
            }
        }
    }

    /// The raw value at a position.
    ///
    /// # Safety
    /// `count` is not 0. So for all methods here, with the contract of [`new`](Self::new).
    #[inline(always)]
    unsafe fn bits(self, idx: c_int) -> u64 {
        let at = idx.unsigned_abs() as usize - 1;
        if at >= self.count {
            return u64::MAX;
        }
        // SAFETY: the arguments stay on the stack; where it begins is read anew, since it may move.
        unsafe {
            let base: *const u64 = read(self.l.cast::<u8>(), OFFSET_BASE);
            *base.add(at)
        }
    }

    /// Whether there is a table.
    ///
    /// # Safety
    /// As [`new`](Self::new).
    #[inline(always)]
    pub(crate) unsafe fn is_table(self, idx: c_int) -> bool {
        // SAFETY: the caller's contract.
        unsafe { if self.count > 0 { self.bits(idx) >> 47 == TAB } else { lua_type(self.l, idx) == LUA_TTABLE } }
    }

    /// Whether there is a string.
    ///
    /// # Safety
    /// As [`new`](Self::new).
    #[inline(always)]
    pub(crate) unsafe fn is_string(self, idx: c_int) -> bool {
        // SAFETY: the caller's contract.
        unsafe { if self.count > 0 { self.bits(idx) >> 47 == STR } else { lua_type(self.l, idx) == LUA_TSTRING } }
    }

    /// Whether there is a number.
    ///
    /// # Safety
    /// As [`new`](Self::new).
    #[inline(always)]
    pub(crate) unsafe fn is_number(self, idx: c_int) -> bool {
        // SAFETY: the caller's contract.
        unsafe { if self.count > 0 { self.bits(idx) >> 47 <= NUMX } else { lua_type(self.l, idx) == LUA_TNUMBER } }
    }

    /// It as a number; 0 if it is none.
    ///
    /// # Safety
    /// As [`new`](Self::new).
    #[inline(always)]
    pub(crate) unsafe fn number(self, idx: c_int) -> f64 {
        // SAFETY: the caller's contract.
        unsafe {
            if self.count > 0 {
                let bits = self.bits(idx);
                if bits >> 47 < NUMX {
                    return f64::from_bits(bits);
                }
            }
            lua_tonumber(self.l, idx)
        }
    }

    /// The bytes of a string; none if it is none. They live as long as the argument does.
    ///
    /// # Safety
    /// As [`new`](Self::new).
    #[inline(always)]
    pub(crate) unsafe fn bytes<'a>(self, idx: c_int) -> &'a [u8] {
        // SAFETY: the caller's contract.
        unsafe {
            if self.count > 0 {
                let bits = self.bits(idx);
                if bits >> 47 == STR {
                    return self.layout.bytes(bits);
                }
            }
            super::bytes_of(self.l, idx)
        }
    }

    /// The memory of a userdata; null if it is none.
    ///
    /// # Safety
    /// As [`new`](Self::new).
    #[inline(always)]
    pub(crate) unsafe fn userdata(self, idx: c_int) -> *mut c_void {
        // SAFETY: the caller's contract. Light userdata, which have no memory behind them, have another type.
        unsafe {
            if self.count > 0 {
                let bits = self.bits(idx);
                let at = (bits & POINTER) as usize + self.layout.udata;
                return if bits >> 47 == UDATA { at as *mut c_void } else { std::ptr::null_mut() };
            }
            if lua_type(self.l, idx) == LUA_TUSERDATA { lua_touserdata(self.l, idx) } else { std::ptr::null_mut() }
        }
    }

    /// Appends the table at `idx`, if it is one that can be encoded where it is; otherwise nothing is appended.
    ///
    /// # Safety
    /// As [`new`](Self::new), with the same codec.
    #[inline(always)]
    pub(crate) unsafe fn encode_table(self, idx: c_int, out: &mut Vec<u8>, codec: *const Codec) -> bool {
        // SAFETY: the table is on the stack, and no Lua code runs, so the options do not change either.
        unsafe {
            if self.count == 0 {
                return false;
            }
            let address = (self.bits(idx) & POINTER) as *const c_void;
            let (options, shared) = (&*(*codec).options.as_ptr(), &*(*codec).shared);
            direct::table(address, 0, out, options, shared, self.layout, direct::Tuples::GiveUp).is_ok()
        }
    }

    /// Whether the table at `idx` holds `true` under the name `key`, of eight bytes, and nothing else. `None`: not known.
    ///
    /// # Safety
    /// As [`new`](Self::new); there is a table.
    #[inline(always)]
    pub(crate) unsafe fn is_flag(self, idx: c_int, key: [u8; 8]) -> Option<bool> {
        // SAFETY: the caller's contract.
        unsafe {
            if self.count == 0 {
                return None;
            }
            direct::is_flag((self.bits(idx) & POINTER) as *const u8, key, self.layout)
        }
    }
}
