//! Requests and responses, appended to an output buffer. The length is written as a gap of five bytes first and
//! patched when the packet is complete; a packet whose contents could not be made is taken back whole.
//!
//! Values that come from the caller's own world (arguments, keys, tuples) are written by a function it passes, which
//! appends MessagePack to the buffer and may fail:
//!
//! ```
//! use cord::iproto::encode::{self, Header};
//! let mut out = Vec::new();
//! let args = |out: &mut Vec<u8>| -> Result<(), ()> { out.extend([0x91, 0x05]); Ok(()) };
//! encode::call(&mut out, &Header::new(7), b"echo", args).unwrap();
//! assert_eq!(out, b"\xce\0\0\0\x11\x82\x01\x07\x00\x0a\x83\x22\xa4echo\x21\x91\x05\x60\x80");
//! ```
//!
//! Source: `src/box/lua/net_box.c` (`netbox_encode_*`), `src/box/xrow.c` (`iproto_reply_*`), 3.9-dev.

use super::auth::{CHAP_SHA1, Scramble};
use super::constants::{LENGTH_SIZE, feature, key, kind};
use super::error::ErrorEntry;
use super::mp::{put_array, put_bool, put_double, put_map, put_str, put_uint};

/// What a request's header says besides its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// The request's number; 0 is left out, and the response will carry 0.
    pub sync: u64,
    /// The stream it belongs to; 0 is none.
    pub stream_id: u64,
    /// The server thread it is for; `None` is left out.
    pub thread_id: Option<u64>,
}

impl Header {
    /// A header outside any stream.
    pub fn new(sync: u64) -> Self {
        Header { sync, ..Header::default() }
    }
}

/// A space or an index, by number or, where the peer has feature 5, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// Its number.
    Id(u64),
    /// Its name.
    Name(&'a [u8]),
}

/// Where a packet began; give it to [`finish`].
#[derive(Debug, Clone, Copy)]
#[must_use = "a packet without its length breaks the stream"]
pub struct Mark(usize);

/// Begins a request: the gap for the length, and the header.
#[inline]
pub fn begin(out: &mut Vec<u8>, kind: u32, header: &Header) -> Mark {
    let mark = gap(out);
    let keys = 1 + u8::from(header.sync != 0) + u8::from(header.thread_id.is_some()) + u8::from(header.stream_id != 0);
    out.push(0x80 | keys);
    if header.sync != 0 {
        put_key_uint(out, key::SYNC, header.sync);
    }
    put_key_uint(out, key::REQUEST_TYPE, kind.into());
    if let Some(id) = header.thread_id {
        put_key_uint(out, key::THREAD_ID, id);
    }
    if header.stream_id != 0 {
        put_key_uint(out, key::STREAM_ID, header.stream_id);
    }
    mark
}

/// As [`begin`] in one piece, for whoever makes millions: the sync takes its longest form. `stream` is the stream's number in
/// the lower half and the server thread's in the upper one, 0 being none.
#[inline]
pub fn begin_request(out: &mut Vec<u8>, kind: u32, sync: u64, stream: u64) -> Mark {
    let (Ok(short @ 0..=0x7f), 0) = (u8::try_from(kind), stream) else {
        let (stream_id, thread) = (stream & u64::from(u32::MAX), stream >> 32);
        return begin(out, kind, &Header { sync, stream_id, thread_id: (thread != 0).then_some(thread) });
    };
    let mark = Mark(out.len());
    let [a, b, c, d, e, f, g, h] = sync.to_be_bytes();
    let head = [0xce, 0, 0, 0, 0, 0x82, key::SYNC, 0xcf, a, b, c, d, e, f, g, h, key::REQUEST_TYPE, short];
    out.extend_from_slice(&head);
    mark
}

#[inline]
fn gap(out: &mut Vec<u8>) -> Mark {
    let mark = Mark(out.len());
    out.extend_from_slice(&[0xce, 0, 0, 0, 0]);
    mark
}

/// Ends a packet: writes its length into the gap. A packet over 4 GiB, which no peer accepts, is taken back.
#[inline]
pub fn finish(out: &mut Vec<u8>, mark: Mark) {
    let end = out.len();
    let len = end.saturating_sub(mark.0 + LENGTH_SIZE);
    let Ok(len) = u32::try_from(len) else {
        out.truncate(mark.0);
        return;
    };
    if let Some(gap) = out.get_mut(mark.0 + 1..mark.0 + LENGTH_SIZE) {
        gap.copy_from_slice(&len.to_be_bytes());
    }
}

