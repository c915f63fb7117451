//! The thread that follows the ranks of all nodes to their ends.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crossbeam::channel::RecvTimeoutError;
use iof_engine::{
    EarlyEnd, EarlyEndPolicy, EarlyEndStep, Ending, Engine, Exit, FirstFailure, JobStatus, OPEN_AFTER_KILL,
    REQUEST_LIFETIME, REQUESTS_TO_END, RankExit, Signal,
};
use iof_nodes::{BrokenEnd, BrokenStream, StdinOutcome, StreamKey, ToAgent, ToFrontEnd};
use iof_output::PrintReport;
use iof_proto::directive::key;
use iof_proto::{Info, Proc, Rank};

use crate::carrier::EXIT_LIMIT;
use crate::edge::{Edge, NodeEvent};
use crate::remote::{Remote, StdinCall};
use crate::start::NodeEvents;
use crate::thread::{NoThread, start_thread};

/// What becomes of the ranks on other nodes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RemoteEvent {
    /// A rank has exited, or the job is ended early.
    Ending(Ending),
    /// A node is lost.
    NodeLost(NodeLost),
    /// The files of a node are complete, or can't be written, which ends the job.
    Files {
        /// The node.
        host: String,
        /// What was written, or the reason why files can't be written.
        result: Result<PrintReport, String>,
    },
    /// Every rank has exited, or its node is lost.
    Exited(JobStatus),
    /// In addition, every stream is complete or broken. The last event.
    Over(JobStatus),
}

/// A node whose edge has ended too early.
#[derive(Clone, Debug)]
pub struct NodeLost {
    /// The node.
    pub host: String,
    /// The reason.
    pub reason: String,
    /// What is known about its ranks and their output.
    pub broken: BrokenEnd,
}

impl Remote {
    /// Follows the ranks until all have ended, in a thread. Ends the job when a rank fails or its
    /// time is over, as an engine does on one node.
    pub fn follow(
        self: &Arc<Self>,
        events: NodeEvents,
        policy: EarlyEndPolicy,
        engine: &Arc<Engine>,
        reports: impl FnMut(RemoteEvent) + Send + 'static,
    ) -> Result<(), NoThread> {
        let follower = Follower {
            remote: Arc::clone(self),
            engine: Arc::downgrade(engine),
            policy,
            last_step: None,
            reports: Box::new(reports),
            first_failure: FirstFailure::default(),
            asked_to_end: None,
        };
        start_thread("iof-nodes", move || follower.run(events))
    }
}

/// The thread that follows the ranks.
struct Follower {
    remote: Arc<Remote>,
    engine: Weak<Engine>,
    policy: EarlyEndPolicy,
    /// What follows SIGKILL, and when.
    last_step: Option<(Instant, LastStep)>,
    reports: Box<dyn FnMut(RemoteEvent) + Send>,
    first_failure: FirstFailure,
    /// When all ranks were last sent a signal that asks them to end.
    asked_to_end: Option<Instant>,
}

/// A step after SIGKILL of all ranks, for nodes that have not ended.
#[derive(Clone, Copy)]
enum LastStep {
    /// Streams that are still open are cut off.
    CutOff,
    /// Carriers are asked to end.
    HangUp,
    /// Nodes that do not answer are given up.
    GiveUp,
}

