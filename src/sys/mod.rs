//! The machine underneath: C stacks, readiness of descriptors, and what LuaJIT has beyond `mlua::ffi`.

pub mod fork;
#[cfg(feature = "module")]
#[allow(unsafe_code)]
pub mod luajit;
pub mod pages;
pub mod poll;
#[allow(unsafe_code)]
pub mod resolve;
pub mod segv;
pub mod stack;
#[cfg(all(target_arch = "x86_64", unix, not(cord_generator)))]
#[allow(unsafe_code)]
mod switch;
