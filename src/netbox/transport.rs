//! One connection: a socket, what is to be sent, what has arrived, and who waits for what.
//!
//! ```text
//!             new()          connected, greeted        attach()                 state ACTIVE
//!   [ no fd ] ------> [ fd ] -----------------> [ greeting read ] ---> [ watched ] -----> [ takes requests ]
//!                       ^                                                  |  break: end of stream, error,
//!                       |                                                  v  nonsense
//!                       '--- the worker reconnects <--- close_fd() <-- [ BROKEN: the worker is woken ]
//! ```
//!
//! The worker is the connection's own fiber, written in Lua. The data plane wakes it by setting bits of [`attention`]
//! and moving it to the head of the ready queue, so that it acts before anybody else runs.

use super::reply;
use super::request::Slab;
use super::secure;
use crate::fiber::fiber::flag;
use crate::fiber::wait::WaitList;
use crate::lua::body::{LuaBody, LuaFiber};
use crate::lua::state::State;
use crate::sys::fork;
use crate::sys::poll::{CLOSED, READ, Readiness, WRITE};
use crate::tls::Tls;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;

/// What the worker is woken for.
pub mod attention {
    /// The stream ended or broke: see [`Problem`](super::Problem).
    pub const BROKEN: u32 = 1;
    /// A reply carried another schema version.
    pub const STALE: u32 = 2;
    /// `close` was called.
    pub const CLOSING: u32 = 4;
    /// Nobody can reach the connection any more.
    pub const ORPHAN: u32 = 8;
    /// Events or pushes were queued.
    pub const QUEUED: u32 = 16;
    /// The last request in progress was answered, and that was waited for.
    pub const IDLE: u32 = 32;
    /// Everything was sent, and that was waited for.
    pub const FLUSHED: u32 = 64;
}

/// Whether requests are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Neither now.
    Refusing,
    /// Asynchronous ones now, synchronous ones after the schema.
    Loading,
    /// All.
    Active,
}

/// Why a connection broke.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Problem {
    /// It did not.
    None,
    /// End of the stream.
    Peer,
    /// The system's error, in a call of that name.
    System(i32, &'static str),
    /// A length beyond all reason.
    TooBig,
    /// No length at all.
    Length,
    /// A header that is none.
    Header,
    /// A body that is none.
    Body,
    /// This process was forked off the one whose socket it is.
    Forked,
    /// TLS: the words are [`Tls::problem`]'s.
    Tls,
}

/// Something the data plane hands to the worker as bytes.
pub struct Queued {
    /// Of a push, the number of the function it is for; 0 for an event.
    pub handler: u32,
    /// The packet's body.
    pub body: Box<[u8]>,
}

const INPUT_MIN: usize = 16 * 1024;
const INPUT_MAX: usize = 1024 * 1024;
/// Buffers beyond this are given back when empty.
const KEEP_MAX: usize = 4 * 1024 * 1024;

/// A connection's record. Its address is stable.
pub struct Conn {
    /// Where it is in [`Netbox::conns`](super::Netbox::conns).
    pub slot: usize,
    /// The userdata that point here.
    pub refs: u32,
    /// The socket, or -1.
    pub fd: RawFd,
    /// The process it was made in: [`fork::generation`].
    pub forks: u32,
    /// What lies between us and the socket, if the connection is encrypted.
    pub tls: Option<Box<Tls>>,
    watch: Option<usize>,
    /// Encoded requests; what is beyond `committed` belongs to one being encoded.
    pub out: Vec<u8>,
    /// Bytes of `out` that belong to whole requests.
    pub committed: usize,
    pub(super) sent: usize,
    /// Listed in [`Netbox::dirty`](super::Netbox::dirty).
    pub dirty: bool,
    blocked: bool,
    /// What has arrived: `start..end` of it is not handled yet.
    pub input: Vec<u8>,
    /// See `input`.
    pub start: usize,
    /// See `input`.
    pub end: usize,
    read_size: usize,
    /// Whether requests are taken.
    pub phase: Phase,
    /// The worker.
    pub worker: LuaFiber,
    worker_id: u64,
    /// Requests in flight.
    pub slab: Slab,
    /// The server's schema version, as of its last reply.
    pub schema_version: u64,
    /// How often it changed.
    pub schema_changes: u32,
    /// Whether another version is worth waking the worker for.
    pub track_schema: bool,
    /// Reasons to wake the worker: [`attention`].
    pub attention: u32,
    /// Those it wants to be woken for besides.
    pub wanted: u32,
    /// Why it broke.
    pub problem: Problem,
    /// Fibers that wait for another state.
    pub waiters: WaitList<LuaBody>,
    /// Events and pushes for the worker.
    pub queue: VecDeque<Queued>,
    /// Whether the peer takes tuples with their formats as arguments of calls.
    pub tuple_args: bool,
    /// How long the packet is whose beginning has arrived.
    pub need: usize,
    /// Requests begun, whatever became of them: whoever runs Lua code while one is in the making sees whether another came
    /// in between.
    pub begun: u32,
    /// The addresses of the metatables among its anchors, by their numbers.
    metas: Vec<*const c_void>,
}

