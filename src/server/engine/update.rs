//! The operations of UPDATE and UPSERT on one tuple.
//!
//! Source: `src/box/xrow_update.c`, `xrow_update_field.c`, `xrow_update_array.c`, Tarantool 3.9-dev. Operations name
//! fields by number, by name, or by a JSON path that leads inside one.

use super::error::{self, BoxError, Field, Result};
use super::format::{FieldDef, Format};
use super::mp::{self, Value};
use super::nested::{self, Lost, Place, Token};
use super::number::Decimal;
use super::types::FieldType;
use crate::iproto::mp as put;
use smallvec::SmallVec;
use std::borrow::Cow;

/// Most operations in one request.
const MAX_OPERATIONS: u32 = 4000;

/// What to do with an operation that does not fit the tuple.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Mode {
    /// Fail.
    Update,
    /// Leave it out.
    Upsert,
}

/// The operations of a request, decoded and checked as far as that is possible without a tuple.
pub(crate) struct Operations<'a> {
    raw: &'a [u8],
    list: SmallVec<[Operation<'a>; 2]>,
}

struct Operation<'a> {
    code: char,
    /// From 0, or negative: from the end.
    field: i64,
    name: Option<&'a [u8]>,
    /// The way inside the field.
    path: Vec<Token<'a>>,
    argument: Argument<'a>,
}

