//! An agent: what its threads do in one turn of the simulation.

use std::collections::VecDeque;
use std::ops::Range;

use iof_nodes::limits::{MAX_ANSWER, MAX_CONTROL, MAX_KEPT, MAX_RECORD, MAX_RELAY_DOWN};
use iof_nodes::{
    AgentEnd, AgentEvent, ChildNote, ChildUp, Decoder, Frame, HEADER, LinkAddress, LinkEnd, Place, RankTotal,
    RelayDown, StdinOutcome, StdinPiece, StdinRanks, StdinTarget, StreamKey, ToAgent, ToFrontEnd, Turns,
};
use iof_proto::{Channel, Rank};

use super::pipe::{CAPACITY, EdgeEnd, Pipe, SESSION};
use super::source::{Source, bytes, written};
use crate::rng::Rng;

const CHANNELS: [Channel; 3] = [Channel::Stdout, Channel::Stderr, Channel::Stddiag];

/// The writers of a node: control messages, the two bundles, and each child.
const CONTROL: usize = 0;
const BUNDLES: [(usize, &[usize]); 2] = [(1, &[0]), (2, &[1, 2])];
const CHILDREN: usize = 3;

/// The turns between two messages with totals.
const TOTALS_INTERVAL: u64 = 50;

/// The turns that a node waits for a carrier that replaces another one.
const PATIENCE: u64 = 2000;

/// A relay's edges.
struct Relay {
    down: RelayDown,
    children: Vec<Child>,
}

/// An edge of a relay.
pub struct Child {
    /// The number of the node.
    pub number: usize,
    /// `None` if the edge has ended.
    up: Option<ChildUp>,
    pub edge: EdgeEnd,
    /// The relay knows where the child listens for carriers.
    has_address: bool,
    /// The turn in which a carrier that has ended is replaced.
    pub replaced_at: Option<u64>,
    /// Another carrier does not find the child.
    pub is_gone: bool,
    /// What is being written.
    writing: Vec<u8>,
}

/// An agent.
pub struct Node {
    first_rank: u32,
    /// By rank and channel.
    pub sources: Vec<[Source; 3]>,
    agent: AgentEnd,
    pub edge: EdgeEnd,
    /// When the carrier has ended that may be replaced.
    pub detached: Option<u64>,
    decoder: Decoder,
    relay: Option<Relay>,
    /// What each writer has to write in its turn.
    batches: Vec<Vec<u8>>,
    turns: Turns<usize>,
    /// The writer whose turn it is.
    current: Option<usize>,
    messages: VecDeque<ToFrontEnd>,
    /// The message about the start is in the batch, or was.
    starts: bool,
    has_started: bool,
    is_over: bool,
    pub is_gone: bool,
    pub stopped_until: u64,
    pub stdin: u64,
    /// The rank from which each bundle goes on.
    cursors: [usize; 2],
    /// Speaks wrongly in its next turn.
    pub is_wrong: bool,
    /// The largest number of bytes held as a relay: up, and down.
    pub peak: (usize, usize),
    pub frames: u64,
}

/// The pipes of all edges, each by the number of its lower node.
pub struct Pipes {
    pub up: Vec<Pipe>,
    pub down: Vec<Pipe>,
}

impl Child {
    /// Reads what the child has sent, and appends what is passed up. Returns why the edge ends, if it
    /// does.
    fn read(&mut self, pipe: &mut Pipe, batch: &mut Vec<u8>, (is_over, now): (bool, u64)) -> Option<String> {
        let up = self.up.as_mut()?;
        let Some(read) = self.edge.read(MAX_RECORD, pipe) else {
            if self.edge.link.is_none() || !self.has_address || self.is_gone || is_over {
                return Some("its carrier ended".to_owned());
            }
            self.replaced_at = Some(now + 1 + self.number as u64 % 97);
            return None;
        };
        let notes = match up.pass(&read, batch) {
            Ok(notes) => notes,
            Err(error) => return Some(error.to_string()),
        };
        for note in notes {
            match note {
                ChildNote::Acknowledged(received) => {
                    self.edge.link.as_mut().unwrap().acknowledged(received).unwrap();
                }
                ChildNote::Address(_) => self.has_address = true,
            }
        }
        None
    }
}

