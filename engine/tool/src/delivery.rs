//! The deliveries of a tool, one after the other: [`Tool::recv`], on which callbacks and event
//! loops are built.

use std::fmt;
use std::ops::Deref;
use std::time::{Duration, Instant};

use iof_proto::{Channel, Missed, Nspace, Proc};
use iof_shm_ring::{Behind, Gap};

use crate::error::LostError;
use crate::feed::{Counts, Feed, Item};
use crate::feeds::FeedId;
use crate::registration::JobEnd;
use crate::submit::Reply;
use crate::tool::{Event, Poll, Tool};

/// The stream that a delivery belongs to: one source and channel of one registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin<'a> {
    /// The id of the registration, which [`Tool::pull`] returned.
    pub handler: u32,
    /// The process that writes the stream.
    pub source: &'a Proc,
    /// The channel that the process writes to.
    pub channel: Channel,
    /// Whether the stream contains messages that were [logged](Tool::log) to the channel on behalf
    /// of the process. They form a stream separate from the process's own output.
    pub logged: bool,
}

/// The next item of any registration.
///
/// Each stream of each registration delivers its bytes and gaps in order, and then one `Complete`
/// or `Gone`. Each job of each registration delivers one `JobEnded` after the ends of all its
/// streams. There are two exceptions: after [`Tool::deregister`], streams that are not complete and
/// jobs end with `Deregistered` instead; and a `JobEnded` may stand for several jobs (`skipped`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Delivery<'a> {
    /// Bytes of a stream, in place.
    Bytes(Bytes<'a>),
    /// Missing bytes of a stream.
    Gap {
        /// The stream.
        origin: Origin<'a>,
        /// Their position and number.
        gap: Gap,
    },
    /// The end of a complete stream (`PMIX_IOF_COMPLETE`): every byte of it was delivered or
    /// reported as a gap.
    Complete {
        /// The stream.
        origin: Origin<'a>,
        /// Its final byte counters.
        counts: Counts,
    },
    /// The end of a stream whose engine disconnected before the stream was complete. The bytes that
    /// were in memory have been delivered. Whether the process has written more is unknown.
    Gone {
        /// The stream.
        origin: Origin<'a>,
        /// Its byte counters up to this point.
        counts: Counts,
    },
    /// The end of a job and of all of its streams. Successive jobs of one name are reported in
    /// order.
    JobEnded {
        /// The registration that receives this report.
        handler: u32,
        /// The name of the job.
        nspace: Nspace,
        /// The number of the job among those of this name; later jobs have higher numbers.
        run: u64,
        /// The exit code of the process that failed first (128 + *n* if signal *n* ended it), or 0;
        /// `None` if unknown.
        exit_code: Option<i32>,
        /// The number of earlier jobs of this name whose ends are not reported separately, because
        /// this tool read too slowly. Normally 0.
        skipped: u64,
    },
    /// Complete streams that are not delivered. Either this tool reads too slowly, and the launcher
    /// has removed their jobs
    /// ([`MAX_FORGOTTEN_PER_TOOL`](iof_proto::limits::MAX_FORGOTTEN_PER_TOOL)), or too many
    /// registrations of this tool cover these streams
    /// ([`MAX_READERS_PER_TOOL`](iof_proto::limits::MAX_READERS_PER_TOOL)). Over all streams of a
    /// job name, the bytes delivered, reported as gaps and reported here add up to the bytes
    /// produced.
    Missed {
        /// The registration that receives this report.
        handler: u32,
        /// The missing streams and bytes.
        missed: Missed,
    },
    /// The answer to a non-blocking request, see [`Tool::submit_pull`].
    Reply {
        /// The number of the request, which the `submit_` method returned.
        request: u32,
        /// The engine's answer.
        reply: Reply,
    },
    /// The end of a registration, requested by [`Tool::deregister`]. Everything that was unread at
    /// the request has been delivered.
    Deregistered {
        /// The id that the registration had.
        handler: u32,
    },
}

impl Delivery<'_> {
    /// Returns the id of the registration that this delivery belongs to, or 0 for a reply that does
    /// not grant a registration.
    pub fn handler(&self) -> u32 {
        match self {
            Delivery::Bytes(bytes) => bytes.origin().handler,
            Delivery::Gap { origin, .. }
            | Delivery::Complete { origin, .. }
            | Delivery::Gone { origin, .. } => origin.handler,
            Delivery::JobEnded { handler, .. }
            | Delivery::Missed { handler, .. }
            | Delivery::Deregistered { handler } => *handler,
            Delivery::Reply { reply: Reply::Pulled(Ok(granted)), .. } => granted.handler,
            Delivery::Reply { .. } => 0,
        }
    }

    /// Returns the stream that this delivery belongs to, or `None` if it concerns a job, a request
    /// or the registration itself.
    pub fn origin(&self) -> Option<Origin<'_>> {
        match self {
            Delivery::Bytes(bytes) => Some(bytes.origin()),
            Delivery::Gap { origin, .. }
            | Delivery::Complete { origin, .. }
            | Delivery::Gone { origin, .. } => Some(*origin),
            Delivery::JobEnded { .. }
            | Delivery::Missed { .. }
            | Delivery::Deregistered { .. }
            | Delivery::Reply { .. } => None,
        }
    }
}

