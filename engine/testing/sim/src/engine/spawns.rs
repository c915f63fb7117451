//! Jobs that tools and ranks spawn: the host grants or denies them, their ranks start or none does, and
//! they end with their parents.

use std::mem;

use iof_core::ClientProcess;
use iof_proto::{App, Failure, JobSpec, KillOnBadExit, Nspace, Proc, Quota, QuotaScope, Rank, Spawn, Status};

use super::EngineWorld;
use super::jobs::{MAX_RANKS, RankProcess, name, pid};
use crate::driver::{CallToken, ConnectionId, NewJob, OWN_USER, spawn_words};
use crate::rng::Rng;

/// The state of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Progress {
    /// The host was not asked.
    New,
    /// It has not answered.
    Asked,
    Granted,
    /// All ranks are registered, or none, and the engine does not know.
    Ready(Option<u64>),
    /// The run that the engine knows to be started.
    Started(u64),
    /// The engine has forgotten it.
    Over(Ended),
}

/// Why the engine has forgotten a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Denied,
    Failed,
    /// The spawner has left before the host has granted it.
    Abandoned,
    /// It was started, and is removed.
    Removed,
}

/// A request to start a job.
#[derive(Debug)]
struct SpawnRecord {
    nspace: Nspace,
    ranks: u64,
    /// The tool that asks, while it is connected.
    tool: Option<ConnectionId>,
    /// The process that asks.
    process: Option<ClientProcess>,
    call: Option<CallToken>,
    detached: bool,
    parent: Option<(Nspace, u64)>,
    /// The tool has left after it has registered.
    is_orphan: bool,
    /// The end of its parent has had its effect.
    parent_noted: bool,
    progress: Progress,
}

impl SpawnRecord {
    fn is_held(&self) -> bool {
        !matches!(self.progress, Progress::New | Progress::Over(_))
    }
}

/// All requests, by their numbers.
#[derive(Debug, Default)]
pub struct Spawns {
    list: Vec<SpawnRecord>,
    /// The runs of jobs that are to be removed.
    to_remove: Vec<u64>,
}

impl Spawns {
    /// Checks the answer to a request.
    pub fn check(&self, number: usize, result: &Result<Nspace, Failure>) {
        let SpawnRecord { nspace, progress, .. } = &self.list[number];
        match (result, progress) {
            (Ok(started), Progress::Started(_) | Progress::Over(Ended::Removed)) => {
                assert_eq!(started, nspace, "the name of a spawned job");
            }
            (Err(failure), Progress::Over(Ended::Denied)) => assert_eq!(failure.reason, "denied"),
            (Err(failure), Progress::Over(Ended::Failed)) => assert_eq!(failure.reason, "no start"),
            (Err(failure), Progress::New) => {
                let is_known = [Status::ERR_EXISTS, Status::ERR_NO_PERMISSIONS].contains(&failure.status)
                    || failure.reason.contains("(MAX_");
                assert!(is_known, "a job was refused: {failure}");
            }
            _ => panic!("{result:?} answers {:?}", self.list[number]),
        }
    }

    /// Returns whether a job of this name was started and has been forgotten.
    pub fn has_removed(&self, nspace: &Nspace) -> bool {
        let is_over = |record: &SpawnRecord| record.progress == Progress::Over(Ended::Removed);
        self.list.iter().any(|record| record.nspace == *nspace && is_over(record))
    }

    /// Returns whether a process has had the engine start this job.
    pub fn is_of_process(&self, run: u64, process: ClientProcess) -> bool {
        let mut started = self.list.iter().filter(|record| record.progress == Progress::Started(run));
        started.any(|record| record.process.is_some_and(|own| own.is_process(process)))
    }

    /// Makes any request of a tool.
    pub fn of_tool(&mut self, tool: ConnectionId, rng: &mut Rng) -> (usize, Spawn) {
        let spawn = any_spawn(format!("tool {} {tool}", self.list.len()), rng);
        (self.add(&spawn.spec, Some(tool), spawn.detached), spawn)
    }

    /// Returns the name of the last job of a tool that has not ended.
    pub fn last_of(&self, tool: ConnectionId) -> Option<Nspace> {
        let mut own = self.list.iter();
        own.rfind(|record| record.tool == Some(tool) && record.is_held()).map(|record| record.nspace.clone())
    }

