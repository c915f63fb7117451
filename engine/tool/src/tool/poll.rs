//! The events of a tool: messages, the doorbell, timers, and what follows when a feed has been read
//! to its end.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::Tool;
use crate::adaptive_polling::MAX_POLL_INTERVAL;
use crate::error::LostError;
use crate::link::Received;
use crate::session::ReadSince;
use crate::session::registration::RegistrationState;
use crate::wakeup::{Sleeper, Woken, wait};

/// The longest time for which a tool that always has something to read leaves messages unread.
const MESSAGE_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Returns the argument of poll(2) for a wait of at most `limit`, in milliseconds: rounded up, or a
/// loop would spin for the last part of a millisecond; -1 for no limit.
#[must_use]
pub fn poll_timeout(limit: Option<Duration>) -> i32 {
    limit.map_or(-1, |limit| limit.as_micros().div_ceil(1000).try_into().unwrap_or(i32::MAX))
}

/// The result of [`Tool::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poll {
    /// Active feeds may have something to read, or there are events.
    Ready,
    /// The deadline has passed without an event. The tool is armed.
    Quiet,
    /// Nothing more will arrive.
    Done,
}

/// A sleep that a call of [`Tool::poll`] needs.
#[derive(Clone, Copy, Debug)]
struct Sleep {
    until: Option<Instant>,
    /// The duration of a timed sleep, which the doorbell does not end.
    timed: Option<Duration>,
}

/// A call of [`BatchReader::poll_ready`](crate::BatchReader::poll_ready) in parts, between which
/// the caller sleeps.
#[derive(Debug, Default)]
pub struct PollCall {
    deadline: Option<Instant>,
    sleep: Option<Sleep>,
    /// The last sleep: the way in which it ended, and its length.
    woken: Option<(Sleep, Woken, Duration)>,
    socket_checked: bool,
    timed_out: bool,
    /// Set if there was a timed sleep.
    timed: bool,
    caught_up: bool,
}

impl PollCall {
    /// Sleeps by `wait`, as the last part of the call requires.
    pub(crate) fn sleep(
        &mut self,
        wait: impl FnOnce(Option<Instant>) -> io::Result<Woken>,
    ) -> io::Result<()> {
        if let Some(sleep) = self.sleep.take() {
            let began = Instant::now();
            let woken = wait(sleep.until)?;
            self.woken = Some((sleep, woken, began.elapsed()));
        }
        Ok(())
    }
}

impl Sleeper {
    /// Sleeps as `call` requires, or until `other` is readable, which this does not read.
    ///
    /// # Errors
    /// Those of ppoll(2).
    pub fn sleep(&self, call: &mut PollCall, other: Option<BorrowedFd<'_>>) -> Result<(), LostError> {
        call.sleep(|until| wait(&self.bell, &self.socket, other, until)).map_err(LostError::Socket)
    }
}

impl Tool {
    /// Blocks until a feed may have something to read or an event is queued, until `deadline`
    /// (`None`: without limit), or until `is_over` returns true. Messages and feeds that were read
    /// to their end can make it true.
    ///
    /// # Errors
    /// Returns [`LostError`] if the engine violates the protocol. An engine that ends is not an
    /// error: the feeds report it.
    pub(crate) fn poll(
        &mut self,
        deadline: Option<Instant>,
        is_over: fn(&Tool) -> bool,
    ) -> Result<Poll, LostError> {
        let mut call = self.begin_poll(deadline)?;
        loop {
            if let Some(poll) = self.continue_poll(&mut call, is_over)? {
                return Ok(poll);
            }
            call.sleep(|until| self.wakeup.wait(&self.link, until))?;
        }
    }

    /// Begins a call of [`Tool::poll`] in parts.
    pub(crate) fn begin_poll(&mut self, deadline: Option<Instant>) -> Result<PollCall, LostError> {
        self.settle()?;
        let mut call = PollCall { deadline, ..PollCall::default() };
        if self.wakeup.is_armed() {
            self.sleep(Some(Instant::now()))?;
            call.socket_checked = true;
        }
        Ok(call)
    }

