//! What an embedder decides: how the engine caches, where tools find it, what a job is.

use std::ffi::OsString;
use std::path::PathBuf;

use iof_capture::BackendKind;
use iof_proto::{Nspace, Rank};
use iof_shm_ring::Policy;

/// Bytes of cache for each source and channel, unless the embedder says otherwise.
pub const DEFAULT_CACHE_SIZE: u32 = 1 << 20;

/// How an engine behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes of cache for each source and channel (`PMIX_IOF_CACHE_SIZE`).
    pub cache_size: u32,
    /// What happens when a cache is full.
    pub policy: Policy,
    /// What to read the ranks' pipes with; `None`: io_uring if the kernel gives one, else epoll.
    pub backend: Option<BackendKind>,
    /// Where tools find this engine.
    pub rendezvous: Rendezvous,
}

impl Default for Config {
    /// A megabyte for each stream, the RFC's drop newest, the best backend there is, and the usual rendezvous
    /// directory.
    fn default() -> Self {
        Config {
            cache_size: DEFAULT_CACHE_SIZE,
            policy: Policy::DropNewest,
            backend: None,
            rendezvous: Rendezvous::UserDirectory,
        }
    }
}

/// Where tools find an engine (RFC0001).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// Nowhere: only the embedding process attaches.
    None,
    /// In the user's own directory below TMPDIR, TEMP, TMP or /tmp.
    UserDirectory,
    /// In this directory.
    Directory(PathBuf),
}

/// A job: the same program in a number of ranks.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// The job's name.
    pub nspace: Nspace,
    /// How many ranks, 1 at least.
    pub nprocs: u32,
    /// What each rank runs; looked up in PATH if it has no slash.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// The rank that shares the embedder's stdin; all others read /dev/null.
    pub stdin: Option<Rank>,
}
