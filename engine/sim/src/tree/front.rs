//! The front end of a job: a reader that may be slow, and the account of every byte.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use iof_nodes::{
    AgentSocket, Branch, BrokenEnd, ChildNode, Decoder, DropPolicy, Frame, FrontEvent, Place, RankTotal,
    Start, StartRelay, StdinPiece, StdinRanks, StdinTarget, StreamKey, ToAgent, ToFrontEnd, subtrees, window,
};
use iof_proto::{Channel, Nspace, Rank};

use super::Tree;
use super::node::{Node, Pipes};
use super::pipe::{CAPACITY, EdgeEnd, Pipe};
use super::source::bytes;
use crate::rng::Rng;

/// The bytes of a piece of stdin.
const PIECE: usize = 16 << 10;

/// One edge of the front end.
struct Edge {
    first: usize,
    branch: Branch,
    end: EdgeEnd,
    /// The first node is ready to start its ranks.
    is_ready: bool,
    /// The turn in which a carrier that has ended is replaced.
    replaced_at: Option<u64>,
    decoder: Decoder,
    is_ended: bool,
    /// Frames that wait to be written.
    down: Vec<u8>,
}

/// What arrived of one stream.
#[derive(Clone, Copy, Debug, Default)]
struct Arrived {
    delivered: u64,
    lost: u64,
    /// The last total of the node.
    told: u64,
    is_ended: bool,
}

/// The front end.
pub struct Front {
    edges: Vec<Edge>,
    arrived: BTreeMap<StreamKey, Arrived>,
    /// Records that are not where they belong: edge, place, channel, bytes.
    waiting: VecDeque<(usize, Place, Channel, usize)>,
    held: u64,
    ranks: u32,
    nodes: usize,
    pub ready: usize,
    pub started: usize,
    pub open: BTreeSet<usize>,
    pub lost: BTreeSet<usize>,
    /// The number of carriers that replaced others.
    pub replaced: u64,
    /// The piece of stdin that is under way, and the nodes that have not answered.
    pub stdin: (u64, BTreeSet<usize>),
    /// The delays of lone lines, in turns.
    pub delays: Vec<u64>,
    pub peak: u64,
    pub bytes: u64,
    pub frames: u64,
    /// The time that frames took, without the checks of the simulation.
    pub spent: Duration,
    epoch: Instant,
}

impl Front {
    pub fn new(tree: &Tree) -> Front {
        let nodes = tree.nodes as usize;
        let ranks: Vec<BTreeSet<Rank>> = (0..tree.nodes)
            .map(|node| (node * tree.ranks..(node + 1) * tree.ranks).map(Rank).collect())
            .collect();
        let edge = |subtree: std::ops::Range<u32>| {
            let (first, end) = (subtree.start as usize, subtree.end as usize);
            let branch = Branch::new(&ranks[first..end], tree.radix, window(nodes));
            let (end, decoder) = (EdgeEnd::new(tree.is_linked), Decoder::of_agent());
            Edge {
                first,
                branch,
                end,
                is_ready: false,
                replaced_at: None,
                decoder,
                is_ended: false,
                down: Vec::new(),
            }
        };
        Front {
            edges: subtrees(0..tree.nodes, tree.radix).into_iter().map(edge).collect(),
            arrived: BTreeMap::new(),
            waiting: VecDeque::new(),
            held: 0,
            ranks: tree.ranks,
            nodes,
            ready: 0,
            started: 0,
            open: (0..nodes).collect(),
            lost: BTreeSet::new(),
            replaced: 0,
            stdin: (0, BTreeSet::new()),
            delays: Vec::new(),
            peak: 0,
            bytes: 0,
            frames: 0,
            spent: Duration::ZERO,
            epoch: Instant::now(),
        }
    }

    /// Returns the nodes at the ends of the front end's edges.
    pub fn direct(&self) -> Vec<usize> {
        self.edges.iter().map(|edge| edge.first).collect()
    }

    /// Returns whether the front end replaces the carrier of a node when it ends.
    pub fn can_replace(&self, node: usize) -> bool {
        let (edge, place) = self.place(node);
        place == Place::NEXT && self.edges[edge].is_ready
    }

    fn place(&self, node: usize) -> (usize, Place) {
        let edge = self.edges.partition_point(|edge| edge.first <= node) - 1;
        (edge, Place((node - self.edges[edge].first) as u32))
    }

    pub fn send(&mut self, node: usize, message: &ToAgent) {
        let (edge, place) = self.place(node);
        self.edges[edge].down.extend(message.frame(place).unwrap());
    }

