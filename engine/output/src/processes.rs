//! What the engine knows of processes and output shows: hosts, pids, how many ranks a job has.

use std::collections::BTreeMap;

use iof_proto::query::key::PMIX_QUERY_PROC_TABLE;
use iof_proto::{Nspace, Proc, Value};
use iof_tool::Tool;

/// What was asked of the engine so far.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// Host and pid; `None` if the engine does not know the process.
    known: BTreeMap<Proc, Option<(String, u32)>>,
}

impl Processes {
    /// Where `proc` runs, and as which process.
    pub fn find(&mut self, tool: &mut Tool, proc: &Proc) -> (Option<String>, Option<u32>) {
        if !self.known.contains_key(proc) {
            self.ask(tool);
        }
        match self.known.entry(proc.clone()).or_default() {
            Some((host, pid)) => (Some(host.clone()), (*pid != 0).then_some(*pid)),
            None => (None, None),
        }
    }

    /// How many ranks `nspace` has, as far as they are known.
    pub fn count(&mut self, tool: &mut Tool, nspace: &Nspace) -> u32 {
        self.ask(tool);
        let count = self.known.keys().filter(|proc| proc.nspace == *nspace).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// An engine that is gone knows nothing more.
    fn ask(&mut self, tool: &mut Tool) {
        for found in tool.query(&[PMIX_QUERY_PROC_TABLE]).unwrap_or_default() {
            let Value::Procs(procs) = found.value else { continue };
            self.known.extend(procs.into_iter().map(|info| (info.proc, Some((info.host, info.pid)))));
        }
    }
}
