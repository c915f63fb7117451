//! How a tool finds an engine (RFC0001, RFC0010).
//!
//! An engine listens on a Unix socket, at one of two levels:
//!
//! | [`Level`] | socket | directory, unless the user names one |
//! |---|---|---|
//! | session: any number of engines, for their user | `iof.<host>.tool.<pid>` | `iof-<uid>`, of mode 0700, below `PMIX_SERVER_TMPDIR`, `TMPDIR`, `TEMP`, `TMP` or `/tmp` |
//! | system: one engine for each node, for all users | `iof.sys.<host>` | `PMIX_SYSTEM_TMPDIR`, `TMPDIR`, `TEMP`, `TMP` or `/tmp` |
//!
//! Beside its socket, a session-level engine leaves a symbolic link to it for each of its jobs,
//! `iof.<host>.nspace.<pid>.<nspace>`.
//!
//! The names have the form of the RFCs' but do not begin with `pmix.`: PMIx libraries look through
//! the same directories, and all below them, for `pmix.<host>.tool*` and `pmix.sys.<host>`, and
//! take what they find for files that hold a URI. So neither side takes the other's for its own.
//!
//! What engines left behind that were killed, the next engine removes that starts in the same
//! directory. Nobody has to: a socket on which nobody listens is not found.
//!
//! Paths of any length work, although a socket address has room for 108 bytes only: sockets are
//! bound and connected to as `/proc/self/fd/<directory>/<name>`. So /proc must be mounted.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::socket::connect_within;

mod directory;
mod listener;
mod names;
mod probe;
mod search;
mod stale;

use directory::Directory;
pub use directory::DirectoryError;
pub use listener::{AnnounceError, BindError, JobLink, Listener};
pub use search::{Candidate, FindError, SERVER_VARIABLE, Search, Target};

/// Whom an engine serves, which decides where it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// A user's session or allocation: there may be several engines on a node.
    Session,
    /// The node: there is one engine, and other users' tools may connect.
    System,
}

/// How long an engine whose queue of connections is full is waited for.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Why a tool cannot connect.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// This path ends in no name.
    #[error("{} is not the path of a socket", .0.display())]
    NoName(PathBuf),
    /// Nobody listens on this socket.
    #[error("nobody listens on {}: its engine has ended", .0.display())]
    Refused(PathBuf),
    /// Nobody has accepted for [`CONNECT_LIMIT`] what waits there.
    #[error("the engine that listens on {} accepts nobody: is it stopped?", .0.display())]
    Full(PathBuf),
    /// The system refuses.
    #[error("cannot connect to {}: {source}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Connects to the engine whose socket is at `path`. The stream is in blocking mode and
/// close-on-exec.
///
/// If the engine is alive but does not accept, this waits once its queue is full, for
/// [`CONNECT_LIMIT`] at most.
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
    let connected =
        Directory::of_socket(parent).and_then(|directory| connect_within(&directory.at(name), CONNECT_LIMIT));
    connected.map_err(|source| {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::ConnectionRefused => ConnectError::Refused(path),
            io::ErrorKind::WouldBlock => ConnectError::Full(path),
            _ => ConnectError::Io { path, source },
        }
    })
}

#[cfg(test)]
mod tests;