impl Follower {
    fn run(mut self, events: NodeEvents) {
        let NodeEvents { queue, early, .. } = events;
        for (number, event) in early {
            self.handle(number, event);
        }
        loop {
            let now = Instant::now();
            self.end_early(now);
            if self.remote.state().open.is_empty() {
                break;
            }
            let last_step = self.last_step.map(|(time, _)| time);
            let times = self.policy.next_time(now).into_iter().chain(last_step);
            let event = match times.min() {
                Some(time) => queue.recv_deadline(time),
                None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok((number, event)) => self.handle(number, event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = self.remote.status();
        self.remote.close();
        if let Some(engine) = self.engine.upgrade() {
            engine.end_job(&self.remote.nspace, Some(status.code()));
        }
        self.report(RemoteEvent::Over(status));
    }

    fn report(&mut self, event: RemoteEvent) {
        (self.reports)(event);
    }

    fn end_early(&mut self, now: Instant) {
        let left: Vec<Rank> = {
            let state = self.remote.state();
            state.ranks.iter().filter(|(_, info)| info.exit.is_none()).map(|(rank, _)| *rank).collect()
        };
        match self.policy.next_step(now, !left.is_empty()) {
            Some(EarlyEndStep::Terminate(cause)) => {
                let end = EarlyEnd { cause, left };
                self.remote.state().status.early_end = Some(end.clone());
                self.report(RemoteEvent::Ending(Ending::Early(end)));
                self.remote.signal(Signal::TERM);
                self.remote.signal(Signal::CONT);
            }
            Some(EarlyEndStep::Kill) => {
                self.remote.signal(Signal::KILL);
            }
            None => {}
        }
        if let Some((_, step)) = self.last_step.take_if(|(time, _)| *time <= now) {
            self.perform(step, now);
        }
    }

    /// Ends what SIGKILL has not ended. A node may be frozen, or its carrier may not notice that
    /// the network is gone.
    fn perform(&mut self, step: LastStep, now: Instant) {
        let next = |wait| now.checked_add(wait);
        match step {
            LastStep::CutOff => {
                self.remote.send_all(&ToAgent::CutOff);
                self.last_step = next(OPEN_AFTER_KILL).map(|time| (time, LastStep::HangUp));
            }
            LastStep::HangUp => {
                let terminate = |(_, edge): (usize, &Edge)| edge.signal_carrier(Signal::TERM);
                self.remote.state().open_edges().for_each(terminate);
                self.last_step = next(EXIT_LIMIT).map(|time| (time, LastStep::GiveUp));
            }
            LastStep::GiveUp => {
                let numbered = |(number, edge): (usize, &Edge)| (number, edge.clone());
                let edges: Vec<_> = self.remote.state().open_edges().map(numbered).collect();
                for (number, edge) in edges {
                    let given_up = edge.give_up();
                    edge.signal_carrier(Signal::KILL);
                    if let Some(broken) = given_up {
                        self.lost(number, "its agent does not answer", &broken);
                    }
                }
            }
        }
    }

    fn handle(&mut self, number: usize, event: NodeEvent) {
        match event {
            NodeEvent::Message(ToFrontEnd::Exited { rank, status, executable, requested }) => {
                let exit = status.map_or(Exit::Unknown, |raw| Exit::Status(ExitStatus::from_raw(raw)));
                let pid = self.note_exit(rank, exit, requested);
                self.report(RemoteEvent::Ending(Ending::Rank(RankExit {
                    rank,
                    exit,
                    pid,
                    executable,
                    requested,
                })));
                self.report_exited();
            }
            NodeEvent::Message(ToFrontEnd::StdinTaken { call, outcome }) => {
                self.stdin_answered(number, Some(call), &outcome);
            }
            NodeEvent::Message(ToFrontEnd::Over { cut_off }) => {
                let mut state = self.remote.state();
                state.status.cut_off.extend(cut_off);
                state.open.remove(&number);
                drop(state);
                // No rank is left to read what the node has not answered.
                self.stdin_answered(number, None, &StdinOutcome::Closed);
            }
            NodeEvent::Message(ToFrontEnd::Cost { user, system, backend }) => {
                self.remote.state().costs.add(user, system, backend);
            }
            NodeEvent::Message(ToFrontEnd::FilesWritten { written, lost, failure }) => {
                let host = self.remote.nodes.get(number).map(|node| node.host.clone()).unwrap_or_default();
                let lost = lost.into_iter().collect();
                let written = PrintReport { written, lost, ..PrintReport::default() };
                self.report(RemoteEvent::Files { host, result: failure.map_or(Ok(written), Err) });
            }
            NodeEvent::Greeted | NodeEvent::Message(_) => {}
            NodeEvent::Signalled(Signal::KILL) => {
                let step = Instant::now().checked_add(OPEN_AFTER_KILL).map(|time| (time, LastStep::CutOff));
                self.last_step = self.last_step.or(step);
            }
            NodeEvent::Signalled(signal) => {
                if REQUESTS_TO_END.contains(&signal) {
                    self.asked_to_end = Some(Instant::now());
                }
                self.policy.signalled(signal);
            }
            NodeEvent::Lost { reason, broken } => self.lost(number, &reason, &broken),
        }
    }

    /// Notes the end of a rank. Returns its pid.
    fn note_exit(&mut self, rank: Rank, exit: Exit, requested: bool) -> u32 {
        let mut state = self.remote.state();
        if !exit.success() {
            self.first_failure.note((rank, exit), requested);
            state.status.first_failure = self.first_failure.get();
        }
        self.policy.exited(rank, exit, requested, false, Instant::now());
        let Some(info) = state.ranks.get_mut(&rank) else { return 0 };
        info.exit = Some(exit);
        info.pid
    }

    fn report_exited(&mut self) {
        if let Some(status) = self.remote.try_wait_exit() {
            self.report(RemoteEvent::Exited(status));
        }
    }

    /// Notes that a node is lost, with all that is known about its streams.
    fn lost(&mut self, number: usize, reason: &str, broken: &BrokenEnd) {
        let Some(node) = self.remote.nodes.get(number) else { return };
        let mut state = self.remote.state();
        if !state.open.remove(&number) {
            // It was given up.
            return;
        }
        if let Some(edge) = state.edges.get_mut(number) {
            *edge = None;
        }
        drop(state);
        self.break_off(broken);
        self.stdin_answered(number, None, &StdinOutcome::Closed);
        let (host, reason) = (node.host.clone(), reason.to_owned());
        // What ends ranks on request may end their node, such as a SIGTERM to the carriers as well.
        let requested = self.asked_to_end.is_some_and(|time| time.elapsed() < REQUEST_LIFETIME);
        for rank in &broken.ranks {
            // As a rank that a signal has killed: most likely it has been.
            let mut state = self.remote.state();
            self.first_failure.note((*rank, Exit::Unknown), requested);
            state.status.first_failure = self.first_failure.get();
            if let Some(info) = state.ranks.get_mut(rank) {
                info.exit = Some(Exit::Unknown);
            }
        }
        if let Some(rank) = broken.ranks.first() {
            self.policy.lost(*rank);
        }
        self.report(RemoteEvent::NodeLost(NodeLost { host, reason, broken: broken.clone() }));
        self.report_exited();
    }

    /// Ends the streams of a lost node, as broken.
    fn break_off(&self, broken: &BrokenEnd) {
        // The command may end.
        let Some(engine) = self.engine.upgrade() else { return };
        for BrokenStream { stream: StreamKey { rank, channel }, missing, .. } in &broken.streams {
            let source = Proc { nspace: self.remote.nspace.clone(), rank: *rank };
            let end = [Info::new(key::IOF_BROKEN, *missing)];
            // Refused if the engine ends.
            let _ = engine.deliver(&source, *channel, Vec::new(), &end, || {});
        }
    }

    /// Notes the answer of a node for one piece of stdin, or for all pieces of a lost node.
    fn stdin_answered(&self, number: usize, call: Option<u64>, outcome: &StdinOutcome) {
        let mut state = self.remote.state();
        let is_meant = |id: &u64| call.is_none_or(|call| call == *id);
        let calls = state.calls.iter_mut().filter(|(id, _)| is_meant(id));
        let answered: Vec<u64> =
            calls.filter_map(|(id, stdin)| stdin.answered(number, outcome).then_some(*id)).collect();
        let replies: Vec<StdinCall> = answered.iter().filter_map(|id| state.calls.remove(id)).collect();
        drop(state);
        replies.into_iter().for_each(StdinCall::reply);
    }
}
