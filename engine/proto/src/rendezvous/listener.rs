//! The engine's end of the rendezvous.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io, path, process};

use nix::sys::socket::{self, Backlog, UnixAddr};
use nix::sys::stat::{Mode, fchmod};

use super::Level;
use super::directory::{Directory, DirectoryError, Place};
use super::names::Names;
use super::probe::{look, somebody_answers, unix_socket};
use super::stale::sweep;
use crate::names::Nspace;

/// Why an engine cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The directory will not do.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// An engine listens on this socket already: one of this process, or the system's.
    #[error("an engine listens on {} already: end that first, or name another directory", .0.display())]
    InUse(PathBuf),
    /// The socket's name is taken by something that is no socket.
    #[error("{} is in the way and is not a socket: remove it", .0.display())]
    NotASocket(PathBuf),
    /// The system refuses.
    #[error("cannot listen on {}: {step}: {source}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// At which step.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Why tools cannot find a job by its name. They still find its engine by its pid.
#[derive(Debug, thiserror::Error)]
#[error("tools cannot find {nspace} by its name: {}: {source}", path.display())]
pub struct AnnounceError {
    /// The job.
    pub nspace: Nspace,
    /// The link that could not be made.
    pub path: PathBuf,
    /// Why. `ENAMETOOLONG`: a file's name has 255 bytes, and host and pid need some of them.
    pub source: io::Error,
}

/// Makes of an I/O error the [`BindError`] that says where and at which step.
fn failed(path: &Path, step: &'static str) -> impl FnOnce(io::Error) -> BindError {
    move |source| BindError::Io { path: path.to_owned(), step, source }
}

/// The listening socket of an engine. Its file goes when it is dropped.
///
/// It is non-blocking and close-on-exec. Only the engine's own user may connect to one of a session
/// (mode 0600), everybody to the system's (0666): who it is, the kernel says
/// ([`socket::peer`](crate::socket::peer)), and the engine decides.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    directory: Arc<Directory>,
    level: Level,
    names: Names,
    /// Of the socket's file.
    name: String,
    path: PathBuf,
    /// Device and inode of the socket's file. Nobody gets the same while `socket` is open.
    inode: (u64, u64),
}

