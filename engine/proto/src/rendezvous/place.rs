//! The place of an engine's socket.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::job::path;

/// The place at which tools find an engine (RFC0001, RFC0010), see [`rendezvous`](crate::rendezvous).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rendezvous {
    /// No rendezvous point: only the embedding process can attach.
    None,
    /// An engine of the user's session, which tools find by pid or by the name of a job. The
    /// directory is this one or, if `None`, the user's own one below PMIX_SERVER_TMPDIR, TMPDIR,
    /// TEMP, TMP or /tmp.
    Session(#[serde(with = "path::optional")] Option<PathBuf>),
    /// An engine that runs the ranks of one node of a job, and whose front end is elsewhere. Tools
    /// find it by its pid, or if no engine of a session matches what they search for. The directory
    /// is chosen as that of a session.
    Agent(#[serde(with = "path::optional")] Option<PathBuf>),
    /// The system-level engine of the node, which tools prefer to engines of sessions. The
    /// directory is this one or, if `None`, PMIX_SYSTEM_TMPDIR, TMPDIR, TEMP, TMP or /tmp. Every
    /// user may connect, but only tools of the engine's user and of root are approved unless the
    /// `Host` approves others.
    System(#[serde(with = "path::optional")] Option<PathBuf>),
}

impl Rendezvous {
    /// Returns the directory, if there is a place and its directory is not the default.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Rendezvous::None => None,
            Rendezvous::Session(path) | Rendezvous::Agent(path) | Rendezvous::System(path) => path.as_deref(),
        }
    }
}
