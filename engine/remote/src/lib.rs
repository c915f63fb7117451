//! Jobs on several nodes, for launchers that embed the engine.
//!
//! The *front end* is the process of the launcher. Each node has an agent ([`agent()`]), a process with an engine of its own, which runs the ranks of that
//! node. The agents' output goes into the rings of the front end's engine, so readers, printers and
//! tools there see all ranks as on one node. Pushes of stdin, signals and queries go to the nodes.
//!
//! [`Carriers`] are what connects them: a command such as ssh or srun that starts an agent, or
//! connections that the launcher makes to daemons of its own. This launcher has two "nodes" over
//! socket pairs, and an agent at the end of each:
//!
//! ```
//! use std::os::unix::net::UnixStream;
//! use std::sync::Arc;
//! use std::thread;
//!
//! use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous};
//! use iof_proto::{Channels, Proc, Rank};
//! use iof_remote::{Carriers, Launch, Node, NodeConnection, RemoteJob, agent};
//! use iof_tool::Pull;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let node = |host: &str, rank| Node { host: host.into(), ranks: [Rank(rank)].into() };
//! let nodes = [node("a", 0), node("b", 1)];
//! let engine = Arc::new(Engine::start(Config::default())?);
//!
//! let hello = App::new("sh", ["-c", "echo hello from rank $IOF_RANK"]).ranks(2);
//! let spec = JobSpec::new("demo".parse()?, vec![hello]);
//! // A reader attaches before the ranks start, and with this grant they wait for it.
//! let mut tool = engine.attach("demo", Grant::Block)?;
//! tool.pull(&Pull::new(vec![Proc::all("demo".parse()?)], Channels::STDOUT))?;
//!
//! let carriers = Carriers::connections(|_host| {
//!     let (ours, theirs) = UnixStream::pair()?;
//!     // This is what the daemon of the node does with its end.
//!     let theirs = NodeConnection::of_socket(theirs)?;
//!     thread::spawn(move || agent(theirs));
//!     NodeConnection::of_socket(ours)
//! });
//! // Both agents are in this process, which can have the socket of one.
//! let mut launch = Launch::new(&spec, &carriers);
//! launch.config.rendezvous = Rendezvous::None;
//! let RemoteJob { job, .. } = launch.start(&engine, &nodes, &mut |_| false, |_, _| {})?;
//! while let Some(delivery) = tool.recv()? {
//!     println!("{delivery:?}");
//! }
//! assert_eq!(job.wait().code(), 0);
//! # Ok(())
//! # }
//! ```
//!
//! The crate prints nothing and handles no signals. Agents warn by `tracing`, and [`Agent::messages`]
//! tells the user of the front end.
//!
//! | module | concept |
//! |---|---|
//! | `carrier` | the process that carries the frames of one node, such as ssh |
//! | `carriers` | how the front end reaches its agents: by a command or over connections |
//! | `dials` | the connections that agents make to the front end |
//! | `tcp` | the options and the end of such a connection |
//! | `edge` | the front end's edges, each to one node |
//! | `driver` | the thread that drives all edges |
//! | `driver::driven` | what it does for one edge |
//! | `receiver` | what the frames of a node become |
//! | `output` | the output of all nodes for the printers of the job |
//! | `driver::driven::reattach` | the search for carriers that replace others |
//! | `start` | the start of all agents and ranks |
//! | `remote` | the nodes of a job, and the engine's requests to them |
//! | `follower` | the reports of the nodes to the engine, lost nodes, and the end of the job |
//! | `environment` | the variables of this process that ranks on other nodes have |
//! | `agent` | the agent of a node |
//! | `hosts` | the hosts with their slots, and the ranks of each |
//! | `cost` | what forwarding has cost the agents |

mod agent;
mod carrier;
mod carriers;
mod cost;
mod dials;
mod driver;
mod edge;
pub mod environment;
mod error;
mod follower;
mod greeting;
pub mod hosts;
mod output;
mod receiver;
mod relatives;
mod remote;
mod start;
mod tcp;
mod thread;

pub use agent::{
    Agent, AgentError, AgentExit, AgentHooks, AgentStop, FileWriter, FilesEnd, LinkError, StartRefusal,
    agent, dial, link,
};
pub use carrier::{EmptyTemplate, MAX_STARTS, NodeList, SITES, SSH, Site, Template, shell_word};
pub use carriers::{Carriers, NodeConnection};
pub use cost::{AgentCosts, backend_text, cpu_time};
pub use error::{RemoteLimitError, RemoteStartError};
pub use iof_engine::{Node, NodeLost};
pub use iof_nodes::{Invitation, InvitationError, NodeConfig, NodeFiles, NodeStart};
pub use relatives::Relatives;
pub use start::{Launch, RemoteJob, START_TIMEOUT, StartProgress, StartStep, check};
pub use thread::NoThread;
