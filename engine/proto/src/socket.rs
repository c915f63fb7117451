//! Bytes and file descriptors over a connected Unix stream socket.
//!
//! This is the only module of this crate with `unsafe` code. A receiver that fails after it has
//! received some file descriptors must close them. The safe interfaces available leak them when the
//! kernel reports `MSG_CTRUNC`.

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

/// The credentials of the process at the other end of a connection, as the kernel recorded them
/// when the connection was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// The pid; 0 if the process is in a pid namespace that this process cannot see.
    pub pid: u32,
    /// The effective user id.
    pub uid: u32,
    /// The effective group id.
    pub gid: u32,
}

/// Returns the credentials of the process at the other end of a connection (`SO_PEERCRED`,
/// unix(7)).
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

/// Connects to the stream socket at `path`. The returned socket is in blocking mode and
/// close-on-exec. While the listener's queue of connections is full, this blocks for at most
/// `limit`.
///
/// # Errors
/// * [`WouldBlock`](io::ErrorKind::WouldBlock): the queue stayed full for `limit`.
/// * Any other error of connect(2), or `path` is too long for a socket address.
pub fn connect_within(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let socket =
        nix::sys::socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let socket = UnixStream::from(socket);
    // The send timeout also applies to connect(2) (SO_SNDTIMEO, socket(7)).
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

/// Sends some or all of `bytes`, and all of `fds` with the first byte. Returns the number of bytes
/// sent. Does not block and does not raise `SIGPIPE`.
///
/// On success all descriptors are sent, even if only some bytes are: the caller sends the remaining
/// bytes without descriptors. On an error nothing is sent.
///
/// # Errors
/// * [`WouldBlock`](io::ErrorKind::WouldBlock): the socket is full; try again when it is writable.
/// * [`InvalidInput`](io::ErrorKind::InvalidInput): `fds` has more than [`MAX_FDS`] descriptors, or
///   `bytes` is empty and cannot carry the descriptors.
/// * `ETOOMANYREFS`: this user has more descriptors in flight, over all sockets, than this process
///   may open (unix(7)). Peers that do not read are the cause; try again later.
/// * Any other error of sendmsg(2): the connection is unusable.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    if fds.len() > MAX_FDS || (bytes.is_empty() && !fds.is_empty()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "cannot send {} file descriptors with {} bytes: expected at most {MAX_FDS} with at least one byte",
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
            result => return Ok(result?),
        }
    }
}

/// Returns an upper bound for the number of [`send`]s on this socket whose bytes the peer has not
/// yet received (`SIOCOUTQ`, tcp(7)); 0 if it has received everything. The peer can change this
/// number only by receiving.
///
/// # Errors
/// The errors of ioctl(2).
pub fn unread(socket: impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: for a Unix socket the kernel guarantees that this request writes one int, here to
    // `bytes`, which outlives the call.
    if unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(bytes).unwrap_or(0) / SEND_CHARGE)
}

/// Returns the time for which the kernel of the peer of a TCP connection has acknowledged nothing, although it was
/// sent something (`TCP_INFO`, tcp(7)); 0 if everything is acknowledged. A peer that only reads nothing
/// acknowledges, also the probes of its closed window: one that gets no answer before the next one counts.
///
/// # Errors
/// `socket` is not a TCP socket.
pub fn unacknowledged(socket: impl AsFd) -> io::Result<Duration> {
    // SAFETY: the structure consists of integers, for which zeros are valid.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut length = mem::size_of::<libc::tcp_info>() as libc::socklen_t;
    let (fd, to) = (socket.as_fd().as_raw_fd(), (&raw mut info).cast());
    // SAFETY: the kernel writes at most `length` bytes to `info`. Both outlive the call.
    if unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut length) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let is_waiting = info.tcpi_unacked > 0 || info.tcpi_probes > 1;
    Ok(Duration::from_millis(if is_waiting { info.tcpi_last_ack_recv.into() } else { 0 }))
}

/// A lower bound for the bytes that the kernel charges to the sender's socket for each buffer until
/// the receiver has emptied it. The charge is the buffer's contents and its own memory
/// (`truesize`), which alone exceeds this bound. While the kernel frees a buffer, less than this
/// bound remains charged.
const SEND_CHARGE: usize = 512;

