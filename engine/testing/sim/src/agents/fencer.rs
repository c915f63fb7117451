//! Fences of the ranks of all nodes, and requests for what ranks of other nodes have put.

use std::collections::BTreeMap;

use iof_core::NodeId;
use iof_nodes::limits::MAX_PIECE;
use iof_nodes::{ExchangeAnswer, ToAgent, ToFrontEnd};
use iof_proto::{Exchange, FencePurpose, Mpi, Nspace, Proc, Rank, Status, ToTool};

use super::NodeSet;
use crate::rng::Rng;

/// The number of the first request for what a rank has put. Those of fences are lower.
const FIRST_MODEX: u64 = 1 << 32;

/// Returns the values with which a node enters its fence with this number.
fn values(node: u32, number: u64) -> Vec<u8> {
    let seed = u64::from(node) * 7919 + number * 104_729;
    // A few are longer than a message.
    let most = if seed.is_multiple_of(16) { 150_000 } else { 2_000 };
    (0..seed.wrapping_mul(seed) % most).map(|index| (index ^ seed) as u8).collect()
}

/// Returns what a rank has put.
fn values_of(rank: Rank) -> Vec<u8> {
    values(rank.0 + 1_000_000, 0)
}

/// The ranks of a node in fences.
pub struct Fencer {
    node: u32,
    set: NodeSet,
    /// The number of the next fence, or of that in which they wait.
    number: u64,
    waits: bool,
    /// A fence has failed: a node has ended.
    has_failed: bool,
    /// The ranks whose values are requested, by request.
    modexes: BTreeMap<u64, Rank>,
    next_modex: u64,
}

impl Fencer {
    pub fn new(node: u32, set: NodeSet) -> Fencer {
        let (modexes, next_modex) = (BTreeMap::new(), FIRST_MODEX);
        Fencer { node, set, number: 0, waits: false, has_failed: false, modexes, next_modex }
    }

    /// Returns the first rank of the node.
    pub fn first_rank(&self) -> u32 {
        self.node * self.set.ranks
    }

    /// Returns what the ranks want now, while they run.
    pub fn turn(&mut self, rng: &mut Rng) -> Vec<ToFrontEnd> {
        let mut sent = Vec::new();
        let own = Rank(self.first_rank());
        if !self.waits && !self.has_failed && rng.below(3) == 0 {
            self.waits = true;
            let (mpi, purpose) = (Mpi::Pmi1, FencePurpose::Values);
            let exchange = Exchange::Fence { mpi, purpose, members: Vec::new(), data: Vec::new() };
            sent.extend(
                values(self.node, self.number).chunks(MAX_PIECE).map(|piece| ToFrontEnd::Piece(piece.into())),
            );
            sent.push(ToFrontEnd::Exchange { call: self.number, rank: own, exchange });
        }
        if rng.below(20) == 0 {
            let rank = Rank(rng.below(u64::from(self.set.nodes * self.set.ranks)) as u32);
            self.modexes.insert(self.next_modex, rank);
            sent.push(ToFrontEnd::Exchange {
                call: self.next_modex,
                rank: own,
                exchange: Exchange::Modex(Proc::new(Nspace::new("job").unwrap(), rank)),
            });
            self.next_modex += 1;
        }
        sent
    }

    /// Returns the answer to a request for what a rank has put.
    pub fn answer(&self, call: u64, rank: Rank) -> Vec<ToFrontEnd> {
        assert_eq!(rank.0 / self.set.ranks, self.node, "the node of rank {rank} is asked");
        let pieces = values_of(rank);
        let pieces = pieces.chunks(MAX_PIECE).map(|piece| ToFrontEnd::Piece(piece.into()));
        pieces.chain([ToFrontEnd::Modex { call, values: Ok(Vec::new()) }]).collect()
    }

    /// Checks an answer to the ranks.
    pub fn exchanged(&mut self, call: u64, answer: ExchangeAnswer) {
        let ExchangeAnswer::Fenced(answer) = answer else { panic!("{answer:?}") };
        if call >= FIRST_MODEX {
            let rank = self.modexes.remove(&call).expect("a request is answered once");
            match answer {
                Ok(found) => assert!(found == values_of(rank), "the values of rank {rank}"),
                Err(failure) => {
                    assert!([Status::ERR_LOST_CONNECTION, Status::ERR_NOT_FOUND].contains(&failure.status));
                }
            }
            return;
        }
        assert!(std::mem::take(&mut self.waits) && call == self.number, "fence {call} of node {}", self.node);
        match answer {
            Ok(found) => {
                let all: Vec<u8> = (0..self.set.nodes).flat_map(|node| values(node, call)).collect();
                assert!(found == all, "the values of fence {call} at node {}", self.node);
                self.number += 1;
            }
            Err(failure) => {
                assert_eq!(failure.status, Status::ERR_LOST_CONNECTION);
                self.has_failed = true;
            }
        }
    }
}

/// The requests of nodes that the engine has not answered.
#[derive(Default)]
pub struct Requests {
    last: u64,
    calls: BTreeMap<u64, (usize, u64)>,
    /// The fences that have ended with the values of all nodes.
    pub fences: u64,
}

impl Requests {
    /// Checks that nothing waits when all nodes have ended.
    pub fn check_end(&self) {
        assert!(self.calls.is_empty(), "ranks wait for ever: {:?}", self.calls);
    }

    /// Notes a request of a node. Returns its number for the engine.
    pub fn note(&mut self, node: usize, call: u64) -> u64 {
        self.last += 1;
        self.calls.insert(self.last, (node, call));
        self.last
    }

    /// Returns the messages for an answer of the engine. Fences fail once a node has ended.
    pub fn answered(&mut self, number: u64, answer: ToTool, all_run: bool) -> Vec<(NodeId, ToAgent)> {
        let (node, call) = self.calls.remove(&number).expect("a request is answered once");
        let ToTool::Fenced(result) = &answer else { panic!("{answer:?}") };
        assert!(result.is_ok() || !all_run, "{result:?}");
        self.fences += u64::from(call < FIRST_MODEX && result.is_ok());
        let pieces = result.as_deref().unwrap_or_default().chunks(MAX_PIECE);
        let mut sent: Vec<ToAgent> = pieces.map(|piece| ToAgent::Piece(piece.into())).collect();
        sent.push(ToAgent::Exchanged { call, answer: ExchangeAnswer::of(answer.clone()).unwrap() });
        sent.into_iter().map(|message| (NodeId(node), message)).collect()
    }
}