impl Node {
    pub fn new(first_rank: u32, sources: Vec<[Source; 3]>, is_linked: bool) -> Node {
        Node {
            first_rank,
            sources,
            agent: AgentEnd::default(),
            edge: EdgeEnd::new(is_linked),
            detached: None,
            decoder: Decoder::of_front_end(),
            relay: None,
            batches: vec![Vec::new(); CHILDREN],
            turns: Turns::default(),
            current: None,
            messages: VecDeque::new(),
            starts: false,
            has_started: false,
            is_over: false,
            is_gone: false,
            stopped_until: 0,
            stdin: 1,
            cursors: [0; 2],
            is_wrong: false,
            peak: (0, 0),
            frames: 0,
        }
    }

    fn key(&self, rank: usize, channel: usize) -> StreamKey {
        StreamKey { rank: Rank(self.first_rank + rank as u32), channel: CHANNELS[channel] }
    }

    /// Returns all streams.
    pub fn streams(&self) -> impl Iterator<Item = (StreamKey, &Source)> {
        self.sources.iter().enumerate().flat_map(move |(rank, sources)| {
            sources.iter().enumerate().map(move |(channel, source)| (self.key(rank, channel), source))
        })
    }

    /// Starts the agent: it greets.
    pub fn greet(&mut self) {
        Frame::HELLO.append_to(&mut self.batches[CONTROL], Place::NEXT);
        self.request(CONTROL);
    }

    /// Lets each thread of the agent do what it can. Returns the children that it starts.
    pub fn step(&mut self, number: usize, pipes: &mut Pipes, now: u64) -> Vec<usize> {
        let started = self.read_down(number, pipes, now);
        self.write_down(pipes);
        if self.has_started {
            self.produce(now);
        }
        self.read_children(pipes, now);
        self.write_up(number, pipes);
        self.edge.flush(&mut pipes.up[number]);
        self.measure();
        started
    }

    fn read_down(&mut self, number: usize, pipes: &mut Pipes, now: u64) -> Vec<usize> {
        let mut started = Vec::new();
        // A relay that has no room to send must read on.
        let must_read = self.edge.link.as_ref().is_some_and(|link| !link.has_room());
        if !must_read && self.relay.as_ref().is_some_and(|relay| !relay.down.has_room()) {
            return started;
        }
        let Some(read) = self.edge.read(CAPACITY, &mut pipes.down[number]) else {
            let since = *self.detached.get_or_insert(now);
            self.is_gone = self.edge.link.is_none() || now - since > PATIENCE;
            return started;
        };
        self.decoder.receive(&read);
        let mut decoder = std::mem::replace(&mut self.decoder, Decoder::of_front_end());
        while let Some((place, frame)) = decoder.decode().unwrap() {
            self.frames += 1;
            if let (Some(link), Frame::Ack { received }) = (&mut self.edge.link, &frame) {
                link.acknowledged(*received).unwrap();
                continue;
            }
            if place != Place::NEXT {
                self.relay.as_mut().unwrap().down.pass(place, &frame).unwrap();
                continue;
            }
            match self.agent.receive(&frame).unwrap() {
                AgentEvent::Message(ToAgent::Relay(start)) => {
                    let down = RelayDown::new(&start);
                    let is_linked = self.edge.link.is_some();
                    let child_up = if is_linked { ChildUp::linked } else { ChildUp::new };
                    let child = |places: Range<u32>| Child {
                        number: number + places.start as usize,
                        up: Some(child_up(places)),
                        edge: EdgeEnd::new(is_linked),
                        has_address: false,
                        replaced_at: None,
                        is_gone: false,
                        writing: Vec::new(),
                    };
                    let children: Vec<Child> = down.places().map(child).collect();
                    self.batches.resize(CHILDREN + children.len(), Vec::new());
                    started = children.iter().map(|child| child.number).collect();
                    self.relay = Some(Relay { down, children });
                }
                AgentEvent::Message(message) => self.handle(message, pipes),
                AgentEvent::None | AgentEvent::Credit => {}
            }
        }
        self.decoder = decoder;
        started
    }

