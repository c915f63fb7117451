//! The front end of a job: a reader that may be slow, and the account of every byte.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant, SystemTime};

use iof_core::{Exit, LastStep, NodeId, NodeLost, NodeReport};
use iof_nodes::{
    Bundle, Frame, FrameDecoder, FrontEnd, FrontEvent, HEADER, NodeConfig, NodeStart, RankTotal, Silence,
    SilenceStep, StreamKey, ToAgent, ToFrontEnd, window,
};
use iof_proto::{Channel, JobSpec, Nspace, Policy, Rank, Rendezvous, StreamPull};

use super::NodeSet;
use super::agent::{Agent, Pipes};
use super::job::FrontJob;
use super::pipe::{CAPACITY, EdgeEnd, LIMIT, Pipe, time};
use super::source::bytes;
use crate::driver::SentToNode;
use crate::rng::Rng;

/// One edge of the front end.
struct Edge {
    front: FrontEnd,
    end: EdgeEnd,
    /// The node is ready to start its ranks.
    is_ready: bool,
    /// The turn in which a carrier that has ended is replaced.
    replaced_at: Option<u64>,
    decoder: FrameDecoder,
    /// The text before the first frame, until that has arrived.
    banner: Option<Vec<u8>>,
    silence: Silence,
    /// The turn in which something has arrived last.
    heard: u64,
    /// All its ranks run, or have run.
    is_started: bool,
    /// Its silence was reported.
    is_told: bool,
    is_ended: bool,
    /// Frames that wait to be written.
    down: Vec<u8>,
}

/// The part of one stream that has arrived.
#[derive(Clone, Copy, Debug, Default)]
struct Arrived {
    delivered: u64,
    lost: u64,
    /// The last total of the node.
    told: u64,
    is_ended: bool,
}

/// The part of a pulled stream that has arrived.
struct Pulled {
    node: usize,
    stream: StreamKey,
    position: Option<u64>,
    is_ended: bool,
}

/// The front end.
pub struct Front {
    /// The job of the engine.
    pub job: FrontJob,
    /// By node.
    edges: Vec<Edge>,
    arrived: BTreeMap<StreamKey, Arrived>,
    /// Records that are not where they belong: node, bundle, bytes.
    waiting: VecDeque<(usize, Bundle, usize)>,
    /// The pulls that have not been ended, with their nodes.
    pulled: BTreeMap<u32, Pulled>,
    held: u64,
    ranks: u32,
    nodes: usize,
    pub ready: usize,
    pub started: usize,
    /// The turns after which a silent node is given up.
    limit: Option<u64>,
    /// The silences that were reported or ended an edge.
    pub silences: u64,
    pub open: BTreeSet<usize>,
    pub lost: BTreeSet<usize>,
    /// The number of carriers that replaced others.
    pub replaced: u64,
    /// The delays of lone lines, in turns.
    pub delays: Vec<u64>,
    pub peak: u64,
    pub bytes: u64,
    pub frames: u64,
    /// The time that frames took, without the checks of the simulation.
    pub spent: Duration,
}

impl Front {
    pub fn new(set: &NodeSet, rng: &mut Rng) -> Front {
        let nodes = set.nodes as usize;
        let limit = rng.pick(&[None, Some(10_000), Some(45_000)]);
        let edge = |node| {
            let ranks = (node * set.ranks..(node + 1) * set.ranks).map(Rank).collect();
            Edge {
                front: FrontEnd::new(&ranks, window(nodes)),
                end: EdgeEnd::default(),
                is_ready: false,
                replaced_at: None,
                decoder: FrameDecoder::of_agent(),
                banner: Some(Vec::new()),
                silence: Silence::new(limit.map(Duration::from_millis), time(0)),
                heard: 0,
                is_started: false,
                is_told: false,
                is_ended: false,
                down: Vec::new(),
            }
        };
        Front {
            job: FrontJob::new(set, rng),
            edges: (0..set.nodes).map(edge).collect(),
            arrived: BTreeMap::new(),
            waiting: VecDeque::new(),
            pulled: BTreeMap::new(),
            held: 0,
            ranks: set.ranks,
            nodes,
            limit,
            silences: 0,
            ready: 0,
            started: 0,
            open: (0..nodes).collect(),
            lost: BTreeSet::new(),
            replaced: 0,
            delays: Vec::new(),
            peak: 0,
            bytes: 0,
            frames: 0,
            spent: Duration::ZERO,
        }
    }

    /// Returns whether the front end replaces the carrier of a node when it ends.
    pub fn can_replace(&self, node: usize) -> bool {
        self.edges[node].is_ready
    }

    pub fn send(&mut self, node: usize, message: &ToAgent) {
        self.edges[node].down.extend(message.frame().unwrap());
    }

