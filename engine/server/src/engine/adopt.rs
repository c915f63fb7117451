//! Adoption of ranks that the embedder has started: their descriptors, and the detection of their
//! exits.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use iof_capture::{Child, Stopped, TooFewFiles, TooFewMaps};
use iof_core::{EarlyEndPolicy, Launching, MAX_RANKS, NewJob, StdinAccess};
use iof_proto::{Channel, Directives, Nspace, Rank, StdinUnavailable};
use iof_shm_ring::{CacheBudget, CreateError, Interaction};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::socket::{SockType, SockaddrStorage, getpeername, getsockopt, sockopt};
use nix::sys::stat::{FileStat, fstat};
use nix::unistd::{isatty, pipe2};

use crate::engine::Engine;
use crate::engine::register::RunningRank;
use crate::job::Job;
use crate::tables::files::{MAPS_PER_RANK, TRANSIENT_FDS, check_files_of_job, check_maps_of_job};

/// The specification of a job whose ranks the embedder has started already.
#[derive(Debug)]
pub struct AdoptSpec {
    /// The job's name.
    pub nspace: Nspace,
    /// The job's local ranks, at least one.
    pub ranks: Vec<AdoptedRank>,
    /// The time for which streams of exited ranks may stay open, see
    /// [`JobSpec::grace`](crate::JobSpec::grace).
    pub grace: Option<Duration>,
    /// The directives for this job, see [`JobSpec::directives`](crate::JobSpec::directives).
    pub directives: Directives,
    /// Set if the job also has remote ranks, see [`JobSpec::elsewhere`](crate::JobSpec::elsewhere).
    pub elsewhere: bool,
}

impl AdoptSpec {
    /// Returns a job of `ranks` without directives and without remote ranks. Streams may stay open
    /// without limit after a rank's exit.
    pub fn new(nspace: Nspace, ranks: Vec<AdoptedRank>) -> AdoptSpec {
        AdoptSpec { nspace, ranks, grace: None, directives: Directives::default(), elsewhere: false }
    }
}

/// A rank that the embedder has started, with the descriptors from which its output is read.
///
/// The descriptor of an output channel is the read end of a pipe or FIFO, a connected stream socket,
/// or a terminal (a pty's master). It may be in blocking or non-blocking mode. The engine reads it to
/// the end of file; no other process or thread may read it. The stream of a channel without a descriptor is
/// complete from the start, without bytes.
#[derive(Debug)]
pub struct AdoptedRank {
    /// The number of the rank in the job. The ranks of a spec need not start at 0: a node may adopt
    /// ranks 8 to 15.
    pub rank: Rank,
    /// The executable that process tables show.
    pub executable: String,
    /// The descriptors of its channels: those from which its output is read, and the write end of the
    /// pipe of its stdin, if tools may push to it. Only the engine may write to this pipe.
    pub files: BTreeMap<Channel, OwnedFd>,
    /// The method by which its exit is detected.
    pub process: Process,
}

impl AdoptedRank {
    /// Returns a rank without descriptors, whose streams are complete from the start. Add those that
    /// it has:
    ///
    /// ```
    /// # use iof_engine::{AdoptedRank, Process};
    /// # use iof_proto::{Channel, Rank};
    /// # use std::process::{Command, Stdio};
    /// let mut child = Command::new("true").stdout(Stdio::piped()).spawn()?;
    /// let stdout = child.stdout.take().unwrap();
    /// let rank = AdoptedRank::new(Rank(0), "true", Process::Pid(child.id())).with(Channel::Stdout, stdout);
    /// # child.wait()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new(rank: Rank, executable: impl Into<String>, process: Process) -> AdoptedRank {
        AdoptedRank { rank, executable: executable.into(), files: BTreeMap::new(), process }
    }

    /// Adds the descriptor of a channel.
    #[must_use]
    pub fn with(mut self, channel: Channel, file: impl Into<OwnedFd>) -> AdoptedRank {
        self.files.insert(channel, file.into());
        self
    }
}

