//! Spaces and indexes come and go; the system spaces that show them.
//!
//! Source: `src/box/alter.cc`, `index_def_check` of `src/box/index_def.c`, `memtx_space_check_index_def` of
//! `src/box/memtx_space.c`, `src/box/lua/schema.lua` and the bootstrap data of Tarantool 3.9-dev.

use super::collation;
use super::engine::{Engine, IndexRef, SpaceRef};
use super::error::{self, BoxError, Field, Result};
use super::format::{FieldDef, Format};
use super::key::{KeyDef, Part};
use super::options::{IndexOptions, PartOptions, SpaceOptions};
use super::sequence::{Sequence, name_of};
use super::space::{Change, Conflict, Index, IndexKind, Space, Tuple, View};
use super::types::FieldType;
use crate::iproto::mp as put;
use std::collections::BTreeMap;

/// First id of a user's space.
const FIRST_USER_ID: u32 = 512;
const MAX_INDEX_ID: u32 = 127;
const MAX_PARTS: usize = 255;
const MAX_FIELD: u32 = 32_767;
const MAX_NAME: usize = 65_000;

const SCHEMA: u32 = 272;
const COLLATION: [u32; 2] = [276, 277];
const SPACE: [u32; 2] = [280, 281];
const INDEX: [u32; 2] = [288, 289];
const SEQUENCE: [u32; 2] = [284, 286];
const SPACE_SEQUENCE: [u32; 2] = [340, 341];
const USER: [u32; 2] = [304, 305];

const COLLATION_FIELDS: &str = "id:unsigned name:string owner:unsigned type:string locale:string opts:map";
const SPACE_FIELDS: &str =
    "id:unsigned owner:unsigned name:string engine:string field_count:unsigned flags:map format:array";
const SEQUENCE_FIELDS: &str = "id:unsigned owner:unsigned name:string step:integer min:integer max:integer \
                               start:integer cache:integer cycle:boolean";
const INDEX_FIELDS: &str = "id:unsigned iid:unsigned name:string type:string opts:map parts:array";
const FUNC_FIELDS: &str = "id:unsigned owner:unsigned name:string setuid:unsigned language:string body:string \
                           routine_type:string param_list:array returns:string aggregate:string \
                           sql_data_access:string is_deterministic:boolean is_sandboxed:boolean \
                           is_null_call:boolean exports:array opts:map comment:string created:string \
                           last_altered:string trigger:array";
const USER_FIELDS: &str =
    "id:unsigned owner:unsigned name:string type:string auth:map auth_history:array last_modified:unsigned";
const PRIV_FIELDS: &str = "grantor:unsigned grantee:unsigned object_type:string object_id:scalar privilege:unsigned";
const SPACE_SEQUENCE_FIELDS: &str = "id:unsigned sequence_id:unsigned is_generated:boolean field:unsigned path:string";

const ID_INDEX: &str = "0 primary 0:unsigned";
const ID_NAME: &str = "0 primary 0:unsigned|1 name 1:string";
const ID_OWNER_NAME: &str = "0 primary 0:unsigned|1 owner* 1:unsigned|2 name 2:string";
const INDEX_INDEXES: &str = "0 primary 0:unsigned 1:unsigned|2 name 0:unsigned 2:string";
const PRIV_INDEXES: &str = "0 primary 1:unsigned 2:string 3:scalar|1 owner* 0:unsigned|2 object* 2:string 3:scalar";
const SPACE_SEQUENCE_INDEXES: &str = "0 primary 0:unsigned|1 sequence* 1:unsigned";

