//! Statements and transactions.
//!
//! Source: `src/box/box.cc` (`box_select`, `box_process1`) and `src/box/memtx_space.c`, Tarantool 3.9-dev.

use super::error::{self, BoxError, Field, Result};
use super::format::Format;
use super::key::{Key, KeyDef};
use super::query::{After, IteratorType, Plan};
use super::space::{Change, Conflict, Index, Space, Tuple, View};
use super::txn::{Txn, TxnId};
use super::update::{Mode, Operations, too_large};
use crate::iproto::constants::{ext, key};
use crate::iproto::mp;
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

/// A space by id or name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceRef<'a> {
    /// Its id.
    Id(u32),
    /// Its name.
    Name(&'a [u8]),
}

/// An index of a space by id or name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexRef<'a> {
    /// Its id; 0 is the primary key.
    Id(u32),
    /// Its name.
    Name(&'a [u8]),
}

/// What a SELECT asks for.
#[derive(Clone, Copy, Debug)]
pub struct Select<'a> {
    /// The space.
    pub space: SpaceRef<'a>,
    /// The index.
    pub index: IndexRef<'a>,
    /// Number of the iterator type ([`IteratorType`]).
    pub iterator: u64,
    /// How many tuples to leave out first.
    pub offset: u64,
    /// How many tuples to return at most.
    pub limit: u64,
    /// The key: a MessagePack array.
    pub key: &'a [u8],
    /// Where an earlier scan ended.
    pub after: Option<After<'a>>,
    /// Whether the position of the last tuple is asked for.
    pub fetch_position: bool,
}

/// One request on the data. Tuples, keys and operations are MessagePack arrays.
#[derive(Clone, Copy, Debug)]
pub enum Statement<'a> {
    /// Reads tuples.
    Select(Select<'a>),
    /// Adds a tuple that must not be there.
    Insert {
        /// The space.
        space: SpaceRef<'a>,
        /// The tuple.
        tuple: &'a [u8],
    },
    /// Adds a tuple or replaces the one of its primary key.
    Replace {
        /// The space.
        space: SpaceRef<'a>,
        /// The tuple.
        tuple: &'a [u8],
    },
    /// Changes a tuple.
    Update {
        /// The space.
        space: SpaceRef<'a>,
        /// A unique index.
        index: IndexRef<'a>,
        /// A whole key of it.
        key: &'a [u8],
        /// The operations.
        ops: &'a [u8],
        /// The number of the first field in the operations.
        base: u64,
    },
    /// Adds a tuple, or changes the one that is there.
    Upsert {
        /// The space.
        space: SpaceRef<'a>,
        /// The tuple.
        tuple: &'a [u8],
        /// The operations.
        ops: &'a [u8],
        /// The number of the first field in the operations.
        base: u64,
    },
    /// Removes a tuple.
    Delete {
        /// The space.
        space: SpaceRef<'a>,
        /// A unique index.
        index: IndexRef<'a>,
        /// A whole key of it.
        key: &'a [u8],
    },
}

/// Bounds of what clients may store.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest tuple in bytes; 1 MiB by default.
    pub tuple: usize,
    /// Bytes of all tuples together; 256 MiB by default, as `memtx_memory`.
    pub memory: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { tuple: 1 << 20, memory: 256 << 20 }
    }
}

/// The spaces of one server, and the transactions open on them.
pub struct Engine {
    pub(super) spaces: BTreeMap<u32, Space>,
    pub(super) names: HashMap<Box<[u8]>, u32>,
    pub(super) schema_version: u64,
    pub(super) limits: Limits,
    /// Bytes of the tuples in user spaces.
    pub(super) used: usize,
    txns: HashMap<TxnId, Txn>,
    last_txn: u64,
    /// Where changed tuples are put together.
    scratch: Vec<u8>,
}

/// A scan that goes on with each call, whatever was changed in between.
#[derive(Clone, Debug)]
pub struct Cursor {
    space: u32,
    index: u32,
    plan: Plan,
    offset: u64,
}

/// Which rows of a view a reader sees.
pub type Sees<'a> = dyn Fn(&Engine, &[u8]) -> bool + 'a;

/// How tuples are written.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// As arrays.
    Plain,
    /// As extensions that name their format.
    Formatted,
}

/// The body of a response under construction: `{DATA: [tuples], ...}`.
struct ResponseBody<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    count: u32,
    form: Form,
}