enum Argument<'a> {
    Value(&'a [u8]),
    Count(u64),
    Number(Scalar<'a>),
    Bits(u64),
    Splice { offset: i64, cut: i64, paste: &'a [u8] },
}

/// A value that operations compute with.
#[derive(Clone)]
enum Scalar<'a> {
    Int(i128),
    Double(f64),
    Float(f32),
    Decimal(Decimal),
    Text { is_bin: bool, bytes: Cow<'a, [u8]> },
    Other,
}

impl<'a> Scalar<'a> {
    fn read(raw: &'a [u8]) -> Self {
        match mp::read(raw) {
            Some((Value::Uint(n), _)) => Scalar::Int(n.into()),
            Some((Value::Int(n), _)) => Scalar::Int(n.into()),
            Some((Value::F64(d), _)) => Scalar::Double(d),
            Some((Value::F32(d), _)) => Scalar::Float(d),
            Some((Value::Str(s), _)) => Scalar::Text { is_bin: false, bytes: s.into() },
            Some((Value::Bin(s), _)) => Scalar::Text { is_bin: true, bytes: s.into() },
            Some((Value::Ext(mp::EXT_DECIMAL, body), _)) => {
                Decimal::unpack(body).map_or(Scalar::Other, Scalar::Decimal)
            }
            _ => Scalar::Other,
        }
    }

    fn into_owned<'b>(self) -> Scalar<'b> {
        match self {
            Scalar::Int(n) => Scalar::Int(n),
            Scalar::Double(d) => Scalar::Double(d),
            Scalar::Float(d) => Scalar::Float(d),
            Scalar::Decimal(d) => Scalar::Decimal(d),
            Scalar::Text { is_bin, bytes } => Scalar::Text { is_bin, bytes: bytes.into_owned().into() },
            Scalar::Other => Scalar::Other,
        }
    }

    fn is_number(&self) -> bool {
        !matches!(self, Scalar::Text { .. } | Scalar::Other)
    }

    fn as_f64(&self) -> Option<f64> {
        match self {
            Scalar::Int(n) => Some(*n as f64),
            Scalar::Double(d) => Some(*d),
            Scalar::Float(d) => Some((*d).into()),
            _ => None,
        }
    }

    fn as_decimal(&self) -> Option<Decimal> {
        match self {
            Scalar::Int(n) => Some(Decimal::from_u64(n.unsigned_abs() as u64, *n < 0)),
            Scalar::Double(d) => Decimal::from_f64(*d),
            Scalar::Float(d) => Decimal::from_f64((*d).into()),
            Scalar::Decimal(d) => Some(d.clone()),
            _ => None,
        }
    }

    /// A double keeps the precision its field asks for.
    fn store(&self, kind: Option<FieldType>, out: &mut Vec<u8>) {
        match self {
            Scalar::Int(n) if *n < 0 => put::put_int(out, *n as i64),
            Scalar::Int(n) => put::put_uint(out, *n as u64),
            Scalar::Double(d) if kind == Some(FieldType::Float32) => put::put_float(out, *d as f32),
            Scalar::Double(d) => put::put_double(out, *d),
            Scalar::Float(d) if matches!(kind, Some(FieldType::Double | FieldType::Float64)) => {
                put::put_double(out, (*d).into());
            }
            Scalar::Float(d) => put::put_float(out, *d),
            Scalar::Decimal(d) => d.pack(out),
            Scalar::Text { is_bin: true, bytes } => {
                put::put_bin_len(out, bytes.len() as u32);
                out.extend_from_slice(bytes);
            }
            Scalar::Text { bytes, .. } => put::put_str(out, bytes),
            Scalar::Other => put::put_nil(out),
        }
    }
}

impl<'a> Operations<'a> {
    /// Decodes `raw`, a MessagePack array of `{code, field, arguments...}`; fields count from `base`.
    ///
    /// # Errors
    /// Malformed operations, with `raw` in the payload.
    pub(crate) fn decode(raw: &'a [u8], base: u64, format: &Format) -> Result<Self> {
        Self::decode_list(raw, base, format)
            .map(|list| Operations { raw, list })
            .map_err(|error| if error.kind == "ClientError" { error.with("ops", Field::Raw(raw)) } else { error })
    }

    fn decode_list(raw: &'a [u8], base: u64, format: &Format) -> Result<SmallVec<[Operation<'a>; 2]>> {
        if mp::skip(raw) != Some(raw.len()) {
            return Err(BoxError::msgpack("packet body"));
        }
        let Some((count, mut rest)) = mp::array(raw) else {
            return Err(BoxError::client(error::TUPLE_NOT_ARRAY, "Tuple/Key must be MsgPack array"));
        };
        if count > MAX_OPERATIONS {
            return Err(BoxError::illegal("too many operations for update"));
        }
        (1..=count).map(|number| Operation::decode(&mut rest, number, base, format)).collect()
    }

    /// Appends the tuple after all operations to `out`, in one pass over its fields: where each operation assigns to a field
    /// that is there, or computes it, and the fields follow each other. False, and `out` is useless: where anything is
    /// unusual, and in every error, which [`Operations::apply`] then finds anew.
    pub(crate) fn apply_in_one_pass(&self, tuple: &[u8], format: &Format, limit: usize, out: &mut Vec<u8>) -> bool {
        self.one_pass(tuple, format, out).is_some() && out.len() <= limit
    }

    fn one_pass(&self, tuple: &[u8], format: &Format, out: &mut Vec<u8>) -> Option<()> {
        let (count, mut rest) = mp::array(tuple)?;
        let header = tuple.len() - rest.len();
        out.extend_from_slice(tuple.get(..header)?);
        // The first field that was not passed, and the bytes that were not copied.
        let (mut next, mut copied) = (0, rest);
        for operation in &self.list {
            let field = operation.field;
            if field < next || field >= i64::from(count) || !operation.path.is_empty() {
                return None;
            }
            while next < field {
                rest = rest.get(mp::skip(rest)?..)?;
                next += 1;
            }
            let old = rest.get(..mp::skip(rest)?)?;
            out.extend_from_slice(copied.get(..copied.len() - rest.len())?);
            match &operation.argument {
                Argument::Value(raw) if operation.code == '=' => out.extend_from_slice(raw),
                Argument::Value(_) | Argument::Count(_) => return None,
                _ => operation.compute(Scalar::read(old)).ok()?.store(format.kind_of(field as usize), out),
            }
            rest = rest.get(old.len()..)?;
            copied = rest;
            next += 1;
        }
        out.extend_from_slice(copied);
        Some(())
    }

    /// The tuple after all operations; it is not yet checked against the format, and at most `limit` bytes long.
    pub(crate) fn apply(mut self, tuple: &'a [u8], format: &Format, mode: Mode, limit: usize) -> Result<Vec<u8>> {
        let mut fields = Fields::new(tuple, limit);
        for operation in &mut self.list {
            match operation.apply(&mut fields) {
                Err(error) if mode == Mode::Update => {
                    return Err(error.with("ops", Field::Raw(self.raw)).with("tuple", Field::Raw(tuple)));
                }
                // The tuple would not fit into memory: not a question of fitting operations.
                Err(error) if error.code == error::MEMTX_MAX_TUPLE_SIZE.0 => return Err(error),
                Err(_) | Ok(()) => {}
            }
        }
        fields.store(format)
    }
}

impl<'a> Operation<'a> {
    fn decode(rest: &mut &'a [u8], number: u32, base: u64, format: &Format) -> Result<Self> {
        let Some(Value::Array(count)) = mp::next(rest) else {
            return Err(BoxError::illegal("update operation must be an array {op,..}"));
        };
        if count < 1 {
            return Err(BoxError::illegal("update operation must be an array {op,..}, got empty array"));
        }
        let Some(Value::Str(name)) = mp::next(rest) else {
            return Err(BoxError::illegal("update operation name must be a string"));
        };
        let (code, expected) = match name {
            b"=" | b"+" | b"-" | b"&" | b"|" | b"^" | b"#" | b"!" => (name.first().copied().unwrap_or_default(), 3),
            b":" => (b':', 5),
            _ => return Err(unknown(number, format!("\"{}\"", String::from_utf8_lossy(name)))),
        };
        if count != expected {
            return Err(unknown(number, format!("wrong number of arguments, expected {expected}, got {count}")));
        }
        let code = char::from(code);
        let mut operation = Operation { code, field: 0, name: None, path: Vec::new(), argument: Argument::Count(0) };
        operation.decode_field(rest, base, format)?;
        operation.argument = operation.decode_argument(rest, base)?;
        Ok(operation)
    }

    fn decode_field(&mut self, rest: &mut &'a [u8], base: u64, format: &Format) -> Result<()> {
        let field = match mp::next(rest) {
            Some(Value::Uint(n)) => i64::from(i32::try_from(n).map_err(|_| self.wrong_argument("an integer"))?),
            Some(Value::Int(n)) => i64::from(i32::try_from(n).map_err(|_| self.wrong_argument("an integer"))?),
            Some(Value::Str(name)) => {
                self.name = Some(name);
                return self.decode_name(name, format);
            }
            _ => return Err(BoxError::illegal("field id must be a number or a string")),
        };
        let from_zero = field.saturating_sub_unsigned(base);
        if field >= 0 && from_zero < 0 {
            return Err(no_such_number(field));
        }
        self.field = if field < 0 { field } else { from_zero };
        Ok(())
    }

    /// A name that is no field's is taken for a path.
    fn decode_name(&mut self, name: &'a [u8], format: &Format) -> Result<()> {
        if let Some(found) = format.field_by_name(name) {
            self.field = found.into();
            return Ok(());
        }
        let mut path = nested::parse(name);
        if path.is_empty() {
            return Err(no_such_name(name));
        }
        let found = match path.remove(0) {
            Token::Index(n) => Some(n),
            Token::Key(key) => format.field_by_name(key),
            // All elements of the tuple at once are no field.
            Token::Bad(_) if name.starts_with(b"[*]") => None,
            Token::Bad(position) => return Err(self.bad_path(position)),
        };
        self.field = found.ok_or_else(|| no_such_name(name))?.into();
        self.path = path;
        Ok(())
    }

    fn decode_argument(&self, rest: &mut &'a [u8], base: u64) -> Result<Argument<'a>> {
        let raw = mp::take(rest).ok_or_else(|| BoxError::msgpack("packet body"))?;
        let value = mp::read(raw).map(|(value, _)| value);
        match self.code {
            '=' | '!' => Ok(Argument::Value(raw)),
            '+' | '-' => {
                let scalar = Scalar::read(raw);
                if scalar.is_number() { Ok(Argument::Number(scalar)) } else { Err(self.wrong_argument("a number")) }
            }
            '#' => match value {
                Some(Value::Uint(0)) => Err(self.failed("cannot delete 0 fields")),
                Some(Value::Uint(n)) => Ok(Argument::Count(n)),
                _ => Err(self.wrong_argument("a positive integer")),
            },
            ':' => self.decode_splice(value, rest, base),
            _ => match value {
                Some(Value::Uint(n)) => Ok(Argument::Bits(n)),
                _ => Err(self.wrong_argument("a positive integer")),
            },
        }
    }

    fn decode_splice(&self, offset: Option<Value<'a>>, rest: &mut &'a [u8], base: u64) -> Result<Argument<'a>> {
        let mut offset = int32(offset).ok_or_else(|| self.wrong_argument("an integer"))?;
        if offset >= 0 {
            offset = offset.saturating_sub_unsigned(base);
            if offset < 0 {
                return Err(self.out_of_bound());
            }
        }
        let cut = int32(mp::take(rest).and_then(mp::read).map(|(value, _)| value));
        let cut = cut.ok_or_else(|| self.wrong_argument("an integer"))?;
        match mp::next(rest) {
            Some(Value::Str(paste) | Value::Bin(paste)) => Ok(Argument::Splice { offset, cut, paste }),
            _ => Err(self.wrong_argument("a string or varbinary")),
        }
    }

    fn apply(&mut self, fields: &mut Fields<'a>) -> Result<()> {
        if !self.path.is_empty() {
            return self.apply_inside(fields);
        }
        match &self.argument {
            Argument::Value(raw) => {
                let raw = *raw;
                if self.code == '=' && self.field < fields.count as i64 {
                    let at = self.locate(fields.count)?;
                    fields.set(at, raw);
                } else {
                    fields.fill(self.field)?;
                    let at = self.locate(fields.count + 1)?;
                    fields.insert(at, raw);
                }
            }
            Argument::Count(count) => {
                let count = *count;
                if self.field < fields.count as i64 {
                    let at = self.locate(fields.count)?;
                    fields.remove(at, count);
                }
            }
            Argument::Number(_) | Argument::Bits(_) | Argument::Splice { .. } => {
                let at = self.locate(fields.count)?;
                let scalar = self.compute(fields.scalar(at))?;
                fields.set_scalar(at, scalar);
            }
        }
        Ok(())
    }

    /// Changes what the path leads to.
    fn apply_inside(&mut self, fields: &mut Fields<'a>) -> Result<()> {
        let at = self.locate(fields.count)?;
        let raw = fields.raw(at).ok_or_else(|| self.no_such_field())?;
        let adds = matches!(self.argument, Argument::Value(_));
        let place = Place::find(&raw, &self.path, adds).map_err(|lost| self.lost(lost))?;
        let changed = match &self.argument {
            Argument::Value(value) if self.code == '!' => place.insert(value),
            Argument::Value(value) => place.set(value),
            Argument::Count(count) => place.remove(*count),
            Argument::Number(_) | Argument::Bits(_) | Argument::Splice { .. } => {
                let old = place.value().map_err(|lost| self.lost(lost))?;
                let mut value = Vec::new();
                self.compute(Scalar::read(old).into_owned())?.store(None, &mut value);
                place.set(&value)
            }
        };
        let changed = changed.map_err(|lost| self.lost(lost))?;
        fields.set_owned(at, changed)
    }

    /// The number of the field from 0; it must be below `count`.
    fn locate(&mut self, count: usize) -> Result<usize> {
        let at = if self.field < 0 { self.field + count as i64 } else { self.field };
        match usize::try_from(at) {
            Ok(at) if at < count => {
                self.field = at as i64;
                Ok(at)
            }
            _ => Err(self.no_such_field()),
        }
    }

    fn compute<'b>(&self, old: Scalar<'b>) -> Result<Scalar<'b>> {
        match &self.argument {
            Argument::Number(argument) => self.arithmetic(&old, argument),
            Argument::Bits(bits) => match old {
                Scalar::Int(n) if n >= 0 => {
                    let n = n as u64;
                    let result = match self.code {
                        '&' => n & bits,
                        '|' => n | bits,
                        _ => n ^ bits,
                    };
                    Ok(Scalar::Int(result.into()))
                }
                _ => Err(self.wrong_argument("a positive integer")),
            },
            Argument::Splice { offset, cut, paste } => match old {
                Scalar::Text { is_bin, bytes } => {
                    let bytes = self.splice(&bytes, *offset, *cut, paste)?.into();
                    Ok(Scalar::Text { is_bin, bytes })
                }
                _ => Err(self.wrong_argument("a string or varbinary")),
            },
            Argument::Value(_) | Argument::Count(_) => Ok(old),
        }
    }

    fn arithmetic<'b>(&self, old: &Scalar<'_>, argument: &Scalar<'_>) -> Result<Scalar<'b>> {
        if !old.is_number() {
            return Err(self.wrong_argument("a number"));
        }
        let minus = self.code == '-';
        if let (Scalar::Int(a), Scalar::Int(b)) = (old, argument) {
            let sum = if minus { a - b } else { a + b };
            let fits = (i128::from(i64::MIN)..=u64::MAX.into()).contains(&sum);
            return if fits { Ok(Scalar::Int(sum)) } else { Err(self.overflow()) };
        }
        if let (Some(a), Some(b)) = (old.as_f64(), argument.as_f64()) {
            let sum = if minus { a - b } else { a + b };
            // A result that a float holds exactly is stored as one.
            let short = sum as f32;
            let exact = sum.abs() <= f32::MAX.into() && f64::from(short) == sum;
            return Ok(if exact { Scalar::Float(short) } else { Scalar::Double(sum) });
        }
        let (Some(a), Some(b)) = (old.as_decimal(), argument.as_decimal()) else {
            return Err(self.wrong_argument("a number convertible to decimal"));
        };
        let sum = a.add(&if minus { b.negated() } else { b });
        sum.map(Scalar::Decimal).ok_or_else(|| self.decimal_overflow())
    }

    fn splice(&self, old: &[u8], offset: i64, cut: i64, paste: &[u8]) -> Result<Vec<u8>> {
        let length = old.len() as i64;
        let start = if offset >= 0 {
            offset.min(length)
        } else if -offset > length + 1 {
            return Err(self.out_of_bound());
        } else {
            offset + length + 1
        };
        let room = length - start;
        let cut = if cut >= 0 { cut.min(room) } else { (cut + room).max(0) };
        let head = old.get(..start as usize).unwrap_or_default();
        let tail = old.get((start + cut) as usize..).unwrap_or_default();
        Ok([head, paste, tail].concat())
    }

    /// The field as errors name it.
    fn label(&self) -> String {
        match self.name {
            Some(name) => format!("'{}'", String::from_utf8_lossy(name)),
            None if self.field >= 0 => (self.field + 1).to_string(),
            None => self.field.to_string(),
        }
    }

    #[cold]
    fn wrong_argument(&self, expected: &str) -> BoxError {
        let (code, field) = (self.code, self.label());
        let message = format!(
            "Argument type in operation '{code}' on field {field} does not match field type: expected {expected}"
        );
        BoxError::client(error::UPDATE_ARG_TYPE, message)
            .with("operation", Field::Str(code.encode_utf8(&mut [0; 4])))
            .with("field", Field::Str(&field))
            .with("expected", Field::Str(expected))
    }

    #[cold]
    fn overflow(&self) -> BoxError {
        let (code, field) = (self.code, self.label());
        let message = format!("Integer overflow when performing '{code}' operation on field {field}");
        self.labelled(BoxError::client(error::UPDATE_INTEGER_OVERFLOW, message))
    }

    #[cold]
    fn decimal_overflow(&self) -> BoxError {
        let (code, field) = (self.code, self.label());
        let message = format!("Decimal overflow when performing operation '{code}' on field {field}");
        self.labelled(BoxError::client(error::UPDATE_DECIMAL_OVERFLOW, message))
    }

    fn labelled(&self, error: BoxError) -> BoxError {
        error.with("operation", Field::Str(self.code.encode_utf8(&mut [0; 4]))).with("field", Field::Str(&self.label()))
    }

    #[cold]
    fn out_of_bound(&self) -> BoxError {
        let (field, details) = (self.label(), "offset is out of bound");
        BoxError::client(error::UPDATE_SPLICE, format!("SPLICE error on field {field}: {details}"))
            .with("field", Field::Str(&field))
            .with("details", Field::Str(details))
    }

    #[cold]
    fn failed(&self, details: &str) -> BoxError {
        let field = self.label();
        BoxError::client(error::UPDATE_FIELD, format!("Field {field} UPDATE error: {details}"))
            .with("field", Field::Str(&field))
            .with("details", Field::Str(details))
    }

    #[cold]
    fn bad_path(&self, position: usize) -> BoxError {
        self.failed(&format!("invalid JSON in position {position}"))
    }

    #[cold]
    fn lost(&self, lost: Lost) -> BoxError {
        match lost {
            Lost::Missing => self.no_such_field(),
            Lost::Path(position) => self.bad_path(position),
            Lost::Reason(text) => self.failed(text),
        }
    }

    #[cold]
    fn no_such_field(&self) -> BoxError {
        match self.name {
            Some(_) => {
                let field = self.label();
                BoxError::client(error::NO_SUCH_FIELD_NAME, format!("Field '{field}' was not found in the tuple"))
                    .with("field", Field::Str(&field))
            }
            None => no_such_number(if self.field >= 0 { self.field + 1 } else { self.field }),
        }
    }
}

