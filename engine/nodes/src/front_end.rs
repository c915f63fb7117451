//! The front end's end of an edge: what arrived from one node, and the credit for it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

use iof_proto::limits::{MAX_LOG_ENTRIES, MAX_LOGS};
use iof_proto::{Channel, NodeStream, Rank, StreamPull};

use crate::EdgeError;
use crate::agent_end::{charge, check_version};
use crate::control::{ToFrontEnd, decode};
use crate::frame::{Bundle, Frame, StreamKey};
use crate::limits::{MAX_ANSWERS_OF_NODE, MAX_EXCHANGE, MAX_STREAM};
use crate::pieces::PieceBuffer;
use crate::window::Window;

// An agent sends a request for each channel of those that its engine has in progress.
const _: () = assert!(MAX_ANSWERS_OF_NODE >= 2 * MAX_LOGS * MAX_LOG_ENTRIES);

/// The meaning of a frame of an agent to the front end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontEvent<'a> {
    /// Nothing to do.
    None,
    /// The agent runs. It waits for [`FrontEnd::greeting`], and what follows it.
    Greeted,
    /// A record, a gap or the end of a stream, which follows what arrived of it before. Credit for a
    /// record is due when its bytes are where they belong.
    Output(Frame<'a>),
    /// A control message.
    Message(ToFrontEnd),
}

/// The progress of one stream.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The next offset: bytes delivered and lost.
    position: u64,
    lost: u64,
    /// The last total of the node.
    produced: u64,
    ended: bool,
}

/// A stream that tools of the front end pull.
#[derive(Debug)]
struct Pulled {
    stream: StreamKey,
    /// The next offset, once the first one has arrived.
    position: Option<u64>,
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Greeted,
    Ready,
    Started,
    Over,
    /// The ranks can't be started.
    Failed,
}

/// A stream that has not ended although its node is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenStream {
    /// The stream.
    pub stream: StreamKey,
    /// The bytes that arrived.
    pub delivered: u64,
    /// The bytes that were lost at the node, and reported as gaps.
    pub lost: u64,
    /// The bytes that the node had read but that did not arrive, at least. What it read after its
    /// last totals is unknown.
    pub missing: u64,
}

/// A pulled stream whose rest does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenPull {
    /// The number of the pull.
    pub pull: u32,
    /// The stream.
    pub stream: StreamKey,
    /// The position behind the last byte that has arrived.
    pub position: u64,
    /// The bytes that the node had read and that have not arrived, at least.
    pub missing: u64,
}

/// The facts known about a node whose edge has ended too early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenEnd {
    /// The streams that have not ended.
    pub streams: Vec<BrokenStream>,
    /// The ranks whose exit was not reported.
    pub ranks: BTreeSet<Rank>,
    /// When the node sent its last totals.
    pub totals: Option<Instant>,
}

/// The front end's end of the edge to one node.
#[derive(Debug)]
pub struct FrontEnd {
    /// The number of ranks.
    ranks: usize,
    phase: Phase,
    /// Frames mean nothing any more.
    is_cut: bool,
    streams: BTreeMap<StreamKey, Progress>,
    /// The pulls that have not ended, by their numbers.
    pulled: BTreeMap<u32, Pulled>,
    last_pull: u32,
    running: BTreeSet<Rank>,
    totals: Option<Instant>,
    /// Set if the agent has told what forwarding has cost it, which it does once.
    cost_told: bool,
    /// The end of the files of the node was told.
    files_told: bool,
    /// The pieces of stdin that the node has not answered.
    calls: BTreeSet<u64>,
    pieces: PieceBuffer,
    /// Has a clone in each answer that the node waits for.
    answers: Arc<()>,
    windows: BTreeMap<Bundle, Window>,
}

impl FrontEnd {
    /// Creates the front end's end for a node that runs these ranks, whose bundles have windows
    /// within these bounds, in bytes.
    pub fn new(ranks: &BTreeSet<Rank>, window: RangeInclusive<u64>) -> FrontEnd {
        let keys =
            ranks.iter().flat_map(|rank| Channel::OUTPUTS.map(|channel| StreamKey { rank: *rank, channel }));
        let streams = keys.map(|key| (key, Progress::default())).collect();
        let (running, ranks) = (ranks.clone(), ranks.len());
        let windows = Bundle::ALL.into_iter().map(|bundle| (bundle, Window::new(window.clone())));
        FrontEnd {
            ranks,
            phase: Phase::Connecting,
            is_cut: false,
            streams,
            pulled: BTreeMap::new(),
            last_pull: 0,
            running,
            totals: None,
            cost_told: false,
            files_told: false,
            calls: BTreeSet::new(),
            pieces: PieceBuffer::default(),
            answers: Arc::default(),
            windows: windows.collect(),
        }
    }