    fn handle(&mut self, message: ToAgent, pipes: &mut Pipes) {
        match message {
            ToAgent::Start(_) => {
                if self.edge.link.is_some() {
                    let address = LinkAddress { path: "a".into(), session: SESSION };
                    self.messages.push_back(ToFrontEnd::Link(address));
                }
                self.messages.push_back(ToFrontEnd::Ready);
            }
            ToAgent::Go => {
                let pids = vec![1; self.sources.len()];
                self.messages.push_back(ToFrontEnd::Started { pids });
            }
            ToAgent::Stdin(mut piece) => {
                if let Some(relay) = &mut self.relay {
                    relay.down.pass_stdin(&mut piece).unwrap();
                }
                let StdinPiece { call, targets, bytes } = piece;
                if targets.is_empty() {
                    return;
                }
                assert_eq!(targets, [StdinTarget { place: Place::NEXT, ranks: StdinRanks::All }]);
                assert_eq!(call, self.stdin, "stdin arrives once and in order");
                assert!(bytes.iter().all(|byte| *byte == call as u8));
                self.stdin += 1;
                let outcome = StdinOutcome::Taken;
                self.messages.push_back(ToFrontEnd::StdinTaken { call, outcome });
            }
            ToAgent::CutChild { child, .. } => {
                let relay = self.relay.as_ref().unwrap();
                let index = relay.down.places().position(|places| places.start == child.0).unwrap();
                // The carrier is ended.
                pipes.up[relay.children[index].number].end();
                pipes.down[relay.children[index].number].end();
            }
            ToAgent::Close | ToAgent::HangUp => self.is_gone = true,
            _ => panic!("{message:?}"),
        }
    }

    fn write_down(&mut self, pipes: &mut Pipes) {
        let Some(relay) = &mut self.relay else { return };
        for (index, Child { number, edge, writing, .. }) in relay.children.iter_mut().enumerate() {
            if writing.is_empty() {
                *writing = relay.down.take(index).unwrap_or_default();
            }
            // What can't be written is lost with the edge.
            let pipe = &mut pipes.down[*number];
            let written = edge.write(writing, pipe).unwrap_or(writing.len());
            writing.drain(..written);
            edge.flush(pipe);
        }
    }

    /// Tells the children of a relay that ends, as far as their carriers take it.
    pub fn hang_up(&mut self, pipes: &mut Pipes) {
        let Some(relay) = &mut self.relay else { return };
        for Child { number, edge, .. } in &mut relay.children {
            if let Some(link) = &mut edge.link {
                link.send(&ToAgent::HangUp.frame(Place::NEXT).unwrap());
                edge.flush(&mut pipes.down[*number]);
            }
        }
    }

    /// Returns the edges of the relay whose carriers are due to be replaced.
    pub fn due(&mut self, now: u64) -> impl Iterator<Item = &mut Child> {
        let children = self.relay.iter_mut().flat_map(|relay| &mut relay.children);
        children.filter_map(move |child| child.replaced_at.take_if(|time| *time <= now).map(|_| child))
    }

    /// Returns whether the carrier of a child is replaced when it ends.
    pub fn can_replace(&self, node: usize) -> bool {
        let mut children = self.relay.iter().flat_map(|relay| &relay.children);
        children.any(|child| child.number == node && child.has_address)
    }