/// The method by which the engine detects that an adopted rank has exited.
///
/// With [`Process::Pid`] and [`Process::Pidfd`], the embedder hands the process over. The engine
/// waits for the process, so no other thread may wait for it, or for any child (see waitpid(2)).
/// The engine also sends the process the signals of [`Job::signal`]. If the process leads a process
/// group when it is adopted, the whole group receives them, otherwise also its descendants in the
/// embedder's group. If the process is not a child of the
/// embedder, its exit is detected but reported as [`Exit::Unknown`](crate::Exit).
#[derive(Debug)]
pub enum Process {
    /// The pid of the rank. The rank must be a child of this process that no thread has waited for:
    /// after a wait, the kernel may assign the pid to another process.
    Pid(u32),
    /// A pidfd of the rank, see pidfd_open(2).
    Pidfd(OwnedFd),
    /// The embedder waits for the rank and reports its exit ([`Job::report_exit`]). The engine
    /// sends it no signals.
    Reported {
        /// The pid that process tables show; 0 if it is not known.
        pid: u32,
    },
}

/// The reason why ranks were not adopted. The descriptors in the [`AdoptSpec`] have been closed, so
/// writes of the ranks raise SIGPIPE.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// Another job has this name.
    #[error("job {0} already exists: choose another name")]
    NameTaken(Nspace),
    /// The job has no ranks, or more than [`MAX_RANKS`].
    #[error("invalid number of ranks {asked}: expected 1 to {limit}", limit = MAX_RANKS)]
    Ranks {
        /// The number of ranks in the spec.
        asked: usize,
    },
    /// A rank's number is out of range.
    #[error("invalid rank {rank}: expected 0 to {last}", last = MAX_RANKS.saturating_sub(1))]
    Number {
        /// The invalid number.
        rank: Rank,
    },
    /// A rank occurs twice.
    #[error("rank {rank} is specified twice")]
    Twice {
        /// The rank.
        rank: Rank,
    },
    /// The descriptor of stdin is not the write end of a pipe, or that of an output channel is
    /// neither the read end of a pipe, nor a connected stream socket, nor a terminal.
    #[error("rank {rank}'s {channel} is {what}: expected {}", match channel {
        Channel::Stdin => "the write end of a pipe",
        _ => "the read end of a pipe, a connected stream socket or a terminal",
    })]
    Kind {
        /// The rank with this descriptor.
        rank: Rank,
        /// The channel of the descriptor.
        channel: Channel,
        /// A description of the file.
        what: &'static str,
    },
    /// A pipe or socket occurs twice in the spec. Its bytes would be divided between two streams,
    /// or the bytes of two pushes would be mixed in it.
    #[error("rank {rank}'s {channel} is a pipe or socket that occurs twice: each channel needs its own")]
    Shared {
        /// The rank with the second occurrence.
        rank: Rank,
        /// The channel of the second occurrence.
        channel: Channel,
    },
    /// The exit of a process can't be detected.
    #[error(
        "cannot watch the process of rank {rank}: {source}; hand over a child that no thread has waited for"
    )]
    Process {
        /// The rank.
        rank: Rank,
        /// The error of pidfd_open(2).
        source: io::Error,
    },
    /// The process may open fewer files than the job needs.
    #[error("too few files for {ranks} ranks: {files}, or adopt fewer ranks")]
    Files {
        /// The number of ranks.
        ranks: usize,
        /// The numbers of open, required and allowed files.
        files: TooFewFiles,
    },
    /// The process may create fewer memory maps than the job needs.
    #[error("too few memory maps for {ranks} ranks: {maps}, or adopt fewer ranks")]
    Maps {
        /// The number of ranks.
        ranks: usize,
        /// The numbers of existing, required and allowed maps.
        maps: TooFewMaps,
    },
    /// There is no memory for a rank's rings.
    #[error("{source} (rank {rank})")]
    Rings {
        /// The rank.
        rank: Rank,
        /// The reason.
        source: CreateError,
    },
    /// The capture thread has ended.
    #[error(transparent)]
    Capture(#[from] Stopped),
}

