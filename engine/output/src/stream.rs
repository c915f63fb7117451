//! One stream of a printer: what of it is written at its turn, and what waits for the rest of its
//! line.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use iof_tool::{Behind, Bytes, FeedId, Tool};
use memchr::memchr;

use crate::batch::Batch;
use crate::files::FileId;
use crate::lines::{Attention, Cut, Held, Wait, cut};
use crate::printer::Options;
use crate::style::{Label, Open, Run};

/// The part of a ring, as a divisor, that may hold the beginning of a line; more is taken out of
/// it.
const HELD_PART: u64 = 4;

/// The number of the next stream among all of all printers of this process.
static NEXT_KEY: AtomicU64 = AtomicU64::new(1);

/// A stream, from its first byte on.
pub(crate) struct Stream {
    key: u64,
    label: Label,
    pub held: Held,
    /// When it is looked at again because a part of a line waits.
    pub due: Option<Instant>,
    /// Where it goes, if that is a file of its rank.
    pub file: Option<FileId>,
    /// No other stream of the printer writes there.
    alone: bool,
}

/// A stream whose turn it is.
pub(crate) struct Turn {
    pub id: FeedId,
    /// There are bytes in its ring.
    pub has_bytes: bool,
    /// The line ends here, even without a newline.
    pub ends: bool,
    /// Bytes are missing before what comes next.
    pub gap: bool,
}

/// What is to be done with a stream when its bytes are written.
pub(crate) struct Taken {
    pub id: FeedId,
    /// So many of those in its ring are written, or held elsewhere.
    pub bytes: usize,
    /// The others there are left until more come.
    pub leave: bool,
    /// A part of a line waits.
    pub waits: bool,
}

/// What many streams write to together, in one go.
pub(crate) struct Page<'p, 'a> {
    pub options: &'p Options,
    pub clock: &'p Attention,
    /// In whose line it ends.
    pub open: &'p mut Open,
    /// No other printer writes there.
    pub is_ours: bool,
    pub batch: Batch<'a>,
    /// Memory for times.
    pub times: &'p mut Vec<(u64, u64)>,
    /// Bytes of streams in it.
    pub written: u64,
}

impl Taken {
    pub fn nothing(id: FeedId) -> Taken {
        Taken { id, bytes: 0, leave: false, waits: false }
    }
}

impl Stream {
    pub fn new(label: Label, file: Option<FileId>, alone: bool) -> Stream {
        let key = NEXT_KEY.fetch_add(1, Relaxed);
        Stream { key, label, held: Held::default(), due: None, file, alone }
    }

