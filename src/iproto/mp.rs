//! MessagePack primitives: [`Reader`], which never reads past its slice and never allocates, and `put_*` functions that
//! append to a `Vec`.
//!
//! Lengths a peer claims are only compared with the bytes that are there: an array of four thousand million elements in
//! a packet of five bytes is an error after those five bytes. Skipping keeps one counter instead of a stack, so depth
//! costs nothing. Source: the MessagePack specification; `src/lib/msgpuck` for the shortest forms.

use rmp::Marker;

/// What kind of value starts at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `c0`
    Nil,
    /// `c2`, `c3`
    Bool,
    /// Positive fixint, `cc`..`cf`
    Uint,
    /// Negative fixint, `d0`..`d3`
    Int,
    /// `ca`
    Float,
    /// `cb`
    Double,
    /// fixstr, `d9`..`db`
    Str,
    /// `c4`..`c6`
    Bin,
    /// fixarray, `dc`, `dd`
    Array,
    /// fixmap, `de`, `df`
    Map,
    /// `c7`..`c9`, `d4`..`d8`
    Ext,
}

/// Why bytes are not the value that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MpError {
    /// The input ends inside the value.
    Truncated,
    /// The byte `c1`, which MessagePack never uses.
    IllegalCode,
    /// A well-formed value of another family.
    WrongFamily,
}

impl std::fmt::Display for MpError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            MpError::Truncated => "truncated input",
            MpError::IllegalCode => "illegal code",
            MpError::WrongFamily => "unexpected msgpack type",
        })
    }
}

impl std::error::Error for MpError {}

/// Result of a read.
pub type Result<T> = std::result::Result<T, MpError>;

/// The family of a first byte; `None` for `c1`.
#[inline]
pub fn family(byte: u8) -> Option<Family> {
    Some(match byte {
        0x00..=0x7f | 0xcc..=0xcf => Family::Uint,
        0x80..=0x8f | 0xde | 0xdf => Family::Map,
        0x90..=0x9f | 0xdc | 0xdd => Family::Array,
        0xa0..=0xbf | 0xd9..=0xdb => Family::Str,
        0xc0 => Family::Nil,
        0xc1 => return None,
        0xc2 | 0xc3 => Family::Bool,
        0xc4..=0xc6 => Family::Bin,
        0xc7..=0xc9 | 0xd4..=0xd8 => Family::Ext,
        0xca => Family::Float,
        0xcb => Family::Double,
        0xd0..=0xd3 | 0xe0..=0xff => Family::Int,
    })
}

