//! What can go wrong, one enum for each operation.

use std::io;

/// Why a ring or a reader page could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// A cache of no size, or beyond [`MAX_CAPACITY`](crate::MAX_CAPACITY).
    #[error("a cache of {asked} bytes is not possible: ask for 1 to {max} bytes", max = crate::MAX_CAPACITY)]
    Capacity {
        /// Bytes asked for.
        asked: u64,
    },
    /// The kernel refused memory or a file for it.
    #[error(
        "{step} for {len} bytes of shared memory: {source}; free memory or files, raise their limits (`ulimit -v`, \
         `ulimit -n`, `ulimit -f`, which counts for memory files, too, and `sysctl vm.max_map_count`), or use a smaller cache"
    )]
    Memory {
        /// The call that failed.
        step: &'static str,
        /// Bytes the call was about.
        len: u64,
        /// The kernel's word.
        source: io::Error,
    },
    /// A tool reads as many rings as one tool may.
    #[error("the tool reads {limit} rings already, which is the limit; pull from fewer sources or channels", limit = crate::MAX_SLOTS)]
    Slots,
}

/// Why a file received from elsewhere is not taken for a ring or a reader page.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Not a memory file, or its seals can't be read.
    #[error("this is no sealed memory file: {source}")]
    Seals {
        /// The kernel's word.
        source: io::Error,
    },
    /// Whoever made the file could still shrink or rewrite it.
    #[error("the file lacks seals (missing bits {missing:#x}), so its maker could pull it away under us")]
    Unsealed {
        /// `F_SEAL_*` bits that are not set.
        missing: i32,
    },
    /// The file is shorter or longer than its head says.
    #[error("the file has {found} bytes where {needed} are needed")]
    Size {
        /// Bytes the file has.
        found: u64,
        /// Bytes it must have.
        needed: u64,
    },
    /// The file's head is of another kind or version, or its numbers contradict each other.
    #[error("the file's head is not one of ours: {field} is {found:#x}")]
    Head {
        /// The word that is wrong.
        field: &'static str,
        /// What it holds.
        found: u64,
    },
    /// A slot number beyond the reader page.
    #[error("slot {slot} is beyond the page's {limit} slots", limit = crate::MAX_SLOTS)]
    Slot {
        /// The number given.
        slot: u32,
    },
    /// The kernel refused to map the file.
    #[error("mapping {len} bytes: {source}")]
    Map {
        /// Bytes to map.
        len: u64,
        /// The kernel's word.
        source: io::Error,
    },
}

/// Why a ring could not be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// Whenever we had looked, the writer had made everything new meanwhile.
    #[error("the writer was faster {tries} times in a row: try again, or stop it meanwhile")]
    Overtaken {
        /// How often we looked.
        tries: u32,
    },
    /// No memory for a copy of the bytes.
    #[error("there is no memory for a copy of {len} bytes")]
    Memory {
        /// Bytes in the ring.
        len: u64,
    },
}
