//! Models of the ring's protocols, checked by loom in every interleaving and every allowed order of memory.
//!
//! They run the code that ships: `iof-shm-ring` takes its atomics from loom when built with `--cfg loom`, and its
//! rings lie on the heap then. What the kernel or a reader does with payload bytes is modelled by one tracked cell
//! for each byte, so that any access that is not ordered by the protocol fails the model.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p iof-loom-tests
//! ```
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a model may panic")]

use std::sync::Arc;

use iof_shm_ring::{Area, Peek, Policy, Reader, Reserve, Start, Stream, StreamConfig, bell};
use loom::cell::UnsafeCell;

/// The payload of a ring, one tracked cell for each byte.
pub struct Payload(Vec<UnsafeCell<u64>>);

// SAFETY: that its cells are never touched by two threads at once is what loom checks.
unsafe impl Sync for Payload {}
// SAFETY: as above.
unsafe impl Send for Payload {}

impl Payload {
    /// For a ring of `capacity` bytes.
    pub fn new(capacity: u64) -> Arc<Payload> {
        Arc::new(Payload((0..capacity).map(|_| UnsafeCell::new(u64::MAX)).collect()))
    }

    fn cell(&self, position: u64) -> &UnsafeCell<u64> {
        &self.0[(position % self.0.len() as u64) as usize]
    }

    /// The writer stores what belongs at `position`: its own number.
    pub fn write(&self, position: u64) {
        // SAFETY: loom fails the model if anybody else is at this cell.
        self.cell(position).with_mut(|byte| unsafe { *byte = position });
    }

    /// A reader looks at the byte at `position` and finds its number.
    pub fn check(&self, position: u64) {
        // SAFETY: loom fails the model if the writer is at this cell.
        let found = self.cell(position).with(|byte| unsafe { *byte });
        assert_eq!(found, position, "a byte was overwritten under a reader");
    }
}

/// A stream on the heap whose payload is modelled.
pub struct Model {
    /// The stream under test.
    pub stream: Stream,
    /// Its bytes.
    pub payload: Arc<Payload>,
    /// Its readers' words.
    pub area: Arc<Area>,
}

impl Model {
    /// A stream of `capacity` bytes.
    pub fn new(capacity: u64, policy: Policy) -> Model {
        let (ringer, _) = bell().unwrap();
        Model {
            stream: Stream::on_heap(StreamConfig { capacity, policy }).unwrap(),
            payload: Payload::new(capacity),
            area: Arc::new(Area::on_heap(ringer)),
        }
    }

    /// Attaches a reader at the first byte.
    pub fn reader(&mut self, may_block: bool) -> Reader {
        let slot = self.area.take_slot().unwrap();
        let attached = self.stream.attach(&self.area, slot, Start::Oldest, may_block).unwrap();
        Reader::new(attached.ring, Arc::clone(&self.area), slot, attached.start, Start::Oldest).unwrap()
    }

    /// Writes up to `n` bytes as the policy lets it, in the ring's first generation only; how many were stored.
    pub fn write(&mut self, n: u64) -> u64 {
        let mut stored = 0;
        for _ in 0..n {
            match self.stream.reserve(1) {
                Reserve::Ready(span) => {
                    assert_eq!(span.len, 1);
                    let stats = self.stream.stats();
                    if stats.generation > 0 {
                        // Fresh memory, which this payload does not model.
                        break;
                    }
                    self.payload.write(stats.produced - stats.dropped);
                    self.stream.commit(1, 0);
                    stored += 1;
                }
                Reserve::Discard => self.stream.discard(1, 0),
                Reserve::Wait => break,
            }
        }
        stored
    }
}

/// Looks once; checks every byte that it borrows, consumes them, and gives what it found.
pub fn read_once(reader: &mut Reader, payload: &Payload) -> Peek {
    let peek = reader.peek();
    if peek == Peek::Bytes {
        let (from, len) = (reader.produced(), reader.bytes().len() as u64);
        for position in from..from + len {
            payload.check(position);
        }
        reader.consume(len as usize);
    }
    peek
}
