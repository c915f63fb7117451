//! The watch of started jobs, also for ranks that are alone, as their job's protocol is not that of their MPI library. The
//! text of a shell does not show which library it uses; the memory of the running processes does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter::repeat_n;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crossbeam::channel::Sender;
use iof_engine::{Engine, Job, Mpi};
use iof_pmix_server::is_launcher;
use iof_proto::Rank;
use iof_proto::ranges::listed;

use crate::error::Failure;
use crate::events::job_event::JobEvent;
use crate::processes::threads::start_thread;

/// The times between the looks at the ranks. A script may import its MPI library late.
const LOOKS: [Duration; 6] = [
    Duration::from_millis(100),
    Duration::from_millis(150),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];
/// The time between the looks, and their number, once a rank has opened such a library: it may
/// initialise it and end soon.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const LOOKS_AGAIN: usize = 500;
/// The largest number of ranks that are looked at, and of processes of each: a rank with its
/// children, such as those of a shell.
const MAX_WATCHED_RANKS: usize = 8;
const MAX_WATCHED_PROCESSES: usize = 8;
/// The number of ranks that are alone from which on the job is ended. One may be a tool of its own.
const TOO_MANY_ALONE: usize = 2;

/// Parts of the names of the shared memory that a process has mapped or open once it has initialised
/// MPI. Open MPI 5 opens the last one first, 1 s before the others if the process is alone.
const SEGMENTS: [&str; 4] = ["/sm_segment.", "/vader_segment.", "/mpich_sh", "/dev/shm/open_mpi."];

/// An MPI library that the protocol of a job does not serve.
enum Unserved {
    /// Open MPI 5, with the path of its libpmix unless it has another name.
    OpenMpi(Option<String>),
    OldOpenMpi,
    /// MPICH or a relative.
    Mpich,
}

impl Unserved {
    /// Returns the library of a process with these mapped files, unless it is served.
    fn of(maps: &str, has_pmix: bool) -> Option<Unserved> {
        let libpmix = maps.lines().find(|line| line.contains("/libpmix.so."));
        if maps.contains("/libmpi.so.40") {
            let path = libpmix.and_then(|line| Some(line.get(line.find('/')?..)?.to_owned()));
            let is_old = maps.contains("/libopen-rte.so.");
            let library = if is_old { Self::OldOpenMpi } else { Self::OpenMpi(path) };
            return Some(library).filter(|_| is_old || !has_pmix);
        }
        let is_mpich = maps.contains("/libmpi.so.12") || maps.contains("/libmpich.so");
        // The latter is Intel MPI in Python. One with libpmix was built with PMIx.
        let is_mpich = is_mpich || maps.lines().any(|line| line.ends_with("/libmpi.so"));
        (is_mpich && has_pmix && libpmix.is_none()).then_some(Self::Mpich)
    }

    /// Returns the start of the variable that a launcher which serves the library sets.
    fn variable(&self) -> &'static str {
        match self {
            Unserved::OpenMpi(_) | Unserved::OldOpenMpi => "PMIX_RANK=",
            Unserved::Mpich => "PMI_RANK=",
        }
    }

    fn remedy(&self, mpi: Mpi) -> String {
        match self {
            Unserved::OpenMpi(None) => "Open MPI needs PMIx: choose --mpi pmix".into(),
            Unserved::OpenMpi(Some(library)) if mpi == Mpi::Auto => {
                format!("Open MPI needs PMIx: set IOF_LIBPMIX={library}")
            }
            Unserved::OpenMpi(Some(library)) => {
                format!("Open MPI needs PMIx: choose --mpi pmix and set IOF_LIBPMIX={library}")
            }
            Unserved::OldOpenMpi => "Open MPI 4 needs its own mpirun: use that, or Open MPI 5".into(),
            Unserved::Mpich => "MPICH and Intel MPI need PMI-1: choose --mpi pmi1".into(),
        }
    }
}

