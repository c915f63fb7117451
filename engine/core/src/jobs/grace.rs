//! Grace periods: how long the streams of a rank that has exited may stay open.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::mem;
use std::time::{Duration, Instant};

use iof_capture::SourceId;

/// The times at which the streams of exited ranks are completed, if they are still open. A rank
/// that has exited has one entry until its time is reached or its streams are removed.
#[derive(Default)]
pub struct GracePeriods(BinaryHeap<Reverse<(Instant, Vec<SourceId>)>>);

impl GracePeriods {
    /// Starts a grace period of length `grace` for `streams`, if there are any, at `now`.
    pub(crate) fn begin(&mut self, now: Instant, grace: Duration, streams: Vec<SourceId>) {
        // An end that an `Instant` can't represent is never reached.
        if !streams.is_empty()
            && let Some(end) = now.checked_add(grace)
        {
            self.0.push(Reverse((end, streams)));
        }
    }

    /// Ends the grace periods of `removed` streams without completing these.
    pub(crate) fn remove(&mut self, removed: &BTreeSet<SourceId>) {
        let remaining = mem::take(&mut self.0).into_iter().filter_map(|Reverse((end, mut streams))| {
            streams.retain(|stream| !removed.contains(stream));
            (!streams.is_empty()).then_some(Reverse((end, streams)))
        });
        self.0 = remaining.collect();
    }

    /// Returns the streams of all grace periods.
    pub fn streams(&self) -> impl Iterator<Item = SourceId> {
        self.0.iter().flat_map(|Reverse((_, streams))| streams.iter().copied())
    }

    /// Returns when the next grace period ends.
    pub fn next_end(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((end, _))| *end)
    }

    /// Removes and returns the streams whose grace period has ended at `now`.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Vec<SourceId> {
        let mut expired = Vec::new();
        while self.next_end().is_some_and(|end| end <= now)
            && let Some(Reverse((_, streams))) = self.0.pop()
        {
            expired.extend(streams);
        }
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_periods_expire_in_the_order_of_their_ends() {
        let (mut graces, now) = (GracePeriods::default(), Instant::now());
        assert_eq!(graces.next_end(), None);
        let seconds = Duration::from_secs;
        graces.begin(now, seconds(5), vec![SourceId(5)]);
        graces.begin(now, seconds(2), vec![SourceId(2), SourceId(3)]);
        graces.begin(now, Duration::MAX, vec![SourceId(9)]);
        graces.begin(now, seconds(1), Vec::new());
        assert_eq!(graces.next_end(), Some(now + seconds(2)));
        assert!(graces.take_expired(now + seconds(1)).is_empty());
        assert_eq!(graces.take_expired(now + seconds(2)), [2, 3].map(SourceId));
        assert_eq!(graces.take_expired(now + seconds(100)), [SourceId(5)]);
        assert_eq!(graces.next_end(), None);
    }

    #[test]
    fn removed_streams_have_no_grace_period() {
        let (mut graces, now) = (GracePeriods::default(), Instant::now());
        let seconds = Duration::from_secs;
        graces.begin(now, seconds(1), vec![SourceId(1), SourceId(2)]);
        graces.begin(now, seconds(2), vec![SourceId(3)]);
        graces.begin(now, seconds(3), vec![SourceId(4), SourceId(5)]);
        graces.remove(&[1, 2, 4].map(SourceId).into());
        assert_eq!(graces.next_end(), Some(now + seconds(2)));
        assert_eq!(graces.take_expired(now + seconds(9)), [3, 5].map(SourceId));
    }
}
