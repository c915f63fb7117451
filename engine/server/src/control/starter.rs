//! The start of jobs: the part of an engine that its handle shares with the threads that start jobs
//! for tools.

use std::fmt::Display;
use std::mem;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use iof_capture::{Capture, Guardian};
use iof_core::SpawnId;
use iof_proto::rendezvous::Listener;
use iof_proto::{Failure, JobSpec, Nspace, Status};
use iof_shm_ring::CacheBudget;
use nix::sys::signal::SigSet;

use crate::config::Config;
use crate::control::stalls::StallReports;
use crate::host::Host;
use crate::job::Job;
use crate::mpi::pmix::PmixHost;
use crate::mpi::pmix_tools::PmixTools;
use crate::mpi::topology::Topology;
use crate::tables::Tables;

/// The part of an engine that starts and removes jobs. The control thread has a weak reference, so that it ends with the
/// engine.
pub(crate) struct Starter {
    pub config: Config,
    /// The sum of the caches of all ranks.
    pub caches: Arc<CacheBudget>,
    pub tables: Arc<Tables>,
    pub capture: Arc<Capture>,
    pub stalls: Arc<StallReports>,
    pub pmix: PmixHost,
    pub pmix_tools: PmixTools,
    pub topology: Topology,
    /// Started with the first job, if the configuration asks for it.
    pub guardian: OnceLock<Option<Arc<Guardian>>>,
    pub listener: Option<Arc<Listener>>,
    pub host: Arc<dyn Host>,
    /// The threads that start jobs for tools, possibly with some that have ended.
    pub threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Starter {
    /// Returns the absolute path of the socket that tools connect to.
    pub(crate) fn socket(&self) -> Option<&std::path::Path> {
        self.listener.as_deref().map(Listener::path)
    }

    /// Returns the guardian, if there is one. Starts it at the first call.
    pub(crate) fn guardian(&self) -> Option<Arc<Guardian>> {
        let start = || {
            let started = Guardian::start(self.config.guardian.as_deref()?);
            let warn =
                |error: &_| tracing::warn!(%error, "ranks run on if this process is killed: no guardian");
            started.inspect_err(warn).ok().map(Arc::new)
        };
        self.guardian.get_or_init(start).clone()
    }

    /// Logs a warning if the guardian does not answer, after the start of processes that it guards.
    pub(crate) fn check_guardian(&self) {
        if self.guardian.get().and_then(Option::as_ref).is_some_and(|guardian| guardian.is_lost()) {
            tracing::warn!("processes run on if this one is killed: the guardian does not answer");
        }
    }

    /// Removes an ended job. Returns whether it was there.
    pub(crate) fn remove(&self, nspace: &Nspace) -> bool {
        let removed = self.tables.lock().remove_job(nspace);
        if let Some(job) = &removed {
            self.pmix.remove(job);
            self.pmix_tools.remove(job);
            self.tables.notify();
        }
        removed.is_some()
    }

    /// Starts a job for a tool, on a thread of its own, since the start of many ranks takes long.
    pub(crate) fn start_for_tool(self: &Arc<Self>, id: SpawnId, spec: Box<JobSpec>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        let (starter, nspace) = (Arc::clone(self), spec.nspace.clone());
        let thread = thread::Builder::new().name("iof-starter".into()).spawn(move || {
            // Handlers of the embedder are not for this thread. It fails only for invalid masks.
            let _ = SigSet::all().thread_block();
            starter.spawn_ended(id, &spec.nspace, starter.spawn(&spec).map_err(|error| failed(&error)));
        });
        match thread {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                self.spawn_ended(id, &nspace, Err(failed(&format_args!("cannot create a thread: {error}"))))
            }
        }
    }

    /// Reports the end of the start of a job to the host and to the spawner.
    fn spawn_ended(&self, id: SpawnId, nspace: &Nspace, result: Result<Job, Failure>) {
        self.host.spawned(nspace, result.as_ref());
        self.tables.lock().spawn_ended(id, result.map(|job| job.id().clone()));
        self.tables.notify();
        self.tables.reports.wake();
    }

    /// Blocks until the threads that start jobs for tools have ended. None begins after the control
    /// thread has ended.
    pub(crate) fn join_threads(&self) {
        let threads = mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        // The panic of a thread was reported, and its job was not started.
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

fn failed(error: &dyn Display) -> Failure {
    Failure::new(Status::ERR_JOB_FAILED_TO_LAUNCH, error.to_string())
}
