//! One stream of a printer: which of its bytes are written, and which wait for the rest of their
//! line.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use iof_tool::{BatchReader, Behind, FeedId};
use memchr::memchr;

use crate::batch::Batch;
use crate::files::FileId;
use crate::lines::{Cut, FlushClock, PartWait, PartialLine, cut};
use crate::options::Options;
use crate::style::{Label, Loss, OpenLine, Run};

/// The beginning of a line may fill the ring's capacity divided by this number. A longer one is
/// copied out of the ring.
const PART_DIVISOR: u64 = 4;

/// The key of the next stream, unique among all printers of this process.
static NEXT_KEY: AtomicU64 = AtomicU64::new(1);

/// Returns a key for a stream, by which a destination knows whose line is open.
pub(crate) fn new_key() -> u64 {
    // Relaxed: only the uniqueness of the number matters.
    NEXT_KEY.fetch_add(1, Relaxed)
}

/// The state of a stream, from its first byte on.
pub(crate) struct Stream {
    key: u64,
    label: Label,
    pub partial: PartialLine,
    /// When to check again the part of a line that waits.
    pub due: Option<Instant>,
    /// The file of its rank, if that is its destination.
    pub file: Option<FileId>,
    /// Whether no other stream of the printer has this destination.
    pub sole: bool,
    /// The number of bytes in its ring that are in the present batch, or were copied elsewhere.
    pub taken: usize,
}

/// A stream that may have something to write, as found by a peek.
pub(crate) struct ReadyStream {
    pub id: FeedId,
    /// Whether its ring has bytes.
    pub has_bytes: bool,
    /// Whether the line ends here, even without a newline.
    pub ends: bool,
    /// The bytes that are missing at this position.
    pub loss: Option<Loss>,
    /// The number of bytes in its ring that may be written now. Later ones were read after bytes of
    /// another stream, which must be written first.
    pub until: usize,
    /// Whether it must be written after the stream before it in the list, or not in this round.
    pub follows: bool,
}

/// What to do with a stream once its bytes are written.
pub(crate) struct Outcome {
    pub id: FeedId,
    /// Whether the remaining bytes are deferred until more arrive.
    pub defer: bool,
    /// Whether a part of a line waits.
    pub waits: bool,
}

/// A batch under construction, to which many streams contribute, with its destination's state.
pub(crate) struct BatchBuilder<'p, 'a> {
    pub options: &'p Options,
    pub clock: &'p FlushClock,
    /// The line that is open at the destination.
    pub open: &'p mut OpenLine,
    /// Whether no other printer writes to the destination.
    pub exclusive: bool,
    pub batch: Batch<'a>,
    /// Reusable memory for times.
    pub times: &'p mut Vec<(u64, u64)>,
    /// The number of bytes of streams in the batch.
    pub written: u64,
}

/// Bytes of a stream that are considered for a batch.
#[derive(Clone, Copy)]
struct Window<'a> {
    bytes: &'a [u8],
    /// The number of bytes that the source had produced before them.
    offset: u64,
}

impl<'a> Window<'a> {
    /// Returns the window without its first `count` bytes.
    fn after(self, count: usize) -> Window<'a> {
        let bytes = self.bytes.get(count..).unwrap_or_default();
        Window { bytes, offset: self.offset.saturating_add(count as u64) }
    }
}

impl Outcome {
    pub fn nothing(id: FeedId) -> Outcome {
        Outcome { id, defer: false, waits: false }
    }
}

impl Stream {
    pub fn new(label: Label, file: Option<FileId>, sole: bool) -> Stream {
        Stream { key: new_key(), label, partial: PartialLine::default(), due: None, file, sole, taken: 0 }
    }