/// Id, name, engine, fields (`name:type`, nullable ones with a question mark), indexes (id, name, with a star if not
/// unique, parts).
const SYSTEM_SPACES: [(u32, &str, &str, &str, &str); 19] = [
    (SCHEMA, "_schema", "memtx", "key:string value:any?", "0 primary 0:string"),
    (COLLATION[0], "_collation", "memtx", COLLATION_FIELDS, ID_NAME),
    (COLLATION[1], "_vcollation", "sysview", COLLATION_FIELDS, ID_NAME),
    (SPACE[0], "_space", "memtx", SPACE_FIELDS, ID_OWNER_NAME),
    (SPACE[1], "_vspace", "sysview", SPACE_FIELDS, ID_OWNER_NAME),
    (SEQUENCE[0], "_sequence", "memtx", SEQUENCE_FIELDS, ID_OWNER_NAME),
    (285, "_sequence_data", "memtx", "id:unsigned value:integer", ID_INDEX),
    (SEQUENCE[1], "_vsequence", "sysview", SEQUENCE_FIELDS, ID_OWNER_NAME),
    (INDEX[0], "_index", "memtx", INDEX_FIELDS, INDEX_INDEXES),
    (INDEX[1], "_vindex", "sysview", INDEX_FIELDS, INDEX_INDEXES),
    (296, "_func", "memtx", FUNC_FIELDS, ID_OWNER_NAME),
    (297, "_vfunc", "sysview", FUNC_FIELDS, ID_OWNER_NAME),
    (USER[0], "_user", "memtx", USER_FIELDS, ID_OWNER_NAME),
    (USER[1], "_vuser", "sysview", USER_FIELDS, ID_OWNER_NAME),
    (312, "_priv", "memtx", PRIV_FIELDS, PRIV_INDEXES),
    (313, "_vpriv", "sysview", PRIV_FIELDS, PRIV_INDEXES),
    (330, "_truncate", "memtx", "id:unsigned count:unsigned", ID_INDEX),
    (SPACE_SEQUENCE[0], "_space_sequence", "memtx", SPACE_SEQUENCE_FIELDS, SPACE_SEQUENCE_INDEXES),
    (SPACE_SEQUENCE[1], "_vspace_sequence", "sysview", SPACE_SEQUENCE_FIELDS, SPACE_SEQUENCE_INDEXES),
];

/// Id, name and kind of the users and roles that are always there.
const USERS: [(u32, &str, &str); 5] = [
    (0, "guest", "user"),
    (1, "admin", "user"),
    (2, "public", "role"),
    (3, "replication", "role"),
    (31, "super", "role"),
];

/// Owner of everything: the user admin.
const ADMIN: u64 = 1;

impl Engine {
    /// Creates a space and returns its id and whether it is new.
    ///
    /// # Errors
    /// Tarantool's: the name or the id is taken or unfit, no such engine, contradictions in the format.
    pub fn create_space(&mut self, name: &str, options: &SpaceOptions) -> Result<(u32, bool)> {
        if let Some(id) = self.names.get(name.as_bytes()) {
            return if options.if_not_exists { Ok((*id, false)) } else { Err(space_exists(name)) };
        }
        check_name(name).map_err(|too_long| match too_long {
            None => cannot_create(name, "space name is too long"),
            Some(error) => error,
        })?;
        let id = options.id.unwrap_or_else(|| self.free_id());
        match id {
            0 => return Err(cannot_create(name, "space id 0 is reserved")),
            u32::MAX => return Err(cannot_create(name, "space id is too big")),
            1..FIRST_USER_ID if !self.spaces.contains_key(&id) => {
                return Err(cannot_create(name, "space id is reserved for system spaces"));
            }
            _ => {}
        }
        if let Some(engine) = options.engine.as_deref()
            && engine != "memtx"
        {
            return Err(BoxError::client(error::NO_SUCH_ENGINE, format!("Space engine '{engine}' does not exist"))
                .with("engine", Field::Str(engine)));
        }
        if options.field_count != 0 && (options.field_count as usize) < options.format.len() {
            return Err(cannot_create(name, "exact_field_count must be either 0 or >= formatted field count"));
        }
        check_fields(&options.format)?;
        let format = Format::new(options.format.clone(), options.field_count, [])?;
        self.add_space(Space {
            id,
            name: name.into(),
            engine: "memtx",
            field_count: options.field_count,
            temporary: options.temporary,
            format,
            sequence: None,
            indexes: Vec::new(),
        })?;
        self.notice_schema_change(id);
        Ok((id, true))
    }

