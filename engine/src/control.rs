//! The control thread: accepts tools, serves what they ask, passes on what the capture thread
//! reports, and is the one that speaks to the host.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender};
use iof_capture::{Capture, End, Event, SourceId};
use iof_proto::rendezvous::Listener;
use iof_proto::{Failure, Found, Status};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::gethostname;

use crate::engine::Grant;
use crate::exit::Exit;
use crate::grace::Graces;
use crate::host::{Call, Host};
use crate::in_flight::Budget;
use crate::linger::Linger;
use crate::peer::{DisconnectReason, Flushed, Peer};
use crate::pending::PendingPeer;
use crate::query::QueryId;
use crate::requests;
use crate::state::{PeerId, State, StreamName, Tables};

/// Somebody in this process has something for this thread.
const WAKE: Token = Token(0);
const LISTENER: Token = Token(1);
/// Tools' tokens begin here.
pub(crate) const FIRST_PEER: PeerId = 2;

/// Files that tools' connections and pushes leave for the job: new generations, and their way to
/// the engine's own readers.
const RESERVED_FILES: u64 = 32;
/// Tools that are accepted at once, before it is seen whether there is room for them.
const VISITORS: usize = 8;
/// Messages of one tool that are served before others have their turn.
const MESSAGES: usize = 64;
/// How soon to try again when the kernel has too many descriptors on their way, or none for a
/// connection.
const RETRY: Duration = Duration::from_millis(5);

/// What other threads tell the control thread.
pub(crate) enum Report {
    /// The capture has something to say.
    Capture(Event),
    /// The host has answered an upcall.
    Answered { call: Call, answer: Result<(), Failure> },
    /// The host has said whether a tool is let in.
    Approved { peer: PeerId, answer: Result<Grant, Failure> },
    /// The host has answered a query.
    QueryAnswered { id: QueryId, answer: Result<Vec<Found>, Failure> },
}

impl From<Event> for Report {
    fn from(event: Event) -> Report {
        Report::Capture(event)
    }
}

/// How they tell it.
#[derive(Debug)]
pub(crate) struct Reports {
    sender: Sender<Report>,
    waker: Waker,
}

impl Reports {
    /// Together with where the control thread finds them, when it is woken.
    pub(crate) fn new(registry: &Registry) -> io::Result<(Reports, Receiver<Report>)> {
        let (sender, events) = crossbeam::channel::unbounded();
        Ok((Reports { sender, waker: Waker::new(registry, WAKE)? }, events))
    }

