//! The embedded IPROTO server.
//!
//! ```text
//!   sockets --> listener.rs  accept          --> session.rs  buffers, reads, writes
//!                                                    |  packets
//!                                                    v
//!   Lua  <-- hub.rs  the scheduler's listener    dispatch.rs --> answered at once, or a fiber of the handler
//!    ^                                               ^                             |
//!    '-- binding.rs  what server.lua calls           '---- the fiber ends: its results become the response
//! ```
//!
//! Everything of one Lua state hangs on its [`hub::Hub`]. Requests are decoded from the input buffer; a CALL or EVAL
//! becomes a pooled light fiber that runs the handler itself, and whose end encodes what it left on its stack. All that
//! was answered in one turn of the loop leaves in one write a session. Data lives in the [`engine`], which is asked
//! without a fiber.

#[cfg(feature = "module")]
pub mod accounts;
#[cfg(feature = "module")]
#[allow(unsafe_code)]
pub mod binding;
#[cfg(feature = "module")]
#[allow(unsafe_code)]
pub mod data;
#[cfg(feature = "module")]
#[allow(unsafe_code)]
pub mod dispatch;
pub mod engine;
#[cfg(feature = "module")]
#[allow(unsafe_code)]
pub mod hub;
pub mod listener;
pub mod request;
pub mod session;
#[cfg(feature = "module")]
#[allow(unsafe_code)]
pub mod stream;
pub mod user;
#[cfg(feature = "module")]
#[allow(unsafe_code)]
pub mod watch;