    /// Removes a space with all it holds.
    ///
    /// # Errors
    /// No such space; a system space.
    pub fn drop_space(&mut self, space: SpaceRef<'_>) -> Result<()> {
        let space = self.space(space)?;
        if space.is_system() {
            return Err(cannot("drop", error::DROP_SPACE, &space.name, "the space is a system space"));
        }
        let id = space.id;
        self.empty(id);
        self.detach_sequence(id);
        for row in self.index_rows(id) {
            self.remove_row(INDEX, &row);
        }
        if let Some(space) = self.spaces.remove(&id) {
            self.names.remove(space.name.as_bytes());
            self.remove_row(SPACE, &space_row(&space));
        }
        self.notice_schema_change(id);
        Ok(())
    }

    /// Creates an index over what the space holds, and returns its id and whether it is new.
    ///
    /// # Errors
    /// Tarantool's: contradictory options; tuples in the space that do not fit.
    pub fn create_index(&mut self, space: SpaceRef<'_>, name: &str, options: &IndexOptions) -> Result<(u32, bool)> {
        let space = self.space(space)?;
        if space.is_system() {
            return Err(cannot("modify", error::ALTER_SPACE, &space.name, "the space is a system space"));
        }
        if let Some(index) = space.indexes.iter().find(|index| index.name == name) {
            return if options.if_not_exists { Ok((index.id, false)) } else { Err(index_exists(name)) };
        }
        let mut index = new_index(space, name, options)?;
        let sequence = sequence_field(space, &index, options)?;
        let format = space.format_with(&index)?;
        fill(space, &mut index, &format)?;
        let (space_id, id) = (space.id, index.id);
        let row = index_row(space_id, &index);
        if let Some(space) = self.spaces.get_mut(&space_id) {
            let at = space.indexes.partition_point(|other| other.id < id);
            space.indexes.insert(at, index);
            space.format = format;
        }
        self.add_row(INDEX, row);
        if let Some(field) = sequence {
            self.attach_sequence(space_id, field, None);
        }
        self.notice_schema_change(space_id);
        Ok((id, true))
    }

    /// Removes an index; with the primary key go the tuples.
    ///
    /// # Errors
    /// No such space or index; a primary key while others exist.
    pub fn drop_index(&mut self, space: SpaceRef<'_>, index: IndexRef<'_>) -> Result<()> {
        let space = self.space(space)?;
        let position = match index {
            IndexRef::Id(id) => space.index_by_id(id)?,
            IndexRef::Name(name) => space.index_by_name(name)?,
        };
        let name = &space.name;
        if space.is_system() {
            return Err(cannot("modify", error::ALTER_SPACE, name, "the space is a system space"));
        }
        if position == 0 && space.indexes.len() > 1 {
            let message = format!("Can't drop primary key in space '{name}' while secondary keys exist");
            return Err(BoxError::client(error::DROP_PRIMARY_KEY, message).with("space", Field::Str(name)));
        }
        let keys = space.indexes.iter().enumerate().filter(|(n, _)| *n != position).map(|(_, index)| &index.key);
        let format = Format::new(space.format.fields.clone(), space.field_count, keys)?;
        let id = space.id;
        if position == 0 {
            self.empty(id);
            self.detach_sequence(id);
        }
        if let Some(space) = self.spaces.get_mut(&id) {
            let index = space.indexes.remove(position);
            space.format = format;
            self.remove_row(INDEX, &index_row(id, &index));
        }
        self.notice_schema_change(id);
        Ok(())
    }

    /// Replaces the declared fields of a space.
    ///
    /// # Errors
    /// Tuples or indexes of the space do not fit.
    pub fn set_format(&mut self, space: SpaceRef<'_>, fields: Vec<FieldDef>) -> Result<()> {
        let space = self.space(space)?;
        if space.is_system() {
            return Err(cannot("modify", error::ALTER_SPACE, &space.name, "the space is a system space"));
        }
        check_fields(&fields)?;
        if space.field_count != 0 && (space.field_count as usize) < fields.len() {
            let text = "exact_field_count must be either 0 or >= formatted field count";
            return Err(cannot("modify", error::ALTER_SPACE, &space.name, text));
        }
        let format = Format::new(fields, space.field_count, space.indexes.iter().map(|index| &index.key))?;
        for tuple in space.indexes.first().iter().flat_map(|index| index.tree.values()) {
            format.validate(tuple).map_err(|error| space.label(error))?;
        }
        let (id, old) = (space.id, space_row(space));
        self.remove_row(SPACE, &old);
        if let Some(space) = self.spaces.get_mut(&id) {
            space.format = format;
            let row = space_row(space);
            self.add_row(SPACE, row);
        }
        self.notice_schema_change(id);
        Ok(())
    }

