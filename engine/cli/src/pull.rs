//! `iof pull`: another reader of a running job's output.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;

use iof_proto::{Channel, Channels, Nspace, Proc};
use iof_tool::{Gap, Pull, RequestError, Sink, SinkError, SinkReport};

use nix::sys::signal::Signal;

use crate::args::PullArgs;
use crate::attach::{Name, attach, namespaces};
use crate::{Failure, say};

/// Writes the output of a running job to stdout and stderr until it is complete.
pub fn pull(args: &PullArgs) -> Result<(), Failure> {
    // One reader for each of our outputs, so that a slow one does not hold up the other.
    let out = start(args, Channels::STDOUT, io::stdout())?;
    let err = start(args, Channels::STDERR | Channels::STDDIAG, io::stderr())?;
    let mut unfinished = 0u64;
    for sink in [out, err].into_iter().flatten() {
        let report = finish(sink)?;
        unfinished = unfinished.saturating_add(report.unfinished);
    }
    if unfinished > 0 {
        return Err(Failure::running(format!(
            "the engine ended before {unfinished} of its streams were complete"
        )));
    }
    Ok(())
}

fn start(args: &PullArgs, channels: Channels, to: impl AsFd) -> Result<Option<Sink>, Failure> {
    let channels = args.channel & channels;
    if channels.is_empty() {
        return Ok(None);
    }
    let mut tool = attach(&args.engine, &Name::Pull)?;
    let mut procs = Vec::new();
    // An engine may have other jobs than the one that was asked for.
    let wanted = |nspace: &Nspace| args.engine.nspace.as_ref().is_none_or(|wanted| wanted == nspace);
    for nspace in namespaces(&mut tool)?.into_iter().filter(wanted) {
        procs.extend(args.rank.0.iter().map(|rank| Proc { nspace: nspace.clone(), rank: *rank }));
    }
    if procs.is_empty() {
        return Err(Failure::running("the engine has no job yet: try again"));
    }
    let request = Pull { backlog: !args.no_backlog, ..Pull::new(procs, channels) };
    tool.pull(&request).map_err(|error| match error {
        RequestError::Denied(failure) => Failure::usage(failure.reason),
        error => Failure::usage(error),
    })?;
    Sink::start(tool, to, report_gap).map(Some).map_err(Failure::running)
}

/// Says on stderr where how many bytes are missing.
pub fn report_gap(source: &Proc, channel: Channel, gap: Gap) {
    let Gap { offset, lost } = gap;
    say(format_args!("rank {} {channel}: {lost} bytes are missing at offset {offset}", source.rank));
}

/// Waits for a sink and puts its error into words.
pub fn finish(sink: Sink) -> Result<SinkReport, Failure> {
    sink.join().map_err(|error| match error {
        SinkError::Write(error) if error.kind() == ErrorKind::BrokenPipe => Failure::Signal(Signal::SIGPIPE),
        SinkError::Write(error) => Failure::running(format!("writing the output: {error}")),
        error => Failure::running(error),
    })
}
