//! Jobs and their ranks: their states, ends and signals.

pub(crate) mod early_end;
pub(crate) mod exit;
pub(crate) mod grace;
pub(crate) mod job;
pub(crate) mod mpi;
pub(crate) mod nodes;
pub(crate) mod signals;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod withdrawal;
