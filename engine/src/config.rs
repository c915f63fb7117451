//! What an embedder decides: how the engine caches, where tools find it, what a job is.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::log::LogConfig;
use iof_capture::{BackendKind, ProcessGroup, Pty, Stdin};
use iof_proto::directive::{DirectiveLevel, DropPolicy, key};
use iof_proto::{Directives, Failure, Info, InfoValue, Nspace, Rank};
use iof_shm_ring::Policy;
use nix::libc;

/// Bytes of cache for each source and channel, unless the embedder says otherwise.
pub const DEFAULT_CACHE_SIZE: u32 = 1 << 20;

/// The smallest cache, in bytes: whoever asks for less gets this. A read takes a quarter of a cache
/// at most, and one of a pipe in packet mode (O_DIRECT, see pipe(2)) must have room for `PIPE_BUF`
/// bytes, or the kernel throws some away.
pub const MIN_CACHE_SIZE: u32 = 4 * libc::PIPE_BUF as u32;

/// The largest cache that a registration may ask for, unless the embedder says otherwise.
pub const MAX_CACHE_SIZE: u32 = 16 << 20;

/// How bytes are put together before a reader gets them. By default it gets them as they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffering {
    /// So many bytes together (`PMIX_IOF_BUFFERING_SIZE`), or half a cache if that is less. 0: as
    /// they come, or, where there is a time, as many as come in it.
    pub size: u32,
    /// Or what there is after so long (`PMIX_IOF_BUFFERING_TIME`). Without it, only the end of the
    /// stream or of the registration brings fewer.
    pub time: Option<Duration>,
}

/// How an engine behaves. [`Config::direct`] changes it by PMIx's directives.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes of cache for each source and channel (`PMIX_IOF_CACHE_SIZE`), [`MIN_CACHE_SIZE`] at
    /// least.
    pub cache_size: u32,
    /// What happens when a cache is full: `PMIX_IOF_DROP_NEWEST`, `PMIX_IOF_DROP_OLDEST`, or
    /// sources wait for the readers that may hold them back ([`Grant`](crate::Grant)).
    pub policy: Policy,
    /// How readers get their bytes, unless their registration or job says otherwise.
    pub buffering: Buffering,
    /// The largest cache that a registration may ask for, in bytes. [`MIN_CACHE_SIZE`] it has in
    /// any case.
    pub max_cache_size: u32,
    /// What to read the ranks' pipes with; `None`: io_uring if the kernel gives one, else epoll.
    pub backend: Option<BackendKind>,
    /// Where tools find this engine.
    pub rendezvous: Rendezvous,
    /// Where messages are logged to.
    pub log: LogConfig,
}

impl Config {
    /// Takes directives of RFC0025 as the engine's defaults, `PMIX_IOF_CACHE_SIZE` and so on, and
    /// `PMIX_SERVER_GATEWAY`. Gives the keys of those that are optional and can't be honoured.
    ///
    /// # Errors
    /// A required one can't be honoured; nothing is changed then.
    ///
    /// ```
    /// use iof_engine::Config;
    /// use iof_proto::directive::{Info, key};
    /// let mut config = Config::default();
    /// config.direct(&[Info::required(key::PMIX_IOF_CACHE_SIZE, 65536u32)])?;
    /// assert_eq!(config.cache_size, 65536);
    /// # Ok::<(), iof_proto::Failure>(())
    /// ```
    pub fn direct(&mut self, infos: &[Info]) -> Result<Vec<String>, Failure> {
        let is_gateway =
            |info: &&Info| info.key == key::PMIX_SERVER_GATEWAY && matches!(info.value, InfoValue::Bool(_));
        let (roles, others): (Vec<&Info>, Vec<&Info>) = infos.iter().partition(is_gateway);
        let others: Vec<Info> = others.into_iter().cloned().collect();
        let (directives, ignored) = Directives::read(&others, DirectiveLevel::Server)?;
        self.log.gateway = roles.last().map_or(self.log.gateway, |role| role.value == InfoValue::Bool(true));
        self.cache_size = directives.cache_size.unwrap_or(self.cache_size);
        self.policy = policy(directives.drop).unwrap_or(self.policy);
        self.buffering = self.buffering.under(&directives);
        Ok(ignored)
    }
}

