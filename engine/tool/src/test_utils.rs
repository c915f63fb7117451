//! A tool without a connection, for simulators: its side of the protocol, and its reading of
//! streams.

use std::borrow::BorrowMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use iof_proto::{FromTool, Log, Missed, Nspace, Proc, ProcInfo, PushReport, Query, Spawn, ToTool};

use iof_shm_ring::{Attached, Grouping, OpenError, ReaderId, ReaderPage, Ring, Ringer, Start};

use crate::batch_reader;
use crate::link::Received;
use crate::session::Session;
use crate::session::event::Event;
pub use crate::session::feed::StreamInfo;
use crate::session::feed::{Counts, Feed, Peeked, reader};
pub use crate::session::feeds::Feeds;
use crate::session::feeds::{FeedId, Settled};
use crate::session::registration::{JobEnd, RegistrationState};
use crate::session::request::Request;
use crate::{LostError, Pull, Push, Reply, RequestError};

/// A [`Tool`](crate::Tool) without a connection. The caller sends the messages that
/// [`ProtocolSide::take_outgoing`] returns, and passes on those of the engine.
pub struct ProtocolSide(Session);

/// The events that a tool delivers besides the bytes that it reads.
#[derive(Debug)]
#[allow(missing_docs, reason = "as in `Delivery`")]
pub enum Delivered {
    JobEnded { handler: u32, nspace: Nspace, run: u64, exit_code: Option<i32>, skipped: u64 },
    Rank { handler: u32, run: u64, info: Box<ProcInfo> },
    Missed { handler: u32, missed: Missed },
    Deregistered { handler: u32 },
    Reply { request: u32, reply: Reply },
}

impl std::fmt::Debug for ProtocolSide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let registrations = self.0.registrations.keys();
        f.debug_struct("ProtocolSide").field("registrations", &registrations).finish_non_exhaustive()
    }
}

impl ProtocolSide {
    /// Creates the side of a tool that the engine has welcomed.
    ///
    /// # Safety
    /// As for [`Tool::over`](crate::Tool::over): the messages that are passed on come from one
    /// engine, which keeps the protocol, and its messages go to that engine.
    pub unsafe fn new(page: Arc<ReaderPage>, room: Option<Arc<Ringer>>) -> ProtocolSide {
        ProtocolSide(Session::new(page, room))
    }

    fn submit(&mut self, request: Request, message: impl FnOnce(u32) -> FromTool) -> (u32, FromTool) {
        let number = self.0.requests.next_number();
        self.0.requests.sent(number, request);
        (number, message(number))
    }

    /// See [`Tool::submit_pull`](crate::Tool::submit_pull). Returns the number of the request, and
    /// its message.
    pub fn pull(&mut self, pull: &Pull) -> (u32, FromTool) {
        self.submit(Request::Pull(RegistrationState::new(pull, None)), |request| pull.message(request))
    }

    /// See [`Tool::submit_query`](crate::Tool::submit_query).
    pub fn query(&mut self, queries: Vec<Query>) -> (u32, FromTool) {
        self.submit(Request::Query, |request| FromTool::Query { request, queries })
    }

    /// See [`Tool::submit_spawn`](crate::Tool::submit_spawn).
    pub fn spawn(&mut self, spawn: &Spawn) -> (u32, FromTool) {
        let spawn = Box::new(spawn.clone());
        self.submit(Request::Spawn, |request| FromTool::Spawn { request, spawn })
    }

    /// See [`Tool::submit_log`](crate::Tool::submit_log).
    pub fn log(&mut self, log: Log) -> (u32, FromTool) {
        self.submit(Request::Log, |request| FromTool::Log { request, log })
    }

    /// See [`Tool::submit_signal`](crate::Tool::submit_signal).
    pub fn signal(&mut self, procs: Vec<Proc>, signal: i32) -> (u32, FromTool) {
        self.submit(Request::Signal, |request| FromTool::Signal { request, procs, signal })
    }

    /// See [`Tool::submit_push`](crate::Tool::submit_push).
    pub fn push(&mut self, push: &Push, size: Option<u64>) -> (u32, FromTool) {
        self.submit(Request::Push, |request| push.message(request, size))
    }

    /// See [`Tool::submit_slow_targets`](crate::Tool::submit_slow_targets).
    pub fn slow_targets(&mut self, push: u32, cut_off: Option<u64>) -> (u32, FromTool) {
        self.submit(Request::SlowTargets, |request| FromTool::SlowTargets { request, push, cut_off })
    }

    /// See [`Tool::deregister`](crate::Tool::deregister).
    ///
    /// # Errors
    /// The same.
    pub fn deregister(&mut self, handler: u32) -> Result<(), RequestError> {
        self.0.deregister(handler)
    }

    /// See [`Tool::push_room`](crate::Tool::push_room).
    pub fn push_room(&mut self, push: u32) -> &mut [u8] {
        self.0.pushes.get_mut(&push).map_or(&mut [], |pushing| pushing.room())
    }

