//! The specification of a job: its programs, and all that its ranks have and are.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use iof_shm_ring::Interaction;
use serde::{Deserialize, Serialize};

use crate::directive::{DIRECTIVES_VERSION, Directives};
use crate::job::nodes::MpiNodes;
use crate::job::path;
use crate::job::process::{ProcessGroup, Pty, Stdin};
use crate::names::{Nspace, Proc, Rank};

/// The version of [`JobSpec`], to which each change of it or of a type in it adds 1.
pub const JOB_VERSION: u32 = 4 + DIRECTIVES_VERSION;

/// Default of [`JobSpec::kill_wait`]: 2 seconds.
pub const DEFAULT_KILL_WAIT: Duration = Duration::from_secs(2);

/// One program of a job, run by some of its ranks (PMIx's application, `pmix_app_t`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    #[serde(with = "path::optional")]
    pub cwd: Option<PathBuf>,
    /// `true` if stdout and stderr of a rank are one pipe, as with `2>&1` in a shell. What the rank
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Binding {
    /// Those of the thread that starts the job.
    #[default]
    None,
    /// One core for each rank, in ascending order, of those on which the thread that starts the job
    /// may run. A job has at most as many ranks here.
    Core,
}

/// The place where the ranks of a job meet by PyTorch: that of its rank 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TorchMaster {
    /// The name or address of the node (`MASTER_ADDR`).
    pub host: String,
    /// The port on which the rank listens (`MASTER_PORT`).
    pub port: u16,
}

/// The protocol by which the ranks of a job start MPI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// `MPI_Abort` ends the job with its code (`EndCause::Abort`). A rank
    /// that exits with code 0 between `MPI_Init` and `MPI_Finalize` has failed
    /// (`Exit::Unfinalized`). A job with ranks elsewhere cannot have it, except with
    /// [`JobSpec::mpi_nodes`].
    Pmi1,
    /// PMIx, as of Open MPI 5, with the consequences of [`Mpi::Pmi1`]. The server is libpmix, which
    /// is opened with dlopen(3): that of the variable `IOF_LIBPMIX`, of the first program that
    /// needs one, or the system's. It has a thread of its own. A process can have one PMIx server:
    /// an embedder that is a PMIx server already serves its ranks itself.
    Pmix,
}

