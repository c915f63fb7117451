//! The servers of MPI libraries: PMI-1 and PMIx, and the topology for their ranks.

pub(crate) mod needs;
pub(crate) mod pmi;
pub(crate) mod pmi_spawn;
pub(crate) mod pmix;
pub(crate) mod pmix_names;
pub(crate) mod pmix_tools;
pub(crate) mod topology;