impl Conn {
    /// A record without a socket, listed in a slot.
    ///
    /// # Safety
    /// `s` is live. The caller sees to it that [`release`] is called once for each of its `refs`.
    pub unsafe fn create(s: *mut State) -> *mut Conn {
        // SAFETY: the caller's contract.
        unsafe {
            let netbox = &mut (*s).netbox;
            let slot = netbox.free.pop().unwrap_or_else(|| {
                netbox.conns.push(std::ptr::null_mut());
                netbox.conns.len() - 1
            });
            let conn = Box::into_raw(Box::new(Conn {
                slot,
                refs: 0,
                fd: -1,
                forks: 0,
                tls: None,
                watch: None,
                out: Vec::new(),
                committed: 0,
                sent: 0,
                dirty: false,
                blocked: false,
                input: Vec::new(),
                start: 0,
                end: 0,
                read_size: INPUT_MIN,
                phase: Phase::Refusing,
                worker: std::ptr::null_mut(),
                worker_id: 0,
                slab: Slab::default(),
                schema_version: 0,
                schema_changes: 0,
                track_schema: false,
                attention: 0,
                wanted: 0,
                problem: Problem::None,
                waiters: WaitList::new(),
                queue: VecDeque::new(),
                tuple_args: false,
                need: 0,
                begun: 0,
                metas: Vec::new(),
            }));
            if let Some(place) = netbox.conns.get_mut(slot) {
                *place = conn;
            }
            conn
        }
    }

    /// Names the fiber to wake.
    ///
    /// # Safety
    /// `worker` is a live fiber.
    pub unsafe fn set_worker(&mut self, worker: LuaFiber) {
        self.worker = worker;
        // SAFETY: the caller's contract.
        self.worker_id = unsafe { (*worker).id };
    }

    /// Whether `f` is the worker.
    ///
    /// # Safety
    /// `f` is null or a record.
    #[inline(always)]
    pub unsafe fn is_worker(&self, f: LuaFiber) -> bool {
        // SAFETY: records are never freed.
        f == self.worker && !f.is_null() && unsafe { (*f).id } == self.worker_id
    }

    /// The metatable of tuples with that number.
    #[inline(always)]
    pub fn meta(&self, reference: i32) -> *const c_void {
        self.metas.get(reference.unsigned_abs() as usize).copied().unwrap_or(std::ptr::null())
    }

    /// Notes the address of a metatable that the anchors hold from now on.
    pub fn set_meta(&mut self, reference: i32, address: *const c_void) {
        let at = reference.unsigned_abs() as usize;
        if self.metas.len() <= at {
            self.metas.resize(at + 1, std::ptr::null());
        }
        if let Some(place) = self.metas.get_mut(at) {
            *place = address;
        }
    }

    /// Bytes still to be sent.
    pub fn unsent(&self) -> usize {
        self.committed - self.sent + self.tls.as_ref().map_or(0, |tls| tls.pending())
    }
}

/// Gives up one reference; the last one frees the record.
///
/// # Safety
/// `conn` is live and the caller's reference is not used afterwards.
pub unsafe fn release(s: *mut State, conn: *mut Conn) {
    // SAFETY: the caller's contract.
    unsafe {
        (*conn).refs -= 1;
        if (*conn).refs > 0 {
            return;
        }
        close_fd(s, conn);
        let netbox = &mut (*s).netbox;
        if let Some(place) = netbox.conns.get_mut((*conn).slot) {
            *place = std::ptr::null_mut();
            netbox.free.push((*conn).slot);
        }
        netbox.dirty.retain(|other| *other != conn);
        drop(Box::from_raw(conn));
    }
}

