//! The requests of ranks and tools, and the answers.

pub(crate) mod answer;
pub(crate) mod request;
pub(crate) mod spawn;
