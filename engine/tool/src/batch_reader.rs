//! Reading many streams in batches, for tools that pass bytes on in few calls.
//!
//! [`Tool::recv`] returns one delivery after the other. [`BatchReader::poll_ready`] instead lists
//! all streams that may have bytes to read. The caller [peeks](BatchReader::peek) at each of them
//! once. It may borrow the bytes of many streams together, and consumes or defers each separately.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use iof_proto::{Channels, Found, Missed, Nspace, ProcInfo};
use iof_shm_ring::{LastRead, Stepper};

use crate::error::{LostError, RequestError};
use crate::session::delivery::{Bytes, Origin, origin};
use crate::session::event::Event;
use crate::session::feed::{Feed, Peeked};
use crate::session::feeds::{FeedId, Feeds};
use crate::tool::Tool;
use crate::tool::poll::{Poll, PollCall};
use crate::wakeup::Sleeper;

/// The result of a call of [`BatchReader::poll_ready`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollReady {
    /// Some streams may have something to read.
    Ready,
    /// The deadline has passed.
    Quiet,
    /// Every stream of every registration has ended, and no further stream will be announced. Never
    /// returned while the tool has a [persistent](crate::Pull::persistent) registration and the
    /// engine runs.
    Done,
}

/// Returns the next item of a stream without consuming bytes.
pub(crate) fn peek(feeds: &mut Feeds, stream: FeedId) -> Peeked {
    let Some(feed) = feeds.get_mut(stream).filter(|feed| !feed.is_over()) else {
        return Peeked::Nothing;
    };
    let peeked = feed.next();
    if feed.is_over() {
        // The caller may peek at a feed that is not active. It must be removed before the next list
        // of streams, because its id then belongs to another stream.
        feeds.activate(stream);
    }
    peeked
}

/// A reader of all streams that a tool has registered for, in batches. It avoids one call for each
/// delivery, and lets the caller borrow the bytes of many streams together, for example for one
/// writev(2).
///
/// ```no_run
/// use iof_tool::{BatchReader, Peeked, PollReady, Tool};
///
/// # fn read(tool: Tool) -> Result<(), iof_tool::LostError> {
/// let (mut reader, mut streams) = (BatchReader::new(tool), Vec::new());
/// while reader.poll_ready(None, &mut streams)? != PollReady::Done {
///     for stream in &streams {
///         if reader.peek(*stream) == Peeked::Bytes {
///             // Use `reader.bytes(*stream)`.
///             reader.consume(*stream, usize::MAX);
///         }
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BatchReader {
    tool: Tool,
    missed: VecDeque<Missed>,
    ranks: VecDeque<Box<ProcInfo>>,
    exit_codes: BTreeMap<Nspace, Option<i32>>,
}

impl BatchReader {
    /// Creates a reader of all registrations of `tool`. Callbacks of [`Tool::pull_with`] are not
    /// called; their streams are read like the others.
    pub fn new(tool: Tool) -> BatchReader {
        BatchReader { tool, missed: VecDeque::new(), ranks: VecDeque::new(), exit_codes: BTreeMap::new() }
    }

    /// Returns the tool.
    pub fn tool(&self) -> &Tool {
        &self.tool
    }

    /// Queries the engine as [`Tool::query`] does, which blocks until the engine answers.
    ///
    /// # Errors
    /// The same as [`Tool::query`].
    pub fn query(&mut self, keys: &[&str]) -> Result<Vec<Found>, RequestError> {
        self.tool.query(keys)
    }

    /// Blocks until the engine has announced all streams that existed when it answered the tool's
    /// pulls, and those whose bytes the tool could have found by now. The next call of
    /// [`BatchReader::poll_ready`] lists them. A tool that does not wait may find bytes in one stream
    /// of a process before it knows the others.
    ///
    /// # Errors
    /// The same as [`Tool::recv`].
    pub fn wait_for_streams(&mut self) -> Result<(), LostError> {
        // The engine announces the streams after the answer to the pull.
        match self.tool.pass_barrier() {
            Err(RequestError::Lost(lost)) if !matches!(lost, LostError::Closed) => Err(lost),
            _ => Ok(()),
        }
    }

