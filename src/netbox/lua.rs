//! The raw functions behind `cord.netbox`: what its Lua files call. A connection is a userdata that owns a
//! [`Conn`](super::transport::Conn); a second userdata, which only the script's connection object holds, tells when
//! that object is gone.

use super::codec::{self, Kept};
use super::transport::{self, Conn, Phase, Problem, attention};
use super::{future, reply, request, resolve, secure};
use crate::fiber::fiber::Wait;
use crate::fiber::wait::WaitList;
use crate::iproto::auth;
use crate::iproto::constants::GREETING_SIZE;
use crate::iproto::greeting::{self, SALT_USED};
use crate::iproto::mp::Reader;
use crate::lua::fiber::{arm_deadline, before_wait, fail_with, wait, way};
use crate::lua::msgpack::args::Args;
use crate::lua::socket::dial;
use crate::lua::state::{self, Keep};
use crate::sys::fork;
use crate::sys::luajit::Entry;
use crate::sys::poll::{READ, WRITE};
use crate::tls::Handshake;
use mlua::ffi::*;
use std::ffi::c_int;
use std::io;

/// The functions of this file and the others.
const FUNCTIONS: &[Entry] = &[
    (c"new", l_new),
    (c"bind", l_bind),
    (c"resolve", resolve::l_resolve),
    (c"open", l_open),
    (c"set_fd", l_set_fd),
    (c"wait_fd", l_wait_fd),
    (c"connected", l_connected),
    (c"secure", l_secure),
    (c"handshake", l_handshake),
    (c"greeting", l_greeting),
    (c"scramble", l_scramble),
    (c"attach", l_attach),
    (c"close", l_close),
    (c"half_close", l_half_close),
    (c"phase", l_phase),
    (c"track", l_track),
    (c"schema_version", l_schema_version),
    (c"attention", l_attention),
    (c"alert", l_alert),
    (c"problem", l_problem),
    (c"fail_all", l_fail_all),
    (c"tuple_args", l_tuple_args),
    (c"numbers", l_numbers),
    (c"socket_name", l_socket_name),
    (c"anchor", l_anchor),
    (c"wait_state", l_wait_state),
    (c"broadcast", l_broadcast),
    (c"take", l_take),
    (c"is_worker", l_is_worker),
    (c"encode", l_encode),
    (c"decode", l_decode),
    (c"locate", l_locate),
    (c"read", l_read),
    (c"rewait", request::l_rewait),
    (c"forget", request::l_forget),
];

/// Pushes the native half of `cord.netbox`.
///
/// # Safety
/// A live state with free slots, in which the library was opened.
pub(crate) unsafe fn native(l: *mut lua_State) {
    // SAFETY: the caller's contract.
    unsafe {
        lua_createtable(l, 0, FUNCTIONS.len() as c_int + 8);
        state::register(l, FUNCTIONS);
        state::register(l, future::FUNCTIONS);
        register_requests(l);
        // What new connections' userdata get; their finalizers find the state as the other functions do.
        for (name, finalizer) in
            [(c"conn_meta", (c"__gc", l_conn_gc as lua_CFunction)), (c"hook_meta", (c"__gc", l_hook_gc))]
        {
            lua_createtable(l, 0, 2);
            state::register(l, &[finalizer]);
            lua_setfield(l, -2, name.as_ptr());
        }
    }
}

/// The functions that may make futures have what those need as upvalues: their metatable, which is also a field of the
/// table on the top, and the table of those in flight.
unsafe fn register_requests(l: *mut lua_State) {
    // SAFETY: as for `native`; the stack is balanced.
    unsafe {
        let table = lua_gettop(l);
        lua_createtable(l, 0, 8);
        lua_pushvalue(l, -1);
        lua_setfield(l, table, c"future_meta".as_ptr());
        lua_createtable(l, 0, 0);
        lua_createtable(l, 0, 1);
        lua_pushstring_(l, c"v".as_ptr());
        lua_setfield(l, -2, c"__mode".as_ptr());
        lua_setmetatable(l, -2);
        for (name, function) in [(c"keep", l_keep as lua_CFunction)].iter().chain(request::FUNCTIONS) {
            lua_getfield_(l, LUA_REGISTRYINDEX, state::STATE_KEY);
            lua_pushvalue(l, table + 1);
            lua_pushvalue(l, table + 2);
            lua_pushcclosure(l, *function, 3);
            lua_setfield(l, table, name.as_ptr());
        }
        lua_settop(l, table);
    }
}

