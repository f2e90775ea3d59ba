//! IPROTO, Tarantool's binary protocol, as bytes only: no sockets, no Lua, no fibers.
//!
//! ```text
//! greeting   the 128 bytes a server speaks first
//! auth       the answer to its salt
//! mp         MessagePack primitives: a bounded reader and writers that append to a Vec
//! decode     packets out of a byte stream, headers, bodies
//! encode     requests and responses into an output buffer
//! error      the error stack of a response
//! constants  keys, types, features
//! ```
//!
//! Nothing here allocates by a length the peer claims: readers hand out slices of the input.
//!
//! Source: tarantool/tarantool `src/box/xrow.c`, `src/box/iproto_constants.h` (3.9-dev, protocol version 10).

pub mod auth;
pub mod constants;
pub mod decode;
pub mod encode;
pub mod error;
pub mod greeting;
pub mod mp;

#[cfg(test)]
mod recorded;
