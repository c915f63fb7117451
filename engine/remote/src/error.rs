//! The reasons why a job on several nodes does not start.

use std::io;
use std::time::Duration;

use iof_capture::{TooFewFiles, TooFewMaps};
use iof_engine::LaunchError;
use iof_nodes::ControlError;
use iof_proto::Rank;

/// The reason why the ranks of other nodes did not start. No rank runs on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteStartError {
    /// The carrier of a node can't be started.
    #[error("cannot start an agent on {host}: {error}")]
    Carrier {
        /// The node.
        host: String,
        /// The reason.
        error: io::Error,
    },
    /// A node can't start its ranks.
    #[error("{host}: {reason}")]
    Refused {
        /// The node.
        host: String,
        /// The reason.
        reason: String,
        /// The user can correct the input.
        is_usage: bool,
    },
    /// A node was lost before all ranks were started.
    #[error("cannot start ranks on {host}: {reason}")]
    Lost {
        /// The node.
        host: String,
        /// The reason.
        reason: String,
    },
    /// The ranks were not started in time.
    #[error("the ranks did not start within {} s: no answer from {hosts}", limit.as_secs_f64())]
    Timeout {
        /// The nodes that have not answered, by name.
        hosts: String,
        /// The limit, see [`Launch::start_timeout`](crate::Launch::start_timeout), or that of the job.
        limit: Duration,
    },
    /// The job to start exceeds a limit, such as the length of all arguments.
    #[error(transparent)]
    Limit(#[from] ControlError),
    /// The process can't have the thread that drives all edges.
    #[error("cannot drive the edges: {0}")]
    Driver(io::Error),
    /// The current directory is unknown.
    #[error("cannot find the current directory: {0}")]
    Directory(io::Error),
    /// The nodes do not have each rank of the job once.
    #[error("the nodes have {placed} ranks, which are not the {ranks} ranks of the job")]
    Ranks {
        /// The number of ranks of all nodes.
        placed: usize,
        /// The number of ranks of the job.
        ranks: u64,
    },
    /// The job has too many nodes.
    #[error("{nodes} nodes: a job has at most {limit}")]
    Nodes {
        /// The number of nodes.
        nodes: usize,
        /// The limit.
        limit: usize,
    },
    /// Tools of PMIx are served on one node only, and values of a spawner have an effect by PMI-1 only.
    #[error(
        "jobs on several nodes have no PMIx tools, and values of a spawner only by PMI-1: leave out `pmix_tools` and \
         `pmi_values`"
    )]
    Mpi,
    /// This rank inherits a stdin without a terminal, or as the second one.
    #[error("rank {0}: stdin on another node is empty, pushed, a path or that of one terminal")]
    Stdin(Rank),
    /// The channels of the launcher's own readers are chosen by directives.
    #[error("`PMIX_FWD_STDOUT` and the like have no effect on other nodes: choose what the readers pull")]
    Forward,
    /// This process can't have the output of all ranks.
    #[error(transparent)]
    TooMany(#[from] RemoteLimitError),
    /// Connections can't be replaced in this launch.
    #[error(
        "reattach needs a command for links (`Carriers::with_link`), and agents with sockets \
         (`NodeConfig::rendezvous`)"
    )]
    Reattach,
    /// The engine can't have the job.
    #[error(transparent)]
    Job(#[from] LaunchError),
    /// The caller has interrupted the start.
    #[error("the start was interrupted")]
    Interrupted,
    /// All agents are gone.
    #[error("the agents are gone")]
    NoAgents,
}

/// The reason why this process can't have the output of all ranks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteLimitError {
    /// The rings need more memory maps than the kernel allows.
    #[error("too few memory maps for {ranks} ranks: {maps}")]
    Maps {
        /// The number of ranks.
        ranks: u64,
        /// The limit.
        maps: TooFewMaps,
    },
    /// The rings and edges need more open files than this process may have.
    #[error("too few files for {ranks} ranks: {files}")]
    Files {
        /// The number of ranks.
        ranks: u64,
        /// The limit.
        files: TooFewFiles,
    },
}
