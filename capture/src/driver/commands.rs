//! The commands to the capture thread, and their execution.

use std::collections::HashMap;
use std::sync::Arc;

use nix::unistd::isatty;

use super::*;
use crate::child::Child;
use crate::first_writes::FirstWrites;
use crate::queue::SourceBytes;
use crate::remote_call::RemoteCall;
use crate::request::{NewStream, StreamRequest};

/// A command to the capture thread, from the handle or from the thread of an isolated source.
pub(crate) enum Command {
    Add(NewSource),
    AddProcess {
        process: Option<(ProcessId, Child)>,
        sources: Vec<NewSource>,
        first_writes: Option<FirstWrites>,
    },
    Open {
        id: SourceId,
        stream: Box<Stream>,
        first: Option<StreamRequest>,
    },
    Deliver {
        id: SourceId,
        delivery: SourceBytes,
    },
    Close(SourceId),
    Finish {
        id: SourceId,
        /// The bytes that are known to be missing then, if the stream is broken.
        missing: Option<u64>,
    },
    Remove(SourceId),
    Isolate(SourceId),
    ReadOutcome {
        index: usize,
        thread: ThreadId,
        outcome: ReadOutcome,
    },
    Watch {
        id: ProcessId,
        child: Child,
    },
    AddTarget {
        id: TargetId,
        pipe: OwnedFd,
    },
    Push {
        id: PushId,
        inlet: Arc<Inlet>,
        targets: Vec<TargetId>,
        closes: bool,
    },
    Fill(PushId),
    CutOff {
        id: PushId,
        position: u64,
    },
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
    /// Performed before the first byte is read.
    pub first: Option<StreamRequest>,
}

impl NewSource {
    pub(crate) fn new(id: SourceId, pipe: OwnedFd, NewStream { stream, first }: NewStream) -> NewSource {
        NewSource { id, pipe, stream: Box::new(stream), first }
    }
}

impl<B: Backend> Driver<B> {
    /// Runs the commands that have arrived.
    pub(super) fn run_commands(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Add(source) => _ = self.add(source, false),
                Command::AddProcess { process, sources, first_writes } => {
                    self.add_process(process, sources, first_writes);
                }
                Command::Open { id, stream, first } => {
                    self.sources.add(Source::open(id, *stream));
                    first.into_iter().for_each(|request| self.perform(request));
                }
                Command::Deliver { id, delivery } => self.deliver(id, delivery),
                Command::Close(id) => {
                    if let Some(index) = self.sources.find(id) {
                        self.close(index);
                    }
                }
                Command::Finish { id, missing } => {
                    if let Some(index) = self.sources.find(id) {
                        self.finish(index, missing);
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
                Command::Fill(id) => self.fill(id, self.inbox.fills().take(id)),
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

    /// Adds a process and its sources. Sources whose pipes have bytes already are added, and so
    /// read, in the order of their first writes.
    fn add_process(
        &mut self,
        process: Option<(ProcessId, Child)>,
        mut sources: Vec<NewSource>,
        first_writes: Option<FirstWrites>,
    ) {
        let terminal =
            sources.first().filter(|source| process.is_some() && isatty(&source.pipe).unwrap_or(false));
        let terminal = terminal.map(|source| source.id);
        if let Some((id, child)) = process {
            self.watch(WatchedProcess { id, child, terminal });
        }
        if let Some(first_writes) = &first_writes {
            let order = first_writes.order();
            sources.sort_by_key(|source| order.position(source.pipe.as_raw_fd()));
        }
        let mut pipes = HashMap::with_capacity(sources.len());
        for source in sources {
            let (fd, reopenable) = (source.pipe.as_raw_fd(), terminal == Some(source.id));
            pipes.insert(self.add(source, reopenable), fd);
        }
        self.added.extend(first_writes.map(|first_writes| WatchedPipes { pipes, first_writes }));
    }

    /// Performs a request, and reports its answers with the events of this turn.
    pub(super) fn perform(&mut self, StreamRequest { id, steps }: StreamRequest) {
        let answers = self.streams().perform(steps);
        if let Some(request) = id {
            self.sources.report(Event::Answered { request, answers });
        }
    }
}
