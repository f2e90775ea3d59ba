//! Numbers of the system by name: address families, socket types, flags, options, errnos; and the calls that read and set
//! options. A name the system lacks is missing from its table.

use super::socket::{descriptor_at, done, failed, last_errno};
use crate::sys::luajit::Entry;
use mlua::ffi::*;
use std::ffi::{CStr, c_int, c_void};

/// Registered among the raw functions of `cord.socket`.
pub(super) const FUNCTIONS: &[Entry] = &[
    (c"set_int", l_set_int),
    (c"get_int", l_get_int),
    (c"set_text", l_set_text),
    (c"get_text", l_get_text),
    (c"linger", l_linger),
];

type Number = (&'static CStr, c_int);

const DOMAINS: &[Number] = &[
    (c"AF_UNIX", libc::AF_UNIX),
    (c"AF_LOCAL", libc::AF_UNIX),
    (c"AF_INET", libc::AF_INET),
    (c"AF_INET6", libc::AF_INET6),
    (c"PF_UNIX", libc::AF_UNIX),
    (c"PF_LOCAL", libc::AF_UNIX),
    (c"PF_INET", libc::AF_INET),
    (c"PF_INET6", libc::AF_INET6),
    #[cfg(target_os = "linux")]
    (c"AF_NETLINK", libc::AF_NETLINK),
    #[cfg(target_os = "linux")]
    (c"PF_NETLINK", libc::AF_NETLINK),
    #[cfg(target_os = "linux")]
    (c"AF_PACKET", libc::AF_PACKET),
    #[cfg(target_os = "linux")]
    (c"PF_PACKET", libc::AF_PACKET),
];

const TYPES: &[Number] = &[
    (c"SOCK_STREAM", libc::SOCK_STREAM),
    (c"SOCK_DGRAM", libc::SOCK_DGRAM),
    (c"SOCK_SEQPACKET", libc::SOCK_SEQPACKET),
    (c"SOCK_RAW", libc::SOCK_RAW),
    (c"SOCK_RDM", libc::SOCK_RDM),
];

const SEND_FLAGS: &[Number] = &[
    (c"MSG_OOB", libc::MSG_OOB),
    (c"MSG_PEEK", libc::MSG_PEEK),
    (c"MSG_DONTROUTE", libc::MSG_DONTROUTE),
    (c"MSG_CTRUNC", libc::MSG_CTRUNC),
    (c"MSG_TRUNC", libc::MSG_TRUNC),
    (c"MSG_DONTWAIT", libc::MSG_DONTWAIT),
    (c"MSG_EOR", libc::MSG_EOR),
    (c"MSG_WAITALL", libc::MSG_WAITALL),
    #[cfg(target_os = "linux")]
    (c"MSG_CONFIRM", libc::MSG_CONFIRM),
    #[cfg(target_os = "linux")]
    (c"MSG_ERRQUEUE", libc::MSG_ERRQUEUE),
    #[cfg(target_os = "linux")]
    (c"MSG_NOSIGNAL", libc::MSG_NOSIGNAL),
    #[cfg(target_os = "linux")]
    (c"MSG_MORE", libc::MSG_MORE),
    #[cfg(target_os = "linux")]
    (c"MSG_FASTOPEN", libc::MSG_FASTOPEN),
    #[cfg(target_os = "linux")]
    (c"MSG_CMSG_CLOEXEC", libc::MSG_CMSG_CLOEXEC),
];

const AI_FLAGS: &[Number] = &[
    (c"AI_PASSIVE", libc::AI_PASSIVE),
    (c"AI_CANONNAME", libc::AI_CANONNAME),
    (c"AI_NUMERICHOST", libc::AI_NUMERICHOST),
    (c"AI_NUMERICSERV", libc::AI_NUMERICSERV),
    (c"AI_ADDRCONFIG", libc::AI_ADDRCONFIG),
    (c"AI_V4MAPPED", libc::AI_V4MAPPED),
    (c"AI_ALL", libc::AI_ALL),
];

/// How an option's value looks.
#[derive(Clone, Copy)]
enum Kind {
    /// Neither of the others: it has a method of its own, or none.
    Other,
    /// An int.
    Int,
    /// Bytes.
    Text,
}
use Kind::{Int, Other, Text};

/// Name, number, kind, whether it can be set.
type Opt = (&'static CStr, c_int, Kind, bool);

const SOCKET_OPTIONS: &[Opt] = &[
    (c"SO_BROADCAST", libc::SO_BROADCAST, Int, true),
    (c"SO_DEBUG", libc::SO_DEBUG, Int, true),
    (c"SO_ERROR", libc::SO_ERROR, Int, false),
    (c"SO_DONTROUTE", libc::SO_DONTROUTE, Int, true),
    (c"SO_KEEPALIVE", libc::SO_KEEPALIVE, Int, true),
    (c"SO_LINGER", libc::SO_LINGER, Other, false),
    (c"SO_OOBINLINE", libc::SO_OOBINLINE, Int, true),
    (c"SO_RCVBUF", libc::SO_RCVBUF, Int, true),
    (c"SO_RCVLOWAT", libc::SO_RCVLOWAT, Int, true),
    (c"SO_SNDLOWAT", libc::SO_SNDLOWAT, Int, true),
    (c"SO_REUSEADDR", libc::SO_REUSEADDR, Int, true),
    (c"SO_REUSEPORT", libc::SO_REUSEPORT, Int, true),
    (c"SO_SNDBUF", libc::SO_SNDBUF, Int, true),
    (c"SO_TIMESTAMP", libc::SO_TIMESTAMP, Int, true),
    (c"SO_TYPE", libc::SO_TYPE, Int, false),
    (c"SO_ACCEPTCONN", libc::SO_ACCEPTCONN, Int, false),
    #[cfg(target_os = "linux")]
    (c"SO_BINDTODEVICE", libc::SO_BINDTODEVICE, Text, true),
    #[cfg(target_os = "linux")]
    (c"SO_DOMAIN", libc::SO_DOMAIN, Int, false),
    #[cfg(target_os = "linux")]
    (c"SO_MARK", libc::SO_MARK, Int, true),
    #[cfg(target_os = "linux")]
    (c"SO_PASSCRED", libc::SO_PASSCRED, Int, true),
    #[cfg(target_os = "linux")]
    (c"SO_PEERCRED", libc::SO_PEERCRED, Int, false),
    #[cfg(target_os = "linux")]
    (c"SO_PRIORITY", libc::SO_PRIORITY, Int, true),
    #[cfg(target_os = "linux")]
    (c"SO_PROTOCOL", libc::SO_PROTOCOL, Int, false),
    #[cfg(target_os = "linux")]
    (c"SO_RCVBUFFORCE", libc::SO_RCVBUFFORCE, Int, true),
    #[cfg(target_os = "linux")]
    (c"SO_SNDBUFFORCE", libc::SO_SNDBUFFORCE, Int, true),
];

const TCP_OPTIONS: &[Opt] = &[
    (c"TCP_NODELAY", libc::TCP_NODELAY, Int, true),
    (c"TCP_MAXSEG", libc::TCP_MAXSEG, Int, true),
    #[cfg(target_os = "linux")]
    (c"TCP_CORK", libc::TCP_CORK, Int, true),
    #[cfg(target_os = "linux")]
    (c"TCP_KEEPIDLE", libc::TCP_KEEPIDLE, Int, true),
    #[cfg(target_os = "linux")]
    (c"TCP_KEEPINTVL", libc::TCP_KEEPINTVL, Int, true),
    #[cfg(target_os = "linux")]
    (c"TCP_KEEPCNT", libc::TCP_KEEPCNT, Int, true),
    #[cfg(target_os = "linux")]
    (c"TCP_SYNCNT", libc::TCP_SYNCNT, Int, true),
    #[cfg(target_os = "linux")]
    (c"TCP_LINGER2", libc::TCP_LINGER2, Int, true),
    #[cfg(target_os = "linux")]
    (c"TCP_DEFER_ACCEPT", libc::TCP_DEFER_ACCEPT, Int, true),
    #[cfg(target_os = "linux")]
    (c"TCP_WINDOW_CLAMP", libc::TCP_WINDOW_CLAMP, Int, true),
    #[cfg(target_os = "linux")]
    (c"TCP_INFO", libc::TCP_INFO, Other, false),
    #[cfg(target_os = "linux")]
    (c"TCP_QUICKACK", libc::TCP_QUICKACK, Int, true),
    #[cfg(target_os = "linux")]
    (c"TCP_CONGESTION", libc::TCP_CONGESTION, Text, true),
    #[cfg(target_os = "linux")]
    (c"TCP_USER_TIMEOUT", libc::TCP_USER_TIMEOUT, Int, true),
    #[cfg(target_os = "linux")]
    (c"TCP_FASTOPEN", libc::TCP_FASTOPEN, Int, true),
    #[cfg(target_os = "linux")]
    (c"TCP_NOTSENT_LOWAT", libc::TCP_NOTSENT_LOWAT, Int, true),
];

macro_rules! numbers {
    ($($name:ident)*) => {
        &[$((match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => c"",
        }, libc::$name)),*]
    };
}

/// The errnos that the systems have in common.
const ERRNOS: &[Number] = numbers! {
    E2BIG EACCES EADDRINUSE EADDRNOTAVAIL EAFNOSUPPORT EAGAIN EALREADY EBADF EBADMSG EBUSY ECANCELED ECHILD ECONNABORTED
    ECONNREFUSED ECONNRESET EDEADLK EDESTADDRREQ EDOM EDQUOT EEXIST EFAULT EFBIG EHOSTDOWN EHOSTUNREACH EIDRM EILSEQ
    EINPROGRESS EINTR EINVAL EIO EISCONN EISDIR ELOOP EMFILE EMLINK EMSGSIZE EMULTIHOP ENAMETOOLONG ENETDOWN ENETRESET
    ENETUNREACH ENFILE ENOBUFS ENODEV ENOENT ENOEXEC ENOLCK ENOLINK ENOMEM ENOMSG ENOPROTOOPT ENOSPC ENOSYS ENOTBLK
    ENOTCONN ENOTDIR ENOTEMPTY ENOTSOCK ENOTSUP ENOTTY ENXIO EOPNOTSUPP EOVERFLOW EPERM EPFNOSUPPORT EPIPE EPROTO
    EPROTONOSUPPORT EPROTOTYPE ERANGE EREMOTE EROFS ESHUTDOWN ESOCKTNOSUPPORT ESPIPE ESRCH ESTALE ETIMEDOUT
    ETOOMANYREFS ETXTBSY EUSERS EWOULDBLOCK EXDEV
};

unsafe fn push_numbers(l: *mut lua_State, numbers: &[Number]) {
    // SAFETY: the caller's contract: two free slots.
    unsafe {
        lua_createtable(l, 0, numbers.len() as c_int);
        for (name, number) in numbers {
            lua_pushinteger(l, *number as lua_Integer);
            lua_setfield(l, -2, name.as_ptr());
        }
    }
}

unsafe fn push_options(l: *mut lua_State, options: &[Opt]) {
    // SAFETY: the caller's contract: three free slots.
    unsafe {
        lua_createtable(l, 0, options.len() as c_int);
        for (name, number, kind, settable) in options {
            lua_createtable(l, 0, 3);
            lua_pushinteger(l, *number as lua_Integer);
            lua_setfield(l, -2, c"iname".as_ptr());
            lua_pushinteger(l, *kind as lua_Integer);
            lua_setfield(l, -2, c"type".as_ptr());
            lua_pushboolean(l, c_int::from(*settable));
            lua_setfield(l, -2, c"rw".as_ptr());
            lua_setfield(l, -2, name.as_ptr());
        }
    }
}

/// Adds the tables of numbers to the table on the top, under the names Tarantool's `socket.internal` has.
///
/// # Safety
/// `l` has four free slots, a table is on its top; memory errors are raised in it.
pub(super) unsafe fn push_constants(l: *mut lua_State) {
    // SAFETY: the caller's contract; balanced.
    unsafe {
        for (name, numbers) in [
            (c"DOMAIN", DOMAINS),
            (c"SO_TYPE", TYPES),
            (c"SEND_FLAGS", SEND_FLAGS),
            (c"AI_FLAGS", AI_FLAGS),
            (c"ERRNO", ERRNOS),
        ] {
            push_numbers(l, numbers);
            lua_setfield(l, -2, name.as_ptr());
        }
        lua_pushinteger(l, libc::SOL_SOCKET as lua_Integer);
        lua_setfield(l, -2, c"SOL_SOCKET".as_ptr());
        lua_createtable(l, 0, 2);
        push_options(l, SOCKET_OPTIONS);
        lua_rawseti_(l, -2, libc::SOL_SOCKET);
        push_options(l, TCP_OPTIONS);
        lua_rawseti_(l, -2, libc::IPPROTO_TCP);
        lua_setfield(l, -2, c"SO_OPT".as_ptr());
    }
}

unsafe fn place(l: *mut lua_State) -> (c_int, c_int, c_int) {
    // SAFETY: reads arguments.
    unsafe { (descriptor_at(l, 1), lua_tointeger_(l, 2) as c_int, lua_tointeger_(l, 3) as c_int) }
}

/// `set_int(handle, level, option, number)`.
unsafe extern "C-unwind" fn l_set_int(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua; the value and its length belong together.
    unsafe {
        let (fd, level, option) = place(l);
        let value = lua_tointeger_(l, 4) as c_int;
        let len = size_of::<c_int>() as libc::socklen_t;
        done(l, libc::setsockopt(fd, level, option, (&raw const value).cast(), len))
    }
}

/// `get_int(handle, level, option)`.
unsafe extern "C-unwind" fn l_get_int(l: *mut lua_State) -> c_int {
    // SAFETY: as for `l_set_int`.
    unsafe {
        let (fd, level, option) = place(l);
        let mut value: c_int = 0;
        let mut len = size_of::<c_int>() as libc::socklen_t;
        if libc::getsockopt(fd, level, option, (&raw mut value).cast(), &raw mut len) != 0 {
            return failed(l, last_errno());
        }
        lua_pushinteger(l, value as lua_Integer);
    }
    1
}

/// `set_text(handle, level, option, text)`.
unsafe extern "C-unwind" fn l_set_text(l: *mut lua_State) -> c_int {
    // SAFETY: as for `l_set_int`; the text is on the stack.
    unsafe {
        let (fd, level, option) = place(l);
        let mut len = 0;
        let text = luaL_checklstring(l, 4, &raw mut len);
        done(l, libc::setsockopt(fd, level, option, text.cast(), len as libc::socklen_t))
    }
}

/// `get_text(handle, level, option)`: without what follows its NUL.
unsafe extern "C-unwind" fn l_get_text(l: *mut lua_State) -> c_int {
    // SAFETY: as for `l_set_int`.
    unsafe {
        let (fd, level, option) = place(l);
        let mut text = [0_u8; 256];
        let mut len = text.len() as libc::socklen_t;
        if libc::getsockopt(fd, level, option, text.as_mut_ptr().cast::<c_void>(), &raw mut len) != 0 {
            return failed(l, last_errno());
        }
        let text = text.get(..len as usize).unwrap_or_default();
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        lua_pushlstring_(l, text.as_ptr().cast(), text.len());
    }
    1
}

/// `linger(handle)`: whether close waits, and how many seconds; `linger(handle, active, seconds)` sets it.
unsafe extern "C-unwind" fn l_linger(l: *mut lua_State) -> c_int {
    // SAFETY: as for `l_set_int`.
    unsafe {
        let fd = descriptor_at(l, 1);
        let mut value = libc::linger { l_onoff: lua_toboolean(l, 2), l_linger: lua_tointeger_(l, 3) as c_int };
        let mut len = size_of::<libc::linger>() as libc::socklen_t;
        if lua_type(l, 2) == LUA_TBOOLEAN {
            return done(l, libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const value).cast(), len));
        }
        if libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw mut value).cast(), &raw mut len) != 0 {
            return failed(l, last_errno());
        }
        lua_pushboolean(l, c_int::from(value.l_onoff != 0));
        lua_pushinteger(l, value.l_linger as lua_Integer);
    }
    2
}
