//! The errors of a capture's methods.

use crate::ids::{PushId, SourceId, TargetId};

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

/// The reason why a source was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// The id belongs to another source.
    #[error("source id {} is in use: remove that source first, or use another id", source_id.0)]
    Taken {
        /// The id.
        source_id: SourceId,
    },
    /// The capture thread has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// The reason why a target was not added or a push was not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// The id belongs to another target.
    #[error("target id {} is in use: wait until that target is shut, or use another id", target_id.0)]
    TargetTaken {
        /// The id.
        target_id: TargetId,
    },
    /// The id belongs to another push.
    #[error("push id {} is in use: wait until that push is over, or use another id", push_id.0)]
    PushTaken {
        /// The id.
        push_id: PushId,
    },
    /// The capture thread has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}
