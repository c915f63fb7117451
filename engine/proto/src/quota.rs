//! The quotas of an engine's clients: one table, from which the constants of
//! [`limits`](crate::limits), the errors and the rows of the page of limits follow.

use std::fmt;

use crate::{Failure, Status};

/// Those that a limit bounds together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaScope {
    /// One tool, or one rank that makes requests itself.
    Tool,
    /// All tools of one process.
    Process,
    /// All ranks of one job.
    Job,
    /// All processes of one user.
    User,
    /// All clients of one engine.
    Engine,
}

impl QuotaScope {
    /// All scopes, from the narrowest on.
    pub const ALL: [QuotaScope; 5] =
        [QuotaScope::Tool, QuotaScope::Process, QuotaScope::Job, QuotaScope::User, QuotaScope::Engine];

    const fn text(self) -> &'static str {
        match self {
            QuotaScope::Tool => "each tool or rank",
            QuotaScope::Process => "each process",
            QuotaScope::Job => "each job",
            QuotaScope::User => "each user",
            QuotaScope::Engine => "the engine",
        }
    }
}

/// A limit of a quota.
#[derive(Debug, PartialEq, Eq)]
pub struct QuotaLimit {
    /// The name of its constant in [`limits`](crate::limits).
    pub name: &'static str,
    /// Those that it bounds together.
    pub scope: QuotaScope,
    /// Its value in an engine that sets no other.
    pub value: usize,
}

/// The columns of a quota.
struct Row {
    limits: &'static [QuotaLimit],
    /// The status of a refusal.
    status: Status,
    /// The counted things, in the plural.
    counted: &'static str,
    /// A remark on them in the page of limits.
    note: &'static str,
    /// The remedy.
    remedy: &'static str,
}

macro_rules! quotas {
    ($(
        $quota:ident: $counted:literal, $note:literal, $status:ident, $remedy:literal
        [$($name:ident = $value:expr, $scope:ident);+]
    )+) => {
        /// A kind of thing that clients may hold in a limited number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Quota {
            $(#[doc = concat!("The number of ", $counted, $note, ".")] $quota,)+
        }

        /// The constants of the limits.
        pub(crate) mod constants {
            $($(
                #[doc = concat!("Maximum number of ", $counted, $note, ", see `QuotaScope::", stringify!($scope), "`.")]
                pub const $name: usize = $value;
            )+)+
        }

        impl Quota {
            /// All quotas, in the order of the table.
            pub const ALL: &[Quota] = &[$(Quota::$quota),+];

            const fn row(self) -> Row {
                match self {
                    $(Quota::$quota => Row {
                        limits: &[$(QuotaLimit {
                            name: stringify!($name),
                            scope: QuotaScope::$scope,
                            value: constants::$name,
                        }),+],
                        status: Status::$status,
                        counted: $counted,
                        note: $note,
                        remedy: $remedy,
                    },)+
                }
            }
        }
    };
}

