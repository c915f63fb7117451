//! Checks before the job starts that its files can be created.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use iof_proto::{Channels, Nspace, Rank};
use nix::errno::Errno;
use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};
use nix::unistd::{AccessFlags, access};

use super::MAX_KEPT_FILES;
use super::rotation::NEW_SUFFIX;
use super::{FileError, Files, JOB_NAME, with_suffix};
use crate::format::choice::FilePlace;
use crate::format::label::LabelSource;
use crate::format::placeholder::PatternValues;

impl Files {
    /// Checks that the files can probably be created, without creating anything. Checks neither the
    /// files of [`FilePlace::Tree`] nor existing files whose paths have placeholders.
    ///
    /// # Errors
    /// Returns [`FileError`] if a path ends in `/` or is a directory, or if an existing file or the
    /// directory of a new one is not writable.
    pub fn check(&self) -> Result<(), FileError> {
        let (path, checked) = match &self.place {
            FilePlace::Tree(_) => return Ok(()),
            FilePlace::Name(name) => (name.clone(), check_name(name).and_then(|()| check_parent(name))),
            FilePlace::Pattern(pattern) | FilePlace::Exact(pattern) => {
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
                    FilePlace::Pattern(_) if !pattern.has_placeholder() => {
                        check_file(&with_suffix(&path, "out"))
                    }
                    _ => check_file(&path),
                });
                (path, checked)
            }
        };
        checked.map_err(|error| FileError { path, error })
    }
}

/// Returns two files of a job that can't both exist: the path of a file that is renamed when it is
/// full, and that of another, which is the name of a full file. `files` are all files of the job,
/// with the channels of each. Hosts in names are not compared.
pub fn find_clash(files: &[(Channels, Files)], nspace: &Nspace) -> Option<(PathBuf, PathBuf)> {
    let mut paths = BTreeSet::new();
    for (channels, files) in files.iter().filter(|(_, files)| files.rotation.is_some()) {
        // Ranks have names of full files up to the largest number of these.
        let most = MAX_KEPT_FILES.saturating_add(1);
        let nprocs = files.nprocs.unwrap_or(most);
        for rank in (0..nprocs.min(most)).map(Rank) {
            let source = |channel| LabelSource {
                nspace: nspace.clone(),
                rank,
                channel,
                logged: false,
                host: None,
                pid: None,
            };
            paths.extend(channels.outputs().map(|channel| files.path(&source(channel), nprocs)));
        }
    }
    let renamed = |path: &PathBuf| Some((renamed_to(path)?, path.clone()));
    paths.iter().filter_map(renamed).find(|(original, _)| paths.contains(original))
}

/// Returns the path of the file that is renamed to `path` when it is full, or while it is replaced.
fn renamed_to(path: &Path) -> Option<PathBuf> {
    let suffix = path.extension()?.as_bytes();
    let is_number = suffix.iter().all(u8::is_ascii_digit) && suffix.first() != Some(&b'0');
    (is_number || suffix == NEW_SUFFIX.as_bytes()).then(|| path.with_extension(""))
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::Pattern;
    use crate::files::Rotation;
    use crate::files::tests::files;

    #[test]
    fn names_of_full_files_that_other_files_have_are_found() {
        let nspace = Nspace::new("job").unwrap();
        let clash = |names: &[&str], nprocs: Option<u32>| {
            let channels = [Channels::STDOUT, Channels::STDERR];
            let files = names.iter().zip(channels).map(|(name, channels)| {
                let place = FilePlace::Exact(Pattern::new(Path::new(name)).unwrap());
                let rotation = Some(Rotation { size: 4096, keep: 1 });
                (channels, Files { rotation, nprocs, ..files(place) })
            });
            let found = find_clash(&files.collect::<Vec<_>>(), &nspace);
            found.map(|(path, other)| format!("{} {}", path.display(), other.display()))
        };
        assert_eq!(clash(&["out", "out.1"], Some(1)), Some("out out.1".into()));
        assert_eq!(clash(&["d/out", "d/out.%t"], Some(2)), Some("d/out d/out.1".into()));
        assert_eq!(clash(&["d/out", "d/out.%t"], Some(1)), None, "no full file is named NAME.0");
        assert_eq!(clash(&["out", "out.%t"], None), Some("out out.1".into()));
        assert_eq!(clash(&["out.iof-new", "out"], Some(1)), Some("out out.iof-new".into()));
        assert_eq!(clash(&["%n", "job.7"], Some(1)), Some("job job.7".into()));
        for names in [&["out", "err"][..], &["out.%t", "err.%t"], &["out.1", "out.2"], &["a/out", "b/out.1"]]
        {
            assert_eq!(clash(names, Some(2000)), None, "{names:?}");
        }
    }
}
