//! What policies, generations and readers promise, one promise at a time.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    reason = "a test may panic, and these modules are its own"
)]

mod policies;
mod readers;
mod reconfigure;
mod times;
mod tool;
