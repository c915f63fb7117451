//! `iof pull` of several jobs, also of those that begin while it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::mem;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crossbeam::channel::{Sender, unbounded};
use crossbeam::select;
use iof_output::PrintReport;
use iof_proto::Nspace;
use iof_proto::limits::JOB_WAIT;
use iof_proto::rendezvous::{ConnectError, Level, Listed, Search, Target, connect};
use iof_tool::Tool;
use wildmatch::WildMatch;

use crate::commands::attach::{POLL_INTERVAL, engine_directories, failed, list_engines, listed, query_jobs};
use crate::commands::inspect::process_state;
use crate::commands::job_watch::{JobWait, JobWatch, LONGEST_INTERVAL, until_next_look};
use crate::commands::pull_args::{PullArgs, is_pattern};
use crate::commands::pull_streams::{add_losses, check, pulled_by, register};
use crate::error::Failure;
use crate::options::position::PositionArgs;
use crate::outputs::output::Outputs;
use crate::outputs::printers::OutputReport;
use crate::terminal::message::print_message;

/// A job as the rendezvous directory shows it: the socket of its engine, and its name.
type JobLink = (PathBuf, Nspace);

/// A job with the pid of its engine.
type EngineJob = (u32, Nspace);

/// A job that is pulled, or was.
#[derive(Default)]
struct PulledJob {
    run: u128,
    engine: u32,
    /// The number of outputs that are still written.
    outputs: usize,
    report: PrintReport,
    /// When the engine was last asked for a run; `None` if it is not asked again.
    looked: Option<Instant>,
}

struct SeveralPulls<'a> {
    args: &'a PullArgs,
    outputs: Outputs<'a>,
    /// The directories of the engines; `None` for the default one.
    directories: Vec<Option<PathBuf>>,
    names: Vec<Nspace>,
    /// Those for which no job was pulled yet.
    missing: Vec<Nspace>,
    began: Instant,
    wait: Option<JobWait>,
    jobs: BTreeMap<JobLink, PulledJob>,
    /// Jobs that have begun, or are announced, and were not pulled yet.
    begun: BTreeSet<EngineJob>,
    /// Jobs that are pulled, or were, whose begin was not noticed yet.
    early: BTreeSet<EngineJob>,
    /// A job of a stopped engine is pulled once the engine continues, or the others have ended.
    is_deferred: bool,
    /// Since when a job is announced that its engine has not begun.
    announced: Option<Instant>,
    pulled: usize,
    failed: usize,
    reports: Sender<OutputReport<JobLink>>,
}

/// Pulls all jobs whose names match, until those that were found have ended. With `--persistent`, until
/// none has begun for the time of `--wait`.
pub fn pull_several(args: &PullArgs, outputs: Outputs<'_>, names: Vec<Nspace>) -> Result<(), Failure> {
    let directories = engine_directories(args.engine.rendezvous_dir.as_deref())?;
    let watch = JobWatch::start(directories.clone())?;
    let (sender, reports) = unbounded();
    let mut pulls = SeveralPulls {
        args,
        outputs,
        directories,
        missing: names.clone(),
        names,
        began: Instant::now(),
        wait: args.wait.map(JobWait::begin),
        jobs: BTreeMap::new(),
        begun: BTreeSet::new(),
        early: BTreeSet::new(),
        is_deferred: false,
        announced: None,
        pulled: 0,
        failed: 0,
        reports: sender,
    };
    // Looks once more after the end of those that were found.
    loop {
        if !args.part.no_follow || !pulls.missing.is_empty() {
            pulls.find(&watch)?;
        }
        if pulls.is_over() {
            break;
        }
        select! {
            recv(watch.changes) -> _ => watch.begun().into_iter().for_each(|job| pulls.note_begun(job)),
            recv(reports) -> report => if let Ok((link, report)) = report {
                pulls.written(&link, report?);
            },
            default(pulls.until_next_look()) => {}
        }
    }
    if !args.part.no_follow {
        let engines = pulls.look(&watch)?;
        pulls.report_ended(&links(&engines));
    }
    match pulls.failed {
        0 => Ok(()),
        count => Err(Failure::running(format!("{count} of {} jobs were not pulled whole", pulls.pulled))),
    }
}

