//! Jobs that tools have the engine start.

pub(crate) mod requests;
pub(crate) mod table;
