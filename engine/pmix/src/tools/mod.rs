//! Tools of PMIx: the way from a tool to the server that it has for itself.

pub(crate) mod filter;
pub(crate) mod listener;
pub(crate) mod relay;
pub(crate) mod rendezvous;
pub(crate) mod sock_diag;
pub(crate) mod tool_server;
pub(crate) mod tool_upcalls;
