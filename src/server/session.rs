//! One client: its socket, the bytes that came and the bytes that are to leave.
//!
//! ```text
//!   socket --read--> [ consumed | input | room ]        [ sent | output ] --write--> socket
//!                               ^ packets are taken here        ^ responses are appended here
//! ```

use super::engine::TxnId;
use super::user::GUEST;
use crate::sys::fork;
use crate::tls::{Handshake, ServerConfig, Tls};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// A client's socket, not blocking.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// A unix socket.
    Unix(UnixStream),
    /// One of these with TLS on it.
    Secure(Box<Secure>),
}

/// A socket and the TLS on it.
#[derive(Debug)]
pub struct Secure {
    tls: Tls,
    socket: Socket,
    /// The process whose client it is: [`fork::current`].
    forks: u32,
}

impl Socket {
    /// Puts TLS on a socket that was just accepted.
    ///
    /// # Errors
    /// rustls's.
    pub fn secure(self, config: &Arc<ServerConfig>) -> Result<Self, String> {
        Ok(Socket::Secure(Box::new(Secure { tls: Tls::server(config)?, socket: self, forks: fork::current() })))
    }

    /// Whether there is TLS on it.
    pub fn is_secure(&self) -> bool {
        matches!(self, Socket::Secure(_))
    }

    /// Its descriptor.
    pub fn fd(&self) -> RawFd {
        match self {
            Socket::Tcp(stream) => stream.as_raw_fd(),
            Socket::Unix(stream) => stream.as_raw_fd(),
            Socket::Secure(secure) => secure.socket.fd(),
        }
    }

    /// Goes on with the handshake; a plain socket has none.
    ///
    /// # Errors
    /// Whatever ends it.
    pub fn handshake(&mut self) -> io::Result<Handshake> {
        match self {
            Socket::Secure(secure) => secure.tls.handshake(&mut secure.socket),
            _ => Ok(Handshake::Done),
        }
    }

    /// Tells the client that no more will come, where the protocol has a word for it. A forked process does not.
    pub fn farewell(&mut self) {
        if let Socket::Secure(secure) = self
            && secure.forks == fork::current()
        {
            secure.tls.close(&mut secure.socket);
        }
    }

    /// Bytes written to it that have not left.
    #[inline]
    fn pending(&self) -> usize {
        match self {
            Socket::Secure(secure) => secure.tls.pending(),
            _ => 0,
        }
    }

    /// The poller has said that there is something to read, perhaps the end.
    #[inline]
    fn readable(&mut self, to_the_end: bool) {
        if let Socket::Secure(secure) = self {
            secure.tls.readable(to_the_end);
        }
    }
}

impl Read for Socket {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(buffer),
            Socket::Unix(stream) => stream.read(buffer),
            Socket::Secure(secure) => secure.tls.read(&mut secure.socket, buffer),
        }
    }
}

impl Write for Socket {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
            Socket::Secure(secure) => secure.tls.write(&mut secure.socket, bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Socket::Secure(secure) => secure.tls.flush(&mut secure.socket),
            _ => Ok(()),
        }
    }
}

/// How a read or a write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// All that could be done now was done.
    Done,
    /// There is more to do, but it is somebody else's turn, or the limit is reached.
    More,
    /// The socket takes no more now.
    Blocked,
    /// The other side has gone.
    Closed,
}

/// Buffers longer than this are freed when they are empty.
const KEPT: usize = 1 << 20;

