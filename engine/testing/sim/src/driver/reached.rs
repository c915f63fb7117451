//! The limits that a run has reached.

use std::collections::BTreeSet;

/// The names of the limits that are reached, for simulators.
#[derive(Debug, Default)]
pub struct ReachedLimits(BTreeSet<&'static str>);

impl ReachedLimits {
    /// Panics if `used` exceeds `limit`. Notes the limit as reached if one more of `unit` exceeds it.
    pub fn check(&mut self, name: &'static str, used: u64, unit: u64, limit: u64) {
        assert!(used <= limit, "{used} exceed the limit {name} of {limit}");
        self.note(name, used.saturating_add(unit) > limit);
    }

    /// Notes the limit if it `is_reached`.
    pub fn note(&mut self, name: &'static str, is_reached: bool) {
        if is_reached {
            self.0.insert(name);
        }
    }

    /// Adds the limits that were reached at another time.
    pub fn add(&mut self, other: ReachedLimits) {
        self.0.extend(other.0);
    }

    /// Returns the names: those of the fields of [`Limits`], and `shed` if unread rings were dropped.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().copied()
    }

    /// Returns whether a limit is reached.
    pub fn contains(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}
