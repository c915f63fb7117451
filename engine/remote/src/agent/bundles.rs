//! The output of all ranks of a node, as two bundles.
//!
//! A record is written to the edge directly from the ring of its stream. It has whole lines, so that
//! a carrier that stalls does not divide a line. A part of a line waits here for its rest, by the
//! rules of the front end's outputs.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::mem;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use iof_engine::{Engine, Grant};
use iof_nodes::limits::MAX_RECORD;
use iof_nodes::{Bundle, Frame, NodeStart, StreamKey};
use iof_output::{
    Audience, Batch, Decision, FlushClock, FlushTimeout, FoundBytes, Hold, HoldRules, LONGEST_CHARACTER,
    LineHolder, Rest,
};
use iof_proto::{Channels, InputState, Missed, Proc, Rank};
use iof_tool::{BatchReader, Behind, Bytes, FeedId, Origin, Peeked, PollReady, Pull, Tool};

use super::NAME;
use super::hooks::StartRefusal;
use super::uplink::Uplink;
use crate::thread::NoThread;

/// The number of bytes that are written together. A line of another bundle waits for one write.
const BATCH: usize = MAX_RECORD;

/// The number of bytes after which streams that have got bytes meanwhile take part. A line of a
/// stream that was quiet waits for as much, however many others write without pause.
const ROUND: usize = 2 * BATCH;

/// The largest number of streams whose bytes are held together.
const STREAMS_TOGETHER: usize = 64;

/// A part of a line may fill the ring's capacity divided by this number. A longer one is copied out
/// of the ring.
const PART_DIVISOR: u64 = 4;

/// The readers of a node's output.
pub struct Bundles {
    tools: Vec<Tool>,
    timeout: FlushTimeout,
    ptys: BTreeSet<Rank>,
}

impl Bundles {
    /// Attaches the readers. The ranks wait for them.
    pub fn attach(engine: &Engine, start: &NodeStart) -> Result<Bundles, StartRefusal> {
        let attach = |channels| {
            let mut tool = engine.attach(NAME, Grant::Block).map_err(StartRefusal::running)?;
            tool.pull(&Pull::new(vec![Proc::all(start.spec.nspace.clone())], channels))
                .map_err(StartRefusal::running)?;
            Ok(tool)
        };
        let bundles = [Channels::STDOUT, Channels::ERRORS];
        let tools = bundles.into_iter().map(attach).collect::<Result<_, _>>()?;
        let max_line = start.config.max_line.clamp(1, MAX_RECORD - LONGEST_CHARACTER);
        let max_time = start.config.max_line_time;
        let ranks = start.spec.local.iter().flatten().copied();
        let ptys = ranks.filter(|rank| start.spec.pty(*rank).is_some()).collect();
        Ok(Bundles { tools, timeout: FlushTimeout { max_line, max_time }, ptys })
    }

    /// Starts one thread for each bundle, and returns them. They end after the last byte.
    pub fn start(self, uplink: &Arc<Uplink>) -> Result<Vec<JoinHandle<()>>, NoThread> {
        let Bundles { tools, timeout, ptys } = self;
        let start = |tool| {
            let (clock, uplink) = (FlushClock::new(&timeout, Instant::now()), Arc::clone(uplink));
            let (parts, open, ptys) = (HashMap::new(), BTreeSet::new(), ptys.clone());
            let lines = Lines { timeout, clock, ptys, parts, open, refused: None };
            let reader = BatchReader::new(tool);
            let (buffer, served) = (Vec::new(), Served::new());
            let sender = Sender { uplink, reader, lines, buffer, served, due: None };
            let thread = thread::Builder::new().name("iof-bundle".into()).spawn(move || sender.run());
            thread.map_err(NoThread)
        };
        tools.into_iter().map(start).collect()
    }
}

/// When streams were last sent: the one that has waited longest is the next one.
struct Served<Id = FeedId> {
    /// The number of streams that were sent so far.
    count: u64,
    /// That number when a stream was sent, by its id, which another stream may have later.
    last: HashMap<Id, u64>,
}

impl<Id: Copy + Eq + Hash> Served<Id> {
    fn new() -> Served<Id> {
        Served { count: 0, last: HashMap::new() }
    }

