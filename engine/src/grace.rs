//! Grace periods: how long the streams of a rank that has exited may stay open.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use iof_capture::SourceId;

/// When streams are to be completed, if they are not by then. One entry for each rank that has
/// exited, until its time.
#[derive(Default)]
pub(crate) struct Graces(BinaryHeap<Reverse<(Instant, Vec<SourceId>)>>);

impl Graces {
    /// `streams` have `grace` from `now` on.
    pub(crate) fn begin(&mut self, now: Instant, grace: Duration, streams: Vec<SourceId>) {
        // What lies beyond all clocks is for ever.
        if let Some(end) = now.checked_add(grace) {
            self.0.push(Reverse((end, streams)));
        }
    }

    /// When the next one is over.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((end, _))| *end)
    }

    /// Takes the streams whose grace is over at `now`.
    pub(crate) fn over(&mut self, now: Instant) -> Vec<SourceId> {
        let mut over = Vec::new();
        while self.next().is_some_and(|end| end <= now)
            && let Some(Reverse((_, streams))) = self.0.pop()
        {
            over.extend(streams);
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graces_end_in_the_order_of_their_ends() {
        let (mut graces, now) = (Graces::default(), Instant::now());
        assert_eq!(graces.next(), None);
        let seconds = Duration::from_secs;
        graces.begin(now, seconds(5), vec![SourceId(5)]);
        graces.begin(now, seconds(2), vec![SourceId(2), SourceId(3)]);
        graces.begin(now, Duration::MAX, vec![SourceId(9)]);
        assert_eq!(graces.next(), Some(now + seconds(2)));
        assert!(graces.over(now + seconds(1)).is_empty());
        assert_eq!(graces.over(now + seconds(2)), [2, 3].map(SourceId));
        assert_eq!(graces.over(now + seconds(100)), [SourceId(5)]);
        assert_eq!(graces.next(), None);
    }
}
