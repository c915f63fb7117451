//! `iof pmix`: the process that serves one tool of PMIx.
//!
//! An engine starts it for each tool that connects by PMIx's own protocol
//! (`JobSpec::pmix_tools`). It hosts libpmix for this one tool, and is itself a tool of the engine.
//! So a tool costs other tools, the ranks and the launcher nothing, whatever it sends and however
//! little it reads.

mod daemons;
mod deliveries;
mod jobs;
pub mod pace;
mod requests;
pub mod server;
