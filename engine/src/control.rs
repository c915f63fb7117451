//! The control thread: accepts tools, serves what they ask, passes on what the capture thread reports.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender};
use iof_capture::{Capture, End, Event, SourceId};
use iof_proto::limits::MAX_TOOLS;
use iof_proto::rendezvous::Listener;
use iof_proto::{Status, ToTool, encode, socket};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{Uid, geteuid, gethostname};

use crate::exit::Exit;
use crate::grace::Graces;
use crate::peer::{Dismissed, Flushed, Peer};
use crate::requests;
use crate::state::{PeerId, State, StreamName, Tables};

/// Somebody in this process has something for this thread.
const WAKE: Token = Token(0);
const LISTENER: Token = Token(1);
/// Tools' tokens begin here.
pub(crate) const FIRST_PEER: PeerId = 2;

/// Files that tools' connections leave for the job: new generations, and their way to the engine's own sinks.
const RESERVED_FILES: u64 = 32;
/// How long an engine that ends goes on sending to tools that read.
const LINGER: Duration = Duration::from_millis(500);
/// How soon to try again when the kernel has too many descriptors on their way.
const RETRY: Duration = Duration::from_millis(5);

/// What other threads tell the control thread.
pub(crate) struct Reports {
    sender: Sender<Event>,
    waker: Waker,
}

impl Reports {
    /// Together with where the control thread finds them, when it is woken.
    pub(crate) fn new(registry: &Registry) -> io::Result<(Reports, Receiver<Event>)> {
        let (sender, events) = crossbeam::channel::unbounded();
        Ok((Reports { sender, waker: Waker::new(registry, WAKE)? }, events))
    }

    /// Says that something ended.
    pub(crate) fn send(&self, event: Event) {
        // The control thread has gone only if the engine is being dropped.
        if self.sender.send(event).is_ok() {
            self.wake();
        }
    }

    /// Makes the control thread look at the tables.
    pub(crate) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "the control thread can't be woken");
        }
    }
}

/// Runs until the engine ends.
pub(crate) struct Control {
    pub poll: Poll,
    pub listener: Option<Arc<Listener>>,
    pub events: Receiver<Event>,
    pub tables: Arc<Tables>,
    pub capture: Arc<Capture>,
    pub host: String,
    pub graces: Graces,
}

impl Control {
    /// Adds the listener to the poll set.
    pub(crate) fn listen(&self) -> io::Result<()> {
        let Some(listener) = &self.listener else { return Ok(()) };
        let fd = listener.as_fd().as_raw_fd();
        self.poll.registry().register(&mut SourceFd(&fd), LISTENER, Interest::READABLE)
    }

    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        let mut linger_until: Option<Instant> = None;
        let mut retry = false;
        loop {
            let next = [linger_until, self.graces.next()].into_iter().flatten().min();
            let until_next = next.map(|at| at.saturating_duration_since(Instant::now()));
            let timeout = if retry { Some(RETRY) } else { until_next };
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "the control thread can't wait any more");
                break;
            }
            // The lock is taken through a handle of its own, so that `self` stays free.
            let tables = Arc::clone(&self.tables);
            let mut state = tables.lock();
            for event in &events {
                match event.token() {
                    WAKE => {}
                    LISTENER => self.accept(&mut state),
                    Token(peer_id) => {
                        if let Some(peer) = state.peers.get_mut(&peer_id) {
                            peer.now_readable();
                        }
                    }
                }
            }
            self.take_reports(&mut state);
            for stream in self.graces.over(Instant::now()) {
                // A capture that has ended has completed all its streams; one that is complete stays as it is.
                let _ = self.capture.finish(stream);
            }
            retry = self.serve_all(&mut state);
            if state.stopping {
                let end = *linger_until.get_or_insert_with(|| Instant::now() + LINGER);
                let flushed = state.peers.values().all(Peer::is_flushed);
                if flushed || Instant::now() >= end {
                    break;
                }
            }
        }
    }

    fn accept(&self, state: &mut State) {
        let Some(listener) = &self.listener else { return };
        loop {
            match listener.socket().accept() {
                Ok((socket, _)) => {
                    if let Err(reason) = admit(state, self.poll.registry(), &socket) {
                        refuse(&socket, reason);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "a tool could not be accepted");
                    break;
                }
            }
        }
    }

    fn take_reports(&mut self, state: &mut State) {
        let mut changed = false;
        for event in self.events.try_iter() {
            changed = true;
            match event {
                Event::Complete { source, end, .. } => {
                    state.bring_along(&self.capture, source);
                    completed(state, source, &end);
                }
                // Nothing is fed yet.
                Event::Sealed { .. } | Event::Fed { .. } => {}
                Event::Exited { process, status } => {
                    if let Some(proc) = state.processes.remove(&process)
                        && let Some(job) = state.jobs.get_mut(&proc.nspace)
                    {
                        let exit = status.map(Exit::Status).unwrap_or_else(|error| {
                            tracing::warn!(source = %proc, %error, "how a rank ended is lost");
                            Exit::Unknown
                        });
                        job.exited(proc.rank, exit);
                        if let (Some(grace), Some(rank)) = (job.grace, job.ranks.get(&proc.rank)) {
                            self.graces.begin(Instant::now(), grace, rank.streams.to_vec());
                        }
                        state.announce_end(&proc.nspace);
                    }
                }
            }
        }
        if changed {
            self.tables.notify();
        }
    }

    /// Serves every tool as far as it goes now; `true` if some sending has to be tried again soon.
    fn serve_all(&self, state: &mut State) -> bool {
        let ids: Vec<PeerId> = state.peers.keys().copied().collect();
        let mut retry = false;
        for peer_id in ids {
            match self.serve(state, peer_id) {
                Ok(flushed) => retry |= flushed == Flushed::Retry,
                Err(reason) => self.dismiss(state, peer_id, &reason),
            }
        }
        retry
    }

    fn serve(&self, state: &mut State, peer_id: PeerId) -> Result<Flushed, Dismissed> {
        loop {
            let Some(peer) = state.peers.get_mut(&peer_id) else { return Ok(Flushed::Waits) };
            let flushed = peer.flush()?;
            let Some(message) = peer.receive()? else { return Ok(flushed) };
            requests::serve(state, &self.capture, &self.host, peer_id, message)?;
        }
    }

    fn dismiss(&self, state: &mut State, peer_id: PeerId, reason: &Dismissed) {
        state.detach(&self.capture, peer_id, None);
        if let Some(peer) = state.peers.remove(&peer_id) {
            let fd = peer.socket().as_fd().as_raw_fd();
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
            if !matches!(reason, Dismissed::Closed) {
                // Tools come and go as they like: no warning, which any of them could have the engine repeat.
                tracing::info!(tool = peer.name, pid = peer.pid, %reason, "a tool was let go");
            }
        }
    }
}