    /// Blocks until streams may have something to read, or until `deadline` (`None`: without
    /// limit), and stores these streams in `streams`. A stream is listed again by every call until
    /// [`BatchReader::peek`] finds nothing in it or it is [deferred](BatchReader::defer).
    ///
    /// [`BatchReader::exit_codes`] returns the ends of jobs, and [`BatchReader::take_missed`] reports of
    /// streams that are not delivered.
    ///
    /// # Errors
    /// The same as [`Tool::recv`].
    pub fn poll_ready(
        &mut self,
        deadline: Option<Instant>,
        streams: &mut Vec<FeedId>,
    ) -> Result<PollReady, LostError> {
        let poll = self.tool.poll(deadline, Tool::is_drained)?;
        Ok(self.polled(poll, streams))
    }

    /// Begins a call of [`BatchReader::poll_ready`] in parts, so that the reader can be used by
    /// another thread while its owner sleeps.
    ///
    /// # Errors
    /// The same as [`Tool::recv`].
    pub fn begin_poll(&mut self, deadline: Option<Instant>) -> Result<PollCall, LostError> {
        self.tool.begin_poll(deadline)
    }

    /// Continues a call of [`BatchReader::poll_ready`]. Returns `None` if the caller has to sleep
    /// first, by [`Sleeper::sleep`].
    ///
    /// # Errors
    /// The same as [`Tool::recv`].
    pub fn continue_poll(
        &mut self,
        call: &mut PollCall,
        streams: &mut Vec<FeedId>,
    ) -> Result<Option<PollReady>, LostError> {
        let poll = self.tool.continue_poll(call, Tool::is_drained)?;
        Ok(poll.map(|poll| self.polled(poll, streams)))
    }

    /// Returns what the owner of this reader sleeps on.
    pub fn sleeper(&self) -> Sleeper {
        self.tool.sleeper()
    }

    /// Returns the place of the reader's step, if the engine is in this process.
    pub fn stepper(&self) -> Option<&Stepper> {
        self.tool.stepper()
    }

    /// Stores the streams that have bytes in `streams`, and finds these bytes, while the owner of
    /// this reader sleeps. Returns `false` if the owner has to wake up, because one of them has
    /// something else. Called by the [`Stepper`]'s step, which must then consume all bytes and call
    /// [`BatchReader::end_step`], or consume nothing and let the owner wake up.
    pub fn begin_step(&mut self, streams: &mut Vec<FeedId>) -> bool {
        streams.clear();
        let steps = self.tool.begin_step();
        streams.extend_from_slice(self.tool.session.feeds.active());
        steps && streams.iter().all(|stream| self.peek(*stream) == Peeked::Bytes)
    }

    /// Ends a step that has consumed all bytes: the owner of this reader sleeps on.
    pub fn end_step(&mut self) {
        self.tool.session.feeds.settle_step();
    }

    fn polled(&mut self, poll: Poll, streams: &mut Vec<FeedId>) -> PollReady {
        streams.clear();
        if !self.tool.session.events.is_empty() {
            for event in self.tool.session.events.drain(..) {
                match event {
                    Event::Missed { missed, .. } => self.missed.push_back(missed),
                    Event::Rank { info, .. } => self.ranks.push_back(info),
                    Event::Deregistered { handler } => drop(self.tool.session.registrations.remove(&handler)),
                    Event::JobEnded { nspace, end, .. } => {
                        self.exit_codes.insert(nspace, end.exit_code);
                    }
                    Event::Cached { .. } | Event::Reply { .. } => {}
                }
            }
            self.tool.session.registrations.retain(|_, registration| !registration.is_over());
        }
        streams.extend_from_slice(self.tool.session.feeds.active());
        match poll {
            Poll::Ready => PollReady::Ready,
            Poll::Quiet => PollReady::Quiet,
            Poll::Done => PollReady::Done,
        }
    }

