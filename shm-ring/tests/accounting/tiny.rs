//! All short histories, and all states, of rings of a few bytes.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

use iof_shm_ring::{Peek, Policy, Ring, Snapshot, Start};

use crate::world::{Op, World};

/// The steps that a [tiny](TINY) ring has in each state. Their sizes are at its seam and beyond.
fn steps(capacity: usize) -> Vec<Op> {
    let attach = |may_block, start| Op::Attach { may_block, start, late: 0 };
    vec![
        Op::Push(1),
        Op::Push(capacity.div_ceil(2)),
        Op::Push(capacity + 1),
        attach(true, Start::Oldest),
        attach(false, Start::Now),
        Op::AttachNonGating { start: Start::Oldest, late: 0 },
        Op::Borrow { reader: 0 },
        Op::Read { reader: 0, consume: 1 },
        Op::Read { reader: 0, consume: usize::MAX },
        Op::Copy { reader: 0, len: capacity },
        Op::Group { reader: 0, bytes: Some(2) },
        Op::SetNonGating { reader: 0 },
        Op::Detach { reader: 0 },
        Op::Reconfigure { pages: 2, policy: Policy::Block },
        Op::Reconfigure { pages: 1, policy: Policy::DropOldest },
    ]
}

/// The largest ring whose histories are tried all, in bytes.
const TINY: u64 = 8;

/// Returns the value of a variable by which more is tried on request.
fn bound(variable: &str, default: u32) -> u32 {
    std::env::var(variable).map_or(if cfg!(miri) { 1 } else { default }, |bound| bound.parse().unwrap())
}

#[test]
fn every_short_history_of_every_tiny_ring_accounts_for_each_byte() {
    let depth = bound("IOF_RING_STEPS", 3);
    for (capacity, policy) in (1..=TINY).flat_map(|capacity| {
        [Policy::DropNewest, Policy::DropOldest, Policy::Block].map(|policy| (capacity, policy))
    }) {
        let steps = steps(capacity as usize);
        for history in 0..steps.len().pow(depth) {
            let mut world = World::new(capacity, policy);
            // The first two readers differ in what they hold back.
            world.apply(steps[3].clone());
            let mut digits = history;
            for _ in 0..depth {
                world.apply(steps[digits % steps.len()].clone());
                digits /= steps.len();
            }
            world.finish();
        }
    }
}

/// The state of a tiny ring with one reader, as far as its next steps depend on it. None depends on the length of a gap.
#[derive(Hash)]
struct State {
    /// The generation that the reader reads, and the newest.
    rings: [RingState; 2],
    borrowed: usize,
    pieces: Vec<Piece>,
    /// Set if bytes are lost behind them, which is not marked yet.
    is_unmarked: bool,
}

/// The words of one generation, relative to its tail.
#[derive(Hash)]
struct RingState {
    /// The places of the tail and of that of the index in memory.
    seams: (u64, u64),
    claimed: u64,
    cached: u64,
    wanted: Option<u64>,
    is_sealed: bool,
    /// For each mark of the index the bytes behind it, and whether a gap is before it. Those that no byte in the ring has
    /// are the same.
    marks: Vec<(u64, bool)>,
}

/// A thing that a reader gets.
#[derive(Hash)]
enum Piece {
    Bytes(usize),
    Gap,
    NextGeneration,
}

impl RingState {
    fn of(ring: &Ring) -> RingState {
        let ring = Snapshot::take(ring).unwrap();
        let mut dropped = ring.marks.first().map_or(0, |mark| mark.dropped);
        let marks = ring.marks.iter().map(|mark| {
            let before = std::mem::replace(&mut dropped, mark.dropped);
            let behind = (ring.tail - mark.offset).min(ring.capacity + 1);
            (behind, behind <= ring.capacity && mark.dropped > before)
        });
        RingState {
            seams: (ring.tail % ring.capacity, (ring.retired + ring.marks.len() as u64) % ring.entries),
            claimed: ring.claimed - ring.tail,
            cached: ring.tail - ring.floor,
            wanted: ring.wanted.map(|wanted| ring.tail.wrapping_sub(wanted)),
            is_sealed: ring.sealed.is_some(),
            marks: marks.collect(),
        }
    }
}

