//! The execution of the commands to the capture thread.

use std::collections::HashMap;

use nix::unistd::isatty;

use super::*;
use crate::child::Child;
use crate::first_writes::FirstWrites;
use crate::request::StreamRequest;

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
                    self.sources.table.add(Source::open(id, *stream));
                    first.into_iter().for_each(|request| self.perform(request));
                }
                Command::Deliver { id, delivery } => self.deliver(id, delivery),
                Command::Close(id) => {
                    if let Some(index) = self.sources.table.find(id) {
                        self.close(index);
                    }
                }
                Command::Finish { id, missing } => {
                    if let Some(index) = self.sources.table.find(id) {
                        self.finish(index, missing);
                    }
                }
                Command::Remove(id) => {
                    if let Some(index) = self.sources.remove(id) {
                        self.close(index);
                    }
                }
                Command::Isolate(id) => {
                    if let Some(index) = self.sources.table.find(id) {
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
