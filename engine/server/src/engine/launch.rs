//! Starting a job: the checks before it, and the ranks' processes.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::thread;
use std::time::Instant;

use iof_capture::{FirstWrites, Signal, Signaller, Spawned, Spawner, Stdin, check};
use iof_core::{EarlyEndPolicy, MAX_RANKS, NewJob};
use iof_proto::{JobSpec, Mpi, Rank};
use iof_shm_ring::CacheBudget;
use nix::sys::signal::SigSet;

use crate::control::starter::Starter;
use crate::engine::Engine;
use crate::engine::register::RunningRank;
use crate::error::LaunchError;
use crate::job::Job;
use crate::job::binding;
use crate::job::plan::{PlannedRank, first_ranks, own_interaction, planned_ranks, process_spec};
use crate::mpi::needs::MpiNeeds;
use crate::mpi::pmi::{self, PmiJob};
use crate::mpi::pmix::PmixJob;
use crate::mpi::pmix_tools;
use crate::mpi::topology::Topology;
use crate::tables::files::{FILES_PER_RANK, MAPS_PER_RANK, TRANSIENT_FDS};
use crate::tables::files::{check_files_of_job, check_files_of_rank, check_maps_of_job};
use crate::tables::reports::Report;

/// The server by which the ranks of a job start MPI, if there is one.
struct MpiJob {
    pmi: Option<PmiJob>,
    pmix: Option<PmixJob>,
}

/// Returns the job whose ranks are all started here, now.
pub(crate) fn new_job(spec: &JobSpec) -> NewJob<'_> {
    let JobSpec { kill_on_bad_exit, kill_wait, timeout, .. } = *spec;
    NewJob {
        nspace: &spec.nspace,
        grace: spec.grace,
        early_end_policy: EarlyEndPolicy::new(kill_on_bad_exit, kill_wait, timeout, Instant::now()),
        directives: &spec.directives,
        elsewhere: spec.elsewhere,
        is_part: spec.mpi_nodes.is_some(),
        launching: planned_ranks(spec).map(|planned| (planned.rank, planned.launching(spec))).collect(),
        nodes: &[],
        is_direct: false,
    }
}

impl Engine {
    /// Checks a job as [`Engine::spawn`] does before it starts the first rank. Returns the number
    /// of files that this process may open besides those of the job, given its limit
    /// (`RLIMIT_NOFILE`).
    ///
    /// # Errors
    /// [`LaunchError`].
    pub fn check(&self, spec: &JobSpec) -> Result<u64, LaunchError> {
        self.starter.check(spec)
    }

    /// Starts the ranks of a job. Tools that registered for the job before receive its output from
    /// the first byte.
    ///
    /// # Errors
    /// [`LaunchError`]. Names, numbers, directories and programs are checked before the first rank
    /// is started. If a later step fails, the ranks that were started already are killed.
    pub fn spawn(&self, spec: &JobSpec) -> Result<Job, LaunchError> {
        self.starter.spawn(spec)
    }
}

impl Starter {
    fn check(&self, spec: &JobSpec) -> Result<u64, LaunchError> {
        check_spec(spec, &MpiNeeds::of(spec), self.server(), &self.caches)
    }

    /// Starts the ranks of a job, see [`Engine::spawn`].
    pub(crate) fn spawn(&self, spec: &JobSpec) -> Result<Job, LaunchError> {
        let needs = MpiNeeds::of(spec);
        check_spec(spec, &needs, self.server(), &self.caches)?;
        let job = self.begin(new_job(spec)).ok_or(LaunchError::NameTaken(spec.nspace.clone()))?;
        let started = self.start_ranks(spec, &needs, &job);
        if started.is_err() {
            self.tables.lock().withdraw_ranks(&spec.nspace);
            self.pmix.remove(job.id());
            self.tables.reports.send(Report::PmiEnded(job.id().clone()));
        } else {
            // Before the job can end.
            self.pmix_tools.serve(spec, job.id(), &self.pmix, self.socket());
        }
        self.all_registered(&job);
        started.map(|()| job)
    }

