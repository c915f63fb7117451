//! A printer: registrations whose bytes go to an output or to files, line by line, straight from
//! the rings.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use iof_proto::{Channel, Missed, Proc, Rank};
use iof_tool::{FeedId, Gap, LostError, Origin, Peeked, PollReady, Tool};

use crate::batch::Batch;
use crate::choice::Choice;
use crate::files::{FileError, Files, OpenFiles};
use crate::lines::{Attention, Patience};
use crate::output::Output;
use crate::processes::Processes;
use crate::stream::{Page, Stream, Taken, Turn};
use crate::style::{Finish, Open, Source, Style};

/// Streams in one write: more hardly saves anything.
const MAX_STREAMS: usize = 64;
/// Bytes of one stream in one write, about, so that no other waits long for its turn: more where
/// they are not copied.
const MAX_LENT: usize = 1 << 20;
const MAX_COPIED: usize = 64 << 10;

/// Why a printer ended before its registrations.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrintError {
    /// The output can't be written; `BrokenPipe` if its reader has gone.
    #[error("writing the output: {0}")]
    Write(io::Error),
    /// A rank's file can't be written.
    #[error("writing what rank {} writes to {channel}: {error}", proc.rank)]
    File {
        /// The rank.
        proc: Proc,
        /// What of it; others may go to the same file.
        channel: Channel,
        /// Which file, and why.
        error: FileError,
    },
    /// The engine spoke nonsense.
    #[error(transparent)]
    Lost(#[from] LostError),
    /// The printer's thread died, which it never should.
    #[error("the printer's thread died")]
    Died,
}

/// What a printer did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrintReport {
    /// Bytes of output that were written, without what was put around them.
    pub written: u64,
    /// Bytes reported as gaps, of the channels that have any.
    pub lost: BTreeMap<Channel, u64>,
    /// Streams that the engine left without completing them.
    pub unfinished: u64,
    /// Bytes that these had brought, of all that there were: reported as gaps or written.
    pub unfinished_bytes: u64,
    /// The engine went away before it had announced every stream.
    pub misses_streams: bool,
}

/// Where a printer writes to.
#[derive(Debug)]
pub enum Destination {
    /// All streams to one file, pipe or terminal.
    Output(Output),
    /// Each stream to the file of its rank.
    Files(Files),
}

impl From<Output> for Destination {
    fn from(output: Output) -> Destination {
        Destination::Output(output)
    }
}

impl From<Files> for Destination {
    fn from(files: Files) -> Destination {
        Destination::Files(files)
    }
}

/// How a printer writes.
#[derive(Clone, Debug)]
pub struct Options {
    /// What lines look like.
    pub style: Style,
    /// For how long parts of lines are kept back.
    pub patience: Patience,
    /// Parts of lines are not kept back at all.
    pub raw: bool,
}

impl Default for Options {
    /// Bytes as they come, in whole lines.
    fn default() -> Options {
        let style = Style::new(&Choice::default(), &Finish::default());
        Options { style, patience: Patience::default(), raw: false }
    }
}

/// Writes everything that a tool pulls, on a thread of its own.
///
/// The order within each source and channel is kept, and lines of different sources do not mix: a
/// line is written in one piece, unless its end does not come in time, see [`Patience`]. Then
/// what is there is written; where lines are tagged, it is ended with a newline before another
/// source's line begins, and where bytes are missing.
/// If all that is written to an output or a file is of one stream there is nothing to mix with, and
/// what comes is written at once.
///
/// Without tags, bytes are written from where the engine's kernel put them.
pub struct Printer {
    thread: JoinHandle<Result<PrintReport, PrintError>>,
}

impl Printer {
    /// Starts writing what `tool`'s registrations bring. `on_gap` is called on the printer's thread
    /// for every gap, at its place in the stream; with the wildcard rank for bytes of streams
    /// that do not come at all ([`Delivery::Missed`](iof_tool::Delivery::Missed)).
    ///
    /// # Errors
    /// When the process has no threads left.
    pub fn start(
        tool: Tool,
        to: impl Into<Destination>,
        options: Options,
        on_gap: impl FnMut(&Proc, Channel, Gap) + Send + 'static,
    ) -> io::Result<Printer> {
        let to = match to.into() {
            Destination::Output(output) => To::Output(output),
            Destination::Files(files) => {
                // An element of XML or JSON that was cut would be none.
                let may_cut = options.style.joins_parts();
                let max_line = if may_cut { options.patience.max_line } else { usize::MAX };
                To::Files(OpenFiles::new(files, max_line))
            }
        };
        let desk = Desk {
            to,
            clock: Attention::new(&options.patience, Instant::now()),
            options,
            streams: Vec::new(),
            due: BTreeSet::new(),
            processes: Processes::default(),
            buffer: Vec::new(),
            times: Vec::new(),
            over: Vec::new(),
            report: PrintReport::default(),
        };
        let thread =
            thread::Builder::new().name("iof-printer".into()).spawn(move || desk.run(tool, on_gap))?;
        Ok(Printer { thread })
    }

