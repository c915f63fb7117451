//! The fills of pushes that the capture thread has not handled yet, summed up: one entry for each
//! push, however many fills there were.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::event::PushId;

/// The sums, shared between the threads that fill and the capture thread. They bound the number of
/// commands to the capture thread by the number of pushes.
#[derive(Debug, Default)]
pub(crate) struct Fills(Mutex<HashMap<PushId, Fill>>);

/// What was added to a push since the capture thread last took its fills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fill {
    /// Bytes added.
    pub bytes: u64,
    /// Whether these were the push's last bytes.
    pub over: bool,
}

impl Fills {
    /// Adds `more` to the sum of a push, unless that sum is over already. Returns whether the
    /// capture thread must be notified, which is the case for the first fill since the last
    /// [`Fills::take`].
    pub(crate) fn add(&self, id: PushId, more: Fill) -> bool {
        let mut all = self.lock();
        let is_first = !all.contains_key(&id);
        let fill = all.entry(id).or_default();
        if !fill.over {
            *fill = Fill { bytes: fill.bytes.saturating_add(more.bytes), over: more.over };
        }
        is_first
    }

    /// Returns what was added to a push since the last call, and resets its sum.
    pub(crate) fn take(&self, id: PushId) -> Fill {
        self.lock().remove(&id).unwrap_or_default()
    }

    /// Resets all sums, because the capture thread has ended.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Locks the sums. A thread that panicked while it held the lock left consistent sums.
    fn lock(&self) -> MutexGuard<'_, HashMap<PushId, Fill>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_fills_of_a_push_notify_once_and_are_summed_up_to_the_last() {
        let (fills, id) = (Fills::default(), PushId(1));
        assert!(fills.add(id, Fill { bytes: 1, over: false }));
        assert!(!fills.add(id, Fill { bytes: 2, over: true }));
        assert!(!fills.add(id, Fill { bytes: 4, over: false }), "after the last");
        assert!(fills.add(PushId(2), Fill::default()));
        assert_eq!(fills.take(id), Fill { bytes: 3, over: true });
        assert_eq!(fills.take(id), Fill::default());
    }
}
