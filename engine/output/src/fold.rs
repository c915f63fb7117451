//! The folding of output: what several ranks write is written once, with the list of these ranks. Pure.
//!
//! Lines are held in the order in which they were first read. A line that a rank writes joins the first
//! held line with the same text behind the rank's own last one, or is held behind all others. They leave in
//! that order, so the lines of a stream keep theirs.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use iof_proto::Rank;
use iof_proto::ranges::ranges;

use crate::batch::{Batch, MAX_COPIED};
use crate::format::label::LabelSource;
use crate::format::style::{OpenLine, Run, Style};

/// The time for which a line waits for further ranks that write it.
const FOLD_WINDOW: Duration = Duration::from_millis(250);

/// The largest number of bytes that one printer holds to fold them, with what each line costs. It is compared after
/// each 64 KiB that were read.
pub(crate) const MAX_FOLDED: usize = 64 << 20;

/// The bytes that a held line counts in addition to its text, and those for each of its ranks.
const LINE_COST: usize = 320;
const RANK_COST: usize = 8;

/// The lines around the label of a block.
const RULE: &str = "---------------\n";

/// The folding of what a [`Printer`](crate::Printer) writes to an [`Output`](crate::Output) as text. A
/// style with tags or a label shows the ranks. A line that is cut gets a newline.
#[derive(Clone, Copy, Debug)]
pub struct Fold {
    /// Streams are held until their ends, and equal ones are written as one block, in place of
    /// equal lines that are read within 0.25 s.
    pub whole: bool,
    /// Called on the printer's thread with the largest number of bytes that it holds, 64 MiB, when it holds more. They
    /// are then written without waiting for further ranks, and streams need not reach their ends first.
    pub on_full: fn(usize),
}

/// The lines that a printer holds to fold them.
pub(crate) struct Folder {
    fold: Fold,
    limit: usize,
    kinds: Vec<Kind>,
    /// The streams by their keys.
    streams: BTreeMap<u64, Member>,
    lines: VecDeque<HeldLine>,
    /// The number of the first of `lines`. Lines are numbered in their order.
    first: u64,
    /// Lines before this one do not wait.
    due: u64,
    held: usize,
}

/// Streams that may be folded: of one job and channel.
struct Kind {
    source: LabelSource,
    /// The numbers of the held lines with a text.
    numbers: HashMap<Arc<[u8]>, VecDeque<u64>>,
}

struct Member {
    kind: usize,
    rank: Rank,
    /// The first line that the next line of the stream may join.
    next: u64,
    /// The whole output, if that is folded.
    output: Vec<u8>,
}

/// A line, or the output of a stream.
pub(crate) struct HeldLine {
    kind: usize,
    text: Arc<[u8]>,
    time: Option<u64>,
    since: Instant,
    ranks: Vec<Rank>,
}

impl Folder {
    pub fn new(fold: Fold, limit: usize) -> Folder {
        let (kinds, streams, lines) = (Vec::new(), BTreeMap::new(), VecDeque::new());
        Folder { fold, limit, kinds, streams, lines, first: 0, due: 0, held: 0 }
    }

    /// Adds a stream by its key.
    pub fn begin(&mut self, key: u64, source: &LabelSource) {
        // Messages for the whole job are not those of a rank.
        let rank = if source.rank == Rank::UNDEF { source.rank } else { Rank(0) };
        let common = LabelSource { rank, host: None, pid: None, ..source.clone() };
        let kind = self.kinds.iter().position(|kind| kind.source == common).unwrap_or(self.kinds.len());
        if kind == self.kinds.len() {
            self.kinds.push(Kind { source: common, numbers: HashMap::new() });
        }
        self.streams.insert(key, Member { kind, rank: source.rank, next: 0, output: Vec::new() });
    }

    /// Removes a stream that has ended, unless its output waits for the ends of all.
    pub fn end(&mut self, key: u64) {
        if !self.fold.whole {
            self.streams.remove(&key);
        }
    }

    /// Holds what a stream has written.
    pub fn add(&mut self, key: u64, run: &Run<'_, '_>) {
        if self.fold.whole {
            let Some(Member { output, .. }) = self.streams.get_mut(&key) else { return };
            let before = output.capacity();
            output.extend_from_slice(run.bytes);
            self.held = self.held.saturating_add(output.capacity().saturating_sub(before));
            return;
        }
        let mut offset = run.offset;
        for text in run.bytes.split_inclusive(|byte| *byte == b'\n') {
            let read = run.times.partition_point(|(start, _)| *start <= offset).checked_sub(1);
            self.add_line(key, text, read.and_then(|index| run.times.get(index)).map(|(_, time)| *time));
            offset = offset.saturating_add(text.len() as u64);
        }
    }

