//! The jobs that clients have the simulated engine start.

use std::collections::BTreeSet;

use iof_core::{Call, Input, JobId, Peer, SpawnId, SpawnRequest};
use iof_proto::{Failure, JobSpec, Nspace, Status};
use iof_shm_ring::Start;

use super::{CallToken, ConnectionId, HostCall, SentCommand, SimulatedEngine};

/// A job that a tool spawns.
#[derive(Debug)]
pub(super) struct Claim {
    id: SpawnId,
    tool: ConnectionId,
    nspace: Nspace,
    /// The registrations that existed before.
    before: BTreeSet<u32>,
    /// The tool has registered for it since.
    claimed: bool,
}

/// Returns the words in which a simulated client describes its request: the kind of the client, the
/// number of the request, and its connection.
pub fn spawn_words(spec: &JobSpec) -> Option<(&str, usize, ConnectionId)> {
    let text = spec.apps.first()?.program.to_str()?;
    let mut words = text.split(' ');
    Some((words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

impl SimulatedEngine {
    /// Notes which tools have registered for the jobs that they spawn: from the oldest byte on, or in any
    /// way before the start of the job `started`.
    pub(super) fn note_claims(&mut self, started: Option<SpawnId>) {
        for claim in self.claims.iter_mut().filter(|claim| !claim.claimed) {
            let mut registrations =
                self.core.tools.get(&claim.tool).into_iter().flat_map(Peer::registrations);
            claim.claimed = registrations.any(|(handler, registration)| {
                let counts = started == Some(claim.id) || registration.start() == Start::Oldest;
                counts
                    && !claim.before.contains(&handler)
                    && registration.jobs().any(|job| *job == claim.nspace)
            });
        }
    }

    /// Returns the call of the host for a request to start a job.
    pub(super) fn spawn_call(&mut self, id: SpawnId, request: Box<SpawnRequest>) -> HostCall {
        let parent = request.parent.clone().and_then(|parent| {
            let run = self.core.job_named(&parent)?.run();
            Some((parent, run))
        });
        if let Some(("tool" | "hostile", _, tool)) = spawn_words(&request.spec) {
            let registrations = self.core.tools.get(&tool).into_iter().flat_map(Peer::registrations);
            let before = registrations.map(|(handler, _)| handler).collect();
            let nspace = request.spec.nspace.clone();
            self.claims.push(Claim { id, tool, nspace, before, claimed: false });
        }
        HostCall::Spawn { call: CallToken(Call::Spawn(id)), request, parent }
    }

    /// Grants a job, or refuses it.
    pub fn answer_spawn(&mut self, CallToken(call): CallToken, answer: Result<JobSpec, Failure>) {
        if let Call::Spawn(id) = call {
            self.handle(Input::SpawnAnswered { id, answer: answer.map(Box::new) });
        }
    }

    /// Notes that the ranks of a job are started, or that none is.
    pub fn spawn_ended(&mut self, CallToken(call): CallToken, started: Option<(&Nspace, u64)>) {
        let Call::Spawn(id) = call else { return };
        if let (Some(claim), Some(_)) = (self.claims.iter_mut().find(|claim| claim.id == id), started) {
            claim.before.clear();
        }
        self.note_claims(started.map(|_| id));
        let started = started.map(|(nspace, run)| JobId { nspace: nspace.clone(), run });
        let result = started.ok_or_else(|| Failure::new(Status::ERR_JOB_FAILED_TO_LAUNCH, "no start"));
        self.core.spawn_ended(id, result);
        self.note_commands();
        self.take_upcalls();
    }

    /// Notes that a tool was disconnected. Its streams were held for other readers before the output of
    /// jobs that it has spawned was released.
    pub(super) fn note_left(&mut self, tool: ConnectionId) {
        self.note_commands();
        let own = self.claims.extract_if(.., |claim| claim.tool == tool);
        let claimed = own.filter(|claim| claim.claimed).map(|claim| CallToken(Call::Spawn(claim.id)));
        self.noted.push(SentCommand::Left { tool, claimed: claimed.collect() });
    }

    /// Returns whether the tool is connected that has spawned a job.
    pub fn has_spawner(&self, CallToken(call): CallToken) -> bool {
        self.claims.iter().any(|claim| Call::Spawn(claim.id) == call)
    }

    /// Returns whether the connected tool that has spawned a job has registered for it.
    pub fn is_claimed(&self, CallToken(call): CallToken) -> bool {
        self.claims.iter().any(|claim| Call::Spawn(claim.id) == call && claim.claimed)
    }
}