/// A cursor over a slice. A failed read leaves it somewhere inside the value; keep a copy to go back.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    /// A reader at offset `at` (clamped to the end).
    #[inline]
    pub fn at(bytes: &'a [u8], at: usize) -> Self {
        Reader { bytes, at: at.min(bytes.len()) }
    }

    /// Bytes read so far.
    #[inline]
    pub fn position(&self) -> usize {
        self.at
    }

    /// What has not been read.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Whether everything was read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// [`MpError::Truncated`]
    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let taken = self.rest().get(..len).ok_or(MpError::Truncated)?;
        self.at += len;
        Ok(taken)
    }

    #[inline]
    fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.rest().first_chunk::<N>().ok_or(MpError::Truncated)?;
        self.at += N;
        Ok(*taken)
    }

    #[inline]
    fn u8(&mut self) -> Result<u8> {
        self.fixed::<1>().map(|[b]| b)
    }

    #[inline]
    fn u16(&mut self) -> Result<u16> {
        self.fixed().map(u16::from_be_bytes)
    }

    #[inline]
    fn u32(&mut self) -> Result<u32> {
        self.fixed().map(u32::from_be_bytes)
    }

    #[inline]
    fn u64(&mut self) -> Result<u64> {
        self.fixed().map(u64::from_be_bytes)
    }

    #[inline]
    fn marker(&mut self) -> Result<Marker> {
        self.u8().map(Marker::from_u8)
    }

    /// The family of the next value, which is not read.
    ///
    /// # Errors
    /// [`MpError::Truncated`] at the end, [`MpError::IllegalCode`] for `c1`.
    #[inline]
    pub fn peek(&self) -> Result<Family> {
        let byte = self.bytes.get(self.at).ok_or(MpError::Truncated)?;
        family(*byte).ok_or(MpError::IllegalCode)
    }

    /// Reads nil.
    ///
    /// # Errors
    /// [`MpError`], as for every `read_*`: truncated, `c1`, or another family.
    #[inline]
    pub fn read_nil(&mut self) -> Result<()> {
        match self.marker()? {
            Marker::Null => Ok(()),
            other => Err(mismatch(other)),
        }
    }

    /// Reads a boolean.
    ///
    /// # Errors
    /// [`MpError`]
    #[inline]
    pub fn read_bool(&mut self) -> Result<bool> {
        match self.marker()? {
            Marker::True => Ok(true),
            Marker::False => Ok(false),
            other => Err(mismatch(other)),
        }
    }

    /// Reads an unsigned integer in any of its forms, shortest or not.
    ///
    /// # Errors
    /// [`MpError`]
    #[inline]
    pub fn read_uint(&mut self) -> Result<u64> {
        match self.marker()? {
            Marker::FixPos(v) => Ok(v.into()),
            Marker::U8 => self.u8().map(u64::from),
            Marker::U16 => self.u16().map(u64::from),
            Marker::U32 => self.u32().map(u64::from),
            Marker::U64 => self.u64(),
            other => Err(mismatch(other)),
        }
    }

    /// Reads an integer of either family: the value fits `i128` and, in practice, `i64` or `u64`.
    ///
    /// # Errors
    /// [`MpError`]
    #[inline]
    pub fn read_integer(&mut self) -> Result<i128> {
        match self.peek()? {
            Family::Uint => self.read_uint().map(i128::from),
            _ => match self.marker()? {
                Marker::FixNeg(v) => Ok(v.into()),
                Marker::I8 => self.u8().map(|v| (v as i8).into()),
                Marker::I16 => self.u16().map(|v| (v as i16).into()),
                Marker::I32 => self.u32().map(|v| (v as i32).into()),
                Marker::I64 => self.u64().map(|v| (v as i64).into()),
                other => Err(mismatch(other)),
            },
        }
    }

    /// Reads a float of 32 or 64 bits.
    ///
    /// # Errors
    /// [`MpError`]
    #[inline]
    pub fn read_double(&mut self) -> Result<f64> {
        match self.marker()? {
            Marker::F32 => self.u32().map(|bits| f32::from_bits(bits).into()),
            Marker::F64 => self.u64().map(f64::from_bits),
            other => Err(mismatch(other)),
        }
    }

    /// Reads a string's bytes, which need not be UTF-8.
    ///
    /// # Errors
    /// [`MpError`]
    #[inline]
    pub fn read_str(&mut self) -> Result<&'a [u8]> {
        let len = match self.marker()? {
            Marker::FixStr(len) => len as usize,
            Marker::Str8 => self.u8()? as usize,
            Marker::Str16 => self.u16()? as usize,
            Marker::Str32 => self.u32()? as usize,
            other => return Err(mismatch(other)),
        };
        self.take(len)
    }

    /// Reads a binary's bytes.
    ///
    /// # Errors
    /// [`MpError`]
    #[inline]
    pub fn read_bin(&mut self) -> Result<&'a [u8]> {
        let len = match self.marker()? {
            Marker::Bin8 => self.u8()? as usize,
            Marker::Bin16 => self.u16()? as usize,
            Marker::Bin32 => self.u32()? as usize,
            other => return Err(mismatch(other)),
        };
        self.take(len)
    }

    /// Reads an array's header: how many values follow. Nothing says they are there.
    ///
    /// # Errors
    /// [`MpError`]
    #[inline]
    pub fn read_array(&mut self) -> Result<u32> {
        match self.marker()? {
            Marker::FixArray(len) => Ok(len.into()),
            Marker::Array16 => self.u16().map(u32::from),
            Marker::Array32 => self.u32(),
            other => Err(mismatch(other)),
        }
    }

    /// Reads a map's header: how many pairs follow. Nothing says they are there.
    ///
    /// # Errors
    /// [`MpError`]
    #[inline]
    pub fn read_map(&mut self) -> Result<u32> {
        match self.marker()? {
            Marker::FixMap(len) => Ok(len.into()),
            Marker::Map16 => self.u16().map(u32::from),
            Marker::Map32 => self.u32(),
            other => Err(mismatch(other)),
        }
    }

    /// Reads an extension: its type and payload.
    ///
    /// # Errors
    /// [`MpError`]
    #[inline]
    pub fn read_ext(&mut self) -> Result<(i8, &'a [u8])> {
        let len = match self.marker()? {
            Marker::FixExt1 => 1,
            Marker::FixExt2 => 2,
            Marker::FixExt4 => 4,
            Marker::FixExt8 => 8,
            Marker::FixExt16 => 16,
            Marker::Ext8 => self.u8()? as usize,
            Marker::Ext16 => self.u16()? as usize,
            Marker::Ext32 => self.u32()? as usize,
            other => return Err(mismatch(other)),
        };
        let kind = self.u8()? as i8;
        Ok((kind, self.take(len)?))
    }

    /// Skips one value, however deep.
    ///
    /// # Errors
    /// [`MpError::Truncated`], [`MpError::IllegalCode`]
    pub fn skip(&mut self) -> Result<()> {
        // Values still to skip. Each costs at least a byte, so a false count ends at the input's end.
        let mut pending = 1_u64;
        while pending > 0 {
            pending -= 1;
            match self.marker()? {
                Marker::Reserved => return Err(MpError::IllegalCode),
                Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::False | Marker::True => {}
                Marker::U8 | Marker::I8 => self.advance(1)?,
                Marker::U16 | Marker::I16 => self.advance(2)?,
                Marker::U32 | Marker::I32 | Marker::F32 => self.advance(4)?,
                Marker::U64 | Marker::I64 | Marker::F64 => self.advance(8)?,
                Marker::FixStr(len) => self.advance(len as usize)?,
                Marker::Str8 | Marker::Bin8 => self.u8().and_then(|len| self.advance(len as usize))?,
                Marker::Str16 | Marker::Bin16 => self.u16().and_then(|len| self.advance(len as usize))?,
                Marker::Str32 | Marker::Bin32 => self.u32().and_then(|len| self.advance(len as usize))?,
                Marker::FixArray(len) => pending += u64::from(len),
                Marker::Array16 => pending += u64::from(self.u16()?),
                Marker::Array32 => pending += u64::from(self.u32()?),
                Marker::FixMap(len) => pending += 2 * u64::from(len),
                Marker::Map16 => pending += 2 * u64::from(self.u16()?),
                Marker::Map32 => pending += 2 * u64::from(self.u32()?),
                Marker::FixExt1 => self.advance(2)?,
                Marker::FixExt2 => self.advance(3)?,
                Marker::FixExt4 => self.advance(5)?,
                Marker::FixExt8 => self.advance(9)?,
                Marker::FixExt16 => self.advance(17)?,
                Marker::Ext8 => self.u8().and_then(|len| self.advance(len as usize + 1))?,
                Marker::Ext16 => self.u16().and_then(|len| self.advance(len as usize + 1))?,
                Marker::Ext32 => self.u32().and_then(|len| self.advance(len as usize + 1))?,
            }
        }
        Ok(())
    }

    /// Skips one value and returns its bytes.
    ///
    /// # Errors
    /// As [`Reader::skip`].
    pub fn raw(&mut self) -> Result<&'a [u8]> {
        let start = self.at;
        self.skip()?;
        Ok(self.bytes.get(start..self.at).unwrap_or_default())
    }

    #[inline]
    fn advance(&mut self, len: usize) -> Result<()> {
        if len > self.bytes.len() - self.at {
            return Err(MpError::Truncated);
        }
        self.at += len;
        Ok(())
    }
}

