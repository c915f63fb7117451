//! Jobs on several nodes: the front end of such a job, and the agent of each node.
//!
//! | module | concept |
//! |---|---|
//! | `carrier` | the process that carries the frames of one node, such as ssh |
//! | `edge` | the front end's edges, each to one node or a subtree: their threads |
//! | `link` | an edge whose carrier may be replaced: what its threads share |
//! | `reattach` | the front end's search for carriers that replace others |
//! | `start` | the start of all agents and ranks |
//! | `remote` | the ranks on all nodes: signals, stdin, queries |
//! | `follower` | the exits of the ranks, lost nodes, and the end of the job |
//! | `environment` | the variables of this process that ranks on other nodes have |
//! | `agent` | the agent of a node |
//! | `cost` | what forwarding has cost the agents |

mod agent;
mod carrier;
mod cost;
mod edge;
pub mod environment;
mod error;
mod follower;
mod link;
mod reattach;
mod remote;
mod start;
mod thread;

pub use agent::{
    Agent, AgentEnd, AgentError, AgentHooks, AgentStop, Connection, FileWriter, FilesEnd, LinkError, Refusal,
    link,
};
pub use carrier::{EmptyTemplate, MAX_STARTS, SRUN, SSH, Template, shell_word};
pub use cost::{AgentCosts, backend_text, cpu_time};
pub use error::{RemoteLimitError, RemoteStartError};
pub use follower::{NodeLost, RemoteEvent};
pub use reattach::Reattach;
pub use remote::{Node, Remote};
pub use start::{Launch, NodeEvents, StartStep};
pub use thread::NoThread;
