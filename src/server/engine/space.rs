//! Spaces and indexes: tuples in ordered trees, and the plan of a change that all indexes agree to.

use super::error::{self, BoxError, Field, Result};
use super::format::Format;
use super::key::{Key, KeyDef};
use super::sequence::Sequence;
use super::show;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

/// A tuple: one MessagePack array, shared by the indexes, transactions and whoever reads it.
pub type Tuple = Rc<[u8]>;

/// The two kinds of index. Both are ordered trees here; a hash only refuses what Tarantool's cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexKind {
    /// Ordered: all iterators, partial keys, nullable parts.
    Tree,
    /// Unique, whole keys only.
    Hash,
}

impl IndexKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            IndexKind::Tree => "TREE",
            IndexKind::Hash => "HASH",
        }
    }
}

/// One index of a space.
pub(crate) struct Index {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) kind: IndexKind,
    /// The kind as the creator spelled it, for `_index`.
    pub(crate) kind_text: String,
    pub(crate) unique: bool,
    pub(crate) key: KeyDef,
    pub(crate) tree: BTreeMap<Key, Tuple>,
}

/// One space.
pub(crate) struct Space {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) engine: &'static str,
    pub(crate) field_count: u32,
    pub(crate) temporary: bool,
    pub(crate) format: Format,
    pub(crate) sequence: Option<Sequence>,
    /// By id; the first is the primary key if its id is 0.
    pub(crate) indexes: Vec<Index>,
}

/// What a transaction sees differently in one index: other tuples, or their absence.
pub(crate) type Overlay = BTreeMap<Key, Option<Tuple>>;

/// A space as a statement sees it: what is committed, under the transaction's own changes.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) space: &'a Space,
    /// One per index, in the order of the space's indexes.
    pub(crate) overlays: Option<&'a [Overlay]>,
}

/// How a new tuple meets an old one of the same primary key.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Conflict {
    /// INSERT: there may be none.
    Refuse,
    /// REPLACE: it is replaced.
    Replace,
    /// UPDATE: it must be the tuple that was updated.
    Same,
}

/// A change that no index objects to.
pub(crate) struct Change {
    pub(crate) old: Option<Tuple>,
    pub(crate) new: Option<Tuple>,
}

impl Space {
    /// The bounds of the space's own ids: below lie the system's.
    pub(crate) fn is_system(&self) -> bool {
        self.id <= 511
    }

    /// The position of the index of that id.
    #[inline]
    pub(crate) fn index_position(&self, id: u32) -> Option<usize> {
        match self.indexes.get(id as usize) {
            // Ids are usually positions.
            Some(index) if index.id == id => Some(id as usize),
            _ => self.indexes.iter().position(|index| index.id == id),
        }
    }

    /// The position of the index of that id.
    ///
    /// # Errors
    /// `No index #1 is defined in space 'x'`.
    #[inline]
    pub(crate) fn index_by_id(&self, id: u32) -> Result<usize> {
        self.index_position(id).ok_or_else(|| {
            let name = &self.name;
            BoxError::client(error::NO_SUCH_INDEX_ID, format!("No index #{id} is defined in space '{name}'"))
                .with("index_id", Field::Uint(id.into()))
                .with("space", Field::Str(name))
        })
    }

    /// The position of the index of that name.
    ///
    /// # Errors
    /// `No index 'y' is defined in space 'x'`.
    pub(crate) fn index_by_name(&self, index: &[u8]) -> Result<usize> {
        self.indexes.iter().position(|i| i.name.as_bytes() == index).ok_or_else(|| {
            let (index, name) = (String::from_utf8_lossy(index), &self.name);
            BoxError::client(error::NO_SUCH_INDEX_NAME, format!("No index '{index}' is defined in space '{name}'"))
                .with("index", Field::Str(&index))
                .with("space", Field::Str(name))
        })
    }

    /// Adds the space to an error's payload.
    pub(crate) fn label(&self, error: BoxError) -> BoxError {
        error.with("space", Field::Str(&self.name)).with("space_id", Field::Uint(self.id.into()))
    }

