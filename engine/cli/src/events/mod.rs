//! The events that a job waits for, and the threads that report them.

pub(crate) mod job_event;
pub(crate) mod signal_watch;
pub(crate) mod singletons;
pub(crate) mod stdin;
