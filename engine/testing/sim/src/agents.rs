//! Runs of a front end with agents: the two ends of each edge of `iof-nodes` over simulated carriers,
//! with faults, from one seed.
//!
//! In each turn every process does what it can: an agent reads what its carrier has, at most 64 KiB
//! in each direction, and writes what its pipes take. So a turn is the time of one hop.

mod agent;
mod fencer;
mod front;
mod job;
mod pipe;
mod puller;
mod pusher;
mod source;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use iof_nodes::ToAgent;
use iof_proto::Channel;

use self::agent::{Agent, Exiting, Pipes};
use self::fencer::Fencer;
use self::front::Front;
use self::pipe::Pipe;
use self::source::{LINE, Source};
use crate::rng::Rng;

/// The turns after which a run is stuck.
const MAX_TURNS: u64 = 200_000;

/// The turns in which all agents end after the job. One that was not told waits for a carrier.
const END_TURNS: u64 = 80_000;

/// The nodes of a job, and what happens to them.
#[derive(Clone, Copy, Debug)]
pub struct NodeSet {
    /// The number of nodes.
    pub nodes: u32,
    /// The number of ranks of each node.
    pub ranks: u32,
    /// The most that a rank writes to stdout.
    pub bytes: u64,
    /// The number of faults.
    pub faults: u64,
    /// The number of lone lines of each node that writes some.
    pub lines: u64,
    /// Carriers that are cut are replaced.
    pub is_linked: bool,
}

/// The cost of a run.
#[derive(Clone, Debug)]
pub struct AgentsReport {
    /// The turns of the run.
    pub turns: u64,
    /// The steps: a turn of the front end, or of an agent that runs.
    pub steps: u64,
    /// The turns until all ranks had started; 0 if not all did.
    pub start_turns: u64,
    /// The number of nodes that were lost.
    pub lost: usize,
    /// The number of carriers that replaced others.
    pub replaced: u64,
    /// The silences of nodes that were reported, or for which a node was given up.
    pub silences: u64,
    /// The bytes of output that arrived.
    pub bytes: u64,
    /// The pushes of stdin that have ended.
    pub pushes: u64,
    /// The answers to nodes in fences that have ended with the values of all.
    pub fences: u64,
    /// The frames that the front end received, and those that agents received.
    pub frames: (u64, u64),
    /// The time that the front end spent with frames.
    pub spent: Duration,
    /// The most that the front end held of records.
    pub front_peak: u64,
    /// The delays of lone lines, in turns: median, 99 %, longest.
    pub delays: (u64, u64, u64),
}

impl fmt::Display for AgentsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gigabytes = self.bytes as f64 / 1e9;
        write!(
            f,
            "{} turns, started after {}; {} nodes lost, {} carriers replaced, {} silences; {gigabytes:.2} GB in {} frames, {:.2} CPU s/GB at the front \
             end; {} frames to agents; held at most: {} KiB; lone lines: \
             median {} turns, 99 % {}, longest {}",
            self.turns,
            self.start_turns,
            self.lost,
            self.replaced,
            self.silences,
            self.frames.0,
            self.spent.as_secs_f64() / gigabytes,
            self.frames.1,
            self.front_peak >> 10,
            self.delays.0,
            self.delays.1,
            self.delays.2,
        )
    }
}

/// Returns a small random set of nodes.
fn small(rng: &mut Rng) -> NodeSet {
    let is_linked = rng.below(3) == 0;
    NodeSet {
        nodes: 1 + rng.below(24) as u32,
        ranks: 1 + rng.below(3) as u32,
        is_linked,
        bytes: rng.size(1 << 20),
        faults: rng.below(5),
        lines: rng.below(20),
    }
}

/// Runs the nodes of a seed, which are a small set if none is given.
///
/// # Panics
/// A check fails.
pub fn run_agents(seed: u64, set: Option<NodeSet>) -> AgentsReport {
    let mut rng = Rng::new(seed);
    let set = set.unwrap_or_else(|| small(&mut rng));
    let mut world = World::new(set, rng);
    while !world.front.open.is_empty() {
        world.turn();
        assert!(world.now < MAX_TURNS, "seed {seed}: stuck with {:?} open", world.front.open);
    }
    world.drain_pulls(seed);
    world.finish()
}

struct World {
    set: NodeSet,
    rng: Rng,
    front: Front,
    agents: Vec<Agent>,
    pipes: Pipes,
    now: u64,
    steps: u64,
    start_turns: u64,
    faults: u64,
    /// The nodes that a fault concerns.
    blamed: BTreeSet<usize>,
    /// The agents that are started in a later turn.
    starting: Vec<(u64, usize)>,
    /// The front end takes nothing until then.
    paused_until: u64,
}

impl World {
    fn new(set: NodeSet, mut rng: Rng) -> World {
        let pipes = || (0..set.nodes).map(|_| Pipe::default()).collect();
        let agents = (0..set.nodes).map(|node| {
            let source = |limit| Source { limit, ..Source::default() };
            let ranks = (0..set.ranks).map(|_| {
                let mut sources = Channel::OUTPUTS.map(|_| source(0));
                sources[0].limit = 1 + rng.below(set.bytes);
                sources
            });
            let mut sources: Vec<_> = ranks.collect();
            if node % 7 == 3 {
                sources[0][1].limit = LINE * set.lines;
            }
            let exits = (0..set.ranks).map(|_| Exiting::random(&mut rng)).collect();
            Agent::new(Fencer::new(node, set), (sources, exits), set, Rng::new(rng.word()))
        });
        let agents = agents.collect();
        let front = Front::new(&set, &mut rng);
        let mut starting: Vec<_> = (0..set.nodes as usize).map(|node| (rng.below(4), node)).collect();
        if set.faults > 0 && rng.chance(8) {
            let late = rng.index(starting.len());
            starting[late].0 = rng.below(40_000);
        }
        World {
            set,
            rng,
            front,
            agents,
            pipes: Pipes { up: pipes(), down: pipes() },
            now: 0,
            steps: 0,
            start_turns: 0,
            faults: set.faults,
            blamed: BTreeSet::new(),
            starting,
            paused_until: 0,
        }
    }

