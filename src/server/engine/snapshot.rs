//! Everything users have stored, to bytes and back, and to files that are whole or not there.
//!
//! ```text
//! "cord snapshot 1\n"  MessagePack: [schema version, spaces...]  CRC-32 of all before, big endian
//! space: [id, name, field count, temporary, format, indexes, sequence, tuple count, tuples...]
//! index: [id, name, type, unique, parts]      part: [field, type, flags, collation id or nil]
//! sequence: [] or [field, last number or nil]
//! ```
//!
//! Temporary spaces are kept without their tuples. Users, functions and whatever else a server has are not part of it.

use super::collation::Collation;
use super::engine::{Engine, SpaceRef};
use super::error::{BoxError, Result};
use super::key::Part;
use super::mp::{self, Value};
use super::options::{IndexOptions, PartOptions, SpaceOptions, format_from_msgpack};
use super::sequence::Sequence;
use super::space::{Index, Space};
use crate::iproto::mp as put;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

const MAGIC: &[u8] = b"cord snapshot 1\n";
const NULLABLE: u64 = 1;
const EXCLUDE_NULL: u64 = 2;
const DESCENDING: u64 = 4;

impl Engine {
    /// The committed contents of all user spaces.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MAGIC.len() + self.used + 4096);
        out.extend_from_slice(MAGIC);
        let spaces: Vec<&Space> = self.spaces.values().filter(|space| !space.is_system()).collect();
        put::put_array(&mut out, 1 + spaces.len() as u32);
        put::put_uint(&mut out, self.schema_version);
        spaces.into_iter().for_each(|space| write_space(space, &mut out));
        let sum = crc32fast::hash(&out);
        out.extend_from_slice(&sum.to_be_bytes());
        out
    }

    /// An engine with the contents of a snapshot and default limits.
    ///
    /// # Errors
    /// The bytes are no snapshot, were damaged, or hold what no engine would have let in.
    pub fn restore(bytes: &[u8]) -> Result<Engine> {
        let mut engine = Engine::new();
        engine.limits.memory = usize::MAX;
        engine.read_snapshot(bytes)?;
        engine.limits = Default::default();
        Ok(engine)
    }

    /// Takes over the contents of a restored engine. The limits stay, open transactions are aborted, and the schema version
    /// grows, so that clients fetch the schema again.
    pub fn adopt(&mut self, restored: Engine) {
        let ids: Vec<u32> = self.spaces.keys().copied().collect();
        ids.into_iter().for_each(|id| self.abort_readers(id));
        self.schema_version = self.schema_version.max(restored.schema_version) + 1;
        self.spaces = restored.spaces;
        self.names = restored.names;
        self.used = restored.used;
    }

    /// Writes a snapshot to a file: a new one takes the place of the old at once, after it has reached the disk.
    ///
    /// # Errors
    /// The system's; then an old file is untouched.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        name.push(format!(".{}.inprogress", std::process::id()));
        let draft = directory.join(name);
        let written = write_file(&draft, &self.snapshot()).and_then(|()| fs::rename(&draft, path));
        if written.is_err() {
            // The draft may not exist; the first error is the one that counts.
            let _ = fs::remove_file(&draft);
        }
        written?;
        File::open(directory)?.sync_all()
    }

    /// Reads a snapshot from a file.
    ///
    /// # Errors
    /// The system's, and those of [`Engine::restore`] as [`io::ErrorKind::InvalidData`].
    pub fn load(path: &Path) -> io::Result<Engine> {
        Engine::restore(&fs::read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    fn read_snapshot(&mut self, bytes: &[u8]) -> Result<()> {
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or_else(|| broken("too short"))?;
        let mut rest = body.strip_prefix(MAGIC).ok_or_else(|| broken("it does not start as one"))?;
        if crc32fast::hash(body) != u32::from_be_bytes(*sum) {
            return Err(broken("the checksum does not match"));
        }
        let spaces = array(&mut rest)?.checked_sub(1).ok_or_else(|| broken("malformed"))?;
        let version = uint(&mut rest)?;
        for _ in 0..spaces {
            self.read_space(&mut rest)?;
        }
        self.schema_version = self.schema_version.max(version);
        if rest.is_empty() { Ok(()) } else { Err(broken("malformed")) }
    }

    fn read_space(&mut self, rest: &mut &[u8]) -> Result<()> {
        array(rest)?;
        let id = uint(rest)?;
        let name = text(rest)?;
        let field_count = uint(rest)?;
        let temporary = boolean(rest)?;
        let format = format_from_msgpack(mp::take(rest).ok_or_else(|| broken("malformed"))?)?;
        let options = SpaceOptions {
            id: u32::try_from(id).ok(),
            field_count: u32::try_from(field_count).unwrap_or(u32::MAX),
            format,
            temporary,
            ..SpaceOptions::default()
        };
        let (id, _) = self.create_space(&name, &options)?;
        for _ in 0..array(rest)? {
            let (name, options) = read_index(rest)?;
            self.create_index(SpaceRef::Id(id), &name, &options)?;
        }
        let sequence = read_sequence(rest)?;
        for _ in 0..uint(rest)? {
            let tuple = mp::take(rest).ok_or_else(|| broken("malformed"))?;
            self.insert(SpaceRef::Id(id), tuple, None)?;
        }
        if let Some((field, value)) = sequence {
            self.attach_sequence(id, field, value);
        }
        Ok(())
    }
}

fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn write_space(space: &Space, out: &mut Vec<u8>) {
    let count = if space.temporary { 0 } else { space.len() };
    put::put_array(out, 8 + count as u32);
    put::put_uint(out, space.id.into());
    put::put_str(out, space.name.as_bytes());
    put::put_uint(out, space.field_count.into());
    put::put_bool(out, space.temporary);
    space.format.write(out);
    put::put_array(out, space.indexes.len() as u32);
    space.indexes.iter().for_each(|index| write_index(index, out));
    write_sequence(space.sequence.as_ref(), out);
    put::put_uint(out, count as u64);
    if let Some(primary) = space.indexes.first().filter(|_| count > 0) {
        primary.tree.values().for_each(|tuple| out.extend_from_slice(tuple));
    }
}

fn write_sequence(sequence: Option<&Sequence>, out: &mut Vec<u8>) {
    let Some(sequence) = sequence else { return put::put_array(out, 0) };
    put::put_array(out, 2);
    put::put_uint(out, sequence.field.into());
    match sequence.value {
        Some(value) => put::put_int(out, value),
        None => put::put_nil(out),
    }
}

fn write_index(index: &Index, out: &mut Vec<u8>) {
    put::put_array(out, 5);
    put::put_uint(out, index.id.into());
    put::put_str(out, index.name.as_bytes());
    put::put_str(out, index.kind_text.as_bytes());
    put::put_bool(out, index.unique);
    let parts = index.key.own_parts();
    put::put_array(out, parts.len() as u32);
    for part in parts {
        let flags = [(part.is_nullable, NULLABLE), (part.exclude_null, EXCLUDE_NULL), (part.descending, DESCENDING)];
        let flags = flags.into_iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum();
        write_part(part, flags, out);
    }
}

fn write_part(part: &Part, flags: u64, out: &mut Vec<u8>) {
    put::put_array(out, 4);
    put::put_uint(out, part.field.into());
    put::put_str(out, part.kind.name().as_bytes());
    put::put_uint(out, flags);
    match part.collation {
        Some(collation) => put::put_uint(out, collation.id().into()),
        None => put::put_nil(out),
    }
}

fn read_sequence(rest: &mut &[u8]) -> Result<Option<(u32, Option<i64>)>> {
    if array(rest)? == 0 {
        return Ok(None);
    }
    let field = u32::try_from(uint(rest)?).map_err(|_| broken("malformed"))?;
    let value = match mp::next(rest) {
        Some(Value::Uint(n)) => Some(i64::try_from(n).unwrap_or(i64::MAX)),
        Some(Value::Int(n)) => Some(n),
        Some(Value::Nil) => None,
        _ => return Err(broken("malformed")),
    };
    Ok(Some((field, value)))
}

fn read_index(rest: &mut &[u8]) -> Result<(String, IndexOptions)> {
    array(rest)?;
    let id = u32::try_from(uint(rest)?).ok();
    let name = text(rest)?;
    let kind = Some(text(rest)?);
    let unique = Some(boolean(rest)?);
    let mut parts = Vec::new();
    for _ in 0..array(rest)? {
        parts.push(read_part(rest)?);
    }
    Ok((name, IndexOptions { id, kind, unique, parts, ..IndexOptions::default() }))
}

fn read_part(rest: &mut &[u8]) -> Result<PartOptions> {
    array(rest)?;
    let field = i64::try_from(uint(rest)?).unwrap_or(i64::MAX).saturating_add(1);
    let mut part = PartOptions::new(field, &text(rest)?);
    let flags = uint(rest)?;
    part.is_nullable = Some(flags & NULLABLE != 0);
    part.exclude_null = flags & EXCLUDE_NULL != 0;
    part.sort_order = Some(if flags & DESCENDING != 0 { "desc" } else { "asc" }.into());
    // Without a collation the format's must not be taken.
    let id = match mp::next(rest) {
        Some(Value::Uint(id)) => u32::try_from(id).ok(),
        Some(Value::Nil) => None,
        _ => return Err(broken("malformed")),
    };
    part.collation = Some(id.and_then(Collation::name_of).unwrap_or("none").into());
    if id.is_none() && !matches!(part.kind.as_deref(), Some("string" | "scalar")) {
        part.collation = None;
    }
    Ok(part)
}

fn array(rest: &mut &[u8]) -> Result<u32> {
    match mp::next(rest) {
        Some(Value::Array(n)) => Ok(n),
        _ => Err(broken("malformed")),
    }
}

fn uint(rest: &mut &[u8]) -> Result<u64> {
    match mp::next(rest) {
        Some(Value::Uint(n)) => Ok(n),
        _ => Err(broken("malformed")),
    }
}

fn boolean(rest: &mut &[u8]) -> Result<bool> {
    match mp::next(rest) {
        Some(Value::Bool(b)) => Ok(b),
        _ => Err(broken("malformed")),
    }
}

fn text(rest: &mut &[u8]) -> Result<String> {
    match mp::next(rest) {
        Some(Value::Str(s)) => String::from_utf8(s.to_vec()).map_err(|_| broken("malformed")),
        _ => Err(broken("malformed")),
    }
}

#[cold]
fn broken(why: &str) -> BoxError {
    BoxError::illegal(format!("not a snapshot of a cord server: {why}"))
}
