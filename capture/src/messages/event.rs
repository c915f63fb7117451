//! The events that the capture thread reports.

use std::io;
use std::process::ExitStatus;

use iof_proto::UsedResources;

pub use crate::ids::{End, PipeId, ProcessId, PushEnd, PushId, RequestId, SourceId, TargetId};
use crate::messages::request::StreamAnswer;
use crate::source::source_table::EndedStreams;

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
    /// dropped. Each [`Command::Deliver`](crate::Command::Deliver) is counted in exactly one such
    /// event, in the order of the commands. The last one precedes [`Event::Complete`].
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
        /// Resources that it has used; `None` if that is unknown.
        used: Option<UsedResources>,
    },
    /// A pipe has blocked the capture thread for about half a second. Some process writes to the
    /// pipe from memory that faults slowly, or reads from it into such memory, for example a mapped
    /// file on a hung file system. Reported on another thread, which does not wait for the capture
    /// thread. [`Command::Isolate`](crate::Command::Isolate) keeps a source from blocking the
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
