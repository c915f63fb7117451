//! The control thread: accepts tools, serves their requests, handles the reports of the capture
//! thread, and makes all upcalls to the host.

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

use crate::early_end::OPEN_AFTER_KILL;
use crate::engine::Grant;
use crate::exit::Exit;
use crate::grace::GracePeriods;
use crate::host::{Call, Host};
use crate::in_flight::Budget;
use crate::linger::Linger;
use crate::peer::{DisconnectReason, Flushed, Peer};
use crate::pending::PendingPeer;
use crate::query::QueryId;
use crate::requests;
use crate::state::{PeerId, State, StreamName, Tables};

/// The token of [`Reports`]: another thread of this process has woken the control thread.
const WAKE: Token = Token(0);
/// The token of the rendezvous socket.
const LISTENER: Token = Token(1);
/// The first token of a tool.
pub(crate) const FIRST_PEER: PeerId = 2;

/// Number of files that connections and pushes of tools leave to the job. It needs them for new
/// generations and for sending these to the embedder's own readers.
const RESERVED_FILES: u64 = 32;
/// Number of connections that are accepted in one turn, before the limits on tools are applied.
const ACCEPTED_PER_TURN: usize = 8;
/// Number of messages of one tool that are served before other tools have their turn.
const MESSAGES_PER_TURN: usize = 64;
/// Delay before the next attempt when the kernel has too many descriptors in flight, or none left
/// for a connection.
const RETRY_DELAY: Duration = Duration::from_millis(5);

/// A message from another thread to the control thread.
pub(crate) enum Report {
    /// An event of the capture thread.
    Capture(Event),
    /// The host has answered an upcall.
    Answered { call: Call, answer: Result<(), Failure> },
    /// The host has approved or refused a tool.
    Approved { peer: PeerId, answer: Result<Grant, Failure> },
    /// The host has answered a query.
    QueryAnswered { id: QueryId, answer: Result<Vec<Found>, Failure> },
}

impl From<Event> for Report {
    fn from(event: Event) -> Report {
        Report::Capture(event)
    }
}

/// The sending end of the control thread's queue of reports.
#[derive(Debug)]
pub(crate) struct Reports {
    sender: Sender<Report>,
    waker: Waker,
}

impl Reports {
    /// Returns both ends of the queue. Each report wakes the poll of `registry`.
    pub(crate) fn new(registry: &Registry) -> io::Result<(Reports, Receiver<Report>)> {
        let (sender, receiver) = crossbeam::channel::unbounded();
        Ok((Reports { sender, waker: Waker::new(registry, WAKE)? }, receiver))
    }

    /// Queues a report and wakes the control thread.
    pub(crate) fn send(&self, report: impl Into<Report>) {
        // The receiver is gone only if the engine is being dropped.
        if self.sender.send(report.into()).is_ok() {
            self.wake();
        }
    }

    /// Wakes the control thread, so that it looks at the tables.
    pub(crate) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake the control thread");
        }
    }
}

/// The state of the control thread, which runs until the engine ends.
pub(crate) struct Control {
    pub poll: Poll,
    pub listener: Option<Arc<Listener>>,
    pub reports: Receiver<Report>,
    pub tables: Arc<Tables>,
    pub capture: Arc<Capture>,
    pub host: Arc<dyn Host>,
    /// This node's name, as process tables show it.
    pub node: String,
    pub graces: GracePeriods,
    /// The budget of descriptors in flight.
    pub budget: Budget,
    /// No descriptor is sent before this time, because the kernel refused one.
    pub crowded_until: Option<Instant>,
}

impl Control {
    /// Adds the listener to the poll set.
    pub(crate) fn listen(&self) -> io::Result<()> {
        let Some(listener) = &self.listener else { return Ok(()) };
        let fd = listener.as_fd().as_raw_fd();
        self.poll.registry().register(&mut SourceFd(&fd), LISTENER, Interest::READABLE)
    }

