//! The one door to atomics, so that loom can check the code that ships.
//!
//! Everything in this crate that orders memory goes through these names; under `--cfg loom` they are loom's.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
