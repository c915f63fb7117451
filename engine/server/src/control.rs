//! The control thread: accepts tools, serves their requests, handles the reports of the capture
//! thread, and makes all upcalls to the host.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::{io, mem, thread};

use crossbeam::channel::Receiver;
use iof_capture::{Capture, Event};
use iof_core::{
    ChannelEntry, DisconnectReason, DueUpcall, Input, Linger, LogRoute, MessageOrigin, PeerId, TakenCallback,
};
use iof_proto::rendezvous::Listener;
use iof_shm_ring::CacheBudget;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use self::connection::{Connection, Flushed};
use self::in_flight::{Budget, Departed};
use self::starter::Starter;
use self::upcalls::make_upcall;
use crate::host::Host;
use crate::logs::log_channels::LogChannels;
use crate::mpi::pmi::PmiLinks;
use crate::tables::reports::Report;
use crate::tables::{LockedTables, Tables};

pub(crate) mod connection;
pub(crate) mod connections;
pub(crate) mod in_flight;
pub(crate) mod incoming;
pub(crate) mod stalls;
pub(crate) mod starter;
pub(crate) mod upcalls;

/// The token of the rendezvous socket.
const LISTENER: Token = Token(1);
/// The first token of a tool.
pub(crate) const FIRST_PEER: PeerId = 2;

/// Number of connections that are accepted in one turn, before the limits on tools are applied.
const ACCEPTED_PER_TURN: usize = 8;
/// Number of messages of one tool that are served before other tools have their turn.
const MESSAGES_PER_TURN: usize = 64;
/// Delay before the next attempt when the kernel has too many descriptors in flight, or none left
/// for a connection.
const RETRY_DELAY: Duration = Duration::from_millis(5);

