//! A stream, its readers, and what must be true of them after each step.

use std::sync::Arc;

use iof_shm_ring::{
    Copied, Gap, Grouping, Peek, Policy, Reader, ReaderPage, Start, Stream, StreamConfig, bell, doorbell,
};

/// The capacity of a ring whose histories are random, in bytes.
pub const CAPACITY: u64 = 4096;

/// Returns the number of bytes such that a reader that was never further behind loses nothing. What is
/// claimed ahead, a quarter and an eighth of a ring, is not part of an overwriting reader's cache.
fn well_within(capacity: u64) -> u64 {
    capacity / 2
}

/// One step of a random history.
#[derive(Clone, Debug)]
pub enum Op {
    Push(usize),
    Attach {
        may_block: bool,
        start: Start,
        late: usize,
    },
    /// A reader that is non-gating from the first byte on.
    AttachNonGating {
        start: Start,
        late: usize,
    },
    SetNonGating {
        reader: usize,
    },
    /// Consumes, and follows to the next generation.
    Read {
        reader: usize,
        consume: usize,
    },
    Borrow {
        reader: usize,
    },
    Copy {
        reader: usize,
        len: usize,
    },
    Group {
        reader: usize,
        bytes: Option<u64>,
    },
    Detach {
        reader: usize,
    },
    /// Consumes one byte and pushes two, many times, so that a full ring gets a gap each time.
    Trickle {
        reader: usize,
        times: usize,
    },
    Reconfigure {
        pages: u64,
        policy: Policy,
    },
}

/// A reader with the accounting that it must match. The counters here come from the bytes and gaps
/// that the reader returns, never from its own counters.
pub struct Client {
    pub reader: Reader,
    may_block: bool,
    /// Set if it is non-gating.
    non_gating: bool,
    /// Bytes that the source had produced at this reader's start.
    began: u64,
    delivered: u64,
    lost: u64,
    /// No gap may lie beyond this number: only bytes from before the reader held the source back
    /// may be lost.
    lossless_from: Option<u64>,
    /// Bytes that the source had produced when the reader was attached.
    attached_at: u64,
    /// Bytes that the source had produced before the oldest byte that was cached then, or before
    /// that moment for a reader that starts now.
    starts_at: u64,
    /// Set if it was ever further behind than any cache certainly reaches.
    was_far_behind: bool,
}

impl Client {
    /// Returns the reader's place in the produced bytes.
    pub fn place(&self) -> usize {
        (self.began + self.delivered + self.lost) as usize
    }

    fn count_gap(&mut self, gap: Gap) {
        assert!(gap.lost > 0, "an empty gap");
        assert_eq!(gap.offset, self.place() as u64, "a gap begins where the last byte ended");
        self.lost += gap.lost;
        let end = self.place() as u64;
        assert!(self.lossless_from.is_none_or(|first| end <= first), "a reader that blocks lost a byte");
        let within = !self.was_far_behind && end > self.attached_at;
        assert!(!within, "a reader that was well within its cache lost a byte");
        assert_eq!(self.reader.lost(), self.lost);
        assert_eq!(self.reader.produced(), end);
    }

    pub fn consume(&mut self, n: usize) {
        self.delivered += n.min(self.reader.bytes().len()) as u64;
        self.reader.consume(n);
    }

    /// Peeks, and accounts for a gap.
    pub fn peek(&mut self) -> Peek {
        let peek = self.reader.peek();
        if let Peek::Gap(gap) = peek {
            self.count_gap(gap);
        }
        peek
    }

    fn copy(&mut self, len: usize, produced: &[u8]) {
        let place = self.place();
        let mut buffer = vec![0; len];
        match self.reader.copy(&mut buffer) {
            Copied::Bytes(n) => {
                assert_eq!(buffer[..n], produced[place..place + n]);
                self.delivered += n as u64;
            }
            Copied::Nothing(Peek::Gap(gap)) => self.count_gap(gap),
            Copied::Nothing(peek) => assert_ne!(peek, Peek::Bytes),
        }
    }

    /// Checks the invariants of every step: the reader's counters add up, no borrowed byte has
    /// changed, and nothing is returned or reported that was not produced.
    fn check(&self, produced: &[u8]) {
        let reader = &self.reader;
        assert_eq!(reader.delivered() + reader.lost(), reader.produced() - self.began);
        assert_eq!(reader.delivered(), self.delivered);
        assert!(reader.lost() >= self.lost);
        assert!(reader.produced() <= produced.len() as u64);
        let bytes = reader.bytes();
        if !bytes.is_empty() {
            assert_eq!(reader.lost(), self.lost, "a gap is reported before the bytes behind it");
            assert_eq!(
                bytes,
                &produced[self.place()..self.place() + bytes.len()],
                "not the bytes produced here"
            );
        }
    }
}

/// A stream, its readers, and all bytes that were ever produced.
pub struct World {
    stream: Stream,
    /// The capacity of its first ring, in bytes.
    capacity: u64,
    policy: Policy,
    /// Set if the policy is, or was, to block.
    may_block: bool,
    /// Set if a reader that may block was attached and has not opened its ring yet.
    opening: bool,
    page: Arc<ReaderPage>,
    pub produced: Vec<u8>,
    pub clients: Vec<Client>,
}

impl World {
    pub fn new(capacity: u64, policy: Policy) -> World {
        let config = StreamConfig { capacity, policy };
        let (page, stream) = if cfg!(miri) || capacity < CAPACITY {
            (ReaderPage::on_heap(bell().unwrap().0), Stream::on_heap(config))
        } else {
            (ReaderPage::create(doorbell().unwrap().0).unwrap(), Stream::create(config, "test"))
        };
        let (page, stream) = (Arc::new(page), stream.unwrap());
        let may_block = policy == Policy::Block;
        let (produced, clients) = (Vec::new(), Vec::new());
        World { stream, capacity, policy, may_block, opening: false, page, produced, clients }
    }

