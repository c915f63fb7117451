//! The time for which a stopping engine keeps running for its tools.
//!
//! A tool that attached before the engine was stopped receives everything that is cached: once it
//! has every ring, it can drain them without the engine. The engine therefore stays until each tool
//! has taken the messages sent to it, and until a tool that is just attaching has sent its
//! requests. A tool that takes nothing, or keeps sending requests, delays the end by at most the
//! limits.

use std::time::Instant;

use iof_proto::limits::{ATTACH_LINGER, LINGER, MAX_LINGER};

/// The stopping phase of an engine, which starts when the engine is asked to stop.
pub struct Linger {
    began: Instant,
}

/// The recent activity of one tool, or of a connection that is not yet a tool.
#[derive(Clone, Copy)]
pub struct LastActivity {
    /// Messages to the tool are waiting to be sent.
    pub has_unsent: bool,
    /// When the tool last took a message.
    pub last_taken: Instant,
    /// When the tool connected or last sent a request; `None` for the embedder's own tools, which
    /// are attached by the time the engine stops.
    pub last_asked: Option<Instant>,
}

impl Linger {
    /// Starts the stopping phase at `now`.
    pub fn begin(now: Instant) -> Linger {
        Linger { began: now }
    }

    /// Returns when to look at the tools again; `None` if the engine need not wait after `now`.
    pub fn until(&self, tools: impl Iterator<Item = LastActivity>, now: Instant) -> Option<Instant> {
        let end = self.began.checked_add(MAX_LINGER)?;
        let deadlines = tools.filter_map(|tool| self.deadline(tool)).map(|deadline| deadline.min(end));
        deadlines.filter(|deadline| *deadline > now).min()
    }

    /// Returns the time up to which the engine waits for one tool.
    fn deadline(&self, activity: LastActivity) -> Option<Instant> {
        let LastActivity { has_unsent, last_taken, last_asked } = activity;
        if has_unsent {
            return last_taken.max(self.began).checked_add(LINGER);
        }
        let attached = last_asked?.checked_add(ATTACH_LINGER)?;
        Some(attached.min(self.began.checked_add(LINGER)?))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    /// Returns for how long a stopping engine waits for a tool whose activity at each time since
    /// `began` is given by `activity`.
    fn waited_for(activity: impl Fn(Duration) -> LastActivity, began: Instant) -> Duration {
        let linger = Linger::begin(began);
        let mut waited = Duration::ZERO;
        while linger.until([activity(waited)].into_iter(), began + waited).is_some() {
            waited += MILLI;
        }
        waited
    }

    #[test]
    fn the_engine_waits_longer_for_a_tool_that_reads_than_for_one_that_does_not() {
        let began = Instant::now() + Duration::from_secs(3600);
        let long_ago = began - Duration::from_secs(3000);
        let stopped = LastActivity { has_unsent: true, last_taken: long_ago, last_asked: Some(long_ago) };
        assert_eq!(waited_for(|_| stopped, began), LINGER);
        let reading = |elapsed| LastActivity {
            last_taken: began + elapsed,
            has_unsent: elapsed < LINGER * 3,
            ..stopped
        };
        assert_eq!(waited_for(reading, began), LINGER * 3, "until it has taken everything");
        let never_done = |elapsed| LastActivity { last_taken: began + elapsed, ..stopped };
        assert_eq!(waited_for(never_done, began), MAX_LINGER);
    }

    #[test]
    fn the_engine_waits_for_a_tool_that_is_attaching_but_not_for_an_idle_one() {
        let began = Instant::now() + Duration::from_secs(3600);
        let long_ago = began - Duration::from_secs(3000);
        let quiet = LastActivity { has_unsent: false, last_taken: long_ago, last_asked: Some(long_ago) };
        assert_eq!(waited_for(|_| quiet, began), Duration::ZERO);
        assert_eq!(waited_for(|_| LastActivity { last_asked: None, ..quiet }, began), Duration::ZERO);
        let attaching = LastActivity { last_asked: Some(began - 10 * MILLI), ..quiet };
        assert_eq!(waited_for(|_| attaching, began), ATTACH_LINGER - 10 * MILLI);
        let keeps_asking = |elapsed| LastActivity { last_asked: Some(began + elapsed), ..quiet };
        assert_eq!(waited_for(keeps_asking, began), LINGER);
    }
}
