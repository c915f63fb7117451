//! The engine's knowledge of jobs and their ranks: the values with which it must answer queries.

use std::collections::BTreeSet;
use std::time::{Duration, UNIX_EPOCH};

use iof_core::Exit;
use iof_proto::query::key;
use iof_proto::{
    Info, InfoValue, JobInfo, Nspace, Proc, ProcInfo, ProcState, Query, Rank, Status, UsedResources, Value,
};

use super::EngineWorld;
use super::jobs::Job;

/// The job, and perhaps the rank, that a query is limited to.
#[derive(Debug, Default)]
struct Limit {
    nspace: Option<Nspace>,
    rank: Option<Rank>,
}

impl Limit {
    fn new(qualifiers: &[Info]) -> Limit {
        let mut limit = Limit::default();
        for Info { key, value, .. } in qualifiers {
            match (key.as_str(), value) {
                (key::PMIX_NSPACE, InfoValue::Text(name)) => limit.nspace = Nspace::new(name.as_str()).ok(),
                (key::PMIX_PROCID, InfoValue::Proc(Proc { nspace, rank })) => {
                    limit.nspace = Some(nspace.clone());
                    limit.rank = Some(*rank).filter(|rank| *rank != Rank::WILDCARD);
                }
                _ => {}
            }
        }
        limit
    }

    fn has(&self, proc: &Proc) -> bool {
        self.nspace.as_ref().is_none_or(|nspace| *nspace == proc.nspace)
            && self.rank.is_none_or(|rank| rank == proc.rank)
    }
}

impl EngineWorld {
    /// Returns the engine's own value of a key of a query; `None` if it has none.
    pub(super) fn own_value(&self, key: &str, query: &Query) -> Option<Value> {
        let limit = Limit::new(&query.qualifiers);
        let jobs = self.jobs_within(&limit);
        let is_limited = limit.nspace.is_some();
        if is_limited && jobs.is_empty() {
            return None;
        }
        let unless_none = |rows: Vec<ProcInfo>| {
            let mut rows: Vec<ProcInfo> = rows.into_iter().filter(|row| limit.has(&row.proc)).collect();
            rows.sort_by(|one, other| one.proc.cmp(&other.proc));
            (!is_limited || !rows.is_empty()).then_some(Value::Procs(rows))
        };
        let here = jobs.iter().flat_map(|job| here(job));
        match key {
            key::PMIX_QUERY_PROC_TABLE => {
                let remote = jobs.iter().flat_map(|job| self.remote_rows(job));
                unless_none(here.chain(remote).collect())
            }
            key::PMIX_QUERY_LOCAL_PROC_TABLE => unless_none(here.collect()),
            key::PMIX_QUERY_NAMESPACES => {
                let running = jobs.iter().filter(|job| self.job_status(job) == Status::EVENT_JOB_START);
                let names: Vec<&str> = running.map(|job| job.nspace.as_str()).collect();
                Some(Value::Text(names.join(",")))
            }
            key::PMIX_QUERY_NAMESPACE_INFO => {
                Some(Value::Jobs(jobs.iter().map(|job| self.job_row(job)).collect()))
            }
            key::PMIX_QUERY_JOB_STATUS => jobs.first().map(|job| Value::Status(self.job_status(job))),
            key::IOF_QUERY_STATS => Some(Value::Streams(Vec::new())),
            _ => None,
        }
    }

    /// Returns the jobs that have a known rank within a limit, in the order of their names.
    fn jobs_within(&self, limit: &Limit) -> Vec<&Job> {
        let is_known = |job: &&Job| {
            let is_named = limit.nspace.as_ref().is_none_or(|nspace| *nspace == job.nspace);
            is_named && limit.rank.is_none_or(|rank| self.knows(job, rank))
        };
        let mut jobs: Vec<&Job> = self.jobs.list.iter().filter(is_known).collect();
        jobs.sort_by(|one, other| one.nspace.cmp(&other.nspace));
        jobs
    }

    /// Returns whether a rank is local or was seen in delivered output.
    pub(super) fn knows(&self, job: &Job, rank: Rank) -> bool {
        let is_local = rank.0 < job.ranks.len() as u32 || job.launching.contains(&rank.0);
        is_local || self.remote_ranks(job).contains(&rank)
    }

    /// Returns the remote ranks whose output was delivered.
    fn remote_ranks(&self, job: &Job) -> BTreeSet<Rank> {
        let streams = self.truth.of_run(&job.nspace, job.run);
        let delivered = streams.filter(|(info, record)| record.is_recorded() && !info.logged);
        delivered.map(|(info, _)| info.source.rank).collect()
    }

    fn remote_rows(&self, job: &Job) -> Vec<ProcInfo> {
        let row = |rank| ProcInfo { host: String::new(), ..row(job, rank, 0, ProcState::Unknown) };
        self.remote_ranks(job).into_iter().map(row).collect()
    }

    fn job_status(&self, job: &Job) -> Status {
        if job.may_have_more() || !job.ends.are_known() {
            return Status::EVENT_JOB_START;
        }
        let failure = self.engine.status(&job.nspace).and_then(|status| status.first_failure);
        match failure {
            Some((_, exit)) if exit.signal().is_some() => Status::ERR_JOB_ABORTED_BY_SIG,
            Some(_) => Status::ERR_JOB_NON_ZERO_TERM,
            // A time limit gives a code of its own.
            None if self.job_code(job).is_some_and(|code| code != 0) => Status::ERR_JOB_NON_ZERO_TERM,
            None => Status::EVENT_JOB_END,
        }
    }

    fn job_code(&self, job: &Job) -> Option<i32> {
        let own_code = || self.engine.status(&job.nspace).filter(|_| !job.ranks.is_empty());
        job.exit_code.or_else(|| own_code().map(|status| status.code()))
    }

    fn job_row(&self, job: &Job) -> JobInfo {
        let status = self.job_status(job);
        JobInfo {
            nspace: job.nspace.clone(),
            procs: (job.ranks.len() + job.launching.len() + self.remote_ranks(job).len()) as u32,
            status,
            exit_code: self.job_code(job).filter(|_| status != Status::EVENT_JOB_START),
            command: String::new(),
            run: job.run.into(),
        }
    }
}

fn row(job: &Job, rank: Rank, pid: u32, state: ProcState) -> ProcInfo {
    let proc = Proc::new(job.nspace.clone(), rank);
    let host = EngineWorld::NODE.to_owned();
    let began = (pid > 0).then_some(UNIX_EPOCH);
    ProcInfo { pid, host, began, ..ProcInfo::new(proc, state) }
}

/// Returns the rows of the local ranks of a job, and of those that are being started.
fn here(job: &Job) -> Vec<ProcInfo> {
    let launching = job.launching.clone().map(|rank| row(job, Rank(rank), 0, ProcState::Launching));
    let running = job.ranks.iter().enumerate().map(|(number, rank)| {
        let exit = job.ends.exit(number);
        let state = match exit {
            None => ProcState::Running,
            Some(Exit::Unfinalized) => ProcState::Unfinalized,
            Some(exit) if exit.success() => ProcState::Terminated,
            Some(exit) if exit.signal().is_some() => ProcState::Killed,
            Some(_) => ProcState::Failed,
        };
        let exit_code = exit.filter(|exit| *exit != Exit::Unknown).map(Exit::code);
        let peak_memory = number as u64;
        let used = exit_code.map(|_| UsedResources { ended: UNIX_EPOCH, cpu: Duration::ZERO, peak_memory });
        ProcInfo { exit_code, used, ..row(job, Rank(number as u32), rank.pid, state) }
    });
    running.chain(launching).collect()
}
