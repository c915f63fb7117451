//! The simulated engine's host: upcalls, their answers, and the callbacks of the embedder.

use std::collections::BTreeMap;
use std::mem;

use iof_capture::{ProcessId, Signal};
use iof_core::{
    Call, DueUpcall, Ended, Grant, Input, PeerId, ProcChannels, Receivers, SignalRequest, SpawnRequest,
    TakenCallback, Upcall,
};
use iof_proto::{Channels, Failure, Found, Info, JobSpec, Log, LogReport, Nspace, Proc, Query, Status};

use super::{ConnectionId, SimulatedEngine};

/// An upcall that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallToken(pub(super) Call);

/// A call of the host.
#[derive(Debug)]
pub enum HostCall {
    /// A tool wants to attach.
    Approve(CallToken),
    /// Tools want these sources.
    #[allow(dead_code, reason = "the digest of a run depends on all fields")]
    Pull {
        /// The call.
        call: CallToken,
        /// The processes.
        procs: Vec<Proc>,
        /// Their channels.
        channels: Channels,
        /// The directives of the pull.
        directives: Vec<Info>,
    },
    /// No tool wants these sources any more.
    Stop {
        /// The processes.
        procs: Vec<Proc>,
        /// Their channels.
        channels: Channels,
    },
    /// Bytes for processes elsewhere.
    Stdin {
        /// The call.
        call: CallToken,
        /// The number of the push.
        push: u64,
        /// The tool that pushes.
        source: Proc,
        /// The processes that receive the bytes.
        targets: Vec<Proc>,
        /// The position of the bytes in the push.
        position: u64,
        /// The bytes; none for the end of the processes' stdin.
        bytes: Vec<u8>,
    },
    /// A part of a query.
    Query(CallToken, Vec<Query>),
    /// A message to be logged, by the host or a thread of the engine.
    Log(CallToken),
    /// A signal to remote ranks.
    Signal {
        /// The number of the call.
        call: u64,
        /// The tool that asks for it.
        tool: ConnectionId,
        /// The tool's number for its request.
        request: u32,
        /// The remote ranks.
        procs: Vec<Proc>,
        /// The signal.
        signal: Signal,
        /// The local ranks that receive it afterwards.
        ranks: Vec<ProcessId>,
    },
    /// The callback with this number is called.
    Called(u64),
    /// A client wants to start a job.
    Spawn {
        /// The call.
        call: CallToken,
        /// The job.
        request: Box<SpawnRequest>,
        /// The run of its parent.
        parent: Option<(Nspace, u64)>,
    },
    /// The driver starts a job.
    Start(CallToken, Box<JobSpec>),
    /// A job that was granted is not started.
    Abandoned(Nspace),
    /// The driver removes a job.
    Remove(Nspace, u64),
}

/// The signals to remote ranks that the host has not sent.
pub(super) struct SignalCalls {
    /// Set if they wait. Otherwise each is answered at once, without remote ranks.
    wait: bool,
    calls: BTreeMap<u64, (SignalRequest, Signal, Receivers)>,
    last: u64,
}

impl SignalCalls {
    pub(super) fn new(wait: bool) -> SignalCalls {
        SignalCalls { wait, calls: BTreeMap::new(), last: 0 }
    }

    /// Returns the tools that have asked for them.
    pub(super) fn tools(&self) -> Vec<PeerId> {
        self.calls.values().map(|(request, ..)| request.peer).collect()
    }
}

/// Calls of the host.
impl SimulatedEngine {
    /// Takes the queued upcalls, and copies what they need.
    pub(super) fn take_upcalls(&mut self) {
        for upcall in self.core.take_upcalls() {
            match upcall {
                Upcall::Signal { signal, requested: request, receivers, .. } if !self.signals.wait => {
                    // Only messages can break the protocol.
                    let input = Input::SignalledElsewhere { request, signal, receivers };
                    let _ = self.core.handle(input, self.now);
                }
                // The host of most runs lets no client start a job.
                Upcall::Spawn { id, .. } if !self.may_spawn => {
                    let answer = Err(Failure::new(Status::ERR_NOT_SUPPORTED, "no spawn"));
                    let _ = self.core.handle(Input::SpawnAnswered { id, answer }, self.now);
                }
                Upcall::Spawn { id, request } => {
                    let call = self.spawn_call(id, request);
                    self.spawn_calls.push(call);
                }
                upcall => self.upcalls.push(DueUpcall::new(upcall, &self.memory)),
            }
        }
    }

    /// Returns the calls of the host that are due, and those of the threads that log.
    pub fn calls(&mut self) -> Vec<HostCall> {
        let entries = self.core.take_channel_entries().into_iter();
        let entries = entries.map(|(_, entry)| HostCall::Log(CallToken(Call::Log(entry.step))));
        let mut calls: Vec<HostCall> = entries.collect();
        self.take_upcalls();
        calls.append(&mut self.spawn_calls);
        for upcall in mem::take(&mut self.upcalls) {
            calls.extend(self.host_call(upcall));
            calls.extend(self.called.1.try_iter().map(HostCall::Called));
        }
        calls.iter().for_each(|call| self.digest.add_debug(call));
        calls
    }

