//! What lies where in shared memory, and nothing else.
//!
//! A ring file, one generation of one stream:
//!
//! ```text
//! 0            3200                 meta_len(entries)                    meta_len + capacity
//! | Control    | Entry 0 .. entries | pad to a page | data, pure bytes   |
//! ```
//!
//! The data part is mapped twice back to back, so every range of at most `capacity` bytes is one
//! slice. A byte at stream position `p` lies at `p % capacity`. Positions count the bytes that were
//! put into rings since the stream began; they never wrap and go on from one generation to the
//! next. What was dropped instead of stored is counted beside them: *produced = position +
//! dropped*.
//!
//! A reader page file, the words of one tool for all the rings it reads:
//!
//! ```text
//! 0           128                  128 + MAX_SLOTS/8
//! | PageHead  | ready bitmap       | Slot 0 .. MAX_SLOTS |
//! ```
//!
//! Only the engine writes a ring file. Only the tool writes its slots and `armed`, except that the
//! engine prepares a slot before it hands it over, sets ready bits and disarms.

use crate::sync::AtomicU64;

/// `"iofring1"` as the file's first eight bytes.
pub const RING_MAGIC: u64 = u64::from_le_bytes(*b"iofring1");
/// `"iofarea1"` as the file's first eight bytes.
pub const PAGE_MAGIC: u64 = u64::from_le_bytes(*b"iofarea1");
/// Version of both layouts; readers refuse any other.
pub const LAYOUT_VERSION: u64 = 2;
/// "No position": nothing held, not sealed, not complete, nothing wanted; no generation.
pub const NONE: u64 = u64::MAX;

/// Smallest data area of a ring, bytes.
pub const MIN_CAPACITY: u64 = 4096;
/// Largest data area of a ring, bytes: what the RFC's 32-bit cache size can ask for.
pub const MAX_CAPACITY: u64 = 1 << 32;
/// Fewest entries of an index ring.
const MIN_ENTRIES: u64 = 32;
/// Most entries of an index ring.
const MAX_ENTRIES: u64 = 16 * 1024;
/// Data bytes for each index entry.
const BYTES_PER_ENTRY: u64 = 2048;
/// Entries for the newest reads: as many as the first page has room for beside the smallest index.
#[cfg(not(loom))]
pub(crate) const RECENT: usize = 112;
/// Entries for the newest reads (few, for the model checker).
#[cfg(loom)]
pub(crate) const RECENT: usize = 2;

/// Bytes of a stream's label that are kept.
#[cfg(not(loom))]
pub const MAX_LABEL: usize = 192;
/// Bytes of a stream's label that are kept (none, for the model checker, which would try every age
/// of every word).
#[cfg(loom)]
pub const MAX_LABEL: usize = 0;
pub(crate) const LABEL_WORDS: usize = MAX_LABEL / 8;

/// Rings that one tool may read at a time.
#[cfg(not(any(loom, miri)))]
pub const MAX_SLOTS: usize = 16 * 1024;
/// Rings that one tool may read at a time (fewer, because Miri visits each with every look at one).
#[cfg(miri)]
pub const MAX_SLOTS: usize = 16;
/// Rings that one tool may read at a time (small, for the model checker).
#[cfg(loom)]
pub const MAX_SLOTS: usize = 3;

/// Written once, before anybody else sees the file.
#[repr(C, align(128))]
pub(crate) struct Identity {
    pub magic: AtomicU64,
    pub version: AtomicU64,
    /// Bytes of the data area.
    pub capacity: AtomicU64,
    /// Entries of the index ring.
    pub entries: AtomicU64,
    /// 0 for a stream's first ring, then counted up; [`NONE`] while the ring is made into another
    /// generation.
    pub generation: AtomicU64,
    /// Position of this generation's first byte.
    pub base: AtomicU64,
    /// 1 if readers do not gate the writer (drop oldest), else 0.
    pub overwrite: AtomicU64,
    /// The writing process, for people and for who wants to watch it.
    pub writer_pid: AtomicU64,
    /// What the stream is, in UTF-8, filled up with zeros; for people.
    pub label: [AtomicU64; LABEL_WORDS],
}

