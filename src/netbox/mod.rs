//! The client half of net.box: connections, requests in flight, replies turned into Lua values.
//!
//! ```text
//!   conn:call(...)                                            the waiting fiber resumes with its results
//!        |                                                                 ^
//!        v  request.rs                                                     |  reply.rs: one protected job a batch
//!   [ out buffer ] --one write a turn--> socket --one read an event--> [ in buffer ]
//!                    transport.rs                     transport.rs      with TLS between: secure.rs
//! ```
//!
//! The data plane above is native and knows neither handshakes nor schemas. The control plane (connecting, logging in,
//! reading the schema, reconnecting, triggers) is Lua: a system fiber per connection, which the data plane wakes when
//! something needs a decision ([`transport::attention`]).

pub mod codec;
pub mod future;
pub mod lua;
pub mod reply;
pub mod request;
pub mod resolve;
pub mod secure;
pub mod transport;
pub mod tuple;

use crate::lua::body::Listener;
use crate::lua::msgpack::{Codec, Formats};
use crate::lua::state::State;
use crate::sys::poll::Readiness;
use transport::Conn;

/// What one Lua state keeps for its connections.
pub struct Netbox {
    /// Connections by slot; null where none is.
    pub conns: Vec<*mut Conn>,
    /// Slots to use again.
    pub free: Vec<usize>,
    /// Connections with something to send at the end of this turn.
    pub dirty: Vec<*mut Conn>,
    /// Where to look for the end of name resolutions.
    pub resolver: resolve::Resolver,
    /// Places for futures, to use again, and how many there are.
    pub places: (Vec<u32>, u32),
    /// How values are packed and read; null until `cord.netbox` was loaded.
    pub codec: *const Codec,
    /// What the connections read into in turn, each as long as it has handled all it has read: always in the cache, and a
    /// connection that is silent needs none of its own.
    pub input: Vec<u8>,
    /// Where values are packed that belong to no connection.
    pub bytes: Vec<u8>,
    /// The formats of the tuples among a request's arguments.
    pub formats: Formats,
    /// The process that looked last: [`crate::sys::fork::generation`].
    pub forks: u32,
    /// Our number among the listeners, once registered.
    pub listener: Option<usize>,
}

impl Default for Netbox {
    fn default() -> Self {
        Netbox {
            conns: Vec::new(),
            free: Vec::new(),
            dirty: Vec::new(),
            resolver: resolve::Resolver::default(),
            places: (Vec::new(), 0),
            codec: std::ptr::null(),
            input: Vec::new(),
            bytes: Vec::new(),
            formats: Formats::default(),
            forks: crate::sys::fork::generation(),
            listener: None,
        }
    }
}

/// Our number among the cord's listeners, which low bits of a watch's data carry.
///
/// # Safety
/// `s` is live.
pub unsafe fn listener(s: *mut State) -> usize {
    // SAFETY: the caller's contract; no reference outlives its line.
    unsafe {
        if let Some(number) = (*s).netbox.listener {
            return number;
        }
        let listeners = &mut (*s).cord.body.listeners;
        listeners.push(Listener { before_poll, event });
        let number = listeners.len() - 1;
        (*s).netbox.listener = Some(number);
        number
    }
}

unsafe fn before_poll(s: *mut State) {
    // SAFETY: called by the scheduler with its live state. A flush may mark a connection broken, which queues no output.
    unsafe {
        if (*s).netbox.forks != crate::sys::fork::current() {
            transport::leave_to_parent(s);
        }
        while let Some(conn) = (&mut (*s).netbox.dirty).pop() {
            (*conn).dirty = false;
            transport::flush(s, conn);
        }
        resolve::deliver(s);
    }
}

unsafe fn event(s: *mut State, slot: usize, ready: Readiness) {
    // SAFETY: called by the scheduler; a slot whose connection went away in this very batch of events holds null.
    unsafe {
        let conn = (&(*s).netbox.conns).get(slot).copied().unwrap_or(std::ptr::null_mut());
        if !conn.is_null() {
            transport::ready(s, conn, ready);
        }
    }
}
