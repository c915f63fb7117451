//! The model of a simulated pipe, with the reader of its stream.

use std::os::fd::RawFd;

use iof_shm_ring::{Peek, Reader};

use super::simulation::UNREAD;

/// Most sources of one script, and most targets.
pub(super) const PIPES: usize = 5;

/// The end of a source, as the driver reported it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceEnd {
    pub produced: u64,
    pub error: bool,
    pub closed: bool,
}

/// A simulated pipe or queue of deliveries, and the reader of its stream.
pub(super) struct PipeModel {
    /// The driver's descriptor; -1 for a queue.
    pub(super) fd: RawFd,
    /// Bytes that were written and not yet given to the driver.
    pub(super) buffered: usize,
    pub(super) hung_up: bool,
    /// Bytes that were given to the driver.
    pub(super) given: u64,
    /// The driver was given an error that ends the source.
    pub(super) failed: bool,
    /// The source was closed or removed.
    pub(super) closed: bool,
    /// The value of `given` at which a finished source may end.
    pub(super) finish_at: Option<u64>,
    /// The leader of the session, if this is a terminal. A terminal does not end while its session
    /// has a leader.
    pub(super) leader: Option<Leader>,
    /// The leader's pidfd.
    pub(super) leader_fd: Option<RawFd>,
    pub(super) reader: Reader,
    /// Deliveries that the driver has not reported as taken; `None` for a pipe.
    pub(super) untaken: Option<Untaken>,
    /// Bytes that the reader has read, or knows from gaps to be lost.
    pub(super) read: u64,
    /// The bytes that the end of the stream tells to be missing, if it is broken.
    pub(super) missing: Option<u64>,
    pub(super) end: Option<SourceEnd>,
}

/// A number of deliveries, and the sum of their bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Untaken {
    pub(super) deliveries: usize,
    pub(super) bytes: u64,
}

/// The state of a session's leader.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Leader {
    Running,
    /// The kernel has reported the exit to the driver.
    Exited,
    /// The driver has reported the exit.
    Reported,
}

/// Returns the byte at `position` of what pipe number `pipe` gives.
pub(super) fn byte(pipe: usize, position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ pipe as u8
}

impl PipeModel {
    /// Returns whether this is an empty terminal that no process has open.
    pub(super) fn is_unopened_terminal(&self) -> bool {
        self.leader.is_some() && self.hung_up && self.buffered == 0
    }

    /// Returns whether a read would not block.
    pub(super) fn is_readable(&self) -> bool {
        self.buffered > 0 || self.hung_up
    }

    /// Gives the driver at most `room` bytes: writes them to `memory`, or discards them if it is
    /// `None`.
    pub(super) fn give(&mut self, number: usize, room: usize, memory: Option<*mut u8>) -> usize {
        let bytes = room.min(self.buffered);
        for (position, offset) in (self.given..).zip(0..bytes) {
            if let Some(memory) = memory {
                // SAFETY: the memory of a read in flight, which has room for `room` bytes.
                unsafe { memory.add(offset).write(byte(number, position)) };
            }
        }
        self.buffered -= bytes;
        self.given += bytes as u64;
        bytes
    }

    /// Returns the next `len` bytes to deliver. Returns `None` if this is a pipe, or if the source
    /// takes no more deliveries.
    pub(super) fn deliver(&mut self, number: usize, len: usize) -> Option<Vec<u8>> {
        let over = self.hung_up || self.closed;
        let untaken = self.untaken.as_mut().filter(|_| !over)?;
        untaken.deliveries += 1;
        untaken.bytes += len as u64;
        let bytes = (self.given..).take(len).map(|position| byte(number, position)).collect();
        self.given += len as u64;
        Some(bytes)
    }

    /// Checks the driver's report that deliveries were taken.
    pub(super) fn taken(&mut self, deliveries: usize, bytes: u64) {
        assert!(deliveries > 0 && self.end.is_none());
        let untaken = self.untaken.as_mut().expect("this is a pipe");
        untaken.deliveries = untaken.deliveries.checked_sub(deliveries).expect("too many deliveries");
        untaken.bytes = untaken.bytes.checked_sub(bytes).expect("too many bytes");
    }

    /// Consumes at most `most` bytes of the stream and checks each of them. Returns `true` at the
    /// end of the stream.
    pub(super) fn consume(&mut self, number: usize, most: usize) -> bool {
        let mut rest = most;
        loop {
            match self.reader.peek() {
                Peek::Bytes => {
                    let bytes = self.reader.bytes();
                    let bytes = &bytes[..bytes.len().min(rest)];
                    for (position, read) in (self.read..).zip(bytes) {
                        assert_eq!(*read, byte(number, position), "pipe {number}, byte {position}");
                    }
                    let n = bytes.len();
                    self.read += n as u64;
                    self.reader.consume(n);
                    rest -= n;
                    if rest == 0 {
                        self.reader.release();
                        return false;
                    }
                }
                Peek::Gap(gap) => self.read += gap.lost,
                Peek::Empty => return false,
                Peek::Ended => return true,
                Peek::Broken { missing } => {
                    self.missing = Some(missing);
                    return true;
                }
                other => panic!("{other:?} for the only reader of pipe {number}"),
            }
        }
    }

    /// Records that the driver is given this errno.
    pub(super) fn fail(&mut self, errno: i32) {
        self.failed |= match errno {
            libc::EAGAIN | libc::EINTR => false,
            libc::EIO if self.leader == Some(Leader::Running) => self.finish_at.is_some(),
            _ => true,
        };
    }

    /// Checks that every byte of an ended source was read or counted as lost, and that the end of its
    /// stream tells what its pipe still has, unless the source was finished. Returns `false` if
    /// the source has not ended.
    pub(super) fn check(&mut self, number: usize) -> bool {
        let Some(end) = self.end else { return false };
        assert_eq!(end.produced, self.given, "pipe {number}");
        assert!(self.consume(number, usize::MAX), "pipe {number}: the reader must reach the end");
        assert_eq!(self.read, self.given, "pipe {number}");
        let unread = if self.fd >= 0 && self.leader.is_none() { UNREAD as u64 } else { 0 };
        match self.missing {
            None => assert!(!end.error && (!end.closed || self.finish_at.is_some())),
            // A read that the kernel never answers has the pipe, or deliveries may follow.
            Some(0) => assert!(end.error || end.closed && self.fd < 0),
            Some(missing) => assert!(missing == unread && (end.error || end.closed && self.closed)),
        }
        true
    }

    /// Checks the driver's report that the source has ended.
    pub(super) fn ended(&mut self, end: SourceEnd, broken: bool) {
        assert!(self.end.is_none(), "the source ended twice");
        let over = self.hung_up && self.buffered == 0 && self.leader != Some(Leader::Running);
        let finished = self.finish_at.is_some_and(|finish_at| self.given >= finish_at);
        assert!(over || finished || self.closed || self.failed || broken, "the source ended too early");
        assert!(!end.error || self.failed || broken, "the source ended with an error that no call returned");
        let untaken = self.untaken.take().unwrap_or_default();
        assert!(broken || untaken == Untaken::default(), "{untaken:?} were not reported as taken");
        // A driver that has failed did not receive these.
        self.given -= untaken.bytes;
        self.end = Some(end);
    }
}