    /// Says it.
    pub(crate) fn send(&self, report: impl Into<Report>) {
        // The control thread has gone only if the engine is being dropped.
        if self.sender.send(report.into()).is_ok() {
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
    pub reports: Receiver<Report>,
    pub tables: Arc<Tables>,
    pub capture: Arc<Capture>,
    pub host: Arc<dyn Host>,
    /// This node's name, as in process tables.
    pub node: String,
    pub graces: Graces,
    /// Of descriptors in flight.
    pub budget: Budget,
    /// The kernel takes no more of them until then.
    pub crowded_until: Option<Instant>,
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
        let mut linger: Option<Linger> = None;
        let mut linger_until: Option<Instant> = None;
        let (mut served, mut accepted, mut overdue) = (Flushed::Waits, Flushed::Waits, None);
        loop {
            let next = [linger_until, overdue, self.graces.next()].into_iter().flatten().min();
            let until_next = next.map(|at| at.saturating_duration_since(Instant::now()));
            let timeout = match served.max(accepted) {
                Flushed::More => Some(Duration::ZERO),
                Flushed::Retry | Flushed::Crowded => Some(RETRY),
                Flushed::Waits => until_next,
            };
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "the control thread can't wait any more");
                break;
            }
            let mut visitors = Vec::new();
            if accepted != Flushed::Waits || events.iter().any(|event| event.token() == LISTENER) {
                (visitors, accepted) = self.accept();
            }
            // The lock is taken through a handle of its own, so that `self` stays free.
            let tables = Arc::clone(&self.tables);
            let mut state = tables.lock();
            for event in &events {
                let Token(peer_id) = event.token();
                if let Some(peer) = state.peers.get_mut(&peer_id) {
                    peer.now_readable();
                } else if let Some(pending) = state.pending.get_mut(&peer_id) {
                    pending.now_readable();
                }
            }
            // In the turn in which the engine begins to end, these came before.
            if linger.is_none() {
                visitors.into_iter().for_each(|socket| state.admit(self.poll.registry(), socket));
            }
            self.take_reports(&mut state);
            for stream in self.graces.over(Instant::now()) {
                // A capture that has ended has completed all its streams; one that is complete stays as it
                // is.
                let _ = self.capture.finish(stream);
            }
            state.greet(self.poll.registry(), &self.capture);
            served = self.serve_all(&mut state);
            overdue = state.next_overdue();
            state.close_logs(&self.capture);
            if state.stopping {
                let now = Instant::now();
                let linger = linger.get_or_insert_with(|| Linger::begin(now));
                let peers = state.peers.values().map(Peer::at_end);
                linger_until =
                    linger.until(peers.chain(state.pending.values().map(PendingPeer::at_end)), now);
                if linger_until.is_none() {
                    break;
                }
            }
            let upcalls = mem::take(&mut state.upcalls);
            drop(state);
            for upcall in upcalls {
                upcall.make(&*self.host, &tables.reports);
            }
        }
    }

    /// Takes connections from the rendezvous socket. Returns them, and whether there may be more.
    fn accept(&self) -> (Vec<UnixStream>, Flushed) {
        let mut visitors = Vec::new();
        let Some(listener) = &self.listener else { return (visitors, Flushed::Waits) };
        while visitors.len() < VISITORS {
            match listener.socket().accept() {
                Ok((socket, _)) => visitors.push(socket),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return (visitors, Flushed::Waits);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::debug!(%error, "a tool can't be accepted yet");
                    return (visitors, Flushed::Retry);
                }
            }
        }
        (visitors, Flushed::More)
    }

    fn take_reports(&mut self, state: &mut State) {
        let mut changed = false;
        let reports: Vec<Report> = self.reports.try_iter().collect();
        for report in reports {
            // What somebody may wait for. Bytes that were taken are no such thing, and come too often.
            changed |= !matches!(
                report,
                Report::Capture(Event::Freed { .. } | Event::Fed { .. } | Event::Delivered { .. })
            );
            if let Report::Answered { call, .. } = &report {
                state.owed.answered(*call);
            }
            match report {
                Report::Capture(event) => self.take_event(state, event),
                Report::Answered { call: Call::Pull(call), answer } => {
                    state.answered(&self.capture, call, answer);
                }
                Report::Answered { call: Call::Stdin(push), answer } => state.stdin_answered(push, answer),
                Report::Answered { call: Call::Log(step), answer } => {
                    state.log_answered(&self.capture, step, answer);
                }
                Report::Answered { call: Call::Approve(_) | Call::Query(_), .. } => {}
                Report::Approved { peer, answer } => {
                    state.owed.answered(Call::Approve(peer));
                    state.approved(self.poll.registry(), &self.capture, peer, answer);
                }
                Report::QueryAnswered { id, answer } => {
                    state.owed.answered(Call::Query(id));
                    state.query_answered(id, answer);
                }
            }
        }
        if changed {
            self.tables.notify();
        }
    }

    fn take_event(&mut self, state: &mut State, event: Event) {
        match event {
            Event::Complete { source, produced, end, .. } => {
                state.stream_completed(source, produced);
                state.send_last_generation(&self.capture, source);
                completed(state, &self.capture, source, &end);
            }
            Event::Delivered { source, deliveries, .. } => state.taken(source, deliveries),
            Event::Freed { push, position } => state.freed(push, position),
            Event::Fed { push, target, delivered, end } => state.fed(push, target, delivered, end),
            // Known by then, target for target.
            // The watchdog's thread sees to stalls, see `stalls`.
            Event::PushOver { .. } | Event::Stalled { .. } => {}
            Event::Shut { target } => state.shut(target),
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
                    state.shut_if_unread(&self.capture, &proc);
                }
            }
        }
    }

    /// Serves every tool as far as it goes now; the most that one of them leaves to be done.
    fn serve_all(&mut self, state: &mut State) -> Flushed {
        let ids: Vec<PeerId> = state.peers.keys().copied().collect();
        let mut left = Flushed::Waits;
        let mut used = state.fds_in_flight(self.budget);
        // A send that the kernel refuses makes the socket writable once more, as if there were a reason to
        // try again.
        let now = Instant::now();
        let budget =
            if self.crowded_until.is_some_and(|until| now < until) { Budget::NONE } else { self.budget };
        for peer_id in ids {
            match self.serve(state, peer_id, budget, &mut used) {
                Ok(flushed) => left = left.max(flushed),
                Err(reason) => self.dismiss(state, peer_id, &reason),
            }
        }
        if left == Flushed::Crowded {
            self.crowded_until = now.checked_add(RETRY);
        } else if budget == Budget::NONE {
            left = left.max(Flushed::Retry);
        }
        left
    }

    fn serve(
        &self,
        state: &mut State,
        peer_id: PeerId,
        budget: Budget,
        used: &mut usize,
    ) -> Result<Flushed, DisconnectReason> {
        for _ in 0..MESSAGES {
            let Some(peer) = state.peers.get_mut(&peer_id) else { return Ok(Flushed::Waits) };
            let flushed = peer.flush(budget, used)?;
            let Some(message) = peer.receive()? else { return Ok(flushed) };
            requests::serve(state, &self.capture, &self.node, peer_id, message)?;
        }
        Ok(Flushed::More)
    }

    fn dismiss(&self, state: &mut State, peer_id: PeerId, reason: &DisconnectReason) {
        state.detach(&self.capture, peer_id, None);
        if let Some(peer) = state.remove_peer(peer_id) {
            peer.tickets().for_each(|ticket| state.release(ticket));
            state.leave_pushes(&self.capture, peer.pushes.values().copied());
            state.queries.forget(peer_id);
            state.logs.forget(peer_id);
            let fd = peer.socket().as_fd().as_raw_fd();
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
            if !matches!(reason, DisconnectReason::Closed) {
                // Tools come and go as they like: no warning, which any of them could have the engine repeat.
                tracing::info!(tool = peer.name, pid = peer.client.pid, %reason, "a tool was let go");
            }
            state.departed.extend(peer.depart());
        }
    }
}

