//! Looking at a ring from outside: whatever its writer does at the moment, or has died of.
//!
//! Who looks has a read-only map and no slot, so the writer neither knows nor cares. Whatever is
//! seen may be changing meanwhile, even into another generation of the stream; so everything is
//! looked at first and checked afterwards. The file is not trusted: its numbers are compared and
//! clamped, and bound every loop by the size that [`Ring::open`] checked.

use crate::error::InspectError;
use crate::file;
use crate::layout::{self, Control, MAX_LABEL, NONE};
use crate::marks::Mark;
use crate::reader::Gap;
use crate::ring::Ring;
use crate::sync::{Ordering::Acquire, Ordering::Relaxed, Point, broken, fence, fence_at};

/// How often we look again when the writer was faster.
const TRIES: u32 = 16;
/// Bytes that are copied before it is checked that they are whole.
const PIECE: usize = 64 * 1024;

/// A ring at one moment, as it can be seen from outside.
///
/// Positions count the bytes that were put into rings since the stream began: *produced = position
/// + dropped*. In a file of a writer that breaks its promises, numbers are what the file says,
/// except that `floor` to `tail` is always a range that the ring has bytes for. A value of its own:
/// it may go to other threads.
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
    /// What the stream is; what is no UTF-8 is replaced. It may hold control characters.
    pub label: String,
    /// The writing process, by its own word and in its own pid namespace.
    pub writer_pid: u64,
    /// 0 for the stream's first ring, then counted up.
    pub generation: u64,
    /// Position of this generation's first byte.
    pub base: u64,
    /// Whether the writer overwrites what no reader borrows (drop oldest), or waits for readers to
    /// consume it.
    pub overwrite: bool,
    /// Bytes of the data area.
    pub capacity: u64,
    /// Entries of the index ring.
    pub entries: u64,
    /// Where the data area begins in the file: the byte at position `p` lies `p % capacity` behind
    /// it.
    pub data_offset: u64,
    /// Bytes below are readable.
    pub tail: u64,
    /// Bytes below `intent - capacity` may have been overwritten.
    pub intent: u64,
    /// The oldest byte that is still in the ring; `tail` if there is none.
    pub floor: u64,
    /// The writer waits until every reader has come so far.
    pub wanted: Option<u64>,
    /// The stream goes on in another generation from here.
    pub sealed: Option<u64>,
    /// The stream ended here.
    pub complete: Option<u64>,
    /// Bytes dropped instead of stored, since the stream began.
    pub dropped: u64,
    /// Marks of the index that came before `marks` and are gone.
    pub retired: u64,
    /// The marks of the index, oldest first. Some may speak of bytes before `floor`.
    pub marks: Vec<Mark>,
}

impl Snapshot {
    /// Looks at `ring`, which stays as it is: from any thread, with or without a writer.
    ///
    /// # Errors
    /// [`InspectError::Overtaken`] if the ring was reused for another generation time and again.
    pub fn take(ring: &Ring) -> Result<Snapshot, InspectError> {
        let mut latest = None;
        for _ in 0..TRIES {
            if let Some(snapshot) = look(ring) {
                // The claim was looked at after the tail. If it is a whole ring ahead we were asleep in
                // between; or the file is broken, and then this is as good as it gets.
                let at_once = snapshot.intent.saturating_sub(snapshot.capacity) <= snapshot.tail;
                latest = Some(snapshot);
                if at_once {
                    break;
                }
            }
        }
        latest.ok_or(InspectError::Overtaken { tries: TRIES })
    }

    /// Looks at `ring` and copies what is in it: the bytes from [`floor`](Snapshot::floor) to
    /// [`tail`](Snapshot::tail), which are fewer than [`Snapshot::take`] would tell of if the
    /// writer overwrote some during the copy.
    ///
    /// # Errors
    /// [`InspectError::Overtaken`] if it overwrote all of them, time and again;
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

