//! The configuration of an engine, and the specification of a job.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use iof_capture::{BackendKind, ProcessGroup, Pty, Stdin, is_hung_up};
use iof_log::{MailServer, Order, Syslog};
use iof_proto::directive::{DirectiveLevel, DropPolicy};
use iof_proto::{Directives, Failure, Info, Nspace, Rank};
use iof_shm_ring::{Interaction, Policy};
use nix::libc;
use nix::sys::stat::fstat;
use nix::unistd::isatty;

use crate::early_end::{DEFAULT_KILL_WAIT, KillOnBadExit};

/// Default size of the cache of each stream (one output channel of one rank), in bytes.
pub const DEFAULT_CACHE_SIZE: u32 = 1 << 20;

/// Default of [`Config::cache_total`], in bytes: 1,024 caches of the default size.
pub const DEFAULT_CACHE_TOTAL: u64 = 1 << 30;

/// Smallest size of a cache, in bytes. A smaller request is raised to it.
///
/// The reason is that a read takes at most a quarter of a cache. A read of a pipe in packet mode
/// (O_DIRECT, see pipe(2)) must have room for `PIPE_BUF` bytes, or the kernel discards the rest of
/// the packet.
pub const MIN_CACHE_SIZE: u32 = 4 * libc::PIPE_BUF as u32;

/// Default of [`Config::max_cache_size`], in bytes.
pub const MAX_CACHE_SIZE: u32 = 16 << 20;

/// The grouping of bytes before a reader receives them. By default a reader receives bytes as they
/// arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffering {
    /// The number of bytes of a full group, which the reader receives immediately
    /// (`PMIX_IOF_BUFFERING_SIZE`). A cache has at least twice this size. With 0, only
    /// `time` limits a group; if `time` is `None` as well, bytes are not grouped.
    pub size: u32,
    /// The time after which the reader receives a group that is not full
    /// (`PMIX_IOF_BUFFERING_TIME`). With `None`, the reader receives such a group only at the end
    /// of the stream or of the registration.
    pub time: Option<Duration>,
}

/// The configuration of an engine. [`Config::apply_directives`] changes it by PMIx directives.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Size of the cache of each stream (one output channel of one rank), in bytes
    /// (`PMIX_IOF_CACHE_SIZE`). A size below [`MIN_CACHE_SIZE`] is raised to it.
    ///
    /// With `None`, the size is [`DEFAULT_CACHE_SIZE`], and the caches of a job with 16 or more
    /// ranks begin smaller: 8 MiB divided by the number of ranks, rounded up to a power of two, but
    /// at least 64 KiB. A cache grows to its full size when a reader attaches that may not hold the
    /// source back, and after the rank has waited for the readers for about 0.2 s without a break.
    /// Only [`Policy::Block`] has small caches.
    pub cache_size: Option<u32>,
    /// The sum of the caches of all ranks, in bytes, up to which small caches grow. A cache that
    /// may not grow stays small: its rank waits earlier, and readers that may not hold it back lose
    /// bytes earlier.
    pub cache_total: u64,
    /// The reaction to a full cache: drop the newest bytes (`PMIX_IOF_DROP_NEWEST`), drop the
    /// oldest bytes (`PMIX_IOF_DROP_OLDEST`), or make ranks wait until the readers with
    /// [`Grant::Block`](crate::Grant::Block) have read.
    pub policy: Policy,
    /// The grouping of bytes for readers, unless their job or registration specifies another.
    pub buffering: Buffering,
    /// The largest cache that a registration of a tool may request, in bytes. [`MIN_CACHE_SIZE`] is
    /// always allowed.
    pub max_cache_size: u32,
    /// The backend that reads the ranks' pipes. `None` selects io_uring if the kernel permits it,
    /// else epoll.
    pub backend: Option<BackendKind>,
    /// The rendezvous point at which tools find this engine.
    pub rendezvous: Rendezvous,
    /// The command `iof` of this version, if a process of it is to end the ranks when this process
    /// is killed: a path, or a name to look up in `PATH`. This guardian is a child of this process
    /// from the first job to the end of the engine. When the process ends without dropping the
    /// engine, it ends the ranks that the engine has started and their process groups by SIGTERM,
    /// and two seconds later by SIGKILL. A child that this process has forked, and that has not executed
    /// a program, delays this until it ends. If the guardian does not start, the ranks run without
    /// it, and a warning is logged.
    pub guardian: Option<PathBuf>,
    /// The channels to which messages are logged.
    pub log: LogConfig,
}

