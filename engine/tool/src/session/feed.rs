//! Feeds: a feed is one stream of a registration, as a tool reads it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use iof_proto::{Channel, Proc};
use iof_shm_ring::{Attached, Behind, Gap, LastRead, OpenError, Peek, Reader, ReaderId, ReaderPage, Start};

use self::range::Range;
use crate::direct::{DirectItem, DirectReader};

mod range;

/// The next item of a stream, see [`BatchReader::peek`](crate::BatchReader::peek).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peeked {
    /// Bytes, which [`BatchReader::bytes`](crate::BatchReader::bytes) returns.
    Bytes,
    /// Missing bytes at this position.
    Gap(Gap),
    /// Nothing can be read at present.
    Nothing,
    /// The end of a complete stream: every byte of it was consumed or reported as a gap.
    Complete(Counts),
    /// The end of a broken stream. The bytes that arrived were consumed or reported as gaps, and
    /// its process may have written more.
    Broken {
        /// The counters up to this point.
        counts: Counts,
        /// The number of further bytes that the process has written, at least.
        missing: u64,
    },
    /// The end of a stream whose engine disconnected before the stream was complete.
    Gone(Counts),
    /// The end of a stream whose registration is being [ended](crate::Tool::deregister). All bytes that
    /// were unread at that time were consumed.
    Flushed,
}

/// The byte counters of a stream, up to the reader's position.
///
/// From [`Position::Oldest`](iof_proto::Position::Oldest) on, a registration covers a stream from its first byte, and
/// `delivered + lost == produced`. Otherwise `delivered + lost` is the number of bytes behind the
/// [position](crate::Pull::from).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes that the source has produced since it began.
    pub produced: u64,
    /// Bytes delivered to this registration.
    pub delivered: u64,
    /// Bytes reported to this registration as gaps.
    pub lost: u64,
    /// The offset at which the registration or [`Tool::begin_at`](crate::Tool::begin_at) makes the stream begin.
    pub begin: u64,
}

impl Counts {
    /// Returns, for a complete stream, whether it has ended before the offset at which it was to begin: the bytes that
    /// were asked for have never existed.
    pub fn ends_early(&self) -> bool {
        self.produced < self.begin
    }
}

/// Creates a reader of a ring that the engine sent.
///
/// The engine is trusted to keep the ring's protocol: it never writes to what a reader borrows. It
/// takes a slot back only when the tool has declared that it no longer uses the slot, by requesting
/// the next generation, by reporting the stream as drained, or by ending the registration. `Feed`
/// and `Tool` declare this only once their readers no longer use the slot.
pub(crate) fn reader(ring: Attached, page: Arc<ReaderPage>, start: Start) -> Result<Reader, OpenError> {
    // SAFETY: the engine sent the ring and id for one reader, which is created here. The engine
    // keeps the protocol described above.
    unsafe { Reader::new(ring, page, start) }
}

/// Moves `reader` to the generation that the engine sent to follow the reader's own.
fn follow(reader: &mut Reader, ring: Attached) -> Result<(), OpenError> {
    // SAFETY: the engine sent this generation for this one reader, and keeps the protocol described
    // at `reader`.
    unsafe { reader.follow(ring) }
}

/// The source of a feed.
enum Input {
    Ring(Reader),
    Direct(DirectReader),
}

/// Calls a method that both kinds of readers have.
macro_rules! read {
    ($input:expr, $reader:ident => $call:expr) => {
        match $input {
            Input::Ring($reader) => $call,
            Input::Direct($reader) => $call,
        }
    };
}

/// The reading side of one stream of one registration.
///
/// Invariant: `delivered + lost` equals what the source has produced between the beginning of the
/// feed and the reader's position.
pub(crate) struct Feed {
    handler: u32,
    source: Proc,
    channel: Channel,
    logged: bool,
    /// The number of the source's job among those of its name.
    run: u64,
    input: Input,
    next: VecDeque<Attached>,
    state: State,
    flush: Flush,
    range: Range,
    /// Set if this is one of the tool's active feeds.
    pub(crate) active: bool,
    /// When the tool must check again for bytes that are held back.
    pub(crate) due: Option<Instant>,
    /// The bytes delivered up to the last call of [`Feed::take_read`].
    read_before: u64,
    /// Set if the last peek found nothing.
    settled: bool,
}

