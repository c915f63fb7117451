//! The layout of shared memory, and nothing else.
//!
//! A ring file, one generation of one stream:
//!
//! ```text
//! 0            3200                 meta_len(entries)                    meta_len + capacity
//! | control    | Entry 0 .. entries | pad to a page | data, pure bytes   |
//! ```
//!
//! The data part is mapped twice, back to back, so every range of at most `capacity` bytes is one
//! slice. The byte at stream position `p` lies at `p % capacity`. Positions count the bytes that
//! were stored since the stream began; they never wrap and continue from one generation to the
//! next. Dropped bytes are counted separately: *produced = position + dropped*.
//!
//! A reader page file, the words of one tool for all the rings that it reads:
//!
//! ```text
//! 0           128                  128 + MAX_SLOTS/8
//! | PageHead  | ready bitmap       | Slot 0 .. MAX_SLOTS |
//! ```
//!
//! Only the engine writes a ring file. Only the tool writes its slots and `armed`, with these
//! exceptions: the engine initialises a slot before it hands the slot over, sets ready bits and
//! clears `armed`.

use crate::sync::AtomicU64;

/// The first eight bytes of a ring file, `"iofring1"`.
pub const RING_MAGIC: u64 = u64::from_le_bytes(*b"iofring1");
/// The first eight bytes of a reader page file, `"iofarea1"`.
pub const PAGE_MAGIC: u64 = u64::from_le_bytes(*b"iofarea1");
/// Version of both layouts. Readers reject any other version.
pub const LAYOUT_VERSION: u64 = 4;
/// The value for "no position" and "no generation": nothing is pinned, sealed, complete or wanted.
pub const NONE: u64 = u64::MAX;

/// Smallest data area of a ring, in bytes.
pub const MIN_CAPACITY: u64 = 4096;
/// Largest data area of a ring, in bytes: the largest size that the RFC's 32-bit cache size can
/// request.
pub const MAX_CAPACITY: u64 = 1 << 32;
/// Fewest entries of an index ring.
const MIN_ENTRIES: u64 = 32;
/// Most entries of an index ring.
const MAX_ENTRIES: u64 = 16 * 1024;
/// Data bytes for each index entry.
const BYTES_PER_ENTRY: u64 = 2048;
/// Entries for the newest reads: the number that fits on the first page beside the smallest index.
#[cfg(not(loom))]
pub(crate) const RECENT: usize = 112;
/// Entries for the newest reads (few, for the model checker).
#[cfg(loom)]
pub(crate) const RECENT: usize = 2;

/// Longest label of a stream, in bytes. Longer labels are cut.
#[cfg(not(loom))]
pub const MAX_LABEL: usize = 192;
/// Longest label of a stream, in bytes (0 for the model checker, which would try every age of every
/// word).
#[cfg(loom)]
pub const MAX_LABEL: usize = 0;
pub(crate) const LABEL_WORDS: usize = MAX_LABEL / 8;

/// Greatest number of rings that one tool may read at a time.
#[cfg(not(any(loom, miri)))]
pub const MAX_SLOTS: usize = 16 * 1024;
/// Greatest number of rings that one tool may read at a time (few, because Miri visits each word of
/// the page for every access to one).
#[cfg(miri)]
pub const MAX_SLOTS: usize = 16;
/// Greatest number of rings that one tool may read at a time (few, for the model checker).
#[cfg(loom)]
pub const MAX_SLOTS: usize = 3;

/// The words that identify a ring. Written once per generation, before any other party sees them.
#[repr(C, align(128))]
pub(crate) struct Identity {
    pub magic: AtomicU64,
    pub version: AtomicU64,
    /// Bytes of the data area.
    pub capacity: AtomicU64,
    /// Entries of the index ring.
    pub entries: AtomicU64,
    /// 0 for a stream's first ring, then counted up. [`NONE`] while the ring changes to another
    /// generation.
    pub generation: AtomicU64,
    /// Position of this generation's first byte.
    pub base: AtomicU64,
    /// 1 if readers do not gate the writer (drop oldest), else 0.
    pub overwrite: AtomicU64,
    /// Process id of the writer, for diagnostics.
    pub writer_pid: AtomicU64,
    /// Description of the stream in UTF-8, padded with zeros, for diagnostics.
    pub label: [AtomicU64; LABEL_WORDS],
}

