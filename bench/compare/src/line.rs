//! Lines that carry their rank, sequence number, time and checksum, and a checker for them.

use std::collections::HashMap;
use std::io::Write as _;

use hdrhistogram::Histogram;

/// The length of the shortest line: header, checksum and newline.
pub const MIN_LENGTH: usize = HEAD + SUM + 1;
/// The length of the header before the checksum: `@rank sequence nanoseconds `.
const HEAD: usize = 38;
/// The number of hexadecimal digits of the checksum.
const SUM: usize = 8;
/// The length beyond which an unfinished line counts as cut.
const MAX_UNFINISHED: usize = 1 << 20;
/// The largest latency that the histogram distinguishes, in nanoseconds.
const MAX_LATENCY: u64 = 600_000_000_000;

/// Fills `line` as line number `sequence` of `rank`, written at `nanos` of the monotonic clock.
pub fn fill(line: &mut [u8], rank: u32, sequence: u64, nanos: u64) {
    let end = line.len() - 1;
    let (mut head, rest) = line.split_at_mut(HEAD);
    write!(head, "@{rank:05} {sequence:010} {nanos:019} ").unwrap();
    rest[SUM..].fill(b'x');
    line[end] = b'\n';
    let sum = sum(line);
    write!(&mut line[HEAD..HEAD + SUM], "{sum:08x}").unwrap();
}

/// Returns the FNV-1a hash of a line without its checksum.
fn sum(line: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    line[..HEAD].iter().chain(&line[HEAD + SUM..]).fold(0x811c_9dc5, step)
}

/// Parses an intact line: rank, sequence number and nanoseconds.
fn parse(line: &[u8]) -> Option<(u32, u64, u64)> {
    let text = std::str::from_utf8(line.get(..HEAD + SUM)?).ok()?;
    let mut words = text.strip_prefix('@')?.split(' ');
    let fields = (words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    (u32::from_str_radix(words.next()?, 16).ok()? == sum(line)).then_some(fields)
}

/// The number of lines that were written, and what arrived of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LineCounts {
    /// Lines that were written.
    pub written: u64,
    /// Lines that arrived intact, with the right tag.
    pub whole: u64,
    /// Intact lines that were not the next one of their rank.
    pub out_of_order: u64,
    /// Pieces between newlines in which more than one line starts.
    pub mixed: u64,
    /// Other pieces that are not an intact line: a part of one, or one with a wrong tag.
    pub cut: u64,
}

impl LineCounts {
    /// Returns whether each line arrived exactly once, intact and in order, and nothing else.
    pub fn is_exact(&self) -> bool {
        *self == LineCounts { written: self.written, whole: self.written, ..LineCounts::default() }
    }

    /// Returns the number of lines that did not arrive intact.
    pub fn missing(&self) -> u64 {
        self.written.saturating_sub(self.whole)
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &LineCounts) {
        self.written += other.written;
        self.whole += other.whole;
        self.out_of_order += other.out_of_order;
        self.mixed += other.mixed;
        self.cut += other.cut;
    }
}

/// Checks the lines of a byte stream that arrives in pieces of any size.
pub struct LineChecker {
    length: usize,
    /// The tag before the lines of each rank. Empty: lines are not tagged.
    tags: Vec<String>,
    /// The next sequence number of each rank.
    next: HashMap<u32, u64>,
    /// The start of an unfinished line.
    unfinished: Vec<u8>,
    counts: LineCounts,
    latency: Histogram<u64>,
    clock: fn() -> u64,
}

impl LineChecker {
    /// Creates a checker for lines of `length` bytes. If `tags` is not empty, each line follows the
    /// tag of its rank. `clock` must be the clock whose time was passed to [`fill`].
    pub fn new(length: usize, tags: Vec<String>, clock: fn() -> u64) -> LineChecker {
        LineChecker {
            length,
            tags,
            next: HashMap::new(),
            unfinished: Vec::new(),
            counts: LineCounts::default(),
            latency: Histogram::new_with_bounds(1, MAX_LATENCY, 3).unwrap(),
            clock,
        }
    }

