//! The options of `iof run`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use iof_engine::{BackendKind, DEFAULT_CACHE_SIZE, MAX_RANKS, Policy};
use iof_proto::Nspace;

use super::values::{Ranks, cache_size, ranks, seconds};
use crate::output::OutputArgs;
use crate::stdin::StdinArgs;

#[derive(Args)]
#[command(
    override_usage = "iof run [OPTIONS] PROG ARGS... [: [APP OPTIONS] PROG ARGS...]...",
    after_help = "Several programs in one job are divided by ':', each with its own -n, --wdir and -x; ranks are \
                  numbered on from one to the next."
)]
pub struct RunArgs {
    #[command(flatten)]
    pub app: AppArgs,

    #[command(flatten)]
    pub stdin: StdinArgs,

    /// Cache for each rank and channel
    ///
    /// In bytes; K, M and G are understood. 16K at least.
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_CACHE_SIZE, value_parser = cache_size)]
    pub cache_size: u32,

    /// What to drop if we are slow: newest, oldest, none
    ///
    /// That is when our output is slower than the ranks and a cache is full. With none, the default, the ranks wait;
    /// with newest, the bytes that come are dropped, with oldest those that came first. What is missing is reported
    /// where it is missing.
    #[arg(long, value_enum, default_value_t = Drop::None, hide_possible_values = true, hide_default_value = true)]
    pub drop: Drop,

    /// How to read the ranks' output: io-uring, epoll
    ///
    /// By itself it is io-uring if this machine allows it, and else epoll, which works everywhere and costs more.
    #[arg(long, value_enum, hide_possible_values = true)]
    pub backend: Option<Backend>,

    /// The job's name [default: iof-PID]
    #[arg(long, value_name = "NAME")]
    pub nspace: Option<Nspace>,

    /// Where tools find this job
    #[arg(long, value_name = "DIR")]
    pub rendezvous_dir: Option<PathBuf>,

    /// Ranks that get a pseudo-terminal, such as 0,2-3
    ///
    /// Rank 0 gets our keyboard with it.
    #[arg(long, value_name = "LIST|all", value_parser = ranks)]
    pub pty: Option<Ranks>,

    /// How long a rank's children may hold its output
    ///
    /// That is after its exit; without this, for ever. What they write later is not forwarded.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub grace: Option<Duration>,

    /// Say at the end what forwarding has cost
    ///
    /// To stderr: the time, the CPU seconds of iof itself (its threads, not the ranks), and for each channel how many
    /// bytes were read from the ranks and how many of them our output misses.
    #[arg(long)]
    pub timings: bool,

    /// Say at the end, in one line, how it went
    ///
    /// To stderr: the ranks, their exit codes, the time, and how many bytes were forwarded and lost. Lost is what our
    /// output misses, whether it was dropped as it came or written over (--drop oldest) before it was read.
    #[arg(long)]
    pub summary: bool,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// What one program of a job is given; there may be several.
#[derive(Args)]
pub struct AppArgs {
    /// How many ranks to start
    #[arg(short = 'n', long = "nprocs", value_name = "N", default_value_t = 1, help_heading = "App options",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RANKS)))]
    pub nprocs: u32,

    /// The directory that the ranks start in
    #[arg(long, value_name = "DIR", help_heading = "App options")]
    pub wdir: Option<PathBuf>,

    /// An environment variable for the ranks
    ///
    /// They have all of ours besides.
    #[arg(short = 'x', value_name = "NAME[=VALUE]", help_heading = "App options",
          value_parser = OsStringValueParser::new().try_map(variable))]
    pub env: Vec<Variable>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROG")]
    pub program: Vec<OsString>,
}

/// An environment variable, as the user names it: with a value, or with what it has here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    pub name: OsString,
    pub value: Option<OsString>,
}

/// What to do when a cache is full.
#[derive(Clone, Copy, ValueEnum)]
pub enum Drop {
    /// Drop new bytes
    Newest,
    /// Drop the oldest bytes
    Oldest,
    /// Drop nothing: the ranks wait
    None,
}

impl From<Drop> for Policy {
    fn from(drop: Drop) -> Policy {
        match drop {
            Drop::Newest => Policy::DropNewest,
            Drop::Oldest => Policy::DropOldest,
            Drop::None => Policy::Block,
        }
    }
}

/// How to read the ranks' output.
#[derive(Clone, Copy, ValueEnum)]
pub enum Backend {
    /// With io_uring: the cheapest, but not allowed everywhere
    IoUring,
    /// With epoll: works everywhere
    Epoll,
}

impl From<Backend> for BackendKind {
    fn from(backend: Backend) -> BackendKind {
        match backend {
            Backend::IoUring => BackendKind::IoUring,
            Backend::Epoll => BackendKind::Epoll,
        }
    }
}

fn variable(text: OsString) -> Result<Variable, &'static str> {
    let bytes = text.as_bytes();
    let (name, value) = match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) => (bytes.get(..at), bytes.get(at.saturating_add(1)..)),
        None => (Some(bytes), None),
    };
    let owned = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    match name {
        Some(name) if !name.is_empty() => Ok(Variable { name: owned(name), value: value.map(owned) }),
        _ => Err("a variable needs a name: say NAME or NAME=VALUE"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_a_name_and_maybe_a_value() {
        let parsed = |text: &str| {
            let Variable { name, value } = variable(text.into()).unwrap();
            (name.into_string().unwrap(), value.map(|value| value.into_string().unwrap()))
        };
        assert_eq!(parsed("A"), ("A".into(), None));
        assert_eq!(parsed("A="), ("A".into(), Some("".into())));
        assert_eq!(parsed("A=b=c"), ("A".into(), Some("b=c".into())));
        assert!(variable("".into()).is_err() && variable("=b".into()).is_err());
    }
}
