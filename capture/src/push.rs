//! One push: bytes that somebody pushes to some targets, who take them from one inlet. No I/O here.

use std::collections::HashMap;
use std::sync::Arc;

use iof_shm_ring::{Inlet, Lent};

use crate::event::PushId;

/// Bytes that one write offers at most: what a pipe holds by default, see pipe(7).
const WRITE_MAX: u64 = 64 * 1024;
/// Who pushes is told of room by so many parts of the inlet.
const PARTS: u64 = 4;

/// What a push has for one of its targets now.
#[derive(Debug)]
pub(crate) enum Share {
    /// These bytes, which stay where they are until the target has left or [taken](Push::record_taken)
    /// them.
    Bytes(Lent),
    /// Nothing yet.
    Nothing,
    /// Nothing any more: it has all.
    All,
}

/// Bytes on their way, and how far each target is.
pub(crate) struct Push {
    id: PushId,
    inlet: Arc<Inlet>,
    filled: u64,
    over: bool,
    /// The targets' pipes are closed after the last byte.
    closes: bool,
    /// The bytes that each target has taken, by its number.
    taken: HashMap<usize, u64>,
    /// What all of them have taken.
    freed: u64,
    /// How many have taken no more than that.
    slowest: usize,
    /// What the pusher knows of `freed`.
    told: u64,
}

impl Push {
    pub(crate) fn new(id: PushId, inlet: Arc<Inlet>, closes: bool, targets: &[usize]) -> Push {
        let taken: HashMap<usize, u64> = targets.iter().map(|index| (*index, 0)).collect();
        let slowest = taken.len();
        Push { id, inlet, filled: 0, over: false, closes, taken, freed: 0, slowest, told: 0 }
    }

    pub(crate) fn id(&self) -> PushId {
        self.id
    }

    /// Whether the pipe of a target that has all is to be closed.
    pub(crate) fn closes(&self) -> bool {
        self.closes
    }

    /// There are `bytes` more, as far as there is room for them; and these were the last, if it is
    /// `over`. Behind those there are none.
    pub(crate) fn fill(&mut self, bytes: u64, over: bool) {
        if self.over {
            return;
        }
        let most = self.freed.saturating_add(self.inlet.capacity());
        self.filled = self.filled.saturating_add(bytes).min(most);
        self.over = over;
    }

    /// The targets that have not left it.
    pub(crate) fn targets(&self) -> impl Iterator<Item = usize> {
        self.taken.keys().copied()
    }

    pub(crate) fn share(&self, target: usize) -> Share {
        let Some(&taken) = self.taken.get(&target) else { return Share::Nothing };
        match self.filled.saturating_sub(taken) {
            0 if self.over => Share::All,
            0 => Share::Nothing,
            left => Share::Bytes(self.inlet.lend(taken, left.min(WRITE_MAX))),
        }
    }

    /// A target has taken so many of the bytes that it was lent.
    pub(crate) fn record_taken(&mut self, target: usize, bytes: usize) {
        let Some(taken) = self.taken.get_mut(&target) else { return };
        let before = *taken;
        *taken = before.saturating_add(bytes as u64);
        if bytes > 0 && before == self.freed {
            self.slowest = self.slowest.saturating_sub(1);
            self.free();
        }
    }

    /// A target goes; gives how many bytes it has taken.
    pub(crate) fn remove_target(&mut self, target: usize) -> u64 {
        let Some(taken) = self.taken.remove(&target) else { return 0 };
        if taken == self.freed {
            self.slowest = self.slowest.saturating_sub(1);
            self.free();
        }
        taken
    }

    /// Looks for who is the slowest now, if nobody is where the slowest was.
    fn free(&mut self) {
        if self.slowest > 0 {
            return;
        }
        if let Some(least) = self.taken.values().copied().min() {
            self.freed = least;
            self.slowest = self.taken.values().filter(|taken| **taken == least).count();
        }
    }

    /// What the pusher is to be told of the room that there is, if that is worth it.
    pub(crate) fn take_credit(&mut self) -> Option<u64> {
        let part = self.inlet.capacity().checked_div(PARTS).unwrap_or(0);
        if self.freed.saturating_sub(self.told) < part {
            return None;
        }
        self.told = self.freed;
        Some(self.freed)
    }

    /// What all targets have taken.
    pub(crate) fn freed(&self) -> u64 {
        self.freed
    }

    /// Those who have taken no more than `position` though there is more.
    pub(crate) fn behind(&self, position: u64) -> impl Iterator<Item = usize> {
        let behind = move |taken: u64| taken <= position && taken < self.filled;
        self.taken.iter().filter(move |(_, taken)| behind(**taken)).map(|(index, _)| *index)
    }

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
    fn what_the_slowest_has_taken_is_free_and_told_by_quarters() {
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
    fn who_leaves_holds_nothing_back() {
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
    fn no_more_is_offered_than_the_inlet_holds_whatever_the_pusher_says() {
        let mut push = push(&[1]);
        push.fill(u64::MAX, false);
        assert_eq!(offered(&push, 1), 4096);
        push.record_taken(1, 96);
        assert_eq!(offered(&push, 1), 4000);
        push.fill(u64::MAX, false);
        assert_eq!(offered(&push, 1), 4096);
    }

    #[test]
    fn the_end_comes_after_the_last_byte() {
        let mut push = push(&[1]);
        assert!(matches!(push.share(1), Share::Nothing));
        push.fill(2, true);
        push.record_taken(1, 1);
        assert_eq!(offered(&push, 1), 1);
        push.record_taken(1, 1);
        assert!(matches!(push.share(1), Share::All));
        assert!(matches!(push.share(7), Share::Nothing), "it is no target of this push");
    }

    #[test]
    fn nothing_comes_behind_the_end() {
        let mut push = push(&[1]);
        push.fill(2, true);
        push.fill(3, false);
        assert_eq!(offered(&push, 1), 2);
        push.record_taken(1, 2);
        assert!(matches!(push.share(1), Share::All));
    }

    #[test]
    fn behind_are_those_for_whom_there_is_more() {
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