    fn add(&mut self, spec: &JobSpec, tool: Option<ConnectionId>, detached: bool) -> usize {
        self.list.push(SpawnRecord {
            nspace: spec.nspace.clone(),
            ranks: spec.nprocs(),
            tool,
            process: None,
            call: None,
            detached,
            parent: None,
            is_orphan: false,
            parent_noted: false,
            progress: Progress::New,
        });
        self.list.len() - 1
    }
}

/// Returns a request for a job, whose first program describes the request.
fn any_spawn(words: String, rng: &mut Rng) -> Spawn {
    let ranks = rng.below(u64::from(MAX_RANKS)) as u32 + 1;
    let mut spec = JobSpec::new(name(rng.index(4)), vec![App::new(words, [""; 0]).ranks(ranks)]);
    let parent = name(rng.index(4));
    spec.parent = rng.chance(96).then(|| Proc::new(parent, Rank(0)));
    let mut spawn = Spawn::new(spec);
    (spawn.rename, spawn.detached) = (rng.chance(160), rng.chance(64));
    spawn
}

impl EngineWorld {
    /// A tool or a rank spawns a job, a tool pulls one, or the start of one comes to its end.
    pub(super) fn spawn(&mut self, actor: usize, rng: &mut Rng) {
        let ready = self.truth.spawns.list.iter();
        let ready: Vec<usize> = (0..)
            .zip(ready)
            .filter(|(_, record)| matches!(record.progress, Progress::Ready(_)))
            .map(|(n, _)| n)
            .collect();
        if let Some(number) = actor.checked_rem(ready.len()).map(|index| ready[index])
            && rng.chance(160)
        {
            return self.end_start(number);
        }
        if rng.chance(64) {
            return self.spawn_of_rank(actor, rng);
        }
        self.spawn_of_tool(actor, rng);
    }

    fn spawn_of_rank(&mut self, actor: usize, rng: &mut Rng) {
        let Some(job) = self.job(actor).map(|index| &self.jobs.list[index]) else { return };
        let Some(rank) = (actor >> 8).checked_rem(job.ranks.len()) else { return };
        let mut spawn = any_spawn(format!("rank {} 0", self.truth.spawns.list.len()), rng);
        spawn.spec.parent = None;
        let number = self.truth.spawns.add(&spawn.spec, None, spawn.detached);
        let (nspace, run) = (job.nspace.clone(), job.run);
        self.ask_for_spawn((&nspace, run), Rank(rank as u32), (number, spawn));
    }

    /// Notes what the host was asked about jobs, what it has answered, and what follows.
    pub(super) fn note_spawns(&mut self) {
        for (call, request, parent) in self.host.take_spawns() {
            let spawns = &mut self.truth.spawns;
            let (kind, number, tool) = spawn_words(&request.spec).expect("the request of a simulated client");
            let number = match kind {
                "hostile" => spawns.add(&request.spec, Some(tool), request.detached),
                _ => number,
            };
            let record = &mut spawns.list[number];
            assert_eq!(record.progress, Progress::New, "the host was asked twice");
            assert!(record.ranks == request.spec.nprocs() && record.detached == request.detached);
            // The name may have got a number.
            record.nspace = request.spec.nspace.clone();
            (record.call, record.parent) = (Some(call), parent.filter(|_| !request.detached));
            let known = self.tools.iter().find(|known| known.id == tool).filter(|_| kind != "rank");
            assert!(known.is_none_or(|known| known.uid == OWN_USER), "a job of another user");
            let of_rank = ClientProcess { pid: pid(request.tool.rank), uid: OWN_USER };
            record.process = known.map(|known| known.process).or((kind == "rank").then_some(of_rank));
            // Its tool may have left at once.
            record.progress = if kind == "rank" || self.engine.has_spawner(call) {
                Progress::Asked
            } else {
                record.tool = None;
                Progress::Over(Ended::Abandoned)
            };
        }
        let mut abandoned = Vec::new();
        for (call, grants) in self.host.take_spawn_answers() {
            let record = self.truth.spawns.of_call(call);
            match record.progress {
                Progress::Asked => {
                    record.progress = if grants { Progress::Granted } else { Progress::Over(Ended::Denied) };
                }
                ref progress => {
                    assert_eq!(*progress, Progress::Over(Ended::Abandoned), "{record:?}");
                    abandoned.extend(grants.then(|| record.nspace.clone()));
                }
            }
        }
        assert_eq!(self.host.take_abandoned(), abandoned, "the jobs that are not started");
        for (call, spec) in self.host.take_starts() {
            self.begin_spawned(call, &spec);
        }
        for (nspace, run) in self.host.take_removals() {
            self.remove_spawned(&nspace, run);
        }
        let held: Vec<&SpawnRecord> =
            self.truth.spawns.list.iter().filter(|record| record.is_held()).collect();
        assert_eq!(self.engine.held(Quota::SpawnedJobs), held.len() as u64, "spawned jobs: {held:?}");
        let ranks: u64 = held.iter().map(|record| record.ranks).sum();
        assert_eq!(self.engine.held(Quota::SpawnedRanks), ranks, "spawned ranks: {held:?}");
    }

