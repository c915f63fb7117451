//! What a thread has cost.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// CPU time of the calling thread so far, see clock_gettime(2).
pub fn of_this_thread() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// How often the calling thread went to sleep so far, see proc_pid_status(5).
pub fn sleeps_of_this_thread() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}
