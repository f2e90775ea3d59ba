//! What `create_space` and `create_index` are given, in Rust and as MessagePack of the Lua tables.
//!
//! Source: `src/box/lua/schema.lua` (`box.schema.space.create`, `box.schema.index.create`, `update_index_parts`) and
//! `src/box/lua/tuple_format.lua` (`normalize_format`), Tarantool 3.9-dev.

use super::collation::Collation;
use super::error::{self, BoxError, Field, Result};
use super::format::FieldDef;
use super::key::Part;
use super::mp::{self, Value};
use super::types::FieldType;

/// Deepest nesting of options.
const DEPTH: u32 = 16;

/// Options of a new space.
#[derive(Clone, Debug, Default)]
pub struct SpaceOptions {
    /// The id; by default one above the greatest.
    pub id: Option<u32>,
    /// The engine's name; `memtx` by default and only.
    pub engine: Option<String>,
    /// How many fields each tuple must have; 0, the default: any number.
    pub field_count: u32,
    /// The declared fields.
    pub format: Vec<FieldDef>,
    /// Whether an existing space of the name is no error.
    pub if_not_exists: bool,
    /// Shown in the space's flags; snapshots leave such a space's tuples out.
    pub temporary: bool,
}

/// Options of a new index.
#[derive(Clone, Debug, Default)]
pub struct IndexOptions {
    /// The id; by default one above the greatest of the space.
    pub id: Option<u32>,
    /// `TREE` (the default) or `HASH`, in any case.
    pub kind: Option<String>,
    /// Whether no two tuples may have one key; true by default.
    pub unique: Option<bool>,
    /// The parts; by default the first field.
    pub parts: Vec<PartOptions>,
    /// Whether an existing index of the name is no error.
    pub if_not_exists: bool,
    /// Numbers the tuples whose key is left out; for primary keys only.
    pub sequence: Option<SequenceOptions>,
}

/// Options of the numbers that a primary key gives.
#[derive(Clone, Debug, Default)]
pub struct SequenceOptions {
    /// The part of the key they are for; by default the first.
    pub field: Option<FieldRef>,
}

/// A field by number or name.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldRef {
    /// Counted from 1.
    Number(i64),
    /// As in the space's format.
    Name(String),
}

/// Whether the name is a path that leads inside a field of the format.
fn is_path(name: &str, format: &[FieldDef]) -> bool {
    let root = name.split(['.', '[']).next().unwrap_or_default();
    root.len() < name.len() && (root.is_empty() || format.iter().any(|field| field.name == root))
}

impl FieldRef {
    /// The number of the field, from 0; errors start with `what`.
    pub(crate) fn resolve(&self, format: &[FieldDef], what: &str) -> Result<usize> {
        match self {
            FieldRef::Name(name) => match format.iter().position(|f| f.name == *name) {
                Some(number) => Ok(number),
                None if is_path(name, format) => Err(not_supported("JSON paths in an index")),
                None => Err(BoxError::illegal(format!("{what}field was not found by name '{name}'"))),
            },
            FieldRef::Number(n) if *n <= 0 => Err(BoxError::illegal(format!("{what}field (number) must be one-based"))),
            FieldRef::Number(n) => Ok(usize::try_from(n - 1).unwrap_or(usize::MAX)),
        }
    }
}

/// One part of a new index.
#[derive(Clone, Debug)]
pub struct PartOptions {
    /// Which field.
    pub field: FieldRef,
    /// Its type; by default the format's, else `scalar`.
    pub kind: Option<String>,
    /// Whether null is a value; by default as in the format.
    pub is_nullable: Option<bool>,
    /// Whether tuples with null stay out of the index.
    pub exclude_null: bool,
    /// Name of the collation; by default the format's.
    pub collation: Option<String>,
    /// `asc` (the default) or `desc`.
    pub sort_order: Option<String>,
}

impl PartOptions {
    /// A part over a field (from 1) of a type.
    pub fn new(field: i64, kind: &str) -> Self {
        PartOptions { kind: Some(kind.into()), ..PartOptions::of(FieldRef::Number(field)) }
    }

    fn of(field: FieldRef) -> Self {
        PartOptions { field, kind: None, is_nullable: None, exclude_null: false, collation: None, sort_order: None }
    }