/// The identity of a feed's stream.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamInfo {
    /// The process that writes the stream.
    pub source: Proc,
    /// The channel on which it writes.
    pub channel: Channel,
    /// Set if the stream contains what was logged on behalf of the source.
    pub logged: bool,
    /// The number of the source's job among those of its name.
    pub run: u64,
}

/// The point up to which the feed must be read before its registration ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flush {
    /// The registration is not being ended.
    No,
    /// This generation, and what the next one contains when it arrives.
    Generation,
    /// Up to this position.
    UpTo(u64),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// Drained and sealed: the engine must be asked for the next generation.
    Drained,
    /// The engine was asked for the next generation.
    Requested,
    Over,
}

impl Feed {
    /// Returns the feed of a stream that is read from rings. `reader` reads the first one.
    pub(crate) fn new(handler: u32, stream: StreamInfo, reader: Reader) -> Self {
        Feed::over(handler, stream, Input::Ring(reader))
    }

    /// Returns the feed of a stream that another thread of this process pushes.
    pub(crate) fn direct(handler: u32, stream: StreamInfo) -> Self {
        Feed::over(handler, stream, Input::Direct(DirectReader::default()))
    }

    fn over(handler: u32, stream: StreamInfo, input: Input) -> Self {
        let StreamInfo { source, channel, logged, run } = stream;
        Feed {
            handler,
            source,
            channel,
            logged,
            run,
            input,
            next: VecDeque::new(),
            state: State::Open,
            flush: Flush::No,
            range: Range::default(),
            active: false,
            due: None,
            read_before: 0,
            settled: false,
        }
    }

    /// Returns the identity of the stream.
    #[cfg(feature = "test-utils")]
    pub(crate) fn info(&self) -> StreamInfo {
        let Feed { source, channel, logged, run, .. } = self;
        StreamInfo { source: source.clone(), channel: *channel, logged: *logged, run: *run }
    }

    /// Returns the next item. After [`Peeked::Bytes`], [`Feed::bytes`] returns the bytes in place
    /// until they are consumed.
    ///
    /// A feed stays active until this returns neither bytes nor a gap. Once it has returned an end,
    /// every call returns the end again.
    pub(crate) fn next(&mut self) -> Peeked {
        let item = self.peek();
        self.settled = !matches!(item, Peeked::Bytes | Peeked::Gap(_));
        if self.settled && item != Peeked::Nothing {
            self.state = State::Over;
        }
        item
    }

    /// Returns whether the next item is bytes, and neither a gap nor an end follows them.
    pub(crate) fn has_only_bytes(&self) -> bool {
        self.state == State::Open
            && (self.flush, self.range) == (Flush::No, Range::default())
            && read!(&self.input, reader => reader.has_only_bytes())
    }

    fn peek(&mut self) -> Peeked {
        if self.awaits_lines() {
            return Peeked::Nothing;
        }
        loop {
            self.apply_times();
            match read!(&mut self.input, reader => reader.peek()) {
                Peek::Bytes if self.is_flushed() => {
                    self.release();
                    return Peeked::Flushed;
                }
                Peek::Bytes => return Peeked::Bytes,
                Peek::Gap(gap) => return Peeked::Gap(gap),
                Peek::Ended => return Peeked::Complete(self.counts()),
                Peek::Broken { missing } => return Peeked::Broken { counts: self.counts(), missing },
                end @ (Peek::Sealed | Peek::Gone) => {
                    // `follow` can't fail: the slot was checked when the message arrived.
                    if let Input::Ring(reader) = &mut self.input
                        && let Some(next) = self.next.pop_front()
                        && follow(reader, next).is_ok()
                    {
                        self.state = State::Open;
                        if self.flush == Flush::Generation {
                            self.flush();
                        }
                        continue;
                    }
                    if self.is_flushed() {
                        return Peeked::Flushed;
                    }
                    if end == Peek::Gone {
                        return Peeked::Gone(self.counts());
                    }
                    if self.state == State::Open {
                        self.state = State::Drained;
                    }
                }
                Peek::Empty if self.is_flushed() => return Peeked::Flushed,
                Peek::Empty => {}
            }
            return Peeked::Nothing;
        }
    }

