//! `iof pull`: writes the output of a running job, as one more reader of it.

use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use crossbeam::channel::unbounded;
use iof_output::PrintReport;
use iof_proto::limits::JOB_WAIT;
use iof_proto::query::JobInfo;
use iof_proto::{Channels, Nspace, Proc, Rank};
use iof_tool::{Pull, RequestError, Tool};

use crate::commands::attach::{JobWait, POLL_INTERVAL, attach_several, query_jobs};
use crate::commands::pull_several::{is_pattern, pull_several};
use crate::commands::resume::Resume;
use crate::error::Failure;
use crate::options::engine::EngineArgs;
use crate::options::position::PositionArgs;
use crate::options::values::{CHANNELS, Ranks, duration, ranks};
use crate::outputs::output::{OpenMode, OutputArgs, Outputs, WrittenOutputs, with_job};
use crate::outputs::printers::OutputTarget;

#[derive(Args)]
pub struct PullArgs {
    /// Jobs to pull, by name or pattern such as 'train-*'
    ///
    /// Of several jobs, also those are pulled that begin while others run, and each line is tagged with
    /// its job. The command ends when all have ended. * stands for any text, ? for a character.
    #[arg(value_name = "JOB", conflicts_with_all = ["nspace", "server", "system", "session"])]
    jobs: Vec<Nspace>,

    #[command(flatten)]
    pub engine: EngineArgs,

    /// Pull all jobs of this user on this node
    #[arg(long, conflicts_with_all = ["jobs", "nspace", "server", "system", "session"])]
    all: bool,

    /// After the end of a job, wait for its next run
    ///
    /// With --wait=DURATION, for this time, otherwise without limit.
    #[arg(long, conflicts_with = "no_follow")]
    pub persistent: bool,

    /// Wait for a job that begins later
    ///
    /// Without this option, a job that does not exist is an error. With a time, that is so after it. A
    /// job that ends within a few milliseconds may be missed.
    #[arg(long, value_name = "DURATION", value_parser = duration, num_args = 0..=1, require_equals = true)]
    pub wait: Option<Option<Duration>>,

    /// Pull these ranks, such as 0,3-5
    ///
    /// Other ranks are neither shown nor written to files. In contrast, --ranks limits only what is
    /// shown.
    #[arg(long, value_name = "LIST|all", default_value = "all", value_parser = ranks, allow_negative_numbers = true)]
    pub rank: Ranks,

    /// Pull these channels, such as stdout,stderr
    ///
    /// Besides these there is stddiag, PMIx's channel for diagnostics. By default all are pulled.
    #[arg(long, value_name = "LIST", value_parser = CHANNELS, hide_possible_values = true)]
    pub channel: Option<Channels>,

    #[command(flatten)]
    pub part: PositionArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Writes the output of running jobs to stdout and stderr, or to files. Blocks until the output is
/// complete.
pub fn pull(args: &PullArgs) -> Result<(), Failure> {
    let mut outputs = args.output.prepare(None, WrittenOutputs::All)?;
    if common(&args.rank, args.output.ranks.as_ref()).is_empty() {
        return Err(Failure::usage("--ranks and --rank have no rank in common: drop one of the two options"));
    }
    let names = args.names()?;
    if args.is_several(&names) || args.persistent {
        args.check_several(&outputs)?;
        if args.is_several(&names) {
            outputs.tag_jobs();
        }
        return pull_several(args, outputs, names);
    }
    let resume = args.part.resume.as_deref().map(Resume::read).transpose()?;
    let (mut engine, mut pulled, mut is_one_rank) = (None, Vec::new(), false);
    let mut attached = outputs.attach(|parts| {
        let tools;
        (tools, pulled, is_one_rank) = open(args, names.first(), resume.as_ref(), parts)?;
        engine = tools.iter().flatten().next().map(Tool::engine_pid);
        Ok(tools)
    })?;
    if is_one_rank {
        attached.expect_one_rank();
    }
    attached.set_runs(&pulled);
    let (done, reports) = unbounded();
    attached.write_and_report(0, &done)?;
    drop(done);
    let mut all = PrintReport::default();
    // The first failure ends the command.
    reports.into_iter().try_for_each(|(_, report)| report.map(|report| add_losses(&mut all, report)))?;
    check(engine.unwrap_or_default(), &all).map_err(Failure::Running)
}

impl PullArgs {
    /// Returns the names and patterns of the jobs that are selected by name.
    fn names(&self) -> Result<Vec<Nspace>, Failure> {
        if self.all {
            return Ok(vec![Nspace::new("*").map_err(Failure::usage)?]);
        }
        let mut names: Vec<Nspace> = self.jobs.iter().chain(&self.engine.nspace).cloned().collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() && self.persistent {
            return Err(Failure::usage("--persistent needs the name of a job, or --all"));
        }
        Ok(names)
    }

