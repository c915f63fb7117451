//! The engine's tables: jobs, streams, tools and their registrations.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

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
use crate::registrations::ByJob;
use crate::stream_state::StreamState;

/// The number of a tool while it is connected, which is also its token in the poll set.
pub(crate) type PeerId = usize;

/// The name of one stream.
#[derive(Clone)]
pub(crate) struct StreamName {
    pub source: Proc,
    pub channel: Channel,
    /// The stream holds what was logged to this channel, not what the process wrote.
    pub logged: bool,
    /// The run of the job's name that the source belongs to.
    pub run: u64,
}

/// All tables, behind the engine's one lock. The capture thread never takes this lock.
pub(crate) struct State {
    pub jobs: BTreeMap<Nspace, JobState>,
    pub streams: BTreeMap<SourceId, StreamState>,
    /// The deliveries of those streams that deliveries fill.
    pub deliveries: BTreeMap<SourceId, Delivery>,
    pub processes: HashMap<ProcessId, Proc>,
    /// The processes whose stdin can be pushed to.
    pub stdins: HashMap<TargetId, Proc>,
    pub pushes: BTreeMap<PushId, Push>,
    /// Pushes that wait until all ranks of their job are started.
    pub deferred: Vec<Deferred>,
    pub peers: BTreeMap<PeerId, Peer>,
    /// The number of connections from outside that may exist at a time.
    pub places: usize,
    /// Connections that are not tools yet.
    pub pending: Pending,
    /// Descriptors in flight to tools that have disconnected.
    pub departed: Vec<Departed>,
    /// The tools' registrations, by the jobs that they name.
    pub by_job: ByJob,
    /// The reader page of the backlog holder, which reads the streams that no registration reads.
    pub backlog_holder: Arc<ReaderPage>,
    /// The pull that caused each upcall that the host has not answered.
    pub pulls_by_call: HashMap<CallId, Ticket>,
    /// The keys of directives that the host understands.
    pub host_keys: BTreeSet<String>,
    /// The keys of queries to which the host contributes a part of the answer.
    pub host_queries: BTreeSet<String>,
    /// Queries that wait for the host.
    pub queries: Queries,
    /// Log requests and channels.
    pub logs: Logs,
    /// The jobs that have logged streams which are not complete.
    pub logged_jobs: BTreeSet<Nspace>,
    /// The cache size of a push that does not set its own, in bytes.
    pub cache_size: u32,
    /// The largest cache size that a registration may set, in bytes.
    pub max_cache_size: u32,
    /// Whether the host forwards stdin to ranks elsewhere.
    pub host_stdin: bool,
    /// Upcalls that the host has not answered.
    pub owed: Owed,
    /// Sources that tools have asked the host for.
    pub demand: Demand,
    /// When the control thread checks next whether a job is to be ended early. It may be earlier
    /// than necessary.
    pub next_early_end: Option<Instant>,
    /// Upcalls that the control thread makes after it has unlocked the tables.
    pub upcalls: Vec<Upcall>,
    last_run: u64,
    next_source: u64,
    next_push: u64,
    next_peer: PeerId,
    /// Whether the engine is shutting down.
    pub stopping: bool,
}

/// The tables with their lock and the condition that announces changes.
pub(crate) struct Tables {
    state: Mutex<State>,
    changed: Condvar,
    /// Reports to the control thread.
    pub reports: Arc<Reports>,
}

impl Tables {
    pub(crate) fn new(state: State, reports: Arc<Reports>) -> Self {
        Tables { state: Mutex::new(state), changed: Condvar::new(), reports }
    }

    /// Locks the tables.
    ///
    /// Poisoning is ignored: a thread that panicked with the lock held left the tables consistent,
    /// as each change is one insertion or removal.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until another thread calls [`notify`](Tables::notify).
    pub(crate) fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all threads that wait for a change.
    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }
}

impl State {
    /// Creates tables without jobs and tools. The first tool gets the number `first_peer`.
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
            pulls_by_call: HashMap::new(),
            logs,
            logged_jobs: BTreeSet::new(),
            host_queries: BTreeSet::new(),
            queries: Queries::default(),
            cache_size: config.cache_size,
            max_cache_size: config.max_cache_size,
            host_stdin: false,
            owed: Owed::default(),
            demand: Demand::default(),
            next_early_end: None,
            upcalls: Vec::new(),
            last_run: 0,
            next_source: 0,
            next_push: 0,
            next_peer: first_peer,
            stopping: false,
        }
    }

    /// Makes the control thread check in time whether a job is to be ended early.
    pub(crate) fn schedule_early_end(&mut self, nspace: &Nspace, now: Instant) {
        let next = self.jobs.get(nspace).and_then(|job| job.next_early_end(now));
        self.next_early_end = self.next_early_end.into_iter().chain(next).min();
    }

    /// Ends jobs early for which it is time at `now`. Returns their streams that are to be completed
    /// after [`OPEN_AFTER_KILL`](crate::early_end::OPEN_AFTER_KILL); `None` if no job was due.
    pub(crate) fn end_jobs_early(&mut self, now: Instant) -> Option<Vec<SourceId>> {
        self.next_early_end.filter(|next| *next <= now)?;
        let to_finish = self.jobs.values_mut().flat_map(|job| job.end_early(now)).collect();
        self.next_early_end = self.jobs.values().filter_map(|job| job.next_early_end(now)).min();
        Some(to_finish)
    }

    /// Returns a number that no connection has had.
    pub(crate) fn next_peer(&mut self) -> PeerId {
        let id = self.next_peer;
        self.next_peer = self.next_peer.wrapping_add(1);
        id
    }

    /// Returns a number that no job has had, higher than all previous ones.
    pub(crate) fn next_run(&mut self) -> u64 {
        self.last_run = self.last_run.saturating_add(1);
        self.last_run
    }

    /// Returns a number that no stream has had.
    pub(crate) fn next_source(&mut self) -> SourceId {
        let id = SourceId(self.next_source);
        self.next_source = self.next_source.saturating_add(1);
        id
    }

    /// Returns a number that no push has had.
    pub(crate) fn next_push(&mut self) -> PushId {
        let id = PushId(self.next_push);
        self.next_push = self.next_push.saturating_add(1);
        id
    }

    /// Returns whether `proc` is a source or may still become one.
    pub(crate) fn may_exist(&self, proc: &Proc) -> bool {
        match self.jobs.get(&proc.nspace) {
            // What is logged for the job as a whole has no rank.
            Some(job) if job.all_ranks_known() => {
                [Rank::WILDCARD, Rank::UNDEF].contains(&proc.rank) || job.has_rank(proc.rank)
            }
            _ => true,
        }
    }
}
