//! Which bytes of a stream are passed on now: whole lines, and a part of one only for a reason. Pure.

use std::time::{Duration, Instant};

use memchr::{memchr, memrchr};

/// When a part of a line is passed on: prompts and progress bars are to be seen, and nothing may wait for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// As soon as it has so many bytes.
    pub max_line: usize,
    /// As soon as it has waited for so long; ten times that if it has 4,096 bytes or more.
    pub max_time: Duration,
}

impl Default for Patience {
    /// 64 KiB, a tenth of a second.
    fn default() -> Patience {
        Patience { max_line: 64 << 10, max_time: Duration::from_millis(100) }
    }
}

/// What a pipe takes whole or not at all (`PIPE_BUF`, pipe(7)).
const PIPE_BUF: usize = 4096;
/// How many times as long a part of a line may wait that is longer than that.
const LONG_WAIT: u32 = 10;

impl Patience {
    /// How long a part of a line of `part` bytes waits for more: a prompt is short and comes whole, but a rank that
    /// writes more at once may be in the middle of it, and wait for its turn on a busy machine.
    fn time_for(&self, part: usize) -> Duration {
        if part < PIPE_BUF { self.max_time } else { self.max_time.saturating_mul(LONG_WAIT) }
    }
}

/// What is to be done with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// So many are passed on.
    pub pass: usize,
    /// And of the others, so many begin lines of which the end is not there.
    pub part: usize,
}

/// Decides about `bytes` behind `before` bytes of the same line that wait already. At most about `most` are passed on
/// at once, but a line is not cut for that.
pub(crate) fn cut(bytes: &[u8], before: usize, most: usize, max_line: usize) -> Cut {
    let window = bytes.get(..most).unwrap_or(bytes);
    let behind = |at: usize| at.saturating_add(1);
    let whole = memrchr(b'\n', window).map(behind).or_else(|| {
        let rest = bytes.get(window.len()..)?;
        memchr(b'\n', rest).map(|at| behind(at).saturating_add(window.len()))
    });
    match whole {
        Some(pass) if window.len() < bytes.len() => Cut { pass, part: 0 },
        Some(pass) => {
            let part = bytes.len().saturating_sub(pass);
            if part >= max_line { Cut { pass: bytes.len(), part: 0 } } else { Cut { pass, part } }
        }
        None if bytes.len().saturating_add(before) >= max_line => Cut { pass: bytes.len(), part: 0 },
        None => Cut { pass: 0, part: bytes.len() },
    }
}

/// The part of a stream's line that is not passed on yet: it waits in the ring, or here if it can't stay there.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Taken out of the ring.
    pub bytes: Vec<u8>,
    /// How many bytes the source had produced before them.
    pub offset: u64,
    /// When the first of them was read.
    pub time: Option<u64>,
    /// Since when a part of a line waits, here or in the ring.
    pub since: Option<Instant>,
    /// So many bytes of it.
    pub part: usize,
}

impl Held {
    /// Notes that a part of a line waits, and says until when it does.
    pub fn wait(&mut self, patience: &Patience) -> Option<Instant> {
        let time = patience.time_for(self.part);
        self.since.get_or_insert_with(Instant::now).checked_add(time)
    }

    /// Whether it has waited for long enough.
    pub fn is_due(&self, patience: &Patience) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= patience.time_for(self.part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8], before: usize) -> (usize, usize) {
        let Cut { pass, part } = cut(bytes, before, 16, 32);
        (pass, part)
    }

    #[test]
    fn whole_lines_are_passed_on_and_parts_of_lines_wait_up_to_the_longest() {
        assert_eq!(of(b"one\ntwo\n", 0), (8, 0));
        assert_eq!(of(b"one\ntw", 0), (4, 2));
        assert_eq!(of(b"one", 0), (0, 3));
        assert_eq!(of(b"one", 28), (0, 3));
        assert_eq!(of(b"one", 29), (3, 0), "too long with what came before");
        assert_eq!(of(b"one\n", 29), (4, 0));
        assert_eq!(of(b"one\ntw", 29), (4, 2), "the long line is over");
        assert_eq!(of(&[b'x'; 31], 0), (0, 31));
        assert_eq!(of(&[b'x'; 32], 0), (32, 0));
    }

    #[test]
    fn what_a_rank_may_be_in_the_middle_of_writing_waits_longer_than_a_prompt() {
        let patience = Patience::default();
        let long_ago = Instant::now().checked_sub(patience.max_time * 2);
        let is_due = |part| Held { since: long_ago, part, ..Held::default() }.is_due(&patience);
        assert!(is_due(1) && is_due(PIPE_BUF - 1));
        assert!(!is_due(PIPE_BUF) && !is_due(60_000));
    }

    #[test]
    fn what_is_passed_on_at_once_is_about_as_much_as_was_asked_for() {
        let lines = b"a line\n".repeat(10);
        assert_eq!(of(&lines, 0), (14, 0), "more comes with the next look");
        let long = [&[b'x'; 20][..], b"\nrest"].concat();
        assert_eq!(of(&long, 0), (21, 0), "no line is cut for it");
    }
}
