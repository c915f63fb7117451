//! The processes of a forwarder, observed from outside: their pids, CPU time and memory.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use iof_bench::cpu;

/// The time between two samples. Processes whose samples are equal are idle.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// A set of processes to observe.
#[derive(Clone, Debug)]
pub struct ProcessSet {
    /// Each pid with its CPU time at the start of counting.
    pids: BTreeMap<u32, Duration>,
}

impl ProcessSet {
    /// Returns `root` and its descendants, without `ranks` and their descendants.
    pub fn descendants(root: u32, ranks: &[u32]) -> ProcessSet {
        ProcessSet::new(below(&parents(), root, &ranks.iter().copied().collect()))
    }

    /// Returns the set of these processes, each of which may end at any time.
    pub fn new(pids: Vec<u32>) -> ProcessSet {
        ProcessSet { pids: pids.into_iter().map(|pid| (pid, Duration::ZERO)).collect() }
    }

    /// Adds the processes of `others` that are not in this set. All their CPU time so far counts.
    pub fn extend(&mut self, others: &ProcessSet) {
        for pid in others.pids.keys() {
            self.pids.entry(*pid).or_default();
        }
    }

    /// Starts to count CPU time.
    pub fn start_counting(&mut self) {
        for (pid, start) in &mut self.pids {
            *start = cpu::process(*pid).unwrap_or_default();
        }
    }

    /// Returns the CPU time since the start of counting. Processes that have ended do not count,
    /// because their clocks can't be read any more.
    pub fn cpu(&self) -> Duration {
        let since = |(pid, start): (&u32, &Duration)| Some(cpu::process(*pid)?.saturating_sub(*start));
        self.pids.iter().filter_map(since).sum()
    }

    /// Blocks until all processes are idle. Returns whether they were by `until`.
    pub fn wait_idle(&self, until: Instant) -> bool {
        let sample = || (self.pids.keys().all(|pid| is_sleeping(*pid)), self.cpu());
        let mut last = sample();
        while Instant::now() < until {
            std::thread::sleep(SAMPLE_INTERVAL);
            let now = sample();
            if now.0 && now == last {
                return true;
            }
            last = now;
        }
        false
    }

    /// Returns the sum of the processes' peak memory, in bytes: see [`peak`].
    pub fn peak_memory(&self) -> u64 {
        self.pids.keys().filter_map(|pid| peak(*pid)).sum()
    }
}

/// Kills and reaps all descendants of this process.
pub fn kill_descendants() {
    loop {
        let pids = below(&parents(), std::process::id(), &HashSet::new());
        for pid in pids.iter().filter(|pid| **pid != std::process::id()) {
            // The process may have ended already.
            let _ = kill(Pid::from_raw(*pid as i32), Signal::SIGKILL);
        }
        while matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(status) if status.pid().is_some()) {}
        if pids.len() <= 1 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the parent of each process, see proc_pid_stat(5).
fn parents() -> HashMap<u32, u32> {
    let parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let processes = fs::read_dir("/proc").unwrap();
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, parent(pid)?))).collect()
}

/// Returns `root` and its descendants, without `excluded` and their descendants.
fn below(parents: &HashMap<u32, u32>, root: u32, excluded: &HashSet<u32>) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for (child, parent) in parents {
        children.entry(*parent).or_default().push(*child);
    }
    let (mut found, mut next) = (Vec::new(), vec![root]);
    while let Some(pid) = next.pop() {
        if !excluded.contains(&pid) {
            found.push(pid);
            next.extend(children.get(&pid).into_iter().flatten());
        }
    }
    found
}

/// Returns whether no thread of a process is running or runnable.
fn is_sleeping(pid: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    let runs = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        Some(stat.rsplit_once(')')?.1.trim_start().starts_with('R'))
    };
    !tasks.filter_map(|task| runs(task.ok()?)).any(|runs| runs)
}

/// Returns the peak memory of a process, in bytes, with shared memory counted once.
///
/// The high-water mark counts shared memory once for each mapping. `Pss_Shmem` (proc_pid_smaps(5))
/// counts each page once, so it replaces the present share of shared memory.
fn peak(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    corrected_peak(&status, &rollup)
}

fn corrected_peak(status: &str, rollup: &str) -> Option<u64> {
    let kib = |text: &str, name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let mapped = kib(status, "RssShmem")?;
    let shared = kib(rollup, "Pss_Shmem")?;
    Some((kib(status, "VmHWM")?.saturating_sub(mapped) + shared) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_their_descendants_are_not_part_of_the_forwarder() {
        // 1 -> 2 (launcher) -> 3 (proxy) -> 4 (rank) -> 5 (its child); 6 is unrelated.
        let parents = HashMap::from([(2, 1), (3, 2), (4, 3), (5, 4), (6, 1)]);
        let mut found = below(&parents, 2, &HashSet::from([4]));
        found.sort_unstable();
        assert_eq!(found, [2, 3]);
    }

    #[test]
    fn memory_that_is_mapped_twice_counts_once() {
        let status = "VmPeak: 9 kB\nVmHWM:\t  5000 kB\nVmRSS:\t 4800 kB\nRssShmem:\t  4000 kB\n";
        let rollup = "Rss: 4800 kB\nPss: 2500 kB\nPss_Shmem:   2000 kB\n";
        assert_eq!(corrected_peak(status, rollup), Some(3000 * 1024));
    }

    #[test]
    fn the_cpu_time_of_a_process_is_seen_and_that_it_becomes_idle() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo; read -r line"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let forwarder = ProcessSet::new(vec![child.id()]);
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        assert!(forwarder.wait_idle(Instant::now() + Duration::from_secs(60)));
        assert!(forwarder.cpu() > Duration::ZERO && forwarder.peak_memory() > 0);
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_ends_does_not_reduce_the_cpu_time_of_the_others() {
        let (ms, this) = (Duration::from_millis, std::process::id());
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        while cpu::process(child.id()).unwrap() < ms(50) {
            std::thread::sleep(ms(1));
        }
        let mut forwarder = ProcessSet::new(vec![child.id(), this]);
        forwarder.start_counting();
        let start = cpu::process(this).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        while cpu::process(this).unwrap() < start + ms(10) {
            std::hint::spin_loop();
        }
        assert!(forwarder.cpu() >= ms(10));
    }
}
