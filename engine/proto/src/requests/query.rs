//! Queries (`PMIx_Query_info`, RFC0001, RFC0010) and their answers.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::info::Info;
use crate::limits::{Excess, MAX_QUERY_KEYS, MAX_TEXT, check_limit};
use crate::names::{Channel, Nspace, Proc};
use crate::status::Status;

/// The keys of queries, each with the type of its value, and the keys of qualifiers.
///
/// An engine asks its host about keys, jobs and ranks that it does not know, and about a
/// scheduler's queues.
pub mod key {
    pub use crate::attribute::queries::*;
}

/// One query (`pmix_query_t`): keys, and qualifiers that limit the answer.
///
/// ```
/// use iof_proto::{Info, Query, query::key};
/// let query = Query { qualifiers: vec![Info::new(key::PMIX_NSPACE, "ocean")], ..Query::new([key::PMIX_QUERY_PROC_TABLE]) };
/// assert_eq!(query.keys, ["pmix.qry.ptable"]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Query {
    /// The keys. [`key`] lists those that an engine knows; its host may know others.
    pub keys: Vec<String>,
    /// The qualifiers. A required qualifier that neither the engine nor the host supports leaves
    /// the query without an answer. Such an optional qualifier is ignored.
    pub qualifiers: Vec<Info>,
}

impl Query {
    /// Returns a query for `keys` without qualifiers.
    pub fn new<K: Into<String>>(keys: impl IntoIterator<Item = K>) -> Query {
        Query { keys: keys.into_iter().map(Into::into).collect(), qualifiers: Vec::new() }
    }

    /// Checks that the queries of a request are within the limits.
    pub(crate) fn check(queries: &[Query]) -> Result<(), Excess> {
        check_limit("queries", queries.len(), MAX_QUERY_KEYS)?;
        check_limit("query keys", queries.iter().map(|query| query.keys.len()).sum(), MAX_QUERY_KEYS)?;
        queries.iter().try_for_each(|Query { keys, qualifiers }| {
            keys.iter().try_for_each(|key| check_limit("bytes of a query key", key.len(), MAX_TEXT))?;
            Info::check(qualifiers)
        })
    }
}

/// The answer to a query request. At least one of the requested keys was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// [`Status::SUCCESS`] if all keys were found, otherwise [`Status::ERR_PARTIAL_SUCCESS`].
    pub status: Status,
    /// The values in the order of the queries and of their keys. A repeated key of a query occurs
    /// once.
    pub found: Vec<Found>,
}

/// A key of a query with its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The index of the query in the request, starting at 0.
    pub query: u32,
    /// The key, spelled as in the query.
    pub key: String,
    /// The value.
    pub value: Value,
}

/// The value of a query key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Value {
    /// A text, such as a list of names separated by commas.
    Text(String),
    /// A process table.
    Procs(Vec<ProcInfo>),
    /// The streams of an engine.
    Streams(Vec<StreamStats>),
    /// A status.
    Status(Status),
    /// A list of jobs.
    Jobs(Vec<JobInfo>),
    /// The attributes that operations support.
    Attributes(Vec<Attributes>),
    /// A value of another kind from the host.
    Infos(Vec<Info>),
}

/// The state of one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInfo {
    /// The name of the job.
    pub nspace: Nspace,
    /// The number of processes of the job that the engine knows.
    pub procs: u32,
    /// The status of the job, as in [`PMIX_QUERY_JOB_STATUS`](key::PMIX_QUERY_JOB_STATUS).
    pub status: Status,
    /// The exit code of the job; `None` while it runs or if unknown.
    pub exit_code: Option<i32>,
    /// The programs of the job that the engine knows, separated by ` : `. For display.
    pub command: String,
    /// A number that no other job of any engine has, of this name or another; 0 if unknown.
    pub run: u128,
}

/// The attributes that one operation supports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// The operation, such as `PMIx_IOF_pull`.
    pub function: String,
    /// The keys of the attributes.
    pub keys: Vec<String>,
}

/// One line of a process table (`pmix_proc_info_t`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcInfo {
    /// The process.
    pub proc: Proc,
    /// The pid on its host; 0 if unknown.
    pub pid: u32,
    /// The name of the host; empty if unknown.
    pub host: String,
    /// The program; empty if unknown.
    pub executable: String,
    /// The state.
    pub state: ProcState,
    /// The exit code, 128 + *n* if signal *n* ended the process; `None` until it has ended or if
    /// unknown.
    pub exit_code: Option<i32>,
    /// When the process was started or adopted, by the clock of the engine's node; `None` if unknown.
    pub began: Option<SystemTime>,
    /// Resources that the process has used; `None` until it has ended or if unknown.
    pub used: Option<UsedResources>,
}

impl ProcInfo {
    /// Returns the line of a process whose name and state are all that is known.
    pub fn new(proc: Proc, state: ProcState) -> ProcInfo {
        let (host, executable) = (String::new(), String::new());
        ProcInfo { proc, pid: 0, host, executable, state, exit_code: None, began: None, used: None }
    }
}

/// The resources that a process and the children for which it has waited have used, see getrusage(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedResources {
    /// When the exit was noticed, by the clock of the process's node. Not before 1970.
    pub ended: SystemTime,
    /// User and system CPU time.
    pub cpu: Duration,
    /// The largest resident memory of one of these processes, in bytes. It is at least what the process that
    /// started it had resident then, because the kernel counts a process before its program, too.
    pub peak_memory: u64,
}

/// The state of a process.
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
    /// Unknown, because it runs on another node.
    Unknown,
    /// Ended with exit code 0 after it had begun MPI, but before it ended MPI.
    Unfinalized,
}

impl ProcState {
    /// Returns the corresponding `pmix_proc_state_t`.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            ProcState::Unknown => 0,
            ProcState::Launching => 2,
            ProcState::Running => 5,
            ProcState::Terminated => 20,
            ProcState::FailedToStart => 53,
            ProcState::Killed => 54,
            ProcState::Unfinalized => 55,
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
            ProcState::Unfinalized => "not finalized",
        })
    }
}

/// The counters of one stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamStats {
    /// The process that writes the stream.
    pub source: Proc,
    /// The channel.
    pub channel: Channel,
    /// Set if the stream holds logged messages instead of the process's own output.
    pub logged: bool,
    /// Bytes read from the source so far.
    pub produced: u64,
    /// Bytes in the cache now: what a reader that registers with the backlog would receive.
    pub cached: u64,
    /// Bytes that were discarded when they were read, because the cache was full. Bytes that were
    /// cached and overwritten later are not counted.
    pub dropped: u64,
    /// The number of generations before the newest one.
    pub generation: u64,
    /// Set if the stream has ended: no more bytes will be counted.
    pub complete: bool,
    /// The number of bytes that are missing at the end of a broken stream, at least; `None` if the
    /// stream is not broken.
    pub missing: Option<u64>,
    /// The readers of the stream.
    pub readers: Vec<ReaderStats>,
}

impl StreamStats {
    /// Returns the counters of a stream from which nothing was read yet.
    pub fn new(source: Proc, channel: Channel, logged: bool) -> StreamStats {
        StreamStats {
            source,
            channel,
            logged,
            produced: 0,
            cached: 0,
            dropped: 0,
            generation: 0,
            complete: false,
            missing: None,
            readers: Vec::new(),
        }
    }
}

/// One reader of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReaderStats {
    /// The name of the tool.
    pub tool: String,
    /// The pid of the tool.
    pub pid: u32,
    /// The handler id of the registration.
    pub handler: u32,
    /// The number of bytes by which the reader is behind the source.
    pub lag: u64,
}
