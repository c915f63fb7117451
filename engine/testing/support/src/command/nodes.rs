//! Jobs on several nodes, whose agents `sh -c` starts on this one.

use std::collections::BTreeMap;
use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::site::Site;
use crate::process::{Done, Process};

/// Starts a job named demo over agents on `hosts`.
pub fn start(site: &Site, hosts: &str, options: &[&str], script: &str) -> Process {
    let nodes = ["--nspace", "demo", "--rsh", "env NODE=%h sh -c", "--hosts", hosts];
    site.run_sh(&[&nodes, options].concat(), script)
}

/// Runs a job named demo over agents on `hosts`.
pub fn run(hosts: &str, options: &[&str], script: &str) -> Done {
    start(&Site::new(), hosts, options, script).finish()
}

/// Returns the pid of the agent on a host, whose carrier sets `NODE` to the name of the host.
pub fn agent_of(run: &Process, host: &str) -> u32 {
    find_agent(run, host).unwrap()
}

/// Returns the pid of that agent, if it runs.
pub fn find_agent(run: &Process, host: &str) -> Option<u32> {
    let is_agent = |pid: &u32| {
        words(*pid, "cmdline").get(1).is_some_and(|word| word == b"agent")
            && has_variable(*pid, &format!("NODE={host}"))
    };
    run.running("iof").into_iter().find(is_agent)
}

/// Returns whether a process was started with this variable, such as `NAME=value`.
pub fn has_variable(pid: u32, variable: &str) -> bool {
    words(pid, "environ").iter().any(|word| word == variable.as_bytes())
}

/// Returns what a file in /proc contains, between zeros.
fn words(pid: u32, file: &str) -> Vec<Vec<u8>> {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    bytes.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
}

/// Returns whether a process has a thread of this name.
pub fn has_thread(pid: u32, name: &str) -> bool {
    count_threads(pid, name) > 0
}

/// Returns how many threads of this name a process has.
pub fn count_threads(pid: u32, name: &str) -> usize {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    names.filter(|found| found.trim_end() == name).count()
}

/// Sends a signal to a process.
pub fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.try_into().unwrap()), signal).unwrap();
}

/// Returns the lines of each rank, in order, from the output of `--output rank`.
pub fn by_rank(output: &str) -> BTreeMap<u32, Vec<&str>> {
    let mut ranks: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    for line in output.lines() {
        let (rank, line) = line.strip_prefix('[').and_then(|line| line.split_once(']')).unwrap();
        ranks.entry(rank.parse().unwrap()).or_default().push(line.trim_start_matches("<stdout>:").trim());
    }
    ranks
}
