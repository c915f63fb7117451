//! Processes, threads and signals of the command itself.

pub(crate) mod guardian;
pub(crate) mod orphans;
pub(crate) mod signals;
pub(crate) mod suspects;
pub(crate) mod threads;
