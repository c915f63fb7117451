//! The table of jobs, with the processes and stdins of their local ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use iof_capture::{ProcessId, SourceId, TargetId};
use iof_proto::{Failure, Nspace, Proc, Rank, Status};

use crate::count::Count;
use crate::ids::{JobId, StreamName};
use crate::jobs::job::{EndSteps, JobState, RankState};

/// All jobs, by their names.
#[derive(Default)]
pub struct Jobs {
    by_name: BTreeMap<Nspace, JobState>,
    /// The local ranks whose exits the capture thread reports.
    processes: BTreeMap<ProcessId, Proc>,
    /// The local ranks whose stdin can be pushed to.
    stdins: BTreeMap<TargetId, Proc>,
    /// The jobs to which something was logged, until the streams of that are finished.
    logged: BTreeSet<Nspace>,
    last_run: u64,
    /// When [`Jobs::end_early`] has something to do. It may be earlier than necessary.
    next_early_end: Option<Instant>,
}

impl Jobs {
    /// Returns the job of this name.
    pub fn get(&self, nspace: &Nspace) -> Option<&JobState> {
        self.by_name.get(nspace)
    }

    /// Returns a job, unless it was removed.
    pub(crate) fn find(&self, job: &JobId) -> Option<&JobState> {
        self.get(&job.nspace).filter(|state| state.run() == job.run)
    }

    /// Returns a job, unless it was removed.
    pub(crate) fn find_mut(&mut self, job: &JobId) -> Option<&mut JobState> {
        self.get_mut(&job.nspace).filter(|state| state.run() == job.run)
    }

    /// Returns whether not all has been delivered that a node had cached of a stream when it was pulled.
    pub(crate) fn is_behind(&self, name: &StreamName) -> bool {
        let StreamName { source, channel, logged, .. } = name;
        let pull = || self.get(&source.nspace)?.pull_of(source.rank, *channel);
        !logged && pull().is_some_and(|pull| !pull.is_marked && !pull.is_missed)
    }

    /// Returns the failure for a rank that its job does not have.
    pub(crate) fn unknown_rank(&self, Proc { nspace, rank }: &Proc) -> Failure {
        let last = self.get(nspace).map(JobState::last_rank).filter(|last| *last != Rank::UNDEF);
        let reason = match last {
            Some(last) => format!("rank {rank} does not exist: the last rank of {nspace} is {last}"),
            None => format!("job {nspace} has no ranks: name a job that was started in its engine"),
        };
        Failure::new(Status::ERR_NOT_FOUND, reason)
    }

    pub(crate) fn get_mut(&mut self, nspace: &Nspace) -> Option<&mut JobState> {
        self.by_name.get_mut(nspace)
    }

    /// Returns the job with this number, with its name.
    pub(crate) fn of_run(&self, run: u64) -> Option<(&Nspace, &JobState)> {
        self.iter().find(|(_, job)| job.run() == run)
    }

