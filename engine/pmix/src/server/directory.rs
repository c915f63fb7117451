//! The private directory for the files of the server and of the ranks.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::unistd::{geteuid, gethostname, mkdtemp};

use crate::error::StartError;

/// The number of times that a directory is created that another process takes for a stale one
/// before it is locked.
const ATTEMPTS: usize = 10;

/// A directory that only this user can enter. It is removed with all its files when it is dropped.
/// Its process holds a lock on it, so that others find out whether it was left behind.
#[derive(Debug)]
pub(crate) struct PrivateDirectory {
    path: PathBuf,
    /// `None` if the file system has no locks.
    _lock: Option<Flock<File>>,
}

impl PrivateDirectory {
    /// Creates a directory in the one for temporary files, and removes those there that processes
    /// of this user and host have left behind, such as one that was killed.
    pub(crate) fn create() -> Result<PrivateDirectory, StartError> {
        PrivateDirectory::create_in(&std::env::temp_dir())
    }

    fn create_in(parent: &Path) -> Result<PrivateDirectory, StartError> {
        // With the name of the host: other hosts may share the file system, but not the locks.
        let host = gethostname().unwrap_or_default().to_string_lossy().replace('/', "_");
        let prefix = format!("iof-pmix-{host}-");
        remove_stale(parent, &prefix);
        let template = parent.join(format!("{prefix}{}-XXXXXX", std::process::id()));
        let failed = |source| StartError::Directory { path: template.clone(), source };
        for _ in 0..ATTEMPTS {
            let path = mkdtemp(&template).map_err(|error| failed(error.into()))?;
            match lock(&path) {
                Ok(lock) => return Ok(PrivateDirectory { path, _lock: Some(lock) }),
                Err(Errno::EWOULDBLOCK | Errno::ENOENT) => {}
                Err(_) => return Ok(PrivateDirectory { path, _lock: None }),
            }
        }
        Err(failed(io::ErrorKind::ResourceBusy.into()))
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path as a text.
    pub(crate) fn text(&self) -> Result<&str, StartError> {
        let error = || io::Error::new(io::ErrorKind::InvalidFilename, "PMIx needs a name in UTF-8");
        let path = || self.path.clone();
        self.path.to_str().ok_or_else(|| StartError::Directory { path: path(), source: error() })
    }

    /// Creates a directory in this one, for the files of a job.
    pub(crate) fn create_inner(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(path)
    }

    /// Removes such a directory.
    pub(crate) fn remove_inner(&self, name: &str) {
        remove(&self.path.join(name));
    }

    /// Writes a new file that only this user can read. Leaves none on an error.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<(), StartError> {
        let path = self.path.join(name);
        write_new(&path, text).map_err(|source| StartError::Directory { path, source })
    }

    /// Removes a file, if it exists.
    pub(crate) fn remove_file(&self, name: &str) {
        let _ = fs::remove_file(self.path.join(name));
    }

    /// Removes this directory now.
    pub(crate) fn remove(&self) {
        remove(&self.path);
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Writes a new file that only this user can read. Leaves none on an error.
pub(crate) fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes()).inspect_err(|_| drop(fs::remove_file(path)))
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path) {
        tracing::debug!(path = %path.display(), %error, "cannot remove the directory");
    }
}

/// Locks a directory, unless it is locked or removed.
fn lock(path: &Path) -> Result<Flock<File>, Errno> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    let open = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
    let lock = Flock::lock(open.map_err(errno)?, FlockArg::LockExclusiveNonblock);
    let lock = lock.map_err(|(_, error)| error)?;
    // Another process may have removed the directory in between.
    let links = lock.metadata().map_err(errno)?.nlink();
    if links == 0 { Err(Errno::ENOENT) } else { Ok(lock) }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or_default())
}

/// Removes the directories of this user with names that begin with `prefix` and that no process has
/// locked.
fn remove_stale(parent: &Path, prefix: &str) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| is_ours(&entry.file_name().to_string_lossy(), prefix)) {
        let own = entry.metadata().is_ok_and(|metadata| metadata.uid() == geteuid().as_raw());
        // The lock is held until the directory is removed.
        if own && let Ok(_lock) = lock(&entry.path()) {
            remove(&entry.path());
        }
    }
}

/// Returns whether a name is that of a directory of this host.
fn is_ours(name: &str, prefix: &str) -> bool {
    let ends = name.strip_prefix(prefix).and_then(|rest| rest.split_once('-'));
    ends.is_some_and(|(pid, letters)| {
        !pid.is_empty() && pid.bytes().all(|digit| digit.is_ascii_digit()) && letters.len() == 6
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn directories_that_no_process_has_locked_are_removed() {
        let parent = mkdtemp(&std::env::temp_dir().join("iof-directories-XXXXXX")).unwrap();
        let kept = PrivateDirectory::create_in(&parent).unwrap();
        kept.write("file", "text").unwrap();
        // What a process that was killed leaves.
        let mut stale = PrivateDirectory::create_in(&parent).unwrap();
        stale.write("file", "text").unwrap();
        drop(stale._lock.take());
        let other = parent.join("iof-pmix-other.host-1-abcdef");
        fs::create_dir(&other).unwrap();
        let next = PrivateDirectory::create_in(&parent).unwrap();
        assert!(kept.path.join("file").exists() && next.path.exists() && other.exists());
        assert!(!stale.path.exists());
        drop((kept, next));
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 1);
        fs::remove_dir_all(&parent).unwrap();
    }

    #[test]
    fn only_names_of_this_crate_are_those_of_directories() {
        assert!(is_ours("iof-pmix-node1-4711-a1B2c3", "iof-pmix-node1-"));
        for name in ["iof-pmix-node1-4711", "iof-pmix-node1-x-abcdef", "iof-pmix-node1--abcdef", "a-1-abcdef"]
        {
            assert!(!is_ours(name, "iof-pmix-node1-"), "{name}");
        }
    }
}
