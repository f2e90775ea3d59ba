//! Packets out of a byte stream: framing, headers, and the bodies of requests.
//!
//! ```text
//! stream:   len | header | [body]   len | header | [body] ...
//! len       any MessagePack unsigned integer; counts header and body
//! header    map of small keys; unknown keys are skipped
//! ```
//!
//! Source: `src/box/iproto.cc`, `src/box/xrow.c` (`xrow_header_decode`, `xrow_decode_dml`, ...), 3.9-dev.

use super::constants::{key, key_family, kind};
use super::mp::{self, Family, MpError, Reader};

/// What stands at the start of an input buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// A packet: header and body are `start..end` of the buffer, the next packet begins at `end`.
    Packet {
        /// Where the header begins.
        start: usize,
        /// Where the packet ends.
        end: usize,
    },
    /// The packet is not all there: at least this many bytes of buffer are needed.
    Incomplete(usize),
}

/// Why the input is no sequence of packets; the stream cannot be followed any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// The length is no unsigned integer.
    Length,
    /// The length is over the limit: the length.
    TooBig(u64),
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FrameError::Length => f.write_str("Invalid MsgPack - packet length"),
            FrameError::TooBig(len) => write!(f, "too big packet size in the header: {len}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Looks for a packet at the start of `buffer`. `limit` is the longest packet accepted, in bytes after the length.
///
/// # Errors
/// [`FrameError`]: nothing after it can be trusted.
#[inline]
pub fn frame(buffer: &[u8], limit: u64) -> Result<Frame, FrameError> {
    // What both sides send: 0xce and four bytes.
    if let [0xce, a, b, c, d, ..] = *buffer {
        return framed(buffer, 5, u32::from_be_bytes([a, b, c, d]).into(), limit);
    }
    let Some(&first) = buffer.first() else { return Ok(Frame::Incomplete(1)) };
    if mp::family(first) != Some(Family::Uint) {
        return Err(FrameError::Length);
    }
    let mut reader = Reader::new(buffer);
    match reader.read_uint() {
        Ok(len) => framed(buffer, reader.position(), len, limit),
        Err(_) => Ok(Frame::Incomplete(buffer.len() + 1)),
    }
}

#[inline]
fn framed(buffer: &[u8], start: usize, len: u64, limit: u64) -> Result<Frame, FrameError> {
    if len > limit {
        return Err(FrameError::TooBig(len));
    }
    let Some(end) = usize::try_from(len).ok().and_then(|len| start.checked_add(len)) else {
        return Err(FrameError::TooBig(len));
    };
    Ok(if end <= buffer.len() { Frame::Packet { start, end } } else { Frame::Incomplete(end) })
}

/// A response's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResponseHeader {
    /// A response type, or [`kind::ERROR_BIT`] and an error code.
    pub kind: u32,
    /// The sync of the request it answers; 0 when none was sent.
    pub sync: u64,
    /// The server's schema version; 0 when none was sent.
    pub schema_version: u64,
}

impl ResponseHeader {
    /// The error code of an error response.
    #[inline]
    pub fn error_code(&self) -> Option<u32> {
        (self.kind & kind::ERROR_BIT != 0).then_some(self.kind & (kind::ERROR_BIT - 1))
    }
}

/// A packet's header or body breaks the protocol; `Display` is Tarantool's text (error code 20).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketError {
    /// The header is no map of known keys with their types.
    Header,
    /// The body is no map of known keys with their types.
    Body,
    /// The same of BEGIN, COMMIT and ID, which word it differently.
    RequestBody,
    /// There is no body and there must be one.
    MissingBody,
    /// A mandatory key is not in the body: its name (error code 69).
    MissingField(&'static str),
}

impl std::fmt::Display for PacketError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PacketError::Header => f.write_str("Invalid MsgPack - packet header"),
            PacketError::Body => f.write_str("Invalid MsgPack - packet body"),
            PacketError::RequestBody => f.write_str("Invalid MsgPack - request body"),
            PacketError::MissingBody => f.write_str("Invalid MsgPack - missing request body"),
            PacketError::MissingField(name) => write!(f, "Missing mandatory field '{name}' in request"),
        }
    }
}