    /// Adds the index at `position` and the space to an error's payload.
    pub(crate) fn label_index(&self, position: usize, error: BoxError) -> BoxError {
        let error = match self.indexes.get(position) {
            Some(index) => error.with("index", Field::Str(&index.name)).with("index_id", Field::Uint(index.id.into())),
            None => error,
        };
        self.label(error)
    }

    /// Makes a planned change in every index.
    pub(crate) fn apply(&mut self, change: &Change) {
        for index in &mut self.indexes {
            index.apply(change);
        }
    }

    /// How many tuples the space holds.
    pub(crate) fn len(&self) -> usize {
        self.indexes.first().map_or(0, |index| index.tree.len())
    }
}

impl Index {
    fn apply(&mut self, change: &Change) {
        let new_key = change.new.as_deref().and_then(|t| self.key.of_tuple(t));
        if let Some(old) = &change.old
            && let Some(old_key) = self.key.of_tuple(old)
            && new_key.as_ref() != Some(&old_key)
        {
            self.tree.remove(&old_key);
        }
        if let (Some(key), Some(new)) = (new_key, &change.new) {
            self.tree.insert(key, new.clone());
        }
    }
}

impl<'a> View<'a> {
    /// The tuple of that key in the index at `position`.
    #[inline]
    pub(crate) fn get(&self, position: usize, key: &Key) -> Option<&'a Tuple> {
        if let Some(changed) = self.overlay(position).and_then(|overlay| overlay.get(key)) {
            return changed.as_ref();
        }
        self.space.indexes.get(position)?.tree.get(key)
    }

    #[inline]
    fn overlay(&self, position: usize) -> Option<&'a Overlay> {
        self.overlays?.get(position)
    }

    /// The tuples between two keys, from the end if `reverse`.
    pub(crate) fn scan(&self, position: usize, range: &Range, reverse: bool) -> Scan<'a> {
        let bounds = (range.from.as_ref(), range.to.as_ref());
        let base = self.space.indexes.get(position).filter(|_| range.is_sound());
        let overlay = self.overlay(position).filter(|overlay| range.is_sound() && !overlay.is_empty());
        Scan {
            base: base.map(|index| index.tree.range::<Key, _>(bounds)),
            base_head: None,
            overlay: overlay.map(|overlay| overlay.range::<Key, _>(bounds)),
            overlay_head: None,
            reverse,
        }
    }

    /// The tuple of one key as a scan.
    pub(crate) fn scan_point(&self, position: usize, key: &Key) -> Scan<'a> {
        let changed = self.overlay(position).and_then(|overlay| overlay.get_key_value(key));
        let base_head = match changed {
            Some((key, tuple)) => tuple.as_ref().map(|tuple| (key, tuple)),
            None => self.space.indexes.get(position).and_then(|index| index.tree.get_key_value(key)),
        };
        Scan { base: None, base_head, overlay: None, overlay_head: None, reverse: false }
    }

    /// Checks that `new` may take the place of `old` (or of what has its primary key) in every index.
    ///
    /// `keys` is told of each key whose presence or absence decided, with the position of its index.
    ///
    /// # Errors
    /// A duplicate in a unique index; a changed primary key.
    pub(crate) fn plan(
        &self,
        old: Option<&Tuple>,
        new: Tuple,
        conflict: Conflict,
        mut keys: impl FnMut(usize, &Key),
    ) -> Result<Change> {
        let mut old = old.cloned();
        for (position, index) in self.space.indexes.iter().enumerate() {
            if position > 0 && !index.unique {
                continue;
            }
            let Some(key) = index.key.of_tuple(&new) else { continue };
            let conflict = if position == 0 { conflict } else { Conflict::Refuse };
            if position > 0 || conflict != Conflict::Replace {
                keys(position, &key);
            }
            let present = self.get(position, &key);
            self.check_duplicate(index, old.as_ref(), &new, present, conflict)?;
            if position == 0 && old.is_none() {
                old = present.cloned();
            }
        }
        Ok(Change { old, new: Some(new) })
    }

    fn check_duplicate(
        &self,
        index: &Index,
        old: Option<&Tuple>,
        new: &Tuple,
        present: Option<&Tuple>,
        conflict: Conflict,
    ) -> Result<()> {
        match (present, old) {
            (None, Some(old)) if conflict == Conflict::Same => Err(self.primary_key_changed(old, new)),
            (Some(present), Some(old)) if !Rc::ptr_eq(present, old) => Err(self.duplicate(index, present, new)),
            (Some(present), None) if conflict == Conflict::Refuse => Err(self.duplicate(index, present, new)),
            _ => Ok(()),
        }
    }

    #[cold]
    fn primary_key_changed(&self, old: &Tuple, new: &Tuple) -> BoxError {
        let name = &self.space.name;
        let message = format!("Attempt to modify a tuple field which is part of primary index in space '{name}'");
        BoxError::client(error::CANT_UPDATE_PRIMARY_KEY, message)
            .with("space", Field::Str(name))
            .with("space_id", Field::Uint(self.space.id.into()))
            .with("old_tuple", Field::Raw(old))
            .with("new_tuple", Field::Raw(new))
    }

    #[cold]
    pub(crate) fn duplicate(&self, index: &Index, present: &Tuple, new: &Tuple) -> BoxError {
        let (index, space) = (&index.name, &self.space.name);
        let message = format!(
            "Duplicate key exists in unique index \"{index}\" in space \"{space}\" with old tuple - {} and new tuple - {}",
            show::tuple(present),
            show::tuple(new)
        );
        BoxError::client(error::TUPLE_FOUND, message)
            .with("index", Field::Str(index))
            .with("space", Field::Str(space))
            .with("old_tuple", Field::Raw(present))
            .with("new_tuple", Field::Raw(new))
    }
}

