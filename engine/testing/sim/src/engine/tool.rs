//! Simulated tools: the real state machines of `iof-tool`, with decisions of the run in place of a
//! program, and checks of all that they receive, send and deliver.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::sync::Arc;

use iof_core::{ClientProcess, Grant};
use iof_proto::{Decoder, Failure, FromTool, LogReport, PROTOCOL_VERSION, Proc, ToTool, encode};
use iof_shm_ring::{Attached, Bell, ReaderId, ReaderPage, Ring};
use iof_tool::test_utils::{Feeds, ProtocolSide, ReadingSide, StreamInfo};
use iof_tool::{FeedId, Peeked};

use super::pusher::{Push, PushPlan};
use super::registration::{Closing, Pull, Registration};
use super::truth::Truth;
use crate::counts::Counts;
use crate::driver::{ConnectionId, Packet, PeerCredentials, Shared, SimulatedEngine};
use crate::rng::Rng;
use crate::tool::Summary;

mod answers;

/// The behaviour of a tool.
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
    /// Has shut its receiving side. It sends requests, and their answers cannot be sent to it.
    HalfClosed,
}

/// A request without an answer.
#[derive(Debug)]
pub enum Request {
    Pull(Pull),
    /// With its number, if its answer is predicted.
    Query(Option<u32>),
    /// With the number of the message, if it has one.
    Log(Option<usize>),
    /// With its processes and its number. The ranks of a job that has remote ones, too, are not
    /// predicted.
    Signal(Vec<Proc>, i32),
    Push(PushPlan),
    /// With its number.
    Spawn(usize),
    /// With the number of its push.
    SlowTargets(u32),
}

/// A tool.
#[derive(Debug)]
pub struct Tool {
    /// Its behaviour.
    pub manner: Manner,
    /// Set if it is the embedder's own.
    pub own: bool,
    /// Its connection.
    pub id: ConnectionId,
    /// Its user.
    pub uid: u32,
    /// Its process.
    pub process: ClientProcess,
    /// Set if it is stopped.
    pub paused: bool,
    /// Set if its end of the connection is closed.
    pub closed: bool,
    /// Set if the engine has refused it or is gone.
    pub refused: bool,
    /// Set if the engine has disconnected it.
    pub lost: bool,
    /// Its reader page, once it is welcome.
    pub page: Option<Arc<ReaderPage>>,
    bell: Option<Bell>,
    /// The state that a real tool keeps, once it is welcome.
    side: Option<ProtocolSide>,
    /// The registrations whose pulls were answered.
    granted: BTreeSet<u32>,
    /// Its requests without an answer.
    pub requests: BTreeMap<u32, Request>,
    /// Its registrations by their handlers.
    pub registrations: BTreeMap<u32, Registration>,
    /// Its pushes by their numbers.
    pub pushes: BTreeMap<u32, Push>,
    /// The answers to messages that were not checked.
    pub log_reports: Vec<(usize, Result<LogReport, Failure>)>,
    /// Streams whose bytes it has borrowed, and those that it has deferred.
    held: Vec<FeedId>,
    deferred: Vec<FeedId>,
    /// The total that it has read.
    pub summary: Summary,
    /// The events that have happened to it.
    pub counts: Counts,
    /// The limits for which its requests were refused, until that was checked.
    pub refused_for: Vec<&'static str>,
    /// The readers that a hostile tool knows of.
    pub claimed: Vec<ReaderId>,
}

