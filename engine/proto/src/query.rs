//! Queries (`PMIx_Query_info`, RFC0001, RFC0010): what a tool asks, and what it is told.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::directive::Info;
use crate::limits::{Excess, MAX_QUERY_KEYS, MAX_TEXT, within};
use crate::names::{Channel, Nspace, Proc};
use crate::status::Status;

/// The keys, each with the type of its value, and those of qualifiers.
///
/// An engine answers all that it has something to say of, and asks its host for the rest: keys that are not here, and
/// those of a scheduler. Of jobs and ranks that it does not know it has nothing to say, whatever the key.
pub mod key {
    /// The names of all jobs, separated by commas: [`Value::Text`](super::Value::Text) (RFC0001).
    pub const PMIX_QUERY_NAMESPACES: &str = "pmix.qry.ns";
    /// How the job of the qualifier [`PMIX_NSPACE`] is, which may be left out if there is only one:
    /// [`Value::Status`](super::Value::Status) (RFC0001). `PMIX_EVENT_JOB_START` while it runs, then `PMIX_EVENT_JOB_END`,
    /// `PMIX_ERR_JOB_NON_ZERO_TERM` or `PMIX_ERR_JOB_ABORTED_BY_SIG`.
    pub const PMIX_QUERY_JOB_STATUS: &str = "pmix.qry.jst";
    /// The scheduler's queues, separated by commas: [`Value::Text`](super::Value::Text) (RFC0001). The host's.
    pub const PMIX_QUERY_QUEUE_LIST: &str = "pmix.qry.qlst";
    /// How a queue of the scheduler is (RFC0001), that of the qualifier `pmix.alloc.queue`. The host's.
    pub const PMIX_QUERY_QUEUE_STATUS: &str = "pmix.qry.qst";
    /// The processes, of the jobs and ranks of the qualifiers or all: [`Value::Procs`](super::Value::Procs) (RFC0010).
    /// Of those that run elsewhere an engine knows no more than that they wrote something; its host may know more. Those of
    /// a job that is being started are all there, [launching](super::ProcState::Launching).
    pub const PMIX_QUERY_PROC_TABLE: &str = "pmix.qry.ptable";
    /// The same, of the processes that run on this node.
    pub const PMIX_QUERY_LOCAL_PROC_TABLE: &str = "pmix.qry.lptable";
    /// The jobs, all or those of the qualifiers: [`Value::Jobs`](super::Value::Jobs).
    pub const PMIX_QUERY_NAMESPACE_INFO: &str = "pmix.qry.nsinfo";
    /// The channels that can be logged to, by the keys of their attributes, separated by commas:
    /// [`Value::Text`](super::Value::Text) (RFC0032).
    pub const PMIX_QUERY_LOG_CHANNELS: &str = "pmix.qry.lchans";
    /// Which attributes each operation understands: [`Value::Attributes`](super::Value::Attributes).
    pub const PMIX_QUERY_ATTRIBUTE_SUPPORT: &str = "pmix.qry.attrs";
    /// All streams, or those of the qualifiers, with their byte counts and readers:
    /// [`Value::Streams`](super::Value::Streams). Ours.
    pub const IOF_STATS: &str = "iof.qry.stats";

    /// Qualifier: of this job (text).
    pub const PMIX_NSPACE: &str = "pmix.nspace";
    /// Qualifier: of this rank (number). Several stand for all of them.
    pub const PMIX_RANK: &str = "pmix.rank";
    /// Qualifier: of this process (process), in place of the two before.
    pub const PMIX_PROCID: &str = "pmix.procid";
}

/// One query (`pmix_query_t`): keys, and what they are to be answered of.
///
/// ```
/// use iof_proto::{Info, Query, query::key};
/// let query = Query { qualifiers: vec![Info::new(key::PMIX_NSPACE, "ocean")], ..Query::new([key::PMIX_QUERY_PROC_TABLE]) };
/// assert_eq!(query.keys, ["pmix.qry.ptable"]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Query {
    /// What is asked; [`key`] has what an engine knows, its host may know others.
    pub keys: Vec<String>,
    /// Of what. A required one that nobody understands leaves the query without an answer, another is ignored.
    pub qualifiers: Vec<Info>,
}

impl Query {
    /// Keys without qualifiers.
    pub fn new<K: Into<String>>(keys: impl IntoIterator<Item = K>) -> Query {
        Query { keys: keys.into_iter().map(Into::into).collect(), qualifiers: Vec::new() }
    }

