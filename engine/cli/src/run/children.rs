//! The jobs that tools have the engine of `iof run` start.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam::channel::Sender;
use iof_engine::{Ending, Engine, Job, Mpi, QueryReply, REQUESTS_TO_END, Signal, SpawnReply, SpawnRequest};
use iof_proto::limits::MAX_SPAWNED_JOBS;
use iof_proto::{Failure as Refusal, Found, JobSpec, Nspace, Status, Value};
use iof_remote::hosts::ranks_here;
use iof_remote::{Carriers, Launch, Node, NodeConfig, Relatives, RemoteJob, StartProgress};

use crate::commands::attach::attach_own;
use crate::error::Failure;
use crate::events::job_event::JobEvent;
use crate::events::singletons::watch_job;
use crate::nodes::launch::{report_files, tell_late};
use crate::nodes::options::NodeArgs;
use crate::outputs::output::Outputs;
use crate::outputs::printers::AttachedOutputs;
use crate::processes::threads::start_thread;
use crate::reports::failures::Failures;
use crate::run::host::{ALONE, FAILURES};
use crate::run::launched_job::{LaunchedJob, node_config};
use crate::run::plan::Plan;

/// The command's own engine, job and slots.
pub struct Own<'b, 'a> {
    pub engine: &'b Arc<Engine>,
    pub events: &'b Sender<JobEvent>,
    /// The plan of the command's own job.
    pub plan: Option<&'b Plan<'a>>,
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
    /// The number of these on this node.
    here: u64,
    /// `true` if this command writes its output, because it writes that of its parent.
    is_shown: bool,
    /// The job with which it ends.
    parent: Option<Nspace>,
    /// The outputs that are written once the ranks are started.
    outputs: Option<AttachedOutputs<'a>>,
    /// The job, once its ranks are started.
    job: Option<LaunchedJob>,
    /// The signals that its ranks get once they are started.
    signals: Vec<Signal>,
    /// Interrupts its start, if that is on other nodes.
    on_nodes: Option<Arc<AtomicBool>>,
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

    /// Returns whether ranks of these jobs run, or are being started. Otherwise only output is left.
    pub fn have_ranks(&self) -> bool {
        let has_ranks = |job: &LaunchedJob| job.try_wait_exit().is_none();
        self.running.values().any(|child| child.job.as_ref().is_none_or(has_ranks))
    }

    /// Grants or refuses a job.
    pub fn request(&mut self, own: &Own<'_, 'a>, request: SpawnRequest, reply: SpawnReply) {
        let SpawnRequest { spec, tool, parent, detached, .. } = request;
        if self.running.contains_key(&spec.nspace) {
            // The engine may give the name of a job whose end is still an event.
            let reason = format!("the end of job {} is being reported: choose another name", spec.nspace);
            return reply.deny(Status::ERR_EXISTS, reason);
        }
        let parent = parent.as_ref();
        let is_on_nodes = |job: &Nspace| self.running.get(job).is_some_and(|child| child.on_nodes.is_some());
        let of_own = |plan: &&Plan<'_>| plan.nodes.is_some() && plan.spec.nspace == tool.nspace;
        let nodes = own.plan.filter(|plan| of_own(plan) || is_on_nodes(&tool.nspace));
        let [used, _] = self.used(own);
        let start = nodes.map(|plan| StartOnNodes::new(plan, used, &spec)).transpose().map_err(refusal);
        let admitted = start.and_then(|start| Ok((self.admit(own, &spec, start.as_ref(), parent)?, start)));
        match admitted {
            Ok((mut child, start)) => {
                let nspace = spec.nspace.clone();
                child.parent = parent.filter(|_| !detached).cloned();
                match start {
                    Some(start) => child.on_nodes = Some(start.run((own.engine, own.events), spec, reply)),
                    None => reply.grant(spec),
                }
                self.running.insert(nspace, child);
            }
            Err(refusal) => reply.deny(refusal.status, refusal.reason),
        }
    }

    /// Returns the number of ranks that run, and of those on this node.
    fn used(&self, own: &Own<'_, 'a>) -> [u64; 2] {
        let of_own = own.plan.map_or([0; 2], |plan| {
            let ranks = plan.spec.nprocs();
            [ranks, plan.nodes.as_ref().map_or(ranks, |(nodes, _)| ranks_here(nodes))]
        });
        self.running.values().fold(of_own, |[all, here], child| {
            [all.saturating_add(child.ranks), here.saturating_add(child.here)]
        })
    }

