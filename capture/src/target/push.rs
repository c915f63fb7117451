//! One push: bytes that are pushed to one or more targets, which take them from one inlet. No I/O
//! here.

use std::collections::BTreeMap;
use std::sync::Arc;

use iof_shm_ring::{Inlet, Lent, Offset};

use crate::ids::PushId;

/// The most bytes that one write offers: the default capacity of a pipe, see pipe(7).
const WRITE_MAX: u64 = 64 * 1024;
/// Credit is returned to the pusher in this many parts of the inlet.
const CREDIT_PARTS: u64 = 4;

/// The part of a push that one of its targets has not taken.
#[derive(Debug)]
pub(crate) enum Share {
    /// Bytes, which stay in place until the target is removed or has [taken](Push::record_taken)
    /// them.
    Bytes(Lent),
    /// No bytes yet.
    Nothing,
    /// No more bytes: the target has taken all.
    All,
}

/// The bytes of a push, and the position of each of its targets.
pub(crate) struct Push {
    id: PushId,
    inlet: Arc<Inlet>,
    /// Bytes that the pusher has filled in so far.
    filled: u64,
    /// Set if the last byte is filled in.
    over: bool,
    /// Set if the targets' pipes are closed after the last byte.
    closes: bool,
    /// The bytes that each target has taken, by the target's index.
    taken: BTreeMap<usize, u64>,
    /// The bytes that all targets have taken.
    freed: u64,
    /// The number of targets that have taken exactly `freed` bytes.
    slowest: usize,
    /// The value of `freed` that was last reported to the pusher.
    reported: u64,
}

impl Push {
    pub(crate) fn new(id: PushId, inlet: Arc<Inlet>, closes: bool, targets: &[usize]) -> Push {
        let taken: BTreeMap<usize, u64> = targets.iter().map(|index| (*index, 0)).collect();
        let slowest = taken.len();
        Push { id, inlet, filled: 0, over: false, closes, taken, freed: 0, slowest, reported: 0 }
    }

    pub(crate) fn id(&self) -> PushId {
        self.id
    }

    /// Returns whether the pipe of a target that has taken all bytes is to be closed.
    pub(crate) fn closes(&self) -> bool {
        self.closes
    }

    /// Adds `bytes` bytes, limited to the room in the inlet, and records whether these were the
    /// last (`over`). Has no effect after the last bytes.
    pub(crate) fn fill(&mut self, bytes: u64, over: bool) {
        if self.over {
            return;
        }
        let most = self.freed.after(self.inlet.capacity());
        self.filled = self.filled.saturating_add(bytes).min(most);
        self.over = over;
    }

    /// Returns the indices of the remaining targets.
    pub(crate) fn targets(&self) -> impl Iterator<Item = usize> {
        self.taken.keys().copied()
    }

    /// Returns what `target` is to take next.
    pub(crate) fn share(&self, target: usize) -> Share {
        let Some(&taken) = self.taken.get(&target) else { return Share::Nothing };
        match self.filled.since(taken) {
            0 if self.over => Share::All,
            0 => Share::Nothing,
            rest => Share::Bytes(self.inlet.lend(taken, rest.min(WRITE_MAX))),
        }
    }

    /// Records that `target` has taken this many of the bytes that it was lent.
    pub(crate) fn record_taken(&mut self, target: usize, bytes: usize) {
        let Some(taken) = self.taken.get_mut(&target) else { absent!("target", return) };
        let before = *taken;
        *taken = before.after(bytes as u64);
        if bytes > 0 && before == self.freed {
            self.leave_slowest();
        }
    }

    /// Removes a target and returns the number of bytes that it has taken.
    pub(crate) fn remove_target(&mut self, target: usize) -> u64 {
        let Some(taken) = self.taken.remove(&target) else { absent!("target", return 0) };
        if taken == self.freed {
            self.leave_slowest();
        }
        taken
    }

    /// Notes that a target has left `freed`. Recomputes `freed` and `slowest` if none is left there.
    fn leave_slowest(&mut self) {
        debug_assert!(self.slowest > 0, "no target has taken exactly {} bytes", self.freed);
        self.slowest = self.slowest.saturating_sub(1);
        if self.slowest > 0 {
            return;
        }
        if let Some(least) = self.taken.values().copied().min() {
            self.freed = least;
            self.slowest = self.taken.values().filter(|taken| **taken == least).count();
        }
    }