impl Config {
    /// Returns the defaults at this rendezvous point: a cache of 1 MiB for each stream, sources that
    /// wait for the embedder's own readers with [`Grant::Block`](crate::Grant::Block), and the best
    /// backend that the kernel permits. No tool can hold back a source: for tools a full cache drops
    /// the newest bytes.
    ///
    /// ```
    /// use iof_engine::{Config, Engine, Policy, Rendezvous};
    /// let mut config = Config::new(Rendezvous::None);
    /// config.policy = Policy::DropOldest;
    /// let engine = Engine::start(config)?;
    /// # Ok::<(), iof_engine::StartError>(())
    /// ```
    pub fn new(rendezvous: Rendezvous) -> Config {
        Config {
            cache_size: None,
            cache_total: DEFAULT_CACHE_TOTAL,
            policy: Policy::Block,
            buffering: Buffering::default(),
            max_cache_size: MAX_CACHE_SIZE,
            backend: None,
            rendezvous,
            guardian: None,
            log: LogConfig::default(),
        }
    }

    /// Sets the engine's defaults from directives: those of RFC0025, such as `PMIX_IOF_CACHE_SIZE`,
    /// and `PMIX_SERVER_GATEWAY`. Returns the keys of the optional directives that can't be
    /// honoured.
    ///
    /// # Errors
    /// A required directive can't be honoured. The configuration is then unchanged.
    ///
    /// ```
    /// use iof_engine::Config;
    /// use iof_proto::Info;
    /// use iof_proto::directive::key;
    /// let mut config = Config::default();
    /// config.apply_directives(&[Info::required(key::PMIX_IOF_CACHE_SIZE, 65536u32)])?;
    /// assert_eq!(config.cache_size, Some(65536));
    /// # Ok::<(), iof_proto::Failure>(())
    /// ```
    pub fn apply_directives(&mut self, infos: &[Info]) -> Result<Vec<String>, Failure> {
        let (directives, ignored) = Directives::read(infos, DirectiveLevel::Server)?;
        self.log.gateway = directives.gateway.unwrap_or(self.log.gateway);
        self.cache_size = directives.cache_size.or(self.cache_size);
        self.policy = policy(directives.drop).unwrap_or(self.policy);
        self.buffering = self.buffering.under(&directives);
        Ok(ignored)
    }
}

impl Buffering {
    /// Returns the grouping after `directives` have overridden parts of it.
    pub(crate) fn under(self, directives: &Directives) -> Buffering {
        Buffering {
            size: directives.buffering_size.unwrap_or(self.size),
            time: directives.buffering_time.or(self.time),
        }
    }
}

/// Returns the policy that a directive asks for, if there is one.
pub(crate) fn policy(drop: Option<DropPolicy>) -> Option<Policy> {
    drop.map(|drop| match drop {
        DropPolicy::Oldest => Policy::DropOldest,
        DropPolicy::Newest => Policy::DropNewest,
    })
}

impl Default for Config {
    /// Returns the [defaults](Config::new) for an engine in the user's rendezvous directory.
    fn default() -> Self {
        Config::new(Rendezvous::Session(None))
    }
}