/// A userdata that points at a connection.
#[repr(C)]
struct Handle {
    kind: *const u8,
    conn: *mut Conn,
}

/// Its address marks our userdata.
static CONN: u8 = 0;
static HOOK: u8 = 0;

/// The connection of the userdata at `idx`, or null.
///
/// # Safety
/// `l` runs one of our functions.
#[inline(always)]
pub unsafe fn conn_at(l: *mut lua_State, idx: c_int) -> *mut Conn {
    // SAFETY: light userdata, which would have no memory behind them, have another type.
    unsafe {
        if lua_type(l, idx) != LUA_TUSERDATA {
            return std::ptr::null_mut();
        }
        // The first word of any userdata may be read: the smallest block of memory has it.
        let handle: *const Handle = lua_touserdata(l, idx).cast();
        if (*handle).kind == &raw const CONN { (*handle).conn } else { std::ptr::null_mut() }
    }
}

/// The connection of the userdata at `idx`, or null.
///
/// # Safety
/// As for [`conn_at`].
#[inline(always)]
pub(crate) unsafe fn conn_of(args: Args, idx: c_int) -> *mut Conn {
    // SAFETY: as for `conn_at`.
    unsafe {
        let handle: *const Handle = args.userdata(idx).cast();
        if !handle.is_null() && (*handle).kind == &raw const CONN { (*handle).conn } else { std::ptr::null_mut() }
    }
}

macro_rules! conn {
    ($l:expr) => {{
        let conn = conn_at($l, 1);
        if conn.is_null() {
            state::raise($l, "net.box: a connection expected".into());
        }
        conn
    }};
}

unsafe fn push_errno(l: *mut lua_State, error: &io::Error) -> c_int {
    // SAFETY: every C function has free slots.
    unsafe { lua_pushinteger(l, error.raw_os_error().unwrap_or(libc::EIO) as lua_Integer) };
    1
}

/// `keep(list)`: the values native code needs, in the order of [`Kept`].
unsafe extern "C-unwind" fn l_keep(l: *mut lua_State) -> c_int {
    // SAFETY: called once by netbox.lua.
    unsafe {
        let s = state::current(l);
        lua_settop(l, 1);
        lua_createtable(l, 8, 0);
        lua_rawseti_(l, 1, Kept::Anchors as c_int);
        lua_pushvalue(l, future::FUTURES);
        lua_rawseti_(l, 1, Kept::Futures as c_int);
        (*s).keep(l, Keep::Netbox);
        (*s).netbox.codec = crate::lua::msgpack::default_codec(l);
    }
    0
}

/// `new(conn_meta, hook_meta)`: the connection's userdata and its hook.
unsafe extern "C-unwind" fn l_new(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua. Both userdata exist before the record, so nothing can be lost.
    unsafe {
        let s = state::current(l);
        lua_settop(l, 2);
        let mut handles = [std::ptr::null_mut::<Handle>(); 2];
        for (i, kind) in [&raw const CONN, &raw const HOOK].into_iter().enumerate() {
            let handle: *mut Handle = lua_newuserdata(l, size_of::<Handle>()).cast();
            handle.write(Handle { kind, conn: std::ptr::null_mut() });
            handles[i] = handle;
        }
        lua_createtable(l, 4, 0);
        let conn = Conn::create(s);
        for handle in handles {
            (*handle).conn = conn;
            (*conn).refs += 1;
        }
        for position in [1, 2] {
            lua_pushvalue(l, position);
            lua_setmetatable(l, 2 + position);
        }
        (*s).push_kept(l, Keep::Netbox);
        lua_rawgeti_(l, -1, Kept::Anchors as c_int);
        lua_pushvalue(l, 5);
        lua_rawseti_(l, -2, slot(conn));
        lua_settop(l, 4);
    }
    2
}

#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
unsafe fn slot(conn: *const Conn) -> c_int {
    // SAFETY: the caller's connection is live.
    unsafe { (*conn).slot as c_int + 1 }
}

