//! The follower of the nodes of a job, which reports to the engine what becomes of them. It is part of
//! the thread that drives the edges.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, TryRecvError};
use iof_engine::{DeliveredEnd, Engine, Exit, NodeLost, NodeReport};
use iof_nodes::{BrokenEnd, BrokenPull, BrokenStream, ToAgent, ToFrontEnd};
use iof_output::{CacheDrops, PrintReport};
use iof_proto::ranges::listed;
use iof_tool::DirectItem;

use crate::carrier::DRAIN_LIMIT;
use crate::edge::{Edge, NodeEvent, NumberedEvent};
use crate::remote::{Remote, broken_piece, piece};

/// Called with the host of a node, and what it has written to files or the reason why it can't. Must not
/// block.
pub(crate) type FilesCallback = Box<dyn FnMut(String, Result<PrintReport, String>) + Send>;

/// Follows the nodes.
pub struct Follower {
    remote: Arc<Remote>,
    engine: Weak<Engine>,
    queue: Receiver<NumberedEvent>,
    files: FilesCallback,
    /// The nodes that have neither ended nor are lost.
    open: BTreeSet<usize>,
    /// When pulled streams are not waited for any longer, once all nodes have ended or are lost.
    pulls_until: Option<Instant>,
    /// The edges whose agents are told that the job has ended, and until when.
    closing: Option<(Vec<Edge>, Instant)>,
}

impl Follower {
    /// Begins with `early` events, and goes on with those in the queue.
    pub(crate) fn new(
        remote: Arc<Remote>,
        (early, queue): (Vec<NumberedEvent>, Receiver<NumberedEvent>),
        engine: Weak<Engine>,
        files: FilesCallback,
    ) -> Follower {
        let open = (0..remote.nodes.len()).collect();
        let mut follower = Follower { remote, engine, queue, files, open, pulls_until: None, closing: None };
        early.into_iter().for_each(|(number, event)| follower.handle(number, event));
        follower
    }

    /// Reports what has happened. Returns whether all nodes have ended or are lost, and all agents were
    /// told so. The job has ended then.
    pub fn follow(&mut self, now: Instant) -> bool {
        let no_edge = loop {
            match self.queue.try_recv() {
                Ok((number, event)) => self.handle(number, event),
                Err(error) => break error == TryRecvError::Disconnected,
            }
        };
        let has_ended = no_edge || self.open.is_empty();
        if self.closing.is_none() && has_ended && self.pulls_have_ended(now) {
            let edges = self.remote.close(&ToAgent::Close);
            let until = edges.iter().filter_map(Edge::ends_at).max().unwrap_or(now + DRAIN_LIMIT);
            self.closing = Some((edges, until));
        }
        let is_over =
            |(edges, until): &(Vec<Edge>, Instant)| now >= *until || edges.iter().all(Edge::is_drained);
        let is_over = self.closing.as_ref().is_some_and(is_over);
        if is_over {
            // They end with the last handle.
            self.remote.edges().fill(None);
            self.engine.upgrade().map(|engine| engine.end_job(&self.remote.nspace, None));
        }
        is_over
    }

    /// Returns when [`Follower::follow`] is to be called whatever happens.
    pub fn due(&self) -> Option<Instant> {
        self.closing.as_ref().map(|(_, until)| *until).or(self.pulls_until)
    }

    /// Returns whether the streams that tools pull have ended. Those that have not in time are broken.
    fn pulls_have_ended(&mut self, now: Instant) -> bool {
        let until = *self.pulls_until.get_or_insert(now + DRAIN_LIMIT);
        let edges: Vec<Edge> = self.remote.edges().iter().flatten().cloned().collect();
        for (pulls, may_arrive) in edges.iter().map(Edge::open_pulls) {
            if may_arrive && !pulls.is_empty() && now < until {
                return false;
            }
            self.break_pulls(&pulls);
        }
        true
    }

    /// Ends pulled streams, as broken.
    fn break_pulls(&self, pulls: &[BrokenPull]) {
        for broken in pulls {
            // Refused if the engine ends.
            let _ = self.remote.deliver(broken.pull, broken_piece(broken), || {});
        }
    }

