//! All servers of one Lua state: their listening sockets, their clients, the requests that run. The scheduler tells it of
//! descriptors and of the end of each turn.
//!
//! Sessions are removed only by [`event`] and [`before_poll`], which the scheduler calls when no Lua code runs below: so
//! that a handler, or a finalizer in the middle of a decode, that stops a server takes nothing away from under anybody.

use super::dispatch;
use super::engine::Engine;
use super::listener::Listener;
use super::session::{Phase, Progress, Session, Socket};
use super::stream;
use super::user::Users;
use crate::iproto::constants::feature;
use crate::iproto::greeting;
use crate::lua::body;
use crate::lua::msgpack::{Codec, Formats};
use crate::lua::state::State;
use crate::sys::poll::{CLOSED, READ, Readiness, WRITE};
use crate::tls::{Handshake, ServerConfig};
use rustc_hash::FxHashMap;
use slab::Slab;
use std::ffi::c_int;
use std::sync::Arc;

/// Bytes read from one client before it is others' turn.
const BUDGET: usize = 256 * 1024;
/// The version servers claim: the first that has all of protocol version 10.
pub const VERSION: &str = "3.3.0";
/// The features servers have, as bits.
pub const FEATURES: u64 = 1 << feature::STREAMS
    | 1 << feature::TRANSACTIONS
    | 1 << feature::ERROR_EXTENSION
    | 1 << feature::WATCHERS
    | 1 << feature::PAGINATION
    | 1 << feature::SPACE_AND_INDEX_NAMES
    | 1 << feature::WATCH_ONCE
    | 1 << feature::DML_TUPLE_EXTENSION
    | 1 << feature::CALL_RET_TUPLE_EXTENSION
    | 1 << feature::CALL_ARG_TUPLE_EXTENSION
    | 1 << feature::IS_SYNC;

/// What a server allows.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Requests that run in fibers at once, over all clients.
    pub net_msg_max: u32,
    /// Room offered to a read, in bytes.
    pub readahead: usize,
    /// Longest packet in bytes.
    pub packet: u64,
    /// Bytes a client may leave unread before no more of its requests are taken.
    pub unread: usize,
    /// Clients at once.
    pub connections: usize,
    /// Nanoseconds a packet may take to arrive.
    pub packet_time: u64,
    /// Seconds by which the response to a failed login is delayed.
    pub auth_delay: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            net_msg_max: 768,
            readahead: 16_320,
            packet: 128 << 20,
            unread: 16 << 20,
            connections: 65_536,
            packet_time: 60_000_000_000,
            auth_delay: 0.05,
        }
    }
}

/// What a server counts.
#[derive(Debug)]
pub struct Stat {
    /// Requests by type; the last one counts all types beyond.
    pub requests: [u64; 80],
    /// Error responses.
    pub errors: u64,
    /// Clients so far.
    pub connections: u64,
    /// Bytes received and sent by clients that have gone.
    pub traffic: (u64, u64),
}

impl Default for Stat {
    fn default() -> Self {
        Stat { requests: [0; 80], errors: 0, connections: 0, traffic: (0, 0) }
    }
}

/// One server: what `server.listen` makes.
pub struct Instance {
    /// What it allows.
    pub limits: Limits,
    /// What it counts.
    pub stat: Stat,
    /// Its spaces.
    pub engine: Engine,
    /// Its UUID, in its text form.
    pub uuid: String,
    /// Whether EVAL is allowed.
    pub eval: bool,
    /// Who may do what.
    pub users: Users,
    /// Whether users log in with `pap-sha256`.
    pub pap: bool,
    /// Values of keys that clients may watch.
    pub events: FxHashMap<Box<[u8]>, Event>,
    /// Bits of [`hook`].
    pub hooks: u32,
    /// Its clients.
    pub sessions: usize,
    /// Requests that run in fibers.
    pub running: u32,
    /// Functions called by reference: name to position in the table of kept functions.
    pub references: FxHashMap<Box<[u8]>, c_int>,
}

