//! Why a process does not start: seen beforehand, or by what the kernel said.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::{AccessFlags, access};

use crate::spawn::{ProcessSpec, Stdin};

/// Where programs are looked for when there is no `PATH`, as execvp(3) does.
pub(crate) const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Why a process was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// There is no such program.
    #[error("{program}: not found; check the path, `PATH`, and the interpreter if it is a script", program = program.display())]
    NotFound {
        /// As asked for.
        program: PathBuf,
    },
    /// The file is there but cannot be run.
    #[error("{program}: not executable ({source}); make it so (`chmod +x`), for this machine", program = program.display())]
    NotExecutable {
        /// As asked for.
        program: PathBuf,
        /// The kernel's word, see execve(2).
        source: io::Error,
    },
    /// The directory to start in is missing or closed to us.
    #[error("{program}: cannot start in {cwd} ({source}); check the directory", program = program.display(), cwd = cwd.display())]
    Directory {
        /// As asked for.
        program: PathBuf,
        /// The directory.
        cwd: PathBuf,
        /// The kernel's word, see chdir(2).
        source: io::Error,
    },
    /// The file for its stdin is missing or closed to us.
    #[error("{program}: cannot read its stdin from {path} ({source}); check the file", program = program.display(), path = path.display())]
    Stdin {
        /// As asked for.
        program: PathBuf,
        /// The file.
        path: PathBuf,
        /// The kernel's word, see open(2).
        source: io::Error,
    },
    /// No file descriptors are left for the pipes.
    #[error(
        "{program}: too many open files (RLIMIT_NOFILE is {limit}); raise it with raise_file_limit() or \
         `ulimit -n`, or start fewer processes",
        program = program.display()
    )]
    TooManyFiles {
        /// As asked for.
        program: PathBuf,
        /// The soft `RLIMIT_NOFILE`.
        limit: u64,
    },
    /// The user, the cgroup or the machine has too many processes.
    #[error(
        "{program}: too many processes ({source}); RLIMIT_NPROC is {limit}: raise it (`ulimit -u`) or the cgroup's \
         pids.max, or start fewer processes",
        program = program.display(), limit = Number(*limit)
    )]
    TooManyProcesses {
        /// As asked for.
        program: PathBuf,
        /// The soft `RLIMIT_NPROC`.
        limit: u64,
        /// The kernel's word, see fork(2).
        source: io::Error,
    },
    /// There is no memory for another process.
    #[error(
        "{program}: no memory to start it ({source}); RLIMIT_AS is {limit}: raise it (`ulimit -v`) or the cgroup's \
         memory.max, or start fewer processes",
        program = program.display(), limit = Number(*limit)
    )]
    NoMemory {
        /// As asked for.
        program: PathBuf,
        /// The soft `RLIMIT_AS`, in bytes.
        limit: u64,
        /// The kernel's word, see fork(2).
        source: io::Error,
    },
    /// The machine has no pseudo-terminal left, or none at all.
    #[error(
        "{program}: no pseudo-terminal ({source}); /dev/ptmx must be there, and kernel.pty.max above kernel.pty.nr",
        program = program.display()
    )]
    NoPty {
        /// As asked for.
        program: PathBuf,
        /// The kernel's word, see posix_openpt(3).
        source: io::Error,
    },
    /// Anything else.
    #[error("{program}: {call} failed: {source}", program = program.display())]
    Refused {
        /// As asked for.
        program: PathBuf,
        /// The call that failed.
        call: &'static str,
        /// The kernel's word.
        source: io::Error,
    },
}

/// A limit, in words if there is none.
struct Number(u64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == RLIM_INFINITY { f.write_str("unlimited") } else { self.0.fmt(f) }
    }
}

fn soft_limit(resource: Resource) -> u64 {
    // Fails for numbers of resources that do not exist only.
    getrlimit(resource).map_or(RLIM_INFINITY, |(soft, _)| soft)
}

/// Looks for what would keep `spec` from starting: its directory, its stdin, then its program.
/// Nothing is started, so what is found wrong has had no effect. What comes in between, and scripts
/// whose interpreter is missing, only [`spawn`](crate::spawn) sees.
///
/// # Errors
/// [`SpawnError::Directory`], [`SpawnError::Stdin`], [`SpawnError::NotFound`],
/// [`SpawnError::NotExecutable`].
pub fn check(spec: &ProcessSpec) -> Result<(), SpawnError> {
    let program = Path::new(&spec.program);
    check_directory(program, spec.cwd.as_deref())?;
    if let Stdin::File(path) = &spec.stdin {
        check_stdin(path).map_err(|source| no_stdin(program, path, source))?;
    }
    let here = spec.cwd.as_deref().unwrap_or(Path::new("."));
    let found = if spec.program.as_bytes().contains(&b'/') {
        executable(&here.join(program))
    } else {
        look_up(program, here, &search_path(spec))
    };
    found.map_err(|source| match source.raw_os_error() {
        Some(libc::EACCES) => SpawnError::NotExecutable { program: program.into(), source },
        _ => SpawnError::NotFound { program: program.into() },
    })
}