/// Contiguous bytes of one stream, in the shared memory into which the kernel has read them. They
/// are not overwritten while they are borrowed.
#[derive(Clone, Copy)]
pub struct Bytes<'a> {
    pub(crate) feed: &'a Feed,
}

impl<'a> Bytes<'a> {
    /// Returns the stream that the bytes belong to.
    pub fn origin(&self) -> Origin<'a> {
        origin(self.feed)
    }

    /// Returns the offset of the first byte: the number of bytes that the source had produced
    /// before it.
    pub fn offset(&self) -> u64 {
        self.feed.counts().produced
    }

    /// Returns the time at which the first byte was read from its source, in nanoseconds since
    /// 1970, or `None` if unknown. Bytes that were read together have the same time.
    pub fn time(&self) -> Option<u64> {
        self.feed.time()
    }

    /// Appends pairs of [offset](Bytes::offset) and [time](Bytes::time) to `times`, in ascending
    /// order. The bytes from an offset up to that of the next pair were read at that time.
    pub fn times(&self, times: &mut Vec<(u64, u64)>) {
        self.feed.times(times);
    }

    /// Returns what follows these bytes in the stream, as far as is known now.
    pub fn behind(&self) -> Behind {
        self.feed.behind()
    }

    /// Returns the capacity of the stream's ring in bytes. A tool that waits for more bytes before
    /// it consumes these must not wait for more than the capacity.
    pub fn capacity(&self) -> u64 {
        self.feed.capacity()
    }

    /// Returns the bytes as a slice that borrows the tool, and not this value.
    pub fn as_slice(&self) -> &'a [u8] {
        self.feed.bytes()
    }
}

impl Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Bytes");
        shown.field("origin", &self.origin()).field("offset", &self.offset()).field("len", &self.len());
        shown.finish()
    }
}

pub(crate) fn origin(feed: &Feed) -> Origin<'_> {
    let (handler, source, channel) = (feed.handler(), feed.source(), feed.channel());
    Origin { handler, source, channel, logged: feed.is_logged() }
}

/// An item that was found and is to be delivered.
#[derive(Debug)]
pub(crate) enum Next {
    Item(FeedId, Item),
    Event(Event),
}

/// The result of one step.
enum Step {
    Found(Next),
    /// The item was passed to a callback.
    Called,
    Nothing,
}

