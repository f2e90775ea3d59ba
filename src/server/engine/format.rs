//! The format of a space: its fields, and what a tuple must satisfy.
//!
//! Source: `src/box/tuple_format.c` (`tuple_format_use_key_part`, `tuple_field_map_create_plain`), Tarantool 3.9-dev.

use super::error::{self, BoxError, Field, Result};
use super::key::{KeyDef, integer, range_fields};
use super::mp;
use super::types::{FieldType, extension_is_valid};
use crate::iproto::mp as put;
use std::borrow::Cow;
use std::collections::HashMap;

/// One field of a space's format.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldDef {
    /// Its name, unique in the space.
    pub name: String,
    /// What it holds; `any` by default.
    pub kind: FieldType,
    /// Whether it may be null or missing; no by default.
    pub is_nullable: bool,
    /// Id of its collation, as in `_collation`.
    pub collation: Option<u32>,
}

impl FieldDef {
    /// A field of that name and type, not nullable.
    pub fn new(name: &str, kind: FieldType) -> Self {
        FieldDef { name: name.into(), kind, is_nullable: false, collation: None }
    }

    /// Appends the definition as the map that `_space` shows.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let options = u32::from(self.is_nullable) + u32::from(self.collation.is_some());
        put::put_map(out, 2 + options);
        put::put_str(out, b"name");
        put::put_str(out, self.name.as_bytes());
        put::put_str(out, b"type");
        put::put_str(out, self.kind.name().as_bytes());
        if self.is_nullable {
            put::put_str(out, b"is_nullable");
            put::put_bool(out, true);
        }
        if let Some(collation) = self.collation {
            put::put_str(out, b"collation");
            put::put_uint(out, collation.into());
        }
    }
}

/// What the check of one field comes down to.
#[derive(Clone, Debug, PartialEq)]
struct Check {
    kind: FieldType,
    is_nullable: bool,
    is_key_part: bool,
}

/// The rules for the tuples of one space: its declared fields made stricter by its indexes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Format {
    pub(crate) fields: Vec<FieldDef>,
    names: HashMap<Box<[u8]>, u32>,
    checks: Vec<Check>,
    exact_field_count: u32,
    min_field_count: usize,
}

