//! Reports to the user: ends of ranks, and gaps in their output.

pub(crate) mod exits;
pub(crate) mod failures;
pub(crate) mod gaps;
