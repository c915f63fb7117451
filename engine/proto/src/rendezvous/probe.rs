//! Checks of a path: whether it exists, and whether a process listens on its socket.

use std::fs::{self, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};

/// Returns the metadata of the file at `path`, or `None` if there is no file. Does not follow
/// symbolic links.
pub(super) fn metadata_if_exists(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether `path` is a socket that may have a listener. The pid in its name is not
/// evidence: the pid may have been reused, or may belong to another pid namespace.
pub(super) fn is_live_socket(path: &Path) -> bool {
    let is_socket = metadata_if_exists(path)
        .is_ok_and(|metadata| metadata.is_some_and(|metadata| metadata.file_type().is_socket()));
    // A socket that cannot be checked counts as live.
    is_socket && has_listener(path).unwrap_or(true)
}

/// Returns whether a process listens on the socket at `path`. Does not block: a full queue of
/// connections is proof of a listener.
pub(super) fn has_listener(path: &Path) -> io::Result<bool> {
    match socket::connect(unix_socket()?.as_raw_fd(), &UnixAddr::new(path)?) {
        Ok(()) | Err(Errno::EAGAIN) => Ok(true),
        Err(Errno::ECONNREFUSED | Errno::ENOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns a new stream socket that is non-blocking and close-on-exec.
pub(super) fn unix_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)
}
