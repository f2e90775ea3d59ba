//! The raw functions behind `cord.socket`: a handle that owns a descriptor and its read buffer, and one function a system
//! call. None of these waits (see `coio.rs`): descriptors are non-blocking, and EAGAIN goes back to socket.lua.
//!
//! A function returns its value, or nil and an errno; with something that is no open socket in the first place it returns
//! nil and EBADF. EINTR never gets out.

use super::sockaddr::{self, SockAddr, push_addr, set_kind};
use super::state::{self, State};
use super::{coio, sockopt};
use crate::fiber::Cord;
use crate::lua::body::Listener;
use crate::sys::luajit::Entry;
use memchr::memmem;
use mlua::ffi::*;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::RawFd;

/// Bytes asked of the system at once, as in Tarantool.
const READAHEAD: usize = 16_320;
/// Reads in a row before others get their turn.
const ROUNDS: u32 = 64;
/// An empty buffer larger than this is given back to the system.
const SPARE_MAX: usize = 256 * 1024;

/// The userdata inside a socket object.
#[repr(C)]
struct Handle {
    kind: *const u8,
    fd: RawFd,
    /// A byte stream: a read that gives less than was asked for has given all there was. (Not after urgent data, which
    /// stream sockets have and nobody uses.)
    stream: bool,
    buffer: Buffer,
}

/// Its address marks our handles among all userdata.
static HANDLE: u8 = 0;

/// Bytes that were read and not asked for yet.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    /// How far the read under way has looked for delimiters,
    searched: usize,
    /// and which fiber's that is.
    reader: u64,
}

impl Buffer {
    fn data(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    fn consume(&mut self, n: usize) {
        self.start += n;
        self.searched = 0;
        if self.start >= self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        }
    }

    /// Room for `n` more bytes. False if there is no memory.
    fn reserve(&mut self, n: usize) -> bool {
        if self.bytes.capacity() - self.bytes.len() >= n {
            return true;
        }
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.try_reserve(n).is_ok()
    }
}

/// What the sockets of one state share.
#[derive(Default)]
pub struct Sockets {
    /// Storage that goes from one empty buffer to the next: an idle connection holds none.
    spare: Vec<u8>,
    metatable: c_int,
    listening: bool,
}

const FUNCTIONS: &[Entry] = &[
    (c"socket", l_socket),
    (c"pair", l_pair),
    (c"adopt", l_adopt),
    (c"fd", l_fd),
    (c"close", l_close),
    (c"detach", l_detach),
    (c"connect", l_connect),
    (c"bind", l_bind),
    (c"listen", l_listen),
    (c"accept", l_accept),
    (c"shutdown", l_shutdown),
    (c"nonblock", l_nonblock),
    (c"write", l_write),
    (c"sysread", l_sysread),
    (c"read", l_read),
    (c"send", l_send),
    (c"recv", l_recv),
    (c"sendto", l_sendto),
    (c"name", l_name),
    (c"peer", l_peer),
    (c"unlink", l_unlink),
];

/// Pushes the native half of `cord.socket`.
///
/// # Safety
/// A live state with free slots, in which the library was opened.
pub(crate) unsafe fn native(l: *mut lua_State) {
    // SAFETY: the caller's contract; the table stays on the top throughout.
    unsafe {
        lua_createtable(l, 0, 40);
        for functions in [FUNCTIONS, coio::FUNCTIONS, sockaddr::FUNCTIONS, sockopt::FUNCTIONS] {
            state::register(l, functions);
        }
        sockopt::push_constants(l);
        // The metatable of handles, with a finalizer that closes.
        lua_createtable(l, 0, 2);
        state::register(l, &[(c"__gc", l_close)]);
        lua_pushboolean(l, 0);
        lua_setfield(l, -2, c"__metatable".as_ptr());
        let s = state::find(l);
        (*s).sockets.metatable = luaL_ref(l, LUA_REGISTRYINDEX);
        if !(*s).sockets.listening {
            (*s).sockets.listening = true;
            (*s).cord.body.listeners.push(Listener { before_poll: sockaddr::before_poll, event: no_event });
        }
    }
}

