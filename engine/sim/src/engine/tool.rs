//! Simulated tools: the protocol's other side, and the reading with the real state machines of
//! `iof-tool`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use iof_engine::Grant;
use iof_engine::simulation::{ConnectionId, Packet, Shared, SimulatedEngine};
use iof_proto::{Decoder, FromTool, PROTOCOL_VERSION, Query, ToTool, encode};
use iof_shm_ring::{Attached, Bell, Filler, Grouping, ReaderId, ReaderPage, Ringer};
use iof_tool::test_utils::{NewStream, ReadingSide, StreamInfo};
use iof_tool::{FeedId, Peeked};

use super::pusher::{Push, PushPlan};
use super::registration::{Closing, Pull, Registration};
use super::truth::Truth;
use crate::rng::Rng;
use crate::tool::Summary;

/// How a tool behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Reads everything as soon as it can.
    Prompt,
    /// Reads some, keeps some borrowed, defers some.
    Slow,
    /// Sends nothing.
    Silent,
    /// Sends anything, and reads nothing.
    Hostile,
}

/// A request without an answer.
#[derive(Debug)]
pub enum Request {
    Pull(Pull),
    Barrier(u32),
    Deregister(u32),
    Query,
    Log,
    Signal,
    Push(PushPlan),
    SlowTargets,
}

/// A tool.
#[derive(Debug)]
pub struct Tool {
    /// How it behaves.
    pub manner: Manner,
    /// Whether it is the embedder's own.
    pub own: bool,
    /// Its connection.
    pub id: ConnectionId,
    /// Whether it is stopped.
    pub paused: bool,
    /// Whether its end of the connection is closed.
    pub closed: bool,
    /// Whether the engine has refused it or is gone.
    pub refused: bool,
    /// Whether the engine has disconnected it.
    pub lost: bool,
    /// Its reader page, once it is welcome.
    pub page: Option<Arc<ReaderPage>>,
    bell: Option<Bell>,
    room: Option<Arc<Ringer>>,
    /// The streams that it reads.
    pub side: ReadingSide,
    last_request: u32,
    /// The registrations whose pulls were answered.
    granted: BTreeSet<u32>,
    /// Its requests without an answer.
    pub requests: BTreeMap<u32, Request>,
    /// Its registrations by their handlers.
    pub registrations: BTreeMap<u32, Registration>,
    /// Its pushes by their numbers.
    pub pushes: BTreeMap<u32, Push>,
    /// Streams whose bytes it has borrowed, and those that it has deferred.
    held: Vec<FeedId>,
    deferred: Vec<FeedId>,
    /// What it has read in all.
    pub summary: Summary,
    /// The readers that a hostile tool knows of.
    pub claimed: Vec<ReaderId>,
}

impl Tool {
    /// Creates a tool that has connected, and sends its hello.
    pub fn new(manner: Manner, own: Option<Grant>, id: ConnectionId, engine: &mut SimulatedEngine) -> Tool {
        let tool = Tool {
            manner,
            own: own.is_some(),
            id,
            paused: false,
            closed: false,
            refused: false,
            lost: false,
            page: None,
            bell: None,
            room: None,
            side: ReadingSide::default(),
            last_request: 0,
            granted: BTreeSet::new(),
            requests: BTreeMap::new(),
            registrations: BTreeMap::new(),
            pushes: BTreeMap::new(),
            held: Vec::new(),
            deferred: Vec::new(),
            summary: Summary::default(),
            claimed: Vec::new(),
        };
        if manner != Manner::Silent || own.is_some() {
            let hello = FromTool::Hello { version: PROTOCOL_VERSION, pid: 1, name: format!("tool {id}") };
            tool.send(engine, &hello);
        }
        tool
    }

    /// Returns whether it is honest and runs.
    pub fn runs(&self) -> bool {
        self.is_honest() && !self.paused && !self.closed && !self.refused
    }

    /// Returns whether it keeps to the protocol.
    pub fn is_honest(&self) -> bool {
        matches!(self.manner, Manner::Prompt | Manner::Slow)
    }

