//! The limits that the core enforces. `iof_proto::limits` describes what reaching each one causes.

use iof_proto::limits::{
    MAX_DEFERRED_BYTES, MAX_FORGOTTEN, MAX_FORGOTTEN_PER_TOOL, MAX_PUSHES_PER_TARGET, MAX_READERS_PER_TOOL,
};

use crate::clients::quotas::QuotaLimits;

/// The number of unsent answers from which on the engine defers a tool's requests. Unsolicited
/// messages do not count: their number is bounded by the tool's registrations.
const MAX_ANSWERS_WAITING: usize = 64;
/// The same limit for the answers' size, in bytes.
const MAX_BYTES_WAITING: usize = 256 * 1024;

/// The limits of an engine. By default they are the constants of `iof_proto::limits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Those of what clients hold.
    pub quotas: QuotaLimits,
    /// `MAX_READERS_PER_TOOL`.
    pub readers_per_tool: usize,
    /// `MAX_FORGOTTEN_PER_TOOL`.
    pub forgotten_per_tool: usize,
    /// `MAX_FORGOTTEN`.
    pub forgotten: usize,
    /// `MAX_PUSHES_PER_TARGET`.
    pub pushes_per_target: usize,
    /// `MAX_ANSWERS_WAITING`.
    pub answers_waiting: usize,
    /// `MAX_BYTES_WAITING`.
    pub bytes_waiting: usize,
    /// `MAX_DEFERRED_BYTES`.
    pub deferred_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            quotas: QuotaLimits::default(),
            readers_per_tool: MAX_READERS_PER_TOOL,
            forgotten_per_tool: MAX_FORGOTTEN_PER_TOOL,
            forgotten: MAX_FORGOTTEN,
            pushes_per_target: MAX_PUSHES_PER_TARGET,
            answers_waiting: MAX_ANSWERS_WAITING,
            bytes_waiting: MAX_BYTES_WAITING,
            deferred_bytes: MAX_DEFERRED_BYTES,
        }
    }
}
