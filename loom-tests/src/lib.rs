//! Models of the ring's protocols, checked by loom in every interleaving and every allowed order of
//! memory.
//!
//! They run the code that ships: `iof-shm-ring` takes its atomics from loom when built with `--cfg
//! loom`, and its rings lie on the heap then. What the kernel or a reader does with payload bytes
//! is modelled by one tracked cell for each byte, so that any access that is not ordered by the
//! protocol fails the model.
//!
//! Each model is a function in `models` that says what its bounds are; `tests/models.rs` checks
//! them all. `tests/known_bad.rs` breaks the shipping code at one point after the other and wants a
//! model to notice.
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
    Attached, Bell, Copied, Peek, Policy, Reader, ReaderPage, Reserve, Ringer, Start, Stream, StreamConfig,
    bell,
};

pub use payload::{Payload, Tracking};

/// Bytes of a model's ring: the fewest of which a claim takes one only.
pub const CAPACITY: u64 = 4;
/// Bytes of a ring whose writer claims one byte ahead.
pub const AHEAD: u64 = 16;

/// Times that a thread is stopped in the middle of its work, in one run of a model, unless
/// LOOM_MAX_PREEMPTIONS says otherwise.
const PREEMPTIONS: usize = 3;

/// Models with so many words of several ages that fewer preemptions must do.
const FEWER: &[(&str, usize)] = &[("inspected", 1)];

/// Checks a model with the default bound on preemptions.
pub fn check(model: fn()) {
    check_within(PREEMPTIONS, model);
}

/// Checks the model of this name with its own bound on preemptions.
pub fn check_named(name: &str, model: fn()) {
    let fewer = FEWER.iter().find(|(of, _)| *of == name);
    check_within(fewer.map_or(PREEMPTIONS, |(_, preemptions)| *preemptions), model);
}

fn check_within(preemptions: usize, model: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.check(model);
}

/// A stream on the heap whose payload is modelled.
pub struct Model {
    /// The stream under test.
    pub stream: Stream,
    /// Its bytes.
    pub payload: Arc<Payload>,
    /// Its readers' words.
    pub page: Arc<ReaderPage>,
    /// Rings when the readers' tool is woken.
    pub doorbell: Bell,
    /// Rings when there is room.
    pub room: (Ringer, Bell),
}

impl Model {
    /// A stream whose bytes may only be read where the protocol orders it.
    pub fn new(policy: Policy) -> Model {
        Model::with(StreamConfig { capacity: CAPACITY, policy }, Tracking::Ordered)
    }

    /// A stream as `config` says, whose bytes are read as `tracking` says.
    pub fn with(config: StreamConfig, tracking: Tracking) -> Model {
        let (ringer, doorbell) = bell().unwrap();
        Model {
            stream: Stream::on_heap(config).unwrap(),
            payload: Arc::new(Payload::new(config.capacity, tracking)),
            page: Arc::new(ReaderPage::on_heap(ringer)),
            doorbell,
            room: bell().unwrap(),
        }
    }

    /// Attaches a reader at the oldest byte; one that may block tells the room bell.
    pub fn reader(&mut self, may_block: bool) -> Reader {
        let attached = self.attach(may_block);
        self.open(attached, may_block)
    }

    /// Attaches a reader at the oldest byte that the writer passes, whatever the policy.
    pub fn passed_reader(&mut self) -> Reader {
        let slot = self.page.take_slot().unwrap();
        let attached = self.stream.attach_non_gating(&self.page, slot, Start::Oldest).unwrap();
        self.open(attached, false)
    }

    /// The engine's half of [`Model::reader`].
    pub fn attach(&mut self, may_block: bool) -> Attached {
        let slot = self.page.take_slot().unwrap();
        self.stream.attach(&self.page, slot, Start::Oldest, may_block).unwrap()
    }

    fn open(&self, attached: Attached, may_block: bool) -> Reader {
        let mut reader = open(attached, &self.page);
        if may_block {
            reader.tell_room(self.room.0.try_clone().unwrap());
        }
        reader
    }

