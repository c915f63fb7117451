//! Models of the ring's protocols. Loom checks them in every interleaving and every allowed order
//! of memory.
//!
//! They run the shipping code: with `--cfg loom`, `iof-shm-ring` takes its atomics from loom and
//! puts its rings on the heap. One tracked cell for each payload byte models the accesses of the
//! kernel and of the readers, so any access that the protocol does not order fails the model.
//!
//! Each model is a function in `models` and documents its bounds; `tests/models.rs` checks them
//! all. `tests/known_bad.rs` breaks the shipping code at one point after the other and requires
//! that a model detects it.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p iof-loom-tests
//! ```
#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a model may panic")]

pub mod models;
mod payload;

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::Arc;

use iof_shm_ring::{
    Attached, Bell, CacheBudget, Copied, Growth, Peek, Policy, Reader, ReaderPage, Reserve, Ringer, Start,
    Stepper, Stream, StreamConfig, StreamStats, bell,
};

use loom::thread::{self, JoinHandle};

pub use payload::{Payload, Tracking};

/// Capacity of a model's ring in bytes: the greatest for which a claim takes one byte.
pub const CAPACITY: u64 = 4;
/// Capacity, in bytes, of a ring whose writer claims one byte ahead.
pub const AHEAD: u64 = 16;

/// Greatest number of preemptions in one run of a model, unless LOOM_MAX_PREEMPTIONS sets another.
const PREEMPTIONS: usize = 3;

/// Models whose many words have several ages, so that only fewer preemptions are feasible.
const FEWER: &[(&str, usize)] = &[("inspected", 1)];

/// Checks a model with the default bound on preemptions.
pub fn check(model: fn()) {
    check_within(PREEMPTIONS, model);
}

/// Checks the model of this name with its own bound on preemptions.
pub fn check_named(name: &str, model: fn()) {
    let fewer = FEWER.iter().find(|(model, _)| *model == name);
    check_within(fewer.map_or(PREEMPTIONS, |(_, preemptions)| *preemptions), model);
}

fn check_within(preemptions: usize, model: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.check(model);
}

/// A stream on the heap whose payload is modelled.
#[derive(Debug)]
pub struct Model {
    /// The stream under test.
    pub stream: Stream,
    /// The bytes of the stream.
    pub payload: Arc<Payload>,
    /// The reader page of its readers.
    pub page: Arc<ReaderPage>,
    /// Rings to wake the readers' tool.
    pub doorbell: Bell,
    /// Rings when there is room.
    pub room: (Ringer, Bell),
}

impl Model {
    /// Creates a stream whose bytes may be read only where the protocol orders it.
    pub fn new(policy: Policy) -> Model {
        Model::with(StreamConfig { capacity: CAPACITY, policy }, Tracking::Ordered)
    }

    /// Creates a stream with the parameters of `config`, whose bytes are accessed as `tracking`
    /// specifies.
    pub fn with(config: StreamConfig, tracking: Tracking) -> Model {
        Model::of(Stream::on_heap(config).unwrap(), Payload::new(config.capacity, tracking), None)
    }

    /// Creates a stream whose readers sleep while `stepper` does their work.
    pub fn stepped(policy: Policy, stepper: Stepper) -> Model {
        let stream = Stream::on_heap(StreamConfig { capacity: CAPACITY, policy }).unwrap();
        Model::of(stream, Payload::new(CAPACITY, Tracking::Ordered), Some(stepper))
    }

    /// Creates a stream that blocks and begins in a ring of [`CAPACITY`] bytes. It grows to `full`
    /// bytes, unless the sum of its rings would have more than `total` bytes.
    pub fn growing(full: u64, total: u64) -> Model {
        let config = StreamConfig { capacity: full, policy: Policy::Block };
        let growth = Growth { first: CAPACITY, budget: Arc::new(CacheBudget::new(total)) };
        let stream = Stream::growing_on_heap(config, &growth).unwrap();
        let later = if total < CAPACITY + full { CAPACITY } else { full };
        Model::of(stream, Payload::growing(CAPACITY, later, Tracking::Ordered), None)
    }

