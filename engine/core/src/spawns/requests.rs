//! Requests of tools to start jobs, and the ends of these jobs.

use std::time::Instant;

use iof_proto::limits::MAX_MESSAGE;
use iof_proto::{
    DEFAULT_KILL_WAIT, Exchange, Failure, JobSpec, Nspace, Proc, Quota, Rank, Spawn, Status, Stdin, ToTool,
};

use crate::Core;
use crate::clients::client::{Client, ClientProcess, Requester};
use crate::ids::{Call, JobId, PeerId, SpawnId};
use crate::jobs::early_end::EndCause;
use crate::jobs::job::JobState;
use crate::spawns::table::{Parent, SpawnedJob, StartPhase};
use crate::tools::peer::Peer;
use crate::upcall::{SpawnRequest, Upcall};

fn failure<T>(status: Status, reason: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::new(status, reason))
}

impl Core {
    /// Asks the host whether a job may be started for a tool or a rank. The answer follows when its
    /// ranks are started. For a rank that asks by another protocol, no output is kept for a
    /// registration. The engine that has the whole of a job starts those of its ranks.
    pub(crate) fn spawn(&mut self, requester: Requester, spawn: Spawn) {
        let passed = self.pass_on(requester, Exchange::Spawn(Box::new(spawn)));
        let Some((requester, Exchange::Spawn(spawn))) = passed else { return };
        match self.begin_spawn(&requester, *spawn) {
            Ok(id) => {
                if let Some(job) = self.spawns.get_mut(id) {
                    job.requester = Some(requester);
                }
            }
            Err(failure) => self.answer_spawn(requester, Err(failure)),
        }
    }

    fn begin_spawn(&mut self, requester: &Requester, spawn: Spawn) -> Result<SpawnId, Failure> {
        let Client { process, rank, .. } = &requester.client;
        permit(*process, self.settings.uid)?;
        let peer = requester.tool().and_then(|peer| self.tools.get(&peer));
        let tool = peer.map(Peer::proc).or_else(|| rank.clone());
        let tool = tool.unwrap_or_else(|| Proc::new(Nspace::of_tool(process.pid), Rank(0)));
        let Spawn { mut spec, rename, detached, is_bound, .. } = spawn;
        check(&spec)?;
        spec.nspace = self.free_name(spec.nspace, rename)?;
        spec.parent = spec.parent.or_else(|| rank.clone());
        let parent = spec.parent.as_ref().and_then(|Proc { nspace, .. }| self.jobs.get(nspace));
        // Requests by other protocols can't set it.
        let kill_wait = parent.map(JobState::kill_wait).filter(|_| spec.kill_wait == DEFAULT_KILL_WAIT);
        spec.kill_wait = kill_wait.unwrap_or(spec.kill_wait);
        let parent = parent.zip(spec.parent.as_ref());
        let parent = parent.map(|(job, proc)| JobId { nspace: proc.nspace.clone(), run: job.run() });
        let client = requester.client.payer();
        let origin = requester.client.job_and_rank().and_then(|(job, _)| self.spawns.payer(&job));
        let job = SpawnedJob {
            nspace: spec.nspace.clone(),
            // Those that are requested, whatever the host grants.
            charge: self.quotas.charge(
                origin.unwrap_or(client),
                [(Quota::SpawnedJobs, 1), (Quota::SpawnedRanks, spec.nprocs())],
            )?,
            kept: None,
            process: *process,
            spawner: requester.tool(),
            requester: None,
            claimed: false,
            is_bound,
            parent: match &parent {
                _ if detached => Parent::None,
                Some(job) => Parent::Job(job.clone()),
                None => Parent::Spawner,
            },
            phase: StartPhase::Requested,
        };
        let id = self.spawns.add(job);
        // Whatever its size, it counts as a message of the largest size.
        self.owe(Call::Spawn(id), client, MAX_MESSAGE).inspect_err(|_| _ = self.forget_spawned(id))?;
        let asked = SpawnRequest { spec, tool, parent: parent.map(|job| job.nspace), detached };
        self.effects.upcalls.push(Upcall::Spawn { id, request: Box::new(asked) });
        Ok(id)
    }

