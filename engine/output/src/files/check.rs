//! Checks before the job starts that its files can be created.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};
use nix::unistd::{AccessFlags, access};

use super::{FileError, Files, JOB_NAME, with_suffix};
use crate::choice::Place;
use crate::pattern::PatternValues;

impl Files {
    /// Checks that the files can probably be created, without creating anything. Checks neither the
    /// files of [`Place::Tree`] nor existing files whose paths have placeholders.
    ///
    /// # Errors
    /// Returns [`FileError`] if a path ends in `/` or is a directory, or if an existing file or the
    /// directory of a new one is not writable.
    pub fn check(&self) -> Result<(), FileError> {
        let (path, checked) = match &self.place {
            Place::Tree(_) => return Ok(()),
            Place::Name(name) => (name.clone(), check_name(name).and_then(|()| check_parent(name))),
            Place::Pattern(pattern) | Place::Exact(pattern) => {
                let values = PatternValues {
                    nspace: JOB_NAME,
                    padded: "0",
                    rank: "0",
                    host: "unknown",
                    channel: "stdout",
                };
                let path = pattern.expand(values);
                let named = check_name(&path);
                let checked = named.and_then(|()| match &self.place {
                    _ if pattern.has_placeholder() && path.exists() => Ok(()),
                    Place::Pattern(_) if !pattern.has_placeholder() => check_file(&with_suffix(&path, "out")),
                    _ => check_file(&path),
                });
                (path, checked)
            }
        };
        checked.map_err(|error| FileError { path, error })
    }
}

/// Checks that `path` ends in the name of a file.
fn check_name(path: &Path) -> io::Result<()> {
    let last = path.as_os_str().as_bytes().rsplit(|byte| *byte == b'/').next();
    if matches!(last, None | Some(b"" | b"." | b"..")) { Err(Errno::EISDIR.into()) } else { Ok(()) }
}

/// Checks that a file can be written, or created if it does not exist.
fn check_file(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(Errno::EISDIR.into()),
        Ok(_) => Ok(access(path, AccessFlags::W_OK)?),
        Err(error) if error.kind() == ErrorKind::NotFound => check_parent(path),
        Err(error) => Err(error),
    }
}

/// Checks that an entry can be created in the directory of `path`, or in the closest existing
/// directory above it, as missing directories are created.
fn check_parent(path: &Path) -> io::Result<()> {
    for parent in path.ancestors().skip(1) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        match fs::metadata(parent) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(metadata) if !metadata.is_dir() => return Err(Errno::ENOTDIR.into()),
            // For root, access(2) allows writing there, but no file can be created.
            Ok(_) if statfs(parent)?.filesystem_type() == PROC_SUPER_MAGIC => {
                return Err(Errno::ENOENT.into());
            }
            Ok(_) => return Ok(access(parent, AccessFlags::W_OK | AccessFlags::X_OK)?),
        }
    }
    Ok(())
}