    fn note(&mut self, id: Id) {
        self.count = self.count.saturating_add(1);
        self.last.insert(id, self.count);
    }

    /// Sorts streams: the one that has waited longest comes first, and before it those that were
    /// never sent.
    fn sort(&self, ids: &mut [Id]) {
        ids.sort_by_key(|id| self.last.get(id).copied());
    }
}

/// The sender of one bundle.
struct Sender {
    uplink: Arc<Uplink>,
    reader: BatchReader,
    lines: Lines,
    /// Memory for headers and short records.
    buffer: Vec<u8>,
    served: Served,
    /// When to look again at the parts of lines that wait.
    due: Option<Instant>,
}

/// The parts of lines that wait for their rest.
struct Lines {
    timeout: FlushTimeout,
    clock: FlushClock,
    /// The ranks whose parts of lines do not wait: what is typed at their terminals is echoed.
    ptys: BTreeSet<Rank>,
    /// By stream.
    parts: HashMap<FeedId, LineHolder>,
    /// The streams whose last record ended within a line.
    open: BTreeSet<FeedId>,
    /// The decision on the stream that had no room in the window. It is the next one that is sent.
    /// Its part of a line has waited for long enough, and does not wait again.
    refused: Option<Decision>,
}

impl Lines {
    /// Decides what becomes of bytes in the ring of a stream. `is_stalled` specifies whether the
    /// stream has to wait for a reader.
    fn decide(&mut self, id: FeedId, found: &Bytes<'_>, is_stalled: bool) -> Decision {
        let (rules, holder) = (
            rules(&self.timeout, &self.clock, self.hold(id, found.origin()), found.origin()),
            self.parts.entry(id).or_default(),
        );
        let bytes = found.as_slice();
        let whole = bytes.get(..MAX_RECORD.saturating_sub(holder.bytes().len())).unwrap_or(bytes);
        let behind = found.behind();
        let considered = FoundBytes {
            bytes: whole,
            limit: whole.len(),
            is_last: whole.len() == bytes.len() && matches!(behind, Behind::Gap | Behind::Nothing),
            has_more: whole.len() < bytes.len(),
            max_stay: match behind {
                Behind::Bytes => usize::try_from(found.capacity() / PART_DIVISOR).unwrap_or(usize::MAX),
                _ => 0,
            },
            is_stalled,
        };
        holder.decide(&considered, &rules, || found.last_read())
    }

    /// Returns whether bytes that were copied out of a stream's ring wait although nothing follows.
    fn still_wait(&mut self, id: FeedId, reader: &BatchReader, origin: Origin<'_>) -> bool {
        let rules = rules(&self.timeout, &self.clock, self.hold(id, origin), origin);
        let Some(holder) = self.parts.get_mut(&id) else { return false };
        holder.still_waits(reader.is_stalled(id), &rules, || reader.last_read(id))
    }

    /// Returns the part of a stream that has to wait.
    fn hold(&self, id: FeedId, origin: Origin<'_>) -> Hold {
        let at_once = self.timeout.max_time.is_some_and(|time| time.is_zero());
        match self.open.contains(&id) {
            _ if at_once || self.ptys.contains(&origin.source.rank) => Hold::Never,
            true => Hold::Continued,
            false => Hold::Lines,
        }
    }

    /// Returns the number of bytes of a stream that were copied out of its ring.
    fn held(&self, id: FeedId) -> usize {
        self.parts.get(&id).map_or(0, |part| part.bytes().len())
    }
}

/// Returns the rules for a stream. The front end has told who answers the ranks of this node as far
/// as its output has a reader, so that is taken as it is.
fn rules<'a>(
    timeout: &'a FlushTimeout,
    clock: &'a FlushClock,
    hold: Hold,
    origin: Origin<'a>,
) -> HoldRules<'a> {
    HoldRules { hold, timeout, clock, audience: Audience::Person, origin }
}

/// The steps for a stream when the batch is written.
struct Outcome {
    id: FeedId,
    /// The number of its bytes that are consumed.
    consumed: usize,
    /// Its other bytes wait.
    defer: bool,
}

