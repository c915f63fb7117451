//! The thread that follows the nodes of a job to their ends.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError};
use iof_engine::{Engine, Exit, Job, NodeId, NodeLost, NodeReport, OPEN_AFTER_KILL, Signal};
use iof_nodes::{BrokenEnd, BrokenStream, StreamKey, ToAgent, ToFrontEnd};
use iof_output::PrintReport;
use iof_proto::directive::key;
use iof_proto::ranges::listed;
use iof_proto::{Info, Proc};

use crate::carrier::EXIT_LIMIT;
use crate::edge::{Edge, NodeEvent, NumberedEvent};
use crate::remote::Remote;
use crate::thread::{NoThread, start_thread};

/// Called with the host of a node, and what it has written to files or the reason why it can't.
pub(crate) type FilesCallback = Box<dyn FnMut(String, Result<PrintReport, String>) + Send>;

impl Remote {
    /// Follows the nodes until all have ended, in a thread that begins with `early` events.
    pub(crate) fn follow(
        self: &Arc<Self>,
        job: &Job,
        (early, queue): (Vec<NumberedEvent>, Receiver<NumberedEvent>),
        engine: &Arc<Engine>,
        files: FilesCallback,
    ) -> Result<(), NoThread> {
        let (remote, job, engine) = (Arc::clone(self), job.clone(), Arc::downgrade(engine));
        let mut follower = Follower { remote, job, engine, last_step: None, files };
        start_thread("iof-nodes", move || {
            early.into_iter().for_each(|(number, event)| follower.handle(number, event));
            follower.run(&queue);
        })
    }
}

/// The thread that follows the nodes.
struct Follower {
    remote: Arc<Remote>,
    job: Job,
    engine: Weak<Engine>,
    /// What follows SIGKILL, and when.
    last_step: Option<(Instant, LastStep)>,
    files: FilesCallback,
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
    fn run(mut self, queue: &Receiver<NumberedEvent>) {
        while !self.remote.state().open.is_empty() {
            let event = match self.last_step {
                Some((time, _)) => queue.recv_deadline(time),
                None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok((number, event)) => self.handle(number, event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let now = Instant::now();
            if let Some((_, step)) = self.last_step.take_if(|(time, _)| *time <= now) {
                self.perform(step, now);
            }
        }
        self.remote.close();
        if let Some(engine) = self.engine.upgrade() {
            engine.end_job(&self.remote.nspace, None);
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
                        self.lost(number, "its agent does not answer".into(), &broken);
                    }
                }
            }
        }
    }

    fn handle(&mut self, number: usize, event: NodeEvent) {
        let report = match event {
            NodeEvent::Message(ToFrontEnd::Exited { rank, status, requested }) => {
                let exit = status.map_or(Exit::Unknown, |raw| Exit::Status(ExitStatus::from_raw(raw)));
                NodeReport::Exited { rank, exit, requested }
            }
            NodeEvent::Message(ToFrontEnd::StdinTaken { call, answer }) => {
                NodeReport::StdinTaken { call, answer }
            }
            NodeEvent::Message(ToFrontEnd::Over { cut_off }) => {
                self.remote.state().open.remove(&number);
                NodeReport::Over { cut_off }
            }
            NodeEvent::Message(ToFrontEnd::Cost { user, system, backend }) => {
                let mut costs = self.remote.costs.lock().unwrap_or_else(PoisonError::into_inner);
                return costs.add(user, system, backend);
            }
            NodeEvent::Message(ToFrontEnd::FilesWritten { written, lost, failure }) => {
                let host = self.remote.nodes.get(number).map(|node| node.host.clone()).unwrap_or_default();
                let lost = lost.into_iter().collect();
                let written = PrintReport { written, lost, ..PrintReport::default() };
                return (self.files)(host, failure.map_or(Ok(written), Err));
            }
            NodeEvent::Greeted | NodeEvent::Message(_) => return,
            NodeEvent::Killed => {
                let step = Instant::now().checked_add(OPEN_AFTER_KILL).map(|time| (time, LastStep::CutOff));
                self.last_step = self.last_step.or(step);
                return;
            }
            NodeEvent::Silent(length) => return self.tell_silence(number, length),
            NodeEvent::Lost { reason, broken } => return self.lost(number, reason, &broken),
        };
        self.job.report_node(NodeId(number), report);
    }

    fn tell_silence(&self, number: usize, length: Duration) {
        let (Some(node), job) = (self.remote.nodes.get(number), &self.remote.nspace) else { return };
        let (host, ranks, seconds) = (&node.host, listed(&node.ranks), length.as_secs());
        tracing::warn!(
            "job {job}: node {host} with ranks {ranks} was silent for {seconds} s: it or its network may stand still"
        );
    }

    /// Notes that a node is lost, with all that is known about its streams.
    fn lost(&mut self, number: usize, reason: String, broken: &BrokenEnd) {
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
        let sum = |figure: fn(&BrokenStream) -> u64| {
            broken.streams.iter().fold(0u64, |sum, stream| sum.saturating_add(figure(stream)))
        };
        let lost = NodeLost {
            host: node.host.clone(),
            reason,
            ranks: broken.ranks.clone(),
            delivered: sum(|stream| stream.delivered),
            missing: sum(|stream| stream.missing),
            totals: broken.totals,
        };
        self.job.report_node(NodeId(number), NodeReport::Lost(lost));
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
}