impl<'a> ResponseBody<'a> {
    #[inline]
    fn begin(form: Form, out: &'a mut Vec<u8>) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0x81, key::DATA, 0xdd, 0, 0, 0, 0]);
        ResponseBody { out, start, count: 0, form }
    }

    #[inline]
    fn push(&mut self, space: &Space, tuple: &[u8]) {
        self.count += 1;
        if self.form == Form::Formatted {
            let at = self.out.len();
            mp::put_uint(self.out, space.id.into());
            let len = self.out.len() - at + tuple.len();
            self.out.truncate(at);
            mp::put_ext_len(self.out, ext::TUPLE, len as u32);
            mp::put_uint(self.out, space.id.into());
        }
        self.out.extend_from_slice(tuple);
    }

    /// Writes how many tuples there are.
    fn count(&mut self) {
        if let Some(count) = self.out.get_mut(self.start + 3..self.start + 7) {
            count.copy_from_slice(&self.count.to_be_bytes());
        }
    }

    fn finish(mut self, space: &Space, position: Option<&str>) {
        self.count();
        let out = self.out;
        let keys = 1 + u8::from(position.is_some()) + u8::from(self.form == Form::Formatted);
        if let Some(map) = out.get_mut(self.start) {
            *map = 0x80 | keys;
        }
        if let Some(position) = position {
            out.push(key::POSITION);
            mp::put_str(out, position.as_bytes());
        }
        if self.form == Form::Formatted {
            out.push(key::TUPLE_FORMATS);
            mp::put_map(out, u32::from(self.count > 0));
            if self.count > 0 {
                mp::put_uint(out, space.id.into());
                space.format.write(out);
            }
        }
    }
}

/// Keys that decided a statement, with the position of their index.
type Decisive = SmallVec<[(usize, Key); 2]>;

impl Default for Engine {
    fn default() -> Self {
        Self::new()
    }
}

impl Engine {
    /// An engine with the system spaces and nothing else.
    pub fn new() -> Self {
        let mut engine = Engine {
            spaces: BTreeMap::new(),
            names: HashMap::new(),
            schema_version: 1,
            limits: Limits::default(),
            used: 0,
            txns: HashMap::new(),
            last_txn: 0,
            scratch: Vec::new(),
        };
        engine.create_system_spaces();
        engine
    }

    /// Sets the bounds of what may be stored from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Grows with every change of the schema; every response carries it.
    pub fn schema_version(&self) -> u64 {
        self.schema_version
    }

    /// Bytes of all tuples in the spaces of users.
    pub fn bytes_used(&self) -> usize {
        self.used
    }

    /// Executes one statement, in a transaction if one is named, and appends the body of its response: a map with DATA
    /// (0x30) and, when asked for and something was found, POSITION (0x35).
    ///
    /// # Errors
    /// Tarantool's; then nothing was changed and `out` is as before.
    pub fn execute(&mut self, statement: &Statement<'_>, txn: Option<TxnId>, out: &mut Vec<u8>) -> Result<()> {
        self.execute_as(statement, txn, Form::Plain, out)
    }

    /// As [`Engine::execute`], with each tuple as the extension 7, which names its format, and the formats in
    /// TUPLE_FORMATS (0x60): what clients with the feature `dml_tuple_extension` ask for.
    ///
    /// # Errors
    /// As [`Engine::execute`].
    pub fn execute_with_formats(
        &mut self,
        statement: &Statement<'_>,
        txn: Option<TxnId>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.execute_as(statement, txn, Form::Formatted, out)
    }

    fn execute_as(
        &mut self,
        statement: &Statement<'_>,
        txn: Option<TxnId>,
        form: Form,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let tuple = match *statement {
            Statement::Select(ref select) => return self.select_as(select, txn, form, None, out),
            Statement::Insert { space, tuple } => self.insert(space, tuple, txn).map(Some)?,
            Statement::Replace { space, tuple } => self.replace(space, tuple, txn).map(Some)?,
            Statement::Update { space, index, key, ops, base } => self.update(space, index, key, ops, base, txn)?,
            Statement::Delete { space, index, key } => self.delete(space, index, key, txn)?,
            Statement::Upsert { space, tuple, ops, base } => {
                self.upsert(space, tuple, ops, base, txn)?;
                None
            }
        };
        let mut body = ResponseBody::begin(form, out);
        if form == Form::Plain {
            if let Some(tuple) = tuple {
                body.count = 1;
                body.out.extend_from_slice(&tuple);
            }
            body.count();
            return Ok(());
        }
        let space = self.space(statement.space())?;
        if let Some(tuple) = tuple {
            body.push(space, &tuple);
        }
        body.finish(space, None);
        Ok(())
    }

