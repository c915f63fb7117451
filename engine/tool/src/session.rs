//! A tool's side of the protocol, without its connection: what it has requested, received and not
//! delivered yet. Messages to the engine are queued; the owner of the connection sends them.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use iof_proto::limits::MAX_SLOTS_PER_MESSAGE;
use iof_proto::{EffectiveOptions, Failure, FromTool, Nspace, PushGranted, Status, ToTool};
use iof_shm_ring::{Attached, Filler, Grouping, ReaderPage, Ringer, Start};

use self::event::Event;
use self::feed::{Feed, StreamInfo, reader};
use self::feeds::{Feeds, Settled};
use self::registration::{Closing, RegistrationState};
use self::reply::Reply;
use self::request::{Request, Requests};
use crate::direct::DirectSource;
use crate::error::{LostError, RequestError};
use crate::link::Received;
use crate::push::Pushing;

pub(crate) mod delivery;
pub(crate) mod event;
pub(crate) mod feed;
pub(crate) mod feeds;
pub(crate) mod registration;
pub(crate) mod reply;
pub(crate) mod request;

/// An answer that no correct engine sends.
pub(crate) const UNFIT: LostError =
    LostError::Unexpected { what: "an answer of another kind than its request" };

/// The state that a tool keeps of its requests, registrations, streams and pushes.
pub(crate) struct Session {
    page: Arc<ReaderPage>,
    /// Wakes the engine when room is made. Only a gating tool has one.
    room: Option<Arc<Ringer>>,
    pub registrations: BTreeMap<u32, RegistrationState>,
    pub feeds: Feeds,
    /// The streams without rings, with the registration that they belong to.
    pub direct: Option<DirectSource>,
    /// The pushes, by their numbers.
    pub pushes: BTreeMap<u32, Pushing>,
    pub requests: Requests,
    /// The events that were received and not delivered yet.
    pub events: VecDeque<Event>,
    /// Set if streams were announced since this was last set to `false`.
    pub has_new_feeds: bool,
    /// The engine has disconnected.
    pub gone: bool,
    outgoing: Vec<FromTool>,
}

/// The amount that was read since the last call of [`Session::settle`].
pub(crate) struct ReadSince {
    pub bytes: u64,
    /// The largest part of a ring that a stream has had of them, in percent.
    pub percent: u64,
}

impl Session {
    pub(crate) fn new(page: Arc<ReaderPage>, room: Option<Arc<Ringer>>) -> Session {
        Session {
            page,
            room,
            registrations: BTreeMap::new(),
            feeds: Feeds::default(),
            direct: None,
            pushes: BTreeMap::new(),
            requests: Requests::default(),
            events: VecDeque::new(),
            has_new_feeds: false,
            gone: false,
            outgoing: Vec::new(),
        }
    }

    pub(crate) fn page(&self) -> &Arc<ReaderPage> {
        &self.page
    }

    /// Activates the feeds whose ready bits are set.
    pub(crate) fn take_ready(&mut self) {
        self.feeds.take_ready(&self.page);
    }

    /// Takes what was pushed of streams without rings.
    pub(crate) fn take_direct(&mut self) {
        let Some(DirectSource { queue, handler, nspace, taken }) = &mut self.direct else { return };
        *taken = queue.take(mem::take(taken));
        for (rank, channel, item) in taken.drain(..) {
            self.feeds.push_direct((*handler, nspace), (rank, channel), item);
        }
    }

    /// Removes and returns the messages that are to be sent, in this order.
    pub(crate) fn take_outgoing(&mut self) -> Vec<FromTool> {
        mem::take(&mut self.outgoing)
    }

    /// Queues a request of the session itself.
    fn request(&mut self, request: Request, message: impl FnOnce(u32) -> FromTool) {
        if !self.gone {
            let number = self.requests.next_number();
            self.outgoing.push(message(number));
            self.requests.sent(number, request);
        }
    }

    /// Begins to end a registration, see [`Tool::deregister`](crate::Tool::deregister).
    ///
    /// # Errors
    /// The engine is gone, or the registration does not exist or is being ended already.
    pub(crate) fn deregister(&mut self, handler: u32) -> Result<(), RequestError> {
        if self.gone {
            return Err(LostError::Closed.into());
        }
        let registration = self.registrations.get_mut(&handler).filter(|found| found.closing == Closing::No);
        let Some(registration) = registration else {
            let reason = format!("this tool has no registration {handler}");
            return Err(Failure::new(Status::ERR_NOT_FOUND, reason).into());
        };
        registration.closing = Closing::Awaiting;
        self.feeds.flush(handler);
        self.request(Request::Barrier { handler }, |request| FromTool::Barrier { request });
        Ok(())
    }

