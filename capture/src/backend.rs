//! The kernel facilities that the capture thread works with: one trait, and an implementation for
//! each facility.
//!
//! The interface reports completion, not readiness: each request is answered once, later, and
//! [`Backend::take`] returns the answer. A facility that reports only readiness (epoll) does the
//! I/O itself once a file is ready.

mod epoll;
mod uring;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use iof_shm_ring::{Lent, Span};
use nix::errno::Errno;
use nix::fcntl::{SpliceFFlags, splice};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::read;

use crate::clock;

pub(crate) use epoll::Epoll;
pub(crate) use uring::Uring;

/// The most bytes that one call discards: the default limit on a pipe's capacity, see pipe(7).
const DISCARD_MAX: usize = 1 << 20;
/// The most bytes that one call discards where they have to be copied.
const COPY_MAX: usize = 16 * 1024;

/// The most bytes that one read asks for: the default capacity of a pipe, see pipe(7).
pub const READ_MAX: usize = 64 * 1024;

/// The offset that means "at the file's own position", see preadv2(2).
const NO_OFFSET: libc::off_t = -1;

/// The length of a pause: the longest time until [`Backend::pause`] is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// While a pipe collects bytes: 500 µs.
    Short,
    /// Until the kernel may have memory, or a process may have changed: 20 ms.
    Long,
}

impl Pause {
    const fn length(self) -> Duration {
        match self {
            Pause::Short => Duration::from_micros(500),
            Pause::Long => Duration::from_millis(20),
        }
    }
}

/// The kernel facility that a capture works with. Both give the same results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendKind {
    /// io_uring(7): one system call serves many pipes. Needs Linux 5.7 or newer. Administrators and
    /// container runtimes often forbid it.
    IoUring,
    /// epoll(7): one system call for each read. Available on every kernel.
    Epoll,
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BackendKind::IoUring => "io_uring",
            BackendKind::Epoll => "epoll",
        })
    }
}

/// The owner of a request and of its answer. Each owner has at most one request in flight,
/// cancellations aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// The capture thread's bell.
    Bell,
    /// The bells of readers in other processes.
    RoomBells,
    /// The check of streams that wait and may grow.
    Growth,
    /// The source in this slot.
    Source(usize),
    /// The process in this slot.
    Process(usize),
    /// The target in this slot. Its file is written; the files of all other owners are read.
    Target(usize),
    /// The answer to a cancellation, which has no owner.
    Cancel,
}

impl Token {
    /// Returns a small number for tables, unique to this token.
    fn index(self) -> usize {
        // Slot numbers are small, so this fits.
        u64::from(self) as usize
    }
}

const KIND_BITS: u32 = 3;
const KIND_MASK: u64 = (1 << KIND_BITS) - 1;

/// The word that kernel interfaces carry as user data. Small slot numbers give small words.
impl From<Token> for u64 {
    fn from(token: Token) -> u64 {
        let (kind, number) = match token {
            Token::Cancel => (0, 0),
            Token::Bell => (1, 0),
            Token::Source(index) => (2, index),
            Token::Process(index) => (3, index),
            Token::Target(index) => (4, index),
            Token::RoomBells => (5, 0),
            Token::Growth => (6, 0),
        };
        ((number as u64) << KIND_BITS) | kind
    }
}

impl From<u64> for Token {
    fn from(word: u64) -> Token {
        // Every word that a token was converted to holds a usize.
        let number = usize::try_from(word >> KIND_BITS).unwrap_or(usize::MAX);
        match word & KIND_MASK {
            1 => Token::Bell,
            2 => Token::Source(number),
            3 => Token::Process(number),
            4 => Token::Target(number),
            5 => Token::RoomBells,
            6 => Token::Growth,
            _ => Token::Cancel,
        }
    }
}

/// The answer to a request: its owner, and what the system call would have returned.
pub type Answer = (Token, io::Result<usize>);

/// A kernel facility, used by the one thread that made it. Dropping it abandons the requests in
/// flight.
pub trait Backend {
    /// The kind that [`Capture::backend`](crate::Capture::backend) returns for this backend.
    const KIND: BackendKind;

    /// Set if pauses can be as short as [`Pause::Short`].
    const HAS_SHORT_PAUSES: bool = true;