quotas! {
    Connections: "connections", ", with those that have not sent a hello (a new one replaces the oldest of these); \
        the limits shrink in proportion if an eighth of `RLIMIT_NOFILE` is less than `MAX_CONNECTIONS`",
        ERR_OUT_OF_RESOURCE, "close one"
        [MAX_CONNECTIONS_PER_PROCESS = 256, Process; MAX_CONNECTIONS_PER_USER = 768, User; MAX_CONNECTIONS = 1024, Engine]
    OtherConnections: "connections of users other than root and the engine's own", ", within `MAX_CONNECTIONS`",
        ERR_OUT_OF_RESOURCE, "close one"
        [MAX_OTHER_CONNECTIONS = 896, Engine]
    Registrations: "registrations", ", including those that wait for the host; the embedder's own readers are exempt",
        ERR_OUT_OF_RESOURCE, "end one first"
        [MAX_REGISTRATIONS_PER_TOOL = 4096, Tool]
    Procs: "processes named by registrations", ", including those that wait for the host; a whole job counts as one, \
        and every `BYTES_PER_PROC` bytes of directives as one more; the embedder's own readers are exempt",
        ERR_OUT_OF_RESOURCE, "end a registration first, or name whole jobs"
        [MAX_PROCS_PER_TOOL = 16 << 10, Tool; MAX_PROCS_PER_PROCESS = 32 << 10, Process; MAX_PROCS_PER_USER = 64 << 10, User]
    Queries: "queries that wait for an answer", ", of the host or with counters", ERR_RESOURCE_BUSY, "try again"
        [MAX_QUERIES_PER_TOOL = 16, Tool; MAX_QUERIES_PER_USER = 16 << 10, User]
    Logs: "log requests in progress", "", ERR_RESOURCE_BUSY, "try again"
        [MAX_LOGS_PER_TOOL = 16, Tool; MAX_LOGS_PER_PROCESS = 64, Process; MAX_LOGS_PER_JOB = 128, Job; MAX_LOGS = 256, Engine]
    LogBytes: "bytes of messages being logged", ", each once for each of its channels", ERR_RESOURCE_BUSY, "try again"
        [MAX_LOG_BYTES = 64 << 20, Engine]
    Pushes: "pushes in progress", ", with those to jobs that are being started and those of tools that have disconnected",
        ERR_OUT_OF_RESOURCE, "wait for one to end"
        [MAX_PUSHES_PER_TOOL = 64, Tool; MAX_PUSHES_PER_PROCESS = 256, Process; MAX_PUSHES = 1024, Engine]
    PushBytes: "bytes of the inlets of pushes", ", before they are rounded up to whole pages",
        ERR_OUT_OF_RESOURCE, "wait for a push to end"
        [MAX_PUSH_BYTES_PER_PROCESS = 64 << 20, Process; MAX_PUSH_BYTES = 256 << 20, Engine]
    OwedBytes: "bytes of requests that the host has not answered", ", including those of tools that have disconnected",
        ERR_RESOURCE_BUSY, "try again"
        [MAX_OWED_BYTES_PER_USER = 16 << 20, User]
    SpawnedJobs: "jobs that clients have started or want to start", "; an ended job counts while its spawner is connected, and \
        what a job that a rank has started starts in turn counts for the job of that rank",
        ERR_OUT_OF_RESOURCE, "end one first"
        [MAX_SPAWNED_JOBS_PER_JOB = 128, Job; MAX_SPAWNED_JOBS = 256, Engine]
    SpawnedRanks: "ranks of jobs that clients have started or want to start", "", ERR_OUT_OF_RESOURCE, "start fewer"
        [MAX_SPAWNED_RANKS_PER_JOB = 12 << 10, Job; MAX_SPAWNED_RANKS = 16 << 10, Engine]
    EndedSpawnedJobs: "ended jobs that are kept for connected spawners", ", which have registered for them; a further one \
        replaces the oldest, as if the launcher had removed that; tools still drain the rings that they have mapped",
        SUCCESS, "none"
        [MAX_ENDED_SPAWNED_JOBS = 16, Engine]
    Published: "values that ranks have published", "", ERR_OUT_OF_RESOURCE, "unpublish some"
        [MAX_PUBLISHED_PER_JOB = 16 << 10, Job; MAX_PUBLISHED_PER_USER = 64 << 10, User]
    PublishedBytes: "bytes of values that ranks have published", ", with their keys",
        ERR_OUT_OF_RESOURCE, "unpublish some"
        [MAX_PUBLISHED_BYTES_PER_JOB = 16 << 20, Job; MAX_PUBLISHED_BYTES_PER_USER = 64 << 20, User]
    Groups: "groups of ranks", "", ERR_OUT_OF_RESOURCE, "destruct some"
        [MAX_GROUPS_PER_JOB = 4096, Job; MAX_GROUPS_PER_USER = 16 << 10, User]
    AwaitedKeys: "keys for which lookups wait", "", ERR_RESOURCE_BUSY, "try again"
        [MAX_AWAITED_KEYS_PER_TOOL = 64, Tool; MAX_AWAITED_KEYS_PER_JOB = 16 << 10, Job; MAX_AWAITED_KEYS_PER_USER = 64 << 10, User]
    FenceBytes: "bytes of fences that wait for nodes", ", with 1 KiB for each node, and once for each job that takes part",
        ERR_OUT_OF_RESOURCE, "put less between two"
        [MAX_FENCE_BYTES_PER_JOB = 64 << 20, Job; MAX_FENCE_BYTES = 1 << 30, Engine]
}

impl Quota {
    /// The number of quotas.
    pub const COUNT: usize = Quota::ALL.len();

    /// Returns its limits.
    pub const fn limits(self) -> &'static [QuotaLimit] {
        self.row().limits
    }

    /// Returns the failure of a request for `amount` more than `holder`, which has `held`, may hold
    /// by the limit `name` of `limit`.
    pub fn failure(
        self,
        name: &str,
        holder: impl fmt::Display,
        held: u64,
        limit: u64,
        amount: u64,
    ) -> Failure {
        let Row { status, counted, remedy, .. } = self.row();
        let reason = format!(
            "{holder} has {held} of at most {limit} {counted} ({name}), {amount} more requested: {remedy}"
        );
        Failure { status, reason }
    }

    /// Returns the rows of the page of limits.
    pub fn rows(self) -> impl Iterator<Item = String> {
        let Row { limits, status, counted, note, .. } = self.row();
        let status = status.name().unwrap_or_default();
        limits.iter().enumerate().map(move |(index, QuotaLimit { name, scope, value })| {
            let note = if index == 0 { note } else { "" };
            let figure = if counted.starts_with("bytes") { mebibytes(*value) } else { grouped(*value) };
            format!("| `{name}` | {figure} | {}: {counted}{note} | `{status}` |", scope.text())
        })
    }
}

fn mebibytes(bytes: usize) -> String {
    format!("{} MiB", bytes >> 20)
}

/// Formats a number with commas.
fn grouped(number: usize) -> String {
    let (thousands, rest) = (number / 1000, number % 1000);
    if thousands == 0 { rest.to_string() } else { format!("{},{rest:03}", grouped(thousands)) }
}