/// Receives bytes into `buffer` and, with `accept_fds`, appends received file descriptors to `fds`.
/// Returns the number of bytes received; 0 means that the peer has closed the connection or that
/// `buffer` is empty.
///
/// Without `accept_fds`, the kernel gets no room for descriptors: it closes them before they get a
/// number in this process. With `accept_fds`, received descriptors are close-on-exec, and one call
/// receives at most [`MAX_FDS`], because the kernel ends a read after bytes that carry descriptors.
///
/// With `wait`, this blocks if the socket is in blocking mode. Without it, this never blocks.
///
/// # Errors
/// * [`WouldBlock`](io::ErrorKind::WouldBlock): nothing has arrived.
/// * [`Interrupted`](io::ErrorKind::Interrupted): a signal arrived during the wait. The caller can
///   check what the signal handler recorded and repeat the call.
/// * [`InvalidData`](io::ErrorKind::InvalidData): some descriptors could not be received. The
///   others are closed and bytes are lost: the caller must close the connection.
/// * Anything else is from recvmsg(2), and the connection is over.
pub fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    fds: &mut VecDeque<OwnedFd>,
    accept_fds: bool,
    wait: bool,
) -> io::Result<usize> {
    // SAFETY: msghdr, as the libc crate declares it, is a C struct of integers and pointers, so all
    // zeros is a valid value (an empty message). Private padding on some targets rules out a struct
    // literal.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    let mut data = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    let mut control = ControlBuffer::default();
    if accept_fds {
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = mem::size_of::<ControlBuffer>() as _;
    }
    let flags = libc::MSG_CMSG_CLOEXEC | if wait { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: recvmsg writes only to `message` and, within the lengths given there, to the two
    // regions that it points to. `data` describes `buffer`, and `control` is borrowed by nothing
    // else. All of them outlive the call.
    let count = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    let Ok(count) = usize::try_from(count) else { return Err(io::Error::last_os_error()) };
    // SAFETY: the recvmsg above has succeeded and filled in `message`, `control` is still alive and
    // has not moved, and this is the only call that takes descriptors from `message`.
    let mut arrived = unsafe { take_fds(&message) };
    // Alignment can leave room for one descriptor more than requested.
    if accept_fds && (message.msg_flags & libc::MSG_CTRUNC != 0 || arrived.len() > MAX_FDS) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "cannot receive file descriptors: the peer sent more than {MAX_FDS} at once, or this process \
                 has reached its limit on open files (raise ulimit -n)"
            ),
        ));
    }
    fds.append(&mut arrived);
    Ok(count)
}

/// A buffer for one control message with [`MAX_FDS`] descriptors, aligned for its header.
#[repr(C)]
#[derive(Default)]
struct ControlBuffer {
    align: [libc::cmsghdr; 0],
    bytes: [u8; CONTROL_SPACE],
}

// SAFETY: CMSG_SPACE only computes a size. It is unsafe only because the libc crate declares all of
// its functions unsafe.
const CONTROL_SPACE: usize = unsafe { libc::CMSG_SPACE((MAX_FDS * mem::size_of::<RawFd>()) as u32) as usize };

/// Takes ownership of the descriptors in the control messages of `message`.
///
/// # Safety
/// `message` must be unchanged since a successful recvmsg, its control region must be alive, and
/// this must be the only call for it.
unsafe fn take_fds(message: &libc::msghdr) -> VecDeque<OwnedFd> {
    let mut fds = VecDeque::new();
    // SAFETY: the caller guarantees that the control region is as the kernel wrote it.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return null or a header inside the control region. The
    // region is aligned for a header (`ControlBuffer`), written by the kernel, and alive as the
    // caller guarantees.
    while let Some(part) = unsafe { header.as_ref() } {
        if part.cmsg_level == libc::SOL_SOCKET && part.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: CMSG_LEN only computes a size.
            let header_len = unsafe { libc::CMSG_LEN(0) } as usize;
            #[allow(clippy::unnecessary_cast, reason = "the type of cmsg_len differs between C libraries")]
            let bytes = (part.cmsg_len as usize).saturating_sub(header_len);
            // SAFETY: `header` is a complete control message, so its data begins inside the region.
            let first = unsafe { libc::CMSG_DATA(header) }.cast::<RawFd>();
            for index in 0..bytes / mem::size_of::<RawFd>() {
                // SAFETY: the kernel wrote `bytes` bytes of descriptors there and opened each of
                // them for this process during recvmsg. No other code knows its number, and the
                // caller guarantees that it is not taken twice.
                fds.push_back(unsafe { OwnedFd::from_raw_fd(first.add(index).read_unaligned()) });
            }
        }
        // SAFETY: as for CMSG_FIRSTHDR; `header` came from CMSG_FIRSTHDR or CMSG_NXTHDR.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    fds
}
