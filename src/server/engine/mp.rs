//! MessagePack values out of slices, through the bounded reader of the protocol.

use crate::iproto::mp::{Family, Reader};

/// One value; of an array or a map only the header.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Nil,
    Bool(bool),
    Uint(u64),
    /// An integer of a signed form, which peers use for negative ones.
    Int(i64),
    F32(f32),
    F64(f64),
    Str(&'a [u8]),
    Bin(&'a [u8]),
    Array(u32),
    Map(u32),
    Ext(i8, &'a [u8]),
}

impl Value<'_> {
    /// Tarantool's name of the MessagePack type, as in "got string".
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Value::Nil => "nil",
            Value::Bool(_) => "boolean",
            Value::Uint(_) => "unsigned",
            Value::Int(_) => "integer",
            Value::F32(_) => "float",
            Value::F64(_) => "double",
            Value::Str(_) => "string",
            Value::Bin(_) => "blob",
            Value::Array(_) => "array",
            Value::Map(_) => "map",
            Value::Ext(..) => "extension",
        }
    }
}

/// Extension types of Tarantool.
pub(crate) const EXT_DECIMAL: i8 = 1;
pub(crate) const EXT_UUID: i8 = 2;
pub(crate) const EXT_DATETIME: i8 = 4;
pub(crate) const EXT_INTERVAL: i8 = 6;

/// The first value of `data` and the length of what was read (of an array or a map: its header).
#[inline]
pub(crate) fn read(data: &[u8]) -> Option<(Value<'_>, usize)> {
    // What most values begin with is read at once, the others through the reader.
    match *data.first()? {
        byte @ 0..=0x7f => Some((Value::Uint(byte.into()), 1)),
        byte @ 0xa0..=0xbf => {
            let end = 1 + usize::from(byte & 0x1f);
            Some((Value::Str(data.get(1..end)?), end))
        }
        byte @ 0x90..=0x9f => Some((Value::Array((byte & 0x0f).into()), 1)),
        0xcc => Some((Value::Uint((*data.get(1)?).into()), 2)),
        0xcd => Some((Value::Uint(u16::from_be_bytes(*data.get(1..)?.first_chunk()?).into()), 3)),
        0xce => Some((Value::Uint(u32::from_be_bytes(*data.get(1..)?.first_chunk()?).into()), 5)),
        _ => read_other(data),
    }
}

fn read_other(data: &[u8]) -> Option<(Value<'_>, usize)> {
    let mut reader = Reader::new(data);
    let value = match reader.peek().ok()? {
        Family::Nil => reader.read_nil().map(|()| Value::Nil),
        Family::Bool => reader.read_bool().map(Value::Bool),
        Family::Uint => reader.read_uint().map(Value::Uint),
        Family::Int => reader.read_integer().map(|n| Value::Int(n as i64)),
        Family::Float => reader.read_double().map(|d| Value::F32(d as f32)),
        Family::Double => reader.read_double().map(Value::F64),
        Family::Str => reader.read_str().map(Value::Str),
        Family::Bin => reader.read_bin().map(Value::Bin),
        Family::Array => reader.read_array().map(Value::Array),
        Family::Map => reader.read_map().map(Value::Map),
        Family::Ext => reader.read_ext().map(|(kind, body)| Value::Ext(kind, body)),
    };
    Some((value.ok()?, reader.position()))
}

/// The length of the first value of `data` with all it contains, or nothing when it is not whole and valid.
#[inline]
pub(crate) fn skip(data: &[u8]) -> Option<usize> {
    let whole = match *data.first()? {
        0..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => return Some(1),
        byte @ 0xa0..=0xbf => 1 + usize::from(byte & 0x1f),
        0xcc | 0xd0 => 2,
        0xcd | 0xd1 => 3,
        0xca | 0xce | 0xd2 => 5,
        0xcb | 0xcf | 0xd3 => 9,
        _ => return skip_other(data),
    };
    (whole <= data.len()).then_some(whole)
}

