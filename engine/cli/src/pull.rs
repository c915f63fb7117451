//! `iof pull`: another reader of a running job's output.

use crossbeam::channel::unbounded;
use iof_proto::{Channels, Nspace, Proc, Rank};
use iof_tool::{Pull, RequestError, Tool};

use crate::Failure;
use crate::args::{PullArgs, Ranks};
use crate::attach::{Name, attach, namespaces};
use crate::output::{Part, with_job};

/// Writes the output of a running job to stdout and stderr, or to files, until it is complete.
pub fn pull(args: &PullArgs) -> Result<(), Failure> {
    let outputs = args.output.prepare(None)?;
    if both(&args.rank, args.output.ranks.as_ref()).is_empty() {
        return Err(Failure::usage(
            "--ranks shows none of the ranks that --rank pulls: leave one of them out",
        ));
    }
    let writers = outputs.start(None, |part| open(args, &part))?;
    let (done, received) = unbounded();
    for writer in writers {
        let done = done.clone();
        writer.watch(move |report| drop(done.send(report)))?;
    }
    drop(done);
    let mut unfinished = 0u64;
    // Whichever fails first ends all.
    for report in received {
        unfinished = unfinished.saturating_add(report?.unfinished);
    }
    if unfinished > 0 {
        return Err(Failure::running(format!(
            "the engine ended before {unfinished} of its streams were complete"
        )));
    }
    Ok(())
}

/// A tool that pulls what the user wants of `part`, if that is anything.
fn open(args: &PullArgs, part: &Part<'_>) -> Result<Option<Tool>, Failure> {
    let channels: Channels = args.channel & part.channels;
    let ranks = both(&args.rank, part.ranks);
    if channels.is_empty() || ranks.is_empty() {
        return Ok(None);
    }
    let mut tool = attach(&args.engine, &Name::Pull)?;
    let mut procs = Vec::new();
    // An engine may have other jobs than the one that was asked for.
    let wanted = |nspace: &Nspace| args.engine.nspace.as_ref().is_none_or(|wanted| wanted == nspace);
    for nspace in namespaces(&mut tool)?.into_iter().filter(wanted) {
        procs.extend(ranks.iter().map(|rank| Proc { nspace: nspace.clone(), rank: *rank }));
    }
    if procs.is_empty() {
        return Err(Failure::running("the engine has no job yet: try again"));
    }
    let request = Pull { backlog: !args.no_backlog, ..Pull::new(procs, channels) };
    tool.pull(&request).map_err(|error| match error {
        RequestError::Denied(failure) => Failure::usage(failure.reason),
        error => Failure::usage(error),
    })?;
    Ok(Some(tool))
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
