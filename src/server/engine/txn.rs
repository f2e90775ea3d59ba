//! Transactions: changes kept aside until commit, and what was read, to notice conflicts.
//!
//! Whatever is committed lies in the spaces; a transaction holds its own changes in overlays. When somebody else commits
//! a key that an open transaction has read, that transaction is aborted if it has written, and otherwise goes on in the
//! past: its overlays then hold what it may still see. A transaction in the past cannot write.
//!
//! Source: the observable rules of `src/box/memtx_tx.c`, Tarantool 3.9-dev.

use super::error::{self, BoxError, Result};
use super::key::Key;
use super::space::{Change, Overlay, Range, Space};
use std::collections::{HashMap, HashSet};
use std::ops::Bound;

/// Names one open transaction; not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TxnId(pub(crate) u64);

/// How many ranges of one index are remembered apart; beyond, they count as one.
const MAX_RANGES: usize = 64;

#[derive(Clone, Copy, PartialEq)]
enum State {
    Active,
    /// Somebody changed what this transaction has read; it sees the past and cannot write.
    ReadView,
    /// Nothing but rollback is left.
    Aborted,
}

/// One open transaction.
pub(crate) struct Txn {
    state: State,
    has_written: bool,
    /// By space; one per index, in the order of the space's indexes.
    overlays: HashMap<u32, Vec<Overlay>>,
    reads: HashMap<(u32, usize), Reads>,
    /// Bytes of the tuples written so far.
    bytes: usize,
}

/// What a transaction has read of one index.
#[derive(Default)]
struct Reads {
    points: HashSet<Key>,
    ranges: Vec<Range>,
}

impl Reads {
    fn contains(&self, key: &Key) -> bool {
        self.points.contains(key) || self.ranges.iter().any(|range| holds(range, key))
    }

    fn add_range(&mut self, range: Range) {
        if self.ranges.len() < MAX_RANGES {
            self.ranges.push(range);
        } else {
            self.ranges = vec![Range { from: Bound::Unbounded, to: Bound::Unbounded }];
        }
    }
}

fn holds(range: &Range, key: &Key) -> bool {
    let after_start = match &range.from {
        Bound::Included(from) => key >= from,
        Bound::Excluded(from) => key > from,
        Bound::Unbounded => true,
    };
    let before_end = match &range.to {
        Bound::Included(to) => key <= to,
        Bound::Excluded(to) => key < to,
        Bound::Unbounded => true,
    };
    after_start && before_end
}

#[cold]
pub(crate) fn conflict() -> BoxError {
    BoxError::client(error::TRANSACTION_CONFLICT, "Transaction has been aborted by conflict")
}

impl Txn {
    pub(crate) fn new() -> Self {
        Txn { state: State::Active, has_written: false, overlays: HashMap::new(), reads: HashMap::new(), bytes: 0 }
    }

    /// Refuses to go on when the transaction was aborted.
    pub(crate) fn check(&self) -> Result<()> {
        if self.state == State::Aborted { Err(conflict()) } else { Ok(()) }
    }

    /// Refuses a write that could not be committed; that aborts the transaction.
    pub(crate) fn check_write(&mut self) -> Result<()> {
        if self.state == State::ReadView {
            self.abort();
        }
        self.check()
    }

    /// Bytes of the tuples the transaction has written.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The transaction's own view of a space, if it differs.
    pub(crate) fn overlays(&self, space: u32) -> Option<&[Overlay]> {
        self.overlays.get(&space).map(Vec::as_slice)
    }

    /// Remembers that the presence or absence of a key was seen.
    pub(crate) fn track_point(&mut self, space: u32, index: usize, key: &Key) {
        if self.state == State::Active {
            self.reads.entry((space, index)).or_default().points.insert(key.clone());
        }
    }

    /// Remembers that everything in a range was seen.
    pub(crate) fn track_range(&mut self, space: u32, index: usize, range: Range) {
        if self.state == State::Active {
            self.reads.entry((space, index)).or_default().add_range(range);
        }
    }