    fn handle(&mut self, number: usize, event: NodeEvent) {
        let report = match event {
            NodeEvent::Message(ToFrontEnd::Exited { rank, status, requested, used }) => {
                let exit = status.map_or(Exit::Unknown, |raw| Exit::Status(ExitStatus::from_raw(raw)));
                NodeReport::Exited { rank, exit, requested, used }
            }
            NodeEvent::Message(ToFrontEnd::Mpi { rank, event }) => NodeReport::Mpi { rank, event },
            NodeEvent::Message(ToFrontEnd::Modex { call, values }) => NodeReport::Modex { call, values },
            NodeEvent::Message(ToFrontEnd::StdinTaken { call, answer }) => {
                NodeReport::StdinTaken { call, answer }
            }
            NodeEvent::Message(ToFrontEnd::Over { cut_off }) => {
                self.open.remove(&number);
                NodeReport::Over { cut_off }
            }
            NodeEvent::Message(ToFrontEnd::Cost { user, system, backend }) => {
                let mut costs = self.remote.costs.lock().unwrap_or_else(PoisonError::into_inner);
                return costs.add(user, system, backend);
            }
            NodeEvent::Message(ToFrontEnd::FilesWritten {
                written,
                lost,
                dropped: bytes,
                refusals,
                failure,
            }) => {
                let host = self.remote.nodes.get(number).map(|node| node.host.clone()).unwrap_or_default();
                let (lost, drops) = (lost.into_iter().collect(), CacheDrops { bytes, refusals });
                let written = PrintReport { written, lost, drops, ..PrintReport::default() };
                return (self.files)(host, failure.map_or(Ok(written), Err));
            }
            NodeEvent::Greeted | NodeEvent::Message(_) => return,
            NodeEvent::Silent(length) => return self.tell_silence(number, length),
            NodeEvent::Lost { reason, broken } => match self.lost(number, reason, &broken) {
                Some(lost) => NodeReport::Lost(lost),
                None => return,
            },
        };
        self.remote.report(number, report);
    }

    fn tell_silence(&self, number: usize, length: Duration) {
        let (Some(node), job) = (self.remote.nodes.get(number), &self.remote.nspace) else { return };
        let (host, ranks, seconds) = (&node.host, listed(&node.ranks), length.as_secs());
        let noun = if node.ranks.len() == 1 { "rank" } else { "ranks" };
        tracing::warn!(
            "job {job}: node {host} with {noun} {ranks} was silent for {seconds} s: it or its network may stand still"
        );
    }

    /// Ends what has arrived of a node that is lost. Returns all that is known about its streams.
    fn lost(&mut self, number: usize, reason: String, broken: &BrokenEnd) -> Option<NodeLost> {
        let node = self.remote.nodes.get(number)?;
        self.open.remove(&number);
        let edge = self.remote.edges().get_mut(number).and_then(Option::take);
        self.break_off(broken);
        if let (Some(edge), Some(_)) = (edge, &self.remote.output) {
            self.break_pulls(&edge.open_pulls().0);
            self.remote.report(number, NodeReport::Streams(edge.streams(true)));
        }
        let sum = |figure: fn(&BrokenStream) -> u64| {
            broken.streams.iter().fold(0u64, |sum, stream| sum.saturating_add(figure(stream)))
        };
        Some(NodeLost {
            host: node.host.clone(),
            reason,
            ranks: broken.ranks.clone(),
            delivered: sum(|stream| stream.delivered),
            missing: sum(|stream| stream.missing),
            totals: broken.totals,
        })
    }

    /// Ends the streams of a lost node, as broken.
    fn break_off(&self, broken: &BrokenEnd) {
        if let Some(output) = &self.remote.output {
            for BrokenStream { stream, missing, .. } in &broken.streams {
                output.push(*stream, &DirectItem::Broken(*missing));
            }
            return output.flush();
        }
        for BrokenStream { stream, delivered, lost, missing } in &broken.streams {
            let end = piece(*stream, delivered.saturating_add(*lost), Some(DeliveredEnd::Broken(*missing)));
            // Refused if the engine ends.
            let _ = self.remote.deliver(0, end, || {});
        }
    }
}
