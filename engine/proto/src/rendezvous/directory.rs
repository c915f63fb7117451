//! The rendezvous directory: its location and the checks that make it trustworthy.
//!
//! If `/proc` is mounted, an open directory is used only through its file descriptor. The directory
//! in use is therefore the one that was checked, even if its name changes. Its path may have any
//! length, although the address of a Unix socket is limited to 108 bytes (unix(7)).

use std::ffi::OsString;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{io, path, thread};

use nix::libc;
use nix::unistd::geteuid;

use super::Level;

/// Longest time for which an engine waits for other engines that start in the same directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which a waiting engine tries the lock.
const LOCK_RETRY: Duration = Duration::from_millis(2);

/// The reason why a directory cannot be the rendezvous directory.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// A system call failed.
    #[error(
        "cannot open the rendezvous directory {}: {source}; choose another directory",
        path.display()
    )]
    Io {
        /// The path of the directory.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The path is not a directory.
    #[error(
        "invalid rendezvous directory {}: expected a directory and not a symbolic link: remove it, or \
         choose another directory", .0.display()
    )]
    NotADirectory(PathBuf),
    /// The default directory belongs to another user.
    #[error(
        "the rendezvous directory {} belongs to uid {owner}, not to uid {user}: remove it, or choose \
         another directory", path.display()
    )]
    Foreign {
        /// The path of the directory.
        path: PathBuf,
        /// The user who owns the directory.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// The default directory is accessible to other users.
    #[error(
        "the rendezvous directory {} is accessible to other users (mode {mode:04o}): run chmod 700 on \
         it, or choose another directory", path.display()
    )]
    Open {
        /// The path of the directory.
        path: PathBuf,
        /// The permission bits of the directory.
        mode: u32,
    },
}

impl DirectoryError {
    /// Returns whether the path belongs to another user, who may have put it there.
    pub fn is_foreign(&self) -> bool {
        let (DirectoryError::Io { path, .. }
        | DirectoryError::NotADirectory(path)
        | DirectoryError::Foreign { path, .. }
        | DirectoryError::Open { path, .. }) = self;
        path.symlink_metadata().is_ok_and(|metadata| metadata.uid() != geteuid().as_raw())
    }
}

/// Returns the directory in which PMIx libraries keep files of this level: the value of the first
/// environment variable that is set and not empty, otherwise `/tmp`.
fn base_directory(level: Level, variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let own_variable = match level {
        Level::Session | Level::Agent | Level::Link => "PMIX_SERVER_TMPDIR",
        Level::System => "PMIX_SYSTEM_TMPDIR",
    };
    [own_variable, "TMPDIR", "TEMP", "TMP"]
        .into_iter()
        .filter_map(variable)
        .find(|value| !value.is_empty())
        .unwrap_or_else(|| OsString::from("/tmp"))
        .into()
}

/// The path of a rendezvous directory, which need not exist yet.
pub(super) struct DirectoryPath {
    pub(super) path: PathBuf,
    pub(super) level: Level,
    /// Set if the user chose the directory. Such a directory is not checked.
    is_chosen: bool,
}

impl DirectoryPath {
    /// Returns the directory that the user chose, or the default one, which depends on the
    /// environment.
    pub(super) fn new(level: Level, chosen: Option<&Path>) -> DirectoryPath {
        match chosen {
            Some(path) => DirectoryPath { path: path.to_owned(), level, is_chosen: true },
            None => DirectoryPath::default_below(level, base_directory(level, |name| std::env::var_os(name))),
        }
    }

    /// Returns the default directory in `base`.
    pub(super) fn default_below(level: Level, base: PathBuf) -> DirectoryPath {
        let path = match level {
            Level::Session | Level::Agent | Level::Link => base.join(format!("iof-{}", geteuid())),
            Level::System => base,
        };
        DirectoryPath { path, level, is_chosen: false }
    }

    /// Creates a session-level directory with mode 0700, unless its path exists. The administrator
    /// must create a system-level directory.
    pub(super) fn create(&self) -> Result<(), DirectoryError> {
        if self.level == Level::System {
            return Ok(());
        }
        match DirBuilder::new().mode(0o700).create(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(self.io(error)),
            _ => Ok(()),
        }
    }

