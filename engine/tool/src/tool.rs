//! A tool: one connection to an engine and the feeds that it pulls.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use iof_proto::limits::MAX_RINGS_IN_FLIGHT;
use iof_proto::rendezvous::{self, FindError, Search};
use iof_proto::{Channel, Channels, Found, FromTool, Granted, Info, PROTOCOL_VERSION, Proc, Terms, ToTool};
use iof_shm_ring::{Area, Attached, Bell, Grouping, Ring, Ringer, Start};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::{AttachError, LostError, RequestError};
use crate::feed::{Feed, FeedId, reader};
use crate::link::{Link, Received};

/// What to register for (`PMIx_IOF_pull`, RFC0025).
#[derive(Clone, Debug)]
pub struct Pull {
    /// The sources; a wildcard rank stands for a whole nspace. They need not exist yet.
    pub procs: Vec<Proc>,
    /// Their channels; stdin can't be pulled.
    pub channels: Channels,
    /// Whether to begin with the oldest byte in the engine's cache, or with what comes from now on.
    pub backlog: bool,
    /// How it is to be done (RFC0025): [`iof_proto::directive::key`] has the keys.
    pub directives: Vec<Info>,
}

impl Pull {
    /// The backlog first, and no directives.
    pub fn new(procs: Vec<Proc>, channels: Channels) -> Pull {
        Pull { procs, channels, backlog: true, directives: Vec::new() }
    }
}

/// What [`Tool::poll`] waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// [`Tool::active`] names feeds that may have news.
    News,
    /// The time is over and there is no news.
    Quiet,
    /// Every registration has ended: all feeds are over and no more will come.
    Done,
}

/// One registration.
struct Registration {
    start: Start,
    /// All of its sources are known.
    announced: bool,
}

/// A connection to an engine.
///
/// One thread at a time; it may move between threads. When the engine goes away, feeds are drained as far as
/// they are mapped and then say [`Item::Gone`](crate::Item::Gone).
pub struct Tool {
    link: Link,
    area: Arc<Area>,
    bell: Bell,
    /// Only for a tool that may hold sources back.
    room: Option<Arc<Ringer>>,
    engine_pid: u32,
    registrations: BTreeMap<u32, Registration>,
    feeds: Vec<Option<Feed>>,
    by_slot: HashMap<u32, FeedId>,
    /// Slots below this were ever used.
    slots: u32,
    active: Vec<FeedId>,
    /// Rings taken that the engine has not been told of.
    taken: u32,
    last_request: u32,
    gone: bool,
}

impl Tool {
    /// Attaches to the engine that listens at `path`, as `name` (for people who look at the engine's readers).
    ///
    /// # Errors
    /// [`AttachError`]: nobody there, refused, or the engine is another version.
    pub fn connect(path: &Path, name: &str) -> Result<Tool, AttachError> {
        Tool::over(rendezvous::connect(path)?, name)
    }

    /// Attaches to the engine that `search` finds, as [`Tool::connect`] does. Where it leaves several to be tried, that
    /// is the first that accepts.
    ///
    /// # Errors
    /// [`AttachError`]: nobody there, several from which to choose, or refused.
    pub fn find(search: &Search, name: &str) -> Result<Tool, AttachError> {
        let mut refused = None;
        let mut failed = None;
        for socket in search.sockets() {
            match socket.map_err(AttachError::from).and_then(|path| Tool::connect(&path, name)) {
                Ok(tool) => return Ok(tool),
                Err(error @ AttachError::Refused { .. }) => refused = Some(error),
                Err(error) => failed = Some(error),
            }
        }
        Err(match (refused, failed) {
            // Who was refused by one engine and found no other is helped by the reason.
            (Some(refused), None | Some(AttachError::Find(FindError::NotFound(_)))) => refused,
            (_, Some(failed)) => failed,
            (None, None) => LostError::Closed.into(),
        })
    }

