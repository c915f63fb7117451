//! The host and the threads that log: they answer late, twice, with a refusal, or not before all
//! tools have left. The host of an embedder pauses stdin, too, and sends signals late. Callbacks are
//! counted: each must be called once.

use std::collections::{BTreeMap, BTreeSet};

use iof_capture::{ProcessId, PushId, Signal};
use iof_core::SpawnRequest;
use iof_proto::{Channel, Channels, Failure, JobSpec, Nspace, Proc, Query, Rank, Status};

use super::queries::{HostAnswer, number_of, values_of_host};
use super::stdins::HostStdin;
use crate::driver::{CallToken, ConnectionId, HostCall, SimulatedEngine, spawn_words};
use crate::rng::Rng;

type Source = (Proc, Channel);

/// A job that a client wants to start, with the run of its parent.
pub type SpawnCall = (CallToken, Box<SpawnRequest>, Option<(Nspace, u64)>);

/// A call without an answer.
#[derive(Debug)]
enum Waiting {
    Approve(CallToken),
    Pull(CallToken, Vec<Source>),
    /// All pieces of a push have the same token, so none is answered again. With the push.
    Stdin(CallToken, u64),
    /// A part of a query.
    Query(CallToken, Vec<Query>),
    Other(CallToken),
    /// A job that a client wants to start.
    Spawn(CallToken, Box<JobSpec>),
    /// A signal, with the request of a tool that it stems from.
    Signal(u64, (ConnectionId, u32)),
}

/// The host.
#[derive(Debug, Default)]
pub struct Host {
    /// Set if it leaves some calls without an answer.
    silent: bool,
    /// Set if it pauses stdin.
    pauses: bool,
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
    /// The bytes of pushes that it has received, and its answers.
    stdin: Vec<HostStdin>,
    /// The tool of each push whose bytes it has received.
    pushes: BTreeMap<u64, Proc>,
    /// The pushes that it has paused, and whether it has paused all of them.
    paused: BTreeSet<u64>,
    all_paused: bool,
    /// The callbacks that were not called, with the pause of stdin that takes effect then.
    callbacks: BTreeMap<u64, Option<Pause>>,
    last_callback: u64,
    /// The local ranks that receive signals after remote ones.
    promised: Vec<(Vec<ProcessId>, Signal)>,
    /// The remote ranks that it is to signal for each request.
    to_signal: Vec<((ConnectionId, u32), Vec<Proc>)>,
    /// The number of remote ranks that it has signalled for each request.
    signalled: Vec<((ConnectionId, u32), usize)>,
    /// The queries with a number that it was asked.
    queries: Vec<(u32, Vec<Query>)>,
    /// The jobs that clients want to start, with the runs of their parents, and its answers.
    spawns: Vec<SpawnCall>,
    spawn_answers: Vec<(CallToken, bool)>,
    /// The jobs that the engine starts and removes.
    starts: Vec<(CallToken, Box<JobSpec>)>,
    removals: Vec<(Nspace, u64)>,
    /// The jobs that it has granted and that are not started.
    abandoned: Vec<Nspace>,
    /// Its answers to such queries.
    answers: Vec<(u32, HostAnswer)>,
}

/// A pause of the stdin of one tool, or of all.
type Pause = Option<Proc>;

fn sources(procs: &[Proc], channels: Channels) -> Vec<Source> {
    procs.iter().flat_map(|proc| channels.outputs().map(move |channel| (proc.clone(), channel))).collect()
}

