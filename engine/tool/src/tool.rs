//! A tool: one connection to an engine, its requests and its registrations.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use iof_proto::rendezvous::{self, FindError, Search};
use iof_proto::{Channels, Failure, FromTool, Granted, Info, PROTOCOL_VERSION, Proc, Status, ToTool, socket};
use iof_shm_ring::{Bell, ReaderPage, Ringer};
use nix::unistd::geteuid;

use crate::adaptive_polling::AdaptivePolling;
use crate::delivery::{Delivery, Next};
use crate::error::{AttachError, LostError, RequestError};
use crate::feeds::{FeedId, Feeds};
use crate::link::{Link, Received};
use crate::push::Pushing;
use crate::registration::{Callback, Closing, Registration};
use crate::submit::Pending;
use crate::wakeup::Wakeup;

mod poll;

pub(crate) use poll::{Event, Poll};

/// The longest time for which attaching to an engine waits for the engine's answer after the engine
/// has accepted the connection. The engine's host has
/// [`APPROVAL_LIMIT`](iof_proto::limits::APPROVAL_LIMIT) of it to approve the tool.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// The parameters of a registration for output (`PMIx_IOF_pull`, RFC0025).
#[derive(Clone, Debug)]
pub struct Pull {
    /// The processes whose output to receive. A wildcard rank means all ranks of the job. The job
    /// need not exist yet.
    pub procs: Vec<Proc>,
    /// The output channels to receive. [`Channels::ALL`] means all output channels; any other set
    /// with stdin is an error.
    pub channels: Channels,
    /// Whether to begin with the oldest byte in the engine's cache. Otherwise only output that the
    /// engine reads after the registration is delivered.
    pub backlog: bool,
    /// Whether the registration outlives its jobs. If so, it also delivers later jobs of the same
    /// names, until it is [deregistered](Tool::deregister) or the engine ends. Otherwise it ends
    /// when the end of each job in `procs` was delivered. Later jobs of the same names are not part
    /// of it.
    pub persistent: bool,
    /// The directives (RFC0025), such as the cache size. [`iof_proto::directive::key`] lists their
    /// keys.
    pub directives: Vec<Info>,
}

impl Pull {
    /// Creates the parameters of a registration for `channels` of `procs`, without directives. It
    /// delivers the cached output first, and lasts until the jobs have ended.
    pub fn new(procs: Vec<Proc>, channels: Channels) -> Pull {
        Pull { procs, channels, backlog: true, persistent: false, directives: Vec::new() }
    }

    pub(crate) fn message(&self, request: u32) -> FromTool {
        let Pull { procs, channels, backlog, persistent, directives } = self.clone();
        FromTool::Pull { request, procs, channels, backlog, persistent, directives }
    }
}

/// A connection to an engine.
///
/// # Threads
/// A tool is used by one thread at a time and may move between threads. To wait in one thread and
/// send requests from another, use two tools.
///
/// # When the engine disconnects
/// The bytes that are in memory are still delivered. Then each stream that was not complete ends
/// with [`Delivery::Gone`]. Requests fail with [`LostError::Closed`]. A tool does not reconnect,
/// because another engine has other jobs.
pub struct Tool {
    pub(crate) link: Link,
    page: Arc<ReaderPage>,
    wakeup: Wakeup,
    polling: AdaptivePolling,
    /// When the socket was last checked for messages.
    messages_checked: Instant,
    /// Wakes the engine when room is made. Only a gating tool has one.
    room: Option<Arc<Ringer>>,
    engine_pid: u32,
    pub(crate) registrations: BTreeMap<u32, Registration>,
    pub(crate) feeds: Feeds,
    /// The pushes, by their numbers.
    pub(crate) pushes: BTreeMap<u32, Pushing>,
    /// The non-blocking requests that are not answered yet, by their numbers.
    pub(crate) pending: BTreeMap<u32, Pending>,
    pub(crate) events: VecDeque<Event>,
    /// The feeds that have not been read yet in the current round.
    pub(crate) turn: Vec<FeedId>,
    /// What was found but not delivered yet.
    pub(crate) put_back: Option<Next>,
    /// The feed whose bytes were delivered and are not consumed yet.
    pub(crate) lent: Option<FeedId>,
    last_request: u32,
    pub(crate) gone: bool,
}

