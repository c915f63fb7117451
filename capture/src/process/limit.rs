//! The limits on open files and memory maps. Both can be checked before many files or maps are
//! needed. The limit on open files is raised for this process and restored for its children.

use std::fs;
use std::io;
use std::sync::OnceLock;

use iof_shm_ring::maps_in_use;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// The soft limit before the first [`raise_file_limit`].
static ORIGINAL: OnceLock<rlim_t> = OnceLock::new();

/// Raises this process's soft limit on open files (`RLIMIT_NOFILE`, see getrlimit(2)) to the hard
/// limit, and returns the hard limit. With three pipes for each rank, the usual soft limit of 1024
/// is soon exceeded.
///
/// Processes started by [`spawn`](crate::spawn) get the original soft limit, because programs that
/// use select(2) break with descriptors above 1024. May be called from any thread, any number of
/// times.
///
/// # Errors
/// The kernel's error if it refuses to read or set the limit, for example because of a seccomp
/// filter. Raising the soft limit to the hard limit needs no privilege.
pub fn raise_file_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    ORIGINAL.get_or_init(|| soft);
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(hard)
}

/// An error: the limit on open files is too low for the files that are about to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{needed} open files are needed besides the {open} that are open, and RLIMIT_NOFILE is {limit}: raise it to {} \
     (`ulimit -n`)",
    needed.saturating_add(*open)
)]
pub struct TooFewFiles {
    /// The number of files to be opened.
    pub needed: u64,
    /// The number of files that are open.
    pub open: u64,
    /// The soft `RLIMIT_NOFILE`.
    pub limit: u64,
}

/// Checks whether this process may open `needed` more files, given the soft limit and the files
/// that are open now (listed in /proc/self/fd; without /proc, none are counted). Returns the number
/// of files that it may open besides.
///
/// # Errors
/// [`TooFewFiles`] if the limit is too low.
pub fn check_files(needed: u64) -> Result<u64, TooFewFiles> {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    let open = open_files(limit);
    limit.checked_sub(needed.saturating_add(open)).ok_or(TooFewFiles { needed, open, limit })
}

/// Returns the number of files that this process has open, or 0 if there is no /proc.
fn open_files(limit: u64) -> u64 {
    // From Linux 6.2 on, the size of the directory is the number of files. On older kernels the
    // size is 0, and the files must be listed, which takes longer with each file.
    match fs::metadata("/proc/self/fd").map(|directory| directory.len()) {
        Ok(0) => {}
        // Inherited files may have numbers beyond the limit.
        Ok(open) => return open.min(limit),
        Err(_) => return 0,
    }
    match fs::read_dir("/proc/self/fd") {
        // One of them is the directory that is being listed.
        Ok(files) => u64::try_from(files.count()).unwrap_or(u64::MAX).saturating_sub(1),
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => limit,
        Err(_) => 0,
    }
}

/// An error: the limit on memory maps is too low for the maps that are about to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{needed} memory maps are needed besides the {used} in use, and vm.max_map_count is {limit}: have it set to {} \
     (`sysctl vm.max_map_count`)",
    needed.saturating_add(*used)
)]
pub struct TooFewMaps {
    /// The number of maps to be created.
    pub needed: u64,
    /// The number of maps in use.
    pub used: u64,
    /// The sysctl `vm.max_map_count`, see proc_sys_vm(5).
    pub limit: u64,
}

/// Checks whether this process may create `needed` more memory maps, given the limit in
/// /proc/sys/vm/max_map_count and the maps in /proc/self/maps. Succeeds without counting the maps,
/// which takes time, if `needed` and those of rings and inlets are at most a sixteenth of the
/// limit. Succeeds without /proc.
///
/// # Errors
/// [`TooFewMaps`] if the limit is too low.
pub fn check_maps(needed: u64) -> Result<(), TooFewMaps> {
    let limit = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    let Some(limit) = limit.and_then(|limit| limit.trim().parse().ok()) else { return Ok(()) };
    if needed.saturating_add(maps_in_use()) <= limit / 16 {
        return Ok(());
    }
    let maps = fs::read("/proc/self/maps").unwrap_or_default();
    let used = u64::try_from(maps.iter().filter(|byte| **byte == b'\n').count()).unwrap_or(u64::MAX);
    if needed.saturating_add(used) > limit { Err(TooFewMaps { needed, used, limit }) } else { Ok(()) }
}

/// Returns the soft and the hard limit on open files for a child, or `None` if this process has not
/// raised its own.
pub(crate) fn for_children() -> Option<(rlim_t, rlim_t)> {
    let soft = *ORIGINAL.get()?;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    Some((soft.min(hard), hard))
}