    fn turn(&mut self) {
        self.now += 1;
        self.steps += 1;
        let now = self.now;
        for (_, node) in self.starting.extract_if(.., |(time, _)| *time <= now) {
            if !self.agents[node].is_gone {
                self.agents[node].greet();
            }
        }
        self.front.read(&mut self.agents, &mut self.pipes, (&mut self.rng, now));
        if now >= self.paused_until {
            // More than arrives in a turn, or less.
            self.front.take(self.rng.size(64 << 20) as usize, now);
            if self.rng.chance(2) {
                self.paused_until = now + self.rng.below(200);
            }
        }
        self.front.follow_job(&mut self.agents, &mut self.pipes, (&mut self.rng, now));
        self.front.write(&mut self.pipes);
        let from = self.rng.index(self.agents.len());
        for number in (from..self.agents.len()).chain(0..from) {
            self.step(number);
        }
        if self.front.started == self.agents.len() && self.start_turns == 0 {
            self.start_turns = now;
            if self.set.faults > 0 && self.rng.chance(24) {
                let (number, turns) = (self.rng.index(self.agents.len()), 9000 + self.rng.below(70_000));
                self.stop(number, turns, true);
                // Another fault would end the job before the silence counts.
                self.faults = 0;
            }
        }
        // A job that loses a node before that does not start, but its carriers may be cut.
        let (percent, begins) =
            if self.set.is_linked { (20, self.front.ready > 0) } else { (3, self.start_turns > 0) };
        if self.faults > 0 && begins && self.rng.chance(percent) {
            self.faults -= 1;
            self.fault();
        }
    }

    fn step(&mut self, number: usize) {
        let agent = &mut self.agents[number];
        if agent.is_gone || self.now < agent.stopped_until {
            return;
        }
        self.steps += 1;
        if self.rng.chance(1) {
            agent.lose(&mut self.rng);
        }
        agent.step(number, &mut self.pipes, self.now);
        if agent.is_gone {
            self.end(number);
        }
    }

    /// The process of an agent has ended, which it may notice before.
    fn end(&mut self, number: usize) {
        self.agents[number].is_gone = true;
        self.pipes.up[number].end();
        self.pipes.down[number].break_off();
    }

    /// Lets a node stand still for this number of turns. It may be given up if that `is_long`.
    fn stop(&mut self, number: usize, turns: u64, is_long: bool) {
        self.agents[number].stopped_until = self.now + turns;
        self.blamed.extend(is_long.then_some(number));
    }

    /// Kills or stops a process, or cuts an edge at any byte.
    fn fault(&mut self) {
        let number = self.rng.index(self.agents.len());
        let kind = match self.rng.below(if self.set.is_linked { 12 } else { 4 }) {
            // Carriers that are replaced are mostly cut.
            4.. => 1,
            _ if self.start_turns == 0 => 1,
            kind => kind,
        };
        if kind == 3 {
            // A node that is frozen for long may be given up.
            let is_long = self.rng.chance(64);
            let turns = self.rng.below(if is_long { 8000 } else { 300 });
            self.stop(number, turns, is_long);
            return;
        }
        if self.agents[number].is_gone || self.front.lost.contains(&number) {
            return;
        }
        if kind == 1 && self.set.is_linked {
            if self.front.can_replace(number) {
                self.pipes.up[number].cut(&mut self.rng);
                self.pipes.down[number].cut(&mut self.rng);
            }
            return;
        }
        self.blamed.insert(number);
        match kind {
            0 => {
                self.pipes.up[number].cut(&mut self.rng);
                self.end(number);
            }
            1 => {
                self.pipes.up[number].cut(&mut self.rng);
                self.pipes.down[number].cut(&mut self.rng);
            }
            _ => self.agents[number].is_wrong = true,
        }
    }

    /// Waits for the ends of the streams that the front end still pulls.
    fn drain_pulls(&mut self, seed: u64) {
        while self.front.awaits_pulls() {
            self.turn();
            assert!(self.now < MAX_TURNS, "seed {seed}: a pulled stream does not end");
        }
    }

    /// Ends the job, and checks that every agent ends.
    fn finish(mut self) -> AgentsReport {
        assert!(self.front.lost.is_subset(&self.blamed), "a node is lost without a fault");
        self.front.job.check_end(&mut self.rng, &self.agents);
        for node in 0..self.agents.len() {
            self.front.send(node, &ToAgent::Close);
        }
        let end = self.now + END_TURNS;
        while self.agents.iter().any(|agent| !agent.is_gone) {
            assert!(self.now < end, "an agent does not end");
            self.turn();
        }
        let mut delays = self.front.delays;
        delays.sort_unstable();
        let at = |part: usize| delays.get(delays.len().saturating_sub(1) * part / 100).copied().unwrap_or(0);
        AgentsReport {
            turns: self.now,
            steps: self.steps,
            start_turns: self.start_turns,
            lost: self.front.lost.len(),
            replaced: self.front.replaced,
            silences: self.front.silences,
            bytes: self.front.bytes,
            pushes: self.front.job.pushes(),
            fences: self.front.job.requests.fences,
            frames: (self.front.frames, self.agents.iter().map(|agent| agent.frames).sum()),
            spent: self.front.spent,
            front_peak: self.front.peak,
            delays: (at(50), at(99), at(100)),
        }
    }
}
