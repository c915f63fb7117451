//! How much is done, and how long that may take.

use std::time::Duration;

/// What is divided by, quickly.
const QUICK: u64 = 32;
const QUICK_TIME: u32 = 4;

/// Of all that could be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Enough to measure it.
    Full,
    /// Enough to see that it works.
    Quick,
}

impl Scale {
    /// Of so many bytes, lines, ranks.
    pub fn part(self, all: u64) -> u64 {
        if self == Scale::Full { all } else { all.div_ceil(QUICK) }
    }

    /// Of these sizes; a quick one is the first that is more than one.
    pub fn sizes(self, all: &[u32]) -> &[u32] {
        let first = all.iter().position(|size| *size > 1).unwrap_or(0);
        if self == Scale::Full { all } else { &all[first..=first] }
    }

    /// Of the time in which something else must not or must happen.
    pub fn time(self, all: Duration) -> Duration {
        if self == Scale::Full { all } else { all / QUICK_TIME }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_has_a_part_of_everything_and_nothing_of_nothing() {
        assert_eq!(Scale::Quick.sizes(&[1, 8, 64]), [8]);
        assert_eq!(Scale::Quick.sizes(&[1]), [1]);
        assert_eq!((Scale::Quick.part(1), Scale::Quick.part(64), Scale::Full.part(64)), (1, 2, 64));
    }
}
