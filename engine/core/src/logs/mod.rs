//! Log requests, and their channels.

pub(crate) mod channel_entry;
pub(crate) mod output;
pub(crate) mod requests;
pub(crate) mod routes;
pub(crate) mod table;