impl Format {
    /// Joins the declared fields with the parts of all indexes.
    ///
    /// # Errors
    /// A part and a field, or two parts, of types that do not fit together.
    pub(crate) fn new<'a>(
        fields: Vec<FieldDef>,
        exact_field_count: u32,
        keys: impl IntoIterator<Item = &'a KeyDef>,
    ) -> Result<Self> {
        let names = fields.iter().zip(0u32..).map(|(f, n)| (f.name.as_bytes().into(), n)).collect();
        let plain = |f: &FieldDef| Check { kind: f.kind, is_nullable: f.is_nullable, is_key_part: false };
        let checks = fields.iter().map(plain).collect();
        let mut format = Format { fields, names, checks, exact_field_count, min_field_count: 0 };
        for key in keys {
            for part in key.own_parts() {
                format.use_part(part)?;
            }
        }
        format.min_field_count = format.checks.iter().rposition(|c| !c.is_nullable).map_or(0, |n| n + 1);
        Ok(format)
    }

    fn use_part(&mut self, part: &super::key::Part) -> Result<()> {
        let number = part.field as usize;
        if self.checks.len() <= number {
            let free = Check { kind: FieldType::Any, is_nullable: true, is_key_part: false };
            self.checks.resize(number + 1, free);
        }
        let path = self.path(number);
        let Some(check) = self.checks.get_mut(number) else { return Ok(()) };
        check.is_nullable &= part.is_nullable;
        if check.kind.contains(part.kind) {
            check.kind = part.kind;
        } else if !part.kind.contains(check.kind) {
            let (was, wanted) = (check.kind.name(), part.kind.name());
            let (code, message) = if check.is_key_part {
                let text = format!("Field {path} has type '{was}' in one index, but type '{wanted}' in another");
                (error::INDEX_PART_TYPE_MISMATCH, text)
            } else {
                let text =
                    format!("Field {path} has type '{was}' in space format, but type '{wanted}' in index definition");
                (error::FORMAT_MISMATCH_INDEX_PART, text)
            };
            return Err(BoxError::client(code, message)
                .with("field", Field::Str(&path))
                .with("actual", Field::Str(was))
                .with("expected", Field::Str(wanted)));
        }
        check.is_key_part = true;
        Ok(())
    }

    /// Appends the declared fields as the array of maps that `_space` shows.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put::put_array(out, self.fields.len() as u32);
        self.fields.iter().for_each(|field| field.encode(out));
    }

    /// The number of the field of that name.
    #[inline]
    pub(crate) fn field_by_name(&self, name: &[u8]) -> Option<u32> {
        self.names.get(name).copied()
    }

    /// The type a field must have, if the format says anything of it.
    pub(crate) fn kind_of(&self, number: usize) -> Option<FieldType> {
        self.checks.get(number).map(|c| c.kind)
    }

    /// A field as errors name it: its number from 1, and its name if it has one.
    fn path(&self, number: usize) -> Cow<'static, str> {
        match self.fields.get(number) {
            Some(field) => format!("{} ({})", number + 1, field.name).into(),
            None => (number + 1).to_string().into(),
        }
    }

    /// Checks that `tuple` is one whole MessagePack array that fits the format.
    ///
    /// # Errors
    /// Tarantool's, each with the tuple in its payload.
    #[inline]
    pub(crate) fn validate(&self, tuple: &[u8]) -> Result<()> {
        let Some((count, mut rest)) = mp::array(tuple) else {
            return Err(BoxError::client(error::TUPLE_NOT_ARRAY, "Tuple/Key must be MsgPack array"));
        };
        let count = count as usize;
        if self.exact_field_count > 0 && count != self.exact_field_count as usize {
            return Err(self.wrong_count(count, tuple));
        }
        if count < self.min_field_count {
            return Err(self.missing_field(count, tuple));
        }
        for (number, check) in self.checks.iter().take(count).enumerate() {
            let len = self.check_field(number, check, rest, tuple)?;
            rest = rest.get(len..).unwrap_or_default();
        }
        for _ in self.checks.len()..count {
            let len = mp::skip(rest).ok_or_else(broken)?;
            rest = rest.get(len..).unwrap_or_default();
        }
        if rest.is_empty() { Ok(()) } else { Err(broken()) }
    }

    /// As [`Format::validate`], without saying what is wrong.
    #[inline]
    pub(crate) fn is_valid(&self, tuple: &[u8]) -> bool {
        self.validate(tuple).is_ok()
    }

    #[inline]
    fn check_field(&self, number: usize, check: &Check, rest: &[u8], tuple: &[u8]) -> Result<usize> {
        let (value, _) = mp::read(rest).ok_or_else(broken)?;
        if value == mp::Value::Nil && check.is_nullable {
            return Ok(1);
        }
        if !check.kind.admits(&value) {
            return Err(self.wrong_type(number, check.kind, &value, tuple));
        }
        if let mp::Value::Ext(kind, body) = value
            && check.kind != FieldType::Any
            && !extension_is_valid(kind, body)
        {
            return Err(BoxError::msgpack("invalid extension"));
        }
        let len = mp::skip(rest).ok_or_else(broken)?;
        if let (Some(range), Some(n)) = (check.kind.range(), integer(&value))
            && !(range.0..=range.1).contains(&n)
        {
            return Err(self.out_of_range(number, check.kind, n, rest.get(..len).unwrap_or_default()));
        }
        Ok(len)
    }

    #[cold]
    fn wrong_count(&self, count: usize, tuple: &[u8]) -> BoxError {
        let expected = self.exact_field_count;
        let message = format!("Tuple field count {count} does not match space field count {expected}");
        BoxError::client(error::EXACT_FIELD_COUNT, message)
            .with("actual", Field::Uint(count as u64))
            .with("expected", Field::Uint(expected.into()))
            .with("tuple", Field::Raw(tuple))
    }

    #[cold]
    fn missing_field(&self, count: usize, tuple: &[u8]) -> BoxError {
        let required = self.checks.iter().skip(count).position(|c| !c.is_nullable).unwrap_or_default();
        let path = self.path(count + required);
        BoxError::client(error::FIELD_MISSING, format!("Tuple field {path} required by space format is missing"))
            .with("field", Field::Str(&path))
            .with("tuple", Field::Raw(tuple))
    }

    #[cold]
    fn wrong_type(&self, number: usize, kind: FieldType, value: &mp::Value<'_>, tuple: &[u8]) -> BoxError {
        let (path, expected, actual) = (self.path(number), kind.name(), value.type_name());
        let message = format!(
            "Tuple field {path} type does not match one required by operation: expected {expected}, got {actual}"
        );
        let error = BoxError::client(error::FIELD_TYPE, message)
            .with("field", Field::Str(&path))
            .with("expected", Field::Str(expected))
            .with("actual", Field::Str(actual));
        // The tuple may be damaged behind this field; then it cannot be shown.
        if mp::skip(tuple) == Some(tuple.len()) { error.with("tuple", Field::Raw(tuple)) } else { error }
    }

    #[cold]
    fn out_of_range(&self, number: usize, kind: FieldType, n: i128, raw: &[u8]) -> BoxError {
        let (path, (min, max)) = (self.path(number), kind.range().unwrap_or_default());
        let message = format!(
            "The value of field {path} exceeds the supported range for type '{}': expected [{min}..{max}], got {n}",
            kind.name()
        );
        let error = BoxError::client(error::FIELD_VALUE_OUT_OF_RANGE, message)
            .with("field", Field::Str(&path))
            .with("field_type", Field::Str(kind.name()));
        range_fields(error, raw, min, max)
    }
}