/// Takes an unfinished packet back.
#[inline]
pub fn abandon(out: &mut Vec<u8>, mark: Mark) {
    out.truncate(mark.0);
}

/// Finishes the packet when its contents were made, takes it back when not.
#[inline]
fn settle<E>(out: &mut Vec<u8>, mark: Mark, contents: Result<(), E>) -> Result<(), E> {
    match contents {
        Ok(()) => finish(out, mark),
        Err(_) => abandon(out, mark),
    }
    contents
}

#[inline]
fn put_key_uint(out: &mut Vec<u8>, key: u8, value: u64) {
    out.push(key);
    put_uint(out, value);
}

#[inline]
fn put_key_str(out: &mut Vec<u8>, key: u8, value: &[u8]) {
    out.push(key);
    put_str(out, value);
}

fn put_space(out: &mut Vec<u8>, space: Target<'_>) {
    match space {
        Target::Id(id) => put_key_uint(out, key::SPACE_ID, id),
        Target::Name(name) => put_key_str(out, key::SPACE_NAME, name),
    }
}

fn put_index(out: &mut Vec<u8>, index: Target<'_>) {
    match index {
        Target::Id(id) => put_key_uint(out, key::INDEX_ID, id),
        Target::Name(name) => put_key_str(out, key::INDEX_NAME, name),
    }
}

/// A request without a body: PING, and BEGIN, COMMIT, ROLLBACK without options.
pub fn bare(out: &mut Vec<u8>, kind: u32, header: &Header) {
    let mark = begin(out, kind, header);
    finish(out, mark);
}

/// ID: the protocol version and the features this side has, as bits.
pub fn id(out: &mut Vec<u8>, header: &Header, version: u64, features: u64) {
    let mark = begin(out, kind::ID, header);
    put_map(out, 2);
    put_version_and_features(out, version, features);
    finish(out, mark);
}

fn put_version_and_features(out: &mut Vec<u8>, version: u64, features: u64) {
    put_key_uint(out, key::VERSION, version);
    out.push(key::FEATURES);
    put_array(out, features.count_ones());
    (0..64).filter(|feature| features & (1 << feature) != 0).for_each(|feature| put_uint(out, feature));
}

/// The features net.box names: all but `fetch_snapshot_cursor` and `insert_arrow`, and without `dml_tuple_extension`
/// when it fetches the schema itself.
pub const fn client_features(fetch_schema: bool) -> u64 {
    let all = (1 << feature::NAMES.len()) - 1;
    let never = 1 << feature::FETCH_SNAPSHOT_CURSOR | 1 << feature::INSERT_ARROW;
    all & !never & !if fetch_schema { 1 << feature::DML_TUPLE_EXTENSION } else { 0 }
}

/// AUTH with `chap-sha1`.
pub fn auth(out: &mut Vec<u8>, header: &Header, user: &[u8], scramble: &Scramble) {
    let mark = begin(out, kind::AUTH, header);
    put_map(out, 2);
    put_key_str(out, key::USER_NAME, user);
    out.push(key::TUPLE);
    put_array(out, 2);
    put_str(out, CHAP_SHA1.as_bytes());
    put_str(out, scramble);
    finish(out, mark);
}

/// CALL; `args` appends an array. Tuple formats are an empty map: arguments go as plain arrays.
///
/// # Errors
/// What `args` returns; nothing is left in the buffer then. So for every function here that takes one.
#[inline]
pub fn call<E>(
    out: &mut Vec<u8>,
    header: &Header,
    function: &[u8],
    args: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    named(out, kind::CALL, header, key::FUNCTION_NAME, function, args)
}

/// EVAL; `args` appends an array.
///
/// # Errors
/// As [`call`].
#[inline]
pub fn eval<E>(
    out: &mut Vec<u8>,
    header: &Header,
    expression: &[u8],
    args: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    named(out, kind::EVAL, header, key::EXPR, expression, args)
}

#[inline]
fn named<E>(
    out: &mut Vec<u8>,
    kind: u32,
    header: &Header,
    key: u8,
    name: &[u8],
    args: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let mark = begin(out, kind, header);
    out.push(0x83);
    put_key_str(out, key, name);
    out.push(key::TUPLE);
    let made = args(out);
    out.extend_from_slice(&[key::TUPLE_FORMATS, 0x80]);
    settle(out, mark, made)
}