impl Tool {
    /// Returns the next delivery of any registration. Blocks until there is one.
    ///
    /// Returns `None` if nothing more will be delivered, see [`Tool::is_done`]. With a
    /// [persistent](crate::Pull::persistent) registration, this is the case only when the
    /// registration was deregistered or the engine has ended. Deliveries of a registration made by
    /// [`Tool::pull_with`] are not returned, but passed to its callback during this call.
    ///
    /// The bytes of a delivery are consumed by the next call, which makes room for the source. To
    /// consume only some of them, call [`Tool::consume`] first.
    ///
    /// Streams take turns: between two deliveries of a stream, every other stream delivers at most
    /// once. If output is [buffered](iof_proto::directive::key::PMIX_IOF_BUFFERING_SIZE), bytes are
    /// delivered when a group is full, when its time is over, or when the stream or the
    /// registration ends.
    ///
    /// # Errors
    /// Returns [`LostError`] once if the engine has violated the protocol. The connection has ended
    /// then, and later calls deliver the bytes that are in memory. An engine that ends is not an
    /// error.
    pub fn recv(&mut self) -> Result<Option<Delivery<'_>>, LostError> {
        self.next_delivery(None)
    }

    /// Returns the next delivery as [`Tool::recv`] does, but blocks for `timeout` at most. Also
    /// returns `None` if the time is over; [`Tool::is_done`] tells the two cases apart.
    ///
    /// # Errors
    /// The same as [`Tool::recv`].
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Option<Delivery<'_>>, LostError> {
        self.next_delivery(deadline(Some(timeout)))
    }

    /// Returns the next delivery as [`Tool::recv`] does, but does not block. Also returns `None` if
    /// there is no delivery now; [`Tool::is_done`] tells the two cases apart. For event loops, see
    /// the [crate's documentation](crate).
    ///
    /// # Errors
    /// The same as [`Tool::recv`].
    pub fn try_recv(&mut self) -> Result<Option<Delivery<'_>>, LostError> {
        self.next_delivery(deadline(Some(Duration::ZERO)))
    }

    fn next_delivery(&mut self, deadline: Option<Instant>) -> Result<Option<Delivery<'_>>, LostError> {
        loop {
            match self.step(deadline)? {
                Step::Found(next) => return Ok(self.lend(next)),
                Step::Called => {}
                Step::Nothing => return Ok(None),
            }
        }
    }

    /// Passes the next delivery to its callback. Blocks until there is one, for `timeout` at most
    /// (`None`: without limit). Returns `false` if the delivery has no callback, the time is over,
    /// or nothing more will be delivered.
    ///
    /// This is for tools that use only [`Tool::pull_with`]. A delivery without a callback is kept
    /// for [`Tool::recv`]; until [`Tool::recv`] is called, this method returns `false` without
    /// blocking. A tool that uses both kinds of registration therefore calls [`Tool::recv`]
    /// instead.
    ///
    /// # Errors
    /// The same as [`Tool::recv`].
    pub fn dispatch(&mut self, timeout: Option<Duration>) -> Result<bool, LostError> {
        match self.step(deadline(timeout))? {
            Step::Found(next) => {
                self.put_back = Some(next);
                Ok(false)
            }
            Step::Called => Ok(true),
            Step::Nothing => Ok(false),
        }
    }

    /// Consumes the first `n` bytes of the last delivery, or all if it has fewer. The remaining
    /// bytes are delivered again in the stream's next turn, unless they are overwritten before
    /// (then they are reported as a gap). Does nothing if the last delivery was consumed already or
    /// contained no bytes.
    pub fn consume(&mut self, n: usize) {
        if let Some(feed) = self.lent.take().and_then(|id| self.feeds.get_mut(id)) {
            feed.consume(feed.bytes().len().min(n));
            // The remaining bytes may be overwritten if the policy permits it.
            feed.release();
        }
    }

    fn step(&mut self, deadline: Option<Instant>) -> Result<Step, LostError> {
        let Some(next) = self.find_next(deadline)? else { return Ok(Step::Nothing) };
        let handler = match &next {
            Next::Item(id, _) => self.feeds.get(*id).map(Feed::handler),
            Next::Event(
                Event::JobEnded { handler, .. }
                | Event::Missed { handler, .. }
                | Event::Deregistered { handler },
            ) => Some(*handler),
            // A reply is never passed to a callback.
            Next::Event(Event::Reply { .. }) => return Ok(Step::Found(next)),
        };
        let Some(handler) = handler else { return Ok(Step::Nothing) };
        let registration = self.registrations.get_mut(&handler);
        let Some(mut callback) = registration.and_then(|registration| registration.callback.take()) else {
            return Ok(Step::Found(next));
        };
        if let Some(delivery) = self.lend(next) {
            callback(&delivery);
        }
        self.consume(usize::MAX);
        // The registration may have ended with this delivery.
        if let Some(registration) = self.registrations.get_mut(&handler) {
            registration.callback = Some(callback);
        }
        Ok(Step::Called)
    }

    /// Returns the next item: queued events first, then the active feeds in turn.
    fn find_next(&mut self, deadline: Option<Instant>) -> Result<Option<Next>, LostError> {
        self.consume(usize::MAX);
        if let Some(next) = self.put_back.take() {
            return Ok(Some(next));
        }
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(Next::Event(event)));
            }
            while let Some(id) = self.turn.pop() {
                match self.feeds.get_mut(id).map(Feed::next) {
                    None | Some(Item::Quiet | Item::Flushed) => {}
                    Some(item) => return Ok(Some(Next::Item(id, item))),
                }
            }
            if self.poll(deadline, Tool::is_done)? != Poll::Ready {
                return Ok(None);
            }
            self.turn.extend(self.feeds.active().iter().rev());
        }
    }

    fn lend(&mut self, next: Next) -> Option<Delivery<'_>> {
        Some(match next {
            Next::Item(id, item) => {
                self.lent = (item == Item::Bytes).then_some(id);
                let feed = self.feeds.get(id)?;
                match item {
                    Item::Bytes => Delivery::Bytes(Bytes { feed }),
                    Item::Gap(gap) => Delivery::Gap { origin: origin(feed), gap },
                    Item::Ended => Delivery::Complete { origin: origin(feed), counts: feed.counts() },
                    Item::Gone => Delivery::Gone { origin: origin(feed), counts: feed.counts() },
                    Item::Quiet | Item::Flushed => return None,
                }
            }
            Next::Event(Event::JobEnded { handler, nspace, end: JobEnd { run, exit_code, skipped } }) => {
                self.remove_if_over(handler);
                Delivery::JobEnded { handler, nspace, run, exit_code, skipped }
            }
            Next::Event(Event::Missed { handler, missed }) => Delivery::Missed { handler, missed },
            Next::Event(Event::Reply { request, reply }) => Delivery::Reply { request, reply },
            Next::Event(Event::Deregistered { handler }) => {
                self.registrations.remove(&handler);
                Delivery::Deregistered { handler }
            }
        })
    }
}

fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    // A deadline beyond what the clock can represent never passes.
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}
