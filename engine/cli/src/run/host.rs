//! The host of the command's engine.

use std::path::PathBuf;

use crossbeam::channel::Sender;
use iof_engine::{Host, Job, Remedy, Signal, SpawnReply, SpawnRequest};
use iof_proto::{Channel, Failure, Nspace, Proc, Status};

use crate::commands::log;
use crate::events::job_event::JobEvent;

/// The host of the command's engine. What it sends is lost only when the job is over.
pub struct CommandHost {
    pub events: Sender<JobEvent>,
    /// `true` if tools may start jobs.
    pub grants: bool,
}

impl Host for CommandHost {
    fn gateway(&self) -> Option<PathBuf> {
        log::gateway()
    }

    fn stalled(&self, source: &Proc, channel: Channel, remedy: Remedy) {
        let _ = self.events.send(JobEvent::Stalled { rank: source.rank, channel, remedy });
    }

    fn spawn(&self, request: SpawnRequest, reply: SpawnReply) {
        if self.grants {
            let _ = self.events.send(JobEvent::Spawn { request: Box::new(request), reply });
        } else {
            reply.deny(Status::ERR_NO_PERMISSIONS, "this iof run starts no jobs (--spawn none)");
        }
    }

    fn spawned(&self, nspace: &Nspace, result: Result<&Job, &Failure>) {
        let _ = self.events.send(JobEvent::Spawned { nspace: nspace.clone(), job: result.ok().cloned() });
    }

    /// The only remote rank is that of `iof run --keep`, which stands for the command itself.
    fn signal(&self, _: &[Proc], signal: Signal) -> usize {
        usize::from(self.events.send(JobEvent::Killed(signal)).is_ok())
    }
}
