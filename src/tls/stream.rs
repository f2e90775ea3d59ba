//! One connection's TLS: plain bytes on one side, a socket on the other.
//!
//! ```text
//!   read:   socket --> [ incoming ] --rustls--> the caller's buffer, what does not fit: [ rest ]
//!   write:  the caller's bytes --rustls--> [ outgoing ] --> socket
//! ```
//!
//! Buffers are lent by the thread while they are used, so that a silent connection holds none.

use super::ClientSetup;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus};
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible, ServerConfig};
use std::cell::RefCell;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

/// Bytes read from a socket at once.
const READ_SIZE: usize = 64 * 1024;
/// Plain bytes encrypted at once: their records are sent before the next are made.
const WRITE_SIZE: usize = 128 * 1024;

/// How far a handshake is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handshake {
    /// It is over: bytes may be exchanged.
    Done,
    /// The peer has to say something.
    Read,
    /// The socket has to take more.
    Write,
}

enum Side {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

impl Side {
    fn is_handshaking(&self) -> bool {
        match self {
            Side::Client(conn) => conn.is_handshaking(),
            Side::Server(conn) => conn.is_handshaking(),
        }
    }

    /// Whether there are messages to be encoded, alerts among them.
    fn wants_write(&self) -> bool {
        match self {
            Side::Client(conn) => conn.wants_write(),
            Side::Server(conn) => conn.wants_write(),
        }
    }
}

impl fmt::Debug for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Side::Client(_)) { "client" } else { "server" })
    }
}

/// What rustls wants next.
enum Step {
    /// To be asked again.
    Again,
    /// More bytes of the peer.
    More,
    /// Nothing: bytes may be written.
    Ready,
    /// Nothing ever again.
    Over,
}

/// A connection's TLS.
#[derive(Debug)]
pub struct Tls {
    side: Side,
    incoming: Vec<u8>,
    start: usize,
    end: usize,
    /// Decrypted, and not read yet.
    rest: Vec<u8>,
    outgoing: Vec<u8>,
    sent: usize,
    established: bool,
    /// The last read emptied the socket.
    drained: bool,
    /// A read that got less than it asked for did so.
    short_is_last: bool,
    /// The socket's end was read.
    ended: bool,
    /// The peer said that it sends no more.
    closed: bool,
    /// We said so.
    said: bool,
    /// What was wrong behind the plain bytes that the last read gave.
    late: Option<Error>,
    problem: Option<String>,
}

