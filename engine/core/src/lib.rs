//! The state of an I/O forwarding engine, and what changes it, without I/O.
//!
//! **An implementation detail of `iof-engine`**, whose control thread drives it. Its interface may
//! change in any version. It is a crate so that Cargo keeps threads, sockets and files out of it,
//! and so that a simulator can drive it, too.
//!
//! Each table is a type with private fields: `Jobs`, `StreamTable`, `Tools`, `Pushes`, `Queries`,
//! `Spawns`, `Logs`, `Demand`, `Quotas` and `AwaitedAnswers`. [`Core`] holds one of each. The modules of
//! requests and events are methods of [`Core`]. A table imports no table above it, so the imports
//! form no circle.
//!
//! The inputs are [`Core::handle`] for what happens, the calls of the embedder (`calls`) and those
//! of connections (`tools::admission`). Nothing here waits or reads a clock. What leaves the core
//! is queued in its effects (`effects`). Reader pages, rings, inlets and streams are held by the
//! driver in [`SharedMemory`]; the core names them by ids.
//!
//! | module | concept |
//! |---|---|
//! | `ids`, `clients::client`, `settings`, `limits`, `clients::quotas` | names; whoever asks the core; settings; the accounting of what clients hold |
//! | `input`, `calls` | the entry for what happens; the calls of the embedder |
//! | `effects`, `upcall`, `notice`, `disconnect` | all that leaves the core |
//! | `resources`, `memory` | what the core needs of the operating system; the memory that it names, behind a lock of its own |
//! | `clients::owed` | what the host is asked for and has not answered |
//! | `jobs` | jobs and ranks: `job`, `table`, `status`, `exit`, `signals`, `mpi`; the end of a job when a rank fails or at a time limit (`early_end`); grace periods (`grace`); ranks whose job failed to start (`withdrawal`); ranks on other nodes (`nodes`) |
//! | `streams` | streams and their readers: `options`, `state`, `table`, `backlog_holder`, `readers`, `reading`; `deliveries`; requests to the capture thread (`awaited`, `answers`); what it reports (`events`, `capture_end`) |
//! | `tools` | connections that are not tools yet (`pending`, `admission`), tools (`peer`, `table`), their requests, registrations, pulls and messages |
//! | `pushes`, `queries`, `logs`, `spawns` | what tools do: push, query, log, start jobs |
//! | `published`, `fences` | the values that ranks publish for others, and their groups; fences of several nodes |

#![allow(missing_debug_implementations, reason = "the engine shows its state by queries and notices")]

/// Reports that the core lacks what its tables promise, which is a defect of the core. Panics with debug assertions, so
/// that tests and the simulator find it. A release goes on without: it returns or continues.
macro_rules! absent {
    ($what:literal, $leave:expr) => {{
        debug_assert!(false, concat!("the core has lost a ", $what));
        $leave
    }};
}

mod calls;
mod charges;
mod clients;
mod count;
mod disconnect;
mod effects;
mod fences;
mod ids;
mod input;
mod jobs;
mod limits;
mod logs;
mod memory;
mod notice;
mod published;
mod pushes;
mod queries;
mod resources;
mod settings;
mod spawns;
mod streams;
mod tools;
mod upcall;

use std::collections::{BTreeMap, BTreeSet};

use iof_capture::SourceId;

use crate::clients::quotas::Quotas;
use crate::effects::Effects;
use crate::tools::pending::Pending;

