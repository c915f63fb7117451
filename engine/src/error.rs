//! What can go wrong, one enum for each operation.

use std::io;
use std::path::PathBuf;

use iof_capture::{AddError, SpawnError, TooFewFiles, TooFewMaps};
use iof_proto::rendezvous::BindError;
use iof_proto::{Nspace, Rank};
use iof_shm_ring::CreateError;

use crate::register::FILES_PER_RANK;

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The pipes can't be read the way the engine reads them.
    #[error(transparent)]
    Capture(#[from] iof_capture::StartError),
    /// Tools could not find it.
    #[error(transparent)]
    Rendezvous(#[from] BindError),
    /// The process may open fewer files than an engine with a small job needs.
    #[error("an engine and one rank do not fit: {0}, and by {FILES_PER_RANK} more for each further rank")]
    Files(#[from] TooFewFiles),
    /// The process may not have another thread.
    #[error(
        "no thread for the engine: {source}; raise RLIMIT_NPROC (`ulimit -u`), the cgroup's pids.max or RLIMIT_AS \
         (`ulimit -v`)"
    )]
    Thread {
        /// The kernel's word, see clone(2).
        source: io::Error,
    },
    /// The control thread can't be set up.
    #[error("the control thread: {0}")]
    Control(#[from] io::Error),
}

/// Why a job did not start. What was started of it has been killed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// There is a job of that name.
    #[error("there is a job {0} already: choose another name")]
    NameTaken(Nspace),
    /// No ranks, or more than rank numbers.
    #[error("a job of {asked} ranks is not possible: ask for 1 to {limit}", limit = MAX_RANKS)]
    Ranks {
        /// Ranks asked for, all apps together.
        asked: u64,
    },
    /// An app without ranks.
    #[error("app {app} has no ranks: ask for 1 at least, or leave it out")]
    EmptyApp {
        /// Which, from 0 on.
        app: usize,
    },
    /// A pty for a rank that the job does not have.
    #[error("there is no rank {rank} to give a pty: the job has {ranks} ranks, from 0 on")]
    NoSuchRank {
        /// Which.
        rank: Rank,
        /// How many there are.
        ranks: u64,
    },
    /// Stdin for a rank that the job does not have.
    #[error("there is no rank {rank} to give stdin: the job has {ranks} ranks, from 0 on")]
    NoStdin {
        /// Which.
        rank: Rank,
        /// How many there are.
        ranks: u64,
    },
    /// Several ranks would take each other's bytes.
    #[error("{sharers} ranks can't share the embedder's stdin: push it to them instead")]
    SharedStdin {
        /// How many.
        sharers: usize,
    },
    /// A rank that reads its terminal is to read something else.
    #[error("rank {rank} has a pty, which is its stdin: it can read neither a file nor what is pushed")]
    StdinOfPty {
        /// Which.
        rank: Rank,
    },
    /// To open a FIFO lasts until somebody writes there, and its bytes are there for one reader
    /// only.
    #[error("rank {rank} can't have {} as stdin, which is a FIFO: redirect the launcher's own stdin from it", path.display())]
    StdinFifo {
        /// Whose.
        rank: Rank,
        /// Which.
        path: PathBuf,
    },
    /// The process may open fewer files than the job needs.
    #[error("{ranks} ranks do not fit: {files}, or start fewer ranks")]
    Files {
        /// Ranks asked for.
        ranks: u64,
        /// How many files are open, needed and allowed.
        files: TooFewFiles,
    },
    /// The process may make fewer memory maps than the job needs.
    #[error("{ranks} ranks do not fit: {maps}, or start fewer ranks")]
    Maps {
        /// Ranks asked for.
        ranks: u64,
        /// How many maps are there, needed and allowed.
        maps: TooFewMaps,
    },
    /// A rank could not be started.
    #[error("{source} (rank {rank} of app {app})")]
    Spawn {
        /// Which.
        rank: Rank,
        /// The number of its app, from 0 on.
        app: usize,
        /// Why.
        source: SpawnError,
    },
    /// There is no memory for a rank's rings.
    #[error("{source} (rank {rank})")]
    Rings {
        /// Which.
        rank: Rank,
        /// Why.
        source: CreateError,
    },
    /// The capture thread has ended.
    #[error(transparent)]
    Capture(#[from] AddError),
}

/// Ranks in one job.
pub const MAX_RANKS: u32 = 1 << 20;