unsafe fn no_event(_: *mut State, _: usize, _: crate::sys::poll::Readiness) {}

// ---- handles, results ----

/// Pushes a handle without a descriptor.
unsafe fn push_handle(s: *mut State, l: *mut lua_State) -> *mut Handle {
    // SAFETY: the caller's contract: free slots. The userdata is whole before anything can look at it.
    unsafe {
        let handle: *mut Handle = lua_newuserdata(l, size_of::<Handle>()).cast();
        handle.write(Handle { kind: &raw const HANDLE, fd: -1, stream: false, buffer: Buffer::default() });
        lua_rawgeti_(l, LUA_REGISTRYINDEX, (*s).sockets.metatable);
        lua_setmetatable(l, -2);
        handle
    }
}

/// The handle at `idx`, or null if it is something else.
unsafe fn handle_at(l: *mut lua_State, idx: c_int) -> *mut Handle {
    // SAFETY: a userdata of our size may be read; only ours starts with our mark.
    unsafe {
        if lua_type(l, idx) != LUA_TUSERDATA || lua_objlen(l, idx) != size_of::<Handle>() {
            return std::ptr::null_mut();
        }
        let handle: *mut Handle = lua_touserdata(l, idx).cast();
        if (*handle).kind == &raw const HANDLE { handle } else { std::ptr::null_mut() }
    }
}

/// The descriptor that argument `idx` means, a handle or a number, or -1.
///
/// # Safety
/// `l` runs one of our functions.
pub(super) unsafe fn descriptor_at(l: *mut lua_State, idx: c_int) -> RawFd {
    // SAFETY: reads one argument.
    unsafe {
        let handle = handle_at(l, idx);
        if !handle.is_null() {
            (*handle).fd
        } else if lua_type(l, idx) == LUA_TNUMBER {
            lua_tointeger_(l, idx) as RawFd
        } else {
            -1
        }
    }
}

/// The number the last failed system call left.
pub(super) fn last_errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Returns nil and an errno.
pub(super) unsafe fn failed(l: *mut lua_State, errno: c_int) -> c_int {
    // SAFETY: every C function has free slots.
    unsafe {
        lua_pushnil(l);
        lua_pushinteger(l, errno as lua_Integer);
    }
    2
}

/// Returns true, or what a call that gave `rc` failed of.
pub(super) unsafe fn done(l: *mut lua_State, rc: c_int) -> c_int {
    // SAFETY: every C function has free slots.
    unsafe {
        if rc < 0 {
            return failed(l, last_errno());
        }
        lua_pushboolean(l, 1);
    }
    1
}

/// Calls until no signal interrupts.
fn retry(mut call: impl FnMut() -> isize) -> Result<usize, c_int> {
    loop {
        let n = call();
        if let Ok(n) = usize::try_from(n) {
            return Ok(n);
        }
        match last_errno() {
            libc::EINTR => {}
            errno => return Err(errno),
        }
    }
}

/// The bytes of a string argument. They live while it is on the stack.
unsafe fn bytes_at<'a>(l: *mut lua_State, idx: c_int) -> &'a [u8] {
    // SAFETY: the caller keeps the argument where it is.
    unsafe {
        let mut len = 0;
        let at = lua_tolstring(l, idx, &raw mut len);
        if at.is_null() { &[] } else { std::slice::from_raw_parts(at.cast(), len) }
    }
}

/// Takes storage from the spare one if the buffer has none.
unsafe fn borrow_spare(s: *mut State, buffer: *mut Buffer) {
    // SAFETY: both are live and distinct.
    unsafe {
        if (*buffer).bytes.capacity() == 0 {
            std::mem::swap(&mut (*buffer).bytes, &mut (*s).sockets.spare);
        }
    }
}