/// The value of a key that clients may watch.
#[derive(Debug, Default)]
pub struct Event {
    /// MessagePack; empty: the key has no value.
    pub value: Box<[u8]>,
    /// Grows with each change.
    pub version: u64,
}

/// Which of a server's triggers exist.
pub mod hook {
    /// on_connect
    pub const CONNECT: u32 = 1;
    /// on_disconnect
    pub const DISCONNECT: u32 = 2;
    /// on_auth
    pub const AUTH: u32 = 4;
}

/// What a fiber of ours was started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A CALL or EVAL: its results are the response.
    Call,
    /// A CALL of the old kind: each result becomes a tuple.
    Call16,
    /// The on_connect triggers of a session: then it is greeted.
    Connect,
    /// The delayed response to a failed login.
    Refusal,
    /// The on_auth triggers of a login that has been proved: then it is one.
    Login,
}

/// A fiber that runs for a client.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// What for.
    pub purpose: Purpose,
    /// The slot of its session, whose id tells whether it is still that one.
    pub session: usize,
    /// See `session`.
    pub session_id: u64,
    /// The server's slot. A server outlives its requests.
    pub instance: usize,
    /// The number its response carries.
    pub sync: u64,
    /// The stream it belongs to, or 0.
    pub stream: u64,
}

/// A listening socket.
struct Door {
    instance: usize,
    serial: u64,
    listener: Listener,
    token: usize,
    /// What clients are encrypted with.
    tls: Option<Arc<ServerConfig>>,
    /// Clients could not be taken: no descriptors.
    stuck: bool,
}

/// The servers of a Lua state by number. Numbers are not used again: objects that scripts keep of a server that is gone
/// must not mean another one.
#[derive(Default)]
#[allow(clippy::vec_box)] // they stay where they are
pub struct Instances(Vec<Option<Box<Instance>>>);

impl Instances {
    /// Adds a server and gives its number.
    pub fn insert(&mut self, instance: Box<Instance>) -> usize {
        self.0.push(Some(instance));
        self.0.len() - 1
    }

    /// The server of that number.
    #[inline]
    pub fn get(&self, number: usize) -> Option<&Instance> {
        self.0.get(number)?.as_deref()
    }

    /// The server of that number.
    #[inline]
    pub fn get_mut(&mut self, number: usize) -> Option<&mut Instance> {
        self.0.get_mut(number)?.as_deref_mut()
    }

    /// Removes a server.
    pub fn remove(&mut self, number: usize) {
        if let Some(slot) = self.0.get_mut(number) {
            *slot = None;
        }
    }
}

/// The servers of one Lua state.
pub struct Hub {
    /// The servers.
    pub instances: Instances,
    /// The clients. Boxed: they stay where they are.
    pub sessions: Slab<Box<Session>>,
    /// Fibers that run for them.
    pub requests: Slab<Request>,
    /// The default codec.
    pub codec: *const Codec,
    /// Whether functions that run requests are made once.
    pub reuse: bool,
    /// The formats of the tuples in the response under construction.
    pub formats: Formats,
    /// Whether the decoder of tuples was told formats of a request.
    pub formats_told: bool,
    /// Compiled expressions: text to position in the table of kept ones.
    pub evals: FxHashMap<Box<[u8]>, c_int>,
    /// Clients that have gone and whose session scripts know: by its number, how many of their requests still run.
    pub departed: FxHashMap<u64, u32>,
    doors: Slab<Door>,
    todo: Vec<usize>,
    stalled: Vec<usize>,
    /// Buffers nobody uses at the moment: to read into, and to write from.
    spare: (Vec<u8>, Vec<u8>),
    number: usize,
    next_id: u64,
}