/// The channels to which an engine logs messages (`PMIx_Log`), and their settings.
#[derive(Clone, Debug, Default)]
pub struct LogConfig {
    /// The channels for messages that do not name a channel, in order of preference
    /// (`plog_base_order`).
    pub order: Order,
    /// Whether a message goes only to the first channel that accepts it, unless the message
    /// specifies otherwise (`plog_base_log_once`).
    pub once: bool,
    /// The syslog of this node.
    pub syslog: Syslog,
    /// The mail server for requests that do not name one. With `None`, the gateway sends email if
    /// there is one, otherwise the node's own mail server.
    pub mail: Option<MailServer>,
    /// The path of the job record, a file for logged messages. It is created with mode 0600 for the
    /// first message, and remains when the engine ends. With `None`, the path is that of the
    /// engine's socket with `.record` appended; a file that exists there is renamed to
    /// `.record.old`. An engine without a socket and without this path keeps no record.
    pub job_record: Option<PathBuf>,
    /// Whether this engine is a gateway (`PMIX_SERVER_GATEWAY`). The syslog of a gateway is the
    /// global one. Other engines connect to it as tools do, see [`ViaGateway`](crate::ViaGateway).
    pub gateway: bool,
}

/// The place at which tools find an engine (RFC0001, RFC0010), see [`iof_proto::rendezvous`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// No rendezvous point: only the embedding process can attach.
    None,
    /// An engine of the user's session, which tools find by pid or by the name of a job. The
    /// directory is this one or, if `None`, the user's own one below PMIX_SERVER_TMPDIR, TMPDIR,
    /// TEMP, TMP or /tmp.
    Session(Option<PathBuf>),
    /// An engine that runs the ranks of one node of a job, and whose front end is elsewhere. Tools
    /// find it by its pid, or if no engine of a session matches what they search for. The directory
    /// is chosen as that of a session.
    Agent(Option<PathBuf>),
    /// The system-level engine of the node, which tools prefer to engines of sessions. The
    /// directory is this one or, if `None`, PMIX_SYSTEM_TMPDIR, TMPDIR, TEMP, TMP or /tmp. Every
    /// user may connect, but only tools of the engine's user and of root are approved unless the
    /// [`Host`](crate::Host) approves others.
    System(Option<PathBuf>),
}

/// One program of a job, run by some of its ranks (PMIx's application, `pmix_app_t`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct App {
    /// The number of ranks that run the program, at least 1.
    pub nprocs: u32,
    /// The program: a path, or a name that is looked up in the `PATH` of the ranks' environment. A
    /// path that does not begin with a slash is relative to `cwd`.
    pub program: OsString,
    /// The arguments, without the program's own name.
    pub args: Vec<OsString>,
    /// Variables that are added to the embedder's environment, or replace variables of the same
    /// name. If a name occurs more than once, the last value is used. The variables that the engine
    /// sets (see [`JobSpec`]) can't be replaced.
    pub env: Vec<(OsString, OsString)>,
    /// The working directory of the ranks; the embedder's own if `None`.
    pub cwd: Option<PathBuf>,
    /// Whether stdout and stderr of a rank are one pipe, as with `2>&1` in a shell. What the rank
    /// writes to either arrives on its stdout channel, in the order of the writes. Its stderr
    /// channel ends at once. This is always so for a rank with a pty.
    pub merge_stderr: bool,
}

impl App {
    /// Returns an app of one rank that runs `program` with `args`, in the embedder's environment
    /// and working directory.
    pub fn new<A: Into<OsString>>(program: impl Into<OsString>, args: impl IntoIterator<Item = A>) -> App {
        let args = args.into_iter().map(Into::into).collect();
        App { nprocs: 1, program: program.into(), args, env: Vec::new(), cwd: None, merge_stderr: false }
    }

    /// Sets the number of ranks that run the program.
    pub fn ranks(mut self, nprocs: u32) -> App {
        self.nprocs = nprocs;
        self
    }

    /// Gives each rank one pipe for stdout and stderr, see the field of this name.
    pub fn merge_stderr(mut self) -> App {
        self.merge_stderr = true;
        self
    }
}