/// Bytes read from a socket and not consumed yet.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// What has not been consumed.
    #[inline]
    pub fn pending(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// Consumes `n` bytes.
    #[inline]
    pub fn consume(&mut self, n: usize) {
        self.start = self.end.min(self.start + n);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Makes room for at least `room` bytes behind the pending ones, growing to a power of two.
    fn reserve(&mut self, room: usize) {
        if self.bytes.len() - self.end >= room {
            return;
        }
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.bytes.len() - self.end < room {
            self.bytes.resize((self.end + room).next_power_of_two(), 0);
        }
    }

    /// Takes a buffer to read into, if there is none.
    pub fn borrow(&mut self, spare: &mut Vec<u8>) {
        if self.bytes.is_empty() {
            std::mem::swap(&mut self.bytes, spare);
        }
    }

    /// Gives a buffer back that holds nothing: clients that send nothing cost none. A large one is freed.
    pub fn give_back(&mut self, spare: &mut Vec<u8>) {
        if self.end == 0 {
            give_back(&mut self.bytes, spare);
        }
    }
}

/// Lets go of a buffer that holds nothing, and keeps one of them as the spare one.
fn give_back(buffer: &mut Vec<u8>, spare: &mut Vec<u8>) {
    let buffer = std::mem::take(buffer);
    if spare.capacity() == 0 && buffer.capacity() <= KEPT {
        *spare = buffer;
    }
}

/// A key that a client watches.
#[derive(Debug, Default)]
pub struct Watch {
    /// The sync of its last WATCH, which events carry.
    pub sync: u64,
    /// The client has acknowledged the last event: the next one may be sent.
    pub acknowledged: bool,
    /// Which value was sent last.
    pub version: u64,
}

/// Requests of one stream are handled one after the other.
#[derive(Debug, Default)]
pub struct Stream {
    /// A request of it runs in a fiber.
    pub busy: bool,
    /// Packets that wait for that.
    pub queue: VecDeque<Box<[u8]>>,
    /// Its open transaction.
    pub txn: Option<TxnId>,
    /// When that is rolled back (monotonic nanoseconds); 0: never.
    pub deadline: u64,
    /// It was.
    pub expired: bool,
}

impl Stream {
    /// Whether there is nothing to remember.
    pub fn is_idle(&self) -> bool {
        !self.busy && self.queue.is_empty() && self.txn.is_none() && !self.expired
    }
}

/// What a session is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// TLS is being agreed on.
    Securing,
    /// The on_connect triggers run; nothing was sent.
    Connecting,
    /// Requests are served.
    Open,
    /// No more requests are taken; what was answered is still sent, then the socket is closed.
    Closing,
}

/// One client.
#[derive(Debug)]
pub struct Session {
    /// Its number, never used again.
    pub id: u64,
    /// The instance it belongs to.
    pub instance: usize,
    /// Its socket.
    pub socket: Socket,
    /// The watch of its socket.
    pub token: usize,
    /// The client's address, for people.
    pub peer: String,
    /// What it is doing.
    pub phase: Phase,
    /// Bytes that came.
    pub input: Input,
    /// Bytes that are to leave; the first `sent` have left.
    pub output: Vec<u8>,
    /// See `output`.
    pub sent: usize,
    /// The socket may have more bytes to read.
    pub readable: bool,
    /// The poller has announced that the client has shut its side down: read to the end.
    pub hangup: bool,
    /// The client sends nothing any more.
    pub ended: bool,
    /// The socket is watched for room to write, too.
    pub armed: bool,
    /// It is on the hub's list of sessions with something to do at the end of the turn.
    pub listed: bool,
    /// Its requests were left where they are because a limit was reached: it goes on when that is over.
    pub held: bool,
    /// Requests that run in fibers.
    pub running: u32,
    /// Bytes the next packet needs, or 0.
    pub needed: usize,
    /// When the packet that is half here began to arrive (monotonic nanoseconds), or 0.
    pub half_since: u64,
    /// The salt it was greeted with.
    pub salt: [u8; 32],
    /// The features its client has, as bits.
    pub features: u64,
    /// A script has an object of this session.
    pub known: bool,
    /// The user it is logged in as.
    pub user: Box<[u8]>,
    /// The response to a failed login is being delayed.
    pub refusing: bool,
    /// Who the client is about to be: the on_auth triggers run, and no request is taken meanwhile.
    pub login: Option<Box<[u8]>>,
    /// Keys its client watches.
    pub watches: FxHashMap<Box<[u8]>, Watch>,
    /// Streams that have something open or waiting.
    pub streams: FxHashMap<u64, Stream>,
    /// Streams whose next request may be handled.
    pub ready: Vec<u64>,
    /// Bytes of the requests that wait in streams.
    pub queued: usize,
    /// The request of a stream that is being handled.
    pub current: Option<Box<[u8]>>,
    /// Bytes received and sent.
    pub traffic: (u64, u64),
}

impl Session {
    /// A session that has just been accepted.
    pub fn new(id: u64, instance: usize, socket: Socket, peer: String) -> Self {
        Session {
            id,
            instance,
            socket,
            token: usize::MAX,
            peer,
            phase: Phase::Connecting,
            input: Input::default(),
            output: Vec::new(),
            sent: 0,
            readable: true,
            hangup: false,
            ended: false,
            armed: false,
            listed: false,
            held: false,
            running: 0,
            needed: 0,
            half_since: 0,
            salt: [0; 32],
            features: 0,
            known: false,
            user: GUEST.into(),
            refusing: false,
            login: None,
            watches: FxHashMap::default(),
            streams: FxHashMap::default(),
            ready: Vec::new(),
            queued: 0,
            current: None,
            traffic: (0, 0),
        }
    }

