//! Wake-ups of readers, and the rules by which a thread sleeps, waits or polls.

pub(crate) mod doorbell;
pub(crate) mod governor;
pub(crate) mod stepper;
pub(crate) mod utilization;
