//! The job of the front end: the real core follows its ranks, which all run on other nodes. A model
//! of its status checks it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use iof_capture::Signal;
use iof_core::{
    Buffering, EXIT_AFTER_HANG_UP, EndCause, Exit, LastStep, NodeId, NodeReport, OPEN_AFTER_KILL,
    StreamOptions,
};
use iof_nodes::ToAgent;
use iof_proto::{Directives, Exchange, FromTool, KillOnBadExit, Node, Nspace, Rank};
use iof_shm_ring::{MAX_SLOTS, Policy, bell};

use super::NodeSet;
use super::agent::Agent;
use super::fencer::Requests;
use super::puller::Puller;
use super::pusher::Pusher;
use crate::driver::{Limits, NewJob, SentToNode, Setting, SimulatedEngine};
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
    /// The tool that pushes stdin.
    pusher: Pusher,
    /// The tool that pulls streams.
    puller: Puller,
    pub requests: Requests,
    /// The requests to nodes that are not carried out.
    outbox: Vec<(NodeId, SentToNode)>,
    /// The turn of the first SIGKILL, and the steps that were taken since.
    killed: Option<u64>,
    steps: Vec<LastStep>,
    /// The signals of a user that were sent.
    signals: u32,
    /// The job has ended, or does not start because it has lost a node.
    is_over: bool,
    /// A node is lost.
    has_lost: bool,
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
            may_spawn: false,
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
        let pusher = Pusher::new(&mut engine, &nspace, (set.nodes * set.ranks, set.ranks));
        let puller = Puller::new(&mut engine, &nspace, (set.nodes * set.ranks, set.ranks));
        assert!(engine.take_sent_to_nodes().is_empty());
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
            pusher,
            puller,
            requests: Requests::default(),
            outbox: Vec::new(),
            killed: None,
            steps: Vec::new(),
            signals: 0,
            is_over: false,
            has_lost: false,
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
            NodeReport::Exited { rank, exit, requested, used: _ } => {
                let is_bad = self.kill_on_bad_exit == KillOnBadExit::Always && !exit.success();
                self.exited(*rank, *exit, *requested, is_bad && !requested);
            }
            NodeReport::Lost(lost) => {
                self.has_lost = true;
                self.open.remove(&node);
                self.puller.note_lost(node);
                // A rank that was asked to end has not failed.
                let ends = self.kill_on_bad_exit != KillOnBadExit::Never && !self.is_asked;
                let ranks = lost.ranks.clone();
                for (number, rank) in ranks.into_iter().enumerate() {
                    self.exited(rank, Exit::Unknown, self.is_asked, ends && number == 0);
                }
            }
            NodeReport::Over { .. } => drop(self.open.remove(&node)),
            NodeReport::StdinTaken { call, answer } if self.open.contains(&node) => {
                self.pusher.note_answer(*call, node, answer);
            }
            NodeReport::StdinTaken { .. }
            | NodeReport::Streams(_)
            | NodeReport::Mpi { .. }
            | NodeReport::Modex { .. } => {}
        }
        if !self.open.contains(&node) {
            self.pusher.note_end(node);
        }
        self.engine.report_node(&self.nspace, self.run, NodeId(node), report);
        self.pusher.record(&mut self.engine);
        self.collect();
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

    /// Passes on a request of ranks of a node.
    pub fn exchange(&mut self, node: usize, (call, rank): (u64, Rank), exchange: Exchange) {
        if !self.is_over {
            let (job, number) = ((&self.nspace, self.run), self.requests.note(node, call));
            self.engine.request_of_rank(job, rank, FromTool::Exchange(exchange), number);
            self.collect();
        }
    }

    /// Returns the answers to ranks for their nodes. Without any lost one, all nodes run that have not ended.
    pub fn take_answers(&mut self, none_is_lost: bool) -> Vec<(NodeId, ToAgent)> {
        let all_run = none_is_lost && (self.is_over || self.open.len() == self.nodes);
        let calls = self.engine.calls();
        assert!(calls.is_empty(), "no host is asked");
        let answers = self.engine.take_answers_of_ranks().into_iter();
        answers.flat_map(|(number, answer)| self.requests.answered(number, answer, all_run)).collect()
    }

    /// Takes what the engine has sent to nodes, and checks it.
    fn collect(&mut self) {
        for (node, sent) in self.engine.take_sent_to_nodes() {
            match &sent {
                // A node that is over still has its streams.
                SentToNode::Pull(pulls) => self.puller.note_pulls(pulls),
                SentToNode::EndPulls(pulls) => self.puller.note_ends(node.0, pulls),
                // A node that still starts its ranks answers later.
                SentToNode::Modex { .. } if self.started < self.nodes => {}
                _ => assert!(self.open.contains(&node.0), "{sent:?} for node {node:?}, which has ended"),
            }
            if let SentToNode::Stdin { call, ranks, bytes } = &sent {
                self.pusher.note_piece(*call, node.0, ranks.as_deref(), bytes.len() as u64);
            }
            self.outbox.push((node, sent));
        }
    }

    /// Lets time pass. Returns what is sent to nodes: by the engine, and signals of the user.
    pub fn turn(&mut self, (rng, now): (&mut Rng, u64), agents: &[Agent]) -> Vec<(NodeId, SentToNode)> {
        if self.is_over {
            return Vec::new();
        }
        self.pusher.turn(&mut self.engine, rng, agents);
        self.puller.turn(&mut self.engine, rng);
        self.collect();
        let is_started = self.started == self.nodes;
        self.engine.set_time(self.began + TURN * now as u32);
        let of_time = self.outbox.len();
        self.collect();
        let early_end = self.engine.status(&self.nspace).unwrap().early_end;
        assert!(is_started || early_end.is_none(), "a job ends early once all nodes run their ranks");
        if let Some(rank) = self.due.filter(|_| is_started && !self.running.is_empty()) {
            let end = early_end.as_ref().expect("a failure ends the job");
            assert!(end.cause == EndCause::BadExit(rank) || end.cause == EndCause::Timeout, "{end:?}");
        }
        let mut steps = BTreeMap::<usize, Vec<LastStep>>::new();
        for (node, sent) in &self.outbox[of_time..] {
            match sent {
                SentToNode::Signal(signal, ranks) => {
                    self.check(ranks);
                    if self.sent.last() != Some(signal) {
                        self.sent.push(*signal);
                    }
                }
                SentToNode::End(step) => steps.entry(node.0).or_default().push(*step),
                SentToNode::Stdin { .. }
                | SentToNode::Pull(_)
                | SentToNode::EndPulls(_)
                | SentToNode::Modex { .. } => {}
            }
        }
        let order = [Signal::TERM, Signal::CONT, Signal::KILL];
        assert!(order.starts_with(&self.sent));
        assert!(self.open.is_empty() || early_end.is_some() != self.sent.is_empty());
        self.check_steps(now, &steps);
        // A silent node outlasts the signals.
        if is_started && self.signals < 2 && rng.below(500) == 0 {
            self.signals += 1;
            let signal = rng.pick(&[Signal::TERM, Signal::USR1, Signal::KILL]);
            for (node, ranks) in self.engine.signal_nodes(&self.nspace, self.run, signal) {
                self.check(&ranks);
                assert!(self.open.contains(&node.0));
                self.outbox.push((node, SentToNode::Signal(signal, ranks)));
            }
        }
        for (_, sent) in &self.outbox {
            if let SentToNode::Signal(signal, _) = sent {
                self.is_asked |= *signal == Signal::TERM;
                if *signal == Signal::KILL {
                    self.killed.get_or_insert(now);
                }
            }
        }
        std::mem::take(&mut self.outbox)
    }

    /// Checks that the steps after SIGKILL are taken in time, each for all nodes that have not ended.
    fn check_steps(&mut self, now: u64, steps: &BTreeMap<usize, Vec<LastStep>>) {
        let turns = |time: Duration| time.div_duration_f64(TURN) as u64;
        let cut_off = turns(OPEN_AFTER_KILL);
        let give_up = 2 * cut_off + turns(EXIT_AFTER_HANG_UP);
        let times =
            [(cut_off, LastStep::CutOff), (2 * cut_off, LastStep::HangUp), (give_up, LastStep::GiveUp)];
        let since = self.killed.map_or(0, |killed| now - killed);
        let due: Vec<LastStep> =
            times.iter().filter(|(time, _)| *time <= since).map(|(_, step)| *step).collect();
        let new = due[self.steps.len().min(due.len())..].to_vec();
        for node in &self.open {
            assert_eq!(steps.get(node).map_or(&[][..], Vec::as_slice), new, "the last steps for node {node}");
        }
        self.steps = due;
    }

    /// Returns the number of pushes that have ended.
    pub fn pushes(&self) -> u64 {
        self.pusher.over
    }

    /// Checks that a signal is for ranks that have not exited.
    fn check(&self, ranks: &[Rank]) {
        assert!(ranks.iter().all(|rank| self.running.contains(rank)));
    }

    /// Ends the job, and checks its status.
    pub fn check_end(&mut self, rng: &mut Rng, agents: &[Agent]) {
        if self.is_over {
            return;
        }
        self.take_answers(false);
        self.requests.check_end();
        self.pusher.check_end(&mut self.engine, rng, agents);
        self.puller.check_end(&mut self.engine);
        self.engine.take_sent_to_nodes();
        self.is_over = true;
        assert!(self.running.is_empty() && self.open.is_empty() && self.engine.has_exited(&self.nspace));
        let requested = |wanted: bool| self.failures.iter().filter(move |(.., was)| *was == wanted);
        let known = requested(true).find(|(_, exit, _)| *exit != Exit::Unknown);
        let first = requested(false).next().or(known).or(self.failures.first());
        let status = self.engine.status(&self.nspace).unwrap();
        assert_eq!(status.first_failure, first.map(|(rank, exit, _)| (*rank, *exit)));
        assert!(status.code() != 0 || first.is_none() && !self.has_lost, "the exit code is true");
        assert!(self.engine.end_job(&self.nspace, None));
        assert!(self.engine.remove(&self.nspace), "a job that has ended is removed");
        assert_eq!(self.engine.remains(), [""; 0]);
    }
}
