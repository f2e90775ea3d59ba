//! Socket addresses between Lua and the system: "host, port" to `sockaddr`, `sockaddr` to a table, and the lookup of names.

use super::body::{LuaFiber, code};
use super::fiber::{arm_deadline, before_wait, fail_with, wait, way};
use super::state::{self, State};
use crate::fiber::fiber::Wait;
use crate::sys::luajit::Entry;
use crate::sys::resolve::{self, Address, Answer, Query, Resolver};
use mlua::ffi::*;
use rustc_hash::FxHashMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::offset_of;
use std::net::IpAddr;

/// Registered among the raw functions of `cord.socket`.
pub(super) const FUNCTIONS: &[Entry] =
    &[(c"lookup", l_lookup), (c"looked_up", l_looked_up), (c"drop_lookup", l_drop_lookup), (c"protocol", l_protocol)];

/// Bytes before the path in `sockaddr_un`.
const PATH_AT: usize = offset_of!(libc::sockaddr_un, sun_path);
/// The longest path, without its NUL.
const PATH_MAX: usize = size_of::<libc::sockaddr_un>() - PATH_AT - 1;

/// An address in a buffer of the largest size.
#[derive(Clone, Copy)]
pub(super) struct SockAddr {
    storage: libc::sockaddr_storage,
    /// Bytes of it that count.
    pub(super) len: libc::socklen_t,
}

impl SockAddr {
    /// Room for the system to write one.
    pub(super) fn room() -> Self {
        // SAFETY: all zeroes is a valid (empty) address.
        let storage = unsafe { std::mem::zeroed() };
        SockAddr { storage, len: size_of::<libc::sockaddr_storage>() as libc::socklen_t }
    }

    /// For a system call to read or write.
    pub(super) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let mut addr = Self::room();
        let len = bytes.len().min(size_of::<libc::sockaddr_storage>());
        // SAFETY: `len` bytes fit in both.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut addr.storage).cast(), len) };
        addr.len = len as libc::socklen_t;
        addr
    }

    fn unix(path: &[u8]) -> Result<Self, c_int> {
        if path.len() > PATH_MAX {
            return Err(libc::ENOBUFS);
        }
        let mut addr = Self::room();
        let un: *mut libc::sockaddr_un = (&raw mut addr.storage).cast();
        // SAFETY: the storage is larger than a sockaddr_un, and the path with its NUL fits.
        unsafe {
            (*un).sun_family = libc::AF_UNIX as libc::sa_family_t;
            std::ptr::copy_nonoverlapping(path.as_ptr(), (&raw mut (*un).sun_path).cast(), path.len());
        }
        // A path ends at its NUL; a name in Linux's abstract space (it begins with one) at the length.
        let ended = if path.first() == Some(&0) { 0 } else { 1 };
        addr.len = (PATH_AT + path.len() + ended) as libc::socklen_t;
        Ok(addr)
    }

    /// What `bind`, `connect` and `sendto` take: numeric addresses only, so that nothing blocks; "unix/" and a path.
    ///
    /// # Errors
    /// An errno: EINVAL for a name, ENOBUFS for a path that is too long.
    pub(super) fn local(host: &[u8], port: &[u8]) -> Result<Self, c_int> {
        if host == b"unix/" {
            return Self::unix(port);
        }
        let digits = port.iter().take_while(|byte| byte.is_ascii_digit());
        let number = digits.fold(0_u32, |n, byte| n.wrapping_mul(10).wrapping_add(u32::from(byte - b'0')));
        let service = CString::new((number & 0xffff).to_string()).map_err(|_| libc::EINVAL)?;
        if host.is_empty() {
            return Err(libc::EINVAL);
        }
        let query = Query {
            host: Some(CString::new(host).map_err(|_| libc::EINVAL)?),
            service: Some(service),
            socktype: libc::SOCK_STREAM,
            flags: libc::AI_NUMERICHOST | libc::AI_NUMERICSERV,
            ..Query::default()
        };
        match resolve::look_up(&query) {
            Ok(list) => list.first().map(|first| Self::from_bytes(&first.bytes)).ok_or(libc::EINVAL),
            Err(_) => Err(libc::EINVAL),
        }
    }

    pub(super) fn family(&self) -> c_int {
        c_int::from(self.storage.ss_family)
    }
}

fn family_name(family: c_int) -> Option<&'static CStr> {
    match family {
        libc::AF_UNIX => Some(c"AF_UNIX"),
        libc::AF_INET => Some(c"AF_INET"),
        libc::AF_INET6 => Some(c"AF_INET6"),
        _ => None,
    }
}

