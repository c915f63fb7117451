//! The jobs that tools have the engine of `iof run` start.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::Sender;
use iof_engine::{Ending, Engine, Job, Mpi, QueryReply, Signal, SpawnReply, SpawnRequest};
use iof_proto::limits::MAX_SPAWNED_JOBS;
use iof_proto::{Failure as Refusal, Found, JobSpec, Nspace, Status, Value};

use crate::commands::attach::attach_own;
use crate::error::Failure;
use crate::events::job_event::JobEvent;
use crate::events::singletons::watch_job;
use crate::outputs::output::Outputs;
use crate::outputs::printers::AttachedOutputs;
use crate::reports::failures::Failures;
use crate::run::host::{ALONE, FAILURES};

/// The command's own engine, job and slots.
pub struct Own<'b, 'a> {
    pub engine: &'b Arc<Engine>,
    /// The command's own job, and where its output goes.
    pub job: Option<(&'b JobSpec, &'b Outputs<'a>)>,
    /// The number of ranks that may run here, if it is limited.
    pub slots: Option<u64>,
}

/// The largest number of ended jobs whose lines are kept for their spawners.
const MAX_REPORTS: usize = MAX_SPAWNED_JOBS;

/// The jobs that were granted and have not ended. Dropping them kills their ranks.
#[derive(Default)]
pub struct Children<'a> {
    running: BTreeMap<Nspace, Child<'a>>,
    /// The jobs that ended last.
    reports: VecDeque<(Nspace, ChildReport)>,
}

/// The lines at the end of a job.
struct ChildReport {
    /// Those about failed ranks.
    failed: String,
    /// The one that tells that its ranks were alone, if they were.
    alone: String,
}

struct Child<'a> {
    ranks: u64,
    /// `true` if this command writes its output, because it writes that of its parent.
    is_shown: bool,
    /// The outputs that are written once the ranks are started.
    outputs: Option<AttachedOutputs<'a>>,
    /// The job, once its ranks are started.
    job: Option<Job>,
    mpi: Mpi,
    timeout: Option<Duration>,
    /// The line that tells that its ranks are alone.
    alone: Option<String>,
    /// The queries for its lines, which its end answers.
    asked: Vec<QueryReply>,
}

impl<'a> Children<'a> {
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Grants or refuses a job.
    pub fn request(&mut self, own: &Own<'_, 'a>, request: SpawnRequest, reply: SpawnReply) {
        let SpawnRequest { spec, parent, .. } = request;
        let parent = parent.as_ref();
        match self.admit(own, &spec, parent) {
            Ok(child) => {
                self.running.insert(spec.nspace.clone(), child);
                reply.grant(spec);
            }
            Err(refusal) => reply.deny(refusal.status, refusal.reason),
        }
    }