impl Drop for Control {
    /// However the thread came to its end, nobody waits for it any more.
    fn drop(&mut self) {
        let mut state = self.tables.lock();
        state.stopping = true;
        let (peers, untaken) = (mem::take(&mut state.peers), state.untaken());
        state.pending.clear();
        drop(state);
        // Tools learn that nobody serves them.
        drop(peers);
        self.tables.notify();
        untaken.into_iter().for_each(|taken| taken());
    }
}

/// Notes that a stream is complete, and why if that was not its end of file.
fn completed(state: &mut State, capture: &Capture, stream: SourceId, end: &End) {
    let Some(StreamName { source, channel, logged, .. }) =
        state.streams.get(&stream).map(|of| of.name.clone())
    else {
        return;
    };
    state.queries.streams_changed();
    // What it has, it has: the backlog holder's slot is wanted elsewhere.
    state.release_backlog(capture, &[stream]);
    if logged {
        state.logged_all(stream, &source.nspace);
        return state.announce_end(&source.nspace);
    }
    if state.delivered_all(stream, &source.nspace) {
        return state.announce_end(&source.nspace);
    }
    let Some(job) = state.jobs.get_mut(&source.nspace) else { return };
    job.open_streams = job.open_streams.saturating_sub(1);
    match end {
        End::EndOfFile => {}
        End::Closed => {
            tracing::info!(%source, %channel, "a stream was cut off: it was open when its rank's grace was over, or was closed");
            job.cut_off.push((source.rank, channel));
        }
        End::Error(error) => tracing::warn!(%source, %channel, %error, "a stream ended with an error"),
    }
    state.announce_end(&source.nspace);
}

/// Returns how many files this process may open.
pub(crate) fn file_limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft)
}

/// Whether a file that was opened for a tool leaves enough for the job.
pub(crate) fn check_spare_files(file: BorrowedFd<'_>) -> Result<(), Failure> {
    // The kernel gives the lowest number that is free, so a high one means that few are left.
    let number = u64::try_from(file.as_raw_fd()).unwrap_or(u64::MAX);
    let limit = file_limit();
    if number.saturating_add(RESERVED_FILES) < limit {
        return Ok(());
    }
    let reason = format!("the engine may open {limit} files and keeps the last {RESERVED_FILES} for its job");
    Err(Failure { status: Status::ERR_OUT_OF_RESOURCE, reason })
}

/// This node's name, as in process tables.
pub(crate) fn node_name() -> io::Result<String> {
    Ok(gethostname()?.to_string_lossy().into_owned())
}
