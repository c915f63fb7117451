//! The limit on open files: high for us, as it was for the children, and looked at before many are needed.

use std::fs;
use std::io;
use std::sync::OnceLock;

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// The soft limit from before [`raise_file_limit`].
static ORIGINAL: OnceLock<rlim_t> = OnceLock::new();

/// Raises this process's soft limit on open files (`RLIMIT_NOFILE`, see getrlimit(2)) to the hard one, and gives
/// that. Three pipes a rank go beyond the usual 1024 soon.
///
/// Processes started by [`spawn`](crate::spawn) get the original soft limit back: programs that use select(2) break
/// with descriptors above 1024. May be called from any thread, any number of times.
///
/// # Errors
/// When the kernel refuses, which it does not for a process that may lower its limits.
pub fn raise_file_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    ORIGINAL.get_or_init(|| soft);
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(hard)
}

/// This process may not open as many files as it is about to need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{needed} open files are needed besides the {open} that are open, and RLIMIT_NOFILE is {limit}: raise it to {} \
     (`ulimit -n`)",
    needed.saturating_add(*open)
)]
pub struct TooFewFiles {
    /// Files to be opened.
    pub needed: u64,
    /// Files that are open.
    pub open: u64,
    /// The soft `RLIMIT_NOFILE`.
    pub limit: u64,
}

/// Finds out whether this process may open `needed` more files, by the soft limit and what it has open now (in
/// /proc/self/fd; without /proc by the limit alone).
///
/// # Errors
/// [`TooFewFiles`], with the numbers.
pub fn check_files(needed: u64) -> Result<(), TooFewFiles> {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    let open = open_files(limit);
    if needed.saturating_add(open) > limit { Err(TooFewFiles { needed, open, limit }) } else { Ok(()) }
}

/// Returns how many files this process has open; 0 without /proc.
fn open_files(limit: u64) -> u64 {
    // Since Linux 6.2 the directory's size is the number of files. Before it is 0, and listing takes longer with each file.
    match fs::metadata("/proc/self/fd").map(|directory| directory.len()) {
        Ok(0) => {}
        // One that was inherited may have a number beyond the limit.
        Ok(open) => return open.min(limit),
        Err(_) => return 0,
    }
    match fs::read_dir("/proc/self/fd") {
        // One of them is for looking.
        Ok(files) => u64::try_from(files.count()).unwrap_or(u64::MAX).saturating_sub(1),
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => limit,
        Err(_) => 0,
    }
}

/// The soft and hard limit that a child is to have; `None` if it needs no change.
pub(crate) fn for_children() -> Option<(rlim_t, rlim_t)> {
    let soft = *ORIGINAL.get()?;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    Some((soft.min(hard), hard))
}
