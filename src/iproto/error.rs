//! The error stack of a response and of the MessagePack extension 3.
//!
//! ```text
//! response body {0x31: message, 0x52: stack map}      extension payload: stack map
//! stack map     {0: [entry, cause of it, ...]}
//! entry         {0: type, 2: line, 1: file, 3: message, 4: errno, 5: code[, 6: {field: value}]}
//! ```
//!
//! Entries borrow from the input and are read one at a time, so a reader may stop, or leave by a jump, at any entry.
//!
//! Source: `src/box/mp_error.cc`, `src/box/xrow.c` (`xrow_decode_error`), 3.9-dev.

use super::constants::key;
use super::mp::{self, Family, MpError, Reader};

mod field {
    pub(super) const TYPE: u64 = 0;
    pub(super) const FILE: u64 = 1;
    pub(super) const LINE: u64 = 2;
    pub(super) const MESSAGE: u64 = 3;
    pub(super) const ERRNO: u64 = 4;
    pub(super) const CODE: u64 = 5;
    pub(super) const FIELDS: u64 = 6;
}

/// One error of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ErrorEntry<'a> {
    /// The class: `ClientError`, `CustomError`, ...
    pub kind: &'a [u8],
    /// The source file it was raised in.
    pub file: &'a [u8],
    /// The line in it.
    pub line: u32,
    /// The text.
    pub message: &'a [u8],
    /// The system's error number, or 0.
    pub errno: u32,
    /// The error code.
    pub code: u32,
    /// The payload as a MessagePack map, or empty.
    pub fields: &'a [u8],
}

/// Why a stack cannot be read; `Display` is the detail of Tarantool's `Invalid MsgPack - %s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorStackError {
    /// Broken MessagePack.
    Mp(MpError),
    /// A value of the wrong family: what it is and what it must be.
    Family(&'static str, &'static str),
    /// A mandatory part is not there.
    Missing(&'static str),
}

impl std::fmt::Display for ErrorStackError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ErrorStackError::Mp(error) => error.fmt(f),
            ErrorStackError::Family(what, must) => write!(f, "{what} must be {must}"),
            ErrorStackError::Missing(what) => write!(f, "{what} is missing"),
        }
    }
}

impl std::error::Error for ErrorStackError {}

impl From<MpError> for ErrorStackError {
    fn from(error: MpError) -> Self {
        ErrorStackError::Mp(error)
    }
}

type Result<T> = std::result::Result<T, ErrorStackError>;

fn expect(reader: &Reader<'_>, family: Family, what: &'static str, must: &'static str) -> Result<()> {
    if reader.peek()? == family { Ok(()) } else { Err(ErrorStackError::Family(what, must)) }
}

/// The entries of a stack, topmost first; each `next` reads one.
#[derive(Debug, Clone, Copy)]
pub struct ErrorStack<'a> {
    reader: Reader<'a>,
    left: u32,
}

impl<'a> ErrorStack<'a> {
    /// Reads a stack map up to its first entry.
    ///
    /// # Errors
    /// [`ErrorStackError`]
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        expect(&reader, Family::Map, "error data", "MP_MAP")?;
        for _ in 0..reader.read_map()? {
            expect(&reader, Family::Uint, "error data key", "MP_UINT")?;
            if reader.read_uint()? == 0 {
                expect(&reader, Family::Array, "MP_ERROR_STACK value", "MP_ARRAY")?;
                let left = reader.read_array()?;
                return Ok(ErrorStack { reader, left });
            }
            reader.skip()?;
        }
        Err(ErrorStackError::Missing("MP_ERROR_STACK"))
    }

    fn entry(&mut self) -> Result<ErrorEntry<'a>> {
        let reader = &mut self.reader;
        expect(reader, Family::Map, "MP_ERROR_STACK array entry", "MP_MAP")?;
        let (mut kind, mut message, mut file) = (None, None, None);
        let mut entry = ErrorEntry::default();
        for _ in 0..reader.read_map()? {
            expect(reader, Family::Uint, "error field key", "MP_UINT")?;
            match reader.read_uint()? {
                field::TYPE => kind = Some(text(reader, "MP_ERROR_TYPE value")?),
                field::FILE => file = Some(text(reader, "MP_ERROR_FILE value")?),
                field::MESSAGE => message = Some(text(reader, "MP_ERROR_MESSAGE value")?),
                field::LINE => entry.line = number(reader, "MP_ERROR_LINE value")?,
                field::ERRNO => entry.errno = number(reader, "MP_ERROR_ERRNO value")?,
                field::CODE => entry.code = number(reader, "MP_ERROR_CODE value")?,
                field::FIELDS => entry.fields = payload(reader)?,
                _ => reader.skip()?,
            }
        }
        entry.kind = kind.ok_or(ErrorStackError::Missing("MP_ERROR_TYPE"))?;
        entry.message = message.ok_or(ErrorStackError::Missing("MP_ERROR_MESSAGE"))?;
        entry.file = file.ok_or(ErrorStackError::Missing("MP_ERROR_FILE"))?;
        Ok(entry)
    }
}