    fn add_line(&mut self, key: u64, text: &[u8], time: Option<u64>) {
        let Folder { kinds, streams, lines, first, held, .. } = self;
        let Some(Member { kind, rank, next, .. }) = streams.get_mut(&key) else { return };
        let Some(Kind { numbers, .. }) = kinds.get_mut(*kind) else { return debug_assert!(false, "no kind") };
        let later = |equal: &VecDeque<u64>| equal.get(equal.partition_point(|number| number < next)).copied();
        let number = numbers.get(text).and_then(later).unwrap_or_else(|| {
            let (number, text) = (first.saturating_add(lines.len() as u64), Arc::<[u8]>::from(text));
            numbers.entry(Arc::clone(&text)).or_default().push_back(number);
            *held = held.saturating_add(text.len()).saturating_add(LINE_COST);
            let (since, ranks) = (Instant::now(), Vec::new());
            lines.push_back(HeldLine { kind: *kind, text, time, since, ranks });
            number
        });
        let index = usize::try_from(number.saturating_sub(*first)).ok();
        if let Some(line) = index.and_then(|index| lines.get_mut(index)) {
            line.ranks.push(*rank);
            *held = held.saturating_add(RANK_COST);
        }
        *next = number.saturating_add(1);
    }

    /// Makes all that is held of a stream due, because bytes behind it are missing.
    pub fn flush(&mut self, key: u64) {
        let Some(Member { output, .. }) = self.streams.get_mut(&key) else { return };
        let output = mem::take(output);
        self.held = self.held.saturating_sub(output.capacity());
        if !output.is_empty() {
            self.add_line(key, &output, None);
        }
        self.due = self.due.max(self.streams.get(&key).map_or(0, |member| member.next));
    }

    /// Makes all that is held due, because all streams have ended.
    pub fn flush_all(&mut self) {
        let mut streams: Vec<_> =
            self.streams.iter().map(|(key, member)| (member.kind, member.rank, *key)).collect();
        streams.sort_unstable();
        streams.into_iter().for_each(|(.., key)| self.flush(key));
        self.due = self.first.saturating_add(self.lines.len() as u64);
    }

    /// Returns when a line is due, if any waits.
    pub fn next_due(&self) -> Option<Instant> {
        self.lines.front()?.since.checked_add(FOLD_WINDOW)
    }

    /// Returns the lines that are due or exceed the limit, about 64 KiB at most.
    pub fn take_due(&mut self) -> Vec<HeldLine> {
        if self.held > self.limit {
            (self.fold.on_full)(self.limit);
            if mem::take(&mut self.fold.whole) {
                // They are written line by line.
                self.flush_all();
            }
        }
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while bytes < MAX_COPIED
            && let Some(HeldLine { since, .. }) = self.lines.front()
            && (self.first < self.due || self.held > self.limit || since.elapsed() >= FOLD_WINDOW)
            && let Some(mut line) = self.lines.pop_front()
        {
            self.first = self.first.saturating_add(1);
            line.ranks.sort_unstable();
            let costs = line.ranks.len().saturating_mul(RANK_COST).saturating_add(LINE_COST);
            let costs = line.text.len().saturating_add(costs);
            debug_assert!(costs <= self.held, "a line costs {costs} of {} bytes that are held", self.held);
            self.held = self.held.saturating_sub(costs);
            let numbers = self.kinds.get_mut(line.kind).map(|kind| &mut kind.numbers);
            if let Some(numbers) = numbers
                && let Some(equal) = numbers.get_mut(&line.text)
                && (equal.pop_front(), equal.is_empty()).1
            {
                numbers.remove(&line.text);
            }
            bytes = bytes.saturating_add(line.text.len());
            taken.push(line);
        }
        taken
    }

    /// Appends a line or a block to `batch`, with its ranks.
    pub fn write<'a>(&self, line: &'a HeldLine, style: &Style, open: &mut OpenLine, batch: &mut Batch<'a>) {
        let HeldLine { kind, text, time, ranks, .. } = line;
        let (Some(kind), Some(rank)) = (self.kinds.get(*kind), ranks.first()) else { return };
        let list = if ranks.len() == 1 { rank.to_string() } else { ranges(ranks).join(",") };
        let mut label = style.text_label(&LabelSource { rank: *rank, ..kind.source.clone() }, &list);
        if self.fold.whole {
            let label = mem::take(&mut label);
            let head = String::from_utf8_lossy(label.rendered.trim_ascii_end()).into_owned();
            style.end_line(open, batch);
            batch.copy(format!("{RULE}{head} ({})\n{RULE}", ranks.len()).as_bytes());
        }
        let time = time.map(|time| (0, time));
        // No stream has this key.
        let run = Run { bytes: text, offset: 0, times: time.as_slice() };
        style.write_all(&run, &mut label, (0, open), batch, &Batch::add);
        style.end_line(open, batch);
    }
}

#[cfg(test)]
mod tests;
