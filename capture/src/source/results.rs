//! The results of a source's reads, polls and pauses, and the steps that follow them.

use std::io;
use std::mem;

use super::{Finish, LARGE_READ, Source, SourceState, Step};
use crate::ids::End;

impl Source {
    /// Takes the answer, at `time`, to the request in flight: a read with its bytes, a poll or a
    /// pause.
    pub(crate) fn done(&mut self, result: io::Result<usize>, time: u64) -> Step {
        match mem::replace(&mut self.state, SourceState::Idle) {
            SourceState::Reading => {
                if let Ok(n @ 1..) = result {
                    self.stream.commit(n, time);
                    self.is_ready = true;
                    self.may_collect = n < LARGE_READ;
                }
                match result {
                    Err(error) if lacks_memory(&error) && !self.closing => {
                        self.no_memory = true;
                        if self.finish.is_some() { Step::Measure } else { Step::Go { readable: false } }
                    }
                    result => self.after_read(result),
                }
            }
            SourceState::Polling if result.as_ref().is_err_and(lacks_memory) && !self.closing => {
                self.must_pause = true;
                let is_asked = self.finish == Some(Finish::Requested);
                if is_asked { Step::Measure } else { Step::Go { readable: false } }
            }
            SourceState::Polling if result.is_err() || self.closing => self.after_read(result),
            // Whether the pause was cancelled or elapsed makes no difference.
            SourceState::Pausing | SourceState::Collecting if self.closing => Step::End(End::Closed),
            SourceState::Polling | SourceState::Pausing | SourceState::Collecting
                if self.finish == Some(Finish::Requested) =>
            {
                Step::Measure
            }
            SourceState::Polling => Step::Go { readable: true },
            SourceState::Pausing | SourceState::Collecting => Step::Go { readable: false },
            // No request was in flight.
            other => {
                self.state = other;
                Step::Go { readable: false }
            }
        }
    }

    /// Takes the result, at `time`, of the read for [`Source::catch_up`]. The pause continues. After
    /// it an end or an error of the pipe is found again.
    pub(crate) fn caught_up(&mut self, result: io::Result<usize>, time: u64) {
        match result {
            Ok(n @ 1..) => {
                self.stream.commit(n, time);
                self.is_ready = true;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.would_block = true,
            _ => {}
        }
    }

    /// Takes the result of [`SourceAction::Probe`]. A pipe at its end is not read, so that no bytes
    /// without memory can be read from it.
    pub(crate) fn probed(&mut self, is_at_end: bool) -> Step {
        self.has_bytes = !is_at_end;
        match is_at_end {
            false => Step::Go { readable: true },
            // As a read would return.
            true if self.is_terminal() => self.after_read(Err(io::Error::from_raw_os_error(libc::EIO))),
            true => self.after_read(Ok(0)),
        }
    }

    /// Takes the result of [`SourceAction::Drain`] at `time`.
    pub(crate) fn drained(&mut self, result: io::Result<usize>, time: u64) -> Step {
        if let Ok(n @ 1..) = result {
            self.stream.discard(n as u64, time);
            self.is_ready = true;
        }
        self.after_read(result)
    }

    /// Takes the result of [`SourceAction::Fetch`] at `time`. Stores as many bytes as the stream
    /// has room for, and counts the others as dropped.
    pub(crate) fn fetched(&mut self, result: io::Result<&[u8]>, time: u64) -> Step {
        if let Ok(bytes @ [_, ..]) = result {
            let stored = self.stream.push(bytes, time);
            // The bytes have left the pipe, so the rest is lost.
            if let rest @ 1.. = bytes.len().saturating_sub(stored) {
                self.stream.discard(rest as u64, time);
            }
            self.is_ready = true;
        }
        self.after_read(result.map(<[u8]>::len))
    }

    /// Returns the step that follows a read with this result.
    fn after_read(&mut self, result: io::Result<usize>) -> Step {
        match result {
            Ok(0) => Step::End(End::EndOfFile),
            _ if self.closing => Step::End(End::Closed),
            Ok(bytes) => match &mut self.finish {
                Some(finish) => {
                    if let Finish::Wanted(wanted) = finish {
                        *wanted = wanted.saturating_sub(bytes as u64);
                    }
                    Step::Measure
                }
                None => Step::Go { readable: false },
            },
            // Cancelled, because another thread is about to read the pipe.
            Err(error) if self.isolating && is_transient(&error) => Step::Go { readable: false },
            Err(error) if self.finish == Some(Finish::Requested) && is_transient(&error) => {
                self.would_block = error.kind() == io::ErrorKind::WouldBlock;
                Step::Measure
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Step::Go { readable: false },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.would_block = true;
                Step::Go { readable: false }
            }
            // A read from a pty's master fails with EIO when no process has the slave open, see
            // read(2).
            Err(error) if error.raw_os_error() == Some(libc::EIO) && self.is_terminal() => {
                if !self.reopenable || self.finish.is_some() {
                    return Step::End(End::EndOfFile);
                }
                self.must_pause = true;
                Step::Go { readable: false }
            }
            Err(error) => Step::End(End::Error(error)),
        }
    }
}

/// Returns whether a later read may succeed: this one was cancelled or interrupted, or the pipe was
/// empty.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
        || error.raw_os_error() == Some(libc::ECANCELED)
}

/// Returns whether a read or a poll failed for want of memory, at the destination of its bytes or in the
/// kernel.
fn lacks_memory(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EFAULT | libc::ENOMEM))
}