    /// Adds to the batch what is to be written now, about `room` bytes at most.
    pub fn print<'a>(
        &mut self,
        ready: &ReadyStream,
        reader: &'a BatchReader,
        room: usize,
        builder: &mut BatchBuilder<'_, 'a>,
    ) -> Outcome {
        builder.times.clear();
        let Some(found) = reader.bytes(ready.id).filter(|_| ready.has_bytes) else {
            return self.print_without_bytes(ready, reader, builder);
        };
        if builder.options.style.shows_time() {
            found.times(builder.times);
        }
        let len = found.len().min(ready.until);
        let bytes = found.as_slice().get(self.taken..len).unwrap_or_default();
        let offset = found.offset().saturating_add(self.taken as u64);
        let window = Window { bytes, offset };
        let max_line = builder.options.flush_timeout.max_line;
        let Cut { ready: mut count, part } = if self.ignores_lines(reader, builder) {
            Cut { ready: bytes.len().min(room), part: 0 }
        } else {
            cut(bytes, self.partial.bytes.len(), room, max_line)
        };
        let behind = if len < found.len() { Behind::Bytes } else { found.behind() };
        if count > 0 {
            // A part that waits from now on belongs to another line.
            self.partial.wait = None;
        }
        let mut waits = part > 0
            && !ready.ends
            && !matches!(behind, Behind::Gap | Behind::Nothing)
            && !self.may_write_parts(reader, builder);
        if waits && len < found.len() {
            // The rest of the line may be there already.
            self.print_bytes(window, count, builder);
            return Outcome::nothing(ready.id);
        }
        waits = waits && self.must_wait(part, ready.id, reader, builder);
        if part > 0 && !waits {
            count = bytes.len();
        }
        self.print_bytes(window, count, builder);
        if !waits {
            if behind == Behind::Gap && count == bytes.len() {
                self.cut_line(builder);
            }
            self.partial.wait = None;
            return Outcome::nothing(ready.id);
        }
        if behind == Behind::Bytes && part as u64 <= found.capacity() / PART_DIVISOR {
            return Outcome { id: ready.id, defer: true, waits };
        }
        self.copy_part(window.after(count), builder.times);
        Outcome { id: ready.id, defer: false, waits }
    }

    /// Handles a stream whose ring has nothing more: adds to the batch the part that was copied out
    /// of the ring before, unless it has to wait.
    fn print_without_bytes(
        &mut self,
        ready: &ReadyStream,
        reader: &BatchReader,
        builder: &mut BatchBuilder<'_, '_>,
    ) -> Outcome {
        let has_part = !self.partial.bytes.is_empty();
        if has_part && !ready.ends && self.must_wait(0, ready.id, reader, builder) {
            return Outcome { waits: true, ..Outcome::nothing(ready.id) };
        }
        if has_part {
            self.print_part(builder);
        }
        self.partial.wait = None;
        if let Some(loss) = ready.loss {
            self.cut_line(builder);
            builder.options.style.write_loss(loss, &mut self.label, &mut builder.batch);
        }
        Outcome::nothing(ready.id)
    }

    /// Ends the open line of this stream before a gap. What follows does not belong to that line.
    fn cut_line(&self, builder: &mut BatchBuilder<'_, '_>) {
        let style = &builder.options.style;
        let may_mix = builder.options.raw && style.is_plain();
        if *builder.open == Some(self.key) && !may_mix {
            style.cut_line(builder.open, &mut builder.batch);
        }
    }

    /// Returns whether a part of a line has to wait for its rest. The part consists of what was
    /// copied out of the ring and of `part` bytes in the ring.
    fn must_wait(
        &mut self,
        part: usize,
        id: FeedId,
        reader: &BatchReader,
        builder: &BatchBuilder<'_, '_>,
    ) -> bool {
        let len = self.partial.bytes.len().saturating_add(part);
        let clock = builder.clock;
        let wait = match &mut self.partial.wait {
            Some(wait) => {
                wait.update(len, reader.is_stalled(id), clock);
                wait
            }
            wait => wait.insert(PartWait::begin(len, clock)),
        };
        !wait.has_expired(&builder.options.flush_timeout, clock)
    }

    /// Returns whether a part of a line may be written at once, because no other stream can write
    /// into its line or because the options permit that.
    fn may_write_parts(&self, reader: &BatchReader, builder: &BatchBuilder<'_, '_>) -> bool {
        let style = &builder.options.style;
        let continues = *builder.open == Some(self.key);
        builder.options.raw
            || style.is_by_fragment()
            || (style.joins_parts() && (continues || self.is_sole_writer(reader, builder)))
    }

    /// Returns whether nothing else writes to the destination.
    fn is_sole_writer(&self, reader: &BatchReader, builder: &BatchBuilder<'_, '_>) -> bool {
        builder.exclusive && (self.sole || reader.has_one_stream())
    }

    /// Returns whether the ends of lines do not matter and need not be searched.
    fn ignores_lines(&self, reader: &BatchReader, builder: &BatchBuilder<'_, '_>) -> bool {
        builder.options.style.is_plain()
            && self.partial.bytes.is_empty()
            && self.is_sole_writer(reader, builder)
    }

    /// Adds the first `count` bytes of `window` to the batch.
    fn print_bytes<'a>(&mut self, window: Window<'a>, count: usize, builder: &mut BatchBuilder<'_, 'a>) {
        let ready: &'a [u8] = window.bytes.get(..count).unwrap_or_default();
        self.taken = self.taken.saturating_add(ready.len());
        let mut start = 0;
        if !self.partial.bytes.is_empty() && !ready.is_empty() {
            start = memchr(b'\n', ready).map_or(count, |index| index.saturating_add(1));
            self.partial.bytes.extend_from_slice(ready.get(..start).unwrap_or_default());
            self.print_part(builder);
        }
        let Some(rest) = ready.get(start..).filter(|rest| !rest.is_empty()) else { return };
        let offset = window.offset.saturating_add(start as u64);
        let run = Run { bytes: rest, offset, times: builder.times };
        let style = &builder.options.style;
        style.write(&run, &mut self.label, (self.key, builder.open), &mut builder.batch, Batch::add);
        builder.written = builder.written.saturating_add(rest.len() as u64);
    }

    /// Adds to the batch the part that was copied out of the ring before.
    fn print_part(&mut self, builder: &mut BatchBuilder<'_, '_>) {
        let PartialLine { bytes, offset, time, .. } = &self.partial;
        let time = time.map(|time| (*offset, time));
        let run = Run { bytes, offset: *offset, times: time.as_slice() };
        let style = &builder.options.style;
        let open = (self.key, &mut *builder.open);
        style.write(&run, &mut self.label, open, &mut builder.batch, |batch, piece| batch.copy(piece));
        builder.written = builder.written.saturating_add(bytes.len() as u64);
        self.partial.bytes.clear();
    }

    /// Copies the bytes of `window`, which are a part of a line, out of the ring.
    fn copy_part(&mut self, window: Window<'_>, times: &[(u64, u64)]) {
        self.taken = self.taken.saturating_add(window.bytes.len());
        let partial = &mut self.partial;
        if partial.bytes.is_empty() {
            partial.offset = window.offset;
            let first = times.iter().rev().find(|(offset, _)| *offset <= partial.offset);
            partial.time = first.map(|(_, time)| *time);
        }
        partial.bytes.extend_from_slice(window.bytes);
    }
}
