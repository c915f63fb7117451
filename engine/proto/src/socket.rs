//! Bytes and file descriptors over a connected Unix stream socket.
//!
//! The one module of this crate with `unsafe` in it. It is there because a receiver of file
//! descriptors that gives up halfway must still close the ones it got, and the safe interfaces
//! at hand forget them when the kernel reports `MSG_CTRUNC`.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;

use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, getsockopt, sendmsg,
    sockopt,
};

use crate::limits::MAX_FDS;

/// Who is at the other end, as the kernel noted it when the connection was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its pid; 0 if it lives in a pid namespace that we cannot see.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// Who is at the other end of a connection (`SO_PEERCRED`, unix(7)).
///
/// # Errors
/// `socket` is not a Unix socket.
pub fn peer(socket: impl AsFd) -> io::Result<PeerCredentials> {
    let credentials = getsockopt(&socket, sockopt::PeerCredentials)?;
    Ok(PeerCredentials {
        pid: u32::try_from(credentials.pid()).unwrap_or(0),
        uid: credentials.uid(),
        gid: credentials.gid(),
    })
}

/// Connects to the stream socket `path`, in blocking mode and close-on-exec. While the queue of who
/// listens there is full this waits for `limit` at most.
///
/// # Errors
/// * [`WouldBlock`](io::ErrorKind::WouldBlock): it has been full all the time.
/// * Anything else is from connect(2), or `path` is too long for a socket's address.
pub fn connect_within(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let made = nix::sys::socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let socket = UnixStream::from(made);
    // It is a limit for connect(2), too, socket(7).
    socket.set_write_timeout(Some(limit))?;
    let address = UnixAddr::new(path)?;
    while let Err(errno) = connect(socket.as_raw_fd(), &address) {
        if errno != Errno::EINTR {
            return Err(errno.into());
        }
    }
    socket.set_write_timeout(None)?;
    Ok(socket)
}

/// Sends some of `bytes`, and with the first of them all of `fds`. Never waits, never raises
/// `SIGPIPE`. Returns how many bytes went.
///
/// If it returns `Ok`, the descriptors have gone, even when only some bytes have: send the rest
/// without them. If it returns an error, nothing has gone.
///
/// # Errors
/// * [`WouldBlock`](io::ErrorKind::WouldBlock): the socket is full; try again when it is writable.
/// * [`InvalidInput`](io::ErrorKind::InvalidInput): more than [`MAX_FDS`] descriptors, or
///   descriptors without a byte to carry them.
/// * `ETOOMANYREFS`: this user has more descriptors on their way, over all sockets, than this
///   process may open (unix(7)). Peers that do not read are the cause; try again later.
/// * Anything else is from sendmsg(2), and the connection is over.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    if fds.len() > MAX_FDS || (bytes.is_empty() && !fds.is_empty()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "{} file descriptors with {} bytes: at most {MAX_FDS}, with a byte at least",
                fds.len(),
                bytes.len()
            ),
        ));
    }
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    loop {
        match sendmsg::<()>(socket.as_fd().as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None) {
            Err(Errno::EINTR) => {}
            done => return Ok(done?),
        }
    }
}

/// Returns an upper bound of how many of the [`send`]s on this socket have brought something that
/// the peer has not received yet (`SIOCOUTQ`, tcp(7)); 0 if it has received everything. The peer
/// cannot influence it but by receiving.
///
/// # Errors
/// Those of ioctl(2).
pub fn unread(socket: impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: for a Unix socket this request writes one int, to `bytes`, which outlives the call. The
    // kernel keeps that promise.
    if unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(bytes).unwrap_or(0) / SEND_CHARGE)
}

/// The kernel charges the sender's socket for each buffer until the receiver has emptied it, with
/// the bytes in it and the buffer's own memory (`truesize`), which alone is more than this. While
/// it frees a buffer, less than this remains.
const SEND_CHARGE: usize = 512;

