//! Names into addresses, on the threads of [`crate::sys::resolve`]: `getaddrinfo` blocks.

use crate::fiber::fiber::Wait;
use crate::lua::body::LuaFiber;
use crate::lua::fiber::{arm_deadline, before_wait, fail_with, room, wait, waiter_of, way};
use crate::lua::state::{self, State};
use crate::sys::resolve::{self, Answer, Query};
use mlua::ffi::*;
use std::ffi::{CString, c_int, c_void};
use std::net::IpAddr;

/// Marks a resolution's ticket among those of requests.
const TICKET: u64 = 1 << 63;

/// Resolutions under way.
#[derive(Default)]
pub struct Resolver {
    threads: resolve::Resolver,
    waiting: Vec<(u64, LuaFiber)>,
    last: u64,
}

/// `resolve(host, deadline)`: true and the addresses as texts; or an error's text; or, having waited, a code.
pub(super) unsafe extern "C-unwind" fn l_resolve(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua. Everything with a destructor is dropped or handed over before the wait.
    unsafe {
        let s = state::current(l);
        let way = match way(s, l) {
            Ok(way) => way,
            Err(text) => return fail_with(l, text),
        };
        let mut len = 0;
        let at = luaL_checklstring(l, 1, &raw mut len);
        match begin(s, std::slice::from_raw_parts(at.cast(), len)) {
            Ok(Some(ip)) => {
                lua_pushboolean(l, 1);
                push_ip(l, ip);
                return 2;
            }
            Ok(None) => {}
            Err(text) => return fail_with(l, text),
        }
        before_wait(s, l);
        let f = (*s).cord.current;
        (*f).wait = Wait::Request;
        arm_deadline(s, l, 2);
        wait(s, l, way, 0)
    }
}

unsafe fn push_ip(l: *mut lua_State, ip: IpAddr) {
    // An address's text fits in the buffer; nothing here needs a destructor.
    let mut buffer = [0_u8; 64];
    let len = {
        use std::io::Write;
        let mut rest = &mut buffer[..];
        let _ = write!(rest, "{ip}");
        64 - rest.len()
    };
    // SAFETY: the buffer is live.
    unsafe { lua_pushlstring_(l, buffer.as_ptr().cast(), len) };
}

/// Queues the lookup; a numeric address needs none.
unsafe fn begin(s: *mut State, host: &[u8]) -> Result<Option<IpAddr>, String> {
    if let Some(ip) = std::str::from_utf8(host).ok().and_then(|text| text.parse().ok()) {
        return Ok(Some(ip));
    }
    let Ok(name) = CString::new(host) else { return Err("getaddrinfo: Name or service not known".into()) };
    // SAFETY: the caller's state.
    unsafe {
        super::listener(s);
        let waker = (*s).cord.descriptors.waker().map_err(|error| error.to_string())?;
        let resolver = &mut (*s).netbox.resolver;
        resolver.last += 1;
        let ticket = TICKET | resolver.last;
        let query = Query { host: Some(name), socktype: libc::SOCK_STREAM, ..Query::default() };
        resolver.threads.submit(ticket, query, waker).map_err(|error| format!("getaddrinfo: {error}"))?;
        let f = (*s).cord.current;
        (*f).data.ticket = ticket;
        resolver.waiting.push((ticket, f));
        (*s).cord.outside += 1;
    }
    Ok(None)
}

/// Hands finished resolutions to the fibers that still wait for them.
///
/// # Safety
/// `s` is live; called between two fibers' turns.
pub unsafe fn deliver(s: *mut State) {
    // SAFETY: the caller's contract; a job drops nothing of ours.
    unsafe {
        if (*s).netbox.resolver.waiting.is_empty() {
            return;
        }
        let done = (*s).netbox.resolver.threads.take();
        for (ticket, answer) in done {
            (*s).cord.outside -= 1;
            let waiting = &mut (*s).netbox.resolver.waiting;
            let Some(i) = waiting.iter().position(|(other, _)| *other == ticket) else { continue };
            let (_, f) = waiting.swap_remove(i);
            if (*f).wait == Wait::Request && (*f).data.ticket == ticket && (*f).data.nargs == 0 {
                let mut found = Found { f, answer: &raw const answer };
                State::protected(s, push_answer, (&raw mut found).cast());
                (*s).cord.signal(f);
            }
        }
    }
}

struct Found {
    f: LuaFiber,
    answer: *const Answer,
}

unsafe fn push_answer(l: *mut lua_State, s: *mut State, argument: *mut c_void) {
    let found = argument.cast::<Found>();
    // SAFETY: called under the protection of `deliver`, which owns the answer.
    unsafe {
        let n = match &*(*found).answer {
            Err(text) => {
                state::push_str(l, text);
                1
            }
            Ok(addresses) => {
                luaL_checkstack_(l, 40, c"resolving".as_ptr());
                lua_pushboolean(l, 1);
                addresses.iter().filter_map(resolve::Address::ip).take(12).for_each(|ip| push_ip(l, ip));
                1 + addresses.iter().filter_map(resolve::Address::ip).take(12).count() as c_int
            }
        };
        let f = (*found).f;
        if room(s, waiter_of(f), n) {
            lua_xmove(l, waiter_of(f), n);
            (*f).data.nargs = n;
        }
    }
}
