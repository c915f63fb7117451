//! The printer: a thread that writes what a tool pulls to an output or to files, line by line,
//! straight from the rings.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::mem;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use iof_proto::{Channel, Nspace, Proc};
use iof_tool::{BatchReader, FeedId, Gap, LostError, Origin, Peeked, PollReady, Tool};

use crate::batch::{Batch, MAX_COPIED};
use crate::destination::{Destination, OpenDestination};
use crate::files::{CacheDrops, FileError, FileId, Pool};
use crate::fold::{Folder, MAX_FOLDED};
use crate::format::label::LabelSource;
use crate::format::mark::StreamMark;
use crate::format::style::OpenLine;
use crate::lines::FlushClock;
use crate::options::Options;
use crate::order::Siblings;
use crate::output::Audience;
use crate::processes::Processes;
use crate::stream::{BatchBuilder, Outcome, PrintedStream, ReadyStream};
use late::{LateFile, keep_late};
use step::Running;

mod late;
mod reports;
mod siblings;
mod step;

/// The largest number of streams in one write. A larger number saves hardly anything.
const MAX_STREAMS: usize = 64;
/// The approximate limit of bytes in one write if they are not copied, so that no stream waits long
/// for its turn.
const MAX_LENT: usize = 1 << 20;

/// The reason why a printer ended before its registrations did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrintError {
    /// The output can't be written. The kind is `BrokenPipe` if the output is a pipe that no
    /// process reads any more.
    #[error("cannot write the output: {0}")]
    Write(io::Error),
    /// A rank's file can't be written.
    #[error("cannot write the {channel} of rank {}: {error}", proc.rank)]
    File {
        /// The rank.
        proc: Proc,
        /// The channel of the rank. Other channels may go to the same file.
        channel: Channel,
        /// The path of the file and the reason.
        error: FileError,
    },
    /// The engine violated the protocol.
    #[error(transparent)]
    Lost(#[from] LostError),
    /// The printer's thread panicked, which is a defect of this library.
    #[error("the printer's thread panicked")]
    Died,
}

/// The totals of a printer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrintReport {
    /// Bytes of output that were written, without tags and markup.
    pub written: u64,
    /// Bytes of output that were lost and reported as gaps, for each channel that lost any.
    pub lost: BTreeMap<Channel, u64>,
    /// The number of streams that were not delivered at all
    /// ([`Delivery::Missed`](iof_tool::Delivery::Missed)), if they had bytes.
    pub missed: u64,
    /// The number of broken streams: those of lost nodes, and those that were not read to their ends.
    pub broken: u64,
    /// The bytes that these streams miss at their ends, at least.
    pub broken_bytes: u64,
    /// A stream that has ended before the offset at which it was to begin: this offset, and the number of its bytes.
    pub ends_early: Option<(u64, u64)>,
    /// The number of streams that were not complete when the engine disconnected.
    pub unfinished: u64,
    /// The bytes that these streams had produced until then, as far as they are known.
    pub unfinished_bytes: u64,
    /// Set if the engine disconnected before it had announced every stream.
    pub misses_streams: bool,
    /// The effect of [`Files::drops_cache`](crate::Files::drops_cache).
    pub drops: CacheDrops,
    /// The exit codes of the jobs that have ended, see [`Delivery::JobEnded`](iof_tool::Delivery::JobEnded).
    pub exit_codes: BTreeMap<Nspace, Option<i32>>,
}

impl PrintReport {
    /// Returns the number of streams that are not whole, except for [gaps](PrintReport::lost). It is at least 1 if some
    /// were not announced.
    pub fn incomplete(&self) -> u64 {
        let PrintReport { missed, broken, unfinished, misses_streams, .. } = self;
        missed.saturating_add(*broken).saturating_add(*unfinished).saturating_add((*misses_streams).into())
    }
}