    /// Starts all ranks. Each is registered before the next is started, so that its output is read
    /// as it is written. Kills those that were started if one fails.
    fn start_ranks(&self, spec: &JobSpec, needs: &MpiNeeds, job: &Job) -> Result<(), LaunchError> {
        self.reserve_readers(&spec.nspace, planned_ranks(spec).map(|planned| planned.rank))
            .map_err(|(rank, source)| LaunchError::Rings { rank, source })?;
        // A rank may write before the capture thread reads its pipes. Without a descriptor for this
        // watch, the order of these first writes is unknown.
        let spawner = Spawner::watching(FirstWrites::new().ok()).guarded_by(self.guardian());
        let cores = binding::cores(spec, planned_ranks(spec).count())?.unwrap_or_default();
        let pmix = self.pmix.serve((spec, needs), job.id(), &cores, &self.tables.reports)?;
        // MPICH refuses to start with the variables of both protocols.
        let pmi = match pmix {
            None => PmiJob::of(spec, job),
            Some(_) => None,
        };
        let mpi = MpiJob { pmi, pmix };
        // A client would take variables of another launcher for its own.
        let has_pmix = pmi::has_pmix();
        let is_of_a_launcher = |name: &OsStr| pmi::is_of_a_launcher(name, has_pmix);
        let hides = spec.hide_launcher || spec.mpi != Mpi::None;
        let spawner = if hides { spawner.hiding(is_of_a_launcher) } else { spawner };
        let mut signallers = Vec::new();
        let mut start_all = || {
            // Until all ranks are started, and before those of an MPI job are served.
            let _mass_start = self.capture.begin_mass_start(planned_ranks(spec).count());
            let started = planned_ranks(spec).enumerate().try_for_each(|(index, planned)| {
                let start = || self.start_rank(spec, &planned, &spawner, &mpi, &mut signallers);
                binding::bound(cores.get(index), start).map_err(LaunchError::Binding)?
            });
            self.check_guardian();
            if started.is_err() {
                signallers.iter().for_each(|process| drop(process.send(Signal::KILL)));
            } else if let Some(pmix) = &mpi.pmix {
                pmix.started(&signallers.iter().map(Signaller::pid).collect::<Vec<_>>());
            }
            started
        };
        match &mpi.pmi {
            None => start_all(),
            Some(pmi) if Topology::is_for(spec, needs) => self.with_topology(pmi, start_all),
            Some(pmi) => start_all().inspect(|()| self.tables.reports.send(pmi.started())),
        }
    }

    /// Starts ranks with PMI while another thread finds out the topology of the node, which takes as
    /// long as the start of some ten ranks. Then they are served.
    fn with_topology(
        &self,
        pmi: &PmiJob,
        start_all: impl FnOnce() -> Result<(), LaunchError>,
    ) -> Result<(), LaunchError> {
        thread::scope(|scope| {
            let search = thread::Builder::new().name("iof-topology".into());
            let search = search.spawn_scoped(scope, || {
                // Handlers of the embedder are not for this thread. It fails only for invalid masks.
                let _ = SigSet::all().thread_block();
                self.topology.file()
            });
            start_all()?;
            let file = search.ok().and_then(|search| search.join().ok()).flatten();
            file.into_iter().for_each(|file| pmi.set_topology(&file));
            self.tables.reports.send(pmi.started());
            Ok(())
        })
    }

    /// Starts and registers a rank. Adds the signaller of its process to `signallers`.
    fn start_rank(
        &self,
        spec: &JobSpec,
        planned: &PlannedRank<'_>,
        spawner: &Spawner,
        mpi: &MpiJob,
        signallers: &mut Vec<Signaller>,
    ) -> Result<(), LaunchError> {
        let rank = planned.rank;
        let pmi = mpi.pmi.as_ref();
        // Before the process, so that little time passes until its output is read.
        let streams = self
            .streams(
                &spec.nspace,
                rank,
                &spec.directives,
                spec.nprocs(),
                spec.interaction(rank, own_interaction),
            )
            .map_err(|source| LaunchError::Rings { rank, source })?;
        let mut process = process_spec(spec, planned, self.server());
        let (socket, passed) = match pmi {
            None => (None, None),
            Some(pmi) => {
                let (ours, theirs) = pmi::socket().map_err(|source| LaunchError::Pmi { rank, source })?;
                process.app.env.extend(pmi.variables(rank));
                (Some(ours), Some(theirs))
            }
        };
        if let Some(pmix) = &mpi.pmix {
            process.app.env.extend(pmix.variables(rank));
        }
        let spawned = spawner.spawn(process, passed);
        let Spawned { child, stdin, outputs, pty } =
            spawned.map_err(|source| planned.spawn_failed(source))?;
        signallers.push(child.signaller());
        let highest = outputs.iter().map(AsRawFd::as_raw_fd).max().unwrap_or(-1);
        check_files_of_rank(highest, &self.caches).map_err(|files| LaunchError::RankFiles { rank, files })?;
        if let Some((pmi, socket)) = pmi.zip(socket) {
            // Before the registration, so that what the rank reports precedes its exit. The socket is
            // not read before the report that all ranks are started. An engine that is being dropped
            // refuses the registration.
            let _ = self.tables.reports.queue(pmi.report(rank, socket));
        }
        let running_rank = RunningRank {
            rank,
            child: Some(child),
            stdin,
            access: planned.stdin_access(spec),
            pipes: outputs,
            pty,
        };
        Ok(self.register_rank(&spec.nspace, running_rank, streams, spawner.first_writes())?)
    }

