//! Keys: parts of an index, and the bytes their values are sorted by.
//!
//! A key is encoded so that comparing two keys byte by byte compares the values as Tarantool does:
//! nil < boolean < number < string < varbinary < uuid < datetime, numbers of all kinds on one scale. Each part ends by
//! itself, so the encoding of a partial key is a prefix of that of every key it selects, and no encoding contains a first
//! byte of `0xff`: a key followed by [`AFTER`] lies after all it selects.

use super::collation::Collation;
use super::error::{self, BoxError, Field, Result};
use super::mp::{self, Value};
use super::number::{self, Decimal};
use super::types::{FieldType, extension_is_valid};
use crate::iproto::mp as put;
use smallvec::SmallVec;
use std::cmp::Ordering;

/// The bytes of a key under construction.
pub(crate) type KeyBytes = SmallVec<[u8; 16]>;

/// An encoded key. Short ones stay inside the tree's node, and the first bytes decide most comparisons as one number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// The first eight bytes, filled up with zeros.
    head: u64,
    bytes: KeyBytes,
}

impl From<KeyBytes> for Key {
    #[inline]
    fn from(bytes: KeyBytes) -> Self {
        let head = match bytes.first_chunk() {
            Some(first) => u64::from_be_bytes(*first),
            None => bytes.iter().rev().fold(0, |head, byte| (head >> 8) | (u64::from(*byte) << 56)),
        };
        Key { head, bytes }
    }
}

impl std::ops::Deref for Key {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Ord for Key {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        match self.head.cmp(&other.head) {
            Ordering::Equal if self.bytes.len() <= 8 && other.bytes.len() <= 8 => {
                self.bytes.len().cmp(&other.bytes.len())
            }
            Ordering::Equal => self.bytes.cmp(&other.bytes),
            order => order,
        }
    }
}

impl PartialOrd for Key {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Appended to a key: after every key that starts with it.
pub(crate) const AFTER: u8 = 0xff;

const NIL: u8 = 0x10;
const BOOL: u8 = 0x11;
/// Numbers where doubles or decimals may be among them.
const NUMBER: u8 = 0x20;
/// Integers where only such are: zero, with the number of bytes added; below it the negative ones.
const INTEGER: u8 = 0x20;
const STR: u8 = 0x30;
const BIN: u8 = 0x38;
const UUID: u8 = 0x40;
const DATETIME: u8 = 0x48;

/// One part of an index.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Number of the field, from 0.
    pub field: u32,
    /// What the field must hold.
    pub kind: FieldType,
    /// Whether null, or a missing field, is a value of the part.
    pub is_nullable: bool,
    /// Whether tuples with null here stay out of the index.
    pub exclude_null: bool,
    /// How strings are compared; none: by bytes.
    pub collation: Option<Collation>,
    /// Whether the part sorts from high to low.
    pub descending: bool,
}

impl Part {
    /// A part over field `field` (from 0) of type `kind`, without options.
    pub fn new(field: u32, kind: FieldType) -> Self {
        Part { field, kind, is_nullable: false, exclude_null: false, collation: None, descending: false }
    }

    /// Appends the value's sort key; what is not comparable (it was refused before) sorts last.
    #[inline]
    fn encode(&self, value: Value<'_>, out: &mut KeyBytes) {
        let start = out.len();
        match value {
            Value::Nil => out.push(NIL),
            Value::Uint(n) if self.kind.is_integral() => push_unsigned(out, n),
            Value::Int(n) if self.kind.is_integral() => push_signed(out, n),
            Value::Str(s) => match self.collation {
                None => push_bytes(out, STR, s),
                Some(collation) => push_bytes(out, STR, &collation.sort_key(s)),
            },
            other => encode_rare(other, out),
        }
        if self.descending
            && let Some(own) = out.get_mut(start..)
        {
            own.iter_mut().for_each(|b| *b = !*b);
        }
    }

    /// Refuses a key's value that the part cannot hold.
    fn check(&self, number: u32, raw: &[u8], allow_null: bool) -> Result<usize> {
        let (value, _) = mp::read(raw).ok_or_else(|| BoxError::msgpack("key"))?;
        if value == Value::Nil && self.is_nullable && allow_null {
            return Ok(1);
        }
        if !self.kind.admits(&value) {
            let expected = self.kind.name();
            let message =
                format!("Supplied key type of part {number} does not match index part type: expected {expected}");
            return Err(BoxError::client(error::KEY_PART_TYPE, message)
                .with("partno", Field::Uint(number.into()))
                .with("expected", Field::Str(expected)));
        }
        if let Value::Ext(kind, body) = value
            && !extension_is_valid(kind, body)
        {
            return Err(BoxError::msgpack("invalid extension"));
        }
        self.check_range(number, &value, raw)?;
        mp::skip(raw).ok_or_else(|| BoxError::msgpack("key"))
    }

