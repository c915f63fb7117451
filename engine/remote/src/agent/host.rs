//! The host of an agent's engine.

use std::collections::HashMap;
use std::mem;
use std::sync::Mutex;

use crossbeam::channel::{Receiver, Sender, unbounded};
use iof_engine::{Host, HostReply, ReplyCallback, SpawnReply, SpawnRequest};
use iof_nodes::limits::{MAX_EXCHANGE, MAX_PIECE};
use iof_nodes::{ControlError, ExchangeAnswer, ToFrontEnd};
use iof_proto::log::key;
use iof_proto::{Exchange, Failure as LogFailure, Log, Proc, Status, ToTool};

use crate::carrier::lock;

/// The host of an agent's engine. Tools on its node attach as on one node. What they log to channels
/// that the agent does not have is logged by the front end.
pub struct AgentHost {
    /// Frames for the thread that sends them: the edge may take nothing for a while.
    messages: Sender<Frames>,
    calls: Mutex<Calls>,
}

/// Frames to send one after the other. Those of other threads may come between them.
pub type Frames = Vec<Vec<u8>>;

/// The requests that the front end has not answered. The engine limits the number of messages, and the front end that of exchanges.
#[derive(Default)]
struct Calls {
    next: u64,
    replies: HashMap<u64, HostReply>,
    exchanges: HashMap<u64, ReplyCallback>,
}

impl AgentHost {
    /// Returns the host, and the messages that it has for the front end. A rank may log before all
    /// ranks are started, but the front end takes messages only after [`ToFrontEnd::Started`].
    pub fn new() -> (AgentHost, Receiver<Frames>) {
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

impl AgentHost {
    /// Answers the rank that has requested an exchange.
    pub fn exchanged(&self, call: u64, answer: ExchangeAnswer) {
        let reply = lock(&self.calls).exchanges.remove(&call);
        if let Some(reply) = reply {
            reply(answer.into_answer());
        }
    }

    /// Returns what answers a request for what a rank has put.
    pub fn modex_reply(&self, call: u64) -> impl FnOnce(Result<Vec<u8>, Status>) + Send + use<> {
        let messages = self.messages.clone();
        move |values| {
            let is_too_long = |values: &Vec<u8>| values.len() > MAX_EXCHANGE;
            let values = values.and_then(|values| match is_too_long(&values) {
                true => Err(Status::ERR_OUT_OF_RESOURCE),
                false => Ok(values),
            });
            let message = ToFrontEnd::Modex { call, values: values.clone().map(|_| Vec::new()) };
            // Both are within the limits.
            let _ = send_values(&messages, &values.unwrap_or_default(), &message);
        }
    }
}

impl Host for AgentHost {
    /// The front end writes the output of all ranks.
    fn log_channels(&self) -> Vec<String> {
        [key::PMIX_LOG_STDOUT, key::PMIX_LOG_STDERR].map(str::to_owned).into()
    }

    fn log(&self, log: &Log, reply: HostReply) {
        let call = lock(&self.calls).next_call();
        lock(&self.calls).replies.insert(call, reply);
        // The engine limits messages.
        let _ = send_values(&self.messages, &[], &ToFrontEnd::Log { call, log: log.clone() });
    }

    /// The output of a job on other nodes would not reach the tool, which reads it at this engine.
    fn spawn(&self, _: SpawnRequest, reply: SpawnReply) {
        let reason = "the engine of one node starts no jobs for tools: start them at the engine of the launcher, as \
                      by iof run --in on its node, or by PMIx_Spawn or MPI_Comm_spawn in a rank";
        reply.deny(Status::ERR_NOT_SUPPORTED, reason);
    }

    fn exchange(&self, from: &Proc, mut exchange: Exchange, reply: ReplyCallback) {
        let values =
            if let Exchange::Fence { data, .. } = &mut exchange { mem::take(data) } else { Vec::new() };
        if values.len() > MAX_EXCHANGE {
            let reason = format!("{} bytes of values exceed MAX_EXCHANGE ({MAX_EXCHANGE})", values.len());
            return reply(ToTool::refused(&exchange, LogFailure::new(Status::ERR_OUT_OF_RESOURCE, reason)));
        }
        let call = lock(&self.calls).next_call();
        lock(&self.calls).exchanges.insert(call, reply);
        let message = ToFrontEnd::Exchange { call, rank: from.rank, exchange };
        let sent = send_values(&self.messages, &values, &message);
        if let (Err(error), ToFrontEnd::Exchange { exchange, .. }) = (sent, &message)
            && let Some(reply) = lock(&self.calls).exchanges.remove(&call)
        {
            let failure = LogFailure::new(Status::ERR_OUT_OF_RESOURCE, error.to_string());
            reply(ToTool::refused(exchange, failure));
        }
    }
}

/// Sends values in pieces, and the message that they belong to.
///
/// # Errors
/// The message is too long. Nothing was sent.
fn send_values(messages: &Sender<Frames>, values: &[u8], message: &ToFrontEnd) -> Result<(), ControlError> {
    let last = message.frame()?;
    let mut frames = Vec::new();
    for piece in values.chunks(MAX_PIECE) {
        frames.push(ToFrontEnd::Piece(piece.to_vec()).frame()?);
    }
    frames.push(last);
    // At once, because several threads send. The one that takes them ends with this host.
    let _ = messages.send(frames);
    Ok(())
}

impl Calls {
    fn next_call(&mut self) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.next
    }
}
