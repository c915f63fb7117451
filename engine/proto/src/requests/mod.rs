//! The bodies of requests to an engine, and of its answers.

pub(crate) mod exchange;
pub mod log;
pub(crate) mod position;
pub mod push;
pub mod query;
