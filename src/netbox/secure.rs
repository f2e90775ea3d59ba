//! A connection's bytes when they go through TLS: what [`super::transport`] calls instead of its own loops.

use super::reply;
use super::transport::{self, Conn, Problem};
use crate::lua::state::State;
use crate::tls::{ClientSetup, Handshake, Tls};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::RawFd;

/// A socket by its descriptor.
struct Fd(RawFd);

impl Read for Fd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the buffer is as long as said; a descriptor that is no longer open is an error of the system.
        let n = unsafe { libc::recv(self.0, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

impl Write for Fd {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: as for `read`.
        let n = unsafe { libc::send(self.0, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Begins TLS on a connected socket.
///
/// # Errors
/// What rustls says.
///
/// # Safety
/// `conn` is live.
pub unsafe fn begin(conn: *mut Conn, setup: &ClientSetup) -> Result<(), String> {
    let tls = Tls::client(setup)?;
    // SAFETY: the caller's contract.
    unsafe { (*conn).tls = Some(Box::new(tls)) };
    Ok(())
}

/// Goes on with the handshake; a connection without TLS has none.
///
/// # Errors
/// `InvalidData` with words for people; the socket's.
///
/// # Safety
/// `conn` is live.
pub unsafe fn handshake(conn: *mut Conn) -> io::Result<Handshake> {
    // SAFETY: the caller's contract; the borrow ends here.
    unsafe {
        let mut socket = Fd((*conn).fd);
        match &mut (*conn).tls {
            Some(tls) => tls.handshake(&mut socket),
            None => Ok(Handshake::Done),
        }
    }
}

/// Reads outside of the loop, as `recv` does, plain or not.
///
/// # Errors
/// `WouldBlock`; `InvalidData` with words for people; the socket's.
///
/// # Safety
/// `conn` is live.
pub unsafe fn read(conn: *mut Conn, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the caller's contract; the borrow ends here.
    unsafe {
        let mut socket = Fd((*conn).fd);
        match &mut (*conn).tls {
            Some(tls) => {
                tls.readable(true);
                tls.read(&mut socket, buffer)
            }
            None => socket.read(buffer),
        }
    }
}

/// Says goodbye: nothing more will be sent.
///
/// # Safety
/// `conn` is live and its socket open.
pub unsafe fn close(conn: *mut Conn) {
    // SAFETY: the caller's contract; the borrow ends here.
    unsafe {
        let mut socket = Fd((*conn).fd);
        if let Some(tls) = &mut (*conn).tls {
            tls.close(&mut socket);
        }
    }
}

/// Sends what is to be sent, as far as the socket takes it.
///
/// # Safety
/// `conn` is live.
#[cold]
pub unsafe fn flush(s: *mut State, conn: *mut Conn) {
    // SAFETY: the bytes are the connection's own and nothing runs meanwhile.
    unsafe {
        loop {
            let mut socket = Fd((*conn).fd);
            let Some(tls) = &mut (*conn).tls else { return };
            let bytes = (&(*conn).out).get((*conn).sent..(*conn).committed).unwrap_or_default();
            let done = if bytes.is_empty() {
                if tls.pending() == 0 {
                    return transport::sent_all(s, conn);
                }
                tls.flush(&mut socket)
            } else {
                tls.write(&mut socket, bytes).map(|n| (*conn).sent += n)
            };
            match done {
                Ok(()) => {}
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock => return transport::block(s, conn),
                    ErrorKind::InvalidData => return transport::break_off(s, conn, Problem::Tls),
                    _ => return transport::half_broken(s, conn, error.raw_os_error().unwrap_or(0)),
                },
            }
        }
    }
}

/// Reads until the socket has no more and nothing is left behind, and handles the replies.
///
/// # Safety
/// `conn` is live and stays so: the caller holds a reference.
#[cold]
pub unsafe fn receive(s: *mut State, conn: *mut Conn, to_end: bool) {
    // SAFETY: the caller's contract. Decoders may close the connection, so nothing of it is kept across `handle`.
    unsafe {
        if let Some(tls) = &mut (*conn).tls {
            tls.readable(to_end);
        }
        while (*conn).fd >= 0 && (*conn).problem == Problem::None {
            let mut socket = Fd((*conn).fd);
            let Some(tls) = &mut (*conn).tls else { return };
            transport::make_room(conn);
            let room = (&mut (*conn).input).get_mut((*conn).end..).unwrap_or_default();
            let offered = room.len();
            match tls.read(&mut socket, room) {
                Ok(0) => return transport::break_off(s, conn, Problem::Peer),
                Ok(n) => {
                    (*conn).end += n;
                    transport::grow(conn, n == offered);
                    reply::handle(s, conn);
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock => break,
                    ErrorKind::InvalidData => return transport::break_off(s, conn, Problem::Tls),
                    _ => {
                        let errno = error.raw_os_error().unwrap_or(0);
                        return transport::break_off(s, conn, Problem::System(errno, "recv"));
                    }
                },
            }
        }
        // Reading may have made something to send, such as new keys.
        if (&(*conn).tls).as_ref().is_some_and(|tls| tls.pending() > 0) && (*conn).problem == Problem::None {
            flush(s, conn);
        }
    }
}
