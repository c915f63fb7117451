//! A tool that pushes stdin to the ranks on nodes, and the account of what each of them has.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

use iof_capture::PushId;
use iof_core::{Grant, StdinAnswer};
use iof_proto::directive::key;
use iof_proto::{
    Decoder, FromTool, Info, Nspace, PROTOCOL_VERSION, Proc, PushReport, Rank, ToTool, UntakenStdin, encode,
};
use iof_tool::Push;
use iof_tool::test_utils::ProtocolSide;

use super::agent::Agent;
use super::source::stdin_bytes;
use crate::driver::{ConnectionId, PeerCredentials, Shared, SimulatedEngine};
use crate::rng::Rng;

/// The most bytes of a push, which are several pieces.
const MAX_PUSH: u64 = 200 << 10;

/// The pushes of a run, and those at a time.
const PUSHES: u32 = 12;
const AT_A_TIME: usize = 3;

/// A tool that pushes.
pub struct Pusher {
    id: ConnectionId,
    side: Option<ProtocolSide>,
    nspace: Nspace,
    /// The number of ranks of the job, and of each node.
    ranks: (u32, u32),
    left: u32,
    /// The sizes and targets of the requests without an answer.
    asked: BTreeMap<u32, (u64, BTreeSet<Rank>)>,
    /// The bytes of pushes that are left to fill in, and those that were filled.
    fills: BTreeMap<u32, (u64, u64)>,
    accounts: BTreeMap<PushId, Account>,
    /// The pushes that have ended and were not checked.
    ended: Vec<(PushId, Account, PushReport)>,
    pub over: u64,
}

/// The bytes that the targets of a push have.
#[derive(Default)]
struct Account {
    /// The bytes that each has, as far as the nodes have told.
    told: BTreeMap<Rank, u64>,
    /// The targets that take nothing more.
    left: BTreeSet<Rank>,
    /// The length of the last piece.
    piece: u64,
}

impl Pusher {
    pub fn new(engine: &mut SimulatedEngine, nspace: &Nspace, ranks: (u32, u32)) -> Pusher {
        let credentials = PeerCredentials { pid: 1, uid: 1000, gid: 0 };
        let id = engine.connect(credentials, Some(Grant::Never), 1 << 20).unwrap();
        let pusher = Pusher {
            id,
            side: None,
            nspace: nspace.clone(),
            ranks,
            left: PUSHES,
            asked: BTreeMap::new(),
            fills: BTreeMap::new(),
            accounts: BTreeMap::new(),
            ended: Vec::new(),
            over: 0,
        };
        pusher.send(engine, &FromTool::Hello { version: PROTOCOL_VERSION, pid: 1, name: "pusher".into() });
        pusher
    }

    fn send(&self, engine: &mut SimulatedEngine, message: &FromTool) {
        engine.send(self.id, &encode(message).unwrap());
    }

    /// Begins pushes, and goes on with those under way.
    pub fn turn(&mut self, engine: &mut SimulatedEngine, rng: &mut Rng, agents: &[Agent]) {
        engine.serve(self.id, 1000);
        while let Some(packet) = engine.receive(self.id) {
            self.receive(&packet.frame, packet.shared);
        }
        if self.side.is_none() {
            return;
        }
        if self.left > 0 && self.accounts.len() + self.asked.len() < AT_A_TIME && rng.chance(16) {
            self.left -= 1;
            self.begin(engine, rng);
        }
        let side = self.side.as_mut().unwrap();
        for (number, (filled, size)) in &mut self.fills {
            let room = side.push_room(*number);
            let length = room.len().min((*size - *filled) as usize);
            room[..length].copy_from_slice(&stdin_bytes(*filled, length));
            *filled += length as u64;
            side.fill(*number, length, filled == size);
        }
        self.fills.retain(|_, (filled, size)| filled != size);
        for message in side.take_outgoing() {
            engine.send(self.id, &encode(&message).unwrap());
        }
        engine.serve(self.id, 1000);
        self.record(engine);
        self.check(agents);
    }

    fn begin(&mut self, engine: &mut SimulatedEngine, rng: &mut Rng) {
        let all = (0..self.ranks.0).map(Rank);
        let (targets, ranks): (Vec<Proc>, BTreeSet<Rank>) = if rng.chance(100) {
            (vec![Proc::all(self.nspace.clone())], all.collect())
        } else {
            let some = rng.below(3);
            let mut ranks: BTreeSet<Rank> = all.filter(|_| rng.below(3) >= some).collect();
            ranks.insert(Rank(rng.below(u64::from(self.ranks.0)) as u32));
            (ranks.iter().map(|rank| Proc::new(self.nspace.clone(), *rank)).collect(), ranks)
        };
        let directives =
            vec![Info::new(key::PMIX_IOF_COMPLETE, rng.chance(32)), Info::new(key::IOF_PARTIAL, true)];
        let size = rng.size(MAX_PUSH);
        let push = Push { targets, directives };
        let (request, message) = self.side.as_mut().unwrap().push(&push, Some(size));
        self.asked.insert(request, (size, ranks));
        self.send(engine, &message);
    }

