//! The ways in which a rank can break the protocol, and the limits on what it sends.

/// The longest line that a rank may send, in bytes without the line feed.
pub const MAX_LINE: usize = 16 << 10;

/// The largest size of a request to spawn a job, in bytes of its lines with their line feeds.
pub const MAX_SPAWN_BYTES: usize = 256 << 10;

/// The way in which a rank has broken the protocol. The launcher closes the rank's socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A line is longer than [`MAX_LINE`].
    #[error("a PMI line has more than {MAX_LINE} bytes")]
    LineTooLong,
    /// A line is not text in UTF-8.
    #[error("a PMI line is not text")]
    NotText,
    /// A line is not a request of PMI-1.
    #[error("unknown PMI request '{command}'")]
    Unknown {
        /// The name of the request, or the start of the line.
        command: String,
    },
    /// A request lacks a word, or the word's value is not valid.
    #[error("the PMI request '{command}' has no valid word '{key}'")]
    Word {
        /// The name of the request.
        command: String,
        /// The key of the word.
        key: &'static str,
    },
    /// A request arrived before the reply to the one before was sent.
    #[error("a PMI request arrived before the previous one was answered")]
    NotInStep,
    /// A request to spawn jobs is longer than [`MAX_SPAWN_BYTES`].
    #[error("a PMI request to spawn jobs has more than {MAX_SPAWN_BYTES} bytes")]
    SpawnTooLong,
    /// A rank has sent a request after `abort`.
    #[error("a PMI request arrived after 'abort'")]
    Aborted,
    /// A request arrived before `init` or after `finalize`, or `init` arrived twice.
    #[error("a PMI request arrived before 'init' or after 'finalize', or 'init' arrived twice")]
    NotInitialized,
    /// The job has no such rank.
    #[error("the job has {size} ranks, and no rank {rank}")]
    Rank {
        /// The rank.
        rank: u32,
        /// The number of ranks.
        size: u32,
    },
}

/// The number of characters of a line that an error quotes.
const QUOTED: usize = 40;

/// Returns the start of a name from a rank, as errors quote it.
pub(crate) fn quoted(name: &str) -> String {
    name.chars().take(QUOTED).map(|character| if character.is_control() { '?' } else { character }).collect()
}
