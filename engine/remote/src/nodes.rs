//! The host of an engine whose ranks run on other nodes, and the job there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crossbeam::channel::{Receiver, unbounded};
use iof_engine::{EarlyEndPolicy, Engine, Host, HostReply, JobStatus, QueryReply, Signal, StdinPush};
use iof_proto::query::key;
use iof_proto::{Nspace, Proc, Query, Status};

use crate::error::RemoteStartError;
use crate::follower::RemoteEvent;
use crate::remote::{Node, Remote};
use crate::start::Launch;

/// The host of an engine whose ranks run on other nodes. One job can be started with it.
///
/// A launcher that has a [`Host`] of its own calls the methods of this one for stdin, signals and
/// queries.
#[derive(Debug)]
pub struct Nodes {
    nodes: Vec<Node>,
    /// The ranks, once their job has a name.
    remote: OnceLock<Arc<Remote>>,
    /// Whether a job was started. No other memory depends on it.
    is_started: AtomicBool,
}

/// A job whose ranks run on other nodes.
#[derive(Debug)]
pub struct RemoteJob {
    remote: Arc<Remote>,
    events: Receiver<RemoteEvent>,
}

impl Nodes {
    /// Creates the host for a job whose ranks run on these nodes. Each rank of the job runs on one
    /// of them.
    pub fn new(nodes: impl IntoIterator<Item = Node>) -> Nodes {
        Nodes {
            nodes: nodes.into_iter().collect(),
            remote: OnceLock::new(),
            is_started: AtomicBool::new(false),
        }
    }

    /// Returns the ranks of the job `nspace`. The first call determines the name.
    pub fn ranks(&self, nspace: &Nspace) -> Arc<Remote> {
        let remote = || Arc::new(Remote::new(nspace.clone(), self.nodes.clone()));
        Arc::clone(self.remote.get_or_init(remote))
    }

    /// Starts an agent on each node and, when all of them are ready, the ranks. `engine` receives
    /// their output, so its readers should be attached before. Blocks until all ranks run.
    ///
    /// The nodes determine `local` and `elsewhere` of the job.
    ///
    /// # Errors
    /// A node can't start its ranks, this process can't have their output, or a job was started with
    /// these nodes before. No rank runs on.
    pub fn start(&self, engine: &Arc<Engine>, launch: &Launch<'_>) -> Result<RemoteJob, RemoteStartError> {
        let spec = launch.spec;
        let remote = self.ranks(&spec.nspace);
        if remote.nspace != spec.nspace || self.is_started.swap(true, Ordering::Relaxed) {
            return Err(RemoteStartError::StartedBefore);
        }
        remote.check()?;
        let started = remote.start(launch, engine, &mut |_| false)?;
        let (reports, events) = unbounded();
        let policy = EarlyEndPolicy::new(spec.kill_on_bad_exit, spec.kill_wait, spec.timeout, Instant::now());
        // The embedder may not wait for the job.
        remote.follow(started, policy, engine, move |event| drop(reports.send(event)))?;
        Ok(RemoteJob { remote, events })
    }
}

impl Host for Nodes {
    fn forwards_stdin(&self) -> bool {
        true
    }

    fn push_stdin(&self, stdin: &StdinPush, bytes: &[u8], reply: HostReply) {
        match self.remote.get() {
            Some(remote) => remote.push_stdin(stdin, bytes, reply),
            None => reply.deny(Status::ERR_NOT_AVAILABLE, "the ranks are not started"),
        }
    }

    fn signal(&self, procs: &[Proc], signal: Signal) -> usize {
        self.remote.get().map_or(0, |remote| remote.signal_ranks(procs, signal))
    }

    fn queries(&self) -> Vec<String> {
        vec![key::PMIX_QUERY_PROC_TABLE.into()]
    }

    fn query(&self, queries: &[Query], reply: QueryReply) {
        match self.remote.get() {
            Some(remote) => remote.query(queries, reply),
            None => reply.answer(Vec::new()),
        }
    }
}

impl RemoteJob {
    /// Returns the events of the job as they occur. The iterator blocks until the next one, and
    /// ends after [`RemoteEvent::Over`].
    pub fn events(&self) -> impl Iterator<Item = RemoteEvent> + '_ {
        self.events.iter()
    }

    /// Blocks until all ranks have exited and the engine has all their output. Returns the status
    /// of the job. Discards the events that were not taken.
    pub fn wait(&self) -> JobStatus {
        self.events.iter().for_each(drop);
        self.remote.status()
    }

    /// Returns the ranks, such as to send them signals.
    pub fn ranks(&self) -> &Arc<Remote> {
        &self.remote
    }
}