/// The processors on which the ranks of a job run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Binding {
    /// Those of the thread that starts the job.
    #[default]
    None,
    /// One core for each rank, in ascending order, of those on which the thread that starts the job
    /// may run. A job has at most as many ranks here.
    Core,
}

/// The protocol by which the ranks of a job start MPI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mpi {
    /// None: each rank of an MPI program is a world of its own. The ranks inherit all variables of
    /// the embedder, also those with which another launcher has started it. For an embedder that
    /// serves MPI itself.
    #[default]
    None,
    /// PMIx if a program of the job needs it as far as its file tells (linked with Open MPI 5 or
    /// libpmix), or if the variable `IOF_LIBPMIX` is set and no program is linked with MPICH.
    /// Otherwise PMI-1. Programs that such a program is an argument of, as of env(1), count as
    /// well.
    Auto,
    /// PMI-1, as of MPICH, Intel MPI and MVAPICH. Each rank has a socket to the engine. Ranks do
    /// not inherit the variables by which another launcher has connected the embedder.
    ///
    /// `MPI_Abort` ends the job with its code ([`EndCause::Abort`](crate::EndCause::Abort)). A rank
    /// that exits with code 0 between `MPI_Init` and `MPI_Finalize` has failed
    /// ([`Exit::Unfinalized`](crate::Exit::Unfinalized)). `MPI_Comm_spawn` and `MPI_Publish_name`
    /// return errors. A job with ranks elsewhere cannot have it.
    Pmi1,
    /// PMIx, as of Open MPI 5, with the consequences of [`Mpi::Pmi1`]. The server is libpmix, which
    /// is opened with dlopen(3): that of the variable `IOF_LIBPMIX`, of the first program that
    /// needs one, or the system's. It has a thread of its own. A process can have one PMIx server:
    /// an embedder that is a PMIx server already serves its ranks itself.
    Pmix,
}

