//! Commands to the capture thread, as data.
//!
//! Code that has the tables locked only queues commands. They are sent in this order before the
//! next input is handled and before the lock is released (`Tables::lock`), so the capture thread
//! performs them in the order of the changes to the tables, whichever thread made these. Sending
//! never waits.

use iof_capture::{PushId, SourceBytes, SourceId, StreamRequest, TargetId};

use crate::core::ids::{PageId, PeerId};

/// A command to the capture thread, or about memory that earlier commands use.
#[cfg_attr(feature = "simulation", derive(Debug))]
pub(crate) enum Command {
    Request(StreamRequest<PageId>),
    /// Hands over the stream that [`Resources`](super::resources::Resources) has created.
    Open {
        source: SourceId,
        first: StreamRequest<PageId>,
    },
    Deliver {
        source: SourceId,
        delivery: SourceBytes,
    },
    Close(SourceId),
    Finish(SourceId),
    BreakOff {
        source: SourceId,
        missing: u64,
    },
    Remove(SourceId),
    /// Hands over the inlet that [`Resources`](super::resources::Resources) has created.
    BeginPush {
        push: PushId,
        targets: Vec<TargetId>,
        closes: bool,
    },
    Fill {
        push: PushId,
        bytes: u64,
        last: bool,
    },
    CutOff {
        push: PushId,
        position: u64,
    },
    Shut(TargetId),
    ShutUnread(TargetId),
    /// Drops the driver's reference of the inlet of a push that has ended.
    DropInlet(PushId),
    /// Drops the reader page of a tool that has disconnected, and what waits to be sent to it.
    DropPage(PeerId),
}