impl std::error::Error for PacketError {}

/// Reads a response's header; the body begins at the returned offset and goes to the packet's end (it may be empty).
///
/// # Errors
/// [`PacketError::Header`]
#[inline]
pub fn response_header(packet: &[u8]) -> Result<(ResponseHeader, usize), PacketError> {
    match fixed_header(packet) {
        Some(fast) => Ok(fast),
        None => any_header(packet),
    }
}

/// The one form servers write: `83 | 00 ce type | 01 cf sync | 05 ce or cf schema version`.
#[inline]
fn fixed_header(packet: &[u8]) -> Option<(ResponseHeader, usize)> {
    #[rustfmt::skip]
    let &[
        0x83,
        key::REQUEST_TYPE, 0xce, k0, k1, k2, k3,
        key::SYNC, 0xcf, s0, s1, s2, s3, s4, s5, s6, s7,
        key::SCHEMA_VERSION, width,
    ] = packet.first_chunk()? else {
        return None;
    };
    let kind = u32::from_be_bytes([k0, k1, k2, k3]);
    let sync = u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
    let rest = packet.get(19..)?;
    let (schema_version, len) = match width {
        0xcf => (u64::from_be_bytes(*rest.first_chunk()?), 27),
        0xce => (u32::from_be_bytes(*rest.first_chunk()?).into(), 23),
        _ => return None,
    };
    Some((ResponseHeader { kind, sync, schema_version }, len))
}

#[cold]
fn any_header(packet: &[u8]) -> Result<(ResponseHeader, usize), PacketError> {
    let mut header = RequestHeader::default();
    let at = parse_header(packet, &mut header)?;
    let RequestHeader { kind, sync, schema_version, .. } = header;
    Ok((ResponseHeader { kind, sync, schema_version }, at))
}

/// A request's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestHeader {
    /// The request type.
    pub kind: u32,
    /// The sync its response must carry; 0 when none was sent.
    pub sync: u64,
    /// The schema version it was made for; 0 is any.
    pub schema_version: u64,
    /// The stream it belongs to; 0 is none.
    pub stream_id: u64,
    /// The server thread it is for; 0 is none.
    pub thread_id: u64,
}

/// Reads a request's header into `header` and returns where the body begins. After an error `header.sync` is the sync
/// that was read before the bad part, or 0: the error response carries it.
///
/// # Errors
/// [`PacketError::Header`]
pub fn request_header(packet: &[u8], header: &mut RequestHeader) -> Result<usize, PacketError> {
    *header = RequestHeader::default();
    parse_header(packet, header)
}

fn parse_header(packet: &[u8], header: &mut RequestHeader) -> Result<usize, PacketError> {
    let bad = |_: MpError| PacketError::Header;
    let mut reader = Reader::new(packet);
    // The whole header is checked first, so a broken one has no sync.
    Reader::new(packet).skip().map_err(bad)?;
    for _ in 0..reader.read_map().map_err(bad)? {
        let key = reader.read_uint().map_err(bad)?;
        let family = reader.peek().map_err(bad)?;
        if key_family(key).is_some_and(|expected| expected != family) {
            return Err(PacketError::Header);
        }
        let Ok(key) = u8::try_from(key) else {
            reader.skip().map_err(bad)?;
            continue;
        };
        match key {
            key::REQUEST_TYPE => header.kind = reader.read_uint().map_err(bad)? as u32,
            key::SYNC => header.sync = reader.read_uint().map_err(bad)?,
            key::SCHEMA_VERSION => header.schema_version = reader.read_uint().map_err(bad)?,
            key::STREAM_ID => header.stream_id = reader.read_uint().map_err(bad)?,
            key::THREAD_ID => header.thread_id = reader.read_uint().map_err(bad)?,
            _ => reader.skip().map_err(bad)?,
        }
    }
    Ok(reader.position())
}

