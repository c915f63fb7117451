//! The files and memory maps that ranks, tools and pushes may use.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use iof_capture::{TooFewFiles, TooFewMaps, check_files, check_maps};
use iof_core::MemorySource;
use iof_log::Syslog;
use iof_proto::{Channel, Failure, Status};
use iof_shm_ring::{CacheBudget, CreateError, Inlet, ReaderId, ReaderPage, Stream, StreamConfig};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::gethostname;

/// The streams of a rank.
const STREAMS: u64 = Channel::OUTPUTS.len() as u64;
/// File descriptors of a rank in the engine: a pipe and a ring for each of its streams, a pidfd and a
/// socket for MPI. A pty is one more. A stream without bytes has no ring yet, but its file is reserved.
pub(crate) const FILES_PER_RANK: u64 = 2 * STREAMS + 2;
const MAPS_PER_RING: u64 = 2;
/// Memory maps of a rank in the engine. Readers in this process use the same maps.
pub(crate) const MAPS_PER_RANK: u64 = STREAMS * MAPS_PER_RING;
/// File descriptors that a job needs temporarily: the last rank's ends of its pipes, the seats in which
/// it gets them, and those that std uses to start it. With them count the two of the guardian.
pub(crate) const TRANSIENT_FDS: u64 = 2 * STREAMS + 12;

/// Number of files that connections and pushes of tools leave to the job. It needs them for new
/// generations.
const RESERVED_FILES: u64 = 32;

/// Returns how many files this process may open.
pub(crate) fn file_limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft)
}

/// Returns whether the address space of this process (`ulimit -v`) or the size of its files
/// (`ulimit
/// -f`), which memory files are, too, is limited.
pub(crate) fn is_memory_limited() -> bool {
    let is_limited = |limit| getrlimit(limit).is_ok_and(|(soft, _)| soft != RLIM_INFINITY);
    is_limited(Resource::RLIMIT_AS) || is_limited(Resource::RLIMIT_FSIZE)
}

/// Checks that a file that was opened for a tool leaves [`RESERVED_FILES`] to the jobs, and one for
/// each stream that has no memory yet.
///
/// # Errors
/// Too few files are left.
pub(crate) fn check_spare_files(file: BorrowedFd<'_>, caches: &CacheBudget) -> Result<(), Failure> {
    // The kernel assigns the lowest free number, so a high number means that few files are left.
    let number = u64::try_from(file.as_raw_fd()).unwrap_or(u64::MAX);
    let limit = file_limit();
    let reserved = RESERVED_FILES.saturating_add(caches.owed_rings());
    if number.saturating_add(reserved) < limit {
        return Ok(());
    }
    let reason = format!(
        "too many open files: the limit is {limit}, and the engine keeps the last {reserved} for its jobs"
    );
    Err(Failure::new(Status::ERR_OUT_OF_RESOURCE, reason))
}

/// Checks that a job may open `needed` files besides those of streams that have no memory yet.
/// Returns the number of files that remain.
pub(crate) fn check_files_of_job(needed: u64, caches: &CacheBudget) -> Result<u64, TooFewFiles> {
    check_files(needed.saturating_add(caches.owed_rings()))
}

/// Checks that the pipes of a rank, which were opened after [`check_files_of_job`], leave a file to
/// each stream that has no memory yet: another job may have been checked in between, and opens
/// files, too. `highest` is the highest descriptor of the rank's pipes.
///
/// # Errors
/// [`TooFewFiles`] if it is one of those that the streams need.
pub(crate) fn check_files_of_rank(highest: RawFd, caches: &CacheBudget) -> Result<(), TooFewFiles> {
    // The kernel assigns the lowest free number, so all lower ones are open.
    let open = u64::try_from(highest).unwrap_or(u64::MAX).saturating_add(1);
    let (needed, limit) = (caches.owed_rings(), file_limit());
    if open.saturating_add(needed) <= limit { Ok(()) } else { Err(TooFewFiles { needed, open, limit }) }
}

/// Checks that a job may create `needed` memory maps besides those of streams that have no memory
/// yet.
pub(crate) fn check_maps_of_job(needed: u64, caches: &CacheBudget) -> Result<(), TooFewMaps> {
    check_maps(needed.saturating_add(caches.owed_rings().saturating_mul(MAPS_PER_RING)))
}

/// Memory files of this process, and the files of this node.
pub(crate) struct EngineFiles {
    pub syslog: Syslog,
    /// The caches of all streams.
    pub caches: Arc<CacheBudget>,
}

impl MemorySource for EngineFiles {
    fn prepare_slot(&self, page: &ReaderPage, slot: ReaderId) -> Result<(), CreateError> {
        page.prepare_slot(slot)
    }

    fn inlet(&self, capacity: u64) -> Result<Inlet, Failure> {
        let inlet = Inlet::create(capacity, "stdin").map_err(|error| out_of_resources(&error))?;
        check_spare_files(inlet.as_fd(), &self.caches)?;
        Ok(inlet)
    }

    fn log_stream(&self, config: StreamConfig, label: &str) -> Result<Stream, Failure> {
        check_files_of_job(TRANSIENT_FDS.saturating_add(1), &self.caches)
            .map_err(|error| out_of_resources(&error))?;
        self.delivered_stream(config, label).map_err(|error| out_of_resources(&error))
    }

    fn delivered_stream(&self, config: StreamConfig, label: &str) -> Result<Stream, CreateError> {
        Stream::create_beside(config, label, &self.caches)
    }

    fn has_syslog(&self) -> bool {
        self.syslog.exists()
    }
}

fn out_of_resources(error: &dyn ToString) -> Failure {
    Failure::new(Status::ERR_OUT_OF_RESOURCE, error.to_string())
}

/// Returns this node's name, as process tables show it.
pub(crate) fn node_name() -> io::Result<String> {
    Ok(gethostname()?.to_string_lossy().into_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use iof_shm_ring::{Growth, Policy};

    use super::*;

    #[test]
    fn a_rank_is_refused_if_its_pipes_take_the_files_of_streams_without_memory() {
        const OWED: u64 = 10;
        let growth = Growth { first: 4096, budget: Arc::new(CacheBudget::new(u64::MAX)) };
        let config = StreamConfig { capacity: 4096, policy: Policy::Block };
        let stream = |_| Stream::create_growing(config, &growth, "silent").unwrap();
        let streams: Vec<Stream> = (0..OWED).map(stream).collect();
        let limit = file_limit();
        let check = |open: u64| check_files_of_rank(open as RawFd - 1, &growth.budget);
        assert_eq!(check(limit - OWED), Ok(()));
        let refused = TooFewFiles { needed: OWED, open: limit - OWED + 1, limit };
        assert_eq!(check(limit - OWED + 1), Err(refused));
        drop(streams);
        assert_eq!(check(limit - OWED + 1), Ok(()));
    }
}
