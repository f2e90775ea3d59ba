//! Names to addresses without blocking anybody: a queue served by a few OS threads that call `getaddrinfo`.
//!
//! ```text
//!   scheduler's thread                         helper threads (at most THREADS, gone after LINGER without work)
//!   submit(query) --> [ queue ] -- condvar --> getaddrinfo
//!   take()        <-- [ answers ] <-- waker ----'
//! ```
//!
//! The threads know nothing of Lua or fibers: they get owned values and give owned values back.

use super::fork;
use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_int};
use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Helper threads of one resolver, at most.
const THREADS: usize = 4;
/// How long an idle thread waits for more work.
const LINGER: Duration = Duration::from_secs(10);
/// Their stacks, in bytes: the system's resolver and its plugins need some.
const STACK: usize = 512 * 1024;

/// What to look up; a `None` host is this machine (or any address, with `AI_PASSIVE`).
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// A name or a numeric address.
    pub host: Option<CString>,
    /// A service's name or a port number.
    pub service: Option<CString>,
    /// `AF_*`, 0 for any.
    pub family: c_int,
    /// `SOCK_*`, 0 for any.
    pub socktype: c_int,
    /// `IPPROTO_*`, 0 for any.
    pub protocol: c_int,
    /// `AI_*`.
    pub flags: c_int,
}

/// One address of an answer.
#[derive(Clone, Debug)]
pub struct Address {
    /// `SOCK_*`.
    pub socktype: c_int,
    /// `IPPROTO_*`.
    pub protocol: c_int,
    /// The `sockaddr` itself; its length is the address's.
    pub bytes: Vec<u8>,
    /// The official name, with `AI_CANONNAME`, on the first address.
    pub canonname: Option<CString>,
}

impl Address {
    /// The IP address, of the families that have one.
    pub fn ip(&self) -> Option<IpAddr> {
        let part = |at: usize, len: usize| self.bytes.get(at..at + len);
        let family = libc::sa_family_t::from_ne_bytes(
            part(offset_of!(libc::sockaddr, sa_family), size_of::<libc::sa_family_t>())?.try_into().ok()?,
        );
        match c_int::from(family) {
            libc::AF_INET => {
                let octets: [u8; 4] = part(offset_of!(libc::sockaddr_in, sin_addr), 4)?.try_into().ok()?;
                Some(Ipv4Addr::from(octets).into())
            }
            libc::AF_INET6 => {
                let octets: [u8; 16] = part(offset_of!(libc::sockaddr_in6, sin6_addr), 16)?.try_into().ok()?;
                Some(Ipv6Addr::from(octets).into())
            }
            _ => None,
        }
    }
}

/// The addresses, or the resolver's own text.
pub type Answer = Result<Vec<Address>, String>;

struct Shared {
    inner: Mutex<Inner>,
    work: Condvar,
}

#[derive(Default)]
struct Inner {
    queue: VecDeque<(u64, Query)>,
    answers: Vec<(u64, Answer)>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic cannot leave the queues half changed.
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The queue and its threads. Dropping it lets them end, in their own time.
#[derive(Default)]
pub struct Resolver {
    shared: Option<Arc<Shared>>,
    /// Of which process the threads are.
    forks: u32,
}

impl Resolver {
    /// Queues `query`; its answer will be among [`take`](Self::take)'s under `ticket`, and `wake` is called (on a helper
    /// thread) when it is there.
    ///
    /// # Errors
    /// No thread could be started, and none is running.
    pub fn submit(&mut self, ticket: u64, query: Query, wake: Arc<mio::Waker>) -> io::Result<()> {
        if self.forks != fork::generation() {
            self.leave_to_parent();
        }
        let shared = self
            .shared
            .get_or_insert_with(|| Arc::new(Shared { inner: Mutex::default(), work: Condvar::new() }))
            .clone();
        let mut inner = shared.lock();
        if inner.idle <= inner.queue.len() && inner.threads < THREADS {
            let theirs = shared.clone();
            match start(move || serve(&theirs, &wake)) {
                Ok(()) => inner.threads += 1,
                Err(error) if inner.threads == 0 => return Err(error),
                Err(_) => {}
            }
        }
        inner.queue.push_back((ticket, query));
        drop(inner);
        shared.work.notify_one();
        Ok(())
    }