/// Sets bits of [`attention`] and puts the worker at the head of the ready queue.
///
/// # Safety
/// `conn` is live.
pub unsafe fn alert(s: *mut State, conn: *mut Conn, bits: u32) {
    // SAFETY: the caller's contract; the worker's record is checked to still serve it.
    unsafe {
        (*conn).attention |= bits;
        let f = (*conn).worker;
        if f.is_null() || !(*conn).is_worker(f) {
            return;
        }
        if f != (*s).cord.current && !(*f).is(flag::READY | flag::DEAD) {
            WaitList::unlink(f);
            (*f).attention |= crate::fiber::fiber::attention::SIGNALLED;
            (*f).flags |= flag::READY;
            (*s).cord.ready.push_front(f);
        }
    }
}

/// The stream is over: the worker decides what that means.
///
/// # Safety
/// `conn` is live.
pub unsafe fn break_off(s: *mut State, conn: *mut Conn, problem: Problem) {
    // SAFETY: the caller's contract.
    unsafe {
        if (*conn).problem == Problem::None {
            (*conn).problem = problem;
        }
        (*conn).phase = Phase::Refusing;
        stop_watching(s, conn);
        alert(s, conn, attention::BROKEN);
    }
}

unsafe fn stop_watching(s: *mut State, conn: *mut Conn) {
    // SAFETY: the watch is the connection's own.
    unsafe {
        if let Some(token) = (*conn).watch.take() {
            (*s).cord.descriptors.unwatch(token);
        }
    }
}

/// Takes over a new socket.
///
/// # Safety
/// `conn` is live and has none.
pub unsafe fn adopt(conn: *mut Conn, fd: RawFd) {
    // SAFETY: the caller's contract.
    unsafe {
        (*conn).fd = fd;
        (*conn).forks = fork::generation();
        (*conn).problem = Problem::None;
    }
}

/// Whether the socket belongs to a process that this one was forked off. Reading or writing it would garble the stream.
///
/// # Safety
/// `conn` is live.
#[inline(always)]
pub unsafe fn is_foreign(conn: *const Conn) -> bool {
    // SAFETY: the caller's contract.
    unsafe { (*conn).forks != fork::current() && (*conn).fd >= 0 }
}

/// In a process just forked: the sockets are the parent's, so all connections break. What the parent has queued it sends.
///
/// # Safety
/// `s` is live.
#[cold]
pub unsafe fn leave_to_parent(s: *mut State) {
    // SAFETY: records in slots are live, and breaking one frees none.
    unsafe {
        (*s).netbox.forks = fork::current();
        for slot in 0..(*s).netbox.conns.len() {
            let conn = (&(*s).netbox.conns).get(slot).copied().unwrap_or(std::ptr::null_mut());
            if !conn.is_null() && is_foreign(conn) {
                (*conn).tls = None;
                (&mut (*conn).out).clear();
                (*conn).committed = 0;
                (*conn).sent = 0;
                (*conn).problem = Problem::None;
                break_off(s, conn, Problem::Forked);
            }
        }
    }
}

/// Closes the socket and drops both buffers. Requests in flight stay for the worker to fail.
///
/// # Safety
/// `conn` is live.
pub unsafe fn close_fd(s: *mut State, conn: *mut Conn) {
    // SAFETY: the descriptor is the connection's own, forgotten by the poller before it is closed.
    unsafe {
        stop_watching(s, conn);
        if (*conn).fd >= 0 {
            (*s).cord.descriptors.forget((*conn).fd);
            // A child process that inherited the socket must not keep the server waiting, nor end its parent's connection.
            if !is_foreign(conn) {
                secure::close(conn);
                libc::shutdown((*conn).fd, libc::SHUT_RDWR);
            }
            libc::close((*conn).fd);
            (*conn).fd = -1;
        }
        (*conn).tls = None;
        (*conn).phase = Phase::Refusing;
        (&mut (*conn).out).clear();
        (*conn).committed = 0;
        (*conn).sent = 0;
        (*conn).blocked = false;
        (*conn).start = 0;
        (*conn).end = 0;
        (&mut (*conn).queue).clear();
        if (*conn).input.capacity() > KEEP_MAX {
            (*conn).input = Vec::new();
        }
    }
}