impl Hub {
    /// The hub of a state, made when it is first asked for.
    ///
    /// # Safety
    /// `s` is live.
    pub unsafe fn of(s: *mut State, codec: *const Codec) -> *mut Hub {
        // SAFETY: the caller's contract.
        unsafe {
            if (*s).server.is_null() {
                let listeners = &raw mut (*s).cord.body.listeners;
                let number = (&*listeners).len();
                (&mut *listeners).push(body::Listener { before_poll, event });
                (*s).cord.body.served = Some(dispatch::served);
                (*s).server = Box::into_raw(Box::new(Hub {
                    instances: Instances::default(),
                    sessions: Slab::new(),
                    requests: Slab::new(),
                    codec,
                    reuse: true,
                    formats: Formats::default(),
                    formats_told: false,
                    evals: FxHashMap::default(),
                    departed: FxHashMap::default(),
                    doors: Slab::new(),
                    todo: Vec::new(),
                    spare: (Vec::new(), Vec::new()),
                    stalled: Vec::new(),
                    number,
                    next_id: 1,
                }));
            }
            (*s).server
        }
    }

    /// Closes every socket: the Lua state goes away.
    ///
    /// # Safety
    /// `s` is live, and nothing of it runs any more.
    pub unsafe fn close(s: *mut State) {
        // SAFETY: the caller's contract; the pointer came from a Box.
        unsafe {
            let hub = std::mem::replace(&mut (*s).server, std::ptr::null_mut());
            if !hub.is_null() {
                drop(Box::from_raw(hub));
            }
        }
    }

    /// The session in slot `i`, or null.
    #[inline]
    pub fn session(&mut self, i: usize) -> *mut Session {
        self.sessions.get_mut(i).map_or(std::ptr::null_mut(), |session| &raw mut **session)
    }

    /// The session a request belongs to, or null when its client has gone.
    #[inline]
    pub fn session_of(&mut self, request: &Request) -> *mut Session {
        match self.sessions.get_mut(request.session) {
            Some(session) if session.id == request.session_id => &raw mut **session,
            _ => std::ptr::null_mut(),
        }
    }

    /// Gives a session that has no buffer for its output the spare one.
    ///
    /// # Safety
    /// `session` is live.
    #[inline]
    pub unsafe fn lend_output(&mut self, session: *mut Session) {
        // SAFETY: the caller's contract.
        unsafe {
            if (*session).output.capacity() == 0 {
                (*session).output = std::mem::take(&mut self.spare.1);
            }
        }
    }

    /// The server in slot `i`, or null.
    #[inline]
    pub fn instance(&mut self, i: usize) -> *mut Instance {
        self.instances.get_mut(i).map_or(std::ptr::null_mut(), |instance| &raw mut *instance)
    }

    /// Has the session in slot `i` looked at at the end of the turn.
    #[inline]
    pub fn list(&mut self, i: usize) {
        if let Some(session) = self.sessions.get_mut(i)
            && !session.listed
        {
            session.listed = true;
            self.todo.push(i);
        }
    }

    /// A request of `instance` has ended: sessions that waited for that go on.
    #[inline]
    pub fn request_ended(&mut self, instance: usize) {
        if let Some(instance) = self.instances.get_mut(instance) {
            instance.running -= 1;
        }
        if !self.stalled.is_empty() {
            for i in std::mem::take(&mut self.stalled) {
                self.list(i);
            }
        }
    }

    /// Whether no more requests of the session may be taken now.
    fn is_blocked(&mut self, i: usize) -> bool {
        let Some(session) = self.sessions.get(i) else { return true };
        let Some(instance) = self.instances.get(session.instance) else { return true };
        let is_waiting = session.phase != Phase::Open || session.login.is_some();
        if is_waiting || session.unsent() + session.queued > instance.limits.unread {
            return true;
        }
        if instance.running >= instance.limits.net_msg_max {
            if !self.stalled.contains(&i) {
                self.stalled.push(i);
            }
            return true;
        }
        false
    }