impl Listener {
    /// Listens in the directory `given`, or else in the one that is usual for this level, see the
    /// [module](super). A session's is made with mode 0700 if there is none, and the usual one must
    /// be ours alone; a directory that the user gives is taken as it is. What engines left behind
    /// there that were killed is removed: by a session-level engine all such sockets and links of
    /// this user, by the system-level one its predecessor's socket.
    ///
    /// # Errors
    /// [`BindError`] says what is wrong and what to do.
    ///
    /// ```
    /// use iof_proto::rendezvous::{Level, Listener, Search, connect};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let dir = Some(dir.path());
    /// let listener = Listener::bind(Level::Session, dir)?;
    /// let search = Search { directory: dir.map(Into::into), ..Search::default() };
    /// let path = search.sockets().find_map(Result::ok).ok_or("no engine")?;
    /// let tool = connect(&path)?;
    /// let (engine, _) = listener.socket().accept()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bind(level: Level, given: Option<&Path>) -> Result<Listener, BindError> {
        Listener::bind_at(&Place::new(level, given))
    }

    pub(super) fn bind_at(place: &Place) -> Result<Listener, BindError> {
        place.create()?;
        let directory = place.open()?;
        let level = place.level;
        let names = Names::of_this_host().map_err(failed(&place.path, "ask for the host name"))?;
        let (name, mode) = match level {
            Level::Session => (names.session(process::id()), Mode::from_bits_truncate(0o600)),
            Level::System => (names.system(), Mode::from_bits_truncate(0o666)),
        };
        let (path, known) = (directory.at(&name), directory.known_as(&name));
        // The embedder may go to another directory, and the ranks start in others.
        let absolute = path::absolute(&known).map_err(failed(&known, "make its path absolute"))?;

        let lock = directory.lock().map_err(failed(&known, "lock the directory"))?;
        if level == Level::Session {
            sweep(&directory, &names).map_err(failed(&known, "list the directory"))?;
        }
        make_way(&path, &known)?;
        // The socket gets its name when it is ready, so that whoever sees the name can connect.
        let unready = directory.at(names.unready());
        remove_if_there(&unready)
            .map_err(failed(&directory.known_as(names.unready()), "remove what a killed engine left"))?;
        let socket = listen_on(&unready, mode).map_err(failed(&known, "bind"))?;
        // link(2) and not rename(2): it refuses a name that somebody took who does not know the lock.
        let linked = fs::hard_link(&unready, &path);
        let removed = fs::remove_file(&unready);
        linked.and(removed).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => BindError::InUse(known.clone()),
            _ => failed(&known, "link")(error),
        })?;
        let inode = inode(&path).map_err(failed(&known, "look again"))?;
        drop(lock);

        let directory = Arc::new(directory);
        Ok(Listener { socket: socket.into(), directory, level, names, name, path: absolute, inode })
    }

    /// The socket, to accept from.
    #[must_use]
    pub fn socket(&self) -> &UnixListener {
        &self.socket
    }

    /// The absolute path by which tools reach it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Has tools find this engine by the name of a job of its, as long as the returned value lives.
    /// `None` at the system level, where nobody looks for jobs by name: others could pretend to
    /// have them.
    ///
    /// # Errors
    /// [`AnnounceError`]: mostly that the name is too long for that of a file.
    pub fn announce(&self, nspace: &Nspace) -> Result<Option<JobLink>, AnnounceError> {
        if self.level == Level::System {
            return Ok(None);
        }
        let name = self.names.entry(process::id(), nspace);
        match symlink(&self.name, self.directory.at(&name)) {
            Ok(()) => Ok(Some(JobLink { directory: Arc::clone(&self.directory), name })),
            Err(source) => {
                Err(AnnounceError { nspace: nspace.clone(), path: self.directory.known_as(name), source })
            }
        }
    }
}

/// The link by which tools find the engine of a job; removed when this is dropped.
#[derive(Debug)]
pub struct JobLink {
    directory: Arc<Directory>,
    name: String,
}

impl Drop for JobLink {
    fn drop(&mut self) {
        // If it stays, it leads nowhere, and the next engine removes it.
        let _ = fs::remove_file(self.directory.at(&self.name));
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    /// Removes the socket's file, unless another has taken its place. No engine takes it between
    /// the look and the removal: the socket still answers.
    fn drop(&mut self) {
        let path = self.directory.at(&self.name);
        if inode(&path).is_ok_and(|inode| inode == self.inode) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Removes a socket at `path` on which nobody listens; anything else there is an error. The caller
/// holds the directory's lock, so that of several engines that start one comes first.
fn make_way(path: &Path, known: &Path) -> Result<(), BindError> {
    match look(path).map_err(failed(known, "look"))? {
        None => return Ok(()),
        Some(found) if !found.file_type().is_socket() => return Err(BindError::NotASocket(known.to_owned())),
        Some(_) => {}
    }
    if somebody_answers(path).map_err(failed(known, "try the old socket"))? {
        return Err(BindError::InUse(known.to_owned()));
    }
    remove_if_there(path).map_err(failed(known, "remove the socket of an engine that has ended"))
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// A new socket that listens on `path`, which never has more permissions than `mode`: Linux makes
/// the file with the mode that the socket itself has when it is bound, less the umask.
fn listen_on(path: &Path, mode: Mode) -> io::Result<OwnedFd> {
    let socket = unix_socket()?;
    fchmod(&socket, mode)?;
    socket::bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode.bits()))?;
    socket::listen(&socket, Backlog::MAXCONN)?;
    Ok(socket)
}
