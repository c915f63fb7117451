//! `iof kill`: sends a signal to the ranks of a running job.

use std::io;

use clap::Args;
use iof_engine::Signal;
use iof_proto::rendezvous::{Search, Target};
use iof_proto::{Nspace, Proc, ProcState, Status};
use iof_tool::{RequestError, Tool};
use serde_json::json;

use crate::commands::attach::{find, listed, namespaces, query_procs};
use crate::error::Failure;
use crate::options::engine::{EngineArgs, own_directory};
use crate::options::values::{Ranks, ranks};
use crate::terminal::print::{json_lines, write};

#[derive(Args)]
#[command(
    after_help = "The signal goes to each rank and to its process group. Unlike a signal to `iof run`, a second SIGTERM \
                  does not kill the ranks. Only the user of `iof run` may send signals; root first becomes that user. \
                  Ranks of `iof run` on other nodes receive it, too.",
    override_usage = "iof kill [OPTIONS] <JOB> [SIGNAL]\n       iof kill [OPTIONS] --nspace <JOB> [SIGNAL]",
    mut_arg("nspace", |arg| arg.help("Job whose ranks get the signal, in place of JOB").long_help(None))
)]
pub struct KillArgs {
    /// Job whose ranks get the signal
    #[arg(value_name = "JOB", required_unless_present = "nspace")]
    job: Option<String>,

    /// Signal, such as TERM, SIGTERM or 15 [default: TERM]
    #[arg(value_name = "SIGNAL")]
    signal: Option<String>,

    /// Signal only these ranks, such as 0,3-5
    #[arg(long, value_name = "LIST|all", default_value = "all", value_parser = ranks, allow_negative_numbers = true)]
    #[arg(hide_default_value = true)]
    rank: Ranks,

    /// Print JSON
    ///
    /// The job, the signal, and the number of processes or process groups that received it.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    engine: EngineArgs,
}

impl KillArgs {
    /// Returns the job and the signal. With --nspace, the first argument is the signal.
    fn target(&self) -> Result<(Nspace, Signal), Failure> {
        let KillArgs { job, signal, engine, .. } = self;
        let (nspace, signal) = match (&engine.nspace, job, signal) {
            (Some(_), Some(_), Some(_)) => {
                return Err(Failure::usage("--nspace and JOB both name a job: leave one out"));
            }
            (Some(nspace), signal, None) | (Some(nspace), None, signal) => (nspace.clone(), signal),
            (None, job, signal) => {
                let job = job.as_deref().unwrap_or_default();
                (Nspace::new(job).map_err(Failure::usage)?, signal)
            }
        };
        let signal = signal.as_deref().map_or(Ok(Signal::TERM), str::parse).map_err(Failure::usage)?;
        Ok((nspace, signal))
    }
}

/// Returns the command to write in place of `iof kill WORDS` if these name the signal as kill(1) or
/// scancel(1) do: `-USR1`, `-9`, `-s USR1`, `--signal=USR1`.
pub fn rewritten(words: &[String]) -> Option<String> {
    let is_signal = |name: &&str| name.parse::<Signal>().is_ok();
    let (index, signal, count) = words.iter().enumerate().find_map(|(index, word)| {
        let next = || words.get(index.saturating_add(1)).map(String::as_str).filter(is_signal);
        if let "-s" | "-n" | "--signal" = word.as_str() {
            return next().map(|signal| (index, signal, 2));
        }
        let prefixes = ["--signal=", "-s", "-"];
        let joined = prefixes.into_iter().find_map(|prefix| word.strip_prefix(prefix).filter(is_signal));
        joined.map(|signal| (index, signal, 1))
    })?;
    let (before, rest) = words.split_at_checked(index)?;
    let mut kept: Vec<&str> = before.iter().chain(rest.iter().skip(count)).map(String::as_str).collect();
    if kept.is_empty() {
        kept.push("JOB");
    }
    Some(format!("iof kill {} {signal}", kept.join(" ")))
}

/// Sends the signal.
pub fn kill(args: &KillArgs) -> Result<(), Failure> {
    let KillArgs { rank, engine, .. } = args;
    let (job, signal) = args.target()?;
    let search = match engine.search() {
        Search { target: Target::Any, session_directory, .. } => {
            Search::nspace(job.clone()).within(session_directory.or_else(own_directory))
        }
        search => search,
    };
    let mut tool = find(&search, "iof kill")?;
    let procs: Vec<Proc> = rank.0.iter().map(|rank| Proc { nspace: job.clone(), rank: *rank }).collect();
    match tool.signal(&procs, signal.number()) {
        Ok(0) if has_running(&mut tool, &procs) => Err(Failure::running(format!(
            "the ranks of job {job} run on other nodes: send the signal to its iof run (pid {})",
            tool.engine_pid()
        ))),
        Ok(0) => Err(Failure::running(format!("no selected rank of job {job} is running"))),
        Ok(count) if args.json => {
            let sent = json!({"nspace": job.as_str(), "signal": signal.to_string(), "receivers": count});
            write(io::stdout(), json_lines(&sent).as_bytes())
        }
        Ok(_) => Ok(()),
        Err(RequestError::Denied(failure)) if failure.status == Status::ERR_RESOURCE_BUSY => {
            Err(Failure::running(failure.reason))
        }
        Err(RequestError::Denied(failure)) => {
            let jobs = namespaces(&mut tool)?;
            let hint = if jobs.contains(&job) { String::new() } else { format!("; {}", listed(jobs.iter())) };
            Err(Failure::Usage(format!("{}{hint}", failure.reason)))
        }
        Err(RequestError::Unsendable(error)) => Err(Failure::usage(error)),
        Err(error) => Err(Failure::running(error)),
    }
}

/// Returns whether some of `procs` are running, here or on another node.
fn has_running(tool: &mut Tool, procs: &[Proc]) -> bool {
    let is_selected = |proc: &Proc| procs.contains(proc) || procs.contains(&Proc::all(proc.nspace.clone()));
    let procs = query_procs(tool).unwrap_or_default();
    procs.iter().any(|info| info.state == ProcState::Running && is_selected(&info.proc))
}