impl SeveralPulls<'_> {
    fn is_over(&self) -> bool {
        let persists = self.args.persistent && self.wait.is_none_or(|wait| !wait.is_over());
        self.missing.is_empty() && !persists && !self.is_deferred && !self.is_pulling()
    }

    fn is_pulling(&self) -> bool {
        self.jobs.values().any(|job| job.outputs > 0)
    }

    /// Returns how long to sleep until jobs are looked for even if no directory has changed.
    fn until_next_look(&self) -> Duration {
        // An announced job begins without a change. It is found at most an eighth of its wait later.
        let begins = self.announced.map_or(Duration::MAX, |since| since.elapsed() / 8);
        until_next_look(self.wait).min(begins.max(POLL_INTERVAL))
    }

    /// Notes that a job has begun, if it is to be pulled.
    fn note_begun(&mut self, job: EngineJob) {
        let pid = self.args.engine.pid;
        if self.names.iter().any(|name| matches(name, &job.1))
            && pid.is_none_or(|pid| pid == job.0)
            && !self.early.remove(&job)
        {
            self.begun.insert(job);
        }
    }

    /// Reports the jobs that have ended before they were pulled: those without a link.
    fn report_ended(&mut self, links: &[JobLink]) {
        let is_listed = |job: &EngineJob| links.iter().any(|link| job_of(link).as_ref() == Some(job));
        let (begun, ended): (BTreeSet<_>, BTreeSet<_>) =
            mem::take(&mut self.begun).into_iter().partition(is_listed);
        self.begun = begun;
        self.early.retain(is_listed);
        if ended.is_empty() {
            return;
        }
        self.missing.retain(|name| !ended.iter().any(|(_, job)| matches(name, job)));
        let (count, jobs) = (ended.len(), listed(ended.iter().map(|(_, job)| job)));
        let what = if count == 1 { "1 job has".into() } else { format!("{count} jobs have") };
        print_message(format_args!(
            "{what} ended before the output could be pulled ({jobs}): iof run --keep DURATION keeps it"
        ));
        self.failed = self.failed.saturating_add(count);
        self.pulled = self.pulled.saturating_add(count);
    }

    /// Pulls the jobs that were not found before.
    fn find(&mut self, watch: &JobWatch) -> Result<(), Failure> {
        let engines = self.look(watch)?;
        let links = links(&engines);
        let is_listed = |name: &Nspace| links.iter().any(|(_, job)| matches(name, job));
        let unlisted: Vec<Nspace> = self.missing.iter().filter(|name| !is_listed(name)).cloned().collect();
        let is_over = match self.wait {
            Some(wait) => wait.is_over(),
            // Announced jobs.
            None if unlisted.is_empty() => self.began.elapsed() >= JOB_WAIT && !self.is_pulling(),
            None if engines.iter().any(|engine| engine.jobs.is_empty()) => self.began.elapsed() >= JOB_WAIT,
            None => true,
        };
        if is_over && let Some(name) = unlisted.first().or(self.missing.first()) {
            let reason = not_found(name, listed(links.iter().map(|(_, job)| job)));
            if self.jobs.is_empty() {
                return Err(Failure::Usage(reason));
            }
            print_message(format_args!("{reason}"));
            self.failed = self.failed.saturating_add(self.missing.len());
            self.pulled = self.pulled.saturating_add(self.missing.len());
            self.missing.clear();
        }
        // Without --wait, nothing is pulled if a job is missing.
        if self.wait.is_none() && !unlisted.is_empty() {
            return Ok(());
        }
        self.jobs.retain(|link, job| job.outputs > 0 || links.contains(link));
        let (is_first, mut announces, mut failures) = (self.pulled == 0, false, Vec::new());
        // A stopped engine begins no further run.
        let is_due = |(link, job): (&JobLink, &PulledJob)| {
            let has_begun = || job_of(link).is_some_and(|job| self.begun.contains(&job));
            let looked = job.looked.filter(|looked| looked.elapsed() >= LONGEST_INTERVAL || has_begun());
            job.outputs == 0 && looked.is_some() && !is_stopped(link)
        };
        let is_wanted = |link: &&JobLink| {
            self.names.iter().any(|name| matches(name, &link.1))
                && self.jobs.get_key_value(*link).is_none_or(is_due)
        };
        let mut due: Vec<JobLink> = links.iter().filter(is_wanted).cloned().collect();
        // Stopped engines do not answer, and would delay the others.
        due.sort_by_key(is_stopped);
        self.is_deferred = false;
        for link in due {
            if is_stopped(&link) && !self.args.part.no_follow && self.is_pulling() {
                (self.is_deferred, announces) = (true, true);
                self.begun.extend(job_of(&link));
                continue;
            }
            match self.open(link.clone(), is_first) {
                Ok(true) => {}
                // It may have been announced before the watch began.
                Ok(false) => {
                    announces = true;
                    self.begun.extend(job_of(&link));
                }
                Err(failure) => failures.push((link, failure)),
            }
        }
        self.report_ended(&links);
        self.announced = announces.then(|| self.announced.unwrap_or_else(Instant::now));
        for (link, failure) in failures {
            match failure {
                // What was pulled is whole without a further run.
                Failure::Usage(_) | Failure::Running(_) if self.jobs.contains_key(&link) => {
                    self.jobs.entry(link).and_modify(|job| job.looked = Some(Instant::now()));
                }
                // The others are pulled.
                Failure::Usage(reason) | Failure::Running(reason) if self.pulled > 0 => {
                    self.insert(link.clone(), PulledJob::default());
                    self.fail(&link.1, &reason);
                }
                failure => return Err(failure),
            }
        }
        Ok(())
    }

    fn insert(&mut self, link: JobLink, job: PulledJob) {
        self.missing.retain(|name| !matches(name, &link.1));
        if let Some(job) = job_of(&link).filter(|job| !self.begun.remove(job)) {
            self.early.insert(job);
        }
        self.jobs.insert(link, job);
        self.pulled = self.pulled.saturating_add(1);
    }

    /// Reports a job whose output is incomplete.
    fn fail(&mut self, job: &Nspace, reason: &str) {
        print_message(format_args!("job {job}: {reason}"));
        self.failed = self.failed.saturating_add(1);
    }

    /// Notes the jobs that have begun, and returns this user's engines. Each of these jobs that is not listed has ended.
    fn look(&mut self, watch: &JobWatch) -> Result<Vec<Listed>, Failure> {
        watch.begun().into_iter().for_each(|job| self.note_begun(job));
        let mut engines = list_engines(&self.directories)?;
        let pid = self.args.engine.pid;
        engines.retain(|engine| {
            engine.is_live && engine.level == Level::Session && pid.is_none_or(|pid| engine.pid == Some(pid))
        });
        Ok(engines)
    }

    /// Pulls a job, unless this run was pulled before. Returns `false` if no run of it has begun, or its engine has
    /// ended before the first.
    fn open(&mut self, link: JobLink, is_first: bool) -> Result<bool, Failure> {
        let SeveralPulls { args, outputs, jobs, .. } = self;
        // Jobs that begin later are pulled from their beginning.
        let PositionArgs { until, no_follow, .. } = args.part;
        let later = PositionArgs { until, no_follow, ..PositionArgs::default() };
        let part = if is_first { &args.part } else { &later };
        let before = jobs.get(&link).map(|job| job.run);
        let (mut engine, mut runs, mut is_there) = (0, Vec::new(), true);
        let attached = outputs.attach(|parts| {
            let selections = pulled_by(args, parts);
            let search = Search { target: Target::Server(link.0.clone()), ..Search::default() };
            let count = selections.iter().flatten().count();
            let tools = Tool::find_several(&search, "iof pull", count);
            let mut tools = tools.map_err(|error| failed(error, &search))?;
            if let Some(first) = tools.first_mut() {
                engine = first.engine_pid();
                runs = query_jobs(first).map_err(Failure::running)?;
                runs.retain(|job| job.nspace == link.1 && Some(job.run) != before);
                is_there = !runs.is_empty();
            }
            Ok(register(args, part, None, &runs, (tools, selections))?.0)
        });
        let mut attached = match attached {
            Err(failure) => match connect(&link.0) {
                Ok(_) => return Err(failure),
                // The engine has ended meanwhile.
                Err(ConnectError::Refused(_)) => return Ok(before.is_some()),
                Err(ConnectError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                    return Ok(before.is_some());
                }
                // It is another user's, or stopped.
                Err(_) => return Ok(true),
            },
            Ok(attached) => attached,
        };
        let looked = Some(Instant::now());
        if !is_there {
            jobs.entry(link).and_modify(|job| job.looked = looked);
            return Ok(before.is_some());
        }
        attached.set_runs(&runs);
        let (run, report) = (runs.first().map_or(0, |job| job.run), PrintReport::default());
        let outputs = attached.write_and_report(&link, &self.reports)?;
        self.insert(link, PulledJob { run, engine, outputs, report, looked });
        Ok(true)
    }

    /// Notes that an output of a job is written.
    fn written(&mut self, link: &JobLink, report: PrintReport) {
        let Some(job) = self.jobs.get_mut(link) else { return };
        add_losses(&mut job.report, report);
        job.outputs = job.outputs.saturating_sub(1);
        if job.outputs > 0 {
            return;
        }
        job.looked = Some(Instant::now());
        let whole = check(job.engine, &job.report);
        self.args.print_job_ends([&link.1].into_iter(), &job.report, whole.is_ok());
        if let Err(reason) = whole {
            self.fail(&link.1, &reason);
        }
        self.wait = self.args.wait.map(JobWait::begin);
    }
}

