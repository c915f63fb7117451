//! Facts about processes that only the engine knows and output shows: hosts, pids, the number of
//! ranks of a job.

use std::collections::{BTreeMap, BTreeSet};

use iof_proto::query::key::PMIX_QUERY_PROC_TABLE;
use iof_proto::{Found, Nspace, Proc, Value};
use iof_tool::BatchReader;
use nix::unistd::gethostname;

/// A cache of the engine's answers to [`PMIX_QUERY_PROC_TABLE`]: the hosts and pids of processes.
#[derive(Debug, Default)]
pub struct Processes {
    /// The host and pid of a process; `None` if the engine does not know the process.
    known: BTreeMap<Proc, Option<(String, u32)>>,
    /// The processes whose pid the engine did not know when it was queried because of them.
    without_pid: BTreeSet<Proc>,
}

impl Processes {
    /// Returns whether the engine has to be queried for `proc`.
    pub fn lacks(&self, proc: &Proc) -> bool {
        match self.known.get(proc) {
            None => true,
            // The rank had not been started when the engine was queried last, or the host of the
            // engine, which knows the ranks of other nodes, does not tell pids.
            Some(Some((host, 0))) => is_own_host(host) || !self.without_pid.contains(proc),
            Some(_) => false,
        }
    }

    /// Adds an answer of the engine, which was queried for `proc`. If the engine does not know the
    /// process, it is not queried again for it.
    pub fn learn(&mut self, proc: &Proc, answer: Vec<Found>) {
        self.add(answer);
        let known = self.known.entry(proc.clone()).or_default();
        if known.as_ref().is_some_and(|(_, pid)| *pid == 0) {
            self.without_pid.insert(proc.clone());
        }
    }

    /// Adds an answer of the engine.
    pub fn add(&mut self, answer: Vec<Found>) {
        for found in answer {
            let Value::Procs(procs) = found.value else { continue };
            self.known.extend(procs.into_iter().map(|info| (info.proc, Some((info.host, info.pid)))));
        }
    }

    /// Returns the host and pid of `proc`, as far as they are known.
    pub(crate) fn find(&self, proc: &Proc) -> (Option<String>, Option<u32>) {
        match self.known.get(proc) {
            Some(Some((host, pid))) => (Some(host.clone()), (*pid != 0).then_some(*pid)),
            _ => (None, None),
        }
    }

    /// Returns the number of known ranks of `nspace`.
    pub(crate) fn count(&self, nspace: &Nspace) -> u32 {
        let count = self.known.keys().filter(|proc| proc.nspace == *nspace).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Queries the engine if it has to be queried for `proc`, and blocks for its answer.
    pub(crate) fn complete(&mut self, reader: &mut BatchReader, proc: &Proc) {
        if self.lacks(proc) {
            self.learn(proc, reader.query(&[PMIX_QUERY_PROC_TABLE]).unwrap_or_default());
        }
    }

    /// Queries the engine, and blocks for its answer. Does nothing if the engine is gone.
    pub(crate) fn refresh(&mut self, reader: &mut BatchReader) {
        self.add(reader.query(&[PMIX_QUERY_PROC_TABLE]).unwrap_or_default());
    }
}

/// Returns whether `host` is the name of this node.
fn is_own_host(host: &str) -> bool {
    gethostname().is_ok_and(|own| own == host)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use iof_proto::Rank;
    use iof_proto::query::{ProcInfo, ProcState};

    use super::*;

    #[test]
    fn a_pid_that_was_unknown_at_the_query_for_another_rank_is_queried_again() {
        let proc = |rank| Proc { nspace: "job".parse().unwrap(), rank: Rank(rank) };
        let answer = |pids: &[u32]| {
            let info = |(rank, pid): (u32, &u32)| ProcInfo {
                pid: *pid,
                host: "another.node".into(),
                ..ProcInfo::new(proc(rank), ProcState::Running)
            };
            let value = Value::Procs((0..).zip(pids).map(info).collect());
            vec![Found { query: 0, key: PMIX_QUERY_PROC_TABLE.into(), value }]
        };
        let mut processes = Processes::default();
        assert!(processes.lacks(&proc(0)));
        processes.learn(&proc(0), answer(&[7, 0, 0]));
        assert!(!processes.lacks(&proc(0)) && processes.lacks(&proc(1)) && processes.lacks(&proc(2)));
        processes.learn(&proc(1), answer(&[7, 8, 0]));
        assert_eq!(processes.find(&proc(1)), (Some("another.node".into()), Some(8)));
        // The host does not know this one.
        processes.learn(&proc(2), answer(&[7, 8, 0]));
        assert!(!processes.lacks(&proc(2)));
        assert_eq!(processes.find(&proc(2)), (Some("another.node".into()), None));
    }
}
