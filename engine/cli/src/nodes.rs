//! Jobs on several nodes: the front end in `iof run`, and the agent of each node.
//!
//! | module | concept |
//! |---|---|
//! | `options` | the options of `iof run` for nodes, and those that do not work with nodes |
//! | `hosts` | the hosts with their slots, and the ranks of each |
//! | `hostfile` | a file of hosts |
//! | `allocation` | the hosts that a resource manager has allocated |
//! | `environment` | the variables of this process that ranks on other nodes have |
//! | `carrier` | the process that carries the frames of one node, such as ssh |
//! | `edge` | the front end's edges, each to one node or a subtree: their threads |
//! | `link` | an edge whose carrier may be replaced: what its threads share |
//! | `reattach` | the front end's search for carriers that replace others |
//! | `start` | the start of all agents and ranks |
//! | `remote` | the ranks on all nodes: signals, stdin, queries |
//! | `follower` | the exits of the ranks, lost nodes, and the end of the job |
//! | `agent` | `iof agent` |

pub mod agent;
mod allocation;
pub mod carrier;
mod edge;
pub mod environment;
mod follower;
mod hostfile;
pub mod hosts;
mod link;
pub mod options;
pub mod reattach;
pub mod remote;
pub mod start;
