//! Reading a ring from outside, concurrently with its writer or after the writer's death.
//!
//! An inspector has a read-only map and no slot, so it does not affect the writer. Everything that
//! it reads may change meanwhile, even to another generation of the stream. So it reads everything
//! first and checks it afterwards. It does not trust the file: numbers are compared and clamped,
//! and every loop is bounded by the size that [`Ring::open`] checked.

use crate::error::InspectError;
use crate::layout::{self, ControlWords, MAX_LABEL, NONE};
use crate::memory::file;
use crate::reader::Gap;
use crate::ring::Ring;
use crate::ring::marks::Mark;
use crate::sync::{Ordering::Acquire, Ordering::Relaxed, Point, broken, fence, fence_at};

/// Number of tries if the writer changes the ring during each.
const TRIES: u32 = 16;
/// Bytes that are copied between two checks that they are whole.
const PIECE: usize = 64 * 1024;

/// The state of a ring at one moment, read from outside.
///
/// Positions count the bytes that were stored since the stream began: *produced = position +
/// dropped*. If the file is inconsistent, the snapshot contains the file's numbers, except that
/// `floor..tail` is always a range of positions within the ring. A snapshot borrows nothing and may
/// be sent to other threads.
///
/// # Example
/// ```
/// use iof_shm_ring::{ReaderPage, Policy, Ring, Snapshot, Start, Stream, StreamConfig, doorbell};
/// use std::sync::Arc;
///
/// let mut stream = Stream::create(StreamConfig { capacity: 65536, policy: Policy::DropNewest }, "demo")?;
/// # let page = Arc::new(ReaderPage::create(doorbell()?.0)?);
/// # let file = stream.attach(&page, page.take_slot()?, Start::Oldest, false)?;
/// # let file = file.ring.as_fd().ok_or("a ring in memory has a file")?.try_clone_to_owned()?;
/// stream.push(b"last words", 0);
///
/// // From outside, `file` is what `File::open("/proc/PID/fd/N")` gives.
/// let ring = Ring::open(file)?;
/// let (snapshot, bytes) = Snapshot::with_bytes(&ring)?;
/// assert_eq!(bytes, b"last words");
/// assert_eq!((snapshot.label.as_str(), snapshot.floor, snapshot.tail), ("demo", 0, 10));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Description of the stream. Invalid UTF-8 is replaced. The label may contain control
    /// characters.
    pub label: String,
    /// Process id of the writer, in the writer's pid namespace, as stored in the file.
    pub writer_pid: u64,
    /// 0 for the stream's first ring, then counted up.
    pub generation: u64,
    /// Position of this generation's first byte.
    pub base: u64,
    /// Set if the writer overwrites all bytes that no reader borrows (drop oldest). Otherwise it
    /// overwrites only bytes that all gating readers have consumed.
    pub overwrite: bool,
    /// Size of the data area in bytes.
    pub capacity: u64,
    /// Number of entries of the index ring.
    pub entries: u64,
    /// Offset of the data area in the file: the byte at position `p` lies `p % capacity` behind it.
    pub data_offset: u64,
    /// Bytes below this position are readable.
    pub tail: u64,
    /// The claimed position: bytes below `claimed - capacity` may have been overwritten.
    pub claimed: u64,
    /// Position of the oldest byte in the ring; `tail` if there is none.
    pub floor: u64,
    /// The position that every gating reader must reach before the writer continues, if it waits.
    pub wanted: Option<u64>,
    /// Position at which the stream continues in another generation.
    pub sealed: Option<u64>,
    /// Position at which the stream ended.
    pub complete: Option<u64>,
    /// Bytes that are known to be missing at the end, if the stream is broken.
    pub missing: Option<u64>,
    /// Bytes dropped instead of stored, since the stream began.
    pub dropped: u64,
    /// Number of marks that came before `marks` and were overwritten.
    pub retired: u64,
    /// The marks of the index, oldest first. Some may cover only bytes before `floor`.
    pub marks: Vec<Mark>,
}

impl Snapshot {
    /// Takes a snapshot of `ring`, which it does not change. May be called on any thread, with or
    /// without a writer.
    ///
    /// # Errors
    /// [`InspectError::Overtaken`] if the ring was reused for another generation during each of
    /// several tries.
    pub fn take(ring: &Ring) -> Result<Snapshot, InspectError> {
        let mut latest = None;
        for _ in 0..TRIES {
            if let Some(snapshot) = load_words(ring) {
                // The claimed position was loaded after the tail. If it is a whole ring ahead, this
                // thread was suspended in between, or the file is invalid; another try does not
                // help with the latter.
                let consistent = snapshot.claimed.saturating_sub(snapshot.capacity) <= snapshot.tail;
                latest = Some(snapshot);
                if consistent {
                    break;
                }
            }
        }
        latest.ok_or(InspectError::Overtaken { tries: TRIES })
    }

    /// Takes a snapshot of `ring` and copies its bytes from [`floor`](Snapshot::floor) to
    /// [`tail`](Snapshot::tail). Bytes that the writer overwrote during the copy are not included:
    /// `floor` is then higher than [`Snapshot::take`] would return it.
    ///
    /// # Errors
    /// [`InspectError::Overtaken`] if the writer overwrote all bytes during each of several tries;
    /// [`InspectError::Memory`] if there is no memory for a copy.
    pub fn with_bytes(ring: &Ring) -> Result<(Snapshot, Vec<u8>), InspectError> {
        for _ in 0..TRIES {
            let mut snapshot = Snapshot::take(ring)?;
            let cached = snapshot.cached();
            let bytes = snapshot.copy(ring)?;
            if cached == 0 || !bytes.is_empty() {
                return Ok((snapshot, bytes));
            }
        }
        Err(InspectError::Overtaken { tries: TRIES })
    }

