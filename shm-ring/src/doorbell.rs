//! A doorbell: one side rings, the other sleeps on a file descriptor.
//!
//! Between processes it is a Unix stream socket pair, because the two sides need not trust each
//! other, and nothing that the listener does may block a ring:
//! * An eventfd is one open file description: the listener can make it blocking and full. The ends
//!   of a socket pair are two descriptions, and `MSG_DONTWAIT` holds for one call whatever their
//!   flags are.
//! * A pipe has one lock for both ends, which a reader holds while the kernel copies to its memory.
//!   A listener whose memory faults slowly (a mapped file on a hung file system, userfaultfd(2))
//!   would hold it for as long as it likes. A stream socket's readers have a lock of their own.
//!
//! Within a process it is an eventfd, which is cheaper.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::sockopt::SndBuf;
use nix::sys::socket::{
    AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, send, setsockopt, shutdown, socketpair,
};
use nix::unistd::{read, write};

/// The side that rings. Ringing never blocks and never raises SIGPIPE.
#[derive(Debug)]
pub struct Ringer {
    end: OwnedFd,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Socket,
    /// Non-blocking.
    EventFd,
}

impl Ringer {
    /// Rings. Rings that the other side has not heard yet count as one.
    pub fn ring(&self) {
        let ring = || match self.kind {
            Kind::Socket => send(self.end.as_raw_fd(), &[1], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL),
            Kind::EventFd => write(&self.end, &1u64.to_ne_bytes()),
        };
        // EAGAIN: it is ringing already. EPIPE, ECONNRESET: the listener has gone or does not want to hear.
        // ENOBUFS, ENOMEM: a send allocates less than a page (GFP_KERNEL), for which the kernel
        // reclaims memory and then kills processes before it fails. It is assumed that it succeeds
        // unless this process is being killed. Otherwise the ring would be lost for good: `armed`
        // is taken back already, and setting it again would not help, because a listener whose
        // ready bit is set is not rung for again before it has looked.
        while let Err(Errno::EINTR) = ring() {}
    }

    /// Another handle for the same bell.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn try_clone(&self) -> io::Result<Ringer> {
        Ok(Ringer { end: self.end.try_clone()?, kind: self.kind })
    }
}

impl From<OwnedFd> for Ringer {
    /// Rings what was received from a peer or made by [`bell`]: an eventfd, non-blocking.
    fn from(end: OwnedFd) -> Self {
        Ringer { end, kind: Kind::EventFd }
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

/// Makes a doorbell between processes that need not trust each other. The listener can send nothing
/// back.
///
/// # Errors
/// When the process has no file descriptors left.
pub fn doorbell() -> io::Result<(Ringer, Bell)> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let (end, listen) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags)?;
    shutdown(end.as_raw_fd(), Shutdown::Read)?;
    // Rings are kernel memory until they are heard: the least size (socket(7)) holds a few, and one is
    // enough.
    setsockopt(&end, SndBuf, &0)?;
    Ok((Ringer { end, kind: Kind::Socket }, Bell(listen)))
}

/// Makes a doorbell within one process: an eventfd(2), which is cheaper.
///
/// # Errors
/// When the process has no file descriptors left.
pub fn bell() -> io::Result<(Ringer, Bell)> {
    let listen: OwnedFd =
        EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?.into();
    Ok((Ringer::from(listen.try_clone()?), Bell(listen)))
}