/// Gives an empty buffer's storage to whoever needs some next.
unsafe fn return_spare(s: *mut State, buffer: *mut Buffer) {
    // SAFETY: as for `borrow_spare`.
    unsafe {
        if !(*buffer).bytes.is_empty() {
            return;
        }
        let bytes = std::mem::take(&mut (*buffer).bytes);
        if (*s).sockets.spare.capacity() == 0 && bytes.capacity() <= SPARE_MAX {
            (*s).sockets.spare = bytes;
        }
    }
}

// ---- birth and death ----

#[cfg(target_os = "linux")]
const ATOMIC: c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const ATOMIC: c_int = 0;

/// What Linux does in the call that makes a descriptor.
fn prepare(fd: RawFd) {
    if ATOMIC == 0 {
        // SAFETY: plain calls on a descriptor that was just made.
        unsafe {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
            libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK);
        }
    }
}

/// Makes a stream socket that does not block and begins to connect it: to a numeric address and a port, or to "unix/" and
/// a path. The descriptor, if one was made (else -1), is the caller's to close even where this fails.
pub(crate) fn dial(host: &[u8], port: &[u8]) -> (RawFd, Result<(), c_int>) {
    let mut addr = match SockAddr::local(host, port) {
        Ok(addr) => addr,
        Err(errno) => return (-1, Err(errno)),
    };
    // SAFETY: plain calls; the address and its length belong together.
    unsafe {
        let fd = libc::socket(addr.family(), libc::SOCK_STREAM | ATOMIC, 0);
        if fd < 0 {
            return (-1, Err(last_errno()));
        }
        prepare(fd);
        // Fails on unix sockets, where there is nothing to delay.
        let yes: c_int = 1;
        let len = size_of::<c_int>() as libc::socklen_t;
        libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, (&raw const yes).cast(), len);
        if libc::connect(fd, addr.as_mut_ptr(), addr.len) == 0 || last_errno() == libc::EINPROGRESS {
            return (fd, Ok(()));
        }
        (fd, Err(last_errno()))
    }
}

/// Puts a new descriptor into a handle. Whatever had its number is gone.
unsafe fn own(s: *mut State, handle: *mut Handle, fd: RawFd, stream: bool) {
    // SAFETY: the caller's contract: both are live.
    unsafe {
        prepare(fd);
        (*s).cord.descriptors.forget(fd);
        (*handle).fd = fd;
        (*handle).stream = stream;
    }
}

/// Whether a type, flags and all, is that of byte streams.
fn is_stream(kind: lua_Integer) -> bool {
    #[cfg(target_os = "linux")]
    let kind = kind & !((libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) as lua_Integer);
    kind == libc::SOCK_STREAM as lua_Integer
}

/// `socket(domain, type, protocol)`: a handle.
unsafe extern "C-unwind" fn l_socket(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua. The handle is made first: a memory error leaves no descriptor behind.
    unsafe {
        let s = state::current(l);
        let (domain, kind, protocol) = (lua_tointeger_(l, 1), lua_tointeger_(l, 2), lua_tointeger_(l, 3));
        let handle = push_handle(s, l);
        let fd = libc::socket(domain as c_int, kind as c_int | ATOMIC, protocol as c_int);
        if fd < 0 {
            return failed(l, last_errno());
        }
        own(s, handle, fd, is_stream(kind));
    }
    1
}

/// `pair(domain, type, protocol)`: two handles.
unsafe extern "C-unwind" fn l_pair(l: *mut lua_State) -> c_int {
    // SAFETY: as for `l_socket`.
    unsafe {
        let s = state::current(l);
        let (domain, kind, protocol) = (lua_tointeger_(l, 1), lua_tointeger_(l, 2), lua_tointeger_(l, 3));
        let (one, other) = (push_handle(s, l), push_handle(s, l));
        let mut fds = [-1; 2];
        let rc = libc::socketpair(domain as c_int, kind as c_int | ATOMIC, protocol as c_int, fds.as_mut_ptr());
        if rc < 0 {
            return failed(l, last_errno());
        }
        own(s, one, fds[0], is_stream(kind));
        own(s, other, fds[1], is_stream(kind));
    }
    2
}

