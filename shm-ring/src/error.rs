//! The errors of this crate, one enum for each operation.

use std::io;

use crate::reader_id::ReaderId;

/// An error of creating a ring, an inlet or a reader page.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// The capacity is 0 or above [`MAX_CAPACITY`](crate::MAX_CAPACITY).
    #[error("invalid cache size {asked}: expected 1 to {max} bytes", max = crate::MAX_CAPACITY)]
    Capacity {
        /// Requested capacity in bytes.
        asked: u64,
    },
    /// The kernel has no memory or no file for it.
    #[error(
        "{step} for {len} bytes of shared memory failed: {source}; free memory or files, raise their limits (`ulimit -v`, \
         `ulimit -n`, `ulimit -f`, which applies to memory files, too, and `sysctl vm.max_map_count`), or use a smaller cache"
    )]
    Memory {
        /// Name of the call that failed.
        step: &'static str,
        /// Bytes of shared memory that the call was for.
        len: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// All [`MAX_SLOTS`](crate::MAX_SLOTS) slots of the reader page are taken, or the page has no
    /// slot for the given id.
    #[error("the tool reads {limit} rings already, which is the limit: pull from fewer sources or channels", limit = crate::MAX_SLOTS)]
    Slots,
}

/// An error of opening a ring, an inlet or a reader page that was received from another process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file is not a memory file, or its seals cannot be read.
    #[error("not a sealed memory file: {source}")]
    Seals {
        /// The kernel's error.
        source: io::Error,
    },
    /// The creator of the file could still shrink or rewrite it.
    #[error(
        "the file lacks seals (missing bits {missing:#x}), so its creator could still shrink or rewrite it"
    )]
    Unsealed {
        /// `F_SEAL_*` bits that are not set.
        missing: i32,
    },
    /// The file is shorter or longer than its head specifies.
    #[error("invalid file size {found}: expected {needed} bytes")]
    Size {
        /// Size of the file in bytes.
        found: u64,
        /// Required size in bytes.
        needed: u64,
    },
    /// The file's head has another magic number or version, or contains an invalid size.
    #[error("invalid file head: {field} is {found:#x}")]
    Head {
        /// Name of the invalid word.
        field: &'static str,
        /// Value of that word.
        found: u64,
    },
    /// The reader page has no slot for this id.
    #[error("invalid reader id {id}: the reader page has {limit} slots", limit = crate::MAX_SLOTS)]
    Slot {
        /// The reader's id.
        id: ReaderId,
    },
    /// The kernel did not map the file.
    #[error("mapping {len} bytes failed: {source}")]
    Map {
        /// Bytes to be mapped.
        len: u64,
        /// The kernel's error.
        source: io::Error,
    },
}

/// An error of inspecting a ring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// The writer overwrote or reused the whole ring during each of several tries.
    #[error(
        "the writer replaced the bytes during each of {tries} tries: try again, or stop the writer meanwhile"
    )]
    Overtaken {
        /// Number of tries.
        tries: u32,
    },
    /// There is no memory for a copy of the bytes.
    #[error("no memory for a copy of {len} bytes: free memory and try again")]
    Memory {
        /// Bytes to be copied.
        len: u64,
    },
}