/// Hands the greeted socket to the scheduler's poller.
///
/// # Errors
/// The system's.
///
/// # Safety
/// `conn` is live and has a socket.
pub unsafe fn attach(s: *mut State, conn: *mut Conn) -> io::Result<()> {
    // SAFETY: the caller's contract.
    unsafe {
        let data = (*conn).slot << 3 | super::listener(s);
        (*conn).problem = Problem::None;
        (*conn).schema_version = 0;
        (*conn).schema_changes = 0;
        (*conn).attention &= !(attention::BROKEN | attention::STALE | attention::QUEUED);
        (*conn).watch = Some((*s).cord.descriptors.watch((*conn).fd, READ, data)?);
        if (*conn).tls.is_some() {
            // What was decrypted with the greeting is not announced any more.
            receive(s, conn, true);
        }
        Ok(())
    }
}

/// Marks whatever was encoded since the last commit as one whole request, to be sent at the end of the turn.
///
/// # Safety
/// `conn` is live.
#[inline(always)]
pub unsafe fn commit(s: *mut State, conn: *mut Conn) {
    // SAFETY: the caller's contract.
    unsafe {
        (*conn).committed = (*conn).out.len();
        if !(*conn).dirty && !(*conn).blocked {
            (*conn).dirty = true;
            (&mut (*s).netbox.dirty).push(conn);
        }
    }
}

/// Sends what is to be sent, as far as the socket takes it.
///
/// # Safety
/// `conn` is live.
pub unsafe fn flush(s: *mut State, conn: *mut Conn) {
    // SAFETY: the bytes are the connection's own and nothing runs meanwhile.
    unsafe {
        if (*conn).tls.is_some() {
            return secure::flush(s, conn);
        }
        while (*conn).sent < (*conn).committed && (*conn).fd >= 0 {
            let at = (*conn).out.as_ptr().add((*conn).sent);
            let len = (*conn).committed - (*conn).sent;
            let n = libc::send((*conn).fd, at.cast(), len, libc::MSG_NOSIGNAL);
            if n >= 0 {
                #[allow(clippy::cast_sign_loss)]
                let n = n as usize;
                (*conn).sent += n;
                continue;
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                ErrorKind::Interrupted => {}
                ErrorKind::WouldBlock => return block(s, conn),
                // Whatever the peer said before it went away is read first: the end of the stream says the rest.
                _ => return half_broken(s, conn, error.raw_os_error().unwrap_or(0)),
            }
        }
        sent_all(s, conn);
    }
}

pub(super) unsafe fn sent_all(s: *mut State, conn: *mut Conn) {
    // SAFETY: as for `flush`.
    unsafe {
        if (*conn).blocked {
            (*conn).blocked = false;
            if let Some(token) = (*conn).watch {
                let _ = (*s).cord.descriptors.rewatch(token, READ);
            }
        }
        let tail = (*conn).out.len() - (*conn).committed;
        if tail == 0 {
            if (*conn).out.capacity() > KEEP_MAX {
                (*conn).out = Vec::new();
            } else {
                (&mut (*conn).out).clear();
            }
            (*conn).committed = 0;
            (*conn).sent = 0;
        }
        if (*conn).wanted & attention::FLUSHED != 0 {
            alert(s, conn, attention::FLUSHED);
        }
    }
}

#[cold]
pub(super) unsafe fn block(s: *mut State, conn: *mut Conn) {
    // SAFETY: as for `flush`.
    unsafe {
        if (*conn).sent > INPUT_MAX && (*conn).out.len() == (*conn).committed {
            (&mut (*conn).out).drain(..(*conn).sent);
            (*conn).committed -= (*conn).sent;
            (*conn).sent = 0;
        }
        if !(*conn).blocked {
            (*conn).blocked = true;
            let armed = match (*conn).watch {
                Some(token) => (*s).cord.descriptors.rewatch(token, READ | WRITE),
                None => Ok(()),
            };
            if let Err(error) = armed {
                break_off(s, conn, Problem::System(error.raw_os_error().unwrap_or(0), "epoll_ctl"));
            }
        }
    }
}

