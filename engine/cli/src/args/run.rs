//! The options of `iof run`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgAction, Args, ValueHint};
use iof_engine::{BackendKind, Binding, DEFAULT_CACHE_TOTAL, Mpi, Policy, Rendezvous};
use iof_output::format_words;
use iof_proto::Nspace;

use crate::events::stdin::StdinArgs;
use crate::nodes::options::NodeArgs;
use crate::options::ending::EndingArgs;
use crate::options::engine::EngineArgs;
use crate::options::values::{
    Choice, Ranks, cache_size, cache_total, choice, duration, give_up, nprocs, ranks,
};
use crate::outputs::output::OutputArgs;

#[derive(Args)]
#[command(
    mut_arg("program", |arg| arg.required(false).required_unless_present("keep")),
    mut_args(|arg| {
        let is_of_job = JOB_OPTIONS.split_whitespace().any(|option| arg.get_id() == option);
        if is_of_job { arg.requires("program") } else { arg }
    }),
    override_usage = "iof run [OPTIONS] PROG [ARGS...] [: [APP OPTIONS] PROG [ARGS...]]...\n       \
                      iof run [OPTIONS] --keep DURATION",
    after_help = format!("Words of --output: tag, rank, timestamp, {}, dir=DIR, file=NAME, merge; with :raw, parts of lines.\n\n\
                  Examples:  iof run -n 4 --output rank ./a.out\n           \
                  iof run -n 4 --output tag,timestamp,dir=logs:copy ./a.out\n           \
                  iof run -n 2 ./server : -n 4 ./client", format_words()),
    after_long_help = "Programs of one job are separated by ':', each with its own app options. Ranks are numbered across \
                  programs: in `-n 2 a : -n 4 b`, b has ranks 2 to 5. A program gets an argument ':' by sh -c 'PROG :'.\n\n\
                  Each rank has these variables in its environment: IOF_NSPACE (the job's name), IOF_RANK, IOF_NPROCS, \
                  IOF_APPNUM (the number of its program, from 0), IOF_SERVER (the socket for tools) and, \
                  for channels besides stdout and stderr, the descriptor: IOF_STDDIAG_FD for stddiag (diagnostics)."
)]
pub struct RunArgs {
    #[command(flatten)]
    pub app: AppArgs,

    /// Set the cache size per stream
    ///
    /// A stream is one channel of one rank. Its cache holds its output for iof and for tools. In
    /// bytes, optionally with a unit such as K, M or KiB (powers of 1024). At least 16K. By
    /// default, a cache has 1M. With 16 or more ranks it begins with 64K to 512K, and grows to 1M
    /// when a tool attaches, or when the rank has waited for iof to write its output.
    #[arg(long, help_heading = "Job options", value_name = "BYTES", value_parser = cache_size, allow_hyphen_values = true)]
    pub cache_size: Option<u32>,

    /// Bound the growth of caches
    ///
    /// Caches that begin small grow while the sum of all is below this. In bytes, optionally with a
    /// unit such as K, M or KiB (powers of 1024). A cache that may not grow keeps the size with
    /// which it began. At least --cache-size, if that is given. By default 1G.
    #[arg(long, help_heading = "Job options", value_name = "BYTES", value_parser = cache_total, allow_hyphen_values = true)]
    cache_total: Option<u64>,

    /// When a cache is full, drop newest, oldest or none
    ///
    /// A cache becomes full when a rank writes faster than iof can write the rank's output. With
    /// none, the default, the rank waits. With newest, new bytes are dropped; with oldest, the
    /// oldest bytes in the cache are overwritten. The gaps of a stream are reported on stderr, at
    /// most once a second.
    #[arg(long, help_heading = "Job options", value_name = "WHAT", value_parser = choice(POLICIES), default_value = "none")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub drop: Policy,

    /// Read the ranks' output with io-uring or epoll
    ///
    /// The default is io-uring where the kernel permits it, otherwise epoll, which works everywhere
    /// and costs more CPU time.
    #[arg(long, help_heading = "Job options", value_parser = choice(BACKENDS), hide_possible_values = true)]
    pub backend: Option<BackendKind>,