/// The result of adding the frames of a stream to a batch.
enum Step {
    Added(Outcome),
    /// The batch has to be written first: the window has no room for what was decided.
    NoRoom(Decision),
    /// The edge has ended.
    Closed,
}

impl Sender {
    /// Sends until all streams have ended, or the edge has. The engine lives as long as the agent.
    fn run(mut self) {
        let mut ids = Vec::new();
        while let Ok(PollReady::Ready | PollReady::Quiet) = self.reader.poll_ready(self.due, &mut ids) {
            if let Some(missed) = self.reader.take_missed() {
                // The front end could not tell a stream without its end from one that goes on.
                let Missed { rank, channel, .. } = missed;
                return self.uplink.lose(Some(format!("the agent cannot read the {channel} of rank {rank}")));
            }
            self.lines.clock.advance(Instant::now());
            self.served.sort(&mut ids);
            let (mut left, mut sent) = (ids.as_slice(), 0usize);
            while !left.is_empty() && sent < ROUND {
                let (peeked, length) = self.peek(left);
                let mut rest = peeked.as_slice();
                while !rest.is_empty() {
                    match self.send(rest) {
                        Some(count) => rest = rest.get(count..).unwrap_or_default(),
                        None => return,
                    }
                }
                left = left.get(peeked.len()..).unwrap_or_default();
                sent = sent.saturating_add(length);
            }
            self.rearm();
        }
    }

    /// Looks at the first of these streams, as many as fill a batch. Returns what they have, and the
    /// number of bytes that can be sent.
    fn peek(&mut self, ids: &[FeedId]) -> (Vec<(FeedId, Peeked)>, usize) {
        let (mut peeked, mut length) = (Vec::new(), 0usize);
        for id in ids.iter().take(STREAMS_TOGETHER) {
            peeked.push((*id, self.reader.peek(*id)));
            self.served.note(*id);
            let found = self.reader.bytes(*id).map_or(0, |found| found.len().min(MAX_RECORD));
            length = length.saturating_add(found);
            if length >= BATCH {
                break;
            }
        }
        (peeked, length)
    }

    /// Sends one frame of each of these streams by one write, unless that is too much. Returns the
    /// number of streams, or `None` when the edge has ended.
    fn send(&mut self, peeked: &[(FeedId, Peeked)]) -> Option<usize> {
        let Sender { uplink, reader, lines, buffer, .. } = self;
        let mut batch = Batch::new(mem::take(buffer));
        let mut outcomes = Vec::with_capacity(peeked.len());
        for (id, peeked) in peeked {
            match add(reader, lines, uplink, (*id, *peeked), &mut batch) {
                Step::Added(outcome) => outcomes.push(outcome),
                Step::NoRoom(decision) => {
                    lines.refused = Some(decision);
                    break;
                }
                Step::Closed => return None,
            }
            if batch.len() >= BATCH {
                break;
            }
        }
        if !batch.is_empty() {
            uplink.write(&batch.slices());
        }
        *buffer = batch.into_buffer();
        for Outcome { id, consumed, defer } in &outcomes {
            reader.consume(*id, *consumed);
            if *defer {
                reader.defer(*id);
            }
        }
        Some(outcomes.len())
    }

    /// Lets the next round look at the parts of lines that wait, if it is time.
    fn rearm(&mut self) {
        let Lines { clock, parts, .. } = &self.lines;
        let mut timed = parts.iter().filter(|(_, part)| part.is_timed()).map(|(id, _)| *id).peekable();
        if timed.peek().is_none() {
            self.due = None;
        } else if self.due.is_none_or(|due| due <= Instant::now()) {
            if self.due.is_some() {
                timed.for_each(|id| self.reader.rearm(id));
            }
            self.due = clock.next_check();
        }
    }
}

