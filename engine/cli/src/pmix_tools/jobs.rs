//! The jobs that the libpmix of a tool knows.

use std::collections::BTreeSet;

use iof_pmix_server::ToolServer;
use iof_proto::query::key::{PMIX_NSPACE, PMIX_QUERY_NAMESPACES, PMIX_QUERY_PROC_TABLE};
use iof_proto::{Channels, Info, Nspace, Position, Proc, ProcInfo, Query, Value};
use iof_tool::{Pull, RequestError, Tool};

use super::daemons::target_of;
use super::deliveries::Deliveries;

/// The jobs that libpmix knows, and those whose ends the engine reports.
#[derive(Default)]
pub struct KnownJobs {
    known: BTreeSet<Nspace>,
    watched: BTreeSet<Nspace>,
}

impl KnownJobs {
    /// Makes libpmix know all jobs that run now, and no others, and watches their ends.
    ///
    /// # Errors
    /// The engine is gone or refuses a request: what libpmix knows stays.
    pub fn update(
        &mut self,
        tool: &mut Tool,
        server: &ToolServer,
        deliveries: &mut Deliveries,
    ) -> Result<(), RequestError> {
        let running = self.watch(tool, deliveries)?;
        let ended: Vec<Nspace> = self.known.difference(&running).cloned().collect();
        ended.iter().for_each(|nspace| self.forget(nspace, server));
        let new: Vec<Nspace> = running.difference(&self.known).cloned().collect();
        for nspace in new {
            // A job that has ended meanwhile has no table.
            let table = table(tool, &nspace)?;
            if table.is_empty() {
                continue;
            }
            // It is not found otherwise, also by later requests.
            if let Err(error) = server.register(&nspace, &table, target_of(&nspace)) {
                tracing::debug!(%nspace, error, "a tool of PMIx does not know the job");
            }
            self.known.insert(nspace);
        }
        Ok(())
    }

    /// Registers for the ends of the jobs that run, with a channel on which little is written and
    /// from which nothing is delivered. Returns their names.
    ///
    /// # Errors
    /// The engine is gone or refuses a request.
    pub fn watch(
        &mut self,
        tool: &mut Tool,
        deliveries: &mut Deliveries,
    ) -> Result<BTreeSet<Nspace>, RequestError> {
        let running = running(tool)?;
        self.watch_all(running.iter(), tool, deliveries)?;
        Ok(running)
    }

    /// Registers for the ends of these jobs. What is cached for a spawner stays so: it is not pulled.
    ///
    /// # Errors
    /// The engine is gone or refuses the request.
    pub fn watch_all<'a>(
        &mut self,
        jobs: impl Iterator<Item = &'a Nspace>,
        tool: &mut Tool,
        deliveries: &mut Deliveries,
    ) -> Result<(), RequestError> {
        let new: Vec<Nspace> = jobs.filter(|job| !self.watched.contains(*job)).cloned().collect();
        if !new.is_empty() {
            let procs = new.iter().cloned().map(Proc::all).collect();
            let pull = Pull::new(procs, Channels::STDDIAG).from(Position::Newest);
            deliveries.add_watch(tool.pull(&pull)?.handler);
            self.watched.extend(new);
        }
        Ok(())
    }

    /// Notes that a job has ended, which libpmix is to forget.
    pub fn ended(&mut self, nspace: &Nspace, server: &ToolServer) {
        self.watched.remove(nspace);
        self.forget(nspace, server);
    }

    /// Makes libpmix forget jobs that do not run. It takes each name in a request for job control for
    /// that of a job, and would let a later `PMIx_Get` wait for its ranks.
    pub fn forget_others(&self, procs: &[Proc], server: &ToolServer) {
        let named: BTreeSet<&Nspace> = procs.iter().map(|proc| &proc.nspace).collect();
        for nspace in named.into_iter().filter(|nspace| !self.known.contains(*nspace)) {
            // It fails if libpmix does not know the name.
            let _ = server.deregister(nspace);
        }
    }

    fn forget(&mut self, nspace: &Nspace, server: &ToolServer) {
        if self.known.remove(nspace)
            && let Err(error) = server.deregister(nspace)
        {
            tracing::debug!(%nspace, error, "a tool of PMIx still knows the job");
        }
    }
}

/// Returns the names of the running jobs.
fn running(tool: &mut Tool) -> Result<BTreeSet<Nspace>, RequestError> {
    let found = tool.query(&[PMIX_QUERY_NAMESPACES])?;
    let names = found.iter().filter_map(|found| match &found.value {
        Value::Text(names) => Some(names.split(',')),
        _ => None,
    });
    Ok(names.flatten().filter_map(|name| Nspace::new(name).ok()).collect())
}

/// Returns the processes of a job.
pub fn table(tool: &mut Tool, nspace: &Nspace) -> Result<Vec<ProcInfo>, RequestError> {
    let qualifiers = vec![Info::required(PMIX_NSPACE, nspace.as_str())];
    let found = match tool.queries(vec![Query { qualifiers, ..Query::new([PMIX_QUERY_PROC_TABLE]) }]) {
        Ok(answer) => answer.found,
        Err(RequestError::Denied(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let tables = found.into_iter().filter_map(|found| match found.value {
        Value::Procs(table) => Some(table),
        _ => None,
    });
    Ok(tables.flatten().collect())
}
