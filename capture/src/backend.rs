//! What the capture thread asks of the kernel, and how the kernel answers: one trait, a body for
//! each facility.
//!
//! Completion style: every request is answered once, later, by [`Backend::take`]. A facility that
//! only tells when something is ready does the work itself then.

mod epoll;
mod uring;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use iof_shm_ring::{Lent, Span};
use nix::errno::Errno;
use nix::fcntl::{SpliceFFlags, splice};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::read;

pub(crate) use epoll::Epoll;
pub(crate) use uring::Uring;

/// Bytes that are discarded at once at most: as much as pipes hold, at most, see pipe(7).
const DISCARDED: usize = 1 << 20;
/// The same, where they have to be copied.
const COPIED: usize = 16 * 1024;

/// How long [`Backend::pause`] takes at most.
const PAUSE: Duration = Duration::from_millis(20);

/// The kernel facility that a capture works with. Both do the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendKind {
    /// io_uring(7): one system call for many pipes. Linux 5.7 or newer; administrators and
    /// container runtimes often forbid it.
    IoUring,
    /// epoll(7): a system call for each read. Everywhere.
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

/// Whom an answer is for. Of each at most one request is in flight, cancellations aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// The bell.
    Bell,
    /// The bells of readers in other processes.
    Rooms,
    /// The source with this number.
    Source(usize),
    /// The process with this number.
    Process(usize),
    /// The target with this number. Its file is written, all others are read.
    Target(usize),
    /// Nobody: the answer to a cancellation.
    Cancel,
}

impl Token {
    /// A small number of its own, for tables.
    fn index(self) -> usize {
        // Made of the small number of a slot.
        u64::from(self) as usize
    }
}

const KIND_BITS: u32 = 3;
const KIND_MASK: u64 = (1 << KIND_BITS) - 1;

/// As kernel interfaces carry it. Small numbers make small words.
impl From<Token> for u64 {
    fn from(token: Token) -> u64 {
        let (kind, number) = match token {
            Token::Cancel => (0, 0),
            Token::Bell => (1, 0),
            Token::Source(at) => (2, at),
            Token::Process(at) => (3, at),
            Token::Target(at) => (4, at),
            Token::Rooms => (5, 0),
        };
        ((number as u64) << KIND_BITS) | kind
    }
}

impl From<u64> for Token {
    fn from(word: u64) -> Token {
        // Ours came from a usize.
        let number = usize::try_from(word >> KIND_BITS).unwrap_or(usize::MAX);
        match word & KIND_MASK {
            1 => Token::Bell,
            2 => Token::Source(number),
            3 => Token::Process(number),
            4 => Token::Target(number),
            5 => Token::Rooms,
            _ => Token::Cancel,
        }
    }
}

/// An answer: whom it is for, and what the call would have returned.
pub(crate) type Answer = (Token, io::Result<usize>);

/// Serves one thread, the one that made it. Dropping it abandons what is in flight.
pub(crate) trait Backend {
    /// What the users know it as.
    const KIND: BackendKind;

    /// Gets ready for requests about `file` under the name `token`. Comes once, before the first of
    /// them.
    ///
    /// # Safety
    /// `file` must stay open until [`Backend::deregister`], or until the backend has gone, and
    /// every request for `token` must be about it.
    ///
    /// A request may be carried out after the call that makes it, by the number of the file: by
    /// epoll always, by io_uring for files that the kernel does not hold for it. If the file
    /// were closed, that number could be another file's, whose bytes would be taken or
    /// overwritten: somebody else's pipe, or memory that somebody has mapped.
    unsafe fn register(&mut self, token: Token, file: BorrowedFd<'_>);

    /// Forgets the file of `token`, for which nothing may be in flight. The name is free again, and
    /// the file may be closed.
    fn deregister(&mut self, token: Token);

    /// Reads from `pipe` into `span`: waits for bytes or the end, and answers like read(2).
    ///
    /// # Safety
    /// Until the answer for `token` was taken, the caller must keep the memory of `span` mapped,
    /// and neither write nor, but by atomic loads, read it.
    unsafe fn read(&mut self, token: Token, pipe: BorrowedFd<'_>, span: Span);

    /// Writes `bytes` to `pipe`, which is a [`Token::Target`]'s: waits until it takes some of them,
    /// and answers like write(2).
    ///
    /// # Safety
    /// Until the answer for `token` was taken, the caller must keep the memory of `bytes` mapped.
    unsafe fn write(&mut self, token: Token, pipe: BorrowedFd<'_>, bytes: Lent);

    /// Answers when `file` is readable; a [`Token::Target`]'s, when it is writable.
    fn poll(&mut self, token: Token, file: BorrowedFd<'_>);

    /// Answers after [`PAUSE`] or less: together with the other pauses, so that many wake us no
    /// more often than one.
    fn pause(&mut self, token: Token);

    /// Makes what is in flight for `token` answer soon, if something is.
    fn cancel(&mut self, token: Token);

    /// Reads bytes of `pipe`, which was polled and is readable, and forgets them; says how many, at
    /// once.
    fn discard(&mut self, pipe: BorrowedFd<'_>) -> io::Result<usize>;

    /// Reads bytes of `pipe`, which was polled and is readable, into `memory`; says how many, at
    /// once.
    fn fetch(&mut self, pipe: BorrowedFd<'_>, memory: &mut [u8]) -> io::Result<usize> {
        // Of a terminal they may have been flushed since.
        let mut look = [PollFd::new(pipe, PollFlags::POLLIN)];
        if poll(&mut look, PollTimeout::ZERO)? == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(read(pipe, memory)?)
    }

    /// Hands in what was asked for, lets answers pile up for as long as `patience`, and then waits
    /// for one if there is none yet. May return early.
    ///
    /// # Errors
    /// When the kernel no longer serves us at all.
    fn turn(&mut self, patience: Duration) -> io::Result<()>;

    /// Takes the answers that are there.
    fn take(&mut self, into: &mut Vec<Answer>);

    /// Whether nothing waits for an answer, so that nobody touches the memory of any span or slice.
    fn is_quiet(&self) -> bool;
}

/// Where bytes go that nobody wants.
enum Discard {
    /// /dev/null, to which the kernel moves a pipe's pages without looking at them.
    Null(OwnedFd),
    /// A copy, where there is no /dev/null.
    Copy,
}

impl Discard {
    fn new() -> Discard {
        let null = File::options().write(true).open("/dev/null");
        null.map_or(Discard::Copy, |null| Discard::Null(null.into()))
    }

    /// Does not block if `pipe` is readable and nobody else reads it.
    fn discard(&self, pipe: BorrowedFd<'_>) -> io::Result<usize> {
        let moved = match self {
            Discard::Null(null) => splice(pipe, None, null, None, DISCARDED, SpliceFFlags::SPLICE_F_NONBLOCK),
            Discard::Copy => Err(Errno::EINVAL),
        };
        match moved {
            // A terminal, say.
            Err(Errno::EINVAL) => Ok(read(pipe, &mut [0; COPIED])?),
            moved => Ok(moved?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        for token in
            [Token::Bell, Token::Rooms, Token::Source(7), Token::Process(0), Token::Target(3), Token::Cancel]
        {
            assert_eq!(Token::from(u64::from(token)), token);
        }
    }
}
