//! The simulated ranks: what they have written, and what the launcher has done to their streams.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};

use iof_capture::SourceId;
use iof_shm_ring::{Policy, ReaderId};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;

use crate::bytes;

/// The end of a source's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// Bytes that the stream has, the dropped ones included.
    pub produced: u64,
    /// Those that were dropped.
    pub dropped: u64,
}

/// One channel of a rank.
#[derive(Debug)]
pub struct Source {
    /// Its number, by which its bytes are made.
    pub id: SourceId,
    /// Its rank.
    pub rank: usize,
    /// The end that the rank writes to; `None` once it is closed, and without a pipe.
    pub writer: Option<File>,
    /// The kernel's number of the pipe; `None` if its bytes are delivered instead.
    pub pipe: Option<usize>,
    /// Bytes that the rank has written, or that were delivered.
    pub written: u64,
    /// Bytes of deliveries that the capture has not reported as taken.
    pub untaken: u64,
    /// Set if nothing more will be written.
    pub hung_up: bool,
    /// Set if the launcher has closed or removed the source.
    pub closed: bool,
    /// The bytes that were written before the launcher finished the source.
    pub finished: Option<u64>,
    /// Set if the launcher has removed the source.
    pub removed: bool,
    /// Its end, once that was reported.
    pub completed: Option<Completed>,
    /// The policy that was asked for last.
    pub policy: Policy,
    /// Set if the policy has been to block all the time.
    pub always_blocks: bool,
    /// Set if the bytes before the first registration are kept by the policy.
    pub keeps_first: bool,
    /// The backlog holder's reader.
    pub backlog: Option<ReaderId>,
    /// Set if no backlog is kept from now on.
    pub backlog_released: bool,
    /// Set if the backlog holder may hold the source back.
    pub backlog_blocks: bool,
}

/// Creates a pipe of about `capacity` bytes. Neither end blocks.
pub fn pipe(capacity: i32, packets: bool) -> io::Result<(OwnedFd, File)> {
    let mut flags = OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    flags.set(OFlag::O_DIRECT, packets);
    let (reader, writer) = pipe2(flags)?;
    // The pipe keeps its size if the user has too many pages in pipes.
    let _ = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(capacity));
    Ok((reader, writer.into()))
}

impl Source {
    /// Writes at most `n` bytes, as many as the pipe takes. A source without a pipe returns the
    /// bytes to deliver.
    pub fn write(&mut self, n: usize) -> Option<Vec<u8>> {
        if self.hung_up || self.closed {
            return None;
        }
        let mut buffer = vec![0; n];
        bytes::fill(self.id.0, self.written, &mut buffer);
        if self.pipe.is_none() {
            self.written += n as u64;
            self.untaken += n as u64;
            return Some(buffer);
        }
        let writer = self.writer.as_mut()?;
        match writer.write(&buffer) {
            Ok(taken) => self.written += taken as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The reading end is closed: the rank dies of SIGPIPE.
            Err(_) => self.hang_up(),
        }
        None
    }

    /// Closes the rank's end.
    pub fn hang_up(&mut self) {
        self.hung_up = true;
        self.writer = None;
    }

    /// Returns whether the capture may still have its stream.
    pub fn may_have_stream(&self) -> bool {
        !(self.removed && self.completed.is_some())
    }

    /// Returns whether every byte that was written is one of the stream's.
    pub fn is_whole(&self) -> bool {
        !self.closed && self.finished.is_none()
    }
}

/// Returns the number of a descriptor, for the kernel.
pub fn number(fd: &OwnedFd) -> i32 {
    fd.as_raw_fd()
}
