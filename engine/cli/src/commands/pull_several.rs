//! `iof pull` of several jobs, also of those that begin while it runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::Chars;
use std::time::{Duration, Instant};

use crossbeam::channel::{Sender, unbounded};
use iof_output::PrintReport;
use iof_proto::Nspace;
use iof_proto::limits::JOB_WAIT;
use iof_proto::rendezvous::{Level, Listed, Search, Target, connect, list};
use iof_tool::Tool;

use crate::commands::attach::{JobWait, OPTIONS, WAIT_INTERVAL, failed, listed, query_jobs};
use crate::commands::pull_args::{PullArgs, is_pattern};
use crate::commands::pull_streams::{add_losses, check, pulled_by, register};
use crate::error::Failure;
use crate::options::engine::own_directory;
use crate::options::position::PositionArgs;
use crate::outputs::output::Outputs;
use crate::outputs::printers::OutputReport;
use crate::terminal::message::print_message;

/// The interval at which an engine is asked whether an ended job has another run.
const NEXT_RUN_INTERVAL: Duration = Duration::from_secs(1);

/// A job as the rendezvous directory shows it: the socket of its engine, and its name.
type JobLink = (PathBuf, Nspace);

/// A job that was pulled.
struct Known {
    run: u128,
    /// When to ask for its next run; `None` while this one is pulled, and for never.
    next: Option<Instant>,
}

/// A job that is pulled.
struct ActivePull {
    link: JobLink,
    engine: u32,
    /// The number of outputs that are still written.
    outputs: usize,
    report: PrintReport,
}

struct SeveralPulls<'a> {
    args: &'a PullArgs,
    outputs: Outputs<'a>,
    /// The part of the output of jobs that begin later.
    later: PositionArgs,
    names: Vec<Nspace>,
    /// Those for which no job was found yet.
    missing: Vec<Nspace>,
    began: Instant,
    wait: Option<JobWait>,
    known: BTreeMap<JobLink, Known>,
    active: BTreeMap<usize, ActivePull>,
    pulled: usize,
    failed: usize,
    reports: Sender<OutputReport>,
}

/// Pulls all jobs whose names match, until those that were found have ended. With `--persistent`, until
/// none has begun for the time of `--wait`.
pub fn pull_several(args: &PullArgs, outputs: Outputs<'_>, names: Vec<Nspace>) -> Result<(), Failure> {
    let (sender, reports) = unbounded();
    let mut pulls = SeveralPulls {
        args,
        outputs,
        later: PositionArgs { until: args.part.until, ..PositionArgs::default() },
        missing: names.clone(),
        names,
        began: Instant::now(),
        wait: args.wait.map(JobWait::begin),
        known: BTreeMap::new(),
        active: BTreeMap::new(),
        pulled: 0,
        failed: 0,
        reports: sender,
    };
    while !pulls.is_over() {
        if !args.part.no_follow || pulls.pulled == 0 {
            pulls.find()?;
        }
        if let Ok((id, report)) = reports.recv_timeout(WAIT_INTERVAL) {
            pulls.written(id, report?);
        }
    }
    match pulls.failed {
        0 => Ok(()),
        count => Err(Failure::running(format!("{count} of {} jobs were not pulled whole", pulls.pulled))),
    }
}