fn int32(value: Option<Value<'_>>) -> Option<i64> {
    match value? {
        Value::Uint(n) => i32::try_from(n).ok().map(i64::from),
        Value::Int(n) => i32::try_from(n).ok().map(i64::from),
        _ => None,
    }
}

#[cold]
fn unknown(number: u32, operation: String) -> BoxError {
    BoxError::client(error::UNKNOWN_UPDATE_OP, format!("Unknown UPDATE operation #{number}: {operation}"))
        .with("argno", Field::Uint(number.into()))
        .with("operation", Field::Str(&operation))
}

#[cold]
fn no_such_number(field: i64) -> BoxError {
    BoxError::client(error::NO_SUCH_FIELD_NO, format!("Field {field} was not found in the tuple"))
        .with("fieldno", Field::Int(field))
}

#[cold]
fn no_such_name(name: &[u8]) -> BoxError {
    let name = String::from_utf8_lossy(name);
    BoxError::client(error::NO_SUCH_FIELD_NAME, format!("Field '{name}' was not found in the tuple"))
        .with("field", Field::Str(&name))
}

/// The fields of a tuple under change: runs of untouched ones, and single ones that were computed.
struct Fields<'a> {
    runs: Vec<Run<'a>>,
    count: usize,
    limit: usize,
}