    /// Executes a SELECT and appends the body of its response.
    ///
    /// # Errors
    /// Tarantool's; then `out` is as before.
    pub fn select(&mut self, select: &Select<'_>, txn: Option<TxnId>, out: &mut Vec<u8>) -> Result<()> {
        self.select_as(select, txn, Form::Plain, None, out)
    }

    /// As [`Engine::execute`], of a SELECT that leaves out what `sees` does not let through, as if it were not there.
    ///
    /// # Errors
    /// As [`Engine::execute`].
    pub fn select_visible(
        &mut self,
        select: &Select<'_>,
        txn: Option<TxnId>,
        with_formats: bool,
        sees: &Sees<'_>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let form = if with_formats { Form::Formatted } else { Form::Plain };
        self.select_as(select, txn, form, Some(sees), out)
    }

    fn select_as(
        &mut self,
        select: &Select<'_>,
        txn: Option<TxnId>,
        form: Form,
        sees: Option<&Sees<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let iterator = IteratorType::from_number(select.iterator)?;
        let view = self.view(select.space, txn)?;
        let position = find_index(view.space, select.index)?;
        let plan = view.plan_scan(position, iterator, select.key, select.after)?;
        if select.fetch_position {
            view.check_pagination(position)?;
        }
        let limit = u32::try_from(select.limit).unwrap_or(u32::MAX);
        let mut body = ResponseBody::begin(form, out);
        let mut last = None;
        let mut hidden = if sees.is_some() { select.offset } else { 0 };
        let mut scan = scan_from(&view, position, &plan, if sees.is_some() { 0 } else { select.offset });
        while body.count < limit {
            let Some((key, tuple)) = scan.next() else { break };
            if let Some(sees) = sees {
                if !sees(self, tuple) {
                    continue;
                }
                if hidden > 0 {
                    hidden -= 1;
                    continue;
                }
            }
            body.push(view.space, tuple);
            last = Some((key, tuple));
        }
        let complete = body.count < limit;
        let end = match last {
            Some((_, tuple)) if select.fetch_position => Some(view.pack_position(position, tuple)?),
            _ => None,
        };
        body.finish(view.space, end.as_deref());
        if txn.is_some() && limit > 0 {
            let (space, last) = (view.space.id, last.map(|(key, _)| key.clone()));
            self.track_scan(txn, space, position, plan, last.filter(|_| !complete));
        }
        Ok(())
    }

    /// The tuple of a whole key of a unique index.
    ///
    /// # Errors
    /// Tarantool's.
    pub fn get(
        &mut self,
        space: SpaceRef<'_>,
        index: IndexRef<'_>,
        key: &[u8],
        txn: Option<TxnId>,
    ) -> Result<Option<Tuple>> {
        let view = self.view(space, txn)?;
        let position = find_index(view.space, index)?;
        let key = view.exact_key(position, key)?;
        let (id, found) = (view.space.id, view.get(position, &key).cloned());
        self.track(txn, id, &[(position, key)]);
        Ok(found)
    }

    /// The first tuple whose key starts with `key` or follows it.
    ///
    /// # Errors
    /// Tarantool's.
    pub fn min(
        &mut self,
        space: SpaceRef<'_>,
        index: IndexRef<'_>,
        key: &[u8],
        txn: Option<TxnId>,
    ) -> Result<Option<Tuple>> {
        self.extreme(space, index, key, IteratorType::Ge, "min()", txn)
    }

    /// The last tuple whose key starts with `key` or precedes it.
    ///
    /// # Errors
    /// Tarantool's.
    pub fn max(
        &mut self,
        space: SpaceRef<'_>,
        index: IndexRef<'_>,
        key: &[u8],
        txn: Option<TxnId>,
    ) -> Result<Option<Tuple>> {
        self.extreme(space, index, key, IteratorType::Le, "max()", txn)
    }

    fn extreme(
        &mut self,
        space: SpaceRef<'_>,
        index: IndexRef<'_>,
        key: &[u8],
        iterator: IteratorType,
        what: &str,
        txn: Option<TxnId>,
    ) -> Result<Option<Tuple>> {
        let view = self.view(space, txn)?;
        let position = find_index(view.space, index)?;
        view.check_ordered(position, what)?;
        let plan = view.plan_scan(position, iterator, key, None)?;
        let found = view.scan(position, &plan.range, plan.reverse).next().map(|(k, t)| (k.clone(), t.clone()));
        let id = view.space.id;
        let (last, tuple) = found.unzip();
        self.track_scan(txn, id, position, plan, last);
        Ok(tuple)
    }

