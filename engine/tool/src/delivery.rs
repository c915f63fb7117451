//! What a tool gets, one thing after the other: the core that all ways of use come down to.

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

/// One source and channel of one registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin<'a> {
    /// The registration.
    pub handler: u32,
    /// The process that writes.
    pub source: &'a Proc,
    /// The channel it writes to.
    pub channel: Channel,
    /// It is not what the process has written there, but what was [logged](Tool::log) there on its
    /// behalf: a stream of its own, beside the other.
    pub logged: bool,
}

/// What comes next of any registration.
///
/// For each registration and stream come bytes and gaps in the stream's order, and then, once,
/// either `Complete` or `Gone`; for each registration and job, `JobEnded` once all streams of the
/// job are complete.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Delivery<'a> {
    /// Bytes, in place.
    Bytes(Bytes<'a>),
    /// Bytes are missing here.
    Gap {
        /// Of which stream.
        origin: Origin<'a>,
        /// Where, and how many.
        gap: Gap,
    },
    /// The stream is complete (`PMIX_IOF_COMPLETE`): every byte of it was handed out or reported as
    /// a gap.
    Complete {
        /// Which stream.
        origin: Origin<'a>,
        /// Its books.
        counts: Counts,
    },
    /// The engine went away before the stream was complete. What was in memory has been handed out;
    /// what the source has written since is not known.
    Gone {
        /// Which stream.
        origin: Origin<'a>,
        /// Its books, as far as they go.
        counts: Counts,
    },
    /// A job is over, and so are all of its streams. Jobs that have one name one after the other
    /// end one after the other.
    JobEnded {
        /// The registration that this is told to.
        handler: u32,
        /// The job.
        nspace: Nspace,
        /// Which of the jobs that have had this name: a later one has a higher number.
        run: u64,
        /// Its exit code, as a shell would show it; `None` if nobody knows.
        exit_code: Option<i32>,
        /// Earlier jobs of this name that have ended and are not told of one by one, because this
        /// tool read too little for too long. 0 in general.
        skipped: u64,
    },
    /// Streams that are complete and do not come, because this tool reads too many already: it is
    /// slow, and the launcher has [forgotten](iof_proto::limits::MAX_FORGOTTEN_PER_TOOL) their
    /// jobs. What it gets of all streams of a name, what is reported as gaps, and this, are
    /// together what was produced.
    Missed {
        /// The registration that this is told to.
        handler: u32,
        /// What is missing.
        missed: Missed,
    },
    /// What came of a request that was not waited for, see [`Tool::submit_pull`].
    Reply {
        /// Its number.
        request: u32,
        /// The engine's answer.
        reply: Reply,
    },
    /// The registration has ended, as [`Tool::deregister`] asked for. It was handed out all that it
    /// was due.
    Deregistered {
        /// The registration that there was.
        handler: u32,
    },
}

impl Delivery<'_> {
    /// The registration that this is for; 0, which is none, of a reply that grants none.
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

    /// The stream that this is of; `None` if it is of a job or of the registration itself.
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

/// Bytes of one stream, where the engine's kernel put them: contiguous, and not to be overwritten
/// while they are borrowed, whatever the engine and the source do.
#[derive(Clone, Copy)]
pub struct Bytes<'a> {
    pub(crate) feed: &'a Feed,
}

impl<'a> Bytes<'a> {
    /// Which stream they are of.
    pub fn origin(&self) -> Origin<'a> {
        origin(self.feed)
    }

    /// How many bytes the source had produced before the first of these.
    pub fn offset(&self) -> u64 {
        self.feed.counts().produced
    }

    /// When the first of them was read from its source, in nanoseconds since 1970, if that is
    /// known. Bytes that were read together have the same time.
    pub fn time(&self) -> Option<u64> {
        self.feed.time()
    }

    /// Appends from which [offset](Bytes::offset) on they were read when, in their order, as
    /// [`Bytes::time`] would say it.
    pub fn times(&self, times: &mut Vec<(u64, u64)>) {
        self.feed.times(times);
    }

    /// What comes behind them, as far as is known now.
    pub fn behind(&self) -> Behind {
        self.feed.behind()
    }

    /// How many bytes the stream's ring holds when full: while so many are not consumed, nothing
    /// more can come.
    pub fn capacity(&self) -> u64 {
        self.feed.capacity()
    }

    /// The same bytes, for as long as the tool is borrowed.
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

