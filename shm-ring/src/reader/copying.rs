//! Copying bytes out without ever holding the writer: first copy, then see whether the copy is
//! whole.

use super::{CATCH_UP_TRIES, Found, Peek, Reader};
use crate::ring::Ring;
use crate::sync::{Ordering::Acquire, Ordering::Relaxed, Point, broken, fence_at};

/// What [`Reader::copy`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// So many bytes were copied and are consumed.
    Bytes(usize),
    /// There were none: never [`Peek::Bytes`].
    Nothing(Peek),
}

impl Reader {
    /// Copies bytes from the cursor on into `into`, and consumes them, without borrowing: under
    /// drop oldest, and after [`Reader::set_non_gating`], such a reader never holds anything.
    /// For those that would rather lose bytes than have the stream move away from them.
    /// Grouping does not apply.
    pub fn copy(&mut self, into: &mut [u8]) -> Copied {
        self.copy_with(into.len(), |ring, from, len| {
            if let Some(into) = into.get_mut(..len) {
                ring.copy(from, into);
            }
        })
    }

    /// [`Reader::copy`] of `most` bytes at most, with `copy` for what copies so many from a
    /// position on: the model checker has its own, that knows which thread wrote them.
    #[doc(hidden)]
    pub fn copy_with(&mut self, most: usize, mut copy: impl FnMut(&Ring, u64, usize)) -> Copied {
        self.release();
        for _ in 0..CATCH_UP_TRIES {
            let end = match self.find(Self::is_still_here) {
                Found::Bytes { end, .. } => end,
                Found::Nothing(peek) => return Copied::Nothing(peek),
            };
            let len = usize::try_from(end.saturating_sub(self.cursor)).unwrap_or(0).min(most);
            copy(&self.ring, self.cursor, len);
            if self.is_still_here() || broken(Point::CopyCheck) {
                self.end = self.cursor.saturating_add(len as u64);
                self.consume(len);
                return Copied::Bytes(len);
            }
        }
        // The writer is faster, and will have news.
        Copied::Nothing(self.unless_gone(Peek::Empty))
    }

    /// Whether the writer has claimed nothing at the cursor yet. What was copied from there before
    /// is whole then.
    fn is_still_here(&self) -> bool {
        // Our loads of the bytes come before the load of `intent`. Partner: the fence in `Writer::reserve`,
        // which puts the claim before the bytes that overwrite ours.
        fence_at(Point::CopyFence, Acquire);
        let intent = self.ring.control().claimed.intent.load(Relaxed);
        intent.saturating_sub(self.ring.capacity()) <= self.cursor
    }
}
