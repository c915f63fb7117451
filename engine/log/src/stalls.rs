//! Servers that stalled recently. They are skipped for a while, so that queued messages do not wait
//! for the timeout of each message.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use iof_proto::{Failure, Status};

/// The time for which a server that stalled is skipped.
pub const STALL_COOLDOWN: Duration = Duration::from_secs(60);

/// The most servers that are remembered. Beyond this the oldest entry is dropped.
const MAX_STALLED: usize = 256;

/// The servers that stalled recently, by name. Clones share one list.
#[derive(Debug, Clone, Default)]
pub struct Stalls(Arc<Mutex<BTreeMap<String, Instant>>>);

impl Stalls {
    /// Records that `server` stalled now.
    pub fn record(&self, server: &str) {
        let now = Instant::now();
        let mut stalled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stalled.retain(|_, time| now.saturating_duration_since(*time) < STALL_COOLDOWN);
        if stalled.len() >= MAX_STALLED {
            let oldest = stalled.iter().min_by_key(|(_, time)| **time).map(|(server, _)| server.clone());
            oldest.and_then(|server| stalled.remove(&server));
        }
        stalled.insert(server.to_owned(), now);
    }

    /// Checks that `server` may be contacted.
    ///
    /// # Errors
    /// `ERR_NOT_AVAILABLE`: it stalled less than [`STALL_COOLDOWN`] ago.
    pub fn check(&self, server: &str) -> Result<(), Failure> {
        let stalled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = stalled.get(server).and_then(|time| STALL_COOLDOWN.checked_sub(time.elapsed()));
        let Some(rest) = rest.filter(|rest| !rest.is_zero()) else { return Ok(()) };
        let (all, rest) = (STALL_COOLDOWN.as_secs(), rest.as_secs().saturating_add(1));
        let reason = format!("{server} stalled and is skipped for {all} s: try again in {rest} s");
        Err(Failure::new(Status::ERR_NOT_AVAILABLE, reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_stalled_is_skipped() {
        let stalls = Stalls::default();
        stalls.clone().record("a");
        let failure = stalls.check("a").unwrap_err();
        assert!(failure.reason.starts_with("a stalled and is skipped for 60 s"), "{failure}");
        stalls.check("b").unwrap();
    }

    #[test]
    fn beyond_the_limit_the_oldest_server_is_forgotten() {
        let stalls = Stalls::default();
        for server in 0..=MAX_STALLED {
            stalls.record(&server.to_string());
        }
        assert_eq!(stalls.0.lock().unwrap().len(), MAX_STALLED);
        stalls.check("0").unwrap();
        assert!(stalls.check("1").is_err());
    }
}
