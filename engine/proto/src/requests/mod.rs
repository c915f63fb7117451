//! The bodies of requests to an engine, and of its answers.

pub(crate) mod exchange;
pub mod log;
pub mod push;
pub mod query;
