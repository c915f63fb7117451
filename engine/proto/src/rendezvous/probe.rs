//! What is at a path: a socket, and does anybody listen on it?

use std::fs::{self, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};

/// What has this name, be it a link to nowhere; `None` if nothing has.
pub(super) fn look(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether an engine can be reached at `path`. Pids prove nothing: one may have gone to another
/// process since, or belong to another pid namespace.
pub(super) fn is_live_socket(path: &Path) -> bool {
    let is_socket = look(path).is_ok_and(|found| found.is_some_and(|found| found.file_type().is_socket()));
    // What can't be asked counts.
    is_socket && somebody_answers(path).unwrap_or(true)
}

/// Whether anybody listens on the socket `path`. Does not wait: a full queue is somebody's queue.
pub(super) fn somebody_answers(path: &Path) -> io::Result<bool> {
    match socket::connect(unix_socket()?.as_raw_fd(), &UnixAddr::new(path)?) {
        Ok(()) | Err(Errno::EAGAIN) => Ok(true),
        Err(Errno::ECONNREFUSED | Errno::ENOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A socket that is non-blocking and close-on-exec.
pub(super) fn unix_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)
}
