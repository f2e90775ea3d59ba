//! Errors of the space engine: Tarantool's codes, texts and payload fields.
//!
//! Source: `src/box/errcode.h` and the `error_set_*` calls of `src/box/index.cc`, Tarantool 3.9-dev.

use crate::iproto::mp as put;
use std::fmt;

/// An error code with its symbolic name, as `box.error` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32, pub &'static str);

macro_rules! codes {
    ($($name:ident = $value:literal),* $(,)?) => {$(
        #[doc = concat!("`box.error.", stringify!($name), "`.")]
        pub const $name: Code = Code($value, stringify!($name));
    )*};
}

codes! {
    TUPLE_FOUND = 3,
    UNSUPPORTED = 5,
    CREATE_SPACE = 9,
    SPACE_EXISTS = 10,
    DROP_SPACE = 11,
    ALTER_SPACE = 12,
    INDEX_TYPE = 13,
    MODIFY_INDEX = 14,
    DROP_PRIMARY_KEY = 17,
    KEY_PART_TYPE = 18,
    EXACT_MATCH = 19,
    INVALID_MSGPACK = 20,
    TUPLE_NOT_ARRAY = 22,
    FIELD_TYPE = 23,
    INDEX_PART_TYPE_MISMATCH = 24,
    UPDATE_SPLICE = 25,
    UPDATE_ARG_TYPE = 26,
    FORMAT_MISMATCH_INDEX_PART = 27,
    UNKNOWN_UPDATE_OP = 28,
    UPDATE_FIELD = 29,
    KEY_PART_COUNT = 31,
    NO_SUCH_PROC = 33,
    NO_SUCH_INDEX_ID = 35,
    NO_SUCH_SPACE = 36,
    NO_SUCH_FIELD_NO = 37,
    EXACT_FIELD_COUNT = 38,
    FIELD_MISSING = 39,
    MORE_THAN_ONE_TUPLE = 41,
    UNKNOWN_REQUEST_TYPE = 48,
    NO_SUCH_ENGINE = 57,
    MISSING_REQUEST_FIELD = 69,
    IDENTIFIER = 70,
    INDEX_EXISTS = 85,
    CANT_UPDATE_PRIMARY_KEY = 94,
    UPDATE_INTEGER_OVERFLOW = 95,
    TRANSACTION_CONFLICT = 97,
    WRONG_INDEX_PARTS = 107,
    WRONG_SCHEMA_VERSION = 109,
    MEMTX_MAX_TUPLE_SIZE = 110,
    UNSUPPORTED_INDEX_FEATURE = 112,
    VIEW_IS_RO = 113,
    PARTIAL_KEY = 136,
    TRUNCATE_SYSTEM_SPACE = 137,
    WRONG_SPACE_FORMAT = 141,
    SEQUENCE_OVERFLOW = 147,
    NO_SUCH_INDEX_NAME = 148,
    SPACE_FIELD_IS_DUPLICATE = 149,
    NULLABLE_PRIMARY = 152,
    UPDATE_DECIMAL_OVERFLOW = 160,
    NO_SUCH_FIELD_NAME = 201,
    ITERATOR_POSITION = 247,
    UNKNOWN_AUTH_METHOD = 249,
    INVALID_AUTH_REQUEST = 251,
    FIELD_VALUE_OUT_OF_RANGE = 280,
    KEY_PART_VALUE_OUT_OF_RANGE = 290,
    NO_SUCH_THREAD = 299,
}

/// What a statement or a change of the schema was refused with; maps one to one onto the wire's error.
#[derive(Clone, Debug, PartialEq)]
pub struct BoxError {
    /// The error code (`box.error.*`).
    pub code: u32,
    /// The class: `ClientError`, `IllegalParams`, `OutOfMemory` or `AccessDeniedError`.
    pub kind: &'static str,
    /// Tarantool's text.
    pub message: String,
    /// Payload: names, and values as MessagePack, in Tarantool's order.
    pub fields: Vec<(&'static str, Vec<u8>)>,
}

impl fmt::Display for BoxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BoxError {}

/// A payload value.
pub(crate) enum Field<'a> {
    Str(&'a str),
    Uint(u64),
    Int(i64),
    /// One MessagePack value, copied as it is.
    Raw(&'a [u8]),
}

impl Field<'_> {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Field::Str(s) => put::put_str(&mut out, s.as_bytes()),
            Field::Uint(n) => put::put_uint(&mut out, *n),
            Field::Int(n) => put::put_int(&mut out, *n),
            Field::Raw(bytes) => out.extend_from_slice(bytes),
        }
        out
    }
}

impl BoxError {
    /// A `ClientError` of `code`.
    #[cold]
    pub(crate) fn client(code: Code, message: impl Into<String>) -> Self {
        let name = ("name", Field::Str(code.1).encode());
        BoxError { code: code.0, kind: "ClientError", message: message.into(), fields: vec![name] }
    }

    /// An `IllegalParams`, code 1, which carries no payload.
    #[cold]
    pub(crate) fn illegal(message: impl Into<String>) -> Self {
        BoxError { code: 1, kind: "IllegalParams", message: message.into(), fields: Vec::new() }
    }

    /// An `OutOfMemory`: the engine's own limit was reached.
    #[cold]
    pub(crate) fn memory(size: usize) -> Self {
        let message = format!("Failed to allocate {size} bytes in slab allocator for memtx_tuple");
        BoxError { code: 2, kind: "OutOfMemory", message, fields: Vec::new() }
    }

    /// Write access of `user` to a system space was refused.
    #[cold]
    pub(crate) fn access(access: &str, object: &str, name: &str, user: &str) -> Self {
        let message = format!("{access} access to {object} '{name}' is denied for user '{user}'");
        BoxError { code: 42, kind: "AccessDeniedError", message, fields: Vec::new() }
            .with("name", Field::Str("ACCESS_DENIED"))
            .with("object_type", Field::Str(object))
            .with("object_name", Field::Str(name))
            .with("access_type", Field::Str(access))
            .with("user", Field::Str(user))
    }

    /// A request lacks a key it must have.
    #[cold]
    pub(crate) fn missing_field(name: &str) -> Self {
        Self::client(MISSING_REQUEST_FIELD, format!("Missing mandatory field '{name}' in request"))
            .with("value", Field::Str(name))
    }

    /// The bytes are not MessagePack where they should be.
    #[cold]
    pub(crate) fn msgpack(details: &str) -> Self {
        Self::client(INVALID_MSGPACK, format!("Invalid MsgPack - {details}")).with("details", Field::Str(details))
    }

    /// Adds a payload field, unless one of that name is there already.
    pub(crate) fn with(mut self, name: &'static str, value: Field<'_>) -> Self {
        if self.fields.iter().all(|(existing, _)| *existing != name) {
            self.fields.push((name, value.encode()));
        }
        self
    }

    /// The payload field `name` as MessagePack, if there is one.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.fields.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_slice())
    }
}

/// What the engine's functions return.
pub type Result<T> = std::result::Result<T, BoxError>;