    /// Begins to end the registrations whose time has come.
    pub(crate) fn end_due(&mut self) {
        let is_due = |registration: &mut RegistrationState| {
            registration.cached && registration.ends_at.take_if(|at| *at <= Instant::now()).is_some()
        };
        let due = self.registrations.iter_mut().filter_map(|(id, found)| is_due(found).then_some(*id));
        for handler in due.collect::<Vec<_>>() {
            // Fails if it is being ended already.
            let _ = self.deregister(handler);
        }
    }

    /// Returns when the tool must check feeds or registrations again.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let ends = self.registrations.values().filter(|found| found.cached).filter_map(|found| found.ends_at);
        ends.chain(self.feeds.next_due()).min()
    }

    /// Handles the answer to a barrier: everything that the engine sent before it has arrived.
    fn barrier_answered(&mut self, handler: u32) {
        if let Some(registration) = self.registrations.get_mut(&handler) {
            registration.closing = Closing::Flushing;
        }
        self.end_if_flushed(handler);
    }

    /// Asks the engine to end a registration that is closing, once everything due to it was
    /// delivered.
    fn end_if_flushed(&mut self, handler: u32) {
        let Some(registration) = self.registrations.get_mut(&handler) else { return };
        if registration.closing == Closing::Flushing && registration.is_drained() {
            // Its readers are dropped: once the engine knows, it gives their slots to other rings.
            registration.closing = Closing::Asked;
            self.request(Request::Deregister { handler }, |request| FromTool::Deregister {
                request,
                handler,
            });
        }
    }

    /// Removes a registration that is over once none of its events is queued.
    pub(crate) fn remove_if_over(&mut self, handler: u32) {
        let is_queued = |event: &Event| match event {
            Event::JobEnded { handler: other, .. }
            | Event::Rank { handler: other, .. }
            | Event::Missed { handler: other, .. }
            | Event::Cached { handler: other } => *other == handler,
            Event::Deregistered { .. } | Event::Reply { .. } => false,
        };
        if self.registrations.get(&handler).is_some_and(RegistrationState::is_over)
            && !self.events.iter().any(is_queued)
        {
            self.registrations.remove(&handler);
        }
    }

    /// Removes feeds that were read to their end, and requests the next generation of feeds that
    /// have drained theirs.
    pub(crate) fn settle(&mut self) -> ReadSince {
        let Settled { drained, over, current, read, percent } = self.feeds.settle();
        for handler in current {
            if let Some(registration) = self.registrations.get_mut(&handler) {
                registration.behind = registration.behind.saturating_sub(1);
            }
            self.report_cached(handler);
        }
        let slots: Vec<u32> = over.iter().filter_map(|feed| feed.reader_id().map(u32::from)).collect();
        let ended: Vec<(u32, Nspace, u64)> =
            over.iter().map(|feed| (feed.handler(), feed.source().nspace.clone(), feed.run())).collect();
        // The readers are dropped first: once the engine is notified, their rings must not be
        // touched.
        drop(over);
        let messages = slots.chunks(MAX_SLOTS_PER_MESSAGE);
        self.outgoing.extend(messages.map(|slots| FromTool::Drained { slots: slots.to_vec() }));
        for (handler, nspace, run) in &ended {
            if let Some(registration) = self.registrations.get_mut(handler) {
                registration.closed(nspace, *run);
            }
            self.note_job_ends(*handler, nspace);
        }
        self.outgoing.extend(drained.into_iter().map(|reader| FromTool::Follow { slot: reader.into() }));
        ended.iter().for_each(|(handler, ..)| self.end_if_flushed(*handler));
        ReadSince { bytes: read, percent }
    }

    fn note_job_ends(&mut self, handler: u32, nspace: &Nspace) {
        let Some(registration) = self.registrations.get_mut(&handler) else { return };
        while let Some(end) = registration.take_end(nspace) {
            self.events.push_back(Event::JobEnded { handler, nspace: nspace.clone(), end });
        }
    }

    /// Handles a message of the engine.
    ///
    /// # Errors
    /// The engine violates the protocol.
    pub(crate) fn receive(&mut self, Received { message, mut fds, ring }: Received) -> Result<(), LostError> {
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
                let ring = ring.ok_or(LostError::Unexpected { what: "a ring without its descriptor" })?;
                let attached = Attached { ring, id: slot.into(), start, dropped, non_gating };
                self.feeds.use_slot(attached.id);
                match follows {
                    Some(old) => self.feeds.next_generation(old.into(), attached),
                    None => {
                        let stream = StreamInfo { source, channel, logged, run };
                        self.new_feed(handler, stream, attached, options)?;
                    }
                }
            }
            ToTool::Cached { handler } => self.cached(handler),
            ToTool::Announced { handler } => {
                if let Some(registration) = self.registrations.get_mut(&handler) {
                    registration.announced = true;
                    // A tool that deferred bytes may consume them now, unless it has other
                    // streams.
                    self.feeds.activate_all(handler);
                }
            }
            ToTool::Ranks { handler, run, ranks } => {
                let event = |info| Event::Rank { handler, run, info: Box::new(info) };
                self.add_events(handler, ranks.into_iter().map(event));
            }
            ToTool::JobEnded { handler, nspace, run, exit_code, skipped } => {
                if let Some(registration) = self.registrations.get_mut(&handler) {
                    registration.ended(&nspace, run, exit_code, skipped);
                }
                self.note_job_ends(handler, &nspace);
            }
            ToTool::Missed { handler, missed } => {
                let registration = self.registrations.get(&handler);
                let missed = registration.map_or(Vec::new(), |registration| registration.divide(missed));
                self.add_events(handler, missed.into_iter().map(|missed| Event::Missed { handler, missed }));
            }
            ToTool::Deregistered { request, result: _ } => self.deregistered(request)?,
            ToTool::Answer { request, result } => self.answered(request, Reply::Answered(result))?,
            ToTool::Pulled { request, result } => self.answered(request, Reply::Pulled(result))?,
            ToTool::PushBegun { request, result } => {
                if let Ok(granted) = &result {
                    self.open_inlet(granted, fds.pop())?;
                }
                self.answered(request, Reply::PushBegun(result))?;
            }
            ToTool::Room { push, position } => {
                let pushing = self.pushes.get_mut(&push);
                if pushing.is_some_and(|pushing| !pushing.freed(position)) {
                    return Err(LostError::Unexpected { what: "room for bytes that were never filled" });
                }
            }
            ToTool::Pushed { push, report } => {
                if let Some(pushing) = self.pushes.get_mut(&push) {
                    pushing.ended(report);
                }
            }
            ToTool::Logged { request, result } => self.answered(request, Reply::Logged(result))?,
            ToTool::SlowTargets { request, slow } => self.answered(request, Reply::SlowTargets(Ok(slow)))?,
            ToTool::Signalled { request, result } => self.answered(request, Reply::Signalled(result))?,
            ToTool::Spawned { request, result } => self.answered(request, Reply::Spawned(result))?,
            ToTool::Welcome { .. } | ToTool::Refused { .. } | ToTool::Exchanged(_) | ToTool::Fenced(_) => {
                return Err(LostError::Unexpected { what: "a second welcome" });
            }
        }
        Ok(())
    }

    /// Queues events of a registration, unless it has ended.
    fn add_events(&mut self, handler: u32, events: impl IntoIterator<Item = Event>) {
        if self.registrations.contains_key(&handler) {
            self.events.extend(events);
        }
    }

    fn new_feed(
        &mut self,
        handler: u32,
        stream: StreamInfo,
        first: Attached,
        options: EffectiveOptions,
    ) -> Result<(), LostError> {
        let Some(registration) = self.registrations.get_mut(&handler) else { return Ok(()) };
        if registration.closing == Closing::Asked {
            // The ring was on its way when the engine received the request to end the registration.
            return Ok(());
        }
        let start = if registration.from.is_newest() { Start::Now } else { Start::Oldest };
        let mut reader = reader(first, Arc::clone(&self.page), start)?;
        if let Some(room) = &self.room {
            reader.set_room_bell(Arc::clone(room));
        }
        if options.buffering_size > 0 {
            let time = options.buffering_time.map(Duration::from_micros);
            reader.group(Some(Grouping { bytes: options.buffering_size, time }));
        }
        registration.opened(&stream.source.nspace, stream.run);
        let begin = registration.begin(&(stream.source.clone(), stream.channel, stream.logged));
        let mut feed = Feed::new(handler, stream, reader);
        feed.limit(registration.from, registration.until);
        begin.into_iter().for_each(|offset| feed.begin_at(offset));
        if !registration.cached {
            feed.await_cached(registration.from);
        }
        if registration.closing != Closing::No {
            feed.flush();
        }
        if self.gone {
            feed.engine_gone();
        }
        self.feeds.add(feed);
        self.has_new_feeds = true;
        Ok(())
    }

    /// Notes that the rings of a registration contain all that was cached.
    fn cached(&mut self, handler: u32) {
        let Some(registration) = self.registrations.get_mut(&handler) else { return };
        registration.cached = true;
        registration.behind = self.feeds.cached(handler, registration.reports_cached);
        self.report_cached(handler);
    }

    /// Queues the report that a registration has delivered all that was cached, if it has.
    fn report_cached(&mut self, handler: u32) {
        let Some(registration) = self.registrations.get_mut(&handler) else { return };
        if registration.cached && registration.reports_cached && registration.behind == 0 {
            registration.reports_cached = false;
            self.events.push_back(Event::Cached { handler });
        }
    }

    /// Maps the inlet of a push that the engine has granted.
    fn open_inlet(&mut self, granted: &PushGranted, inlet: Option<OwnedFd>) -> Result<(), LostError> {
        let inlet = inlet.ok_or(LostError::Unexpected { what: "a granted push without its inlet" })?;
        // SAFETY: the engine created the inlet for this push alone, and there is one push of this
        // number. It sent the inlet on this tool's connection, which nothing else uses (see
        // `Tool::over`). The positions passed to `freed` come from the same connection.
        let filler = unsafe { Filler::open(inlet) }?;
        self.pushes.insert(granted.push, Pushing::new(filler));
        Ok(())
    }

    /// Queues the report of the bytes put into an inlet since the last report, and of their end.
    pub(crate) fn report_filled(&mut self, push: u32) {
        let unreported = self.pushes.get_mut(&push).and_then(Pushing::take_unreported);
        self.outgoing.extend(unreported.map(|(bytes, last)| FromTool::Fill { push, bytes, last }));
    }

    /// Passes the answer to the request `number` on to its owner. Ignores it if the request was
    /// abandoned.
    fn answered(&mut self, number: u32, reply: Reply) -> Result<(), LostError> {
        let Some(request) = self.requests.take(number) else { return Ok(()) };
        match (request, &reply) {
            (Request::Pull(registration), Reply::Pulled(result)) => {
                if let Ok(granted) = result {
                    self.registrations.insert(granted.handler, registration);
                }
            }
            (Request::Query, Reply::Answered(_))
            | (Request::Push, Reply::PushBegun(_))
            | (Request::SlowTargets, Reply::SlowTargets(_))
            | (Request::Log, Reply::Logged(_))
            | (Request::Signal, Reply::Signalled(_))
            | (Request::Spawn, Reply::Spawned(_)) => {}
            (Request::Barrier { handler }, Reply::Answered(_)) => {
                self.barrier_answered(handler);
                return Ok(());
            }
            _ => return Err(UNFIT),
        }
        if let Some(reply) = self.requests.end_wait(number, reply) {
            self.events.push_back(Event::Reply { request: number, reply });
        }
        Ok(())
    }

    /// Handles the answer to the end of a registration, which is always a success: the engine knows
    /// each registration that this tool ends.
    fn deregistered(&mut self, number: u32) -> Result<(), LostError> {
        match self.requests.take(number) {
            Some(Request::Deregister { handler }) => self.events.push_back(Event::Deregistered { handler }),
            Some(_) => return Err(UNFIT),
            None => {}
        }
        Ok(())
    }

    /// Records that the engine has disconnected, and ends every request.
    pub(crate) fn engine_gone(&mut self) {
        self.gone = true;
        self.feeds.engine_gone();
        let failed = self.requests.fail_all().into_iter();
        self.events.extend(failed.map(|(request, reply)| Event::Reply { request, reply }));
    }
}
