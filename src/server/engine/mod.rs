//! The in-memory space engine of the embedded server: tuples as bytes, no Lua, no sockets, no fibers.
//!
//! ```text
//! engine     Engine: statements and transactions      schema    create and drop; the system spaces
//!   query    iterators, keys, positions -> a range    options   what create_* is given
//!   update   the operations on one tuple              snapshot  everything to bytes and back
//!     nested and inside one field
//!   txn      changes aside, conflicts
//!   wire     requests and errors of the protocol      mp        values out of slices
//!   space    indexes (ordered trees), views, plans    format    what a tuple must satisfy
//!   key      sort keys of tuples and search keys      types, number, collation, show, error
//! ```
//!
//! A key is bytes that sort as Tarantool sorts its values, so an index is a plain ordered map and every iterator a range
//! of it. A statement is planned against a view (what is committed, under the transaction's own changes) and then made
//! at once, so a refused one leaves nothing behind.

mod collation;
#[cfg(test)]
mod differential;
#[allow(clippy::module_inception)]
mod engine;
pub mod error;
mod format;
mod key;
mod mp;
mod nested;
mod number;
mod options;
mod query;
mod schema;
mod sequence;
mod show;
mod snapshot;
mod space;
#[cfg(test)]
mod tests;
mod txn;
mod types;
mod update;
mod wire;

pub use collation::Collation;
pub use engine::{Cursor, Engine, IndexRef, Limits, Sees, Select, SpaceRef, Statement};
pub use error::{BoxError, Result};
pub use format::FieldDef;
pub use key::Part;
pub use mp::field;
pub use options::{FieldRef, IndexOptions, PartOptions, SequenceOptions, SpaceOptions, format_from_msgpack};
pub use query::{After, IteratorType};
pub use schema::Row;
pub use space::{IndexKind, Tuple};
pub use txn::TxnId;
pub use types::FieldType;
pub use update::change;
