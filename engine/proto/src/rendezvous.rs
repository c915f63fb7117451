//! How a tool finds an engine (RFC0001).
//!
//! An engine listens on a Unix socket named `pmix.<hostname>.tool.<pid>`. By default that is in
//! `<base>/iof-<uid>`, a directory of mode 0700 below [`base_dir`], so that only the same user's
//! tools reach it; a user may name another directory. A tool that is told nothing connects to the
//! one engine there is, and is refused with a list when there are several.
//!
//! Paths of any length work, although a socket address has room for 108 bytes only: sockets are
//! bound and connected to as `/proc/self/fd/<directory>/<name>`. So /proc must be mounted.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::{Pid, gethostname};

mod directory;
mod listener;

use directory::{Directory, Place};
pub use directory::{DirectoryError, base_dir};
pub use listener::{BindError, Listener};

/// An engine that may be connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The engine's pid, from the name of its socket.
    pub pid: u32,
    /// Its socket.
    pub path: PathBuf,
}

/// Why there is no one engine to connect to.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The directory will not do.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// There is none in this directory.
    #[error("no engine has a socket in {}: start one, or look elsewhere with --rendezvous-dir", .0.display())]
    NotFound(PathBuf),
    /// There is none with that pid.
    #[error("no running engine with pid {pid} has a socket in {}", directory.display())]
    NoSuchPid {
        /// The pid asked for.
        pid: u32,
        /// The directory searched.
        directory: PathBuf,
    },
    /// There are these, by pid.
    #[error("{} engines are running: choose one with --pid{}", .0.len(), listed(.0))]
    Several(Vec<Candidate>),
    /// The system refuses.
    #[error("cannot search {}: {source}", directory.display())]
    Io {
        /// The directory.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Why a tool cannot connect.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// This path ends in no name.
    #[error("{} is not the path of a socket", .0.display())]
    NoName(PathBuf),
    /// Nobody listens on this socket.
    #[error("nobody listens on {}: its engine has ended", .0.display())]
    Refused(PathBuf),
    /// The system refuses.
    #[error("cannot connect to {}: {source}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn listed(candidates: &[Candidate]) -> String {
    candidates.iter().fold(String::new(), |mut list, Candidate { pid, path }| {
        // Writing to a string cannot fail.
        let _ = write!(list, "\n  --pid {pid}  ({})", path.display());
        list
    })
}

/// The path of the one engine on this host that has its socket in the directory `given`, or else
/// in the default one; with `pid`, of the engine that has this pid.
///
/// Only sockets count, and of these only those whose process is alive: what a crashed engine left
/// behind is in nobody's way.
///
/// # Errors
/// [`FindError`] says where it looked or between which engines to choose.
pub fn find(given: Option<&Path>, pid: Option<u32>) -> Result<PathBuf, FindError> {
    find_at(Place::new(given), pid)
}

fn find_at(place: Place, wanted: Option<u32>) -> Result<PathBuf, FindError> {
    let mut candidates = match place.open() {
        Err(DirectoryError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Vec::new(),
        opened => {
            candidates(&opened?).map_err(|source| FindError::Io { directory: place.path.clone(), source })?
        }
    };
    candidates.retain(|candidate| wanted.is_none_or(|pid| candidate.pid == pid));
    match (candidates.pop(), wanted) {
        (Some(only), _) if candidates.is_empty() => Ok(only.path),
        (Some(last), _) => {
            candidates.push(last);
            candidates.sort_by_key(|candidate| candidate.pid);
            Err(FindError::Several(candidates))
        }
        (None, Some(pid)) => Err(FindError::NoSuchPid { pid, directory: place.path }),
        (None, None) => Err(FindError::NotFound(place.path)),
    }
}

fn candidates(directory: &Directory) -> io::Result<Vec<Candidate>> {
    let host = host_name()?;
    let mut candidates = Vec::new();
    for entry in fs::read_dir(directory.at("."))? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(pid) = pid_in(&name, &host) else { continue };
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        // A pid may have gone to another process since; only an answer tells. What can't be asked counts.
        if is_socket && alive(pid) && listener::somebody_answers(&directory.at(&name)).unwrap_or(true) {
            candidates.push(Candidate { pid, path: directory.known_as(name) });
        }
    }
    Ok(candidates)
}

/// Connects to the engine whose socket is at `path`. The stream is in blocking mode and
/// close-on-exec.
///
/// If the engine is alive but does not accept, this waits once its queue is full.
///
/// # Errors
/// [`ConnectError`] says why not.
pub fn connect(path: &Path) -> Result<UnixStream, ConnectError> {
    let no_name = || ConnectError::NoName(path.to_owned());
    let name = path.file_name().ok_or_else(no_name)?;
    let parent = match path.parent().ok_or_else(no_name)? {
        here if here.as_os_str().is_empty() => Path::new("."),
        parent => parent,
    };
    Directory::of_socket(parent).and_then(|directory| UnixStream::connect(directory.at(name))).map_err(
        |source| {
            let path = path.to_owned();
            match source.kind() {
                io::ErrorKind::ConnectionRefused => ConnectError::Refused(path),
                _ => ConnectError::Io { path, source },
            }
        },
    )
}

fn host_name() -> io::Result<String> {
    Ok(gethostname()?.to_string_lossy().into_owned())
}

fn socket_name(host: &str, pid: u32) -> String {
    format!("pmix.{host}.tool.{pid}")
}

/// The pid in the name of an engine's socket, if `name` is exactly one that [`socket_name`] makes.
fn pid_in(name: &OsStr, host: &str) -> Option<u32> {
    let name = name.to_str()?;
    let (_, digits) = name.rsplit_once('.')?;
    let pid = digits.parse().ok()?;
    (socket_name(host, pid) == name).then_some(pid)
}

/// Whether there is a process `pid`, be it one that we may not signal.
fn alive(pid: u32) -> bool {
    match i32::try_from(pid) {
        Ok(pid) if pid > 0 => kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
