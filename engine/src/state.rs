//! The engine's tables: jobs, streams, tools, and who registered for what.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use iof_capture::{ProcessId, PushId, SourceId, TargetId};
use iof_proto::{Channel, Nspace, Proc, Rank};
use iof_shm_ring::ReaderPage;

use crate::config::Config;
use crate::control::{Reports, file_limit};
use crate::deliver::Delivery;
use crate::demand::{CallId, Demand, Ticket};
use crate::host::Upcall;
use crate::in_flight::Departed;
use crate::job::JobState;
use crate::log::Logs;
use crate::owed::Owed;
use crate::peer::Peer;
use crate::pending::{self, Pending};
use crate::push::{Deferred, Push};
use crate::query::Queries;
use crate::readers::StreamState;
use crate::registrations::ByJob;

/// Names a tool for as long as it is connected; also its token in the poll set.
pub(crate) type PeerId = usize;

/// One stream, by name.
#[derive(Clone)]
pub(crate) struct StreamName {
    pub source: Proc,
    pub channel: Channel,
    /// It is what was logged there.
    pub logged: bool,
    /// The run of the job's name that the source belongs to.
    pub run: u64,
}

/// All tables, behind the engine's one lock. The capture thread never takes it.
pub(crate) struct State {
    pub jobs: BTreeMap<Nspace, JobState>,
    pub streams: BTreeMap<SourceId, StreamState>,
    /// Those of the streams that are filled by deliveries.
    pub deliveries: BTreeMap<SourceId, Delivery>,
    pub processes: HashMap<ProcessId, Proc>,
    /// Whose stdin can be pushed into.
    pub stdins: HashMap<TargetId, Proc>,
    pub pushes: BTreeMap<PushId, Push>,
    /// Pushes that wait for their job to be started.
    pub deferred: Vec<Deferred>,
    pub peers: BTreeMap<PeerId, Peer>,
    /// How many connections from outside there may be.
    pub places: usize,
    /// Connections that are not tools yet.
    pub pending: Pending,
    /// What is left of those that have gone.
    pub departed: Vec<Departed>,
    /// Their registrations, by the jobs that they name.
    pub by_job: ByJob,
    /// The reader page of the backlog holder, which holds what nobody has registered for.
    pub backlog_holder: Arc<ReaderPage>,
    /// The pull for which each upcall was made that the host has not answered.
    pub askers: HashMap<CallId, Ticket>,
    /// The keys of directives that the host understands.
    pub host_keys: BTreeSet<String>,
    /// The keys of queries of which the host has a part of the answer.
    pub host_queries: BTreeSet<String>,
    /// The queries that wait for the host.
    pub queries: Queries,
    /// Log requests.
    pub logs: Logs,
    /// The jobs with streams of what was logged that are not complete.
    pub logged_jobs: BTreeSet<Nspace>,
    /// The cache that a push has unless it asks for another, in bytes.
    pub cache_size: u32,
    /// The largest cache that a registration may ask for, in bytes.
    pub max_cache_size: u32,
    /// The host forwards stdin to ranks elsewhere.
    pub host_stdin: bool,
    /// What the host has not answered.
    pub owed: Owed,
    /// What tools have asked the host for.
    pub demand: Demand,
    /// What the control thread is to say to the host once it has let go of the tables.
    pub upcalls: Vec<Upcall>,
    last_run: u64,
    next_source: u64,
    next_push: u64,
    next_peer: PeerId,
    /// The engine ends.
    pub stopping: bool,
}

/// The tables behind their lock, and who waits for them to change.
pub(crate) struct Tables {
    state: Mutex<State>,
    changed: Condvar,
    /// To the control thread.
    pub reports: Arc<Reports>,
}

impl Tables {
    pub(crate) fn new(state: State, reports: Arc<Reports>) -> Self {
        Tables { state: Mutex::new(state), changed: Condvar::new(), reports }
    }

    /// A thread that died with the lock left the tables whole: each change is one insertion or
    /// removal.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until somebody [notifies](Tables::notify).
    pub(crate) fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes who waits for a change.
    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }
}

impl State {
    /// No jobs, no tools; the first tool gets number `first_peer`.
    pub(crate) fn new(
        first_peer: PeerId,
        backlog_holder: Arc<ReaderPage>,
        config: &Config,
        logs: Logs,
    ) -> Self {
        State {
            jobs: BTreeMap::new(),
            streams: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            processes: HashMap::new(),
            stdins: HashMap::new(),
            pushes: BTreeMap::new(),
            deferred: Vec::new(),
            peers: BTreeMap::new(),
            places: pending::places(file_limit()),
            pending: Pending::new(),
            departed: Vec::new(),
            by_job: ByJob::default(),
            backlog_holder,
            host_keys: BTreeSet::new(),
            askers: HashMap::new(),
            logs,
            logged_jobs: BTreeSet::new(),
            host_queries: BTreeSet::new(),
            queries: Queries::default(),
            cache_size: config.cache_size,
            max_cache_size: config.max_cache_size,
            host_stdin: false,
            owed: Owed::default(),
            demand: Demand::default(),
            upcalls: Vec::new(),
            last_run: 0,
            next_source: 0,
            next_push: 0,
            next_peer: first_peer,
            stopping: false,
        }
    }

    /// A number that no connection has had.
    pub(crate) fn next_peer(&mut self) -> PeerId {
        let id = self.next_peer;
        self.next_peer = self.next_peer.wrapping_add(1);
        id
    }

    /// A number that no job has had, higher than all before it.
    pub(crate) fn next_run(&mut self) -> u64 {
        self.last_run = self.last_run.saturating_add(1);
        self.last_run
    }

    /// A number that no stream has had.
    pub(crate) fn next_source(&mut self) -> SourceId {
        let id = SourceId(self.next_source);
        self.next_source = self.next_source.saturating_add(1);
        id
    }

    /// A number that no push has had.
    pub(crate) fn next_push(&mut self) -> PushId {
        let id = PushId(self.next_push);
        self.next_push = self.next_push.saturating_add(1);
        id
    }

    /// Whether `proc` is, or may yet become, a source.
    pub(crate) fn may_exist(&self, proc: &Proc) -> bool {
        match self.jobs.get(&proc.nspace) {
            // Of no rank is what is logged of the job as a whole.
            Some(job) if job.is_whole() => {
                [Rank::WILDCARD, Rank::UNDEF].contains(&proc.rank) || job.has_rank(proc.rank)
            }
            _ => true,
        }
    }
}
