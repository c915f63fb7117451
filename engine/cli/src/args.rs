//! The command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, PossibleValue, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use iof_engine::{BackendKind, DEFAULT_CACHE_SIZE, MAX_RANKS, Policy};
use iof_output::MAX_KEPT_FILES;
use iof_proto::rendezvous::{Search, Target};
use iof_proto::{Channel, Channels, Nspace, Rank};

use crate::log::LogArgs;
use crate::output::OutputArgs;
use crate::push::PushArgs;
use crate::query::QueryArgs;
use crate::stdin::StdinArgs;

/// Forwards the output of a job's ranks through shared memory
#[derive(Parser)]
#[command(
    name = "iof",
    version,
    max_term_width = 100,
    after_help = "Begin with:  iof run -n 4 -- sh -c 'echo rank $IOF_RANK of $IOF_NPROCS'\n\n\
                  'iof COMMAND -h' has one line for each option, 'iof COMMAND --help' says more."
)]
pub struct Iof {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Start a job and write its output here
    Run(RunArgs),
    /// Attach to a running job and write its output here too
    Pull(PullArgs),
    /// Push bytes into the stdin of a running job's ranks
    Push(PushArgs),
    /// Watch a running job's streams: rates, caches, losses, lags
    Top(TopArgs),
    /// Ask about a running job: its processes, its streams
    Query(QueryArgs),
    /// Log a message: syslog, email, a job's record or output
    Log(LogArgs),
    /// Look at a ring from outside, whatever its writer does
    Inspect(InspectArgs),
    /// Print the completions for a shell
    Completions(CompletionsArgs),
    /// Write the manual pages
    Man(ManArgs),
}

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

/// Which engine to attach to.
#[derive(Args)]
pub struct EngineArgs {
    /// Attach to the `iof run` with this pid
    #[arg(long, value_name = "PID", group = "target")]
    pub pid: Option<u32>,

    /// Attach to the `iof run` with the job of this name
    #[arg(long, value_name = "NAME", group = "target")]
    pub nspace: Option<Nspace>,

    /// Attach to the engine that listens on this socket
    #[arg(long, value_name = "PATH", group = "target", conflicts_with = "rendezvous_dir")]
    pub server: Option<PathBuf>,

    /// Attach to the node's system-level engine
    #[arg(long, group = "target")]
    pub system: bool,

    /// Do not attach to the node's system-level engine
    #[arg(long, group = "target")]
    pub session: bool,

    /// Look for engines in this directory
    #[arg(long, value_name = "DIR")]
    pub rendezvous_dir: Option<PathBuf>,
}

impl EngineArgs {
    /// Whether it is left to us which.
    pub fn is_any(&self) -> bool {
        let EngineArgs { pid, nspace, server, system, session, rendezvous_dir } = self;
        let named = pid.is_some() || nspace.is_some() || server.is_some() || rendezvous_dir.is_some();
        !(named || *system || *session)
    }

    /// How to look for it.
    pub fn search(&self) -> Search {
        let EngineArgs { pid, nspace, server, system, session, rendezvous_dir } = self;
        let target = match (pid, nspace, server) {
            (Some(pid), _, _) => Target::Pid(*pid),
            (_, Some(nspace), _) => Target::Nspace(nspace.clone()),
            (_, _, Some(path)) => Target::Server(path.clone()),
            _ if *system => Target::System,
            _ if *session => Target::Session,
            _ => Target::Any,
        };
        Search { target, directory: rendezvous_dir.clone() }
    }
}

#[derive(Args)]
pub struct PullArgs {
    #[command(flatten)]
    pub engine: EngineArgs,

    /// Ranks to pull from, such as 0,3-5
    #[arg(long, value_name = "LIST|all", default_value = "all", value_parser = ranks)]
    pub rank: Ranks,

    /// Channels to pull
    #[arg(long, value_name = "LIST", default_value = "stdout,stderr,stddiag", value_parser = ChannelList)]
    #[arg(hide_possible_values = true)]
    pub channel: Channels,

    /// Leave out what was cached before now
    #[arg(long)]
    pub no_backlog: bool,

    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args)]
#[command(
    after_help = "Keys: n, r, c, d, l sort by name, rate, cached, dropped, lag (again: the other way round); \
                  arrows, PgUp, PgDn, Home, End scroll; Ctrl-L draws anew; q ends."
)]
pub struct TopArgs {
    #[command(flatten)]
    pub engine: EngineArgs,

    /// Time from one look to the next
    ///
    /// 0.1 at least.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
}

#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

#[derive(Args)]
pub struct ManArgs {
    /// The directory that gets iof.1, iof-run.1...
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

#[derive(Args)]
pub struct InspectArgs {
    /// Its descriptor here, or a path such as /proc/PID/fd/N
    ///
    /// `ls -l /proc/PID/fd | grep iof-ring` finds a process's rings.
    #[arg(value_name = "FD|PATH")]
    pub ring: Option<PathBuf>,