/// A job: a list of programs, and the number of ranks that run each. The ranks of an app are
/// numbered after those of the apps before it.
///
/// Each rank has these variables in its environment:
///
/// | name | meaning |
/// |---|---|
/// | `IOF_NSPACE` | the job's name |
/// | `IOF_RANK` | the rank, from 0 |
/// | `IOF_NPROCS` | the number of ranks in the job |
/// | `IOF_APPNUM` | the number of the rank's app, from 0 |
/// | `IOF_STDDIAG_FD` | the descriptor of stddiag |
/// | `IOF_SERVER` | the path of the engine's socket, to which tools that a rank starts connect; empty without a socket |
///
/// `PMIX_NAMESPACE`, `PMIX_RANK` and the like are not set, because a PMIx client takes them as a
/// sign of a PMIx server that it can connect to. A launcher with such a server sets them in
/// [`App::env`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobSpec {
    /// The job's name.
    pub nspace: Nspace,
    /// The programs that its ranks run, at least one.
    pub apps: Vec<App>,
    /// The source of each rank's stdin. The wildcard rank stands for all ranks that are not named.
    /// A rank that is not included reads /dev/null.
    ///
    /// At most one rank can have the embedder's own stdin ([`Stdin::Inherit`]). The stdin of a rank
    /// with [`Stdin::Pipe`] is open: the embedder and tools can [push](iof_tool::Tool::push) to it.
    /// The rank reads the end of file after a push with `PMIX_IOF_COMPLETE`.
    ///
    /// A rank with a pty reads its terminal. With [`Stdin::Inherit`] it reads what the embedder
    /// types there ([`Job::pty`](crate::Job::pty)). With [`Stdin::Null`] it reads the end of file.
    /// [`Stdin::Pipe`] and [`Stdin::File`] are errors for such a rank.
    ///
    /// If the directives ask for stdin to be forwarded (`PMIX_FWD_STDIN`), rank 0 has
    /// [`Stdin::Pipe`] unless it is named here or has a pty.
    pub stdin: BTreeMap<Rank, Stdin>,
    /// The ranks with [`Stdin::Pipe`] to which only the embedder's own tools may push
    /// ([`Engine::attach`](crate::Engine::attach)). The wildcard rank has no effect here.
    pub own_stdin: BTreeSet<Rank>,
    /// The ways in which these ranks may be answered, for an embedder that knows them better than the
    /// engine ([`JobSpec::interaction`]). The wildcard rank has no effect here.
    pub interactions: BTreeMap<Rank, Interaction>,
    /// The ranks with a pseudo-terminal, and its initial settings. The wildcard rank stands for all
    /// ranks that are not named. What such a rank writes to stdout, stderr and /dev/tty arrives on
    /// its stdout channel, unchanged and in the order of the writes. Its stderr channel ends at
    /// once. The rank leads a session of its own, and a process group in it.
    pub ptys: BTreeMap<Rank, Pty>,
    /// The ranks' process groups.
    ///
    /// A rank in a group of its own would be stopped as soon as it reads the embedder's terminal
    /// (SIGTTIN, see credentials(7)). So a rank with [`Stdin::Inherit`] always stays in the
    /// embedder's group if the embedder's stdin is its controlling terminal.
    pub process_group: ProcessGroup,
    /// The time for which the streams of an exited rank may stay open. They stay open while a
    /// process that the rank started holds them. After that time they are completed with the bytes
    /// written so far (see [`JobStatus::cut_off`](crate::JobStatus::cut_off)), and later writes
    /// raise SIGPIPE. If a reader with [`Grant::Block`](crate::Grant::Block) holds the stream back,
    /// the end of the stream waits for that reader as well. `None` means without limit.
    pub grace: Option<Duration>,
    /// The failures of a rank that end the job. The engine then sends SIGTERM and SIGCONT to the
    /// other local ranks as [`Job::signal`](crate::Job::signal) does, and after `kill_wait` SIGKILL
    /// to those that still run. Streams that are open two seconds after that are completed with the
    /// bytes written so far.
    pub kill_on_bad_exit: KillOnBadExit,
    /// The time between SIGTERM and SIGKILL when the engine ends the job early.
    pub kill_wait: Duration,
    /// The time that the job may take, from the start of its first rank to the end of its last
    /// stream. When it is over, the engine ends the job as after a failure, and
    /// [`JobStatus::code`](crate::JobStatus::code) is [`TIMEOUT_CODE`](crate::TIMEOUT_CODE). Ranks
    /// elsewhere are not ended. `None` means without limit.
    pub timeout: Option<Duration>,
    /// The directives for this job (RFC0025), which override the engine's [`Config`].
    pub directives: Directives,
    /// The protocol by which the ranks start MPI.
    pub mpi: Mpi,
    /// The command `iof` of this version, if tools of PMIx may attach to the job by PMIx's own
    /// protocol: a path, or a name to look up in `PATH`. The engine then listens on the loopback
    /// interface and starts this command for each tool, as a process of its own. PMIx's rendezvous
    /// files in `TMPDIR` lead to it by the pid of the embedder, by `iof-PID` and by the name of the
    /// job. The job must have PMIx, whatever its ranks are ([`Mpi::Pmix`]), and the engine a
    /// socket. If it does not listen, the job runs nevertheless, and a warning is logged. The
    /// command of the first job of an engine serves all jobs.
    pub pmix_tools: Option<PathBuf>,
    /// The processors on which the ranks run.
    pub binding: Binding,
    /// Whether variables by which another launcher serves MPI to this process are hidden from the
    /// ranks. A job with an MPI protocol hides them always.
    pub hide_launcher: bool,
    /// The ranks that this engine starts; `None` for all. The numbers of ranks in `apps` are those
    /// of the whole job, also if this engine starts some of its ranks only. The engine of a node
    /// does not know the other ranks unless `elsewhere` is set.
    pub local: Option<BTreeSet<Rank>>,
    /// Whether the job also has remote ranks. If so, their output may be
    /// [delivered](crate::Engine::deliver), and the job does not end before
    /// [`Engine::end_job`](crate::Engine::end_job) is called.
    pub elsewhere: bool,
}