enum Run<'a> {
    /// So many whole values, one after the other.
    Raw(usize, Cow<'a, [u8]>),
    Scalar(Scalar<'a>),
}

impl Run<'_> {
    fn len(&self) -> usize {
        match self {
            Run::Raw(count, _) => *count,
            Run::Scalar(_) => 1,
        }
    }
}

impl<'a> Fields<'a> {
    fn new(tuple: &'a [u8], limit: usize) -> Self {
        let (count, rest) = mp::array(tuple).unwrap_or_default();
        let count = count as usize;
        // No run is empty, so that each field starts exactly one.
        let runs = if count == 0 { Vec::new() } else { vec![Run::Raw(count, rest.into())] };
        Fields { runs, count, limit }
    }

    /// The index of a run that starts at field `at` (one past the end is allowed), cut off if need be.
    fn cut(&mut self, at: usize) -> usize {
        let mut start = 0;
        for index in 0..self.runs.len() {
            let Some(run) = self.runs.get_mut(index) else { break };
            if at == start {
                return index;
            }
            let len = run.len();
            if at < start + len {
                if let Run::Raw(count, bytes) = run {
                    let split = skip_fields(bytes, at - start);
                    let tail: Cow<'a, [u8]> = match bytes {
                        Cow::Borrowed(all) => {
                            let (head, tail) = all.split_at(split);
                            *bytes = Cow::Borrowed(head);
                            Cow::Borrowed(tail)
                        }
                        Cow::Owned(all) => Cow::Owned(all.split_off(split)),
                    };
                    let rest = *count - (at - start);
                    *count = at - start;
                    self.runs.insert(index + 1, Run::Raw(rest, tail));
                }
                return index + 1;
            }
            start += len;
        }
        self.runs.len()
    }

    /// Makes field `at` a run of its own and gives the index of that.
    fn isolate(&mut self, at: usize) -> usize {
        self.cut(at + 1);
        self.cut(at)
    }

    fn set(&mut self, at: usize, raw: &'a [u8]) {
        let index = self.isolate(at);
        if let Some(run) = self.runs.get_mut(index) {
            *run = Run::Raw(1, raw.into());
        }
    }

    fn insert(&mut self, at: usize, raw: &'a [u8]) {
        let index = self.cut(at);
        self.runs.insert(index, Run::Raw(1, raw.into()));
        self.count += 1;
    }

    fn remove(&mut self, at: usize, count: u64) {
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(self.count - at);
        let start = self.cut(at);
        let end = self.cut(at + count);
        self.runs.drain(start..end);
        self.count -= count;
    }

    /// Adds nulls so that field `at` can be appended.
    fn fill(&mut self, at: i64) -> Result<()> {
        let Ok(at) = usize::try_from(at) else { return Ok(()) };
        if at <= self.count {
            return Ok(());
        }
        if at > self.limit {
            return Err(too_large(at, self.limit));
        }
        let nulls = at - self.count;
        self.runs.push(Run::Raw(nulls, vec![0xc0; nulls].into()));
        self.count = at;
        Ok(())
    }

    fn scalar(&mut self, at: usize) -> Scalar<'a> {
        let index = self.isolate(at);
        match self.runs.get(index) {
            Some(Run::Scalar(scalar)) => scalar.clone(),
            Some(Run::Raw(_, Cow::Borrowed(raw))) => Scalar::read(raw),
            Some(Run::Raw(_, Cow::Owned(raw))) => Scalar::read(raw).into_owned(),
            None => Scalar::Other,
        }
    }

    /// The bytes of field `at`, unless an operation has computed it before.
    fn raw(&mut self, at: usize) -> Option<Cow<'a, [u8]>> {
        let index = self.isolate(at);
        match self.runs.get(index)? {
            Run::Raw(_, raw) => Some(raw.clone()),
            Run::Scalar(_) => None,
        }
    }

    fn set_owned(&mut self, at: usize, raw: Vec<u8>) -> Result<()> {
        if raw.len() > self.limit {
            return Err(too_large(raw.len(), self.limit));
        }
        let index = self.isolate(at);
        if let Some(run) = self.runs.get_mut(index) {
            *run = Run::Raw(1, raw.into());
        }
        Ok(())
    }

    fn set_scalar(&mut self, at: usize, scalar: Scalar<'a>) {
        let index = self.isolate(at);
        if let Some(run) = self.runs.get_mut(index) {
            *run = Run::Scalar(scalar);
        }
    }

    fn store(&self, format: &Format) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(128);
        put::put_array(&mut out, self.count as u32);
        let mut number = 0;
        for run in &self.runs {
            match run {
                Run::Raw(_, bytes) => out.extend_from_slice(bytes),
                Run::Scalar(scalar) => scalar.store(format.kind_of(number), &mut out),
            }
            if out.len() > self.limit {
                return Err(too_large(out.len(), self.limit));
            }
            number += run.len();
        }
        Ok(out)
    }
}