    /// Removes a job from the table. Returns it, if its ranks were started.
    fn forget_spawned(&mut self, id: SpawnId) -> Option<JobId> {
        let spawned = self.spawns.remove(id)?;
        let started = spawned.id();
        self.quotas.give_back([spawned.charge].into_iter().chain(spawned.kept));
        started
    }

    /// Returns a name for a job: the given one or, if `rename` is set and a job has or had it, one with a number.
    fn free_name(&mut self, base: Nspace, rename: bool) -> Result<Nspace, Failure> {
        let is_free =
            |core: &Core, name: &Nspace| core.jobs.get(name).is_none() && !core.spawns.reserves(name);
        if is_free(self, &base) && !(rename && self.spawns.is_gone(&base)) {
            return Ok(base);
        }
        if !rename {
            return failure(Status::ERR_EXISTS, format!("job {base} already exists: choose another name"));
        }
        // The number of a spawned job is replaced: names in a chain of jobs do not grow.
        let stem = base.as_str().trim_end_matches(|end: char| end.is_ascii_digit()).strip_suffix('-');
        let stem = stem.filter(|stem| !stem.is_empty() && self.spawns.contains(&base));
        let stem = stem.unwrap_or(base.as_str());
        loop {
            let Ok(name) = Nspace::new(format!("{stem}-{}", self.spawns.next_number())) else {
                let reason = format!("name {base} is taken and too long for a number");
                return failure(Status::ERR_BAD_PARAM, reason);
            };
            if is_free(self, &name) {
                return Ok(name);
            }
        }
    }

    /// Notes that the host has granted a job as `answer` specifies it, or has refused it. Nothing is
    /// started if its spawner has disconnected.
    pub(crate) fn spawn_answered(&mut self, id: SpawnId, answer: Result<Box<JobSpec>, Failure>) {
        self.owes_no_more(Call::Spawn(id));
        let Some(job) = self.spawns.get_mut(id) else {
            let abandoned = answer.ok().map(|spec| Upcall::Abandoned(spec.nspace));
            return self.effects.upcalls.extend(abandoned);
        };
        match answer {
            Ok(spec) => {
                (job.nspace, job.phase) = (spec.nspace.clone(), StartPhase::Starting);
                self.effects.upcalls.push(Upcall::Start { id, spec });
            }
            Err(failure) => self.spawn_ended(id, Err(failure)),
        }
    }

    /// Notes that the host has started a job itself.
    pub(crate) fn started_by_host(&mut self, id: SpawnId, started: JobId) {
        self.owes_no_more(Call::Spawn(id));
        self.spawn_ended(id, Ok(started));
    }

    /// Notes that the ranks of a job are started, or that none is, and answers its spawner.
    pub fn spawn_ended(&mut self, id: SpawnId, result: Result<JobId, Failure>) {
        let Some(job) = self.spawns.get_mut(id) else { return };
        let (spawner, requester) = (job.spawner, job.requester.take());
        let result = match result {
            Ok(started) => {
                job.phase = StartPhase::Started { run: started.run };
                match spawner {
                    Some(spawner) => {
                        let naming = self.tools.naming(&started.nspace);
                        job.claimed |= naming.iter().any(|(tool, _)| *tool == spawner);
                    }
                    None => self.release_backlog_of(&started),
                }
                Ok(started.nspace)
            }
            Err(failure) => {
                self.forget_spawned(id);
                Err(failure)
            }
        };
        if let Some(requester) = requester {
            self.answer_spawn(requester, result);
        }
    }

    fn answer_spawn(&mut self, requester: Requester, result: Result<Nspace, Failure>) {
        self.reply(requester, |request| ToTool::Spawned { request, result });
    }

