//! The messages of a hand-off, and how they are sent and received with their descriptors.
//!
//! Unsafe is allowed here because a receiver must close the descriptors of a message that it
//! rejects, and nix does not return them if some of them were truncated (`MSG_CTRUNC`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{ControlMessage, MsgFlags, recvmsg, sendmsg};

use crate::attach::{Attached, Start};
use crate::error::ReceiveError;
use crate::reader_id::ReaderId;
use crate::ring::Ring;

/// The first eight bytes of a message.
const MAGIC: [u8; 8] = *b"iofhand\n";
/// Version of the messages. A receiver rejects any other version.
const VERSION: u32 = 1;
/// Length of every message from the owner, in bytes.
const LEN: usize = 40;
/// Descriptors of a new reader: its ring, its reader page, its doorbell, the room bell.
pub(super) const READER_FDS: usize = 4;

/// The bits of [`Message::flags`].
const START_NOW: u32 = 1;
const NON_GATING: u32 = 2;

/// The purpose of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A new reader, with [`READER_FDS`] descriptors.
    Reader,
    /// The next generation of the reader's stream, with its ring as the only descriptor.
    Generation,
}

impl Kind {
    fn number(self) -> u32 {
        match self {
            Kind::Reader => 1,
            Kind::Generation => 2,
        }
    }

    fn fds(self) -> usize {
        match self {
            Kind::Reader => READER_FDS,
            Kind::Generation => 1,
        }
    }
}

/// The contents of a message, apart from its descriptors.
#[derive(Clone, Copy)]
pub(super) struct Message {
    id: u32,
    flags: u32,
    position: u64,
    dropped: u64,
}

impl Message {
    pub(super) fn new(given: &Attached, start: Start) -> Message {
        let now = if start == Start::Now { START_NOW } else { 0 };
        let non_gating = if given.non_gating { NON_GATING } else { 0 };
        Message {
            id: given.id.into(),
            flags: now | non_gating,
            position: given.start,
            dropped: given.dropped,
        }
    }

    pub(super) fn start(&self) -> Start {
        if self.flags & START_NOW == 0 { Start::Oldest } else { Start::Now }
    }

    /// Maps `ring` and returns what the reader needs to read it.
    pub(super) fn attached(&self, ring: OwnedFd) -> Result<Attached, ReceiveError> {
        Ok(Attached {
            ring: Arc::new(Ring::open(ring)?),
            id: ReaderId::from(self.id),
            start: self.position,
            dropped: self.dropped,
            non_gating: self.flags & NON_GATING != 0,
        })
    }

    fn encode(&self, kind: Kind) -> Vec<u8> {
        let words = [VERSION, kind.number(), self.id, self.flags].map(u32::to_le_bytes);
        [MAGIC.as_slice(), words.as_flattened(), &self.position.to_le_bytes(), &self.dropped.to_le_bytes()]
            .concat()
    }

    fn decode(bytes: &[u8; LEN], expected: Kind) -> Result<Message, ReceiveError> {
        let words: [[u8; 4]; LEN / 4] = bytes.as_chunks().0.try_into().unwrap_or_default();
        let [m0, m1, version, kind, id, flags, p0, p1, d0, d1] = words;
        let small = u32::from_le_bytes;
        let large = |low, high| u64::from(small(low)) | (u64::from(small(high)) << 32);
        let (magic, version, kind) = (large(m0, m1), small(version), small(kind));
        if magic != u64::from_le_bytes(MAGIC) {
            return Err(ReceiveError::Magic { found: magic });
        }
        if version != VERSION {
            return Err(ReceiveError::Version { found: version, expected: VERSION });
        }
        if kind != expected.number() {
            return Err(ReceiveError::Kind { found: kind, expected: expected.number() });
        }
        let flags = small(flags);
        if flags & !(START_NOW | NON_GATING) != 0 {
            return Err(ReceiveError::Flags { found: flags });
        }
        Ok(Message { id: small(id), flags, position: large(p0, p1), dropped: large(d0, d1) })
    }

    /// Sends the message with `fds`.
    pub(super) fn send(
        &self,
        kind: Kind,
        socket: &UnixStream,
        fds: &[BorrowedFd<'_>],
        flags: MsgFlags,
    ) -> io::Result<()> {
        send(socket, &self.encode(kind), fds, flags)
    }
}

/// A message that is being received: its first bytes, and the descriptors that came with them.
#[derive(Debug)]
pub(super) struct Incoming {
    bytes: [u8; LEN],
    received: usize,
    fds: Vec<OwnedFd>,
}

impl Incoming {
    pub(super) fn new() -> Incoming {
        Incoming { bytes: [0; LEN], received: 0, fds: Vec::new() }
    }

