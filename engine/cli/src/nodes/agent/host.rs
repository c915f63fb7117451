//! The host of an agent's engine.

use iof_engine::{Host, HostReply};
use iof_proto::log::key;
use iof_proto::{Log, Status};

/// The host of an agent's engine. Tools on its node attach as on one node.
pub struct AgentHost;

impl Host for AgentHost {
    /// The front end writes the output of all ranks, so messages to it can't be logged here.
    fn log_channels(&self) -> Vec<String> {
        [key::PMIX_LOG_STDOUT, key::PMIX_LOG_STDERR].map(str::to_owned).into()
    }

    fn log(&self, _: &Log, reply: HostReply) {
        let reason =
            "messages can be logged to stdout and stderr on the node of iof run only: choose another channel";
        reply.deny(Status::ERR_NOT_SUPPORTED, reason);
    }
}