    fn of(stream: Stream, payload: Payload, stepper: Option<Stepper>) -> Model {
        let (ringer, doorbell) = bell().unwrap();
        let page = ReaderPage::on_heap(ringer);
        Model {
            stream,
            payload: Arc::new(payload),
            page: Arc::new(match stepper {
                Some(stepper) => page.with_stepper(stepper),
                None => page,
            }),
            doorbell,
            room: bell().unwrap(),
        }
    }

    /// Attaches a reader at the oldest byte. A reader that may block gets the room bell.
    pub fn reader(&mut self, may_block: bool) -> Reader {
        let attached = self.attach(may_block);
        self.open(attached, may_block)
    }

    /// Attaches a non-gating reader at the oldest byte.
    pub fn non_gating_reader(&mut self) -> Reader {
        let id = self.page.take_slot().unwrap();
        let attached = self.stream.attach_non_gating(&self.page, id, Start::Oldest).unwrap();
        self.open(attached, false)
    }

    /// Performs the engine's half of [`Model::reader`].
    pub fn attach(&mut self, may_block: bool) -> Attached {
        let id = self.page.take_slot().unwrap();
        self.stream.attach(&self.page, id, Start::Oldest, may_block).unwrap()
    }

    fn open(&self, attached: Attached, may_block: bool) -> Reader {
        let mut reader = open(attached, &self.page);
        if may_block {
            reader.set_room_bell(self.room.0.try_clone().unwrap());
        }
        reader
    }

    /// Moves `reader`, which found its generation sealed, to the newest generation.
    pub fn follow(&mut self, reader: &mut Reader) {
        let (old, attached) = (reader.id(), self.next(reader));
        follow(reader, attached);
        self.page.return_slot(old);
    }

    /// Performs the engine's half of [`Model::follow`].
    pub fn next(&mut self, reader: &Reader) -> Attached {
        let id = self.page.take_slot().unwrap();
        self.stream.follow(&self.page, reader.id(), id).unwrap()
    }

    /// Runs `read` on a thread of its own, which returns the reader.
    pub fn reading(
        &self,
        mut reader: Reader,
        read: impl FnOnce(&mut Reader, &Payload) + 'static,
    ) -> JoinHandle<Reader> {
        let payload = Arc::clone(&self.payload);
        thread::spawn(move || {
            read(&mut reader, &payload);
            reader
        })
    }

    /// Waits for a thread that [`Model::reading`] has started, and [settles](Model::settle) its
    /// reader.
    pub fn settle_joined(&mut self, reading: JoinHandle<Reader>) -> Reader {
        let mut reader = reading.join().unwrap();
        self.settle(&mut reader);
        reader
    }

    /// Lets `reader` read to the end after all concurrent steps are done, and checks that every
    /// byte was delivered or reported as lost.
    pub fn settle(&mut self, reader: &mut Reader) {
        if read_up(reader, &self.payload, 16) == Peek::Sealed {
            self.follow(reader);
            assert_eq!(read_up(reader, &self.payload, 16), Peek::Empty);
        }
        assert_eq!(
            reader.produced(),
            self.stream.stats().produced,
            "a byte was neither delivered nor reported as lost"
        );
        assert_eq!(
            reader.delivered() + reader.lost(),
            reader.produced(),
            "the reader's counters do not add up"
        );
    }

    /// Stores `n` bytes that the kernel reads at once, and calls `meanwhile` before they arrive.
    pub fn read_at_once<T>(&mut self, n: u64, meanwhile: impl FnOnce(&mut Model) -> T) -> T {
        let Reserve::Ready(span) = self.stream.reserve(n as usize) else { panic!("no room") };
        assert_eq!(span.len as u64, n);
        let (stats, address) = (self.stream.stats(), span.ptr.addr());
        let found = meanwhile(self);
        for i in 0..n {
            let stats = StreamStats { produced: stats.produced + i, ..stats };
            self.payload.write(&stats, address + i as usize);
        }
        self.stream.commit(n as usize, 0);
        found
    }

