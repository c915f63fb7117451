//! What pushes were filled with and the capture thread does not know yet: one word for each,
//! however often it is said.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::event::PushId;

/// Sums between whoever fills and the capture thread, which so has no more to do than there are
/// pushes.
#[derive(Default)]
pub(crate) struct Fills(Mutex<HashMap<PushId, Fill>>);

/// What came since the capture thread looked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fill {
    pub bytes: u64,
    pub over: bool,
}

impl Fills {
    /// Adds to what is known of a push, if that was not the last; whether the capture thread has to
    /// be told.
    pub(crate) fn add(&self, id: PushId, more: Fill) -> bool {
        let mut all = self.lock();
        let is_news = !all.contains_key(&id);
        let fill = all.entry(id).or_default();
        if !fill.over {
            *fill = Fill { bytes: fill.bytes.saturating_add(more.bytes), over: more.over };
        }
        is_news
    }

    /// What came of a push since the last time.
    pub(crate) fn take(&self, id: PushId) -> Fill {
        self.lock().remove(&id).unwrap_or_default()
    }

    /// A thread that died with the lock left whole numbers.
    fn lock(&self) -> MutexGuard<'_, HashMap<PushId, Fill>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_many_times_is_told_once_and_whole() {
        let (fills, id) = (Fills::default(), PushId(1));
        assert!(fills.add(id, Fill { bytes: 1, over: false }));
        assert!(!fills.add(id, Fill { bytes: 2, over: true }));
        assert!(!fills.add(id, Fill { bytes: 4, over: false }), "behind the last");
        assert!(fills.add(PushId(2), Fill::default()));
        assert_eq!(fills.take(id), Fill { bytes: 3, over: true });
        assert_eq!(fills.take(id), Fill::default());
    }
}
