//! The commands to the capture thread, and their execution.

use std::sync::{Arc, Mutex, PoisonError};

use super::*;
use crate::fills::Fills;
use crate::first_writes::FirstWrites;
use crate::remote_call::RemoteCall;
use crate::request::{NewStream, StreamRequest};

/// A command to the capture thread, from the handle or from the thread of an isolated source.
pub(crate) enum Command {
    Add(NewSource),
    AddWatched { sources: Vec<NewSource>, first_writes: Arc<Mutex<FirstWrites>> },
    Open { id: SourceId, stream: Box<Stream>, first: Option<StreamRequest> },
    Deliver { id: SourceId, bytes: Vec<u8>, time: Option<u64> },
    Close(SourceId),
    Finish(SourceId),
    Remove(SourceId),
    Isolate(SourceId),
    ReadOutcome { index: usize, thread: ThreadId, outcome: ReadOutcome },
    Watch { id: ProcessId, child: Child },
    AddTarget { id: TargetId, pipe: OwnedFd },
    Push { id: PushId, inlet: Arc<Inlet>, targets: Vec<TargetId>, closes: bool },
    Fill { id: PushId, fills: Arc<Fills> },
    CutOff { id: PushId, position: u64 },
    Shut(TargetId),
    ShutUnread(TargetId),
    Request(StreamRequest),
    Listen(Arc<RoomBells>),
    Call(RemoteCall),
    Stop,
}

/// A source with a pipe that is to be added.
pub(crate) struct NewSource {
    pub id: SourceId,
    pub pipe: OwnedFd,
    pub stream: Box<Stream>,
    /// The leader of the session whose terminal the pipe is.
    pub leader: Option<(ProcessId, Child)>,
    /// Performed before the first byte is read.
    pub first: Option<StreamRequest>,
}

impl NewSource {
    pub(crate) fn new(
        id: SourceId,
        pipe: OwnedFd,
        NewStream { stream, first }: NewStream,
        leader: Option<(ProcessId, Child)>,
    ) -> NewSource {
        NewSource { id, pipe, stream: Box::new(stream), leader, first }
    }
}

impl<B: Backend> Driver<B> {
    /// Runs the commands that have arrived.
    pub(super) fn run_commands(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Add(source) => _ = self.add(source),
                Command::AddWatched { mut sources, first_writes } => {
                    let mut order = first_writes.lock().unwrap_or_else(PoisonError::into_inner);
                    sources.sort_by_cached_key(|source| order.position(source.pipe.as_raw_fd()));
                    drop(order);
                    let add = |source: NewSource| {
                        let fd = source.pipe.as_raw_fd();
                        (self.add(source), fd)
                    };
                    let pipes = sources.into_iter().map(add).collect();
                    self.added.push(WatchedPipes { pipes, first_writes });
                }
                Command::Open { id, stream, first } => {
                    self.sources.add(Source::open(id, *stream));
                    first.into_iter().for_each(|request| self.perform(request));
                }
                Command::Deliver { id, bytes, time } => self.deliver(id, bytes, time),
                Command::Close(id) => {
                    if let Some(index) = self.sources.find(id) {
                        self.close(index);
                    }
                }
                Command::Finish(id) => {
                    if let Some(index) = self.sources.find(id) {
                        self.finish(index);
                    }
                }
                Command::Remove(id) => {
                    if let Some(index) = self.sources.remove(id) {
                        self.close(index);
                    }
                }
                Command::Isolate(id) => {
                    if let Some(index) = self.sources.find(id) {
                        self.isolate(index);
                    }
                }
                Command::ReadOutcome { index, thread, outcome } => self.take_outcome(index, &thread, outcome),
                Command::Watch { id, child } => self.watch(WatchedProcess { id, child, terminal: None }),
                Command::AddTarget { id, pipe } => self.add_target(id, pipe),
                Command::Push { id, inlet, targets, closes } => self.begin_push(id, inlet, closes, &targets),
                Command::Fill { id, fills } => self.fill(id, fills.take(id)),
                Command::CutOff { id, position } => self.cut_off(id, position),
                Command::Shut(id) => {
                    if let Some(index) = self.targets.find(id) {
                        self.close_target(index, PushEnd::Stopped);
                    }
                }
                Command::ShutUnread(id) => {
                    if let Some(index) = self.targets.find(id).filter(|_| !self.targets.takes(id)) {
                        self.close_target(index, PushEnd::Stopped);
                    }
                }
                Command::Request(request) => self.perform(request),
                Command::Listen(room_bells) => self.listen(room_bells),
                Command::Call(call) => call.run(&mut self.streams()),
                Command::Stop => return self.stop(),
            }
        }
    }

    /// Performs a request, and reports its answers with the events of this turn.
    pub(super) fn perform(&mut self, StreamRequest { id, steps }: StreamRequest) {
        let answers = self.streams().perform(steps);
        if let Some(request) = id {
            self.sources.report(Event::Answered { request, answers });
        }
    }
}