    /// Continues a call of [`Tool::poll`]. Returns `None` if the tool must sleep first.
    pub(crate) fn continue_poll(
        &mut self,
        call: &mut PollCall,
        is_over: fn(&Tool) -> bool,
    ) -> Result<Option<Poll>, LostError> {
        if let Some(woken) = call.woken.take() {
            self.woke(call, woken)?;
        }
        loop {
            self.take_queued()?;
            self.session.take_direct();
            self.session.take_ready();
            self.session.feeds.take_due();
            self.session.end_due();
            self.send_outgoing()?;
            let ready = self.has_ready();
            if ready || is_over(self) {
                // Messages are read however much there is to read, but not each time: that costs as
                // much as reading.
                let recent = self.messages_checked.elapsed() < MESSAGE_CHECK_INTERVAL;
                // All streams of a process are announced before the first of them has bytes. The
                // announcements may have arrived after the messages were read, before the bytes.
                let behind = self.session.has_new_feeds && !call.caught_up;
                if behind || !(call.socket_checked || ready && recent) {
                    self.take_messages()?;
                    (call.socket_checked, call.caught_up) = (true, true);
                    continue;
                }
                self.wakeup.disarm(self.session.page());
                return Ok(Some(if ready { Poll::Ready } else { Poll::Done }));
            }
            if call.timed_out && call.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(Some(Poll::Quiet));
            }
            let until = [call.deadline, self.session.next_due()].into_iter().flatten().min();
            if !call.timed
                && let Some(interval) = self.timed_sleep(until)
            {
                // The doorbell does not end this sleep, a message does.
                call.timed = true;
                call.sleep =
                    Some(Sleep { until: Instant::now().checked_add(interval), timed: Some(interval) });
                return Ok(None);
            } else if self.arm() {
                call.sleep = Some(Sleep { until, timed: None });
                return Ok(None);
            }
        }
    }

    /// Announces that the tool is about to sleep. Returns `false` if there is something to read.
    fn arm(&mut self) -> bool {
        self.session.direct.as_ref().is_none_or(|direct| direct.queue.arm())
            && self.wakeup.arm(self.session.page(), self.session.feeds.slots())
    }

    /// Notes that the tool has slept.
    fn woke(
        &mut self,
        call: &mut PollCall,
        (sleep, woken, slept): (Sleep, Woken, Duration),
    ) -> Result<(), LostError> {
        let woken = self.awake(woken)?;
        call.timed_out = sleep.timed.is_none() && !woken;
        self.polling.record_sleep(sleep.timed.unwrap_or(slept));
        call.socket_checked = true;
        Ok(())
    }

    /// Returns the duration of the next sleep if it is to be a timed sleep, which the engine need
    /// not end. `until` limits the sleep.
    fn timed_sleep(&mut self, until: Option<Instant>) -> Option<Duration> {
        let now = Instant::now();
        let long = |until: Instant| until.saturating_duration_since(now) >= MAX_POLL_INTERVAL;
        // A tool on a foreign event loop passes a short limit: it sleeps in that loop.
        if until.is_none_or(long) { self.polling.next_interval() } else { None }
    }

    /// Blocks until the doorbell rings (if the tool is armed) or the socket becomes readable, or
    /// until `until`. Returns whether either happened; if not, the tool stays armed.
    fn sleep(&mut self, until: Option<Instant>) -> Result<bool, LostError> {
        let woken = self.wakeup.wait(&self.link, until)?;
        self.awake(woken)
    }

    /// Notes that a sleep has ended. Returns whether the doorbell or the socket has ended it.
    fn awake(&mut self, woken: Woken) -> Result<bool, LostError> {
        self.messages_checked = Instant::now();
        let Woken::Ready { socket } = woken else { return Ok(false) };
        self.wakeup.disarm(self.session.page());
        if socket {
            self.take_messages()?;
        }
        Ok(true)
    }

    /// Does the part of [`Tool::poll`] that the thread which writes the streams may do while the
    /// owner of the tool sleeps. Returns whether all feeds that have something to read have only
    /// bytes, which are then to be consumed, see
    /// [`Feeds::settle_step`](crate::session::feeds::Feeds::settle_step).
    pub(crate) fn begin_step(&mut self) -> bool {
        // Messages come first: the streams of a process must all be known before one is read.
        if !self.wakeup.is_armed() || self.session.has_new_feeds || self.session.gone || self.has_ready() {
            return false;
        }
        self.session.take_direct();
        self.session.take_ready();
        self.session.feeds.have_only_bytes()
    }

    /// Returns whether something can be delivered without a wait.
    pub(super) fn has_ready(&self) -> bool {
        !self.session.feeds.active().is_empty() || !self.session.events.is_empty() || self.put_back.is_some()
    }

    /// Returns whether every stream of every registration was read to its end and no further one will
    /// be announced, and whether the jobs have ended if the tool waits for that.
    pub(crate) fn is_drained(&self) -> bool {
        let is_known =
            if self.waits_for_ends { RegistrationState::is_over } else { RegistrationState::has_all_streams };
        let registrations = &self.session.registrations;
        self.session.feeds.is_empty() && (self.session.gone || registrations.values().all(is_known))
    }

    /// Returns whether no further stream will be announced.
    pub(crate) fn all_announced(&self) -> bool {
        self.session.gone || self.session.registrations.values().all(RegistrationState::has_all_streams)
    }

    /// Removes feeds that were read to their end, and requests the next generation of feeds that
    /// have drained theirs.
    fn settle(&mut self) -> Result<(), LostError> {
        let ReadSince { bytes, percent } = self.session.settle();
        self.polling.record_read(bytes, percent);
        self.send_outgoing()
    }

    /// Handles every message that the engine has sent.
    pub(super) fn take_messages(&mut self) -> Result<(), LostError> {
        self.messages_checked = Instant::now();
        self.session.has_new_feeds = false;
        while !self.session.gone {
            match self.link.receive() {
                Ok(Some(received)) => self.handle(received)?,
                Ok(None) => break,
                Err(LostError::Closed) => self.session.engine_gone(),
                Err(lost) => return Err(self.lost(lost)),
            }
        }
        Ok(())
    }

    /// Handles messages that were received together with an answer.
    fn take_queued(&mut self) -> Result<(), LostError> {
        while let Some(received) = self.link.take_received() {
            self.handle(received)?;
        }
        Ok(())
    }

    pub(super) fn handle(&mut self, received: Received) -> Result<(), LostError> {
        self.session.receive(received).map_err(|lost| self.lost(lost))?;
        self.send_outgoing()
    }

    /// Records that the engine has disconnected because of `lost`, and returns `lost`.
    pub(super) fn lost(&mut self, lost: LostError) -> LostError {
        self.session.engine_gone();
        lost
    }
}