/// Sets field `name` of the table on the top to a text.
unsafe fn set_text(l: *mut lua_State, name: &CStr, text: *const c_char, len: usize) {
    // SAFETY: the caller's contract: a table on the top, free slots.
    unsafe {
        lua_pushlstring_(l, text, len);
        lua_setfield(l, -2, name.as_ptr());
    }
}

/// Pushes an address as a table (family, host, port), or nil for an empty or an unknown one. True if a table.
///
/// # Safety
/// `l` has three free slots; memory errors are raised in it.
pub(super) unsafe fn push_addr(l: *mut lua_State, addr: &SockAddr) -> bool {
    let family = addr.family();
    let name = if addr.len == 0 { None } else { family_name(family) };
    // SAFETY: the caller's contract; nothing here needs a destructor.
    unsafe {
        let Some(name) = name else {
            lua_pushnil(l);
            return false;
        };
        lua_createtable(l, 0, 5);
        set_text(l, c"family", name.as_ptr(), name.count_bytes());
        if family == libc::AF_UNIX {
            let un: *const libc::sockaddr_un = (&raw const addr.storage).cast();
            let most = (addr.len as usize).saturating_sub(PATH_AT).min(PATH_MAX + 1);
            let path = std::slice::from_raw_parts((&raw const (*un).sun_path).cast::<u8>(), most);
            let abstract_name = path.first() == Some(&0) && most > 1;
            let len = if abstract_name { most } else { path.iter().position(|b| *b == 0).unwrap_or(most) };
            set_text(l, c"host", c"unix/".as_ptr(), 5);
            set_text(l, c"port", path.as_ptr().cast(), len);
            return true;
        }
        let (mut host, mut service) = ([0 as c_char; 256], [0 as c_char; 32]);
        let rc = libc::getnameinfo(
            (&raw const addr.storage).cast(),
            addr.len,
            host.as_mut_ptr(),
            host.len() as libc::socklen_t,
            service.as_mut_ptr(),
            service.len() as libc::socklen_t,
            libc::NI_NUMERICHOST | libc::NI_NUMERICSERV,
        );
        if rc == 0 {
            set_text(l, c"host", host.as_ptr(), libc::strlen(host.as_ptr()));
            lua_pushinteger(l, libc::atoi(service.as_ptr()) as lua_Integer);
            lua_setfield(l, -2, c"port".as_ptr());
        }
    }
    true
}

/// Sets the fields `type` and `protocol` of the table on the top.
///
/// # Safety
/// As for [`push_addr`].
pub(super) unsafe fn set_kind(l: *mut lua_State, socktype: c_int, protocol: c_int) {
    #[cfg(target_os = "linux")]
    let socktype = socktype & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let name = match socktype {
        libc::SOCK_STREAM => c"SOCK_STREAM",
        libc::SOCK_DGRAM => c"SOCK_DGRAM",
        libc::SOCK_SEQPACKET => c"SOCK_SEQPACKET",
        libc::SOCK_RAW => c"SOCK_RAW",
        libc::SOCK_RDM => c"SOCK_RDM",
        _ => c"",
    };
    // SAFETY: the caller's contract; getprotobynumber's static buffer is copied at once.
    unsafe {
        if name.is_empty() {
            lua_pushinteger(l, socktype as lua_Integer);
        } else {
            lua_pushstring_(l, name.as_ptr());
        }
        lua_setfield(l, -2, c"type".as_ptr());
        match protocol {
            0 => lua_pushinteger(l, 0),
            libc::IPPROTO_TCP => {
                lua_pushstring_(l, c"tcp".as_ptr());
            }
            libc::IPPROTO_UDP => {
                lua_pushstring_(l, c"udp".as_ptr());
            }
            other => {
                let entry = libc::getprotobynumber(other);
                if entry.is_null() {
                    lua_pushinteger(l, other as lua_Integer);
                } else {
                    lua_pushstring_(l, (*entry).p_name);
                }
            }
        }
        lua_setfield(l, -2, c"protocol".as_ptr());
    }
}

/// `protocol(name)`: its number, or nil.
unsafe extern "C-unwind" fn l_protocol(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua with a string; the result is read at once.
    unsafe {
        let entry = libc::getprotobyname(luaL_checklstring(l, 1, std::ptr::null_mut()));
        if entry.is_null() {
            lua_pushnil(l);
        } else {
            lua_pushinteger(l, (*entry).p_proto as lua_Integer);
        }
    }
    1
}