    /// The part, given the fields of its space; `number` counts from 1.
    pub(crate) fn resolve(&self, format: &[FieldDef], number: usize) -> Result<Part> {
        let what = format!("options.parts[{number}]: ");
        let field = self.field.resolve(format, &what)?;
        let declared = format.get(field);
        let kind = match &self.kind {
            Some(name) => FieldType::by_name(name).ok_or_else(|| wrong_part(number, "unknown field type"))?,
            None => declared.map_or(FieldType::Scalar, |f| f.kind),
        };
        let mut is_nullable = self.is_nullable.unwrap_or_else(|| declared.is_some_and(|f| f.is_nullable));
        if self.exclude_null && !is_nullable {
            if self.is_nullable.is_some() {
                let text = "exclude_null=true and is_nullable=false are incompatible";
                return Err(BoxError::illegal(format!("{what}{text}")));
            }
            is_nullable = true;
        }
        let collation = match &self.collation {
            Some(name) => Some(
                Collation::id_by_name(name)
                    .ok_or_else(|| BoxError::illegal(format!("{what}collation was not found by name '{name}'")))?,
            ),
            None => declared.and_then(|f| f.collation),
        };
        if collation.is_some() && !matches!(kind, FieldType::String | FieldType::Scalar) {
            return Err(wrong_part(number, "collation is only reasonable for 'string' and 'scalar' parts"));
        }
        let descending = match self.sort_order.as_deref() {
            None | Some("asc") => false,
            Some("desc") => true,
            Some(_) => return Err(wrong_part(number, "unknown sort order")),
        };
        let collation = collation.and_then(Collation::by_id).flatten();
        let field = u32::try_from(field).unwrap_or(u32::MAX);
        Ok(Part { field, kind, is_nullable, exclude_null: self.exclude_null, collation, descending })
    }
}

/// `Wrong index part 1: ...`.
pub(crate) fn wrong_part(number: usize, details: &str) -> BoxError {
    BoxError::client(error::WRONG_INDEX_PARTS, format!("Wrong index part {number}: {details}"))
        .with("partno", Field::Uint(number as u64))
        .with("details", Field::Str(details))
}

/// A Lua value as MessagePack, taken apart.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    Nil,
    Bool(bool),
    Number(i64),
    Str(String),
    /// A table: its keys and values; an array has the keys 1, 2, ...
    Table(Vec<(Node, Node)>),
    Other,
}

impl Node {
    fn read(rest: &mut &[u8], depth: u32) -> Option<Node> {
        if depth > DEPTH {
            return None;
        }
        Some(match mp::next(rest)? {
            Value::Nil => Node::Nil,
            Value::Bool(b) => Node::Bool(b),
            Value::Uint(n) => i64::try_from(n).map_or(Node::Other, Node::Number),
            Value::Int(n) => Node::Number(n),
            Value::F64(d) if d.fract() == 0.0 && d.abs() < 9e15 => Node::Number(d as i64),
            Value::Str(s) => Node::Str(String::from_utf8_lossy(s).into_owned()),
            Value::Array(n) => {
                let mut items = Vec::new();
                for number in 1..=i64::from(n) {
                    items.push((Node::Number(number), Node::read(rest, depth + 1)?));
                }
                Node::Table(items)
            }
            Value::Map(n) => {
                let mut items = Vec::new();
                for _ in 0..n {
                    items.push((Node::read(rest, depth + 1)?, Node::read(rest, depth + 1)?));
                }
                Node::Table(items)
            }
            _ => Node::Other,
        })
    }

    fn type_name(&self) -> &'static str {
        match self {
            Node::Nil => "nil",
            Node::Bool(_) => "boolean",
            Node::Number(_) => "number",
            Node::Str(_) => "string",
            Node::Table(_) => "table",
            Node::Other => "cdata",
        }
    }

    fn text(&self) -> Option<String> {
        match self {
            Node::Str(s) => Some(s.clone()),
            _ => None,
        }
    }

    /// The elements 1, 2, ... up to the first that is missing.
    fn items(&self) -> Vec<&Node> {
        let Node::Table(entries) = self else { return Vec::new() };
        let find = |n| entries.iter().find(|(key, value)| *key == Node::Number(n) && *value != Node::Nil);
        (1..=entries.len() as i64).map_while(find).map(|(_, value)| value).collect()
    }

    fn get(&self, key: &str) -> Option<&Node> {
        let Node::Table(entries) = self else { return None };
        entries.iter().find(|(k, v)| matches!(k, Node::Str(s) if s == key) && *v != Node::Nil).map(|(_, v)| v)
    }

    fn at(&self, number: i64) -> Option<&Node> {
        let Node::Table(entries) = self else { return None };
        entries.iter().find(|(k, v)| *k == Node::Number(number) && *v != Node::Nil).map(|(_, v)| v)
    }
}

