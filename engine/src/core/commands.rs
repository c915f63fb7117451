//! Commands to the capture thread, as data.
//!
//! Code that has the tables locked only queues commands. They are sent in this order before the
//! lock is released (`Tables::lock`), so the capture thread performs them in the order of the
//! changes to the tables, whichever thread made these. Sending never waits.

use std::sync::Arc;

use iof_capture::{
    Capture, EndedStreams, Event, NewStream, PushEnd, PushId, RequestId, SourceId, Stopped, StreamRequest,
    TargetId,
};
use iof_shm_ring::Inlet;

/// A command to the capture thread.
pub(crate) enum Command {
    Request(StreamRequest),
    Open { source: SourceId, stream: Box<NewStream> },
    Deliver { source: SourceId, bytes: Vec<u8>, time: Option<u64> },
    Close(SourceId),
    Finish(SourceId),
    Remove(SourceId),
    BeginPush { push: PushId, inlet: Arc<Inlet>, targets: Vec<TargetId>, closes: bool },
    Fill { push: PushId, bytes: u64, last: bool },
    CutOff { push: PushId, position: u64 },
    Shut(TargetId),
    ShutUnread(TargetId),
}

impl Command {
    /// Returns the id of the request, if the command is one that is answered.
    pub(crate) fn request(&self) -> Option<RequestId> {
        match self {
            Command::Request(request) => request.id,
            _ => None,
        }
    }

    /// Performs the command on the streams that the capture thread has left. Returns the events that
    /// follow.
    pub(crate) fn perform_on(self, streams: &mut EndedStreams) -> Vec<Event> {
        match self {
            Command::Request(request) => streams.perform(request).into_iter().collect(),
            Command::Remove(source) => {
                streams.remove(source);
                Vec::new()
            }
            command => command.without_capture(),
        }
    }

    /// Returns the events that stand for the effect of the command if the capture thread discards it
    /// and has not reported its end.
    pub(crate) fn without_capture(&self) -> Vec<Event> {
        match self {
            Command::Request(request) => answered(Some(request)).into_iter().collect(),
            Command::Open { stream, .. } => answered(stream.first.as_ref()).into_iter().collect(),
            Command::BeginPush { push, targets, .. } => {
                let ended = |target: &TargetId| Event::Fed {
                    push: *push,
                    target: *target,
                    delivered: 0,
                    end: PushEnd::Stopped,
                };
                targets.iter().map(ended).collect()
            }
            // The thread has reported the ends of all sources, targets and pushes.
            _ => Vec::new(),
        }
    }

    /// Sends the command.
    ///
    /// # Errors
    /// The capture thread has ended.
    pub(crate) fn send(self, capture: &Capture) -> Result<(), Stopped> {
        match self {
            Command::Request(request) => capture.request(request),
            // The engine never uses an id twice.
            Command::Open { source, stream } => capture.open(source, *stream).map_err(|_| Stopped),
            Command::Deliver { source, bytes, time } => capture.deliver(source, bytes, time),
            Command::Close(source) => capture.close(source),
            Command::Finish(source) => capture.finish(source),
            Command::Remove(source) => capture.remove(source),
            Command::BeginPush { push, inlet, targets, closes } => {
                capture.begin_push(push, inlet, targets, closes).map_err(|_| Stopped)
            }
            Command::Fill { push, bytes, last } => capture.fill(push, bytes, last),
            Command::CutOff { push, position } => capture.cut_off(push, position),
            Command::Shut(target) => capture.shut(target),
            Command::ShutUnread(target) => capture.shut_unread(target),
        }
    }
}

/// Returns the event that answers a request with nothing, if it is to be answered.
pub(crate) fn answered(request: Option<&StreamRequest>) -> Option<Event> {
    Some(Event::Answered { request: request?.id?, answers: Vec::new() })
}
