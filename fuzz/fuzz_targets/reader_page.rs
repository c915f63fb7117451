//! Hostile tools that write any value into their reader pages between the steps of a stream. The
//! stream must continue, and an honest reader's counters must add up, without a loss under the
//! blocking policy.
#![no_main]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arbitrary::Arbitrary;
use iof_fuzz::pattern;
use iof_shm_ring::{
    MAX_SLOTS, Peek, Policy, Reader, ReaderId, ReaderPage, Start, Stream, StreamConfig, doorbell, notify,
};
use libfuzzer_sys::fuzz_target;
use memmap2::MmapRaw;

#[derive(Arbitrary, Debug)]
struct Input {
    policy: u8,
    liars: u8,
    ops: Vec<Op>,
}

#[derive(Arbitrary, Debug)]
enum Op {
    Push(u16),
    Read(u16),
    Deliver,
    /// Writes to a word of a hostile tool's slot.
    Slot {
        liar: u8,
        word: u8,
        value: Value,
    },
    /// Writes to `armed` or the ready bits.
    Head {
        liar: u8,
        word: u8,
        value: u64,
    },
    /// A hostile tool follows to the newest generation.
    Follow {
        liar: u8,
    },
    Reconfigure {
        pages: u8,
    },
}

/// A value, mostly near a position that matters.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Value {
    Tail(i16),
    BelowTail(i8),
    Small(u8),
    None,
    Any(u64),
}

const CAPACITY: u64 = 16 * 1024;
const SLOTS: usize = 128 + MAX_SLOTS / 8;

struct Liar {
    page: Arc<ReaderPage>,
    map: MmapRaw,
    id: ReaderId,
}

impl Liar {
    fn new(stream: &mut Stream) -> Option<Liar> {
        let page = Arc::new(ReaderPage::create(doorbell().ok()?.0).ok()?);
        let id = page.take_slot().ok()?;
        stream.attach(&page, id, Start::Oldest, false).ok()?;
        let map = MmapRaw::map_raw(&page.as_fd()?).ok()?;
        Some(Liar { page, map, id })
    }

    fn write(&self, offset: usize, value: u64) {
        // SAFETY: `offset` is that of a word of the head or of one of the first slots, which lie in
        // the file.
        unsafe { &*self.map.as_mut_ptr().add(offset).cast::<AtomicU64>() }.store(value, Relaxed);
    }

    fn follow(&mut self, stream: &mut Stream) -> Option<()> {
        let new = self.page.take_slot().ok()?;
        let old = match stream.follow(&self.page, self.id, new) {
            Some(_) => std::mem::replace(&mut self.id, new),
            None => new,
        };
        self.page.return_slot(old);
        Some(())
    }
}

/// The honest reader.
struct Honest {
    page: Arc<ReaderPage>,
    reader: Reader,
    place: u64,
    lost: u64,
}

impl Honest {
    fn new(stream: &mut Stream) -> Option<Honest> {
        let page = Arc::new(ReaderPage::create(doorbell().ok()?.0).ok()?);
        let id = page.take_slot().ok()?;
        let given = stream.attach(&page, id, Start::Oldest, true).ok()?;
        // SAFETY: this target owns the stream, and moves and detaches readers only when they are
        // done.
        let reader = unsafe { Reader::new(given, Arc::clone(&page), Start::Oldest) }.ok()?;
        Some(Honest { page, reader, place: 0, lost: 0 })
    }

    fn step(&mut self, stream: &mut Stream, consume: usize) -> Peek {
        let peek = self.reader.peek();
        match peek {
            Peek::Bytes => {
                let bytes = self.reader.bytes();
                assert!(
                    bytes == pattern(self.place, bytes.len()),
                    "not what was pushed, from {} on",
                    self.place
                );
                let n = bytes.len().min(consume);
                self.reader.consume(n);
                self.place += n as u64;
            }
            Peek::Gap(gap) => {
                assert_eq!(gap.offset, self.place);
                self.place += gap.lost;
                self.lost += gap.lost;
            }
            Peek::Sealed => {
                let (old, new) = (self.reader.id(), self.page.take_slot().expect("two will do"));
                let given = stream.follow(&self.page, old, new).expect("a sealed ring has a successor");
                // SAFETY: this target owns the stream, and moves and detaches readers only when
                // they are done.
                unsafe { self.reader.follow(given) }.expect("the slot is there");
                self.page.return_slot(old);
            }
            _ => {}
        }
        assert_eq!(self.reader.delivered() + self.reader.lost(), self.reader.produced());
        peek
    }
}

fuzz_target!(|input: Input| {
    let policy = [Policy::DropNewest, Policy::DropOldest, Policy::Block][usize::from(input.policy % 3)];
    let Ok(mut stream) = Stream::create(StreamConfig { capacity: CAPACITY, policy }, "fuzz") else { return };
    let Some(mut honest) = Honest::new(&mut stream) else { return };
    let liars: Option<Vec<Liar>> = (0..1 + input.liars % 3).map(|_| Liar::new(&mut stream)).collect();
    let Some(mut liars) = liars else { return };
    let mut produced = 0u64;
    for op in input.ops.iter().take(256) {
        let tail = produced - stream.stats().dropped;
        match *op {
            Op::Push(n) => {
                let n = u64::from(n % 8192);
                let taken = stream.push(pattern(produced, n as usize), 1) as u64;
                let may_wait = policy == Policy::Block && tail + n > honest.place + CAPACITY / 2;
                assert!(taken == n || may_wait, "only the honest one may hold the source back");
                produced += taken;
                assert_eq!(stream.stats().produced, produced);
            }
            Op::Read(n) => {
                honest.step(&mut stream, n.into());
            }
            Op::Deliver => notify([&stream]),
            Op::Slot { liar, word, value } => {
                let liar = &liars[usize::from(liar) % liars.len()];
                let value = match value {
                    Value::Tail(more) => tail.wrapping_add_signed(more.into()),
                    Value::BelowTail(more) => {
                        tail.wrapping_sub(stream_capacity(&honest)).wrapping_add_signed(more.into())
                    }
                    Value::Small(n) => n.into(),
                    Value::None => u64::MAX,
                    Value::Any(n) => n,
                };
                liar.write(SLOTS + u32::from(liar.id) as usize * 64 + usize::from(word % 3) * 8, value);
            }
            Op::Head { liar, word, value } => {
                let liar = &liars[usize::from(liar) % liars.len()];
                liar.write(if word % 2 == 0 { 16 } else { 128 }, value);
            }
            Op::Follow { liar } => {
                let liar = usize::from(liar) % liars.len();
                if liars[liar].follow(&mut stream).is_none() {
                    return;
                }
            }
            Op::Reconfigure { pages } => {
                let capacity = (u64::from(pages % 8) + 4) * 4096;
                stream.reconfigure(StreamConfig { capacity, policy }).expect("a possible capacity");
            }
        }
    }
    stream.complete();
    for step in 0.. {
        assert!(step < 10_000, "the honest reader never reaches the end");
        if honest.step(&mut stream, usize::MAX) == Peek::Ended {
            break;
        }
    }
    assert_eq!(honest.place, produced);
    assert!(policy != Policy::Block || honest.lost == 0, "a reader that blocks lost a byte");
});

fn stream_capacity(honest: &Honest) -> u64 {
    honest.reader.ring().capacity()
}