impl Engine {
    /// Adopts ranks that run already as one job, and forwards their output. Tools that registered
    /// for the job before receive everything that is read from the descriptors.
    ///
    /// # Errors
    /// [`AdoptError`].
    pub fn adopt(&self, spec: AdoptSpec) -> Result<Job, AdoptError> {
        let AdoptSpec { nspace, ranks, grace, directives, elsewhere } = spec;
        check(&ranks, &self.starter.caches)?;
        let count = ranks.len() as u64;
        let mut launching = BTreeMap::new();
        let mut running_ranks = Vec::with_capacity(ranks.len());
        for rank in ranks {
            let number = rank.rank;
            let is_piped = rank.files.contains_key(&Channel::Stdin);
            let interaction = if is_piped { Interaction::Piped } else { Interaction::None };
            let streams = self
                .starter
                .streams(&nspace, number, &directives, count, interaction)
                .map_err(|source| AdoptError::Rings { rank: number, source })?;
            let (launching_rank, running_rank) = running_rank(rank)?;
            launching.insert(number, launching_rank);
            running_ranks.push((running_rank, streams));
        }
        let job = self
            .starter
            .begin(NewJob {
                nspace: &nspace,
                grace,
                early_end_policy: EarlyEndPolicy::never(),
                directives: &directives,
                elsewhere,
                is_part: false,
                launching,
                nodes: &[],
                is_direct: false,
            })
            .ok_or(AdoptError::NameTaken(nspace))?;
        let numbers = running_ranks.iter().map(|(running, _)| running.rank);
        let reserved = self.starter.reserve_readers(job.nspace(), numbers);
        let registered =
            reserved.map_err(|(rank, source)| AdoptError::Rings { rank, source }).and_then(|()| {
                let mut ranks = running_ranks.into_iter();
                ranks.try_for_each(|(rank, streams)| {
                    Ok(self.starter.register_rank(job.nspace(), rank, streams, None)?)
                })
            });
        self.starter.all_registered(&job);
        registered?;
        Ok(job)
    }
}

/// Checks all ranks before any of them is adopted.
fn check(ranks: &[AdoptedRank], caches: &CacheBudget) -> Result<(), AdoptError> {
    let asked = ranks.len();
    if asked == 0 || asked > MAX_RANKS as usize {
        return Err(AdoptError::Ranks { asked });
    }
    let (mut numbers, mut seen) = (HashSet::new(), HashSet::new());
    for AdoptedRank { rank, files, .. } in ranks {
        let rank = *rank;
        if rank.0 >= MAX_RANKS {
            return Err(AdoptError::Number { rank });
        }
        if !numbers.insert(rank) {
            return Err(AdoptError::Twice { rank });
        }
        for (&channel, file) in files {
            let checked = check_file(channel, file.as_fd());
            let stat = checked.map_err(|what| AdoptError::Kind { rank, channel, what })?;
            // Two pushes to one pipe would mix their bytes. The masters of all ptys are the same file.
            if !has_type(&stat, libc::S_IFCHR) && !seen.insert((stat.st_dev, stat.st_ino)) {
                return Err(AdoptError::Shared { rank, channel });
            }
        }
    }
    let needed = ranks.iter().map(files_for).fold(TRANSIENT_FDS, u64::saturating_add);
    check_files_of_job(needed, caches).map_err(|files| AdoptError::Files { ranks: asked, files })?;
    let maps = (asked as u64).saturating_mul(MAPS_PER_RANK);
    check_maps_of_job(maps, caches).map_err(|maps| AdoptError::Maps { ranks: asked, maps })
}