    /// Adds a listening socket to a server.
    ///
    /// # Errors
    /// The system's.
    ///
    /// # Safety
    /// `s` is live and this is its hub.
    pub unsafe fn add_door(
        hub: *mut Hub,
        s: *mut State,
        instance: usize,
        listener: Listener,
        tls: Option<Arc<ServerConfig>>,
    ) -> std::io::Result<()> {
        // SAFETY: the caller's contract.
        unsafe {
            let entry = (&mut (*hub).doors).vacant_entry();
            let data = (entry.key() << 1 | 1) << 3 | (*hub).number;
            let token = (*s).cord.descriptors.watch(listener.fd(), READ, data)?;
            let serial = (*hub).next_id;
            (*hub).next_id += 1;
            entry.insert(Door { instance, serial, listener, token, tls, stuck: false });
        }
        Ok(())
    }

    /// The addresses a server is bound to.
    pub fn addresses(&self, instance: usize) -> impl Iterator<Item = String> {
        let ours = self.doors.iter().map(|(_, door)| door).filter(|door| door.instance == instance);
        let mut ours: Vec<&Door> = ours.collect();
        // In the order in which they were bound.
        ours.sort_by_key(|door| door.serial);
        ours.into_iter().map(|door| door.listener.address())
    }

    /// Stops accepting clients of a server: its listening sockets are closed.
    ///
    /// # Safety
    /// `s` is live and this is its hub.
    pub unsafe fn shut_doors(hub: *mut Hub, s: *mut State, instance: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            let doors = &mut (*hub).doors;
            let keys: Vec<usize> = doors.iter().filter(|(_, door)| door.instance == instance).map(|(i, _)| i).collect();
            for key in keys {
                let door = doors.remove(key);
                (*s).cord.descriptors.unwatch(door.token);
            }
        }
    }

    /// No more requests of a server's clients are taken; each is closed when it has been sent what was answered.
    pub fn close_sessions(&mut self, instance: usize, now: u64) {
        let theirs: Vec<usize> =
            self.sessions.iter().filter(|(_, session)| session.instance == instance).map(|(i, _)| i).collect();
        for i in theirs {
            if let Some(session) = self.sessions.get_mut(i) {
                session.phase = Phase::Closing;
                // A client that does not read what it is sent is given the time a packet may take.
                session.half_since = now;
            }
            self.list(i);
        }
    }

    /// What has become overdue: packets that take too long to arrive are the end of their session; clients that could
    /// not be accepted are tried again.
    ///
    /// # Safety
    /// `s` is live and this is its hub.
    pub unsafe fn tick(hub: *mut Hub, s: *mut State) {
        // SAFETY: the caller's contract.
        unsafe {
            let now = (*s).cord.clock.monotonic;
            let mut overdue = Vec::new();
            for (i, session) in &mut (*hub).sessions {
                let Some(instance) = (&mut (*hub).instances).get_mut(session.instance) else { continue };
                let limit = instance.limits.packet_time;
                stream::expire(session, &mut instance.engine, now);
                if session.half_since != 0 && now.saturating_sub(session.half_since) > limit {
                    overdue.push(i);
                }
            }
            for i in overdue {
                if let Some(session) = (&mut (*hub).sessions).get_mut(i) {
                    session.ended |= matches!(session.phase, Phase::Closing | Phase::Securing);
                    session.phase = Phase::Closing;
                }
                (*hub).list(i);
            }
            let stuck: Vec<usize> = (&(*hub).doors).iter().filter(|(_, door)| door.stuck).map(|(i, _)| i).collect();
            for i in stuck {
                accept(s, hub, i);
            }
        }
    }
}

/// A descriptor of ours is ready.
unsafe fn event(s: *mut State, payload: usize, ready: Readiness) {
    // SAFETY: called by the scheduler with its live state.
    unsafe {
        let hub = (*s).server;
        if hub.is_null() {
            return;
        }
        if payload & 1 != 0 {
            return accept(s, hub, payload >> 1);
        }
        let i = payload >> 1;
        let session = (*hub).session(i);
        if session.is_null() {
            return;
        }
        (*session).hangup |= ready & CLOSED != 0;
        (*session).readable |= ready & READ != 0;
        if ready & WRITE != 0 && (*session).unsent() > 0 {
            (*hub).list(i);
        }
        serve(s, hub, i);
    }
}

