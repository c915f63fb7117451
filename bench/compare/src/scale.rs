//! The scale of a comparison: the amount of work and its time limits.

use std::time::Duration;

/// The divisor of amounts in a quick run.
const QUICK: u64 = 32;
/// The divisor of times in a quick run.
const QUICK_TIME: u32 = 4;

/// The scale of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Large enough to measure.
    Full,
    /// Just large enough to show that everything works.
    Quick,
}

impl Scale {
    /// Scales an amount of bytes, lines or ranks.
    pub fn part(self, all: u64) -> u64 {
        if self == Scale::Full { all } else { all.div_ceil(QUICK) }
    }

    /// Selects from a workload's sizes. A quick run uses the first one that is greater than 1.
    pub fn sizes(self, all: &[u32]) -> &[u32] {
        let first = all.iter().position(|size| *size > 1).unwrap_or(0);
        if self == Scale::Full { all } else { &all[first..=first] }
    }

    /// Scales a time or time limit.
    pub fn time(self, all: Duration) -> Duration {
        if self == Scale::Full { all } else { all / QUICK_TIME }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_scales_amounts_down_but_not_to_zero() {
        assert_eq!(Scale::Quick.sizes(&[1, 8, 64]), [8]);
        assert_eq!(Scale::Quick.sizes(&[1]), [1]);
        assert_eq!((Scale::Quick.part(1), Scale::Quick.part(64), Scale::Full.part(64)), (1, 2, 64));
    }
}
