//! `iof push`: pushes bytes into the stdin of ranks that was left open for it.

use std::fs::{File, Metadata};
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use iof_proto::directive::key;
use iof_proto::{
    Info, Nspace, PartialCause, PartialDelivery, Proc, PushReport, Rank, Skipped, SlowTarget, SlowTargets,
    Status,
};
use iof_tool::{Push, PushError, Pusher, RequestError};

use crate::commands::attach::{attach, namespaces};
use crate::error::Failure;
use crate::options::engine::EngineArgs;
use crate::options::values::{Ranks, ranks};
use crate::terminal::message::print_message;

/// The time between two updates of the progress bar.
const REDRAW: Duration = Duration::from_millis(100);
/// The number of ranks that one message lists.
const MAX_LISTED: usize = 16;

#[derive(Args)]
pub struct PushArgs {
    #[command(flatten)]
    engine: EngineArgs,

    /// Push to these ranks, such as 0,3-5
    #[arg(long, value_name = "LIST|all", default_value = "0", value_parser = ranks, allow_negative_numbers = true)]
    rank: Ranks,

    /// Keep stdin of the ranks open for the next push
    ///
    /// Without this option the ranks read end of file after the last byte.
    #[arg(long)]
    keep_open: bool,

    /// Cut off ranks that do not read
    ///
    /// When a rank has read nothing for a second, its stdin is closed, and the push continues
    /// without it. Without this option the push waits for the rank.
    #[arg(long)]
    drop: bool,

    /// Skip ranks whose stdin is not open
    ///
    /// Without this option, nothing is pushed if the stdin of one of the ranks is not open.
    #[arg(long)]
    partial: bool,

    /// File to push, or - for stdin [default: -]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Pushes a file or stdin. Blocks until the ranks have all bytes.
pub fn push(args: &PushArgs) -> Result<(), Failure> {
    let file = match args.file.as_deref() {
        Some(path) if path != Path::new("-") => open(path)?,
        _ => io::stdin().as_fd().try_clone_to_owned().map_err(Failure::running)?.into(),
    };
    let length = file.metadata().ok().filter(Metadata::is_file).map(|metadata| metadata.len());
    let bar = length.filter(|_| io::stderr().is_terminal()).map(bar);
    let mut tool = attach(&args.engine, "iof push")?;
    let nspace = one_job(namespaces(&mut tool)?, args)?;
    let targets = args.rank.0.iter().map(|rank| Proc { nspace: nspace.clone(), rank: *rank }).collect();
    let directives = [
        (key::PMIX_IOF_COMPLETE, !args.keep_open),
        (key::PMIX_IOF_DROP_NEWEST, args.drop),
        (key::IOF_PARTIAL, args.partial),
    ];
    let directives = directives.map(|(key, value)| Info::required(key, value)).into();
    let shared_bar = bar.clone();
    let on_wait = move |slow: &SlowTargets| match &shared_bar {
        Some(bar) => bar.suspend(|| report_wait(slow)),
        None => report_wait(slow),
    };
    let pusher = Pusher::start(tool, &Push { targets, directives }, file, on_wait).map_err(failure)?;
    for Skipped { target, reason } in &pusher.granted().skipped {
        print_message(format_args!("rank {} is skipped: {reason}", target.rank));
    }
    if let Some(bar) = bar {
        draw_until_finished(&pusher, &bar);
    }
    let PushReport { bytes, complete: _, partial } = pusher.join().map_err(Failure::running)?;
    if let [PartialDelivery { delivered: 0, cause: PartialCause::Refused(refused), .. }, ..] =
        partial.as_slice()
        && refused.status == Status::ERR_NOT_SUPPORTED
    {
        return Err(failure(RequestError::Denied(refused.clone()).into()));
    }
    for PartialDelivery { target, delivered, cause } in &partial {
        print_message(format_args!("rank {} got {delivered} of {bytes} bytes: it {cause}", target.rank));
    }
    match partial.len() {
        0 => Ok(()),
        1 => Err(Failure::running("one rank did not get all bytes")),
        count => Err(Failure::running(format!("{count} ranks did not get all bytes"))),
    }
}

/// Reports the ranks that a push waits for, and why.
pub fn report_wait(slow: &SlowTargets) {
    let causes = [(true, "it does not read its stdin"), (false, "another push to it is not finished")];
    for (stalled, cause) in causes {
        let waiting = slow.targets.iter().filter(|target| target.stalled == stalled);
        let mut ranks: Vec<Rank> = waiting.map(|SlowTarget { target, .. }| target.rank).collect();
        ranks.sort_unstable();
        let ranks: Vec<String> = ranks.iter().map(Rank::to_string).collect();
        let more = if ranks.len() > MAX_LISTED { " and others" } else { "" };
        if let Some(listed) = ranks.get(..ranks.len().min(MAX_LISTED)).filter(|ranks| !ranks.is_empty()) {
            print_message(format_args!("waiting for rank {}{more}: {cause}", listed.join(",")));
        }
    }
}

fn open(path: &Path) -> Result<File, Failure> {
    let opened = File::open(path).and_then(|file| {
        if file.metadata()?.is_dir() { Err(io::ErrorKind::IsADirectory.into()) } else { Ok(file) }
    });
    opened.map_err(|error| {
        // `iof pull`, top and kill take the name of a job at this place.
        let hint = match path.to_str().and_then(|text| Nspace::new(text).ok()) {
            Some(job) if error.kind() == io::ErrorKind::NotFound => {
                format!("; for a job, write --nspace {job}")
            }
            _ => String::new(),
        };
        Failure::usage(format!("{}: {error}{hint}", path.display()))
    })
}

/// Returns the job to push to: the selected one, or the engine's only job.
fn one_job(jobs: Vec<Nspace>, args: &PushArgs) -> Result<Nspace, Failure> {
    let wanted = |nspace: &Nspace| args.engine.nspace.as_ref().is_none_or(|wanted| wanted == nspace);
    let mut jobs: Vec<Nspace> = jobs.into_iter().filter(wanted).collect();
    match (jobs.pop(), jobs.is_empty()) {
        (Some(job), true) => Ok(job),
        (None, _) => Err(Failure::running("the engine has no job yet: try again")),
        (Some(last), false) => {
            let names: Vec<String> = jobs.iter().chain([&last]).map(Nspace::to_string).collect();
            Err(Failure::usage(format!(
                "the engine has several jobs ({}): select one with --nspace",
                names.join(", ")
            )))
        }
    }
}

/// Returns the failure for a push that could not be started, with a hint where an option helps.
fn failure(error: PushError) -> Failure {
    match error {
        // A temporary state of the rank.
        PushError::Request(RequestError::Denied(failure)) if failure.status == Status::ERR_RESOURCE_BUSY => {
            Failure::running(failure.reason)
        }
        PushError::Request(RequestError::Denied(failure)) => {
            let hint = if failure.status == Status::ERR_NOT_SUPPORTED {
                " (iof run --stdin-open leaves it open, --partial skips such ranks)"
            } else {
                ""
            };
            Failure::usage(format!("{}{hint}", failure.reason))
        }
        error => Failure::running(error),
    }
}

fn bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    let style = "{bar:30} {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

fn draw_until_finished(pusher: &Pusher, bar: &ProgressBar) {
    while !pusher.is_finished() {
        bar.set_position(pusher.progress());
        thread::sleep(REDRAW);
    }
    bar.finish_and_clear();
}
