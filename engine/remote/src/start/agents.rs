//! The start of all agents, and of all ranks when the agents are ready.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender};
use iof_capture::Guardian;
use iof_engine::{Engine, Node};
use iof_nodes::{FrontEnd, ToAgent, ToFrontEnd, window};

use super::{Launch, Starts};
use crate::carrier::{Carrier, random_part};
use crate::carriers::{NodeConnection, StartedAgent};
use crate::driver::driven::Driven;
use crate::driver::{Command, DriverInbox, EdgeDriver};
use crate::edge::{Edge, EdgeEnds, NodeEvent, NumberedEvent};
use crate::error::RemoteStartError;
use crate::follower::{FilesCallback, Follower};
use crate::receiver;
use crate::remote::Remote;

/// The interval at which the caller is asked while agents start.
const ASK_INTERVAL: Duration = Duration::from_millis(50);
/// The number of attempts to start an agent whose carrier refuses it.
const MAX_ATTEMPTS: u32 = 3;
/// The average time before another attempt. Those of several nodes differ at random by up to half of
/// it, so that a server that refuses too many at once is not asked by all at once again.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(500);
/// The number of hosts that a text about a start names.
const MAX_NAMED: usize = 5;

/// The step of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartStep {
    /// Agents. No rank runs.
    Agents,
    /// The ranks. Some may run.
    Ranks,
}

/// The progress of a start.
#[derive(Clone, Copy, Debug)]
pub struct StartProgress<'a> {
    /// The current step.
    pub step: StartStep,
    /// The time since the start began.
    pub elapsed: Duration,
    nodes: &'a [Node],
    awaited: &'a BTreeSet<usize>,
    /// The nodes whose agents were not started yet.
    next: &'a Range<usize>,
}

impl StartProgress<'_> {
    /// Returns the hosts that have not finished this step as a list, the first five by name, and the number of
    /// those whose agents were not started yet.
    pub fn awaited(&self) -> String {
        let started = || self.awaited.iter().filter(|number| !self.next.contains(number));
        let hosts = started().filter_map(|number| self.nodes.get(*number));
        let mut named: Vec<String> = hosts.take(MAX_NAMED).map(|node| node.host.clone()).collect();
        match started().count().saturating_sub(named.len()) {
            0 => {}
            others => named.push(format!("{others} others")),
        }
        let last = named.pop().unwrap_or_default();
        let list = if named.is_empty() { last } else { format!("{} and {last}", named.join(", ")) };
        match self.next.len() {
            0 => list,
            1 => list + " (1 more node waits for its turn)",
            more => format!("{list} ({more} more nodes wait for their turn)"),
        }
    }
}

/// The start of all agents of a job.
pub(super) struct AgentStarts<'a> {
    remote: &'a Arc<Remote>,
    launch: &'a Launch<'a>,
    starts: &'a Starts,
    engine: &'a Arc<Engine>,
    events: Sender<NumberedEvent>,
    driver: Arc<DriverInbox>,
    /// The agents that were started and connect themselves, until their edges are driven.
    invited: BTreeMap<usize, StartedAgent>,
    began: Instant,
    step: StartStep,
    /// The nodes whose agents were not started yet.
    next: Range<usize>,
    /// The nodes whose agents were refused, and when they are started again.
    again: Vec<(Instant, usize)>,
    /// The number of attempts that were refused, by node.
    refused: BTreeMap<usize, u32>,
    /// The nodes whose agents have not greeted.
    starting: BTreeSet<usize>,
    /// The nodes that have not finished the step.
    awaited: BTreeSet<usize>,
}

