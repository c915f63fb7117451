//! Streams of ranks on other nodes.

use serde::{Deserialize, Serialize};

use crate::names::{Channel, Rank};

/// A request for one stream of a node, from the oldest byte that it has, for tools of another engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamPull {
    /// The number of the pull, which is larger than those of earlier pulls of the job.
    pub number: u32,
    /// The rank.
    pub rank: Rank,
    /// The channel.
    pub channel: Channel,
}

/// The progress of a stream of a rank on another node, as far as it is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStream {
    /// The rank.
    pub rank: Rank,
    /// The channel.
    pub channel: Channel,
    /// The bytes that the rank has produced.
    pub produced: u64,
    /// Those of them that are lost.
    pub lost: u64,
    /// The stream has ended, and is whole.
    pub ended: bool,
    /// The bytes that are missing at the end of a stream whose node is lost, at least.
    pub missing: Option<u64>,
}
