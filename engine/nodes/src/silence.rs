//! The silence of an agent, which reports its totals once a second while its ranks run.

use std::mem;
use std::time::{Duration, Instant};

/// The time after which a silent agent is reported, and the interval at which the end of its connection is checked.
const SILENT_AFTER: Duration = Duration::from_secs(30);

/// The time since something arrived from an agent.
#[derive(Debug)]
pub struct Silence {
    heard: Instant,
    /// The time after which the node is given up; `None` for no limit.
    limit: Option<Duration>,
    is_told: bool,
    /// The number of intervals of this silence that were noted.
    noted: u32,
}

/// The consequence of a silence, with its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SilenceStep {
    /// It is reported.
    Tell(Duration),
    /// It goes on.
    Check,
    /// The node is given up.
    GiveUp(Duration),
}

impl Silence {
    /// Begins at `now`. The node is given up after `limit`, if there is one.
    pub fn new(limit: Option<Duration>, now: Instant) -> Silence {
        Silence { heard: now, limit, is_told: false, noted: 0 }
    }

    /// Notes that something has arrived, or that nothing is expected.
    pub fn end(&mut self, now: Instant) {
        (self.heard, self.noted) = (now, 0);
    }

    /// Returns when the next step is due if nothing arrives.
    pub fn due(&self) -> Option<Instant> {
        let next = SILENT_AFTER.saturating_mul(self.noted.saturating_add(1));
        let wait = self.limit.map_or(next, |limit| limit.min(next));
        self.heard.checked_add(wait)
    }

    /// Returns when [`Silence::tell`] is due if nothing arrives.
    pub fn tells_at(&self) -> Option<Instant> {
        self.heard.checked_add(SILENT_AFTER).filter(|_| !self.is_told)
    }

    /// Returns the length of the silence if it is reported now, which happens once for each node.
    pub fn tell(&mut self, now: Instant) -> Option<Duration> {
        let length = now.saturating_duration_since(self.heard);
        (length >= SILENT_AFTER && !mem::replace(&mut self.is_told, true)).then_some(length)
    }

    /// Returns the step that is due. A silence is reported once for each node.
    pub fn step(&mut self, now: Instant) -> Option<SilenceStep> {
        let length = now.saturating_duration_since(self.heard);
        if self.limit.is_some_and(|limit| length >= limit) {
            return Some(SilenceStep::GiveUp(length));
        }
        let noted = (length.as_secs() / SILENT_AFTER.as_secs()).try_into().unwrap_or(u32::MAX);
        if noted <= self.noted {
            return None;
        }
        self.noted = noted;
        Some(self.tell(now).map_or(SilenceStep::Check, SilenceStep::Tell))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_is_told_once_and_ends_at_its_limit() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut silence = Silence::new(Some(Duration::from_secs(50)), begin);
        assert_eq!((silence.due(), silence.step(after(29))), (Some(after(30)), None));
        silence.end(after(10));
        assert_eq!((silence.due(), silence.step(after(39))), (Some(after(40)), None));
        assert_eq!(silence.step(after(41)), Some(SilenceStep::Tell(Duration::from_secs(31))));
        assert_eq!((silence.due(), silence.step(after(59))), (Some(after(60)), None));
        assert_eq!(silence.step(after(60)), Some(SilenceStep::GiveUp(Duration::from_secs(50))));
        silence.end(after(60));
        assert_eq!((silence.due(), silence.step(after(89))), (Some(after(90)), None));
        assert_eq!(silence.step(after(90)), Some(SilenceStep::Check));
        assert_eq!((silence.due(), silence.step(after(109))), (Some(after(110)), None));
    }

    #[test]
    fn a_silence_without_a_limit_does_not_end() {
        let begin = Instant::now();
        let mut silence = Silence::new(None, begin);
        assert!(silence.step(begin + SILENT_AFTER).is_some());
        assert_eq!(silence.due(), Some(begin + SILENT_AFTER * 2));
        assert_eq!(silence.step(begin + SILENT_AFTER * 1000), Some(SilenceStep::Check));
        assert_eq!(silence.due(), Some(begin + SILENT_AFTER * 1001));
    }
}