    /// Removes all tuples of a space.
    ///
    /// # Errors
    /// No such space; a system space.
    pub fn truncate(&mut self, space: SpaceRef<'_>) -> Result<()> {
        let space = self.space(space)?;
        if space.is_system() {
            let name = &space.name;
            let message = format!("Can't truncate a system space, space '{name}'");
            return Err(BoxError::client(error::TRUNCATE_SYSTEM_SPACE, message).with("space", Field::Str(name)));
        }
        let id = space.id;
        self.empty(id);
        self.abort_readers(id);
        Ok(())
    }

    /// The id of a space; nothing if there is none of that name.
    pub fn space_id(&self, name: &[u8]) -> Option<u32> {
        self.names.get(name).copied()
    }

    /// The name of a space.
    pub fn space_name(&self, id: u32) -> Option<&str> {
        self.spaces.get(&id).map(|space| space.name.as_str())
    }

    /// The ids of the users' spaces, ascending.
    pub fn user_spaces(&self) -> impl Iterator<Item = u32> {
        self.spaces.range(FIRST_USER_ID..).map(|(id, _)| *id)
    }

    /// Appends the fields of a space as the array of maps that `_space` shows; nothing for an unknown space.
    pub fn write_format(&self, id: u32, out: &mut Vec<u8>) {
        if let Some(space) = self.spaces.get(&id) {
            space.format.write(out);
        }
    }

    /// Puts `rows` in the place of all that a system table and its view hold. Rows are arrays that fit the table.
    pub fn replace_rows(&mut self, tables: [u32; 2], rows: Vec<Tuple>) {
        for table in tables {
            let Some(space) = self.spaces.get_mut(&table).filter(|space| space.is_system()) else { continue };
            space.indexes.iter_mut().for_each(|index| index.tree.clear());
            rows.iter().for_each(|row| space.apply(&Change { old: None, new: Some(row.clone()) }));
        }
    }

    pub(super) fn create_system_spaces(&mut self) {
        for (id, name, engine, fields, indexes) in SYSTEM_SPACES {
            self.add_system_space(id, name, engine, fields, indexes);
        }
        for (id, name, kind, locale, strength) in collation::ROWS {
            self.add_row(COLLATION, collation_row(id, name, kind, locale, strength));
        }
        for (id, name, kind) in USERS {
            self.add_row(USER, user_row(id, name, kind));
        }
        for row in schema_rows() {
            self.add_row([SCHEMA], row);
        }
        let rows: Vec<Tuple> = self.spaces.values().map(space_row).collect();
        rows.into_iter().for_each(|row| self.add_row(SPACE, row));
        let ids: Vec<u32> = self.spaces.keys().copied().collect();
        let rows: Vec<Tuple> = ids.into_iter().flat_map(|id| self.index_rows(id)).collect();
        rows.into_iter().for_each(|row| self.add_row(INDEX, row));
    }

    fn add_system_space(&mut self, id: u32, name: &str, engine: &'static str, fields: &str, indexes: &str) {
        let fields: Vec<FieldDef> = fields.split_whitespace().map(system_field).collect();
        let mut list: Vec<Index> = Vec::new();
        for text in indexes.split('|') {
            list.push(system_index(text, list.first().map(|index| &index.key)));
        }
        // The definitions above agree with each other, so no error hides here.
        let format = Format::new(fields, 0, list.iter().map(|index| &index.key)).unwrap_or_default();
        let name: String = name.into();
        self.names.insert(name.as_bytes().into(), id);
        let space = Space { id, name, engine, field_count: 0, temporary: false, format, sequence: None, indexes: list };
        self.spaces.insert(id, space);
    }

