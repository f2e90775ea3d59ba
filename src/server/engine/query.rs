//! What a SELECT asks for: iterator types, checks of keys and positions, bounds of the scan.
//!
//! Source: `iterator_validate`, `exact_key_validate`, `iterator_position_validate` of `src/box/index.cc` and
//! `memtx_tree_lookup` of `src/box/memtx_tree.cc`, Tarantool 3.9-dev.

use super::error::{self, BoxError, Field, Result};
use super::key::{AFTER, Key, KeyBytes, successor};
use super::mp;
use super::space::{Index, IndexKind, Range, Space, View};
use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use std::cmp::Ordering;
use std::ops::Bound;

/// How a key selects tuples, in Tarantool's numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum IteratorType {
    /// Equal, ascending.
    Eq = 0,
    /// Equal, descending.
    Req = 1,
    /// Everything; with a key as `Ge`.
    All = 2,
    /// Less, descending.
    Lt = 3,
    /// Less or equal, descending.
    Le = 4,
    /// Greater or equal, ascending.
    Ge = 5,
    /// Greater, ascending.
    Gt = 6,
    /// Bitset indexes only.
    BitsAllSet = 7,
    /// Bitset indexes only.
    BitsAnySet = 8,
    /// Bitset indexes only.
    BitsAllNotSet = 9,
    /// Spatial indexes only.
    Overlaps = 10,
    /// Spatial indexes only.
    Neighbor = 11,
    /// After all strings that start with the key's last part.
    NextPrefix = 12,
    /// Before all strings that start with the key's last part.
    PreviousPrefix = 13,
}

impl IteratorType {
    /// The type of that number.
    ///
    /// # Errors
    /// `Invalid iterator type`.
    pub fn from_number(number: u64) -> Result<Self> {
        use IteratorType::*;
        const TYPES: [IteratorType; 14] = [
            Eq,
            Req,
            All,
            Lt,
            Le,
            Ge,
            Gt,
            BitsAllSet,
            BitsAnySet,
            BitsAllNotSet,
            Overlaps,
            Neighbor,
            NextPrefix,
            PreviousPrefix,
        ];
        let found = usize::try_from(number).ok().and_then(|n| TYPES.get(n)).copied();
        found.ok_or_else(|| BoxError::illegal("Invalid iterator type"))
    }

    fn is_reverse(self) -> bool {
        use IteratorType::*;
        matches!(self, Req | Lt | Le | PreviousPrefix)
    }

    fn is_equality(self) -> bool {
        matches!(self, IteratorType::Eq | IteratorType::Req)
    }

    fn is_prefix(self) -> bool {
        matches!(self, IteratorType::NextPrefix | IteratorType::PreviousPrefix)
    }
}

/// Where a scan that continues an earlier one starts.
#[derive(Clone, Copy, Debug)]
pub enum After<'a> {
    /// Behind a packed position (empty: from the start).
    Position(&'a [u8]),
    /// Behind a tuple.
    Tuple(&'a [u8]),
}

/// A scan ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) range: Range,
    pub(crate) reverse: bool,
    /// The one key the scan can find, if it is a whole key of a unique index.
    pub(crate) point: Option<Key>,
}

impl Plan {
    /// The scan of one whole key of a unique index.
    fn of_point(key: Key) -> Self {
        let bound = Bound::Included(key.clone());
        Plan { range: Range { from: bound.clone(), to: bound }, reverse: false, point: Some(key) }
    }
}

/// Splits a key, a MessagePack array, into its number of parts and their bytes.
pub(crate) fn key_parts(key: &[u8]) -> Result<(u32, &[u8])> {
    let not_array = || BoxError::client(error::TUPLE_NOT_ARRAY, "Tuple/Key must be MsgPack array");
    let (count, values) = mp::array(key).ok_or_else(not_array)?;
    if mp::skip(key) != Some(key.len()) {
        return Err(BoxError::msgpack("packet body"));
    }
    Ok((count, values))
}

fn unsupported(space: &Space, index: &Index, feature: &str) -> BoxError {
    let (name, kind, engine) = (&index.name, index.kind.name(), space.engine);
    let message = format!("Index '{name}' ({kind}) of space '{}' ({engine}) does not support {feature}", space.name);
    BoxError::client(error::UNSUPPORTED_INDEX_FEATURE, message)
        .with("index", Field::Str(name))
        .with("index_type", Field::Str(kind))
        .with("space", Field::Str(&space.name))
        .with("engine", Field::Str(engine))
        .with("feature", Field::Str(feature))
}