    /// Ends the feed at the stream's present position: unread bytes before it are delivered, in
    /// complete groups or not, and none after it. If the tool is a generation behind, the position
    /// is determined when the tool reaches the next generation.
    pub(crate) fn flush(&mut self) {
        self.find_lines();
        if let Input::Ring(reader) = &mut self.input {
            reader.group(None);
        }
        self.flush = read!(&self.input, reader => reader.newest()).map_or(Flush::Generation, Flush::UpTo);
    }

    /// Returns the position at which the feed ends, if that is known.
    fn end(&self) -> Option<u64> {
        let flushed = if let Flush::UpTo(end) = self.flush { Some(end) } else { None };
        flushed.into_iter().chain(self.range.end).min()
    }

    fn is_flushed(&self) -> bool {
        self.end().is_some_and(|end| self.position() >= end)
    }

    /// Returns the bytes that [`Feed::next`] found, contiguous and in place. They stay valid while
    /// they are borrowed, whatever the engine does.
    pub(crate) fn bytes(&self) -> &[u8] {
        let bytes = read!(&self.input, reader => reader.bytes());
        let Some(end) = self.end() else { return bytes };
        let limit = usize::try_from(end.saturating_sub(self.position())).unwrap_or(usize::MAX);
        bytes.get(..limit).unwrap_or(bytes)
    }

    /// Consumes the first `n` bytes (at most all), which counts them as delivered.
    pub(crate) fn consume(&mut self, n: usize) {
        read!(&mut self.input, reader => reader.consume(n));
    }

    /// Permits the engine to overwrite the remaining bytes, if its policy is to do so. Otherwise
    /// they are found again.
    pub(crate) fn release(&mut self) {
        if let Input::Ring(reader) = &mut self.input {
            reader.release();
        }
    }

    /// Returns whether the stream contains what was logged on behalf of the source.
    pub(crate) fn is_logged(&self) -> bool {
        self.logged
    }

    /// Returns the process that writes the stream.
    pub(crate) fn source(&self) -> &Proc {
        &self.source
    }

    /// Returns the number of the source's job among those of its name.
    pub(crate) fn run(&self) -> u64 {
        self.run
    }

    /// Returns the channel that the process writes to.
    pub(crate) fn channel(&self) -> Channel {
        self.channel
    }

    /// Returns the handler of the registration that this feed belongs to.
    pub(crate) fn handler(&self) -> u32 {
        self.handler
    }

    pub(crate) fn counts(&self) -> Counts {
        let begin = if let Input::Ring(reader) = &self.input { reader.begin() } else { 0 };
        read!(&self.input, reader => Counts {
            produced: reader.produced(),
            delivered: reader.delivered(),
            lost: reader.lost(),
            begin,
        })
    }

    /// Returns when the byte at the reader's position was read from its source, see
    /// [`Reader::time`].
    pub(crate) fn time(&self) -> Option<u64> {
        read!(&self.input, reader => reader.time())
    }

    /// Returns the newest read of the stream, see [`Reader::last_read`].
    pub(crate) fn last_read(&self) -> Option<LastRead> {
        read!(&self.input, reader => reader.last_read())
    }