    /// Fills the batches of the node's own output and messages.
    fn produce(&mut self, now: u64) {
        for (bundle, (writer, channels)) in BUNDLES.into_iter().enumerate() {
            if self.batches[writer].is_empty() && !self.is_over {
                self.fill_bundle(bundle, (writer, channels), now);
            }
        }
        let all = || self.sources.iter().flatten();
        if !self.is_over
            && all().all(|source| source.is_ended)
            && self.batches[1].is_empty()
            && self.batches[2].is_empty()
        {
            self.is_over = true;
            for rank in 0..self.sources.len() {
                let (rank, status) = (Rank(self.first_rank + rank as u32), Some(0));
                let exited = ToFrontEnd::Exited { rank, status, executable: "a".into(), requested: false };
                self.messages.push_back(exited);
            }
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
                if self.agent.take_window(stream.channel, length) {
                    let bytes = bytes(stream, source.sent, length);
                    Frame::Record { stream, offset: source.sent, time: source.since, bytes: &bytes }
                        .append_to(&mut batch, Place::NEXT);
                    source.sent += length as u64;
                }
                if source.sent == source.limit && !source.is_ended {
                    source.is_ended = true;
                    let end = Frame::End { stream, produced: source.sent };
                    end.append_to(&mut batch, Place::NEXT);
                }
            }
            if batch.len() >= MAX_RECORD {
                break;
            }
            self.cursors[bundle] = (rank + 1) % self.sources.len();
        }
        if !batch.is_empty() {
            self.batches[writer] = batch;
            self.request(writer);
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
            Frame::Gap { stream, offset, lost }.append_to(&mut self.batches[1], Place::NEXT);
            self.request(1);
        }
    }

    /// Passes on what children have sent, as far as what was read before is written.
    fn read_children(&mut self, pipes: &mut Pipes, now: u64) {
        let Some(relay) = &mut self.relay else { return };
        let mut written = Vec::new();
        for (index, child) in relay.children.iter_mut().enumerate() {
            let batch = &mut self.batches[CHILDREN + index];
            if !batch.is_empty() || child.replaced_at.is_some() {
                continue;
            }
            let is_over = relay.down.is_over(index);
            if let Some(reason) = child.read(&mut pipes.up[child.number], batch, (is_over, now))
                && let Some(up) = child.up.take()
            {
                batch.extend(up.lost(&reason).frame().unwrap());
                relay.down.close(index);
                pipes.up[child.number].break_off();
                pipes.down[child.number].end();
            }
            if !batch.is_empty() {
                written.push(CHILDREN + index);
            }
        }
        written.into_iter().for_each(|writer| self.request(writer));
    }

    fn request(&mut self, writer: usize) {
        if self.turns.begin() {
            self.current = Some(writer);
        } else {
            self.turns.wait(writer);
        }
    }

    /// Writes turn after turn while there is room.
    fn write_up(&mut self, number: usize, pipes: &mut Pipes) {
        if self.is_wrong {
            self.is_wrong = false;
            // Whole frames precede it.
            if self.current.is_none() {
                let _ = self.edge.write(&[99; HEADER], &mut pipes.up[number]);
            }
        }
        loop {
            if self.batches[CONTROL].is_empty() && !self.messages.is_empty() {
                for message in self.messages.drain(..) {
                    self.starts |= matches!(message, ToFrontEnd::Started { .. });
                    self.batches[CONTROL].extend(message.frame().unwrap());
                }
                self.request(CONTROL);
            }
            let Some(writer) = self.current else { return };
            let batch = &mut self.batches[writer];
            let Some(written) = self.edge.write(batch, &mut pipes.up[number]) else {
                self.is_gone = true;
                return;
            };
            batch.drain(..written);
            if !batch.is_empty() {
                return;
            }
            // Output follows the message about the start.
            self.has_started |= self.starts && writer == CONTROL;
            self.current = self.turns.end();
        }
    }

    fn measure(&mut self) {
        assert!(self.edge.link.as_ref().is_none_or(|link| link.held() < MAX_KEPT + MAX_CONTROL));
        let Some(relay) = &self.relay else { return };
        let most = MAX_RECORD + HEADER + MAX_ANSWER;
        let held = relay.children.iter().filter_map(|child| child.up.as_ref()).map(ChildUp::held);
        assert!(held.clone().all(|held| held <= most));
        assert!(self.batches.iter().skip(CHILDREN).all(|batch| batch.len() <= most));
        let up = held.sum::<usize>() + self.batches.iter().skip(CHILDREN).map(Vec::len).sum::<usize>();
        let kept = |child: &Child| child.edge.link.as_ref().map_or(0, LinkEnd::held);
        assert!(relay.children.iter().all(|child| kept(child) < MAX_KEPT + 2 * (MAX_RELAY_DOWN + CAPACITY)));
        let children = (0..).zip(&relay.children);
        let down: Vec<usize> =
            children.map(|(index, child)| relay.down.held(index) + child.writing.len()).collect();
        assert!(down.iter().all(|held| *held <= 2 * (MAX_RELAY_DOWN + CAPACITY)));
        self.peak = (self.peak.0.max(up), self.peak.1.max(down.iter().sum()));
    }
}