/// What a SELECT asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Select<'a> {
    /// The space.
    pub space: Target<'a>,
    /// The index.
    pub index: Target<'a>,
    /// The iterator type's number.
    pub iterator: u32,
    /// Tuples to leave out first.
    pub offset: u64,
    /// Most tuples to send.
    pub limit: u64,
    /// Whether the response shall carry the last tuple's position.
    pub fetch_position: bool,
    /// Where to go on from.
    pub after: After<'a>,
}

/// Where a SELECT goes on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After<'a> {
    /// From the start.
    Nothing,
    /// After a position an earlier response carried.
    Position(&'a [u8]),
    /// After a tuple: one whole MessagePack array.
    Tuple(&'a [u8]),
}

/// SELECT; `key` appends an array.
///
/// # Errors
/// As [`call`].
pub fn select<E>(
    out: &mut Vec<u8>,
    header: &Header,
    select: &Select<'_>,
    key: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let mark = begin(out, kind::SELECT, header);
    put_map(out, 6 + u32::from(select.after != After::Nothing) + u32::from(select.fetch_position));
    put_space(out, select.space);
    put_index(out, select.index);
    put_key_uint(out, key::ITERATOR, select.iterator.into());
    put_key_uint(out, key::OFFSET, select.offset);
    put_key_uint(out, key::LIMIT, select.limit);
    out.push(key::KEY);
    let made = key(out);
    match select.after {
        After::Nothing => {}
        After::Position(position) => put_key_str(out, key::AFTER_POSITION, position),
        After::Tuple(tuple) => {
            out.push(key::AFTER_TUPLE);
            out.extend_from_slice(tuple);
        }
    }
    if select.fetch_position {
        out.push(key::FETCH_POSITION);
        put_bool(out, true);
    }
    settle(out, mark, made)
}

/// INSERT or REPLACE; `tuple` appends an array.
///
/// # Errors
/// As [`call`].
pub fn insert<E>(
    out: &mut Vec<u8>,
    kind: u32,
    header: &Header,
    space: Target<'_>,
    tuple: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let mark = begin(out, kind, header);
    out.push(0x82);
    put_space(out, space);
    out.push(key::TUPLE);
    let made = tuple(out);
    settle(out, mark, made)
}

/// DELETE; `key` appends an array.
///
/// # Errors
/// As [`call`].
pub fn delete<E>(
    out: &mut Vec<u8>,
    header: &Header,
    space: Target<'_>,
    index: Target<'_>,
    key: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let mark = begin(out, kind::DELETE, header);
    out.push(0x83);
    put_space(out, space);
    put_index(out, index);
    out.push(key::KEY);
    let made = key(out);
    settle(out, mark, made)
}

/// UPDATE; `key` and `ops` append an array each. Fields are numbered from 1.
///
/// # Errors
/// As [`call`].
pub fn update<E>(
    out: &mut Vec<u8>,
    header: &Header,
    space: Target<'_>,
    index: Target<'_>,
    key: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ops: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let mark = begin(out, kind::UPDATE, header);
    out.push(0x85);
    put_space(out, space);
    put_index(out, index);
    put_key_uint(out, key::INDEX_BASE, 1);
    out.push(key::KEY);
    let made = key(out).and_then(|()| {
        out.push(key::TUPLE);
        ops(out)
    });
    settle(out, mark, made)
}

/// UPSERT; `tuple` and `ops` append an array each. Fields are numbered from 1.
///
/// # Errors
/// As [`call`].
pub fn upsert<E>(
    out: &mut Vec<u8>,
    header: &Header,
    space: Target<'_>,
    tuple: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ops: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let mark = begin(out, kind::UPSERT, header);
    out.push(0x84);
    put_space(out, space);
    put_key_uint(out, key::INDEX_BASE, 1);
    out.push(key::TUPLE);
    let made = tuple(out).and_then(|()| {
        out.push(key::OPS);
        ops(out)
    });
    settle(out, mark, made)
}

/// What EXECUTE runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statement<'a> {
    /// A statement's text.
    Text(&'a [u8]),
    /// A prepared statement's number.
    Prepared(u64),
}

fn put_statement(out: &mut Vec<u8>, statement: Statement<'_>) {
    match statement {
        Statement::Text(text) => put_key_str(out, key::SQL_TEXT, text),
        Statement::Prepared(id) => put_key_uint(out, key::STMT_ID, id),
    }
}

/// EXECUTE; `parameters` and `options` append an array each.
///
/// # Errors
/// As [`call`].
pub fn execute<E>(
    out: &mut Vec<u8>,
    header: &Header,
    statement: Statement<'_>,
    parameters: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    options: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let mark = begin(out, kind::EXECUTE, header);
    out.push(0x83);
    put_statement(out, statement);
    out.push(key::SQL_BIND);
    let made = parameters(out).and_then(|()| {
        out.push(key::OPTIONS);
        options(out)
    });
    settle(out, mark, made)
}

/// PREPARE of a text, or its opposite of a prepared statement's number: both are one request type.
pub fn prepare(out: &mut Vec<u8>, header: &Header, statement: Statement<'_>) {
    let mark = begin(out, kind::PREPARE, header);
    out.push(0x81);
    put_statement(out, statement);
    finish(out, mark);
}

/// Options of BEGIN and COMMIT; what is `None` is left out, and so is the body when nothing is left.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TxnOptions {
    /// Seconds until the server rolls back (BEGIN).
    pub timeout: Option<f64>,
    /// The isolation level's number (BEGIN).
    pub isolation: Option<u64>,
    /// Whether the transaction is synchronous (BEGIN and COMMIT).
    pub is_sync: Option<bool>,
}