    /// Whether a request keeps to the limits.
    pub(crate) fn check(queries: &[Query]) -> Result<(), Excess> {
        within("queries", queries.len(), MAX_QUERY_KEYS)?;
        within("query keys", queries.iter().map(|query| query.keys.len()).sum(), MAX_QUERY_KEYS)?;
        queries.iter().try_for_each(|Query { keys, qualifiers }| {
            keys.iter().try_for_each(|key| within("bytes of query key", key.len(), MAX_TEXT))?;
            Info::check(qualifiers)
        })
    }
}

/// The answer to a request that something was found of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// [`Status::SUCCESS`] if all was found, else [`Status::ERR_PARTIAL_SUCCESS`].
    pub status: Status,
    /// In the order of the queries and of their keys, each key of a query once.
    pub found: Vec<Found>,
}

/// One key of a query with its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The query's place in the request, from 0 on.
    pub query: u32,
    /// The key as it was asked for.
    pub key: String,
    /// What it stands for.
    pub value: Value,
}

/// The value of a query key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Value {
    /// A text, such as a list of names with commas.
    Text(String),
    /// A process table.
    Procs(Vec<ProcInfo>),
    /// The streams of an engine.
    Streams(Vec<StreamStats>),
    /// A status.
    Status(Status),
    /// Jobs.
    Jobs(Vec<JobInfo>),
    /// What operations understand.
    Attributes(Vec<Attributes>),
    /// Whatever else a host has to say.
    Infos(Vec<Info>),
}

/// One job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInfo {
    /// Its name.
    pub nspace: Nspace,
    /// How many of its processes are known here.
    pub procs: u32,
    /// How it is, as [`PMIX_QUERY_JOB_STATUS`](key::PMIX_QUERY_JOB_STATUS) has it.
    pub status: Status,
    /// Its exit code once it has ended, if somebody knows.
    pub exit_code: Option<i32>,
    /// What it runs, as far as known here, programs divided by ` : `. For people.
    pub command: String,
}

/// What one operation understands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// The operation, such as `PMIx_IOF_pull`.
    pub function: String,
    /// The keys of its attributes.
    pub keys: Vec<String>,
}

/// One line of a process table (`pmix_proc_info_t`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcInfo {
    /// Which process.
    pub proc: Proc,
    /// Its pid on its host; 0 if nobody here knows.
    pub pid: u32,
    /// The name of its host, empty if nobody here knows.
    pub host: String,
    /// What it runs, likewise.
    pub executable: String,
    /// Where it is in its life.
    pub state: ProcState,
    /// Its exit code once it has ended, 128 + n if signal n ended it.
    pub exit_code: Option<i32>,
}

/// Where a process is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProcState {
    /// Being started.
    Launching,
    /// Running.
    Running,
    /// Ended with exit code 0.
    Terminated,
    /// Ended with another exit code.
    Failed,
    /// Ended by a signal.
    Killed,
    /// Could not be started.
    FailedToStart,
    /// Nobody here knows: it runs elsewhere.
    Unknown,
}

impl ProcState {
    /// The `pmix_proc_state_t` that means the same.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            ProcState::Unknown => 0,
            ProcState::Launching => 2,
            ProcState::Running => 5,
            ProcState::Terminated => 20,
            ProcState::FailedToStart => 53,
            ProcState::Killed => 54,
            ProcState::Failed => 62,
        }
    }
}

impl fmt::Display for ProcState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ProcState::Launching => "launching",
            ProcState::Running => "running",
            ProcState::Terminated => "terminated",
            ProcState::Failed => "failed",
            ProcState::Killed => "killed",
            ProcState::FailedToStart => "failed to start",
            ProcState::Unknown => "unknown",
        })
    }
}

/// What an engine knows about one stream. All counts are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamStats {
    /// Who writes.
    pub source: Proc,
    /// On what.
    pub channel: Channel,
    /// It is what was logged there.
    pub logged: bool,
    /// Read from the source so far.
    pub produced: u64,
    /// In the newest ring now.
    pub cached: u64,
    /// Read and discarded, because nobody made room.
    pub dropped: u64,
    /// How many rings this stream has left behind.
    pub generation: u64,
    /// Whether the source has ended and all its bytes are accounted for.
    pub complete: bool,
    /// Who reads it.
    pub readers: Vec<ReaderStats>,
}

/// One reader of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReaderStats {
    /// What the tool calls itself.
    pub tool: String,
    /// Its pid.
    pub pid: u32,
    /// Its registration.
    pub handler: u32,
    /// How many bytes it is behind the source.
    pub lag: u64,
}
