//! Wake-ups of a thread that takes items from a queue.

use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that is set if the taker of a queue was woken and has not looked at the queue since.
/// Senders that add items meanwhile need not wake it again.
///
/// ```
/// use iof_capture::PendingWake;
///
/// let wake = PendingWake::default();
/// assert!(wake.mark(), "the first sender wakes the taker");
/// assert!(!wake.mark(), "the second finds that it was woken");
/// wake.take();
/// assert!(wake.mark(), "the taker looks at the queue, and sleeps again");
/// ```
#[derive(Debug, Default)]
pub struct PendingWake(AtomicBool);

impl PendingWake {
    /// Notes that the taker is to look at the queue. Called by a sender after it has added an item.
    /// Returns whether the sender must wake the taker, which it must then do.
    pub fn mark(&self) -> bool {
        // Release: pairs with the acquire in `take`. All swaps are read-modify-write operations, so
        // a `take` after this one sees the item, also if other senders came between.
        !self.0.swap(true, Ordering::Release)
    }

    /// Notes that the taker is about to look at the queue. Called by the taker after it has taken
    /// the wake-up, so that no wake-up is lost, and before it takes items.
    pub fn take(&self) {
        // Acquire: pairs with the release in `mark`.
        self.0.swap(false, Ordering::Acquire);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::thread;

    use crossbeam::channel::{bounded, unbounded};

    use super::*;

    #[test]
    fn a_taker_that_sleeps_after_each_look_receives_all_items_of_several_senders() {
        const SENDERS: usize = 3;
        const ITEMS: usize = 20_000;
        let wake = PendingWake::default();
        let ((add, items), (ring, bell)) = (unbounded(), bounded(1));
        thread::scope(|threads| {
            for _ in 0..SENDERS {
                let (add, ring, wake) = (add.clone(), ring.clone(), &wake);
                threads.spawn(move || {
                    for item in 0..ITEMS {
                        add.send(item).unwrap();
                        if wake.mark() {
                            let _ = ring.try_send(());
                        }
                    }
                });
            }
            // The test's own ends stay open, so a lost wake-up makes it wait for ever.
            let mut taken = 0;
            while taken < SENDERS * ITEMS {
                bell.recv().unwrap();
                wake.take();
                taken += items.try_iter().count();
            }
        });
    }
}
