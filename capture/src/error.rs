//! The errors of a capture's methods.

use crate::ids::{PushId, SourceId, TargetId};
use crate::messages::command::Command;
use crate::messages::event::Event;

/// An error: the capture thread has ended, because the kernel facility failed or the thread
/// panicked, for example in `on_event`. Both are logged.
///
/// Every later call fails as well. Pending commands are discarded, and
/// [`Event::Ended`](crate::Event::Ended) reports the end and returns the streams. All sources and
/// targets of the thread are reported before that with the error, and processes are no longer
/// watched. If the kernel does not answer the reads and writes in flight, targets are not reported,
/// and the memory of all sources and targets stays mapped until the process ends. Bytes of a read
/// that was being handled when the thread panicked may be lost. If `on_event` panics again, only
/// [`Event::Ended`](crate::Event::Ended) follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the capture thread has ended; start a new Capture")]
pub struct Stopped;

/// An id of another source, target or push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum IdInUse {
    /// The id of a source.
    #[error("source id {} is in use: remove that source first, or use another id", .0.0)]
    Source(SourceId),
    /// The id of a target.
    #[error("target id {} is in use: wait until that target is shut, or use another id", .0.0)]
    Target(TargetId),
    /// The id of a push.
    #[error("push id {} is in use: wait until that push is over, or use another id", .0.0)]
    Push(PushId),
}

/// The reason why a batch of commands was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// A command adds a source, target or push under an id that is in use.
    #[error(transparent)]
    IdInUse(#[from] IdInUse),
    /// The capture thread has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// An error: a batch of commands was refused as a whole.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    /// The reason.
    pub reason: SendError,
    /// The commands. Dropping them closes their files.
    pub commands: Vec<Command>,
}

impl Refused {
    /// Returns the events that stand for the effects of the commands, see [`Command::refused`].
    pub fn into_events(self) -> Vec<Event> {
        self.commands.into_iter().flat_map(Command::refused).collect()
    }
}