#[cold]
fn broken() -> BoxError {
    BoxError::msgpack("packet body")
}

#[cfg(test)]
mod tests {
    use super::super::key::Part;
    use super::*;

    fn users() -> Format {
        let age = FieldDef { is_nullable: true, ..FieldDef::new("age", FieldType::Unsigned) };
        let fields = vec![FieldDef::new("id", FieldType::Unsigned), FieldDef::new("name", FieldType::String), age];
        Format::new(fields, 0, &[KeyDef::new(vec![Part::new(0, FieldType::Unsigned)], true, None)]).unwrap()
    }

    fn message(format: &Format, tuple: &[u8]) -> String {
        format.validate(tuple).unwrap_err().message
    }

    #[test]
    fn accepts_what_fits() {
        let format = users();
        for tuple in [&b"\x92\x01\xa1x"[..], b"\x93\x01\xa1x\xc0", b"\x93\x01\xa1x\x05", b"\x94\x01\xa1x\x05\x91\x01"] {
            format.validate(tuple).unwrap();
        }
    }

    #[test]
    fn texts_are_those_of_tarantool() {
        let format = users();
        assert_eq!(
            message(&format, b"\x92\xa1a\xa3new"),
            "Tuple field 1 (id) type does not match one required by operation: expected unsigned, got string"
        );
        assert_eq!(message(&format, b"\x91\x65"), "Tuple field 2 (name) required by space format is missing");
        assert_eq!(message(&format, b"\x05"), "Tuple/Key must be MsgPack array");
        assert_eq!(message(&format, b"\x92\x01\xa2x"), "Invalid MsgPack - packet body");
        assert_eq!(message(&format, b"\x92\x01\xa1x\x00"), "Invalid MsgPack - packet body");
        let exact = Format::new(vec![], 2, []).unwrap();
        assert_eq!(message(&exact, b"\x91\x01"), "Tuple field count 1 does not match space field count 2");
        let small = Format::new(vec![FieldDef::new("n", FieldType::Int8)], 0, []).unwrap();
        assert_eq!(
            message(&small, b"\x91\xcc\x80"),
            "The value of field 1 (n) exceeds the supported range for type 'int8': expected [-128..127], got 128"
        );
        small.validate(b"\x91\xd0\x80").unwrap();
    }

    #[test]
    fn an_index_makes_a_field_stricter() {
        let key = |kind, nullable| KeyDef::new(vec![Part { is_nullable: nullable, ..Part::new(1, kind) }], true, None);
        let any = vec![FieldDef::new("a", FieldType::Any), FieldDef::new("b", FieldType::Scalar)];
        let format = Format::new(any.clone(), 0, &[key(FieldType::String, true)]).unwrap();
        assert_eq!(format.kind_of(1), Some(FieldType::String));
        assert!(format.validate(b"\x92\x01\xc0").is_err(), "the format forbids null, the stricter of the two");
        let error = Format::new(any, 0, &[key(FieldType::Map, false)]).unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str()),
            (27, "Field 2 (b) has type 'scalar' in space format, but type 'map' in index definition")
        );
        let error =
            Format::new(vec![], 0, &[key(FieldType::String, false), key(FieldType::Unsigned, false)]).unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str()),
            (24, "Field 2 has type 'string' in one index, but type 'unsigned' in another")
        );
    }

    #[test]
    fn malformed_extensions_are_refused_where_they_are_compared() {
        let format = Format::new(vec![FieldDef::new("u", FieldType::Uuid)], 0, []).unwrap();
        assert_eq!(message(&format, b"\x91\xd5\x02\x01\x02"), "Invalid MsgPack - invalid extension");
    }
}