    /// See [`Tool::fill`](crate::Tool::fill).
    pub fn fill(&mut self, push: u32, bytes: usize, over: bool) {
        if let Some(pushing) = self.0.pushes.get_mut(&push) {
            pushing.put(bytes);
            if over {
                pushing.end_bytes();
            }
        }
        self.0.report_filled(push);
    }

    /// See [`Tool::take_report`](crate::Tool::take_report).
    pub fn take_report(&mut self, push: u32) -> Option<PushReport> {
        let report = self.0.pushes.get_mut(&push)?.take_report()?;
        self.0.pushes.remove(&push);
        Some(report)
    }

    /// Handles a message of the engine, with the ring or the inlet that it sent.
    ///
    /// # Errors
    /// The engine violates the protocol.
    pub fn receive(
        &mut self,
        message: ToTool,
        ring: Option<Arc<Ring>>,
        inlet: Option<OwnedFd>,
    ) -> Result<(), LostError> {
        self.0.receive(Received { message, fds: inlet.into_iter().collect(), ring })
    }

    /// Removes and returns what is due for delivery next. What has been read is delivered by the
    /// caller.
    pub fn take_delivered(&mut self) -> Option<Delivered> {
        Some(match self.0.events.pop_front()? {
            Event::JobEnded { handler, nspace, end: JobEnd { run, exit_code, skipped } } => {
                self.0.remove_if_over(handler);
                Delivered::JobEnded { handler, nspace, run, exit_code, skipped }
            }
            Event::Cached { .. } => return self.take_delivered(),
            Event::Rank { handler, run, info } => Delivered::Rank { handler, run, info },
            Event::Missed { handler, missed } => Delivered::Missed { handler, missed },
            Event::Deregistered { handler } => {
                self.0.registrations.remove(&handler);
                Delivered::Deregistered { handler }
            }
            Event::Reply { request, reply } => Delivered::Reply { request, reply },
        })
    }

    /// Drops the streams that were read to their ends, and queues what follows.
    pub fn settle(&mut self) {
        self.0.settle();
    }

    /// Removes and returns the messages that are to be sent, in this order.
    pub fn take_outgoing(&mut self) -> Vec<FromTool> {
        self.0.take_outgoing()
    }

    /// Returns whether a registration exists.
    pub fn has_registration(&self, handler: u32) -> bool {
        self.0.registrations.contains_key(&handler)
    }

    /// Returns whether it has streams.
    pub fn has_streams(&self) -> bool {
        !self.0.feeds.is_empty()
    }

    /// Returns whether no registration, request, push, stream or delivery is left.
    pub fn is_idle(&self) -> bool {
        let Session { registrations, feeds, pushes, requests, events, .. } = &self.0;
        let waits = !requests.is_empty() || !pushes.is_empty() || !events.is_empty();
        registrations.is_empty() && feeds.is_empty() && !waits
    }

    /// Returns the streams.
    pub fn reading(&mut self) -> ReadingSide<&mut Feeds> {
        ReadingSide { feeds: &mut self.0.feeds }
    }
}

/// The streams that a tool reads, as [`Tool`](crate::Tool) keeps them. The caller carries the
/// messages.
#[derive(Default)]
pub struct ReadingSide<F = Feeds> {
    feeds: F,
}

/// A stream that is announced to a tool.
#[derive(Debug)]
pub struct NewStream {
    /// The handler of the registration.
    pub handler: u32,
    /// The identity of the stream.
    pub stream: StreamInfo,
    /// The first ring.
    pub ring: Attached,
    /// The point at which the registration starts.
    pub start: Start,
    /// The bell to ring when there is room.
    pub room: Option<Arc<Ringer>>,
    /// The grouping of the bytes.
    pub grouping: Option<Grouping>,
}

/// The requests that a tool sends to the engine after it has read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// The readers that request the next generation of their streams.
    pub follow: Vec<ReaderId>,
    /// The readers that have drained their streams, and no longer use their slots. Each with the
    /// handler of its registration and its stream.
    pub drained: Vec<(ReaderId, u32, StreamInfo)>,
}

impl<F: BorrowMut<Feeds>> std::fmt::Debug for ReadingSide<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadingSide").field("streams", &self.feeds.borrow().len()).finish_non_exhaustive()
    }
}

impl<F: BorrowMut<Feeds>> ReadingSide<F> {
    /// Takes the first ring of a stream: what a tool does when a ring is announced to it.
    ///
    /// # Errors
    /// [`OpenError::Slot`] if the reader page has no slot for the reader.
    ///
    /// # Safety
    /// As for [`Reader::new`](iof_shm_ring::Reader::new), where [`Requests::follow`] and
    /// [`Requests::drained`] are what releases a slot.
    pub unsafe fn add(&mut self, page: &Arc<ReaderPage>, stream: NewStream) -> Result<(), OpenError> {
        let NewStream { handler, stream, ring, start, room, grouping } = stream;
        self.feeds.borrow_mut().use_slot(ring.id);
        let mut reader = reader(ring, Arc::clone(page), start)?;
        if let Some(room) = room {
            reader.set_room_bell(room);
        }
        if grouping.is_some() {
            reader.group(grouping);
        }
        self.feeds.borrow_mut().add(Feed::new(handler, stream, reader));
        Ok(())
    }