thread_local! {
    /// A buffer for what arrives and one for what leaves, while no connection uses them.
    static SPARE: RefCell<[Vec<u8>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

fn borrow(which: usize) -> Vec<u8> {
    let spare = SPARE.try_with(|spare| spare.try_borrow_mut().ok()?.get_mut(which).map(std::mem::take));
    spare.ok().flatten().unwrap_or_default()
}

fn give_back(which: usize, buffer: &mut Vec<u8>) {
    let buffer = std::mem::take(buffer);
    let _ = SPARE.try_with(|spare| {
        if let Ok(mut spare) = spare.try_borrow_mut()
            && let Some(place) = spare.get_mut(which)
            && place.capacity() < buffer.capacity()
            && buffer.capacity() <= 4 * READ_SIZE
        {
            *place = buffer;
        }
    });
}

impl Tls {
    /// The client's side.
    ///
    /// # Errors
    /// rustls's, such as no random bytes.
    pub fn client(setup: &ClientSetup) -> Result<Self, String> {
        let conn = UnbufferedClientConnection::new(setup.config.clone(), setup.name.clone());
        Ok(Self::new(Side::Client(Box::new(conn.map_err(|error| error.to_string())?))))
    }

    /// The server's side.
    ///
    /// # Errors
    /// rustls's.
    pub fn server(config: &Arc<ServerConfig>) -> Result<Self, String> {
        let conn = UnbufferedServerConnection::new(config.clone());
        Ok(Self::new(Side::Server(Box::new(conn.map_err(|error| error.to_string())?))))
    }

    fn new(side: Side) -> Self {
        Tls {
            side,
            incoming: Vec::new(),
            start: 0,
            end: 0,
            rest: Vec::new(),
            outgoing: Vec::new(),
            sent: 0,
            established: false,
            drained: false,
            short_is_last: false,
            ended: false,
            closed: false,
            said: false,
            late: None,
            problem: None,
        }
    }

    /// Encrypted bytes that the socket has not taken yet.
    #[inline]
    pub fn pending(&self) -> usize {
        self.outgoing.len() - self.sent
    }

    /// What went wrong, in words for people, once an operation failed with `InvalidData`.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// The poller says that the socket has more to read. It announces its end once, with what comes before: then it is
    /// read `to_the_end`; otherwise a read that gets less than it asked for is the last until the next announcement.
    #[inline]
    pub fn readable(&mut self, to_the_end: bool) {
        self.drained = false;
        self.short_is_last = !to_the_end;
    }

    /// Goes on with the handshake.
    ///
    /// # Errors
    /// `InvalidData`, and then [`Self::problem`] has the words; the socket's. An alert has been sent if it could be.
    pub fn handshake(&mut self, socket: &mut (impl Read + Write)) -> io::Result<Handshake> {
        self.readable(true);
        loop {
            if !self.established {
                self.pump(&mut [], socket)?;
            }
            match self.flush(socket) {
                Ok(()) if self.established => {
                    self.settle();
                    return Ok(Handshake::Done);
                }
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Handshake::Write),
                Err(error) => return Err(error),
            }
            match self.fill(socket) {
                Ok(()) if self.ended => {
                    return Err(self.fail("TLS handshake: the peer closed the connection".to_string()));
                }
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.settle();
                    return Ok(Handshake::Read);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads plain bytes: how many; 0 at the end of the stream, wherever it ends, for IPROTO's lengths tell what is whole.
    ///
    /// # Errors
    /// `WouldBlock` when all that has arrived was read; `InvalidData` as for [`Self::handshake`]; the socket's.
    pub fn read(&mut self, socket: &mut (impl Read + Write), buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut n = self.take_rest(buffer);
            if let Some(room) = buffer.get_mut(n..)
                && !room.is_empty()
            {
                match self.pump(room, socket) {
                    Ok(more) => n += more,
                    // The problem stays, and is told once there is nothing else to give.
                    Err(_) if n > 0 => {}
                    Err(error) => return Err(error),
                }
            }
            if n > 0 || buffer.is_empty() {
                return Ok(n);
            }
            if self.closed || self.ended {
                return Ok(0);
            }
            if let Err(error) = self.fill(socket) {
                self.settle();
                return Err(error);
            }
        }
    }

    /// Takes plain bytes to send: how many. Their records may still be [`Self::pending`] afterwards.
    ///
    /// # Errors
    /// `WouldBlock` when records made before could not be sent; `InvalidData` as for [`Self::handshake`]; the socket's.
    pub fn write(&mut self, socket: &mut (impl Read + Write), bytes: &[u8]) -> io::Result<usize> {
        self.flush(socket)?;
        let bytes = bytes.get(..WRITE_SIZE).unwrap_or(bytes);
        self.pump(&mut [], socket)?;
        self.encrypt(bytes)?;
        match self.flush(socket) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(bytes.len()),
        }
    }

    /// Sends records that are pending.
    ///
    /// # Errors
    /// `WouldBlock` when some remain; the socket's.
    pub fn flush(&mut self, socket: &mut impl Write) -> io::Result<()> {
        while self.pending() > 0 {
            match socket.write(self.outgoing.get(self.sent..).unwrap_or_default()) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.sent = 0;
        if self.outgoing.capacity() > 0 {
            self.outgoing.clear();
            give_back(1, &mut self.outgoing);
        }
        Ok(())
    }

    /// Tells the peer that no more will come, as far as the socket takes it now.
    pub fn close(&mut self, socket: &mut impl Write) {
        if !self.established || self.problem.is_some() || self.said {
            return;
        }
        self.said = true;
        if let Some(error) = self.late.take() {
            let _ = self.break_off(&error, socket);
            return;
        }
        let mut note = [0; 128];
        let incoming = self.incoming.get_mut(self.start..self.end).unwrap_or_default();
        let written = match &mut self.side {
            Side::Client(conn) => close_notify(conn.process_tls_records(incoming), &mut note),
            Side::Server(conn) => close_notify(conn.process_tls_records(incoming), &mut note),
        };
        self.outgoing.extend_from_slice(note.get(..written).unwrap_or_default());
        let _ = self.flush(socket);
    }

    fn take_rest(&mut self, buffer: &mut [u8]) -> usize {
        if self.rest.is_empty() {
            return 0;
        }
        let n = self.rest.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..n), self.rest.get(..n)) {
            to.copy_from_slice(from);
        }
        if n == self.rest.len() {
            self.rest = Vec::new();
        } else {
            self.rest.drain(..n);
        }
        n
    }

    /// Reads once from the socket; [`Self::ended`] at its end.
    fn fill(&mut self, socket: &mut impl Read) -> io::Result<()> {
        if self.drained {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.make_room();
        let room = self.incoming.get_mut(self.end..).unwrap_or_default();
        loop {
            match socket.read(room) {
                Ok(n) => {
                    self.drained = self.short_is_last && n < room.len();
                    self.end += n;
                    self.ended = n == 0;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.drained = error.kind() == ErrorKind::WouldBlock;
                    return Err(error);
                }
            }
        }
    }

    fn make_room(&mut self) {
        let have = self.end - self.start;
        if self.incoming.len() < READ_SIZE {
            let mut buffer = borrow(0);
            if buffer.len() < READ_SIZE {
                buffer.resize(READ_SIZE, 0);
            }
            if let (Some(to), Some(from)) = (buffer.get_mut(..have), self.incoming.get(self.start..self.end)) {
                to.copy_from_slice(from);
            }
            self.incoming = buffer;
        } else {
            self.incoming.copy_within(self.start..self.end, 0);
        }
        self.start = 0;
        self.end = have;
        // A handshake's message may be longer.
        if self.incoming.len() - have < READ_SIZE / 2 {
            self.incoming.resize(have + READ_SIZE, 0);
        }
    }

    /// Nothing more has arrived: a buffer that holds nothing is given back, part of a record is kept in a small one.
    fn settle(&mut self) {
        if self.incoming.capacity() < READ_SIZE {
            return;
        }
        let part: Vec<u8> = self.incoming.get(self.start..self.end).unwrap_or_default().to_vec();
        give_back(0, &mut self.incoming);
        self.start = 0;
        self.end = part.len();
        self.incoming = part;
    }

    /// Lets rustls work on what has arrived until it wants more, or `plain` is full: how many bytes were put there.
    fn pump(&mut self, plain: &mut [u8], socket: &mut impl Write) -> io::Result<usize> {
        if let Some(problem) = &self.problem {
            return Err(io::Error::new(ErrorKind::InvalidData, problem.clone()));
        }
        if let Some(error) = self.late.take() {
            return Err(self.break_off(&error, socket));
        }
        let mut filled = 0;
        loop {
            if !plain.is_empty() && (filled == plain.len() || !self.rest.is_empty()) {
                return Ok(filled);
            }
            match self.step(plain, &mut filled) {
                Ok(Step::Again) => {}
                Ok(Step::More) => return Ok(filled),
                Ok(Step::Ready) => {
                    self.established = self.established || !self.side.is_handshaking();
                    return Ok(filled);
                }
                Ok(Step::Over) => {
                    self.closed = true;
                    return Ok(filled);
                }
                // What was decrypted before comes first.
                Err(error) if filled > 0 => {
                    self.late = Some(error);
                    return Ok(filled);
                }
                Err(error) => return Err(self.break_off(&error, socket)),
            }
        }
    }

    /// One step of it: plain bytes go to `room` behind those that `filled` counts.
    fn step(&mut self, room: &mut [u8], filled: &mut usize) -> Result<Step, Error> {
        let incoming = self.incoming.get_mut(self.start..self.end).unwrap_or_default();
        let mut handler =
            Handler { room, filled, rest: &mut self.rest, outgoing: &mut self.outgoing, closed: &mut self.closed };
        let (discard, step) = match &mut self.side {
            Side::Client(conn) => handler.handle(conn.process_tls_records(incoming)),
            Side::Server(conn) => handler.handle(conn.process_tls_records(incoming)),
        };
        self.start += discard.min(self.end - self.start);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
        step
    }

    fn encrypt(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.outgoing.capacity() == 0 {
            self.outgoing = borrow(1);
        }
        let incoming = self.incoming.get_mut(self.start..self.end).unwrap_or_default();
        let done = match &mut self.side {
            Side::Client(conn) => encrypt(conn.process_tls_records(incoming), bytes, &mut self.outgoing),
            Side::Server(conn) => encrypt(conn.process_tls_records(incoming), bytes, &mut self.outgoing),
        };
        if done { Ok(()) } else { Err(self.fail("TLS: the connection takes no more data".to_string())) }
    }

    fn fail(&mut self, problem: String) -> io::Error {
        self.problem = Some(problem.clone());
        io::Error::new(ErrorKind::InvalidData, problem)
    }

    /// Words for the error; the peer is told by an alert.
    #[cold]
    fn break_off(&mut self, error: &Error, socket: &mut impl Write) -> io::Error {
        // What is left to send is the alert. The bytes in error are not looked at again: rustls would send another.
        let mut ignored = 0;
        while self.side.wants_write() && matches!(self.step(&mut [], &mut ignored), Ok(Step::Again)) {}
        let _ = self.flush(socket);
        let when = if self.established { "TLS" } else { "TLS handshake" };
        self.fail(format!("{when}: {}", words(error)))
    }
}

/// Where the parts of a status go.
struct Handler<'a> {
    room: &'a mut [u8],
    filled: &'a mut usize,
    rest: &'a mut Vec<u8>,
    outgoing: &'a mut Vec<u8>,
    closed: &'a mut bool,
}

impl Handler<'_> {
    fn handle<D>(&mut self, status: UnbufferedStatus<'_, '_, D>) -> (usize, Result<Step, Error>) {
        let UnbufferedStatus { mut discard, state } = status;
        let step = match state {
            Err(error) => Err(error),
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                let mut result = Ok(Step::Again);
                while let Some(record) = traffic.next_record() {
                    match record {
                        Ok(record) => {
                            discard += record.discard;
                            self.take(record.payload);
                        }
                        Err(error) => {
                            result = Err(error);
                            break;
                        }
                    }
                }
                result
            }
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                append(self.outgoing, 0, |room| {
                    data.encode(room).map_err(|error| match error {
                        EncodeError::InsufficientSize(InsufficientSizeError { required_size }) => Some(required_size),
                        EncodeError::AlreadyEncoded => None,
                    })
                });
                Ok(Step::Again)
            }
            // It is in the outgoing buffer, whence it leaves before anything else.
            Ok(ConnectionState::TransmitTlsData(data)) => {
                data.done();
                Ok(Step::Again)
            }
            Ok(ConnectionState::PeerClosed) => {
                *self.closed = true;
                Ok(Step::Again)
            }
            Ok(ConnectionState::Closed) => Ok(Step::Over),
            Ok(ConnectionState::WriteTraffic(_)) => Ok(Step::Ready),
            // Blocked, or a state that is never entered: early data is not accepted.
            Ok(_) => Ok(Step::More),
        };
        (discard, step)
    }

    fn take(&mut self, bytes: &[u8]) {
        let room = self.room.get_mut(*self.filled..).unwrap_or_default();
        let n = if self.rest.is_empty() { bytes.len().min(room.len()) } else { 0 };
        if let (Some(to), Some(from)) = (room.get_mut(..n), bytes.get(..n)) {
            to.copy_from_slice(from);
        }
        *self.filled += n;
        self.rest.extend_from_slice(bytes.get(n..).unwrap_or_default());
    }
}

