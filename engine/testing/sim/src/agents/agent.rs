//! An agent: what its threads do in one turn of the simulation.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use iof_core::StdinAnswer;
use iof_nodes::limits::{MAX_CONTROL, MAX_KEPT, MAX_RECORD};
use iof_nodes::{
    AgentEnd, AgentEvent, Bundle, Frame, FrameDecoder, HEADER, LinkAddress, RankTotal, StreamKey, ToAgent,
    ToFrontEnd,
};
use iof_proto::{Channel, Failure, InputState, PartialCause, Rank, Status, StreamPull, UntakenStdin};
use libc::{SIGKILL, SIGTERM};

use super::NodeSet;
use super::fencer::Fencer;
use super::pipe::{CAPACITY, EdgeEnd, LIMIT, Pipe, SESSION, time};
use super::source::{Source, bytes, stdin_bytes, written};
use crate::rng::Rng;

/// The writers of a node: control messages, the two bundles, and the streams that are pulled.
const CONTROL: usize = 0;
const BUNDLES: [(usize, &[usize]); 2] = [(1, &[0]), (2, &[1, 2])];
const PULLS: usize = 3;
const WRITERS: usize = 4;

/// The turns between two messages with totals.
const TOTALS_INTERVAL: u64 = 50;

/// An agent.
pub struct Agent {
    first_rank: u32,
    fencer: Fencer,
    /// By rank and channel.
    pub sources: Vec<[Source; Channel::OUTPUTS.len()]>,
    exits: Vec<Exiting>,
    agent: AgentEnd,
    pub edge: EdgeEnd,
    /// Carriers may be replaced.
    is_linked: bool,
    decoder: FrameDecoder,
    /// The bytes that each writer has to write in its turn.
    batches: [Vec<u8>; WRITERS],
    /// The writers in the order in which they have asked. It is the turn of the first one.
    turns: VecDeque<usize>,
    messages: VecDeque<ToFrontEnd>,
    /// The message about the start is in the batch, or was.
    starts: bool,
    has_started: bool,
    is_over: bool,
    pub is_gone: bool,
    pub stopped_until: u64,
    /// The text before its hello.
    pub banner: Vec<u8>,
    stdin: Stdin,
    /// The streams that the front end pulls, and where each began.
    pulls: BTreeMap<u32, Pulled>,
    pub began: BTreeMap<u32, u64>,
    rng: Rng,
    /// The rank from which each bundle goes on.
    cursors: [usize; 2],
    /// Speaks wrongly in its next turn.
    pub is_wrong: bool,
    pub frames: u64,
}

/// A stream that the front end pulls.
struct Pulled {
    rank: usize,
    channel: usize,
    position: u64,
    /// The end of what was cached when the pull began, until a mark follows it.
    cached: Option<u64>,
}

/// The end of a rank.
pub struct Exiting {
    /// The status, as wait(2) returns it.
    status: i32,
    is_requested: bool,
    ignores_sigterm: bool,
    /// A stream stays open after SIGKILL until it is cut off.
    leaves_child: bool,
    has_exited: bool,
}

/// The stdin of the ranks of a node.
#[derive(Default)]
struct Stdin {
    /// The bytes that each rank has of each push, by its call.
    taken: BTreeMap<(Rank, u64), u64>,
    /// The bytes that have arrived of each push.
    arrived: BTreeMap<u64, u64>,
    closed: BTreeSet<Rank>,
    /// The last push of each rank.
    last: BTreeMap<Rank, u64>,
    /// The answers that are sent in a later turn.
    answers: Vec<(u64, u64, StdinAnswer)>,
}

impl Exiting {
    pub fn random(rng: &mut Rng) -> Exiting {
        let status = if rng.chance(8) { (1 + rng.below(3) as i32) << 8 } else { 0 };
        let (ignores_sigterm, leaves_child) = (rng.chance(64), rng.chance(64));
        Exiting { status, is_requested: false, ignores_sigterm, leaves_child, has_exited: false }
    }
}

/// The pipes of all edges, each by the number of its lower node.
pub struct Pipes {
    pub up: Vec<Pipe>,
    pub down: Vec<Pipe>,
}

impl Agent {
    pub fn new(
        fencer: Fencer,
        (sources, exits): (Vec<[Source; Channel::OUTPUTS.len()]>, Vec<Exiting>),
        NodeSet { is_linked, .. }: NodeSet,
        rng: Rng,
    ) -> Agent {
        Agent {
            first_rank: fencer.first_rank(),
            fencer,
            sources,
            exits,
            agent: AgentEnd::default(),
            edge: EdgeEnd::default(),
            is_linked,
            decoder: FrameDecoder::of_front_end(),
            batches: Default::default(),
            turns: VecDeque::new(),
            messages: VecDeque::new(),
            starts: false,
            has_started: false,
            is_over: false,
            is_gone: false,
            stopped_until: 0,
            banner: Vec::new(),
            stdin: Stdin::default(),
            pulls: BTreeMap::new(),
            began: BTreeMap::new(),
            rng,
            cursors: [0; 2],
            is_wrong: false,
            frames: 0,
        }
    }

