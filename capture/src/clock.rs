//! The time at which bytes are read.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the time, in nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
