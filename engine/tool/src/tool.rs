//! A tool: one connection to an engine, what it asks, and what it is told.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use iof_proto::rendezvous::{self, FindError, Search};
use iof_proto::{
    Channels, Failure, FromTool, Granted, Info, Missed, PROTOCOL_VERSION, Proc, Status, ToTool, socket,
};
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

/// For how long a tool waits for the welcome of an engine that it has connected to: far longer than
/// one that runs needs.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// What to register for (`PMIx_IOF_pull`, RFC0025).
#[derive(Clone, Debug)]
pub struct Pull {
    /// The sources; a wildcard rank stands for a whole nspace. They need not exist yet.
    pub procs: Vec<Proc>,
    /// Their channels; stdin can't be pulled.
    pub channels: Channels,
    /// Whether to begin with the oldest byte in the engine's cache, or with what comes from now on.
    pub backlog: bool,
    /// Whether the registration goes on when its jobs have ended, with later jobs of the same
    /// names, until it is [deregistered](Tool::deregister) or the engine ends. Otherwise the
    /// first end of each job that it names is the last: then the registration is over,
    /// [`Tool::next`] says so, and a later job of the name is not part of it.
    pub persistent: bool,
    /// How it is to be done (RFC0025): [`iof_proto::directive::key`] has the keys.
    pub directives: Vec<Info>,
}

impl Pull {
    /// Registers for `procs` until their jobs have ended, with the backlog first and without
    /// directives.
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
/// One at a time; a tool may move between threads. To wait in one thread and ask in another, have
/// two tools.
///
/// # When the engine goes away
/// Every stream is read as far as it is in memory and then [gone](Delivery::Gone); requests fail
/// with [`LostError::Closed`]. A tool does not connect again: a new engine has other jobs.
pub struct Tool {
    pub(crate) link: Link,
    page: Arc<ReaderPage>,
    wakeup: Wakeup,
    polling: AdaptivePolling,
    /// When messages were looked for the last time.
    heard: Instant,
    /// Only for a tool that may hold sources back.
    room: Option<Arc<Ringer>>,
    engine_pid: u32,
    pub(crate) registrations: BTreeMap<u32, Registration>,
    pub(crate) feeds: Feeds,
    /// By number.
    pub(crate) pushes: BTreeMap<u32, Pushing>,
    /// Requests whose answer is not waited for, by number.
    pub(crate) pending: BTreeMap<u32, Pending>,
    pub(crate) events: VecDeque<Event>,
    /// For [`Tool::take_missed`].
    pub(crate) missed: VecDeque<Missed>,
    /// Feeds that have not had their turn since the last look at who has news.
    pub(crate) turn: Vec<FeedId>,
    /// What was found and not handed out yet.
    pub(crate) put_back: Option<Next>,
    /// Whose bytes were handed out and are not consumed yet.
    pub(crate) lent: Option<FeedId>,
    last_request: u32,
    pub(crate) gone: bool,
}

impl Tool {
    /// Attaches to the engine that listens at `path`, as `name` (for people who look at the
    /// engine's readers). Waits for its welcome, for [`HANDSHAKE_LIMIT`] at most.
    ///
    /// # Errors
    /// [`AttachError`]: nobody there, nobody who answers, refused, the engine is another version, or its process belongs
    /// neither to this process's user nor to root.
    pub fn connect(path: &Path, name: &str) -> Result<Tool, AttachError> {
        let (socket, _) = connect(path)?;
        // SAFETY: the socket was made here, and goes nowhere else.
        unsafe { Tool::over(socket, name) }
    }

    /// Attaches to the engine that `search` finds, as [`Tool::connect`] does. Where it leaves
    /// several to be tried, that is the first that accepts.
    ///
    /// # Errors
    /// [`AttachError`]: nobody there, several from which to choose, or what became of the last that was tried.
    pub fn find(search: &Search, name: &str) -> Result<Tool, AttachError> {
        find(search, |path| Tool::connect(path, name))
    }

    /// Attaches `count` times to one engine, the one that [`Tool::find`] finds. All connections are
    /// made before the first is used, so an engine that ends meanwhile has all of the tools or
    /// none.
    ///
    /// # Errors
    /// As [`Tool::find`], and [`AttachError::Replaced`] if another engine took the place of the
    /// first.
    pub fn find_several(search: &Search, name: &str, count: usize) -> Result<Vec<Tool>, AttachError> {
        find(search, |path| {
            let connected = (0..count).map(|_| connect(path)).collect::<Result<Vec<_>, _>>()?;
            let (sockets, pids): (Vec<UnixStream>, Vec<u32>) = connected.into_iter().unzip();
            if pids.iter().any(|pid| Some(pid) != pids.first()) {
                return Err(AttachError::Replaced { path: path.to_owned() });
            }
            // SAFETY: the sockets were made here, and go nowhere else.
            sockets.into_iter().map(|socket| unsafe { Tool::over(socket, name) }).collect()
        })
    }

