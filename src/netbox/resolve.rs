//! Names into addresses, on threads of their own: `getaddrinfo` blocks.

use crate::fiber::fiber::Wait;
use crate::lua::body::LuaFiber;
use crate::lua::fiber::{arm_deadline, before_wait, fail_with, room, wait, waiter_of, way};
use crate::lua::state::{self, State};
use mlua::ffi::*;
use std::ffi::{CStr, CString, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

type Answer = Result<Vec<IpAddr>, String>;
type Answers = Arc<Mutex<Vec<(u64, Answer)>>>;

/// Marks a resolution's ticket among those of requests.
const TICKET: u64 = 1 << 63;

/// Resolutions under way.
#[derive(Default)]
pub struct Resolver {
    answers: Answers,
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

/// Starts a thread; a numeric address needs none.
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
        let answers = resolver.answers.clone();
        let thread = std::thread::Builder::new().name("cord getaddrinfo".into()).spawn(move || {
            let answer = lookup(&name);
            answers.lock().unwrap_or_else(PoisonError::into_inner).push((ticket, answer));
            let _ = waker.wake();
        });
        if let Err(error) = thread {
            return Err(format!("getaddrinfo: {error}"));
        }
        let f = (*s).cord.current;
        (*f).data.ticket = ticket;
        resolver.waiting.push((ticket, f));
        (*s).cord.outside += 1;
    }
    Ok(None)
}

fn lookup(name: &CStr) -> Answer {
    let mut list: *mut libc::addrinfo = std::ptr::null_mut();
    // SAFETY: hints are zero but for two fields; the list is freed after it was read.
    unsafe {
        let mut hints: libc::addrinfo = std::mem::zeroed();
        hints.ai_family = libc::AF_UNSPEC;
        hints.ai_socktype = libc::SOCK_STREAM;
        let code = libc::getaddrinfo(name.as_ptr(), std::ptr::null(), &raw const hints, &raw mut list);
        if code != 0 {
            let text = CStr::from_ptr(libc::gai_strerror(code)).to_string_lossy();
            return Err(format!("getaddrinfo: {text}"));
        }
        let mut found = Vec::new();
        let mut at = list;
        while !at.is_null() {
            match (*at).ai_family {
                libc::AF_INET => {
                    let address = (*at).ai_addr.cast::<libc::sockaddr_in>();
                    found.push(IpAddr::V4(Ipv4Addr::from(u32::from_be((*address).sin_addr.s_addr))));
                }
                libc::AF_INET6 => {
                    let address = (*at).ai_addr.cast::<libc::sockaddr_in6>();
                    found.push(IpAddr::V6(Ipv6Addr::from((*address).sin6_addr.s6_addr)));
                }
                _ => {}
            }
            at = (*at).ai_next;
        }
        libc::freeaddrinfo(list);
        Ok(found)
    }
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
        let answers = (&(*s).netbox.resolver.answers).clone();
        let done = std::mem::take(&mut *answers.lock().unwrap_or_else(PoisonError::into_inner));
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
            Ok(ips) => {
                luaL_checkstack_(l, 40, c"resolving".as_ptr());
                lua_pushboolean(l, 1);
                ips.iter().take(12).for_each(|ip| push_ip(l, *ip));
                1 + ips.len().min(12) as c_int
            }
        };
        let f = (*found).f;
        if room(s, waiter_of(f), n) {
            lua_xmove(l, waiter_of(f), n);
            (*f).data.nargs = n;
        }
    }
}