/// Takes every client that waits at a door.
unsafe fn accept(s: *mut State, hub: *mut Hub, door: usize) {
    // SAFETY: the caller's contract; nothing of the hub is borrowed across `enter`.
    unsafe {
        loop {
            let Some(open) = (&mut (*hub).doors).get_mut(door) else { return };
            let instance = open.instance;
            match open.listener.accept() {
                Ok((socket, peer)) => {
                    let socket = match &open.tls {
                        Some(config) => socket.secure(config),
                        None => Ok(socket),
                    };
                    if let Ok(socket) = socket {
                        enter(s, hub, instance, socket, peer);
                    }
                }
                Err(error) => match error.kind() {
                    std::io::ErrorKind::Interrupted | std::io::ErrorKind::ConnectionAborted => {}
                    std::io::ErrorKind::WouldBlock => {
                        open.stuck = false;
                        return;
                    }
                    _ => {
                        open.stuck = true;
                        return;
                    }
                },
            }
        }
    }
}

/// A new client: one too many is closed at once.
unsafe fn enter(s: *mut State, hub: *mut Hub, instance: usize, socket: Socket, peer: String) {
    // SAFETY: the caller's contract.
    unsafe {
        let owner = (*hub).instance(instance);
        if owner.is_null() || (*owner).sessions >= (*owner).limits.connections {
            return;
        }
        let id = (*hub).next_id;
        (*hub).next_id += 1;
        let mut session = Box::new(Session::new(id, instance, socket, peer));
        for half in session.salt.chunks_exact_mut(16) {
            half.copy_from_slice(uuid::Uuid::new_v4().as_bytes());
        }
        let entry = (&mut (*hub).sessions).vacant_entry();
        let i = entry.key();
        let data = (i << 1) << 3 | (*hub).number;
        match (*s).cord.descriptors.watch(session.socket.fd(), READ | WRITE, data) {
            Ok(token) => session.token = token,
            Err(_) => return,
        }
        let secure = session.socket.is_secure();
        if secure {
            // A new socket is announced as writable: that begins the handshake, which has the time of a packet.
            session.phase = Phase::Securing;
            session.half_since = (*s).cord.clock.monotonic.max(1);
        }
        entry.insert(session);
        (*owner).sessions += 1;
        (*owner).stat.connections += 1;
        if !secure {
            welcome(s, hub, i);
        }
    }
}

/// Goes on with a client's handshake; then it is welcome.
#[cold]
unsafe fn shake(s: *mut State, hub: *mut Hub, i: usize) {
    // SAFETY: the caller's contract; the session is looked up anew by whatever comes after.
    unsafe {
        let session = (*hub).session(i);
        match (&mut (*session).socket).handshake() {
            Ok(Handshake::Done) => {
                (*session).phase = Phase::Connecting;
                (*session).half_since = 0;
                // The first request may have come with the end of the handshake.
                (*session).held = true;
                (*session).readable = true;
                welcome(s, hub, i);
            }
            Ok(_) => {}
            Err(_) => {
                (*session).ended = true;
                (*hub).list(i);
            }
        }
    }
}

/// Runs the on_connect triggers of a client, then greets it.
unsafe fn welcome(s: *mut State, hub: *mut Hub, i: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        let session = (*hub).session(i);
        let owner = if session.is_null() { std::ptr::null_mut() } else { (*hub).instance((*session).instance) };
        if owner.is_null() {
            return;
        }
        if (*owner).hooks & hook::CONNECT == 0 || !dispatch::run_hook(s, hub, i, hook::CONNECT) {
            open(hub, i);
        }
    }
}

