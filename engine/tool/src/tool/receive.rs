//! Receiving deliveries one after the other: [`Tool::recv`], on which callbacks and event loops are
//! built.

use std::io::Write;
use std::time::{Duration, Instant};

use super::Tool;
use super::poll::Poll;
use crate::error::{CopyError, LostError};
use crate::session::delivery::{Bytes, Delivery, origin};
use crate::session::event::{Event, Next};
use crate::session::feed::{Feed, Peeked};
use crate::session::registration::JobEnd;

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

    /// Writes all bytes that are delivered to `output`, until nothing more will be delivered
    /// ([`Tool::is_done`]). Blocks meanwhile. Returns the number of bytes that were lost.
    /// Deliveries of other kinds are discarded.
    ///
    /// The bytes of several streams are mixed as they arrive. For whole lines, use
    /// [`Lines`](crate::Lines).
    ///
    /// # Errors
    /// The output could not be written, or the engine has violated the protocol ([`Tool::recv`]), or
    /// streams have not reached their ends ([`CopyError::Incomplete`]).
    pub fn copy_to(&mut self, output: &mut impl Write) -> Result<u64, CopyError> {
        let (mut lost, mut streams) = (0u64, 0u64);
        while let Some(delivery) = self.recv()? {
            match delivery {
                Delivery::Bytes(bytes) => output.write_all(&bytes).map_err(CopyError::Write)?,
                Delivery::Gap { gap, .. } => lost = lost.saturating_add(gap.lost),
                Delivery::Missed { missed, .. } => lost = lost.saturating_add(missed.bytes),
                Delivery::Broken { .. } | Delivery::Gone { .. } => streams = streams.saturating_add(1),
                Delivery::Complete { counts, .. } if counts.ends_early() => {
                    streams = streams.saturating_add(1)
                }
                _ => {}
            }
        }
        output.flush().map_err(CopyError::Write)?;
        streams = streams.saturating_add(self.misses_streams().into());
        if streams == 0 { Ok(lost) } else { Err(CopyError::Incomplete { streams, lost }) }
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
        if let Some(feed) = self.lent.take().and_then(|id| self.session.feeds.get_mut(id)) {
            feed.consume(feed.bytes().len().min(n));
            // The remaining bytes may be overwritten if the policy permits it.
            feed.release();
        }
    }

    fn step(&mut self, deadline: Option<Instant>) -> Result<Step, LostError> {
        let Some(next) = self.find_next(deadline)? else { return Ok(Step::Nothing) };
        let handler = match &next {
            Next::Item(id, _) => self.session.feeds.get(*id).map(Feed::handler),
            Next::Event(
                Event::JobEnded { handler, .. }
                | Event::Rank { handler, .. }
                | Event::Missed { handler, .. }
                | Event::Cached { handler }
                | Event::Deregistered { handler },
            ) => Some(*handler),
            // A reply is never passed to a callback.
            Next::Event(Event::Reply { .. }) => return Ok(Step::Found(next)),
        };
        let Some(handler) = handler else { return Ok(Step::Nothing) };
        let registration = self.session.registrations.get_mut(&handler);
        let Some(mut callback) = registration.and_then(|registration| registration.callback.take()) else {
            return Ok(Step::Found(next));
        };
        if let Some(delivery) = self.lend(next) {
            callback(&delivery);
        }
        self.consume(usize::MAX);
        // The registration may have ended with this delivery.
        if let Some(registration) = self.session.registrations.get_mut(&handler) {
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
            if let Some(event) = self.session.events.pop_front() {
                return Ok(Some(Next::Event(event)));
            }
            while let Some(id) = self.turn.pop() {
                match self.session.feeds.get_mut(id).map(Feed::next) {
                    None | Some(Peeked::Nothing | Peeked::Flushed) => {}
                    Some(item) => return Ok(Some(Next::Item(id, item))),
                }
            }
            if self.poll(deadline, Tool::is_done)? != Poll::Ready {
                return Ok(None);
            }
            self.turn.extend(self.session.feeds.active().iter().rev());
        }
    }

    fn lend(&mut self, next: Next) -> Option<Delivery<'_>> {
        Some(match next {
            Next::Item(id, item) => {
                self.lent = (item == Peeked::Bytes).then_some(id);
                let feed = self.session.feeds.get(id)?;
                match item {
                    Peeked::Bytes => Delivery::Bytes(Bytes { feed }),
                    Peeked::Gap(gap) => Delivery::Gap { origin: origin(feed), gap },
                    Peeked::Complete(counts) => Delivery::Complete { origin: origin(feed), counts },
                    Peeked::Broken { counts, missing } => {
                        Delivery::Broken { origin: origin(feed), counts, missing }
                    }
                    Peeked::Gone(counts) => Delivery::Gone { origin: origin(feed), counts },
                    Peeked::Nothing | Peeked::Flushed => return None,
                }
            }
            Next::Event(Event::JobEnded { handler, nspace, end: JobEnd { run, exit_code, skipped } }) => {
                self.session.remove_if_over(handler);
                Delivery::JobEnded { handler, nspace, run, exit_code, skipped }
            }
            Next::Event(Event::Rank { handler, run, info }) => Delivery::Rank { handler, run, info },
            Next::Event(Event::Missed { handler, missed }) => Delivery::Missed { handler, missed },
            Next::Event(Event::Cached { handler }) => Delivery::Cached { handler },
            Next::Event(Event::Reply { request, reply }) => Delivery::Reply { request, reply },
            Next::Event(Event::Deregistered { handler }) => {
                self.session.registrations.remove(&handler);
                Delivery::Deregistered { handler }
            }
        })
    }
}

fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    // A deadline beyond what the clock can represent never passes.
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}