/// The option table, checked against the names and types it may have.
fn options(raw: &[u8], template: &[(&str, &[&str])]) -> Result<Node> {
    let node = Node::read(&mut &*raw, 0).ok_or_else(|| BoxError::msgpack("options"))?;
    let entries = match &node {
        Node::Nil => return Ok(Node::Table(Vec::new())),
        Node::Table(entries) => entries,
        _ => return Err(BoxError::illegal("options should be a table")),
    };
    for (key, value) in entries {
        let name = match key {
            Node::Str(s) => s.clone(),
            Node::Number(n) => n.to_string(),
            other => other.type_name().into(),
        };
        let Some((_, types)) = template.iter().find(|(known, _)| *known == name) else {
            return Err(BoxError::illegal(format!("unexpected option '{name}'")));
        };
        if *value != Node::Nil && !types.contains(&value.type_name()) {
            let text = match types {
                [one] => format!("options parameter '{name}' should be of type {one}"),
                many => format!("options parameter '{name}' should be one of types: {}", many.join(", ")),
            };
            return Err(BoxError::illegal(text));
        }
    }
    Ok(node)
}

fn flag(node: &Node, key: &str) -> bool {
    node.get(key) == Some(&Node::Bool(true))
}

fn id(node: &Node, key: &str) -> Result<Option<u32>> {
    match node.get(key) {
        Some(Node::Number(n)) => {
            let wrong = || BoxError::illegal(format!("options parameter '{key}' is out of range"));
            u32::try_from(*n).map(Some).map_err(|_| wrong())
        }
        _ => Ok(None),
    }
}

const STRING: &[&str] = &["string"];
const NUMBER: &[&str] = &["number"];
const BOOLEAN: &[&str] = &["boolean"];
const TABLE: &[&str] = &["table"];

impl SpaceOptions {
    /// Reads the Lua table of options from MessagePack (nil: none).
    ///
    /// # Errors
    /// `unexpected option 'x'` and the other texts of Tarantool; what the embedded server does not do.
    pub fn from_msgpack(raw: &[u8]) -> Result<Self> {
        let node = options(
            raw,
            &[
                ("if_not_exists", BOOLEAN),
                ("engine", STRING),
                ("id", NUMBER),
                ("field_count", NUMBER),
                ("user", &["string", "number"]),
                ("format", TABLE),
                ("type", STRING),
                ("is_local", BOOLEAN),
                ("temporary", BOOLEAN),
                ("is_sync", BOOLEAN),
                ("defer_deletes", BOOLEAN),
                ("constraint", &["string", "table"]),
                ("foreign_key", TABLE),
            ],
        )?;
        for (key, what) in [("constraint", "constraints"), ("foreign_key", "foreign keys")] {
            if node.get(key).is_some() {
                return Err(not_supported(what));
            }
        }
        let temporary = match node.get("type").and_then(Node::text).as_deref() {
            None => flag(&node, "temporary"),
            Some(_) if node.get("temporary").is_some() => {
                return Err(BoxError::illegal("only one of 'type' or 'temporary' may be specified"));
            }
            Some("normal") => false,
            Some("data-temporary" | "temporary") => true,
            Some(_) => {
                return Err(BoxError::illegal(
                    "unknown space type, must be one of: 'normal', 'data-temporary', 'temporary'.",
                ));
            }
        };
        Ok(SpaceOptions {
            id: id(&node, "id")?,
            engine: node.get("engine").and_then(Node::text),
            field_count: id(&node, "field_count")?.unwrap_or_default(),
            format: node.get("format").map_or(Ok(Vec::new()), format)?,
            if_not_exists: flag(&node, "if_not_exists"),
            temporary,
        })
    }
}

/// Reads the Lua table of a space's format from MessagePack.
///
/// # Errors
/// A field without a name, of an unknown type, or with something the embedded server does not do.
pub fn format_from_msgpack(raw: &[u8]) -> Result<Vec<FieldDef>> {
    format(&Node::read(&mut &*raw, 0).ok_or_else(|| BoxError::msgpack("format"))?)
}