impl World {
    /// Returns the state, after which the reader has read all.
    fn drain(&mut self) -> State {
        let before = RingState::of(self.clients[0].reader.ring());
        let borrowed = self.clients[0].reader.bytes().len();
        let mut pieces = Vec::new();
        loop {
            pieces.push(match self.clients[0].peek() {
                Peek::Bytes => {
                    let length = self.clients[0].reader.bytes().len();
                    self.clients[0].consume(length);
                    Piece::Bytes(length)
                }
                Peek::Gap(_) => Piece::Gap,
                Peek::Sealed => {
                    self.read(0, 0);
                    Piece::NextGeneration
                }
                _ => break,
            });
        }
        let client = &self.clients[0];
        let rings = [before, RingState::of(client.reader.ring())];
        State { rings, borrowed, pieces, is_unmarked: client.place() < self.produced.len() }
    }
}

/// Number of steps of the reader, which come first.
const READER_STEPS: u8 = 4;

/// Tries each step in each state that a tiny ring with this reader can reach. Returns the number of states.
fn try_all_states(capacity: u64, policy: Policy, reader: &Op) -> usize {
    let size = capacity as usize;
    let steps = [
        Op::Borrow { reader: 0 },
        Op::Read { reader: 0, consume: 1 },
        Op::Read { reader: 0, consume: usize::MAX },
        Op::Copy { reader: 0, len: size.div_ceil(2) },
        Op::Push(1),
        Op::Push(size.div_ceil(2)),
        Op::Push(size),
        Op::Push(size + 1),
    ];
    let try_history = |history: &[u8]| {
        let mut world = World::new(capacity, policy);
        world.apply(reader.clone());
        history.iter().for_each(|step| world.apply(steps[usize::from(*step)].clone()));
        let state = world.drain();
        world.finish();
        state
    };
    // There may be a million and more, so that their hashes are kept in place of them.
    let hasher = RandomState::new();
    let first = try_history(&[]);
    let mut seen = HashSet::from([hasher.hash_one(&first)]);
    let mut new = VecDeque::from([(Vec::new(), first.rings[0].is_sealed)]);
    while let Some((history, is_sealed)) = new.pop_front() {
        // A ring that is sealed changes no more. Its reader has steps until it reads the next one.
        for step in 0..if is_sealed { READER_STEPS } else { steps.len() as u8 } {
            let next = [history.as_slice(), &[step]].concat();
            let state = try_history(&next);
            if seen.insert(hasher.hash_one(&state)) {
                new.push_back((next, state.rings[0].is_sealed));
            }
        }
    }
    seen.len()
}

#[test]
#[cfg_attr(miri, ignore = "it takes hours")]
fn every_step_in_every_state_of_every_tiny_ring_accounts_for_each_byte() {
    let attach = |may_block| Op::Attach { may_block, start: Start::Oldest, late: 0 };
    let non_gating = Op::AttachNonGating { start: Start::Oldest, late: 0 };
    for capacity in 1..=u64::from(bound("IOF_RING_STATES", 4)) {
        // With other readers, a policy is the same as one of these.
        for (policy, reader) in [
            (Policy::Block, attach(true)),
            (Policy::DropOldest, attach(false)),
            (Policy::DropNewest, attach(false)),
            (Policy::DropNewest, non_gating.clone()),
        ] {
            let states = try_all_states(capacity, policy, &reader);
            println!("{states} states of {capacity} bytes, {policy:?}, {reader:?}");
            assert!(states as u64 > capacity, "{states} states");
        }
    }
}