/// The state of the control thread, which runs until the engine ends.
pub(crate) struct Control {
    pub poll: Poll,
    pub listener: Option<Arc<Listener>>,
    pub reports: Receiver<Report>,
    pub tables: Arc<Tables>,
    pub capture: Arc<Capture>,
    /// The caches of all streams.
    pub caches: Arc<CacheBudget>,
    pub starter: Weak<Starter>,
    pub host: Arc<dyn Host>,
    pub log_channels: LogChannels,
    /// Upcalls to be made. Empty while the tables are locked, unless an upcall has panicked.
    pub upcalls: VecDeque<DueUpcall>,
    /// The budget of descriptors in flight.
    pub budget: Budget,
    /// No descriptor is sent before this time, because the kernel refused one.
    pub crowded_until: Option<Instant>,
    /// The tables have changed since the threads that wait for a change were woken.
    pub changed: bool,
    /// All connections, of tools and of processes that are not tools yet.
    pub connections: BTreeMap<PeerId, Connection>,
    /// The PMI sockets of the ranks.
    pub pmi: PmiLinks,
    /// Ended connections with descriptors in flight.
    pub departed: BTreeMap<PeerId, Departed>,
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
        let mut deadline = None;
        loop {
            // While many ranks are started, a turn handles several of them.
            thread::sleep(self.capture.mass_start_delay());
            let next = linger_until.into_iter().chain(deadline).min();
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
            events.iter().for_each(|event| self.pmi.now_ready(event.token().0));
            let (pmi_reports, pmi_more) = self.pmi.serve_ready();
            // A handle of its own for the lock, so that the guard does not borrow `self`.
            let tables = Arc::clone(&self.tables);
            let mut core = tables.lock();
            if tables.are_broken() {
                core.log().push(|| tracing::error!("the engine ends: a thread has panicked in its tables"));
                break;
            }
            for event in &events {
                let Token(peer_id) = event.token();
                if let Some(connection) = self.connections.get_mut(&peer_id) {
                    connection.now_readable();
                }
            }
            // In the turn in which the engine starts to stop, these sockets connected before that.
            if linger.is_none() {
                sockets.into_iter().for_each(|socket| self.admit(&mut core, socket));
            }
            pmi_reports.into_iter().for_each(|report| self.handle(&mut core, report));
            self.tables.reports.take_wake();
            self.take_reports(&mut core);
            self.greet(&mut core);
            serving = self.serve_all(&mut core);
            if pmi_more {
                serving = Flushed::More;
            }
            self.handle(&mut core, Input::Time);
            deadline = core.next_deadline();
            if core.is_stopping() {
                let now = Instant::now();
                let linger = linger.get_or_insert_with(|| Linger::begin(now));
                linger_until = core.lingers_until(linger, now);
                if linger_until.is_none() {
                    break;
                }
            }
            core.log().append(self.pmi.take_log());
            let entries = core.take_channel_entries();
            // Those of calls since the last input.
            let _ = core.perform_effects();
            self.upcalls.extend(mem::take(&mut core.handles().upcalls));
            drop(core);
            // Once for all changes of the turn.
            if mem::take(&mut self.changed) {
                tables.notify();
            }
            // Before the upcalls, so that a slow host does not delay them.
            self.submit(entries);
            while let Some(upcall) = self.upcalls.pop_front() {
                make_upcall(upcall, &*self.host, &tables.reports, &self.starter);
            }
        }
    }

    /// Hands entries to the threads that log them.
    fn submit(&mut self, entries: Vec<(LogRoute, ChannelEntry)>) {
        entries.into_iter().for_each(|(route, entry)| self.log_channels.submit(route, entry));
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
    fn take_reports(&mut self, core: &mut LockedTables<'_>) {
        let reports: Vec<Report> = self.reports.try_iter().collect();
        for report in reports {
            match report {
                Report::Input(input) => {
                    self.end_pmi(core, &input);
                    self.handle(core, input);
                }
                Report::Pmi { job, rank, socket, server } => {
                    self.pmi.add((job, rank), socket, server);
                }
                Report::PmiStarted(job) => self.pmi.start(self.poll.registry(), &job),
                Report::PmiEnded(job) => self.pmi.forget(&job),
                Report::CaptureEnded(mut streams) => {
                    streams.retain(core.keeps());
                    core.handles().ended_streams = Some(streams);
                    self.handle(core, Input::CaptureEnded);
                }
                Report::StreamAnswered { request, answers } => {
                    let tools = core.joining_tools(request);
                    let answers = self.tables.memory.keep_rings(&tools, request, answers);
                    self.handle(core, Input::StreamAnswered { request, answers });
                }
                Report::Attached { socket, rings, grant } => {
                    self.connect(core, Connection::local(socket, rings), Some(grant));
                }
                Report::Approved { peer, answer } => {
                    core.approval_answered(peer);
                    self.approved(core, peer, answer);
                }
            }
        }
    }

    /// Before the exit of a rank, passes the core what the rank had reported.
    fn end_pmi(&mut self, core: &mut LockedTables<'_>, input: &Input) {
        let Input::Captured(Event::Exited { process, .. }) = input else { return };
        let Some((job, rank)) = core.rank_of(*process) else { return };
        self.pmi.end(&job, rank).into_iter().for_each(|report| self.handle(core, report));
    }

    /// Passes the core an input other than a message of a tool.
    fn handle(&mut self, core: &mut LockedTables<'_>, input: Input) {
        self.changed |= !input.is_progress();
        // Only messages can break the protocol.
        let _ = core.handle(input, Instant::now());
        self.changed |= core.take_ended_early();
    }

    /// Serves every tool as far as possible without waiting. Returns the most urgent of the
    /// results.
    fn serve_all(&mut self, core: &mut LockedTables<'_>) -> Flushed {
        let mut result = Flushed::Waits;
        let mut used = self.fds_in_flight(core);
        // A send that the kernel refuses makes the socket writable again, which would cause another
        // attempt at once. So no descriptor is sent until `crowded_until`.
        let now = Instant::now();
        let budget =
            if self.crowded_until.is_some_and(|until| now < until) { Budget::NONE } else { self.budget };
        for peer_id in core.tool_ids() {
            match self.serve(core, peer_id, budget, &mut used) {
                Ok(flushed) => result = result.max(flushed),
                Err(reason) => self.disconnect(core, peer_id, reason),
            }
        }
        if result == Flushed::Crowded {
            self.crowded_until = now.checked_add(RETRY_DELAY);
        } else if budget == Budget::NONE {
            result = result.max(Flushed::Retry);
        }
        result
    }

    /// Serves at most [`MESSAGES_PER_TURN`] messages of one tool, each after all that was reported
    /// before the tool sent it. So a tool that has found bytes in one stream of a process and sends
    /// a query learns of the streams that were read before, and then receives the answer.
    fn serve(
        &mut self,
        core: &mut LockedTables<'_>,
        peer_id: PeerId,
        budget: Budget,
        used: &mut usize,
    ) -> Result<Flushed, DisconnectReason> {
        for _ in 0..MESSAGES_PER_TURN {
            let found = self.connections.get_mut(&peer_id).zip(core.tool_mut(peer_id));
            let Some((connection, peer)) = found else { return Ok(Flushed::Waits) };
            let now = Instant::now();
            let flushed = connection.flush((peer_id, peer), &self.tables.memory, budget, used, now)?;
            let received = connection.receive(peer, now)?;
            if peer.take_stopped() {
                core.remove_kept_streams();
            }
            let Some(message) = received else { return Ok(flushed) };
            // Their wake-ups are left for another turn, which serves the tools that they concern.
            self.take_reports(core);
            core.handle(Input::Message { from: MessageOrigin::Tool(peer_id), message }, now)?;
        }
        Ok(Flushed::More)
    }
}