/// Starts the threads that accompany a started job: one that runs `report`, and unless the job has one
/// rank or serves no MPI, one that looks a few times at the libraries of some ranks. The latter sends
/// [`JobEvent::Alone`] at most twice. `ranks` is the number of the ranks that run here.
pub fn watch_job(
    engine: &Engine,
    job: &Job,
    (ranks, mpi): (u64, Mpi),
    events: &Sender<JobEvent>,
    report: impl FnOnce(&Job) + Send + 'static,
) -> Result<(), Failure> {
    let reported = job.clone();
    start_thread("iof-job", move || report(&reported))?;
    if ranks < 2 || mpi == Mpi::None {
        return Ok(());
    }
    let has_pmix = engine.pmix_library(job).is_some();
    let (job, events) = (job.clone(), events.clone());
    start_thread("iof-singletons", move || {
        let mut pauses: Vec<Duration> = LOOKS.into_iter().rev().collect();
        let (mut is_told, mut alone) = (false, BTreeSet::new());
        while let Some(pause) = pauses.pop() {
            thread::sleep(pause);
            let found = unserved_ranks(&job, has_pmix);
            // A rank that was told to start MPI need not have done so yet.
            let are_alone = found.iter().filter(|(_, rank)| rank.has_initialised || mpi != Mpi::Auto);
            alone.extend(are_alone.map(|(rank, _)| *rank));
            let Some(first) = found.values().next() else { continue };
            let ends_job = alone.len() >= TOO_MANY_ALONE;
            let (subject, intent) = match (ends_job, mpi) {
                (false, _) => ("each rank that starts MPI is alone".into(), ""),
                (true, Mpi::Auto) => {
                    (format!("ranks {} have started MPI, each alone", listed(&alone)), INTENT)
                }
                (true, _) => (format!("ranks {} would be alone", listed(&alone)), INTENT),
            };
            let (nspace, remedy) = (job.nspace().clone(), first.library.remedy(mpi));
            let line = format!("job {nspace}: {subject}, because {remedy}{intent}");
            if !is_told || ends_job {
                // The send fails only when the job is over.
                let _ = events.send(JobEvent::Alone { nspace, line, ends_job });
                is_told = true;
                pauses = repeat_n(LOOK_AGAIN, if ends_job { 0 } else { LOOKS_AGAIN }).collect();
            }
        }
    })
}

/// The remedy for a job that was not meant to be one of MPI.
const INTENT: &str = ", or --mpi none if ranks are to be alone";

/// A rank with a library that its job does not serve.
struct UnservedRank {
    library: Unserved,
    has_initialised: bool,
}

/// Looks at the running ranks.
fn unserved_ranks(job: &Job, has_pmix: bool) -> BTreeMap<Rank, UnservedRank> {
    let running = job.pids().into_iter().filter_map(|pid| Some((pid, job.rank_of_process(pid)?)));
    let mut found = BTreeMap::new();
    for (pid, rank) in running.take(MAX_WATCHED_RANKS) {
        let mut processes = vec![pid.to_string()];
        let mut index = 0usize;
        while let Some(pid) = processes.get(index).filter(|_| index < MAX_WATCHED_PROCESSES).cloned() {
            index = index.saturating_add(1);
            // Its ranks are not this job's.
            if is_launcher(Path::new(read(&pid, "comm").trim_end())) {
                continue;
            }
            let maps = read(&pid, "maps");
            if let Some(library) = Unserved::of(&maps, has_pmix)
                && !read(&pid, "environ").split('\0').any(|it| it.starts_with(library.variable()))
            {
                let has_initialised = has_initialised(&pid, maps);
                found.insert(rank, UnservedRank { library, has_initialised });
            }
            processes.extend(children(&pid));
        }
    }
    found
}

/// Returns whether a process with these mapped files has initialised MPI.
fn has_initialised(pid: &str, maps: String) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let open = files.filter_map(|file| Some(fs::read_link(file.path()).ok()?.display().to_string()));
    open.chain([maps]).any(|files| SEGMENTS.iter().any(|segment| files.contains(segment)))
}

/// Reads a file about a process. Returns nothing if the process has ended.
fn read(pid: &str, file: &str) -> String {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the pids of the children of a process.
pub fn children(pid: &str) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
    lists.flat_map(|list| list.split_ascii_whitespace().map(str::to_owned).collect::<Vec<String>>()).collect()
}