    /// Sends a message.
    pub fn send(&self, engine: &mut SimulatedEngine, message: &FromTool) {
        let frame = encode(message).expect("a message within the limits");
        engine.send(self.id, &frame);
    }

    /// Sends a request.
    pub fn request(
        &mut self,
        engine: &mut SimulatedEngine,
        request: Request,
        message: impl FnOnce(u32) -> FromTool,
    ) {
        self.last_request += 1;
        self.requests.insert(self.last_request, request);
        self.send(engine, &message(self.last_request));
    }

    /// Begins to end a registration.
    pub fn deregister(&mut self, engine: &mut SimulatedEngine, handler: u32) {
        let Some(registration) = self.registrations.get_mut(&handler) else { return };
        if registration.closing != Closing::No {
            return;
        }
        registration.closing = Closing::Awaiting;
        self.side.flush(handler);
        // As the real tool does: the engine answers in order, so this is a barrier.
        let barrier = |request| FromTool::Query { request, queries: Vec::<Query>::new() };
        self.request(engine, Request::Barrier(handler), barrier);
    }

    /// Takes messages, reads what is ready, and sends what follows. Returns whether it did anything.
    pub fn run(&mut self, engine: &mut SimulatedEngine, truth: &Truth, rng: &mut Rng, eager: bool) -> bool {
        if !self.runs() {
            return false;
        }
        let eager = eager || self.manner == Manner::Prompt;
        let mut busy = false;
        self.check_held(truth);
        while let Some(packet) = engine.receive(self.id) {
            busy = true;
            self.receive(engine, packet, truth);
            if !eager && rng.chance(64) {
                break;
            }
        }
        if engine.is_closed(self.id) && !self.refused {
            self.lost = true;
            return busy;
        }
        let Some(page) = self.page.clone() else { return busy };
        page.disarm();
        self.bell.as_ref().inspect(|bell| _ = bell.silence());
        self.side.take_ready(&page);
        if eager || rng.chance(128) {
            std::mem::take(&mut self.deferred).into_iter().for_each(|feed| self.side.rearm(feed));
        }
        for feed in self.side.active() {
            if eager || rng.chance(160) {
                busy |= self.read(feed, truth, rng, eager);
            }
        }
        busy |= self.settle_feeds(engine);
        self.fill_pushes(engine, rng, eager);
        self.side.take_ready(&page);
        if self.side.active().is_empty() {
            self.side.arm(&page);
        }
        busy
    }

    fn receive(&mut self, engine: &mut SimulatedEngine, Packet { frame, shared }: Packet, truth: &Truth) {
        let message = Decoder::new().decode(&mut frame.as_slice()).expect("a message").expect("a whole one");
        match (message, shared) {
            (ToTool::Welcome { may_block, .. }, Shared::Welcome { page, bell, room }) => {
                assert_eq!(may_block, room.is_some());
                assert!(self.page.replace(page).is_none(), "a second welcome");
                (self.bell, self.room) = (Some(bell), room.map(Arc::new));
            }
            (ToTool::Refused { .. }, _) => self.refused = true,
            (message @ ToTool::Ring { .. }, Shared::Ring(ring)) => self.take_ring(message, ring, truth),
            (ToTool::Announced { handler }, _) => {
                self.registration(handler).map(Registration::announced);
            }
            (ToTool::JobEnded { handler, nspace, run, skipped, .. }, _) => {
                if let Some(registration) = self.registration(handler) {
                    registration.job_ended(&nspace, run, skipped, truth);
                }
            }
            (ToTool::Missed { handler, missed }, _) => {
                if let Some(registration) = self.registration(handler) {
                    registration.missed(missed.nspace, missed.channel, missed.streams, missed.bytes);
                }
            }
            (ToTool::Room { push, position }, _) => {
                let push = self.pushes.get_mut(&push).expect("room in a push that was begun");
                push.freed(position);
            }
            (ToTool::Pushed { push, report }, _) => {
                self.pushes.remove(&push).expect("a push that was begun").check(&report);
            }
            (message, shared) => self.answered(engine, message, shared, truth),
        }
    }

