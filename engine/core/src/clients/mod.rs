//! Clients, and the accounting of what they hold.

pub(crate) mod client;
pub(crate) mod owed;
pub(crate) mod quotas;