impl Tool {
    /// Attaches to the engine that listens at `path`. `name` is shown in the engine's list of
    /// readers and need not be unique. Blocks for at most [`rendezvous::CONNECT_LIMIT`] while the
    /// engine's queue of connections is full, and for at most [`HANDSHAKE_LIMIT`] until the engine
    /// answers.
    ///
    /// # Errors
    /// Returns [`AttachError`] if no engine listens at `path`, if the engine does not answer,
    /// refuses this tool or has another protocol version, or if its process belongs neither to the
    /// user of this process nor to root.
    pub fn connect(path: &Path, name: &str) -> Result<Tool, AttachError> {
        let (socket, _) = connect(path)?;
        // SAFETY: the socket was created by `connect` and is passed to nothing but this tool.
        unsafe { Tool::over(socket, name) }
    }

    /// Attaches to the engine that `search` finds, as [`Tool::connect`] does. A search may have
    /// several steps (see [`Target`](rendezvous::Target)); the first engine that accepts is used.
    ///
    /// # Errors
    /// Returns [`AttachError`] if the search finds no engine, if it finds several engines of which
    /// the caller must choose one, or if attaching failed.
    pub fn find(search: &Search, name: &str) -> Result<Tool, AttachError> {
        find(search, |path| Tool::connect(path, name))
    }

    /// Attaches `count` times to the engine that [`Tool::find`] finds, for example for separate
    /// readers of stdout and stderr. All connections are made before the first is used. So if
    /// the engine ends meanwhile, it has accepted either all of the tools or none.
    ///
    /// # Errors
    /// Returns the errors of [`Tool::find`], and [`AttachError::Replaced`] if another engine
    /// replaced the first between two connections.
    pub fn find_several(search: &Search, name: &str, count: usize) -> Result<Vec<Tool>, AttachError> {
        find(search, |path| {
            let connected = (0..count).map(|_| connect(path)).collect::<Result<Vec<_>, _>>()?;
            let (sockets, pids): (Vec<UnixStream>, Vec<u32>) = connected.into_iter().unzip();
            if pids.iter().any(|pid| Some(pid) != pids.first()) {
                return Err(AttachError::Replaced { path: path.to_owned() });
            }
            // SAFETY: each socket was created by `connect` and is passed to nothing but its tool.
            sockets.into_iter().map(|socket| unsafe { Tool::over(socket, name) }).collect()
        })
    }

    /// Attaches over a connected socket. Blocks for at most [`HANDSHAKE_LIMIT`] until the engine
    /// answers.
    ///
    /// # Errors
    /// The same as [`Tool::connect`].
    ///
    /// # Safety
    /// The engine does not overwrite the bytes that a tool borrows, but only while the tool is
    /// connected and follows the protocol. Therefore nothing else may write to this socket or shut
    /// it down until the tool is dropped.
    pub unsafe fn over(socket: UnixStream, name: &str) -> Result<Tool, AttachError> {
        // A deadline that the clock can't represent counts as passed.
        let now = Instant::now();
        let deadline = now.checked_add(HANDSHAKE_LIMIT).unwrap_or(now);
        let mut link = Link::new(socket);
        let hello = FromTool::Hello { version: PROTOCOL_VERSION, pid: process::id(), name: name.to_owned() };
        // A name too long for a message is an error: shortening it is up to the caller.
        match link.send(&hello) {
            Ok(()) | Err(RequestError::Lost(LostError::Closed)) => {}
            Err(RequestError::Lost(lost)) => return Err(lost.into()),
            Err(other) => return Err(LostError::Socket(io::Error::other(other)).into()),
        }
        let Some(Received { message, fds }) = link.receive_until(deadline)? else {
            let pid = socket::peer(&link).map_or(0, |engine| engine.pid);
            return Err(AttachError::Silent { pid });
        };
        let (engine_pid, mut fds) = match message {
            ToTool::Welcome { engine_pid, .. } => (engine_pid, fds.into_iter()),
            ToTool::Refused { status, reason } => return Err(AttachError::Refused { status, reason }),
            _ => return Err(LostError::Unexpected { what: "a message other than a welcome" }.into()),
        };
        let (Some(page), Some(bell), room) = (fds.next(), fds.next(), fds.next()) else {
            return Err(LostError::Unexpected { what: "a welcome without its descriptors" }.into());
        };
        let wakeup = Wakeup::new(Bell::from(bell), &link).map_err(LostError::Socket)?;
        Ok(Tool {
            link,
            page: Arc::new(ReaderPage::open(page)?),
            wakeup,
            polling: AdaptivePolling::new(),
            messages_checked: now,
            room: room.map(|room| Arc::new(Ringer::from(room))),
            engine_pid,
            registrations: BTreeMap::new(),
            feeds: Feeds::default(),
            pushes: BTreeMap::new(),
            pending: BTreeMap::new(),
            events: VecDeque::new(),
            turn: Vec::new(),
            put_back: None,
            lent: None,
            last_request: 0,
            gone: false,
        })
    }

