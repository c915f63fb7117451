//! Servers that have stalled: they are left alone for a while, so that what waits behind them does not wait for each of
//! their messages anew.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use iof_proto::{Failure, Status};

/// How long a server that has stalled is sent nothing.
pub const STALL_REST: Duration = Duration::from_secs(60);

/// Servers that are remembered; beyond these the one that has rested longest is forgotten.
const MAX_STALLED: usize = 256;

/// Which servers have stalled, by what each is called. Copies share what they know.
#[derive(Debug, Clone, Default)]
pub struct Stalls(Arc<Mutex<BTreeMap<String, Instant>>>);

impl Stalls {
    /// It has stalled, just now.
    pub fn note(&self, server: &str) {
        let now = Instant::now();
        let mut stalled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stalled.retain(|_, at| now.saturating_duration_since(*at) < STALL_REST);
        if stalled.len() >= MAX_STALLED {
            let longest = stalled.iter().min_by_key(|(_, at)| **at).map(|(server, _)| server.clone());
            longest.and_then(|server| stalled.remove(&server));
        }
        stalled.insert(server.to_owned(), now);
    }

    /// Whether it may be sent something.
    ///
    /// # Errors
    /// It has stalled a short time ago.
    pub fn may_have(&self, server: &str) -> Result<(), Failure> {
        let stalled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = stalled.get(server).and_then(|at| STALL_REST.checked_sub(at.elapsed()));
        let Some(rest) = rest.filter(|rest| !rest.is_zero()) else { return Ok(()) };
        let (all, rest) = (STALL_REST.as_secs(), rest.as_secs().saturating_add(1));
        let reason = format!("{server} has stalled, and is sent nothing for {all} s: try again in {rest} s");
        Err(Failure { status: Status::ERR_NOT_AVAILABLE, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_stalled_rests_and_nobody_else() {
        let stalls = Stalls::default();
        stalls.clone().note("a");
        let failure = stalls.may_have("a").unwrap_err();
        assert!(failure.reason.starts_with("a has stalled, and is sent nothing for 60 s"), "{failure}");
        stalls.may_have("b").unwrap();
    }

    #[test]
    fn no_more_are_remembered_than_its_limit() {
        let stalls = Stalls::default();
        for server in 0..=MAX_STALLED {
            stalls.note(&server.to_string());
        }
        assert_eq!(stalls.0.lock().unwrap().len(), MAX_STALLED);
        stalls.may_have("0").unwrap();
        assert!(stalls.may_have("1").is_err());
    }
}