    /// Waits until all that the registrations bring is written.
    ///
    /// # Errors
    /// [`PrintError`]: what could not be written, and why.
    pub fn join(self) -> Result<PrintReport, PrintError> {
        self.thread.join().unwrap_or(Err(PrintError::Died))
    }
}

enum To {
    Output(Output),
    Files(OpenFiles),
}

/// What a printer works with.
struct Desk {
    to: To,
    options: Options,
    clock: Attention,
    /// By the numbers of their feeds.
    streams: Vec<Option<Stream>>,
    /// When streams are looked at again because parts of their lines wait.
    due: BTreeSet<(Instant, FeedId)>,
    processes: Processes,
    /// Memory for batches.
    buffer: Vec<u8>,
    times: Vec<(u64, u64)>,
    /// Streams of which nothing more comes.
    over: Vec<FeedId>,
    report: PrintReport,
}

impl Desk {
    fn run(
        mut self,
        mut tool: Tool,
        mut on_gap: impl FnMut(&Proc, Channel, Gap),
    ) -> Result<PrintReport, PrintError> {
        let mut news = Vec::new();
        loop {
            let deadline = self.due.first().map(|(at, _)| *at);
            let gathered = tool.poll_ready(deadline, &mut news)?;
            while let Some(missed) = tool.take_missed() {
                self.miss(missed, &mut on_gap);
            }
            if gathered == PollReady::Done {
                self.report.misses_streams = tool.misses_streams();
                return Ok(self.report);
            }
            self.clock.look(Instant::now());
            for chunk in news.chunks(MAX_STREAMS) {
                let turns = self.look(&mut tool, chunk, &mut on_gap)?;
                self.print(&mut tool, &turns)?;
                self.forget_over();
            }
            self.revisit_due(&mut tool);
        }
    }

    /// Reports bytes of streams that do not come, as a gap of no rank in particular.
    fn miss(&mut self, missed: Missed, on_gap: &mut impl FnMut(&Proc, Channel, Gap)) {
        let Missed { nspace, channel, bytes, .. } = missed;
        if bytes > 0 {
            let lost = self.report.lost.entry(channel).or_default();
            *lost = lost.saturating_add(bytes);
            on_gap(&Proc { nspace, rank: Rank::WILDCARD }, channel, Gap { offset: 0, lost: bytes });
        }
    }

    /// Looks at each stream once, reports its gaps, and names those that have something to write.
    fn look(
        &mut self,
        tool: &mut Tool,
        ids: &[FeedId],
        on_gap: &mut impl FnMut(&Proc, Channel, Gap),
    ) -> Result<Vec<Turn>, PrintError> {
        let mut turns = Vec::with_capacity(ids.len());
        for &id in ids {
            let look = tool.peek(id);
            // Files are there as soon as their streams are.
            if self.stream(id).is_none() && (look == Peeked::Bytes || matches!(self.to, To::Files(_))) {
                self.add(tool, id)?;
            }
            match look {
                Peeked::Gap(gap) => {
                    if let Some(origin) = tool.origin(id) {
                        let lost = self.report.lost.entry(origin.channel).or_default();
                        *lost = lost.saturating_add(gap.lost);
                        on_gap(origin.source, origin.channel, gap);
                    }
                }
                Peeked::Gone(counts) => {
                    let report = &mut self.report;
                    report.unfinished = report.unfinished.saturating_add(1);
                    report.unfinished_bytes = report.unfinished_bytes.saturating_add(counts.produced);
                }
                Peeked::Bytes | Peeked::Nothing | Peeked::Complete(_) | Peeked::Flushed => {}
            }
            if matches!(look, Peeked::Complete(_) | Peeked::Gone(_) | Peeked::Flushed) {
                self.over.push(id);
            }
            let Some(stream) = self.stream(id) else { continue };
            let ends = !matches!(look, Peeked::Bytes | Peeked::Nothing);
            let has_bytes = look == Peeked::Bytes;
            let gap = matches!(look, Peeked::Gap(_));
            if has_bytes || gap || !stream.held.bytes.is_empty() {
                turns.push(Turn { id, has_bytes, ends, gap });
            }
        }
        Ok(turns)
    }

    fn stream(&mut self, id: FeedId) -> Option<&mut Stream> {
        self.streams.get_mut(id.index()).and_then(Option::as_mut)
    }