    /// The row of `_space` decides whether the id is free.
    fn add_space(&mut self, space: Space) -> Result<()> {
        let row = space_row(&space);
        if let Some(table) = self.spaces.get(&SPACE[0]) {
            View { space: table, overlays: None }.plan(None, row.clone(), Conflict::Refuse, |_, _| {})?;
        }
        self.names.insert(space.name.as_bytes().into(), space.id);
        self.spaces.insert(space.id, space);
        self.add_row(SPACE, row);
        Ok(())
    }

    fn add_row<const N: usize>(&mut self, tables: [u32; N], row: Tuple) {
        for table in tables {
            if let Some(space) = self.spaces.get_mut(&table) {
                space.apply(&Change { old: None, new: Some(row.clone()) });
            }
        }
    }

    fn remove_row(&mut self, tables: [u32; 2], row: &Tuple) {
        for table in tables {
            if let Some(space) = self.spaces.get_mut(&table) {
                space.apply(&Change { old: Some(row.clone()), new: None });
            }
        }
    }

    fn index_rows(&self, id: u32) -> Vec<Tuple> {
        self.spaces.get(&id).map_or_else(Vec::new, |space| space.indexes.iter().map(|i| index_row(id, i)).collect())
    }

    /// Gives a space numbers for a field, after the number `value`.
    pub(super) fn attach_sequence(&mut self, space: u32, field: u32, value: Option<i64>) {
        let last = self.spaces.values().filter_map(|space| space.sequence.as_ref()).map(|sequence| sequence.id).max();
        let sequence = Sequence { id: last.unwrap_or_default() + 1, field, value };
        let Some(owner) = self.spaces.get_mut(&space) else { return };
        let rows = sequence_rows(owner, &sequence);
        owner.sequence = Some(sequence);
        self.add_row(SEQUENCE, rows.0);
        self.add_row(SPACE_SEQUENCE, rows.1);
    }

    fn detach_sequence(&mut self, space: u32) {
        let Some(owner) = self.spaces.get_mut(&space) else { return };
        let Some(sequence) = owner.sequence.take() else { return };
        let rows = sequence_rows(owner, &sequence);
        self.remove_row(SEQUENCE, &rows.0);
        self.remove_row(SPACE_SEQUENCE, &rows.1);
    }

    fn free_id(&self) -> u32 {
        let last = self.spaces.keys().next_back().copied().unwrap_or_default();
        last.saturating_add(1).max(FIRST_USER_ID)
    }

    fn empty(&mut self, id: u32) {
        let Some(space) = self.spaces.get_mut(&id) else { return };
        let bytes: usize = space.indexes.first().map_or(0, |index| index.tree.values().map(|t| t.len()).sum());
        self.used = self.used.saturating_sub(bytes);
        space.indexes.iter_mut().for_each(|index| index.tree.clear());
    }
}

impl Space {
    /// The format the space would have with one more index.
    fn format_with(&self, index: &Index) -> Result<Format> {
        let keys = self.indexes.iter().chain([index]).map(|index| &index.key);
        Format::new(self.format.fields.clone(), self.field_count, keys).map_err(|error| self.label(error))
    }
}

/// Names are printable; a length that is too much is told by the caller.
fn check_name(name: &str) -> std::result::Result<(), Option<BoxError>> {
    if name.len() > MAX_NAME {
        return Err(None);
    }
    if name.is_empty() || name.chars().any(char::is_control) {
        let message = format!("Invalid identifier '{name}' (expected printable symbols only or it is too long)");
        return Err(Some(BoxError::client(error::IDENTIFIER, message).with("value", Field::Str(name))));
    }
    Ok(())
}

fn check_fields(fields: &[FieldDef]) -> Result<()> {
    let mut seen = std::collections::HashSet::new();
    for field in fields {
        check_name(&field.name)
            .map_err(|error| error.unwrap_or_else(|| BoxError::illegal("field name is too long")))?;
        if !seen.insert(&field.name) {
            let name = &field.name;
            return Err(BoxError::client(
                error::SPACE_FIELD_IS_DUPLICATE,
                format!("Space field '{name}' is duplicate"),
            )
            .with("field", Field::Str(name)));
        }
    }
    Ok(())
}