impl Buffering {
    /// What becomes of it when somebody says more.
    pub(crate) fn under(self, directives: &Directives) -> Buffering {
        Buffering {
            size: directives.buffering_size.unwrap_or(self.size),
            time: directives.buffering_time.or(self.time),
        }
    }
}

/// The policy that a directive asks for, if one does.
pub(crate) fn policy(drop: Option<DropPolicy>) -> Option<Policy> {
    drop.map(|drop| match drop {
        DropPolicy::Oldest => Policy::DropOldest,
        DropPolicy::Newest => Policy::DropNewest,
    })
}

impl Default for Config {
    /// A megabyte for each stream, the RFC's drop newest, the best backend there is, and the usual
    /// rendezvous directory.
    fn default() -> Self {
        Config {
            cache_size: DEFAULT_CACHE_SIZE,
            policy: Policy::DropNewest,
            buffering: Buffering::default(),
            max_cache_size: MAX_CACHE_SIZE,
            backend: None,
            rendezvous: Rendezvous::Session(None),
            log: LogConfig::default(),
        }
    }
}

/// Where tools find an engine (RFC0001, RFC0010), see [`iof_proto::rendezvous`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// Nowhere: only the embedding process attaches.
    None,
    /// By pid or by the name of a job, as one engine of the user's session: in this directory, or
    /// else in the user's own one below PMIX_SERVER_TMPDIR, TMPDIR, TEMP, TMP or /tmp.
    Session(Option<PathBuf>),
    /// As the node's one system-level engine, before those of sessions: in this directory, or else
    /// in PMIX_SYSTEM_TMPDIR, TMPDIR, TEMP, TMP or /tmp. Everybody may connect, but only this
    /// user and root are admitted, unless the [`Host`](crate::Host) admits others.
    System(Option<PathBuf>),
}

/// One program of a job, run by some of its ranks (PMIx's application, `pmix_app_t`).
#[derive(Clone, Debug)]
pub struct App {
    /// How many ranks run it, 1 at least.
    pub nprocs: u32,
    /// What they run: a path, or a name to be looked up in the `PATH` that they are going to have.
    /// A path that does not begin with a slash begins at `cwd`.
    pub program: OsString,
    /// Its arguments, without its own name.
    pub args: Vec<OsString>,
    /// Added to the embedder's environment, in place of what has the same name; the last of equal
    /// names counts. The engine's own names, `IOF_...`, can't be replaced.
    pub env: Vec<(OsString, OsString)>,
    /// Where the ranks start; where the embedder is if `None`.
    pub cwd: Option<PathBuf>,
}

impl App {
    /// One rank that runs `program` with `args`, in the embedder's environment and directory.
    pub fn new<A: Into<OsString>>(program: impl Into<OsString>, args: impl IntoIterator<Item = A>) -> App {
        let args = args.into_iter().map(Into::into).collect();
        App { nprocs: 1, program: program.into(), args, env: Vec::new(), cwd: None }
    }
}