    /// Attaches over a socket that is connected already.
    ///
    /// # Errors
    /// As [`Tool::connect`].
    pub fn over(socket: UnixStream, name: &str) -> Result<Tool, AttachError> {
        let mut link = Link::new(socket);
        let hello = FromTool::Hello { version: PROTOCOL_VERSION, pid: process::id(), name: name.to_owned() };
        // A name too long for a message is cut short by the caller, not here: say so.
        match link.send(&hello) {
            Ok(()) | Err(RequestError::Lost(LostError::Closed)) => {}
            Err(RequestError::Lost(lost)) => return Err(lost.into()),
            Err(other) => return Err(LostError::Socket(io::Error::other(other)).into()),
        }
        let Some(Received { message, fds }) = link.receive(true)? else {
            return Err(LostError::Closed.into());
        };
        let (engine_pid, mut fds) = match message {
            ToTool::Welcome { engine_pid, .. } => (engine_pid, fds.into_iter()),
            ToTool::Refused { status, reason } => return Err(AttachError::Refused { status, reason }),
            _ => return Err(LostError::Unexpected { what: "another message than a welcome" }.into()),
        };
        let (Some(area), Some(bell), room) = (fds.next(), fds.next(), fds.next()) else {
            return Err(LostError::Unexpected { what: "a welcome without its descriptors" }.into());
        };
        Ok(Tool {
            link,
            area: Arc::new(Area::open(area)?),
            bell: Bell::from(bell),
            room: room.map(|room| Arc::new(Ringer::from(room))),
            engine_pid,
            registrations: BTreeMap::new(),
            feeds: Vec::new(),
            by_slot: HashMap::new(),
            slots: 0,
            active: Vec::new(),
            taken: 0,
            last_request: 0,
            gone: false,
        })
    }

    /// The pid of the engine's process.
    pub fn engine_pid(&self) -> u32 {
        self.engine_pid
    }

    /// Registers for output; gives the handler id (1 or more). Feeds come into being with [`Tool::poll`].
    ///
    /// # Errors
    /// [`RequestError`]: what was asked for does not exist and never will, a limit is reached, or the engine is
    /// gone.
    pub fn pull(&mut self, pull: &Pull) -> Result<Granted, RequestError> {
        let start = if pull.backlog { Start::Oldest } else { Start::Now };
        let request = self.next_request();
        self.link.send(&FromTool::Pull {
            request,
            procs: pull.procs.clone(),
            channels: pull.channels,
            backlog: pull.backlog,
            directives: pull.directives.clone(),
        })?;
        let result = self.answer(|message| match message {
            ToTool::Pulled { request: of, result } if of == request => Ok(result),
            other => Err(other),
        })?;
        let granted = result?;
        self.registrations.insert(granted.handler, Registration { start, announced: false });
        Ok(granted)
    }

    /// Ends a registration; its feeds are gone from now on.
    ///
    /// # Errors
    /// [`RequestError`]: there is no such registration, or the engine is gone.
    pub fn deregister(&mut self, handler: u32) -> Result<(), RequestError> {
        // First of all: once the engine knows, it gives our slots to other rings.
        self.registrations.remove(&handler);
        for feed in &mut self.feeds {
            feed.take_if(|feed| feed.handler == handler);
        }
        let feeds = &self.feeds;
        self.by_slot.retain(|_, id| feeds.get(id.0).is_some_and(Option::is_some));
        let request = self.next_request();
        self.link.send(&FromTool::Deregister { request, handler })?;
        let result = self.answer(|message| match message {
            ToTool::Deregistered { request: of, result } if of == request => Ok(result),
            other => Err(other),
        })?;
        Ok(result?)
    }

    /// Asks the engine (`PMIx_Query_info`); the keys are in [`iof_proto::message::query`].
    ///
    /// # Errors
    /// [`RequestError`]: none of the keys is known, or the engine is gone.
    pub fn query(&mut self, keys: &[&str]) -> Result<Vec<Found>, RequestError> {
        let request = self.next_request();
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        self.link.send(&FromTool::Query { request, keys })?;
        let result = self.answer(|message| match message {
            ToTool::Answer { request: of, result } if of == request => Ok(result),
            other => Err(other),
        })?;
        Ok(result?)
    }

