//! The promises of policies, generations and readers, one test each.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    reason = "a test may panic, and these modules are its own"
)]

mod allocation;
mod growth;
mod policies;
mod positions;
mod readers;
mod reconfigure;
mod stepping;
mod times;
mod tool;
