//! `iof pull`: writes the output of a running job, as one more reader of it.

use std::thread;
use std::time::Instant;

use crossbeam::channel::unbounded;
use iof_output::PrintReport;
use iof_proto::Nspace;
use iof_proto::limits::JOB_WAIT;
use iof_proto::query::JobInfo;
use iof_tool::Tool;

use crate::commands::attach::{POLL_INTERVAL, attach_several, query_jobs};
use crate::commands::job_watch::{JobWait, LONGEST_INTERVAL};
use crate::commands::pull_args::PullArgs;
use crate::commands::pull_several::pull_several;
use crate::commands::pull_streams::{add_losses, check, common, pulled_by, register};
use crate::commands::resume::Resume;
use crate::commands::stopped_engine::watch_for_stop;
use crate::error::Failure;
use crate::options::engine::EngineArgs;
use crate::outputs::output::WrittenOutputs;
use crate::outputs::printers::OutputTarget;

/// Writes the output of running jobs to stdout and stderr, or to files. Blocks until the output is
/// complete.
pub fn pull(args: &PullArgs) -> Result<(), Failure> {
    let mut outputs = args.output.prepare(None, WrittenOutputs::All)?;
    if args.timestamps {
        outputs.show_times();
    }
    if args.part.no_follow {
        outputs.fold_whole()?;
    }
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
    attached.write_and_report(&(), &done)?;
    drop(done);
    let mut all = PrintReport::default();
    // The first failure ends the command.
    reports.into_iter().try_for_each(|(_, report)| report.map(|report| add_losses(&mut all, report)))?;
    let whole = check(engine.unwrap_or_default(), &all);
    args.print_job_ends(pulled.iter().map(|job| &job.nspace), &all, whole.is_ok());
    whole.map_err(Failure::Running)
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
    watch_for_stop(engine.search())?;
    let mut tools = if count > 0 { attach_several(&engine, "iof pull", count, wait)? } else { Vec::new() };
    let Some(first) = tools.first_mut() else { return Ok(Default::default()) };
    let jobs = wait_for_jobs(first, nspace, wait)?;
    let (tools, is_one_rank) = register(args, &args.part, resume, &jobs, (tools, selections))?;
    Ok((tools, jobs, is_one_rank))
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
        // At most an eighth later than the job begins.
        let interval = (start.elapsed() / 8).clamp(POLL_INTERVAL, LONGEST_INTERVAL);
        thread::sleep(interval.min(wait.rest()));
    }
}