    /// Receives the rest of the message, which must be of `kind`, and returns it with its
    /// descriptors. After [`ReceiveError::Socket`], the next call continues where this one stopped.
    /// After any other error the connection is useless.
    pub(super) fn receive(
        &mut self,
        socket: &UnixStream,
        kind: Kind,
    ) -> Result<(Message, Vec<OwnedFd>), ReceiveError> {
        while let Some(rest) = self.bytes.get_mut(self.received..).filter(|rest| !rest.is_empty()) {
            match receive(socket, rest, &mut self.fds)? {
                0 if self.received == 0 => return Err(ReceiveError::Closed),
                0 => return Err(ReceiveError::Truncated { received: self.received, expected: LEN }),
                n => self.received = self.received.saturating_add(n),
            }
            if self.fds.len() > READER_FDS {
                return Err(ReceiveError::Descriptors { found: self.fds.len(), expected: kind.fds() });
            }
        }
        let message = Message::decode(&self.bytes, kind)?;
        if self.fds.len() != kind.fds() {
            return Err(ReceiveError::Descriptors { found: self.fds.len(), expected: kind.fds() });
        }
        Ok((message, mem::take(&mut self.fds)))
    }
}

/// Sends all of `bytes`, and `fds` with the first of them. Never raises SIGPIPE.
pub(super) fn send(
    socket: &UnixStream,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: MsgFlags,
) -> io::Result<()> {
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let mut control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let mut rest = bytes;
    while !rest.is_empty() {
        let flags = flags | MsgFlags::MSG_NOSIGNAL;
        match sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(rest)], control, flags, None) {
            Ok(sent) => {
                rest = rest.get(sent..).unwrap_or_default();
                control = &[];
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Receives bytes into `buffer` and appends the descriptors that come with them to `fds`. Returns
/// the number of bytes; 0 if the peer has closed the connection.
fn receive(socket: &UnixStream, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<usize, ReceiveError> {
    loop {
        let mut control = nix::cmsg_space!([RawFd; READER_FDS]);
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let (bytes, flags) = match recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags) {
            Ok(received) => (received.bytes, received.flags),
            Err(Errno::EINTR) => continue,
            Err(Errno::ECONNRESET) => return Ok(0),
            Err(errno) => return Err(ReceiveError::Socket { source: errno.into() }),
        };
        // SAFETY: recvmsg succeeded and filled the buffer, which was all zeros before. This is the
        // only call that takes descriptors from it.
        unsafe { take_fds(&control, fds) };
        if flags.contains(MsgFlags::MSG_CTRUNC) {
            return Err(ReceiveError::TruncatedDescriptors { received: fds.len() });
        }
        return Ok(bytes);
    }
}

/// Length of a control message's header in bytes: its length (8), level (4) and type (4). It is
/// part of the kernel's interface and the same for all targets with 64-bit pointers.
const HEADER: usize = 16;

/// Takes ownership of the descriptors in `control`, a buffer of control messages (cmsg(3)).
///
/// # Safety
/// One recvmsg(2) wrote the buffer, which contained only zeros before. No other code takes
/// descriptors from it.
unsafe fn take_fds(control: &[u8], fds: &mut Vec<OwnedFd>) {
    let mut rest = control;
    while let Some((header, behind)) = rest.split_first_chunk::<HEADER>() {
        let [l0, l1, level, kind] = header.as_chunks::<4>().0 else { return };
        let len = u64::from_ne_bytes([l0[0], l0[1], l0[2], l0[3], l1[0], l1[1], l1[2], l1[3]]);
        let Some(len) = usize::try_from(len).ok().and_then(|len| len.checked_sub(HEADER)) else { return };
        let data = behind.get(..len).unwrap_or(behind);
        let of_sockets = i32::from_ne_bytes(*level) == libc::SOL_SOCKET;
        if of_sockets && i32::from_ne_bytes(*kind) == libc::SCM_RIGHTS {
            let numbers = data.as_chunks::<4>().0.iter().map(|number| RawFd::from_ne_bytes(*number));
            // SAFETY: the kernel opened these descriptors for this process during recvmsg. No other
            // code knows their numbers, and the caller guarantees that they are not taken twice.
            fds.extend(numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
        }
        rest = behind.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
}