impl<'a> Iterator for ErrorStack<'a> {
    type Item = Result<ErrorEntry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let entry = self.entry();
        if entry.is_err() {
            self.left = 0;
        }
        Some(entry)
    }
}

fn text<'a>(reader: &mut Reader<'a>, what: &'static str) -> Result<&'a [u8]> {
    expect(reader, Family::Str, what, "MP_STR")?;
    Ok(reader.read_str()?)
}

fn number(reader: &mut Reader<'_>, what: &'static str) -> Result<u32> {
    expect(reader, Family::Uint, what, "MP_UINT")?;
    Ok(reader.read_uint()? as u32)
}

/// The payload's bytes, after a look at its keys.
fn payload<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8]> {
    expect(reader, Family::Map, "MP_ERROR_FIELDS value", "MP_MAP")?;
    let mut keys = *reader;
    for _ in 0..keys.read_map()? {
        expect(&keys, Family::Str, "error payload field name", "MP_STR")?;
        keys.read_str()?;
        keys.skip()?;
    }
    Ok(reader.raw()?)
}

/// What the body of an error response says.
#[derive(Debug, Clone, Copy)]
pub enum ErrorBody<'a> {
    /// A whole stack; it wins over a plain message.
    Stack(ErrorStack<'a>),
    /// A plain message: an error of class `ClientError` with the response's code.
    Message(&'a [u8]),
}

/// Reads the body of an error response. Anything unreadable gives an empty message, as in Tarantool, since the code in
/// the header says what matters.
pub fn decode_body(body: &[u8]) -> ErrorBody<'_> {
    let mut message = &[][..];
    match find_stack(body, &mut message) {
        Ok(Some(stack)) => ErrorBody::Stack(stack),
        Ok(None) => ErrorBody::Message(message),
        Err(_) => ErrorBody::Message(&[]),
    }
}

fn find_stack<'a>(body: &'a [u8], message: &mut &'a [u8]) -> Result<Option<ErrorStack<'a>>> {
    let mut reader = Reader::new(body);
    for _ in 0..reader.read_map()? {
        if reader.peek()? != Family::Uint {
            reader.skip()?;
            reader.skip()?;
            continue;
        }
        let key = reader.read_uint()?;
        if key == u64::from(key::ERROR) {
            let stack = ErrorStack::new(reader.raw()?)?;
            stack.into_iter().try_for_each(|entry| entry.map(drop))?;
            return Ok(Some(stack));
        } else if key == u64::from(key::ERROR_24) && reader.peek()? == Family::Str {
            *message = reader.read_str()?;
        } else {
            reader.skip()?;
        }
    }
    Ok(None)
}

/// Appends a stack map.
pub fn encode_stack<'a>(out: &mut Vec<u8>, entries: impl ExactSizeIterator<Item = ErrorEntry<'a>>) {
    mp::put_map(out, 1);
    mp::put_uint(out, 0);
    mp::put_array(out, u32::try_from(entries.len()).unwrap_or(u32::MAX));
    for entry in entries {
        encode_entry(out, &entry);
    }
}

