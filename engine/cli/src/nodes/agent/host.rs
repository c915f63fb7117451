//! The host of an agent's engine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crossbeam::channel::{Sender, unbounded};
use iof_engine::{Host, HostReply};
use iof_nodes::ToFrontEnd;
use iof_proto::log::key;
use iof_proto::{Failure as LogFailure, Log};

use super::uplink::Uplink;
use crate::error::Failure;
use crate::nodes::carrier::lock;
use crate::threads::start_thread;

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
    pub fn start(uplink: &Arc<Uplink>) -> Result<AgentHost, Failure> {
        let ((messages, queue), uplink) = (unbounded::<ToFrontEnd>(), Arc::clone(uplink));
        start_thread("iof-log", move || queue.into_iter().for_each(|message| uplink.send(&message)))?;
        Ok(AgentHost { messages, calls: Mutex::default() })
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
        // The thread ends with this host.
        let _ = self.messages.send(ToFrontEnd::Log { call, log: log.clone() });
    }
}