    fn next_request(&mut self) -> u32 {
        self.last_request = self.last_request.wrapping_add(1);
        self.last_request
    }

    /// Handles messages until `wanted` takes one.
    fn answer<T>(&mut self, wanted: impl Fn(ToTool) -> Result<T, ToTool>) -> Result<T, LostError> {
        loop {
            let Some(Received { message, fds }) = self.link.receive(true)? else {
                return Err(LostError::Closed);
            };
            match wanted(message) {
                Ok(answer) => return Ok(answer),
                Err(other) => self.handle(Received { message: other, fds })?,
            }
        }
    }

    /// Waits until a feed may have news, for `timeout` at most (`None`: without end), and takes note of what
    /// the engine says.
    ///
    /// # Errors
    /// [`LostError`] if the engine speaks nonsense. An engine that ends is no error: feeds say so.
    pub fn poll(&mut self, timeout: Option<Duration>) -> Result<Poll, LostError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.settle()?;
        loop {
            self.take_messages()?;
            self.take_ready();
            if !self.active.is_empty() {
                return Ok(Poll::News);
            }
            if self.is_done() {
                return Ok(Poll::Done);
            }
            if !self.area.arm(self.slots) {
                continue;
            }
            let waited = self.sleep(deadline);
            self.area.disarm();
            if !waited? {
                return Ok(Poll::Quiet);
            }
        }
    }

    /// Feeds that had news at the last [`Tool::poll`] and were not read to their end since.
    pub fn active(&self) -> &[FeedId] {
        &self.active
    }

    /// A feed, `None` if its registration was ended.
    pub fn feed(&self, id: FeedId) -> Option<&Feed> {
        self.feeds.get(id.0).and_then(Option::as_ref)
    }

    /// A feed, `None` if its registration was ended.
    pub fn feed_mut(&mut self, id: FeedId) -> Option<&mut Feed> {
        self.feeds.get_mut(id.0).and_then(Option::as_mut)
    }

    /// All feeds so far.
    pub fn feeds(&self) -> impl Iterator<Item = &Feed> {
        self.feeds.iter().flatten()
    }

    /// Forgets feeds that were read to their end, and asks for generations that feeds came to the end of.
    fn settle(&mut self) -> Result<(), LostError> {
        let mut active = std::mem::take(&mut self.active);
        let mut lost = None;
        active.retain(|id| {
            let Some(feed) = self.feeds.get_mut(id.0).and_then(Option::as_mut) else { return false };
            if let Some(slot) = feed.ask()
                && let Err(error) = self.link.send(&FromTool::Follow { slot })
            {
                lost = Some(error);
            }
            feed.active = !feed.is_settled();
            feed.active
        });
        self.active = active;
        match lost {
            Some(RequestError::Lost(LostError::Socket(error))) => Err(LostError::Socket(error)),
            // An engine that is gone is found out by reading.
            _ => Ok(()),
        }
    }

    fn take_messages(&mut self) -> Result<(), LostError> {
        while !self.gone {
            match self.link.receive(false) {
                Ok(Some(received)) => self.handle(received)?,
                Ok(None) => break,
                Err(LostError::Closed) => self.engine_gone(),
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }

    fn handle(&mut self, Received { message, mut fds }: Received) -> Result<(), LostError> {
        match message {
            ToTool::Ring { handler, source, channel, slot, follows, start, dropped, passed, terms } => {
                let fd = fds.pop().ok_or(LostError::Unexpected { what: "a ring without its descriptor" })?;
                let ring = Arc::new(Ring::open(fd)?);
                self.slots = self.slots.max(slot.saturating_add(1));
                let given = Attached { ring, slot, start, dropped, passed };
                match follows {
                    Some(old) => self.next_generation(old, given),
                    None => self.new_feed(handler, source, channel, given, terms)?,
                }
                self.ring_taken()
            }
            ToTool::Announced { handler } => {
                if let Some(registration) = self.registrations.get_mut(&handler) {
                    registration.announced = true;
                }
                Ok(())
            }
            ToTool::JobEnded { .. } => Ok(()),
            // Answers to requests that nobody waits for any more.
            ToTool::Pulled { .. } | ToTool::Deregistered { .. } | ToTool::Answer { .. } => Ok(()),
            ToTool::Welcome { .. } | ToTool::Refused { .. } => {
                Err(LostError::Unexpected { what: "a second welcome" })
            }
        }
    }

    fn new_feed(
        &mut self,
        handler: u32,
        source: Proc,
        channel: Channel,
        first: Attached,
        terms: Terms,
    ) -> Result<(), LostError> {
        // It was on its way when the registration was ended.
        let Some(registration) = self.registrations.get(&handler) else { return Ok(()) };
        let start = registration.start;
        let slot = first.slot;
        let mut reader = reader(first, Arc::clone(&self.area), start)?;
        if let Some(room) = &self.room {
            reader.tell_room(Arc::clone(room));
        }
        if terms.buffering_size > 0 {
            let time = terms.buffering_time.map(Duration::from_micros);
            reader.group(Some(Grouping { bytes: terms.buffering_size, time }));
        }
        let id = FeedId(self.feeds.len());
        self.feeds.push(Some(Feed::new(handler, source, channel, reader)));
        self.by_slot.insert(slot, id);
        // There may be news from before the engine knew whom to tell.
        self.activate(id);
        Ok(())
    }

    /// A ring that nobody waits for any more, because its registration was ended, is dropped here.
    fn next_generation(&mut self, old: u32, next: Attached) {
        let Some(id) = self.by_slot.remove(&old) else { return };
        self.by_slot.insert(next.slot, id);
        if let Some(feed) = self.feed_mut(id) {
            feed.push_next(next);
            self.activate(id);
        }
    }

    /// Tells the engine, every so many rings, that it may send more.
    fn ring_taken(&mut self) -> Result<(), LostError> {
        self.taken = self.taken.saturating_add(1);
        if self.taken < MAX_RINGS_IN_FLIGHT / 2 {
            return Ok(());
        }
        let rings = std::mem::take(&mut self.taken);
        match self.link.send(&FromTool::Taken { rings }) {
            Err(RequestError::Lost(LostError::Socket(error))) => Err(LostError::Socket(error)),
            _ => Ok(()),
        }
    }

    fn take_ready(&mut self) {
        let mut ready = Vec::new();
        self.area.take_ready(self.slots, |slot| ready.push(slot));
        for slot in ready {
            if let Some(&id) = self.by_slot.get(&slot) {
                self.activate(id);
            }
        }
    }

    fn activate(&mut self, id: FeedId) {
        let Some(feed) = self.feeds.get_mut(id.0).and_then(Option::as_mut) else { return };
        if feed.is_over() {
            return;
        }
        feed.wake();
        if !feed.active {
            feed.active = true;
            self.active.push(id);
        }
    }

    fn engine_gone(&mut self) {
        self.gone = true;
        for id in (0..self.feeds.len()).map(FeedId) {
            if let Some(feed) = self.feed_mut(id) {
                feed.engine_gone();
            }
            self.activate(id);
        }
    }

    fn is_done(&self) -> bool {
        let announced = self.gone || self.registrations.values().all(|registration| registration.announced);
        announced && self.feeds().all(Feed::is_over)
    }

    /// Waits for the doorbell or the socket; `false` if the deadline passed.
    fn sleep(&self, deadline: Option<Instant>) -> Result<bool, LostError> {
        let events = PollFlags::POLLIN;
        let mut fds = [PollFd::new(self.bell.as_fd(), events), PollFd::new(self.link.as_fd(), events)];
        let timeout = match deadline {
            None => PollTimeout::NONE,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                // Rounded up: a poll that returns a little early would spin.
                let millis = left.as_micros().div_ceil(1000);
                PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
            }
        };
        match poll(&mut fds, timeout) {
            Ok(0) if deadline.is_some_and(|deadline| Instant::now() >= deadline) => Ok(false),
            Ok(_) | Err(Errno::EINTR) => {
                self.bell.silence();
                Ok(true)
            }
            Err(errno) => Err(LostError::Socket(errno.into())),
        }
    }
}
