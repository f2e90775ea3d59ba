//! Readiness of descriptors and wakeups from other threads: one `mio::Poll` a scheduler, behind names of our own.

use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// What a descriptor is ready for, or what is asked of it: bit 1 read, bit 2 write (as Tarantool's COIO_READ and
/// COIO_WRITE).
pub type Readiness = u8;
/// Bit of [`Readiness`].
pub const READ: Readiness = 1;
/// Bit of [`Readiness`].
pub const WRITE: Readiness = 2;
/// Bit of [`Readiness`], reported with [`READ`]: the other side will send nothing more, so a short read is not the end.
pub const CLOSED: Readiness = 4;

/// The token of wakeups from other threads.
const WAKER: Token = Token(usize::MAX);

/// The descriptors one scheduler watches. Edge-triggered: (re)arming a ready descriptor reports it again.
pub struct Poller {
    poll: Poll,
    events: Events,
    waker: Option<Arc<Waker>>,
}

fn interest(wanted: Readiness) -> Interest {
    match wanted & (READ | WRITE) {
        READ => Interest::READABLE,
        WRITE => Interest::WRITABLE,
        _ => Interest::READABLE | Interest::WRITABLE,
    }
}

fn readiness(event: &Event) -> Readiness {
    let mut ready = 0;
    if event.is_readable() || event.is_read_closed() || event.is_error() {
        ready |= READ;
    }
    if event.is_writable() || event.is_write_closed() || event.is_error() {
        ready |= WRITE;
    }
    if event.is_read_closed() || event.is_error() {
        ready |= CLOSED;
    }
    ready
}

impl Poller {
    /// Opens the system's poller.
    ///
    /// # Errors
    /// The system's, such as too many open files.
    pub fn new() -> io::Result<Self> {
        Ok(Poller { poll: Poll::new()?, events: Events::with_capacity(1024), waker: None })
    }

    /// Watches `fd` for `wanted` under `token`, or changes what it is watched for.
    ///
    /// # Errors
    /// The system's: a closed descriptor, or one that cannot be polled (EPERM for a plain file).
    pub fn arm(&self, fd: RawFd, token: usize, wanted: Readiness, known: bool) -> io::Result<()> {
        let registry = self.poll.registry();
        let mut source = SourceFd(&fd);
        let (token, interest) = (Token(token), interest(wanted));
        let first = if known {
            registry.reregister(&mut source, token, interest)
        } else {
            registry.register(&mut source, token, interest)
        };
        match first {
            // The descriptor was closed and opened again behind our back, or is still known from before.
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => registry.register(&mut source, token, interest),
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => registry.reregister(&mut source, token, interest),
            other => other,
        }
    }

    /// Stops watching `fd`. An unknown or closed descriptor is not an error.
    pub fn disarm(&self, fd: RawFd) {
        let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
    }

    /// A handle other threads wake this poller with.
    ///
    /// # Errors
    /// The system's, such as too many open files.
    pub fn waker(&mut self) -> io::Result<Arc<Waker>> {
        if let Some(waker) = &self.waker {
            return Ok(waker.clone());
        }
        let waker = Arc::new(Waker::new(self.poll.registry(), WAKER)?);
        self.waker = Some(waker.clone());
        Ok(waker)
    }

    /// Waits until something is ready or `timeout` has passed (`None`: for ever), and appends (token, readiness).
    /// Wakeups from other threads only end the wait.
    ///
    /// # Errors
    /// `Interrupted` when a signal arrived; otherwise the system's.
    pub fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<(usize, Readiness)>) -> io::Result<()> {
        self.poll.poll(&mut self.events, timeout)?;
        for event in &self.events {
            if event.token() != WAKER {
                ready.push((event.token().0, readiness(event)));
            }
        }
        Ok(())
    }
}
