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

/// An error of [`handoff::send`](crate::handoff::send).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The reader page cannot be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The process cannot open a descriptor for a bell or the connection.
    #[error("{step} failed: {source}; close files or raise the limit (`ulimit -n`)")]
    Descriptor {
        /// The step that failed.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The ring has no file.
    #[error("cannot send a ring on the heap: create the stream in shared memory with `Stream::create`")]
    OnHeap,
    /// The message cannot be sent.
    #[error("sending the reader failed: {source}; the other process must keep the connection open")]
    Socket {
        /// The kernel's error.
        source: io::Error,
    },
}

/// An error of [`SentReader::serve`](crate::handoff::SentReader::serve) and of the methods that
/// call it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The reader has closed the connection.
    #[error("the reader has closed the connection before it has read everything: start it again")]
    Closed,
    /// The reader sent an unknown request.
    #[error("invalid request {found} from the reader: close its connection")]
    Request {
        /// The byte received.
        found: u8,
    },
    /// The connection failed, or the reader does not receive what it requested.
    #[error("answering the reader failed: {source}; close its connection")]
    Socket {
        /// The kernel's error.
        source: io::Error,
    },
}

/// An error of receiving a reader or its next generation, see
/// [`handoff::receive`](crate::handoff::receive).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The other process closed the connection before the message.
    #[error("the owner of the stream closed the connection: start it again")]
    Closed,
    /// The other process closed the connection in the middle of the message.
    #[error("the owner closed the connection after {received} of {expected} bytes: start it again")]
    Truncated {
        /// Bytes received.
        received: usize,
        /// Bytes of a message.
        expected: usize,
    },
    /// The message is not one of a hand-off.
    #[error("invalid message {found:#018x}: connect to a process that hands off a reader")]
    Magic {
        /// The first eight bytes as a little-endian number.
        found: u64,
    },
    /// The message has another version.
    #[error(
        "the owner sends version {found}, expected {expected}: use the same version of iof-shm-ring in both processes"
    )]
    Version {
        /// Version received.
        found: u32,
        /// Version of this library.
        expected: u32,
    },
    /// The message has another purpose, such as the next generation instead of a new reader.
    #[error("invalid message of kind {found}: expected kind {expected}")]
    Kind {
        /// Kind received.
        found: u32,
        /// Kind expected.
        expected: u32,
    },
    /// The message has unknown flags.
    #[error("invalid flags {found:#x}: use the same version of iof-shm-ring in both processes")]
    Flags {
        /// Flags received.
        found: u32,
    },
    /// The message came with too few or too many descriptors.
    #[error("received {found} file descriptors, expected {expected}")]
    Descriptors {
        /// Descriptors received.
        found: usize,
        /// Descriptors expected.
        expected: usize,
    },
    /// The kernel could not deliver all descriptors.
    #[error(
        "received only {received} of the file descriptors: the owner sent too many, or this process has reached \
         its limit on open files (raise `ulimit -n`)"
    )]
    TruncatedDescriptors {
        /// Descriptors received, and closed since.
        received: usize,
    },
    /// A received file is not a valid ring or reader page.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The connection failed, or its read timeout has passed.
    #[error("receiving from the owner failed: {source}")]
    Socket {
        /// The kernel's error.
        source: io::Error,
    },
    /// An earlier message from the owner could not be used.
    #[error("an earlier message from the owner could not be used: connect again")]
    Failed,
}