/// Receives bytes into `buffer`, and file descriptors, if `accept_fds`, onto the end of `fds`.
/// Returns how many bytes came; 0 means that the peer has closed (or that `buffer` is empty).
///
/// Without `accept_fds` the kernel is given no room for descriptors and closes what the peer
/// sends before it ever gets a number in this process. With it, they are close-on-exec and at
/// most [`MAX_FDS`] a call, since the kernel ends a read behind bytes that came with some.
///
/// With `wait`, a socket in blocking mode is waited for; without it, never.
///
/// # Errors
/// * [`WouldBlock`](io::ErrorKind::WouldBlock): nothing is there.
/// * [`Interrupted`](io::ErrorKind::Interrupted): a signal came while waiting; the caller may want
///   to look at what its handler noted, and calls again.
/// * [`InvalidData`](io::ErrorKind::InvalidData): not every descriptor could be taken. Those that
///   could are closed; bytes are lost; close the connection.
/// * Anything else is from recvmsg(2), and the connection is over.
pub fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    fds: &mut VecDeque<OwnedFd>,
    accept_fds: bool,
    wait: bool,
) -> io::Result<usize> {
    // SAFETY: msghdr is a C struct of integers and pointers, for which all zeros is a value (an
    // empty one). The libc crate, which declares it, keeps that promise. It has private padding on
    // some targets, so a literal will not do.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    let mut data = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    let mut control = Control::default();
    if accept_fds {
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = mem::size_of::<Control>() as _;
    }
    let flags = libc::MSG_CMSG_CLOEXEC | if wait { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: recvmsg writes only to `message` and to the two regions it names, with the lengths it
    // names. `data` describes `buffer`, and `control` is live and exclusively ours; all of them
    // outlive the call. This function keeps that promise.
    let count = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    let Ok(count) = usize::try_from(count) else { return Err(io::Error::last_os_error()) };
    // SAFETY: `message` was filled in by the recvmsg that has just succeeded, `control` is where it
    // was, and nobody has taken descriptors from it before. This function keeps that promise.
    let mut arrived = unsafe { take_fds(&message) };
    // Alignment may leave room for one more than we asked for.
    if accept_fds && (message.msg_flags & libc::MSG_CTRUNC != 0 || arrived.len() > MAX_FDS) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "the peer sent more than {MAX_FDS} file descriptors at once, or this process may open no \
                 more (raise ulimit -n)"
            ),
        ));
    }
    fds.append(&mut arrived);
    Ok(count)
}

/// Room for one control message with [`MAX_FDS`] descriptors, aligned as its header must be.
#[repr(C)]
#[derive(Default)]
struct Control {
    align: [libc::cmsghdr; 0],
    bytes: [u8; CONTROL_SPACE],
}

// SAFETY: CMSG_SPACE only computes; it is unsafe as all functions of the libc crate are.
const CONTROL_SPACE: usize = unsafe { libc::CMSG_SPACE((MAX_FDS * mem::size_of::<RawFd>()) as u32) as usize };

/// The descriptors in the control messages of `message`, now owned.
///
/// # Safety
/// `message` must be as a successful recvmsg left it, its control region still alive, and this
/// must be the only call for it.
unsafe fn take_fds(message: &libc::msghdr) -> VecDeque<OwnedFd> {
    let mut fds = VecDeque::new();
    // SAFETY: the caller promises that the control region is as the kernel wrote it.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give null or a header inside the control region, which
    // is aligned for one (`Control`), written by the kernel, and alive as the caller promises.
    while let Some(part) = unsafe { header.as_ref() } {
        if part.cmsg_level == libc::SOL_SOCKET && part.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: CMSG_LEN only computes.
            let before = unsafe { libc::CMSG_LEN(0) } as usize;
            #[allow(clippy::unnecessary_cast, reason = "its type is not the same in all C libraries")]
            let bytes = (part.cmsg_len as usize).saturating_sub(before);
            // SAFETY: `header` is a whole control message, so its data begins inside the region.
            let first = unsafe { libc::CMSG_DATA(header) }.cast::<RawFd>();
            for index in 0..bytes / mem::size_of::<RawFd>() {
                // SAFETY: the kernel wrote `bytes` bytes of descriptors there, and it opened each for
                // this process in this call. Nobody else knows its number, and the caller promises
                // not to take it twice.
                fds.push_back(unsafe { OwnedFd::from_raw_fd(first.add(index).read_unaligned()) });
            }
        }
        // SAFETY: as for CMSG_FIRSTHDR; `header` is one that it or this gave.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    fds
}
