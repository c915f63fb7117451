//! A feed: one stream of a registration, as a tool reads it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use iof_proto::{Channel, Proc};
use iof_shm_ring::{Attached, Behind, Gap, OpenError, Peek, Reader, ReaderPage, Start};

use crate::adaptive_polling::LARGE_PART;

/// What comes next in a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// [`Feed::bytes`] gives bytes; consume them, some of them, or come back later.
    Bytes,
    /// Bytes are missing here.
    Gap(Gap),
    /// Nothing now; `Tool::poll` says when there is more.
    Quiet,
    /// The stream is complete and every byte of it was consumed or reported as a gap.
    Ended,
    /// The engine went away before the stream was complete; what was in memory has been read.
    Gone,
    /// What there was when its registration was to end was consumed; what came since is nobody's.
    Flushed,
}

/// How far a stream was read, in bytes.
///
/// What a registration gets begins with the stream, or where the stream was when the registration
/// was made, if that left out the backlog. From there on `delivered + lost` is what the source has
/// produced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// What the source has produced since it began, as far as it was read.
    pub produced: u64,
    /// Handed out to this registration.
    pub delivered: u64,
    /// Reported to this registration as gaps.
    pub lost: u64,
}

/// A reader of what the engine sent.
///
/// The engine is trusted to keep the ring's protocol: it writes nothing that a reader borrows, and
/// takes a slot back only when the tool has said by asking for the next generation, or by ending
/// the registration, that it is done with it. `Feed` and `Tool` say so only when their readers are.
pub(crate) fn reader(given: Attached, page: Arc<ReaderPage>, start: Start) -> Result<Reader, OpenError> {
    // SAFETY: the engine sent it for one reader, which is made here; see above.
    unsafe { Reader::new(given, page, start) }
}

/// Brings `reader` to the generation that the engine sent to follow its own.
fn follow(reader: &mut Reader, given: Attached) -> Result<(), OpenError> {
    // SAFETY: as above.
    unsafe { reader.follow(given) }
}

/// One source and channel of one registration.
///
/// For every feed, at every moment: `delivered + lost` is what the source has produced up to the
/// cursor, since the feed began.
pub(crate) struct Feed {
    handler: u32,
    source: Proc,
    channel: Channel,
    logged: bool,
    /// The run of the job's name that the source belongs to.
    run: u64,
    reader: Reader,
    next: VecDeque<Attached>,
    state: State,
    flush: Flush,
    /// Among the tool's active feeds.
    pub(crate) active: bool,
    /// When the tool is to look again, for bytes that are held back.
    pub(crate) due: Option<Instant>,
    /// Consumed when [`Feed::take_read`] was called.
    read_before: u64,
    /// The last look found nothing.
    settled: bool,
}

/// Which stream a feed is of.
pub(crate) struct StreamOf {
    pub source: Proc,
    pub channel: Channel,
    /// It is what was logged there.
    pub logged: bool,
    /// The run of the job's name that the source belongs to.
    pub run: u64,
}

/// What is still to be read before the registration ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flush {
    /// It does not end.
    No,
    /// This generation, and what is in the next one when it comes.
    Generation,
    /// Up to this position.
    UpTo(u64),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// Drained and sealed: the engine must be asked for the next generation.
    Asking,
    /// Asked.
    Asked,
    Over,
}

impl Feed {
    pub(crate) fn new(handler: u32, stream: StreamOf, reader: Reader) -> Self {
        let StreamOf { source, channel, logged, run } = stream;
        Feed {
            handler,
            source,
            channel,
            logged,
            run,
            reader,
            next: VecDeque::new(),
            state: State::Open,
            flush: Flush::No,
            active: false,
            due: None,
            read_before: 0,
            settled: false,
        }
    }

    /// What comes next. After [`Item::Bytes`], [`Feed::bytes`] gives it in place, until it is
    /// consumed.
    ///
    /// A feed is active until this has given neither bytes nor a gap. An end comes again with every
    /// call.
    pub(crate) fn next(&mut self) -> Item {
        let item = self.look();
        self.settled = !matches!(item, Item::Bytes | Item::Gap(_));
        if matches!(item, Item::Ended | Item::Gone | Item::Flushed) {
            self.state = State::Over;
        }
        item
    }

    fn look(&mut self) -> Item {
        loop {
            match self.reader.peek() {
                Peek::Bytes if self.is_flushed() => {
                    self.reader.release();
                    return Item::Flushed;
                }
                Peek::Bytes => return Item::Bytes,
                Peek::Gap(gap) => return Item::Gap(gap),
                Peek::Ended => return Item::Ended,
                end @ (Peek::Sealed | Peek::Gone) => {
                    // The slot was checked when the message came.
                    if let Some(next) = self.next.pop_front()
                        && follow(&mut self.reader, next).is_ok()
                    {
                        self.state = State::Open;
                        if self.flush == Flush::Generation {
                            self.flush();
                        }
                        continue;
                    }
                    if self.is_flushed() {
                        return Item::Flushed;
                    }
                    if end == Peek::Gone {
                        return Item::Gone;
                    }
                    if self.state == State::Open {
                        self.state = State::Asking;
                    }
                }
                Peek::Empty if self.is_flushed() => return Item::Flushed,
                Peek::Empty => {}
            }
            return Item::Quiet;
        }
    }

