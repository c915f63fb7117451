//! The budget that all streams of one owner share: the sum of the sizes of their rings, the limit
//! up to which they grow, and the rings that they have yet to allocate.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, LazyLock};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};

use crate::error::CreateError;
use crate::memory::map::{MAPS, maps_in_use};
use crate::sync::{AtomicU64, Ordering::Relaxed};

/// Number of files with higher numbers than the next free one that a process may have inherited.
const OTHER_FILES: u64 = 8;
/// Number of memory maps that are left to everything but rings and inlets.
const OTHER_MAPS: u64 = 1024;
/// The sysctl `vm.max_map_count`, see proc_sys_vm(5); no limit without /proc.
static MAX_MAPS: LazyLock<u64> = LazyLock::new(|| {
    let limit = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    limit.and_then(|limit| limit.trim().parse().ok()).unwrap_or(u64::MAX)
});

/// A count of the bytes of all rings that were created with it, and the limit up to which streams
/// grow ([`Growth`](crate::Growth)). Streams may be on different threads.
#[derive(Debug)]
pub struct CacheBudget {
    limit: u64,
    /// Only a count, so Relaxed suffices.
    used: AtomicU64,
    /// Only a count, so Relaxed suffices.
    owed: AtomicU64,
    /// Number of times that a stream found no memory for its first ring.
    refusals: AtomicU64,
}

impl CacheBudget {
    /// Creates a budget of `limit` bytes.
    pub fn new(limit: u64) -> CacheBudget {
        // Later, no file may be left to read it.
        LazyLock::force(&MAX_MAPS);
        CacheBudget { limit, used: AtomicU64::new(0), owed: AtomicU64::new(0), refusals: AtomicU64::new(0) }
    }

    /// Returns the sum of the sizes of all rings that exist, in bytes. A ring exists from its
    /// allocation until its stream and all readers in this process have left it.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Returns the number of streams that have no memory yet and have not ended. Each needs one
    /// file and two memory maps with its first byte, so whatever else opens files or creates maps
    /// should leave these.
    pub fn owed_rings(&self) -> u64 {
        self.owed.load(Relaxed)
    }

    /// Returns whether a ring of `bytes` bytes may be added to let a stream grow.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.used().saturating_add(bytes) <= self.limit
    }

    /// Counts a refusal of memory for a first ring. Returns whether it is the first one.
    pub(crate) fn is_first_refusal(&self) -> bool {
        self.refusals.fetch_add(1, Relaxed) == 0
    }

    /// Checks that a ring of `len` bytes with `file`, which is not the first one of its stream, leaves
    /// files and memory maps for the first rings of all streams.
    pub(crate) fn check(&self, file: Option<BorrowedFd<'_>>, len: u64) -> Result<(), CreateError> {
        let (Some(file), owed @ 1..) = (file, self.owed_rings()) else { return Ok(()) };
        // The kernel assigns the lowest free number, so a high number means that few files are
        // left.
        let number = u64::try_from(file.as_raw_fd()).unwrap_or(u64::MAX);
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
        let maps = maps_in_use().saturating_add(owed.saturating_mul(MAPS)).saturating_add(OTHER_MAPS);
        let (step, errno) = match number.saturating_add(owed).saturating_add(OTHER_FILES) < limit {
            false => ("memfd_create", Errno::EMFILE),
            true if maps > *MAX_MAPS => ("mmap", Errno::ENOMEM),
            true => return Ok(()),
        };
        Err(CreateError::Memory { step, len, source: io::Error::from(errno) })
    }
}

/// The part of a budget that one ring uses.
#[derive(Debug)]
pub(crate) struct MemoryCharge {
    budget: Arc<CacheBudget>,
    bytes: u64,
}

impl MemoryCharge {
    pub(crate) fn new(budget: &Arc<CacheBudget>, bytes: u64) -> MemoryCharge {
        budget.used.fetch_add(bytes, Relaxed);
        MemoryCharge { budget: Arc::clone(budget), bytes }
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Relaxed);
    }
}

/// The ring of one stream that has no memory yet.
#[derive(Debug)]
pub(crate) struct OwedRing(Arc<CacheBudget>);

impl OwedRing {
    pub(crate) fn new(budget: &Arc<CacheBudget>) -> OwedRing {
        budget.owed.fetch_add(1, Relaxed);
        OwedRing(Arc::clone(budget))
    }
}

impl Drop for OwedRing {
    fn drop(&mut self) {
        self.0.owed.fetch_sub(1, Relaxed);
    }
}