fn skip_fields(bytes: &[u8], count: usize) -> usize {
    let mut at = 0;
    for _ in 0..count {
        at += bytes.get(at..).and_then(mp::skip).unwrap_or_default();
    }
    at.min(bytes.len())
}

/// A tuple after operations that count fields from 1, outside of any space: `names` are those of its fields, whose types
/// nobody knows. With `upsert`, operations that do not fit it are left out.
///
/// # Errors
/// Malformed operations; without `upsert` also those that do not fit.
pub fn change<'a>(
    tuple: &[u8],
    operations: &[u8],
    names: impl IntoIterator<Item = &'a str>,
    upsert: bool,
) -> Result<Vec<u8>> {
    let field = |name| FieldDef { is_nullable: true, ..FieldDef::new(name, FieldType::Any) };
    let format = Format::new(names.into_iter().map(field).collect(), 0, [])?;
    let mode = if upsert { Mode::Upsert } else { Mode::Update };
    Operations::decode(operations, 1, &format)?.apply(tuple, &format, mode, u32::MAX as usize)
}

/// The tuple is longer than the engine takes.
#[cold]
pub(crate) fn too_large(size: usize, limit: usize) -> BoxError {
    let message = format!(
        "Failed to allocate {size} bytes for tuple: tuple is too large. Check 'memtx_max_tuple_size' configuration option."
    );
    BoxError::client(error::MEMTX_MAX_TUPLE_SIZE, message)
        .with("value", Field::Uint(size as u64))
        .with("max", Field::Uint(limit as u64))
}

