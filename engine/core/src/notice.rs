//! The events that the core reports for the log, as data.

use std::io;
use std::sync::Arc;

use iof_proto::{EncodeError, Nspace, Proc};
use iof_shm_ring::CreateError;

use crate::ids::{PeerId, StreamName};

/// A fact that is worth a line of the log. The driver writes the line once the tables are unlocked,
/// because the embedder's subscriber may wait or call the engine.
#[derive(Debug)]
#[allow(missing_docs, reason = "the variants describe their fields")]
pub enum Notice {
    /// A stream was open at the end of its rank's grace period, or was closed by the embedder.
    CutOff(Arc<StreamName>),
    /// A stream has ended with an error.
    StreamFailed { stream: Arc<StreamName>, error: String },
    /// The exit status of a rank is not available.
    ExitUnknown { source: Proc, error: io::Error },
    /// A stream has no backlog.
    NoBacklog(CreateError),
    /// A tool misses a new source.
    Missed(PeerId),
    /// A job is ended, because its ranks can't exchange values of a node.
    ExchangeFailed { job: Nspace, host: String, reason: String },
    /// Fences of a job whose time is over wait for ranks of this node and others.
    FenceAwaits { job: Nspace, host: String, others: usize },
    /// An answer to a tool was replaced, because it exceeds the limit of its message.
    TooLong { tool: String, error: EncodeError },
}