/// BEGIN or COMMIT with options, or ROLLBACK without.
pub fn transaction(out: &mut Vec<u8>, kind: u32, header: &Header, options: &TxnOptions) {
    let mark = begin(out, kind, header);
    let keys = u8::from(options.timeout.is_some())
        + u8::from(options.isolation.is_some())
        + u8::from(options.is_sync.is_some());
    if keys > 0 {
        out.push(0x80 | keys);
    }
    if let Some(timeout) = options.timeout {
        out.push(key::TIMEOUT);
        put_double(out, timeout);
    }
    if let Some(isolation) = options.isolation {
        put_key_uint(out, key::TXN_ISOLATION, isolation);
    }
    if let Some(is_sync) = options.is_sync {
        out.push(key::IS_SYNC);
        put_bool(out, is_sync);
    }
    finish(out, mark);
}

/// WATCH, UNWATCH (both without a sync) or WATCH_ONCE of a key.
pub fn watch(out: &mut Vec<u8>, kind: u32, header: &Header, key: &[u8]) {
    let mark = begin(out, kind, header);
    out.push(0x81);
    put_key_str(out, key::EVENT_KEY, key);
    finish(out, mark);
}

/// Begins a response: the gap for the length, and the header in the fixed form every client reads fastest:
/// `83 | 00 ce type | 01 cf sync | 05 cf schema version`.
#[inline]
pub fn begin_response(out: &mut Vec<u8>, kind: u32, sync: u64, schema_version: u64) -> Mark {
    let mark = Mark(out.len());
    let [k0, k1, k2, k3] = kind.to_be_bytes();
    let [s0, s1, s2, s3, s4, s5, s6, s7] = sync.to_be_bytes();
    let [v0, v1, v2, v3, v4, v5, v6, v7] = schema_version.to_be_bytes();
    #[rustfmt::skip]
    let head = [
        0xce, 0, 0, 0, 0, 0x83,
        key::REQUEST_TYPE, 0xce, k0, k1, k2, k3,
        key::SYNC, 0xcf, s0, s1, s2, s3, s4, s5, s6, s7,
        key::SCHEMA_VERSION, 0xcf, v0, v1, v2, v3, v4, v5, v6, v7,
    ];
    out.extend_from_slice(&head);
    mark
}

/// An empty OK.
pub fn ok(out: &mut Vec<u8>, sync: u64, schema_version: u64) {
    let mark = begin_response(out, kind::OK, sync, schema_version);
    out.push(0x80);
    finish(out, mark);
}

/// An OK, or a CHUNK of pushed data: `values` appends MessagePack values and returns how many.
///
/// # Errors
/// As [`call`].
#[inline]
pub fn data<E>(
    out: &mut Vec<u8>,
    kind: u32,
    sync: u64,
    schema_version: u64,
    values: impl FnOnce(&mut Vec<u8>) -> Result<u32, E>,
) -> Result<(), E> {
    let mark = begin_response(out, kind, sync, schema_version);
    let made = put_data(out, 1, values);
    settle(out, mark, made)
}

