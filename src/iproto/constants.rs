//! Numbers of the protocol, each group with its source in tarantool/tarantool (3.9-dev).

use super::mp::Family;

/// `constants! { group: NAME = value, "wire name"; }` as constants of the group's type, each documented by its name.
macro_rules! constants {
    ($ty:ty; $($name:ident = $value:expr),* $(,)?) => {$(
        #[doc = concat!("`", stringify!($name), "`")]
        pub const $name: $ty = $value;
    )*};
}

/// Length of the greeting in bytes.
pub const GREETING_SIZE: usize = 128;
/// Largest packet a server accepts, in bytes (`IPROTO_BODY_LEN_MAX`).
pub const BODY_LEN_MAX: u64 = 2_147_483_648;
/// Bytes of the length prefix both sides write: `0xce` and 32 bits.
pub const LENGTH_SIZE: usize = 5;
/// The protocol version this library speaks (`IPROTO_CURRENT_VERSION`).
pub const PROTOCOL_VERSION: u64 = 10;

/// Request and response types (`src/box/iproto_constants.h`, `iproto_type`).
pub mod kind {
    constants! { u32;
        OK = 0, SELECT = 1, INSERT = 2, REPLACE = 3, UPDATE = 4, DELETE = 5, CALL_16 = 6, AUTH = 7, EVAL = 8, UPSERT = 9,
        CALL = 10, EXECUTE = 11, NOP = 12, PREPARE = 13, BEGIN = 14, COMMIT = 15, ROLLBACK = 16, INSERT_ARROW = 17,
        DELETE_RANGE = 18, PING = 64, JOIN = 65, SUBSCRIBE = 66, VOTE_DEPRECATED = 67, VOTE = 68, FETCH_SNAPSHOT = 69,
        REGISTER = 70, JOIN_META = 71, JOIN_SNAPSHOT = 72, ID = 73, WATCH = 74, UNWATCH = 75, EVENT = 76,
        WATCH_ONCE = 77, CHUNK = 128,
    }
    /// Set in the type of an error response; the other 15 bits are the error code.
    pub const ERROR_BIT: u32 = 0x8000;

    /// The name a server uses for a type in its messages.
    pub fn name(kind: u32) -> Option<&'static str> {
        Some(match kind {
            SELECT => "SELECT",
            INSERT => "INSERT",
            REPLACE => "REPLACE",
            UPDATE => "UPDATE",
            DELETE => "DELETE",
            CALL_16 => "CALL_16",
            AUTH => "AUTH",
            EVAL => "EVAL",
            UPSERT => "UPSERT",
            CALL => "CALL",
            EXECUTE => "EXECUTE",
            NOP => "NOP",
            PREPARE => "PREPARE",
            BEGIN => "BEGIN",
            COMMIT => "COMMIT",
            ROLLBACK => "ROLLBACK",
            INSERT_ARROW => "INSERT_ARROW",
            DELETE_RANGE => "DELETE_RANGE",
            PING => "PING",
            JOIN => "JOIN",
            SUBSCRIBE => "SUBSCRIBE",
            VOTE_DEPRECATED => "VOTE_DEPRECATED",
            VOTE => "VOTE",
            FETCH_SNAPSHOT => "FETCH_SNAPSHOT",
            REGISTER => "REGISTER",
            JOIN_META => "JOIN_META",
            JOIN_SNAPSHOT => "JOIN_SNAPSHOT",
            ID => "ID",
            WATCH => "WATCH",
            UNWATCH => "UNWATCH",
            EVENT => "EVENT",
            WATCH_ONCE => "WATCH_ONCE",
            _ => return None,
        })
    }
}

