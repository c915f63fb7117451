//! The processes of a forwarder, seen from outside: which they are, what they have cost, what memory they have.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::cpu;

/// Two looks at a forwarder that are so far apart and find the same find it idle.
const LOOK: Duration = Duration::from_millis(20);

/// Processes that are ours to look at, as long as they live.
#[derive(Clone, Debug)]
pub struct Forwarder {
    /// Each with what it had cost when we began to count.
    pids: BTreeMap<u32, Duration>,
}

impl Forwarder {
    /// `root` and all below it, but `ranks` and what is below these.
    pub fn find(root: u32, ranks: &[u32]) -> Forwarder {
        Forwarder::of(below(&parents(), root, &ranks.iter().copied().collect()))
    }

    /// These processes, of which each may be gone at any time.
    pub fn of(pids: Vec<u32>) -> Forwarder {
        Forwarder { pids: pids.into_iter().map(|pid| (pid, Duration::ZERO)).collect() }
    }

    /// Those of `others` as well that are not known yet; what they have cost counts.
    pub fn add(&mut self, others: &Forwarder) {
        for pid in others.pids.keys() {
            self.pids.entry(*pid).or_default();
        }
    }

    /// Counts what they cost from now on.
    pub fn begin(&mut self) {
        for (pid, begun) in &mut self.pids {
            *begun = cpu::of_process(*pid).unwrap_or_default();
        }
    }

    /// CPU time since then; nothing of those that have ended, which can't be asked any more.
    pub fn cpu(&self) -> Duration {
        let since = |(pid, begun): (&u32, &Duration)| Some(cpu::of_process(*pid)?.saturating_sub(*begun));
        self.pids.iter().filter_map(since).sum()
    }

    /// Waits until they sleep and go on sleeping; whether they did by `until`.
    pub fn rest(&self, until: Instant) -> bool {
        let look = || (self.pids.keys().all(|pid| sleeps(*pid)), self.cpu());
        let mut last = look();
        while Instant::now() < until {
            std::thread::sleep(LOOK);
            let now = look();
            if now.0 && now == last {
                return true;
            }
            last = now;
        }
        false
    }

    /// The most memory that they had, in bytes, what several of their mappings share counted once: see [`peak`].
    pub fn memory(&self) -> u64 {
        self.pids.keys().filter_map(|pid| peak(*pid)).sum()
    }
}

/// Kills and reaps all that descends from us.
pub fn sweep() {
    loop {
        let ours = below(&parents(), std::process::id(), &HashSet::new());
        for pid in ours.iter().filter(|pid| **pid != std::process::id()) {
            // One that has just ended needs no killing.
            let _ = kill(Pid::from_raw(*pid as i32), Signal::SIGKILL);
        }
        while matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(status) if status.pid().is_some()) {}
        if ours.len() <= 1 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Each process with its parent, see proc_pid_stat(5).
fn parents() -> HashMap<u32, u32> {
    let parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let processes = fs::read_dir("/proc").unwrap();
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, parent(pid)?))).collect()
}

/// `root` and all below it but `without` and what is below these.
fn below(parents: &HashMap<u32, u32>, root: u32, without: &HashSet<u32>) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for (child, parent) in parents {
        children.entry(*parent).or_default().push(*child);
    }
    let (mut found, mut next) = (Vec::new(), vec![root]);
    while let Some(pid) = next.pop() {
        if !without.contains(&pid) {
            found.push(pid);
            next.extend(children.get(&pid).into_iter().flatten());
        }
    }
    found
}

/// Whether no thread of a process runs or could.
fn sleeps(pid: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    let runs = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        Some(stat.rsplit_once(')')?.1.trim_start().starts_with('R'))
    };
    !tasks.filter_map(|task| runs(task.ok()?)).any(|runs| runs)
}

/// The most memory that a process had: its high-water mark, in which shared memory counts as often as it is mapped, with
/// that as it is now put right (`Pss_Shmem` in proc_pid_smaps(5) has each page once, however often it is mapped).
fn peak(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    put_right(&status, &rollup)
}

fn put_right(status: &str, rollup: &str) -> Option<u64> {
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
    fn ranks_and_what_is_below_them_are_no_part_of_the_forwarder() {
        // 1 -> 2 (launcher) -> 3 (proxy) -> 4 (rank) -> 5 (its child); 6 is somebody else.
        let parents = HashMap::from([(2, 1), (3, 2), (4, 3), (5, 4), (6, 1)]);
        let mut found = below(&parents, 2, &HashSet::from([4]));
        found.sort_unstable();
        assert_eq!(found, [2, 3]);
    }

    #[test]
    fn memory_that_is_mapped_twice_counts_once() {
        let status = "VmPeak: 9 kB\nVmHWM:\t  5000 kB\nVmRSS:\t 4800 kB\nRssShmem:\t  4000 kB\n";
        let rollup = "Rss: 4800 kB\nPss: 2500 kB\nPss_Shmem:   2000 kB\n";
        assert_eq!(put_right(status, rollup), Some(3000 * 1024));
    }

    #[test]
    fn what_a_process_spends_is_seen_and_that_it_rests() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo; read -r line"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let forwarder = Forwarder::of(vec![child.id()]);
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        assert!(forwarder.rest(Instant::now() + Duration::from_secs(60)));
        assert!(forwarder.cpu() > Duration::ZERO && forwarder.memory() > 0);
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_ends_takes_nothing_away_from_what_others_cost() {
        let (ms, us) = (Duration::from_millis, std::process::id());
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        while cpu::of_process(child.id()).unwrap() < ms(50) {
            std::thread::sleep(ms(1));
        }
        let mut forwarder = Forwarder::of(vec![child.id(), us]);
        forwarder.begin();
        let begun = cpu::of_process(us).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        while cpu::of_process(us).unwrap() < begun + ms(10) {
            std::hint::spin_loop();
        }
        assert!(forwarder.cpu() >= ms(10));
    }
}
