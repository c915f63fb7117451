//! The engine's end of the rendezvous.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, io, process};

use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use nix::sys::stat::{Mode, fchmod};

use super::directory::{Directory, DirectoryError, Place};
use super::{host_name, socket_name};

/// Why an engine cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The directory will not do.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// This process listens on this socket already.
    #[error("this process listens on {} already: end that first, or name another directory", .0.display())]
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

/// Makes of an I/O error the [`BindError`] that says where and at which step.
fn failed(path: &Path, step: &'static str) -> impl FnOnce(io::Error) -> BindError {
    move |source| BindError::Io { path: path.to_owned(), step, source }
}

/// The listening socket of an engine. Its file goes when it is dropped.
///
/// It is non-blocking and close-on-exec, and only the engine's own user may connect (mode 0600).
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    directory: Directory,
    name: String,
    /// Device and inode of the socket's file. Nobody gets the same while `socket` is open.
    inode: (u64, u64),
}

impl Listener {
    /// Listens in the directory `given`, or else in the default one, either made with mode 0700 if
    /// there is none. A directory that the user gives is taken as it is; the default one must be
    /// ours alone. A socket that an earlier process with our pid left behind is replaced.
    ///
    /// # Errors
    /// [`BindError`] says what is wrong and what to do.
    ///
    /// ```
    /// use iof_proto::rendezvous::{Listener, connect, find};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let dir = Some(dir.path());
    /// let listener = Listener::bind(dir)?;
    /// let path = find(dir, None)?;
    /// let tool = connect(&path)?;
    /// let (engine, _) = listener.socket().accept()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bind(given: Option<&Path>) -> Result<Listener, BindError> {
        Listener::bind_at(&Place::new(given))
    }

    pub(super) fn bind_at(place: &Place) -> Result<Listener, BindError> {
        place.create()?;
        let directory = place.open()?;
        let host = host_name().map_err(failed(&place.path, "ask for the host name"))?;
        let name = socket_name(&host, process::id());
        let (path, known) = (directory.at(&name), directory.known_as(&name));
        make_way(&path, &known)?;

        // The socket gets its name when it is ready, so that whoever sees the name can connect.
        static ATTEMPTS: AtomicU32 = AtomicU32::new(0);
        let attempt = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
        let nameless = directory.at(format!(".iof-{}-{attempt}", process::id()));
        // There if a process that had our pid before us died at this point.
        let _ = fs::remove_file(&nameless);
        let socket = listen_on(&nameless).map_err(failed(&known, "bind"))?;
        // link(2) and not rename(2): it refuses a name that was taken since we looked.
        let linked = fs::hard_link(&nameless, &path);
        let _ = fs::remove_file(&nameless);
        linked.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => BindError::InUse(known.clone()),
            _ => failed(&known, "link")(error),
        })?;
        let inode = inode(&path).map_err(failed(&known, "look again"))?;
        Ok(Listener { socket: socket.into(), directory, name, inode })
    }

    /// The socket, to accept from.
    #[must_use]
    pub fn socket(&self) -> &UnixListener {
        &self.socket
    }

    /// The path by which tools reach it.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.known_as(&self.name)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    /// Removes the socket's file, unless another has taken its place.
    fn drop(&mut self) {
        let path = self.directory.at(&self.name);
        if inode(&path).is_ok_and(|inode| inode == self.inode) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Removes a socket at `path` on which nobody listens; anything else there is an error.
fn make_way(path: &Path, known: &Path) -> Result<(), BindError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(known, "look")(error)),
        Ok(found) if !found.file_type().is_socket() => return Err(BindError::NotASocket(known.to_owned())),
        Ok(_) => {}
    }
    if somebody_answers(path).map_err(failed(known, "try the old socket"))? {
        return Err(BindError::InUse(known.to_owned()));
    }
    fs::remove_file(path).map_err(failed(known, "remove the old socket"))
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

fn unix_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)
}

/// A new socket that listens on `path`, which never has more permissions than 0600: Linux makes
/// the file with the mode that the socket itself has when it is bound.
fn listen_on(path: &Path) -> io::Result<OwnedFd> {
    let socket = unix_socket()?;
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    socket::bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    socket::listen(&socket, Backlog::MAXCONN)?;
    Ok(socket)
}

/// Whether anybody listens on the socket `path`. Does not wait: a full queue is somebody's queue.
pub(super) fn somebody_answers(path: &Path) -> io::Result<bool> {
    match socket::connect(unix_socket()?.as_raw_fd(), &UnixAddr::new(path)?) {
        Ok(()) | Err(Errno::EAGAIN) => Ok(true),
        Err(Errno::ECONNREFUSED | Errno::ENOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
