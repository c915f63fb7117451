//! The deliveries of a tool: what [`Tool::recv`](crate::Tool::recv) returns and callbacks receive.

use std::fmt;
use std::ops::Deref;

use iof_proto::{Channel, Missed, Nspace, Proc, ProcInfo};
use iof_shm_ring::{Behind, Gap, LastRead};

use crate::session::feed::{Counts, Feed};
use crate::session::reply::Reply;

/// The stream that a delivery belongs to: one source and channel of one registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin<'a> {
    /// The id of the registration, which [`Tool::pull`](crate::Tool::pull) returned.
    pub handler: u32,
    /// The process that writes the stream.
    pub source: &'a Proc,
    /// The channel that the process writes to.
    pub channel: Channel,
    /// Set if the stream contains messages that were [logged](crate::Tool::log) to the channel on
    /// behalf of the process. They form a stream separate from the process's own output.
    pub logged: bool,
}

/// The next item of any registration.
///
/// Each stream of each registration delivers its bytes and gaps in order, and then one `Complete`,
/// `Broken` or `Gone`. Each job of each registration delivers one `JobEnded` after the ends of all
/// its streams. There are two exceptions: after [`Tool::deregister`](crate::Tool::deregister),
/// streams that are not complete and jobs end with `Deregistered` instead; and a `JobEnded` may
/// stand for several jobs (`skipped`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Delivery<'a> {
    /// Bytes of a stream, in place.
    Bytes(Bytes<'a>),
    /// Missing bytes of a stream.
    Gap {
        /// The stream.
        origin: Origin<'a>,
        /// Their position and number.
        gap: Gap,
    },
    /// The end of a complete stream (`PMIX_IOF_COMPLETE`): every byte of it was delivered or
    /// reported as a gap, from the offset on at which it was to begin. It may have ended before that
    /// ([`Counts::ends_early`]).
    Complete {
        /// The stream.
        origin: Origin<'a>,
        /// Its final byte counters.
        counts: Counts,
    },
    /// The end of a broken stream: the node of its process was lost, its pipe could not be read, or the
    /// engine stopped before it had read all output. The bytes that arrived were delivered or reported as gaps, and the process
    /// may have written more.
    Broken {
        /// The stream.
        origin: Origin<'a>,
        /// Its byte counters up to this point.
        counts: Counts,
        /// The number of further bytes that the process has written, at least.
        missing: u64,
    },
    /// The end of a stream whose engine disconnected before the stream was complete. The bytes that
    /// were in memory have been delivered. Whether the process has written more is unknown.
    Gone {
        /// The stream.
        origin: Origin<'a>,
        /// Its byte counters up to this point.
        counts: Counts,
    },
    /// A rank that has started, in the [state](ProcInfo::state) `Running`, or ended, in another one. Each rank
    /// is delivered once with its start, also if that was before the registration, and then once with its end,
    /// both before the `JobEnded` of its job. Its output may end earlier or later. Only if
    /// [`Pull::reports_ranks`](crate::Pull::reports_ranks) is set. A rank whose output is all that the engine knows
    /// is not delivered.
    Rank {
        /// The registration that receives this report.
        handler: u32,
        /// The number of the job, as in `JobEnded`.
        run: u64,
        /// The rank.
        info: Box<ProcInfo>,
    },
    /// The end of a job and of all of its streams. Successive jobs of one name are reported in
    /// order.
    JobEnded {
        /// The registration that receives this report.
        handler: u32,
        /// The name of the job.
        nspace: Nspace,
        /// The number of the job among those of this name; later jobs have higher numbers.
        run: u64,
        /// The exit code of the process that failed first (128 + *n* if signal *n* ended it), or 0;
        /// `None` if unknown.
        exit_code: Option<i32>,
        /// The number of earlier jobs of this name whose ends are not reported separately, because
        /// this tool read too slowly. Normally 0.
        skipped: u64,
    },
    /// Complete streams that are not delivered. Either this tool reads too slowly, and the launcher
    /// has removed their jobs
    /// ([`MAX_FORGOTTEN_PER_TOOL`](iof_proto::limits::MAX_FORGOTTEN_PER_TOOL)), or too many
    /// registrations of this tool cover these streams
    /// ([`MAX_READERS_PER_TOOL`](iof_proto::limits::MAX_READERS_PER_TOOL)), or their job ran on other nodes
    /// and had ended there when this tool came. Streams without bytes are then not reported. Over all streams of a
    /// job name, the bytes delivered, reported as gaps and reported here add up to the bytes
    /// produced. A stream that had ended on another node has a separate report, with the
    /// [offset](Missed::offset) of its first missing byte. Bytes before its [begin](crate::Pull::begins) do not
    /// count.
    Missed {
        /// The registration that receives this report.
        handler: u32,
        /// The missing streams and bytes.
        missed: Missed,
    },
    /// All that was cached when the registration was made, on other nodes, too, has been delivered from
    /// its [position](crate::Pull::from) on. Only if [`Pull::reports_cached`](crate::Pull::reports_cached)
    /// is set.
    Cached {
        /// The registration.
        handler: u32,
    },
    /// The answer to a non-blocking request, see [`Tool::submit_pull`](crate::Tool::submit_pull).
    Reply {
        /// The number of the request, which the `submit_` method returned.
        request: u32,
        /// The engine's answer.
        reply: Reply,
    },
    /// The end of a registration, requested by [`Tool::deregister`](crate::Tool::deregister).
    /// Everything that was unread at the request has been delivered.
    Deregistered {
        /// The id that the registration had.
        handler: u32,
    },
}

