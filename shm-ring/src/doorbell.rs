//! A doorbell: one side rings, the other sleeps on a file descriptor.
//!
//! It is a pipe, not an eventfd, because the two sides need not trust each other. An eventfd is one open file
//! description: whoever gets it can make it blocking and full, and then the engine's next ring blocks. A pipe's
//! ends are two; the ringing end stays ours.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::{pipe2, read, write};

/// The side that rings. Ringing never blocks and never raises SIGPIPE.
#[derive(Debug)]
pub struct Ringer {
    end: OwnedFd,
    /// Keeps the other end open, so that a peer that goes away costs no signal.
    _other: Option<OwnedFd>,
}

impl Ringer {
    /// Rings; rings that nobody heard yet are one.
    pub fn ring(&self) {
        // EAGAIN: it is ringing already. Nothing else can happen to a pipe or eventfd that we hold open.
        while let Err(Errno::EINTR) = write(&self.end, &1u64.to_ne_bytes()) {}
    }

    /// Another handle for the same bell.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn try_clone(&self) -> io::Result<Ringer> {
        Ok(Ringer {
            end: self.end.try_clone()?,
            _other: self._other.as_ref().map(OwnedFd::try_clone).transpose()?,
        })
    }
}

impl From<OwnedFd> for Ringer {
    /// Rings what was received from a peer or made by [`bell`]: an eventfd, non-blocking.
    fn from(end: OwnedFd) -> Self {
        Ringer { end, _other: None }
    }
}

impl AsFd for Ringer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

/// The side that listens: its descriptor is readable while the bell rings.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// Stops the ringing, so that the next ring is heard.
    pub fn silence(&self) {
        let mut buffer = [0u8; 512];
        while read(&self.0, &mut buffer).is_ok_and(|n| n == buffer.len()) {}
    }
}

impl From<OwnedFd> for Bell {
    fn from(end: OwnedFd) -> Self {
        Bell(end)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A doorbell between processes that need not trust each other.
///
/// # Errors
/// When the process has no file descriptors left.
pub fn doorbell() -> io::Result<(Ringer, Bell)> {
    let (listen, ring) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    // One page is plenty and spares the user's pipe budget (pipe(7)); keep what there is if it is refused.
    let _ = fcntl(&ring, FcntlArg::F_SETPIPE_SZ(4096));
    let other = listen.try_clone()?;
    Ok((Ringer { end: ring, _other: Some(other) }, Bell(listen)))
}

/// A doorbell within one process: cheaper, an eventfd(2).
///
/// # Errors
/// When the process has no file descriptors left.
pub fn bell() -> io::Result<(Ringer, Bell)> {
    let listen: OwnedFd =
        EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?.into();
    Ok((Ringer::from(listen.try_clone()?), Bell(listen)))
}
