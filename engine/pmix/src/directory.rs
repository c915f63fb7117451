//! The private directory for the files of the server and of the ranks.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::error::StartError;

/// A directory that only this user can enter. It is removed with all its files when it is dropped.
#[derive(Debug)]
pub(crate) struct PrivateDirectory(PathBuf);

/// The number of names that are tried.
const ATTEMPTS: u32 = 100;

impl PrivateDirectory {
    /// Creates a directory in the one for temporary files.
    pub(crate) fn create() -> Result<PrivateDirectory, StartError> {
        let parent = std::env::temp_dir();
        let path = |attempt: u32| parent.join(format!("iof-pmix-{}-{attempt}", std::process::id()));
        let mut attempt = 0;
        loop {
            let path = path(attempt);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(PrivateDirectory(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < ATTEMPTS => {
                    attempt = attempt.saturating_add(1);
                }
                Err(source) => return Err(StartError::Directory { path, source }),
            }
        }
    }

    /// Creates a directory in this one, for the files of a job.
    pub(crate) fn create_inner(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.0.join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(path)
    }

    /// Removes such a directory.
    pub(crate) fn remove_inner(&self, name: &str) {
        remove(&self.0.join(name));
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path) {
        tracing::debug!(path = %path.display(), %error, "cannot remove the directory");
    }
}