    fn check_range(&self, number: u32, value: &Value<'_>, raw: &[u8]) -> Result<()> {
        let (Some((min, max)), Some(n)) = (self.kind.range(), integer(value)) else { return Ok(()) };
        if (min..=max).contains(&n) {
            return Ok(());
        }
        let message = "The value of key part exceeds the supported range for type";
        Err(range_fields(
            BoxError::client(error::KEY_PART_VALUE_OUT_OF_RANGE, message)
                .with("partno", Field::Uint(number.into()))
                .with("field_type", Field::Str(self.kind.name())),
            raw,
            min,
            max,
        ))
    }
}

/// The integer a value is.
pub(crate) fn integer(value: &Value<'_>) -> Option<i128> {
    match value {
        Value::Uint(n) => Some((*n).into()),
        Value::Int(n) => Some((*n).into()),
        _ => None,
    }
}

/// Adds the payload of the errors about integers of fixed size.
pub(crate) fn range_fields(error: BoxError, raw: &[u8], min: i128, max: i128) -> BoxError {
    error.with("value", Field::Raw(raw)).with("min", Field::Int(min as i64)).with("max", Field::Uint(max as u64))
}

/// As few bytes as it takes, after their number.
#[inline]
fn push_unsigned(out: &mut KeyBytes, n: u64) {
    let zeros = (n.leading_zeros() / 8) as usize;
    out.push(INTEGER + (8 - zeros) as u8);
    out.extend_from_slice(n.to_be_bytes().get(zeros..).unwrap_or_default());
}

fn push_signed(out: &mut KeyBytes, n: i64) {
    if n >= 0 {
        return push_unsigned(out, n as u64);
    }
    let zeros = ((!n).leading_zeros() / 8) as usize;
    out.push(INTEGER - 1 - (8 - zeros) as u8);
    out.extend_from_slice(n.to_be_bytes().get(zeros..).unwrap_or_default());
}

/// A zero inside is followed by 0xff, the end is marked by two zeros: no string's encoding starts another's.
fn push_bytes(out: &mut KeyBytes, class: u8, bytes: &[u8]) {
    out.reserve(bytes.len() + 3);
    out.push(class);
    push_escaped(out, bytes);
    out.extend_from_slice(&[0, 0]);
}

fn push_escaped(out: &mut KeyBytes, mut bytes: &[u8]) {
    while let Some(zero) = bytes.iter().position(|b| *b == 0) {
        let (head, tail) = bytes.split_at(zero);
        out.extend_from_slice(head);
        out.extend_from_slice(&[0, 0xff]);
        bytes = tail.get(1..).unwrap_or_default();
    }
    out.extend_from_slice(bytes);
}

fn encode_rare(value: Value<'_>, out: &mut KeyBytes) {
    match value {
        Value::Bool(b) => out.extend_from_slice(&[BOOL, b.into()]),
        Value::Uint(n) => {
            out.push(NUMBER);
            number::push_int(out, n.into());
        }
        Value::Int(n) => {
            out.push(NUMBER);
            number::push_int(out, n.into());
        }
        Value::F32(d) => {
            out.push(NUMBER);
            number::push_f64(out, d.into());
        }
        Value::F64(d) => {
            out.push(NUMBER);
            number::push_f64(out, d);
        }
        Value::Bin(b) => push_bytes(out, BIN, b),
        Value::Ext(mp::EXT_UUID, body) => {
            out.push(UUID);
            out.extend_from_slice(body);
        }
        Value::Ext(mp::EXT_DECIMAL, body) => {
            out.push(NUMBER);
            let zero = || Decimal::from_u64(0, false);
            number::push_decimal(out, &Decimal::unpack(body).unwrap_or_else(zero));
        }
        Value::Ext(mp::EXT_DATETIME, body) => push_datetime(out, body),
        _ => out.push(NIL),
    }
}

