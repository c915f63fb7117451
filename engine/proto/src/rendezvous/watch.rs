//! A watch on the directories in which engines and jobs appear.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::{fs, io};

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
pub struct DirectoryWatch {
    inotify: Inotify,
    /// The pids of agents, whose jobs are parts of others.
    agents: Mutex<BTreeSet<u32>>,
}

impl DirectoryWatch {
    /// Begins to watch these directories. `None` selects the default directory (see the
    /// [module](super)).
    ///
    /// # Errors
    /// Fails if a directory does not exist or cannot be read, or if the user has too many watches.
    pub fn new<'a>(directories: impl IntoIterator<Item = Option<&'a Path>>) -> io::Result<DirectoryWatch> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let changes = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_DELETE;
        let (names, mut agents) = (FileNames::of_this_host()?, BTreeSet::new());
        for directory in directories {
            let path = DirectoryPath::new(Level::Session, directory).path;
            inotify.add_watch(&path, changes | AddWatchFlags::IN_ONLYDIR)?;
            let sockets =
                fs::read_dir(&path)?.filter_map(|entry| names.socket_parts(&entry.ok()?.file_name()));
            agents.extend(sockets.filter(|(_, level)| *level == Level::Agent).map(|(pid, _)| pid));
        }
        Ok(DirectoryWatch { inotify, agents: Mutex::new(agents) })
    }

    /// Blocks until [`begun`](Self::begun) has something to note: an entry has come or gone, or a
    /// directory has. Any thread may wait while another one notes.
    ///
    /// # Errors
    /// The error of poll(2).
    pub fn wait(&self) -> io::Result<()> {
        let mut files = [PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut files, PollTimeout::NONE) {
                Err(Errno::EINTR) => {}
                result => return Ok(result.map(drop)?),
            }
        }
    }

    /// Notes all that has changed since the last call, or since the watch began. Does not block. Returns the
    /// jobs that have come, with the pids of their engines, without the parts of jobs that agents have. They may
    /// have gone since.
    ///
    /// # Errors
    /// Fails if a directory is gone.
    pub fn begun(&self) -> io::Result<Vec<(u32, Nspace)>> {
        let (names, mut begun) = (FileNames::of_this_host()?, Vec::new());
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match self.inotify.read_events() {
                Ok(events) if events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_IGNORED)) => {
                    return Err(io::ErrorKind::NotFound.into());
                }
                Ok(events) => {
                    let come = events.iter().filter(|event| !event.mask.contains(AddWatchFlags::IN_DELETE));
                    for name in come.filter_map(|event| event.name.as_ref()) {
                        // A socket comes before the links to it.
                        match names.socket_parts(name) {
                            Some((pid, Level::Agent)) => _ = agents.insert(pid),
                            // A new process with the pid of one that has ended.
                            Some((pid, Level::Session)) => _ = agents.remove(&pid),
                            _ => {}
                        }
                        begun.extend(names.job_link_parts(name).filter(|(pid, _)| !agents.contains(pid)));
                    }
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
        // A part of a job that an agent has is none.
        [names.agent(19), names.link(19)]
            .iter()
            .for_each(|name| fs::write(directory.join(name), "").unwrap());
        fs::write(directory.join(names.job_link(19, &jobs[0].1)), "").unwrap();
        assert_eq!(changed().unwrap(), []);
        let later = DirectoryWatch::new([Some(&*directory)]).unwrap();
        fs::remove_file(directory.join(names.job_link(19, &jobs[0].1))).unwrap();
        fs::write(directory.join(names.job_link(19, &jobs[1].1)), "").unwrap();
        assert_eq!((changed().unwrap(), later.begun().unwrap()), (vec![], vec![]));
        [&file, &links[1]].into_iter().for_each(|path| fs::remove_file(path).unwrap());
        assert_eq!(changed().unwrap(), []);
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(changed().unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