/// The known keys of a body, each with its value's bytes: request bodies of every type, and response bodies.
///
/// Values have the family their key demands. Where a key comes twice the last one counts, as in Tarantool.
#[derive(Debug, Clone, Copy)]
pub struct Body<'a> {
    bytes: &'a [u8],
    /// Where each kept key's value begins and ends; an absent one is empty. Small, since a body is passed on by value.
    spans: [(u32, u32); SPANS],
}

/// Keys below this may be kept.
const BODY_KEYS: usize = 0x68;
/// The keys that anybody asks for.
const KEPT: &[u8] = &[
    key::SPACE_ID,
    key::INDEX_ID,
    key::LIMIT,
    key::OFFSET,
    key::ITERATOR,
    key::INDEX_BASE,
    key::FETCH_POSITION,
    key::KEY,
    key::TUPLE,
    key::FUNCTION_NAME,
    key::USER_NAME,
    key::EXPR,
    key::OPS,
    key::OPTIONS,
    key::AFTER_POSITION,
    key::AFTER_TUPLE,
    key::DATA,
    key::ERROR_24,
    key::METADATA,
    key::BIND_METADATA,
    key::BIND_COUNT,
    key::POSITION,
    key::SQL_TEXT,
    key::SQL_BIND,
    key::SQL_INFO,
    key::STMT_ID,
    key::ERROR,
    key::VERSION,
    key::FEATURES,
    key::TIMEOUT,
    key::EVENT_KEY,
    key::EVENT_DATA,
    key::TXN_ISOLATION,
    key::AUTH_TYPE,
    key::SPACE_NAME,
    key::INDEX_NAME,
    key::TUPLE_FORMATS,
    key::IS_SYNC,
];
/// Their spans, and before them one that nobody reads, for all other keys.
const SPANS: usize = KEPT.len() + 1;
const SPAN_OF: [u8; BODY_KEYS] = spans();

const fn spans() -> [u8; BODY_KEYS] {
    let mut of = [0; BODY_KEYS];
    let mut i = 0;
    while i < KEPT.len() {
        of[KEPT[i] as usize] = i as u8 + 1;
        i += 1;
    }
    of
}

impl<'a> Body<'a> {
    /// Reads the body of a request of type `kind`, empty or not, and checks that its mandatory keys are there.
    ///
    /// # Errors
    /// Every variant of [`PacketError`] but `Header`, as Tarantool words them for that type.
    pub fn of_request(kind: u32, body: &'a [u8]) -> Result<Self, PacketError> {
        let parsed = if body.is_empty() {
            match kind {
                kind::ID => return Err(PacketError::RequestBody),
                kind::CALL
                | kind::CALL_16
                | kind::EVAL
                | kind::AUTH
                | kind::EXECUTE
                | kind::PREPARE
                | kind::WATCH
                | kind::UNWATCH
                | kind::WATCH_ONCE => return Err(PacketError::MissingBody),
                _ => Ok(Body { bytes: &[], spans: [(0, 0); SPANS] }),
            }
        } else {
            Body::parse(body)
        };
        let parsed = parsed.map_err(|error| match kind {
            kind::ID | kind::BEGIN | kind::COMMIT => PacketError::RequestBody,
            _ => error,
        })?;
        parsed.check(kind)?;
        Ok(parsed)
    }

