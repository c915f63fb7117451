//! The other nodes of jobs: the reports of their edges, and the requests to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use iof_capture::{Signal, WindowSize};
use iof_proto::{
    Channel, Failure, MpiEvent, NodeStream, Rank, Status, StreamPull, UntakenStdin, UsedResources,
};

use crate::jobs::early_end::LastStep;
use crate::jobs::exit::Exit;

/// The number of a node among the nodes of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// A node that is lost: its edge has ended before it was over.
#[derive(Clone, Debug)]
pub struct NodeLost {
    /// The name of the node.
    pub host: String,
    /// The reason.
    pub reason: String,
    /// Its ranks that had not exited.
    pub ranks: BTreeSet<Rank>,
    /// The number of bytes of its unfinished streams that arrived.
    pub delivered: u64,
    /// The number of further bytes that they had, at least.
    pub missing: u64,
    /// The time of the last report that `missing` is based on, if there was one.
    pub totals: Option<Instant>,
}

/// A report of an edge about its node, see `Job::report_node`.
#[derive(Debug)]
pub enum NodeReport {
    /// Its ranks run.
    Started {
        /// The pids of the ranks, in the order of the ranks.
        pids: Vec<u32>,
        /// When that became known.
        began: SystemTime,
    },
    /// A rank has begun, ended or aborted MPI.
    Mpi {
        /// The rank.
        rank: Rank,
        /// The event.
        event: MpiEvent,
    },
    /// A rank has exited.
    Exited {
        /// The rank.
        rank: Rank,
        /// Its exit status.
        exit: Exit,
        /// `true` if the rank failed because of a signal that was sent to it.
        requested: bool,
        /// Resources that it has used, if that is known.
        used: Option<UsedResources>,
    },
    /// The node has answered a request for what a rank has put.
    Modex {
        /// The [call](NodeRequest::Modex).
        call: u64,
        /// The values.
        values: Result<Vec<u8>, Status>,
    },
    /// The node has answered a piece of stdin.
    StdinTaken {
        /// The [call](NodeRequest::Stdin).
        call: u64,
        /// The answer.
        answer: StdinAnswer,
    },
    /// The positions of the node's streams, in the order of their ranks and channels. For a job whose
    /// output has no rings here.
    Streams(Vec<NodeStream>),
    /// All ranks have exited, and all their output was delivered.
    Over {
        /// The streams that were completed before their end of file.
        cut_off: Vec<(Rank, Channel)>,
    },
    /// The node is lost.
    Lost(NodeLost),
}

/// A request to a node whose ranks run.
#[derive(Clone, Copy, Debug)]
pub enum NodeRequest<'a> {
    /// Sends a signal to all ranks and the process groups that they lead.
    Signal(Signal),
    /// Sends a signal of a tool to these ranks.
    SignalRanks(Signal, &'a [Rank]),
    /// Takes a step towards the end of a node whose ranks were sent SIGKILL.
    End(LastStep),
    /// Changes the size of the ranks' terminals.
    Resize(WindowSize),
    /// Begins to send these streams, which the embedder [delivers](crate::Core::deliver_pulled) with
    /// the numbers of the pulls.
    Pull(&'a [StreamPull]),
    /// Ends these pulls.
    EndPulls(&'a [u32]),
    /// Requests what a rank has put for ranks of other nodes. The node answers once, with [`NodeReport::Modex`].
    Modex {
        /// The number of the request.
        call: u64,
        /// The rank.
        rank: Rank,
    },
    /// Passes on a piece of stdin. The node answers once, with [`NodeReport::StdinTaken`].
    Stdin {
        /// The number of the request.
        call: u64,
        /// The ranks; `None` for all of the node.
        ranks: Option<&'a [Rank]>,
        /// The bytes, at most 64 KiB; none for the end.
        bytes: &'a [u8],
    },
}

/// The embedder's edges to the nodes of a job.
pub trait Edges: Send + Sync {
    /// Queues a request to a node. Requests to a node keep their order. One to a node that can't be
    /// reached is lost: the embedder reports the node as [lost](NodeReport::Lost).
    ///
    /// The engine's tables are locked. So this must not block, and must not call the engine.
    fn send(&self, node: NodeId, request: NodeRequest<'_>);

    /// Returns whether the embedder's printers have written what they were given of a rank, or of all
    /// ranks. Called while the tables are not locked.
    fn is_written(&self, rank: Option<Rank>) -> bool {
        let _ = rank;
        true
    }
}

/// A node of a job among the nodes of all jobs: the run of the job, and the node.
pub type NodeKey = (u64, NodeId);

/// The nodes that receive a piece of stdin, with the ranks; `None` for all of a node.
pub(crate) type StdinNodes = BTreeMap<NodeKey, Option<Arc<[Rank]>>>;

/// The answer for a piece of stdin: the ranks that did not take all of it, or the reason why none took
/// any of it. `PMIX_ERR_IOF_COMPLETE` states that all have ended or closed their stdin.
pub type StdinAnswer = Result<Vec<UntakenStdin>, Failure>;
