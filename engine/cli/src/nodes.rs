//! The parts that `iof run` and `iof agent` add to jobs on several nodes.
//!
//! | module | concept |
//! |---|---|
//! | `options` | the options of `iof run` for nodes, and those that do not work with nodes |
//! | `hostfile` | a file of hosts |
//! | `allocation` | the hosts that a resource manager has allocated |
//! | `launch` | the start of the ranks, and what becomes of them |
//! | `tcp` | the address at which agents connect |
//! | `agents` | `iof agent` and `iof link` |
//! | `agent_files` | the files that an agent writes |

mod agent_files;
pub mod agents;
mod allocation;
mod hostfile;
pub mod launch;
pub mod options;
mod tcp;
