//! `iof kill`: sends a signal to the ranks of a running job.

use clap::Args;
use iof_engine::Signal;
use iof_proto::rendezvous::{Search, Target};
use iof_proto::{Nspace, Proc, Status};
use iof_tool::RequestError;

use crate::args::engine::EngineArgs;
use crate::args::values::{Ranks, ranks};
use crate::attach::{ToolName, find, listed, namespaces};
use crate::error::Failure;

#[derive(Args)]
#[command(
    after_help = "The signal goes to each rank and to its process group. Unlike a signal to `iof run`, a second SIGTERM \
                  does not kill the ranks. Only the user of `iof run`, and root, may send signals."
)]
pub struct KillArgs {
    /// Job whose ranks get the signal
    #[arg(value_name = "JOB", conflicts_with = "nspace")]
    job: Nspace,

    /// Signal, such as TERM, SIGTERM or 15
    #[arg(value_name = "SIGNAL", default_value = "TERM")]
    signal: Signal,

    /// Signal only these ranks, such as 0,3-5
    #[arg(long, value_name = "LIST|all", default_value = "all", value_parser = ranks)]
    #[arg(hide_default_value = true)]
    rank: Ranks,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Sends the signal.
pub fn kill(args: &KillArgs) -> Result<(), Failure> {
    let KillArgs { job, signal, rank, engine } = args;
    let search = match engine.search() {
        Search { target: Target::Any, directory } => {
            Search { target: Target::Nspace(job.clone()), directory }
        }
        search => search,
    };
    let mut tool = find(&search, &ToolName::Kill)?;
    let procs: Vec<Proc> = rank.0.iter().map(|rank| Proc { nspace: job.clone(), rank: *rank }).collect();
    match tool.signal(&procs, signal.number()) {
        Ok(0) => Err(Failure::running(format!("no selected rank of job {job} is running"))),
        Ok(_) => Ok(()),
        Err(RequestError::Denied(failure)) if failure.status == Status::ERR_RESOURCE_BUSY => {
            Err(Failure::running(failure.reason))
        }
        Err(RequestError::Denied(failure)) => {
            let jobs = namespaces(&mut tool)?;
            let hint = if jobs.contains(job) { String::new() } else { format!("; {}", listed(jobs.iter())) };
            Err(Failure::Usage(format!("{}{hint}", failure.reason)))
        }
        Err(RequestError::Unsendable(error)) => Err(Failure::usage(error)),
        Err(error) => Err(Failure::running(error)),
    }
}
