//! Lines that say who wrote them, which one they are and when, and whether they are whole.

use std::collections::HashMap;
use std::io::Write as _;

use hdrhistogram::Histogram;

/// The least that a line has: its head, its sum and its newline.
pub const LEAST: usize = HEAD + SUM + 1;
/// Bytes before the sum: `@rank sequence nanoseconds `.
const HEAD: usize = 38;
/// Hexadecimal digits of the sum.
const SUM: usize = 8;
/// A line without an end that is longer than this is given up as cut.
const LONGEST: usize = 1 << 20;
/// The longest time that is told from longer ones, in nanoseconds.
const SLOWEST: u64 = 600_000_000_000;

/// Makes `line` the `sequence`th of `rank`, written at `nanos` of the monotonic clock.
pub fn fill(line: &mut [u8], rank: u32, sequence: u64, nanos: u64) {
    let end = line.len() - 1;
    let (mut head, rest) = line.split_at_mut(HEAD);
    write!(head, "@{rank:05} {sequence:010} {nanos:019} ").unwrap();
    rest[SUM..].fill(b'x');
    line[end] = b'\n';
    let sum = sum(line);
    write!(&mut line[HEAD..HEAD + SUM], "{sum:08x}").unwrap();
}

/// FNV-1a over the line but for the sum itself.
fn sum(line: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    line[..HEAD].iter().chain(&line[HEAD + SUM..]).fold(0x811c_9dc5, step)
}

/// What a whole line says: rank, sequence, nanoseconds.
fn read(line: &[u8]) -> Option<(u32, u64, u64)> {
    let text = std::str::from_utf8(line.get(..HEAD + SUM)?).ok()?;
    let mut words = text.strip_prefix('@')?.split(' ');
    let said = (words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    (u32::from_str_radix(words.next()?, 16).ok()? == sum(line)).then_some(said)
}

/// What became of lines, by what arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Found {
    /// Lines that were written.
    pub written: u64,
    /// Lines that arrived whole, with the right tag.
    pub whole: u64,
    /// Of these, lines that were not the next of their rank.
    pub out_of_order: u64,
    /// Pieces between newlines in which more than one line begins.
    pub mixed: u64,
    /// Other pieces that are no line: a part of one, or one with a wrong tag.
    pub cut: u64,
}

impl Found {
    /// Whether each line arrived once, whole and in order, and nothing else.
    pub fn is_exact(&self) -> bool {
        *self == Found { written: self.written, whole: self.written, ..Found::default() }
    }

    /// Lines that did not arrive whole.
    pub fn missing(&self) -> u64 {
        self.written.saturating_sub(self.whole)
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Found) {
        self.written += other.written;
        self.whole += other.whole;
        self.out_of_order += other.out_of_order;
        self.mixed += other.mixed;
        self.cut += other.cut;
    }
}

/// Takes what arrives, in pieces of any size.
pub struct Checker {
    length: usize,
    /// What stands before a line of each rank, if anything does.
    tags: Vec<String>,
    next: HashMap<u32, u64>,
    begun: Vec<u8>,
    found: Found,
    latency: Histogram<u64>,
    clock: fn() -> u64,
}

impl Checker {
    /// For lines of `length` bytes, each behind its rank's of the `tags` if there are any; `clock` is the one that
    /// [`fill`] had.
    pub fn new(length: usize, tags: Vec<String>, clock: fn() -> u64) -> Checker {
        Checker {
            length,
            tags,
            next: HashMap::new(),
            begun: Vec::new(),
            found: Found::default(),
            latency: Histogram::new_with_bounds(1, SLOWEST, 3).unwrap(),
            clock,
        }
    }

