//! The embedded IPROTO server.

pub mod engine;