    /// Set the name of the job [default: that of PROG]
    ///
    /// By default, a job has the name of its first program, such as a.out. If a job of that name is
    /// running, the next one is a.out-2, then a.out-3 and so on.
    #[arg(long, help_heading = "Job options", value_name = "NAME")]
    pub nspace: Option<Nspace>,

    /// Create the socket for tools in this directory
    ///
    /// It must exist. If the ranks run on several nodes, the others create it. With none, iof creates
    /// no socket and needs no directory. Tools then cannot find the job.
    #[arg(long, help_heading = "Job options", value_name = "DIR")]
    rendezvous_dir: Option<PathBuf>,

    /// Serve MPI programs by auto, pmi1, pmix or none
    ///
    /// With pmi1, programs of MPICH, Intel MPI and MVAPICH start as one MPI job. With pmix, those
    /// of Open MPI 5 do; this needs libpmix.so.2, which the variable IOF_LIBPMIX can name. auto,
    /// the default, is pmix if a program or a Python script's mpi4py uses Open MPI 5, or if
    /// IOF_LIBPMIX is set and none uses MPICH or Intel MPI, and otherwise pmi1. With none, each
    /// rank of an MPI program is alone, and the ranks inherit the variables of a launcher that has
    /// started iof.
    #[arg(long, help_heading = "Job options", value_name = "HOW", value_parser = choice(PROTOCOLS), default_value = "auto")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub mpi: Mpi,

    /// Bind each rank to a core or to none
    ///
    /// With core, each rank runs on one core of those on which iof may run: rank 0 on the first.
    /// The ranks must not outnumber these cores. On several nodes, each node has its own ranks and
    /// cores. With none, the default, a rank runs on any of them.
    #[arg(long, help_heading = "Job options", value_name = "WHAT", value_parser = choice(BINDINGS), default_value = "none")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub bind_to: Binding,

    /// Set the variables of a framework: torch or none
    ///
    /// With torch, each rank has the variables RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
    /// MASTER_ADDR and MASTER_PORT, by which torch.distributed.init_process_group connects the
    /// ranks. The address is that of the node of rank 0, by its name in --hosts, and the port is
    /// free on this node when iof starts. -x overrides them.
    #[arg(long, help_heading = "Job options", value_name = "WHAT", value_parser = choice(FRAMEWORKS), default_value = "none", action = ArgAction::Set)]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    pub ranks_env: bool,

    /// Give a pseudo-terminal to ranks such as 0,2-3
    ///
    /// Without a list, to rank 0. If one of them has the stdin of iof (see --stdin), it receives
    /// every key typed.
    #[arg(long, help_heading = "Job options", value_name = "LIST|all", value_parser = ranks, allow_negative_numbers = true)]
    pub pty: Option<Ranks>,

    /// Give each rank one pipe for stdout and stderr
    ///
    /// As 2>&1 in a shell does. Both are then one stream, stdout, also for tools, in the exact
    /// order in which the rank wrote. Without this option, stdout and stderr are separate streams,
    /// and their order is that in which iof read them.
    #[arg(long, help_heading = "Job options")]
    pub merge_at_source: bool,

    /// Limit the wait for output after a rank's exit
    ///
    /// A child of a rank may hold the rank's output open after the exit of the rank. This time begins
    /// with that exit, also if the child still writes. After it, output of the child is not
    /// forwarded, and the child gets SIGPIPE when it writes. By default the wait is unlimited.
    #[arg(long, help_heading = "Job options", value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub grace: Option<Duration>,

    /// End the job if its output is not accepted
    ///
    /// If a reader of stdout, stderr or a FIFO, or a file, accepts nothing for this time, the job
    /// is ended, and the exit code is 1. A job for whose FIFO no reader comes is not started. By
    /// default the ranks wait. After --timeout,
    /// --kill-on-bad-exit or a signal has ended all ranks, iof waits for an output that accepts
    /// nothing for 2 seconds, for --kill-wait if that is longer, or for this time. At least 0.1.
    #[arg(long, help_heading = "Job options", value_name = "DURATION", value_parser = give_up, allow_hyphen_values = true)]
    pub give_up: Option<Duration>,

