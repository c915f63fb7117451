//! The host of an agent's engine.

use std::collections::HashMap;
use std::sync::Mutex;

use crossbeam::channel::{Receiver, Sender, unbounded};
use iof_engine::{Host, HostReply};
use iof_nodes::ToFrontEnd;
use iof_proto::log::key;
use iof_proto::{Failure as LogFailure, Log};

use crate::carrier::lock;

/// The host of an agent's engine. Tools on its node attach as on one node. What they log to channels
/// that the agent does not have is logged by the front end.
pub struct AgentHost {
    /// For the thread that sends them: the edge may take nothing for a while.
    messages: Sender<ToFrontEnd>,
    calls: Mutex<Calls>,
}

/// The messages that the front end has not answered. The engine limits their number.
#[derive(Default)]
struct Calls {
    next: u64,
    replies: HashMap<u64, HostReply>,
}

impl AgentHost {
    /// Returns the host, and the messages that it has for the front end. A rank may log before all
    /// ranks are started, but the front end takes messages only after [`ToFrontEnd::Started`].
    pub fn new() -> (AgentHost, Receiver<ToFrontEnd>) {
        let (messages, queue) = unbounded();
        (AgentHost { messages, calls: Mutex::default() }, queue)
    }

    /// Answers the tool that has logged a message.
    pub fn logged(&self, call: u64, failure: Option<LogFailure>) {
        let reply = lock(&self.calls).replies.remove(&call);
        match (reply, failure) {
            (Some(reply), None) => reply.grant(),
            (Some(reply), Some(LogFailure { status, reason })) => reply.deny(status, reason),
            (None, _) => {}
        }
    }
}

impl Host for AgentHost {
    /// The front end writes the output of all ranks.
    fn log_channels(&self) -> Vec<String> {
        [key::PMIX_LOG_STDOUT, key::PMIX_LOG_STDERR].map(str::to_owned).into()
    }

    fn log(&self, log: &Log, reply: HostReply) {
        let mut calls = lock(&self.calls);
        let call = calls.next;
        calls.next = call.wrapping_add(1);
        calls.replies.insert(call, reply);
        drop(calls);
        // The thread that sends ends with this host.
        let _ = self.messages.send(ToFrontEnd::Log { call, log: log.clone() });
    }
}
