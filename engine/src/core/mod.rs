//! The engine's state, and what changes it.
//!
//! Each table is a type with private fields: [`Jobs`], [`StreamTable`], [`Tools`], [`Pushes`],
//! [`Queries`], [`Logs`], [`Demand`], [`Owed`] and [`AwaitedAnswers`]. [`Core`] holds one of each.
//! The modules of requests (`pulls`, `pushes`, `queries`, `logging`) and events (`events`, `answers`)
//! are methods of [`Core`]. A table imports no table above it, so the imports form no circle.
//!
//! The inputs are [`Core::handle`] for what happens (`input`), the calls of the embedder (`calls`) and
//! those of connections (`admission`). Nothing here waits or reads a clock. What leaves the core is
//! queued in [`Effects`].

pub(crate) mod admission;
pub(crate) mod answers;
pub(crate) mod answers_to_queries;
pub(crate) mod awaited;
pub(crate) mod calls;
pub(crate) mod capture_end;
pub(crate) mod channel_entry;
pub(crate) mod client;
pub(crate) mod commands;
pub(crate) mod deliver_error;
pub(crate) mod deliveries;
pub(crate) mod delivery;
pub(crate) mod demand;
pub(crate) mod disconnect;
pub(crate) mod effects;
pub(crate) mod elsewhere;
pub(crate) mod endings;
pub(crate) mod events;
pub(crate) mod grace;
pub(crate) mod ids;
pub(crate) mod input;
pub(crate) mod job;
pub(crate) mod job_status;
pub(crate) mod jobs;
pub(crate) mod linger;
pub(crate) mod log_output;
pub(crate) mod log_routes;
pub(crate) mod logging;
pub(crate) mod logs;
pub(crate) mod outgoing;
pub(crate) mod owed;
pub(crate) mod peer;
pub(crate) mod pending;
pub(crate) mod pull;
pub(crate) mod pulls;
pub(crate) mod push;
pub(crate) mod push_admission;
pub(crate) mod push_elsewhere;
pub(crate) mod push_table;
pub(crate) mod pushes;
pub(crate) mod queries;
pub(crate) mod query;
pub(crate) mod readers;
pub(crate) mod reading;
pub(crate) mod registration;
pub(crate) mod registrations;
pub(crate) mod requests;
pub(crate) mod resources;
pub(crate) mod settings;
pub(crate) mod shed;
pub(crate) mod signals;
pub(crate) mod stream_options;
pub(crate) mod stream_state;
pub(crate) mod stream_table;
pub(crate) mod tools;
pub(crate) mod unread;
pub(crate) mod upcall;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use iof_shm_ring::ReaderPage;

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
use crate::core::stream_table::StreamTable;
use crate::core::tools::Tools;

/// All tables. The capture thread never accesses them.
pub(crate) struct Core {
    pub jobs: Jobs,
    pub streams: StreamTable,
    pub tools: Tools,
    pushes: Pushes,
    pub queries: Queries,
    pub logs: Logs,
    /// Sources that tools have asked the host for.
    demand: Demand,
    /// The pull that caused each upcall that the host has not answered.
    pulls_by_call: HashMap<CallId, Ticket>,
    /// Upcalls that the host has not answered.
    pub owed: Owed,
    /// The requests that the capture thread has not answered.
    awaited: AwaitedAnswers,
    /// The streams of exited ranks that may stay open for some time.
    pub graces: GracePeriods,
    settings: Settings,
    resources: Box<dyn Resources>,
    /// Connections that are not tools yet.
    pub pending: Pending,
    /// Connections that have ended, and count until their descriptors were received.
    pub departed: BTreeMap<PeerId, Client>,
    pub effects: Effects,
    /// The capture thread has not reported its end.
    pub has_capture: bool,
    /// Whether the engine is shutting down.
    pub stopping: bool,
}

impl Core {
    /// Creates tables without jobs and tools. The first connection gets the number `first_peer`.
    pub(crate) fn new(
        first_peer: PeerId,
        backlog_holder: Arc<ReaderPage>,
        settings: Settings,
        logs: Logs,
        resources: Box<dyn Resources>,
    ) -> Core {
        Core {
            jobs: Jobs::default(),
            streams: StreamTable::new(backlog_holder),
            tools: Tools::new(first_peer),
            pushes: Pushes::default(),
            queries: Queries::default(),
            logs,
            demand: Demand::default(),
            pulls_by_call: HashMap::new(),
            owed: Owed::default(),
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
