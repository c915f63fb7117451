//! The fills of pushes that the capture thread has not handled yet, summed up: one entry for each
//! push, however many fills there were.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Stopped;
use crate::ids::PushId;

/// The sums, shared between the threads that fill and the capture thread. They bound the number of
/// commands to the capture thread by the number of pushes.
#[derive(Debug, Default)]
pub(crate) struct Fills(Mutex<Sums>);

#[derive(Debug, Default)]
struct Sums {
    by_push: HashMap<PushId, Fill>,
    /// The capture thread ends and takes no sum any more.
    closed: bool,
}

/// The bytes that were added to a push since the capture thread last took its fills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fill {
    /// Bytes added.
    pub bytes: u64,
    /// Set if these were the push's last bytes.
    pub over: bool,
}

impl Fills {
    /// Adds `more` to the sum of a push, unless that sum is over already. Returns whether the
    /// capture thread must be notified, which is the case for the first fill since the last
    /// [`Fills::take`].
    ///
    /// # Errors
    /// The fills were [closed](Fills::close).
    pub(crate) fn add(&self, id: PushId, more: Fill) -> Result<bool, Stopped> {
        let mut sums = self.lock();
        if sums.closed {
            return Err(Stopped);
        }
        let is_first = !sums.by_push.contains_key(&id);
        let fill = sums.by_push.entry(id).or_default();
        if !fill.over {
            *fill = Fill { bytes: fill.bytes.saturating_add(more.bytes), over: more.over };
        }
        Ok(is_first)
    }

    /// Returns what was added to a push since the last call, and resets its sum.
    pub(crate) fn take(&self, id: PushId) -> Fill {
        self.lock().by_push.remove(&id).unwrap_or_default()
    }

    /// Refuses all further fills, because the capture thread ends.
    pub(crate) fn close(&self) {
        *self.lock() = Sums { by_push: HashMap::new(), closed: true };
    }

    /// Locks the sums. A thread that panicked while it held the lock left consistent sums.
    fn lock(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_fills_of_a_push_notify_once_and_are_summed_up_to_the_last() {
        let (fills, id) = (Fills::default(), PushId(1));
        assert_eq!(fills.add(id, Fill { bytes: 1, over: false }), Ok(true));
        assert_eq!(fills.add(id, Fill { bytes: 2, over: true }), Ok(false));
        assert_eq!(fills.add(id, Fill { bytes: 4, over: false }), Ok(false), "after the last");
        assert_eq!(fills.add(PushId(2), Fill::default()), Ok(true));
        assert_eq!(fills.take(id), Fill { bytes: 3, over: true });
        assert_eq!(fills.take(id), Fill::default());
    }
}