    /// Begins a job that the engine is to start.
    fn begin_spawned(&mut self, call: CallToken, spec: &JobSpec) {
        let record = self.truth.spawns.of_call(call);
        assert_eq!(record.progress, Progress::Granted, "a start");
        let new = NewJob {
            nspace: spec.nspace.clone(),
            ranks: spec.nprocs() as u32,
            elsewhere: false,
            grace: None,
            timeout: None,
            kill_on_bad_exit: KillOnBadExit::Never,
            directives: spec.directives.clone(),
        };
        match self.engine.begin(&new, &[]) {
            Some(run) => self.add_job(&new, run, Some(call)),
            // The launcher has used the name meanwhile.
            None => record.progress = Progress::Ready(None),
        }
    }

    /// Lets the engine know that a start has ended.
    fn end_start(&mut self, number: usize) {
        self.follow_up();
        let record = &mut self.truth.spawns.list[number];
        let (Progress::Ready(run), Some(call)) = (record.progress.clone(), record.call) else { return };
        record.progress = run.map_or(Progress::Over(Ended::Failed), Progress::Started);
        let nspace = record.nspace.clone();
        self.past_counts.count("spawn", if run.is_some() { "started" } else { "failed" });
        self.engine.spawn_ended(call, run.map(|run| (&nspace, run)));
        // A job that has failed to start may have logged messages, which are kept until it is removed.
        if run.is_some() && record.tool.is_none() {
            self.release_spawned(call);
        }
    }

    /// Notes that no more output of a job is kept for its spawner.
    fn release_spawned(&mut self, call: CallToken) {
        if let Some(index) = self.jobs.list.iter().position(|job| job.spawn == Some(call)) {
            self.note_released(index);
        }
    }

    /// Notes that a tool was disconnected, which had registered for the jobs of `claimed`.
    pub(super) fn note_left(&mut self, tool: ConnectionId, claimed: &[CallToken]) {
        let mut released = Vec::new();
        for record in self.truth.spawns.list.iter_mut().filter(|record| record.tool == Some(tool)) {
            record.tool = None;
            match record.progress {
                Progress::Asked => record.progress = Progress::Over(Ended::Abandoned),
                Progress::Started(_) => released.extend(record.call),
                _ => {}
            }
            let is_claimed = record.call.is_some_and(|call| claimed.contains(&call));
            record.is_orphan = is_claimed && record.parent.is_none() && !record.detached;
            if record.is_held() {
                self.past_counts.count("spawner left", if is_claimed { "claimed" } else { "unclaimed" });
            }
        }
        released.into_iter().for_each(|call| self.release_spawned(call));
    }

    /// Notes which spawned jobs are to end because their parents have. Called before the engine looks.
    pub(super) fn note_parents(&mut self) {
        for record in &mut self.truth.spawns.list {
            let Progress::Started(run) = record.progress else { continue };
            let end = match &record.parent {
                _ if record.parent_noted || record.detached => None,
                None => record.is_orphan.then_some(true),
                Some((nspace, run)) => match self.jobs.list.iter().find(|job| job.run == *run) {
                    None => Some(true),
                    Some(_) if !self.engine.has_exited(nspace) => None,
                    Some(_) => self.engine.status(nspace).map(|status| status.first_failure.is_some()),
                },
            };
            let Some(has_failed) = end else { continue };
            let Some(job) = self.jobs.list.iter_mut().find(|job| job.run == run) else { continue };
            if self.engine.job(&job.nspace) == Some(false) {
                record.parent_noted = true;
                job.ends.parent_ended(has_failed);
                self.past_counts.count("parent", if has_failed { "failed" } else { "ended" });
            }
        }
    }