    /// Reads all that has arrived. The front end always reads.
    pub fn read(&mut self, agents: &mut [Agent], pipes: &mut Pipes, (rng, now): (&mut Rng, u64)) {
        for node in 0..self.edges.len() {
            if self.edges[node].is_ended {
                continue;
            }
            let Edge { end, is_ready, replaced_at, banner, .. } = &mut self.edges[node];
            if replaced_at.is_some_and(|time| time <= now) && !agents[node].is_gone {
                *replaced_at = None;
                self.replaced += 1;
                end.resume(&mut agents[node].edge);
                (pipes.up[node], pipes.down[node]) = (Pipe::default(), Pipe::default());
            }
            let limit = if banner.is_some() { 1 + rng.below(80) as usize } else { CAPACITY };
            let Some(read) = end.read(limit, &mut pipes.up[node], now) else {
                if !end.link.takes_carriers(time(now)) || !*is_ready || agents[node].is_gone {
                    self.end_edge(node, agents, pipes);
                } else if replaced_at.is_none() {
                    *replaced_at = Some(now + rng.below(100));
                }
                continue;
            };
            let began = Instant::now();
            let mut decoder = std::mem::replace(&mut self.edges[node].decoder, FrameDecoder::of_agent());
            decoder.receive(&read);
            self.spent += began.elapsed();
            if !read.is_empty() {
                self.edges[node].silence.end(time(now));
                self.edges[node].heard = now;
            }
            if !self.skip_banner(node, &mut decoder, &agents[node].banner) {
                self.edges[node].decoder = decoder;
                continue;
            }
            loop {
                let began = Instant::now();
                let Ok(frame) = decoder.decode() else {
                    self.end_edge(node, agents, pipes);
                    break;
                };
                let Some(frame) = frame else { break };
                self.frames += 1;
                if let Frame::Ack { received } = frame {
                    self.edges[node].end.link.acknowledged(received).unwrap();
                    continue;
                }
                let event = self.edges[node].front.receive(&frame, time(now));
                self.spent += began.elapsed();
                // No node breaks the rules of its own frames.
                self.handle(node, event.unwrap(), agents, now);
            }
            self.edges[node].decoder = decoder;
        }
        for node in 0..self.edges.len() {
            self.note_silence(node, agents, pipes, now);
        }
    }

    /// Returns whether the first frame has arrived, and checks that all of the text before it was shown.
    fn skip_banner(&mut self, node: usize, decoder: &mut FrameDecoder, expected: &[u8]) -> bool {
        let Some(banner) = &mut self.edges[node].banner else { return true };
        banner.extend(decoder.skip_text());
        assert!(expected.starts_with(banner), "a part of the hello of node {node} was shown");
        let is_over = decoder.held() >= HEADER;
        if is_over {
            assert_eq!(self.edges[node].banner.take().unwrap(), expected);
        }
        is_over
    }

    /// Reports the silence of a node once, or gives it up, when that is due.
    fn note_silence(&mut self, node: usize, agents: &mut [Agent], pipes: &mut Pipes, now: u64) {
        let Edge { front, silence, heard, is_told, is_started, replaced_at, is_ended, .. } =
            &mut self.edges[node];
        if *is_ended || replaced_at.is_some() {
            return;
        }
        let step = match silence.due() {
            Some(due) if due <= time(now) && front.is_to_report() => silence.step(time(now)),
            Some(due) if due <= time(now) => {
                silence.end(time(now));
                None
            }
            _ => None,
        };
        let length = if *is_started && self.open.contains(&node) { now - *heard } else { 0 };
        let is_given_up = self.limit.is_some_and(|limit| length >= limit);
        let is_due = !is_given_up && !*is_told && length >= 30_000;
        assert_eq!(
            matches!(step, Some(SilenceStep::GiveUp(_))),
            is_given_up,
            "node {node}, silent for {length}"
        );
        assert_eq!(matches!(step, Some(SilenceStep::Tell(_))), is_due, "node {node}, silent for {length}");
        *is_told |= is_due;
        self.silences += u64::from(step.is_some());
        if is_given_up {
            self.end_edge(node, agents, pipes);
        }
    }