/// A thread that writes everything that a tool pulls to a file, pipe or terminal, or to a file for
/// each rank.
///
/// The bytes of each stream keep their order, and lines of different streams do not mix. Streams of
/// one process that go to one destination are written in the order in which they were read; a line
/// has the place of its last byte. A line is written in one piece. Only if its end is late
/// ([`FlushTimeout`](crate::FlushTimeout)), its beginning is written alone. If lines are tagged,
/// such a line is ended with a newline before a line of another stream begins, and where bytes are
/// missing. If only one stream is written to an output or file, its bytes are written immediately,
/// without waiting for the end of a line.
///
/// Without tags, bytes are written directly from the engine's rings, without a copy. A printer that
/// is dropped without [`Printer::join`] continues.
pub struct Printer {
    thread: JoinHandle<Result<PrintReport, PrintError>>,
}

impl fmt::Debug for Printer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Printer").field("finished", &self.thread.is_finished()).finish_non_exhaustive()
    }
}

impl Printer {
    /// Starts the thread. It writes what the registrations of `tool` deliver, including those with
    /// a callback. `on_gap` is called on this thread for every gap, between the writes of the bytes
    /// before and after it. For streams that are not delivered
    /// ([`Delivery::Missed`](iof_tool::Delivery::Missed)), it is called with their rank, or the
    /// wildcard rank for several ranks, offset 0 and the number of their bytes.
    ///
    /// # Errors
    /// Fails if the process can create no further thread or descriptor.
    pub fn start(
        tool: Tool,
        destination: impl Into<Destination>,
        options: Options,
        on_gap: impl FnMut(&Proc, Channel, Gap) + Send + 'static,
    ) -> io::Result<Printer> {
        let mut destination = destination.into().open(&options);
        if let OpenDestination::Files(open) = &mut destination {
            open.pool = Some(Box::new(Pool::new()?));
        }
        let fold = options.fold.filter(|_| matches!(destination, OpenDestination::Output(_)));
        let task = PrinterTask {
            destination,
            folder: fold.map(|fold| Folder::new(fold, MAX_FOLDED)),
            clock: FlushClock::new(&options.flush_timeout, Instant::now()),
            options,
            streams: Vec::new(),
            siblings: Siblings::default(),
            round: 0,
            members: Vec::new(),
            incomplete: Vec::new(),
            due: BTreeSet::new(),
            processes: Processes::default(),
            buffer: Vec::new(),
            times: Vec::new(),
            ended: Vec::new(),
            late: BTreeMap::new(),
            report: PrintReport::default(),
        };
        let running = Running { task, reader: BatchReader::new(tool), on_gap };
        let thread = thread::Builder::new().name("iof-printer".into()).spawn(move || running.run())?;
        Ok(Printer { thread })
    }

    /// Blocks until all registrations have ended and everything that they delivered is written, or
    /// until an error. With a [persistent](iof_tool::Pull::persistent) registration this is when
    /// the engine ends.
    ///
    /// # Errors
    /// Returns [`PrintError`] if a destination can't be written or the engine violated the
    /// protocol. The rest of the output is not written then, and no longer holds ranks back.
    pub fn join(self) -> Result<PrintReport, PrintError> {
        self.thread.join().unwrap_or(Err(PrintError::Died))
    }
}

/// The state of the printer's thread.
struct PrinterTask {
    destination: OpenDestination,
    options: Options,
    clock: FlushClock,
    /// The streams by the numbers of their feeds.
    streams: Vec<Option<PrintedStream>>,
    /// The streams that have to be written in one order.
    siblings: Siblings,
    /// The number of calls of `peek_all`.
    round: u64,
    /// Reusable memory for the streams of a group.
    members: Vec<FeedId>,
    /// Streams with bytes that are written once the other streams of their groups are known.
    incomplete: Vec<FeedId>,
    /// When to check again the streams whose parts of lines wait.
    due: BTreeSet<(Instant, FeedId)>,
    folder: Option<Folder>,
    processes: Processes,
    /// Reusable memory for batches.
    buffer: Vec<u8>,
    /// Reusable memory for times.
    times: Vec<(u64, u64)>,
    /// Streams that have ended and are to be removed.
    ended: Vec<FeedId>,
    /// The files that threads write.
    late: BTreeMap<FileId, LateFile>,
    report: PrintReport,
}

