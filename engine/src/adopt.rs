//! Ranks that the embedder has started itself: their descriptors, and how the engine learns of
//! their end.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use iof_capture::{AddError, Child, TooFewFiles, TooFewMaps, check_files, check_maps};
use iof_proto::{Channel, Directives, Nspace, Rank, StdinUnavailable};
use iof_shm_ring::CreateError;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::socket::{SockType, SockaddrStorage, getpeername, getsockopt, sockopt};
use nix::sys::stat::{FileStat, fstat};
use nix::unistd::{isatty, pipe2};

use crate::engine::Engine;
use crate::error::MAX_RANKS;
use crate::job::{CHANNELS, Job, Launching};
use crate::register::{MAPS_PER_RANK, RankStdin, RunningRank, TRANSIENT_FDS};

/// A job whose ranks run already.
#[derive(Debug)]
pub struct AdoptSpec {
    /// The job's name.
    pub nspace: Nspace,
    /// Its ranks, 1 at least.
    pub ranks: Vec<AdoptedRank>,
    /// As [`JobSpec::grace`](crate::JobSpec::grace).
    pub grace: Option<Duration>,
    /// As [`JobSpec::directives`](crate::JobSpec::directives).
    pub directives: Directives,
    /// As [`JobSpec::elsewhere`](crate::JobSpec::elsewhere).
    pub elsewhere: bool,
}

impl AdoptSpec {
    /// A job of `ranks` whose streams may stay open for ever, with no directives.
    pub fn new(nspace: Nspace, ranks: Vec<AdoptedRank>) -> AdoptSpec {
        AdoptSpec { nspace, ranks, grace: None, directives: Directives::default(), elsewhere: false }
    }
}

/// A rank that the embedder has started, and the descriptors that its output comes from.
///
/// Each is the read end of a pipe or FIFO, a connected stream socket, or a terminal (a pty's
/// master), blocking or not. The engine reads it to its end, and nobody else may. A channel without
/// one is at its end at once.
#[derive(Debug)]
pub struct AdoptedRank {
    /// Its rank in the job. The embedder may have any of the job's ranks here, such as 8 to 15.
    pub rank: Rank,
    /// What the process table says that it runs.
    pub executable: String,
    /// Where its stdin is written: the write end of a pipe that nobody else writes, if tools may
    /// push to it.
    pub stdin: Option<OwnedFd>,
    /// Its stdout.
    pub stdout: Option<OwnedFd>,
    /// Its stderr.
    pub stderr: Option<OwnedFd>,
    /// Its stddiag.
    pub stddiag: Option<OwnedFd>,
    /// How the engine learns of its end.
    pub process: Process,
}

/// How the engine learns that an adopted rank has exited.
///
/// In the first two cases the process is a child of the embedder, which hands it over: the engine
/// waits for it, so nobody else may (nor for any child, see waitpid(2)), and sends it signals, or
/// its whole process group if it leads one by now. Of a process that is no child the engine learns
/// that it ended, but not how.
#[derive(Debug)]
pub enum Process {
    /// By its pid, which is its own as long as nobody has waited for it.
    Pid(u32),
    /// By its pidfd, see pidfd_open(2).
    Pidfd(OwnedFd),
    /// By the embedder, which waits for it and says so ([`Job::report_exit`]). The engine sends it
    /// no signals.
    Reported {
        /// For the process table; 0 if it is not known.
        pid: u32,
    },
}

