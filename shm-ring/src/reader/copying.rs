//! Copying bytes out without ever blocking the writer: the reader copies first, and then checks
//! that the copy is whole.

use super::peek::{CATCH_UP_TRIES, Found};
use super::{Peek, Reader};
use crate::offset::Offset;
use crate::ring::Ring;
use crate::sync::{Ordering::Acquire, Ordering::Relaxed, Point, broken, fence_at};

/// The result of [`Reader::copy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// This number of bytes was copied and consumed.
    Bytes(usize),
    /// There were no bytes, for this reason, which is never [`Peek::Bytes`].
    Nothing(Peek),
}

impl Reader {
    /// Copies bytes from the cursor on into `buffer` and consumes them, without borrowing. Under
    /// drop oldest, and after [`Reader::set_non_gating`], a reader that only copies never pins
    /// anything. Such a reader loses bytes instead of making the stream move to another
    /// generation. Grouping does not apply.
    pub fn copy(&mut self, buffer: &mut [u8]) -> Copied {
        self.copy_with(buffer.len(), |ring, position, len| {
            if let Some(buffer) = buffer.get_mut(..len) {
                ring.copy(position, buffer);
            }
        })
    }

    /// [`Reader::copy`] with a function of the model checker, which tracks the writing thread of
    /// each byte. `copy` copies the given number of bytes, at most `most`, from a position on.
    #[cfg(any(loom, feature = "test-utils"))]
    pub fn copy_by(&mut self, most: usize, copy: impl FnMut(&Ring, u64, usize)) -> Copied {
        self.copy_with(most, copy)
    }

    /// Copies at most `most` bytes by `copy`, which copies the given number from a position on.
    fn copy_with(&mut self, most: usize, mut copy: impl FnMut(&Ring, u64, usize)) -> Copied {
        self.release();
        for _ in 0..CATCH_UP_TRIES {
            let end = match self.find(Self::is_cursor_unclaimed) {
                Found::Bytes { end, .. } => end,
                Found::Nothing(peek) => return Copied::Nothing(peek),
            };
            let len = usize::try_from(end.since(self.cursor)).unwrap_or(0).min(most);
            copy(&self.ring, self.cursor, len);
            if self.is_cursor_unclaimed() || broken(Point::CopyCheck) {
                self.end = self.cursor.after(len as u64);
                self.consume(len);
                return Copied::Bytes(len);
            }
        }
        // The writer was faster, so it sets the ready bit again.
        Copied::Nothing(self.unless_gone(Peek::Empty))
    }

    /// Returns whether the byte at the cursor is not claimed. If so, a copy that was made before
    /// from there on is whole.
    fn is_cursor_unclaimed(&self) -> bool {
        self.is_unclaimed(self.cursor)
    }

    /// Returns whether the byte at `position` is not claimed.
    pub(super) fn is_unclaimed(&self, position: u64) -> bool {
        // Orders the loads of the bytes before the load of the claimed position. Partner: the fence
        // in `Writer::reserve`, which orders the claim before the bytes that overwrite these.
        fence_at(Point::CopyFence, Acquire);
        let claimed = self.ring.control().claimed.position.load(Relaxed);
        claimed.saturating_sub(self.ring.capacity()) <= position
    }
}
