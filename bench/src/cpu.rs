//! CPU clocks of threads and processes.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// Returns the CPU time of the calling thread so far, see clock_gettime(2).
pub fn current_thread() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// Returns the CPU time so far of the threads of this process with these names, see
/// proc_pid_schedstat(5).
pub fn threads(names: [&str; 2]) -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let cpu_time = |task: std::fs::DirEntry| {
        // The files of a thread that has just ended can't be read any more.
        let comm = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let stat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let nanos = names.contains(&comm.trim()).then(|| stat.split(' ').next()?.parse().ok())?;
        nanos.map(Duration::from_nanos)
    };
    tasks.filter_map(|task| cpu_time(task.ok()?)).sum()
}

/// Returns the CPU time of all threads of this process so far.
pub fn current_process() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap().into()
}

/// Returns the CPU time of all children that were waited for and of their descendants, see
/// getrusage(2).
pub fn children() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    [usage.user_time(), usage.system_time()]
        .into_iter()
        .map(|time| Duration::from_micros(time.num_microseconds() as u64))
        .sum()
}

/// Returns the CPU time so far of all threads of a process, see clock_getcpuclockid(3). Returns
/// `None` if the process was waited for.
pub fn process(pid: u32) -> Option<Duration> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid as i32)).ok()?;
    clock_gettime(clock).ok().map(Duration::from)
}

/// Returns the nanoseconds of CLOCK_MONOTONIC, which all processes share.
pub fn monotonic_nanos() -> u64 {
    Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap()).as_nanos() as u64
}

/// Returns how often the calling thread went to sleep so far, see proc_pid_status(5).
pub fn current_thread_sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}
