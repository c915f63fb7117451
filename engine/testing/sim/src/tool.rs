//! The simulated tools. They read with the real state machines of `iof-tool`, and check every byte.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use iof_capture::{Gating, SourceId};
use iof_proto::{Channel, Nspace, Proc};
use iof_shm_ring::{Attached, Bell, Grouping, ReaderId, ReaderPage, Ringer, Start, StreamStats, bell};
use iof_tool::test_utils::{NewStream, ReadingSide, StreamInfo};
use iof_tool::{FeedId, Peeked};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::bytes;
use crate::rng::Rng;

/// The behaviour of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Reads everything as soon as it can.
    Prompt,
    /// Reads some, keeps some borrowed, defers some.
    Slow,
    /// Writes anything to its reader page, requests anything, and does not read.
    Hostile,
}

/// The totals that tools have read in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Bytes that were delivered, and checked.
    pub delivered: u64,
    /// Bytes that were reported as lost.
    pub lost: u64,
    /// Times that a reader continued in another generation.
    pub follows: u64,
    /// Streams that were read to their ends.
    pub ends: u64,
}

impl std::ops::AddAssign for Summary {
    fn add_assign(&mut self, other: Summary) {
        self.delivered += other.delivered;
        self.lost += other.lost;
        self.follows += other.follows;
        self.ends += other.ends;
    }
}

/// A message to a tool.
#[derive(Debug)]
pub enum ToTool {
    /// A ring: the first one of a registration, or one that follows.
    Ring {
        /// The registration.
        handler: u32,
        /// The reader that continues in it.
        follows: Option<ReaderId>,
        /// The ring.
        ring: Attached,
    },
    /// Every ring of this registration that was announced before has arrived.
    Barrier(u32),
}

/// A message of a tool.
#[derive(Clone, Copy, Debug)]
pub enum FromTool {
    /// A reader asks for the next generation.
    Follow(ReaderId),
    /// A reader has drained its stream, and its slot is free.
    Drained(ReaderId),
    /// A tool asks for a barrier before it ends a registration.
    Barrier(u32),
}

/// The facts known of a registration for one stream, beside the counts of the tool's own code.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The stream.
    pub source: SourceId,
    /// The point at which the registration starts.
    pub start: Start,
    /// Bytes that the source had produced before the registration's first one.
    pub begin: u64,
    /// Bytes that the source had produced when the registration was made.
    pub produced: u64,
    /// The number of these that were not in the cache.
    pub unavailable: u64,
    /// Bytes that the source had produced before the next one.
    pub next: u64,
    /// Bytes delivered.
    pub delivered: u64,
    /// Bytes reported as lost.
    pub lost: u64,
    /// Set if no byte may be lost, except for those that were not in the cache at the beginning.
    pub strict: bool,
    /// Set if the first byte of the stream may not be lost.
    pub from_first: bool,
    /// The degree to which it holds the stream back.
    pub gating: Gating,
    /// Set if its tool keeps up, so that it may lose nothing once it has read what there was.
    pub keeps_up: bool,
    /// The grouping of the bytes.
    pub grouping: Option<Grouping>,
    /// The position up to which it is to be read at least, once its tool has ended it.
    pub flush_until: Option<u64>,
    /// Bytes that the stream had at its end, as this registration was told.
    pub ended: Option<u64>,
}

/// A tool.
#[derive(Debug)]
pub struct Tool {
    /// Its behaviour.
    pub manner: Manner,
    /// Set if it is granted to hold sources back.
    pub may_block: bool,
    /// Set if it is stopped.
    pub paused: bool,
    /// Set if it was killed, and the engine has not noticed yet.
    pub killed: bool,
    /// Set if the engine has disconnected it.
    pub gone: bool,
    /// Set if the engine has ended without completing the streams.
    pub engine_gone: bool,
    /// Set if it sleeps on its doorbell.
    pub asleep: bool,
    /// Its reader page.
    pub page: Arc<ReaderPage>,
    bell: Bell,
    /// The streams that it reads.
    pub side: ReadingSide,
    /// Its registrations by their handlers.
    pub registrations: BTreeMap<u32, Registration>,
    /// Messages that it has not received.
    pub inbox: VecDeque<ToTool>,
    /// Messages that the engine has not received.
    pub outbox: VecDeque<FromTool>,
    /// Streams whose bytes it has borrowed.
    held: Vec<FeedId>,
    /// Streams that it has deferred.
    deferred: Vec<FeedId>,
    /// The total that it has read.
    pub summary: Summary,
    /// The rings of a hostile tool's readers.
    pub claimed: Vec<ReaderId>,
}