    /// Checks that the engine has removed spawned jobs that have ended and that no spawner can ask for.
    pub(super) fn check_spawns(&mut self) {
        // Jobs are removed before the next commands are sent.
        self.follow_up();
        let mut kept = 0;
        for record in &self.truth.spawns.list {
            let Progress::Started(run) = record.progress else { continue };
            let is_there = self.jobs.list.iter().any(|job| job.run == run);
            let has_ended = !is_there || self.engine.job(&record.nspace) == Some(true);
            assert!(!has_ended || is_there && record.tool.is_some(), "a spawned job is kept: {record:?}");
            let is_claimed = record.call.is_some_and(|call| self.engine.is_claimed(call));
            kept += u64::from(has_ended && is_claimed);
        }
        let limit = self.setting.limits.quotas.get(Quota::EndedSpawnedJobs, QuotaScope::Engine);
        assert!(kept <= limit, "{kept} ended jobs are kept for their spawners");
    }

    /// Removes a job as the engine asks for it.
    fn remove_spawned(&mut self, nspace: &Nspace, run: u64) {
        let records = &mut self.truth.spawns.list;
        let record = records.iter_mut().find(|record| record.progress == Progress::Started(run));
        let record = record.expect("a job that was started");
        record.progress = Progress::Over(Ended::Removed);
        let index = self.jobs.list.iter().position(|job| job.run == run);
        let is_excess = record.call.is_some_and(|call| self.engine.is_claimed(call));
        assert!(index.is_none() || record.tool.is_none() || is_excess, "{nspace} is removed: {record:?}");
        let is_replaced = index.is_some() && record.tool.is_some();
        self.past_counts.count("spawn", if is_replaced { "replaced" } else { "removed" });
        if index.is_some() {
            assert_eq!(self.engine.job(nspace), Some(true), "{nspace} is removed");
            self.truth.spawns.to_remove.push(run);
        }
    }

    /// Removes the jobs that the engine has asked for, before the next commands.
    pub(super) fn remove_spawned_jobs(&mut self) {
        for run in mem::take(&mut self.truth.spawns.to_remove) {
            let index = self.jobs.list.iter().position(|job| job.run == run);
            index.into_iter().for_each(|index| self.remove_job(index));
        }
    }

    /// Lets all starts end, and all ranks of spawned jobs exit.
    pub(super) fn settle_spawns(&mut self, rng: &mut Rng) {
        while let Some(index) = self.jobs.list.iter().position(|job| job.spawn.is_some() && !job.registered) {
            self.finish_registering(index, rng);
        }
        (0..self.truth.spawns.list.len()).for_each(|number| self.end_start(number));
        for index in 0..self.jobs.list.len() {
            let job = &mut self.jobs.list[index];
            if mem::take(&mut job.spawn).is_some() {
                job.ranks.iter_mut().for_each(RankProcess::exit);
                self.engine.release_backlog(&job.nspace);
                self.note_released(index);
            }
        }
    }
}

impl Spawns {
    /// Returns whether no start is in progress, nor awaited by a rank, nor by a tool that a host
    /// answers. A hostile tool does not track its requests.
    pub fn are_settled(&self, silent_host: bool) -> bool {
        !self.list.iter().any(|record| match record.progress {
            Progress::Granted | Progress::Ready(_) => true,
            Progress::Asked => !silent_host || record.tool.is_none(),
            Progress::New | Progress::Started(_) | Progress::Over(_) => false,
        })
    }

    /// Notes that all ranks of a job are registered, or that none is.
    pub fn registered(&mut self, call: CallToken, run: Option<u64>) {
        self.of_call(call).progress = Progress::Ready(run);
    }

    fn of_call(&mut self, call: CallToken) -> &mut SpawnRecord {
        self.list.iter_mut().find(|record| record.call == Some(call)).expect("a request that was made")
    }
}
