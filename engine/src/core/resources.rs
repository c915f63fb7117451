//! What the core needs of the operating system.

use iof_proto::Failure;
use iof_shm_ring::{CreateError, Inlet, Stream, StreamConfig};

/// The source of memory that the engine shares with tools, and of facts about this node. No method
/// blocks.
pub(crate) trait Resources: Send {
    /// Creates the inlet of a push.
    ///
    /// # Errors
    /// Too little memory or too few files are left.
    fn inlet(&self, capacity: u64) -> Result<Inlet, Failure>;

    /// Creates a stream of logged messages.
    ///
    /// # Errors
    /// Too little memory or too few files are left.
    fn log_stream(&self, config: StreamConfig, label: &str) -> Result<Stream, Failure>;

    /// Creates a stream of a remote rank's output.
    ///
    /// # Errors
    /// Too little memory or too few files are left.
    fn delivered_stream(&self, config: StreamConfig, label: &str) -> Result<Stream, CreateError>;

    /// Returns whether this node has a syslog now.
    fn has_syslog(&self) -> bool;
}
