//! The stdin of the process that writes a stream, as far as the stream's readers must know it.

use super::Stream;
use crate::interaction::{self, Interaction};
use crate::sync::Ordering::Relaxed;

impl Stream {
    /// Sets who may answer the process. Call this before the first byte.
    pub fn set_interaction(&mut self, interaction: Interaction) {
        self.interaction = interaction::word(interaction, None);
        self.publish_interaction();
    }

    /// Notes that the process was given bytes of stdin after all bytes that were committed.
    pub fn note_input(&mut self) {
        self.interaction = interaction::given(self.interaction, self.writer.tail());
        self.publish_interaction();
    }

    /// Notes that the stdin of the process has ended.
    pub fn end_input(&mut self) {
        self.set_interaction(Interaction::None);
    }

    pub(super) fn publish_interaction(&self) {
        if !self.is_unallocated() {
            // Relaxed: readers order nothing by this word. A new ring is handed to them after it.
            self.writer.ring().control().published.interaction.store(self.interaction, Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::interaction::{LastRead, last_read};
    use crate::{Policy, StreamConfig};

    const SECOND: u64 = 1_000_000_000;

    fn stream(interaction: Interaction) -> Stream {
        let config = StreamConfig { capacity: 4096, policy: Policy::DropOldest };
        let mut stream = Stream::on_heap(config).unwrap();
        stream.set_interaction(interaction);
        stream
    }

    fn newest(stream: &Stream) -> Option<LastRead> {
        last_read(stream.writer.ring())
    }

    fn last(stream: &Stream) -> (u64, bool) {
        let LastRead { len, is_answer, .. } = newest(stream).unwrap();
        (len, is_answer)
    }

    #[test]
    fn reads_that_follow_each_other_at_once_count_as_one() {
        let mut stream = stream(Interaction::Piped);
        assert_eq!(newest(&stream), None);
        stream.push(&[0; 100], SECOND);
        stream.push(&[0; 20], SECOND + 1000);
        assert_eq!(last(&stream), (120, false));
        stream.push(&[0; 7], 2 * SECOND);
        assert_eq!(last(&stream), (7, false));
    }

    #[test]
    fn output_that_follows_stdin_is_an_answer_until_a_second_passes_between_two_reads() {
        let mut stream = stream(Interaction::Piped);
        stream.push(b"before", SECOND);
        stream.note_input();
        assert_eq!(last(&stream), (6, true), "stdin after the last output");
        for piece in 0..5 {
            stream.push(b"answer", 5 * SECOND + piece * SECOND / 2);
            assert_eq!(last(&stream), (6, piece < 2), "piece {piece}");
        }
        stream.note_input();
        assert_eq!(last(&stream), (6, true));
    }

    #[test]
    fn the_next_generation_knows_what_the_last_one_knew_until_stdin_ends() {
        let mut stream = stream(Interaction::Typed);
        stream.push(b"prompt", SECOND);
        stream.note_input();
        stream.reconfigure(StreamConfig { capacity: 8192, policy: Policy::DropOldest }).unwrap();
        stream.push(b"next", 5 * SECOND);
        let last = newest(&stream).unwrap();
        assert_eq!(last, LastRead { len: 4, interaction: Interaction::Typed, is_answer: true });
        stream.end_input();
        assert_eq!(newest(&stream).unwrap().interaction, Interaction::None);
    }
}