// ---- lookups ----

enum Lookup {
    /// Asked for; the fiber that waits, if any, and its id when it began to.
    Pending(LuaFiber, u64),
    /// Answered.
    Done(Answer),
}

/// The lookups of one state.
#[derive(Default)]
pub struct Lookups {
    resolver: Resolver,
    tickets: FxHashMap<u64, Lookup>,
    last: u64,
    /// Tickets that are not answered yet.
    pending: usize,
}

/// Whether a lookup of `query` asks nobody: no host, or a numeric one, and a numeric port.
fn is_immediate(query: &Query) -> bool {
    let numeric = |host: &CString| host.to_str().is_ok_and(|host| host.parse::<IpAddr>().is_ok());
    let digits = |service: &CString| service.to_bytes().iter().all(u8::is_ascii_digit);
    query.host.as_ref().is_none_or(numeric) && query.service.as_ref().is_none_or(digits)
}

/// Called at the end of each turn: wakes whoever waits for an answer that has come.
///
/// # Safety
/// `s` is live.
pub(super) unsafe fn before_poll(s: *mut State) {
    // SAFETY: records are never freed; one that serves another fiber now has another id.
    unsafe {
        let lookups = &raw mut (*s).lookups;
        if (*lookups).pending == 0 {
            return;
        }
        for (ticket, answer) in (*lookups).resolver.take() {
            // A ticket that was dropped is not there any more.
            let Some(lookup) = (&mut (*lookups).tickets).get_mut(&ticket) else { continue };
            let before = std::mem::replace(lookup, Lookup::Done(answer));
            (*lookups).pending -= 1;
            (*s).cord.outside -= 1;
            if let Lookup::Pending(f, id) = before
                && !f.is_null()
                && (*f).id == id
                && (*f).wait == Wait::Resolve
            {
                (*s).cord.signal(f);
            }
        }
    }
}

unsafe fn text_at(l: *mut lua_State, idx: c_int) -> Result<Option<CString>, ()> {
    // SAFETY: the bytes are copied while the argument is on the stack.
    unsafe {
        let mut len = 0;
        let at = lua_tolstring(l, idx, &raw mut len);
        if at.is_null() || len == 0 {
            return Ok(None);
        }
        CString::new(std::slice::from_raw_parts(at.cast::<u8>(), len)).map(Some).map_err(drop)
    }
}

unsafe fn query_at(l: *mut lua_State) -> Result<Query, ()> {
    // SAFETY: reads arguments.
    unsafe {
        Ok(Query {
            host: text_at(l, 1)?,
            service: text_at(l, 2)?,
            family: lua_tointeger_(l, 3) as c_int,
            socktype: lua_tointeger_(l, 4) as c_int,
            protocol: lua_tointeger_(l, 5) as c_int,
            flags: lua_tointeger_(l, 6) as c_int,
        })
    }
}

/// Files a lookup and answers it at once if that asks nobody. Returns its ticket.
unsafe fn file(s: *mut State, query: Query) -> Result<u64, String> {
    // SAFETY: the caller's contract: a live state.
    unsafe {
        let lookups = &mut (*s).lookups;
        let ticket = lookups.last + 1;
        let lookup = if is_immediate(&query) {
            Lookup::Done(resolve::look_up(&query))
        } else {
            let waker = (*s).cord.descriptors.waker().map_err(|error| error.to_string())?;
            lookups.resolver.submit(ticket, query, waker).map_err(|error| error.to_string())?;
            lookups.pending += 1;
            (*s).cord.outside += 1;
            Lookup::Pending(std::ptr::null_mut(), 0)
        };
        lookups.last = ticket;
        lookups.tickets.insert(ticket, lookup);
        Ok(ticket)
    }
}

/// `lookup(host, service, family, type, protocol, flags)`: a ticket, or nil and a text.
unsafe extern "C-unwind" fn l_lookup(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua; what owns memory is gone before anything can raise, but for a failure's text.
    unsafe {
        let s = state::current(l);
        let filed = match query_at(l) {
            Ok(query) => file(s, query),
            Err(()) => Err("getaddrinfo: Name or service not known".into()),
        };
        match filed {
            #[allow(clippy::cast_precision_loss)] // a counter
            Ok(ticket) => {
                lua_pushnumber(l, ticket as f64);
                1
            }
            Err(text) => {
                lua_pushnil(l);
                fail_with(l, text);
                2
            }
        }
    }
}

