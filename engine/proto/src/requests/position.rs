//! The position at which a registration begins.

use serde::{Deserialize, Serialize};

/// The position at which a registration for output begins in each of its streams.
///
/// An offset is the number of bytes that the source has produced before. Streams that begin after the
/// registration are delivered from their first byte on, except for [`Position::Offset`] and
/// [`Position::Time`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Position {
    /// The oldest byte that is cached. Older ones are reported as the first gap.
    #[default]
    Oldest,
    /// The first byte that the engine reads after the registration; for a rank on another node, the first one
    /// that its node reads after it has the request.
    Newest,
    /// The byte at this offset. If it was dropped, the first gap contains exactly the dropped bytes from there
    /// on. If it is not there yet, it is waited for.
    Offset(u64),
    /// The first read at or after this time, in nanoseconds since 1970, by the clock of the rank's
    /// node; an earlier one where several reads share a time, and never a later one. If all that is
    /// cached was read since then, this is [`Position::Oldest`].
    Time(u64),
    /// This number of lines before the first byte that the engine reads after the registration. What
    /// follows the last newline is a line, too. If fewer are cached, this is [`Position::Oldest`].
    Lines(u64),
}

impl Position {
    /// Returns whether no byte is delivered that was read before the registration.
    #[must_use]
    pub fn is_newest(self) -> bool {
        matches!(self, Position::Newest | Position::Lines(0))
    }
}