fn new_index(space: &Space, name: &str, options: &IndexOptions) -> Result<Index> {
    let wrong = |details: &str| cannot_index(name, &space.name, details);
    check_name(name).map_err(|error| error.unwrap_or_else(|| wrong("index name is too long")))?;
    let id = options.id.unwrap_or_else(|| space.indexes.last().map_or(0, |index| index.id + 1));
    let kind_text = options.kind.clone().unwrap_or_else(|| "tree".into());
    let kind = match kind_text.to_ascii_uppercase().as_str() {
        "TREE" => IndexKind::Tree,
        "HASH" => IndexKind::Hash,
        _ => return Err(index_type(name, &space.name)),
    };
    let unique = options.unique.unwrap_or(true);
    let parts = resolve_parts(&options.parts, &space.format.fields)?;
    if parts.len() > MAX_PARTS {
        return Err(wrong("too many key parts"));
    }
    if id > MAX_INDEX_ID {
        return Err(wrong("index id too big"));
    }
    if space.index_position(id).is_some() {
        return Err(index_exists(name));
    }
    if id == 0 && !unique {
        return Err(wrong("primary key must be unique"));
    }
    if parts.iter().any(|part| part.field > MAX_FIELD) {
        return Err(wrong("field no is too big"));
    }
    if parts.iter().enumerate().any(|(n, part)| parts.iter().take(n).any(|other| other.field == part.field)) {
        return Err(wrong("same key part is indexed twice"));
    }
    let is_nullable = parts.iter().any(|part| part.is_nullable);
    if is_nullable && id == 0 {
        let message = format!("Primary index of space '{}' can not contain nullable parts", space.name);
        return Err(BoxError::client(error::NULLABLE_PRIMARY, message).with("space", Field::Str(&space.name)));
    }
    if is_nullable && kind == IndexKind::Hash {
        return Err(BoxError::client(error::UNSUPPORTED, "HASH does not support nullable parts"));
    }
    if kind == IndexKind::Hash && !unique {
        return Err(wrong("HASH index must be unique"));
    }
    if let Some(part) = parts.iter().find(|part| !part.kind.is_indexable()) {
        return Err(wrong(&format!("field type '{}' is not supported", part.kind.name())));
    }
    let primary = space.indexes.first().map(|index| &index.key);
    if id != 0 && primary.is_none() {
        return Err(cannot("modify", error::ALTER_SPACE, &space.name, "can not add a secondary key before primary"));
    }
    let key = KeyDef::new(parts, unique, primary.filter(|_| id != 0));
    Ok(Index { id, name: name.into(), kind, kind_text, unique, key, tree: BTreeMap::new() })
}

/// The field that the numbers of a new index are for, if it has any.
fn sequence_field(space: &Space, index: &Index, options: &IndexOptions) -> Result<Option<u32>> {
    let Some(sequence) = &options.sequence else { return Ok(None) };
    let wrong = |details: &str| cannot_index(&index.name, &space.name, details);
    if index.id != 0 {
        return Err(wrong("sequence cannot be used with a secondary key"));
    }
    let parts = index.key.own_parts();
    let part = match &sequence.field {
        None => parts.first(),
        Some(field) => {
            let field = field.resolve(&space.format.fields, "sequence field: ")?;
            parts.iter().find(|part| part.field as usize == field)
        }
    };
    match part {
        None => Err(wrong("sequence field must be a part of the index")),
        Some(part) if !matches!(part.kind, FieldType::Integer | FieldType::Unsigned) => {
            Err(wrong("sequence cannot be used with a non-integer key"))
        }
        Some(part) => Ok(Some(part.field)),
    }
}

