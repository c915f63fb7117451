//! The host and the threads that log: they answer late, twice, with a refusal, or not before all
//! tools have left.

use std::collections::BTreeSet;

use iof_engine::simulation::{CallToken, HostCall, SimulatedEngine};
use iof_proto::{Channel, Channels, Failure, Proc, Rank, Status};

use crate::rng::Rng;

type Source = (Proc, Channel);

/// A call without an answer.
#[derive(Debug)]
enum Waiting {
    Approve(CallToken),
    Pull(CallToken, Vec<Source>),
    /// All pieces of a push have the same token, so none is answered again.
    Stdin(CallToken),
    Other(CallToken),
}

/// The host.
#[derive(Debug, Default)]
pub struct Host {
    /// Whether it leaves some calls without an answer.
    silent: bool,
    /// The number of its calls.
    calls: usize,
    waiting: Vec<Waiting>,
    /// The calls that are not answered before all tools have left.
    ignored: Vec<Waiting>,
    answered: Vec<CallToken>,
    /// The sources that it was asked for and has not answered.
    asked: BTreeSet<Source>,
    /// The sources that it forwards.
    granted: BTreeSet<Source>,
}

fn sources(procs: &[Proc], channels: Channels) -> Vec<Source> {
    procs.iter().flat_map(|proc| channels.outputs().map(move |channel| (proc.clone(), channel))).collect()
}

impl Host {
    /// Creates a host. A `silent` one leaves some calls without an answer.
    pub fn new(silent: bool) -> Host {
        Host { silent, ..Host::default() }
    }

    /// Takes the calls that are due.
    pub fn take_calls(&mut self, engine: &mut SimulatedEngine) {
        for call in engine.calls() {
            match call {
                HostCall::Approve(call) => self.waits(Waiting::Approve(call)),
                HostCall::Pull { call, procs, channels, .. } => {
                    let sources = sources(&procs, channels);
                    for source in &sources {
                        assert!(self.asked.insert(source.clone()), "{source:?} was asked for twice");
                        assert!(!self.granted.contains(source), "{source:?} is granted already");
                    }
                    self.waits(Waiting::Pull(call, sources));
                }
                HostCall::Stop { procs, channels } => {
                    for source in sources(&procs, channels) {
                        assert!(self.granted.remove(&source), "{source:?} was stopped but not granted");
                    }
                }
                HostCall::Stdin { call, .. } => self.waits(Waiting::Stdin(call)),
                HostCall::Query(call, _) | HostCall::Log(call) => self.waits(Waiting::Other(call)),
            }
        }
    }

    fn waits(&mut self, call: Waiting) {
        self.calls += 1;
        let ignores = self.silent && self.calls.is_multiple_of(4);
        if ignores { &mut self.ignored } else { &mut self.waiting }.push(call);
    }

    /// Answers what it has left without an answer.
    pub fn end_silence(&mut self, engine: &mut SimulatedEngine) {
        self.silent = false;
        self.waiting.append(&mut self.ignored);
        self.answer_all(engine);
    }

    /// Answers one call, in any way.
    pub fn act(&mut self, engine: &mut SimulatedEngine, actor: usize, rng: &mut Rng) {
        if rng.chance(24) {
            // An answer that was given before.
            if let Some(call) = actor.checked_rem(self.answered.len()).map(|index| self.answered[index]) {
                engine.answer(call, Ok(()));
            }
        } else if let Some(index) = actor.checked_rem(self.waiting.len()) {
            self.answer(engine, index, rng.chance(208), rng.chance(96));
        }
    }

    /// Grants everything. Returns whether there was something.
    pub fn answer_all(&mut self, engine: &mut SimulatedEngine) -> bool {
        let any = !self.waiting.is_empty();
        while !self.waiting.is_empty() {
            self.answer(engine, 0, true, false);
        }
        any
    }

    fn answer(&mut self, engine: &mut SimulatedEngine, index: usize, grants: bool, block: bool) {
        // An answer follows the upcalls before it.
        self.take_calls(engine);
        let denied = || Failure::new(Status::ERR_NO_PERMISSIONS, "denied");
        let answer = if grants { Ok(()) } else { Err(denied()) };
        let call = match self.waiting.remove(index) {
            Waiting::Approve(call) if grants && block => {
                engine.approve_to_block(call);
                call
            }
            Waiting::Pull(call, sources) => {
                for source in sources {
                    self.asked.remove(&source);
                    if grants {
                        self.grant(source);
                    }
                }
                engine.answer(call, answer);
                call
            }
            Waiting::Stdin(call) => {
                engine.answer(call, answer);
                return self.take_calls(engine);
            }
            Waiting::Approve(call) | Waiting::Other(call) => {
                engine.answer(call, answer);
                call
            }
        };
        self.answered.push(call);
        self.take_calls(engine);
    }

    /// Forwards a source. The ranks of a job that is forwarded become part of it.
    fn grant(&mut self, source: Source) {
        self.granted.insert(source);
        let jobs: Vec<Source> =
            self.granted.iter().filter(|(proc, _)| proc.rank == Rank::WILDCARD).cloned().collect();
        self.granted.retain(|(proc, channel)| {
            let whole = (Proc::all(proc.nspace.clone()), *channel);
            proc.rank == Rank::WILDCARD || !jobs.contains(&whole)
        });
    }

    /// Checks that nothing is asked for or forwarded any more.
    pub fn check_idle(&self) {
        assert!(
            self.asked.is_empty() && self.granted.is_empty(),
            "forwarded without need: {:?}",
            self.granted
        );
    }
}