impl PrinterTask {
    /// Writes what the streams `ids` have, as `polled` has found them. Returns whether nothing more
    /// will follow.
    fn turn(
        &mut self,
        reader: &mut BatchReader,
        (polled, ids): (PollReady, &[FeedId]),
        on_gap: &mut impl FnMut(&Proc, Channel, Gap),
    ) -> Result<bool, PrintError> {
        while let Some(missed) = reader.take_missed() {
            self.report_missed(&missed, on_gap)?;
        }
        while let Some(rank) = reader.take_rank() {
            self.write_rank(&rank)?;
        }
        if polled == PollReady::Done {
            while !self.late.is_empty() {
                self.take_written(reader, true)?;
            }
            self.folder.iter_mut().for_each(Folder::flush_all);
            self.write_folded(None)?;
            if let OpenDestination::Files(files) = &self.destination {
                self.report.drops = files.drops();
            }
            self.report.misses_streams = reader.tool().misses_streams();
            self.report.exit_codes.clone_from(reader.exit_codes());
            return Ok(true);
        }
        self.clock.advance(Instant::now());
        self.add_new(reader, ids)?;
        for chunk in ids.chunks(MAX_STREAMS) {
            let ready = self.peek_all(reader, chunk, on_gap)?;
            self.print(reader, &ready)?;
            self.remove_ended();
        }
        self.complete_groups(reader)?;
        self.rearm_due(reader);
        self.write_folded(None)?;
        Ok(false)
    }

    /// Peeks at each stream, reports its gap or end, and returns the streams that may have
    /// something to write, in the order in which it is to be written.
    fn peek_all(
        &mut self,
        reader: &mut BatchReader,
        ids: &[FeedId],
        on_gap: &mut impl FnMut(&Proc, Channel, Gap),
    ) -> Result<Vec<ReadyStream>, PrintError> {
        self.round = self.round.wrapping_add(1);
        let mut ready = Vec::with_capacity(ids.len());
        for &id in ids {
            if self.waits_for_file(reader, id) || !self.siblings.begin_round(id, self.round) {
                continue;
            }
            match self.peek(reader, id, on_gap)? {
                // Its bytes remain in the ring until the next turn.
                Some(found) if found.has_bytes && self.misses_siblings(reader, id) => {
                    self.incomplete.push(id)
                }
                Some(found) if found.has_bytes => self.peek_siblings(reader, found, &mut ready, on_gap)?,
                found => ready.extend(found),
            }
        }
        Ok(ready)
    }

    /// Peeks at a stream once, and reports its gap or end. Returns `None` if it has nothing to
    /// write.
    fn peek(
        &mut self,
        reader: &mut BatchReader,
        id: FeedId,
        on_gap: &mut impl FnMut(&Proc, Channel, Gap),
    ) -> Result<Option<ReadyStream>, PrintError> {
        let peeked = reader.peek(id);
        if self.stream(id).is_none()
            && (matches!(peeked, Peeked::Bytes | Peeked::Gap(_) | Peeked::Broken { .. })
                || matches!(peeked, Peeked::Complete(_)) && self.options.style.has_objects())
        {
            self.add(reader, id)?;
        }
        match peeked {
            Peeked::Gap(gap) => {
                self.write_folded(Some(id))?;
                if let Some(origin) = reader.origin(id) {
                    let lost = self.report.lost.entry(origin.channel).or_default();
                    *lost = lost.saturating_add(gap.lost);
                    on_gap(origin.source, origin.channel, gap);
                }
            }
            Peeked::Broken { missing, .. } => {
                let report = &mut self.report;
                report.broken = report.broken.saturating_add(1);
                report.broken_bytes = report.broken_bytes.saturating_add(missing);
            }
            Peeked::Gone(counts) => {
                let report = &mut self.report;
                report.unfinished = report.unfinished.saturating_add(1);
                report.unfinished_bytes = report.unfinished_bytes.saturating_add(counts.produced);
            }
            Peeked::Complete(counts) if counts.ends_early() => {
                self.report.ends_early = Some((counts.begin, counts.produced));
            }
            Peeked::Bytes | Peeked::Nothing | Peeked::Complete(_) | Peeked::Flushed => {}
        }
        if matches!(peeked, Peeked::Complete(_) | Peeked::Broken { .. } | Peeked::Gone(_) | Peeked::Flushed) {
            self.ended.push(id);
        }
        let has_objects = self.options.style.has_objects();
        let Some(stream) = self.stream(id) else { return Ok(None) };
        let ends = !matches!(peeked, Peeked::Bytes | Peeked::Nothing);
        let has_bytes = peeked == Peeked::Bytes;
        let mark = StreamMark::of(&peeked, has_objects);
        let is_ready = has_bytes || mark.is_some() || !stream.partial.bytes().is_empty();
        Ok(is_ready.then_some(ReadyStream { id, has_bytes, ends, mark, until: usize::MAX, follows: false }))
    }

