//! Rendezvous: how a tool finds an engine (RFC0001, RFC0010).
//!
//! An engine listens on a Unix socket at one of three levels:
//!
//! | [`Level`] | socket | directory, unless the user names one |
//! |---|---|---|
//! | session: any number of engines, for their user | `iof.<host>.tool.<pid>` | `iof-<uid>`, with mode 0700, below `PMIX_SERVER_TMPDIR`, `TMPDIR`, `TEMP`, `TMP` or `/tmp` |
//! | agent: any number of engines with the ranks of one node of a job on several nodes, for their user | `iof.<host>.agent.<pid>` | as for a session |
//! | system: one engine on each node, for all users | `iof.sys.<host>` | `PMIX_SYSTEM_TMPDIR`, `TMPDIR`, `TEMP`, `TMP` or `/tmp` |
//!
//! An agent whose carrier may be replaced also listens at `iof.<host>.link.<pid>` ([`Level::Link`]),
//! in the same directory.
//!
//! A tool finds an agent if no session-level engine matches, or by its pid.
//!
//! Beside its socket, a session-level engine or an agent creates a symbolic link to the socket for each of its
//! jobs, `iof.<host>.nspace.<pid>.<nspace>`.
//!
//! The names have the form of the RFCs' names but do not begin with `pmix.`. PMIx libraries search
//! the same directories and their subdirectories for `pmix.<host>.tool*` and `pmix.sys.<host>`, and
//! read each match as a file with a URI. With another prefix neither side mistakes the other's
//! files for its own.
//!
//! An engine that was killed leaves its files behind. The next engine in the same directory removes
//! them. Until then they do no harm: a search ignores sockets without a listener.
//!
//! Paths of any length work, although a socket address holds only 108 bytes: sockets are bound and
//! connected to as `/proc/self/fd/<directory>/<name>`. Where `/proc` is not mounted, the path of a
//! socket is used as it is and must not be longer than 107 bytes.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::socket::connect_within;

mod directory;
mod entries;
mod list;
mod listener;
mod names;
mod place;
mod probe;
mod search;
mod stale;
mod watch;

use directory::Directory;
pub use directory::{DirectoryError, session_directory};
pub use list::{Listed, list};
pub use listener::{AnnounceError, BindError, JobLink, Listener};
pub use place::Rendezvous;
pub use search::{Candidate, FindError, SERVER_VARIABLE, Search, SearchNames, Target};
pub use watch::DirectoryWatch;

/// The users that an engine serves. The level determines where tools find the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// One user's session or allocation. A node can have several such engines.
    Session,
    /// One user's ranks of one node of a job whose front end is elsewhere. Tools find such an
    /// engine by its pid, or if no session-level engine matches their search.
    Agent,
    /// The front end of one agent. The socket is not that of an engine, and tools do not find it:
    /// over it, a carrier that replaces another one reaches the agent.
    Link,
    /// All users of a node. A node has at most one such engine, and tools of all users can connect.
    System,
}

impl Level {
    /// The levels whose sockets have the pid of their process in their names.
    const WITH_PID: [Level; 3] = [Level::Session, Level::Agent, Level::Link];
}

/// Longest time for which [`connect`] waits while an engine's queue of connections is full.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The reason why a tool cannot connect.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The path does not end in a file name.
    #[error("invalid socket path '{}': expected a path that ends in a file name", .0.display())]
    NoName(PathBuf),
    /// No process listens on this socket.
    #[error("no engine listens on {}: it has ended", .0.display())]
    Refused(PathBuf),
    /// The queue of connections stayed full for [`CONNECT_LIMIT`].
    #[error("the engine at {} accepts no connections: check whether it is stopped", .0.display())]
    Full(PathBuf),
    /// A system call failed.
    #[error("cannot connect to {}: {source}", path.display())]
    Io {
        /// The path of the socket.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// Connects to the engine whose socket is at `path`. The stream is in blocking mode and
/// close-on-exec.
///
/// While the engine's queue of connections is full, this blocks for at most [`CONNECT_LIMIT`].
///
/// # Errors
/// [`ConnectError`]
pub fn connect(path: &Path) -> Result<UnixStream, ConnectError> {
    let no_name = || ConnectError::NoName(path.to_owned());
    let name = path.file_name().ok_or_else(no_name)?;
    let parent = match path.parent().ok_or_else(no_name)? {
        parent if parent.as_os_str().is_empty() => Path::new("."),
        parent => parent,
    };
    let connected = Directory::open_path(parent)
        .and_then(|directory| connect_within(&directory.short_path(name), CONNECT_LIMIT));
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
