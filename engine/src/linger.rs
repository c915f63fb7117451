//! How long an engine that ends goes on for the sake of its tools.
//!
//! A tool that was attached before the end gets what is cached: once it has every ring, it can
//! drain them without the engine. So the engine stays until each tool has taken what was sent to
//! it, and until a tool that is just attaching has said what it wants. A tool that takes nothing,
//! or goes on asking, does not hold the end up for longer than the limits.

use std::time::Instant;

use iof_proto::limits::{ATTACH_LINGER, LINGER, MAX_LINGER};

/// The end of an engine, from when it was asked to end.
pub(crate) struct Linger {
    began: Instant,
}

/// What an engine that ends knows of one tool, or of a connection that is not one yet.
#[derive(Clone, Copy)]
pub(crate) struct AtEnd {
    /// Messages to it wait.
    pub has_unsent: bool,
    /// When it took something the last time.
    pub took: Instant,
    /// When it connected or asked for something the last time; `None` for the embedder's own, which
    /// are attached by then.
    pub asked: Option<Instant>,
}

impl Linger {
    /// Begins the end at `now`.
    pub fn begin(now: Instant) -> Linger {
        Linger { began: now }
    }

    /// Returns when to look at the tools again; `None` if there is nothing to wait for at `now`.
    pub fn until(&self, tools: impl Iterator<Item = AtEnd>, now: Instant) -> Option<Instant> {
        let end = self.began.checked_add(MAX_LINGER)?;
        let awaited = tools.filter_map(|tool| self.awaits(tool)).map(|at| at.min(end));
        awaited.filter(|at| *at > now).min()
    }

    /// Returns until when one tool is waited for.
    fn awaits(&self, AtEnd { has_unsent, took, asked }: AtEnd) -> Option<Instant> {
        if has_unsent {
            return took.max(self.began).checked_add(LINGER);
        }
        let attached = asked?.checked_add(ATTACH_LINGER)?;
        Some(attached.min(self.began.checked_add(LINGER)?))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    /// For how long an engine that ends waits for a tool whose state at each time `tool` gives.
    fn waits(tool: impl Fn(Duration) -> AtEnd, began: Instant) -> Duration {
        let linger = Linger::begin(began);
        let mut waited = Duration::ZERO;
        while linger.until([tool(waited)].into_iter(), began + waited).is_some() {
            waited += MILLI;
        }
        waited
    }

    #[test]
    fn a_tool_that_takes_is_waited_for_and_one_that_does_not_only_for_a_moment() {
        let began = Instant::now() + Duration::from_secs(3600);
        let long_ago = began - Duration::from_secs(3000);
        let stopped = AtEnd { has_unsent: true, took: long_ago, asked: Some(long_ago) };
        assert_eq!(waits(|_| stopped, began), LINGER);
        let takes = |at| AtEnd { took: began + at, has_unsent: at < LINGER * 3, ..stopped };
        assert_eq!(waits(takes, began), LINGER * 3, "until it has all");
        let never_done = |at| AtEnd { took: began + at, ..stopped };
        assert_eq!(waits(never_done, began), MAX_LINGER);
    }

    #[test]
    fn a_tool_that_is_just_attaching_is_waited_for_and_one_that_asked_long_ago_is_not() {
        let began = Instant::now() + Duration::from_secs(3600);
        let long_ago = began - Duration::from_secs(3000);
        let quiet = AtEnd { has_unsent: false, took: long_ago, asked: Some(long_ago) };
        assert_eq!(waits(|_| quiet, began), Duration::ZERO);
        assert_eq!(waits(|_| AtEnd { asked: None, ..quiet }, began), Duration::ZERO);
        let attaching = AtEnd { asked: Some(began - 10 * MILLI), ..quiet };
        assert_eq!(waits(|_| attaching, began), ATTACH_LINGER - 10 * MILLI);
        let asks_on = |at| AtEnd { asked: Some(began + at), ..quiet };
        assert_eq!(waits(asks_on, began), LINGER);
    }
}