    /// Admits a job on this node or, if there is a `start`, on others, or refuses it.
    fn admit(
        &self,
        own: &Own<'_, 'a>,
        spec: &JobSpec,
        start: Option<&StartOnNodes>,
        parent: Option<&Nspace>,
    ) -> Result<Child<'a>, Refusal> {
        let (ranks, [_, used]) = (spec.nprocs(), self.used(own));
        let here = start.map_or(ranks, |start| ranks_here(&start.nodes));
        if let Some(slots) = own.slots.filter(|slots| used.saturating_add(here) > *slots) {
            let reason = format!(
                "{here} ranks need as many slots, but {used} of {slots} are in use: run iof with more in --hosts, or with \
                 --oversubscribe"
            );
            return Err(Refusal::new(Status::ERR_OUT_OF_RESOURCE, reason));
        }
        let is_child = |parent: &Nspace| self.running.get(parent).is_some_and(|child| child.is_shown);
        let is_shown = |parent: &Nspace, own: &Nspace| parent == own || is_child(parent);
        let shown = own.plan.filter(|plan| parent.is_some_and(|parent| is_shown(parent, &plan.spec.nspace)));
        let outputs = shown.map(|plan| plan.outputs.of_job(ranks, start.is_some()));
        let outputs = outputs.map(|outputs| attach(own.engine, &outputs, spec)).transpose()?;
        let (is_shown, mpi, timeout) = (outputs.is_some(), spec.mpi, spec.timeout);
        let (parent, job, signals, on_nodes, alone, asked) = (None, None, Vec::new(), None, None, Vec::new());
        Ok(Child {
            ranks,
            here,
            is_shown,
            parent,
            outputs,
            job,
            signals,
            on_nodes,
            mpi,
            timeout,
            alone,
            asked,
        })
    }

    /// Notes that the ranks of a job are started, or that none is. Returns the number
    /// of outputs that are written for it, whose ends are events.
    pub fn started(
        &mut self,
        engine: &Engine,
        nspace: &Nspace,
        job: Option<(Job, Option<RemoteJob>)>,
        events: &Sender<JobEvent>,
    ) -> Result<usize, Failure> {
        let Some(((job, remote), child)) = job.zip(self.running.get_mut(nspace)) else {
            self.running.remove(nspace);
            return Ok(0);
        };
        let (outputs, over) = (child.outputs.take(), events.clone());
        let ranks = if child.on_nodes.is_some() { 0 } else { child.ranks };
        let (mpi, timeout) = (child.mpi, child.timeout);
        child.job = Some(LaunchedJob { job: job.clone(), remote });
        mem::take(&mut child.signals).into_iter().for_each(|signal| _ = job.signal(signal));
        watch_job(engine, &job, (ranks, mpi), events, move |job| {
            let lines = failure_lines(job, timeout);
            // A send fails only if the receiver has already decided to end.
            drop(over.send(JobEvent::ChildOver { nspace: job.nspace().clone(), lines }));
        })?;
        let writers = outputs.map_or(Ok(Vec::new()), AttachedOutputs::start)?;
        let count = writers.len();
        for writer in writers {
            let events = events.clone();
            writer.watch(move |report| drop(events.send(JobEvent::Output(report))))?;
        }
        Ok(count)
    }

    /// Interrupts the starts on other nodes of jobs whose parent has ended.
    pub fn parent_ended(&self, parent: &Nspace) {
        let own = self
            .running
            .values()
            .filter(|child| child.job.is_none() && child.parent.as_ref() == Some(parent));
        own.flat_map(|child| &child.on_nodes).for_each(|start| start.store(true, Ordering::Relaxed));
    }

    /// Notes that a job has ended, whose failed ranks have `lines`. Returns these if its output was
    /// written here.
    pub fn over(&mut self, nspace: Nspace, lines: Vec<String>) -> Vec<String> {
        let Some(child) = self.running.remove(&nspace) else { return Vec::new() };
        self.parent_ended(&nspace);
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
        child.job.iter().filter(|_| ends_job).for_each(|launched| launched.job.fail());
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

    /// Sends a signal to the ranks of all these jobs, now or as soon as they are started. One that asks to
    /// end interrupts starts on other nodes.
    pub fn signal(&mut self, signal: Signal) {
        let ends = signal == Signal::KILL || REQUESTS_TO_END.contains(&signal);
        for child in self.running.values_mut() {
            if let Some(job) = &child.job {
                job.signal(signal);
                continue;
            }
            // A signal that is pending is not sent twice, as in a process.
            child.signals.retain(|pending| *pending != signal);
            child.signals.push(signal);
            child.on_nodes.iter().filter(|_| ends).for_each(|start| start.store(true, Ordering::Relaxed));
        }
    }
}

