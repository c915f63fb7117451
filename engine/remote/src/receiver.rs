//! The frames of a node, passed on to the engine and to the follower of the nodes.

use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use crossbeam::channel::Sender;
use iof_engine::{DeliveredEnd, Engine, Node, NodeReport};
use iof_nodes::{Bundle, Frame, FrontEvent, ToAgent, ToFrontEnd, cut_text};
use iof_proto::{Exchange, Failure, Log, Proc, Status, ToTool};
use iof_tool::DirectItem;

use crate::edge::{EdgeEnds, NodeEvent, NumberedEvent};
use crate::output::DirectOutput;
use crate::relatives::Relatives;
use crate::remote::{OutputPiece, Remote, broken_piece, piece};

/// Passes on what arrives from a node.
pub struct Receiver {
    /// The node, with this number.
    pub node: Node,
    pub number: usize,
    pub remote: Weak<Remote>,
    pub engine: Weak<Engine>,
    pub ends: Arc<EdgeEnds>,
    /// The printers of the job; `None` if the output goes into rings.
    pub output: Option<Arc<DirectOutput>>,
    pub events: Sender<NumberedEvent>,
    /// The jobs whose values the node may request, besides its own.
    pub relatives: Relatives,
}

impl Receiver {
    /// Passes on what a frame means.
    ///
    /// # Errors
    /// The output can't be taken.
    pub fn handle(&self, event: FrontEvent<'_>) -> Result<(), String> {
        match event {
            FrontEvent::Greeted => self.tell(NodeEvent::Greeted),
            FrontEvent::Output(Frame::Record { pull, stream, offset, time, input, bytes }) => {
                let Some(bundle) = Bundle::of_record(pull, stream.channel) else { return Ok(()) };
                match &self.output {
                    Some(output) if pull == 0 => output.print(&self.ends, (stream, bundle), (time, bytes)),
                    _ => {
                        let bytes = bytes.to_vec();
                        let time = (time != 0).then_some(time);
                        let piece =
                            OutputPiece { stream, offset, time, input: Some(input), bytes, end: None };
                        self.deliver((pull, bundle), piece)?;
                    }
                }
            }
            FrontEvent::Output(Frame::Gap { pull, stream, offset, lost }) => match &self.output {
                Some(output) if pull == 0 => output.push(stream, &DirectItem::Gap(lost)),
                _ => self.pass_on(pull, piece(stream, offset.saturating_add(lost), None), || {})?,
            },
            FrontEvent::Output(Frame::End { pull, stream, produced }) => match &self.output {
                Some(output) if pull == 0 => output.push(stream, &DirectItem::End),
                _ => self.pass_on(pull, piece(stream, produced, Some(DeliveredEnd::Complete)), || {})?,
            },
            FrontEvent::None | FrontEvent::Output(_) => {}
            // The edge has noted them.
            FrontEvent::Message(ToFrontEnd::Link(_)) => {}
            FrontEvent::Message(ToFrontEnd::Produced(_)) => self.report_streams(),
            FrontEvent::Message(ToFrontEnd::PullFailed { pull }) => {
                let broken = self.ends.state().front.pull_failed(pull);
                let Some(broken) = broken else { return Ok(()) };
                self.pass_on(pull, broken_piece(&broken), || {})?;
            }
            FrontEvent::Message(ToFrontEnd::Told(line)) => tracing::warn!("{}: {line}", self.node.host),
            FrontEvent::Message(ToFrontEnd::Log { call, log }) => self.log(call, &log),
            FrontEvent::Message(ToFrontEnd::Exchange { call, rank, exchange }) => {
                let (ends, counted) = (Arc::clone(&self.ends), self.ends.state().front.answer());
                let reply = move |answer| ends.send_exchanged(call, answer, counted);
                // The command ends, or the job does.
                let Some(remote) = self.remote.upgrade() else { return Ok(()) };
                match (remote.job.get(), exchange) {
                    (Some(_), Exchange::Modex(Proc { nspace, .. }))
                        if !self.relatives.are_related(&remote.nspace, &nspace) =>
                    {
                        let reason = format!("job {nspace} is not a relative of job {}", remote.nspace);
                        reply(ToTool::Fenced(Err(Failure::new(Status::ERR_NO_PERMISSIONS, reason))));
                    }
                    (Some(job), exchange) => job.exchange(rank, exchange, Box::new(reply)),
                    (None, _) => {}
                }
            }
            FrontEvent::Message(message) => {
                if let (ToFrontEnd::Started { pids }, Some(remote)) = (&message, self.remote.upgrade()) {
                    // Before their output arrives.
                    let (pids, began) = (pids.clone(), SystemTime::now().max(UNIX_EPOCH));
                    remote.report(self.number, NodeReport::Started { pids, began });
                }
                if let ToFrontEnd::Over { .. } = message {
                    self.report_streams();
                }
                self.tell(NodeEvent::Message(message));
            }
        }
        Ok(())
    }

    /// Lets the printers have what was passed to them.
    pub fn flush(&self) {
        self.output.iter().for_each(|output| output.flush());
    }

    /// Reports how far the streams of the node have come. Their rings know that, if they have any.
    fn report_streams(&self) {
        if let (Some(remote), true) = (self.remote.upgrade(), self.output.is_some()) {
            let streams = self.ends.state().front.streams(false);
            remote.report(self.number, NodeReport::Streams(streams));
        }
    }

    /// Logs a message of a tool on a node, and answers when that is done.
    fn log(&self, call: u64, log: &Log) {
        let (ends, counted) = (Arc::clone(&self.ends), self.ends.state().front.answer());
        let answer = move |failure: Option<Failure>| {
            let cut = |failure: Failure| Failure { reason: cut_text(&failure.reason), ..failure };
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
    fn deliver(&self, (pull, bundle): (u32, Bundle), piece: OutputPiece) -> Result<(), String> {
        let (ends, length) = (Arc::clone(&self.ends), piece.bytes.len());
        self.pass_on(pull, piece, move || ends.give_credit(bundle, length))
    }

    /// Passes on a piece of the output of the node, or of this pull.
    fn pass_on(
        &self,
        pull: u32,
        piece: OutputPiece,
        taken: impl FnOnce() + Send + 'static,
    ) -> Result<(), String> {
        // The command ends.
        let Some(remote) = self.remote.upgrade() else { return Ok(()) };
        remote.deliver(pull, piece, taken)
    }
}