/// Seconds, then nanoseconds; the time zone does not take part.
fn push_datetime(out: &mut KeyBytes, body: &[u8]) {
    let seconds = body.first_chunk().map_or(0, |b| i64::from_le_bytes(*b));
    let nanoseconds = body.get(8..).and_then(|b| b.first_chunk()).map_or(0, |b| i32::from_le_bytes(*b));
    out.push(DATETIME);
    out.extend_from_slice(&(seconds ^ i64::MIN).to_be_bytes());
    out.extend_from_slice(&(nanoseconds ^ i32::MIN).to_be_bytes());
}

/// The parts of an index, and those of the primary key that make its keys differ.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyDef {
    /// The parts of the definition, then those of the primary key that are not among them.
    pub(crate) all: Vec<Part>,
    /// How many are the definition's.
    pub(crate) own: usize,
    /// Whether two tuples may not have one key. With nullable parts this holds for keys without null only.
    unique: bool,
    /// Whether positions consist of `all` parts rather than of the own ones.
    extended: bool,
}

impl KeyDef {
    pub(crate) fn new(parts: Vec<Part>, unique: bool, primary: Option<&KeyDef>) -> Self {
        let own = parts.len();
        let nullable = parts.iter().any(|p| p.is_nullable);
        let extended = primary.is_some() && (!unique || nullable);
        let mut all = parts;
        if extended && let Some(primary) = primary {
            for part in primary.own_parts() {
                if all.iter().all(|p| p.field != part.field) {
                    all.push(part.clone());
                }
            }
        }
        KeyDef { all, own, unique, extended }
    }

    /// The parts of the definition.
    pub(crate) fn own_parts(&self) -> &[Part] {
        self.all.get(..self.own).unwrap_or_default()
    }

    /// The number of parts of a position.
    pub(crate) fn position_parts(&self) -> usize {
        if self.extended { self.all.len() } else { self.own }
    }

    pub(crate) fn has_nullable(&self) -> bool {
        self.own_parts().iter().any(|p| p.is_nullable)
    }

    /// The key of a valid tuple, or nothing when the index leaves the tuple out.
    #[inline]
    pub(crate) fn of_tuple(&self, tuple: &[u8]) -> Option<Key> {
        let mut key = KeyBytes::new();
        let mut fields = Fields::new(tuple);
        self.encode_values(&mut key, |_, part| fields.get(part.field))?;
        Some(key.into())
    }

    /// Encodes the parts whose values `value_of` gives, as far as the index compares them.
    fn encode_values<'a>(
        &self,
        key: &mut KeyBytes,
        mut value_of: impl FnMut(usize, &Part) -> Option<Value<'a>>,
    ) -> Option<()> {
        let mut null_met = false;
        for (n, part) in self.all.iter().enumerate() {
            if n == self.own && self.unique && !null_met {
                break;
            }
            let value = value_of(n, part).unwrap_or(Value::Nil);
            if value == Value::Nil {
                if part.exclude_null && n < self.own {
                    return None;
                }
                null_met = true;
            }
            part.encode(value, key);
        }
        Some(())
    }

    /// Encodes a position: values of all parts, already checked.
    pub(crate) fn of_position(&self, mut values: &[u8]) -> Option<Key> {
        let mut key = KeyBytes::new();
        self.encode_values(&mut key, |_, _| {
            let raw = mp::take(&mut values)?;
            mp::read(raw).map(|(value, _)| value)
        })?;
        Some(key.into())
    }

    /// Encodes the first `count` parts of a search key that was checked.
    pub(crate) fn of_key(&self, count: u32, mut values: &[u8]) -> KeyBytes {
        let mut key = KeyBytes::new();
        for part in self.all.iter().take(count as usize) {
            let Some(raw) = mp::take(&mut values) else { break };
            part.encode(mp::read(raw).map_or(Value::Nil, |(value, _)| value), &mut key);
        }
        key
    }

    /// The key that a search key of all own parts stands for, when its values are plain ones of the right types; nothing
    /// where there is more to check, or an error to find.
    #[inline]
    pub(crate) fn of_usual_key(&self, key: &[u8]) -> Option<Key> {
        let (count, mut rest) = mp::array(key)?;
        if count as usize != self.own {
            return None;
        }
        let mut encoded = KeyBytes::new();
        for part in self.own_parts() {
            let (value, len) = mp::read(rest)?;
            let is_plain = matches!(value, Value::Uint(_) | Value::Int(_) | Value::Str(_) | Value::F64(_));
            if !is_plain || !part.kind.admits(&value) || part.kind.range().is_some() {
                return None;
            }
            part.encode(value, &mut encoded);
            rest = rest.get(len..)?;
        }
        rest.is_empty().then(|| encoded.into())
    }

    /// Checks the values of a search key against the first parts.
    pub(crate) fn check_key(&self, count: u32, mut values: &[u8], allow_null: bool) -> Result<()> {
        for (number, part) in self.all.iter().take(count as usize).enumerate() {
            let len = part.check(number as u32, values, allow_null)?;
            values = values.get(len..).unwrap_or_default();
        }
        Ok(())
    }

    /// The values of a tuple that make a position, as a MessagePack array; missing fields are null.
    pub(crate) fn position_of(&self, tuple: &[u8]) -> Vec<u8> {
        let parts = self.all.get(..self.position_parts()).unwrap_or_default();
        let mut out = Vec::with_capacity(16);
        put::put_array(&mut out, parts.len() as u32);
        for part in parts {
            out.extend_from_slice(mp::field(tuple, part.field).unwrap_or(&[0xc0]));
        }
        out
    }

    /// Encodes the start of all strings that begin as the last value of the key does; nothing if that is no string.
    pub(crate) fn string_prefix(&self, count: u32, mut values: &[u8]) -> Option<KeyBytes> {
        let last = count.checked_sub(1)?;
        let mut key = self.of_key(last, values);
        for _ in 0..last {
            mp::take(&mut values)?;
        }
        let Some(Value::Str(s)) = mp::next(&mut values) else { return None };
        let start = key.len();
        key.push(STR);
        push_escaped(&mut key, s);
        if self.all.get(last as usize)?.descending {
            key.get_mut(start..)?.iter_mut().for_each(|b| *b = !*b);
        }
        Some(key)
    }
}

