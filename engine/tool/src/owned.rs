//! Deliveries that own their bytes, for tasks and queues that outlive the loan of a [`Delivery`].

use iof_proto::{Channel, Missed, Nspace, Proc, ProcInfo};
use iof_shm_ring::Gap;

use crate::session::delivery::{Delivery, Origin};
use crate::session::feed::Counts;
use crate::session::reply::Reply;

/// The stream that an owned delivery belongs to, see [`Origin`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the fields are those of `Origin`")]
pub struct OwnedOrigin {
    pub handler: u32,
    pub source: Proc,
    pub channel: Channel,
    pub logged: bool,
}

impl From<Origin<'_>> for OwnedOrigin {
    fn from(Origin { handler, source, channel, logged }: Origin<'_>) -> OwnedOrigin {
        OwnedOrigin { handler, source: source.clone(), channel, logged }
    }
}

/// A [`Delivery`] that borrows nothing. Its variants and fields mean the same.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the variants are those of `Delivery`")]
pub enum OwnedDelivery {
    /// A copy of bytes of a stream, with the [offset](crate::Bytes::offset) and
    /// [time](crate::Bytes::time) of the first one.
    Bytes {
        origin: OwnedOrigin,
        offset: u64,
        time: Option<u64>,
        bytes: Vec<u8>,
    },
    Gap {
        origin: OwnedOrigin,
        gap: Gap,
    },
    Complete {
        origin: OwnedOrigin,
        counts: Counts,
    },
    Broken {
        origin: OwnedOrigin,
        counts: Counts,
        missing: u64,
    },
    Gone {
        origin: OwnedOrigin,
        counts: Counts,
    },
    Rank {
        handler: u32,
        run: u64,
        info: Box<ProcInfo>,
    },
    JobEnded {
        handler: u32,
        nspace: Nspace,
        run: u64,
        exit_code: Option<i32>,
        skipped: u64,
    },
    Missed {
        handler: u32,
        missed: Missed,
    },
    Cached {
        handler: u32,
    },
    Reply {
        request: u32,
        reply: Reply,
    },
    Deregistered {
        handler: u32,
    },
}

impl Delivery<'_> {
    /// Returns the delivery with a copy of its bytes.
    pub fn into_owned(self) -> OwnedDelivery {
        match self {
            Delivery::Bytes(bytes) => OwnedDelivery::Bytes {
                origin: bytes.origin().into(),
                offset: bytes.offset(),
                time: bytes.time(),
                bytes: bytes.to_vec(),
            },
            Delivery::Gap { origin, gap } => OwnedDelivery::Gap { origin: origin.into(), gap },
            Delivery::Complete { origin, counts } => {
                OwnedDelivery::Complete { origin: origin.into(), counts }
            }
            Delivery::Broken { origin, counts, missing } => {
                OwnedDelivery::Broken { origin: origin.into(), counts, missing }
            }
            Delivery::Gone { origin, counts } => OwnedDelivery::Gone { origin: origin.into(), counts },
            Delivery::Rank { handler, run, info } => OwnedDelivery::Rank { handler, run, info },
            Delivery::JobEnded { handler, nspace, run, exit_code, skipped } => {
                OwnedDelivery::JobEnded { handler, nspace, run, exit_code, skipped }
            }
            Delivery::Missed { handler, missed } => OwnedDelivery::Missed { handler, missed },
            Delivery::Cached { handler } => OwnedDelivery::Cached { handler },
            Delivery::Reply { request, reply } => OwnedDelivery::Reply { request, reply },
            Delivery::Deregistered { handler } => OwnedDelivery::Deregistered { handler },
        }
    }
}