/// Appends one entry of a stack.
pub fn encode_entry(out: &mut Vec<u8>, entry: &ErrorEntry<'_>) {
    mp::put_map(out, if entry.fields.is_empty() { 6 } else { 7 });
    // Tarantool's own order: type, line, file, message, errno, code, fields.
    mp::put_uint(out, field::TYPE);
    mp::put_str(out, entry.kind);
    mp::put_uint(out, field::LINE);
    mp::put_uint(out, entry.line.into());
    mp::put_uint(out, field::FILE);
    mp::put_str(out, entry.file);
    mp::put_uint(out, field::MESSAGE);
    mp::put_str(out, entry.message);
    mp::put_uint(out, field::ERRNO);
    mp::put_uint(out, entry.errno.into());
    mp::put_uint(out, field::CODE);
    mp::put_uint(out, entry.code.into());
    if !entry.fields.is_empty() {
        mp::put_uint(out, field::FIELDS);
        out.extend_from_slice(entry.fields);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn entry() -> ErrorEntry<'static> {
        ErrorEntry {
            kind: b"ClientError",
            file: b"f.lua",
            line: 3,
            message: b"boom",
            errno: 0,
            code: 32,
            fields: &[0x81, 0xa1, b'k', 1],
        }
    }

    #[test]
    fn a_stack_survives() {
        let cause = ErrorEntry { message: b"cause", fields: &[], ..entry() };
        let mut out = Vec::new();
        encode_stack(&mut out, [entry(), cause].into_iter());
        let entries: Result<Vec<_>> = ErrorStack::new(&out).unwrap().collect();
        assert_eq!(entries, Ok(vec![entry(), cause]));
    }

    #[test]
    fn the_stack_wins_over_the_message() {
        let mut body = vec![0x82, 0x31, 0xa1, b'm', 0x52];
        encode_stack(&mut body, [entry()].into_iter());
        let ErrorBody::Stack(mut stack) = decode_body(&body) else { panic!("no stack") };
        assert_eq!(stack.next(), Some(Ok(entry())));
        assert!(matches!(decode_body(&[0x81, 0x31, 0xa1, b'm']), ErrorBody::Message(b"m")));
    }

    #[test]
    fn an_unreadable_body_is_an_empty_message() {
        for body in [&[][..], &[0x90], &[0x81], &[0x81, 0x52, 0x80], &[0x81, 0x52, 0x81, 0, 0x91, 0x80], &[0xc1]] {
            assert!(matches!(decode_body(body), ErrorBody::Message(b"")), "{body:x?}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let text = |bytes: &[u8]| match ErrorStack::new(bytes) {
            Err(error) => error.to_string(),
            Ok(mut stack) => stack.next().unwrap().unwrap_err().to_string(),
        };
        assert_eq!(text(&[0x90]), "error data must be MP_MAP");
        assert_eq!(text(&[0x80]), "MP_ERROR_STACK is missing");
        assert_eq!(text(&[0x81, 0, 1]), "MP_ERROR_STACK value must be MP_ARRAY");
        assert_eq!(text(&[0x81, 0, 0x91, 0x80]), "MP_ERROR_TYPE is missing");
        assert_eq!(text(&[0x81, 0, 0x91, 0x81, 0, 0xa1, b't']), "MP_ERROR_MESSAGE is missing");
        assert_eq!(text(&[0x81, 0, 0x91, 0x82, 0, 0xa0, 3, 0xa0]), "MP_ERROR_FILE is missing");
        assert_eq!(text(&[0x81, 0, 0x91, 0x81, 0, 5]), "MP_ERROR_TYPE value must be MP_STR");
        assert_eq!(text(&[0x81, 0, 0x91, 0x81, 2, 0xa0]), "MP_ERROR_LINE value must be MP_UINT");
        assert_eq!(text(&[0x81, 0, 0x91, 0x81, 6, 0x90]), "MP_ERROR_FIELDS value must be MP_MAP");
        assert_eq!(text(&[0x81, 0, 0x91, 0x81, 6, 0x81, 1, 1]), "error payload field name must be MP_STR");
        assert_eq!(text(&[0x81, 0, 0x91, 0x81, 6]), "truncated input");
    }
}