/// Where a scan starts and ends.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    pub(crate) from: Bound<Key>,
    pub(crate) to: Bound<Key>,
}

impl Range {
    /// Whether the range is one that a tree accepts; others are empty.
    fn is_sound(&self) -> bool {
        match (&self.from, &self.to) {
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => true,
            (Bound::Included(from), Bound::Included(to)) => from <= to,
            (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => from < to,
        }
    }
}

/// The tuples of a view in the order of an index: two trees, merged.
pub(crate) struct Scan<'a> {
    base: Option<std::collections::btree_map::Range<'a, Key, Tuple>>,
    base_head: Option<(&'a Key, &'a Tuple)>,
    overlay: Option<std::collections::btree_map::Range<'a, Key, Option<Tuple>>>,
    overlay_head: Option<(&'a Key, &'a Option<Tuple>)>,
    reverse: bool,
}

impl<'a> Scan<'a> {
    #[inline]
    fn next_base(&mut self) -> Option<(&'a Key, &'a Tuple)> {
        if let Some(head) = self.base_head.take() {
            return Some(head);
        }
        let base = self.base.as_mut()?;
        if self.reverse { base.next_back() } else { base.next() }
    }

    fn next_overlay(&mut self) -> Option<(&'a Key, &'a Option<Tuple>)> {
        if let Some(head) = self.overlay_head.take() {
            return Some(head);
        }
        let overlay = self.overlay.as_mut()?;
        if self.reverse { overlay.next_back() } else { overlay.next() }
    }

    fn next_merged(&mut self) -> Option<(&'a Key, &'a Tuple)> {
        loop {
            let Some((changed_key, changed)) = self.next_overlay() else {
                self.overlay = None;
                return self.next_base();
            };
            if let Some((key, tuple)) = self.next_base() {
                let order = if self.reverse { changed_key.cmp(key) } else { key.cmp(changed_key) };
                match order {
                    std::cmp::Ordering::Less => {
                        self.overlay_head = Some((changed_key, changed));
                        return Some((key, tuple));
                    }
                    // The overlay hides the committed tuple.
                    std::cmp::Ordering::Equal => {}
                    std::cmp::Ordering::Greater => self.base_head = Some((key, tuple)),
                }
            }
            if let Some(tuple) = changed {
                return Some((changed_key, tuple));
            }
        }
    }
}

impl<'a> Iterator for Scan<'a> {
    type Item = (&'a Key, &'a Tuple);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.overlay.is_none() && self.overlay_head.is_none() { self.next_base() } else { self.next_merged() }
    }
}
