//! Helpers of the tests of all crates.
//!
//! No helper sleeps to let something happen. Tests wait for an observable state, and fail after a
//! timeout. All processes that a test started are killed when the test ends, even if it panics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::new_without_default, reason = "a site of a test is no default")]
#![allow(missing_docs, missing_debug_implementations, reason = "most names are enough for the tests")]

#[cfg(feature = "command")]
pub mod bytes;
#[cfg(feature = "capture")]
pub mod capture;
#[cfg(feature = "command")]
pub mod command;
pub mod compiler;
#[cfg(feature = "engine")]
pub mod engine;
pub mod helper;
pub mod noise;
pub mod pipes;
pub mod process;
#[cfg(feature = "scripted")]
pub mod scripted;
#[cfg(feature = "servers")]
pub mod servers;
pub mod stalled;
mod wait;

pub use wait::{BULK_TIMEOUT, Pending, TIMEOUT, wait_for, wait_or, wait_up_to, with_longer_times};
