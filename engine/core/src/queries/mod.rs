//! Queries, and the answers to them.

pub(crate) mod answers;
pub(crate) mod partial_answer;
pub(crate) mod query;
pub(crate) mod requests;
