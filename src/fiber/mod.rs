//! The scheduler of one OS thread. It knows no Lua and no sockets: what a light fiber's body is, the [`Body`] says.
//!
//! | file | room |
//! |---|---|
//! | `cord.rs` | the scheduler: current fiber, ready queue, wakeup, cancel, turns |
//! | `fiber.rs`, `records.rs` | one fiber's record; where they all are |
//! | `runner.rs` | runners and the trampoline: who resumes whom, who keeps a stack |
//! | `wait.rs` | wait lists (cond, join, channel) |
//! | `timer.rs`, `clock.rs` | deadlines that become wakeups; the loop's cached time |
//! | `trigger.rs` | on_stop and on_yield lists with pooled nodes |
//! | `coio.rs` | waiting for a descriptor |
#![allow(unsafe_code)]

pub mod clock;
pub mod coio;
pub mod cord;
#[allow(clippy::module_inception)]
pub mod fiber;
pub mod ready;
pub mod records;
pub mod runner;
pub mod timer;
pub mod trigger;
pub mod wait;

pub use cord::{Body, Cord, Outcome, Refused};
pub use fiber::{Fiber, FiberPtr};