fn format(node: &Node) -> Result<Vec<FieldDef>> {
    node.items().into_iter().enumerate().map(|(n, field)| format_field(field, n + 1)).collect()
}

fn format_field(node: &Node, number: usize) -> Result<FieldDef> {
    let (name, kind) = match node {
        Node::Table(_) => match (node.get("name"), node.get("type")) {
            (Some(name), kind) => (Some(name), kind.or_else(|| node.at(1))),
            (None, kind) => (node.at(1), kind.or_else(|| node.at(2))),
        },
        plain => (Some(plain), None),
    };
    let expected = |text: &str| BoxError::illegal(format!("format[{number}]: {text}"));
    let name = name.and_then(Node::text).ok_or_else(|| expected("name (string) is expected"))?;
    let kind = match kind {
        None => FieldType::Any,
        Some(Node::Str(kind)) => FieldType::by_name(kind).ok_or_else(|| wrong_field(number, "unknown field type"))?,
        Some(_) => return Err(expected("type must be a string")),
    };
    for key in ["constraint", "foreign_key", "default", "default_func", "compression"] {
        if node.get(key).is_some() {
            return Err(not_supported(&format!("'{key}' of a field")));
        }
    }
    let collation = match node.get("collation") {
        None => None,
        Some(Node::Str(name)) => Some(
            Collation::id_by_name(name)
                .ok_or_else(|| expected(&format!("collation was not found by name '{name}'")))?,
        ),
        // As in the rows of _space.
        Some(Node::Number(id)) if (0..4).contains(id) => Some(*id as u32),
        Some(_) => return Err(expected("collation must be a string")),
    };
    if collation.is_some() && !matches!(kind, FieldType::String | FieldType::Scalar | FieldType::Any) {
        let text = "collation is reasonable only for 'string', 'scalar', and 'any' fields";
        return Err(wrong_field(number, text));
    }
    Ok(FieldDef { name, kind, is_nullable: flag(node, "is_nullable"), collation })
}

/// `Wrong space format field 1: ...`.
fn wrong_field(number: usize, details: &str) -> BoxError {
    BoxError::client(error::WRONG_SPACE_FORMAT, format!("Wrong space format field {number}: {details}"))
        .with("fieldno", Field::Uint(number as u64))
        .with("details", Field::Str(details))
}

fn not_supported(what: &str) -> BoxError {
    BoxError::client(error::UNSUPPORTED, format!("Embedded server does not support {what}"))
}

impl IndexOptions {
    /// Reads the Lua table of options from MessagePack (nil: none).
    ///
    /// # Errors
    /// `unexpected option 'x'` and the other texts of Tarantool; what the embedded server does not do.
    pub fn from_msgpack(raw: &[u8]) -> Result<Self> {
        let node = options(
            raw,
            &[
                ("type", STRING),
                ("parts", TABLE),
                ("unique", BOOLEAN),
                ("id", NUMBER),
                ("if_not_exists", BOOLEAN),
                ("hint", BOOLEAN),
                ("sequence", &["boolean", "number", "string", "table"]),
                ("func", &["number", "string"]),
                ("dimension", NUMBER),
                ("distance", STRING),
            ],
        )?;
        if node.get("func").is_some() {
            return Err(not_supported("functional indexes"));
        }
        Ok(IndexOptions {
            id: id(&node, "id")?,
            kind: node.get("type").and_then(Node::text),
            unique: node.get("unique").map(|value| *value == Node::Bool(true)),
            parts: node.get("parts").map_or(Ok(Vec::new()), parts)?,
            if_not_exists: flag(&node, "if_not_exists"),
            sequence: node.get("sequence").map_or(Ok(None), sequence)?,
        })
    }
}

/// `true`, or `{field = 'x'}`.
fn sequence(node: &Node) -> Result<Option<SequenceOptions>> {
    match node {
        Node::Bool(false) => Ok(None),
        Node::Bool(true) => Ok(Some(SequenceOptions::default())),
        Node::Table(_) if node.get("id").is_none() => Ok(Some(SequenceOptions {
            field: match node.get("field") {
                Some(Node::Number(n)) => Some(FieldRef::Number(*n)),
                Some(Node::Str(name)) => Some(FieldRef::Name(name.clone())),
                _ => None,
            },
        })),
        _ => Err(not_supported("sequences of their own")),
    }
}

