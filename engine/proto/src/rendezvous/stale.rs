//! What engines left behind that did not end by themselves.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use nix::unistd::geteuid;

use super::directory::Directory;
use super::names::Names;
use super::probe::{is_live_socket, look, somebody_answers};

/// Removes this user's session-level sockets on which nobody listens, and links of jobs to them.
///
/// The caller holds the directory's lock. So nobody makes a socket meanwhile: one that was found
/// dead stays dead until it is removed.
pub(super) fn sweep(directory: &Directory, names: &Names) -> io::Result<()> {
    let mut links = Vec::new();
    for file in fs::read_dir(directory.at("."))? {
        let name = file?.file_name();
        let path = directory.at(&name);
        if names.session_pid(&name).is_some() {
            let is_ours = ours(&path, |found| found.file_type().is_socket());
            // What can't be asked may be alive.
            if is_ours && matches!(somebody_answers(&path), Ok(false)) {
                discard(&path);
            }
        } else if let Some((pid, _)) = names.entry_parts(&name) {
            links.push((path, names.session(pid)));
        }
    }
    for (link, socket) in links {
        let leads_there = fs::read_link(&link).is_ok_and(|target| target == Path::new(&socket));
        if leads_there && ours(&link, Metadata::is_symlink) && !is_live_socket(&directory.at(socket)) {
            discard(&link);
        }
    }
    Ok(())
}

fn ours(path: &Path, is_of_kind: impl Fn(&Metadata) -> bool) -> bool {
    let is_ours = |found: &Metadata| found.uid() == geteuid().as_raw() && is_of_kind(found);
    look(path).is_ok_and(|found| found.is_some_and(|found| is_ours(&found)))
}

/// What can't be removed is in nobody's way, as it was before.
fn discard(path: &Path) {
    let _ = fs::remove_file(path);
}
