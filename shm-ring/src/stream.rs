//! A stream: the newest generation with its writer, the readers, and the handling of readers that
//! are in the writer's way.
//!
//! **The stream moves, not the reader's bytes.** When a reader that may not hold the source back is
//! in the way, the generation is sealed and the stream continues in a fresh one. Readers that kept
//! up are *due* in the new generation from its first byte. The slow reader keeps the old generation
//! to itself and follows when it has drained it.

use std::fmt;
use std::sync::Arc;

use crate::error::CreateError;
use crate::memory::budget::{CacheBudget, OwedRing};
use crate::offset::Offset;
use crate::ring::times::ReadTurn;
use crate::ring::writer::{ClaimError, Writer};
use crate::ring::{Ring, Shape};
use crate::sync::{Point, broken};

mod allocation;
mod generations;
mod growth;
mod input;
mod member;
pub(crate) mod notify;
mod readers;
mod reconfigure;
#[cfg(all(test, not(loom)))]
mod tests;

pub use growth::Growth;
use member::{Member, Newest, effective_pin, lowest_pin};
use reconfigure::PendingConfig;

/// A claim takes at most the ring's capacity divided by this. Late readers lose what is claimed,
/// and a source that waits for readers is woken only when this much room is free.
const CLAIM_PART: u64 = 4;
/// Number of times that pinned positions which keep changing are loaded before the stream moves
/// away from them.
const CLAIM_TRIES: u32 = 4;

/// The action when a cache is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Policy {
    /// New bytes are dropped until there is room (`PMIX_IOF_DROP_NEWEST`, the default of RFC0025).
    DropNewest,
    /// The oldest bytes are overwritten (`PMIX_IOF_DROP_OLDEST`).
    DropOldest,
    /// The source waits for the readers that may hold it back. All other readers are treated as
    /// under [`Policy::DropNewest`].
    Block,
}

/// The parameters of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// Size of the cache in bytes (`PMIX_IOF_CACHE_SIZE`), rounded up to whole pages.
    pub capacity: u64,
    /// Action when the cache is full.
    pub policy: Policy,
}

/// Room in the ring for the next bytes.
#[derive(Debug)]
pub struct Span {
    /// Address for the bytes. Valid until the stream is dropped or a method changes it. A caller
    /// that passes the address to the kernel must neither change nor drop the stream until the
    /// kernel has finished. All bytes written here must be committed: under drop oldest, the memory
    /// contained the oldest bytes of the ring, and readers may still read it as such if the bytes
    /// are not committed.
    pub ptr: *mut u8,
    /// Greatest number of bytes to write.
    pub len: usize,
}

/// The result of [`Stream::reserve`].
#[derive(Debug)]
pub enum Reserve {
    /// There is room: write here, then [`Stream::commit`].
    Ready(Span),
    /// The cache is full and the newest bytes must be dropped: read them from the source and count
    /// them with [`Stream::discard`].
    Discard,
    /// The cache is full and the source must wait. A reader rings the room bell when there is room.
    /// Call again also when a reader was detached or has followed to another generation.
    Wait,
    /// The kernel has no memory or descriptor for the next generation or for the bytes, and a
    /// reader that may hold the source back must not lose them. Call again after a short time.
    Later,
}

/// The counters of a stream at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamStats {
    /// Bytes that were read from the source.
    pub produced: u64,
    /// Bytes that a tool attaching now would get from the cache.
    pub cached: u64,
    /// Bytes dropped instead of stored.
    pub dropped: u64,
    /// Number of the newest generation.
    pub generation: u64,
    /// Set if the stream has ended.
    pub complete: bool,
    /// Bytes that are known to be missing at the end, if the stream is broken.
    pub missing: Option<u64>,
}

