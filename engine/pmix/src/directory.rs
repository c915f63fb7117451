//! The private directory for the files of the server and of the ranks.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::mkdtemp;

use crate::error::StartError;

/// A directory that only this user can enter. It is removed with all its files when it is dropped.
#[derive(Debug)]
pub(crate) struct PrivateDirectory(PathBuf);

impl PrivateDirectory {
    /// Creates a directory in the one for temporary files.
    pub(crate) fn create() -> Result<PrivateDirectory, StartError> {
        let template = std::env::temp_dir().join(format!("iof-pmix-{}-XXXXXX", std::process::id()));
        match mkdtemp(&template) {
            Ok(path) => Ok(PrivateDirectory(path)),
            Err(error) => Err(StartError::Directory { path: template, source: error.into() }),
        }
    }

    /// Returns the path as a text.
    pub(crate) fn text(&self) -> Result<&str, StartError> {
        let error = || io::Error::new(io::ErrorKind::InvalidFilename, "PMIx needs a name in UTF-8");
        let path = || self.0.clone();
        self.0.to_str().ok_or_else(|| StartError::Directory { path: path(), source: error() })
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

    /// Writes a file that only this user can read.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<(), StartError> {
        let path = self.0.join(name);
        let create = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let written = create().and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|source| StartError::Directory { path, source })
    }

    /// Removes this directory now.
    pub(crate) fn remove(&self) {
        remove(&self.0);
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