    /// Returns the pid of the engine's process.
    pub fn engine_pid(&self) -> u32 {
        self.engine_pid
    }

    /// Returns whether the connection has ended: the engine ended or closed it. Bytes that are in
    /// memory are still delivered.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Returns whether the engine disconnected before it had announced every stream of every
    /// registration, so that streams may be missing. [Persistent](Pull::persistent) registrations
    /// do not count: they have no last stream.
    pub fn misses_streams(&self) -> bool {
        self.gone && self.registrations.values().any(Registration::misses_streams)
    }

    /// Registers for output (`PMIx_IOF_pull`). Returns the id of the registration (PMIx's handler
    /// id), 1 or more, and the keys of optional directives that the engine ignores. [`Tool::recv`]
    /// delivers the output. Blocks until the engine and its host have answered.
    ///
    /// # Errors
    /// Returns [`RequestError`] if `pull` names no process, no output channel, or a rank that its
    /// job does not have; if a required directive can't be honoured, the host refuses, or a limit
    /// is reached; or if the connection has ended.
    pub fn pull(&mut self, pull: &Pull) -> Result<Granted, RequestError> {
        self.register(pull, None)
    }

    /// Registers like [`Tool::pull`], but passes the deliveries to `callback`. It is called in
    /// [`Tool::dispatch`], [`Tool::recv`] and the other methods that receive deliveries.
    ///
    /// The callback corresponds to RFC0025's `pmix_iof_cbfunc_t`: a delivery has a handler, source,
    /// channel and payload, and [`Delivery::Complete`] stands for `PMIX_IOF_COMPLETE`. The bytes
    /// are consumed when it returns.
    ///
    /// # Errors
    /// The same as [`Tool::pull`]; `callback` is dropped then.
    pub fn pull_with(
        &mut self,
        pull: &Pull,
        callback: impl FnMut(&Delivery<'_>) + Send + 'static,
    ) -> Result<Granted, RequestError> {
        self.register(pull, Some(Box::new(callback)))
    }

    fn register(&mut self, pull: &Pull, callback: Option<Callback>) -> Result<Granted, RequestError> {
        let request = self.next_request();
        let granted = self.ask(&pull.message(request), |received| match received.message {
            ToTool::Pulled { request: answered, result } if answered == request => Ok(result),
            message => Err(Box::new(Received { message, ..received })),
        })??;
        self.registrations.insert(granted.handler, Registration::new(pull, callback));
        Ok(granted)
    }

    /// Begins to end a registration (`PMIx_IOF_deregister`). Does not block. [`Tool::recv`] and
    /// [`Tool::dispatch`] complete it.
    ///
    /// The bytes and gaps that are unread at this moment are still delivered, even in incomplete
    /// groups, and also those of streams that the engine has not announced yet. For each stream
    /// this is at most one ring. Then the tool notifies the engine. When the engine has confirmed,
    /// [`Delivery::Deregistered`] is the last delivery of this registration. A stream that is
    /// complete by then ends with [`Delivery::Complete`]; other streams end without a delivery of
    /// their own. The ends of jobs are not reported any more.
    ///
    /// # Errors
    /// Returns [`RequestError::Denied`] with [`Status::ERR_NOT_FOUND`] if the registration does not
    /// exist, is being ended already, or has ended. Returns [`RequestError::Lost`] if the
    /// connection has ended; unread bytes are still delivered.
    pub fn deregister(&mut self, handler: u32) -> Result<(), RequestError> {
        // Streams that the engine has announced already are to be flushed, too.
        self.take_messages()?;
        if self.gone {
            return Err(LostError::Closed.into());
        }
        let registration = self.registrations.get_mut(&handler).filter(|found| found.closing == Closing::No);
        let Some(registration) = registration else {
            let reason = format!("this tool has no registration {handler}");
            return Err(Failure::new(Status::ERR_NOT_FOUND, reason).into());
        };
        let request = self.last_request.wrapping_add(1);
        registration.closing = Closing::Awaiting(request);
        self.last_request = request;
        self.feeds.flush(handler);
        // A query without keys serves as a barrier, because the engine answers in order. It refuses
        // the query, which costs it nothing.
        Ok(self.notify(&FromTool::Query { request, queries: Vec::new() })?)
    }

    /// Handles the answer to a barrier: everything that the engine sent before it has arrived.
    /// Ignores other answers.
    fn barrier_answered(&mut self, request: u32) -> Result<(), LostError> {
        let mut registrations = self.registrations.iter_mut();
        let Some((&handler, registration)) =
            registrations.find(|(_, registration)| registration.closing == Closing::Awaiting(request))
        else {
            return Ok(());
        };
        registration.closing = Closing::Flushing;
        self.end_if_flushed(handler)
    }

    /// Asks the engine to end a registration that is closing, once everything due to it was
    /// delivered.
    fn end_if_flushed(&mut self, handler: u32) -> Result<(), LostError> {
        let request = self.last_request.wrapping_add(1);
        let Some(registration) = self.registrations.get_mut(&handler) else { return Ok(()) };
        if registration.closing != Closing::Flushing || !registration.is_drained() {
            return Ok(());
        }
        // Its readers are dropped: once the engine knows, it gives their slots to other rings.
        registration.closing = Closing::Asked(request);
        self.last_request = request;
        self.notify(&FromTool::Deregister { request, handler })
    }

    /// Removes a registration that is over once none of its events is queued.
    pub(crate) fn remove_if_over(&mut self, handler: u32) {
        let is_queued = |event: &Event| match event {
            Event::JobEnded { handler: other, .. } | Event::Missed { handler: other, .. } => {
                *other == handler
            }
            Event::Deregistered { .. } | Event::Reply { .. } => false,
        };
        if self.registrations.get(&handler).is_some_and(Registration::is_over)
            && !self.events.iter().any(is_queued)
        {
            self.registrations.remove(&handler);
        }
    }

    pub(crate) fn next_request(&mut self) -> u32 {
        self.last_request = self.last_request.wrapping_add(1);
        self.last_request
    }

    pub(crate) fn check_engine(&self) -> Result<(), LostError> {
        if self.gone { Err(LostError::Closed) } else { Ok(()) }
    }

    /// Sends a request and handles messages until `wanted` accepts one as the answer. Blocks until
    /// then.
    pub(crate) fn ask<T>(
        &mut self,
        request: &FromTool,
        wanted: impl Fn(Received) -> Result<T, Box<Received>>,
    ) -> Result<T, RequestError> {
        self.check_engine()?;
        self.link.send(request)?;
        loop {
            let received = match self.link.receive(true) {
                Ok(Some(received)) => received,
                Ok(None) => continue,
                Err(lost) => return Err(self.lost(lost).into()),
            };
            match wanted(received) {
                Ok(answer) => return Ok(answer),
                Err(received) => self.handle(*received)?,
            }
        }
    }

    /// Sends a message that is not answered at once. A disconnected engine is not an error here:
    /// reading detects it.
    pub(crate) fn notify(&mut self, message: &FromTool) -> Result<(), LostError> {
        match self.link.send(message) {
            Err(RequestError::Lost(lost)) if !matches!(lost, LostError::Closed) => Err(self.lost(lost)),
            _ => Ok(()),
        }
    }

    /// Returns whether nothing more will be delivered. This is the case when everything received
    /// was delivered, no reply is outstanding, and every registration has ended or the connection
    /// has. A registration ends when the end of every job that it names was delivered. A
    /// [persistent](Pull::persistent) one ends only when it is deregistered.
    pub fn is_done(&self) -> bool {
        let over = self.gone || self.registrations.values().all(Registration::is_over);
        let delivered = self.events.is_empty() && self.put_back.is_none() && self.pending.is_empty();
        over && delivered && self.feeds.is_empty()
    }

    /// Returns the longest time for which an event loop may wait until the tool's descriptor is
    /// readable. After this time it must call [`Tool::try_recv`] or [`Tool::dispatch`] even if the
    /// descriptor is not readable. `None` means without limit. The result is zero if the last such
    /// call returned a delivery, or if messages arrived together with the answer to a request.
    pub fn timeout(&self) -> Option<Duration> {
        let pending = !self.wakeup.is_armed() || self.has_ready();
        // Messages may belong to pushes, which matter even when all registrations are done.
        if self.link.has_received() || (pending && !self.is_done()) {
            return Some(Duration::ZERO);
        }
        self.feeds.next_due().map(|due| due.saturating_duration_since(Instant::now()))
    }
}

/// A descriptor for event loops, readable when there is something to deliver.
///
/// Wait until it is readable, for [`Tool::timeout`] at most. Then call [`Tool::try_recv`] until it
/// returns `None` (or [`Tool::dispatch`] with a timeout of zero until it returns `false`).
/// Level-triggered and edge-triggered loops both work. The descriptor stays readable after the
/// connection has ended, so stop when [`Tool::is_done`] returns `true`.
impl AsFd for Tool {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Tool");
        shown.field("engine_pid", &self.engine_pid).field("gone", &self.gone);
        shown.field("registrations", &self.registrations.keys()).field("streams", &self.feeds.len());
        shown.field("pushes", &self.pushes.keys()).finish_non_exhaustive()
    }
}

