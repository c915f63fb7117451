//! The one place that reads bytes while another party may be writing them.
//!
//! A plain copy would be a data race, and a reference to such bytes is never sound. Atomic loads of
//! whole words, and of single bytes at the ends, are sound. Their result may be torn; the caller
//! detects that and discards it (`Reader::is_cursor_unclaimed`).

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// Copies `buffer.len()` bytes from `source`, which may change during the copy.
///
/// # Safety
/// `buffer.len()` bytes from `source` on must be mapped and readable for the duration of the call.
pub(crate) unsafe fn copy_racy(source: *const u8, buffer: &mut [u8]) {
    let (words_start, len) = (source.align_offset(align_of::<u64>()).min(buffer.len()), buffer.len());
    let words = len.saturating_sub(words_start) / size_of::<u64>();
    let words_end = words_start.saturating_add(words.saturating_mul(size_of::<u64>()));
    for (i, byte) in buffer.iter_mut().enumerate().take(words_start) {
        // SAFETY: `i` is below `len`, and an AtomicU8 has an alignment of 1. (A cast, not
        // `from_ptr`: the map is read-only.)
        *byte = unsafe { &*source.add(i).cast::<AtomicU8>() }.load(Relaxed);
    }
    if let Some(middle) = buffer.get_mut(words_start..words_end) {
        for (i, chunk) in middle.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // SAFETY: word `i` ends at or below `words_end`, so it lies within the range. It is
            // aligned, because `words_start` is.
            let word = unsafe { &*source.add(words_start).cast::<AtomicU64>().add(i) };
            *chunk = word.load(Relaxed).to_ne_bytes();
        }
    }
    for (i, byte) in buffer.iter_mut().enumerate().skip(words_end) {
        // SAFETY: as for the first bytes.
        *byte = unsafe { &*source.add(i).cast::<AtomicU8>() }.load(Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_alignment_and_length_are_copied_whole() {
        let bytes: Vec<u8> = (0..=255).collect();
        for start in 0..16 {
            for len in 0..64 {
                let mut buffer = vec![0; len];
                // SAFETY: `start + len` is below 256.
                unsafe { copy_racy(bytes.as_ptr().add(start), &mut buffer) };
                assert_eq!(buffer, &bytes[start..start + len]);
            }
        }
    }
}