    /// Returns the position up to which the inlet is free, if that is at least one part of the
    /// inlet more than at the last report. The position counts as reported then.
    pub(crate) fn take_credit(&mut self) -> Option<u64> {
        let part = self.inlet.capacity().checked_div(CREDIT_PARTS).unwrap_or(0);
        if self.freed.since(self.reported) < part {
            return None;
        }
        self.reported = self.freed;
        Some(self.freed)
    }

    /// Returns the number of bytes that all targets have taken.
    pub(crate) fn freed(&self) -> u64 {
        self.freed
    }

    /// Returns the targets that have taken at most `position` bytes although more are filled in.
    pub(crate) fn behind(&self, position: u64) -> impl Iterator<Item = usize> {
        let behind = move |taken: u64| taken <= position && taken < self.filled;
        self.taken.iter().filter(move |(_, taken)| behind(**taken)).map(|(index, _)| *index)
    }

    /// Returns whether no target remains.
    pub(crate) fn is_done(&self) -> bool {
        self.taken.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(targets: &[usize]) -> Push {
        Push::new(PushId(1), Arc::new(Inlet::create(4096, "test").unwrap()), false, targets)
    }

    fn offered(push: &Push, target: usize) -> usize {
        if let Share::Bytes(lent) = push.share(target) { lent.len } else { 0 }
    }

    #[test]
    fn bytes_that_the_slowest_target_has_taken_are_free_and_reported_in_quarters() {
        let mut push = push(&[1, 2]);
        push.fill(4096, false);
        push.record_taken(1, 4096);
        assert_eq!((push.freed(), push.take_credit()), (0, None));
        push.record_taken(2, 1000);
        assert_eq!((push.freed(), push.take_credit()), (1000, None));
        push.record_taken(2, 24);
        assert_eq!((push.freed(), push.take_credit(), push.take_credit()), (1024, Some(1024), None));
        push.record_taken(2, 2072);
        assert_eq!(push.take_credit(), Some(3096));
    }

    #[test]
    fn a_removed_target_does_not_hold_the_push_back() {
        let mut push = push(&[1, 2, 3]);
        push.fill(4096, false);
        push.record_taken(1, 3000);
        push.record_taken(3, 2000);
        assert_eq!(push.remove_target(2), 0);
        assert_eq!(push.freed(), 2000);
        assert_eq!(
            (push.remove_target(3), push.freed(), push.remove_target(1), push.is_done()),
            (2000, 3000, 3000, true)
        );
    }

    #[test]
    fn at_most_the_capacity_of_the_inlet_is_offered_whatever_the_pusher_claims() {
        let mut push = push(&[1]);
        push.fill(u64::MAX, false);
        assert_eq!(offered(&push, 1), 4096);
        push.record_taken(1, 96);
        assert_eq!(offered(&push, 1), 4000);
        push.fill(u64::MAX, false);
        assert_eq!(offered(&push, 1), 4096);
    }

    #[test]
    fn a_target_is_done_only_after_the_last_byte() {
        let mut push = push(&[1]);
        assert!(matches!(push.share(1), Share::Nothing));
        push.fill(2, true);
        push.record_taken(1, 1);
        assert_eq!(offered(&push, 1), 1);
        push.record_taken(1, 1);
        assert!(matches!(push.share(1), Share::All));
        assert!(matches!(push.share(7), Share::Nothing), "not a target of this push");
    }

    #[test]
    fn fills_after_the_last_have_no_effect() {
        let mut push = push(&[1]);
        push.fill(2, true);
        push.fill(3, false);
        assert_eq!(offered(&push, 1), 2);
        push.record_taken(1, 2);
        assert!(matches!(push.share(1), Share::All));
    }

    #[test]
    fn only_targets_with_bytes_left_are_behind() {
        let mut push = push(&[1, 2, 3]);
        push.fill(100, false);
        push.record_taken(1, 100);
        push.record_taken(2, 50);
        let behind = |position| {
            let mut behind: Vec<usize> = push.behind(position).collect();
            behind.sort_unstable();
            behind
        };
        assert_eq!((behind(0), behind(50), behind(100)), (vec![3], vec![2, 3], vec![2, 3]));
    }
}