    /// Returns a registration. It may have ended, but its pull was answered.
    fn registration(&mut self, handler: u32) -> Option<&mut Registration> {
        let granted = self.granted.contains(&handler);
        assert!(granted, "a message about registration {handler} precedes the answer");
        self.registrations.get_mut(&handler)
    }

    fn take_ring(&mut self, message: ToTool, ring: Arc<iof_shm_ring::Ring>, truth: &Truth) {
        let ToTool::Ring {
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
        } = message
        else {
            return;
        };
        let attached = Attached { ring, id: slot.into(), start, dropped, non_gating };
        if let Some(old) = follows {
            self.summary.follows += 1;
            // SAFETY: the engine keeps the protocol.
            return unsafe { self.side.follow(old.into(), attached) };
        }
        let may_block = self.room.is_some();
        let Some(registration) = self.registration(handler) else { return };
        if registration.closing == Closing::Asked {
            return;
        }
        let stream = StreamInfo { source, channel, logged, run };
        registration.opened(&stream, &attached, truth, may_block);
        let time = options.buffering_time.map(Duration::from_micros);
        let grouping =
            (options.buffering_size > 0).then_some(Grouping { bytes: options.buffering_size, time });
        let (start, flushes) = (registration.pull.start, registration.closing != Closing::No);
        let page = self.page.as_ref().expect("a welcome");
        let new = NewStream { handler, stream, ring: attached, start, room: self.room.clone(), grouping };
        // SAFETY: the engine keeps the protocol.
        unsafe { self.side.add(page, new) }.expect("the slot is there");
        if flushes {
            self.side.flush(handler);
        }
    }

    fn answered(&mut self, engine: &mut SimulatedEngine, message: ToTool, shared: Shared, truth: &Truth) {
        let number = match &message {
            ToTool::Pulled { request, .. }
            | ToTool::Deregistered { request, .. }
            | ToTool::Answer { request, .. }
            | ToTool::PushBegun { request, .. }
            | ToTool::SlowTargets { request, .. }
            | ToTool::Logged { request, .. }
            | ToTool::Signalled { request, .. } => *request,
            other => panic!("unexpected {other:?}"),
        };
        let request = self.requests.remove(&number).expect("a request that was not answered");
        match (request, message) {
            (Request::Pull(pull), ToTool::Pulled { result, .. }) => {
                if let Ok(granted) = result {
                    self.granted.insert(granted.handler);
                    let registration = Registration::new(pull, truth);
                    assert!(self.registrations.insert(granted.handler, registration).is_none());
                }
            }
            (Request::Barrier(handler), ToTool::Answer { .. }) => {
                if let Some(registration) = self.registrations.get_mut(&handler) {
                    registration.closing = Closing::Flushing;
                }
                self.end_if_flushed(engine, handler);
            }
            (Request::Deregister(handler), ToTool::Deregistered { .. }) => {
                self.registrations.remove(&handler);
            }
            (Request::Push(plan), ToTool::PushBegun { result, .. }) => {
                if let (Ok(granted), Shared::Inlet(inlet)) = (result, shared) {
                    let file = inlet.as_fd().try_clone_to_owned().expect("a descriptor");
                    // SAFETY: this is the only filler.
                    let filler = unsafe { Filler::open(file) }.expect("an inlet");
                    self.pushes.insert(granted.push, Push::new(plan, filler));
                }
            }
            (Request::Query, ToTool::Answer { .. })
            | (Request::Log, ToTool::Logged { .. })
            | (Request::Signal, ToTool::Signalled { .. })
            | (Request::SlowTargets, ToTool::SlowTargets { .. }) => {}
            (request, answer) => panic!("{answer:?} answers {request:?}"),
        }
    }

    /// Asks the engine to end a registration once everything due was read.
    fn end_if_flushed(&mut self, engine: &mut SimulatedEngine, handler: u32) {
        let Some(registration) = self.registrations.get_mut(&handler) else { return };
        if registration.closing == Closing::Flushing && registration.is_drained() {
            registration.closing = Closing::Asked;
            let message = |request| FromTool::Deregister { request, handler };
            self.request(engine, Request::Deregister(handler), message);
        }
    }

