//! The front end's window of one bundle, whose size follows the rate and the round trip.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crate::EdgeError;
use crate::limits::{MAX_FIRST_WINDOWS, MAX_WINDOW, MAX_WINDOWS};

/// Credit is given for at least this part of a window, so that its frames cost little.
const CREDIT_PART: u64 = 4;

/// The bundles of a node's output. What tools pull goes into rings at once, and comes on top.
const OUTPUT_BUNDLES: usize = 2;

/// The size of a window until a round trip takes long, in bytes: with many nodes, and with few. The larger
/// one is that of ssh(1), which is then not faster.
const FIRST_WINDOW: RangeInclusive<u64> = 1 << 20..=2 << 20;

/// Returns the bounds of the window of each bundle, in bytes, in a job on this number of nodes.
pub fn window(nodes: usize) -> RangeInclusive<u64> {
    let bundles = nodes.saturating_mul(OUTPUT_BUNDLES).max(1) as u64;
    let part = MAX_WINDOWS.checked_div(bundles).unwrap_or(MAX_WINDOW);
    let first = MAX_FIRST_WINDOWS.checked_div(bundles).unwrap_or_default();
    first.clamp(*FIRST_WINDOW.start(), *FIRST_WINDOW.end()).min(part)..=MAX_WINDOW.min(part)
}

/// The bytes since a credit. The first one beyond what the agent could send before that credit
/// arrives one round trip later, or more.
#[derive(Debug)]
struct Probe {
    /// When the credit was given.
    since: Instant,
    /// The bytes that have arrived since then.
    received: u64,
    /// The bytes that arrive without the credit; `None` once the round trip is measured.
    before: Option<u64>,
}

/// The window of one bundle.
#[derive(Debug)]
pub(crate) struct Window {
    bounds: RangeInclusive<u64>,
    size: u64,
    /// The bytes that the agent may still send.
    left: u64,
    /// The bytes that have arrived, and are not where they belong.
    waiting: u64,
    probe: Option<Probe>,
    /// The shortest round trip that was measured.
    round_trip: Duration,
}

impl Window {
    /// Creates a window of the smallest size, which the agent is granted.
    pub fn new(bounds: RangeInclusive<u64>) -> Window {
        let size = *bounds.start();
        Window { bounds, size, left: size, waiting: 0, probe: None, round_trip: Duration::MAX }
    }

    /// Returns the bytes that the agent may still send.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Notes a record that costs this number of bytes, and arrived at `now`.
    ///
    /// # Errors
    /// It exceeds the window.
    pub fn receive(&mut self, cost: u64, now: Instant) -> Result<(), EdgeError> {
        let exceeds = EdgeError::Window { bytes: cost, left: self.left };
        self.left = self.left.checked_sub(cost).ok_or(exceeds)?;
        self.waiting = self.waiting.saturating_add(cost);
        if let Some(probe) = &mut self.probe {
            probe.received = probe.received.saturating_add(cost);
            if probe.before.is_some_and(|before| probe.received > before) {
                probe.before = None;
                self.round_trip = self.round_trip.min(now.saturating_duration_since(probe.since));
            }
        }
        Ok(())
    }

    /// Notes that a record is where it belongs since `now`. Returns the credit to send, if it is enough
    /// for a frame.
    pub fn taken(&mut self, cost: u64, now: Instant) -> Option<u64> {
        debug_assert!(cost <= self.waiting, "{cost} bytes of {} that wait are taken", self.waiting);
        self.waiting = self.waiting.saturating_sub(cost);
        let credit = self.size.saturating_sub(self.left.saturating_add(self.waiting));
        if credit < self.size / CREDIT_PART {
            return None;
        }
        if self.probe.as_ref().is_none_or(|probe| probe.before.is_none()) {
            let next = Probe { since: now, received: 0, before: Some(self.left) };
            self.probe.replace(next).into_iter().for_each(|probe| self.resize(&probe, now));
        }
        self.left = self.left.saturating_add(credit);
        Some(credit)
    }

    /// Takes twice the bytes that arrive in the shortest round trip as the size. A queue in the
    /// carrier makes round trips longer, and a larger window makes the queue longer.
    fn resize(&mut self, probe: &Probe, now: Instant) {
        let elapsed = now.saturating_duration_since(probe.since).as_nanos();
        let product = u128::from(probe.received).saturating_mul(self.round_trip.as_nanos());
        let twice = product.saturating_mul(2).checked_div(elapsed).unwrap_or_default();
        let (least, most) = (*self.bounds.start(), *self.bounds.end());
        self.size = u64::try_from(twice).unwrap_or(most).clamp(least, most);
    }
}
