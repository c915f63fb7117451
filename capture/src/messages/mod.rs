//! Messages between a capture's handle and its thread, as data.

pub(crate) mod command;
pub(crate) mod event;
pub(crate) mod request;