    /// Makes ready for the first bytes of a stream.
    fn add(&mut self, tool: &mut Tool, id: FeedId) -> Result<(), PrintError> {
        let Some(Origin { source, channel, logged, .. }) = tool.origin(id) else { return Ok(()) };
        let proc = source.clone();
        let shows_process = self.options.style.shows_process()
            || matches!(&self.to, To::Files(open) if open.files.shows_host());
        let (host, pid) = if shows_process { self.processes.find(tool, &proc) } else { (None, None) };
        let source = Source { nspace: proc.nspace, rank: proc.rank, channel, logged, host, pid };
        let (file, alone) = match &mut self.to {
            To::Output(_) => (None, false),
            To::Files(open) => {
                let count = || self.processes.count(tool, &source.nspace);
                let file = open.of(&source, count);
                open.begin(file).map_err(|error| {
                    let proc = Proc { nspace: source.nspace.clone(), rank: source.rank };
                    PrintError::File { proc, channel, error }
                })?;
                (Some(file), open.files.is_alone(channel))
            }
        };
        let label = self.options.style.label(&source);
        if self.streams.len() <= id.index() {
            self.streams.resize_with(id.index().saturating_add(1), || None);
        }
        let stream = Stream::new(label, file, alone);
        if let Some(place) = self.streams.get_mut(id.index()) {
            *place = Some(stream);
        }
        Ok(())
    }

    fn forget_over(&mut self) {
        for id in mem::take(&mut self.over) {
            let stream = self.streams.get_mut(id.index()).and_then(Option::take);
            if let Some(at) = stream.and_then(|stream| stream.due) {
                self.due.remove(&(at, id));
            }
        }
    }

    /// Has streams looked at again whose parts of lines wait.
    fn revisit_due(&mut self, tool: &mut Tool) {
        if self.due.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some((_, id)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.pop_first();
            if let Some(stream) = self.stream(id) {
                stream.due = None;
            }
            tool.rearm(id);
        }
    }

    /// Writes what the streams of `turns` have.
    fn print(&mut self, tool: &mut Tool, turns: &[Turn]) -> Result<(), PrintError> {
        let mut rest = turns;
        while let [first, ..] = rest {
            let taken = match &mut self.to {
                To::Output(output) => {
                    let is_ours = !output.is_shared();
                    let output = output.clone();
                    let mut open = output.lock();
                    let (batch, taken) = self.assemble(tool, rest, (&mut open, is_ours));
                    output.write(&mut batch.slices()).map_err(PrintError::Write)?;
                    self.buffer = batch.into_buffer();
                    taken
                }
                To::Files(files) => {
                    let file = self.streams.get(first.id.index()).and_then(|of| of.as_ref()?.file);
                    let (Some(file), Some(origin)) = (file, tool.origin(first.id)) else { return Ok(()) };
                    let mut open = files.line(file);
                    // Each file is written by itself.
                    let (batch, taken) =
                        self.assemble(tool, rest.get(..1).unwrap_or_default(), (&mut open, true));
                    if let To::Files(files) = &mut self.to {
                        files.write(file, batch.slices(), open).map_err(|error| {
                            let (proc, channel) = (origin.source.clone(), origin.channel);
                            PrintError::File { proc, channel, error }
                        })?;
                    }
                    self.buffer = batch.into_buffer();
                    taken
                }
            };
            rest = rest.get(taken.len()..).unwrap_or_default();
            for taken in taken {
                self.take(tool, &taken);
            }
        }
        Ok(())
    }

    fn take(&mut self, tool: &mut Tool, taken: &Taken) {
        let id = taken.id;
        tool.consume_from(id, taken.bytes);
        if taken.leave {
            tool.defer(id);
        }
        let next = self.clock.next_look().filter(|_| taken.waits);
        let Some(stream) = self.stream(id).filter(|stream| stream.due.is_none()) else { return };
        stream.due = next;
        self.due.extend(next.map(|at| (at, id)));
    }

    /// Puts together what the first of `turns` have to write, all of them if that is not too much;
    /// one `Taken` for each. `open` says in whose line the output is, `is_ours` that no other
    /// printer writes there.
    fn assemble<'a>(
        &mut self,
        tool: &'a Tool,
        turns: &[Turn],
        (open, is_ours): (&mut Open, bool),
    ) -> (Batch<'a>, Vec<Taken>) {
        let most = if self.options.style.is_plain() { MAX_LENT } else { MAX_COPIED };
        let batch = Batch::new(mem::take(&mut self.buffer));
        let mut page = Page {
            options: &self.options,
            clock: &self.clock,
            open,
            is_ours,
            batch,
            times: &mut self.times,
            written: 0,
        };
        let mut taken = Vec::with_capacity(turns.len());
        for turn in turns {
            let room = most.saturating_sub(page.batch.len());
            let stream = self.streams.get_mut(turn.id.index()).and_then(Option::as_mut);
            if room == 0 {
                break;
            }
            taken.push(
                stream.map_or(Taken::nothing(turn.id), |stream| stream.print(turn, tool, room, &mut page)),
            );
        }
        self.report.written = self.report.written.saturating_add(page.written);
        (page.batch, taken)
    }
}