    /// The answers that have arrived since the last call.
    pub fn take(&self) -> Vec<(u64, Answer)> {
        if self.forks != fork::generation() {
            return Vec::new();
        }
        self.shared.as_ref().map(|shared| std::mem::take(&mut shared.lock().answers)).unwrap_or_default()
    }
}

impl Resolver {
    /// In a process just forked: the threads are the parent's, and one of them may hold the lock for ever.
    fn leave_to_parent(&mut self) {
        std::mem::forget(self.shared.take());
        self.forks = fork::generation();
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        if self.forks != fork::generation() {
            self.leave_to_parent();
        }
        if let Some(shared) = self.shared.take() {
            let mut inner = shared.lock();
            inner.closed = true;
            inner.queue.clear();
            drop(inner);
            shared.work.notify_all();
        }
    }
}

/// Starts a detached thread that no signal is delivered to: signals are the program's.
fn start(body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the sets are written by sigfillset and pthread_sigmask before they are read; the mask of this thread is
    // put back below.
    let masked = unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let started = std::thread::Builder::new().name("cord-resolve".into()).stack_size(STACK).spawn(body);
    if masked {
        // SAFETY: `before` was filled.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    started.map(drop)
}

/// What a helper thread does.
fn serve(shared: &Shared, wake: &mio::Waker) {
    let mut inner = shared.lock();
    loop {
        if inner.closed {
            break;
        }
        if let Some((ticket, query)) = inner.queue.pop_front() {
            drop(inner);
            let answer = look_up(&query);
            inner = shared.lock();
            if !inner.closed {
                inner.answers.push((ticket, answer));
                // A scheduler that cannot be woken sees the answer at its next turn.
                let _ = wake.wake();
            }
            continue;
        }
        inner.idle += 1;
        let (guard, waited) =
            shared.work.wait_timeout(inner, LINGER).unwrap_or_else(std::sync::PoisonError::into_inner);
        inner = guard;
        inner.idle -= 1;
        if waited.timed_out() && inner.queue.is_empty() {
            break;
        }
    }
    inner.threads -= 1;
}

/// Calls `getaddrinfo`. It may block for as long as the system's resolver pleases, unless host and service are numeric.
pub fn look_up(query: &Query) -> Answer {
    let mut list: *mut libc::addrinfo = std::ptr::null_mut();
    let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    // SAFETY: an all-zero addrinfo is the documented start of hints; strings are NUL-terminated and live during the call.
    let rc = unsafe {
        let mut hints: libc::addrinfo = std::mem::zeroed();
        hints.ai_family = query.family;
        hints.ai_socktype = query.socktype;
        hints.ai_protocol = query.protocol;
        hints.ai_flags = query.flags;
        libc::getaddrinfo(pointer(&query.host), pointer(&query.service), &raw const hints, &raw mut list)
    };
    if rc != 0 {
        return Err(failure(rc));
    }
    let mut addresses = Vec::new();
    let mut at = list;
    // SAFETY: the list is what getaddrinfo made; it is freed once, after the last look at it.
    unsafe {
        while !at.is_null() {
            let entry = &*at;
            if !entry.ai_addr.is_null() {
                addresses.push(Address {
                    socktype: entry.ai_socktype,
                    protocol: entry.ai_protocol,
                    bytes: std::slice::from_raw_parts(entry.ai_addr.cast::<u8>(), entry.ai_addrlen as usize).to_vec(),
                    canonname: (!entry.ai_canonname.is_null()).then(|| CStr::from_ptr(entry.ai_canonname).to_owned()),
                });
            }
            at = entry.ai_next;
        }
        if !list.is_null() {
            libc::freeaddrinfo(list);
        }
    }
    Ok(addresses)
}

fn failure(rc: c_int) -> String {
    // SAFETY: gai_strerror gives a static text for every number.
    let text = unsafe { CStr::from_ptr(libc::gai_strerror(rc)) };
    format!("getaddrinfo: {}", text.to_string_lossy())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn numeric(host: &str) -> Query {
        Query {
            host: CString::new(host).ok(),
            service: CString::new("80").ok(),
            socktype: libc::SOCK_STREAM,
            ..Query::default()
        }
    }

    #[test]
    fn looks_up_a_numeric_address() {
        let addresses = look_up(&numeric("127.0.0.1")).unwrap();
        assert_eq!(addresses.len(), 1);
        let first = addresses.first().unwrap();
        assert_eq!(first.bytes.len(), size_of::<libc::sockaddr_in>());
        // Port and address in network order, after the family.
        assert_eq!(first.bytes.get(2..8).unwrap(), [0, 80, 127, 0, 0, 1]);
        assert_eq!(first.ip(), Some(Ipv4Addr::LOCALHOST.into()));
        let v6 = look_up(&numeric("::1")).unwrap();
        assert_eq!(v6.first().unwrap().ip(), Some(Ipv6Addr::LOCALHOST.into()));
    }

    #[test]
    fn gives_the_resolvers_text() {
        let query = Query { flags: libc::AI_NUMERICHOST, ..numeric("no such name") };
        assert_eq!(look_up(&query).unwrap_err(), "getaddrinfo: Name or service not known");
    }

    #[test]
    fn hands_answers_back_under_their_tickets_and_wakes() {
        let mut poll = mio::Poll::new().unwrap();
        let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(7)).unwrap());
        let mut resolver = Resolver::default();
        for ticket in 1..=20 {
            resolver.submit(ticket, numeric("127.0.0.1"), waker.clone()).unwrap();
        }
        let mut events = mio::Events::with_capacity(8);
        let (mut tickets, began) = (Vec::new(), Instant::now());
        while tickets.len() < 20 && began.elapsed() < Duration::from_secs(10) {
            poll.poll(&mut events, Some(Duration::from_millis(100))).unwrap();
            tickets.extend(resolver.take().into_iter().map(|(ticket, answer)| (ticket, answer.unwrap().len())));
        }
        tickets.sort_unstable();
        assert_eq!(tickets, (1..=20).map(|ticket| (ticket, 1)).collect::<Vec<_>>());
        assert!(resolver.shared.as_ref().unwrap().lock().threads <= THREADS);
    }
}
