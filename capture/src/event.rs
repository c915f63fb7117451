//! The events that the capture thread reports, and the ids that they carry.

use std::io;
use std::process::ExitStatus;

use crate::ended_streams::EndedStreams;
use crate::request::{RequestId, StreamAnswer};

/// The id of a source: one process on one channel. Chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u64);

/// The id of a watched process. Chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

/// The id of a target: one process's stdin. Chosen by the caller. The source with the same number,
/// if there is one, is the stdout of the process: its readers learn when the process was given
/// stdin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId(pub u64);

/// The id of a push: bytes that are pushed to one or more targets. Chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PushId(pub u64);

/// A pipe that the capture holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PipeId {
    /// The pipe of a source.
    Source(SourceId),
    /// The pipe of a target.
    Target(TargetId),
}

/// A report of the capture: an end, an answer, free room in an inlet, finished deliveries, or a
/// pipe that blocks.
#[derive(Debug)]
pub enum Event {
    /// A source has ended, after its last byte. Reported once for each source, after its readers
    /// were notified.
    Complete {
        /// The source.
        source: SourceId,
        /// Bytes that were read from it, whether stored or dropped.
        produced: u64,
        /// Those of the produced bytes that were dropped instead of stored.
        dropped: u64,
        /// The number of the stream's last generation.
        generation: u64,
        /// Why the source ended.
        end: End,
    },
    /// A stream that is not complete continues in a new generation, so its earlier ones are sealed.
    /// Reported after its readers were notified. Several moves in one turn are one event.
    Moved {
        /// The source.
        source: SourceId,
        /// The number of the newest generation.
        generation: u64,
    },
    /// A [`StreamRequest`](crate::StreamRequest) with an id was performed. Reported in order with
    /// the events that precede and follow it on the capture thread.
    Answered {
        /// The request.
        request: RequestId,
        /// The answers of the steps that have one, in the order of the steps.
        answers: Vec<StreamAnswer>,
    },
    /// Deliveries to a source are finished: its stream has stored their bytes, or counted them as
    /// dropped. Each [`Capture::deliver`](crate::Capture::deliver) is counted in
    /// exactly one such event, in the order of the calls. The last one precedes
    /// [`Event::Complete`].
    Delivered {
        /// The source.
        source: SourceId,
        /// Deliveries since the previous event, at least 1.
        deliveries: usize,
        /// The bytes of these deliveries together.
        bytes: u64,
    },
    /// A process has ended. Other processes may still hold its pipes open.
    Exited {
        /// The process.
        process: ProcessId,
        /// Its exit status. It is an error if other code took the status, by a `waitpid(-1)` in
        /// this process or by ignoring `SIGCHLD`, see waitpid(2).
        status: io::Result<ExitStatus>,
    },
    /// A pipe has blocked the capture thread for about half a second. Some process writes to the
    /// pipe from memory that faults slowly, or reads from it into such memory, for example a mapped
    /// file on a hung file system. Reported on another thread, which does not wait for the capture
    /// thread. [`Capture::isolate`](crate::Capture::isolate) keeps a source from blocking the
    /// capture thread again.
    Stalled {
        /// The pipe.
        pipe: PipeId,
    },
    /// All targets of a push have taken the bytes before `position`, so the inlet has room again.
    /// Reported in steps of at least a quarter of the inlet.
    Freed {
        /// The push.
        push: PushId,
        /// A position in bytes from the beginning of the push.
        position: u64,
    },
    /// A push's turn at a target is over. Reported once for each target of each push.
    Fed {
        /// The push.
        push: PushId,
        /// The target.
        target: TargetId,
        /// Bytes of the push that the target's pipe has taken. Whether the process read them from
        /// the pipe is unknown.
        delivered: u64,
        /// Why the turn ended.
        end: PushEnd,
    },
    /// [`Event::Fed`] was reported for all targets of a push. The capture no longer reads the
    /// push's inlet.
    PushOver {
        /// The push.
        push: PushId,
    },
    /// The capture thread has ended and accepts no command any more: later ones fail with
    /// [`Stopped`](crate::Stopped), and earlier ones that no other event has reported were
    /// discarded. It is the last event of that thread, which reports it after a failure of the
    /// kernel facility, after a panic of the thread, and when the capture is dropped.
    Ended {
        /// The streams of all sources, which can still be read.
        streams: EndedStreams,
    },
    /// The capture has closed a target's pipe. Reported once for each target, after [`Event::Fed`]
    /// for every push that had its turn there or waited for it.
    Shut {
        /// The target.
        target: TargetId,
    },
}

/// Why a push's turn at a target ended. The target is shut in all cases except
/// [`PushEnd::Complete`].
#[derive(Debug)]
pub enum PushEnd {
    /// The pipe took the push's last byte.
    Complete,
    /// The pipe has no reader any more, because the process closed its stdin or has ended (`EPIPE`,
    /// see write(2)). This is detected at the next write. Or the target was shut before this push
    /// had its turn.
    Closed,
    /// [`Capture::cut_off`](crate::Capture::cut_off) closed the target, which did not take the
    /// bytes that were available.
    CutOff,
    /// [`Capture::shut`](crate::Capture::shut) closed the target, or the capture itself ended.
    Stopped,
    /// Writing failed.
    Error(io::Error),
}

/// Why a source ended.
#[derive(Debug)]
pub enum End {
    /// End of file: the pipe has no writer any more. For a source without a pipe:
    /// [`Capture::finish`](crate::Capture::finish).
    EndOfFile,
    /// The capture stopped reading although a process may still write, because of
    /// [`Capture::close`](crate::Capture::close), [`Capture::finish`](crate::Capture::finish), or
    /// the capture's own end.
    Closed,
    /// Reading failed.
    Error(io::Error),
}