impl Tool {
    /// Creates a tool and its reader page.
    pub fn new(manner: Manner, may_block: bool) -> Tool {
        let (ringer, bell) = bell().expect("a bell");
        Tool {
            manner,
            may_block,
            paused: false,
            killed: false,
            gone: false,
            engine_gone: false,
            asleep: false,
            page: Arc::new(ReaderPage::on_heap(ringer)),
            bell,
            side: ReadingSide::default(),
            registrations: BTreeMap::new(),
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            held: Vec::new(),
            deferred: Vec::new(),
            summary: Summary::default(),
            claimed: Vec::new(),
        }
    }

    /// Returns whether it is honest and runs.
    pub fn reads(&self) -> bool {
        self.manner != Manner::Hostile && !self.paused && !self.killed && !self.gone
    }

    /// Returns whether something has woken it.
    fn is_woken(&self) -> bool {
        let rung = || {
            let mut polled = [PollFd::new(self.bell.as_fd(), PollFlags::POLLIN)];
            poll(&mut polled, PollTimeout::ZERO).is_ok_and(|found| found > 0)
        };
        !self.asleep || !self.inbox.is_empty() || self.side.has_due() || !self.deferred.is_empty() || rung()
    }

    /// Reads once, if it is awake: takes messages, reads what is ready, sends requests, and sleeps
    /// if there is nothing more. Returns whether it did anything.
    pub fn run(&mut self, rng: &mut Rng, eager: bool, room: &Arc<Ringer>) -> bool {
        if !self.reads() || !self.is_woken() {
            return false;
        }
        if std::mem::take(&mut self.asleep) {
            self.page.disarm();
            self.bell.silence();
        }
        let eager = eager || self.manner == Manner::Prompt;
        self.check_held();
        while let Some(message) = self.inbox.pop_front() {
            self.receive(message, room);
            if !eager && rng.chance(64) {
                break;
            }
        }
        self.side.take_ready(&self.page);
        if eager || rng.chance(128) {
            std::mem::take(&mut self.deferred).into_iter().for_each(|feed| self.side.rearm(feed));
        }
        for feed in self.side.active() {
            if eager || rng.chance(160) {
                self.read(feed, rng, eager);
            }
        }
        self.send_requests();
        self.side.take_ready(&self.page);
        if self.side.active().is_empty() && self.inbox.is_empty() {
            self.asleep = self.side.arm(&self.page);
        }
        true
    }

    fn receive(&mut self, message: ToTool, room: &Arc<Ringer>) {
        match message {
            ToTool::Ring { follows: Some(old), ring, .. } => {
                self.summary.follows += 1;
                // SAFETY: the engine's part in `server` keeps the protocol.
                unsafe { self.side.follow(old, ring) }
            }
            ToTool::Ring { handler, follows: None, ring } => {
                let Some(registration) = self.registrations.get(&handler) else { return };
                let rank = u32::try_from(registration.source.0).expect("a small number");
                let source = Proc::new(Nspace::new("job").expect("a valid name"), rank);
                let room = (registration.gating == Gating::Block).then(|| Arc::clone(room));
                let (start, grouping) = (registration.start, registration.grouping);
                let stream = StreamInfo { source, channel: Channel::Stdout, logged: false, run: 1 };
                let stream = NewStream { handler, stream, ring, start, room, grouping };
                // SAFETY: the engine's part in `server` keeps the protocol.
                unsafe { self.side.add(&self.page, stream) }.expect("the slot is there");
                if registration.flush_until.is_some() {
                    self.flush(handler);
                }
            }
            ToTool::Barrier(handler) => self.flush(handler),
        }
    }

