//! The objects about ranks and jobs beside output in JSON.

use std::collections::BTreeMap;

use iof_engine::{Exit, Job, Node};
use iof_proto::{Nspace, Rank};
use nix::unistd::gethostname;
use serde_json::json;

use crate::terminal::message::{has_objects, print_event};

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
        let pid = Some(pid).filter(|pid| *pid > 0);
        print_event("rank_start", || json!({ "nspace": nspace, "rank": rank.0, "host": host, "pid": pid }));
    }
}

/// Prints the object of a rank that has ended, if the output is JSON. Without a status, it was lost with
/// its node.
pub fn print_exit(nspace: &Nspace, rank: Rank, exit: Option<Exit>) {
    let status = exit.filter(|exit| *exit != Exit::Unknown);
    let signal = status.and_then(Exit::signal);
    let code = status.filter(|_| signal.is_none()).map(Exit::code);
    print_event(
        "exit",
        || json!({ "nspace": nspace.as_str(), "rank": rank.0, "code": code, "signal": signal }),
    );
}

/// Prints the object of a job whose output is written, with its exit code if that is known, if the output
/// is JSON. `is_whole` specifies that no output is missing but what gaps show.
pub fn print_job_end(nspace: &Nspace, code: Option<i32>, is_whole: bool) {
    print_event("job_end", || json!({ "nspace": nspace.as_str(), "code": code, "complete": is_whole }));
}