    /// Checks bytes that have just arrived.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        let now = (self.clock)();
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (piece, rest) = bytes.split_at(end + 1);
            bytes = rest;
            if self.unfinished.is_empty() {
                self.piece(piece, now);
            } else {
                self.unfinished.extend_from_slice(piece);
                let unfinished = std::mem::take(&mut self.unfinished);
                self.piece(&unfinished, now);
            }
        }
        self.unfinished.extend_from_slice(bytes);
        if self.unfinished.len() > MAX_UNFINISHED {
            self.unfinished.clear();
            self.counts.cut += 1;
        }
    }

    /// Ends the check of a stream to which `written` lines were written. Returns the counts, and
    /// the latencies of the intact lines in nanoseconds.
    pub fn end(mut self, written: u64) -> (LineCounts, Histogram<u64>) {
        self.counts.cut += u64::from(!self.unfinished.is_empty());
        self.counts.written = written;
        (self.counts, self.latency)
    }

    fn piece(&mut self, piece: &[u8], now: u64) {
        let start = piece.len().saturating_sub(self.length);
        let (tag, line) = piece.split_at(start);
        let header = if line.len() == self.length { parse(line) } else { None };
        match header {
            Some((rank, sequence, written)) if self.tag(rank) == tag => {
                let next = self.next.entry(rank).or_insert(0);
                self.counts.whole += 1;
                self.counts.out_of_order += u64::from(*next != sequence);
                *next = sequence + 1;
                self.latency.saturating_record(now.saturating_sub(written));
            }
            _ if memchr::memchr_iter(b'@', piece).count() > 1 => self.counts.mixed += 1,
            _ => self.counts.cut += 1,
        }
    }

    fn tag(&self, rank: u32) -> &[u8] {
        self.tags.get(rank as usize).map_or(&[], |tag| tag.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(rank: u32, sequence: u64) -> Vec<u8> {
        let mut line = vec![0; 80];
        fill(&mut line, rank, sequence, 1_000);
        line
    }

    fn check(tags: &[&str], arrived: &[u8], chunk: usize, written: u64) -> LineCounts {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let mut checker = LineChecker::new(80, tags, || 3_000);
        arrived.chunks(chunk).for_each(|piece| checker.feed(piece));
        checker.end(written).0
    }

    #[test]
    fn intact_lines_are_recognized_in_pieces_of_any_size() {
        let arrived = [line(0, 0), line(1, 0), line(0, 1), line(1, 1)].concat();
        for chunk in [1, 79, 80, 81, 1000] {
            assert!(check(&[], &arrived, chunk, 4).is_exact(), "{chunk}");
        }
    }

    #[test]
    fn a_line_of_the_smallest_length_can_be_parsed() {
        let mut line = [0; MIN_LENGTH];
        fill(&mut line, 99_999, 9_999_999_999, u64::MAX >> 1);
        assert_eq!(parse(&line), Some((99_999, 9_999_999_999, u64::MAX >> 1)));
    }

    #[test]
    fn a_line_with_a_changed_byte_counts_as_cut_and_missing() {
        for index in 0..79 {
            let mut changed = line(3, 0);
            changed[index] ^= 1;
            let counts = check(&[], &changed, 80, 1);
            assert_eq!((counts.whole, counts.cut + counts.mixed, counts.missing()), (0, 1, 1), "{index}");
        }
    }

    #[test]
    fn a_line_inside_another_counts_as_mixed() {
        let (outer, inner) = (line(0, 0), line(1, 0));
        let arrived = [&outer[..30], &inner[..], &outer[30..]].concat();
        let counts = check(&[], &arrived, 80, 2);
        assert_eq!((counts.whole, counts.mixed, counts.cut), (0, 1, 1));
    }

    #[test]
    fn a_lost_line_counts_as_missing_and_the_next_one_as_out_of_order() {
        let arrived = [line(0, 0), line(0, 2)].concat();
        let counts = check(&[], &arrived, 80, 3);
        assert_eq!((counts.missing(), counts.out_of_order, counts.cut), (1, 1, 0));
    }

    #[test]
    fn a_line_without_its_end_counts_as_cut() {
        let counts = check(&[], &line(0, 0)[..50], 80, 1);
        assert_eq!((counts.cut, counts.missing()), (1, 1));
    }

    #[test]
    fn a_line_must_follow_the_tag_of_its_rank() {
        let tags = ["[0] ", "[1] "];
        let right = [b"[1] ".to_vec(), line(1, 0)].concat();
        assert!(check(&tags, &right, 1000, 1).is_exact());
        let wrong = [b"[0] ".to_vec(), line(1, 0)].concat();
        let inside = [b"[1] ", &line(1, 0)[..40], b"[1] ", &line(1, 0)[40..]].concat();
        for broken in [line(1, 0), wrong, inside] {
            let counts = check(&tags, &broken, 1000, 1);
            assert_eq!((counts.whole, counts.cut), (0, 1), "{:?}", String::from_utf8_lossy(&broken));
        }
    }

    #[test]
    fn latency_is_the_time_from_write_to_arrival() {
        let mut checker = LineChecker::new(80, Vec::new(), || 3_000);
        checker.feed(&line(0, 0));
        let (_, latency) = checker.end(1);
        assert_eq!((latency.len(), latency.value_at_percentile(99.9)), (1, 2_000));
    }
}