/// The output of one source, such as one output channel of a process.
///
/// It is not shared between threads, but may be moved between them.
pub struct Stream {
    writer: Writer,
    policy: Policy,
    members: Vec<Member>,
    complete: bool,
    /// The bytes that are known to be missing at the end, if the stream is broken.
    missing: Option<u64>,
    /// Set if the ring may contain a request for room.
    waiting: bool,
    label: String,
    /// The requested options, which take effect when nothing is in flight and no reader loses a
    /// byte by the change.
    pending: Option<PendingConfig>,
    /// The configured capacity of a stream that began in a small ring.
    full_size: Option<u64>,
    /// Set if the stream is in a small ring, and no reader needs a larger one.
    is_small: bool,
    /// The budget against which its rings count.
    budget: Option<Arc<CacheBudget>>,
    /// Length of the last span, and whether the bytes committed into it filled it.
    span_len: u64,
    filled: bool,
    /// A ring that its last reader has left. The next generation reuses it and so needs no page
    /// faults.
    spare: Option<Arc<Ring>>,
    /// Its part in the order of reads that it shares with other streams.
    turn: Option<ReadTurn>,
    /// Set if another of these streams was read before the last read of this one.
    alternates: bool,
    /// The word that tells readers who may answer the process, see [`crate::ring::interaction`].
    interaction: u64,
    /// When the process was last given stdin, in nanoseconds since 1970.
    given_time: u64,
    new_ring: fn(Shape<'_>) -> Result<Ring, CreateError>,
    /// The first ring, while it has no memory.
    owed: Option<OwedRing>,
    /// Why the first ring has no memory, until that is reported.
    refusal: Option<CreateError>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("label", &self.label)
            .field("policy", &self.policy)
            .field("stats", &self.stats())
            .field("readers", &self.members.len())
            .finish_non_exhaustive()
    }
}

impl Stream {
    /// Creates a stream in shared memory. `label` describes it to inspectors of its rings; it is
    /// cut after [`MAX_LABEL`](crate::MAX_LABEL) bytes.
    ///
    /// # Errors
    /// [`CreateError`] if the capacity is 0 or above [`MAX_CAPACITY`](crate::MAX_CAPACITY), or if
    /// the kernel has no memory or descriptor for it.
    pub fn create(config: StreamConfig, label: &str) -> Result<Stream, CreateError> {
        Stream::with(config, label, Ring::create)
    }

    /// Creates a stream as [`Stream::create`] does, if that leaves a file to each stream with this
    /// budget that has no memory yet. The stream itself does not count against the budget.
    ///
    /// # Errors
    /// As [`Stream::create`], also if too few files are left.
    pub fn create_beside(
        config: StreamConfig,
        label: &str,
        budget: &CacheBudget,
    ) -> Result<Stream, CreateError> {
        let stream = Stream::create(config, label)?;
        budget.check(stream.writer.ring().as_fd(), stream.writer.ring().capacity())?;
        Ok(stream)
    }

    /// Creates a stream on the heap, for the model checker, Miri and benchmarks.
    ///
    /// # Errors
    /// As [`Stream::create`].
    #[cfg(any(loom, feature = "test-utils"))]
    pub fn on_heap(config: StreamConfig) -> Result<Stream, CreateError> {
        Stream::with(config, "", Ring::on_heap)
    }

