//! TLS under IPROTO: the handshake, the records, and what Tarantool's `ssl_*` parameters mean.
//!
//! ```text
//!   parameters --config.rs--> [ ClientSetup | ServerConfig ]         once, when a connection or a server is made
//!        files --key.rs  keys and certificates
//!                verify.rs  who is trusted
//!
//!   plain bytes <--stream.rs--> [ incoming | rustls | outgoing ] <--> socket      a connection's Tls
//! ```
//!
//! Nothing here knows Lua or waits: a [`Tls`] is asked to read or write, and says `WouldBlock` like the socket under it.

mod config;
mod key;
mod stream;
mod verify;

pub use config::{ClientSetup, Parameters, client, server};
pub use rustls::ServerConfig;
pub use stream::{Handshake, Tls};
