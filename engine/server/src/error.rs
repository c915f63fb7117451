//! Errors of starting an engine and of launching a job.

use std::io;
use std::path::PathBuf;

use iof_capture::{SpawnError, Stopped, TooFewFiles, TooFewMaps};
use iof_core::MAX_RANKS;
use iof_proto::rendezvous::BindError;
use iof_proto::{Nspace, Rank};
use iof_shm_ring::CreateError;

use crate::tables::files::FILES_PER_RANK;

/// The reason why an engine did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The capture thread can't be started.
    #[error(transparent)]
    Capture(#[from] iof_capture::StartError),
    /// The rendezvous point can't be opened.
    #[error(transparent)]
    Rendezvous(#[from] BindError),
    /// The process may open fewer files than an engine with a job of one rank needs.
    #[error(
        "too few files for an engine and one rank: {0}, and by {FILES_PER_RANK} more for each further rank"
    )]
    Files(#[from] TooFewFiles),
    /// The control thread can't be created.
    #[error(
        "cannot create a thread: {source}; raise RLIMIT_NPROC (`ulimit -u`), the cgroup's pids.max or RLIMIT_AS \
         (`ulimit -v`)"
    )]
    Thread {
        /// The error of clone(2).
        source: io::Error,
    },
    /// The control thread can't be set up.
    #[error("cannot set up the control thread: {0}")]
    Control(#[from] io::Error),
}

