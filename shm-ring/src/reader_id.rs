//! The number by which a stream knows a reader.

use std::fmt;

/// The number by which a stream and a reader page know a reader: the number of the page's slot that
/// contains the reader's words.
///
/// It identifies the reader together with the page. A page gives it to another reader once
/// [`ReaderPage::return_slot`](crate::ReaderPage::return_slot) has returned the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReaderId(u32);

impl ReaderId {
    /// Returns the number of slots from the first one up to this reader's, for
    /// [`ReaderPage::take_ready`](crate::ReaderPage::take_ready) and
    /// [`ReaderPage::arm`](crate::ReaderPage::arm).
    pub fn slots(self) -> u32 {
        self.0.saturating_add(1)
    }

    /// Returns the number as an index.
    pub(crate) fn index(self) -> usize {
        // The crate needs 64-bit pointers, so no number is cut.
        self.0 as usize
    }
}

impl From<u32> for ReaderId {
    /// Wraps a number that came from another process. No page has a slot for most numbers; the
    /// functions that take an id check that.
    fn from(number: u32) -> Self {
        ReaderId(number)
    }
}

impl From<ReaderId> for u32 {
    fn from(id: ReaderId) -> Self {
        id.0
    }
}

impl fmt::Display for ReaderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