    pub fn apply(&mut self, op: Op) {
        match op {
            Op::Push(n) => self.push(n),
            Op::Attach { may_block, start, late } if self.clients.len() < 4 => {
                self.attach(may_block, false, start, late);
            }
            Op::AttachNonGating { start, late } if self.clients.len() < 4 => {
                self.attach(false, true, start, late);
            }
            Op::SetNonGating { reader } => {
                if let Some(client) = self.clients.get_mut(reader) {
                    client.reader.set_non_gating();
                    client.non_gating = true;
                    client.lossless_from = None;
                }
            }
            Op::Attach { .. } | Op::AttachNonGating { .. } => {}
            Op::Reconfigure { pages, policy } => self.reconfigure(pages, policy),
            Op::Read { reader, consume } => self.read(reader, consume),
            Op::Trickle { reader, times } => {
                for _ in 0..times {
                    self.read(reader, 1);
                    self.push(2);
                }
            }
            Op::Detach { reader } => {
                if reader < self.clients.len() {
                    let client = self.clients.remove(reader);
                    assert!(self.stream.detach(&self.page, client.reader.id()));
                    self.page.return_slot(client.reader.id());
                }
            }
            Op::Borrow { reader } => {
                if let Some(client) = self.clients.get_mut(reader) {
                    client.peek();
                }
            }
            Op::Copy { reader, len } => {
                if let Some(client) = self.clients.get_mut(reader) {
                    client.copy(len, &self.produced);
                }
            }
            Op::Group { reader, bytes } => {
                if let Some(client) = self.clients.get_mut(reader) {
                    client.reader.group(bytes.map(|bytes| Grouping { bytes, time: None }));
                }
            }
        }
        for client in &self.clients {
            client.check(&self.produced);
        }
    }

    fn push(&mut self, n: usize) {
        let first = self.produced.len();
        let bytes: Vec<u8> = (first..first + n).map(|i| (i % 251) as u8).collect();
        let taken = self.stream.push(&bytes, 1);
        let granted = self.opening || self.clients.iter().any(|client| client.may_block);
        let blocked = self.may_block && granted;
        assert!(
            taken == n || blocked,
            "only a granted reader may hold the source back, and only under this policy"
        );
        self.produced.extend_from_slice(&bytes[..taken]);
        for client in &mut self.clients {
            let behind = self.produced.len() - client.place().max(client.starts_at as usize);
            client.was_far_behind |= behind as u64 > well_within(self.capacity);
        }
        assert_eq!(self.stream.stats().produced, self.produced.len() as u64);
    }

    /// Attaches a reader that opens its ring only after another `late` bytes were pushed.
    fn attach(&mut self, may_block: bool, non_gating: bool, start: Start, late: usize) {
        let id = self.page.take_slot().unwrap();
        let now = self.produced.len() as u64;
        let cached = if start == Start::Now { 0 } else { self.stream.stats().cached };
        let attached = if non_gating {
            self.stream.attach_non_gating(&self.page, id, start).unwrap()
        } else {
            self.stream.attach(&self.page, id, start, may_block).unwrap()
        };
        self.opening = may_block;
        self.push(late);
        self.opening = false;
        // SAFETY: this test owns the stream, and moves and detaches readers only when they are
        // done.
        let reader = unsafe { Reader::new(attached, Arc::clone(&self.page), start) }.unwrap();
        let began = if start == Start::Now { now } else { 0 };
        let lossless_from = (may_block && self.policy == Policy::Block).then_some(now);
        self.clients.push(Client {
            reader,
            may_block,
            non_gating,
            began,
            delivered: 0,
            lost: 0,
            lossless_from,
            attached_at: now,
            starts_at: now - cached,
            was_far_behind: cached + late as u64 > well_within(self.capacity),
        });
    }

    fn reconfigure(&mut self, pages: u64, policy: Policy) {
        // The old policy may last until a reader has followed.
        self.may_block |= policy == Policy::Block;
        self.stream.reconfigure(StreamConfig { capacity: pages * self.capacity, policy }).unwrap();
        self.policy = policy;
        if policy != Policy::Block {
            self.clients.iter_mut().for_each(|client| client.lossless_from = None);
        }
    }

    pub fn read(&mut self, reader: usize, consume: usize) {
        let Some(client) = self.clients.get_mut(reader) else { return };
        if client.peek() == Peek::Bytes {
            client.consume(consume);
        }
        if client.peek() == Peek::Sealed {
            let id = self.page.take_slot().unwrap();
            let old = client.reader.id();
            let attached = self.stream.follow(&self.page, old, id).expect("a sealed ring has a successor");
            // SAFETY: this test owns the stream, and moves and detaches readers only when they are
            // done.
            unsafe { client.reader.follow(attached) }.unwrap();
            self.page.return_slot(old);
            if self.policy == Policy::Block && client.may_block && !client.non_gating {
                client.lossless_from.get_or_insert(self.produced.len() as u64);
            }
        }
    }

    pub fn finish(mut self) {
        self.stream.complete();
        for i in 0..self.clients.len() {
            for turn in 0.. {
                assert!(turn < 100_000, "the reader never reaches the end");
                self.read(i, usize::MAX);
                self.clients[i].check(&self.produced);
                if self.clients[i].peek() == Peek::Ended {
                    break;
                }
            }
            assert_eq!(self.clients[i].place(), self.produced.len(), "delivered + lost == produced");
        }
    }
}
