//! The host of the command's engine.

use std::path::PathBuf;

use crossbeam::channel::Sender;
use iof_engine::{Host, HostReply, QueryReply, Remedy, Signal, StdinPush};
use iof_proto::{Channel, Proc, Query, Status};
use iof_remote::Nodes;

use crate::job_event::JobEvent;
use crate::log;

/// The host of the command's engine.
pub struct CommandHost {
    pub events: Sender<JobEvent>,
    /// The nodes of the ranks, if these are others.
    pub nodes: Option<Nodes>,
}

impl Host for CommandHost {
    fn forwards_stdin(&self) -> bool {
        self.nodes.is_some()
    }

    fn push_stdin(&self, stdin: &StdinPush, bytes: &[u8], reply: HostReply) {
        match &self.nodes {
            Some(nodes) => nodes.push_stdin(stdin, bytes, reply),
            None => reply.deny(Status::ERR_NOT_SUPPORTED, "all ranks run on this node"),
        }
    }

    fn signal(&self, procs: &[Proc], signal: Signal) -> usize {
        self.nodes.as_ref().map_or(0, |nodes| nodes.signal(procs, signal))
    }

    fn queries(&self) -> Vec<String> {
        self.nodes.as_ref().map(Nodes::queries).unwrap_or_default()
    }

    fn query(&self, queries: &[Query], reply: QueryReply) {
        match &self.nodes {
            Some(nodes) => nodes.query(queries, reply),
            None => reply.answer(Vec::new()),
        }
    }

    fn gateway(&self) -> Option<PathBuf> {
        log::gateway()
    }

    fn stalled(&self, source: &Proc, channel: Channel, remedy: Remedy) {
        // The send fails only when the job is over.
        let _ = self.events.send(JobEvent::Stalled { rank: source.rank, channel, remedy });
    }
}