    /// Returns the next report of streams that are not delivered
    /// ([`Delivery::Missed`](crate::Delivery::Missed)), if [`BatchReader::poll_ready`] has received
    /// one.
    pub fn take_missed(&mut self) -> Option<Missed> {
        self.missed.pop_front()
    }

    /// Returns the next rank that has started or ended ([`Delivery::Rank`](crate::Delivery::Rank)), if
    /// [`BatchReader::poll_ready`] has received one.
    pub fn take_rank(&mut self) -> Option<Box<ProcInfo>> {
        self.ranks.pop_front()
    }

    /// Returns the exit codes of the jobs that have ended, as
    /// [`Delivery::JobEnded`](crate::Delivery::JobEnded) has them: the last one of each name.
    pub fn exit_codes(&self) -> &BTreeMap<Nspace, Option<i32>> {
        &self.exit_codes
    }

    /// Returns the next item of a stream without consuming bytes. A gap or an end is returned once.
    pub fn peek(&mut self, stream: FeedId) -> Peeked {
        peek(&mut self.tool.session.feeds, stream)
    }

    /// Returns the bytes that [`BatchReader::peek`] found, or `None` if the stream has ended. They
    /// may be borrowed together with those of other streams.
    pub fn bytes(&self, stream: FeedId) -> Option<Bytes<'_>> {
        self.tool.session.feeds.get(stream).map(|feed| Bytes { feed })
    }

    /// Returns the newest read of a stream, see [`Bytes::last_read`].
    pub fn last_read(&self, stream: FeedId) -> Option<LastRead> {
        self.tool.session.feeds.get(stream).and_then(Feed::last_read)
    }

    /// Returns the source, channel and registration of a stream.
    pub fn origin(&self, stream: FeedId) -> Option<Origin<'_>> {
        self.tool.session.feeds.get(stream).map(origin)
    }

    /// Returns whether a stream cannot proceed although its source may have more: either the source
    /// waits until a reader makes room, or the stream continues in a ring that has not arrived yet.
    pub fn is_stalled(&self, stream: FeedId) -> bool {
        self.tool.session.feeds.get(stream).is_some_and(Feed::is_stalled)
    }

    /// Consumes the first `n` of the bytes that [`BatchReader::peek`] found, or all if there are
    /// fewer. This makes room for the source. The next [`BatchReader::peek`] finds the remaining
    /// bytes again.
    pub fn consume(&mut self, stream: FeedId, n: usize) {
        if let Some(feed) = self.tool.session.feeds.get_mut(stream) {
            feed.consume(feed.bytes().len().min(n));
            feed.release();
        }
    }

    /// Leaves the bytes that [`BatchReader::peek`] found unread. [`BatchReader::poll_ready`] lists
    /// the stream again when more bytes or its end have arrived.
    pub fn defer(&mut self, stream: FeedId) {
        if let Some(feed) = self.tool.session.feeds.get_mut(stream) {
            feed.defer();
        }
    }

    /// Makes the next [`BatchReader::poll_ready`] list a deferred stream and return without
    /// blocking.
    pub fn rearm(&mut self, stream: FeedId) {
        self.tool.session.feeds.activate(stream);
    }

    /// Returns whether a stream comes by a [`DirectInput`](crate::DirectInput). No stream with older
    /// bytes of its process is announced later.
    pub fn is_direct(&self, stream: FeedId) -> bool {
        self.tool.session.feeds.get(stream).is_some_and(Feed::is_direct)
    }

    /// Returns the output channels whose streams may be announced later; none if all streams were
    /// announced.
    pub fn unannounced(&self) -> Channels {
        let registrations = self.tool.session.registrations.values();
        let open = registrations.filter(|registration| !registration.has_all_streams());
        open.fold(Channels::empty(), |all, registration| all | (registration.channels & Channels::OUTPUTS))
    }

    /// Returns whether there was at most one stream (one channel of one process), and no further one will be
    /// announced. The last one of several does not count: a message about the others may follow.
    pub fn has_one_stream(&self) -> bool {
        self.tool.all_announced() && self.tool.session.feeds.added() <= 1
    }
}