/// Adds to the batch what a stream has to send now. Blocks until the window has room for that if
/// the batch is empty.
fn add<'a>(
    reader: &'a BatchReader,
    lines: &mut Lines,
    uplink: &Uplink,
    (id, peeked): (FeedId, Peeked),
    batch: &mut Batch<'a>,
) -> Step {
    let (mut outcome, refused) = (Outcome { id, consumed: 0, defer: false }, lines.refused.take());
    let Some(origin) = reader.origin(id) else { return Step::Added(outcome) };
    let stream = StreamKey { rank: origin.source.rank, channel: origin.channel };
    let held = lines.held(id);
    let found = reader.bytes(id).filter(|_| peeked == Peeked::Bytes);
    let decision = match (refused, &found) {
        (Some(refused), _) => refused,
        (None, Some(found)) => lines.decide(id, found, reader.is_stalled(id)),
        // What was copied precedes a gap and the end.
        (None, None) if held > 0 && peeked == Peeked::Nothing && lines.still_wait(id, reader, origin) => {
            return Step::Added(outcome);
        }
        (None, None) => Decision { write: 0, rest: Rest::Next },
    };
    let Decision { write: count, rest } = decision;
    if count > 0 || found.is_none() {
        let length = held.saturating_add(count);
        if length > 0 {
            let window = |bundle| uplink.take_window(bundle, length, batch.is_empty());
            // A stream of output has a bundle.
            match Bundle::of(stream.channel).and_then(window) {
                Some(true) => {}
                Some(false) => return Step::NoRoom(decision),
                None => return Step::Closed,
            }
        }
        add_record(lines, (id, stream), found.as_ref(), count, batch);
    }
    let ended = found.is_none();
    outcome.defer = rest == Rest::Stay;
    outcome.consumed = match found.filter(|_| rest == Rest::Copy) {
        Some(found) => {
            let (offset, part) = (
                found.offset().saturating_add(count as u64),
                found.as_slice().get(count..).unwrap_or_default(),
            );
            lines.parts.entry(id).or_default().copy(part, offset, found.time());
            found.len()
        }
        None => count,
    };
    if ended || lines.parts.get(&id).is_some_and(|part| !part.is_waiting()) {
        lines.parts.remove(&id);
    }
    if ended && peeked != Peeked::Nothing {
        lines.open.remove(&id);
    }
    let frame = match peeked {
        Peeked::Gap(gap) => Frame::Gap { pull: 0, stream, offset: gap.offset, lost: gap.lost },
        Peeked::Complete(counts) => Frame::End { pull: 0, stream, produced: counts.produced },
        Peeked::Broken { missing, .. } => {
            let StreamKey { rank, channel } = stream;
            uplink.lose(Some(format!(
                "the agent has not read the {channel} of rank {rank} to its end: at least {missing} bytes are missing"
            )));
            return Step::Closed;
        }
        _ => return Step::Added(outcome),
    };
    batch.make(|buffer| frame.append_to(buffer));
    Step::Added(outcome)
}

/// Adds a record of what was copied of a stream before, and of the first `count` bytes found.
fn add_record<'a>(
    lines: &mut Lines,
    (id, stream): (FeedId, StreamKey),
    found: Option<&Bytes<'a>>,
    count: usize,
    batch: &mut Batch<'a>,
) {
    let found = found.map(|found| (found.offset(), found.time().unwrap_or(0), found.as_slice()));
    let (offset, time, bytes) = found.unwrap_or_default();
    let input = InputState::UNBUFFERED;
    let bytes = bytes.get(..count).unwrap_or_default();
    if count > 0 || lines.held(id) > 0 {
        lines.open.remove(&id);
        lines.open.extend((!bytes.ends_with(b"\n")).then_some(id));
    }
    match lines.parts.get_mut(&id).filter(|part| !part.bytes().is_empty()) {
        Some(part) => part.flush(|held, offset, time| {
            let (time, whole) = (time.unwrap_or(0), [held, bytes].concat());
            let record = Frame::Record { pull: 0, stream, offset, time, input, bytes: &whole };
            batch.make(|buffer| record.append_to(buffer));
        }),
        None if bytes.is_empty() => {}
        None => {
            let record = Frame::Record { pull: 0, stream, offset, time, input, bytes };
            batch.copy(&record.header().unwrap_or_default());
            batch.add(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Served;

    #[test]
    fn streams_that_were_never_sent_precede_the_one_that_has_waited_longest() {
        let mut served = Served::new();
        [3, 1, 2, 3].into_iter().for_each(|id| served.note(id));
        let mut ids = [1, 2, 3, 4];
        served.sort(&mut ids);
        assert_eq!(ids, [4, 1, 2, 3]);
    }
}
