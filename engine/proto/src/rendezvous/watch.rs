//! A watch on the directories in which engines and jobs appear.

use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::Level;
use super::directory::DirectoryPath;
use super::names::FileNames;
use crate::names::Nspace;

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

    /// Blocks until an entry has come or gone since the last call, or since the watch began. Returns the
    /// jobs that have come, with the pids of their engines. They may have gone since.
    ///
    /// # Errors
    /// Fails if a directory is gone.
    pub fn wait(&self) -> io::Result<Vec<(u32, Nspace)>> {
        let names = FileNames::of_this_host()?;
        loop {
            match self.0.read_events() {
                Ok(events) if events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_IGNORED)) => {
                    return Err(io::ErrorKind::NotFound.into());
                }
                Ok(events) => {
                    let come = events.iter().filter(|event| !event.mask.contains(AddWatchFlags::IN_DELETE));
                    return Ok(come.filter_map(|event| names.job_link_parts(event.name.as_ref()?)).collect());
                }
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
        assert_eq!(watch.wait().unwrap(), []);
        let job = (17, Nspace::new("job").unwrap());
        let link = directory.join(FileNames::of_this_host().unwrap().job_link(job.0, &job.1));
        fs::write(&link, "").unwrap();
        assert_eq!(watch.wait().unwrap(), [job]);
        [&file, &link].into_iter().for_each(|path| fs::remove_file(path).unwrap());
        assert_eq!(watch.wait().unwrap(), []);
        fs::remove_dir(&directory).unwrap();
        assert_eq!(watch.wait().unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
