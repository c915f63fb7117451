//! The slots of a reader page as numbers, without the page.

use crate::layout::MAX_SLOTS;
use crate::reader_id::ReaderId;

/// The slots of a reader page that readers use. This is the owner's own memory: nothing that a tool
/// writes to its reader page changes it.
#[derive(Debug)]
pub struct Slots {
    returned: Vec<ReaderId>,
    /// For every slot that was ever used: `true` if a reader uses it. Slots beyond its length were
    /// never used, and their pages may have no memory yet.
    taken: Vec<bool>,
    limit: usize,
}

impl Default for Slots {
    /// Returns [`MAX_SLOTS`] free slots.
    fn default() -> Slots {
        Slots::new(MAX_SLOTS)
    }
}

impl Slots {
    /// Returns `limit` free slots, at most [`MAX_SLOTS`].
    pub fn new(limit: usize) -> Slots {
        Slots { returned: Vec::new(), taken: Vec::new(), limit: limit.min(MAX_SLOTS) }
    }

    /// Takes the slot that was returned last, or else the next one that was never used. Returns
    /// `None` if all are taken. The page must have memory for the slot before a reader uses it, see
    /// [`ReaderPage::prepare_slot`](crate::ReaderPage::prepare_slot).
    pub fn take(&mut self) -> Option<ReaderId> {
        if let Some(id) = self.returned.pop() {
            if let Some(taken) = self.taken.get_mut(id.index()) {
                *taken = true;
            }
            return Some(id);
        }
        let id = u32::try_from(self.taken.len()).map(ReaderId::from).ok()?;
        if id.index() >= self.limit {
            return None;
        }
        self.taken.push(true);
        Some(id)
    }

    /// Returns a slot that its reader has stopped using, in constant time. Does nothing for a slot
    /// that is not taken.
    pub fn put_back(&mut self, id: ReaderId) {
        if let Some(taken) = self.taken.get_mut(id.index())
            && std::mem::replace(taken, false)
        {
            self.returned.push(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_has_one_reader_and_no_more_than_the_limit_are_taken() {
        let mut slots = Slots::new(2);
        let (one, two) = (slots.take().unwrap(), slots.take().unwrap());
        assert_ne!(one, two);
        assert_eq!(slots.take(), None);
        slots.put_back(one);
        slots.put_back(one);
        slots.put_back(ReaderId::from(7));
        assert_eq!((slots.take(), slots.take()), (Some(one), None));
    }
}
