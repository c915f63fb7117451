//! The arithmetic of positions and offsets in a stream.

/// A number of bytes since a stream began: a position in its rings, or an offset in its source.
///
/// A stream has fewer than 2^64 bytes, and both methods are for numbers that belong together. Another use is a
/// defect, which panics with debug assertions; without, the nearest number is returned.
///
/// ```
/// use iof_shm_ring::Offset;
/// let cursor = 4096_u64;
/// assert_eq!(cursor.after(10).since(cursor), 10);
/// ```
pub trait Offset: Copy {
    /// Returns the offset of what follows the next `bytes` bytes.
    #[must_use]
    fn after(self, bytes: u64) -> Self;

    /// Returns the number of bytes from `earlier`, which is not after this one, up to this one.
    #[must_use]
    fn since(self, earlier: Self) -> u64;
}

impl Offset for u64 {
    #[inline]
    fn after(self, bytes: u64) -> u64 {
        debug_assert!(self.checked_add(bytes).is_some(), "{bytes} bytes after offset {self}");
        self.saturating_add(bytes)
    }

    #[inline]
    fn since(self, earlier: u64) -> u64 {
        debug_assert!(earlier <= self, "offset {earlier} is after {self}");
        self.saturating_sub(earlier)
    }
}