/// Keys of headers and bodies (`src/box/iproto_constants.h`, `iproto_key`).
pub mod key {
    constants! { u8;
        REQUEST_TYPE = 0x00, SYNC = 0x01, REPLICA_ID = 0x02, LSN = 0x03, TIMESTAMP = 0x04, SCHEMA_VERSION = 0x05,
        SERVER_VERSION = 0x06, GROUP_ID = 0x07, TSN = 0x08, FLAGS = 0x09, STREAM_ID = 0x0a, THREAD_ID = 0x0b,
        SPACE_ID = 0x10, INDEX_ID = 0x11, LIMIT = 0x12, OFFSET = 0x13, ITERATOR = 0x14, INDEX_BASE = 0x15,
        FETCH_POSITION = 0x1f, KEY = 0x20, TUPLE = 0x21, FUNCTION_NAME = 0x22, USER_NAME = 0x23, INSTANCE_UUID = 0x24,
        REPLICASET_UUID = 0x25, VCLOCK = 0x26, EXPR = 0x27, OPS = 0x28, BALLOT = 0x29, TUPLE_META = 0x2a, OPTIONS = 0x2b,
        OLD_TUPLE = 0x2c, NEW_TUPLE = 0x2d, AFTER_POSITION = 0x2e, AFTER_TUPLE = 0x2f, DATA = 0x30, ERROR_24 = 0x31,
        METADATA = 0x32, BIND_METADATA = 0x33, BIND_COUNT = 0x34, POSITION = 0x35, ARROW = 0x36, BEGIN_KEY = 0x37,
        END_KEY = 0x38, SQL_TEXT = 0x40, SQL_BIND = 0x41, SQL_INFO = 0x42, STMT_ID = 0x43, REPLICA_ANON = 0x50,
        ID_FILTER = 0x51, ERROR = 0x52, TERM = 0x53, VERSION = 0x54, FEATURES = 0x55, TIMEOUT = 0x56, EVENT_KEY = 0x57,
        EVENT_DATA = 0x58, TXN_ISOLATION = 0x59, VCLOCK_SYNC = 0x5a, AUTH_TYPE = 0x5b, REPLICASET_NAME = 0x5c,
        INSTANCE_NAME = 0x5d, SPACE_NAME = 0x5e, INDEX_NAME = 0x5f, TUPLE_FORMATS = 0x60, IS_SYNC = 0x61,
        IS_CHECKPOINT_JOIN = 0x62, CHECKPOINT_VCLOCK = 0x63, CHECKPOINT_LSN = 0x64,
    }
}

/// The MessagePack family a known key's value must have; `None` for unknown keys and for keys whose value may be
/// anything (`src/box/iproto_constants.c`, `iproto_key_type`).
pub fn key_family(key: u64) -> Option<Family> {
    use key::*;
    let Ok(key) = u8::try_from(key) else { return None };
    Some(match key {
        REQUEST_TYPE
        | SYNC
        | REPLICA_ID
        | LSN
        | SCHEMA_VERSION..=THREAD_ID
        | SPACE_ID..=INDEX_BASE
        | BIND_COUNT
        | STMT_ID
        | TERM
        | VERSION
        | TXN_ISOLATION
        | VCLOCK_SYNC
        | CHECKPOINT_LSN => Family::Uint,
        TIMESTAMP | TIMEOUT => Family::Double,
        FETCH_POSITION | REPLICA_ANON | IS_SYNC | IS_CHECKPOINT_JOIN => Family::Bool,
        KEY | TUPLE | OPS | OLD_TUPLE | NEW_TUPLE | AFTER_TUPLE | DATA | METADATA | BIND_METADATA | BEGIN_KEY
        | END_KEY | SQL_BIND | ID_FILTER | FEATURES => Family::Array,
        FUNCTION_NAME | USER_NAME | INSTANCE_UUID | REPLICASET_UUID | EXPR | AFTER_POSITION | ERROR_24 | POSITION
        | SQL_TEXT | EVENT_KEY | AUTH_TYPE | REPLICASET_NAME | INSTANCE_NAME | SPACE_NAME | INDEX_NAME => Family::Str,
        VCLOCK | BALLOT | TUPLE_META | SQL_INFO | ERROR | TUPLE_FORMATS | CHECKPOINT_VCLOCK => Family::Map,
        ARROW => Family::Ext,
        _ => return None,
    })
}

