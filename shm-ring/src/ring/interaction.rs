//! Hints for readers that hold back the beginning of a line: whether somebody may answer the
//! process that writes the stream, and the size of its last write. Both decide how long readers
//! wait for the end of the line.

use crate::ring::Ring;
use crate::sync::Ordering::Relaxed;

/// The way in which the process that writes a stream may be answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Interaction {
    /// Nobody: the process has no stdin, has read it to its end, or reads a file.
    #[default]
    None,
    /// A program: the stdin of the process is open.
    Piped,
    /// A person at a terminal.
    Typed,
    /// Unknown, but no program holds output back in large buffers on the way: it is written to a
    /// terminal of its own, or delivered by a process that has waited for the ends of lines.
    Unbuffered,
}

/// The stdin of the process that writes a stream, as the readers of a copy of the stream must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputState {
    /// The way in which the process may be answered.
    pub interaction: Interaction,
    /// [`LastRead::is_answer`].
    pub is_answer: bool,
}

impl Interaction {
    /// Returns the interaction with this number. Only its lowest two bits count.
    pub fn from_bits(bits: u64) -> Interaction {
        match bits & ((1 << KIND_BITS) - 1) {
            0 => Interaction::None,
            1 => Interaction::Piped,
            2 => Interaction::Typed,
            _ => Interaction::Unbuffered,
        }
    }
}

impl InputState {
    /// The state if no process holds output back, see [`Interaction::Unbuffered`].
    pub const UNBUFFERED: InputState = InputState { interaction: Interaction::Unbuffered, is_answer: false };
}

/// The newest read of a stream from its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastRead {
    /// The bytes that it brought. Reads less than 0.1 ms apart count as one. So does a read less than
    /// 10 ms after one of at least 16 KiB: a pipe cannot hold a larger write as a whole.
    pub len: u64,
    /// The way in which the process may be answered.
    pub interaction: Interaction,
    /// Set if the process was given stdin at most 10 seconds, or 64 KiB of its output, before the end
    /// of this read: what was read may be an answer for which the giver waits.
    pub is_answer: bool,
}

/// The least number of bytes of a read after which the rest of the same write may follow.
const LARGE_READ: u64 = 16 << 10;
/// The time within which that rest follows, in nanoseconds.
const REST_TIME: u64 = 10_000_000;
/// The greatest number of bytes that a process writes before what counts as its answer ends.
const ANSWER_BYTES: u64 = 64 << 10;
/// The longest time from stdin to what counts as an answer in any case, in nanoseconds.
const ANSWER_TIME: u64 = 10_000_000_000;
/// The bits of the shared word below the position.
const KIND_BITS: u32 = 2;

/// Returns the shared word for `interaction` with a process that was last given stdin when its
/// stream had reached `given`.
pub(crate) fn word(interaction: Interaction, given: Option<u64>) -> u64 {
    let position = given.map_or(0, |position| position.saturating_add(1));
    position << KIND_BITS | interaction as u64
}

/// Returns the shared word after the process was given stdin.
pub(crate) fn given(word: u64, position: u64) -> u64 {
    match Interaction::from_bits(word) {
        Interaction::None => word,
        interaction => self::word(interaction, Some(position)),
    }
}

/// Returns the newest read into `ring`; `None` if the ring has no entry for it.
pub(crate) fn last_read(ring: &Ring) -> Option<LastRead> {
    let published = &ring.control().published;
    let mut reads = ring.recent().newest_first();
    let newest = reads.next()?;
    // Relaxed: they were stored by `Stream::publish_interaction` and the writer's commit. A reader that
    // sees old values, or a mix of old and new ones, looks again at its next check.
    let (word, tail) = (published.interaction.load(Relaxed), published.tail.load(Relaxed));
    let given_time = published.given_time.load(Relaxed);
    let mut first = newest;
    for before in reads {
        let is_large = first.offset.saturating_sub(before.offset) >= LARGE_READ;
        if !is_large || first.time.saturating_sub(before.time) >= REST_TIME {
            break;
        }
        first = before;
    }
    let is_answer = (word >> KIND_BITS).checked_sub(1).is_some_and(|given| {
        tail.saturating_sub(given) < ANSWER_BYTES || newest.time.saturating_sub(given_time) < ANSWER_TIME
    });
    Some(LastRead {
        len: tail.saturating_sub(first.offset),
        interaction: Interaction::from_bits(word),
        is_answer,
    })
}