    /// How many tuples an iterator with that key would return.
    ///
    /// # Errors
    /// Tarantool's.
    pub fn count(
        &mut self,
        space: SpaceRef<'_>,
        index: IndexRef<'_>,
        iterator: u64,
        key: &[u8],
        txn: Option<TxnId>,
    ) -> Result<u64> {
        let iterator = IteratorType::from_number(iterator)?;
        let view = self.view(space, txn)?;
        let position = find_index(view.space, index)?;
        let plan = view.plan_scan(position, iterator, key, None)?;
        let count = view.scan(position, &plan.range, plan.reverse).count() as u64;
        let id = view.space.id;
        self.track_scan(txn, id, position, plan, None);
        Ok(count)
    }

    /// How many committed tuples an index holds.
    ///
    /// # Errors
    /// No such space or index.
    pub fn len(&self, space: SpaceRef<'_>, index: IndexRef<'_>) -> Result<u64> {
        let space = self.space(space)?;
        let position = find_index(space, index)?;
        Ok(space.indexes.get(position).map_or(0, |index| index.tree.len() as u64))
    }

    /// Starts a scan that [`Engine::next`] continues.
    ///
    /// # Errors
    /// Tarantool's.
    pub fn iterate(
        &self,
        space: SpaceRef<'_>,
        index: IndexRef<'_>,
        iterator: u64,
        key: &[u8],
        after: Option<After<'_>>,
        offset: u64,
    ) -> Result<Cursor> {
        let iterator = IteratorType::from_number(iterator)?;
        let view = View { space: self.space(space)?, overlays: None };
        let position = find_index(view.space, index)?;
        let plan = view.plan_scan(position, iterator, key, after)?;
        let index = view.index(position)?.id;
        Ok(Cursor { space: view.space.id, index, plan, offset })
    }

    /// The next tuple of a scan; nothing at its end, or when the space or the index is gone.
    ///
    /// # Errors
    /// The transaction was aborted.
    pub fn next(&mut self, cursor: &mut Cursor, txn: Option<TxnId>) -> Result<Option<Tuple>> {
        let Ok(view) = self.view(SpaceRef::Id(cursor.space), txn) else {
            return self.check_txn(txn).map(|()| None);
        };
        let Some(position) = view.space.index_position(cursor.index) else { return Ok(None) };
        let mut scan = scan_from(&view, position, &cursor.plan, std::mem::take(&mut cursor.offset));
        let found = scan.next().map(|(key, tuple)| (key.clone(), tuple.clone()));
        let step = cursor.plan.clone();
        let (last, tuple) = found.unzip();
        self.track_scan(txn, cursor.space, position, step, last.clone());
        if let Some(last) = last {
            let bound = if cursor.plan.reverse { &mut cursor.plan.range.to } else { &mut cursor.plan.range.from };
            *bound = Bound::Excluded(last);
            cursor.plan.point = None;
        }
        Ok(tuple)
    }

    /// Adds a tuple whose keys must be free in every unique index, and returns it.
    ///
    /// # Errors
    /// Tarantool's.
    pub fn insert(&mut self, space: SpaceRef<'_>, tuple: &[u8], txn: Option<TxnId>) -> Result<Tuple> {
        self.put(space, tuple, Conflict::Refuse, txn)
    }

    /// Adds a tuple, in place of the one that has its primary key, and returns it.
    ///
    /// # Errors
    /// Tarantool's.
    pub fn replace(&mut self, space: SpaceRef<'_>, tuple: &[u8], txn: Option<TxnId>) -> Result<Tuple> {
        self.put(space, tuple, Conflict::Replace, txn)
    }

    #[inline]
    fn put(&mut self, space: SpaceRef<'_>, tuple: &[u8], conflict: Conflict, txn: Option<TxnId>) -> Result<Tuple> {
        self.check_write(txn)?;
        let view = self.view_to_write(space, txn)?;
        if view.space.sequence.is_some() {
            let id = view.space.id;
            let completed = self.complete(id, tuple)?;
            return self.put_complete(SpaceRef::Id(id), completed.as_deref().unwrap_or(tuple), conflict, txn);
        }
        self.put_complete(space, tuple, conflict, txn)
    }

