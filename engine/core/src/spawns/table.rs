//! The table of jobs that tools have the engine start.

use std::collections::BTreeMap;

use iof_proto::Nspace;
use iof_proto::limits::MAX_GONE_NAMES;

use crate::clients::client::{ClientId, ClientProcess, Payer, Requester};
use crate::clients::quotas::Charge;
use crate::count::Count;
use crate::ids::{JobId, PeerId, SpawnId};

/// The process or job with which a spawned job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parent {
    /// None: the job is detached, or is being ended already.
    None,
    /// Its spawner, once that has registered for it, or from the beginning if it is bound.
    Spawner,
    /// Another job.
    Job(JobId),
    /// It has ended, and the job is to be ended.
    Ended,
}

/// The progress of the start of a spawned job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartPhase {
    /// The host has not granted it.
    Requested,
    /// Its ranks are being started.
    Starting,
    /// Its ranks are started. It is the run of its name with this number.
    Started { run: u64 },
}

/// A job that a tool has the engine start, until it is forgotten.
pub(crate) struct SpawnedJob {
    pub(crate) nspace: Nspace,
    /// That of the job and its ranks.
    pub(crate) charge: Charge,
    /// That of an ended job, which is kept for its spawner.
    pub(crate) kept: Option<Charge>,
    /// The process that has requested it.
    pub(crate) process: ClientProcess,
    /// The tool that has requested it, while that is connected.
    pub(crate) spawner: Option<PeerId>,
    /// The client that waits for the start.
    pub(crate) requester: Option<Requester>,
    /// `true` once the spawner has registered for it.
    pub(crate) claimed: bool,
    /// `true` if it ends with its spawner also before that.
    pub(crate) is_bound: bool,
    pub(crate) parent: Parent,
    pub(crate) phase: StartPhase,
}

impl SpawnedJob {
    /// Returns the job, once its ranks are started.
    pub(crate) fn id(&self) -> Option<JobId> {
        let StartPhase::Started { run } = self.phase else { return None };
        Some(JobId { nspace: self.nspace.clone(), run })
    }

    /// Notes that the spawner has disconnected.
    pub(crate) fn spawner_left(&mut self) {
        self.spawner = None;
        // Another spawner that never registers is not waited for and does not end its job.
        if (self.claimed || self.is_bound) && self.parent == Parent::Spawner {
            self.parent = Parent::Ended;
        }
    }
}

/// The jobs that tools have the engine start.
#[derive(Default)]
pub struct Spawns {
    jobs: BTreeMap<SpawnId, SpawnedJob>,
    last: u64,
    /// The number at the end of the last name that has one.
    last_number: u64,
    /// The names of jobs that were forgotten last, with the numbers of their requests.
    gone: BTreeMap<Nspace, SpawnId>,
}

impl Spawns {
    /// Returns all charges.
    pub(crate) fn charges(&self) -> impl Iterator<Item = &Charge> {
        self.jobs.values().flat_map(|job| [&job.charge].into_iter().chain(&job.kept))
    }

    /// Returns whether a job that is not started yet is to have this name.
    pub(crate) fn reserves(&self, nspace: &Nspace) -> bool {
        self.jobs.values().any(|job| job.nspace == *nspace && job.id().is_none())
    }

    /// Returns whether a job of this name was requested and is not forgotten.
    pub(crate) fn contains(&self, nspace: &Nspace) -> bool {
        self.jobs.values().any(|job| job.nspace == *nspace)
    }

    /// Returns the number for the end of a name, which no other name has: hosts, files and libraries tell jobs apart
    /// by their names.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.last_number = self.last_number.max(1).saturating_add(1);
        self.last_number
    }

    /// Returns whether `process` has requested the job with this number.
    pub(crate) fn is_of_process(&self, run: u64, process: ClientProcess) -> bool {
        let is_run = |job: &SpawnedJob| job.phase == StartPhase::Started { run };
        self.jobs.values().any(|job| is_run(job) && job.process.is_process(process))
    }

    /// Returns the client that is charged for what a rank of this job starts, if a rank has started it:
    /// a chain of jobs that start one another counts for the first.
    pub(crate) fn payer(&self, job: &JobId) -> Option<Payer> {
        // A rank may ask before the last rank of its job is started.
        let is_job =
            |spawned: &&SpawnedJob| spawned.nspace == job.nspace && spawned.id().is_none_or(|id| id == *job);
        let spawned = self.jobs.values().find(is_job)?;
        Some(spawned.charge.payer).filter(|payer| matches!(payer.id, ClientId::Rank(..)))
    }

    pub(crate) fn add(&mut self, job: SpawnedJob) -> SpawnId {
        self.last.raise(1);
        self.gone.remove(&job.nspace);
        self.jobs.insert(SpawnId(self.last), job);
        SpawnId(self.last)
    }

    pub(crate) fn get_mut(&mut self, id: SpawnId) -> Option<&mut SpawnedJob> {
        self.jobs.get_mut(&id)
    }

    /// Removes a job. If its ranks were started, its name is kept for [`Spawns::is_gone`].
    pub(crate) fn remove(&mut self, id: SpawnId) -> Option<SpawnedJob> {
        let job = self.jobs.remove(&id)?;
        if job.id().is_some() {
            self.gone.insert(job.nspace.clone(), id);
            let oldest = self.gone.iter().min_by_key(|(_, id)| **id).map(|(name, _)| name.clone());
            let oldest = oldest.filter(|_| self.gone.len() > MAX_GONE_NAMES);
            oldest.map(|name| self.gone.remove(&name));
        }
        Some(job)
    }

    /// Returns whether a job of this name was started and has been forgotten, and none is requested.
    pub(crate) fn is_gone(&self, nspace: &Nspace) -> bool {
        self.gone.contains_key(nspace)
    }

    /// Returns these jobs, in the order of their requests.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SpawnId, &SpawnedJob)> {
        self.jobs.iter().map(|(id, job)| (*id, job))
    }

    /// Notes that a tool has registered for `jobs`.
    pub(crate) fn claim<'a>(&mut self, tool: PeerId, jobs: impl Iterator<Item = &'a Nspace>) {
        if self.jobs.values().any(|job| job.spawner == Some(tool)) {
            let jobs: Vec<&Nspace> = jobs.collect();
            let own = self.jobs.values_mut().filter(|job| job.spawner == Some(tool));
            own.filter(|job| jobs.contains(&&job.nspace)).for_each(|job| job.claimed = true);
        }
    }

    /// Returns the jobs of a connected tool.
    pub(crate) fn of_spawner(&self, tool: PeerId) -> Vec<SpawnId> {
        self.iter().filter(|(_, job)| job.spawner == Some(tool)).map(|(id, _)| id).collect()
    }
}
