//! Values that ranks publish for others (`PMIx_Publish`, `PMIx_Lookup`, `PMIx_Unpublish`), and groups of
//! ranks (`PMIx_Group_construct`, `PMIx_Group_destruct`), and fences of several nodes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::job_spec::Mpi;
use crate::job::spawn::Spawn;
use crate::names::{Nspace, Proc, Rank};

/// The key of the number of a group.
pub const PMIX_GROUP_CONTEXT_ID: &str = "pmix.grp.ctxid";

/// The processes that find a published value, or the values that a request is about
/// (`pmix_data_range_t`). Ordered from the narrowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DataRange {
    /// The process that publishes it.
    Process,
    /// The processes of its job.
    Job,
    /// All processes of the engine's jobs.
    Session,
}

/// The end of a published value, unless it is unpublished before (`pmix_persistence_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Persistence {
    /// The first lookup that returns it, or the exit of all processes of the job.
    FirstRead,
    /// The exit of the process.
    Process,
    /// The exit of all processes of its job.
    Job,
    /// The end of the engine.
    Session,
}

/// A value of any type under its key, with the process that has published it (`pmix_pdata_t`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundValue {
    /// The process.
    pub source: Proc,
    /// The key.
    pub key: String,
    /// The [type](crate::attribute::data_type).
    pub kind: u16,
    /// The bytes: of a text without the final zero, of a number as they lie in the memory of C.
    pub bytes: Vec<u8>,
}

/// A request of a rank about published values or groups, or of the ranks of a node in a fence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exchange {
    /// Publish values under their keys, or none of them.
    Publish {
        /// The values.
        values: Vec<FoundValue>,
        /// The processes that find them. A key is unique among them.
        range: DataRange,
        /// The end of the values.
        persistence: Persistence,
    },
    /// Return values.
    Lookup {
        /// Their keys.
        keys: Vec<String>,
        /// The range that is searched, with those that are narrower.
        range: DataRange,
        /// The number of values to wait for; 0 answers at once.
        wait: usize,
        /// The longest time to wait; `None` means without limit.
        limit: Option<Duration>,
    },
    /// Remove values that the process has published.
    Unpublish {
        /// Their keys; empty means all of its values in `range`.
        keys: Vec<String>,
        /// The range in which they were published.
        range: DataRange,
    },
    /// Construct or destruct a group of processes, whose members have all called. Answered by
    /// [`ToTool::Answer`](crate::ToTool::Answer).
    Group {
        /// Its name.
        name: String,
        /// All members.
        members: Vec<JobRanks>,
        /// `true` to construct the group, `false` to destruct it.
        constructs: bool,
        /// `true` if it gets a number that no other group of the engine has.
        with_context: bool,
    },
    /// Wait for the other nodes, as all ranks of this node that take part in a fence have entered it. Answered by
    /// [`ToTool::Fenced`](crate::ToTool::Fenced).
    Fence {
        /// Their protocol.
        mpi: Mpi,
        /// The purpose.
        purpose: FencePurpose,
        /// All ranks that take part; none for the whole job of the requester.
        members: Vec<JobRanks>,
        /// The values of this node. They precede the request between nodes.
        data: Vec<u8>,
    },
    /// Return what a rank of another node has put (direct modex), once it has. Answered by [`ToTool::Fenced`](crate::ToTool::Fenced).
    Modex(Proc),
    /// End the job for this reason: values of a fence are not valid. Not answered.
    Fail(String),
    /// Start a job on the nodes. Answered by [`ToTool::Spawned`](crate::ToTool::Spawned).
    Spawn(Box<Spawn>),
}

/// The ranks of a job that take part in something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRanks {
    /// The job.
    pub nspace: Nspace,
    /// The ranks in ascending order; none for the whole job.
    pub ranks: Vec<Rank>,
}

/// The purpose of a fence. Ranks may be in one of each at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FencePurpose {
    /// To wait for each other, and to exchange values.
    #[default]
    Values,
    /// To connect (`PMIx_Connect`).
    Connect,
    /// To disconnect (`PMIx_Disconnect`).
    Disconnect,
}

/// A report of a rank about MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the variants describe their fields")]
pub enum MpiEvent {
    /// The rank has called `MPI_Init`.
    Initialized,
    /// The rank has called `MPI_Finalize`.
    Finalized,
    /// The rank has called `MPI_Abort` with this exit code.
    Aborted { code: i32 },
}
