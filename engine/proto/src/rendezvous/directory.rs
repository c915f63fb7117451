//! The rendezvous directory: where it is, and whether it may be trusted.
//!
//! Once opened, a directory is used through its file descriptor only. So what was checked is what
//! is used, whatever happens to its name; and its path may be of any length, although the address
//! of a Unix socket is limited to 108 bytes (unix(7)).

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::unistd::geteuid;

/// Why a directory cannot be the rendezvous.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The system refuses.
    #[error("cannot open the rendezvous directory {}: {source}", path.display())]
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

/// Where temporary files belong (RFC0001): the first of `TMPDIR`, `TEMP` and `TMP` that is set
/// and not empty, else `/tmp`.
#[must_use]
pub fn base_dir() -> PathBuf {
    base_from(|name| std::env::var_os(name))
}

fn base_from(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    ["TMPDIR", "TEMP", "TMP"]
        .into_iter()
        .filter_map(variable)
        .find(|value| !value.is_empty())
        .unwrap_or_else(|| OsString::from("/tmp"))
        .into()
}

/// A rendezvous directory that need not exist yet.
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    /// Ours alone, and checked to be.
    private: bool,
}

impl Place {
    /// The directory that the user gave, or else the default one.
    pub(crate) fn new(given: Option<&Path>) -> Place {
        match given {
            Some(path) => Place { path: path.to_owned(), private: false },
            None => Place::default_under(&base_dir()),
        }
    }

    pub(crate) fn default_under(base: &Path) -> Place {
        Place { path: base.join(format!("iof-{}", geteuid())), private: true }
    }

    /// Makes the directory, with mode 0700, if nothing has its name.
    pub(crate) fn create(&self) -> Result<(), DirectoryError> {
        match DirBuilder::new().mode(0o700).create(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(self.io(error)),
            _ => Ok(()),
        }
    }

    /// Opens and checks the directory.
    pub(crate) fn open(&self) -> Result<Directory, DirectoryError> {
        // A link in place of the default directory was not put there by us.
        let no_link = if self.private { libc::O_NOFOLLOW } else { 0 };
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | no_link)
            .open(&self.path)
            .map_err(|error| match error.raw_os_error() {
            Some(libc::ENOTDIR | libc::ELOOP) => DirectoryError::NotADirectory(self.path.clone()),
            _ => self.io(error),
        })?;
        if self.private {
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

    fn io(&self, source: io::Error) -> DirectoryError {
        DirectoryError::Io { path: self.path.clone(), source }
    }
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct Directory {
    file: File,
    path: PathBuf,
}

impl Directory {
    /// Any directory, to connect to a socket in it.
    pub(crate) fn of_socket(path: &Path) -> io::Result<Directory> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(path)?;
        Ok(Directory { file, path: path.to_owned() })
    }

    /// A short path by which this process, while this value lives, reaches `name` in this directory
    /// (needs /proc, see proc_pid_fd(5)).
    pub(crate) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        Path::new("/proc/self/fd").join(self.file.as_raw_fd().to_string()).join(name)
    }

    /// The path by which everybody reaches `name` in this directory.
    pub(crate) fn known_as(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_first_variable_that_says_something_is_the_base() {
        let base = |set: &'static [(&str, &str)]| {
            base_from(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
        };
        assert_eq!(base(&[]), Path::new("/tmp"));
        assert_eq!(base(&[("TMP", "/c"), ("TEMP", "/b")]), Path::new("/b"));
        assert_eq!(base(&[("TMPDIR", ""), ("TMP", "/c")]), Path::new("/c"));
    }

    #[test]
    fn the_default_directory_is_made_for_us_alone() {
        let base = tempfile::tempdir().unwrap();
        let place = Place::default_under(base.path());
        place.create().unwrap();
        place.create().unwrap();
        place.open().unwrap();
        assert_eq!(fs::metadata(&place.path).unwrap().mode() & 0o7777, 0o700);
    }

    #[test]
    fn a_default_directory_that_others_may_enter_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let place = Place::default_under(base.path());
        place.create().unwrap();
        fs::set_permissions(&place.path, Permissions::from_mode(0o750)).unwrap();
        let error = place.open().unwrap_err();
        assert!(matches!(error, DirectoryError::Open { mode: 0o750, .. }), "{error}");
        assert!(error.to_string().contains("chmod 700"), "{error}");
        Place::new(Some(&place.path)).open().expect("the user's own choice is taken as it is");
    }

    #[test]
    fn a_default_directory_of_somebody_else_is_refused() {
        let place = Place::default_under(Path::new("/nowhere"));
        assert!(matches!(place.check(1, 0o40700, 2), Err(DirectoryError::Foreign { owner: 1, user: 2, .. })));
        assert!(place.check(2, 0o40700, 2).is_ok());
    }

    #[test]
    fn a_link_or_a_file_in_place_of_the_default_directory_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let place = Place::default_under(base.path());
        let real = base.path().join("real");
        DirBuilder::new().mode(0o700).create(&real).unwrap();
        symlink(&real, &place.path).unwrap();
        place.create().unwrap();
        assert!(matches!(place.open(), Err(DirectoryError::NotADirectory(_))));
        Place::new(Some(&place.path)).open().expect("the user may give a link");

        fs::remove_file(&place.path).unwrap();
        fs::write(&place.path, "").unwrap();
        assert!(matches!(place.open(), Err(DirectoryError::NotADirectory(_))));
    }
}