    /// Copies the bytes that are still in the ring, and raises `floor` to the first of them.
    fn copy(&mut self, ring: &Ring) -> Result<Vec<u8>, InspectError> {
        let no_memory = InspectError::Memory { len: self.cached() };
        let mut bytes = Vec::new();
        match usize::try_from(self.cached()) {
            Ok(len) if bytes.try_reserve_exact(len).is_ok() => bytes.resize(len, 0),
            _ => return Err(no_memory),
        }
        // The newest first, because the writer overwrites from the oldest on. From `start` on the
        // copy is known to be whole.
        let mut start = self.tail;
        for piece in bytes.rchunks_mut(PIECE) {
            let first = start.saturating_sub(piece.len() as u64);
            ring.copy(first, piece);
            // Orders the loads of the bytes before the load of the claimed position. Partner: the
            // fence in `Writer::reserve`, which orders the claim, and a reuse before it, before the
            // bytes that overwrite these.
            fence(Acquire);
            let intact = match generation(ring) {
                Some(generation) if generation == self.generation => {
                    ring.control().claimed.position.load(Relaxed).saturating_sub(self.capacity)
                }
                _ => NONE,
            };
            if intact > first {
                start = start.min(intact);
                break;
            }
            start = first;
        }
        let gone = usize::try_from(start.saturating_sub(self.floor)).unwrap_or(usize::MAX);
        bytes.drain(..gone.min(bytes.len()));
        self.floor = start;
        Ok(bytes)
    }

    /// Returns the number of bytes that were read from the source.
    pub fn produced(&self) -> u64 {
        self.tail.saturating_add(self.dropped)
    }

    /// Returns the number of bytes in the ring.
    pub fn cached(&self) -> u64 {
        self.tail.saturating_sub(self.floor)
    }

    /// Returns the gaps that the marks record, oldest first. Bytes dropped before the first mark
    /// are included only if the stream began with that mark. Otherwise the position of that gap is
    /// unknown.
    pub fn gaps(&self) -> impl Iterator<Item = Gap> {
        let first = self.marks.first().map_or(0, |mark| mark.dropped);
        let mut before = if self.generation == 0 && self.retired == 0 { 0 } else { first };
        self.marks.iter().filter_map(move |mark| {
            let lost = mark.dropped.checked_sub(before).filter(|lost| *lost > 0)?;
            let offset = mark.offset.saturating_add(before);
            before = mark.dropped;
            Some(Gap { offset, lost })
        })
    }
}

/// Loads all words of a ring. Returns `None` if the ring became another generation meanwhile.
fn load_words(ring: &Ring) -> Option<Snapshot> {
    let ControlWords { identity, published, claimed, .. } = ring.control();
    let before = generation(ring)?;
    let position = |word: u64| (word != NONE).then_some(word);

    // The same order as in `Reader::observe`, for the same reason: an inspector that sees an end
    // sees everything before it.
    let (sealed, complete) = (published.sealed.load(Relaxed), published.complete.load(Relaxed));
    fence(Acquire);
    let missing = published.missing.load(Relaxed);
    let (tail, dropped) = (published.tail.load(Relaxed), published.dropped.load(Relaxed));
    fence(Acquire);
    let (retired, marks) = marks(ring, dropped);
    let (capacity, base) = (ring.capacity(), identity.base.load(Relaxed));
    let claimed_to = claimed.position.load(Relaxed);
    let floor = claimed_to.max(tail).saturating_sub(capacity).max(base).min(tail);
    let snapshot = Snapshot {
        label: label(ring),
        writer_pid: identity.writer_pid.load(Relaxed),
        generation: before,
        base,
        overwrite: identity.overwrite.load(Relaxed) != 0,
        capacity,
        entries: ring.entries().len() as u64,
        data_offset: layout::meta_len(ring.entries().len() as u64, file::page_size()),
        tail,
        claimed: claimed_to,
        floor,
        wanted: position(claimed.wanted.load(Relaxed)),
        sealed: position(sealed),
        complete: position(complete),
        missing: missing.checked_sub(1),
        dropped,
        retired,
        marks,
    };
    // If any word above is of another generation, this fence makes its number, or `NONE`, visible,
    // too. Partner: the fence in `Ring::reuse`.
    fence_at(Point::SnapshotFence, Acquire);
    let same = generation(ring) == Some(before) || broken(Point::SnapshotCheck);
    same.then_some(snapshot)
}

/// Returns the ring's current generation; `None` while the ring changes to another one.
fn generation(ring: &Ring) -> Option<u64> {
    let generation = ring.control().identity.generation.load(Relaxed);
    // Partner: the Release store of `generation` in `Ring::initialise`. An inspector that sees the
    // number sees the words of that generation.
    fence_at(Point::GenerationFence, Acquire);
    (generation != NONE).then_some(generation)
}

/// Returns the number of marks that were overwritten, and the marks in the ring.
fn marks(ring: &Ring, dropped: u64) -> (u64, Vec<Mark>) {
    let index = ring.index();
    let entries = index.published();
    let mut retired = entries.start;
    let mut marks = Vec::new();
    for i in entries {
        match index.load(i) {
            // The newest mark may have got a gap since the total was loaded.
            Some(mark) => marks.push(Mark { dropped: mark.dropped.min(dropped), ..mark }),
            // Overwritten, as are all marks before it.
            None => {
                marks.clear();
                retired = i.saturating_add(1);
            }
        }
    }
    (retired, marks)
}

fn label(ring: &Ring) -> String {
    let words = &ring.control().identity.label;
    let mut bytes = [0; MAX_LABEL];
    for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *chunk = word.load(Relaxed).to_ne_bytes();
    }
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}
