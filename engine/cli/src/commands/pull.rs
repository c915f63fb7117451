//! `iof pull`: writes the output of a running job, as one more reader of it.

use std::thread;
use std::time::Instant;

use clap::Args;
use crossbeam::channel::unbounded;
use iof_output::PrintReport;
use iof_proto::limits::JOB_WAIT;
use iof_proto::query::JobInfo;
use iof_proto::{Channels, Nspace, Proc, Rank};
use iof_tool::{Pull, RequestError, Tool};

use crate::commands::attach::{POLL_INTERVAL, attach_several, query_jobs};
use crate::commands::resume::Resume;
use crate::error::Failure;
use crate::options::engine::JobEngineArgs;
use crate::options::position::PositionArgs;
use crate::options::values::{CHANNELS, Ranks, ranks};
use crate::outputs::output::{OutputArgs, WrittenOutputs, with_job};
use crate::outputs::printers::OutputTarget;

#[derive(Args)]
pub struct PullArgs {
    #[command(flatten)]
    pub engine: JobEngineArgs,

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

/// WrittenOutputs the output of a running job to stdout and stderr, or to files. Blocks until the output is
/// complete.
pub fn pull(args: &PullArgs) -> Result<(), Failure> {
    let outputs = args.output.prepare(None, WrittenOutputs::All)?;
    if common(&args.rank, args.output.ranks.as_ref()).is_empty() {
        return Err(Failure::usage("--ranks and --rank have no rank in common: drop one of the two options"));
    }
    let resume = args.part.resume.as_deref().map(Resume::read).transpose()?;
    let (mut engine, mut pulled) = (None, PulledJobs::default());
    let mut attached = outputs.attach(|parts| {
        let tools;
        (tools, pulled) = open(args, resume.as_ref(), parts)?;
        engine = tools.iter().flatten().next().map(Tool::engine_pid);
        Ok(tools)
    })?;
    if pulled.is_one_rank {
        attached.expect_one_rank();
    }
    attached.set_runs(&pulled.jobs);
    let (mut all, (done, reports)) = (PrintReport::default(), unbounded());
    for writer in attached.write()? {
        let done = done.clone();
        writer.watch(move |report| drop(done.send(report)))?;
    }
    drop(done);
    // The first failure ends the command.
    for report in reports {
        let report = report?;
        all.broken = all.broken.saturating_add(report.broken);
        all.broken_bytes = all.broken_bytes.saturating_add(report.broken_bytes);
        all.unfinished = all.unfinished.saturating_add(report.unfinished);
        all.unfinished_bytes = all.unfinished_bytes.saturating_add(report.unfinished_bytes);
        all.misses_streams |= report.misses_streams;
    }
    let PrintReport { broken, broken_bytes, unfinished, unfinished_bytes, misses_streams, .. } = all;
    let lost = format!("lost the engine (pid {})", engine.unwrap_or_default());
    if unfinished > 0 {
        return Err(Failure::running(format!(
            "{lost} before {unfinished} of its streams were complete: their output after the first {unfinished_bytes} \
             bytes (in total) is missing"
        )));
    }
    if misses_streams {
        return Err(Failure::running(format!(
            "{lost} before it had announced all streams: some streams are missing"
        )));
    }
    if broken > 0 {
        let streams = if broken == 1 { "1 stream is".into() } else { format!("{broken} streams are") };
        return Err(Failure::running(format!(
            "{streams} broken, because nodes were lost or did not answer: at least {broken_bytes} bytes at their ends \
             are missing"
        )));
    }
    Ok(())
}

/// The jobs that are pulled.
#[derive(Default)]
struct PulledJobs {
    jobs: Vec<JobInfo>,
    /// One rank writes all streams.
    is_one_rank: bool,
}

/// Returns a tool for each part, attached to one engine, that pulls the selected streams of the
/// part; `None` for a part without selected streams.
fn open(
    args: &PullArgs,
    resume: Option<&Resume>,
    parts: &[OutputTarget<'_>],
) -> Result<(Vec<Option<Tool>>, PulledJobs), Failure> {
    let selections: Vec<Option<(Channels, Vec<Rank>)>> =
        parts.iter().map(|part| select(args, part)).collect();
    if resume.is_some() && !parts.iter().all(OutputTarget::may_be_resumed) {
        return Err(Failure::usage(
            "--resume needs --output json without files: only objects tell where to resume",
        ));
    }
    let count = selections.iter().flatten().count();
    let engine = args.engine.select();
    let mut tools = if count > 0 { attach_several(&engine, "iof pull", count)? } else { Vec::new() };
    let Some(first) = tools.first_mut() else { return Ok((Vec::new(), PulledJobs::default())) };
    let jobs = wait_for_jobs(first, engine.nspace.as_ref())?;
    let one_rank = |ranks: &[Rank]| matches!(ranks, [rank] if *rank != Rank::WILDCARD);
    let is_one_rank = jobs.len() == 1
        && (jobs.iter().all(|job| job.procs == 1)
            || selections.iter().flatten().all(|(_, ranks)| one_rank(ranks)));
    let channels = args.channel.unwrap_or(Channels::OUTPUTS).outputs().count();
    if args.part.from.is_some() && !(is_one_rank && channels == 1) {
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
        let pull = Pull { until: args.part.until, ..Pull::new(procs, *channels).from(args.part.position()) };
        registrations.push(tool.pull(&pull).map_err(refused)?.handler);
    }
    if args.part.no_follow || args.part.lines().is_some() || resume.is_some() {
        tools.iter_mut().try_for_each(Tool::wait_for_cached).map_err(Failure::running)?;
    }
    args.part.lines().into_iter().for_each(|lines| lines.apply(&mut tools));
    if let Some(resume) = resume {
        resume.check(&jobs)?;
        // Another job may have taken a name since. What is in memory of an engine that has ended is written.
        if let Some(jobs) = tools.first_mut().and_then(|tool| query_jobs(tool).ok()) {
            resume.check(&jobs)?;
        }
        resume.apply(&mut tools)?;
    }
    for (tool, registration) in tools.iter_mut().zip(registrations).filter(|_| args.part.no_follow) {
        match tool.deregister(registration) {
            // What is in memory is still written.
            Ok(()) | Err(RequestError::Lost(_)) => {}
            Err(error) => return Err(refused(error)),
        }
    }
    let mut tools = tools.into_iter();
    let opened = selections.into_iter().map(|selection| selection.and_then(|_| tools.next()));
    Ok((opened.collect(), PulledJobs { jobs, is_one_rank }))
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
/// [`JOB_WAIT`] for a job.
fn wait_for_jobs(tool: &mut Tool, nspace: Option<&Nspace>) -> Result<Vec<JobInfo>, Failure> {
    let start = Instant::now();
    loop {
        let mut jobs = query_jobs(tool).map_err(Failure::running)?;
        jobs.retain(|job| nspace.is_none_or(|nspace| *nspace == job.nspace));
        if !jobs.is_empty() {
            return Ok(jobs);
        }
        if start.elapsed() >= JOB_WAIT {
            let seconds = JOB_WAIT.as_secs();
            let job = nspace.map(|nspace| format!(" {nspace}")).unwrap_or_default();
            return Err(Failure::running(format!(
                "the engine still has no job{job} after {seconds} s: try again"
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
