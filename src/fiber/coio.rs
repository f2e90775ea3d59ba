//! Waiting for descriptors: fibers that wait for one, and long-lived watches of the layers above.

use super::cord::{Body, Cord};
use super::fiber::{Wait, attention};
use super::wait::WaitList;
use crate::sys::fork;
use crate::sys::poll::{CLOSED, Poller, READ, Readiness, WRITE};
use rustc_hash::FxHashMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

enum Entry<B: Body> {
    Free,
    /// Fibers wait for this descriptor.
    Fibers {
        /// What it is armed for; 0 if the system does not know it.
        armed: Readiness,
        /// All that had come was read, and nothing has come since.
        drained: bool,
        /// The other end has closed its half: there is no further event to wait for.
        ended: bool,
        waiting: WaitList<B>,
    },
    /// A layer above is told of each event.
    Watch {
        fd: RawFd,
        data: usize,
    },
}

/// The descriptors of one scheduler.
pub struct Descriptors<B: Body> {
    poller: Option<Poller>,
    /// Of which process the poller is.
    forks: u32,
    #[allow(clippy::vec_box)] // wait lists must not move
    entries: Vec<Box<Entry<B>>>,
    free: Vec<usize>,
    by_fd: FxHashMap<RawFd, usize>,
    /// Fibers that wait for a descriptor, plus watches.
    waiting: usize,
    pub(super) events: Vec<(usize, Readiness)>,
}

impl<B: Body> Default for Descriptors<B> {
    fn default() -> Self {
        Descriptors {
            poller: None,
            forks: 0,
            entries: Vec::new(),
            free: Vec::new(),
            by_fd: FxHashMap::default(),
            waiting: 0,
            events: Vec::new(),
        }
    }
}

impl<B: Body> Descriptors<B> {
    fn poller(&mut self) -> io::Result<&mut Poller> {
        if self.poller.is_none() || self.forks != fork::generation() {
            self.renew()?;
        }
        self.poller.as_mut().ok_or_else(|| io::ErrorKind::Other.into())
    }

    /// Makes the poller. A forked child gets one of its own, since the parent's hears of whatever is done with it; what the
    /// parent watches is left to the parent.
    #[cold]
    fn renew(&mut self) -> io::Result<()> {
        self.poller = None;
        for entry in &mut self.entries {
            if let Entry::Fibers { armed, drained, ended, .. } = &mut **entry {
                (*armed, *drained, *ended) = (0, false, false);
            }
        }
        self.forks = fork::generation();
        self.poller = Some(Poller::new()?);
        Ok(())
    }

    /// The poller, if it is this process's own.
    fn own_poller(&self) -> Option<&Poller> {
        self.poller.as_ref().filter(|_| self.forks == fork::generation())
    }

    /// Whether an event could wake anybody.
    pub fn any(&self) -> bool {
        self.waiting > 0
    }

    /// A handle other threads end the poll with.
    ///
    /// # Errors
    /// The system's, such as too many open files.
    pub fn waker(&mut self) -> io::Result<Arc<mio::Waker>> {
        self.poller()?.waker()
    }

