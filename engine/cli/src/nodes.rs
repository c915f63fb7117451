//! Jobs on several nodes: the front end in `iof run`, and the agent of each node.
//!
//! | module | concept |
//! |---|---|
//! | `hosts` | the value of `--hosts`, and the ranks of each node |
//! | `options` | the options of `iof run` that do not work with `--hosts` |
//! | `carrier` | the process that carries the frames of one node, such as ssh |
//! | `edge` | the front end's edge to one node: its threads |
//! | `start` | the start of all agents and ranks |
//! | `remote` | the ranks on all nodes: signals, stdin, queries |
//! | `follower` | the exits of the ranks, lost nodes, and the end of the job |
//! | `agent` | `iof agent` |

pub mod agent;
pub mod carrier;
mod edge;
mod follower;
pub mod hosts;
pub mod options;
pub mod remote;
pub mod start;