unsafe extern "C-unwind" fn l_conn_gc(l: *mut lua_State) -> c_int {
    // SAFETY: the finalizer of a connection's userdata. Its anchors go with it: writing an existing field of a table
    // does not allocate.
    unsafe {
        let s = state::current(l);
        let conn = conn_at(l, 1);
        if !conn.is_null() {
            let handle: *mut Handle = lua_touserdata(l, 1).cast();
            (*handle).conn = std::ptr::null_mut();
            transport::close_fd(s, conn);
            (*s).push_kept(l, Keep::Netbox);
            lua_rawgeti_(l, -1, Kept::Anchors as c_int);
            lua_pushboolean(l, 0);
            lua_rawseti_(l, -2, slot(conn));
            transport::release(s, conn);
        }
    }
    0
}

unsafe extern "C-unwind" fn l_hook_gc(l: *mut lua_State) -> c_int {
    // SAFETY: the finalizer of a hook: the script's object is gone. The worker, if it still runs, ends by itself.
    unsafe {
        let s = state::current(l);
        let handle: *mut Handle = lua_touserdata(l, 1).cast();
        let conn = (*handle).conn;
        if !conn.is_null() {
            (*handle).conn = std::ptr::null_mut();
            transport::alert(s, conn, attention::ORPHAN);
            transport::release(s, conn);
        }
    }
    0
}

/// `bind(conn)`: the running fiber is its worker.
unsafe extern "C-unwind" fn l_bind(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let s = state::current(l);
        let conn = conn!(l);
        (*conn).set_worker((*s).cord.current);
    }
    0
}

unsafe extern "C-unwind" fn l_is_worker(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let s = state::current(l);
        let conn = conn!(l);
        lua_pushboolean(l, c_int::from((*conn).is_worker((*s).cord.current)));
    }
    1
}

/// `open(conn, host, port)`: begins to connect, to "unix/" and a path or to an address and a port. Nil, or an errno.
unsafe extern "C-unwind" fn l_open(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua; the strings stay on the stack.
    unsafe {
        let conn = conn!(l);
        let (mut host_len, mut port_len) = (0, 0);
        let host = luaL_checklstring(l, 2, &raw mut host_len).cast::<u8>();
        let port = luaL_checklstring(l, 3, &raw mut port_len).cast::<u8>();
        let (host, port) = (std::slice::from_raw_parts(host, host_len), std::slice::from_raw_parts(port, port_len));
        let (fd, begun) = dial(host, port);
        if fd >= 0 {
            transport::adopt(conn, fd);
        }
        match begun {
            Ok(()) => 0,
            Err(errno) => push_errno(l, &io::Error::from_raw_os_error(errno)),
        }
    }
}

/// `set_fd(conn, fd)`: takes over a connected socket. Nil, or an errno.
unsafe extern "C-unwind" fn l_set_fd(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let conn = conn!(l);
        let fd = lua_tointeger_(l, 2) as c_int;
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 || libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) < 0 {
            return push_errno(l, &io::Error::last_os_error());
        }
        transport::adopt(conn, fd);
    }
    0
}

/// `wait_fd(conn, readiness, deadline)`: a wait for the socket, as coio_wait. A code or nil, and the events.
unsafe extern "C-unwind" fn l_wait_fd(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let s = state::current(l);
        let conn = conn!(l);
        let way = match way(s, l) {
            Ok(way) => way,
            Err(text) => return fail_with(l, text),
        };
        before_wait(s, l);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let wanted = lua_tointeger_(l, 2) as u8;
        if let Err(error) = (*s).cord.begin_io((*conn).fd, wanted) {
            return fail_with(l, error.to_string());
        }
        arm_deadline(s, l, 3);
        wait(s, l, way, 0)
    }
}

/// `connected(conn)`: nil, or the errno the attempt ended with.
unsafe extern "C-unwind" fn l_connected(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let conn = conn!(l);
        let mut errno: c_int = 0;
        let mut len = size_of::<c_int>() as libc::socklen_t;
        let at = (&raw mut errno).cast();
        if libc::getsockopt((*conn).fd, libc::SOL_SOCKET, libc::SO_ERROR, at, &raw mut len) != 0 {
            return push_errno(l, &io::Error::last_os_error());
        }
        if errno != 0 {
            lua_pushinteger(l, errno as lua_Integer);
            return 1;
        }
    }
    0
}

