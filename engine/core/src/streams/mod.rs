//! Streams: their options and readers, deliveries to them, and the requests about them.

pub(crate) mod answers;
pub(crate) mod awaited;
pub(crate) mod backlog_holder;
pub(crate) mod capture_end;
pub(crate) mod completion;
pub(crate) mod deliver_error;
pub(crate) mod deliveries;
pub(crate) mod delivery;
pub(crate) mod events;
pub(crate) mod options;
pub(crate) mod pulled;
pub(crate) mod readers;
pub(crate) mod reading;
pub(crate) mod state;
pub(crate) mod table;