    /// Print the cost of forwarding on exit
    ///
    /// On stderr: the elapsed time, the CPU seconds of iof (without those of the ranks), the
    /// backend (see --backend), and for each channel the bytes read from the ranks and the bytes
    /// missing from the output.
    #[arg(long, help_heading = "Job options")]
    pub timings: bool,

    /// Print a one-line summary on exit
    ///
    /// On stderr: the ranks, their exit codes and signals, the elapsed time, and the bytes
    /// forwarded and lost. Lost bytes are missing from the output: they were dropped on arrival
    /// (--drop newest) or overwritten before they were read (--drop oldest).
    #[arg(long, help_heading = "Job options")]
    pub summary: bool,

    /// Write a table of the ranks to a file
    ///
    /// At the end of the job, one row for each rank: start and end in UTC, exit code or signal, bytes of
    /// output, seconds of CPU time and the largest resident memory, with the children for which it has waited. FILE is in JSON if its
    /// name ends in .json, otherwise its columns are separated by tabs. It is replaced as a whole.
    #[arg(long, help_heading = "Job options", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub job_log: Option<PathBuf>,

    /// Let tools start jobs: own or none
    ///
    /// With own, the default, tools of this user start jobs in this iof, such as iof run --in, and ranks
    /// that call the library. It writes the output of a job that a rank has started. Its ranks count
    /// towards the slots of --hosts. iof ends when all jobs have ended; a job that is not detached ends
    /// with that of its rank. With none, tools start no jobs.
    #[arg(long, help_heading = "Job options", value_name = "WHO", value_parser = choice(SPAWN), default_value = "own", action = ArgAction::Set)]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    spawn: bool,

    /// Start the ranks in the iof that has this job
    ///
    /// It is found as by iof pull JOB. The output is shown as by iof pull, and the exit code is that of
    /// the new job, which ends with this command. Signals to this command are passed on to the ranks.
    /// These have the environment of that iof and what -x adds, start in the present directory, and
    /// read /dev/null. PROG is looked up in the PATH of that iof, and its --timeout does not limit the job.
    #[arg(id = "in", long = "in", help_heading = "Job options", value_name = "JOB", conflicts_with_all = ENGINE_OPTIONS.split(' '))]
    pub inside: Option<Nspace>,

    /// Keep the output for this time after the end
    ///
    /// Tools can then pull what is in the caches, and start jobs by iof run --in. The exit code is that of
    /// the job. Without PROG, wait this long for jobs that tools start. The name by which they find this iof
    /// is then that of --nspace, by default iof. With --mpi pmix, tools of libpmix attach, too; the protocol
    /// of each job is chosen with the job. The exit code is 0. After this time, at Ctrl-C, or when iof kill
    /// ends it, jobs of tools that still run get SIGTERM, and SIGKILL after --kill-wait.
    #[arg(long, help_heading = "Job options", value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub keep: Option<Duration>,

    #[command(flatten)]
    pub stdin: StdinArgs,

    #[command(flatten)]
    pub ending: EndingArgs,

    #[command(flatten)]
    pub output: OutputArgs,

    #[command(flatten)]
    pub nodes: NodeArgs,
}

impl RunArgs {
    /// Returns where tools find the engine.
    pub fn rendezvous(&self) -> Rendezvous {
        match &self.rendezvous_dir {
            Some(directory) if directory.as_os_str() == "none" => Rendezvous::None,
            directory => Rendezvous::Session(directory.clone()),
        }
    }

    /// Returns whether tools may start jobs.
    pub fn grants(&self) -> bool {
        self.spawn
    }

    /// Returns the options that select the engine of a job.
    pub fn engine_of(&self, job: &Nspace) -> EngineArgs {
        let (nspace, rendezvous_dir) = (Some(job.clone()), self.rendezvous_dir.clone());
        EngineArgs { nspace, rendezvous_dir, pid: None, server: None, system: false, session: false }
    }