    /// Opens the directory. Checks that a default session-level directory is private to this user.
    pub(super) fn open(&self) -> Result<Directory, DirectoryError> {
        let is_private = self.level != Level::System && !self.is_chosen;
        // Engines never create the default directory as a link, so a link is not trusted.
        let no_link = if is_private { libc::O_NOFOLLOW } else { 0 };
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | no_link)
            .open(&self.path)
            .map_err(|error| match error.raw_os_error() {
            Some(libc::ENOTDIR | libc::ELOOP) => DirectoryError::NotADirectory(self.path.clone()),
            _ => self.io(error),
        })?;
        if is_private {
            let metadata = file.metadata().map_err(|error| self.io(error))?;
            self.check_private(metadata.uid(), metadata.mode(), geteuid().as_raw())?;
        }
        // The full path may be used after a change of the working directory.
        let path = path::absolute(&self.path).map_err(|error| self.io(error))?;
        Ok(Directory { file, path })
    }

    /// Checks that the directory belongs to `user` and gives no permissions to other users.
    fn check_private(&self, owner: u32, mode: u32, user: u32) -> Result<(), DirectoryError> {
        if owner != user {
            return Err(DirectoryError::Foreign { path: self.path.clone(), owner, user });
        }
        if mode & 0o077 != 0 {
            return Err(DirectoryError::Open { path: self.path.clone(), mode: mode & 0o7777 });
        }
        Ok(())
    }

    /// Returns whether a tool can trust a socket of user `socket_owner` in this directory. In a
    /// directory that all users can write to, such as `/tmp`, any user can pose as the system-level
    /// engine.
    pub(super) fn trusts(&self, directory: &Metadata, socket_owner: u32) -> bool {
        let is_trusted = |uid: u32| uid == 0 || uid == geteuid().as_raw();
        let is_protected = || is_trusted(directory.uid()) && directory.mode() & 0o022 == 0;
        self.is_chosen || is_trusted(socket_owner) || is_protected()
    }

    fn io(&self, source: io::Error) -> DirectoryError {
        DirectoryError::Io { path: self.path.clone(), source }
    }
}

/// Returns the path of the directory of session-level engines, the chosen one or the default one (see the
/// [module](super)). Creates it if it does not exist.
///
/// # Errors
/// It cannot be created or opened, or is the default one and not private to this user.
pub fn session_directory(chosen: Option<&Path>) -> Result<PathBuf, DirectoryError> {
    let directory = DirectoryPath::new(Level::Session, chosen);
    directory.create()?;
    Ok(directory.open()?.path)
}

/// An open directory.
#[derive(Debug)]
pub(super) struct Directory {
    file: File,
    path: PathBuf,
}

/// The lock of a directory. While it exists, no other engine of this node changes the directory's
/// contents.
pub(super) struct DirectoryLock<'a>(&'a File);

impl Drop for DirectoryLock<'_> {
    fn drop(&mut self) {
        // If this fails, closing the descriptor releases the lock.
        let _ = self.0.unlock();
    }
}

