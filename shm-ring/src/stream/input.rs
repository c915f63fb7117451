//! The stdin of the process that writes a stream, as far as the stream's readers must know it.

use super::Stream;
use crate::ring::interaction::{self, InputState, Interaction};
use crate::sync::Ordering::Relaxed;

impl Stream {
    /// Sets who may answer the process. Call this before the first byte.
    pub fn set_interaction(&mut self, interaction: Interaction) {
        self.interaction = interaction::word(interaction, None);
        self.publish_interaction();
    }

    /// Notes that the process was given bytes of stdin at `time` (nanoseconds since 1970), after all
    /// bytes that were committed.
    pub fn note_input(&mut self, time: u64) {
        self.given_time = time;
        self.interaction = interaction::given(self.interaction, self.writer.tail());
        self.publish_interaction();
    }

    /// Notes that the stdin of the process has ended.
    pub fn end_input(&mut self) {
        self.set_interaction(Interaction::None);
    }

    /// Notes what the reader of another ring knew of the stdin when it had read the bytes that are copied
    /// from there next, at `time`.
    pub fn copy_input(&mut self, InputState { interaction, is_answer }: InputState, time: u64) {
        self.given_time = time;
        self.interaction = interaction::word(interaction, is_answer.then(|| self.writer.tail()));
        self.publish_interaction();
    }

    pub(super) fn publish_interaction(&self) {
        if !self.is_unallocated() {
            // Relaxed: `interaction::last_read` loads these and orders nothing by them. A new ring is
            // handed to readers after it.
            let published = &self.writer.ring().control().published;
            published.interaction.store(self.interaction, Relaxed);
            published.given_time.store(self.given_time, Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::ring::interaction::{LastRead, last_read};
    use crate::{Policy, StreamConfig};

    const SECOND: u64 = 1_000_000_000;

    fn stream(interaction: Interaction) -> Stream {
        let config = StreamConfig { capacity: 256 << 10, policy: Policy::DropOldest };
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
    fn a_small_read_that_follows_a_large_one_soon_is_the_rest_of_its_write() {
        let mut stream = stream(Interaction::None);
        stream.push(&[0; 16 << 10], SECOND);
        stream.push(&[0; 20 << 10], SECOND + SECOND / 200);
        stream.push(&[0; 64], SECOND + SECOND / 110);
        assert_eq!(last(&stream), ((36 << 10) + 64, false));
        stream.push(&[0; 64], SECOND + SECOND / 100);
        assert_eq!(last(&stream), (64, false), "a read of its own after a small one");
        stream.push(&[0; 16 << 10], 3 * SECOND);
        stream.push(&[0; 64], 3 * SECOND + SECOND / 50);
        assert_eq!(last(&stream), (64, false), "too late");
    }

    #[test]
    fn output_soon_after_stdin_is_an_answer_by_time_or_by_size() {
        let mut stream = stream(Interaction::Piped);
        stream.push(b"before", SECOND);
        assert_eq!(last(&stream), (6, false));
        stream.note_input(2 * SECOND);
        assert_eq!(last(&stream), (6, true), "stdin after the last output");
        stream.push(&[0; 60 << 10], 30 * SECOND);
        assert_eq!(last(&stream), (60 << 10, true), "little, but late");
        stream.push(&[0; 10 << 10], 31 * SECOND);
        assert_eq!(last(&stream), (10 << 10, false), "much and late");
        stream.note_input(32 * SECOND);
        (0..10).for_each(|piece| _ = stream.push(&[0; 10 << 10], (32 + piece) * SECOND));
        assert_eq!(last(&stream), (10 << 10, true), "much, but soon");
        stream.push(&[0; 10 << 10], 42 * SECOND);
        assert_eq!(last(&stream), (10 << 10, false));
    }

    #[test]
    fn the_next_generation_knows_what_the_last_one_knew_until_stdin_ends() {
        let mut stream = stream(Interaction::Typed);
        stream.push(b"prompt", SECOND);
        stream.note_input(2 * SECOND);
        stream.reconfigure(StreamConfig { capacity: 8192, policy: Policy::DropOldest }).unwrap();
        stream.push(b"next", 5 * SECOND);
        let last = newest(&stream).unwrap();
        assert_eq!(last, LastRead { len: 4, interaction: Interaction::Typed, is_answer: true });
        stream.end_input();
        assert_eq!(newest(&stream).unwrap().interaction, Interaction::None);
    }
}