/// Greets a client; its requests are taken from now on.
pub(super) unsafe fn open(hub: *mut Hub, i: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        let session = (*hub).session(i);
        if session.is_null() {
            return;
        }
        let instance = (*hub).instance((*session).instance);
        if instance.is_null() {
            return;
        }
        let bytes = greeting::encode(VERSION, &(*instance).uuid, &(*session).salt);
        (&mut (*session).output).extend_from_slice(&bytes);
        (*session).phase = Phase::Open;
        (*hub).list(i);
    }
}

/// Reads what has come and starts or answers the requests in it.
unsafe fn serve(s: *mut State, hub: *mut Hub, i: usize) {
    // SAFETY: the caller's contract; nothing of the hub is borrowed across `packets`.
    unsafe {
        let session = (*hub).session(i);
        if (*hub).is_blocked(i) {
            if (*session).phase == Phase::Securing {
                return shake(s, hub, i);
            }
            (*session).held = true;
            // A client that has gone is noticed all the same.
            if (*session).hangup {
                (*hub).list(i);
            }
            return;
        }
        (*session).held = false;
        let instance = (*hub).instance((*session).instance);
        let spare = &raw mut (*hub).spare;
        (&mut (*session).input).borrow(&mut (*spare).0);
        (*hub).lend_output(session);
        let progress = (&mut *session).read((*instance).limits.readahead, BUDGET);
        if progress == Progress::Closed {
            (*session).ended = true;
        }
        dispatch::packets(s, hub, i);
        let session = (*hub).session(i);
        if session.is_null() {
            return;
        }
        (&mut (*session).input).give_back(&mut (*spare).0);
        (&mut *session).give_back_output(&mut (*spare).1);
        if (*session).ended || (*session).unsent() > 0 || (*session).phase == Phase::Closing {
            (*hub).list(i);
        }
        if progress == Progress::More && (*s).cord.descriptors.rewatch((*session).token, READ | WRITE).is_err() {
            (*session).ended = true;
            (*hub).list(i);
        }
    }
}

/// The end of a turn: sessions on the list go on with their requests, and are sent what was answered.
unsafe fn before_poll(s: *mut State) {
    // SAFETY: called by the scheduler with its live state.
    unsafe {
        let hub = (*s).server;
        while !hub.is_null() {
            let Some(i) = (&mut (*hub).todo).pop() else { return };
            let session = (*hub).session(i);
            if session.is_null() || !(*session).listed {
                continue;
            }
            (*session).listed = false;
            settle(s, hub, i);
        }
    }
}

/// Writes, goes on serving a session that was blocked, and closes one that is through.
unsafe fn settle(s: *mut State, hub: *mut Hub, i: usize) {
    // SAFETY: the caller's contract. `serve` removes no session.
    unsafe {
        let session = (*hub).session(i);
        if !(&(*session).ready).is_empty() {
            dispatch::streams(s, hub, i);
        }
        let progress = (&mut *session).write(&mut (*hub).spare.1);
        if progress != Progress::Closed && (*session).held && (*session).phase == Phase::Open {
            serve(s, hub, i);
        }
        let gone = (*session).ended || (*session).hangup && (*session).held;
        let through = match (*session).phase {
            Phase::Open | Phase::Securing => gone,
            Phase::Connecting => false,
            Phase::Closing => gone || (*session).unsent() == 0,
        };
        if progress == Progress::Closed || through {
            if (*session).unsent() > 0 {
                let _ = (&mut *session).write(&mut (*hub).spare.1);
            }
            leave(s, hub, i);
        }
    }
}

/// A session's end.
unsafe fn leave(s: *mut State, hub: *mut Hub, i: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        let Some(mut session) = (&mut (*hub).sessions).try_remove(i) else { return };
        (*s).cord.descriptors.unwatch(session.token);
        session.socket.farewell();
        let instance = (*hub).instance(session.instance);
        if !instance.is_null() {
            (*instance).sessions -= 1;
            stream::rollback(&mut session, &mut (*instance).engine);
            (*instance).stat.traffic.0 += session.traffic.0;
            (*instance).stat.traffic.1 += session.traffic.1;
        }
        dispatch::left(s, hub, &session);
    }
}
