//! One stream of a printer: which of its bytes are written, and which wait for the rest of their
//! line.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use crate::batch::Batch;
use crate::files::FileId;
use crate::fold::Folder;
use crate::format::label::Label;
use crate::format::mark::StreamMark;
use crate::format::style::{OpenLine, Run};
use crate::lines::{Decision, FlushClock, FoundBytes, Hold, HoldRules, LineHolder, Rest};
use crate::options::Options;
use crate::output::Audience;
use iof_tool::{BatchReader, Behind, FeedId, Origin};

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
pub(crate) struct PrintedStream {
    pub key: u64,
    label: Label,
    pub partial: LineHolder,
    /// When to check again the part of a line that waits.
    pub due: Option<Instant>,
    /// Until when its file waits for more bytes, see [`Files::drops_cache`](crate::Files::drops_cache).
    pub gathers_until: Option<Instant>,
    /// The file of its rank, if that is its destination.
    pub file: Option<FileId>,
    /// Set if no other stream of the printer has this destination.
    pub sole: bool,
    /// The number of bytes in its ring that are in the present batch, or were copied elsewhere.
    pub taken: usize,
}

/// A stream that may have something to write, as found by a peek.
pub(crate) struct ReadyStream {
    pub id: FeedId,
    /// Set if its ring has bytes.
    pub has_bytes: bool,
    /// Set if the line ends here, even without a newline.
    pub ends: bool,
    /// The gap or the end at this position.
    pub mark: Option<StreamMark>,
    /// The number of bytes in its ring that may be written now. Later ones were read after bytes of
    /// another stream, which must be written first.
    pub until: usize,
    /// Set if it must be written after the stream before it in the list, or not in this round.
    pub follows: bool,
}

/// The steps for a stream once its bytes are written.
#[derive(Clone, Copy)]
pub(crate) struct Outcome {
    pub id: FeedId,
    /// Set if the remaining bytes are deferred until more arrive.
    pub defer: bool,
    /// Set if a part of a line waits for a limited time.
    pub waits: bool,
}

/// A batch under construction, to which many streams contribute, with its destination's state.
pub(crate) struct BatchBuilder<'p, 'a> {
    pub options: &'p Options,
    pub clock: &'p FlushClock,
    /// The line that is open at the destination.
    pub open: &'p mut OpenLine,
    /// Set if no other printer writes to the destination.
    pub exclusive: bool,
    /// The reader of the destination.
    pub audience: Audience,
    pub batch: Batch<'a>,
    /// Reusable memory for times.
    pub times: &'p mut Vec<(u64, u64)>,
    /// The number of bytes of streams in the batch.
    pub written: u64,
    /// Set if the last stream has more for which there was no room.
    pub is_full: bool,
    /// The folder that holds the bytes before they are written, if they are folded.
    pub folder: Option<&'p mut Folder>,
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

impl<'p> BatchBuilder<'p, '_> {
    /// Returns the rules for a stream whose part has to wait as `hold` specifies.
    fn rules<'r>(&self, hold: Hold, origin: Origin<'r>) -> HoldRules<'r>
    where
        'p: 'r,
    {
        let BatchBuilder { options, clock, audience, .. } = *self;
        HoldRules { hold, timeout: &options.flush_timeout, clock, audience, origin }
    }
}

impl Outcome {
    pub fn nothing(id: FeedId) -> Outcome {
        Outcome { id, defer: false, waits: false }
    }
}

impl PrintedStream {
    pub fn new(label: Label, file: Option<FileId>, sole: bool) -> PrintedStream {
        PrintedStream {
            key: new_key(),
            label,
            partial: LineHolder::default(),
            due: None,
            gathers_until: None,
            file,
            sole,
            taken: 0,
        }
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
        let behind = if len < found.len() { Behind::Bytes } else { found.behind() };
        let considered = FoundBytes {
            bytes,
            limit: room,
            is_last: ready.ends || matches!(behind, Behind::Gap | Behind::Nothing),
            has_more: len < found.len(),
            max_stay: match behind {
                Behind::Bytes => usize::try_from(found.capacity() / PART_DIVISOR).unwrap_or(usize::MAX),
                _ => 0,
            },
            is_stalled: reader.is_stalled(ready.id),
        };
        let rules = builder.rules(self.hold(reader, builder), found.origin());
        let Decision { write, rest } = self.partial.decide(&considered, &rules, || found.last_read());
        builder.is_full = rest == Rest::Next && write < bytes.len() && room < bytes.len();
        self.print_bytes(window, write, builder);
        match rest {
            Rest::Next if behind == Behind::Gap && write == bytes.len() => self.cut_line(builder),
            Rest::Next | Rest::Stay => {}
            Rest::Copy => self.copy_part(window.after(write), builder.times),
        }
        Outcome { id: ready.id, defer: rest == Rest::Stay, waits: self.partial.is_timed() }
    }