    /// Bytes that are to leave.
    #[inline]
    pub fn unsent(&self) -> usize {
        self.output.len() - self.sent + self.socket.pending()
    }

    /// Reads until the socket is empty, or about `budget` bytes have come. `readahead` is the room offered to a read.
    pub fn read(&mut self, readahead: usize, budget: usize) -> Progress {
        let mut total = 0;
        if self.readable {
            self.socket.readable(self.hangup);
        }
        while self.readable && !self.ended {
            if total >= budget {
                return Progress::More;
            }
            let wanted = self.needed.saturating_sub(self.input.pending().len()).clamp(readahead, 1 << 20);
            self.input.reserve(wanted);
            let Some(room) = self.input.bytes.get_mut(self.input.end..) else { return Progress::Closed };
            let offered = room.len();
            match self.socket.read(room) {
                Ok(0) => self.ended = true,
                Ok(n) => {
                    self.input.end += n;
                    total += n;
                    self.traffic.0 += n as u64;
                    // A short read emptied the socket: the next bytes are a new event. Its end, however, may have been
                    // announced together with these bytes.
                    self.readable = n == offered || self.hangup || self.socket.is_secure();
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => self.readable = false,
                    io::ErrorKind::Interrupted => {}
                    _ => return Progress::Closed,
                },
            }
        }
        Progress::Done
    }

    /// Writes what can be written now. A buffer that became empty takes the place of `spare` if that has none.
    pub fn write(&mut self, spare: &mut Vec<u8>) -> Progress {
        while self.unsent() > 0 {
            let Some(bytes) = self.output.get(self.sent..) else { return Progress::Closed };
            // Nothing but records that TLS has made already.
            let flushing = bytes.is_empty();
            let written = if flushing { self.socket.flush().map(|()| 0) } else { self.socket.write(bytes) };
            match written {
                Ok(0) if !flushing => return Progress::Closed,
                Ok(n) => {
                    self.sent += n;
                    self.traffic.1 += n as u64;
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        self.compact();
                        return Progress::Blocked;
                    }
                    io::ErrorKind::Interrupted => {}
                    _ => return Progress::Closed,
                },
            }
        }
        self.output.clear();
        self.sent = 0;
        self.give_back_output(spare);
        Progress::Done
    }

    /// Gives the buffer of the output back if there is none.
    #[inline]
    pub fn give_back_output(&mut self, spare: &mut Vec<u8>) {
        if self.output.is_empty() {
            give_back(&mut self.output, spare);
        }
    }

    /// Drops the bytes that have left when they are the greater part, so that a slow reader's buffer stays bounded.
    fn compact(&mut self) {
        if self.sent > self.unsent() {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn pair() -> (Session, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Session::new(1, 0, Socket::Unix(ours), String::new()), theirs)
    }

    #[test]
    fn bytes_come_in_whatever_their_number() {
        let (mut session, mut client) = pair();
        let sent: Vec<u8> = (0..100_000_u32).map(|i| i as u8).collect();
        client.write_all(&sent).unwrap();
        while session.input.pending().len() < sent.len() {
            session.readable = true;
            assert_eq!(session.read(4096, 10_000_000), Progress::Done);
        }
        assert_eq!(session.input.pending(), sent);
        session.input.consume(99_999);
        assert_eq!(session.input.pending(), &sent[99_999..]);
        drop(client);
        session.readable = true;
        session.hangup = true;
        assert_eq!(session.read(4096, 1000), Progress::Done);
        assert!(session.ended);
    }

    #[test]
    fn a_full_socket_blocks_and_the_rest_leaves_later() {
        let (mut session, mut client) = pair();
        session.output = vec![7; 4 << 20];
        let mut spare = Vec::new();
        assert_eq!(session.write(&mut spare), Progress::Blocked);
        let mut got = 0;
        let mut buffer = vec![0; 1 << 16];
        while got < 4 << 20 {
            got += client.read(&mut buffer).unwrap();
            let _ = session.write(&mut spare);
        }
        assert_eq!(session.write(&mut spare), Progress::Done);
        assert_eq!((got, session.unsent(), spare.capacity()), (4 << 20, 0, 0));
    }

    #[test]
    fn a_read_stops_at_its_budget() {
        let (mut session, mut client) = pair();
        client.write_all(&[1; 50_000]).unwrap();
        assert_eq!(session.read(1024, 5000), Progress::More);
        assert!(session.readable && session.input.pending().len() >= 5000);
    }
}