    /// Reads all that has arrived. The front end always reads.
    pub fn read(&mut self, nodes: &mut [Node], pipes: &mut Pipes, (rng, now): (&mut Rng, u64)) {
        for edge in 0..self.edges.len() {
            if self.edges[edge].is_ended {
                continue;
            }
            let Edge { first, end, is_ready, replaced_at, .. } = &mut self.edges[edge];
            let first = *first;
            if replaced_at.is_some_and(|time| time <= now) && !nodes[first].is_gone {
                *replaced_at = None;
                self.replaced += 1;
                nodes[first].detached = None;
                end.resume(&mut nodes[first].edge);
                (pipes.up[first], pipes.down[first]) = (Pipe::default(), Pipe::default());
            }
            let Some(read) = end.read(CAPACITY, &mut pipes.up[first]) else {
                if end.link.is_none() || !*is_ready || nodes[first].is_gone {
                    self.end_edge(edge, nodes, pipes);
                } else if replaced_at.is_none() {
                    *replaced_at = Some(now + rng.below(100));
                }
                continue;
            };
            let began = Instant::now();
            let mut decoder = std::mem::replace(&mut self.edges[edge].decoder, Decoder::of_agent());
            decoder.receive(&read);
            self.spent += began.elapsed();
            loop {
                let began = Instant::now();
                let Ok(frame) = decoder.decode() else {
                    self.end_edge(edge, nodes, pipes);
                    break;
                };
                let Some((place, frame)) = frame else { break };
                self.frames += 1;
                if let (Some(link), Frame::Ack { received }) = (&mut self.edges[edge].end.link, &frame) {
                    link.acknowledged(*received).unwrap();
                    continue;
                }
                let event = self.edges[edge].branch.receive(place, &frame, self.epoch);
                self.spent += began.elapsed();
                // No node breaks the rules of its own frames.
                self.handle((edge, place), event.unwrap(), nodes, now);
            }
            self.edges[edge].decoder = decoder;
        }
    }

    fn end_edge(&mut self, edge: usize, nodes: &[Node], pipes: &mut Pipes) {
        let first = self.edges[edge].first;
        self.edges[edge].is_ended = true;
        pipes.up[first].break_off();
        pipes.down[first].end();
        let cut = self.edges[edge].branch.cut(Place::NEXT);
        self.lose(edge, cut, nodes);
    }

    fn handle(&mut self, (edge, place): (usize, Place), event: FrontEvent<'_>, nodes: &[Node], now: u64) {
        let node = self.edges[edge].first + place.0 as usize;
        match event {
            FrontEvent::None => {}
            FrontEvent::Greeted => self.prepare((edge, place), node),
            FrontEvent::Record { stream, time, bytes: record } => {
                let arrived = self.arrived.entry(stream).or_default();
                let offset = arrived.delivered + arrived.lost;
                assert!(record == bytes(stream, offset, record.len()), "bytes of {stream:?}");
                arrived.delivered += record.len() as u64;
                self.bytes += record.len() as u64;
                self.held += record.len() as u64;
                self.peak = self.peak.max(self.held);
                assert!(self.peak <= 2 * window(self.nodes) * self.nodes as u64);
                if stream.channel == Channel::Stderr {
                    self.delays.push(now - time);
                }
                self.waiting.push_back((edge, place, stream.channel, record.len()));
            }
            FrontEvent::Gap { stream, lost, end } => {
                let arrived = self.arrived.entry(stream).or_default();
                arrived.lost += lost;
                assert_eq!(arrived.delivered + arrived.lost, end);
            }
            FrontEvent::End(stream) => self.arrived.entry(stream).or_default().is_ended = true,
            FrontEvent::Message(ToFrontEnd::Ready) => {
                self.ready += 1;
                self.edges[edge].is_ready |= place == Place::NEXT;
                if self.ready == self.nodes {
                    (0..self.nodes).for_each(|node| self.send(node, &ToAgent::Go));
                }
            }
            FrontEvent::Message(ToFrontEnd::Started { .. }) => self.started += 1,
            FrontEvent::Message(ToFrontEnd::Produced(totals)) => {
                for RankTotal { rank, channel, produced } in totals {
                    self.arrived.entry(StreamKey { rank, channel }).or_default().told = produced;
                }
            }
            FrontEvent::Message(ToFrontEnd::StdinTaken { call, .. }) => {
                let is_due = call == self.stdin.0 && self.stdin.1.remove(&node);
                assert!(is_due || !self.open.contains(&node));
            }
            FrontEvent::Message(ToFrontEnd::Over { .. }) => {
                assert!(self.open.remove(&node));
                // Its ranks read no more.
                self.stdin.1.remove(&node);
                self.check_whole(&nodes[node]);
            }
            FrontEvent::Message(ToFrontEnd::ChildLost { child, .. }) => {
                let branch = &mut self.edges[edge].branch;
                let child = branch.child(place, child).unwrap();
                let cut = branch.cut(child);
                self.lose(edge, cut, nodes);
            }
            FrontEvent::Message(_) => {}
        }
    }

