//! `iof pull` of several jobs, also of those that begin while it runs.

use std::collections::BTreeMap;
use std::iter;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crossbeam::channel::{Sender, unbounded};
use crossbeam::select;
use iof_output::PrintReport;
use iof_proto::Nspace;
use iof_proto::limits::JOB_WAIT;
use iof_proto::rendezvous::{Level, Listed, Search, Target, connect, list};
use iof_tool::Tool;

use crate::commands::attach::{OPTIONS, POLL_INTERVAL, failed, listed, query_jobs};
use crate::commands::job_watch::{JobWait, LONGEST_INTERVAL, until_next_look, watch_jobs};
use crate::commands::pull_args::{PullArgs, is_pattern};
use crate::commands::pull_streams::{add_losses, check, pulled_by, register};
use crate::error::Failure;
use crate::options::engine::own_directory;
use crate::options::position::PositionArgs;
use crate::outputs::output::Outputs;
use crate::outputs::printers::OutputReport;
use crate::terminal::message::print_message;

/// A job as the rendezvous directory shows it: the socket of its engine, and its name.
type JobLink = (PathBuf, Nspace);

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
    /// Since when a job is announced that its engine has not begun.
    announced: Option<Instant>,
    pulled: usize,
    failed: usize,
    reports: Sender<OutputReport<JobLink>>,
}

/// Pulls all jobs whose names match, until those that were found have ended. With `--persistent`, until
/// none has begun for the time of `--wait`.
pub fn pull_several(args: &PullArgs, outputs: Outputs<'_>, names: Vec<Nspace>) -> Result<(), Failure> {
    let chosen = args.engine.rendezvous_dir.clone();
    let own = own_directory().filter(|_| chosen.is_none());
    let directories: Vec<_> = iter::once(chosen).chain(own.map(Some)).collect();
    let changes = watch_jobs(directories.clone())?;
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
        announced: None,
        pulled: 0,
        failed: 0,
        reports: sender,
    };
    while !pulls.is_over() {
        if !args.part.no_follow || pulls.pulled == 0 {
            pulls.find()?;
        }
        select! {
            recv(changes) -> _ => {}
            recv(reports) -> report => if let Ok((link, report)) = report {
                pulls.written(&link, report?);
            },
            default(pulls.until_next_look()) => {}
        }
    }
    match pulls.failed {
        0 => Ok(()),
        count => Err(Failure::running(format!("{count} of {} jobs were not pulled whole", pulls.pulled))),
    }
}

impl SeveralPulls<'_> {
    fn is_over(&self) -> bool {
        let persists = self.args.persistent && self.wait.is_none_or(|wait| !wait.is_over());
        self.missing.is_empty() && !persists && self.jobs.values().all(|job| job.outputs == 0)
    }

    /// Returns how long to sleep until jobs are looked for even if no directory has changed.
    fn until_next_look(&self) -> Duration {
        // An announced job begins without a change. It is found at most an eighth of its wait later.
        let begins = self.announced.map_or(Duration::MAX, |since| since.elapsed() / 8);
        until_next_look(self.wait).min(begins.max(POLL_INTERVAL))
    }

    /// Pulls the jobs that were not found before.
    fn find(&mut self) -> Result<(), Failure> {
        let engines = self.engines()?;
        let links = engines
            .iter()
            .flat_map(|engine| engine.jobs.iter().map(|job| (engine.path.clone(), job.clone())));
        let links: Vec<JobLink> = links.collect();
        let is_listed = |name: &Nspace| links.iter().any(|(_, job)| matches(name.as_str(), job.as_str()));
        let unlisted: Vec<Nspace> = self.missing.iter().filter(|name| !is_listed(name)).cloned().collect();
        let is_over = match self.wait {
            Some(wait) => wait.is_over(),
            None if unlisted.is_empty() || engines.iter().any(|engine| engine.jobs.is_empty()) => {
                self.began.elapsed() >= JOB_WAIT
            }
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
        for link in links {
            let is_due = |job: &PulledJob| {
                job.outputs == 0 && job.looked.is_some_and(|looked| looked.elapsed() >= LONGEST_INTERVAL)
            };
            if self.names.iter().any(|name| matches(name.as_str(), link.1.as_str()))
                && self.jobs.get(&link).is_none_or(is_due)
            {
                match self.open(link.clone(), is_first) {
                    Ok(has_begun) => announces |= !has_begun,
                    Err(failure) => failures.push((link, failure)),
                }
            }
        }
        self.announced = announces.then(|| self.announced.unwrap_or_else(Instant::now));
        for (link, failure) in failures {
            match failure {
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
        self.missing.retain(|name| !matches(name.as_str(), link.1.as_str()));
        self.jobs.insert(link, job);
        self.pulled = self.pulled.saturating_add(1);
    }

    /// Reports a job whose output is incomplete.
    fn fail(&mut self, job: &Nspace, reason: &str) {
        print_message(format_args!("job {job}: {reason}"));
        self.failed = self.failed.saturating_add(1);
    }

    /// Returns this user's engines.
    fn engines(&self) -> Result<Vec<Listed>, Failure> {
        let mut engines = Vec::new();
        for directory in &self.directories {
            engines
                .extend(list(directory.as_deref()).map_err(|error| Failure::Usage(error.message(&OPTIONS)))?);
        }
        let pid = self.args.engine.pid;
        engines.retain(|engine| {
            engine.is_live && engine.level == Level::Session && pid.is_none_or(|pid| engine.pid == Some(pid))
        });
        Ok(engines)
    }

    /// Pulls a job, unless this run was pulled before. Returns `false` if no run of it has begun.
    fn open(&mut self, link: JobLink, is_first: bool) -> Result<bool, Failure> {
        let SeveralPulls { args, outputs, jobs, .. } = self;
        // Jobs that begin later are pulled from their beginning.
        let later = PositionArgs { until: args.part.until, ..PositionArgs::default() };
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
            // The engine has ended meanwhile.
            Err(_) if connect(&link.0).is_err() => return Ok(true),
            attached => attached?,
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
        self.args.print_job_ends([&link.1].into_iter(), whole.is_ok());
        if let Err(reason) = whole {
            self.fail(&link.1, &reason);
        }
        self.wait = self.args.wait.map(JobWait::begin);
    }
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
fn matches(pattern: &str, name: &str) -> bool {
    // For each length, whether the pattern so far matches the first characters of the name.
    let mut lengths: Vec<bool> = iter::once(true).chain(name.chars().map(|_| false)).collect();
    for wanted in pattern.chars() {
        if wanted == '*' {
            let mut shorter = false;
            lengths.iter_mut().for_each(|length| {
                shorter |= *length;
                *length = shorter;
            });
        } else {
            let next = |(length, found): (&bool, char)| *length && (wanted == '?' || wanted == found);
            lengths = iter::once(false).chain(lengths.iter().zip(name.chars()).map(next)).collect();
        }
    }
    lengths.last() == Some(&true)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_pattern_matches_whole_names() {
        for (pattern, name) in [
            ("*", ""),
            ("*", "a"),
            ("train-*", "train-1"),
            ("*-1", "a-1-1"),
            ("a?c*", "abc"),
            ("a*b*c", "a-b-b-c"),
            ("é?", "éü"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("train-*", "train"),
            ("?", ""),
            ("a", "ab"),
            ("*-1", "a-12"),
            ("a*b*c", "a-c-b"),
            ("a?", "a"),
            ("*?", ""),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert!(!matches(&"*a".repeat(100), &"a".repeat(99)));
    }
}
