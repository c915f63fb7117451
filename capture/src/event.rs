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

/// The caller's name for a push: bytes that are pushed to some targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PushId(pub u64);

/// A pipe that the capture has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PipeId {
    /// A source's.
    Source(SourceId),
    /// A target's.
    Target(TargetId),
}

/// Something ended, or has room, or blocks.
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
    /// Deliveries to a source are no longer required: its stream has stored them, or counted them
    /// as dropped. One is told of for each [`Capture::deliver`](crate::Capture::deliver), in
    /// their order, and the last before [`Event::Complete`].
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
        /// How it ended; an error if somebody else took the status: a `waitpid(-1)` elsewhere in
        /// this process, or an ignored `SIGCHLD`, see waitpid(2).
        status: io::Result<ExitStatus>,
    },
    /// A pipe keeps the capture thread from all others, for half a second or so by now: a process
    /// writes to it from memory that faults slowly, or reads it into such memory, as a mapped
    /// file on a hung file system is. Comes on a thread of its own, which does not wait for the
    /// capture thread. [`Capture::isolate`](crate::Capture::isolate) keeps a source from doing
    /// so again.
    Stalled {
        /// Which pipe.
        pipe: PipeId,
    },
    /// All targets of a push have taken what lies before `position`, so that there is room again.
    /// Told when it is worth it: by a quarter of the inlet at least.
    Freed {
        /// Which push.
        push: PushId,
        /// Bytes since its beginning.
        position: u64,
    },
    /// A push's turn at a target is over. Comes once for each target of each push.
    Fed {
        /// Which push.
        push: PushId,
        /// Which target.
        target: TargetId,
        /// Bytes of the push that its pipe took. Whether they were read from there nobody knows.
        delivered: u64,
        /// What ended it.
        end: PushEnd,
    },
    /// All targets of a push were told of by [`Event::Fed`]. Nothing of its inlet is read any more.
    PushOver {
        /// Which push.
        push: PushId,
    },
    /// A target's pipe was closed by us. Comes once for each target, after all pushes that had
    /// their turn there or waited for it were told.
    Shut {
        /// Which target.
        target: TargetId,
    },
}

/// What ended a push's turn at a target. In all cases but the first the target is shut.
#[derive(Debug)]
pub enum PushEnd {
    /// The pipe took the push's last byte.
    Complete,
    /// Nobody can read the pipe any more: the target closed its stdin or has ended (`EPIPE`, see
    /// write(2)), which is found out when there is something to write. Or it was shut before
    /// this push's turn came.
    Closed,
    /// It did not take what there was: [`Capture::cut_off`](crate::Capture::cut_off).
    CutOff,
    /// We stopped: [`Capture::shut`](crate::Capture::shut), or the capture's own end.
    Stopped,
    /// Writing failed.
    Error(io::Error),
}

/// What ended a source.
#[derive(Debug)]
pub enum End {
    /// End of file: nobody can write to it any more. Of a source without a pipe:
    /// [`Capture::finish`](crate::Capture::finish).
    EndOfFile,
    /// We stopped reading while somebody may still write:
    /// [`Capture::close`](crate::Capture::close), [`Capture::finish`](crate::Capture::finish),
    /// or the capture's own end.
    Closed,
    /// Reading failed.
    Error(io::Error),
}