impl View<'_> {
    /// The index at `position`, which a lookup gave.
    pub(crate) fn index(&self, position: usize) -> Result<&Index> {
        let space = self.space;
        space.indexes.get(position).ok_or_else(|| space.index_by_id(u32::MAX).err().unwrap_or_else(unreachable_index))
    }

    /// Checks an iterator and a key, and turns them into bounds.
    pub(crate) fn plan_scan(
        &self,
        position: usize,
        iterator: IteratorType,
        key: &[u8],
        after: Option<After<'_>>,
    ) -> Result<Plan> {
        let index = self.index(position)?;
        if iterator == IteratorType::Eq
            && after.is_none()
            && index.unique
            && let Some(key) = index.key.of_usual_key(key)
            && !index.key.has_nullable()
        {
            return Ok(Plan::of_point(key));
        }
        let (count, values) = key_parts(key)?;
        self.check_iterator(index, iterator, count)?;
        let wrong_key = |error: BoxError| self.space.label_index(position, error).with("key", Field::Raw(key));
        if !(count == 0 && any_key(index.kind, iterator)) {
            check_key(index, count, values).map_err(wrong_key)?;
        }
        let after = match after {
            None | Some(After::Position([])) => None,
            Some(after) => Some(self.unpack_position(index, iterator, count, values, after)?),
        };
        Ok(bounds(index, iterator, count, values, after))
    }

    fn check_iterator(&self, index: &Index, iterator: IteratorType, count: u32) -> Result<()> {
        use IteratorType::*;
        let supported = match index.kind {
            IndexKind::Tree => matches!(iterator, Eq | Req | All | Lt | Le | Ge | Gt | NextPrefix | PreviousPrefix),
            IndexKind::Hash => matches!(iterator, Eq | All | Gt),
        };
        if !supported {
            return Err(unsupported(self.space, index, "requested iterator type"));
        }
        let last = count.checked_sub(1).and_then(|n| index.key.own_parts().get(n as usize));
        if iterator.is_prefix() && last.is_some_and(|part| part.collation.is_some()) {
            return Err(unsupported(self.space, index, "requested iterator type along with collation"));
        }
        Ok(())
    }

    fn unpack_position(
        &self,
        index: &Index,
        iterator: IteratorType,
        count: u32,
        values: &[u8],
        after: After<'_>,
    ) -> Result<Key> {
        let invalid = || BoxError::client(error::ITERATOR_POSITION, "Iterator position is invalid");
        let packed = match after {
            After::Position(packed) => BASE64.decode(packed).map_err(|_| invalid())?,
            After::Tuple(tuple) => {
                key_parts(tuple).map_err(|_| invalid())?;
                index.key.position_of(tuple)
            }
        };
        if index.kind == IndexKind::Hash {
            return Err(unsupported(self.space, index, "pagination"));
        }
        let (parts, position) = key_parts(&packed).map_err(|_| invalid())?;
        if parts as usize != index.key.position_parts() || index.key.check_key(parts, position, true).is_err() {
            return Err(invalid());
        }
        let position = index.key.of_position(position).ok_or_else(invalid)?;
        let key = index.key.of_key(count, values);
        let order = if position.starts_with(&key) { Ordering::Equal } else { position[..].cmp(key.as_slice()) };
        let wrong_side = if iterator.is_reverse() { order.is_gt() } else { order.is_lt() };
        if wrong_side || (iterator.is_equality() && order.is_ne()) {
            return Err(invalid());
        }
        Ok(position)
    }

    /// The packed position of a tuple that a scan of the index returned.
    pub(crate) fn pack_position(&self, position: usize, tuple: &[u8]) -> Result<String> {
        let index = self.index(position)?;
        Ok(BASE64.encode(index.key.position_of(tuple)))
    }

    /// Refuses pagination where the index has no order.
    pub(crate) fn check_pagination(&self, position: usize) -> Result<()> {
        match self.index(position)? {
            index if index.kind == IndexKind::Hash => Err(unsupported(self.space, index, "pagination")),
            _ => Ok(()),
        }
    }

    /// The key of GET, DELETE and UPDATE: whole, of a unique index, without null.
    #[inline]
    pub(crate) fn exact_key(&self, position: usize, key: &[u8]) -> Result<Key> {
        let index = self.index(position)?;
        match index.key.of_usual_key(key) {
            Some(key) if index.unique => Ok(key),
            _ => self.exact_key_checked(position, index, key),
        }
    }

    fn exact_key_checked(&self, position: usize, index: &Index, key: &[u8]) -> Result<Key> {
        let (count, values) = key_parts(key)?;
        if !index.unique {
            let message = "Get() doesn't support partial keys and non-unique indexes";
            return Err(self.space.label_index(position, BoxError::client(error::MORE_THAN_ONE_TUPLE, message)));
        }
        let wrong_key = |error: BoxError| self.space.label_index(position, error.with("key", Field::Raw(key)));
        let expected = index.key.own as u32;
        if count != expected {
            let message = format!("Invalid key part count in an exact match (expected {expected}, got {count})");
            return Err(wrong_key(
                BoxError::client(error::EXACT_MATCH, message)
                    .with("expected", Field::Uint(expected.into()))
                    .with("actual", Field::Uint(count.into())),
            ));
        }
        index.key.check_key(count, values, false).map_err(wrong_key)?;
        Ok(index.key.of_key(count, values).into())
    }

    /// Refuses `min`, `max` and the like on an index without order.
    pub(crate) fn check_ordered(&self, position: usize, feature: &str) -> Result<()> {
        match self.index(position)? {
            index if index.kind == IndexKind::Hash => Err(unsupported(self.space, index, feature)),
            _ => Ok(()),
        }
    }
}

