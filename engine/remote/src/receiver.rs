//! The frames of a node, passed on to the engine and to the follower of the nodes.

use std::sync::{Arc, Weak};

use crossbeam::channel::Sender;
use iof_engine::{Engine, Node, NodeReport};
use iof_nodes::{Frame, FrontEvent, StreamKey, ToAgent, ToFrontEnd, cut_text};
use iof_proto::directive::key;
use iof_proto::{Channel, Failure as LogFailure, Info, Log, Nspace, Proc};

use crate::edge::{EdgeEnds, NodeEvent, NumberedEvent};
use crate::remote::Remote;

/// Passes on what arrives from a node.
pub struct Receiver {
    pub nspace: Nspace,
    /// The node, with this number.
    pub node: Node,
    pub number: usize,
    pub remote: Weak<Remote>,
    pub engine: Weak<Engine>,
    pub ends: Arc<EdgeEnds>,
    pub events: Sender<NumberedEvent>,
}

impl Receiver {
    /// Passes on what a frame means.
    ///
    /// # Errors
    /// The output can't be taken.
    pub fn handle(&self, event: FrontEvent<'_>) -> Result<(), String> {
        match event {
            FrontEvent::Greeted => self.tell(NodeEvent::Greeted),
            FrontEvent::Output(Frame::Record { stream, time, bytes, .. }) => {
                self.deliver(stream, time, bytes)?;
            }
            FrontEvent::Output(Frame::Gap { stream, offset, lost }) => {
                let end = Info::new(key::IOF_OFFSET, offset.saturating_add(lost));
                self.pass_on(stream, Vec::new(), &[end], || {})?;
            }
            FrontEvent::Output(Frame::End { stream, .. }) => {
                self.pass_on(stream, Vec::new(), &[Info::new(key::PMIX_IOF_COMPLETE, true)], || {})?;
            }
            FrontEvent::None | FrontEvent::Output(_) => {}
            // The edge has noted them.
            FrontEvent::Message(ToFrontEnd::Produced(_) | ToFrontEnd::Link(_)) => {}
            FrontEvent::Message(ToFrontEnd::Log { call, log }) => self.log(call, &log),
            FrontEvent::Message(message) => {
                if let (ToFrontEnd::Started { pids }, Some(remote)) = (&message, self.remote.upgrade()) {
                    // Before their output arrives.
                    remote.report(self.number, NodeReport::Started { pids: pids.clone() });
                    self.announce()?;
                }
                self.tell(NodeEvent::Message(message));
            }
        }
        Ok(())
    }

    /// Makes the ranks of a node known to the engine, so that tools can push to them before they
    /// write. Called before what the node sends next, which may be a message of such a rank.
    fn announce(&self) -> Result<(), String> {
        for rank in &self.node.ranks {
            for channel in Channel::OUTPUTS {
                self.pass_on(StreamKey { rank: *rank, channel }, Vec::new(), &[], || {})?;
            }
        }
        Ok(())
    }

    /// Logs a message of a tool on a node, and answers when that is done.
    fn log(&self, call: u64, log: &Log) {
        let (ends, counted) = (Arc::clone(&self.ends), self.ends.state().front.answer());
        let answer = move |failure: Option<LogFailure>| {
            let cut = |failure: LogFailure| LogFailure { reason: cut_text(&failure.reason), ..failure };
            let logged = ToAgent::Logged { call, failure: failure.map(cut) };
            // With a reason that was cut, the message is within its limits.
            ends.send_answer(logged.frame().unwrap_or_default(), counted.clone());
        };
        // The command ends.
        let Some(engine) = self.engine.upgrade() else { return };
        let done = answer.clone();
        let logged = engine.log(log, move |report| {
            done(report.outcomes.into_iter().find_map(|outcome| outcome.result.err()));
        });
        if let Err(failure) = logged {
            answer(Some(failure));
        }
    }

    pub fn tell(&self, event: NodeEvent) {
        // The command may have decided to end.
        let _ = self.events.send((self.number, event));
    }

    /// Puts bytes into the ring of their stream, and gives credit when they are there.
    fn deliver(&self, stream: StreamKey, time: u64, bytes: &[u8]) -> Result<(), String> {
        let time = (time != 0).then(|| Info::new(key::IOF_READ_TIME, time));
        let (ends, length) = (Arc::clone(&self.ends), bytes.len());
        let taken = move || ends.give_credit(stream.channel, length);
        self.pass_on(stream, bytes.to_vec(), time.as_slice(), taken)
    }

    fn pass_on(
        &self,
        StreamKey { rank, channel }: StreamKey,
        bytes: Vec<u8>,
        infos: &[Info],
        taken: impl FnOnce() + Send + 'static,
    ) -> Result<(), String> {
        // The command ends.
        let Some(engine) = self.engine.upgrade() else { return Ok(()) };
        let source = Proc { nspace: self.nspace.clone(), rank };
        let delivered = engine.deliver(&source, channel, bytes, infos, taken);
        delivered.map_err(|error| format!("{channel} of rank {rank}: {error}"))
    }
}
