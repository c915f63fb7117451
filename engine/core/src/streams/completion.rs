//! The outcome of a stream.

/// The final counters of a complete stream.
#[derive(Clone, Copy)]
pub struct Completion {
    /// The number of bytes that its source has produced.
    pub produced: u64,
    /// The number of its last generation.
    pub generation: u64,
}