#[cold]
fn mismatch(found: Marker) -> MpError {
    if found == Marker::Reserved { MpError::IllegalCode } else { MpError::WrongFamily }
}

/// Appends `marker` and the bytes of a number behind it.
#[inline]
fn put<const N: usize>(out: &mut Vec<u8>, marker: u8, bytes: [u8; N]) {
    out.reserve(N + 1);
    out.push(marker);
    out.extend_from_slice(&bytes);
}

/// Appends nil.
#[inline]
pub fn put_nil(out: &mut Vec<u8>) {
    out.push(0xc0);
}

/// Appends a boolean.
#[inline]
pub fn put_bool(out: &mut Vec<u8>, value: bool) {
    out.push(if value { 0xc3 } else { 0xc2 });
}

/// Appends an unsigned integer in its shortest form.
#[inline]
pub fn put_uint(out: &mut Vec<u8>, value: u64) {
    match value {
        0..=0x7f => out.push(value as u8),
        0x80..=0xff => put(out, 0xcc, [value as u8]),
        0x100..=0xffff => put(out, 0xcd, (value as u16).to_be_bytes()),
        0x1_0000..=0xffff_ffff => put(out, 0xce, (value as u32).to_be_bytes()),
        _ => put(out, 0xcf, value.to_be_bytes()),
    }
}