/// `adopt(fd)`: a handle that owns the descriptor, as it is; and its socket type, or 0.
unsafe extern "C-unwind" fn l_adopt(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua.
    unsafe {
        let s = state::current(l);
        let fd = lua_tointeger_(l, 1) as RawFd;
        let kind = option_of(fd, libc::SO_TYPE).unwrap_or(0);
        let handle = push_handle(s, l);
        (*s).cord.descriptors.forget(fd);
        (*handle).fd = fd;
        (*handle).stream = kind == libc::SOCK_STREAM;
        lua_pushinteger(l, kind as lua_Integer);
    }
    2
}

/// An integer option at the socket level.
fn option_of(fd: RawFd, option: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the buffer and its length belong together.
    let rc = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut len) };
    (rc == 0).then_some(value)
}

/// `fd(handle)`: the number; nil when it is closed; false for something else.
unsafe extern "C-unwind" fn l_fd(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua.
    unsafe {
        let handle = handle_at(l, 1);
        if handle.is_null() {
            lua_pushboolean(l, 0);
        } else if (*handle).fd < 0 {
            lua_pushnil(l);
        } else {
            lua_pushinteger(l, (*handle).fd as lua_Integer);
        }
    }
    1
}

/// `close(handle)`, also the finalizer. Whoever waits for the descriptor is woken first.
unsafe extern "C-unwind" fn l_close(l: *mut lua_State) -> c_int {
    // SAFETY: called by Lua; the state outlives every userdata's finalizer.
    unsafe {
        let s = state::current(l);
        let handle = handle_at(l, 1);
        if handle.is_null() {
            return failed(l, libc::EBADF);
        }
        drop(std::mem::take(&mut (*handle).buffer));
        let fd = std::mem::replace(&mut (*handle).fd, -1);
        if fd < 0 {
            return failed(l, libc::EBADF);
        }
        Cord::closing(&raw mut (*s).cord, fd);
        // After EINTR the descriptor is gone all the same on Linux and macOS.
        let rc = libc::close(fd);
        if rc < 0 && last_errno() == libc::EINTR { done(l, 0) } else { done(l, rc) }
    }
}

/// `detach(handle)`: the handle no longer owns its descriptor, which stays open.
unsafe extern "C-unwind" fn l_detach(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua.
    unsafe {
        let s = state::current(l);
        let handle = handle_at(l, 1);
        if !handle.is_null() {
            Cord::closing(&raw mut (*s).cord, (*handle).fd);
            (*handle).fd = -1;
        }
    }
    0
}

// ---- addresses ----

/// The address of arguments 2 and 3.
unsafe fn addr_at(l: *mut lua_State) -> Result<SockAddr, c_int> {
    // SAFETY: socket.lua passes strings.
    unsafe { SockAddr::local(bytes_at(l, 2), bytes_at(l, 3)) }
}

/// `connect(handle, host, port)`.
unsafe extern "C-unwind" fn l_connect(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua.
    unsafe {
        let fd = descriptor_at(l, 1);
        match addr_at(l) {
            Err(errno) => failed(l, errno),
            Ok(mut addr) => {
                if libc::connect(fd, addr.as_mut_ptr(), addr.len) == 0 {
                    return done(l, 0);
                }
                // An interrupted connect goes on by itself.
                match last_errno() {
                    libc::EINTR => failed(l, libc::EINPROGRESS),
                    errno => failed(l, errno),
                }
            }
        }
    }
}

