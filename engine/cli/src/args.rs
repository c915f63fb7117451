//! The command line.

pub mod defaults;
mod run;
pub mod spellings;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use iof_proto::Channels;

pub use self::run::{AppArgs, RunArgs, Variable};
use crate::commands::gateway::GatewayArgs;
use crate::commands::inspect::InspectArgs;
use crate::commands::kill::KillArgs;
use crate::commands::log::LogArgs;
use crate::commands::ps::PsArgs;
use crate::commands::pull_args::PullArgs;
use crate::commands::push::PushArgs;
use crate::commands::query::QueryArgs;
use crate::commands::serve::ServeArgs;
use crate::nodes::agents::{AgentArgs, LinkArgs};
use crate::options::engine::JobEngineArgs;
use crate::options::values::{CHANNELS, Ranks, interval, ranks};
use crate::pages::sections::with_examples;
use crate::pmix_tools::server::PmixArgs;

/// Run jobs, forward their output and stdin, and attach to running jobs
#[derive(Parser)]
#[command(
    name = "iof",
    version,
    propagate_version = true,
    max_term_width = 100,
    mut_subcommands = with_examples
)]
pub struct Iof {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Start a job and write its output
    Run(Box<RunArgs>),
    /// Attach to a running job and write its output
    Pull(Box<PullArgs>),
    /// Push bytes into the stdin of a running job's ranks
    Push(PushArgs),
    /// Watch the streams of running jobs: rates, caches, losses, lags
    Top(TopArgs),
    /// Show the output of jobs in a browser, and serve it to programs
    Serve(ServeArgs),
    /// Query running jobs: their processes, their streams
    Query(QueryArgs),
    /// List your engines on this node and their jobs
    Ps(PsArgs),
    /// Send a signal to the ranks of a running job
    Kill(KillArgs),
    /// Log a message to syslog, email, a job record or a job's output
    Log(LogArgs),
    /// Log messages for the engines of other users and jobs
    Gateway(GatewayArgs),
    /// Decode a stream's ring buffer, even of a stopped or dead writer
    Inspect(InspectArgs),
    /// Print shell completions
    Completions(CompletionsArgs),
    /// Write the manual pages
    Man(ManArgs),
    /// Run ranks of an `iof run` on another node
    ///
    /// `iof run` starts this command itself on each node, by its --rsh. Users need not run it.
    /// `iof run` sets its options.
    ///
    /// Stdin and stdout are the connection to the process that started it, and carry binary frames.
    /// Warnings are written to stderr. With --reattach, the agent has a session of its own, and its
    /// stdin and stdout are /dev/null.
    #[command(hide = true)]
    Agent(AgentArgs),
    /// Bring a running agent another connection to its `iof run`
    ///
    /// With --reattach, `iof run` starts this command itself when the connection to a node has
    /// ended, by its --rsh. Users need not run it.
    ///
    /// It passes its stdin and stdout to the agent of the node, and carries no bytes itself. The
    /// agent takes them as its connection if they show that the same `iof run` is at the other end.
    /// Otherwise it closes them.
    #[command(hide = true)]
    Link(LinkArgs),
    /// Serve a tool of PMIx for an engine
    #[command(hide = true)]
    Pmix(PmixArgs),
}

/// The keys and the columns of `iof top`, for `--help` and for its screen.
pub const TOP_HELP: &str = include_str!("top/help.txt");

#[derive(Args)]
#[command(
    after_help = format!("Without JOB or an option that selects an engine, all engines of the user are shown, also those that \
                  begin later; otherwise the command ends with the engine. A job whose engine is stopped, or has \
                  another version of the protocol, does not answer. ? shows these keys:\n\n{}", TOP_HELP.trim_end())
)]
pub struct TopArgs {
    #[command(flatten)]
    pub engine: JobEngineArgs,

    /// Update the screen at this interval
    ///
    /// From 0.1 to 86400 seconds.
    #[arg(long, value_name = "DURATION", default_value = "1", value_parser = interval, allow_hyphen_values = true)]
    pub interval: Duration,

    /// Show only these ranks, such as 0,3-5
    #[arg(long, value_name = "LIST|all", value_parser = ranks, allow_negative_numbers = true)]
    pub rank: Option<Ranks>,

    /// Show only these channels, such as stdout,stderr
    #[arg(long, value_name = "LIST", value_parser = CHANNELS, hide_possible_values = true)]
    pub channel: Option<Channels>,

    /// Sum the streams of each rank
    #[arg(long)]
    pub by_rank: bool,

    /// Print one table, and end
    ///
    /// After one --interval, in which the rates are measured. Needs no terminal. Has all rows, also idle
    /// ones. The exit code is 1 if an engine does not answer within 2 seconds.
    #[arg(long)]
    pub once: bool,

    /// Print JSON
    ///
    /// An array with an object for each stream: the pid of its engine, the job, the state of its rank with
    /// exit code or signal, its rate in bytes per second, and in stream, what `iof query stats --json` has.
    /// A sum of a rank has the channel of its first stream. A job that does not answer has the stream null.
    #[arg(long, requires = "once")]
    pub json: bool,
}

/// The values that `iof completions --list` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum List {
    /// The names of running jobs
    Jobs,
    /// The pids of running engines
    Pids,
    /// The words of --output
    Output,
    /// The names of signals
    Signals,
}

#[derive(Args)]
#[command(override_usage = "iof completions <SHELL>\n       iof completions --list jobs|pids|output|signals")]
pub struct CompletionsArgs {
    /// Shell: bash, elvish, fish, powershell or zsh
    #[arg(value_enum, hide_possible_values = true, required_unless_present = "list")]
    pub shell: Option<Shell>,

    /// Print the values that an option can have now
    ///
    /// Completion scripts call this: jobs for JOB and --nspace, pids for --pid, output for the
    /// words of --output, signals for the signals of `iof kill`.
    #[arg(long, value_name = "WHAT", value_enum, hide_possible_values = true, conflicts_with = "shell")]
    pub list: Option<List>,

    /// Print only values that begin with this text
    ///
    /// With --list output, the last word of the text is completed, with qualifiers and paths.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, requires = "list")]
    #[arg(allow_hyphen_values = true)]
    pub typed: String,

    /// Look for engines in this directory
    #[arg(long, value_name = "DIR", requires = "list")]
    pub rendezvous_dir: Option<PathBuf>,
}

#[derive(Args)]
pub struct ManArgs {
    /// Existing directory for iof.1, iof-run.1 and so on
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Iof::command().debug_assert();
    }
}
