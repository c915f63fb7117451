//! The ids of what a capture handles, and the reasons for which pushes and sources end.

use std::io;

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

/// The id of a request. Chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A pipe that the capture holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PipeId {
    /// The pipe of a source.
    Source(SourceId),
    /// The pipe of a target.
    Target(TargetId),
}

/// The reason why a push's turn at a target ended. The target is shut in all cases except
/// [`PushEnd::Complete`].
#[derive(Debug)]
pub enum PushEnd {
    /// The pipe took the push's last byte.
    Complete,
    /// The pipe has no reader any more, because the process closed its stdin or has ended (`EPIPE`,
    /// see write(2)). This is detected at the next write. Or the target was shut before this push
    /// had its turn.
    Closed,
    /// [`Command::CutOff`](crate::Command::CutOff) closed the target, which did not take the
    /// bytes that were available.
    CutOff,
    /// [`Command::Shut`](crate::Command::Shut) closed the target, or the capture itself ended.
    Stopped,
    /// Writing failed.
    Error(io::Error),
}

/// The reason why a source ended.
#[derive(Debug)]
pub enum End {
    /// End of file: the pipe has no writer any more. For a source without a pipe:
    /// [`Command::Finish`](crate::Command::Finish).
    EndOfFile,
    /// The capture stopped reading although a process may still write, because of
    /// [`Command::Close`](crate::Command::Close), [`Command::Finish`](crate::Command::Finish), or
    /// the capture's own end.
    Closed,
    /// Reading failed.
    Error(io::Error),
}