    /// Returns whether these names stand for several jobs.
    fn is_several(&self, names: &[Nspace]) -> bool {
        names.len() > 1 || self.engine.nspace.is_none() && names.iter().any(is_pattern)
    }

    /// Refuses options that apply to one run of one job.
    fn check_several(&self, outputs: &Outputs<'_>) -> Result<(), Failure> {
        let PositionArgs { from, resume, .. } = &self.part;
        let one = from.map(|_| "--from").or(resume.as_ref().map(|_| "--resume"));
        if let Some(option) = one {
            return Err(Failure::Usage(format!("{option} applies to one run of one job: name it alone")));
        }
        let overwrites = self.persistent && self.output.open_mode == OpenMode::Truncate;
        if outputs.has_files() && (overwrites || !outputs.names_job()) {
            return Err(Failure::usage(
                "files of several jobs or runs would replace each other: give them names with the job, such as \
                 -o out.%j, and with --persistent also --open-mode append",
            ));
        }
        Ok(())
    }
}

/// Adds what one output lacks to what the others lack.
pub fn add_losses(all: &mut PrintReport, report: PrintReport) {
    all.broken = all.broken.saturating_add(report.broken);
    all.broken_bytes = all.broken_bytes.saturating_add(report.broken_bytes);
    all.unfinished = all.unfinished.saturating_add(report.unfinished);
    all.unfinished_bytes = all.unfinished_bytes.saturating_add(report.unfinished_bytes);
    all.misses_streams |= report.misses_streams;
}

/// Returns an error if the output of the engine with this pid is incomplete.
pub fn check(engine: u32, report: &PrintReport) -> Result<(), String> {
    let PrintReport { broken, broken_bytes, unfinished, unfinished_bytes, misses_streams, .. } = report;
    let lost = format!("lost the engine (pid {engine})");
    if *unfinished > 0 {
        return Err(format!(
            "{lost} before {unfinished} of its streams were complete: their output after the first {unfinished_bytes} \
             bytes (in total) is missing"
        ));
    }
    if *misses_streams {
        return Err(format!("{lost} before it had announced all streams: some streams are missing"));
    }
    if *broken > 0 {
        let streams = if *broken == 1 { "1 stream is".into() } else { format!("{broken} streams are") };
        return Err(format!(
            "{streams} broken, because nodes were lost or did not answer: at least {broken_bytes} bytes at their ends \
             are missing"
        ));
    }
    Ok(())
}

/// The channels and ranks that are pulled for each output; `None` if there are none.
type Selections = Vec<Option<(Channels, Vec<Rank>)>>;

/// Returns what the options select for the outputs.
pub fn pulled_by(args: &PullArgs, parts: &[OutputTarget<'_>]) -> Selections {
    parts.iter().map(|part| select(args, part)).collect()
}

/// A tool for each part, attached to one engine, that pulls the selected streams of the part, `None` for
/// a part without selected streams; the jobs that are pulled, and whether one rank writes all streams.
type Opened = (Vec<Option<Tool>>, Vec<JobInfo>, bool);

/// Attaches to one engine, and pulls the selected streams of its jobs.
fn open(
    args: &PullArgs,
    nspace: Option<&Nspace>,
    resume: Option<&Resume>,
    parts: &[OutputTarget<'_>],
) -> Result<Opened, Failure> {
    let selections = pulled_by(args, parts);
    if resume.is_some() && !parts.iter().all(OutputTarget::may_be_resumed) {
        return Err(Failure::usage(
            "--resume needs --output json without files: only objects tell where to resume",
        ));
    }
    let count = selections.iter().flatten().count();
    let engine = EngineArgs { nspace: nspace.cloned(), ..args.engine.clone() };
    let wait = args.wait.map(JobWait::begin);
    let mut tools = if count > 0 { attach_several(&engine, "iof pull", count, wait)? } else { Vec::new() };
    let Some(first) = tools.first_mut() else { return Ok(Default::default()) };
    let jobs = wait_for_jobs(first, nspace, wait)?;
    let (tools, is_one_rank) = register(args, &args.part, resume, &jobs, (tools, selections))?;
    Ok((tools, jobs, is_one_rank))
}

/// Registers for the selected streams of `jobs`. Returns the tools of [`Opened`], and whether one rank
/// writes all streams.
pub fn register(
    args: &PullArgs,
    part: &PositionArgs,
    resume: Option<&Resume>,
    jobs: &[JobInfo],
    (mut tools, selections): (Vec<Tool>, Selections),
) -> Result<(Vec<Option<Tool>>, bool), Failure> {
    if jobs.is_empty() {
        return Ok((Vec::new(), false));
    }
    let one_rank = |ranks: &[Rank]| matches!(ranks, [rank] if *rank != Rank::WILDCARD);
    let is_one_rank = jobs.len() == 1
        && (jobs.iter().all(|job| job.procs == 1)
            || selections.iter().flatten().all(|(_, ranks)| one_rank(ranks)));
    let channels = args.channel.unwrap_or(Channels::OUTPUTS).outputs().count();
    if part.from.is_some() && !(is_one_rank && channels == 1) {
        return Err(Failure::usage(
            "--from applies to one stream: name its job, and its rank and channel by --rank and --channel",
        ));
    }
    let mut registrations = Vec::new();
    for (tool, (channels, ranks)) in tools.iter_mut().zip(selections.iter().flatten()) {
        let procs_in = |nspace: &Nspace| -> Vec<Proc> {
            ranks.iter().map(|rank| Proc { nspace: nspace.clone(), rank: *rank }).collect()
        };
        let procs = jobs.iter().map(|job| &job.nspace).flat_map(procs_in).collect();
        let pull = Pull { until: part.until, ..Pull::new(procs, *channels).from(part.position()) };
        registrations.push(tool.pull(&pull).map_err(refused)?.handler);
    }
    if part.no_follow || part.lines().is_some() || resume.is_some() {
        tools.iter_mut().try_for_each(Tool::wait_for_cached).map_err(Failure::running)?;
    }
    part.lines().into_iter().for_each(|lines| lines.apply(&mut tools));
    if let Some(resume) = resume {
        resume.check(jobs)?;
        // Another job may have taken a name since. What is in memory of an engine that has ended is written.
        if let Some(jobs) = tools.first_mut().and_then(|tool| query_jobs(tool).ok()) {
            resume.check(&jobs)?;
        }
        resume.apply(&mut tools)?;
    }
    for (tool, registration) in tools.iter_mut().zip(registrations).filter(|_| part.no_follow) {
        match tool.deregister(registration) {
            // What is in memory is still written.
            Ok(()) | Err(RequestError::Lost(_)) => {}
            Err(error) => return Err(refused(error)),
        }
    }
    let mut tools = tools.into_iter();
    let opened = selections.into_iter().map(|selection| selection.and_then(|_| tools.next()));
    Ok((opened.collect(), is_one_rank))
}

/// Returns the reason why streams cannot be pulled.
fn refused(error: RequestError) -> Failure {
    match error {
        RequestError::Denied(failure) => Failure::usage(failure.reason),
        RequestError::Lost(lost) => Failure::running(lost),
        error => Failure::usage(error),
    }
}

/// Returns the channels and ranks of `part` that the options select, or `None` if there are none.
fn select(args: &PullArgs, part: &OutputTarget<'_>) -> Option<(Channels, Vec<Rank>)> {
    let (channels, ranks) =
        (args.channel.unwrap_or(Channels::OUTPUTS) & part.channels, common(&args.rank, part.ranks));
    (!channels.is_empty() && !ranks.is_empty()).then_some((channels, ranks))
}

/// Returns the engine's jobs, or only `nspace` if it is given. Waits up to
/// [`JOB_WAIT`] for a job, or for as long as `wait`.
fn wait_for_jobs(
    tool: &mut Tool,
    nspace: Option<&Nspace>,
    wait: Option<JobWait>,
) -> Result<Vec<JobInfo>, Failure> {
    let start = Instant::now();
    let wait = wait.unwrap_or_else(|| JobWait::begin(Some(JOB_WAIT)));
    loop {
        let mut jobs = query_jobs(tool).map_err(Failure::running)?;
        jobs.retain(|job| nspace.is_none_or(|nspace| *nspace == job.nspace));
        if !jobs.is_empty() {
            return Ok(jobs);
        }
        if wait.is_over() {
            let time = start.elapsed().as_secs();
            let job = nspace.map(|nspace| format!(" {nspace}")).unwrap_or_default();
            return Err(Failure::running(format!(
                "the engine still has no job{job} after {time} s: try again"
            )));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the ranks that are common in `pulled` and in `shown`.
fn common(pulled: &Ranks, shown: Option<&Ranks>) -> Vec<Rank> {
    let all = [Rank::WILDCARD];
    match shown {
        Some(shown) if shown.0 != all && pulled.0 == all => with_job(&shown.0),
        Some(shown) if shown.0 != all => {
            pulled.0.iter().copied().filter(|rank| shown.0.binary_search(rank).is_ok()).collect()
        }
        _ => pulled.0.clone(),
    }
}
