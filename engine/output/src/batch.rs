//! The bytes of one write call: bytes created here, between bytes that lie in rings.

use std::io::IoSlice;

/// The least length, in bytes, of a piece that is written without a copy. Copying a shorter piece
/// costs less than another slice of writev(2), as measured in docs/src/notebook/goals.md.
pub const MIN_LENT: usize = 4096;

/// The approximate limit of bytes in one write if they are copied, so that no stream waits long for
/// its turn.
pub(crate) const MAX_COPIED: usize = 64 << 10;

/// The bytes of one write, in order. Some are owned by the batch, others are borrowed for `'a`.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    own: Vec<u8>,
    lent: Vec<Lent<'a>>,
    length: usize,
}

#[derive(Debug)]
struct Lent<'a> {
    /// The length of the batch's own bytes that precede it.
    position: usize,
    bytes: &'a [u8],
}

impl<'a> Batch<'a> {
    /// Creates an empty batch that uses the memory of `buffer`.
    pub fn new(mut buffer: Vec<u8>) -> Batch<'a> {
        buffer.clear();
        Batch { own: buffer, lent: Vec::new(), length: 0 }
    }

    /// Returns the memory of the batch for reuse.
    pub fn into_buffer(self) -> Vec<u8> {
        self.own
    }

    /// Appends a copy of `bytes`.
    #[inline]
    pub fn copy(&mut self, bytes: &[u8]) {
        self.own.extend_from_slice(bytes);
        self.length = self.length.saturating_add(bytes.len());
    }

    /// Appends what `make` appends to a vector.
    pub fn make(&mut self, make: impl FnOnce(&mut Vec<u8>)) {
        let before = self.own.len();
        make(&mut self.own);
        self.length = self.length.saturating_add(self.own.len().saturating_sub(before));
    }

    /// Appends `bytes`, without a copy if they have [`MIN_LENT`] bytes or more.
    #[inline]
    pub fn add(&mut self, bytes: &'a [u8]) {
        if bytes.len() < MIN_LENT { self.copy(bytes) } else { self.lend(bytes) }
    }

    /// Appends `bytes` without a copy.
    pub fn lend(&mut self, bytes: &'a [u8]) {
        self.lent.push(Lent { position: self.own.len(), bytes });
        self.length = self.length.saturating_add(bytes.len());
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the batch has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns an upper bound of the number of slices that [`Batch::slices`] returns.
    pub fn parts(&self) -> usize {
        self.lent.len().saturating_mul(2).saturating_add(1)
    }

    /// Returns all bytes in order, without copying them.
    pub fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity(self.parts());
        let mut start = 0;
        for Lent { position, bytes } in &self.lent {
            slices.extend(self.own.get(start..*position).filter(|own| !own.is_empty()).map(IoSlice::new));
            slices.push(IoSlice::new(bytes));
            start = *position;
        }
        slices.extend(self.own.get(start..).filter(|own| !own.is_empty()).map(IoSlice::new));
        slices
    }

    /// Returns a copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.slices().iter().flat_map(|slice| slice.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copied_and_lent_bytes_are_written_in_order() {
        let long = vec![b'x'; MIN_LENT];
        let mut batch = Batch::new(b"old".to_vec());
        assert!(batch.is_empty() && batch.slices().is_empty());
        batch.add(&long);
        batch.copy(b"a");
        batch.add(b"b");
        batch.lend(b"c");
        batch.lend(b"d");
        batch.make(|buffer| buffer.extend(b"ef"));
        assert_eq!(batch.to_vec(), [&long[..], b"abcdef"].concat());
        assert_eq!((batch.len(), batch.slices().len()), (MIN_LENT + 6, 5));
    }
}