    /// Attaches over a socket that is connected already.
    ///
    /// # Errors
    /// As [`Tool::connect`].
    ///
    /// # Safety
    /// An engine protects what a tool borrows for as long as the tool is connected and speaks the
    /// protocol. So nobody else may have this socket, to write to it or to shut it down, until
    /// the tool is dropped.
    pub unsafe fn over(socket: UnixStream, name: &str) -> Result<Tool, AttachError> {
        // A time that the clock can't show is over.
        let now = Instant::now();
        let deadline = now.checked_add(HANDSHAKE_LIMIT).unwrap_or(now);
        let mut link = Link::new(socket);
        let hello = FromTool::Hello { version: PROTOCOL_VERSION, pid: process::id(), name: name.to_owned() };
        // A name too long for a message is cut short by the caller, not here: say so.
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
            _ => return Err(LostError::Unexpected { what: "another message than a welcome" }.into()),
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
            heard: now,
            room: room.map(|room| Arc::new(Ringer::from(room))),
            engine_pid,
            registrations: BTreeMap::new(),
            feeds: Feeds::default(),
            pushes: BTreeMap::new(),
            pending: BTreeMap::new(),
            events: VecDeque::new(),
            missed: VecDeque::new(),
            turn: Vec::new(),
            put_back: None,
            lent: None,
            last_request: 0,
            gone: false,
        })
    }

    /// The pid of the engine's process.
    pub fn engine_pid(&self) -> u32 {
        self.engine_pid
    }

    /// Whether the engine has gone: it ended, or closed the connection. What is in memory still
    /// comes.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Whether the engine went away before it had announced every stream of every registration:
    /// some of them may be missing. A [persistent](Pull::persistent) registration has no last
    /// stream to miss.
    pub fn misses_streams(&self) -> bool {
        self.gone && self.registrations.values().any(Registration::misses_streams)
    }

    /// Registers for output (`PMIx_IOF_pull`); gives the handler id, 1 or more, and which optional
    /// directives are ignored. What comes is handed out by [`Tool::next`].
    ///
    /// # Errors
    /// [`RequestError`]: what was asked for does not exist and never will, a directive that is required can't be
    /// honoured, the host refuses, a limit is reached, or the engine is gone.
    pub fn pull(&mut self, pull: &Pull) -> Result<Granted, RequestError> {
        self.register(pull, None)
    }

    /// [`Tool::pull`], but what comes goes to `callback`, which [`Tool::dispatch`] and
    /// [`Tool::next`] call, on the thread that calls them.
    ///
    /// It is RFC0025's `pmix_iof_cbfunc_t`: a delivery has handler, source, channel and payload,
    /// and [`Delivery::Complete`] stands for `PMIX_IOF_COMPLETE`. The bytes are consumed when
    /// it returns.
    ///
    /// # Errors
    /// As [`Tool::pull`]; `callback` is dropped then.
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
            ToTool::Pulled { request: of, result } if of == request => Ok(result),
            message => Err(Box::new(Received { message, ..received })),
        })??;
        self.registrations.insert(granted.handler, Registration::new(pull, callback));
        Ok(granted)
    }

    /// Ends a registration (`PMIx_IOF_deregister`). This only begins it, and waits for nothing; the
    /// rest is done by [`Tool::next`] and [`Tool::dispatch`].
    ///
    /// What is unread now still comes, as deliveries like all others: a gap, or bytes in place, in
    /// full groups or not, also of streams that the engine has not announced yet. There is at
    /// most a ring of it for each stream. When it was handed out, the engine is told, and once it
    /// has confirmed, [`Delivery::Deregistered`] comes, the last of this registration. A stream
    /// that completes before is told as complete; that a job has ended is not found out any
    /// more. Types see to it that this is not called from a callback, nor while a delivery is
    /// borrowed.
    ///
    /// # Errors
    /// [`RequestError::Denied`] with [`Status::ERR_NOT_FOUND`]: there is no such registration, it is being ended
    /// already, or it is over. [`RequestError::Lost`]: the engine is gone, and what is unread comes
    /// without this.
    pub fn deregister(&mut self, handler: u32) -> Result<(), RequestError> {
        // What the engine has announced is to be flushed, too.
        self.take_messages()?;
        if self.gone {
            return Err(LostError::Closed.into());
        }
        let registration = self.registrations.get_mut(&handler).filter(|of| of.closing == Closing::No);
        let Some(registration) = registration else {
            let reason = format!("this tool has no registration {handler}");
            return Err(Failure { status: Status::ERR_NOT_FOUND, reason }.into());
        };
        let request = self.last_request.wrapping_add(1);
        registration.closing = Closing::Awaiting(request);
        self.last_request = request;
        self.feeds.flush(handler);
        // The engine answers in order. It refuses this, which costs it nothing.
        Ok(self.tell(&FromTool::Query { request, queries: Vec::new() })?)
    }

    /// The engine has answered `request`, for which nobody waits: all that it sent before is here.
    fn all_here(&mut self, request: u32) -> Result<(), LostError> {
        let mut closing = self.registrations.iter_mut();
        let Some((&handler, registration)) = closing.find(|(_, of)| of.closing == Closing::Awaiting(request))
        else {
            return Ok(());
        };
        registration.closing = Closing::Flushing;
        self.end_if_flushed(handler)
    }

    /// Tells the engine that a registration is to end, if all that it was due was handed out.
    fn end_if_flushed(&mut self, handler: u32) -> Result<(), LostError> {
        let request = self.last_request.wrapping_add(1);
        let Some(registration) = self.registrations.get_mut(&handler) else { return Ok(()) };
        if registration.closing != Closing::Flushing || !registration.is_drained() {
            return Ok(());
        }
        // Its readers are no more: once the engine knows, it gives their slots to other rings.
        registration.closing = Closing::Asked(request);
        self.last_request = request;
        self.tell(&FromTool::Deregister { request, handler })
    }

    /// Forgets a registration that is over once no event of it waits.
    pub(crate) fn forget_if_over(&mut self, handler: u32) {
        let waits = |event: &Event| matches!(event, Event::JobEnded { handler: of, .. } | Event::Missed { handler: of, .. } if *of == handler);
        if self.registrations.get(&handler).is_some_and(Registration::is_over)
            && !self.events.iter().any(waits)
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

    /// Sends a request and handles messages until `wanted` takes one.
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

    /// Sends what is not answered at once. An engine that is gone is found out by reading.
    pub(crate) fn tell(&mut self, message: &FromTool) -> Result<(), LostError> {
        match self.link.send(message) {
            Err(RequestError::Lost(lost)) if !matches!(lost, LostError::Closed) => Err(self.lost(lost)),
            _ => Ok(()),
        }
    }

    /// Whether nothing more will come: every registration is over (none is
    /// [persistent](Pull::persistent), and every job of them has ended and was told), or the
    /// engine is gone, no reply is still to come, and all that there was has been handed out.
    pub fn is_done(&self) -> bool {
        let told = self.gone || self.registrations.values().all(Registration::is_over);
        let heard = self.events.is_empty() && self.put_back.is_none() && self.pending.is_empty();
        told && heard && self.feeds.is_empty()
    }

    /// For how long an event loop may wait for the descriptor before it calls [`Tool::next`] or
    /// [`Tool::dispatch`] whatever happens; `None`: until it is readable. It is zero unless the
    /// last of them found nothing, and after requests that brought news.
    pub fn timeout(&self) -> Option<Duration> {
        let pending = !self.wakeup.is_armed() || self.has_ready();
        // Messages may be of pushes, of which a tool that is done with its registrations wants to hear.
        if self.link.has_received() || (pending && !self.is_done()) {
            return Some(Duration::ZERO);
        }
        self.feeds.next_due().map(|due| due.saturating_duration_since(Instant::now()))
    }
}

