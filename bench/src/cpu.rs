//! What a thread has cost.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// CPU time of the calling thread so far, see clock_gettime(2).
pub fn of_this_thread() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// CPU time so far of the threads of this process that have these names, see proc_pid_schedstat(5).
pub fn of_threads(names: [&str; 2]) -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of = |task: std::fs::DirEntry| {
        // One that has just ended has cost nothing any more.
        let comm = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let stat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let nanos = names.contains(&comm.trim()).then(|| stat.split(' ').next()?.parse().ok())?;
        nanos.map(Duration::from_nanos)
    };
    tasks.filter_map(|task| of(task.ok()?)).sum()
}

/// CPU time of this process so far, all its threads.
pub fn of_this_process() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap().into()
}

/// CPU time of all children that were waited for, and of theirs, see getrusage(2).
pub fn of_children() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    [usage.user_time(), usage.system_time()]
        .into_iter()
        .map(|time| Duration::from_micros(time.num_microseconds() as u64))
        .sum()
}

/// CPU time so far of a process that was not waited for, all its threads, see clock_getcpuclockid(3); none if it is gone.
pub fn of_process(pid: u32) -> Option<Duration> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid as i32)).ok()?;
    clock_gettime(clock).ok().map(Duration::from)
}

/// Nanoseconds of the clock that all processes share, CLOCK_MONOTONIC.
pub fn monotonic() -> u64 {
    Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap()).as_nanos() as u64
}

/// How often the calling thread went to sleep so far, see proc_pid_status(5).
pub fn sleeps_of_this_thread() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}