fn is_stopped(link: &JobLink) -> bool {
    job_of(link).is_some_and(|(pid, _)| process_state(pid.into()) == "stopped")
}

/// Returns the links of the jobs of engines.
fn links(engines: &[Listed]) -> Vec<JobLink> {
    let of_engine = |engine: &Listed| {
        let path = engine.path.clone();
        engine.jobs.clone().into_iter().map(move |job| (path.clone(), job))
    };
    engines.iter().flat_map(of_engine).collect()
}

/// Returns the job of a link with the pid of its engine, which the name of the socket ends with.
fn job_of((path, job): &JobLink) -> Option<EngineJob> {
    let pid = path.extension()?.to_str()?.parse().ok()?;
    Some((pid, job.clone()))
}

/// Returns the reason for a job that is missing.
fn not_found(name: &Nspace, listed: String) -> String {
    match (name.as_str(), is_pattern(name)) {
        ("*", _) => listed,
        (name, true) => format!("no job matches '{name}'; {listed}"),
        (name, false) => format!("no running engine has a job {name}; {listed}"),
    }
}

/// Returns whether `pattern` matches `name`: `*` any text, `?` one character.
fn matches(pattern: &Nspace, name: &Nspace) -> bool {
    WildMatch::new(pattern.as_str()).matches(name.as_str())
}