impl JobSpec {
    /// Returns a job of `apps` with local ranks only. Every rank reads /dev/null, has no pty and
    /// leads a process group of its own. Streams may stay open without limit after a rank's exit.
    /// The job is never ended early.
    pub fn new(nspace: Nspace, apps: Vec<App>) -> JobSpec {
        JobSpec {
            nspace,
            apps,
            stdin: BTreeMap::new(),
            own_stdin: BTreeSet::new(),
            interactions: BTreeMap::new(),
            ptys: BTreeMap::new(),
            process_group: ProcessGroup::Own,
            grace: None,
            kill_on_bad_exit: KillOnBadExit::Never,
            kill_wait: DEFAULT_KILL_WAIT,
            timeout: None,
            directives: Directives::default(),
            mpi: Mpi::None,
            pmix_tools: None,
            binding: Binding::None,
            hide_launcher: false,
            local: None,
            elsewhere: false,
        }
    }

    /// Returns the settings of a rank's pty, if it has one.
    pub(crate) fn pty(&self, rank: Rank) -> Option<Pty> {
        self.ptys.get(&rank).or_else(|| self.ptys.get(&Rank::WILDCARD)).copied()
    }

    /// Returns the source of a rank's stdin.
    pub(crate) fn stdin_of(&self, rank: Rank) -> Stdin {
        let named = self.stdin.get(&rank).or_else(|| self.stdin.get(&Rank::WILDCARD));
        match named {
            Some(stdin) => stdin.clone(),
            None if rank == Rank(0) && self.directives.stdin && self.pty(rank).is_none() => Stdin::Pipe,
            None => Stdin::Null,
        }
    }

    /// Returns who may answer a rank, which readers of its output must know that wait for the ends of
    /// lines. The embedder's own stdin is examined for ranks that inherit it or are listed in
    /// `own_stdin`: a file or /dev/null answers nothing.
    pub fn interaction(&self, rank: Rank) -> Interaction {
        match self.stdin_of(rank) {
            _ if self.pty(rank).is_some() => Interaction::Unbuffered,
            _ if self.interactions.contains_key(&rank) => {
                self.interactions.get(&rank).copied().unwrap_or_default()
            }
            Stdin::Null | Stdin::File(_) => Interaction::None,
            Stdin::Pipe if !self.own_stdin.contains(&rank) => Interaction::Piped,
            Stdin::Inherit | Stdin::Pipe => own_interaction(),
        }
    }

    /// Returns the number of ranks of all apps.
    pub fn nprocs(&self) -> u64 {
        self.apps.iter().map(|app| u64::from(app.nprocs)).sum()
    }
}

/// Returns who writes to the stdin of this process.
fn own_interaction() -> Interaction {
    let stdin = io::stdin();
    let kind = fstat(&stdin).map_or(0, |found| found.st_mode & libc::S_IFMT);
    match kind {
        _ if isatty(&stdin).unwrap_or(false) => Interaction::Typed,
        libc::S_IFIFO | libc::S_IFSOCK if is_hung_up(stdin.as_fd()) => Interaction::None,
        libc::S_IFIFO | libc::S_IFSOCK => Interaction::Piped,
        _ => Interaction::None,
    }
}

#[cfg(test)]
mod tests {
    use iof_proto::attribute::{Place, mismatches};

    use super::*;

    #[test]
    fn an_engine_honours_exactly_the_attributes_of_the_table() {
        let accepts = |info: &Info| Config::default().apply_directives(std::slice::from_ref(info)).is_ok();
        assert_eq!(mismatches(&[Place::Server], accepts), []);
    }
}
