//! The core's commands on their way to the capture thread, with the memory that they name.

use iof_capture::{Capture, EndedStreams, Event, NewStream, PushEnd, Stopped, StreamRequest, TargetId};

use crate::core::commands::Command;
use crate::handles::Removed;
use crate::shared::SharedMemory;

/// Drops memory, if the command is one that does. Otherwise returns the command.
pub(crate) fn drop_memory(command: Command, memory: &SharedMemory) -> Result<Removed, Command> {
    match command {
        Command::DropInlet(push) => Ok(Removed::Memory(memory.remove_inlet(push))),
        Command::DropPage(tool) => Ok(Removed::Memory(memory.remove_tool(tool))),
        command => Err(command),
    }
}

/// Sends a command to the capture thread.
///
/// # Errors
/// The capture thread has ended.
pub(crate) fn send(command: Command, memory: &SharedMemory, capture: &Capture) -> Result<(), Stopped> {
    match command {
        // The command that drops a page, stream or inlet follows all others that name it, so none
        // of them is missing here.
        Command::Request(request) => capture.request(memory.with_pages(request).ok_or(Stopped)?),
        Command::Open { source, first } => {
            let stream = memory.take_stream(source).ok_or(Stopped)?;
            let first = memory.with_pages(first).ok_or(Stopped)?;
            // The engine never uses an id twice.
            capture.open(source, NewStream::new(stream, first)).map_err(|_| Stopped)
        }
        Command::Deliver { source, delivery } => capture.deliver(source, delivery),
        Command::Close(source) => capture.close(source),
        Command::Finish(source) => capture.finish(source),
        Command::BreakOff { source, missing } => capture.break_off(source, missing),
        Command::Remove(source) => capture.remove(source),
        Command::BeginPush { push, targets, closes } => {
            let inlet = memory.inlet(push).ok_or(Stopped)?;
            capture.begin_push(push, inlet, targets, closes).map_err(|_| Stopped)
        }
        Command::Fill { push, bytes, last } => capture.fill(push, bytes, last),
        Command::CutOff { push, position } => capture.cut_off(push, position),
        Command::Shut(target) => capture.shut(target),
        Command::ShutUnread(target) => capture.shut_unread(target),
        Command::DropInlet(_) | Command::DropPage(_) => Ok(()),
    }
}

/// Performs a command on the streams that the capture thread has left. Returns the events that
/// follow.
pub(crate) fn perform_on(command: Command, memory: &SharedMemory, streams: &mut EndedStreams) -> Vec<Event> {
    match command {
        Command::Request(request) => {
            let request = memory.with_pages(request);
            request.and_then(|request| streams.perform(request)).into_iter().collect()
        }
        Command::Remove(source) => {
            streams.remove(source);
            Vec::new()
        }
        command => discard(command, memory),
    }
}

/// Drops a command that the capture thread cannot perform any more. Returns the events that stand
/// for its effect.
pub(crate) fn discard(command: Command, memory: &SharedMemory) -> Vec<Event> {
    if let Command::Open { source, .. } = &command {
        drop(memory.take_stream(*source));
    }
    instead(&command)
}

/// Returns the events that stand for the effect of the command if the capture thread discards it
/// and has not reported its end.
pub(crate) fn instead(command: &Command) -> Vec<Event> {
    match command {
        Command::Request(request) => answered(request).into_iter().collect(),
        Command::Open { first, .. } => answered(first).into_iter().collect(),
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

/// Returns the event that answers a request with nothing, if it is to be answered.
pub(crate) fn answered<P>(request: &StreamRequest<P>) -> Option<Event> {
    Some(Event::Answered { request: request.id?, answers: Vec::new() })
}
