//! Processes that run: handles of them, signals to them and their ends, and the limits of this process.

pub(crate) mod child;
pub(crate) mod descendants;
pub(crate) mod guardian;
pub(crate) mod limit;
pub(crate) mod pidfd;
pub(crate) mod signal;
pub(crate) mod wait;