impl Host {
    /// Creates a host. A `silent` one leaves some calls without an answer, and one that `pauses` stdin
    /// answers some of it so.
    pub fn new(silent: bool, pauses: bool) -> Host {
        Host { silent, pauses, ..Host::default() }
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
                HostCall::Stdin { call, push, source, targets, position, bytes } => {
                    let is_paused = self.all_paused || self.paused.contains(&push);
                    assert!(!is_paused, "stdin of {source}, which is paused");
                    self.pushes.insert(push, source.clone());
                    let id = PushId(push);
                    self.stdin.push(HostStdin::Piece { push: id, source, targets, position, bytes });
                    self.waits(Waiting::Stdin(call, push));
                }
                HostCall::Signal { call, tool, request, procs, signal, ranks } => {
                    self.to_signal.push(((tool, request), procs));
                    self.promised.push((ranks, signal));
                    self.waiting.push(Waiting::Signal(call, (tool, request)));
                }
                HostCall::Called(number) => {
                    let pause = self.callbacks.remove(&number).expect("a callback that was not called");
                    match pause {
                        Some(None) => self.all_paused = true,
                        Some(Some(source)) => self.paused.extend(self.pushes_of(&source)),
                        None => {}
                    }
                }
                HostCall::Query(call, queries) => {
                    self.queries.extend(number_of(&queries).map(|number| (number, queries.clone())));
                    self.waits(Waiting::Query(call, queries));
                }
                HostCall::Spawn { call, request, parent } => {
                    self.waits(Waiting::Spawn(call, Box::new(request.spec.clone())));
                    self.spawns.push((call, request, parent));
                }
                HostCall::Start(call, spec) => self.starts.push((call, spec)),
                HostCall::Abandoned(nspace) => self.abandoned.push(nspace),
                HostCall::Remove(nspace, run) => self.removals.push((nspace, run)),
                HostCall::Log(call) => self.waits(Waiting::Other(call)),
            }
        }
    }

    fn waits(&mut self, call: Waiting) {
        self.calls += 1;
        // A rank does not leave, so the job would be started at the end of the run.
        let is_of_rank = matches!(&call, Waiting::Spawn(_, spec) if spawn_words(spec).is_some_and(|(kind, ..)| kind == "rank"));
        let ignores = self.silent && self.calls.is_multiple_of(4) && !is_of_rank;
        if ignores { &mut self.ignored } else { &mut self.waiting }.push(call);
    }

    /// Returns the pushes with a piece that it does not answer.
    pub fn ignored_pushes(&self) -> impl Iterator<Item = PushId> {
        self.ignored.iter().filter_map(|call| match call {
            Waiting::Stdin(_, push) => Some(PushId(*push)),
            _ => None,
        })
    }

    /// Answers what it has left without an answer.
    pub fn end_silence(&mut self, engine: &mut SimulatedEngine) {
        self.silent = false;
        self.waiting.append(&mut self.ignored);
        self.answer_all(engine);
    }

    /// Returns the number of a callback that is to be called once.
    pub fn expect_callback(&mut self) -> u64 {
        self.last_callback += 1;
        self.callbacks.insert(self.last_callback, None);
        self.last_callback
    }

    /// Notes that a callback will not be called.
    pub fn withdraw_callback(&mut self, number: u64) {
        assert!(self.callbacks.remove(&number).is_some(), "a callback without need");
    }

    /// Returns whether all callbacks were called.
    pub fn has_callbacks(&self) -> bool {
        !self.callbacks.is_empty()
    }

    /// Returns the local ranks that will be signalled after remote ones, since the last call.
    pub fn take_promised(&mut self) -> Vec<(Vec<ProcessId>, Signal)> {
        std::mem::take(&mut self.promised)
    }

    /// Returns the remote ranks that are to be signalled for each request, since the last call.
    pub fn take_to_signal(&mut self) -> Vec<((ConnectionId, u32), Vec<Proc>)> {
        std::mem::take(&mut self.to_signal)
    }

    /// Returns how many remote ranks were signalled for each request, since the last call.
    pub fn take_signalled(&mut self) -> Vec<((ConnectionId, u32), usize)> {
        std::mem::take(&mut self.signalled)
    }

    /// Returns the bytes of pushes that it has received, and its answers, since the last call.
    pub fn take_stdin(&mut self) -> Vec<HostStdin> {
        std::mem::take(&mut self.stdin)
    }

    /// Returns the queries with a number that it was asked since the last call.
    pub fn take_queries(&mut self) -> Vec<(u32, Vec<Query>)> {
        std::mem::take(&mut self.queries)
    }

    /// Returns its answers to such queries since the last call.
    pub fn take_answers(&mut self) -> Vec<(u32, HostAnswer)> {
        std::mem::take(&mut self.answers)
    }

    /// Returns the jobs that clients want to start, since the last call.
    pub fn take_spawns(&mut self) -> Vec<SpawnCall> {
        std::mem::take(&mut self.spawns)
    }

    /// Returns the requests for jobs that it has answered since the last call, and whether it has
    /// granted them.
    pub fn take_spawn_answers(&mut self) -> Vec<(CallToken, bool)> {
        std::mem::take(&mut self.spawn_answers)
    }

    /// Returns the jobs that the engine starts, since the last call.
    pub fn take_starts(&mut self) -> Vec<(CallToken, Box<JobSpec>)> {
        std::mem::take(&mut self.starts)
    }

    /// Returns the jobs that it has granted and that are not started, since the last call.
    pub fn take_abandoned(&mut self) -> Vec<Nspace> {
        std::mem::take(&mut self.abandoned)
    }

    /// Returns the jobs that the engine removes, since the last call.
    pub fn take_removals(&mut self) -> Vec<(Nspace, u64)> {
        std::mem::take(&mut self.removals)
    }

    fn pushes_of(&self, source: &Proc) -> Vec<u64> {
        self.pushes.iter().filter(|(_, other)| *other == source).map(|(push, _)| *push).collect()
    }

    /// Pauses stdin, of all tools or one, or resumes it.
    pub fn change_flow(&mut self, engine: &mut SimulatedEngine, actor: usize, rng: &mut Rng) {
        // What was queued before is not paused.
        self.take_calls(engine);
        let sources: Vec<&Proc> = self.pushes.values().collect();
        let source = actor.checked_rem(sources.len()).map(|index| sources[index].clone());
        let source = source.filter(|_| !rng.chance(48));
        let number = self.expect_callback();
        if rng.chance(128) {
            self.callbacks.insert(number, Some(source.clone()));
            engine.set_stdin_flow(source, true, number);
        } else {
            self.resume(engine, source, number);
        }
    }

    fn resume(&mut self, engine: &mut SimulatedEngine, source: Option<Proc>, number: u64) {
        match &source {
            Some(source) => {
                self.pushes_of(source).iter().for_each(|push| _ = self.paused.remove(push));
            }
            None => {
                self.paused.clear();
                self.all_paused = false;
            }
        }
        engine.set_stdin_flow(source, false, number);
    }

    /// Resumes all stdin.
    pub fn resume_all(&mut self, engine: &mut SimulatedEngine) {
        self.take_calls(engine);
        let number = self.expect_callback();
        self.resume(engine, None, number);
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

    /// Answers a call. With `variant`, a tool that is approved may hold back sources, and stdin that
    /// is taken is paused.
    fn answer(&mut self, engine: &mut SimulatedEngine, index: usize, grants: bool, variant: bool) {
        // An answer follows the upcalls before it.
        self.take_calls(engine);
        let denied = || Failure::new(Status::ERR_NO_PERMISSIONS, "denied");
        let answer = if grants { Ok(()) } else { Err(denied()) };
        let call = match self.waiting.remove(index) {
            Waiting::Approve(call) if grants => {
                engine.approve(call, variant);
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
            Waiting::Stdin(call, push) => {
                let pauses = grants && variant && self.pauses;
                self.paused.extend(pauses.then_some(push));
                let answer = match answer {
                    Ok(()) if pauses => Err(Failure::new(Status::ERR_IOF_XOFF, "paused")),
                    Err(_) if variant => Err(Failure::new(Status::ERR_IOF_COMPLETE, "closed")),
                    answer => answer,
                };
                self.stdin.push(HostStdin::Answer { push: PushId(push), answer: answer.clone() });
                engine.answer(call, answer);
                return self.take_calls(engine);
            }
            Waiting::Signal(call, request) => {
                let count = self.last_callback as usize % 7 * 1000;
                self.signalled.push((request, count));
                engine.signalled_elsewhere(call, count);
                return;
            }
            Waiting::Query(call, queries) => {
                let number = number_of(&queries);
                let values = || number.map_or(Vec::new(), |number| values_of_host(number, &queries));
                let answer = answer.map(|()| values());
                self.answers.extend(number.map(|number| (number, answer.clone())));
                engine.answer_query(call, answer);
                call
            }
            Waiting::Spawn(call, spec) => {
                self.spawn_answers.push((call, grants));
                return engine.answer_spawn(call, answer.map(|()| *spec));
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

    /// Checks that nothing is asked for or forwarded any more, and that all callbacks were called.
    pub fn check_idle(&self) {
        assert!(self.callbacks.is_empty(), "callbacks that were not called: {:?}", self.callbacks);
        assert!(
            self.asked.is_empty() && self.granted.is_empty(),
            "forwarded without need: {:?}",
            self.granted
        );
    }
}
