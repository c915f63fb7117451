//! Pushes: stdin for ranks.

pub(crate) mod admission;
pub(crate) mod elsewhere;
pub(crate) mod push;
pub(crate) mod requests;
pub(crate) mod stdin_calls;
pub(crate) mod table;
