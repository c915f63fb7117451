//! Reports to the user: ends of ranks, gaps in their output, and delays.

pub(crate) mod exits;
pub(crate) mod failures;
pub(crate) mod gaps;
pub(crate) mod job_log;
pub(crate) mod last_lines;
pub(crate) mod objects;
pub(crate) mod stalls;