    fn stream(&mut self, id: FeedId) -> Option<&mut PrintedStream> {
        self.streams.get_mut(id.index()).and_then(Option::as_mut)
    }

    /// Adds a stream: determines its label, and creates its file if it has one.
    fn add(&mut self, reader: &mut BatchReader, id: FeedId) -> Result<(), PrintError> {
        let Some(Origin { source, channel, logged, .. }) = reader.origin(id) else { return Ok(()) };
        let proc = source.clone();
        let shows_process = self.options.style.shows_process()
            || matches!(&self.destination, OpenDestination::Files(open) if open.files.shows_host());
        if shows_process {
            self.processes.complete(reader, &proc);
        }
        let (host, pid) = if shows_process { self.processes.find(&proc) } else { (None, None) };
        let source = LabelSource { nspace: proc.nspace, rank: proc.rank, channel, logged, host, pid };
        let (file, sole) = match &mut self.destination {
            OpenDestination::Output(_) => (None, false),
            OpenDestination::Files(open) => {
                let count = || {
                    self.processes.refresh(reader);
                    self.processes.count(&source.nspace)
                };
                let (file, _) = open.file_for(&source, count);
                let proc = Proc::new(source.nspace.clone(), source.rank);
                let begun = open.begin(file);
                keep_late(&mut self.late, file, (&proc, channel), begun)?;
                (Some(file), open.files.has_own_file(channel))
            }
        };
        let label = self.options.style.label(&source);
        if self.streams.len() <= id.index() {
            self.streams.resize_with(id.index().saturating_add(1), || None);
        }
        let stream = PrintedStream::new(label, file, sole);
        self.folder.iter_mut().for_each(|folder| folder.begin(stream.key, &source));
        if let Some(entry) = self.streams.get_mut(id.index()) {
            *entry = Some(stream);
        }
        Ok(())
    }

    fn remove_ended(&mut self) {
        for id in mem::take(&mut self.ended) {
            self.siblings.remove(id);
            let stream = self.streams.get_mut(id.index()).and_then(Option::take);
            let Some(PrintedStream { key, due, .. }) = stream else { continue };
            self.folder.iter_mut().for_each(|folder| folder.end(key));
            due.map(|due| self.due.remove(&(due, id)));
        }
    }