impl Directory {
    /// Opens a directory only to connect to a socket in it. This does not need permission to list
    /// the directory.
    pub(super) fn open_path(path: &Path) -> io::Result<Directory> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(path)?;
        Ok(Directory { file, path: path.to_owned() })
    }

    /// Returns a short path to `name` in this directory. It is valid in this process while `self`
    /// exists (proc_pid_fd(5)). Where `/proc` is not mounted, this is the full path.
    pub(super) fn short_path(&self, name: impl AsRef<Path>) -> PathBuf {
        let short = Path::new("/proc/self/fd").join(self.file.as_raw_fd().to_string());
        if short.exists() { short.join(name) } else { self.full_path(name) }
    }

    /// Returns the path to `name` in this directory that is valid in all processes.
    pub(super) fn full_path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    /// Locks the directory. Blocks for at most [`LOCK_TIMEOUT`], because any process that can read
    /// the directory can hold the lock. The lock is a flock(2) on the directory itself, so that
    /// no lock file remains.
    pub(super) fn lock(&self) -> io::Result<DirectoryLock<'_>> {
        let deadline = Instant::now().checked_add(LOCK_TIMEOUT);
        loop {
            match self.file.try_lock() {
                Ok(()) => return Ok(DirectoryLock(&self.file)),
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) if deadline.is_some_and(|end| Instant::now() >= end) => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!("another process has held the directory's lock for {LOCK_TIMEOUT:?}"),
                    ));
                }
                Err(TryLockError::WouldBlock) => thread::sleep(LOCK_RETRY),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_first_nonempty_variable_is_the_base_directory() {
        for (set, session, system) in [
            (&[][..], "/tmp", "/tmp"),
            (&[("TMP", "/c"), ("TEMP", "/b")], "/b", "/b"),
            (&[("TMPDIR", ""), ("TMP", "/c")], "/c", "/c"),
            (&[("PMIX_SERVER_TMPDIR", "/s"), ("TMPDIR", "/a")], "/s", "/a"),
            (&[("PMIX_SYSTEM_TMPDIR", "/y"), ("TMPDIR", "/a")], "/a", "/y"),
        ] {
            let variable =
                |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
            assert_eq!(base_directory(Level::Session, variable), Path::new(session), "{set:?}");
            assert_eq!(base_directory(Level::System, variable), Path::new(system), "{set:?}");
        }
    }

    #[test]
    fn a_system_level_socket_is_trusted_for_its_owner_or_its_directory() {
        let base = tempfile::tempdir().unwrap();
        let directory = DirectoryPath::default_below(Level::System, base.path().to_owned());
        assert_eq!(directory.path, base.path());
        let (own_uid, other_uid) = (geteuid().as_raw(), 4_000_000_000);
        let trusts = |mode: u32, owner: u32| {
            fs::set_permissions(base.path(), Permissions::from_mode(mode)).unwrap();
            directory.trusts(&directory.open().unwrap().metadata().unwrap(), owner)
        };
        assert!(trusts(0o1777, 0) && trusts(0o1777, own_uid));
        assert!(trusts(0o755, other_uid), "only the directory's owner can have put it there");
        assert!(!trusts(0o1777, other_uid) && !trusts(0o775, other_uid));
        let chosen = DirectoryPath::new(Level::System, Some(base.path()));
        assert!(chosen.trusts(&fs::metadata(base.path()).unwrap(), other_uid));
    }

    #[test]
    fn locking_blocks_until_the_lock_is_free() {
        let base = tempfile::tempdir().unwrap();
        let directory = DirectoryPath::new(Level::Session, Some(base.path()));
        let (first, second) = (directory.open().unwrap(), directory.open().unwrap());
        let lock = first.lock().unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| second.lock().map(drop));
            assert!(matches!(directory.open().unwrap().file.try_lock(), Err(TryLockError::WouldBlock)));
            drop(lock);
            waiter.join().unwrap().unwrap();
        });
    }

    #[test]
    fn the_default_directory_is_created_private() {
        let base = tempfile::tempdir().unwrap();
        let directory = DirectoryPath::default_below(Level::Session, base.path().to_owned());
        directory.create().unwrap();
        directory.create().unwrap();
        directory.open().unwrap();
        assert_eq!(fs::metadata(&directory.path).unwrap().mode() & 0o7777, 0o700);
    }

    #[test]
    fn a_default_directory_accessible_to_others_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let directory = DirectoryPath::default_below(Level::Session, base.path().to_owned());
        directory.create().unwrap();
        fs::set_permissions(&directory.path, Permissions::from_mode(0o750)).unwrap();
        let error = directory.open().unwrap_err();
        assert!(matches!(error, DirectoryError::Open { mode: 0o750, .. }), "{error}");
        assert!(error.to_string().contains("chmod 700"), "{error}");
        DirectoryPath::new(Level::Session, Some(&directory.path))
            .open()
            .expect("a chosen directory is not checked");
    }

    #[test]
    fn a_default_directory_of_another_user_is_refused() {
        let directory = DirectoryPath::default_below(Level::Session, "/nowhere".into());
        assert!(matches!(
            directory.check_private(1, 0o40700, 2),
            Err(DirectoryError::Foreign { owner: 1, user: 2, .. })
        ));
        assert!(directory.check_private(2, 0o40700, 2).is_ok());
    }

    #[test]
    fn a_link_or_a_file_in_place_of_the_default_directory_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let directory = DirectoryPath::default_below(Level::Session, base.path().to_owned());
        let real = base.path().join("real");
        DirBuilder::new().mode(0o700).create(&real).unwrap();
        symlink(&real, &directory.path).unwrap();
        directory.create().unwrap();
        assert!(matches!(directory.open(), Err(DirectoryError::NotADirectory(_))));
        DirectoryPath::new(Level::Session, Some(&directory.path)).open().expect("the user may choose a link");

        fs::remove_file(&directory.path).unwrap();
        fs::write(&directory.path, "").unwrap();
        assert!(matches!(directory.open(), Err(DirectoryError::NotADirectory(_))));
    }
}