    /// Registers `file` for requests by `token`. Called once, before the first of them.
    ///
    /// # Safety
    /// `file` must stay open until [`Backend::deregister`], or until the backend is dropped, and
    /// every request by `token` must be for `file`.
    ///
    /// A backend carries out a request after the call that submits it, by the file's descriptor
    /// number. If the file were closed by then, that number could name another file, whose bytes
    /// would be taken or overwritten: a pipe that belongs to other code, or a file that is mapped
    /// as memory.
    unsafe fn register(&mut self, token: Token, file: BorrowedFd<'_>);

    /// Removes the file of `token`, which must have no request in flight. The token may be
    /// registered again, and the file may be closed.
    fn deregister(&mut self, token: Token);

    /// Reads from `pipe` into `span`: waits for bytes or the end of file. The answer is that of
    /// read(2).
    ///
    /// # Safety
    /// Until the answer for `token` was taken, the caller must keep the memory of `span` mapped,
    /// must not write to it, and must not read it except by atomic loads.
    unsafe fn read(&mut self, token: Token, pipe: BorrowedFd<'_>, span: Span);

    /// Writes `bytes` to `pipe`, the file of a [`Token::Target`]: waits until the pipe takes some
    /// of them. The answer is that of write(2).
    ///
    /// # Safety
    /// Until the answer for `token` was taken, the caller must keep the memory of `bytes` mapped.
    unsafe fn write(&mut self, token: Token, pipe: BorrowedFd<'_>, bytes: Lent);

    /// Answers when `file` is readable; for a [`Token::Target`], when it is writable.
    fn poll(&mut self, token: Token, file: BorrowedFd<'_>);

    /// Answers within the length of `pause`. Pauses end together, so that many of them wake the
    /// thread no more often than one.
    fn pause(&mut self, token: Token, pause: Pause);

    /// Cancels the request of `token`, so that its answer comes soon, if it has one in flight.
    fn cancel(&mut self, token: Token);

    /// Reads and discards bytes of `pipe`, which was polled and is readable. Returns their number
    /// immediately.
    fn discard(&mut self, pipe: BorrowedFd<'_>) -> io::Result<usize>;

    /// Reads bytes of `pipe`, which was polled and is readable, into `memory`. Returns their number
    /// immediately.
    fn fetch(&mut self, pipe: BorrowedFd<'_>, memory: &mut [u8]) -> io::Result<usize> {
        let span = Span { ptr: memory.as_mut_ptr(), len: memory.len() };
        // SAFETY: `memory` is borrowed for the call.
        unsafe { self.read_now(pipe, &span) }
    }

    /// Reads the bytes that `pipe` has, if any, into `span`. Returns their number immediately.
    ///
    /// # Safety
    /// The memory of `span` must be mapped, and nothing else may write to it during the call, nor
    /// read it except by atomic loads.
    unsafe fn read_now(&mut self, pipe: BorrowedFd<'_>, span: &Span) -> io::Result<usize> {
        let part = libc::iovec { iov_base: span.ptr.cast(), iov_len: span.len };
        // SAFETY: as promised by the caller. A span without memory gives EFAULT.
        let read =
            unsafe { libc::preadv2(pipe.as_raw_fd(), &raw const part, 1, NO_OFFSET, libc::RWF_NOWAIT) };
        match count(read) {
            // Not every kernel and file supports RWF_NOWAIT, so the result of read(2) decides.
            Err(error) if !is_transient(&error) => {}
            result => return result,
        }
        // A terminal may have been flushed since it was polled.
        let mut polled = [PollFd::new(pipe, PollFlags::POLLIN)];
        if poll(&mut polled, PollTimeout::ZERO)? == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // SAFETY: as above.
        count(unsafe { libc::read(pipe.as_raw_fd(), span.ptr.cast(), span.len) })
    }

    /// Submits the pending requests, lets answers accumulate for `coalescing_delay`, and then
    /// blocks until there is an answer. May return earlier.
    ///
    /// # Errors
    /// An error of the kernel facility itself, after which it serves no further request.
    fn turn(&mut self, coalescing_delay: Duration) -> io::Result<()>;

    /// Moves the answers that have arrived to the end of `answers`.
    fn take(&mut self, answers: &mut Vec<Answer>);

    /// Returns whether no request is in flight, so that no span and no lent bytes are in use.
    fn is_quiet(&self) -> bool;

    /// Returns the time, in nanoseconds since 1970.
    fn now(&self) -> u64 {
        clock::now()
    }
}

/// Converts the return value of a system call that returns a number of bytes, or -1 and errno.
fn count(returned: isize) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::last_os_error())
}

/// Returns whether `error` has a passing cause outside the file.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        || matches!(error.raw_os_error(), Some(libc::EFAULT | libc::ENOMEM))
}

/// The destination of discarded bytes.
enum DiscardSink {
    /// /dev/null, to which the kernel moves a pipe's pages without copying them.
    Null(OwnedFd),
    /// A buffer, used if /dev/null cannot be opened.
    Copy,
}

impl DiscardSink {
    fn new() -> DiscardSink {
        let null = File::options().write(true).open("/dev/null");
        null.map_or(DiscardSink::Copy, |null| DiscardSink::Null(null.into()))
    }

    /// Discards bytes of `pipe`. Does not block if `pipe` is readable and has no other reader.
    fn discard(&self, pipe: BorrowedFd<'_>) -> io::Result<usize> {
        let moved = match self {
            DiscardSink::Null(null) => {
                splice(pipe, None, null, None, DISCARD_MAX, SpliceFFlags::SPLICE_F_NONBLOCK)
            }
            DiscardSink::Copy => Err(Errno::EINVAL),
        };
        match moved {
            // splice(2) refuses some files, terminals for example.
            Err(Errno::EINVAL) => Ok(read(pipe, &mut [0; COPY_MAX])?),
            moved => Ok(moved?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_converted_to_a_word_and_back_is_the_same() {
        for token in [
            Token::Bell,
            Token::RoomBells,
            Token::Source(7),
            Token::Process(0),
            Token::Target(3),
            Token::Cancel,
        ] {
            assert_eq!(Token::from(u64::from(token)), token);
        }
    }
}