/// Returns how many files the engine opens for a rank: its rings, its pidfd, and a pipe for each
/// channel without a descriptor.
fn files_for(rank: &AdoptedRank) -> u64 {
    let streams = Channel::OUTPUTS.map(|channel| if rank.files.contains_key(&channel) { 1 } else { 2 });
    let pidfd = u64::from(matches!(rank.process, Process::Pid(_)));
    streams.into_iter().fold(pidfd, u64::saturating_add)
}

fn has_type(stat: &FileStat, file_type: libc::mode_t) -> bool {
    stat.st_mode & libc::S_IFMT == file_type
}

/// Checks that a file can be that of a channel, and returns its metadata. Returns a description of
/// the file otherwise.
fn check_file(channel: Channel, file: BorrowedFd<'_>) -> Result<FileStat, &'static str> {
    let stat = fstat(file).map_err(|_| "not an open file")?;
    let flags =
        fcntl(file, FcntlArg::F_GETFL).map(OFlag::from_bits_retain).map_err(|_| "not an open file")?;
    let (mode, is_path) = (flags & OFlag::O_ACCMODE, flags.contains(OFlag::O_PATH));
    if channel == Channel::Stdin {
        return match mode {
            _ if !has_type(&stat, libc::S_IFIFO) => Err("not a pipe"),
            OFlag::O_WRONLY if !is_path => Ok(stat),
            // The engine would be a reader of the pipe itself, so it could not detect that the rank
            // has closed its end.
            OFlag::O_RDWR => Err("also open for reading"),
            _ => Err("not open for writing"),
        };
    }
    if mode == OFlag::O_WRONLY || is_path {
        return Err("not open for reading");
    }
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFIFO => Ok(stat),
        libc::S_IFSOCK if getsockopt(&file, sockopt::SockType) != Ok(SockType::Stream) => {
            Err("a socket that is not a stream socket")
        }
        libc::S_IFSOCK if getpeername::<SockaddrStorage>(file.as_raw_fd()).is_err() => {
            Err("a socket that is not connected")
        }
        libc::S_IFSOCK => Ok(stat),
        libc::S_IFCHR if isatty(file).unwrap_or(false) => Ok(stat),
        libc::S_IFCHR => Err("a device"),
        libc::S_IFREG => Err("a regular file"),
        libc::S_IFDIR => Err("a directory"),
        _ => Err("a file of another kind"),
    }
}

/// Prepares a rank to be registered.
fn running_rank(rank: AdoptedRank) -> Result<(Launching, RunningRank), AdoptError> {
    let AdoptedRank { rank, executable, mut files, process } = rank;
    let unwatched = |source| AdoptError::Process { rank, source };
    let (pid, child) = match process {
        Process::Pid(pid) => (pid, Some(Child::adopt(pid).map_err(unwatched)?)),
        Process::Pidfd(pidfd) => {
            let child = Child::adopt_pidfd(pidfd).map_err(unwatched)?;
            (child.pid(), Some(child))
        }
        Process::Reported { pid } => (pid, None),
    };
    let stdin = files.remove(&Channel::Stdin);
    let file = |channel| match files.remove(channel) {
        Some(file) => Ok(file),
        // A pipe without a writer is at its end.
        None => pipe2(OFlag::O_CLOEXEC).map(|(end, _)| end).map_err(|error| AdoptError::Rings {
            rank,
            source: CreateError::Memory { step: "pipe2", len: 0, source: error.into() },
        }),
    };
    let pipes = Channel::OUTPUTS.iter().map(file).collect::<Result<_, _>>()?;
    let closed = StdinAccess::None(StdinUnavailable::NotOpen);
    let access = if stdin.is_some() { StdinAccess::All } else { closed };
    let running_rank = RunningRank { rank, child, stdin, access, pipes, pty: None };
    Ok((Launching { executable, pid, began: None, stdin: access }, running_rank))
}