/// Without parts an index is over the first field.
fn resolve_parts(parts: &[PartOptions], format: &[FieldDef]) -> Result<Vec<Part>> {
    if !parts.is_empty() {
        return parts.iter().enumerate().map(|(n, part)| part.resolve(format, n + 1)).collect();
    }
    let kind = format.first().map(|field| field.kind).filter(|kind| *kind != FieldType::Any);
    PartOptions::new(1, kind.unwrap_or(FieldType::Unsigned).name()).resolve(format, 1).map(|part| vec![part])
}

/// Puts the tuples of the space into a new index.
fn fill(space: &Space, index: &mut Index, format: &Format) -> Result<()> {
    for tuple in space.indexes.first().iter().flat_map(|primary| primary.tree.values()) {
        format.validate(tuple).map_err(|error| space.label(error))?;
        let Some(key) = index.key.of_tuple(tuple) else { continue };
        if let Some(present) = index.tree.get(&key) {
            return Err(View { space, overlays: None }.duplicate(index, present, tuple));
        }
        index.tree.insert(key, tuple.clone());
    }
    Ok(())
}

fn space_exists(name: &str) -> BoxError {
    BoxError::client(error::SPACE_EXISTS, format!("Space '{name}' already exists")).with("space", Field::Str(name))
}

fn index_exists(name: &str) -> BoxError {
    BoxError::client(error::INDEX_EXISTS, format!("Index '{name}' already exists")).with("index", Field::Str(name))
}

fn index_type(index: &str, space: &str) -> BoxError {
    let message = format!("Unsupported index type supplied for index '{index}' in space '{space}'");
    BoxError::client(error::INDEX_TYPE, message).with("index", Field::Str(index)).with("space", Field::Str(space))
}

fn cannot_create(name: &str, details: &str) -> BoxError {
    BoxError::client(error::CREATE_SPACE, format!("Failed to create space '{name}': {details}"))
        .with("space", Field::Str(name))
        .with("details", Field::Str(details))
}

fn cannot_index(index: &str, space: &str, details: &str) -> BoxError {
    let message = format!("Can't create or modify index '{index}' in space '{space}': {details}");
    BoxError::client(error::MODIFY_INDEX, message)
        .with("index", Field::Str(index))
        .with("space", Field::Str(space))
        .with("details", Field::Str(details))
}

fn cannot(verb: &str, code: error::Code, name: &str, details: &str) -> BoxError {
    BoxError::client(code, format!("Can't {verb} space '{name}': {details}"))
        .with("space", Field::Str(name))
        .with("details", Field::Str(details))
}

/// `name:type`, with a question mark if null is allowed.
fn system_field(text: &str) -> FieldDef {
    let (name, kind) = text.split_once(':').unwrap_or((text, "any"));
    let is_nullable = kind.ends_with('?');
    let kind = FieldType::by_name(kind.trim_end_matches('?')).unwrap_or(FieldType::Any);
    FieldDef { is_nullable, ..FieldDef::new(name, kind) }
}

/// `id name parts...`.
fn system_index(text: &str, primary: Option<&KeyDef>) -> Index {
    let mut words = text.split_whitespace();
    let id = words.next().and_then(|w| w.parse().ok()).unwrap_or_default();
    let name = words.next().unwrap_or_default();
    let unique = !name.ends_with('*');
    let part = |text: &str| {
        let (field, kind) = text.split_once(':').unwrap_or_default();
        Part::new(field.parse().unwrap_or_default(), FieldType::by_name(kind).unwrap_or(FieldType::Any))
    };
    Index {
        id,
        name: name.trim_end_matches('*').into(),
        kind: IndexKind::Tree,
        kind_text: "tree".into(),
        unique,
        key: KeyDef::new(words.map(part).collect(), unique, primary),
        tree: BTreeMap::new(),
    }
}

/// Builds a row of a system space, field by field.
pub struct Row(Vec<u8>);

impl Row {
    /// A row of so many fields, of which none is there yet.
    pub fn new(fields: u32) -> Self {
        let mut out = Vec::with_capacity(64);
        put::put_array(&mut out, fields);
        Row(out)
    }

    /// An unsigned integer.
    #[must_use]
    pub fn uint(mut self, n: u64) -> Self {
        put::put_uint(&mut self.0, n);
        self
    }