/// Appends what `write` makes, which says how much room it needs when that is too small (nothing: it will never fit).
fn append(out: &mut Vec<u8>, guess: usize, mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<usize>>) -> bool {
    let at = out.len();
    let mut room = guess;
    for _ in 0..2 {
        out.resize(at + room, 0);
        match write(out.get_mut(at..).unwrap_or_default()) {
            Ok(n) => {
                out.truncate(at + n);
                return true;
            }
            Err(Some(needed)) => room = needed,
            Err(None) => break,
        }
    }
    out.truncate(at);
    false
}

fn encrypt<D>(status: UnbufferedStatus<'_, '_, D>, bytes: &[u8], out: &mut Vec<u8>) -> bool {
    let Ok(ConnectionState::WriteTraffic(mut traffic)) = status.state else { return false };
    // A record holds up to 16 KB and is at most 40 bytes longer than what it holds.
    let guess = bytes.len() + 40 * (bytes.len() / 16_384 + 1);
    append(out, guess, |room| {
        traffic.encrypt(bytes, room).map_err(|error| match error {
            EncryptError::InsufficientSize(InsufficientSizeError { required_size }) => Some(required_size),
            EncryptError::EncryptExhausted => None,
        })
    })
}

fn close_notify<D>(status: UnbufferedStatus<'_, '_, D>, out: &mut [u8]) -> usize {
    match status.state {
        Ok(ConnectionState::WriteTraffic(mut traffic)) => traffic.queue_close_notify(out).unwrap_or(0),
        _ => 0,
    }
}