    /// Ends a registration at the present position of its stream.
    fn flush(&mut self, handler: u32) {
        let unread = self.side.flush(handler);
        if let Some(registration) = self.registrations.get_mut(&handler) {
            registration.flush_until = Some(registration.next + unread);
        }
    }

    /// Reads what is in memory after the engine has ended, with the messages that have arrived.
    pub fn read_rest(&mut self, room: &Arc<Ringer>) {
        (self.paused, self.asleep, self.engine_gone) = (false, false, true);
        self.check_held();
        while let Some(message) = self.inbox.pop_front() {
            self.receive(message, room);
        }
        self.side.engine_gone();
        self.outbox.clear();
        for _ in 0..100 {
            self.asleep = false;
            self.run(&mut Rng::new(0), true, room);
        }
        assert!(self.side.is_empty(), "a reader does not end although the engine has: {self:?}");
    }

    /// Checks that the bytes which it has borrowed are still what they were.
    fn check_held(&mut self) {
        for feed in std::mem::take(&mut self.held) {
            let Some((handler, _)) = self.side.counts(feed) else { continue };
            let Some(registration) = self.registrations.get(&handler) else { continue };
            let right = bytes::are_of(registration.source.0, registration.next, self.side.bytes(feed));
            assert!(right, "borrowed bytes have changed: reader {handler} at {}", registration.next);
        }
    }

    /// Reads what a stream has next.
    fn read(&mut self, feed: FeedId, rng: &mut Rng, eager: bool) {
        // An eager tool reads until there is nothing more.
        for _ in 0..if eager { 1000 } else { 1 + rng.below(3) } {
            let Some((handler, _)) = self.side.counts(feed) else { return };
            let peeked = self.side.peek(feed);
            let Some(registration) = self.registrations.get_mut(&handler) else {
                panic!("reader {handler} has no registration");
            };
            match peeked {
                Peeked::Bytes => {
                    let found = self.side.bytes(feed);
                    assert!(!found.is_empty(), "reader {handler} found no bytes");
                    let most = if eager { found.len() } else { rng.size(found.len() as u64) as usize };
                    let right = bytes::are_of(registration.source.0, registration.next, &found[..most]);
                    let range = registration.next..registration.next + found.len() as u64;
                    check_times(&self.side.times(feed), &range);
                    assert!(right, "reader {handler} got wrong bytes at {}", registration.next);
                    if !eager && rng.chance(24) {
                        self.side.defer(feed);
                        self.deferred.push(feed);
                        return;
                    }
                    if !eager && rng.chance(48) {
                        self.held.push(feed);
                        return;
                    }
                    self.summary.delivered += most as u64;
                    registration.delivered += most as u64;
                    registration.next += most as u64;
                    let keep = !eager && rng.chance(48);
                    self.side.consume(feed, most, !keep);
                    if keep {
                        self.held.push(feed);
                        return;
                    }
                }
                Peeked::Gap(gap) => {
                    self.summary.lost += gap.lost;
                    registration.record_gap(handler, gap.offset, gap.lost);
                }
                // A source was closed with bytes in its pipe.
                Peeked::Complete(counts) | Peeked::Broken { counts, .. } => {
                    self.summary.ends += 1;
                    registration.ended = Some(counts.produced);
                    assert_eq!(counts.produced, registration.next, "reader {handler} ended too early");
                    return;
                }
                Peeked::Flushed => {
                    let until = registration.flush_until.expect("the registration was ended");
                    assert!(registration.next >= until, "reader {handler} was ended before {until}");
                    return;
                }
                Peeked::Gone(counts) => {
                    assert!(self.engine_gone, "the engine runs");
                    registration.ended = Some(counts.produced);
                    assert_eq!(counts.produced, registration.next, "reader {handler} ended too early");
                    return;
                }
                Peeked::Nothing => {
                    registration.strict |= registration.keeps_up;
                    return;
                }
            }
            registration.check(handler);
            let counts = self.side.counts(feed).map(|(_, counts)| counts).unwrap_or_default();
            let expected = (registration.delivered, registration.lost, registration.next);
            // A gap that is known but not reported yet is counted as lost already.
            let pending = counts.lost.saturating_sub(registration.lost);
            assert_eq!(
                (counts.delivered, counts.lost - pending, counts.produced - pending),
                expected,
                "reader {handler} counts differently"
            );
        }
    }

