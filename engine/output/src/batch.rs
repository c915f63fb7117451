//! What is to be written in one call: bytes made here between bytes that lie in rings.

use std::io::IoSlice;

/// From this length on a piece is written from where it lies; shorter ones cost less to copy than a
/// slice of writev(2) costs the kernel. Measured, see docs/src/performance.md.
pub const LEND_AT: usize = 4096;

/// Bytes to be written in order. Those that lie elsewhere are borrowed for `'a`.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    own: Vec<u8>,
    lent: Vec<Lent<'a>>,
    length: usize,
}

#[derive(Debug)]
struct Lent<'a> {
    /// What comes before it of the batch's own bytes ends here.
    at: usize,
    bytes: &'a [u8],
}

impl<'a> Batch<'a> {
    /// An empty one that uses the memory of `buffer`.
    pub fn new(mut buffer: Vec<u8>) -> Batch<'a> {
        buffer.clear();
        Batch { own: buffer, lent: Vec::new(), length: 0 }
    }

    /// Its memory, for the next.
    pub fn into_buffer(self) -> Vec<u8> {
        self.own
    }

    /// Appends a copy.
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

    /// Appends `bytes`, without a copy if that is cheaper.
    #[inline]
    pub fn add(&mut self, bytes: &'a [u8]) {
        if bytes.len() < LEND_AT { self.copy(bytes) } else { self.lend(bytes) }
    }

    /// Appends `bytes`, without a copy.
    pub fn lend(&mut self, bytes: &'a [u8]) {
        self.lent.push(Lent { at: self.own.len(), bytes });
        self.length = self.length.saturating_add(bytes.len());
    }

    /// How many bytes it has.
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// How many slices it has, about.
    pub fn parts(&self) -> usize {
        self.lent.len().saturating_mul(2).saturating_add(1)
    }

    /// All of it, in order, in place.
    pub fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity(self.parts());
        let mut from = 0;
        for Lent { at, bytes } in &self.lent {
            slices.extend(self.own.get(from..*at).filter(|own| !own.is_empty()).map(IoSlice::new));
            slices.push(IoSlice::new(bytes));
            from = *at;
        }
        slices.extend(self.own.get(from..).filter(|own| !own.is_empty()).map(IoSlice::new));
        slices
    }

    /// A copy of all of it.
    pub fn to_vec(&self) -> Vec<u8> {
        self.slices().iter().flat_map(|slice| slice.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_and_what_is_lent_comes_in_order() {
        let long = vec![b'x'; LEND_AT];
        let mut batch = Batch::new(b"old".to_vec());
        assert!(batch.is_empty() && batch.slices().is_empty());
        batch.add(&long);
        batch.copy(b"a");
        batch.add(b"b");
        batch.lend(b"c");
        batch.lend(b"d");
        batch.make(|to| to.extend(b"ef"));
        assert_eq!(batch.to_vec(), [&long[..], b"abcdef"].concat());
        assert_eq!((batch.len(), batch.slices().len()), (LEND_AT + 6, 5));
    }
}
