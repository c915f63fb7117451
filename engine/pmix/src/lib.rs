//! A PMIx server for the ranks of one node, by which Open MPI 5 starts. The server itself is
//! libpmix (OpenPMIx, version 4 to 6), which is opened by dlopen(3) when a job needs it. A build
//! needs no PMIx.
//!
//! A launcher starts a [`PmixServer`], at most one in a process, and
//! [registers](PmixServer::register) each job. Each rank gets [variables](PmixServer::variables)
//! with which it finds the server. Then libpmix exchanges the addresses of the ranks. [`Event`]s
//! tell the launcher when a rank begins, ends or aborts, and [`RankRequest`]s what it logs and queries. [`Need`] tells whether a program needs
//! this.
//!
//! Tools of PMIx attach to a [`ToolServer`], each in a process of its own. Rendezvous files lead
//! them to the launcher's [`ToolListener`], which starts these processes. A [`Relay`] leads from
//! the connection of a tool to its server.
//!
//! | module | concept |
//! |---|---|
//! | `elf`, `program`, `python` | the libraries that a program or mpi4py needs; whether PMIx is one of them |
//! | `job`, `info` | what libpmix is told about a job; keys with values, in the form of C |
//! | `types` | the structures of libpmix |
//! | `library`, `upcalls`, `tool_upcalls`, `read` | libpmix, and its calls of this crate: all unsafe code about it |
//! | `caller` | the thread that calls libpmix |
//! | `topology` | the topology of the node for ranks of MPICH, from libhwloc |
//! | `directory` | the directory for the files of jobs |
//! | `server`, `error` | the server of ranks; why a server does not start |
//! | `tool_server` | the server of a tool |
//! | `spawn` | the jobs that ranks spawn |
//! | `request`, `answer` | what tools and ranks request, and the answers |
//! | `listener`, `sock_diag`, `rendezvous`, `relay`, `filter`, [`limits`] | the way from a tool to its server; what a tool may cost |

mod answer;
mod caller;
mod directory;
mod elf;
mod error;
mod filter;
mod info;
mod job;
mod library;
pub mod limits;
mod listener;
mod program;
mod python;
mod read;
mod relay;
mod rendezvous;
mod request;
mod server;
mod sock_diag;
mod spawn;
mod tool_server;
mod tool_upcalls;
mod topology;
mod types;
mod upcalls;

pub use error::{RegisterError, StartError};
pub use filter::HeldRequest;
pub use job::{AppInfo, JobInfo};
pub use limits::{MAX_CALL_WAIT, MAX_CALL_WAIT_PER_RANK, MAX_END_WAIT};
pub use listener::{ToolListener, ToolService};
pub use program::{Need, is_launcher};
pub use relay::{Carried, Relay};
pub use request::{AnswerReply, PullReply, PullRequest, RankReply, RankRequest, StatusReply, ToolRequest};
pub use server::{MAX_LOCAL_RANKS, PmixServer};
pub use tool_server::ToolServer;
pub use topology::{MAX_TOPOLOGY_WAIT, TopologyError, TopologyFile};
pub use upcalls::{Event, EventKind};
