//! The limit on open files: high for us, as it was for the children.

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

/// The soft and hard limit that a child is to have; `None` if it needs no change.
pub(crate) fn for_children() -> Option<(rlim_t, rlim_t)> {
    let soft = *ORIGINAL.get()?;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    Some((soft.min(hard), hard))
}
