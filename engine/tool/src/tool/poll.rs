//! What a tool is told: messages, the doorbell, the time; and what follows from feeds that were
//! read to their end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use iof_proto::limits::MAX_SLOTS_PER_MESSAGE;
use iof_proto::{EffectiveOptions, FromTool, Missed, Nspace, ToTool};
use iof_shm_ring::{Attached, Grouping, Ring};

use crate::adaptive_polling::NAP;
use crate::error::LostError;
use crate::feed::{Feed, StreamOf, reader};
use crate::feeds::Settled;
use crate::link::Received;
use crate::registration::{Closing, JobEnd, Registration};
use crate::submit::Reply;
use crate::tool::Tool;
use crate::wakeup::Heard;

/// How long a tool that has news all the time leaves messages unread.
const LISTEN_EVERY: Duration = Duration::from_millis(1);

/// What [`Tool::poll`] waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poll {
    /// Active feeds may have news, or there are events.
    Ready,
    /// The time is over and there is no news. The tool is armed.
    Quiet,
    /// Nothing more will come.
    Done,
}

/// What is told of a registration, not of a stream.
#[derive(Debug)]
pub(crate) enum Event {
    JobEnded { handler: u32, nspace: Nspace, end: JobEnd },
    Missed { handler: u32, missed: Missed },
    Deregistered { handler: u32 },
    Reply { request: u32, reply: Reply },
}

