//! The rendezvous directory: where it is, and whether it may be trusted.
//!
//! Once opened, a directory is used through its file descriptor only. So what was checked is what
//! is used, whatever happens to its name; and its path may be of any length, although the address
//! of a Unix socket is limited to 108 bytes (unix(7)).

use std::ffi::OsString;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{io, thread};

use nix::libc;
use nix::unistd::geteuid;

use super::Level;

/// How long an engine waits for another that starts in the same directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it looks.
const LOCK_RETRY: Duration = Duration::from_millis(2);

/// Why a directory cannot be the rendezvous.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The system refuses.
    #[error(
        "cannot open the rendezvous directory {}: {source}; mend that, or name another with --rendezvous-dir",
        path.display()
    )]
    Io {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something else has its name.
    #[error(
        "{} is not a directory (and a symbolic link does not do in its place): remove it, or name \
         another with --rendezvous-dir", .0.display()
    )]
    NotADirectory(PathBuf),
    /// The default directory belongs to somebody else.
    #[error(
        "{} belongs to uid {owner} and not to uid {user}: have it removed, or name another directory \
         with --rendezvous-dir", path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who we are.
        user: u32,
    },
    /// The default directory lets others in.
    #[error(
        "{} is open to others (mode {mode:04o}): run chmod 700 on it, or name another directory with \
         --rendezvous-dir", path.display()
    )]
    Open {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// Where the environment says that files of this level belong, as PMIx libraries have it: the first
/// variable that is set and not empty, else `/tmp`.
fn base(level: Level, variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let directed = match level {
        Level::Session => "PMIX_SERVER_TMPDIR",
        Level::System => "PMIX_SYSTEM_TMPDIR",
    };
    [directed, "TMPDIR", "TEMP", "TMP"]
        .into_iter()
        .filter_map(variable)
        .find(|value| !value.is_empty())
        .unwrap_or_else(|| OsString::from("/tmp"))
        .into()
}

/// A rendezvous directory that need not exist yet.
pub(super) struct Place {
    pub(super) path: PathBuf,
    pub(super) level: Level,
    /// The user's own choice, which is taken as it is. Others must be safe to be used.
    given: bool,
}

impl Place {
    /// The directory that the user gave, or else the one that the environment says.
    pub(super) fn new(level: Level, given: Option<&Path>) -> Place {
        match given {
            Some(path) => Place { path: path.to_owned(), level, given: true },
            None => Place::default_under(level, base(level, |name| std::env::var_os(name))),
        }
    }

    pub(super) fn default_under(level: Level, base: PathBuf) -> Place {
        let path = match level {
            Level::Session => base.join(format!("iof-{}", geteuid())),
            Level::System => base,
        };
        Place { path, level, given: false }
    }

    /// Makes the directory of a session, with mode 0700, if nothing has its name. That of the
    /// system is the system's to make.
    pub(super) fn create(&self) -> Result<(), DirectoryError> {
        if self.level == Level::System {
            return Ok(());
        }
        match DirBuilder::new().mode(0o700).create(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(self.io(error)),
            _ => Ok(()),
        }
    }

    /// Opens the directory and, if it is to be this user's own, checks that it is.
    pub(super) fn open(&self) -> Result<Directory, DirectoryError> {
        let private = self.level == Level::Session && !self.given;
        // A link in place of the default directory was not put there by us.
        let no_link = if private { libc::O_NOFOLLOW } else { 0 };
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | no_link)
            .open(&self.path)
            .map_err(|error| match error.raw_os_error() {
            Some(libc::ENOTDIR | libc::ELOOP) => DirectoryError::NotADirectory(self.path.clone()),
            _ => self.io(error),
        })?;
        if private {
            let found = file.metadata().map_err(|error| self.io(error))?;
            self.check(found.uid(), found.mode(), geteuid().as_raw())?;
        }
        Ok(Directory { file, path: self.path.clone() })
    }

    /// A private directory must belong to `user` and give nobody else anything.
    fn check(&self, owner: u32, mode: u32, user: u32) -> Result<(), DirectoryError> {
        if owner != user {
            return Err(DirectoryError::Foreign { path: self.path.clone(), owner, user });
        }
        if mode & 0o077 != 0 {
            return Err(DirectoryError::Open { path: self.path.clone(), mode: mode & 0o7777 });
        }
        Ok(())
    }

    /// Whether a tool may trust a socket that belongs to `owner` in this directory, which `found`
    /// is. In one that all can write to, such as /tmp, anybody can set up an engine for all users.
    pub(super) fn vouches_for(&self, found: &Metadata, owner: u32) -> bool {
        let trusted = |uid: u32| uid == 0 || uid == geteuid().as_raw();
        self.given || trusted(owner) || (trusted(found.uid()) && found.mode() & 0o022 == 0)
    }

    fn io(&self, source: io::Error) -> DirectoryError {
        DirectoryError::Io { path: self.path.clone(), source }
    }
}

/// An open directory.
#[derive(Debug)]
pub(super) struct Directory {
    file: File,
    path: PathBuf,
}

/// No other engine of this node changes what lies in the directory while this lives.
pub(super) struct Lock<'a>(&'a File);

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        // It goes with the descriptor at the latest.
        let _ = self.0.unlock();
    }
}

