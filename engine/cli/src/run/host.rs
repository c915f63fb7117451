//! The host of the command's engine.

use std::path::PathBuf;
use std::sync::OnceLock;

use crossbeam::channel::Sender;
use iof_engine::{
    ApprovalReply, Grant, Host, Job, QueryReply, REQUESTS_TO_END, Remedy, Signal, SpawnReply, SpawnRequest,
    same_user,
};
use iof_proto::query::key;
use iof_proto::socket::PeerCredentials;
use iof_proto::{Channel, Failure, InfoValue, Nspace, Proc, Query, Status};

use crate::commands::log;
use crate::events::job_event::JobEvent;

/// The key by which `iof run --in` queries the lines about failed ranks of the job that the qualifier
/// `PMIX_NSPACE` names, at its end.
pub const FAILURES: &str = "iof.run.failures";

/// The key of the line that tells that the ranks of this job were alone, as for [`FAILURES`].
pub const ALONE: &str = "iof.run.alone";

/// The host of the command's engine. What it sends is lost only when the job is over.
pub struct CommandHost {
    pub events: Sender<JobEvent>,
    /// `true` if tools may start jobs.
    pub grants: bool,
    /// The name of the command, once it has no ranks and waits for jobs of tools (`--keep`).
    pub kept: OnceLock<Nspace>,
}

impl Host for CommandHost {
    fn gateway(&self) -> Option<PathBuf> {
        log::gateway()
    }

    /// A command that starts a job in this engine loses none of the job's output.
    fn approve(&self, tool: &PeerCredentials, reply: ApprovalReply) {
        reply.answer(same_user(tool).map(|_| Grant::Spawned));
    }

    fn stalled(&self, source: &Proc, channel: Channel, remedy: Remedy) {
        let _ = self.events.send(JobEvent::Stalled { rank: source.rank, channel, remedy });
    }

    fn queries(&self) -> Vec<String> {
        [FAILURES, ALONE].map(str::to_owned).into()
    }

    fn query(&self, queries: &[Query], reply: QueryReply) {
        let infos = queries.iter().flat_map(|query| &query.qualifiers);
        let named = infos.filter(|info| info.key == key::PMIX_NSPACE).find_map(|info| match &info.value {
            InfoValue::Text(name) => Nspace::new(name.as_str()).ok(),
            _ => None,
        });
        if let Some(nspace) = named {
            let _ = self.events.send(JobEvent::Query { nspace, reply });
        }
    }

    fn spawn(&self, request: SpawnRequest, reply: SpawnReply) {
        if self.grants {
            let _ = self.events.send(JobEvent::Spawn { request: Box::new(request), reply });
        } else {
            reply.deny(Status::ERR_NO_PERMISSIONS, "this iof run starts no jobs (--spawn none)");
        }
    }

    fn spawned(&self, nspace: &Nspace, result: Result<&Job, &Failure>) {
        let job = result.ok().map(|job| (job.clone(), None));
        let _ = self.events.send(JobEvent::Spawned { nspace: nspace.clone(), job });
    }

    /// The kept name stands for the command itself.
    fn signal(&self, procs: &[Proc], signal: Signal) -> usize {
        let ends = REQUESTS_TO_END.contains(&signal) || signal == Signal::KILL;
        let is_kept = procs.iter().any(|proc| self.kept.get() == Some(&proc.nspace));
        usize::from(ends && is_kept && self.events.send(JobEvent::Killed).is_ok())
    }
}