/// The `PATH` that the process is going to have.
fn search_path(spec: &ProcessSpec) -> std::ffi::OsString {
    let own = spec.env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
    own.or_else(|| env::var_os("PATH")).unwrap_or_else(|| DEFAULT_PATH.into())
}

/// Finds `program` as execvp(3) does: the first that can be run, or else the word on one that
/// cannot.
fn look_up(program: &Path, here: &Path, path: &OsStr) -> io::Result<()> {
    let mut found = Err(io::Error::from_raw_os_error(libc::ENOENT));
    if program.as_os_str().is_empty() {
        return found;
    }
    for directory in env::split_paths(path) {
        let candidate = here.join(directory).join(program);
        match executable(&candidate) {
            Ok(()) => return Ok(()),
            // In a directory that is closed to us, nobody knows whether there is one.
            Err(error) if error.raw_os_error() == Some(libc::EACCES) && candidate.exists() => {
                found = Err(error)
            }
            Err(_) => {}
        }
    }
    found
}

fn executable(path: &Path) -> io::Result<()> {
    access(path, AccessFlags::X_OK)?;
    // As execve(2) has it.
    if fs::metadata(path)?.is_dir() { Err(io::Error::from_raw_os_error(libc::EACCES)) } else { Ok(()) }
}

fn check_directory(program: &Path, cwd: Option<&Path>) -> Result<(), SpawnError> {
    let Some(cwd) = cwd else { return Ok(()) };
    let closed = |source| SpawnError::Directory { program: program.into(), cwd: cwd.into(), source };
    if !fs::metadata(cwd).map_err(closed)?.is_dir() {
        return Err(closed(io::Error::from_raw_os_error(libc::ENOTDIR)));
    }
    access(cwd, AccessFlags::X_OK).map_err(|error| closed(error.into()))
}

/// Whether a file can be somebody's stdin. It is not opened: of a FIFO that would be seen by its
/// writers.
fn check_stdin(path: &Path) -> io::Result<()> {
    access(path, AccessFlags::R_OK)?;
    if fs::metadata(path)?.is_dir() { Err(io::Error::from_raw_os_error(libc::EISDIR)) } else { Ok(()) }
}

/// Opens the file for a process's stdin, and does not wait for the writer of a FIFO: that one is at
/// its end.
pub(crate) fn open_stdin(program: &Path, path: &Path) -> Result<File, SpawnError> {
    let open = || {
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
        fcntl(&file, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
        Ok(file)
    };
    open().map_err(|source: io::Error| match source.raw_os_error() {
        Some(libc::EMFILE) => failed(program, "open", source),
        _ => no_stdin(program, path, source),
    })
}

fn no_stdin(program: &Path, path: &Path, source: io::Error) -> SpawnError {
    SpawnError::Stdin { program: program.into(), path: path.into(), source }
}

/// Explains why a process did not start, by the error number alone.
pub(crate) fn explain(program: &Path, cwd: Option<&Path>, source: io::Error) -> SpawnError {
    if let Err(error) = check_directory(program, cwd) {
        return error;
    }
    match source.raw_os_error() {
        Some(libc::ENOENT) => SpawnError::NotFound { program: program.into() },
        Some(libc::EACCES | libc::ENOEXEC | libc::EISDIR) => {
            SpawnError::NotExecutable { program: program.into(), source }
        }
        Some(libc::EAGAIN) => {
            let limit = soft_limit(Resource::RLIMIT_NPROC);
            SpawnError::TooManyProcesses { program: program.into(), limit, source }
        }
        _ => failed(program, "spawn", source),
    }
}

/// Why there is no pty for a process.
pub(crate) fn no_pty(program: &Path, source: io::Error) -> SpawnError {
    match source.raw_os_error() {
        Some(libc::EMFILE | libc::ENOMEM) => failed(program, "posix_openpt", source),
        _ => SpawnError::NoPty { program: program.into(), source },
    }
}

/// Why something failed that a process needs before it is started.
pub(crate) fn failed(program: &Path, call: &'static str, source: io::Error) -> SpawnError {
    let program = PathBuf::from(program);
    match source.raw_os_error() {
        Some(libc::EMFILE) => {
            SpawnError::TooManyFiles { program, limit: soft_limit(Resource::RLIMIT_NOFILE) }
        }
        Some(libc::ENOMEM) => {
            SpawnError::NoMemory { program, limit: soft_limit(Resource::RLIMIT_AS), source }
        }
        _ => SpawnError::Refused { program, call, source },
    }
}
