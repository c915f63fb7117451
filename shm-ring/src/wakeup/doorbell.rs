//! A doorbell: one side rings, the other side sleeps on a file descriptor.
//!
//! Between processes it is a Unix stream socket pair. The two sides need not trust each other, and
//! nothing that the listener does may block the ringer:
//! * An eventfd is one open file description, so the listener could make it blocking and full. The
//!   ends of a socket pair are two descriptions, and `MSG_DONTWAIT` makes one call non-blocking
//!   whatever their flags are.
//! * A pipe has one lock for both ends, which a reader holds while the kernel copies to its memory.
//!   A listener whose memory faults slowly (a mapped file on a hung file system, userfaultfd(2))
//!   could hold that lock for any time. The readers of a stream socket have a lock of their own.
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

/// The ringing side of a doorbell. Ringing never blocks and never raises SIGPIPE.
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
    /// Rings the bell. Several rings before the listener silences its bell count as one.
    pub fn ring(&self) {
        let ring = || match self.kind {
            Kind::Socket => send(self.end.as_raw_fd(), &[1], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL),
            Kind::EventFd => write(&self.end, &1u64.to_ne_bytes()),
        };
        // EAGAIN: the bell rings already. EPIPE, ECONNRESET: the listener is gone or has shut its
        // end down. ENOBUFS, ENOMEM: a send allocates less than a page (GFP_KERNEL), for which the
        // kernel reclaims memory and then kills processes before it fails. The code assumes that
        // the allocation succeeds unless this process is being killed. Otherwise this ring would be
        // lost for good: `armed` is cleared already, and setting it again would not help, because a
        // listener whose ready bit is set gets no further ring until it has taken that bit.
        while let Err(Errno::EINTR) = ring() {}
    }

    /// Returns another handle for the same bell.
    ///
    /// # Errors
    /// Fails if the process has no file descriptor left.
    pub fn try_clone(&self) -> io::Result<Ringer> {
        Ok(Ringer { end: self.end.try_clone()?, kind: self.kind })
    }
}

impl From<OwnedFd> for Ringer {
    /// Wraps a non-blocking eventfd that a peer sent or that [`bell`] created.
    fn from(end: OwnedFd) -> Self {
        Ringer { end, kind: Kind::EventFd }
    }
}

impl AsFd for Ringer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

/// The largest number of rings that [`Bell::silence`] takes: more than the buffer of a [`doorbell`]
/// holds.
const MAX_RINGS_READ: usize = 512;

/// The listening side of a doorbell. Its descriptor is readable while the bell rings.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// Silences the bell, so that the next ring makes it readable again.
    ///
    /// The work is bounded: a bell with more rings than a [`Ringer`] leaves in it stays readable.
    /// So wait for it with a level-triggered poll.
    ///
    /// Returns `false` if no [`Ringer`] is left. The descriptor of a [`doorbell`] then stays
    /// readable for ever, so do not wait for it any more.
    pub fn silence(&self) -> bool {
        // A peer can ring faster than this process reads. A failure means that the bell is silent.
        read(&self.0, &mut [0; MAX_RINGS_READ]) != Ok(0)
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

/// Creates a doorbell between processes that need not trust each other. The listener cannot send
/// anything back.
///
/// # Errors
/// Fails if the process has no file descriptor left.
pub fn doorbell() -> io::Result<(Ringer, Bell)> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let (end, listen) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags)?;
    shutdown(end.as_raw_fd(), Shutdown::Read)?;
    // Unread rings occupy kernel memory. The smallest buffer (socket(7)) has room for a few rings,
    // and one is enough.
    setsockopt(&end, SndBuf, &0)?;
    Ok((Ringer { end, kind: Kind::Socket }, Bell(listen)))
}

/// Creates a doorbell within one process: an eventfd(2), which is cheaper.
///
/// # Errors
/// Fails if the process has no file descriptor left.
pub fn bell() -> io::Result<(Ringer, Bell)> {
    let listen: OwnedFd =
        EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?.into();
    Ok((Ringer::from(listen.try_clone()?), Bell(listen)))
}