    fn handle(&mut self, node: usize, event: FrontEvent<'_>, agents: &[Agent], now: u64) {
        match event {
            FrontEvent::None => {}
            FrontEvent::Greeted => self.prepare(node),
            FrontEvent::Output(Frame::Record {
                pull: 0,
                stream,
                offset: position,
                time,
                bytes: record,
                ..
            }) => {
                let arrived = self.arrived.entry(stream).or_default();
                let offset = arrived.delivered + arrived.lost;
                assert_eq!(position, offset);
                assert!(record == bytes(stream, offset, record.len()), "bytes of {stream:?}");
                arrived.delivered += record.len() as u64;
                self.bytes += record.len() as u64;
                self.held += record.len() as u64;
                self.peak = self.peak.max(self.held);
                assert!(self.peak <= 3 * window(self.nodes).end() * self.nodes as u64);
                if stream.channel == Channel::Stderr {
                    self.delays.push(now - time);
                }
                self.waiting.push_back((node, Bundle::of(stream.channel).unwrap(), record.len()));
            }
            FrontEvent::Output(frame @ Frame::Record { pull, stream, offset, bytes: record, .. }) => {
                if self.pulled(pull, stream, (offset, record.len() as u64), agents) {
                    assert!(record == bytes(stream, offset, record.len()), "{frame:?}");
                }
                self.held += record.len() as u64;
                self.peak = self.peak.max(self.held);
                self.waiting.push_back((node, Bundle::Pulls, record.len()));
            }
            FrontEvent::Output(Frame::Gap { pull: pull @ 1.., stream, offset, lost }) => {
                self.pulled(pull, stream, (offset, lost), agents);
            }
            FrontEvent::Output(Frame::End { pull: pull @ 1.., stream, produced }) => {
                if self.pulled(pull, stream, (produced, 0), agents) {
                    self.pulled.get_mut(&pull).unwrap().is_ended = true;
                }
            }
            FrontEvent::Output(Frame::Gap { pull: 0, stream, offset, lost }) => {
                let arrived = self.arrived.entry(stream).or_default();
                assert_eq!(arrived.delivered + arrived.lost, offset);
                arrived.lost += lost;
            }
            FrontEvent::Output(Frame::End { stream, .. }) => {
                self.arrived.entry(stream).or_default().is_ended = true;
            }
            FrontEvent::Output(frame) => panic!("{frame:?} is no output"),
            FrontEvent::Message(ToFrontEnd::Link(_)) => self.edges[node].end.link.outlive_carriers(LIMIT),
            FrontEvent::Message(ToFrontEnd::Ready) => {
                self.ready += 1;
                self.edges[node].is_ready = true;
                if self.ready == self.nodes {
                    (0..self.nodes).for_each(|node| self.send(node, &ToAgent::Go));
                }
            }
            FrontEvent::Message(ToFrontEnd::Started { pids }) => {
                self.started += 1;
                self.edges[node].is_started = true;
                self.job.report(node, NodeReport::Started { pids, began: SystemTime::UNIX_EPOCH });
            }
            FrontEvent::Message(ToFrontEnd::Exited { rank, status, requested, used }) => {
                let exit = Exit::Status(ExitStatus::from_raw(status.unwrap()));
                self.job.report(node, NodeReport::Exited { rank, exit, requested, used });
            }
            FrontEvent::Message(ToFrontEnd::Produced(totals)) => {
                for RankTotal { rank, channel, produced } in totals {
                    self.arrived.entry(StreamKey { rank, channel }).or_default().told = produced;
                }
            }
            FrontEvent::Message(ToFrontEnd::StdinTaken { call, answer }) => {
                self.job.report(node, NodeReport::StdinTaken { call, answer });
            }
            FrontEvent::Message(ToFrontEnd::Exchange { call, rank, exchange }) => {
                self.job.exchange(node, (call, rank), exchange);
            }
            FrontEvent::Message(ToFrontEnd::Modex { call, values }) => {
                self.job.report(node, NodeReport::Modex { call, values });
            }
            FrontEvent::Message(ToFrontEnd::Over { cut_off }) => {
                assert!(self.open.remove(&node));
                self.job.report(node, NodeReport::Over { cut_off });
                self.check_whole(&agents[node]);
            }
            FrontEvent::Message(_) => {}
        }
    }

    /// Checks that what arrives of a pull follows what arrived of it before, and begins where its node did.
    /// Returns whether the pull was not ended.
    fn pulled(
        &mut self,
        pull: u32,
        stream: StreamKey,
        (offset, length): (u64, u64),
        agents: &[Agent],
    ) -> bool {
        let Some(pulled) = self.pulled.get_mut(&pull) else { return false };
        let began = agents[pulled.node].began[&pull];
        assert_eq!((pulled.stream, pulled.position.unwrap_or(began)), (stream, offset), "pull {pull}");
        assert!(!pulled.is_ended);
        pulled.position = Some(offset + length);
        true
    }

    /// Returns whether a stream that is pulled has not ended although its node is there.
    pub fn awaits_pulls(&self) -> bool {
        self.pulled.values().any(|pulled| !pulled.is_ended && !self.lost.contains(&pulled.node))
    }