    /// Returns the bound on the sum of all caches.
    ///
    /// # Errors
    /// It is less than one cache.
    pub fn cache_total(&self) -> Result<u64, String> {
        let Some(total) = self.cache_total else { return Ok(DEFAULT_CACHE_TOTAL) };
        match self.cache_size.filter(|size| u64::from(*size) > total) {
            Some(size) => Err(format!(
                "--cache-total {total} is less than one cache of {size} bytes (--cache-size): raise it, or lower \
                 --cache-size"
            )),
            None => Ok(total),
        }
    }
}

/// The options that apply to an engine, or that `--in` has no use for.
const ENGINE_OPTIONS: &str = "cache_size cache_total drop backend pty give_up timings summary job_log error_lines spawn keep stdin \
    stdin_open stdin_file hosts hostfile map_by host_env rsh start_timeout starts \
    node_timeout reattach oversubscribe";

/// The options that apply to a job, and need its program.
const JOB_OPTIONS: &str = "nprocs wdir env spawn bind_to ranks_env pty merge_at_source grace give_up timings summary job_log \
    stdin stdin_open stdin_file kill_on_bad_exit timeout quiet error_lines output output_file error_file \
    tag_by tag_suffix label color match exclude fold max_line max_line_time ranks no_forward open_mode file_size file_count \
    file_cache map_by host_env rsh start_timeout starts node_timeout reattach";

const SPAWN: &[Choice<bool>] = &[("own", "Your own", true), ("none", "None", false)];

const FRAMEWORKS: &[Choice<bool>] = &[("torch", "PyTorch", true), ("none", "None", false)];

const BINDINGS: &[Choice<Binding>] =
    &[("core", "One core for each rank", Binding::Core), ("none", "Any core", Binding::None)];

const PROTOCOLS: &[Choice<Mpi>] = &[
    ("auto", "The one that the programs need", Mpi::Auto),
    ("pmi1", "PMI-1, for MPICH and the like", Mpi::Pmi1),
    ("pmix", "PMIx, for Open MPI 5", Mpi::Pmix),
    ("none", "None: each rank is alone", Mpi::None),
];

const POLICIES: &[Choice<Policy>] = &[
    ("newest", "Drop new bytes", Policy::DropNewest),
    ("oldest", "Drop the oldest bytes", Policy::DropOldest),
    ("none", "Drop nothing: the ranks wait", Policy::Block),
];

const BACKENDS: &[Choice<BackendKind>] = &[
    ("io-uring", "io_uring: cheapest, but not permitted everywhere", BackendKind::IoUring),
    ("epoll", "epoll: works everywhere", BackendKind::Epoll),
];

/// The options of one program of a job.
#[derive(Args)]
pub struct AppArgs {
    /// Start this many ranks
    #[arg(short = 'n', long = "nprocs", value_name = "N", default_value_t = 1, help_heading = "App options",
          value_parser = nprocs, allow_hyphen_values = true)]
    pub nprocs: u32,

    /// Start the ranks in this directory
    #[arg(long, value_name = "DIR", help_heading = "App options")]
    pub wdir: Option<PathBuf>,

    /// Set an environment variable for the ranks
    ///
    /// Ranks inherit the whole environment of iof, so that NAME without =VALUE changes nothing. May
    /// be repeated.
    #[arg(short = 'x', value_name = "NAME[=VALUE]", help_heading = "App options",
          value_parser = OsStringValueParser::new().try_map(variable))]
    pub env: Vec<Variable>,

    /// Program to start, with its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROG",
          value_hint = ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

/// An environment variable for the ranks. Without a value it is inherited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    pub name: OsString,
    pub value: Option<OsString>,
}

fn variable(text: OsString) -> Result<Variable, &'static str> {
    let bytes = text.as_bytes();
    let (name, value) = match bytes.iter().position(|byte| *byte == b'=') {
        Some(separator) => (bytes.get(..separator), bytes.get(separator.saturating_add(1)..)),
        None => (Some(bytes), None),
    };
    let owned = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    match name {
        Some(name) if !name.is_empty() => Ok(Variable { name: owned(name), value: value.map(owned) }),
        _ => Err("invalid variable: expected NAME or NAME=VALUE"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_has_a_name_and_an_optional_value() {
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
