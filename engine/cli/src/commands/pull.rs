//! `iof pull`: writes the output of a running job, as one more reader of it.

use std::thread;
use std::time::Instant;

use clap::Args;
use iof_output::PrintReport;
use iof_proto::limits::JOB_WAIT;
use iof_proto::query::JobInfo;
use iof_proto::{Channels, Nspace, Proc, Rank};
use iof_tool::{Pull, RequestError, Tool};

use crate::commands::attach::{POLL_INTERVAL, attach_several, query_jobs};
use crate::error::Failure;
use crate::options::engine::JobEngineArgs;
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

    /// Skip output that is already cached
    #[arg(long)]
    pub no_backlog: bool,

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
    let mut engine = None;
    let mut is_one_rank = false;
    let mut attached = outputs.attach(|parts| {
        let tools;
        (tools, is_one_rank) = open(args, parts)?;
        engine = tools.iter().flatten().next().map(Tool::engine_pid);
        Ok(tools)
    })?;
    if is_one_rank {
        attached.expect_one_rank();
    }
    let mut all = PrintReport::default();
    // The first failure ends the command.
    for report in attached.write()? {
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
            "{streams} broken, because the nodes of their ranks were lost: at least {broken_bytes} bytes at their ends \
             are missing"
        )));
    }
    Ok(())
}

/// Returns a tool for each part, attached to one engine, that pulls the selected streams of the
/// part; `None` for a part without selected streams. Also returns whether one rank writes them.
fn open(args: &PullArgs, parts: &[OutputTarget<'_>]) -> Result<(Vec<Option<Tool>>, bool), Failure> {
    let selections: Vec<Option<(Channels, Vec<Rank>)>> =
        parts.iter().map(|part| select(args, part)).collect();
    let count = selections.iter().flatten().count();
    if count == 0 {
        return Ok((Vec::new(), false));
    }
    let engine = args.engine.select();
    let mut tools = attach_several(&engine, "iof pull", count)?;
    let Some(first) = tools.first_mut() else { return Ok((Vec::new(), false)) };
    let jobs = wait_for_jobs(first, engine.nspace.as_ref())?;
    let one_rank = |ranks: &[Rank]| matches!(ranks, [rank] if *rank != Rank::WILDCARD);
    let is_one_rank = jobs.len() == 1
        && (jobs.iter().all(|job| job.procs == 1)
            || selections.iter().flatten().all(|(_, ranks)| one_rank(ranks)));
    let mut tools = tools.into_iter();
    let mut open = |(channels, ranks): (Channels, Vec<Rank>)| {
        let Some(mut tool) = tools.next() else { return Ok(None) };
        let procs_in = |nspace: &Nspace| -> Vec<Proc> {
            ranks.iter().map(|rank| Proc { nspace: nspace.clone(), rank: *rank }).collect()
        };
        let procs = jobs.iter().map(|job| &job.nspace).flat_map(procs_in).collect();
        let request = Pull { backlog: !args.no_backlog, ..Pull::new(procs, channels) };
        tool.pull(&request).map_err(|error| match error {
            RequestError::Denied(failure) => Failure::usage(failure.reason),
            RequestError::Lost(lost) => Failure::running(lost),
            error => Failure::usage(error),
        })?;
        Ok(Some(tool))
    };
    let opened: Result<_, _> =
        selections.into_iter().map(|selection| selection.map_or(Ok(None), &mut open)).collect();
    Ok((opened?, is_one_rank))
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