impl<'a> AgentStarts<'a> {
    /// # Errors
    /// The process can't have the thread that drives the edges.
    pub(super) fn new(
        remote: &'a Arc<Remote>,
        (launch, starts): (&'a Launch<'a>, &'a Starts),
        engine: &'a Arc<Engine>,
        events: Sender<NumberedEvent>,
    ) -> Result<AgentStarts<'a>, RemoteStartError> {
        let count = remote.nodes.len();
        let driver = EdgeDriver::start(launch.carriers).map_err(RemoteStartError::Driver)?;
        let (next, awaited) = (0..count, (0..count).collect());
        let (again, refused, starting) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        let invited = BTreeMap::new();
        let (began, step) = (Instant::now(), StartStep::Agents);
        Ok(AgentStarts {
            remote,
            launch,
            starts,
            engine,
            events,
            driver,
            invited,
            began,
            step,
            next,
            again,
            refused,
            starting,
            awaited,
        })
    }

    /// Blocks until all ranks run. The thread that drives the edges follows them then, from the events on
    /// that arrived before and concern those that ran.
    ///
    /// # Errors
    /// As [`Launch::start`].
    pub(super) fn run(
        mut self,
        queue: Receiver<NumberedEvent>,
        is_interrupted: &mut dyn FnMut(&StartProgress<'_>) -> bool,
        files: FilesCallback,
    ) -> Result<(), RemoteStartError> {
        let mut early = Vec::new();
        while !self.awaited.is_empty() {
            self.start_more(Instant::now())?;
            let (step, elapsed) = (self.step, self.began.elapsed());
            let (nodes, awaited, next) = (&self.remote.nodes, &self.awaited, &self.next);
            let progress = StartProgress { step, elapsed, nodes, awaited, next };
            if is_interrupted(&progress) {
                return Err(RemoteStartError::Interrupted);
            }
            let limits = self.launch.start_timeout.into_iter().chain(self.launch.spec.timeout);
            if let Some(limit) = limits.min().filter(|limit| elapsed >= *limit) {
                return Err(RemoteStartError::Timeout { hosts: progress.awaited(), limit });
            }
            match queue.recv_timeout(ASK_INTERVAL) {
                Ok((number, event)) => early.extend(self.handle(number, event)?.map(|event| (number, event))),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(RemoteStartError::NoAgents),
            }
        }
        let (remote, engine) = (Arc::clone(self.remote), Arc::downgrade(self.engine));
        let follower = Follower::new(remote, (early, queue), engine, files);
        self.driver.send(Command::Follow(Box::new(follower)));
        Ok(())
    }

    /// Starts as many agents as may start at once.
    fn start_more(&mut self, now: Instant) -> Result<(), RemoteStartError> {
        while self.starting.len() < self.launch.starts.max(1) {
            let due = self.again.iter().position(|(time, _)| *time <= now);
            let next = due.map(|index| self.again.swap_remove(index).1).or_else(|| self.next.next());
            let remote = self.remote;
            let Some((number, node)) = next.and_then(|number| Some((number, remote.nodes.get(number)?)))
            else {
                return Ok(());
            };
            let edge = self.start_edge(number, node)?;
            self.starting.insert(number);
            if let Some(place) = self.remote.edges().get_mut(number) {
                *place = Some(edge);
            }
        }
        Ok(())
    }

    /// Processes an event, or returns one that concerns ranks that run.
    fn handle(&mut self, number: usize, event: NodeEvent) -> Result<Option<NodeEvent>, RemoteStartError> {
        let host = || self.remote.nodes.get(number).map(|node| node.host.clone()).unwrap_or_default();
        match event {
            NodeEvent::Greeted => {
                self.starting.remove(&number);
                self.prepare(number)?;
            }
            NodeEvent::Message(ToFrontEnd::Ready) => {
                self.awaited.remove(&number);
                if self.awaited.is_empty() && self.step == StartStep::Agents {
                    self.step = StartStep::Ranks;
                    self.awaited = (0..self.remote.nodes.len()).collect();
                    self.remote.send_all(&ToAgent::Go);
                }
            }
            NodeEvent::Message(ToFrontEnd::Started { .. }) => {
                self.awaited.remove(&number);
            }
            NodeEvent::Message(ToFrontEnd::Failed { reason, is_usage }) => {
                return Err(RemoteStartError::Refused { host: host(), reason, is_usage });
            }
            NodeEvent::Lost { reason, .. } if !self.is_started_again(number, &reason) => {
                return Err(RemoteStartError::Lost { host: host(), reason });
            }
            NodeEvent::Lost { .. } => {}
            event => return Ok(Some(event)),
        }
        Ok(None)
    }

    /// Lets an agent be started again after a while, if its carrier was refused: it has exited as
    /// ssh(1) does when it can't connect, and no agent has greeted. Returns whether it is.
    fn is_started_again(&mut self, number: usize, reason: &str) -> bool {
        let attempts = self.refused.entry(number).or_default();
        *attempts = attempts.saturating_add(1);
        if *attempts >= MAX_ATTEMPTS || !self.starting.contains(&number) || self.launch.carriers.are_shared()
        {
            return false;
        }
        let mut edges = self.remote.edges();
        let refused = edges.get_mut(number).and_then(|edge| edge.take_if(|edge| edge.was_refused()));
        drop(edges);
        if refused.is_none() {
            return false;
        }
        self.starting.remove(&number);
        let host = self.remote.nodes.get(number).map(|node| node.host.as_str()).unwrap_or_default();
        tracing::warn!("the start of an agent on {host} was refused ({reason}): trying again");
        let wait = ATTEMPT_INTERVAL / 2 + random_part(ATTEMPT_INTERVAL);
        self.again.push((Instant::now() + wait, number));
        true
    }

    /// Starts the agent of the node with this number.
    fn start_edge(&mut self, number: usize, node: &Node) -> Result<Edge, RemoteStartError> {
        let (host, edges, launch) = (&node.host, self.remote.nodes.len(), self.launch);
        let limit = launch.reattach.unwrap_or_default();
        // An agent that outlives its carriers, which may be the carrier's process, outlives this process
        // for a while.
        let guardian = if limit.is_zero() { self.engine.guardian() } else { None };
        let started = self.start_carrier(number, node, guardian.as_deref());
        self.engine.check_guardian();
        let StartedAgent { end, files, errors, token } =
            started.map_err(|error| RemoteStartError::Carrier { host: host.clone(), error })?;
        let (down, up) = files.map(|files| (files.down, files.up)).unzip();
        let ends = EdgeEnds::new(host, FrontEnd::new(&node.ranks, window(edges)), end, down);
        let receiver = receiver::Receiver {
            node: node.clone(),
            number,
            remote: Arc::downgrade(self.remote),
            engine: Arc::downgrade(self.engine),
            ends: Arc::new(ends),
            output: self.remote.output.clone(),
            events: self.events.clone(),
            relatives: launch.relatives.clone(),
        };
        let mut driven = Driven::new(receiver, up, limit, launch.node_timeout);
        driven.errors = errors;
        let edge = self.driver.drive(driven);
        // From now on, the driver knows the edge for which an agent connects.
        let expected = launch.carriers.dials().zip(token);
        expected.into_iter().for_each(|(dials, token)| dials.expect(number, token));
        Ok(edge)
    }

    /// Starts the agent of a node. Those of other nodes may be started with it.
    fn start_carrier(
        &mut self,
        number: usize,
        node: &Node,
        guardian: Option<&Guardian>,
    ) -> io::Result<StartedAgent> {
        let carriers = self.launch.carriers;
        if carriers.dials().is_some() && !self.invited.contains_key(&number) {
            self.invited.extend(carriers.start_agents(&self.remote.nodes, number, guardian)?);
        }
        if let Some(started) = self.invited.remove(&number) {
            return Ok(started);
        }
        let Carrier { end, down, up, errors } = carriers.start(&node.host, None, false, guardian)?;
        Ok(StartedAgent { end, files: Some(NodeConnection { down, up }), errors, token: None })
    }

    /// Lets an agent that has greeted prepare the start of its ranks.
    fn prepare(&self, number: usize) -> Result<(), RemoteStartError> {
        let Some(node) = self.remote.nodes.get(number) else { return Ok(()) };
        match self.remote.edges().get(number) {
            Some(Some(edge)) => Ok(edge.prepare(self.starts.of_node(&node.ranks))?),
            _ => Ok(()),
        }
    }
}