    /// Reads a body. Keys that are not unsigned integers, and unknown ones, are skipped.
    ///
    /// # Errors
    /// [`PacketError::Body`]
    pub fn parse(body: &'a [u8]) -> Result<Self, PacketError> {
        let bad = |_: MpError| PacketError::Body;
        // No peer sends 4 GiB and more.
        u32::try_from(body.len()).map_err(|_| PacketError::Body)?;
        let mut spans = [(0, 0); SPANS];
        let mut reader = Reader::new(body);
        for _ in 0..reader.read_map().map_err(bad)? {
            if reader.peek().map_err(bad)? != Family::Uint {
                reader.skip().map_err(bad)?;
                reader.skip().map_err(bad)?;
                continue;
            }
            let key = reader.read_uint().map_err(bad)?;
            let family = reader.peek().map_err(bad)?;
            if key_family(key).is_some_and(|expected| expected != family) {
                return Err(PacketError::Body);
            }
            let start = reader.position() as u32;
            reader.skip().map_err(bad)?;
            let span = usize::try_from(key).ok().and_then(|key| SPAN_OF.get(key)).copied().unwrap_or(0);
            if let Some(slot) = spans.get_mut(span as usize) {
                *slot = (start, reader.position() as u32);
            }
        }
        Ok(Body { bytes: body, spans })
    }

    /// The bytes of a key's value, one whole MessagePack value; `None` when the key is absent.
    #[inline]
    pub fn raw(&self, key: u8) -> Option<&'a [u8]> {
        let span = SPAN_OF.get(key as usize).copied().filter(|span| *span != 0)?;
        let (start, end) = *self.spans.get(span as usize)?;
        self.bytes.get(start as usize..end as usize).filter(|bytes| !bytes.is_empty())
    }

    /// An unsigned value.
    #[inline]
    pub fn uint(&self, key: u8) -> Option<u64> {
        Reader::new(self.raw(key)?).read_uint().ok()
    }

    /// A string value's bytes.
    #[inline]
    pub fn str(&self, key: u8) -> Option<&'a [u8]> {
        Reader::new(self.raw(key)?).read_str().ok()
    }

    /// A boolean value.
    #[inline]
    pub fn bool(&self, key: u8) -> Option<bool> {
        Reader::new(self.raw(key)?).read_bool().ok()
    }

    /// A float value.
    #[inline]
    pub fn double(&self, key: u8) -> Option<f64> {
        Reader::new(self.raw(key)?).read_double().ok()
    }

    /// Checks that the keys a request of type `kind` must have are there. A space or index name stands for its id.
    ///
    /// # Errors
    /// [`PacketError::MissingField`] with the first missing key's name.
    pub fn check(&self, kind: u32) -> Result<(), PacketError> {
        let mandatory: &[u8] = match kind {
            kind::SELECT => &[key::SPACE_ID, key::LIMIT, key::KEY],
            kind::INSERT | kind::REPLACE => &[key::SPACE_ID, key::TUPLE],
            kind::UPDATE => &[key::SPACE_ID, key::KEY, key::TUPLE],
            kind::DELETE => &[key::SPACE_ID, key::KEY],
            kind::UPSERT => &[key::SPACE_ID, key::TUPLE, key::OPS],
            kind::CALL | kind::CALL_16 => &[key::FUNCTION_NAME],
            kind::EVAL => &[key::EXPR],
            kind::AUTH => &[key::USER_NAME, key::TUPLE],
            kind::WATCH | kind::UNWATCH | kind::WATCH_ONCE => &[key::EVENT_KEY],
            _ => &[],
        };
        let missing = mandatory
            .iter()
            .find(|&&key| self.raw(key).is_none() && (key != key::SPACE_ID || self.raw(key::SPACE_NAME).is_none()));
        missing.map_or(Ok(()), |&key| Err(PacketError::MissingField(super::constants::key_name(key))))
    }
}

/// What a server says of itself in reply to ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerId<'a> {
    /// The protocol version.
    pub version: u64,
    /// Bit `n` is set when the server has feature `n`; features above 63 are not known to anybody yet.
    pub features: u64,
    /// The authentication method it prefers.
    pub auth_type: Option<&'a [u8]>,
}