    /// Stores or drops `n` bytes, one at a time, under the policy, until the source has to wait.
    /// Returns the number of bytes stored.
    pub fn write(&mut self, n: u64) -> u64 {
        self.write_at(n, 0)
    }

    /// As [`Model::write`], for bytes that are read at `time`.
    pub fn write_at(&mut self, n: u64, time: u64) -> u64 {
        let mut stored = 0;
        for _ in 0..n {
            match self.stream.reserve(1) {
                Reserve::Ready(span) => {
                    assert_eq!(span.len, 1);
                    self.payload.write(&self.stream.stats(), span.ptr.addr());
                    self.stream.commit(1, time);
                    stored += 1;
                }
                Reserve::Discard => self.stream.discard(1, time),
                Reserve::Wait | Reserve::Later => break,
            }
        }
        stored
    }

    /// Stores a byte and drops the next one, as if the ring could not grow.
    pub fn write_and_drop(&mut self) {
        assert_eq!(self.write(1), 1);
        self.stream.discard(1, 0);
    }
}

/// Performs the tool's half of [`Model::reader`].
pub fn open(attached: Attached, page: &Arc<ReaderPage>) -> Reader {
    // SAFETY: a model detaches only readers that are gone, and moves only readers that found the
    // end of their generation.
    unsafe { Reader::new(attached, Arc::clone(page), Start::Oldest) }.unwrap()
}

/// Performs the tool's half of [`Model::follow`].
pub fn follow(reader: &mut Reader, attached: Attached) {
    // SAFETY: as for `open`.
    unsafe { reader.follow(attached) }.unwrap();
}

/// Peeks once, checks and consumes every borrowed byte, and returns the result of the peek.
pub fn read_once(reader: &mut Reader, payload: &Payload) -> Peek {
    accounted(reader, |reader| {
        let peek = reader.peek();
        match peek {
            Peek::Bytes => {
                check_borrowed(reader, payload);
                reader.consume(reader.bytes().len());
            }
            Peek::Gap(gap) => assert!(gap.lost > 0, "a gap of nothing"),
            _ => {}
        }
        peek
    })
}

/// Checks every byte that `reader` borrows.
pub fn check_borrowed(reader: &Reader, payload: &Payload) {
    let bytes = reader.bytes();
    payload.check(reader.ring().generation(), reader.produced(), bytes.as_ptr().addr(), bytes.len());
}

/// Copies up to `most` bytes, and checks the bytes that the reader accepts.
pub fn copy_once(reader: &mut Reader, payload: &Payload, most: usize) -> Copied {
    accounted(reader, |reader| {
        let (first, mut found) = (reader.produced(), Vec::new());
        let copied = reader.copy_by(most, |ring, position, len| {
            found = payload.copy(ring.generation(), position, len);
        });
        if let Copied::Bytes(len) = copied {
            assert_eq!(found.len(), len);
            (first..).zip(found).for_each(|(number, byte)| payload::assert_belongs(byte, number));
        }
        copied
    })
}

/// Runs `step` and checks that the reader's counters add up afterwards.
fn accounted<T>(reader: &mut Reader, step: impl FnOnce(&mut Reader) -> T) -> T {
    let (before, delivered, lost) = (reader.produced(), reader.delivered(), reader.lost());
    let found = step(reader);
    let step_total = (reader.delivered() - delivered) + (reader.lost() - lost);
    // Added, not subtracted, so that a reader that moved backwards also fails.
    assert_eq!(before + step_total, reader.produced(), "the reader's counters do not add up");
    found
}

/// Peeks, at most `n` times, until there is nothing more to read.
pub fn read_up(reader: &mut Reader, payload: &Payload, n: u32) -> Peek {
    for _ in 0..n {
        match read_once(reader, payload) {
            Peek::Bytes | Peek::Gap(_) => {}
            end => return end,
        }
    }
    panic!("a reader does not reach the end");
}

/// Returns whether `bell`, of this process, rings, and silences it.
pub fn rings(bell: &Bell) -> bool {
    let file = File::from(bell.as_fd().try_clone_to_owned().unwrap());
    (&file).read(&mut [0; 8]).is_ok()
}