fn words(error: &Error) -> String {
    match error {
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => "the peer does not speak TLS".to_string(),
        Error::InvalidMessage(InvalidMessage::UnknownProtocolVersion) => "the peer does not speak TLS".to_string(),
        Error::AlertReceived(alert) => format!("the peer refused it: {}", alert_words(*alert)),
        Error::NoCertificatesPresented => "the peer has no certificate".to_string(),
        Error::InvalidCertificate(problem) => format!("the peer's certificate {}", certificate_words(problem)),
        Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon | PeerIncompatible::NoKxGroupsInCommon) => {
            "no cipher suite in common with the peer".to_string()
        }
        Error::PeerIncompatible(
            PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::Tls13RequiredForQuic
            | PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            | PeerIncompatible::SupportedVersionsExtensionRequired,
        ) => "no version of TLS in common with the peer".to_string(),
        other => other.to_string(),
    }
}

fn certificate_words(problem: &CertificateError) -> String {
    match problem {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "has expired".to_string(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "is not valid yet".to_string(),
        CertificateError::UnknownIssuer => "is not signed by a CA of ssl_ca_file".to_string(),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "is not for the name of ssl_server_name".to_string()
        }
        CertificateError::BadSignature => "or its signature is wrong".to_string(),
        other => format!("is refused: {other}"),
    }
}