    /// Serves tools until the engine ends.
    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        let mut linger: Option<Linger> = None;
        let mut linger_until: Option<Instant> = None;
        let (mut serving, mut accepting) = (Flushed::Waits, Flushed::Waits);
        let (mut overdue, mut next_early_end) = (None, None);
        loop {
            let times = [linger_until, overdue, self.graces.next_end(), next_early_end];
            let next = times.into_iter().flatten().min();
            let until_next = next.map(|time| time.saturating_duration_since(Instant::now()));
            let timeout = match serving.max(accepting) {
                Flushed::More => Some(Duration::ZERO),
                Flushed::Retry | Flushed::Crowded => Some(RETRY_DELAY),
                Flushed::Waits => until_next,
            };
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "the control thread cannot poll any more");
                break;
            }
            let mut sockets = Vec::new();
            if accepting != Flushed::Waits || events.iter().any(|event| event.token() == LISTENER) {
                (sockets, accepting) = self.accept();
            }
            // A handle of its own for the lock, so that the guard does not borrow `self`.
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
            // In the turn in which the engine starts to stop, these sockets connected before that.
            if linger.is_none() {
                sockets.into_iter().for_each(|socket| state.admit(self.poll.registry(), socket));
            }
            self.take_reports(&mut state);
            self.end_jobs_early(&mut state);
            next_early_end = state.next_early_end;
            for stream in self.graces.take_expired(Instant::now()) {
                // A capture that has ended has completed all its streams. A stream that is already
                // complete is left as it is.
                let _ = self.capture.finish(stream);
            }
            state.greet(self.poll.registry(), &self.capture);
            serving = self.serve_all(&mut state);
            overdue = state.next_overdue();
            state.close_logs(&self.capture);
            if state.stopping {
                let now = Instant::now();
                let linger = linger.get_or_insert_with(|| Linger::begin(now));
                let peers = state.peers.values().map(Peer::last_activity);
                linger_until =
                    linger.until(peers.chain(state.pending.values().map(PendingPeer::last_activity)), now);
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

    /// Accepts connections on the rendezvous socket. Returns them, and when to try again.
    fn accept(&self) -> (Vec<UnixStream>, Flushed) {
        let mut sockets = Vec::new();
        let Some(listener) = &self.listener else { return (sockets, Flushed::Waits) };
        while sockets.len() < ACCEPTED_PER_TURN {
            match listener.socket().accept() {
                Ok((socket, _)) => sockets.push(socket),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return (sockets, Flushed::Waits);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection yet");
                    return (sockets, Flushed::Retry);
                }
            }
        }
        (sockets, Flushed::More)
    }

    /// Handles all queued reports.
    fn take_reports(&mut self, state: &mut State) {
        let mut changed = false;
        let reports: Vec<Report> = self.reports.try_iter().collect();
        for report in reports {
            // Threads that wait for the tables need not be woken when bytes were taken, which is
            // reported too often.
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

    /// Ends jobs early for which it is time.
    fn end_jobs_early(&mut self, state: &mut State) {
        let now = Instant::now();
        if let Some(streams) = state.end_jobs_early(now) {
            self.graces.begin(now, OPEN_AFTER_KILL, streams);
            self.tables.notify();
        }
    }

    /// Handles one event of the capture thread.
    fn take_event(&mut self, state: &mut State, event: Event) {
        match event {
            Event::Complete { source, produced, end, .. } => {
                state.stream_completed(source, produced);
                state.send_last_generation(&self.capture, source);
                completed(state, &self.capture, source, &end);
            }
            Event::Delivered { source, deliveries, .. } => state.deliveries_taken(source, deliveries),
            Event::Freed { push, position } => state.freed(push, position),
            Event::Fed { push, target, delivered, end } => state.fed(push, target, delivered, end),
            // `Fed` has reported the end of a push for each of its targets. The watchdog's thread
            // handles stalls, see `stalls`.
            Event::PushOver { .. } | Event::Stalled { .. } => {}
            Event::Shut { target } => state.shut(target),
            Event::Exited { process, status } => {
                if let Some(proc) = state.processes.remove(&process)
                    && let Some(job) = state.jobs.get_mut(&proc.nspace)
                {
                    let exit = status.map(Exit::Status).unwrap_or_else(|error| {
                        tracing::warn!(source = %proc, %error, "the exit status of a rank is not available");
                        Exit::Unknown
                    });
                    job.exited(proc.rank, exit);
                    if let (Some(grace), Some(rank)) = (job.grace, job.ranks.get(&proc.rank)) {
                        self.graces.begin(Instant::now(), grace, rank.streams.to_vec());
                    }
                    state.schedule_early_end(&proc.nspace, Instant::now());
                    state.announce_end(&proc.nspace);
                    state.shut_if_unread(&self.capture, &proc);
                }
            }
        }
    }

    /// Serves every tool as far as possible without waiting. Returns the most urgent of the
    /// results.
    fn serve_all(&mut self, state: &mut State) -> Flushed {
        let ids: Vec<PeerId> = state.peers.keys().copied().collect();
        let mut result = Flushed::Waits;
        let mut used = state.fds_in_flight(self.budget);
        // A send that the kernel refuses makes the socket writable again, which would cause another
        // attempt at once. So no descriptor is sent until `crowded_until`.
        let now = Instant::now();
        let budget =
            if self.crowded_until.is_some_and(|until| now < until) { Budget::NONE } else { self.budget };
        for peer_id in ids {
            match self.serve(state, peer_id, budget, &mut used) {
                Ok(flushed) => result = result.max(flushed),
                Err(reason) => self.disconnect(state, peer_id, &reason),
            }
        }
        if result == Flushed::Crowded {
            self.crowded_until = now.checked_add(RETRY_DELAY);
        } else if budget == Budget::NONE {
            result = result.max(Flushed::Retry);
        }
        result
    }

    /// Serves at most [`MESSAGES_PER_TURN`] messages of one tool.
    fn serve(
        &self,
        state: &mut State,
        peer_id: PeerId,
        budget: Budget,
        used: &mut usize,
    ) -> Result<Flushed, DisconnectReason> {
        for _ in 0..MESSAGES_PER_TURN {
            let Some(peer) = state.peers.get_mut(&peer_id) else { return Ok(Flushed::Waits) };
            let flushed = peer.flush(budget, used)?;
            let Some(message) = peer.receive()? else { return Ok(flushed) };
            requests::serve(state, &self.capture, &self.node, peer_id, message)?;
        }
        Ok(Flushed::More)
    }

    /// Removes a tool and everything that it has requested.
    fn disconnect(&self, state: &mut State, peer_id: PeerId, reason: &DisconnectReason) {
        state.detach(&self.capture, peer_id, None);
        if let Some(peer) = state.remove_peer(peer_id) {
            peer.tickets().for_each(|ticket| state.release(ticket));
            state.leave_pushes(&self.capture, peer.pushes.values().copied());
            state.queries.forget(peer_id);
            state.logs.forget(peer_id);
            let fd = peer.socket().as_fd().as_raw_fd();
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
            if !matches!(reason, DisconnectReason::Closed) {
                // Not a warning: any tool could make the engine repeat it.
                tracing::info!(tool = peer.name, pid = peer.client.pid, %reason, "a tool was disconnected");
            }
            state.departed.extend(peer.depart());
        }
    }
}

impl Drop for Control {
    /// Wakes all waiting threads, however the control thread ended.
    fn drop(&mut self) {
        let mut state = self.tables.lock();
        state.stopping = true;
        let (peers, callbacks) = (mem::take(&mut state.peers), state.remove_callbacks());
        state.pending.clear();
        drop(state);
        // Closes the connections of all tools.
        drop(peers);
        self.tables.notify();
        callbacks.into_iter().for_each(|taken| taken());
    }
}

/// Notes that a stream is complete, and the reason if it did not reach its end of file.
fn completed(state: &mut State, capture: &Capture, stream: SourceId, end: &End) {
    let Some(StreamName { source, channel, logged, .. }) =
        state.streams.get(&stream).map(|stream| stream.name.clone())
    else {
        return;
    };
    state.queries.streams_changed();
    // A complete stream keeps its bytes without the backlog holder, so the slot is free for others.
    state.release_backlog(capture, &[stream]);
    if logged {
        state.logged_all(stream, &source.nspace);
        return state.announce_end(&source.nspace);
    }
    if state.delivery_completed(stream, &source.nspace) {
        return state.announce_end(&source.nspace);
    }
    let Some(job) = state.jobs.get_mut(&source.nspace) else { return };
    job.open_streams = job.open_streams.saturating_sub(1);
    match end {
        End::EndOfFile => {}
        End::Closed => {
            tracing::info!(%source, %channel, "a stream was cut off: it was open at the end of its rank's grace period, or was closed by the embedder");
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

/// Checks that a file that was opened for a tool leaves [`RESERVED_FILES`] to the job.
///
/// # Errors
/// Too few files are left.
pub(crate) fn check_spare_files(file: BorrowedFd<'_>) -> Result<(), Failure> {
    // The kernel assigns the lowest free number, so a high number means that few files are left.
    let number = u64::try_from(file.as_raw_fd()).unwrap_or(u64::MAX);
    let limit = file_limit();
    if number.saturating_add(RESERVED_FILES) < limit {
        return Ok(());
    }
    let reason = format!(
        "too many open files: the limit is {limit}, and the engine keeps the last {RESERVED_FILES} for its job"
    );
    Err(Failure::new(Status::ERR_OUT_OF_RESOURCE, reason))
}

/// Returns this node's name, as process tables show it.
pub(crate) fn node_name() -> io::Result<String> {
    Ok(gethostname()?.to_string_lossy().into_owned())
}