#[cfg(test)]
mod tests {
    use super::super::format::FieldDef;
    use super::*;

    fn format() -> Format {
        let field = |name, kind| FieldDef { is_nullable: true, ..FieldDef::new(name, kind) };
        let fields = vec![
            field("id", FieldType::Unsigned),
            field("name", FieldType::String),
            field("age", FieldType::Any),
            field("size", FieldType::Double),
        ];
        Format::new(fields, 0, []).unwrap()
    }

    /// Applies operations written as MessagePack to a tuple, with fields counted from 1.
    fn run(tuple: &[u8], ops: &[u8], mode: Mode) -> Result<Vec<u8>> {
        let format = format();
        Operations::decode(ops, 1, &format)?.apply(tuple, &format, mode, 1 << 20)
    }

    fn update(tuple: &[u8], ops: &[u8]) -> Vec<u8> {
        run(tuple, ops, Mode::Update).unwrap()
    }

    fn message(tuple: &[u8], ops: &[u8]) -> (u32, String) {
        let error = run(tuple, ops, Mode::Update).unwrap_err();
        (error.code, error.message)
    }

    const USER: &[u8] = b"\x93\x01\xa5user1\x14";

    #[test]
    fn all_operations_in_one_request() {
        // {'+',3,1} {'&',3,255} {'|',3,1} {'^',3,2} {':',2,2,1,'ZZ'} {'!',4,{'n'}} {'#',5,1}: recorded from Tarantool 3.9
        let ops = b"\x97\x93\xa1+\x03\x01\x93\xa1&\x03\xcc\xff\x93\xa1|\x03\x01\x93\xa1^\x03\x02\
            \x95\xa1:\x02\x02\x01\xa2ZZ\x93\xa1!\x04\x91\xa1n\x93\xa1#\x05\x01";
        assert_eq!(update(b"\x94\x01\xa5user1\x14\x92\xa1a\xa1b", ops), b"\x94\x01\xa6uZZer1\x17\x91\xa1n");
    }

    #[test]
    fn assignment_beyond_the_end_fills_with_null() {
        assert_eq!(update(USER, b"\x91\x93\xa1=\x04\x09"), b"\x94\x01\xa5user1\x14\x09");
        assert_eq!(update(USER, b"\x91\x93\xa1=\x06\x09"), b"\x96\x01\xa5user1\x14\xc0\xc0\x09");
        assert_eq!(update(b"\x90", b"\x92\x93\xa1=\x02\x09\x93\xa1=\x01\x08"), b"\x92\x08\x09");
        assert_eq!(message(USER, b"\x91\x93\xa1=\xce\x7f\xff\xff\xff\x09").0, 110);
    }