impl Directory {
    /// Any directory, to connect to a socket in it: it may be one that we cannot list.
    pub(super) fn of_socket(path: &Path) -> io::Result<Directory> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(path)?;
        Ok(Directory { file, path: path.to_owned() })
    }

    /// A short path by which this process, while this value lives, reaches `name` in this directory
    /// (needs /proc, see proc_pid_fd(5)).
    pub(super) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        Path::new("/proc/self/fd").join(self.file.as_raw_fd().to_string()).join(name)
    }

    /// The path by which everybody reaches `name` in this directory.
    pub(super) fn known_as(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    /// Waits for the lock (flock(2) on the directory itself, so that no file is left), for
    /// [`LOCK_TIMEOUT`] at most: whoever may read the directory can hold it.
    pub(super) fn lock(&self) -> io::Result<Lock<'_>> {
        let deadline = Instant::now().checked_add(LOCK_TIMEOUT);
        loop {
            match self.file.try_lock() {
                Ok(()) => return Ok(Lock(&self.file)),
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) if deadline.is_some_and(|end| Instant::now() >= end) => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!("another process has held its lock for {LOCK_TIMEOUT:?}"),
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
    fn the_first_variable_that_says_something_is_the_base() {
        for (set, session, system) in [
            (&[][..], "/tmp", "/tmp"),
            (&[("TMP", "/c"), ("TEMP", "/b")], "/b", "/b"),
            (&[("TMPDIR", ""), ("TMP", "/c")], "/c", "/c"),
            (&[("PMIX_SERVER_TMPDIR", "/s"), ("TMPDIR", "/a")], "/s", "/a"),
            (&[("PMIX_SYSTEM_TMPDIR", "/y"), ("TMPDIR", "/a")], "/a", "/y"),
        ] {
            let variable =
                |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
            assert_eq!(base(Level::Session, variable), Path::new(session), "{set:?}");
            assert_eq!(base(Level::System, variable), Path::new(system), "{set:?}");
        }
    }

    #[test]
    fn a_system_level_socket_is_trusted_by_its_owner_or_for_its_directory() {
        let base = tempfile::tempdir().unwrap();
        let place = Place::default_under(Level::System, base.path().to_owned());
        assert_eq!(place.path, base.path());
        let (us, other) = (geteuid().as_raw(), 4_000_000_000);
        let vouches = |mode: u32, owner: u32| {
            fs::set_permissions(base.path(), Permissions::from_mode(mode)).unwrap();
            place.vouches_for(&place.open().unwrap().metadata().unwrap(), owner)
        };
        assert!(vouches(0o1777, 0) && vouches(0o1777, us));
        assert!(vouches(0o755, other), "we put it there, or let it");
        assert!(!vouches(0o1777, other) && !vouches(0o775, other));
        let given = Place::new(Level::System, Some(base.path()));
        assert!(given.vouches_for(&fs::metadata(base.path()).unwrap(), other));
    }

    #[test]
    fn a_lock_is_waited_for_until_it_is_free() {
        let base = tempfile::tempdir().unwrap();
        let place = Place::new(Level::Session, Some(base.path()));
        let (first, second) = (place.open().unwrap(), place.open().unwrap());
        let lock = first.lock().unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| second.lock().map(drop));
            assert!(matches!(place.open().unwrap().file.try_lock(), Err(TryLockError::WouldBlock)));
            drop(lock);
            waits.join().unwrap().unwrap();
        });
    }

    #[test]
    fn the_default_directory_is_made_for_us_alone() {
        let base = tempfile::tempdir().unwrap();
        let place = Place::default_under(Level::Session, base.path().to_owned());
        place.create().unwrap();
        place.create().unwrap();
        place.open().unwrap();
        assert_eq!(fs::metadata(&place.path).unwrap().mode() & 0o7777, 0o700);
    }

    #[test]
    fn a_default_directory_that_others_may_enter_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let place = Place::default_under(Level::Session, base.path().to_owned());
        place.create().unwrap();
        fs::set_permissions(&place.path, Permissions::from_mode(0o750)).unwrap();
        let error = place.open().unwrap_err();
        assert!(matches!(error, DirectoryError::Open { mode: 0o750, .. }), "{error}");
        assert!(error.to_string().contains("chmod 700"), "{error}");
        Place::new(Level::Session, Some(&place.path))
            .open()
            .expect("the user's own choice is taken as it is");
    }

    #[test]
    fn a_default_directory_of_somebody_else_is_refused() {
        let place = Place::default_under(Level::Session, "/nowhere".into());
        assert!(matches!(place.check(1, 0o40700, 2), Err(DirectoryError::Foreign { owner: 1, user: 2, .. })));
        assert!(place.check(2, 0o40700, 2).is_ok());
    }

    #[test]
    fn a_link_or_a_file_in_place_of_the_default_directory_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let place = Place::default_under(Level::Session, base.path().to_owned());
        let real = base.path().join("real");
        DirBuilder::new().mode(0o700).create(&real).unwrap();
        symlink(&real, &place.path).unwrap();
        place.create().unwrap();
        assert!(matches!(place.open(), Err(DirectoryError::NotADirectory(_))));
        Place::new(Level::Session, Some(&place.path)).open().expect("the user may give a link");

        fs::remove_file(&place.path).unwrap();
        fs::write(&place.path, "").unwrap();
        assert!(matches!(place.open(), Err(DirectoryError::NotADirectory(_))));
    }
}