/// One descriptor for an event loop of the tool's own: readable when there is news.
///
/// Wait for it to be readable, for [`Tool::timeout`] at most, and then call [`Tool::next`] (or
/// [`Tool::dispatch`]) with a time of zero until there is nothing more. Level- and edge-triggered
/// loops are both fine. It stays readable when the engine is gone: leave off when
/// [`Tool::is_done`].
impl AsFd for Tool {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}

/// Connects to `path`, where a process of this user or of root has to listen; gives its pid as
/// well.
fn connect(path: &Path) -> Result<(UnixStream, u32), AttachError> {
    let socket = rendezvous::connect(path)?;
    let engine = socket::peer(&socket).map_err(LostError::Socket)?;
    if engine.uid != 0 && engine.uid != geteuid().as_raw() {
        return Err(AttachError::Foreign { path: path.to_owned(), uid: engine.uid });
    }
    Ok((socket, engine.pid))
}

/// Attaches by `attach` to the first engine of `search` that accepts.
fn find<T>(search: &Search, attach: impl Fn(&Path) -> Result<T, AttachError>) -> Result<T, AttachError> {
    let mut why = None;
    for socket in search.sockets() {
        match socket.map_err(AttachError::from).and_then(|path| attach(&path)) {
            Ok(attached) => return Ok(attached),
            // Who found an engine is helped by what became of that, not by there being no other.
            Err(error) if why.as_ref().is_some_and(|why| !finds_none(why)) && finds_none(&error) => {}
            Err(error) => why = Some(error),
        }
    }
    Err(why.unwrap_or_else(|| LostError::Closed.into()))
}

/// Whether a step of a search came to no engine.
fn finds_none(error: &AttachError) -> bool {
    matches!(
        error,
        AttachError::Find(FindError::NotFound(_) | FindError::NoSystem(_) | FindError::FromEnvironment(_))
    )
}
