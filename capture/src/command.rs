//! The commands to the capture thread, as data.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use iof_shm_ring::{Inlet, Stream};

use crate::child::Child;
use crate::first_writes::FirstWrites;
use crate::ids::{ProcessId, PushId, SourceId, TargetId};
use crate::isolated::{ReadOutcome, ThreadId};
use crate::queue::SourceBytes;
use crate::remote_call::RemoteCall;
use crate::request::{NewStream, StreamRequest};
use crate::room_bells::RoomBells;

/// A command to the capture thread, from the handle or from the thread of an isolated source.
pub(crate) enum Command {
    Add(NewSource),
    AddProcess {
        process: Option<(ProcessId, Child)>,
        sources: Vec<NewSource>,
        first_writes: Option<FirstWrites>,
    },
    Open {
        id: SourceId,
        stream: Box<Stream>,
        first: Option<StreamRequest>,
    },
    Deliver {
        id: SourceId,
        delivery: SourceBytes,
    },
    Close(SourceId),
    Finish {
        id: SourceId,
        /// The bytes that are known to be missing then, if the stream is broken.
        missing: Option<u64>,
    },
    Remove(SourceId),
    Isolate(SourceId),
    ReadOutcome {
        index: usize,
        thread: ThreadId,
        outcome: ReadOutcome,
    },
    Watch {
        id: ProcessId,
        child: Child,
    },
    AddTarget {
        id: TargetId,
        pipe: OwnedFd,
    },
    Push {
        id: PushId,
        inlet: Arc<Inlet>,
        targets: Vec<TargetId>,
        closes: bool,
    },
    Fill(PushId),
    CutOff {
        id: PushId,
        position: u64,
    },
    Shut(TargetId),
    ShutUnread(TargetId),
    Request(StreamRequest),
    Listen(Arc<RoomBells>),
    Call(RemoteCall),
    Stop,
}

/// A source with a pipe that is to be added.
pub(crate) struct NewSource {
    pub id: SourceId,
    pub pipe: OwnedFd,
    pub stream: Box<Stream>,
    /// Performed before the first byte is read.
    pub first: Option<StreamRequest>,
}

impl NewSource {
    pub(crate) fn new(id: SourceId, pipe: OwnedFd, NewStream { stream, first }: NewStream) -> NewSource {
        NewSource { id, pipe, stream: Box::new(stream), first }
    }
}