    /// Lets the sequence of a space fill in what the tuple leaves out.
    fn complete(&mut self, id: u32, tuple: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.spaces.get_mut(&id) {
            Some(Space { name, sequence: Some(sequence), .. }) => sequence.complete(name, tuple),
            _ => Ok(None),
        }
    }

    #[inline]
    fn put_complete(
        &mut self,
        space: SpaceRef<'_>,
        tuple: &[u8],
        conflict: Conflict,
        txn: Option<TxnId>,
    ) -> Result<Tuple> {
        if conflict == Conflict::Replace
            && self.txns.is_empty()
            && let Some(new) = self.replace_in_place(space, tuple)
        {
            return Ok(new);
        }
        let view = self.view_to_write(space, txn)?;
        view.space.index_by_id(0)?;
        view.space.format.validate(tuple).map_err(|error| view.space.label(error))?;
        self.check_size(tuple.len())?;
        let (id, new) = (view.space.id, Tuple::from(tuple));
        if conflict == Conflict::Replace && self.txns.is_empty() && view.space.indexes.len() == 1 {
            self.put_unseen(id, &new);
            return Ok(new);
        }
        let mut decisive = Decisive::new();
        let change = view.plan(None, new.clone(), conflict, note(&mut decisive, txn));
        self.track(txn, id, &decisive);
        self.make(id, &change?, txn)?;
        Ok(new)
    }

    /// As [`Engine::update_in_place`], for a REPLACE in a space with more than one index.
    #[inline]
    fn replace_in_place(&mut self, space: SpaceRef<'_>, tuple: &[u8]) -> Option<Tuple> {
        let (limits, used) = (self.limits, self.used);
        let space = self.space_to_change(space).filter(|space| space.indexes.len() > 1)?;
        let (primary, others) = space.indexes.split_first_mut()?;
        if primary.id != 0 || tuple.len() > limits.tuple || !space.format.is_valid(tuple) {
            return None;
        }
        let key = primary.key.of_tuple(tuple)?;
        let slot = primary.tree.get_mut(&key)?;
        let (new, old) = change_in_place(slot, others, tuple, limits.memory.saturating_sub(used))?;
        self.used = (used + new.len()).saturating_sub(old);
        Some(new)
    }

    /// Replaces where no other index can object and no transaction looks on: one walk down the tree.
    #[inline]
    fn put_unseen(&mut self, id: u32, new: &Tuple) {
        let Some(index) = self.spaces.get_mut(&id).and_then(|space| space.indexes.first_mut()) else { return };
        let Some(key) = index.key.of_tuple(new) else { return };
        let old = index.tree.insert(key, new.clone()).map_or(0, |old| old.len());
        self.used = (self.used + new.len()).saturating_sub(old);
    }

    /// Changes the tuple of a whole key of a unique index, and returns what it has become; nothing if there is none.
    ///
    /// # Errors
    /// Tarantool's.
    pub fn update(
        &mut self,
        space: SpaceRef<'_>,
        index: IndexRef<'_>,
        key: &[u8],
        ops: &[u8],
        base: u64,
        txn: Option<TxnId>,
    ) -> Result<Option<Tuple>> {
        self.check_write(txn)?;
        if self.txns.is_empty() && index == IndexRef::Id(0) {
            let done = self.update_in_place(space, |_, primary| primary.of_usual_key(key), ops, base);
            if done.is_some() {
                return Ok(done);
            }
        }
        let view = self.view_to_write(space, txn)?;
        let position = find_index(view.space, index)?;
        let key = view.exact_key(position, key)?;
        let id = view.space.id;
        let Some(old) = view.get(position, &key).cloned() else {
            self.track(txn, id, &[(position, key)]);
            return Ok(None);
        };
        let mut decisive = Decisive::new();
        decisive.push((position, key));
        let label = |error| view.space.label_index(position, error);
        let format = &view.space.format;
        let changed = Operations::decode(ops, base, format)
            .and_then(|ops| ops.apply(&old, format, Mode::Update, self.limits.tuple))
            .and_then(|new| format.validate(&new).map(|()| new))
            .map_err(label)?;
        self.check_size(changed.len())?;
        let new = Tuple::from(changed);
        let change = view.plan(Some(&old), new.clone(), Conflict::Same, note(&mut decisive, txn));
        self.track(txn, id, &decisive);
        self.make(id, &change?, txn)?;
        Ok(Some(new))
    }