/// A job that is about to be started on the nodes of its spawner.
struct StartOnNodes {
    nodes: Vec<Node>,
    carriers: Carriers,
    args: NodeArgs,
    config: NodeConfig,
    relatives: Relatives,
}

impl StartOnNodes {
    /// Places the ranks of a job behind the `used` ones that run.
    fn new(plan: &Plan<'_>, used: u64, spec: &JobSpec) -> Result<StartOnNodes, Failure> {
        let args = &plan.args.nodes;
        let (nodes, template) = args.choose_after(used, spec.nprocs())?;
        let (carriers, mut config) = (args.carriers(&nodes, &template, true)?, node_config(plan)?);
        config.files = plan.outputs.of_job(spec.nprocs(), true).node_files(plan.args.give_up)?;
        let relatives = plan.relatives.clone();
        Ok(StartOnNodes { nodes, carriers, args: args.clone(), config, relatives })
    }

    /// Starts the ranks on a thread of its own, all or none, and answers the spawner. Returns what interrupts the
    /// start.
    fn run(
        self,
        own: (&Arc<Engine>, &Sender<JobEvent>),
        spec: JobSpec,
        reply: SpawnReply,
    ) -> Arc<AtomicBool> {
        let (engine, events, interrupted) = (Arc::clone(own.0), own.1.clone(), Arc::default());
        let watched: Arc<AtomicBool> = Arc::clone(&interrupted);
        // Without the thread, the reply refuses the job as it is dropped.
        let unstarted = JobEvent::Spawned { nspace: spec.nspace.clone(), job: None };
        let started = start_thread("iof-spawn", move || {
            let StartOnNodes { nodes, carriers, args, config, relatives } = self;
            let launch = Launch { relatives, ..args.launch(&spec, &carriers, config) };
            let files = report_files(events.clone());
            let mut is_told = false;
            let mut is_interrupted = |progress: &StartProgress<'_>| {
                tell_late(progress, &launch, &mut is_told);
                watched.load(Ordering::Relaxed)
            };
            let started = launch.start(&engine, &nodes, &mut is_interrupted, files);
            drop(engine);
            let nspace = spec.nspace.clone();
            // A send fails only if the receiver has already decided to end, with the job.
            match started {
                Ok(remote) => {
                    let job = remote.job.clone();
                    drop(events.send(JobEvent::Spawned { nspace, job: Some((job.clone(), Some(remote))) }));
                    reply.started(&job);
                }
                Err(error) => {
                    drop(events.send(JobEvent::Spawned { nspace, job: None }));
                    reply.deny(Status::ERR_JOB_FAILED_TO_LAUNCH, error.to_string());
                }
            }
        });
        if started.is_err() {
            drop(own.1.send(unstarted));
        }
        interrupted
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
        Ending::NodeLost(lost) => Some(failures.node_lost(lost)),
        Ending::Mpi { .. } => None,
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
    let attached = outputs.attach(|parts| {
        parts.iter().map(|part| attach_own(engine, "iof run", &spec.nspace, part).map(Some)).collect()
    });
    attached.map_err(refusal)
}

fn refusal(failure: Failure) -> Refusal {
    let reason = match failure {
        Failure::Usage(reason) | Failure::Choice(reason) => reason,
        Failure::Running(reason) | Failure::Timeout(reason) => reason,
        Failure::Signal(signal) => signal.to_string(),
    };
    Refusal::new(Status::ERR_OUT_OF_RESOURCE, reason)
}