/// The least key above all that start with `prefix`.
pub(crate) fn successor(mut prefix: KeyBytes) -> Option<KeyBytes> {
    while let Some(last) = prefix.pop() {
        if last != 0xff {
            prefix.push(last + 1);
            return Some(prefix);
        }
    }
    None
}

/// Random access to the fields of a valid tuple that is cheap when the numbers ascend.
struct Fields<'a> {
    tuple: &'a [u8],
    rest: &'a [u8],
    next: u32,
    count: u32,
}

impl<'a> Fields<'a> {
    fn new(tuple: &'a [u8]) -> Self {
        let (count, rest) = mp::array(tuple).unwrap_or_default();
        Fields { tuple, rest, next: 0, count }
    }

    #[inline]
    fn get(&mut self, number: u32) -> Option<Value<'a>> {
        if number >= self.count {
            return None;
        }
        if number < self.next {
            *self = Fields::new(self.tuple);
        }
        while self.next < number {
            self.rest = self.rest.get(mp::skip(self.rest)?..)?;
            self.next += 1;
        }
        mp::read(self.rest).map(|(value, _)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rmp::encode as put;

    fn str(s: &str) -> Vec<u8> {
        let mut out = Vec::new();
        put::write_str(&mut out, s).unwrap();
        out
    }

    fn tuple(values: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        put::write_array_len(&mut out, values.len() as u32).unwrap();
        values.iter().for_each(|v| out.extend_from_slice(v));
        out
    }

    fn key_of(kind: FieldType, value: &[u8]) -> Key {
        KeyDef::new(vec![Part::new(0, kind)], true, None).of_tuple(&tuple(&[value.to_vec()])).unwrap()
    }

    fn int(n: i64) -> Vec<u8> {
        let mut out = Vec::new();
        put::write_sint(&mut out, n).unwrap();
        out
    }

    #[test]
    fn kinds_sort_as_scalars_do() {
        let mut double = Vec::new();
        put::write_f64(&mut double, 1.5).unwrap();
        let mut bin = Vec::new();
        put::write_bin(&mut bin, b"a").unwrap();
        let uuid = [&[0xd8, 2][..], &[7; 16]].concat();
        let datetime = [&[0xd7, 4][..], &100i64.to_le_bytes()].concat();
        let sorted =
            [vec![0xc0], vec![0xc2], vec![0xc3], int(-5), int(1), double, int(2), str("a"), bin, uuid, datetime];
        for pair in sorted.windows(2) {
            let (a, b) = (key_of(FieldType::Scalar, &pair[0]), key_of(FieldType::Scalar, &pair[1]));
            assert!(a < b, "{pair:x?}");
        }
    }

    #[test]
    fn strings_sort_by_bytes_and_are_no_prefixes_of_each_other() {
        let sorted = ["", "\0", "\0\0", "\0\u{1}", "a", "a\0", "a\0b", "ab", "b"];
        let keys: Vec<Key> = sorted.iter().map(|s| key_of(FieldType::String, &str(s))).collect();
        for (n, pair) in keys.windows(2).enumerate() {
            assert!(pair[0] < pair[1], "{n}");
            assert!(!pair[1].starts_with(&pair[0]), "{n}");
        }
    }

    #[test]
    fn integers_sort_by_value() {
        let sorted = [i64::MIN, -70_000, -257, -256, -255, -2, -1, 0, 1, 255, 256, 65_535, 65_536, i64::MAX];
        let keys: Vec<Key> = sorted.iter().map(|n| key_of(FieldType::Integer, &int(*n))).collect();
        assert!(keys.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn keys_compare_as_their_bytes() {
        let texts: [&[u8]; 9] =
            [b"", b"\0", b"\0\0", b"a", b"a\0", b"aaaaaaa", b"aaaaaaaa", b"aaaaaaaa\0", b"aaaaaaab"];
        for a in texts {
            for b in texts {
                let (x, y) = (Key::from(KeyBytes::from_slice(a)), Key::from(KeyBytes::from_slice(b)));
                assert_eq!(x.cmp(&y), a.cmp(b), "{a:x?} {b:x?}");
            }
        }
    }

    #[test]
    fn datetimes_sort_by_instant() {
        let datetime = |s: i64, ns: i32| [&[0xd8, 4][..], &s.to_le_bytes(), &ns.to_le_bytes(), &[60, 0, 0, 0]].concat();
        let sorted = [datetime(-2, 0), datetime(-1, 5), datetime(0, 0), datetime(0, 1), datetime(9, 0)];
        let keys: Vec<Key> = sorted.iter().map(|d| key_of(FieldType::Datetime, d)).collect();
        assert!(keys.is_sorted_by(|a, b| a < b));
        let short = [&[0xd7, 4][..], &9i64.to_le_bytes()].concat();
        assert_eq!(key_of(FieldType::Datetime, &short), keys[4]);
    }

    #[test]
    fn descending_parts_reverse_the_order() {
        let part = Part { descending: true, ..Part::new(0, FieldType::Integer) };
        let def = KeyDef::new(vec![part, Part::new(1, FieldType::Unsigned)], true, None);
        let key = |a, b| def.of_tuple(&tuple(&[int(a), int(b)])).unwrap();
        assert!(key(2, 0) < key(1, 0) && key(1, 0) < key(1, 1) && key(1, 9) < key(-1, 0));
    }

    #[test]
    fn a_partial_key_is_a_prefix() {
        let def = KeyDef::new(vec![Part::new(1, FieldType::String), Part::new(0, FieldType::Unsigned)], true, None);
        let full = def.of_tuple(&tuple(&[int(7), str("xy")])).unwrap();
        assert!(full.starts_with(&def.of_key(1, &str("xy"))));
        assert_eq!(full, def.of_key(2, &[str("xy"), int(7)].concat()).into());
    }

    #[test]
    fn unique_keys_with_null_differ_by_the_primary_key() {
        let primary = KeyDef::new(vec![Part::new(0, FieldType::Unsigned)], true, None);
        let part = Part { is_nullable: true, ..Part::new(1, FieldType::Unsigned) };
        let def = KeyDef::new(vec![part], true, Some(&primary));
        let key = |values: &[Vec<u8>]| def.of_tuple(&tuple(values)).unwrap();
        assert_eq!(key(&[int(1), int(5)]), key(&[int(2), int(5)]));
        assert_ne!(key(&[int(1), vec![0xc0]]), key(&[int(2), vec![0xc0]]));
        assert_eq!(key(&[int(1)]), key(&[int(1), vec![0xc0]]));
        assert_eq!(def.position_parts(), 2);
    }

    #[test]
    fn successors() {
        assert_eq!(successor(KeyBytes::from_slice(&[1, 2])), Some(KeyBytes::from_slice(&[1, 3])));
        assert_eq!(successor(KeyBytes::from_slice(&[1, 0xff, 0xff])), Some(KeyBytes::from_slice(&[2])));
        assert_eq!(successor(KeyBytes::from_slice(&[0xff])), None);
    }
}