/// `bind(handle, host, port)`.
unsafe extern "C-unwind" fn l_bind(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua.
    unsafe {
        match addr_at(l) {
            Err(errno) => failed(l, errno),
            Ok(mut addr) => done(l, libc::bind(descriptor_at(l, 1), addr.as_mut_ptr(), addr.len)),
        }
    }
}

/// `listen(handle, backlog)`.
unsafe extern "C-unwind" fn l_listen(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua.
    unsafe { done(l, libc::listen(descriptor_at(l, 1), lua_tointeger_(l, 2) as c_int)) }
}

#[cfg(target_os = "linux")]
unsafe fn accept(fd: RawFd, addr: &mut SockAddr) -> c_int {
    // SAFETY: the buffer and its length belong together.
    unsafe { libc::accept4(fd, addr.as_mut_ptr(), &raw mut addr.len, ATOMIC) }
}

#[cfg(not(target_os = "linux"))]
unsafe fn accept(fd: RawFd, addr: &mut SockAddr) -> c_int {
    // SAFETY: as above.
    unsafe { libc::accept(fd, addr.as_mut_ptr(), &raw mut addr.len) }
}

/// `accept(handle)`: a handle and the peer's address.
unsafe extern "C-unwind" fn l_accept(l: *mut lua_State) -> c_int {
    // SAFETY: as for `l_socket`.
    unsafe {
        let s = state::current(l);
        let listener = handle_at(l, 1);
        if listener.is_null() {
            return failed(l, libc::EBADF);
        }
        let (fd, stream) = ((*listener).fd, (*listener).stream);
        let handle = push_handle(s, l);
        let mut addr = SockAddr::room();
        match retry(|| accept(fd, &mut addr) as isize) {
            Err(errno) => failed(l, errno),
            Ok(accepted) => {
                own(s, handle, accepted as RawFd, stream);
                push_addr(l, &addr);
                2
            }
        }
    }
}

type GetName = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int;

unsafe fn push_name(l: *mut lua_State, get: GetName) -> c_int {
    // SAFETY: the buffer and its length belong together.
    unsafe {
        let fd = descriptor_at(l, 1);
        let mut addr = SockAddr::room();
        if get(fd, addr.as_mut_ptr(), &raw mut addr.len) != 0 {
            return failed(l, last_errno());
        }
        if push_addr(l, &addr) {
            #[cfg(target_os = "linux")]
            let protocol = option_of(fd, libc::SO_PROTOCOL).unwrap_or(0);
            #[cfg(not(target_os = "linux"))]
            let protocol = 0;
            set_kind(l, option_of(fd, libc::SO_TYPE).unwrap_or(0), protocol);
        }
    }
    1
}

/// `name(handle)`: the address it is bound to.
unsafe extern "C-unwind" fn l_name(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua.
    unsafe { push_name(l, libc::getsockname) }
}

/// `peer(handle)`: the address of the other end.
unsafe extern "C-unwind" fn l_peer(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua.
    unsafe { push_name(l, libc::getpeername) }
}

/// `unlink(path)`: removes a unix socket's file.
unsafe extern "C-unwind" fn l_unlink(l: *mut lua_State) -> c_int {
    // SAFETY: Lua's strings end in a NUL.
    unsafe { done(l, libc::unlink(luaL_checklstring(l, 1, std::ptr::null_mut()))) }
}

/// `shutdown(handle, how)`.
unsafe extern "C-unwind" fn l_shutdown(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua.
    unsafe { done(l, libc::shutdown(descriptor_at(l, 1), lua_tointeger_(l, 2) as c_int)) }
}

