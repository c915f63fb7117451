//! The events that a tool has received or found, and not delivered yet.

use iof_proto::{Missed, Nspace, ProcInfo};

use crate::session::feed::Peeked;
use crate::session::feeds::FeedId;
use crate::session::registration::JobEnd;
use crate::session::reply::Reply;

/// An event of a registration or a request, not of a stream.
#[derive(Debug)]
pub(crate) enum Event {
    JobEnded { handler: u32, nspace: Nspace, end: JobEnd },
    Rank { handler: u32, run: u64, info: Box<ProcInfo> },
    Missed { handler: u32, missed: Missed },
    Cached { handler: u32 },
    Deregistered { handler: u32 },
    Reply { request: u32, reply: Reply },
}

/// An item that was found and is to be delivered.
#[derive(Debug)]
pub(crate) enum Next {
    Item(FeedId, Peeked),
    Event(Event),
}