/// As [`data`], with the formats of the tuples among the values: `formats` appends the map of TUPLE_FORMATS afterwards.
///
/// # Errors
/// As [`call`].
#[inline]
pub fn data_with_formats<E>(
    out: &mut Vec<u8>,
    kind: u32,
    sync: u64,
    schema_version: u64,
    values: impl FnOnce(&mut Vec<u8>) -> Result<u32, E>,
    formats: impl FnOnce(&mut Vec<u8>),
) -> Result<(), E> {
    let mark = begin_response(out, kind, sync, schema_version);
    let made = put_data(out, 2, values);
    out.push(key::TUPLE_FORMATS);
    formats(out);
    settle(out, mark, made)
}

/// The header of a body of `keys` keys, and DATA.
#[inline]
fn put_data<E>(out: &mut Vec<u8>, keys: u8, values: impl FnOnce(&mut Vec<u8>) -> Result<u32, E>) -> Result<(), E> {
    out.extend_from_slice(&[0x80 | keys, key::DATA, 0xdd, 0, 0, 0, 0]);
    let at = out.len();
    values(out).map(|count| {
        if let Some(gap) = out.get_mut(at - 4..at) {
            gap.copy_from_slice(&count.to_be_bytes());
        }
    })
}

/// An OK whose body `body` appends as one map.
///
/// # Errors
/// As [`call`].
pub fn body<E>(
    out: &mut Vec<u8>,
    kind: u32,
    sync: u64,
    schema_version: u64,
    body: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let mark = begin_response(out, kind, sync, schema_version);
    let made = body(out);
    settle(out, mark, made)
}

/// The reply to ID.
pub fn id_response(
    out: &mut Vec<u8>,
    sync: u64,
    schema_version: u64,
    version: u64,
    features: u64,
    auth_type: Option<&[u8]>,
) {
    let mark = begin_response(out, kind::OK, sync, schema_version);
    put_map(out, 2 + u32::from(auth_type.is_some()));
    put_version_and_features(out, version, features);
    if let Some(name) = auth_type {
        put_key_str(out, key::AUTH_TYPE, name);
    }
    finish(out, mark);
}

/// An error response from its stack map: the top error's message again in the old form, then the stack.
pub fn error_raw(out: &mut Vec<u8>, sync: u64, schema_version: u64, code: u32, message: &[u8], stack: &[u8]) {
    let mark = begin_response(out, kind::ERROR_BIT | code, sync, schema_version);
    out.push(0x82);
    put_key_str(out, key::ERROR_24, message);
    out.push(key::ERROR);
    out.extend_from_slice(stack);
    finish(out, mark);
}

/// An error response of class `ClientError` with no cause, as the protocol layer itself sends.
pub fn error(out: &mut Vec<u8>, sync: u64, schema_version: u64, code: u32, message: &[u8]) {
    let entry = ErrorEntry { kind: b"ClientError", message, code, ..ErrorEntry::default() };
    let mark = begin_response(out, kind::ERROR_BIT | code, sync, schema_version);
    out.push(0x82);
    put_key_str(out, key::ERROR_24, message);
    out.push(key::ERROR);
    super::error::encode_stack(out, std::iter::once(entry));
    finish(out, mark);
}

