//! A watch on the directories in which engines and jobs appear.

use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::Level;
use super::directory::DirectoryPath;

/// A watch on session-level directories, in which files of engines and jobs come and go (inotify(7)).
///
/// ```no_run
/// # fn main() -> std::io::Result<()> {
/// let watch = iof_proto::rendezvous::DirectoryWatch::new([None])?;
/// watch.wait()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DirectoryWatch(Inotify);

impl DirectoryWatch {
    /// Begins to watch these directories. `None` selects the default directory (see the
    /// [module](super)).
    ///
    /// # Errors
    /// Fails if a directory does not exist or cannot be read, or if the user has too many watches.
    pub fn new<'a>(directories: impl IntoIterator<Item = Option<&'a Path>>) -> io::Result<DirectoryWatch> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
        let changes = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_DELETE;
        for directory in directories {
            let path = DirectoryPath::new(Level::Session, directory).path;
            inotify.add_watch(&path, changes | AddWatchFlags::IN_ONLYDIR)?;
        }
        Ok(DirectoryWatch(inotify))
    }

    /// Blocks until an entry has come or gone since the last call, or since the watch began.
    ///
    /// # Errors
    /// Fails if a directory is gone.
    pub fn wait(&self) -> io::Result<()> {
        loop {
            match self.0.read_events() {
                Ok(events) if events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_IGNORED)) => {
                    return Err(io::ErrorKind::NotFound.into());
                }
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn entries_that_come_or_go_end_the_wait_and_a_directory_that_goes_is_an_error() {
        let base = tempfile::tempdir().unwrap();
        let (directory, file) = (base.path().join("d"), base.path().join("d/f"));
        assert!(DirectoryWatch::new([Some(&*directory)]).is_err());
        fs::create_dir(&directory).unwrap();
        let watch = DirectoryWatch::new([Some(base.path()), Some(&directory)]).unwrap();
        fs::write(&file, "").unwrap();
        watch.wait().unwrap();
        fs::remove_file(&file).unwrap();
        watch.wait().unwrap();
        fs::remove_dir(&directory).unwrap();
        assert_eq!(watch.wait().unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