/// `secure(conn, setup)`: begins TLS on the connected socket. Nil, or what is wrong.
unsafe extern "C-unwind" fn l_secure(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua; the setup stays on the stack.
    unsafe {
        let conn = conn!(l);
        let Some(setup) = crate::lua::tls::client_at(l, 2) else {
            return luaL_error(l, c"net.box: a TLS setup expected".as_ptr());
        };
        match secure::begin(conn, &*setup) {
            Ok(()) => 0,
            Err(problem) => {
                state::push_str(l, &problem);
                1
            }
        }
    }
}

/// `handshake(conn)`: goes on with it. Nil when it is over; 'wait' and what to wait for; 'tls' and words; or an errno.
unsafe extern "C-unwind" fn l_handshake(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let conn = conn!(l);
        let wanted = match secure::handshake(conn) {
            Ok(Handshake::Done) => return 0,
            Ok(Handshake::Read) => READ,
            Ok(Handshake::Write) => WRITE,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return push_tls(l, conn),
            Err(error) => return push_errno(l, &error),
        };
        lua_pushstring_(l, c"wait".as_ptr());
        lua_pushinteger(l, lua_Integer::from(wanted));
    }
    2
}

/// Pushes 'tls' and what went wrong.
unsafe fn push_tls(l: *mut lua_State, conn: *mut Conn) -> c_int {
    // SAFETY: every C function has free slots; the text is Lua's before anything else happens.
    unsafe {
        lua_pushstring_(l, c"tls".as_ptr());
        let problem = (&(*conn).tls).as_ref().and_then(|tls| tls.problem());
        state::push_str(l, problem.unwrap_or("TLS"));
    }
    2
}

/// `greeting(conn)`: reads what there is of it. Nil while it is not all there; 'ok', version id, protocol, uuid and
/// salt; 'invalid'; 'eof'; 'tls' and words; or an errno.
unsafe extern "C-unwind" fn l_greeting(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua; the input buffer is the connection's own.
    unsafe {
        let conn = conn!(l);
        let input = &mut (*conn).input;
        if input.len() < GREETING_SIZE {
            input.resize(GREETING_SIZE, 0);
        }
        while (*conn).end < GREETING_SIZE {
            let room = (&mut (*conn).input).get_mut((*conn).end..GREETING_SIZE).unwrap_or_default();
            match secure::read(conn, room) {
                Ok(0) => {
                    lua_pushstring_(l, c"eof".as_ptr());
                    return 1;
                }
                Ok(n) => (*conn).end += n,
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => return 0,
                    io::ErrorKind::InvalidData => return push_tls(l, conn),
                    _ => return push_errno(l, &error),
                },
            }
        }
        (*conn).end = 0;
        push_greeting(l, conn)
    }
}

unsafe fn push_greeting(l: *mut lua_State, conn: *mut Conn) -> c_int {
    // SAFETY: as for `l_greeting`.
    unsafe {
        let bytes = (&(*conn).input).first_chunk::<GREETING_SIZE>();
        let Some(Ok(greeting)) = bytes.map(greeting::decode) else {
            lua_pushstring_(l, c"invalid".as_ptr());
            return 1;
        };
        lua_pushstring_(l, c"ok".as_ptr());
        lua_pushnumber(l, f64::from(greeting.version_id));
        state::push_str(l, greeting.protocol);
        state::push_str(l, greeting.uuid.unwrap_or(""));
        lua_pushlstring_(l, greeting.salt.as_ptr().cast(), SALT_USED);
        5
    }
}

/// `scramble(salt, password)`: the 20 bytes of chap-sha1.
unsafe extern "C-unwind" fn l_scramble(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua with two strings.
    unsafe {
        let (mut salt_len, mut len) = (0, 0);
        let salt = luaL_checklstring(l, 1, &raw mut salt_len);
        let password = luaL_checklstring(l, 2, &raw mut len);
        let salt = std::slice::from_raw_parts(salt.cast::<u8>(), salt_len);
        let password = std::slice::from_raw_parts(password.cast::<u8>(), len);
        let Some(salt) = salt.first_chunk::<SALT_USED>() else { return 0 };
        let answer = auth::scramble(salt, password);
        lua_pushlstring_(l, answer.as_ptr().cast(), answer.len());
    }
    1
}

