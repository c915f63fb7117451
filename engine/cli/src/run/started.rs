//! A job whose ranks run, and the start of all that accompanies them.

use std::mem;

use super::children::Children;
use super::launched_job::LaunchedJob;
use super::plan::Plan;
use super::prepared::Prepared;
use super::running::{Course, RunningJob};
use crate::error::Failure;
use crate::events::job_event::JobEvent;
use crate::outputs::printers::OutputWriter;
use crate::processes::orphans::reap_if_first_process;
use crate::reports::failures::Failures;
use crate::reports::objects::print_starts;
use crate::run::mpir;
use crate::terminal::give_up::WriteWait;
use crate::terminal::message::{self, print_message};

/// A job whose ranks run. Dropping it kills them.
pub struct StartedJob<'a> {
    job: LaunchedJob,
    base: Prepared<'a>,
}

impl<'a> StartedJob<'a> {
    /// Starts the ranks.
    pub fn new(mut base: Prepared<'a>) -> Result<StartedJob<'a>, Failure> {
        let job = LaunchedJob::start(&base)?;
        mem::take(&mut base.new_files).keep();
        let Plan { name, spec, outputs, nodes, .. } = &base.plan;
        if *name != spec.nspace && outputs.names_job() {
            print_message(format_args!(
                "a job {name} is running, so this job is named {}; --nspace sets the name of its files",
                spec.nspace
            ));
        }
        print_starts(&job, base.plan.nodes.as_ref().map_or(&[], |(nodes, _)| nodes), &spec.nspace);
        base.signals.job_is_started();
        mpir::publish_processes(&job, &spec.apps, nodes.as_ref().map_or(&[], |(nodes, _)| nodes));
        Ok(StartedJob { job, base })
    }

    /// Starts to watch the outputs and the ranks, and to pass stdin on to these.
    pub fn follow(mut self) -> Result<RunningJob<'a>, Failure> {
        let StartedJob { job, base } = &mut self;
        let Plan { args, spec, stdin, typed, nodes, .. } = &base.plan;
        let writers = mem::take(&mut base.writers);
        let outputs = writers.len();
        let write_wait = WriteWait::new(writers.iter().map(OutputWriter::watched), args.give_up);
        args.give_up.into_iter().for_each(message::give_up_after);
        for writer in writers {
            let events = base.events.clone();
            writer.watch(move |report| drop(events.send(JobEvent::Output(report))))?;
        }
        if nodes.is_none() {
            reap_if_first_process(job)?;
        }
        let events = base.events.clone();
        stdin.push(&base.engine, &spec.nspace, move |event| drop(events.send(JobEvent::Stdin(event))))?;
        let keyboard = typed.map_or(Ok(None), |rank| job.give_keyboard(rank, &base.events))?;
        let failures = Failures::new(spec.nspace.clone(), spec.timeout);
        let StartedJob { job, base } = self;
        let (children, course) = (Children::default(), Course::default());
        Ok(RunningJob { job, children, failures, keyboard, outputs, write_wait, course, base })
    }
}
