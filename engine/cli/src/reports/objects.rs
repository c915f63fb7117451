//! The objects about ranks and jobs beside output in JSON.

use std::collections::BTreeMap;
use std::time::SystemTime;

use iof_engine::{Exit, Job, Node, UsedResources};
use iof_output::Style;
use iof_proto::{Nspace, Proc, ProcInfo, ProcState, Rank};
use nix::unistd::gethostname;
use serde_json::json;

use crate::reports::exits::exit;
use crate::terminal::message::{Event, has_objects, object, print_event};

/// Prints an object for each rank that was started, if the output is JSON.
pub fn print_starts(job: &Job, nodes: &[Node], nspace: &Nspace) {
    if !has_objects() {
        return;
    }
    let here = gethostname().unwrap_or_default().to_string_lossy().into_owned();
    let hosts: BTreeMap<Rank, &str> =
        nodes.iter().flat_map(|node| node.ranks.iter().map(|rank| (*rank, node.host.as_str()))).collect();
    for (rank, pid) in (0..).map(Rank).zip(job.pids()) {
        let host = hosts.get(&rank).copied().unwrap_or(&here);
        print_event(|| start(nspace, rank, (host, pid), None));
    }
}

/// Returns the object of a rank that has started or ended, as a tool is told.
pub fn rank_object(style: &Style, info: &ProcInfo) -> String {
    object(style, rank_event(info))
}

/// Prints such an object, and returns nothing to write elsewhere.
pub fn print_rank(_: &Style, info: &ProcInfo) -> String {
    print_event(|| rank_event(info));
    String::new()
}

fn rank_event(info: &ProcInfo) -> Event {
    let ProcInfo { proc: Proc { nspace, rank }, pid, host, state, exit_code, began, used, .. } = info;
    match state {
        ProcState::Running => start(nspace, *rank, (host, *pid), *began),
        state => end(nspace, *rank, exit(*exit_code, *state), *used),
    }
}

fn start(nspace: &Nspace, rank: Rank, (host, pid): (&str, u32), began: Option<SystemTime>) -> Event {
    let pid = Some(pid).filter(|pid| *pid > 0);
    let fields = json!({ "nspace": nspace.as_str(), "rank": rank.0, "host": host, "pid": pid });
    ("rank_start", began.unwrap_or_else(SystemTime::now), fields)
}

/// Prints the object of a rank that has ended, if the output is JSON.
pub fn print_exit(nspace: &Nspace, rank: Rank, exit: Exit, used: Option<UsedResources>) {
    print_event(|| end(nspace, rank, exit, used));
}

fn end(nspace: &Nspace, rank: Rank, exit: Exit, used: Option<UsedResources>) -> Event {
    let status = Some(exit).filter(|exit| *exit != Exit::Unknown);
    let signal = status.and_then(Exit::signal);
    let code = status.filter(|_| signal.is_none()).map(Exit::code);
    let (cpu, peak) = used.map(cpu_and_peak).unzip();
    let fields = json!({
        "nspace": nspace.as_str(), "rank": rank.0, "code": code, "signal": signal, "cpu_seconds": cpu,
        "peak_bytes": peak,
    });
    ("exit", used.map_or_else(SystemTime::now, |used| used.ended), fields)
}

/// Returns the seconds of CPU time and the largest resident memory in bytes, as JSON has them.
pub fn cpu_and_peak(used: UsedResources) -> (f64, u64) {
    (used.cpu.as_secs_f64(), used.peak_memory)
}

/// Prints the object of a job whose output is written, with its exit code if that is known, if the output
/// is JSON. `is_whole` specifies that no output is missing but what gaps show.
pub fn print_job_end(nspace: &Nspace, code: Option<i32>, is_whole: bool) {
    let fields = || json!({ "nspace": nspace.as_str(), "code": code, "complete": is_whole });
    print_event(|| ("job_end", SystemTime::now(), fields()));
}