    fn admit(
        &self,
        own: &Own<'_, 'a>,
        spec: &JobSpec,
        parent: Option<&Nspace>,
    ) -> Result<Child<'a>, Refusal> {
        let ranks = spec.nprocs();
        let others = self.running.values().map(|child| child.ranks).fold(0, u64::saturating_add);
        let used = others.saturating_add(own.job.map_or(0, |(own, _)| own.nprocs()));
        if let Some(slots) = own.slots.filter(|slots| used.saturating_add(ranks) > *slots) {
            let reason = format!(
                "{ranks} ranks need as many slots, but {used} of {slots} are in use: run iof with more in --hosts, or with \
                 --oversubscribe"
            );
            return Err(Refusal::new(Status::ERR_OUT_OF_RESOURCE, reason));
        }
        let is_child = |parent: &Nspace| self.running.get(parent).is_some_and(|child| child.is_shown);
        let shown =
            own.job.filter(|(job, _)| parent.is_some_and(|parent| *parent == job.nspace || is_child(parent)));
        let outputs = shown.map(|(_, outputs)| attach(own.engine, outputs, spec)).transpose()?;
        let (is_shown, mpi, timeout) = (outputs.is_some(), spec.mpi, spec.timeout);
        Ok(Child { ranks, is_shown, outputs, job: None, mpi, timeout, alone: None, asked: Vec::new() })
    }

    /// Notes that the ranks of a job are started, or that none is. Returns the number
    /// of outputs that are written for it, whose ends are events.
    pub fn started(
        &mut self,
        engine: &Engine,
        nspace: &Nspace,
        job: Option<Job>,
        events: &Sender<JobEvent>,
    ) -> Result<usize, Failure> {
        let Some(job) = job else {
            self.running.remove(nspace);
            return Ok(0);
        };
        let Some(child) = self.running.get_mut(nspace) else { return Ok(0) };
        let (over, timeout) = (events.clone(), child.timeout);
        watch_job(engine, &job, (child.ranks, child.mpi), events, move |job| {
            let lines = failure_lines(job, timeout);
            // A send fails only if the receiver has already decided to end.
            drop(over.send(JobEvent::ChildOver { nspace: job.nspace().clone(), lines }));
        })?;
        child.job = Some(job);
        let writers = child.outputs.take().map_or(Ok(Vec::new()), AttachedOutputs::start)?;
        let count = writers.len();
        for writer in writers {
            let events = events.clone();
            writer.watch(move |report| drop(events.send(JobEvent::Output(report))))?;
        }
        Ok(count)
    }

    /// Notes that a job has ended, whose failed ranks have `lines`. Returns these if its output was
    /// written here.
    pub fn over(&mut self, nspace: Nspace, lines: Vec<String>) -> Vec<String> {
        let Some(child) = self.running.remove(&nspace) else { return Vec::new() };
        let report = ChildReport { failed: lines.join("\n"), alone: child.alone.clone().unwrap_or_default() };
        child.asked.into_iter().for_each(|reply| report.answer(reply));
        self.reports.push_front((nspace, report));
        self.reports.truncate(MAX_REPORTS);
        if child.is_shown { lines.into_iter().chain(child.alone).collect() } else { Vec::new() }
    }

    /// Notes that the ranks of a job are alone, as `line` says, and ends the job if `ends_job`. Returns
    /// the line if its output is written here and its end does not show the line soon.
    pub fn alone(&mut self, nspace: &Nspace, line: String, ends_job: bool) -> Option<String> {
        let child = self.running.get_mut(nspace)?;
        child.job.iter().filter(|_| ends_job).for_each(Job::fail);
        child.alone = Some(line);
        child.alone.clone().filter(|_| child.is_shown && !ends_job)
    }

    /// Answers a query for the lines about a job, once it has ended.
    pub fn query(&mut self, nspace: &Nspace, reply: QueryReply) {
        if let Some(child) = self.running.get_mut(nspace) {
            child.asked.push(reply);
        } else if let Some((_, report)) = self.reports.iter().find(|(name, _)| name == nspace) {
            report.answer(reply);
        }
    }

    /// Sends a signal to the ranks of all these jobs.
    pub fn signal(&self, signal: Signal) {
        self.running.values().filter_map(|child| child.job.as_ref()).for_each(|job| _ = job.signal(signal));
    }
}

impl Drop for Children<'_> {
    fn drop(&mut self) {
        // They would run without a launcher.
        self.signal(Signal::KILL);
    }
}

impl ChildReport {
    fn answer(&self, reply: QueryReply) {
        let found = [(FAILURES, &self.failed), (ALONE, &self.alone)].map(|(key, text)| Found {
            query: 0,
            key: key.to_owned(),
            value: Value::Text(text.clone()),
        });
        reply.answer(found.into());
    }
}

/// Blocks until a job is over. Returns the lines about its failed ranks, as a launcher prints them.
fn failure_lines(job: &Job, timeout: Option<Duration>) -> Vec<String> {
    let mut failures = Failures::new(job.nspace().clone(), timeout);
    let told = job.endings().filter_map(|ending| match ending {
        Ending::Rank(rank) => failures.exited(&rank),
        Ending::Early(end) => failures.ends_early(&end),
        Ending::NodeLost(_) | Ending::Mpi { .. } => None,
    });
    let mut lines: Vec<String> = told.collect();
    lines.extend(failures.cut_off_lines(&job.wait()));
    lines.extend(failures.closing_lines());
    lines
}

/// Opens the outputs of the command for another job.
fn attach<'a>(
    engine: &Engine,
    outputs: &Outputs<'a>,
    spec: &JobSpec,
) -> Result<AttachedOutputs<'a>, Refusal> {
    if outputs.has_files() && !outputs.names_job() {
        let reason = "the names of the output files do not contain that of the job, so its ranks would write to those \
                      of its parent: run iof with %j or %x in the names, or with --output dir=DIR";
        return Err(Refusal::new(Status::ERR_NOT_SUPPORTED, reason));
    }
    let attached = outputs.of_job(spec.nprocs()).attach(|parts| {
        parts.iter().map(|part| attach_own(engine, "iof run", &spec.nspace, part).map(Some)).collect()
    });
    attached.map_err(|failure| {
        let reason = match failure {
            Failure::Usage(reason) | Failure::Choice(reason) => reason,
            Failure::Running(reason) | Failure::Timeout(reason) => reason,
            Failure::Signal(signal) => signal.to_string(),
        };
        Refusal::new(Status::ERR_OUT_OF_RESOURCE, reason)
    })
}
