//! What the capture thread reports, and the names under which it does.

use std::io;
use std::process::ExitStatus;

/// The caller's name for a source: one process on one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u64);

/// The caller's name for a watched process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

/// Something ended.
#[derive(Debug)]
pub enum Event {
    /// A source had its last byte. Comes once for each source, after its readers were told.
    Complete {
        /// Which source.
        source: SourceId,
        /// Bytes that were read from it, stored or not.
        produced: u64,
        /// Bytes of these that were dropped instead of stored.
        dropped: u64,
        /// What ended it.
        end: End,
    },
    /// A process ended. Its pipes may still be open, in other hands.
    Exited {
        /// Which process.
        process: ProcessId,
        /// How it ended; an error if somebody else took the status: a `waitpid(-1)` elsewhere in this process,
        /// or an ignored `SIGCHLD`, see waitpid(2).
        status: io::Result<ExitStatus>,
    },
}

/// What ended a source.
#[derive(Debug)]
pub enum End {
    /// End of file: nobody can write to it any more.
    EndOfFile,
    /// We stopped reading while somebody may still write: [`Capture::close`](crate::Capture::close),
    /// [`Capture::finish`](crate::Capture::finish), or the capture's own end.
    Closed,
    /// Reading failed.
    Error(io::Error),
}