unsafe fn ticket_at(l: *mut lua_State, idx: c_int) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
    // SAFETY: reads one argument.
    unsafe {
        lua_tonumber(l, idx) as u64
    }
}

/// `looked_up(ticket, deadline)`: nil and a list of addresses; nil, nil and a text; or, having waited, nil or a code and
/// a boolean: then it is called again.
unsafe extern "C-unwind" fn l_looked_up(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua. The answer stays in the table of tickets while its values are made.
    unsafe {
        let s = state::current(l);
        let ticket = ticket_at(l, 1);
        let lookups = &raw mut (*s).lookups;
        match (&mut (*lookups).tickets).get_mut(&ticket) {
            None => {
                lua_pushnil(l);
                lua_pushnil(l);
                lua_pushstring_(l, c"getaddrinfo: this lookup was dropped".as_ptr());
                3
            }
            Some(Lookup::Done(answer)) => {
                let n = push_answer(l, answer);
                (&mut (*lookups).tickets).remove(&ticket);
                n
            }
            Some(Lookup::Pending(..)) if (*s).cord.is_cancelled() => {
                lua_pushinteger(l, code::CANCELLED as lua_Integer);
                1
            }
            Some(Lookup::Pending(f, id)) => {
                let way = match way(s, l) {
                    Ok(way) => way,
                    Err(text) => return fail_with(l, text),
                };
                before_wait(s, l);
                let me = (*s).cord.current;
                (*f, *id) = (me, (*me).id);
                (*me).wait = Wait::Resolve;
                arm_deadline(s, l, 2);
                wait(s, l, way, 0)
            }
        }
    }
}

unsafe fn push_answer(l: *mut lua_State, answer: &Answer) -> c_int {
    // SAFETY: the answer is owned by the table of tickets; memory errors are raised past no destructor.
    unsafe {
        lua_pushnil(l);
        match answer {
            Ok(list) => {
                push_list(l, list);
                2
            }
            Err(text) => {
                lua_pushnil(l);
                state::push_str(l, text);
                3
            }
        }
    }
}

unsafe fn push_list(l: *mut lua_State, list: &[Address]) {
    // SAFETY: as for `push_answer`.
    unsafe {
        lua_createtable(l, list.len() as c_int, 0);
        let mut n = 0;
        for address in list {
            if !push_addr(l, &SockAddr::from_bytes(&address.bytes)) {
                lua_settop(l, -2);
                continue;
            }
            set_kind(l, address.socktype, address.protocol);
            if let Some(name) = &address.canonname {
                set_text(l, c"canonname", name.as_ptr(), name.count_bytes());
            }
            n += 1;
            lua_rawseti_(l, -2, n);
        }
    }
}

/// `drop_lookup(ticket)`: nobody wants the answer any more.
unsafe extern "C-unwind" fn l_drop_lookup(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua.
    unsafe {
        let s = state::current(l);
        let ticket = ticket_at(l, 1);
        if let Some(Lookup::Pending(..)) = (&mut (*s).lookups.tickets).remove(&ticket) {
            (*s).lookups.pending -= 1;
            (*s).cord.outside -= 1;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn text(addr: &SockAddr) -> Option<(c_int, u32)> {
        let v4: *const libc::sockaddr_in = (&raw const addr.storage).cast();
        // SAFETY: the storage is larger.
        unsafe { (addr.family() == libc::AF_INET).then(|| (addr.family(), u32::from_be((*v4).sin_addr.s_addr))) }
    }

    #[test]
    fn numeric_hosts_and_paths_only() {
        let there = SockAddr::local(b"127.0.0.1", b"3301").map(|addr| text(&addr));
        assert_eq!(there, Ok(Some((libc::AF_INET, Ipv4Addr::LOCALHOST.to_bits()))));
        assert_eq!(SockAddr::local(b"127.1", b"0").map(|addr| text(&addr)), there);
        assert_eq!(SockAddr::local(b"::1", b"x").map(|addr| addr.family()), Ok(libc::AF_INET6));
        assert_eq!(SockAddr::local(b"localhost", b"1").err(), Some(libc::EINVAL));
        assert_eq!(SockAddr::local(b"", b"1").err(), Some(libc::EINVAL));
        assert_eq!(SockAddr::local(b"unix/", &[b'x'; 200]).err(), Some(libc::ENOBUFS));
        assert_eq!(SockAddr::local(b"unix/", b"/tmp/x").map(|addr| addr.len as usize), Ok(PATH_AT + 7));
    }
}