    /// Write the cached bytes to stdout, the rest to stderr
    #[arg(long)]
    pub bytes: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Ranks, as the user names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks(pub Vec<Rank>);

/// Understands a list of ranks.
pub fn ranks(text: &str) -> Result<Ranks, String> {
    if text == "all" {
        return Ok(Ranks(vec![Rank::WILDCARD]));
    }
    let number = |part: &str| {
        let number = part.trim().parse::<u32>().ok().filter(|number| *number < MAX_RANKS);
        number.ok_or_else(|| format!("'{part}' is no rank: say all, or ranks and ranges such as 0,3-5"))
    };
    let mut ranks = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last {
            return Err(format!("the range {part} runs backwards"));
        }
        ranks.extend((first..=last).map(Rank));
    }
    ranks.sort_unstable();
    ranks.dedup();
    Ok(Ranks(ranks))
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

/// Understands a list of channels, and names one as shells complete it.
#[derive(Clone)]
pub struct ChannelList;

impl TypedValueParser for ChannelList {
    type Value = Channels;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Channels, clap::Error> {
        TypedValueParser::parse_ref(&channels, command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let words = [Channel::Stdout, Channel::Stderr, Channel::Stddiag];
        Some(Box::new(words.into_iter().map(|channel| PossibleValue::new(channel.as_str()))))
    }
}

fn channels(text: &str) -> Result<Channels, String> {
    let mut channels = Channels::empty();
    for word in text.split(',') {
        match word.trim().parse() {
            Ok(Channel::Stdin) => return Err("stdin can't be pulled, only pushed".into()),
            Ok(channel) => channels |= Channels::from(channel),
            Err(_) => return Err(format!("'{word}' is no channel: say stdout, stderr or stddiag")),
        }
    }
    Ok(channels)
}

pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| format!("'{text}' is no time: say seconds, such as 0, 0.5 or 10"))
}

/// The shortest time between two looks at an engine.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// The longest.
const MAX_INTERVAL: Duration = Duration::from_hours(24);

fn interval(text: &str) -> Result<Duration, String> {
    let interval = seconds(text)?;
    let refused = || {
        format!(
            "'{text}' is no interval: say {} to {} seconds",
            MIN_INTERVAL.as_secs_f64(),
            MAX_INTERVAL.as_secs()
        )
    };
    (MIN_INTERVAL..=MAX_INTERVAL).contains(&interval).then_some(interval).ok_or_else(refused)
}

fn cache_size(text: &str) -> Result<u32, String> {
    let bytes = bytes(text).ok().and_then(|bytes| u32::try_from(bytes).ok());
    bytes.ok_or_else(|| format!("a cache has 1 to {} bytes; 64K, 1M and 2G are understood", u32::MAX))
}

/// The least size of a file at which another is begun: each time all that are kept are renamed.
const MIN_FILE_SIZE: u64 = 4 << 10;

pub fn file_size(text: &str) -> Result<u64, String> {
    let size = bytes(text)?;
    let refused = || format!("{size} bytes are too few for a file: say 4K or more");
    (size >= MIN_FILE_SIZE).then_some(size).ok_or_else(refused)
}

pub fn file_count(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count| *count <= MAX_KEPT_FILES);
    count.ok_or_else(|| format!("'{text}' is no number of full files to keep: say 0 to {MAX_KEPT_FILES}"))
}

pub fn bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (text.get(..text.len().saturating_sub(1)), 1u64 << 10),
        Some(b'm' | b'M') => (text.get(..text.len().saturating_sub(1)), 1 << 20),
        Some(b'g' | b'G') => (text.get(..text.len().saturating_sub(1)), 1 << 30),
        _ => (Some(text), 1),
    };
    let bytes = digits.and_then(|digits| digits.parse::<u64>().ok()).and_then(|n| n.checked_mul(unit));
    let bytes = bytes.filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| {
        format!("'{text}' is no number of bytes: say 1 or more; 64K, 1M and 2G are understood")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_lists_are_sorted_sets_of_ranks_and_ranges() {
        assert_eq!(ranks("all").unwrap().0, [Rank::WILDCARD]);
        assert_eq!(ranks("3-5,0,4").unwrap().0, [0, 3, 4, 5].map(Rank));
        for wrong in ["", "x", "5-3", "-1", "1-", "4294967295", "1,,2"] {
            assert!(ranks(wrong).is_err(), "{wrong}");
        }
    }

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

    #[test]
    fn channel_lists_name_output_channels() {
        assert_eq!(channels("stdout,stddiag").unwrap(), Channels::STDOUT | Channels::STDDIAG);
        for wrong in ["", "stdin", "stdout,", "output"] {
            assert!(channels(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn cache_sizes_have_units_and_a_limit() {
        assert_eq!(cache_size("1"), Ok(1));
        assert_eq!(cache_size("64K"), Ok(65536));
        assert_eq!(cache_size("3G"), Ok(3 << 30));
        for wrong in ["", "0", "K", "4G", "-1", "1.5M", "99999999999999999999G"] {
            assert!(cache_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_seconds_from_0_on() {
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for wrong in ["", "-1", "x", "1s", "inf", "nan", "1e300"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn intervals_are_neither_too_short_nor_longer_than_a_day() {
        assert_eq!(interval("0.1"), Ok(Duration::from_millis(100)));
        assert_eq!(interval("86400"), Ok(Duration::from_hours(24)));
        for wrong in ["0", "0.09", "86401", "soon"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Iof::command().debug_assert();
    }
}
