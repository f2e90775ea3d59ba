//! Listening sockets: TCP over IPv4, IPv6 and names, and unix sockets.

use super::session::Socket;
use crate::sys::fork;
use std::ffi::c_int;
use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A socket that accepts, without blocking.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A unix socket; its file is removed when the listener is dropped, in the process that made it.
    Unix(UnixListener, PathBuf, u32),
}

impl Listener {
    /// Binds to the first address of `host` that can be bound; an empty host or `*` is every interface. Looks names up
    /// on the calling thread. `SO_REUSEADDR` is set.
    ///
    /// # Errors
    /// The system's.
    pub fn tcp(host: &str, port: u16) -> io::Result<Self> {
        let host = if host.is_empty() || host == "*" { "0.0.0.0" } else { host };
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in (host, port).to_socket_addrs()? {
            match TcpListener::bind(address) {
                Ok(listener) => {
                    listener.set_nonblocking(true)?;
                    deepen(listener.as_raw_fd())?;
                    return Ok(Listener::Tcp(listener));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Binds a unix socket. A socket file nobody answers on is left over from a program that died, and is replaced.
    ///
    /// # Errors
    /// The system's; `AddrInUse` when somebody answers, or when the file is no socket.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
                std::fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            other => other?,
        };
        listener.set_nonblocking(true)?;
        deepen(listener.as_raw_fd())?;
        Ok(Listener::Unix(listener, path.to_path_buf(), fork::generation()))
    }

    /// The address it is bound to, as a URI: `host:port`, `[v6]:port` or `unix/:/path`.
    pub fn address(&self) -> String {
        match self {
            Listener::Tcp(listener) => match listener.local_addr() {
                Ok(address) => address.to_string(),
                Err(_) => String::new(),
            },
            Listener::Unix(_, path, _) => format!("unix/:{}", path.display()),
        }
    }

    /// Its descriptor.
    pub fn fd(&self) -> RawFd {
        match self {
            Listener::Tcp(listener) => listener.as_raw_fd(),
            Listener::Unix(listener, ..) => listener.as_raw_fd(),
        }
    }

    /// The next client and its address, for people.
    ///
    /// # Errors
    /// `WouldBlock` when there is none; otherwise the system's, such as too many open files.
    pub fn accept(&self) -> io::Result<(Socket, String)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                stream.set_nonblocking(true)?;
                // Small responses must not wait for the acknowledgement of the ones before; a refusal changes nothing else.
                let _ = stream.set_nodelay(true);
                keep_alive(&stream);
                Ok((Socket::Tcp(stream), peer.to_string()))
            }
            Listener::Unix(listener, path, _) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok((Socket::Unix(stream), format!("unix/:{}", path.display())))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path, forks) = self
            && *forks == fork::generation()
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Lets as many clients wait to be accepted as the system allows. The standard library asks for 128: of a thousand that
/// connect at once the rest would try again after seconds, and some give up.
fn deepen(fd: RawFd) -> io::Result<()> {
    // SAFETY: a plain call on a descriptor the caller owns; the system cuts the number to its own limit.
    if unsafe { libc::listen(fd, c_int::MAX) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Has the system notice clients that vanished without a word, in its own time. A refusal changes nothing else.
fn keep_alive(stream: &TcpStream) {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open while the stream is borrowed; the value's address and size belong together.
    unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_KEEPALIVE,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
}

/// Whether the file is a socket that refuses connections.
fn is_stale(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    is_socket && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("cord-listener-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let path = scratch("stale");
        drop(UnixListener::bind(&path).unwrap());
        let first = Listener::unix(&path).unwrap();
        assert_eq!(Listener::unix(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_is_no_socket_stays() {
        let path = scratch("file");
        std::fs::write(&path, "mine").unwrap();
        assert!(Listener::unix(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn port_zero_becomes_a_real_one() {
        let listener = Listener::tcp("127.0.0.1", 0).unwrap();
        let port: u16 = listener.address().strip_prefix("127.0.0.1:").unwrap().parse().unwrap();
        assert_ne!(port, 0);
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