pub use calls::{DeliveredBytes, DeliveredEnd, NewJob, RegisteredRank};
pub use clients::client::{Client, ClientId, ClientProcess, MessageOrigin, Payer};
pub use clients::quotas::{Charge, QuotaLimits};
pub use disconnect::DisconnectReason;
pub use effects::{Command, HandleOp};
pub use fences::table::Fences;
pub use ids::{
    Call, JobId, LogId, LogStep, MAX_RANKS, PageId, PeerId, QueryId, RingId, SignalRequest, SpawnId,
    StreamName,
};
pub use input::Input;
pub use jobs::early_end::{
    EXIT_AFTER_HANG_UP, EarlyEnd, EarlyEndPolicy, EndCause, LastStep, OPEN_AFTER_KILL, SAME_REQUEST,
    TIMEOUT_CODE,
};
pub use jobs::exit::{Exit, REQUEST_LIFETIME, REQUESTS_TO_END};
pub use jobs::grace::GracePeriods;
pub use jobs::job::JobState;
pub use jobs::job::endings::{Ending, RankExit};
pub use jobs::job::rank::{Launching, RankState, SignalReach, StdinAccess};
pub use jobs::job::signals::Receivers;
pub use jobs::nodes::{Edges, NodeId, NodeKey, NodeLost, NodeReport, NodeRequest, StdinAnswer};
pub use jobs::status::JobStatus;
pub use jobs::table::Jobs;
pub use limits::Limits;
pub use logs::channel_entry::{ChannelEntry, LogRoute};
pub use logs::routes::{LogConfig, LogRoutes};
pub use logs::table::Logs;
pub use memory::{DueUpcall, MemorySource, Released, Shared, SharedMemory, Welcome};
pub use notice::Notice;
pub use published::table::PublishedValues;
pub use pushes::push::elsewhere::Elsewhere;
pub use pushes::push::{Deferred, Push, PushRequest};
pub use pushes::stdin_calls::StdinCalls;
pub use pushes::table::Pushes;
pub use queries::query::Queries;
pub use resources::Resources;
pub use settings::Settings;
pub use spawns::table::Spawns;
pub use streams::awaited::AwaitedAnswers;
pub use streams::completion::Completion;
pub use streams::deliver_error::DeliverError;
pub use streams::delivery::MAX_DELIVERED;
pub use streams::options::{Buffering, DEFAULT_CACHE_SIZE, MIN_CACHE_SIZE, StreamOptions};
pub use streams::reading::{Joining, Reading};
pub use streams::state::StreamState;
pub use streams::table::StreamTable;
pub use tools::demand::{CallId, Demand, ProcChannels, Ticket};
pub use tools::elsewhere::MAX_PULLED_STREAMS;
pub use tools::grant::Grant;
pub use tools::linger::{LastActivity, Linger};
pub use tools::outgoing::{Attachment, Outgoing};
pub use tools::peer::unread::{QueuedItem, Unread};
pub use tools::peer::{Peer, is_request};
pub use tools::pending::{Ended, PendingPeer, places};
pub use tools::pull::Pull;
pub use tools::registration::Registration;
pub use tools::table::Tools;
pub use upcall::{Piece, ReplyCallback, SpawnRequest, StdinPush, TakenCallback, Upcall};

/// All tables. The capture thread never accesses them. A simulator reads the fields; a driver
/// changes them by methods alone.
pub struct Core {
    /// The jobs.
    pub jobs: Jobs,
    /// The streams.
    pub streams: StreamTable,
    /// Forgotten streams that the capture thread has not removed: a reader waits for a free slot.
    pub kept_streams: BTreeSet<SourceId>,
    /// The tools.
    pub tools: Tools,
    /// The pushes.
    pub pushes: Pushes,
    /// The pieces of pushes that some of their receivers have not answered.
    pub stdin_calls: StdinCalls,
    /// The queries that wait.
    pub queries: Queries,
    /// The jobs that tools have the engine start.
    pub spawns: Spawns,
    /// The ongoing log requests.
    pub logs: Logs,
    /// The values that ranks have published.
    pub published: PublishedValues,
    /// The fences of ranks of several nodes.
    pub fences: Fences,
    /// Sources that tools have asked the host for.
    pub demand: Demand,
    /// The pull that caused each upcall that the host has not answered.
    pub pulls_by_call: BTreeMap<CallId, Ticket>,
    /// The upcalls that the host has not answered, with their sizes.
    pub owed: BTreeMap<Call, Charge>,
    /// The charges that clients hold.
    pub quotas: Quotas,
    /// The requests that the capture thread has not answered.
    pub awaited: AwaitedAnswers,
    /// The streams of exited ranks that may stay open for some time.
    pub graces: GracePeriods,
    /// The settings.
    pub settings: Settings,
    resources: Box<dyn Resources>,
    /// Connections that are not tools yet.
    pub pending: Pending,
    /// Connections that have ended, and count until their descriptors were received.
    pub departed: BTreeMap<PeerId, Charge>,
    /// The effects of inputs, until the driver takes it.
    effects: Effects,
    /// The capture thread has not reported its end.
    has_capture: bool,
    /// `true` if the engine is shutting down.
    stopping: bool,
}

impl Core {
    /// Creates tables without jobs and tools. The first connection gets the number `first_peer`.
    pub fn new(first_peer: PeerId, settings: Settings, logs: Logs, resources: Box<dyn Resources>) -> Core {
        Core {
            jobs: Jobs::default(),
            streams: StreamTable::new(),
            kept_streams: BTreeSet::new(),
            tools: Tools::new(first_peer),
            pushes: Pushes::default(),
            stdin_calls: StdinCalls::default(),
            queries: Queries::default(),
            spawns: Spawns::default(),
            logs,
            published: PublishedValues::default(),
            fences: Fences::default(),
            demand: Demand::default(),
            pulls_by_call: BTreeMap::new(),
            owed: BTreeMap::new(),
            quotas: Quotas::new(settings.limits.quotas, settings.places),
            awaited: AwaitedAnswers::default(),
            graces: GracePeriods::default(),
            settings,
            resources,
            pending: Pending::new(),
            departed: BTreeMap::new(),
            effects: Effects::default(),
            has_capture: true,
            stopping: false,
        }
    }
}