/// What readers watch. Writer: engine. Readers: everybody.
#[repr(C, align(128))]
pub(crate) struct Published {
    /// Bytes below are readable.
    pub tail: AtomicU64,
    /// Index entries below are readable.
    pub index_tail: AtomicU64,
    /// Bytes dropped instead of stored, since the stream began.
    pub dropped: AtomicU64,
    /// The stream goes on in another generation from here; `NONE` while it goes on here.
    pub sealed: AtomicU64,
    /// The stream ended here; `NONE` while it may go on.
    pub complete: AtomicU64,
    /// Entries of the newest reads below are readable.
    pub recent_tail: AtomicU64,
}

/// What the writer claims before it writes. Writer: engine. Readers: everybody.
#[repr(C, align(128))]
pub(crate) struct Claimed {
    /// Bytes below `intent - capacity` may be overwritten at any moment.
    pub intent: AtomicU64,
    /// Index entries below may be overwritten at any moment.
    pub index_head: AtomicU64,
    /// The writer waits until every hold has reached this; `NONE` while it does not wait.
    pub wanted: AtomicU64,
    /// Entries of the newest reads below may be overwritten at any moment.
    pub recent_head: AtomicU64,
}

/// Head of a ring file.
#[repr(C)]
pub(crate) struct Control {
    pub identity: Identity,
    pub published: Published,
    pub claimed: Claimed,
    pub recent: [Entry; RECENT],
}

/// One entry of the index ring or of the newest reads: what is true of the bytes from `offset` on,
/// until the next entry.
#[repr(C)]
pub(crate) struct Entry {
    /// Position of the first byte that this entry speaks of.
    pub offset: AtomicU64,
    /// When that byte was read from its source, nanoseconds since 1970 (`CLOCK_REALTIME`).
    pub time: AtomicU64,
    /// Bytes dropped before `offset`, since the stream began.
    pub dropped: AtomicU64,
}

/// Head of a reader page file.
#[repr(C, align(128))]
pub(crate) struct PageHead {
    pub magic: AtomicU64,
    pub version: AtomicU64,
    /// 1 while the tool sleeps and wants its doorbell rung.
    pub armed: AtomicU64,
}

/// One tool's words about one ring.
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// Lowest position the tool may be touching, `NONE` if it touches nothing.
    pub hold: AtomicU64,
    /// Bytes below are consumed; for the engine's statistics and `threshold`.
    pub cursor: AtomicU64,
    /// Bytes beyond `cursor` that are worth a wake-up.
    pub threshold: AtomicU64,
    /// Drops that the tool knows of, by the ring's `dropped`; more are worth a wake-up.
    pub dropped: AtomicU64,
}

/// A reader page file as a whole.
#[repr(C)]
pub(crate) struct PageTable {
    pub head: PageHead,
    pub ready: [AtomicU64; READY_WORDS],
    pub slots: [Slot; MAX_SLOTS],
}

/// Words of the ready bitmap.
pub(crate) const READY_WORDS: usize = MAX_SLOTS.div_ceil(64);

#[cfg(not(any(loom, miri)))]
const _: () = {
    assert!(size_of::<Control>() == 3200);
    assert!(size_of::<Entry>() == 24);
    assert!(size_of::<Slot>() == 64);
    assert!(size_of::<PageTable>() == 128 + MAX_SLOTS / 8 + MAX_SLOTS * 64);
};

/// `bytes` rounded up to whole pages.
pub(crate) fn round_up(bytes: u64, page: u64) -> u64 {
    bytes.div_ceil(page).saturating_mul(page)
}

/// Index entries for a data area of `capacity` bytes.
pub(crate) fn entries_for(capacity: u64) -> u64 {
    (capacity / BYTES_PER_ENTRY).clamp(MIN_ENTRIES, MAX_ENTRIES)
}

/// Bytes for which an index of `entries` has one of them, at least, when half of it is for that.
pub(crate) fn spacing(capacity: u64, entries: u64) -> u64 {
    // The model checker has so few entries that it wants all of them used.
    if cfg!(loom) { 0 } else { capacity.checked_div(entries / 2).unwrap_or(capacity) }
}

/// Bytes before the data area.
pub(crate) fn meta_len(entries: u64, page: u64) -> u64 {
    let used =
        (size_of::<Control>() as u64).saturating_add(entries.saturating_mul(size_of::<Entry>() as u64));
    round_up(used, page)
}