    fn receive(&mut self, frame: &[u8], shared: Shared) {
        let message = Decoder::new().decode(&mut &*frame).unwrap().unwrap();
        let inlet = match shared {
            Shared::Welcome { page, .. } => {
                // SAFETY: the engine keeps the protocol.
                self.side = Some(unsafe { ProtocolSide::new(page, None) });
                return;
            }
            Shared::Inlet(inlet) => Some(inlet.as_fd().try_clone_to_owned().unwrap()),
            Shared::Ring(_) | Shared::Nothing => None,
        };
        let mut begun = None;
        if let ToTool::PushBegun { request, result } = &message {
            let (size, _) = self.asked.remove(request).unwrap();
            begun = result.as_ref().ok().map(|granted| (granted.push, size));
        }
        let ended = if let ToTool::Pushed { push, .. } = &message { Some(*push) } else { None };
        let side = self.side.as_mut().unwrap();
        side.receive(message, None, inlet).unwrap();
        while side.take_delivered().is_some() {}
        if let Some((number, size)) = begun {
            if size > 0 {
                self.fills.insert(number, (0, size));
            } else {
                side.fill(number, 0, true);
            }
        }
        if let Some(push) = ended {
            side.take_report(push).unwrap();
            self.fills.remove(&push);
        }
    }

    /// Notes the pushes that begin, and those that have ended.
    pub fn record(&mut self, engine: &mut SimulatedEngine) {
        let (answers, over) = engine.take_push_record();
        for answer in answers {
            let Ok((push, granted)) = answer.result else { continue };
            let (_, mut targets) = self.asked[&answer.request].clone();
            granted.skipped.iter().for_each(|skipped| assert!(targets.remove(&skipped.target.rank)));
            let told = targets.into_iter().map(|rank| (rank, 0)).collect();
            self.accounts.insert(push, Account { told, ..Account::default() });
        }
        for (push, report) in over {
            self.ended.push((push, self.accounts.remove(&push).unwrap(), report.unwrap()));
        }
    }

    /// Checks the pushes that have ended.
    fn check(&mut self, agents: &[Agent]) {
        for (push, account, report) in self.ended.drain(..) {
            let taken = |rank: Rank| agents[(rank.0 / self.ranks.1) as usize].taken(rank, push.0);
            account.check(&report, taken);
            self.over += 1;
        }
    }

    /// Notes a piece that is sent to a node, and checks that it is for ranks that take more.
    pub fn note_piece(&mut self, call: u64, node: usize, ranks: Option<&[Rank]>, length: u64) {
        let of_node = node as u32 * self.ranks.1..(node as u32 + 1) * self.ranks.1;
        let account = self.accounts.get_mut(&PushId(call)).expect("a push under way");
        let targets = account.told.keys().filter(|rank| of_node.contains(&rank.0));
        let targets: Vec<Rank> = targets.copied().collect();
        assert!(targets.iter().any(|rank| !account.left.contains(rank)), "a piece for no rank");
        match ranks {
            Some(ranks) => assert_eq!(ranks, targets),
            None => assert_eq!(targets.len() as u32, self.ranks.1, "a piece for other ranks"),
        }
        account.piece = length;
    }

    /// Notes the answer of a node.
    pub fn note_answer(&mut self, call: u64, node: usize, answer: &StdinAnswer) {
        let ranks_of_node = self.ranks.1;
        let Some(account) = self.accounts.get_mut(&PushId(call)) else { return };
        let Account { told, left, piece } = account;
        let is_here = |rank: Rank| (rank.0 / ranks_of_node) as usize == node;
        for (rank, told) in told.iter_mut().filter(|(rank, _)| is_here(**rank)) {
            if left.contains(rank) {
                continue;
            }
            let untaken = answer
                .as_ref()
                .ok()
                .and_then(|untaken| untaken.iter().find(|UntakenStdin { rank: named, .. }| named == rank));
            *told += match (answer, untaken) {
                (Err(_), _) => 0,
                (Ok(_), Some(untaken)) => untaken.delivered,
                (Ok(_), None) => *piece,
            };
            if answer.is_err() || untaken.is_some() {
                left.insert(*rank);
            }
        }
    }

    /// Notes that the ranks of a node take nothing more.
    pub fn note_end(&mut self, node: usize) {
        let ranks_of_node = self.ranks.1;
        for Account { told, left, .. } in self.accounts.values_mut() {
            left.extend(told.keys().filter(|rank| (rank.0 / ranks_of_node) as usize == node));
        }
    }

    /// Checks that no push is left once all nodes have ended, and disconnects.
    pub fn check_end(&mut self, engine: &mut SimulatedEngine, rng: &mut Rng, agents: &[Agent]) {
        self.left = 0;
        for _ in 0..4 {
            self.turn(engine, rng, agents);
        }
        assert!(self.accounts.is_empty() && self.asked.is_empty(), "a push does not end with its nodes");
        engine.close(self.id);
        engine.serve(self.id, 1000);
        engine.forget(self.id);
    }
}

impl Account {
    /// Checks a report by what the nodes have told, and by what the ranks have.
    fn check(&self, report: &PushReport, taken: impl Fn(Rank) -> u64) {
        assert_eq!(report.complete + report.partial.len() as u64, self.told.len() as u64, "{report:?}");
        let mut partial = BTreeMap::new();
        for part in &report.partial {
            assert!(partial.insert(part.target.rank, part.delivered).is_none(), "{report:?}");
        }
        for (rank, told) in &self.told {
            assert!(*told <= taken(*rank), "rank {rank} has less than was told");
            match partial.get(rank) {
                Some(delivered) => {
                    assert_eq!(delivered, told, "the bytes of rank {rank}: {report:?}");
                    assert!(self.left.contains(rank), "rank {rank} took everything: {report:?}");
                }
                None => {
                    assert_eq!(
                        (report.bytes, *told),
                        (taken(*rank), report.bytes),
                        "rank {rank}: {report:?}"
                    );
                }
            }
        }
    }
}