    /// Handles a stream whose ring has nothing more: adds to the batch the part that was copied out
    /// of the ring before, unless it has to wait.
    fn print_without_bytes(
        &mut self,
        ready: &ReadyStream,
        reader: &BatchReader,
        builder: &mut BatchBuilder<'_, '_>,
    ) -> Outcome {
        if !self.partial.bytes().is_empty() {
            if let Some(origin) = reader.origin(ready.id).filter(|_| !ready.ends) {
                let rules = builder.rules(self.hold(reader, builder), origin);
                let is_stalled = reader.is_stalled(ready.id);
                if self.partial.still_waits(is_stalled, &rules, || reader.last_read(ready.id)) {
                    return Outcome { waits: self.partial.is_timed(), ..Outcome::nothing(ready.id) };
                }
            }
            self.print_part(builder);
        }
        self.partial.end();
        if let Some(mark) = ready.mark {
            self.cut_line(builder);
            builder.options.style.write_mark(mark, &mut self.label, &mut builder.batch);
        }
        Outcome::nothing(ready.id)
    }

    /// Ends the open line of this stream before a gap. What follows does not belong to that line.
    fn cut_line(&mut self, builder: &mut BatchBuilder<'_, '_>) {
        self.label.begun = None;
        if let Some(folder) = &mut builder.folder {
            return folder.flush(self.key);
        }
        let style = &builder.options.style;
        let may_mix = builder.options.raw && style.is_plain();
        if *builder.open == Some(self.key) && !may_mix {
            style.cut_line(builder.open, &mut builder.batch);
        }
    }

    /// Returns the part of the stream's output that has to wait, unless no other stream can write
    /// into it.
    fn hold(&self, reader: &BatchReader, builder: &BatchBuilder<'_, '_>) -> Hold {
        let Options { style, raw, .. } = builder.options;
        let is_sole = self.is_sole_writer(reader, builder);
        match *builder.open == Some(self.key) {
            _ if is_sole && style.is_plain() && self.partial.bytes().is_empty() => Hold::Nothing,
            _ if *raw => Hold::Never,
            _ if style.is_by_fragment() => Hold::Characters,
            _ if is_sole && style.joins_parts() && !style.is_filtered() => Hold::Never,
            true if style.joins_parts() => Hold::Continued,
            _ => Hold::Lines,
        }
    }

    /// Returns whether nothing else writes to the destination.
    fn is_sole_writer(&self, reader: &BatchReader, builder: &BatchBuilder<'_, '_>) -> bool {
        builder.exclusive && (self.sole || reader.has_one_stream())
    }

    /// Adds the first `count` bytes of `window` to the batch.
    fn print_bytes<'a>(&mut self, window: Window<'a>, count: usize, builder: &mut BatchBuilder<'_, 'a>) {
        let ready: &'a [u8] = window.bytes.get(..count).unwrap_or_default();
        self.taken = self.taken.saturating_add(ready.len());
        let start = self.partial.complete(ready);
        if start > 0 {
            self.print_part(builder);
        }
        let Some(rest) = ready.get(start..).filter(|rest| !rest.is_empty()) else { return };
        let offset = window.offset.saturating_add(start as u64);
        let run = Run { bytes: rest, offset, times: builder.times };
        let (style, label) = (&builder.options.style, &mut self.label);
        match &mut builder.folder {
            Some(folder) => style.select(&run, label, |run, _| folder.add(self.key, &run)),
            None => style.write(&run, label, (self.key, builder.open), &mut builder.batch, Batch::add),
        }
        builder.written = builder.written.saturating_add(rest.len() as u64);
    }

    /// Adds to the batch the part that was copied out of the ring before.
    fn print_part(&mut self, builder: &mut BatchBuilder<'_, '_>) {
        let PrintedStream { key, label, partial, .. } = self;
        partial.flush(|bytes, offset, time| {
            let time = time.map(|time| (offset, time));
            let run = Run { bytes, offset, times: time.as_slice() };
            let style = &builder.options.style;
            let open = (*key, &mut *builder.open);
            match &mut builder.folder {
                Some(folder) => style.select(&run, label, |run, _| folder.add(*key, &run)),
                None => style.write(&run, label, open, &mut builder.batch, |batch, piece| batch.copy(piece)),
            }
            builder.written = builder.written.saturating_add(bytes.len() as u64);
        });
    }

    /// Copies the bytes of `window`, which are a part of a line, out of the ring.
    fn copy_part(&mut self, window: Window<'_>, times: &[(u64, u64)]) {
        self.taken = self.taken.saturating_add(window.bytes.len());
        let first = times.iter().rev().find(|(offset, _)| *offset <= window.offset);
        self.partial.copy(window.bytes, window.offset, first.map(|(_, time)| *time));
    }
}