    /// Returns the value of `IOF_SERVER` for ranks. It is set even if it is empty: otherwise the
    /// ranks of an embedder that is itself a rank would inherit the socket of the embedder's
    /// engine.
    fn server(&self) -> &OsStr {
        self.socket().map(Path::as_os_str).unwrap_or_default()
    }
}

/// Checks a job before any of its ranks is started. Returns the number of files that this process
/// may open besides those of the job.
fn check_spec(
    spec: &JobSpec,
    needs: &MpiNeeds,
    server: &OsStr,
    caches: &CacheBudget,
) -> Result<u64, LaunchError> {
    let ranks = spec.nprocs();
    if ranks == 0 || ranks > u64::from(MAX_RANKS) {
        return Err(LaunchError::Ranks { asked: ranks });
    }
    if let Some(app) = spec.apps.iter().position(|app| app.nprocs == 0) {
        return Err(LaunchError::EmptyApp { app });
    }
    let named = spec.ptys.keys().filter(|rank| **rank != Rank::WILDCARD);
    if let Some(&rank) = named.max()
        && u64::from(rank.0) >= ranks
    {
        return Err(LaunchError::UnknownPtyRank { rank, ranks });
    }
    check_stdin(spec, ranks)?;
    let ptys = if spec.ptys.contains_key(&Rank::WILDCARD) { ranks } else { spec.ptys.len() as u64 };
    let open =
        planned_ranks(spec).filter(|planned| spec.stdin_of(planned.rank) == Stdin::Pipe).count() as u64;
    let started = planned_ranks(spec).count() as u64;
    if started == 0 {
        return Err(LaunchError::Ranks { asked: 0 });
    }
    if spec.mpi != Mpi::None && spec.mpi_nodes.is_none() && (spec.elsewhere || started < ranks) {
        return Err(LaunchError::MpiElsewhere);
    }
    binding::cores(spec, planned_ranks(spec).count())?;
    if let Some(program) = &spec.pmix_tools {
        let found = pmix_tools::server_program(program);
        found.map_err(|source| LaunchError::PmixTools { program: program.clone(), source })?;
    }
    if needs.is_mixed(spec.mpi) {
        return Err(LaunchError::MixedMpi);
    }
    let needed = started.saturating_mul(FILES_PER_RANK).saturating_add(ptys).saturating_add(open);
    let needed = needed.saturating_add(TRANSIENT_FDS).saturating_add(needs.files(spec));
    let spare_files =
        check_files_of_job(needed, caches).map_err(|files| LaunchError::Files { ranks: started, files })?;
    check_maps_of_job(started.saturating_mul(MAPS_PER_RANK), caches)
        .map_err(|maps| LaunchError::Maps { ranks: started, maps })?;
    // All ranks of an app run the same program in the same directory, so it is enough to check the
    // first.
    for planned in first_ranks(spec) {
        check(&process_spec(spec, &planned, server)).map_err(|source| planned.spawn_failed(source))?;
    }
    let mut files = BTreeSet::new();
    for planned in planned_ranks(spec) {
        // Ranks of an app can differ in the file that is their stdin.
        if let Stdin::File(path) = spec.stdin_of(planned.rank)
            && files.insert(path)
        {
            check(&process_spec(spec, &planned, server)).map_err(|source| planned.spawn_failed(source))?;
        }
    }
    Ok(spare_files)
}

/// Checks that each rank can have the stdin that the spec gives it.
fn check_stdin(spec: &JobSpec, ranks: u64) -> Result<(), LaunchError> {
    let named = spec.stdin.keys().filter(|rank| **rank != Rank::WILDCARD);
    if let Some(&rank) = named.max()
        && u64::from(rank.0) >= ranks
    {
        return Err(LaunchError::UnknownStdinRank { rank, ranks });
    }
    let mut sharers = 0usize;
    for PlannedRank { rank, .. } in planned_ranks(spec) {
        match spec.stdin_of(rank) {
            Stdin::Inherit => sharers = sharers.saturating_add(1),
            Stdin::Pipe | Stdin::File(_) if spec.pty(rank).is_some() => {
                return Err(LaunchError::StdinOfPty { rank });
            }
            // A file without accessible metadata is refused when it is opened.
            Stdin::File(path) if path.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo()) => {
                return Err(LaunchError::StdinFifo { rank, path });
            }
            Stdin::Null | Stdin::Pipe | Stdin::File(_) => {}
        }
    }
    if sharers > 1 { Err(LaunchError::SharedStdin { sharers }) } else { Ok(()) }
}