    fn prepare(&mut self, node: usize) {
        let Edge { front, down, .. } = &mut self.edges[node];
        down.extend(front.greeting());
        let first = node as u32 * self.ranks;
        let mut spec = JobSpec::new(Nspace::new("job").unwrap(), Vec::new());
        spec.local = Some((first..first + self.ranks).map(Rank).collect());
        let config = NodeConfig {
            env: Vec::new(),
            cache_size: None,
            cache_total: 0,
            policy: Policy::Block,
            max_line: 1,
            max_line_time: Some(Duration::ZERO),
            backend: None,
            rendezvous: Rendezvous::None,
            files: None,
        };
        self.send(node, &ToAgent::Start(Box::new(NodeStart { spec, config })));
    }

    /// All streams of a node have ended: every byte was delivered or is a gap.
    fn check_whole(&self, agent: &Agent) {
        for (key, source) in agent.streams() {
            let arrived = self.arrived.get(&key).copied().unwrap_or_default();
            assert!(arrived.is_ended && arrived.delivered + arrived.lost == source.produced, "{key:?}");
        }
    }

    /// Ends the edge to a node, and checks the figures of a node that is lost.
    fn end_edge(&mut self, node: usize, agents: &[Agent], pipes: &mut Pipes) {
        self.edges[node].is_ended = true;
        pipes.up[node].break_off();
        pipes.down[node].end();
        let Some(broken) = self.edges[node].front.cut() else { return };
        assert!(self.open.remove(&node) && self.lost.insert(node));
        let lost = NodeLost {
            host: node.to_string(),
            reason: "a fault".into(),
            ranks: broken.ranks.clone(),
            delivered: 0,
            missing: 0,
            totals: None,
        };
        self.job.report(node, NodeReport::Lost(lost));
        let open: BTreeMap<StreamKey, _> =
            broken.streams.iter().map(|stream| (stream.stream, stream)).collect();
        for (key, source) in agents[node].streams() {
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

    /// Puts the records that have waited longest where they belong, at most this number of bytes,
    /// and gives credit.
    pub fn take(&mut self, mut bytes: usize, now: u64) {
        let began = Instant::now();
        while let Some((node, bundle, length)) = self.waiting.pop_front() {
            self.held -= length as u64;
            let Edge { front, down, .. } = &mut self.edges[node];
            if let Some(credit) = front.taken(bundle, length, time(now)) {
                credit.append_to(down);
            }
            bytes = bytes.saturating_sub(length);
            if bytes == 0 {
                break;
            }
        }
        self.spent += began.elapsed();
    }

    pub fn write(&mut self, pipes: &mut Pipes) {
        for (edge, pipe) in self.edges.iter_mut().zip(&mut pipes.down) {
            let written = edge.end.write(&edge.down, pipe).unwrap_or(edge.down.len());
            edge.down.drain(..written);
        }
    }

    /// Lets time pass for the engine, and carries out what it sends to the nodes.
    pub fn follow_job(&mut self, agents: &mut [Agent], pipes: &mut Pipes, (rng, now): (&mut Rng, u64)) {
        for (NodeId(node), message) in self.job.take_answers(self.lost.is_empty()) {
            if !self.edges[node].is_ended {
                self.send(node, &message);
            }
        }
        for (NodeId(node), sent) in self.job.turn((rng, now), agents) {
            match sent {
                SentToNode::Signal(signal, _) => {
                    self.send(node, &ToAgent::Signal { signal: signal.number() });
                }
                SentToNode::Stdin { call, ranks, bytes } => {
                    self.edges[node].front.note_call(call);
                    self.send(node, &ToAgent::Stdin { call, ranks, bytes });
                }
                SentToNode::Pull(pulls) => {
                    for StreamPull { number, rank, channel, .. } in &pulls {
                        let stream = StreamKey { rank: *rank, channel: *channel };
                        let pulled = Pulled { node, stream, position: None, is_ended: false };
                        assert!(self.pulled.insert(*number, pulled).is_none());
                    }
                    self.edges[node].front.begin_pulls(&pulls);
                    self.send(node, &ToAgent::Pull(pulls));
                }
                SentToNode::Modex { call, rank } => self.send(node, &ToAgent::Modex { call, rank }),
                SentToNode::EndPulls(pulls) => {
                    self.pulled.retain(|pull, _| !pulls.contains(pull));
                    self.edges[node].front.end_pulls(&pulls);
                    self.send(node, &ToAgent::EndPulls(pulls));
                }
                SentToNode::End(LastStep::CutOff) => self.send(node, &ToAgent::CutOff),
                SentToNode::End(LastStep::HangUp) => {
                    self.send(node, &ToAgent::HangUp);
                    self.edges[node].end.link.close();
                }
                SentToNode::End(LastStep::GiveUp) => self.end_edge(node, agents, pipes),
            }
        }
    }
}
