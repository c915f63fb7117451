//! The streams of an engine that a pull selects, and what their outputs lack at the end.

use iof_output::PrintReport;
use iof_proto::query::JobInfo;
use iof_proto::{Channels, Nspace, Proc, Rank};
use iof_tool::{Pull, RequestError, Tool};

use crate::commands::attach::query_jobs;
use crate::commands::pull_args::PullArgs;
use crate::commands::resume::Resume;
use crate::error::Failure;
use crate::options::position::PositionArgs;
use crate::options::values::Ranks;
use crate::outputs::output::with_job;
use crate::outputs::printers::OutputTarget;
use crate::terminal::message::has_objects;

/// Adds what one output lacks to what the others lack.
pub fn add_losses(all: &mut PrintReport, report: PrintReport) {
    all.broken = all.broken.saturating_add(report.broken);
    all.broken_bytes = all.broken_bytes.saturating_add(report.broken_bytes);
    all.unfinished = all.unfinished.saturating_add(report.unfinished);
    all.unfinished_bytes = all.unfinished_bytes.saturating_add(report.unfinished_bytes);
    all.ends_early = all.ends_early.or(report.ends_early);
    all.misses_streams |= report.misses_streams;
    all.exit_codes.extend(report.exit_codes);
}

/// Returns an error if the output of the engine with this pid is incomplete.
pub fn check(engine: u32, report: &PrintReport) -> Result<(), String> {
    let PrintReport {
        broken, broken_bytes, ends_early, unfinished, unfinished_bytes, misses_streams, ..
    } = report;
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
            "{streams} broken, because nodes were lost or did not answer, a rank could not be read, or a job was \
             ended before its output was read: at least {broken_bytes} bytes at their ends are missing"
        ));
    }
    if let Some((begin, end)) = ends_early {
        return Err(format!(
            "the stream has ended at byte {end}: it has no byte {begin}, at which its output was to begin"
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

/// Registers for the selected streams of `jobs`. Returns the tools of `Opened`, and whether one rank
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
        let reports_ranks = has_objects();
        let begins = resume.map(Resume::begins).unwrap_or_default();
        let pull = Pull::new(procs, *channels).from(part.position());
        let pull = Pull { begins, until: part.until, reports_ranks, ..pull };
        registrations.push(tool.pull(&pull).map_err(refused)?.handler);
    }
    if has_objects() && !part.no_follow && part.until.is_none() {
        // The object of the end of a job has its exit code.
        tools.iter_mut().for_each(Tool::wait_for_job_ends);
    }
    if part.is_empty() {
        return Ok((selections.iter().map(|_| None).collect(), is_one_rank));
    }
    if part.no_follow || part.lines().is_some() {
        tools.iter_mut().try_for_each(Tool::wait_for_cached).map_err(Failure::running)?;
    }
    part.lines().into_iter().for_each(|lines| lines.apply(&mut tools, part.no_follow));
    if let Some(resume) = resume {
        resume.check(jobs)?;
        // Another job may have taken a name since. What is in memory of an engine that has ended is written.
        if let Some(jobs) = tools.first_mut().and_then(|tool| query_jobs(tool).ok()) {
            resume.check(&jobs)?;
        }
        resume.cut()?;
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

/// Returns the ranks that are common in `pulled` and in `shown`.
pub fn common(pulled: &Ranks, shown: Option<&Ranks>) -> Vec<Rank> {
    let all = [Rank::WILDCARD];
    match shown {
        Some(shown) if shown.0 != all && pulled.0 == all => with_job(&shown.0),
        Some(shown) if shown.0 != all => {
            pulled.0.iter().copied().filter(|rank| shown.0.binary_search(rank).is_ok()).collect()
        }
        _ => pulled.0.clone(),
    }
}
