//! Jobs whose ranks run on other nodes. The embedder starts the ranks there, and has edges to the
//! nodes.

use std::sync::Arc;
use std::time::Instant;

#[cfg(doc)]
use iof_core::NodeRequest;
use iof_core::{
    DeliverError, DeliveredBytes, Edges, Input, MAX_RANKS, MessageOrigin, NewJob, NodeId, NodeReport,
    ReplyCallback,
};
use iof_proto::{Exchange, FromTool, JobSpec, Node, Nspace, Rank, Relative, Status};

use crate::engine::Engine;
use crate::engine::launch::new_job;
use crate::error::{LaunchError, PmixError};
use crate::job::Job;

impl Engine {
    /// Begins a job whose ranks run on other nodes. The embedder starts all ranks of the job there,
    /// and reports what becomes of them ([`Job::report_node`]). It delivers their output
    /// ([`Engine::deliver`]), and when it has closed all edges, it calls [`Engine::end_job`]. The
    /// engine follows these ranks as its own: it knows their exit status, ends the job early, passes
    /// on signals and stdin, and answers queries for them. Of `spec`, the name, the programs, the
    /// directives, the rules for stdin and those for an early end have an effect. Stdin that a rank
    /// inherits ([`Stdin::Inherit`](crate::Stdin::Inherit)) is what the embedder's own tools push to it.
    ///
    /// With `is_direct`, the embedder passes the output to its printers itself
    /// ([`Tool::direct_input`](iof_tool::Tool::direct_input)) in place of delivering it. Readers with
    /// [`Grant::Block`](crate::Grant::Block) are printers then. A stream has a ring only while another
    /// tool reads it: the engine requests it of its node ([`NodeRequest::Pull`](crate::NodeRequest)),
    /// and the embedder delivers it by [`Job::deliver_pulled`].
    ///
    /// # Errors
    /// The name is taken, or the number of ranks is invalid.
    pub fn begin_on_nodes(
        &self,
        spec: &JobSpec,
        nodes: &[Node],
        edges: Arc<dyn Edges>,
        is_direct: bool,
    ) -> Result<Job, LaunchError> {
        let ranks = spec.nprocs();
        if ranks == 0 || ranks > u64::from(MAX_RANKS) || nodes.is_empty() {
            return Err(LaunchError::Ranks { asked: ranks });
        }
        let job = self.starter.begin(NewJob { nodes, is_direct, ..new_job(spec) });
        let job = job.ok_or(LaunchError::NameTaken(spec.nspace.clone()))?;
        self.starter.tables.lock().handles().add_edges(job.id(), edges);
        Ok(job)
    }

    /// Passes `done` what a rank of a part of a job has put for ranks of other nodes, once it has: the answer to
    /// [`NodeRequest::Modex`](crate::NodeRequest). Does not block; neither must `done`.
    pub fn modex(&self, job: &Job, rank: Rank, done: impl FnOnce(Result<Vec<u8>, Status>) + Send + 'static) {
        self.starter.pmix.modex(job.id(), rank, done);
    }

    /// Makes a job of other nodes known to ranks of a part of a job, which may connect to its ranks by PMIx. Blocks for a
    /// few seconds at most.
    ///
    /// # Errors
    /// The PMIx server refuses it, or does not answer in time.
    pub fn add_relative(&self, relative: &Relative) -> Result<(), LaunchError> {
        Ok(self.starter.pmix.add_relative(relative).map_err(PmixError::from)?)
    }

    /// Makes them forget a job of other nodes, which has ended.
    pub fn remove_relative(&self, nspace: Nspace) {
        self.starter.pmix.remove_relative(nspace);
    }

    /// Withdraws the ranks of a job on other nodes that were not all started. The embedder ends those
    /// that were. The name is free again if none of them has written anything.
    pub fn withdraw_from_nodes(&self, job: &Job) {
        self.starter.tables.lock().withdraw_ranks(job.nspace());
        self.end_job(job.nspace(), None);
        self.starter.all_registered(job);
    }
}

impl Job {
    /// Delivers output of a stream that the engine has requested by [`NodeRequest::Pull`], with the
    /// number of the pull and the offset; with the number 0, output as by [`Engine::deliver`]. `taken` is called once the bytes are in the ring of the
    /// stream, or are not needed. Does not block.
    ///
    /// # Errors
    /// As [`Engine::deliver`].
    pub fn deliver_pulled(
        &self,
        pull: u32,
        bytes: DeliveredBytes<'_>,
        taken: impl FnOnce() + Send + 'static,
    ) -> Result<(), DeliverError> {
        let mut tables = self.tables.lock();
        match tables.deliver_pulled(&self.id, pull, bytes, Box::new(taken))? {
            Ok(stream) => {
                if let Err(stopped) = tables.perform_effects() {
                    tables.withdraw_delivery(stream);
                    return Err(stopped.into());
                }
            }
            Err(taken) => {
                drop(tables);
                // Tools may miss the stream.
                self.tables.reports.wake();
                taken();
            }
        }
        Ok(())
    }

    /// Requests what a rank on another node has passed on to this engine
    /// ([`Host::exchange`](crate::Host::exchange) there). `reply` is called on the control thread. Does not block.
    pub fn exchange(&self, rank: Rank, exchange: Exchange, reply: ReplyCallback) {
        let from = MessageOrigin::Rank { rank: Some((self.id.clone(), rank)), reply };
        self.tables.reports.send(Input::Message { from, message: FromTool::Exchange(exchange) });
    }

    /// Reports to the engine what has happened at another node of the job
    /// ([`Engine::begin_on_nodes`]). Does not block. Output is delivered before the report that
    /// follows it.
    pub fn report_node(&self, node: NodeId, report: NodeReport) {
        let input = Input::Node { job: self.id.clone(), node, report };
        // Only messages of tools can break the protocol.
        let _ = self.tables.lock().handle(input, Instant::now());
        self.tables.notify();
        self.tables.reports.wake();
    }
}
