//! Between the protocol's requests and errors and the engine's.

use super::engine::{Engine, IndexRef, Sees, Select, SpaceRef, Statement};
use super::error::{BoxError, Result};
use super::query::After;
use super::txn::TxnId;
use crate::iproto::constants::{key, kind};
use crate::iproto::decode::{Body, FrameError, PacketError};
use crate::iproto::encode;
use crate::iproto::error::{self as stack, ErrorEntry};
use crate::iproto::mp;

impl<'a> Statement<'a> {
    /// The statement a request of type `kind` makes; `None` when the type is none of the six that work on data.
    ///
    /// # Errors
    /// A mandatory key is missing.
    pub fn from_body(kind: u32, body: &Body<'a>) -> Result<Option<Self>> {
        body.check(kind).map_err(BoxError::from)?;
        let raw = |key| body.raw(key).unwrap_or_default();
        let space = match body.str(key::SPACE_NAME) {
            Some(name) => SpaceRef::Name(name),
            None => SpaceRef::Id(id(body.uint(key::SPACE_ID))),
        };
        let index = match body.str(key::INDEX_NAME) {
            Some(name) => IndexRef::Name(name),
            None => IndexRef::Id(id(body.uint(key::INDEX_ID).or(Some(0)))),
        };
        let base = body.uint(key::INDEX_BASE).unwrap_or_default();
        Ok(Some(match kind {
            kind::SELECT => Statement::Select(Select {
                space,
                index,
                iterator: body.uint(key::ITERATOR).unwrap_or_default(),
                offset: body.uint(key::OFFSET).unwrap_or_default(),
                limit: body.uint(key::LIMIT).unwrap_or_default(),
                key: raw(key::KEY),
                after: match (body.str(key::AFTER_POSITION), body.raw(key::AFTER_TUPLE)) {
                    (Some(position), _) => Some(After::Position(position)),
                    (None, tuple) => tuple.map(After::Tuple),
                },
                fetch_position: body.bool(key::FETCH_POSITION).unwrap_or_default(),
            }),
            kind::INSERT => Statement::Insert { space, tuple: raw(key::TUPLE) },
            kind::REPLACE => Statement::Replace { space, tuple: raw(key::TUPLE) },
            kind::UPDATE => Statement::Update { space, index, key: raw(key::KEY), ops: raw(key::TUPLE), base },
            kind::DELETE => Statement::Delete { space, index, key: raw(key::KEY) },
            kind::UPSERT => Statement::Upsert { space, tuple: raw(key::TUPLE), ops: raw(key::OPS), base },
            _ => return Ok(None),
        }))
    }

    /// The space the statement works on.
    pub fn space(&self) -> SpaceRef<'a> {
        match *self {
            Statement::Select(Select { space, .. })
            | Statement::Insert { space, .. }
            | Statement::Replace { space, .. }
            | Statement::Update { space, .. }
            | Statement::Upsert { space, .. }
            | Statement::Delete { space, .. } => space,
        }
    }
}

/// An id as large as no space's or index's stands for all that do not fit.
fn id(number: Option<u64>) -> u32 {
    number.and_then(|n| u32::try_from(n).ok()).unwrap_or(u32::MAX)
}

impl Engine {
    /// Executes a statement and appends its whole response packet: data, or the error.
    pub fn respond(&mut self, statement: &Statement<'_>, txn: Option<TxnId>, sync: u64, out: &mut Vec<u8>) {
        self.respond_with(sync, out, |engine, out| engine.execute(statement, txn, out));
    }

    /// As [`Engine::respond`], in the form of [`Engine::execute_with_formats`].
    pub fn respond_with_formats(
        &mut self,
        statement: &Statement<'_>,
        txn: Option<TxnId>,
        sync: u64,
        out: &mut Vec<u8>,
    ) {
        self.respond_with(sync, out, |engine, out| engine.execute_with_formats(statement, txn, out));
    }

    /// As the other two, of a SELECT as [`Engine::select_visible`] makes it.
    pub fn respond_visible(
        &mut self,
        select: &Select<'_>,
        txn: Option<TxnId>,
        with_formats: bool,
        sees: &Sees<'_>,
        sync: u64,
        out: &mut Vec<u8>,
    ) {
        self.respond_with(sync, out, |engine, out| engine.select_visible(select, txn, with_formats, sees, out));
    }

    fn respond_with(
        &mut self,
        sync: u64,
        out: &mut Vec<u8>,
        execute: impl FnOnce(&mut Engine, &mut Vec<u8>) -> Result<()>,
    ) {
        let start = out.len();
        let mark = encode::begin_response(out, kind::OK, sync, self.schema_version());
        match execute(self, out) {
            Ok(()) => encode::finish(out, mark),
            Err(error) => {
                out.truncate(start);
                error.respond(sync, self.schema_version(), out);
            }
        }
    }
}

impl BoxError {
    /// The payload as a MessagePack map; empty when there is none.
    pub fn fields_map(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.fields.is_empty() {
            mp::put_map(&mut out, self.fields.len() as u32);
        }
        for (name, value) in &self.fields {
            mp::put_str(&mut out, name.as_bytes());
            out.extend_from_slice(value);
        }
        out
    }

    /// Appends the error as a stack of one: the value of ERROR (0x52) in a response and of the extension 3.
    pub fn write_stack(&self, out: &mut Vec<u8>) {
        let fields = self.fields_map();
        let entry = ErrorEntry {
            kind: self.kind.as_bytes(),
            file: file!().as_bytes(),
            message: self.message.as_bytes(),
            code: self.code,
            fields: &fields,
            ..ErrorEntry::default()
        };
        stack::encode_stack(out, std::iter::once(entry));
    }

    /// Appends the error's whole response packet.
    pub fn respond(&self, sync: u64, schema_version: u64, out: &mut Vec<u8>) {
        let mut stack = Vec::new();
        self.write_stack(&mut stack);
        encode::error_raw(out, sync, schema_version, self.code, self.message.as_bytes(), &stack);
    }
}

impl From<FrameError> for BoxError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Length => BoxError::msgpack("packet length"),
            FrameError::TooBig(_) => BoxError::msgpack(&error.to_string()),
        }
    }
}

impl From<PacketError> for BoxError {
    fn from(error: PacketError) -> Self {
        match error {
            PacketError::MissingField(name) => BoxError::missing_field(name),
            other => BoxError::msgpack(other.to_string().trim_start_matches("Invalid MsgPack - ")),
        }
    }
}