/// Reads the body of an ID request or of its response.
///
/// # Errors
/// [`PacketError::Body`]
pub fn id_body(body: &[u8]) -> Result<ServerId<'_>, PacketError> {
    let parsed = Body::parse(body)?;
    let mut id = ServerId {
        version: parsed.uint(key::VERSION).unwrap_or(0),
        features: 0,
        auth_type: parsed.str(key::AUTH_TYPE),
    };
    if let Some(list) = parsed.raw(key::FEATURES) {
        let bad = |_: MpError| PacketError::Body;
        let mut reader = Reader::new(list);
        for _ in 0..reader.read_array().map_err(bad)? {
            let feature = reader.read_uint().map_err(bad)?;
            if feature < 64 {
                id.features |= 1 << feature;
            }
        }
    }
    Ok(id)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: u64 = super::super::constants::BODY_LEN_MAX;

    #[test]
    fn a_length_of_any_form_frames_a_packet() {
        for prefix in [&[3][..], &[0xcc, 3], &[0xcd, 0, 3], &[0xce, 0, 0, 0, 3], &[0xcf, 0, 0, 0, 0, 0, 0, 0, 3]] {
            let mut buffer = prefix.to_vec();
            buffer.extend([1, 2, 3, 4]);
            let start = prefix.len();
            assert_eq!(frame(&buffer, LIMIT), Ok(Frame::Packet { start, end: start + 3 }));
            for cut in 0..start + 3 {
                assert!(matches!(frame(&buffer[..cut], LIMIT), Ok(Frame::Incomplete(need)) if need > cut));
            }
        }
    }

    #[test]
    fn a_length_that_cannot_be_is_refused_at_once() {
        assert_eq!(frame(&[0xcf; 9], LIMIT), Err(FrameError::TooBig(0xcfcf_cfcf_cfcf_cfcf)));
        assert_eq!(frame(&[0xcf, 255, 255, 255, 255, 255, 255, 255, 255], u64::MAX), Err(FrameError::TooBig(u64::MAX)));
        assert_eq!(frame(&[0xce, 0x80, 0, 0, 1], LIMIT), Err(FrameError::TooBig(2_147_483_649)));
        assert_eq!(frame(&[0xce, 0x80, 0, 0, 0], LIMIT), Ok(Frame::Incomplete(2_147_483_653)));
        for first in [0xa3, 0xc1, 0x81, 0xff, 0xc0, 0xcb] {
            assert_eq!(frame(&[first], LIMIT), Err(FrameError::Length));
        }
        assert_eq!(frame(&[], LIMIT), Ok(Frame::Incomplete(1)));
    }

    fn fixed(kind: u32, sync: u64, version: u64, wide: bool) -> Vec<u8> {
        let mut out = vec![0x83, 0, 0xce];
        out.extend(kind.to_be_bytes());
        out.extend([1, 0xcf]);
        out.extend(sync.to_be_bytes());
        if wide {
            out.extend([5, 0xcf]);
            out.extend(version.to_be_bytes());
        } else {
            out.extend([5, 0xce]);
            out.extend((version as u32).to_be_bytes());
        }
        out
    }

    #[test]
    fn headers_of_other_forms_are_read_the_slow_way() {
        let want = ResponseHeader { kind: 0x802f, sync: 7, schema_version: 0 };
        assert_eq!(response_header(&[0x82, 0, 0xcd, 0x80, 0x2f, 1, 7, 0x80]), Ok((want, 7)));
        // Unknown keys are skipped, wherever they are.
        let bytes = [0x83, 0x7f, 0x91, 1, 1, 7, 0, 0xcd, 0x80, 0x2f];
        assert_eq!(response_header(&bytes), Ok((want, 10)));
        assert_eq!(want.error_code(), Some(47));
        assert_eq!(ResponseHeader::default().error_code(), None);
        for bad in [&[][..], &[0x91, 1], &[0x81, 0xa0, 1], &[0x81, 1, 0xa0], &[0x81, 0], &[0xc1], &[0x81, 4, 1]] {
            assert_eq!(response_header(bad), Err(PacketError::Header), "{bad:x?}");
        }
    }

    #[test]
    fn the_sync_before_a_bad_key_is_kept() {
        let mut header = RequestHeader::default();
        assert_eq!(request_header(&[0x82, 1, 9, 0, 0xa0], &mut header), Err(PacketError::Header));
        assert_eq!(header.sync, 9);
        assert_eq!(request_header(&[0x82, 1, 9, 0], &mut header), Err(PacketError::Header));
        assert_eq!(header.sync, 0);
        assert_eq!(request_header(&[0x84, 1, 9, 0, 10, 10, 5, 5, 3], &mut header), Ok(9));
        let want = RequestHeader { kind: 10, sync: 9, schema_version: 3, stream_id: 5, thread_id: 0 };
        assert_eq!(header, want);
    }

    #[test]
    fn a_body_gives_its_keys_and_skips_the_rest() {
        let bytes = [0x84, 0xa1, b'x', 1, 0x7f, 2, 0x22, 0xa1, b'f', 0x21, 0x92, 1, 2];
        let body = Body::parse(&bytes).unwrap();
        assert_eq!(body.str(key::FUNCTION_NAME), Some(&b"f"[..]));
        assert_eq!(body.raw(key::TUPLE), Some(&[0x92, 1, 2][..]));
        assert_eq!(body.uint(key::SPACE_ID), None);
        for bad in [&[][..], &[0x90], &[0x81, 0x22, 5], &[0x81, 0x22], &[0x81, 0x56, 5]] {
            assert_eq!(Body::parse(bad).map(drop), Err(PacketError::Body), "{bad:x?}");
        }
    }

    #[test]
    fn mandatory_keys_are_named_when_they_are_missing() {
        let check = |kind, bytes: &[u8]| Body::parse(bytes).unwrap().check(kind).map_err(|e| e.to_string());
        let missing = |name| Err(format!("Missing mandatory field '{name}' in request"));
        assert_eq!(check(kind::SELECT, &[0x80]), missing("SPACE_ID"));
        assert_eq!(check(kind::SELECT, &[0x82, 0x10, 5, 0x20, 0x90]), missing("LIMIT"));
        assert_eq!(check(kind::SELECT, &[0x83, 0x5e, 0xa1, b's', 0x20, 0x90, 0x12, 1]), Ok(()));
        assert_eq!(check(kind::CALL, &[0x80]), missing("FUNCTION_NAME"));
        assert_eq!(check(kind::EVAL, &[0x80]), missing("EXPR"));
        assert_eq!(check(kind::UPSERT, &[0x82, 0x10, 5, 0x21, 0x90]), missing("OPS"));
        assert_eq!(check(kind::WATCH, &[0x80]), missing("EVENT_KEY"));
        assert_eq!(check(kind::PING, &[0x80]), Ok(()));
    }

    #[test]
    fn features_become_bits() {
        let id = id_body(&[0x83, 0x54, 10, 0x55, 0x93, 0, 5, 0xcc, 200, 0x5b, 0xa1, b'm']).unwrap();
        assert_eq!(id, ServerId { version: 10, features: 0b10_0001, auth_type: Some(b"m") });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn the_fixed_form_and_the_general_one_agree(kind: u32, sync: u64, version: u64, wide: bool, tail: [u8; 4]) {
            let mut packet = fixed(kind, sync, version, wide);
            let len = packet.len();
            packet.extend(tail);
            let fast = response_header(&packet);
            prop_assert_eq!(fast, any_header(&packet));
            prop_assert_eq!(fast.map(|(_, at)| at), Ok(len));
            prop_assert_eq!(response_header(&packet[..len - 1]), Err(PacketError::Header));
        }

        #[test]
        fn any_bytes_are_a_packet_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = frame(&bytes, LIMIT);
            if let Ok((_, at)) = response_header(&bytes) {
                prop_assert!(at <= bytes.len());
            }
            let _ = Body::parse(&bytes);
            let _ = id_body(&bytes);
            let _ = super::super::error::decode_body(&bytes);
        }
    }
}