/// Connects to `path` and returns the socket and the listener's pid. The listener must be a process
/// of this user or of root.
fn connect(path: &Path) -> Result<(UnixStream, u32), AttachError> {
    let socket = rendezvous::connect(path)?;
    let engine = socket::peer(&socket).map_err(LostError::Socket)?;
    if engine.uid != 0 && engine.uid != geteuid().as_raw() {
        return Err(AttachError::Foreign { path: path.to_owned(), uid: engine.uid });
    }
    Ok((socket, engine.pid))
}

/// Calls `attach` with each path of `search` until it succeeds.
fn find<T>(search: &Search, attach: impl Fn(&Path) -> Result<T, AttachError>) -> Result<T, AttachError> {
    let mut failure = None;
    for socket in search.sockets() {
        match socket.map_err(AttachError::from).and_then(|path| attach(&path)) {
            Ok(attached) => return Ok(attached),
            // If an engine was found, its failure helps the user more than the lack of another
            // engine.
            Err(error) if failure.as_ref().is_some_and(|first| !finds_none(first)) && finds_none(&error) => {}
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| LostError::Closed.into()))
}

/// Returns whether a step of a search failed because it found no engine.
fn finds_none(error: &AttachError) -> bool {
    matches!(
        error,
        AttachError::Find(FindError::NotFound(_) | FindError::NoSystem(_) | FindError::FromEnvironment(_))
    )
}