/// The words that readers watch. Written by the engine, read by all.
#[repr(C, align(128))]
pub(crate) struct Published {
    /// Bytes below this position are readable.
    pub tail: AtomicU64,
    /// Index entries below this number are readable.
    pub index_tail: AtomicU64,
    /// Bytes dropped instead of stored, since the stream began.
    pub dropped: AtomicU64,
    /// Position at which the stream continues in another generation; `NONE` while this one is not
    /// sealed.
    pub sealed: AtomicU64,
    /// Position at which the stream ended; `NONE` while it may continue.
    pub complete: AtomicU64,
    /// Entries of the newest reads below this number are readable.
    pub recent_tail: AtomicU64,
    /// One more than the number of bytes that are known to be missing at the end of a broken
    /// stream; 0 if the stream is not broken.
    pub missing: AtomicU64,
    /// The [`Interaction`](crate::Interaction) in the two lowest bits. Above them, one more than the
    /// position that the stream had when its process was last given stdin; 0 if it never was.
    pub interaction: AtomicU64,
    /// When that was, in nanoseconds since 1970.
    pub given_time: AtomicU64,
}

/// The words by which the writer announces what it may overwrite. Written by the engine, read by
/// all.
#[repr(C, align(128))]
pub(crate) struct Claimed {
    /// The claimed position: bytes below `position - capacity` may be overwritten at any moment.
    pub position: AtomicU64,
    /// Index entries below this number may be overwritten at any moment.
    pub index_head: AtomicU64,
    /// The request for room: the writer waits until every pinned position has reached this one.
    /// `NONE` while it does not wait.
    pub wanted: AtomicU64,
    /// Entries of the newest reads below this number may be overwritten at any moment.
    pub recent_head: AtomicU64,
}

/// Head of a ring file.
#[repr(C)]
pub(crate) struct ControlWords {
    pub identity: Identity,
    pub published: Published,
    pub claimed: Claimed,
    pub recent: [Entry; RECENT],
}

/// One entry of the index ring or of the newest reads: metadata of the bytes from `offset` on,
/// until the next entry.
#[repr(C)]
pub(crate) struct Entry {
    /// Position of the first byte that this entry covers.
    pub offset: AtomicU64,
    /// Time at which that byte was read from its source, in nanoseconds since 1970
    /// (`CLOCK_REALTIME`).
    pub time: AtomicU64,
    /// Bytes dropped before `offset`, since the stream began.
    pub dropped: AtomicU64,
}

/// Head of a reader page file.
#[repr(C, align(128))]
pub(crate) struct PageHead {
    pub magic: AtomicU64,
    pub version: AtomicU64,
    /// 1 while the tool sleeps and needs its doorbell rung.
    pub armed: AtomicU64,
}

/// One tool's words for one ring.
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// The pinned position: the lowest position that the tool may be touching. `NONE` if it touches
    /// nothing.
    pub pinned: AtomicU64,
    /// Bytes below this position are consumed. Used for the engine's statistics and with
    /// `threshold`.
    pub cursor: AtomicU64,
    /// Number of bytes beyond `cursor` that are worth a wake-up.
    pub threshold: AtomicU64,
    /// Drops that the tool knows, as a value of the ring's `dropped`. A greater value is worth a
    /// wake-up.
    pub dropped: AtomicU64,
}

/// A whole reader page file.
#[repr(C)]
pub(crate) struct PageTable {
    pub head: PageHead,
    pub ready: [AtomicU64; READY_WORDS],
    pub slots: [Slot; MAX_SLOTS],
}

/// Number of words of the ready bitmap.
pub(crate) const READY_WORDS: usize = MAX_SLOTS.div_ceil(64);

#[cfg(not(any(loom, miri)))]
const _: () = {
    assert!(size_of::<ControlWords>() == 3200);
    assert!(size_of::<Entry>() == 24);
    assert!(size_of::<Slot>() == 64);
    assert!(size_of::<PageTable>() == 128 + MAX_SLOTS / 8 + MAX_SLOTS * 64);
};

/// Returns `bytes` rounded up to whole pages.
pub(crate) fn round_up(bytes: u64, page: u64) -> u64 {
    bytes.div_ceil(page).saturating_mul(page)
}

/// Returns the number of index entries for a data area of `capacity` bytes.
pub(crate) fn entries_for(capacity: u64) -> u64 {
    (capacity / BYTES_PER_ENTRY).clamp(MIN_ENTRIES, MAX_ENTRIES)
}

/// Returns the number of bytes for which the index always has one entry, when half of `entries` are
/// used for that.
pub(crate) fn spacing(capacity: u64, entries: u64) -> u64 {
    // The model checker has few entries, and all of them must be used.
    if cfg!(loom) { 0 } else { capacity.checked_div(entries / 2).unwrap_or(capacity) }
}

/// Returns the number of bytes before the data area.
pub(crate) fn meta_len(entries: u64, page: u64) -> u64 {
    let used =
        (size_of::<ControlWords>() as u64).saturating_add(entries.saturating_mul(size_of::<Entry>() as u64));
    round_up(used, page)
}
