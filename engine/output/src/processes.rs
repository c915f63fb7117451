//! Facts about processes that only the engine knows and output shows: hosts, pids, the number of
//! ranks of a job.

use std::collections::BTreeMap;

use iof_proto::query::key::PMIX_QUERY_PROC_TABLE;
use iof_proto::{Nspace, Proc, Value};
use iof_tool::BatchReader;
use nix::unistd::gethostname;

/// A cache of the engine's answers.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// The host and pid of a process; `None` if the engine does not know the process.
    known: BTreeMap<Proc, Option<(String, u32)>>,
}

impl Processes {
    /// Returns the host and pid of `proc`, as far as they are known. May query the engine and block
    /// for its answer.
    pub fn find(&mut self, reader: &mut BatchReader, proc: &Proc) -> (Option<String>, Option<u32>) {
        let is_known = match self.known.get(proc) {
            None => false,
            // The rank had not been started when the engine was queried last.
            Some(Some((host, 0))) => !is_own_host(host),
            Some(_) => true,
        };
        if !is_known {
            self.refresh(reader);
        }
        match self.known.entry(proc.clone()).or_default() {
            Some((host, pid)) => (Some(host.clone()), (*pid != 0).then_some(*pid)),
            None => (None, None),
        }
    }

    /// Returns the number of known ranks of `nspace`. Queries the engine and blocks for its answer.
    pub fn count(&mut self, reader: &mut BatchReader, nspace: &Nspace) -> u32 {
        self.refresh(reader);
        let count = self.known.keys().filter(|proc| proc.nspace == *nspace).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Updates the cache from the engine. Does nothing if the engine is gone.
    fn refresh(&mut self, reader: &mut BatchReader) {
        for found in reader.query(&[PMIX_QUERY_PROC_TABLE]).unwrap_or_default() {
            let Value::Procs(procs) = found.value else { continue };
            self.known.extend(procs.into_iter().map(|info| (info.proc, Some((info.host, info.pid)))));
        }
    }
}

/// Returns whether `host` is the name of this node.
fn is_own_host(host: &str) -> bool {
    gethostname().is_ok_and(|own| own == host)
}