    /// Sends what follows from the reading.
    fn send_requests(&mut self) {
        let requests = self.side.settle();
        for (reader, handler, _) in requests.drained {
            self.outbox.push_back(FromTool::Drained(reader));
            if let Some(registration) = self.registrations.get(&handler) {
                assert!(
                    registration.flush_until.is_some() || registration.ended.is_some(),
                    "reader {handler} was dropped"
                );
            }
            self.registrations.remove(&handler);
        }
        self.outbox.extend(requests.follow.into_iter().map(FromTool::Follow));
    }

    /// Does what a hostile tool does.
    pub fn attack(&mut self, rng: &mut Rng, tail: u64) {
        while let Some(message) = self.inbox.pop_front() {
            if let ToTool::Ring { ring, .. } = message {
                self.claimed.push(ring.id);
            }
        }
        for _ in 0..1 + rng.below(8) {
            let any = ReaderId::from(rng.below(8) as u32);
            let id = if self.claimed.is_empty() || rng.chance(32) { any } else { rng.pick(&self.claimed) };
            match rng.below(8) {
                0..5 => {
                    let near = tail.wrapping_add(rng.below(1 << 15)).wrapping_sub(1 << 14);
                    let value = [0, u64::MAX, near, tail, rng.word(), rng.size(1 << 40)];
                    let value = rng.pick(&value);
                    self.page.overwrite(id, rng.below(6) as u32, value);
                }
                5 => self.page.overwrite_ready(id, rng.chance(128)),
                6 => {
                    for _ in 0..rng.size(50) {
                        self.outbox.push_back(FromTool::Follow(id));
                    }
                }
                _ => {
                    let drained = if rng.chance(64) { FromTool::Drained(id) } else { FromTool::Barrier(7) };
                    self.outbox.push_back(drained);
                }
            }
        }
    }
}

impl Registration {
    /// Begins to count, when the reader was attached to a stream with these counters.
    pub fn begin_at(&mut self, ring: &Attached, stats: StreamStats) {
        let is_oldest = self.start == Start::Oldest;
        self.begin = if is_oldest { 0 } else { ring.start + ring.dropped };
        self.next = self.begin;
        self.produced = stats.produced;
        self.unavailable = if is_oldest { stats.produced - stats.cached } else { 0 };
    }

    fn record_gap(&mut self, handler: u32, offset: u64, lost: u64) {
        assert_eq!(offset, self.next, "the gap of reader {handler} is elsewhere");
        assert!(lost > 0, "reader {handler} got an empty gap");
        let before = offset + lost <= self.produced && self.lost + lost <= self.unavailable;
        let allowed = if before { offset > 0 || !self.from_first } else { !self.strict };
        assert!(allowed, "reader {handler} lost {lost} bytes at {offset}: {self:?}");
        self.lost += lost;
        self.next += lost;
    }

    fn check(&self, handler: u32) {
        assert_eq!(self.begin + self.delivered + self.lost, self.next, "reader {handler}");
    }
}

/// Checks the times of bytes: each belongs to a position of `range`, and none runs backwards.
fn check_times(times: &[(u64, u64)], range: &Range<u64>) {
    let inside = times.iter().all(|(position, _)| range.contains(position));
    let ascending = times.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
    assert!(inside && ascending, "wrong times of bytes {range:?}: {times:?}");
}
