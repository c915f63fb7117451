//! A target that is played, and the stream that it is fed from.

use std::os::fd::RawFd;
use std::slice;

use iof_shm_ring::{Stream, notify};

use super::pipe::byte;
use crate::event::FeedEnd;

/// A stream that is pushed, by whoever owns it.
pub(super) struct Feed {
    pub(super) number: usize,
    pub(super) stream: Stream,
    /// Bytes that are in it, or were. What is dropped has no place in it.
    stored: u64,
}

impl Feed {
    pub(super) fn new(number: usize, stream: Stream) -> Feed {
        Feed { number, stream, stored: 0 }
    }

    pub(super) fn push(&mut self, bytes: usize) {
        let content: Vec<u8> = (self.stored..).map(|at| self.byte(at)).take(bytes).collect();
        self.stream.push(&content, 1);
        let stats = self.stream.stats();
        self.stored = stats.produced - stats.dropped;
        notify([&self.stream]);
    }

    pub(super) fn complete(&mut self) {
        self.stream.complete();
        notify([&self.stream]);
    }

    fn byte(&self, at: u64) -> u8 {
        byte(100 + self.number, at)
    }
}

/// Bytes of a stream that are lent to the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lent {
    start: *const u8,
    pub(super) len: usize,
    /// Their place in the stream.
    feed: usize,
    at: u64,
}

impl Lent {
    /// Whether the bytes are the right ones.
    ///
    /// # Safety
    /// Nobody but the driver may have freed them, who must not.
    pub(super) unsafe fn check(&self) {
        // SAFETY: as the caller promises.
        let bytes = unsafe { slice::from_raw_parts(self.start, self.len) };
        for (at, got) in (self.at..).zip(bytes) {
            assert_eq!(*got, byte(100 + self.feed, at), "stream {}, byte {at}", self.feed);
        }
    }
}

/// A pipe that is written, and what its owner knows of it.
pub(super) struct Target {
    pub(super) fd: RawFd,
    pub(super) feed: usize,
    pub(super) slot: u32,
    /// It holds the stream back, so that it loses no more than this, which was gone when it came.
    pub(super) gone: Option<u64>,
    /// The driver knows it.
    pub(super) registered: bool,
    /// It was told to be sealed, and not yet what to do.
    pub(super) sealed: bool,
    /// Somebody asked for its end.
    pub(super) stopped: bool,
    /// It said that nobody reads it.
    pub(super) closed: bool,
    /// An error was given.
    pub(super) failed: bool,
    /// Bytes that its pipe took.
    taken: u64,
    /// Behind the last of these, in the stream.
    at: u64,
    pub(super) ended: bool,
}

impl Target {
    pub(super) fn new(fd: RawFd, feed: usize, slot: u32, gone: Option<u64>) -> Target {
        Target {
            fd,
            feed,
            slot,
            gone,
            registered: false,
            sealed: false,
            stopped: false,
            closed: false,
            failed: false,
            taken: 0,
            at: 0,
            ended: false,
        }
    }

    /// Borrows `bytes` of `feed`, before which its reader is `lag` bytes behind.
    pub(super) fn borrow(&self, bytes: &[u8], feed: &Feed, lag: u64) -> Lent {
        let at = feed.stored - lag;
        assert!(at >= self.at, "byte {at} comes after byte {}", self.at);
        let lent = Lent { start: bytes.as_ptr(), len: bytes.len(), feed: self.feed, at };
        // SAFETY: here they are.
        unsafe { lent.check() };
        lent
    }

    /// Takes the first `n` bytes of what was lent.
    pub(super) fn take(&mut self, lent: &Lent, n: usize) -> usize {
        // SAFETY: they are lent until this is answered.
        unsafe { lent.check() };
        self.taken += n as u64;
        self.at = lent.at + n as u64;
        n
    }

    /// It gives an error.
    pub(super) fn fail(&mut self, errno: i32) {
        match errno {
            libc::EAGAIN | libc::EINTR => {}
            libc::EPIPE => self.closed = true,
            _ => self.failed = true,
        }
    }

    /// Whether everything adds up now that it has ended.
    pub(super) fn end(&mut self, feed: &Feed, (delivered, lost): (u64, u64), end: &FeedEnd, broken: bool) {
        assert!(!self.ended, "it ends twice");
        self.ended = true;
        let stats = feed.stream.stats();
        assert_eq!(delivered, self.taken);
        assert!((self.at..=stats.produced).contains(&(delivered + lost)), "{delivered}, and {lost} lost");
        assert!(self.gone.is_none_or(|gone| lost <= gone), "{lost} bytes lost: nothing may be");
        match end {
            FeedEnd::Complete => {
                assert!(stats.complete);
                assert_eq!(delivered + lost, stats.produced);
            }
            FeedEnd::Closed => assert!(self.closed),
            FeedEnd::CutOff | FeedEnd::Stopped => assert!(self.stopped, "{end:?}"),
            FeedEnd::Error(_) => assert!(self.failed || broken, "{end:?}"),
        }
    }
}
