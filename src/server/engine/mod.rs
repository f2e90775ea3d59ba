//! The in-memory space engine of the embedded server: tuples as bytes, no Lua, no sockets, no fibers.
mod collation;
mod error;
mod format;
mod key;
mod mp;
mod number;
mod types;
mod update;