impl Tool {
    /// Creates a tool that has connected, and sends its hello.
    pub fn new(
        manner: Manner,
        own: Option<Grant>,
        (id, credentials): (ConnectionId, PeerCredentials),
        engine: &mut SimulatedEngine,
    ) -> Tool {
        let tool = Tool {
            manner,
            own: own.is_some(),
            id,
            uid: credentials.uid,
            process: credentials.into(),
            paused: false,
            closed: false,
            refused: false,
            lost: false,
            page: None,
            bell: None,
            side: None,
            granted: BTreeSet::new(),
            requests: BTreeMap::new(),
            registrations: BTreeMap::new(),
            pushes: BTreeMap::new(),
            log_reports: Vec::new(),
            held: Vec::new(),
            deferred: Vec::new(),
            summary: Summary::default(),
            counts: Counts::default(),
            refused_for: Vec::new(),
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

    /// Sends a request, which `submit` makes.
    pub fn request(
        &mut self,
        engine: &mut SimulatedEngine,
        request: Request,
        submit: impl FnOnce(&mut ProtocolSide) -> (u32, FromTool),
    ) {
        let Some(side) = &mut self.side else { return };
        let (number, message) = submit(side);
        self.requests.insert(number, request);
        self.send(engine, &message);
    }

    /// Begins to end a registration.
    pub fn deregister(&mut self, engine: &mut SimulatedEngine, handler: u32) {
        let (Some(registration), Some(side)) = (self.registrations.get_mut(&handler), &mut self.side) else {
            return;
        };
        if registration.is_open() {
            registration.closing = Closing::Flushing;
            side.deregister(handler).expect("the registration of a tool that is connected");
            self.send_outgoing(engine);
        }
    }

    /// Returns whether nothing is left of its requests, registrations and streams.
    pub fn is_idle(&self) -> bool {
        self.registrations.is_empty() && self.side.as_ref().is_none_or(ProtocolSide::is_idle)
    }

    /// Returns whether it has streams.
    pub fn has_streams(&self) -> bool {
        self.side.as_ref().is_some_and(ProtocolSide::has_streams)
    }

    fn side(&mut self) -> &mut ProtocolSide {
        self.side.as_mut().expect("the side of a tool that is welcome")
    }

    fn reading(&mut self) -> ReadingSide<&mut Feeds> {
        self.side().reading()
    }

    /// Sends what follows from what the tool has received and read. Returns whether there was
    /// something.
    fn send_outgoing(&mut self, engine: &mut SimulatedEngine) -> bool {
        let messages = self.side().take_outgoing();
        for message in &messages {
            if let FromTool::Deregister { handler, .. } = message {
                let registration = self.registrations.get_mut(handler).expect("the registration to end");
                assert!(registration.closing == Closing::Flushing && registration.is_drained());
                registration.closing = Closing::Asked;
            }
            self.send(engine, message);
        }
        !messages.is_empty()
    }

    /// Takes messages, reads what is ready, and sends what follows. Returns whether it did
    /// anything.
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
        self.reading().take_ready(&page);
        if eager || rng.chance(128) {
            let deferred = std::mem::take(&mut self.deferred);
            deferred.into_iter().for_each(|feed| self.reading().rearm(feed));
        }
        for feed in self.reading().active() {
            if eager || rng.chance(160) {
                busy |= self.read(feed, truth, rng, eager);
            }
        }
        busy |= self.settle_feeds(engine, truth);
        self.fill_pushes(engine, rng, eager);
        self.reading().take_ready(&page);
        if self.reading().active().is_empty() {
            self.reading().arm(&page);
        }
        busy
    }

    fn receive(&mut self, engine: &mut SimulatedEngine, Packet { frame, shared }: Packet, truth: &Truth) {
        let message = Decoder::new().decode(&mut frame.as_slice()).expect("a message").expect("a whole one");
        match (message, shared) {
            (ToTool::Welcome { may_block, .. }, Shared::Welcome { page, bell, room }) => {
                assert_eq!(may_block, room.is_some());
                assert_eq!(may_block, engine.grant(self.id) != Grant::Never, "the grant of tool {}", self.id);
                assert!(self.page.replace(Arc::clone(&page)).is_none(), "a second welcome");
                self.bell = Some(bell);
                // SAFETY: the engine keeps the protocol.
                self.side = Some(unsafe { ProtocolSide::new(page, room.map(Arc::new)) });
            }
            (ToTool::Refused { .. }, _) => self.refused = true,
            (message, shared) => {
                self.check(&message, &shared, truth);
                let (ring, inlet) = match shared {
                    Shared::Ring(ring) => (Some(ring), None),
                    Shared::Inlet(inlet) => {
                        (None, Some(inlet.as_fd().try_clone_to_owned().expect("a descriptor")))
                    }
                    Shared::Nothing | Shared::Welcome { .. } => (None, None),
                };
                let pushed = if let ToTool::Pushed { push, .. } = &message { Some(*push) } else { None };
                self.side().receive(message, ring, inlet).expect("a message that fits");
                if let Some(push) = pushed {
                    let report = self.side().take_report(push).expect("the report of a push");
                    self.counts.count("push", if report.partial.is_empty() { "complete" } else { "partial" });
                    self.pushes.remove(&push).expect("a push that was begun").check(&report);
                    truth.stdins.check_received((self.id, push), &report);
                }
                self.take_delivered(truth);
                self.send_outgoing(engine);
            }
        }
    }

    /// Returns a registration. It may have ended, but its pull was answered.
    fn registration(&mut self, handler: u32) -> Option<&mut Registration> {
        let granted = self.granted.contains(&handler);
        assert!(granted, "a message about registration {handler} precedes the answer");
        self.registrations.get_mut(&handler)
    }

    /// Checks a message before the tool handles it.
    fn check(&mut self, message: &ToTool, shared: &Shared, truth: &Truth) {
        match message {
            ToTool::Ring { follows: Some(_), .. } => self.summary.follows += 1,
            ToTool::Ring { .. } => self.check_ring(message, shared, truth),
            ToTool::Announced { handler } => {
                self.registration(*handler).map(Registration::announced);
            }
            ToTool::JobEnded { handler, nspace, run, skipped, .. } => {
                self.counts.count("end of a job", if *skipped == 0 { "single" } else { "merged" });
                if let Some(registration) = self.registration(*handler) {
                    registration.job_ended(nspace, *run, *skipped, truth);
                }
            }
            ToTool::Missed { handler, missed } => {
                let missed = missed.clone();
                self.counts.count("streams", "missed");
                if let Some(registration) = self.registration(*handler) {
                    registration.missed(missed.nspace, missed.channel, missed.streams, missed.bytes, truth);
                }
            }
            ToTool::Room { push, .. } => assert!(self.pushes.contains_key(push), "room in no push"),
            _ => {}
        }
    }

    fn check_ring(&mut self, message: &ToTool, shared: &Shared, truth: &Truth) {
        let ToTool::Ring {
            handler,
            source,
            channel,
            logged,
            run,
            slot,
            start,
            dropped,
            non_gating,
            options,
            ..
        } = message
        else {
            return;
        };
        let Shared::Ring(ring) = shared else { panic!("a ring without its memory") };
        let (ring, id): (Arc<Ring>, ReaderId) = (Arc::clone(ring), (*slot).into());
        let attached = Attached { ring, id, start: *start, dropped: *dropped, non_gating: *non_gating };
        let tool = self.id;
        let Some(registration) = self.registration(*handler) else { return };
        if registration.closing != Closing::Asked {
            let stream = StreamInfo { source: source.clone(), channel: *channel, logged: *logged, run: *run };
            let may_block = truth.configurations.may_block((tool, *handler), &stream);
            let is_first = truth.configurations.is_first((tool, *handler), &stream);
            assert_eq!(*options, registration.options(), "the options for {stream:?}");
            registration.opened(&stream, &attached, truth, (may_block, is_first));
            let begin = registration.feeds[&stream].begin;
            truth.messages.check_begin((tool, *handler), &stream, begin);
        }
    }

    /// Checks that the bytes which it has borrowed are still what they were.
    fn check_held(&mut self, truth: &Truth) {
        let Some(side) = &mut self.side else { return };
        for id in std::mem::take(&mut self.held) {
            let (Some((handler, _)), Some(info)) = (side.reading().counts(id), side.reading().info(id))
            else {
                continue;
            };
            let feed = self.registrations.get(&handler).and_then(|found| found.feeds.get(&info));
            let right = feed.is_none_or(|feed| truth.has(&info, feed.next, side.reading().bytes(id)));
            assert!(right, "borrowed bytes of {info:?} have changed");
        }
    }

    /// Reads what a stream has next. Returns whether there was something.
    fn read(&mut self, id: FeedId, truth: &Truth, rng: &mut Rng, eager: bool) -> bool {
        let side = self.side.as_mut().expect("the side of a tool that is welcome");
        for step in 0..if eager { 1000 } else { 1 + rng.below(3) } {
            let (Some((handler, _)), Some(info)) = (side.reading().counts(id), side.reading().info(id))
            else {
                return step > 0;
            };
            let peeked = side.reading().peek(id);
            let registration = self.registrations.get_mut(&handler).expect("the registration of a stream");
            let feed = registration.feeds.get_mut(&info).expect("an announced stream");
            match peeked {
                Peeked::Bytes => {
                    let reading = side.reading();
                    let found = reading.bytes(id);
                    let most = if eager { found.len() } else { rng.size(found.len() as u64) as usize };
                    assert!(truth.has(&info, feed.next, &found[..most]), "wrong bytes of {info:?}");
                    if !eager && rng.chance(24) {
                        side.reading().defer(id);
                        self.deferred.push(id);
                        return true;
                    }
                    self.summary.delivered += most as u64;
                    feed.deliver(most as u64);
                    let keep = !eager && rng.chance(48);
                    side.reading().consume(id, most, !keep);
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
                    feed.complete(&info, counts.produced, None, truth);
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
                Peeked::Broken { counts, missing } => {
                    self.summary.ends += 1;
                    feed.complete(&info, counts.produced, Some(missing), truth);
                    return true;
                }
                Peeked::Gone(_) => panic!("the engine runs"),
                Peeked::Nothing => return step > 0,
            }
        }
        true
    }

    /// Sends what follows from the reading. Returns whether there was something.
    fn settle_feeds(&mut self, engine: &mut SimulatedEngine, truth: &Truth) -> bool {
        self.side().settle();
        self.take_delivered(truth);
        self.send_outgoing(engine)
    }

    fn fill_pushes(&mut self, engine: &mut SimulatedEngine, rng: &mut Rng, eager: bool) {
        let side = self.side.as_mut().expect("the side of a tool that is welcome");
        for (number, push) in &mut self.pushes {
            if eager || rng.chance(128) {
                push.fill(side, *number, if eager { 1 << 20 } else { rng.size(16384) });
            }
        }
        self.send_outgoing(engine);
    }

    /// Closes its end of the connection.
    pub fn close(&mut self, engine: &mut SimulatedEngine) {
        self.closed = true;
        engine.close(self.id);
        self.drop_state();
        (self.page, self.bell) = (None, None);
    }

    /// Shuts its receiving side. It reads nothing from then on.
    pub fn shut_receiving(&mut self, engine: &mut SimulatedEngine) {
        self.manner = Manner::HalfClosed;
        engine.shut_receiving(self.id);
        self.drop_state();
        self.counts.count("tool", "half-closed");
    }

    fn drop_state(&mut self) {
        self.side = None;
        self.registrations.clear();
        self.requests.clear();
        self.pushes.clear();
    }
}
