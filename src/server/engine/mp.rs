//! Reading MessagePack values out of slices: bounds checked, no recursion, nothing allocated.

/// One value; of an array or a map only the header.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Nil,
    Bool(bool),
    Uint(u64),
    /// A negative integer.
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
pub(crate) const EXT_TUPLE: i8 = 7;

fn be<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..)?.first_chunk::<N>().copied()
}

fn slice(data: &[u8], start: usize, len: usize) -> Option<(&[u8], usize)> {
    let end = start.checked_add(len)?;
    Some((data.get(start..end)?, end))
}

/// The first value of `data` and the length of what was read (of an array or a map: its header).
#[inline]
pub(crate) fn read(data: &[u8]) -> Option<(Value<'_>, usize)> {
    let byte = *data.first()?;
    Some(match byte {
        0x00..=0x7f => (Value::Uint(byte.into()), 1),
        0x80..=0x8f => (Value::Map((byte & 0x0f).into()), 1),
        0x90..=0x9f => (Value::Array((byte & 0x0f).into()), 1),
        0xa0..=0xbf => {
            let (s, end) = slice(data, 1, (byte & 0x1f).into())?;
            (Value::Str(s), end)
        }
        0xe0..=0xff => (Value::Int((byte as i8).into()), 1),
        _ => return read_wide(data, byte),
    })
}

fn read_wide(data: &[u8], byte: u8) -> Option<(Value<'_>, usize)> {
    let u8_at = |at| data.get(at).copied();
    let u16_at = |at| be(data, at).map(u16::from_be_bytes);
    let u32_at = |at| be(data, at).map(u32::from_be_bytes);
    let signed = |n: i64| if n < 0 { Value::Int(n) } else { Value::Uint(n as u64) };
    let bin = |(b, end)| (Value::Bin(b), end);
    let str = |(b, end)| (Value::Str(b), end);
    let ext = |at: usize, len: usize| -> Option<(Value<'_>, usize)> {
        let kind = *data.get(at)? as i8;
        let (body, end) = slice(data, at + 1, len)?;
        Some((Value::Ext(kind, body), end))
    };
    Some(match byte {
        0xc0 => (Value::Nil, 1),
        0xc2 => (Value::Bool(false), 1),
        0xc3 => (Value::Bool(true), 1),
        0xc4 => bin(slice(data, 2, u8_at(1)?.into())?),
        0xc5 => bin(slice(data, 3, u16_at(1)?.into())?),
        0xc6 => bin(slice(data, 5, u32_at(1)? as usize)?),
        0xc7 => ext(2, u8_at(1)?.into())?,
        0xc8 => ext(3, u16_at(1)?.into())?,
        0xc9 => ext(5, u32_at(1)? as usize)?,
        0xca => (Value::F32(f32::from_be_bytes(be(data, 1)?)), 5),
        0xcb => (Value::F64(f64::from_be_bytes(be(data, 1)?)), 9),
        0xcc => (Value::Uint(u8_at(1)?.into()), 2),
        0xcd => (Value::Uint(u16_at(1)?.into()), 3),
        0xce => (Value::Uint(u32_at(1)?.into()), 5),
        0xcf => (Value::Uint(u64::from_be_bytes(be(data, 1)?)), 9),
        0xd0 => (signed((u8_at(1)? as i8).into()), 2),
        0xd1 => (signed(i16::from_be_bytes(be(data, 1)?).into()), 3),
        0xd2 => (signed(i32::from_be_bytes(be(data, 1)?).into()), 5),
        0xd3 => (signed(i64::from_be_bytes(be(data, 1)?)), 9),
        0xd4 => ext(1, 1)?,
        0xd5 => ext(1, 2)?,
        0xd6 => ext(1, 4)?,
        0xd7 => ext(1, 8)?,
        0xd8 => ext(1, 16)?,
        0xd9 => str(slice(data, 2, u8_at(1)?.into())?),
        0xda => str(slice(data, 3, u16_at(1)?.into())?),
        0xdb => str(slice(data, 5, u32_at(1)? as usize)?),
        0xdc => (Value::Array(u16_at(1)?.into()), 3),
        0xdd => (Value::Array(u32_at(1)?), 5),
        0xde => (Value::Map(u16_at(1)?.into()), 3),
        0xdf => (Value::Map(u32_at(1)?), 5),
        _ => return None,
    })
}

/// The length of the first value of `data` with all it contains, or nothing when it is not whole and valid.
#[inline]
pub(crate) fn skip(data: &[u8]) -> Option<usize> {
    let (value, end) = read(data)?;
    match value {
        Value::Array(n) => skip_many(data, end, n.into()),
        Value::Map(n) => skip_many(data, end, 2 * u64::from(n)),
        _ => Some(end),
    }
}

/// Skips `count` values from `at`. Each takes a byte at least, so a hostile count ends with the data.
fn skip_many(data: &[u8], mut at: usize, mut count: u64) -> Option<usize> {
    while count > 0 {
        let (value, len) = read(data.get(at..)?)?;
        at += len;
        count -= 1;
        count = match value {
            Value::Array(n) => count.checked_add(n.into())?,
            Value::Map(n) => count.checked_add(2 * u64::from(n))?,
            _ => count,
        };
    }
    Some(at)
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
pub(crate) fn field(tuple: &[u8], n: u32) -> Option<&[u8]> {
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
    fn a_positive_number_in_a_signed_form_is_unsigned() {
        assert_eq!(read(&[0xd0, 5]), Some((Value::Uint(5), 2)));
        assert_eq!(read(&[0xd3, 0, 0, 0, 0, 0, 0, 0, 9]), Some((Value::Uint(9), 9)));
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