    /// Returns whether the agent is to report its totals once a second.
    pub fn is_to_report(&self) -> bool {
        self.phase == Phase::Started && !self.is_cut
    }

    /// Returns the first frames to the agent: a hello, and its windows.
    pub fn greeting(&self) -> Vec<u8> {
        let mut greeting = Vec::new();
        Frame::HELLO.append_to(&mut greeting);
        for (bundle, window) in &self.windows {
            Frame::Credit { bundle: *bundle, bytes: window.left() }.append_to(&mut greeting);
        }
        greeting
    }

    /// Processes a frame of the agent, which arrived at `now`. Frames of a node that was cut off mean
    /// nothing.
    ///
    /// # Errors
    /// [`EdgeError`]: the edge is to be closed, and the node is lost.
    pub fn receive<'a>(&mut self, frame: &Frame<'a>, now: Instant) -> Result<FrontEvent<'a>, EdgeError> {
        match *frame {
            _ if self.is_cut => Ok(FrontEvent::None),
            Frame::Hello { version } if self.phase == Phase::Connecting => {
                self.phase = Phase::Greeted;
                check_version(version).map(|()| FrontEvent::Greeted)
            }
            _ if self.phase == Phase::Connecting => Err(EdgeError::NoHello),
            Frame::Hello { .. } => Err(EdgeError::Unexpected("second hello")),
            Frame::Padding => Ok(FrontEvent::None),
            Frame::Ack { .. } | Frame::Resume { .. } => Err(EdgeError::Unexpected("frame of a link")),
            Frame::Credit { .. } => Err(EdgeError::Unexpected("credit of an agent")),
            Frame::Record { pull, stream, offset, bytes, .. } => {
                self.record(pull, stream, offset, bytes, now)?;
                Ok(FrontEvent::Output(*frame))
            }
            Frame::Gap { pull: pull @ 1.., stream, offset, lost } => {
                self.pulled(pull, stream, offset, lost)?;
                Ok(FrontEvent::Output(*frame))
            }
            Frame::End { pull: pull @ 1.., stream, produced } => {
                self.pulled(pull, stream, produced, 0)?;
                self.pulled.get_mut(&pull).into_iter().for_each(|pulled| pulled.ended = true);
                Ok(FrontEvent::Output(*frame))
            }
            Frame::Gap { stream, offset, lost, .. } => {
                let progress = self.progress(stream, offset)?;
                let end = progress.position.checked_add(lost).filter(|end| lost > 0 && *end <= MAX_STREAM);
                let end = end.ok_or(EdgeError::Unexpected("size of a gap"))?;
                progress.position = end;
                progress.lost = progress.lost.saturating_add(lost);
                Ok(FrontEvent::Output(*frame))
            }
            Frame::End { stream, produced, .. } => {
                self.progress(stream, produced)?.ended = true;
                Ok(FrontEvent::Output(*frame))
            }
            Frame::Control(payload) => match self.message(decode(payload)?, now)? {
                ToFrontEnd::Piece(_) => Ok(FrontEvent::None),
                message => Ok(FrontEvent::Message(message)),
            },
        }
    }

    fn record(
        &mut self,
        pull: u32,
        stream: StreamKey,
        offset: u64,
        bytes: &[u8],
        now: Instant,
    ) -> Result<(), EdgeError> {
        self.check_answers()?;
        if bytes.is_empty() {
            return Err(EdgeError::Unexpected("size of a record"));
        }
        if pull > 0 {
            self.pulled(pull, stream, offset, bytes.len() as u64)?;
        } else {
            let progress = self.progress(stream, offset)?;
            let end = progress.position.checked_add(bytes.len() as u64);
            progress.position = end.ok_or(EdgeError::Unexpected("size of a record"))?;
        }
        let bundle = Bundle::of_record(pull, stream.channel);
        let window = bundle.and_then(|bundle| self.windows.get_mut(&bundle));
        window.ok_or(EdgeError::Unexpected("channel"))?.receive(charge(bytes.len()), now)
    }

    /// Notes `length` bytes at `offset` of a stream that tools pull. What arrives of a pull that has ended
    /// was sent before.
    fn pulled(&mut self, pull: u32, stream: StreamKey, offset: u64, length: u64) -> Result<(), EdgeError> {
        let StreamKey { rank, channel } = stream;
        let unknown = EdgeError::Pull { pull, rank };
        if pull > self.last_pull || !self.has_started() || !self.streams.contains_key(&stream) {
            return Err(unknown);
        }
        let Some(pulled) = self.pulled.get_mut(&pull) else { return Ok(()) };
        let end = offset.checked_add(length).filter(|end| *end <= MAX_STREAM);
        match *pulled {
            _ if pulled.stream != stream => return Err(unknown),
            Pulled { ended: true, .. } => {
                return Err(EdgeError::Unexpected("output after the end of its stream"));
            }
            Pulled { position: Some(expected), .. } if expected != offset => {
                return Err(EdgeError::Offset { rank, channel, offset, expected });
            }
            _ => pulled.position = Some(end.ok_or(EdgeError::Unexpected("position of a stream"))?),
        }
        Ok(())
    }

    /// Notes pulls that are about to be sent to the node.
    pub fn begin_pulls(&mut self, pulls: &[StreamPull]) {
        for StreamPull { number, rank, channel, .. } in pulls {
            let stream = StreamKey { rank: *rank, channel: *channel };
            self.pulled.insert(*number, Pulled { stream, position: None, ended: false });
            self.last_pull = self.last_pull.max(*number);
        }
    }

    /// Returns the pulls whose streams have not ended.
    pub fn open_pulls(&self) -> impl Iterator<Item = BrokenPull> {
        let open = self.pulled.iter().filter(|(_, pulled)| !pulled.ended);
        open.map(|(pull, Pulled { stream, position, .. })| {
            let (position, progress) = (position.unwrap_or(0), self.streams.get(stream));
            let produced = progress.map_or(0, |progress| progress.produced.max(progress.position));
            let missing = produced.saturating_sub(position);
            BrokenPull { pull: *pull, stream: *stream, position, missing }
        })
    }

    /// Notes that the rest of the stream of a pull does not arrive. Returns what is known about it, unless
    /// it has ended.
    pub fn pull_failed(&mut self, pull: u32) -> Option<BrokenPull> {
        let broken = self.open_pulls().find(|broken| broken.pull == pull);
        self.pulled.get_mut(&pull).into_iter().for_each(|pulled| pulled.ended = true);
        broken
    }

    /// Notes that pulls end.
    pub fn end_pulls(&mut self, pulls: &[u32]) {
        for pull in pulls {
            self.pulled.remove(pull);
        }
    }

    /// Returns how far each stream has come, in order, and if the node `is_lost`, what it misses.
    pub fn streams(&self, is_lost: bool) -> Vec<NodeStream> {
        let stream = |(stream, progress): (&StreamKey, &Progress)| {
            let (StreamKey { rank, channel }, Progress { position, lost, ended, .. }) = (*stream, *progress);
            let missing = (is_lost && !ended).then(|| progress.produced.saturating_sub(position));
            NodeStream { rank, channel, produced: progress.produced.max(position), lost, ended, missing }
        };
        self.streams.iter().map(stream).collect()
    }

    /// Returns the progress of a stream that goes on at `offset`.
    fn progress(&mut self, stream: StreamKey, offset: u64) -> Result<&mut Progress, EdgeError> {
        if self.phase != Phase::Started {
            return Err(EdgeError::Unexpected("output"));
        }
        let StreamKey { rank, channel } = stream;
        let progress = self.streams.get_mut(&stream).ok_or(EdgeError::Rank(rank))?;
        match *progress {
            Progress { ended: true, .. } => Err(EdgeError::Unexpected("output after the end of its stream")),
            Progress { position, .. } if position != offset => {
                Err(EdgeError::Offset { rank, channel, offset, expected: position })
            }
            _ => Ok(progress),
        }
    }

    fn message(&mut self, mut message: ToFrontEnd, now: Instant) -> Result<ToFrontEnd, EdgeError> {
        let phase = self.phase;
        match &mut message {
            ToFrontEnd::Link(_) if phase == Phase::Greeted => {}
            ToFrontEnd::Ready if phase == Phase::Greeted => self.phase = Phase::Ready,
            ToFrontEnd::Failed { .. } if matches!(phase, Phase::Greeted | Phase::Ready) => {
                self.phase = Phase::Failed;
            }
            ToFrontEnd::Started { pids } if phase == Phase::Ready && pids.len() == self.ranks => {
                self.phase = Phase::Started;
            }
            ToFrontEnd::Exited { rank, .. } if phase == Phase::Started => {
                if !self.running.remove(rank) {
                    return Err(EdgeError::Rank(*rank));
                }
            }
            ToFrontEnd::Produced(totals) if phase == Phase::Started => {
                self.totals = Some(now);
                for total in totals.iter() {
                    let key = StreamKey { rank: total.rank, channel: total.channel };
                    let progress = self.streams.get_mut(&key).ok_or(EdgeError::Rank(total.rank))?;
                    if total.produced > MAX_STREAM {
                        return Err(EdgeError::Unexpected("total"));
                    }
                    progress.produced = progress.produced.max(total.produced);
                }
            }
            ToFrontEnd::Cost { .. } if phase == Phase::Started && !self.cost_told => self.cost_told = true,
            ToFrontEnd::FilesWritten { .. } if phase == Phase::Started && !self.files_told => {
                self.files_told = true;
            }
            ToFrontEnd::Told(_) => {}
            // Totals and answers may follow the end of the last rank.
            ToFrontEnd::Produced(_) if phase == Phase::Over => {}
            // That of a pull that has ended was sent before.
            ToFrontEnd::PullFailed { pull } if self.has_started() && *pull <= self.last_pull => {}
            ToFrontEnd::StdinTaken { call, .. } if self.has_started() => {
                if !self.calls.remove(call) {
                    return Err(EdgeError::Call(*call));
                }
            }
            ToFrontEnd::Log { .. } if self.has_started() => self.check_answers()?,
            ToFrontEnd::Mpi { rank, .. } if phase == Phase::Started => self.check_rank(*rank)?,
            ToFrontEnd::Piece(piece) if self.has_started() => self.pieces.add(piece, MAX_EXCHANGE)?,
            ToFrontEnd::Modex { values, .. } if self.has_started() => self.pieces.complete_values(values)?,
            ToFrontEnd::Exchange { rank, exchange, .. } if self.has_started() => {
                self.check_rank(*rank)?;
                self.check_answers()?;
                self.pieces.complete(exchange)?;
            }
            ToFrontEnd::Over { cut_off }
                if phase == Phase::Started
                    && self.running.is_empty()
                    && self.streams.values().all(|progress| progress.ended) =>
            {
                let is_own = |(rank, channel): &(Rank, Channel)| {
                    self.streams.contains_key(&StreamKey { rank: *rank, channel: *channel })
                };
                if let Some((rank, _)) = cut_off.iter().find(|stream| !is_own(stream)) {
                    return Err(EdgeError::Rank(*rank));
                }
                self.phase = Phase::Over;
            }
            _ => return Err(EdgeError::Unexpected("control message")),
        }
        Ok(message)
    }

    /// Notes a piece of stdin that is about to be sent to the node, which answers once.
    pub fn note_call(&mut self, call: u64) {
        self.calls.insert(call);
    }

    /// Returns what the answer to a log request, or credit, keeps until it is written.
    pub fn answer(&self) -> Arc<()> {
        Arc::clone(&self.answers)
    }

    /// Checks that a rank is one of the node. It may have exited.
    fn check_rank(&self, rank: Rank) -> Result<(), EdgeError> {
        let is_own = self.streams.contains_key(&StreamKey { rank, channel: Channel::Stdout });
        if is_own { Ok(()) } else { Err(EdgeError::Rank(rank)) }
    }

    fn check_answers(&self) -> Result<(), EdgeError> {
        match Arc::strong_count(&self.answers) {
            0..=MAX_ANSWERS_OF_NODE => Ok(()),
            _ => Err(EdgeError::Answers(MAX_ANSWERS_OF_NODE)),
        }
    }

    /// Notes that `bytes` bytes of a record of `bundle` are where they belong since `now`. Returns the credit
    /// to send, if it is enough for a frame.
    pub fn taken(&mut self, bundle: Bundle, bytes: usize, now: Instant) -> Option<Frame<'static>> {
        let credit = self.windows.get_mut(&bundle)?.taken(charge(bytes), now)?;
        Some(Frame::Credit { bundle, bytes: credit })
    }

    /// Returns whether the agent has reported all exits and sent all output.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Returns whether the agent has told that it can't start its ranks.
    pub fn has_failed(&self) -> bool {
        self.phase == Phase::Failed
    }

    /// Returns whether the agent has started its ranks.
    fn has_started(&self) -> bool {
        matches!(self.phase, Phase::Started | Phase::Over)
    }

    /// Cuts off the node. Returns what is known about it, unless it was over or cut off before.
    pub fn cut(&mut self) -> Option<BrokenEnd> {
        let is_new = !std::mem::replace(&mut self.is_cut, true);
        (is_new && !self.is_over()).then(|| self.broken())
    }

    /// Returns what is known when the edge has ended too early. Streams that have ended are whole,
    /// and not included.
    pub fn broken(&self) -> BrokenEnd {
        let open = self.streams.iter().filter(|(_, progress)| !progress.ended);
        let broken = |(stream, progress): (&StreamKey, &Progress)| BrokenStream {
            stream: *stream,
            delivered: progress.position.saturating_sub(progress.lost),
            lost: progress.lost,
            missing: progress.produced.saturating_sub(progress.position),
        };
        BrokenEnd { streams: open.map(broken).collect(), ranks: self.running.clone(), totals: self.totals }
    }
}