    /// Puts on the page what is to be written now, about `room` bytes at most.
    pub fn print<'a>(&mut self, turn: &Turn, tool: &'a Tool, room: usize, page: &mut Page<'_, 'a>) -> Taken {
        page.times.clear();
        let Some(bytes) = tool.bytes(turn.id).filter(|_| turn.has_bytes) else {
            return self.print_without_bytes(turn, tool, page);
        };
        if page.options.style.shows_time() {
            bytes.times(page.times);
        }
        let max_line = page.options.patience.max_line;
        let Cut { mut pass, part } = if self.is_lump(tool, page) {
            Cut { pass: bytes.len().min(room), part: 0 }
        } else {
            cut(&bytes, self.held.bytes.len(), room, max_line)
        };
        let behind = bytes.behind();
        if pass > 0 {
            // What waits from now on is another line.
            self.held.wait = None;
        }
        let waits = part > 0
            && !turn.ends
            && !matches!(behind, Behind::Gap | Behind::Nothing)
            && !self.may_go(tool, page)
            && self.has_to_wait(part, turn.id, tool, page);
        if part > 0 && !waits {
            pass = bytes.len();
        }
        if pass > 0 {
            self.print_bytes(bytes, pass, page);
        }
        if !waits {
            self.held.wait = None;
            return Taken { bytes: pass, ..Taken::nothing(turn.id) };
        }
        if behind == Behind::Bytes && part as u64 <= bytes.capacity() / HELD_PART {
            return Taken { id: turn.id, bytes: pass, leave: true, waits };
        }
        self.hold(bytes, pass, page.times);
        Taken { id: turn.id, bytes: bytes.len(), leave: false, waits }
    }

    /// Puts on the page what was taken out of the ring before, unless that has to wait: the ring
    /// has nothing more.
    fn print_without_bytes(&mut self, turn: &Turn, tool: &Tool, page: &mut Page<'_, '_>) -> Taken {
        let holds = !self.held.bytes.is_empty();
        if holds && !turn.ends && self.has_to_wait(0, turn.id, tool, page) {
            return Taken { waits: true, ..Taken::nothing(turn.id) };
        }
        if holds {
            self.print_held(page);
        }
        self.held.wait = None;
        if turn.gap && *page.open == Some(self.key) {
            page.options.style.end_line(page.open, &mut page.batch);
        }
        Taken::nothing(turn.id)
    }

    /// Whether a part of a line has to wait for the rest: what was taken out of the ring, and
    /// `part` bytes in it.
    fn has_to_wait(&mut self, part: usize, id: FeedId, tool: &Tool, page: &Page<'_, '_>) -> bool {
        let len = self.held.bytes.len().saturating_add(part);
        let clock = page.clock;
        let wait = match &mut self.held.wait {
            Some(wait) => {
                wait.go_on(len, tool.is_stalled(id), clock);
                wait
            }
            wait => wait.insert(Wait::begin(len, clock)),
        };
        !wait.is_over(&page.options.patience, clock)
    }

    /// Whether a part of a line may be written at once: nobody can write into it, or it does not
    /// matter.
    fn may_go(&self, tool: &Tool, page: &Page<'_, '_>) -> bool {
        let style = &page.options.style;
        let goes_on = *page.open == Some(self.key);
        page.options.raw
            || style.is_by_fragment()
            || (style.joins_parts() && (goes_on || self.is_alone(tool, page)))
    }

    /// Whether nobody else writes there.
    fn is_alone(&self, tool: &Tool, page: &Page<'_, '_>) -> bool {
        page.is_ours && (self.alone || tool.has_one_stream())
    }

    /// Whether it does not matter where its lines end, so that they need not be looked for.
    fn is_lump(&self, tool: &Tool, page: &Page<'_, '_>) -> bool {
        page.options.style.is_plain() && self.held.bytes.is_empty() && self.is_alone(tool, page)
    }

    fn print_bytes<'a>(&mut self, bytes: Bytes<'a>, pass: usize, page: &mut Page<'_, 'a>) {
        let passed: &'a [u8] = bytes.as_slice().get(..pass).unwrap_or_default();
        let mut from = 0;
        if !self.held.bytes.is_empty() {
            from = memchr(b'\n', passed).map_or(pass, |at| at.saturating_add(1));
            self.held.bytes.extend_from_slice(passed.get(..from).unwrap_or_default());
            self.print_held(page);
        }
        let Some(rest) = passed.get(from..).filter(|rest| !rest.is_empty()) else { return };
        let run = Run { bytes: rest, offset: bytes.offset().saturating_add(from as u64), times: page.times };
        let style = &page.options.style;
        style.write(&run, &mut self.label, (self.key, page.open), &mut page.batch, Batch::add);
        page.written = page.written.saturating_add(rest.len() as u64);
    }

    /// Puts on the page what was taken out of the ring before.
    fn print_held(&mut self, page: &mut Page<'_, '_>) {
        let Held { bytes, offset, time, .. } = &self.held;
        let time = time.map(|time| (*offset, time));
        let run = Run { bytes, offset: *offset, times: time.as_slice() };
        let style = &page.options.style;
        style
            .write(&run, &mut self.label, (self.key, page.open), &mut page.batch, |to, piece| to.copy(piece));
        page.written = page.written.saturating_add(bytes.len() as u64);
        self.held.bytes.clear();
    }

    /// Takes a part of a line, what is behind the first `pass` of `bytes`, out of the ring.
    fn hold(&mut self, bytes: Bytes<'_>, pass: usize, times: &[(u64, u64)]) {
        let held = &mut self.held;
        if held.bytes.is_empty() {
            held.offset = bytes.offset().saturating_add(pass as u64);
            held.time = times.iter().rev().find(|(from, _)| *from <= held.offset).map(|(_, time)| *time);
        }
        held.bytes.extend_from_slice(bytes.get(pass..).unwrap_or_default());
    }
}