/// `attach(conn)`: from here on replies are handled as they come. Nil, or an errno.
unsafe extern "C-unwind" fn l_attach(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let s = state::current(l);
        let conn = conn!(l);
        match transport::attach(s, conn) {
            Ok(()) => 0,
            Err(error) => push_errno(l, &error),
        }
    }
}

unsafe extern "C-unwind" fn l_close(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let s = state::current(l);
        let conn = conn!(l);
        transport::close_fd(s, conn);
    }
    0
}

/// `half_close(conn)`: tells the peer that nothing more will come, and goes on reading.
unsafe extern "C-unwind" fn l_half_close(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let conn = conn!(l);
        if (*conn).fd >= 0 && (*conn).forks == fork::current() {
            secure::close(conn);
            libc::shutdown((*conn).fd, libc::SHUT_WR);
        }
    }
    0
}

/// `phase(conn, number)`: 0 refuses requests, 1 takes asynchronous ones, 2 all.
unsafe extern "C-unwind" fn l_phase(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let conn = conn!(l);
        if (*conn).problem == Problem::None {
            (*conn).phase = match lua_tointeger_(l, 2) {
                2 => Phase::Active,
                1 => Phase::Loading,
                _ => Phase::Refusing,
            };
        }
    }
    0
}

/// `track(conn, yes)`: whether another schema version wakes the worker.
unsafe extern "C-unwind" fn l_track(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let conn = conn!(l);
        (*conn).track_schema = lua_toboolean(l, 2) != 0;
    }
    0
}

/// `schema_version(conn)`: of the last reply, and how often it changed since the connection stands.
unsafe extern "C-unwind" fn l_schema_version(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    #[allow(clippy::cast_precision_loss)]
    unsafe {
        let conn = conn!(l);
        lua_pushnumber(l, (*conn).schema_version as f64);
        lua_pushnumber(l, f64::from((*conn).schema_changes));
    }
    2
}

/// `attention(conn, wanted)`: takes the bits that are set; `wanted` are the optional ones to be woken for.
unsafe extern "C-unwind" fn l_attention(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let conn = conn!(l);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let wanted = lua_tointeger_(l, 2) as u32;
        lua_pushinteger(l, (*conn).attention as lua_Integer);
        (*conn).attention = 0;
        (*conn).wanted = wanted;
    }
    1
}

/// `alert(conn, bits)`: wakes the worker.
unsafe extern "C-unwind" fn l_alert(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let s = state::current(l);
        let conn = conn!(l);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        transport::alert(s, conn, lua_tointeger_(l, 2) as u32);
    }
    0
}

/// `problem(conn)`: nil, a name, 'tls' and words, or 'system', errno and the call's name.
unsafe extern "C-unwind" fn l_problem(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let conn = conn!(l);
        let name = match (*conn).problem {
            Problem::None => return 0,
            Problem::System(errno, call) => {
                state::push_str(l, "system");
                lua_pushinteger(l, errno as lua_Integer);
                state::push_str(l, call);
                return 3;
            }
            Problem::Peer => "peer",
            Problem::TooBig => "too big",
            Problem::Length => "length",
            Problem::Header => "header",
            Problem::Body => "body",
            Problem::Forked => "forked",
            Problem::Tls => return push_tls(l, conn),
        };
        state::push_str(l, name);
    }
    1
}

/// `fail_all(conn, error)`: every request in flight fails.
unsafe extern "C-unwind" fn l_fail_all(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let s = state::current(l);
        let conn = conn!(l);
        reply::fail_all(s, l, conn, 2);
    }
    0
}

/// `tuple_args(conn, yes)`: whether the peer takes tuples with their formats as arguments.
unsafe extern "C-unwind" fn l_tuple_args(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let conn = conn!(l);
        (*conn).tuple_args = lua_toboolean(l, 2) != 0;
    }
    0
}