/// The reason why a job did not start. Ranks that were started already have been killed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Another job has this name.
    #[error("job {0} already exists: choose another name")]
    NameTaken(Nspace),
    /// The job has no rank, or more ranks than [`MAX_RANKS`].
    #[error("invalid number of ranks {asked}: expected 1 to {limit}", limit = MAX_RANKS)]
    Ranks {
        /// The number of ranks of all apps together.
        asked: u64,
    },
    /// A rank got no socket for PMI.
    #[error(
        "cannot create the PMI socket of rank {rank} ({source}): raise `ulimit -n`, or start fewer ranks"
    )]
    Pmi {
        /// The rank.
        rank: Rank,
        /// The error of socketpair(2).
        source: io::Error,
    },
    /// The job has no PMIx server ([`Mpi::Pmix`](crate::Mpi::Pmix)).
    #[error("{0}; {remedy}, or choose another protocol for MPI", remedy = pmix_remedy(.0))]
    Pmix(#[from] PmixError),
    /// The program that serves tools of PMIx cannot be executed
    /// ([`JobSpec::pmix_tools`](crate::JobSpec::pmix_tools)).
    #[error("cannot execute {} ({source}), which is to serve tools of PMIx: name the command iof", program.display())]
    PmixTools {
        /// The program.
        program: PathBuf,
        /// The error of access(2).
        source: io::Error,
    },
    /// The engine is to serve MPI to a job that has ranks elsewhere.
    #[error(
        "MPI programs run on one node only, and the job has ranks elsewhere: set JobSpec::mpi to Mpi::None"
    )]
    MpiElsewhere,
    /// The job has programs of MPICH and of Open MPI, which cannot be one world.
    #[error(
        "some programs of the job are linked with MPICH and others with Open MPI: link all with one library, or \
         start them without MPI"
    )]
    MixedMpi,
    /// Each rank would be alone, because the job's protocol ([`JobSpec::mpi`](crate::JobSpec::mpi)) is
    /// not that of the MPI library.
    #[error("each rank would be alone: {0}")]
    Alone(&'static str),
    /// The job has more ranks than cores ([`Binding::Core`](crate::Binding::Core)).
    #[error("cannot bind {ranks} ranks to {cores} cores: start at most {cores} ranks, or do not bind them")]
    Cores {
        /// The number of ranks that this engine starts.
        ranks: usize,
        /// The number of cores on which the thread may run.
        cores: usize,
    },
    /// The processors of the thread cannot be read or set.
    #[error("cannot bind ranks to cores: {0}")]
    Binding(#[source] io::Error),
    /// An app has no ranks.
    #[error("app {app} has no ranks: ask for at least 1, or omit the app")]
    EmptyApp {
        /// The number of the app, from 0.
        app: usize,
    },
    /// [`JobSpec::ptys`](crate::JobSpec::ptys) names a rank that the job does not have.
    #[error(
        "invalid rank {rank} for a pty: the job has {ranks} {noun}, from 0",
        noun = if *.ranks == 1 { "rank" } else { "ranks" }
    )]
    UnknownPtyRank {
        /// The rank that does not exist.
        rank: Rank,
        /// The number of ranks in the job.
        ranks: u64,
    },
    /// [`JobSpec::stdin`](crate::JobSpec::stdin) names a rank that the job does not have.
    #[error(
        "invalid rank {rank} for stdin: the job has {ranks} {noun}, from 0",
        noun = if *.ranks == 1 { "rank" } else { "ranks" }
    )]
    UnknownStdinRank {
        /// The rank that does not exist.
        rank: Rank,
        /// The number of ranks in the job.
        ranks: u64,
    },
    /// More than one rank has [`Stdin::Inherit`](crate::Stdin::Inherit). Each byte of the
    /// embedder's stdin would reach only one of them.
    #[error("{sharers} ranks can't share the embedder's stdin: push it to them instead")]
    SharedStdin {
        /// The number of ranks with the embedder's stdin.
        sharers: usize,
    },
    /// A rank with a pty has [`Stdin::File`](crate::Stdin::File) or
    /// [`Stdin::Pipe`](crate::Stdin::Pipe).
    #[error("rank {rank} has a pty, which is its stdin: it can read neither a file nor pushed bytes")]
    StdinOfPty {
        /// The rank with the pty.
        rank: Rank,
    },
    /// A rank's stdin is a FIFO. Opening a FIFO blocks until a writer opens it, and each of its
    /// bytes reaches only one reader.
    #[error("rank {rank} can't have {} as stdin, which is a FIFO: redirect the launcher's own stdin from it", path.display())]
    StdinFifo {
        /// The rank with this stdin.
        rank: Rank,
        /// The path of the FIFO.
        path: PathBuf,
    },
    /// The process may open fewer files than the job needs.
    #[error("too few files for {ranks} ranks: {files}, or start fewer ranks")]
    Files {
        /// The number of ranks.
        ranks: u64,
        /// The numbers of open, required and allowed files.
        files: TooFewFiles,
    },
    /// Other files were opened meanwhile: too few are left for the streams of a rank. Ranks may have run.
    #[error("too few files for the streams of rank {rank}: {files}, or start fewer ranks")]
    RankFiles {
        /// The rank.
        rank: Rank,
        /// The numbers of open, required and allowed files.
        files: TooFewFiles,
    },
    /// The process may create fewer memory maps than the job needs.
    #[error("too few memory maps for {ranks} ranks: {maps}, or start fewer ranks")]
    Maps {
        /// The number of ranks.
        ranks: u64,
        /// The numbers of existing, required and allowed maps.
        maps: TooFewMaps,
    },
    /// A rank could not be started.
    #[error("{source} (rank {rank} of app {app})")]
    Spawn {
        /// The rank.
        rank: Rank,
        /// The number of its app, from 0.
        app: usize,
        /// The reason.
        source: SpawnError,
    },
    /// There is no memory for a rank's rings.
    #[error("{source} (rank {rank})")]
    Rings {
        /// The rank.
        rank: Rank,
        /// The reason.
        source: CreateError,
    },
    /// The capture thread has ended.
    #[error(transparent)]
    Capture(#[from] Stopped),
}

/// The reason why a job has no PMIx server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PmixError {
    /// The server did not start.
    #[error(transparent)]
    Start(#[from] iof_pmix_server::StartError),
    /// The server has not accepted the job.
    #[error(transparent)]
    Register(#[from] iof_pmix_server::RegisterError),
}

/// Returns what the user can do about a missing PMIx server.
fn pmix_remedy(error: &PmixError) -> &'static str {
    match error {
        PmixError::Start(iof_pmix_server::StartError::Directory { .. }) => {
            "set TMPDIR to a directory in which iof can create files"
        }
        _ => "name a libpmix.so.2 by the variable IOF_LIBPMIX",
    }
}
