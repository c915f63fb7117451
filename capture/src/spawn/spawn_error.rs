//! The reasons why a process does not start, found by a check beforehand or from the kernel's
//! error.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::{AccessFlags, access};

#[cfg(doc)]
use crate::spawn::process_spec::ProcessSpec;

/// The reason why a process was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// The program does not exist.
    #[error(
        "program '{program}' not found: {remedy}",
        program = program.display(), remedy = remedy(program)
    )]
    NotFound {
        /// The program, as in `App::program`.
        program: PathBuf,
    },
    /// The program's file exists but cannot be executed.
    #[error(
        "program '{program}' is not executable ({source}): check its mode (`chmod +x`) and that it was built for this \
         machine",
        program = program.display()
    )]
    NotExecutable {
        /// The program, as in `App::program`.
        program: PathBuf,
        /// The error of execve(2) or access(2).
        source: io::Error,
    },
    /// The program is a directory.
    #[error("program '{program}' is a directory: name a program in it", program = program.display())]
    IsDirectory {
        /// The program, as in `App::program`.
        program: PathBuf,
    },
    /// The program is a FIFO, a socket or a device.
    #[error("program '{program}' is not a regular file: name a program", program = program.display())]
    NotAFile {
        /// The program, as in `App::program`.
        program: PathBuf,
    },
    /// The program is a script whose interpreter does not exist or cannot be executed.
    #[error(
        "cannot start the script '{program}': its first line names the interpreter '{interpreter}' ({source}): correct \
         that line{hint}",
        program = program.display(), interpreter = interpreter.display(),
        hint = if interpreter.as_os_str().as_bytes().ends_with(b"\r") { ", which ends with a carriage return" } else { "" }
    )]
    Interpreter {
        /// The program, as in `App::program`.
        program: PathBuf,
        /// The interpreter.
        interpreter: PathBuf,
        /// The error of access(2).
        source: io::Error,
    },
    /// The working directory does not exist or is not accessible.
    #[error(
        "cannot start '{program}' in '{cwd}' ({source}): check the directory",
        program = program.display(), cwd = cwd.display()
    )]
    Directory {
        /// The program, as in `App::program`.
        program: PathBuf,
        /// The working directory.
        cwd: PathBuf,
        /// The error of stat(2) or access(2).
        source: io::Error,
    },
    /// The file for the process's stdin does not exist or is not readable.
    #[error(
        "cannot start '{program}' with stdin from '{path}' ({source}): check the file",
        program = program.display(), path = path.display()
    )]
    Stdin {
        /// The program, as in `App::program`.
        program: PathBuf,
        /// The file.
        path: PathBuf,
        /// The error of open(2) or access(2).
        source: io::Error,
    },
    /// This process has no file descriptors left for the pipes.
    #[error(
        "too many open files to start '{program}' (RLIMIT_NOFILE is {limit}): raise it with raise_file_limit() or \
         `ulimit -n`, or start fewer processes",
        program = program.display()
    )]
    TooManyFiles {
        /// The program, as in `App::program`.
        program: PathBuf,
        /// The soft `RLIMIT_NOFILE`.
        limit: u64,
    },
    /// The user, the cgroup or the machine has too many processes.
    #[error(
        "too many processes to start '{program}' ({source}; RLIMIT_NPROC is {limit}): raise it (`ulimit -u`) or the \
         cgroup's pids.max, or start fewer processes",
        program = program.display(), limit = LimitText(*limit)
    )]
    TooManyProcesses {
        /// The program, as in `App::program`.
        program: PathBuf,
        /// The soft `RLIMIT_NPROC`.
        limit: u64,
        /// The error of clone(2).
        source: io::Error,
    },
    /// There is no memory for another process.
    #[error(
        "not enough memory to start '{program}' ({source}; RLIMIT_AS is {limit}): raise it (`ulimit -v`) or the \
         cgroup's memory.max, or start fewer processes",
        program = program.display(), limit = LimitText(*limit)
    )]
    NoMemory {
        /// The program, as in `App::program`.
        program: PathBuf,
        /// The soft `RLIMIT_AS`, in bytes.
        limit: u64,
        /// The error of the call that failed.
        source: io::Error,
    },
    /// The machine has no pseudo-terminal left, or does not support them.
    #[error(
        "no pseudo-terminal for '{program}' ({source}): check that /dev/ptmx exists and that kernel.pty.max is above \
         kernel.pty.nr",
        program = program.display()
    )]
    NoPty {
        /// The program, as in `App::program`.
        program: PathBuf,
        /// The error of posix_openpt(3).
        source: io::Error,
    },
    /// Any other failure.
    #[error("cannot start '{program}': {call} failed: {source}", program = program.display())]
    Refused {
        /// The program, as in `App::program`.
        program: PathBuf,
        /// The call that failed.
        call: &'static str,
        /// The error of the call.
        source: io::Error,
    },
}

/// Returns what to do about a program that was not found.
fn remedy(program: &Path) -> &'static str {
    let name = program.as_os_str().as_bytes();
    let before_slash = name.split(|byte| *byte == b'/').next().unwrap_or_default();
    if name.contains(&b' ') {
        "write the program and its arguments as separate words, or as sh -c 'PROG ARGS'"
    } else if before_slash.contains(&b'=') {
        "to set a variable, write env NAME=VALUE PROG"
    } else {
        "check the path and PATH, or the dynamic loader of an existing program"
    }
}

/// The text of a resource limit: its number, or "unlimited".
struct LimitText(u64);

impl fmt::Display for LimitText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == RLIM_INFINITY { f.write_str("unlimited") } else { self.0.fmt(f) }
    }
}

fn soft_limit(resource: Resource) -> u64 {
    // Fails only for invalid resource numbers.
    getrlimit(resource).map_or(RLIM_INFINITY, |(soft, _)| soft)
}

pub(crate) fn check_directory(program: &Path, cwd: Option<&Path>) -> Result<(), SpawnError> {
    let Some(cwd) = cwd else { return Ok(()) };
    let error = |source| SpawnError::Directory { program: program.into(), cwd: cwd.into(), source };
    if !fs::metadata(cwd).map_err(error)?.is_dir() {
        return Err(error(io::Error::from_raw_os_error(libc::ENOTDIR)));
    }
    access(cwd, AccessFlags::X_OK).map_err(|errno| error(errno.into()))
}

/// Opens the file for a process's stdin. Does not wait for the writer of a FIFO: a FIFO without a
/// writer is at the end of file.
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

pub(crate) fn no_stdin(program: &Path, path: &Path, source: io::Error) -> SpawnError {
    SpawnError::Stdin { program: program.into(), path: path.into(), source }
}

/// Returns the reason why a process did not start, from the error of clone(2) or execve(2).
pub(crate) fn spawn_failed(program: &Path, cwd: Option<&Path>, source: io::Error) -> SpawnError {
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

/// Returns the reason why a process gets no pty.
pub(crate) fn no_pty(program: &Path, source: io::Error) -> SpawnError {
    match source.raw_os_error() {
        Some(libc::EMFILE | libc::ENOMEM) => failed(program, "posix_openpt", source),
        _ => SpawnError::NoPty { program: program.into(), source },
    }
}

/// Returns the reason why `call`, which prepares the start of a process, failed.
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