fn alert_words(alert: AlertDescription) -> String {
    let text = match alert {
        AlertDescription::HandshakeFailure => "nothing in common (handshake_failure)",
        AlertDescription::ProtocolVersion => "no version of TLS in common (protocol_version)",
        AlertDescription::CertificateRequired => "it demands a certificate (certificate_required)",
        AlertDescription::BadCertificate => "our certificate is bad (bad_certificate)",
        AlertDescription::UnsupportedCertificate => "our certificate is of the wrong kind (unsupported_certificate)",
        AlertDescription::CertificateExpired => "our certificate has expired (certificate_expired)",
        AlertDescription::CertificateRevoked => "our certificate was revoked (certificate_revoked)",
        AlertDescription::CertificateUnknown => "our certificate is not accepted (certificate_unknown)",
        AlertDescription::UnknownCA => "our certificate is of a CA it does not know (unknown_ca)",
        AlertDescription::AccessDenied => "access denied (access_denied)",
        other => return format!("{other:?}"),
    };
    text.to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::super::{Parameters, client, server};
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::collections::VecDeque;
    use std::rc::Rc;

    /// One end of a pipe whose reads and writes move at most so many bytes; nothing moves while it is 0.
    struct End {
        from: Rc<RefCell<VecDeque<u8>>>,
        to: Rc<RefCell<VecDeque<u8>>>,
        step: Rc<Cell<usize>>,
        /// Bytes the pipe holds before it takes no more.
        depth: usize,
    }

    impl Read for End {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let mut from = self.from.borrow_mut();
            let n = buffer.len().min(from.len()).min(self.step.get());
            if n == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            buffer.iter_mut().zip(from.drain(..n)).for_each(|(to, byte)| *to = byte);
            Ok(n)
        }
    }

    impl Write for End {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut to = self.to.borrow_mut();
            let n = bytes.len().min(self.depth.saturating_sub(to.len())).min(self.step.get());
            if n == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            to.extend(&bytes[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn fixture(name: &str) -> Option<String> {
        Some(format!("{}/spec/fixtures/tls/{name}", env!("CARGO_MANIFEST_DIR")))
    }

    fn pair(ciphers: Option<&str>, step: usize, depth: usize) -> [(Tls, End); 2] {
        let ciphers = ciphers.map(str::to_string);
        let ours = Parameters { ca_file: fixture("ca.crt"), ciphers: ciphers.clone(), ..Parameters::default() };
        let (cert_file, key_file) = (fixture("server.crt"), fixture("server.key"));
        let theirs = Parameters { cert_file, key_file, ciphers, ..Parameters::default() };
        let pipes: [Rc<RefCell<VecDeque<u8>>>; 2] = Default::default();
        let step = Rc::new(Cell::new(step));
        let end =
            |from: usize| End { from: pipes[from].clone(), to: pipes[1 - from].clone(), step: step.clone(), depth };
        [
            (Tls::client(&client(&ours).unwrap()).unwrap(), end(0)),
            (Tls::server(&server(&theirs).unwrap()).unwrap(), end(1)),
        ]
    }

    fn shake(ends: &mut [(Tls, End); 2]) {
        for _ in 0..100_000 {
            let done = ends.each_mut().map(|(tls, socket)| tls.handshake(socket).unwrap() == Handshake::Done);
            if done == [true, true] {
                return;
            }
        }
        panic!("the handshake does not end");
    }

    /// What has arrived at an end.
    fn drain((tls, socket): &mut (Tls, End), buffer: &mut [u8], got: &mut Vec<u8>) -> Option<io::Error> {
        tls.readable(true);
        loop {
            match tls.read(socket, buffer) {
                Ok(0) => return None,
                Ok(n) => got.extend(&buffer[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) => return Some(error),
            }
        }
    }

    #[test]
    fn both_versions_shake_hands_in_single_bytes() {
        for ciphers in [Some("ECDHE-ECDSA-AES128-GCM-SHA256"), Some("TLS_CHACHA20_POLY1305_SHA256"), None] {
            let mut ends = pair(ciphers, 1, 100);
            shake(&mut ends);
            let [ours, theirs] = &mut ends;
            assert_eq!(ours.0.write(&mut ours.1, b"hello").unwrap(), 5);
            let mut got = Vec::new();
            while got.len() < 5 {
                let _ = ours.0.flush(&mut ours.1);
                assert!(drain(theirs, &mut [0; 3], &mut got).is_none());
            }
            assert_eq!(got, b"hello");
        }
    }

    #[test]
    fn a_goodbye_is_the_end_of_the_stream() {
        let mut ends = pair(None, 1 << 20, 1 << 20);
        shake(&mut ends);
        let [ours, theirs] = &mut ends;
        ours.0.write(&mut ours.1, b"bye").unwrap();
        ours.0.close(&mut ours.1);
        ours.0.close(&mut ours.1);
        let mut buffer = [0; 10];
        assert_eq!(theirs.0.read(&mut theirs.1, &mut buffer).unwrap(), 3);
        assert_eq!(theirs.0.read(&mut theirs.1, &mut buffer).unwrap(), 0);
        // The other direction is still open.
        assert_eq!(theirs.0.write(&mut theirs.1, b"and you").unwrap(), 7);
        assert_eq!(ours.0.read(&mut ours.1, &mut buffer).unwrap(), 7);
    }

    /// Half a minute each: `cargo test --release -- --ignored records`.
    #[test]
    #[ignore = "seventeen million records"]
    fn keys_are_changed_after_many_records() {
        for (ciphers, lasts) in [("TLS_AES_128_GCM_SHA256", true), ("ECDHE-ECDSA-AES128-GCM-SHA256", false)] {
            let mut ends = pair(Some(ciphers), 1 << 20, 1 << 20);
            shake(&mut ends);
            let [ours, theirs] = &mut ends;
            let mut buffer = [0; 10];
            let mut problem = None;
            for _ in 0..(1 << 24) + 1000 {
                match ours.0.write(&mut ours.1, b"x") {
                    Ok(1) => assert_eq!(theirs.0.read(&mut theirs.1, &mut buffer).unwrap(), 1),
                    other => {
                        problem = Some(other.unwrap_err().to_string());
                        break;
                    }
                }
            }
            assert_eq!(problem.is_none(), lasts, "{problem:?}");
        }
    }

    #[test]
    fn silent_connections_hold_no_buffers() {
        let mut ends = pair(None, 1 << 20, 1 << 20);
        shake(&mut ends);
        let [ours, theirs] = &mut ends;
        for _ in 0..3 {
            ours.0.write(&mut ours.1, &[1; 100]).unwrap();
            let mut got = Vec::new();
            drain(theirs, &mut [0; 1000], &mut got);
            assert_eq!(got.len(), 100);
        }
        for (tls, _) in &ends {
            assert_eq!((tls.incoming.capacity(), tls.outgoing.capacity(), tls.rest.capacity()), (0, 0, 0));
        }
    }

    #[test]
    fn what_is_no_tls_is_said_in_words() {
        let [(mut tls, mut socket), _] = pair(None, 1 << 20, 1 << 20);
        assert_eq!(tls.handshake(&mut socket).unwrap(), Handshake::Read);
        socket.from.borrow_mut().extend(b"Tarantool 2.6.0 (Binary)");
        assert_eq!(tls.handshake(&mut socket).unwrap_err().to_string(), "TLS handshake: the peer does not speak TLS");
        assert_eq!(tls.problem(), Some("TLS handshake: the peer does not speak TLS"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn bytes_arrive_as_they_were_sent(
            sizes in proptest::collection::vec(prop_oneof![1..200_usize, 1..300_000_usize], 1..6),
            steps in proptest::collection::vec(1..100_000_usize, 1..8),
            room in prop_oneof![1..100_usize, 1000..200_000_usize],
            depth in 100..300_000_usize,
        ) {
            let mut ends = pair(None, 1 << 20, depth.max(5000));
            shake(&mut ends);
            let [ours, theirs] = &mut ends;
            let sent: Vec<u8> = (0..sizes.iter().sum::<usize>()).map(|i| (i * 31 % 251) as u8).collect();
            let mut got = Vec::new();
            let mut buffer = vec![0; room];
            let mut at = 0;
            let mut turns = steps.iter().cycle();
            while got.len() < sent.len() {
                ours.1.step.set(*turns.next().unwrap());
                if at < sent.len() {
                    let size = sizes[at % sizes.len()].min(sent.len() - at);
                    match ours.0.write(&mut ours.1, &sent[at..at + size]) {
                        Ok(n) => at += n,
                        Err(error) => prop_assert_eq!(error.kind(), ErrorKind::WouldBlock),
                    }
                } else {
                    let _ = ours.0.flush(&mut ours.1);
                }
                prop_assert!(drain(theirs, &mut buffer, &mut got).is_none());
            }
            prop_assert!(got == sent);
        }

        #[test]
        fn a_changed_byte_is_noticed(at in 0..100_usize, change in 1..=255_u8) {
            let mut ends = pair(None, 1 << 20, 1 << 20);
            shake(&mut ends);
            let [ours, theirs] = &mut ends;
            ours.0.write(&mut ours.1, &[7; 100]).unwrap();
            let len = ours.1.to.borrow().len();
            ours.1.to.borrow_mut()[at % len] ^= change;
            let mut got = Vec::new();
            let error = drain(theirs, &mut [0; 1000], &mut got);
            // The lower half of a record's version means nothing and is no part of what is signed (RFC 8446, section 5.1).
            if at % len == 2 {
                prop_assert_eq!(&got, &[7; 100]);
                got.clear();
            }
            prop_assert!(got.is_empty());
            // A longer record may be waited for.
            if let Some(error) = error {
                prop_assert_eq!(error.kind(), ErrorKind::InvalidData);
                prop_assert!(drain(theirs, &mut [0; 1000], &mut got).is_some());
            }
        }

        #[test]
        fn any_bytes_end_a_handshake_or_wait(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            for mut end in pair(None, 1 << 20, 1 << 20) {
                end.1.from.borrow_mut().extend(&bytes);
                let _ = end.0.handshake(&mut end.1);
            }
        }
    }
}
