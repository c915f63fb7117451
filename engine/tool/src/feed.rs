//! A feed: one stream of a registration, as a tool reads it.

use std::collections::VecDeque;
use std::sync::Arc;

use iof_proto::{Channel, Proc};
use iof_shm_ring::{Area, Attached, Gap, OpenError, Peek, Reader, Start};

/// Names a feed within its [`Tool`](crate::Tool), for the feed's whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FeedId(pub(crate) usize);

/// What comes next in a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// [`Feed::bytes`] gives bytes; consume them, some of them, or come back later.
    Bytes,
    /// Bytes are missing here.
    Gap(Gap),
    /// Nothing now; [`Tool::poll`](crate::Tool::poll) says when there is more.
    Quiet,
    /// The stream is complete and every byte of it was consumed or reported as a gap.
    Ended,
    /// The engine went away before the stream was complete; what was in memory has been read.
    Gone,
}

/// A reader of what the engine sent.
///
/// The engine is trusted to keep the ring's protocol: it writes nothing that a reader borrows, and takes a slot back
/// only when the tool has said by asking for the next generation, or by ending the registration, that it is done with
/// it. `Feed` and `Tool` say so only when their readers are.
pub(crate) fn reader(given: Attached, area: Arc<Area>, start: Start) -> Result<Reader, OpenError> {
    // SAFETY: the engine sent it for one reader, which is made here; see above.
    unsafe { Reader::new(given, area, start) }
}

/// Brings `reader` to the generation that the engine sent to follow its own.
fn follow(reader: &mut Reader, given: Attached) -> Result<(), OpenError> {
    // SAFETY: as above.
    unsafe { reader.follow(given) }
}

/// One source and channel of one registration.
///
/// For every feed, at every moment: `delivered + lost` is what the source has produced up to the cursor, since
/// the feed began.
pub struct Feed {
    pub(crate) handler: u32,
    source: Proc,
    channel: Channel,
    reader: Reader,
    next: VecDeque<Attached>,
    state: State,
    /// Among the tool's active feeds.
    pub(crate) active: bool,
    /// The last look found nothing.
    settled: bool,
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
    pub(crate) fn new(handler: u32, source: Proc, channel: Channel, reader: Reader) -> Self {
        Feed {
            handler,
            source,
            channel,
            reader,
            next: VecDeque::new(),
            state: State::Open,
            active: false,
            settled: false,
        }
    }

    /// What comes next. After [`Item::Bytes`], [`Feed::bytes`] gives it in place, until it is consumed.
    ///
    /// A feed is [active](crate::Tool::active) until this has given [`Item::Quiet`], [`Item::Ended`] or
    /// [`Item::Gone`]; the last two come again with every call.
    #[expect(clippy::should_implement_trait, reason = "an iterator can't lend what lies in the feed")]
    pub fn next(&mut self) -> Item {
        let item = self.look();
        self.settled = matches!(item, Item::Quiet | Item::Ended | Item::Gone);
        item
    }

    fn look(&mut self) -> Item {
        loop {
            match self.reader.peek() {
                Peek::Bytes => return Item::Bytes,
                Peek::Gap(gap) => return Item::Gap(gap),
                Peek::Ended => {
                    self.state = State::Over;
                    return Item::Ended;
                }
                end @ (Peek::Sealed | Peek::Gone) => {
                    // The slot was checked when the message came.
                    if let Some(next) = self.next.pop_front()
                        && follow(&mut self.reader, next).is_ok()
                    {
                        self.state = State::Open;
                        continue;
                    }
                    if end == Peek::Gone {
                        self.state = State::Over;
                        return Item::Gone;
                    }
                    if self.state == State::Open {
                        self.state = State::Asking;
                    }
                }
                Peek::Empty => {}
            }
            return Item::Quiet;
        }
    }

    /// The bytes that [`Feed::next`] found, contiguous and in place; they stay valid as long as they are
    /// borrowed, whatever the engine does.
    pub fn bytes(&self) -> &[u8] {
        self.reader.bytes()
    }

    /// Gives back the first `n` bytes (at most all) as delivered.
    pub fn consume(&mut self, n: usize) {
        self.reader.consume(n);
    }

    /// Lets the engine overwrite the bytes if its policy wants to; what is left of them comes again.
    pub fn release(&mut self) {
        self.reader.release();
    }

    /// The process that writes.
    pub fn source(&self) -> &Proc {
        &self.source
    }

    /// The channel it writes to.
    pub fn channel(&self) -> Channel {
        self.channel
    }

    /// The registration that this feed belongs to.
    pub fn handler(&self) -> u32 {
        self.handler
    }

    /// Bytes consumed.
    pub fn delivered(&self) -> u64 {
        self.reader.delivered()
    }

    /// Bytes reported as gaps.
    pub fn lost(&self) -> u64 {
        self.reader.lost()
    }

    pub(crate) fn slot(&self) -> u32 {
        self.reader.slot()
    }

    /// Takes the next generation, to follow when this one is drained.
    pub(crate) fn push_next(&mut self, next: Attached) {
        self.next.push_back(next);
    }

    /// The drained slot, if the engine must be asked for the next generation; says so once.
    pub(crate) fn ask(&mut self) -> Option<u32> {
        (self.state == State::Asking).then(|| {
            self.state = State::Asked;
            self.slot()
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