/// Notes that a stream is complete, and why if that was not its end of file.
fn completed(state: &mut State, stream: SourceId, end: &End) {
    let Some(StreamName { source, channel }) = state.streams.get(&stream).map(|of| of.name.clone()) else {
        return;
    };
    let Some(job) = state.jobs.get_mut(&source.nspace) else { return };
    job.open_streams = job.open_streams.saturating_sub(1);
    match end {
        End::EndOfFile => {}
        End::Closed => {
            tracing::info!(%source, %channel, "a stream was cut off: it was open when its rank's grace was over");
            job.cut_off.push((source.rank, channel));
        }
        End::Error(error) => tracing::warn!(%source, %channel, %error, "a stream ended with an error"),
    }
    state.announce_end(&source.nspace);
}

/// Why a connection is refused.
struct Refusal {
    status: Status,
    reason: String,
}

/// Takes a connection from the rendezvous socket, if its user may attach.
fn admit(state: &mut State, registry: &Registry, socket: &UnixStream) -> Result<(), Refusal> {
    let refusal = |status, reason: String| Refusal { status, reason };
    let internal = |error: io::Error| refusal(Status::ERR_OUT_OF_RESOURCE, format!("the engine: {error}"));
    let who = socket::peer(socket).map_err(internal)?;
    let ours = Uid::from_raw(who.uid) == geteuid() || who.uid == 0;
    if !ours {
        let reason = format!("user {} may not attach to an engine of user {}", who.uid, geteuid());
        return Err(refusal(Status::ERR_NO_PERMISSIONS, reason));
    }
    if state.peers.len() >= MAX_TOOLS {
        let reason = format!("{MAX_TOOLS} tools are attached already");
        return Err(refusal(Status::ERR_OUT_OF_RESOURCE, reason));
    }
    let socket = socket.try_clone().map_err(internal)?;
    // The kernel gives the lowest number that is free, so a high one means that few are left.
    let number = u64::try_from(socket.as_raw_fd()).unwrap_or(u64::MAX);
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    if number.saturating_add(RESERVED_FILES) > limit {
        let reason =
            format!("the engine may open {limit} files and keeps the last {RESERVED_FILES} for its job");
        return Err(refusal(Status::ERR_OUT_OF_RESOURCE, reason));
    }
    add_peer(state, registry, socket, who.pid, false, false).map(drop).map_err(internal)
}

/// Adds a connected tool to the tables and the poll set.
pub(crate) fn add_peer(
    state: &mut State,
    registry: &Registry,
    socket: UnixStream,
    pid: u32,
    own: bool,
    may_block: bool,
) -> io::Result<PeerId> {
    socket.set_nonblocking(true)?;
    let peer = Peer::new(socket, pid, own, may_block).map_err(io::Error::other)?;
    let fd = peer.socket().as_fd().as_raw_fd();
    let id = state.add_peer(peer);
    let registered =
        registry.register(&mut SourceFd(&fd), Token(id), Interest::READABLE.add(Interest::WRITABLE));
    if registered.is_err() {
        state.peers.remove(&id);
    }
    registered.map(|()| id)
}

fn refuse(socket: &UnixStream, Refusal { status, reason }: Refusal) {
    tracing::info!(reason, "a tool was refused");
    if let Ok(frame) = encode(&ToTool::Refused { status, reason }) {
        // Fits the empty socket buffer; if not, the tool learns less.
        let _ = socket::send(socket, &frame, &[]);
    }
}

/// This node's name, as in process tables.
pub(crate) fn host_name() -> io::Result<String> {
    Ok(gethostname()?.to_string_lossy().into_owned())
}