impl Drop for Control {
    /// Wakes all waiting threads, however the control thread ended, and even if the tables, which a
    /// panic may have left half changed, make this panic.
    fn drop(&mut self) {
        let tables = Arc::clone(&self.tables);
        // Dropped after the lock.
        let _notifier = Notifier(&tables);
        let mut core = tables.lock();
        core.stop_engine();
        let entries = core.take_channel_entries();
        // An upcall that panicked leaves the others in the queue.
        let _ = core.perform_effects();
        let queued = mem::take(&mut self.upcalls).into_iter().chain(mem::take(&mut core.handles().upcalls));
        let queued: Vec<TakenCallback> = queued.filter_map(DueUpcall::into_callback).collect();
        let callbacks = queued.into_iter().chain(core.end_control());
        core.handles().release_memory(&self.tables.memory);
        drop(core);
        self.connections.clear();
        tables.notify();
        // Messages that were accepted are logged, although their requesters are not informed.
        self.submit(entries);
        callbacks.for_each(|taken| taken());
    }
}

/// Wakes all waiting threads when it is dropped.
struct Notifier<'a>(&'a Tables);

impl Drop for Notifier<'_> {
    fn drop(&mut self) {
        self.0.notify();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests {
    use iof_capture::StreamAnswer;
    use iof_proto::{App, Channels, JobSpec, Nspace, Proc, Rendezvous};
    use iof_tool::{BatchReader, Pull};

    use super::*;

    use crate::config::Config;
    use crate::engine::Engine;
    use crate::host::Standalone;
    use iof_core::Grant;

    /// Runs `tool` on another thread while this thread calls `turn` with the control's state.
    fn beside<R: Send>(
        control: &mut Control,
        tool: impl FnOnce() -> R + Send,
        turn: impl Fn(&mut Control, &mut LockedTables<'_>),
    ) -> R {
        thread::scope(|threads| {
            let tool = threads.spawn(tool);
            while !tool.is_finished() {
                let tables = Arc::clone(&control.tables);
                control.connections.values_mut().for_each(Connection::now_readable);
                turn(control, &mut tables.lock());
                thread::yield_now();
            }
            tool.join().unwrap()
        })
    }

    #[test]
    fn streams_that_were_reported_before_a_query_are_announced_before_its_answer() {
        let config = Config::new(Rendezvous::None);
        let (engine, mut control) = Engine::prepare(config, Arc::new(Standalone)).unwrap();
        let nspace = Nspace::new("job").unwrap();
        let pull = Pull::new(vec![Proc::all(nspace.clone())], Channels::STDOUT | Channels::STDERR);
        let attach = || {
            let mut tool = engine.attach("tool", Grant::Never).unwrap();
            tool.pull(&pull).unwrap();
            BatchReader::new(tool)
        };
        let mut reader = beside(&mut control, attach, |control, core| {
            control.take_reports(core);
            control.greet(core);
            control.serve_all(core);
        });
        let job = engine.spawn(&JobSpec::new(nspace, vec![App::new("true", [""; 0])])).unwrap();
        // The reports of the turn were taken before that of the rank's two streams came.
        let (mut reports, mut joined) = (Vec::new(), 0);
        while joined < 2 {
            let report = control.reports.recv().unwrap();
            if let Report::StreamAnswered { answers, .. } = &report {
                joined +=
                    answers.iter().filter(|answer| matches!(answer, StreamAnswer::Joined { .. })).count();
            }
            reports.push(report);
        }
        reports.into_iter().for_each(|report| engine.starter.tables.reports.send(report));
        let mut reader = beside(
            &mut control,
            move || {
                reader.wait_for_streams().unwrap();
                reader
            },
            |control, core| {
                control.serve_all(core);
            },
        );
        let mut streams = Vec::new();
        reader.poll_ready(Some(Instant::now()), &mut streams).unwrap();
        assert_eq!(streams.len(), 2);
        drop((control, job));
    }

    #[test]
    fn the_engine_ends_once_a_thread_has_panicked_in_its_tables() {
        let config = Config::new(Rendezvous::None);
        let engine = Engine::start(config).unwrap();
        let panics = || {
            let _core = engine.starter.tables.lock();
            panic!("a defect of the core");
        };
        assert!(thread::scope(|threads| threads.spawn(panics).join()).is_err());
        engine.starter.tables.wait_for(|core| core.is_stopping().then_some(()));
    }
}