/// `{1, 'unsigned'}`, `{1, 'unsigned', 2, 'string'}`, `{{1, 'unsigned'}, {field = 'x', ...}, 'y', 3}`.
fn parts(node: &Node) -> Result<Vec<PartOptions>> {
    let items = node.items();
    if items.is_empty() {
        return Err(BoxError::illegal("options.parts must have at least one part"));
    }
    let is_pair = matches!((items.first(), items.get(1)), (Some(Node::Number(_)), None | Some(Node::Str(_))));
    if is_pair && items.len() <= 2 {
        return Ok(vec![part(node, 1)?]);
    }
    if is_pair {
        let expected = || BoxError::illegal("options.parts: expected field_no (number), type (string) pairs");
        return items
            .chunks(2)
            .map(|pair| match pair {
                [Node::Number(0), _] => Err(BoxError::illegal("invalid index parts: field_no must be one-based")),
                [Node::Number(field), Node::Str(kind)] => Ok(PartOptions::new(*field, kind)),
                _ => Err(expected()),
            })
            .collect();
    }
    items.into_iter().enumerate().map(|(n, item)| part(item, n + 1)).collect()
}

fn part(node: &Node, number: usize) -> Result<PartOptions> {
    let what = format!("options.parts[{number}]: ");
    let is_table = matches!(node, Node::Table(_));
    let field = if is_table { node.get("field").or_else(|| node.at(1)) } else { Some(node) };
    let field = match field {
        Some(Node::Number(n)) => FieldRef::Number(*n),
        Some(Node::Str(name)) => FieldRef::Name(name.clone()),
        _ => return Err(BoxError::illegal(format!("{what}field (name or number) is expected"))),
    };
    let mut part = PartOptions::of(field);
    if !is_table {
        return Ok(part);
    }
    if node.get("path").is_some() {
        return Err(not_supported("JSON paths in an index"));
    }
    part.kind = match node.get("type").or_else(|| node.at(2)) {
        None => None,
        Some(Node::Str(kind)) => Some(kind.clone()),
        Some(_) => return Err(BoxError::illegal(format!("{what}type (string) is expected"))),
    };
    let boolean = |key: &str| match node.get(key) {
        None => Ok(None),
        Some(Node::Bool(b)) => Ok(Some(*b)),
        Some(_) => Err(BoxError::illegal(format!("{what}type (boolean) is expected"))),
    };
    part.is_nullable = boolean("is_nullable")?;
    part.exclude_null = boolean("exclude_null")?.unwrap_or_default();
    part.collation = node.get("collation").and_then(Node::text);
    part.sort_order = node.get("sort_order").and_then(Node::text);
    let named = usize::from(node.get("field").is_some()) + usize::from(node.get("type").is_some());
    if let Some(extra) = node.at(3 - named as i64) {
        let extra = extra.text().unwrap_or_else(|| extra.type_name().into());
        return Err(BoxError::illegal(format!("{what}unexpected option {extra}")));
    }
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `{"key": value, ...}` from pairs of already encoded values.
    fn map(entries: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut out = vec![0x80 | entries.len() as u8];
        entries.iter().for_each(|(k, v)| out.extend([*k, *v].concat()));
        out
    }

    #[test]
    fn formats_in_all_spellings() {
        // {{'id','unsigned'}, {name='n',type='string',is_nullable=true,collation='unicode_ci'}, 'rest'}
        let format = b"\x93\x92\xa2id\xa8unsigned\x84\xa4name\xa1n\xa4type\xa6string\xabis_nullable\xc3\xa9collation\xaaunicode_ci\xa4rest";
        let fields = format_from_msgpack(format).unwrap();
        assert_eq!(fields[0], FieldDef::new("id", FieldType::Unsigned));
        assert_eq!((fields[1].is_nullable, fields[1].collation), (true, Some(2)));
        assert_eq!(fields[2], FieldDef::new("rest", FieldType::Any));
        let text = |raw: &[u8]| format_from_msgpack(raw).unwrap_err().message;
        assert_eq!(text(b"\x91\x90"), "format[1]: name (string) is expected");
        assert_eq!(text(b"\x91\x92\xa1a\xa1b"), "Wrong space format field 1: unknown field type");
        assert_eq!(text(b"\x91\x92\xa1a\x01"), "format[1]: type must be a string");
    }

    #[test]
    fn options_are_checked_by_name_and_type() {
        let text = |raw: &[u8]| SpaceOptions::from_msgpack(raw).unwrap_err().message;
        assert_eq!(text(&map(&[(b"\xa1x", b"\x01")])), "unexpected option 'x'");
        assert_eq!(text(&map(&[(b"\xa2id", b"\xa11")])), "options parameter 'id' should be of type number");
        assert_eq!(
            text(&map(&[(b"\xa4user", b"\xc3")])),
            "options parameter 'user' should be one of types: string, number"
        );
        assert_eq!(text(b"\x05"), "options should be a table");
        let options =
            SpaceOptions::from_msgpack(&map(&[(b"\xa2id", b"\xcd\x02\xbc"), (b"\xa9temporary", b"\xc3")])).unwrap();
        assert_eq!((options.id, options.temporary), (Some(700), true));
        assert!(SpaceOptions::from_msgpack(b"\xc0").is_ok());
    }

    #[test]
    fn parts_in_all_spellings() {
        let parts = |raw: &[u8]| IndexOptions::from_msgpack(&map(&[(b"\xa5parts", raw)])).map(|o| o.parts);
        let fields = |raw: &[u8]| {
            parts(raw).unwrap().into_iter().map(|p| (p.field, p.kind.unwrap_or_default())).collect::<Vec<_>>()
        };
        let number = |n, kind: &str| (FieldRef::Number(n), kind.to_string());
        assert_eq!(fields(b"\x92\x01\xa8unsigned"), [number(1, "unsigned")]);
        assert_eq!(fields(b"\x94\x01\xa3num\x02\xa3str"), [number(1, "num"), number(2, "str")]);
        assert_eq!(fields(b"\x92\x92\x01\xa3num\x81\xa5field\x02"), [number(1, "num"), number(2, "")]);
        assert_eq!(fields(b"\x91\xa4name"), [(FieldRef::Name("name".into()), String::new())]);
        assert_eq!(fields(b"\x91\x83\x01\x01\x02\xa3num\xabis_nullable\xc3"), [number(1, "num")]);
        let text = |raw: &[u8]| parts(raw).unwrap_err().message;
        assert_eq!(text(b"\x90"), "options.parts must have at least one part");
        assert_eq!(text(b"\x91\x91\xc3"), "options.parts[1]: field (name or number) is expected");
        assert_eq!(text(b"\x93\x01\xa3num\x02"), "options.parts: expected field_no (number), type (string) pairs");
        assert_eq!(text(b"\x91\x93\x01\xa3num\xa1x"), "options.parts[1]: unexpected option x");
    }

    #[test]
    fn parts_take_from_the_format_what_they_do_not_say() {
        let field = FieldDef { is_nullable: true, collation: Some(2), ..FieldDef::new("n", FieldType::String) };
        let part = PartOptions::of(FieldRef::Name("n".into())).resolve(std::slice::from_ref(&field), 1).unwrap();
        assert_eq!(
            (part.kind, part.is_nullable, part.collation),
            (FieldType::String, true, Some(Collation::UnicodeCi))
        );
        assert_eq!(PartOptions::of(FieldRef::Number(2)).resolve(&[field], 1).unwrap().kind, FieldType::Scalar);
        let text = |part: PartOptions| part.resolve(&[], 1).unwrap_err().message;
        let path = |name: &str| {
            PartOptions::of(FieldRef::Name(name.into()))
                .resolve(std::slice::from_ref(&FieldDef::new("n", FieldType::Map)), 1)
        };
        for name in ["n.a", "n[*]", "[1].a"] {
            assert_eq!(path(name).unwrap_err().message, "Embedded server does not support JSON paths in an index");
        }
        assert_eq!(path("m.a").unwrap_err().message, "options.parts[1]: field was not found by name 'm.a'");
        assert_eq!(text(PartOptions::new(0, "unsigned")), "options.parts[1]: field (number) must be one-based");
        assert_eq!(text(PartOptions::new(1, "nope")), "Wrong index part 1: unknown field type");
        let named = PartOptions { collation: Some("x".into()), ..PartOptions::new(1, "string") };
        assert_eq!(text(named), "options.parts[1]: collation was not found by name 'x'");
    }

    #[test]
    fn hostile_options_are_refused() {
        let deep = vec![0x91; 10_000];
        assert!(SpaceOptions::from_msgpack(&deep).is_err());
        assert!(SpaceOptions::from_msgpack(b"\xdf\xff\xff\xff\xff\x01").is_err());
    }
}