/// Appends a signed integer in its shortest form; not negative ones go out as unsigned.
#[inline]
pub fn put_int(out: &mut Vec<u8>, value: i64) {
    match value {
        0.. => put_uint(out, value as u64),
        -0x20..=-1 => out.push(value as u8),
        -0x80..=-0x21 => put(out, 0xd0, [value as u8]),
        -0x8000..=-0x81 => put(out, 0xd1, (value as i16).to_be_bytes()),
        -0x8000_0000..=-0x8001 => put(out, 0xd2, (value as i32).to_be_bytes()),
        _ => put(out, 0xd3, value.to_be_bytes()),
    }
}

/// Appends a float of 32 bits.
#[inline]
pub fn put_float(out: &mut Vec<u8>, value: f32) {
    put(out, 0xca, value.to_be_bytes());
}

/// Appends a float of 64 bits.
#[inline]
pub fn put_double(out: &mut Vec<u8>, value: f64) {
    put(out, 0xcb, value.to_be_bytes());
}

/// Appends a string's header.
#[inline]
pub fn put_str_len(out: &mut Vec<u8>, len: u32) {
    match len {
        0..=0x1f => out.push(0xa0 | len as u8),
        0x20..=0xff => put(out, 0xd9, [len as u8]),
        0x100..=0xffff => put(out, 0xda, (len as u16).to_be_bytes()),
        _ => put(out, 0xdb, len.to_be_bytes()),
    }
}

/// Appends a string. Bytes beyond 4 GiB do not exist in MessagePack: the text is cut there.
#[inline]
pub fn put_str(out: &mut Vec<u8>, text: &[u8]) {
    let text = text.get(..u32::MAX as usize).unwrap_or(text);
    put_str_len(out, text.len() as u32);
    out.extend_from_slice(text);
}

/// Appends a binary's header.
#[inline]
pub fn put_bin_len(out: &mut Vec<u8>, len: u32) {
    match len {
        0..=0xff => put(out, 0xc4, [len as u8]),
        0x100..=0xffff => put(out, 0xc5, (len as u16).to_be_bytes()),
        _ => put(out, 0xc6, len.to_be_bytes()),
    }
}

/// Appends an array's header.
#[inline]
pub fn put_array(out: &mut Vec<u8>, len: u32) {
    match len {
        0..=0xf => out.push(0x90 | len as u8),
        0x10..=0xffff => put(out, 0xdc, (len as u16).to_be_bytes()),
        _ => put(out, 0xdd, len.to_be_bytes()),
    }
}

/// Appends a map's header.
#[inline]
pub fn put_map(out: &mut Vec<u8>, len: u32) {
    match len {
        0..=0xf => out.push(0x80 | len as u8),
        0x10..=0xffff => put(out, 0xde, (len as u16).to_be_bytes()),
        _ => put(out, 0xdf, len.to_be_bytes()),
    }
}