    /// Checks that the bytes which it has borrowed are still what they were.
    fn check_held(&mut self, truth: &Truth) {
        for id in std::mem::take(&mut self.held) {
            let (Some((handler, _)), Some(info)) = (self.side.counts(id), self.side.info(id)) else {
                continue;
            };
            let feed = self.registrations.get(&handler).and_then(|found| found.feeds.get(&info));
            let right = feed.is_none_or(|feed| truth.has(&info, feed.next, self.side.bytes(id)));
            assert!(right, "borrowed bytes of {info:?} have changed");
        }
    }

    /// Reads what a stream has next. Returns whether there was something.
    fn read(&mut self, id: FeedId, truth: &Truth, rng: &mut Rng, eager: bool) -> bool {
        for step in 0..if eager { 1000 } else { 1 + rng.below(3) } {
            let (Some((handler, _)), Some(info)) = (self.side.counts(id), self.side.info(id)) else {
                return step > 0;
            };
            let peeked = self.side.peek(id);
            let registration = self.registrations.get_mut(&handler).expect("the registration of a stream");
            let feed = registration.feeds.get_mut(&info).expect("an announced stream");
            match peeked {
                Peeked::Bytes => {
                    let found = self.side.bytes(id);
                    let most = if eager { found.len() } else { rng.size(found.len() as u64) as usize };
                    assert!(truth.has(&info, feed.next, &found[..most]), "wrong bytes of {info:?}");
                    if !eager && rng.chance(24) {
                        self.side.defer(id);
                        self.deferred.push(id);
                        return true;
                    }
                    self.summary.delivered += most as u64;
                    feed.deliver(most as u64);
                    let keep = !eager && rng.chance(48);
                    self.side.consume(id, most, !keep);
                    if keep {
                        self.held.push(id);
                        return true;
                    }
                }
                Peeked::Gap(gap) => {
                    self.summary.lost += gap.lost;
                    feed.lose(&info, gap.offset, gap.lost);
                }
                Peeked::Complete(counts) => {
                    self.summary.ends += 1;
                    feed.complete(&info, counts.produced, truth);
                    return true;
                }
                Peeked::Flushed => {
                    assert!(
                        registration.closing != Closing::No,
                        "the registration of {info:?} has not ended"
                    );
                    feed.ended = true;
                    return true;
                }
                Peeked::Broken { .. } => panic!("no stream is broken off"),
                Peeked::Gone(_) => panic!("the engine runs"),
                Peeked::Nothing => return step > 0,
            }
        }
        true
    }

    /// Sends what follows from the reading. Returns whether there was something.
    fn settle_feeds(&mut self, engine: &mut SimulatedEngine) -> bool {
        let requests = self.side.settle();
        let busy = !requests.drained.is_empty() || !requests.follow.is_empty();
        let slots: Vec<u32> = requests.drained.iter().map(|(reader, ..)| (*reader).into()).collect();
        if !slots.is_empty() {
            self.send(engine, &FromTool::Drained { slots });
        }
        for reader in requests.follow {
            self.send(engine, &FromTool::Follow { slot: reader.into() });
        }
        let handlers: Vec<u32> = self.registrations.keys().copied().collect();
        for handler in handlers {
            self.end_if_flushed(engine, handler);
            let registration = &self.registrations[&handler];
            if registration.closing == Closing::No && registration.is_over() {
                self.registrations.remove(&handler);
            }
        }
        busy
    }

    fn fill_pushes(&mut self, engine: &mut SimulatedEngine, rng: &mut Rng, eager: bool) {
        for (number, push) in &mut self.pushes {
            if eager || rng.chance(128) {
                let most = if eager { 1 << 20 } else { rng.size(16384) };
                if let Some((bytes, last)) = push.fill(most) {
                    let frame = encode(&FromTool::Fill { push: *number, bytes, last }).expect("a message");
                    engine.send(self.id, &frame);
                }
            }
        }
    }

    /// Closes its end of the connection.
    pub fn close(&mut self, engine: &mut SimulatedEngine) {
        self.closed = true;
        engine.close(self.id);
        self.side = ReadingSide::default();
        self.registrations.clear();
        self.requests.clear();
        self.pushes.clear();
        (self.page, self.bell, self.room) = (None, None, None);
    }
}
