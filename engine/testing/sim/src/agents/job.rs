//! The job of the front end: the real core follows its ranks, which all run on other nodes. A model
//! of its status checks it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use iof_capture::Signal;
use iof_core::{Buffering, EndCause, Exit, Node, NodeId, NodeReport, StreamOptions};
use iof_proto::{Directives, KillOnBadExit, Nspace, Rank};
use iof_shm_ring::{MAX_SLOTS, Policy, bell};

use super::NodeSet;
use crate::driver::{Limits, NewJob, Setting, SimulatedEngine};
use crate::rng::Rng;

/// The time of a turn.
const TURN: Duration = Duration::from_millis(2);

/// The job of a front end.
pub struct FrontJob {
    engine: SimulatedEngine,
    nspace: Nspace,
    run: u64,
    began: Instant,
    kill_on_bad_exit: KillOnBadExit,
    /// The nodes that have neither ended nor are lost, and the number that has started.
    open: BTreeSet<usize>,
    nodes: usize,
    started: usize,
    running: BTreeSet<Rank>,
    /// All failures in the order of their reports, and whether each was requested.
    failures: Vec<(Rank, Exit, bool)>,
    /// Ranks were asked to end.
    is_asked: bool,
    /// The failure because of which the engine must end the job in the next turn.
    due: Option<Rank>,
    /// Signals that the engine has sent on its own.
    sent: Vec<Signal>,
    /// The job has ended, or does not start because it has lost a node.
    is_over: bool,
}

impl FrontJob {
    pub fn new(set: &NodeSet, rng: &mut Rng) -> FrontJob {
        let setting = Setting {
            options: StreamOptions::new(None, Policy::Block, Buffering::default()),
            places: 1,
            slots: MAX_SLOTS,
            limits: Limits::default(),
            host_stdin: false,
            host_queries: BTreeSet::new(),
            host_channels: BTreeSet::new(),
            late_signals: false,
        };
        let began = Instant::now();
        let mut engine = SimulatedEngine::new(setting, bell().unwrap().0, began).unwrap();
        let nspace = Nspace::new("job").unwrap();
        let kill_on_bad_exit =
            rng.pick(&[KillOnBadExit::Never, KillOnBadExit::Signal, KillOnBadExit::Always]);
        let new = NewJob {
            nspace: nspace.clone(),
            ranks: set.nodes * set.ranks,
            elsewhere: false,
            grace: None,
            timeout: rng.chance(32).then(|| TURN * rng.below(2000) as u32),
            kill_on_bad_exit,
            directives: Directives::default(),
        };
        let ranks = |node: u32| (node * set.ranks..(node + 1) * set.ranks).map(Rank);
        let nodes = (0..set.nodes).map(|node| Node { host: node.to_string(), ranks: ranks(node).collect() });
        let run = engine.begin(&new, &nodes.collect::<Vec<_>>()).unwrap();
        assert!(engine.take_node_signals().is_empty());
        FrontJob {
            engine,
            nspace,
            run,
            began,
            kill_on_bad_exit,
            open: BTreeSet::new(),
            nodes: set.nodes as usize,
            started: 0,
            running: (0..set.nodes).flat_map(ranks).collect(),
            failures: Vec::new(),
            is_asked: false,
            due: None,
            sent: Vec::new(),
            is_over: false,
        }
    }

    /// Passes on what a node reports, and notes it.
    pub fn report(&mut self, node: usize, report: NodeReport) {
        self.is_over |= self.started < self.nodes && matches!(report, NodeReport::Lost(_));
        if self.is_over {
            return;
        }
        match &report {
            NodeReport::Started { .. } => {
                self.started += 1;
                self.open.insert(node);
            }
            NodeReport::Exited { rank, exit, requested } => {
                let is_bad = self.kill_on_bad_exit == KillOnBadExit::Always && !exit.success();
                self.exited(*rank, *exit, *requested, is_bad && !requested);
            }
            NodeReport::Lost(lost) => {
                self.open.remove(&node);
                let (ranks, ends) = (lost.ranks.clone(), self.kill_on_bad_exit != KillOnBadExit::Never);
                for (number, rank) in ranks.into_iter().enumerate() {
                    self.exited(rank, Exit::Unknown, self.is_asked, ends && number == 0);
                }
            }
            NodeReport::Over { .. } => drop(self.open.remove(&node)),
            NodeReport::StdinTaken { .. } => {}
        }
        self.engine.report_node(&self.nspace, self.run, NodeId(node), report);
    }

