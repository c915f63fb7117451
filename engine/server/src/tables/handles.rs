//! The driver's handles, which the core names by ids: the rendezvous entries of jobs, the pidfds
//! and terminals of local ranks, and the streams that the capture thread has left.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, OnceLock};

use iof_capture::{EndedStreams, ProcessId, PtyMaster, Signal, Signaller, WindowSize};
use iof_core::{
    DueUpcall, Edges, Ending, HandleOp, Input, JobId, JobStatus, NodeKey, NodeRequest, Receivers, Released,
    SharedMemory,
};
use iof_proto::Nspace;
use iof_proto::rendezvous::{AnnounceError, JobLink, Listener};

use crate::tables::log_lines::LogLines;

/// All handles, by the ids that the core has given the jobs and ranks.
pub(crate) struct Handles {
    listener: Option<Arc<Listener>>,
    /// By the numbers of the jobs.
    jobs: HashMap<u64, JobHandles>,
    ranks: HashMap<ProcessId, RankHandles>,
    removed: Vec<Removed>,
    /// Lines of the log, until the tables are unlocked.
    log: LogLines,
    /// The streams, once the capture thread has ended.
    pub ended_streams: Option<EndedStreams>,
    /// Upcalls and callbacks that the control thread makes after it has unlocked the tables.
    pub upcalls: Vec<DueUpcall>,
}

/// Handles that are dropped once the tables are unlocked: that closes files, and unlinks an entry
/// of the rendezvous directory, which may be on a slow file system.
#[allow(dead_code, reason = "they are only dropped")]
pub(crate) enum Removed {
    Job(JobHandles),
    Rank(RankHandles),
    Terminal(PtyMaster),
    Streams(EndedStreams),
    Memory(Released),
}

#[derive(Default)]
pub(crate) struct JobHandles {
    /// The rendezvous entry by which tools find the job, until it is removed or the engine ends.
    link: Option<JobLink>,
    /// The edges to its other nodes, if it has any.
    edges: Option<Arc<dyn Edges>>,
    /// Set when the job is removed. The embedder's handles of the job share it.
    end: Arc<OnceLock<JobEnd>>,
}

/// The exit status and the endings of a job that was removed.
pub(crate) type JobEnd = (JobStatus, Vec<Ending>);

/// The handles of a local rank.
pub(crate) struct RankHandles {
    /// `None` if only the embedder can send signals to the rank.
    pub signaller: Option<Signaller>,
    /// The master of the rank's pty, until the rank exits.
    pub pty: Option<PtyMaster>,
}

impl Handles {
    /// Returns a table without handles. Jobs are published on `listener`.
    pub(crate) fn new(listener: Option<Arc<Listener>>) -> Handles {
        Handles {
            listener,
            jobs: HashMap::new(),
            ranks: HashMap::new(),
            removed: Vec::new(),
            log: LogLines::default(),
            ended_streams: None,
            upcalls: Vec::new(),
        }
    }

    /// Carries out an effect of the core, on `memory` if it concerns that. Returns the input that
    /// follows.
    pub(crate) fn perform(&mut self, op: HandleOp, memory: &SharedMemory) -> Option<Input> {
        match op {
            HandleOp::Announce(JobId { nspace, run }) => {
                let link = self.announce(&nspace);
                self.jobs.entry(run).or_default().link = link;
            }
            HandleOp::RemoveJob { run, status, endings } => {
                if let Some(handles) = self.jobs.remove(&run) {
                    // A job is removed once.
                    let _ = handles.end.set((status, endings));
                    self.removed.push(Removed::Job(handles));
                }
            }
            HandleOp::Signal { receivers, signal, requested } => {
                let count = self.signal(&receivers, signal, requested.is_some());
                return requested.map(|request| Input::Signalled { request, count });
            }
            HandleOp::EndNode { node, step } => self.send(node, NodeRequest::End(step)),
            HandleOp::Pull { node, pulls } => self.send(node, NodeRequest::Pull(&pulls)),
            HandleOp::Modex { node, call, rank } => self.send(node, NodeRequest::Modex { call, rank }),
            HandleOp::EndPulls { node, pulls } => self.send(node, NodeRequest::EndPulls(&pulls)),
            HandleOp::Stdin { push, nodes, piece } => {
                let bytes = memory.copy(push, piece);
                for (node, ranks) in nodes {
                    let (ranks, bytes) = (ranks.as_deref(), bytes.as_slice());
                    self.send(node, NodeRequest::Stdin { call: push.0, ranks, bytes });
                }
            }
            HandleOp::HangUp(rank) => {
                let master = self.ranks.get_mut(&rank).and_then(|rank| rank.pty.take());
                self.removed.extend(master.map(Removed::Terminal));
            }
            HandleOp::RemoveRank(rank) => {
                self.removed.extend(self.ranks.remove(&rank).map(Removed::Rank));
            }
            HandleOp::DropInlet(push) => self.removed.push(Removed::Memory(memory.remove_inlet(push))),
            HandleOp::DropPage(tool) => self.removed.push(Removed::Memory(memory.remove_tool(tool))),
        }
        None
    }