    /// Writes what the streams of `ready` have.
    fn print(&mut self, reader: &mut BatchReader, ready: &[ReadyStream]) -> Result<(), PrintError> {
        let mut rest = ready;
        while let [first, later @ ..] = rest {
            let (count, outcomes) = match &mut self.destination {
                OpenDestination::Output(output) => {
                    let exclusive = !output.is_shared() && self.folder.is_none();
                    let output = output.clone();
                    let (mut open, _busy) = output.lock();
                    let destination = (&mut *open, exclusive, output.audience());
                    let (batch, outcomes) = self.assemble(reader, rest, destination, usize::MAX);
                    output.write(&mut batch.slices()).map_err(PrintError::Write)?;
                    self.buffer = batch.into_buffer();
                    (outcomes.len(), outcomes)
                }
                OpenDestination::Files(files) => {
                    let stream = self.streams.get(first.id.index());
                    let file = stream.and_then(|stream| stream.as_ref()?.file);
                    let Some(file) = file else { return Ok(()) };
                    let (mut open, room, audience) =
                        (files.open_line(file), files.room(file), files.audience(file));
                    // Each file needs its own write.
                    let count = later.iter().take_while(|later| later.follows).count().saturating_add(1);
                    let same_file = rest.get(..count).unwrap_or_default();
                    if count == 1 && files.gathers(file) && self.gather(reader, first) {
                        rest = later;
                        continue;
                    }
                    let Some(origin) = reader.origin(first.id) else { return Ok(()) };
                    let (batch, mut outcomes) =
                        self.assemble(reader, same_file, (&mut open, true, audience), room);
                    let count = outcomes.len();
                    if let OpenDestination::Files(files) = &mut self.destination {
                        let written = files.write(file, batch.slices(), open);
                        let origin = (origin.source, origin.channel);
                        if let Some(late) = keep_late(&mut self.late, file, origin, written)? {
                            // The others have no bytes in their rings.
                            let mut has_bytes = same_file.iter().map(|ready| ready.has_bytes);
                            late.outcomes.extend(outcomes.extract_if(.., |_| has_bytes.next() == Some(true)));
                        }
                    }
                    self.buffer = batch.into_buffer();
                    (count, outcomes)
                }
            };
            rest = rest.get(count..).unwrap_or_default();
            // What follows a piece that had no room stays in its ring until the next round.
            while let [ReadyStream { follows: true, .. }, later @ ..] = rest {
                rest = later;
            }
            for outcome in outcomes {
                self.apply(reader, &outcome);
            }
            self.write_folded(None)?;
        }
        Ok(())
    }

    /// Consumes the written bytes of a stream, and schedules its next check if a part of a line
    /// waits.
    fn apply(&mut self, reader: &mut BatchReader, outcome: &Outcome) {
        let id = outcome.id;
        let next = self.clock.next_check().filter(|_| outcome.waits);
        let Some(stream) = self.stream(id) else { return };
        reader.consume(id, mem::take(&mut stream.taken));
        if outcome.defer {
            reader.defer(id);
        }
        if stream.due.is_none() {
            stream.due = next;
            self.due.extend(next.map(|time| (time, id)));
        }
    }

    /// Assembles what the first streams of `ready` have to write: all of them, unless that is too
    /// much for one write, about `room` bytes at most. Returns the batch and one outcome for each of
    /// these streams. `open` is the line open at the destination; `exclusive` specifies that no
    /// other printer writes there.
    fn assemble<'a>(
        &mut self,
        reader: &'a BatchReader,
        ready: &[ReadyStream],
        (open, exclusive, audience): (&mut OpenLine, bool, Audience),
        room: usize,
    ) -> (Batch<'a>, Vec<Outcome>) {
        let gathers = matches!(&self.destination, OpenDestination::Files(open) if open.files.drops_cache);
        let copies = self.options.style.copies() && !gathers;
        let limit = if copies { MAX_COPIED } else { MAX_LENT }.min(room);
        let batch = Batch::new(mem::take(&mut self.buffer));
        let mut builder = BatchBuilder {
            options: &self.options,
            clock: &self.clock,
            open,
            exclusive,
            audience,
            batch,
            times: &mut self.times,
            written: 0,
            is_full: false,
            folder: self.folder.as_mut(),
        };
        let mut outcomes = Vec::with_capacity(ready.len());
        for ready in ready {
            let held = builder.folder.as_ref().map_or(0, |_| builder.written);
            let used = builder.batch.len().max(usize::try_from(held).unwrap_or(usize::MAX));
            let room = limit.saturating_sub(used);
            let stream = self.streams.get_mut(ready.id.index()).and_then(Option::as_mut);
            // What follows a piece without room is newer.
            if room == 0 || builder.is_full {
                break;
            }
            outcomes.push(match stream {
                Some(stream) => stream.print(ready, reader, room, &mut builder),
                None => Outcome::nothing(ready.id),
            });
        }
        self.report.written = self.report.written.saturating_add(builder.written);
        (builder.batch, outcomes)
    }
}