    /// A string.
    #[must_use]
    pub fn str(mut self, s: &str) -> Self {
        put::put_str(&mut self.0, s.as_bytes());
        self
    }

    /// A boolean.
    #[must_use]
    pub fn bool(mut self, b: bool) -> Self {
        put::put_bool(&mut self.0, b);
        self
    }

    /// The header of a map.
    #[must_use]
    pub fn map(mut self, entries: u32) -> Self {
        put::put_map(&mut self.0, entries);
        self
    }

    /// The header of an array.
    #[must_use]
    pub fn array(mut self, items: u32) -> Self {
        put::put_array(&mut self.0, items);
        self
    }

    /// A string of any bytes.
    #[must_use]
    pub fn bytes(mut self, s: &[u8]) -> Self {
        put::put_str(&mut self.0, s);
        self
    }

    /// The row.
    #[must_use]
    pub fn done(self) -> Tuple {
        self.0.into()
    }
}

fn space_row(space: &Space) -> Tuple {
    let row = Row::new(7).uint(space.id.into()).uint(ADMIN).str(&space.name).str(space.engine);
    let row = row.uint(space.field_count.into());
    let mut row = if space.temporary { row.map(1).str("temporary").bool(true) } else { row.map(0) };
    space.format.write(&mut row.0);
    row.done()
}

fn index_row(space: u32, index: &Index) -> Tuple {
    let row = Row::new(6).uint(space.into()).uint(index.id.into()).str(&index.name).str(&index.kind_text);
    let row = row.map(1).str("unique").bool(index.unique);
    let parts = index.key.own_parts();
    let is_plain = |p: &Part| !p.is_nullable && !p.exclude_null && !p.descending && p.collation.is_none();
    let plain = parts.iter().all(is_plain);
    let row = row.array(parts.len() as u32);
    parts.iter().fold(row, |row, part| if plain { plain_part(row, part) } else { full_part(row, part) }).done()
}

/// The rows of `_sequence` and `_space_sequence`.
fn sequence_rows(space: &Space, sequence: &Sequence) -> (Tuple, Tuple) {
    let row = Row::new(9).uint(sequence.id.into()).uint(ADMIN).str(&name_of(&space.name));
    let own = row.uint(1).uint(1).uint(i64::MAX as u64).uint(1).uint(0).bool(false);
    let link = Row::new(5).uint(space.id.into()).uint(sequence.id.into()).bool(true);
    (own.done(), link.uint(sequence.field.into()).str("").done())
}

fn plain_part(row: Row, part: &Part) -> Row {
    row.array(2).uint(part.field.into()).str(part.kind.name())
}

fn full_part(row: Row, part: &Part) -> Row {
    let flags = [part.is_nullable, part.exclude_null, part.descending, part.collation.is_some()];
    let mut row = row.map(2 + flags.iter().map(|set| u32::from(*set)).sum::<u32>());
    row = row.str("field").uint(part.field.into()).str("type").str(part.kind.name());
    if part.is_nullable {
        row = row.str("is_nullable").bool(true);
    }
    if part.exclude_null {
        row = row.str("exclude_null").bool(true);
    }
    if part.descending {
        row = row.str("sort_order").str("desc");
    }
    if let Some(collation) = part.collation {
        row = row.str("collation").uint(collation.id().into());
    }
    row
}

fn collation_row(id: u32, name: &str, kind: &str, locale: &str, strength: Option<&str>) -> Tuple {
    let row = Row::new(6).uint(id.into()).str(name).uint(ADMIN).str(kind).str(locale);
    match strength {
        Some(strength) => row.map(1).str("strength").str(strength).done(),
        None => row.map(0).done(),
    }
}

fn user_row(id: u32, name: &str, kind: &str) -> Tuple {
    Row::new(7).uint(id.into()).uint(ADMIN).str(name).str(kind).map(0).array(0).uint(0).done()
}

fn schema_rows() -> [Tuple; 2] {
    [Row::new(2).str("max_id").uint(511).done(), Row::new(4).str("version").uint(3).uint(9).uint(0).done()]
}