    pub(super) fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<(usize, Readiness)>) -> io::Result<()> {
        self.poller()?.wait(timeout, events)
    }

    fn insert(&mut self, entry: Entry<B>) -> usize {
        match self.free.pop() {
            Some(token) => {
                if let Some(slot) = self.entries.get_mut(token) {
                    **slot = entry;
                }
                token
            }
            None => {
                self.entries.push(Box::new(entry));
                self.entries.len() - 1
            }
        }
    }

    /// Watches `fd` for as long as [`unwatch`](Self::unwatch) is not called; each event goes to [`Body::event`] with
    /// `data`. Edge-triggered.
    ///
    /// # Errors
    /// The system's.
    pub fn watch(&mut self, fd: RawFd, wanted: Readiness, data: usize) -> io::Result<usize> {
        self.forget(fd);
        let token = self.insert(Entry::Watch { fd, data });
        match self.poller().and_then(|poller| poller.arm(fd, token, wanted, false)) {
            Ok(()) => {
                self.waiting += 1;
                Ok(token)
            }
            Err(error) => {
                self.remove(token);
                Err(error)
            }
        }
    }

    /// Changes what a watch is for; a descriptor that is ready already is reported again.
    ///
    /// # Errors
    /// The system's.
    pub fn rewatch(&mut self, token: usize, wanted: Readiness) -> io::Result<()> {
        match self.entries.get(token).map(|entry| &**entry) {
            Some(Entry::Watch { fd, .. }) => {
                let fd = *fd;
                self.poller()?.arm(fd, token, wanted, true)
            }
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Ends a watch. Call before the descriptor is closed.
    pub fn unwatch(&mut self, token: usize) {
        if let Some(Entry::Watch { fd, .. }) = self.entries.get(token).map(|entry| &**entry) {
            let fd = *fd;
            if let Some(poller) = self.own_poller() {
                poller.disarm(fd);
            }
            self.waiting -= 1;
            self.remove(token);
        }
    }

    fn remove(&mut self, token: usize) {
        if let Some(slot) = self.entries.get_mut(token) {
            **slot = Entry::Free;
            self.free.push(token);
        }
    }

    /// A fiber that waited for a descriptor runs again.
    pub(super) fn end_wait(&mut self) {
        self.waiting -= 1;
    }

    /// Forgets a descriptor nobody waits for, before it is closed or handed to somebody else.
    pub fn forget(&mut self, fd: RawFd) {
        if let Some(token) = self.by_fd.get(&fd).copied()
            && let Some(Entry::Fibers { waiting, .. }) = self.entries.get(token).map(|entry| &**entry)
            && waiting.is_empty()
        {
            self.by_fd.remove(&fd);
            self.remove(token);
            if let Some(poller) = self.own_poller() {
                poller.disarm(fd);
            }
        }
    }

    fn fibers_entry(&mut self, fd: RawFd) -> Option<&mut Entry<B>> {
        let token = self.by_fd.get(&fd)?;
        self.entries.get_mut(*token).map(|entry| &mut **entry)
    }

    /// Whether it is known that reading `fd` would give nothing: it was [`drained`](Self::drained) and no event has come
    /// since.
    pub fn is_drained(&mut self, fd: RawFd) -> bool {
        matches!(self.fibers_entry(fd), Some(Entry::Fibers { drained: true, .. }))
    }

    /// Reading `fd` gave EAGAIN or, of a stream, less than was asked for. Edges tell of whatever comes next, if it is
    /// armed and not at its end.
    pub fn drained(&mut self, fd: RawFd) {
        if let Some(Entry::Fibers { armed, drained, ended, .. }) = self.fibers_entry(fd) {
            *drained = *armed & READ != 0 && !*ended;
        }
    }

    /// `fd` was seen to be ready without an event.
    pub fn touched(&mut self, fd: RawFd) {
        if let Some(Entry::Fibers { drained, .. }) = self.fibers_entry(fd) {
            *drained = false;
        }
    }

    fn entry_of(&mut self, fd: RawFd) -> usize {
        if let Some(token) = self.by_fd.get(&fd) {
            return *token;
        }
        let token = self.insert(Entry::Fibers { armed: 0, drained: false, ended: false, waiting: WaitList::new() });
        self.by_fd.insert(fd, token);
        token
    }
}

impl<B: Body> Cord<B> {
    /// Puts the running fiber among those that wait for `fd` to be ready for `wanted`; it is signalled with the events
    /// in its `events`. The caller then waits.
    ///
    /// # Errors
    /// The system's (EBADF, EPERM for a plain file); the fiber is on no list then.
    pub fn begin_io(&mut self, fd: RawFd, wanted: Readiness) -> io::Result<()> {
        self.begin_io_after(fd, wanted, false)
    }

    /// As [`begin_io`](Self::begin_io). With `tried`, the caller's last call on `fd` gave EAGAIN: a descriptor that is
    /// armed already need not be armed anew, which saves a system call a wait.
    ///
    /// # Errors
    /// As there.
    pub fn begin_io_after(&mut self, fd: RawFd, wanted: Readiness, tried: bool) -> io::Result<()> {
        let f = self.current;
        let token = self.descriptors.entry_of(fd);
        let descriptors = &raw mut self.descriptors;
        // SAFETY: the boxed entry does not move while the poller is armed; linked fibers are live.
        unsafe {
            let Some(entry) = (&mut (*descriptors).entries).get_mut(token) else {
                return Err(io::ErrorKind::Other.into());
            };
            let Entry::Fibers { armed, waiting, .. } = &mut **entry else { return Err(io::ErrorKind::Other.into()) };
            let mut all = wanted;
            let mut other = waiting.first();
            while !other.is_null() {
                all |= (*other).events;
                other = (*other).link.next();
            }
            if !tried || *armed & all != all {
                let result = match (*descriptors).poller() {
                    Ok(poller) => poller.arm(fd, token, all, *armed != 0),
                    Err(error) => Err(error),
                };
                if let Err(error) = result {
                    (*descriptors).forget(fd);
                    return Err(error);
                }
                *armed = all;
            }
            (*f).events = wanted;
            (*f).wait = Wait::Io;
            (*f).attention |= attention::BODY;
            WaitList::link(waiting, f, false);
            self.descriptors.waiting += 1;
        }
        Ok(())
    }

    /// A descriptor is about to be closed: whoever waits for it is signalled that it is ready, and it is forgotten.
    ///
    /// # Safety
    /// The cord is live.
    pub unsafe fn closing(cord: *mut Self, fd: RawFd) {
        // SAFETY: `external` signals and so unlinks all that wait for any of the two.
        unsafe {
            if let Some(token) = (*cord).descriptors.by_fd.get(&fd).copied() {
                (*cord).external(token, READ | WRITE);
                (*cord).descriptors.forget(fd);
            }
        }
    }

    /// Puts the running fiber at the tail of the ready queue with `events` as what its wait for a descriptor brought,
    /// 0 being a timeout: for what needs no wait (a plain file, a poll with no time). The caller then waits.
    pub fn yield_io(&mut self, events: Readiness) {
        let f = self.current;
        // SAFETY: the running fiber is live and not queued.
        unsafe {
            (*f).events = events;
            (*f).wait = Wait::Io;
            (*f).attention |= if events == 0 { attention::TIMED_OUT } else { attention::SIGNALLED };
            self.descriptors.waiting += 1;
            self.enqueue(f);
        }
    }

    /// Handles one event: fibers are woken here; of a watch, its data is returned.
    pub(super) fn external(&mut self, token: usize, ready: Readiness) -> Option<usize> {
        let descriptors = &raw mut self.descriptors;
        // SAFETY: as for `begin_io`; `signal` unlinks the fiber, so the next one is read before.
        unsafe {
            match &mut **(&mut (*descriptors).entries).get_mut(token)? {
                Entry::Watch { data, .. } => Some(*data),
                Entry::Free => None,
                Entry::Fibers { waiting, drained, ended, .. } => {
                    *drained = false;
                    *ended |= ready & CLOSED != 0;
                    let mut f = waiting.first();
                    while !f.is_null() {
                        let next = (*f).link.next();
                        if (*f).events & ready != 0 {
                            (*f).events &= ready;
                            self.signal(f);
                        }
                        f = next;
                    }
                    None
                }
            }
        }
    }
}