fn skip_other(data: &[u8]) -> Option<usize> {
    let mut reader = Reader::new(data);
    reader.skip().ok()?;
    Some(reader.position())
}

/// The elements of one array that fills `data` to the end: their number and their bytes.
pub(crate) fn array(data: &[u8]) -> Option<(u32, &[u8])> {
    match read(data)? {
        (Value::Array(n), header) => Some((n, data.get(header..)?)),
        _ => None,
    }
}

/// Splits the first value off `rest`.
pub(crate) fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (value, tail) = rest.split_at_checked(skip(rest)?)?;
    *rest = tail;
    Some(value)
}

/// Reads the first value of `rest` and moves past it (of an array or a map: past its header).
pub(crate) fn next<'a>(rest: &mut &'a [u8]) -> Option<Value<'a>> {
    let data = *rest;
    let (value, len) = read(data)?;
    *rest = data.get(len..)?;
    Some(value)
}

/// Field `n` (from 0) of the tuple, if it has that many.
pub fn field(tuple: &[u8], n: u32) -> Option<&[u8]> {
    let (count, mut rest) = array(tuple)?;
    if n >= count {
        return None;
    }
    for _ in 0..n {
        rest = rest.get(skip(rest)?..)?;
    }
    rest.get(..skip(rest)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_rmp_writes() {
        let mut out = Vec::new();
        for n in [0i64, 1, 127, 128, 255, 256, 65_535, 65_536, i64::MAX, -1, -32, -33, -129, -40_000, i64::MIN] {
            out.clear();
            rmp::encode::write_sint(&mut out, n).unwrap();
            let expected = if n < 0 { Value::Int(n) } else { Value::Uint(n as u64) };
            assert_eq!(read(&out), Some((expected, out.len())));
            assert_eq!(skip(&out), Some(out.len()));
        }
    }

    #[test]
    fn skips_nested_values_and_refuses_cut_ones() {
        let data = [0x92, 0x81, 0xa1, b'k', 0x93, 1, 2, 3, 0xc7, 2, 9, 0, 0];
        assert_eq!(skip(&data), Some(data.len()));
        for cut in 0..data.len() {
            assert_eq!(skip(&data[..cut]), None, "{cut}");
        }
        assert_eq!(skip(&[0xc1]), None);
    }

    #[test]
    fn the_short_ways_agree_with_the_reader() {
        let tails: [&[u8]; 4] = [&[], &[1], &[0xff; 4], &[0x92; 40]];
        for first in 0..=255_u8 {
            for tail in tails {
                let data = [&[first][..], tail].concat();
                // Not by value: there are NaNs among them.
                assert_eq!(format!("{:?}", read(&data)), format!("{:?}", read_other(&data)), "{data:x?}");
                assert_eq!(skip(&data), skip_other(&data), "{data:x?}");
            }
        }
    }

    #[test]
    fn hostile_lengths_end_with_the_data() {
        assert_eq!(skip(&[0xdd, 0xff, 0xff, 0xff, 0xff]), None);
        assert_eq!(skip(&[0xdf, 0xff, 0xff, 0xff, 0xff, 0xc0]), None);
        assert_eq!(skip(&[0xdb, 0xff, 0xff, 0xff, 0xff, 0]), None);
        assert_eq!(skip(&[0xc9, 0xff, 0xff, 0xff, 0xff, 0, 0]), None);
        let deep = vec![0x91; 1_000_000];
        assert_eq!(skip(&deep), None);
    }

    #[test]
    fn fields_by_number() {
        let tuple = [0x93, 1, 0xa1, b'x', 0x91, 7];
        assert_eq!(field(&tuple, 0), Some(&[1][..]));
        assert_eq!(field(&tuple, 1), Some(&[0xa1, b'x'][..]));
        assert_eq!(field(&tuple, 2), Some(&[0x91, 7][..]));
        assert_eq!(field(&tuple, 3), None);
    }
}
