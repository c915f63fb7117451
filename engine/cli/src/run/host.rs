//! The host of the command's engine.

use std::path::PathBuf;

use crossbeam::channel::Sender;
use iof_engine::{Host, Remedy};
use iof_proto::{Channel, Proc};

use crate::job_event::JobEvent;
use crate::log;

/// The host of the command's engine.
pub struct CommandHost {
    pub events: Sender<JobEvent>,
}

impl Host for CommandHost {
    fn gateway(&self) -> Option<PathBuf> {
        log::gateway()
    }

    fn stalled(&self, source: &Proc, channel: Channel, remedy: Remedy) {
        // The send fails only when the job is over.
        let _ = self.events.send(JobEvent::Stalled { rank: source.rank, channel, remedy });
    }
}