    fn key(&self, rank: usize, channel: usize) -> StreamKey {
        StreamKey { rank: Rank(self.first_rank + rank as u32), channel: Channel::OUTPUTS[channel] }
    }

    /// Returns all streams.
    pub fn streams(&self) -> impl Iterator<Item = (StreamKey, &Source)> {
        self.sources.iter().enumerate().flat_map(move |(rank, sources)| {
            sources.iter().enumerate().map(move |(channel, source)| (self.key(rank, channel), source))
        })
    }

    /// Starts the agent: it greets, maybe after text of a shell's start-up file.
    pub fn greet(&mut self) {
        if self.rng.chance(64) {
            let length = self.rng.size(2000);
            self.banner =
                (0..length).map(|_| 1 + self.rng.below(if length < 100 { 9 } else { 255 }) as u8).collect();
        }
        self.batches[CONTROL].extend(&self.banner);
        Frame::HELLO.append_to(&mut self.batches[CONTROL]);
        self.turns.push_back(CONTROL);
    }

    /// Lets each thread of the agent do what it can. The node has this number.
    pub fn step(&mut self, number: usize, pipes: &mut Pipes, now: u64) {
        self.read_down(&mut pipes.down[number], now);
        if self.has_started {
            self.produce(now);
            for (_, call, answer) in self.stdin.answers.extract_if(.., |(time, ..)| *time <= now) {
                self.messages.push_back(ToFrontEnd::StdinTaken { call, answer });
            }
        }
        self.write_up(&mut pipes.up[number]);
        self.edge.flush(&mut pipes.up[number]);
        assert!(self.edge.link.held() < MAX_KEPT + MAX_CONTROL);
    }

    fn read_down(&mut self, pipe: &mut Pipe, now: u64) {
        let Some(read) = self.edge.read(CAPACITY, pipe, now) else {
            self.is_gone = self.edge.link.lost_at().is_some_and(|lost| lost <= time(now));
            return;
        };
        self.decoder.receive(&read);
        let mut decoder = std::mem::replace(&mut self.decoder, FrameDecoder::of_front_end());
        while let Some(frame) = decoder.decode().unwrap() {
            self.frames += 1;
            if let Frame::Ack { received } = frame {
                self.edge.link.acknowledged(received).unwrap();
                continue;
            }
            match self.agent.receive(&frame).unwrap() {
                AgentEvent::Message(message) => self.handle(message, now),
                AgentEvent::None | AgentEvent::Credit => {}
            }
        }
        self.decoder = decoder;
    }

    fn handle(&mut self, message: ToAgent, now: u64) {
        match message {
            ToAgent::Start(_) => {
                if self.is_linked {
                    self.edge.link.outlive_carriers(LIMIT);
                    let address = LinkAddress { path: "a".into(), session: SESSION };
                    self.messages.push_back(ToFrontEnd::Link(address));
                }
                self.messages.push_back(ToFrontEnd::Ready);
            }
            ToAgent::Go => {
                let pids = vec![1; self.sources.len()];
                self.messages.push_back(ToFrontEnd::Started { pids });
            }
            ToAgent::Stdin { call, ranks, bytes } => {
                let answer = self.take_stdin(call, ranks, &bytes);
                let late = if self.rng.chance(64) { self.rng.below(100) } else { 0 };
                self.stdin.answers.push((now + late, call, answer));
            }
            ToAgent::Pull(requests) => {
                for StreamPull { number: pull, rank, channel } in requests {
                    let rank = (rank.0 - self.first_rank) as usize;
                    let channel = Channel::OUTPUTS.iter().position(|other| *other == channel).unwrap();
                    let source = &self.sources[rank][channel];
                    let (position, cached) = (source.oldest(), Some(source.produced));
                    self.began.insert(pull, position);
                    assert!(self.pulls.insert(pull, Pulled { rank, channel, position, cached }).is_none());
                }
            }
            ToAgent::EndPulls(pulls) => self.pulls.retain(|pull, _| !pulls.contains(pull)),
            ToAgent::Signal { signal } => self.signal(signal),
            ToAgent::CutOff => self.sources.iter_mut().flatten().for_each(|source| source.is_held = false),
            ToAgent::Exchanged { call, answer } => self.fencer.exchanged(call, answer),
            ToAgent::Modex { call, rank } => self.messages.extend(self.fencer.answer(call, rank)),
            ToAgent::Close | ToAgent::HangUp => self.is_gone = true,
            _ => panic!("{message:?}"),
        }
    }

