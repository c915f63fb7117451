//! The engine's state, and what changes it.
//!
//! Each table is a type with private fields: [`Jobs`], [`StreamTable`], [`Tools`], [`Pushes`],
//! [`Queries`], [`Logs`], [`Demand`], [`Owed`] and [`AwaitedAnswers`]. [`Core`] holds one of each.
//! The modules of requests (`pulls`, `pushes`, `queries`, `logging`) and events (`events`,
//! `answers`) are methods of [`Core`]. A table imports no table above it, so the imports form no
//! circle.
//!
//! The inputs are [`Core::handle`] for what happens (`input`), the calls of the embedder (`calls`)
//! and those of connections (`admission`). Nothing here waits or reads a clock. What leaves the
//! core is queued in [`Effects`]. Reader pages, rings, inlets and streams are held by the driver;
//! the core names them by the ids of `ids` and `iof-capture`.

mod admission;
mod answers;
mod answers_to_queries;
mod awaited;
mod backlog_holder;
pub(crate) mod calls;
mod capture_end;
pub(crate) mod channel_entry;
#[cfg(feature = "simulation")]
mod checks;
mod client;
mod completion;
pub(crate) mod deliver_error;
mod deliveries;
pub(crate) mod delivery;
pub(crate) mod demand;
pub(crate) mod disconnect;
pub(crate) mod effects;
mod events;
mod grace;
pub(crate) mod ids;
pub(crate) mod input;
#[cfg(feature = "simulation")]
mod inspection;
pub(crate) mod job;
pub(crate) mod job_status;
mod jobs;
#[cfg(feature = "simulation")]
mod limit_checks;
pub(crate) mod limits;
pub(crate) mod linger;
mod log_output;
pub(crate) mod log_routes;
mod logging;
pub(crate) mod logs;
pub(crate) mod mpi;
pub(crate) mod nodes;
pub(crate) mod notice;
pub(crate) mod outgoing;
mod owed;
mod partial_answer;
pub(crate) mod peer;
pub(crate) mod pending;
mod pull;
mod pulls;
mod push;
mod push_admission;
mod push_elsewhere;
mod push_table;
mod pushes;
mod queries;
mod query;
pub(crate) mod readers;
mod reading;
mod registration;
mod registrations;
mod requests;
pub(crate) mod resources;
pub(crate) mod settings;
mod shed;
mod signals;
mod stdin_calls;
pub(crate) mod stream_options;
mod stream_state;
mod stream_table;
mod tools;
mod unread;
pub(crate) mod upcall;
pub(crate) mod withdrawal;

use std::collections::{BTreeMap, BTreeSet};

use iof_capture::SourceId;

use crate::core::awaited::AwaitedAnswers;
use crate::core::client::Client;
use crate::core::demand::{CallId, Demand, Ticket};
use crate::core::effects::Effects;
use crate::core::grace::GracePeriods;
use crate::core::ids::PeerId;
use crate::core::jobs::Jobs;
use crate::core::logs::Logs;
use crate::core::owed::Owed;
use crate::core::pending::Pending;
use crate::core::push_table::Pushes;
use crate::core::query::Queries;
use crate::core::resources::Resources;
use crate::core::settings::Settings;
use crate::core::stdin_calls::StdinCalls;
use crate::core::stream_table::StreamTable;
use crate::core::tools::Tools;

/// All tables. The capture thread never accesses them.
pub(crate) struct Core {
    jobs: Jobs,
    streams: StreamTable,
    /// Forgotten streams that the capture thread has not removed: a reader waits for a free slot.
    kept_streams: BTreeSet<SourceId>,
    tools: Tools,
    pushes: Pushes,
    stdin_calls: StdinCalls,
    queries: Queries,
    logs: Logs,
    /// Sources that tools have asked the host for.
    demand: Demand,
    /// The pull that caused each upcall that the host has not answered.
    pulls_by_call: BTreeMap<CallId, Ticket>,
    /// Upcalls that the host has not answered.
    owed: Owed,
    /// The requests that the capture thread has not answered.
    awaited: AwaitedAnswers,
    /// The streams of exited ranks that may stay open for some time.
    graces: GracePeriods,
    settings: Settings,
    resources: Box<dyn Resources>,
    /// Connections that are not tools yet.
    pending: Pending,
    /// Connections that have ended, and count until their descriptors were received.
    departed: BTreeMap<PeerId, Client>,
    /// What inputs have caused, until the driver takes it.
    effects: Effects,
    /// The capture thread has not reported its end.
    has_capture: bool,
    /// Whether the engine is shutting down.
    stopping: bool,
}

impl Core {
    /// Creates tables without jobs and tools. The first connection gets the number `first_peer`.
    pub(crate) fn new(
        first_peer: PeerId,
        settings: Settings,
        logs: Logs,
        resources: Box<dyn Resources>,
    ) -> Core {
        Core {
            jobs: Jobs::default(),
            streams: StreamTable::new(),
            kept_streams: BTreeSet::new(),
            tools: Tools::new(first_peer),
            pushes: Pushes::default(),
            stdin_calls: StdinCalls::default(),
            queries: Queries::default(),
            logs,
            demand: Demand::default(),
            pulls_by_call: BTreeMap::new(),
            owed: Owed::new(settings.limits.owed_bytes_per_user),
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
