//! The files and memory maps that ranks, tools and pushes may use.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use iof_capture::check_files;
use iof_log::Syslog;
use iof_proto::{Failure, Status};
use iof_shm_ring::{CreateError, Inlet, Stream, StreamConfig};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::gethostname;

use crate::core::resources::Resources;

/// File descriptors of a rank in the engine: three pipes, three rings, a pidfd and a socket for
/// MPI. A pty is one more.
pub(crate) const FILES_PER_RANK: u64 = 8;
/// Memory maps of a rank in the engine: two for each of its three rings. Readers in this process
/// use the same maps.
pub(crate) const MAPS_PER_RANK: u64 = 6;
/// File descriptors that a job needs temporarily: the last rank's ends of its pipes, and those that
/// std uses to start it.
pub(crate) const TRANSIENT_FDS: u64 = 16;

/// Number of files that connections and pushes of tools leave to the job. It needs them for new
/// generations.
const RESERVED_FILES: u64 = 32;

/// Returns how many files this process may open.
pub(crate) fn file_limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft)
}

/// Checks that a file that was opened for a tool leaves [`RESERVED_FILES`] to the job.
///
/// # Errors
/// Too few files are left.
pub(crate) fn check_spare_files(file: BorrowedFd<'_>) -> Result<(), Failure> {
    // The kernel assigns the lowest free number, so a high number means that few files are left.
    let number = u64::try_from(file.as_raw_fd()).unwrap_or(u64::MAX);
    let limit = file_limit();
    if number.saturating_add(RESERVED_FILES) < limit {
        return Ok(());
    }
    let reason = format!(
        "too many open files: the limit is {limit}, and the engine keeps the last {RESERVED_FILES} for its job"
    );
    Err(Failure::new(Status::ERR_OUT_OF_RESOURCE, reason))
}

/// Memory files of this process, and the files of this node.
pub(crate) struct NodeFiles {
    pub syslog: Syslog,
}

impl Resources for NodeFiles {
    fn inlet(&self, capacity: u64) -> Result<Inlet, Failure> {
        let inlet = Inlet::create(capacity, "stdin").map_err(|error| out_of_resources(&error))?;
        check_spare_files(inlet.as_fd())?;
        Ok(inlet)
    }

    fn log_stream(&self, config: StreamConfig, label: &str) -> Result<Stream, Failure> {
        check_files(TRANSIENT_FDS.saturating_add(1)).map_err(|error| out_of_resources(&error))?;
        Stream::create(config, label).map_err(|error| out_of_resources(&error))
    }

    fn delivered_stream(&self, config: StreamConfig, label: &str) -> Result<Stream, CreateError> {
        Stream::create(config, label)
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
