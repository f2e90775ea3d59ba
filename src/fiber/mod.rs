//! fiber