/// `nonblock(handle[, boolean])`: the mode it is in after that.
unsafe extern "C-unwind" fn l_nonblock(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua.
    unsafe {
        let fd = descriptor_at(l, 1);
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 {
            return failed(l, last_errno());
        }
        let mut mode = flags & libc::O_NONBLOCK != 0;
        if lua_type(l, 2) == LUA_TBOOLEAN {
            mode = lua_toboolean(l, 2) != 0;
            let wanted = if mode { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
            if libc::fcntl(fd, libc::F_SETFL, wanted) < 0 {
                return failed(l, last_errno());
            }
        }
        lua_pushboolean(l, c_int::from(mode));
    }
    1
}

// ---- writing ----

#[cfg(target_os = "linux")]
const QUIET: c_int = libc::MSG_NOSIGNAL;
#[cfg(not(target_os = "linux"))]
const QUIET: c_int = 0;

/// `write(2)` to something that is no socket, or where sockets know no MSG_NOSIGNAL: a SIGPIPE it raises is taken back.
unsafe fn write_masked(fd: RawFd, bytes: &[u8]) -> isize {
    // SAFETY: sets are filled before use; this thread's mask is put back. The signal is pending on this thread alone.
    unsafe {
        let (mut pipe, mut before, mut pending) =
            std::mem::zeroed::<(libc::sigset_t, libc::sigset_t, libc::sigset_t)>();
        libc::sigemptyset(&raw mut pipe);
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        libc::sigpending(&raw mut pending);
        let was_pending = libc::sigismember(&raw const pending, libc::SIGPIPE) == 1;
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut before);
        let n = libc::write(fd, bytes.as_ptr().cast(), bytes.len());
        let errno = last_errno();
        if n < 0 && errno == libc::EPIPE && !was_pending {
            let mut signal = 0;
            libc::sigwait(&raw const pipe, &raw mut signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        if n < 0 {
            set_errno(errno);
        }
        n
    }
}

fn set_errno(errno: c_int) {
    // SAFETY: the address of this thread's errno.
    unsafe {
        #[cfg(target_os = "linux")]
        let at = libc::__errno_location();
        #[cfg(not(target_os = "linux"))]
        let at = libc::__error();
        *at = errno;
    }
}

/// Writes without a SIGPIPE, which would end the process.
unsafe fn write_quietly(fd: RawFd, bytes: &[u8]) -> Result<usize, c_int> {
    // SAFETY: the bytes are live.
    unsafe {
        if QUIET != 0 {
            match retry(|| libc::send(fd, bytes.as_ptr().cast(), bytes.len(), QUIET)) {
                Err(libc::ENOTSOCK) => {}
                other => return other,
            }
        }
        retry(|| write_masked(fd, bytes))
    }
}

/// `write(handle, text[, from])`: how many bytes of the text, from byte `from` (0) on, the system took.
unsafe extern "C-unwind" fn l_write(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua with a string.
    unsafe {
        let fd = descriptor_at(l, 1);
        let bytes = bytes_at(l, 2).get(lua_tointeger_(l, 3) as usize..).unwrap_or_default();
        match write_quietly(fd, bytes) {
            Err(errno) => failed(l, errno),
            Ok(n) => push_count(l, n),
        }
    }
}

unsafe fn push_count(l: *mut lua_State, n: usize) -> c_int {
    #[allow(clippy::cast_precision_loss)] // lengths are far below 2^53
    // SAFETY: every C function has free slots.
    unsafe {
        lua_pushnumber(l, n as f64);
    }
    1
}

/// `send(handle, text, flags)`.
unsafe extern "C-unwind" fn l_send(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua with a string.
    unsafe {
        let (fd, bytes, flags) = (descriptor_at(l, 1), bytes_at(l, 2), lua_tointeger_(l, 3) as c_int | QUIET);
        match retry(|| libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags)) {
            Err(errno) => failed(l, errno),
            Ok(n) => push_count(l, n),
        }
    }
}

/// `sendto(handle, host, port, text, flags)`.
unsafe extern "C-unwind" fn l_sendto(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua with strings.
    unsafe {
        let (fd, bytes, flags) = (descriptor_at(l, 1), bytes_at(l, 4), lua_tointeger_(l, 5) as c_int | QUIET);
        let mut addr = match addr_at(l) {
            Err(errno) => return failed(l, errno),
            Ok(addr) => addr,
        };
        let (to, len) = (addr.as_mut_ptr(), addr.len);
        match retry(|| libc::sendto(fd, bytes.as_ptr().cast(), bytes.len(), flags, to, len)) {
            Err(errno) => failed(l, errno),
            Ok(n) => push_count(l, n),
        }
    }
}

// ---- reading ----

/// `sysread(handle, size)`: what one `read` gives; an empty text at the end.
unsafe extern "C-unwind" fn l_sysread(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua. The spare storage belongs to the state, not to this frame, while Lua may raise.
    unsafe {
        let s = state::current(l);
        let fd = descriptor_at(l, 1);
        let size = size_at(l, 2);
        let Some(room) = spare_room(s, size) else { return failed(l, libc::ENOMEM) };
        match retry(|| libc::read(fd, room.cast(), size)) {
            Err(errno) => failed(l, errno),
            Ok(n) => {
                lua_pushlstring_(l, room, n);
                trim_spare(s);
                1
            }
        }
    }
}

unsafe fn size_at(l: *mut lua_State, idx: c_int) -> usize {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
    // SAFETY: reads one argument.
    unsafe {
        lua_tonumber(l, idx) as usize
    }
}

/// At least `size` bytes of scratch memory.
unsafe fn spare_room(s: *mut State, size: usize) -> Option<*mut c_char> {
    // SAFETY: the state is live.
    unsafe {
        let spare = &mut (*s).sockets.spare;
        spare.clear();
        spare.try_reserve(size.max(1)).ok()?;
        Some(spare.as_mut_ptr().cast())
    }
}

unsafe fn trim_spare(s: *mut State) {
    // SAFETY: the state is live.
    unsafe {
        if (*s).sockets.spare.capacity() > SPARE_MAX {
            (*s).sockets.spare = Vec::new();
        }
    }
}

/// `recv(handle, size, flags, with_address)`: one `recvfrom`. A nil size is that of the next datagram.
unsafe extern "C-unwind" fn l_recv(l: *mut lua_State) -> c_int {
    // SAFETY: as for `l_sysread`.
    unsafe {
        let s = state::current(l);
        let (fd, flags) = (descriptor_at(l, 1), lua_tointeger_(l, 3) as c_int);
        let size = if lua_type(l, 2) == LUA_TNIL {
            match datagram_size(fd) {
                Err(errno) => return failed(l, errno),
                Ok(size) => size,
            }
        } else {
            size_at(l, 2)
        };
        let Some(room) = spare_room(s, size) else { return failed(l, libc::ENOMEM) };
        let mut addr = SockAddr::room();
        match retry(|| libc::recvfrom(fd, room.cast(), size, flags, addr.as_mut_ptr(), &raw mut addr.len)) {
            Err(errno) => failed(l, errno),
            Ok(n) => {
                // With MSG_TRUNC the call tells the datagram's length, not that of the part it gave.
                lua_pushlstring_(l, room, n.min(size));
                trim_spare(s);
                if lua_toboolean(l, 4) == 0 {
                    return 1;
                }
                push_addr(l, &addr);
                2
            }
        }
    }
}

#[cfg(target_os = "linux")]
fn datagram_size(fd: RawFd) -> Result<usize, c_int> {
    // SAFETY: no buffer, of no length.
    retry(|| unsafe { libc::recv(fd, std::ptr::null_mut::<c_void>(), 0, libc::MSG_TRUNC | libc::MSG_PEEK) })
}

#[cfg(not(target_os = "linux"))]
fn datagram_size(_: RawFd) -> Result<usize, c_int> {
    // The largest datagram there is.
    Ok(65_536)
}

/// How many bytes end the read under way: up to the first delimiter's end, or `limit`; None to read on.
unsafe fn ends_at(l: *mut lua_State, buffer: *mut Buffer, limit: usize, delimiters: c_int) -> Option<usize> {
    // SAFETY: strings stay on the stack or in the table on it.
    unsafe {
        let data = (&*buffer).data();
        let (have, searched) = (data.len(), (*buffer).searched);
        let mut shortest = usize::MAX;
        let mut look = |delimiter: &[u8]| {
            // What was searched before cannot hold all of it.
            let from = searched.saturating_sub(delimiter.len().saturating_sub(1));
            if let Some(at) = data.get(from..).and_then(|rest| memmem::find(rest, delimiter)) {
                shortest = shortest.min(from + at + delimiter.len());
            }
        };
        match lua_type(l, delimiters) {
            LUA_TSTRING if have > 0 => look(bytes_at(l, delimiters)),
            LUA_TTABLE if have > 0 => {
                for i in 1..=lua_objlen(l, delimiters) {
                    lua_rawgeti_(l, delimiters, i as c_int);
                    if lua_type(l, -1) == LUA_TSTRING {
                        look(bytes_at(l, -1));
                    }
                    lua_settop(l, -2);
                }
            }
            _ => {}
        }
        (*buffer).searched = have;
        if shortest <= limit {
            Some(shortest)
        } else if have >= limit {
            Some(limit)
        } else {
            None
        }
    }
}

/// `read(handle, limit, delimiters, first)`: text that ends in a delimiter (a string or a list of strings) or is `limit` bytes
/// long, or what is left at the end of the stream; EAGAIN when that has not arrived yet. `first`: not a call to go on after
/// that.
unsafe extern "C-unwind" fn l_read(l: *mut lua_State) -> c_int {
    // SAFETY: called by socket.lua. The buffer belongs to the handle, which is on the stack.
    unsafe {
        let s = state::current(l);
        let handle = handle_at(l, 1);
        if handle.is_null() || (*handle).fd < 0 {
            return failed(l, libc::EBADF);
        }
        let (limit, buffer) = (size_at(l, 2), &raw mut (*handle).buffer);
        let reader = (*(*s).cord.current).id;
        if lua_toboolean(l, 4) != 0 || (*buffer).reader != reader {
            (*buffer).searched = 0;
            (*buffer).reader = reader;
        }
        for _ in 0..ROUNDS {
            if let Some(n) = ends_at(l, buffer, limit, 3) {
                return give(s, l, buffer, n);
            }
            let fd = (*handle).fd;
            if (*s).cord.descriptors.is_drained(fd) {
                return failed(l, libc::EAGAIN);
            }
            let wanted = (limit - (&*buffer).data().len()).min(READAHEAD);
            borrow_spare(s, buffer);
            if !(&mut *buffer).reserve(wanted) {
                return failed(l, libc::ENOMEM);
            }
            let bytes = &raw mut (*buffer).bytes;
            let (len, room) = ((*bytes).len(), (*bytes).capacity() - (*bytes).len());
            match retry(|| libc::read(fd, (&mut (*bytes)).as_mut_ptr().add(len).cast(), room)) {
                Ok(0) => return give(s, l, buffer, (&*buffer).data().len()),
                Ok(n) => {
                    (&mut (*bytes)).set_len(len + n);
                    if n < room && (*handle).stream {
                        (*s).cord.descriptors.drained(fd);
                    }
                }
                Err(errno) => {
                    return_spare(s, buffer);
                    if errno == libc::EAGAIN {
                        (*s).cord.descriptors.drained(fd);
                    }
                    return failed(l, errno);
                }
            }
        }
        failed(l, libc::EAGAIN)
    }
}

/// Pushes the first `n` bytes of the buffer and takes them out of it.
unsafe fn give(s: *mut State, l: *mut lua_State, buffer: *mut Buffer, n: usize) -> c_int {
    // SAFETY: `n` bytes are there. A memory error leaves them there.
    unsafe {
        lua_pushlstring_(l, (&*buffer).data().as_ptr().cast(), n);
        (&mut *buffer).consume(n);
        return_spare(s, buffer);
    }
    1
}