/// `numbers(conn)`: the descriptor, requests in flight, bytes to be sent, the next sync, events and pushes queued.
unsafe extern "C-unwind" fn l_numbers(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    #[allow(clippy::cast_precision_loss)]
    unsafe {
        let conn = conn!(l);
        lua_pushinteger(l, (*conn).fd as lua_Integer);
        lua_pushnumber(l, (&(*conn).slab).len() as f64);
        lua_pushnumber(l, (*conn).unsent() as f64);
        lua_pushnumber(l, (&(*conn).slab).next_sync().unwrap_or(0) as f64);
        lua_pushnumber(l, (&(*conn).queue).len() as f64);
    }
    5
}

/// `socket_name(conn)`: what messages call it: "fd 17, aka 127.0.0.1:40000".
unsafe extern "C-unwind" fn l_socket_name(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua; the text is copied and dropped before the return.
    unsafe {
        let conn = conn!(l);
        let text = describe((*conn).fd);
        state::push_str(l, &text);
    }
    1
}

fn describe(fd: c_int) -> String {
    // SAFETY: the storage is as long as said and zero until filled.
    unsafe {
        let mut storage: libc::sockaddr_storage = std::mem::zeroed();
        let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        if libc::getsockname(fd, (&raw mut storage).cast(), &raw mut len) != 0 {
            return format!("fd {fd}");
        }
        match c_int::from(storage.ss_family) {
            libc::AF_INET => {
                let address = &*(&raw const storage).cast::<libc::sockaddr_in>();
                let ip = std::net::Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
                format!("fd {fd}, aka {ip}:{}", u16::from_be(address.sin_port))
            }
            libc::AF_INET6 => {
                let address = &*(&raw const storage).cast::<libc::sockaddr_in6>();
                let ip = std::net::Ipv6Addr::from(address.sin6_addr.s6_addr);
                format!("fd {fd}, aka [{ip}]:{}", u16::from_be(address.sin6_port))
            }
            _ => format!("fd {fd}, aka unix/:(socket)"),
        }
    }
}

/// `anchor(conn, index, value)`: a metatable of tuples, by the number requests pass.
unsafe extern "C-unwind" fn l_anchor(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let s = state::current(l);
        let conn = conn!(l);
        lua_settop(l, 3);
        reply::push_anchors(s, l, conn);
        lua_pushvalue(l, 3);
        let reference = lua_tointeger_(l, 2) as c_int;
        lua_rawseti_(l, -2, reference);
        (*conn).set_meta(reference, lua_topointer(l, 3));
    }
    0
}

/// `wait_state(conn, deadline)`: until the next broadcast. Nil or a code.
unsafe extern "C-unwind" fn l_wait_state(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua.
    unsafe {
        let s = state::current(l);
        let conn = conn!(l);
        let way = match way(s, l) {
            Ok(way) => way,
            Err(text) => return fail_with(l, text),
        };
        before_wait(s, l);
        let f = (*s).cord.current;
        (*f).wait = Wait::Cond;
        WaitList::link(&raw mut (*conn).waiters, f, false);
        arm_deadline(s, l, 2);
        wait(s, l, way, 0)
    }
}

/// `broadcast(conn)`: wakes all that wait for another state.
unsafe extern "C-unwind" fn l_broadcast(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua; a signal unlinks the fiber.
    unsafe {
        let s = state::current(l);
        let conn = conn!(l);
        loop {
            let f = (&(*conn).waiters).first();
            if f.is_null() {
                return 0;
            }
            (*s).cord.signal(f);
        }
    }
}

/// `take(conn)`: the events and pushes so far, as a flat list: number of the push's function or 0, body, number ...
unsafe extern "C-unwind" fn l_take(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua. A memory error leaves the rest queued.
    unsafe {
        let conn = conn!(l);
        lua_createtable(l, 0, 0);
        let mut n = 0;
        while let Some(first) = (&(*conn).queue).front() {
            lua_pushnumber(l, f64::from(first.handler));
            lua_rawseti_(l, -2, n + 1);
            lua_pushlstring_(l, first.body.as_ptr().cast(), first.body.len());
            lua_rawseti_(l, -2, n + 2);
            n += 2;
            (&mut (*conn).queue).pop_front();
        }
    }
    1
}