    /// Changes the tuple that has the primary key which `key_of` gives, where no transaction looks on and nothing objects:
    /// the usual case, with one walk down the tree. Nothing was done, and nothing is said of why, where it is not that.
    #[inline]
    fn update_in_place(
        &mut self,
        space: SpaceRef<'_>,
        key_of: impl FnOnce(&Format, &KeyDef) -> Option<Key>,
        ops: &[u8],
        base: u64,
    ) -> Option<Tuple> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let done = self.update_found(space, key_of, ops, base, &mut scratch);
        self.scratch = scratch;
        done
    }

    #[inline(always)]
    fn update_found(
        &mut self,
        space: SpaceRef<'_>,
        key_of: impl FnOnce(&Format, &KeyDef) -> Option<Key>,
        ops: &[u8],
        base: u64,
        scratch: &mut Vec<u8>,
    ) -> Option<Tuple> {
        let (limits, used) = (self.limits, self.used);
        let space = self.space_to_change(space)?;
        let format = &space.format;
        let (primary, others) = space.indexes.split_first_mut()?;
        if primary.id != 0 {
            return None;
        }
        let key = key_of(format, &primary.key)?;
        let slot = primary.tree.get_mut(&key)?;
        let ops = Operations::decode(ops, base, format).ok()?;
        scratch.clear();
        let fits = ops.apply_in_one_pass(slot, format, limits.tuple, scratch)
            && format.is_valid(scratch)
            && primary.key.of_tuple(scratch).as_ref() == Some(&key);
        if !fits {
            return None;
        }
        let new = change_in_place(slot, others, scratch, limits.memory.saturating_sub(used))?;
        self.used = (used + new.0.len()).saturating_sub(new.1);
        Some(new.0)
    }

    /// The space, unless it is the system's or not there.
    fn space_to_change(&mut self, space: SpaceRef<'_>) -> Option<&mut Space> {
        let id = match space {
            SpaceRef::Id(id) => id,
            SpaceRef::Name(name) => *self.names.get(name)?,
        };
        self.spaces.get_mut(&id).filter(|space| !space.is_system())
    }

    /// Adds a tuple if its primary key is free, else changes the tuple that has it; operations that do not fit that
    /// tuple are left out.
    ///
    /// # Errors
    /// Tarantool's.
    pub fn upsert(
        &mut self,
        space: SpaceRef<'_>,
        tuple: &[u8],
        ops: &[u8],
        base: u64,
        txn: Option<TxnId>,
    ) -> Result<()> {
        self.check_write(txn)?;
        if self.txns.is_empty() {
            let key_of =
                |format: &Format, primary: &KeyDef| if format.is_valid(tuple) { primary.of_tuple(tuple) } else { None };
            if self.update_in_place(space, key_of, ops, base).is_some() {
                return Ok(());
            }
        }
        let view = self.view_to_write(space, txn)?;
        let space = view.space;
        let label = |error| space.label(error);
        space.format.validate(tuple).map_err(label)?;
        space.index_by_id(0)?;
        let primary = view.index(0)?;
        let Some(key) = primary.key.of_tuple(tuple) else { return Ok(()) };
        let old = view.get(0, &key).cloned();
        let ops = Operations::decode(ops, base, &space.format).map_err(label)?;
        let new = match &old {
            None => Tuple::from(tuple),
            Some(old) => {
                let new = ops.apply(old, &space.format, Mode::Upsert, self.limits.tuple).map_err(label)?;
                space.format.validate(&new).map_err(label)?;
                // An attempt to change the primary key does nothing.
                if primary.key.of_tuple(&new).as_ref() != Some(&key) {
                    return Ok(());
                }
                Tuple::from(new)
            }
        };
        self.check_size(new.len())?;
        let mut decisive = Decisive::new();
        decisive.push((0, key));
        let id = space.id;
        let change = view.plan(old.as_ref(), new, Conflict::Replace, note(&mut decisive, txn));
        self.track(txn, id, &decisive);
        self.make(id, &change?, txn)
    }

    /// Removes the tuple of a whole key of a unique index, and returns it.
    ///
    /// # Errors
    /// Tarantool's.
    pub fn delete(
        &mut self,
        space: SpaceRef<'_>,
        index: IndexRef<'_>,
        key: &[u8],
        txn: Option<TxnId>,
    ) -> Result<Option<Tuple>> {
        self.check_write(txn)?;
        let view = self.view_to_write(space, txn)?;
        let position = find_index(view.space, index)?;
        let key = view.exact_key(position, key)?;
        let (id, old) = (view.space.id, view.get(position, &key).cloned());
        self.track(txn, id, &[(position, key)]);
        if old.is_some() {
            self.make(id, &Change { old: old.clone(), new: None }, txn)?;
        }
        Ok(old)
    }

    /// Opens a transaction.
    pub fn begin(&mut self) -> TxnId {
        self.last_txn += 1;
        let id = TxnId(self.last_txn);
        self.txns.insert(id, Txn::new());
        id
    }

    /// Makes the changes of a transaction, all or none, and ends it. An unknown transaction is one that has ended.
    ///
    /// # Errors
    /// `Transaction has been aborted by conflict`; then it has been rolled back.
    pub fn commit(&mut self, txn: TxnId) -> Result<()> {
        let Some(txn) = self.txns.remove(&txn) else { return Ok(()) };
        txn.check()?;
        let mut changes = Vec::new();
        for (id, overlay) in txn.into_changes() {
            let Some(space) = self.spaces.get(&id) else { continue };
            for (key, new) in overlay {
                let old = space.indexes.first().and_then(|index| index.tree.get(&key)).cloned();
                if old.is_some() || new.is_some() {
                    changes.push((id, Change { old, new }));
                }
            }
        }
        // Old tuples leave first: new ones may take each other's keys in a secondary index.
        for (id, change) in &changes {
            self.apply(*id, &Change { old: change.old.clone(), new: None }, Some(change));
        }
        for (id, change) in changes {
            self.apply(id, &Change { old: None, new: change.new }, None);
        }
        Ok(())
    }

    /// Drops the changes of a transaction and ends it.
    pub fn rollback(&mut self, txn: TxnId) {
        self.txns.remove(&txn);
    }

    /// Whether the transaction is still open, aborted or not.
    pub fn is_open(&self, txn: TxnId) -> bool {
        self.txns.contains_key(&txn)
    }

    /// Makes a planned change: aside in a transaction, or at once.
    fn make(&mut self, id: u32, change: &Change, txn: Option<TxnId>) -> Result<()> {
        if let Some(txn) = txn {
            let (Some(space), Some(txn)) = (self.spaces.get(&id), self.txns.get_mut(&txn)) else { return Ok(()) };
            txn.write(space, change);
        } else {
            self.apply(id, change, Some(change));
        }
        Ok(())
    }

    /// Changes what is committed, after telling the open transactions of `told`.
    fn apply(&mut self, id: u32, change: &Change, told: Option<&Change>) {
        let Some(space) = self.spaces.get_mut(&id) else { return };
        if let Some(told) = told {
            for txn in self.txns.values_mut() {
                txn.notice(space, told);
            }
        }
        let size = |tuple: &Option<Tuple>| tuple.as_ref().map_or(0, |t| t.len());
        self.used = (self.used + size(&change.new)).saturating_sub(size(&change.old));
        space.apply(change);
    }

    /// Tells the transactions that a space's definition changes.
    pub(super) fn notice_schema_change(&mut self, space: u32) {
        self.schema_version += 1;
        self.abort_readers(space);
    }

    /// Ends the transactions that have to do with a space whose tuples all go.
    pub(super) fn abort_readers(&mut self, space: u32) {
        for txn in self.txns.values_mut() {
            txn.notice_schema_change(space);
        }
    }

    fn check_size(&self, size: usize) -> Result<()> {
        if size > self.limits.tuple {
            return Err(too_large(size, self.limits.tuple));
        }
        let pending: usize = self.txns.values().map(Txn::bytes).sum();
        if self.used + pending + size > self.limits.memory { Err(BoxError::memory(size)) } else { Ok(()) }
    }

    /// The space of that id or name.
    ///
    /// # Errors
    /// `Space 'x' does not exist`.
    #[inline]
    pub(super) fn space(&self, space: SpaceRef<'_>) -> Result<&Space> {
        let id = match space {
            SpaceRef::Id(id) => Some(id),
            SpaceRef::Name(name) => self.names.get(name).copied(),
        };
        id.and_then(|id| self.spaces.get(&id)).ok_or_else(|| no_such_space(space))
    }

    fn check_txn(&self, txn: Option<TxnId>) -> Result<()> {
        txn.and_then(|txn| self.txns.get(&txn)).map_or(Ok(()), Txn::check)
    }

    #[inline]
    fn view(&self, space: SpaceRef<'_>, txn: Option<TxnId>) -> Result<View<'_>> {
        let space = self.space(space)?;
        let Some(txn) = txn.and_then(|txn| self.txns.get(&txn)) else { return Ok(View { space, overlays: None }) };
        txn.check()?;
        Ok(View { space, overlays: txn.overlays(space.id) })
    }

    /// Refuses to write in a transaction that cannot be committed.
    #[inline]
    fn check_write(&mut self, txn: Option<TxnId>) -> Result<()> {
        txn.and_then(|txn| self.txns.get_mut(&txn)).map_or(Ok(()), Txn::check_write)
    }

    #[inline]
    fn view_to_write(&self, space: SpaceRef<'_>, txn: Option<TxnId>) -> Result<View<'_>> {
        let view = self.view(space, txn)?;
        if view.space.is_system() { Err(read_only(view.space)) } else { Ok(view) }
    }

    fn track(&mut self, txn: Option<TxnId>, space: u32, keys: &[(usize, Key)]) {
        let Some(txn) = txn.and_then(|txn| self.txns.get_mut(&txn)) else { return };
        for (position, key) in keys {
            txn.track_point(space, *position, key);
        }
    }

    /// Remembers a scan: up to `last`, or all of it.
    fn track_scan(&mut self, txn: Option<TxnId>, space: u32, position: usize, plan: Plan, last: Option<Key>) {
        let Some(txn) = txn.and_then(|txn| self.txns.get_mut(&txn)) else { return };
        if let Some(key) = plan.point {
            return txn.track_point(space, position, &key);
        }
        let mut range = plan.range;
        match last {
            Some(last) if plan.reverse => range.from = Bound::Included(last),
            Some(last) => range.to = Bound::Included(last),
            None => {}
        }
        txn.track_range(space, position, range);
    }
}

/// Puts `bytes`, which have its primary key, into the place of a tuple if they fit the memory there is and what the other
/// indexes hold. Gives the new tuple and the size of the old one.
#[inline]
fn change_in_place(slot: &mut Tuple, others: &mut [Index], bytes: &[u8], memory: usize) -> Option<(Tuple, usize)> {
    if bytes.len() > memory {
        return None;
    }
    let mut keys: SmallVec<[(Option<Key>, Option<Key>); 2]> = SmallVec::new();
    for index in others.iter() {
        let (old, new) = (index.key.of_tuple(slot), index.key.of_tuple(bytes));
        if old != new && new.as_ref().is_some_and(|key| index.tree.contains_key(key)) {
            return None;
        }
        keys.push((old, new));
    }
    let new = Tuple::from(bytes);
    for (index, keys) in others.iter_mut().zip(keys) {
        match keys {
            (Some(old), Some(key)) if old == key => {
                if let Some(other) = index.tree.get_mut(&key) {
                    *other = new.clone();
                }
            }
            (old, key) => {
                old.map(|old| index.tree.remove(&old));
                key.map(|key| index.tree.insert(key, new.clone()));
            }
        }
    }
    let old = std::mem::replace(slot, new.clone());
    Some((new, old.len()))
}

/// Collects the keys that decide a statement, for the transaction that must notice when they change.
fn note(keys: &mut Decisive, txn: Option<TxnId>) -> impl FnMut(usize, &Key) {
    move |position, key| {
        if txn.is_some() {
            keys.push((position, key.clone()));
        }
    }
}

fn scan_from<'a>(view: &View<'a>, position: usize, plan: &Plan, offset: u64) -> super::space::Scan<'a> {
    let mut scan = match &plan.point {
        Some(key) => view.scan_point(position, key),
        None => view.scan(position, &plan.range, plan.reverse),
    };
    if offset > 0 {
        scan.nth(usize::try_from(offset - 1).unwrap_or(usize::MAX));
    }
    scan
}

#[inline]
fn find_index(space: &Space, index: IndexRef<'_>) -> Result<usize> {
    match index {
        IndexRef::Id(id) => space.index_by_id(id),
        IndexRef::Name(name) => space.index_by_name(name),
    }
}

#[cold]
fn no_such_space(space: SpaceRef<'_>) -> BoxError {
    let name = match space {
        SpaceRef::Id(id) => id.to_string(),
        SpaceRef::Name(name) => String::from_utf8_lossy(name).into_owned(),
    };
    BoxError::client(error::NO_SUCH_SPACE, format!("Space '{name}' does not exist")).with("space", Field::Str(&name))
}

#[cold]
fn read_only(space: &Space) -> BoxError {
    let name = &space.name;
    if space.engine == "sysview" {
        return BoxError::client(error::VIEW_IS_RO, format!("View '{name}' is read-only"))
            .with("space", Field::Str(name));
    }
    BoxError::access("Write", "space", name, "guest")
}