/// Why ranks were not adopted. Their descriptors are closed, so a rank that writes gets SIGPIPE.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// There is a job of that name.
    #[error("there is a job {0} already: choose another name")]
    NameTaken(Nspace),
    /// A job without ranks, or with too many.
    #[error("a job of {asked} ranks can't be adopted: name 1 to {limit}", limit = MAX_RANKS)]
    Ranks {
        /// How many there were.
        asked: usize,
    },
    /// A number that no rank can have.
    #[error("{rank} is no rank: they go from 0 to {last}", last = MAX_RANKS.saturating_sub(1))]
    Number {
        /// It.
        rank: Rank,
    },
    /// The same rank twice.
    #[error("rank {rank} is named twice")]
    Twice {
        /// Which.
        rank: Rank,
    },
    /// A descriptor of a kind that has no end of file, or no bytes in order.
    #[error(
        "rank {rank}'s {channel} is {what}: only read ends of pipes, connected stream sockets and terminals can be adopted"
    )]
    Kind {
        /// Whose.
        rank: Rank,
        /// Which.
        channel: Channel,
        /// What it is.
        what: &'static str,
    },
    /// A descriptor for stdin of another kind.
    #[error("rank {rank}'s stdin is {what}: only write ends of pipes can be pushed into")]
    Stdin {
        /// Whose.
        rank: Rank,
        /// What it is.
        what: &'static str,
    },
    /// A pipe or socket that was named twice: two readers would share its bytes.
    #[error("rank {rank}'s {channel} is a pipe or socket that was named before: each needs one of its own")]
    Shared {
        /// Whose.
        rank: Rank,
        /// Which.
        channel: Channel,
    },
    /// The process can't be watched.
    #[error("rank {rank}'s process can't be watched: {source}; hand over a child that nobody has waited for")]
    Process {
        /// Whose.
        rank: Rank,
        /// The kernel's word, see pidfd_open(2).
        source: io::Error,
    },
    /// The process may open fewer files than the job needs.
    #[error("{ranks} ranks do not fit: {files}, or adopt fewer ranks")]
    Files {
        /// How many there were.
        ranks: usize,
        /// How many files are open, needed and allowed.
        files: TooFewFiles,
    },
    /// The process may make fewer memory maps than the job needs.
    #[error("{ranks} ranks do not fit: {maps}, or adopt fewer ranks")]
    Maps {
        /// How many there were.
        ranks: usize,
        /// How many maps are there, needed and allowed.
        maps: TooFewMaps,
    },
    /// There is no memory for a rank's rings.
    #[error("{source} (rank {rank})")]
    Rings {
        /// Whose.
        rank: Rank,
        /// Why.
        source: CreateError,
    },
    /// The capture thread has ended.
    #[error(transparent)]
    Capture(#[from] AddError),
}

impl Engine {
    /// Forwards the output of ranks that run already, as one job. Whoever registered for it before
    /// has all that the descriptors bring.
    ///
    /// # Errors
    /// [`AdoptError`].
    pub fn adopt(&self, spec: AdoptSpec) -> Result<Job, AdoptError> {
        let AdoptSpec { nspace, ranks, grace, directives, elsewhere } = spec;
        check(&ranks)?;
        let mut launching = BTreeMap::new();
        let mut entries = Vec::with_capacity(ranks.len());
        for rank in ranks {
            let number = rank.rank;
            let streams = self
                .streams(&nspace, number, &directives)
                .map_err(|source| AdoptError::Rings { rank: number, source })?;
            let (known, entry) = entry(rank)?;
            launching.insert(number, known);
            entries.push((entry, streams));
        }
        let job = self
            .begin(&nspace, grace, &directives, elsewhere, launching)
            .ok_or(AdoptError::NameTaken(nspace))?;
        let entered = entries
            .into_iter()
            .try_for_each(|(entry, streams)| self.register_rank(&job.nspace, entry, streams));
        self.all_registered(&job);
        entered?;
        Ok(job)
    }
}

/// Finds what is wrong with the ranks before any is touched.
fn check(ranks: &[AdoptedRank]) -> Result<(), AdoptError> {
    let asked = ranks.len();
    if asked == 0 || asked > MAX_RANKS as usize {
        return Err(AdoptError::Ranks { asked });
    }
    let (mut numbers, mut files) = (HashSet::new(), HashSet::new());
    for AdoptedRank { rank, stdin, stdout, stderr, stddiag, .. } in ranks {
        let rank = *rank;
        if let Some(file) = stdin
            && let Err(what) = is_pipe_to_write(file.as_fd())
        {
            return Err(AdoptError::Stdin { rank, what });
        }
        // Two pushes would write into one pipe.
        if let Some(stat) = stdin.as_ref().and_then(|file| fstat(file).ok())
            && !files.insert((stat.st_dev, stat.st_ino))
        {
            return Err(AdoptError::Shared { rank, channel: Channel::Stdin });
        }
        if rank.0 >= MAX_RANKS {
            return Err(AdoptError::Number { rank });
        }
        if !numbers.insert(rank) {
            return Err(AdoptError::Twice { rank });
        }
        for (channel, file) in CHANNELS.into_iter().zip([stdout, stderr, stddiag]) {
            let Some(file) = file else { continue };
            let stat = kind(file.as_fd()).map_err(|what| AdoptError::Kind { rank, channel, what })?;
            // All ptys' masters are one file.
            if !is(&stat, libc::S_IFCHR) && !files.insert((stat.st_dev, stat.st_ino)) {
                return Err(AdoptError::Shared { rank, channel });
            }
        }
    }
    let needed = ranks.iter().map(files_for).fold(TRANSIENT_FDS, u64::saturating_add);
    check_files(needed).map_err(|files| AdoptError::Files { ranks: asked, files })?;
    let maps = (asked as u64).saturating_mul(MAPS_PER_RANK);
    check_maps(maps).map_err(|maps| AdoptError::Maps { ranks: asked, maps })
}

