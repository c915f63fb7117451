//! `iof pull`: another reader of a running job's output.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::unbounded;
use iof_output::PrintReport;
use iof_proto::limits::JOB_WAIT;
use iof_proto::{Channels, Nspace, Proc, Rank};
use iof_tool::{Pull, RequestError, Tool};

use crate::Failure;
use crate::args::{PullArgs, Ranks};
use crate::attach::{Name, attach_several, namespaces};
use crate::output::{Part, with_job};

/// How often an engine without a job is asked for one.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// Writes the output of a running job to stdout and stderr, or to files, until it is complete.
pub fn pull(args: &PullArgs) -> Result<(), Failure> {
    let outputs = args.output.prepare(None)?;
    if both(&args.rank, args.output.ranks.as_ref()).is_empty() {
        return Err(Failure::usage(
            "--ranks shows none of the ranks that --rank pulls: leave one of them out",
        ));
    }
    let mut engine = None;
    let writers = outputs.start(None, |parts| {
        let tools = open(args, parts)?;
        engine = tools.iter().flatten().next().map(Tool::engine_pid);
        Ok(tools)
    })?;
    let (done, received) = unbounded();
    for writer in writers {
        let done = done.clone();
        writer.watch(move |report| drop(done.send(report)))?;
    }
    drop(done);
    let mut all = PrintReport::default();
    // Whichever fails first ends all.
    for report in received {
        let report = report?;
        all.unfinished = all.unfinished.saturating_add(report.unfinished);
        all.unfinished_bytes = all.unfinished_bytes.saturating_add(report.unfinished_bytes);
        all.misses_streams |= report.misses_streams;
    }
    let PrintReport { unfinished, unfinished_bytes, misses_streams, .. } = all;
    let gone = format!("the engine (pid {}) went away", engine.unwrap_or_default());
    if unfinished > 0 {
        return Err(Failure::running(format!(
            "{gone} before {unfinished} of its streams were complete: what they brought after their first \
             {unfinished_bytes} bytes is missing"
        )));
    }
    if misses_streams {
        return Err(Failure::running(format!(
            "{gone} before it had announced all streams: some are missing"
        )));
    }
    Ok(())
}

/// Tools of one engine that pull what the user wants of each part, if that is anything.
fn open(args: &PullArgs, parts: &[Part<'_>]) -> Result<Vec<Option<Tool>>, Failure> {
    let wanted: Vec<Option<(Channels, Vec<Rank>)>> = parts.iter().map(|part| wanted(args, part)).collect();
    let count = wanted.iter().flatten().count();
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut tools = attach_several(&args.engine, &Name::Pull, count)?;
    let Some(first) = tools.first_mut() else { return Ok(Vec::new()) };
    let jobs = wait_for_jobs(first, args.engine.nspace.as_ref())?;
    let mut tools = tools.into_iter();
    let mut open = |(channels, ranks): (Channels, Vec<Rank>)| {
        let Some(mut tool) = tools.next() else { return Ok(None) };
        let of_job = |nspace: &Nspace| -> Vec<Proc> {
            ranks.iter().map(|rank| Proc { nspace: nspace.clone(), rank: *rank }).collect()
        };
        let procs = jobs.iter().flat_map(of_job).collect();
        let request = Pull { backlog: !args.no_backlog, ..Pull::new(procs, channels) };
        tool.pull(&request).map_err(|error| match error {
            RequestError::Denied(failure) => Failure::usage(failure.reason),
            RequestError::Lost(lost) => Failure::running(lost),
            error => Failure::usage(error),
        })?;
        Ok(Some(tool))
    };
    wanted.into_iter().map(|wanted| wanted.map_or(Ok(None), &mut open)).collect()
}

/// What the user wants of `part`, if that is anything.
fn wanted(args: &PullArgs, part: &Part<'_>) -> Option<(Channels, Vec<Rank>)> {
    let (channels, ranks) = (args.channel & part.channels, both(&args.rank, part.ranks));
    (!channels.is_empty() && !ranks.is_empty()).then_some((channels, ranks))
}

/// Returns the names of the engine's jobs, or the one that the user named; waits for one for
/// [`JOB_WAIT`] at most.
fn wait_for_jobs(tool: &mut Tool, named: Option<&Nspace>) -> Result<Vec<Nspace>, Failure> {
    let began = Instant::now();
    loop {
        let mut jobs = namespaces(tool)?;
        // An engine may have other jobs than the one that was asked for.
        jobs.retain(|job| named.is_none_or(|named| named == job));
        if !jobs.is_empty() {
            return Ok(jobs);
        }
        if began.elapsed() >= JOB_WAIT {
            let seconds = JOB_WAIT.as_secs();
            return Err(Failure::running(format!(
                "the engine still has no job after {seconds} s: try again"
            )));
        }
        thread::sleep(ASK_AGAIN);
    }
}

/// Those of `pulled` that are in `shown`, too.
fn both(pulled: &Ranks, shown: Option<&Ranks>) -> Vec<Rank> {
    let all = [Rank::WILDCARD];
    match shown {
        Some(shown) if shown.0 != all && pulled.0 == all => with_job(&shown.0),
        Some(shown) if shown.0 != all => {
            pulled.0.iter().copied().filter(|rank| shown.0.binary_search(rank).is_ok()).collect()
        }
        _ => pulled.0.clone(),
    }
}
