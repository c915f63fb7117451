//! A tool that pulls streams of ranks on nodes, and what the nodes must send therefore.

use std::collections::{BTreeMap, BTreeSet};

use iof_core::Grant;
use iof_proto::{
    Channel, Channels, Decoder, FromTool, Nspace, PROTOCOL_VERSION, Position, Proc, ProcInfo, ProcState,
    Rank, StreamPull, ToTool, encode,
};

use crate::driver::{ConnectionId, PeerCredentials, SimulatedEngine};
use crate::rng::Rng;

/// The pulls of a run.
const PULLS: u32 = 10;

/// The streams of a registration.
type Streams = BTreeSet<(Rank, Channel)>;

/// A tool that pulls.
pub struct Puller {
    id: ConnectionId,
    nspace: Nspace,
    /// The number of ranks of the job, and of each node.
    ranks: (u32, u32),
    left: u32,
    is_welcome: bool,
    requests: u32,
    asked: BTreeMap<u32, Streams>,
    registered: BTreeMap<u32, Streams>,
    /// The ranks of registrations whose starts were reported, and whether their ends were.
    reported: BTreeMap<(u32, Rank), bool>,
    /// The streams that nodes send, by the number of the pull.
    live: BTreeMap<u32, (Rank, Channel)>,
    /// The nodes that are lost.
    lost: BTreeSet<usize>,
}

impl Puller {
    pub fn new(engine: &mut SimulatedEngine, nspace: &Nspace, ranks: (u32, u32)) -> Puller {
        let credentials = PeerCredentials { pid: 2, uid: 1000, gid: 0 };
        let id = engine.connect(credentials, Some(Grant::Never), 1 << 20).unwrap();
        let puller = Puller {
            id,
            nspace: nspace.clone(),
            ranks,
            left: PULLS,
            is_welcome: false,
            requests: 0,
            asked: BTreeMap::new(),
            registered: BTreeMap::new(),
            reported: BTreeMap::new(),
            live: BTreeMap::new(),
            lost: BTreeSet::new(),
        };
        puller.send(engine, &FromTool::Hello { version: PROTOCOL_VERSION, pid: 2, name: "puller".into() });
        puller
    }

    fn send(&self, engine: &mut SimulatedEngine, message: &FromTool) {
        engine.send(self.id, &encode(message).unwrap());
    }

    /// Registers for streams of nodes that are not lost, or ends a registration.
    pub fn turn(&mut self, engine: &mut SimulatedEngine, rng: &mut Rng) {
        engine.serve(self.id, 1000);
        while let Some(packet) = engine.receive(self.id) {
            match Decoder::new().decode(&mut &*packet.frame).unwrap().unwrap() {
                ToTool::Welcome { .. } => self.is_welcome = true,
                ToTool::Pulled { request, result } => {
                    let streams = self.asked.remove(&request).unwrap();
                    self.registered.insert(result.unwrap().handler, streams);
                }
                ToTool::Deregistered { result, .. } => result.unwrap(),
                ToTool::Cached { .. } => {}
                ToTool::Ranks { handler, ranks, .. } => self.note_ranks(handler, &ranks),
                message => panic!("{message:?}"),
            }
        }
        if self.is_welcome && self.left > 0 && rng.chance(8) {
            self.left -= 1;
            self.requests += 1;
            self.pull(engine, rng);
        } else if rng.chance(2)
            && let Some((handler, _)) = self.registered.pop_last()
        {
            self.requests += 1;
            self.send(engine, &FromTool::Deregister { request: self.requests, handler });
        }
        engine.serve(self.id, 1000);
    }

    fn pull(&mut self, engine: &mut SimulatedEngine, rng: &mut Rng) {
        let is_there = |rank: &u32| !self.lost.contains(&((rank / self.ranks.1) as usize));
        let ranks: Vec<Rank> = match (0..self.ranks.0).filter(is_there).map(Rank).collect::<Vec<_>>() {
            ranks if ranks.is_empty() => return,
            ranks if rng.chance(16) && ranks.len() as u32 == self.ranks.0 => ranks,
            ranks => vec![ranks[rng.index(ranks.len())]],
        };
        let is_job = ranks.len() as u32 == self.ranks.0;
        let channels = rng.pick(&[Channels::STDOUT, Channels::STDERR, Channels::OUTPUTS]);
        let procs = match is_job {
            true => vec![Proc::all(self.nspace.clone())],
            false => ranks.iter().map(|rank| Proc::new(self.nspace.clone(), *rank)).collect(),
        };
        let of_rank = |rank: &Rank| channels.outputs().map(|channel| (*rank, channel)).collect::<Vec<_>>();
        self.asked.insert(self.requests, ranks.iter().flat_map(of_rank).collect());
        let (request, from, directives) = (self.requests, Position::Oldest, Vec::new());
        let (persistent, reports_ranks) = (false, self.requests.is_multiple_of(2));
        let pull = FromTool::Pull { request, procs, channels, from, persistent, reports_ranks, directives };
        self.send(engine, &pull);
    }

    /// Checks reports of ranks: each has started and then ended, once.
    fn note_ranks(&mut self, handler: u32, ranks: &[ProcInfo]) {
        for info in ranks {
            let is_of = |streams: &Streams| streams.iter().any(|(rank, _)| *rank == info.proc.rank);
            // The end of the registration may be on its way to the engine.
            assert!(self.registered.get(&handler).is_none_or(is_of), "{info:?} was not asked for");
            let has_ended = info.state != ProcState::Running;
            let before = self.reported.insert((handler, info.proc.rank), has_ended);
            assert_eq!(before, has_ended.then_some(false), "{info:?}");
        }
    }

    fn is_read(&self, stream: &(Rank, Channel)) -> bool {
        self.registered.values().chain(self.asked.values()).any(|streams| streams.contains(stream))
    }

    /// Notes that a node is lost.
    pub fn note_lost(&mut self, node: usize) {
        self.lost.insert(node);
        self.live.retain(|_, (rank, _)| (rank.0 / self.ranks.1) as usize != node);
    }

    /// Checks pulls that the engine begins: of streams that are read, and that no node sends.
    pub fn note_pulls(&mut self, pulls: &[StreamPull]) {
        for StreamPull { number, rank, channel } in pulls {
            let stream = (*rank, *channel);
            assert!(self.is_read(&stream), "pull {number} of rank {rank}");
            assert!(!self.live.values().any(|other| *other == stream), "rank {rank} is pulled twice");
            assert!(self.live.last_key_value().is_none_or(|(last, _)| last < number));
            self.live.insert(*number, stream);
        }
    }

    /// Checks pulls that the engine ends: of streams without readers. Those of a lost node have ended.
    pub fn note_ends(&mut self, node: usize, pulls: &[u32]) {
        for pull in pulls {
            let Some(stream) = self.live.remove(pull) else {
                assert!(self.lost.contains(&node), "a pull ends once");
                continue;
            };
            assert!(!self.is_read(&stream), "pull {pull} ends although its stream is read");
        }
    }

    /// Checks that nodes send what is read, and nothing else, and ends.
    pub fn check_end(&mut self, engine: &mut SimulatedEngine) {
        let read: Streams = self.registered.values().flatten().copied().collect();
        let is_there =
            |(rank, _): &&(Rank, Channel)| !self.lost.contains(&((rank.0 / self.ranks.1) as usize));
        let live: Streams = self.live.values().copied().collect();
        assert_eq!(read.iter().filter(is_there).copied().collect::<Streams>(), live);
        engine.close(self.id);
        engine.serve(self.id, 1000);
        engine.forget(self.id);
    }
}
