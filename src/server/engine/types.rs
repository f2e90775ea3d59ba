//! Field types: which values each admits, and the order of values of different kinds.
//!
//! Source: `src/box/field_def.c`, Tarantool 3.9-dev.

use super::mp::{self, Value};
use super::number::Decimal;

macro_rules! field_types {
    ($($variant:ident $name:literal $types:expr, $exts:expr;)*) => {
        /// The type of a field or of a part of a key.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum FieldType {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl FieldType {
            /// The type of that name, case and old aliases (`num`, `str`, `int`, `uint`, `*`) included.
            pub fn by_name(name: &str) -> Option<Self> {
                match name.to_ascii_lowercase().as_str() {
                    $($name => Some(Self::$variant),)*
                    "num" | "uint" => Some(Self::Unsigned),
                    "str" => Some(Self::String),
                    "int" => Some(Self::Integer),
                    "*" => Some(Self::Any),
                    _ => None,
                }
            }

            /// Tarantool's name of the type.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Bits of the plain MessagePack types admitted, and of the extension types.
            fn masks(self) -> (u32, u32) {
                match self { $(Self::$variant => ($types, $exts),)* }
            }
        }
    };
}

const UINT: u32 = 1 << 1;
const INT: u32 = 1 << 2;
const STR: u32 = 1 << 3;
const BIN: u32 = 1 << 4;
const ARRAY: u32 = 1 << 5;
const MAP: u32 = 1 << 6;
const BOOL: u32 = 1 << 7;
const FLOAT: u32 = 1 << 8;
const DOUBLE: u32 = 1 << 9;
const NUMBER: u32 = UINT | INT | FLOAT | DOUBLE;
const DECIMAL: u32 = 1 << mp::EXT_DECIMAL;
const UUID: u32 = 1 << mp::EXT_UUID;
const DATETIME: u32 = 1 << mp::EXT_DATETIME;
const INTERVAL: u32 = 1 << mp::EXT_INTERVAL;

field_types! {
    Any "any" u32::MAX, u32::MAX;
    Unsigned "unsigned" UINT, 0;
    String "string" STR, 0;
    Number "number" NUMBER, DECIMAL;
    Double "double" NUMBER, 0;
    Integer "integer" UINT | INT, 0;
    Boolean "boolean" BOOL, 0;
    Varbinary "varbinary" BIN, 0;
    Scalar "scalar" NUMBER | STR | BIN | BOOL, DECIMAL | UUID | DATETIME;
    Decimal "decimal" 0, DECIMAL;
    Uuid "uuid" 0, UUID;
    Datetime "datetime" 0, DATETIME;
    Interval "interval" 0, INTERVAL;
    Array "array" ARRAY, 0;
    Map "map" MAP, 0;
    Int8 "int8" UINT | INT, 0;
    Uint8 "uint8" UINT, 0;
    Int16 "int16" UINT | INT, 0;
    Uint16 "uint16" UINT, 0;
    Int32 "int32" UINT | INT, 0;
    Uint32 "uint32" UINT, 0;
    Int64 "int64" UINT | INT, 0;
    Uint64 "uint64" UINT, 0;
    Float32 "float32" FLOAT, 0;
    Float64 "float64" DOUBLE, 0;
}

fn bit(value: &Value<'_>) -> u32 {
    match value {
        Value::Nil => 1,
        Value::Uint(_) => UINT,
        Value::Int(_) => INT,
        Value::Str(_) => STR,
        Value::Bin(_) => BIN,
        Value::Array(_) => ARRAY,
        Value::Map(_) => MAP,
        Value::Bool(_) => BOOL,
        Value::F32(_) => FLOAT,
        Value::F64(_) => DOUBLE,
        Value::Ext(..) => 0,
    }
}

impl FieldType {
    /// Whether a value of this kind may stand in a field of the type (ranges and null are another question).
    pub(crate) fn admits(self, value: &Value<'_>) -> bool {
        let (types, exts) = self.masks();
        match value {
            Value::Ext(kind, _) => (0..32).contains(kind) && exts & (1 << kind) != 0,
            plain => types & bit(plain) != 0,
        }
    }

    /// Whether every value of `other` is one of this type.
    pub(crate) fn contains(self, other: FieldType) -> bool {
        let (own, theirs) = (self.masks(), other.masks());
        let holds = if theirs.0 == 0 { own.1 & theirs.1 == theirs.1 } else { own.0 & theirs.0 == theirs.0 };
        match (self.range(), other.range()) {
            _ if !holds => false,
            (Some(own), Some(theirs)) => own.0 <= theirs.0 && own.1 >= theirs.1,
            (Some(_), None) => self == FieldType::Uint64 && other == FieldType::Unsigned,
            (None, _) => true,
        }
    }

    /// Least and greatest value of the integers of fixed size.
    pub(crate) fn range(self) -> Option<(i128, i128)> {
        Some(match self {
            FieldType::Int8 => (i8::MIN.into(), i8::MAX.into()),
            FieldType::Uint8 => (0, u8::MAX.into()),
            FieldType::Int16 => (i16::MIN.into(), i16::MAX.into()),
            FieldType::Uint16 => (0, u16::MAX.into()),
            FieldType::Int32 => (i32::MIN.into(), i32::MAX.into()),
            FieldType::Uint32 => (0, u32::MAX.into()),
            FieldType::Int64 => (i64::MIN.into(), i64::MAX.into()),
            FieldType::Uint64 => (0, u64::MAX.into()),
            _ => return None,
        })
    }

    /// Whether the type holds integers only, so that keys need no common scale with doubles and decimals.
    pub(crate) fn is_integral(self) -> bool {
        self.masks().0 & !(UINT | INT) == 0 && self.masks().0 != 0
    }

    /// Whether an index can be built over the type.
    pub(crate) fn is_indexable(self) -> bool {
        !matches!(self, FieldType::Any | FieldType::Interval | FieldType::Array | FieldType::Map)
    }
}

/// Whether the payload of a known extension is well formed, so that it can be compared.
pub(crate) fn extension_is_valid(kind: i8, body: &[u8]) -> bool {
    match kind {
        mp::EXT_DECIMAL => Decimal::unpack(body).is_some(),
        mp::EXT_UUID => body.len() == 16,
        mp::EXT_DATETIME => body.len() == 8 || body.len() == 16,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containment_is_that_of_tarantool() {
        use FieldType::*;
        for (wide, narrow) in [(Any, Map), (Scalar, Uuid), (Number, Decimal), (Integer, Unsigned)] {
            assert!(wide.contains(narrow), "{wide:?} {narrow:?}");
            assert!(!narrow.contains(wide), "{narrow:?} {wide:?}");
        }
        assert!(Unsigned.contains(Uint8) && !Uint8.contains(Unsigned));
        assert!(Uint64.contains(Unsigned) && Unsigned.contains(Uint64));
        assert!(Int16.contains(Uint8) && !Uint8.contains(Int8));
        assert!(!String.contains(Varbinary) && !Scalar.contains(Array));
    }

    #[test]
    fn names_and_aliases() {
        assert_eq!(FieldType::by_name("STR"), Some(FieldType::String));
        assert_eq!(FieldType::by_name("unsigned").unwrap().name(), "unsigned");
        assert_eq!(FieldType::by_name("nope"), None);
    }
}