    /// Takes a planned change into the overlays.
    pub(crate) fn write(&mut self, space: &Space, change: &Change) {
        self.has_written = true;
        self.bytes += change.new.as_ref().map_or(0, |tuple| tuple.len());
        let overlays = self.overlays.entry(space.id).or_default();
        overlays.resize_with(space.indexes.len(), Overlay::new);
        for (index, overlay) in space.indexes.iter().zip(overlays) {
            if let Some(key) = change.old.as_deref().and_then(|t| index.key.of_tuple(t)) {
                overlay.insert(key, None);
            }
            if let Some(new) = &change.new
                && let Some(key) = index.key.of_tuple(new)
            {
                overlay.insert(key, Some(new.clone()));
            }
        }
    }

    /// The changes to commit: by space, the tuple (or its absence) of each primary key.
    pub(crate) fn into_changes(self) -> impl Iterator<Item = (u32, Overlay)> {
        let overlays = if self.has_written { self.overlays } else { HashMap::new() };
        overlays.into_iter().filter_map(|(space, overlays)| Some((space, overlays.into_iter().next()?)))
    }

    /// Learns of a change that somebody else commits to `space`.
    pub(crate) fn notice(&mut self, space: &Space, change: &Change) {
        if self.state == State::Active && self.has_read(space, change) {
            if self.has_written {
                return self.abort();
            }
            self.state = State::ReadView;
            self.reads.clear();
        }
        match self.state {
            State::ReadView => self.keep_past(space, change),
            State::Active if self.has_written => self.hide_replaced(space, change),
            State::Active | State::Aborted => {}
        }
    }

    fn has_read(&self, space: &Space, change: &Change) -> bool {
        !self.reads.is_empty()
            && space.indexes.iter().enumerate().any(|(position, index)| {
                let Some(reads) = self.reads.get(&(space.id, position)) else { return false };
                let tuples = [change.old.as_deref(), change.new.as_deref()];
                tuples.into_iter().flatten().filter_map(|t| index.key.of_tuple(t)).any(|key| reads.contains(&key))
            })
    }

    /// Puts what the change replaces over it, unless something older is there.
    fn keep_past(&mut self, space: &Space, change: &Change) {
        let overlays = self.overlays.entry(space.id).or_default();
        overlays.resize_with(space.indexes.len(), Overlay::new);
        for (index, overlay) in space.indexes.iter().zip(overlays) {
            if let Some(old) = &change.old
                && let Some(key) = index.key.of_tuple(old)
            {
                overlay.entry(key).or_insert_with(|| Some(old.clone()));
            }
            if let Some(key) = change.new.as_deref().and_then(|t| index.key.of_tuple(t)) {
                overlay.entry(key).or_insert(None);
            }
        }
    }

    /// Hides, in the secondary indexes, a committed tuple whose primary key this transaction has overwritten unseen.
    fn hide_replaced(&mut self, space: &Space, change: &Change) {
        let Some(new) = &change.new else { return };
        let Some(overlays) = self.overlays.get_mut(&space.id) else { return };
        let mut indexes = space.indexes.iter().zip(overlays.iter_mut());
        let Some((primary, overlay)) = indexes.next() else { return };
        if primary.key.of_tuple(new).is_none_or(|key| !overlay.contains_key(&key)) {
            return;
        }
        for (index, overlay) in indexes {
            if let Some(key) = index.key.of_tuple(new) {
                overlay.entry(key).or_insert(None);
            }
        }
    }

    /// Ends the transaction if it has to do with a space whose definition changes.
    pub(crate) fn notice_schema_change(&mut self, space: u32) {
        if self.overlays.contains_key(&space) || self.reads.keys().any(|(id, _)| *id == space) {
            self.abort();
        }
    }

    /// The state is final; what was kept for it is freed.
    pub(crate) fn abort(&mut self) {
        *self = Txn { state: State::Aborted, ..Txn::new() };
    }
}