    /// Takes a further ring of the stream whose reader is `old`.
    ///
    /// # Safety
    /// As for [`Reader::follow`](iof_shm_ring::Reader::follow).
    pub unsafe fn follow(&mut self, old: ReaderId, ring: Attached) {
        self.feeds.borrow_mut().use_slot(ring.id);
        self.feeds.borrow_mut().next_generation(old, ring);
    }

    /// Activates the streams whose ready bits are set, and those whose groups are due.
    pub fn take_ready(&mut self, page: &ReaderPage) {
        self.feeds.borrow_mut().take_ready(page);
        self.feeds.borrow_mut().take_due();
    }

    /// Returns whether a group of bytes is withheld until a time.
    pub fn has_due(&self) -> bool {
        self.feeds.borrow().next_due().is_some()
    }

    /// Returns the streams that may have something to read.
    pub fn active(&self) -> Vec<FeedId> {
        self.feeds.borrow().active().to_vec()
    }

    /// See [`BatchReader::peek`](crate::BatchReader::peek).
    pub fn peek(&mut self, stream: FeedId) -> Peeked {
        batch_reader::peek(self.feeds.borrow_mut(), stream)
    }

    /// Returns the bytes that [`ReadingSide::peek`] found.
    pub fn bytes(&self, stream: FeedId) -> &[u8] {
        self.feeds.borrow().get(stream).map_or(&[], Feed::bytes)
    }

    /// Returns the positions and times of these bytes, see
    /// [`Reader::times`](iof_shm_ring::Reader::times).
    pub fn times(&self, stream: FeedId) -> Vec<(u64, u64)> {
        let mut times = Vec::new();
        self.feeds.borrow().get(stream).inspect(|feed| feed.times(&mut times));
        times
    }

    /// See [`BatchReader::consume`](crate::BatchReader::consume). With `release`, the remaining
    /// bytes are not borrowed any longer.
    pub fn consume(&mut self, stream: FeedId, n: usize, release: bool) {
        if let Some(feed) = self.feeds.borrow_mut().get_mut(stream) {
            feed.consume(feed.bytes().len().min(n));
            if release {
                feed.release();
            }
        }
    }

    /// See [`BatchReader::defer`](crate::BatchReader::defer).
    pub fn defer(&mut self, stream: FeedId) {
        if let Some(feed) = self.feeds.borrow_mut().get_mut(stream) {
            feed.defer();
        }
    }

    /// See [`BatchReader::rearm`](crate::BatchReader::rearm).
    pub fn rearm(&mut self, stream: FeedId) {
        self.feeds.borrow_mut().activate(stream);
    }

    /// Ends the streams of a registration at their present positions, see
    /// [`Tool::deregister`](crate::Tool::deregister). Returns the number of stored bytes that are
    /// still to be read, as far as they are in the rings that the streams read now.
    pub fn flush(&mut self, handler: u32) -> u64 {
        self.feeds.borrow_mut().flush(handler);
        self.feeds.borrow_mut().unread(handler)
    }

    /// Records that the engine has ended.
    pub fn engine_gone(&mut self) {
        self.feeds.borrow_mut().engine_gone();
    }

    /// Drops the streams that were read to their ends, and returns what is to be sent.
    pub fn settle(&mut self) -> Requests {
        let Settled { drained, over, .. } = self.feeds.borrow_mut().settle();
        let drained_streams =
            over.iter().filter_map(|feed| Some((feed.reader_id()?, feed.handler(), feed.info()))).collect();
        Requests { follow: drained, drained: drained_streams }
    }

    /// Announces that the tool is about to sleep, see [`ReaderPage::arm`].
    pub fn arm(&self, page: &ReaderPage) -> bool {
        page.arm(self.feeds.borrow().slots())
    }

    /// Returns the handler of a stream's registration, and the stream's counters.
    pub fn counts(&self, stream: FeedId) -> Option<(u32, Counts)> {
        self.feeds.borrow().get(stream).map(|feed| (feed.handler(), feed.counts()))
    }

    /// Returns the identity of a stream.
    pub fn info(&self, stream: FeedId) -> Option<StreamInfo> {
        self.feeds.borrow().get(stream).map(Feed::info)
    }

    /// Calls `each` with every ring that is mapped for these streams.
    pub fn rings(&self, each: impl FnMut(&Ring)) {
        self.feeds.borrow().rings().for_each(each);
    }

    /// Returns whether no stream is left.
    pub fn is_empty(&self) -> bool {
        self.feeds.borrow().is_empty()
    }
}
