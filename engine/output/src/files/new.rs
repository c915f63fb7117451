//! The files and directories that were created for a job that may yet be refused.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::make_directory;

/// The files and directories that [`Files`](super::Files) created for a job. Dropping this removes
/// them, except files with contents, unless [`NewFiles::keep`] was called. A launcher holds this
/// until the job has started.
#[derive(Debug, Default)]
#[must_use = "dropping this removes the files"]
pub struct NewFiles {
    files: Vec<NewFile>,
    /// Each after those that contain it.
    directories: Vec<PathBuf>,
}

#[derive(Debug)]
struct NewFile {
    path: Arc<Path>,
    /// Keeps the file locked, so that it is not another job's when it is removed.
    file: Arc<File>,
}

impl NewFiles {
    /// Keeps the files and directories, because the job has started.
    pub fn keep(mut self) {
        self.files.clear();
        self.directories.clear();
    }

    pub(super) fn add_file(&mut self, path: &Arc<Path>, file: &Arc<File>) {
        self.files.push(NewFile { path: Arc::clone(path), file: Arc::clone(file) });
    }

    /// Creates a directory and those that contain it, as far as they are missing.
    pub(super) fn make_directory(&mut self, path: &Path) -> io::Result<()> {
        let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
        self.directories.extend(missing.into_iter().rev().map(Path::to_owned));
        make_directory(path)
    }
}

impl Drop for NewFiles {
    fn drop(&mut self) {
        // What can't be removed stays.
        for NewFile { path, file } in &self.files {
            let _ = remove_if_empty(path, file);
        }
        for directory in self.directories.iter().rev() {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Removes `file` if it is still at this path and has no contents.
fn remove_if_empty(path: &Path, file: &File) -> io::Result<()> {
    // The path may be a symbolic link, which existed before.
    let path = path.canonicalize()?;
    let inode = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    let (found, created) = (fs::metadata(&path)?, file.metadata()?);
    if inode(&found) == inode(&created) && created.len() == 0 { fs::remove_file(&path) } else { Ok(()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::os::unix::fs::symlink;

    use iof_proto::{Channels, Nspace, Rank};

    use crate::files::tests::files;
    use crate::format::choice::FilePlace;
    use crate::{FileError, Files, LockedFiles, Pattern};

    use super::*;

    fn lock(place: FilePlace, new: &mut NewFiles) -> Result<LockedFiles, FileError> {
        let nspace = Nspace::new("job").unwrap();
        Files { nprocs: Some(2), ..files(place) }.lock(
            &nspace,
            [Rank(0), Rank(1)],
            Channels::STDOUT | Channels::STDERR,
            new,
        )
    }

    fn exact(path: &Path) -> FilePlace {
        FilePlace::Exact(Pattern::new(path).unwrap())
    }

    #[test]
    fn what_was_created_is_removed_unless_it_is_kept_or_has_contents() {
        let directory = tempfile::tempdir().unwrap();
        let entries = || fs::read_dir(directory.path()).unwrap().count();
        let places = || {
            let inside = |name: &str| directory.path().join(name);
            [FilePlace::Tree(inside("a/b")), FilePlace::Name(inside("c/name")), exact(&inside("c/d/%t"))]
        };
        for kept in [false, true] {
            let mut new = NewFiles::default();
            let locked: Vec<_> = places().map(|place| lock(place, &mut new).unwrap()).into();
            assert_eq!(entries(), 2);
            if kept {
                new.keep();
            } else {
                drop(new);
            }
            drop(locked);
            assert_eq!(entries(), if kept { 2 } else { 0 });
        }
        let mut new = NewFiles::default();
        lock(exact(&directory.path().join("e/%t")), &mut new).unwrap();
        fs::write(directory.path().join("e/1"), "text").unwrap();
        drop(new);
        assert!(directory.path().join("e/1").exists() && !directory.path().join("e/0").exists());
        assert_eq!(entries(), 3, "files that existed before stay, too");
    }

    #[test]
    fn a_link_that_existed_before_stays_and_so_does_a_file_that_replaced_the_new_one() {
        let directory = tempfile::tempdir().unwrap();
        let [link, target, replaced] = ["link", "target", "replaced"].map(|name| directory.path().join(name));
        symlink(&target, &link).unwrap();
        let mut new = NewFiles::default();
        lock(exact(&link), &mut new).unwrap();
        lock(exact(&replaced), &mut new).unwrap();
        assert!(target.exists());
        fs::remove_file(&replaced).unwrap();
        fs::write(&replaced, "").unwrap();
        drop(new);
        assert!(!target.exists() && link.is_symlink() && replaced.exists());
    }

    #[test]
    fn files_that_were_locked_before_one_is_refused_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let [mut new, mut other] = [NewFiles::default(), NewFiles::default()];
        let _held = lock(exact(&directory.path().join("1")), &mut other).unwrap();
        assert!(lock(exact(&directory.path().join("%t")), &mut new).is_err());
        drop(new);
        assert!(!directory.path().join("0").exists() && directory.path().join("1").exists());
    }
}