impl Tool {
    /// Waits until a feed may have news or there is an event, until `deadline` at most (`None`:
    /// without end), or until `is_over`, which becomes true by messages or by feeds that were
    /// read to their end.
    ///
    /// # Errors
    /// [`LostError`] if the engine speaks nonsense. An engine that ends is no error: feeds say so.
    pub(crate) fn poll(
        &mut self,
        deadline: Option<Instant>,
        is_over: fn(&Tool) -> bool,
    ) -> Result<Poll, LostError> {
        self.settle()?;
        let (mut socket_seen, mut in_vain, mut napped) = (false, false, false);
        if self.wakeup.is_armed() {
            self.sleep(Some(Instant::now()))?;
            socket_seen = true;
        }
        loop {
            self.take_queued()?;
            self.feeds.take_ready(&self.page);
            self.feeds.take_due();
            let news = self.has_ready();
            if news || is_over(self) {
                // However much there is to read, messages are looked at; not each time, which costs as much
                // as reading.
                if !(socket_seen || news && self.heard.elapsed() < LISTEN_EVERY) {
                    self.take_messages()?;
                    socket_seen = true;
                    continue;
                }
                self.wakeup.disarm(&self.page);
                return Ok(if news { Poll::Ready } else { Poll::Done });
            }
            if in_vain && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(Poll::Quiet);
            }
            let until = [deadline, self.feeds.next_due()].into_iter().flatten().min();
            if !napped && let Some(nap) = self.may_sleep_through(until) {
                // News do not end it, messages do.
                napped = true;
                self.sleep(Instant::now().checked_add(nap))?;
                self.polling.slept(nap);
                socket_seen = true;
            } else if self.wakeup.arm(&self.page, self.feeds.slots()) {
                let began = Instant::now();
                in_vain = !self.sleep(until)?;
                self.polling.slept(began.elapsed());
                socket_seen = true;
            }
        }
    }

    /// How long the next sleep, which may last until `until`, is to be if the engine need not end
    /// it.
    fn may_sleep_through(&mut self, until: Option<Instant>) -> Option<Duration> {
        let now = Instant::now();
        let long = |until: Instant| until.saturating_duration_since(now) >= NAP;
        // A tool on an event loop of its own sleeps elsewhere.
        if until.is_none_or(long) { self.polling.next() } else { None }
    }

    /// Waits for the doorbell, if the tool is armed, or the socket, until `until` at most; whether
    /// there was anything. If not, the tool stays armed.
    fn sleep(&mut self, until: Option<Instant>) -> Result<bool, LostError> {
        let heard = self.wakeup.wait(&self.link, until)?;
        self.heard = Instant::now();
        let Heard::Ready { socket } = heard else { return Ok(false) };
        self.wakeup.disarm(&self.page);
        if socket {
            self.take_messages()?;
        }
        Ok(true)
    }

    /// Whether something can be handed out without a wait.
    pub(super) fn has_ready(&self) -> bool {
        !self.feeds.active().is_empty() || !self.events.is_empty() || self.put_back.is_some()
    }

    /// Whether every stream of every registration was read to its end and no more will be
    /// announced.
    pub(crate) fn is_drained(&self) -> bool {
        self.all_announced() && self.feeds.is_empty()
    }

    /// Whether no further stream will come.
    pub(crate) fn all_announced(&self) -> bool {
        self.gone || self.registrations.values().all(Registration::has_all_streams)
    }

    /// Forgets feeds that were read to their end, and asks for generations that feeds came to the
    /// end of.
    fn settle(&mut self) -> Result<(), LostError> {
        let Settled { ask, over, read, large } = self.feeds.settle();
        self.polling.read(read, large);
        let slots: Vec<u32> = over.iter().map(Feed::slot).collect();
        let ended: Vec<(u32, Nspace, u64)> =
            over.iter().map(|feed| (feed.handler(), feed.source().nspace.clone(), feed.run())).collect();
        // First of all: their rings are not to be touched once the engine was told.
        drop(over);
        for slots in slots.chunks(MAX_SLOTS_PER_MESSAGE) {
            self.tell(&FromTool::Drained { slots: slots.to_vec() })?;
        }
        for (handler, nspace, run) in &ended {
            if let Some(registration) = self.registrations.get_mut(handler) {
                registration.closed(nspace, *run);
            }
            self.note_job_ends(*handler, nspace);
        }
        for slot in ask {
            self.tell(&FromTool::Follow { slot })?;
        }
        ended.iter().try_for_each(|(handler, ..)| self.end_if_flushed(*handler))
    }

    fn note_job_ends(&mut self, handler: u32, nspace: &Nspace) {
        let Some(registration) = self.registrations.get_mut(&handler) else { return };
        while let Some(end) = registration.take_end(nspace) {
            self.events.push_back(Event::JobEnded { handler, nspace: nspace.clone(), end });
        }
    }

    /// Handles all that the engine has sent.
    pub(crate) fn take_messages(&mut self) -> Result<(), LostError> {
        self.heard = Instant::now();
        while !self.gone {
            match self.link.receive(false) {
                Ok(Some(received)) => self.handle(received)?,
                Ok(None) => break,
                Err(LostError::Closed) => self.engine_gone(),
                Err(lost) => return Err(self.lost(lost)),
            }
        }
        Ok(())
    }

    /// Handles what was received together with an answer.
    fn take_queued(&mut self) -> Result<(), LostError> {
        while let Some(received) = self.link.take_received() {
            self.handle(received)?;
        }
        Ok(())
    }

    pub(crate) fn handle(&mut self, received: Received) -> Result<(), LostError> {
        self.understand(received).map_err(|lost| self.lost(lost))
    }

    fn understand(&mut self, Received { message, mut fds }: Received) -> Result<(), LostError> {
        match message {
            ToTool::Ring {
                handler,
                source,
                channel,
                logged,
                run,
                slot,
                follows,
                start,
                dropped,
                non_gating,
                options,
            } => {
                let fd = fds.pop().ok_or(LostError::Unexpected { what: "a ring without its descriptor" })?;
                let ring = Arc::new(Ring::open(fd)?);
                self.feeds.use_slot(slot);
                let given = Attached { ring, slot, start, dropped, non_gating };
                match follows {
                    Some(old) => self.feeds.next_generation(old, given),
                    None => {
                        let stream = StreamOf { source, channel, logged, run };
                        self.new_feed(handler, stream, given, options)?;
                    }
                }
            }
            ToTool::Announced { handler } => {
                if let Some(registration) = self.registrations.get_mut(&handler) {
                    registration.announced = true;
                    // Who has left bytes may take them if there are no other streams.
                    self.feeds.activate_all(handler);
                }
            }
            ToTool::JobEnded { handler, nspace, run, exit_code, skipped } => {
                if let Some(registration) = self.registrations.get_mut(&handler) {
                    registration.ended(&nspace, run, exit_code, skipped);
                }
                self.note_job_ends(handler, &nspace);
            }
            ToTool::Missed { handler, missed } => {
                if self.registrations.contains_key(&handler) {
                    self.events.push_back(Event::Missed { handler, missed });
                }
            }
            // The engine knows each registration that we ask it to end.
            ToTool::Deregistered { request, result: _ } => {
                let mut asked = self.registrations.iter();
                let found = asked.find(|(_, of)| of.closing == Closing::Asked(request));
                self.events.extend(found.map(|(handler, _)| Event::Deregistered { handler: *handler }));
            }
            ToTool::Answer { request, result } => {
                self.reply(request, Reply::Answered(result));
                self.all_here(request)?;
            }
            ToTool::Pulled { request, result } => self.reply(request, Reply::Pulled(result)),
            ToTool::PushBegun { request, result } => {
                if let Ok(granted) = &result {
                    self.open_inlet(granted, fds.pop())?;
                }
                self.reply(request, Reply::PushBegun(result));
            }
            ToTool::Room { push, position } => {
                let pushing = self.pushes.get_mut(&push);
                if pushing.is_some_and(|pushing| !pushing.freed(position)) {
                    return Err(LostError::Unexpected { what: "room where nothing was filled" });
                }
            }
            ToTool::Pushed { push, report } => {
                if let Some(pushing) = self.pushes.get_mut(&push) {
                    pushing.ended(report);
                }
            }
            ToTool::Logged { request, result } => self.reply(request, Reply::Logged(result)),
            // The answer to a request that nobody waits for any more.
            ToTool::SlowTargets { .. } => {}
            ToTool::Welcome { .. } | ToTool::Refused { .. } => {
                return Err(LostError::Unexpected { what: "a second welcome" });
            }
        }
        Ok(())
    }

    fn new_feed(
        &mut self,
        handler: u32,
        stream: StreamOf,
        first: Attached,
        options: EffectiveOptions,
    ) -> Result<(), LostError> {
        let Some(registration) = self.registrations.get_mut(&handler) else { return Ok(()) };
        if matches!(registration.closing, Closing::Asked(_)) {
            // It was on its way when the engine was told.
            return Ok(());
        }
        let mut reader = reader(first, Arc::clone(&self.page), registration.start)?;
        if let Some(room) = &self.room {
            reader.tell_room(Arc::clone(room));
        }
        if options.buffering_size > 0 {
            let time = options.buffering_time.map(Duration::from_micros);
            reader.group(Some(Grouping { bytes: options.buffering_size, time }));
        }
        registration.opened(&stream.source.nspace, stream.run);
        let mut feed = Feed::new(handler, stream, reader);
        if registration.closing != Closing::No {
            feed.flush();
        }
        if self.gone {
            feed.engine_gone();
        }
        self.feeds.add(feed);
        Ok(())
    }

    /// Notes that nothing more will come from the engine, because of `lost`.
    pub(crate) fn lost(&mut self, lost: LostError) -> LostError {
        self.engine_gone();
        lost
    }

    fn engine_gone(&mut self) {
        self.gone = true;
        self.feeds.engine_gone();
        self.reply_to_all();
    }
}
