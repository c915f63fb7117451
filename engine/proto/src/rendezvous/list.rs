//! The list of all engines that have a socket in a rendezvous directory.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::directory::{Directory, DirectoryError, DirectoryPath};
use super::entries::SessionEntries;
use super::names::FileNames;
use super::probe::{is_live_socket, metadata_if_exists};
use super::{FindError, Level};
use crate::names::Nspace;

/// The socket of an engine, which may have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The engine's level.
    pub level: Level,
    /// The engine's pid, from the name of its socket; `None` at the system level.
    pub pid: Option<u32>,
    /// The path of the socket.
    pub path: PathBuf,
    /// The names of the jobs that have a link to the socket, sorted.
    pub jobs: Vec<Nspace>,
    /// The user who owns the socket.
    pub uid: u32,
    /// When the socket was created, if known.
    pub since: Option<SystemTime>,
    /// Set if a process listens on the socket. Otherwise the engine was killed.
    pub is_live: bool,
}

/// Lists the engines whose sockets are in `directory`, or in the default directories (see the
/// [module](super)): the system-level engine, then those of the user by pid. Does not block.
///
/// # Errors
/// [`FindError::Directory`] and [`FindError::Io`] if a directory cannot be read. A directory that
/// does not exist has no engines.
pub fn list(directory: Option<&Path>) -> Result<Vec<Listed>, FindError> {
    let mut engines = Vec::new();
    for level in [Level::System, Level::Session] {
        let directory_path = DirectoryPath::new(level, directory);
        let directory = match directory_path.open() {
            Err(DirectoryError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        let listed = match level {
            Level::System => list_system(&directory_path, &directory),
            Level::Session | Level::Agent | Level::Link => list_session(&directory),
        };
        engines.extend(listed.map_err(|source| FindError::Io { directory: directory_path.path, source })?);
    }
    Ok(engines)
}

fn list_system(directory_path: &DirectoryPath, directory: &Directory) -> io::Result<Vec<Listed>> {
    let name = FileNames::of_this_host()?.system();
    let Some(metadata) = socket_metadata(directory, &name)? else { return Ok(Vec::new()) };
    // A socket that another user may have created is not connected to.
    if !directory_path.trusts(&directory.metadata()?, metadata.uid()) {
        return Ok(Vec::new());
    }
    Ok(vec![listed(Level::System, None, directory, &name, &metadata, Vec::new())])
}

fn list_session(directory: &Directory) -> io::Result<Vec<Listed>> {
    let names = FileNames::of_this_host()?;
    let SessionEntries { levels, mut jobs } = SessionEntries::read(directory, &names)?;
    let mut engines = Vec::new();
    for (pid, level) in levels {
        let name = names.socket(level, pid);
        let Some(metadata) = socket_metadata(directory, &name)? else { continue };
        let jobs = jobs.remove(&pid).into_iter().flatten().collect();
        engines.push(listed(level, Some(pid), directory, &name, &metadata, jobs));
    }
    Ok(engines)
}

fn socket_metadata(directory: &Directory, name: &str) -> io::Result<Option<Metadata>> {
    let metadata = metadata_if_exists(&directory.short_path(name))?;
    Ok(metadata.filter(|metadata| metadata.file_type().is_socket()))
}

fn listed(
    level: Level,
    pid: Option<u32>,
    directory: &Directory,
    name: &str,
    metadata: &Metadata,
    jobs: Vec<Nspace>,
) -> Listed {
    Listed {
        level,
        pid,
        path: directory.full_path(name),
        jobs,
        uid: metadata.uid(),
        since: metadata.modified().ok(),
        is_live: is_live_socket(&directory.short_path(name)),
    }
}