    #[test]
    fn negative_numbers_count_from_the_end() {
        assert_eq!(update(USER, b"\x91\x93\xa1=\xff\x09"), b"\x93\x01\xa5user1\x09");
        assert_eq!(update(USER, b"\x91\x93\xa1!\xff\x09"), b"\x94\x01\xa5user1\x14\x09");
        assert_eq!(update(USER, b"\x91\x93\xa1!\xfe\x09"), b"\x94\x01\xa5user1\x09\x14");
        assert_eq!(update(USER, b"\x91\x93\xa1#\xfe\x01"), b"\x92\x01\x14");
        assert_eq!(message(USER, b"\x91\x93\xa1=\xfc\x09"), (37, "Field -4 was not found in the tuple".into()));
    }

    #[test]
    fn deletion_stops_at_the_end() {
        assert_eq!(update(USER, b"\x91\x93\xa1#\x02\x64"), b"\x91\x01");
        assert_eq!(update(USER, b"\x91\x93\xa1#\x09\x01"), USER);
        assert_eq!(update(USER, b"\x92\x93\xa1#\x01\x01\x93\xa1#\x01\x01"), b"\x91\x14");
        assert_eq!(
            message(USER, b"\x91\x93\xa1#\x02\x00"),
            (29, "Field 2 UPDATE error: cannot delete 0 fields".into())
        );
    }