/// The name of a body key in `Missing mandatory field '%s' in request` (`iproto_key_strs`).
pub fn key_name(key: u8) -> &'static str {
    match key {
        key::SPACE_ID => "SPACE_ID",
        key::INDEX_ID => "INDEX_ID",
        key::LIMIT => "LIMIT",
        key::KEY => "KEY",
        key::TUPLE => "TUPLE",
        key::FUNCTION_NAME => "FUNCTION_NAME",
        key::USER_NAME => "USER_NAME",
        key::EXPR => "EXPR",
        key::OPS => "OPS",
        key::EVENT_KEY => "EVENT_KEY",
        key::SQL_TEXT => "SQL_TEXT",
        key::STMT_ID => "STMT_ID",
        _ => "UNKNOWN",
    }
}

/// Protocol features (`src/box/iproto_features.h`).
pub mod feature {
    constants! { u32;
        STREAMS = 0, TRANSACTIONS = 1, ERROR_EXTENSION = 2, WATCHERS = 3, PAGINATION = 4, SPACE_AND_INDEX_NAMES = 5,
        WATCH_ONCE = 6, DML_TUPLE_EXTENSION = 7, CALL_RET_TUPLE_EXTENSION = 8, CALL_ARG_TUPLE_EXTENSION = 9,
        FETCH_SNAPSHOT_CURSOR = 10, IS_SYNC = 11, INSERT_ARROW = 12,
    }
    /// The names of the features, by number.
    pub const NAMES: [&str; 13] = [
        "streams",
        "transactions",
        "error_extension",
        "watchers",
        "pagination",
        "space_and_index_names",
        "watch_once",
        "dml_tuple_extension",
        "call_ret_tuple_extension",
        "call_arg_tuple_extension",
        "fetch_snapshot_cursor",
        "is_sync",
        "insert_arrow",
    ];
}

/// MessagePack extension types (`src/lib/core/mp_extension_types.h`).
pub mod ext {
    constants! { i8;
        DECIMAL = 1, UUID = 2, ERROR = 3, DATETIME = 4, COMPRESSION = 5, INTERVAL = 6, TUPLE = 7, ARROW = 8,
    }
}

/// Iterator types of SELECT (`src/box/iterator_type.h`).
pub mod iterator {
    constants! { u32;
        EQ = 0, REQ = 1, ALL = 2, LT = 3, LE = 4, GE = 5, GT = 6, BITS_ALL_SET = 7, BITS_ANY_SET = 8,
        BITS_ALL_NOT_SET = 9, OVERLAPS = 10, NEIGHBOR = 11, NP = 12, PP = 13,
    }
    /// The names of the iterators, by number.
    pub const NAMES: [&str; 14] = [
        "EQ",
        "REQ",
        "ALL",
        "LT",
        "LE",
        "GE",
        "GT",
        "BITS_ALL_SET",
        "BITS_ANY_SET",
        "BITS_ALL_NOT_SET",
        "OVERLAPS",
        "NEIGHBOR",
        "NP",
        "PP",
    ];
}

/// Error codes the protocol layer itself needs (`src/box/errcode.h`; `cord.error` has all of them).
pub mod errcode {
    constants! { u32;
        UNKNOWN = 0, ILLEGAL_PARAMS = 1, UNSUPPORTED = 5, INVALID_MSGPACK = 20, PROC_LUA = 32, NO_SUCH_PROC = 33,
        ACCESS_DENIED = 42, CREDS_MISMATCH = 47, UNKNOWN_REQUEST_TYPE = 48, MISSING_REQUEST_FIELD = 69,
        NO_CONNECTION = 77, WRONG_SCHEMA_VERSION = 109, UNKNOWN_AUTH_METHOD = 249, INVALID_AUTH_REQUEST = 251,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn every_header_key_has_a_family() {
        for key in [key::REQUEST_TYPE, key::SYNC, key::SCHEMA_VERSION, key::STREAM_ID, key::THREAD_ID] {
            assert_eq!(key_family(key.into()), Some(Family::Uint));
        }
        assert_eq!(key_family(key::TIMESTAMP.into()), Some(Family::Double));
    }

    #[test]
    fn unknown_keys_and_free_values_have_none() {
        for key in [0x0c, 0x7f, 0xff, 0x100, u64::MAX, key::EVENT_DATA.into(), key::OPTIONS.into()] {
            assert_eq!(key_family(key), None);
        }
    }
}