    fn with(
        config: StreamConfig,
        label: &str,
        new_ring: fn(Shape<'_>) -> Result<Ring, CreateError>,
    ) -> Result<Stream, CreateError> {
        let overwrite = config.policy == Policy::DropOldest;
        let shape = Shape { capacity: config.capacity, generation: 0, base: 0, dropped: 0, overwrite, label };
        let writer = Writer::new(Arc::new(new_ring(shape)?), 0);
        Ok(Stream {
            writer,
            policy: config.policy,
            members: Vec::new(),
            complete: false,
            missing: None,
            waiting: false,
            label: label.to_owned(),
            pending: None,
            full_size: None,
            is_small: false,
            budget: None,
            span_len: 0,
            filled: false,
            spare: None,
            turn: None,
            alternates: false,
            interaction: 0,
            given_time: 0,
            new_ring,
            owed: None,
            refusal: None,
        })
    }

    /// Makes the times of the bytes show the order in which `streams` are read, such as the output
    /// channels of one process. Without this, reads of a stream that are less than 0.1 ms apart
    /// have the same time ([`Reader::times`](crate::Reader::times)), even if another stream was
    /// read in between.
    ///
    /// One thread must commit to all of these streams, and each commit must have a later time than
    /// the one before it.
    pub fn share_order(streams: &mut [Stream]) {
        for (turn, stream) in ReadTurn::order(streams.len() as u64).zip(streams) {
            stream.turn = Some(turn);
        }
    }

    /// Returns what tells the [read order](Stream::share_order) of this stream from those of other
    /// streams that exist; `None` if it shares none.
    pub fn order(&self) -> Option<usize> {
        self.turn.as_ref().map(ReadTurn::order_id)
    }

    /// Returns whether a reader that may hold the source back is still in an older generation.
    /// Another generation would cost it the bytes in this one.
    fn has_due_blocker(&self) -> bool {
        self.blockers().any(|member| member.due)
    }

    /// Returns the readers that may hold the source back, and so must not lose bytes.
    fn blockers(&self) -> impl Iterator<Item = &Member> {
        let block = self.policy == Policy::Block;
        self.members.iter().filter(move |member| block && member.may_block)
    }

    /// Returns the result of [`Stream::reserve`] if there is room but no memory for the bytes:
    /// [`Reserve::Later`] if a reader may hold the source back, otherwise [`Reserve::Discard`].
    pub fn without_memory(&self) -> Reserve {
        if self.blockers().next().is_some() { Reserve::Later } else { Reserve::Discard }
    }

    /// Reserves room for up to `want` bytes, under the stream's policy.
    #[inline]
    pub fn reserve(&mut self, want: usize) -> Reserve {
        if self.pending.is_none() && self.writer.claimed_bytes() >= want as u64 && want > 0 && !self.complete
        {
            return Reserve::Ready(self.span(want as u64));
        }
        self.reserve_carefully(want)
    }

    fn reserve_carefully(&mut self, want: usize) -> Reserve {
        if self.complete {
            return Reserve::Discard;
        }
        if self.members.is_empty() && self.writer.is_untouched() {
            // All that late readers will find is in this ring.
            self.grow();
        }
        if let Err(error) = self.allocate() {
            if self.budget.as_ref().is_some_and(|budget| budget.is_first_refusal()) {
                self.refusal = Some(error);
            }
            return self.without_memory();
        }
        self.apply_pending(want as u64);
        let (want, min) = self.claim_sizes(want as u64);
        if self.writer.claimed_bytes() >= want {
            return Reserve::Ready(self.span(want));
        }
        for _ in 0..CLAIM_TRIES {
            let error = match self.claim(want, min) {
                Ok(len) => return Reserve::Ready(self.span(len)),
                Err(error) => error,
            };
            if self.must_wait(min) {
                return Reserve::Wait;
            }
            let blocking = self.members.iter().filter(|member| self.is_in_the_way(member, min)).count();
            // A reader that keeps an older generation to itself does not count for this one.
            let present =
                self.members.iter().filter(|member| member.due || self.reads_newest(member)).count();
            if blocking == present && blocking > 0 && self.policy != Policy::DropOldest {
                return Reserve::Discard;
            }
            if blocking > 0 || error == ClaimError::IndexFull {
                break;
            }
        }
        if self.has_due_blocker() {
            return Reserve::Wait;
        }
        // A reader is in the way while others keep up, or keeps changing its pinned position, or
        // the index is full.
        if self.move_away().is_err() {
            return self.without_memory();
        }
        let (want, min) = self.claim_sizes(want);
        // In a fresh ring no reader pins more than the first byte.
        self.claim(want, min).map_or(Reserve::Discard, |len| Reserve::Ready(self.span(len)))
    }

    /// Returns the number of bytes to claim for `want`, and the least number that is worth a claim.
    fn claim_sizes(&self, want: u64) -> (u64, u64) {
        let want = want.clamp(1, self.largest_claim());
        let min = match self.policy {
            Policy::DropNewest => 1,
            // A claim that a borrowed slice cuts short is not worth a read; a fresh generation is
            // better.
            Policy::DropOldest => want,
            // The source must not be woken for each byte.
            Policy::Block => want.min(self.claim_part()),
        };
        (want, min)
    }

    /// Returns whether the source must wait for a reader that may hold it back. If so, that reader
    /// will ring the room bell.
    fn must_wait(&mut self, room: u64) -> bool {
        if !self.is_blocked(room) {
            return false;
        }
        self.waiting = true;
        self.writer.wait_for(room);
        // A reader may have moved before it could see the request.
        broken(Point::WantedCheck) || self.is_blocked(room)
    }

    fn is_blocked(&self, room: u64) -> bool {
        self.blockers().any(|member| self.is_in_the_way(member, room))
    }

    fn is_in_the_way(&self, member: &Member, room: u64) -> bool {
        effective_pin(member, self.newest(), self.writer.floor()) < self.needed(room)
    }

    /// Returns the position below which the next `room` bytes overwrite.
    fn needed(&self, room: u64) -> u64 {
        self.writer.tail().after(room).saturating_sub(self.writer.ring().capacity())
    }

    fn span(&mut self, len: u64) -> Span {
        if self.waiting {
            self.waiting = false;
            self.writer.stop_waiting();
        }
        self.span_len = len;
        Span { ptr: self.writer.tail_address(), len: usize::try_from(len).unwrap_or(0) }
    }

    fn claim(&mut self, want: u64, min: u64) -> Result<u64, ClaimError> {
        let newest = self.newest();
        let members = &self.members;
        self.writer.reserve(want, min, |floor| lowest_pin(members, newest, floor))
    }

    fn newest(&self) -> Newest {
        let ring = self.writer.ring();
        Newest { generation: ring.generation(), base: ring.base(), overwrite: ring.overwrite() }
    }

    fn reads_newest(&self, member: &Member) -> bool {
        member.ring.generation() == self.writer.ring().generation()
    }

    /// Publishes the `n` bytes written into the last [`Span`], which were read from the source at
    /// `time` (nanoseconds since 1970).
    pub fn commit(&mut self, n: usize, time: u64) {
        if !self.complete {
            self.alternates = self.turn.as_ref().is_some_and(ReadTurn::take);
            self.filled = n as u64 >= self.span_len;
            self.writer.commit(n as u64, time, self.alternates);
            self.trim_claim();
        }
    }

    /// Counts `n` bytes of the source, which were read at `time` and not stored, as dropped.
    pub fn discard(&mut self, n: u64, time: u64) {
        if !self.complete {
            self.allocate_words();
            self.writer.discard(n, time);
        }
    }

    /// Stores `bytes` as far as the policy allows and drops the rest. Returns the number of bytes
    /// stored or dropped: all of them, unless the source must wait or try again later.
    pub fn push(&mut self, bytes: &[u8], time: u64) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut reserve = self.reserve(rest.len());
            if let Reserve::Ready(span) = &reserve {
                let (now, later) = rest.split_at(span.len.min(rest.len()));
                if self.writer.store(now) {
                    self.commit(now.len(), time);
                    rest = later;
                    continue;
                }
                reserve = self.without_memory();
            }
            if matches!(reserve, Reserve::Discard) {
                self.discard(rest.len() as u64, time);
                rest = &[];
            }
            break;
        }
        bytes.len().saturating_sub(rest.len())
    }

    /// Completes the stream, after its last byte. Later commits and drops are ignored.
    pub fn complete(&mut self) {
        self.end(None);
    }

    /// Ends the stream although its source may have produced more: at least `missing` bytes.
    /// Readers then end with [`Peek::Broken`](crate::Peek::Broken). Later commits and drops are
    /// ignored. Has no effect on a complete stream.
    pub fn break_off(&mut self, missing: u64) {
        self.end(Some(missing));
    }

    fn end(&mut self, missing: Option<u64>) {
        if !self.complete {
            self.complete = true;
            self.missing = missing;
            self.spare = None;
            self.owed = None;
            if missing.is_some() {
                self.allocate_words();
            }
            if self.is_unallocated() {
                self.writer.ring().end_empty();
            } else {
                self.writer.end(missing);
            }
        }
    }

    /// Returns the description with which the stream was created.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the policy.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Returns the counters.
    pub fn stats(&self) -> StreamStats {
        StreamStats {
            produced: self.writer.tail().after(self.writer.dropped()),
            cached: self.writer.tail().since(self.writer.floor()),
            dropped: self.writer.dropped(),
            generation: self.writer.ring().generation(),
            complete: self.complete,
            missing: self.missing,
        }
    }
}