    /// Copies the bytes that are still there, and raises `floor` to the first of them.
    fn copy(&mut self, ring: &Ring) -> Result<Vec<u8>, InspectError> {
        let no_memory = InspectError::Memory { len: self.cached() };
        let mut bytes = Vec::new();
        match usize::try_from(self.cached()) {
            Ok(len) if bytes.try_reserve_exact(len).is_ok() => bytes.resize(len, 0),
            _ => return Err(no_memory),
        }
        // The newest first: the writer comes from behind. From `start` on the copy is known to be whole.
        let mut start = self.tail;
        for piece in bytes.rchunks_mut(PIECE) {
            let at = start.saturating_sub(piece.len() as u64);
            ring.copy(at, piece);
            // Our loads of the bytes come before the look at the claim. Partner: the fence in
            // `Writer::reserve`, which puts the claim, and a reuse before it, before the bytes
            // that overwrite ours.
            fence(Acquire);
            let intact = match generation(ring) {
                Some(generation) if generation == self.generation => {
                    ring.control().claimed.intent.load(Relaxed).saturating_sub(self.capacity)
                }
                _ => NONE,
            };
            if intact > at {
                start = start.min(intact);
                break;
            }
            start = at;
        }
        let gone = usize::try_from(start.saturating_sub(self.floor)).unwrap_or(usize::MAX);
        bytes.drain(..gone.min(bytes.len()));
        self.floor = start;
        Ok(bytes)
    }

    /// Bytes that the source wrote, as far as they were read from it.
    pub fn produced(&self) -> u64 {
        self.tail.saturating_add(self.dropped)
    }

    /// Bytes that are in the ring.
    pub fn cached(&self) -> u64 {
        self.tail.saturating_sub(self.floor)
    }

    /// The losses that the marks tell of, oldest first. What was lost before the first mark only a
    /// reader knows that was there, unless the stream began with that mark.
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

/// All of a ring's words, or `None` if it became another generation meanwhile.
fn look(ring: &Ring) -> Option<Snapshot> {
    let Control { identity, published, claimed, .. } = ring.control();
    let at_first = generation(ring)?;
    let position = |word: u64| (word != NONE).then_some(word);

    // In the order in which `Reader::look` looks, for its reasons: who sees an end sees all before it.
    let (sealed, complete) = (published.sealed.load(Relaxed), published.complete.load(Relaxed));
    fence(Acquire);
    let (tail, dropped) = (published.tail.load(Relaxed), published.dropped.load(Relaxed));
    fence(Acquire);
    let (retired, marks) = marks(ring, dropped);
    let (capacity, base) = (ring.capacity(), identity.base.load(Relaxed));
    let intent = claimed.intent.load(Relaxed);
    let floor = intent.max(tail).saturating_sub(capacity).max(base).min(tail);
    let snapshot = Snapshot {
        label: label(ring),
        writer_pid: identity.writer_pid.load(Relaxed),
        generation: at_first,
        base,
        overwrite: identity.overwrite.load(Relaxed) != 0,
        capacity,
        entries: ring.entries().len() as u64,
        data_offset: layout::meta_len(ring.entries().len() as u64, file::page_size()),
        tail,
        intent,
        floor,
        wanted: position(claimed.wanted.load(Relaxed)),
        sealed: position(sealed),
        complete: position(complete),
        dropped,
        retired,
        marks,
    };
    // If any word above is of another generation, this makes its number, or that there is none, visible
    // too. Partner: the fence in `Ring::reuse`.
    fence_at(Point::SnapshotFence, Acquire);
    let same = generation(ring) == Some(at_first) || broken(Point::SnapshotCheck);
    same.then_some(snapshot)
}

/// Which generation the ring is now; `None` while it is being made into another.
fn generation(ring: &Ring) -> Option<u64> {
    let generation = ring.control().identity.generation.load(Relaxed);
    // Partner: the Release store of it in `Ring::initialise`: who sees it sees the words of that
    // generation.
    fence_at(Point::GenerationFence, Acquire);
    (generation != NONE).then_some(generation)
}

/// How many marks are gone, and those that are there.
fn marks(ring: &Ring, dropped: u64) -> (u64, Vec<Mark>) {
    let index = ring.index();
    let entries = index.published();
    let mut retired = entries.start;
    let mut marks = Vec::new();
    for i in entries {
        match index.look(i) {
            // The newest may have grown a gap since we looked at the total.
            Some(mark) => marks.push(Mark { dropped: mark.dropped.min(dropped), ..mark }),
            // Overwritten, and with it all before it.
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
    for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.load(Relaxed).to_ne_bytes();
    }
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}
