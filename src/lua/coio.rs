//! Waiting for descriptors: the raw functions behind `socket.iowait` and every wait of a socket.
//!
//! As everywhere, a raw function that waits returns *(error, results...)*: nil, a number of [`code`](super::body::code)
//! or a text, and then the events that came. A bare wakeup returns nothing; the Lua face waits on.

use super::body::code;
use super::fiber::{arm_deadline, before_wait, fail_with, wait, way};
use super::socket;
use super::state::{self, State};
use crate::sys::luajit::Entry;
use crate::sys::poll::{READ, Readiness, WRITE};
use mlua::ffi::*;
use std::ffi::c_int;
use std::os::fd::RawFd;

/// Registered among the raw functions of `cord.socket`.
pub(super) const FUNCTIONS: &[Entry] = &[(c"iowait", l_iowait)];

/// What a descriptor is ready for right now.
fn glance(fd: RawFd, wanted: Readiness) -> Readiness {
    let mut asked = libc::pollfd { fd, events: 0, revents: 0 };
    if wanted & READ != 0 {
        asked.events |= libc::POLLIN;
    }
    if wanted & WRITE != 0 {
        asked.events |= libc::POLLOUT;
    }
    // SAFETY: one pollfd, and no time to wait.
    if unsafe { libc::poll(&raw mut asked, 1, 0) } <= 0 {
        return 0;
    }
    let broken = asked.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0;
    let mut ready = 0;
    if broken || asked.revents & libc::POLLIN != 0 {
        ready |= READ;
    }
    if broken || asked.revents & libc::POLLOUT != 0 {
        ready |= WRITE;
    }
    ready & wanted
}

/// Begins the wait of the running fiber: `Ok(true)` when it is on the descriptor's list, `Ok(false)` when it is merely
/// at the tail of the ready queue.
unsafe fn begin(s: *mut State, fd: RawFd, wanted: Readiness, no_time: bool, tried: bool) -> Result<bool, String> {
    // SAFETY: the caller's contract: the state is live and its running fiber is about to wait.
    unsafe {
        let cord = &raw mut (*s).cord;
        if no_time {
            let ready = glance(fd, wanted);
            if ready & READ != 0 {
                (*cord).descriptors.touched(fd);
            }
            (*cord).yield_io(ready);
            return Ok(false);
        }
        match (*cord).begin_io_after(fd, wanted, tried) {
            Ok(()) => Ok(true),
            // A plain file is always ready; of a closed descriptor the next call tells.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EBADF)) => {
                (*cord).yield_io(wanted);
                Ok(false)
            }
            Err(error) => Err(format!("cannot wait for descriptor {fd}: {error}")),
        }
    }
}

/// `iowait(descriptor, events, deadline, no_time, tried)`: events are 1 (read), 2 (write) or 3. With `no_time` it looks once
/// and gives the others a turn; with `tried`, the last call on the descriptor gave EAGAIN. Nil or a code, then the events.
unsafe extern "C-unwind" fn l_iowait(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua; no value with a destructor is alive when the wait begins.
    unsafe {
        let s = state::current(l);
        let fd = socket::descriptor_at(l, 1);
        let wanted = lua_tointeger_(l, 2) as Readiness & (READ | WRITE);
        if (*s).cord.is_cancelled() {
            lua_pushinteger(l, code::CANCELLED as lua_Integer);
            return 1;
        }
        let way = match way(s, l) {
            Ok(way) => way,
            Err(text) => return fail_with(l, text),
        };
        before_wait(s, l);
        match begin(s, fd, wanted, lua_toboolean(l, 4) != 0, lua_toboolean(l, 5) != 0) {
            Ok(true) => arm_deadline(s, l, 3),
            Ok(false) => {}
            Err(text) => return fail_with(l, text),
        }
        wait(s, l, way, 0)
    }
}