    fn prepare(&mut self, (edge, place): (usize, Place), node: usize) {
        let Edge { branch, down, .. } = &mut self.edges[edge];
        down.extend(branch.end(place).unwrap().greeting(place));
        let child = |places: std::ops::Range<u32>| ChildNode { host: "a".into(), nodes: places.len() as u32 };
        let children: Vec<ChildNode> = branch.children(place).into_iter().map(child).collect();
        if !children.is_empty() {
            let relay = StartRelay { rsh: vec!["sh".into()], agent: "a".into(), reattach: None, children };
            self.send(node, &ToAgent::Relay(relay));
        }
        let first = node as u32 * self.ranks;
        let start = Start {
            nspace: Nspace::new("job").unwrap(),
            programs: Vec::new(),
            env: Vec::new(),
            ranks: (first..first + self.ranks).map(Rank).collect(),
            stdin: BTreeMap::new(),
            ptys: BTreeMap::new(),
            cache_size: None,
            cache_total: 0,
            max_line: 1,
            max_line_time: Some(0),
            drop: DropPolicy::None,
            grace: None,
            kill_wait: 0,
            hide_launcher: true,
            backend: None,
            socket: AgentSocket::None,
            files: None,
        };
        self.send(node, &ToAgent::Start(Box::new(start)));
    }

    /// All streams of a node have ended: every byte was delivered or is a gap.
    fn check_whole(&self, node: &Node) {
        for (key, source) in node.streams() {
            let arrived = self.arrived.get(&key).copied().unwrap_or_default();
            assert!(arrived.is_ended && arrived.delivered + arrived.lost == source.produced, "{key:?}");
        }
    }

    /// Checks the figures of nodes that are lost.
    fn lose(&mut self, edge: usize, cut: Vec<(Place, BrokenEnd)>, nodes: &[Node]) {
        for (place, broken) in cut {
            let node = self.edges[edge].first + place.0 as usize;
            assert!(self.open.remove(&node) && self.lost.insert(node));
            self.stdin.1.remove(&node);
            let open: BTreeMap<StreamKey, _> =
                broken.streams.iter().map(|stream| (stream.stream, stream)).collect();
            for (key, source) in nodes[node].streams() {
                let arrived = self.arrived.get(&key).copied().unwrap_or_default();
                let sum = arrived.delivered + arrived.lost;
                let Some(stream) = open.get(&key) else {
                    assert!(arrived.is_ended && sum == source.produced, "{key:?}");
                    continue;
                };
                assert!(!arrived.is_ended);
                assert_eq!((stream.delivered, stream.lost), (arrived.delivered, arrived.lost));
                assert_eq!(stream.missing, arrived.told.saturating_sub(sum));
                assert!(sum + stream.missing <= source.produced);
            }
        }
    }

    /// Puts the records that have waited longest where they belong, at most this number of bytes,
    /// and gives credit.
    pub fn take(&mut self, mut bytes: usize) {
        let began = Instant::now();
        while let Some((edge, place, channel, length)) = self.waiting.pop_front() {
            self.held -= length as u64;
            let Edge { branch, down, .. } = &mut self.edges[edge];
            if let Some(credit) = branch.taken(place, channel, length) {
                credit.append_to(down, place);
            }
            bytes = bytes.saturating_sub(length);
            if bytes == 0 {
                break;
            }
        }
        self.spent += began.elapsed();
    }

    pub fn write(&mut self, pipes: &mut Pipes) {
        for edge in &mut self.edges {
            let pipe = &mut pipes.down[edge.first];
            let written = edge.end.write(&edge.down, pipe).unwrap_or(edge.down.len());
            edge.down.drain(..written);
        }
    }

    /// Sends the next piece of stdin to all nodes when all have answered.
    pub fn push_stdin(&mut self, pieces: u64) {
        let (call, missing) = &self.stdin;
        if self.started < self.nodes || !missing.is_empty() || call + 1 >= pieces {
            return;
        }
        let call = call + 1;
        self.stdin = (call, self.open.clone());
        let mut by_edge: BTreeMap<usize, Vec<StdinTarget>> = BTreeMap::new();
        for node in &self.open {
            let (edge, place) = self.place(*node);
            self.edges[edge].branch.note_call(place, call);
            by_edge.entry(edge).or_default().push(StdinTarget { place, ranks: StdinRanks::All });
        }
        for (edge, targets) in by_edge {
            let piece = StdinPiece { call, targets, bytes: vec![call as u8; PIECE] };
            self.edges[edge].down.extend(ToAgent::Stdin(piece).frame(Place::NEXT).unwrap());
        }
    }
}