    /// Ends the feed where the stream is now: what is unread up to there comes, in groups or not,
    /// and nothing after it. If the tool is a generation behind, the mark is set when it comes
    /// to the next one.
    pub(crate) fn flush(&mut self) {
        self.reader.group(None);
        self.flush = self.reader.newest().map_or(Flush::Generation, Flush::UpTo);
    }

    fn is_flushed(&self) -> bool {
        matches!(self.flush, Flush::UpTo(end) if self.reader.position() >= end)
    }

    /// The bytes that [`Feed::next`] found, contiguous and in place; they stay valid as long as
    /// they are borrowed, whatever the engine does.
    pub(crate) fn bytes(&self) -> &[u8] {
        let bytes = self.reader.bytes();
        let Flush::UpTo(end) = self.flush else { return bytes };
        let most = usize::try_from(end.saturating_sub(self.reader.position())).unwrap_or(usize::MAX);
        bytes.get(..most).unwrap_or(bytes)
    }

    /// Gives back the first `n` bytes (at most all) as delivered.
    pub(crate) fn consume(&mut self, n: usize) {
        self.reader.consume(n);
    }

    /// Lets the engine overwrite the bytes if its policy wants to; what is left of them comes
    /// again.
    pub(crate) fn release(&mut self) {
        self.reader.release();
    }

    /// Whether it is what was logged there.
    pub(crate) fn is_logged(&self) -> bool {
        self.logged
    }

    /// The process that writes.
    pub(crate) fn source(&self) -> &Proc {
        &self.source
    }

    /// The run of the job's name that the process belongs to.
    pub(crate) fn run(&self) -> u64 {
        self.run
    }

    /// The channel it writes to.
    pub(crate) fn channel(&self) -> Channel {
        self.channel
    }

    /// The registration that this feed belongs to.
    pub(crate) fn handler(&self) -> u32 {
        self.handler
    }

    pub(crate) fn counts(&self) -> Counts {
        let reader = &self.reader;
        Counts { produced: reader.produced(), delivered: reader.delivered(), lost: reader.lost() }
    }

    /// When the byte at the cursor was read from its source, see [`Reader::time`].
    pub(crate) fn time(&self) -> Option<u64> {
        self.reader.time()
    }

    /// See [`Reader::times`].
    pub(crate) fn times(&self, times: &mut Vec<(u64, u64)>) {
        self.reader.times(times);
    }

    /// What comes behind [`Feed::bytes`].
    pub(crate) fn behind(&self) -> Behind {
        let here = self.reader.position().saturating_add(self.bytes().len() as u64);
        match self.flush {
            Flush::UpTo(end) if here >= end => Behind::Nothing,
            _ => self.reader.behind(),
        }
    }

    /// How many bytes the stream's ring holds when full.
    pub(crate) fn capacity(&self) -> u64 {
        self.reader.ring().capacity()
    }

    /// What was found is left where it is: the feed is not looked at again before it has news.
    pub(crate) fn leave(&mut self) {
        self.settled = true;
    }

    /// Bytes that were consumed since this was called before, and whether they were a large part of
    /// the ring.
    pub(crate) fn take_read(&mut self) -> (u64, bool) {
        let read = self.reader.delivered().saturating_sub(self.read_before);
        self.read_before = self.reader.delivered();
        (read, read >= self.reader.ring().capacity() / LARGE_PART)
    }

    /// Whether its writer waits for a reader, or its next generation has not come yet.
    pub(crate) fn is_stalled(&self) -> bool {
        matches!(self.state, State::Asking | State::Asked) || self.reader.writer_waits()
    }

    /// When to look again for bytes that are held back.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.reader.deadline()
    }

    /// The slot of its newest ring.
    pub(crate) fn slot(&self) -> u32 {
        self.next.back().map_or(self.reader.slot(), |next| next.slot)
    }

    /// Takes the next generation, to follow when this one is drained.
    pub(crate) fn push_next(&mut self, next: Attached) {
        self.next.push_back(next);
    }

    /// The drained slot, if the engine must be asked for the next generation; says so once.
    pub(crate) fn ask(&mut self) -> Option<u32> {
        (self.state == State::Asking).then(|| {
            self.state = State::Asked;
            self.reader.slot()
        })
    }

    pub(crate) fn engine_gone(&mut self) {
        self.reader.writer_gone();
    }

    /// There may be news: the feed is worth a look again.
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
