//! Facts about processes that only the engine knows and output shows: hosts, pids, the number of
//! ranks of a job.

use std::collections::BTreeMap;

use iof_proto::query::key::PMIX_QUERY_PROC_TABLE;
use iof_proto::{Found, Nspace, Proc, Value};
use iof_tool::BatchReader;
use nix::unistd::gethostname;

/// A cache of the engine's answers to [`PMIX_QUERY_PROC_TABLE`]: the hosts and pids of processes.
#[derive(Debug, Default)]
pub struct Processes {
    /// The host and pid of a process; `None` if the engine does not know the process.
    known: BTreeMap<Proc, Option<(String, u32)>>,
}

impl Processes {
    /// Returns whether the engine has to be queried for `proc`.
    pub fn lacks(&self, proc: &Proc) -> bool {
        match self.known.get(proc) {
            None => true,
            // The rank had not been started when the engine was queried last.
            Some(Some((host, 0))) => is_own_host(host),
            Some(_) => false,
        }
    }

    /// Adds an answer of the engine, which was queried for `proc`. If the engine does not know the
    /// process, it is not queried again for it.
    pub fn learn(&mut self, proc: &Proc, answer: Vec<Found>) {
        self.add(answer);
        self.known.entry(proc.clone()).or_default();
    }

    fn add(&mut self, answer: Vec<Found>) {
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
