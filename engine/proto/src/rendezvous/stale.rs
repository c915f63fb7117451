//! Removal of the files that killed engines left behind.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use nix::unistd::geteuid;

use super::Level;
use super::directory::Directory;
use super::names::FileNames;
use super::probe::{has_listener, is_live_socket, metadata_if_exists};

/// Removes this user's sockets without a listener and the links of jobs to them.
///
/// The caller holds the directory's lock, so that no engine creates a socket meanwhile: a socket
/// without a listener stays so until it is removed.
pub(super) fn remove_stale(directory: &Directory, names: &FileNames) -> io::Result<()> {
    let mut links = Vec::new();
    for file in fs::read_dir(directory.short_path("."))? {
        let name = file?.file_name();
        let path = directory.short_path(&name);
        if let Some((pid, level)) = names.socket_parts(&name) {
            if has_running_agent(level, pid) {
                continue;
            }
            let is_own = is_own_file(&path, |metadata| metadata.file_type().is_socket());
            // A socket that cannot be checked may be live.
            if is_own && matches!(has_listener(&path), Ok(false)) {
                try_remove(&path);
            }
        } else if let Some((pid, _)) = names.job_link_parts(&name) {
            links.push((path, pid));
        }
    }
    for (link, pid) in links {
        let Ok(target) = fs::read_link(&link) else { continue };
        let mut sockets = Level::WITH_PID.map(|level| (level, names.socket(level, pid))).into_iter();
        let Some((level, socket)) = sockets.find(|(_, name)| target == Path::new(name)) else { continue };
        let is_left = || !is_live_socket(&directory.short_path(socket));
        if is_own_file(&link, Metadata::is_symlink) && !has_running_agent(level, pid) && is_left() {
            try_remove(&link);
        }
    }
    Ok(())
}

/// Returns whether the socket with this pid in its name is one of an agent, and a process has the
/// pid. A hundred agents may start on one node, and each connection would wake the agent. If the
/// pid has been reused, the files remain until that process has ended.
fn has_running_agent(level: Level, pid: u32) -> bool {
    level != Level::Session && Path::new("/proc").join(pid.to_string()).exists()
}

/// Returns whether this user owns the file at `path` and the file is of the expected type.
fn is_own_file(path: &Path, is_expected_type: impl Fn(&Metadata) -> bool) -> bool {
    let is_own = |metadata: Metadata| metadata.uid() == geteuid().as_raw() && is_expected_type(&metadata);
    metadata_if_exists(path).is_ok_and(|metadata| metadata.is_some_and(is_own))
}

/// Removes a file. A failure is harmless: a search ignores the file.
fn try_remove(path: &Path) {
    let _ = fs::remove_file(path);
}