/// The failures of a rank that end its whole job, see
/// `JobSpec::kill_on_bad_exit`.
///
/// If a rank ends because of a signal that the engine sent to it, this is never such a failure (see
/// `RankExit::requested`). If SIGHUP, SIGINT, SIGQUIT or SIGTERM
/// killed it, or its exit code is 128 and the number of that signal, the job ends `SAME_REQUEST`
/// later, unless the embedder has sent that signal to the job by then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum KillOnBadExit {
    /// No failure. A rank that calls `MPI_Abort` ends the job nevertheless.
    #[default]
    Never,
    /// A signal killed the rank, or the rank exited between `MPI_Init` and `MPI_Finalize`.
    Signal,
    /// The rank failed in any way: by a signal, by an exit code other than 0, with
    /// `Exit::Unknown` or with
    /// `Exit::Unfinalized`.
    Always,
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// with [`Stdin::Pipe`] is open: the embedder and tools can push (`Tool::push`) to it.
    /// The rank reads the end of file after a push with `PMIX_IOF_COMPLETE`.
    ///
    /// A rank with a pty reads its terminal. With [`Stdin::Inherit`] it reads what the embedder
    /// types there (`Job::pty`). With [`Stdin::Null`] it reads the end of file.
    /// [`Stdin::Pipe`] and [`Stdin::File`] are errors for such a rank.
    ///
    /// If the directives ask for stdin to be forwarded (`PMIX_FWD_STDIN`), rank 0 has
    /// [`Stdin::Pipe`] unless it is named here or has a pty.
    pub stdin: BTreeMap<Rank, Stdin>,
    /// The ranks with [`Stdin::Pipe`] to which only the embedder's own tools may push
    /// (`Engine::attach`). The wildcard rank has no effect here.
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
    /// written so far (see `JobStatus::cut_off`), and later writes
    /// raise SIGPIPE. If a reader with `Grant::Block` holds the stream back,
    /// the end of the stream waits for that reader as well. `None` means without limit.
    pub grace: Option<Duration>,
    /// The failures of a rank that end the job. The engine then sends SIGTERM and SIGCONT to the
    /// other local ranks as `Job::signal` does, and after `kill_wait` SIGKILL
    /// to those that still run. Streams that are open two seconds after that are completed with the
    /// bytes written so far.
    pub kill_on_bad_exit: KillOnBadExit,
    /// The time between SIGTERM and SIGKILL when the engine ends the job early. A job that a client has
    /// the engine start with [`DEFAULT_KILL_WAIT`] has that of its parent, if this is another job.
    pub kill_wait: Duration,
    /// The time that the job may take, from its start to the end of its last
    /// stream. When it is over, the engine ends the job as after a failure, and
    /// `JobStatus::code` is `TIMEOUT_CODE`. Ranks
    /// elsewhere are not ended. `None` means without limit.
    pub timeout: Option<Duration>,
    /// The directives for this job (RFC0025), which override the engine's `Config`.
    pub directives: Directives,
    /// The protocol by which the ranks start MPI.
    pub mpi: Mpi,
    /// The process on whose behalf the job is started, which ranks with PMIx learn. In a request of a
    /// tool, its job is the parent of the new one. If it is `None`, or the engine has no such job,
    /// the tool is the parent from its first registration for the new job on.
    ///
    /// When the ranks of the parent have exited, or it disconnects, the engine sends SIGTERM to the
    /// ranks of the new job, and SIGKILL after [`JobSpec::kill_wait`] to those that still run. A job
    /// that uses MPI goes on if its parent has succeeded.
    pub parent: Option<Proc>,
    /// Values that the ranks find in the key-value space of their job by PMI-1, such as those of a
    /// rank that spawns the job. At most 63 bytes of printable ASCII as key, and 959 as value.
    pub pmi_values: BTreeMap<String, String>,
    /// The command `iof` of this version, if tools of PMIx may attach to the job by PMIx's own
    /// protocol: a path, or a name to look up in `PATH`. The engine then listens on the loopback
    /// interface and starts this command for each tool, as a process of its own. PMIx's rendezvous
    /// files in `TMPDIR` lead to it by the pid of the embedder, by `iof-PID` and by the name of the
    /// job. The job must have PMIx, whatever its ranks are ([`Mpi::Pmix`]), and the engine a
    /// socket. If it does not listen, the job runs nevertheless, and a warning is logged. The
    /// command of the first job of an engine serves all jobs.
    #[serde(with = "path::optional")]
    pub pmix_tools: Option<PathBuf>,
    /// The processors on which the ranks run.
    pub binding: Binding,
    /// The place where the ranks meet by PyTorch. They then have the variables of torchrun by which
    /// `torch.distributed.init_process_group` finds it, their numbers and those on their node. Variables of
    /// the programs override them.
    pub torch_master: Option<TorchMaster>,
    /// `true` if variables by which another launcher serves MPI to this process are hidden from the
    /// ranks. A job with an MPI protocol hides them always.
    pub hide_launcher: bool,
    /// The ranks that this engine starts; `None` for all. The numbers of ranks in `apps` are those
    /// of the whole job, also if this engine starts some of its ranks only. The engine of a node
    /// does not know the other ranks unless `elsewhere` is set.
    pub local: Option<BTreeSet<Rank>>,
    /// The nodes of all ranks, if the ranks that this engine starts are a part of a job that starts MPI.
    /// `Host::exchange` then passes on what they want of the others, and `Ending::Mpi` tells what
    /// becomes of them in MPI, which this engine does not judge.
    pub mpi_nodes: Option<MpiNodes>,
    /// `true` if the job also has remote ranks. If so, their output may be
    /// delivered (`Engine::deliver`), and the job does not end before
    /// `Engine::end_job` is called.
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
            parent: None,
            pmi_values: BTreeMap::new(),
            pmix_tools: None,
            binding: Binding::None,
            torch_master: None,
            hide_launcher: false,
            local: None,
            mpi_nodes: None,
            elsewhere: false,
        }
    }

    /// Returns the settings of a rank's pty, if it has one.
    pub fn pty(&self, rank: Rank) -> Option<Pty> {
        self.ptys.get(&rank).or_else(|| self.ptys.get(&Rank::WILDCARD)).copied()
    }

    /// Returns the source of a rank's stdin.
    pub fn stdin_of(&self, rank: Rank) -> Stdin {
        let named = self.stdin.get(&rank).or_else(|| self.stdin.get(&Rank::WILDCARD));
        match named {
            Some(stdin) => stdin.clone(),
            None if rank == Rank(0) && self.directives.stdin && self.pty(rank).is_none() => Stdin::Pipe,
            None => Stdin::Null,
        }
    }

    /// Returns who may answer a rank, which readers of its output must know that wait for the ends of
    /// lines. `own` examines the embedder's own stdin for ranks that inherit it or are listed in
    /// `own_stdin`: a file or /dev/null answers nothing.
    pub fn interaction(&self, rank: Rank, own: impl FnOnce() -> Interaction) -> Interaction {
        match (self.stdin_of(rank), self.interactions.get(&rank)) {
            _ if self.pty(rank).is_some() => Interaction::Unbuffered,
            (_, Some(interaction)) => *interaction,
            (Stdin::Null | Stdin::File(_), None) => Interaction::None,
            (Stdin::Pipe, None) if !self.own_stdin.contains(&rank) => Interaction::Piped,
            (Stdin::Inherit | Stdin::Pipe, None) => own(),
        }
    }

    /// Returns the number of ranks of all apps.
    pub fn nprocs(&self) -> u64 {
        self.apps.iter().map(|app| u64::from(app.nprocs)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn a_job_arrives_as_it_was_sent_with_paths_of_any_bytes() {
        let path = || PathBuf::from(OsString::from_vec(b"/a/\xff\xfe".to_vec()));
        let mut spec = JobSpec::new(Nspace::new("job").unwrap(), vec![App::new(path(), [path()])]);
        spec.apps[0].cwd = Some(path());
        spec.stdin = [(Rank(0), Stdin::File(path())), (Rank::WILDCARD, Stdin::Pipe)].into();
        spec.pmix_tools = Some(path());
        spec.grace = Some(Duration::MAX);
        let bytes = postcard::to_stdvec(&spec).unwrap();
        assert_eq!(postcard::from_bytes::<JobSpec>(&bytes).unwrap(), spec);
    }
}
