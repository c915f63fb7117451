//! The one place that reads bytes while somebody may be writing them.
//!
//! A plain copy would be a data race, and a reference to such bytes is never sound. Atomic loads of
//! whole words, and of single bytes at the ends, are neither; what they give may be torn, and is
//! thrown away then (`Reader::is_still_here`).

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// Copies `into.len()` bytes from `from`, which may change meanwhile.
///
/// # Safety
/// `into.len()` bytes from `from` on must be mapped and readable for the duration of the call.
pub(crate) unsafe fn copy_racy(from: *const u8, into: &mut [u8]) {
    let (words_at, len) = (from.align_offset(align_of::<u64>()).min(into.len()), into.len());
    let words = len.saturating_sub(words_at) / size_of::<u64>();
    let words_end = words_at.saturating_add(words.saturating_mul(size_of::<u64>()));
    for (i, to) in into.iter_mut().enumerate().take(words_at) {
        // SAFETY: `i` is below `len`; an AtomicU8 has no alignment. (A cast, not `from_ptr`: the map is
        // read-only.)
        *to = unsafe { &*from.add(i).cast::<AtomicU8>() }.load(Relaxed);
    }
    if let Some(middle) = into.get_mut(words_at..words_end) {
        for (i, to) in middle.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // SAFETY: word `i` ends at or below `words_end`, so within the range, and begins at a multiple of
            // its alignment from the aligned `words_at` on.
            let word = unsafe { &*from.add(words_at).cast::<AtomicU64>().add(i) };
            *to = word.load(Relaxed).to_ne_bytes();
        }
    }
    for (i, to) in into.iter_mut().enumerate().skip(words_end) {
        // SAFETY: as for the first bytes.
        *to = unsafe { &*from.add(i).cast::<AtomicU8>() }.load(Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alignment_and_length_is_copied_whole() {
        let bytes: Vec<u8> = (0..=255).collect();
        for at in 0..16 {
            for len in 0..64 {
                let mut into = vec![0; len];
                // SAFETY: at + len is below 256.
                unsafe { copy_racy(bytes.as_ptr().add(at), &mut into) };
                assert_eq!(into, &bytes[at..at + len]);
            }
        }
    }
}
