//! The reasons why bytes are not delivered.

use iof_capture::Stopped;
use iof_proto::directive::key;
use iof_proto::{Channel, Failure, Nspace, Proc, Status};
use iof_shm_ring::CreateError;

use crate::ids::MAX_RANKS;
use crate::streams::delivery::MAX_DELIVERED;

/// The reason why bytes were not delivered. None of the bytes was added to the stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeliverError {
    /// A required attribute does not apply to deliveries, or has a value of the wrong type.
    #[error(transparent)]
    Metadata(Failure),
    /// The source is not one rank below [`MAX_RANKS`], or the channel is stdin.
    #[error("invalid source '{from} {channel}': expected a rank below {MAX_RANKS} and an output channel")]
    NoSource {
        /// The source of the delivery.
        from: Proc,
        /// The channel of the delivery.
        channel: Channel,
    },
    /// The rank is local.
    #[error("{0} is a local rank, whose output the engine captures: deliver output of remote ranks only")]
    Captured(Proc),
    /// The job has no remote ranks: it was started without
    /// `JobSpec::elsewhere`.
    #[error("all ranks of {0} are local: start the job with `elsewhere` if it has remote ranks")]
    NoRemoteRanks(Nspace),
    /// The stream was completed before, or its job ended.
    #[error("the {channel} of {from} is complete: deliver nothing after {complete}", complete = key::PMIX_IOF_COMPLETE)]
    Complete {
        /// The source of the delivery.
        from: Proc,
        /// The channel of the delivery.
        channel: Channel,
    },
    /// The offset lies before the end of the last delivery.
    #[error(
        "the {channel} of {from} was delivered up to byte {position}: deliver bytes at {offset} once, and in their order"
    )]
    Offset {
        /// The source of the delivery.
        from: Proc,
        /// The channel of the delivery.
        channel: Channel,
        /// The offset of the delivery.
        offset: u64,
        /// The number of bytes that were delivered or lost before.
        position: u64,
    },
    /// A reader holds the stream back, and [`MAX_DELIVERED`] bytes are waiting for it.
    #[error(
        "{waiting} bytes of the stream already wait for a reader, and the limit is {MAX_DELIVERED}: deliver again when \
         some were taken"
    )]
    Full {
        /// The number of bytes that wait.
        waiting: u64,
    },
    /// No memory is left for a ring.
    #[error(transparent)]
    Ring(#[from] CreateError),
    /// The capture thread has ended.
    #[error(transparent)]
    Capture(#[from] Stopped),
}

impl DeliverError {
    /// Returns the PMIx status of the error. [`Status::ERR_IOF_XOFF`] means that the delivery may
    /// succeed later, [`Status::ERR_IOF_COMPLETE`] that the stream takes no more bytes.
    pub fn status(&self) -> Status {
        match self {
            DeliverError::Metadata(failure) => failure.status,
            DeliverError::NoSource { .. }
            | DeliverError::Captured(_)
            | DeliverError::NoRemoteRanks(_)
            | DeliverError::Offset { .. } => Status::ERR_BAD_PARAM,
            DeliverError::Complete { .. } => Status::ERR_IOF_COMPLETE,
            DeliverError::Full { .. } => Status::ERR_IOF_XOFF,
            DeliverError::Ring(_) => Status::ERR_OUT_OF_RESOURCE,
            DeliverError::Capture(_) => Status::ERR_IOF_FAILURE,
        }
    }
}
