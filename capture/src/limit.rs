//! The limits on open files and memory maps, looked at before many are needed; that on files is
//! high for us, and as it was for the children.

use std::fs;
use std::io;
use std::sync::OnceLock;

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// The soft limit from before [`raise_file_limit`].
static ORIGINAL: OnceLock<rlim_t> = OnceLock::new();

/// Raises this process's soft limit on open files (`RLIMIT_NOFILE`, see getrlimit(2)) to the hard
/// one, and gives that. Three pipes a rank go beyond the usual 1024 soon.
///
/// Processes started by [`spawn`](crate::spawn) get the original soft limit back: programs that use
/// select(2) break with descriptors above 1024. May be called from any thread, any number of times.
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

/// Finds out whether this process may open `needed` more files, by the soft limit and what it has
/// open now (in /proc/self/fd; without /proc by the limit alone).
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
    // Since Linux 6.2 the directory's size is the number of files. Before it is 0, and listing takes
    // longer with each file.
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

/// This process may not map as many pieces of memory as it is about to need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{needed} memory maps are needed besides the {used} that are there, and vm.max_map_count is {limit}: have it set to {} \
     (`sysctl vm.max_map_count`)",
    needed.saturating_add(*used)
)]
pub struct TooFewMaps {
    /// Maps to be made.
    pub needed: u64,
    /// Maps that are there.
    pub used: u64,
    /// The sysctl `vm.max_map_count`, see proc_sys_vm(5).
    pub limit: u64,
}

/// Finds out whether this process may make `needed` more memory maps, by /proc/sys/vm/max_map_count
/// and /proc/self/maps. Without /proc it may. Fewer than a sixteenth of the limit are not looked
/// at, because counting takes time.
///
/// # Errors
/// [`TooFewMaps`], with the numbers.
pub fn check_maps(needed: u64) -> Result<(), TooFewMaps> {
    let limit = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    let Some(limit) = limit.and_then(|limit| limit.trim().parse().ok()) else { return Ok(()) };
    if needed <= limit / 16 {
        return Ok(());
    }
    let maps = fs::read("/proc/self/maps").unwrap_or_default();
    let used = u64::try_from(maps.iter().filter(|byte| **byte == b'\n').count()).unwrap_or(u64::MAX);
    if needed.saturating_add(used) > limit { Err(TooFewMaps { needed, used, limit }) } else { Ok(()) }
}

/// The soft and hard limit that a child is to have; `None` if it needs no change.
pub(crate) fn for_children() -> Option<(rlim_t, rlim_t)> {
    let soft = *ORIGINAL.get()?;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    Some((soft.min(hard), hard))
}