/// An EVENT: a watched key's value, which `value` appends; `None` is a key without one.
///
/// # Errors
/// As [`call`].
pub fn event<E, V>(out: &mut Vec<u8>, sync: u64, key: &[u8], value: Option<V>) -> Result<(), E>
where
    V: FnOnce(&mut Vec<u8>) -> Result<(), E>,
{
    let mark = gap(out);
    put_map(out, 2);
    put_key_uint(out, key::REQUEST_TYPE, kind::EVENT.into());
    put_key_uint(out, key::SYNC, sync);
    put_map(out, 1 + u32::from(value.is_some()));
    put_key_str(out, key::EVENT_KEY, key);
    let made = value.map_or(Ok(()), |value| {
        out.push(key::EVENT_DATA);
        value(out)
    });
    settle(out, mark, made)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
mod tests {
    use super::super::decode::{self, Body, Frame};
    use super::*;
    use std::convert::Infallible;

    fn append(bytes: &'static [u8]) -> impl FnOnce(&mut Vec<u8>) -> Result<(), Infallible> {
        move |out| {
            out.extend_from_slice(bytes);
            Ok(())
        }
    }

    #[test]
    fn a_request_in_one_piece_says_what_one_in_parts_says() {
        for (kind, stream) in
            [(10, 0), (64, 0), (0x7f, 0), (0x80, 0), (512, 0), (10, 1), (10, 3 << 32), (4, 5 << 32 | 9)]
        {
            for sync in [1, 0x7f, 0x1_2345, u64::MAX >> 1] {
                let (mut whole, mut parts) = (Vec::new(), Vec::new());
                let mark = begin_request(&mut whole, kind, sync, stream);
                finish(&mut whole, mark);
                let (stream_id, thread) = (stream & u64::from(u32::MAX), stream >> 32);
                bare(&mut parts, kind, &Header { sync, stream_id, thread_id: (thread != 0).then_some(thread) });
                let read = |out: &[u8]| {
                    let Ok(Frame::Packet { start, end }) = decode::frame(out, 100) else {
                        panic!("no packet in {out:?}")
                    };
                    assert_eq!(end, out.len());
                    let mut header = decode::RequestHeader::default();
                    decode::request_header(&out[start..end], &mut header).unwrap();
                    header
                };
                assert_eq!(read(&whole), read(&parts));
            }
        }
    }

    #[test]
    fn a_packet_that_fails_leaves_the_buffer_as_it_was() {
        let mut out = b"before".to_vec();
        let failed = call(&mut out, &Header::new(1), b"f", |out| {
            out.extend([1; 100]);
            Err("no")
        });
        assert_eq!(failed, Err("no"));
        assert_eq!(out, b"before");
        let failed = data(&mut out, kind::OK, 1, 1, |out| {
            out.push(1);
            Err("no")
        });
        assert_eq!(failed, Err("no"));
        assert_eq!(out, b"before");
        let (space, index) = (Target::Id(512), Target::Id(0));
        let failed = update(&mut out, &Header::new(1), space, index, |_| Ok(()), |_| Err("no"));
        assert_eq!(failed, Err("no"));
        assert_eq!(out, b"before");
    }

    #[test]
    fn a_header_leaves_out_what_is_not_set() {
        let mut out = Vec::new();
        bare(&mut out, kind::PING, &Header::default());
        assert_eq!(out, [0xce, 0, 0, 0, 3, 0x81, 0, 64]);
        out.clear();
        bare(&mut out, kind::PING, &Header { sync: 1, stream_id: 2, thread_id: Some(3) });
        assert_eq!(out, [0xce, 0, 0, 0, 9, 0x84, 1, 1, 0, 64, 11, 3, 10, 2]);
    }

    #[test]
    fn responses_are_read_by_the_fast_path() {
        let mut out = Vec::new();
        data(&mut out, kind::OK, u64::MAX, 9, |out| {
            out.extend([1, 2]);
            Ok::<u32, Infallible>(2)
        })
        .unwrap();
        let Ok(Frame::Packet { start, end }) = decode::frame(&out, u64::MAX) else { panic!("no frame") };
        assert_eq!(end, out.len());
        let (header, at) = decode::response_header(&out[start..end]).unwrap();
        assert_eq!((header.kind, header.sync, header.schema_version, at), (0, u64::MAX, 9, 27));
        let body = Body::parse(&out[start + at..end]).unwrap();
        assert_eq!(body.raw(key::DATA), Some(&[0xdd, 0, 0, 0, 2, 1, 2][..]));
    }

    #[test]
    fn an_event_carries_its_value_or_none() {
        let mut out = Vec::new();
        event(&mut out, 0, b"color", Some(append(b"\xa3red"))).unwrap();
        assert_eq!(out, *b"\xce\0\0\0\x12\x82\0\x4c\x01\0\x82\x57\xa5color\x58\xa3red");
        out.clear();
        event::<Infallible, fn(&mut Vec<u8>) -> Result<(), Infallible>>(&mut out, 0, b"k", None).unwrap();
        assert_eq!(out, *b"\xce\0\0\0\x09\x82\0\x4c\x01\0\x81\x57\xa1k");
    }

    #[test]
    fn the_features_of_net_box_are_those_of_tarantool() {
        let list = |features: u64| (0..64).filter(|f| features & (1 << f) != 0).collect::<Vec<u64>>();
        assert_eq!(list(client_features(true)), [0, 1, 2, 3, 4, 5, 6, 8, 9, 11]);
        assert_eq!(list(client_features(false)), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11]);
    }
}