/// A job: programs, and how many ranks run each. Ranks are numbered on from one to the next.
///
/// Each rank finds out who it is in its environment:
///
/// | name | meaning |
/// |---|---|
/// | `IOF_NSPACE` | the job's name |
/// | `IOF_RANK` | its rank, from 0 on |
/// | `IOF_NPROCS` | how many ranks the job has |
/// | `IOF_APPNUM` | the number of its app, from 0 on |
/// | `IOF_STDDIAG_FD` | the descriptor for what goes to stddiag |
/// | `IOF_SERVER` | the engine's socket, by which tools that a rank starts find it; empty if there is none |
///
/// `PMIX_NAMESPACE`, `PMIX_RANK` and the like are not set: to a PMIx client they say that there is
/// a PMIx server for it to connect to, so they are for the launcher that has one (in [`App::env`]).
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// The job's name.
    pub nspace: Nspace,
    /// What its ranks run, 1 at least.
    pub apps: Vec<App>,
    /// Where ranks have their stdin from; the wildcard rank stands for all that are not named. All
    /// others read /dev/null. One rank at most can have the embedder's own
    /// ([`Stdin::Inherit`]). What has [`Stdin::Pipe`] is open: whoever
    /// [pushes](iof_tool::Tool::push) to it, the embedder or a tool, is read there, and it is at
    /// its end when somebody has pushed that. A rank with a pty reads its terminal, and what
    /// the embedder types there ([`Job::pty`](crate::Job::pty)) if this says that it has the
    /// embedder's stdin, else the end; nothing else is possible there.
    ///
    /// If the directives say that stdin is to be forwarded (`PMIX_FWD_STDIN`), rank 0 is open
    /// unless it is named here.
    pub stdin: BTreeMap<Rank, Stdin>,
    /// Ranks with [`Stdin::Pipe`] to which only the embedder's own tools may push
    /// ([`Engine::attach`](crate::Engine::attach)): to others they are not open.
    pub own_stdin: BTreeSet<Rank>,
    /// Ranks with a pseudo-terminal, and how it is at first; the wildcard rank stands for all that
    /// are not named. What such a rank writes to stdout, stderr and /dev/tty comes on its
    /// stdout channel, in this order and unchanged; its stderr channel is at its end at once.
    /// It leads a session of its own, and a process group in it.
    pub ptys: BTreeMap<Rank, Pty>,
    /// The ranks' process groups.
    ///
    /// In a group of its own, a rank would be stopped as soon as it reads the embedder's terminal
    /// (SIGTTIN, see credentials(7)). So the rank of [`stdin`](JobSpec::stdin) stays in the
    /// embedder's group all the same if that stdin is the embedder's controlling terminal.
    pub process_group: ProcessGroup,
    /// How long the streams of a rank that has exited may stay open, because a process that it
    /// started holds them. Then they are completed with what was written by that time, see
    /// [`JobStatus::cut_off`](crate::JobStatus); who writes later gets SIGPIPE. Where a stream
    /// waits for a reader that may hold it back, so does its end. For ever if `None`.
    pub grace: Option<Duration>,
    /// What its spawner asks for (RFC0025), over what the engine's [`Config`] says.
    pub directives: Directives,
    /// It has other ranks, which run elsewhere: their output may be
    /// [delivered](crate::Engine::deliver), and the job is
    /// over when [`Engine::end_job`](crate::Engine::end_job) says so.
    pub elsewhere: bool,
}

impl JobSpec {
    /// A job of `apps` in which nobody has the embedder's stdin or a pty, every rank runs here and
    /// has a process group of its own, and streams may stay open for ever.
    pub fn new(nspace: Nspace, apps: Vec<App>) -> JobSpec {
        JobSpec {
            nspace,
            apps,
            stdin: BTreeMap::new(),
            own_stdin: BTreeSet::new(),
            ptys: BTreeMap::new(),
            process_group: ProcessGroup::Own,
            grace: None,
            directives: Directives::default(),
            elsewhere: false,
        }
    }

    /// The pty of a rank, if it has one.
    pub(crate) fn pty(&self, rank: Rank) -> Option<Pty> {
        self.ptys.get(&rank).or_else(|| self.ptys.get(&Rank::WILDCARD)).copied()
    }

    /// Where a rank has its stdin from.
    pub(crate) fn stdin_of(&self, rank: Rank) -> Stdin {
        let named = self.stdin.get(&rank).or_else(|| self.stdin.get(&Rank::WILDCARD));
        match named {
            Some(stdin) => stdin.clone(),
            None if rank == Rank(0) && self.directives.stdin && self.pty(rank).is_none() => Stdin::Pipe,
            None => Stdin::Null,
        }
    }

    /// How many ranks it has.
    pub fn nprocs(&self) -> u64 {
        self.apps.iter().map(|app| u64::from(app.nprocs)).sum()
    }
}