/// `encode(value)`: its bytes.
unsafe extern "C-unwind" fn l_encode(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua. The buffer is nobody else's, since a finalizer may run while its string is made; what
    // raises leaks it or, usually, leaves it with the state.
    unsafe {
        let s = state::current(l);
        lua_settop(l, 1);
        let none = std::ptr::null_mut();
        (&mut (*s).netbox.bytes).clear();
        if codec::encode(s, l, 1, &raw mut (*s).netbox.bytes, none) == codec::Encoded::NeedsLua {
            codec::encode_ahead(s, l, 1, false);
            (&mut (*s).netbox.bytes).clear();
            codec::encode(s, l, 1, &raw mut (*s).netbox.bytes, none);
        }
        let bytes = Box::into_raw(Box::new(std::mem::take(&mut (*s).netbox.bytes)));
        lua_pushlstring_(l, (&*bytes).as_ptr().cast(), (&*bytes).len());
        (*s).netbox.bytes = *Box::from_raw(bytes);
    }
    1
}

/// `decode(bytes[, offset])`: the value that begins there (at 1), and where the next one begins; nothing if it is none.
unsafe extern "C-unwind" fn l_decode(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua; the string stays on the stack.
    unsafe {
        let s = state::current(l);
        let mut len = 0;
        let at = luaL_checklstring(l, 1, &raw mut len);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let offset = (lua_tointeger_(l, 2) as usize).max(1) - 1;
        let bytes = std::slice::from_raw_parts(at.cast::<u8>(), len);
        let Ok(next) = codec::decode(s, l, bytes, offset) else { return 0 };
        #[allow(clippy::cast_precision_loss)]
        lua_pushnumber(l, (next + 1) as f64);
    }
    2
}

/// `locate(body, key)`: where the value of that key in a map begins (from 1), and where what follows it does; nothing if the
/// key is not there; false if the body is no map of numbers.
unsafe extern "C-unwind" fn l_locate(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua; the string stays on the stack.
    #[allow(clippy::cast_precision_loss)]
    unsafe {
        let mut len = 0;
        let at = luaL_checklstring(l, 1, &raw mut len);
        let bytes = std::slice::from_raw_parts(at.cast::<u8>(), len);
        match locate(bytes, lua_tonumber(l, 2)) {
            Ok(Some((from, to))) => {
                lua_pushnumber(l, (from + 1) as f64);
                lua_pushnumber(l, (to + 1) as f64);
                2
            }
            Ok(None) => 0,
            Err(codec::Broken) => {
                lua_pushboolean(l, 0);
                1
            }
        }
    }
}

#[allow(clippy::cast_precision_loss, clippy::float_cmp)] // keys are small numbers
fn locate(body: &[u8], key: f64) -> Result<Option<(usize, usize)>, codec::Broken> {
    if body.is_empty() {
        return Ok(None);
    }
    let mut reader = Reader::new(body);
    for _ in 0..reader.read_map().map_err(|_| codec::Broken)? {
        let name = reader.read_uint().map_err(|_| codec::Broken)?;
        let from = reader.position();
        reader.skip().map_err(|_| codec::Broken)?;
        if name as f64 == key {
            return Ok(Some((from, reader.position())));
        }
    }
    Ok(None)
}

/// `read(conn, body, shape, reference * 8)`: the result in a reply's body that was kept whole; of a call, all its values in a
/// table. Nothing if there is none; false if the body is none.
unsafe extern "C-unwind" fn l_read(l: *mut lua_State) -> c_int {
    // SAFETY: called by netbox.lua; the string stays on the stack.
    unsafe {
        let s = state::current(l);
        let conn = conn!(l);
        let mut len = 0;
        let at = luaL_checklstring(l, 2, &raw mut len);
        let body = std::slice::from_raw_parts(at.cast::<u8>(), len);
        let how = request::How::of(lua_tointeger_(l, 3));
        let reference = (lua_tointeger_(l, 4) / 8) as c_int;
        luaL_checkstack_(l, 20, c"net.box".as_ptr());
        let context = reply::Context::new(s, l, conn);
        match reply::push_one(&context, how, reference, body) {
            Ok(true) => 1,
            Ok(false) => 0,
            Err(codec::Broken) => {
                lua_pushboolean(l, 0);
                1
            }
        }
    }
}
