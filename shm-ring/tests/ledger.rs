//! Every byte is accounted for: random operations on a stream against a plain vector of what was produced.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::sync::Arc;

use iof_shm_ring::{Area, Copied, Grouping, Peek, Policy, Reader, Start, Stream, StreamConfig, doorbell};
use proptest::prelude::*;
use proptest::test_runner::Config;

const CAPACITY: u64 = 4096;

/// One step of a random history.
#[derive(Clone, Debug)]
enum Op {
    Push(usize),
    Attach { may_block: bool, start: Start },
    Read { reader: usize, consume: usize },
    Borrow { reader: usize },
    Copy { reader: usize, len: usize },
    Group { reader: usize, bytes: Option<u64> },
    Detach { reader: usize },
    Reconfigure { pages: u64, policy: Policy },
}

fn op() -> impl Strategy<Value = Op> {
    let reader = 0usize..4;
    prop_oneof![
        4 => (1usize..3000).prop_map(Op::Push),
        1 => (any::<bool>(), prop_oneof![Just(Start::Oldest), Just(Start::Now)])
            .prop_map(|(may_block, start)| Op::Attach { may_block, start }),
        4 => (reader.clone(), 0usize..5000).prop_map(|(reader, consume)| Op::Read { reader, consume }),
        2 => reader.clone().prop_map(|reader| Op::Borrow { reader }),
        2 => (reader.clone(), 0usize..5000).prop_map(|(reader, len)| Op::Copy { reader, len }),
        1 => (reader.clone(), prop::option::of(1u64..6000)).prop_map(|(reader, bytes)| Op::Group { reader, bytes }),
        1 => (1u64..4, policy()).prop_map(|(pages, policy)| Op::Reconfigure { pages, policy }),
        1 => reader.prop_map(|reader| Op::Detach { reader }),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![Just(Policy::DropNewest), Just(Policy::DropOldest), Just(Policy::Block)]
}

/// A reader beside what it must account for.
struct Client {
    reader: Reader,
    /// Bytes that the source had produced when this reader began.
    began: u64,
    may_block: bool,
    lost: u64,
}

/// A stream, its readers, and everything that was ever produced.
struct World {
    policy: Policy,
    stream: Stream,
    area: Arc<Area>,
    produced: Vec<u8>,
    clients: Vec<Client>,
}

impl World {
    fn new(policy: Policy) -> World {
        let area = Arc::new(Area::create(doorbell().unwrap().0).unwrap());
        let stream = Stream::create(StreamConfig { capacity: CAPACITY, policy }, "test").unwrap();
        World { policy, stream, area, produced: Vec::new(), clients: Vec::new() }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Push(n) => self.push(n),
            Op::Attach { may_block, start } if self.clients.len() < 4 => self.attach(may_block, start),
            Op::Attach { .. } => {}
            Op::Read { reader, consume } => self.read(reader, consume),
            Op::Borrow { reader } => {
                if let Some(client) = self.clients.get_mut(reader) {
                    step(client, &self.produced);
                }
            }
            Op::Copy { reader, len } => self.copy(reader, len),
            Op::Group { reader, bytes } => {
                if let Some(client) = self.clients.get_mut(reader) {
                    client.reader.group(bytes.map(|bytes| Grouping { bytes, time: None }));
                }
            }
            Op::Reconfigure { pages, policy } => {
                self.stream.reconfigure(StreamConfig { capacity: pages * CAPACITY, policy }).unwrap();
                self.policy = policy;
            }
            Op::Detach { reader } => {
                if reader < self.clients.len() {
                    let client = self.clients.remove(reader);
                    assert!(self.stream.detach(&self.area, client.reader.slot()));
                    self.area.return_slot(client.reader.slot());
                }
            }
        }
        self.check_borrowed();
    }

    fn push(&mut self, n: usize) {
        let from = self.produced.len();
        let bytes: Vec<u8> = (from..from + n).map(|i| (i % 251) as u8).collect();
        let taken = self.stream.push(&bytes, 1);
        let blocked = self.clients.iter().any(|client| client.may_block);
        assert!(
            taken == n || blocked && self.policy == Policy::Block,
            "only a granted reader may hold the source back"
        );
        self.produced.extend_from_slice(&bytes[..taken]);
        assert_eq!(self.stream.stats().produced, self.produced.len() as u64);
    }

    fn attach(&mut self, may_block: bool, start: Start) {
        let slot = self.area.take_slot().unwrap();
        let attached = self.stream.attach(&self.area, slot, start, may_block).unwrap();
        let reader = Reader::new(attached.ring, Arc::clone(&self.area), slot, attached.start, start).unwrap();
        let began = if start == Start::Now { self.produced.len() as u64 } else { 0 };
        self.clients.push(Client { reader, began, may_block, lost: 0 });
    }

    fn read(&mut self, reader: usize, consume: usize) {
        let Some(client) = self.clients.get_mut(reader) else { return };
        if step(client, &self.produced) == Peek::Bytes {
            client.reader.consume(consume);
        }
        if step(client, &self.produced) == Peek::Sealed {
            let slot = self.area.take_slot().unwrap();
            let old = client.reader.slot();
            let attached = self.stream.follow(&self.area, old, slot).expect("a sealed ring has a successor");
            client.reader.follow(attached.ring, attached.slot, attached.start).unwrap();
            self.area.return_slot(old);
        }
    }

    fn copy(&mut self, reader: usize, len: usize) {
        let Some(client) = self.clients.get_mut(reader) else { return };
        let at = client.reader.produced() as usize;
        let mut into = vec![0; len];
        match client.reader.copy(&mut into) {
            Copied::Bytes(n) => {
                assert_eq!(into[..n], self.produced[at..at + n]);
                assert_eq!(client.reader.produced() as usize, at + n);
            }
            Copied::Nothing(Peek::Gap(gap)) => client.lost += gap.lost,
            Copied::Nothing(peek) => assert_ne!(peek, Peek::Bytes),
        }
    }

    /// No borrowed byte has changed, whatever the writer did since.
    fn check_borrowed(&mut self) {
        for client in &self.clients {
            let at = client.reader.produced() as usize;
            let bytes = client.reader.bytes();
            assert_eq!(bytes, &self.produced[at..at + bytes.len()], "a borrowed byte changed");
        }
    }

    fn finish(mut self) {
        self.stream.complete();
        let produced = self.produced.len() as u64;
        for i in 0..self.clients.len() {
            let mut turns = 0;
            loop {
                self.read(i, usize::MAX);
                let client = &mut self.clients[i];
                match step(client, &self.produced) {
                    Peek::Ended => break,
                    _ => turns += 1,
                }
                assert!(turns < 100_000, "the reader never comes to an end");
            }
            let client = &self.clients[i];
            assert_eq!(client.reader.delivered() + client.lost, produced - client.began);
            assert_eq!(client.reader.lost(), client.lost);
            if client.may_block && client.began == produced {
                assert_eq!(client.lost, 0);
            }
        }
    }
}

/// Peeks, books a gap, and checks that what is there is what was produced there.
fn step(client: &mut Client, produced: &[u8]) -> Peek {
    let before = client.reader.produced();
    let peek = client.reader.peek();
    match peek {
        Peek::Gap(gap) => {
            assert_eq!(gap.offset + gap.lost, client.reader.produced());
            assert!(gap.lost > 0, "an empty gap");
            client.lost += gap.lost;
        }
        Peek::Bytes => assert_eq!(before, client.reader.produced()),
        _ => {}
    }
    let at = client.reader.produced() as usize;
    let bytes = client.reader.bytes();
    assert_eq!(bytes, &produced[at..at + bytes.len()]);
    peek
}

proptest! {
    #![proptest_config(Config { cases: 2000, failure_persistence: None, ..Config::default() })]

    #[test]
    fn delivered_and_lost_are_what_was_produced(policy in policy(), ops in prop::collection::vec(op(), 1..200)) {
        let mut world = World::new(policy);
        for op in ops {
            world.apply(op);
        }
        world.finish();
    }
}
