//! Text that a rank writes and a case expects: each byte follows from the rank and its position.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The fewest characters of a line, with its newline: enough for each rank and number.
pub const MIN_LINE: usize = 24;

/// A generator of pseudo-random numbers (an LCG with Knuth's constants).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

/// Returns a line of a rank: its header `<rank.channel.number>`, letters, and a newline, `length` bytes in all.
pub fn line(rank: u32, channel: &str, number: u64, length: usize) -> Vec<u8> {
    let mut line = format!("<{rank}.{channel}.{number}>").into_bytes();
    let mut numbers = Numbers(u64::from(rank) << 32 | number);
    while line.len() + 1 < length.max(MIN_LINE) {
        line.push(b'a' + (numbers.next() % 26) as u8);
    }
    line.push(b'\n');
    line
}

/// Returns the lines of a rank, one after the other.
pub fn lines(rank: u32, channel: &str, count: u64, length: usize) -> Vec<u8> {
    (0..count).flat_map(|number| line(rank, channel, number, length)).collect()
}

/// Returns bytes of all values that follow from a seed.
pub fn noise(seed: u64, count: usize) -> Vec<u8> {
    let mut numbers = Numbers(seed);
    (0..count).map(|_| numbers.next() as u8).collect()
}

/// Returns a sum of bytes (FNV-1a, 64 bits).
pub fn sum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Compares output with the lines of ranks 0 to `ranks`: each whole, in the order of its rank, none missing.
pub fn expect_lines(
    output: &[u8],
    ranks: u32,
    channel: &str,
    count: u64,
    length: usize,
) -> Result<(), String> {
    let mut next = BTreeMap::new();
    for (at, found) in output.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let Some((rank, number)) = header(found, channel) else {
            return Err(format!("line {} is not one of a rank: {}", at + 1, show(found)));
        };
        let expected = next.entry(rank).or_insert(0);
        if number != *expected {
            return Err(format!(
                "line {} is number {number} of rank {rank}, after {expected} of its lines",
                at + 1
            ));
        }
        if found != line(rank, channel, number, length) {
            return Err(format!(
                "line {} (number {number} of rank {rank}) is changed: {}",
                at + 1,
                show(found)
            ));
        }
        *expected += 1;
    }
    for rank in 0..ranks {
        let found = next.remove(&rank).unwrap_or(0);
        if found != count {
            return Err(format!("{found} of {count} lines of rank {rank}"));
        }
    }
    next.keys().next().map_or(Ok(()), |rank| Err(format!("a line of rank {rank}, which was not started")))
}

/// Returns the rank and the number in the header of a line.
fn header(line: &[u8], channel: &str) -> Option<(u32, u64)> {
    let text = line.strip_prefix(b"<")?;
    let end = text.iter().position(|byte| *byte == b'>')?;
    let mut fields = std::str::from_utf8(text.get(..end)?).ok()?.split('.');
    let (rank, of, number) = (fields.next()?, fields.next()?, fields.next()?);
    if of != channel { None } else { Some((rank.parse().ok()?, number.parse().ok()?)) }
}

/// Compares bytes, and tells where they differ first.
pub fn expect_bytes(found: &[u8], expected: &[u8]) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let at = found.iter().zip(expected).take_while(|(found, expected)| found == expected).count();
    let rest = |bytes: &[u8]| show(bytes.get(at..).unwrap_or_default());
    Err(format!(
        "{} bytes in place of {}; from byte {at} on: {} in place of {}",
        found.len(),
        expected.len(),
        rest(found),
        rest(expected),
    ))
}

/// Compares output with texts that may come in any order, each whole and once.
pub fn expect_texts(output: &[u8], texts: impl IntoIterator<Item = Vec<u8>>) -> Result<(), String> {
    let mut rest = output.to_vec();
    for text in texts {
        let Some(at) = rest.windows(text.len()).position(|window| window == text) else {
            return Err(format!("{} is missing in {}", show(&text), show(output)));
        };
        rest.drain(at..at + text.len());
    }
    if rest.is_empty() { Ok(()) } else { Err(format!("{} besides what ranks wrote", show(&rest))) }
}

/// Returns the beginning of bytes as text.
pub fn show(bytes: &[u8]) -> String {
    const SHOWN: usize = 300;
    let mut text = format!("\"{}", bytes.get(..SHOWN).unwrap_or(bytes).escape_ascii());
    text.push('"');
    if bytes.len() > SHOWN {
        let _ = write!(text, "... ({} bytes)", bytes.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_ranks() -> Vec<Vec<u8>> {
        (0..4).map(|at| line(at % 2, "out", u64::from(at / 2), 40)).collect()
    }

    fn judge(lines: &[Vec<u8>]) -> Result<(), String> {
        expect_lines(&lines.concat(), 2, "out", 2, 40)
    }

    #[test]
    fn whole_lines_in_the_order_of_their_ranks_are_accepted() {
        assert_eq!(judge(&two_ranks()), Ok(()));
    }

    #[test]
    fn a_missing_doubled_cut_swapped_changed_or_foreign_line_is_found() {
        let change = |change: fn(&mut Vec<Vec<u8>>)| {
            let mut lines = two_ranks();
            change(&mut lines);
            judge(&lines).unwrap_err()
        };
        assert_eq!(change(|lines| drop(lines.pop())), "1 of 2 lines of rank 1");
        assert!(change(|lines| lines.push(lines[3].clone())).contains("number 1 of rank 1, after 2"));
        assert!(change(|lines| lines[1].truncate(30)).contains("is changed"));
        assert!(change(|lines| lines.swap(0, 2)).contains("number 1 of rank 0, after 0"));
        assert!(change(|lines| lines[1][30] ^= 1).contains("line 2 (number 0 of rank 1) is changed"));
        assert!(change(|lines| lines.insert(1, b"hello\n".to_vec())).contains("line 2 is not one of a rank"));
        assert!(
            change(|lines| lines.extend((0..2).map(|at| line(2, "out", at, 40)))).contains("not started")
        );
    }

    #[test]
    fn the_first_byte_that_differs_is_named() {
        assert_eq!(
            expect_bytes(b"abX", b"abc").unwrap_err(),
            "3 bytes in place of 3; from byte 2 on: \"X\" in place of \"c\""
        );
        assert!(expect_bytes(b"ab", b"abc").unwrap_err().starts_with("2 bytes in place of 3; from byte 2"));
    }

    #[test]
    fn a_text_that_is_cut_or_comes_twice_is_found() {
        let texts = || [b"one".to_vec(), b"two".to_vec()];
        assert_eq!(expect_texts(b"twoone", texts()), Ok(()));
        assert!(expect_texts(b"otwone", texts()).is_err());
        assert!(expect_texts(b"onetwotwo", texts()).is_err());
    }
}
