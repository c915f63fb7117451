//! Parts that fuzz targets share.
//!
//! Targets are instrumented, so that a loop over bytes in one takes most of its time. They compare slices of
//! [`pattern`] instead.

use std::sync::LazyLock;

/// The longest piece of the pattern, in bytes: the largest ring of a target.
pub const MAX_PATTERN: usize = 64 * 4096;

/// Number of bytes after which the pattern repeats. A prime number, so that no ring's capacity is a multiple of it.
const PERIOD: u8 = 251;

/// Returns the `length` bytes that stand from `position` on in a stream whose bytes tell their positions.
///
/// # Panics
/// If `length` exceeds [`MAX_PATTERN`].
pub fn pattern(position: u64, length: usize) -> &'static [u8] {
    static BYTES: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..PERIOD).cycle().take(usize::from(PERIOD) + MAX_PATTERN).collect());
    let first = (position % u64::from(PERIOD)) as usize;
    &BYTES[first..first + length]
}
