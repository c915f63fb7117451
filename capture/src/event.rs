//! What the capture thread reports, and the names under which it does.

use std::io;
use std::process::ExitStatus;

/// The caller's name for a source: one process on one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u64);

/// The caller's name for a watched process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

/// The caller's name for a target: one process's stdin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId(pub u64);

/// Something ended, or needs its owner.
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
    /// Deliveries to a source are no longer required: its stream has stored them, or counted them as dropped. One is told
    /// of for each [`Capture::deliver`](crate::Capture::deliver), in their order, and the last before
    /// [`Event::Complete`].
    Delivered {
        /// Which source.
        source: SourceId,
        /// How many since the last time, 1 at least.
        deliveries: usize,
        /// Their bytes together.
        bytes: u64,
    },
    /// A process ended. Its pipes may still be open, in other hands.
    Exited {
        /// Which process.
        process: ProcessId,
        /// How it ended; an error if somebody else took the status: a `waitpid(-1)` elsewhere in this process,
        /// or an ignored `SIGCHLD`, see waitpid(2).
        status: io::Result<ExitStatus>,
    },
    /// A target had all of a generation that its stream has left, and waits: answer with
    /// [`Capture::follow`](crate::Capture::follow), or cut it off with [`Capture::unfeed`](crate::Capture::unfeed).
    ///
    /// A stream moves on when one of its readers is in the way that may not hold it back. The others, who kept up, miss
    /// nothing if they follow; to know whom to cut off see [`Capture::follow`](crate::Capture::follow).
    Sealed {
        /// Which target.
        target: TargetId,
    },
    /// A target's pipe was closed by us. Comes once for each target, after its last write; nobody uses its reader's slot
    /// any more.
    Fed {
        /// Which target.
        target: TargetId,
        /// Bytes that its pipe took. Whether they were read from there nobody knows.
        delivered: u64,
        /// Bytes of the stream that it did not get and that were not there any more, as far as it came.
        lost: u64,
        /// What ended it.
        end: FeedEnd,
    },
}

/// What ended a target.
#[derive(Debug)]
pub enum FeedEnd {
    /// The stream is complete, and the pipe took its last byte.
    Complete,
    /// Nobody can read the pipe any more: the target closed its stdin or has ended (`EPIPE`, see write(2)). Found out
    /// when there is something to write.
    Closed,
    /// The stream went on without it, and it was not brought along: [`Capture::unfeed`](crate::Capture::unfeed) was the
    /// answer to [`Event::Sealed`], or the capture ended before there was one.
    CutOff,
    /// We stopped: [`Capture::unfeed`](crate::Capture::unfeed), or the capture's own end.
    Stopped,
    /// Writing failed.
    Error(io::Error),
}

/// What ended a source.
#[derive(Debug)]
pub enum End {
    /// End of file: nobody can write to it any more. Of a source without a pipe: [`Capture::finish`](crate::Capture::finish).
    EndOfFile,
    /// We stopped reading while somebody may still write: [`Capture::close`](crate::Capture::close),
    /// [`Capture::finish`](crate::Capture::finish), or the capture's own end.
    Closed,
    /// Reading failed.
    Error(io::Error),
}
