//! The log channels, and the gateway to which they may lead.

pub(crate) mod gateway;
pub(crate) mod log_channels;