    /// Ends the ranks that run, unless they ignore the signal.
    fn signal(&mut self, number: i32) {
        assert!(self.starts, "no signal precedes the ranks");
        for (exit, sources) in self.exits.iter_mut().zip(&mut self.sources) {
            let ends = number == SIGKILL || (number == SIGTERM && !exit.ignores_sigterm);
            if number == SIGKILL && std::mem::take(&mut exit.leaves_child) {
                sources[1].is_held = true;
            }
            if ends && !exit.has_exited && !exit.is_requested {
                (exit.status, exit.is_requested) = (number, true);
                sources.iter_mut().for_each(|source| source.limit = source.produced);
            }
        }
    }

    /// Gives the ranks a piece of stdin, which some of them do not take.
    fn take_stdin(&mut self, call: u64, ranks: Option<Vec<Rank>>, bytes: &[u8]) -> StdinAnswer {
        assert!(self.starts && !self.stdin.answers.iter().any(|(_, other, _)| *other == call));
        let arrived = self.stdin.arrived.entry(call).or_default();
        assert!(bytes == stdin_bytes(*arrived, bytes.len()), "the bytes of push {call} from {arrived} on");
        *arrived += bytes.len() as u64;
        if self.rng.below(100) == 0 {
            return Err(Failure::new(Status::ERR_NOT_AVAILABLE, "no thread"));
        }
        let all = (self.first_rank..).map(Rank).take(self.sources.len());
        let ranks = ranks.unwrap_or_else(|| all.collect());
        let count = ranks.len();
        let mut untaken = Vec::new();
        for rank in ranks {
            let has_exited = self.exits[(rank.0 - self.first_rank) as usize].has_exited;
            let closes = !bytes.is_empty() && self.rng.below(60) == 0;
            let delivered = match self.stdin.closed.contains(&rank) || has_exited {
                true => 0,
                false if closes => self.rng.index(bytes.len()),
                false => bytes.len(),
            };
            if closes || has_exited || self.stdin.closed.contains(&rank) {
                self.stdin.closed.insert(rank);
                untaken.push(UntakenStdin { rank, delivered: delivered as u64, cause: PartialCause::Closed });
            } else if bytes.is_empty() {
                self.stdin.closed.insert(rank);
            }
            let last = self.stdin.last.insert(rank, call);
            assert!(last <= Some(call), "pushes do not overtake each other");
            *self.stdin.taken.entry((rank, call)).or_default() += delivered as u64;
        }
        match untaken.iter().all(|untaken| untaken.delivered == 0) && untaken.len() == count {
            true => Err(Failure::new(Status::ERR_IOF_COMPLETE, "all have closed it")),
            false => Ok(untaken),
        }
    }

    /// Returns the number of bytes of a push that a rank has.
    pub fn taken(&self, rank: Rank, call: u64) -> u64 {
        self.stdin.taken.get(&(rank, call)).copied().unwrap_or_default()
    }

    /// Tells of the ranks whose streams have ended.
    fn exit(&mut self) {
        let ranks = (self.first_rank..).map(Rank).zip(&self.sources).zip(&mut self.exits);
        for ((rank, sources), exit) in ranks {
            if !exit.has_exited && sources.iter().all(|source| source.is_ended) {
                exit.has_exited = true;
                let (status, requested) = (Some(exit.status), exit.is_requested);
                let exited = ToFrontEnd::Exited { rank, status, requested, used: None };
                self.messages.push_back(exited);
            }
        }
    }

    /// Fills the batches of the node's own output and messages.
    fn produce(&mut self, now: u64) {
        for (bundle, (writer, channels)) in BUNDLES.into_iter().enumerate() {
            if self.batches[writer].is_empty() && !self.is_over {
                self.fill_bundle(bundle, (writer, channels), now);
            }
        }
        if self.batches[PULLS].is_empty() {
            self.fill_pulls();
        }
        if !self.is_over {
            self.messages.extend(self.fencer.turn(&mut self.rng));
            self.exit();
        }
        let all = || self.sources.iter().flatten();
        if !self.is_over
            && all().all(|source| source.is_ended)
            && self.batches[1].is_empty()
            && self.batches[2].is_empty()
        {
            self.is_over = true;
            self.messages.push_back(ToFrontEnd::Over { cut_off: Vec::new() });
        } else if !self.is_over && (now + u64::from(self.first_rank)).is_multiple_of(TOTALS_INTERVAL) {
            let mut totals = Vec::new();
            for (rank, sources) in self.sources.iter().enumerate() {
                for (channel, source) in sources.iter().enumerate() {
                    let StreamKey { rank, channel } = self.key(rank, channel);
                    totals.push(RankTotal { rank, channel, produced: source.produced });
                }
            }
            self.messages.push_back(ToFrontEnd::Produced(totals));
        }
    }