    #[test]
    fn integers_overflow_at_both_ends() {
        let max = b"\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff";
        assert_eq!(
            message(max, b"\x91\x93\xa1+\x01\x01"),
            (95, "Integer overflow when performing '+' operation on field 1".into())
        );
        let min = b"\x91\xd3\x80\0\0\0\0\0\0\0";
        assert_eq!(message(min, b"\x91\x93\xa1-\x01\x01").0, 95);
        assert_eq!(update(b"\x91\x01", b"\x91\x93\xa1-\x01\x03"), b"\x91\xfe");
        assert_eq!(
            update(b"\x91\xff", b"\x91\x93\xa1+\x01\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
            b"\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xfe"
        );
    }

    #[test]
    fn doubles_shrink_to_floats_where_nothing_is_lost_and_the_field_allows_it() {
        let half = b"\xcb\x3f\xe0\0\0\0\0\0\0";
        let ops = |field: u8| [b"\x91\x93\xa1+", &[field][..], b"\x01"].concat();
        assert_eq!(update(&[b"\x93\x01\xa0", &half[..]].concat(), &ops(3)), b"\x93\x01\xa0\xca\x3f\xc0\0\0");
        let tuple = [b"\x94\x01\xa0\x01", &half[..]].concat();
        assert_eq!(update(&tuple, &ops(4)), b"\x94\x01\xa0\x01\xcb\x3f\xf8\0\0\0\0\0\0");
    }

    #[test]
    fn decimals_take_over_from_other_numbers() {
        // 1 + decimal(0.5)
        assert_eq!(update(b"\x91\x01", b"\x91\x93\xa1+\x01\xd5\x01\x01\x5c"), b"\x91\xc7\x03\x01\x01\x01\x5c");
        let nan = b"\x91\xcb\x7f\xf8\0\0\0\0\0\0";
        assert_eq!(
            message(nan, b"\x91\x93\xa1+\x01\xd5\x01\x01\x5c").1,
            "Argument type in operation '+' on field 1 does not match field type: expected a number convertible to decimal"
        );
    }

    #[test]
    fn splices() {
        let splice = |offset: i8, cut: i8| {
            update(b"\x92\x01\xa5abcde", &[b"\x91\x95\xa1:\x02", &[offset as u8, cut as u8][..], b"\xa1-"].concat())
        };
        assert_eq!(splice(2, 2), b"\x92\x01\xa4a-de");
        assert_eq!(splice(9, 2), b"\x92\x01\xa6abcde-");
        assert_eq!(splice(-1, 0), b"\x92\x01\xa6abcde-");
        assert_eq!(splice(-3, 1), b"\x92\x01\xa5abc-e");
        assert_eq!(splice(1, -1), b"\x92\x01\xa2-e");
        assert_eq!(splice(1, -9), b"\x92\x01\xa6-abcde");
        let bound =
            |offset: u8| message(b"\x92\x01\xa5abcde", &[b"\x91\x95\xa1:\x02", &[offset][..], b"\x01\xa1-"].concat());
        assert_eq!(bound(0), (25, "SPLICE error on field 2: offset is out of bound".into()));
        assert_eq!(bound(-7i8 as u8).0, 25);
    }

    #[test]
    fn fields_by_name() {
        assert_eq!(update(USER, b"\x92\x93\xa1=\xa4name\xa1x\x93\xa1-\xa3age\x01"), b"\x93\x01\xa1x\x13");
        assert_eq!(
            message(USER, b"\x91\x93\xa1=\xa4nope\x01"),
            (201, "Field 'nope' was not found in the tuple".into())
        );
        assert_eq!(
            message(USER, b"\x91\x93\xa1+\xa4name\x01").1,
            "Argument type in operation '+' on field 'name' does not match field type: expected a number"
        );
    }

    #[test]
    fn paths_lead_inside_a_field() {
        use super::super::{show, tests::mp};
        let run = |ops: &str| {
            let tuple = mp(r#"[1, "u", {"a": 1, "b": [1, 2, 3], "c": {"d": "text"}}]"#);
            run(&tuple, &mp(ops), Mode::Update).map(|t| show::tuple(&t)).map_err(|e| (e.code, e.message))
        };
        let changed =
            |ops: &str, expected: &str| assert_eq!(run(ops).unwrap(), format!(r#"[1, "u", {expected}]"#), "{ops}");
        changed(r##"[["=", "age.a", 5]]"##, r#"{"a": 5, "b": [1, 2, 3], "c": {"d": "text"}}"#);
        changed(r##"[["+", "age.b[2]", 5]]"##, r#"{"a": 1, "b": [1, 7, 3], "c": {"d": "text"}}"#);
        changed(r##"[["=", "[3].b[4]", 4]]"##, r#"{"a": 1, "b": [1, 2, 3, 4], "c": {"d": "text"}}"#);
        changed(r##"[["!", "age.b[1]", 0]]"##, r#"{"a": 1, "b": [0, 1, 2, 3], "c": {"d": "text"}}"#);
        changed(r##"[["#", "age.b[2]", 9]]"##, r#"{"a": 1, "b": [1], "c": {"d": "text"}}"#);
        changed(r##"[["#", "age.b", 1], ["#", "age.c.d", 1]]"##, r#"{"a": 1, "c": {}}"#);
        changed(
            r##"[["!", "age.z", null], [":", "age.c['d']", 1, 1, "T"]]"##,
            r#"{"z": null, "a": 1, "b": [1, 2, 3], "c": {"d": "Text"}}"#,
        );
        let refused =
            |ops: &str, code: u32, text: &str| assert_eq!(run(ops).unwrap_err(), (code, text.into()), "{ops}");
        refused(r##"[["=", "age.x.y", 1]]"##, 201, "Field ''age.x.y'' was not found in the tuple");
        refused(r##"[["=", "age.b[9]", 1]]"##, 201, "Field ''age.b[9]'' was not found in the tuple");
        refused(r##"[["!", "age.a", 1]]"##, 29, "Field 'age.a' UPDATE error: the key exists already");
        refused(
            r##"[["#", "age.a", 2]]"##,
            29,
            "Field 'age.a' UPDATE error: can delete only 1 field from a map in a row",
        );
        refused(
            r##"[["=", "age.a.b", 1]]"##,
            29,
            "Field 'age.a.b' UPDATE error: can not access by key a non-map field",
        );
        refused(
            r##"[["=", "age.a[1]", 1]]"##,
            29,
            "Field 'age.a[1]' UPDATE error: can not access by index a non-array field",
        );
        refused(r##"[["=", "age.b[", 1]]"##, 29, "Field 'age.b[' UPDATE error: invalid JSON in position 6");
        refused(
            r##"[["+", "age.c.d", 1]]"##,
            26,
            "Argument type in operation '+' on field 'age.c.d' does not match field type: expected a number",
        );
    }

    #[test]
    fn malformed_operations() {
        for (ops, code, text) in [
            (&b"\x91\x93\xa1?\x03\x01"[..], 28, "Unknown UPDATE operation #1: \"?\""),
            (b"\x91\x92\xa1=\x03", 28, "Unknown UPDATE operation #1: wrong number of arguments, expected 3, got 2"),
            (b"\x91\x05", 1, "update operation must be an array {op,..}"),
            (b"\x91\x90", 1, "update operation must be an array {op,..}, got empty array"),
            (b"\x91\x91\x01", 1, "update operation name must be a string"),
            (b"\x91\x93\xa1=\xc0\x01", 1, "field id must be a number or a string"),
            (b"\x91\x93\xa1=\x00\x01", 37, "Field 0 was not found in the tuple"),
            (
                b"\x91\x93\xa1+\x03\xa1x",
                26,
                "Argument type in operation '+' on field 3 does not match field type: expected a number",
            ),
            (
                b"\x91\x93\xa1&\x03\xff",
                26,
                "Argument type in operation '&' on field 3 does not match field type: expected a positive integer",
            ),
            (
                b"\x91\x93\xa1+\x02\x01",
                26,
                "Argument type in operation '+' on field 2 does not match field type: expected a number",
            ),
            (
                b"\x91\x93\xa1#\x02\xff",
                26,
                "Argument type in operation '#' on field 2 does not match field type: expected a positive integer",
            ),
            (b"\x81\x01\x02", 22, "Tuple/Key must be MsgPack array"),
            (b"\x92\x93\xa1=\x01\x01", 20, "Invalid MsgPack - packet body"),
        ] {
            assert_eq!(message(USER, ops), (code, text.into()));
        }
    }

    #[test]
    fn upsert_leaves_out_what_does_not_fit() {
        let ops = b"\x93\x93\xa1+\x02\x01\x93\xa1=\xfc\x01\x93\xa1+\x03\x01";
        assert_eq!(run(USER, ops, Mode::Upsert).unwrap(), b"\x93\x01\xa5user1\x15");
        assert_eq!(run(USER, b"\x91\x93\xa1?\x03\x01", Mode::Upsert).unwrap_err().code, 28);
    }

    #[test]
    fn hostile_operations_never_panic() {
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let valid = b"\x94\x93\xa1+\x03\x01\x95\xa1:\x02\x02\x01\xa2ZZ\x93\xa1!\x04\x91\xa1n\x93\xa1#\xff\x01";
        for _ in 0..20_000 {
            let mut ops = valid.to_vec();
            for _ in 0..next() % 4 {
                let at = next() as usize % ops.len();
                ops[at] = next() as u8;
            }
            if let Ok(tuple) = run(USER, &ops, Mode::Upsert) {
                assert_eq!(mp::skip(&tuple), Some(tuple.len()));
            }
        }
    }
}
