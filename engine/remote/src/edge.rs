//! The front end's edges, each to one node, and the events that arrive over them.

use std::sync::{Arc, Mutex, mpsc};

use iof_engine::Signal;
use iof_nodes::{BrokenEnd, ControlError, FrontEnd, Start, ToAgent, ToFrontEnd};

use crate::carrier::{CarrierEnd, lock, signal_group};
use crate::reattach::{Down, LinkedEdge};

/// What arrives from a node.
pub enum NodeEvent {
    /// The agent runs.
    Greeted,
    Message(ToFrontEnd),
    /// The node can't be reached any more, and its end was not due.
    Lost {
        reason: String,
        broken: BrokenEnd,
    },
    /// The ranks of the node were sent SIGKILL.
    Killed,
}

/// An event of the node with this number.
pub type NumberedEvent = (usize, NodeEvent);

/// Takes frames for an edge. A receiver of the standard library sleeps at once when its queue is
/// empty; one of crossbeam first yields the processor several times.
pub type FrameSender = mpsc::Sender<Down>;

/// The front end's handle of one node.
#[derive(Clone)]
pub struct Edge {
    /// Frames to send. The thread that sends ends with the last sender.
    pub down: Arc<FrameSender>,
    pub front: Arc<Mutex<FrontEnd>>,
    pub carrier: Arc<Mutex<CarrierEnd>>,
    /// If the carrier may be replaced.
    pub linked: Option<Arc<LinkedEdge>>,
}

impl Edge {
    /// Queues a message. It is lost if the edge has ended.
    pub fn send(&self, message: &ToAgent) -> Result<(), ControlError> {
        let is_last = matches!(message, ToAgent::Close);
        drop(self.down.send(Down { is_last, ..message.frame()?.into() }));
        Ok(())
    }

    /// Queues the frame of a piece of stdin. It is lost if the edge has ended.
    pub fn push_stdin(&self, call: u64, frame: Vec<u8>) {
        lock(&self.front).note_call(call);
        drop(self.down.send(frame.into()));
    }

    /// Greets an agent, opens its windows, and lets it prepare the start of its ranks.
    pub fn prepare(&self, start: Start) -> Result<(), ControlError> {
        drop(self.down.send(lock(&self.front).greeting().into()));
        self.send(&ToAgent::Start(start.into()))
    }

    /// Sends a signal to the carrier and what it has started on this node.
    pub fn signal_carrier(&self, signal: Signal) {
        match &self.linked {
            Some(linked) => linked.signal(&self.carrier, signal),
            None => signal_group(&self.carrier, signal),
        }
    }

    /// Ends the carrier of a job that does not start. The agent ends its ranks when its edge ends.
    pub fn end_carrier(&self) {
        match &self.linked {
            Some(linked) if lock(&self.front).has_greeted() => linked.hang_up(),
            _ => signal_group(&self.carrier, Signal::TERM),
        }
    }

    /// Gives up the node. Returns what is known about it.
    pub fn give_up(&self) -> Option<BrokenEnd> {
        lock(&self.front).cut()
    }
}