/// Appends an extension's header; `len` bytes of payload must follow.
#[inline]
pub fn put_ext_len(out: &mut Vec<u8>, kind: i8, len: u32) {
    match len {
        1 => out.push(0xd4),
        2 => out.push(0xd5),
        4 => out.push(0xd6),
        8 => out.push(0xd7),
        16 => out.push(0xd8),
        0..=0xff => put(out, 0xc7, [len as u8]),
        0x100..=0xffff => put(out, 0xc8, (len as u16).to_be_bytes()),
        _ => put(out, 0xc9, len.to_be_bytes()),
    }
    out.push(kind as u8);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    #[test]
    fn integers_take_their_shortest_form_on_both_sides_of_each_boundary() {
        let cases: &[(i128, &[u8])] = &[
            (0, &[0]),
            (127, &[0x7f]),
            (128, &[0xcc, 0x80]),
            (255, &[0xcc, 0xff]),
            (256, &[0xcd, 1, 0]),
            (65535, &[0xcd, 0xff, 0xff]),
            (65536, &[0xce, 0, 1, 0, 0]),
            (4294967295, &[0xce, 0xff, 0xff, 0xff, 0xff]),
            (4294967296, &[0xcf, 0, 0, 0, 1, 0, 0, 0, 0]),
            (-1, &[0xff]),
            (-32, &[0xe0]),
            (-33, &[0xd0, 0xdf]),
            (-128, &[0xd0, 0x80]),
            (-129, &[0xd1, 0xff, 0x7f]),
            (-32768, &[0xd1, 0x80, 0]),
            (-32769, &[0xd2, 0xff, 0xff, 0x7f, 0xff]),
            (-2147483648, &[0xd2, 0x80, 0, 0, 0]),
            (-2147483649, &[0xd3, 0xff, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]),
        ];
        for (value, expected) in cases {
            let out = bytes(|out| put_int(out, *value as i64));
            assert_eq!(out, *expected, "{value}");
            assert_eq!(Reader::new(&out).read_integer(), Ok(*value));
        }
    }

    #[test]
    fn a_claimed_length_beyond_the_input_is_truncation() {
        for claim in [
            &[0xdd, 0xff, 0xff, 0xff, 0xff][..],
            &[0xdf, 0xff, 0xff, 0xff, 0xff],
            &[0xdb, 0xff, 0xff, 0xff, 0xff],
            &[0xc6, 0xff, 0xff, 0xff, 0xff],
            &[0xc9, 0xff, 0xff, 0xff, 0xff],
            &[0xd8, 1, 2],
            &[0xcf, 1, 2],
            &[],
        ] {
            assert_eq!(Reader::new(claim).skip(), Err(MpError::Truncated));
        }
    }

    #[test]
    fn the_unused_code_is_illegal_everywhere() {
        let c1 = &[0xc1][..];
        assert_eq!(Reader::new(c1).peek(), Err(MpError::IllegalCode));
        assert_eq!(Reader::new(c1).skip(), Err(MpError::IllegalCode));
        assert_eq!(Reader::new(c1).read_uint(), Err(MpError::IllegalCode));
        assert_eq!(Reader::new(&[0x92, 1, 0xc1]).skip(), Err(MpError::IllegalCode));
    }

    #[test]
    fn depth_costs_nothing() {
        let deep = vec![0x91; 1_000_000];
        assert_eq!(Reader::new(&deep).skip(), Err(MpError::Truncated));
        let mut closed = deep;
        closed.push(1);
        assert_eq!(Reader::new(&closed).raw(), Ok(&closed[..]));
    }

    #[test]
    fn a_value_of_another_family_is_named_so() {
        assert_eq!(Reader::new(&[0xc0]).read_uint(), Err(MpError::WrongFamily));
        assert_eq!(Reader::new(&[1]).read_nil(), Err(MpError::WrongFamily));
        assert_eq!(Reader::new(&[1]).read_str(), Err(MpError::WrongFamily));
        assert_eq!(Reader::new(&[0xa1, b'x']).read_array(), Err(MpError::WrongFamily));
        assert_eq!(Reader::new(&[0x90]).read_map(), Err(MpError::WrongFamily));
        assert_eq!(Reader::new(&[0x80]).read_ext(), Err(MpError::WrongFamily));
        assert_eq!(Reader::new(&[0xc4, 0]).read_str(), Err(MpError::WrongFamily));
        assert_eq!(Reader::new(&[0xa0]).read_bin(), Err(MpError::WrongFamily));
        assert_eq!(Reader::new(&[0xc0]).read_bool(), Err(MpError::WrongFamily));
        assert_eq!(Reader::new(&[0]).read_double(), Err(MpError::WrongFamily));
    }

    /// Bytes of one random value.
    fn value() -> impl Strategy<Value = Vec<u8>> {
        let leaf = prop_oneof![
            Just(bytes(put_nil)),
            any::<bool>().prop_map(|v| bytes(|out| put_bool(out, v))),
            any::<u64>().prop_map(|v| bytes(|out| put_uint(out, v >> (v % 64)))),
            any::<i64>().prop_map(|v| bytes(|out| put_int(out, v >> (v & 63)))),
            any::<f32>().prop_map(|v| bytes(|out| put_float(out, v))),
            any::<f64>().prop_map(|v| bytes(|out| put_double(out, v))),
            proptest::collection::vec(any::<u8>(), 0..300).prop_map(|v| bytes(|out| put_str(out, &v))),
            proptest::collection::vec(any::<u8>(), 0..300).prop_map(|v| bytes(|out| {
                put_bin_len(out, v.len() as u32);
                out.extend_from_slice(&v);
            })),
            (any::<i8>(), proptest::collection::vec(any::<u8>(), 0..20)).prop_map(|(kind, v)| bytes(|out| {
                put_ext_len(out, kind, v.len() as u32);
                out.extend_from_slice(&v);
            })),
        ];
        leaf.prop_recursive(4, 64, 20, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..20).prop_map(|items| bytes(|out| {
                    put_array(out, items.len() as u32);
                    out.extend(items.concat());
                })),
                proptest::collection::vec((inner.clone(), inner), 0..10).prop_map(|items| bytes(|out| {
                    put_map(out, items.len() as u32);
                    for (k, v) in items {
                        out.extend(k);
                        out.extend(v);
                    }
                })),
            ]
        })
    }

    /// Reads a value with the typed readers and writes it again.
    fn rewrite(reader: &mut Reader<'_>, out: &mut Vec<u8>) -> Result<()> {
        match reader.peek()? {
            Family::Nil => reader.read_nil().map(|()| put_nil(out)),
            Family::Bool => reader.read_bool().map(|v| put_bool(out, v)),
            Family::Uint => reader.read_uint().map(|v| put_uint(out, v)),
            Family::Int => reader.read_integer().map(|v| put_int(out, v as i64)),
            Family::Float => {
                // Kept by bits: a NaN's payload may not survive widening.
                out.extend_from_slice(reader.raw()?);
                Ok(())
            }
            Family::Double => reader.read_double().map(|v| put_double(out, v)),
            Family::Str => reader.read_str().map(|v| put_str(out, v)),
            Family::Bin => reader.read_bin().map(|v| {
                put_bin_len(out, v.len() as u32);
                out.extend_from_slice(v);
            }),
            Family::Array => {
                let len = reader.read_array()?;
                put_array(out, len);
                (0..len).try_for_each(|_| rewrite(reader, out))
            }
            Family::Map => {
                let len = reader.read_map()?;
                put_map(out, len);
                (0..2 * len).try_for_each(|_| rewrite(reader, out))
            }
            Family::Ext => reader.read_ext().map(|(kind, v)| {
                put_ext_len(out, kind, v.len() as u32);
                out.extend_from_slice(v);
            }),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn what_was_written_is_read_and_written_the_same(value in value()) {
            let mut reader = Reader::new(&value);
            let mut again = Vec::new();
            prop_assert_eq!(rewrite(&mut reader, &mut again), Ok(()));
            prop_assert!(reader.is_empty());
            prop_assert_eq!(&again, &value);
            let mut reader = Reader::new(&value);
            prop_assert_eq!(reader.raw(), Ok(&value[..]));
        }

        #[test]
        fn every_prefix_is_truncated(value in value(), cut in any::<prop::sample::Index>()) {
            let cut = cut.index(value.len());
            prop_assert_eq!(Reader::new(&value[..cut]).skip(), Err(MpError::Truncated));
        }

        #[test]
        fn any_bytes_give_a_value_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut reader = Reader::new(&bytes);
            if reader.skip().is_ok() {
                prop_assert!(reader.position() <= bytes.len());
                prop_assert!(reader.position() > 0);
            }
        }
    }
}