impl SeveralPulls<'_> {
    fn is_over(&self) -> bool {
        let waits = match self.wait {
            _ if !self.missing.is_empty() => true,
            wait if self.args.persistent => wait.is_none_or(|wait| !wait.is_over()),
            _ => false,
        };
        self.active.is_empty() && !waits
    }

    /// Pulls the jobs that were not found before.
    fn find(&mut self) -> Result<(), Failure> {
        let engines = self.engines()?;
        let jobs = || engines.iter().flat_map(|engine| engine.jobs.iter().map(move |job| (engine, job)));
        let is_listed = |name: &Nspace| jobs().any(|(_, job)| matches(name.as_str(), job.as_str()));
        let all_listed = self.missing.iter().all(is_listed);
        let is_over = match self.wait {
            Some(wait) => wait.is_over(),
            None if all_listed || engines.iter().any(|engine| engine.jobs.is_empty()) => {
                self.began.elapsed() >= JOB_WAIT
            }
            None => true,
        };
        if let Some(name) = self.missing.first().filter(|_| is_over) {
            let reason = not_found(name, listed(jobs().map(|(_, job)| job)));
            if self.known.is_empty() {
                return Err(Failure::Usage(reason));
            }
            print_message(format_args!("{reason}"));
            self.failed = self.failed.saturating_add(self.missing.len());
            self.pulled = self.pulled.saturating_add(self.missing.len());
            self.missing.clear();
        }
        // Without --wait, nothing is pulled if a job is missing.
        if self.wait.is_none() && !all_listed {
            return Ok(());
        }
        let is_first = self.known.is_empty();
        self.known.retain(|(path, name), known| {
            known.next.is_none() || jobs().any(|(engine, job)| engine.path == *path && job == name)
        });
        for (engine, job) in jobs() {
            let link = (engine.path.clone(), job.clone());
            let is_due = self
                .known
                .get(&link)
                .is_none_or(|known| known.next.is_some_and(|next| next <= Instant::now()));
            if is_due && self.names.iter().any(|name| matches(name.as_str(), job.as_str())) {
                self.open(link, is_first)?;
            }
        }
        Ok(())
    }

    /// Returns this user's engines.
    fn engines(&self) -> Result<Vec<Listed>, Failure> {
        let directory = self.args.engine.rendezvous_dir.as_deref();
        let mut engines = list(directory).map_err(|error| Failure::Usage(error.message(&OPTIONS)))?;
        if let Some(own) = own_directory().filter(|_| directory.is_none()) {
            engines.extend(list(Some(&own)).unwrap_or_default());
        }
        let pid = self.args.engine.pid;
        engines.retain(|engine| {
            engine.is_live && engine.level == Level::Session && pid.is_none_or(|pid| engine.pid == Some(pid))
        });
        Ok(engines)
    }

    /// Pulls a job, unless it has not begun, or this run was pulled before.
    fn open(&mut self, link: JobLink, is_first: bool) -> Result<(), Failure> {
        let SeveralPulls { args, outputs, later, known, .. } = self;
        let part = if is_first { &args.part } else { &*later };
        let before = known.get(&link).map(|known| known.run);
        let (mut engine, mut jobs) = (0, None);
        let attached = outputs.attach(|parts| {
            let selections = pulled_by(args, parts);
            let target = Target::Server(link.0.clone());
            let search = Search { target, ..Search::default() };
            let count = selections.iter().flatten().count();
            let tools = Tool::find_several(&search, "iof pull", count);
            let mut tools = tools.map_err(|error| failed(error, &search))?;
            let first = tools.first_mut();
            engine = first.as_ref().map_or(0, |tool| tool.engine_pid());
            let mut found = first.map_or(Ok(Vec::new()), query_jobs).map_err(Failure::running)?;
            found.retain(|job| job.nspace == link.1 && Some(job.run) != before);
            // Without selected streams there is nothing to wait for.
            let is_there = count == 0 || !found.is_empty();
            let (tools, _) = register(args, part, None, &found, (tools, selections))?;
            jobs = Some(found).filter(|_| is_there);
            Ok(tools)
        });
        let mut attached = match attached {
            // The engine has ended meanwhile.
            Err(Failure::Running(_)) if connect(&link.0).is_err() => return Ok(()),
            attached => attached?,
        };
        let next = Instant::now().checked_add(NEXT_RUN_INTERVAL);
        let Some(jobs) = jobs else {
            self.known.entry(link).and_modify(|known| known.next = next);
            return Ok(());
        };
        attached.set_runs(&jobs);
        let outputs = attached.write_and_report(self.pulled, &self.reports)?;
        let next = next.filter(|_| outputs == 0);
        self.known.insert(link.clone(), Known { run: jobs.first().map_or(0, |job| job.run), next });
        self.missing.retain(|name| !matches(name.as_str(), link.1.as_str()));
        if outputs > 0 {
            let report = PrintReport::default();
            self.active.insert(self.pulled, ActivePull { link, engine, outputs, report });
        }
        self.pulled = self.pulled.saturating_add(1);
        Ok(())
    }

    /// Notes that an output of a job is written.
    fn written(&mut self, id: usize, report: PrintReport) {
        let Some(pull) = self.active.get_mut(&id) else { return };
        add_losses(&mut pull.report, report);
        pull.outputs = pull.outputs.saturating_sub(1);
        if pull.outputs > 0 {
            return;
        }
        let Some(ActivePull { link, engine, report, .. }) = self.active.remove(&id) else { return };
        if let Err(reason) = check(engine, &report) {
            print_message(format_args!("job {}: {reason}", link.1));
            self.failed = self.failed.saturating_add(1);
        }
        let next = Instant::now().checked_add(NEXT_RUN_INTERVAL);
        self.known.entry(link).and_modify(|known| known.next = next);
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
    let (mut pattern, mut name) = (pattern.chars(), name.chars());
    // What is left behind the last `*`, and behind the text that it stands for.
    let mut star: Option<(Chars<'_>, Chars<'_>)> = None;
    loop {
        let (rest, wanted) = (name.clone(), pattern.next());
        if wanted == Some('*') {
            star = Some((pattern.clone(), rest));
            continue;
        }
        match (wanted, name.next()) {
            (None, None) => return true,
            (Some(wanted), Some(found)) if wanted == '?' || wanted == found => continue,
            _ => {}
        }
        // The last `*` stands for one character more.
        let Some((behind, text)) = star.as_mut().filter(|(_, text)| !text.as_str().is_empty()) else {
            return false;
        };
        text.next();
        (pattern, name) = (behind.clone(), text.clone());
    }
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
    }
}