#[cold]
pub(super) unsafe fn half_broken(s: *mut State, conn: *mut Conn, errno: i32) {
    // SAFETY: as for `flush`.
    unsafe {
        (*conn).sent = (*conn).committed;
        receive(s, conn, true);
        if (*conn).problem == Problem::None {
            break_off(s, conn, Problem::System(errno, "send"));
        }
    }
}

/// The socket is ready.
///
/// # Safety
/// `conn` is live.
pub unsafe fn ready(s: *mut State, conn: *mut Conn, what: Readiness) {
    // SAFETY: the caller's contract; the reference keeps the record while Lua code of decoders runs.
    unsafe {
        (*conn).refs += 1;
        if what & READ != 0 {
            receive(s, conn, what & CLOSED != 0);
        }
        if what & WRITE != 0 && (*conn).blocked && (*conn).problem == Problem::None {
            flush(s, conn);
        }
        release(s, conn);
    }
}

/// Reads until the socket has no more, and handles the replies. A short read says that it has no more, unless the peer
/// has closed: that is reported only once, so then it is read `to_end`.
unsafe fn receive(s: *mut State, conn: *mut Conn, to_end: bool) {
    // SAFETY: as for `ready`; the borrows end where they begin.
    unsafe {
        if (*conn).start == (*conn).end && (&(*conn).input).len() < (&(*s).netbox.input).len() {
            std::mem::swap(&mut (*conn).input, &mut (*s).netbox.input);
        }
        receive_into(s, conn, to_end);
        if (*conn).start == (*conn).end && (&(*s).netbox.input).len() < (&(*conn).input).len() {
            std::mem::swap(&mut (*conn).input, &mut (*s).netbox.input);
            if (*s).netbox.input.capacity() > KEEP_MAX {
                (*s).netbox.input = Vec::new();
            }
        }
    }
}

unsafe fn receive_into(s: *mut State, conn: *mut Conn, to_end: bool) {
    // SAFETY: as for `ready`.
    unsafe {
        if (*conn).tls.is_some() {
            return secure::receive(s, conn, to_end);
        }
        while (*conn).fd >= 0 && (*conn).problem == Problem::None {
            make_room(conn);
            let room = (*conn).input.len() - (*conn).end;
            let n = libc::recv((*conn).fd, (&mut (*conn).input).as_mut_ptr().add((*conn).end).cast(), room, 0);
            if n == 0 {
                return break_off(s, conn, Problem::Peer);
            }
            if n < 0 {
                let error = io::Error::last_os_error();
                match error.kind() {
                    ErrorKind::Interrupted => continue,
                    ErrorKind::WouldBlock => return,
                    _ => return break_off(s, conn, Problem::System(error.raw_os_error().unwrap_or(0), "recv")),
                }
            }
            #[allow(clippy::cast_sign_loss)]
            let n = n as usize;
            (*conn).end += n;
            grow(conn, n == room);
            reply::handle(s, conn);
            if n < room && !to_end {
                return;
            }
        }
    }
}

/// Asks for more the next time if a read got all it asked for.
#[inline(always)]
pub(super) unsafe fn grow(conn: *mut Conn, full: bool) {
    // SAFETY: the record is live.
    unsafe {
        if full && (*conn).read_size < INPUT_MAX {
            (*conn).read_size *= 2;
        }
    }
}

/// Makes room behind what has arrived: for one read, or for the rest of a packet whose length is known, though never
/// for much more than has really come.
pub(super) unsafe fn make_room(conn: *mut Conn) {
    // SAFETY: the record is live; the borrow ends here.
    let conn = unsafe { &mut *conn };
    let have = conn.end - conn.start;
    let missing = conn.need.saturating_sub(have).min(have.max(16 * INPUT_MAX));
    let room = conn.read_size.max(missing);
    if conn.start == conn.end {
        conn.start = 0;
        conn.end = 0;
    }
    if conn.end + room > conn.input.len() {
        conn.input.copy_within(conn.start..conn.end, 0);
        conn.start = 0;
        conn.end = have;
        if conn.end + room > conn.input.len() {
            conn.input.resize(conn.end + room, 0);
        }
    }
}