impl Delivery<'_> {
    /// Returns the id of the registration that this delivery belongs to, or 0 for a reply that does
    /// not grant a registration.
    pub fn handler(&self) -> u32 {
        match self {
            Delivery::Bytes(bytes) => bytes.origin().handler,
            Delivery::Gap { origin, .. }
            | Delivery::Complete { origin, .. }
            | Delivery::Broken { origin, .. }
            | Delivery::Gone { origin, .. } => origin.handler,
            Delivery::JobEnded { handler, .. }
            | Delivery::Rank { handler, .. }
            | Delivery::Missed { handler, .. }
            | Delivery::Cached { handler }
            | Delivery::Deregistered { handler } => *handler,
            Delivery::Reply { reply: Reply::Pulled(Ok(granted)), .. } => granted.handler,
            Delivery::Reply { .. } => 0,
        }
    }

    /// Returns the stream that this delivery belongs to, or `None` if it concerns a job, a request
    /// or the registration itself.
    pub fn origin(&self) -> Option<Origin<'_>> {
        match self {
            Delivery::Bytes(bytes) => Some(bytes.origin()),
            Delivery::Gap { origin, .. }
            | Delivery::Complete { origin, .. }
            | Delivery::Broken { origin, .. }
            | Delivery::Gone { origin, .. } => Some(*origin),
            Delivery::JobEnded { .. }
            | Delivery::Rank { .. }
            | Delivery::Missed { .. }
            | Delivery::Cached { .. }
            | Delivery::Deregistered { .. }
            | Delivery::Reply { .. } => None,
        }
    }
}

/// Contiguous bytes of one stream, in the shared memory into which the kernel has read them. They
/// are not overwritten while they are borrowed.
#[derive(Clone, Copy)]
pub struct Bytes<'a> {
    pub(crate) feed: &'a Feed,
}

impl<'a> Bytes<'a> {
    /// Returns the stream that the bytes belong to.
    pub fn origin(&self) -> Origin<'a> {
        origin(self.feed)
    }

    /// Returns the offset of the first byte: the number of bytes that the source had produced
    /// before it.
    pub fn offset(&self) -> u64 {
        self.feed.counts().produced
    }

    /// Returns the time at which the first byte was read from its source, in nanoseconds since
    /// 1970, or `None` if unknown. Bytes that were read together have the same time.
    pub fn time(&self) -> Option<u64> {
        self.feed.time()
    }

    /// Appends pairs of [offset](Bytes::offset) and [time](Bytes::time) to `times`, in ascending
    /// order. The bytes from an offset up to that of the next pair were read at that time.
    pub fn times(&self, times: &mut Vec<(u64, u64)>) {
        self.feed.times(times);
    }

    /// Returns the newest read of the stream from its source, which may be newer than these bytes;
    /// `None` if it is unknown.
    pub fn last_read(&self) -> Option<LastRead> {
        self.feed.last_read()
    }

    /// Returns what follows these bytes in the stream, as far as is known now.
    pub fn behind(&self) -> Behind {
        self.feed.behind()
    }

    /// Returns the capacity of the stream's ring in bytes. A tool that waits for more bytes before
    /// it consumes these must not wait for more than the capacity.
    pub fn capacity(&self) -> u64 {
        self.feed.capacity()
    }

    /// Returns the bytes as a slice that borrows the tool, and not this value.
    pub fn as_slice(&self) -> &'a [u8] {
        self.feed.bytes()
    }
}

impl Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Bytes");
        shown.field("origin", &self.origin()).field("offset", &self.offset()).field("len", &self.len());
        shown.finish()
    }
}

pub(crate) fn origin(feed: &Feed) -> Origin<'_> {
    let (handler, source, channel) = (feed.handler(), feed.source(), feed.channel());
    Origin { handler, source, channel, logged: feed.is_logged() }
}
