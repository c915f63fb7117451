//! A watch on the directories in which engines and jobs appear.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
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
/// for (pid, job) in watch.begun()? {
///     println!("{job} of process {pid}");
/// }
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
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let changes = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_DELETE;
        for directory in directories {
            let path = DirectoryPath::new(Level::Session, directory).path;
            inotify.add_watch(&path, changes | AddWatchFlags::IN_ONLYDIR)?;
        }
        Ok(DirectoryWatch(inotify))
    }

    /// Blocks until [`begun`](Self::begun) has something to note: an entry has come or gone, or a
    /// directory has. Any thread may wait while another one notes.
    ///
    /// # Errors
    /// The error of poll(2).
    pub fn wait(&self) -> io::Result<()> {
        let mut files = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut files, PollTimeout::NONE) {
                Err(Errno::EINTR) => {}
                result => return Ok(result.map(drop)?),
            }
        }
    }

    /// Notes all that has changed since the last call, or since the watch began. Does not block. Returns the
    /// jobs that have come, with the pids of their engines. They may have gone since.
    ///
    /// # Errors
    /// Fails if a directory is gone.
    pub fn begun(&self) -> io::Result<Vec<(u32, Nspace)>> {
        let (names, mut begun) = (FileNames::of_this_host()?, Vec::new());
        loop {
            match self.0.read_events() {
                Ok(events) if events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_IGNORED)) => {
                    return Err(io::ErrorKind::NotFound.into());
                }
                Ok(events) => {
                    let come = events.iter().filter(|event| !event.mask.contains(AddWatchFlags::IN_DELETE));
                    begun.extend(come.filter_map(|event| names.job_link_parts(event.name.as_ref()?)));
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(begun),
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
        assert_eq!(watch.begun().unwrap(), []);
        let changed = || {
            watch.wait().unwrap();
            watch.begun()
        };
        fs::write(&file, "").unwrap();
        assert_eq!(changed().unwrap(), []);
        let names = FileNames::of_this_host().unwrap();
        let jobs = [17, 18].map(|pid| (pid, Nspace::new("job").unwrap()));
        let links = jobs.clone().map(|(pid, job)| directory.join(names.job_link(pid, &job)));
        links.iter().for_each(|link| fs::write(link, "").unwrap());
        fs::remove_file(&links[0]).unwrap();
        assert_eq!(changed().unwrap(), jobs);
        [&file, &links[1]].into_iter().for_each(|path| fs::remove_file(path).unwrap());
        assert_eq!(changed().unwrap(), []);
        fs::remove_dir(&directory).unwrap();
        assert_eq!(changed().unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