    /// Moves `reader`, which found its generation sealed, to the newest.
    pub fn follow(&mut self, reader: &mut Reader) {
        let (old, to) = (reader.slot(), self.next(reader));
        go_on(reader, to);
        self.page.return_slot(old);
    }

    /// The engine's half of [`Model::follow`].
    pub fn next(&mut self, reader: &Reader) -> Attached {
        let slot = self.page.take_slot().unwrap();
        self.stream.follow(&self.page, reader.slot(), slot).unwrap()
    }

    /// Lets `reader` read all there is, now that nothing moves any more: it must have been told of
    /// every byte.
    pub fn settle(&mut self, reader: &mut Reader) {
        if read_up(reader, &self.payload, 16) == Peek::Sealed {
            self.follow(reader);
            assert_eq!(read_up(reader, &self.payload, 16), Peek::Empty);
        }
        assert_eq!(reader.produced(), self.stream.stats().produced, "a reader was not told of every byte");
        assert_eq!(reader.delivered() + reader.lost(), reader.produced(), "the ledger is wrong");
    }

    /// Stores or drops `n` bytes one by one, as the policy says, until the source has to wait; how
    /// many were stored.
    pub fn write(&mut self, n: u64) -> u64 {
        self.write_at(n, 0)
    }

    /// As [`Model::write`], bytes that are read at `time`.
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

    /// Stores a byte and drops one behind it, as if the ring could not grow.
    pub fn write_and_drop(&mut self) {
        assert_eq!(self.write(1), 1);
        self.stream.discard(1, 0);
    }
}

/// The tool's half of [`Model::reader`].
pub fn open(attached: Attached, page: &Arc<ReaderPage>) -> Reader {
    // SAFETY: models detach readers that are gone, and move those that say that they are at the end.
    unsafe { Reader::new(attached, Arc::clone(page), Start::Oldest) }.unwrap()
}

/// The tool's half of [`Model::follow`].
pub fn go_on(reader: &mut Reader, to: Attached) {
    // SAFETY: as for `open`.
    unsafe { reader.follow(to) }.unwrap();
}

/// Looks once; checks every byte that it borrows, consumes them, and gives what it found.
pub fn read_once(reader: &mut Reader, payload: &Payload) -> Peek {
    ledger(reader, |reader| {
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

/// Copies up to `most` bytes and checks what the ring says are good.
pub fn copy_once(reader: &mut Reader, payload: &Payload, most: usize) -> Copied {
    ledger(reader, |reader| {
        let (first, mut found) = (reader.produced(), Vec::new());
        let copied = reader.copy_with(most, |ring, from, len| {
            found = payload.copy(ring.generation(), from, len);
        });
        if let Copied::Bytes(len) = copied {
            assert_eq!(found.len(), len);
            (first..).zip(found).for_each(|(number, byte)| payload::assert_belongs(byte, number));
        }
        copied
    })
}

/// Whatever `step` finds, the ledger must be right after it.
fn ledger<T>(reader: &mut Reader, step: impl FnOnce(&mut Reader) -> T) -> T {
    let (before, delivered, lost) = (reader.produced(), reader.delivered(), reader.lost());
    let found = step(reader);
    let accounted = (reader.delivered() - delivered) + (reader.lost() - lost);
    // Added, not subtracted: a reader that went back would be a failure, too.
    assert_eq!(before + accounted, reader.produced(), "the ledger is wrong");
    found
}

/// Looks until there is nothing more, at most `n` times.
pub fn read_up(reader: &mut Reader, payload: &Payload, n: u32) -> Peek {
    for _ in 0..n {
        match read_once(reader, payload) {
            Peek::Bytes | Peek::Gap(_) => {}
            end => return end,
        }
    }
    panic!("a reader does not come to an end");
}

/// Whether `bell`, of this process, rings; silences it.
pub fn rings(bell: &Bell) -> bool {
    let file = File::from(bell.as_fd().try_clone_to_owned().unwrap());
    (&file).read(&mut [0; 8]).is_ok()
}