    /// Appends the offsets and times of the bytes, see [`Reader::times`].
    pub(crate) fn times(&self, times: &mut Vec<(u64, u64)>) {
        let first = times.len();
        read!(&self.input, reader => reader.times(times));
        // The reader has borrowed more bytes than the feed returns if the feed ends before.
        let end = self.counts().produced.saturating_add(self.bytes().len() as u64);
        let returned = times.iter().skip(first).take_while(|(offset, _)| *offset < end).count();
        times.truncate(first.saturating_add(returned));
    }

    /// Returns what follows [`Feed::bytes`].
    pub(crate) fn behind(&self) -> Behind {
        let position = self.position().saturating_add(self.bytes().len() as u64);
        match self.end() {
            Some(end) if position >= end => Behind::Nothing,
            _ => read!(&self.input, reader => reader.behind()),
        }
    }

    /// Returns the capacity of the stream's ring in bytes; 0 without a ring, whose bytes are not to
    /// wait.
    pub(crate) fn capacity(&self) -> u64 {
        self.reader().map_or(0, |reader| reader.ring().capacity())
    }

    fn reader(&self) -> Option<&Reader> {
        if let Input::Ring(reader) = &self.input { Some(reader) } else { None }
    }

    fn position(&self) -> u64 {
        read!(&self.input, reader => reader.position())
    }

    /// Adds an item of a stream without rings.
    pub(crate) fn push(&mut self, item: DirectItem) {
        if let Input::Direct(reader) = &mut self.input {
            reader.push(item);
        }
    }

    /// Returns whether the stream has no rings.
    pub(crate) fn is_direct(&self) -> bool {
        matches!(self.input, Input::Direct(_))
    }

    /// Leaves what was found unread: the feed is not peeked at again before there is more.
    pub(crate) fn defer(&mut self) {
        self.settled = true;
    }

    /// Returns the bytes consumed since the last call, and how many percent of the ring they were.
    pub(crate) fn take_read(&mut self) -> (u64, u64) {
        let delivered = self.counts().delivered;
        let read = delivered.saturating_sub(self.read_before);
        self.read_before = delivered;
        let percent = read.saturating_mul(100).checked_div(self.capacity());
        (read, percent.unwrap_or(0))
    }

    /// Returns whether the writer waits for a reader, or the next generation has not arrived yet.
    pub(crate) fn is_stalled(&self) -> bool {
        matches!(self.state, State::Drained | State::Requested)
            || self.reader().is_some_and(Reader::writer_waits)
    }

    /// Returns when to check again for bytes that are held back.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.reader().and_then(Reader::deadline)
    }

    /// Returns the reader's id in the newest ring; `None` without rings.
    pub(crate) fn reader_id(&self) -> Option<ReaderId> {
        self.next.back().map(|next| next.id).or(self.reader().map(Reader::id))
    }

    /// Returns the number of stored bytes that it has not read in its present ring.
    #[cfg(feature = "test-utils")]
    pub(crate) fn unread(&self) -> u64 {
        read!(&self.input, reader => reader.newest())
            .map_or(0, |newest| newest.saturating_sub(self.position()))
    }

    /// Returns the rings that it reads now and later.
    #[cfg(feature = "test-utils")]
    pub(crate) fn rings(&self) -> impl Iterator<Item = &iof_shm_ring::Ring> {
        self.reader().map(Reader::ring).into_iter().chain(self.next.iter().map(|next| &*next.ring))
    }

    /// Queues the next generation, which is followed once this one is drained.
    pub(crate) fn push_next(&mut self, next: Attached) {
        self.next.push_back(next);
    }

    /// Returns the reader's id, once, if the engine must be asked for the next generation.
    pub(crate) fn take_drained(&mut self) -> Option<ReaderId> {
        if self.state != State::Drained {
            return None;
        }
        self.state = State::Requested;
        self.reader().map(Reader::id)
    }

    pub(crate) fn engine_gone(&mut self) {
        read!(&mut self.input, reader => reader.set_writer_gone());
    }

    /// Marks the feed as worth another peek, because there may be more to read.
    pub(crate) fn wake(&mut self) {
        self.settled = false;
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.settled
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Over
    }
}