    /// Looks at what has just come.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        let now = (self.clock)();
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (piece, rest) = bytes.split_at(end + 1);
            bytes = rest;
            if self.begun.is_empty() {
                self.piece(piece, now);
            } else {
                self.begun.extend_from_slice(piece);
                let begun = std::mem::take(&mut self.begun);
                self.piece(&begun, now);
            }
        }
        self.begun.extend_from_slice(bytes);
        if self.begun.len() > LONGEST {
            self.begun.clear();
            self.found.cut += 1;
        }
    }

    /// What was found when `written` lines were written, and how long whole ones took, in nanoseconds.
    pub fn end(mut self, written: u64) -> (Found, Histogram<u64>) {
        self.found.cut += u64::from(!self.begun.is_empty());
        self.found.written = written;
        (self.found, self.latency)
    }

    fn piece(&mut self, piece: &[u8], now: u64) {
        let at = piece.len().saturating_sub(self.length);
        let (tag, line) = piece.split_at(at);
        let said = if line.len() == self.length { read(line) } else { None };
        match said {
            Some((rank, sequence, written)) if self.tag(rank) == tag => {
                let next = self.next.entry(rank).or_insert(0);
                self.found.whole += 1;
                self.found.out_of_order += u64::from(*next != sequence);
                *next = sequence + 1;
                self.latency.saturating_record(now.saturating_sub(written));
            }
            _ if memchr::memchr_iter(b'@', piece).count() > 1 => self.found.mixed += 1,
            _ => self.found.cut += 1,
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

    fn check(tags: &[&str], arrived: &[u8], at_once: usize, written: u64) -> Found {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let mut checker = Checker::new(80, tags, || 3_000);
        arrived.chunks(at_once).for_each(|piece| checker.feed(piece));
        checker.end(written).0
    }

    #[test]
    fn lines_are_found_whole_in_pieces_of_any_size() {
        let arrived = [line(0, 0), line(1, 0), line(0, 1), line(1, 1)].concat();
        for at_once in [1, 79, 80, 81, 1000] {
            assert!(check(&[], &arrived, at_once, 4).is_exact(), "{at_once}");
        }
    }

    #[test]
    fn the_shortest_line_is_a_line() {
        let mut line = [0; LEAST];
        fill(&mut line, 99_999, 9_999_999_999, u64::MAX >> 1);
        assert_eq!(read(&line), Some((99_999, 9_999_999_999, u64::MAX >> 1)));
    }

    #[test]
    fn a_changed_byte_makes_a_line_cut_and_missing() {
        for at in 0..79 {
            let mut changed = line(3, 0);
            changed[at] ^= 1;
            let found = check(&[], &changed, 80, 1);
            assert_eq!((found.whole, found.cut + found.mixed, found.missing()), (0, 1, 1), "{at}");
        }
    }

    #[test]
    fn a_line_in_another_is_mixed() {
        let (outer, inner) = (line(0, 0), line(1, 0));
        let arrived = [&outer[..30], &inner[..], &outer[30..]].concat();
        let found = check(&[], &arrived, 80, 2);
        assert_eq!((found.whole, found.mixed, found.cut), (0, 1, 1));
    }

    #[test]
    fn a_line_that_is_lost_is_missing_and_the_next_is_out_of_order() {
        let arrived = [line(0, 0), line(0, 2)].concat();
        let found = check(&[], &arrived, 80, 3);
        assert_eq!((found.missing(), found.out_of_order, found.cut), (1, 1, 0));
    }

    #[test]
    fn the_end_that_did_not_come_is_cut() {
        let found = check(&[], &line(0, 0)[..50], 80, 1);
        assert_eq!((found.cut, found.missing()), (1, 1));
    }

    #[test]
    fn a_tag_must_be_that_of_the_lines_rank_and_stand_before_it() {
        let tags = ["[0] ", "[1] "];
        let right = [b"[1] ".to_vec(), line(1, 0)].concat();
        assert!(check(&tags, &right, 1000, 1).is_exact());
        let wrong = [b"[0] ".to_vec(), line(1, 0)].concat();
        let inside = [b"[1] ", &line(1, 0)[..40], b"[1] ", &line(1, 0)[40..]].concat();
        for broken in [line(1, 0), wrong, inside] {
            let found = check(&tags, &broken, 1000, 1);
            assert_eq!((found.whole, found.cut), (0, 1), "{:?}", String::from_utf8_lossy(&broken));
        }
    }

    #[test]
    fn latency_is_the_time_from_writing_to_arrival() {
        let mut checker = Checker::new(80, Vec::new(), || 3_000);
        checker.feed(&line(0, 0));
        let (_, latency) = checker.end(1);
        assert_eq!((latency.len(), latency.value_at_percentile(99.9)), (1, 2_000));
    }
}
