//! Ranks that were ended by a signal which this command may have received, too, and has not read
//! yet. A signal to a process group or to a container reaches all processes at once.

use std::time::Instant;

use iof_engine::{Exit, REQUEST_LIFETIME, RankExit, SAME_REQUEST};
use nix::sys::signal::Signal;

use crate::processes::signals::REQUESTS_TO_END;

/// Ranks that may have failed: this is not decided yet.
#[derive(Default)]
pub struct Suspects {
    /// In the order of their ends, each with the time at which it is decided.
    ranks: Vec<(RankExit, Instant)>,
    /// The signals that this command has received, each with the time of the last one.
    received: Vec<(Signal, Instant)>,
}

impl Suspects {
    /// Keeps the end of a rank that is reported at `now` for [`SAME_REQUEST`] if a signal that asks
    /// to end has ended it, and returns any other end.
    pub fn keep(&mut self, exit: RankExit, now: Instant) -> Option<RankExit> {
        let signal = REQUESTS_TO_END.into_iter().find(|signal| is_end_by(exit.exit, *signal));
        let is_recent = |(received, time): &(Signal, Instant)| {
            Some(*received) == signal && now.saturating_duration_since(*time) < REQUEST_LIFETIME
        };
        match (signal.filter(|_| !exit.requested), now.checked_add(SAME_REQUEST)) {
            // The engine has sent it to the rank too late, and the report has taken a while.
            (Some(_), _) if self.received.iter().any(is_recent) => Some(RankExit { requested: true, ..exit }),
            (Some(_), Some(time)) => {
                self.ranks.push((exit, time));
                None
            }
            _ => Some(exit),
        }
    }

    /// Notes that this command has received `signal`, which asks to end, at `now`. Returns the
    /// ranks that it has ended, as ranks that it was sent to.
    pub fn take_requested(&mut self, signal: Signal, now: Instant) -> Vec<RankExit> {
        self.received.retain(|(received, _)| *received != signal);
        self.received.push((signal, now));
        let ended = self.ranks.extract_if(.., |(exit, _)| is_end_by(exit.exit, signal));
        ended.map(|(exit, _)| RankExit { requested: true, ..exit }).collect()
    }

    /// Returns when [`Suspects::take_failed`] is due.
    pub fn next_time(&self) -> Option<Instant> {
        self.ranks.first().map(|(_, time)| *time)
    }

    /// Returns the ranks that have failed, as this command has not received the signal by `now`.
    pub fn take_failed(&mut self, now: Instant) -> Vec<RankExit> {
        self.ranks.extract_if(.., |(_, time)| *time <= now).map(|(exit, _)| exit).collect()
    }

    /// Returns all ranks, as no more signals are read.
    pub fn take_all(&mut self) -> Vec<RankExit> {
        self.ranks.drain(..).map(|(exit, _)| exit).collect()
    }
}

/// Returns whether a rank that ended with `exit` was killed by `signal`, or has handled it in the
/// usual way: with the exit code that a shell shows for it.
fn is_end_by(exit: Exit, signal: Signal) -> bool {
    exit.code().checked_sub(128) == Some(signal as i32)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;
    use std::time::Duration;

    use iof_proto::Rank;

    use super::*;

    fn ended(rank: u32, status: i32, requested: bool) -> RankExit {
        let exit = Exit::Status(ExitStatus::from_raw(status));
        RankExit {
            rank: Rank(rank),
            exit,
            pid: 77,
            executable: "sh".into(),
            host: None,
            requested,
            used: None,
        }
    }

    fn shown(exits: &[RankExit]) -> Vec<(u32, bool)> {
        exits.iter().map(|exit| (exit.rank.0, exit.requested)).collect()
    }

    #[test]
    fn only_an_unexplained_end_by_a_signal_that_asks_to_end_is_kept() {
        let mut suspects = Suspects::default();
        let now = Instant::now();
        for (status, requested) in [
            (0, false),
            (1 << 8, false),
            (143 << 8, true),
            (libc::SIGSEGV, false),
            (libc::SIGKILL, false),
            (libc::SIGTERM, true),
        ] {
            assert!(suspects.keep(ended(0, status, requested), now).is_some(), "{status} {requested}");
        }
        assert_eq!(suspects.next_time(), None);
        for signal in REQUESTS_TO_END {
            assert!(suspects.keep(ended(0, signal as i32, false), now).is_none(), "{signal}");
            let handled = (128 + signal as i32) << 8;
            assert!(suspects.keep(ended(1, handled, false), now).is_none(), "{signal}");
        }
        assert_eq!(suspects.next_time(), Some(now + SAME_REQUEST));
        assert_eq!(suspects.take_all().len(), 2 * REQUESTS_TO_END.len());
    }

    #[test]
    fn a_kept_rank_was_asked_to_end_if_its_signal_arrives_in_time_and_failed_otherwise() {
        let mut suspects = Suspects::default();
        let now = Instant::now();
        for (rank, signal) in [(0, libc::SIGTERM), (1, libc::SIGINT), (2, 143 << 8)] {
            let later = now + Duration::from_millis(u64::from(rank));
            assert!(suspects.keep(ended(rank, signal, false), later).is_none());
        }
        assert_eq!(shown(&suspects.take_failed(now)), []);
        assert_eq!(shown(&suspects.take_requested(Signal::SIGHUP, now)), []);
        assert_eq!(shown(&suspects.take_failed(now + SAME_REQUEST)), [(0, false)]);
        assert_eq!(shown(&suspects.take_requested(Signal::SIGTERM, now)), [(2, true)]);
        assert_eq!(shown(&suspects.take_all()), [(1, false)]);
        assert_eq!(suspects.next_time(), None);
        // Reports after the signal: the ranks have ended just before it.
        let late = suspects.keep(ended(3, libc::SIGTERM, false), now);
        assert_eq!(shown(late.as_slice()), [(3, true)]);
        assert!(suspects.keep(ended(4, libc::SIGINT, false), now).is_none());
        // Much later the signal came from elsewhere.
        assert!(suspects.keep(ended(5, libc::SIGTERM, false), now + REQUEST_LIFETIME).is_none());
    }
}
