//! Servers that have stalled: they are left alone for a while, so that what waits behind them does not wait for each of
//! their messages anew.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a server that has stalled is sent nothing.
pub const STALL_REST: Duration = Duration::from_secs(60);

/// Servers that are remembered; beyond these the one that has rested longest is forgotten.
const MAX_STALLED: usize = 256;

/// Which servers have stalled, by name and port. Copies share what they know.
#[derive(Debug, Clone, Default)]
pub struct Stalls(Arc<Mutex<BTreeMap<(String, u16), Instant>>>);

impl Stalls {
    /// It has stalled, just now.
    pub(crate) fn note(&self, host: &str, port: u16) {
        let now = Instant::now();
        let mut stalled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stalled.retain(|_, at| now.saturating_duration_since(*at) < STALL_REST);
        if stalled.len() >= MAX_STALLED {
            let longest = stalled.iter().min_by_key(|(_, at)| **at).map(|(server, _)| server.clone());
            longest.and_then(|server| stalled.remove(&server));
        }
        stalled.insert((host.to_owned(), port), now);
    }

    /// How long it is still to be left alone.
    pub(crate) fn rest(&self, host: &str, port: u16) -> Option<Duration> {
        let stalled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = stalled.get(&(host.to_owned(), port))?;
        STALL_REST.checked_sub(at.elapsed()).filter(|rest| !rest.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_stalled_rests_and_nobody_else() {
        let stalls = Stalls::default();
        stalls.clone().note("a", 25);
        assert!(stalls.rest("a", 25).unwrap() <= STALL_REST);
        assert_eq!((stalls.rest("a", 26), stalls.rest("b", 25)), (None, None));
    }

    #[test]
    fn no_more_are_remembered_than_its_limit() {
        let stalls = Stalls::default();
        for port in 0..=u16::try_from(MAX_STALLED).unwrap() {
            stalls.note("a", port);
        }
        assert_eq!(stalls.0.lock().unwrap().len(), MAX_STALLED);
        assert_eq!(stalls.rest("a", 0), None);
        assert!(stalls.rest("a", 1).is_some());
    }
}