    fn exited(&mut self, rank: Rank, exit: Exit, requested: bool, ends_job: bool) {
        assert!(self.running.remove(&rank), "rank {rank} ends once");
        if !exit.success() {
            self.failures.push((rank, exit, requested));
        }
        if ends_job {
            self.due.get_or_insert(rank);
        }
    }

    /// Lets time pass. Returns the signals for nodes: those of an early end, and of the user.
    pub fn turn(&mut self, rng: &mut Rng, now: u64) -> Vec<(Signal, usize)> {
        if self.is_over {
            return Vec::new();
        }
        let is_started = self.started == self.nodes;
        self.engine.set_time(self.began + TURN * now as u32);
        let signals = self.engine.take_node_signals();
        let early_end = self.engine.status(&self.nspace).unwrap().early_end;
        assert!(is_started || early_end.is_none(), "a job ends early once all nodes run their ranks");
        if let Some(rank) = self.due.filter(|_| is_started && !self.running.is_empty()) {
            let end = early_end.as_ref().expect("a failure ends the job");
            assert!(end.cause == EndCause::BadExit(rank) || end.cause == EndCause::Timeout, "{end:?}");
        }
        for (signal, ..) in &signals {
            if self.sent.last() != Some(signal) {
                self.sent.push(*signal);
            }
        }
        let order = [Signal::TERM, Signal::CONT, Signal::KILL];
        assert!(order.starts_with(&self.sent));
        assert!(self.open.is_empty() || early_end.is_some() != self.sent.is_empty());
        let mut to_send: Vec<(Signal, usize)> =
            signals.into_iter().map(|(signal, node, ranks)| self.check(signal, node, &ranks)).collect();
        if is_started && rng.below(500) == 0 {
            let signal = rng.pick(&[Signal::TERM, Signal::USR1, Signal::KILL]);
            let sent = self.engine.signal_nodes(&self.nspace, self.run, signal);
            to_send.extend(sent.into_iter().map(|(node, ranks)| self.check(signal, node, &ranks)));
        }
        self.is_asked |= to_send.iter().any(|(signal, _)| *signal == Signal::TERM);
        to_send
    }

    /// Checks that a signal is for a node whose ranks run, and for those that have not exited.
    fn check(&self, signal: Signal, NodeId(node): NodeId, ranks: &[Rank]) -> (Signal, usize) {
        assert!(self.open.contains(&node) && ranks.iter().all(|rank| self.running.contains(rank)));
        (signal, node)
    }

    /// Ends the job, and checks its status.
    pub fn check_end(&mut self) {
        if self.is_over {
            return;
        }
        self.is_over = true;
        assert!(self.running.is_empty() && self.open.is_empty() && self.engine.has_exited(&self.nspace));
        let requested = |wanted: bool| self.failures.iter().filter(move |(.., was)| *was == wanted);
        let known = requested(true).find(|(_, exit, _)| *exit != Exit::Unknown);
        let first = requested(false).next().or(known).or(self.failures.first());
        let status = self.engine.status(&self.nspace).unwrap();
        assert_eq!(status.first_failure, first.map(|(rank, exit, _)| (*rank, *exit)));
        assert!(self.engine.end_job(&self.nspace, None));
        assert!(self.engine.remove(&self.nspace), "a job that has ended is removed");
        assert_eq!(self.engine.remains(), [""; 0]);
    }
}
