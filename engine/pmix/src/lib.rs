//! A PMIx server for the ranks of one node, by which Open MPI 5 starts. The server itself is
//! libpmix (OpenPMIx, version 4 to 6), which is opened by dlopen(3) when a job needs it. A build
//! needs no PMIx.
//!
//! A launcher starts a [`PmixServer`], at most one in a process, and
//! [registers](PmixServer::register) each job. Each rank gets [variables](Variables)
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
//! | `program::elf`, `program`, `program::python` | the libraries that a program or mpi4py needs; whether PMIx is one of them |
//! | `server::job`, `library::info` | what libpmix is told about a job; keys with values, in the form of C |
//! | `library::types` | the structures of libpmix |
//! | `library`, `server::upcalls`, `tools::tool_upcalls`, `library::read` | libpmix, and its calls of this crate: all unsafe code about it |
//! | `library::caller` | the thread that calls libpmix |
//! | `server::topology` | the topology of the node for ranks of MPICH, from libhwloc |
//! | `server::directory` | the directory for the files of jobs |
//! | `server`, `error` | the server of ranks; why a server does not start |
//! | `tools::tool_server` | the server of a tool |
//! | `requests::spawn` | the jobs that ranks and tools spawn |
//! | `requests::request`, `requests::answer` | what tools and ranks request, and the answers |
//! | `tools::listener`, `tools::sock_diag`, `tools::rendezvous`, `tools::relay`, `tools::filter`, [`limits`] | the way from a tool to its server; what a tool may cost |

mod error;
mod library;
pub mod limits;
mod program;
mod requests;
mod server;
mod tools;

pub use error::{RegisterError, StartError};
pub use limits::{MAX_CALL_WAIT, MAX_CALL_WAIT_PER_RANK, MAX_END_WAIT};
pub use program::{Need, is_launcher};
pub use requests::request::{
    AnswerReply, NspaceReply, PullReply, PullRequest, RankReply, RankRequest, StatusReply, ToolRequest,
};
pub use requests::spawn::{SpawnedTools, ToolSpawn};
pub use server::job::{AppInfo, RegisteredJob};
pub use server::topology::{MAX_TOPOLOGY_WAIT, TopologyError, TopologyFile};
pub use server::upcalls::{Event, EventKind};
pub use server::{MAX_LOCAL_RANKS, PmixServer, Variables};
pub use tools::filter::HeldRequest;
pub use tools::listener::{ToolListener, ToolService};
pub use tools::relay::{Carried, Relay};
pub use tools::tool_server::ToolServer;
