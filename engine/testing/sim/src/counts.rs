//! The events that the runs have covered.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

/// The number of times that something has happened, by its kind and its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<(&'static str, &'static str), u64>);

impl Counts {
    /// Counts something.
    pub(crate) fn count(&mut self, kind: &'static str, name: &'static str) {
        *self.0.entry((kind, name)).or_default() += 1;
    }

    /// Returns how often something has happened.
    pub fn of(&self, kind: &'static str, name: &'static str) -> u64 {
        self.0.get(&(kind, name)).copied().unwrap_or_default()
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        for (what, count) in other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.iter().map(|((kind, name), count)| format!("{kind} {name}: {count}"));
        f.write_str(&all.collect::<Vec<_>>().join(", "))
    }
}
