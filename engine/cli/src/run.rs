//! `iof run`: starts a job, writes its output, and ends with its exit code.
//!
//! A job goes through four values, each made of the one before. An error drops the value of its step.
//!
//! * [`Plan`]: the options are checked. Nothing is started or created.
//! * [`Prepared`]: the engine runs, the name is reserved, and the outputs are open. Dropping it
//!   removes new files, releases the name and ends the engine.
//! * [`StartedJob`]: the ranks run. Dropping it kills them.
//! * [`RunningJob`](running::RunningJob): the ends of ranks and outputs arrive as events.

pub(crate) mod account;
pub(crate) mod app;
mod children;
pub(crate) mod fifos;
mod host;
mod inside;
mod keep;
mod launched_job;
pub(crate) mod mpir;
pub(crate) mod name;
mod plan;
mod prepared;
mod running;
mod started;

use std::process::ExitCode;

use crate::args::RunArgs;
use crate::error::Failure;
use plan::Plan;
use prepared::Prepared;
use started::StartedJob;

/// Runs a job, here or in a running engine, or an engine without a job of its own. Returns the exit code of
/// the rank that failed first, or 0.
pub fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    if let Some(time) = args.keep.filter(|_| args.app.program.is_empty()) {
        return keep::keep(args, time);
    }
    if let Some(job) = &args.inside {
        return inside::run_inside(args, job);
    }
    let plan = Plan::new(args)?;
    let prepared = Prepared::new(plan)?;
    let started = StartedJob::new(prepared)?;
    started.follow()?.wait_for_end()
}