    /// Adds records of one bundle, of one rank after the other, until the batch is full or the
    /// window is used up.
    fn fill_bundle(&mut self, bundle: usize, (writer, channels): (usize, &[usize]), now: u64) {
        let mut batch = Vec::new();
        for _ in 0..self.sources.len() {
            let rank = self.cursors[bundle];
            for &channel in channels {
                let stream = self.key(rank, channel);
                let source = &mut self.sources[rank][channel];
                source.fill(written(channel, now), now);
                let length = source.waiting().min(MAX_RECORD);
                if self.agent.take_window(Bundle::of(stream.channel).unwrap(), length) {
                    let bytes = bytes(stream, source.sent, length);
                    Frame::Record {
                        pull: 0,
                        stream,
                        offset: source.sent,
                        time: source.since,
                        input: InputState::UNBUFFERED,
                        bytes: &bytes,
                    }
                    .append_to(&mut batch);
                    source.sent += length as u64;
                }
                if source.sent == source.limit && !source.is_ended && !source.is_held {
                    source.is_ended = true;
                    let end = Frame::End { pull: 0, stream, produced: source.sent };
                    end.append_to(&mut batch);
                }
            }
            if batch.len() >= MAX_RECORD {
                break;
            }
            self.cursors[bundle] = (rank + 1) % self.sources.len();
        }
        if !batch.is_empty() {
            self.batches[writer] = batch;
            self.turns.push_back(writer);
        }
    }

    /// Adds what the streams that are pulled have, as far as the window has room.
    fn fill_pulls(&mut self) {
        let mut batch = Vec::new();
        for (pull, mut pulled) in std::mem::take(&mut self.pulls) {
            let stream = self.key(pulled.rank, pulled.channel);
            let source = self.sources[pulled.rank][pulled.channel];
            let (offset, oldest) = (pulled.position, source.oldest());
            if offset < oldest {
                Frame::Gap { pull, stream, offset, lost: oldest - offset }.append_to(&mut batch);
                pulled.position = oldest;
            }
            let length = ((source.produced - pulled.position) as usize).min(MAX_RECORD);
            if batch.len() < MAX_RECORD && self.agent.take_window(Bundle::Pulls, length) {
                let bytes = bytes(stream, pulled.position, length);
                let offset = pulled.position;
                Frame::Record { pull, stream, offset, time: 0, input: InputState::UNBUFFERED, bytes: &bytes }
                    .append_to(&mut batch);
                pulled.position += length as u64;
            }
            if pulled.cached.take_if(|end| *end <= pulled.position).is_some() {
                let offset = pulled.position;
                Frame::Gap { pull, stream, offset, lost: 0 }.append_to(&mut batch);
            }
            if source.is_ended && pulled.position == source.produced {
                Frame::End { pull, stream, produced: source.produced }.append_to(&mut batch);
            } else {
                self.pulls.insert(pull, pulled);
            }
        }
        if !batch.is_empty() {
            self.batches[PULLS] = batch;
            self.turns.push_back(PULLS);
        }
    }

    /// Loses some bytes of a rank that has sent all that was read.
    pub fn lose(&mut self, rng: &mut Rng) {
        let rank = rng.index(self.sources.len());
        let stream = self.key(rank, 0);
        let source = &mut self.sources[rank][0];
        if self.has_started && self.batches[1].is_empty() && !source.is_ended && source.waiting() == 0 {
            let (offset, lost) = (source.sent, rng.size(100_000));
            (source.produced, source.sent) = (offset + lost, offset + lost);
            source.limit = source.limit.max(source.sent);
            Frame::Gap { pull: 0, stream, offset, lost }.append_to(&mut self.batches[1]);
            self.turns.push_back(1);
        }
    }

    /// Writes turn after turn while there is room.
    fn write_up(&mut self, pipe: &mut Pipe) {
        if self.is_wrong {
            self.is_wrong = false;
            // Whole frames precede it.
            if self.turns.is_empty() {
                let _ = self.edge.write(&[99; HEADER], pipe);
            }
        }
        loop {
            if self.batches[CONTROL].is_empty() && !self.messages.is_empty() {
                for message in self.messages.drain(..) {
                    self.starts |= matches!(message, ToFrontEnd::Started { .. });
                    self.batches[CONTROL].extend(message.frame().unwrap());
                }
                self.turns.push_back(CONTROL);
            }
            let Some(&writer) = self.turns.front() else { return };
            let batch = &mut self.batches[writer];
            let Some(written) = self.edge.write(batch, pipe) else {
                self.is_gone = true;
                return;
            };
            batch.drain(..written);
            if !batch.is_empty() {
                return;
            }
            // Output follows the message about the start.
            self.has_started |= self.starts && writer == CONTROL;
            self.turns.pop_front();
        }
    }
}
