//! Self-describing bytes: each byte of each source can be checked from its offset alone.

use crate::rng::mix;

/// Returns the eight bytes of `source` that begin at offset `8 * word`.
fn word(source: u64, word: u64) -> [u8; 8] {
    mix(word.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mix(source + 1)).to_le_bytes()
}

/// Calls `each` with the position in a buffer of `len` bytes and the expected bytes there, for the
/// bytes of `source` from `offset` on.
fn for_each_run(source: u64, offset: u64, len: usize, mut each: impl FnMut(usize, &[u8]) -> bool) -> bool {
    let mut at = 0;
    while at < len {
        let position = offset + at as u64;
        let bytes = word(source, position / 8);
        let start = (position % 8) as usize;
        let n = (8 - start).min(len - at);
        if !each(at, &bytes[start..start + n]) {
            return false;
        }
        at += n;
    }
    true
}

/// Fills `buffer` with the bytes of `source` from `offset` on.
pub fn fill(source: u64, offset: u64, buffer: &mut [u8]) {
    for_each_run(source, offset, buffer.len(), |at, bytes| {
        buffer[at..at + bytes.len()].copy_from_slice(bytes);
        true
    });
}

/// Returns whether `buffer` contains the bytes of `source` from `offset` on.
pub fn are_of(source: u64, offset: u64, buffer: &[u8]) -> bool {
    for_each_run(source, offset, buffer.len(), |at, bytes| buffer[at..at + bytes.len()] == *bytes)
}