/// What was found and is to be lent.
#[derive(Debug)]
pub(crate) enum Next {
    Of(FeedId, Item),
    Event(Event),
}

/// What one step did.
enum Step {
    Found(Next),
    /// It was for a callback.
    Called,
    Nothing,
}

impl Tool {
    /// What comes next of any registration; waits for it, for `timeout` at most (`None`: without
    /// end, zero: not at all). `None` if nothing came in time, and at once when nothing more
    /// will come, see [`Tool::is_done`]; while there is a [persistent](crate::Pull::persistent)
    /// registration, that is when the engine has gone. What belongs to a registration made by
    /// [`Tool::pull_with`] goes to its callback on the way.
    ///
    /// Bytes are consumed, which makes room for the source, when this is called again, unless
    /// [`Tool::consume`] did otherwise.
    ///
    /// Streams take turns, so none waits longer than for one delivery of each other. Where output
    /// is [buffered](iof_proto::directive::key::PMIX_IOF_BUFFERING_SIZE), bytes come when a
    /// group is full or its time is over, or if nothing more can follow them.
    ///
    /// # Errors
    /// [`LostError`] when the engine spoke nonsense, once. From then on it counts as gone; what is
    /// in memory still comes. An engine that ends is no error.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Option<Delivery<'_>>, LostError> {
        let deadline = deadline(timeout);
        loop {
            match self.step(deadline)? {
                Step::Found(next) => return Ok(self.lend(next)),
                Step::Called => {}
                Step::Nothing => return Ok(None),
            }
        }
    }

    /// Waits as [`Tool::next`] does for what comes next, and calls its callback; `false` if it has
    /// none, if nothing came in time, or if nothing more will come.
    ///
    /// For tools that only use [`Tool::pull_with`]. What has no callback stays for [`Tool::next`],
    /// and until that is called this gives `false` at once; so a tool that uses both calls
    /// [`Tool::next`] instead of this.
    ///
    /// # Errors
    /// As [`Tool::next`].
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

    /// Consumes the first `n` bytes of the last delivery (at most all); the others come again, in
    /// the stream's next turn. Does nothing if it was consumed already, or was no bytes.
    pub fn consume(&mut self, n: usize) {
        if let Some(feed) = self.lent.take().and_then(|id| self.feeds.get_mut(id)) {
            feed.consume(feed.bytes().len().min(n));
            // What is left may be overwritten where the policy wants it.
            feed.release();
        }
    }

    fn step(&mut self, deadline: Option<Instant>) -> Result<Step, LostError> {
        let Some(next) = self.look_for(deadline)? else { return Ok(Step::Nothing) };
        let handler = match &next {
            Next::Of(id, _) => self.feeds.get(*id).map(Feed::handler),
            Next::Event(
                Event::JobEnded { handler, .. }
                | Event::Missed { handler, .. }
                | Event::Deregistered { handler },
            ) => Some(*handler),
            // Not for a registration's callback.
            Next::Event(Event::Reply { .. }) => return Ok(Step::Found(next)),
        };
        let Some(handler) = handler else { return Ok(Step::Nothing) };
        let registration = self.registrations.get_mut(&handler);
        let Some(mut callback) = registration.and_then(|of| of.callback.take()) else {
            return Ok(Step::Found(next));
        };
        if let Some(delivery) = self.lend(next) {
            callback(&delivery);
        }
        self.consume(usize::MAX);
        // Unless that was its end.
        if let Some(registration) = self.registrations.get_mut(&handler) {
            registration.callback = Some(callback);
        }
        Ok(Step::Called)
    }

    /// Looks at the feeds in turn.
    fn look_for(&mut self, deadline: Option<Instant>) -> Result<Option<Next>, LostError> {
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
                    Some(item) => return Ok(Some(Next::Of(id, item))),
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
            Next::Of(id, item) => {
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
                self.forget_if_over(handler);
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
    // A time beyond what the clock can show never comes.
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}