    /// Answers a call.
    pub fn answer(&mut self, CallToken(call): CallToken, answer: Result<(), Failure>) {
        match call {
            Call::Approve(id) => {
                self.core.approval_answered(id);
                if let Err(ended) = answer.map_err(Ended::from).and_then(|()| self.welcome(id, Grant::Never))
                {
                    self.end_pending(id, ended);
                }
            }
            Call::Query(_) => self.answer_query(CallToken(call), answer.map(|()| Vec::new())),
            call => self.handle(Input::Answered { call, answer }),
        }
    }

    /// Answers a part of a query.
    pub fn answer_query(&mut self, CallToken(call): CallToken, answer: Result<Vec<Found>, Failure>) {
        if let Call::Query(id) = call {
            self.handle(Input::QueryAnswered { id, answer });
        }
    }

    /// Approves a tool, which may hold back all sources, or those of the jobs of its process if its
    /// number is odd.
    pub fn approve(&mut self, CallToken(call): CallToken, may_block: bool) {
        let Call::Approve(id) = call else { return };
        let grant = match may_block {
            true => Grant::Block,
            false if id % 2 == 1 => Grant::Spawned,
            false => Grant::Never,
        };
        self.core.approval_answered(id);
        self.grants.insert(id, grant);
        if let Err(ended) = self.welcome(id, grant) {
            self.end_pending(id, ended);
        }
    }
    /// Notes that the host has sent the signal of a call to `count` remote ranks.
    pub fn signalled_elsewhere(&mut self, call: u64, count: usize) {
        if let Some((mut request, signal, receivers)) = self.signals.calls.remove(&call) {
            request.elsewhere = count;
            self.handle(Input::SignalledElsewhere { request, signal, receivers });
        }
    }

    /// Notes that the host takes stdin of `source`, or of all tools, no more (`paused`) or again.
    /// The callback with this number follows.
    pub fn set_stdin_flow(&mut self, source: Option<Proc>, paused: bool, number: u64) {
        let done = self.callback(number);
        self.handle(Input::StdinFlow { source, paused, done });
    }

    /// Logs a message of the embedder. If it is accepted, the callback with this number follows.
    ///
    /// # Errors
    /// It was not accepted.
    pub fn log_message(&mut self, log: &Log, number: u64) -> Result<(), Failure> {
        let (done, reports) = (self.callback(number), self.log_reports.0.clone());
        let done = move |report| {
            done();
            // The engine that receives it exists while it calls.
            let _ = reports.send((number, report));
        };
        self.core.log_message(log, done)
    }

    /// Returns the outcomes of the embedder's messages since the last call.
    pub fn take_log_reports(&mut self) -> Vec<(u64, LogReport)> {
        self.log_reports.1.try_iter().collect()
    }

    /// Returns the callback with this number.
    pub(super) fn callback(&self, number: u64) -> TakenCallback {
        let called = self.called.0.clone();
        // The engine that receives it exists while it calls.
        Box::new(move || _ = called.send(number))
    }

    fn host_call(&mut self, DueUpcall { upcall, bytes }: DueUpcall) -> Option<HostCall> {
        Some(match upcall {
            Upcall::Approve { peer, .. } => HostCall::Approve(CallToken(Call::Approve(peer))),
            Upcall::Pull { call, sources: ProcChannels { procs, channels }, directives } => {
                HostCall::Pull { call: CallToken(Call::Pull(call)), procs, channels, directives }
            }
            Upcall::Stop(ProcChannels { procs, channels }) => HostCall::Stop { procs, channels },
            Upcall::Stdin { push, stdin, piece } => {
                let (call, source) = (CallToken(Call::Stdin(push)), stdin.source.clone());
                let (targets, position) = (stdin.targets.clone(), piece.position);
                HostCall::Stdin { call, push: push.0, source, targets, position, bytes }
            }
            Upcall::Query { id, queries } => HostCall::Query(CallToken(Call::Query(id)), queries),
            Upcall::Log { step, .. } => HostCall::Log(CallToken(Call::Log(step))),
            Upcall::Signal { procs, signal, requested, receivers } => {
                let SignalCalls { calls, last, .. } = &mut self.signals;
                *last += 1;
                let SignalRequest { peer: tool, request, .. } = requested;
                let ranks = receivers.processes.clone();
                let call = HostCall::Signal { call: *last, tool, request, procs, signal, ranks };
                calls.insert(*last, (requested, signal, receivers));
                call
            }
            Upcall::Reply { done, answer } => {
                done(answer);
                return None;
            }
            Upcall::Exchange { .. } => panic!("no job is a part of another one"),
            Upcall::Taken(taken) => {
                taken();
                return None;
            }
            Upcall::Spawn { id, request } => self.spawn_call(id, request),
            Upcall::Start { id, spec } => HostCall::Start(CallToken(Call::Spawn(id)), spec),
            Upcall::Abandoned(nspace) => HostCall::Abandoned(nspace),
            Upcall::Remove(job) => HostCall::Remove(job.nspace, job.run),
        })
    }
}
