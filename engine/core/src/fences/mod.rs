//! Fences of the ranks of several nodes.

pub(crate) mod requests;
pub(crate) mod table;