/// An index whose position was found is there.
#[cold]
fn unreachable_index() -> BoxError {
    BoxError::illegal("index was dropped")
}

/// Positions are base64 without padding; with it they are read too.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Whether the iterator may come without a key.
fn any_key(kind: IndexKind, iterator: IteratorType) -> bool {
    kind == IndexKind::Tree || matches!(iterator, IteratorType::All | IteratorType::Gt)
}

fn check_key(index: &Index, count: u32, values: &[u8]) -> Result<()> {
    let parts = index.key.own as u32;
    if count > parts {
        let message = format!("Invalid key part count (expected [0..{parts}], got {count})");
        return Err(BoxError::client(error::KEY_PART_COUNT, message)
            .with("max", Field::Uint(parts.into()))
            .with("value", Field::Uint(count.into())));
    }
    if index.kind == IndexKind::Hash && count < parts {
        let message = format!(
            "HASH index  does not support selects via a partial key (expected {parts} parts, got {count}). \
             Please Consider changing index type to TREE."
        );
        return Err(BoxError::client(error::PARTIAL_KEY, message)
            .with("index_type", Field::Str("HASH"))
            .with("expected", Field::Uint(parts.into()))
            .with("actual", Field::Uint(count.into())));
    }
    index.key.check_key(count, values, true)
}

fn bounds(index: &Index, iterator: IteratorType, count: u32, values: &[u8], after: Option<Key>) -> Plan {
    use IteratorType::*;
    let reverse = iterator.is_reverse();
    let mut range = Range { from: Bound::Unbounded, to: Bound::Unbounded };
    let mut point = None;
    if count > 0 {
        let key = index.key.of_key(count, values);
        let is_whole = count as usize == index.key.own && index.unique && !index.key.has_nullable();
        point = (is_whole && iterator.is_equality() && after.is_none()).then(|| key.clone().into());
        let behind = |mut key: KeyBytes| {
            key.push(AFTER);
            Key::from(key)
        };
        match iterator {
            Eq | Req => {
                range.to = Bound::Excluded(behind(key.clone()));
                range.from = Bound::Included(key.into());
            }
            Le => range.to = Bound::Excluded(behind(key)),
            Lt => range.to = Bound::Excluded(key.into()),
            Gt => range.from = Bound::Included(behind(key)),
            NextPrefix | PreviousPrefix => range = prefix_range(index, iterator, count, values, key),
            _ => range.from = Bound::Included(key.into()),
        }
    }
    match after {
        Some(after) if reverse => range.to = Bound::Excluded(after),
        Some(after) => range.from = Bound::Excluded(after),
        None => {}
    }
    Plan { range, reverse, point }
}

/// The strings behind, or before, all that start with the last part; other values are just passed.
fn prefix_range(index: &Index, iterator: IteratorType, count: u32, values: &[u8], mut key: KeyBytes) -> Range {
    let descending = index.key.own_parts().get(count as usize - 1).is_some_and(|part| part.descending);
    let forward = iterator == IteratorType::NextPrefix;
    let prefix = index.key.string_prefix(count, values).filter(|_| forward != descending);
    let nothing = Range { from: Bound::Unbounded, to: Bound::Excluded(KeyBytes::new().into()) };
    match (forward, prefix) {
        // Every string starts with the empty one.
        (_, Some(_)) if is_empty_string(count, values) => nothing,
        (true, Some(prefix)) => match successor(prefix) {
            Some(next) => Range { from: Bound::Included(next.into()), to: Bound::Unbounded },
            None => nothing,
        },
        (true, None) => {
            key.push(AFTER);
            Range { from: Bound::Included(key.into()), to: Bound::Unbounded }
        }
        (false, Some(prefix)) => Range { from: Bound::Unbounded, to: Bound::Excluded(prefix.into()) },
        (false, None) => Range { from: Bound::Unbounded, to: Bound::Excluded(key.into()) },
    }
}

fn is_empty_string(count: u32, mut values: &[u8]) -> bool {
    let mut last = None;
    for _ in 0..count {
        last = mp::take(&mut values);
    }
    last.and_then(mp::read).is_some_and(|(value, _)| value == mp::Value::Str(&[]))
}