    /// Returns all jobs, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&Nspace, &JobState)> {
        self.by_name.iter()
    }

    /// Returns a rank that was started here, or that runs on another node of its job.
    pub(crate) fn rank(&self, proc: &Proc) -> Option<&RankState> {
        self.get(&proc.nspace)?.rank(proc.rank)
    }

    /// Returns the job `nspace`. If it is unknown, adds and numbers the one that `new` returns.
    pub(crate) fn get_or_add(&mut self, nspace: &Nspace, new: impl FnOnce() -> JobState) -> &mut JobState {
        let last_run = &mut self.last_run;
        self.by_name.entry(nspace.clone()).or_insert_with(|| {
            last_run.raise(1);
            new().numbered(*last_run)
        })
    }

    /// Removes a job.
    pub(crate) fn remove(&mut self, nspace: &Nspace) -> Option<JobState> {
        self.logged.remove(nspace);
        self.by_name.remove(nspace)
    }

    /// Returns the name of the only job, if there is exactly one.
    pub(crate) fn only(&self) -> Option<&Nspace> {
        let mut names = self.by_name.keys();
        names.next().filter(|_| names.next().is_none())
    }

    /// Returns whether `proc` is a source or may still become one.
    pub(crate) fn may_exist(&self, proc: &Proc) -> bool {
        match self.get(&proc.nspace) {
            // What is logged for the job as a whole has no rank.
            Some(job) if !job.is_starting() && !job.has_ranks_of_host() => {
                [Rank::WILDCARD, Rank::UNDEF].contains(&proc.rank) || job.has_rank(proc.rank)
            }
            _ => true,
        }
    }

    /// Adds a local rank to its job.
    pub(crate) fn add_rank(&mut self, proc: Proc, rank: RankState) {
        self.processes.extend(rank.process().map(|process| (process, proc.clone())));
        let target = rank.target().filter(|_| rank.stdin_unavailable(true).is_none());
        self.stdins.extend(target.map(|target| (target, proc.clone())));
        let Some(job) = self.by_name.get_mut(&proc.nspace) else { absent!("job", return) };
        job.add_rank(proc.rank, rank);
    }

    /// Removes and returns the local ranks of a job that failed to start, with all that they left
    /// in it.
    pub(crate) fn take_ranks(&mut self, nspace: &Nspace) -> Vec<RankState> {
        let Some(job) = self.by_name.get_mut(nspace) else { absent!("job", return Vec::new()) };
        let ranks: Vec<RankState> = job.take_ranks().into_values().collect();
        for rank in &ranks {
            rank.process().map(|process| self.processes.remove(&process));
            rank.target().map(|target| self.stdins.remove(&target));
        }
        ranks
    }

    /// Returns the job and the rank of a process that has not exited.
    pub(crate) fn rank_of(&self, process: ProcessId) -> Option<(JobId, Rank)> {
        let Proc { nspace, rank } = self.processes.get(&process)?;
        let run = self.get(nspace).or_else(|| absent!("job", None))?.run();
        Some((JobId { nspace: nspace.clone(), run }, *rank))
    }

    /// Removes and returns the rank whose process has exited.
    pub(crate) fn take_exited(&mut self, process: ProcessId) -> Option<Proc> {
        self.processes.remove(&process)
    }

    /// Notes that no local process is watched any more, and that all streams of all jobs are
    /// complete. Returns the processes that were watched.
    pub(crate) fn capture_ended(&mut self, now: Instant) -> Vec<ProcessId> {
        self.stdins.clear();
        self.by_name.values_mut().for_each(|job| job.capture_ended(now));
        std::mem::take(&mut self.processes).into_keys().collect()
    }

    /// Notes that the stdin of a rank was shut.
    pub(crate) fn shut(&mut self, target: TargetId) {
        let Some(Proc { nspace, rank }) = self.stdins.remove(&target) else { return };
        let rank = self.by_name.get_mut(&nspace).and_then(|job| job.rank_mut(rank));
        rank.filter(|rank| rank.target() == Some(target)).map(RankState::close_stdin);
    }

    /// Notes that the stdin of ranks on other nodes was ended or closed.
    pub(crate) fn shut_there(&mut self, targets: &[Proc]) {
        for Proc { nspace, rank } in targets {
            let rank = self.by_name.get_mut(nspace).and_then(|job| job.rank_mut(*rank));
            rank.filter(|rank| rank.node().is_some()).map(RankState::close_stdin);
        }
    }

    /// Notes that something was logged to a job.
    pub(crate) fn note_logged(&mut self, nspace: &Nspace) {
        self.logged.insert(nspace.clone());
    }

    /// Returns whether no job, process or stdin is left.
    pub fn is_empty(&self) -> bool {
        let Jobs { by_name, processes, stdins, logged, .. } = self;
        by_name.is_empty() && processes.is_empty() && stdins.is_empty() && logged.is_empty()
    }

    /// Returns the streams of logged messages to which nothing more can be logged, once.
    pub(crate) fn take_finished_logs(&mut self) -> Vec<SourceId> {
        let Jobs { by_name, logged, .. } = self;
        let ended = |nspace: &Nspace| by_name.get(nspace).is_some_and(JobState::is_output_complete);
        let ended = logged.extract_if(.., |nspace| ended(nspace));
        ended.filter_map(|nspace| by_name.get(&nspace)).flat_map(JobState::logged_streams).collect()
    }

    /// Notes that a job may have to be ended early from now on.
    pub(crate) fn schedule_early_end(&mut self, nspace: &Nspace, now: Instant) {
        let next = self.get(nspace).and_then(|job| job.next_early_end(now));
        self.next_early_end = self.next_early_end.into_iter().chain(next).min();
    }

    /// Returns when [`Jobs::end_early`] is due next.
    pub(crate) fn next_early_end(&self) -> Option<Instant> {
        self.next_early_end
    }

    /// Ends jobs early for which it is time at `now`. Returns what follows; `None` if no job was
    /// due.
    pub(crate) fn end_early(&mut self, now: Instant) -> Option<EndSteps> {
        self.next_early_end.filter(|next| *next <= now)?;
        let mut steps = EndSteps::default();
        self.by_name.values_mut().for_each(|job| job.end_early(now, &mut steps));
        self.next_early_end = self.by_name.values().filter_map(|job| job.next_early_end(now)).min();
        Some(steps)
    }
}