    /// Returns the handles that were removed since the last call.
    pub(crate) fn take_removed(&mut self) -> Vec<Removed> {
        std::mem::take(&mut self.removed)
    }

    /// Removes and returns the lines of the log since the last call.
    pub(crate) fn take_log(&mut self) -> LogLines {
        std::mem::take(&mut self.log)
    }

    fn announce(&mut self, nspace: &Nspace) -> Option<JobLink> {
        let mut warn = |error: AnnounceError| {
            let write = move || tracing::warn!(%error, "tools find this job only by the pid of its launcher");
            self.log.push(write);
        };
        self.listener.as_ref()?.announce(nspace).map_err(&mut warn).ok().flatten()
    }

    /// Returns the cell that receives the end of a job when the job is removed.
    pub(crate) fn end_of_job(&mut self, job: &JobId) -> Arc<OnceLock<JobEnd>> {
        Arc::clone(&self.jobs.entry(job.run).or_default().end)
    }

    /// Adds the handles of a rank.
    pub(crate) fn add_rank(&mut self, rank: ProcessId, handles: RankHandles) {
        self.ranks.insert(rank, handles);
    }

    /// Adds the edges to the other nodes of a job.
    pub(crate) fn add_edges(&mut self, job: &JobId, edges: Arc<dyn Edges>) {
        self.jobs.entry(job.run).or_default().edges = Some(edges);
    }

    /// Returns the edges to the other nodes of a job, if it has any.
    pub(crate) fn edges(&self, job: &JobId) -> Option<Arc<dyn Edges>> {
        self.jobs.get(&job.run).and_then(|job| job.edges.clone())
    }

    /// Sends a request to another node of a job.
    fn send(&self, (run, node): NodeKey, request: NodeRequest<'_>) {
        if let Some(edges) = self.jobs.get(&run).and_then(|job| job.edges.as_ref()) {
            edges.send(node, request);
        }
    }

    /// Sends `signal` to `receivers`: to all ranks of other nodes, or for a tool to those that it
    /// names. Returns the number of ranks and groups that were signalled.
    pub(crate) fn signal(&self, receivers: &Receivers, signal: Signal, for_tool: bool) -> usize {
        let Receivers { processes, there } = receivers;
        for (node, ranks) in there {
            match for_tool {
                false => self.send(*node, NodeRequest::Signal(signal)),
                true if ranks.is_empty() => {}
                true => self.send(*node, NodeRequest::SignalRanks(signal, ranks)),
            }
        }
        let signallers = processes.iter().filter_map(|rank| self.ranks.get(rank)?.signaller.as_ref());
        let here = signallers.filter(|signaller| signaller.send(signal).is_ok()).count();
        there.values().map(Vec::len).fold(here, usize::saturating_add)
    }

    /// Returns another handle of the pty of a rank; `None` if the rank has none or has exited.
    ///
    /// # Errors
    /// The process can open no further descriptor.
    pub(crate) fn pty(&self, rank: ProcessId) -> io::Result<Option<PtyMaster>> {
        let pty = self.ranks.get(&rank).and_then(|rank| rank.pty.as_ref());
        pty.map(PtyMaster::try_clone).transpose()
    }

    /// Changes the window size of the ptys of `ranks`, and of those of other `nodes`. Returns the
    /// number of ptys of this node that were changed.
    pub(crate) fn resize_ptys(&self, ranks: &[ProcessId], nodes: &[NodeKey], size: WindowSize) -> usize {
        nodes.iter().for_each(|node| self.send(*node, NodeRequest::Resize(size)));
        let ptys = ranks.iter().filter_map(|rank| self.ranks.get(rank)?.pty.as_ref());
        ptys.filter(|pty| pty.resize(size).is_ok()).count()
    }

    /// Closes terminals and edges, and withdraws the entries of jobs when the engine ends: the embedder's
    /// handles of jobs may outlive the engine. They must not keep ranks' terminals from being hung
    /// up, and tools must not find the jobs any more.
    pub(crate) fn release(&mut self) {
        self.ranks.values_mut().for_each(|rank| rank.pty = None);
        self.jobs.values_mut().for_each(|job| (job.link, job.edges) = (None, None));
        self.listener = None;
    }

    /// Removes `memory`, and the streams that the capture thread has left, when the control thread
    /// ends: the embedder's handles of jobs may outlive the engine. They must not keep the rings.
    pub(crate) fn release_memory(&mut self, memory: &SharedMemory) {
        self.removed.extend(self.ended_streams.take().map(Removed::Streams));
        self.removed.extend(memory.remove_all().into_iter().map(Removed::Memory));
    }
}