    /// Notes that a tool has disconnected: output is no longer kept for it.
    pub(crate) fn spawner_left(&mut self, peer_id: PeerId) {
        for id in self.spawns.of_spawner(peer_id) {
            let Some(job) = self.spawns.get_mut(id) else { absent!("job", continue) };
            job.spawner_left();
            match (job.phase, job.id()) {
                (StartPhase::Requested, _) => _ = self.forget_spawned(id),
                (_, Some(started)) => self.release_backlog_of(&started),
                (_, None) => {}
            }
        }
    }

    /// Ends the spawned jobs whose parents have ended, and has the driver remove those that have
    /// ended and that no spawner can ask for.
    pub(crate) fn settle_spawned(&mut self, now: Instant) {
        let (mut orphans, mut over, mut claimed) = (Vec::new(), Vec::new(), Vec::new());
        for (id, spawned) in self.spawns.iter() {
            let Some(job_id) = spawned.id() else { continue };
            let job = self.job(&job_id);
            match job {
                Some(job) if !job.has_ended() => {
                    orphans.extend(self.parent_end(spawned).map(|has_failed| (id, job_id, has_failed)))
                }
                Some(_) if spawned.spawner.is_some() && spawned.claimed => {
                    claimed.extend(spawned.kept.is_none().then_some((id, spawned.charge.payer)));
                }
                Some(_) if spawned.spawner.is_some() => {}
                // The embedder may have removed it.
                _ => over.push(id),
            }
        }
        for (id, JobId { nspace, .. }, has_failed) in orphans {
            self.spawns.get_mut(id).into_iter().for_each(|job| job.parent = Parent::None);
            // MPI lets the jobs of a rank that has succeeded go on.
            if let Some(job) = self.jobs.get_mut(&nspace).filter(|job| has_failed || !job.uses_mpi()) {
                job.end(EndCause::ParentEnded);
                self.jobs.schedule_early_end(&nspace, now);
            }
        }
        let forget = |core: &mut Core, id| {
            let job = core.forget_spawned(id);
            core.effects.upcalls.extend(job.map(Upcall::Remove));
        };
        over.into_iter().for_each(|id| forget(self, id));
        for (id, payer) in claimed {
            if self.quotas.excess(payer, Quota::EndedSpawnedJobs, 1).is_some() {
                let oldest = self.spawns.iter().find(|(_, spawned)| spawned.kept.is_some());
                oldest.map(|(oldest, _)| oldest).into_iter().for_each(|oldest| forget(self, oldest));
            }
            let kept = self.quotas.charge(payer, [(Quota::EndedSpawnedJobs, 1)]).ok();
            if let (Some(spawned), Some(kept)) = (self.spawns.get_mut(id), kept) {
                spawned.kept = Some(kept);
            }
        }
    }

    /// Returns whether the parent of a job has failed, if it has ended.
    fn parent_end(&self, spawned: &SpawnedJob) -> Option<bool> {
        match &spawned.parent {
            Parent::Job(parent) => match self.job(parent) {
                Some(parent) => parent.has_exited().then(|| parent.first_failure().is_some()),
                None => Some(true),
            },
            Parent::Ended => Some(true),
            Parent::Spawner | Parent::None => None,
        }
    }
}

/// Permits the engine's own user to start jobs. A host that lets other users attach does not
/// thereby let them run programs as its own user.
fn permit(client: ClientProcess, own: u32) -> Result<(), Failure> {
    if client.uid == own {
        return Ok(());
    }
    let reason = format!("user {} may not start jobs in an engine of user {own}", client.uid);
    failure(Status::ERR_NO_PERMISSIONS, reason)
}

/// Checks that a tool may specify the job: all of its ranks are local, and none has what belongs to
/// the embedder. The engine checks the rest when it starts the job.
fn check(spec: &JobSpec) -> Result<(), Failure> {
    if spec.local.is_some() || spec.elsewhere {
        return failure(Status::ERR_NOT_SUPPORTED, "a tool can start ranks on the engine's node only");
    }
    if !spec.own_stdin.is_empty() || spec.stdin.values().any(|stdin| *stdin == Stdin::Inherit) {
        return failure(Status::ERR_NOT_SUPPORTED, "a job of a tool cannot have the launcher's stdin");
    }
    Ok(())
}