/// How many files the engine opens for a rank: its rings, its pidfd, and a pipe for each stream
/// that it has not.
fn files_for(rank: &AdoptedRank) -> u64 {
    let AdoptedRank { stdout, stderr, stddiag, process, .. } = rank;
    let streams = [stdout, stderr, stddiag].map(|file| if file.is_some() { 1 } else { 2 });
    let pidfd = u64::from(matches!(process, Process::Pid(_)));
    streams.into_iter().fold(pidfd, u64::saturating_add)
}

fn is(stat: &FileStat, kind: libc::mode_t) -> bool {
    stat.st_mode & libc::S_IFMT == kind
}

/// Whether a file can be a rank's stdin; otherwise what it is.
fn is_pipe_to_write(file: BorrowedFd<'_>) -> Result<(), &'static str> {
    let stat = fstat(file).map_err(|_| "no open file")?;
    let flags = fcntl(file, FcntlArg::F_GETFL).map(OFlag::from_bits_retain).map_err(|_| "no open file")?;
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFIFO if flags.contains(OFlag::O_PATH) => Err("not open for writing"),
        libc::S_IFIFO if flags & OFlag::O_ACCMODE == OFlag::O_RDONLY => Err("not open for writing"),
        // We would be a reader of it ourselves, and never learn that there is no other.
        libc::S_IFIFO if flags & OFlag::O_ACCMODE == OFlag::O_RDWR => Err("open for reading, too"),
        libc::S_IFIFO => Ok(()),
        _ => Err("no pipe"),
    }
}

/// What the kernel says of a file that can be adopted; otherwise what it is.
fn kind(file: BorrowedFd<'_>) -> Result<FileStat, &'static str> {
    let stat = fstat(file).map_err(|_| "no open file")?;
    let flags = fcntl(file, FcntlArg::F_GETFL).map(OFlag::from_bits_retain).map_err(|_| "no open file")?;
    if flags & OFlag::O_ACCMODE == OFlag::O_WRONLY || flags.contains(OFlag::O_PATH) {
        return Err("not open for reading");
    }
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFIFO => Ok(stat),
        libc::S_IFSOCK if getsockopt(&file, sockopt::SockType) != Ok(SockType::Stream) => {
            Err("a socket that has messages instead of a stream")
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

fn entry(rank: AdoptedRank) -> Result<(Launching, RunningRank), AdoptError> {
    let AdoptedRank { rank, executable, stdin, stdout, stderr, stddiag, process } = rank;
    let unwatched = |source| AdoptError::Process { rank, source };
    let (pid, child) = match process {
        Process::Pid(pid) => (pid, Some(Child::adopt(pid).map_err(unwatched)?)),
        Process::Pidfd(pidfd) => {
            let child = Child::adopt_pidfd(pidfd).map_err(unwatched)?;
            (child.pid(), Some(child))
        }
        Process::Reported { pid } => (pid, None),
    };
    let file = |file: Option<OwnedFd>| match file {
        Some(file) => Ok(file),
        // A pipe without a writer.
        None => pipe2(OFlag::O_CLOEXEC).map(|(end, _)| end).map_err(|error| AdoptError::Rings {
            rank,
            source: CreateError::Memory { step: "pipe2", len: 0, source: error.into() },
        }),
    };
    let pipes = [file(stdout)?, file(stderr)?, file(stddiag)?];
    let stdin = stdin.map_or(RankStdin::Not(StdinUnavailable::NotOpen), RankStdin::Open);
    let entry = RunningRank { rank, child, stdin, own_stdin: false, pipes, pty: None };
    Ok((Launching { executable, pid }, entry))
}
